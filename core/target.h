// SPDX-License-Identifier: Apache-2.0
//
// Targets: spaces, the only memory that READs write into, and what stands for them while they are
// lent (R6, R10). Three states, one table, one setter. While a READ may write, no access succeeds; the
// buffers come back by lieni_target_back() alone, which the READ operation calls when evidence
// for each of its pieces is spent. Under the state lock.

#ifndef LIENI_TARGET_H
#define LIENI_TARGET_H

#include "core/ctx.h"

enum lieni_target_state {
    LIENI_TARGET_AVAILABLE, // the holder's. Ends when a read lends it
    LIENI_TARGET_READING,   // READs may write into it. Ends by evidence, or by quarantine
    LIENI_TARGET_LOST // in quarantine. Never ends; its buffers' own state tells when pool memory goes home
};

struct lien_space {
    lien_ctx *ctx;
    enum lieni_target_state state;
    uint32_t n;
    lien_buf *bufs[LIEN_BUFS_MAX];
    uint64_t len;
    bool free_wanted; // put off until it is back
};

// With the lock held; moves the buffers and stores NULL in each slot.
int lieni_target_open(lien_ctx *ctx, lien_buf **bufs, size_t n, lien_space **space);
// AVAILABLE -> READING, all buffers or none. LIEN_EBUSY, LIEN_EQUARANTINED.
int lieni_target_lend(lien_space *space);
// READING -> AVAILABLE: no READ can touch it any more, by evidence. Does a free that was put off: `space` may be gone.
void lieni_target_back(lien_space *space);
// READING -> LOST: no evidence will come. As above.
void lieni_target_lose(lien_space *space, struct lieni_domain *domain);
// As the public ones, with the lock held.
int lieni_target_take(lien_space *space, lien_buf **bufs, size_t n);
void lieni_target_free(lien_space *space);

#endif
