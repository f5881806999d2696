// SPDX-License-Identifier: Apache-2.0
//
// The bytes of Lien's frames, tokens and bootstrap messages: encoders and decoders, pure functions of bytes, little-endian (docs/wire.md). A decoder trusts no length: it
// answers LIEN_EPROTO and names the field in *why, or gives values already checked against the limits passed in.

#ifndef LIENI_WIRE_H
#define LIENI_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/lien.h>

#define LIENI_WIRE_VERSION 1

// -- Frames: one SEND each ---------------------------------------------------------------------------------------------------------

#define LIENI_FRAME_HEADER                                                                         \
    16u // kind 1, flags 1 (0), length 2 of the whole frame, message credits 2, control credits 2, number 4 (counts frames of this direction from 1, wraps), zero 4
#define LIENI_BODY_HEADER                                                                          \
    24u // slot 4, generation 4, total 8, buffers 1, zero 7: in each MSG frame; buffers 0: all zero
#define LIENI_KEY_SIZE  24u // remote address 8, key 8, length 8
#define LIENI_NAMES_MAX 64u // grant names in one RELEASE or REVOKE frame

enum lieni_frame_kind {
    LIENI_FRAME_MSG = 1, // message class: body header, keys, head bytes to the end
    LIENI_FRAME_RELEASE =
        2, // control: 1 .. LIENI_NAMES_MAX names of grants of the *receiver* that the sender is done with
    LIENI_FRAME_REVOKE = 3, // control: names of grants of the *sender* to be released
    LIENI_FRAME_CREDIT = 4, // control: nothing but the header's credits
    LIENI_FRAME_BEAT = 5,   // control: heartbeat: asks for a sign of life
    LIENI_FRAME_ALIVE = 16, // control: the answer to BEAT
    LIENI_FRAME_BYE = 6     // control: the sender ends the connection; the last frame it sends
};

// A grant's name on its connection: a slot of the owner's table and its generation (from 1, never reused on a connection).
struct lieni_name {
    uint32_t slot;
    uint32_t gen;
};

struct lieni_key {
    uint64_t addr;
    uint64_t key;
    uint64_t len;
};

struct lieni_frame {
    enum lieni_frame_kind kind;
    uint16_t message_credits; // given back by the sender
    uint16_t control_credits;
    uint32_t number;
    // MSG
    struct lieni_name name; // of the body's grant; gen 0: no body
    uint64_t total;         // bytes of the body, the sum of the keys' lengths
    uint32_t n_keys;
    struct lieni_key keys[LIEN_BUFS_MAX];
    const uint8_t *head; // into the frame
    size_t head_len;
    // RELEASE, REVOKE
    uint32_t n_names;
    struct lieni_name names[LIENI_NAMES_MAX];
};

struct lieni_wire_limits {
    size_t frame_max;
    uint64_t message_max;
    uint32_t grants_max;     // slots of the peer's grants (MSG, REVOKE) are below it
    uint32_t own_grants_max; // slots of ours (RELEASE) are below it
};

// Decodes one received frame of `len` bytes (what the completion said, already bounded by the receive's size).
int lieni_frame_decode(const uint8_t *bytes, size_t len, const struct lieni_wire_limits *limits,
                       struct lieni_frame *frame, const char **why);
// Encodes into `bytes` of `size`; writes *len. LIEN_EMSGSIZE if it does not fit. For MSG the head is copied from frame->head through lieni_copy_payload.
int lieni_frame_encode(const struct lieni_frame *frame, uint8_t *bytes, size_t size,
                       _Atomic uint64_t *copied, size_t *len);
// Credits and number of an encoded frame, set right before it is posted.
void lieni_frame_stamp(uint8_t *bytes, uint16_t message_credits, uint16_t control_credits,
                       uint32_t number);

// -- Tokens ------------------------------------------------------------------------------------------------------------------------

#define LIENI_TOKEN_HEADER                                                                         \
    32u // magic "LTK1" 4, version 1, kind 1, buffers 2, connection 8, slot 4, generation 4, total 8; then keys

enum lieni_token_kind {
    LIENI_TOKEN_HELD = 1,
    LIENI_TOKEN_BORROWED = 2
};

struct lieni_token_data {
    enum lieni_token_kind kind;
    uint64_t conn; // connection id, from the session id
    struct lieni_name name;
    uint64_t total;
    uint32_t n_keys;
    struct lieni_key keys[LIEN_BUFS_MAX];
};
int lieni_token_decode(
    const uint8_t *bytes, size_t len, struct lieni_token_data *token,
    const char **why); // slot is checked by the caller, against the connection's limit
void lieni_token_encode(const struct lieni_token_data *token, lien_token *out);

#endif
