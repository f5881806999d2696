// SPDX-License-Identifier: Apache-2.0
//
// A random program on a simulated world: what the application of each node does, through <lien/lien.h> alone, and what it believes. The application's objects, and the checks of each callback
// and each byte: model.c (operations, buffers, connections), transfers.c (grants, reads, messages), calls.c (calls and their spaces), requests.c (what handlers do). program.c draws the actions
// and runs the world, faults.c draws the faults. One thread; everything is freed with the program.
//
// The pattern of each byte is a function of a tag and its offset; a tag is the number of what the bytes belong to, and the generation where memory is used again. So a byte that is
// believed names what it was read from, and one that is older or younger is seen.

#ifndef LIEN_SIM_PROGRAM_H
#define LIEN_SIM_PROGRAM_H

#include <lien/lien.h>

#include "cells.h"
#include "provider/sim/sim.h"

#define WISHES    10u
#define LIES      16u // wishes for what the network, or a device, does to one operation
#define NODES_MAX 5u  // at first
#define NODES_ALL 7u  // with those that took over a dead one's address
#define BUFS_MAX  4u
#define HOARD     64u // buffers
#define MEM_BYTES (128u * 1024u)

struct program;
struct app_conn;

struct tally { // over all programs
    uint64_t reads, bodies, calls, spaces,
        stale; // verified; of reads of calls, those that the library refused to vouch for
    uint64_t quarantined;
    uint64_t allocs_failed;
    uint64_t caught;                   // reads whose checksum told that they were false
    uint64_t reads_posted, read_steps; // of devices; steps that moved bytes, and ends
    uint64_t lies; // bytes, answers and frames that were false, where the network lies
};

struct app_node {
    struct program *p;
    unsigned index;
    lien_ctx *ctx;
    lien_pool *pool;
    lien_listener *listener;
    char address[96];
    bool dead, frozen;
    unsigned listeners_closed, listeners_opened;
    uint64_t thaw_at;
    bool replaced; // another node has its address
    lien_method methods[2];
    lien_service service;
};

// The life of one operation's callbacks (R4).
struct app_op {
    struct program *p;
    const char *what;
    unsigned number;
    unsigned done, released; // how often they ran
    bool started;            // the starting call returned 0
    bool one_event;          // has only `released`
    int status, released_status;
};

struct app_mem { // memory that the application owns
    struct app_op op;
    struct app_node *node;
    uint8_t *addr;
    size_t used;
    lien_mem *mem;
    struct app_mem *next;
};

struct app_buf {
    lien_buf *buf; // NULL: freed, or moved into a space
    uint8_t *addr;
    size_t len;
};

struct app_conn {
    struct program *p;
    struct app_node *node;
    lien_conn *conn; // NULL once closed
    uint64_t id;     // 0 until open
    unsigned number;
    bool server;
    unsigned opened, lost, closed; // callbacks
    int open_status;
    bool goaway;     // we take no new calls
    uint64_t tx, rx; // messages
    struct app_conn *next;
};

struct app_grant {
    struct app_op op;
    struct app_conn *conn;
    lien_grant *grant;
    lien_token token;
    struct app_buf bufs[BUFS_MAX];
    unsigned n;
    uint64_t total, tag;
    bool sums; // LIEN_CHECKSUM
    struct app_grant *next;
};

struct app_source { // memory of read spaces; several calls may borrow it at once
    struct app_node *node;
    struct app_buf bufs[BUFS_MAX];
    unsigned n;
    uint64_t total, tag;
    unsigned borrows; // running calls that have it
    bool freed;       // its handles were given up
    struct app_source *next;
};

struct app_request;
struct app_call;

struct app_read {
    struct app_op op;
    struct app_conn *conn;
    uint64_t tag, total;         // of the source
    struct app_request *request; // of whose call it reads; NULL: a grant
    lien_read *read;
    lien_space *space; // NULL: freed while lent
    struct app_buf bufs[BUFS_MAX];
    unsigned n;
    lien_op ops[4];
    unsigned n_ops;
    bool sums; // its source carries checksums: success is never a lie, and whole buffers are moved
    bool never_lent; // nothing was posted: ended at once
    struct app_read *next;
};

struct app_write { // of a handler
    struct app_op op;
    struct app_request *request;
    struct app_call *call;
    struct app_buf bufs[BUFS_MAX];
    unsigned n;
    uint64_t total, tag;
    lien_op ops[4];
    unsigned n_ops;
    bool empty; // its operations move nothing, so nothing is lent
    struct app_write *next;
    struct app_write *landed; // the one before it in the same space
};

struct app_call {
    struct app_op op;
    struct app_conn *conn;
    lien_call *call;           // NULL: no handle was kept, or it was closed
    struct app_source *source; // NULL: no read space
    bool borrowing;
    uint64_t src_tag, src_total;
    lien_space *space; // NULL: no write space, or freed while lent
    struct app_buf target[BUFS_MAX];
    unsigned n_target;
    uint64_t target_total, target_tag;
    struct app_write *landed; // the last write that arrived
    unsigned n_writing;       // whose result the handler has not heard
    bool torn;                // one arrived in part
    bool gave_up;             // so the call cannot succeed (R2)
    struct app_buf body[BUFS_MAX];
    unsigned n_body;
    uint64_t body_total, body_tag;
    uint64_t reply_max;
    uint64_t deadline; // ns
    bool sums;         // LIEN_CHECKSUM
    bool known;        // there is such a method
    unsigned handled;  // how often a handler got it
    bool replied;      // ... and answered
    int reply_status;
    uint64_t reply_len, reply_total, reply_tag;
    struct app_call *next;
};

struct app_request { // of the peer's, while the application holds it
    struct program *p;
    unsigned number;
    struct app_conn *conn;
    struct app_call *call;
    lien_request *request; // NULL: replied or dropped
    struct app_buf body;
    unsigned cancelled; // how often on_cancel ran
    bool want_cancel;
    unsigned n_transfers; // running
    bool unsure;          // a write has a deadline of its own: it may have been given up
    bool gave_up;         // it was
    struct app_request *next;
};

struct app_alloc { // a wait for memory
    struct app_op op;
    struct app_node *node;
    size_t len;
    lien_alloc *alloc;
    struct app_buf buf; // which came
    struct app_alloc *next;
};

struct app_send {
    struct app_op op;
    struct app_conn *conn;
    struct app_buf bufs[BUFS_MAX];
    unsigned n;
    struct app_send *next;
};

struct app_msg { // received and held
    struct app_node *node;
    lien_msg *msg;
    struct app_buf body; // addr, len; buf when taken out
    struct app_msg *next;
};

struct
    wish { // a fault that waits for a connection in a state: rare cells are met by waiting for them
    bool active;
    enum fault fault;
    enum cell_state state;
    unsigned moments; // until it is given up
};

struct program {
    uint64_t seed;
    unsigned steps;
    const uint8_t *skip; // steps that are left out, or NULL
    uint64_t without;    // knobs that are off: bits of program_knob()
    enum trace {
        TRACE_NONE,
        TRACE_APP, // what applications do and hear, and faults
        TRACE_ALL
    } trace;
    bool no_wishes;
    bool no_entries; // none ever comes after a break
    enum lieni_sim_class kind;
    struct lieni_sim_world *world;
    unsigned n_nodes;
    struct app_node nodes[NODES_ALL];
    struct app_conn *conns;
    struct app_grant *grants;
    struct app_read *reads;
    struct app_send *sends;
    struct app_msg *msgs;
    struct app_mem *mems;
    struct app_source *sources;
    struct app_call *calls;
    struct app_request *requests;
    struct app_write *writes;
    struct app_alloc *allocs;
    unsigned numbers;
    unsigned step;
    struct app_node *actor;            // which calls the library now; NULL: unknown
    struct wish wishes[WISHES + LIES]; // the last are for lies
    struct app_buf hoard[HOARD];       // of one node's pool, until its moments have passed
    unsigned n_hoard, hoard_moments;
    struct app_call *ambush; // to be cancelled in the middle of a transfer of its handler's
    unsigned ambush_in;      // moments until then
    bool calm;               // few faults are wished for
    bool small_pools, pool_of_conn, revocable;
    bool proven, zero;  // the pools' reuse and flag
    bool liars;         // the network lies about bytes: they say nothing about the library
    bool poor;          // memory runs out at times
    bool tight;         // small limits of quarantine and lending
    bool jumped;        // a clock did
    bool short_release; // peers that owe a release for long lose the connection, by LIEN_EPEERLOST
    bool stopping;      // no new operations, also in callbacks
    bool failed;
    char failure[640];
    struct cells *cells;
    struct tally tally;
};

// -- program.c ---------------------------------------------------------------------------------------------------------------------

// Runs the program of a seed. False: it failed, p->failure says how. `p` was zeroed and its seed, steps, skip, without, trace, kind and cells set.
bool program_run(struct program *p);
// The name of a fault that can be left out; NULL: there are no more.
const char *program_knob(unsigned i);

bool node_runs(const struct app_node *node); // neither dead nor frozen nor closed
void program_progress(struct program *p, struct app_node *node); // until it is at rest
// A dead node's machine is back: a new process, with the old address and nothing else of it. Nothing if that was so before, or there are too many.
void program_restart(struct program *p, struct app_node *dead);

// -- faults.c ----------------------------------------------------------------------------------------------------------------------

void faults_hook(void *self, enum lieni_sim_fault fault, void *user);
void faults_nomem(void *self); // an allocation of the actor's library fails
// The pool of the node, or, `c` not NULL, what that connection may have under way, is used up.
void faults_exhausted(struct app_node *node, struct app_conn *c);
void faults_restart(struct program *p, const struct app_node *dead);
void faults_break_any(struct program *p);
void faults_jump(struct program *p, struct app_node *node); // its clock
void faults_close(struct app_conn *c);
void faults_cancel(struct app_read *r);      // has a handle
void faults_revoke(struct app_grant *g);     // has a handle
void faults_call_cancel(struct app_call *c); // has a handle
void faults_drop(struct app_request *r);     // has a handle
void faults_goaway(struct app_conn *c);      // has a handle
void faults_deadline(struct app_call *c);    // it has passed
// The application takes all that is left of its pool, for a while.
bool faults_hoard(struct program *p, struct app_node *node);
void faults_hoard_end(struct program *p);
// Draws a wish, unless there are too many. faults_try: at each moment.
void faults_wish(struct program *p);
void faults_try(struct program *p);
// A transfer of this call's began: at times the call is cancelled some moments later.
void faults_ambush(struct program *p, struct app_call *c);

// -- guarded.c ---------------------------------------------------------------------------------------------------------------------

// The provider's address of memory that the application has at `addr`. `self`: the program.
const void *guarded_address(void *self, const void *addr);

// -- model.c: used by program.c ----------------------------------------------------------------------------------------------------

__attribute__((format(printf, 2, 3))) void program_fail(struct program *p, const char *format, ...);
// Of what peers and bytes say: a failure, unless the network lies.
__attribute__((format(printf, 2, 3))) void program_doubt(struct program *p, const char *format,
                                                         ...);
// Whether a connection may end with it.
bool may_lose(const struct program *p, int status);
uint64_t node_now(const struct app_node *node); // its clock
uint64_t draw(struct program *p, uint64_t below);
bool one_in(struct program *p, uint64_t n);

void model_conn_opts(struct app_conn *conn, lien_conn_opts *opts);
struct app_conn *model_conn_new(struct app_node *node, bool server);
void model_conn_close(struct app_conn *conn);
bool model_conn_usable(const struct app_conn *conn);

// Each does one action; nothing if it is not possible now.
void model_grant(struct app_conn *conn);
void model_grant_new(struct app_conn *conn); // of memory that is registered for it
void model_read(struct app_conn *conn);
void model_send(struct app_conn *conn);
void model_release(struct app_conn *conn);
void model_revoke(struct app_grant *grant);
void model_grant_close(struct app_grant *grant);
void model_cancel(struct app_read *read);
void model_read_close(struct app_read *read);
void model_msg_free(struct app_msg *msg);             // also removes it from the list
struct app_mem *model_mem_new(struct app_node *node); // its `mem` is NULL when it was refused
void model_mem_unregister(struct app_mem *mem);
void model_alloc(struct app_node *node);
void model_alloc_end(struct app_alloc *alloc); // cancels it, or frees what came
void model_listen(struct app_node *node);
void model_listener_close(struct app_node *node);

// calls.c
void model_call(struct app_conn *conn);
void model_call_cancel(struct app_call *call);
void model_call_close(struct app_call *call);
// Whatever the call says: if its buffers can be written, it has ended, and they are written.
void model_poke(struct app_source *source);
void model_source_free(struct app_source *source);
void model_check_deadlines(struct program *p, bool last);
void calls_service(struct app_node *node);

// requests.c
void model_request_act(struct app_request *request);
void model_request_drop(struct app_request *request);

// Whether every callback that is owed has come.
bool model_quiet(const struct program *p);
// At the end: whatever did not come is a failure. Releases of registered memory are due when the contexts are closed.
void model_check_end(struct program *p, bool contexts_closed);
void model_free(struct program *p);

#endif
