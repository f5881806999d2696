// SPDX-License-Identifier: Apache-2.0
//
// Targets: spaces, the only memory that READs write into, and what stands for them while they are
// lent (R6, R10). One table of states, one setter. While a READ may write, no access succeeds; the
// buffers come back by lieni_target_back() alone, which the READ operation calls when evidence
// for each of its pieces is spent. Under the state lock.

#ifndef LIENI_TARGET_H
#define LIENI_TARGET_H

#include "core/ctx.h"

enum lieni_target_state {
    LIENI_TARGET_HOME, // the holder's. Ends when a read or a call lends it
    LIENI_TARGET_AVAILABLE, // lent to a call, nothing running. Ends with the call, or when a READ is planned into it
    LIENI_TARGET_READING, // READs may write into it, by a read or by a write of a call. Ends by evidence, or by quarantine
    LIENI_TARGET_SEALED, // as READING, and its call has ended: no writer gets in any more. Ends by evidence, or by quarantine
    LIENI_TARGET_LOST // in quarantine. Never ends; its buffers' own state tells when pool memory goes home
};

struct lien_space {
    lien_ctx *ctx;
    enum lieni_target_state state;
    bool called; // lent to a call: evidence makes it AVAILABLE, not HOME
    uint32_t n;
    lien_buf *bufs[LIEN_BUFS_MAX];
    uint64_t len;
    bool free_wanted; // put off until it is back
};

// With the lock held; moves the buffers and stores NULL in each slot.
int lieni_target_open(lien_ctx *ctx, lien_buf **bufs, size_t n, lien_space **space);
// HOME -> READING, all buffers or none; of a space lent to a call AVAILABLE -> READING. LIEN_EBUSY (a competing READ, too), LIEN_EQUARANTINED.
int lieni_target_lend(lien_space *space);
// READING or SEALED -> HOME, or AVAILABLE while its call lives: no READ can touch it any more, by evidence. Does a free that was put off: `space` may be gone.
void lieni_target_back(lien_space *space);
// READING or SEALED -> LOST: no evidence will come. As above.
void lieni_target_lose(lien_space *space, struct lieni_domain *domain);
// HOME -> AVAILABLE: lent to a call. LIEN_EBUSY, LIEN_EQUARANTINED.
int lieni_target_call(lien_space *space);
// Its call ended: AVAILABLE -> HOME, READING -> SEALED. True: it is back already, and `space` may be gone.
bool lieni_target_seal(lien_space *space);
// As the public ones, with the lock held.
int lieni_target_take(lien_space *space, lien_buf **bufs, size_t n);
void lieni_target_free(lien_space *space);

#endif
