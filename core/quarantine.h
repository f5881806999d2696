// SPDX-License-Identifier: Apache-2.0
//
// Quarantine: the account of memory whose transfer could not be proved over (R12). The memory itself is kept out of use by its
// buffers' state (mem.h, LIENI_BUF_LOST); here is who it was lent to, how much, and when that is too much. Under the state lock.

#ifndef LIENI_QUARANTINE_H
#define LIENI_QUARANTINE_H

#include "core/list.h"
#include "provider/provider.h"

struct lieni_quarantine {
    struct lieni_node entries;
    uint64_t bytes; // now
    uint64_t total; // ever
};

void lieni_quarantine_init(struct lieni_quarantine *q);
void lieni_quarantine_free(struct lieni_quarantine *q);
// `bytes` lent to `peer` (a host) through `domain` are lost. Without memory for the account itself they still count in bytes and total.
void lieni_quarantine_add(struct lieni_quarantine *q, const struct lieni_domain *domain,
                          const char *peer, uint64_t bytes);
uint64_t lieni_quarantine_of_peer(const struct lieni_quarantine *q, const char *peer);
// The domain is closed. Proved: its bytes are given back and leave the account; else they stay in it for good.
void lieni_quarantine_ended(struct lieni_quarantine *q, const struct lieni_domain *domain,
                            bool proven);

#endif
