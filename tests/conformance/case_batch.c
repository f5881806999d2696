// SPDX-License-Identifier: Apache-2.0
//
// One byte more than a provider without RMA moves in one read. Where there is no such limit all of it moves; where there is one it is refused before anything is posted, by LIEN_EMSGSIZE,
// and the limit itself moves, in one piece or in parts.

#include <stdio.h>

#include "tests/conformance/harness.h"

#define LIMIT (64 * MIB)
#define LEN   (LIMIT + 1)

static int expected(const struct cf_side *side)
{
    return side->driver->batch_max ? LIEN_EMSGSIZE : 0;
}

// From now on refusals by the limit are counted that say the limit and both ways out.
static void watch_refusals(struct cf_side *side)
{
    snprintf(side->log_want[0], sizeof(side->log_want[0]), "%llu: split",
             (unsigned long long)LIMIT);
    snprintf(side->log_want[1], sizeof(side->log_want[1]), "or use a provider with RMA");
    atomic_store(&side->log_code, LIEN_EMSGSIZE);
}

static void grant_owner(struct cf_side *side)
{
    lien_token token;
    lien_grant *grant;
    lien_buf *buf = cf_buf(side, LEN, 1, 0);
    struct cf_op *op = cf_op(side, "grant", false);
    cf_offer(side, side->link, &buf, 1, 0, op, &token, &grant);
    cf_op_over(side, op, 0, 0);
    CHECK_RC(side, lien_grant_close(&grant), 0);
    lien_buf_free(&buf);
}

static void read_over_the_limit(struct cf_side *side)
{
    if (side->role == CF_OWNER) {
        grant_owner(side);
        cf_alive(side, side->link);
        return;
    }
    lien_token token;
    cf_take_token(side, side->link, &token);
    lien_space *space = cf_space_of(side, LEN);
    const lien_op halves[2] = {{0, 0, LIMIT / 2}, {LIMIT / 2, LIMIT / 2, LIMIT / 2 + 1}};
    watch_refusals(side);
    for (unsigned i = 0; i < 2; i++) { // the whole, and two operations that are too much together
        uint64_t posted = cf_stats(side).read_pieces_posted;
        struct cf_op *op = cf_op(side, "read", true);
        CHECK_RC(side,
                 cf_read(side->link, &token, space, i ? halves : NULL, i ? 2 : 0, 0, 0, op, NULL),
                 expected(side));
        if (expected(side) == 0)
            cf_op_over(side, op, 0, 0);
        else
            CHECK_EQ(side, cf_stats(side).read_pieces_posted, posted);
    }
    if (expected(side) != 0)
        UNTIL(side, atomic_load(&side->log_lines) == 2);
    const lien_op most = {0, 0, LIMIT}, rest = {LIMIT, LIMIT, 1};
    struct cf_op *op = cf_op(side, "the most", true);
    CHECK_RC(side, cf_read(side->link, &token, space, &most, 1, 0, 0, op, NULL), 0);
    cf_op_over(side, op, 0, 0);
    op = cf_op(side, "the rest", true);
    CHECK_RC(side, cf_read(side->link, &token, space, &rest, 1, LIEN_RELEASE, 0, op, NULL), 0);
    cf_op_over(side, op, 0, 0);
    cf_check_space(side, space, 1, 1, LEN);
    lien_space_free(&space);
    cf_alive(side, side->link);
}

static void body_over_the_limit(struct cf_side *side)
{
    if (side->role == CF_READER && expected(side) != 0) {
        lien_buf *buf = cf_buf(side, LEN, 2, 0);
        watch_refusals(side);
        CHECK_RC(side, lien_send(side->link->conn, "x", 1, &buf, 1, NULL), LIEN_EMSGSIZE);
        struct cf_op *op = cf_op(side, "a call", true);
        lien_call_opts opts = cf_call_opts(op);
        opts.body = &buf;
        opts.n_body = 1;
        op->refused = true;
        CHECK_RC(side, lien_call_start(side->link->conn, "cf/echo", "", 0, &opts, NULL),
                 LIEN_EMSGSIZE);
        UNTIL(side, atomic_load(&side->log_lines) == 2);
        void *p;
        CHECK_RC(side, lien_buf_mut(buf, &p), 0); // nothing was lent
        lien_buf_free(&buf);
    }
    cf_alive(side, side->link);
}

const struct cf_case cf_batch_cases[] = {
    {.group = "batch",
     .name = "read-over-64MiB",
     .run = read_over_the_limit,
     .settings = CF_UNHURRIED},
    {.group = "batch",
     .name = "body-over-64MiB",
     .run = body_over_the_limit,
     .settings = CF_UNHURRIED},
    {0},
};
