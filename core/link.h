// SPDX-License-Identifier: Apache-2.0
//
// The frames of a connection: one slab of registered memory for its receives and sends, credits of two classes, and what is due to be sent.
//
// Credits (R22). The receiver posts message_credits + control_credits receives, and one for each call it may have open. A MSG or CALL costs a message credit, which
// comes back when the application frees the message; a REPLY costs the receive that its call reserved; every other frame costs a control credit, which comes back as soon as it is
// consumed, and it always is: without the application. Credits ride in the header of every frame; when half of a class is owed,
// a CREDIT frame carries them. The last control credit is spent on CREDIT frames only, and only if they give control credits back, so the return of credits never stalls.
// A peer that overspends breaks the protocol. Under the state lock.

#ifndef LIENI_LINK_H
#define LIENI_LINK_H

#include "core/ctx.h"
#include "core/evidence.h"
#include "core/wire.h"

struct lien_conn;

#define LIENI_SENDS_MAX 32u // frames of one connection on their way to the provider

struct lieni_recv_slot {
    struct lien_conn *conn;
    uint8_t *bytes;
    bool posted;
    struct lieni_recv_slot *next; // of those that wait to be posted again
};

struct lieni_send_slot {
    struct lien_conn *conn;
    uint8_t *bytes;
    size_t len;
    struct lieni_send *owner;     // a message's operation, or NULL
    struct lieni_send_slot *next; // free, or waiting to be posted
};

struct lieni_link {
    lien_buf *slab;     // receives, then sends
    unsigned slab_refs; // the connection, and each message that the application holds
    struct lieni_mr *mr;
    uint32_t frame_max;
    uint32_t n_recv, n_send;
    struct lieni_recv_slot *recvs;
    struct lieni_send_slot *sends;
    struct lieni_recv_slot *repost;
    struct lieni_send_slot *send_free;
    uint32_t n_send_free;
    struct lieni_send_slot *fifo, **fifo_end; // encoded, in order, to be posted
    // what we may send
    uint32_t message_left, control_left;
    uint32_t message_spent_max, control_spent_max; // all the peer gives
    uint32_t peer_frame_max;
    // what the peer may send, and what we owe it
    uint32_t message_all, control_all;
    uint32_t peer_message_left, peer_control_left;
    uint32_t message_owed, control_owed;
    uint32_t number_out, number_in;
    uint64_t queued, posted; // frames ever; they leave in the order they were queued
    bool beat_due, alive_due, bye_due, bye_sent;
};

// Slab, slots and registration; `recvs` gets n_recv receives to pass to connect or listen (freed by the caller with free()).
int lieni_link_open(struct lien_conn *conn, struct lieni_recv **recvs);
// Gives the slab up, which lives on for held messages; quarantined when `lost`.
void lieni_link_close(struct lien_conn *conn, bool lost);
// The send of this slot will have no evidence: its operation hears of it. The slot is never used again.
void lieni_link_send_lost(struct lien_conn *conn, struct lieni_send_slot *slot);
void lieni_link_slab_unref(const lien_ctx *ctx, struct lieni_link *link);

// Bytes of the largest head of a message.
uint32_t lieni_link_head_max(const struct lieni_link *link);
// Whether a message frame could be queued now: LIEN_EAGAIN if not.
int lieni_link_message_room(const struct lieni_link *link);
// Queues a MSG frame. `owner` hears of its end by lieni_send_over_wire().
int lieni_link_message(struct lien_conn *conn, const struct lieni_frame *frame,
                       struct lieni_send *owner);
// Queues a control frame. False: no room now.
bool lieni_link_control(struct lien_conn *conn, const struct lieni_frame *frame);
bool lieni_link_control_room(const struct lien_conn *conn);
// Queues a REPLY, whose receive the peer's call reserved. False: no room now.
bool lieni_link_reply(struct lien_conn *conn, const struct lieni_frame *frame);
// Bytes of the largest frame that the peer takes.
size_t lieni_link_frame_room(const struct lieni_link *link);
// Sends what is due and possible, and posts what waits. Call after anything that makes something due.
void lieni_link_pump(struct lien_conn *conn);
// Nothing waits to be sent.
bool lieni_link_quiet(const struct lien_conn *conn);
// The end of a send or receive. Frames are handled here.
void lieni_link_on_evidence(struct lien_conn *conn, struct lieni_evidence *ev);
// A message's receive goes back to work and its credit to the peer.
void lieni_link_message_freed(struct lien_conn *conn, struct lieni_recv_slot *slot);
// The receive of a REPLY goes back to work.
void lieni_link_reply_freed(struct lien_conn *conn, struct lieni_recv_slot *slot);

#endif
