// SPDX-License-Identifier: Apache-2.0
//
// Calls that end while bytes are on their way: by a deadline, a cancel, a close; and replies that are early. Reports 1, 2, 5, 7.

#include "core/conn.h"
#include "tests/field/field.h"

#define LARGE  (64 * MIB)
#define MIDDLE (24 * MIB)
#define TEN    10u

static struct field_source source_of(uint64_t seed, uint64_t len)
{
    struct field_source s;
    memset(&s, 0, sizeof s);
    s.seed = seed;
    s.len = len;
    return s;
}

static void prepare(struct field *f, uint64_t seed, uint64_t len)
{
    struct field_source s = source_of(seed, len);
    field_ask(f, "prepare", &s, sizeof s, NULL, 0);
}

static struct field_verdict verdict_of(struct field *f)
{
    struct field_verdict v;
    field_ask(f, "verdict", NULL, 0, &v, sizeof v);
    return v;
}

// -- Ten other calls ---------------------------------------------------------------------------------------------------------------

struct others {
    struct field_call call[TEN];
    struct field_source source[TEN];
    lien_space *space[TEN]; // of every second one
};

static void others_start(struct field *f, struct others *o)
{
    memset(o, 0, sizeof *o);
    for (uint32_t i = 0; i < TEN; i++) {
        lien_call_opts opts = field_opts();
        o->source[i] = source_of(100 + i, 100000 + i);
        o->source[i].number = i;
        if (i % 2)
            opts.write = o->space[i] = field_space(f, o->source[i].len, 200 + i);
        field_start(f, &o->call[i], "keep", &o->source[i], sizeof o->source[i], &opts);
    }
    while (verdict_of(f).kept < TEN)
        fault_sleep(1);
}

static void others_run(const struct others *o)
{
    for (uint32_t i = 0; i < TEN; i++)
        CHECK(o->call[i].done == 0 && o->call[i].released == 0);
}

static void others_finish(struct field *f, struct others *o)
{
    uint32_t n = 0;
    field_ask(f, "answer", NULL, 0, &n, sizeof n);
    CHECK_EQ(n, TEN);
    for (uint32_t i = 0; i < TEN; i++) {
        struct field_call *c = &o->call[i];
        CHECK_EQ(field_over(c), 0);
        CHECK(c->reply_len == sizeof o->source[i] &&
              memcmp(c->reply, &o->source[i], c->reply_len) == 0);
        if (!o->space[i])
            continue;
        lien_buf *buf = field_take(&o->space[i]);
        CHECK(field_buf_is(buf, 100 + i));
        lien_buf_free(&buf);
    }
}

// -- 1: a transfer times out, and its destination goes back ------------------------------------------------------------------------

// What the peer sends stands after `after` bytes, until flowing().
static void standing(struct field *f, uint64_t after)
{
    f->relay.left = after;
    f->relay.limited = true;
}

static void flowing(struct field *f)
{
    f->relay.limited = false;
}

static bool much_is_posted(void *arg)
{
    struct field *f = arg;
    lien_ctx_stats stats;
    fault_stats(&f->side, &stats);
    return stats.read_pieces_posted - f->before.read_pieces_posted > 10; // of a MiB each
}

static void check_lent(lien_space *space)
{
    lien_buf *buf = NULL;
    CHECK_EQ(lien_space_buf(space, 0, &buf), LIEN_EBUSY);
    CHECK_EQ(lien_space_take(space, &buf, 1), LIEN_EBUSY);
    CHECK_EQ(lien_space_wait(space, 0), LIEN_ETIMEDOUT);
}

// Other data in memory that a call had: no byte of it changes, whatever goes on.
static void check_mine(struct field *f, lien_buf *buf)
{
    struct field_source s = source_of(3, MIDDLE);
    struct field_call c = {0};
    lien_call_opts opts = field_opts();
    void *data = NULL;
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    fault_fill(data, LARGE, 77);
    lien_space *space = opts.write = field_space(f, MIDDLE, 5);
    field_start(f, &c, "write", &s, sizeof s, &opts);
    CHECK_EQ(field_over(&c), 0);
    lien_buf *other = field_take(&space);
    CHECK(field_buf_is(other, 3));
    CHECK(field_buf_is(buf, 77));
    lien_buf_free(&other);
    lien_buf_free(&buf);
}

static void end_in_the_middle(bool cancel, uint32_t timeout_ms)
{
    struct field f;
    struct field_call c = {0};
    struct field_source s = source_of(1, LARGE);
    struct others others;
    lien_call_opts opts = field_opts();
    field_open(&f, FIELD_RELAYED, NULL, NULL);
    prepare(&f, 1, LARGE);
    others_start(&f, &others);
    lien_space *space = opts.write = field_space(&f, LARGE, 2);
    opts.timeout_ms = timeout_ms;
    fault_stats(&f.side, &f.before);
    standing(&f, 8 * MIB);
    field_start(&f, &c, "write", &s, sizeof s, &opts);
    CHECK(fault_until(much_is_posted, &f, timeout_ms)); // more than can come
    CHECK_EQ(c.done, 0);
    if (cancel)
        CHECK_EQ(lien_call_cancel(c.call), 0);
    CHECK(fault_until(field_is_done, &c, 30000));
    CHECK_EQ(c.status, cancel ? LIEN_ECANCELED : LIEN_ETIMEDOUT);
    CHECK(cancel || c.done_us - c.begin_us >= timeout_ms * 1000u);
    // Known, and not over: READs of it run, and nobody has its memory.
    CHECK(field_reads_outstanding(&f) > 0);
    CHECK_EQ(c.released, 0);
    check_lent(space);
    others_run(&others);
    fault_sleep(100);
    CHECK_EQ(c.released, 0);
    check_lent(space);
    flowing(&f);
    CHECK_EQ(field_over(&c), cancel ? LIEN_ECANCELED : LIEN_ETIMEDOUT);
    CHECK_EQ(c.pieces_at_released, 0);
    lien_buf *mine = field_take(&space);
    others_run(&others);
    check_mine(&f, mine);
    others_finish(&f, &others);
    printf("%s after %u ms in the middle of 64 MiB: done %u ms, released %u ms after the start\n",
           cancel ? "cancelled" : "timed out", timeout_ms,
           (unsigned)((c.done_us - c.begin_us) / 1000),
           (unsigned)((c.released_us - c.begin_us) / 1000));
    field_close(&f);
}

void field_report_01_timed_out_destination(void)
{
    end_in_the_middle(false, 2000);
    end_in_the_middle(true, 30000);
}

// -- 2: an aborted call's source is used for the next one --------------------------------------------------------------------------

// Reads of the peer's are complete, and it asks whether they hold.
static bool was_asked(void *arg)
{
    struct field *f = arg;
    lieni_ctx_lock(f->side.ctx);
    bool asked = f->conn->calls.n_answers > 0;
    lieni_ctx_unlock(f->side.ctx);
    return asked;
}

// Until `waiting` handlers wait for "go"; with 0 until all are over.
static void wait_handlers(struct field *f, uint32_t waiting)
{
    for (;;) {
        struct field_verdict v = verdict_of(f);
        if (waiting ? v.waiting == waiting : v.n_begun == v.n_over)
            return;
        fault_sleep(1);
    }
}

static void rewrite(lien_buf *buf, uint64_t seed)
{
    void *data = NULL;
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    fault_fill(data, lien_buf_len(buf), seed);
}

// The server's READ is late: it comes when the call was aborted and its source holds the next request's bytes, and it is complete before the server hears of the abort.
static void late_read(struct field *f, lien_buf *buf, uint64_t seed)
{
    struct field_call first = {0}, next = {0};
    struct field_source s = source_of(seed, lien_buf_len(buf));
    struct field_verdict before = verdict_of(f), after;
    lien_call_opts opts = field_opts();
    opts.read = &buf;
    opts.n_read = 1;
    rewrite(buf, seed);
    s.wait = true;
    field_start(f, &first, "read", &s, sizeof s, &opts);
    wait_handlers(f, 1);
    uint32_t kept = field_hold_control(f);
    CHECK_EQ(lien_call_cancel(first.call), 0);
    rewrite(buf, seed + 1);
    s.seed = seed + 1;
    s.wait = false;
    field_ask(f, "go", NULL, 0, NULL, 0);
    CHECK(fault_until(was_asked, f, 30000));
    opts = field_opts();
    opts.read = &buf;
    opts.n_read = 1;
    field_start(f, &next, "read", &s, sizeof s, &opts);
    field_give_control(f, kept);
    CHECK_EQ(field_over(&first), LIEN_ECANCELED);
    CHECK_EQ(field_over(&next), 0);
    wait_handlers(f, 0);
    after = verdict_of(f);
    CHECK_EQ(after.believed - before.believed, 1); // the next one's
    CHECK_EQ(after.stale + after.other - before.stale - before.other, 1);
    CHECK_EQ(after.acted_wrong, 0);
}

// The same as it comes, at any moment.
static void abort_at_random(struct field *f, lien_buf *buf, unsigned n)
{
    struct field_verdict before = verdict_of(f), after;
    unsigned seed = 12345;
    for (unsigned i = 0; i < n; i++) {
        struct field_call c = {0};
        struct field_source s = source_of(1000 + i, lien_buf_len(buf));
        lien_call_opts opts = field_opts();
        opts.read = &buf;
        opts.n_read = 1;
        rewrite(buf, s.seed);
        field_start(f, &c, "read", &s, sizeof s, &opts);
        seed = seed * 1103515245u + 12345u;
        uint64_t until = fault_us() + seed / 65536u % 1000u;
        while (fault_us() < until) {
        }
        CHECK_EQ(lien_call_close(&c.call), 0);
        rewrite(buf, 0xdead);
        field_over(&c);
    }
    wait_handlers(f, 0);
    after = verdict_of(f);
    CHECK_EQ(after.acted_wrong, 0);
    printf("%u calls aborted: %u reads believed, %u stale, %u ended\n", n,
           after.believed - before.believed, after.stale - before.stale,
           after.other - before.other);
}

void field_report_02_reused_source(void)
{
    struct field f;
    field_open(&f, 0, NULL, NULL);
    lien_buf *buf = field_buf(&f, MIB, 0);
    for (unsigned i = 0; i < 10; i++)
        late_read(&f, buf, 2 * i + 1);
    CHECK(verdict_of(&f).stale > 0); // not all were told by the CANCEL
    abort_at_random(&f, buf, 200);
    lien_buf_free(&buf);
    field_close(&f);
}

// -- 5: forced ends ----------------------------------------------------------------------------------------------------------------

// A close by force in the middle of a transfer.
static void close_in_the_middle(void)
{
    static const char *const settings[] = {"linger_ms=3000", NULL};
    struct field f;
    struct field_call c = {0};
    struct field_source s = source_of(1, MIDDLE);
    lien_call_opts opts = field_opts();
    field_open(&f, FIELD_RELAYED, NULL, settings);
    prepare(&f, 1, MIDDLE);
    lien_space *space = opts.write = field_space(&f, MIDDLE, 2);
    standing(&f, 8 * MIB);
    field_start(&f, &c, "write", &s, sizeof s, &opts);
    CHECK(fault_until(much_is_posted, &f, 30000));
    field_shut(&f);
    CHECK(fault_until(field_is_done, &c, 30000));
    CHECK_EQ(c.status, LIEN_ECLOSED);
    // The connection has some time to say goodbye in; READs that run go on running.
    if (c.released == 0)
        check_lent(space);
    CHECK_EQ(field_over(&c), LIEN_ECLOSED);
    CHECK_EQ(c.pieces_at_released, 0);
    CHECK(c.released_us - c.done_us >= 1000000u); // its end is what proves, not its close
    lien_buf *mine = field_take(&space);
    void *data = NULL;
    CHECK_EQ(lien_buf_mut(mine, &data), 0);
    fault_fill(data, MIDDLE, 77);
    flowing(&f); // what stood comes now, if it can
    fault_sleep(300);
    CHECK(field_buf_is(mine, 77));
    lien_buf_free(&mine);
    field_close(&f);
}

// A READ that is cancelled, without a call.
static void cancel_a_read(void)
{
    struct field f;
    struct fault_read r = {0};
    lien_token token;
    field_open(&f, FIELD_RELAYED, NULL, NULL);
    fault_ask_grant(f.conn, MIDDLE, &token);
    lien_space *space = field_space(&f, MIDDLE, 2);
    standing(&f, 8 * MIB);
    CHECK_EQ(fault_read_start(&r, f.conn, &token, space, LIEN_FOREVER, LIEN_RELEASE), 0);
    CHECK(fault_until(much_is_posted, &f, 30000));
    CHECK_EQ(lien_read_cancel(r.read), 0);
    CHECK(fault_until(fault_read_is_done, &r, 30000));
    CHECK_EQ(r.status, LIEN_ECANCELED);
    CHECK(field_reads_outstanding(&f) > 0);
    CHECK_EQ(r.released, 0);
    check_lent(space);
    flowing(&f);
    CHECK(fault_until(fault_read_is_released, &r, 30000));
    CHECK(r.done == 1 && r.released == 1 && r.in_order);
    CHECK_EQ(field_reads_outstanding(&f), 0);
    lien_read_close(&r.read);
    lien_space_free(&space);
    field_close(&f);
}

void field_report_05_forced_end(void)
{
    close_in_the_middle();
    cancel_a_read();
}

// -- 7: a reply before the data ----------------------------------------------------------------------------------------------------

struct looked_at {
    const void *data;
    size_t len;
    uint64_t seed;
};

static bool has_arrived(void *arg)
{
    const struct looked_at *l = arg;
    return fault_is(l->data, l->len, l->seed);
}

// The handler replies right after it began to write. The caller looks at its memory (of its own, so that nothing but the reply keeps it from looking) when it is told of success.
void field_report_07_early_reply(void)
{
    struct field f;
    const size_t len = 4 * MIB;
    lien_mem *mem = NULL;
    lien_buf *buf = NULL;
    lien_space *space = NULL;
    field_open(&f, 0, NULL, NULL);
    void *own = aligned_alloc(4096, len);
    CHECK(own);
    CHECK_EQ(lien_mem_register(f.side.ctx, own, len, NULL, &mem), 0);
    CHECK_EQ(lien_mem_buf(mem, 0, len, &buf), 0);
    CHECK_EQ(lien_space_open(f.side.ctx, &buf, 1, &space), 0);
    for (unsigned i = 0; i < 30; i++) {
        struct looked_at at = {own, len, 10 + i % 2};
        struct field_call c = {.look = has_arrived, .look_arg = &at};
        struct field_source s = source_of(at.seed, len);
        lien_call_opts opts = field_opts();
        if (i < 2)
            prepare(&f, at.seed, len);
        opts.write = space;
        s.reply_first = true;
        s.n_ops = i % 3 ? 100 : 0;
        field_start(&f, &c, "write", &s, sizeof s, &opts);
        CHECK_EQ(field_over(&c), 0);
        CHECK(c.looked); // else it was a success with the bytes of before
    }
    lien_space_free(&space);
    CHECK_EQ(lien_mem_unregister_wait(&mem, 10000), 0);
    free(own);
    field_close(&f);
}
