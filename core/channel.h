// SPDX-License-Identifier: Apache-2.0
//
// Channels. channel.c: connections (which, when, after what wait); channel_call.c: the calls that wait and run.
//
// A *link* is one attempt and the connection it made: from its start until its conn is closed and its events are told. One link is current (on its way, or open); others are old: they
// said GOAWAY, or are being closed. Connections belong to the channel as to an application: each has a handle, which the channel closes.
//
// Under the state lock. What follows from an event is done later, by lieni_channel_work() in progress context: events come from deep inside connections. Only callers of
// the application start calls themselves. References: the handle, the life until CLOSED was told, links, calls.

#ifndef LIENI_CHANNEL_H
#define LIENI_CHANNEL_H

#include "core/conn.h"

// Links of one channel at once: old connections, and events that the application has not taken yet. Above it no attempt begins.
#define LIENI_CHANNEL_LINKS 64u

enum lieni_channel_state {
    LIENI_CHANNEL_WAITING, // no connection. Ends at `timer`, which is set, or when links are over
    LIENI_CHANNEL_CONNECTING, // `current` is on its way. Its own deadline ends it
    LIENI_CHANNEL_OPEN,       // `current` is open. Ends by its loss or GOAWAY
    LIENI_CHANNEL_CLOSING, // closed here. Ends when links and calls are over, which have deadlines
    LIENI_CHANNEL_CLOSED   // the last callback is due, or ran
};

struct lieni_channel_link {
    struct lien_channel *channel; // a reference
    struct lieni_node node;       // channel->links
    struct lien_conn *conn;       // until it is closed
    const char *address;          // the channel's
    bool old;                     // no new calls
    bool up;                      // it was open
    bool over;                    // it ended, or never came up
    bool shut;                    // closed here
    int status;                   // of its end
    struct lieni_task up_task, goaway_task, over_task;
    unsigned refs; // its connection, until closed; tasks
};

struct lien_channel {
    lien_ctx *ctx;
    struct lieni_node node; // ctx->channels, until CLOSED was told
    struct lieni_node work; // ctx->channel_work
    enum lieni_channel_state state;
    lien_channel_opts opts;
    lien_conn_opts conn_opts;
    char **addresses;
    uint32_t n_addresses;
    uint32_t next;     // address to try
    uint32_t tried;    // addresses in this round
    uint32_t failures; // waits since a connection stayed open
    uint64_t opened;   // ns, of current
    struct lieni_timer timer;
    struct lieni_channel_link *current;
    struct lieni_node links;
    uint32_t n_links, n_conns;
    struct lieni_node waiting; // calls
    uint32_t n_waiting, n_running;
    uint32_t n_calls; // not released
    uint64_t attempts, resent;
    uint64_t calls; // started
    struct lieni_strand *strand;
    struct lieni_task closed_task;
    bool no_closed, closed_done, lost;
    unsigned refs;
};

enum lieni_ccall_state {
    LIENI_CCALL_WAITING, // for a connection, or credit. Deadline its own
    LIENI_CCALL_RUNNING, // `inner` is with a peer. Deadline the inner call's
    LIENI_CCALL_DONE,    // done is told; inner calls may still hold memory. Ends by their release
    LIENI_CCALL_OVER     // released
};

struct lien_channel_call {
    struct lien_channel *channel; // a reference
    enum lieni_ccall_state state;
    struct lieni_node node; // channel->waiting
    uint64_t number;        // in the order of their starts
    char *method;
    uint8_t *args;
    size_t len;
    lien_call_opts opts; // read, body and their numbers: copies of ours
    lien_buf *bufs
        [2 *
         LIEN_BUFS_MAX]; // those of read, then of body, each borrowed by us as long as the call may be sent
    uint32_t n_read, n_body;
    struct lieni_sums *sums; // as lieni_call_begin() has them, or NULL
    bool space_held;         // opts.write is lent to us, no inner call has it
    uint64_t deadline;
    struct lieni_timer timer;
    struct lien_call *inner; // while RUNNING; a reference
    uint32_t unreleased;     // inner calls
    bool again;              // the inner call that ends now will be followed by another
    bool wants_reply;
    lien_path path; // of the connection it was sent on last; NONE before
    bool soft;
    int status, released_status;
    lien_msg *reply;
    struct lieni_task done_task, released_task;
    unsigned refs; // handle or waiter; life until released; tasks; inner calls
};

// -- channel.c --
void lieni_channel_kick(struct lien_channel *channel);
void lieni_channel_work(struct lien_channel *channel); // progress context
void lieni_channel_unref(struct lien_channel *channel);
void lieni_channel_close_locked(struct lien_channel *channel);
// Events of a link's connection.
void lieni_channel_up(struct lieni_channel_link *link);
void lieni_channel_down(struct lieni_channel_link *link, int status);
void lieni_channel_goaway(struct lieni_channel_link *link);
void lieni_channel_closed(struct lieni_channel_link *link);
// A call was released.
void lieni_channel_call_over(struct lien_channel *channel);
// Credit came, or something of it ended.
void lieni_channel_room(struct lieni_channel_link *link);

// -- channel_call.c --
// Sends what waits, as far as credit goes.
void lieni_channel_send(struct lien_channel *channel);
// All that wait end. The channel is closed.
void lieni_channel_drop(struct lien_channel *channel);
// Of an inner call: its end, before its memory is settled (`again` says then whether the write space goes back to the channel's call); then its memory's.
void lieni_ccall_ended(struct lien_channel_call *call, struct lien_call *inner);
void lieni_ccall_released(struct lien_channel_call *call, int status);
void lieni_ccall_unref(struct lien_channel_call *call);

#endif
