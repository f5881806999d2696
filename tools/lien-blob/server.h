// SPDX-License-Identifier: Apache-2.0
//
// The server. Each call becomes a *job*, which goes into the queue of its client's *session*; a session is a connection and a thread of its own, so a slow disk or a slow client holds up
// nobody else. Handlers and callbacks run on Lien's dispatch threads and do nothing but queue a job (session.c); all work, and all that blocks, is done by the session's thread.
//
//   a put's piece, blob/write                            a get's piece, blob/read               a sum's, blob/digest
//   1  memory from the pool                              memory from the pool                   as a put's 1
//   2  lien_request_read: client's buffer -> ours                                               as a put's 2
//   3  in the file's order: into the file, added to      from the file, added to the sum        added to the sum, digests written over the bytes, in place
//      the sum
//   4                                                    lien_request_write: ours -> client's   as a get's 4
//   5  lien_request_reply                                lien_request_reply                     lien_request_reply
//
// So one piece is worked on while the next ones are on their way, and nobody copies: the disk fills and empties the very buffers that Lien reads into and from.
//
// Locks: server.lock guards the list of sessions, and is taken before session.lock, which guards a session's queue and flags. The rest of a session, its jobs and its transfer belong to
// its thread.
// Bounds: jobs are bounded by Lien's call credits; memory by the pool, whose waits are first come, first served; sessions by --clients.

#ifndef BLOB_SERVER_H
#define BLOB_SERVER_H

#include <pthread.h>
#include <stdbool.h>

#include <lien/lien.h>

#include "args.h"
#include "file.h"
#include "store.h"

enum transfer_kind {
    TRANSFER_NONE,
    TRANSFER_PUT,
    TRANSFER_GET,
    TRANSFER_SUM
};

struct job;
typedef void job_step(struct job *job);

// What one of the methods does, and whose pieces it moves if it moves any.
struct method {
    const char *name;
    job_step *step;
    enum transfer_kind moves;
};

struct server;
struct entry { // what a handler gets
    struct server *server;
    const struct method *method;
};

#define BLOB_METHODS 12
struct server {
    lien_ctx *ctx;
    lien_pool *pool; // memory of all transfers
    struct store store;
    struct entry entries[BLOB_METHODS];
    lien_method methods[BLOB_METHODS];
    lien_service service;
    unsigned max;         // sessions at once
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t left;  // a session left
    struct session *sessions;
    unsigned count;
    uint64_t last_transfer; // id
    bool stopping;
};

// One call, from its arrival to its answer.
struct job {
    struct job *next; // in the queue
    struct session *session;
    lien_request *request;
    const struct method *method;
    job_step *step; // what the session's thread does with it next
    bool out;       // Lien has it: a callback will queue it again, with the result in `status`
    int status;
    struct blob_ask ask;
    uint32_t len;      // of the piece
    bool ready;        // the piece's bytes, or memory for them, are here
    bool body;         // `buf` is the body of the answer
    lien_buf *buf;     // the piece
    lien_space *space; // has it, while it is read
};

struct transfer {
    enum transfer_kind kind;
    uint64_t id;
    char name[BLOB_NAME_MAX + 1];
    uint64_t size, begin;          // of the file; where the first piece begins
    uint64_t started, worked;      // memory was asked for, step 3 was done, up to here
    struct job *jobs[BLOB_WINDOW]; // pieces under way, each at its place (transfer.c)
    struct put put;                // a put's
    int fd;                        // a get's, else -1
    XXH3_state_t *sum;             // of what is before `worked`
    struct blob_error error;       // the transfer is over, and why
    uint64_t copied;               // Lien's counter at the beginning
    double began;
};

enum session_flag {
    SESSION_LOST = 1,
    SESSION_STOPPED = 2,
    SESSION_CLOSED = 4
};

struct session {
    struct server *server;
    struct session *next;
    lien_conn *conn;
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t filled;
    struct job *head;
    struct job **tail;
    unsigned flags;
    // From here on the thread's own.
    unsigned seen; // flags
    unsigned out;  // jobs that Lien has
    bool over;     // takes no more work
    char who[96];
    struct transfer transfer;
};

// -- session.c: any thread -------------------------------------------------------------------------------------------------------------

// on_accept: takes over an open connection and starts its thread. NULL: refused; the connection is then still the caller's. Never blocks.
struct session *session_start(struct server *server, lien_conn *conn);
void session_conn_opts(lien_conn_opts *opts, struct server *server);
// Every lien_method's handler; `arg` is a struct entry.
void session_handle(lien_request *request, lien_conn *conn, void *arg);
// Tells every session to stop, new ones not to start, and waits until all have left. Running puts keep what they have, to be resumed. Blocks.
void session_stop_all(struct server *server);

// -- session.c: the session's thread ---------------------------------------------------------------------------------------------------

void session_say(const struct session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// Lien has taken the job: `step` comes when it is back.
void job_out(struct job *job, job_step *step);
// It has not, after all: starting failed with `status`.
void job_not_out(struct job *job, int status);
// The on_done and on_released of what a job does; `arg` is the job.
void job_done(void *arg, int status);
void job_back(void *arg, int status);
// Asks for memory: job->buf of `len` bytes. `step` runs at once or later, with the result in job->status.
void job_memory(struct job *job, size_t len, job_step *step);
// Answers the call and ends the job. With an error, that is the answer.
void job_answer(struct job *job, struct blob_answer *answer, const struct blob_error *error);

// -- transfer.c: the session's thread --------------------------------------------------------------------------------------------------

// Begins one, in the place of the last. False: that is still under way.
bool transfer_begin(struct session *session, enum transfer_kind kind, const char *name,
                    uint64_t size, struct blob_error *error);
// A piece arrived.
void transfer_piece(struct job *job);
// Whether the job asks about this session's transfer, and that is of `kind` (any other than NONE, if `kind` is NONE) and has no piece under way.
bool transfer_check(const struct job *job, enum transfer_kind kind, struct blob_error *error);
// It is over. Pieces under way are answered with the error, or with an error they have had. A put that failed on a full disk or a wrong sum leaves nothing.
void transfer_fail(struct session *session, const struct blob_error *error);
// Ends it: closes its files. What a put has so far stays, to be resumed.
void transfer_end(struct session *session);
uint64_t transfer_copied(const struct session *session);

// -- methods.c -------------------------------------------------------------------------------------------------------------------------

extern const struct method blob_methods[BLOB_METHODS];

// -- serve.c ---------------------------------------------------------------------------------------------------------------------------

// Runs the server until SIGINT or SIGTERM; returns the exit code.
int serve(const struct args *args);

#endif
