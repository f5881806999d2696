// SPDX-License-Identifier: Apache-2.0
//
// See listener.h.

#include "core/listener.h"

#include <stdlib.h>
#include <string.h>

#include "core/conn.h"
#include "core/message.h"
#include "core/request.h"

void lieni_listener_unref(struct lien_listener *listener)
{
    if (--listener->refs > 0)
        return;
    lieni_list_remove(&listener->node);
    lieni_list_append(&listener->ctx->dead_listeners, &listener->node);
    lieni_ctx_wake(listener->ctx);
}

static void run_closed(struct lieni_task *task)
{
    struct lien_listener *listener = lieni_container(task, struct lien_listener, closed_task);
    lien_ctx *ctx = listener->ctx;
    if (listener->opts.on_closed)
        listener->opts.on_closed(listener, listener->opts.arg);
    lieni_ctx_lock(ctx);
    lieni_listener_unref(listener);
    lieni_ctx_unlock(ctx);
}

static void run_drained(struct lieni_task *task)
{
    struct lien_listener *listener = lieni_container(task, struct lien_listener, drained_task);
    lien_ctx *ctx = listener->ctx;
    lieni_ctx_lock(ctx);
    bool tell = !listener->closed && listener->opts.on_drained;
    lieni_ctx_unlock(ctx);
    if (tell)
        listener->opts.on_drained(listener, listener->opts.arg);
    lieni_ctx_lock(ctx);
    lieni_listener_unref(listener);
    lieni_ctx_unlock(ctx);
}

// -- Draining --

void lieni_listener_drain_step(struct lien_listener *listener)
{
    if (!listener->draining || listener->drained || listener->closed)
        return;
    for (struct lieni_node *n = listener->members.next; n != &listener->members; n = n->next) {
        if (!lieni_container(n, struct lien_conn, member_node)->calls.drained)
            return;
    }
    listener->drained = true;
    listener->refs++;
    lieni_strand_post(listener->strand, &listener->drained_task);
}

// An open connection of a draining listener takes no calls.
static void go_away(struct lien_conn *conn)
{
    if (lieni_calls_say_goaway(conn) == LIEN_ENOTSUP)
        conn->calls.drained = true; // there never were any
}

int lien_listener_drain(lien_listener *listener)
{
    if (!listener)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(listener->ctx))
        return LIEN_EFORK;
    lien_ctx *ctx = listener->ctx;
    lieni_ctx_lock(ctx);
    if (!listener->draining && !listener->closed) {
        listener->draining = true;
        ctx->platform.net->acceptor_close(listener->acceptor);
        listener->acceptor = NULL;
        for (struct lieni_node *n = listener->members.next; n != &listener->members; n = n->next)
            go_away(lieni_container(n, struct lien_conn, member_node));
        lieni_listener_drain_step(listener);
    }
    lieni_ctx_unlock(ctx);
    return 0;
}

// -- Accepting --

void lieni_listener_accepted(struct lien_listener *listener, struct lieni_stream *stream)
{
    lien_ctx *ctx = listener->ctx;
    struct lien_conn *conn;
    int rc = listener->closed ? LIEN_ECLOSED : 0;
    if (rc == 0 && ctx->half_open >= ctx->options.half_open_max) {
        rc = LIEN_ELIMIT;
        lieni_log_say(
            ctx->log, LIEN_LOG_WARN, NULL, rc,
            "%u accepted connections are on their way to open, the limit half_open_max is %llu: "
            "one more was refused",
            ctx->half_open, (unsigned long long)ctx->options.half_open_max);
    }
    if (rc == 0)
        rc = lieni_conn_new(ctx, &listener->conn_opts, &conn);
    if (rc != 0) {
        ctx->platform.net->stream_close(stream);
        return;
    }
    conn->listener = listener;
    conn->origin = listener;
    lieni_list_append(&listener->members, &conn->member_node);
    listener->refs += 2;
    conn->no_closed = true; // until the application has it
    conn->half_open = true;
    conn->server = true;
    ctx->half_open++;
    lieni_conn_start_server(conn, stream);
}

// on_closed is the last callback: it waits for those of on_accept that run or are due.
static void tell_closed(struct lien_listener *listener)
{
    if (!listener->closed || listener->closed_told || listener->accepts > 0)
        return;
    listener->closed_told = true;
    listener->refs++;
    lieni_strand_post(listener->strand, &listener->closed_task);
}

// The application's word on a new connection. Runs before any message of it, on its strand.
static void run_accept(struct lieni_task *task)
{
    struct lien_conn *conn = lieni_container(task, struct lien_conn, open_task);
    struct lien_listener *listener = conn->accepted_by;
    lien_ctx *ctx = conn->ctx;
    void *arg = conn->opts.arg;
    int refused = listener->opts.on_accept(listener, conn, listener->opts.arg, &arg);
    lieni_ctx_lock(ctx);
    conn->opts.arg = arg;
    if (refused && conn->has_handle) { // it may have closed it itself
        conn->no_closed = true;
        lieni_conn_close_handle(conn);
    } else {
        lieni_messages_wanted(conn);
        lieni_requests_ready(conn);
    }
    lieni_conn_unref(conn);
    listener->accepts--;
    tell_closed(listener);
    lieni_listener_unref(listener);
    lieni_ctx_unlock(ctx);
}

static void queue(struct lien_listener *listener, struct lien_conn *conn)
{
    if (listener->closed || listener->n_waiting >= LIENI_ACCEPT_QUEUE) {
        struct lieni_log_at at = lieni_conn_at(conn, 0);
        lieni_log_say(listener->ctx->log, LIEN_LOG_WARN, &at, LIEN_ELIMIT,
                      "%u connections wait to be accepted: one more was refused",
                      listener->n_waiting);
        lieni_conn_close_locked(conn);
        return;
    }
    lieni_conn_ref(conn);
    listener->n_waiting++;
    lieni_list_append(&listener->waiting, &conn->listen_node);
    lieni_ctx_changed(listener->ctx);
}

// From the listener to the application: its handle begins.
static void give(struct lien_conn *conn)
{
    conn->has_handle = true;
    conn->no_closed = false;
    lieni_conn_ref(conn);
    conn->listener = NULL;
    if (conn->calls.peer_goaway)
        lieni_conn_tell_goaway(conn);                                       // runs behind on_accept
    if (conn->calls.goaway && conn->calls.drained && conn->opts.on_drained) // while nobody had it
        lieni_conn_post(conn, &conn->drained_task);
}

void lieni_listener_opened(struct lien_listener *listener, struct lien_conn *conn)
{
    if (!listener->opts.on_accept) {
        queue(listener, conn);
    } else if (listener->closed) {
        lieni_conn_close_locked(conn);
    } else {
        give(conn);
        listener->accepts++;
        conn->accepted_by = listener; // the connection's reference to it passes to the task
        conn->open_task.run = run_accept;
        lieni_conn_post(conn, &conn->open_task);
    }
    if (listener->draining)
        go_away(conn);
}

// -- Public --

static int listener_opts(const lien_ctx *ctx, const lien_listener_opts *in,
                         struct lien_listener *listener)
{
    lien_listener_opts_init(&listener->opts);
    int rc = in ? lieni_opts_copy(&listener->opts, sizeof(listener->opts), in, in->size) : 0;
    if (rc == 0)
        rc = lieni_conn_opts_check(ctx, listener->opts.conn, &listener->conn_opts);
    listener->opts.conn = NULL; // the caller's: copied
    return rc;
}

static void listener_free(struct lien_listener *listener)
{
    if (listener->strand)
        lieni_strand_close(listener->strand);
    free(listener);
}

void lieni_listener_free(struct lien_listener *listener)
{
    lieni_list_remove(&listener->node);
    lieni_pool_unref(listener->conn_opts.pool);
    listener_free(listener);
}

// At `address`, or if that is NULL on the socket `fd`.
static int open_locked(struct lien_listener *listener, const char *address, int fd)
{
    lien_ctx *ctx = listener->ctx;
    const struct lieni_net_ops *net = ctx->platform.net;
    char *bound = listener->address;
    const size_t size = sizeof(listener->address);
    int rc = ctx->closing ? LIEN_ESTATE : 0;
    if (rc == 0)
        rc = lieni_strand_open(ctx->dispatch, (listener->conn_opts.flags & LIEN_INLINE) != 0,
                               &listener->strand);
    if (rc != 0)
        return rc;
    return address ? net->listen(ctx->net, address, listener, &listener->acceptor, bound, size)
                   : net->listen_fd(ctx->net, fd, listener, &listener->acceptor, bound, size);
}

static int listener_open(lien_ctx *ctx, const char *address, int fd, const lien_listener_opts *opts,
                         lien_listener **out)
{
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    struct lien_listener *listener = calloc(1, sizeof(*listener));
    if (!listener)
        return LIEN_ENOMEM;
    listener->object = LIENI_OBJECT_LISTENER;
    listener->ctx = ctx;
    listener->refs = 1; // the handle's
    listener->closed_task.run = run_closed;
    listener->drained_task.run = run_drained;
    lieni_list_init(&listener->node);
    lieni_list_init(&listener->members);
    lieni_list_init(&listener->waiting);
    int rc = listener_opts(ctx, opts, listener);
    lieni_ctx_lock(ctx);
    if (rc == 0)
        rc = open_locked(listener, address, fd);
    if (rc == 0) {
        lieni_pool_ref(listener->conn_opts.pool);
        lieni_list_append(&ctx->listeners, &listener->node);
        *out = listener;
    }
    lieni_ctx_unlock(ctx);
    if (rc != 0)
        listener_free(listener);
    return rc;
}

int lien_listener_open(lien_ctx *ctx, const char *address, const lien_listener_opts *opts,
                       lien_listener **listener)
{
    if (!ctx || !address || !listener)
        return LIEN_EINVAL;
    return listener_open(ctx, address, -1, opts, listener);
}

int lien_listen_fd(lien_ctx *ctx, int fd, const lien_listener_opts *opts, lien_listener **listener)
{
    if (!ctx || !listener)
        return LIEN_EINVAL;
    return listener_open(ctx, NULL, fd, opts, listener);
}

int lien_listener_fd(lien_listener *listener, int *fd)
{
    if (!listener || !fd)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(listener->ctx))
        return LIEN_EFORK;
    lien_ctx *ctx = listener->ctx;
    lieni_ctx_lock(ctx);
    int rc = listener->acceptor ? ctx->platform.net->acceptor_fd(listener->acceptor, fd)
                                : LIEN_ESTATE;
    lieni_ctx_unlock(ctx);
    return rc;
}

int lien_listener_address(lien_listener *listener, char *text, size_t size)
{
    if (!listener || !text)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(listener->ctx))
        return LIEN_EFORK;
    size_t len = strlen(listener->address);
    if (len >= size)
        return LIEN_ERANGE;
    memcpy(text, listener->address, len + 1);
    return 0;
}

int lien_listener_accept_wait(lien_listener *listener, uint32_t timeout_ms, lien_conn **out)
{
    if (!listener || !out)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(listener->ctx))
        return LIEN_EFORK;
    if (listener->opts.on_accept)
        return LIEN_ESTATE;
    lien_ctx *ctx = listener->ctx;
    lieni_ctx_lock(ctx);
    uint64_t deadline = lieni_ctx_deadline(ctx, timeout_ms);
    struct lieni_node *n;
    int rc = 0;
    listener->refs++; // it may be closed by another thread meanwhile
    while (!(n = lieni_list_pop(&listener->waiting)) && rc == 0) {
        if (listener->closed)
            rc = LIEN_ECLOSED;
        else
            rc = timeout_ms == 0 ? LIEN_ETIMEDOUT : lieni_ctx_wait_locked(ctx, deadline);
    }
    if (n) {
        struct lien_conn *conn = lieni_container(n, struct lien_conn, listen_node);
        listener->n_waiting--;
        give(conn);
        lieni_listener_unref(listener); // the connection's
        lieni_conn_unref(conn);         // the queue's
        lieni_messages_deliver(conn);
        lieni_messages_wanted(conn);
        lieni_requests_ready(conn);
        *out = conn;
        rc = 0;
    }
    lieni_listener_unref(listener);
    lieni_ctx_unlock(ctx);
    return rc;
}

void lieni_listener_close_locked(struct lien_listener *listener)
{
    lien_ctx *ctx = listener->ctx;
    if (listener->closed)
        return;
    listener->closed = true;
    if (listener->acceptor)
        ctx->platform.net->acceptor_close(listener->acceptor);
    listener->acceptor = NULL;
    struct lieni_node *n;
    while ((n = lieni_list_pop(&listener->waiting))) {
        struct lien_conn *conn = lieni_container(n, struct lien_conn, listen_node);
        listener->n_waiting--;
        lieni_conn_close_locked(conn);
        lieni_conn_unref(conn);
    }
    tell_closed(listener);
    lieni_listener_unref(listener); // the handle's
    lieni_ctx_changed(ctx);
}

int lien_listener_close(lien_listener **slot)
{
    if (!slot || !*slot)
        return LIEN_EINVAL;
    if (lieni_ctx_forked((*slot)->ctx))
        return LIEN_EFORK;
    struct lien_listener *listener = *slot;
    lien_ctx *ctx = listener->ctx;
    lieni_ctx_lock(ctx);
    *slot = NULL;
    lieni_listener_close_locked(listener);
    lieni_ctx_unlock(ctx);
    return 0;
}
