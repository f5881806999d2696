// SPDX-License-Identifier: Apache-2.0
//
// Checksums of grants (LIEN_CHECKSUM, R16). The owner hashes each buffer before the grant is made, without the state lock, the buffers borrowed meanwhile. The reader compares when all of a read's
// bytes are here and somebody vouched for them, before it is done: small ones at once, larger ones on a thread of the ctx that starts with the first of them (app-driven: inside progress), so that
// neither the state lock nor a callback waits for them. The read's space stays lent meanwhile, and its connection's end waits for it.

#ifndef LIENI_CHECK_H
#define LIENI_CHECK_H

#include "core/ctx.h"
#include "core/plan.h"
#include "core/wire.h"

// One sum for each buffer of a grant.
struct lieni_sums {
    uint64_t of[LIEN_BUFS_MAX];
};

// Whether a grant with these flags carries checksums.
bool lieni_sums_wanted(const lien_ctx *ctx, unsigned flags);
// Hashes `n` buffers; WITHOUT the lock. LIEN_EBUSY, LIEN_EQUARANTINED. What is no such buffer at all is left to whoever grants.
int lieni_sums_make(lien_ctx *ctx, lien_buf *const *bufs, size_t n, struct lieni_sums *sums);
// The same with the lock held on entry and exit, and given up meanwhile.
int lieni_sums_make_locked(lien_ctx *ctx, lien_buf *const *bufs, size_t n, struct lieni_sums *sums);

// Whether operations move whole buffers only, of a source with these lengths: 0, LIEN_EPARTIAL.
int lieni_check_whole(const lien_op *ops, size_t n_ops, const uint64_t *lens, size_t n);

// A read whose bytes are to be compared. Embedded in it.
struct lieni_check {
    struct lieni_task task;
    bool runs;
};
// Runs check->task, which must run without the lock, on the thread for that. False: none can be had, run it here. Under the lock.
bool lieni_check_post(lien_ctx *ctx, struct lieni_check *check);
// Ends the thread. Without the lock, nothing is queued.
void lieni_check_close(lien_ctx *ctx);

#endif
