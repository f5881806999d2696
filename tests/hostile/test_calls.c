// SPDX-License-Identifier: Apache-2.0
//
// The same of calls: each frame of docs/wire.md, "Calls", cut at each byte and each field wrong, in the state in which the right one would be taken; frames in the wrong state; what is answered
// rather than refused; spaces that lie. After each the others go on, and what the attack had of the victim's is the victim's again.

#include "tests/hostile/hostile.h"

#include <pthread.h>

#include "provider/tcp/tcp.h"

// Behind the frame header; docs/wire.md.
enum {
    AT_ID = 16,
    CALL_MS = 24,
    CALL_METHOD = 28,
    CALL_BUFS = 29,
    CALL_READ_BUFS = 30,
    CALL_ZERO = 31,
    CALL_BODY = 48,
    CALL_READ = 64,
    CALL_KEYS = 80,
    REPLY_STATUS = 24,
    REPLY_BUFS = 28,
    REPLY_UNBEGUN = 29,
    REPLY_ZERO = 30,
    REPLY_BODY = 32,
    REPLY_KEYS = 48,
    WRITE_ID = 24,
    WRITE_FLAGS = 28,
    WRITE_BUFS = 29,
    WRITE_OPS = 30,
    WRITE_BODY = 32,
    WRITE_KEYS = 48,
    WRITTEN_STATUS = 28
};
#define LEN 100u // of spaces and bodies

static uint8_t shared[2 * 4096]; // the raw peer's, readable by the victim
static struct lieni_mr *shared_mr;
static struct lieni_key shared_key; // of LEN bytes of it

// -- The victim as a server --

static pthread_mutex_t desk_lock = PTHREAD_MUTEX_INITIALIZER;
static lien_request *desk[64];
static unsigned n_desk;

static void to_desk(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    pthread_mutex_lock(&desk_lock);
    CHECK(n_desk < 64);
    desk[n_desk++] = request;
    pthread_mutex_unlock(&desk_lock);
}

static const lien_method methods[] = {{.name = "h/desk", .handle = to_desk}};
static const lien_service service = {.methods = methods, .n_methods = 1};

static unsigned requests_now(void)
{
    pthread_mutex_lock(&desk_lock);
    unsigned n = n_desk;
    pthread_mutex_unlock(&desk_lock);
    return n;
}

static void wait_requests(unsigned n)
{
    for (int i = 0; i < 20000 && requests_now() < n; i++)
        rawpeer_pump(&world, 1);
    CHECK(requests_now() == n);
}

static void drop_requests(void)
{
    while (n_desk > 0)
        lien_request_drop(&desk[--n_desk]);
}

// -- What the victim sees of its own operations --

struct seen {
    _Atomic int done, released;
    _Atomic int status, released_status;
};

static void saw_done(void *arg, int status)
{
    struct seen *s = arg;
    s->status = status;
    CHECK(s->done++ == 0 && s->released == 0);
}

static void saw_reply(void *arg, int status, lien_msg *reply)
{
    if (reply)
        lien_msg_free(&reply);
    saw_done(arg, status);
}

static void saw_released(void *arg, int status)
{
    struct seen *s = arg;
    s->released_status = status;
    CHECK(s->released++ == 0 && s->done == 1);
}

// The memory of an operation whose connection has ended is the victim's again.
static void wait_released(struct seen *s)
{
    for (int i = 0; i < 20000 && !s->released; i++)
        rawpeer_pump(&world, 1);
    CHECK(s->done == 1 && s->released == 1 && s->released_status == 0);
}

static void wait_done(struct seen *s)
{
    for (int i = 0; i < 20000 && !s->done; i++)
        rawpeer_pump(&world, 1);
    CHECK(s->done == 1);
}

static lien_buf *buf_of(size_t len)
{
    lien_buf *buf;
    CHECK(lien_pool_alloc(pool, len, &buf) == 0);
    return buf;
}

static lien_space *space_of(size_t len)
{
    lien_buf *buf = buf_of(len);
    lien_space *space;
    CHECK(lien_space_open(victim, &buf, 1, &space) == 0);
    return space;
}

// The next frame of this kind; others are skipped.
static const uint8_t *expect(struct rawpeer *peer, enum lieni_frame_kind kind)
{
    const uint8_t *bytes;
    size_t len;
    do
        CHECK(rawpeer_next(peer, 20000, &bytes, &len));
    while (bytes[0] != kind);
    return bytes;
}

// -- Stages --

static struct seen call_seen, transfer_seen;
static lien_buf *source;
static lien_space *target, *space;

// The victim calls the raw peer, with both spaces: id (1, 0) of side 1, read space grant 0 in generation 1.
static void call_out(lien_conn *conn, bool spaces)
{
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    call_seen = (struct seen){0};
    opts.on_done = saw_reply;
    opts.on_released = saw_released;
    opts.arg = &call_seen;
    opts.reply_max = LEN / 2;
    if (spaces) {
        source = buf_of(LEN);
        target = space_of(LEN);
        opts.read = &source;
        opts.n_read = 1;
        opts.write = target;
    }
    CHECK(lien_call_start(conn, "raw/any", "x", 1, &opts, NULL) == 0);
}

static void called(struct rawpeer *peer, lien_conn *conn)
{
    call_out(conn, true);
    const uint8_t *call = expect(peer, LIENI_FRAME_CALL);
    CHECK(lieni_get64(call + AT_ID) == lieni_call_id(1, 0, 1));
    CHECK(lieni_get32(call + CALL_READ) == 0 && lieni_get32(call + CALL_READ + 4) == 1);
}

static void clear_call(void)
{
    lien_buf *got;
    void *p;
    wait_released(&call_seen);
    if (source)
        CHECK(lien_buf_mut(source, &p) == 0);
    if (target)
        CHECK(lien_space_buf(target, 0, &got) == 0);
    if (source)
        lien_buf_free(&source);
    if (target)
        lien_space_free(&target);
}

static struct lieni_frame call_frame(uint64_t id)
{
    return (struct lieni_frame){.kind = LIENI_FRAME_CALL,
                                .call = id,
                                .deadline_ms = 1000000,
                                .method = "h/desk",
                                .method_len = 6,
                                .reply_max = LEN,
                                .space_len = LEN,
                                .read_name = {.slot = 0, .gen = 1},
                                .read_total = LEN,
                                .n_read_keys = 1,
                                .read_keys = {shared_key}};
}

// The raw peer calls the victim, whose handler has the request.
static void calling(struct rawpeer *peer, lien_conn *conn)
{
    (void)conn;
    const struct lieni_frame frame = call_frame(lieni_call_id(1, 0, 0));
    CHECK(rawpeer_frame(peer, &frame));
    wait_requests(1);
}

static lien_transfer_opts transfer(void)
{
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    transfer_seen = (struct seen){0};
    opts.on_done = saw_done;
    opts.on_released = saw_released;
    opts.arg = &transfer_seen;
    return opts;
}

// Its handler has read, and the victim asks whether the bytes are good.
static void probing(struct rawpeer *peer, lien_conn *conn)
{
    calling(peer, conn);
    space = space_of(LEN);
    lien_transfer_opts opts = transfer();
    CHECK(lien_request_read(desk[0], space, &opts) == 0);
    const uint8_t *probe = expect(peer, LIENI_FRAME_PROBE);
    CHECK(lieni_get32(probe + 16) == 0 && lieni_get64(probe + 20) == lieni_call_id(1, 0, 0));
}

static void clear_read(void)
{
    lien_buf *got;
    wait_released(&transfer_seen);
    CHECK(lien_space_buf(space, 0, &got) == 0);
    lien_space_free(&space);
    drop_requests();
}

// Its handler writes, and waits for the answer.
static void writing(struct rawpeer *peer, lien_conn *conn)
{
    calling(peer, conn);
    source = buf_of(LEN);
    lien_transfer_opts opts = transfer();
    CHECK(lien_request_write(desk[0], &source, 1, &opts) == 0);
    const uint8_t *write = expect(peer, LIENI_FRAME_WRITE);
    CHECK(lieni_get64(write + AT_ID) == lieni_call_id(1, 0, 0));
    CHECK(lieni_get32(write + WRITE_ID) == 0);
}

static void clear_write(void)
{
    void *p;
    wait_released(&transfer_seen);
    CHECK(lien_buf_mut(source, &p) == 0);
    lien_buf_free(&source);
    drop_requests();
}

static const struct stage nothing = {.clear = drop_requests},
                          as_callee = {.prepare = called, .clear = clear_call},
                          as_caller = {.prepare = calling, .clear = drop_requests},
                          as_reader = {.prepare = probing, .clear = clear_read},
                          as_writer = {.prepare = writing, .clear = clear_write};

// -- Samples --

enum {
    CALL,
    CALL_FULL,
    REPLY,
    REPLY_FULL,
    CANCEL,
    PROBE,
    ANSWER,
    WRITE,
    WRITTEN,
    GOAWAY,
    SAMPLES
};
static struct sample samples[SAMPLES];

static const lien_op two_ops[] = {{.src = 0, .dst = 50, .len = 50},
                                  {.src = 50, .dst = 0, .len = 50}};

// With `n` operations, encoded into `bytes`.
static struct lieni_frame write_frame(uint64_t id, uint32_t write, uint32_t slot,
                                      const lien_op *ops, uint32_t n, uint8_t *bytes)
{
    for (uint32_t i = 0; i < n; i++)
        lieni_op_store(bytes + i * LIENI_OP_SIZE, &ops[i]);
    return (struct lieni_frame){.kind = LIENI_FRAME_WRITE,
                                .call = id,
                                .write = write,
                                .first = true,
                                .last = true,
                                .name = {.slot = slot, .gen = 1},
                                .total = LEN,
                                .n_keys = 1,
                                .keys = {shared_key},
                                .n_ops = n,
                                .ops = bytes};
}

static void make_samples(void)
{
    static const uint8_t word[] = "word";
    static uint8_t ops[2 * LIENI_OP_SIZE];
    const uint64_t ours = lieni_call_id(1, 0, 0), theirs = lieni_call_id(1, 0, 1);
    struct lieni_frame f = call_frame(ours);
    f.n_read_keys = 0;
    f.read_total = 0;
    f.read_name = (struct lieni_name){0, 0};
    f.head = word;
    f.head_len = 4;
    samples[CALL] = make_sample("CALL", &f, CALL_KEYS + 6, 1, &nothing);
    f = call_frame(ours);
    f.name = (struct lieni_name){.slot = 1, .gen = 1};
    f.total = LEN;
    f.n_keys = 1;
    f.keys[0] = shared_key;
    samples[CALL_FULL] = make_sample("CALL with grants", &f, CALL_KEYS + 2 * LIENI_KEY_SIZE + 6, 1,
                                     &nothing);
    f = (struct lieni_frame){
        .kind = LIENI_FRAME_REPLY, .call = theirs, .head = word, .head_len = 4};
    samples[REPLY] = make_sample("REPLY", &f, REPLY_KEYS, 1, &as_callee);
    f.name = (struct lieni_name){.slot = 0, .gen = 1};
    f.total = LEN / 2;
    f.n_keys = 1;
    f.keys[0] = shared_key;
    f.keys[0].len = LEN / 2;
    samples[REPLY_FULL] = make_sample("REPLY with a body", &f, REPLY_KEYS + LIENI_KEY_SIZE, 1,
                                      &as_callee);
    f = (struct lieni_frame){.kind = LIENI_FRAME_CANCEL, .call = ours};
    samples[CANCEL] = make_sample("CANCEL", &f, 0, 0, &as_caller);
    f = (struct lieni_frame){.kind = LIENI_FRAME_PROBE,
                             .n_probes = 2,
                             .probes = {{.id = 1, .call = theirs, .name = {0, 1}},
                                        {.id = 2, .call = theirs, .name = {0, 1}}}};
    samples[PROBE] = make_sample("PROBE", &f, 36, 20, &as_callee);
    f = (struct lieni_frame){
        .kind = LIENI_FRAME_ANSWER, .n_probes = 1, .probes = {{.holds = true}}};
    samples[ANSWER] = make_sample("ANSWER", &f, 24, 8, &as_reader);
    f = write_frame(theirs, 7, 0, two_ops, 2, ops);
    samples[WRITE] = make_sample("WRITE", &f, 0, 0, &as_callee);
    f = (struct lieni_frame){.kind = LIENI_FRAME_WRITTEN, .call = ours};
    samples[WRITTEN] = make_sample("WRITTEN", &f, 0, 0, &as_writer);
    f = (struct lieni_frame){.kind = LIENI_FRAME_GOAWAY};
    samples[GOAWAY] = make_sample("GOAWAY", &f, 0, 0, &nothing);
}

// -- Fields --

struct wrong {
    int sample;
    size_t at, size;
    uint64_t value;
};

#define ID(gen, slot, side) (((uint64_t)(gen) << 16 | (slot)) << 1 | (side))

static const struct wrong wrongs[] = {
    // Ids: of no generation, not the next one, above all, of a slot that is not there, of the other side.
    {CALL, AT_ID, 8, ID(0, 0, 0)},
    {CALL, AT_ID, 8, ID(2, 0, 0)},
    {CALL, AT_ID, 8, ID(UINT32_MAX, 0, 0)},
    {CALL, AT_ID, 8, ID(UINT64_C(1) << 32, 0, 0)},
    {CALL, AT_ID, 8, ID(1, RAW_CALLS, 0)},
    {CALL, AT_ID, 8, ID(1, 0xffff, 0)},
    {CALL, AT_ID, 8, ID(1, 0, 1)},
    {REPLY, AT_ID, 8, ID(0, 0, 1)},
    {REPLY, AT_ID, 8, ID(2, 0, 1)},
    {REPLY, AT_ID, 8, ID(UINT64_C(1) << 32 | 1, 0, 1)},
    {REPLY, AT_ID, 8, ID(1, 1, 1)},
    {REPLY, AT_ID, 8, ID(1, RAW_CALLS, 1)},
    {REPLY, AT_ID, 8, ID(1, 0, 0)},
    {CANCEL, AT_ID, 8, ID(0, 0, 0)},
    {CANCEL, AT_ID, 8, ID(2, 0, 0)},
    {CANCEL, AT_ID, 8, ID(1, 1, 0)},
    {CANCEL, AT_ID, 8, ID(1, RAW_CALLS, 0)},
    {CANCEL, AT_ID, 8, ID(1, 0, 1)},
    {PROBE, 20, 8, ID(0, 0, 1)},
    {PROBE, 20, 8, ID(1, RAW_CALLS, 1)},
    {PROBE, 20, 8, ID(1, 0, 0)},
    {PROBE, 40, 8, ID(1, 0, 0)},
    {PROBE, 40, 8, ID(UINT64_C(1) << 32, 0, 1)},
    {WRITE, AT_ID, 8, ID(0, 0, 1)},
    {WRITE, AT_ID, 8, ID(1, RAW_CALLS, 1)},
    {WRITE, AT_ID, 8, ID(1, 0, 0)},
    {WRITTEN, AT_ID, 8, ID(0, 0, 0)},
    {WRITTEN, AT_ID, 8, ID(2, 0, 0)},
    {WRITTEN, AT_ID, 8, ID(1, 1, 0)},
    {WRITTEN, AT_ID, 8, ID(1, RAW_CALLS, 0)},
    {WRITTEN, AT_ID, 8, ID(1, 0, 1)},
    {WRITTEN, WRITE_ID, 4, 1},
    {WRITTEN, WRITE_ID, 4, UINT32_MAX},
    {ANSWER, 16, 4, 1},
    {ANSWER, 16, 4, UINT32_MAX},
    // Counts and lengths.
    {CALL, CALL_METHOD, 1, 0},
    {CALL, CALL_METHOD, 1, 11},
    {CALL, CALL_METHOD, 1, 255},
    {CALL, CALL_BUFS, 1, 1},
    {CALL, CALL_BUFS, 1, 64},
    {CALL, CALL_BUFS, 1, 65},
    {CALL, CALL_BUFS, 1, 255},
    {CALL, CALL_READ_BUFS, 1, 1},
    {CALL, CALL_READ_BUFS, 1, 65},
    {CALL, CALL_READ_BUFS, 1, 255},
    {CALL_FULL, CALL_BUFS, 1, 0},
    {CALL_FULL, CALL_BUFS, 1, 2},
    {CALL_FULL, CALL_READ_BUFS, 1, 0},
    {CALL_FULL, CALL_READ_BUFS, 1, 2},
    {REPLY, REPLY_BUFS, 1, 1},
    {REPLY, REPLY_BUFS, 1, 65},
    {REPLY_FULL, REPLY_BUFS, 1, 0},
    {REPLY_FULL, REPLY_BUFS, 1, 2},
    {REPLY_FULL, REPLY_BUFS, 1, 255},
    {WRITE, WRITE_BUFS, 1, 0},
    {WRITE, WRITE_BUFS, 1, 2},
    {WRITE, WRITE_BUFS, 1, 65},
    {WRITE, WRITE_OPS, 2, 0},
    {WRITE, WRITE_OPS, 2, 1},
    {WRITE, WRITE_OPS, 2, 3},
    {WRITE, WRITE_OPS, 2, 1025},
    {WRITE, WRITE_OPS, 2, 0xffff},
    // Values that are not allowed; bytes that are zero.
    {CALL, CALL_MS, 4, 0},
    {CALL, CALL_MS, 4, UINT32_MAX},
    {CALL, CALL_ZERO, 1, 1},
    {CALL, CALL_KEYS, 1, 0}, // a NUL in the method
    {CALL, CALL_KEYS + 5, 1, 0},
    {REPLY, REPLY_STATUS, 4, 1},
    {REPLY, REPLY_STATUS, 4, INT32_MAX},
    {REPLY, REPLY_UNBEGUN, 1, 2},
    {REPLY, REPLY_ZERO, 1, 1},
    {REPLY, REPLY_ZERO + 1, 1, 0x80},
    {WRITTEN, WRITTEN_STATUS, 4, 1},
    {WRITE, WRITE_FLAGS, 1, 0},
    {WRITE, WRITE_FLAGS, 1, 2},
    {WRITE, WRITE_FLAGS, 1, 4},
    {WRITE, WRITE_FLAGS, 1, 0x83},
    {ANSWER, 20, 1, 2},
    {ANSWER, 20, 1, 0xff},
    {ANSWER, 21, 1, 1},
    {ANSWER, 23, 1, 1},
    {GOAWAY, AT_FLAGS, 1, 1},
    {GOAWAY, AT_ZERO, 1, 1},
    // Grants: without buffers, of no generation, beyond the table, not the next one, the same twice, of other lengths than their keys.
    {CALL, CALL_BODY, 4, 1},
    {CALL, CALL_BODY + 4, 4, 1},
    {CALL, CALL_BODY + 8, 8, 1},
    {CALL, CALL_READ + 8, 8, 1},
    {REPLY, REPLY_BODY + 4, 4, 1},
    {CALL_FULL, CALL_BODY, 4, 0},
    {CALL_FULL, CALL_BODY, 4, 64},
    {CALL_FULL, CALL_BODY + 4, 4, 0},
    {CALL_FULL, CALL_BODY + 4, 4, 2},
    {CALL_FULL, CALL_BODY + 8, 8, 0},
    {CALL_FULL, CALL_BODY + 8, 8, LEN - 1},
    {CALL_FULL, CALL_BODY + 8, 8, LEN + 1},
    {CALL_FULL, CALL_BODY + 8, 8, UINT64_MAX},
    {CALL_FULL, CALL_READ, 4, UINT32_MAX},
    {CALL_FULL, CALL_READ + 4, 4, 0},
    {CALL_FULL, CALL_READ + 4, 4, 2},
    {CALL_FULL, CALL_READ + 8, 8, LEN + 1},
    {CALL_FULL, CALL_KEYS, 8, UINT64_MAX},
    {CALL_FULL, CALL_KEYS + 16, 8, 0},
    {CALL_FULL, CALL_KEYS + 16, 8, UINT64_MAX},
    {CALL_FULL, CALL_KEYS + LIENI_KEY_SIZE + 16, 8, LEN + 1},
    {REPLY_FULL, REPLY_BODY, 4, 64},
    {REPLY_FULL, REPLY_BODY + 4, 4, 0},
    {REPLY_FULL, REPLY_BODY + 4, 4, 2},
    {REPLY_FULL, REPLY_BODY + 8, 8, LEN / 2 + 1},
    {REPLY_FULL, REPLY_BODY + 8, 8, UINT64_C(1) << 40},
    {REPLY_FULL, REPLY_KEYS + 16, 8, UINT64_C(1) << 63},
    {PROBE, 28, 4, UINT32_MAX},
    {PROBE, 32, 4, 0},
    {PROBE, 52, 4, 0},
    {WRITE, WRITE_BODY, 4, 64},
    {WRITE, WRITE_BODY + 4, 4, 0},
    {WRITE, WRITE_BODY + 4, 4, 2},
    {WRITE, WRITE_BODY + 8, 8, LEN + 1},
    {WRITE, WRITE_KEYS + 16, 8, 0},
    {WRITE, WRITE_KEYS, 8, UINT64_MAX},
};

static void fields(void)
{
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        const struct wrong *w = &wrongs[i];
        struct sample s = samples[w->sample];
        char name[64];
        for (size_t b = 0; b < w->size; b++)
            s.bytes[w->at + b] = (uint8_t)(w->value >> (8 * b));
        snprintf(name, sizeof name, "%s, field %zu is %llx", s.name, w->at,
                 (unsigned long long)w->value);
        hostile_what = name;
        breaks(s.bytes, s.len, s.stage);
    }
    hostile_what = "fields";
}

// -- The wrong state --

struct attack {
    struct rawpeer peer;
    lien_conn *conn;
    uint64_t errors;
};

static void attack(struct attack *a, const char *name,
                   void (*prepare)(struct rawpeer *, lien_conn *))
{
    hostile_what = name;
    a->errors = stats().protocol_errors;
    begin(&a->peer, &a->conn);
    if (prepare)
        prepare(&a->peer, a->conn);
}

// It was one step too far.
static void refused(struct attack *a, void (*clear)(void))
{
    CHECK(status_of_end(a->conn, &a->peer) == LIEN_EPROTO);
    CHECK(stats().protocol_errors == a->errors + 1);
    if (clear)
        clear();
    end(&a->peer, &a->conn);
}

// The connection is as good as before: it answers a probe.
static void still_open(struct attack *a)
{
    const struct lieni_frame beat = {.kind = LIENI_FRAME_BEAT};
    CHECK(rawpeer_frame(&a->peer, &beat));
    expect(&a->peer, LIENI_FRAME_ALIVE);
    CHECK(is_open(a->conn) && stats().protocol_errors == a->errors);
}

static void over(struct attack *a, void (*clear)(void))
{
    CHECK(lien_conn_close(&a->conn) == 0);
    rawpeer_wait_down(&a->peer, 20000);
    if (clear)
        clear();
    attacks++;
    others_go_on();
    rawpeer_close(&a->peer);
}

static bool sends(struct attack *a, int sample)
{
    uint8_t bytes[256];
    memcpy(bytes, samples[sample].bytes, samples[sample].len);
    lieni_put32(bytes + AT_NUMBER, ++a->peer.number);
    return rawpeer_bytes(&a->peer, bytes, samples[sample].len);
}

// What ends something, twice.
static void twice(void)
{
    struct attack a;
    attack(&a, "a second REPLY", called);
    CHECK(sends(&a, REPLY));
    wait_done(&call_seen);
    CHECK(call_seen.status == 0 && is_open(a.conn));
    sends(&a, REPLY);
    refused(&a, clear_call);
    attack(&a, "a second WRITTEN", writing);
    CHECK(sends(&a, WRITTEN));
    wait_done(&transfer_seen);
    CHECK(transfer_seen.status == 0 && transfer_seen.released == 0); // the source is still held
    sends(&a, WRITTEN);
    refused(&a, clear_write);
    attack(&a, "a second ANSWER", probing);
    CHECK(sends(&a, ANSWER));
    wait_released(&transfer_seen);
    CHECK(transfer_seen.status == 0 && is_open(a.conn));
    sends(&a, ANSWER);
    refused(&a, clear_read);
    attack(&a, "a second CANCEL", calling);
    CHECK(sends(&a, CANCEL));
    expect(&a.peer, LIENI_FRAME_REPLY);
    CHECK(lien_request_cancelled(desk[0]));
    sends(&a, CANCEL);
    refused(&a, drop_requests);
}

// What ends something that never was.
static void unasked(void)
{
    static const int kinds[] = {REPLY, CANCEL, ANSWER, WRITTEN};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct attack a;
        attack(&a, samples[kinds[i]].name, NULL);
        sends(&a, kinds[i]);
        refused(&a, NULL);
    }
}

static void call_ids(void)
{
    static const struct {
        const char *name;
        uint32_t gen;
        bool replied;
    } list[] = {{"a call in a slot that is taken", 2, false},
                {"the same call again", 1, false},
                {"a generation again", 1, true},
                {"a generation left out", 3, true}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        struct attack a;
        attack(&a, list[i].name, calling);
        if (list[i].replied) {
            CHECK(lien_request_reply(&desk[0], 0, NULL, 0) == 0);
            n_desk = 0;
            expect(&a.peer, LIENI_FRAME_REPLY);
        }
        struct lieni_frame frame = call_frame(lieni_call_id(list[i].gen, 0, 0));
        frame.read_name.slot = 1;
        rawpeer_frame(&a.peer, &frame);
        refused(&a, drop_requests);
    }
    // A CANCEL that crossed the REPLY is none; the next generation is right.
    struct attack a;
    attack(&a, "a cancel that is late", calling);
    CHECK(lien_request_reply(&desk[0], 0, NULL, 0) == 0);
    n_desk = 0;
    expect(&a.peer, LIENI_FRAME_REPLY);
    CHECK(sends(&a, CANCEL));
    struct lieni_frame frame = call_frame(lieni_call_id(2, 0, 0));
    frame.read_name.slot = 1;
    CHECK(rawpeer_frame(&a.peer, &frame));
    wait_requests(1);
    CHECK(!lien_request_cancelled(desk[0]));
    still_open(&a);
    over(&a, drop_requests);
}

// Eight calls take all credits of messages, as long as the handlers have them.
static void overspent(void)
{
    struct attack a;
    attack(&a, "calls above the credits", NULL);
    for (uint32_t i = 0; i < CREDITS; i++) {
        struct lieni_frame frame = call_frame(lieni_call_id(1, i, 0));
        frame.read_name.slot = i;
        CHECK(rawpeer_frame(&a.peer, &frame));
    }
    wait_requests(CREDITS);
    still_open(&a);
    rawpeer_frame(&a.peer, &(struct lieni_frame){.kind = LIENI_FRAME_MSG});
    refused(&a, drop_requests);
}

// The victim's answers cannot leave, since it gets no credits back; it keeps LIENI_PROBES_OUT questions, and no more.
static void probe_flood(void)
{
    struct rawpeer peer;
    lien_conn *conn;
    uint64_t errors = stats().protocol_errors;
    struct lieni_offer offer = rawpeer_offer();
    struct lieni_frame frame = {.kind = LIENI_FRAME_PROBE, .n_probes = LIENI_PROBES_MAX};
    hostile_what = "a flood of probes";
    offer.control_credits = 2;
    for (uint32_t i = 0; i < LIENI_PROBES_MAX; i++)
        frame.probes[i] = (struct lieni_probe){
            .id = i, .call = lieni_call_id(1, 0, 1), .name = {.slot = 0, .gen = 1}};
    rawpeer_connect(&world, &peer, address, &offer);
    CHECK(lien_listener_accept_wait(listener, 5000, &conn) == 0);
    unsigned sent = 0;
    while (sent < CREDITS && rawpeer_frame(&peer, &frame))
        sent++;
    CHECK(sent >= 5); // LIENI_PROBES_OUT and those that were answered
    CHECK(status_of_end(conn, &peer) == LIEN_EPROTO);
    CHECK(stats().protocol_errors == errors + 1);
    end(&peer, &conn);
}

// Frames of WRITEs that do not follow each other.
static void write_frames(void)
{
    static uint8_t bytes[200 * LIENI_OP_SIZE];
    static lien_op ops[200];
    struct attack a;
    const uint64_t id = lieni_call_id(1, 0, 1);
    attack(&a, "a later frame of no WRITE", called);
    struct lieni_frame f = write_frame(id, 1, 0, two_ops, 2, bytes);
    struct lieni_frame later = {
        .kind = LIENI_FRAME_WRITE, .call = id, .write = 1, .last = true, .n_ops = 1, .ops = bytes};
    rawpeer_frame(&a.peer, &later);
    refused(&a, clear_call);
    attack(&a, "a later frame of another WRITE", called);
    f.last = false;
    CHECK(rawpeer_frame(&a.peer, &f));
    later.write = 2;
    rawpeer_frame(&a.peer, &later);
    refused(&a, clear_call);
    attack(&a, "more than 1,024 operations", called);
    f = write_frame(id, 1, 0, ops, 100, bytes);
    f.last = false;
    CHECK(rawpeer_frame(&a.peer, &f));
    later.write = 1;
    later.last = false;
    later.n_ops = 150;
    unsigned sent = 100;
    while (sent <= 2048 && rawpeer_frame(&a.peer, &later))
        sent += later.n_ops;
    refused(&a, clear_call);
    // A first frame instead of a last one: the WRITE before is given up, and gets no answer.
    attack(&a, "a WRITE that was left", called);
    f = write_frame(id, 1, 0, two_ops, 2, bytes);
    f.last = false;
    CHECK(rawpeer_frame(&a.peer, &f));
    f = write_frame(id, 2, 1, two_ops, 2, bytes);
    CHECK(rawpeer_frame(&a.peer, &f));
    const uint8_t *written = expect(&a.peer, LIENI_FRAME_WRITTEN);
    CHECK(lieni_get32(written + WRITE_ID) == 2 && lieni_get32(written + WRITTEN_STATUS) == 0);
    still_open(&a);
    over(&a, clear_call);
}

// -- What is answered --

static void written_as(const char *name, bool spaces, uint64_t id, const lien_op *ops, uint32_t n,
                       int status)
{
    static uint8_t bytes[8 * LIENI_OP_SIZE];
    struct attack a;
    attack(&a, name, NULL);
    call_out(a.conn, spaces);
    expect(&a.peer, LIENI_FRAME_CALL);
    uint64_t before = stats().read_pieces_posted;
    struct lieni_frame f = write_frame(id, 5, 0, ops, n, bytes);
    CHECK(rawpeer_frame(&a.peer, &f));
    bool answered = false, released = false;
    while (!answered || !released) {
        const uint8_t *got;
        size_t len;
        CHECK(rawpeer_next(&a.peer, 20000, &got, &len));
        released = released || got[0] == LIENI_FRAME_RELEASE;
        if (got[0] != LIENI_FRAME_WRITTEN)
            continue;
        CHECK((int32_t)lieni_get32(got + WRITTEN_STATUS) == status);
        CHECK(lieni_get64(got + AT_ID) == id && lieni_get32(got + WRITE_ID) == 5);
        answered = true;
    }
    CHECK(status == 0 || stats().read_pieces_posted == before); // refused before anything is posted
    still_open(&a);
    over(&a, clear_call);
}

// The other side's half of R3, and writes for which there is no space.
static void writes_refused(void)
{
    const uint64_t id = lieni_call_id(1, 0, 1);
    static const lien_op over_source[] = {{.src = 1, .dst = 0, .len = LEN}};
    static const lien_op over_space[] = {{.src = 0, .dst = LEN - 1, .len = 2}};
    static const lien_op wraps_source[] = {{.src = UINT64_MAX, .dst = 0, .len = 2}};
    static const lien_op wraps_space[] = {{.src = 0, .dst = UINT64_MAX - 1, .len = 3}};
    static const lien_op wraps_len[] = {{.src = 2, .dst = 2, .len = UINT64_MAX}};
    static const lien_op late_one[] = {{.len = 1}, {.src = 1, .dst = 1, .len = LEN}};
    static const lien_op overlap[] = {{.src = 0, .dst = 0, .len = 10},
                                      {.src = 50, .dst = 9, .len = 10}};
    static const lien_op inside[] = {{.dst = 0, .len = LEN}, {.dst = 50, .len = 1}};
    written_as("a write outside of its source", true, id, over_source, 1, LIEN_ERANGE);
    written_as("a write outside of the space", true, id, over_space, 1, LIEN_ERANGE);
    written_as("a write whose source wraps", true, id, wraps_source, 1, LIEN_ERANGE);
    written_as("a write whose place wraps", true, id, wraps_space, 1, LIEN_ERANGE);
    written_as("a write whose length wraps", true, id, wraps_len, 1, LIEN_ERANGE);
    written_as("a write whose second operation is outside", true, id, late_one, 2, LIEN_ERANGE);
    written_as("a write over itself", true, id, overlap, 2, LIEN_EOVERLAP);
    written_as("a write inside of itself", true, id, inside, 2, LIEN_EOVERLAP);
    written_as("a write into no space", false, id, two_ops, 2, LIEN_ERANGE);
    written_as("a write into no call", true, lieni_call_id(1, 3, 1), two_ops, 2, LIEN_ECANCELED);
    written_as("a write into a call to come", true, lieni_call_id(2, 0, 1), two_ops, 2,
               LIEN_ECANCELED);
    written_as("a write as it should be", true, id, two_ops, 2, 0);
}

// Probes of what does not live are answered no; from the live call itself, yes.
static void probes_answered(void)
{
    struct attack a;
    const uint64_t id = lieni_call_id(1, 0, 1);
    const struct lieni_frame frame = {
        .kind = LIENI_FRAME_PROBE,
        .n_probes = 5,
        .probes = {{.id = 10, .call = id, .name = {0, 1}},
                   {.id = 11, .call = id, .name = {1, 1}},
                   {.id = 12, .call = id, .name = {0, 2}},
                   {.id = 13, .call = lieni_call_id(2, 0, 1), .name = {0, 1}},
                   {.id = 14, .call = lieni_call_id(1, 1, 1), .name = {0, 1}}}};
    attack(&a, "probes of what is not", called);
    CHECK(rawpeer_frame(&a.peer, &frame));
    const uint8_t *answer = expect(&a.peer, LIENI_FRAME_ANSWER);
    CHECK(lieni_get16(answer + AT_LEN) == 16 + 5 * 8);
    for (uint32_t i = 0; i < 5; i++) {
        CHECK(lieni_get32(answer + 16 + 8 * i) == 10 + i);
        CHECK(answer[16 + 8 * i + 4] == (i == 0));
    }
    still_open(&a);
    over(&a, clear_call);
}

static void replied_as(struct attack *a, int status)
{
    const uint8_t *reply = expect(&a->peer, LIENI_FRAME_REPLY);
    CHECK((int32_t)lieni_get32(reply + REPLY_STATUS) == status);
}

// A body above what the caller reserved, a method that is not there, GOAWAY: each has its answer.
static void answered(void)
{
    struct attack a;
    attack(&a, "a reply's body that is too large", called);
    struct lieni_frame f = {.kind = LIENI_FRAME_REPLY,
                            .call = lieni_call_id(1, 0, 1),
                            .name = {.slot = 0, .gen = 1},
                            .total = LEN,
                            .n_keys = 1,
                            .keys = {shared_key}};
    CHECK(rawpeer_frame(&a.peer, &f));
    expect(&a.peer, LIENI_FRAME_RELEASE); // unread
    wait_released(&call_seen);
    CHECK(call_seen.status == LIEN_EMSGSIZE);
    still_open(&a);
    over(&a, clear_call);
    attack(&a, "a method that is not there", NULL);
    f = call_frame(lieni_call_id(1, 0, 0));
    f.method = "h/none";
    f.name = (struct lieni_name){.slot = 1, .gen = 1};
    f.total = LEN;
    f.n_keys = 1;
    f.keys[0] = shared_key;
    CHECK(rawpeer_frame(&a.peer, &f));
    replied_as(&a, LIEN_ENOTFOUND);
    still_open(&a);
    over(&a, NULL);
    attack(&a, "GOAWAY", called);
    CHECK(sends(&a, GOAWAY));
    expect(&a.peer, LIENI_FRAME_HEARD);
    still_open(&a);
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    CHECK(lien_call_start(a.conn, "raw/any", NULL, 0, &opts, NULL) == LIEN_EOVERLOAD);
    CHECK(sends(&a, REPLY)); // the one that runs goes on
    wait_released(&call_seen);
    CHECK(call_seen.status == 0);
    over(&a, clear_call);
    attack(&a, "a second GOAWAY", NULL);
    CHECK(sends(&a, GOAWAY));
    sends(&a, GOAWAY);
    refused(&a, NULL);
    attack(&a, "HEARD, to no GOAWAY", NULL);
    rawpeer_frame(&a.peer, &(struct lieni_frame){.kind = LIENI_FRAME_HEARD});
    refused(&a, NULL);
}

// -- Lies --

// Keys that nobody serves: the READ fails, and the connection with it; the memory comes back.
static void unreadable(void)
{
    struct attack a;
    struct lieni_frame f = call_frame(lieni_call_id(1, 0, 0));
    f.read_keys[0].key ^= 0x5555;
    attack(&a, "a read space that cannot be read", NULL);
    CHECK(rawpeer_frame(&a.peer, &f));
    wait_requests(1);
    space = space_of(LEN);
    lien_transfer_opts opts = transfer();
    CHECK(lien_request_read(desk[0], space, &opts) == 0);
    CHECK(lien_errscope(status_of_end(a.conn, &a.peer)) == LIEN_SCOPE_CONN);
    wait_done(&transfer_seen);
    CHECK(transfer_seen.status != 0);
    clear_read();
    end(&a.peer, &a.conn);
    attack(&a, "arguments that cannot be read", NULL);
    f.name = (struct lieni_name){.slot = 1, .gen = 1};
    f.total = LEN;
    f.n_keys = 1;
    f.keys[0] = f.read_keys[0];
    CHECK(rawpeer_frame(&a.peer, &f));
    CHECK(lien_errscope(status_of_end(a.conn, &a.peer)) == LIEN_SCOPE_CONN);
    CHECK(requests_now() == 0); // no handler began
    end(&a.peer, &a.conn);
}

// An answer without a READ: the handler believes it, but its source stays held until the release, or the end of the connection. And a peer that says no is believed.
static void lied_to(void)
{
    struct attack a;
    void *p;
    attack(&a, "WRITTEN without a READ", writing);
    CHECK(sends(&a, WRITTEN));
    wait_done(&transfer_seen);
    rawpeer_pump(&world, 20);
    CHECK(transfer_seen.released == 0 && lien_buf_mut(source, &p) == LIEN_EBUSY);
    still_open(&a);
    over(&a, clear_write);
    attack(&a, "a probe that is denied", probing);
    struct lieni_frame f = {.kind = LIENI_FRAME_ANSWER, .n_probes = 1};
    CHECK(rawpeer_frame(&a.peer, &f));
    wait_released(&transfer_seen);
    CHECK(transfer_seen.status == LIEN_ESTALE);
    still_open(&a);
    over(&a, clear_read);
}

int main(void)
{
    set_up(&service);
    struct lieni_mr_info info;
    CHECK(lieni_provider_tcp.mr_reg(world.domain, shared, sizeof shared, LIENI_ACCESS_REMOTE,
                                    &shared_mr, &info) == 0);
    shared_key = (struct lieni_key){.addr = info.base, .key = info.key, .len = LEN};
    uint64_t out = stats().pool_bytes;
    make_samples();
    for (int i = 0; i < SAMPLES; i++) {
        cuts(&samples[i], i == CALL);
        lengths(&samples[i]);
    }
    fields();
    twice();
    unasked();
    call_ids();
    overspent();
    probe_flood();
    write_frames();
    writes_refused();
    probes_answered();
    answered();
    unreadable();
    lied_to();
    for (int i = 0; i < 20000 && stats().pool_bytes > out; i++)
        rawpeer_pump(&world, 1);
    CHECK(stats().pool_bytes <= out);
    CHECK(lieni_provider_tcp.mr_close(shared_mr) == 0);
    pull_down();
    printf("%u hostile connections, each cost itself alone\n", attacks);
    return 0;
}
