// SPDX-License-Identifier: Apache-2.0
//
// What calls carry, in both directions: arguments and replies of each size, in the frame and as bodies; statuses; credits. Large counts at once.

#include <stdlib.h>
#include <string.h>

#include "tests/conformance/harness.h"

#define ARGS  1u // generations
#define REPLY 2u

// -- In the frame --

static void echo_of(struct cf_side *side, const uint8_t *bytes, size_t len)
{
    struct cf_op *op = cf_op(side, "echo", true);
    lien_call_opts opts = cf_call_opts(op);
    cf_call(side, side->link, "cf/echo", bytes, len, &opts, NULL);
    cf_op_over(side, op, 0, 0);
    cf_check_reply(side, op, bytes, len);
    if (op->reply)
        lien_msg_free(&op->reply);
}

// Both sides call at once.
static void inline_sizes(struct cf_side *side)
{
    size_t most = cf_info(side, side->link).eager_max;
    const size_t lens[] = {0, 1, 2, 15, 16, 17, 4095, 4096, 4097, most - 1, most};
    uint8_t *bytes = malloc(2 * most);
    CHECK(side, bytes != NULL);
    cf_fill(side, bytes, 2 * most, side->role, 0);
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
        echo_of(side, bytes, lens[i]);
    struct cf_op *op = cf_op(side, "call that is too large", true);
    lien_call_opts opts = cf_call_opts(op);
    CHECK_RC(side, cf_try_call(side, side->link, "cf/echo", bytes, 2 * most, &opts, NULL),
             LIEN_EMSGSIZE);
    free(bytes);
    cf_calls_alive(side, side->link);
}

static void answered(struct cf_side *side, const char *method, int status, const char *reply)
{
    struct cf_op *op = cf_op(side, "call", true);
    lien_call_opts opts = cf_call_opts(op);
    cf_call(side, side->link, method, "x", 1, &opts, NULL);
    if (strcmp(method, "cf/desk") == 0) { // the other side is at the same line
        lien_request *request = cf_request(side);
        CHECK(side, strcmp(lien_request_method(request), "cf/desk") == 0);
        CHECK_RC(side, lien_request_reply(&request, 1, NULL, 0), LIEN_EINVAL);
        CHECK(side, request != NULL);
        cf_reply(side, &request, status, reply, strlen(reply));
    }
    cf_op_over(side, op, status, 0);
    cf_check_reply(side, op, reply, strlen(reply));
}

static void statuses(struct cf_side *side)
{
    answered(side, "cf/desk", 0, "");
    answered(side, "cf/desk", 0, "yes");
    answered(side, "cf/desk", LIEN_EIO, "no");
    answered(side, "cf/desk", LIEN_EBUSY, "");
    answered(side, "cf/desk", -100000, "a code of its own");
    answered(side, "cf/des", LIEN_ENOTFOUND, "");
    answered(side, "cf/desks", LIEN_ENOTFOUND, "");
    answered(side, "no such method", LIEN_ENOTFOUND, "");
    cf_calls_alive(side, side->link);
}

// -- Bodies --

static void serve_body(struct cf_side *side, uint64_t len, size_t n)
{
    uint64_t lens[LIEN_BUFS_MAX];
    lien_buf *bufs[LIEN_BUFS_MAX], *more[LIEN_BUFS_MAX];
    lien_request *request = cf_request(side);
    lien_buf *body = lien_request_body(request);
    CHECK(side, (body != NULL) == (len > 0));
    if (body) {
        CHECK_EQ(side, lien_buf_len(body), len);
        cf_check_buf(side, body, ARGS, 0);
        CHECK_RC(side, lien_request_take_body(request, &body), 0);
        CHECK(side, lien_request_body(request) == NULL);
        lien_buf_free(&body);
    }
    CHECK_RC(side, lien_request_take_body(request, &body), LIEN_ENOTFOUND);
    cf_cut(len, n, lens);
    lens[n - 1]++; // one byte above what the caller reserved: refused, and nothing moved
    cf_bufs(side, lens, n, REPLY, more);
    CHECK_RC(side, lien_request_reply_body(&request, 0, NULL, 0, more, n), LIEN_EMSGSIZE);
    for (size_t i = 0; i < n; i++)
        CHECK(side, more[i] != NULL);
    cf_free_bufs(more, n);
    lens[n - 1]--;
    cf_bufs(side, lens, n, REPLY, bufs);
    atomic_fetch_add(&side->call_bytes, 2);
    CHECK_RC(side, lien_request_reply_body(&request, 0, "r", 1, bufs, n), 0);
    for (size_t i = 0; i < n; i++)
        CHECK(side, bufs[i] == NULL);
    CHECK(side, request == NULL);
}

static void call_body(struct cf_side *side, uint64_t len, size_t n)
{
    uint64_t lens[LIEN_BUFS_MAX];
    lien_buf *bufs[LIEN_BUFS_MAX], *body = NULL;
    const void *head;
    size_t head_len;
    void *p;
    cf_cut(len, n, lens);
    cf_bufs(side, lens, n, ARGS, bufs);
    struct cf_op *op = cf_op(side, "call with a body", true);
    lien_call_opts opts = cf_call_opts(op);
    opts.body = bufs;
    opts.n_body = n;
    opts.reply_max = (size_t)len;
    cf_call(side, side->link, "cf/desk", "a", 1, &opts, NULL);
    cf_op_over(side, op, 0, 0);
    for (size_t i = 0; i < n; i++)
        CHECK_RC(side, lien_buf_mut(bufs[i], &p), 0);
    cf_scribble(side, bufs, n);
    CHECK(side, op->reply != NULL);
    CHECK_RC(side, lien_msg_head(op->reply, &head, &head_len), 0);
    CHECK(side, head_len == 1 && *(const char *)head == 'r');
    CHECK(side, (lien_msg_body(op->reply) != NULL) == (len > 0));
    if (len > 0) {
        CHECK_RC(side, lien_msg_take_body(op->reply, &body), 0);
        CHECK_EQ(side, lien_buf_len(body), len);
        cf_check_buf(side, body, REPLY, 0);
        lien_buf_free(&body);
    }
    lien_msg_free(&op->reply);
    cf_free_bufs(bufs, n);
}

static void body(struct cf_side *side)
{
    if (cf_calls(side))
        call_body(side, side->test->arg, side->test->arg >= 4096 ? 3 : 1);
    else
        serve_body(side, side->test->arg, 1);
}

// In both directions, one after the other.
static void small_bodies(struct cf_side *side)
{
    static const uint64_t sizes[] = {0, 1, 4095, 4096, 4097, 64 * KIB};
    for (unsigned i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
        if ((side->role == CF_READER) == (i % 2 == 0))
            call_body(side, sizes[i / 2], sizes[i / 2] >= 4096 ? 3 : 1);
        else
            serve_body(side, sizes[i / 2], 1);
    }
}

static void body_of_64(struct cf_side *side)
{
    for (unsigned i = 0; i < 3; i++) {
        if (cf_calls(side))
            call_body(side, 300001, i == 0 ? 64 : 5);
        else
            serve_body(side, 300001, i == 1 ? 64 : 7);
    }
}

// A caller that reserved nothing gets no body; the handler hears it, and can still answer.
static void reply_max(struct cf_side *side)
{
    for (size_t most = 0; most <= 100; most += 100) {
        if (cf_calls(side)) {
            struct cf_op *op = cf_op(side, "call", true);
            lien_call_opts opts = cf_call_opts(op);
            opts.reply_max = most;
            cf_call(side, side->link, "cf/desk", NULL, 0, &opts, NULL);
            cf_op_over(side, op, LIEN_EMSGSIZE, 0);
            cf_check_reply(side, op, "too large", 9);
            continue;
        }
        lien_request *request = cf_request(side);
        lien_buf *buf = cf_buf(side, most + 1, REPLY, 0);
        void *p;
        atomic_fetch_add(&side->call_bytes, 1);
        CHECK_RC(side, lien_request_reply_body(&request, 0, "b", 1, &buf, 1), LIEN_EMSGSIZE);
        CHECK(side, request != NULL && buf != NULL);
        CHECK_RC(side, lien_buf_mut(buf, &p), 0);
        cf_reply(side, &request, LIEN_EMSGSIZE, "too large", 9);
        lien_buf_free(&buf);
    }
    cf_calls_alive(side, side->link);
}

// -- Many --

#define CALLS 1500u

struct many {
    struct cf_side *side;
    _Atomic unsigned over, released;
};

struct one {
    struct many *all;
    uint32_t number;
    _Atomic int done;
};

static void one_done(void *arg, int status, lien_msg *reply)
{
    struct one *one = arg;
    struct cf_side *side = one->all->side;
    const void *head;
    size_t len;
    CHECK_RC(side, status, 0);
    CHECK(side, reply != NULL && atomic_fetch_add(&one->done, 1) == 0);
    CHECK_RC(side, lien_msg_head(reply, &head, &len), 0);
    CHECK(side, len == sizeof(one->number) && memcmp(head, &one->number, len) == 0);
    lien_msg_free(&reply);
    atomic_fetch_add(&one->all->over, 1);
}

static void one_released(void *arg, int status)
{
    struct one *one = arg;
    struct cf_side *side = one->all->side;
    CHECK_RC(side, status, 0);
    CHECK_EQ(side, atomic_load(&one->done), 1);
    atomic_fetch_add(&one->all->released, 1);
}

// Both sides call as often as credits allow, and wait for on_writable when they do not.
static void many(struct cf_side *side)
{
    struct one *ones = calloc(CALLS, sizeof(*ones));
    struct many all = {.side = side};
    unsigned waits = 0;
    CHECK(side, ones != NULL);
    for (uint32_t i = 0; i < CALLS; i++) {
        lien_call_opts opts;
        int rc;
        ones[i].all = &all;
        ones[i].number = i;
        lien_call_opts_init(&opts);
        opts.on_done = one_done;
        opts.on_released = one_released;
        opts.arg = &ones[i];
        for (;;) {
            int seen = atomic_load(&side->link->writable);
            rc = lien_call_start(side->link->conn, "cf/echo", &i, sizeof(i), &opts, NULL);
            if (rc != LIEN_EAGAIN)
                break;
            waits++;
            UNTIL(side, atomic_load(&side->link->writable) != seen);
        }
        CHECK_RC(side, rc, 0);
    }
    atomic_fetch_add(&side->call_bytes, CALLS * sizeof(uint32_t));
    UNTIL(side, atomic_load(&all.released) == CALLS);
    CHECK_EQ(side, atomic_load(&all.over), CALLS);
    CHECK(side, waits > 0); // there are fewer credits than calls
    free(ones);
    cf_calls_alive(side, side->link);
}

// All call credits are taken, also by replies that are kept; the connection says when there is one again.
static void exhausted(struct cf_side *side)
{
    enum {
        CREDITS = 4
    };
    if (!cf_calls(side)) {
        for (unsigned i = 0; i <= CREDITS; i++) {
            lien_request *request = cf_request(side);
            if (i == CREDITS - 1)
                cf_sync(side); // all four wait; the caller has tried in vain
            if (i < CREDITS - 1)
                lien_request_on_cancel(request, NULL, NULL);
            cf_reply(side, &request, 0, "r", 1);
        }
        cf_calls_alive(side, side->link);
        return;
    }
    struct cf_op *ops[CREDITS];
    for (unsigned i = 0; i < CREDITS; i++) {
        ops[i] = cf_op(side, "call", true);
        lien_call_opts opts = cf_call_opts(ops[i]);
        cf_call(side, side->link, "cf/desk", NULL, 0, &opts, NULL);
    }
    struct cf_op *fifth = cf_op(side, "fifth call", true);
    lien_call_opts opts = cf_call_opts(fifth);
    CHECK_RC(side, cf_try_call(side, side->link, "cf/desk", NULL, 0, &opts, NULL), LIEN_EAGAIN);
    cf_sync(side);
    for (unsigned i = 0; i < CREDITS; i++)
        cf_op_over(side, ops[i], 0, 0);
    int seen = atomic_load(&side->link->writable);
    CHECK_RC(side, cf_try_call(side, side->link, "cf/desk", NULL, 0, &opts, NULL), LIEN_EAGAIN);
    lien_msg_free(&ops[2]->reply); // a receive for a reply is free
    UNTIL(side, atomic_load(&side->link->writable) != seen);
    CHECK_RC(side, cf_try_call(side, side->link, "cf/desk", NULL, 0, &opts, NULL), 0);
    cf_op_over(side, fifth, 0, 0);
    for (unsigned i = 0; i < CREDITS; i++) {
        if (ops[i]->reply)
            lien_msg_free(&ops[i]->reply);
    }
    cf_calls_alive(side, side->link);
}

const struct cf_case cf_call_cases[] = {
    {.group = "call", .name = "args-inline", .run = inline_sizes},
    {.group = "call", .name = "statuses", .run = statuses},
    {.group = "call", .name = "call-body-0-to-64KiB", .run = small_bodies},
    {.group = "call", .name = "call-body-1MiB", .run = body, .arg = MIB},
    {.group = "call",
     .name = "call-body-64MiB",
     .run = body,
     .arg = 64 * MIB,
     .flags = CF_BACK,
     .settings = CF_UNHURRIED},
    {.group = "call", .name = "call-body-64-bufs", .run = body_of_64},
    {.group = "call", .name = "reply-max", .run = reply_max},
    {.group = "call", .name = "many-calls-both-ways", .run = many},
    {.group = "call", .name = "call-credits", .run = exhausted, .settings = {"call_credits=4"}},
    {.group = "call",
     .name = "call-credits-back",
     .run = exhausted,
     .flags = CF_BACK,
     .settings = {"call_credits=4"}},
    {0},
};
