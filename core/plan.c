// SPDX-License-Identifier: Apache-2.0
//
// See plan.h.

#include "core/plan.h"

#include <stdlib.h>
#include <string.h>

static bool out_of(uint64_t off, uint64_t len, uint64_t total)
{
    return off > total || len > total - off;
}

static int by_dst(const void *a, const void *b)
{
    const lien_op *x = a, *y = b;
    return (x->dst > y->dst) - (x->dst < y->dst);
}

// Whether two of the operations write a common byte. They are in range, so sums do not overflow.
static int overlap(const lien_op *ops, size_t n)
{
    size_t used = 0;
    lien_op *sorted = malloc(n * sizeof(*sorted));
    if (!sorted)
        return LIEN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (ops[i].len > 0)
            sorted[used++] = ops[i];
    }
    qsort(sorted, used, sizeof(*sorted), by_dst);
    int rc = 0;
    for (size_t i = 1; i < used && rc == 0; i++) {
        if (sorted[i].dst < sorted[i - 1].dst + sorted[i - 1].len)
            rc = LIEN_EOVERLAP;
    }
    free(sorted);
    return rc;
}

int lieni_ops_check(const lien_op *ops, size_t n, uint64_t src_len, uint64_t dst_len)
{
    if (n > LIEN_OPS_MAX || (n > 0 && !ops))
        return LIEN_EINVAL;
    for (size_t i = 0; i < n; i++) {
        if (out_of(ops[i].src, ops[i].len, src_len) || out_of(ops[i].dst, ops[i].len, dst_len))
            return LIEN_ERANGE;
    }
    return n > 1 ? overlap(ops, n) : 0;
}

uint64_t lieni_ops_cover(const lien_op *ops, size_t n, uint64_t at, uint64_t len)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t from = ops[i].dst > at ? ops[i].dst : at;
        uint64_t end = ops[i].len > UINT64_MAX - ops[i].dst ? UINT64_MAX : ops[i].dst + ops[i].len;
        if (end > at + len)
            end = at + len;
        if (end > from)
            sum += end - from;
    }
    return sum;
}

// Adds lengths; false on overflow.
static bool sum(const uint64_t *lens, uint32_t n, uint64_t *total)
{
    *total = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (lens[i] > UINT64_MAX - *total)
            return false;
        *total += lens[i];
    }
    return true;
}

int lieni_plan_open(struct lieni_plan *plan, const lien_op *ops, size_t n_ops,
                    const uint64_t *src_lens, uint32_t n_src, const uint64_t *dst_lens,
                    uint32_t n_dst)
{
    uint64_t src_len, dst_len;
    if (n_src > LIEN_BUFS_MAX || n_dst > LIEN_BUFS_MAX || !sum(src_lens, n_src, &src_len) ||
        !sum(dst_lens, n_dst, &dst_len))
        return LIEN_ERANGE;
    const lien_op whole = {.src = 0, .dst = 0, .len = src_len};
    if (!ops) {
        ops = &whole;
        n_ops = 1;
    }
    int rc = lieni_ops_check(ops, n_ops, src_len, dst_len);
    if (rc != 0)
        return rc;
    *plan = (struct lieni_plan){.n_ops = n_ops, .n_src = n_src, .n_dst = n_dst};
    // A list of no lengths may be NULL, which memcpy does not take.
    if (n_src > 0)
        memcpy(plan->src_lens, src_lens, n_src * sizeof(*src_lens));
    if (n_dst > 0)
        memcpy(plan->dst_lens, dst_lens, n_dst * sizeof(*dst_lens));
    if (n_ops == 0)
        return 0;
    plan->ops = malloc(n_ops * sizeof(*ops));
    if (!plan->ops)
        return LIEN_ENOMEM;
    memcpy(plan->ops, ops, n_ops * sizeof(*ops));
    return 0;
}

void lieni_plan_close(struct lieni_plan *plan)
{
    free(plan->ops);
    plan->ops = NULL;
    plan->n_ops = 0;
}

// The buffer that holds offset `off` of a list of lengths (the offset is inside).
static uint32_t locate(const uint64_t *lens, uint32_t n, uint64_t off, uint64_t *within)
{
    uint32_t i = 0;
    while (i + 1 < n && off >= lens[i]) {
        off -= lens[i];
        i++;
    }
    *within = off;
    return i;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// Where the next byte lies: skips operations of no length. False: behind the last.
static bool cursor(const struct lieni_plan *plan, size_t *op, uint64_t *off)
{
    *op = plan->op;
    *off = plan->op_off;
    while (*op < plan->n_ops && *off >= plan->ops[*op].len) {
        *off = 0;
        (*op)++;
    }
    return *op < plan->n_ops;
}

bool lieni_plan_next(const struct lieni_plan *plan, uint64_t max, struct lieni_piece *piece)
{
    size_t at;
    uint64_t off;
    if (plan->stopped || !cursor(plan, &at, &off))
        return false;
    const lien_op *op = &plan->ops[at];
    piece->src = locate(plan->src_lens, plan->n_src, op->src + off, &piece->src_off);
    piece->dst = locate(plan->dst_lens, plan->n_dst, op->dst + off, &piece->dst_off);
    piece->len = least(max, op->len - off);
    piece->len = least(piece->len, plan->src_lens[piece->src] - piece->src_off);
    piece->len = least(piece->len, plan->dst_lens[piece->dst] - piece->dst_off);
    return true;
}

void lieni_plan_posted(struct lieni_plan *plan, const struct lieni_piece *piece)
{
    size_t at;
    uint64_t off;
    if (!cursor(plan, &at, &off))
        return;
    plan->op = at;
    plan->op_off = off + piece->len;
    plan->bytes_posted += piece->len;
    plan->inflight++;
}

void lieni_plan_piece_over(struct lieni_plan *plan, uint64_t len, int status)
{
    plan->inflight--;
    plan->bytes_over += len;
    if (status != 0 && plan->status == 0)
        plan->status = status;
}

void lieni_plan_stop(struct lieni_plan *plan)
{
    plan->stopped = true;
}

bool lieni_plan_idle(const struct lieni_plan *plan)
{
    struct lieni_piece piece;
    return plan->inflight == 0 && !lieni_plan_next(plan, 1, &piece);
}
