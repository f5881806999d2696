// SPDX-License-Identifier: Apache-2.0
//
// Memory of the application's own as source and target, and slots of the blocking read.

#include <stdlib.h>
#include <string.h>

#include "tests/conformance/harness.h"

#define LEN   300001u
#define FENCE 5000u // bytes before and behind what is lent

struct own {
    uint8_t *bytes; // FENCE, LEN, FENCE
    lien_mem *mem;
    _Atomic int released, status;
};

static void on_mem_released(void *arg, int status)
{
    struct own *own = arg;
    atomic_store(&own->status, status);
    atomic_fetch_add(&own->released, 1);
}

static void own_open(struct cf_side *side, struct own *own)
{
    lien_mem_opts opts;
    *own = (struct own){.bytes = malloc(LEN + 2 * FENCE)};
    CHECK(side, own->bytes != NULL);
    cf_fill(side, own->bytes, LEN + 2 * FENCE, 300, 0);
    lien_mem_opts_init(&opts);
    opts.on_released = on_mem_released;
    opts.arg = own;
    CHECK_RC(side, lien_mem_register(side->ctx, own->bytes, LEN + 2 * FENCE, &opts, &own->mem), 0);
}

static void own_close(struct cf_side *side, struct own *own)
{
    CHECK_RC(side, lien_mem_unregister(&own->mem), 0);
    CHECK(side, own->mem == NULL);
    UNTIL(side, atomic_load(&own->released));
    CHECK_RC(side, atomic_load(&own->status), 0);
    free(own->bytes);
}

static void fences_whole(struct cf_side *side, const struct own *own)
{
    uint64_t bad;
    CHECK(side, cf_same(side, own->bytes, FENCE, 300, 0, &bad));
    CHECK(side, cf_same(side, own->bytes + FENCE + LEN, FENCE, 300, FENCE + LEN, &bad));
}

static void read_all(struct cf_side *side, const lien_token *token, lien_space *space)
{
    struct cf_op *op = cf_op(side, "read", true);
    CHECK_RC(side, cf_read(side->link, token, space, NULL, 0, LIEN_RELEASE, 0, op, NULL), 0);
    cf_op_over(side, op, 0, 0);
}

// Unregistered while granted: released only after the reader's release, exactly once.
static void source(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        struct own own;
        lien_buf *buf;
        lien_grant *grant;
        own_open(side, &own);
        CHECK_RC(side, lien_mem_buf(own.mem, FENCE, LEN, &buf), 0);
        cf_fill(side, own.bytes + FENCE, LEN, 1, 0);
        struct cf_op *op = cf_op(side, "grant", false);
        cf_offer(side, side->link, &buf, 1, 0, op, &token, &grant);
        lien_buf_free(&buf);
        CHECK_RC(side, lien_mem_unregister(&own.mem), 0);
        CHECK_EQ(side, atomic_load(&own.released), 0);
        cf_sync(side);
        cf_op_over(side, op, 0, 0);
        UNTIL(side, atomic_load(&own.released));
        CHECK_RC(side, atomic_load(&own.status), 0);
        CHECK_RC(side, lien_grant_close(&grant), 0);
        fences_whole(side, &own);
        memset(own.bytes, 0, LEN); // ours again
        free(own.bytes);
    } else {
        cf_take_token(side, side->link, &token);
        lien_space *space = cf_space_of(side, LEN);
        cf_sync(side);
        read_all(side, &token, space);
        cf_check_space(side, space, 1, 1, LEN);
        lien_space_free(&space);
    }
    cf_alive(side, side->link);
}

static void give_pool(struct cf_side *side)
{
    uint64_t lens[9];
    lien_buf *bufs[9];
    lien_token token;
    lien_grant *grant;
    cf_cut(LEN, 9, lens);
    cf_bufs(side, lens, 9, 1, bufs);
    struct cf_op *op = cf_op(side, "grant", false);
    cf_offer(side, side->link, bufs, 9, 0, op, &token, &grant);
    cf_op_over(side, op, 0, 0);
    CHECK_RC(side, lien_grant_close(&grant), 0);
    cf_free_bufs(bufs, 9);
}

// 64 buffers over one registration, in reverse order: the first of the space is the last of the memory.
static void target(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        give_pool(side);
    } else {
        struct own own;
        uint64_t lens[64], at = LEN, off = 0, bad;
        lien_buf *bufs[64];
        lien_space *space;
        own_open(side, &own);
        cf_cut(LEN, 64, lens);
        for (unsigned i = 0; i < 64; i++) {
            at -= lens[i];
            if (lens[i] == 0) { // no buffer has no bytes here: take one from the neighbour
                bufs[i] = cf_buf(side, 0, CF_BEFORE, 0);
                continue;
            }
            CHECK_RC(side, lien_mem_buf(own.mem, FENCE + (size_t)at, (size_t)lens[i], &bufs[i]), 0);
        }
        CHECK_RC(side, lien_space_open(side->ctx, bufs, 64, &space), 0);
        cf_take_token(side, side->link, &token);
        read_all(side, &token, space);
        at = LEN;
        for (unsigned i = 0; i < 64; i++) {
            at -= lens[i];
            if (!cf_same(side, own.bytes + FENCE + at, (size_t)lens[i], 1, off, &bad))
                FAIL(side, "buffer %u: byte %llu is wrong", i, (unsigned long long)bad);
            off += lens[i];
        }
        fences_whole(side, &own);
        lien_space_free(&space);
        own_close(side, &own);
    }
    cf_alive(side, side->link);
}

static void outside(struct cf_side *side)
{
    if (side->role == CF_READER) {
        struct own own;
        lien_buf *buf = NULL;
        own_open(side, &own);
        CHECK_RC(side, lien_mem_buf(own.mem, LEN + 2 * FENCE, 1, &buf), LIEN_ERANGE);
        CHECK_RC(side, lien_mem_buf(own.mem, 1, LEN + 2 * FENCE, &buf), LIEN_ERANGE);
        CHECK_RC(side, lien_mem_buf(own.mem, SIZE_MAX, 2, &buf), LIEN_ERANGE);
        CHECK(side, buf == NULL);
        own_close(side, &own);
    }
    cf_alive(side, side->link);
}

// -- The blocking read: slots are empty while it runs and refilled when it returns --

static void slots(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        give_pool(side);
        cf_alive(side, side->link);
        return;
    }
    uint64_t lens[5], off = 0;
    lien_buf *bufs[5], *same[5];
    lien_read_opts opts;
    lien_op bad_op = {.src = 1, .dst = 0, .len = LEN};
    lien_conn *conn = side->link->conn;
    cf_cut(LEN, 5, lens);
    cf_bufs(side, lens, 5, CF_BEFORE, bufs);
    memcpy(same, bufs, sizeof(same));
    cf_take_token(side, side->link, &token);
    lien_read_opts_init(&opts);
    opts.ops = &bad_op;
    opts.n_ops = 1;
    CHECK_RC(side, lien_read_wait(conn, token.bytes, token.len, bufs, 5, &opts), LIEN_ERANGE);
    CHECK(side, memcmp(same, bufs, sizeof(same)) == 0);
    lien_read_opts_init(&opts);
    opts.flags = LIEN_RELEASE;
    CHECK_RC(side, lien_read_wait(conn, token.bytes, token.len, bufs, 5, &opts), 0);
    CHECK(side, memcmp(same, bufs, sizeof(same)) == 0);
    for (unsigned i = 0; i < 5; i++) {
        cf_check_buf(side, bufs[i], 1, off);
        off += lens[i];
    }
    CHECK_RC(side, lien_read_wait(conn, token.bytes, token.len, bufs, 5, &opts), LIEN_ESTALE);
    CHECK(side, memcmp(same, bufs, sizeof(same)) == 0);
    cf_free_bufs(bufs, 5);
    cf_alive(side, side->link);
}

// The simulated world stands still while somebody waits in it: every blocking twin says so, and changes nothing.
static void no_waiting(struct cf_side *side)
{
    lien_token token;
    if (side->role == CF_OWNER) {
        give_pool(side);
        cf_alive(side, side->link);
        return;
    }
    lien_conn *conn = side->link->conn;
    lien_space *space = cf_space_of(side, LEN);
    cf_take_token(side, side->link, &token);
    struct cf_op *op = cf_op(side, "read", true);
    CHECK_RC(side, cf_read(side->link, &token, space, NULL, 0, LIEN_RELEASE, 0, op, NULL), 0);
    CHECK_RC(side, lien_space_wait(space, 1000), LIEN_EDEADLK);
    lien_conn *other = NULL;
    CHECK_RC(side, lien_conn_open_wait(side->ctx, "10.0.0.1:1", NULL, &other), LIEN_EDEADLK);
    CHECK(side, other == NULL && conn != NULL);
    cf_op_over(side, op, 0, 0);
    cf_check_space(side, space, 1, 1, LEN);
    lien_space_free(&space);
    cf_alive(side, side->link);
}

const struct cf_case cf_memory_cases[] = {
    {.group = "memory", .name = "own-memory-source", .run = source},
    {.group = "memory", .name = "own-memory-target", .run = target},
    {.group = "memory", .name = "own-memory-range", .run = outside},
    {.group = "memory", .name = "read-wait-slots", .run = slots},
    {.group = "memory", .name = "no-waiting", .run = no_waiting},
    {0},
};
