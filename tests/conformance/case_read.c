// SPDX-License-Identifier: Apache-2.0
//
// Reads of a whole grant, by size, in both directions.

#include "tests/conformance/harness.h"

static void give(struct cf_side *side, uint64_t len)
{
    lien_token token;
    lien_grant *grant;
    lien_buf *buf = cf_buf(side, len, 1, 0);
    struct cf_op *op = cf_op(side, "grant", false);
    cf_offer(side, side->link, &buf, 1, 0, op, &token, &grant);
    if (len > 0) { // lent: readable, not writable
        void *p;
        CHECK_RC(side, lien_buf_mut(buf, &p), LIEN_EBUSY);
        CHECK_RC(side, lien_grant_wait(grant, 0), LIEN_ETIMEDOUT);
    }
    cf_sync(side); // the reader may go on
    cf_op_over(side, op, 0, 0);
    CHECK_RC(side, lien_grant_wait(grant, 0), 0);
    void *p;
    CHECK_RC(side, lien_buf_mut(buf, &p), 0);
    cf_check_buf(side, buf, 1, 0);
    cf_scribble(side, &buf, 1);
    CHECK_RC(side, lien_grant_close(&grant), 0);
    CHECK(side, grant == NULL);
    lien_buf_free(&buf);
    CHECK(side, buf == NULL);
}

static void take(struct cf_side *side, uint64_t len)
{
    lien_token token;
    lien_read *read;
    lien_buf *buf;
    cf_take_token(side, side->link, &token);
    lien_space *space = cf_space_of(side, len);
    uint64_t before = cf_stats(side).read_bytes;
    struct cf_op *op = cf_op(side, "read", true);
    cf_sync(side);
    CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, LIEN_RELEASE, 0, op, &read), 0);
    cf_op_over(side, op, 0, 0);
    CHECK_RC(side, lien_space_wait(space, 0), 0);
    cf_check_space(side, space, 1, 1, len);
    CHECK_EQ(side, cf_stats(side).read_bytes - before, len);
    CHECK(side, lien_read_path(read) == cf_info(side, side->link).path);
    CHECK_RC(side, lien_read_close(&read), 0);
    CHECK(side, read == NULL);
    CHECK_RC(side, lien_space_take(space, &buf, 1), 0);
    cf_check_buf(side, buf, 1, 0);
    lien_buf_free(&buf);
    lien_space_free(&space);
    CHECK(side, space == NULL);
}

static void there(struct cf_side *side)
{
    if (side->role == CF_OWNER)
        give(side, side->test->arg);
    else
        take(side, side->test->arg);
}

static void back(struct cf_side *side)
{
    if (side->role == CF_READER)
        give(side, side->test->arg);
    else
        take(side, side->test->arg);
}

const struct cf_case cf_read_cases[] = {
    {.group = "read", .name = "read-0", .run = there, .arg = 0},
    {.group = "read", .name = "read-1", .run = there, .arg = 1},
    {.group = "read", .name = "read-4095", .run = there, .arg = 4095},
    {.group = "read", .name = "read-4096", .run = there, .arg = 4096},
    {.group = "read", .name = "read-4097", .run = there, .arg = 4097},
    {.group = "read", .name = "read-64KiB", .run = there, .arg = 64 * KIB},
    {.group = "read", .name = "read-1MiB", .run = there, .arg = MIB},
    {.group = "read",
     .name = "read-64MiB",
     .run = there,
     .arg = 64 * MIB,
     .settings = CF_UNHURRIED},
    {.group = "giant", .name = "read-1GiB", .run = there, .arg = GIB, .settings = CF_UNHURRIED},
    {.group = "read", .name = "back-0", .run = back, .arg = 0},
    {.group = "read", .name = "back-1", .run = back, .arg = 1},
    {.group = "read", .name = "back-4097", .run = back, .arg = 4097},
    {.group = "read", .name = "back-64KiB", .run = back, .arg = 64 * KIB},
    {.group = "read", .name = "back-64MiB", .run = back, .arg = 64 * MIB, .settings = CF_UNHURRIED},
    {0},
};
