// SPDX-License-Identifier: Apache-2.0
//
// A listener: the bootstrap socket that accepts, and the connections that opened and wait for the application. Under the state lock; freed in progress context.

#ifndef LIENI_LISTENER_H
#define LIENI_LISTENER_H

#include "core/ctx.h"

#define LIENI_ACCEPT_QUEUE 64u

struct lien_listener {
    int object;             // LIENI_OBJECT_LISTENER, see conn.h
    struct lieni_node node; // ctx->listeners
    lien_ctx *ctx;
    lien_listener_opts opts;
    lien_conn_opts conn_opts; // of its connections
    struct lieni_acceptor *acceptor;
    char address[96];
    struct lieni_strand *strand;
    struct lieni_task closed_task, drained_task;
    struct lieni_node waiting; // conns, by listen_node
    unsigned n_waiting;
    struct lieni_node members; // conns that it accepted and that are not GONE, by member_node
    bool draining, drained;
    unsigned n_foreign; // given away, and not yet taken
    unsigned
        refs; // handle; each connection of it, twice until it is given to the application; tasks; waiters
    unsigned accepts; // callbacks on_accept that are due or run
    bool closed, closed_told;
};

// A stream was accepted on it.
void lieni_listener_accepted(struct lien_listener *listener, struct lieni_stream *stream);
// One of its connections opened: give it to the application.
void lieni_listener_opened(struct lien_listener *listener, struct lien_conn *conn);
// One of its connections ended, or has drained.
void lieni_listener_drain_step(struct lien_listener *listener);
void lieni_listener_unref(struct lien_listener *listener);
void lieni_listener_free(struct lien_listener *listener); // progress context
void lieni_listener_close_locked(struct lien_listener *listener);

#endif
