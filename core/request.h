// SPDX-License-Identifier: Apache-2.0
//
// Requests: calls of the peer's. The library answers each exactly once: with the handler's reply, or by itself at a cancel, at the deadline, or when there is no handler. The
// application's request object lives on after that until it is replied to or dropped. Each has a strand of its own for handler and callbacks. Under the state lock.

#ifndef LIENI_REQUEST_H
#define LIENI_REQUEST_H

#include "core/body.h"
#include "core/call.h"
#include "core/conn.h"

enum lieni_request_state {
    LIENI_REQUEST_QUEUED, // its handler has not begun. Ends by that, cancel, deadline
    LIENI_REQUEST_LIVE,   // the application's. Ends by reply, drop, cancel, deadline
    LIENI_REQUEST_REPLYING, // replied: awaits the answers to its writes (R2). Ends by them, cancel, deadline
    LIENI_REQUEST_CANCELLED, // nobody waits for it; the application may still hold it. Ends when it lets go
    LIENI_REQUEST_OVER // nothing of it is owed but, perhaps, the REPLY frame
};

struct lien_request {
    struct lien_conn *conn; // a reference
    enum lieni_request_state state;
    uint64_t id;
    struct lieni_recv_slot *slot; // holds the arguments, until the application lets go
    const uint8_t *args;
    size_t args_len;
    const lien_method *method;
    struct lieni_strand *strand;
    uint64_t deadline; // ns
    struct lieni_timer timer;
    bool has_timer;
    bool posted;            // its handler's task was
    bool begun;             // its handler did
    struct lieni_body body; // of the arguments
    uint64_t reply_max;
    struct lien_grant *reply_grant; // of the reply's body, until the REPLY is on its way
    struct lieni_token_data *reply_body;
    struct lieni_token_data *read; // the caller's read space, or NULL
    bool read_released;
    struct lieni_verify *verify; // once it read without waiting for the verdict, until it ends
    uint64_t space_len;
    uint32_t n_writes; // without an answer and not given up
    bool gave_up;
    bool sums;                // the call carries checksums: writes and the reply's body are to, too
    struct lieni_node writes; // not done
    void (*on_cancel)(void *arg);
    void *cancel_arg;
    struct lieni_task handle_task, cancel_task;
    int reply_status;
    uint8_t *reply;
    size_t reply_len;
    struct lieni_node node, reply_node;
    unsigned refs; // handler and application; REPLY owed; reads; writes; tasks; verdicts
};

// A write of a handler.
struct lieni_write {
    struct lien_request *request; // a reference
    uint32_t id;
    lien_op *ops;
    uint32_t n_ops, sent; // operations, of those queued
    uint32_t n_keys;
    struct lieni_token_data *source; // keys, until the first frame is queued
    struct lien_grant *grant;
    bool done, source_over;
    int status, released_status;
    void (*on_done)(void *arg, int status);
    void (*on_released)(void *arg, int status);
    void *arg;
    struct lieni_task done_task, released_task;
    struct lieni_timer timer;
    bool has_timer;
    struct lieni_node node, due, own; // calls.writes, calls.writes_due, request->writes
    unsigned refs;                    // grant; answer; tasks; waiter
};

// A CALL frame came in `slot`. 0, or why the connection must end.
int lieni_request_arrived(struct lien_conn *conn, struct lieni_recv_slot *slot,
                          const struct lieni_frame *frame);
// The application knows the connection: handlers may begin.
void lieni_requests_ready(struct lien_conn *conn);
int lieni_request_cancel_arrived(struct lien_conn *conn, uint64_t id);
// Nobody waits any more: reads and writes end, the handler hears of it. `answer`: the peer is told `status`.
void lieni_request_cancel(struct lien_request *request, int status, bool answer);
void lieni_request_unref(struct lien_request *request);
void lieni_request_reply_pump(struct lien_conn *conn);
void lieni_request_reply_lost(struct lien_request *request); // its REPLY will never leave

// Whether the handler may still move bytes: 0, LIEN_ECANCELED, LIEN_EINVAL (replied), why the connection ended.
int lieni_request_usable(const struct lien_request *request);

// request_io.c
int lieni_request_written(struct lien_conn *conn, const struct lieni_frame *frame);
void lieni_request_write_pump(struct lien_conn *conn);
void lieni_request_give_up(struct lien_request *request, int status); // all its writes
void lieni_request_writes_lost(struct lien_conn *conn); // no answer will come any more
// All writes are answered: a reply that waited can leave.
void lieni_request_writes_over(struct lien_request *request);

#endif
