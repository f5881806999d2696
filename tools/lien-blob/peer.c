// SPDX-License-Identifier: Apache-2.0
//
// See peer.h. The mailbox is a singly linked list under one lock; callbacks of Lien append, the owner takes from the front.

#include "peer.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

// -- Mailbox -----------------------------------------------------------------------------------------------------------------------

void peer_post(struct peer *peer, struct event *event, int status)
{
    pthread_mutex_lock(&peer->lock);
    if (!event->queued) {
        event->queued = true;
        event->status = status;
        event->next = NULL;
        *peer->tail = event;
        peer->tail = &event->next;
        pthread_cond_signal(&peer->filled);
    }
    pthread_mutex_unlock(&peer->lock);
}

void peer_stop(struct peer *peer)
{
    peer_post(peer, &peer->stop, 0);
}

static void deadline_in(struct timespec *deadline, uint32_t ms)
{
    clock_gettime(CLOCK_MONOTONIC, deadline);
    deadline->tv_sec += ms / 1000;
    deadline->tv_nsec += (long)(ms % 1000) * 1000000;
    if (deadline->tv_nsec >= 1000000000) {
        deadline->tv_sec++;
        deadline->tv_nsec -= 1000000000;
    }
}

static struct event *take(struct peer *peer, uint32_t timeout_ms)
{
    struct timespec deadline;
    deadline_in(&deadline, timeout_ms);
    pthread_mutex_lock(&peer->lock);
    int rc = 0;
    while (!peer->head && rc != ETIMEDOUT) {
        if (timeout_ms == LIEN_FOREVER)
            rc = pthread_cond_wait(&peer->filled, &peer->lock);
        else
            rc = pthread_cond_timedwait(&peer->filled, &peer->lock, &deadline);
    }
    struct event *event = peer->head;
    if (event) {
        peer->head = event->next;
        if (!peer->head)
            peer->tail = &peer->head;
        event->queued = false;
    }
    pthread_mutex_unlock(&peer->lock);
    return event;
}

struct event *peer_wait(struct peer *peer, uint32_t timeout_ms, bool *piece)
{
    *piece = false;
    struct event *event = take(peer, timeout_ms);
    if (!event)
        return NULL;
    if (event->kind == EVENT_LOST)
        peer->over = event->status;
    if (event->kind != EVENT_PIECE)
        return event;
    assert(peer->owed > 0);
    peer->owed--;
    event->handle(event);
    *piece = true;
    return NULL;
}

void peer_free_message(struct event **event)
{
    lien_msg_free(&(*event)->message);
    free(*event);
    *event = NULL;
}

// -- Callbacks of Lien: on its threads, in order for one connection --------------------------------------------------------------------

static void on_open(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    struct peer *peer = arg;
    peer_post(peer, &peer->open, status);
}

static void on_message(lien_conn *conn, lien_msg *message, void *arg)
{
    (void)conn;
    struct peer *peer = arg;
    struct event *event = calloc(1, sizeof(*event));
    if (!event) {
        // Without the message the conversation makes no sense any more: the owner sees the connection as lost.
        lien_msg_free(&message);
        peer_post(peer, &peer->lost, LIEN_ENOMEM);
        return;
    }
    event->kind = EVENT_MESSAGE;
    event->message = message;
    peer_post(peer, event, 0);
}

static void on_lost(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    struct peer *peer = arg;
    peer_post(peer, &peer->lost, status);
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    struct peer *peer = arg;
    // LIEN_EQUARANTINED: some memory of this connection could not be proved free. Lien keeps it out of use by itself and has logged it; there is nothing to do here.
    peer_post(peer, &peer->closed, status);
}

// -- Life --------------------------------------------------------------------------------------------------------------------------

bool peer_init(struct peer *peer, lien_ctx *ctx, lien_pool *pool)
{
    *peer = (struct peer){.ctx = ctx, .pool = pool};
    peer->tail = &peer->head;
    peer->open.kind = EVENT_OPEN;
    peer->lost.kind = EVENT_LOST;
    peer->closed.kind = EVENT_CLOSED;
    peer->stop.kind = EVENT_STOP;
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0)
        return false;
    bool ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
              pthread_cond_init(&peer->filled, &attr) == 0;
    pthread_condattr_destroy(&attr);
    if (!ok)
        return false;
    if (pthread_mutex_init(&peer->lock, NULL) != 0) {
        pthread_cond_destroy(&peer->filled);
        return false;
    }
    return true;
}

void peer_destroy(struct peer *peer)
{
    assert(!peer->conn && !peer->owed);
    pthread_cond_destroy(&peer->filled);
    pthread_mutex_destroy(&peer->lock);
}

void peer_conn_opts(lien_conn_opts *opts, lien_pool *pool)
{
    lien_conn_opts_init(opts);
    opts->pool = pool;
    opts->on_open = on_open;
    opts->on_message = on_message;
    opts->on_lost = on_lost;
    opts->on_closed = on_closed;
}

bool peer_connect(struct peer *peer, const char *address, struct blob_error *error)
{
    lien_conn_opts opts;
    peer_conn_opts(&opts, peer->pool);
    opts.arg = peer;
    int rc = lien_conn_open(peer->ctx, address, &opts, &peer->conn);
    if (rc != 0)
        return error_set_lien(error, rc, "cannot connect to %s", address);
    bool piece;
    const struct event *event = peer_wait(peer, LIEN_FOREVER, &piece); // Lien has the timeout
    if (event->kind == EVENT_STOP)
        return error_set(error, BLOB_INTERRUPTED, "interrupted");
    if (event->status == 0)
        return true;
    error_set_lien(error, event->status, "cannot connect to %s", address);
    error->status = BLOB_GONE;
    return false;
}

void peer_close(struct peer *peer)
{
    if (!peer->conn)
        return;
    if (peer->over == 0)
        peer->over = LIEN_ECLOSED; // pieces that come home now start nothing new
    lien_conn_close(&peer->conn);
    for (bool closed = false; !closed || peer->owed > 0;) {
        bool piece;
        struct event *event = peer_wait(peer, LIEN_FOREVER, &piece);
        if (event && event->kind == EVENT_CLOSED)
            closed = true;
        if (event && event->kind == EVENT_MESSAGE)
            peer_free_message(&event);
    }
}

// -- Sending -----------------------------------------------------------------------------------------------------------------------

bool peer_send(struct peer *peer, const struct blob_message *message, lien_buf *const *body,
               size_t n, struct blob_error *error)
{
    uint8_t bytes[BLOB_MESSAGE_MAX];
    size_t len = proto_encode(message, bytes);
    int rc = lien_send_wait(peer->conn, bytes, len, body, n, NULL);
    if (rc != 0)
        return error_set_lien(error, rc, "sending %s", proto_kind_name(message->kind));
    return true;
}
