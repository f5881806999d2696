// SPDX-License-Identifier: Apache-2.0
//
// How calls are served: handlers on dispatch threads and inline, calls back from a handler, blocking twins and where they are refused, load shedding, GOAWAY.

#include <stdlib.h>
#include <string.h>

#include "tests/conformance/harness.h"

#define LEN 100000u

// -- Inline handlers --

static void inline_handlers(struct cf_side *side)
{
    for (unsigned i = 0; i < 20; i++) {
        struct cf_op *op = cf_op(side, "call of an inline method", true);
        lien_call_opts opts = cf_call_opts(op);
        cf_call(side, side->link, "cf/inline", &i, sizeof(i), &opts, NULL);
        lien_request *request = cf_request(side);
        const void *args;
        size_t len;
        CHECK_RC(side, lien_request_args(request, &args, &len), 0);
        CHECK(side, len == sizeof(i) && memcmp(args, &i, len) == 0);
        cf_reply(side, &request, 0, args, len);
        cf_op_over(side, op, 0, 0);
        cf_check_reply(side, op, &i, sizeof(i));
        lien_msg_free(&op->reply);
    }
    cf_calls_alive(side, side->link);
}

// -- Calls back --

// The callee calls its caller from inside its handler, `depth` times over, and answers when it was answered.
struct nested {
    struct cf_side *side;
    lien_request *request;
};

static void nested_done(void *arg, int status, lien_msg *reply)
{
    struct nested *n = arg;
    const void *head = NULL;
    size_t len = 0;
    CHECK_RC(n->side, status, 0);
    CHECK(n->side, reply != NULL);
    CHECK_RC(n->side, lien_msg_head(reply, &head, &len), 0);
    cf_reply(n->side, &n->request, 0, head, len);
    lien_msg_free(&reply);
    free(n);
}

static void nest(lien_request *request, lien_conn *conn, struct cf_side *side)
{
    const void *args;
    size_t len;
    CHECK_RC(side, lien_request_args(request, &args, &len), 0);
    uint8_t depth = *(const uint8_t *)args;
    if (depth == 0) {
        cf_reply(side, &request, 0, "bottom", 6);
        return;
    }
    struct nested *n = calloc(1, sizeof(*n));
    CHECK(side, n != NULL);
    *n = (struct nested){.side = side, .request = request};
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.on_done = nested_done;
    opts.arg = n;
    depth--;
    atomic_fetch_add(&side->call_bytes, 1);
    CHECK_RC(side, lien_call_start(conn, "cf/case", &depth, 1, &opts, NULL), 0);
}

static void call_back(struct cf_side *side)
{
    atomic_store(&side->desk.handle, nest);
    cf_sync(side);
    for (uint8_t depth = 0; depth <= 6 && cf_calls(side); depth++) {
        struct cf_op *op = cf_op(side, "nested call", true);
        lien_call_opts opts = cf_call_opts(op);
        cf_call(side, side->link, "cf/case", &depth, 1, &opts, NULL);
        cf_op_over(side, op, 0, 0);
        cf_check_reply(side, op, "bottom", 6);
    }
    cf_calls_alive(side, side->link);
}

// A blocking twin inside a handler: on a dispatch thread it may wait, inside of progress it never could return. [R5]
static void twin_in_handler(lien_request *request, lien_conn *conn, struct cf_side *side)
{
    const void *args;
    size_t len;
    CHECK_RC(side, lien_request_args(request, &args, &len), 0);
    bool waits = side->driver->threaded && *(const char *)args == 'd';
    lien_msg *reply = NULL;
    lien_space *space = cf_space_of(side, LEN);
    lien_buf *buf = cf_buf(side, LEN, 2, 0);
    atomic_fetch_add(&side->call_bytes, 2);
    CHECK_RC(side, lien_call_wait(conn, "cf/echo", "hi", 2, NULL, &reply),
             waits ? 0 : LIEN_EDEADLK);
    CHECK(side, (reply != NULL) == waits);
    if (reply)
        lien_msg_free(&reply);
    CHECK_RC(side, lien_request_read_wait(request, space, NULL), waits ? 0 : LIEN_EDEADLK);
    CHECK_RC(side, lien_space_wait(space, 0), 0); // nothing was lent, or all is back
    if (waits)
        cf_check_space(side, space, 1, 1, LEN);
    CHECK_RC(side, lien_request_write_wait(request, &buf, 1, NULL), waits ? 0 : LIEN_EDEADLK);
    cf_reply(side, &request, 0, waits ? "waited" : "refused", waits ? 6 : 7);
    lien_space_free(&space);
    lien_buf_free(&buf);
}

static void twins_in_handlers(struct cf_side *side)
{
    atomic_store(&side->desk.handle, twin_in_handler);
    cf_sync(side);
    for (unsigned i = 0; i < 2 && cf_calls(side); i++) {
        bool waits = side->driver->threaded && i == 1;
        lien_buf *source = cf_buf(side, LEN, 1, 0);
        lien_space *space = cf_space_of(side, LEN);
        struct cf_op *op = cf_op(side, "call", true);
        lien_call_opts opts = cf_call_opts(op);
        opts.read = &source;
        opts.n_read = 1;
        opts.write = space;
        cf_call(side, side->link, i ? "cf/case" : "cf/case-inline", i ? "d" : "i", 1, &opts, NULL);
        cf_op_over(side, op, 0, 0);
        cf_check_reply(side, op, waits ? "waited" : "refused", waits ? 6 : 7);
        cf_check_space(side, space, 1, 2, waits ? LEN : 0);
        lien_space_free(&space);
        lien_buf_free(&source);
    }
    cf_calls_alive(side, side->link);
}

// -- Blocking twins in scripts --

static void wait_caller(struct cf_side *side)
{
    lien_buf *source = cf_buf(side, LEN, 1, 0);
    lien_space *space = cf_space_of(side, LEN);
    lien_msg *reply = NULL;
    const void *head;
    size_t len;
    void *p;
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.read = &source;
    opts.n_read = 1;
    opts.write = space;
    atomic_fetch_add(&side->call_bytes, 2 + 5);
    CHECK_RC(side, lien_call_wait(side->link->conn, "cf/desk", "go", 2, &opts, &reply), 0);
    CHECK(side, reply != NULL);
    CHECK_RC(side, lien_msg_head(reply, &head, &len), 0);
    CHECK(side, len == 4 && memcmp(head, "done", 4) == 0);
    lien_msg_free(&reply);
    CHECK_RC(side, lien_space_wait(space, 10000), 0);
    CHECK_RC(side, lien_buf_mut(source, &p), 0);
    cf_check_space(side, space, 1, 2, LEN);
    CHECK_RC(side, lien_call_wait(side->link->conn, "cf/none", "there", 5, NULL, &reply),
             LIEN_ENOTFOUND);
    CHECK(side, reply == NULL);
    opts.write = NULL;
    opts.timeout_ms = 50; // nobody answers
    CHECK_RC(side, lien_call_wait(side->link->conn, "cf/desk", NULL, 0, &opts, &reply),
             LIEN_ETIMEDOUT);
    CHECK_RC(side, lien_buf_mut(source, &p), 0);
    lien_buf_free(&source);
    lien_space_free(&space);
}

static void wait_server(struct cf_side *side)
{
    lien_request *request = cf_request(side);
    lien_space *space = cf_space_of(side, LEN);
    lien_buf *buf = cf_buf(side, LEN, 2, 0);
    const lien_op outside = {.src = LEN, .dst = 0, .len = 1};
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.ops = &outside;
    opts.n_ops = 1;
    CHECK_RC(side, lien_request_read_wait(request, space, &opts), LIEN_ERANGE);
    CHECK_RC(side, lien_request_write_wait(request, &buf, 1, &opts), LIEN_ERANGE);
    CHECK_RC(side, lien_request_read_wait(request, space, NULL), 0);
    cf_check_space(side, space, 1, 1, LEN);
    CHECK_RC(side, lien_request_write_wait(request, &buf, 1, NULL), 0);
    cf_reply(side, &request, 0, "done", 4);
    lien_space_free(&space);
    lien_buf_free(&buf);
}

static void call_twins(struct cf_side *side)
{
    if (cf_calls(side))
        wait_caller(side);
    else
        wait_server(side);
    cf_calls_alive(side, side->link);
}

// Where the waiting thread steps the world, it is told.
static void call_no_waiting(struct cf_side *side)
{
    if (cf_calls(side)) {
        lien_buf *source = cf_buf(side, LEN, 1, 0);
        void *p;
        lien_call_opts opts;
        lien_call_opts_init(&opts);
        opts.read = &source;
        opts.n_read = 1;
        CHECK_RC(side, lien_call_wait(side->link->conn, "cf/desk", NULL, 0, &opts, NULL),
                 LIEN_EDEADLK);
        CHECK_RC(side, lien_buf_mut(source, &p), 0);
        lien_buf_free(&source);
    }
    cf_calls_alive(side, side->link);
}

// -- Load --

static void shed(struct cf_side *side)
{
    enum {
        MOST = 2
    };
    if (!cf_calls(side)) {
        lien_request *requests[MOST];
        for (unsigned i = 0; i < MOST; i++)
            requests[i] = cf_request(side);
        cf_sync(side); // the third was refused meanwhile
        CHECK(side, !cf_has_request(side));
        for (unsigned i = 0; i < MOST; i++)
            cf_reply(side, &requests[i], 0, NULL, 0);
        requests[0] = cf_request(side);
        cf_reply(side, &requests[0], 0, NULL, 0);
        cf_calls_alive(side, side->link);
        return;
    }
    struct cf_op *ops[MOST + 2];
    for (unsigned i = 0; i < MOST + 2; i++) {
        ops[i] = cf_op(side, "call", true);
        lien_call_opts opts = cf_call_opts(ops[i]);
        if (i <= MOST)
            cf_call(side, side->link, "cf/desk", NULL, 0, &opts, NULL);
    }
    cf_op_over(side, ops[MOST], LIEN_EOVERLOAD, 0);
    CHECK(side, !atomic_load(&ops[0]->done) && !atomic_load(&ops[1]->done));
    cf_sync(side);
    for (unsigned i = 0; i < MOST; i++)
        cf_op_over(side, ops[i], 0, 0);
    lien_call_opts opts = cf_call_opts(ops[MOST + 1]); // there is room again
    cf_call(side, side->link, "cf/desk", NULL, 0, &opts, NULL);
    cf_op_over(side, ops[MOST + 1], 0, 0);
    cf_calls_alive(side, side->link);
}

// The server takes no new calls; the one it has goes on, with its reads and reverse requests; calls of its own do, too.
static void goaway_server(struct cf_side *side)
{
    lien_request *request = cf_request(side);
    lien_space *space = cf_space_of(side, LEN);
    lien_buf *buf = cf_buf(side, LEN, 2, 0);
    CHECK_RC(side, lien_conn_goaway(side->link->conn), 0);
    CHECK_RC(side, lien_conn_goaway(side->link->conn), 0); // again: no effect
    cf_sync(side);
    cf_request_read(side, request, space, NULL, 0);
    cf_check_space(side, space, 1, 1, LEN);
    cf_request_write(side, request, &buf, 1, NULL, 0);
    struct cf_op *op = cf_op(side, "call of the one that goes", true);
    lien_call_opts opts = cf_call_opts(op);
    cf_call(side, side->link, "cf/echo", "mine", 4, &opts, NULL);
    cf_op_over(side, op, 0, 0);
    cf_check_reply(side, op, "mine", 4);
    cf_sync(side);
    CHECK(side, !lien_request_cancelled(request));
    cf_reply(side, &request, 0, "bye", 3);
    lien_space_free(&space);
    lien_buf_free(&buf);
}

static void goaway(struct cf_side *side)
{
    if (!cf_calls(side)) {
        goaway_server(side);
        cf_alive(side, side->link);
        return;
    }
    lien_buf *source = cf_buf(side, LEN, 1, 0);
    lien_space *space = cf_space_of(side, LEN);
    struct cf_op *op = cf_op(side, "live call", true);
    lien_call_opts opts = cf_call_opts(op);
    opts.read = &source;
    opts.n_read = 1;
    opts.write = space;
    cf_call(side, side->link, "cf/desk", NULL, 0, &opts, NULL);
    cf_sync(side);
    for (int refused = 0; refused == 0;) { // on its way before the news came: refused there
        struct cf_op *late = cf_op(side, "late call", true);
        lien_call_opts late_opts = cf_call_opts(late);
        refused = cf_try_call(side, side->link, "cf/echo", NULL, 0, &late_opts, NULL);
        if (refused == 0)
            cf_op_over(side, late, LIEN_EOVERLOAD, 0);
        else
            CHECK_RC(side, refused, LIEN_EOVERLOAD);
    }
    CHECK_EQ(side, atomic_load(&op->done), 0);
    cf_sync(side);
    cf_op_over(side, op, 0, 0);
    cf_check_reply(side, op, "bye", 3);
    cf_check_space(side, space, 1, 2, LEN);
    lien_space_free(&space);
    lien_buf_free(&source);
    cf_alive(side, side->link); // messages go on
}

const struct cf_case cf_serve_cases[] = {
    {.group = "serve", .name = "handlers-inline", .run = inline_handlers},
    {.group = "serve", .name = "call-back-in-handler", .run = call_back},
    {.group = "serve", .name = "call-back-in-handler-back", .run = call_back, .flags = CF_BACK},
    {.group = "serve", .name = "twins-in-handlers", .run = twins_in_handlers},
    {.group = "serve", .name = "call-blocking-twins", .run = call_twins},
    {.group = "serve", .name = "call-no-waiting", .run = call_no_waiting},
    {.group = "serve", .name = "load-shed", .run = shed, .settings = {"requests_max=2"}},
    {.group = "serve",
     .name = "load-shed-back",
     .run = shed,
     .flags = CF_BACK,
     .settings = {"requests_max=2"}},
    {.group = "serve", .name = "goaway", .run = goaway},
    {.group = "serve", .name = "goaway-back", .run = goaway, .flags = CF_BACK},
    {0},
};
