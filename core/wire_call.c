// SPDX-License-Identifier: Apache-2.0
//
// The frames of calls (docs/wire.md): as wire.c, pure functions of bytes that check all of their input before they write the first field of their output.

#include "core/wire_impl.h"

// -- Decoding -----------------------------------------------------------------------------------------------------

// Offsets behind the frame header.
enum {
    CALL_ID = 0, // in all of them but PROBE, ANSWER, GOAWAY, HEARD
    CALL_DEADLINE = 8,
    CALL_METHOD = 12,
    CALL_KEYS = 13,
    CALL_READ_KEYS = 14,
    CALL_ZERO = 15,
    CALL_REPLY_MAX = 16,
    CALL_SPACE = 24,
    CALL_BODY = 32, // slot, generation, total
    CALL_READ = 48, // slot, generation, total
    REPLY_STATUS = 8,
    REPLY_KEYS = 12,
    REPLY_UNBEGUN = 13,
    REPLY_ZERO = 14,
    REPLY_BODY = 16,
    REPLY_FIXED = LIENI_REPLY_FIXED,
    CANCEL_FIXED = 8,
    WRITE_ID = 8,
    WRITE_FLAGS = 12,
    WRITE_KEYS = 13,
    WRITE_OPS = 14,
    WRITE_BODY = 16,
    WRITTEN_STATUS = 12,
    WRITTEN_FIXED = 16,
    PROBE_CALL = 4,
    PROBE_NAME = 12,
    PROBE_SIZE = 20,
    ANSWER_HOLDS = 4,
    ANSWER_ZERO = 5,
    ANSWER_SIZE = 8,
    GRANT_TOTAL = 8, // in a grant's slot, generation, total
    GRANT_SIZE = 16
};
#define FLAG_FIRST 1u
#define FLAG_LAST  2u

// `side`: whose call it must be.
static int check_call(const uint8_t *bytes, const struct lieni_wire_limits *limits, unsigned side,
                      const char **why)
{
    const uint64_t id = lieni_get64(bytes);
    if (lieni_call_gen(id) == 0 || lieni_call_gen(id) > UINT32_MAX)
        return malformed(why, "call generation is not 1..2^32 - 1");
    if (lieni_call_slot(id) >= limits->calls_max)
        return malformed(why, "call slot is not below call_credits");
    if (lieni_call_side(id) != side)
        return malformed(why, "call is of the wrong side");
    return 0;
}

// A grant of the sender: slot, generation and total at `bytes`, `n` keys elsewhere.
static int check_grant(const uint8_t *bytes, const uint8_t *keys, uint32_t n, bool sums,
                       uint64_t most, const struct lieni_wire_limits *limits, const char **why)
{
    const uint64_t total = lieni_get64(bytes + GRANT_TOTAL);
    if (n == 0)
        return lieni_all_zero(bytes, GRANT_SIZE)
                   ? 0
                   : malformed(why, "no buffers, yet a slot, generation or total");
    if (total > most)
        return malformed(why, "total is above its limit");
    int rc = check_name(bytes, limits->grants_max, why);
    return rc == 0 ? check_keys(keys, n, sums, total, why) : rc;
}

static void load_body(struct lieni_frame *frame, const uint8_t *grant, const uint8_t *keys,
                      uint32_t n, bool sums)
{
    frame->name = load_name(grant);
    frame->total = lieni_get64(grant + GRANT_TOTAL);
    frame->sums = sums;
    frame->n_keys = n;
    load_keys(keys, n, sums, frame->keys);
}

static int decode_call(const uint8_t *bytes, size_t len, const struct lieni_wire_limits *limits,
                       struct lieni_frame *frame, const char **why)
{
    const uint8_t *at = bytes + LIENI_FRAME_HEADER;
    if (len < LIENI_FRAME_HEADER + LIENI_CALL_FIXED)
        return malformed(why, "CALL length is below 80, its fixed part");
    const size_t rest = len - LIENI_FRAME_HEADER - LIENI_CALL_FIXED;
    const uint32_t n = at[CALL_KEYS], n_read = at[CALL_READ_KEYS], method_len = at[CALL_METHOD];
    const bool sums = frame_sums(bytes);
    const size_t all_keys = (n + n_read) * lieni_key_size(sums);
    if (n > LIEN_BUFS_MAX || n_read > LIEN_BUFS_MAX)
        return malformed(why, "CALL buffers is above 64");
    if (method_len == 0)
        return malformed(why, "CALL method is empty");
    if (all_keys > rest || method_len > rest - all_keys)
        return malformed(why, "CALL keys and method are above what the frame's length holds");
    if (at[CALL_ZERO] != 0)
        return malformed(why, "CALL reserved byte is not 0");
    if (lieni_get32(at + CALL_DEADLINE) == 0 || lieni_get32(at + CALL_DEADLINE) == UINT32_MAX)
        return malformed(why, "CALL deadline is 0 or without end");
    const uint8_t *keys = at + LIENI_CALL_FIXED;
    const uint8_t *read_keys = keys + n * lieni_key_size(sums);
    const uint8_t *method = keys + all_keys;
    if (memchr(method, 0, method_len) != NULL)
        return malformed(why, "CALL method has a NUL");
    int rc = check_call(at, limits, !limits->side, why);
    if (rc == 0)
        rc = check_grant(at + CALL_BODY, keys, n, sums, limits->message_max, limits, why);
    if (rc == 0)
        rc = check_grant(at + CALL_READ, read_keys, n_read, sums, UINT64_MAX, limits, why);
    if (rc != 0)
        return rc;
    no_body(frame);
    frame->call = lieni_get64(at);
    frame->deadline_ms = lieni_get32(at + CALL_DEADLINE);
    frame->reply_max = lieni_get64(at + CALL_REPLY_MAX);
    frame->space_len = lieni_get64(at + CALL_SPACE);
    load_body(frame, at + CALL_BODY, keys, n, sums);
    frame->read_name = load_name(at + CALL_READ);
    frame->read_total = lieni_get64(at + CALL_READ + GRANT_TOTAL);
    frame->n_read_keys = n_read;
    load_keys(read_keys, n_read, sums, frame->read_keys);
    frame->method = (const char *)method;
    frame->method_len = method_len;
    frame->head = method + method_len;
    frame->head_len = rest - all_keys - method_len;
    return 0;
}

static int check_status(const uint8_t *bytes, const char **why)
{
    return (int32_t)lieni_get32(bytes) > 0 ? malformed(why, "status is above 0") : 0;
}

static int decode_reply(const uint8_t *bytes, size_t len, const struct lieni_wire_limits *limits,
                        struct lieni_frame *frame, const char **why)
{
    const uint8_t *at = bytes + LIENI_FRAME_HEADER;
    if (len < LIENI_FRAME_HEADER + REPLY_FIXED)
        return malformed(why, "REPLY length is below 48, its fixed part");
    const size_t rest = len - LIENI_FRAME_HEADER - REPLY_FIXED;
    const uint32_t n = at[REPLY_KEYS];
    const bool sums = frame_sums(bytes);
    const size_t all_keys = n * lieni_key_size(sums);
    const uint8_t *keys = at + REPLY_FIXED;
    if (n == 0 && sums)
        return malformed(why, "REPLY without buffers has flags");
    if (n > LIEN_BUFS_MAX || all_keys > rest)
        return malformed(why, "REPLY buffers is above 64, or what the frame's length holds");
    if (at[REPLY_UNBEGUN] > 1)
        return malformed(why, "REPLY unbegun is not 0 or 1");
    if (!lieni_all_zero(at + REPLY_ZERO, REPLY_BODY - REPLY_ZERO))
        return malformed(why, "REPLY reserved bytes are not 0");
    int rc = check_call(at, limits, limits->side, why);
    if (rc == 0)
        rc = check_status(at + REPLY_STATUS, why);
    if (rc == 0)
        rc = check_grant(at + REPLY_BODY, keys, n, sums, limits->message_max, limits, why);
    if (rc != 0)
        return rc;
    no_body(frame);
    frame->call = lieni_get64(at);
    frame->status = (int32_t)lieni_get32(at + REPLY_STATUS);
    frame->unbegun = at[REPLY_UNBEGUN] != 0;
    load_body(frame, at + REPLY_BODY, keys, n, sums);
    frame->head = keys + all_keys;
    frame->head_len = rest - all_keys;
    return 0;
}

static int decode_cancel(const uint8_t *bytes, size_t len, const struct lieni_wire_limits *limits,
                         struct lieni_frame *frame, const char **why)
{
    if (len != LIENI_FRAME_HEADER + CANCEL_FIXED)
        return malformed(why, "CANCEL length is not 24");
    int rc = check_call(bytes + LIENI_FRAME_HEADER, limits, !limits->side, why);
    if (rc != 0)
        return rc;
    no_body(frame);
    frame->call = lieni_get64(bytes + LIENI_FRAME_HEADER);
    return 0;
}

static int decode_write(const uint8_t *bytes, size_t len, const struct lieni_wire_limits *limits,
                        struct lieni_frame *frame, const char **why)
{
    const uint8_t *at = bytes + LIENI_FRAME_HEADER;
    if (len < LIENI_FRAME_HEADER + LIENI_WRITE_FIXED)
        return malformed(why, "WRITE length is below 48, its fixed part");
    const size_t rest = len - LIENI_FRAME_HEADER - LIENI_WRITE_FIXED;
    const uint32_t n = at[WRITE_KEYS], n_ops = lieni_get16(at + WRITE_OPS), flags = at[WRITE_FLAGS];
    const bool sums = frame_sums(bytes);
    const uint8_t *keys = at + LIENI_WRITE_FIXED;
    if (n == 0 && sums)
        return malformed(why, "WRITE without buffers has header flags");
    if ((flags & ~(FLAG_FIRST | FLAG_LAST)) != 0)
        return malformed(why, "WRITE flags are unknown");
    if (n > LIEN_BUFS_MAX || (n > 0) != ((flags & FLAG_FIRST) != 0))
        return malformed(why, "WRITE buffers is not 1..64 in the first frame and 0 in others");
    if (n_ops < 1 || n_ops > LIEN_OPS_MAX)
        return malformed(why, "WRITE operations is not 1..1024");
    if (rest != n * lieni_key_size(sums) + n_ops * LIENI_OP_SIZE)
        return malformed(why, "WRITE length is not that of its buffers and operations");
    int rc = check_call(at, limits, limits->side, why);
    if (rc == 0)
        rc = check_grant(at + WRITE_BODY, keys, n, sums, UINT64_MAX, limits, why);
    if (rc != 0)
        return rc;
    no_body(frame);
    frame->call = lieni_get64(at);
    frame->write = lieni_get32(at + WRITE_ID);
    frame->first = (flags & FLAG_FIRST) != 0;
    frame->last = (flags & FLAG_LAST) != 0;
    load_body(frame, at + WRITE_BODY, keys, n, sums);
    frame->n_ops = n_ops;
    frame->ops = keys + n * lieni_key_size(sums);
    return 0;
}

static int decode_written(const uint8_t *bytes, size_t len, const struct lieni_wire_limits *limits,
                          struct lieni_frame *frame, const char **why)
{
    const uint8_t *at = bytes + LIENI_FRAME_HEADER;
    if (len != LIENI_FRAME_HEADER + WRITTEN_FIXED)
        return malformed(why, "WRITTEN length is not 32");
    int rc = check_call(at, limits, !limits->side, why);
    if (rc == 0)
        rc = check_status(at + WRITTEN_STATUS, why);
    if (rc != 0)
        return rc;
    no_body(frame);
    frame->call = lieni_get64(at);
    frame->write = lieni_get32(at + WRITE_ID);
    frame->status = (int32_t)lieni_get32(at + WRITTEN_STATUS);
    return 0;
}

static int check_answer(const uint8_t *at, const char **why)
{
    if (at[ANSWER_HOLDS] > 1 || !lieni_all_zero(at + ANSWER_ZERO, ANSWER_SIZE - ANSWER_ZERO))
        return malformed(why, "an answer is neither 0 nor 1");
    return 0;
}

static int decode_probes(const uint8_t *bytes, size_t len, const struct lieni_wire_limits *limits,
                         bool answers, struct lieni_frame *frame, const char **why)
{
    const size_t size = answers ? ANSWER_SIZE : PROBE_SIZE, rest = len - LIENI_FRAME_HEADER;
    const size_t n = rest / size;
    if (rest % size != 0 || n < 1 || n > LIENI_PROBES_MAX)
        return malformed(why, "number of probes or answers is not 1..64");
    const uint8_t *at = bytes + LIENI_FRAME_HEADER;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++, at += size) {
        rc = answers ? check_answer(at, why)
                     : check_call(at + PROBE_CALL, limits, limits->side, why);
        if (rc == 0 && !answers)
            rc = check_name(at + PROBE_NAME, limits->own_grants_max, why);
    }
    if (rc != 0)
        return rc;
    no_body(frame);
    frame->n_probes = (uint32_t)n;
    at = bytes + LIENI_FRAME_HEADER;
    for (size_t i = 0; i < n; i++, at += size) {
        struct lieni_probe *p = &frame->probes[i];
        *p = (struct lieni_probe){.id = lieni_get32(at)};
        if (answers) {
            p->holds = at[ANSWER_HOLDS] == 1;
        } else {
            p->call = lieni_get64(at + PROBE_CALL);
            p->name = load_name(at + PROBE_NAME);
        }
    }
    return 0;
}

void lieni_op_load(const uint8_t *bytes, lien_op *op)
{
    *op = (lien_op){
        .src = lieni_get64(bytes), .dst = lieni_get64(bytes + 8), .len = lieni_get64(bytes + 16)};
}

void lieni_op_store(uint8_t *bytes, const lien_op *op)
{
    lieni_put64(bytes, op->src);
    lieni_put64(bytes + 8, op->dst);
    lieni_put64(bytes + 16, op->len);
}

int lieni_wire_call_decode(enum lieni_frame_kind kind, const uint8_t *bytes, size_t len,
                           const struct lieni_wire_limits *limits, struct lieni_frame *frame,
                           const char **why)
{
    const bool keyed = kind == LIENI_FRAME_CALL || kind == LIENI_FRAME_REPLY ||
                       kind == LIENI_FRAME_WRITE;
    if (!keyed && check_no_sums(bytes, why) != 0)
        return LIEN_EPROTO;
    switch (kind) {
    case LIENI_FRAME_CALL:
        return decode_call(bytes, len, limits, frame, why);
    case LIENI_FRAME_REPLY:
        return decode_reply(bytes, len, limits, frame, why);
    case LIENI_FRAME_CANCEL:
        return decode_cancel(bytes, len, limits, frame, why);
    case LIENI_FRAME_PROBE:
    case LIENI_FRAME_ANSWER:
        return decode_probes(bytes, len, limits, kind == LIENI_FRAME_ANSWER, frame, why);
    case LIENI_FRAME_WRITE:
        return decode_write(bytes, len, limits, frame, why);
    case LIENI_FRAME_WRITTEN:
        return decode_written(bytes, len, limits, frame, why);
    case LIENI_FRAME_MSG:
    case LIENI_FRAME_RELEASE:
    case LIENI_FRAME_REVOKE:
    case LIENI_FRAME_CREDIT:
    case LIENI_FRAME_BEAT:
    case LIENI_FRAME_ALIVE:
    case LIENI_FRAME_BYE:
    case LIENI_FRAME_GOAWAY:
    case LIENI_FRAME_HEARD:
        break;
    }
    return malformed(why, "not a frame of a call");
}

// -- Encoding ----------------------------------------------------------------------------------------------------------------------

static void store_body(uint8_t *grant, uint8_t *keys, const struct lieni_frame *frame)
{
    if (frame->n_keys == 0)
        return;
    store_name(grant, frame->name);
    lieni_put64(grant + GRANT_TOTAL, frame->total);
    store_keys(keys, frame->n_keys, frame->sums, frame->keys);
}

static void store_head(uint8_t *at, const struct lieni_frame *frame, _Atomic uint64_t *copied)
{
    if (frame->head_len > 0)
        lieni_copy_payload(copied, at, frame->head, frame->head_len);
}

static void encode_call(const struct lieni_frame *frame, uint8_t *at, _Atomic uint64_t *copied)
{
    uint8_t *keys = at + LIENI_CALL_FIXED,
            *read_keys = keys + frame->n_keys * lieni_key_size(frame->sums);
    uint8_t *method = read_keys + frame->n_read_keys * lieni_key_size(frame->sums);
    memset(at, 0, LIENI_CALL_FIXED);
    lieni_put64(at, frame->call);
    lieni_put32(at + CALL_DEADLINE, frame->deadline_ms);
    at[CALL_METHOD] = (uint8_t)frame->method_len;
    at[CALL_KEYS] = (uint8_t)frame->n_keys;
    at[CALL_READ_KEYS] = (uint8_t)frame->n_read_keys;
    lieni_put64(at + CALL_REPLY_MAX, frame->reply_max);
    lieni_put64(at + CALL_SPACE, frame->space_len);
    store_body(at + CALL_BODY, keys, frame);
    if (frame->n_read_keys > 0) {
        store_name(at + CALL_READ, frame->read_name);
        lieni_put64(at + CALL_READ + GRANT_TOTAL, frame->read_total);
        store_keys(read_keys, frame->n_read_keys, frame->sums, frame->read_keys);
    }
    memcpy(method, frame->method, frame->method_len);
    store_head(method + frame->method_len, frame, copied);
}

static void encode_reply(const struct lieni_frame *frame, uint8_t *at, _Atomic uint64_t *copied)
{
    memset(at, 0, REPLY_FIXED);
    lieni_put64(at, frame->call);
    lieni_put32(at + REPLY_STATUS, (uint32_t)frame->status);
    at[REPLY_KEYS] = (uint8_t)frame->n_keys;
    at[REPLY_UNBEGUN] = frame->unbegun;
    store_body(at + REPLY_BODY, at + REPLY_FIXED, frame);
    store_head(at + REPLY_FIXED + frame->n_keys * lieni_key_size(frame->sums), frame, copied);
}

static void encode_write(const struct lieni_frame *frame, uint8_t *at)
{
    uint8_t *keys = at + LIENI_WRITE_FIXED;
    memset(at, 0, LIENI_WRITE_FIXED);
    lieni_put64(at, frame->call);
    lieni_put32(at + WRITE_ID, frame->write);
    at[WRITE_FLAGS] = (uint8_t)((frame->first ? FLAG_FIRST : 0) | (frame->last ? FLAG_LAST : 0));
    at[WRITE_KEYS] = (uint8_t)frame->n_keys;
    lieni_put16(at + WRITE_OPS, (uint16_t)frame->n_ops);
    store_body(at + WRITE_BODY, keys, frame);
    memcpy(keys + frame->n_keys * lieni_key_size(frame->sums), frame->ops,
           frame->n_ops * LIENI_OP_SIZE);
}

static void encode_probes(const struct lieni_frame *frame, uint8_t *at, bool answers)
{
    const size_t size = answers ? ANSWER_SIZE : PROBE_SIZE;
    memset(at, 0, frame->n_probes * size);
    for (uint32_t i = 0; i < frame->n_probes; i++, at += size) {
        const struct lieni_probe *p = &frame->probes[i];
        lieni_put32(at, p->id);
        if (answers) {
            at[ANSWER_HOLDS] = p->holds;
        } else {
            lieni_put64(at + PROBE_CALL, p->call);
            store_name(at + PROBE_NAME, p->name);
        }
    }
}

size_t lieni_wire_call_len(const struct lieni_frame *frame)
{
    const size_t keys = frame->n_keys * lieni_key_size(frame->sums);
    if (frame->n_keys > LIEN_BUFS_MAX || frame->n_read_keys > LIEN_BUFS_MAX ||
        frame->method_len > LIENI_METHOD_MAX || frame->n_ops > LIEN_OPS_MAX ||
        frame->n_probes > LIENI_PROBES_MAX)
        return 0;
    const size_t head = frame->head_len > LIENI_FRAME_LEN_MAX ? LIENI_FRAME_LEN_MAX
                                                              : frame->head_len;
    if (frame->kind == LIENI_FRAME_CALL && frame->method_len > 0)
        return LIENI_CALL_FIXED + keys + frame->n_read_keys * lieni_key_size(frame->sums) +
               frame->method_len + head;
    if (frame->kind == LIENI_FRAME_REPLY)
        return REPLY_FIXED + keys + head;
    if (frame->kind == LIENI_FRAME_CANCEL)
        return CANCEL_FIXED;
    if (frame->kind == LIENI_FRAME_WRITE && frame->n_ops > 0)
        return LIENI_WRITE_FIXED + keys + frame->n_ops * LIENI_OP_SIZE;
    if (frame->kind == LIENI_FRAME_WRITTEN)
        return WRITTEN_FIXED;
    if (frame->kind == LIENI_FRAME_PROBE)
        return frame->n_probes * PROBE_SIZE;
    return frame->kind == LIENI_FRAME_ANSWER ? frame->n_probes * ANSWER_SIZE : 0;
}

void lieni_wire_call_encode(const struct lieni_frame *frame, uint8_t *at, _Atomic uint64_t *copied)
{
    switch (frame->kind) {
    case LIENI_FRAME_CALL:
        encode_call(frame, at, copied);
        break;
    case LIENI_FRAME_REPLY:
        encode_reply(frame, at, copied);
        break;
    case LIENI_FRAME_CANCEL:
        lieni_put64(at, frame->call);
        break;
    case LIENI_FRAME_PROBE:
    case LIENI_FRAME_ANSWER:
        encode_probes(frame, at, frame->kind == LIENI_FRAME_ANSWER);
        break;
    case LIENI_FRAME_WRITE:
        encode_write(frame, at);
        break;
    case LIENI_FRAME_WRITTEN:
        lieni_put64(at, frame->call);
        lieni_put32(at + WRITE_ID, frame->write);
        lieni_put32(at + WRITTEN_STATUS, (uint32_t)frame->status);
        break;
    case LIENI_FRAME_MSG:
    case LIENI_FRAME_RELEASE:
    case LIENI_FRAME_REVOKE:
    case LIENI_FRAME_CREDIT:
    case LIENI_FRAME_BEAT:
    case LIENI_FRAME_ALIVE:
    case LIENI_FRAME_BYE:
    case LIENI_FRAME_GOAWAY:
    case LIENI_FRAME_HEARD:
        break;
    }
}
