// SPDX-License-Identifier: Apache-2.0
//
// Offers and the bootstrap, in memory: both sides come to the same path, in pieces of any size; what is foreign, cut, too long, out of order or hostile ends the handshake with
// a text that says why; the MAC binds role, nonces, offers and session.

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/bytes.h"
#include "core/handshake.h"
#include "tests/support/wire_checks.h"

static const uint8_t preamble[LIENI_PREAMBLE] = {0xc7, 'L', 'I', 'E', 'N', '\r', '\n', 0};
static const uint8_t seed[LIENI_SESSION] = {0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 9};

// A comma-separated list of providers; `fill` fills the nonce.
static struct lieni_offer offer_of(const char *providers, uint8_t fill)
{
    struct lieni_offer offer = wire_offer(fill);
    while (*providers != 0) {
        const size_t len = strcspn(providers, ",");
        memcpy(offer.providers[offer.n_providers++], providers, len);
        providers += len + (providers[len] == ',');
    }
    return offer;
}

struct pair {
    struct lieni_handshake client, server;
};

static void start(struct pair *pair, const char *client, const char *server)
{
    const struct lieni_offer c = offer_of(client, 1), s = offer_of(server, 2);
    cr_assert_eq(lieni_hs_start(&pair->client, false, &c, NULL, NULL), 0);
    cr_assert_eq(lieni_hs_start(&pair->server, true, &s, seed, NULL), 0);
}

// Moves what `from` has queued, `piece` bytes at a time, as far as `to` takes it.
static void move(struct lieni_handshake *from, struct lieni_handshake *to, size_t piece)
{
    while (from->out_len > 0) {
        const size_t n = from->out_len < piece ? from->out_len : piece;
        const size_t used = lieni_hs_input(to, from->out, n);
        const char *fault = check_handshake(to);
        cr_assert_null(fault, "%s", fault);
        if (used == 0)
            return;
        lieni_hs_sent(from, used);
    }
}

static void feed(struct lieni_handshake *hs, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;
    for (size_t used = 1; len > 0 && used > 0; at += used, len -= used) {
        used = lieni_hs_input(hs, at, len);
        cr_assert_leq(used, len);
    }
    const char *fault = check_handshake(hs);
    cr_assert_null(fault, "%s", fault);
}

static void feed_message(struct lieni_handshake *hs, uint8_t type, const void *body, size_t len)
{
    uint8_t message[5000] = {type, 0};
    lieni_put16(message + 2, (uint16_t)len);
    memcpy(message + 4, body, len);
    feed(hs, message, 4 + len);
}

static void expect_failed(const struct lieni_handshake *hs, int status, const char *word)
{
    cr_assert_eq(hs->state, LIENI_HS_FAILED, "state %d, expected: %s", (int)hs->state, word);
    cr_assert_eq(hs->status, status, "%s: %s", lien_errname(hs->status), hs->text);
    cr_assert_not_null(strstr(hs->text, word), "\"%s\" does not say \"%s\"", hs->text, word);
}

static void expect_state(const struct lieni_handshake *hs, enum lieni_hs_state state)
{
    cr_assert_eq(hs->state, state, "state %d, %s", (int)hs->state, hs->text);
}

// -- Offers ----------------------------------------------------------------------------------------------------------------------------

Test(offer, bytes)
{
    static const uint8_t expected[] = {
        1,    0,    1,   0,                                     // versions
        5,    5,    5,   5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, // nonce
        5,    5,    5,   5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, //
        0,    0x20, 0,   0,                                     // frame_max
        32,   0,    33,  0,                                     // credits
        0,    0,    0,   0, 1, 0, 0, 0,                         // message_max
        0,    0x10, 0,   0,                                     // grants_max
        16,   0,    0,   0,                                     // read_depth
        0x88, 0x13, 0,   0,                                     // dead_ms
        1,    0,    0,   0, 0, 0, 0, 0,                         // providers
        't',  'c',  'p',
    };
    const struct lieni_offer offer = offer_of("tcp", 5);
    uint8_t bytes[LIENI_OFFER_MAX];
    size_t len = 0;
    cr_assert_eq(lieni_offer_encode(&offer, bytes, sizeof bytes, &len), 0);
    cr_assert_eq(len, 72 + 32);
    cr_assert_arr_eq(bytes, expected, sizeof expected);
    cr_assert(lieni_all_zero(bytes + sizeof expected, len - sizeof expected));
}

Test(offer, round_trip)
{
    struct lieni_offer in = offer_of("verbs,tcp,a-b_0,sim", 5), out;
    uint8_t bytes[LIENI_OFFER_MAX];
    size_t len = 0;
    const char *why = "";
    strcpy(in.providers[in.n_providers++], "0123456789012345678901234567890");
    in.message_max = 0;
    in.dead_ms = 0;
    in.read_depth = UINT32_MAX;
    cr_assert_eq(lieni_offer_encode(&in, bytes, sizeof bytes, &len), 0);
    cr_assert_eq(lieni_offer_decode(bytes, len, &out, &why), 0, "%s", why);
    cr_assert_eq(memcmp(&in, &out, sizeof in), 0);
    for (size_t size = 0; size < len; size++)
        cr_assert_eq(lieni_offer_encode(&in, bytes, size, &len), LIEN_EMSGSIZE);
}

static void expect_offer_refused(const uint8_t *bytes, size_t len, const char *word)
{
    struct lieni_offer out;
    const char *why = NULL;
    const int rc = lieni_offer_decode(bytes, len, &out, &why);
    cr_assert_eq(rc, LIEN_EPROTO, "accepted, though: %s", word);
    cr_assert_not_null(strstr(why, word), "refused with \"%s\", expected \"%s\"", why, word);
    cr_assert_null(check_offer(bytes, len));
}

Test(offer, cut_or_extended)
{
    const struct lieni_offer offer = offer_of("verbs,tcp", 5);
    uint8_t bytes[LIENI_OFFER_MAX + 1] = {0};
    size_t full = 0;
    cr_assert_eq(lieni_offer_encode(&offer, bytes, sizeof bytes, &full), 0);
    for (size_t len = 0; len < full; len++)
        expect_offer_refused(bytes, len, len < 72 ? "fixed part" : "length holds");
    expect_offer_refused(bytes, full + 1, "bytes after");
    // A later version may say more, within the message.
    struct lieni_offer out;
    const char *why = "";
    bytes[2] = 2;
    cr_assert_eq(lieni_offer_decode(bytes, full + 1, &out, &why), 0, "%s", why);
    expect_offer_refused(bytes, LIENI_OFFER_MAX + 1, "4096");
}

Test(offer, fields)
{
    static const struct {
        size_t at, size;
        uint64_t value;
        const char *word;
    } wrongs[] = {
        {0, 2, 0, "version_min"},
        {0, 2, 2, "version_min"},
        {2, 2, 0, "version_min"},
        {36, 4, 4095, "frame_max"},
        {36, 4, 65537, "frame_max"},
        {40, 2, 0, "message_credits"},
        {40, 2, 4097, "message_credits"},
        {42, 2, 1, "control_credits"},
        {42, 2, 4097, "control_credits"},
        {44, 8, (UINT64_C(1) << 32) + 1, "message_max"},
        {52, 4, 0, "grants_max"},
        {52, 4, 1048577, "grants_max"},
        {60, 4, 19, "dead_ms"},
        {60, 4, 3600001, "dead_ms"},
        {64, 1, 0, "1..16"},
        {64, 1, 1, "bytes after"},
        {64, 1, 3, "length holds"},
        {64, 1, 17, "1..16"},
        {64, 1, 255, "1..16"},
        {65, 1, 2, "keyed"},
        {65, 1, 255, "keyed"},
        {66, 2, 4097, "call_credits"},
        {68, 1, 1, "reserved"},
        {71, 1, 1, "reserved"},
        {72, 1, 0, "empty"},
        {72, 1, 'V', "character"},
        {73, 1, '\n', "character"},
        {73, 1, 0xe4, "character"},
        {78, 1, 'x', "padded"},
        {103, 1, 'x', "padded"},
        {107, 1, ' ', "character"},
    };
    const struct lieni_offer offer = offer_of("verbs,tcp", 5);
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        uint8_t bytes[LIENI_OFFER_MAX];
        size_t len = 0;
        cr_assert_eq(lieni_offer_encode(&offer, bytes, sizeof bytes, &len), 0);
        for (size_t k = 0; k < wrongs[i].size; k++)
            bytes[wrongs[i].at + k] = (uint8_t)(wrongs[i].value >> (8 * k));
        expect_offer_refused(bytes, len, wrongs[i].word);
    }
}

Test(offer, names)
{
    struct lieni_offer offer = offer_of("tcp,sim,tcp", 5);
    uint8_t bytes[LIENI_OFFER_MAX];
    size_t len = 0;
    cr_assert_eq(lieni_offer_encode(&offer, bytes, sizeof bytes, &len), 0);
    expect_offer_refused(bytes, len, "twice");
    offer = offer_of("tcp", 5);
    memset(offer.providers[0], 'a', sizeof offer.providers[0]);
    cr_assert_eq(lieni_offer_encode(&offer, bytes, sizeof bytes, &len), 0);
    expect_offer_refused(bytes, len, "31");
    offer.n_providers = 17;
    cr_assert_eq(lieni_offer_encode(&offer, bytes, sizeof bytes, &len), LIEN_EINVAL);
}

Test(offer, random_mutations)
{
    uint64_t random = 99;
    unsigned accepted = 0;
    const struct lieni_offer offer = offer_of("verbs,tcp,sim", 5);
    for (unsigned round = 0; round < 200000; round++) {
        uint8_t bytes[LIENI_OFFER_MAX + 8];
        size_t len = 0;
        cr_assert_eq(lieni_offer_encode(&offer, bytes, sizeof bytes, &len), 0);
        memset(bytes + len, 0, sizeof bytes - len);
        mutate(&random, bytes, &len, 256);
        const char *fault = check_offer(bytes, len);
        cr_assert_null(fault, "round %u: %s", round, fault);
        struct lieni_offer out;
        const char *why;
        accepted += lieni_offer_decode(bytes, len, &out, &why) == 0;
    }
    cr_assert(accepted > 10000 && accepted < 190000, "%u accepted", accepted);
}

// -- From end to end --------------------------------------------------------------------------------------------------------------------

static void run(struct pair *pair, const char *client, const char *server, size_t piece)
{
    start(pair, client, server);
    move(&pair->client, &pair->server, piece);
    move(&pair->server, &pair->client, piece);
    if (pair->server.state != LIENI_HS_SERVER_PLACE)
        return;
    expect_state(&pair->client, LIENI_HS_CLIENT_WAIT);
    cr_assert_eq(lieni_hs_place(&pair->server, "10.1.2.3", 4711), 0);
    move(&pair->server, &pair->client, piece);
}

Test(handshake, pieces_of_any_size)
{
    for (size_t piece = 1; piece < 400; piece++) {
        struct pair pair;
        run(&pair, "verbs,tcp", "tcp,verbs", piece);
        expect_state(&pair.server, LIENI_HS_READY);
        expect_state(&pair.client, LIENI_HS_READY);
        cr_assert_str_eq(pair.client.provider, "verbs");
        cr_assert_str_eq(pair.server.provider, "verbs");
        cr_assert_str_eq(pair.client.host, "10.1.2.3");
        cr_assert_eq(pair.client.port, 4711);
        cr_assert_arr_eq(pair.client.session, seed, LIENI_SESSION);
        cr_assert_eq(pair.client.conn_id, UINT64_C(0x1122334455667788));
        cr_assert_eq(pair.server.conn_id, pair.client.conn_id);
        cr_assert_eq(pair.server.peer.control_credits, 33);
        cr_assert_eq(pair.client.out_len + pair.server.out_len, 0);
    }
}

Test(handshake, choice_is_the_clients_first_that_the_server_has)
{
    static const struct {
        const char *client, *server, *chosen;
    } cases[] = {
        {"tcp", "tcp", "tcp"},
        {"verbs,tcp", "tcp", "tcp"},
        {"tcp,verbs", "verbs,tcp", "tcp"},
        {"verbs,tcp", "tcp,verbs", "verbs"},
        {"tc,tcp", "tcp,sim", "tcp"},
        {"a,b,c,sim", "sim,c", "c"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pair pair;
        run(&pair, cases[i].client, cases[i].server, 4096);
        cr_assert_str_eq(pair.client.provider, cases[i].chosen);
        cr_assert_str_eq(pair.server.provider, cases[i].chosen);
    }
}

Test(handshake, no_provider_in_common_shows_both_offers_on_both_sides)
{
    struct pair pair;
    run(&pair, "verbs,ucx", "tcp,sim", 1);
    expect_failed(&pair.client, LIEN_ENOCOMMON,
                  "this side offers verbs,ucx, the peer offers tcp,sim");
    expect_failed(&pair.server, LIEN_ENOCOMMON,
                  "this side offers tcp,sim, the peer offers verbs,ucx");
}

Test(handshake, the_longest_lists_are_shown_whole)
{
    struct lieni_offer offers[2] = {offer_of("", 1), offer_of("", 2)};
    struct pair pair;
    char last[2][32];
    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < LIENI_PROVIDERS_MAX; i++) {
            snprintf(last[side], sizeof last[side], "%c-%02u-7890123456789012345678901-",
                     'a' + (int)side, i);
            memset(offers[side].providers[i], 'z', 31);
            memcpy(offers[side].providers[i], last[side], strlen(last[side]));
            offers[side].n_providers++;
        }
    cr_assert_eq(lieni_hs_start(&pair.client, false, &offers[0], NULL, NULL), 0);
    cr_assert_eq(lieni_hs_start(&pair.server, true, &offers[1], seed, NULL), 0);
    move(&pair.client, &pair.server, 100);
    move(&pair.server, &pair.client, 100);
    for (unsigned side = 0; side < 2; side++) {
        expect_failed(&pair.client, LIEN_ENOCOMMON, last[side]);
        expect_failed(&pair.server, LIEN_ENOCOMMON, last[side]);
    }
}

Test(handshake, version_mismatch_names_both_ranges)
{
    struct lieni_offer client = offer_of("tcp", 1), server = offer_of("tcp", 2);
    struct pair pair;
    client.version_min = 3;
    client.version_max = 4;
    cr_assert_eq(lieni_hs_start(&pair.client, false, &client, NULL, NULL), 0);
    cr_assert_eq(lieni_hs_start(&pair.server, true, &server, seed, NULL), 0);
    move(&pair.client, &pair.server, 7);
    move(&pair.server, &pair.client, 7);
    expect_failed(&pair.client, LIEN_EPROTO, "this side speaks 3..4, the peer 1..1");
    expect_failed(&pair.server, LIEN_EPROTO, "this side speaks 1..1, the peer 3..4");
}

// A layout we cannot know must not be called malformed.
Test(handshake, version_is_looked_at_before_the_rest)
{
    static const uint8_t body[] = {9, 0, 9, 0, 'n', 'e', 'w'};
    struct pair pair;
    start(&pair, "tcp", "tcp");
    feed(&pair.server, preamble, sizeof preamble);
    feed_message(&pair.server, 1, body, sizeof body);
    expect_failed(&pair.server, LIEN_EPROTO, "this side speaks 1..1, the peer 9..9");
}

Test(handshake, later_version_may_say_more)
{
    struct lieni_offer offer = offer_of("tcp", 1);
    uint8_t bytes[LIENI_OFFER_MAX] = {0};
    size_t len = 0;
    struct pair pair;
    start(&pair, "tcp", "tcp");
    offer.version_max = 2;
    cr_assert_eq(lieni_offer_encode(&offer, bytes, sizeof bytes, &len), 0);
    feed(&pair.server, preamble, sizeof preamble);
    feed_message(&pair.server, 1, bytes, LIENI_OFFER_MAX);
    expect_state(&pair.server, LIENI_HS_SERVER_PLACE);
    cr_assert_eq(pair.server.peer_len, LIENI_OFFER_MAX);
}

Test(handshake, session_id_is_never_zero)
{
    static const uint8_t zero[LIENI_SESSION];
    const struct lieni_offer offer = offer_of("tcp", 1);
    struct lieni_handshake hs;
    cr_assert_eq(lieni_hs_start(&hs, true, &offer, zero, NULL), 0);
    cr_assert_neq(hs.conn_id, 0);
    cr_assert_eq(hs.conn_id, lieni_get64(hs.session));
}

// -- MACs ------------------------------------------------------------------------------------------------------------------------------

static void ready(struct pair *pair, const struct lieni_offer *client,
                  const struct lieni_offer *server, const uint8_t *session)
{
    cr_assert_eq(lieni_hs_start(&pair->client, false, client, NULL, NULL), 0);
    cr_assert_eq(lieni_hs_start(&pair->server, true, server, session, NULL), 0);
    move(&pair->client, &pair->server, 4096);
    cr_assert_eq(lieni_hs_place(&pair->server, NULL, 1), 0);
    move(&pair->server, &pair->client, 4096);
    expect_state(&pair->client, LIENI_HS_READY);
    cr_assert_str_empty(pair->client.host);
}

Test(mac, same_on_both_sides_and_before_the_place)
{
    struct pair pair;
    uint8_t early[2][LIENI_CM_DATA], client[2][LIENI_CM_DATA], server[2][LIENI_CM_DATA];
    start(&pair, "tcp", "tcp");
    move(&pair.client, &pair.server, 4096);
    for (int role = 0; role < 2; role++)
        lieni_hs_cm_data(&pair.server, role == 1, early[role]);
    cr_assert_eq(lieni_hs_place(&pair.server, NULL, 1), 0);
    move(&pair.server, &pair.client, 4096);
    for (int role = 0; role < 2; role++) {
        lieni_hs_cm_data(&pair.client, role == 1, client[role]);
        lieni_hs_cm_data(&pair.server, role == 1, server[role]);
        cr_assert_arr_eq(client[role], server[role], LIENI_CM_DATA);
        cr_assert_arr_eq(early[role], server[role], LIENI_CM_DATA);
        cr_assert_eq(client[role][0], 1);
        cr_assert_arr_eq(client[role] + 1, seed, LIENI_SESSION);
        cr_assert(!lieni_all_zero(client[role] + 17, 32));
        cr_assert(lieni_all_zero(client[role] + 49, 6));
    }
    cr_assert_neq(memcmp(client[0] + 17, client[1] + 17, 32), 0, "roles share a MAC");
}

Test(mac, binds_nonces_offers_and_session)
{
    static const char *const what[] = {"as it was",      "client's nonce", "server's nonce",
                                       "client's offer", "server's offer", "session",
                                       "sides swapped"};
    enum {
        N = sizeof what / sizeof what[0]
    };
    static uint8_t data[2 * N][LIENI_CM_DATA];
    for (unsigned i = 0; i < N; i++) {
        struct lieni_offer client = offer_of("tcp", 1), server = offer_of("tcp", 2);
        uint8_t session[LIENI_SESSION];
        memcpy(session, seed, sizeof session);
        client.nonce[31] ^= i == 1;
        server.nonce[0] ^= i == 2;
        client.read_depth += i == 3;
        server.dead_ms += i == 4;
        session[15] ^= i == 5;
        struct pair pair;
        ready(&pair, i == 6 ? &server : &client, i == 6 ? &client : &server, session);
        lieni_hs_cm_data(&pair.client, false, data[2 * i]);
        lieni_hs_cm_data(&pair.client, true, data[2 * i + 1]);
        for (unsigned k = 0; k < 4 * i; k++)
            cr_assert_neq(memcmp(data[k / 2] + 17, data[2 * i + k % 2] + 17, 32), 0,
                          "%s: the MAC is that of %s", what[i], what[k / 4]);
    }
}

// -- Foreign peers ---------------------------------------------------------------------------------------------------------------------

Test(handshake, foreign_at_the_first_byte_that_differs)
{
    static const char *const foreign[] = {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                          "GET / HTTP/1.1\r\n",
                                          "\x16\x03\x01\x02",
                                          "SSH-2.0-x\r\n",
                                          "LIEN",
                                          "\r\n"};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        struct pair pair;
        start(&pair, "tcp", "tcp");
        cr_assert_eq(lieni_hs_input(&pair.server, (const uint8_t *)foreign[i], 1), 1);
        expect_state(&pair.server, LIENI_HS_FOREIGN);
        cr_assert_eq(pair.server.in_len, 1);
        cr_assert_eq(pair.server.out_len, 0);
        // All at once: all of it is kept for who speaks that protocol.
        const size_t len = strlen(foreign[i]);
        start(&pair, "tcp", "tcp");
        cr_assert_eq(lieni_hs_input(&pair.server, (const uint8_t *)foreign[i], len), len);
        expect_state(&pair.server, LIENI_HS_FOREIGN);
        cr_assert_eq(pair.server.in_len, len);
        cr_assert_arr_eq(pair.server.in, foreign[i], len);
        cr_assert_eq(lieni_hs_input(&pair.server, preamble, 8), 0,
                     "a foreign stream stays foreign");
    }
}

Test(handshake, foreign_after_part_of_the_preamble)
{
    for (size_t same = 0; same < LIENI_PREAMBLE; same++) {
        uint8_t bytes[LIENI_PREAMBLE];
        struct pair pair;
        memcpy(bytes, preamble, sizeof bytes);
        bytes[same] ^= 0x20;
        start(&pair, "tcp", "tcp");
        for (size_t i = 0; i < same; i++)
            feed(&pair.server, bytes + i, 1);
        expect_state(&pair.server, LIENI_HS_SERVER_WAIT);
        feed(&pair.server, bytes + same, 1);
        expect_state(&pair.server, LIENI_HS_FOREIGN);
        cr_assert_eq(pair.server.in_len, same + 1);
        cr_assert_arr_eq(pair.server.in, bytes, same + 1);
    }
}

Test(handshake, foreign_bytes_beyond_the_buffer_stay_with_the_caller)
{
    static uint8_t bytes[100000] = "GET /";
    struct pair pair;
    start(&pair, "tcp", "tcp");
    const size_t used = lieni_hs_input(&pair.server, bytes, sizeof bytes);
    expect_state(&pair.server, LIENI_HS_FOREIGN);
    cr_assert_eq(used, sizeof pair.server.in);
    cr_assert_eq(pair.server.in_len, used);
}

Test(handshake, client_shows_what_a_foreign_server_said)
{
    struct pair pair;
    start(&pair, "tcp", "tcp");
    feed(&pair.client, "HTTP/1.1 400\r\n\x1b[31m\\", 20);
    expect_failed(&pair.client, LIEN_EPROTO, "HTTP/1.1 400\\x0d\\x0a\\x1b[31m\\\\\"");
}

// -- Ends, garbage, lengths, order ---------------------------------------------------------------------------------------------------------

Test(handshake, end_at_each_byte)
{
    struct pair pair;
    start(&pair, "tcp", "tcp");
    uint8_t stream[2][1000];
    const size_t client_len = pair.client.out_len;
    memcpy(stream[0], pair.client.out, client_len);
    move(&pair.client, &pair.server, 4096);
    cr_assert_eq(lieni_hs_place(&pair.server, "h", 1), 0);
    const size_t server_len = pair.server.out_len;
    memcpy(stream[1], pair.server.out, server_len);

    for (size_t len = 0; len <= client_len; len++) {
        start(&pair, "tcp", "tcp");
        feed(&pair.server, stream[0], len);
        cr_assert_eq(lieni_hs_input(&pair.server, stream[0], 0), 0);
        expect_failed(&pair.server, LIEN_ECLOSED, "closed the bootstrap");
    }
    for (size_t len = 0; len <= server_len; len++) {
        start(&pair, "tcp", "tcp");
        feed(&pair.client, stream[1], len);
        cr_assert_eq(lieni_hs_input(&pair.client, stream[1], 0), 0);
        if (len < server_len)
            expect_failed(&pair.client, LIEN_ECLOSED, "closed the bootstrap");
        else
            expect_state(&pair.client, LIENI_HS_READY);
    }
}

Test(handshake, end_changes_nothing_once_over)
{
    struct pair pair;
    run(&pair, "tcp", "tcp", 4096);
    lieni_hs_input(&pair.client, NULL, 0);
    lieni_hs_input(&pair.server, NULL, 0);
    expect_state(&pair.client, LIENI_HS_READY);
    expect_state(&pair.server, LIENI_HS_READY);
    start(&pair, "tcp", "tcp");
    feed(&pair.server, "GET ", 4);
    lieni_hs_input(&pair.server, NULL, 0);
    expect_state(&pair.server, LIENI_HS_FOREIGN);
}

Test(handshake, bytes_after_the_offer)
{
    for (int together = 0; together < 2; together++) {
        struct pair pair;
        start(&pair, "tcp", "tcp");
        pair.client.out[pair.client.out_len++] = 'x';
        const size_t first = pair.client.out_len - (together == 0);
        feed(&pair.server, pair.client.out, first);
        feed(&pair.server, pair.client.out + first, pair.client.out_len - first);
        expect_failed(&pair.server, LIEN_EPROTO, "after its offer");
    }
}

// What follows the place belongs to whoever reads the stream next.
Test(handshake, bytes_after_the_place_are_left)
{
    struct pair pair;
    start(&pair, "tcp", "tcp");
    move(&pair.client, &pair.server, 4096);
    cr_assert_eq(lieni_hs_place(&pair.server, "", 1), 0);
    const size_t len = pair.server.out_len;
    memset(pair.server.out + len, 'x', 10);
    cr_assert_eq(lieni_hs_input(&pair.client, pair.server.out, len + 10), len);
    expect_state(&pair.client, LIENI_HS_READY);
}

Test(handshake, headers_are_judged_before_their_body)
{
    static const struct {
        bool offered; // the server's offer has come
        uint8_t header[4];
        const char *word;
    } wrongs[] = {
        {false, {0, 0, 1, 0}, "type 0"},
        {false, {2, 0, 1, 0}, "type 2"},
        {false, {3, 0, 4, 0}, "type 3"},
        {false, {255, 0, 1, 0}, "type 255"},
        {false, {1, 1, 104, 0}, "reserved byte is 1"},
        {false, {1, 0, 1, 0x10}, "4097 bytes, at most 4096"},
        {false, {1, 0, 0xff, 0xff}, "65535 bytes, at most 4096"},
        {false, {1, 0, 0, 0}, "fixed part"},
        {true, {1, 0, 104, 0}, "type 1"},
        {true, {2, 0, 148, 0}, "148 bytes, at most 147"},
        {true, {2, 0, 0, 0}, "PLACE is malformed"},
        {true, {3, 0, 4, 5}, "1284 bytes, at most 1283"},
        {true, {3, 0, 0, 0}, "REFUSE is malformed"},
        {true, {4, 0, 1, 0}, "type 4"},
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        struct pair pair;
        start(&pair, "tcp", "tcp");
        if (wrongs[i].offered) {
            move(&pair.client, &pair.server, 4096);
            move(&pair.server, &pair.client, 4096);
        } else {
            feed(&pair.client, preamble, sizeof preamble);
        }
        feed(&pair.client, wrongs[i].header, 3);
        expect_state(&pair.client, LIENI_HS_CLIENT_WAIT);
        feed(&pair.client, wrongs[i].header + 3, 1);
        expect_failed(&pair.client, LIEN_EPROTO, wrongs[i].word);
    }
}

Test(handshake, server_takes_an_offer_only)
{
    for (uint8_t type = 2; type <= 3; type++) {
        const uint8_t body[4] = {0xff, 0xff, 0xff, 0xff};
        struct pair pair;
        start(&pair, "tcp", "tcp");
        feed(&pair.server, preamble, sizeof preamble);
        feed_message(&pair.server, type, body, sizeof body);
        expect_failed(&pair.server, LIEN_EPROTO, "awaited was 1 (OFFER)");
    }
}

Test(handshake, malformed_offer_is_told_to_the_client)
{
    struct pair pair;
    start(&pair, "tcp", "tcp");
    lieni_put32(pair.client.out + 8 + 4 + 36, 1); // frame_max
    move(&pair.client, &pair.server, 4096);
    expect_failed(&pair.server, LIEN_EPROTO, "malformed: offer frame_max is not 4096..65536");
    move(&pair.server, &pair.client, 1);
    expect_failed(&pair.client, LIEN_EREFUSED, "LIEN_EPROTO (-10): the peer's offer is malformed");
}

Test(handshake, place_fields)
{
    static const struct {
        size_t at;
        uint8_t value;
        const char *word;
    } wrongs[] = {
        {0, 0, "session"},      {16, 'T', "provider"},   {16, 0, "provider"},
        {47, 1, "provider"},    {48, 0, "port"},         {50, 0, "52 + host length"},
        {50, 4, "52 + host"},   {50, 96, "above 95"},    {50, 255, "above 95"},
        {51, 1, "reserved"},    {52, '\n', "character"}, {53, 0, "character"},
        {54, '/', "character"},
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        static const uint8_t one[LIENI_SESSION] = {1};
        const struct lieni_offer c = offer_of("tcp", 1), s = offer_of("tcp", 2);
        struct pair pair;
        cr_assert_eq(lieni_hs_start(&pair.client, false, &c, NULL, NULL), 0);
        cr_assert_eq(lieni_hs_start(&pair.server, true, &s, one, NULL), 0);
        move(&pair.client, &pair.server, 4096);
        move(&pair.server, &pair.client, 4096);
        cr_assert_eq(lieni_hs_place(&pair.server, "::1", 7), 0);
        pair.server.out[4 + wrongs[i].at] = wrongs[i].value;
        move(&pair.server, &pair.client, 4096);
        expect_failed(&pair.client, LIEN_EPROTO, wrongs[i].word);
    }
}

// -- Refusals --------------------------------------------------------------------------------------------------------------------------

Test(handshake, refusal_reaches_the_client_before_and_after_the_offer)
{
    for (int offered = 0; offered < 2; offered++) {
        struct pair pair;
        start(&pair, "tcp", "tcp");
        if (offered == 1)
            move(&pair.client, &pair.server, 4096);
        lieni_hs_refuse(&pair.server, LIEN_ELIMIT, "option half_open_max: 64 connections");
        expect_failed(&pair.server, LIEN_ELIMIT, "half_open_max");
        move(&pair.server, &pair.client, 1);
        expect_failed(&pair.client, LIEN_EREFUSED,
                      "the peer refused: LIEN_ELIMIT (-21): option half_open_max: 64 connections");
    }
}

Test(handshake, refusal_text_is_escaped)
{
    static const uint8_t body[] = "\xfe\xff\xff\xff\x1b[2Jgone\nlien: error: forged\\\x7f\xc3\xa4";
    struct pair pair;
    start(&pair, "tcp", "tcp");
    move(&pair.client, &pair.server, 4096);
    move(&pair.server, &pair.client, 4096);
    feed_message(&pair.client, 3, body, sizeof body); // with its NUL
    expect_failed(&pair.client, LIEN_EREFUSED,
                  "LIEN_ENOMEM (-2): \\x1b[2Jgone\\x0alien: error: forged\\\\\\x7f\\xc3\\xa4\\x00");
}

Test(handshake, longest_refusal_is_cut_not_overrun)
{
    uint8_t body[4 + LIENI_TEXT_MAX];
    struct pair pair;
    start(&pair, "tcp", "tcp");
    move(&pair.client, &pair.server, 4096);
    move(&pair.server, &pair.client, 4096);
    memset(body, 0xff, sizeof body);
    feed_message(&pair.client, 3, body, sizeof body);
    expect_failed(&pair.client, LIEN_EREFUSED, "(-1): \\xff");
    const size_t len = strlen(pair.client.text);
    cr_assert_str_eq(pair.client.text + len - 4, "\\xff");
}

Test(handshake, refusal_needs_a_negative_code)
{
    for (uint32_t code = 0; code < 2; code++) {
        uint8_t body[4];
        struct pair pair;
        start(&pair, "tcp", "tcp");
        move(&pair.client, &pair.server, 4096);
        move(&pair.server, &pair.client, 4096);
        lieni_put32(body, code);
        feed_message(&pair.client, 3, body, sizeof body);
        expect_failed(&pair.client, LIEN_EPROTO, "negative code");
    }
}

// -- The caller's mistakes -------------------------------------------------------------------------------------------------------------

Test(handshake, start_checks_the_local_offer)
{
    struct lieni_offer offer = offer_of("tcp", 1);
    struct lieni_handshake hs;
    cr_assert_eq(lieni_hs_start(&hs, true, &offer, NULL, NULL), LIEN_EINVAL);
    offer.frame_max = 1;
    cr_assert_eq(lieni_hs_start(&hs, false, &offer, NULL, NULL), LIEN_EINVAL);
    offer = offer_of("TCP", 1);
    cr_assert_eq(lieni_hs_start(&hs, false, &offer, NULL, NULL), LIEN_EINVAL);
    offer.n_providers = 17;
    cr_assert_eq(lieni_hs_start(&hs, false, &offer, NULL, NULL), LIEN_EINVAL);
}

Test(handshake, place_checks_state_host_and_port)
{
    struct pair pair;
    char host[97];
    memset(host, '1', 96);
    host[96] = 0;
    start(&pair, "tcp", "tcp");
    cr_assert_eq(lieni_hs_place(&pair.server, NULL, 1), LIEN_ESTATE);
    cr_assert_eq(lieni_hs_place(&pair.client, NULL, 1), LIEN_ESTATE);
    move(&pair.client, &pair.server, 4096);
    cr_assert_eq(lieni_hs_place(&pair.server, NULL, 0), LIEN_EINVAL);
    cr_assert_eq(lieni_hs_place(&pair.server, host, 1), LIEN_EINVAL);
    cr_assert_eq(lieni_hs_place(&pair.server, "a b", 1), LIEN_EINVAL);
    expect_state(&pair.server, LIENI_HS_SERVER_PLACE);
    host[95] = 0;
    cr_assert_eq(lieni_hs_place(&pair.server, host, 1), 0);
    cr_assert_eq(lieni_hs_place(&pair.server, host, 1), LIEN_ESTATE);
    move(&pair.server, &pair.client, 4096);
    expect_state(&pair.client, LIENI_HS_READY);
    cr_assert_str_eq(pair.client.host, host);
    lieni_hs_refuse(&pair.server, LIEN_EIO, "too late");
    expect_state(&pair.server, LIENI_HS_READY);
}

// -- Mutations ---------------------------------------------------------------------------------------------------------------------------

Test(handshake, random_mutations)
{
    uint64_t random = 4;
    const struct lieni_offer local[2] = {offer_of("tcp,sim", 1), offer_of("sim,tcp", 2)};
    struct pair pair;
    uint8_t stream[2][1000];
    size_t lens[2];
    start(&pair, "tcp,sim", "sim,tcp");
    memcpy(stream[1], pair.client.out, lens[1] = pair.client.out_len);
    move(&pair.client, &pair.server, 4096);
    cr_assert_eq(lieni_hs_place(&pair.server, "fe80::1%eth0", 1), 0);
    memcpy(stream[0], pair.server.out, lens[0] = pair.server.out_len);
    for (unsigned round = 0; round < 20000; round++) {
        const unsigned side = round % 2; // 1: what a server reads
        uint8_t bytes[1000];
        size_t len = lens[side];
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes, stream[side], len);
        mutate(&random, bytes, &len, len + 8);
        const char *fault = check_handshake_input(side == 1, &local[side], NULL, bytes, len,
                                                  1 + next_random(&random) % 64,
                                                  next_random(&random) % 2 == 0);
        cr_assert_null(fault, "round %u: %s", round, fault);
    }
}
