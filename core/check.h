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
// Buffers that a grant is to be made of, and their sums.
struct lieni_summing {
    lien_buf *const *bufs;
    size_t n;
    struct lieni_sums *sums;
};
// Hashes the buffers of up to two grants. The lock is held on entry and exit, and given up meanwhile: the buffers are borrowed then, and whoever closes the ctx waits. The grants have to be made before the
// lock is given up again, or somebody could write the buffers; so callers look first whether there is room and credit, and that the connection or channel still is. What is no such buffer at all is left
// to whoever grants. LIEN_EBUSY, LIEN_EQUARANTINED.
int lieni_sums_make(lien_ctx *ctx, const struct lieni_summing *lists, size_t n_lists);

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
