// SPDX-License-Identifier: Apache-2.0
//
// What the files of core/mem share, and nobody else includes (tests do). All of it under the state
// lock, except buf.state, buf.magic and buf.len, which are atomic, and what guard_report.c reads in a
// signal handler.
//
//   root.c    the root, its locks, the end
//   chunk.c   mapped memory, its blocks, its return to the system
//   region.c  registrations of chunks, one per domain
//   buf.c     handles, states, losses
//   expose.c  whose keys peers still know
//   sum.c     checksums of buffers, and zeroing
//   pin.c     what stays mapped and registered for late READs
//   doubt.c   marks of bytes that nobody vouched for
//   pool.c    limits, reserve, waiting
//   guard.c   protection of the application's mapping; guard_report.c the report of a fault
//   alloc.c   the public ways to wait
//   mem.c     memory of the application
//
// A chunk is a run of memory: mapped by a pool, or the application's (lien_mem). A pool's chunk is cut
// into blocks, used and free ones in turn; the blocks are described outside the memory itself,
// which peers and devices write.

#ifndef LIENI_MEM_IMPL_H
#define LIENI_MEM_IMPL_H

#include "core/dispatch.h"
#include "core/list.h"
#include "core/log.h"
#include "core/mem/mem.h"

#define LIENI_PAGE      ((size_t)4096)
#define LIENI_CLASS_MAX ((size_t)64 << 20) // larger buffers get a chunk of their own
#define LIENI_CHUNK_MIN ((size_t)4 << 20)  // class chunks grow from this ...
#define LIENI_CHUNK_MAX LIENI_CLASS_MAX    // ... to this
#define LIENI_BINS      64                 // four classes a power of two, 4 KiB .. 64 MiB: 57 used
#define LIENI_LIMIT_MAX ((size_t)1 << 46)
#define LIENI_BUF_LIVE  0x6c69656eu
#define LIENI_BUF_STALE 0xdeadbeefu

struct lieni_mem_root {
    struct lieni_mem_args args;
    // Taken before the state lock by functions that a buffer can reach after its ctx is gone; once
    // `orphan` it is the lock.
    pthread_mutex_t gate;
    bool orphan;
    unsigned fork_generation;
    struct lieni_strand *strand; // on_released of lien_mems
    struct lieni_node pools, mems;
    struct lieni_node kept;      // chunks that should be gone and still have regions or buffers
    struct lieni_node regions;   // of all chunks
    struct lieni_node losses;    // of all buffers
    struct lieni_node pins;      // that were lost
    struct lieni_node exposures; // to connections whose end was not proved
    struct lieni_node bufs;      // every handle, live or spare
    struct lieni_node spare;     // handles to use again, the longest unused first
    struct lieni_chunk *graves;  // to be unmapped when the lock is free
    uint64_t live;               // handles in use
    uint64_t bytes_out, bytes_lost, bytes_exposed;
    uint64_t bufs_made; // ids
    uint64_t guard_skipped;
    bool abandoned; // never freed
    struct lieni_mem_root *abandoned_next;
};

// What the application's mapping of a block allows.
enum lieni_guard {
    LIENI_GUARD_OPEN,
    LIENI_GUARD_READ, // reading only
    LIENI_GUARD_SHUT  // nothing
};

struct lieni_block {
    struct lieni_chunk *chunk;
    size_t page, pages;                 // place and size in the chunk
    struct lieni_block *before, *after; // neighbours in memory
    struct lieni_node bin;              // in a bin while free
    bool used;
    enum lieni_guard guard; // OPEN while it is free
};

struct lieni_chunk {
    struct lieni_node link; // pool.chunks, or root.kept
    struct lieni_mem_root *root;
    lien_pool *pool; // NULL: the application's, or let go by its pool
    lien_mem *mem;
    uint8_t *base; // the provider's mapping
    uint8_t *app;  // the application's: a second mapping if guarded, else the same
    size_t len;
    size_t page;                     // what can be protected: 4096, or a huge page
    size_t handed_out;               // pages from the start on that ever were, as part of a buffer
    struct lieni_guard_range *range; // guarded: what the fault handler knows of it
    struct lieni_node regions;
    struct lieni_block *first;
    uint32_t used;    // buffers in it
    uint32_t pins;    // it stays mapped and registered while there are any
    uint32_t lost;    // of those: lost for good ...
    uint32_t forever; // ... and freed by the holder
    bool mapped;      // by us
    bool single;      // one large buffer's own
    bool populated;   // asked for at open: not trimmed
    bool doomed;      // in root.kept
    bool counted;     // in root.bytes_lost
    bool unprovable;  // a region outlived its domain: never unmapped
    struct lieni_chunk *grave_next;
};

struct lieni_region_rec {
    struct lieni_node by_chunk, by_root;
    struct lieni_chunk *chunk;
    const struct lieni_provider *prov;
    struct lieni_domain *domain; // NULL: outlived it
    struct lieni_mr *mr;
    struct lieni_mr_info info;
};

// A lend that ended without evidence, in a domain that may still prove its end.
struct lieni_loss {
    struct lieni_node link; // root.losses
    lien_buf *buf;
    struct lieni_domain *domain;
    bool embedded;
};

struct lieni_pin {
    struct lieni_node link; // root.pins, once lost
    struct lieni_chunk *chunk;
    struct lieni_domain *domain; // that it was lost to; NULL: not lost, or lost for good
};

// A connection that knows a key of the buffer's.
struct lieni_exposure {
    struct lieni_node by_buf;  // buf.exposures
    struct lieni_node by_conn; // the connection's list, or root.exposures
    lien_buf *buf;
    uint64_t conn; // its serial
    uint64_t
        grants; // that showed it a key, over or not; a buffer that is twice in one counts twice
    struct lieni_domain *domain; // whose end would prove it over: the endpoint's did not; else NULL
};

struct lien_buf {
    _Atomic uint32_t magic;
    _Atomic int state; // enum lieni_buf_state; set by set_state() in buf.c only
    _Atomic size_t len;
    size_t cap;
    uint8_t *addr; // in the provider's mapping
    uint8_t *app;  // in the application's
    uint64_t id;   // counts the buffers of its ctx
    struct lieni_mem_root *root;
    struct lieni_chunk *chunk;
    struct lieni_block *block; // NULL: the application's memory
    struct lieni_node all, spare;
    uint32_t borrows;
    uint32_t losses;        // records in root.losses
    struct lieni_loss loss; // the first of them
    bool forever;           // lost to a domain whose end proved nothing
    bool freed;             // by its holder, while lent
    struct lieni_node exposures;
    size_t old;    // bytes from its start on that may hold something: zeroed before a READ [R16]
    size_t wipe;   // bytes to be zeroed before the application gets it
    size_t room;   // bytes that count against the pool's limit: cap, but for lieni_buf_trim()
    bool received; // counts against the reserve first
    bool kept;     // a space, a message or a request owns it: the application only looks at it
    struct lieni_doubt *doubt; // a reference: bytes of its read number doubt_read are in doubt
    uint64_t doubt_read;
    size_t doubt_len;   // up to where
    _Atomic int lender; // enum lieni_lender; guarded only
    _Atomic uint64_t lent_conn, lent_op;
};

struct lieni_waiters {
    struct lieni_pool_wait *head, *tail;
};

struct lien_pool {
    struct lieni_mem_root *root;
    struct lieni_node link;
    unsigned flags;
    bool guarded;
    int node;
    size_t limit, reserve; // whole pages
    lien_reuse reuse;
    uint64_t peer, peer_id; // LIEN_REUSE_PEER: serial and id of the connection it is of, once it is
    uint64_t peer_grants;   // buffers that were granted to it, over or not
    size_t exposed, expose_max; // LIEN_REUSE_PROVEN
    size_t out_plain, out_received;
    size_t mapped, class_mapped;
    size_t page; // of its chunks: 4096, or a huge page
    struct lieni_node chunks;
    uint32_t empty;  // class chunks without a buffer
    uint64_t filled; // bit i: bin i has a block
    struct lieni_node bins[LIENI_BINS];
    struct lieni_waiters plain, received;
    uint64_t tickets;
    struct lieni_strand *strand; // opened with the first lien_pool_alloc_start
    uint64_t steps;              // blocks looked at, for the test of O(1)
    uint32_t holds;              // calls, connections and listeners that still use the struct
    bool closed, serving;
};

enum lieni_mem_state {
    LIENI_MEM_OPEN,    // the application's, lends buffers. Ends by unregistering
    LIENI_MEM_CLOSING, // no new buffers; awaits the last buffer's and the last region's end
    LIENI_MEM_RELEASED // the application's alone; awaits that it hears of it
};

struct lien_mem {
    struct lieni_task task; // runs on_released
    struct lieni_node link;
    struct lieni_mem_root *root;
    struct lieni_chunk *chunk;
    enum lieni_mem_state state;
    bool calls_back; // lien_mem_unregister() was called: on_released is owed
    bool waited_for; // a thread is in lien_mem_unregister_wait()
    int status;
    void (*on_released)(void *arg, int status);
    void *arg;
};

// root.c. enter and leave take and give the lock for public functions; leave then unmaps what was
// let go, which is not done under the lock where it can be helped.
void lieni_mem_enter(struct lieni_mem_root *root);
void lieni_mem_leave(struct lieni_mem_root *root);
// leave for functions of handles that need a living ctx: after an error the log lines go out at once.
int lieni_mem_done(struct lieni_mem_root *root, int rc);
// Unmaps at once: at the end of functions called under the lock by others.
void lieni_mem_reap(struct lieni_mem_root *root);
bool lieni_mem_forked(const struct lieni_mem_root *root);
// Debug builds: the state lock is held (by somebody).
void lieni_mem_assert_locked(struct lieni_mem_root *root);
__attribute__((format(printf, 3, 4))) int lieni_mem_fail(struct lieni_mem_root *root, int code,
                                                         const char *format, ...);
void lieni_mem_changed(struct lieni_mem_root *root); // wakes waiting threads
uint64_t lieni_mem_deadline(struct lieni_mem_root *root, uint32_t timeout_ms);
// Copies the options a caller compiled against any version gave, over the defaults in `opts`.
int lieni_mem_opts_take(struct lieni_mem_root *root, void *opts, size_t size, const void *given);

// chunk.c
// A chunk for `pool`, not in it yet. `single`: it will be one buffer.
int lieni_chunk_map(const lien_pool *pool, size_t len, bool single, bool populate,
                    struct lieni_chunk **chunk);
struct lieni_chunk *lieni_chunk_new(struct lieni_mem_root *root, void *base, size_t len);
// Closes its regions and gives it back: to the system (mapped), or to nobody. Kept if that cannot be.
void lieni_chunk_release(struct lieni_chunk *chunk);
void lieni_chunk_settle(struct lieni_chunk *chunk); // a kept one whose last hold may be gone
void lieni_chunk_bury(struct lieni_chunk *graves);  // without the lock
size_t lieni_huge_page(void);
void lieni_pool_add_chunk(lien_pool *pool, struct lieni_chunk *chunk);
size_t lieni_class_pages(size_t pages); // rounded up to its class
struct lieni_block *lieni_block_take(lien_pool *pool, size_t pages);
// A buffer is made of it. Bytes from its start on that others may have had before: the rest is as the system gave it, zeros that cost nothing.
size_t lieni_block_hand_out(struct lieni_block *block);
void lieni_block_free(lien_pool *pool, struct lieni_block *block);
void lieni_pool_trim(lien_pool *pool, bool all);
int lieni_numa_check(struct lieni_mem_root *root, int node);

// region.c
bool lieni_regions_close(struct lieni_chunk *chunk); // true: none is left
void lieni_regions_domain_ended(struct lieni_mem_root *root, struct lieni_domain *domain,
                                bool proven);

// expose.c
bool lieni_buf_exposed(const lien_buf *buf);
void lieni_exposures_domain_ended(struct lieni_mem_root *root, struct lieni_domain *domain,
                                  bool proven);

// pin.c
void lieni_pins_domain_ended(struct lieni_mem_root *root, struct lieni_domain *domain, bool proven);
void lieni_pins_abandon(struct lieni_mem_root *root);

// sum.c
// Zeroes what its last holder left, before the application gets it. Only the caller knows the buffer, and does not hold the lock: it can take long.
void lieni_buf_wipe(lien_buf *buf);
// LIEN_ZERO: the first `old` bytes of a new buffer are what others left. Received ones are zeroed piece by piece, before each READ; others are to be wiped.
void lieni_buf_owes(lien_buf *buf, size_t old);
// LIEN_ZERO: it is `len` bytes long, all of them read. What lies behind them is zeroed as far as the page goes, and the pages behind are out of its holder's reach.
void lieni_buf_hide(lien_buf *buf, size_t len);

// buf.c
// 0, LIEN_EINVAL, LIEN_EFORK. Without the lock.
int lieni_buf_check(const lien_buf *buf);
lien_buf *lieni_buf_new(struct lieni_mem_root *root, struct lieni_chunk *chunk, uint8_t *addr,
                        size_t len, size_t cap);
void lieni_buf_retire(lien_buf *buf);
// It was freed, and nobody knows its keys any more: home, unless it is lent or lost.
void lieni_buf_settle_freed(lien_buf *buf);
void lieni_losses_abandon(struct lieni_mem_root *root);
const char *lieni_buf_state_name(enum lieni_buf_state state);
static inline bool lieni_buf_guarded(const lien_buf *buf)
{
    return buf->app != buf->addr;
}

// guard.c. Protection follows the state: loosen is called before a guarded buffer enters state `to`, tighten after it
// did, so that whoever sees a state that allows an access finds the memory open.
void lieni_guard_loosen(lien_buf *buf, enum lieni_buf_state to);
void lieni_guard_tighten(lien_buf *buf, enum lieni_buf_state to);
void lieni_guard_in_child(void);
// Mappings that protection may add in this process; 0: not known yet, three quarters of vm.max_map_count. Tests set it.
extern _Atomic size_t lieni_guard_maps_most;
extern _Atomic size_t lieni_guard_maps; // and has added

// guard_report.c. Installs the handler, if no other guarded pool did. No lock needed.
void lieni_guard_watch(void);
// Makes a chunk known to the handler. No lock needed; LIEN_ENOMEM.
int lieni_guard_range_add(struct lieni_chunk *chunk, bool single);
void lieni_guard_range_drop(struct lieni_chunk *chunk);
// Under the lock: `buf` may fault from now on; or no more.
void lieni_guard_range_lent(lien_buf *buf);
void lieni_guard_range_back(lien_buf *buf);

// pool.c
int lieni_pool_request_check(lien_pool *pool, size_t len, bool received);
void lieni_pool_wait_plain(lien_pool *pool, struct lieni_pool_wait *wait);

// pool.c, mem.c: a buffer came home (its handle is retired already).
void lieni_pool_home(lien_pool *pool, struct lieni_block *block, size_t cap, bool received);
void lieni_mem_try_release(lien_mem *mem);
void lieni_mem_finish_all(struct lieni_mem_root *root);

#endif
