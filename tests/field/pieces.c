// SPDX-License-Identifier: Apache-2.0
//
// Transfers in many pieces of which one fails; transfers of nothing and of a GiB. Reports 11, 12.

#include "core/bytes.h"
#include "core/wire.h"
#include "tests/field/field.h"

#define GIB ((size_t)1 << 30)

static struct field_source source_of(uint64_t seed, uint64_t len, uint32_t n_ops)
{
    struct field_source s;
    memset(&s, 0, sizeof s);
    s.seed = seed;
    s.len = len;
    s.n_ops = n_ops;
    return s;
}

// -- 11: one failed piece ----------------------------------------------------------------------------------------------------------

// Key number `bad` of a grant of 64 buffers is not the owner's: that READ is refused, the others are not.
static void bad_key(unsigned bad)
{
    struct field f;
    struct fault_read r = {0};
    lien_token token = {0};
    lien_buf *bufs[LIEN_BUFS_MAX];
    lien_space *space = NULL;
    char echoed = 0;
    field_open(&f, 0, NULL, NULL);
    field_ask(&f, "grant64", NULL, 0, &token, sizeof token);
    CHECK_EQ(token.len, 32 + 64 * LIENI_KEY_SIZE);
    uint8_t *key = token.bytes + 32 + bad * LIENI_KEY_SIZE + 8; // docs/wire.md, "Token"
    lieni_put64(key, ~lieni_get64(key));
    for (unsigned i = 0; i < LIEN_BUFS_MAX; i++)
        bufs[i] = field_buf(&f, 4096, 1);
    CHECK_EQ(lien_space_open(f.side.ctx, bufs, LIEN_BUFS_MAX, &space), 0);
    CHECK_EQ(fault_read_start(&r, f.conn, &token, space, LIEN_FOREVER, LIEN_RELEASE), 0);
    CHECK(fault_until(fault_read_is_released, &r, 30000));
    fault_sleep(50);
    CHECK(r.done == 1 && r.released == 1 && r.in_order);
    CHECK_EQ(r.status, LIEN_EPEERLOST); // over tcp a refused READ takes its connection along
    CHECK_EQ(r.released_status, 0);
    CHECK_EQ(lien_space_wait(space, 0), 0);
    lien_read_close(&r.read);
    lien_space_free(&space);
    CHECK_EQ(lien_conn_close_wait(&f.conn, 30000), 0);
    // And nothing else: the same process serves a new connection.
    f.conn = fault_connect(&f.side, &f.peer);
    field_ask(&f, "echo", "x", 1, &echoed, 1);
    CHECK_EQ(echoed, 'x');
    field_close(&f);
}

// The connection breaks in the middle of a write of 1024 operations, beside ten other calls.
static void cut_in_the_middle(void)
{
    struct field f;
    struct field_call c = {0}, others[10];
    struct field_source s = source_of(1, 32 * MIB, LIEN_OPS_MAX);
    lien_call_opts opts = field_opts();
    memset(others, 0, sizeof others);
    field_open(&f, FIELD_RELAYED, NULL, NULL);
    field_ask(&f, "prepare", &s, sizeof s, NULL, 0);
    for (unsigned i = 0; i < 10; i++) {
        lien_call_opts plain = field_opts();
        field_start(&f, &others[i], "swallow", NULL, 0, &plain);
    }
    lien_space *space = opts.write = field_space(&f, s.len, 2);
    f.relay.left = 8 * MIB;
    f.relay.limited = true;
    field_start(&f, &c, "write", &s, sizeof s, &opts);
    while (f.relay.left > 0)
        fault_sleep(1);
    CHECK(c.done == 0 && c.released == 0);
    f.relay.cut = true;
    CHECK_EQ(field_over(&c), LIEN_EPEERLOST);
    CHECK_EQ(c.pieces_at_released, 0);
    for (unsigned i = 0; i < 10; i++)
        CHECK_EQ(field_over(&others[i]), LIEN_EPEERLOST);
    fault_sleep(50);
    CHECK(c.done == 1 && c.released == 1);
    lien_space_free(&space);
    CHECK_EQ(lien_conn_close_wait(&f.conn, 30000), 0);
    field_close(&f);
}

void field_report_11_failed_piece(void)
{
    static const unsigned bad[] = {0, 31, 63};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        bad_key(bad[i]);
    cut_in_the_middle();
}

// -- 12: of nothing, and of a GiB --------------------------------------------------------------------------------------------------

// Writes of `n_ops` operations; all but the last are of no bytes where there are fewer bytes than operations.
static void write_of(struct field *f, uint64_t len, uint32_t n_ops)
{
    struct field_call c = {0};
    struct field_source s = source_of(3, len, n_ops);
    lien_call_opts opts = field_opts();
    lien_ctx_stats before, after;
    fault_stats(&f->side, &before);
    lien_space *space = opts.write = field_space(f, len, 9);
    field_start(f, &c, "write", &s, sizeof s, &opts);
    CHECK_EQ(field_over(&c), 0);
    fault_stats(&f->side, &after);
    CHECK_EQ(after.read_bytes - before.read_bytes, len);
    lien_buf *buf = field_take(&space);
    CHECK(field_buf_is(buf, 3));
    lien_buf_free(&buf);
}

// Its sixteen megabytes are there 64 times on both sides: what is looked for is whether a GiB is taken for nothing.
static void write_gibibyte(struct field *f)
{
    struct field_call c = {0};
    struct field_source s = source_of(4, GIB, 0);
    lien_call_opts opts = field_opts();
    lien_ctx_stats before, after;
    lien_mem *mem = NULL;
    lien_buf *buf = NULL;
    lien_space *space = NULL;
    void *own = field_repeated(GIB, 9);
    s.repeated = true;
    field_ask(f, "prepare", &s, sizeof s, NULL, 0);
    CHECK_EQ(lien_mem_register(f->side.ctx, own, GIB, NULL, &mem), 0);
    CHECK_EQ(lien_mem_buf(mem, 0, GIB, &buf), 0);
    CHECK_EQ(lien_space_open(f->side.ctx, &buf, 1, &space), 0);
    CHECK_EQ(lien_space_len(space), GIB);
    fault_stats(&f->side, &before);
    opts.write = space;
    opts.timeout_ms = 100000;
    field_start(f, &c, "write", &s, sizeof s, &opts);
    CHECK_EQ(field_over(&c), 0);
    fault_stats(&f->side, &after);
    CHECK_EQ(after.read_bytes - before.read_bytes, GIB);
    CHECK(fault_is(own, FIELD_CHUNK, 4));
    lien_space_free(&space);
    CHECK_EQ(lien_mem_unregister_wait(&mem, 10000), 0);
}

static void reads_of_nothing(struct field *f)
{
    static const lien_op nothing[] = {{0, 0, 0}, {4096, 4096, 0}, {17, 3, 0}};
    lien_token token;
    lien_buf *buf = field_buf(f, 4096, 9);
    lien_read_opts opts;
    fault_ask_grant(f->conn, 4096, &token);
    lien_read_opts_init(&opts);
    opts.ops = nothing;
    for (opts.n_ops = 1; opts.n_ops <= 3; opts.n_ops++)
        CHECK_EQ(lien_read_wait(f->conn, token.bytes, token.len, &buf, 1, &opts), 0);
    CHECK(field_buf_is(buf, 9)); // and nothing came
    opts.ops = NULL;
    opts.n_ops = 0;
    opts.flags = LIEN_RELEASE;
    CHECK_EQ(lien_read_wait(f->conn, token.bytes, token.len, &buf, 1, &opts), 0);
    CHECK(field_buf_is(buf, 0));
    lien_buf_free(&buf);
}

// Messages and calls without a byte are messages and calls.
static void nothing_at_all(struct field *f)
{
    lien_msg *msg = NULL;
    const void *head;
    size_t len = 1;
    for (unsigned i = 0; i < 100; i++) {
        CHECK_EQ(lien_send_wait(f->conn, NULL, 0, NULL, 0, NULL), 0);
        CHECK_EQ(lien_msg_recv_wait(f->conn, 30000, &msg), 0);
        CHECK_EQ(lien_msg_head(msg, &head, &len), 0);
        CHECK(len == 0 && !lien_msg_body(msg));
        lien_msg_free(&msg);
        field_ask(f, "echo", NULL, 0, NULL, 0);
    }
}

void field_report_12_zero_and_gibibyte(void)
{
    struct field f;
    field_open(&f, 0, NULL, NULL);
    nothing_at_all(&f);
    reads_of_nothing(&f);
    write_of(&f, 1, LIEN_OPS_MAX);
    write_of(&f, 1000, LIEN_OPS_MAX);
    write_of(&f, MIB + 1, LIEN_OPS_MAX);
    write_of(&f, 32 * MIB + 13, LIEN_OPS_MAX);
    write_gibibyte(&f);
    field_close(&f);
}
