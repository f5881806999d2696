// SPDX-License-Identifier: Apache-2.0
//
// What a peer can make the victim hold, by frames alone: it is measured, and it has a bound [R22]. docs/security.md, "What a peer can make a process hold", has the bounds.

#include "tests/hostile/hostile.h"

#include <malloc.h>

#define KIB      ((size_t)1024)
#define PEERS    8u
#define SOME     15u // names in a frame; each may be answered by a frame, of the 32 that have a credit
#define GRANTS   4096u                    // option grants_conn, unless set
#define MOST     1048576u                 // what an offer may say
#define WRITES   (RAW_CALLS + 256u)       // docs/wire.md, WRITE: without an answer
#define SLOTS_AT ((GRANTS + 63) / 64 * 8) // of pages of names
#define NAMES_AT (GRANTS * (size_t)20)    // of names, all of them

static size_t heap(void)
{
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static size_t grown(size_t from)
{
    const size_t now = heap();
    return now > from ? now - from : 0;
}

static void connect_with(const struct lieni_offer *offer, struct rawpeer *peer, lien_conn **conn)
{
    rawpeer_connect(&world, peer, address, offer);
    CHECK(lien_listener_accept_wait(listener, 5000, conn) == 0);
    CHECK(is_open(*conn));
}

// A frame of that kind came; others before it are passed over.
static const uint8_t *frame_of(struct rawpeer *peer, enum lieni_frame_kind kind, size_t *len)
{
    const uint8_t *bytes;
    do
        CHECK(rawpeer_next(peer, 20000, &bytes, len));
    while (bytes[0] != kind);
    return bytes;
}

static void revoke(struct rawpeer *peer, uint32_t from, uint32_t n, uint16_t control_credits)
{
    struct lieni_frame frame = {
        .kind = LIENI_FRAME_REVOKE, .n_names = n, .control_credits = control_credits};
    for (uint32_t i = 0; i < n; i++)
        frame.names[i] = (struct lieni_name){.slot = from + i, .gen = 1};
    CHECK(rawpeer_frame(peer, &frame));
}

// -- Names of grants --

// It says that it may have a million grants, and revokes the last of them: the victim remembers as many as it said itself.
static void beyond_our_own(const struct lieni_offer *offer)
{
    static const uint32_t slots[] = {MOST - 1, GRANTS};
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        struct rawpeer peer;
        lien_conn *conn;
        hostile_what = "a revoke beyond what this side allows";
        connect_with(offer, &peer, &conn);
        hostile_heard_nothing();
        revoke(&peer, slots[i], 1, 0);
        CHECK(status_of_end(conn, &peer) == LIEN_EPROTO);
        CHECK(hostile_heard("grants_max"));
        end(&peer, &conn);
    }
}

// Of the last slot that there may be: honest, for its token may still be on its way; one name costs a page, wherever it is.
static void far_away(const struct lieni_offer *offer)
{
    static struct rawpeer peers[PEERS];
    lien_conn *conns[PEERS];
    const uint8_t *bytes;
    size_t len;
    hostile_what = "a revoke of the last slot";
    for (unsigned i = 0; i < PEERS; i++) {
        connect_with(offer, &peers[i], &conns[i]);
        revoke(&peers[i], 0, 1, 0); // what the first frames take is not measured
        frame_of(&peers[i], LIENI_FRAME_RELEASE, &len);
    }
    const size_t before = heap();
    for (unsigned i = 0; i < PEERS; i++) {
        revoke(&peers[i], GRANTS - 1, 1, 1);
        bytes = frame_of(&peers[i], LIENI_FRAME_RELEASE, &len);
        CHECK(len == 24 && lieni_get32(bytes + 16) == GRANTS - 1);
    }
    const size_t took = grown(before);
    printf("a revoke of the last slot by each of %u peers: %zu bytes\n", PEERS, took);
    CHECK(took <= PEERS * 4 * KIB);
    for (unsigned i = 0; i < PEERS; i++)
        end(&peers[i], &conns[i]);
}

// All that there may be: as much as the option says, each by a name that was sent.
static void all_of_them(const struct lieni_offer *offer)
{
    struct rawpeer peer;
    lien_conn *conn;
    size_t len;
    hostile_what = "a revoke of each slot";
    connect_with(offer, &peer, &conn);
    revoke(&peer, 0, 1, 0);
    frame_of(&peer, LIENI_FRAME_RELEASE, &len);
    rawpeer_again(&peer);
    const size_t before = heap();
    uint16_t owed = 1; // frames whose credit was not given back
    for (uint32_t slot = 1; slot + SOME <= GRANTS; slot += SOME) {
        revoke(&peer, slot, SOME, owed);
        owed = 0;
        for (uint32_t released = 0; released < SOME; owed++) {
            const uint8_t *bytes;
            CHECK(rawpeer_next(&peer, 20000, &bytes, &len));
            released += bytes[0] == LIENI_FRAME_RELEASE ? (uint32_t)(len - 16) / 8 : 0;
            rawpeer_again(&peer);
        }
    }
    const size_t took = grown(before);
    printf("a revoke of each of %u slots: %zu bytes\n", GRANTS, took);
    CHECK(took <= NAMES_AT + SLOTS_AT + 64 * KIB && is_open(conn));
    end(&peer, &conn);
}

static void names(void)
{
    struct lieni_offer offer = rawpeer_offer();
    offer.grants_max = MOST;
    beyond_our_own(&offer);
    far_away(&offer);
    all_of_them(&offer);
}

// -- Answers to WRITEs --

static struct lieni_frame write_frame(uint32_t n, uint8_t *op)
{
    lieni_op_store(op, &(lien_op){.len = 1});
    return (struct lieni_frame){.kind = LIENI_FRAME_WRITE,
                                .call = lieni_call_id(1, 3, 1), // there is none
                                .write = n,
                                .first = true,
                                .last = true,
                                .name = {.slot = n, .gen = 1},
                                .total = 10,
                                .n_keys = 1,
                                .keys = {{.key = 1, .len = 10}},
                                .n_ops = 1,
                                .ops = op};
}

static void call(struct rawpeer *peer, uint32_t gen, const char *method, uint64_t space_len)
{
    const struct lieni_frame frame = {.kind = LIENI_FRAME_CALL,
                                      .call = lieni_call_id(gen, 0, 0),
                                      .deadline_ms = 100000,
                                      .space_len = space_len,
                                      .method = method,
                                      .method_len = (uint32_t)strlen(method)};
    CHECK(rawpeer_frame(peer, &frame));
}

// Calls a method that there is not. The REPLY takes no control credit, and gives back those of the peer, which it returns.
static uint32_t credits_by_reply(struct rawpeer *peer, uint32_t gen)
{
    uint32_t credits = 0;
    uint8_t kind;
    call(peer, gen, "h/none", 0);
    do {
        const uint8_t *bytes;
        size_t len;
        CHECK(rawpeer_next(peer, 20000, &bytes, &len));
        kind = bytes[0];
        CHECK(kind != LIENI_FRAME_WRITTEN); // the only credit went into the release before
        credits += lieni_get16(bytes + AT_CONTROL_CREDITS);
    } while (kind != LIENI_FRAME_REPLY);
    rawpeer_again(peer);
    return credits;
}

// It sends WRITEs and gives back no credit for their answers, which so have to wait: as many as there may be, and then one more.
static void writes_unanswered(void)
{
    struct lieni_offer offer = rawpeer_offer();
    struct rawpeer peer;
    lien_conn *conn;
    uint8_t op[LIENI_OP_SIZE];
    uint32_t left = CREDITS, calls = 0;
    size_t before = 0;
    hostile_what = "WRITEs whose answers nobody takes";
    offer.grants_max = GRANTS;
    offer.control_credits = 2; // for one frame, and a CREDIT
    connect_with(&offer, &peer, &conn);
    hostile_heard_nothing();
    for (uint32_t sent = 0; sent < WRITES; sent++, left--) {
        if (left == 0)
            left = credits_by_reply(&peer, ++calls);
        CHECK(left > 0);
        if (sent == WRITES / 2)
            before = heap();
        const struct lieni_frame frame = write_frame(sent, op);
        CHECK(rawpeer_frame(&peer, &frame));
    }
    CHECK(credits_by_reply(&peer, ++calls) > 0 && is_open(conn)); // so many are right
    const size_t took = grown(before);
    printf("the second half of %u WRITEs without an answer: %zu bytes\n", WRITES, took);
    CHECK(took <= WRITES / 2 * 256 + 64 * KIB);
    const struct lieni_frame frame = write_frame(WRITES, op);
    rawpeer_frame(&peer, &frame);
    CHECK(status_of_end(conn, &peer) == LIEN_EPROTO);
    CHECK(hostile_heard("more WRITEs without an answer"));
    end(&peer, &conn);
}

// -- WRITEs of our own --

static lien_buf *source;
static _Atomic int started; // writes; below 0: an error

static void write_many(lien_request *request, lien_conn *conn, void *arg)
{
    lien_request **keep = arg;
    lien_transfer_opts opts;
    int n = 0, rc = 0;
    (void)conn;
    lien_transfer_opts_init(&opts);
    while (rc == 0 && n < (int)WRITES + 20)
        rc = lien_request_write(request, &source, 1, &opts), n += rc == 0;
    *keep = request;
    started = rc == 0 ? n : rc;
}

static lien_request *kept;
static const lien_method methods[] = {{.name = "h/many", .handle = write_many, .arg = &kept}};
static const lien_service service = {.methods = methods, .n_methods = 1};

// Takes `want` WRITEs, and those that come soon after; gives back their credits.
static unsigned take_writes(struct rawpeer *peer, unsigned want)
{
    const uint8_t *bytes;
    size_t len;
    unsigned writes = 0;
    struct lieni_frame credit = {.kind = LIENI_FRAME_CREDIT};
    while (rawpeer_next(peer, writes < want ? 20000 : 200, &bytes, &len)) {
        writes += bytes[0] == LIENI_FRAME_WRITE;
        credit.control_credits++;
        rawpeer_again(peer);
        if (credit.control_credits < 8 && writes != want)
            continue;
        CHECK(rawpeer_frame(peer, &credit));
        credit.control_credits = 0;
    }
    return writes;
}

// It answers nothing: what it may have been sent without an answer is all that it gets, and an answer makes room for one.
static void writes_held_back(void)
{
    struct rawpeer peer;
    lien_conn *conn;
    struct lieni_offer offer = rawpeer_offer();
    hostile_what = "a caller that answers no WRITE";
    offer.grants_max = GRANTS;
    CHECK(lien_pool_alloc(pool, 1, &source) == 0);
    connect_with(&offer, &peer, &conn);
    call(&peer, 1, "h/many", 1);
    for (int i = 0; i < 20000 && started == 0; i++)
        rawpeer_pump(&world, 1);
    CHECK(started == (int)WRITES + 20);
    CHECK(take_writes(&peer, WRITES) == WRITES);
    const struct lieni_frame written = {
        .kind = LIENI_FRAME_WRITTEN, .call = lieni_call_id(1, 0, 0), .write = 0};
    CHECK(rawpeer_frame(&peer, &written));
    CHECK(take_writes(&peer, 1) == 1 && is_open(conn));
    lien_request_drop(&kept);
    end(&peer, &conn);
    lien_buf_free(&source);
    for (int i = 0; i < 20000 && stats().grants_live > 0; i++)
        rawpeer_pump(&world, 1);
}

int main(void)
{
    set_up(&service);
    names();
    writes_unanswered();
    writes_held_back();
    pull_down();
    printf("%u hostile connections, each cost itself alone\n", attacks);
    return 0;
}
