// SPDX-License-Identifier: Apache-2.0
//
// What the client commands share: a ctx, a pool of a few buffers, a connection that is made when first needed and made anew after a failure, and calls over it. Main thread; Lien's callbacks
// only note what happened, under `lock`, and wake it.

#ifndef BLOB_CLIENT_H
#define BLOB_CLIENT_H

#include <pthread.h>
#include <stdbool.h>

#include <lien/lien.h>

#include "args.h"
#include "file.h"
#include "progress.h"
#include "proto.h"

struct client {
    const struct args *args;
    lien_ctx *ctx;
    lien_pool *pool;
    lien_conn *conn;
    XXH3_state_t *sum; // of the file that is put, got or summed
    uint64_t copied;   // Lien's counter when the command began
    double began;
    pthread_mutex_t lock; // guards what follows, and `out` and what comes with it in each call
    pthread_cond_t changed;
    uint64_t changes; // counts what happened
    bool open, closed, stopped;
    int open_status;
};

// A call of ours. It must stay in its place until client_finish(), or client_disconnect().
struct call {
    struct client *client;
    bool out;        // Lien has it, and all that is lent to it
    int status;      // what on_done said, or else on_released
    bool understood; // the reply, which is `answer`
    struct blob_answer answer;
    lien_buf *body; // of the answer, or NULL; the owner of the call frees it
};

// Runs one of the client commands; returns the exit code.
int client_run(const struct args *args);

// Connects unless there is a connection.
bool client_connect(struct client *client, struct blob_error *error);
// Ends the connection, and with it every call: nothing is lent afterwards. Blocks, bounded by Lien's own teardown.
void client_disconnect(struct client *client);

// Starts a call. `opts` (filled with lien_call_opts_init) may have spaces, a deadline and reply_max; the callbacks are set here. Waits while Lien has no credit for it. False: *error is set, and
// nothing is lent.
bool client_start(struct client *client, struct call *call, const char *method,
                  const struct blob_ask *ask, lien_call_opts *opts, struct blob_error *error);
// Waits for its end, and until nothing is lent to it any more. False with *error set: it failed, the server says why it will not, or we were interrupted.
bool client_finish(struct call *call, struct blob_error *error);
// Both, without spaces.
bool client_ask(struct client *client, const char *method, const struct blob_ask *ask,
                struct blob_answer *answer, struct blob_error *error);
bool client_set_name(struct blob_ask *ask, const char *name, struct blob_error *error);

// The clock and Lien's counter of copied bytes start.
void client_begin(struct client *client);
// The line at the end: bytes, seconds, GB/s, provider, path, payload bytes that Lien copied here and at the server.
void client_report(const struct client *client, const char *what, const char *name, uint64_t bytes,
                   uint64_t copied_there);

// -- pieces.c: all pieces of a file from ask.offset on, BLOB_WINDOW calls at a time -------------------------------------------------------

enum pieces_kind {
    PIECES_PUT,
    PIECES_GET,
    PIECES_SUM
};

// `ask` has transfer, size of the file, and where to begin; client->sum covers what is before that, and everything afterwards.
bool client_pieces(struct client *client, enum pieces_kind kind, const char *name, int fd,
                   const struct blob_ask *ask, struct blob_error *error);

// -- The commands: false with *error set ---------------------------------------------------------------------------------------------------

bool client_put(struct client *client, const char *path, const char *name,
                struct blob_error *error);
bool client_get(struct client *client, const char *name, const char *output,
                struct blob_error *error);
bool client_sum(struct client *client, const char *path, struct blob_error *error);
bool client_ls(struct client *client, struct blob_error *error);
bool client_stat(struct client *client, const char *name, struct blob_error *error);
bool client_rm(struct client *client, const char *name, struct blob_error *error);

#endif
