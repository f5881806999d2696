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

struct lieni_mem_root; // one per ctx: all pools and lien_mems

// Lives in the ctx. `lock` is the state lock, also taken by the public functions of pool and buf. `post` queues user callbacks (see dispatch.h).
struct lieni_dispatch;
struct lieni_mem_args {
    pthread_mutex_t *lock;
    pthread_cond_t *cond;            // broadcast when something a _wait function waits for changed
    struct lieni_dispatch *dispatch; // where callbacks run
    const struct lieni_env *env;
    void *ctx; // the lien_ctx, for the blocking twins
};
int lieni_mem_root_open(const struct lieni_mem_args *args, struct lieni_mem_root **root);
// Frees what can be freed; buffers that the application still holds stay readable until freed; quarantined memory stays mapped for good.
void lieni_mem_root_close(struct lieni_mem_root *root);

enum lieni_buf_state {
    LIENI_BUF_IDLE, // the holder's: read and write. Ends by a loan
    LIENI_BUF_BORROWED, // peers may read it: read only. Ends when the last borrow ends (release, or proof)
    LIENI_BUF_TARGET, // in a space that is lent: a READ may write it. Ends by evidence, or by quarantine
    LIENI_BUF_LOST, // in quarantine: nobody's. Ends by its domain's proved end, or never
};

// Sources. borrow: IDLE or BORROWED -> BORROWED, counts; else LIEN_EBUSY / LIEN_EQUARANTINED. unborrow: the count goes down; at 0 IDLE, and a deferred free is done.
int lieni_buf_borrow(lien_buf *buf);
void lieni_buf_unborrow(lien_buf *buf);
// Targets. take: IDLE -> TARGET. give: TARGET -> IDLE (and deferred free).
int lieni_buf_take(lien_buf *buf);
void lieni_buf_give(lien_buf *buf);
// BORROWED or TARGET -> LOST, all borrows of `domain` included: kept out of use until lieni_mem_domain_ended(domain, proven) says otherwise.
void lieni_buf_lose(lien_buf *buf, struct lieni_domain *domain);

// Whether a pool is of this root, and what it may hold at most.
bool lieni_pool_in_ctx(const lien_pool *pool, const struct lieni_mem_root *root);
uint64_t lieni_pool_limit(const lien_pool *pool);

enum lieni_buf_state lieni_buf_state(const lien_buf *buf);
bool lieni_buf_in_ctx(const lien_buf *buf, const struct lieni_mem_root *root);

// The bytes behind a buffer, for wire and provider use only: never refused, whatever the state.
void *lieni_buf_addr(const lien_buf *buf);

// The region that covers `buf` in `domain`, registering its chunk on first use. For local use (`mr`), and what a peer needs (`key`, `addr`).
struct lieni_region {
    struct lieni_mr *mr;
    uint64_t key;
    uint64_t addr; // remote address of the buffer's first byte
};
int lieni_buf_region(lien_buf *buf, const struct lieni_provider *prov, struct lieni_domain *domain,
                     struct lieni_region *region);
// A region of the buffer's own (LIEN_REVOCABLE); closed by the caller with prov->mr_close.
int lieni_buf_own_region(lien_buf *buf, const struct lieni_provider *prov,
                         struct lieni_domain *domain, struct lieni_region *region);

// Before domain_close: closes the domain's regions. Returns how many failed to close.
unsigned lieni_mem_domain_leaving(struct lieni_mem_root *root, struct lieni_domain *domain);
// After it: buffers lost to `domain` go home if proven, else stay lost for good.
void lieni_mem_domain_ended(struct lieni_mem_root *root, struct lieni_domain *domain, bool proven);

// Receiving side: like lien_pool_alloc(_start), but may use the reserve; callback under the state lock, not dispatched. `wait` is embedded in the caller.
struct lieni_pool_wait {
    size_t len;
    void (*ready)(struct lieni_pool_wait *wait, lien_buf *buf, int status);
    struct lieni_pool_wait *prev, *next; // the pool's
    lien_pool *pool;                     // set while waiting
};
int lieni_pool_alloc_reserved(lien_pool *pool, size_t len, lien_buf **buf);
void lieni_pool_wait_start(lien_pool *pool, struct lieni_pool_wait *wait);
void lieni_pool_wait_stop(struct lieni_pool_wait *wait);
// Pool internals without the lock taken (it is held): for the ctx's own pool and connection slabs.
int lieni_pool_open_locked(struct lieni_mem_root *root, const lien_pool_opts *opts,
                           lien_pool **pool);
int lieni_pool_alloc_locked(lien_pool *pool, size_t len, lien_buf **buf);
void lieni_pool_close_locked(lien_pool *pool);
void lieni_buf_free_locked(lien_buf *buf);

// Levels for the metrics.
uint64_t lieni_mem_bytes_out(const struct lieni_mem_root *root);
uint64_t lieni_mem_bytes_lost(const struct lieni_mem_root *root);

// The one function that may copy payload; adds what it copies to *counter (any thread).
void lieni_copy_payload(_Atomic uint64_t *counter, void *dst, const void *src, size_t len);

#endif
