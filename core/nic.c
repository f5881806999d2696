// SPDX-License-Identifier: Apache-2.0
//
// See nic.h.

#include "core/nic.h"

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

int lieni_nic_get(lien_ctx *ctx, const struct lieni_prov_slot *slot, const char *host,
                  struct lieni_nic **out)
{
    struct lieni_nic *nic = find(ctx, slot->ops, host);
    if (!nic) {
        nic = calloc(1, sizeof(*nic));
        if (!nic)
            return LIEN_ENOMEM;
        nic->ctx = ctx;
        nic->ops = slot->ops;
        strncpy(nic->host, host, sizeof(nic->host) - 1);
        int rc = slot->ops->domain_open(slot->prov, host, &nic->domain);
        if (rc != 0) {
            free(nic);
            return rc;
        }
        slot->ops->domain_limits(nic->domain, &nic->limits);
        nic->retiring = slot->ops->traits->domain_per_conn;
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

void lieni_nic_quarantined(struct lieni_nic *nic)
{
    lien_ctx *ctx = nic->ctx;
    // At the cap new connections get a new domain; and a domain without endpoints can be ended now, which may be the proof.
    if (ctx->quarantine.bytes >= ctx->options.quarantine_total_bytes || nic->endpoints <= 1)
        nic->retiring = true;
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
    lieni_quarantine_ended(&ctx->quarantine, nic->domain, proven);
    lieni_list_remove(&nic->node);
    free(nic);
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
