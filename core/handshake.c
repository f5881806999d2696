// SPDX-License-Identifier: Apache-2.0
//
// The state machine of the bootstrap (core/handshake.h, docs/wire.md "Bootstrap"). Owns nothing outside its struct; the caller serialises. Invariants: only enter() sets the
// state, by the table; what a server sends is always preamble, OFFER, then PLACE or REFUSE; each message is judged by its header before its body is waited for; whatever the
// peer wrote is escaped before it gets into `text`.

#include "core/handshake.h"

#include <assert.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"

#define MESSAGE_HEADER 4u // type 1, zero 1, length 2 of the body
#define NAME_BYTES     32u

enum message_type {
    MESSAGE_OFFER = 1,
    MESSAGE_PLACE = 2,
    MESSAGE_REFUSE = 3,
    MESSAGE_PROOF = 4
};

// Offsets in PROOF.
enum {
    PROOF_SELECT = 0,
    PROOF_MAC = 32,
    PROOF_BYTES = 64
};

// Offsets in PLACE.
enum {
    PLACE_SESSION = 0,
    PLACE_PROVIDER = 16,
    PLACE_PORT = 48,
    PLACE_HOST_LEN = 50,
    PLACE_ZERO = 51,
    PLACE_HOST = 52
};

// Offsets in the private data of the fabric connection.
enum {
    CM_VERSION = 0,
    CM_SESSION = 1,
    CM_MAC = 17,
    CM_ZERO = 49
};

#define HOST_MAX   95u
#define REFUSE_MIN 4u // the code

_Static_assert(sizeof((struct lieni_handshake *)0)->host == HOST_MAX + 1, "host and its NUL");
_Static_assert(CM_ZERO <= LIENI_CM_DATA, "version, session and MAC fit the private data");
_Static_assert(LIENI_PREAMBLE + MESSAGE_HEADER <= 16, "the largest message fits hs->in");
_Static_assert(PLACE_HOST + HOST_MAX + LIENI_MAC <= LIENI_OFFER_MAX, "no message is larger");

// No text protocol begins with a byte above 0x7f, no TLS record with 0xc7, and a stream that was treated as text loses the CR or the 0.
static const uint8_t preamble[LIENI_PREAMBLE] = {0xc7, 'L', 'I', 'E', 'N', '\r', '\n', 0};

#define TO(state) (1u << LIENI_HS_##state)
static const unsigned may_enter[] = {
    [LIENI_HS_CLIENT_WAIT] = TO(READY) | TO(FAILED),
    [LIENI_HS_SERVER_WAIT] = TO(SERVER_PROOF) | TO(SERVER_PLACE) | TO(FOREIGN) | TO(FAILED),
    [LIENI_HS_SERVER_PROOF] = TO(SERVER_PLACE) | TO(FAILED),
    [LIENI_HS_SERVER_PLACE] = TO(READY) | TO(FAILED),
    [LIENI_HS_READY] = 0,
    [LIENI_HS_FOREIGN] = 0,
    [LIENI_HS_FAILED] = 0,
};
#undef TO

static void enter(struct lieni_handshake *hs, enum lieni_hs_state state)
{
    if (!(may_enter[hs->state] & 1u << state))
        abort(); // a bug of this file, not of the peer
    hs->state = state;
}

// -- Text --------------------------------------------------------------------------------------------------------------------------

__attribute__((format(printf, 2, 3))) static void say(struct lieni_handshake *hs,
                                                      const char *format, ...)
{
    const size_t at = strlen(hs->text);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(hs->text + at, sizeof hs->text - at, format, args);
    va_end(args);
}

// Bytes of the peer's, so that no control character gets into a log.
static void say_escaped(struct lieni_handshake *hs, const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len && strlen(hs->text) + 4 < sizeof hs->text; i++) {
        const uint8_t c = bytes[i];
        if (c < 0x20 || c > 0x7e)
            say(hs, "\\x%02x", c);
        else if (c == '\\')
            say(hs, "\\\\");
        else
            say(hs, "%c", c);
    }
}

static void say_providers(struct lieni_handshake *hs, const struct lieni_offer *offer)
{
    for (uint32_t i = 0; i < offer->n_providers; i++)
        say(hs, "%s%s", i == 0 ? "" : ",", offer->providers[i]);
}

// -- Sending -----------------------------------------------------------------------------------------------------------------------

static uint8_t *queue(struct lieni_handshake *hs, size_t len)
{
    assert(len <= sizeof hs->out - hs->out_len);
    uint8_t *at = hs->out + hs->out_len;
    hs->out_len += len;
    return at;
}

static uint8_t *queue_message(struct lieni_handshake *hs, enum message_type type, size_t len)
{
    uint8_t *at = queue(hs, MESSAGE_HEADER + len);
    at[0] = (uint8_t)type;
    at[1] = 0;
    lieni_put16(at + 2, (uint16_t)len);
    return at + MESSAGE_HEADER;
}

static void queue_greeting(struct lieni_handshake *hs)
{
    memcpy(queue(hs, LIENI_PREAMBLE), preamble, LIENI_PREAMBLE);
    memcpy(queue_message(hs, MESSAGE_OFFER, hs->local_len), hs->local_bytes, hs->local_len);
}

// Ends the handshake with what `text` says by now. A server tells its peer why.
static void fail(struct lieni_handshake *hs, int status)
{
    hs->status = status;
    if (hs->server) {
        if (hs->state == LIENI_HS_SERVER_WAIT)
            queue_greeting(hs);
        const size_t len = strlen(hs->text);
        uint8_t *body = queue_message(hs, MESSAGE_REFUSE, REFUSE_MIN + len);
        lieni_put32(body, (uint32_t)status);
        memcpy(body + REFUSE_MIN, hs->text, len);
    }
    enter(hs, LIENI_HS_FAILED);
}

static void fail_as(struct lieni_handshake *hs, int status, const char *text)
{
    say(hs, "%s", text);
    fail(hs, status);
}

// -- Judging what came ---------------------------------------------------------------------------------------------------------------

static uint16_t common_version(const struct lieni_handshake *hs)
{
    return hs->local.version_max < hs->peer.version_max ? hs->local.version_max
                                                        : hs->peer.version_max;
}

// -- Keys --------------------------------------------------------------------------------------------------------------------------

enum {
    PARTS = 5
};

// What every MAC of the bootstrap is over, in this order: what it is for, version, both offers as they went over the wire; `last` is the caller's.
static void make_mac(const struct lieni_handshake *hs, enum lieni_mac_use use, const char *label,
                     const uint8_t *head, size_t head_len, const uint8_t *last, size_t last_len,
                     uint8_t mac[LIENI_MAC])
{
    const struct lieni_mac_part local = {hs->local_bytes, hs->local_len};
    const struct lieni_mac_part peer = {hs->peer_bytes, hs->peer_len};
    const struct lieni_mac_part parts[PARTS] = {{label, strlen(label)},
                                                {head, head_len},
                                                hs->server ? peer : local,
                                                hs->server ? local : peer,
                                                {last, last_len}};
    lieni_mac(hs->keys, hs->key, use, parts, PARTS, mac);
}

static void proof_mac(const struct lieni_handshake *hs, uint8_t mac[LIENI_MAC])
{
    const uint8_t version = (uint8_t)common_version(hs);
    make_mac(hs, LIENI_MAC_PROOF, "lien proof", &version, 1, NULL, 0, mac);
}

static void place_mac(const struct lieni_handshake *hs, const uint8_t *place, size_t len,
                      uint8_t mac[LIENI_MAC])
{
    const uint8_t version = (uint8_t)common_version(hs);
    make_mac(hs, LIENI_MAC_PLACE, "lien place", &version, 1, place, len, mac);
}

// A key is named by a MAC over the two nonces: it says nothing to who does not have the key, and is another each time.
static void select_parts(const struct lieni_handshake *hs, struct lieni_mac_part parts[3])
{
    static const char label[] = "lien key";
    const struct lieni_offer *client = hs->server ? &hs->peer : &hs->local;
    const struct lieni_offer *server = hs->server ? &hs->local : &hs->peer;
    parts[0] = (struct lieni_mac_part){label, sizeof label - 1};
    parts[1] = (struct lieni_mac_part){client->nonce, sizeof client->nonce};
    parts[2] = (struct lieni_mac_part){server->nonce, sizeof server->nonce};
}

static void queue_proof(struct lieni_handshake *hs)
{
    struct lieni_mac_part parts[3];
    uint8_t *body = queue_message(hs, MESSAGE_PROOF, PROOF_BYTES);
    select_parts(hs, parts);
    lieni_mac(hs->keys, hs->key, LIENI_MAC_SELECT, parts, 3, body + PROOF_SELECT);
    proof_mac(hs, body + PROOF_MAC);
}

// Both have keys, or neither: nobody falls back to less than it was told to ask for. The text goes to the peer as well, so it names the sides by their roles.
static bool keys_meet(struct lieni_handshake *hs)
{
    if (hs->peer.keyed == (hs->keys != NULL))
        return true;
    fail_as(hs, LIEN_EAUTH,
            hs->server == (hs->keys != NULL)
                ? "the server requires a pre-shared key, the client has none (option psk_file)"
                : "the client requires a pre-shared key, the server has none (option psk_file)");
    return false;
}

static void on_proof(struct lieni_handshake *hs, const uint8_t *body, size_t len)
{
    struct lieni_mac_part parts[3];
    uint8_t mac[LIENI_MAC];
    if (len != PROOF_BYTES) {
        fail_as(hs, LIEN_EPROTO, "the peer's PROOF has not 64 bytes");
        return;
    }
    select_parts(hs, parts);
    const int key = lieni_mac_find(hs->keys, LIENI_MAC_SELECT, parts, 3, body + PROOF_SELECT);
    if (key < 0) {
        fail_as(hs, LIEN_EAUTH, "the client's pre-shared key is none of the server's");
        return;
    }
    hs->key = (unsigned)key;
    proof_mac(hs, mac);
    if (!lieni_mac_same(mac, body + PROOF_MAC)) {
        fail_as(hs, LIEN_EAUTH,
                "the peer's pre-shared key fits, its proof does not: an offer was changed on the "
                "way");
        return;
    }
    enter(hs, LIENI_HS_SERVER_PLACE);
}

// -- Offers and places ---------------------------------------------------------------------------------------------------------------

// The rule of both sides: the first provider of the client's list that the server has.
static bool choose_provider(struct lieni_handshake *hs)
{
    const struct lieni_offer *client = hs->server ? &hs->peer : &hs->local;
    const struct lieni_offer *server = hs->server ? &hs->local : &hs->peer;
    for (uint32_t i = 0; i < client->n_providers; i++)
        for (uint32_t j = 0; j < server->n_providers; j++)
            if (strcmp(client->providers[i], server->providers[j]) == 0) {
                memcpy(hs->provider, client->providers[i], sizeof hs->provider);
                return true;
            }
    return false;
}

// Before the rest of an offer is looked at: a version that is not ours may have laid it out in another way.
static bool versions_meet(struct lieni_handshake *hs, const uint8_t *body, size_t len)
{
    if (len < 4)
        return true; // the decoder says what is wrong
    const uint16_t min = lieni_get16(body), max = lieni_get16(body + 2);
    if (min < 1 || min > max)
        return true; // likewise
    if (min <= hs->local.version_max && max >= hs->local.version_min)
        return true;
    say(hs, "no protocol version in common: this side speaks %u..%u, the peer %u..%u",
        hs->local.version_min, hs->local.version_max, min, max);
    return false;
}

static void on_offer(struct lieni_handshake *hs, const uint8_t *body, size_t len)
{
    const char *why = NULL;
    if (!versions_meet(hs, body, len)) {
        fail(hs, LIEN_EPROTO);
        return;
    }
    if (lieni_offer_decode(body, len, &hs->peer, &why) != 0) {
        say(hs, "the peer's offer is malformed: %s", why);
        fail(hs, LIEN_EPROTO);
        return;
    }
    memcpy(hs->peer_bytes, body, len);
    hs->peer_len = len;
    if (!keys_meet(hs))
        return;
    if (!choose_provider(hs)) {
        say(hs, "no provider in common: this side offers ");
        say_providers(hs, &hs->local);
        say(hs, ", the peer offers ");
        say_providers(hs, &hs->peer);
        fail(hs, LIEN_ENOCOMMON);
        return;
    }
    if (hs->server) {
        queue_greeting(hs);
        enter(hs, hs->keys ? LIENI_HS_SERVER_PROOF : LIENI_HS_SERVER_PLACE);
    } else if (hs->keys) {
        queue_proof(hs);
    }
}

// Numeric addresses with port-free zones, and names a simulated network may use.
static bool host_chars(const char *host, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        const char c = host[i];
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                           (c >= '0' && c <= '9');
        if (!plain && (c == 0 || strchr(".:%_-", c) == NULL))
            return false;
    }
    return true;
}

static const char *wrong_place(const struct lieni_handshake *hs, const uint8_t *body, size_t len)
{
    if (len < PLACE_HOST)
        return "it is shorter than its 52 byte fixed part";
    const size_t host_len = body[PLACE_HOST_LEN];
    if (host_len > HOST_MAX)
        return "host length is above 95";
    if (len != PLACE_HOST + host_len)
        return "length is not 52 + host length";
    if (body[PLACE_ZERO] != 0)
        return "reserved byte is not 0";
    if (lieni_get64(body + PLACE_SESSION) == 0)
        return "the session id begins with 8 zeros";
    if (memcmp(body + PLACE_PROVIDER, hs->provider, NAME_BYTES) != 0)
        return "provider is not the one both offers lead to";
    if (lieni_get16(body + PLACE_PORT) == 0)
        return "port is 0";
    if (!host_chars((const char *)body + PLACE_HOST, host_len))
        return "host has a character outside a-z A-Z 0-9 . : % _ -";
    return NULL;
}

static void set_session(struct lieni_handshake *hs, const uint8_t session[LIENI_SESSION])
{
    memcpy(hs->session, session, LIENI_SESSION);
    hs->conn_id = lieni_get64(session);
}

// Whether the server has our key too, and sent this PLACE as it came. What is left of `len` is the place itself.
static bool place_proved(struct lieni_handshake *hs, const uint8_t *body, size_t *len)
{
    uint8_t mac[LIENI_MAC];
    if (!hs->keys)
        return true;
    if (*len < PLACE_HOST + LIENI_MAC) {
        fail_as(hs, LIEN_EPROTO,
                "the peer's PLACE is malformed: it is shorter than its 84 byte fixed part");
        return false;
    }
    *len -= LIENI_MAC;
    place_mac(hs, body, *len, mac);
    if (lieni_mac_same(mac, body + *len))
        return true;
    fail_as(hs, LIEN_EAUTH,
            "the peer did not prove the pre-shared key: it does not have it, or the bootstrap was "
            "changed on the way");
    return false;
}

static void on_place(struct lieni_handshake *hs, const uint8_t *body, size_t len)
{
    if (!place_proved(hs, body, &len))
        return;
    const char *wrong = wrong_place(hs, body, len);
    if (wrong != NULL) {
        say(hs, "the peer's PLACE is malformed: %s", wrong);
        fail(hs, LIEN_EPROTO);
        return;
    }
    set_session(hs, body + PLACE_SESSION);
    hs->port = lieni_get16(body + PLACE_PORT);
    memcpy(hs->host, body + PLACE_HOST, body[PLACE_HOST_LEN]);
    hs->host[body[PLACE_HOST_LEN]] = 0;
    enter(hs, LIENI_HS_READY);
}

static void on_refuse(struct lieni_handshake *hs, const uint8_t *body, size_t len)
{
    const int32_t code = len < REFUSE_MIN ? 0 : (int32_t)lieni_get32(body);
    if (code >= 0) {
        fail_as(hs, LIEN_EPROTO, "the peer's REFUSE is malformed: it has no negative code");
        return;
    }
    say(hs, "the peer refused: %s (%d): ", lien_errname(code), code);
    say_escaped(hs, body + REFUSE_MIN, len - REFUSE_MIN);
    fail(hs, code == LIEN_EAUTH ? LIEN_EAUTH : LIEN_EREFUSED);
}

// -- Receiving ---------------------------------------------------------------------------------------------------------------------

// Where the message being read begins in hs->in: the first one is behind the preamble.
static size_t message_base(const struct lieni_handshake *hs)
{
    return hs->peer_len == 0 ? LIENI_PREAMBLE : 0;
}

// Most bytes of a body, 0: no such message now.
static size_t body_max(const struct lieni_handshake *hs, uint8_t type)
{
    const bool client_has_offer = hs->state == LIENI_HS_CLIENT_WAIT && hs->peer_len > 0;
    switch ((enum message_type)type) {
    case MESSAGE_OFFER:
        return hs->peer_len == 0 ? LIENI_OFFER_MAX : 0;
    case MESSAGE_PLACE:
        return client_has_offer ? PLACE_HOST + HOST_MAX + (hs->keys ? LIENI_MAC : 0) : 0;
    case MESSAGE_REFUSE:
        return client_has_offer ? REFUSE_MIN + LIENI_TEXT_MAX : 0;
    case MESSAGE_PROOF:
        return hs->state == LIENI_HS_SERVER_PROOF ? PROOF_BYTES : 0;
    }
    return 0;
}

// Judges the header alone, so that nobody waits for a body that would be refused.
static bool header_taken(struct lieni_handshake *hs, const uint8_t *header)
{
    const size_t max = body_max(hs, header[0]);
    const unsigned len = lieni_get16(header + 2);
    if (max == 0)
        say(hs, "the peer sent a message of type %u, awaited was %s", header[0],
            hs->peer_len == 0 ? "1 (OFFER)"
            : hs->server      ? "4 (PROOF)"
                              : "2 (PLACE) or 3 (REFUSE)");
    else if (header[1] != 0)
        say(hs, "the peer sent a message whose reserved byte is %u, not 0", header[1]);
    else if (len > max)
        say(hs, "the peer sent a message of type %u with %u bytes, at most %zu are allowed",
            header[0], len, max);
    else
        return true;
    fail(hs, LIEN_EPROTO);
    return false;
}

static void on_message(struct lieni_handshake *hs, const uint8_t *message, size_t body_len)
{
    const uint8_t *body = message + MESSAGE_HEADER;
    switch ((enum message_type)message[0]) {
    case MESSAGE_OFFER:
        on_offer(hs, body, body_len);
        break;
    case MESSAGE_PLACE:
        on_place(hs, body, body_len);
        break;
    case MESSAGE_REFUSE:
        on_refuse(hs, body, body_len);
        break;
    case MESSAGE_PROOF:
        on_proof(hs, body, body_len);
        break;
    }
    hs->in_len = 0;
}

static size_t take(struct lieni_handshake *hs, const uint8_t *bytes, size_t len, size_t want)
{
    const size_t n = len < want ? len : want;
    memcpy(hs->in + hs->in_len, bytes, n);
    hs->in_len += n;
    return n;
}

static size_t read_preamble(struct lieni_handshake *hs, const uint8_t *bytes, size_t len)
{
    size_t used = 0;
    while (used < len && hs->in_len < LIENI_PREAMBLE) {
        if (bytes[used] == preamble[hs->in_len]) {
            used += take(hs, bytes + used, 1, 1);
            continue;
        }
        // All that came goes to whoever speaks this protocol, or into the error.
        used += take(hs, bytes + used, len - used, sizeof hs->in - hs->in_len);
        if (hs->server) {
            enter(hs, LIENI_HS_FOREIGN);
            return used;
        }
        say(hs, "the peer is not a Lien server; its first bytes are \"");
        say_escaped(hs, hs->in, hs->in_len < 32 ? hs->in_len : 32);
        fail_as(hs, LIEN_EPROTO, "\"");
        return used;
    }
    return used;
}

static size_t read_message(struct lieni_handshake *hs, const uint8_t *bytes, size_t len)
{
    const size_t base = message_base(hs), body = base + MESSAGE_HEADER;
    size_t used = 0;
    if (hs->in_len < body) {
        used = take(hs, bytes, len, body - hs->in_len);
        if (hs->in_len < body || !header_taken(hs, hs->in + base))
            return used;
    }
    const size_t end = body + lieni_get16(hs->in + base + 2);
    used += take(hs, bytes + used, len - used, end - hs->in_len);
    if (hs->in_len == end)
        on_message(hs, hs->in + base, end - body);
    return used;
}

static void ended(struct lieni_handshake *hs)
{
    if (hs->in_len > 0)
        fail_as(hs, LIEN_ECLOSED, "the peer closed the bootstrap in the middle of a message");
    else if (hs->peer_len == 0)
        fail_as(hs, LIEN_ECLOSED, "the peer closed the bootstrap before its offer");
    else
        fail_as(hs, LIEN_ECLOSED, "the peer closed the bootstrap after its offer");
}

static bool reading(const struct lieni_handshake *hs)
{
    switch (hs->state) {
    case LIENI_HS_CLIENT_WAIT:
    case LIENI_HS_SERVER_WAIT:
    case LIENI_HS_SERVER_PROOF:
    case LIENI_HS_SERVER_PLACE:
        return true;
    case LIENI_HS_READY:
    case LIENI_HS_FOREIGN:
    case LIENI_HS_FAILED:
        return false;
    }
    return false;
}

size_t lieni_hs_input(struct lieni_handshake *hs, const uint8_t *bytes, size_t len)
{
    size_t used = 0;
    if (len == 0 && reading(hs))
        ended(hs);
    while (used < len && reading(hs)) {
        if (hs->state == LIENI_HS_SERVER_PLACE)
            fail_as(hs, LIEN_EPROTO, "the peer sent bytes after its offer, before its place");
        else if (hs->in_len < message_base(hs))
            used += read_preamble(hs, bytes + used, len - used);
        else
            used += read_message(hs, bytes + used, len - used);
    }
    return used;
}

// -- The caller's side -------------------------------------------------------------------------------------------------------------

int lieni_hs_start(struct lieni_handshake *hs, bool server, const struct lieni_offer *local,
                   const uint8_t session_seed[LIENI_SESSION], const struct lieni_keyring *keys)
{
    if (server && session_seed == NULL)
        return LIEN_EINVAL;
    if (sodium_init() < 0)
        return LIEN_ESYS;
    memset(hs, 0, sizeof *hs);
    hs->server = server;
    hs->keys = keys;
    const char *why = NULL;
    struct lieni_offer offer = *local;
    offer.keyed = keys != NULL;
    int rc = lieni_offer_encode(&offer, hs->local_bytes, sizeof hs->local_bytes, &hs->local_len);
    if (rc != 0)
        return rc;
    // Our own offer keeps the rules we hold the peer to.
    if (lieni_offer_decode(hs->local_bytes, hs->local_len, &hs->local, &why) != 0)
        return LIEN_EINVAL;
    if (!server) {
        hs->state = LIENI_HS_CLIENT_WAIT;
        queue_greeting(hs);
        return 0;
    }
    hs->state = LIENI_HS_SERVER_WAIT;
    set_session(hs, session_seed);
    if (hs->conn_id == 0) {
        hs->session[0] = 1;
        hs->conn_id = 1;
    }
    return 0;
}

int lieni_hs_place(struct lieni_handshake *hs, const char *host, uint16_t port)
{
    if (hs->state != LIENI_HS_SERVER_PLACE)
        return LIEN_ESTATE;
    const size_t len = host == NULL ? 0 : strlen(host);
    if (port == 0 || len > HOST_MAX || !host_chars(host, len))
        return LIEN_EINVAL;
    const size_t mac_len = hs->keys ? LIENI_MAC : 0;
    uint8_t *body = queue_message(hs, MESSAGE_PLACE, PLACE_HOST + len + mac_len);
    memset(body, 0, PLACE_HOST);
    memcpy(body + PLACE_SESSION, hs->session, LIENI_SESSION);
    memcpy(body + PLACE_PROVIDER, hs->provider, NAME_BYTES);
    lieni_put16(body + PLACE_PORT, port);
    body[PLACE_HOST_LEN] = (uint8_t)len;
    if (len > 0)
        memcpy(body + PLACE_HOST, host, len);
    if (hs->keys)
        place_mac(hs, body, PLACE_HOST + len, body + PLACE_HOST + len);
    memcpy(hs->host, body + PLACE_HOST, len);
    hs->host[len] = 0;
    hs->port = port;
    enter(hs, LIENI_HS_READY);
    return 0;
}

void lieni_hs_refuse(struct lieni_handshake *hs, int status, const char *text)
{
    if (!reading(hs))
        return;
    // A code that no peer would take as one must not go out.
    fail_as(hs, status < 0 ? status : LIEN_EREFUSED, text);
}

void lieni_hs_sent(struct lieni_handshake *hs, size_t used)
{
    assert(used <= hs->out_len);
    hs->out_len -= used;
    memmove(hs->out, hs->out + used, hs->out_len);
}

void lieni_hs_cm_data(const struct lieni_handshake *hs, bool server, uint8_t data[LIENI_CM_DATA])
{
    const uint8_t head[2] = {server ? 's' : 'c', (uint8_t)common_version(hs)};

    assert(hs->state == LIENI_HS_READY || hs->state == LIENI_HS_SERVER_PLACE);
    memset(data, 0, LIENI_CM_DATA);
    data[CM_VERSION] = head[1];
    memcpy(data + CM_SESSION, hs->session, LIENI_SESSION);
    make_mac(hs, server ? LIENI_MAC_CM_SERVER : LIENI_MAC_CM_CLIENT, "lien fabric connection", head,
             sizeof head, hs->session, LIENI_SESSION, data + CM_MAC);
}
