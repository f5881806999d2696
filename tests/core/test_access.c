// SPDX-License-Identifier: Apache-2.0
//
// Pre-shared keys [R20], in memory: which keys and files of keys are taken; who gets through the bootstrap with which keys; and a man in the middle, who may change, cut short, replay and
// reflect whatever he likes: he never gets either side further than a refusal.

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/access.h"
#include "core/bytes.h"
#include "core/handshake.h"
#include "tests/support/wire_checks.h"

// -- Rings -------------------------------------------------------------------------------------------------------------------------

static struct {
    unsigned lines;
    char text[1024];
} seen;

static void collect(const lien_log_line *line, void *arg)
{
    (void)arg;
    seen.lines++;
    snprintf(seen.text, sizeof seen.text, "%s", line->text);
}

static int open_ring(const lien_psk *keys, size_t n, const char *path, struct lieni_keyring **ring)
{
    struct lieni_log *log = NULL;
    memset(&seen, 0, sizeof seen);
    cr_assert_eq(lieni_log_open(collect, NULL, LIEN_LOG_WARN, &log), 0);
    int rc = lieni_keyring_open(keys, n, path, log, ring);
    lieni_log_flush(log);
    lieni_log_close(log);
    return rc;
}

// A ring of keys of 32 bytes each, which are all this character.
static struct lieni_keyring *ring_of(const char *letters)
{
    struct lieni_keyring *ring = NULL;
    uint8_t bytes[LIENI_KEYS_MAX][32];
    lien_psk keys[LIENI_KEYS_MAX];
    const size_t n = strlen(letters);
    for (size_t i = 0; i < n; i++) {
        memset(bytes[i], letters[i], sizeof bytes[i]);
        keys[i] = (lien_psk){bytes[i], sizeof bytes[i]};
    }
    cr_assert_eq(open_ring(keys, n, "", &ring), 0, "%s", seen.text);
    return ring;
}

static void mac_of(const struct lieni_keyring *ring, unsigned key, uint8_t mac[LIENI_MAC])
{
    const struct lieni_mac_part part = {"x", 1};
    lieni_mac(ring, key, LIENI_MAC_PROOF, &part, 1, mac);
}

Test(keys, lengths)
{
    static const uint8_t bytes[65] = {1};
    lien_psk key = {bytes, 0};
    struct lieni_keyring *ring = NULL;
    for (key.len = 0; key.len <= 65; key.len++) {
        const bool good = key.len >= 16 && key.len <= 64;
        int rc = open_ring(&key, 1, "", &ring);
        cr_assert_eq(rc, good ? 0 : LIEN_EOPTION, "%zu bytes: %d", key.len, rc);
        cr_assert_eq(ring != NULL, good);
        if (!good) {
            char number[32];
            snprintf(number, sizeof number, " %zu bytes", key.len);
            cr_assert_not_null(strstr(seen.text, number), "%s", seen.text);
            cr_assert_not_null(strstr(seen.text, key.len < 16 ? "16" : "64"), "%s", seen.text);
        }
        lieni_keyring_close(ring);
    }
    key = (lien_psk){NULL, 32};
    cr_assert_eq(open_ring(&key, 1, "", &ring), LIEN_EOPTION);
    cr_assert_eq(open_ring(NULL, 0, "", &ring), 0);
    cr_assert_null(ring);
}

Test(keys, number)
{
    struct lieni_keyring *ring = ring_of("abcdefghijklmnop");
    lieni_keyring_close(ring);
    lien_psk keys[LIENI_KEYS_MAX + 1];
    for (unsigned i = 0; i <= LIENI_KEYS_MAX; i++)
        keys[i] = (lien_psk){"0123456789abcdef", 16};
    cr_assert_eq(open_ring(keys, LIENI_KEYS_MAX + 1, "", &ring), LIEN_EOPTION);
    cr_assert_not_null(strstr(seen.text, "at most 16"), "%s", seen.text);
}

Test(keys, each_use_and_key_has_its_own)
{
    struct lieni_keyring *ring = ring_of("ab");
    const struct lieni_mac_part one[] = {{"ab", 2}, {"c", 1}}, other[] = {{"a", 1}, {"bc", 2}};
    uint8_t macs[11][LIENI_MAC];
    unsigned n = 0;
    for (unsigned key = 0; key < 2; key++)
        for (unsigned use = 1; use <= 5; use++)
            lieni_mac(ring, key, (enum lieni_mac_use)use, one, 2, macs[n++]);
    lieni_mac(NULL, 0, LIENI_MAC_PROOF, one, 2, macs[n++]);
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < i; k++)
            cr_assert(!lieni_mac_same(macs[i], macs[k]), "%u and %u", i, k);
    cr_assert_eq(lieni_mac_find(ring, LIENI_MAC_PROOF, one, 2, macs[1]), 0);
    cr_assert_eq(lieni_mac_find(ring, LIENI_MAC_PROOF, one, 2, macs[6]), 1);
    cr_assert_eq(lieni_mac_find(ring, LIENI_MAC_PLACE, one, 2, macs[6]), -1);
    cr_assert_eq(lieni_mac_find(ring, LIENI_MAC_PROOF, other, 2, macs[1]), -1);
    lieni_keyring_close(ring);
}

// -- Files -------------------------------------------------------------------------------------------------------------------------

static char dir[] = "/tmp/lien-access-XXXXXX", path[64];

static void make_dir(void)
{
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/key", dir);
}

static void remove_dir(void)
{
    unlink(path);
    rmdir(dir);
}

static void write_key(const char *text, mode_t mode)
{
    unlink(path);
    FILE *file = fopen(path, "we");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
    cr_assert_eq(chmod(path, mode), 0);
}

#define HEX32 "00112233445566778899aabbccddeeff"

static void expect_refused(const char *text, mode_t mode, const char *word)
{
    struct lieni_keyring *ring = NULL;
    write_key(text, mode);
    cr_assert_eq(open_ring(NULL, 0, path, &ring), LIEN_EOPTION, "taken, though %s", word);
    cr_assert_null(ring);
    cr_assert_eq(seen.lines, 1);
    cr_assert_not_null(strstr(seen.text, word), "\"%s\" does not say \"%s\"", seen.text, word);
    cr_assert_not_null(strstr(seen.text, path), "%s", seen.text);
    cr_assert_null(strstr(seen.text, "33445566"), "it shows the key: %s", seen.text);
}

static void expect_taken(const char *text, mode_t mode)
{
    struct lieni_keyring *ring = NULL;
    write_key(text, mode);
    cr_assert_eq(open_ring(NULL, 0, path, &ring), 0, "%s", seen.text);
    cr_assert_not_null(ring);
    lieni_keyring_close(ring);
}

Test(file, who_may_read_and_write, .init = make_dir, .fini = remove_dir)
{
    expect_taken(HEX32 "\n", 0600);
    expect_taken(HEX32 "\n", 0400);
    expect_taken(HEX32 "\n", 0640);
    static const mode_t open_ones[] = {0604, 0602, 0601, 0620, 0644, 0666, 0660};
    for (size_t i = 0; i < sizeof open_ones / sizeof open_ones[0]; i++) {
        char mode[16];
        snprintf(mode, sizeof mode, "mode %04o", (unsigned)open_ones[i]);
        expect_refused(HEX32 "\n", open_ones[i], mode);
    }
}

// Its owner can always write it. Only root can give files away; others see that their own is taken, above.
Test(file, whose_it_is, .init = make_dir, .fini = remove_dir)
{
    struct lieni_keyring *ring = NULL;
    if (geteuid() != 0)
        return;
    write_key(HEX32 "\n", 0600);
    cr_assert_eq(chown(path, 4711, 0), 0);
    cr_assert_eq(open_ring(NULL, 0, path, &ring), LIEN_EOPTION);
    cr_assert_not_null(strstr(seen.text, "uid 4711"), "%s", seen.text);
    cr_assert_not_null(strstr(seen.text, "uid 0"), "%s", seen.text);
    cr_assert_eq(chmod(dir, 0755), 0);
    for (unsigned own = 0; own < 2; own++) { // the process's own, and root's that it may read
        cr_assert_eq(chown(path, own ? 4711 : 0, 0), 0);
        cr_assert_eq(chmod(path, own ? 0600 : 0640), 0);
        cr_assert_eq(seteuid(4711), 0);
        int rc = open_ring(NULL, 0, path, &ring);
        cr_assert_eq(seteuid(0), 0);
        cr_assert_eq(rc, 0, "%s", seen.text);
        lieni_keyring_close(ring);
    }
}

Test(file, what_is_in_it, .init = make_dir, .fini = remove_dir)
{
    char text[32768] = "";
    expect_taken("# a comment\n\n  " HEX32 "\t\r\n" HEX32 HEX32 HEX32 HEX32, 0600);
    expect_taken("00112233445566778899AABBCCDDEEFF", 0600);
    expect_refused("", 0600, "no key");
    expect_refused("# only\n\n \n", 0600, "no key");
    expect_refused(HEX32 "\n0011223344556677889900\n", 0600, "line 2: a key has at least 32");
    expect_refused(HEX32 "\n\n" HEX32 "0\n", 0600, "line 3: not a key");
    expect_refused("0011223344556677 8899aabbccddeeff", 0600, "line 1: not a key");
    expect_refused("not-hexadecimal-33445566-at-all-", 0600, "line 1: not a key");
    expect_refused(HEX32 HEX32 HEX32 HEX32 "00", 0600, "at most 128");
    for (unsigned i = 0; i < LIENI_KEYS_MAX; i++)
        strcat(text, HEX32 "\n");
    expect_taken(text, 0600);
    strcat(text, HEX32 "\n");
    expect_refused(text, 0600, "line 17: at most 16 keys");
    memset(text, '#', sizeof text - 1);
    expect_refused(text, 0600, "more than 16384 bytes");
    text[LIENI_KEY_BYTES - 33] = '\n';
    memcpy(text + LIENI_KEY_BYTES - 32, HEX32, 33);
    expect_taken(text, 0600);
}

Test(file, no_file, .init = make_dir, .fini = remove_dir)
{
    struct lieni_keyring *ring = NULL;
    cr_assert_eq(open_ring(NULL, 0, path, &ring), LIEN_EOPTION);
    cr_assert_not_null(strstr(seen.text, "No such file"), "%s", seen.text);
    cr_assert_eq(open_ring(NULL, 0, dir, &ring), LIEN_EOPTION);
    cr_assert_not_null(strstr(seen.text, "not a regular file"), "%s", seen.text);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(open_ring(NULL, 0, path, &ring), LIEN_EOPTION); // and does not hang
    cr_assert_not_null(strstr(seen.text, "not a regular file"), "%s", seen.text);
}

Test(file, the_same_key_as_bytes_and_the_bytes_win, .init = make_dir, .fini = remove_dir)
{
    static const uint8_t bytes[16] = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
                                      0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff};
    const lien_psk key = {bytes, sizeof bytes};
    struct lieni_keyring *ring[3];
    uint8_t mac[3][LIENI_MAC];
    write_key(HEX32 "\n", 0600);
    cr_assert_eq(open_ring(NULL, 0, path, &ring[0]), 0);
    cr_assert_eq(open_ring(&key, 1, "", &ring[1]), 0);
    write_key("ff" HEX32 "\n", 0600);
    cr_assert_eq(open_ring(&key, 1, path, &ring[2]), 0);
    for (int i = 0; i < 3; i++) {
        mac_of(ring[i], 0, mac[i]);
        lieni_keyring_close(ring[i]);
    }
    cr_assert(lieni_mac_same(mac[0], mac[1]));
    cr_assert(lieni_mac_same(mac[0], mac[2]));
}

// -- The bootstrap -----------------------------------------------------------------------------------------------------------------

enum {
    CLIENT,
    SERVER
};

static struct lieni_handshake hs[2];
static uint8_t nonce_fill; // each handshake has other nonces and another session

static struct lieni_offer offer_of(uint8_t fill)
{
    struct lieni_offer offer = wire_offer(fill);
    offer.n_providers = 2;
    strcpy(offer.providers[0], "verbs");
    strcpy(offer.providers[1], "tcp");
    return offer;
}

static void start(const struct lieni_keyring *client, const struct lieni_keyring *server)
{
    const struct lieni_offer c = offer_of(++nonce_fill), s = offer_of(++nonce_fill);
    uint8_t session[LIENI_SESSION];
    memset(session, ++nonce_fill, sizeof session);
    cr_assert_eq(lieni_hs_start(&hs[CLIENT], false, &c, NULL, client), 0);
    cr_assert_eq(lieni_hs_start(&hs[SERVER], true, &s, session, server), 0);
}

// What both sides sent, for those who listen on the line. Not the preambles.
static struct {
    uint8_t bytes[8192];
    size_t len;
} said[2];

static void feed(int to, const uint8_t *bytes, size_t len)
{
    size_t used = 1;
    for (; len > 0 && used > 0; bytes += used, len -= used)
        used = lieni_hs_input(&hs[to], bytes, len);
    const char *fault = check_handshake(&hs[to]);
    cr_assert_null(fault, "%s", fault);
}

// Takes what `from` has to say off its queue.
static size_t take(int from, uint8_t *bytes)
{
    const size_t len = hs[from].out_len;
    memcpy(bytes, hs[from].out, len);
    lieni_hs_sent(&hs[from], len);
    return len;
}

// Carries what was said, once each way at a time, until there is nothing more; the server finds a place when it wants one. The man in the middle flips the bits `flip` of byte `at` of what
// `by` says.
static void carry(int by, size_t at, uint8_t flip)
{
    uint8_t bytes[2 * (LIENI_OFFER_MAX + 16)];
    memset(said, 0, sizeof said);
    while (hs[CLIENT].out_len > 0 || hs[SERVER].out_len > 0) {
        for (int from = CLIENT; from <= SERVER; from++) {
            const size_t len = take(from, bytes);
            if (flip && from == by && at >= said[from].len && at < said[from].len + len)
                bytes[at - said[from].len] ^= flip;
            cr_assert_leq(said[from].len + len, sizeof said[from].bytes);
            memcpy(said[from].bytes + said[from].len, bytes, len);
            said[from].len += len;
            feed(!from, bytes, len);
            if (hs[SERVER].state == LIENI_HS_SERVER_PLACE)
                cr_assert_eq(lieni_hs_place(&hs[SERVER], "10.0.0.1", 4711), 0);
        }
    }
}

static void meet(const struct lieni_keyring *client, const struct lieni_keyring *server)
{
    start(client, server);
    carry(CLIENT, 0, 0);
}

static void expect_ready(void)
{
    cr_assert_eq(hs[CLIENT].state, LIENI_HS_READY, "%s", hs[CLIENT].text);
    cr_assert_eq(hs[SERVER].state, LIENI_HS_READY, "%s", hs[SERVER].text);
    for (int role = 0; role < 2; role++) {
        uint8_t data[2][LIENI_CM_DATA];
        lieni_hs_cm_data(&hs[CLIENT], role == SERVER, data[0]);
        lieni_hs_cm_data(&hs[SERVER], role == SERVER, data[1]);
        cr_assert_arr_eq(data[0], data[1], LIENI_CM_DATA);
    }
}

static void expect_failed(int side, int status, const char *word)
{
    cr_assert_eq(hs[side].state, LIENI_HS_FAILED, "side %d, state %d, expected: %s", side,
                 (int)hs[side].state, word);
    cr_assert_eq(hs[side].status, status, "%s: %s", lien_errname(hs[side].status), hs[side].text);
    cr_assert_not_null(strstr(hs[side].text, word), "\"%s\" does not say \"%s\"", hs[side].text,
                       word);
}

Test(bootstrap, who_shares_a_key_gets_through)
{
    static const struct {
        const char *client, *server;
        bool through;
    } cases[] = {
        {"a", "a", true},   {"a", "b", false},   {"a", "ba", true},
        {"a", "bca", true}, {"ab", "a", true},   {"ba", "a", false}, // the first is proved
        {"ab", "ba", true}, {"ab", "cd", false}, {"a", "aaaaaaaaaaaaaaaa", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct lieni_keyring *client = ring_of(cases[i].client), *server = ring_of(cases[i].server);
        meet(client, server);
        if (cases[i].through) {
            expect_ready();
        } else {
            expect_failed(SERVER, LIEN_EAUTH,
                          "the client's pre-shared key is none of the server's");
            expect_failed(CLIENT, LIEN_EAUTH, "the peer refused: LIEN_EAUTH");
        }
        lieni_keyring_close(client);
        lieni_keyring_close(server);
    }
}

Test(bootstrap, both_have_keys_or_neither)
{
    struct lieni_keyring *ring = ring_of("a");
    meet(NULL, NULL);
    expect_ready();
    meet(ring, NULL);
    expect_failed(SERVER, LIEN_EAUTH, "the client requires a pre-shared key, the server has none");
    expect_failed(CLIENT, LIEN_EAUTH, "the client requires a pre-shared key, the server has none");
    meet(NULL, ring);
    expect_failed(SERVER, LIEN_EAUTH, "the server requires a pre-shared key, the client has none");
    expect_failed(CLIENT, LIEN_EAUTH, "the server requires a pre-shared key, the client has none");
    lieni_keyring_close(ring);
}

// The server makes no place, and so opens no port, before the key is proved.
Test(bootstrap, no_place_before_the_proof)
{
    struct lieni_keyring *ring = ring_of("a");
    uint8_t bytes[8192];
    start(ring, ring);
    feed(SERVER, bytes, take(CLIENT, bytes));
    cr_assert_eq(hs[SERVER].state, LIENI_HS_SERVER_PROOF);
    cr_assert_eq(lieni_hs_place(&hs[SERVER], NULL, 1), LIEN_ESTATE);
    feed(CLIENT, bytes, take(SERVER, bytes));
    cr_assert_eq(hs[CLIENT].state, LIENI_HS_CLIENT_WAIT);
    const size_t len = take(CLIENT, bytes);
    cr_assert_eq(len, 4 + 64);
    feed(SERVER, bytes, len - 1);
    cr_assert_eq(hs[SERVER].state, LIENI_HS_SERVER_PROOF);
    lieni_hs_input(&hs[SERVER], bytes, 0);
    expect_failed(SERVER, LIEN_ECLOSED, "in the middle of a message");
    lieni_keyring_close(ring);
}

// The private data is another with a key, with another key, and for each role; from what goes over the wire alone nobody makes it.
Test(bootstrap, private_data_is_keyed)
{
    static const char *const keys[] = {NULL, "a", "b", "ab"};
    uint8_t data[8][LIENI_CM_DATA];
    for (unsigned i = 0; i < 4; i++) {
        struct lieni_keyring *ring = keys[i] ? ring_of(keys[i]) : NULL;
        nonce_fill = 0; // the same nonces and session
        meet(ring, ring);
        expect_ready();
        lieni_hs_cm_data(&hs[CLIENT], false, data[2 * i]);
        lieni_hs_cm_data(&hs[CLIENT], true, data[2 * i + 1]);
        // A third party has heard all of it, and has no key: the offers as they came, and MACs without key.
        hs[CLIENT].keys = NULL;
        for (int role = 0; role < 2; role++) {
            uint8_t guess[LIENI_CM_DATA];
            lieni_hs_cm_data(&hs[CLIENT], role == 1, guess);
            cr_assert_eq(memcmp(guess, data[2 * i + (unsigned)role], LIENI_CM_DATA) == 0, i == 0);
        }
        lieni_keyring_close(ring);
    }
    for (unsigned i = 0; i < 6; i++)
        for (unsigned k = 0; k < i; k++)
            cr_assert_neq(memcmp(data[i], data[k], LIENI_CM_DATA), 0, "%u and %u", i, k);
    cr_assert_arr_eq(data[2], data[6], LIENI_CM_DATA); // the key that was proved counts
}

// -- The man in the middle ---------------------------------------------------------------------------------------------------------

// Whatever he changes, the side that heard the change refuses, or the server does once it sees the client's proof. Nobody is READY who heard anything else than was said.
Test(middle, every_byte_changed)
{
    struct lieni_keyring *ring = ring_of("a");
    static const uint8_t flips[] = {0x01, 0x80, 0xff};
    size_t lens[2];
    meet(ring, ring);
    expect_ready();
    lens[CLIENT] = said[CLIENT].len;
    lens[SERVER] = said[SERVER].len;
    cr_assert_eq(lens[CLIENT], 8 + 4 + 72 + 64 + 4 + 64);
    cr_assert_eq(lens[SERVER], 8 + 4 + 72 + 64 + 4 + 52 + 8 + 32);
    const size_t place_at = 8 + 4 + 72 + 64;
    for (int by = CLIENT; by <= SERVER; by++) {
        for (size_t at = 0; at < lens[by]; at++) {
            for (size_t i = 0; i < sizeof flips; i++) {
                start(ring, ring);
                carry(by, at, flips[i]);
                // He that never got all of a message goes on waiting, and so ends by his time.
                cr_assert_neq(hs[CLIENT].state, LIENI_HS_READY, "byte %zu of side %d", at, by);
                if (by == CLIENT || at < place_at)
                    cr_assert_neq(hs[SERVER].state, LIENI_HS_READY, "byte %zu of side %d", at, by);
            }
        }
    }
    lieni_keyring_close(ring);
}

// He weakens one side's offer, well-formed. With `keyed` taken away that side's peer refuses at once.
static void downgrade(int by, void (*change)(struct lieni_offer *offer), const char *what)
{
    struct lieni_keyring *ring = ring_of("a");
    struct lieni_offer offer;
    const char *why = "";
    uint8_t bytes[8192], message[LIENI_OFFER_MAX + 16];
    size_t len = 0;
    start(ring, ring);
    if (by == SERVER)
        feed(SERVER, bytes, take(CLIENT, bytes));
    const size_t said_len = take(by, bytes);
    cr_assert_eq(lieni_offer_decode(bytes + 12, said_len - 12, &offer, &why), 0, "%s", why);
    change(&offer);
    memcpy(message, bytes, 12);
    cr_assert_eq(lieni_offer_encode(&offer, message + 12, sizeof message - 12, &len), 0);
    lieni_put16(message + 10, (uint16_t)len);
    feed(!by, message, 12 + len);
    carry(CLIENT, 0, 0);
    cr_assert_neq(hs[CLIENT].state, LIENI_HS_READY, "%s", what);
    if (offer.keyed)
        expect_failed(SERVER, LIEN_EAUTH, "an offer was changed on the way");
    else
        expect_failed(!by, LIEN_EAUTH, "requires a pre-shared key");
    lieni_keyring_close(ring);
}

static void no_verbs(struct lieni_offer *offer)
{
    memcpy(offer->providers[0], "tcp", 4);
    memset(offer->providers[0] + 4, 0, sizeof offer->providers[0] - 4);
    offer->n_providers = 1;
}

static void other_order(struct lieni_offer *offer)
{
    memset(offer->providers, 0, sizeof offer->providers);
    strcpy(offer->providers[0], "tcp");
    strcpy(offer->providers[1], "verbs");
}

static void small_frames(struct lieni_offer *offer)
{
    offer->frame_max = 4096;
}

static void higher_version(struct lieni_offer *offer)
{
    offer->version_max = 2;
}

static void one_credit(struct lieni_offer *offer)
{
    offer->message_credits = 1;
}

static void never_dead(struct lieni_offer *offer)
{
    offer->dead_ms = 0;
}

static void no_key(struct lieni_offer *offer)
{
    offer->keyed = false;
}

Test(middle, downgrade)
{
    static const struct {
        void (*change)(struct lieni_offer *offer);
        const char *what;
    } changes[] = {{no_verbs, "a provider taken away"},  {other_order, "another order"},
                   {small_frames, "a smaller limit"},    {higher_version, "another version"},
                   {one_credit, "fewer credits"},        {never_dead, "no death"},
                   {no_key, "the need of a key removed"}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        for (int by = CLIENT; by <= SERVER; by++)
            downgrade(by, changes[i].change, changes[i].what);
}

// What was heard once is said again, to either side.
Test(middle, replay)
{
    struct lieni_keyring *ring = ring_of("a");
    static uint8_t heard[2][8192];
    size_t lens[2];
    meet(ring, ring);
    expect_ready();
    for (int i = 0; i < 2; i++) {
        memcpy(heard[i], said[i].bytes, said[i].len);
        lens[i] = said[i].len;
    }
    start(ring, ring);
    feed(SERVER, heard[CLIENT], lens[CLIENT]);
    expect_failed(SERVER, LIEN_EAUTH, "none of the server's"); // its nonce is another
    feed(CLIENT, heard[SERVER], lens[SERVER]);
    expect_failed(CLIENT, LIEN_EAUTH, "did not prove");
    lieni_keyring_close(ring);
}

// What a side says is given back to it as its peer's.
Test(middle, reflection)
{
    struct lieni_keyring *ring = ring_of("a");
    uint8_t bytes[8192], place[4 + 52 + 32] = {2, 0, 52 + 32};
    start(ring, ring);
    size_t len = take(CLIENT, bytes);
    feed(CLIENT, bytes, len); // its own offer
    len = take(CLIENT, bytes);
    cr_assert_eq(len, 4 + 64, "%s", hs[CLIENT].text);
    place[4] = 1;
    memcpy(place + 4 + 16, "verbs", 5);
    place[4 + 48] = 1;
    for (int half = 0; half < 2; half++) { // its proof as the proof of a place
        struct lieni_handshake before = hs[CLIENT];
        memcpy(place + 4 + 52, bytes + 4 + 32 * half, 32);
        feed(CLIENT, place, sizeof place);
        expect_failed(CLIENT, LIEN_EAUTH, "did not prove");
        hs[CLIENT] = before;
    }
    feed(CLIENT, bytes, len);
    expect_failed(CLIENT, LIEN_EPROTO, "type 4");
    lieni_keyring_close(ring);
}

// Who has no key and answers as a server gets a proof to keep, and no further.
Test(middle, false_server)
{
    struct lieni_keyring *ring = ring_of("a"), *other = ring_of("b");
    uint8_t bytes[8192];
    start(ring, other);
    feed(SERVER, bytes, take(CLIENT, bytes));
    feed(CLIENT, bytes, take(SERVER, bytes));
    hs[SERVER].state = LIENI_HS_SERVER_PLACE; // he does not care about the proof
    cr_assert_eq(lieni_hs_place(&hs[SERVER], "10.0.0.1", 4711), 0);
    feed(CLIENT, bytes, take(SERVER, bytes));
    expect_failed(CLIENT, LIEN_EAUTH, "did not prove the pre-shared key");
    lieni_keyring_close(ring);
    lieni_keyring_close(other);
}

// A proof of the right key, with a MAC of something else: told apart from a wrong key.
Test(middle, parts_of_the_proof)
{
    struct lieni_keyring *ring = ring_of("a");
    for (int half = 0; half < 2; half++) {
        start(ring, ring);
        carry(CLIENT, 8 + 4 + 72 + 64 + 4 + 32 * (size_t)half, 1);
        expect_failed(SERVER, LIEN_EAUTH,
                      half == 0 ? "none of the server's" : "an offer was changed on the way");
        expect_failed(CLIENT, LIEN_EAUTH, "the peer refused: LIEN_EAUTH");
    }
    lieni_keyring_close(ring);
}
