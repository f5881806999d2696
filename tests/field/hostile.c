// SPDX-License-Identifier: Apache-2.0
//
// Lengths and lists from the wire, by a peer that keeps no rules (tests/hostile/rawpeer.h): each costs that one connection, and nothing else. Reports 8, 9.

#include "core/bytes.h"
#include "tests/field/field.h"
#include "tests/hostile/rawpeer.h"

static struct rawworld world;
static struct fault_side victim;
static lien_listener *listener;
static char address[96];
static struct fault_side friendly;
static lien_conn *friend_conn; // of the friend's
static lien_conn *friend_here;

static void echo(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    (void)conn;
    (void)arg;
    CHECK_EQ(lien_request_args(request, &data, &len), 0);
    CHECK_EQ(lien_request_reply(&request, 0, data, len), 0);
}

static const lien_method methods[] = {{.name = "echo", .handle = echo}};
static const lien_service service = {.methods = methods, .n_methods = 1};

static void set_up(void)
{
    static const char *const settings[] = {"heartbeat_ms=0", "frame_max=4096", NULL};
    lien_conn_opts conn;
    lien_listener_opts opts;
    rawworld_open(&world);
    fault_side_open(&victim, settings, 0);
    fault_side_open(&friendly, settings, 0);
    lien_conn_opts_init(&conn);
    conn.service = &service;
    lien_listener_opts_init(&opts);
    opts.conn = &conn;
    CHECK_EQ(lien_listener_open(victim.ctx, "127.0.0.1:0", &opts, &listener), 0);
    CHECK_EQ(lien_listener_address(listener, address, sizeof address), 0);
    CHECK_EQ(lien_conn_open_wait(friendly.ctx, address, NULL, &friend_conn), 0);
    CHECK_EQ(lien_listener_accept_wait(listener, 30000, &friend_here), 0);
}

static void pull_down(void)
{
    CHECK_EQ(lien_conn_close_wait(&friend_conn, 30000), 0);
    CHECK_EQ(lien_conn_close_wait(&friend_here, 30000), 0);
    lien_listener_close(&listener);
    fault_side_close(&friendly);
    fault_side_close(&victim);
    rawworld_close(&world);
}

// Others go on: a call of the friend's is answered.
static void check_friend(void)
{
    lien_msg *reply = NULL;
    const void *data;
    size_t len;
    CHECK_EQ(lien_call_wait(friend_conn, "echo", "still", 5, NULL, &reply), 0);
    CHECK_EQ(lien_msg_head(reply, &data, &len), 0);
    CHECK(len == 5 && memcmp(data, "still", 5) == 0);
    lien_msg_free(&reply);
}

static void begin(struct rawpeer *peer, lien_conn **conn)
{
    struct lieni_offer offer = rawpeer_offer();
    offer.call_credits = 8;
    rawpeer_connect(&world, peer, address, &offer);
    CHECK_EQ(lien_listener_accept_wait(listener, 30000, conn), 0);
}

// The connection ends with a protocol error, once, and only that.
static void ends(struct rawpeer *peer, lien_conn **conn, uint64_t errors)
{
    lien_msg *msg = NULL;
    lien_ctx_stats stats;
    int rc = LIEN_ETIMEDOUT;
    for (unsigned i = 0; i < 30000 && (rc == 0 || rc == LIEN_ETIMEDOUT); i++) {
        rawpeer_pump(&world, 0);
        rc = lien_msg_recv_wait(*conn, 1, &msg);
        lien_msg_free(&msg);
    }
    CHECK_EQ(rc, LIEN_EPROTO);
    fault_stats(&victim, &stats);
    CHECK_EQ(stats.protocol_errors, errors + 1);
    check_friend();
    CHECK_EQ(lien_conn_close(conn), 0);
    rawpeer_close(peer);
}

static uint64_t errors_now(void)
{
    lien_ctx_stats stats;
    fault_stats(&victim, &stats);
    return stats.protocol_errors;
}

static size_t encode(const struct lieni_frame *frame, uint8_t *bytes, size_t size)
{
    _Atomic uint64_t copied = 0;
    size_t len;
    CHECK_EQ(lieni_frame_encode(frame, bytes, size, &copied, &len), 0);
    lieni_frame_stamp(bytes, 0, 0, 1);
    return len;
}

static void breaks(const uint8_t *bytes, size_t len)
{
    struct rawpeer peer;
    lien_conn *conn = NULL;
    uint64_t errors = errors_now();
    begin(&peer, &conn);
    rawpeer_bytes(&peer, bytes, len);
    ends(&peer, &conn, errors);
}

// -- 8: lengths --------------------------------------------------------------------------------------------------------------------

void field_report_08_lengths_from_the_wire(void)
{
    static const uint8_t head[100] = {1};
    const struct lieni_frame msg = {.kind = LIENI_FRAME_MSG, .head = head, .head_len = sizeof head};
    static const uint16_t lies[] = {0, 1, 15, 16, 115, 117, 4096, 0x7fff, 0xffff};
    uint8_t bytes[RAW_FRAME_MAX];
    set_up();
    size_t len = encode(&msg, bytes, sizeof bytes);
    CHECK_EQ(len, 140); // header 16, body 24
    breaks(bytes, 0);   // a frame of no bytes: judged once, not again and again
    breaks(bytes, 1);
    breaks(bytes, 15);
    breaks(bytes, len - 1);
    for (unsigned i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        encode(&msg, bytes, sizeof bytes);
        lieni_put16(bytes + 2, lies[i]); // docs/wire.md, "Frames"
        breaks(bytes, len);
    }
    // Many that are empty, as fast as they leave: the first ends it.
    struct rawpeer peer;
    lien_conn *conn = NULL;
    uint64_t errors = errors_now();
    begin(&peer, &conn);
    for (unsigned i = 0; i < 20 && rawpeer_bytes(&peer, bytes, 0); i++)
        continue;
    ends(&peer, &conn, errors);
    pull_down();
}

// -- 9: lists ----------------------------------------------------------------------------------------------------------------------

// docs/wire.md, "CALL" and "WRITE".
enum {
    AT_CALL_BODY_BUFS = 29,
    AT_CALL_READ_BUFS = 30,
    AT_WRITE_BUFS = 29,
    AT_WRITE_OPS = 30
};

static struct lieni_frame a_call(void)
{
    struct lieni_frame call = {.kind = LIENI_FRAME_CALL,
                               .call = 1u << 17, // of slot 0, the first of the side that connected
                               .deadline_ms = 30000,
                               .method = "echo",
                               .method_len = 4};
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
    CHECK_EQ(bytes[count], LIEN_BUFS_MAX);
    bytes[count]++;
    lieni_put16(bytes + 2, (uint16_t)(len + LIENI_KEY_SIZE));
    lieni_put64(bytes + total, lieni_get64(bytes + total) + 8);
    return len + LIENI_KEY_SIZE;
}

static void lists_of_65(void)
{
    uint8_t bytes[RAW_FRAME_MAX];
    struct lieni_frame call = a_call(), msg = {.kind = LIENI_FRAME_MSG};
    call.n_read_keys = LIEN_BUFS_MAX;
    fill_keys(call.read_keys, LIEN_BUFS_MAX, &call.read_total);
    size_t len = encode(&call, bytes, sizeof bytes);
    breaks(bytes, one_more(bytes, len, AT_CALL_READ_BUFS, 64 + 8, 80));
    call = a_call();
    call.name = (struct lieni_name){.slot = 1, .gen = 1};
    call.n_keys = LIEN_BUFS_MAX;
    fill_keys(call.keys, LIEN_BUFS_MAX, &call.total);
    len = encode(&call, bytes, sizeof bytes);
    breaks(bytes, one_more(bytes, len, AT_CALL_BODY_BUFS, 48 + 8, 80));
    msg.name = (struct lieni_name){.slot = 0, .gen = 1};
    msg.n_keys = LIEN_BUFS_MAX;
    fill_keys(msg.keys, LIEN_BUFS_MAX, &msg.total);
    len = encode(&msg, bytes, sizeof bytes);
    breaks(bytes, one_more(bytes, len, 32, 24, 40));
}

static void lists_of_calls(void)
{
    static const uint8_t counts[] = {0, 1, 3, 64, 65, 128, 255};
    uint8_t bytes[RAW_FRAME_MAX];
    struct lieni_frame call = a_call();
    for (unsigned i = 0; i < sizeof counts; i++) {
        size_t len = encode(&call, bytes, sizeof bytes);
        bytes[AT_CALL_READ_BUFS] = counts[i];
        breaks(bytes, len);
        encode(&call, bytes, sizeof bytes);
        if (counts[i] > 0) {
            bytes[AT_CALL_BODY_BUFS] = counts[i];
            breaks(bytes, len);
        }
    }
    size_t len = encode(&call, bytes, sizeof bytes);
    lieni_put64(bytes + 80 + 16, UINT64_MAX); // a key's length, whose sum wraps
    breaks(bytes, len);
}

// The victim calls; then the peer's WRITE of it has a list that lies.
static uint64_t called(struct rawpeer *peer, lien_conn *conn, lien_space *space, lien_call **call)
{
    lien_call_opts opts = field_opts();
    const uint8_t *bytes;
    size_t len;
    opts.write = space;
    CHECK_EQ(lien_call_start(conn, "any", NULL, 0, &opts, call), 0);
    while (rawpeer_next(peer, 30000, &bytes, &len))
        if (bytes[0] == LIENI_FRAME_CALL)
            return lieni_get64(bytes + 16);
    CHECK(false);
    return 0;
}

static lien_space *victims_space(void)
{
    return fault_space(&victim, 65536);
}

static void lists_of_writes(void)
{
    static const struct {
        unsigned at, size;
        uint64_t value;
    } wrong[] = {{AT_WRITE_BUFS, 1, 65},  {AT_WRITE_BUFS, 1, 255},      {AT_WRITE_BUFS, 1, 0},
                 {AT_WRITE_BUFS, 1, 2},   {AT_WRITE_OPS, 2, 0},         {AT_WRITE_OPS, 2, 3},
                 {AT_WRITE_OPS, 2, 1025}, {AT_WRITE_OPS, 2, UINT16_MAX}};
    uint8_t ops[2 * LIENI_OP_SIZE] = {0}, bytes[RAW_FRAME_MAX];
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct rawpeer peer;
        lien_conn *conn = NULL;
        lien_call *call = NULL;
        lien_space *space = victims_space();
        begin(&peer, &conn);
        uint64_t errors = errors_now();
        struct lieni_frame write = {.kind = LIENI_FRAME_WRITE,
                                    .call = called(&peer, conn, space, &call),
                                    .first = true,
                                    .last = true,
                                    .n_keys = 1,
                                    .n_ops = 2,
                                    .ops = ops,
                                    .total = 100};
        write.name = (struct lieni_name){.slot = 0, .gen = 1};
        write.keys[0] = (struct lieni_key){.addr = 4096, .key = 1, .len = 100};
        size_t len = encode(&write, bytes, sizeof bytes);
        for (unsigned b = 0; b < wrong[i].size; b++)
            bytes[wrong[i].at + b] = (uint8_t)(wrong[i].value >> (8 * b));
        rawpeer_bytes(&peer, bytes, len);
        ends(&peer, &conn, errors);
        lien_call_close(&call);
        CHECK_EQ(lien_space_wait(space, 30000), 0);
        lien_space_free(&space);
    }
}

// No frame of it is wrong, all together are: more than LIEN_OPS_MAX operations.
static void list_in_many_frames(void)
{
    enum {
        EACH = 128
    };
    static uint8_t ops[EACH * LIENI_OP_SIZE];
    struct rawpeer peer;
    lien_conn *conn = NULL;
    lien_call *call = NULL;
    lien_space *space = victims_space();
    begin(&peer, &conn);
    uint64_t errors = errors_now();
    struct lieni_frame write = {.kind = LIENI_FRAME_WRITE,
                                .call = called(&peer, conn, space, &call),
                                .first = true,
                                .n_keys = 1,
                                .n_ops = EACH,
                                .ops = ops,
                                .total = 100};
    write.name = (struct lieni_name){.slot = 0, .gen = 1};
    write.keys[0] = (struct lieni_key){.addr = 4096, .key = 1, .len = 100};
    for (unsigned i = 0; i < LIEN_OPS_MAX / EACH; i++) {
        CHECK(rawpeer_frame(&peer, &write));
        write.first = false;
        write.n_keys = 0;
        write.total = 0;
        write.name = (struct lieni_name){0};
    }
    rawpeer_pump(&world, 50);
    CHECK_EQ(errors_now(), errors); // as many as are allowed
    rawpeer_frame(&peer, &write);
    ends(&peer, &conn, errors);
    lien_call_close(&call);
    CHECK_EQ(lien_space_wait(space, 30000), 0);
    lien_space_free(&space);
}

void field_report_09_lists_from_the_wire(void)
{
    set_up();
    lists_of_65();
    lists_of_calls();
    lists_of_writes();
    list_in_many_frames();
    pull_down();
}
