// SPDX-License-Identifier: Apache-2.0
//
// See conn.h. The object itself: state, references, callbacks, and the public functions to open, close and ask.

#include "core/conn.h"

#include <stdlib.h>
#include <string.h>

#include "core/channel.h"
#include "core/listener.h"
#include "core/message.h"
#include "core/read.h"
#include "core/request.h"

#define TO(state) (1u << (state))

static const unsigned may_enter[] = {
    [LIENI_CONN_BOOT] = TO(LIENI_CONN_FABRIC) | TO(LIENI_CONN_GONE),
    [LIENI_CONN_FABRIC] = TO(LIENI_CONN_OPEN) | TO(LIENI_CONN_DRAIN),
    [LIENI_CONN_OPEN] = TO(LIENI_CONN_ENDING) | TO(LIENI_CONN_DRAIN),
    [LIENI_CONN_ENDING] = TO(LIENI_CONN_DRAIN),
    [LIENI_CONN_DRAIN] = TO(LIENI_CONN_DESTROY),
    [LIENI_CONN_DESTROY] = TO(LIENI_CONN_GONE),
    [LIENI_CONN_GONE] = 0,
};

const char *lieni_conn_state_name(enum lieni_conn_state state)
{
    static const char *const names[] = {"boot",  "fabric",  "open", "ending",
                                        "drain", "destroy", "gone"};
    return names[state];
}

struct lieni_log_at lieni_conn_at(const struct lien_conn *conn, uint64_t op)
{
    return (struct lieni_log_at){.conn = conn->id,
                                 .op = op,
                                 .provider = conn->ops ? conn->ops->traits->name : NULL,
                                 .peer = conn->peer};
}

void lieni_conn_set_state(struct lien_conn *conn, enum lieni_conn_state state)
{
    if (!(may_enter[conn->state] & TO(state)))
        abort();
    struct lieni_log_at at = lieni_conn_at(conn, 0);
    lieni_log_say(conn->ctx->log, LIEN_LOG_DEBUG, &at, conn->status, "connection: %s -> %s",
                  lieni_conn_state_name(conn->state), lieni_conn_state_name(state));
    lieni_trace_text(conn->trace, LIENI_TRACE_STATE, 0, 0, conn->status,
                     lieni_conn_state_name(conn->state), lieni_conn_state_name(state));
    conn->state = state;
    lieni_ctx_changed(conn->ctx);
}

// -- References and callbacks --

void lieni_conn_ref(struct lien_conn *conn)
{
    conn->refs++;
}

void lieni_conn_unref(struct lien_conn *conn)
{
    if (--conn->refs > 0)
        return;
    lieni_list_remove(&conn->work);
    lieni_list_remove(&conn->node);
    lieni_list_append(&conn->ctx->graveyard, &conn->node);
    lieni_ctx_wake(conn->ctx);
}

void lieni_conn_post(struct lien_conn *conn, struct lieni_task *task)
{
    lieni_conn_ref(conn);
    lieni_ctx_post(conn->ctx, conn->strand, task);
}

// After a task's callback: gives its reference back.
static void task_over(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    lieni_ctx_lock(ctx);
    lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
}

// Whether the application still wants to hear of it.
static bool listening(struct lien_conn *conn)
{
    lieni_ctx_lock(conn->ctx);
    bool yes = conn->has_handle;
    lieni_ctx_unlock(conn->ctx);
    return yes;
}

static void run_open(struct lieni_task *task)
{
    struct lien_conn *conn = lieni_container(task, struct lien_conn, open_task);
    if (listening(conn) && conn->opts.on_open)
        conn->opts.on_open(conn, conn->was_open ? 0 : conn->status, conn->opts.arg);
    lieni_ctx_lock(conn->ctx);
    lieni_requests_ready(conn);
    lieni_ctx_unlock(conn->ctx);
    task_over(conn);
}

static void run_lost(struct lieni_task *task)
{
    struct lien_conn *conn = lieni_container(task, struct lien_conn, lost_task);
    if (listening(conn) && conn->opts.on_lost)
        conn->opts.on_lost(conn, conn->status, conn->opts.arg);
    task_over(conn);
}

static void run_goaway(struct lieni_task *task)
{
    struct lien_conn *conn = lieni_container(task, struct lien_conn, goaway_task);
    if (listening(conn) && conn->opts.on_goaway)
        conn->opts.on_goaway(conn, conn->opts.arg);
    task_over(conn);
}

static void run_drained(struct lieni_task *task)
{
    struct lien_conn *conn = lieni_container(task, struct lien_conn, drained_task);
    if (listening(conn) && conn->opts.on_drained)
        conn->opts.on_drained(conn, conn->opts.arg);
    task_over(conn);
}

static void run_writable(struct lieni_task *task)
{
    struct lien_conn *conn = lieni_container(task, struct lien_conn, writable_task);
    lieni_ctx_lock(conn->ctx);
    conn->writable_posted = false;
    bool yes = conn->has_handle && conn->opts.on_writable;
    lieni_ctx_unlock(conn->ctx);
    if (yes)
        conn->opts.on_writable(conn, conn->opts.arg);
    task_over(conn);
}

static void run_closed(struct lieni_task *task)
{
    struct lien_conn *conn = lieni_container(task, struct lien_conn, closed_task);
    if (!conn->no_closed && conn->opts.on_closed)
        conn->opts.on_closed(conn, conn->lost ? LIEN_EQUARANTINED : 0, conn->opts.arg);
    lien_ctx *ctx = conn->ctx;
    lieni_ctx_lock(ctx);
    conn->closed_done = true;
    if (conn->channel)
        lieni_channel_closed(conn->channel);
    lieni_strand_close(conn->strand); // nothing of it is posted any more
    conn->strand = NULL;
    lieni_ctx_changed(ctx);
    lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
}

void lieni_conn_closed(struct lien_conn *conn)
{
    // Closing one that is not open yet comes here twice: from its end, and from the handle's.
    if (conn->state != LIENI_CONN_GONE || conn->has_handle || conn->closed_posted)
        return;
    conn->closed_posted = true;
    lieni_conn_post(conn, &conn->closed_task);
}

void lieni_conn_tell_goaway(struct lien_conn *conn)
{
    if (conn->channel)
        lieni_channel_goaway(conn->channel);
    if (conn->has_handle && conn->opts.on_goaway)
        lieni_conn_post(conn, &conn->goaway_task);
}

void lieni_conn_drained(struct lien_conn *conn)
{
    if (conn->has_handle && conn->opts.on_drained)
        lieni_conn_post(conn, &conn->drained_task);
    if (conn->origin)
        lieni_listener_drain_step(conn->origin);
}

void lieni_conn_writable(struct lien_conn *conn)
{
    lieni_ctx_changed(conn->ctx); // lien_send_wait
    if (conn->channel)
        lieni_channel_room(conn->channel);
    if (conn->state != LIENI_CONN_OPEN || !conn->want_writable || conn->writable_posted ||
        !conn->has_handle || lieni_link_message_room(&conn->link) != 0)
        return;
    conn->want_writable = false;
    conn->writable_posted = true;
    lieni_conn_post(conn, &conn->writable_task);
}

void lieni_conn_kick(struct lien_conn *conn)
{
    if (!lieni_node_in(&conn->work))
        lieni_list_append(&conn->ctx->work, &conn->work);
    lieni_ctx_wake(conn->ctx);
}

int lieni_conn_usable(const struct lien_conn *conn)
{
    switch (conn->state) {
    case LIENI_CONN_BOOT:
    case LIENI_CONN_FABRIC:
        return LIEN_ESTATE;
    case LIENI_CONN_OPEN:
        return 0;
    case LIENI_CONN_ENDING:
    case LIENI_CONN_DRAIN:
    case LIENI_CONN_DESTROY:
    case LIENI_CONN_GONE:
        break;
    }
    return conn->status ? conn->status : LIEN_ECLOSED;
}

int lieni_conn_op_status(const struct lien_conn *conn, int status)
{
    // A provider flushes what is posted when its endpoint breaks, and calls that canceled; the application canceled nothing.
    if (status != LIEN_ECANCELED)
        return status;
    return conn->status ? conn->status : LIEN_EPEERLOST;
}

// -- Making and freeing --

static void on_timer(struct lieni_timer *timer)
{
    struct lien_conn *conn = lieni_container(timer, struct lien_conn, timer);
    lieni_trace_text(conn->trace, LIENI_TRACE_TIMER, 0, 0, 0, "of the state", NULL);
    lieni_conn_timer(conn);
}

static void init_lists(struct lien_conn *conn)
{
    lieni_list_init(&conn->node);
    lieni_list_init(&conn->work);
    lieni_list_init(&conn->listen_node);
    lieni_list_init(&conn->member_node);
    lieni_list_init(&conn->fabric_node);
    lieni_list_init(&conn->group_node);
    lieni_list_init(&conn->watch_node);
    lieni_list_init(&conn->live_grants);
    lieni_list_init(&conn->exposures);
    lieni_list_init(&conn->grant_handles);
    lieni_list_init(&conn->read_handles);
    lieni_list_init(&conn->revokes);
    lieni_list_init(&conn->reads);
    lieni_list_init(&conn->read_queue);
    lieni_list_init(&conn->read_turn);
    lieni_list_init(&conn->room_node);
    lieni_list_init(&conn->sends);
    lieni_list_init(&conn->inbox);
    lieni_calls_init(&conn->calls);
    conn->open_task.run = run_open;
    conn->lost_task.run = run_lost;
    conn->writable_task.run = run_writable;
    conn->goaway_task.run = run_goaway;
    conn->drained_task.run = run_drained;
    conn->closed_task.run = run_closed;
}

static int init_timers(struct lien_conn *conn)
{
    struct lieni_timers *ts = &conn->ctx->timers;
    int rc = lieni_timer_init(ts, &conn->timer, on_timer);
    if (rc != 0)
        return rc;
    rc = lieni_timer_init(ts, &conn->watchdog, lieni_liveness_watchdog);
    if (rc != 0)
        goto fini_timer;
    rc = lieni_timer_init(ts, &conn->retry, lieni_liveness_retry);
    if (rc != 0)
        goto fini_watchdog;
    return 0;
fini_watchdog:
    lieni_timer_fini(ts, &conn->watchdog);
fini_timer:
    lieni_timer_fini(ts, &conn->timer);
    return rc;
}

int lieni_conn_new(lien_ctx *ctx, const lien_conn_opts *opts, struct lien_conn **out)
{
    struct lien_conn *conn = calloc(1, sizeof(*conn));
    if (!conn)
        return LIEN_ENOMEM;
    conn->object = LIENI_OBJECT_CONN;
    conn->ctx = ctx;
    conn->opts = *opts;
    conn->serial = ++ctx->conns_made;
    init_lists(conn);
    int rc = 0;
    if (ctx->options.trace > 0)
        rc = lieni_trace_open(&ctx->platform.env, (uint32_t)ctx->options.trace,
                              (uint32_t)ctx->options.trace_bytes, &conn->trace);
    if (rc == 0)
        rc = lieni_strand_open(ctx->dispatch, (opts->flags & LIEN_INLINE) != 0, &conn->strand);
    if (rc != 0)
        goto free_conn;
    rc = init_timers(conn);
    if (rc != 0)
        goto close_strand;
    uint32_t ms = opts->timeout_ms ? opts->timeout_ms : (uint32_t)ctx->options.connect_ms;
    lieni_timer_set(&ctx->timers, &conn->timer, lieni_ctx_deadline(ctx, ms));
    conn->refs = 1; // its life
    lieni_pool_ref(conn->opts.pool);
    lieni_list_append(&ctx->conns, &conn->node);
    *out = conn;
    return 0;
close_strand:
    lieni_strand_close(conn->strand);
free_conn:
    lieni_trace_close(conn->trace);
    free(conn);
    return rc;
}

void lieni_conn_free(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    lieni_timer_fini(&ctx->timers, &conn->timer);
    lieni_timer_fini(&ctx->timers, &conn->watchdog);
    lieni_timer_fini(&ctx->timers, &conn->retry);
    if (conn->strand)
        lieni_strand_close(conn->strand);
    free(conn->grants.slots);
    lieni_imports_free(&conn->imports);
    lieni_calls_free(&conn->calls);
    lieni_trace_close(conn->trace);
    free(conn);
}

// -- Public --

static int check_opts(const lien_ctx *ctx, const lien_conn_opts *in, lien_conn_opts *out)
{
    lien_conn_opts_init(out);
    if (!in)
        return 0;
    int rc = lieni_opts_copy(out, sizeof(*out), in, in->size);
    if (rc == 0 && (out->flags & ~LIEN_INLINE) != 0)
        rc = LIEN_EINVAL;
    if (rc == 0 && out->pool && !lieni_pool_in_ctx(out->pool, ctx->mem))
        rc = LIEN_EINVAL;
    return rc;
}

int lieni_conn_opts_check(const lien_ctx *ctx, const lien_conn_opts *in, lien_conn_opts *out)
{
    return check_opts(ctx, in, out);
}

// The host of "host:port" or "[host]:port", which net found well formed.
static void keep_host(struct lien_conn *conn, const char *address)
{
    const char *end = strrchr(address, ':');
    bool bracket = address[0] == '[';
    size_t len = end ? (size_t)(end - address) : strlen(address);
    if (bracket && len >= 2) {
        address++;
        len -= 2;
    }
    if (len < sizeof(conn->dialled))
        memcpy(conn->dialled, address, len);
}

int lieni_conn_open_locked(lien_ctx *ctx, const char *address, const lien_conn_opts *opts,
                           bool quiet, struct lien_conn **out)
{
    if (ctx->closing)
        return LIEN_ESTATE;
    struct lien_conn *conn;
    int rc = lieni_conn_new(ctx, opts, &conn);
    if (rc != 0)
        return rc;
    rc = ctx->platform.net->connect(ctx->net, address, conn, &conn->stream);
    if (rc != 0) {
        conn->stream = NULL;
        conn->no_closed = true;
        lieni_conn_lose(conn, rc, NULL);
        return rc;
    }
    strncpy(conn->peer, address, sizeof(conn->peer) - 1);
    keep_host(conn, address);
    conn->quiet = quiet;
    conn->has_handle = true;
    lieni_conn_ref(conn); // the handle's
    *out = conn;
    return 0;
}

int lien_conn_open(lien_ctx *ctx, const char *address, const lien_conn_opts *opts, lien_conn **conn)
{
    if (!ctx || !address || !conn)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    lien_conn_opts full;
    int rc = check_opts(ctx, opts, &full);
    if (rc != 0)
        return rc;
    lieni_ctx_lock(ctx);
    rc = lieni_conn_open_locked(ctx, address, &full, false, conn);
    lieni_ctx_unlock(ctx);
    return rc;
}

// The application gives up its handle.
void lieni_conn_close_handle(struct lien_conn *conn)
{
    conn->has_handle = false;
    lieni_messages_drop(conn);
    lieni_conn_close_locked(conn);
    lieni_conn_closed(conn);
    lieni_conn_unref(conn);
}

int lien_conn_open_wait(lien_ctx *ctx, const char *address, const lien_conn_opts *opts,
                        lien_conn **out)
{
    if (!ctx || !address || !out)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    lien_conn_opts full;
    int rc = check_opts(ctx, opts, &full);
    if (rc != 0)
        return rc;
    if (lieni_dispatch_where(ctx->dispatch, NULL) == LIENI_IN_PROGRESS)
        return LIEN_EDEADLK;
    struct lien_conn *conn = NULL;
    lieni_ctx_lock(ctx);
    rc = lieni_conn_open_locked(ctx, address, &full, true, &conn);
    if (conn) {
        conn->no_closed = true; // until the application has it
        lieni_conn_ref(conn); // another thread may close the ctx meanwhile, and the handle with it
    }
    while (rc == 0 && !conn->was_open && conn->status == 0)
        rc = lieni_ctx_wait_locked(ctx, UINT64_MAX); // its own timer ends it
    if (conn && rc == 0 && !conn->was_open)
        rc = conn->status;
    if (conn && rc == 0 && !conn->has_handle)
        rc = LIEN_ECLOSED;
    if (conn && rc != 0) {
        if (conn->has_handle)
            lieni_conn_close_handle(conn);
    } else if (conn) {
        conn->no_closed = false;
        *out = conn;
    }
    if (conn)
        lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
    return rc;
}

int lien_conn_close(lien_conn **slot)
{
    if (!slot || !*slot)
        return LIEN_EINVAL;
    if (lieni_ctx_forked((*slot)->ctx))
        return LIEN_EFORK;
    struct lien_conn *conn = *slot;
    lien_ctx *ctx = conn->ctx;
    lieni_ctx_lock(ctx);
    *slot = NULL;
    lieni_conn_close_handle(conn);
    lieni_ctx_unlock(ctx);
    return 0;
}

int lien_conn_close_wait(lien_conn **slot, uint32_t timeout_ms)
{
    if (!slot || !*slot)
        return LIEN_EINVAL;
    if (lieni_ctx_forked((*slot)->ctx))
        return LIEN_EFORK;
    struct lien_conn *conn = *slot;
    lien_ctx *ctx = conn->ctx;
    int rc = lieni_ctx_outside(ctx);
    if (rc != 0)
        return rc;
    lieni_ctx_lock(ctx);
    *slot = NULL;
    conn->no_closed = true;
    lieni_conn_ref(conn); // to look at it afterwards
    lieni_conn_close_handle(conn);
    uint64_t deadline = lieni_ctx_deadline(ctx, timeout_ms);
    while (!conn->closed_done && rc == 0)
        rc = timeout_ms == 0 ? LIEN_ETIMEDOUT : lieni_ctx_wait_locked(ctx, deadline);
    if (conn->closed_done)
        rc = conn->lost ? LIEN_EQUARANTINED : 0;
    lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
    return rc;
}

lien_ctx *lien_conn_ctx(const lien_conn *conn)
{
    return conn && !lieni_ctx_forked(conn->ctx) ? conn->ctx : NULL;
}

int lien_conn_info_get(lien_conn *conn, lien_conn_info *info)
{
    if (!conn || !info || info->size < sizeof(info->size))
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    lien_conn_info now = {.size = info->size};
    lieni_ctx_lock(conn->ctx);
    now.id = conn->id;
    memcpy(now.peer, conn->peer, sizeof(now.peer)); // ended by NUL there
    _Static_assert(sizeof(now.peer) == sizeof(conn->peer), "the same bytes");
    if (conn->ops) {
        const struct lieni_traits *t = conn->ops->traits;
        strncpy(now.provider, t->name, sizeof(now.provider) - 1);
        now.path = t->path;
        now.ep_end_proves = t->ep_end_proves;
        now.domain_end_proves = t->domain_end_proves;
        const struct lieni_options *o = &conn->ctx->options;
        now.soft = conn->soft;
        memcpy(now.nic, conn->nic_name, sizeof(now.nic));
        memcpy(now.local, conn->fabric_host, sizeof(now.local));
        now.read_piece_max = o->read_piece < t->read_piece_max ? o->read_piece : t->read_piece_max;
        now.read_bytes_max = o->read_conn_bytes < t->read_bytes_max ? o->read_conn_bytes
                                                                    : t->read_bytes_max;
        now.reads_max = conn->reads_max;
    }
    now.messages_sent = conn->counts.messages_sent;
    now.messages_received = conn->counts.messages_received;
    now.reads_done = conn->counts.reads_done;
    now.reads_failed = conn->counts.reads_failed;
    now.read_bytes = conn->counts.read_bytes;
    now.open = conn->state == LIENI_CONN_OPEN;
    now.eager_max = lieni_link_head_max(&conn->link);
    now.message_max = conn->message_max;
    now.message_credits = conn->link.message_left;
    now.control_credits = conn->link.control_left;
    now.reads_outstanding = conn->reads_outstanding;
    now.read_bytes_outstanding = conn->read_bytes;
    now.grants_live = conn->n_grants;
    now.grants_bytes = conn->grants_bytes;
    now.quarantined_bytes = conn->lost_bytes;
    lieni_ctx_unlock(conn->ctx);
    memcpy(info, &now, info->size < sizeof(now) ? info->size : sizeof(now));
    return 0;
}
