// SPDX-License-Identifier: Apache-2.0
//
// The kinds of fault in docs/field-reports.md, each a named test over libfabric tcp: a bench of calls on top of that of the fault tests (tests/fault/fault.h). The other process serves the methods of
// field_peer.c. Each test is a function of its report's name, listed in FIELD_REPORTS, and a ctest test of that name.
//
// The test's thread drives; callbacks run on dispatch threads and touch what is atomic only.

#ifndef FIELD_H
#define FIELD_H

#include "tests/fault/fault.h"

#define FIELD_REPORTS(X)                                                                           \
    X(field_report_01_timed_out_destination)                                                       \
    X(field_report_02_reused_source)                                                               \
    X(field_report_03_lost_source)                                                                 \
    X(field_report_04_handler_keeps_buffers)                                                       \
    X(field_report_05_forced_end)                                                                  \
    X(field_report_06_late_entries)                                                                \
    X(field_report_07_early_reply)                                                                 \
    X(field_report_08_lengths_from_the_wire)                                                       \
    X(field_report_09_lists_from_the_wire)                                                         \
    X(field_report_10_cancelled_calls)                                                             \
    X(field_report_11_failed_piece)                                                                \
    X(field_report_12_zero_and_gibibyte)                                                           \
    X(field_report_13_eagain_ends)                                                                 \
    X(field_report_14_registration_cache)                                                          \
    X(field_report_15_memory_lock)                                                                 \
    X(field_report_16_refused_provider)                                                            \
    X(field_report_17_choice)                                                                      \
    X(field_report_18_unknown_keys)                                                                \
    X(field_report_19_path)                                                                        \
    X(field_report_20_first_message)                                                               \
    X(field_report_21_reserve_for_receiving)                                                       \
    X(field_report_22_connect_timer)

#define FIELD_DECLARE(name) void name(void);
FIELD_REPORTS(FIELD_DECLARE)
#undef FIELD_DECLARE

// Runs a case of env.c in this process. False: there is none of this name.
bool field_case(const char *name);

// -- A connection to a serving process ---------------------------------------------------------------------------------------------

struct field {
    struct fault_relay relay;
    bool relayed;
    struct fault_side side;
    struct fault_peer peer;
    lien_conn *conn;
    _Atomic int n_lost, lost_status; // on_lost
    bool closing;                    // by field_shut()
    _Atomic int n_closed;
    struct fault_levels peer_before; // once connected
    lien_ctx_stats before;
};

// The fabric connection goes through `relay`.
#define FIELD_RELAYED (1u << 0)

// `service`: what this side serves, or NULL. `settings`: of this side, besides the bench's own, or NULL.
void field_open(struct field *f, unsigned flags, const lien_service *service,
                const char *const *settings);
// Closes the connection, unless it is closed; ends the other process, unless it is dead (peer.pid 0); both sides end with nothing left: no grant, no memory out, none in quarantine.
void field_close(struct field *f);
uint32_t field_reads_outstanding(struct field *f);
// No CANCEL, probe or answer leaves this side, as where credit for them has run out, until field_give_control() of what this returned.
uint32_t field_hold_control(struct field *f);
void field_give_control(struct field *f, uint32_t kept);
bool field_is_lost(void *field);
// Begins to close the connection, and does not wait: field_close() does.
void field_shut(struct field *f);
// The connection is lost: closes it. Not by the test's own doing.
void field_lose(struct field *f);

// -- An observed call --------------------------------------------------------------------------------------------------------------

// Zero it first.
struct field_call {
    struct field *field;
    lien_call *call;
    _Atomic int done, released; // how often each ran
    _Atomic int status, released_status;
    _Atomic uint64_t begin_us, done_us, released_us;
    _Atomic bool in_order;              // done ran before released
    _Atomic int64_t pieces_at_released; // READs posted whose end is not known, ctx-wide
    char reply[128];                    // its bytes, once done
    size_t reply_len;
    bool (*look)(void *arg); // at done(0): what it says is in `looked`
    void *look_arg;
    _Atomic bool looked;
};

// Fills opts' callbacks, starts, and retries while there is no credit.
void field_start(struct field *f, struct field_call *c, const char *method, const void *args,
                 size_t len, lien_call_opts *opts);
bool field_is_done(void *call);
bool field_is_released(void *call);
// Waits for both events and checks that each ran once and in order; returns the status.
int field_over(struct field_call *c);
// Blocking: a call with status 0 and a reply of `reply_len` bytes.
void field_ask(struct field *f, const char *method, const void *args, size_t len, void *reply,
               size_t reply_len);
lien_call_opts field_opts(void);

// A buffer of the test's pool with a pattern; a space of one such.
lien_buf *field_buf(struct field *f, size_t len, uint64_t seed);
lien_space *field_space(struct field *f, size_t len, uint64_t seed);
// Takes the buffer out, frees the space.
lien_buf *field_take(lien_space **space);
bool field_buf_is(const lien_buf *buf, uint64_t seed);

// `total` bytes of address space over FIELD_CHUNK bytes of memory with the pattern, again and again. Never unmapped.
#define FIELD_CHUNK (16 * MIB)
void *field_repeated(size_t total, uint64_t seed);

// -- What the other process serves -------------------------------------------------------------------------------------------------

extern const lien_service field_peer_service;

// "echo": the arguments come back.
// "prepare": struct field_source. Makes the source that "write" writes.
// "write": struct field_source. Writes `len` bytes of what was prepared with `seed` into the caller's write space, then replies with its arguments; with `reply_first` before the write is done.
// "keep": struct field_source. Keeps the request until "answer": then as "write" if there is a write space, else the reply alone.
// "answer": answers all that are kept; the reply: their number (uint32_t). "kept": their number.
// "read": struct field_source. Reads the caller's read space and acts on what it believes: counted in struct field_verdict. Replies with its arguments. With `wait` it reads once "go" came for it.
// "go": lets "read" go.
// "verdict": struct field_verdict.
// "swallow": keeps the request until it is cancelled, then drops it.
// "body": struct field_source. Replies with its arguments and a body of `len` bytes.
// "grant64": a lien_token of 64 buffers of 4096 bytes.
struct field_source {
    uint64_t seed, len;
    uint32_t number; // of the test's
    bool reply_first, wait;
    bool repeated;  // "prepare": FIELD_CHUNK bytes again and again
    uint32_t n_ops; // write in so many operations; 0: whole
};

// "ring": struct field_ring. The other process calls `method` of this side's, with a read space, and a body if there is `body_len`, and does not wait.
struct field_ring {
    struct field_source source; // the call's arguments, and the read space
    uint64_t body_len;          // of the pattern seed + 1
    char method[32];
};

struct field_verdict {
    uint32_t waiting;     // "read": handlers that wait
    uint32_t believed;    // reads with status 0
    uint32_t acted_wrong; // of them, with other bytes than those of their call
    uint32_t stale;       // LIEN_ESTALE
    uint32_t other;       // another status
    uint32_t n_begun;     // handlers of "read" and "write" that began
    uint32_t n_over;      // "read" and "write" that are over, whatever became of them
    uint32_t kept;
    uint32_t message_credits, control_credits; // the peer's, of this connection
    uint64_t grants_live, pool_bytes;
};

#endif
