// SPDX-License-Identifier: Apache-2.0
//
// Lien, call level: remote calls with read spaces and write spaces, in both directions over one connection. Included by lien/lien.h, whose rules hold here too.
//
//  - A *call* may carry a *read space*: buffers of the caller that the handler reads; and a *write space*: a lien_space of the caller that the handler
//    writes into. Each is seen as one run of bytes.
//  - Every call has a deadline, which travels with it. At the deadline, at a cancel and when the handle is closed the call ends at once. The read space's
//    buffers are writable again by then; the write space comes back on evidence: at once if nothing runs into it, else when that transfer's end is proved.
//  - The handler reads into buffers of its own, and the bytes are good only if on_done says 0: by then the caller has confirmed that the call still lived
//    when all of them had been read. LIEN_ESTALE: do not believe them.
//  - That costs a round trip. A handler may work on the bytes meanwhile (LIEN_UNVERIFIED), and one that does nothing but read, compute, write into its call and reply need not ask at all (LIEN_PURE):
//    the caller takes the writes and the reply of a live call only. Until somebody vouched for them such bytes may be stale, torn or hostile; and what would carry them to anybody
//    else (a call, a message, a grant, a write or a reply of another request) answers LIEN_EUNVERIFIED; blocking twins wait for the verdict first.
// Since 0.1, all of it.

#ifndef LIEN_CALL_H
#define LIEN_CALL_H

#include <lien/lien.h>

#ifdef __cplusplus
extern "C" {
#endif

// Bytes of the longest name of a method.
#define LIEN_METHOD_MAX 255

// Flag of a method: its handler has no effect but writes into its call and its reply, so these are the check of what it read. Its reads are done when the bytes are there, unverified, and
// nobody is asked unless lien_request_verify() does.
#define LIEN_PURE (1u << 3)
// Flag of a read: done when the bytes are there, unverified; the caller is being asked by then, and lien_request_verify() tells the verdict.
#define LIEN_UNVERIFIED (1u << 4)

typedef struct lien_call lien_call;       // a call of ours, running or ended
typedef struct lien_request lien_request; // a call of the peer's, until it is answered or dropped

// -- Serving -----------------------------------------------------------------------------------------------------------------------

// One method. `handle` gets the request, which is the application's from then on: it ends by lien_request_reply() or lien_request_drop(), at any time, from any thread, also
// after its call was cancelled. It runs on a dispatch thread, in parallel with other requests' (as far as option dispatch_threads goes); with LIEN_INLINE in
// `flags` on the progress thread, and promises not to block. `conn` is the connection, to call back on: good as long as its handle.
typedef struct lien_method {
    const char *name; // "service/method" by custom; 1 .. LIEN_METHOD_MAX bytes
    void (*handle)(lien_request *request, lien_conn *conn, void *arg);
    void *arg;
    unsigned flags; // LIEN_INLINE, LIEN_PURE
} lien_method;

// What a connection serves (field `service` of lien_conn_opts). It and all it points to must live unchanged until the connection's on_closed, or until the ctx is closed.
// A call of a method that is not in it ends with LIEN_ENOTFOUND.
struct lien_service {
    const lien_method *methods;
    size_t n_methods;
};

// The arguments; good until the request ends.
LIEN_API int lien_request_args(const lien_request *request, const void **data, size_t *len);
// The body of the arguments, which stays the request's, to be freed with it; NULL when there is none. The second moves it out: LIEN_ENOTFOUND: none.
LIEN_API lien_buf *lien_request_body(lien_request *request);
LIEN_API int lien_request_take_body(lien_request *request, lien_buf **buf);
// The method's name as in the service's table.
LIEN_API const char *lien_request_method(const lien_request *request);
// Bytes of the caller's read space and write space; 0: none.
LIEN_API uint64_t lien_request_read_len(const lien_request *request);
LIEN_API uint64_t lien_request_write_len(const lien_request *request);
// How bytes of its spaces and bodies move, or moved; `soft` as for lien_read_path().
LIEN_API lien_path lien_request_path(const lien_request *request, bool *soft);
// Milliseconds until the deadline; 0 once it passed.
LIEN_API uint32_t lien_request_left_ms(lien_request *request);
// Whether nobody waits for the reply any more: cancelled, past its deadline, or the connection is lost. The reply will be discarded.
LIEN_API bool lien_request_cancelled(lien_request *request);
// Asks to be told of that, once, by `fn` on the request's strand, not after the request ended. LIEN_ECANCELED: it is so already, `fn` will not run. A second call
// replaces the first. NULL: no more.
LIEN_API int lien_request_on_cancel(lien_request *request, void (*fn)(void *arg), void *arg);

typedef struct lien_transfer_opts {
    size_t size;
    const lien_op *ops; // 0 .. LIEN_OPS_MAX, copied; NULL: the whole source to offset 0
    size_t n_ops;
    uint32_t timeout_ms; // until on_done(LIEN_ETIMEDOUT); default: the request's deadline
    unsigned flags;      // of a read: LIEN_UNVERIFIED; of a write: LIEN_CHECKSUM
    void (*on_done)(void *arg, int status);
    void (*on_released)(void *arg, int status);
    void *arg;
} lien_transfer_opts;

static inline void lien_transfer_opts_init(lien_transfer_opts *opts)
{
    LIEN_OPTS_INIT_(opts);
}

// Reads from the caller's read space into `space`, which is lent until on_released. on_done(0): all bytes are here, and the call still lived when they were. LIEN_ESTALE: they may be
// anything. LIEN_ECANCELED: the call ended, or the request did; when it was the connection that ended, its status or this. LIEN_ETIMEDOUT. LIEN_ECHECKSUM, LIEN_EREGISTER, LIEN_EIO as of lien_read_start(). Errors of the start: LIEN_ERANGE (an op outside a space, or there is no read space), LIEN_EOVERLAP, LIEN_EBUSY (`space` is
// lent), LIEN_ECANCELED, LIEN_ELIMIT. Callbacks run on the request's strand. Never blocks.
// With LIEN_UNVERIFIED, and in a method that is LIEN_PURE, on_done(0) says that the bytes are here, and nothing more; the buffers that got some are marked (lien_buf_unverified()). LIEN_EUNVERIFIED: a
// buffer has such bytes of another request, and the read would replace only a part of them.
LIEN_API int lien_request_read(lien_request *request, lien_space *space,
                               const lien_transfer_opts *opts);
// Blocking twin: returns when the space is settled. LIEN_EQUARANTINED: it is not yours.
LIEN_API int lien_request_read_wait(lien_request *request, lien_space *space,
                                    const lien_transfer_opts *opts);

// Asks for the verdict on all that reads of this request brought so far. `fn` runs once, on the request's strand: 0: the call lived when they had all been read, so the bytes are the caller's, and no
// longer marked. LIEN_ESTALE: they may be anything (the call had ended, or no answer came in time: the request's deadline, at most 5 s). LIEN_ECANCELED: the call ended, or the request did. At once when
// nothing waits for a verdict. A read that is not done yet is not asked for. `fn` NULL: only asks. Errors of the start: LIEN_ECANCELED, LIEN_ENOMEM. Never blocks.
LIEN_API int lien_request_verify(lien_request *request, void (*fn)(void *arg, int status),
                                 void *arg);
// Blocking twin.
LIEN_API int lien_request_verify_wait(lien_request *request);

// Writes `n` buffers (1 .. LIEN_BUFS_MAX) into the caller's write space: the caller READs them. They stay readable and are not writable until on_released, which is the caller's release. on_done(0): the
// bytes are in the caller's space. LIEN_EBUSY: another write of this call was running. LIEN_ECHECKSUM, LIEN_EIO: the caller could not take them. LIEN_ETIMEDOUT and LIEN_ECANCELED give the write up: bytes may still arrive, so the request can then only
// fail. Errors of the start: LIEN_ERANGE, LIEN_EOVERLAP, LIEN_EBUSY (a buffer is under a read), LIEN_ECANCELED, LIEN_ESTATE (a write was given up), LIEN_ELIMIT,
// LIEN_EUNVERIFIED (of another request: those of this one are checked by the caller's taking the write). Never blocks.
LIEN_API int lien_request_write(lien_request *request, lien_buf *const *bufs, size_t n,
                                const lien_transfer_opts *opts);
// Blocking twin: returns when done; the buffers are released soon after (lien_buf_mut() tells).
LIEN_API int lien_request_write_wait(lien_request *request, lien_buf *const *bufs, size_t n,
                                     const lien_transfer_opts *opts);

// Answers: `status` (0 or a LIEN_E... code, but not LIEN_EAGAIN, which tells callers that nothing ran: LIEN_EINVAL) and `len` bytes, copied. Ends the request and stores NULL. Reads of it that still run are cancelled; the answer leaves when the caller has answered every
// write of the request. When one of them times out while the answer waits for it, an answer with `status` 0 becomes LIEN_ETIMEDOUT, without bytes or body: so the caller's call ends. After a cancel the
// answer is discarded, which is no error. LIEN_ESTATE: a write was given up, so `status` 0 would be a lie. LIEN_EMSGSIZE: above info.eager_max of lien_conn_info(). On error the request stays.
LIEN_API int lien_request_reply(lien_request **request, int status, const void *data, size_t len);
// The same with a body of `n` buffers (1 .. LIEN_BUFS_MAX), which the caller READs into the memory it reserved. Moves the buffers and stores NULL in each slot: they are freed when the caller has
// released them. LIEN_EMSGSIZE: more than the call's reply_max too. LIEN_ELIMIT: options held_conn_bytes, held_total_bytes. LIEN_EUNVERIFIED: as for a write. LIEN_EINVAL: one is there twice, or belongs to a space, a message or a request (take it out first). On error nothing is moved.
LIEN_API int lien_request_reply_body(lien_request **request, int status, const void *data,
                                     size_t len, lien_buf **bufs, size_t n);
// Gives it up; the caller gets LIEN_ECANCELED. Stores NULL.
LIEN_API void lien_request_drop(lien_request **request);

// Takes no new calls: the peer is told and starts none, those on their way get LIEN_EOVERLOAD. Requests that run go on. Again: no effect.
LIEN_API int lien_conn_goaway(lien_conn *conn);

// -- Calling -----------------------------------------------------------------------------------------------------------------------

typedef struct lien_call_opts {
    size_t size;
    uint32_t timeout_ms; // default option call_ms; LIEN_FOREVER is refused
    lien_buf *const *
        read; // read space, 0 .. LIEN_BUFS_MAX buffers: readable and not writable until the call ends
    size_t n_read;
    lien_space *write; // write space, or NULL; lent until on_released
    lien_buf *const *
        body; // arguments beyond what fits a frame, 0 .. LIEN_BUFS_MAX buffers: readable and not writable until on_released, which waits for the peer's release
    size_t n_body;
    size_t
        reply_max; // bytes of the largest body of a reply. Memory for it is reserved at the start, from the connection's pool; 0: replies have no body
    // The call ended. `reply`: the handler's bytes, and a body if there is one, to be freed with lien_msg_free(); NULL if there are neither. The status is the handler's (LIEN_ECANCELED: it dropped the
    // request), or LIEN_ETIMEDOUT, LIEN_ECANCELED, LIEN_ENOTFOUND: no such method, LIEN_EOVERLOAD, LIEN_EMSGSIZE: the reply's body is above reply_max, LIEN_ECHECKSUM.
    void (*on_done)(void *arg, int status, lien_msg *reply);
    void (*on_released)(void *arg,
                        int status); // both spaces and the body are yours: 0, or LIEN_EQUARANTINED
    void *arg;
    unsigned
        flags; // LIEN_CHECKSUM: of read space and body, and the handler's writes and the reply's body carry one too
} lien_call_opts;

static inline void lien_call_opts_init(lien_call_opts *opts)
{
    LIEN_OPTS_INIT_(opts);
}

// Starts a call with `len` bytes of arguments, copied (with spaces of few buffers up to info.eager_max of lien_conn_info() fit). Lends both spaces. `call` may be NULL. LIEN_EAGAIN: no credit, or all
// call credits are taken; retry after on_writable. LIEN_EMSGSIZE. LIEN_EBUSY: a buffer or the write space is lent. LIEN_EOVERLOAD: the peer takes no new calls. LIEN_ENOTSUP: the peer takes no
// calls at all. LIEN_ELIMIT: option grants_conn. Otherwise as lien_grant_open(). LIEN_EUNVERIFIED: a buffer of the read space or the body holds bytes that a request read and nobody vouched for. Never blocks.
LIEN_API int lien_call_start(lien_conn *conn, const char *method, const void *args, size_t len,
                             const lien_call_opts *opts, lien_call **call);
// Ends it with LIEN_ECANCELED unless it ended. The read space's buffers are writable when this returns. No effect afterwards.
LIEN_API int lien_call_cancel(lien_call *call);
// How bytes of its spaces and bodies move, or moved; `soft` as for lien_read_path().
LIEN_API lien_path lien_call_path(const lien_call *call, bool *soft);
// Cancels if it runs, gives up the handle, stores NULL; the callbacks still run.
LIEN_API int lien_call_close(lien_call **call);
// Blocking twin: returns what on_done would say, at the deadline at the latest; waits for credit within it. *reply as there (`reply` may be NULL). The write space may still be lent: lien_space_wait().
LIEN_API int lien_call_wait(lien_conn *conn, const char *method, const void *args, size_t len,
                            const lien_call_opts *opts, lien_msg **reply);

#ifdef __cplusplus
}
#endif

#endif
