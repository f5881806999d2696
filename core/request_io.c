// SPDX-License-Identifier: Apache-2.0
//
// What a handler moves: reads from the caller's read space, validated (design.md 4), and writes into its write space, which are reverse requests (R2). Under the state lock.

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/message.h"
#include "core/read.h"
#include "core/request.h"
#include "core/verify.h"

// `flags`: those allowed.
static int transfer_opts(const lien_transfer_opts *in, unsigned flags, lien_transfer_opts *out)
{
    lien_transfer_opts_init(out);
    int rc = in ? lieni_opts_copy(out, sizeof(*out), in, in->size) : 0;
    if (rc == 0 && ((out->flags & ~flags) != 0 || (out->n_ops > 0 && !out->ops)))
        rc = LIEN_EINVAL;
    return rc;
}

int lieni_request_usable(const struct lien_request *request)
{
    if (request->state == LIENI_REQUEST_CANCELLED)
        return LIEN_ECANCELED;
    return request->state == LIENI_REQUEST_LIVE ? lieni_conn_usable(request->conn) : LIEN_EINVAL;
}

// -- Reads --

static void read_over(void *owner, int status)
{
    (void)status;
    lieni_request_unref(owner);
}

// For the report of a stray access.
static void lent_by(const struct lien_request *request, lien_buf *const *bufs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        lieni_buf_lent_by(bufs[i], LIENI_LENT_BY_REQUEST, request->conn->id, request->id);
}

static int start_read(struct lien_request *request, lien_space *space,
                      const lien_transfer_opts *opts, struct lien_read **out)
{
    bool pure = (request->method->flags & LIEN_PURE) != 0;
    bool overlapped = (opts->flags & LIEN_UNVERIFIED) != 0;
    int rc = lieni_request_usable(request);
    if (rc == 0 && !request->read)
        rc = LIEN_ERANGE;
    if (rc == 0 && (pure || overlapped))
        rc = lieni_verify_may_read(request, space, opts);
    if (rc != 0)
        return rc;
    const lien_read_opts plain = {.size = sizeof(plain),
                                  .timeout_ms = opts->timeout_ms,
                                  .ops = opts->ops,
                                  .n_ops = opts->n_ops};
    struct lien_read *read;
    rc = lieni_read_new(request->conn, request->read, space, &plain, &read);
    if (rc != 0)
        return rc;
    lent_by(request, space->bufs, space->n);
    read->over = read_over;
    read->owner = request;
    read->strand = request->strand;
    read->validate = !pure && !overlapped;
    read->unverified = overlapped ? lieni_verify_ask_for : pure ? lieni_verify_mark : NULL;
    read->ask.call = request->id;
    read->probe_deadline = request->deadline;
    request->refs++;
    *out = read;
    return 0;
}

int lien_request_read(lien_request *request, lien_space *space, const lien_transfer_opts *opts)
{
    lien_transfer_opts full;
    if (!request || !space)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(request->conn->ctx))
        return LIEN_EFORK;
    int rc = transfer_opts(opts, LIEN_UNVERIFIED, &full);
    if (rc != 0)
        return rc;
    struct lien_read *read;
    lien_ctx *ctx = request->conn->ctx;
    lieni_ctx_lock(ctx);
    rc = start_read(request, space, &full, &read);
    if (rc == 0) {
        read->on_done = full.on_done;
        read->on_released = full.on_released;
        read->arg = full.arg;
        lieni_read_go(read);
    }
    lieni_ctx_unlock(ctx);
    return rc;
}

int lien_request_read_wait(lien_request *request, lien_space *space, const lien_transfer_opts *opts)
{
    lien_transfer_opts full;
    if (!request || !space)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(request->conn->ctx))
        return LIEN_EFORK;
    int rc = transfer_opts(opts, LIEN_UNVERIFIED, &full);
    lien_ctx *ctx = request->conn->ctx;
    if (rc == 0 && lieni_dispatch_where(ctx->dispatch, NULL) == LIENI_IN_PROGRESS)
        rc = LIEN_EDEADLK;
    if (rc != 0)
        return rc;
    struct lien_read *read;
    lieni_ctx_lock(ctx);
    rc = start_read(request, space, &full, &read);
    if (rc == 0) {
        read->refs++;
        lieni_read_go(read);
        rc = lieni_read_wait_over(read);
        lieni_read_unref(read);
    }
    lieni_ctx_unlock(ctx);
    return rc;
}

// -- Writes: ending --

static void write_unref(struct lieni_write *write)
{
    if (--write->refs > 0)
        return;
    struct lien_request *request = write->request;
    if (write->has_timer)
        lieni_timer_fini(&request->conn->ctx->timers, &write->timer);
    free(write->source);
    free(write->ops);
    free(write);
    lieni_request_unref(request);
}

static void unref_unlocked(struct lieni_write *write)
{
    lien_ctx *ctx = write->request->conn->ctx;
    lieni_ctx_lock(ctx);
    write_unref(write);
    lieni_ctx_unlock(ctx);
}

static void run_done(struct lieni_task *task)
{
    struct lieni_write *write = lieni_container(task, struct lieni_write, done_task);
    write->on_done(write->arg, write->status);
    unref_unlocked(write);
}

static void run_released(struct lieni_task *task)
{
    struct lieni_write *write = lieni_container(task, struct lieni_write, released_task);
    write->on_released(write->arg, write->released_status);
    unref_unlocked(write);
}

static void post(struct lieni_write *write, struct lieni_task *task)
{
    write->refs++;
    lieni_strand_post(write->request->strand, task);
}

static void tell_released(struct lieni_write *write)
{
    lieni_ctx_changed(write->request->conn->ctx);
    if (write->on_released)
        post(write, &write->released_task);
}

// The result is known.
static void done(struct lieni_write *write, int status)
{
    struct lien_request *request = write->request;
    if (write->done)
        return;
    write->done = true;
    write->status = status;
    lieni_trace_text(request->conn->trace, LIENI_TRACE_WRITE, request->id, write->id, status,
                     "done", NULL);
    if (write->has_timer)
        lieni_timer_clear(&request->conn->ctx->timers, &write->timer);
    lieni_list_remove(&write->own);
    request->n_writes--;
    lieni_ctx_changed(request->conn->ctx);
    if (write->on_done)
        post(write, &write->done_task);
    if (write->source_over)
        tell_released(write);
}

// The source is the handler's again, or lost. The caller's release may overtake its answer; the handler hears of done first.
static void released(struct lieni_write *write, int status)
{
    write->source_over = true;
    lieni_trace_text(write->request->conn->trace, LIENI_TRACE_WRITE, write->request->id, write->id,
                     status, "source released", NULL);
    write->released_status = status;
    if (write->done)
        tell_released(write);
}

// The caller released the source, or the endpoint's end settled it.
static void source_over(void *owner, int status)
{
    struct lieni_write *write = owner;
    write->grant = NULL;
    released(write, status);
    write_unref(write); // the grant's
}

// No answer will come, or it came.
static void no_answer(struct lieni_write *write)
{
    lieni_list_remove(&write->due);
    if (!lieni_node_in(&write->node))
        return;
    lieni_list_remove(&write->node);
    write_unref(write);
}

// Nobody waits for it any more. What the caller heard of stays held until its release.
static void give_up(struct lieni_write *write, int status)
{
    if (write->done)
        return;
    write->refs++;
    write->request->gave_up = true;
    done(write, status);
    if (write->sent < write->n_ops) // the caller got no last frame: it will not answer
        no_answer(write);
    if (write->sent == 0 && write->grant)
        lieni_grant_untold(write->grant);
    write_unref(write);
}

void lieni_request_give_up(struct lien_request *request, int status)
{
    struct lieni_node *n;
    while ((n = lieni_list_first(&request->writes)))
        give_up(lieni_container(n, struct lieni_write, own), status);
}

static void on_timeout(struct lieni_timer *timer)
{
    struct lieni_write *write = lieni_container(timer, struct lieni_write, timer);
    struct lien_request *request = write->request;
    request->refs++;
    give_up(write, LIEN_ETIMEDOUT);
    lieni_request_writes_over(request);
    lieni_request_unref(request);
}

int lieni_request_written(struct lien_conn *conn, const struct lieni_frame *frame)
{
    for (struct lieni_node *n = conn->calls.writes.next; n != &conn->calls.writes; n = n->next) {
        struct lieni_write *write = lieni_container(n, struct lieni_write, node);
        struct lien_request *request = write->request;
        if (write->id != frame->write || request->id != frame->call || write->sent < write->n_ops)
            continue;
        request->refs++;
        conn->calls.n_writes--;
        done(write, frame->status);
        no_answer(write);
        lieni_request_writes_over(request);
        lieni_request_unref(request);
        return 0;
    }
    return LIEN_EPROTO;
}

void lieni_request_writes_lost(struct lien_conn *conn)
{
    struct lieni_node *n;
    while ((n = lieni_list_first(&conn->calls.writes)))
        no_answer(lieni_container(n, struct lieni_write, node));
}

// -- Writes: frames --

// Queues the next frame. False: no room now.
static bool send_frame(struct lien_conn *conn, struct lieni_write *write)
{
    uint8_t ops[LIEN_OPS_MAX * LIENI_OP_SIZE];
    struct lieni_frame frame = {.kind = LIENI_FRAME_WRITE,
                                .call = write->request->id,
                                .write = write->id,
                                .first = write->sent == 0,
                                .ops = ops};
    size_t fixed = LIENI_FRAME_HEADER + LIENI_WRITE_FIXED;
    if (frame.first) {
        frame.name = write->source->name;
        frame.total = write->source->total;
        frame.sums = write->source->sums;
        frame.n_keys = write->source->n_keys;
        memcpy(frame.keys, write->source->keys, frame.n_keys * sizeof(frame.keys[0]));
        fixed += frame.n_keys * lieni_key_size(frame.sums);
    }
    size_t room = (lieni_link_frame_room(&conn->link) - fixed) / LIENI_OP_SIZE;
    uint32_t left = write->n_ops - write->sent;
    frame.n_ops = left < room ? left : (uint32_t)room;
    frame.last = frame.n_ops == left;
    for (uint32_t i = 0; i < frame.n_ops; i++)
        lieni_op_store(ops + i * LIENI_OP_SIZE, &write->ops[write->sent + i]);
    if (!lieni_link_control(conn, &frame))
        return false;
    write->sent += frame.n_ops;
    return true;
}

void lieni_request_write_pump(struct lien_conn *conn)
{
    struct lieni_node *n;
    // One after the other: frames of two writes never mix.
    while ((n = lieni_list_first(&conn->calls.writes_due))) {
        struct lieni_write *write = lieni_container(n, struct lieni_write, due);
        if (write->sent == 0 && conn->calls.n_writes >= lieni_writes_max(&conn->calls))
            return; // the peer takes no more before it has answered one [R22]
        if (!lieni_link_control_room(conn) || !send_frame(conn, write))
            return;
        if (write->sent < write->n_ops)
            continue;
        conn->calls.n_writes++;
        lieni_list_remove(n);
    }
}

// -- Writes: starting --

static int check_ops(const struct lien_request *request, lien_buf *const *bufs, size_t n,
                     const lien_transfer_opts *opts, uint64_t *total)
{
    if (!bufs || n == 0 || n > LIEN_BUFS_MAX)
        return LIEN_EINVAL;
    *total = 0;
    for (size_t i = 0; i < n; i++) {
        if (!bufs[i] || !lieni_buf_in_ctx(bufs[i], request->conn->ctx->mem))
            return LIEN_EINVAL;
        *total += lien_buf_len(bufs[i]);
    }
    if (!opts->ops)
        return *total <= request->space_len ? lieni_read_batch_check(request->conn, *total)
                                            : LIEN_ERANGE;
    int rc = lieni_ops_check(opts->ops, opts->n_ops, *total, request->space_len);
    uint64_t moved = 0;
    for (size_t i = 0; rc == 0 && i < opts->n_ops; i++)
        moved += opts->ops[i].len; // no byte of the space twice: cannot wrap
    if (moved == 0)
        *total = 0; // operations of no bytes
    return rc == 0 ? lieni_read_batch_check(request->conn, moved) : rc;
}

static int copy_ops(struct lieni_write *write, const lien_transfer_opts *opts, uint64_t total)
{
    const lien_op whole = {.len = total};
    const lien_op *ops = opts->ops ? opts->ops : &whole;
    write->n_ops = opts->ops ? (uint32_t)opts->n_ops : 1;
    write->ops = calloc(write->n_ops, sizeof(*ops));
    if (!write->ops)
        return LIEN_ENOMEM;
    memcpy(write->ops, ops, write->n_ops * sizeof(*ops));
    return 0;
}

static int hold_source(struct lieni_write *write, lien_buf *const *bufs, size_t n,
                       const struct lieni_sums *sums)
{
    struct lien_conn *conn = write->request->conn;
    write->source = calloc(1, sizeof(*write->source));
    if (!write->source)
        return LIEN_ENOMEM;
    int rc = lieni_grant_open(conn, bufs, n, 0, lieni_verify_own(write->request), sums,
                              write->source->keys, &write->source->n_keys, &write->grant);
    if (rc != 0)
        return rc;
    lent_by(write->request, bufs, n);
    write->source->name = write->grant->name;
    write->source->total = write->grant->bytes;
    write->source->sums = sums != NULL;
    write->grant->over = source_over;
    write->grant->owner = write;
    write->refs++; // the grant's
    return 0;
}

static int write_new(struct lien_request *request, struct lieni_write **out)
{
    struct lieni_write *write = calloc(1, sizeof(*write));
    if (!write)
        return LIEN_ENOMEM;
    int rc = lieni_timer_init(&request->conn->ctx->timers, &write->timer, on_timeout);
    if (rc != 0) {
        free(write);
        return rc;
    }
    write->has_timer = true;
    write->request = request;
    write->id = request->conn->calls.next_write++;
    write->done_task.run = run_done;
    write->released_task.run = run_released;
    lieni_list_init(&write->node);
    lieni_list_init(&write->due);
    lieni_list_init(&write->own);
    write->refs = 1; // the caller of this
    request->refs++;
    *out = write;
    return 0;
}

// Whether the write can be. With `summed` its operations must move whole buffers.
static int may_write(const struct lien_request *request, lien_buf *const *bufs, size_t n,
                     const lien_transfer_opts *opts, bool summed, uint64_t *total)
{
    int rc = lieni_request_usable(request);
    if (rc == 0 && request->gave_up)
        rc = LIEN_ESTATE;
    if (rc == 0)
        rc = check_ops(request, bufs, n, opts, total);
    if (rc != 0 || !summed || !opts->ops)
        return rc;
    uint64_t lens[LIEN_BUFS_MAX];
    for (size_t i = 0; i < n; i++)
        lens[i] = lien_buf_len(bufs[i]);
    return lieni_check_whole(opts->ops, opts->n_ops, lens, n);
}

// Whether a write carries checksums: it says so, or its call does.
static bool summed(const struct lien_request *request, const lien_transfer_opts *opts)
{
    return request->sums || lieni_sums_wanted(request->conn->ctx, opts->flags);
}

// Hashes what is to be written, if it can be.
static int make_sums(const struct lien_request *request, lien_buf *const *bufs, size_t n,
                     const lien_transfer_opts *opts, struct lieni_sums *sums)
{
    uint64_t total;
    int rc = may_write(request, bufs, n, opts, true, &total);
    return rc == 0 ? lieni_sums_make(request->conn->ctx, &(struct lieni_summing){bufs, n, sums}, 1)
                   : rc;
}

// *out gets a reference of the caller's.
static int start_write(struct lien_request *request, lien_buf *const *bufs, size_t n,
                       const lien_transfer_opts *opts, const struct lieni_sums *sums,
                       struct lieni_write **out)
{
    struct lien_conn *conn = request->conn;
    uint64_t total;
    int rc = may_write(request, bufs, n, opts, sums != NULL, &total);
    struct lieni_write *write;
    if (rc == 0)
        rc = write_new(request, &write);
    if (rc != 0)
        return rc;
    if (total > 0)
        rc = copy_ops(write, opts, total);
    if (rc == 0 && total > 0)
        rc = hold_source(write, bufs, n, sums);
    if (rc != 0) {
        write_unref(write);
        return rc;
    }
    write->on_done = opts->on_done;
    write->on_released = opts->on_released;
    write->arg = opts->arg;
    request->n_writes++;
    lieni_trace_text(conn->trace, LIENI_TRACE_WRITE, request->id, write->id, 0, "new", NULL);
    lieni_list_append(&request->writes, &write->own);
    *out = write;
    if (total == 0) {
        done(write, 0);
        released(write, 0);
        return 0;
    }
    write->refs++; // the answer's
    lieni_list_append(&conn->calls.writes, &write->node);
    lieni_liveness_watch(conn);
    lieni_list_append(&conn->calls.writes_due, &write->due);
    if (opts->timeout_ms && opts->timeout_ms != LIEN_FOREVER)
        lieni_timer_set(&conn->ctx->timers, &write->timer,
                        lieni_ctx_deadline(conn->ctx, opts->timeout_ms));
    lieni_link_pump(conn);
    return 0;
}

int lien_request_write(lien_request *request, lien_buf *const *bufs, size_t n,
                       const lien_transfer_opts *opts)
{
    lien_transfer_opts full;
    if (!request)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(request->conn->ctx))
        return LIEN_EFORK;
    int rc = transfer_opts(opts, LIEN_CHECKSUM, &full);
    if (rc != 0)
        return rc;
    struct lieni_write *write;
    struct lieni_sums sums;
    const bool with = summed(request, &full);
    lien_ctx *ctx = request->conn->ctx;
    lieni_ctx_lock(ctx);
    request->refs++; // it may end while bytes are hashed
    if (with)
        rc = make_sums(request, bufs, n, &full, &sums);
    if (rc == 0)
        rc = start_write(request, bufs, n, &full, with ? &sums : NULL, &write);
    lieni_request_unref(request);
    if (rc == 0)
        write_unref(write);
    lieni_ctx_unlock(ctx);
    return rc;
}

int lien_request_write_wait(lien_request *request, lien_buf *const *bufs, size_t n,
                            const lien_transfer_opts *opts)
{
    lien_transfer_opts full;
    if (!request)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(request->conn->ctx))
        return LIEN_EFORK;
    int rc = transfer_opts(opts, LIEN_CHECKSUM, &full);
    lien_ctx *ctx = request->conn->ctx;
    if (rc == 0 && lieni_dispatch_where(ctx->dispatch, NULL) == LIENI_IN_PROGRESS)
        rc = LIEN_EDEADLK;
    if (rc != 0)
        return rc;
    full.on_done = NULL;
    full.on_released = NULL;
    struct lieni_write *write;
    struct lieni_sums sums;
    const bool with = summed(request, &full);
    lieni_ctx_lock(ctx);
    request->refs++; // it may end while bytes of others get their verdict, or are hashed
    rc = lieni_verify_leaving(ctx, bufs, n, lieni_verify_own(request), request->deadline);
    if (rc == 0 && with)
        rc = make_sums(request, bufs, n, &full, &sums);
    if (rc == 0)
        rc = start_write(request, bufs, n, &full, with ? &sums : NULL, &write);
    lieni_request_unref(request);
    if (rc == 0) {
        while (!write->done && rc == 0)
            rc = lieni_ctx_wait_locked(ctx, UINT64_MAX); // the request's deadline ends it
        give_up(write, rc);
        rc = write->status;
        write_unref(write);
    }
    lieni_ctx_unlock(ctx);
    return rc;
}
