// SPDX-License-Identifier: Apache-2.0
//
// Messages: heads and bodies by size, order, credits, limits.

#include <stdlib.h>
#include <string.h>

#include "tests/conformance/harness.h"

// The next message has this head, and this body (0: none), which is freed.
static void expect(struct cf_side *side, unsigned gen_head, size_t head_len, unsigned gen_body,
                   uint64_t body_len)
{
    const void *head;
    size_t len;
    uint64_t bad;
    lien_msg *msg = cf_recv(side, side->link);
    CHECK_RC(side, lien_msg_head(msg, &head, &len), 0);
    CHECK_EQ(side, len, head_len);
    if (!cf_same(side, head, len, gen_head, 0, &bad))
        FAIL(side, "head of %zu bytes: byte %llu is wrong", len, (unsigned long long)bad);
    lien_buf *body = lien_msg_body(msg);
    CHECK_EQ(side, body ? lien_buf_len(body) : 0, body_len);
    if (body) {
        lien_buf *taken;
        cf_check_buf(side, body, gen_body, 0);
        CHECK_RC(side, lien_msg_take_body(msg, &taken), 0);
        CHECK(side, taken == body && lien_msg_body(msg) == NULL);
        CHECK_RC(side, lien_msg_take_body(msg, &body), LIEN_ENOTFOUND);
        lien_msg_free(&msg);
        cf_check_buf(side, taken, gen_body, 0); // it outlives its message
        lien_buf_free(&taken);
    }
    lien_msg_free(&msg);
    CHECK(side, msg == NULL);
}

static void heads(struct cf_side *side)
{
    size_t max = cf_info(side, side->link).eager_max;
    CHECK(side, max >= LIEN_TOKEN_MAX); // a token fits
    const size_t lens[] = {0,       1,       2,  7, 8, 63, 64, 255, 256, 1023, 1024, LIEN_TOKEN_MAX,
                           max / 2, max - 1, max};
    uint8_t *head = malloc(max + 1);
    CHECK(side, head != NULL);
    for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        if (side->role == CF_OWNER) {
            expect(side, i, lens[i], 0, 0);
            continue;
        }
        struct cf_op *op = cf_op(side, "head", true);
        cf_fill(side, head, lens[i], i, 0);
        cf_send(side, side->link, lens[i] ? head : NULL, lens[i], NULL, 0, op);
        memset(head, 0xee, max); // it was copied
        cf_op_over(side, op, 0, 0);
    }
    if (side->role == CF_READER) {
        uint64_t sent = cf_stats(side).messages_sent;
        CHECK_RC(side, lien_send(side->link->conn, head, max + 1, NULL, 0, NULL), LIEN_EMSGSIZE);
        CHECK_EQ(side, cf_stats(side).messages_sent, sent);
    }
    free(head);
    cf_alive(side, side->link);
}

static void send_body(struct cf_side *side, const uint64_t *lens, size_t n, size_t head_len)
{
    lien_buf *bufs[LIEN_BUFS_MAX];
    uint8_t head[256];
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += lens[i];
    cf_bufs(side, lens, n, 2, bufs);
    cf_fill(side, head, head_len, 1, 0);
    struct cf_op *op = cf_op(side, "message", true);
    cf_send(side, side->link, head, head_len, bufs, n, op);
    if (total > 0 && !atomic_load(&op->released)) {
        const void *p;
        CHECK_RC(side, lien_buf_data(bufs[0], &p), 0);
    }
    cf_sync(side);
    cf_op_over(side, op, 0, 0);
    cf_scribble(side, bufs, n);
    cf_free_bufs(bufs, n);
}

static void body(struct cf_side *side)
{
    uint64_t len = side->test->arg;
    if (side->role == CF_READER) {
        send_body(side, &len, 1, 100);
        return;
    }
    cf_sync(side);
    expect(side, 1, 100, 2, len);
}

static void body_of_many(struct cf_side *side)
{
    uint64_t lens[LIEN_BUFS_MAX];
    size_t n = (size_t)side->test->arg;
    cf_cut(MIB + 77, n, lens);
    if (side->role == CF_READER) {
        send_body(side, lens, n, 0);
        return;
    }
    cf_sync(side);
    expect(side, 1, 0, 2, MIB + 77);
}

// 300 messages each way, with and without bodies, large and small: they come in order.
static uint64_t mixed_body(unsigned i)
{
    static const uint64_t lens[] = {0, 0, 1, 0, 300000, 0, 4096, 0, 0, 70000};
    return lens[i * 7 % 10];
}

static void order(struct cf_side *side)
{
    enum {
        MESSAGES = 300
    };
    struct cf_op *ops[MESSAGES];
    lien_buf *bufs[MESSAGES];
    unsigned in = 0;
    for (unsigned out = 0; out < MESSAGES; out++) {
        uint8_t head[64];
        uint64_t len = mixed_body(out);
        bufs[out] = cf_buf(side, len, 5000 + out, 0);
        ops[out] = cf_op(side, "one of many", true);
        cf_fill(side, head, out % 64, 1000 + out, 0);
        for (;;) {
            if (cf_info(side, side->link).message_credits > 0)
                break;
            // No credit: what came is taken, which gives the peer its credit and will give us ours.
            UNTIL(side,
                  cf_has_message(side->link) || cf_info(side, side->link).message_credits > 0);
            if (cf_has_message(side->link)) {
                expect(side, 1000 + in, in % 64, 5000 + in, mixed_body(in));
                in++;
            }
        }
        cf_send(side, side->link, head, out % 64, &bufs[out], len > 0, ops[out]);
    }
    for (; in < MESSAGES; in++)
        expect(side, 1000 + in, in % 64, 5000 + in, mixed_body(in));
    for (unsigned i = 0; i < MESSAGES; i++) {
        cf_op_over(side, ops[i], 0, 0);
        lien_buf_free(&bufs[i]);
    }
}

// -- Credits and limits --

static void credits(struct cf_side *side)
{
    enum {
        GIVEN = 5
    }; // setting message_credits
    if (side->role == CF_OWNER) {
        UNTIL(side, cf_stats(side).messages_received == GIVEN);
        cf_sync(side); // the reader has met LIEN_EAGAIN
        lien_msg *msg = cf_recv(side, side->link);
        lien_msg_free(&msg);
        for (unsigned i = 1; i < GIVEN + 1; i++)
            expect(side, i, 10, 0, 0);
        return;
    }
    uint8_t head[10];
    lien_conn *conn = side->link->conn;
    CHECK_EQ(side, cf_info(side, side->link).message_credits, GIVEN);
    for (unsigned i = 0; i < GIVEN; i++) {
        cf_fill(side, head, 10, i, 0);
        cf_send(side, side->link, head, 10, NULL, 0, NULL);
    }
    cf_fill(side, head, 10, GIVEN, 0);
    CHECK_EQ(side, cf_info(side, side->link).message_credits, 0);
    CHECK_RC(side, lien_send(conn, head, 10, NULL, 0, NULL), LIEN_EAGAIN);
    int before = atomic_load(&side->link->writable);
    cf_sync(side);
    UNTIL(side, atomic_load(&side->link->writable) > before);
    CHECK_RC(side, lien_send(conn, head, 10, NULL, 0, NULL), 0);
    side->head_bytes += 10;
}

static void message_max(struct cf_side *side)
{
    enum {
        MOST = 100000
    }; // setting message_max
    CHECK_EQ(side, cf_info(side, side->link).message_max, MOST);
    uint64_t len = MOST;
    if (side->role == CF_OWNER) {
        cf_sync(side);
        expect(side, 1, 100, 2, MOST);
    } else {
        lien_buf *bufs[2] = {cf_buf(side, MOST, 2, 0), cf_buf(side, 1, 2, 0)};
        uint64_t sent = cf_stats(side).messages_sent;
        void *p;
        CHECK_RC(side, lien_send(side->link->conn, NULL, 0, bufs, 2, NULL), LIEN_EMSGSIZE);
        CHECK_EQ(side, cf_stats(side).messages_sent, sent);
        CHECK_RC(side, lien_buf_mut(bufs[0], &p), 0); // nothing was lent
        cf_free_bufs(bufs, 2);
        send_body(side, &len, 1, 100);
    }
    cf_alive(side, side->link);
}

static void held_budget(struct cf_side *side)
{
    if (side->role == CF_READER) {
        uint64_t lens[2] = {100000, 100001};
        lien_buf *bufs[2];
        void *p;
        cf_bufs(side, lens, 2, 1, bufs); // held_conn_bytes is 200000
        CHECK_RC(side, lien_send(side->link->conn, NULL, 0, bufs, 2, NULL), LIEN_ELIMIT);
        CHECK_RC(side, lien_buf_mut(bufs[0], &p), 0);
        CHECK_RC(side, lien_buf_mut(bufs[1], &p), 0);
        CHECK_EQ(side, cf_info(side, side->link).grants_live, 0);
        cf_free_bufs(bufs, 2);
    }
    cf_alive(side, side->link);
}

// A message that the application keeps stays readable after its connection's end.
static void kept(struct cf_side *side)
{
    uint64_t len = 50000;
    if (side->role == CF_READER) {
        send_body(side, &len, 1, 100);
        cf_sync(side);
        cf_close(side, side->link);
        return;
    }
    cf_sync(side);
    const void *head;
    size_t head_len;
    uint64_t bad;
    lien_msg *msg = cf_recv(side, side->link);
    cf_sync(side);
    UNTIL(side, atomic_load(&side->link->lost));
    CHECK_RC(side, atomic_load(&side->link->lost_status), LIEN_ECLOSED);
    cf_close(side, side->link);
    CHECK_RC(side, lien_msg_head(msg, &head, &head_len), 0);
    CHECK(side, head_len == 100 && cf_same(side, head, head_len, 1, 0, &bad));
    cf_check_buf(side, lien_msg_body(msg), 2, 0);
    lien_msg_free(&msg);
}

const struct cf_case cf_message_cases[] = {
    {.group = "message", .name = "heads", .run = heads},
    {.group = "message", .name = "body-0", .run = body, .arg = 0},
    {.group = "message", .name = "body-1", .run = body, .arg = 1},
    {.group = "message", .name = "body-4095", .run = body, .arg = 4095},
    {.group = "message", .name = "body-4096", .run = body, .arg = 4096},
    {.group = "message", .name = "body-4097", .run = body, .arg = 4097},
    {.group = "message", .name = "body-64KiB", .run = body, .arg = 64 * KIB},
    {.group = "message", .name = "body-1MiB", .run = body, .arg = MIB},
    {.group = "message",
     .name = "body-64MiB",
     .run = body,
     .arg = 64 * MIB,
     .settings = CF_UNHURRIED},
    {.group = "giant", .name = "body-1GiB", .run = body, .arg = GIB, .settings = CF_UNHURRIED},
    {.group = "message", .name = "body-of-2", .run = body_of_many, .arg = 2},
    {.group = "message", .name = "body-of-64", .run = body_of_many, .arg = 64},
    {.group = "message", .name = "order-mixed", .run = order},
    {.group = "message", .name = "credits", .run = credits, .settings = {"message_credits=5"}},
    {.group = "message",
     .name = "message-max",
     .run = message_max,
     .settings = {"message_max=100000"}},
    {.group = "message",
     .name = "held-budget",
     .run = held_budget,
     .settings = {"held_conn_bytes=200000"}},
    {.group = "message", .name = "kept-after-close", .run = kept, .flags = CF_ENDS},
    {0},
};
