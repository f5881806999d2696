// SPDX-License-Identifier: Apache-2.0
//
// R16 on the simulator, whose network can let a READ succeed with nothing written: checksums, zeroing, and when a pool's memory is used again. Each protection has its counterpart without it in which
// the fault does its harm, so that a test that passes has met the fault.

#include <signal.h>
#include <sys/mman.h>

#include "core/read.h"
#include "tests/calls/world.h"

#define SMALL 4096u             // compared where it arrives
#define LARGE (300u << 10)      // by the thread for it; app-driven: by the next progress
#define ALL   UINT32_C(1000000) // per million

static struct desk desk;
static const lien_method methods[] = {{.name = "test/desk", .handle = to_desk, .arg = &desk}};
static const lien_service service = {.methods = methods, .n_methods = 1};

static struct world *plain(void)
{
    memset(&desk, 0, sizeof(desk));
    return world_open(3, NULL, NULL, &service, &service);
}

static void hollow(struct world *w, bool on)
{
    lieni_sim_world_config(w->sim)->p_hollow = on ? ALL : 0;
}

static uint64_t wrong(struct world *w, unsigned node)
{
    lien_ctx_stats stats = {.size = sizeof(stats)};
    cr_assert_eq(lien_ctx_stats_get(w->ctx[node], &stats), 0);
    return stats.checksums_wrong;
}

// The server grants `n` buffers of `len` bytes; the bytes of buffer i are pattern i + 1.
static lien_grant *grant_of(struct world *w, size_t len, size_t n, unsigned flags,
                            lien_token *token)
{
    lien_buf *bufs[LIEN_BUFS_MAX];
    lien_grant *grant;
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.flags = flags;
    for (size_t i = 0; i < n; i++)
        bufs[i] = buf_new(w, SERVER, len, i + 1);
    int rc = lien_grant_open(w->conn[SERVER], bufs, n, &opts, token, &grant);
    cr_assert_eq(rc, 0, "%s", lien_errname(rc));
    for (size_t i = 0; i < n; i++)
        lien_buf_free(&bufs[i]); // by the release
    return grant;
}

struct transfer {
    struct seen s;
    lien_space *space;
};

static int start(struct world *w, const lien_token *token, lien_buf *into, const lien_op *ops,
                 size_t n_ops, struct transfer *t)
{
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.on_done = saw_done;
    opts.on_released = saw_released;
    opts.arg = &t->s;
    opts.ops = ops;
    opts.n_ops = n_ops;
    t->space = space_of(w, CLIENT, into);
    return lien_read_start(w->conn[CLIENT], token->bytes, token->len, t->space, &opts, NULL);
}

// Reads all of it into one buffer, which comes back.
static lien_buf *read_all(struct world *w, const lien_token *token, size_t len, int status)
{
    struct transfer t = {0};
    cr_assert_eq(start(w, token, buf_new(w, CLIENT, len, 99), NULL, 0, &t), 0);
    cr_assert(run_until(w, &t.s.released, 5000));
    cr_assert_eq(t.s.status, status, "%s", lien_errname(t.s.status));
    cr_assert_eq(t.s.released_status, 0);
    cr_assert(t.s.n_done == 1 && t.s.n_released == 1);
    lien_buf *buf;
    cr_assert_eq(lien_space_take(t.space, &buf, 1), 0);
    lien_space_free(&t.space);
    return buf;
}

static void end_grant(struct world *w, lien_grant **grant, const lien_token *token)
{
    cr_assert_eq(lien_release(w->conn[CLIENT], token->bytes, token->len), 0);
    run_ms(w, 50);
    cr_assert_eq(lien_grant_wait(*grant, 0), 0);
    lien_grant_close(grant);
}

Test(checksum, a_hollow_read_is_not_believed)
{
    struct world *w = plain();
    lien_token token;
    const size_t lens[] = {1, SMALL, LARGE};
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        for (unsigned with = 0; with < 2; with++) {
            lien_grant *grant = grant_of(w, lens[i], 1, with ? LIEN_CHECKSUM : 0, &token);
            lien_token_info info = {.size = sizeof(info)};
            cr_assert_eq(lien_token_open(w->conn[CLIENT], token.bytes, token.len, &info), 0);
            cr_assert_eq(info.checksum, with == 1);
            uint64_t before = wrong(w, CLIENT);
            hollow(w, true);
            lien_buf *buf = read_all(w, &token, lens[i], with ? LIEN_ECHECKSUM : 0);
            cr_assert_eq(wrong(w, CLIENT), before + with);
            cr_assert(buf_is(buf, 99)); // what was there before: without a checksum it is believed
            lien_buf_free(&buf);
            hollow(w, false);
            buf = read_all(w, &token, lens[i], 0); // the same grant, by an honest network
            cr_assert(buf_is(buf, 1));
            lien_buf_free(&buf);
            end_grant(w, &grant, &token);
        }
    }
    cr_assert(!w->lost[0] && !w->lost[1]);
    world_close(w);
}

Test(checksum, whole_buffers_in_any_order_and_no_parts)
{
    enum {
        N = 5
    };
    struct world *w = plain();
    lien_token token;
    lien_grant *grant = grant_of(w, SMALL, N, LIEN_CHECKSUM, &token);
    // Buffers 3 and 4 in front, then 1, and 0 and 2 not at all; one of no bytes in the middle of a buffer.
    const lien_op apart[] = {{3 * SMALL, 0, 2 * SMALL}, {SMALL, 2 * SMALL, SMALL}, {7, 9, 0}};
    struct transfer t = {0};
    cr_assert_eq(start(w, &token, buf_new(w, CLIENT, 4 * SMALL, 99), apart, 3, &t), 0);
    cr_assert(run_until(w, &t.s.released, 5000));
    cr_assert_eq(t.s.status, 0, "%s", lien_errname(t.s.status));
    const void *data;
    cr_assert_eq(lien_buf_data(space_first(t.space), &data), 0);
    for (size_t i = 0; i < SMALL; i++) {
        cr_assert_eq(((const uint8_t *)data)[i], pattern(4, i));
        cr_assert_eq(((const uint8_t *)data)[SMALL + i], pattern(5, i));
        cr_assert_eq(((const uint8_t *)data)[2 * SMALL + i], pattern(2, i));
        cr_assert_eq(((const uint8_t *)data)[3 * SMALL + i], pattern(99, 3 * SMALL + i));
    }
    lien_space_free(&t.space);
    // Parts cannot be checked, and are refused before anything is lent.
    const lien_op parts[] = {{0, 0, SMALL - 1}, {1, 0, SMALL - 1}, {SMALL, 0, SMALL + 1},
                             {0, 0, 1},         {100, 0, SMALL},   {0, 0, (N - 1) * SMALL + 1}};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        struct transfer p = {0};
        cr_assert_eq(start(w, &token, buf_new(w, CLIENT, N * SMALL, 99), &parts[i], 1, &p),
                     LIEN_EPARTIAL, "part %zu", i);
        cr_assert(buf_is(space_first(p.space), 99));
        run_ms(w, 5);
        cr_assert_eq(p.s.n_done + p.s.n_released, 0);
        lien_space_free(&p.space);
    }
    end_grant(w, &grant, &token);
    world_close(w);
}

// What happens while the bytes are being compared: done is told at once, and the space is lent until the comparison is over. All of it runs inside a task, during which no other task does: so the
// comparison, which is one, is as if on its way.
static struct middle {
    struct lieni_task task;
    struct world *w;
    lien_space *space;
    lien_read *read;
    void (*what)(struct middle *m);
} middle;

static void pass_ms(struct world *w, uint64_t ms)
{
    while (ms-- > 0) {
        run_ms(w, 1);
        lieni_progress_pass(w->ctx[CLIENT]);
    }
}

static void in_the_middle(struct lieni_task *task)
{
    struct middle *m = lieni_container(task, struct middle, task);
    struct world *w = m->w;
    for (unsigned i = 0; i < 10000 && m->read->state != LIENI_READ_CHECKING; i++)
        pass_ms(w, 1);
    cr_assert_eq(m->read->state, LIENI_READ_CHECKING);
    m->what(m);
    cr_assert_eq(lien_space_wait(m->space, 0), LIEN_ETIMEDOUT);
    cr_assert_eq(lieni_buf_state(m->space->bufs[0]), LIENI_BUF_TARGET);
    pass_ms(w, 2000); // the teardown, too, does not come past it
    cr_assert_eq(lien_space_wait(m->space, 0), LIEN_ETIMEDOUT);
    cr_assert_eq(lieni_buf_state(m->space->bufs[0]), LIENI_BUF_TARGET);
}

static void cancelled(struct middle *m)
{
    cr_assert_eq(lien_read_cancel(m->read), 0);
}

static void closed(struct middle *m)
{
    cr_assert_eq(lien_conn_close(&m->w->conn[CLIENT]), 0);
}

static void broken(struct middle *m)
{
    lieni_ctx_lock(m->w->ctx[CLIENT]);
    lieni_conn_lose(m->w->conn[CLIENT], LIEN_EIO, "the test says so");
    lieni_ctx_unlock(m->w->ctx[CLIENT]);
}

static void end_while_checking(void (*what)(struct middle *m), int status)
{
    struct world *w = plain();
    lien_token token;
    lien_grant *grant = grant_of(w, LARGE, 1, LIEN_CHECKSUM, &token);
    struct seen s = {0};
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.on_done = saw_done;
    opts.on_released = saw_released;
    opts.arg = &s;
    memset(&middle, 0, sizeof(middle));
    middle.w = w;
    middle.what = what;
    middle.task.run = in_the_middle;
    middle.space = space_of(w, CLIENT, buf_new(w, CLIENT, LARGE, 99));
    cr_assert_eq(
        lien_read_start(w->conn[CLIENT], token.bytes, token.len, middle.space, &opts, &middle.read),
        0);
    w->asleep[CLIENT] = true;
    lieni_strand_post(w->ctx[CLIENT]->strand, &middle.task);
    cr_assert_eq(lien_ctx_progress(w->ctx[CLIENT]), 0);
    w->asleep[CLIENT] = false;
    cr_assert(run_until(w, &s.released, 5000));
    cr_assert_eq(s.status, status, "%s", lien_errname(s.status));
    cr_assert_eq(s.released_status, 0);
    cr_assert(s.n_done == 1 && s.n_released == 1);
    lien_read_close(&middle.read);
    lien_space_free(&middle.space);
    lien_grant_close(&grant);
    world_close(w);
}

Test(checksum, a_cancel_meets_the_comparison)
{
    end_while_checking(cancelled, LIEN_ECANCELED);
}

Test(checksum, a_close_meets_the_comparison)
{
    end_while_checking(closed, LIEN_ECLOSED);
}

Test(checksum, a_loss_meets_the_comparison)
{
    end_while_checking(broken, LIEN_EIO);
}

// -- Messages and calls --

static bool got_message(struct world *w, unsigned node, lien_msg **msg)
{
    return lien_msg_recv_wait(w->conn[node], 0, msg) == 0;
}

// Grants of the client's that the server released, or is about to. What it says last before it ends a connection the simulated network drops, so that only here it shows.
static unsigned releases(struct world *w)
{
    unsigned n = 0;
    lieni_ctx_lock(w->ctx[SERVER]);
    const struct lieni_import_table *t = &w->conn[SERVER]->imports;
    for (uint32_t i = 0; t->pages && i < t->max; i++) {
        const struct lieni_import *page = t->pages[i / LIENI_IMPORT_PAGE];
        if (page)
            n += page[i % LIENI_IMPORT_PAGE].dead + page[i % LIENI_IMPORT_PAGE].queued;
    }
    lieni_ctx_unlock(w->ctx[SERVER]);
    return n;
}

// What its sender hears is what became of it: taken over, or lost with the connection.
static void messages_of(size_t len)
{
    struct world *w = plain();
    unsigned n = 0;
    for (unsigned with = 0; with < 2; with++) {
        for (unsigned bad = 0; bad < 2; bad++) {
            struct seen s = {0};
            lien_send_opts opts;
            lien_send_opts_init(&opts);
            opts.on_done = saw_done;
            opts.on_released = saw_released;
            opts.arg = &s;
            opts.flags = with ? LIEN_CHECKSUM : 0;
            const uint64_t tag = 1000 + 2 * with + bad; // not what lies in the receiver's memory
            lien_buf *buf = buf_new(w, CLIENT, len, tag);
            hollow(w, bad);
            lien_msg *msg = NULL;
            cr_assert(!got_message(w, SERVER, &msg)); // and from now on bodies are fetched
            cr_assert_eq(lien_send(w->conn[CLIENT], "x", 1, &buf, 1, &opts), 0);
            cr_assert(run_until(w, &s.released, 5000));
            lien_buf_free(&buf);
            cr_assert_eq(s.n_done, 1);
            if (with && bad)
                cr_assert(s.status == LIEN_EPEERLOST || s.status == LIEN_ECLOSED, "%s",
                          lien_errname(s.status));
            else
                cr_assert_eq(s.status, 0, "%s", lien_errname(s.status));
            cr_assert_eq(s.released_status, 0);
            cr_assert_eq(releases(w), ++n - (with && bad));
            cr_assert_eq(got_message(w, SERVER, &msg), !(with && bad));
            if (msg) {
                cr_assert_eq(buf_is(lien_msg_body(msg), tag), !bad);
                lien_msg_free(&msg);
            }
            run_ms(w, 50);
            // A message that cannot be had is a gap in the peer's order: the connection ends.
            cr_assert_eq(w->lost[SERVER], with && bad);
            cr_assert_eq(wrong(w, SERVER), with && bad);
        }
    }
    world_close(w);
}

Test(checksum, of_a_message)
{
    messages_of(SMALL);
    messages_of(LARGE);
}

enum way {
    ARGS,
    READ_SPACE,
    WRITE_SPACE,
    REPLY_BODY
};

// One call whose bytes move that way; the status of whoever hears of it first.
static int call_moves(struct world *w, enum way way, unsigned flags, bool bad)
{
    struct seen s = {.keep = true}, m = {0};
    lien_call_opts opts = call_to(&s);
    lien_transfer_opts move = transfer_to(&m);
    static uint64_t tags = 2000;
    const uint64_t here_tag = ++tags, there_tag = ++tags; // not what lies in anybody's memory
    lien_buf *buf = buf_new(w, CLIENT, LARGE, here_tag);
    lien_buf *there = buf_new(w, SERVER, LARGE, there_tag);
    lien_space *space = NULL;
    opts.flags = flags;
    opts.timeout_ms = 1000;
    opts.reply_max = way == REPLY_BODY ? LARGE : 0;
    opts.body = &buf;
    opts.n_body = way == ARGS;
    opts.read = &buf;
    opts.n_read = way == READ_SPACE;
    if (way == WRITE_SPACE)
        opts.write = space = space_of(w, CLIENT, buf);
    unsigned before = desk.n;
    int status = 0;
    hollow(w, bad && way == ARGS);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", NULL, 0, &opts, NULL), 0);
    run_ms(w, 100);
    hollow(w, bad);
    lien_request *request = desk.n > before ? desk.request[before % 64] : NULL;
    desk.request[before % 64] = NULL;
    if (request && way == ARGS)
        cr_assert_eq(buf_is(lien_request_body(request), here_tag), !bad);
    if (request && way == READ_SPACE) {
        lien_space *to = space_of(w, SERVER, there);
        there = NULL;
        cr_assert_eq(lien_request_read(request, to, &move), 0);
        cr_assert(run_until(w, &m.released, 900));
        status = m.status;
        cr_assert_eq(buf_is(space_first(to), here_tag), !bad);
        lien_space_free(&to);
    }
    if (request && way == WRITE_SPACE) {
        cr_assert_eq(lien_request_write(request, &there, 1, &move), 0);
        cr_assert(run_until(w, &m.released, 900));
        status = m.status;
    }
    lien_buf *body = NULL;
    if (request && way == REPLY_BODY) {
        body = there;
        there = NULL;
    }
    if (request)
        cr_assert_eq(lien_request_reply_body(&request, 0, NULL, 0, &body, body ? 1 : 0), 0);
    cr_assert(run_until(w, &s.released, 5000));
    if (status == 0)
        status = s.status;
    if (s.kept) {
        if (s.status == 0 && way == REPLY_BODY)
            cr_assert_eq(buf_is(lien_msg_body(s.kept), there_tag), !bad);
        lien_msg_free(&s.kept);
    }
    if (space) {
        cr_assert_eq(buf_is(space_first(space), there_tag), !bad);
        lien_space_free(&space);
    } else {
        lien_buf_free(&buf);
    }
    lien_buf_free(&there);
    hollow(w, false);
    return status;
}

Test(checksum, of_all_that_a_call_moves)
{
    struct world *w = plain();
    for (enum way way = ARGS; way <= REPLY_BODY; way++) {
        cr_assert_eq(call_moves(w, way, 0, false), 0);
        cr_assert_eq(call_moves(w, way, 0, true), 0); // and nobody knows better
        cr_assert_eq(wrong(w, SERVER) + wrong(w, CLIENT), way);
        cr_assert_eq(call_moves(w, way, LIEN_CHECKSUM, false), 0);
        int status = call_moves(w, way, LIEN_CHECKSUM, true);
        cr_assert_eq(status, LIEN_ECHECKSUM, "way %d: %s", (int)way, lien_errname(status));
        cr_assert_eq(wrong(w, SERVER) + wrong(w, CLIENT), way + 1);
    }
    cr_assert(!w->lost[0] && !w->lost[1]);
    world_close(w);
}

Test(checksum, a_write_is_of_whole_buffers_too)
{
    struct world *w = plain();
    struct seen s = {0}, m = {0};
    lien_call_opts opts = call_to(&s);
    lien_transfer_opts move = transfer_to(&m);
    lien_space *space = space_of(w, CLIENT, buf_new(w, CLIENT, 4 * SMALL, 99));
    opts.write = space;
    lien_request *request = desk_call(w, &desk, &opts, NULL);
    lien_buf *bufs[2] = {buf_new(w, SERVER, SMALL, 1), buf_new(w, SERVER, SMALL, 2)};
    const lien_op part = {1, 0, 10};
    const lien_op swapped[] = {{SMALL, 0, SMALL}, {0, SMALL, SMALL}};
    move.flags = LIEN_CHECKSUM;
    move.ops = &part;
    move.n_ops = 1;
    cr_assert_eq(lien_request_write(request, bufs, 2, &move), LIEN_EPARTIAL);
    move.ops = swapped;
    move.n_ops = 2;
    cr_assert_eq(lien_request_write(request, bufs, 2, &move), 0);
    cr_assert(run_until(w, &m.released, 1000));
    cr_assert_eq(m.status, 0, "%s", lien_errname(m.status));
    finish(w, &request, &s, 0);
    const void *data;
    cr_assert_eq(lien_buf_data(space_first(space), &data), 0);
    for (size_t i = 0; i < SMALL; i++) {
        cr_assert_eq(((const uint8_t *)data)[i], pattern(2, i));
        cr_assert_eq(((const uint8_t *)data)[SMALL + i], pattern(1, i));
    }
    lien_space_free(&space);
    lien_buf_free(&bufs[0]);
    lien_buf_free(&bufs[1]);
    world_close(w);
}

// A read space that its owner wrote over, since its call had ended, is stale: nobody counts it as garbled.
Test(checksum, a_stale_source_is_stale)
{
    struct world *w = plain();
    struct seen s = {0}, m = {0};
    lien_call_opts opts = call_to(&s);
    lien_transfer_opts move = transfer_to(&m);
    lien_buf *source = buf_new(w, CLIENT, LARGE, 5);
    lien_call *call;
    opts.read = &source;
    opts.n_read = 1;
    opts.flags = LIEN_CHECKSUM;
    lien_request *request = desk_call(w, &desk, &opts, &call);
    lien_space *to = space_of(w, SERVER, buf_new(w, SERVER, LARGE, 99));
    cr_assert_eq(lien_request_read(request, to, &move), 0);
    cr_assert_eq(lien_call_close(&call), 0);
    void *data;
    cr_assert_eq(lien_buf_mut(source, &data), 0);
    memset(data, 0x77, LARGE);
    cr_assert(run_until(w, &m.released, 5000));
    cr_assert(m.status == LIEN_ECANCELED || m.status == LIEN_ESTALE, "%s", lien_errname(m.status));
    cr_assert_eq(wrong(w, SERVER), 0);
    lien_request_drop(&request);
    lien_space_free(&to);
    lien_buf_free(&source);
    world_close(w);
}

Test(checksum, asked_of_everybody_and_demanded)
{
    static const char *const always[] = {"checksum=always", NULL};
    memset(&desk, 0, sizeof(desk));
    struct world *w = world_open(3, NULL, always, &service, &service);
    lien_token token;
    lien_grant *grant = grant_of(w, SMALL, 1, 0, &token);
    hollow(w, true);
    lien_buf *buf = read_all(w, &token, SMALL, LIEN_ECHECKSUM);
    lien_buf_free(&buf);
    hollow(w, false);
    // From now on the client demands them, and the server gives none.
    w->ctx[CLIENT]->options.checksum_require = true;
    buf = read_all(w, &token, SMALL, 0);
    cr_assert(buf_is(buf, 1));
    lien_buf_free(&buf);
    end_grant(w, &grant, &token);
    w->ctx[SERVER]->options.checksum_always = false;
    grant = grant_of(w, SMALL, 1, 0, &token);
    struct transfer t = {0};
    cr_assert_eq(start(w, &token, buf_new(w, CLIENT, SMALL, 99), NULL, 0, &t), LIEN_ECHECKSUM);
    lien_space_free(&t.space);
    end_grant(w, &grant, &token);
    // A message that should have one ends the connection.
    struct seen s = {0};
    lien_send_opts opts;
    lien_send_opts_init(&opts);
    opts.on_released = saw_released;
    opts.arg = &s;
    lien_msg *msg = NULL;
    cr_assert(!got_message(w, CLIENT, &msg));
    buf = buf_new(w, SERVER, SMALL, 5);
    cr_assert_eq(lien_send(w->conn[SERVER], NULL, 0, &buf, 1, &opts), 0);
    cr_assert(run_until(w, &s.released, 5000));
    run_ms(w, 50);
    cr_assert(w->lost[CLIENT]);
    lien_buf_free(&buf);
    world_close(w);
}

// -- Zeroing --

static lien_pool *pool_up_to(struct world *w, unsigned node, size_t limit, unsigned flags,
                             lien_reuse reuse, size_t expose_max)
{
    lien_pool *pool;
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.limit = limit;
    opts.reserve = 0;
    opts.flags = flags;
    opts.reuse = reuse;
    opts.expose_max = expose_max;
    cr_assert_eq(lien_pool_open(w->ctx[node], &opts, &pool), 0);
    return pool;
}

static lien_pool *pool_of(struct world *w, unsigned node, unsigned flags, lien_reuse reuse,
                          size_t expose_max)
{
    return pool_up_to(w, node, MIB, flags, reuse, expose_max);
}

static lien_buf *from(lien_pool *pool, size_t len, uint8_t **data)
{
    lien_buf *buf;
    void *bytes;
    cr_assert_eq(lien_pool_alloc(pool, len, &buf), 0);
    cr_assert_eq(lien_buf_mut(buf, &bytes), 0);
    *data = bytes;
    return buf;
}

static bool all_are(const uint8_t *data, size_t len, uint8_t byte)
{
    size_t i = 0;
    while (i < len && data[i] == byte)
        i++;
    return i == len;
}

Test(zero, nothing_old_is_handed_out_or_left_by_a_hollow_read)
{
    struct world *w = plain();
    lien_token token;
    lien_grant *grant = grant_of(w, SMALL, 1, 0, &token);
    for (unsigned with = 0; with < 2; with++) {
        lien_pool *pool = pool_of(w, CLIENT, with ? LIEN_ZERO : 0, LIEN_REUSE_RELEASE, 0);
        uint8_t *data, *first;
        lien_buf *buf = from(pool, 2 * SMALL, &first);
        memset(first, 0xaa, 2 * SMALL);
        lien_buf_free(&buf);
        buf = from(pool, 2 * SMALL - 100, &data);
        cr_assert_eq(data, first);
        cr_assert(all_are(data, lien_buf_capacity(buf), with ? 0 : 0xaa));
        // What another peer's READ left: only what this one should have written is gone.
        memset(data, 0xbb, lien_buf_capacity(buf));
        struct transfer t = {0};
        const lien_op op = {0, 1000, SMALL};
        hollow(w, true);
        cr_assert_eq(start(w, &token, buf, &op, 1, &t), 0);
        cr_assert(run_until(w, &t.s.released, 5000));
        cr_assert_eq(t.s.status, 0);
        hollow(w, false);
        cr_assert(all_are(data, 1000, 0xbb));
        cr_assert(all_are(data + 1000, SMALL, with ? 0 : 0xbb));
        cr_assert(all_are(data + 1000 + SMALL, SMALL - 1000, 0xbb));
        lien_space_free(&t.space);
        lien_pool_close(&pool);
    }
    end_grant(w, &grant, &token);
    world_close(w);
}

// A body goes into memory of the pool's, and shows nothing of what was there: all of it may be used, or none (with), or its first part.
Test(zero, a_hollow_body_is_blank)
{
    struct world *w = plain();
    const size_t used[] = {LARGE, LARGE, SMALL, 0};
    for (unsigned i = 0; i < sizeof(used) / sizeof(used[0]); i++) {
        const bool with = i > 0;
        lien_pool *pool = pool_of(w, SERVER, with ? LIEN_ZERO : 0, LIEN_REUSE_RELEASE, 0);
        uint8_t *data;
        lien_buf *dirty = used[i] ? from(pool, used[i], &data) : NULL;
        if (dirty)
            memset(data, 0xcc, lien_buf_capacity(dirty));
        lien_buf_free(&dirty);
        w->conn[SERVER]->opts.pool = pool;
        hollow(w, true);
        struct seen s = {0};
        lien_send_opts opts;
        lien_send_opts_init(&opts);
        opts.on_released = saw_released;
        opts.arg = &s;
        lien_msg *msg = NULL;
        cr_assert(!got_message(w, SERVER, &msg));
        lien_buf *buf = buf_new(w, CLIENT, LARGE - 5, 5);
        cr_assert_eq(lien_send(w->conn[CLIENT], NULL, 0, &buf, 1, &opts), 0);
        cr_assert(run_until(w, &s.released, 5000));
        lien_buf_free(&buf);
        cr_assert(got_message(w, SERVER, &msg));
        const void *got;
        cr_assert_eq(lien_buf_data(lien_msg_body(msg), &got), 0);
        cr_assert(all_are(got, LARGE, with ? 0 : 0xcc));
        // And once more into the same buffer, which is not blank any more.
        lien_buf *body;
        cr_assert_eq(lien_msg_take_body(msg, &body), 0);
        void *mut;
        cr_assert_eq(lien_buf_mut(body, &mut), 0);
        memset(mut, 0xdd, SMALL);
        lien_token token;
        lien_grant_opts go;
        lien_grant_opts_init(&go);
        lien_grant *grant;
        lien_buf *source = buf_new(w, CLIENT, SMALL, 1);
        cr_assert_eq(lien_grant_open(w->conn[CLIENT], &source, 1, &go, &token, &grant), 0);
        lien_space *space = space_of(w, SERVER, body);
        struct seen r = {0};
        lien_read_opts ro;
        lien_read_opts_init(&ro);
        ro.on_released = saw_released;
        ro.arg = &r;
        ro.flags = LIEN_RELEASE;
        cr_assert_eq(lien_read_start(w->conn[SERVER], token.bytes, token.len, space, &ro, NULL), 0);
        cr_assert(run_until(w, &r.released, 5000));
        run_ms(w, 50);
        cr_assert(all_are(mut, SMALL, with ? 0 : 0xdd));
        lien_space_free(&space);
        lien_grant_close(&grant);
        lien_buf_free(&source);
        lien_msg_free(&msg);
        hollow(w, false);
        w->conn[SERVER]->opts.pool = NULL;
        lien_pool_close(&pool);
    }
    world_close(w);
}

// The page that a reply ends in is blank behind it, and the pages that it did not need nobody sees.
Test(zero, what_a_reply_leaves_over)
{
    struct world *w = plain();
    lien_pool *pool = pool_of(w, CLIENT, LIEN_ZERO, LIEN_REUSE_RELEASE, 0);
    uint8_t *data;
    lien_buf *dirty = from(pool, LARGE, &data);
    memset(data, 0xcc, lien_buf_capacity(dirty));
    lien_buf_free(&dirty);
    w->conn[CLIENT]->opts.pool = pool;
    struct seen s = {.keep = true};
    lien_call_opts opts = call_to(&s);
    opts.reply_max = LARGE;
    lien_request *request = desk_call(w, &desk, &opts, NULL);
    lien_buf *body = buf_new(w, SERVER, SMALL + 5, 7);
    cr_assert_eq(lien_request_reply_body(&request, 0, NULL, 0, &body, 1), 0);
    cr_assert(run_until(w, &s.released, 5000));
    cr_assert_eq(s.status, 0, "%s", lien_errname(s.status));
    lien_buf *got = lien_msg_body(s.kept);
    const void *bytes;
    cr_assert(buf_is(got, 7));
    cr_assert_eq(lien_buf_len(got), SMALL + 5);
    cr_assert_eq(lien_buf_capacity(got), 2 * SMALL);
    cr_assert_eq(lien_buf_data(got, &bytes), 0);
    cr_assert_eq(bytes, data); // where the others lay
    cr_assert(all_are((const uint8_t *)bytes + SMALL + 5, SMALL - 5, 0));
    // They count as handed out until it is freed, and then they are wiped.
    lien_buf *rest;
    cr_assert_eq(lien_pool_alloc(pool, MIB - LARGE + 1, &rest), LIEN_ELIMIT);
    lien_msg_free(&s.kept);
    w->conn[CLIENT]->opts.pool = NULL;
    rest = from(pool, MIB, &data);
    cr_assert(all_are(data, MIB, 0));
    lien_buf_free(&rest);
    lien_pool_close(&pool);
    world_close(w);
}

// -- Zeroing, and the state lock --

#define MIBS 8u

// Memory that cannot be touched. Whoever touches it all the same is seen, and gets a MiB of it: the one that it is in.
static struct untouched {
    uint8_t *base;
    lien_ctx *ctx;
    unsigned touched[MIBS];
    bool locked[MIBS];
    uint64_t posted[MIBS]; // READs, before it was touched
} untouched;

static void on_touch(int sig, siginfo_t *info, void *context)
{
    struct untouched *u = &untouched;
    const uintptr_t at = (uintptr_t)info->si_addr - (uintptr_t)u->base;
    (void)context;
    if (at >= MIBS * MIB)
        _exit(sig);
    const size_t i = at / MIB;
    u->touched[i]++;
    u->posted[i] = u->ctx->stats.read_pieces_posted;
    u->locked[i] = pthread_mutex_trylock(&u->ctx->lock) != 0; // by this thread: there is no other
    if (!u->locked[i])
        pthread_mutex_unlock(&u->ctx->lock);
    mprotect(u->base + i * MIB, MIB, PROT_READ | PROT_WRITE);
}

// Memory of the pool that was used and is free, of which every touch is seen from now on.
static const uint8_t *watched(struct world *w, unsigned node, lien_pool *pool)
{
    uint8_t *data;
    lien_buf *dirty = from(pool, MIBS * MIB, &data);
    memset(data, 0xcc, MIBS * MIB);
    memset(&untouched, 0, sizeof(untouched));
    untouched.base = lieni_buf_addr(dirty);
    untouched.ctx = w->ctx[node];
    lien_buf_free(&dirty);
    struct sigaction act = {.sa_sigaction = on_touch, .sa_flags = SA_SIGINFO};
    sigemptyset(&act.sa_mask);
    cr_assert_eq(sigaction(SIGSEGV, &act, NULL), 0);
    cr_assert_eq(mprotect(untouched.base, MIBS * MIB, PROT_NONE), 0);
    return data;
}

static void keep_buf(void *arg, int status, lien_buf *buf)
{
    cr_assert_eq(status, 0);
    *(lien_buf **)arg = buf;
}

static lien_buf *allocated(struct world *w, lien_pool *pool, unsigned way)
{
    lien_buf *buf = NULL;
    if (way == 0) {
        cr_assert_eq(lien_pool_alloc(pool, MIBS * MIB, &buf), 0);
    } else if (way == 1) {
        cr_assert_eq(lien_pool_alloc_wait(pool, MIBS * MIB, 0, &buf), 0);
    } else {
        cr_assert_eq(lien_pool_alloc_start(pool, MIBS * MIB, keep_buf, &buf, NULL), 0);
        run_ms(w, 1);
    }
    return buf;
}

Test(zero, what_is_handed_out_is_wiped_without_the_lock)
{
    struct world *w = plain();
    for (unsigned way = 0; way < 3; way++) {
        lien_pool *pool = pool_up_to(w, CLIENT, 2 * MIBS * MIB, LIEN_ZERO, LIEN_REUSE_RELEASE, 0);
        const uint8_t *at = watched(w, CLIENT, pool);
        lien_buf *buf = allocated(w, pool, way);
        const void *data;
        cr_assert_eq(lien_buf_data(buf, &data), 0);
        cr_assert_eq(data, at);
        for (unsigned i = 0; i < MIBS; i++) {
            cr_assert_eq(untouched.touched[i], 1, "way %u, MiB %u", way, i);
            cr_assert(!untouched.locked[i], "way %u, MiB %u", way, i);
        }
        cr_assert(all_are(data, MIBS * MIB, 0));
        lien_buf_free(&buf);
        lien_pool_close(&pool);
    }
    world_close(w);
}

// Of a body no more is zeroed at a time than the next READ is to fill.
Test(zero, a_body_is_zeroed_a_piece_at_a_time)
{
    struct world *w = plain();
    lien_pool *pool = pool_up_to(w, SERVER, MIBS * MIB, LIEN_ZERO, LIEN_REUSE_RELEASE, 0);
    const uint8_t *at = watched(w, SERVER, pool);
    const uint64_t before = w->ctx[SERVER]->stats.read_pieces_posted;
    w->conn[SERVER]->opts.pool = pool;
    struct seen s = {0};
    lien_send_opts opts;
    lien_send_opts_init(&opts);
    opts.on_done = saw_done;
    opts.on_released = saw_released;
    opts.arg = &s;
    lien_msg *msg = NULL;
    cr_assert(!got_message(w, SERVER, &msg));
    lien_buf *buf = buf_new(w, CLIENT, MIBS * MIB, 5);
    cr_assert_eq(lien_send(w->conn[CLIENT], NULL, 0, &buf, 1, &opts), 0);
    cr_assert(run_until(w, &s.released, 60000));
    cr_assert_eq(s.status, 0, "%s", lien_errname(s.status));
    cr_assert(got_message(w, SERVER, &msg));
    const void *data;
    cr_assert_eq(lien_buf_data(lien_msg_body(msg), &data), 0);
    cr_assert_eq(data, at);
    cr_assert(buf_is(lien_msg_body(msg), 5));
    for (unsigned i = 0; i < MIBS; i++) {
        cr_assert_eq(untouched.touched[i], 1);
        cr_assert_geq(untouched.posted[i], before + i, "MiB %u", i);
    }
    lien_msg_free(&msg);
    lien_buf_free(&buf);
    w->conn[SERVER]->opts.pool = NULL;
    lien_pool_close(&pool);
    world_close(w);
}

static size_t pages_present(void *at, size_t len)
{
    static unsigned char present[128 * MIB / 4096];
    size_t n = 0;
    cr_assert(len <= 128 * MIB);
    cr_assert_eq(mincore(at, len, present), 0);
    for (size_t i = 0; i < len / 4096; i++)
        n += present[i] & 1;
    return n;
}

// What nobody had is as the system gave it: blank, and no page of it is touched.
Test(zero, fresh_memory_is_not_touched)
{
    struct world *w = plain();
    lien_pool *pool = pool_up_to(w, CLIENT, 256 * MIB, LIEN_ZERO, LIEN_REUSE_RELEASE, 0);
    uint8_t *first, *data;
    lien_buf *small = from(pool, SMALL, &first), *buf = from(pool, MIB, &data);
    cr_assert_eq(data, first + SMALL); // of the same chunk
    cr_assert_eq(pages_present(lieni_buf_addr(small), SMALL), 0);
    cr_assert_eq(pages_present(lieni_buf_addr(buf), MIB), 0);
    memset(first, 0xaa, SMALL);
    memset(data, 0xaa, MIB);
    lien_buf_free(&buf);
    buf = from(pool, 100 * MIB, &data);
    cr_assert_eq(pages_present(lieni_buf_addr(buf), 100 * MIB), 0);
    data[99 * MIB] = 0xaa;
    lien_buf_free(&buf);
    buf = from(pool, 100 * MIB, &data); // wherever it is
    cr_assert_eq(data[99 * MIB], 0);
    lien_buf_free(&buf);
    // Used memory and fresh memory in one buffer.
    lien_buf_free(&small);
    buf = from(pool, 2 * MIB, &data);
    cr_assert_eq(data, first);
    cr_assert(all_are(data, 2 * MIB, 0));
    lien_buf_free(&buf);
    lien_pool_close(&pool);
    world_close(w);
}

// -- Reuse --

static uint64_t exposed(struct world *w, unsigned node)
{
    lien_ctx_stats stats = {.size = sizeof(stats)};
    cr_assert_eq(lien_ctx_stats_get(w->ctx[node], &stats), 0);
    return stats.exposed_bytes;
}

// Grants a buffer of `pool`, has it read and released, and frees it. Returns where it was.
static const uint8_t *granted_once(struct world *w, lien_pool *pool, lien_token *token)
{
    uint8_t *data;
    lien_grant *grant;
    lien_buf *buf = from(pool, SMALL, &data);
    for (size_t i = 0; i < SMALL; i++)
        data[i] = pattern(1, i);
    for (unsigned again = 0; again < 3; again++) { // it is one buffer, however often
        int rc = lien_grant_open(w->conn[SERVER], &buf, 1, NULL, token, &grant);
        cr_assert_eq(rc, 0, "%s", lien_errname(rc));
        lien_buf *read = read_all(w, token, SMALL, 0);
        cr_assert(buf_is(read, 1));
        lien_buf_free(&read);
        end_grant(w, &grant, token);
    }
    void *mut;
    cr_assert_eq(lien_buf_mut(buf, &mut), 0); // its holder's again
    lien_buf_free(&buf);
    return data;
}

Test(reuse, proven_memory_goes_home_with_the_last_endpoint)
{
    struct world *w = plain();
    for (unsigned proven = 0; proven < 2; proven++) {
        lien_pool *pool = pool_of(w, SERVER, 0, proven ? LIEN_REUSE_PROVEN : LIEN_REUSE_RELEASE, 0);
        lien_token token;
        const uint8_t *first = granted_once(w, pool, &token);
        uint8_t *data;
        cr_assert_eq(exposed(w, SERVER), proven ? SMALL : 0);
        lien_buf *next = from(pool, SMALL, &data);
        cr_assert_eq(data == first, !proven, "policy %u", proven);
        lien_buf_free(&next);
        if (!proven) {
            lien_pool_close(&pool);
            continue;
        }
        run_ms(w, 20000); // no time does it
        cr_assert_eq(exposed(w, SERVER), SMALL);
        lien_conn_close(&w->conn[CLIENT]);
        run_ms(w, 3000);
        cr_assert_eq(exposed(w, SERVER), 0); // its endpoint ended, which proves on tcp
        next = from(pool, SMALL, &data);
        cr_assert_eq(data, first);
        lien_buf_free(&next);
        lien_pool_close(&pool);
    }
    world_close(w);
}

Test(reuse, what_waits_is_bounded)
{
    struct world *w = plain();
    lien_pool *pool = pool_of(w, SERVER, 0, LIEN_REUSE_PROVEN, 3 * SMALL);
    lien_token token;
    for (unsigned i = 0; i < 3; i++)
        granted_once(w, pool, &token);
    cr_assert_eq(exposed(w, SERVER), 3 * SMALL);
    uint8_t *data;
    lien_grant *grant;
    lien_buf *buf = from(pool, SMALL, &data);
    cr_assert_eq(lien_grant_open(w->conn[SERVER], &buf, 1, NULL, &token, &grant), LIEN_ELIMIT);
    cr_assert_eq(exposed(w, SERVER), 3 * SMALL);
    // It is not the application's other memory that is refused.
    lien_buf *other = buf_new(w, SERVER, SMALL, 1);
    cr_assert_eq(lien_grant_open(w->conn[SERVER], &other, 1, NULL, &token, &grant), 0);
    end_grant(w, &grant, &token);
    lien_buf_free(&other);
    lien_buf_free(&buf);
    // Nor can the pool be emptied by it: the rest of its limit is there.
    cr_assert_eq(lien_pool_alloc(pool, MIB - 3 * SMALL, &buf), 0);
    lien_buf_free(&buf);
    cr_assert_eq(lien_pool_alloc(pool, MIB - 2 * SMALL, &buf), LIEN_ELIMIT);
    lien_pool_close(&pool);
    world_close(w);
}

// Where an endpoint's end is no proof, the domain's end is; where neither is, it never goes home.
static void unproven(enum lieni_sim_class kind, uint64_t stays)
{
    struct lieni_sim_config config;
    lieni_sim_config_init(&config, kind);
    memset(&desk, 0, sizeof(desk));
    struct world *w = world_open(3, &config, NULL, &service, &service);
    lien_pool *pool = pool_of(w, SERVER, 0, LIEN_REUSE_PROVEN, 0);
    lien_token token;
    granted_once(w, pool, &token);
    lien_conn_close(&w->conn[CLIENT]);
    lien_conn_close(&w->conn[SERVER]);
    run_ms(w, 3000);
    lieni_ctx_lock(w->ctx[SERVER]);
    cr_assert_eq(lieni_mem_bytes_exposed(w->ctx[SERVER]->mem), stays);
    cr_assert_eq(lieni_mem_bytes_lost(w->ctx[SERVER]->mem), stays);
    lieni_ctx_unlock(w->ctx[SERVER]);
    lien_pool_close(&pool);
    world_close(w);
}

Test(reuse, without_proof_it_waits_for_the_domain)
{
    unproven(LIENI_SIM_SOCKETS, 0); // whose end is proof, and which is the connection's own
    unproven(LIENI_SIM_OWN_ONLY, SMALL);
}

static lien_conn *connect_more(struct world *w, unsigned node)
{
    char bound[96], address[96];
    lien_conn *conn;
    lien_conn_opts co;
    lien_conn_opts_init(&co);
    co.arg = w;
    co.on_open = opened;
    w->open = false;
    cr_assert_eq(lien_listener_address(w->listener, bound, sizeof(bound)), 0);
    snprintf(address, sizeof(address), "%s%s", lieni_sim_node_host(w->sim, SERVER),
             strrchr(bound, ':'));
    cr_assert_eq(lien_conn_open(w->ctx[node], address, &co, &conn), 0);
    cr_assert(run_until(w, &w->open, 1000));
    run_ms(w, 10);
    return conn;
}

Test(reuse, a_pool_of_one_peer)
{
    struct world *w = plain();
    lien_pool *pool = pool_of(w, SERVER, 0, LIEN_REUSE_PEER, 0);
    lien_token token;
    const uint8_t *first = granted_once(w, pool, &token);
    uint8_t *data;
    lien_buf *buf = from(pool, SMALL, &data);
    cr_assert_eq(data, first); // for the same peer at once
    lien_buf_free(&buf);
    // Another connection of the same two: nothing of this pool for it.
    lien_conn *mine = w->conn[SERVER], *theirs = w->conn[CLIENT];
    w->conn[CLIENT] = connect_more(w, CLIENT);
    cr_assert_neq(w->conn[SERVER], mine);
    lien_grant *grant;
    buf = from(pool, SMALL, &data);
    cr_assert_eq(lien_grant_open(w->conn[SERVER], &buf, 1, NULL, &token, &grant), LIEN_ESTATE);
    cr_assert_eq(lien_grant_open(mine, &buf, 1, NULL, &token, &grant), 0);
    lien_grant_close(&grant);
    lien_buf_free(&buf);
    lien_conn_close(&mine);
    lien_conn_close(&theirs);
    run_ms(w, 3000);
    lien_pool_close(&pool);
    world_close(w);
}

// The server of a connection chooses its id, so two connections may have one: here the two ends of one.
Test(reuse, connections_of_one_id_are_two)
{
    struct world *w = plain();
    lien_conn *first = w->conn[SERVER];
    lien_conn *out = connect_more(w, SERVER), *in = w->conn[SERVER];
    cr_assert_neq(in, first);
    cr_assert_eq(out->id, in->id);
    lien_pool *own = pool_of(w, SERVER, 0, LIEN_REUSE_PEER, 0);
    lien_pool *proven = pool_of(w, SERVER, 0, LIEN_REUSE_PROVEN, 0);
    lien_token token;
    lien_grant *grant[3];
    uint8_t *data;
    lien_buf *buf = from(own, SMALL, &data);
    cr_assert_eq(lien_grant_open(out, &buf, 1, NULL, &token, &grant[0]), 0);
    cr_assert_eq(lien_grant_open(in, &buf, 1, NULL, &token, &grant[1]), LIEN_ESTATE);
    lien_buf_free(&buf);
    buf = from(proven, SMALL, &data);
    cr_assert_eq(lien_grant_open(out, &buf, 1, NULL, &token, &grant[1]), 0);
    cr_assert_eq(lien_grant_open(in, &buf, 1, NULL, &token, &grant[2]), 0);
    lien_buf_free(&buf);
    cr_assert(!lieni_list_empty(&out->exposures));
    cr_assert(!lieni_list_empty(&in->exposures)); // each keeps the memory by itself
    cr_assert_eq(exposed(w, SERVER), SMALL);
    for (unsigned i = 0; i < 3; i++)
        lien_grant_close(&grant[i]);
    lien_conn_close(&out);
    lien_conn_close(&in);
    w->conn[SERVER] = first;
    run_ms(w, 3000);
    cr_assert_eq(exposed(w, SERVER), 0);
    lien_pool_close(&own);
    lien_pool_close(&proven);
    world_close(w);
}

static lien_grant *grant_one(struct world *w, lien_buf *buf, int expected)
{
    lien_token token;
    lien_grant *grant = NULL;
    int rc = lien_grant_open(w->conn[SERVER], &buf, 1, NULL, &token, &grant);
    cr_assert_eq(rc, expected, "%s", lien_errname(rc));
    return grant;
}

// What was refused, or taken back before it left, bound no pool and counts for nothing; what left before stays.
Test(reuse, a_refused_grant_shows_nothing)
{
    struct world *w = plain();
    lien_pool *own = pool_of(w, SERVER, 0, LIEN_REUSE_PEER, 0);
    lien_pool *proven = pool_of(w, SERVER, 0, LIEN_REUSE_PROVEN, SMALL);
    struct lieni_grant_table *names = &w->conn[SERVER]->grants;
    const uint32_t max = names->max;
    uint8_t *data;
    lien_buf *one = from(own, SMALL, &data), *buf = from(proven, SMALL, &data);
    for (unsigned untold = 0; untold < 2; untold++) {
        names->max = untold ? max : 0; // no name is left, as with option grants_conn
        for (unsigned i = 0; i < 2; i++) {
            lien_buf *both[] = {one, buf, buf, one};
            struct lieni_key keys[LIEN_BUFS_MAX];
            uint32_t n_keys;
            struct lien_grant *grant;
            lieni_ctx_lock(w->ctx[SERVER]);
            int rc = lieni_grant_open(w->conn[SERVER], both, 4, 0, NULL, NULL, keys, &n_keys,
                                      &grant);
            cr_assert_eq(rc, untold ? 0 : LIEN_ELIMIT, "%s", lien_errname(rc));
            if (untold)
                lieni_grant_untold(grant);
            lieni_ctx_unlock(w->ctx[SERVER]);
            cr_assert_eq(exposed(w, SERVER), 0);
        }
    }
    // So another may have the pool, and the limit is not used up: one buffer twice is one.
    lien_conn *first = w->conn[SERVER], *theirs = w->conn[CLIENT];
    w->conn[CLIENT] = connect_more(w, CLIENT);
    lien_grant *live[3];
    live[0] = grant_one(w, one, 0);
    live[1] = grant_one(w, buf, 0);
    cr_assert_eq(exposed(w, SERVER), SMALL);
    // Taken back: what the grants before it showed is known all the same.
    for (unsigned i = 0; i < 2; i++) {
        lien_buf *both[] = {one, buf};
        struct lieni_key keys[LIEN_BUFS_MAX];
        uint32_t n_keys;
        lieni_ctx_lock(w->ctx[SERVER]);
        cr_assert_eq(
            lieni_grant_open(w->conn[SERVER], both, 2, 0, NULL, NULL, keys, &n_keys, &live[2]), 0);
        lieni_grant_untold(live[2]);
        lieni_ctx_unlock(w->ctx[SERVER]);
    }
    lien_conn *second = w->conn[SERVER];
    w->conn[SERVER] = first;
    grant_one(w, one, LIEN_ESTATE);
    lien_buf_free(&buf);
    buf = from(proven, SMALL, &data);
    grant_one(w, buf, LIEN_ELIMIT);
    cr_assert_eq(exposed(w, SERVER), SMALL);
    lien_buf_free(&buf);
    lien_buf_free(&one);
    lien_grant_close(&live[0]);
    lien_grant_close(&live[1]);
    lien_conn_close(&second);
    lien_conn_close(&theirs);
    run_ms(w, 3000);
    cr_assert_eq(exposed(w, SERVER), 0);
    lien_pool_close(&own);
    lien_pool_close(&proven);
    world_close(w);
}

// A reader makes its token longer: a region of the grant's own ends where the buffer does, within its last page. A shared one does not, and there the old bytes are read.
static void lengthened(lien_reuse reuse, unsigned flags, bool reads)
{
    enum {
        GRANTED = 100
    };
    struct world *w = plain();
    lien_pool *pool = pool_of(w, SERVER, 0, reuse, 0), *into = pool_of(w, CLIENT, 0, 0, 0);
    uint8_t *data, *got;
    lien_buf *buf = from(pool, SMALL, &data);
    memset(data, 0xaa, SMALL);
    lien_buf_free(&buf);
    buf = from(pool, GRANTED, &data);
    cr_assert_eq(data[GRANTED], 0xaa);
    memset(data, 1, GRANTED);
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.flags = flags;
    lien_token token;
    lien_grant *grant;
    cr_assert_eq(lien_grant_open(w->conn[SERVER], &buf, 1, &opts, &token, &grant), 0);
    struct lieni_token_data parts;
    const char *why;
    cr_assert_eq(lieni_token_decode(token.bytes, token.len, &parts, &why), 0, "%s", why);
    parts.keys[0].len = parts.total = SMALL;
    lieni_token_encode(&parts, &token);
    struct transfer t = {0};
    lien_buf *dest = from(into, SMALL, &got);
    memset(got, 0, SMALL);
    cr_assert_eq(start(w, &token, dest, NULL, 0, &t), 0);
    cr_assert(run_until(w, &t.s.released, 5000));
    cr_assert_eq(t.s.status == 0, reads, "%s", lien_errname(t.s.status));
    cr_assert_eq(got[GRANTED], reads ? 0xaa : 0);
    lien_space_free(&t.space);
    lien_grant_close(&grant);
    lien_buf_free(&buf);
    for (unsigned i = 0; i < 2; i++)
        lien_conn_close(&w->conn[i]);
    run_ms(w, 3000);
    lien_pool_close(&pool);
    lien_pool_close(&into);
    world_close(w);
}

Test(reuse, a_lengthened_token_reaches_no_other_memory)
{
    lengthened(LIEN_REUSE_PROVEN, 0, false);
    lengthened(LIEN_REUSE_RELEASE, LIEN_REVOCABLE, false);
    lengthened(LIEN_REUSE_RELEASE, 0, true);
}

// However small, it is enough for a buffer: both are counted in whole pages.
Test(reuse, the_bound_is_whole_pages)
{
    static const struct {
        size_t limit, expose_max, pages;
    } cases[] = {{1, 0, 1},         {SMALL, 0, 1},
                 {SMALL + 1, 0, 1}, {3 * SMALL, 0, 2},
                 {3 * SMALL, 1, 1}, {3 * SMALL, SMALL + 1, 2},
                 {1, 1, 1},         {3 * SMALL, 3 * SMALL, 3}};
    struct world *w = plain();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        lien_pool *pool;
        lien_pool_opts opts;
        lien_pool_opts_init(&opts);
        opts.limit = cases[i].limit;
        opts.reserve = 0;
        opts.reuse = LIEN_REUSE_PROVEN;
        opts.expose_max = cases[i].expose_max;
        cr_assert_eq(lien_pool_open(w->ctx[SERVER], &opts, &pool), 0);
        lien_grant *grant[4];
        lien_buf *buf;
        size_t n = 0;
        for (int rc = 0; rc == 0;) {
            rc = lien_pool_alloc(pool, 1, &buf);
            if (rc != 0)
                break; // the limit itself
            lien_token token;
            rc = lien_grant_open(w->conn[SERVER], &buf, 1, NULL, &token, &grant[n]);
            cr_assert(rc == 0 || rc == LIEN_ELIMIT, "%s", lien_errname(rc));
            n += rc == 0;
            lien_buf_free(&buf);
        }
        cr_assert_eq(n, cases[i].pages, "case %zu: %zu", i, n);
        while (n > 0)
            lien_grant_close(&grant[--n]);
        lien_pool_close(&pool);
    }
    world_close(w);
}

Test(reuse, options_are_checked)
{
    struct world *w = plain();
    lien_pool *pool;
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.reuse = (lien_reuse)3;
    cr_assert_eq(lien_pool_open(w->ctx[0], &opts, &pool), LIEN_EINVAL);
    lien_pool_opts_init(&opts);
    opts.expose_max = opts.limit + 1;
    cr_assert_eq(lien_pool_open(w->ctx[0], &opts, &pool), LIEN_EINVAL);
    world_close(w);
}
