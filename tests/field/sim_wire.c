// SPDX-License-Identifier: Apache-2.0
//
// Reports 8 and 9 on the simulator, a part of test_field_sim: lengths and lists from the wire, by a peer that is no Lien (tests/fuzz/simpeer.h). Each costs that one connection, and nothing else: a friend on a
// connection of its own is answered after each, the shadow of all memory judges, and the victim comes to rest. Over tcp: hostile.c.

#include "core/bytes.h"
#include "tests/calls/world.h"
#include "tests/fuzz/simpeer.h"

#define STRANGER 2 // its node

static struct desk desk;
static const lien_method methods[] = {{.name = "test/desk", .handle = to_desk, .arg = &desk}};
static const lien_service service = {.methods = methods, .n_methods = 1};

struct scene {
    struct world *w;
    lien_listener *listener;
    char address[96];
    struct simpeer peer;
    lien_conn *conn; // of the victim's, with the stranger
    unsigned n_lost;
    int status; // by which it was lost
};

static int on_stranger(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    struct scene *s = arg;
    (void)listener;
    s->conn = conn;
    *conn_arg = s;
    return 0;
}

static void on_gone(lien_conn *conn, int status, void *arg)
{
    struct scene *s = arg;
    (void)conn;
    s->n_lost++;
    s->status = status;
}

static void scene_open(struct scene *s)
{
    struct lieni_sim_config config;
    lien_listener_opts opts;
    lien_conn_opts conn;
    char bound[96];
    memset(s, 0, sizeof *s);
    lieni_sim_config_init(&config, LIENI_SIM_TCP);
    config.nodes = 3;
    config.starved_fails = false; // the stranger keeps no account of credits
    s->w = world_open(7, &config, NULL, &service, NULL);
    lien_conn_opts_init(&conn);
    conn.service = &service;
    conn.on_lost = on_gone;
    lien_listener_opts_init(&opts);
    opts.conn = &conn;
    opts.on_accept = on_stranger;
    opts.arg = s;
    cr_assert_eq(lien_listener_open(s->w->ctx[SERVER], "*:0", &opts, &s->listener), 0);
    cr_assert_eq(lien_listener_address(s->listener, bound, sizeof bound), 0);
    snprintf(s->address, sizeof s->address, "%s%s", lieni_sim_node_host(s->w->sim, SERVER),
             strrchr(bound, ':'));
}

static void scene_close(struct scene *s)
{
    lien_listener_close(&s->listener);
    world_close(s->w);
}

// The world moves for `ms`, the stranger too.
static void go(struct scene *s, uint64_t ms)
{
    struct world *w = s->w;
    uint64_t limit = lieni_sim_now(w->sim) + ms * MS;
    for (;;) {
        do
            progress(w); // ends, or fails: see there
        while (simpeer_pump(&s->peer));
        cr_assert_eq(lieni_sim_violations(w->sim), 0, "%s", lieni_sim_violation(w->sim, 0));
        uint64_t at = lieni_sim_next_time(w->sim);
        for (unsigned i = 0; i < 2; i++) {
            uint64_t t = lieni_timers_next(&w->ctx[i]->timers);
            at = t < at ? t : at;
        }
        if (at > limit)
            break;
        if (!lieni_sim_step(w->sim, at))
            lieni_sim_advance(w->sim, at);
    }
    lieni_sim_advance(w->sim, limit);
}

static uint64_t errors_now(const struct scene *s)
{
    lien_ctx_stats stats = {.size = sizeof stats};
    cr_assert_eq(lien_ctx_stats_get(s->w->ctx[SERVER], &stats), 0);
    return stats.protocol_errors;
}

static void begin(struct scene *s)
{
    s->conn = NULL;
    s->n_lost = 0;
    simpeer_open(&s->peer, s->w->sim, STRANGER, s->address);
    for (unsigned i = 0; i < 100 && !(s->conn && s->peer.up); i++)
        go(s, 1);
    cr_assert(s->conn && s->peer.up);
}

// The connection ends with a protocol error, once, and only that.
static void ends(struct scene *s, uint64_t errors)
{
    struct seen friend = {0};
    for (unsigned i = 0; i < 100 && !s->n_lost; i++)
        go(s, 1);
    cr_assert_eq(s->n_lost, 1);
    cr_assert_eq(s->status, LIEN_EPROTO, "%s", lien_errname(s->status));
    lien_conn_close(&s->conn);
    go(s, 100);
    cr_assert_eq(s->n_lost, 1);
    cr_assert_eq(errors_now(s), errors + 1);
    for (unsigned i = 0; !simpeer_close(&s->peer); i++) {
        cr_assert_lt(i, 1000);
        run_ms(s->w, 1);
    }
    lien_call_opts opts = call_to(&friend);
    lien_request *request = desk_call(s->w, &desk, &opts, NULL);
    finish(s->w, &request, &friend, 0);
    cr_assert_not(s->w->lost[SERVER] || s->w->lost[CLIENT]);
}

static size_t encode(const struct lieni_frame *frame, uint8_t *bytes, uint32_t number)
{
    _Atomic uint64_t copied = 0;
    size_t len;
    cr_assert_eq(lieni_frame_encode(frame, bytes, PEER_FRAME, &copied, &len), 0);
    lieni_frame_stamp(bytes, 0, 0, number);
    return len;
}

static void breaks(struct scene *s, const uint8_t *bytes, size_t len)
{
    uint64_t errors = errors_now(s);
    begin(s);
    cr_assert(simpeer_send(&s->peer, bytes, len));
    ends(s, errors);
}

// -- 8: lengths --------------------------------------------------------------------------------------------------------------------

Test(sim, field_report_08_lengths_from_the_wire, .timeout = 500)
{
    static const uint8_t head[100] = {1};
    static const uint16_t lies[] = {0, 1, 15, 16, 115, 117, 4096, 0x7fff, 0xffff};
    static struct scene s;
    const struct lieni_frame msg = {.kind = LIENI_FRAME_MSG, .head = head, .head_len = sizeof head};
    uint8_t bytes[PEER_FRAME];
    scene_open(&s);
    size_t len = encode(&msg, bytes, 1);
    cr_assert_eq(len, 140); // header 16, body 24
    breaks(&s, bytes, 0);   // a frame of no bytes: judged once, not again and again
    breaks(&s, bytes, 1);
    breaks(&s, bytes, 15);
    breaks(&s, bytes, len - 1);
    for (unsigned i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        encode(&msg, bytes, 1);
        lieni_put16(bytes + 2, lies[i]); // docs/wire.md, "Frames"
        breaks(&s, bytes, len);
    }
    // Many that are empty, as fast as they leave: the first ends it.
    uint64_t errors = errors_now(&s);
    begin(&s);
    for (unsigned i = 0; i < PEER_SENDS; i++)
        cr_assert(simpeer_send(&s.peer, bytes, 0));
    ends(&s, errors);
    scene_close(&s);
}

// -- 9: lists ----------------------------------------------------------------------------------------------------------------------

// docs/wire.md, "MSG", "CALL" and "WRITE".
enum {
    AT_MSG_BUFS = 32,
    AT_CALL_BODY_BUFS = 29,
    AT_CALL_READ_BUFS = 30,
    AT_WRITE_BUFS = 29,
    AT_WRITE_OPS = 30
};

static struct lieni_frame a_call(void)
{
    struct lieni_frame call = {.kind = LIENI_FRAME_CALL,
                               .call = lieni_call_id(1, 0, false),
                               .deadline_ms = 30000,
                               .method = "test/desk",
                               .method_len = 9};
    call.read_name = (struct lieni_name){.slot = 0, .gen = 1};
    call.n_read_keys = 2;
    call.read_keys[0] = (struct lieni_key){.addr = 4096, .key = 1, .len = 100};
    call.read_keys[1] = (struct lieni_key){.addr = 8192, .key = 2, .len = 200};
    call.read_total = 300;
    return call;
}

static void fill_keys(struct lieni_key *keys, uint32_t n, uint64_t *total)
{
    for (uint32_t i = 0; i < n; i++)
        keys[i] = (struct lieni_key){.addr = 4096, .key = 1 + i, .len = 8};
    *total = 8 * n;
}

// A frame with 64 keys behind `fixed` gets one more: nothing about it is wrong but their number.
static size_t one_more(uint8_t *bytes, size_t len, unsigned count, unsigned total, unsigned fixed)
{
    memmove(bytes + fixed + LIENI_KEY_SIZE, bytes + fixed, len - fixed);
    cr_assert_eq(bytes[count], LIEN_BUFS_MAX);
    bytes[count]++;
    lieni_put16(bytes + 2, (uint16_t)(len + LIENI_KEY_SIZE));
    lieni_put64(bytes + total, lieni_get64(bytes + total) + 8);
    return len + LIENI_KEY_SIZE;
}

static void lists_of_65(struct scene *s)
{
    uint8_t bytes[PEER_FRAME];
    struct lieni_frame call = a_call(), msg = {.kind = LIENI_FRAME_MSG};
    call.n_read_keys = LIEN_BUFS_MAX;
    fill_keys(call.read_keys, LIEN_BUFS_MAX, &call.read_total);
    size_t len = encode(&call, bytes, 1);
    breaks(s, bytes, one_more(bytes, len, AT_CALL_READ_BUFS, 64 + 8, 80));
    call = a_call();
    call.name = (struct lieni_name){.slot = 1, .gen = 1};
    call.n_keys = LIEN_BUFS_MAX;
    fill_keys(call.keys, LIEN_BUFS_MAX, &call.total);
    len = encode(&call, bytes, 1);
    breaks(s, bytes, one_more(bytes, len, AT_CALL_BODY_BUFS, 48 + 8, 80));
    msg.name = (struct lieni_name){.slot = 0, .gen = 1};
    msg.n_keys = LIEN_BUFS_MAX;
    fill_keys(msg.keys, LIEN_BUFS_MAX, &msg.total);
    len = encode(&msg, bytes, 1);
    breaks(s, bytes, one_more(bytes, len, AT_MSG_BUFS, 24, 40));
}

static void lists_of_calls(struct scene *s)
{
    static const uint8_t counts[] = {0, 1, 3, 64, 65, 128, 255};
    uint8_t bytes[PEER_FRAME];
    struct lieni_frame call = a_call();
    for (unsigned i = 0; i < sizeof counts; i++) {
        size_t len = encode(&call, bytes, 1);
        bytes[AT_CALL_READ_BUFS] = counts[i];
        breaks(s, bytes, len);
        encode(&call, bytes, 1);
        if (counts[i] > 0) {
            bytes[AT_CALL_BODY_BUFS] = counts[i];
            breaks(s, bytes, len);
        }
    }
    size_t len = encode(&call, bytes, 1);
    lieni_put64(bytes + 80 + 16, UINT64_MAX); // a key's length, whose sum wraps
    breaks(s, bytes, len);
}

// The victim calls the stranger, whose WRITE then has a list that lies.
struct called {
    struct seen seen;
    lien_space *space;
    lien_call *call;
};

static struct lieni_frame a_write(struct scene *s, struct called *c, const uint8_t *ops,
                                  uint32_t n_ops)
{
    memset(c, 0, sizeof *c);
    begin(s);
    c->space = space_of(s->w, SERVER, buf_new(s->w, SERVER, 65536, 3));
    lien_call_opts opts = call_to(&c->seen);
    opts.write = c->space;
    cr_assert_eq(lien_call_start(s->conn, "any", NULL, 0, &opts, &c->call), 0);
    for (unsigned i = 0; i < 100 && s->peer.n_calls == 0; i++)
        go(s, 1);
    cr_assert_eq(s->peer.n_calls, 1);
    struct lieni_frame write = {.kind = LIENI_FRAME_WRITE,
                                .call = s->peer.calls[0],
                                .first = true,
                                .last = true,
                                .n_keys = 1,
                                .n_ops = n_ops,
                                .ops = ops,
                                .total = 100};
    write.name = (struct lieni_name){.slot = 0, .gen = 1};
    write.keys[0] = (struct lieni_key){.addr = 4096, .key = 1, .len = 100};
    return write;
}

// The call has ended, nothing was written, and its space is back.
static void written_nothing(struct scene *s, struct called *c)
{
    cr_assert(run_until(s->w, &c->seen.released, 5000));
    cr_assert_eq(c->seen.n_done, 1);
    cr_assert_lt(c->seen.status, 0);
    cr_assert_eq(c->seen.released_status, 0);
    cr_assert(buf_is(space_first(c->space), 3));
    lien_call_close(&c->call);
    lien_space_free(&c->space);
}

static void lists_of_writes(struct scene *s)
{
    static const struct {
        unsigned at, size;
        uint64_t value;
    } wrong[] = {{AT_WRITE_BUFS, 1, 65},  {AT_WRITE_BUFS, 1, 255},      {AT_WRITE_BUFS, 1, 0},
                 {AT_WRITE_BUFS, 1, 2},   {AT_WRITE_OPS, 2, 0},         {AT_WRITE_OPS, 2, 3},
                 {AT_WRITE_OPS, 2, 1025}, {AT_WRITE_OPS, 2, UINT16_MAX}};
    static const uint8_t ops[2 * LIENI_OP_SIZE];
    uint8_t bytes[PEER_FRAME];
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct called c;
        uint64_t errors = errors_now(s);
        struct lieni_frame write = a_write(s, &c, ops, 2);
        size_t len = encode(&write, bytes, 1);
        for (unsigned b = 0; b < wrong[i].size; b++)
            bytes[wrong[i].at + b] = (uint8_t)(wrong[i].value >> (8 * b));
        cr_assert(simpeer_send(&s->peer, bytes, len));
        ends(s, errors);
        written_nothing(s, &c);
    }
}

// No frame of it is wrong, all together are: more than LIEN_OPS_MAX operations.
static void list_in_many_frames(struct scene *s)
{
    enum {
        EACH = 128
    };
    static const uint8_t ops[EACH * LIENI_OP_SIZE];
    uint8_t bytes[PEER_FRAME];
    struct called c;
    uint64_t errors = errors_now(s);
    struct lieni_frame write = a_write(s, &c, ops, EACH);
    write.last = false;
    for (uint32_t i = 0; i < LIEN_OPS_MAX / EACH; i++) {
        cr_assert(simpeer_send(&s->peer, bytes, encode(&write, bytes, 1 + i)));
        write.first = false;
        write.n_keys = 0;
        write.total = 0;
        write.name = (struct lieni_name){0};
        go(s, 1);
    }
    go(s, 50);
    cr_assert_eq(errors_now(s), errors); // as many as are allowed
    cr_assert(simpeer_send(&s->peer, bytes, encode(&write, bytes, 1 + LIEN_OPS_MAX / EACH)));
    ends(s, errors);
    written_nothing(s, &c);
}

Test(sim, field_report_09_lists_from_the_wire, .timeout = 500)
{
    static struct scene s;
    scene_open(&s);
    lists_of_65(&s);
    lists_of_calls(&s);
    lists_of_writes(&s);
    list_in_many_frames(&s);
    scene_close(&s);
}
