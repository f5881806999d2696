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
    16u // kind 1, flags 1, length 2 of the whole frame, message credits 2, control credits 2, number 4 (counts frames of this direction from 1, wraps), zero 4
#define LIENI_BODY_HEADER                                                                          \
    24u // slot 4, generation 4, total 8, buffers 1, zero 7: in each MSG frame; buffers 0: all zero
#define LIENI_KEY_SIZE  24u // remote address 8, key 8, length 8
#define LIENI_SUM_SIZE  8u  // checksum of a buffer: the rest of a key where they carry one
#define LIENI_NAMES_MAX 64u // grant names in one RELEASE or REVOKE frame

enum lieni_frame_kind {
    LIENI_FRAME_MSG = 1, // message class: body header, keys, head bytes to the end
    LIENI_FRAME_RELEASE =
        2, // control: 1 .. LIENI_NAMES_MAX names of grants of the *receiver* that the sender is done with
    LIENI_FRAME_REVOKE = 3, // control: names of grants of the *sender* to be released
    LIENI_FRAME_CREDIT = 4, // control: nothing but the header's credits
    LIENI_FRAME_BEAT = 5,   // control: heartbeat: asks for a sign of life
    LIENI_FRAME_ALIVE = 16, // control: the answer to BEAT
    LIENI_FRAME_BYE = 6,    // control: the sender ends the connection; the last frame it sends
    LIENI_FRAME_CALL = 7,   // message class: begins a call; arguments inline or as a body
    LIENI_FRAME_REPLY = 8,  // reply class: ends a call; exactly one for each CALL
    LIENI_FRAME_CANCEL = 9, // control: the caller gave a call of its own up
    LIENI_FRAME_PROBE = 10, // control: do these calls of the receiver live, with these read spaces?
    LIENI_FRAME_ANSWER = 11, // control: yes or no to probes
    LIENI_FRAME_WRITE =
        12, // control: READ these grants of the sender into the write space of a call of the receiver
    LIENI_FRAME_WRITTEN = 13, // control: the end of a WRITE
    LIENI_FRAME_GOAWAY = 14,  // control: the sender takes no new calls
    LIENI_FRAME_HEARD = 15    // control: the answer to GOAWAY: no CALL of the sender follows it
};

// A call's id: (generation << 16 | slot) << 1 | side. `side` is 1 for calls of the side that accepted the connection.
#define LIENI_CALL_SLOTS_MAX 4096u
#define LIENI_METHOD_MAX     255u // bytes of a method's name
#define LIENI_PROBES_MAX     64u  // probes or answers in one frame
#define LIENI_CALL_FIXED     64u  // bytes of a CALL behind the frame header, before its keys
#define LIENI_WRITE_FIXED    32u  // the same of a WRITE
#define LIENI_REPLY_FIXED    32u  // the same of a REPLY
#define LIENI_OP_SIZE        24u  // source offset 8, destination offset 8, length 8

static inline uint64_t lieni_call_id(uint32_t gen, uint32_t slot, unsigned side)
{
    return ((uint64_t)gen << 16 | slot) << 1 | side;
}
static inline unsigned lieni_call_side(uint64_t id)
{
    return (unsigned)(id & 1);
}
static inline uint32_t lieni_call_slot(uint64_t id)
{
    return (uint32_t)(id >> 1 & 0xffff);
}
// 0 in no id; generations end at UINT32_MAX, then the slot is not used again.
static inline uint64_t lieni_call_gen(uint64_t id)
{
    return id >> 17;
}

// A grant's name on its connection: a slot of the owner's table and its generation (from 1, never reused on a connection).
struct lieni_name {
    uint32_t slot;
    uint32_t gen;
};

struct lieni_key {
    uint64_t addr;
    uint64_t key;
    uint64_t len;
    uint64_t sum; // XXH3 of the buffer's bytes, where the keys carry one; else 0
};

// Bytes of one key on the wire.
static inline size_t lieni_key_size(bool sums)
{
    return LIENI_KEY_SIZE + (sums ? LIENI_SUM_SIZE : 0);
}

struct lieni_probe {
    uint32_t id;
    uint64_t call;          // PROBE
    struct lieni_name name; // PROBE: the read space's grant
    bool holds;             // ANSWER
};

struct lieni_frame {
    enum lieni_frame_kind kind;
    uint16_t message_credits; // given back by the sender
    uint16_t control_credits;
    uint32_t number;
    // MSG, CALL, REPLY, WRITE (the source)
    struct lieni_name name; // of the body's grant; gen 0: no body
    uint64_t total;         // bytes of the body, the sum of the keys' lengths
    bool
        sums; // all keys of the frame carry checksums; CALL: those of its answers are to carry them too
    uint32_t n_keys;
    struct lieni_key keys[LIEN_BUFS_MAX];
    const uint8_t *head; // MSG, CALL, REPLY: into the frame
    size_t head_len;
    // CALL, REPLY, CANCEL, WRITE, WRITTEN
    uint64_t call;
    // CALL
    uint32_t deadline_ms; // left when it was queued
    const char *method;   // into the frame, without NUL
    uint32_t method_len;
    uint64_t reply_max;          // bytes of the largest body of a reply
    uint64_t space_len;          // of the write space; 0: none
    struct lieni_name read_name; // of the read space's grant; gen 0: none
    uint64_t read_total;
    uint32_t n_read_keys;
    struct lieni_key read_keys[LIEN_BUFS_MAX];
    int32_t status; // REPLY, WRITTEN
    bool unbegun;   // REPLY: no handler began
    // WRITE, WRITTEN
    uint32_t write;
    bool first, last;   // WRITE
    uint32_t n_ops;     // WRITE
    const uint8_t *ops; // WRITE: n_ops encoded operations, into the frame
    // PROBE, ANSWER
    uint32_t n_probes;
    struct lieni_probe probes[LIENI_PROBES_MAX];
    // RELEASE, REVOKE
    uint32_t n_names;
    struct lieni_name names[LIENI_NAMES_MAX];
};

struct lieni_wire_limits {
    size_t frame_max;
    uint64_t message_max;
    uint32_t grants_max;     // slots of the peer's grants (MSG, REVOKE) are below it
    uint32_t own_grants_max; // slots of ours (RELEASE, PROBE) are below it
    uint32_t calls_max;      // slots of calls are below it
    unsigned side;           // ours, in the ids of our calls
};

// Operations of a WRITE, from and to bytes.
void lieni_op_load(const uint8_t *bytes, lien_op *op);
void lieni_op_store(uint8_t *bytes, const lien_op *op);

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
    32u // magic "LTK1" 4, version 1, kind 1 (with LIENI_TOKEN_SUMS: keys carry checksums), buffers 2, connection 8, slot 4, generation 4, total 8; then keys

enum lieni_token_kind {
    LIENI_TOKEN_HELD = 1,
    LIENI_TOKEN_BORROWED = 2
};
#define LIENI_TOKEN_SUMS 0x80u

struct lieni_token_data {
    enum lieni_token_kind kind;
    uint64_t conn; // connection id, from the session id
    struct lieni_name name;
    uint64_t total;
    bool sums; // all keys carry checksums
    uint32_t n_keys;
    struct lieni_key keys[LIEN_BUFS_MAX];
};
int lieni_token_decode(
    const uint8_t *bytes, size_t len, struct lieni_token_data *token,
    const char **why); // slot is checked by the caller, against the connection's limit
void lieni_token_encode(const struct lieni_token_data *token, lien_token *out);

#endif
