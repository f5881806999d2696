// SPDX-License-Identifier: Apache-2.0
//
// What the parts of a worker of the chaos test share: its objects, runs of buffers, parked memory, and connections with references.

#ifndef CHAOS_WORKER_H
#define CHAOS_WORKER_H

#include "tests/chaos/chaos.h"

#define CHAOS_RUN_BUFS 4u
#define CHAOS_DRIVERS  3u
#define WRONG_REPORTED 10u // wrong answers that are described, of each worker

struct worker {
    struct chaos_world *world;
    struct chaos_slot *slot;
    unsigned self;
    lien_ctx *ctx;
    lien_pool *pool;
    lien_listener *listener;
    _Atomic uint64_t next_id;
    _Atomic int64_t pending; // operations whose released callback is still to come, and links
    _Atomic bool go;         // drivers may begin
    unsigned port;           // of the listener; told to the others after the warm-up
};
extern struct worker worker;

uint64_t worker_id(void); // unique in all processes and lives
void worker_count(enum chaos_op op);
// A claim of the library's header that does not hold.
void worker_wrong(const char *what, int rc);
// Counts the answer, and reports it if it is not among those that its header allows. Returns it.
int worker_judge(enum chaos_judged what, int status);
// The last lines of the library's log that have this code.
void worker_tell_log(int code);
bool worker_running(void);
// Whether the master asked for this fault; it is taken, and counted.
bool worker_take_fault(enum chaos_fault fault);

// -- Runs: some buffers of the pool, seen as one run of bytes --------------------------------------------------------------------

struct run {
    lien_buf *bufs[CHAOS_RUN_BUFS];
    unsigned n;
    size_t len;
};

size_t run_size(void); // a random one
// 0 or LIEN_ELIMIT.
int run_open(struct run *run, size_t len);
void run_fill(const struct run *run, uint64_t id, int generation);
// Reports what differs.
void run_check(const struct run *run, uint64_t id, int generation, uint64_t turn, const char *what);
void run_turn(const struct run *run);
void run_free(struct run *run);
// The memory is ours again: fills it anew, and frees it after a while, when it was compared. `run` is empty afterwards.
void run_park(struct run *run);
lien_space *run_to_space(struct run *run);
// Takes the buffers of a space that is back, and frees the space.
void run_from_space(struct run *run, lien_space **space);
// Compares what is due, or (`all`) everything. How many are left.
unsigned run_sweep(bool all);

// -- Links: connections with references ------------------------------------------------------------------------------------------

struct link {
    lien_conn *conn;
    unsigned refs;
    _Atomic bool lost;
    bool accepted;
    struct link *next;
};

// Connects to the worker of slot `to`; NULL: not possible now.
struct link *link_open(unsigned to);
// A connection whose end nobody waits for: opened here, closed by its own open callback.
void link_storm(unsigned to);
// A reference to the link of this connection, or NULL when it is being closed.
struct link *link_of(const lien_conn *conn);
// The last one closes it.
void link_unref(struct link *link);
int link_accepted(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg);
void link_conn_opts(lien_conn_opts *opts);

// -- Serving and driving ---------------------------------------------------------------------------------------------------------

enum call_kind {
    CALL_PLAIN,
    CALL_OVERLAPPED,
    CALL_PURE,
    CALL_KINDS
};
extern const char *const call_names[CALL_KINDS];
extern const lien_service serve_service;

struct call_args {
    uint64_t id, len;
    uint32_t back; // the handler calls back
    uint32_t mood; // of the handler: sometimes it gives up, or waits
};
struct message_head {
    uint64_t id, len;
    lien_token token; // of a grant of `len` bytes; len 0: none, and a body
};

void serve_message(lien_conn *conn, lien_msg *msg, void *arg);
void *drive(void *arg);

#endif
