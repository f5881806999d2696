// SPDX-License-Identifier: Apache-2.0
//
// A NIC as one ctx uses it: a provider's domain, the endpoints in it, and the budget of READs in flight, shared fairly: connections with READs to
// post take turns, one piece a turn, and a connection with none in flight always gets one (design.md 6 "Budgets"). A NIC whose
// domain holds quarantined memory retires when the account of it gets full: no new connections, and its domain closes with its last endpoint (R12).
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
    char name[64]; // device and port, or interface; "" if not known
    bool soft;     // the device is software
    unsigned endpoints;
    uint32_t reads_inflight;
    struct lieni_quarantine_domain account;
    bool retiring;
    bool leaving;                 // its regions are closed
    struct lieni_node read_turns; // connections with pieces to post
};

// Endpoints on NICs of that local address.
unsigned lieni_nic_load(const lien_ctx *ctx, const struct lieni_provider *ops, const char *host);
// The NIC for a local address, opened when there is none that takes connections. LIEN_ENODEV ...
int lieni_nic_get(lien_ctx *ctx, const struct lieni_prov_slot *slot,
                  const struct lieni_selected *local, struct lieni_nic **nic);
// An endpoint of it is gone (or never was, `made` by lieni_nic_get).
void lieni_nic_endpoint_gone(struct lieni_nic *nic);
// -- R12: what is lent through an endpoint may be lost with it. For connections from the making of their endpoint to its end; no effect, and room, before and after --

// The connection's share in the account. LIEN_ENOMEM.
int lieni_nic_join(struct lien_conn *conn);
// `lost` bytes of it are in quarantine; all else is back.
void lieni_nic_leave(struct lien_conn *conn, uint64_t lost);
// Frames, held grants: whether so many bytes may be held. 0, or LIEN_ELIMIT after a log line with the option; `what`: "grants".
int lieni_nic_may_hold(struct lien_conn *conn, uint64_t bytes, const char *what);
void lieni_nic_hold(struct lien_conn *conn, uint64_t bytes);
void lieni_nic_unhold(struct lien_conn *conn, uint64_t bytes);
// The target of a READ, at its start: 0 or LIEN_ELIMIT, likewise. What runs is not looked at: it comes back.
int lieni_nic_may_read(struct lien_conn *conn, uint64_t bytes);
// The same before its first piece: 0; LIEN_EAGAIN: others' READs take up the room, and the connection's turn comes when one is back; LIEN_ELIMIT: there is none any more.
int lieni_nic_read_room(struct lien_conn *conn, uint64_t bytes);
void lieni_nic_read(struct lien_conn *conn, uint64_t bytes);
void lieni_nic_unread(struct lien_conn *conn, uint64_t bytes);

// Closes what retires and has no endpoints left. Progress context.
void lieni_nics_reap(lien_ctx *ctx, bool all);
// A connection has pieces to post.
void lieni_nic_want_reads(struct lien_conn *conn);
// Posts what the budget allows.
void lieni_nic_pump(struct lieni_nic *nic);

#endif
