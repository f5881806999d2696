// SPDX-License-Identifier: Apache-2.0
//
// Memory: chunks, their registration per domain, buffers and their states. The only part of core that holds raw addresses, keys and provider regions
// (with provider/; a test checks that). Everything here runs under the ctx's state lock unless it says otherwise.
//
// A buffer is in one state (enum lieni_buf_state); only buf.c's setter changes it. The state word can be read without the lock (lien_buf_data).

#ifndef LIENI_MEM_H
#define LIENI_MEM_H

#include <pthread.h>
#include <stdatomic.h>

#include "provider/provider.h"

struct lieni_node;
struct lieni_mem_root; // one per ctx: all pools and lien_mems

// Lives in the ctx. `lock` is the state lock, also taken by the public functions of pool and buf. `post` queues user callbacks (see dispatch.h).
struct lieni_dispatch;
struct lieni_mem_args {
    pthread_mutex_t *lock;
    struct lieni_dispatch *dispatch; // where callbacks run
    const struct lieni_env *env;
    void *ctx;             // the lien_ctx, for the blocking twins
    struct lieni_log *log; // errors that need a text, or NULL
    bool guard;            // pools are guarded unless they say otherwise
};
// `lock` is an ordinary mutex, not a recursive one. LIEN_ENOMEM.
int lieni_mem_root_open(const struct lieni_mem_args *args, struct lieni_mem_root **root);
// Called WITHOUT the lock, once every connection and every domain has ended, before `dispatch` closes (callbacks that were still owed are queued there).
// Nothing of *args is used afterwards. Frees what can be freed; buffers that the application still holds stay readable until freed, also after the ctx is
// gone; memory that is lent, lost or still registered stays mapped until the process ends.
void lieni_mem_root_close(struct lieni_mem_root *root);

// Forks between the process that opened the first root and this one. What was made in another generation is the parent's. Any thread.
unsigned lieni_fork_generation(void);

// What the ctx provides. The root of a ctx (not NULL).
struct lieni_mem_root *lieni_ctx_mem(lien_ctx *ctx);
// Something that a _wait function waits for changed: wakes all of them. Under the state lock.
void lieni_ctx_mem_changed(void *ctx);
// Waits, with the state lock held on entry and exit, until something changed (as above, or progress was made) or `deadline_ns` of the
// environment's clock (UINT64_MAX: none): 0 (look again), LIEN_ETIMEDOUT, LIEN_EDEADLK (waiting here could never end).
int lieni_ctx_wait_locked(void *ctx, uint64_t deadline_ns);

enum lieni_buf_state {
    LIENI_BUF_IDLE, // the holder's: read and write. Ends by a loan
    LIENI_BUF_BORROWED, // peers may read it: read only. Ends when the last borrow ends (release, or proof)
    LIENI_BUF_TARGET, // in a space that is lent: a READ may write it. Ends by evidence, or by quarantine
    LIENI_BUF_LOST, // in quarantine: nobody's. Ends by its domain's proved end, or never
};

// Lends. Each successful borrow or take is a lend, and each lend is ended exactly once: by unborrow or give (evidence, or a proof), or by lose. A buffer can be
// borrowed many times at once, by connections of several domains.
//
// Sources. borrow: IDLE or BORROWED -> BORROWED; LIEN_EBUSY (under a read), LIEN_EQUARANTINED, LIEN_EINVAL (freed). unborrow ends one; with the last one the buffer is
// IDLE, and a deferred free is done. A LOST buffer stays LOST when its other borrows end.
int lieni_buf_borrow(lien_buf *buf);
void lieni_buf_unborrow(lien_buf *buf);
// Targets. take: IDLE -> TARGET; LIEN_EBUSY, LIEN_EQUARANTINED, LIEN_EINVAL. give: TARGET -> IDLE (and deferred free).
int lieni_buf_take(lien_buf *buf);
void lieni_buf_give(lien_buf *buf);
// Ends one lend without evidence: BORROWED, TARGET or LOST -> LOST. The memory may still be touched through `domain`: kept out of use until each domain it was lost to
// has ended with proof, then BORROWED if other borrows still run, else IDLE (and deferred free). Never fails.
void lieni_buf_lose(lien_buf *buf, struct lieni_domain *domain);

// Who lent it, for the report of a stray access: the last lend of several. After each borrow and take. `op` as in the log. Costs nothing in pools that are not guarded.
enum lieni_lender {
    LIENI_LENT_BY_NOBODY, // not said yet
    LIENI_LENT_BY_GRANT,
    LIENI_LENT_BY_READ,
    LIENI_LENT_BY_CALL,    // a call of ours: op is its id
    LIENI_LENT_BY_REQUEST, // the handler of the peer's call op
};
void lieni_buf_lent_by(lien_buf *buf, enum lieni_lender lender, uint64_t conn, uint64_t op);

// Pins. A pin keeps the memory of a buffer mapped and registered (R9), whatever becomes of the buffer: it may be written, freed and handed out anew meanwhile. For sources whose borrow
// ends before the peer's release. Each pin is ended exactly once, by unpin (release, or proof) or lose: then it lasts until `domain` has ended with proof. LIEN_ENOMEM.
struct lieni_pin;
int lieni_buf_pin(lien_buf *buf, struct lieni_pin **pin);
void lieni_pin_end(struct lieni_pin *pin);
void lieni_pin_lose(struct lieni_pin *pin, struct lieni_domain *domain);

// Doubts: which buffers hold bytes that were read and that nobody vouched for yet (R15). One object a reader (a request), which numbers its reads in the order in which their bytes came; a buffer's mark is
// the number of the last one into it. A yes vouches for all reads up to `good`: what was asked later covers what came earlier. Counted: the reader's reference, and one a mark.
struct lieni_doubt {
    void *reader;        // the lien_request; NULL: it has ended, and nobody will vouch any more
    uint64_t last, good; // reads whose bytes came; those vouched for
    bool bad;            // the answer was no, or none came: `good` grows no more
    unsigned refs;
};
// NULL: no memory.
struct lieni_doubt *lieni_doubt_new(void *reader);
void lieni_doubt_unref(struct lieni_doubt *doubt);
// Bytes of read `doubt->last` are in it: a mark in place of the one it has.
void lieni_buf_doubt(lien_buf *buf, struct lieni_doubt *doubt);
// All bytes that were in doubt are replaced by good ones.
void lieni_buf_trust(lien_buf *buf);
// What it is marked with, or NULL: nobody has to vouch for its bytes.
struct lieni_doubt *lieni_buf_doubt_of(lien_buf *buf);
// Bytes from its beginning on, some of which are in doubt.
size_t lieni_buf_doubt_len(const lien_buf *buf);
// May these bytes leave by a way that checks what `own` (or NULL) stands for and nothing else? 0, LIEN_EUNVERIFIED.
int lieni_bufs_may_leave(lien_buf *const *bufs, size_t n, const struct lieni_doubt *own);

// Reuse (R16). Whether its pool's policy is LIEN_REUSE_PROVEN: then each grant has regions of its own.
bool lieni_buf_proven(const lien_buf *buf);
// Whether these can be granted over this connection (its serial, for the peer may choose the id): 0; LIEN_ESTATE (the pool is another connection's alone), LIEN_ELIMIT (expose_max).
int lieni_bufs_may_expose(lien_buf *const *bufs, size_t n, uint64_t conn);
// They are: from now on memory of a LIEN_REUSE_PROVEN pool goes home only after lieni_exposures_end() of `list`, the connection's. `id`: for texts only. LIEN_ENOMEM: nothing changed.
int lieni_bufs_expose(lien_buf *const *bufs, size_t n, uint64_t conn, uint64_t id,
                      struct lieni_node *list);
// They were not, after all: the keys of one grant never left. What other grants of this connection showed stays.
void lieni_bufs_unexpose(lien_buf *const *bufs, size_t n, uint64_t conn);
// The connection's endpoint is gone: proven, or they wait for the domain's end.
void lieni_exposures_end(struct lieni_node *list, struct lieni_domain *domain, bool proven);

// The checksum of `len` bytes (UINT64_MAX: all) from `at` on of these buffers seen as one run. Without the lock; they are lent meanwhile.
uint64_t lieni_bufs_sum(lien_buf *const *bufs, uint32_t n, uint64_t at, uint64_t len);
// In pools with LIEN_ZERO: these bytes are about to be read into.
void lieni_buf_zero(lien_buf *buf, uint64_t at, uint64_t len);

// For a holder of a borrow: whether the buffer is freed when its last lend ends. Returns what it was before.
bool lieni_buf_set_freed(lien_buf *buf, bool freed);

// A space, a message or a request owns the handle while `kept`: lien_buf_free() of what was given out to look at has no effect, and is logged; nothing else may take it over (R6).
void lieni_buf_keep(lien_buf *buf, bool kept);
bool lieni_buf_kept(const lien_buf *buf);

// Whether a pool is of this root, and what it may hold at most.
bool lieni_pool_in_ctx(const lien_pool *pool, const struct lieni_mem_root *root);
uint64_t lieni_pool_limit(const lien_pool *pool);
// Keeps the object (not its memory) when the pool is closed: allocations then answer LIEN_ESTATE. NULL is allowed. Under the lock.
void lieni_pool_ref(lien_pool *pool);
void lieni_pool_unref(lien_pool *pool);

enum lieni_buf_state lieni_buf_state(const lien_buf *buf);
bool lieni_buf_in_ctx(const lien_buf *buf, const struct lieni_mem_root *root);
// Whether it is one of these. What frees or keeps buffers takes each once.
bool lieni_buf_among(const lien_buf *buf, lien_buf *const *bufs, size_t n);

// Whether the handle is one that was not freed (also not freed while lent). For checks of handles from outside.
bool lieni_buf_alive(const lien_buf *buf);

// For observers (lien-sim): where the provider has what the application sees at `addr`; NULL: in none of the root's pools. Under the state lock.
const void *lieni_mem_provider_addr(const struct lieni_mem_root *root, const void *addr);
// The bytes behind a buffer, for wire and provider use only: never refused, whatever the state. In a guarded pool this is another mapping than the application's.
void *lieni_buf_addr(const lien_buf *buf);

// The region that covers `buf` in `domain`, registering its chunk on first use. For local use (`mr`), and what a peer needs (`key`, `addr`).
struct lieni_region {
    struct lieni_mr *mr;
    uint64_t key;
    uint64_t addr; // remote address of the buffer's first byte
};
int lieni_buf_region(lien_buf *buf, const struct lieni_provider *prov, struct lieni_domain *domain,
                     struct lieni_region *region);
// A region of the buffer's own (LIEN_REVOCABLE, LIEN_REUSE_PROVEN), of its length at this time (above 0), that peers may READ; closed by the caller with prov->mr_close before it ends its borrow. If that fails, the borrow ends by
// lieni_buf_lose(). Before the domain's end, in any case.
int lieni_buf_own_region(lien_buf *buf, const struct lieni_provider *prov,
                         struct lieni_domain *domain, struct lieni_region *region);

// Before domain_close, when no endpoint of the domain is left: closes its regions. Returns how many failed to close; may be called again to try once more.
unsigned lieni_mem_domain_leaving(struct lieni_mem_root *root, struct lieni_domain *domain);
// After it, or when the domain is given up (not proven): buffers lost to `domain` go home if proven, else stay lost for good. Regions that would not close are gone with a
// proven end, else their memory is never unmapped.
void lieni_mem_domain_ended(struct lieni_mem_root *root, struct lieni_domain *domain, bool proven);

// Receiving side: like lien_pool_alloc(_start), but may use the reserve. `wait` is embedded in the caller, zeroed. `ready` runs exactly once, under the state lock, perhaps inside
// wait_start: status 0 and a buffer, or LIEN_EMSGSIZE, LIEN_ENOMEM, LIEN_ECANCELED (the pool closed), LIEN_ESTATE (was closed). It may call any of these functions.
//
// Order: waiters for plain memory and waiters that may use the reserve are each first come, first served, and nobody overtakes a waiter of his kind by asking without waiting. What the
// reserve can satisfy never waits for plain waiters; beyond it the older waiter goes first.
struct lieni_pool_wait {
    size_t len;
    void (*ready)(struct lieni_pool_wait *wait, lien_buf *buf, int status);
    struct lieni_pool_wait *prev, *next; // the pool's
    lien_pool *pool;                     // set while waiting
    uint64_t ticket;                     // the pool's
    bool reserved;                       // the pool's
};
int lieni_pool_alloc_reserved(lien_pool *pool, size_t len, lien_buf **buf);
void lieni_pool_wait_start(lien_pool *pool, struct lieni_pool_wait *wait);
// `ready` will not run. No effect if it ran.
void lieni_pool_wait_stop(struct lieni_pool_wait *wait);
// Pool internals without the lock taken (it is held): for the ctx's own pool and connection slabs.
int lieni_pool_open_locked(struct lieni_mem_root *root, const lien_pool_opts *opts,
                           lien_pool **pool);
int lieni_pool_alloc_locked(lien_pool *pool, size_t len, lien_buf **buf);
void lieni_pool_close_locked(lien_pool *pool);
void lieni_buf_free_locked(lien_buf *buf);
// Bytes in use of a buffer that is IDLE, all of which were read; at most its capacity, which a pool with LIEN_ZERO makes those bytes in whole pages.
void lieni_buf_trim(lien_buf *buf, size_t len);

// Levels for the metrics. Out: bytes in buffers handed out. Lost: bytes of buffers in LOST, and of memory kept because its regions would not close.
uint64_t lieni_mem_bytes_out(const struct lieni_mem_root *root);
uint64_t lieni_mem_bytes_lost(const struct lieni_mem_root *root);
// Of LIEN_REUSE_PROVEN pools: bytes of buffers whose keys peers still know.
uint64_t lieni_mem_bytes_exposed(const struct lieni_mem_root *root);
// What the application has open: pools (the ctx's own among them), registered memory, and buffers that are in no space and no message.
struct lieni_mem_left {
    uint64_t pools, mems, bufs;
};
void lieni_mem_left(struct lieni_mem_root *root, struct lieni_mem_left *left);
// Counter: lends in guarded pools that went on unprotected.
uint64_t lieni_mem_guard_skipped(const struct lieni_mem_root *root);

// The one function that may copy payload; adds what it copies to *counter (any thread).
void lieni_copy_payload(_Atomic uint64_t *counter, void *dst, const void *src, size_t len);

#endif
