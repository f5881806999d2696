// SPDX-License-Identifier: Apache-2.0
//
// What does not trust the peer or the network (R16): checksums, zeroing, and when granted memory is used again. That a READ succeeds and writes nothing only the simulator can be told (test_reuse);
// here the owner breaks its word instead, and writes into what it lent.

#include <string.h>

#include "tests/conformance/harness.h"

#define LEN   UINT64_C(300000) // the thread for checksums compares it
#define PAGE  UINT64_C(4096)
#define PIECE UINT64_C(5000)

// A pool that the application can write into at any time.
static lien_pool *pool_of(struct cf_side *side, unsigned flags, lien_reuse reuse)
{
    lien_pool *pool;
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.limit = (size_t)4 << 20;
    opts.reserve = 0;
    opts.flags = flags | LIEN_UNGUARDED;
    opts.reuse = reuse;
    CHECK_RC(side, lien_pool_open(side->ctx, &opts, &pool), 0);
    return pool;
}

static lien_buf *buf_of(struct cf_side *side, lien_pool *pool, uint64_t len, uint8_t **data)
{
    lien_buf *buf;
    void *bytes;
    CHECK_RC(side, lien_pool_alloc(pool, len, &buf), 0);
    CHECK_RC(side, lien_buf_mut(buf, &bytes), 0);
    *data = bytes;
    return buf;
}

// Reads the whole grant into one buffer, or as the operations say.
static void read_it(struct cf_side *side, struct cf_link *link, const lien_token *token,
                    uint64_t len, int status)
{
    lien_space *space = cf_space_of(side, len);
    struct cf_op *op = cf_op(side, "read", true);
    CHECK_RC(side, cf_read(link, token, space, NULL, 0, LIEN_RELEASE, 0, op, NULL), 0);
    cf_op_over(side, op, status, 0);
    if (status == 0)
        cf_check_space(side, space, 1, 1, len);
    lien_space_free(&space);
}

// -- Checksums --

static void checksum_holds(struct cf_side *side)
{
    static const uint64_t lens[] = {1, PIECE, LEN, 3 * PIECE};
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        lien_token token;
        if (side->role == CF_OWNER) {
            lien_buf *buf = cf_buf(side, lens[i], 1, 0);
            lien_grant *grant;
            struct cf_op *op = cf_op(side, "grant", false);
            cf_offer(side, side->link, &buf, 1, LIEN_CHECKSUM, op, &token, &grant);
            cf_op_over(side, op, 0, 0);
            CHECK_RC(side, lien_grant_close(&grant), 0);
            lien_buf_free(&buf);
        } else {
            lien_token_info info = {.size = sizeof(info)};
            cf_take_token(side, side->link, &token);
            CHECK_RC(side, lien_token_open(side->link->conn, token.bytes, token.len, &info), 0);
            CHECK(side, info.checksum && info.held);
            read_it(side, side->link, &token, lens[i], 0);
        }
    }
    CHECK_EQ(side, cf_stats(side).checksums_wrong, 0);
}

// The owner writes into memory that it lent. Without a checksum nobody knows.
static void checksum_broken(struct cf_side *side)
{
    static const uint64_t lens[] = {PIECE, LEN};
    lien_pool *pool = side->role == CF_OWNER ? pool_of(side, 0, LIEN_REUSE_RELEASE) : NULL;
    for (unsigned i = 0; i < 4; i++) {
        const bool with = i % 2 != 0;
        const uint64_t len = lens[i / 2];
        lien_token token;
        if (side->role == CF_OWNER) {
            uint8_t *data;
            lien_buf *buf = buf_of(side, pool, len, &data);
            cf_fill(side, data, len, 1, 0);
            lien_grant *grant;
            struct cf_op *op = cf_op(side, "grant", false);
            lien_grant_opts opts;
            lien_grant_opts_init(&opts);
            opts.flags = with ? LIEN_CHECKSUM : 0;
            opts.on_released = cf_op_released;
            opts.arg = op;
            CHECK_RC(side, lien_grant_open(side->link->conn, &buf, 1, &opts, &token, &grant), 0);
            data[len - 1] ^= 1;
            cf_send(side, side->link, token.bytes, token.len, NULL, 0, NULL);
            cf_op_over(side, op, 0, 0);
            CHECK_RC(side, lien_grant_close(&grant), 0);
            lien_buf_free(&buf);
        } else {
            cf_take_token(side, side->link, &token);
            lien_space *space = cf_space_of(side, len);
            struct cf_op *op = cf_op(side, "read", true);
            CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, LIEN_RELEASE, 0, op, NULL),
                     0);
            cf_op_over(side, op, with ? LIEN_ECHECKSUM : 0, 0);
            lien_space_free(&space);
            CHECK_EQ(side, cf_stats(side).checksums_wrong, (i + 1) / 2);
        }
    }
    if (pool)
        CHECK_RC(side, lien_pool_close(&pool), 0);
    cf_sync(side);
    cf_alive(side, side->link);
}

static void checksum_parts(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        lien_buf *bufs[2] = {cf_buf(side, PIECE, 1, 0), cf_buf(side, PIECE, 1, PIECE)};
        lien_grant *grant;
        struct cf_op *op = cf_op(side, "grant", false);
        cf_offer(side, side->link, bufs, 2, LIEN_CHECKSUM, op, &token, &grant);
        cf_op_over(side, op, 0, 0);
        CHECK_RC(side, lien_grant_close(&grant), 0);
        cf_free_bufs(bufs, 2);
        return;
    }
    const lien_op part = {1, 0, PIECE}, second = {PIECE, 0, PIECE}, none = {17, 0, 0};
    lien_space *space = cf_space_of(side, PIECE);
    cf_take_token(side, side->link, &token);
    struct cf_op *refused = cf_op(side, "part", true);
    CHECK_RC(side, cf_read(side->link, &token, space, &part, 1, 0, 0, refused, NULL),
             LIEN_EPARTIAL);
    cf_check_space(side, space, 1, 1, 0);
    struct cf_op *op = cf_op(side, "nothing", true);
    CHECK_RC(side, cf_read(side->link, &token, space, &none, 1, 0, 0, op, NULL), 0);
    cf_op_over(side, op, 0, 0);
    op = cf_op(side, "second buffer", true);
    CHECK_RC(side, cf_read(side->link, &token, space, &second, 1, LIEN_RELEASE, 0, op, NULL), 0);
    cf_op_over(side, op, 0, 0);
    cf_check_ops(side, space, 1, 1, &second, 1);
    lien_space_free(&space);
}

// Messages, calls, reads and writes of calls, replies, where both sides demand checksums (option).
static void checksum_demanded(struct cf_side *side)
{
    if (side->role == CF_OWNER) {
        lien_request *request = cf_request(side);
        CHECK_EQ(side, lien_buf_len(lien_request_body(request)), LEN);
        cf_check_buf(side, lien_request_body(request), 1, 0);
        lien_space *space = cf_space_of(side, LEN);
        cf_request_read(side, request, space, NULL, 0);
        cf_check_space(side, space, 1, 2, LEN);
        lien_space_free(&space);
        lien_buf *out = cf_buf(side, LEN, 3, 0), *body = cf_buf(side, LEN, 4, 0);
        cf_request_write(side, request, &out, 1, NULL, 0);
        lien_buf_free(&out);
        CHECK_RC(side, lien_request_reply_body(&request, 0, NULL, 0, &body, 1), 0);
        cf_sync(side);
    } else {
        lien_buf *body = cf_buf(side, LEN, 1, 0), *source = cf_buf(side, LEN, 2, 0);
        lien_space *space = cf_space_of(side, LEN);
        struct cf_op *op = cf_op(side, "call", true);
        lien_call_opts opts = cf_call_opts(op);
        opts.body = &body;
        opts.n_body = 1;
        opts.read = &source;
        opts.n_read = 1;
        opts.write = space;
        opts.reply_max = LEN;
        cf_call(side, side->link, "cf/desk", "x", 1, &opts, NULL);
        cf_op_over(side, op, 0, 0);
        cf_check_space(side, space, 1, 3, LEN);
        CHECK(side, op->reply != NULL);
        cf_check_buf(side, lien_msg_body(op->reply), 4, 0);
        lien_msg_free(&op->reply);
        lien_space_free(&space);
        lien_buf_free(&body);
        lien_buf_free(&source);
        cf_sync(side);
    }
    CHECK_EQ(side, cf_stats(side).checksums_wrong, 0);
}

// -- Zeroing --

static void zero(struct cf_side *side)
{
    lien_pool *pool = pool_of(side, LIEN_ZERO, LIEN_REUSE_RELEASE);
    uint8_t *data, *first = NULL;
    for (unsigned i = 0; i < 3; i++) {
        lien_buf *buf = buf_of(side, pool, LEN - i, &data);
        if (i > 0)
            CHECK(side, data == first);
        first = data;
        for (size_t at = 0; at < lien_buf_capacity(buf); at++)
            CHECK_EQ(side, data[at], 0);
        memset(data, 0xaa, lien_buf_capacity(buf));
        lien_buf_free(&buf);
    }
    CHECK_RC(side, lien_pool_close(&pool), 0);
    cf_sync(side);
}

// -- Reuse --

// The owner grants a buffer of its pool over the link, the reader reads it and releases it, and the owner frees it. Returns where it was.
static const uint8_t *granted_once(struct cf_side *side, struct cf_link *link, lien_pool *pool)
{
    lien_token token;
    if (side->role == CF_READER) {
        cf_take_token(side, link, &token);
        read_it(side, link, &token, PIECE, 0);
        return NULL;
    }
    uint8_t *data;
    lien_buf *buf = buf_of(side, pool, PIECE, &data);
    lien_grant *grant;
    struct cf_op *op = cf_op(side, "grant", false);
    cf_fill(side, data, PIECE, 1, 0);
    cf_offer(side, link, &buf, 1, 0, op, &token, &grant);
    cf_op_over(side, op, 0, 0);
    CHECK_RC(side, lien_grant_close(&grant), 0);
    void *mut;
    CHECK_RC(side, lien_buf_mut(buf, &mut), 0); // its holder's again, in any case
    lien_buf_free(&buf);
    return data;
}

// What the pool hands out next.
static const uint8_t *next(struct cf_side *side, lien_pool *pool)
{
    uint8_t *data;
    lien_buf *buf = buf_of(side, pool, PIECE, &data);
    lien_buf_free(&buf);
    return data;
}

static void reuse_proven(struct cf_side *side)
{
    struct cf_link *link = cf_connect(side, side->listener, 0);
    lien_pool *pool = NULL;
    if (side->role == CF_OWNER) {
        pool = pool_of(side, 0, LIEN_REUSE_RELEASE);
        const uint8_t *first = granted_once(side, link, pool);
        CHECK(side, next(side, pool) == first); // trusted: at once
        CHECK_RC(side, lien_pool_close(&pool), 0);
        pool = pool_of(side, 0, LIEN_REUSE_PROVEN);
        first = granted_once(side, link, pool);
        CHECK_EQ(side, cf_stats(side).exposed_bytes, 2 * PAGE);
        CHECK(side, next(side, pool) != first);
        const uint8_t *second = granted_once(side, side->link, pool);
        CHECK(side, second != first);
        CHECK_EQ(side, cf_stats(side).exposed_bytes, 4 * PAGE);
        cf_sync(side); // the reader may close now: that end is proof, too
        cf_close(side, link);
        UNTIL(side, cf_stats(side).exposed_bytes == 2 * PAGE); // the other connection's stays out
        CHECK(side, next(side, pool) == first);
        CHECK_RC(side, lien_pool_close(&pool), 0);
    } else {
        granted_once(side, link, NULL);
        granted_once(side, link, NULL);
        granted_once(side, side->link, NULL);
        cf_sync(side);
        cf_close(side, link);
    }
    cf_sync(side);
    cf_alive(side, side->link);
}

static void reuse_peer(struct cf_side *side)
{
    struct cf_link *link = cf_connect(side, side->listener, 0);
    if (side->role == CF_OWNER) {
        lien_pool *pool = pool_of(side, 0, LIEN_REUSE_PEER);
        const uint8_t *first = granted_once(side, link, pool);
        CHECK(side, next(side, pool) == first);
        lien_token token;
        lien_grant *grant;
        uint8_t *data;
        lien_buf *buf = buf_of(side, pool, PIECE, &data);
        CHECK_RC(side, lien_grant_open(side->link->conn, &buf, 1, NULL, &token, &grant),
                 LIEN_ESTATE);
        lien_buf_free(&buf);
        granted_once(side, link, pool);
        CHECK_RC(side, lien_pool_close(&pool), 0);
    } else {
        granted_once(side, link, NULL);
        granted_once(side, link, NULL);
    }
    cf_close(side, link);
    cf_sync(side);
}

const struct cf_case cf_reuse_cases[] = {
    {.group = "reuse", .name = "checksum-holds", .run = checksum_holds},
    {.group = "reuse", .name = "checksum-broken", .run = checksum_broken},
    {.group = "reuse", .name = "checksum-parts", .run = checksum_parts},
    {.group = "reuse",
     .name = "checksum-demanded",
     .run = checksum_demanded,
     .settings = {"checksum=require"}},
    {.group = "reuse", .name = "zero", .run = zero},
    {.group = "reuse", .name = "reuse-proven", .run = reuse_proven},
    {.group = "reuse", .name = "reuse-peer", .run = reuse_peer},
    {0},
};
