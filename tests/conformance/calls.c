// SPDX-License-Identifier: Apache-2.0
//
// What scripts of the call level are made of: the desk, which serves both sides, and calls that are observed as operations. See harness.h. The desk's queue has a lock of its own, since
// handlers run on other threads.

#include <string.h>

#include "tests/conformance/harness.h"

// -- Serving -----------------------------------------------------------------------------------------------------------------------

static void to_desk(lien_request *request, lien_conn *conn, void *arg)
{
    struct cf_side *side = arg;
    struct cf_desk *desk = &side->desk;
    (void)conn;
    pthread_mutex_lock(&desk->lock);
    if (desk->tail - desk->head == 256)
        FAIL(side, "256 requests wait");
    desk->requests[desk->tail++ % 256] = request;
    pthread_mutex_unlock(&desk->lock);
}

static void echo(lien_request *request, lien_conn *conn, void *arg)
{
    struct cf_side *side = arg;
    const void *data;
    size_t len;
    lien_buf *body = NULL;
    (void)conn;
    CHECK_RC(side, lien_request_args(request, &data, &len), 0);
    int rc = lien_request_take_body(request, &body);
    CHECK(side, rc == (body ? 0 : LIEN_ENOTFOUND));
    atomic_fetch_add(&side->call_bytes, 2 * len); // kept, and into the frame
    if (body)
        CHECK_RC(side, lien_request_reply_body(&request, 0, data, len, &body, 1), 0);
    else
        CHECK_RC(side, lien_request_reply(&request, 0, data, len), 0);
    CHECK(side, request == NULL && body == NULL);
}

static void to_case(lien_request *request, lien_conn *conn, void *arg)
{
    struct cf_side *side = arg;
    void (*handle)(lien_request *, lien_conn *, struct cf_side *) = atomic_load(&side->desk.handle);
    CHECK(side, handle != NULL);
    handle(request, conn, side);
}

void cf_desk_open(struct cf_side *side)
{
    struct cf_desk *desk = &side->desk;
    pthread_mutex_init(&desk->lock, NULL);
    desk->methods[0] = (lien_method){.name = "cf/desk", .handle = to_desk, .arg = side};
    desk->methods[1] = (lien_method){
        .name = "cf/inline", .handle = to_desk, .arg = side, .flags = LIEN_INLINE};
    desk->methods[2] = (lien_method){.name = "cf/echo", .handle = echo, .arg = side};
    desk->methods[3] = (lien_method){.name = "cf/case", .handle = to_case, .arg = side};
    desk->methods[4] = (lien_method){
        .name = "cf/case-inline", .handle = to_case, .arg = side, .flags = LIEN_INLINE};
    desk->service = (lien_service){.methods = desk->methods, .n_methods = 5};
}

bool cf_has_request(struct cf_side *side)
{
    struct cf_desk *desk = &side->desk;
    pthread_mutex_lock(&desk->lock);
    bool yes = desk->head != desk->tail;
    pthread_mutex_unlock(&desk->lock);
    return yes;
}

static lien_request *take(struct cf_side *side)
{
    struct cf_desk *desk = &side->desk;
    pthread_mutex_lock(&desk->lock);
    lien_request *request = desk->head == desk->tail ? NULL : desk->requests[desk->head++ % 256];
    pthread_mutex_unlock(&desk->lock);
    return request;
}

lien_request *cf_request(struct cf_side *side)
{
    UNTIL(side, cf_has_request(side));
    lien_request *request = take(side);
    CHECK(side, lien_request_path(request, NULL) == side->driver->path);
    return request;
}

void cf_desk_close(struct cf_side *side)
{
    lien_request *request;
    while ((request = take(side)))
        lien_request_drop(&request);
}

void cf_reply(struct cf_side *side, lien_request **request, int status, const void *data,
              size_t len)
{
    atomic_fetch_add(&side->call_bytes, 2 * len);
    CHECK_RC(side, lien_request_reply(request, status, data, len), 0);
    CHECK(side, *request == NULL);
}

lien_transfer_opts cf_transfer_opts(struct cf_op *op)
{
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.on_done = cf_op_done;
    opts.on_released = cf_op_released;
    opts.arg = op;
    return opts;
}

void cf_request_read(struct cf_side *side, lien_request *request, lien_space *space,
                     const lien_op *ops, size_t n_ops)
{
    struct cf_op *op = cf_op(side, "read of a request", true);
    lien_transfer_opts opts = cf_transfer_opts(op);
    lien_buf *buf;
    opts.ops = ops;
    opts.n_ops = n_ops;
    CHECK_RC(side, lien_request_read(request, space, &opts), 0);
    int rc = lien_space_buf(space, 0, &buf); // lent, unless it is over
    CHECK(side, rc == LIEN_EBUSY || rc == 0);
    cf_op_over(side, op, 0, 0);
    CHECK_RC(side, lien_space_buf(space, 0, &buf), 0);
}

void cf_request_write(struct cf_side *side, lien_request *request, lien_buf *const *bufs, size_t n,
                      const lien_op *ops, size_t n_ops)
{
    struct cf_op *op = cf_op(side, "write of a request", true);
    lien_transfer_opts opts = cf_transfer_opts(op);
    void *p;
    opts.ops = ops;
    opts.n_ops = n_ops;
    CHECK_RC(side, lien_request_write(request, bufs, n, &opts), 0);
    cf_op_over(side, op, 0, 0);
    CHECK_RC(side, lien_buf_mut(bufs[0], &p), 0);
}

// -- Calling -----------------------------------------------------------------------------------------------------------------------

static void on_reply(void *arg, int status, lien_msg *reply)
{
    struct cf_op *op = arg;
    op->reply = reply;
    cf_op_done(op, status);
}

lien_call_opts cf_call_opts(struct cf_op *op)
{
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.on_done = on_reply;
    opts.on_released = cf_op_released;
    opts.arg = op;
    return opts;
}

int cf_try_call(struct cf_side *side, struct cf_link *link, const char *method, const void *args,
                size_t len, const lien_call_opts *opts, lien_call **call)
{
    struct cf_op *op = opts->arg;
    atomic_fetch_add(&side->call_bytes, len);
    int rc = lien_call_start(link->conn, method, args, len, opts, call);
    op->refused = rc != 0;
    return rc;
}

void cf_call(struct cf_side *side, struct cf_link *link, const char *method, const void *args,
             size_t len, const lien_call_opts *opts, lien_call **call)
{
    int rc;
    UNTIL(side, (rc = cf_try_call(side, link, method, args, len, opts, call)) != LIEN_EAGAIN);
    CHECK_RC(side, rc, 0);
}

void cf_check_reply(struct cf_side *side, const struct cf_op *op, const void *data, size_t len)
{
    const void *head = NULL;
    size_t head_len = 0;
    if (op->reply) {
        CHECK_RC(side, lien_msg_head(op->reply, &head, &head_len), 0);
        CHECK(side, lien_msg_body(op->reply) == NULL);
    }
    CHECK_EQ(side, head_len, len);
    CHECK(side, len == 0 || memcmp(head, data, len) == 0);
}

void cf_calls_alive(struct cf_side *side, struct cf_link *link)
{
    const char word[] = {'a', (char)('0' + (int)side->role)};
    struct cf_op *op = cf_op(side, "call of the proof of life", true);
    lien_call_opts opts = cf_call_opts(op);
    cf_call(side, link, "cf/echo", word, sizeof(word), &opts, NULL);
    cf_op_over(side, op, 0, 0);
    cf_check_reply(side, op, word, sizeof(word));
    cf_sync(side);
}

// -- The middle of a transfer ------------------------------------------------------------------------------------------------------

#define FROZEN_MAX (16 * MIB) // above what is outstanding, and so may arrive from a stopped peer

bool cf_freeze_in_middle(struct cf_side *side, const lien_ctx_stats *before, uint64_t len,
                         const struct cf_op *op)
{
    UNTIL(side, cf_stats(side).read_pieces_done - before->read_pieces_done >= 4 ||
                    atomic_load(&op->done));
    side->driver->freeze(side);
    if (!atomic_load(&op->done) &&
        cf_stats(side).read_bytes - before->read_bytes <= len - FROZEN_MAX)
        return true;
    side->driver->thaw(side);
    return false;
}

void cf_lent_while_frozen(struct cf_side *side, const struct cf_op *op, lien_space *space,
                          unsigned others)
{
    lien_buf *buf;
    uint64_t until = side->driver->now_ms(side) + 200;
    while (side->driver->now_ms(side) < until) {
        bool over = atomic_load(&op->released);
        int rc = lien_space_buf(space, 0, &buf), waited = lien_space_wait(space, 0);
        lien_ctx_stats stats = cf_stats(side);
        if (rc == 0 || waited == 0) {
            CHECK(side, stats.read_pieces_posted - stats.read_pieces_done <= others);
            return;
        }
        CHECK(side, !over);
        CHECK_RC(side, rc, LIEN_EBUSY);
        CHECK_RC(side, waited, LIEN_ETIMEDOUT);
        cf_turn(side, false, cf_real_ms(), __FILE__, __LINE__, "200 ms");
    }
}
