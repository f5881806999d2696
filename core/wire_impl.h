// SPDX-License-Identifier: Apache-2.0
//
// What the files of the wire format share, and nobody else includes: wire.c (the frames' common part, messages, names, tokens) and wire_call.c (the frames of calls). Pure functions of bytes.

#ifndef LIENI_WIRE_IMPL_H
#define LIENI_WIRE_IMPL_H

#include <string.h>

#include "core/bytes.h"
#include "core/mem/mem.h"
#include "core/wire.h"

// The length field has 16 bits: one byte less than the largest frame_max.
#define LIENI_FRAME_LEN_MAX 65535u

// In the header's byte of flags.
#define LIENI_FRAME_SUMS 1u
static inline bool frame_sums(const uint8_t *bytes)
{
    return (bytes[1] & LIENI_FRAME_SUMS) != 0;
}

static inline int malformed(const char **why, const char *text)
{
    *why = text;
    return LIEN_EPROTO;
}

// Of kinds that bring no keys.
static inline int check_no_sums(const uint8_t *bytes, const char **why)
{
    return frame_sums(bytes) ? malformed(why, "flags are not 0") : 0;
}

// -- Keys and names, in frames and tokens alike ------------------------------------------------------------------------------------

// `n` keys at `bytes`: each at least a byte long and within the address space, their lengths adding up to `total`.
static inline int check_keys(const uint8_t *bytes, uint32_t n, bool sums, uint64_t total,
                             const char **why)
{
    uint64_t left = total;
    for (uint32_t i = 0; i < n; i++, bytes += lieni_key_size(sums)) {
        uint64_t addr = lieni_get64(bytes);
        uint64_t len = lieni_get64(bytes + 16);
        if (len == 0)
            return malformed(why, "key length is 0");
        if (len > UINT64_MAX - addr)
            return malformed(why, "key address + length is above 2^64 - 1");
        // Counting down from the total cannot overflow, as adding up could.
        if (len > left)
            return malformed(why, "key lengths add up to more than total");
        left -= len;
    }
    if (left != 0)
        return malformed(why, "key lengths add up to less than total");
    return 0;
}

static inline void load_keys(const uint8_t *bytes, uint32_t n, bool sums, struct lieni_key *keys)
{
    for (uint32_t i = 0; i < n; i++, bytes += lieni_key_size(sums)) {
        keys[i].addr = lieni_get64(bytes);
        keys[i].key = lieni_get64(bytes + 8);
        keys[i].len = lieni_get64(bytes + 16);
        keys[i].sum = sums ? lieni_get64(bytes + LIENI_KEY_SIZE) : 0;
    }
}

static inline void store_keys(uint8_t *bytes, uint32_t n, bool sums, const struct lieni_key *keys)
{
    for (uint32_t i = 0; i < n; i++, bytes += lieni_key_size(sums)) {
        lieni_put64(bytes, keys[i].addr);
        lieni_put64(bytes + 8, keys[i].key);
        lieni_put64(bytes + 16, keys[i].len);
        if (sums)
            lieni_put64(bytes + LIENI_KEY_SIZE, keys[i].sum);
    }
}

// `slots`: the size of the table the name is of.
static inline int check_name(const uint8_t *bytes, uint32_t slots, const char **why)
{
    if (lieni_get32(bytes) >= slots)
        return malformed(why, "slot is not below the owner's grants_max");
    if (lieni_get32(bytes + 4) == 0)
        return malformed(why, "generation is 0");
    return 0;
}

static inline struct lieni_name load_name(const uint8_t *bytes)
{
    return (struct lieni_name){.slot = lieni_get32(bytes), .gen = lieni_get32(bytes + 4)};
}

static inline void store_name(uint8_t *bytes, struct lieni_name name)
{
    lieni_put32(bytes, name.slot);
    lieni_put32(bytes + 4, name.gen);
}

// -- Frames --

// What a frame without body says of one.
static inline void no_body(struct lieni_frame *frame)
{
    frame->name = (struct lieni_name){0, 0};
    frame->total = 0;
    frame->sums = false;
    frame->n_keys = 0;
    frame->head = NULL;
    frame->head_len = 0;
    frame->n_names = 0;
    frame->method_len = 0;
    frame->n_read_keys = 0;
    frame->n_ops = 0;
    frame->n_probes = 0;
}

// wire_call.c. Frames of calls, for lieni_frame_decode() and lieni_frame_encode(): a frame whose header is checked, of one of their kinds.
int lieni_wire_call_decode(enum lieni_frame_kind kind, const uint8_t *bytes, size_t len,
                           const struct lieni_wire_limits *limits, struct lieni_frame *frame,
                           const char **why);
// Length of what follows the frame header, or 0: too many of something for any frame.
size_t lieni_wire_call_len(const struct lieni_frame *frame);
// `at`: behind the frame header.
void lieni_wire_call_encode(const struct lieni_frame *frame, uint8_t *at, _Atomic uint64_t *copied);

#endif
