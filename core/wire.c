// SPDX-License-Identifier: Apache-2.0
//
// Encoders and decoders of frames and tokens (docs/wire.md); those of calls are in wire_call.c. Pure functions of bytes: no state, no lock, no allocation. A decoder checks all of its input before it writes
// the first field of its output, so a refused frame leaves the output as it was; and each encoding is the only one of its value, so decoding and encoding give the same bytes.

#include "core/wire_impl.h"

_Static_assert(LIENI_TOKEN_HEADER + LIEN_BUFS_MAX * (LIENI_KEY_SIZE + LIENI_SUM_SIZE) <=
                   LIEN_TOKEN_MAX,
               "the largest token fits");

#define NAME_SIZE 8u

// Offsets in the frame header.
enum {
    AT_KIND = 0,
    AT_FLAGS = 1,
    AT_LEN = 2,
    AT_MESSAGE_CREDITS = 4,
    AT_CONTROL_CREDITS = 6,
    AT_NUMBER = 8,
    AT_ZERO = 12
};

// Offsets in the body header, which follows the frame header of a MSG.
enum {
    BODY_SLOT = 0,
    BODY_GEN = 4,
    BODY_TOTAL = 8,
    BODY_KEYS = 16,
    BODY_ZERO = 17
};

// Offsets in the token header.
enum {
    TOKEN_VERSION = 4,
    TOKEN_KIND = 5,
    TOKEN_KEYS = 6,
    TOKEN_CONN = 8,
    TOKEN_SLOT = 16,
    TOKEN_GEN = 20,
    TOKEN_TOTAL = 24
};

static const uint8_t token_magic[4] = {'L', 'T', 'K', '1'};

// -- Frames: decoding --------------------------------------------------------------------------------------------------------------

static int decode_msg(const uint8_t *bytes, size_t len, const struct lieni_wire_limits *limits,
                      struct lieni_frame *frame, const char **why)
{
    if (len < LIENI_FRAME_HEADER + LIENI_BODY_HEADER)
        return malformed(why, "MSG length is below 40, its two headers");
    const uint8_t *body = bytes + LIENI_FRAME_HEADER;
    const uint8_t *keys = body + LIENI_BODY_HEADER;
    const size_t rest = len - LIENI_FRAME_HEADER - LIENI_BODY_HEADER;
    const uint32_t n = body[BODY_KEYS];
    const bool sums = frame_sums(bytes);
    const size_t all_keys = n * lieni_key_size(sums);
    const uint64_t total = lieni_get64(body + BODY_TOTAL);

    if (!lieni_all_zero(body + BODY_ZERO, LIENI_BODY_HEADER - BODY_ZERO))
        return malformed(why, "MSG reserved bytes are not 0");
    if (n == 0 && !lieni_all_zero(body, LIENI_BODY_HEADER))
        return malformed(why, "MSG without buffers has a slot, generation or total");
    if (n == 0 && sums)
        return malformed(why, "MSG without buffers has flags");
    if (n > LIEN_BUFS_MAX)
        return malformed(why, "MSG buffers is above 64");
    if (all_keys > rest)
        return malformed(why, "MSG buffers is above what the frame's length holds");
    if (total > limits->message_max)
        return malformed(why, "MSG total is above message_max");
    int rc = n == 0 ? 0 : check_name(body + BODY_SLOT, limits->grants_max, why);
    if (rc == 0)
        rc = check_keys(keys, n, sums, total, why);
    if (rc != 0)
        return rc;

    frame->name = load_name(body + BODY_SLOT);
    frame->total = total;
    frame->sums = sums;
    frame->n_keys = n;
    load_keys(keys, n, sums, frame->keys);
    frame->head = keys + all_keys;
    frame->head_len = rest - all_keys;
    frame->n_names = 0;
    frame->method_len = 0;
    frame->n_read_keys = 0;
    frame->n_ops = 0;
    frame->n_probes = 0;
    return 0;
}

static int decode_names(const uint8_t *bytes, size_t len, uint32_t slots, struct lieni_frame *frame,
                        const char **why)
{
    const size_t rest = len - LIENI_FRAME_HEADER;
    const uint8_t *names = bytes + LIENI_FRAME_HEADER;
    if (rest % NAME_SIZE != 0)
        return malformed(why, "length leaves part of a name");
    const size_t n = rest / NAME_SIZE;
    if (n < 1 || n > LIENI_NAMES_MAX)
        return malformed(why, "number of names is not 1..64");
    for (size_t i = 0; i < n; i++) {
        int rc = check_name(names + i * NAME_SIZE, slots, why);
        if (rc != 0)
            return rc;
    }

    no_body(frame);
    frame->n_names = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        frame->names[i] = load_name(names + i * NAME_SIZE);
    return 0;
}

static int decode_bare(size_t len, struct lieni_frame *frame, const char **why)
{
    if (len != LIENI_FRAME_HEADER)
        return malformed(why,
                         "bytes after the header of CREDIT, BEAT, BYE, ALIVE, GOAWAY or HEARD");
    no_body(frame);
    return 0;
}

// -- Frames: the common part -------------------------------------------------------------------------------------------------------

static int check_header(const uint8_t *bytes, size_t len, size_t frame_max, const char **why)
{
    if (len < LIENI_FRAME_HEADER)
        return malformed(why, "frame is shorter than its 16 byte header");
    if (len > frame_max)
        return malformed(why, "frame is longer than frame_max");
    if ((bytes[AT_FLAGS] & ~LIENI_FRAME_SUMS) != 0)
        return malformed(why, "flags are unknown");
    if (lieni_get16(bytes + AT_LEN) != len)
        return malformed(why, "length is not the number of bytes received");
    if (!lieni_all_zero(bytes + AT_ZERO, LIENI_FRAME_HEADER - AT_ZERO))
        return malformed(why, "header reserved bytes are not 0");
    return 0;
}

int lieni_frame_decode(const uint8_t *bytes, size_t len, const struct lieni_wire_limits *limits,
                       struct lieni_frame *frame, const char **why)
{
    int rc = check_header(bytes, len, limits->frame_max, why);
    if (rc != 0)
        return rc;
    const enum lieni_frame_kind kind = (enum lieni_frame_kind)bytes[AT_KIND];
    rc = malformed(why, "unknown kind");
    switch (kind) {
    case LIENI_FRAME_MSG:
        rc = decode_msg(bytes, len, limits, frame, why);
        break;
    case LIENI_FRAME_RELEASE:
        rc = check_no_sums(bytes, why);
        if (rc == 0)
            rc = decode_names(bytes, len, limits->own_grants_max, frame, why);
        break;
    case LIENI_FRAME_REVOKE:
        rc = check_no_sums(bytes, why);
        if (rc == 0)
            rc = decode_names(bytes, len, limits->grants_max, frame, why);
        break;
    case LIENI_FRAME_CREDIT:
    case LIENI_FRAME_BEAT:
    case LIENI_FRAME_ALIVE:
    case LIENI_FRAME_BYE:
    case LIENI_FRAME_GOAWAY:
    case LIENI_FRAME_HEARD:
        rc = check_no_sums(bytes, why);
        if (rc == 0)
            rc = decode_bare(len, frame, why);
        break;
    case LIENI_FRAME_CALL:
    case LIENI_FRAME_REPLY:
    case LIENI_FRAME_CANCEL:
    case LIENI_FRAME_PROBE:
    case LIENI_FRAME_ANSWER:
    case LIENI_FRAME_WRITE:
    case LIENI_FRAME_WRITTEN:
        rc = lieni_wire_call_decode(kind, bytes, len, limits, frame, why);
        break;
    }
    if (rc != 0)
        return rc;
    frame->kind = kind;
    frame->message_credits = lieni_get16(bytes + AT_MESSAGE_CREDITS);
    frame->control_credits = lieni_get16(bytes + AT_CONTROL_CREDITS);
    frame->number = lieni_get32(bytes + AT_NUMBER);
    return 0;
}

// -- Frames: encoding --------------------------------------------------------------------------------------------------------------

static void encode_msg(const struct lieni_frame *frame, uint8_t *bytes, _Atomic uint64_t *copied)
{
    uint8_t *body = bytes + LIENI_FRAME_HEADER;
    uint8_t *keys = body + LIENI_BODY_HEADER;
    memset(body, 0, LIENI_BODY_HEADER);
    if (frame->n_keys > 0) {
        store_name(body + BODY_SLOT, frame->name);
        lieni_put64(body + BODY_TOTAL, frame->total);
        body[BODY_KEYS] = (uint8_t)frame->n_keys;
        store_keys(keys, frame->n_keys, frame->sums, frame->keys);
    }
    if (frame->head_len > 0)
        lieni_copy_payload(copied, keys + frame->n_keys * lieni_key_size(frame->sums), frame->head,
                           frame->head_len);
}

// Length of the encoded frame, or 0: no such kind, or too many keys or names for any frame.
static size_t encoded_len(const struct lieni_frame *frame)
{
    switch (frame->kind) {
    case LIENI_FRAME_MSG:
        if (frame->n_keys > LIEN_BUFS_MAX)
            return 0;
        // A head of any size must not wrap the sum.
        if (frame->head_len > LIENI_FRAME_LEN_MAX)
            return LIENI_FRAME_LEN_MAX + 1;
        return LIENI_FRAME_HEADER + LIENI_BODY_HEADER +
               frame->n_keys * lieni_key_size(frame->sums) + frame->head_len;
    case LIENI_FRAME_RELEASE:
    case LIENI_FRAME_REVOKE:
        if (frame->n_names < 1 || frame->n_names > LIENI_NAMES_MAX)
            return 0;
        return LIENI_FRAME_HEADER + frame->n_names * NAME_SIZE;
    case LIENI_FRAME_CREDIT:
    case LIENI_FRAME_BEAT:
    case LIENI_FRAME_ALIVE:
    case LIENI_FRAME_BYE:
    case LIENI_FRAME_GOAWAY:
    case LIENI_FRAME_HEARD:
        return LIENI_FRAME_HEADER;
    case LIENI_FRAME_CALL:
    case LIENI_FRAME_REPLY:
    case LIENI_FRAME_CANCEL:
    case LIENI_FRAME_PROBE:
    case LIENI_FRAME_ANSWER:
    case LIENI_FRAME_WRITE:
    case LIENI_FRAME_WRITTEN:
        break;
    }
    const size_t part = lieni_wire_call_len(frame);
    return part > 0 ? LIENI_FRAME_HEADER + part : 0;
}

// Of other kinds neither keys nor sums are looked at.
static bool has_sums(const struct lieni_frame *frame)
{
    const bool keyed = frame->kind == LIENI_FRAME_MSG || frame->kind == LIENI_FRAME_REPLY ||
                       frame->kind == LIENI_FRAME_WRITE;
    return (keyed && frame->n_keys > 0 && frame->sums) ||
           (frame->kind == LIENI_FRAME_CALL && frame->sums);
}

int lieni_frame_encode(const struct lieni_frame *frame, uint8_t *bytes, size_t size,
                       _Atomic uint64_t *copied, size_t *len)
{
    const size_t need = encoded_len(frame);
    if (need == 0)
        return LIEN_EINVAL;
    if (need > size || need > LIENI_FRAME_LEN_MAX)
        return LIEN_EMSGSIZE;
    memset(bytes, 0, LIENI_FRAME_HEADER);
    bytes[AT_KIND] = (uint8_t)frame->kind;
    if (has_sums(frame))
        bytes[AT_FLAGS] = LIENI_FRAME_SUMS;
    lieni_put16(bytes + AT_LEN, (uint16_t)need);
    lieni_frame_stamp(bytes, frame->message_credits, frame->control_credits, frame->number);
    switch (frame->kind) {
    case LIENI_FRAME_MSG:
        encode_msg(frame, bytes, copied);
        break;
    case LIENI_FRAME_RELEASE:
    case LIENI_FRAME_REVOKE:
        for (uint32_t i = 0; i < frame->n_names; i++)
            store_name(bytes + LIENI_FRAME_HEADER + i * NAME_SIZE, frame->names[i]);
        break;
    case LIENI_FRAME_CALL:
    case LIENI_FRAME_REPLY:
    case LIENI_FRAME_CANCEL:
    case LIENI_FRAME_PROBE:
    case LIENI_FRAME_ANSWER:
    case LIENI_FRAME_WRITE:
    case LIENI_FRAME_WRITTEN:
        lieni_wire_call_encode(frame, bytes + LIENI_FRAME_HEADER, copied);
        break;
    case LIENI_FRAME_CREDIT:
    case LIENI_FRAME_BEAT:
    case LIENI_FRAME_ALIVE:
    case LIENI_FRAME_BYE:
    case LIENI_FRAME_GOAWAY:
    case LIENI_FRAME_HEARD:
        break;
    }
    *len = need;
    return 0;
}

void lieni_frame_stamp(uint8_t *bytes, uint16_t message_credits, uint16_t control_credits,
                       uint32_t number)
{
    lieni_put16(bytes + AT_MESSAGE_CREDITS, message_credits);
    lieni_put16(bytes + AT_CONTROL_CREDITS, control_credits);
    lieni_put32(bytes + AT_NUMBER, number);
}

// -- Tokens ------------------------------------------------------------------------------------------------------------------------

static bool token_kind_known(uint8_t kind)
{
    switch ((enum lieni_token_kind)kind) {
    case LIENI_TOKEN_HELD:
    case LIENI_TOKEN_BORROWED:
        return true;
    }
    return false;
}

int lieni_token_decode(const uint8_t *bytes, size_t len, struct lieni_token_data *token,
                       const char **why)
{
    if (len < LIENI_TOKEN_HEADER)
        return malformed(why, "token is shorter than its 32 byte header");
    const uint32_t n = lieni_get16(bytes + TOKEN_KEYS);
    const uint8_t kind = bytes[TOKEN_KIND] & (uint8_t)~LIENI_TOKEN_SUMS;
    const bool sums = (bytes[TOKEN_KIND] & LIENI_TOKEN_SUMS) != 0;
    const uint64_t total = lieni_get64(bytes + TOKEN_TOTAL);
    if (memcmp(bytes, token_magic, sizeof token_magic) != 0)
        return malformed(why, "token magic is not LTK1");
    if (bytes[TOKEN_VERSION] != LIENI_WIRE_VERSION)
        return malformed(why, "token version is not 1");
    if (!token_kind_known(kind))
        return malformed(why, "token kind is unknown");
    if (n > LIEN_BUFS_MAX)
        return malformed(why, "token buffers is not 0..64");
    if (len != LIENI_TOKEN_HEADER + n * lieni_key_size(sums))
        return malformed(why, "token length is not 32 + 24 for each buffer, or 32 with checksums");
    if (lieni_get64(bytes + TOKEN_CONN) == 0)
        return malformed(why, "token connection is 0");
    if (lieni_get32(bytes + TOKEN_GEN) == 0)
        return malformed(why, "token generation is 0");
    int rc = check_keys(bytes + LIENI_TOKEN_HEADER, n, sums, total, why);
    if (rc != 0)
        return rc;

    token->kind = (enum lieni_token_kind)kind;
    token->sums = sums;
    token->conn = lieni_get64(bytes + TOKEN_CONN);
    token->name = load_name(bytes + TOKEN_SLOT);
    token->total = total;
    token->n_keys = n;
    load_keys(bytes + LIENI_TOKEN_HEADER, n, sums, token->keys);
    return 0;
}

void lieni_token_encode(const struct lieni_token_data *token, lien_token *out)
{
    // A caller's mistake makes a token that no decoder takes, not a write past its end.
    out->len = 0;
    if (token->n_keys > LIEN_BUFS_MAX)
        return;
    uint8_t *bytes = out->bytes;
    memcpy(bytes, token_magic, sizeof token_magic);
    bytes[TOKEN_VERSION] = LIENI_WIRE_VERSION;
    bytes[TOKEN_KIND] = (uint8_t)(token->kind | (token->sums ? LIENI_TOKEN_SUMS : 0));
    lieni_put16(bytes + TOKEN_KEYS, (uint16_t)token->n_keys);
    lieni_put64(bytes + TOKEN_CONN, token->conn);
    store_name(bytes + TOKEN_SLOT, token->name);
    lieni_put64(bytes + TOKEN_TOTAL, token->total);
    store_keys(bytes + LIENI_TOKEN_HEADER, token->n_keys, token->sums, token->keys);
    out->len = (uint32_t)(LIENI_TOKEN_HEADER + token->n_keys * lieni_key_size(token->sums));
}
