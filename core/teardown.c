// SPDX-License-Identifier: Apache-2.0
//
// How a connection ends: operations are done at once, memory waits for evidence. The order is fixed (R17): no more posts, shutdown, bounded
// drain whose entries still count, destruction, proof; then everything is home, or in quarantine (R12). Under the state lock;
// endpoints are shut down and destroyed in progress context with the lock released.

#include "core/channel.h"
#include "core/conn.h"
#include "core/listener.h"
#include "core/message.h"
#include "core/read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static void leave_bootstrap(struct lien_conn *conn)
{
    if (conn->stream)
        conn->ctx->platform.net->stream_close(conn->stream);
    conn->stream = NULL;
    free(conn->hs);
    conn->hs = NULL;
    if (!conn->ep)
        lieni_conn_fabric_over(conn);
}

static void stop_timers(struct lien_conn *conn)
{
    struct lieni_timers *ts = &conn->ctx->timers;
    lieni_timer_clear(ts, &conn->timer);
    lieni_timer_clear(ts, &conn->watchdog);
    lieni_timer_clear(ts, &conn->retry);
}

// The application, or the listener that would have given it to the application, hears of the end.
static void tell(struct lien_conn *conn)
{
    if (conn->channel)
        lieni_channel_down(conn->channel, conn->status);
    if (!conn->was_open) {
        if (conn->has_handle && !conn->quiet)
            lieni_conn_post(conn, &conn->open_task);
    } else if (conn->has_handle && conn->opts.on_lost) {
        lieni_conn_post(conn, &conn->lost_task);
    }
    if (!conn->listener)
        return;
    if (lieni_node_in(&conn->listen_node)) {
        lieni_list_remove(&conn->listen_node);
        conn->listener->n_waiting--;
        lieni_conn_unref(conn); // the queue's
    }
    lieni_listener_unref(conn->listener);
    conn->listener = NULL;
}

// -- Settling --

// What the endpoint's end did not prove: reads with pieces in flight are lost. Returns whether frames were outstanding, which
// loses the slab.
static bool abandon(struct lien_conn *conn)
{
    struct lieni_node *next;
    for (struct lieni_node *n = conn->reads.next; n != &conn->reads; n = next) {
        next = n->next;
        lieni_read_lost(lieni_container(n, struct lien_read, node));
    }
    bool slab = false;
    enum lieni_wr_kind kind;
    void *owner;
    while (lieni_wrs_abandon(&conn->wrs, &kind, &owner)) {
        slab = slab || kind != LIENI_WR_READ;
        if (kind == LIENI_WR_SEND)
            lieni_link_send_lost(conn, owner);
    }
    return slab;
}

static void spend(struct lien_conn *conn, struct lieni_evidence *ev)
{
    if (ev->kind == LIENI_WR_READ)
        lieni_read_on_evidence(conn, ev);
    else
        lieni_link_on_evidence(conn, ev);
}

static void settle_memory(struct lien_conn *conn, enum lieni_proof proof)
{
    lien_ctx *ctx = conn->ctx;
    struct lieni_nic *nic = conn->nic;
    if (!conn->ops->traits->ep_end_proves)
        proof = LIENI_UNKNOWN;
    struct lieni_evidence ev;
    while (lieni_evidence_from_end(&conn->wrs, proof, &ev) == 0)
        spend(conn, &ev);
    lieni_list_remove(&conn->read_turn);
    nic->reads_inflight -=
        conn->reads_outstanding; // budget returns with the endpoint, memory with evidence
    bool slab = abandon(conn);
    lieni_grants_end(conn, proof == LIENI_PROVEN);
    lieni_link_close(conn, slab);
    lieni_wrs_close(&conn->wrs);
    if (conn->lost_bytes > 0) {
        conn->lost = true;
        struct lieni_log_at at = lieni_conn_at(conn, 0);
        lieni_log_say(ctx->log, LIEN_LOG_WARN, &at, LIEN_EQUARANTINED,
                      "teardown ended without proof: %llu bytes are in quarantine",
                      (unsigned long long)conn->lost_bytes);
    }
    lieni_nic_leave(conn, conn->lost_bytes);
    conn->nic = NULL;
    lieni_nic_endpoint_gone(nic);
    lieni_nic_pump(nic);
}

// Nothing of it is open any more.
static void gone(struct lien_conn *conn)
{
    lieni_conn_set_state(conn, LIENI_CONN_GONE);
    lieni_trace_ended(conn); // once more, with what the teardown brought
    stop_timers(conn);
    lieni_list_remove(&conn->work);
    if (conn->half_open) // until now: a peer that holds the fabric connection half-open holds a thread and the slab
        conn->ctx->half_open--;
    conn->half_open = false;
    conn->ctx->stats.conns_lost += conn->was_open && conn->status != LIEN_ECLOSED;
    if (!conn->has_handle)
        lieni_messages_drop(conn);
    lieni_conn_fabric_over(
        conn); // not sooner: until then a thread of the provider's may hang in it
    lieni_calls_gone(conn);
    lieni_pool_unref(conn->opts.pool);
    conn->opts.pool = NULL;
    if (conn->origin) {
        lieni_list_remove(&conn->member_node);
        lieni_listener_drain_step(conn->origin);
        lieni_listener_unref(conn->origin);
        conn->origin = NULL;
    }
    lieni_conn_closed(conn);
    lieni_conn_unref(conn); // its life
}

// -- The way there --

void lieni_conn_lose(struct lien_conn *conn, int status, const char *text)
{
    lien_ctx *ctx = conn->ctx;
    if (conn->state > LIENI_CONN_ENDING)
        return;
    if (conn->status == 0)
        conn->status = status;
    if (text) {
        char hint[LIENI_LIMITS_NOTE] = "";
        struct lieni_log_at at = lieni_conn_at(conn, 0);
        if (status == LIEN_ENOMEM)
            lieni_limits_note(ENOMEM, hint, sizeof(hint));
        lieni_log_say(ctx->log, LIEN_LOG_WARN, &at, status, "connection ends: %s%s", text, hint);
    }
    lieni_trace_text(conn->trace, LIENI_TRACE_ERROR, 0, 0, conn->status,
                     text ? text : "the connection ends", NULL);
    lieni_trace_ended(conn);
    stop_timers(conn);
    leave_bootstrap(conn);
    lieni_list_remove(&conn->read_turn);
    lieni_liveness_close(conn);
    if (conn->was_open)
        ctx->stats.conns_open--;
    if (conn->ep) {
        lieni_conn_set_state(conn, LIENI_CONN_DRAIN);
        lieni_timer_set(&ctx->timers, &conn->timer,
                        lieni_ctx_deadline(ctx, (uint32_t)ctx->options.drain_ms));
        lieni_reads_stop(conn, NULL, conn->status);
        lieni_messages_lost(conn, conn->status);
        lieni_calls_end(conn, conn->status, true);
        lieni_conn_kick(conn);
    }
    lieni_conn_ref(conn);
    tell(conn);
    if (!conn->ep)
        gone(conn);
    lieni_conn_unref(conn);
}

void lieni_conn_break(struct lien_conn *conn, int status, const char *text)
{
    if (conn->broken != 0 || conn->state > LIENI_CONN_ENDING)
        return;
    conn->broken = status;
    conn->broken_text = text;
    lieni_conn_kick(conn);
}

void lieni_conn_ending_step(struct lien_conn *conn)
{
    if (conn->state != LIENI_CONN_ENDING || conn->link.bye_due)
        return;
    if (!lieni_link_quiet(conn) || !lieni_list_empty(&conn->sends))
        return;
    conn->link.bye_due = true;
    lieni_link_pump(conn);
}

void lieni_conn_close_locked(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    if (conn->state < LIENI_CONN_OPEN) {
        lieni_conn_lose(conn, LIEN_ECLOSED, NULL);
        return;
    }
    if (conn->state != LIENI_CONN_OPEN)
        return;
    conn->status = LIEN_ECLOSED;
    lieni_conn_set_state(conn, LIENI_CONN_ENDING);
    lieni_timer_set(&ctx->timers, &conn->timer,
                    lieni_ctx_deadline(ctx, (uint32_t)ctx->options.linger_ms));
    lieni_reads_stop(conn, NULL, LIEN_ECLOSED);
    lieni_calls_end(conn, LIEN_ECLOSED, false);
    lieni_link_pump(conn);
    lieni_conn_ending_step(conn);
}

void lieni_conn_timer(struct lien_conn *conn)
{
    char text[96 + LIENI_LIMITS_NOTE], hint[LIENI_LIMITS_NOTE];
    switch (conn->state) {
    case LIENI_CONN_BOOT:
    case LIENI_CONN_FABRIC:
        snprintf(text, sizeof(text), "not open in time, stage: %s%s",
                 conn->state == LIENI_CONN_FABRIC ? "fabric connection"
                 : conn->hs                       ? "bootstrap handshake"
                                                  : "bootstrap connection",
                 lieni_limits_starved(hint, sizeof(hint)));
        lieni_conn_lose(conn, LIEN_ETIMEDOUT, text);
        break;
    case LIENI_CONN_ENDING:
        lieni_conn_lose(conn, LIEN_ECLOSED, NULL);
        break;
    case LIENI_CONN_DRAIN:
        lieni_conn_set_state(conn, LIENI_CONN_DESTROY);
        lieni_conn_kick(conn);
        break;
    case LIENI_CONN_DESTROY:
        lieni_conn_kick(conn);
        break;
    case LIENI_CONN_OPEN:
    case LIENI_CONN_GONE:
        break;
    }
}

static void shut_down(struct lien_conn *conn)
{
    if (conn->shutdown_done)
        return;
    conn->shutdown_done = true;
    lieni_ctx_unlock(conn->ctx);
    conn->ops->ep_shutdown(conn->ep);
    lieni_ctx_lock(conn->ctx);
}

static void drain(struct lien_conn *conn)
{
    shut_down(conn);
    if (lieni_wrs_outstanding(&conn->wrs) == 0 || !conn->was_open)
        lieni_conn_set_state(conn, LIENI_CONN_DESTROY);
}

static void destroy(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    enum lieni_proof proof = LIENI_UNKNOWN;
    uint64_t late = 0;
    if (conn->n_checks > 0)
        return; // a thread looks at memory of its reads: the last of them comes here again
    lieni_timer_clear(&ctx->timers, &conn->timer);
    shut_down(conn);           // a process that was stopped may come here by the timer alone
    lieni_wrs_end(&conn->wrs); // from here on entries prove nothing
    lieni_ctx_unlock(ctx);
    int rc = conn->ops->ep_destroy(conn->ep, &proof, &late);
    lieni_ctx_lock(ctx);
    if (rc == LIEN_EBUSY) {
        uint64_t wait = conn->destroy_wait ? conn->destroy_wait * 2 : 5 * LIENI_MS;
        conn->destroy_wait = wait < 1000 * LIENI_MS ? wait : 1000 * LIENI_MS;
        lieni_timer_set(&ctx->timers, &conn->timer, lieni_ctx_now(ctx) + conn->destroy_wait);
        return;
    }
    if (rc != 0)
        proof = LIENI_UNKNOWN;
    ctx->stats.evidence_unknown += conn->wrs.unknown;
    conn->wrs.unknown = 0; // counted once, though the connection may live on
    settle_memory(conn, proof);
    conn->ep = NULL;
    gone(conn);
}

void lieni_conn_work(struct lien_conn *conn)
{
    if (conn->broken != 0)
        lieni_conn_lose(conn, conn->broken, conn->broken_text);
    if (conn->state == LIENI_CONN_BOOT)
        lieni_conn_fabric_turn(conn);
    if (conn->room) {
        conn->room = false;
        lieni_nic_want_reads(conn);
    }
    lieni_link_pump(conn); // probes
    if (conn->state == LIENI_CONN_DRAIN)
        drain(conn);
    if (conn->state == LIENI_CONN_DESTROY)
        destroy(conn);
}

void lieni_conn_on_entry(struct lien_conn *conn, const struct lieni_cqe *cqe)
{
    struct lieni_evidence ev;
    if (!conn->ep || lieni_evidence_from_entry(&conn->wrs, cqe, &ev) != 0)
        return; // counted by the table
    spend(conn, &ev);
    if (conn->state == LIENI_CONN_DRAIN && lieni_wrs_outstanding(&conn->wrs) == 0)
        lieni_conn_kick(conn);
}

void lieni_conn_on_down(struct lien_conn *conn, int status)
{
    // An orderly peer says so first. In the middle of READs it is lost: where they fail before, as on tcp, their error says it.
    if (status == LIEN_ECLOSED && conn->reads_outstanding > 0)
        status = LIEN_EPEERLOST;
    if (conn->state == LIENI_CONN_ENDING)
        lieni_conn_lose(conn, LIEN_ECLOSED, NULL);
    else
        lieni_conn_lose(conn, status ? status : LIEN_EPEERLOST, "the endpoint is down");
}
