// SPDX-License-Identifier: Apache-2.0
//
// See trace.h. The ring, and the bytes of a dump.

#include "core/trace.h"

#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"
#include "core/wire.h"

_Static_assert(LIENI_FRAME_HEADER + LIENI_CALL_FIXED <= LIENI_TRACE_BYTES, "it fits");

static const uint8_t magic[4] = {'L', 'T', 'R', 'C'};
#define VERSION 1u

// Offsets in the header, and in a record.
enum {
    HEAD_VERSION = 4,
    HEAD_SIZE = 6,
    HEAD_RECORD = 8,
    HEAD_RECORDS = 12,
    HEAD_CONN = 16,
    HEAD_SIDE = 24,
    HEAD_STATUS = 28,
    HEAD_TIME = 32,
    HEAD_EVENTS = 40,
    HEAD_READ_BYTES = 48,
    HEAD_CTX = 56,
    HEAD_PEER_CTX = 72,
    HEAD_STATE = 96,
    HEAD_PROVIDER = 112,
    HEAD_PEER = 144,
    REC_NUMBER = 0,
    REC_TIME = 8,
    REC_OP = 16,
    REC_AMOUNT = 24,
    REC_STATUS = 32,
    REC_DETAIL = 36,
    REC_KIND = 40,
    REC_LEN = 42,
    REC_WHAT = 44
};
#define STATE_SIZE    16u
#define PROVIDER_SIZE 32u
#define PEER_SIZE     96u

struct lieni_trace {
    struct lieni_env env;
    uint32_t events; // room
    uint32_t kept;   // bytes that a record has room for
    uint32_t size;   // of a record
    uint32_t asked;  // of each frame, as they are, whatever they hold
    uint64_t count;  // events so far
    uint8_t records[];
};

int lieni_trace_open(const struct lieni_env *env, uint32_t events, uint32_t bytes,
                     struct lieni_trace **out)
{
    uint32_t kept = bytes > LIENI_TRACE_BYTES ? (bytes + 7) / 8 * 8 : LIENI_TRACE_BYTES;
    uint32_t size = LIENI_DUMP_RECORD + kept;
    struct lieni_trace *trace = calloc(1, sizeof(*trace) + (size_t)events * size);
    if (!trace)
        return LIEN_ENOMEM;
    trace->env = *env;
    trace->events = events;
    trace->kept = kept;
    trace->size = size;
    trace->asked = bytes;
    *out = trace;
    return 0;
}

void lieni_trace_close(struct lieni_trace *trace)
{
    free(trace);
}

uint64_t lieni_trace_clock(const struct lieni_trace *trace)
{
    return trace->env.now(trace->env.self);
}

void lieni_trace_add(struct lieni_trace *trace, const struct lieni_trace_event *event)
{
    uint8_t *at = trace->records + (size_t)(trace->count % trace->events) * trace->size;
    size_t len = event->len < trace->kept ? event->len : trace->kept;
    lieni_put64(at + REC_NUMBER, ++trace->count);
    lieni_put64(at + REC_TIME, event->time ? event->time : lieni_trace_clock(trace));
    lieni_put64(at + REC_OP, event->op);
    lieni_put64(at + REC_AMOUNT, event->amount);
    lieni_put32(at + REC_STATUS, (uint32_t)event->status);
    lieni_put32(at + REC_DETAIL, (uint32_t)event->detail);
    lieni_put16(at + REC_KIND, event->kind);
    lieni_put16(at + REC_LEN, (uint16_t)len);
    lieni_put32(at + REC_WHAT, event->what);
    if (len > 0)
        memcpy(at + LIENI_DUMP_RECORD, event->bytes, len);
    memset(at + LIENI_DUMP_RECORD + len, 0, trace->kept - len); // of an older event
}

size_t lieni_trace_fixed_part(const uint8_t *bytes, size_t len)
{
    size_t fixed = LIENI_FRAME_HEADER;
    if (len <= fixed)
        return len;
    switch ((enum lieni_frame_kind)bytes[0]) {
    case LIENI_FRAME_MSG:
        fixed += LIENI_BODY_HEADER;
        break;
    case LIENI_FRAME_CALL:
        fixed += LIENI_CALL_FIXED;
        break;
    case LIENI_FRAME_REPLY:
        fixed += LIENI_REPLY_FIXED;
        break;
    case LIENI_FRAME_WRITE:
        fixed += LIENI_WRITE_FIXED;
        break;
    case LIENI_FRAME_RELEASE:
    case LIENI_FRAME_REVOKE:
    case LIENI_FRAME_CANCEL:
    case LIENI_FRAME_PROBE:
    case LIENI_FRAME_ANSWER:
    case LIENI_FRAME_WRITTEN:
        fixed = LIENI_TRACE_BYTES; // names and ids
        break;
    case LIENI_FRAME_CREDIT:
    case LIENI_FRAME_BEAT:
    case LIENI_FRAME_ALIVE:
    case LIENI_FRAME_BYE:
    case LIENI_FRAME_GOAWAY:
    case LIENI_FRAME_HEARD:
        break;
    }
    return fixed < len ? fixed : len;
}

void lieni_trace_add_frame(struct lieni_trace *trace, enum lieni_trace_kind kind, uint64_t time,
                           const uint8_t *bytes, size_t len)
{
    size_t kept = lieni_trace_fixed_part(bytes, len),
           asked = len < trace->asked ? len : trace->asked;
    kept = kept > asked ? kept : asked;
    lieni_trace_add(trace, &(struct lieni_trace_event){.kind = (uint16_t)kind,
                                                       .time = time,
                                                       .amount = len,
                                                       .len = (uint16_t)kept,
                                                       .bytes = bytes});
}

static size_t append(char *text, size_t len, const char *more)
{
    size_t n = strlen(more), room = LIENI_TRACE_BYTES - len;
    n = n < room ? n : room;
    memcpy(text + len, more, n);
    return len + n;
}

void lieni_trace_add_text(struct lieni_trace *trace, enum lieni_trace_kind kind, uint64_t op,
                          uint64_t amount, int status, const char *from, const char *to)
{
    char text[LIENI_TRACE_BYTES];
    size_t len = append(text, 0, from);
    if (to) {
        len = append(text, len, " -> ");
        len = append(text, len, to);
    }
    lieni_trace_add(trace, &(struct lieni_trace_event){.kind = (uint16_t)kind,
                                                       .op = op,
                                                       .amount = amount,
                                                       .status = status,
                                                       .len = (uint16_t)len,
                                                       .bytes = (const uint8_t *)text});
}

// -- Dumps -------------------------------------------------------------------------------------------------------------------------

size_t lieni_trace_dump_room(const struct lieni_trace *trace)
{
    return LIENI_DUMP_HEADER + (size_t)trace->events * trace->size;
}

static void store_head(const struct lieni_dump_head *head, uint8_t *out)
{
    memset(out, 0, LIENI_DUMP_HEADER);
    memcpy(out, magic, sizeof(magic));
    lieni_put16(out + HEAD_VERSION, VERSION);
    lieni_put16(out + HEAD_SIZE, LIENI_DUMP_HEADER);
    lieni_put32(out + HEAD_RECORD, head->record_size);
    lieni_put32(out + HEAD_RECORDS, head->records);
    lieni_put64(out + HEAD_CONN, head->conn);
    out[HEAD_SIDE] = head->server;
    lieni_put32(out + HEAD_STATUS, (uint32_t)head->status);
    lieni_put64(out + HEAD_TIME, head->time);
    lieni_put64(out + HEAD_EVENTS, head->events);
    lieni_put64(out + HEAD_READ_BYTES, head->read_bytes);
    memcpy(out + HEAD_CTX, head->ctx, sizeof(head->ctx));
    memcpy(out + HEAD_PEER_CTX, head->peer_ctx, sizeof(head->peer_ctx));
    memcpy(out + HEAD_STATE, head->state, strnlen(head->state, STATE_SIZE));
    memcpy(out + HEAD_PROVIDER, head->provider, strnlen(head->provider, PROVIDER_SIZE));
    memcpy(out + HEAD_PEER, head->peer, strnlen(head->peer, PEER_SIZE));
}

size_t lieni_trace_dump(const struct lieni_trace *trace, struct lieni_dump_head *head, uint8_t *out)
{
    uint32_t n = trace->count < trace->events ? (uint32_t)trace->count : trace->events;
    head->header_size = LIENI_DUMP_HEADER;
    head->record_size = trace->size;
    head->records = n;
    head->time = lieni_trace_clock(trace);
    head->events = trace->count;
    store_head(head, out);
    // The oldest one is where the next would go, once the ring is full.
    size_t first = trace->count > n ? (size_t)(trace->count % trace->events) : 0;
    uint8_t *at = out + LIENI_DUMP_HEADER;
    memcpy(at, trace->records + first * trace->size, (n - first) * trace->size);
    memcpy(at + (n - first) * trace->size, trace->records, first * trace->size);
    return LIENI_DUMP_HEADER + (size_t)n * trace->size;
}

static int malformed(const char **why, const char *text)
{
    *why = text;
    return LIEN_EPROTO;
}

int lieni_dump_head_decode(const uint8_t *bytes, size_t len, struct lieni_dump_head *head,
                           const char **why)
{
    if (len < sizeof(magic) || memcmp(bytes, magic, sizeof(magic)) != 0)
        return malformed(why, "not a trace: the magic is not LTRC");
    if (len < LIENI_DUMP_HEADER)
        return malformed(why, "the file ends within the header");
    if (lieni_get16(bytes + HEAD_VERSION) != VERSION)
        return malformed(why, "version is not 1");
    if (lieni_get16(bytes + HEAD_SIZE) != LIENI_DUMP_HEADER)
        return malformed(why, "size of the header is not 240");
    const uint32_t size = lieni_get32(bytes + HEAD_RECORD);
    if (size < LIENI_DUMP_RECORD || size > LIENI_DUMP_RECORD + UINT16_MAX)
        return malformed(why, "size of a record is not 48 .. 65583");
    if (bytes[HEAD_SIDE] > 1)
        return malformed(why, "side is not 0 or 1");
    *head = (struct lieni_dump_head){
        .header_size = LIENI_DUMP_HEADER,
        .record_size = size,
        .records = lieni_get32(bytes + HEAD_RECORDS),
        .conn = lieni_get64(bytes + HEAD_CONN),
        .server = bytes[HEAD_SIDE] == 1,
        .status = (int32_t)lieni_get32(bytes + HEAD_STATUS),
        .time = lieni_get64(bytes + HEAD_TIME),
        .events = lieni_get64(bytes + HEAD_EVENTS),
        .read_bytes = lieni_get64(bytes + HEAD_READ_BYTES),
    };
    memcpy(head->ctx, bytes + HEAD_CTX, sizeof(head->ctx));
    memcpy(head->peer_ctx, bytes + HEAD_PEER_CTX, sizeof(head->peer_ctx));
    memcpy(head->state, bytes + HEAD_STATE, STATE_SIZE);
    memcpy(head->provider, bytes + HEAD_PROVIDER, PROVIDER_SIZE);
    memcpy(head->peer, bytes + HEAD_PEER, PEER_SIZE);
    return 0;
}

int lieni_dump_record_decode(const uint8_t *bytes, const struct lieni_dump_head *head,
                             struct lieni_trace_event *event, const char **why)
{
    const uint16_t len = lieni_get16(bytes + REC_LEN);
    if (len > head->record_size - LIENI_DUMP_RECORD)
        return malformed(why, "length of a record's bytes is above the record's size");
    *event = (struct lieni_trace_event){
        .number = lieni_get64(bytes + REC_NUMBER),
        .time = lieni_get64(bytes + REC_TIME),
        .op = lieni_get64(bytes + REC_OP),
        .amount = lieni_get64(bytes + REC_AMOUNT),
        .status = (int32_t)lieni_get32(bytes + REC_STATUS),
        .detail = (int32_t)lieni_get32(bytes + REC_DETAIL),
        .kind = lieni_get16(bytes + REC_KIND),
        .len = len,
        .what = lieni_get32(bytes + REC_WHAT),
        .bytes = bytes + LIENI_DUMP_RECORD,
    };
    return 0;
}
