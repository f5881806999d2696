// SPDX-License-Identifier: Apache-2.0
//
// Whether a connection lives: heartbeats by one timer for all (none where frames flow), the READ watchdog (R21), and posts that the provider's full queue
// refused, tried again for a bounded time. Signs of life are frames received and READs completed; a send's completion is none, since a frozen peer's
// kernel or NIC takes it. Under the state lock.
//
// A BEAT asks, ALIVE answers. A connection that something depends on (reads, grants, sends, messages, calls) and that is silent for heartbeat_ms is asked itself. Those that are idle vouch
// for each other: of all connections to one remote ctx one is asked, in turn, after twice that silence, so that a thousand idle connections cost no more than one; when half of dead_ms
// passed without an answer all are asked. A connection asked without an answer for dead_ms is lost, and with a peer that answers on none all of its are.
//
// Wakeups are what an idle ctx pays for, so one timer looks at everything (but for idle connections, which are not touched), only when the first thing is due, and takes along what is due within a quarter of its time. Of two contexts
// that accepted nothing but from each other the accepting one asks; the other waits a quarter longer, and being asked does its look in that same wakeup.

#include <stdlib.h>
#include <string.h>

#include "core/conn.h"
#include "core/read.h"

#define RETRY_FIRST (1 * LIENI_MS)
#define RETRY_MOST  (64 * LIENI_MS)

// A remote ctx.
struct lieni_peer {
    struct lieni_node node; // ctx->peers
    uint8_t instance[16];
    struct lieni_node conns; // by group_node; the first is the next to be asked
    bool ours;               // we accepted one of them: it is on us to ask first
    uint64_t last_rx;        // on any of them
    uint64_t asked;          // since when no answer came; 0: none is awaited
    bool asked_all;
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// How long ago, for a time that may have been set after `now` was taken.
static uint64_t since(uint64_t now, uint64_t then)
{
    return now > then ? now - then : 0;
}

static uint64_t dead_after(const lien_ctx *ctx)
{
    return ctx->options.dead_ms * LIENI_MS;
}

static uint64_t busy_after(const lien_ctx *ctx)
{
    return ctx->options.heartbeat_ms * LIENI_MS;
}

static uint64_t idle_after(const lien_ctx *ctx)
{
    return least(2 * busy_after(ctx), dead_after(ctx) / 2);
}

static struct lieni_peer *peer_get(lien_ctx *ctx, const uint8_t *instance)
{
    struct lieni_peer *peer;
    for (struct lieni_node *n = ctx->peers.next; n != &ctx->peers; n = n->next) {
        peer = lieni_container(n, struct lieni_peer, node);
        if (memcmp(peer->instance, instance, sizeof(peer->instance)) == 0)
            return peer;
    }
    peer = calloc(1, sizeof(*peer));
    if (!peer)
        return NULL;
    memcpy(peer->instance, instance, sizeof(peer->instance));
    lieni_list_init(&peer->conns);
    lieni_list_append(&ctx->peers, &peer->node);
    return peer;
}

int lieni_liveness_open(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    struct lieni_peer *peer = peer_get(ctx, conn->peer_instance);
    if (!peer)
        return LIEN_ENOMEM;
    conn->group = peer;
    conn->last_read = lieni_ctx_now(ctx);
    lieni_list_append(&peer->conns, &conn->group_node);
    peer->ours = peer->ours || conn->server;
    lieni_liveness_heard(conn);
    if (ctx->options.heartbeat_ms != 0 && !lieni_timer_is_set(&ctx->beat))
        lieni_timer_set(&ctx->timers, &ctx->beat, conn->last_rx + busy_after(ctx));
    return 0;
}

void lieni_liveness_close(struct lien_conn *conn)
{
    struct lieni_peer *peer = conn->group;
    if (!peer)
        return;
    conn->group = NULL;
    lieni_list_remove(&conn->group_node);
    lieni_list_remove(&conn->watch_node);
    if (!lieni_list_empty(&peer->conns))
        return;
    lieni_list_remove(&peer->node);
    free(peer);
}

void lieni_liveness_heard(struct lien_conn *conn)
{
    struct lieni_peer *peer = conn->group;
    conn->last_rx = lieni_ctx_now(conn->ctx);
    conn->asked = 0;
    if (!peer)
        return;
    peer->last_rx = conn->last_rx;
    peer->asked = 0;
    peer->asked_all = false;
}

void lieni_liveness_watch(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    if (!conn->group)
        return;
    if (!lieni_node_in(&conn->watch_node))
        lieni_list_append(&ctx->watched, &conn->watch_node);
    if (!ctx->beat_far)
        return;
    ctx->beat_far = false;
    if (lieni_timer_is_set(&ctx->beat))
        lieni_timer_set(&ctx->timers, &ctx->beat,
                        least(ctx->beat.when, lieni_ctx_now(ctx) + busy_after(ctx)));
}

void lieni_liveness_ask(struct lien_conn *conn)
{
    uint64_t now = lieni_ctx_now(conn->ctx);
    if (conn->asked == 0)
        conn->asked = now;
    if (conn->group && conn->group->asked == 0)
        conn->group->asked = now;
    lieni_liveness_watch(conn);
    conn->link.beat_due = true;
    lieni_link_pump(conn);
}

// Whether somebody waits for what this connection should bring.
static bool depended_on(const struct lien_conn *conn)
{
    return conn->n_grants > 0 || !lieni_list_empty(&conn->reads) ||
           !lieni_list_empty(&conn->sends) || !lieni_list_empty(&conn->inbox) ||
           !lieni_list_empty(&conn->calls.all) || !lieni_list_empty(&conn->calls.writes);
}

// Whether a silence has lasted for `limit`, or will have within a quarter of it: one look then serves both.
static bool silent(uint64_t now, uint64_t last_rx, uint64_t limit)
{
    return since(now, last_rx) >= limit - limit / 4;
}

static void look(struct lien_conn *conn, uint64_t now)
{
    lien_ctx *ctx = conn->ctx;
    if (conn->asked != 0 && since(now, conn->asked) >= dead_after(ctx))
        lieni_conn_lose(conn, LIEN_EPEERLOST, "the peer was not heard of for dead_ms");
    else if (depended_on(conn) && silent(now, conn->last_rx, busy_after(ctx)))
        lieni_liveness_ask(conn);
    else if (conn->asked == 0 && !depended_on(conn))
        lieni_list_remove(&conn->watch_node);
}

static struct lien_conn *at(struct lieni_node *n)
{
    return lieni_container(n, struct lien_conn, group_node);
}

static void ask_all(struct lieni_peer *peer)
{
    struct lieni_node *next;
    peer->asked_all = true;
    for (struct lieni_node *n = peer->conns.next; n != &peer->conns; n = next) {
        next = n->next;
        lieni_liveness_ask(at(n)); // a refused post may end it: `next` is another one
    }
}

static void lose_all(struct lieni_peer *peer)
{
    struct lieni_node *n;
    bool more;
    do { // the last one takes the peer along
        n = lieni_list_first(&peer->conns);
        more = peer->conns.prev != n;
        lieni_conn_lose(at(n), LIEN_EPEERLOST, "the peer was not heard of for dead_ms");
    } while (more);
}

// The silence after which one of its idle connections is asked: longer where the peer should ask.
static uint64_t patience(const lien_ctx *ctx, const struct lieni_peer *peer)
{
    uint64_t idle = idle_after(ctx);
    return peer->ours ? idle : idle + idle / 4;
}

static void look_at_peer(lien_ctx *ctx, struct lieni_peer *peer, uint64_t now)
{
    if (peer->asked != 0 && since(now, peer->asked) >= dead_after(ctx)) {
        lose_all(peer);
        return;
    }
    if (peer->asked != 0 && since(now, peer->asked) >= dead_after(ctx) / 2) {
        if (!peer->asked_all)
            ask_all(peer);
        return;
    }
    if (!silent(now, peer->last_rx, patience(ctx, peer)))
        return;
    struct lieni_node *n = lieni_list_pop(&peer->conns);
    lieni_list_append(&peer->conns, n);
    lieni_liveness_ask(at(n));
}

// When a silence that began at `last_rx` is to be looked at; one that an answer is awaited of, again after `limit`.
static uint64_t due(uint64_t now, uint64_t last_rx, uint64_t asked, uint64_t limit)
{
    uint64_t at = (asked != 0 ? now : last_rx) + limit;
    return at > now + limit / 4 ? at : now + limit / 4;
}

// The first time at which anything can be due that is known now.
static uint64_t next_look(const lien_ctx *ctx, uint64_t now)
{
    uint64_t next = UINT64_MAX, dead = dead_after(ctx);
    for (struct lieni_node *n = ctx->watched.next; n != &ctx->watched; n = n->next) {
        const struct lien_conn *conn = lieni_container(n, struct lien_conn, watch_node);
        if (conn->state != LIENI_CONN_OPEN)
            continue;
        if (conn->asked != 0)
            next = least(next, conn->asked + dead);
        if (depended_on(conn))
            next = least(next, due(now, conn->last_rx, conn->asked, busy_after(ctx)));
    }
    for (struct lieni_node *n = ctx->peers.next; n != &ctx->peers; n = n->next) {
        const struct lieni_peer *peer = lieni_container(n, struct lieni_peer, node);
        next = least(next, due(now, peer->last_rx, peer->asked, patience(ctx, peer)));
        if (peer->asked != 0)
            next = least(next, peer->asked + (peer->asked_all ? dead : dead / 2));
    }
    return next;
}

void lieni_liveness_beat(struct lieni_timer *timer)
{
    lien_ctx *ctx = lieni_container(timer, lien_ctx, beat);
    uint64_t now = lieni_ctx_now(ctx);
    struct lieni_node *next;
    for (struct lieni_node *n = ctx->watched.next; n != &ctx->watched; n = next) {
        struct lien_conn *conn = lieni_container(n, struct lien_conn, watch_node);
        next = n->next;
        if (conn->state == LIENI_CONN_OPEN)
            look(conn, now);
    }
    for (struct lieni_node *n = ctx->peers.next; n != &ctx->peers; n = next) {
        next = n->next;
        look_at_peer(ctx, lieni_container(n, struct lieni_peer, node), now);
    }
    if (lieni_list_empty(&ctx->peers))
        return;
    uint64_t when = next_look(ctx, now);
    ctx->beat_far = when > now + busy_after(ctx);
    lieni_timer_set(&ctx->timers, timer, when);
}

void lieni_liveness_was_asked(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    uint64_t now = lieni_ctx_now(ctx);
    if (lieni_timer_is_set(&ctx->beat) && ctx->beat.when < now + idle_after(ctx) / 2)
        lieni_timer_set(&ctx->timers, &ctx->beat, least(ctx->beat.when, now));
}

// -- READ watchdog --

void lieni_liveness_read_posted(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    if (conn->reads_outstanding > 1)
        return;
    conn->last_read = lieni_ctx_now(ctx);
    if (!lieni_timer_is_set(&conn->watchdog))
        lieni_timer_set(&ctx->timers, &conn->watchdog,
                        conn->last_read + ctx->options.read_watchdog_ms * LIENI_MS);
}

void lieni_liveness_read_over(struct lien_conn *conn, bool ok)
{
    if (!ok)
        return;
    lieni_liveness_heard(conn);
    conn->last_read = conn->last_rx;
}

void lieni_liveness_watchdog(struct lieni_timer *timer)
{
    struct lien_conn *conn = lieni_container(timer, struct lien_conn, watchdog);
    lien_ctx *ctx = conn->ctx;
    if (conn->reads_outstanding == 0)
        return; // set again by the next post
    uint64_t due = conn->last_read + ctx->options.read_watchdog_ms * LIENI_MS;
    if (lieni_ctx_now(ctx) < due)
        lieni_timer_set(&ctx->timers, timer, due);
    else
        lieni_conn_lose(conn, LIEN_EPEERLOST,
                        "READs are outstanding and none completed for read_watchdog_ms");
}

// -- Posts to be tried again --

void lieni_liveness_again(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    uint64_t now = lieni_ctx_now(ctx);
    if (lieni_timer_is_set(&conn->retry))
        return;
    if (conn->retry_since == 0) {
        conn->retry_since = now;
        conn->retry_wait = RETRY_FIRST;
    }
    lieni_timer_set(&ctx->timers, &conn->retry, now + conn->retry_wait);
    conn->retry_wait = least(conn->retry_wait * 2, RETRY_MOST);
}

void lieni_liveness_posted(struct lien_conn *conn)
{
    conn->retry_since = 0;
}

void lieni_liveness_retry(struct lieni_timer *timer)
{
    struct lien_conn *conn = lieni_container(timer, struct lien_conn, retry);
    lien_ctx *ctx = conn->ctx;
    if (conn->retry_since != 0 &&
        lieni_ctx_now(ctx) - conn->retry_since >= ctx->options.read_watchdog_ms * LIENI_MS) {
        lieni_conn_lose(conn, LIEN_EPEERLOST, "the provider took no work for read_watchdog_ms");
        return;
    }
    lieni_link_pump(conn);
    lieni_nic_want_reads(conn);
    if (conn->nic)
        lieni_nic_pump(conn->nic);
    if (!lieni_timer_is_set(&conn->retry))
        conn->retry_since = 0; // nothing is refused any more: what waited may have been canceled
}
