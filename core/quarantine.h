// SPDX-License-Identifier: Apache-2.0
//
// Quarantine: the account of memory whose transfer could not be proved over, and of what may come to that (R12). The memory itself is kept out of use by its
// buffers' state (mem.h, LIENI_BUF_LOST); here is who it was lent to, how much, and when that is too much.
//
// A *share* is what one peer (a host) has through one domain; connections hold it from before their endpoint is made, so that nothing has to be allocated when memory is lost. A *weak* domain is one whose
// endpoints' ends prove nothing, by its provider's word or because one did not. What is lent through it counts before it is lost: bytes in quarantine, and of
// weak domains held memory (frames, grants) and targets of READs, are never more than the caps, by peer and in total. All sums are counters. Under the state lock.

#ifndef LIENI_QUARANTINE_H
#define LIENI_QUARANTINE_H

#include <stdint.h>

#include "core/list.h"

#define LIENI_QUARANTINE_BUCKETS 64u

struct lieni_quarantine_sums {
    uint64_t lost;  // in quarantine
    uint64_t held;  // may be lost: frames and held grants. Peer and total: of weak domains only
    uint64_t reads; // may be lost: targets of READs that run. The same
};

struct lieni_quarantine_peer {
    struct lieni_node node; // of a bucket; while it has a share, or memory that never comes back
    struct lieni_node shares;
    struct lieni_quarantine_sums sums;
    char host[96];
};

struct lieni_quarantine_domain {
    struct lieni_node shares;
    uint64_t lost;
    bool weak;
};

struct lieni_quarantine_share {
    struct lieni_node of_domain, of_peer; // while a connection has it, or something of it is lost
    struct lieni_quarantine_domain *domain;
    struct lieni_quarantine_peer *peer;
    struct lieni_quarantine_sums sums;
    unsigned conns;
};

struct lieni_quarantine {
    struct lieni_node peers[LIENI_QUARANTINE_BUCKETS];
    uint64_t peer_max, total_max;
    struct lieni_quarantine_sums sums;
    uint64_t ever;
    unsigned n_peers, n_shares;
};

enum lieni_quarantine_room {
    LIENI_ROOM,
    LIENI_ROOM_PEER, // none: the peer's cap
    LIENI_ROOM_TOTAL // none: the cap of all
};

void lieni_quarantine_init(struct lieni_quarantine *q, uint64_t peer_max, uint64_t total_max);
void lieni_quarantine_free(struct lieni_quarantine *q);

void lieni_quarantine_domain_init(struct lieni_quarantine_domain *domain, bool weak);
// From now on what is lent through it counts.
void lieni_quarantine_weak(struct lieni_quarantine *q, struct lieni_quarantine_domain *domain);
// The domain is closed, and no connection has a share in it. Proved: its bytes are given back and leave the account; else they stay the peer's for good.
void lieni_quarantine_ended(struct lieni_quarantine *q, struct lieni_quarantine_domain *domain,
                            bool proven);

// A connection's share. LIEN_ENOMEM.
int lieni_quarantine_join(struct lieni_quarantine *q, struct lieni_quarantine_domain *domain,
                          const char *host, struct lieni_quarantine_share **share);
// Of it nothing is held and nothing runs any more.
void lieni_quarantine_leave(struct lieni_quarantine *q, struct lieni_quarantine_share *share);

// Lent, and back or lost.
void lieni_quarantine_hold(struct lieni_quarantine *q, struct lieni_quarantine_share *share,
                           uint64_t bytes);
void lieni_quarantine_unhold(struct lieni_quarantine *q, struct lieni_quarantine_share *share,
                             uint64_t bytes);
void lieni_quarantine_read(struct lieni_quarantine *q, struct lieni_quarantine_share *share,
                           uint64_t bytes);
void lieni_quarantine_unread(struct lieni_quarantine *q, struct lieni_quarantine_share *share,
                             uint64_t bytes);
void lieni_quarantine_lose(struct lieni_quarantine *q, struct lieni_quarantine_share *share,
                           uint64_t bytes);

// Whether so many bytes more may be lent. `now`: beside the READs that run; else once those are back.
enum lieni_quarantine_room lieni_quarantine_room(const struct lieni_quarantine *q,
                                                 const struct lieni_quarantine_share *share,
                                                 uint64_t bytes, bool now);

#endif
