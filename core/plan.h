// SPDX-License-Identifier: Apache-2.0
//
// A plan: the READs that one transfer posts. Arithmetic only: it maps operations over a source (a list of
// lengths) and a destination (another) to pieces that lie in one source buffer and one destination
// buffer each, and counts what is posted and what is over. No lock, no memory of others, no posts.

#ifndef LIENI_PLAN_H
#define LIENI_PLAN_H

#include <stdbool.h>

#include <lien/lien.h>

struct lieni_piece {
    uint32_t src; // index of the source buffer
    uint64_t src_off;
    uint32_t dst;
    uint64_t dst_off;
    uint64_t len;
};

struct lieni_plan {
    lien_op *ops; // owned
    size_t n_ops;
    uint64_t src_lens[LIEN_BUFS_MAX];
    uint32_t n_src;
    uint64_t dst_lens[LIEN_BUFS_MAX];
    uint32_t n_dst;
    size_t op; // the next piece begins in this operation
    uint64_t op_off;
    uint64_t bytes_posted, bytes_over; // posted, and ended by evidence
    uint32_t inflight;                 // posted and not ended
    bool stopped;                      // nothing more is posted
    int status;                        // the first error of a piece
};

// Checks operations against both lengths [R3]: LIEN_EINVAL (too many), LIEN_ERANGE, LIEN_EOVERLAP, LIEN_ENOMEM. Zero-length ones are allowed, wherever
// they point within the lengths.
int lieni_ops_check(const lien_op *ops, size_t n, uint64_t src_len, uint64_t dst_len);

// How many of the `len` bytes from `at` on, in the destination, these operations write; of operations that do not overlap.
uint64_t lieni_ops_cover(const lien_op *ops, size_t n, uint64_t at, uint64_t len);

// Copies checked operations (NULL: all `src_len` bytes to offset 0). LIEN_ENOMEM, or as lieni_ops_check.
int lieni_plan_open(struct lieni_plan *plan, const lien_op *ops, size_t n_ops,
                    const uint64_t *src_lens, uint32_t n_src, const uint64_t *dst_lens,
                    uint32_t n_dst);
void lieni_plan_close(struct lieni_plan *plan);

// The next piece, of at most `max` bytes (> 0). False: nothing more to post.
bool lieni_plan_next(const struct lieni_plan *plan, uint64_t max, struct lieni_piece *piece);
// That piece was posted.
void lieni_plan_posted(struct lieni_plan *plan, const struct lieni_piece *piece);
// A posted piece of `len` bytes is over.
void lieni_plan_piece_over(struct lieni_plan *plan, uint64_t len, int status);
// No more pieces. Those posted go on.
void lieni_plan_stop(struct lieni_plan *plan);
// Nothing is in flight, and nothing will be.
bool lieni_plan_idle(const struct lieni_plan *plan);

#endif
