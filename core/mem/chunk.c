// SPDX-License-Identifier: Apache-2.0
//
// Mapped memory and its blocks. Owns chunks from mmap to munmap. Under the state lock, but for
// lieni_chunk_map and lieni_chunk_bury, which touch nothing shared.
//
// Blocks are split and merged as in TLSF (Masmano et al. 2004): free blocks hang in bins, four to each
// power of two, with one bit for each bin, so both ways take a bounded number of steps. A request is rounded up to
// its class, so every block of its bin fits and equal requests reuse each other's blocks; the tail
// (under a quarter) is address space that is not touched. Neighbours that are free are merged at
// once, so an empty chunk is one block.

#include "core/mem/impl.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024

// -- Mapping ---------------------------------------------------------------------------------------

size_t lieni_huge_page(void)
{
    static _Atomic size_t known;
    size_t size = atomic_load_explicit(&known, memory_order_relaxed);
    if (size) {
        return size;
    }
    size = (size_t)2 << 20;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file) {
        char line[128];
        size_t kib;
        while (fgets(line, sizeof line, file)) {
            if (sscanf(line, "Hugepagesize: %zu kB", &kib) == 1 && kib >= 4) {
                size = kib << 10;
            }
        }
        fclose(file);
    }
    atomic_store_explicit(&known, size, memory_order_relaxed);
    return size;
}

// Prefers `node` for pages not touched yet. Not MPOL_BIND, which kills processes when a node is full.
static int prefer_node(void *base, size_t len, int node)
{
    unsigned long mask[NODES_MAX / (8 * sizeof(unsigned long))] = {0};
    size_t bits = 8 * sizeof(unsigned long);
    mask[(size_t)node / bits] = 1ul << ((size_t)node % bits);
    // The kernel wants one more than the number of bits.
    return (int)syscall(SYS_mbind, base, len, MPOL_PREFERRED, mask, (unsigned long)NODES_MAX + 1,
                        0u);
}

int lieni_numa_check(struct lieni_mem_root *root, int node)
{
    if (node == -1) {
        return 0;
    }
    if (node < -1 || node >= NODES_MAX) {
        return lieni_mem_fail(root, LIEN_EINVAL,
                              "numa_node %d: must be -1 (any) or a node below %d", node, NODES_MAX);
    }
    void *probe = mmap(NULL, LIENI_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                       0);
    if (probe == MAP_FAILED) {
        return LIEN_ENOMEM;
    }
    int failed = prefer_node(probe, LIENI_PAGE, node) ? errno : 0;
    munmap(probe, LIENI_PAGE);
    if (failed) {
        return lieni_mem_fail(root, failed == EINVAL ? LIEN_EINVAL : LIEN_ENOTSUP,
                              "numa_node %d cannot be used here: mbind: %s", node,
                              strerror(failed));
    }
    return 0;
}

// False: there is not so much memory (errno). Kernels before 5.14 are touched by hand.
static bool touch(uint8_t *base, size_t len)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(base, len, MADV_POPULATE_WRITE) == 0) {
        return true;
    }
    if (errno != EINVAL) {
        return false;
    }
#endif
    for (size_t i = 0; i < len; i += LIENI_PAGE) {
        ((volatile uint8_t *)base)[i] = 0;
    }
    return true;
}

struct lieni_chunk *lieni_chunk_new(struct lieni_mem_root *root, void *base, size_t len)
{
    struct lieni_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk) {
        chunk->root = root;
        chunk->base = base;
        chunk->app = base;
        chunk->len = len;
        lieni_list_init(&chunk->link);
        lieni_list_init(&chunk->regions);
    }
    return chunk;
}

// A mapping of a pool's own kind: `fd` is -1 if it is to be the only one.
static uint8_t *map_one(const lien_pool *pool, size_t len, int fd)
{
    bool huge = pool->flags & LIEN_HUGE_PAGES;
    // Huge pages are reserved here, so that a lack of them shows now and not as SIGBUS.
    int kind = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | (huge ? MAP_HUGETLB : 0);
    void *base = mmap(NULL, len, PROT_READ | PROT_WRITE, kind | (huge ? 0 : MAP_NORESERVE), fd, 0);
    if (base == MAP_FAILED) {
        char hint[LIENI_LIMITS_NOTE];
        const int error = errno;
        lieni_mem_fail(pool->root, LIEN_ENOMEM, "mmap of %zu bytes%s: %s%s", len,
                       huge ? " on huge pages" : "", strerror(error),
                       lieni_limits_note(error, hint, sizeof hint));
        return NULL;
    }
    // A child must never share these pages: copy on write would take them away under a DMA.
    if (madvise(base, len, MADV_DONTFORK) != 0) {
        lieni_mem_fail(pool->root, LIEN_ENOMEM, "madvise(MADV_DONTFORK) of %zu bytes: %s", len,
                       strerror(errno));
        munmap(base, len);
        return NULL;
    }
    return base;
}

// What a guarded chunk maps twice. -1: cannot be had.
static int guarded_file(const lien_pool *pool, size_t len)
{
    struct rlimit most;
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && len > most.rlim_cur) { // growing it would be SIGXFSZ
        lieni_mem_fail(pool->root, LIEN_ENOMEM,
                       "a guarded pool needs a file of %zu bytes, RLIMIT_FSIZE is %llu", len,
                       (unsigned long long)most.rlim_cur);
        return -1;
    }
    unsigned huge = pool->flags & LIEN_HUGE_PAGES ? MFD_HUGETLB : 0;
    int fd = memfd_create("lien-pool", MFD_CLOEXEC | huge);
    if (fd < 0 || ftruncate(fd, (off_t)len) != 0) {
        char hint[LIENI_LIMITS_NOTE];
        const int error = errno;
        lieni_mem_fail(pool->root, LIEN_ENOMEM, "a guarded pool's memfd of %zu bytes: %s%s", len,
                       strerror(error), lieni_limits_note(error, hint, sizeof hint));
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    return fd;
}

static void chunk_unmap(struct lieni_chunk *chunk)
{
    if (chunk->range) {
        lieni_guard_range_drop(chunk);
    }
    if (chunk->app && chunk->app != chunk->base) {
        munmap(chunk->app, chunk->len);
    }
    munmap(chunk->base, chunk->len);
}

// Fills in base and app.
static int chunk_map(const lien_pool *pool, struct lieni_chunk *chunk, bool single)
{
    int fd = pool->guarded ? guarded_file(pool, chunk->len) : -1;
    if (pool->guarded && fd < 0) {
        return LIEN_ENOMEM;
    }
    chunk->base = map_one(pool, chunk->len, fd);
    chunk->app = chunk->base && pool->guarded ? map_one(pool, chunk->len, fd) : chunk->base;
    if (fd >= 0) {
        close(fd);
    }
    if (!chunk->base) {
        return LIEN_ENOMEM;
    }
    if (!chunk->app || (pool->guarded && lieni_guard_range_add(chunk, single) != 0)) {
        chunk_unmap(chunk);
        return LIEN_ENOMEM;
    }
    return 0;
}

static int chunk_fill(const lien_pool *pool, struct lieni_chunk *chunk, bool populate)
{
    size_t len = chunk->len;
    if (pool->node >= 0 && prefer_node(chunk->base, len, pool->node) != 0) {
        return lieni_mem_fail(pool->root, LIEN_ENOMEM, "mbind of %zu bytes to node %d: %s", len,
                              pool->node, strerror(errno));
    }
    if (populate &&
        (!touch(chunk->base, len) || (chunk->app != chunk->base && !touch(chunk->app, len)))) {
        return lieni_mem_fail(pool->root, LIEN_ENOMEM, "populating %zu bytes: %s", len,
                              strerror(errno));
    }
    return 0;
}

int lieni_chunk_map(const lien_pool *pool, size_t len, bool single, bool populate,
                    struct lieni_chunk **out)
{
    struct lieni_block *block = calloc(1, sizeof *block);
    struct lieni_chunk *chunk = lieni_chunk_new(pool->root, NULL, len);
    if (!block || !chunk || chunk_map(pool, chunk, single) != 0) {
        goto free_structs;
    }
    if (chunk_fill(pool, chunk, populate) != 0) {
        goto unmap;
    }
    chunk->page = pool->page;
    chunk->mapped = true;
    chunk->single = single;
    chunk->populated = populate;
    chunk->first = block;
    *block = (struct lieni_block){.chunk = chunk, .pages = len / LIENI_PAGE};
    lieni_list_init(&block->bin);
    *out = chunk;
    return 0;
unmap:
    chunk_unmap(chunk);
free_structs:
    free(block);
    free(chunk);
    return LIEN_ENOMEM;
}

void lieni_chunk_bury(struct lieni_chunk *graves)
{
    while (graves) {
        struct lieni_chunk *next = graves->grave_next;
        chunk_unmap(graves);
        free(graves);
        graves = next;
    }
}

// -- Release ---------------------------------------------------------------------------------------

static void chunk_gone(struct lieni_chunk *chunk)
{
    if (chunk->mapped) {
        chunk->grave_next = chunk->root->graves;
        chunk->root->graves = chunk;
    } else {
        free(chunk);
    }
}

void lieni_chunk_release(struct lieni_chunk *chunk)
{
    lieni_list_remove(&chunk->link);
    chunk->pool = NULL;
    chunk->mem = NULL;
    free(chunk->first); // the one block an empty chunk has; NULL for the application's
    chunk->first = NULL;
    if (chunk->pins == 0 && lieni_regions_close(chunk) && chunk->used == 0) {
        chunk_gone(chunk);
        return;
    }
    chunk->doomed = true;
    if (chunk->pins == 0 && !lieni_list_empty(&chunk->regions)) {
        chunk->counted = true;
        chunk->root->bytes_lost += chunk->len;
    }
    lieni_list_append(&chunk->root->kept, &chunk->link);
}

void lieni_chunk_settle(struct lieni_chunk *chunk)
{
    if (!chunk->doomed || chunk->used || chunk->pins || !lieni_list_empty(&chunk->regions)) {
        return;
    }
    if (chunk->counted) {
        chunk->root->bytes_lost -= chunk->len;
    }
    lieni_list_remove(&chunk->link);
    chunk_gone(chunk);
}

// -- Blocks ----------------------------------------------------------------------------------------

static unsigned log2_of(size_t n)
{
    return (unsigned)(8 * sizeof(unsigned long) - 1) - (unsigned)__builtin_clzl(n);
}

size_t lieni_class_pages(size_t pages)
{
    unsigned log = log2_of(pages);
    if (log < 2) {
        return pages;
    }
    size_t step = (size_t)1 << (log - 2);
    return (pages + step - 1) & ~(step - 1);
}

// The bin of the largest class that a block of `pages` can serve.
static unsigned bin_of(size_t pages)
{
    unsigned log = log2_of(pages);
    unsigned bin = log * 4 + (unsigned)(((pages - ((size_t)1 << log)) * 4) >> log);
    return bin < LIENI_BINS ? bin : LIENI_BINS - 1;
}

static void bin_put(lien_pool *pool, struct lieni_block *block)
{
    unsigned bin = bin_of(block->pages);
    block->used = false;
    lieni_list_append(&pool->bins[bin], &block->bin);
    pool->filled |= (uint64_t)1 << bin;
    pool->steps++;
}

static void bin_out(lien_pool *pool, struct lieni_block *block)
{
    unsigned bin = bin_of(block->pages);
    lieni_list_remove(&block->bin);
    if (lieni_list_empty(&pool->bins[bin])) {
        pool->filled &= ~((uint64_t)1 << bin);
    }
    pool->steps++;
}

static void split(lien_pool *pool, struct lieni_block *block, size_t pages)
{
    struct lieni_block *rest = malloc(sizeof *rest);
    if (!rest) {
        return; // the buffer gets the whole block
    }
    *rest = (struct lieni_block){.chunk = block->chunk,
                                 .page = block->page + pages,
                                 .pages = block->pages - pages,
                                 .before = block,
                                 .after = block->after};
    lieni_list_init(&rest->bin);
    if (rest->after) {
        rest->after->before = rest;
    }
    block->after = rest;
    block->pages = pages;
    bin_put(pool, rest);
}

void lieni_pool_add_chunk(lien_pool *pool, struct lieni_chunk *chunk)
{
    chunk->pool = pool;
    lieni_list_append(&pool->chunks, &chunk->link);
    pool->mapped += chunk->len;
    if (chunk->single) {
        return;
    }
    pool->class_mapped += chunk->len;
    pool->empty++;
    bin_put(pool, chunk->first);
}

struct lieni_block *lieni_block_take(lien_pool *pool, size_t pages)
{
    uint64_t fit = pool->filled & (~(uint64_t)0 << bin_of(pages));
    if (!fit) {
        return NULL;
    }
    struct lieni_node *node = lieni_list_first(&pool->bins[__builtin_ctzll(fit)]);
    struct lieni_block *block = lieni_container(node, struct lieni_block, bin);
    bin_out(pool, block);
    block->used = true;
    if (block->chunk->used++ == 0) {
        pool->empty--;
    }
    if (block->pages > pages) {
        split(pool, block, pages);
    }
    return block;
}

// Blocks are cut off at their start, so what was never handed out is mostly a chunk's end: one number for each chunk knows it.
size_t lieni_block_hand_out(struct lieni_block *block)
{
    struct lieni_chunk *chunk = block->chunk;
    const size_t end = block->page + block->pages;
    const size_t before = chunk->handed_out < end ? chunk->handed_out : end;
    if (chunk->handed_out < end) {
        chunk->handed_out = end;
    }
    return before > block->page ? (before - block->page) * LIENI_PAGE : 0;
}

// `second` follows `first`; both are out of the bins.
static struct lieni_block *merge(struct lieni_block *first, struct lieni_block *second)
{
    first->pages += second->pages;
    first->after = second->after;
    if (first->after) {
        first->after->before = first;
    }
    free(second);
    return first;
}

static void pool_drop_chunk(lien_pool *pool, struct lieni_chunk *chunk)
{
    pool->mapped -= chunk->len;
    if (!chunk->single) {
        pool->class_mapped -= chunk->len;
    }
    lieni_chunk_release(chunk);
}

void lieni_block_free(lien_pool *pool, struct lieni_block *block)
{
    struct lieni_chunk *chunk = block->chunk;
    chunk->used--;
    if (chunk->single) {
        pool_drop_chunk(pool, chunk);
        return;
    }
    if (block->before && !block->before->used) {
        bin_out(pool, block->before);
        block = merge(block->before, block);
    }
    if (block->after && !block->after->used) {
        bin_out(pool, block->after);
        block = merge(block, block->after);
    }
    if (chunk->used == 0 && pool->closed) {
        pool_drop_chunk(pool, chunk);
        return;
    }
    pool->empty += chunk->used == 0;
    bin_put(pool, block);
}

// Gives empty chunks back; `all`: those populated on request too.
void lieni_pool_trim(lien_pool *pool, bool all)
{
    struct lieni_node *next;
    for (struct lieni_node *node = lieni_list_first(&pool->chunks); node && pool->empty;
         node = next) {
        next = lieni_list_next(&pool->chunks, node);
        struct lieni_chunk *chunk = lieni_container(node, struct lieni_chunk, link);
        if (chunk->used || chunk->single || (chunk->populated && !all)) {
            continue;
        }
        bin_out(pool, chunk->first);
        pool->empty--;
        pool_drop_chunk(pool, chunk);
    }
}

// -- For observers ---------------------------------------------------------------------------------

// Among the chunks of a list. NULL: in none.
static const void *in_chunks(const struct lieni_node *head, const uint8_t *addr)
{
    for (struct lieni_node *n = head->next; n != head; n = n->next) {
        const struct lieni_chunk *chunk = lieni_container(n, struct lieni_chunk, link);
        if (addr >= chunk->app && addr < chunk->app + chunk->len)
            return chunk->base + (addr - chunk->app);
    }
    return NULL;
}

const void *lieni_mem_provider_addr(const struct lieni_mem_root *root, const void *addr)
{
    const void *found = in_chunks(&root->kept, addr);
    const struct lieni_node *head = &root->pools;
    for (struct lieni_node *n = head->next; n != head && !found; n = n->next)
        found = in_chunks(&lieni_container(n, lien_pool, link)->chunks, addr);
    return found;
}
