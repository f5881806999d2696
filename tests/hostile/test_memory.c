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

int main(void)
{
    set_up(NULL);
    names();
    pull_down();
    printf("%u hostile connections, each cost itself alone\n", attacks);
    return 0;
}
