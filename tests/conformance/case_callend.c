// SPDX-License-Identifier: Apache-2.0
//
// How calls end before their time: deadline, cancel, handles dropped at each point on either side, a lost or closed connection. What is told when, and whose memory is whose afterwards.
// Cases that need an end in the middle of a transfer stop the other side there, and try again if it had gone too far.

#include <stdlib.h>
#include <string.h>

#include "tests/conformance/harness.h"

#define BIG   (64 * MIB)
#define LEN   100000u
#define TRIES 20u

static _Atomic int told[2]; // on_cancel ran, by role: the simulator runs both sides in one process

static void tell(void *arg)
{
    struct cf_side *side = arg;
    if (atomic_fetch_add(&told[side->role], 1) != 0)
        FAIL(side, "on_cancel ran twice");
}

static struct cf_op *start(struct cf_side *side, const char *args, lien_buf *const *read,
                           lien_space *write, uint32_t timeout_ms, lien_call **call)
{
    struct cf_op *op = cf_op(side, "call", true);
    lien_call_opts opts = cf_call_opts(op);
    opts.read = read;
    opts.n_read = read ? 1 : 0;
    opts.write = write;
    opts.timeout_ms = timeout_ms ? timeout_ms : 3000000;
    cf_call(side, side->link, "cf/desk", args, strlen(args), &opts, call);
    return op;
}

static char word_of(struct cf_side *side, const lien_request *request)
{
    const void *args;
    size_t len;
    CHECK_RC(side, lien_request_args(request, &args, &len), 0);
    return len > 0 ? *(const char *)args : '\0';
}

// -- Deadline --

// Both sides end the call at its time. The handler may come to it too late to see it live: then once more, with more time.
static void deadline(struct cf_side *side)
{
    char seen = 'n';
    for (uint32_t ms = 200; seen != 'y'; ms *= 2) {
        CHECK(side, ms < 100000);
        if (cf_calls(side)) {
            uint64_t since = side->driver->now_ms(side);
            struct cf_op *op = start(side, "", NULL, NULL, ms, NULL);
            cf_op_over(side, op, LIEN_ETIMEDOUT, 0);
            CHECK(side, side->driver->now_ms(side) - since >= ms);
            cf_tell(side, "o", 1);
            cf_hear(side, &seen, 1);
            continue;
        }
        char over;
        UNTIL(side, cf_has_request(side) || cf_word_waits(side));
        if (cf_has_request(side)) {
            lien_request *request = cf_request(side);
            atomic_store(&told[side->role], 0);
            int rc = lien_request_on_cancel(request, tell, side);
            CHECK(side, rc == 0 || rc == LIEN_ECANCELED);
            UNTIL(side, lien_request_cancelled(request));
            UNTIL(side, lien_request_left_ms(request) == 0); // the caller's CANCEL may come first
            UNTIL(side, rc != 0 || atomic_load(&told[side->role]));
            CHECK_RC(side, lien_request_on_cancel(request, tell, side), LIEN_ECANCELED);
            cf_reply(side, &request, 0, "late", 4); // goes nowhere
            seen = rc == 0 ? 'y' : 'n';
        }
        cf_hear(side, &over, 1);
        cf_tell(side, &seen, 1);
    }
    cf_calls_alive(side, side->link);
}

// Its arguments are on their way when its time is over, since their owner stands still: the handler never begins.
static void expired(struct cf_side *side)
{
    const uint32_t ms = 1000;
    char again = 'y';
    for (unsigned i = 0; again == 'y'; i++) {
        CHECK(side, i < TRIES);
        if (cf_calls(side)) {
            lien_buf *body = cf_buf(side, BIG, 1, 0);
            struct cf_op *op = cf_op(side, "call", true);
            lien_call_opts opts = cf_call_opts(op);
            opts.body = &body;
            opts.n_body = 1;
            opts.timeout_ms = ms;
            cf_call(side, side->link, "cf/desk", NULL, 0, &opts, NULL);
            cf_op_over(side, op, LIEN_ETIMEDOUT, 0);
            lien_buf_free(&body);
            cf_tell(side, "o", 1);
            cf_hear(side, &again, 1);
            continue;
        }
        uint64_t before = cf_stats(side).read_pieces_done, bytes = cf_stats(side).read_bytes;
        UNTIL(side, cf_stats(side).read_pieces_done > before || cf_word_waits(side));
        side->driver->freeze(side);
        if (cf_stats(side).read_bytes - bytes <= BIG - 16 * MIB && !cf_word_waits(side)) {
            uint64_t until = side->driver->now_ms(side) + ms + 100;
            UNTIL(side, side->driver->now_ms(side) >= until);
            CHECK(side, !cf_has_request(side));
            again = 'n';
        }
        side->driver->thaw(side);
        char over;
        cf_hear(side, &over, 1);
        CHECK(side, again == 'y' || !cf_has_request(side));
        cf_desk_close(side);
        cf_tell(side, &again, 1);
    }
    cf_calls_alive(side, side->link);
}

// -- Cancel, with the handler in the know --

static void *reply_late(void *arg)
{
    lien_request **request = arg;
    return lien_request_reply(request, 0, "late", 4) == 0 && *request == NULL ? NULL : arg;
}

static void cancel_server(struct cf_side *side)
{
    char word;
    pthread_t thread;
    void *bad;
    atomic_store(&told[side->role], 0);
    lien_request *request = cf_request(side);
    CHECK_RC(side, lien_request_on_cancel(request, tell, side), 0);
    CHECK(side, !lien_request_cancelled(request));
    cf_tell(side, "h", 1);
    UNTIL(side, atomic_load(&told[side->role]));
    CHECK(side, lien_request_cancelled(request));
    CHECK(side, word_of(side, request) == 'c'); // the arguments are here as long as the request
    cf_hear(side, &word, 1);                    // the caller has called again, and was answered
    lien_space *space = cf_space_of(side, LEN);
    lien_buf *buf = cf_buf(side, LEN, 1, 0);
    CHECK_RC(side, lien_request_read(request, space, NULL), LIEN_ECANCELED);
    CHECK_RC(side, lien_request_write(request, &buf, 1, NULL), LIEN_ECANCELED);
    lien_space_free(&space);
    lien_buf_free(&buf);
    // From another thread, long after.
    atomic_fetch_add(&side->call_bytes, 8);
    CHECK(side, pthread_create(&thread, NULL, reply_late, &request) == 0);
    CHECK(side, pthread_join(thread, &bad) == 0 && bad == NULL);
}

static void cancel(struct cf_side *side)
{
    if (!cf_calls(side)) {
        cancel_server(side);
        cf_calls_alive(side, side->link);
        return;
    }
    lien_call *call;
    lien_buf *source = cf_buf(side, LEN, 1, 0), *got;
    lien_space *space = cf_space_of(side, LEN);
    char word;
    void *p;
    struct cf_op *op = start(side, "c", &source, space, 0, &call);
    cf_hear(side, &word, 1);
    CHECK_RC(side, lien_buf_mut(source, &p), LIEN_EBUSY);
    CHECK_RC(side, lien_call_cancel(call), 0);
    CHECK_RC(side, lien_buf_mut(source, &p), 0);       // before it returns
    CHECK_RC(side, lien_space_buf(space, 0, &got), 0); // nothing ran into it
    CHECK_RC(side, lien_call_cancel(call), 0);         // again: no effect
    cf_op_over(side, op, LIEN_ECANCELED, 0);
    cf_check_space(side, space, 1, 1, 0);
    struct cf_op *next = cf_op(side, "call after it", true);
    lien_call_opts opts = cf_call_opts(next);
    cf_call(side, side->link, "cf/echo", "x", 1, &opts, NULL);
    cf_op_over(side, next, 0, 0);
    cf_check_reply(side, next, "x", 1);
    cf_tell(side, "g", 1);
    CHECK_RC(side, lien_call_close(&call), 0);
    CHECK(side, call == NULL);
    lien_space_free(&space);
    lien_buf_free(&source);
    cf_calls_alive(side, side->link);
}

// -- In the middle of a write into the caller's space, with others beside --

#define OTHERS 10u

static void middle_server(struct cf_side *side)
{
    lien_request *others[OTHERS];
    unsigned n = 0;
    for (bool over = false; !over;) {
        lien_request *request = cf_request(side);
        switch (word_of(side, request)) {
        case 'o':
            CHECK(side, n < OTHERS);
            others[n++] = request;
            continue;
        case 'e':
            over = true;
            break;
        default: {
            lien_buf *buf = cf_buf(side, BIG, 2, 0);
            void *p;
            struct cf_op *op = cf_op(side, "write", true);
            lien_transfer_opts opts = cf_transfer_opts(op);
            int rc = lien_request_write(request, &buf, 1, &opts);
            op->refused = rc != 0;
            CHECK(side, rc == 0 || rc == LIEN_ECANCELED);
            UNTIL(side, rc != 0 || atomic_load(&op->released));
            int status = atomic_load(&op->status);
            CHECK(side, status == 0 || status == LIEN_ECANCELED);
            CHECK_RC(side, lien_buf_mut(buf, &p), 0);
            lien_buf_free(&buf);
            lien_request_drop(&request);
            continue;
        }
        }
        cf_reply(side, &request, 0, NULL, 0);
    }
    CHECK_EQ(side, n, OTHERS);
    for (unsigned i = 0; i < OTHERS; i++) {
        CHECK(side, !lien_request_cancelled(others[i]));
        cf_reply(side, &others[i], 0, "ok", 2);
    }
}

// A call whose write is stopped in its middle.
static struct cf_op *write_in_middle(struct cf_side *side, uint32_t *timeout_ms, lien_call **call,
                                     lien_space **space, uint64_t *since)
{
    for (unsigned i = 0; i < TRIES; i++) {
        *space = cf_space_of(side, BIG);
        lien_ctx_stats before = cf_stats(side);
        *since = side->driver->now_ms(side);
        struct cf_op *op = start(side, "w", NULL, *space, *timeout_ms, call);
        if (cf_freeze_in_middle(side, &before, BIG, op))
            return op;
        UNTIL(side, atomic_load(&op->released));
        CHECK_RC(side, lien_call_close(call), 0);
        lien_space_free(space);
        *timeout_ms *= 2;
    }
    FAIL(side, "no write could be stopped in its middle");
}

static void middle_caller(struct cf_side *side, uint32_t timeout_ms, bool drop)
{
    struct cf_op *others[OTHERS];
    lien_call *call;
    lien_space *space;
    lien_buf *got;
    uint64_t since;
    for (unsigned i = 0; i < OTHERS; i++)
        others[i] = start(side, "o", NULL, NULL, 0, NULL);
    struct cf_op *op = write_in_middle(side, &timeout_ms, &call, &space, &since);
    if (timeout_ms == 0 && drop)
        CHECK_RC(side, lien_call_close(&call), 0);
    else if (timeout_ms == 0)
        CHECK_RC(side, lien_call_cancel(call), 0);
    UNTIL(side, atomic_load(&op->done));
    CHECK_RC(side, atomic_load(&op->status), timeout_ms ? LIEN_ETIMEDOUT : LIEN_ECANCELED);
    CHECK(side, side->driver->now_ms(side) - since >= timeout_ms);
    cf_lent_while_frozen(side, op, space, 0);
    for (unsigned i = 0; i < OTHERS; i++)
        CHECK_EQ(side, atomic_load(&others[i]->done), 0);
    side->driver->thaw(side);
    cf_op_over(side, op, timeout_ms ? LIEN_ETIMEDOUT : LIEN_ECANCELED, 0);
    CHECK_RC(side, lien_space_buf(space, 0, &got), 0);
    lien_space_free(&space);
    cf_op_over(side, start(side, "e", NULL, NULL, 0, NULL), 0, 0);
    for (unsigned i = 0; i < OTHERS; i++) {
        cf_op_over(side, others[i], 0, 0);
        cf_check_reply(side, others[i], "ok", 2);
    }
    if (call)
        CHECK_RC(side, lien_call_close(&call), 0);
}

static void write_cancel(struct cf_side *side)
{
    if (cf_calls(side))
        middle_caller(side, 0, false);
    else
        middle_server(side);
    cf_calls_alive(side, side->link);
}

static void write_dropped(struct cf_side *side)
{
    if (cf_calls(side))
        middle_caller(side, 0, true);
    else
        middle_server(side);
    cf_calls_alive(side, side->link);
}

static void write_deadline(struct cf_side *side)
{
    if (cf_calls(side))
        middle_caller(side, 1000, false);
    else
        middle_server(side);
    cf_calls_alive(side, side->link);
}

// -- The caller drops its handle at other points --

// Before anything left, and again and again at any moment.
static void drop_at_any_moment(struct cf_side *side)
{
    if (cf_calls(side)) {
        for (unsigned i = 0; i < 200; i++) {
            lien_buf *source = cf_buf(side, LEN, 1, 0);
            lien_space *space = cf_space_of(side, LEN);
            lien_call *call;
            void *p;
            struct cf_op *op = start(side, "a", &source, space, 0, &call);
            for (unsigned turns = 0; turns < i % 23; turns++)
                cf_turn(side, false, cf_real_ms(), __FILE__, __LINE__, "a turn");
            bool was_over = atomic_load(&op->done);
            CHECK_RC(side, lien_call_close(&call), 0);
            CHECK_RC(side, lien_buf_mut(source, &p), 0);
            memset(p, 0xee, LEN);
            UNTIL(side, atomic_load(&op->released));
            int status = atomic_load(&op->status);
            CHECK(side, status == 0 || (status == LIEN_ECANCELED && !was_over));
            CHECK_RC(side, atomic_load(&op->released_status), 0);
            if (status == 0)
                cf_check_space(side, space, 1, 2, LEN);
            lien_space_free(&space);
            lien_buf_free(&source);
        }
        cf_op_over(side, start(side, "e", NULL, NULL, 0, NULL), 0, 0);
        cf_calls_alive(side, side->link);
        return;
    }
    for (bool over = false; !over;) {
        lien_request *request = cf_request(side);
        over = word_of(side, request) == 'e';
        lien_buf *buf = cf_buf(side, LEN, 2, 0);
        lien_space *space = cf_space_of(side, LEN);
        struct cf_op *ops[2] = {cf_op(side, "read", true), cf_op(side, "write", true)};
        for (unsigned i = 0; i < 2; i++) {
            lien_transfer_opts opts = cf_transfer_opts(ops[i]);
            int rc = over     ? LIEN_ECANCELED
                     : i == 0 ? lien_request_read(request, space, &opts)
                              : lien_request_write(request, &buf, 1, &opts);
            CHECK(side, rc == 0 || rc == LIEN_ECANCELED);
            ops[i]->refused = rc != 0;
            UNTIL(side, rc != 0 || atomic_load(&ops[i]->released));
            int status = atomic_load(&ops[i]->status);
            CHECK(side, status == 0 || status == LIEN_ECANCELED || status == LIEN_ESTALE);
            if (i == 0 && rc == 0 && status == 0)
                cf_check_space(side, space, 1, 1, LEN); // good bytes, or none (R13)
        }
        if (lien_request_reply(&request, 0, NULL, 0) != 0)
            lien_request_drop(&request);
        lien_space_free(&space);
        lien_buf_free(&buf);
    }
    cf_calls_alive(side, side->link);
}

// The handler is in the middle of a read when the caller drops its handle and writes other bytes.
static void drop_while_read(struct cf_side *side)
{
    char early = 'n';
    for (unsigned i = 0; early != 'y'; i++) {
        CHECK(side, i < TRIES);
        if (cf_calls(side)) {
            lien_buf *source = cf_buf(side, BIG, 1, 0);
            lien_call *call;
            char word;
            struct cf_op *op = start(side, "r", &source, NULL, 0, &call);
            cf_hear(side, &word, 1);
            CHECK_RC(side, lien_call_close(&call), 0);
            cf_scribble(side, &source, 1);
            UNTIL(side, atomic_load(&op->released));
            CHECK_RC(side, atomic_load(&op->released_status), 0);
            lien_buf_free(&source);
            cf_hear(side, &early, 1);
            continue;
        }
        lien_request *request = cf_request(side);
        lien_space *space = cf_space_of(side, BIG);
        struct cf_op *op = cf_op(side, "read", true);
        lien_transfer_opts opts = cf_transfer_opts(op);
        uint64_t before = cf_stats(side).read_pieces_done;
        CHECK_RC(side, lien_request_read(request, space, &opts), 0);
        UNTIL(side, cf_stats(side).read_pieces_done - before >= 4);
        cf_tell(side, "m", 1);
        UNTIL(side, atomic_load(&op->released));
        CHECK_RC(side, atomic_load(&op->released_status), 0);
        int status = atomic_load(&op->status);
        CHECK(side, status == 0 || status == LIEN_ECANCELED || status == LIEN_ESTALE);
        if (status == 0)
            cf_check_space(side, space, 1, 1, BIG);
        lien_request_drop(&request);
        lien_space_free(&space);
        early = status == 0 ? 'n' : 'y';
        cf_tell(side, &early, 1);
    }
    cf_calls_alive(side, side->link);
}

// The reply was given, and the caller has not come to it: what it says no longer matters.
static void drop_when_replied(struct cf_side *side)
{
    char word;
    if (!cf_calls(side)) {
        lien_request *request = cf_request(side);
        cf_tell(side, "h", 1);
        cf_hear(side, &word, 1);
        cf_reply(side, &request, 0, "too late", 8);
        cf_tell(side, "r", 1);
        cf_calls_alive(side, side->link);
        return;
    }
    lien_call *call;
    struct cf_op *op = start(side, "", NULL, NULL, 0, &call);
    cf_hear(side, &word, 1);
    cf_tell(side, "g", 1);
    cf_hear_still(side, &word, 1);
    CHECK_RC(side, lien_call_close(&call), 0);
    UNTIL(side, atomic_load(&op->released));
    int status = atomic_load(&op->status);
    CHECK(side, status == LIEN_ECANCELED || (status == 0 && side->driver->threaded));
    CHECK(side, status == 0 || op->reply == NULL);
    // And once all is over.
    op = cf_op(side, "call", true);
    lien_call_opts opts = cf_call_opts(op);
    cf_call(side, side->link, "cf/echo", "x", 1, &opts, &call);
    cf_op_over(side, op, 0, 0);
    CHECK_RC(side, lien_call_cancel(call), 0);
    CHECK_RC(side, lien_call_close(&call), 0);
    CHECK_RC(side, atomic_load(&op->status), 0);
    cf_check_reply(side, op, "x", 1);
    cf_calls_alive(side, side->link);
}

// The reply's body is being read.
static void drop_while_fetched(struct cf_side *side)
{
    if (!cf_calls(side)) {
        for (bool over = false; !over;) {
            lien_request *request = cf_request(side);
            over = word_of(side, request) == 'e';
            lien_buf *buf = cf_buf(side, over ? 1 : BIG, 2, 0);
            if (over)
                cf_reply(side, &request, 0, NULL, 0);
            else
                CHECK_RC(side, lien_request_reply_body(&request, 0, NULL, 0, &buf, 1), 0);
            if (buf)
                lien_buf_free(&buf);
        }
        UNTIL(side, cf_stats(side).pool_bytes < BIG); // released, though nobody wants it
        cf_calls_alive(side, side->link);
        return;
    }
    struct cf_op *op = NULL;
    lien_call *call;
    bool middle = false;
    for (unsigned i = 0; !middle; i++) {
        CHECK(side, i < TRIES);
        lien_ctx_stats before = cf_stats(side);
        op = cf_op(side, "call", true);
        lien_call_opts opts = cf_call_opts(op);
        opts.reply_max = BIG;
        cf_call(side, side->link, "cf/desk", "f", 1, &opts, &call);
        middle = cf_freeze_in_middle(side, &before, BIG, op);
        if (!middle) {
            cf_op_over(side, op, 0, 0);
            CHECK_RC(side, lien_call_close(&call), 0);
            CHECK(side, op->reply != NULL);
            lien_msg_free(&op->reply);
        }
    }
    CHECK_RC(side, lien_call_close(&call), 0);
    cf_op_over(side, op, LIEN_ECANCELED, 0);
    CHECK(side, op->reply == NULL);
    CHECK(side, cf_stats(side).pool_bytes >= BIG); // a READ may still run into it
    side->driver->thaw(side);
    UNTIL(side, cf_stats(side).pool_bytes < BIG);
    cf_op_over(side, start(side, "e", NULL, NULL, 0, NULL), 0, 0);
    cf_calls_alive(side, side->link);
}

// -- The handler drops its request --

static void request_dropped(struct cf_side *side)
{
    enum {
        WAYS = 4
    }; // at once; with a read running; with a write running; with both
    for (unsigned way = 0; way < WAYS; way++) {
        if (cf_calls(side)) {
            lien_buf *source = cf_buf(side, 8 * MIB, 1, 0);
            lien_space *space = cf_space_of(side, 8 * MIB);
            lien_buf *got;
            void *p;
            struct cf_op *op = start(side, "d", &source, space, 0, NULL);
            cf_op_over(side, op, LIEN_ECANCELED, 0);
            CHECK(side, op->reply == NULL);
            CHECK_RC(side, lien_buf_mut(source, &p), 0);
            CHECK_RC(side, lien_space_buf(space, 0, &got), 0);
            lien_space_free(&space);
            lien_buf_free(&source);
            continue;
        }
        lien_request *request = cf_request(side);
        lien_space *space = cf_space_of(side, 8 * MIB);
        lien_buf *buf = cf_buf(side, 8 * MIB, 2, 0);
        struct cf_op *ops[2] = {NULL, NULL};
        for (unsigned i = 0; i < 2; i++) {
            if (!(way & (i + 1)))
                continue;
            ops[i] = cf_op(side, i ? "write" : "read", true);
            lien_transfer_opts opts = cf_transfer_opts(ops[i]);
            CHECK_RC(side,
                     i ? lien_request_write(request, &buf, 1, &opts)
                       : lien_request_read(request, space, &opts),
                     0);
        }
        lien_request_drop(&request);
        CHECK(side, request == NULL);
        for (unsigned i = 0; i < 2; i++) {
            UNTIL(side, !ops[i] || atomic_load(&ops[i]->released));
            // A thread of the ctx's own may have been that fast.
            CHECK(side, !ops[i] || atomic_load(&ops[i]->status) == LIEN_ECANCELED ||
                            (side->driver->threaded && atomic_load(&ops[i]->status) == 0));
        }
        lien_space_free(&space);
        lien_buf_free(&buf);
    }
    cf_calls_alive(side, side->link);
}

// -- The connection ends --

#define EACH 3u // calls of each side

struct at_end {
    lien_buf *sources[EACH];
    lien_space *targets[EACH];
    struct cf_op *calls[EACH];
    lien_request *requests[EACH];
    lien_space *spaces[EACH];
    lien_buf *answers[EACH];
    struct cf_op *reads[EACH], *writes[EACH];
};

// Calls of both sides run, each with a read and a write that may be under way.
static void busy(struct cf_side *side, struct at_end *e)
{
    for (unsigned i = 0; i < EACH; i++) {
        e->sources[i] = cf_buf(side, 4 * MIB, 1, 0);
        e->targets[i] = cf_space_of(side, 4 * MIB);
        e->calls[i] = start(side, "b", &e->sources[i], e->targets[i], 0, NULL);
    }
    atomic_store(&told[side->role], 0);
    for (unsigned i = 0; i < EACH; i++)
        e->requests[i] = cf_request(side);
    cf_sync(side);
    for (unsigned i = 0; i < EACH; i++) {
        e->spaces[i] = cf_space_of(side, 4 * MIB);
        e->answers[i] = cf_buf(side, 4 * MIB, 2, 0);
        e->reads[i] = cf_op(side, "read", true);
        e->writes[i] = cf_op(side, "write", true);
        lien_transfer_opts r = cf_transfer_opts(e->reads[i]), w = cf_transfer_opts(e->writes[i]);
        int rc = lien_request_read(e->requests[i], e->spaces[i], &r);
        e->reads[i]->refused = rc != 0; // the other side was faster
        rc = lien_request_write(e->requests[i], &e->answers[i], 1, &w);
        e->writes[i]->refused = rc != 0;
    }
}

// All of it is over, whatever the connection died of; late answers go nowhere. `ended`: the status of the calls, 0: any.
static void all_over(struct cf_side *side, struct at_end *e, int ended)
{
    void *p;
    for (unsigned i = 0; i < EACH; i++) {
        UNTIL(side, atomic_load(&e->calls[i]->released));
        int status = atomic_load(&e->calls[i]->status);
        CHECK(side, status < 0 && (ended == 0 || status == ended));
        CHECK_RC(side, atomic_load(&e->calls[i]->released_status), 0);
        UNTIL(side, e->reads[i]->refused || atomic_load(&e->reads[i]->released));
        UNTIL(side, e->writes[i]->refused || atomic_load(&e->writes[i]->released));
        if (!e->reads[i]->refused && atomic_load(&e->reads[i]->status) == 0)
            cf_check_space(side, e->spaces[i], 1, 1, 4 * MIB);
        CHECK_RC(side, lien_buf_mut(e->sources[i], &p), 0);
        CHECK_RC(side, lien_buf_mut(e->answers[i], &p), 0);
        UNTIL(side, lien_request_cancelled(e->requests[i]));
        if (i == 0)
            lien_request_drop(&e->requests[i]);
        else
            cf_reply(side, &e->requests[i], 0, "late", 4);
        lien_space_free(&e->targets[i]);
        lien_space_free(&e->spaces[i]);
        lien_buf_free(&e->sources[i]);
        lien_buf_free(&e->answers[i]);
    }
}

// The other side falls silent; both lose the connection.
static void lost(struct cf_side *side)
{
    struct at_end e;
    struct cf_op *late = cf_op(side, "call after it", true);
    busy(side, &e);
    cf_sync(side);
    if (side->role == CF_READER) {
        side->driver->freeze(side);
        UNTIL(side, atomic_load(&side->link->lost));
        side->driver->thaw(side);
    } else {
        UNTIL(side, atomic_load(&side->link->lost));
    }
    lien_call_opts opts = cf_call_opts(late);
    int rc = cf_try_call(side, side->link, "cf/echo", NULL, 0, &opts, NULL);
    CHECK(side, rc < 0 && rc != LIEN_EAGAIN);
    all_over(side, &e, 0);
}

// One side closes with calls running both ways.
static void closed(struct cf_side *side)
{
    struct at_end e;
    busy(side, &e);
    if (cf_calls(side)) {
        CHECK_RC(side, lien_conn_close(&side->link->conn), 0);
        all_over(side, &e, LIEN_ECLOSED);
        UNTIL(side, atomic_load(&side->link->closed));
        return;
    }
    UNTIL(side, atomic_load(&side->link->lost));
    all_over(side, &e, LIEN_ECLOSED);
}

// The whole ctx goes; its requests can be answered afterwards, into the void.
static void ctx_closed(struct cf_side *side)
{
    struct at_end e;
    busy(side, &e);
    if (!cf_calls(side)) {
        UNTIL(side, atomic_load(&side->link->lost));
        all_over(side, &e, LIEN_ECLOSED);
        return;
    }
    for (unsigned i = 0; i < EACH; i++) {
        lien_space_free(&e.targets[i]);
        lien_space_free(&e.spaces[i]);
        lien_buf_free(&e.sources[i]);
        lien_buf_free(&e.answers[i]);
    }
    int rc;
    UNTIL(side, (rc = lien_ctx_close(&side->ctx)) != LIEN_EDEADLK);
    CHECK_RC(side, rc, 0);
    for (unsigned i = 0; i < EACH; i++) {
        CHECK_RC(side, atomic_load(&e.calls[i]->status), LIEN_ECLOSED);
        CHECK(side, word_of(side, e.requests[i]) == 'b');
        CHECK(side, lien_request_cancelled(e.requests[i]));
        if (i == 0)
            lien_request_drop(&e.requests[i]);
        else
            cf_reply(side, &e.requests[i], 0, "late", 4);
    }
}

const struct cf_case cf_callend_cases[] = {
    {.group = "callend", .name = "call-deadline", .run = deadline},
    {.group = "callend", .name = "call-deadline-back", .run = deadline, .flags = CF_BACK},
    {.group = "callend",
     .name = "call-expired-before-start",
     .run = expired,
     .arg = BIG,
     .settings = CF_UNHURRIED},
    {.group = "callend", .name = "call-cancel", .run = cancel},
    {.group = "callend", .name = "call-cancel-back", .run = cancel, .flags = CF_BACK},
    {.group = "callend",
     .name = "write-cancel-64MiB",
     .run = write_cancel,
     .arg = BIG,
     .settings = CF_UNHURRIED},
    {.group = "callend",
     .name = "write-deadline-64MiB",
     .run = write_deadline,
     .arg = BIG,
     .settings = CF_UNHURRIED},
    {.group = "callend",
     .name = "write-dropped-64MiB",
     .run = write_dropped,
     .arg = BIG,
     .flags = CF_BACK,
     .settings = CF_UNHURRIED},
    {.group = "callend", .name = "call-dropped-any-time", .run = drop_at_any_moment},
    {.group = "callend", .name = "call-dropped-while-read", .run = drop_while_read, .arg = BIG},
    {.group = "callend", .name = "call-dropped-when-replied", .run = drop_when_replied},
    {.group = "callend",
     .name = "call-dropped-while-fetched",
     .run = drop_while_fetched,
     .arg = BIG,
     .settings = CF_UNHURRIED},
    {.group = "callend", .name = "request-dropped", .run = request_dropped, .arg = 16 * MIB},
    {.group = "callend",
     .name = "lost-with-calls",
     .run = lost,
     .flags = CF_ENDS,
     .settings = {"heartbeat_ms=200", "dead_ms=1000"}},
    {.group = "callend", .name = "closed-with-calls", .run = closed, .flags = CF_ENDS},
    {.group = "callend",
     .name = "closed-with-calls-back",
     .run = closed,
     .flags = CF_ENDS | CF_BACK},
    {.group = "callend", .name = "ctx-closed-with-calls", .run = ctx_closed, .flags = CF_ENDS},
    {0},
};
