// SPDX-License-Identifier: Apache-2.0
//
// A NIC as one ctx uses it: a provider's domain, the endpoints in it, and the budget of READs in flight, shared fairly: connections with READs to
// post take turns, one piece a turn, and a connection with none in flight always gets one (design.md 6 "Budgets"). A NIC whose
// domain holds quarantined memory retires: no new connections, and its domain closes with its last endpoint (R12).
// Under the state lock; opened and closed in progress context.

#ifndef LIENI_NIC_H
#define LIENI_NIC_H

#include "core/ctx.h"

struct lieni_nic {
    struct lieni_node node; // ctx->nics
    lien_ctx *ctx;
    const struct lieni_provider *ops;
    struct lieni_domain *domain;
    struct lieni_limits limits; // of the domain
    char host[96];
    unsigned endpoints;
    uint32_t reads_inflight;
    bool retiring;
    bool leaving;                 // its regions are closed
    struct lieni_node read_turns; // connections with pieces to post
};

// The NIC for a local address, opened when there is none that takes connections. LIEN_ENODEV ...
int lieni_nic_get(lien_ctx *ctx, const struct lieni_prov_slot *slot, const char *host,
                  struct lieni_nic **nic);
// An endpoint of it is gone (or never was, `made` by lieni_nic_get).
void lieni_nic_endpoint_gone(struct lieni_nic *nic);
// Its domain holds lost memory: see R12.
void lieni_nic_quarantined(struct lieni_nic *nic);
// Closes what retires and has no endpoints left. Progress context.
void lieni_nics_reap(lien_ctx *ctx, bool all);
// A connection has pieces to post.
void lieni_nic_want_reads(struct lien_conn *conn);
// Posts what the budget allows.
void lieni_nic_pump(struct lieni_nic *nic);

#endif
