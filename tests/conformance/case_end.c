// SPDX-License-Identifier: Apache-2.0
//
// Reads that end before their bytes are there: cancel, timeout, close on either side; memory freed while lent.

#include "tests/conformance/harness.h"

#define BIG   (64 * MIB)
#define SMALL 50000u

// Two grants: a big one, and a small one for other reads of the connection.
static void owner(struct cf_side *side)
{
    const uint64_t lens[2] = {BIG, SMALL};
    lien_token token;
    lien_grant *grants[2];
    lien_buf *bufs[2];
    struct cf_op *ops[2];
    for (unsigned i = 0; i < 2; i++) {
        bufs[i] = cf_buf(side, lens[i], 1 + i, 0);
        ops[i] = cf_op(side, "grant", false);
        cf_offer(side, side->link, &bufs[i], 1, 0, ops[i], &token, &grants[i]);
    }
    for (unsigned i = 0; i < 2; i++) {
        cf_op_over(side, ops[i], 0, 0);
        CHECK_RC(side, lien_grant_close(&grants[i]), 0);
        lien_buf_free(&bufs[i]);
    }
    cf_alive(side, side->link);
}

// Starts the big read and stops the owner in its middle; again, with twice the time, if it was over too soon.
static struct cf_op *into_the_middle(struct cf_side *side, const lien_token *token,
                                     lien_space *space, uint32_t *timeout_ms, lien_read **read,
                                     uint64_t *since)
{
    for (unsigned i = 0; i < 20; i++) {
        struct cf_op *op = cf_op(side, "big read", true);
        lien_ctx_stats before = cf_stats(side);
        *since = side->driver->now_ms(side);
        CHECK_RC(side, cf_read(side->link, token, space, NULL, 0, 0, *timeout_ms, op, read), 0);
        if (cf_freeze_in_middle(side, &before, BIG, op))
            return op;
        UNTIL(side, atomic_load(&op->released));
        if (read)
            CHECK_RC(side, lien_read_close(read), 0);
        *timeout_ms *= 2;
    }
    FAIL(side, "no read could be stopped in its middle");
}

// Done is known at once; the space is back only after the owner went on and the rest has its evidence; other reads do not notice.
static void ended_early(struct cf_side *side, uint32_t timeout_ms, int status,
                        void (*end)(struct cf_side *side, lien_read **read))
{
    lien_token big, small;
    lien_buf *got;
    lien_read *read;
    cf_take_token(side, side->link, &big);
    cf_take_token(side, side->link, &small);
    lien_space *space = cf_space_of(side, BIG), *other = cf_space_of(side, SMALL);
    uint64_t since;
    struct cf_op *op = into_the_middle(side, &big, space, &timeout_ms, &read, &since);
    uint64_t bytes = cf_stats(side).read_bytes;
    struct cf_op *second = cf_op(side, "other read", true);
    CHECK_RC(side, cf_read(side->link, &small, other, NULL, 0, LIEN_RELEASE, 0, second, NULL), 0);
    end(side, &read);
    UNTIL(side, atomic_load(&op->done));
    uint64_t took = side->driver->now_ms(side) - since;
    CHECK_RC(side, atomic_load(&op->status), status);
    CHECK(side, took >= timeout_ms);
    cf_lent_while_frozen(side, op, space, 1);
    side->driver->thaw(side);
    cf_op_over(side, op, status, 0);
    CHECK_RC(side, lien_space_buf(space, 0, &got), 0);
    cf_op_over(side, second, 0, 0);
    cf_check_space(side, other, 1, 2, SMALL);
    // The rest was never posted. Where a device serves on, READs went on until the end of the waiting.
    CHECK(side, side->driver->serves_frozen || cf_stats(side).read_bytes - bytes < 16 * MIB);
    struct cf_op *again = cf_op(side, "the read again", true);
    CHECK_RC(side, cf_read(side->link, &big, space, NULL, 0, LIEN_RELEASE, 0, again, NULL), 0);
    cf_op_over(side, again, 0, 0);
    cf_check_space(side, space, 1, 1, BIG);
    lien_space_free(&space);
    lien_space_free(&other);
    if (read)
        CHECK_RC(side, lien_read_close(&read), 0);
    cf_alive(side, side->link);
}

static void by_cancel(struct cf_side *side, lien_read **read)
{
    CHECK_RC(side, lien_read_cancel(*read), 0);
    CHECK_RC(side, lien_read_cancel(*read), 0); // again: no effect
}

static void by_handle(struct cf_side *side, lien_read **read)
{
    CHECK_RC(side, lien_read_close(read), 0);
    CHECK(side, *read == NULL);
}

static void by_itself(struct cf_side *side, lien_read **read)
{
    (void)side;
    (void)read;
}

static void cancel(struct cf_side *side)
{
    if (side->role == CF_OWNER)
        owner(side);
    else
        ended_early(side, 0, LIEN_ECANCELED, by_cancel);
}

static void handle_closed(struct cf_side *side)
{
    if (side->role == CF_OWNER)
        owner(side);
    else
        ended_early(side, 0, LIEN_ECANCELED, by_handle);
}

static void timeout(struct cf_side *side)
{
    if (side->role == CF_OWNER)
        owner(side);
    else
        ended_early(side, 1000, LIEN_ETIMEDOUT, by_itself);
}

// A timer that comes when all is over does nothing; nor does a cancel.
static void too_late(struct cf_side *side)
{
    if (side->role == CF_OWNER) {
        owner(side);
        return;
    }
    lien_token big, small;
    lien_read *read;
    cf_take_token(side, side->link, &big);
    cf_take_token(side, side->link, &small);
    lien_space *space = cf_space_of(side, SMALL);
    struct cf_op *op = cf_op(side, "read", true);
    CHECK_RC(side, cf_read(side->link, &small, space, NULL, 0, LIEN_RELEASE, 5000, op, &read), 0);
    cf_op_over(side, op, 0, 0);
    CHECK_RC(side, lien_read_cancel(read), 0);
    CHECK_RC(side, lien_read_close(&read), 0);
    cf_check_space(side, space, 1, 2, SMALL);
    lien_space_free(&space);
    CHECK_RC(side, lien_release(side->link->conn, big.bytes, big.len), 0);
    cf_alive(side, side->link);
}

// -- Close --

static struct cf_op *big_grant(struct cf_side *side, lien_buf **buf, lien_grant **grant)
{
    lien_token token;
    struct cf_op *op = cf_op(side, "grant", false);
    *buf = cf_buf(side, BIG, 1, 0);
    cf_offer(side, side->link, buf, 1, 0, op, &token, grant);
    return op;
}

static void lost_by_close(struct cf_side *side)
{
    UNTIL(side, atomic_load(&side->link->lost));
    CHECK_RC(side, atomic_load(&side->link->lost_status), LIEN_ECLOSED);
    CHECK(side, !cf_info(side, side->link).open);
    CHECK_RC(side, lien_send(side->link->conn, NULL, 0, NULL, 0, NULL), LIEN_ECLOSED);
    cf_close(side, side->link);
}

static void close_by_reader(struct cf_side *side)
{
    if (side->role == CF_OWNER) {
        lien_buf *buf;
        lien_grant *grant;
        void *p;
        struct cf_op *op = big_grant(side, &buf, &grant);
        lost_by_close(side);
        cf_op_over(side, op, 0, 0);
        CHECK_RC(side, lien_buf_mut(buf, &p), 0);
        CHECK_RC(side, lien_grant_close(&grant), 0);
        lien_buf_free(&buf);
        return;
    }
    lien_token token;
    lien_space *space = cf_space_of(side, BIG);
    struct cf_op *op = cf_op(side, "read", true);
    cf_take_token(side, side->link, &token);
    CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, 0, 0, op, NULL), 0);
    UNTIL(side, cf_stats(side).read_pieces_done >= 4);
    cf_close(side, side->link);
    cf_op_over(side, op, LIEN_ECLOSED, 0);
    CHECK_RC(side, lien_space_wait(space, 0), 0);
    lien_space_free(&space);
}

static void close_by_owner(struct cf_side *side)
{
    char word;
    if (side->role == CF_OWNER) {
        lien_buf *buf;
        lien_grant *grant;
        struct cf_op *op = big_grant(side, &buf, &grant);
        cf_hear(side, &word, 1);
        CHECK_RC(side, lien_conn_close(&side->link->conn), 0);
        cf_tell(side, "c", 1);
        UNTIL(side, atomic_load(&side->link->closed));
        cf_op_over(side, op, 0, 0);
        CHECK_RC(side, lien_grant_close(&grant), 0);
        lien_buf_free(&buf);
        return;
    }
    lien_token token;
    lien_space *space = cf_space_of(side, BIG);
    struct cf_op *op = cf_op(side, "read", true);
    cf_take_token(side, side->link, &token);
    CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, 0, 0, op, NULL), 0);
    UNTIL(side, cf_stats(side).read_pieces_done >= 4);
    cf_tell(side, "4", 1);
    cf_hear_still(side, &word, 1);
    lost_by_close(side);
    cf_op_over(side, op, LIEN_ECLOSED, 0);
    CHECK_RC(side, lien_space_wait(space, 0), 0);
    lien_space_free(&space);
}

// Messages that were sent before the close arrive.
static void close_after_send(struct cf_side *side)
{
    enum {
        MESSAGES = 20
    };
    if (side->role == CF_READER) {
        lien_buf *bufs[MESSAGES];
        struct cf_op *ops[MESSAGES];
        for (unsigned i = 0; i < MESSAGES; i++) {
            bufs[i] = cf_buf(side, 100000, i, 0);
            ops[i] = cf_op(side, "message", true);
            cf_send(side, side->link, &i, sizeof(i), &bufs[i], i % 2, ops[i]);
        }
        CHECK_RC(side, lien_conn_close(&side->link->conn), 0);
        for (unsigned i = 0; i < MESSAGES; i++) {
            cf_op_over(side, ops[i], 0, 0);
            lien_buf_free(&bufs[i]);
        }
        UNTIL(side, atomic_load(&side->link->closed));
        return;
    }
    for (unsigned i = 0; i < MESSAGES; i++) {
        const void *head;
        size_t len;
        lien_msg *msg = cf_recv(side, side->link);
        CHECK_RC(side, lien_msg_head(msg, &head, &len), 0);
        CHECK(side, len == sizeof(i) && *(const uint8_t *)head == i);
        CHECK(side, (lien_msg_body(msg) != NULL) == (i % 2 != 0));
        if (lien_msg_body(msg))
            cf_check_buf(side, lien_msg_body(msg), i, 0);
        lien_msg_free(&msg);
    }
    lost_by_close(side);
}

// The whole ctx goes, with a read, a grant and a listener open.
static void close_ctx(struct cf_side *side)
{
    lien_token token;
    lien_buf *buf;
    lien_grant *grant;
    if (side->role == CF_OWNER) {
        struct cf_op *op = big_grant(side, &buf, &grant);
        lost_by_close(side);
        cf_op_over(side, op, 0, 0);
        CHECK_RC(side, lien_grant_close(&grant), 0);
        lien_buf_free(&buf);
        return;
    }
    struct cf_op *op = cf_op(side, "read", true);
    lien_space *space = cf_space_of(side, BIG);
    cf_take_token(side, side->link, &token);
    CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, 0, 0, op, NULL), 0);
    UNTIL(side, cf_stats(side).read_pieces_done >= 4);
    lien_space_free(&space); // deferred
    int rc;
    UNTIL(side, (rc = lien_ctx_close(&side->ctx)) != LIEN_EDEADLK);
    CHECK_RC(side, rc, 0);
    CHECK(side, side->ctx == NULL);
    CHECK_RC(side, atomic_load(&op->status), LIEN_ECLOSED);
    CHECK_EQ(side, atomic_load(&op->released), 1);
    CHECK_EQ(side, atomic_load(&side->link->closed), 1);
}

// -- Freed while lent --

static void space_freed(struct cf_side *side)
{
    if (side->role == CF_OWNER) {
        owner(side);
        return;
    }
    lien_token big, small;
    cf_take_token(side, side->link, &big);
    cf_take_token(side, side->link, &small);
    lien_space *space = cf_space_of(side, BIG);
    uint32_t never = 0;
    uint64_t since;
    struct cf_op *op = into_the_middle(side, &big, space, &never, NULL, &since);
    lien_space_free(&space);
    CHECK(side, space == NULL);
    CHECK(side, cf_stats(side).pool_bytes >= BIG); // still out
    side->driver->thaw(side);
    cf_op_over(side, op, 0, 0);
    UNTIL(side, cf_stats(side).pool_bytes < BIG);
    CHECK_RC(side, lien_release(side->link->conn, big.bytes, big.len), 0);
    CHECK_RC(side, lien_release(side->link->conn, small.bytes, small.len), 0);
    cf_alive(side, side->link);
}

static void buf_freed(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        lien_buf *buf;
        lien_grant *grant;
        struct cf_op *op = big_grant(side, &buf, &grant);
        lien_buf_free(&buf);
        CHECK(side, buf == NULL);
        // Memory that was given back would be handed out here.
        lien_buf *next = cf_buf(side, BIG, 77, 0);
        CHECK(side, cf_stats(side).pool_bytes >= 2 * BIG);
        cf_sync(side);
        cf_op_over(side, op, 0, 0);
        UNTIL(side, cf_stats(side).pool_bytes < 2 * BIG);
        CHECK_RC(side, lien_grant_close(&grant), 0);
        lien_buf_free(&next);
    } else {
        lien_space *space = cf_space_of(side, BIG);
        struct cf_op *op = cf_op(side, "read", true);
        cf_take_token(side, side->link, &token);
        cf_sync(side);
        CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, LIEN_RELEASE, 0, op, NULL), 0);
        cf_op_over(side, op, 0, 0);
        cf_check_space(side, space, 1, 1, BIG);
        lien_space_free(&space);
    }
    cf_alive(side, side->link);
}

const struct cf_case cf_end_cases[] = {
    {.group = "end", .name = "cancel-64MiB", .run = cancel, .arg = BIG, .settings = CF_UNHURRIED},
    {.group = "end", .name = "timeout-64MiB", .run = timeout, .arg = BIG, .settings = CF_UNHURRIED},
    {.group = "end",
     .name = "read-close-64MiB",
     .run = handle_closed,
     .arg = BIG,
     .settings = CF_UNHURRIED},
    {.group = "end", .name = "cancel-too-late", .run = too_late, .arg = BIG},
    {.group = "end",
     .name = "close-by-reader",
     .run = close_by_reader,
     .arg = BIG,
     .flags = CF_ENDS},
    {.group = "end", .name = "close-by-owner", .run = close_by_owner, .arg = BIG, .flags = CF_ENDS},
    {.group = "end", .name = "close-after-send", .run = close_after_send, .flags = CF_ENDS},
    {.group = "end", .name = "close-ctx", .run = close_ctx, .arg = BIG, .flags = CF_ENDS},
    {.group = "end",
     .name = "space-freed-while-lent",
     .run = space_freed,
     .arg = BIG,
     .settings = CF_UNHURRIED},
    {.group = "end", .name = "buf-freed-while-granted", .run = buf_freed, .arg = BIG},
    {0},
};
