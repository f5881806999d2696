// SPDX-License-Identifier: Apache-2.0
//
// The life of a grant: release, revoke, stale and foreign tokens, budgets.

#include <stdlib.h>
#include <string.h>

#include "tests/conformance/harness.h"

#define LEN 100000u

// What the owner's side of one grant needs.
struct granted {
    lien_buf *buf;
    lien_grant *grant;
    lien_token token;
    struct cf_op *op;
};

static struct granted give(struct cf_side *side, uint64_t len, unsigned flags)
{
    struct granted g = {.buf = cf_buf(side, len, 1, 0), .op = cf_op(side, "grant", false)};
    cf_offer(side, side->link, &g.buf, 1, flags, g.op, &g.token, &g.grant);
    return g;
}

static void given_back(struct cf_side *side, struct granted *g)
{
    cf_op_over(side, g->op, 0, 0);
    CHECK_RC(side, lien_grant_wait(g->grant, 0), 0);
    cf_scribble(side, &g->buf, 1);
    CHECK_RC(side, lien_grant_close(&g->grant), 0);
    lien_buf_free(&g->buf);
}

static void read_once(struct cf_side *side, const lien_token *token, unsigned flags)
{
    lien_space *space = cf_space_of(side, LEN);
    struct cf_op *op = cf_op(side, "read", true);
    CHECK_RC(side, cf_read(side->link, token, space, NULL, 0, flags, 0, op, NULL), 0);
    cf_op_over(side, op, 0, 0);
    cf_check_space(side, space, 1, 1, LEN);
    lien_space_free(&space);
}

// The grant does not hold any more: each use says so, nothing is posted, and the connection lives.
static void check_stale(struct cf_side *side, struct cf_link *link, const lien_token *token)
{
    lien_space *space = cf_space_of(side, LEN);
    uint64_t posted = cf_stats(side).read_pieces_posted, started = cf_stats(side).reads_started;
    lien_read *read = NULL;
    struct cf_op *op = cf_op(side, "stale read", true);
    CHECK_RC(side, cf_read(link, token, space, NULL, 0, LIEN_RELEASE, 0, op, &read), LIEN_ESTALE);
    CHECK(side, read == NULL);
    CHECK_RC(side, lien_release(link->conn, token->bytes, token->len), LIEN_ESTALE);
    CHECK_EQ(side, cf_stats(side).read_pieces_posted, posted);
    CHECK_EQ(side, cf_stats(side).reads_started, started);
    cf_check_space(side, space, 1, 1, 0); // unchanged
    lien_space_free(&space);
}

static void release(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        struct granted g = give(side, LEN, 0);
        cf_sync(side); // read, not released
        CHECK_EQ(side, atomic_load(&g.op->released), 0);
        CHECK_EQ(side, cf_info(side, side->link).grants_live, 1);
        CHECK_EQ(side, cf_info(side, side->link).grants_bytes, LEN);
        cf_sync(side);
        given_back(side, &g);
        CHECK_EQ(side, cf_info(side, side->link).grants_live, 0);
    } else {
        cf_take_token(side, side->link, &token);
        read_once(side, &token, 0);
        read_once(side, &token, 0);
        cf_sync(side);
        cf_sync(side);
        CHECK_RC(side, lien_release(side->link->conn, token.bytes, token.len), 0);
        check_stale(side, side->link, &token);
    }
    cf_alive(side, side->link);
}

static void release_unread(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        struct granted g = give(side, LEN, 0);
        given_back(side, &g);
    } else {
        cf_take_token(side, side->link, &token);
        CHECK_RC(side, lien_release(side->link->conn, token.bytes, token.len), 0);
        check_stale(side, side->link, &token);
    }
    cf_alive(side, side->link);
}

static void release_flag(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        struct granted g = give(side, LEN, 0);
        given_back(side, &g);
    } else {
        cf_take_token(side, side->link, &token);
        read_once(side, &token, LIEN_RELEASE);
        check_stale(side, side->link, &token);
    }
    cf_alive(side, side->link);
}

static void revoke_before(struct cf_side *side)
{
    unsigned flags = (unsigned)side->test->arg;
    lien_token token;
    if (side->role == CF_OWNER) {
        struct granted g = give(side, LEN, flags);
        CHECK_RC(side, lien_grant_revoke(g.grant), 0);
        CHECK_RC(side, lien_grant_revoke(g.grant), 0); // again: no effect
        given_back(side, &g);
        cf_sync(side);
    } else {
        cf_take_token(side, side->link, &token);
        cf_sync(side); // the release has arrived: the revoke was heard
        check_stale(side, side->link, &token);
    }
    cf_alive(side, side->link);
}

static void revoke_after(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        struct granted g = give(side, LEN, 0);
        cf_op_over(side, g.op, 0, 0);
        CHECK_RC(side, lien_grant_revoke(g.grant), 0);
        given_back(side, &g);
    } else {
        cf_take_token(side, side->link, &token);
        read_once(side, &token, LIEN_RELEASE);
    }
    cf_alive(side, side->link);
}

// Once for each of several pieces: revoked in the middle of a read.
static void revoke_while_reading(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        struct granted g = give(side, 64 * MIB, 0);
        char word;
        cf_hear(side, &word, 1);
        CHECK_RC(side, lien_grant_revoke(g.grant), 0);
        cf_tell(side, "r", 1);
        given_back(side, &g);
    } else {
        char word;
        lien_space *space = cf_space_of(side, 64 * MIB);
        struct cf_op *op = cf_op(side, "read", true);
        cf_take_token(side, side->link, &token);
        CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, 0, 0, op, NULL), 0);
        UNTIL(side, cf_stats(side).read_pieces_done >= 4);
        cf_tell(side, "4", 1);
        cf_hear_still(side, &word, 1);
        cf_op_over(side, op, LIEN_ESTALE, 0);
        CHECK(side, cf_stats(side).read_bytes < 64 * MIB);
        lien_space_free(&space);
        space = cf_space_of(side, LEN);
        op = cf_op(side, "read", true);
        CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, 0, 0, op, NULL), LIEN_ERANGE);
        lien_space_free(&space);
    }
    cf_alive(side, side->link);
}

static void revocable_read(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        struct granted g = give(side, LEN, LIEN_REVOCABLE);
        given_back(side, &g);
    } else {
        cf_take_token(side, side->link, &token);
        read_once(side, &token, LIEN_RELEASE);
    }
    cf_alive(side, side->link);
}

static void grant_close(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        struct granted g = give(side, LEN, 0);
        lien_grant_close(&g.grant); // revokes
        CHECK(side, g.grant == NULL);
        cf_op_over(side, g.op, 0, 0);
        lien_buf_free(&g.buf);
        cf_sync(side);
    } else {
        cf_take_token(side, side->link, &token);
        cf_sync(side);
        check_stale(side, side->link, &token);
    }
    cf_alive(side, side->link);
}

// -- Tokens --

static void foreign_token(struct cf_side *side)
{
    lien_token token;
    struct cf_link *other = cf_connect(side, side->listener, 0);
    if (side->role == CF_OWNER) {
        struct granted g = give(side, LEN, 0);
        cf_sync(side);
        CHECK_EQ(side, atomic_load(&g.op->released), 0);
        cf_sync(side);
        given_back(side, &g);
    } else {
        lien_token_info info = {.size = sizeof(info)};
        cf_take_token(side, side->link, &token);
        check_stale(side, other, &token);
        CHECK_RC(side, lien_token_open(other->conn, token.bytes, token.len, &info), LIEN_ESTALE);
        cf_sync(side);
        cf_sync(side);
        read_once(side, &token, LIEN_RELEASE);
    }
    cf_alive(side, other);
    cf_alive(side, side->link);
}

static void malformed_token(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        struct granted g = give(side, LEN, 0);
        given_back(side, &g);
    } else {
        lien_token_info info = {.size = sizeof(info)};
        lien_space *space = cf_space_of(side, LEN);
        cf_take_token(side, side->link, &token);
        uint64_t started = cf_stats(side).reads_started;
        for (uint32_t len = 0; len < token.len; len++) {
            lien_token cut = {.len = len};
            memcpy(cut.bytes, token.bytes, len);
            struct cf_op *op = cf_op(side, "cut token", true);
            CHECK_RC(side, cf_read(side->link, &cut, space, NULL, 0, 0, 0, op, NULL), LIEN_EPROTO);
            CHECK_RC(side, lien_release(side->link->conn, cut.bytes, len), LIEN_EPROTO);
            CHECK_RC(side, lien_token_open(side->link->conn, cut.bytes, len, &info), LIEN_EPROTO);
        }
        CHECK_EQ(side, cf_stats(side).reads_started, started);
        lien_space_free(&space);
        read_once(side, &token, LIEN_RELEASE);
    }
    cf_alive(side, side->link);
}

static void token_info(struct cf_side *side)
{
    lien_token token;
    uint64_t lens[64];
    if (side->role == CF_OWNER) {
        lien_buf *bufs[64];
        lien_grant *grant;
        for (unsigned i = 0; i < 64; i++)
            lens[i] = 100 + i;
        cf_bufs(side, lens, 64, 1, bufs);
        struct cf_op *op = cf_op(side, "grant", false);
        cf_offer(side, side->link, bufs, 64, 0, op, &token, &grant);
        CHECK(side, token.len <= LIEN_TOKEN_MAX);
        uint64_t id = cf_info(side, side->link).id;
        cf_tell(side, &id, sizeof(id));
        cf_op_over(side, op, 0, 0);
        CHECK_RC(side, lien_grant_close(&grant), 0);
        cf_free_bufs(bufs, 64);
    } else {
        uint64_t id;
        lien_token_info info = {.size = sizeof(info)};
        cf_take_token(side, side->link, &token);
        cf_hear(side, &id, sizeof(id));
        CHECK_RC(side, lien_token_open(side->link->conn, token.bytes, token.len, &info), 0);
        CHECK_EQ(side, info.conn, id);
        CHECK_EQ(side, info.conn, cf_info(side, side->link).id);
        CHECK_EQ(side, info.len, 64 * 100 + 63 * 64 / 2);
        CHECK_EQ(side, info.bufs, 64);
        CHECK(side, info.held);
        CHECK_RC(side, lien_release(side->link->conn, token.bytes, token.len), 0);
    }
}

// -- Many, and limits --

// Names are used again, with new generations: old tokens stay stale.
static void many_in_turn(struct cf_side *side)
{
    enum {
        TURNS = 400
    };
    lien_token first = {0}, token;
    for (unsigned i = 0; i < TURNS; i++) {
        if (side->role == CF_OWNER) {
            lien_buf *buf = cf_buf(side, 5000, i, 0);
            lien_grant *grant;
            struct cf_op *op = cf_op(side, "grant", false);
            cf_offer(side, side->link, &buf, 1, 0, op, &token, &grant);
            lien_buf_free(&buf);
            cf_op_over(side, op, 0, 0);
            CHECK_RC(side, lien_grant_close(&grant), 0);
            continue;
        }
        cf_take_token(side, side->link, &token);
        if (i == 0)
            first = token;
        lien_space *space = cf_space_of(side, 5000);
        struct cf_op *op = cf_op(side, "read", true);
        CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, LIEN_RELEASE, 0, op, NULL), 0);
        cf_op_over(side, op, 0, 0);
        cf_check_space(side, space, 1, i, 5000);
        lien_space_free(&space);
    }
    if (side->role == CF_READER)
        CHECK_RC(side, lien_release(side->link->conn, first.bytes, first.len), LIEN_ESTALE);
    cf_alive(side, side->link);
}

// Settings leave room for three grants, by number or by bytes.
static void budget(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        struct granted g[4];
        for (unsigned i = 0; i < 3; i++)
            g[i] = give(side, LEN, 0);
        lien_grant *grant = NULL;
        void *p;
        lien_buf *buf = cf_buf(side, LEN, 1, 0);
        CHECK_RC(side, lien_grant_open(side->link->conn, &buf, 1, NULL, &token, &grant),
                 LIEN_ELIMIT);
        CHECK(side, grant == NULL);
        CHECK_RC(side, lien_buf_mut(buf, &p), 0); // not lent
        lien_buf_free(&buf);
        CHECK_EQ(side, cf_info(side, side->link).grants_live, 3);
        cf_sync(side);
        given_back(side, &g[0]);
        g[3] = give(side, LEN, 0); // there is room again
        for (unsigned i = 1; i < 4; i++)
            given_back(side, &g[i]);
    } else {
        cf_sync(side);
        for (unsigned i = 0; i < 4; i++) {
            cf_take_token(side, side->link, &token);
            read_once(side, &token, LIEN_RELEASE);
        }
    }
    cf_alive(side, side->link);
}

// One buffer in several grants: writable after the last.
static void one_buffer_twice(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        lien_buf *buf = cf_buf(side, LEN, 1, 0);
        lien_grant *grants[2];
        struct cf_op *ops[2];
        void *p;
        for (unsigned i = 0; i < 2; i++) {
            ops[i] = cf_op(side, "grant", false);
            cf_offer(side, side->link, &buf, 1, 0, ops[i], &token, &grants[i]);
        }
        cf_op_over(side, ops[0], 0, 0);
        CHECK_RC(side, lien_buf_mut(buf, &p), LIEN_EBUSY);
        CHECK_RC(side, lien_buf_set_len(buf, 5), LIEN_EBUSY);
        cf_sync(side);
        cf_op_over(side, ops[1], 0, 0);
        CHECK_RC(side, lien_buf_mut(buf, &p), 0);
        for (unsigned i = 0; i < 2; i++)
            CHECK_RC(side, lien_grant_close(&grants[i]), 0);
        lien_buf_free(&buf);
    } else {
        cf_take_token(side, side->link, &token);
        read_once(side, &token, LIEN_RELEASE);
        cf_take_token(side, side->link, &token);
        cf_sync(side);
        read_once(side, &token, LIEN_RELEASE);
    }
}

const struct cf_case cf_grant_cases[] = {
    {.group = "grant", .name = "release", .run = release},
    {.group = "grant", .name = "release-unread", .run = release_unread},
    {.group = "grant", .name = "release-flag", .run = release_flag},
    {.group = "grant", .name = "revoke-before-read", .run = revoke_before},
    {.group = "grant", .name = "revoke-while-reading", .run = revoke_while_reading},
    {.group = "grant", .name = "revoke-after-release", .run = revoke_after},
    {.group = "grant", .name = "revocable-read", .run = revocable_read},
    {.group = "grant", .name = "revocable-revoke", .run = revoke_before, .arg = LIEN_REVOCABLE},
    {.group = "grant", .name = "grant-close", .run = grant_close},
    {.group = "grant", .name = "token-of-another-conn", .run = foreign_token},
    {.group = "grant", .name = "token-malformed", .run = malformed_token},
    {.group = "grant", .name = "token-info", .run = token_info},
    {.group = "grant", .name = "many-in-turn", .run = many_in_turn},
    {.group = "grant", .name = "one-buffer-twice", .run = one_buffer_twice},
    {.group = "grant", .name = "budget-grants", .run = budget, .settings = {"grants_conn=3"}},
    {.group = "grant",
     .name = "budget-conn-bytes",
     .run = budget,
     .settings = {"held_conn_bytes=300000"}},
    {.group = "grant",
     .name = "budget-total-bytes",
     .run = budget,
     .settings = {"held_total_bytes=300000"}},
    {0},
};
