// SPDX-License-Identifier: Apache-2.0
//
// Pools: how much memory may be out, who gets it next, and where it comes from. Under the state lock.
//
// Invariant: plain + max(0, received - reserve) <= limit - reserve, in whole pages handed out. So plain buffers never
// reach the reserve, and together they never pass the limit. Chunks may hold more address space than is handed
// out, because of holes: at most twice the limit, of which plain buffers leave one and a half reserves for the
// rest (a request is rounded up by less than a quarter).
//
// Order of waiting: see struct lieni_pool_wait. may_go() is the one place that decides it.

#include "core/mem/impl.h"

#include <stdlib.h>

static size_t pages_up(size_t bytes, size_t page)
{
    return (bytes + page - 1) / page * page;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

// -- Open ------------------------------------------------------------------------------------------

static int opts_check(struct lieni_mem_root *root, lien_pool_opts *opts)
{
    if (opts->flags & ~(LIEN_HUGE_PAGES | LIEN_GUARD | LIEN_UNGUARDED | LIEN_ZERO)) {
        return lieni_mem_fail(root, LIEN_EINVAL, "pool flags 0x%x: unknown flag", opts->flags);
    }
    if (opts->flags & LIEN_GUARD && opts->flags & LIEN_UNGUARDED) {
        return lieni_mem_fail(root, LIEN_EINVAL,
                              "pool flags 0x%x: LIEN_GUARD and LIEN_UNGUARDED exclude each other",
                              opts->flags);
    }
    if (opts->limit == 0 || opts->limit > LIENI_LIMIT_MAX) {
        return lieni_mem_fail(root, LIEN_EINVAL, "pool limit %zu: must be 1 .. %zu", opts->limit,
                              LIENI_LIMIT_MAX);
    }
    if (opts->reserve == SIZE_MAX) {
        opts->reserve = opts->limit / 8 / LIENI_PAGE * LIENI_PAGE;
    }
    if (opts->reserve > opts->limit) {
        return lieni_mem_fail(root, LIEN_EINVAL, "pool reserve %zu is above its limit %zu",
                              opts->reserve, opts->limit);
    }
    if (opts->reuse > LIEN_REUSE_PEER) {
        return lieni_mem_fail(root, LIEN_EINVAL, "pool reuse %u: unknown", (unsigned)opts->reuse);
    }
    if (opts->expose_max > opts->limit) {
        return lieni_mem_fail(root, LIEN_EINVAL, "pool expose_max %zu is above its limit %zu",
                              opts->expose_max, opts->limit);
    }
    if (opts->populate > opts->limit) {
        return lieni_mem_fail(root, LIEN_EINVAL, "pool populate %zu is above its limit %zu",
                              opts->populate, opts->limit);
    }
    return lieni_numa_check(root, opts->numa_node);
}

static lien_pool *pool_new(struct lieni_mem_root *root, const lien_pool_opts *opts)
{
    lien_pool *pool = calloc(1, sizeof *pool);
    if (!pool) {
        return NULL;
    }
    pool->root = root;
    pool->flags = opts->flags;
    pool->guarded = opts->flags & LIEN_GUARD ||
                    (root->args.guard && !(opts->flags & LIEN_UNGUARDED));
    pool->node = opts->numa_node;
    pool->reuse = opts->reuse;
    // Whole pages, as buffers are counted: so it is at least the smallest buffer.
    pool->expose_max = pages_up(opts->expose_max ? opts->expose_max : opts->limit - opts->limit / 2,
                                LIENI_PAGE);
    pool->limit = pages_up(opts->limit, LIENI_PAGE);
    pool->reserve = pages_up(opts->reserve, LIENI_PAGE);
    pool->page = opts->flags & LIEN_HUGE_PAGES ? lieni_huge_page() : LIENI_PAGE;
    lieni_list_init(&pool->link);
    lieni_list_init(&pool->chunks);
    for (size_t i = 0; i < LIENI_BINS; i++) {
        lieni_list_init(&pool->bins[i]);
    }
    return pool;
}

static int add_mapped(lien_pool *pool, size_t len, bool populate)
{
    struct lieni_chunk *chunk;
    int rc = lieni_chunk_map(pool, len, false, populate, &chunk);
    if (rc) {
        return rc;
    }
    lieni_pool_add_chunk(pool, chunk);
    return 0;
}

// Maps and touches `populate` bytes. Nobody knows the pool yet, so this needs no lock, however long it takes.
static int fill(lien_pool *pool, size_t populate)
{
    if (populate == 0 && pool->flags & LIEN_HUGE_PAGES) {
        populate = 1; // to learn now whether the system has any
    }
    while (populate > 0) {
        size_t len = pages_up(smaller(populate, LIENI_CHUNK_MAX), pool->page);
        int rc = add_mapped(pool, len, true);
        if (rc) {
            return rc;
        }
        populate -= smaller(populate, len);
    }
    return 0;
}

// The chunks of a pool that nobody knows: not by the root's list of graves, which needs the lock.
static void unfill(lien_pool *pool)
{
    struct lieni_node *node;
    while ((node = lieni_list_pop(&pool->chunks))) {
        struct lieni_chunk *chunk = lieni_container(node, struct lieni_chunk, link);
        free(chunk->first);
        lieni_chunk_bury(chunk);
    }
}

static int pool_make(struct lieni_mem_root *root, const lien_pool_opts *given, lien_pool **out)
{
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    int rc = lieni_mem_opts_take(root, &opts, sizeof opts, given);
    rc = rc ? rc : opts_check(root, &opts);
    if (rc) {
        return rc;
    }
    lien_pool *pool = pool_new(root, &opts);
    if (!pool) {
        return LIEN_ENOMEM;
    }
    if (pool->guarded) {
        lieni_guard_watch();
    }
    rc = fill(pool, opts.populate);
    if (rc) {
        unfill(pool);
        free(pool);
        return rc;
    }
    *out = pool;
    return 0;
}

int lieni_pool_open_locked(struct lieni_mem_root *root, const lien_pool_opts *opts, lien_pool **out)
{
    lieni_mem_assert_locked(root);
    int rc = pool_make(root, opts, out);
    lieni_mem_reap(root);
    if (rc == 0) {
        lieni_list_append(&root->pools, &(*out)->link);
    }
    return rc;
}

// -- Who may have memory ---------------------------------------------------------------------------

static size_t waiter_bytes(const struct lieni_pool_wait *wait)
{
    return pages_up(wait->len, LIENI_PAGE);
}

static bool needs_shared(const lien_pool *pool, size_t bytes)
{
    return pool->out_received + bytes > pool->reserve;
}

// Whether there is room for `bytes`, and nobody who has waited longer must go first.
static bool may_go(const lien_pool *pool, size_t bytes, bool received, uint64_t ticket)
{
    const struct lieni_pool_wait *own = received ? pool->received.head : pool->plain.head;
    const struct lieni_pool_wait *other = received ? pool->plain.head : pool->received.head;
    if (own && own->ticket < ticket) {
        return false;
    }
    if (received) {
        if (!needs_shared(pool, bytes)) {
            return true;
        }
        return !(other && other->ticket < ticket) &&
               bytes <= pool->limit - pool->out_plain - pool->out_received;
    }
    if (other && other->ticket < ticket && needs_shared(pool, waiter_bytes(other))) {
        return false;
    }
    size_t taken = pool->out_received > pool->reserve ? pool->out_received - pool->reserve : 0;
    return bytes <= pool->limit - pool->reserve - pool->out_plain - taken;
}

// -- Where it comes from ---------------------------------------------------------------------------

// Bytes the pool may map for this kind of request.
static size_t map_limit(const lien_pool *pool, bool received)
{
    size_t most = 2 * pool->limit - (received ? 0 : pool->reserve + pool->reserve / 2);
    return pages_up(most, pool->page);
}

// A chunk with room for `need` bytes: as large as the pool's use suggests, at most what its limit leaves.
static int grow(lien_pool *pool, size_t need, bool received)
{
    size_t least = pages_up(need, pool->page);
    size_t len = pool->class_mapped;
    len = len < LIENI_CHUNK_MIN ? LIENI_CHUNK_MIN : smaller(len, LIENI_CHUNK_MAX);
    if (pool->mapped + least > pool->limit && pool->empty) {
        lieni_pool_trim(pool, false);
    }
    len = smaller(len, pool->limit > pool->mapped ? pool->limit - pool->mapped : 0);
    len = pages_up(len, pool->page);
    len = len < least ? least : len;
    if (pool->mapped + len > map_limit(pool, received)) {
        return LIEN_ELIMIT;
    }
    return add_mapped(pool, len, false);
}

static int block_single(lien_pool *pool, size_t bytes, bool received, struct lieni_block **out)
{
    size_t len = pages_up(bytes, pool->page);
    if (pool->mapped + len > pool->limit && pool->empty) {
        lieni_pool_trim(pool, false);
    }
    if (pool->mapped + len > map_limit(pool, received)) {
        return LIEN_ELIMIT;
    }
    struct lieni_chunk *chunk;
    int rc = lieni_chunk_map(pool, len, true, false, &chunk);
    if (rc) {
        return rc;
    }
    chunk->used = 1;
    chunk->first->used = true;
    lieni_pool_add_chunk(pool, chunk);
    *out = chunk->first;
    return 0;
}

static int block_for(lien_pool *pool, size_t bytes, bool received, struct lieni_block **out)
{
    if (bytes > LIENI_CLASS_MAX) {
        return block_single(pool, bytes, received, out);
    }
    size_t pages = lieni_class_pages(bytes / LIENI_PAGE);
    struct lieni_block *block = lieni_block_take(pool, pages);
    if (!block) {
        int rc = grow(pool, pages * LIENI_PAGE, received);
        if (rc) {
            return rc;
        }
        block = lieni_block_take(pool, pages);
    }
    *out = block;
    return 0;
}

// A buffer for a request that may go. LIEN_ELIMIT: holes take up what may be mapped.
static int place(lien_pool *pool, size_t len, bool received, lien_buf **out)
{
    size_t bytes = pages_up(len, LIENI_PAGE);
    struct lieni_block *block;
    int rc = block_for(pool, bytes, received, &block);
    if (rc) {
        return rc;
    }
    struct lieni_chunk *chunk = block->chunk;
    lien_buf *buf = lieni_buf_new(pool->root, chunk, chunk->base + block->page * LIENI_PAGE, len,
                                  bytes);
    if (!buf) {
        lieni_block_free(pool, block);
        return LIEN_ENOMEM;
    }
    buf->block = block;
    buf->received = received;
    size_t old = lieni_block_hand_out(block);
    if (pool->flags & LIEN_ZERO) { // what its last holder left [R16]
        lieni_buf_owes(buf, old < bytes ? old : bytes);
    }
    *(received ? &pool->out_received : &pool->out_plain) += bytes;
    pool->root->bytes_out += bytes;
    *out = buf;
    return 0;
}

// What no waiting can help. `len` was given by a caller.
int lieni_pool_request_check(lien_pool *pool, size_t len, bool received)
{
    size_t most = pool->limit - (received ? 0 : pool->reserve);
    if (pool->closed) {
        return lieni_mem_fail(pool->root, LIEN_ESTATE, "allocation from a closed pool");
    }
    if (len == 0) {
        return lieni_mem_fail(pool->root, LIEN_EINVAL, "a buffer of 0 bytes");
    }
    if (len > most) {
        return lieni_mem_fail(pool->root, LIEN_EMSGSIZE,
                              "a buffer of %zu bytes is above the pool's %zu (limit %zu%s)", len,
                              most, pool->limit, received ? "" : " less its reserve");
    }
    return 0;
}

static int alloc_now(lien_pool *pool, size_t len, bool received, lien_buf **out)
{
    int rc = lieni_pool_request_check(pool, len, received);
    if (rc) {
        return rc;
    }
    if (!may_go(pool, pages_up(len, LIENI_PAGE), received, UINT64_MAX)) {
        return LIEN_ELIMIT;
    }
    return place(pool, len, received, out);
}

int lieni_pool_alloc_locked(lien_pool *pool, size_t len, lien_buf **out)
{
    lieni_mem_assert_locked(pool->root);
    int rc = alloc_now(pool, len, false, out);
    if (rc == 0) {
        lieni_buf_wipe(*out); // the ctx's own slabs: of a pool without LIEN_ZERO
    }
    lieni_mem_reap(pool->root);
    return rc;
}

int lieni_pool_alloc_reserved(lien_pool *pool, size_t len, lien_buf **out)
{
    lieni_mem_assert_locked(pool->root);
    int rc = alloc_now(pool, len, true, out);
    lieni_mem_reap(pool->root);
    return rc;
}

int lien_pool_alloc(lien_pool *pool, size_t len, lien_buf **out)
{
    if (!pool || !out) {
        return LIEN_EINVAL;
    }
    struct lieni_mem_root *root = pool->root;
    if (lieni_mem_forked(root)) {
        return LIEN_EFORK;
    }
    lien_buf *buf;
    lieni_mem_enter(root);
    int rc = lieni_mem_done(root, alloc_now(pool, len, false, &buf));
    if (rc == 0) {
        lieni_buf_wipe(buf);
        *out = buf;
    }
    return rc;
}

// -- Waiting ---------------------------------------------------------------------------------------

static struct lieni_waiters *queue_of(lien_pool *pool, const struct lieni_pool_wait *wait)
{
    return wait->reserved ? &pool->received : &pool->plain;
}

static void queue_put(lien_pool *pool, struct lieni_pool_wait *wait)
{
    struct lieni_waiters *queue = queue_of(pool, wait);
    wait->pool = pool;
    wait->ticket = pool->tickets++;
    wait->next = NULL;
    wait->prev = queue->tail;
    *(queue->tail ? &queue->tail->next : &queue->head) = wait;
    queue->tail = wait;
}

static void queue_out(struct lieni_pool_wait *wait)
{
    struct lieni_waiters *queue = queue_of(wait->pool, wait);
    *(wait->prev ? &wait->prev->next : &queue->head) = wait->next;
    *(wait->next ? &wait->next->prev : &queue->tail) = wait->prev;
    wait->prev = NULL;
    wait->next = NULL;
    wait->pool = NULL;
}

// Serves the first of a queue. False: none, or not now.
static bool serve_one(lien_pool *pool, struct lieni_pool_wait *wait)
{
    if (!wait || !may_go(pool, waiter_bytes(wait), wait->reserved, wait->ticket)) {
        return false;
    }
    lien_buf *buf = NULL;
    int rc = place(pool, wait->len, wait->reserved, &buf);
    if (rc == LIEN_ELIMIT) {
        return false;
    }
    queue_out(wait);
    wait->ready(wait, buf, rc);
    lieni_mem_changed(pool->root);
    return true;
}

static void pool_let_go(lien_pool *pool)
{
    if (--pool->holds == 0 && pool->closed && lieni_list_empty(&pool->chunks)) {
        lieni_list_remove(&pool->link);
        free(pool);
    }
}

// Hands out what can be handed out, in order. `ready` may come back here: then the outer call goes on.
static void serve(lien_pool *pool)
{
    if (pool->serving) {
        return;
    }
    pool->serving = true;
    pool->holds++;
    while (serve_one(pool, pool->received.head) || serve_one(pool, pool->plain.head)) {
    }
    pool->serving = false;
    pool_let_go(pool);
}

void lieni_pool_home(lien_pool *pool, struct lieni_block *block, size_t cap, bool received)
{
    pool->holds++;
    *(received ? &pool->out_received : &pool->out_plain) -= cap;
    pool->root->bytes_out -= cap;
    lieni_block_free(pool, block);
    serve(pool);
    pool_let_go(pool);
}

static void wait_start(lien_pool *pool, struct lieni_pool_wait *wait, bool reserved)
{
    int rc = lieni_pool_request_check(pool, wait->len, reserved);
    wait->reserved = reserved;
    wait->pool = NULL;
    if (rc) {
        wait->ready(wait, NULL, rc);
        return;
    }
    queue_put(pool, wait);
    serve(pool);
}

void lieni_pool_wait_start(lien_pool *pool, struct lieni_pool_wait *wait)
{
    struct lieni_mem_root *root = pool->root;
    lieni_mem_assert_locked(root);
    wait_start(pool, wait, true);
    lieni_mem_reap(root);
}

void lieni_pool_wait_plain(lien_pool *pool, struct lieni_pool_wait *wait)
{
    wait_start(pool, wait, false);
}

void lieni_pool_wait_stop(struct lieni_pool_wait *wait)
{
    lien_pool *pool = wait->pool;
    if (!pool) {
        return;
    }
    lieni_mem_assert_locked(pool->root);
    queue_out(wait);
    serve(pool); // those behind it
}

// -- Close -----------------------------------------------------------------------------------------

static void pool_close(lien_pool *pool)
{
    pool->closed = true;
    pool->holds++;
    struct lieni_pool_wait *wait;
    while ((wait = pool->plain.head ? pool->plain.head : pool->received.head)) {
        queue_out(wait);
        wait->ready(wait, NULL, LIEN_ECANCELED);
    }
    lieni_mem_changed(pool->root);
    if (pool->strand) {
        lieni_strand_close(pool->strand);
        pool->strand = NULL;
    }
    lieni_pool_trim(pool, true);
    pool_let_go(pool);
}

void lieni_pool_close_locked(lien_pool *pool)
{
    struct lieni_mem_root *root = pool->root;
    lieni_mem_assert_locked(root);
    if (pool->closed) {
        lieni_mem_fail(root, LIEN_ESTATE, "a pool is closed twice");
        return;
    }
    pool_close(pool);
    lieni_mem_reap(root);
}

int lien_pool_open(lien_ctx *ctx, const lien_pool_opts *opts, lien_pool **out)
{
    if (!ctx || !out) {
        return LIEN_EINVAL;
    }
    struct lieni_mem_root *root = lieni_ctx_mem(ctx);
    if (lieni_mem_forked(root)) {
        return LIEN_EFORK;
    }
    lien_pool *pool;
    int rc = pool_make(root, opts, &pool);
    lieni_mem_enter(root);
    if (rc == 0) {
        lieni_list_append(&root->pools, &pool->link);
        *out = pool;
    }
    return lieni_mem_done(root, rc);
}

int lien_pool_close(lien_pool **slot)
{
    lien_pool *pool = slot ? *slot : NULL;
    if (!pool) {
        return LIEN_EINVAL;
    }
    struct lieni_mem_root *root = pool->root;
    if (lieni_mem_forked(root)) {
        return LIEN_EFORK;
    }
    lieni_mem_enter(root);
    if (pool->closed) {
        return lieni_mem_done(root,
                              lieni_mem_fail(root, LIEN_ESTATE, "the pool is closed already"));
    }
    *slot = NULL;
    pool_close(pool);
    return lieni_mem_done(root, 0);
}

bool lieni_pool_in_ctx(const lien_pool *pool, const struct lieni_mem_root *root)
{
    return pool && pool->root == root;
}

uint64_t lieni_pool_limit(const lien_pool *pool)
{
    return pool->limit;
}

void lieni_pool_ref(lien_pool *pool)
{
    if (pool) {
        lieni_mem_assert_locked(pool->root);
        pool->holds++;
    }
}

void lieni_pool_unref(lien_pool *pool)
{
    if (pool) {
        lieni_mem_assert_locked(pool->root);
        pool_let_go(pool);
    }
}
