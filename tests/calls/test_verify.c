// SPDX-License-Identifier: Apache-2.0
//
// Bytes that a handler uses before anybody vouched for them (R13, R14, R15). The first part plays one handler in each mode of validation, and ends the call and writes over its source at every step
// of the schedule: whatever was accepted, written, answered or carried on is made of the bytes that the caller had lent, or there is an error. The second part: each way out, each verdict.

#include "tests/calls/world.h"

#define PARTS 4u
#define PART  10000u
#define LEN   (PARTS * PART)
#define STALE 0xee

enum mode {
    PLAIN,      // one read after the other, each done with its verdict
    BATCHED,    // reads that share a probe
    OVERLAPPED, // works on each part while the next is read and the probes are under way; the verdict before the write
    DEFERRED,   // LIEN_PURE: write and reply are the check
    CARRIED // LIEN_PURE: what leaves by other ways is refused before the verdict, and good afterwards
};

enum end {
    CANCEL,
    TIMEOUT,
    UNHEARD // cancelled, and the CANCEL cannot leave for want of credit: answers alone can tell
};

// What the handler at hand did.
static struct play {
    struct world *w;
    enum mode mode;
    lien_request *request;
    lien_conn *conn;
    lien_buf *buf[PARTS];
    lien_space *space[PARTS];
    unsigned n_read, refused;
    bool over;     // it ended
    bool accepted; // it used the bytes as good ones
    bool carried;  // the client's handler got them
} play;

static uint8_t turned(uint64_t at)
{
    return pattern(1, at) ^ 0x5a;
}

static void drop_all(void)
{
    for (unsigned i = 0; i < PARTS; i++) {
        lien_space_free(&play.space[i]);
        lien_buf_free(&play.buf[i]);
    }
    lien_request_drop(&play.request);
    play.over = true;
}

static void written(void *arg, int status)
{
    (void)arg;
    if (status != 0) {
        drop_all();
        return;
    }
    cr_assert_eq(lien_request_reply(&play.request, 0, "turned", 6), 0);
    drop_all();
}

// All parts are here. `good`: the caller vouched for them; then they are the bytes it had lent.
static void accept(bool good)
{
    for (unsigned i = 0; i < PARTS; i++) {
        cr_assert_eq(lien_space_take(play.space[i], &play.buf[i], 1), 0);
        if (!good)
            continue;
        const void *data;
        cr_assert_not(lien_buf_unverified(play.buf[i]));
        cr_assert_eq(lien_buf_data(play.buf[i], &data), 0);
        for (unsigned j = 0; j < PART; j++)
            cr_assert_eq(((const uint8_t *)data)[j], turned(i * PART + j), "stale bytes accepted");
    }
    play.accepted = good;
    lien_transfer_opts to;
    lien_transfer_opts_init(&to);
    to.on_done = written;
    if (lien_request_write(play.request, play.buf, PARTS, &to) != 0)
        drop_all();
}

// In place, on bytes that may be anything.
static void turn(unsigned i)
{
    lien_buf *buf;
    void *data;
    cr_assert_eq(lien_space_buf(play.space[i], 0, &buf), 0);
    cr_assert_eq(lien_buf_mut(buf, &data), 0);
    for (unsigned j = 0; j < PART; j++)
        ((uint8_t *)data)[j] ^= 0x5a;
}

static void verdict(void *arg, int status)
{
    (void)arg;
    if (status == 0)
        accept(true);
    else
        drop_all();
}

static void first_verdict(void *arg, int status)
{
    (void)arg;
    if (status == 0 && !play.over) // of the first part, whatever comes later
        cr_assert_not(lien_buf_unverified(space_first(play.space[0])));
}

static void carried_over(void *arg, int status, lien_msg *reply)
{
    (void)arg;
    (void)status;
    lien_msg_free(&reply);
    drop_all();
}

static void carry(void *arg, int status)
{
    (void)arg;
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.read = play.buf;
    opts.n_read = PARTS;
    opts.on_done = carried_over;
    if (status != 0 || lien_call_start(play.conn, "client/take", NULL, 0, &opts, NULL) != 0)
        drop_all();
}

// No way out before the verdict.
static void try_to_leave(void)
{
    lien_call_opts opts;
    lien_grant *grant;
    lien_token token;
    for (unsigned i = 0; i < PARTS; i++)
        cr_assert_eq(lien_space_take(play.space[i], &play.buf[i], 1), 0);
    lien_call_opts_init(&opts);
    opts.read = play.buf;
    opts.n_read = PARTS;
    int rc[3] = {lien_call_start(play.conn, "client/take", NULL, 0, &opts, NULL),
                 lien_send(play.conn, NULL, 0, play.buf, PARTS, NULL),
                 lien_grant_open(play.conn, play.buf, PARTS, NULL, &token, &grant)};
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(rc[i], LIEN_EUNVERIFIED, "%u: %s", i, lien_errname(rc[i]));
    play.refused++;
    if (lien_request_verify(play.request, carry, NULL) != 0)
        drop_all();
}

static void read_part(unsigned i, unsigned flags);

static void part_read(void *arg, int status)
{
    (void)arg;
    if (play.over)
        return;
    if (status != 0) {
        drop_all();
        return;
    }
    play.n_read++;
    bool all = play.n_read == PARTS;
    switch (play.mode) {
    case PLAIN:
    case BATCHED:
        for (unsigned i = 0; all && i < PARTS; i++)
            turn(i);
        if (all)
            accept(true);
        else if (play.mode == PLAIN)
            read_part(play.n_read, 0);
        break;
    case OVERLAPPED:
        turn(play.n_read - 1);
        if (play.n_read == 1)
            (void)lien_request_verify(play.request, first_verdict, NULL);
        if (all && lien_request_verify(play.request, verdict, NULL) != 0)
            drop_all();
        else if (!all)
            read_part(play.n_read, LIEN_UNVERIFIED);
        break;
    case DEFERRED:
        turn(play.n_read - 1);
        if (all)
            accept(false);
        else
            read_part(play.n_read, 0);
        break;
    case CARRIED:
        if (all)
            try_to_leave();
        else
            read_part(play.n_read, 0);
        break;
    }
}

static void read_part(unsigned i, unsigned flags)
{
    const lien_op op = {.src = i * PART, .len = PART};
    lien_transfer_opts to;
    lien_transfer_opts_init(&to);
    to.ops = &op;
    to.n_ops = 1;
    to.flags = flags;
    to.on_done = part_read;
    int rc = lien_request_read(play.request, play.space[i], &to);
    if (rc != 0)
        part_read(NULL, rc);
}

static void handle(lien_request *request, lien_conn *conn, void *arg)
{
    (void)arg;
    play.request = request;
    play.conn = conn;
    for (unsigned i = 0; i < PARTS; i++)
        play.space[i] = space_of(play.w, SERVER, buf_new(play.w, SERVER, PART, 77));
    unsigned at_once = play.mode == BATCHED ? PARTS : 1;
    for (unsigned i = 0; i < at_once && !play.over; i++)
        read_part(i, play.mode == OVERLAPPED ? LIEN_UNVERIFIED : 0);
}

// The client's: what the handler carried on. By then it was vouched for.
static lien_request *taking;
static lien_space *taken;

static void took(void *arg, int status)
{
    (void)arg;
    if (status == 0) {
        const void *data;
        cr_assert_eq(lien_buf_data(space_first(taken), &data), 0);
        for (unsigned j = 0; j < LEN; j++)
            cr_assert_eq(((const uint8_t *)data)[j], pattern(1, j), "stale bytes carried on");
        play.carried = true;
    }
    lien_space_free(&taken);
    cr_assert_eq(lien_request_reply(&taking, status, NULL, 0), 0);
}

static void take(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    taking = request;
    taken = space_of(play.w, CLIENT, buf_new(play.w, CLIENT, LEN, 78));
    lien_transfer_opts to;
    lien_transfer_opts_init(&to);
    to.on_done = took;
    if (lien_request_read(request, taken, &to) != 0)
        took(NULL, LIEN_EIO);
}

static const lien_method methods[] = {
    {.name = "test/play", .handle = handle},
    {.name = "test/pure", .handle = handle, .flags = LIEN_PURE},
};
static const lien_service service = {.methods = methods, .n_methods = 2};
static const lien_method client_methods[] = {{.name = "client/take", .handle = take}};
static const lien_service client_service = {.methods = client_methods, .n_methods = 1};

// One event of the world, or one timer.
static void step(struct world *w)
{
    uint64_t at = lieni_sim_next_time(w->sim);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t t = lieni_timers_next(&w->ctx[i]->timers);
        at = t < at ? t : at;
    }
    if (!lieni_sim_step(w->sim, at))
        lieni_sim_advance(w->sim, at);
    progress(w);
    cr_assert_eq(lieni_sim_violations(w->sim), 0, "%s", lieni_sim_violation(w->sim, 0));
}

static void end_call(struct world *w, enum end how, lien_call *call)
{
    lien_ctx *ctx = w->ctx[CLIENT];
    if (how == TIMEOUT) {
        lieni_ctx_lock(ctx);
        if (call->state == LIENI_CALL_RUNNING)
            lieni_timer_set(&ctx->timers, &call->timer, lieni_sim_now(w->sim));
        lieni_ctx_unlock(ctx);
        cr_assert_eq(lien_ctx_progress(ctx), 0);
    } else {
        cr_assert_eq(lien_call_cancel(call), 0);
    }
}

struct tally {
    unsigned runs, succeeded, accepted, carried;
};

// Runs the call for `k` steps, ends it, reuses the source, and judges what came of it. False: it had ended by itself before.
static bool run_one(struct world *w, enum mode mode, enum end how, unsigned k, struct tally *tally)
{
    struct seen s = {0};
    play = (struct play){.w = w, .mode = mode};
    lien_buf *source = buf_new(w, CLIENT, LEN, 1);
    lien_space *target = space_of(w, CLIENT, buf_new(w, CLIENT, LEN, 2));
    lien_call_opts opts = call_to(&s);
    opts.read = &source;
    opts.n_read = 1;
    opts.write = target;
    lien_call *call;
    const char *method = mode == DEFERRED || mode == CARRIED ? "test/pure" : "test/play";
    cr_assert_eq(lien_call_start(w->conn[CLIENT], method, NULL, 0, &opts, &call), 0);
    progress(w);
    for (unsigned i = 0; i < k && !s.released; i++)
        step(w);
    bool finished = s.released;
    struct lieni_link *link = &w->conn[CLIENT]->link;
    uint32_t kept = how == UNHEARD ? link->control_left - 1 : 0;
    link->control_left -= kept;
    end_call(w, how, call);
    void *data;
    cr_assert_eq(lien_buf_mut(source, &data), 0);
    memset(data, STALE, LEN);
    if (kept > 0)
        run_ms(w, 20);
    link->control_left += kept;
    lieni_ctx_lock(w->ctx[CLIENT]);
    lieni_link_pump(w->conn[CLIENT]);
    lieni_ctx_unlock(w->ctx[CLIENT]);
    cr_assert(run_until(w, &s.released, 10000));
    for (unsigned i = 0; i < 100 && (!play.over || taking); i++)
        run_ms(w, 10);
    cr_assert(!play.request, "mode %d: the handler hangs, ended at step %u", (int)mode, k);
    const void *got;
    cr_assert_eq(lien_buf_data(space_first(target), &got), 0);
    for (unsigned j = 0; j < LEN; j++) {
        uint8_t byte = ((const uint8_t *)got)[j];
        if (s.status == 0)
            cr_assert_eq(byte, turned(j), "step %u: a call succeeded with stale bytes", k);
        else
            cr_assert(byte == turned(j) || byte == pattern(2, j), "step %u: a dead call took bytes",
                      k);
    }
    tally->runs++;
    tally->succeeded += s.status == 0;
    tally->accepted += play.accepted;
    tally->carried += play.carried;
    lien_space_free(&target);
    lien_buf_free(&source);
    lien_call_close(&call);
    run_ms(w, 20);
    cr_assert_not(w->lost[0] || w->lost[1]);
    return !finished;
}

static void reuse_at_every_step(enum mode mode, enum lieni_sim_class kind, uint64_t seed)
{
    struct lieni_sim_config config;
    lieni_sim_config_init(&config, kind);
    config.chunk = (struct lieni_sim_range){2000, 5000};
    config.chunk_gap = (struct lieni_sim_range){MS / 50, MS / 10};
    config.latency = (struct lieni_sim_range){MS / 100, MS};
    for (enum end how = CANCEL; how <= UNHEARD; how++) {
        struct world *w = world_open(seed, &config, NULL, &service, &client_service);
        struct tally tally = {0};
        unsigned k = 0;
        while (run_one(w, mode, how, k, &tally))
            cr_assert_lt(++k, 2000);
        cr_assert_gt(k, 15);
        // Some ended before anything was accepted, some afterwards.
        unsigned good = mode == CARRIED    ? tally.carried
                        : mode == DEFERRED ? tally.succeeded
                                           : tally.accepted;
        cr_assert_gt(good, 0, "mode %d", (int)mode);
        cr_assert_lt(tally.succeeded, tally.runs);
        cr_assert_lt(good + 5, tally.runs);
        if (getenv("CALLS_LOG"))
            fprintf(stderr, "mode %d end %d class %d: %u runs, %u ok, %u accepted, %u carried\n",
                    (int)mode, (int)how, (int)kind, tally.runs, tally.succeeded, tally.accepted,
                    tally.carried);
        world_close(w);
    }
}

#define EVERY_STEP(name, mode)                                                                     \
    Test(verify, name##_source_reused_at_every_step, .timeout = 500)                               \
    {                                                                                              \
        reuse_at_every_step(mode, LIENI_SIM_TCP, 1);                                               \
        for (uint64_t seed = 1; seed <= 3; seed++)                                                 \
            reuse_at_every_step(mode, LIENI_SIM_VERBS, seed);                                      \
    }

EVERY_STEP(plain, PLAIN)
EVERY_STEP(batched, BATCHED)
EVERY_STEP(overlapped, OVERLAPPED)
EVERY_STEP(deferred, DEFERRED)
EVERY_STEP(carried, CARRIED)

// -- Verdicts and ways out ---------------------------------------------------------------------------------------------------------

static struct desk desk;
static const lien_method desk_methods[] = {
    {.name = "test/desk", .handle = to_desk, .arg = &desk},
    {.name = "test/pure", .handle = to_desk, .arg = &desk, .flags = LIEN_PURE}};
static const lien_service desk_service = {.methods = desk_methods, .n_methods = 2};

static struct world *desk_world(void)
{
    return world_open(7, NULL, NULL, &desk_service, &desk_service);
}

// A call whose read space is `source`, and its request.
struct case_of {
    struct seen seen;
    lien_buf *source;
    lien_space *target;
    lien_call *call;
    lien_request *request;
};

static void begin(struct world *w, struct case_of *c, const char *method, size_t len,
                  uint32_t timeout_ms)
{
    *c = (struct case_of){.source = buf_new(w, CLIENT, len, 1),
                          .target = space_of(w, CLIENT, buf_new(w, CLIENT, len, 2))};
    lien_call_opts opts = call_to(&c->seen);
    opts.read = &c->source;
    opts.n_read = 1;
    opts.write = c->target;
    opts.timeout_ms = timeout_ms;
    opts.reply_max = len;
    unsigned n = desk.n;
    cr_assert_eq(lien_call_start(w->conn[CLIENT], method, NULL, 0, &opts, &c->call), 0);
    for (unsigned i = 0; i < 100 && desk.n == n; i++)
        run_ms(w, 1);
    cr_assert_eq(desk.n, n + 1);
    c->request = desk.request[n % 64];
    desk.request[n % 64] = NULL;
}

static void finish_case(struct world *w, struct case_of *c)
{
    lien_request_drop(&c->request);
    cr_assert(run_until(w, &c->seen.released, 10000));
    lien_call_close(&c->call);
    lien_space_free(&c->target);
    lien_buf_free(&c->source);
    run_ms(w, 50);
}

// `len` bytes of the source's beginning, read without waiting for the verdict into a buffer of `room` bytes.
static lien_buf *read_into(struct world *w, struct case_of *c, lien_buf *buf, size_t len,
                           unsigned flags, int expected)
{
    struct seen r = {0};
    const lien_op op = {.len = len};
    lien_space *space = space_of(w, SERVER, buf);
    lien_transfer_opts to = transfer_to(&r);
    to.ops = &op;
    to.n_ops = 1;
    to.flags = flags;
    int rc = lien_request_read(c->request, space, &to);
    cr_assert_eq(rc, expected, "%s", lien_errname(rc));
    if (rc == 0) {
        cr_assert(run_until(w, &r.released, 1000));
        cr_assert_eq(r.status, 0, "%s", lien_errname(r.status));
    }
    cr_assert_eq(lien_space_take(space, &buf, 1), 0);
    lien_space_free(&space);
    return buf;
}

static lien_buf *read_new(struct world *w, struct case_of *c, size_t len, unsigned flags)
{
    return read_into(w, c, buf_new(w, SERVER, len, 9), len, flags, 0);
}

// Every way out but the request's own write and reply.
static void ways_out(struct world *w, lien_buf *buf, lien_request **other, int expected)
{
    lien_conn *conn = w->conn[SERVER];
    lien_grant *grant = NULL;
    lien_token token;
    lien_call *call[2] = {NULL, NULL};
    lien_call_opts opts;
    struct seen m = {0}, x = {0}, s[2] = {{0}, {0}};
    lien_send_opts send;
    lien_send_opts_init(&send);
    send.on_released = saw_released;
    send.arg = &m;
    for (unsigned i = 0; i < 2; i++) {
        opts = call_to(&s[i]);
        lien_buf *const *bufs = &buf;
        opts.read = i == 0 ? bufs : NULL;
        opts.n_read = i == 0;
        opts.body = i == 1 ? bufs : NULL;
        opts.n_body = i == 1;
        cr_assert_eq(lien_call_start(conn, "test/none", NULL, 0, &opts, &call[i]), expected);
    }
    cr_assert_eq(lien_send(conn, NULL, 0, &buf, 1, &send), expected);
    cr_assert_eq(lien_grant_open(conn, &buf, 1, NULL, &token, &grant), expected);
    lien_transfer_opts to = transfer_to(&x);
    cr_assert_eq(lien_request_write(*other, &buf, 1, &to), expected);
    lien_buf *slot = buf;
    if (expected != 0) {
        void *data;
        cr_assert_eq(lien_request_reply_body(other, 0, NULL, 0, &slot, 1), expected);
        cr_assert(*other && slot == buf);
        cr_assert_eq(lien_buf_mut(buf, &data), 0, "a refused start lent it");
        return;
    }
    cr_assert(run_until(w, &x.released, 1000));
    for (unsigned i = 0; i < 2; i++) {
        cr_assert(run_until(w, &s[i].released, 1000));
        lien_call_close(&call[i]);
    }
    lien_grant_close(&grant);
    lien_msg *msg;
    run_ms(w, 100);
    if (lien_msg_recv_wait(w->conn[CLIENT], 0, &msg) == 0)
        lien_msg_free(&msg);
    cr_assert(run_until(w, &m.released, 1000));
    run_ms(w, 100);
}

Test(verify, no_way_out_before_the_verdict)
{
    struct world *w = desk_world();
    for (unsigned pure = 0; pure < 2; pure++) {
        struct case_of c, other;
        struct seen v = {0}, x = {0};
        begin(w, &c, pure ? "test/pure" : "test/desk", 5000, 0);
        begin(w, &other, "test/desk", 5000, 0);
        lien_buf *buf = read_new(w, &c, 5000, pure ? 0 : LIEN_UNVERIFIED);
        if (pure) {
            cr_assert(lien_buf_unverified(buf));
            ways_out(w, buf, &other.request, LIEN_EUNVERIFIED);
            // Its own call takes them: a dead one would not.
            lien_transfer_opts to = transfer_to(&x);
            cr_assert_eq(lien_request_write(c.request, &buf, 1, &to), 0);
            cr_assert(run_until(w, &x.released, 1000));
            cr_assert_eq(x.status, 0);
            cr_assert(lien_buf_unverified(buf)); // which says nothing to us
        }
        cr_assert_eq(lien_request_verify(c.request, saw_done, &v), 0);
        cr_assert(run_until(w, &v.done, 1000));
        cr_assert_eq(v.status, 0);
        cr_assert_not(lien_buf_unverified(buf));
        cr_assert(buf_is(buf, 1));
        ways_out(w, buf, &other.request, 0);
        lien_buf_free(&buf);
        finish_case(w, &c);
        finish_case(w, &other);
    }
    world_close(w);
}

// A call that may wait is told at once, too.
Test(verify, nor_through_a_channel)
{
    struct world *w = desk_world();
    struct case_of c;
    struct seen v = {0}, s = {0};
    const char *nowhere = "10.0.0.2:1";
    lien_channel *channel;
    begin(w, &c, "test/pure", 5000, 0);
    lien_buf *buf = read_new(w, &c, 5000, 0);
    lien_buf *const *bufs = &buf;
    cr_assert_eq(lien_channel_open(w->ctx[SERVER], &nowhere, 1, NULL, &channel), 0);
    lien_call_opts opts = call_to(&s);
    for (unsigned body = 0; body < 2; body++) {
        opts.read = body ? NULL : bufs;
        opts.n_read = !body;
        opts.body = body ? bufs : NULL;
        opts.n_body = body;
        cr_assert_eq(lien_channel_call_start(channel, "m", NULL, 0, &opts, NULL), LIEN_EUNVERIFIED);
    }
    cr_assert_eq(lien_request_verify(c.request, saw_done, &v), 0);
    cr_assert(run_until(w, &v.done, 1000));
    cr_assert_eq(lien_channel_call_start(channel, "m", NULL, 0, &opts, NULL), 0);
    cr_assert_eq(lien_channel_close(&channel), 0);
    cr_assert(run_until(w, &s.released, 5000));
    lien_buf_free(&buf);
    finish_case(w, &c);
    world_close(w);
}

// An own reply carries them, and the caller has taken good ones.
Test(verify, a_pure_reply_is_the_check)
{
    struct world *w = desk_world();
    struct case_of c;
    begin(w, &c, "test/pure", 5000, 0);
    c.seen.keep = true;
    uint32_t probes = w->conn[SERVER]->calls.next_probe;
    lien_buf *buf = read_new(w, &c, 5000, 0);
    cr_assert_eq(lien_request_reply_body(&c.request, 0, NULL, 0, &buf, 1), 0);
    cr_assert(run_until(w, &c.seen.released, 1000));
    cr_assert_eq(c.seen.status, 0);
    cr_assert(buf_is(lien_msg_body(c.seen.kept), 1));
    lien_msg_free(&c.seen.kept);
    cr_assert_eq(w->conn[SERVER]->calls.next_probe, probes, "a pure method asked");
    finish_case(w, &c);
    world_close(w);
}

// What is left marked at the end of its request stays so, until it is cleared, or replaced as a whole.
Test(verify, marks_outlive_the_request)
{
    struct world *w = desk_world();
    struct case_of a, b, other;
    begin(w, &a, "test/pure", 5000, 0);
    begin(w, &other, "test/desk", 5000, 0);
    lien_buf *buf = read_new(w, &a, 5000, 0), *second = read_new(w, &a, 5000, 0);
    cr_assert_eq(lien_request_reply(&a.request, 0, NULL, 0), 0);
    cr_assert(run_until(w, &a.seen.released, 1000));
    cr_assert(lien_buf_unverified(buf));
    void *data;
    cr_assert_eq(lien_buf_mut(buf, &data), 0);
    memset(data, 0, 5000); // the library does not see this
    ways_out(w, buf, &other.request, LIEN_EUNVERIFIED);
    // Another request's bytes do not make it good, in part: its own write would carry what it does not vouch for.
    begin(w, &b, "test/pure", 5000, 0);
    buf = read_into(w, &b, buf, 4999, 0, LIEN_EUNVERIFIED);
    buf = read_into(w, &b, buf, 4999, LIEN_UNVERIFIED, LIEN_EUNVERIFIED);
    cr_assert_eq(lien_buf_set_len(buf, 4000), 0);
    buf = read_into(w, &b, buf, 4000, 0, LIEN_EUNVERIFIED); // more of it was in doubt
    cr_assert_eq(lien_buf_set_len(buf, 5000), 0);
    lien_buf *own = read_new(w, &b, 100, 0);
    lien_transfer_opts none;
    lien_transfer_opts_init(&none);
    cr_assert_eq(lien_request_write(b.request, &buf, 1, &none), LIEN_EUNVERIFIED);
    buf = read_into(w, &b, buf, 5000, 0, 0); // all of it: b's bytes now
    cr_assert(lien_buf_unverified(buf));
    struct seen x = {0};
    lien_transfer_opts to = transfer_to(&x);
    cr_assert_eq(lien_request_write(b.request, &buf, 1, &to), 0);
    cr_assert(run_until(w, &x.released, 1000));
    lien_buf_free(&own);
    finish_case(w, &b);
    // A read that waits for its verdict replaces the mark by good bytes, if it replaces all of them.
    buf = read_into(w, &other, buf, 4999, 0, 0);
    cr_assert(lien_buf_unverified(buf));
    buf = read_into(w, &other, buf, 5000, 0, 0);
    cr_assert_not(lien_buf_unverified(buf));
    ways_out(w, buf, &other.request, 0);
    // Or zeroes do.
    cr_assert(lien_buf_unverified(second));
    cr_assert_eq(lien_buf_clear(second), 0);
    cr_assert_not(lien_buf_unverified(second));
    const void *bytes;
    cr_assert_eq(lien_buf_data(second, &bytes), 0);
    for (unsigned i = 0; i < 5000; i++)
        cr_assert_eq(((const uint8_t *)bytes)[i], 0);
    ways_out(w, second, &other.request, 0);
    lien_buf_free(&second);
    lien_buf_free(&buf);
    finish_case(w, &a);
    finish_case(w, &other);
    world_close(w);
}

// The caller is gone, and says so; or says nothing for too long; or the request ends, or the connection.
enum fate {
    ANSWER_NO,
    NO_ANSWER,
    DROPPED,
    LOST
};

static void verdict_of(enum fate fate, int expected)
{
    struct world *w = desk_world();
    struct case_of c;
    struct seen v = {0}, again = {0};
    begin(w, &c, "test/pure", 5000, 20000);
    lien_buf *buf = read_new(w, &c, 5000, 0);
    struct lieni_link *link = &w->conn[CLIENT]->link;
    uint32_t kept = fate == ANSWER_NO ? link->control_left - 1 : 0;
    uint64_t began = lieni_sim_now(w->sim);
    link->control_left -= kept;
    if (fate == ANSWER_NO) {
        cr_assert_eq(lien_call_cancel(c.call), 0);
        run_ms(w, 5);
    }
    cr_assert_eq(lien_request_verify(c.request, saw_done, &v), 0);
    w->asleep[CLIENT] = fate == NO_ANSWER;
    cr_assert_not(v.done);
    run_ms(w, fate == ANSWER_NO ? 20 : 0);
    link->control_left += kept;
    lieni_ctx_lock(w->ctx[CLIENT]);
    lieni_link_pump(w->conn[CLIENT]);
    lieni_ctx_unlock(w->ctx[CLIENT]);
    if (fate == DROPPED)
        lien_request_drop(&c.request);
    if (fate == LOST)
        cr_assert(lieni_sim_break_link(w->sim, 0, 1, 0));
    cr_assert(run_until(w, &v.done, 10000));
    cr_assert_eq(v.status, expected, "%s", lien_errname(v.status));
    cr_assert(lien_buf_unverified(buf));
    if (fate == NO_ANSWER) {
        uint64_t took = lieni_sim_now(w->sim) - began;
        cr_assert_leq(took, 5100 * MS);
        cr_assert_geq(took, 4900 * MS);
        cr_assert_eq(lien_request_verify(c.request, saw_done, &again), 0);
        cr_assert(run_until(w, &again.done, 1));
        cr_assert_eq(again.status, LIEN_ESTALE);
        w->asleep[CLIENT] = false;
        run_ms(w, 1000); // a late yes changes nothing
        cr_assert(lien_buf_unverified(buf));
    }
    cr_assert_eq(v.n_done, 1);
    lien_buf_free(&buf);
    finish_case(w, &c);
    world_close(w);
}

Test(verify, the_caller_says_no)
{
    verdict_of(ANSWER_NO, LIEN_ESTALE);
}

Test(verify, no_answer_is_no)
{
    verdict_of(NO_ANSWER, LIEN_ESTALE);
}

Test(verify, the_request_ends_before_its_verdict)
{
    verdict_of(DROPPED, LIEN_ECANCELED);
}

Test(verify, the_connection_ends_before_the_verdict)
{
    verdict_of(LOST, LIEN_ECANCELED);
}

// Without such reads there is nothing to ask; one ask serves all that were there; what comes later gets one of its own.
Test(verify, as_few_probes_as_will_do)
{
    struct world *w = desk_world();
    struct case_of c;
    struct seen v[3] = {{0}};
    lien_buf *buf[11];
    begin(w, &c, "test/pure", 5000, 0);
    uint32_t probes = w->conn[SERVER]->calls.next_probe;
    cr_assert_eq(lien_request_verify(c.request, saw_done, &v[0]), 0);
    run_ms(w, 5);
    cr_assert(v[0].done && v[0].status == 0);
    for (unsigned i = 0; i < 10; i++)
        buf[i] = read_new(w, &c, 100, 0);
    cr_assert_eq(w->conn[SERVER]->calls.next_probe, probes);
    cr_assert_eq(lien_request_verify(c.request, NULL, NULL), 0);
    cr_assert_eq(lien_request_verify(c.request, saw_done, &v[1]), 0);
    w->asleep[CLIENT] = true;
    progress(w); // it left
    cr_assert_eq(w->conn[SERVER]->calls.next_probe - probes, 1);
    w->asleep[CLIENT] = false;
    cr_assert(run_until(w, &v[1].done, 100));
    cr_assert_eq(v[1].status, 0);
    for (unsigned i = 0; i < 10; i++)
        cr_assert_not(lien_buf_unverified(buf[i]));
    buf[10] = read_new(w, &c, 100, 0);
    cr_assert(lien_buf_unverified(buf[10]));
    cr_assert_eq(lien_request_verify(c.request, saw_done, &v[2]), 0);
    cr_assert(run_until(w, &v[2].done, 100));
    cr_assert_eq(w->conn[SERVER]->calls.next_probe - probes, 2);
    cr_assert_not(lien_buf_unverified(buf[10]));
    for (unsigned i = 0; i < 11; i++)
        lien_buf_free(&buf[i]);
    finish_case(w, &c);
    world_close(w);
}
