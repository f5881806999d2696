// SPDX-License-Identifier: Apache-2.0
//
// A connection: its life from bootstrap to settled end. What it carries is in link.h (frames, credits), message.h,
// grant.h and read.h; how it is made in connect.c, how it ends in teardown.c, how it is kept in liveness.c.
//
// Under the state lock. References: the application's handle, the life itself until GONE, each read, grant, send and message of it, each
// task queued. Without any it goes to ctx->graveyard, and progress context frees it, so that events already polled never meet freed memory.

#ifndef LIENI_CONN_H
#define LIENI_CONN_H

#include "core/call.h"
#include "core/ctx.h"
#include "core/evidence.h"
#include "core/grant.h"
#include "core/handshake.h"
#include "core/link.h"
#include "core/nic.h"
#include "core/trace.h"

enum lieni_conn_state {
    LIENI_CONN_BOOT,    // bootstrap stream connects and shakes hands. Deadline connect_ms
    LIENI_CONN_FABRIC,  // the endpoint waits for its peer; receives are lent. Same deadline
    LIENI_CONN_OPEN,    // in use. Ends by close or loss; liveness.c is its deadline
    LIENI_CONN_ENDING,  // closed here: what is queued leaves, the peer is told. Deadline linger_ms
    LIENI_CONN_DRAIN,   // shut down: entries that still come count. Deadline drain_ms
    LIENI_CONN_DESTROY, // its endpoint is being destroyed: tried again until it is
    LIENI_CONN_GONE     // settled: all memory home or quarantined
};

enum {
    LIENI_OBJECT_CONN = 1,
    LIENI_OBJECT_LISTENER = 2
}; // first field of a net event's `user`

struct lieni_channel_link; // channel.h

struct lien_conn {
    int object;             // LIENI_OBJECT_CONN
    struct lieni_node node; // ctx->conns, or ctx->graveyard
    struct lieni_node work; // ctx->work
    lien_ctx *ctx;
    enum lieni_conn_state state;
    int status; // why it ended, 0 while it did not
    unsigned refs;
    bool has_handle;    // the application holds it (or is about to)
    bool was_open;      // it reached OPEN
    bool quiet;         // made by a _wait function: on_open does not run
    bool no_closed;     // on_closed does not run (close_wait, or never given to the application)
    bool closed_posted; // the last callback is due, or ran
    bool closed_done;   // the last task ran
    bool shutdown_done; // ep_shutdown was called
    bool lost;          // something of it was quarantined
    int broken; // it must end with this, which progress context does; see lieni_conn_break()
    const char *broken_text;
    uint64_t lost_bytes;
    lien_conn_opts opts;
    struct lieni_strand *strand;
    struct lieni_task open_task, writable_task, lost_task, closed_task;
    struct lieni_task goaway_task, drained_task;
    struct lieni_trace *trace;    // or NULL; from the start to the end of the struct's life
    struct lieni_task trace_task; // of ctx->strand, while trace_queued, which holds a reference
    bool trace_queued;
    uint64_t trace_file; // its number in the ctx, 0: none
    bool want_writable, writable_posted;
    bool half_open;           // counted in ctx->half_open
    struct lieni_timer timer; // of the state
    uint64_t destroy_wait;    // ns until the next try

    uint64_t id; // what the server said: another connection may have the same
    uint64_t
        serial; // counts the connections of the ctx from 1: no peer chooses it, and it is never used again
    bool server;   // accepted, not opened: tells tokens of the two sides apart
    char peer[96]; // host:port of the bootstrap
    char peer_host[96];
    char local_host[96];  // our end of the bootstrap
    char fabric_host[96]; // our end of the endpoint, and its NIC's name; "" before there is one
    char nic_name[64];
    bool soft; // the NIC is software
    struct {
        uint64_t messages_sent, messages_received, reads_done, reads_failed, read_bytes;
    } counts;          // of lien_conn_info
    char dialled[256]; // host that the application named; "": accepted, or too long to be one
    struct lien_listener *listener; // until it is given to the application; a reference
    struct lieni_node listen_node;
    struct lien_listener *accepted_by; // while on_accept is due; a reference
    struct lien_listener *origin;      // that accepted it, until GONE; a reference
    struct lieni_node member_node;     // of origin

    struct lieni_node fabric_node; // ctx->fabric_queue
    bool fabric_counted;           // in ctx->fabric_pending
    struct lieni_stream *stream;
    struct lieni_handshake *hs;
    struct lieni_nic *nic;
    const struct lieni_provider *ops;
    struct lieni_ep *ep;
    struct lieni_quarantine_share *share; // in the account of what is lost (R12), as long as nic
    uint64_t share_held, share_reads;     // what it counts of us
    struct lieni_node room_node;          // ctx->room_waits
    bool room;                            // it has come
    struct lieni_wrs wrs;
    struct lieni_link link;
    uint64_t message_max; // what the peer takes
    uint64_t body_max;    // what we take

    struct lieni_grant_table grants;
    struct lieni_node live_grants;
    struct lieni_node exposures; // buffers whose keys the peer may still know (LIEN_REUSE_PROVEN)
    uint32_t n_checks;           // reads whose checksums are being compared: the end waits for them
    struct lieni_node revokes;
    uint64_t grants_bytes;
    uint32_t n_grants;
    struct lieni_import_table imports;

    struct lieni_node grant_handles, read_handles; // the application's, until it closes them
    struct lieni_node reads;                       // all that are not over
    struct lieni_node read_queue;                  // those with pieces to post
    struct lieni_node read_turn;                   // nic->read_turns
    uint32_t reads_max; // outstanding at once: the provider's, and what the peer's device serves
    uint32_t reads_outstanding;
    uint64_t read_bytes;
    struct lieni_timer watchdog;
    uint64_t last_read; // a READ was posted to an idle connection, or completed

    struct lieni_calls calls;
    struct lieni_channel_link *channel; // whose connection it is, until it is closed; or NULL

    struct lieni_node sends;
    struct lieni_node inbox;
    bool wanted;    // bodies of messages may be fetched; without effect where we connected
    bool inbox_gap; // a message was dropped: none behind it is delivered

    uint32_t peer_dead_ms;
    uint8_t peer_instance[16]; // of the remote ctx
    struct lieni_peer *group;  // while OPEN
    struct lieni_node group_node;
    struct lieni_node watch_node; // ctx->watched
    uint64_t last_rx;             // a frame received, or a READ completed
    uint64_t asked;               // since when an asked sign of life is awaited; 0: none is
    struct lieni_timer retry;     // after LIEN_EAGAIN from a post
    uint64_t retry_since;         // when it began to answer so; 0: it does not
    uint64_t retry_wait;
};

// conn.c
int lieni_conn_new(lien_ctx *ctx, const lien_conn_opts *opts, struct lien_conn **conn);
// As lien_conn_open(), under the lock. quiet: on_open does not run.
int lieni_conn_open_locked(lien_ctx *ctx, const char *address, const lien_conn_opts *opts,
                           bool quiet, struct lien_conn **conn);
void lieni_conn_ref(struct lien_conn *conn);
void lieni_conn_unref(struct lien_conn *conn);
void lieni_conn_free(struct lien_conn *conn); // progress context, from the graveyard
const char *lieni_conn_state_name(enum lieni_conn_state state);
void lieni_conn_set_state(struct lien_conn *conn, enum lieni_conn_state state);
// Queues a task of the connection's strand, with a reference held until it ran.
void lieni_conn_post(struct lien_conn *conn, struct lieni_task *task);
struct lieni_log_at lieni_conn_at(const struct lien_conn *conn, uint64_t op);
// Puts it on ctx->work and wakes progress.
void lieni_conn_kick(struct lien_conn *conn);
// LIEN_ESTATE (not open yet), or the status with which it ended; 0 while it can be used.
int lieni_conn_usable(const struct lien_conn *conn);
// What an operation ended with, as the application hears it.
int lieni_conn_op_status(const struct lien_conn *conn, int status);
// The application hears of the peer's GOAWAY; of the end of its own (call.h).
void lieni_conn_tell_goaway(struct lien_conn *conn);
void lieni_conn_drained(struct lien_conn *conn);
// Its last callback is due once it is GONE and without handle.
void lieni_conn_closed(struct lien_conn *conn);
// The application gives up its handle, under the lock.
void lieni_conn_close_handle(struct lien_conn *conn);
int lieni_conn_opts_check(const lien_ctx *ctx, const lien_conn_opts *in, lien_conn_opts *out);
// How transfers on it move; NONE before a provider was chosen. *soft may be NULL.
lien_path lieni_conn_path(const struct lien_conn *conn, bool *soft);
// Room to send may have come.
void lieni_conn_writable(struct lien_conn *conn);

// connect.c
void lieni_conn_on_net(struct lien_conn *conn, const struct lieni_net_event *ev);
void lieni_conn_start_server(struct lien_conn *conn, struct lieni_stream *stream);
void lieni_conn_on_up(struct lien_conn *conn);
// Its turn came: makes the endpoint. Progress context.
void lieni_conn_fabric_turn(struct lien_conn *conn);
// It is no longer on its way, or does not wait any more: the next one has its turn.
void lieni_conn_fabric_over(struct lien_conn *conn);

// teardown.c
// Ends it, from any state but the last ones: operations are done with `status` at once, memory waits for evidence. `text` is logged (NULL: not).
void lieni_conn_lose(struct lien_conn *conn, int status, const char *text);
// The same, but later, in progress context: for callers that may be deep inside the end of something else of this connection, which the loss would
// end a second time. Nothing is posted from now on. `text` is a constant.
void lieni_conn_break(struct lien_conn *conn, int status, const char *text);
void lieni_conn_close_locked(struct lien_conn *conn);
// In ENDING: goes on when all has left.
void lieni_conn_ending_step(struct lien_conn *conn);
// The steps that need progress context; releases and retakes the state lock.
void lieni_conn_work(struct lien_conn *conn);
void lieni_conn_timer(struct lien_conn *conn);
// An entry of its completion queue.
void lieni_conn_on_entry(struct lien_conn *conn, const struct lieni_cqe *cqe);
void lieni_conn_on_down(struct lien_conn *conn, int status);

// liveness.c
// LIEN_ENOMEM.
int lieni_liveness_open(struct lien_conn *conn);
// It is no longer OPEN.
void lieni_liveness_close(struct lien_conn *conn);
// A sign of life.
void lieni_liveness_heard(struct lien_conn *conn);
// Asks for one now.
void lieni_liveness_ask(struct lien_conn *conn);
void lieni_liveness_beat(struct lieni_timer *timer); // ctx->beat
// Something depends on it from now on (liveness.c depended_on), so the looks are to include it. Cheap.
void lieni_liveness_watch(struct lien_conn *conn);
// The peer asked: a look that is due soon is done in this pass, not in a wakeup of its own.
void lieni_liveness_was_asked(struct lien_conn *conn);
void lieni_liveness_watchdog(struct lieni_timer *timer);
void lieni_liveness_read_posted(struct lien_conn *conn);
void lieni_liveness_read_over(struct lien_conn *conn, bool ok);
// A post answered LIEN_EAGAIN: it is tried again, for a bounded time.
void lieni_liveness_again(struct lien_conn *conn);
void lieni_liveness_posted(struct lien_conn *conn);
void lieni_liveness_retry(struct lieni_timer *timer);

#endif
