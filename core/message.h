// SPDX-License-Identifier: Apache-2.0
//
// Messages: heads inside frames, bodies as held grants that the receiver READs into its pool. Received ones are delivered in the order they were sent, a
// body's READ notwithstanding. Nothing is queued for sending: without credit the answer is LIEN_EAGAIN. Under the state lock.

#ifndef LIENI_MESSAGE_H
#define LIENI_MESSAGE_H

#include "core/conn.h"
#include "core/grant.h"
#include "core/link.h"

struct lieni_send {
    struct lien_conn *conn;   // a reference
    struct lien_grant *grant; // of the body, or NULL
    bool on_wire;             // its frame's send is not over
    bool done, released;
    int status, released_status;
    void (*on_done)(void *arg, int status);
    void (*on_released)(void *arg, int status);
    void *arg;
    struct lieni_task done_task, released_task;
    struct lieni_node node; // conn->sends, until released
    unsigned refs;          // frame; body; tasks; waiter
};

struct lien_msg {
    struct lien_conn *conn; // a reference
    struct lieni_recv_slot *slot;
    const uint8_t *head;
    size_t head_len;
    bool ready;     // its body is here
    bool held_back; // its body is not fetched before lieni_messages_wanted()
    bool dropped;   // freed before its body's READ was over
    lien_buf *body;
    struct lieni_token_data *token; // of a body that is on its way
    lien_space *space;
    struct lieni_pool_wait wait;
    struct lieni_node node; // conn->inbox, until delivered
    struct lieni_task task;
    uint32_t call_slot; // of a reply: its call's slot + 1, which it keeps; 0: a message
};

// A MSG frame came in `slot`. 0, or why the connection must end.
int lieni_message_arrived(struct lien_conn *conn, struct lieni_recv_slot *slot,
                          const struct lieni_frame *frame);
// The bytes of a REPLY that came in `slot`, of the call in that slot. NULL: no memory.
struct lien_msg *lieni_message_reply(struct lien_conn *conn, struct lieni_recv_slot *slot,
                                     const struct lieni_frame *frame, uint32_t call_slot);
// As lien_msg_free(), with the lock held.
void lieni_message_free(struct lien_msg *msg);
// The send of its frame is over.
void lieni_send_over_wire(struct lieni_send *send, int status);
// The connection is lost: sends are done with `status`, messages whose bodies are not here are dropped.
void lieni_messages_lost(struct lien_conn *conn, int status);
// Frees what was received and not delivered.
void lieni_messages_drop(struct lien_conn *conn);
// The application took the connection, or asked for a message of it: bodies are fetched from now on.
void lieni_messages_wanted(struct lien_conn *conn);
// Delivers what is ready, in order.
void lieni_messages_deliver(struct lien_conn *conn);

#endif
