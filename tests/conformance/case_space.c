// SPDX-License-Identifier: Apache-2.0
//
// Read spaces and write spaces: sizes, many buffers, batches of operations, what is refused at the handler's side (what a lying peer sends is tests/hostile's), buffers worked on in place and passed on.

#include <stdlib.h>
#include <string.h>

#include "tests/conformance/harness.h"

#define LEN   100000u
#define TOTAL (3 * MIB + 12345)

static struct cf_op *call_with(struct cf_side *side, lien_buf *const *read, size_t n,
                               lien_space *write, lien_call **call)
{
    struct cf_op *op = cf_op(side, "call with spaces", true);
    lien_call_opts opts = cf_call_opts(op);
    opts.read = read;
    opts.n_read = n;
    opts.write = write;
    opts.timeout_ms = 3000000;
    cf_call(side, side->link, "cf/desk", NULL, 0, &opts, call);
    return op;
}

static void check_lent(struct cf_side *side, lien_buf *buf)
{
    const void *data;
    void *p;
    CHECK_RC(side, lien_buf_data(buf, &data), 0);
    CHECK_RC(side, lien_buf_mut(buf, &p), LIEN_EBUSY);
}

// -- Sizes --

static size_t cut(uint64_t len, uint64_t *lens)
{
    size_t n = len >= 4096 && len < GIB ? 3 : 1;
    cf_cut(len, n, lens);
    return n;
}

static void read_size(struct cf_side *side, bool calls, uint64_t len)
{
    uint64_t lens[3];
    lien_buf *bufs[3];
    if (calls) {
        size_t n = cut(len, lens);
        cf_bufs(side, lens, n, 1, bufs);
        struct cf_op *op = call_with(side, bufs, n, NULL, NULL);
        if (len > 0)
            check_lent(side, bufs[0]);
        cf_sync(side);
        cf_op_over(side, op, 0, 0);
        cf_scribble(side, bufs, n); // ours again
        cf_free_bufs(bufs, n);
        return;
    }
    lien_request *request = cf_request(side);
    lien_space *space = cf_space_of(side, len);
    CHECK_EQ(side, lien_request_read_len(request), len);
    CHECK_EQ(side, lien_request_write_len(request), 0);
    cf_sync(side);
    uint64_t before = cf_stats(side).read_bytes;
    if (len == 0) { // no read space at all
        struct cf_op *op = cf_op(side, "read of nothing", true);
        lien_transfer_opts opts = cf_transfer_opts(op);
        op->refused = true;
        CHECK_RC(side, lien_request_read(request, space, &opts), LIEN_ERANGE);
    } else {
        cf_request_read(side, request, space, NULL, 0);
    }
    cf_check_space(side, space, 1, 1, len);
    CHECK_EQ(side, cf_stats(side).read_bytes - before, len);
    cf_reply(side, &request, 0, NULL, 0);
    lien_space_free(&space);
}

static void write_size(struct cf_side *side, bool calls, uint64_t len)
{
    uint64_t lens[3];
    lien_buf *bufs[3], *got;
    if (calls) {
        lien_space *space = cf_space_of(side, len);
        uint64_t before = cf_stats(side).read_bytes;
        struct cf_op *op = call_with(side, NULL, 0, space, NULL);
        CHECK_RC(side, lien_space_buf(space, 0, &got), LIEN_EBUSY);
        CHECK_RC(side, lien_space_wait(space, 0), LIEN_ETIMEDOUT);
        cf_sync(side);
        cf_op_over(side, op, 0, 0);
        CHECK_RC(side, lien_space_wait(space, 0), 0);
        cf_check_space(side, space, 1, 1, len);
        CHECK_EQ(side, cf_stats(side).read_bytes - before, len);
        lien_space_free(&space);
        return;
    }
    lien_request *request = cf_request(side);
    size_t n = cut(len, lens);
    CHECK_EQ(side, lien_request_write_len(request), len);
    CHECK_EQ(side, lien_request_read_len(request), 0);
    cf_bufs(side, lens, n, 1, bufs);
    cf_sync(side);
    cf_request_write(side, request, bufs, n, NULL, 0);
    cf_scribble(side, bufs, n);
    cf_reply(side, &request, 0, NULL, 0);
    cf_free_bufs(bufs, n);
}

static const uint64_t sizes[] = {0, 1, 4095, 4096, 4097, 64 * KIB, MIB};

// In both directions, one after the other.
static void small_spaces(struct cf_side *side)
{
    for (unsigned i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
        read_size(side, (side->role == CF_READER) == (i % 2 == 0), sizes[i / 2]);
        write_size(side, (side->role == CF_READER) == (i % 2 == 0), sizes[i / 2]);
    }
}

static void large_read(struct cf_side *side)
{
    read_size(side, cf_calls(side), side->test->arg);
}

static void large_write(struct cf_side *side)
{
    write_size(side, cf_calls(side), side->test->arg);
}

// -- Many buffers, and batches --

// All over the place, with holes between; every tenth of no length, some of these at the very end. 389 and 617 are prime to 1024.
static size_t scattered(lien_op ops[LIEN_OPS_MAX])
{
    for (uint64_t i = 0; i < LIEN_OPS_MAX; i++) {
        uint64_t slot = (i * 389 + 7) % LIEN_OPS_MAX;
        ops[i].dst = slot * 3000 + slot % 61;
        ops[i].src = ((i * 617 + 3) % LIEN_OPS_MAX) * 3000 + i % 97;
        ops[i].len = i % 10 == 9 ? 0 : 1 + (i * 7919) % 2900;
        if (i % 100 == 99)
            ops[i] = (lien_op){.src = TOTAL, .dst = TOTAL, .len = 0};
    }
    return LIEN_OPS_MAX;
}

static size_t few(lien_op ops[LIEN_OPS_MAX])
{
    ops[0] = (lien_op){.src = TOTAL - 1, .dst = 0, .len = 1};
    ops[1] = (lien_op){.src = 5, .dst = 1, .len = 2 * MIB};
    ops[2] = (lien_op){.src = 7, .dst = 2 * MIB + 2, .len = MIB}; // one byte behind the last
    return 3;
}

static size_t zeroes(lien_op ops[LIEN_OPS_MAX])
{
    for (uint64_t i = 0; i < LIEN_OPS_MAX; i++)
        ops[i] = (lien_op){.src = i, .dst = i, .len = 0};
    return LIEN_OPS_MAX;
}

static size_t (*const batches[])(lien_op ops[LIEN_OPS_MAX]) = {scattered, few, zeroes};
#define BATCHES (sizeof(batches) / sizeof(batches[0]))

// The caller's 64 (or 1) unequal buffers are read, and other 64 written, by batches.
static void batch_caller(struct cf_side *side, size_t b, size_t n)
{
    static lien_op ops[2][LIEN_OPS_MAX];
    uint64_t lens[LIEN_BUFS_MAX];
    lien_buf *bufs[LIEN_BUFS_MAX];
    cf_cut(TOTAL, n, lens);
    cf_bufs(side, lens, n, 1, bufs);
    lien_space *space = cf_space(side, lens, n);
    struct cf_op *op = call_with(side, bufs, n, space, NULL);
    cf_op_over(side, op, 0, 0);
    size_t n_ops = batches[b](ops[side->role]);
    cf_check_ops(side, space, n, 2, ops[side->role], n_ops);
    lien_space_free(&space);
    cf_free_bufs(bufs, n);
}

static void batch_server(struct cf_side *side, size_t b, size_t n)
{
    static lien_op ops[2][LIEN_OPS_MAX];
    uint64_t lens[LIEN_BUFS_MAX];
    lien_buf *bufs[LIEN_BUFS_MAX];
    lien_request *request = cf_request(side);
    size_t n_ops = batches[b](ops[side->role]);
    CHECK_EQ(side, lien_request_read_len(request), TOTAL);
    CHECK_EQ(side, lien_request_write_len(request), TOTAL);
    cf_cut(TOTAL, n, lens);
    lien_space *space = cf_space(side, lens, n);
    cf_request_read(side, request, space, ops[side->role], n_ops);
    cf_check_ops(side, space, n, 1, ops[side->role], n_ops);
    cf_bufs(side, lens, n, 2, bufs);
    cf_request_write(side, request, bufs, n, ops[side->role], n_ops);
    cf_reply(side, &request, 0, NULL, 0);
    lien_space_free(&space);
    cf_free_bufs(bufs, n);
}

static void batch(struct cf_side *side)
{
    static const size_t bufs[] = {64, 1, 33};
    for (size_t b = 0; b < BATCHES; b++) {
        if (cf_calls(side))
            batch_caller(side, b, bufs[b]);
        else
            batch_server(side, b, 65 - bufs[b]); // cut elsewhere
    }
}

// -- Refused --

struct refused {
    lien_op ops[3];
    size_t n;
    int want;
};

static const struct refused refusals[] = {
    {{{.src = 0, .dst = 0, .len = LEN + 1}}, 1, LIEN_ERANGE},
    {{{.src = LEN, .dst = 0, .len = 1}}, 1, LIEN_ERANGE},
    {{{.src = 0, .dst = LEN, .len = 1}}, 1, LIEN_ERANGE},
    {{{.src = 1, .dst = 0, .len = LEN}}, 1, LIEN_ERANGE},
    {{{.src = 0, .dst = 1, .len = LEN}}, 1, LIEN_ERANGE},
    {{{.src = UINT64_MAX, .dst = 0, .len = 2}}, 1, LIEN_ERANGE},
    {{{.src = 0, .dst = UINT64_MAX, .len = 2}}, 1, LIEN_ERANGE},
    {{{.src = 2, .dst = 0, .len = UINT64_MAX}}, 1, LIEN_ERANGE},
    {{{.src = 0, .dst = 2, .len = UINT64_MAX}}, 1, LIEN_ERANGE},
    {{{.src = LEN + 1, .dst = 0, .len = 0}}, 1, LIEN_ERANGE},
    {{{.src = 0, .dst = LEN + 1, .len = 0}}, 1, LIEN_ERANGE},
    {{{.len = 1}, {.src = 5, .dst = 50, .len = 50}, {.dst = LEN - 1, .len = 2}}, 3, LIEN_ERANGE},
    {{{.src = 0, .dst = 0, .len = 10}, {.src = 50, .dst = 9, .len = 10}}, 2, LIEN_EOVERLAP},
    {{{.src = 0, .dst = 9, .len = 10}, {.src = 50, .dst = 0, .len = 10}}, 2, LIEN_EOVERLAP},
    {{{.dst = 20, .len = 10}, {.dst = 0, .len = 5}, {.dst = 25, .len = 1}}, 3, LIEN_EOVERLAP},
    {{{.dst = 0, .len = LEN}, {.dst = LEN, .len = 0}, {.dst = 7, .len = 1}}, 3, LIEN_EOVERLAP},
};

static void refuse(struct cf_side *side, lien_request *request, lien_space *space, lien_buf *buf,
                   const lien_op *ops, size_t n, int want)
{
    lien_ctx_stats before = cf_stats(side);
    for (unsigned i = 0; i < 2; i++) {
        struct cf_op *op = cf_op(side, "refused transfer", true);
        lien_transfer_opts opts = cf_transfer_opts(op);
        op->refused = true;
        opts.ops = ops;
        opts.n_ops = n;
        CHECK_RC(side,
                 i == 0 ? lien_request_read(request, space, &opts)
                        : lien_request_write(request, &buf, 1, &opts),
                 want);
    }
    lien_ctx_stats after = cf_stats(side);
    lien_buf *mine;
    void *p;
    CHECK_EQ(side, after.reads_started, before.reads_started);
    CHECK_EQ(side, after.read_pieces_posted, before.read_pieces_posted);
    CHECK_EQ(side, after.grants_live, before.grants_live);
    CHECK_RC(side, lien_space_buf(space, 0, &mine), 0); // nothing is lent
    CHECK_RC(side, lien_buf_mut(buf, &p), 0);
}

static void refused_server(struct cf_side *side)
{
    lien_op *many = calloc(LIEN_OPS_MAX + 1, sizeof(*many));
    lien_request *request = cf_request(side);
    lien_space *space = cf_space_of(side, LEN), *narrow = cf_space_of(side, LEN - 1);
    lien_buf *buf = cf_buf(side, LEN, 2, 0), *wide = cf_buf(side, LEN + 1, 2, 0);
    CHECK(side, many != NULL);
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
        refuse(side, request, space, buf, refusals[i].ops, refusals[i].n, refusals[i].want);
    refuse(side, request, space, buf, many, LIEN_OPS_MAX + 1, LIEN_EINVAL);
    refuse(side, request, space, buf, NULL, 1, LIEN_EINVAL);
    refuse(side, request, narrow, wide, NULL, 0, LIEN_ERANGE); // the whole does not fit
    // After all that both work.
    cf_request_read(side, request, space, NULL, 0);
    cf_check_space(side, space, 1, 1, LEN);
    cf_request_write(side, request, &buf, 1, NULL, 0);
    cf_reply(side, &request, 0, NULL, 0);
    request = cf_request(side); // a call without spaces
    refuse(side, request, space, buf, NULL, 0, LIEN_ERANGE);
    cf_reply(side, &request, 0, NULL, 0);
    lien_space_free(&space);
    lien_space_free(&narrow);
    lien_buf_free(&buf);
    lien_buf_free(&wide);
    free(many);
}

static void refused(struct cf_side *side)
{
    if (!cf_calls(side)) {
        refused_server(side);
        cf_calls_alive(side, side->link);
        return;
    }
    lien_buf *source = cf_buf(side, LEN, 1, 0);
    lien_space *space = cf_space_of(side, LEN);
    struct cf_op *op = call_with(side, &source, 1, space, NULL);
    cf_op_over(side, op, 0, 0);
    cf_check_space(side, space, 1, 2, LEN);
    op = call_with(side, NULL, 0, NULL, NULL);
    cf_op_over(side, op, 0, 0);
    lien_space_free(&space);
    lien_buf_free(&source);
    cf_calls_alive(side, side->link);
}

// What is lent already cannot be lent again, and says so; a failed start lends nothing.
static void lent(struct cf_side *side)
{
    if (!cf_calls(side)) {
        lien_request *request = cf_request(side);
        cf_sync(side);
        cf_reply(side, &request, 0, NULL, 0);
        cf_calls_alive(side, side->link);
        return;
    }
    lien_buf *source = cf_buf(side, LEN, 1, 0), *free_one = cf_buf(side, LEN, 1, 0);
    lien_space *space = cf_space_of(side, LEN), *other;
    void *p;
    struct cf_op *op = call_with(side, &source, 1, space, NULL);
    lien_buf *both[2] = {free_one, source};
    CHECK_RC(side, lien_space_open(side->ctx, both, 2, &other), LIEN_EBUSY);
    CHECK(side, both[0] == free_one && both[1] == source);
    struct cf_op *again = cf_op(side, "refused call", true);
    lien_call_opts opts = cf_call_opts(again);
    opts.read = &free_one;
    opts.n_read = 1;
    opts.write = space; // another call has it
    CHECK_RC(side, cf_try_call(side, side->link, "cf/desk", NULL, 0, &opts, NULL), LIEN_EBUSY);
    CHECK_RC(side, lien_buf_mut(free_one, &p), 0);
    cf_sync(side);
    cf_op_over(side, op, 0, 0);
    CHECK_RC(side, lien_buf_mut(source, &p), 0);
    cf_check_space(side, space, 1, 1, 0);
    lien_space_free(&space);
    lien_buf_free(&source);
    lien_buf_free(&free_one);
    cf_calls_alive(side, side->link);
}

// -- In place, and passed on --

static void invert(struct cf_side *side, lien_buf *const *bufs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *p;
        CHECK_RC(side, lien_buf_mut(bufs[i], &p), 0);
        for (size_t at = 0; at < lien_buf_len(bufs[i]); at++)
            ((uint8_t *)p)[at] ^= 0xff;
    }
}

// The handler takes what it read out of its space, works on it in place, writes the same buffers back, and then passes them on as its reply's body.
static void in_place_server(struct cf_side *side)
{
    uint64_t lens[5];
    lien_buf *bufs[5];
    lien_request *request = cf_request(side);
    uint64_t total = lien_request_read_len(request);
    cf_cut(total, 5, lens);
    lien_space *space = cf_space(side, lens, 5);
    cf_request_read(side, request, space, NULL, 0);
    CHECK_RC(side, lien_space_take(space, bufs, 5), 0);
    invert(side, bufs, 5);
    cf_request_write(side, request, bufs, 5, NULL, 0);
    invert(side, bufs, 5);
    atomic_fetch_add(&side->call_bytes, 0);
    CHECK_RC(side, lien_request_reply_body(&request, 0, NULL, 0, bufs, 5), 0);
    lien_space_free(&space);
}

static void in_place_caller(struct cf_side *side)
{
    lien_buf *source = cf_buf(side, TOTAL, 1, 0), *got, *body;
    // Three rounds: what came back is the next call's read space, what was read its write space.
    for (unsigned round = 0; round < 3; round++) {
        lien_space *space = cf_space_of(side, TOTAL);
        struct cf_op *op = cf_op(side, "call", true);
        lien_call_opts opts = cf_call_opts(op);
        opts.read = &source;
        opts.n_read = 1;
        opts.write = space;
        opts.reply_max = TOTAL;
        cf_call(side, side->link, "cf/desk", NULL, 0, &opts, NULL);
        cf_op_over(side, op, 0, 0);
        CHECK_RC(side, lien_space_take(space, &got, 1), 0);
        CHECK(side, op->reply != NULL);
        CHECK_RC(side, lien_msg_take_body(op->reply, &body), 0);
        invert(side, &got, 1);
        cf_check_buf(side, got, 1, 0);
        cf_check_buf(side, body, 1, 0);
        lien_msg_free(&op->reply);
        lien_space_free(&space);
        lien_buf_free(&source);
        lien_buf_free(round % 2 ? &got : &body);
        source = round % 2 ? body : got;
    }
    lien_buf_free(&source);
}

static void in_place(struct cf_side *side)
{
    for (unsigned round = 0; round < 3 && !cf_calls(side); round++)
        in_place_server(side);
    if (cf_calls(side))
        in_place_caller(side);
    cf_calls_alive(side, side->link);
}

// -- One after the other, and at once --

// Write after read, many writes, the later over the earlier.
static void writes_in_turn(struct cf_side *side)
{
    enum {
        WRITES = 20
    };
    const uint64_t step = LEN / WRITES;
    if (cf_calls(side)) {
        lien_buf *source = cf_buf(side, LEN, 1, 0), *got;
        lien_space *space = cf_space_of(side, LEN);
        struct cf_op *op = call_with(side, &source, 1, space, NULL);
        cf_op_over(side, op, 0, 0);
        CHECK_RC(side, lien_space_take(space, &got, 1), 0);
        for (uint64_t i = 0; i < WRITES; i++) { // each write covered all from its own step on
            const void *p;
            uint64_t bad;
            CHECK_RC(side, lien_buf_data(got, &p), 0);
            CHECK(side, cf_same(side, (const uint8_t *)p + i * step, step, 10 + (unsigned)i,
                                i * step, &bad));
        }
        lien_buf_free(&got);
        lien_buf_free(&source);
        lien_space_free(&space);
        return;
    }
    lien_request *request = cf_request(side);
    lien_space *space = cf_space_of(side, LEN);
    cf_request_read(side, request, space, NULL, 0);
    for (uint64_t i = 0; i < WRITES; i++) {
        const lien_op op = {.src = i * step, .dst = i * step, .len = LEN - i * step};
        lien_buf *buf = cf_buf(side, LEN, 10 + (unsigned)i, 0);
        cf_request_write(side, request, &buf, 1, &op, 1);
        lien_buf_free(&buf);
        if (i == WRITES / 2)
            cf_request_read(side, request, space, NULL, 0); // and a read between
    }
    cf_check_space(side, space, 1, 1, LEN);
    cf_reply(side, &request, 0, NULL, 0);
    lien_space_free(&space);
}

// Two writes at once: the caller takes one at a time, and says so of the other; what it took is what its space holds.
static void writes_at_once(struct cf_side *side)
{
    int statuses[2];
    if (cf_calls(side)) {
        const lien_op big = {.src = 0, .dst = 0, .len = 8 * MIB};
        const lien_op ops[2] = {{.src = LEN, .dst = LEN, .len = 8 * MIB - LEN}, {0}};
        lien_space *space = cf_space_of(side, 8 * MIB);
        struct cf_op *op = call_with(side, NULL, 0, space, NULL);
        cf_hear(side, statuses, sizeof(statuses));
        cf_op_over(side, op, 0, 0);
        CHECK_RC(side, statuses[0], 0);
        CHECK(side, statuses[1] == 0 || statuses[1] == LIEN_EBUSY);
        if (statuses[1] == LIEN_EBUSY) {
            cf_check_ops(side, space, 1, 2, &big, 1);
        } else { // it came when the first was over
            lien_buf *buf;
            CHECK_RC(side, lien_space_take(space, &buf, 1), 0);
            CHECK(side, ops[0].len > 0);
            const void *p;
            uint64_t bad;
            CHECK_RC(side, lien_buf_data(buf, &p), 0);
            CHECK(side, cf_same(side, p, LEN, 3, 0, &bad));
            CHECK(side, cf_same(side, (const uint8_t *)p + LEN, 8 * MIB - LEN, 2, LEN, &bad));
            lien_buf_free(&buf);
        }
        lien_space_free(&space);
        return;
    }
    lien_request *request = cf_request(side);
    lien_buf *bufs[2] = {cf_buf(side, 8 * MIB, 2, 0), cf_buf(side, LEN, 3, 0)};
    struct cf_op *ops[2];
    for (unsigned i = 0; i < 2; i++) {
        ops[i] = cf_op(side, "write", true);
        lien_transfer_opts opts = cf_transfer_opts(ops[i]);
        CHECK_RC(side, lien_request_write(request, &bufs[i], 1, &opts), 0);
        check_lent(side, bufs[i]);
    }
    for (unsigned i = 0; i < 2; i++) {
        UNTIL(side, atomic_load(&ops[i]->released));
        statuses[i] = atomic_load(&ops[i]->status);
    }
    cf_tell(side, statuses, sizeof(statuses));
    cf_reply(side, &request, 0, NULL, 0);
    cf_free_bufs(bufs, 2);
}

// The reply is given before the write is over, and leaves after it: the caller finds all bytes. [R2]
static void reply_waits(struct cf_side *side)
{
    const uint64_t len = 32 * MIB;
    if (cf_calls(side)) {
        lien_space *space = cf_space_of(side, len);
        struct cf_op *op = call_with(side, NULL, 0, space, NULL);
        cf_op_over(side, op, 0, 0);
        cf_check_reply(side, op, "all", 3);
        cf_check_space(side, space, 1, 2, len);
        lien_space_free(&space);
        return;
    }
    lien_request *request = cf_request(side);
    lien_buf *buf = cf_buf(side, len, 2, 0);
    struct cf_op *op = cf_op(side, "write", true);
    lien_transfer_opts opts = cf_transfer_opts(op);
    CHECK_RC(side, lien_request_write(request, &buf, 1, &opts), 0);
    cf_reply(side, &request, 0, "all", 3);
    cf_op_over(side, op, 0, 0);
    lien_buf_free(&buf);
}

// Many reads of one read space at once.
static void many_reads(struct cf_side *side)
{
    enum {
        READS = 40
    };
    if (cf_calls(side)) {
        lien_buf *source = cf_buf(side, 300 * KIB, 1, 0);
        struct cf_op *op = call_with(side, &source, 1, NULL, NULL);
        cf_op_over(side, op, 0, 0);
        lien_buf_free(&source);
        return;
    }
    lien_space *spaces[READS];
    struct cf_op *ops[READS];
    lien_request *request = cf_request(side);
    for (unsigned i = 0; i < READS; i++) {
        const lien_op part = {.src = i * 1000, .dst = 17, .len = 200 * KIB};
        spaces[i] = cf_space_of(side, 201 * KIB);
        ops[i] = cf_op(side, "read", true);
        lien_transfer_opts opts = cf_transfer_opts(ops[i]);
        opts.ops = &part;
        opts.n_ops = 1;
        CHECK_RC(side, lien_request_read(request, spaces[i], &opts), 0);
    }
    for (unsigned i = 0; i < READS; i++) {
        const lien_op part = {.src = i * 1000, .dst = 17, .len = 200 * KIB};
        cf_op_over(side, ops[i], 0, 0);
        cf_check_ops(side, spaces[i], 1, 1, &part, 1);
        lien_space_free(&spaces[i]);
    }
    cf_reply(side, &request, 0, NULL, 0);
}

// Both sides call, read and write, all at once.
static void both_ways(struct cf_side *side)
{
    enum {
        AT_ONCE = 6
    };
    const uint64_t len = MIB + 4095;
    unsigned mine = side->role == CF_OWNER ? 100 : 200, theirs = 300 - mine;
    lien_buf *sources[AT_ONCE], *answers[AT_ONCE];
    lien_space *targets[AT_ONCE], *spaces[AT_ONCE];
    lien_request *requests[AT_ONCE];
    struct cf_op *calls[AT_ONCE], *reads[AT_ONCE], *writes[AT_ONCE];
    for (unsigned i = 0; i < AT_ONCE; i++) {
        sources[i] = cf_buf(side, len, mine, 0);
        targets[i] = cf_space_of(side, len);
        calls[i] = call_with(side, &sources[i], 1, targets[i], NULL);
    }
    for (unsigned i = 0; i < AT_ONCE; i++) {
        requests[i] = cf_request(side);
        spaces[i] = cf_space_of(side, len);
        answers[i] = cf_buf(side, len, mine + 1, 0);
        reads[i] = cf_op(side, "read", true);
        writes[i] = cf_op(side, "write", true);
        lien_transfer_opts r = cf_transfer_opts(reads[i]), w = cf_transfer_opts(writes[i]);
        CHECK_RC(side, lien_request_read(requests[i], spaces[i], &r), 0);
        CHECK_RC(side, lien_request_write(requests[i], &answers[i], 1, &w), 0);
    }
    for (unsigned i = 0; i < AT_ONCE; i++) {
        cf_op_over(side, reads[i], 0, 0);
        cf_check_space(side, spaces[i], 1, theirs, len);
        cf_op_over(side, writes[i], 0, 0);
        cf_reply(side, &requests[i], 0, NULL, 0);
        lien_space_free(&spaces[i]);
        lien_buf_free(&answers[i]);
    }
    for (unsigned i = 0; i < AT_ONCE; i++) {
        cf_op_over(side, calls[i], 0, 0);
        cf_check_space(side, targets[i], 1, theirs + 1, len);
        lien_space_free(&targets[i]);
        lien_buf_free(&sources[i]);
    }
    cf_calls_alive(side, side->link);
}

const struct cf_case cf_space_cases[] = {
    {.group = "space", .name = "spaces-0-to-1MiB", .run = small_spaces},
    {.group = "space",
     .name = "read-space-64MiB",
     .run = large_read,
     .arg = 64 * MIB,
     .settings = CF_UNHURRIED},
    {.group = "space",
     .name = "write-space-64MiB",
     .run = large_write,
     .arg = 64 * MIB,
     .flags = CF_BACK,
     .settings = CF_UNHURRIED},
    {.group = "space", .name = "space-batches", .run = batch},
    {.group = "space", .name = "space-batches-back", .run = batch, .flags = CF_BACK},
    {.group = "space", .name = "space-refused", .run = refused},
    {.group = "space", .name = "space-lent-twice", .run = lent},
    {.group = "space", .name = "in-place-and-on", .run = in_place},
    {.group = "space", .name = "in-place-and-on-back", .run = in_place, .flags = CF_BACK},
    {.group = "space", .name = "writes-in-turn", .run = writes_in_turn},
    {.group = "space", .name = "writes-at-once", .run = writes_at_once, .arg = 8 * MIB},
    {.group = "space", .name = "reply-waits-for-writes", .run = reply_waits, .arg = 32 * MIB},
    {.group = "space", .name = "many-reads-of-one-space", .run = many_reads},
    {.group = "space", .name = "spaces-both-ways", .run = both_ways},
    {0},
};

const struct cf_case cf_giant_cases[] = {
    {.group = "giant",
     .name = "read-space-1GiB",
     .run = large_read,
     .arg = GIB,
     .settings = CF_UNHURRIED},
    {.group = "giant",
     .name = "write-space-1GiB",
     .run = large_write,
     .arg = GIB,
     .flags = CF_BACK,
     .settings = CF_UNHURRIED},
    {0},
};
