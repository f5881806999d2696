// SPDX-License-Identifier: Apache-2.0
//
// A peer that breaks the rules of docs/wire.md on a live connection: each frame cut at each byte, each field wrong, credits that are not there. Each costs that one connection, with
// LIEN_EPROTO, and nothing else: a connection of Lien's own to the same ctx exchanges a message after each, and another hostile peer, while it behaves, stays open.

#include "tests/hostile/rawpeer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/bytes.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, what, #condition);      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum {
    CREDITS = 8
};

// docs/wire.md, "Frames".
enum {
    AT_FLAGS = 1,
    AT_LEN = 2,
    AT_MESSAGE_CREDITS = 4,
    AT_CONTROL_CREDITS = 6,
    AT_NUMBER = 8,
    AT_ZERO = 12,
    AT_SLOT = 16,
    AT_GEN = 20,
    AT_TOTAL = 24,
    AT_BUFFERS = 32,
    AT_KEYS = 40
};

static const char *what = "set-up"; // is being tried
static lien_ctx *victim, *friendly;
static lien_pool *pool;
static lien_listener *listener;
static char address[96];
static lien_conn *to_friend, *from_friend;
static struct rawworld world;
static struct rawpeer quiet; // keeps the rules
static lien_conn *quiet_conn;
static unsigned attacks;

static void log_line(const lien_log_line *line, void *arg)
{
    (void)arg;
    if (getenv("HOSTILE_VERBOSE"))
        fprintf(stderr, "%s: %s\n", lien_errname(line->code), line->text);
}

static lien_ctx *open_ctx(void)
{
    static const char *const settings[] = {"heartbeat_ms=0", "message_credits=8",
                                           "control_credits=8", "frame_max=4096", NULL};
    lien_ctx_opts opts;
    lien_ctx *ctx;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    opts.log = log_line;
    CHECK(lien_ctx_open(&opts, &ctx) == 0);
    return ctx;
}

static lien_ctx_stats stats(void)
{
    lien_ctx_stats s = {.size = sizeof s};
    CHECK(lien_ctx_stats_get(victim, &s) == 0);
    return s;
}

static bool is_open(lien_conn *conn)
{
    lien_conn_info info = {.size = sizeof info};
    CHECK(lien_conn_info_get(conn, &info) == 0);
    return info.open;
}

// The friend's message gets through, both ways.
static void others_go_on(void)
{
    lien_conn *const ends[][2] = {{from_friend, to_friend}, {to_friend, from_friend}};
    for (int i = 0; i < 2; i++) {
        lien_msg *msg;
        const void *head;
        size_t len;
        CHECK(lien_send(ends[i][0], &attacks, sizeof attacks, NULL, 0, NULL) == 0);
        CHECK(lien_msg_recv_wait(ends[i][1], 5000, &msg) == 0);
        CHECK(lien_msg_head(msg, &head, &len) == 0 && len == sizeof attacks);
        CHECK(memcmp(head, &attacks, len) == 0);
        lien_msg_free(&msg);
    }
    CHECK(is_open(quiet_conn) && !quiet.down);
}

static void begin(struct rawpeer *peer, lien_conn **conn)
{
    rawpeer_connect(&world, peer, address, NULL);
    CHECK(lien_listener_accept_wait(listener, 5000, conn) == 0);
    CHECK(is_open(*conn));
}

static void end(struct rawpeer *peer, lien_conn **conn)
{
    attacks++;
    others_go_on();
    CHECK(lien_conn_close(conn) == 0);
    rawpeer_close(peer);
}

// The connection ends, with this status; messages that came before are thrown away.
static int status_of_end(lien_conn *conn, struct rawpeer *peer)
{
    lien_msg *msg;
    int rc = LIEN_ETIMEDOUT;
    for (int i = 0; i < 5000 && (rc == 0 || rc == LIEN_ETIMEDOUT); i++) {
        rawpeer_pump(peer->world, 0);
        rc = lien_msg_recv_wait(conn, 1, &msg);
        if (rc == 0)
            lien_msg_free(&msg);
    }
    return rc;
}

// A new connection, these bytes: a protocol error.
static void breaks(const uint8_t *bytes, size_t len)
{
    struct rawpeer peer;
    lien_conn *conn;
    uint64_t errors = stats().protocol_errors;
    begin(&peer, &conn);
    rawpeer_bytes(&peer, bytes, len);
    int status = status_of_end(conn, &peer);
    if (status != LIEN_EPROTO)
        fprintf(stderr, "%zu bytes of kind %d: %s\n", len, len > 0 ? bytes[0] : -1,
                lien_errname(status));
    CHECK(status == LIEN_EPROTO);
    CHECK(stats().protocol_errors == errors + 1);
    end(&peer, &conn);
}

// -- Samples --

struct sample {
    const char *name;
    uint8_t bytes[256];
    size_t len;
    size_t whole_from,
        whole_step; // cut there and given the length of the rest it is a frame again; 0: never
};

static struct sample make(const char *name, const struct lieni_frame *frame, size_t from,
                          size_t step)
{
    struct sample s = {.name = name, .whole_from = from, .whole_step = step};
    _Atomic uint64_t copied = 0;
    CHECK(lieni_frame_encode(frame, s.bytes, sizeof s.bytes, &copied, &s.len) == 0);
    lieni_frame_stamp(s.bytes, 0, 0, 1);
    return s;
}

#define SAMPLES 7
static struct sample samples[SAMPLES];
enum {
    MSG,
    MSG_BODY,
    RELEASE,
    REVOKE,
    CREDIT,
    BEAT,
    BYE
};

static void make_samples(void)
{
    static const uint8_t head[] = "head";
    const struct lieni_frame msg = {.kind = LIENI_FRAME_MSG, .head = head, .head_len = sizeof head};
    struct lieni_frame body = msg;
    body.name = (struct lieni_name){.slot = 0, .gen = 1};
    body.total = 300;
    body.n_keys = 2;
    body.keys[0] = (struct lieni_key){.addr = 4096, .key = 1, .len = 100};
    body.keys[1] = (struct lieni_key){.addr = 8192, .key = 2, .len = 200};
    const struct lieni_name names[] = {{.slot = 0, .gen = 1}, {.slot = 1, .gen = 1}};
    struct lieni_frame list = {.kind = LIENI_FRAME_RELEASE, .n_names = 2};
    memcpy(list.names, names, sizeof names);
    samples[MSG] = make("MSG", &msg, AT_KEYS, 1);
    samples[MSG_BODY] = make("MSG with a body", &body, AT_KEYS + 2 * LIENI_KEY_SIZE, 1);
    samples[RELEASE] = make("RELEASE", &list, AT_SLOT + 8, 8);
    list.kind = LIENI_FRAME_REVOKE;
    samples[REVOKE] = make("REVOKE", &list, AT_SLOT + 8, 8);
    samples[CREDIT] = make("CREDIT", &(struct lieni_frame){.kind = LIENI_FRAME_CREDIT}, 0, 0);
    samples[BEAT] = make("BEAT", &(struct lieni_frame){.kind = LIENI_FRAME_BEAT}, 0, 0);
    samples[BYE] = make("BYE", &(struct lieni_frame){.kind = LIENI_FRAME_BYE}, 0, 0);
}

static bool whole(const struct sample *s, size_t len)
{
    return s->whole_step > 0 && len >= s->whole_from && (len - s->whole_from) % s->whole_step == 0;
}

// -- Cut, and lengths that lie --

static void cuts(const struct sample *s)
{
    what = s->name;
    for (size_t len = 0; len < s->len; len++) {
        breaks(s->bytes, len);
        uint8_t patched[sizeof s->bytes];
        memcpy(patched, s->bytes, s->len);
        lieni_put16(patched + AT_LEN, (uint16_t)len);
        if (len > AT_LEN + 1 && !whole(s, len))
            breaks(patched, len);
    }
    uint8_t longer[sizeof s->bytes + 8] = {0};
    memcpy(longer, s->bytes, s->len);
    breaks(longer, s->len + 1);
    breaks(longer, s->len + 8);
    lieni_put16(longer + AT_LEN, (uint16_t)(s->len + 1));
    if (!whole(s, s->len + 1))
        breaks(longer, s->len + 1);
}

static void lengths(const struct sample *s)
{
    const uint16_t lies[] = {0,
                             1,
                             15,
                             16,
                             (uint16_t)(s->len - 1),
                             (uint16_t)(s->len + 1),
                             (uint16_t)(2 * s->len),
                             RAW_FRAME_MAX,
                             0x7fff,
                             0xffff};
    what = s->name;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        uint8_t bytes[sizeof s->bytes];
        memcpy(bytes, s->bytes, s->len);
        lieni_put16(bytes + AT_LEN, lies[i]);
        if (lies[i] != s->len)
            breaks(bytes, s->len);
    }
}

// -- Fields --

struct wrong {
    int sample;
    size_t at, size;
    uint64_t value;
};

static const struct wrong wrongs[] = {
    // Unknown kinds, flags, bytes that are zero.
    {BEAT, 0, 1, 0},
    {BEAT, 0, 1, 7},
    {BEAT, 0, 1, 8},
    {BEAT, 0, 1, 127},
    {BEAT, 0, 1, 128},
    {BEAT, 0, 1, 255},
    {BEAT, AT_FLAGS, 1, 1},
    {BEAT, AT_FLAGS, 1, 0x80},
    {MSG, AT_FLAGS, 1, 0xff},
    {BEAT, AT_ZERO, 1, 1},
    {BEAT, AT_ZERO + 3, 1, 0x80},
    {MSG_BODY, AT_BUFFERS + 1, 1, 1},
    {MSG_BODY, AT_BUFFERS + 7, 1, 1},
    // Numbers out of order.
    {BEAT, AT_NUMBER, 4, 0},
    {BEAT, AT_NUMBER, 4, 2},
    {BEAT, AT_NUMBER, 4, UINT32_MAX},
    {MSG, AT_NUMBER, 4, 2},
    // Credits given back that were never spent.
    {CREDIT, AT_MESSAGE_CREDITS, 2, 1},
    {CREDIT, AT_CONTROL_CREDITS, 2, 1},
    {CREDIT, AT_MESSAGE_CREDITS, 2, 0xffff},
    {CREDIT, AT_CONTROL_CREDITS, 2, 0xffff},
    {MSG, AT_MESSAGE_CREDITS, 2, 1},
    // Counts and lengths inside of a message.
    {MSG_BODY, AT_BUFFERS, 1, 0},
    {MSG_BODY, AT_BUFFERS, 1, 1},
    {MSG_BODY, AT_BUFFERS, 1, 3},
    {MSG_BODY, AT_BUFFERS, 1, 64},
    {MSG_BODY, AT_BUFFERS, 1, 65},
    {MSG_BODY, AT_BUFFERS, 1, 255},
    {MSG, AT_BUFFERS, 1, 1},
    {MSG, AT_GEN, 4, 1},
    {MSG, AT_TOTAL, 8, 1},
    {MSG_BODY, AT_TOTAL, 8, 0},
    {MSG_BODY, AT_TOTAL, 8, 299},
    {MSG_BODY, AT_TOTAL, 8, 301},
    {MSG_BODY, AT_TOTAL, 8, UINT64_MAX},
    {MSG_BODY, AT_KEYS + 16, 8, 0},
    {MSG_BODY, AT_KEYS + 16, 8, 101},
    {MSG_BODY, AT_KEYS + 16, 8, UINT64_MAX},
    {MSG_BODY, AT_KEYS + 16, 8, (uint64_t)1 << 63},
    {MSG_BODY, AT_KEYS, 8, UINT64_MAX},
    // Names: of no generation, beyond the table, never granted, of a generation that cannot be there yet.
    {MSG_BODY, AT_GEN, 4, 0},
    {MSG_BODY, AT_GEN, 4, 2},
    {MSG_BODY, AT_SLOT, 4, 64},
    {MSG_BODY, AT_SLOT, 4, UINT32_MAX},
    {RELEASE, AT_GEN, 4, 0},
    {RELEASE, AT_GEN, 4, 1},
    {RELEASE, AT_SLOT, 4, 5},
    {RELEASE, AT_SLOT, 4, UINT32_MAX},
    {REVOKE, AT_GEN, 4, 0},
    {REVOKE, AT_GEN, 4, 9},
    {REVOKE, AT_SLOT, 4, 64},
    {REVOKE, AT_SLOT, 4, UINT32_MAX},
};

static void fields(void)
{
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        const struct wrong *w = &wrongs[i];
        struct sample s = samples[w->sample];
        for (size_t b = 0; b < w->size; b++)
            s.bytes[w->at + b] = (uint8_t)(w->value >> (8 * b));
        what = s.name;
        breaks(s.bytes, s.len);
    }
}

// -- What takes more than one frame --

static void overspent(enum lieni_frame_kind kind)
{
    struct rawpeer peer;
    lien_conn *conn;
    const struct lieni_frame frame = {.kind = kind};
    what = kind == LIENI_FRAME_MSG ? "messages without credit" : "control frames without credit";
    // We give back nothing, so the victim's own CREDIT frames, which give us new ones, end as well.
    struct lieni_offer offer = rawpeer_offer();
    offer.control_credits = 2;
    rawpeer_connect(&world, &peer, address, &offer);
    CHECK(lien_listener_accept_wait(listener, 5000, &conn) == 0);
    unsigned sent = 0;
    while (sent < 8 * CREDITS && rawpeer_frame(&peer, &frame))
        sent++;
    CHECK(sent > CREDITS);
    CHECK(status_of_end(conn, &peer) == LIEN_EPROTO);
    end(&peer, &conn);
}

// The victim grants one buffer; the peer releases it, and once more.
static void released_twice(void)
{
    struct rawpeer peer;
    lien_conn *conn;
    lien_buf *buf;
    lien_grant *grant;
    lien_token token;
    struct lieni_frame frame = {.kind = LIENI_FRAME_RELEASE, .n_names = 1};
    what = "a release, twice";
    begin(&peer, &conn);
    CHECK(lien_pool_alloc(pool, 100, &buf) == 0);
    CHECK(lien_grant_open(conn, &buf, 1, NULL, &token, &grant) == 0);
    frame.names[0] = (struct lieni_name){.slot = lieni_get32(token.bytes + 16),
                                         .gen = lieni_get32(token.bytes + 20)};
    CHECK(rawpeer_frame(&peer, &frame));
    CHECK(lien_grant_wait(grant, 5000) == 0 && is_open(conn));
    rawpeer_frame(&peer, &frame);
    CHECK(status_of_end(conn, &peer) == LIEN_EPROTO);
    CHECK(lien_grant_close(&grant) == 0);
    lien_buf_free(&buf);
    end(&peer, &conn);
}

// A grant whose token never came is released when its owner asks.
static void revoked_unseen(void)
{
    struct rawpeer peer;
    lien_conn *conn;
    const uint8_t *bytes;
    size_t len;
    struct lieni_frame frame = {.kind = LIENI_FRAME_REVOKE, .n_names = 1};
    what = "a revoke of what was never seen";
    begin(&peer, &conn);
    frame.names[0] = (struct lieni_name){.slot = 5, .gen = 1};
    CHECK(rawpeer_frame(&peer, &frame));
    CHECK(rawpeer_next(&peer, 5000, &bytes, &len));
    CHECK(len == 24 && bytes[0] == LIENI_FRAME_RELEASE && lieni_get32(bytes + 16) == 5);
    CHECK(rawpeer_frame(&peer, &frame)); // again: our release may have crossed it
    CHECK(rawpeer_frame(&peer, &(struct lieni_frame){.kind = LIENI_FRAME_BEAT}));
    rawpeer_pump(&world, 50);
    CHECK(is_open(conn));
    end(&peer, &conn);
}

// A body's key that the peer does not serve: the READ fails, the connection ends, the memory for the body comes back.
static void body_that_cannot_be_read(void)
{
    struct rawpeer peer;
    lien_conn *conn;
    uint64_t out = stats().pool_bytes;
    what = "a body that cannot be read";
    begin(&peer, &conn);
    rawpeer_bytes(&peer, samples[MSG_BODY].bytes, samples[MSG_BODY].len);
    int status = status_of_end(conn, &peer);
    CHECK(lien_errscope(status) == LIEN_SCOPE_CONN && status != LIEN_EQUARANTINED);
    end(&peer, &conn);
    for (int i = 0; i < 2000 && stats().pool_bytes > out; i++)
        rawpeer_pump(&world, 1);
    CHECK(stats().pool_bytes <= out && stats().quarantined_bytes == 0);
}

static void after_bye(void)
{
    struct rawpeer peer;
    lien_conn *conn;
    uint64_t errors = stats().protocol_errors;
    what = "frames after BYE";
    begin(&peer, &conn);
    CHECK(rawpeer_bytes(&peer, samples[BYE].bytes, samples[BYE].len));
    peer.number = 1;
    rawpeer_frame(&peer, &(struct lieni_frame){.kind = LIENI_FRAME_BEAT});
    rawpeer_frame(&peer, &(struct lieni_frame){.kind = LIENI_FRAME_MSG});
    CHECK(status_of_end(conn, &peer) == LIEN_ECLOSED);
    CHECK(stats().protocol_errors == errors);
    end(&peer, &conn);
}

// Above the victim's receives: the provider's refusal, not core's.
static void oversized(void)
{
    static uint8_t bytes[RAW_SEND_MAX];
    static const size_t sizes[] = {RAW_FRAME_MAX + 1, 65536, RAW_SEND_MAX};
    what = "a frame above frame_max";
    for (size_t i = 0; i < 3; i++) {
        struct rawpeer peer;
        lien_conn *conn;
        begin(&peer, &conn);
        memcpy(bytes, samples[MSG].bytes, samples[MSG].len);
        rawpeer_bytes(&peer, bytes, sizes[i]);
        CHECK(lien_errscope(status_of_end(conn, &peer)) == LIEN_SCOPE_CONN);
        end(&peer, &conn);
    }
}

// -- Set-up --

static void set_up(void)
{
    rawworld_open(&world);
    victim = open_ctx();
    friendly = open_ctx();
    CHECK(lien_pool_open(victim, NULL, &pool) == 0);
    CHECK(lien_listener_open(victim, "127.0.0.1:0", NULL, &listener) == 0);
    CHECK(lien_listener_address(listener, address, sizeof address) == 0);
    CHECK(lien_conn_open_wait(friendly, address, NULL, &from_friend) == 0);
    CHECK(lien_listener_accept_wait(listener, 5000, &to_friend) == 0);
    begin(&quiet, &quiet_conn);
    make_samples();
}

static void pull_down(void)
{
    what = "the end";
    lien_ctx_stats s = stats();
    CHECK(s.quarantined_total == 0 && s.grants_live == 0);
    CHECK(lien_conn_close(&quiet_conn) == 0);
    rawpeer_wait_down(&quiet, 5000);
    rawpeer_close(&quiet);
    CHECK(lien_ctx_close(&friendly) == 0);
    CHECK(lien_ctx_close(&victim) == 0);
    rawworld_close(&world);
}

int main(void)
{
    set_up();
    for (int i = 0; i < SAMPLES; i++) {
        cuts(&samples[i]);
        lengths(&samples[i]);
    }
    fields();
    overspent(LIENI_FRAME_MSG);
    overspent(LIENI_FRAME_BEAT);
    released_twice();
    revoked_unseen();
    body_that_cannot_be_read();
    after_bye();
    oversized();
    pull_down();
    printf("%u hostile connections, each cost itself alone\n", attacks);
    return 0;
}
