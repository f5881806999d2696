// SPDX-License-Identifier: Apache-2.0
//
// A random program on a simulated world: what the application of each node does, through <lien/lien.h> alone, and what it believes. model.c owns the application's objects and
// checks each callback and each byte; program.c draws the actions and runs the world. One thread; everything is freed with the program.

#ifndef LIEN_SIM_PROGRAM_H
#define LIEN_SIM_PROGRAM_H

#include <lien/lien.h>

#include "cells.h"
#include "provider/sim/sim.h"

#define NODES_MAX 5u
#define BUFS_MAX  4u
#define MEM_BYTES (256u * 1024u)

struct program;
struct app_conn;

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
    struct app_grant *next;
};

struct app_read {
    struct app_op op;
    struct app_conn *conn;
    const struct app_grant *grant;
    lien_read *read;
    lien_space *space; // NULL: freed while lent
    struct app_buf bufs[BUFS_MAX];
    unsigned n;
    lien_op ops[4];
    unsigned n_ops;
    bool never_lent; // nothing was posted: ended at once
    struct app_read *next;
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

struct program {
    uint64_t seed;
    unsigned steps;
    bool trace;
    enum lieni_sim_class kind;
    struct lieni_sim_world *world;
    unsigned n_nodes;
    struct app_node nodes[NODES_MAX];
    struct app_conn *conns;
    struct app_grant *grants;
    struct app_read *reads;
    struct app_send *sends;
    struct app_msg *msgs;
    struct app_mem *mems;
    unsigned numbers;
    unsigned step;
    struct
        wish { // a fault that waits for a connection in a state: rare cells are met by waiting for them
        bool active;
        enum fault fault;
        enum cell_state state;
        unsigned moments; // until it is given up
    } wish;
    bool short_release; // peers that owe a release for long lose the connection, by LIEN_EPROTO
    bool stopping;      // no new operations, also in callbacks
    bool failed;
    char failure[640];
    struct cells *cells;
    uint64_t reads_verified, bodies_verified, quarantined;
};

// -- program.c ---------------------------------------------------------------------------------------------------------------------

// Runs the program of a seed. False: it failed, p->failure says how. `p` was zeroed and its seed, steps, trace, kind and cells set.
bool program_run(struct program *p);

bool node_runs(const struct app_node *node); // neither dead nor frozen nor closed

// -- faults.c ----------------------------------------------------------------------------------------------------------------------

void faults_hook(void *self, enum lieni_sim_fault fault, void *user);
void faults_break_any(struct program *p);
void faults_close(struct app_conn *c);
void faults_cancel(struct app_read *r);  // has a handle
void faults_revoke(struct app_grant *g); // has a handle
// Draws a wish, unless there is one. faults_try: at each moment.
void faults_wish(struct program *p);
void faults_try(struct program *p);

// -- model.c: used by program.c ----------------------------------------------------------------------------------------------------

__attribute__((format(printf, 2, 3))) void program_fail(struct program *p, const char *format, ...);
uint64_t draw(struct program *p, uint64_t below);
bool one_in(struct program *p, uint64_t n);

void model_conn_opts(struct app_conn *conn, lien_conn_opts *opts);
struct app_conn *model_conn_new(struct app_node *node, bool server);
void model_conn_close(struct app_conn *conn);
bool model_conn_usable(const struct app_conn *conn);

// Each does one action; nothing if it is not possible now.
void model_grant(struct app_conn *conn);
void model_read(struct app_conn *conn);
void model_send(struct app_conn *conn);
void model_release(struct app_conn *conn);
void model_revoke(struct app_grant *grant);
void model_grant_close(struct app_grant *grant);
void model_cancel(struct app_read *read);
void model_read_close(struct app_read *read);
void model_msg_free(struct app_msg *msg); // also removes it from the list
void model_mem_new(struct app_node *node);
void model_mem_unregister(struct app_mem *mem);
void model_listen(struct app_node *node);
void model_listener_close(struct app_node *node);

// Whether every callback that is owed has come.
bool model_quiet(const struct program *p);
// At the end: whatever did not come is a failure. Releases of registered memory are due when the contexts are closed.
void model_check_end(struct program *p, bool contexts_closed);
void model_free(struct program *p);

#endif
