// SPDX-License-Identifier: Apache-2.0
//
// A peer that breaks the rules of docs/wire.md on a live connection: each frame cut at each byte, each field wrong, credits that are not there. Each costs that one connection, with
// LIEN_EPROTO, and nothing else: a connection of Lien's own to the same ctx exchanges a message after each, and another hostile peer, while it behaves, stays open.

#include "tests/hostile/hostile.h"

enum {
    AT_SLOT = 16,
    AT_GEN = 20,
    AT_TOTAL = 24,
    AT_BUFFERS = 32,
    AT_KEYS = 40
};

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
    samples[MSG] = make_sample("MSG", &msg, AT_KEYS, 1, NULL);
    samples[MSG_BODY] = make_sample("MSG with a body", &body, AT_KEYS + 2 * LIENI_KEY_SIZE, 1,
                                    NULL);
    samples[RELEASE] = make_sample("RELEASE", &list, AT_SLOT + 8, 8, NULL);
    list.kind = LIENI_FRAME_REVOKE;
    samples[REVOKE] = make_sample("REVOKE", &list, AT_SLOT + 8, 8, NULL);
    samples[CREDIT] = make_sample("CREDIT", &(struct lieni_frame){.kind = LIENI_FRAME_CREDIT}, 0, 0,
                                  NULL);
    samples[BEAT] = make_sample("BEAT", &(struct lieni_frame){.kind = LIENI_FRAME_BEAT}, 0, 0,
                                NULL);
    samples[BYE] = make_sample("BYE", &(struct lieni_frame){.kind = LIENI_FRAME_BYE}, 0, 0, NULL);
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
        hostile_what = s.name;
        breaks(s.bytes, s.len, NULL);
    }
}

// -- What takes more than one frame --

static void overspent(enum lieni_frame_kind kind)
{
    struct rawpeer peer;
    lien_conn *conn;
    const struct lieni_frame frame = {.kind = kind};
    hostile_what = kind == LIENI_FRAME_MSG ? "messages without credit"
                                           : "control frames without credit";
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
    hostile_what = "a release, twice";
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
    hostile_what = "a revoke of what was never seen";
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
    hostile_what = "a body that cannot be read";
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
    hostile_what = "frames after BYE";
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
    hostile_what = "a frame above frame_max";
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

int main(void)
{
    set_up(NULL);
    make_samples();
    for (int i = 0; i < SAMPLES; i++) {
        cuts(&samples[i], true);
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
