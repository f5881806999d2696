// SPDX-License-Identifier: Apache-2.0
//
// Lien: zero-copy transport in which memory is released on evidence, never on time.
//
// Reading this header:
//  - For C11 and later, and for C++.
//  - Every function returns 0 or a negative LIEN_E... code (lien/errors.h) unless it says otherwise. Outputs are written only on success.
//  - "Blocks": only functions whose name ends in _wait block. Every such twin answers LIEN_EDEADLK where it could never return: inside a
//    LIEN_INLINE callback, and inside a callback run by lien_ctx_progress(); a twin that need not wait may answer there all the same.
//    lien_conn_close_wait() and lien_ctx_close() wait for callbacks and answer LIEN_EDEADLK inside any callback of the ctx.
//  - Threads: every function may be called from any thread, also from callbacks, unless it says otherwise. Callbacks run on dispatch threads
//    (or inside lien_ctx_progress() of an app-driven ctx), one at a time and in order for each connection; never under a lock of ours.
//  - Operations with memory have two events. *done*: the result is known. *released*: the memory is yours again. on_done runs exactly once, then
//    on_released exactly once, also when nothing was lent; after it the library never touches `arg`. If the starting call returns nonzero
//    neither runs and nothing was lent. A released status of LIEN_EQUARANTINED means: this memory is *not* yours (see lien_space_wait).
//  - Options structs begin with their size: fill them with the matching ..._opts_init(), then set fields. NULL options mean the defaults. A size that no
//    version has is LIEN_EINVAL; a field set that this library does not know yet is LIEN_ENOTSUP; an unknown flag is LIEN_EINVAL.
//  - A NULL pointer where an object, an output or bytes are needed is LIEN_EINVAL, and so is an object of another ctx. What is refused changes nothing.
//  - An operation of a connection (an open, a call, a message, a grant, a read, a write, a request) answers the codes that are named at it, at its start and in on_done, and besides: LIEN_ENOMEM; and once
//    the connection has ended, that status (see on_lost). Reads and writes of requests may say LIEN_ECANCELED for the latter.
//  - In a forked child every object belongs to the parent: a function that takes one answers LIEN_EFORK, one that returns no code answers as for NULL, and nothing is freed. A new ctx may be
//    opened there. A callback in which the process forked must not return in the child: exec or _exit.
//  - Times are milliseconds. As an argument of a _wait function 0 asks without waiting; in an
//    options struct it means the default named at the field. LIEN_FOREVER waits without limit.
// Since 0.1, all of it.

#ifndef LIEN_LIEN_H
#define LIEN_LIEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <lien/errors.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LIEN_API __attribute__((visibility("default")))
#else
#define LIEN_API
#endif

// Buffers in one space or one grant. Source: design.md 2.
#define LIEN_BUFS_MAX 64
// Copy operations in one read. Source: design.md 2.
#define LIEN_OPS_MAX 1024
// Bytes of the largest token: a header and one key for each of LIEN_BUFS_MAX buffers (docs/wire.md, "Token").
#define LIEN_TOKEN_MAX 2112
// Flag of a grant, a message, a call, a write: what is granted carries a checksum (XXH3, 64 bits) over the full length of each buffer. Whoever reads it compares it with what arrived before
// anybody is told of success; else LIEN_ECHECKSUM, and the bytes are anything. It finds what a network or a provider lost or garbled, such as a READ that succeeded and wrote nothing; it is
// no signature: whoever grants can make one for any bytes. A buffer with a checksum is moved whole: operations that begin or end inside one are LIEN_EPARTIAL. The starting function hashes the
// bytes before it returns, without a lock; the reading side does it on a thread of the library's own. Option `checksum` turns it on for everything, and demands it of peers.
#define LIEN_CHECKSUM (1u << 5)
// A timeout without end.
#define LIEN_FOREVER UINT32_MAX
// What each ..._opts_init() below does: all fields 0, which means their defaults (a pool's options name three others), and `size` as the header that the program was built with has it. Inline for
// that: a library whose structs have grown must neither write beyond an older program's struct nor promise fields that the program does not know. NULL does
// nothing.
#define LIEN_OPTS_INIT_(opts)                                                                      \
    do {                                                                                           \
        if (opts) {                                                                                \
            memset((opts), 0, sizeof *(opts));                                                     \
            (opts)->size = sizeof *(opts);                                                         \
        }                                                                                          \
    } while (0)

typedef struct lien_ctx lien_ctx;     // root: providers, threads, budgets, log
typedef struct lien_pool lien_pool;   // memory the library owns
typedef struct lien_mem lien_mem;     // memory the application owns, registered
typedef struct lien_buf lien_buf;     // one buffer, from a pool or a lien_mem
typedef struct lien_alloc lien_alloc; // a wait for pool memory
typedef struct lien_space
    lien_space; // an ordered list of buffers that can be lent as the target of a read
typedef struct lien_listener lien_listener; // accepts connections
typedef struct lien_conn lien_conn;         // a connection to one peer
typedef struct lien_msg lien_msg;           // one received message
typedef struct lien_grant lien_grant;       // a peer's right to read buffers of ours
typedef struct lien_read lien_read;         // one read of a peer's grant, running or finished
typedef struct lien_service lien_service;   // methods that peers may call (lien/call.h)

// -- Library -----------------------------------------------------------------------------------------------------------------------

// The version of the library at run time, "MAJOR.MINOR.PATCH". Static storage.
LIEN_API const char *lien_version(void);

// Severity of a log line.
typedef enum lien_level {
    LIEN_LOG_ERROR = 1,
    LIEN_LOG_WARN = 2,
    LIEN_LOG_INFO = 3,
    LIEN_LOG_DEBUG = 4
} lien_level;

// One log line. `conn` is the connection's id, the same in both peers' logs, or 0; `op` the id of the grant or read, or 0; `code` the
// LIEN_ code or 0. Strings live only during the call.
typedef struct lien_log_line {
    lien_level level;
    uint64_t conn;
    uint64_t op;
    int code;
    const char *provider; // or NULL
    const char *peer;     // or NULL
    const char *text;
} lien_log_line;

// Receives log lines, on any thread, never under a lock of ours, one at a time for a ctx. Must not call into the library.
typedef void lien_log_fn(const lien_log_line *line, void *arg);

// -- Context -----------------------------------------------------------------------------------------------------------------------

// The application drives progress: no thread is started, callbacks run inside lien_ctx_progress(). Between two calls no more than half of
// option `dead_ms` may pass, or peers take this process for dead.
#define LIEN_APP_DRIVEN (1u << 0)
// Leave the soft limit of descriptors alone (it is raised to the hard one otherwise: a connection takes several).
#define LIEN_KEEP_NOFILE (1u << 1)

// A pre-shared key: 16 to 64 random bytes.
typedef struct lien_psk {
    const void *bytes;
    size_t len;
} lien_psk;

typedef struct lien_ctx_opts {
    size_t size;
    unsigned flags; // LIEN_APP_DRIVEN, LIEN_KEEP_NOFILE
    const char *const *
        settings; // "key=value" strings ended by NULL, or NULL; keys: docs/man/lien_options.5. A setting
    // given here wins over the environment (LIEN_KEY), which wins over the file of option `config` (LIEN_CONFIG), which wins over the default
    lien_log_fn *log; // NULL: lines at or above option log_level go to stderr
    void *log_arg;
    // Pre-shared keys, at most 16; none, and no option psk_file: peers are not authenticated. Connections that this ctx opens prove the first, those that it accepts may have proved any; a peer
    // without one of them, and a peer without keys, is refused with LIEN_EAUTH. Used up before lien_ctx_open() returns: wipe them then. They win over option psk_file. Since 0.1.
    const lien_psk *psks;
    size_t n_psks;
} lien_ctx_opts;

static inline void lien_ctx_opts_init(lien_ctx_opts *opts)
{
    LIEN_OPTS_INIT_(opts);
}

// Opens a ctx. LIEN_EOPTION: an unknown key or LIEN_ variable, a value out of range, or option `provider` against FI_PROVIDER; the log names the nearest
// known key, or the limit. A pre-shared key too short or too long, or a psk_file that cannot be read, that others can read or that has no key, likewise.
// LIEN_ENOPROVIDER: the provider asked for by option `provider` or FI_PROVIDER cannot be used; the log lists each candidate and why.
LIEN_API int lien_ctx_open(const lien_ctx_opts *opts, lien_ctx **ctx);

// Closes listeners, connections and pools that are still open, waits for their end (bounded by option drain_ms each), and frees the ctx. Stores NULL.
// Memory in quarantine whose provider gives no proof stays mapped until the process ends; the log counts it, and what was never closed, by kind. Handles of the
// ctx are invalid afterwards (close grants and reads before), except lien_buf and lien_msg held by the application, which stay readable until freed.
// Blocks. LIEN_EDEADLK: called from a callback of this ctx.
LIEN_API int lien_ctx_close(lien_ctx **ctx);

// A descriptor that polls readable when lien_ctx_progress() has something to do; timers are in it. Owned by the ctx.
// LIEN_ESTATE: the ctx is not app-driven.
LIEN_API int lien_ctx_fd(lien_ctx *ctx, int *fd);

// Call right before sleeping on the fd. 0: sleep; LIEN_EAGAIN: call lien_ctx_progress() first. LIEN_ESTATE as above.
LIEN_API int lien_ctx_arm(lien_ctx *ctx);

// Makes progress and runs callbacks that are due. Never blocks. Only for app-driven contexts, else LIEN_ESTATE; two threads in it at once take
// turns. LIEN_EDEADLK: called from inside a callback.
LIEN_API int lien_ctx_progress(lien_ctx *ctx);

// Counters of a ctx since it was opened (plain numbers) and levels (now).
typedef struct lien_ctx_stats {
    size_t size;
    uint64_t conns_open; // level
    uint64_t conns_total;
    uint64_t conns_lost;
    uint64_t reads_started; // lien_read operations
    uint64_t reads_done;
    uint64_t reads_failed;
    uint64_t read_pieces_posted; // READs given to the provider
    uint64_t read_pieces_done;
    uint64_t read_bytes;
    uint64_t messages_sent;
    uint64_t messages_received;
    uint64_t payload_bytes_copied; // by Lien's core, without what inline providers move
    uint64_t grants_live;          // level
    uint64_t grants_bytes;         // level, bytes of live grants
    uint64_t quarantined_bytes;    // level
    uint64_t quarantined_total;
    uint64_t evidence_unknown; // completion entries that matched nothing, were late, or came twice
    uint64_t protocol_errors;
    uint64_t pool_bytes; // level, bytes in buffers handed out
    uint64_t log_dropped;
    uint64_t guard_skipped;    // lends in guarded pools that went on unprotected (lien_guard.7)
    uint64_t channel_attempts; // connections that channels began
    uint64_t calls_resent;     // by channels, having never begun
    uint64_t checksums_wrong;  // reads whose bytes were not those granted
    uint64_t exposed_bytes;    // level, pool memory whose keys peers still know (LIEN_REUSE_PROVEN)
} lien_ctx_stats;

// Fills the first stats->size bytes of *stats. Never blocks.
LIEN_API int lien_ctx_stats_get(lien_ctx *ctx, lien_ctx_stats *stats);

// The same as OpenMetrics text, ended by NUL; freed by the caller with free().
LIEN_API int lien_ctx_metrics(lien_ctx *ctx, char **text);

// -- Memory ------------------------------------------------------------------------------------------------------------------------

#define LIEN_HUGE_PAGES                                                                            \
    (1u << 0) // chunks on huge pages; LIEN_ENOMEM from lien_pool_open when the system has none
// Lent memory is protected: a stray access faults where it is made, and the fault is reported (lien_guard.7). Option `guard` turns it on for all pools of a
// ctx but those with LIEN_UNGUARDED. For tests and hunts: it costs system calls at each lend.
#define LIEN_GUARD     (1u << 1)
#define LIEN_UNGUARDED (1u << 2) // not for this pool, whatever option `guard` says
// No old bytes are seen: a buffer is zeroed when the pool hands it out, and what a READ is to write is zeroed before the READ is posted. So a READ that succeeds and writes nothing shows zeros, and never
// what another peer or holder left there. Costs the zeroing.
#define LIEN_ZERO (1u << 3)

// When memory that peers could read is used again. What a peer was granted it can still name by its key, and on tcp a READ that was accepted goes on: only the end of its endpoint ends that
// for certain.
typedef enum lien_reuse {
    LIEN_REUSE_RELEASE =
        0, // once it was released and freed: for peers that are trusted to release what they have done with
    // Freed memory goes home only when the endpoint of each connection that saw its key has ended with proof. Each granted buffer has a region of its own, of its length then, so that a key reaches no other memory, and ends with the
    // grant; a READ that comes later costs the connection (on tcp). A buffer that was released is its holder's again all the same: free it rather than write what this peer must not see.
    // What waits so is bounded by `expose_max` and counts as handed out.
    LIEN_REUSE_PROVEN = 1,
    LIEN_REUSE_PEER =
        2 // pools of their own: the first connection that is granted a buffer of this pool is the only one ever: a channel's next connection is another (LIEN_ESTATE)
} lien_reuse;

typedef struct lien_pool_opts {
    size_t size;
    unsigned flags;
    size_t
        limit; // bytes of all buffers together, each counted in whole pages of 4096; default 4 GiB, touched only as used. Holes between
               // buffers can make the pool map more address space, at most twice the limit
    size_t
        reserve; // bytes of `limit` kept for receiving (bodies of messages), so that senders cannot starve receivers; default SIZE_MAX: limit / 8
    size_t populate; // bytes mapped and touched at once; default 0
    int numa_node;   // node to allocate on, or -1 for any; default -1
    lien_reuse reuse;
    size_t
        expose_max; // LIEN_REUSE_PROVEN: bytes whose keys peers may know at once; a grant of more is LIEN_ELIMIT. Default 0: limit / 2. Rounded up to whole pages of 4096, as buffers are counted
} lien_pool_opts;

static inline void lien_pool_opts_init(lien_pool_opts *opts)
{
    LIEN_OPTS_INIT_(opts);
    if (opts) {
        opts->limit = (size_t)4 << 30;
        opts->reserve = SIZE_MAX;
        opts->numa_node = -1;
    }
}

// Opens a pool. LIEN_EINVAL: reserve or populate above limit, an unknown flag, LIEN_GUARD and LIEN_UNGUARDED, a NUMA node that cannot be used (the log names
// it). LIEN_ENOMEM.
LIEN_API int lien_pool_open(lien_ctx *ctx, const lien_pool_opts *opts, lien_pool **pool);

// Closes the pool and stores NULL. Its memory goes back to the system when the last buffer is home; buffers stay valid until then. Never blocks.
LIEN_API int lien_pool_close(lien_pool **pool);

// A buffer of `len` bytes (1 .. limit - reserve), aligned to 4096. Its contents are unspecified, or 0 with LIEN_ZERO. LIEN_ELIMIT: the pool's limit leaves no room
// now, or others wait for it. LIEN_EMSGSIZE: `len` is above limit - reserve. LIEN_ESTATE: the pool is closed. LIEN_ENOMEM. O(1) up to 64 MiB.
// Never blocks.
LIEN_API int lien_pool_alloc(lien_pool *pool, size_t len, lien_buf **buf);

// The same, waiting for room: `on_done(arg, 0, buf)` passes ownership of a buffer, or a nonzero status and NULL. First come, first served, large
// or small. `alloc` may be NULL; otherwise it is valid until on_done begins, for lien_pool_alloc_cancel().
typedef void lien_alloc_fn(void *arg, int status, lien_buf *buf);
LIEN_API int lien_pool_alloc_start(lien_pool *pool, size_t len, lien_alloc_fn *on_done, void *arg,
                                   lien_alloc **alloc);
// on_done runs with LIEN_ECANCELED, unless its result is already under way (LIEN_ESTATE). lien_pool_close() cancels all that wait.
LIEN_API int lien_pool_alloc_cancel(lien_alloc *alloc);
// Blocking twin. LIEN_ETIMEDOUT.
LIEN_API int lien_pool_alloc_wait(lien_pool *pool, size_t len, uint32_t timeout_ms, lien_buf **buf);

// Frees the buffer and stores NULL. While it is lent (a grant, a message, a read) freeing is put off until it is released; never refused,
// never early. NULL is allowed.
LIEN_API void lien_buf_free(lien_buf **buf);

// Bytes in use (at first what was asked for), and the most it can hold.
LIEN_API size_t lien_buf_len(const lien_buf *buf);
LIEN_API size_t lien_buf_capacity(const lien_buf *buf);
// LIEN_ERANGE: above capacity. LIEN_EBUSY: lent.
LIEN_API int lien_buf_set_len(lien_buf *buf, size_t len);

// The bytes, for reading. LIEN_EBUSY: a read runs into it. LIEN_EQUARANTINED. The pointer is good until the buffer is lent, moved or freed.
LIEN_API int lien_buf_data(const lien_buf *buf, const void **data);
// The bytes, for writing. LIEN_EBUSY: lent in any way, a peer may be reading it. LIEN_EQUARANTINED.
LIEN_API int lien_buf_mut(lien_buf *buf, void **data);

// Whether some of the bytes were read by a request that did not wait for the verdict on them (lien/call.h, LIEN_UNVERIFIED), and nobody vouched for them since. They may be looked at, as bytes that
// may be stale, torn, or made by an enemy; whatever would lend them to a peer answers LIEN_EUNVERIFIED. Ends by a verdict of yes, by reads that replace all of them, by lien_buf_clear() and by
// freeing, and by nothing else: not by the end of the request, nor by writing over them through lien_buf_mut().
LIEN_API bool lien_buf_unverified(const lien_buf *buf);
// Zeroes the whole capacity, and with it ends what lien_buf_unverified() tells. LIEN_EBUSY: lent. LIEN_EQUARANTINED. Takes as long as the zeroing.
LIEN_API int lien_buf_clear(lien_buf *buf);

typedef struct lien_mem_opts {
    size_t size;
    void (*on_released)(
        void *arg,
        int status); // the memory is the application's again (0), or never (LIEN_EQUARANTINED)
    void *arg;
} lien_mem_opts;

static inline void lien_mem_opts_init(lien_mem_opts *opts)
{
    LIEN_OPTS_INIT_(opts);
}

// Registers `len` bytes at `addr`, which the application owns and keeps mapped until on_released. Registration with a provider is lazy, per
// domain; its failure shows as LIEN_EREGISTER where the memory is first used.
LIEN_API int lien_mem_register(lien_ctx *ctx, void *addr, size_t len, const lien_mem_opts *opts,
                               lien_mem **mem);
// A buffer over a part of it. LIEN_ERANGE. LIEN_ESTATE: being unregistered. Buffers of one lien_mem may overlap; it is up to the application what that means:
// lien_buf_unverified() knows what was read into a buffer, not what was read into another one over the same bytes.
LIEN_API int lien_mem_buf(lien_mem *mem, size_t offset, size_t len, lien_buf **buf);
// Stores NULL. on_released runs once no buffer of it is held or lent any more. LIEN_ESTATE: already under way. Never blocks.
LIEN_API int lien_mem_unregister(lien_mem **mem);
// Blocking twin: 0 (released, or nothing lent), LIEN_ETIMEDOUT (still lent; *mem stays set, call again), LIEN_EQUARANTINED (not yours).
// on_released does not run. From the first call on the memory takes no new buffers; lien_mem_unregister() can take over after a timeout.
LIEN_API int lien_mem_unregister_wait(lien_mem **mem, uint32_t timeout_ms);

// -- Space: the target of a read ---------------------------------------------------------------------------------------------------

// Moves `n` buffers (1 .. LIEN_BUFS_MAX) into a space and stores NULL in each slot: seen as one run of bytes in that order. LIEN_EBUSY: one of
// them is lent. LIEN_EINVAL: a NULL slot, one buffer twice, or one that belongs to a space, a message or a request. On error no slot changes.
LIEN_API int lien_space_open(lien_ctx *ctx, lien_buf **bufs, size_t n, lien_space **space);
// Sum of the buffers' lengths.
LIEN_API uint64_t lien_space_len(const lien_space *space);
// The i-th buffer, which stays in the space: to look at with lien_buf_data/mut. LIEN_EBUSY: lent. LIEN_EQUARANTINED. LIEN_ERANGE.
LIEN_API int lien_space_buf(lien_space *space, size_t i, lien_buf **buf);
// Moves all buffers out, `n` being their number, and leaves the space empty. Same errors.
LIEN_API int lien_space_take(lien_space *space, lien_buf **bufs, size_t n);
// Waits until the space is not lent: 0, LIEN_ETIMEDOUT, or LIEN_EQUARANTINED: the transfer's end could not be proved; the buffers are kept
// out of use, pool memory goes home when the domain's end proves it. Blocks; timeout 0 asks without blocking.
LIEN_API int lien_space_wait(lien_space *space, uint32_t timeout_ms);
// Frees space and buffers and stores NULL; put off while lent.
LIEN_API void lien_space_free(lien_space **space);

// -- Connections -------------------------------------------------------------------------------------------------------------------

// Flags of connections, methods, grants and reads: no two share a bit, and one where it does not belong is LIEN_EINVAL.
//
// Callbacks of this connection may run on the progress thread, and promise not to block.
#define LIEN_INLINE (1u << 0)

typedef struct lien_conn_opts {
    size_t size;
    unsigned flags;      // LIEN_INLINE
    uint32_t timeout_ms; // from start to open; default option connect_ms
    lien_pool *
        pool; // where bodies of received messages go; NULL: a pool of the ctx's own. Closing it first ends the connection at the next body
    void *arg;
    // Open (0), or it never will be; the log names the stage. Runs once, before any other. LIEN_EADDR: a name that is not known, an address that cannot be reached. LIEN_EREFUSED: nobody listens, or the
    // peer cannot take it (its reason is in the log). LIEN_ETIMEDOUT. LIEN_ECLOSED, LIEN_EPEERLOST, LIEN_EIO: the peer or its fabric connection ended, or failed, on the way. LIEN_EAUTH.
    // LIEN_ENOCOMMON. LIEN_EPROTO: no Lien peer. LIEN_ESYS: this process lacks descriptors or threads. LIEN_ELIMIT: the credits need more work requests than the device has. LIEN_ENODEV.
    // LIEN_EREGISTER.
    void (*on_open)(lien_conn *conn, int status, void *arg);
    // A message, in the peer's order. Takes ownership: free with lien_msg_free(). NULL: messages wait for lien_msg_recv_wait().
    void (*on_message)(lien_conn *conn, lien_msg *msg, void *arg);
    // After LIEN_EAGAIN from a send: try again. May run without need.
    void (*on_writable)(lien_conn *conn, void *arg);
    // The connection ended by itself: LIEN_ECLOSED (the peer closed it), LIEN_EPEERLOST (it is gone, or answers no more), LIEN_EPROTO, LIEN_EIO or LIEN_ENODEV (the provider failed). Or a message's body could
    // not be taken: LIEN_ECHECKSUM, LIEN_EREGISTER, LIEN_ENOMEM, LIEN_ELIMIT (option quarantine_peer_bytes), LIEN_ESTATE (its pool is closed). Runs at most once, never after
    // lien_conn_close(). Operations on it end with that status; their memory waits for evidence.
    void (*on_lost)(lien_conn *conn, int status, void *arg);
    // The last callback, once, after lien_conn_close() and after the last release: 0, or LIEN_EQUARANTINED if memory had to be quarantined.
    void (*on_closed)(lien_conn *conn, int status, void *arg);
    const lien_service *service; // what the peer may call; NULL: nothing
    // The peer takes no new calls (lien_conn_goaway() there): calls that run go on, new ones are LIEN_EOVERLOAD. Runs at most once.
    void (*on_goaway)(lien_conn *conn, void *arg);
    // After lien_conn_goaway() here, or lien_listener_drain(): the peer knows, every request of it has ended (answered, or dropped by whoever had it), and none will
    // come. What is left is to close. Runs at most once; not on a connection that ends before.
    void (*on_drained)(lien_conn *conn, void *arg);
} lien_conn_opts;

static inline void lien_conn_opts_init(lien_conn_opts *opts)
{
    LIEN_OPTS_INIT_(opts);
}

// Connects to a listener at "host:port" ("[v6]:port"). Never blocks (names are resolved elsewhere). The handle is valid until lien_conn_close().
// Errors that come later come by on_open. LIEN_EADDR: malformed address. LIEN_ESYS: no thread to resolve a name. LIEN_ESTATE: the ctx is being closed. LIEN_ELIMIT, by on_open: option quarantine_total_bytes
// leaves no room for its frames, over a provider whose ends prove nothing.
LIEN_API int lien_conn_open(lien_ctx *ctx, const char *address, const lien_conn_opts *opts,
                            lien_conn **conn);
// Blocking twin: returns what on_open would say; on error *conn is not written. on_open does not run.
LIEN_API int lien_conn_open_wait(lien_ctx *ctx, const char *address, const lien_conn_opts *opts,
                                 lien_conn **conn);

// Ends the connection: queued messages leave, the peer is told, reads end with LIEN_ECLOSED. Stores NULL; on_closed is the last that is heard. Never blocks.
LIEN_API int lien_conn_close(lien_conn **conn);
// Blocking twin: returns after on_closed's moment (on_closed does not run): 0, LIEN_EQUARANTINED, or LIEN_ETIMEDOUT (the close goes on; *conn is NULL all the same).
LIEN_API int lien_conn_close_wait(lien_conn **conn, uint32_t timeout_ms);

typedef enum lien_path {
    LIEN_PATH_NONE = 0,   // not known yet
    LIEN_PATH_RDMA = 1,   // a device moves the bytes
    LIEN_PATH_KERNEL = 2, // READ over the kernel's TCP: Lien copies nothing, the kernel does
    LIEN_PATH_INLINE = 3, // copied
    LIEN_PATH_SIM = 4     // the simulator
} lien_path;

// What a path is called in logs and by lien-info(1): "none", "rdma", "kernel", "inline", "sim"; "unknown" for other numbers. Static storage.
LIEN_API const char *lien_path_name(lien_path path);

typedef struct lien_conn_info {
    size_t size;
    uint64_t id; // the same in both peers' logs
    char provider[32];
    char peer[96]; // bootstrap address of the peer
    lien_path path;
    bool open;
    bool ep_end_proves;     // evidence class, design.md 5 (b)
    bool domain_end_proves; // (c)
    uint32_t eager_max;     // bytes of the largest lien_send()
    uint64_t message_max;   // bytes of the largest body the peer takes
    uint32_t
        message_credits; // messages the peer has room for; fewer may be able to leave at this moment
    uint32_t control_credits;
    uint32_t reads_outstanding;
    uint64_t read_bytes_outstanding;
    uint64_t grants_live;
    uint64_t grants_bytes;
    uint64_t quarantined_bytes;
    bool soft;      // the device is software (path rdma)
    char nic[64];   // device and port, or interface; "" where the kernel's routes choose it
    char local[96]; // our end's numeric address
    // Limits: bytes of one READ and of all outstanding ones, and their number.
    uint64_t read_piece_max;
    uint64_t read_bytes_max;
    uint32_t reads_max;
    // Counters since the connection was begun.
    uint64_t messages_sent;
    uint64_t messages_received;
    uint64_t reads_done; // lien_read operations
    uint64_t reads_failed;
    uint64_t read_bytes; // that came by READs, of whatever they belonged to
} lien_conn_info;

// Fills the first info->size bytes of *info.
LIEN_API int lien_conn_info_get(lien_conn *conn, lien_conn_info *info);

// The ctx that `conn` belongs to, for handlers and callbacks that get a connection and want a pool or a space. NULL for NULL, and in a forked child. Never blocks. Since 0.1.
LIEN_API lien_ctx *lien_conn_ctx(const lien_conn *conn);

// Writes the trace of the connection, its last events (option `trace` says how many), to the descriptor `fd`: bytes for lien-trace(1) to read. Also after the connection ended, until
// lien_conn_close(). The events are those of one moment; the writing is done without a lock, and takes as long as write(2) on `fd` does. Frames are in it without users' bytes and keys, unless
// option `trace_bytes` says otherwise. LIEN_ESTATE: option `trace` is 0. LIEN_ESYS: write(2) failed, see errno; part of it may be written. LIEN_ENOMEM.
LIEN_API int lien_conn_trace(lien_conn *conn, int fd);

typedef struct lien_listener_opts {
    size_t size;
    const lien_conn_opts
        *conn; // for each accepted connection, copied; its on_open does not run. NULL: the defaults
    void *arg;
    // A connection is open. Store its `arg` in *conn_arg. Return 0 to take it: it is then the application's, to be closed with lien_conn_close().
    // Return nonzero to refuse: the library closes it. NULL: accepted connections wait for lien_listener_accept_wait().
    int (*on_accept)(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg);
    // First bytes that are not Lien's. Takes ownership of `fd`, on which the `len` bytes at `first` were already read.
    // NULL: such connections are closed.
    void (*on_foreign)(lien_listener *listener, int fd, const void *first, size_t len, void *arg);
    void (*on_closed)(lien_listener *listener, void *arg); // the last callback, once
    // After lien_listener_drain(): each of its connections has drained or ended; what was requested on one that was lost may still be in its handler's hands. Runs at most once,
    // not after lien_listener_close().
    void (*on_drained)(lien_listener *listener, void *arg);
} lien_listener_opts;

static inline void lien_listener_opts_init(lien_listener_opts *opts)
{
    LIEN_OPTS_INIT_(opts);
}

// Listens at "host:port"; port 0 picks one, host "*" means every address. LIEN_EADDR: cannot be bound, the log says why. LIEN_ESYS: no socket to
// be had (descriptors, memory); the log names the limit.
LIEN_API int lien_listener_open(lien_ctx *ctx, const char *address, const lien_listener_opts *opts,
                                lien_listener **listener);
// The same on a TCP socket that listens already: inherited, handed over by lien_listener_fd(), or passed by a service manager. The descriptor is the listener's from a return
// of 0 on; it is made non-blocking and close-on-exec. LIEN_EINVAL: not a TCP socket that listens, the log says what is wrong.
LIEN_API int lien_listen_fd(lien_ctx *ctx, int fd, const lien_listener_opts *opts,
                            lien_listener **listener);
// A descriptor of the listening socket to hand over to another process, by SCM_RIGHTS or across exec (it is close-on-exec: clear that there). It is the caller's to close. As long as
// one descriptor is open anywhere, connecting peers wait in the socket's backlog and are not refused. LIEN_ESTATE: drained already.
LIEN_API int lien_listener_fd(lien_listener *listener, int *fd);
// Ends serving without losing anybody: accepts no more (who connects from now on waits in the socket, for the next process that has it), says GOAWAY on each connection it
// accepted, those that are still on their way included, and calls on_drained when all of them have drained (see lien_conn_opts) or ended. Again: no effect. Never blocks.
LIEN_API int lien_listener_drain(lien_listener *listener);
// Descriptors that a service manager passed to this process (systemd's protocol: LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES), in order: those named `name` (NULL: all) into `fds`, at most `max`, and
// their number into *n. Each is made close-on-exec. Needs no ctx, changes no variable; call it before other threads change the environment. LIEN_ENOTFOUND: none.
// LIEN_ERANGE: more than `max`. LIEN_EOPTION: the variables contradict themselves, or a descriptor is not open.
LIEN_API int lien_activated_fds(const char *name, int *fds, size_t max, size_t *n);
// The bound address as "host:port" into `text` of `size` bytes (96 is enough). LIEN_ERANGE: too small.
LIEN_API int lien_listener_address(lien_listener *listener, char *text, size_t size);
// The next accepted connection. LIEN_ETIMEDOUT. At most 64 wait; more are refused.
LIEN_API int lien_listener_accept_wait(lien_listener *listener, uint32_t timeout_ms,
                                       lien_conn **conn);
// Stores NULL. Connections stay. Never blocks.
LIEN_API int lien_listener_close(lien_listener **listener);

// -- Messages ----------------------------------------------------------------------------------------------------------------------

typedef struct lien_send_opts {
    size_t size;
    void (*on_done)(
        void *arg,
        int status); // 0: on its way (head only), or taken over by the peer (with a body): its application has
                     // taken the connection, and the body was read
    void (*on_released)(void *arg, int status); // the body's buffers are yours again
    void *arg;
    uint32_t
        timeout_ms; // lien_send_wait only: how long to wait for credit and result; default LIEN_FOREVER
    unsigned flags; // LIEN_CHECKSUM
} lien_send_opts;

static inline void lien_send_opts_init(lien_send_opts *opts)
{
    LIEN_OPTS_INIT_(opts);
}

// Sends one message: a head of `head_len` bytes (0 .. info.eager_max), copied before it returns, and a body of `n` buffers (0 .. LIEN_BUFS_MAX),
// which move by the peer's READ. The buffers stay the caller's: readable, not writable, until on_released; freeing is put off till then.
// LIEN_EAGAIN: no credit, retry after on_writable. LIEN_EMSGSIZE: head above eager_max, or body above message_max or 4 GiB. LIEN_ELIMIT: the
// budget of held grant bytes, as of lien_grant_open(). LIEN_EBUSY: a buffer is under a read. Otherwise as lien_grant_open(). Never blocks.
LIEN_API int lien_send(lien_conn *conn, const void *head, size_t head_len, lien_buf *const *bufs,
                       size_t n, const lien_send_opts *opts);
// Blocking twin: waits for credit, then for *released*. LIEN_ETIMEDOUT: either nothing was sent (no credit came), or the body is still lent:
// lien_buf_mut() tells. on_done and on_released do not run.
LIEN_API int lien_send_wait(lien_conn *conn, const void *head, size_t head_len,
                            lien_buf *const *bufs, size_t n, const lien_send_opts *opts);

// The next message of a connection without on_message. LIEN_ETIMEDOUT; the connection's status once it ended and all messages were taken.
LIEN_API int lien_msg_recv_wait(lien_conn *conn, uint32_t timeout_ms, lien_msg **msg);
// Head bytes; valid until lien_msg_free().
LIEN_API int lien_msg_head(const lien_msg *msg, const void **data, size_t *len);
// The body, which stays the message's; NULL when it has none.
LIEN_API lien_buf *lien_msg_body(lien_msg *msg);
// Moves the body out. LIEN_ENOTFOUND: none.
LIEN_API int lien_msg_take_body(lien_msg *msg, lien_buf **buf);
// How its body moved; `soft` as for lien_read_path().
LIEN_API lien_path lien_msg_path(const lien_msg *msg, bool *soft);
// Frees it, gives its credit back to the peer, stores NULL. Also after the connection ended.
LIEN_API void lien_msg_free(lien_msg **msg);

// -- Grants and reads --------------------------------------------------------------------------------------------------------------

// The peer may be refused at once: a region of its own, deregistered by lien_grant_revoke(). A READ that comes later costs the connection.
#define LIEN_REVOCABLE (1u << 2)

typedef struct lien_grant_opts {
    size_t size;
    unsigned flags; // LIEN_REVOCABLE, LIEN_CHECKSUM
    void (*on_released)(
        void *arg,
        int status); // 0: the peer released it, or its endpoint's end is proved; or LIEN_EQUARANTINED
    void *arg;
} lien_grant_opts;

static inline void lien_grant_opts_init(lien_grant_opts *opts)
{
    LIEN_OPTS_INIT_(opts);
}

// What the peer needs to read a grant: opaque bytes, to be carried in the host's own message.
typedef struct lien_token {
    uint32_t len;
    uint8_t bytes[LIEN_TOKEN_MAX];
} lien_token;

// Lets the peer of `conn` read `n` buffers (1 .. LIEN_BUFS_MAX), seen as one run of bytes. Held: they stay untouched (readable, not writable)
// until the peer's release or the proved end of the connection's endpoint. LIEN_EBUSY: a buffer is under a read. LIEN_ELIMIT: option held_conn_bytes,
// held_total_bytes or grants_conn (the smaller one of both peers), or a pool's expose_max; where a connection's end proves nothing also quarantine_peer_bytes and quarantine_total_bytes. LIEN_ESTATE: a pool with LIEN_REUSE_PEER is another connection's, or the
// connection is not open yet. LIEN_EQUARANTINED, LIEN_EUNVERIFIED: a buffer is in quarantine; holds what a request read and nobody vouched for. LIEN_EREGISTER. Never blocks.
LIEN_API int lien_grant_open(lien_conn *conn, lien_buf *const *bufs, size_t n,
                             const lien_grant_opts *opts, lien_token *token, lien_grant **grant);
// Asks the peer to release. The grant ends as any other; a peer that owes its release past option release_ms loses the connection. Again: no effect.
LIEN_API int lien_grant_revoke(lien_grant *grant);
// Waits for released: 0, LIEN_EQUARANTINED, LIEN_ETIMEDOUT. Timeout 0 asks. 0 says that the buffers are yours again, not that the peer read them.
LIEN_API int lien_grant_wait(lien_grant *grant, uint32_t timeout_ms);
// Revokes, if it still holds, and gives up the handle; stores NULL. on_released still runs.
LIEN_API int lien_grant_close(lien_grant **grant);

typedef struct lien_token_info {
    size_t size;
    uint64_t conn;  // connection id it belongs to
    uint64_t grant; // the grant's id in logs
    uint64_t len;   // bytes that can be read
    uint32_t bufs;
    bool held;
    bool checksum;
} lien_token_info;

// What a token says. LIEN_EPROTO: malformed. LIEN_ESTALE: it is not of this connection. Says nothing about the grant's life.
LIEN_API int lien_token_open(lien_conn *conn, const void *token, size_t len, lien_token_info *info);

// One piece of a read: `len` bytes from offset `src` of the grant to offset `dst` of the space.
typedef struct lien_op {
    uint64_t src;
    uint64_t dst;
    uint64_t len;
} lien_op;

// Release the grant as soon as the read needs it no more.
#define LIEN_RELEASE (1u << 1)

typedef struct lien_read_opts {
    size_t size;
    unsigned flags; // LIEN_RELEASE, LIEN_INLINE
    uint32_t
        timeout_ms; // until on_done(LIEN_ETIMEDOUT); default LIEN_FOREVER. It ends the waiting and releases nothing
    const lien_op *ops; // 0 .. LIEN_OPS_MAX, copied; NULL: the whole grant to offset 0
    size_t n_ops;
    void (*on_done)(void *arg, int status);
    void (*on_released)(void *arg, int status);
    void *arg;
} lien_read_opts;

static inline void lien_read_opts_init(lien_read_opts *opts)
{
    LIEN_OPTS_INIT_(opts);
}

// Reads from the peer's grant named by `token` into `space`, which is lent at once and back by on_released at the latest. LIEN_ERANGE: an op outside token or space.
// LIEN_EOVERLAP: two ops write the same bytes. LIEN_ESTALE: the grant was released or revoked, or is another connection's.
// LIEN_EBUSY: the space is lent. LIEN_EPROTO: malformed token. LIEN_EPARTIAL: the grant has checksums and an op moves part of a buffer. LIEN_ECHECKSUM: it has none, and option `checksum` demands
// them; as a status of on_done: the bytes are not those that were granted. LIEN_ELIMIT, also as a status of on_done: beside what is in quarantine, and what else might come to it, there is no room
// for the space (options quarantine_peer_bytes, quarantine_total_bytes); a read that only other reads leave no room waits for them. LIEN_EMSGSIZE: more than the provider moves in one read. LIEN_ESTATE: the connection is not
// open yet. on_done also: LIEN_ETIMEDOUT, LIEN_ECANCELED, LIEN_ESTALE (revoked meanwhile), LIEN_EREGISTER, LIEN_EIO. `read` may be NULL (fire and forget). Never blocks.
LIEN_API int lien_read_start(lien_conn *conn, const void *token, size_t token_len,
                             lien_space *space, const lien_read_opts *opts, lien_read **read);
// on_done(LIEN_ECANCELED) runs soon, unless done is already under way; the space comes back on evidence. Pieces not yet posted are not posted.
LIEN_API int lien_read_cancel(lien_read *read);
// How its bytes move, or moved: also after the connection ended. `soft` (may be NULL): whether a device that is software, such as Soft-RoCE, did it. LIEN_PATH_NONE: not known.
LIEN_API lien_path lien_read_path(const lien_read *read, bool *soft);
// Cancels if it runs, gives up the handle, stores NULL; the callbacks still run.
LIEN_API int lien_read_close(lien_read **read);
// Blocking twin with slots: moves the buffers out of `slots` and puts them back before it returns, with evidence; after LIEN_EQUARANTINED the slots stay
// NULL. May outlast its timeout by the connection's teardown. opts callbacks do not run.
LIEN_API int lien_read_wait(lien_conn *conn, const void *token, size_t token_len, lien_buf **slots,
                            size_t n, const lien_read_opts *opts);

// Tells the owner that this side is done with the grant: at once, or after the last running read of it. LIEN_ESTALE: already released, or revoked. LIEN_EPROTO: malformed token.
LIEN_API int lien_release(lien_conn *conn, const void *token, size_t token_len);

#ifdef __cplusplus
}
#endif

#include <lien/call.h>
#include <lien/channel.h>
#include <lien/info.h>

#endif
