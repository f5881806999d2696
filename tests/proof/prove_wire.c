// SPDX-License-Identifier: Apache-2.0
//
// For Frama-C's EVA (ci/proof), never run: what comes from the wire or from a token, of PROVE_FROM to PROVE_TO
// bytes, each byte any value, under any limits, decoded and then read as core reads it. The bytes end where
// their object ends, so that reading or pointing one byte too far is an alarm.
//
// EVA knows ranges of numbers, not relations between them such as "keys times size is at most the length".
// The counts in a frame are therefore tried one by one as far as the frame's length can hold them, and all larger values together.

#include "core/handshake.h"
#include "core/wire.h"

// Set by ci/proof: lengths, kind of frame (0: any byte), bytes of its fixed part, bytes of one of what is counted, where the counts are
// (0: none), a count of single bytes, and what to decode.
#if !defined(PROVE_FROM) || !defined(PROVE_TO) || !defined(PROVE_DECODE)
#error "see ci/proof"
#endif

#include "__fc_builtin.h"

static uint8_t object[PROVE_TO];
static volatile uint64_t sink;

static void read_bytes(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        sink = bytes[i];
}

static void read_keys(const struct lieni_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sink = keys[i].addr + keys[i].key + keys[i].len + keys[i].sum;
}

// What core does with what it was given: reads all of it.
static void read_frame(const struct lieni_frame *frame)
{
    // Where a CALL's head begins depends on its method's length: read where that is tried one by one.
    if (frame->method_len == 0 || PROVE_C)
        read_bytes(frame->head, frame->head_len);
    if (frame->method_len > 0)
        read_bytes((const uint8_t *)frame->method, frame->method_len);
    read_keys(frame->keys, frame->n_keys);
    read_keys(frame->read_keys, frame->n_read_keys);
    for (uint32_t i = 0; i < frame->n_ops; i++) {
        lien_op op;
        uint8_t again[LIENI_OP_SIZE];
        lieni_op_load(frame->ops + i * LIENI_OP_SIZE, &op);
        lieni_op_store(again, &op);
        sink = op.len;
    }
    for (uint32_t i = 0; i < frame->n_probes; i++)
        sink = frame->probes[i].id;
    for (uint32_t i = 0; i < frame->n_names; i++)
        sink = frame->names[i].gen;
}

static void decode_frame(const uint8_t *bytes, size_t len)
{
    struct lieni_frame frame;
    const char *why = 0;
    const struct lieni_wire_limits limits = {
        .frame_max = Frama_C_unsigned_int_interval(0, UINT32_MAX),
        .message_max = Frama_C_unsigned_long_long_interval(0, UINT64_MAX),
        .grants_max = Frama_C_unsigned_int_interval(0, UINT32_MAX),
        .own_grants_max = Frama_C_unsigned_int_interval(0, UINT32_MAX),
        .calls_max = Frama_C_unsigned_int_interval(0, UINT32_MAX),
        .side = Frama_C_unsigned_int_interval(0, 1),
    };
    if (lieni_frame_decode(bytes, len, &limits, &frame, &why) == 0)
        read_frame(&frame);
}

static void decode_token(const uint8_t *bytes, size_t len)
{
    struct lieni_token_data token;
    const char *why = 0;
    if (lieni_token_decode(bytes, len, &token, &why) == 0)
        read_keys(token.keys, token.n_keys);
}

static void decode_offer(const uint8_t *bytes, size_t len)
{
    struct lieni_offer offer;
    const char *why = 0;
    if (lieni_offer_decode(bytes, len, &offer, &why) == 0) {
        for (uint32_t i = 0; i < offer.n_providers; i++)
            read_bytes((const uint8_t *)offer.providers[i], sizeof offer.providers[i]);
    }
}

// The byte at `at` (0: none) takes its value number `i`: i itself, or, at i == most + 1, all larger ones.
static void pin(uint8_t *bytes, size_t len, size_t at, size_t i, size_t most)
{
    if (at == 0 || at >= len)
        return;
    bytes[at] = (uint8_t)(i <= most ? i : Frama_C_unsigned_int_interval((unsigned)most + 1, 255));
}

// The number of values to try for the count at `at`.
static size_t tries(size_t len, size_t at, size_t most)
{
    return at == 0 || at >= len ? 1 : most + 2;
}

// Whether keys carry checksums: tried both ways, since it tells their size. Then what no decoder takes.
static void flag(uint8_t *bytes, size_t len, size_t i)
{
    const bool keyed = PROVE_KIND == 1 || PROVE_KIND == 7 || PROVE_KIND == 8 || PROVE_KIND == 12;
    if (keyed && len > 1)
        bytes[1] = (uint8_t)(i < 2 ? i : Frama_C_unsigned_int_interval(2, 255));
    if (PROVE_KIND == 0 && PROVE_A == 6 && len > 5) // a token
        bytes[5] = (uint8_t)(i == 0 ? Frama_C_unsigned_int_interval(0, 127)
                                    : Frama_C_unsigned_int_interval(128, 255));
}

static size_t flag_tries(void)
{
    if (PROVE_KIND == 1 || PROVE_KIND == 7 || PROVE_KIND == 8 || PROVE_KIND == 12)
        return 3;
    return PROVE_KIND == 0 && PROVE_A == 6 ? 2 : 1;
}

int main(void)
{
    for (size_t len = PROVE_FROM; len <= PROVE_TO; len++) {
        uint8_t *bytes = object + sizeof object - len;
        // As many as fit in the bytes behind the fixed part.
        const size_t most = len > PROVE_FIXED ? (len - PROVE_FIXED) / PROVE_SIZE : 0;
        for (size_t f = 0; f < flag_tries(); f++)
            for (size_t a = 0; a < tries(len, PROVE_A, most); a++)
                for (size_t b = 0; b < tries(len, PROVE_B, most); b++)
                    for (size_t c = 0; c < tries(len, PROVE_C, len - PROVE_FIXED); c++) {
                        Frama_C_make_unknown((char *)object, sizeof object);
                        if (PROVE_KIND != 0 && len > 0)
                            bytes[0] = PROVE_KIND;
                        flag(bytes, len, f);
                        pin(bytes, len, PROVE_A, a, most);
                        pin(bytes, len, PROVE_B, b, most);
                        pin(bytes, len, PROVE_C, c, len - PROVE_FIXED);
                        PROVE_DECODE(bytes, len);
                    }
    }
    return 0;
}
