// SPDX-License-Identifier: Apache-2.0
//
// See channel.h. Calls through a channel: each is a wrapper around at most one call of a connection at a time. The wrapper holds the caller's memory (borrowed, or
// the lent space) for as long as the call may be sent, so that what the application frees meanwhile is there for the next connection.

#include "core/channel.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/conn.h"
#include "core/message.h"
#include "core/target.h"
#include "core/verify.h"

#define TO(state) (1u << (state))

static const unsigned may_enter[] = {
    [LIENI_CCALL_WAITING] = TO(LIENI_CCALL_RUNNING) | TO(LIENI_CCALL_DONE),
    [LIENI_CCALL_RUNNING] = TO(LIENI_CCALL_WAITING) | TO(LIENI_CCALL_DONE),
    [LIENI_CCALL_DONE] = TO(LIENI_CCALL_OVER),
    [LIENI_CCALL_OVER] = 0,
};

// Counts, too: how many wait and run.
static void set_state(struct lien_channel_call *call, enum lieni_ccall_state state)
{
    struct lien_channel *channel = call->channel;
    if (!(may_enter[call->state] & TO(state)))
        abort();
    channel->n_waiting -= call->state == LIENI_CCALL_WAITING;
    channel->n_running -= call->state == LIENI_CCALL_RUNNING;
    call->state = state;
    channel->n_waiting += state == LIENI_CCALL_WAITING;
    channel->n_running += state == LIENI_CCALL_RUNNING;
    lieni_ctx_changed(channel->ctx);
}

static bool is_live(const struct lien_channel_call *call)
{
    return call->state == LIENI_CCALL_WAITING || call->state == LIENI_CCALL_RUNNING;
}

// -- Ending --

void lieni_ccall_unref(struct lien_channel_call *call)
{
    if (--call->refs > 0)
        return;
    struct lien_channel *channel = call->channel;
    free(call->method);
    free(call->args);
    free(call->sums);
    free(call);
    lieni_channel_unref(channel);
}

static void run_done(struct lieni_task *task)
{
    struct lien_channel_call *call = lieni_container(task, struct lien_channel_call, done_task);
    lien_ctx *ctx = call->channel->ctx;
    lien_msg *reply = call->reply;
    call->reply = NULL;
    call->opts.on_done(call->opts.arg, call->status, reply);
    lieni_ctx_lock(ctx);
    lieni_ccall_unref(call);
    lieni_ctx_unlock(ctx);
}

static void run_released(struct lieni_task *task)
{
    struct lien_channel_call *call = lieni_container(task, struct lien_channel_call, released_task);
    lien_ctx *ctx = call->channel->ctx;
    call->opts.on_released(call->opts.arg, call->released_status);
    lieni_ctx_lock(ctx);
    lieni_ccall_unref(call);
    lieni_ctx_unlock(ctx);
}

static void post(struct lien_channel_call *call, struct lieni_task *task)
{
    call->refs++;
    lieni_strand_post(call->channel->strand, task);
}

static void unborrow(lien_buf **bufs, uint32_t *n)
{
    while (*n > 0)
        lieni_buf_unborrow(bufs[--*n]);
}

// The caller's memory is its own again once done is told and no inner call holds any.
static void release(struct lien_channel_call *call)
{
    if (call->state != LIENI_CCALL_DONE || call->unreleased > 0)
        return;
    unborrow(call->bufs + LIEN_BUFS_MAX, &call->n_body);
    set_state(call, LIENI_CCALL_OVER);
    lieni_timer_fini(&call->channel->ctx->timers, &call->timer);
    if (call->opts.on_released)
        post(call, &call->released_task);
    lieni_channel_call_over(call->channel);
    lieni_ccall_unref(call); // its life
}

static void done(struct lien_channel_call *call, int status, lien_msg *reply)
{
    lieni_list_remove(&call->node);
    lieni_timer_clear(&call->channel->ctx->timers, &call->timer);
    set_state(call, LIENI_CCALL_DONE);
    call->status = status;
    call->reply = reply;
    unborrow(call->bufs, &call->n_read); // as a call's borrow, it ends with the call (R8)
    if (call->opts.on_done)
        post(call, &call->done_task);
    if (call->space_held)
        lieni_target_seal(call->opts.write);
    call->space_held = false;
    release(call);
}

static void on_timeout(struct lieni_timer *timer)
{
    done(lieni_container(timer, struct lien_channel_call, timer), LIEN_EAGAIN, NULL);
}

void lieni_channel_drop(struct lien_channel *channel)
{
    struct lieni_node *n;
    while ((n = lieni_list_first(&channel->waiting)))
        done(lieni_container(n, struct lien_channel_call, node), LIEN_EAGAIN, NULL);
}

static void cancel(struct lien_channel_call *call, int status)
{
    if (call->state == LIENI_CCALL_WAITING)
        done(call, status, NULL);
    else if (call->state == LIENI_CCALL_RUNNING)
        lieni_call_give_up(call->inner, status);
}

// -- The inner call --

// Whether it is certain that no handler began: it never left, or the peer that is going away says so. Nothing may run into its write space, whatever the peer says.
static bool unbegun(const struct lien_call *inner)
{
    const struct lien_conn *conn = inner->conn;
    if (inner->write || (inner->space && inner->space->state != LIENI_TARGET_AVAILABLE))
        return false;
    if (conn->state > LIENI_CONN_ENDING && inner->frame > conn->link.posted)
        return true;
    return inner->unbegun && ((inner->status == LIEN_EOVERLOAD && conn->calls.peer_goaway) ||
                              inner->status == LIEN_ECLOSED);
}

// Back to its place in the queue: the oldest first, also among those that come back.
static void wait_again(struct lien_channel_call *call)
{
    struct lien_channel *channel = call->channel;
    set_state(call, LIENI_CCALL_WAITING);
    call->space_held = call->opts.write != NULL;
    struct lieni_node *n = channel->waiting.next;
    while (n != &channel->waiting &&
           lieni_container(n, struct lien_channel_call, node)->number < call->number)
        n = n->next;
    lieni_list_append(n, &call->node); // before it
    lieni_timer_set(&channel->ctx->timers, &call->timer, call->deadline);
    channel->resent++;
    channel->ctx->stats.calls_resent++;
    lieni_channel_kick(channel);
}

void lieni_ccall_ended(struct lien_channel_call *call, struct lien_call *inner)
{
    struct lien_channel *channel = call->channel;
    lien_msg *reply = inner->reply;
    bool sendable = channel->state != LIENI_CHANNEL_CLOSING &&
                    channel->state != LIENI_CHANNEL_CLOSED;
    bool never = unbegun(inner);
    call->again = never && sendable;
    inner->reply = NULL;
    call->inner = NULL;
    if (call->again) {
        if (reply) {
            channel->ctx->messages_held--;
            lieni_message_free(reply);
        }
        wait_again(call);
    } else {
        // LIEN_EAGAIN is ours to say: a peer that replies with it ran the call.
        int status = inner->status == LIEN_EAGAIN ? LIEN_EIO : inner->status;
        done(call, never ? LIEN_EAGAIN : status, reply);
    }
    lieni_call_unref(inner); // ours
}

void lieni_ccall_released(struct lien_channel_call *call, int status)
{
    if (status != 0)
        call->released_status = status;
    call->unreleased--;
    release(call);
    lieni_ccall_unref(call); // the inner call's
}

// What the application freed meanwhile is still there, since we borrow it: for the inner call it is as it was.
static void freed_ones(struct lien_channel_call *call, bool *freed, bool set)
{
    lien_buf **groups[] = {call->bufs, call->bufs + LIEN_BUFS_MAX};
    const uint32_t counts[] = {call->n_read, call->n_body};
    for (unsigned g = 0; g < 2; g++) {
        for (uint32_t i = 0; i < counts[g]; i++, freed++)
            if (!set)
                *freed = lieni_buf_set_freed(groups[g][i], false);
            else if (*freed) // of two uses of one buffer only the first knew
                (void)lieni_buf_set_freed(groups[g][i], true);
    }
}

static int start_inner(struct lien_channel_call *call, struct lien_conn *conn)
{
    uint64_t now = lieni_ctx_now(conn->ctx);
    if (now >= call->deadline)
        return LIEN_EAGAIN; // its timer is due
    bool freed[2 * LIEN_BUFS_MAX];
    lien_call_opts opts = call->opts;
    opts.timeout_ms = (uint32_t)((call->deadline - now + LIENI_MS - 1) / LIENI_MS);
    opts.read = call->bufs;
    opts.n_read = call->n_read;
    opts.body = call->bufs + LIEN_BUFS_MAX;
    opts.n_body = call->n_body;
    opts.on_done = NULL;
    opts.on_released = NULL;
    freed_ones(call, freed, false);
    int rc = lieni_call_begin(conn, call->method, call->args, call->len, call->sums, &opts, call,
                              &call->inner);
    freed_ones(call, freed, true);
    if (rc != 0)
        return rc;
    call->inner->waited = call->wants_reply;
    call->path = lieni_conn_path(conn, &call->soft);
    call->inner->refs++;
    call->refs++;
    call->unreleased++;
    call->space_held = false;
    call->again = false;
    lieni_timer_clear(&conn->ctx->timers, &call->timer);
    lieni_list_remove(&call->node);
    set_state(call, LIENI_CCALL_RUNNING);
    return 0;
}

void lieni_channel_send(struct lien_channel *channel)
{
    struct lieni_node *n;
    if (channel->state != LIENI_CHANNEL_OPEN || lieni_list_empty(&channel->waiting))
        return;
    struct lien_conn *conn = channel->current->conn;
    while ((n = lieni_list_first(&channel->waiting)) && lieni_conn_usable(conn) == 0 &&
           conn->broken == 0) {
        struct lien_channel_call *call = lieni_container(n, struct lien_channel_call, node);
        int rc = start_inner(call, conn);
        if (rc == LIEN_EAGAIN)
            break; // credit comes, or a deadline
        if (rc != 0)
            done(call, rc, NULL);
    }
    lieni_link_pump(conn);
}

// -- Starting --

static int check(const struct lien_channel *channel, const char *method, size_t len,
                 const lien_call_opts *opts)
{
    size_t name = strnlen(method, LIEN_METHOD_MAX + 1);
    if (name == 0 || name > LIEN_METHOD_MAX || opts->timeout_ms == LIEN_FOREVER ||
        opts->n_read > LIEN_BUFS_MAX || opts->n_body > LIEN_BUFS_MAX ||
        (opts->n_body > 0 && !opts->body) || (opts->n_read > 0 && !opts->read) ||
        (opts->write && opts->write->ctx != channel->ctx))
        return LIEN_EINVAL;
    if (channel->state == LIENI_CHANNEL_CLOSING || channel->state == LIENI_CHANNEL_CLOSED)
        return LIEN_ECLOSED;
    uint64_t most = channel->ctx->options.frame_max;
    if (len > most || LIENI_FRAME_HEADER + LIENI_CALL_FIXED + name + len > most)
        return LIEN_EMSGSIZE;
    return channel->n_waiting >= channel->opts.queue_max ? LIEN_EAGAIN : 0;
}

static int borrow(struct lien_channel_call *call, lien_buf *const *from, size_t n, lien_buf **to,
                  uint32_t *count)
{
    for (*count = 0; *count < n; (*count)++) {
        lien_buf *buf = from[*count];
        if (!buf || !lieni_buf_in_ctx(buf, call->channel->ctx->mem))
            return LIEN_EINVAL;
        int rc = lieni_bufs_may_leave(&buf, 1, NULL); // as when it leaves, but told at once (R15)
        if (rc == 0)
            rc = lieni_buf_borrow(buf);
        if (rc != 0)
            return rc;
        to[*count] = buf;
    }
    return 0;
}

static int lend(struct lien_channel_call *call, const lien_call_opts *opts)
{
    int rc = borrow(call, opts->read, opts->n_read, call->bufs, &call->n_read);
    if (rc == 0)
        rc = borrow(call, opts->body, opts->n_body, call->bufs + LIEN_BUFS_MAX, &call->n_body);
    if (rc == 0 && opts->write)
        rc = lieni_target_call(opts->write);
    call->space_held = rc == 0 && opts->write;
    if (rc != 0) {
        unborrow(call->bufs, &call->n_read);
        unborrow(call->bufs + LIEN_BUFS_MAX, &call->n_body);
    }
    return rc;
}

static struct lien_channel_call *call_new(struct lien_channel *channel, const char *method,
                                          const void *args, size_t len)
{
    lien_ctx *ctx = channel->ctx;
    struct lien_channel_call *call = calloc(1, sizeof(*call));
    if (!call)
        return NULL;
    call->method = strdup(method);
    call->args = malloc(len ? len : 1);
    if (!call->method || !call->args ||
        lieni_timer_init(&ctx->timers, &call->timer, on_timeout) != 0) {
        free(call->method);
        free(call->args);
        free(call);
        return NULL;
    }
    if (len > 0)
        lieni_copy_payload(&ctx->copied, call->args, args, len);
    call->len = len;
    call->channel = channel;
    channel->refs++;
    call->done_task.run = run_done;
    call->released_task.run = run_released;
    lieni_list_init(&call->node);
    call->refs = 1; // its life
    return call;
}

// Hashes once for as often as it is sent. *sums: to be freed, or NULL. The channel may be closed meanwhile: the caller has a reference, and looked whether the call can begin.
static int make_sums(struct lien_channel *channel, const lien_call_opts *opts,
                     struct lieni_sums **sums)
{
    *sums = NULL;
    if (!lieni_sums_wanted(channel->ctx, opts->flags))
        return 0;
    struct lieni_sums *made = calloc(2, sizeof(*made));
    if (!made)
        return LIEN_ENOMEM;
    int rc = lieni_call_sums(channel->ctx, opts, made);
    if (rc == 0)
        *sums = made;
    else
        free(made);
    return rc;
}

// *sums moves if it succeeds.
static int start(struct lien_channel *channel, const char *method, const void *args, size_t len,
                 const lien_call_opts *opts, struct lieni_sums **sums,
                 struct lien_channel_call **out)
{
    lien_ctx *ctx = channel->ctx;
    int rc = check(channel, method, len, opts);
    if (rc != 0)
        return rc;
    struct lien_channel_call *call = call_new(channel, method, args, len);
    if (!call)
        return LIEN_ENOMEM;
    rc = lend(call, opts);
    if (rc != 0) {
        lieni_timer_fini(&ctx->timers, &call->timer);
        lieni_ccall_unref(call);
        return rc;
    }
    call->sums = *sums;
    *sums = NULL;
    call->opts = *opts;
    call->wants_reply = opts->on_done != NULL;
    uint32_t ms = opts->timeout_ms ? opts->timeout_ms : (uint32_t)ctx->options.call_ms;
    call->deadline = lieni_ctx_deadline(ctx, ms);
    lieni_timer_set(&ctx->timers, &call->timer, call->deadline);
    call->number = ++channel->calls;
    lieni_list_append(&channel->waiting, &call->node);
    channel->n_waiting++; // it begins there
    channel->n_calls++;
    *out = call;
    return 0;
}

// -- Public --

int lien_channel_call_start(lien_channel *channel, const char *method, const void *args, size_t len,
                            const lien_call_opts *opts, lien_channel_call **out)
{
    lien_call_opts full;
    if (!channel || !method || (len > 0 && !args))
        return LIEN_EINVAL;
    if (lieni_ctx_forked(channel->ctx))
        return LIEN_EFORK;
    int rc = lieni_call_opts(opts, &full);
    if (rc != 0)
        return rc;
    struct lien_channel_call *call;
    lien_ctx *ctx = channel->ctx;
    lieni_ctx_lock(ctx);
    channel->refs++; // another thread may close it while bytes are hashed
    struct lieni_sums *sums = NULL;
    rc = check(channel, method, len, &full);
    if (rc == 0)
        rc = make_sums(channel, &full, &sums);
    if (rc == 0)
        rc = start(channel, method, args, len, &full, &sums, &call);
    free(sums);
    if (rc == 0) {
        call->refs += out != NULL;
        if (out)
            *out = call;
        lieni_channel_send(channel);
    }
    lieni_channel_unref(channel);
    lieni_ctx_unlock(ctx);
    return rc;
}

int lien_channel_call_cancel(lien_channel_call *call)
{
    if (!call)
        return LIEN_EINVAL;
    lien_ctx *ctx = call->channel->ctx;
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    lieni_ctx_lock(ctx);
    cancel(call, LIEN_ECANCELED);
    lieni_ctx_unlock(ctx);
    return 0;
}

lien_path lien_channel_call_path(const lien_channel_call *call, bool *soft)
{
    if (!call || lieni_ctx_forked(call->channel->ctx))
        return LIEN_PATH_NONE;
    lien_ctx *ctx = call->channel->ctx;
    lieni_ctx_lock(ctx);
    lien_path path = call->path;
    if (soft && path != LIEN_PATH_NONE)
        *soft = call->soft;
    lieni_ctx_unlock(ctx);
    return path;
}

int lien_channel_call_close(lien_channel_call **slot)
{
    if (!slot || !*slot)
        return LIEN_EINVAL;
    struct lien_channel_call *call = *slot;
    lien_ctx *ctx = call->channel->ctx;
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    lieni_ctx_lock(ctx);
    *slot = NULL;
    cancel(call, LIEN_ECANCELED);
    lieni_ccall_unref(call);
    lieni_ctx_unlock(ctx);
    return 0;
}

// Waits for room in the queue, and before that for the verdict on bytes that were read, within the call's own time. Nobody heard of it if that is over.
static int start_wait(struct lien_channel *channel, const char *method, const void *args,
                      size_t len, lien_call_opts *opts, struct lien_channel_call **call)
{
    lien_ctx *ctx = channel->ctx;
    uint64_t deadline;
    int rc = lieni_call_wait_verdict(ctx, opts, &deadline);
    while (rc == 0) {
        struct lieni_sums *sums = NULL;
        rc = check(channel, method, len, opts);
        if (rc == 0) // only once there is room: until then the buffers are the caller's to write
            rc = make_sums(channel, opts, &sums);
        uint64_t now = lieni_ctx_now(ctx);
        if (rc == 0 && now >= deadline)
            rc = LIEN_ETIMEDOUT;
        if (rc == 0) {
            opts->timeout_ms = lieni_call_ms_left(now, deadline);
            rc = start(channel, method, args, len, opts, &sums, call);
        }
        free(sums);
        if (rc != LIEN_EAGAIN)
            break;
        rc = now >= deadline ? LIEN_ETIMEDOUT : lieni_ctx_wait_locked(ctx, deadline);
    }
    return rc == LIEN_ETIMEDOUT ? LIEN_EAGAIN : rc;
}

int lien_channel_call_wait(lien_channel *channel, const char *method, const void *args, size_t len,
                           const lien_call_opts *opts, lien_msg **reply)
{
    lien_call_opts full;
    if (!channel || !method || (len > 0 && !args))
        return LIEN_EINVAL;
    if (lieni_ctx_forked(channel->ctx))
        return LIEN_EFORK;
    int rc = lieni_call_opts(opts, &full);
    lien_ctx *ctx = channel->ctx;
    if (rc == 0 && lieni_dispatch_where(ctx->dispatch, NULL) == LIENI_IN_PROGRESS)
        rc = LIEN_EDEADLK;
    if (rc != 0)
        return rc;
    full.on_done = NULL;
    full.on_released = NULL;
    struct lien_channel_call *call = NULL;
    lieni_ctx_lock(ctx);
    channel->refs++; // it may be closed by another thread meanwhile
    rc = start_wait(channel, method, args, len, &full, &call);
    if (rc == 0) {
        call->wants_reply = reply != NULL;
        call->refs++;
        lieni_channel_send(channel);
        while (is_live(call) && rc == 0)
            rc = lieni_ctx_wait_locked(ctx, UINT64_MAX); // its own timer ends it
        cancel(call, rc);
        rc = call->status;
        if (reply)
            *reply = call->reply;
        lieni_ccall_unref(call);
    }
    lieni_channel_unref(channel);
    lieni_ctx_unlock(ctx);
    return rc;
}
