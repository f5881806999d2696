// SPDX-License-Identifier: Apache-2.0
//
// Whether a connection lives: heartbeats by one timer for all (none where frames flow), the READ watchdog (R21), and posts that the provider's full queue
// refused, tried again for a bounded time. Signs of life are frames received and READs completed; a send's completion is none, since a frozen peer's
// kernel or NIC takes it. Under the state lock.

#include "core/conn.h"
#include "core/read.h"

#define RETRY_FIRST (1 * LIENI_MS)
#define RETRY_MOST  (64 * LIENI_MS)

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void schedule(lien_ctx *ctx, uint64_t now)
{
    if (ctx->beat_every && !lieni_timer_is_set(&ctx->beat))
        lieni_timer_set(&ctx->timers, &ctx->beat, now + ctx->beat_every);
}

// How often the common timer must look at this connection.
static uint64_t look_every(const struct lien_conn *conn)
{
    uint64_t every = UINT64_MAX;
    if (conn->beat_every)
        every = conn->beat_every;
    if (conn->dead_after)
        every = least(every, conn->dead_after / 4);
    return every;
}

void lieni_liveness_open(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    uint64_t now = lieni_ctx_now(ctx), every = look_every(conn);
    conn->last_rx = now;
    conn->last_tx = now;
    conn->last_read = now;
    if (every == UINT64_MAX)
        return;
    if (ctx->beat_every == 0 || every < ctx->beat_every) {
        ctx->beat_every = every;
        lieni_timer_clear(&ctx->timers, &ctx->beat);
    }
    schedule(ctx, now);
}

static void look(struct lien_conn *conn, uint64_t now)
{
    // Half a period early rather than one late: the timer ticks for all at once.
    if (conn->beat_every && now - conn->last_tx + conn->ctx->beat_every / 2 >= conn->beat_every) {
        conn->link.beat_due = true;
        lieni_link_pump(conn);
    }
    if (conn->dead_after && now - conn->last_rx >= conn->dead_after)
        lieni_conn_lose(conn, LIEN_EPEERLOST, "the peer was not heard of for dead_ms");
}

void lieni_liveness_beat(struct lieni_timer *timer)
{
    lien_ctx *ctx = lieni_container(timer, lien_ctx, beat);
    uint64_t now = lieni_ctx_now(ctx), every = UINT64_MAX;
    struct lieni_node *next;
    for (struct lieni_node *n = ctx->conns.next; n != &ctx->conns; n = next) {
        struct lien_conn *conn = lieni_container(n, struct lien_conn, node);
        next = n->next;
        if (conn->state != LIENI_CONN_OPEN)
            continue;
        every = least(every, look_every(conn));
        lieni_conn_ref(conn);
        look(conn, now);
        lieni_conn_unref(conn);
    }
    ctx->beat_every = every == UINT64_MAX ? 0 : every;
    schedule(ctx, now);
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
    conn->last_read = lieni_ctx_now(conn->ctx);
    conn->last_rx = conn->last_read;
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
}
