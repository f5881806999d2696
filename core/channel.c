// SPDX-License-Identifier: Apache-2.0
//
// See channel.h. The channel itself: which address, when, after what wait; its links; its end.

#include "core/channel.h"

#include <stdlib.h>
#include <string.h>

#define TO(state) (1u << (state))

static const unsigned may_enter[] = {
    [LIENI_CHANNEL_WAITING] = TO(LIENI_CHANNEL_CONNECTING) | TO(LIENI_CHANNEL_CLOSING),
    [LIENI_CHANNEL_CONNECTING] = TO(LIENI_CHANNEL_OPEN) | TO(LIENI_CHANNEL_WAITING) |
                                 TO(LIENI_CHANNEL_CLOSING),
    [LIENI_CHANNEL_OPEN] = TO(LIENI_CHANNEL_WAITING) | TO(LIENI_CHANNEL_CLOSING),
    [LIENI_CHANNEL_CLOSING] = TO(LIENI_CHANNEL_CLOSED),
    [LIENI_CHANNEL_CLOSED] = 0,
};

static void set_state(struct lien_channel *channel, enum lieni_channel_state state)
{
    static const char *const names[] = {"waiting", "connecting", "open", "closing", "closed"};
    if (!(may_enter[channel->state] & TO(state)))
        abort();
    lieni_log_say(channel->ctx->log, LIEN_LOG_DEBUG, NULL, 0, "channel to %s: %s -> %s",
                  channel->addresses[0], names[channel->state], names[state]);
    channel->state = state;
    lieni_ctx_changed(channel->ctx);
}

static bool is_closed(const struct lien_channel *channel)
{
    return channel->state == LIENI_CHANNEL_CLOSING || channel->state == LIENI_CHANNEL_CLOSED;
}

void lieni_channel_kick(struct lien_channel *channel)
{
    if (!lieni_node_in(&channel->work))
        lieni_list_append(&channel->ctx->channel_work, &channel->work);
    lieni_ctx_wake(channel->ctx);
}

// -- References --

static void channel_free(struct lien_channel *channel)
{
    for (uint32_t i = 0; channel->addresses && i < channel->n_addresses; i++)
        free(channel->addresses[i]);
    free(channel->addresses);
    free(channel);
}

void lieni_channel_unref(struct lien_channel *channel)
{
    if (--channel->refs > 0)
        return;
    lieni_list_remove(&channel->work);
    lieni_pool_unref(channel->conn_opts.pool);
    channel_free(channel);
}

static void link_unref(struct lieni_channel_link *link)
{
    struct lien_channel *channel = link->channel;
    if (--link->refs > 0)
        return;
    lieni_list_remove(&link->node);
    channel->n_links--;
    lieni_channel_kick(channel); // an attempt may have waited for it
    free(link);
    lieni_channel_unref(channel);
}

// -- What the application hears --

static void tell(struct lieni_channel_link *link, lien_channel_event event, int status)
{
    struct lien_channel *channel = link->channel;
    lien_ctx *ctx = channel->ctx;
    lieni_ctx_lock(ctx);
    bool listens = !is_closed(channel);
    lieni_ctx_unlock(ctx);
    if (listens)
        channel->opts.on_event(channel, event, link->address, status, channel->opts.arg);
    lieni_ctx_lock(ctx);
    link_unref(link);
    lieni_ctx_unlock(ctx);
}

static void run_up(struct lieni_task *task)
{
    tell(lieni_container(task, struct lieni_channel_link, up_task), LIEN_CHANNEL_CONNECTED, 0);
}

static void run_goaway(struct lieni_task *task)
{
    tell(lieni_container(task, struct lieni_channel_link, goaway_task), LIEN_CHANNEL_GOAWAY,
         LIEN_EOVERLOAD);
}

static void run_over(struct lieni_task *task)
{
    struct lieni_channel_link *link = lieni_container(task, struct lieni_channel_link, over_task);
    tell(link, link->up ? LIEN_CHANNEL_LOST : LIEN_CHANNEL_FAILED, link->status);
}

static void post(struct lieni_channel_link *link, struct lieni_task *task)
{
    if (!link->channel->opts.on_event || is_closed(link->channel))
        return;
    link->refs++;
    lieni_strand_post(link->channel->strand, task);
}

static void run_closed(struct lieni_task *task)
{
    struct lien_channel *channel = lieni_container(task, struct lien_channel, closed_task);
    lien_ctx *ctx = channel->ctx;
    if (!channel->no_closed && channel->opts.on_closed)
        channel->opts.on_closed(channel, channel->lost ? LIEN_EQUARANTINED : 0, channel->opts.arg);
    lieni_ctx_lock(ctx);
    channel->closed_done = true;
    lieni_strand_close(channel->strand); // nothing of it is posted any more
    channel->strand = NULL;
    lieni_timer_fini(&ctx->timers, &channel->timer);
    lieni_list_remove(&channel->node);
    lieni_ctx_changed(ctx);
    lieni_channel_unref(channel); // its life
    lieni_ctx_unlock(ctx);
}

// Its last callback is due once nothing of it is left.
static void settle(struct lien_channel *channel)
{
    if (channel->state != LIENI_CHANNEL_CLOSING || channel->n_conns > 0 || channel->n_calls > 0)
        return;
    set_state(channel, LIENI_CHANNEL_CLOSED);
    lieni_strand_post(channel->strand, &channel->closed_task);
}

void lieni_channel_call_over(struct lien_channel *channel)
{
    channel->n_calls--;
    settle(channel);
}

// -- When to try again --

// The most that the next wait may last, ns.
static uint64_t bound(const struct lien_channel *channel)
{
    uint64_t min = channel->opts.backoff_min_ms, max = channel->opts.backoff_max_ms;
    uint64_t ms = channel->failures < 32 ? min << channel->failures : max;
    return (ms < max ? ms : max) * LIENI_MS;
}

// A round begins after a wait: between 1 ms and the bound, drawn anew each time.
static void back_off(struct lien_channel *channel)
{
    lien_ctx *ctx = channel->ctx;
    uint64_t draw, most = bound(channel);
    ctx->platform.env.random(ctx->platform.env.self, &draw, sizeof(draw));
    uint64_t wait = LIENI_MS + (most > LIENI_MS ? draw % (most - LIENI_MS + 1) : 0);
    channel->tried = 0;
    if (channel->failures < UINT32_MAX)
        channel->failures++;
    lieni_timer_set(&ctx->timers, &channel->timer, lieni_ctx_now(ctx) + wait);
}

static void on_timer(struct lieni_timer *timer)
{
    lieni_channel_kick(lieni_container(timer, struct lien_channel, timer));
}

// `current` cannot be used any more. A connection that lived gives the next ones a fresh start.
static void leave(struct lien_channel *channel, bool at_once)
{
    uint64_t lived = channel->state == LIENI_CHANNEL_OPEN
                         ? lieni_ctx_now(channel->ctx) - channel->opened
                         : 0;
    bool was_open = channel->state == LIENI_CHANNEL_OPEN;
    channel->current = NULL;
    set_state(channel, LIENI_CHANNEL_WAITING);
    bool fresh = was_open && lived > bound(channel);
    if (fresh)
        channel->failures = 0;
    if (was_open && (!fresh || !at_once))
        back_off(channel);
    else if (was_open)
        channel->tried = 0;
    lieni_channel_kick(channel);
}

// -- Links --

static struct lieni_channel_link *link_new(struct lien_channel *channel, const char *address)
{
    struct lieni_channel_link *link = calloc(1, sizeof(*link));
    if (!link)
        return NULL;
    link->channel = channel;
    link->address = address;
    link->up_task.run = run_up;
    link->goaway_task.run = run_goaway;
    link->over_task.run = run_over;
    link->refs = 1;
    lieni_list_init(&link->node);
    lieni_list_append(&channel->links, &link->node);
    channel->n_links++;
    channel->refs++;
    return link;
}

// 0, or why not even an attempt began.
static int link_open(struct lien_channel *channel, const char *address)
{
    struct lieni_channel_link *link = link_new(channel, address);
    if (!link)
        return LIEN_ENOMEM;
    channel->attempts++;
    channel->ctx->stats.channel_attempts++;
    int rc = lieni_conn_open_locked(channel->ctx, address, &channel->conn_opts, true, &link->conn);
    if (rc != 0) {
        link->status = rc;
        post(link, &link->over_task);
        link_unref(link);
        return rc;
    }
    link->conn->channel = link;
    channel->n_conns++;
    channel->current = link;
    return 0;
}

static void attempt(struct lien_channel *channel)
{
    while (channel->tried < channel->n_addresses) {
        if (channel->n_links >= LIENI_CHANNEL_LINKS)
            return; // goes on when one is over
        const char *address = channel->addresses[channel->next];
        channel->next = (channel->next + 1) % channel->n_addresses;
        channel->tried++;
        if (link_open(channel, address) == 0) {
            set_state(channel, LIENI_CHANNEL_CONNECTING);
            return;
        }
    }
    back_off(channel);
}

void lieni_channel_up(struct lieni_channel_link *link)
{
    struct lien_channel *channel = link->channel;
    if (channel->current != link)
        return;
    link->up = true;
    channel->opened = lieni_ctx_now(channel->ctx);
    set_state(channel, LIENI_CHANNEL_OPEN);
    post(link, &link->up_task);
    lieni_channel_kick(channel);
}

void lieni_channel_down(struct lieni_channel_link *link, int status)
{
    struct lien_channel *channel = link->channel;
    link->over = true;
    link->status = status;
    if (!link->shut)
        post(link, &link->over_task);
    if (channel->current == link)
        leave(channel, false);
    lieni_channel_kick(channel);
}

void lieni_channel_goaway(struct lieni_channel_link *link)
{
    struct lien_channel *channel = link->channel;
    link->old = true;
    post(link, &link->goaway_task);
    if (channel->current == link)
        leave(channel, true);
    lieni_channel_kick(channel);
}

void lieni_channel_closed(struct lieni_channel_link *link)
{
    struct lien_channel *channel = link->channel;
    channel->lost = channel->lost || link->conn->lost;
    link->conn->channel = NULL;
    link->conn = NULL;
    channel->n_conns--;
    settle(channel);
    link_unref(link);
}

void lieni_channel_room(struct lieni_channel_link *link)
{
    if (link->old || (link->channel->n_waiting > 0 && link->channel->current == link))
        lieni_channel_kick(link->channel);
}

// Nothing of ours or of the peer's runs on it.
static bool idle(const struct lien_conn *conn)
{
    return lieni_list_empty(&conn->calls.all) && lieni_list_empty(&conn->calls.requests);
}

// Connections that ended, old ones without work, and all of a closed channel are closed.
static void shut_links(struct lien_channel *channel)
{
    struct lieni_node *next;
    for (struct lieni_node *n = channel->links.next; n != &channel->links; n = next) {
        struct lieni_channel_link *link = lieni_container(n, struct lieni_channel_link, node);
        next = n->next;
        if (!link->conn || link->shut)
            continue;
        if (!link->over && !is_closed(channel) && !(link->old && idle(link->conn)))
            continue;
        link->shut = true;
        lieni_conn_close_handle(link->conn);
    }
}

void lieni_channel_work(struct lien_channel *channel)
{
    shut_links(channel);
    switch (channel->state) {
    case LIENI_CHANNEL_WAITING:
        if (!lieni_timer_is_set(&channel->timer))
            attempt(channel);
        break;
    case LIENI_CHANNEL_OPEN:
        lieni_channel_send(channel);
        break;
    case LIENI_CHANNEL_CONNECTING:
    case LIENI_CHANNEL_CLOSING:
    case LIENI_CHANNEL_CLOSED:
        break;
    }
}

// -- Opening and closing --

static int copy_opts(const lien_ctx *ctx, const lien_channel_opts *in, struct lien_channel *channel)
{
    lien_channel_opts *opts = &channel->opts;
    lien_channel_opts_init(opts);
    int rc = in ? lieni_opts_copy(opts, sizeof(*opts), in, in->size) : 0;
    if (rc == 0)
        rc = lieni_conn_opts_check(ctx, opts->conn, &channel->conn_opts);
    opts->conn = NULL; // the caller's: copied
    if (rc != 0)
        return rc;
    const lien_conn_opts *c = &channel->conn_opts;
    if (c->on_open || c->on_writable || c->on_lost || c->on_closed || c->on_goaway || c->on_drained)
        return LIEN_EINVAL;
    if (opts->backoff_min_ms == 0)
        opts->backoff_min_ms = (uint32_t)ctx->options.backoff_min_ms;
    if (opts->backoff_max_ms == 0)
        opts->backoff_max_ms = (uint32_t)ctx->options.backoff_max_ms;
    if (opts->queue_max == 0)
        opts->queue_max = (uint32_t)ctx->options.channel_queue;
    if (opts->backoff_max_ms >= opts->backoff_min_ms)
        return 0;
    lieni_log_say(ctx->log, LIEN_LOG_ERROR, NULL, LIEN_EINVAL,
                  "backoff_max_ms is %u and must be at least backoff_min_ms, which is %u",
                  opts->backoff_max_ms, opts->backoff_min_ms);
    return LIEN_EINVAL;
}

static int copy_addresses(struct lien_channel *channel, const char *const *addresses, size_t n)
{
    channel->addresses = calloc(n, sizeof(*channel->addresses));
    if (!channel->addresses)
        return LIEN_ENOMEM;
    for (; channel->n_addresses < n; channel->n_addresses++) {
        const char *address = addresses[channel->n_addresses];
        size_t len = address ? strnlen(address, 256) : 0;
        if (len == 0 || len > 255)
            return LIEN_EINVAL;
        channel->addresses[channel->n_addresses] = strdup(address);
        if (!channel->addresses[channel->n_addresses])
            return LIEN_ENOMEM;
    }
    return 0;
}

static int open_locked(struct lien_channel *channel)
{
    lien_ctx *ctx = channel->ctx;
    int rc = ctx->closing ? LIEN_ESTATE : 0;
    if (rc == 0)
        rc = lieni_timer_init(&ctx->timers, &channel->timer, on_timer);
    if (rc != 0)
        return rc;
    rc = lieni_strand_open(ctx->dispatch, (channel->conn_opts.flags & LIEN_INLINE) != 0,
                           &channel->strand);
    if (rc != 0) {
        lieni_timer_fini(&ctx->timers, &channel->timer);
        return rc;
    }
    channel->refs = 2; // handle, life
    lieni_pool_ref(channel->conn_opts.pool);
    lieni_list_append(&ctx->channels, &channel->node);
    lieni_channel_kick(channel);
    return 0;
}

int lien_channel_open(lien_ctx *ctx, const char *const *addresses, size_t n,
                      const lien_channel_opts *opts, lien_channel **out)
{
    if (!ctx || !addresses || n == 0 || n > LIEN_ADDRESSES_MAX || !out)
        return LIEN_EINVAL;
    struct lien_channel *channel = calloc(1, sizeof(*channel));
    if (!channel)
        return LIEN_ENOMEM;
    channel->ctx = ctx;
    channel->closed_task.run = run_closed;
    lieni_list_init(&channel->node);
    lieni_list_init(&channel->work);
    lieni_list_init(&channel->links);
    lieni_list_init(&channel->waiting);
    int rc = copy_opts(ctx, opts, channel);
    if (rc == 0)
        rc = copy_addresses(channel, addresses, n);
    lieni_ctx_lock(ctx);
    if (rc == 0)
        rc = open_locked(channel);
    if (rc == 0)
        *out = channel;
    lieni_ctx_unlock(ctx);
    if (rc != 0)
        channel_free(channel);
    return rc;
}

void lieni_channel_close_locked(struct lien_channel *channel)
{
    if (is_closed(channel))
        return;
    channel->current = NULL;
    set_state(channel, LIENI_CHANNEL_CLOSING);
    lieni_timer_clear(&channel->ctx->timers, &channel->timer);
    lieni_channel_drop(channel);
    shut_links(channel);
    settle(channel);
    lieni_channel_unref(channel); // the handle's; its life goes on
}

int lien_channel_close(lien_channel **slot)
{
    if (!slot || !*slot)
        return LIEN_EINVAL;
    struct lien_channel *channel = *slot;
    lien_ctx *ctx = channel->ctx;
    lieni_ctx_lock(ctx);
    *slot = NULL;
    lieni_channel_close_locked(channel);
    lieni_ctx_unlock(ctx);
    return 0;
}

int lien_channel_close_wait(lien_channel **slot, uint32_t timeout_ms)
{
    if (!slot || !*slot)
        return LIEN_EINVAL;
    struct lien_channel *channel = *slot;
    lien_ctx *ctx = channel->ctx;
    int rc = lieni_ctx_outside(ctx);
    if (rc != 0)
        return rc;
    lieni_ctx_lock(ctx);
    *slot = NULL;
    channel->no_closed = true;
    channel->refs++; // to look at it afterwards
    lieni_channel_close_locked(channel);
    uint64_t deadline = lieni_ctx_deadline(ctx, timeout_ms);
    while (!channel->closed_done && rc == 0)
        rc = timeout_ms == 0 ? LIEN_ETIMEDOUT : lieni_ctx_wait_locked(ctx, deadline);
    if (channel->closed_done)
        rc = channel->lost ? LIEN_EQUARANTINED : 0;
    lieni_channel_unref(channel);
    lieni_ctx_unlock(ctx);
    return rc;
}

int lien_channel_info_get(lien_channel *channel, lien_channel_info *info)
{
    if (!channel || !info || info->size < sizeof(info->size))
        return LIEN_EINVAL;
    lien_channel_info now = {.size = info->size};
    lieni_ctx_lock(channel->ctx);
    now.connected = channel->state == LIENI_CHANNEL_OPEN;
    now.calls_waiting = channel->n_waiting;
    now.calls_running = channel->n_running;
    for (struct lieni_node *n = channel->links.next; n != &channel->links; n = n->next) {
        const struct lieni_channel_link *link = lieni_container(n, struct lieni_channel_link, node);
        now.conns_old += link->old && link->conn;
    }
    now.failures = channel->failures;
    now.attempts = channel->attempts;
    now.resent = channel->resent;
    if (channel->current)
        strncpy(now.address, channel->current->address, sizeof(now.address) - 1);
    lieni_ctx_unlock(channel->ctx);
    memcpy(info, &now, info->size < sizeof(now) ? info->size : sizeof(now));
    return 0;
}
