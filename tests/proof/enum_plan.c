// SPDX-License-Identifier: Apache-2.0
//
// Run by ci/proof: core/plan.c on every input within bounds, against the words of plan.h said byte by byte.
//
//   pieces: every pair of lists of up to 3 buffers of 0..2 bytes, every 0, 1 and 2 operations in range, and
//           where neither list has more than ENUM_TRIPLES bytes every 3; pieces of at most 1, 2 and 7 bytes. They partition
//           the operations, in order, each in one buffer of either side, none empty.
//   check:  every 1 and 2 operations at the edges of 64 bits, against 128-bit sums.

#include <stdio.h>
#include <stdlib.h>

#include "core/plan.h"

#ifndef ENUM_TRIPLES
#define ENUM_TRIPLES 3
#endif

#define BUFS  3
#define BYTES (2 * BUFS)

struct list {
    uint64_t lens[BUFS];
    uint32_t n;
    uint64_t total;
    uint32_t buf[BYTES + 1]; // of each byte, and its place there
    uint64_t off[BYTES + 1];
};

static unsigned long plans, pieces, checks;

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static int make_lists(struct list *lists)
{
    int count = 0;
    for (uint32_t n = 0; n <= BUFS; n++) {
        uint32_t all = 1;
        for (uint32_t i = 0; i < n; i++)
            all *= 3;
        for (uint32_t v = 0; v < all; v++) {
            struct list *l = &lists[count++];
            *l = (struct list){.n = n};
            uint32_t rest = v;
            for (uint32_t i = 0; i < n; i++, rest /= 3) {
                l->lens[i] = rest % 3;
                for (uint64_t k = 0; k < l->lens[i]; k++) {
                    l->buf[l->total] = i;
                    l->off[l->total++] = k;
                }
            }
        }
    }
    return count;
}

// One piece: the next bytes of operation *op from *at on.
static void check_piece(const struct list *src, const struct list *dst, const lien_op *ops,
                        size_t n, const struct lieni_piece *p, size_t *op, uint64_t *at)
{
    while (*op < n && *at == ops[*op].len) {
        (*op)++;
        *at = 0;
    }
    CHECK(*op < n && p->len > 0 && p->len <= ops[*op].len - *at);
    CHECK(p->src < src->n && p->dst < dst->n);
    for (uint64_t k = 0; k < p->len; k++) {
        const uint64_t s = ops[*op].src + *at + k, d = ops[*op].dst + *at + k;
        CHECK(src->buf[s] == p->src && src->off[s] == p->src_off + k);
        CHECK(dst->buf[d] == p->dst && dst->off[d] == p->dst_off + k);
    }
    *at += p->len;
    pieces++;
}

static bool written(const lien_op *ops, size_t n, uint64_t byte)
{
    for (size_t i = 0; i < n; i++)
        if (byte >= ops[i].dst && byte - ops[i].dst < ops[i].len)
            return true;
    return false;
}

static void run_plan(const struct list *src, const struct list *dst, const lien_op *ops, size_t n,
                     uint64_t max)
{
    struct lieni_plan plan;
    struct lieni_piece piece;
    size_t op = 0;
    uint64_t at = 0, sum = 0, want = 0;
    int rc = lieni_plan_open(&plan, ops, n, src->n ? src->lens : NULL, src->n,
                             dst->n ? dst->lens : NULL, dst->n);
    bool twice = false;
    for (size_t i = 0; i < n; i++) {
        want += ops[i].len;
        for (uint64_t k = 0; k < ops[i].len; k++)
            twice |= written(ops, i, ops[i].dst + k);
    }
    CHECK(rc == (twice ? LIEN_EOVERLAP : 0));
    if (rc != 0)
        return;
    while (lieni_plan_next(&plan, max, &piece)) {
        CHECK(piece.len <= max && !lieni_plan_idle(&plan));
        check_piece(src, dst, ops, n, &piece, &op, &at);
        lieni_plan_posted(&plan, &piece);
        sum += piece.len;
        CHECK(plan.inflight == 1 && !lieni_plan_idle(&plan));
        lieni_plan_piece_over(&plan, piece.len, 0);
    }
    CHECK(sum == want && lieni_plan_idle(&plan));
    CHECK(plan.bytes_posted == want && plan.bytes_over == want);
    for (uint64_t b = 0; b < dst->total; b++)
        CHECK(lieni_ops_cover(ops, n, b, 1) == written(ops, n, b));
    lieni_plan_close(&plan);
    plans++;
}

static size_t single_ops(const struct list *src, const struct list *dst, lien_op *out)
{
    size_t n = 0;
    for (uint64_t s = 0; s <= src->total; s++)
        for (uint64_t d = 0; d <= dst->total; d++)
            for (uint64_t len = 0; len <= src->total - s && len <= dst->total - d; len++)
                out[n++] = (lien_op){.src = s, .dst = d, .len = len};
    return n;
}

static void run_pair(const struct list *src, const struct list *dst)
{
    static lien_op all[256];
    static const uint64_t sizes[] = {1, 2, 7};
    const size_t n = single_ops(src, dst, all);
    run_plan(src, dst, all, 0, 1);
    for (size_t i = 0; i < n; i++) {
        for (size_t m = 0; m < 3; m++)
            run_plan(src, dst, &all[i], 1, sizes[m]);
        for (size_t j = 0; j < n; j++) {
            for (size_t m = 0; m < 3; m++)
                run_plan(src, dst, (lien_op[]){all[i], all[j]}, 2, sizes[m]);
            if (src->total > ENUM_TRIPLES || dst->total > ENUM_TRIPLES)
                continue;
            for (size_t k = 0; k < n; k++)
                run_plan(src, dst, (lien_op[]){all[i], all[j], all[k]}, 3, 2);
        }
    }
}

// -- At the edges of 64 bits --

__extension__ typedef unsigned __int128 wide;

static int expect(const lien_op *ops, size_t n, uint64_t src, uint64_t dst)
{
    for (size_t i = 0; i < n; i++)
        if ((wide)ops[i].src + ops[i].len > src || (wide)ops[i].dst + ops[i].len > dst)
            return LIEN_ERANGE;
    if (n == 2 && ops[0].len > 0 && ops[1].len > 0 &&
        (wide)ops[0].dst < (wide)ops[1].dst + ops[1].len &&
        (wide)ops[1].dst < (wide)ops[0].dst + ops[0].len)
        return LIEN_EOVERLAP;
    return 0;
}

static void run_edges(void)
{
    static const uint64_t v[] = {0, 1, UINT64_C(1) << 63, UINT64_MAX - 1, UINT64_MAX};
    static lien_op all[125];
    for (int i = 0; i < 125; i++)
        all[i] = (lien_op){.src = v[i / 25], .dst = v[i / 5 % 5], .len = v[i % 5]};
    for (int s = 0; s < 5; s++) {
        for (int d = 0; d < 5; d++) {
            for (int i = 0; i < 125; i++) {
                CHECK(lieni_ops_check(&all[i], 1, v[s], v[d]) == expect(&all[i], 1, v[s], v[d]));
                for (int j = 0; j < 125; j++, checks++) {
                    const lien_op two[] = {all[i], all[j]};
                    CHECK(lieni_ops_check(two, 2, v[s], v[d]) == expect(two, 2, v[s], v[d]));
                }
            }
        }
    }
}

int main(void)
{
    static struct list lists[64];
    const int n = make_lists(lists);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            run_pair(&lists[i], &lists[j]);
    run_edges();
    printf("%lu plans, %lu pieces, %lu checks\n", plans, pieces, checks);
    return 0;
}
