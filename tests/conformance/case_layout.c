// SPDX-License-Identifier: Apache-2.0
//
// How bytes are laid out: many buffers of unequal lengths on both sides, batches of operations, several reads and both directions at once.

#include <stdlib.h>

#include "tests/conformance/harness.h"

#define TOTAL (3 * MIB + 12345)

// A grant of `n` unequal buffers, until it is released.
static void give(struct cf_side *side, uint64_t total, size_t n)
{
    uint64_t lens[LIEN_BUFS_MAX];
    lien_buf *bufs[LIEN_BUFS_MAX];
    lien_token token;
    lien_grant *grant;
    cf_cut(total, n, lens);
    cf_bufs(side, lens, n, 1, bufs);
    struct cf_op *op = cf_op(side, "grant", false);
    cf_offer(side, side->link, bufs, n, 0, op, &token, &grant);
    cf_op_over(side, op, 0, 0);
    cf_scribble(side, bufs, n);
    CHECK_RC(side, lien_grant_close(&grant), 0);
    cf_free_bufs(bufs, n);
}

static void unequal(struct cf_side *side)
{
    size_t n = (size_t)side->test->arg;
    uint64_t lens[LIEN_BUFS_MAX];
    lien_token token;
    if (side->role == CF_OWNER) {
        give(side, TOTAL, n);
        return;
    }
    size_t m = LIEN_BUFS_MAX + 1 - n; // cut elsewhere
    cf_cut(TOTAL + 100, m, lens);
    cf_take_token(side, side->link, &token);
    lien_space *space = cf_space(side, lens, m);
    CHECK_EQ(side, lien_space_len(space), TOTAL + 100);
    struct cf_op *op = cf_op(side, "read", true);
    CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, LIEN_RELEASE, 0, op, NULL), 0);
    cf_op_over(side, op, 0, 0);
    cf_check_space(side, space, m, 1, TOTAL); // the last 100 bytes stay
    lien_space_free(&space);
}

// -- Batches --

typedef void make_ops(lien_op ops[LIEN_OPS_MAX]);

// All over the place, in neither's order; every tenth has no length, some of these at the very end.
static void scattered(lien_op ops[LIEN_OPS_MAX])
{
    for (uint64_t i = 0; i < LIEN_OPS_MAX; i++) {
        uint64_t slot = (i * 389 + 7) % LIEN_OPS_MAX; // 389 is prime to 1024
        ops[i].dst = slot * 3000 + slot % 61;
        ops[i].src = ((i * 617 + 3) % LIEN_OPS_MAX) * 3000 + i % 97;
        ops[i].len = i % 10 == 9 ? 0 : 1 + (i * 7919) % 2900;
        if (i % 100 == 99)
            ops[i] = (lien_op){.src = TOTAL, .dst = TOTAL, .len = 0};
    }
}

static void reversed(lien_op ops[LIEN_OPS_MAX])
{
    for (uint64_t i = 0; i < LIEN_OPS_MAX; i++)
        ops[i] = (lien_op){.src = i * 3000, .dst = (LIEN_OPS_MAX - 1 - i) * 3000, .len = 3000};
}

// The same source again and again.
static void repeated(lien_op ops[LIEN_OPS_MAX])
{
    for (uint64_t i = 0; i < LIEN_OPS_MAX; i++)
        ops[i] = (lien_op){.src = 5000, .dst = i * 3000 + 1, .len = 2999};
}

static void zeroes(lien_op ops[LIEN_OPS_MAX])
{
    for (uint64_t i = 0; i < LIEN_OPS_MAX; i++)
        ops[i] = (lien_op){.src = i, .dst = i, .len = 0};
}

static void batch_of(struct cf_side *side, make_ops *make, size_t n_ops)
{
    uint64_t lens[LIEN_BUFS_MAX];
    lien_token token;
    if (side->role == CF_OWNER) {
        give(side, TOTAL, 37);
        return;
    }
    lien_op *ops = calloc(LIEN_OPS_MAX, sizeof(*ops));
    CHECK(side, ops != NULL);
    make(ops);
    cf_cut(TOTAL, 64, lens);
    cf_take_token(side, side->link, &token);
    lien_space *space = cf_space(side, lens, 64);
    struct cf_op *op = cf_op(side, "batch", true);
    CHECK_RC(side, cf_read(side->link, &token, space, ops, n_ops, LIEN_RELEASE, 0, op, NULL), 0);
    lien_op *copy = calloc(LIEN_OPS_MAX, sizeof(*copy)); // ops were copied: they may change now
    CHECK(side, copy != NULL);
    for (size_t i = 0; i < n_ops; i++) {
        copy[i] = ops[i];
        ops[i] = (lien_op){.src = UINT64_MAX, .dst = UINT64_MAX, .len = UINT64_MAX};
    }
    cf_op_over(side, op, 0, 0);
    cf_check_ops(side, space, 64, 1, copy, n_ops);
    free(ops);
    free(copy);
    lien_space_free(&space);
}

static void batch_scattered(struct cf_side *side)
{
    batch_of(side, scattered, LIEN_OPS_MAX);
}

static void batch_reversed(struct cf_side *side)
{
    batch_of(side, reversed, LIEN_OPS_MAX);
}

static void batch_repeated(struct cf_side *side)
{
    batch_of(side, repeated, LIEN_OPS_MAX);
}

static void batch_zeroes(struct cf_side *side)
{
    batch_of(side, zeroes, LIEN_OPS_MAX);
}

static void batch_one(struct cf_side *side)
{
    batch_of(side, scattered, 1);
}

static void batch_none(struct cf_side *side)
{
    batch_of(side, scattered, 0); // operations given, and their number is 0: nothing moves
}

// -- Several at once --

#define PARALLEL 12u

// `n` grants out, `n` reads in, all at once. Sizes differ by direction and number.
static void both_directions(struct cf_side *side)
{
    lien_buf *bufs[PARALLEL];
    lien_grant *grants[PARALLEL];
    lien_token token;
    lien_space *spaces[PARALLEL];
    struct cf_op *granted[PARALLEL], *reads[PARALLEL];
    uint64_t mine = side->role == CF_OWNER ? 3 * MIB + 1 : 2 * MIB + 4095;
    uint64_t theirs = side->role == CF_OWNER ? 2 * MIB + 4095 : 3 * MIB + 1;
    unsigned gen_mine = side->role == CF_OWNER ? 100 : 200;
    unsigned gen_theirs = side->role == CF_OWNER ? 200 : 100;
    for (unsigned i = 0; i < PARALLEL; i++) {
        granted[i] = cf_op(side, "grant", false);
        bufs[i] = cf_buf(side, mine + i, gen_mine + i, 0);
        cf_offer(side, side->link, &bufs[i], 1, 0, granted[i], &token, &grants[i]);
    }
    for (unsigned i = 0; i < PARALLEL; i++) {
        cf_take_token(side, side->link, &token);
        spaces[i] = cf_space_of(side, theirs + i);
        reads[i] = cf_op(side, "read", true);
        CHECK_RC(side,
                 cf_read(side->link, &token, spaces[i], NULL, 0, LIEN_RELEASE, 0, reads[i], NULL),
                 0);
    }
    for (unsigned i = 0; i < PARALLEL; i++) {
        cf_op_over(side, reads[i], 0, 0);
        cf_check_space(side, spaces[i], 1, gen_theirs + i, theirs + i);
        lien_space_free(&spaces[i]);
    }
    for (unsigned i = 0; i < PARALLEL; i++) {
        cf_op_over(side, granted[i], 0, 0);
        CHECK_RC(side, lien_grant_close(&grants[i]), 0);
        lien_buf_free(&bufs[i]);
    }
}

// One grant, many reads of it at once; the release comes after the last.
static void many_reads(struct cf_side *side)
{
    enum {
        READS = 40
    };
    lien_token token;
    lien_space *spaces[READS];
    struct cf_op *ops[READS];
    if (side->role == CF_OWNER) {
        give(side, 300 * KIB, 5);
        return;
    }
    cf_take_token(side, side->link, &token);
    for (unsigned i = 0; i < READS; i++) {
        const lien_op part = {.src = i * 1000, .dst = 17, .len = 200 * KIB};
        spaces[i] = cf_space_of(side, 201 * KIB);
        ops[i] = cf_op(side, "read", true);
        CHECK_RC(side, cf_read(side->link, &token, spaces[i], &part, 1, 0, 0, ops[i], NULL), 0);
    }
    CHECK_RC(side, lien_release(side->link->conn, token.bytes, token.len), 0);
    lien_space *late = cf_space_of(side, 300 * KIB); // no more from here on, though reads run
    CHECK_RC(side,
             cf_read(side->link, &token, late, NULL, 0, 0, 0, cf_op(side, "late read", true), NULL),
             LIEN_ESTALE);
    lien_space_free(&late);
    for (unsigned i = 0; i < READS; i++) {
        const lien_op part = {.src = i * 1000, .dst = 17, .len = 200 * KIB};
        cf_op_over(side, ops[i], 0, 0);
        cf_check_ops(side, spaces[i], 1, 1, &part, 1);
        lien_space_free(&spaces[i]);
    }
}

const struct cf_case cf_layout_cases[] = {
    {.group = "layout", .name = "bufs-1-into-64", .run = unequal, .arg = 1},
    {.group = "layout", .name = "bufs-2-into-63", .run = unequal, .arg = 2},
    {.group = "layout", .name = "bufs-5-into-60", .run = unequal, .arg = 5},
    {.group = "layout", .name = "bufs-16-into-49", .run = unequal, .arg = 16},
    {.group = "layout", .name = "bufs-33-into-32", .run = unequal, .arg = 33},
    {.group = "layout", .name = "bufs-63-into-2", .run = unequal, .arg = 63},
    {.group = "layout", .name = "bufs-64-into-1", .run = unequal, .arg = 64},
    {.group = "layout", .name = "batch-1024-scattered", .run = batch_scattered},
    {.group = "layout", .name = "batch-1024-reversed", .run = batch_reversed},
    {.group = "layout", .name = "batch-1024-same-source", .run = batch_repeated},
    {.group = "layout", .name = "batch-1024-zero-length", .run = batch_zeroes},
    {.group = "layout", .name = "batch-1", .run = batch_one},
    {.group = "layout", .name = "batch-0", .run = batch_none},
    {.group = "layout", .name = "both-directions", .run = both_directions},
    {.group = "layout", .name = "many-reads-of-one-grant", .run = many_reads},
    {0},
};
