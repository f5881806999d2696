// SPDX-License-Identifier: Apache-2.0
//
// The bootstrap's protocol (design.md 6, docs/wire.md "Bootstrap"): a state machine of bytes in and bytes out, without sockets, clock or threads. The client sends its offer,
// the server answers with its own; both choose the same path by the same rule (the first provider of the client's list that the server's has); the server opens a fresh fabric listener
// and tells host and port; both derive the private data of the fabric connection: version, session id (16), MAC (32) = BLAKE2b (libsodium) over role, both offers with
// their nonces, and session id.
//
// With a pre-shared key (access.h) that MAC is keyed, and the bootstrap itself is authenticated: the client proves its key over both offers before the server makes a place, the server
// proves the same key over both offers and the place. A side with keys and one without refuse each other. [R20]

#ifndef LIENI_HANDSHAKE_H
#define LIENI_HANDSHAKE_H

#include "core/access.h"
#include "core/wire.h"
#include "provider/provider.h"

#define LIENI_OFFER_MAX     4096u // bytes of an encoded message
#define LIENI_PROVIDERS_MAX 16u
#define LIENI_SESSION       16u
#define LIENI_PREAMBLE                                                                             \
    8u // bytes each side sends first; others are foreign at the first byte that differs
#define LIENI_TEXT_MAX 1279u // bytes of the text of a refusal: room for two full lists of providers

struct lieni_offer {
    uint16_t version_min, version_max;
    uint8_t nonce[32];
    bool keyed; // this side has a pre-shared key; lieni_hs_start() sets it
    uint32_t n_providers;
    char providers[LIENI_PROVIDERS_MAX][32]; // in order of preference
    uint32_t frame_max;                      // size of this side's receives
    uint16_t message_credits;                // receives this side posts for messages
    uint16_t control_credits;
    uint16_t call_credits; // receives this side posts for replies to its calls
    uint64_t message_max;
    uint32_t grants_max; // slots of this side's grant table, and the most it keeps of the other's
    uint32_t read_depth; // READs this side's device serves at once, 0 = no limit
    uint32_t dead_ms;    // when this side takes a silent peer for lost; 0: never
};
// Pure. Decoding checks every value against its range in docs/wire.md.
int lieni_offer_encode(const struct lieni_offer *offer, uint8_t *bytes, size_t size, size_t *len);
int lieni_offer_decode(const uint8_t *bytes, size_t len, struct lieni_offer *offer,
                       const char **why);

enum lieni_hs_state {
    LIENI_HS_CLIENT_WAIT,  // client: offer queued, awaits the server's offer and its place
    LIENI_HS_SERVER_WAIT,  // server: awaits the client's offer
    LIENI_HS_SERVER_PROOF, // server with keys: both offers known, awaits the client's proof
    LIENI_HS_SERVER_PLACE, // server: both offers known, awaits lieni_hs_place()
    LIENI_HS_READY,        // both: all is known; the fabric connection can be made
    LIENI_HS_FOREIGN,      // server: the first bytes are not Lien's (raw, raw_len)
    LIENI_HS_FAILED        // status, text
};

struct lieni_handshake {
    enum lieni_hs_state state;
    bool server;
    const struct lieni_keyring *keys; // the caller's, or NULL
    unsigned key;                     // the one this handshake goes by
    struct lieni_offer local, peer;
    uint8_t local_bytes[LIENI_OFFER_MAX],
        peer_bytes[LIENI_OFFER_MAX]; // as sent and received, for the MAC
    size_t local_len, peer_len;
    char provider[32];              // chosen
    uint8_t session[LIENI_SESSION]; // made by the server
    uint64_t conn_id;               // first 8 bytes of the session id, never 0
    char host[96];                  // client: of the fabric listener, numeric
    uint16_t port;
    int status;
    char text[LIENI_TEXT_MAX +
              1]; // FAILED: what and why, printable ASCII, both offers when no provider is common
    uint8_t in[LIENI_OFFER_MAX + 16];
    size_t in_len;
    uint8_t out[2 * (LIENI_OFFER_MAX + 16)];
    size_t out_len;
};

// `session_seed`: 16 random bytes, for servers (clients: NULL). The offer's nonce is filled by the caller. LIEN_EINVAL: `local` is outside the ranges of docs/wire.md; *hs is
// not started then. LIEN_ESYS: libsodium does not start. `keys`: must outlive the handshake; NULL: without a pre-shared key.
int lieni_hs_start(struct lieni_handshake *hs, bool server, const struct lieni_offer *local,
                   const uint8_t session_seed[LIENI_SESSION], const struct lieni_keyring *keys);
// Feeds received bytes; `len` 0 means the stream ended. Returns how many were used; stops using them when READY, FOREIGN or FAILED. In state FOREIGN hs->in holds
// all that was used; bytes beyond (more than hs->in holds, unlikely) are still the caller's. A server in state FAILED has a last word in hs->out, the refusal: send it before the
// stream is closed. In SERVER_PLACE more bytes break the protocol, and the end of the stream ends the handshake.
size_t lieni_hs_input(struct lieni_handshake *hs, const uint8_t *bytes, size_t len);
// Server, in SERVER_PLACE: the fabric listener is there (host NULL or "": the client uses the address it reached us by). LIEN_ESTATE: another state. LIEN_EINVAL: port 0, or a
// host above 95 characters or with other characters than a-z A-Z 0-9 . : % _ -
int lieni_hs_place(struct lieni_handshake *hs, const char *host, uint16_t port);
// Or it can't be: FAILED with a negative `status` and `text` (printable); a server tells the peer. No effect in READY, FOREIGN and FAILED.
void lieni_hs_refuse(struct lieni_handshake *hs, int status, const char *text);
// Bytes to be sent, hs->out[0 .. out_len); `used` of them are gone.
void lieni_hs_sent(struct lieni_handshake *hs, size_t used);
// In READY or SERVER_PLACE (server: before place; the session id is known then): private data that the `server` or client side sends.
void lieni_hs_cm_data(const struct lieni_handshake *hs, bool server, uint8_t data[LIENI_CM_DATA]);

#endif
