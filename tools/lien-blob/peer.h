// SPDX-License-Identifier: Apache-2.0
//
// A connection and its mailbox. Lien calls back on its own threads; each callback here only puts an event into the mailbox, and the one thread that owns the peer takes events
// out and does the work, which may block on a disk. So all the rest of this program is single-threaded code.
//
// Thread: everything is for the owning thread, except peer_post() and peer_stop(), and the callbacks inside peer.c. The mailbox has its own lock.
// Bounds: events are embedded in what they tell of, except messages; those are bounded by Lien's message credits, since a message gives its credit back only in peer_free_message().

#ifndef BLOB_PEER_H
#define BLOB_PEER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <lien/lien.h>

#include "error.h"
#include "proto.h"

struct peer;

enum event_kind {
    EVENT_OPEN,    // the connection is open (status 0), or never will be
    EVENT_MESSAGE, // `message` came
    EVENT_PIECE,   // something happened to a piece: call `handle`
    EVENT_LOST,    // the connection ended by itself: `status` says why
    EVENT_CLOSED,  // after peer_close(): no callback comes any more
    EVENT_STOP,    // peer_stop() was called
};

struct event {
    struct event *next;
    enum event_kind kind;
    bool queued; // under the mailbox's lock
    int status;
    lien_msg *message;
    void (*handle)(struct event *event); // EVENT_PIECE
};

struct peer {
    lien_ctx *ctx;
    lien_pool *pool; // where pieces live
    lien_conn *conn;
    pthread_mutex_t lock; // guards the queue: head, tail, and `queued` of each event
    pthread_cond_t filled;
    struct event *head;
    struct event **tail;
    struct event open, lost, closed, stop;
    unsigned owed; // callbacks still to come for pieces: each brings one EVENT_PIECE
    int over; // 0; then the status of EVENT_LOST, once it was taken out, or LIEN_ECLOSED from peer_close() on
};

// False: out of memory or threads.
bool peer_init(struct peer *peer, lien_ctx *ctx, lien_pool *pool);
// Only after peer_close(), or when there never was a connection.
void peer_destroy(struct peer *peer);

// Options of a connection whose callbacks go to the mailbox of the peer that is its `arg`.
void peer_conn_opts(lien_conn_opts *opts, lien_pool *pool);

// Connects and waits until it is open. False with *error set; peer_close() is then still due.
bool peer_connect(struct peer *peer, const char *address, struct blob_error *error);

// The next event that is not a piece's: those are handled on the way, each return of peer_wait() in between being NULL with *piece true. NULL with *piece false: `timeout_ms`
// passed. A message must go back through peer_free_message().
struct event *peer_wait(struct peer *peer, uint32_t timeout_ms, bool *piece);
// Frees an EVENT_MESSAGE and its message, which lets the other side send one more.
void peer_free_message(struct event **event);

// Sends one message, with a body of `n` buffers or none. Blocks until Lien has credit for it, and with a body until the other side has read it: then the buffers are ours again.
bool peer_send(struct peer *peer, const struct blob_message *message, lien_buf *const *body,
               size_t n, struct blob_error *error);

// Ends the connection and waits for everything that is still owed. After it no memory is lent over this connection and no callback knows this peer. Blocks, bounded by
// Lien's own teardown.
void peer_close(struct peer *peer);

// Any thread: puts an event in with its status. One that is in already stays as it is (a second EVENT_STOP or EVENT_LOST).
void peer_post(struct peer *peer, struct event *event, int status);
void peer_stop(struct peer *peer);

#endif
