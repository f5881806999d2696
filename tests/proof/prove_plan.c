// SPDX-License-Identifier: Apache-2.0
//
// For Frama-C's EVA (ci/proof), never run: a plan of PROVE_OPS operations of any offsets and lengths (PROVE_WHOLE: none, all is read) over
// PROVE_BUFS buffers of any lengths on either side, opened, and stepped through for up to 4 pieces of any greatest size.

#include <stdlib.h>

#include "core/plan.h"

#include "__fc_builtin.h"

#define U64() Frama_C_unsigned_long_long_interval(0, UINT64_MAX)

// The library's own has no body that EVA could see. Any order will do: what follows reads every element.
void qsort(void *base, size_t n, size_t size, int (*compare)(const void *, const void *))
{
    char *at = base;
    for (size_t i = 1; i < n; i++)
        (void)compare(at + (i - 1) * size, at + i * size);
}

static void step(struct lieni_plan *plan)
{
    struct lieni_piece piece;
    uint64_t max = Frama_C_unsigned_long_long_interval(1, UINT64_MAX);
    if (!lieni_plan_next(plan, max, &piece))
        return;
    //@ assert index: piece.src < 64 && piece.dst < 64;
    lieni_plan_posted(plan, &piece);
    if (Frama_C_interval(0, 1))
        lieni_plan_piece_over(plan, piece.len, Frama_C_interval(-100, 0));
    (void)lieni_plan_idle(plan);
}

int main(void)
{
    uint64_t src[PROVE_BUFS + 1], dst[PROVE_BUFS + 1];
    for (int i = 0; i < PROVE_BUFS; i++) {
        src[i] = U64();
        dst[i] = U64();
    }
    lien_op ops[PROVE_OPS + 1];
    for (int i = 0; i < PROVE_OPS; i++)
        ops[i] = (lien_op){.src = U64(), .dst = U64(), .len = U64()};
    struct lieni_plan plan;
    int rc = lieni_plan_open(&plan, PROVE_WHOLE ? NULL : ops, PROVE_OPS, PROVE_BUFS ? src : NULL,
                             PROVE_BUFS, PROVE_BUFS ? dst : NULL, PROVE_BUFS);
    if (rc != 0)
        return 0;
    for (int i = 0; i < 4; i++)
        step(&plan);
    (void)lieni_ops_cover(ops, PROVE_OPS, U64(), U64());
    lieni_plan_stop(&plan);
    lieni_plan_close(&plan);
    return 0;
}
