// SPDX-License-Identifier: Apache-2.0
//
// The trace of a connection: a ring of its last events, for looking back at what happened (option `trace`, lien_conn_trace(), tools/lien-trace). Off by default, and then a NULL pointer: each
// event costs one branch. An event is a record of fixed size with the time of the ctx's clock; of a frame it keeps the fixed part of its headers. Messages' bytes, arguments, names of methods and
// keys are not in it, unless option `trace_bytes` asks for the first bytes of each frame as they are.
//
// Under the state lock, but for the functions of a dump's bytes, which are pure. Memory: made when the connection is, never more than the option says.

#ifndef LIENI_TRACE_H
#define LIENI_TRACE_H

#include "provider/provider.h"

// X(number, NAME, text). Numbers are part of the dump's format: never used again for something else.
#define LIENI_TRACE_KINDS(X)                                                                       \
    X(1, STATE, "connection")      /* text: from -> to */                                          \
    X(2, SENT, "sent")             /* a frame was posted; amount: its bytes */                     \
    X(3, RECEIVED, "received")     /* a frame came, checked or not; the same */                    \
    X(4, POST, "post")             /* op: sequence, amount: bytes, what: enum lieni_wr_kind */     \
    X(5, UNPOST, "post refused")   /* the same: the provider took nothing */                       \
    X(6, ENTRY, "completion")      /* the same, with the status, detail: the provider's code */    \
    X(7, STRAY, "stray entry")     /* op: context of an entry that proves nothing */               \
    X(8, PROVED, "proved by end")  /* as POST: evidence by the endpoint's end */                   \
    X(9, ABANDONED, "no evidence") /* as POST: its memory goes to quarantine */                    \
    X(10, GRANT, "grant")          /* op: id, amount: bytes; text: what became of it */            \
    X(11, READ, "read")            /* op: id of the grant; text likewise */                        \
    X(12, CALL, "call")            /* op: id of the call; text likewise */                         \
    X(13, REQUEST, "request")      /* op: id of the call; text likewise */                         \
    X(14, WRITE, "write")          /* op: id of the call, amount: number of the write; text */     \
    X(15, TIMER, "timer")          /* text: which */                                               \
    X(16, ERROR, "error")          /* text: why the connection ends */

enum lieni_trace_kind {
#define LIENI_TRACE_KIND(number, name, text) LIENI_TRACE_##name = number,
    LIENI_TRACE_KINDS(LIENI_TRACE_KIND)
#undef LIENI_TRACE_KIND
};

#define LIENI_TRACE_BYTES                                                                          \
    80u // kept of a frame: the longest fixed part there is, CALL's. Also the longest text

struct lieni_trace_event {
    uint64_t number; // counts the connection's events from 1
    uint64_t time;   // ns, of the ctx's clock; given to lieni_trace_add() 0: now
    uint64_t op, amount;
    int32_t status, detail;
    uint16_t kind;
    uint16_t len; // of `bytes`
    uint32_t what;
    const uint8_t *bytes; // of a frame, or text
};

struct lieni_trace;

// Room for `events` events (1 and up). Of each frame its first `bytes` bytes are kept as they are, in any case its fixed part. `env` is copied. LIEN_ENOMEM.
int lieni_trace_open(const struct lieni_env *env, uint32_t events, uint32_t bytes,
                     struct lieni_trace **trace);
void lieni_trace_close(struct lieni_trace *trace); // NULL is allowed

void lieni_trace_add(struct lieni_trace *trace, const struct lieni_trace_event *event);
void lieni_trace_add_frame(struct lieni_trace *trace, enum lieni_trace_kind kind, uint64_t time,
                           const uint8_t *bytes, size_t len);
void lieni_trace_add_text(struct lieni_trace *trace, enum lieni_trace_kind kind, uint64_t op,
                          uint64_t amount, int status, const char *from, const char *to);

// With no trace these do nothing.
static inline void lieni_trace_frame(struct lieni_trace *trace, enum lieni_trace_kind kind,
                                     uint64_t time, const uint8_t *bytes, size_t len)
{
    if (trace)
        lieni_trace_add_frame(trace, kind, time, bytes, len);
}
uint64_t lieni_trace_clock(const struct lieni_trace *trace);
// For an event that began before its record is made; 0 without a trace.
static inline uint64_t lieni_trace_now(const struct lieni_trace *trace)
{
    return trace ? lieni_trace_clock(trace) : 0;
}
// `to` may be NULL; with it the text is "from -> to".
static inline void lieni_trace_text(struct lieni_trace *trace, enum lieni_trace_kind kind,
                                    uint64_t op, uint64_t amount, int status, const char *from,
                                    const char *to)
{
    if (trace)
        lieni_trace_add_text(trace, kind, op, amount, status, from, to);
}
static inline void lieni_trace_wr(struct lieni_trace *trace, enum lieni_trace_kind kind,
                                  uint32_t what, uint64_t seq, uint64_t len, int status, int detail)
{
    if (trace)
        lieni_trace_add(trace, &(struct lieni_trace_event){.kind = (uint16_t)kind,
                                                           .op = seq,
                                                           .amount = len,
                                                           .what = what,
                                                           .status = status,
                                                           .detail = detail});
}

// Bytes at the start of a frame that hold nothing of the application's and no key: its fixed part, at most LIENI_TRACE_BYTES and `len`. Pure.
size_t lieni_trace_fixed_part(const uint8_t *bytes, size_t len);

// -- Dumps: a header, then records, the oldest first; all little-endian ----------------------------------------------------------------

// Header: magic "LTRC" 4, version 2 (1), size of the header 2, size of a record 4, records 4, connection id 8, side 1 (1: it accepted), zero 3, status 4, time 8, events so
// far 8, outstanding bytes of READs 8, ctx 16, peer's ctx 16, zero 8, state 16, provider 32, peer's address 96.
#define LIENI_DUMP_HEADER 240u
// Record: number 8, time 8, op 8, amount 8, status 4, detail 4, kind 2, length of the bytes 2, what 4; then the bytes, padded to the record's size.
#define LIENI_DUMP_RECORD 48u

struct lieni_dump_head {
    uint32_t header_size, record_size, records;
    uint64_t conn;
    bool server;
    int32_t status;
    uint64_t time, events, read_bytes;
    uint8_t ctx[16], peer_ctx[16];
    char state[17], provider[33], peer[97]; // ended by NUL
};

// Bytes of the largest dump of this trace.
size_t lieni_trace_dump_room(const struct lieni_trace *trace);
// Writes the dump into `out`, which has that room; fills in what the trace itself knows of `head` (sizes, records, time, events). Returns its size.
size_t lieni_trace_dump(const struct lieni_trace *trace, struct lieni_dump_head *head,
                        uint8_t *out);
// Decoders: nothing is trusted. LIEN_EPROTO, with the field in *why.
int lieni_dump_head_decode(const uint8_t *bytes, size_t len, struct lieni_dump_head *head,
                           const char **why);
// One record of head->record_size bytes (all of them there). event->bytes points into it.
int lieni_dump_record_decode(const uint8_t *bytes, const struct lieni_dump_head *head,
                             struct lieni_trace_event *event, const char **why);

// trace_dump.c, under the state lock: the connection's end is worth a dump, if option trace_dir says where. Written by a dispatch task.
struct lien_conn;
void lieni_trace_ended(struct lien_conn *conn);

#endif
