// SPDX-License-Identifier: Apache-2.0
//
// Calls, both sides. call.c: calls of ours (their life, their spaces, replies); call_write.c: the peer's WRITEs into a write space of ours; request.c: calls of the
// peer's; request_io.c: reads and writes of their handlers; probe.c: validation, both sides; verify.c: bytes that are used before their verdict;
// goaway.c: GOAWAY, both sides.
//
// Slots. A call of ours takes one of conn->calls.max slots until its REPLY came and the reply's receive is free again: that is the reservation of R22. Exactly one REPLY comes for each CALL, a
// cancelled one too, so nothing is left of a cancelled call. An id has the slot's generation and is never used again.
//
// What is due to be sent waits in the lists here, each bounded: cancels and replies by slots, writes by grants, probes by reads and requests, WRITTENs by lieni_writes_max(), answers by LIENI_PROBES_OUT.
// Under the state lock.

#ifndef LIENI_CALL_H
#define LIENI_CALL_H

#include <lien/call.h>

#include "core/body.h"
#include "core/ctx.h"
#include "core/wire.h"

struct lien_conn;
struct lien_channel_call;
struct lieni_recv_slot;

#define LIENI_PROBES_OUT 256u  // probes of one side without an answer
#define LIENI_PROBE_MS   5000u // most time for an answer (design.md 4)
#define LIENI_WRITES_MORE                                                                          \
    256u // WRITEs of one side without an answer, above one for each call; see lieni_writes_max()

struct lieni_call_slot {
    struct lien_call *call; // while its REPLY is owed; a reference
    uint32_t gen;           // of the call, or of the last one
    uint32_t next_free;     // slot + 1
};
struct lieni_request_slot {
    struct lien_request *request; // while its REPLY is owed by us; a reference
    uint32_t gen;
    bool cancelled; // the CANCEL of this generation came
};

// A question to the owner of a read space: does this call live, and does the grant still hold? Embedded in who asks.
struct lieni_ask {
    uint64_t call;
    struct lieni_name name;
    void (*answered)(struct lieni_ask *ask, bool holds); // once, unless it is taken off its list
    uint32_t probe;                                      // its id, once it left
    bool left;
    struct lieni_node node; // calls.probes_due, calls.probing
};

struct lieni_calls {
    uint32_t max; // slots of each side; 0: no calls
    unsigned side;
    struct lieni_call_slot *slots;
    uint32_t free;             // slot + 1
    struct lieni_node all;     // calls of ours that are not freed
    struct lieni_node cancels; // CANCELs due
    struct lieni_request_slot *peer;
    struct lieni_node requests;   // that are not freed
    struct lieni_node replies;    // requests whose REPLY is due
    struct lieni_node writes;     // of our handlers, without an answer
    struct lieni_node writes_due; // of those, with frames to send
    uint32_t n_writes;            // of those, told in full: each gets one WRITTEN
    uint32_t next_write, next_probe;
    struct lieni_inwrite *assembly; // a WRITE of the peer's, not complete
    uint32_t n_inwrites;            // the peer's WRITEs, told in full, without WRITTEN
    struct lieni_node written;      // those whose WRITTEN is due
    struct lieni_node probes_due;   // asks that wait for a probe to leave
    struct lieni_node probing;      // asks that wait for its answer
    uint32_t n_probing;             // probes without an answer
    struct lieni_probe answers[LIENI_PROBES_OUT]; // due, from answer_first on
    uint32_t answer_first, n_answers;
    bool ready;              // handlers may begin
    bool goaway, goaway_due; // ours
    bool heard;              // the peer answered it: no CALL of it follows
    bool drained;            // and every request of it is over
    bool peer_goaway, heard_due;
};

// WRITEs of one side that may be without an answer. The sender holds back what is more; who gets more ends the connection. Above one for each call, since that many READs may run: the
// others are answered at once, so WRITEs to one call never wait for another's READ.
static inline uint32_t lieni_writes_max(const struct lieni_calls *calls)
{
    return calls->max + LIENI_WRITES_MORE;
}

enum lieni_call_state {
    LIENI_CALL_RUNNING, // its application holds it. Ends by REPLY, cancel, loss; deadline its own
    LIENI_CALL_FETCHING, // the REPLY is here, its body is READ. Ends by that, cancel, loss; deadline its own
    LIENI_CALL_ENDED, // done is told; the peer owes the REPLY, as it does till the connection's end
    LIENI_CALL_OVER   // nothing is owed but, perhaps, evidence for its write space
};

struct lien_call {
    struct lien_conn *conn; // a reference
    enum lieni_call_state state;
    uint64_t id;
    int status; // of done
    int released_status;
    bool released;
    lien_msg *reply;
    lien_buf **read; // borrowed until it ends
    size_t n_read;
    struct lien_grant *grant; // of the read space, while the peer owes its release
    struct lieni_name read_name;
    struct lien_grant *args; // of the arguments' body, while the peer owes its release
    lien_buf *reply_buf;     // reserved for the reply's body
    struct lieni_body body;  // of the reply, on its way
    lien_msg *fetching;      // the reply that gets it
    int reply_status;
    lien_space *space;           // write space, until it is settled
    struct lieni_inwrite *write; // whose READ runs into it
    void (*on_done)(void *arg, int status, lien_msg *reply);
    void (*on_released)(void *arg, int status);
    void *arg;
    struct lieni_task done_task, released_task;
    struct lieni_timer timer;
    bool has_timer, has_handle, waited;
    struct lieni_node node, cancel_node;
    struct lien_channel_call *owner; // that hears of done and released, until then, or NULL
    uint64_t frame;                  // number of its CALL among the frames queued
    bool unbegun;                    // the peer said so
    unsigned
        refs; // handle; running; REPLY owed; write's READ; tasks; release of each grant; reply's body
};

// -- The connection's side of it (call.c) --
void lieni_calls_init(struct lieni_calls *calls);
// Tables for `max` slots. LIEN_ENOMEM.
int lieni_calls_open(struct lien_conn *conn, uint32_t max, unsigned side);
void lieni_calls_free(struct lieni_calls *calls);
// Queues frames that are due, as far as credits and slots go.
void lieni_calls_pump(struct lien_conn *conn);
bool lieni_calls_quiet(const struct lien_conn *conn);
// The peer's GOAWAY, and its answer to ours. 0, or why the connection must end.
int lieni_calls_goaway(struct lien_conn *conn);
int lieni_calls_heard(struct lien_conn *conn);
// Ours, under the lock. LIEN_ENOTSUP: no calls on this connection.
int lieni_calls_say_goaway(struct lien_conn *conn);
// After our GOAWAY: a request is over, or the peer's answer came.
void lieni_calls_drain_step(struct lien_conn *conn);
// The connection ends: calls and requests do at once. `gone`: nothing is sent or received any more.
void lieni_calls_end(struct lien_conn *conn, int status, bool gone);
// The connection is GONE: timers and strands of what the application still holds.
void lieni_calls_gone(struct lien_conn *conn);

// -- Calls of ours --
struct lieni_sums;
// As lien_call_start(), for a channel's call (NULL: an application's), under the lock; the frame leaves with the next lieni_link_pump(). The owner has lent the write space.
// `sums`: two, the checksums of the body's buffers, and of the read space's; or NULL.
int lieni_call_begin(struct lien_conn *conn, const char *method, const void *args, size_t len,
                     const struct lieni_sums *sums, const lien_call_opts *opts,
                     struct lien_channel_call *owner, struct lien_call **call);
// Those, with the lock held on entry and exit.
int lieni_call_sums(lien_ctx *ctx, const lien_call_opts *opts, struct lieni_sums *sums);
// Ends it unless it ended.
void lieni_call_give_up(struct lien_call *call, int status);
struct lien_call *lieni_call_find(struct lien_conn *conn, uint64_t id); // that runs, or NULL
int lieni_call_replied(struct lien_conn *conn, struct lieni_recv_slot *slot,
                       const struct lieni_frame *frame);
void lieni_call_slot_free(struct lien_conn *conn, uint32_t slot);
void lieni_call_unref(struct lien_call *call);
// The READ into its write space is over, by evidence or not; the call may have ended long ago.
void lieni_call_write_over(struct lien_call *call, int status);
// 0, or why the connection must end; *why says it, where it is set.
int lieni_call_write_arrived(struct lien_conn *conn, const struct lieni_frame *frame,
                             const char **why);
void lieni_call_writes_end(struct lien_conn *conn); // none is answered any more
// The caller's options (NULL: none) on top of the defaults. LIEN_EINVAL, LIEN_ENOTSUP: a size or field that this library does not know.
int lieni_call_opts(const lien_call_opts *in, lien_call_opts *out);
// The first wait of a blocking start, under the lock: for the verdict on bytes that were read and are to be sent on. `*deadline`: that of the whole call.
int lieni_call_wait_verdict(lien_ctx *ctx, const lien_call_opts *opts, uint64_t *deadline);
// What is left until then of a call's time, in milliseconds, rounded up.
uint32_t lieni_call_ms_left(uint64_t now, uint64_t deadline);
// Gives up a WRITE to this call that is not complete.
void lieni_call_assembly_stop(struct lien_conn *conn, uint64_t call);
void lieni_call_write_stop(struct lien_call *call, int status);
// For observers: a READ into its space runs, and its space is what call->space says. In the middle of that READ's end the space may be gone already.
bool lieni_call_write_runs(const struct lien_call *call);
void lieni_call_written_pump(struct lien_conn *conn);

// -- Probes --
// `ask` has call, name and answered; it is on no list.
void lieni_probe_ask(struct lien_conn *conn, struct lieni_ask *ask);
int lieni_probe_arrived(struct lien_conn *conn, const struct lieni_frame *frame, const char **why);
int lieni_probe_answered(struct lien_conn *conn, const struct lieni_frame *frame);
void lieni_probe_pump(struct lien_conn *conn);

#endif
