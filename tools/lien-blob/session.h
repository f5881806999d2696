// SPDX-License-Identifier: Apache-2.0
//
// One client at the server: a connection, a thread that owns it, and at most one transfer. The server's list of sessions, under the server's lock, is how sessions are counted, and
// told to stop; a session takes itself out of it as its last deed.

#ifndef BLOB_SESSION_H
#define BLOB_SESSION_H

#include <pthread.h>

#include <lien/lien.h>

#include "store.h"

struct session;

struct server {
    lien_ctx *ctx;
    lien_pool *pool; // memory of all transfers
    struct store store;
    unsigned max;         // sessions at once
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t left;  // a session left
    struct session *sessions;
    unsigned count;
    bool stopping;
};

// Takes over an accepted connection and starts its thread. Runs inside on_accept, so it does not block. NULL: refused (too many, stopping, or no memory); the
// connection is then still the caller's. The result is the `arg` of the connection's callbacks.
void *session_start(struct server *server, lien_conn *conn);

// Tells every session to stop, new ones not to start, and waits until all have left. Running puts keep what they have, to be resumed. Blocks.
void session_stop_all(struct server *server);

#endif
