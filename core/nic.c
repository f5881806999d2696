// SPDX-License-Identifier: Apache-2.0
//
// See nic.h.

#include "core/nic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/conn.h"
#include "core/read.h"

static struct lieni_nic *find(lien_ctx *ctx, const struct lieni_provider *ops, const char *host)
{
    for (struct lieni_node *n = ctx->nics.next; n != &ctx->nics; n = n->next) {
        struct lieni_nic *nic = lieni_container(n, struct lieni_nic, node);
        if (nic->ops == ops && !nic->retiring && strcmp(nic->host, host) == 0)
            return nic;
    }
    return NULL;
}

unsigned lieni_nic_load(const lien_ctx *ctx, const struct lieni_provider *ops, const char *host)
{
    unsigned endpoints = 0;
    for (struct lieni_node *n = ctx->nics.next; n != &ctx->nics; n = n->next) {
        const struct lieni_nic *nic = lieni_container(n, struct lieni_nic, node);
        if (nic->ops == ops && strcmp(nic->host, host) == 0)
            endpoints += nic->endpoints;
    }
    return endpoints;
}

int lieni_nic_get(lien_ctx *ctx, const struct lieni_prov_slot *slot,
                  const struct lieni_selected *local, struct lieni_nic **out)
{
    const char *host = local->address;
    struct lieni_nic *nic = find(ctx, slot->ops, host);
    if (!nic) {
        nic = calloc(1, sizeof(*nic));
        if (!nic)
            return LIEN_ENOMEM;
        nic->ctx = ctx;
        nic->ops = slot->ops;
        snprintf(nic->host, sizeof(nic->host), "%s", host);
        memcpy(nic->name, local->nic, sizeof(nic->name));
        nic->soft = local->soft;
        int rc = slot->ops->domain_open(slot->prov, host, &nic->domain);
        if (rc != 0) {
            free(nic);
            return rc;
        }
        slot->ops->domain_limits(nic->domain, &nic->limits);
        nic->retiring = slot->ops->traits->domain_per_conn;
        lieni_quarantine_domain_init(&nic->account,
                                     slot->weak || !slot->ops->traits->ep_end_proves);
        lieni_list_init(&nic->read_turns);
        lieni_list_append(&ctx->nics, &nic->node);
    }
    nic->endpoints++;
    *out = nic;
    return 0;
}

void lieni_nic_endpoint_gone(struct lieni_nic *nic)
{
    nic->endpoints--;
    if (nic->endpoints == 0 && nic->retiring)
        lieni_ctx_wake(nic->ctx);
}

// -- R12 --

// Connections with READs that waited for room have their turn, in a pass of progress.
static void room_came(lien_ctx *ctx)
{
    struct lieni_node *n;
    while ((n = lieni_list_pop(&ctx->room_waits))) {
        struct lien_conn *conn = lieni_container(n, struct lien_conn, room_node);
        conn->room = true;
        lieni_conn_kick(conn);
    }
}

int lieni_nic_join(struct lien_conn *conn)
{
    return lieni_quarantine_join(&conn->ctx->quarantine, &conn->nic->account, conn->peer_host,
                                 &conn->share);
}

// The account gets full: new connections get a new domain, so that one that holds lost memory can end, which may be the proof.
static void retire(lien_ctx *ctx)
{
    for (struct lieni_node *n = ctx->nics.next; n != &ctx->nics; n = n->next) {
        struct lieni_nic *nic = lieni_container(n, struct lieni_nic, node);
        if (nic->account.lost > 0)
            nic->retiring = true;
    }
    lieni_ctx_wake(ctx);
}

// An end proved nothing: from now on what is lent through this provider counts before it is lost.
static void weaken(struct lieni_nic *nic)
{
    lien_ctx *ctx = nic->ctx;
    for (unsigned i = 0; i < ctx->n_provs; i++) {
        if (ctx->provs[i].ops == nic->ops)
            ctx->provs[i].weak = true;
    }
    for (struct lieni_node *n = ctx->nics.next; n != &ctx->nics; n = n->next) {
        struct lieni_nic *other = lieni_container(n, struct lieni_nic, node);
        if (other->ops == nic->ops)
            lieni_quarantine_weak(&ctx->quarantine, &other->account);
    }
}

void lieni_nic_leave(struct lien_conn *conn, uint64_t lost)
{
    struct lieni_nic *nic = conn->nic;
    struct lieni_quarantine *q = &conn->ctx->quarantine;
    struct lieni_quarantine_share *share = conn->share;
    if (!share)
        return;
    lieni_quarantine_unhold(q, share, conn->share_held);
    lieni_quarantine_unread(q, share, conn->share_reads);
    conn->share = NULL;
    lieni_list_remove(&conn->room_node);
    if (lost > 0) {
        lieni_quarantine_lose(q, share, lost);
        weaken(nic);
        if (q->sums.lost >= q->total_max / 2)
            retire(conn->ctx);
        if (nic->endpoints <= 1) // it can be ended now, which may be the proof
            nic->retiring = true;
    }
    lieni_quarantine_leave(q, share);
    room_came(conn->ctx);
}

static void say_full(struct lien_conn *conn, uint64_t bytes, bool now,
                     enum lieni_quarantine_room room, const char *what)
{
    const struct lieni_quarantine *q = &conn->ctx->quarantine;
    const bool peer = room == LIENI_ROOM_PEER;
    const struct lieni_quarantine_sums *sums = peer ? &conn->share->peer->sums : &q->sums;
    struct lieni_log_at at = lieni_conn_at(conn, 0);
    lieni_log_say(conn->ctx->log, LIEN_LOG_WARN, &at, LIEN_ELIMIT,
                  "%llu bytes %sare in quarantine, %llu are lent where no end proves that they are "
                  "back, and %llu more cannot be: the limit %s is %llu: %s are refused",
                  (unsigned long long)sums->lost, peer ? "of this peer " : "",
                  (unsigned long long)(sums->held + (now ? sums->reads : 0)),
                  (unsigned long long)bytes,
                  peer ? "quarantine_peer_bytes" : "quarantine_total_bytes",
                  (unsigned long long)(peer ? q->peer_max : q->total_max), what);
}

// `now`: as of lieni_quarantine_room().
static int may_lend(struct lien_conn *conn, uint64_t bytes, bool now, const char *what)
{
    if (!conn->share)
        return 0;
    enum lieni_quarantine_room room = lieni_quarantine_room(&conn->ctx->quarantine, conn->share,
                                                            bytes, now);
    if (room == LIENI_ROOM)
        return 0;
    say_full(conn, bytes, now, room, what);
    if (room == LIENI_ROOM_TOTAL)
        retire(conn->ctx);
    return LIEN_ELIMIT;
}

int lieni_nic_may_hold(struct lien_conn *conn, uint64_t bytes, const char *what)
{
    return conn->share && conn->share->domain->weak ? may_lend(conn, bytes, true, what) : 0;
}

int lieni_nic_may_read(struct lien_conn *conn, uint64_t bytes)
{
    return may_lend(conn, bytes, false, "READs");
}

void lieni_nic_hold(struct lien_conn *conn, uint64_t bytes)
{
    if (!conn->share)
        return;
    conn->share_held += bytes;
    lieni_quarantine_hold(&conn->ctx->quarantine, conn->share, bytes);
}

void lieni_nic_unhold(struct lien_conn *conn, uint64_t bytes)
{
    if (!conn->share)
        return;
    conn->share_held -= bytes;
    lieni_quarantine_unhold(&conn->ctx->quarantine, conn->share, bytes);
    room_came(conn->ctx);
}

int lieni_nic_read_room(struct lien_conn *conn, uint64_t bytes)
{
    const struct lieni_quarantine *q = &conn->ctx->quarantine;
    if (!conn->share || lieni_quarantine_room(q, conn->share, bytes, true) == LIENI_ROOM)
        return 0;
    if (lieni_nic_may_read(conn, bytes) != 0)
        return LIEN_ELIMIT;
    if (!lieni_node_in(&conn->room_node))
        lieni_list_append(&conn->ctx->room_waits, &conn->room_node);
    return LIEN_EAGAIN;
}

void lieni_nic_read(struct lien_conn *conn, uint64_t bytes)
{
    if (!conn->share)
        return;
    conn->share_reads += bytes;
    lieni_quarantine_read(&conn->ctx->quarantine, conn->share, bytes);
}

void lieni_nic_unread(struct lien_conn *conn, uint64_t bytes)
{
    if (!conn->share)
        return;
    conn->share_reads -= bytes;
    lieni_quarantine_unread(&conn->ctx->quarantine, conn->share, bytes);
    room_came(conn->ctx);
}

// The domain's end: the last proof there can be.
static bool end(struct lieni_nic *nic)
{
    lien_ctx *ctx = nic->ctx;
    if (!nic->leaving) {
        nic->leaving = true;
        unsigned failed = lieni_mem_domain_leaving(ctx->mem, nic->domain);
        if (failed)
            lieni_log_say(ctx->log, LIEN_LOG_WARN,
                          &(struct lieni_log_at){.provider = nic->ops->traits->name}, LIEN_EIO,
                          "%u regions did not close with their domain", failed);
    }
    enum lieni_proof proof = LIENI_UNKNOWN;
    int rc = nic->ops->domain_close(nic->domain, &proof);
    if (rc == LIEN_EBUSY)
        return false;
    bool proven = rc == 0 && proof == LIENI_PROVEN && nic->ops->traits->domain_end_proves;
    lieni_mem_domain_ended(ctx->mem, nic->domain, proven);
    lieni_quarantine_ended(&ctx->quarantine, &nic->account, proven);
    lieni_list_remove(&nic->node);
    free(nic);
    room_came(ctx);
    lieni_ctx_changed(ctx);
    return true;
}

void lieni_nics_reap(lien_ctx *ctx, bool all)
{
    struct lieni_node *next;
    for (struct lieni_node *n = ctx->nics.next; n != &ctx->nics; n = next) {
        struct lieni_nic *nic = lieni_container(n, struct lieni_nic, node);
        next = n->next;
        if (nic->endpoints == 0 && (nic->retiring || all))
            end(nic);
    }
}

void lieni_nic_want_reads(struct lien_conn *conn)
{
    struct lieni_nic *nic = conn->nic;
    if (!nic)
        return;
    // Its share: one in flight, whatever the budget.
    if (conn->reads_outstanding == 0 && lieni_read_post_one(conn) != LIENI_POSTED)
        return;
    if (!lieni_node_in(&conn->read_turn) && !lieni_list_empty(&conn->read_queue))
        lieni_list_append(&nic->read_turns, &conn->read_turn);
}

void lieni_nic_pump(struct lieni_nic *nic)
{
    while (nic->reads_inflight < nic->ctx->options.reads_per_nic) {
        struct lieni_node *n = lieni_list_pop(&nic->read_turns);
        if (!n)
            return;
        struct lien_conn *conn = lieni_container(n, struct lien_conn, read_turn);
        if (lieni_read_post_one(conn) == LIENI_POSTED && !lieni_list_empty(&conn->read_queue))
            lieni_list_append(&nic->read_turns, &conn->read_turn);
    }
}
