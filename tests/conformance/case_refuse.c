// SPDX-License-Identifier: Apache-2.0
//
// Reads that are refused: the error is the documented one, nothing is posted, nothing changes, and the connection and the grant live on.

#include <stdlib.h>

#include "tests/conformance/harness.h"

#define LEN 100000u

struct refused {
    lien_op ops[3];
    size_t n;
};

static void owner(struct cf_side *side)
{
    lien_token token;
    lien_grant *grant;
    uint64_t lens[7];
    lien_buf *bufs[7];
    cf_cut(LEN, 7, lens);
    cf_bufs(side, lens, 7, 1, bufs);
    struct cf_op *op = cf_op(side, "grant", false);
    cf_offer(side, side->link, bufs, 7, 0, op, &token, &grant);
    cf_op_over(side, op, 0, 0);
    CHECK_RC(side, lien_grant_close(&grant), 0);
    cf_free_bufs(bufs, 7);
    cf_alive(side, side->link);
}

// The grant still serves, into the same space.
static void still_good(struct cf_side *side, const lien_token *token, lien_space *space, size_t n)
{
    struct cf_op *op = cf_op(side, "read after all", true);
    CHECK_RC(side, cf_read(side->link, token, space, NULL, 0, LIEN_RELEASE, 0, op, NULL), 0);
    cf_op_over(side, op, 0, 0);
    cf_check_space(side, space, n, 1, LEN);
    lien_space_free(&space);
    cf_alive(side, side->link);
}

static void expect_refusal(struct cf_side *side, const lien_token *token, lien_space *space,
                           const lien_op *ops, size_t n_ops, int want)
{
    lien_ctx_stats before = cf_stats(side);
    lien_read *read = NULL;
    struct cf_op *op = cf_op(side, "refused read", true);
    CHECK_RC(side, cf_read(side->link, token, space, ops, n_ops, LIEN_RELEASE, 0, op, &read), want);
    CHECK(side, read == NULL);
    lien_ctx_stats after = cf_stats(side);
    CHECK_EQ(side, after.reads_started, before.reads_started);
    CHECK_EQ(side, after.read_pieces_posted, before.read_pieces_posted);
    CHECK_EQ(side, after.messages_sent, before.messages_sent);
    CHECK_EQ(side, cf_info(side, side->link).reads_outstanding, 0);
}

static void refused_ops(struct cf_side *side, const struct refused *list, size_t n, int want)
{
    lien_token token;
    uint64_t lens[5];
    if (side->role == CF_OWNER) {
        owner(side);
        return;
    }
    cf_cut(LEN + 10, 5, lens);
    lien_space *space = cf_space(side, lens, 5);
    cf_take_token(side, side->link, &token);
    for (size_t i = 0; i < n; i++)
        expect_refusal(side, &token, space, list[i].ops, list[i].n, want);
    cf_check_space(side, space, 5, 1, 0);
    still_good(side, &token, space, 5);
}

static void overlap(struct cf_side *side)
{
    static const struct refused list[] = {
        {{{0, 0, 10}, {50, 9, 10}}, 2},             // the last byte
        {{{0, 9, 10}, {50, 0, 10}}, 2},             // the same, the other way round
        {{{0, 100, 10}, {0, 100, 10}}, 2},          // twice the same
        {{{0, 0, LEN}, {5, 500, 1}}, 2},            // inside
        {{{0, 0, 10}, {90, 10, 0}, {20, 5, 1}}, 3}, // with one of no length in between
        {{{7, LEN - 1, 2}, {0, 0, 1}, {9, LEN, 1}}, 3},
    };
    refused_ops(side, list, sizeof(list) / sizeof(list[0]), LIEN_EOVERLAP);
}

static void range(struct cf_side *side)
{
    static const struct refused list[] = {
        {{{0, LEN + 10, 1}}, 1},
        {{{0, 11, LEN}}, 1},
        {{{LEN, 0, 1}}, 1},
        {{{1, 0, LEN}}, 1},
        {{{0, 0, 10}, {0, 20, UINT64_MAX}}, 2},
        {{{UINT64_MAX, 0, 1}}, 1},
        {{{0, UINT64_MAX, 1}}, 1},
        {{{UINT64_MAX - 1, 0, 4}}, 1}, // wraps
        {{{0, UINT64_MAX - 1, 4}}, 1},
        {{{UINT64_MAX, UINT64_MAX, UINT64_MAX}}, 1},
        {{{LEN + 1, 0, 0}}, 1}, // of no length, and still outside
        {{{0, LEN + 11, 0}}, 1},
        {{{0, 0, 1}, {1, 1, 1}, {LEN, 2, 1}}, 3}, // only the last is wrong
    };
    refused_ops(side, list, sizeof(list) / sizeof(list[0]), LIEN_ERANGE);
}

static void too_many_ops(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        owner(side);
        return;
    }
    lien_op *ops = calloc(LIEN_OPS_MAX + 1, sizeof(*ops));
    CHECK(side, ops != NULL);
    lien_space *space = cf_space_of(side, LEN);
    cf_take_token(side, side->link, &token);
    expect_refusal(side, &token, space, ops, LIEN_OPS_MAX + 1, LIEN_EINVAL);
    expect_refusal(side, &token, space, NULL, 1, LIEN_EINVAL);
    free(ops);
    still_good(side, &token, space, 1);
}

static void small_space(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        owner(side);
        return;
    }
    lien_space *small = cf_space_of(side, LEN - 1);
    cf_take_token(side, side->link, &token);
    expect_refusal(side, &token, small, NULL, 0, LIEN_ERANGE);
    cf_check_space(side, small, 1, 1, 0);
    lien_space_free(&small);
    still_good(side, &token, cf_space_of(side, LEN), 1);
}

static void arguments(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        owner(side);
        return;
    }
    lien_conn *conn = side->link->conn;
    lien_space *space = cf_space_of(side, LEN);
    lien_read_opts opts;
    lien_grant *grant = NULL;
    lien_token other;
    lien_buf *bufs[LIEN_BUFS_MAX + 1] = {NULL};
    cf_take_token(side, side->link, &token);
    lien_read_opts_init(&opts);
    opts.flags = 1u << 20;
    CHECK_RC(side, lien_read_start(conn, token.bytes, token.len, space, &opts, NULL), LIEN_EINVAL);
    CHECK_RC(side, lien_read_start(NULL, token.bytes, token.len, space, NULL, NULL), LIEN_EINVAL);
    CHECK_RC(side, lien_read_start(conn, NULL, token.len, space, NULL, NULL), LIEN_EINVAL);
    CHECK_RC(side, lien_read_start(conn, token.bytes, token.len, NULL, NULL, NULL), LIEN_EINVAL);
    CHECK_RC(side, lien_grant_open(conn, bufs, 0, NULL, &other, &grant), LIEN_EINVAL);
    CHECK_RC(side, lien_grant_open(conn, bufs, 1, NULL, &other, &grant), LIEN_EINVAL);
    bufs[0] = cf_buf(side, 10, 1, 0);
    for (unsigned i = 1; i < LIEN_BUFS_MAX + 1; i++)
        bufs[i] = bufs[0];
    CHECK_RC(side, lien_grant_open(conn, bufs, LIEN_BUFS_MAX + 1, NULL, &other, &grant),
             LIEN_EINVAL);
    CHECK_RC(side, lien_send(conn, NULL, 0, bufs, LIEN_BUFS_MAX + 1, NULL), LIEN_EINVAL);
    CHECK_RC(side, lien_send(conn, NULL, 1, NULL, 0, NULL), LIEN_EINVAL);
    lien_space *twice = NULL;
    CHECK_RC(side, lien_space_open(side->ctx, bufs, 2, &twice), LIEN_EINVAL);
    CHECK(side, grant == NULL && twice == NULL && bufs[0] != NULL && bufs[1] == bufs[0]);
    void *p;
    CHECK_RC(side, lien_buf_mut(bufs[0], &p), 0);
    lien_buf_free(&bufs[0]);
    still_good(side, &token, space, 1);
}

// What is lent is refused to everybody else, and given back whole. The owner is frozen meanwhile, so that the read is in its middle.
static void lent(struct cf_side *side)
{
    lien_token token, other;
    if (side->role == CF_OWNER) {
        owner(side);
        return;
    }
    lien_conn *conn = side->link->conn;
    lien_space *space = cf_space_of(side, LEN);
    lien_buf *inside, *taken, *got;
    lien_grant *grant = NULL;
    const void *data;
    void *p;
    cf_take_token(side, side->link, &token);
    CHECK_RC(side, lien_space_buf(space, 0, &inside), 0);
    CHECK_RC(side, lien_space_buf(space, 1, &got), LIEN_ERANGE);
    side->driver->freeze(side);
    struct cf_op *op = cf_op(side, "read", true);
    CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, 0, 0, op, NULL), 0);
    struct cf_op *second = cf_op(side, "second read", true);
    CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, 0, 0, second, NULL), LIEN_EBUSY);
    CHECK_RC(side, lien_space_buf(space, 0, &got), LIEN_EBUSY);
    CHECK_RC(side, lien_space_take(space, &taken, 1), LIEN_EBUSY);
    CHECK_RC(side, lien_space_wait(space, 0), LIEN_ETIMEDOUT);
    CHECK_RC(side, lien_buf_data(inside, &data), LIEN_EBUSY);
    CHECK_RC(side, lien_buf_mut(inside, &p), LIEN_EBUSY);
    CHECK_RC(side, lien_buf_set_len(inside, 1), LIEN_EBUSY);
    CHECK_RC(side, lien_grant_open(conn, &inside, 1, NULL, &other, &grant), LIEN_EBUSY);
    CHECK_RC(side, lien_send(conn, NULL, 0, &inside, 1, NULL), LIEN_EBUSY);
    CHECK_EQ(side, atomic_load(&op->done), 0);
    side->driver->thaw(side);
    cf_op_over(side, op, 0, 0);
    cf_check_space(side, space, 1, 1, LEN);
    still_good(side, &token, space, 1);
}

const struct cf_case cf_refuse_cases[] = {
    {.group = "refuse", .name = "overlap", .run = overlap},
    {.group = "refuse", .name = "range", .run = range},
    {.group = "refuse", .name = "too-many-ops", .run = too_many_ops},
    {.group = "refuse", .name = "space-too-small", .run = small_space},
    {.group = "refuse", .name = "arguments", .run = arguments},
    {.group = "refuse", .name = "lent-memory", .run = lent},
    {0},
};
