// SPDX-License-Identifier: Apache-2.0
//
// The victim of fuzz_conn: a ctx on the simulator with one connection, and an application that does what it is told: calls, sends, grants, reads, answers, gives up. It tells the
// simulator's shadow whose each buffer is, as it learns it from the public API alone, and checks that each operation is done once, then released once, and that what was released can be
// written. One thread.

#ifndef TESTS_FUZZ_CONN_APP_H
#define TESTS_FUZZ_CONN_APP_H

#include <lien/lien.h>

#include "provider/sim/sim.h"

#define APP_OPS      12u
#define APP_REQUESTS 6u
#define APP_MSGS     4u

enum app_kind {
    APP_NONE, // a free place
    APP_CALL,
    APP_SEND,
    APP_GRANT,
    APP_READ, // by a token
    APP_REQUEST_READ,
    APP_REQUEST_WRITE,
    APP_REPLY // its body's buffers are the library's: nothing is heard of it
};

struct app_mem {
    lien_buf *buf; // NULL once it is in a space, or freed
    uint8_t *addr;
    size_t len;
};

struct app_op {
    struct app *app;
    enum app_kind kind;
    bool done, released;
    bool no_done;                // a grant has `released` only
    struct app_mem source, body; // lent as sources
    struct app_mem target;       // in `space`
    lien_space *space;           // NULL: none, or freed while lent
    lien_call *call;
    lien_grant *grant;
    lien_read *read;
};

struct app_request {
    struct app *app;
    lien_request *request;
};

struct app {
    struct lieni_sim_world *sim;
    lien_ctx *ctx;
    lien_pool *pool;
    lien_listener *listener;
    lien_conn *conn;
    char address[96];
    bool accepted, lost, closed;
    int lost_status;
    struct app_op ops[APP_OPS];
    struct app_request requests[APP_REQUESTS];
    unsigned n_requests; // handlers that ran
    lien_msg *msgs[APP_MSGS];
    unsigned n_msgs;
    bool keep;         // messages and requests are kept till told otherwise
    unsigned finished; // operations
};

void app_open(struct app *app, struct lieni_sim_world *sim);
// Progress until it is at rest.
void app_progress(struct app *app);
// When its next timer is due, or UINT64_MAX.
uint64_t app_next(struct app *app);
// Starts nothing new, gives everything up; what is owed must come while the caller runs the world.
void app_give_up(struct app *app);
// Whether nothing is owed any more.
bool app_quiet(const struct app *app);
void app_close(struct app *app);

// Each does one thing if it can; `how` varies it. Refusals by the library are fine, whatever they say.
void app_call(struct app *app, unsigned how);
void app_send(struct app *app, unsigned how);
bool app_grant(struct app *app, unsigned how, lien_token *token); // true: there is a token
void app_read(struct app *app, const void *token, size_t len, unsigned how);
void app_release(struct app *app, const void *token, size_t len);
// Cancels, revokes or closes the handle of the `i`-th operation, or frees a buffer or space of it.
void app_end(struct app *app, unsigned i, unsigned how);
// Reads, writes, verifies, answers or drops the `i`-th request.
void app_serve(struct app *app, unsigned i, unsigned how);
void app_free_msgs(struct app *app);

#endif
