// SPDX-License-Identifier: Apache-2.0
//
// See check.h.

#include "core/check.h"

#include <string.h>

bool lieni_sums_wanted(const lien_ctx *ctx, unsigned flags)
{
    return (flags & LIEN_CHECKSUM) != 0 || ctx->options.checksum_always;
}

static void unborrow(lien_buf *const *bufs, size_t n)
{
    while (n > 0)
        lieni_buf_unborrow(bufs[--n]);
}

static bool are_buffers(const lien_ctx *ctx, const struct lieni_summing *list)
{
    if (list->n > LIEN_BUFS_MAX || (list->n > 0 && !list->bufs))
        return false;
    for (size_t i = 0; i < list->n; i++) {
        if (!list->bufs[i] || !lieni_buf_in_ctx(list->bufs[i], ctx->mem))
            return false;
    }
    return true;
}

int lieni_sums_make(lien_ctx *ctx, const struct lieni_summing *lists, size_t n_lists)
{
    lien_buf *held[2 * LIEN_BUFS_MAX]; // the caller's arrays may change meanwhile
    size_t n = 0, at = 0;
    for (size_t k = 0; k < n_lists; k++) {
        memset(lists[k].sums, 0, sizeof *lists[k].sums);
        if (!are_buffers(ctx, &lists[k]))
            return 0;
    }
    for (size_t k = 0; k < n_lists; k++) {
        for (size_t i = 0; i < lists[k].n; i++) {
            int rc = lieni_buf_borrow(lists[k].bufs[i]);
            if (rc != 0) {
                unborrow(held, n);
                return rc;
            }
            held[n++] = lists[k].bufs[i];
        }
    }
    ctx->inside++;
    lieni_ctx_unlock(ctx);
    for (size_t k = 0; k < n_lists; k++) {
        for (size_t i = 0; i < lists[k].n; i++)
            lists[k].sums->of[i] = lieni_bufs_sum(&held[at++], 1, 0, UINT64_MAX);
    }
    lieni_ctx_lock(ctx);
    unborrow(held, n);
    ctx->inside--;
    if (ctx->closing)
        lieni_ctx_changed(ctx); // lien_ctx_close waits for us
    return 0;
}

// Whether `at` is where a buffer begins or the last one ends. Empty buffers have no place of their own.
static bool is_edge(uint64_t at, const uint64_t *lens, size_t n)
{
    for (size_t i = 0; i < n && at > 0; i++) {
        if (lens[i] > at)
            return false;
        at -= lens[i];
    }
    return at == 0;
}

int lieni_check_whole(const lien_op *ops, size_t n_ops, const uint64_t *lens, size_t n)
{
    for (size_t i = 0; i < n_ops; i++) {
        if (ops[i].len > 0 &&
            (!is_edge(ops[i].src, lens, n) || !is_edge(ops[i].src + ops[i].len, lens, n)))
            return LIEN_EPARTIAL;
    }
    return 0;
}

// -- The thread --

// The strand that checks run on, opened with the first.
static struct lieni_strand *strand_of(lien_ctx *ctx)
{
    if (ctx->app_driven)
        return ctx->strand;
    if (ctx->check_strand)
        return ctx->check_strand;
    if (!ctx->checker &&
        lieni_dispatch_open(1, &ctx->platform.env, ctx->log, NULL, NULL, &ctx->checker) != 0)
        return NULL;
    if (lieni_strand_open(ctx->checker, false, &ctx->check_strand) != 0)
        ctx->check_strand = NULL;
    return ctx->check_strand;
}

bool lieni_check_post(lien_ctx *ctx, struct lieni_check *check)
{
    struct lieni_strand *strand = strand_of(ctx);
    if (strand)
        lieni_strand_post(strand, &check->task);
    return strand != NULL;
}

void lieni_check_close(lien_ctx *ctx)
{
    if (ctx->check_strand)
        lieni_strand_close(ctx->check_strand);
    ctx->check_strand = NULL;
    if (ctx->checker)
        lieni_dispatch_close(ctx->checker);
    ctx->checker = NULL;
}
