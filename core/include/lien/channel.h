// SPDX-License-Identifier: Apache-2.0
//
// Channels: one connection to one of several equivalent addresses, kept up by the library. Included by lien/lien.h, whose opening paragraph holds here too.
//
//  - A channel connects at once and again whenever it has no connection: the next address first, each address once, and after a round in which none answered it waits.
//    The wait is drawn at random between 1 ms and a bound that begins at backoff_min_ms and doubles up to backoff_max_ms (exponential, full jitter). A
//    connection that stayed open for longer than the bound has got by then starts it anew. After a loss one such wait comes first, so that the clients of one server
//    do not all come back at once.
//  - Calls go over the connection. Without one, or without credit, they wait in a bounded queue, within their deadline, first come first served.
//  - A call is sent again only if it is certain that no handler began: it never left this process (the connection ended first), or the peer took no calls any more and
//    says so. Everything else ends with the status of its connection. So the status tells whether it may have run:
//      LIEN_EAGAIN      it did not: its deadline passed, or the channel was closed, before a peer took it
//      LIEN_ETIMEDOUT, LIEN_ECANCELED, and codes of scope CONN: it may have, or may still
//      other codes      as of lien_call_start() and on_done of a call: the handler's answer, or why it could not be sent
//  - The peer's GOAWAY: the channel connects anew, another address first; new calls go there. Calls that run finish on the old connection, which is closed when idle.
// Since 0.1, all of it.

#ifndef LIEN_CHANNEL_H
#define LIEN_CHANNEL_H

#include <lien/lien.h>

#ifdef __cplusplus
extern "C" {
#endif

// Addresses of one channel.
#define LIEN_ADDRESSES_MAX 64

typedef struct lien_call_opts lien_call_opts; // lien/call.h
typedef struct lien_channel lien_channel;
typedef struct lien_channel_call lien_channel_call; // a call through a channel, or its handle

typedef enum lien_channel_event {
    LIEN_CHANNEL_CONNECTED = 1, // to `address`; status 0
    LIEN_CHANNEL_GOAWAY = 2,    // its peer takes no new calls; status LIEN_EOVERLOAD
    LIEN_CHANNEL_LOST = 3,      // an open connection ended: LIEN_ECLOSED, LIEN_EPEERLOST ...
    LIEN_CHANNEL_FAILED = 4     // an attempt failed: LIEN_EREFUSED, LIEN_ETIMEDOUT ...
} lien_channel_event;

typedef struct lien_channel_opts {
    size_t size;
    uint32_t backoff_min_ms; // default option backoff_min_ms
    uint32_t backoff_max_ms; // default option backoff_max_ms; below backoff_min_ms: LIEN_EINVAL
    uint32_t queue_max;      // calls that may wait; default option channel_queue
    // For each connection: flags, timeout_ms (of one attempt), pool, service, arg and on_message; the other callbacks must be NULL. Copied; NULL: the defaults. The
    // `conn` that handlers and on_message get is the channel's: never close it.
    const lien_conn_opts *conn;
    void *arg;
    // What becomes of the connections. Runs on the channel's strand, as all its callbacks do. `address` is good during the call.
    void (*on_event)(lien_channel *channel, lien_channel_event event, const char *address,
                     int status, void *arg);
    // The last callback, once, after lien_channel_close() and after the last release: 0, or LIEN_EQUARANTINED if a connection had to quarantine memory.
    void (*on_closed)(lien_channel *channel, int status, void *arg);
} lien_channel_opts;

static inline void lien_channel_opts_init(lien_channel_opts *opts)
{
    LIEN_OPTS_INIT_(opts);
}

// Opens a channel to `n` (1 .. LIEN_ADDRESSES_MAX) addresses as of lien_conn_open(), copied, and begins with the first. LIEN_EINVAL: also an address that is empty or above 255 bytes, or a
// callback in opts->conn that is not allowed. Addresses are looked at when their turn comes. Never blocks.
LIEN_API int lien_channel_open(lien_ctx *ctx, const char *const *addresses, size_t n,
                               const lien_channel_opts *opts, lien_channel **channel);

// Calls that wait end with LIEN_EAGAIN, those that run with LIEN_ECLOSED; connections are closed. Stores NULL; on_closed is the last that is heard. Never blocks.
LIEN_API int lien_channel_close(lien_channel **channel);
// Blocking twin: returns after on_closed's moment (on_closed does not run): 0, LIEN_EQUARANTINED, or LIEN_ETIMEDOUT (the close goes on; *channel is NULL all the same).
// LIEN_EDEADLK inside any callback of the ctx.
LIEN_API int lien_channel_close_wait(lien_channel **channel, uint32_t timeout_ms);

typedef struct lien_channel_info {
    size_t size;
    bool connected;         // new calls have a connection
    uint32_t calls_waiting; // for a connection, or for credit
    uint32_t calls_running;
    uint32_t conns_old; // that said GOAWAY and are not closed yet
    uint32_t
        failures; // waits since a connection stayed open: the bound is backoff_min_ms doubled as often
    uint64_t attempts; // connections begun
    uint64_t resent;   // calls that were sent again
    char address[256]; // of the connection, or of the attempt that runs; else empty
} lien_channel_info;

// Fills the first info->size bytes of *info.
LIEN_API int lien_channel_info_get(lien_channel *channel, lien_channel_info *info);

// Starts a call as lien_call_start() does, with the same options and callbacks; all that opts lends is lent from here on until on_released, as there. Callbacks run on the channel's strand. `call` may
// be NULL. LIEN_EAGAIN: queue_max calls wait. LIEN_EMSGSIZE: no connection could take that many bytes of arguments. LIEN_EBUSY, LIEN_EQUARANTINED: memory that is
// lent. LIEN_EUNVERIFIED, as there. LIEN_EINVAL. LIEN_ENOMEM. Never blocks.
LIEN_API int lien_channel_call_start(lien_channel *channel, const char *method, const void *args,
                                     size_t len, const lien_call_opts *opts,
                                     lien_channel_call **call);
// Ends it with LIEN_ECANCELED unless it ended. The read space's buffers are writable when this returns. No effect afterwards.
LIEN_API int lien_channel_call_cancel(lien_channel_call *call);
// How bytes of its spaces and bodies move, or moved, on the connection it was sent on last; LIEN_PATH_NONE before. `soft` as for lien_read_path().
LIEN_API lien_path lien_channel_call_path(const lien_channel_call *call, bool *soft);
// Cancels if it runs, gives up the handle, stores NULL; the callbacks still run.
LIEN_API int lien_channel_call_close(lien_channel_call **call);
// Blocking twin: returns what on_done would say, at the deadline at the latest; waits for room in the queue within it. *reply as there (`reply` may be NULL). The
// write space may still be lent: lien_space_wait().
LIEN_API int lien_channel_call_wait(lien_channel *channel, const char *method, const void *args,
                                    size_t len, const lien_call_opts *opts, lien_msg **reply);

#ifdef __cplusplus
}
#endif

#endif
