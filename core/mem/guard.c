// SPDX-License-Identifier: Apache-2.0
//
// Guard mode: what the application's mapping of a lent buffer allows (design.md 3). Under the state lock. The
// provider's mapping of the same pages is never touched.
//
// Whole blocks are protected, never less: no two buffers share a page, and neighbours with equal protection share
// a kernel mapping. Each border between blocks of unequal protection costs one mapping more; those are counted for the
// process, and protection stops at a share of vm.max_map_count that leaves the rest to the application. What cannot be protected
// is counted and goes on unprotected. Opening must not fail: if the kernel cannot split a mapping to open one block, the
// whole chunk is opened, which only merges.
//
// Under AddressSanitizer a shut block is poisoned besides: poison names the access with its stack, needs no mappings, and
// covers what its interceptors look at. mprotect stays: poison cannot allow reading alone, code without instrumentation does not
// look at it, and interceptors of system calls only look after the kernel has done the harm.

#include "core/mem/impl.h"

#include <stdio.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASAN 1
#endif
#endif
#ifdef ASAN
#include <sanitizer/asan_interface.h>
#endif

_Atomic size_t lieni_guard_maps_most;
_Atomic size_t lieni_guard_maps;

// The child has none of the pools' mappings.
void lieni_guard_in_child(void)
{
    atomic_store(&lieni_guard_maps, 0);
}

static size_t maps_most(void)
{
    size_t most = atomic_load_explicit(&lieni_guard_maps_most, memory_order_relaxed);
    if (most) {
        return most;
    }
    size_t max = 65530; // the kernel's default
    FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
    if (file) {
        if (fscanf(file, "%zu", &max) != 1 || max < 4) {
            max = 65530;
        }
        fclose(file);
    }
    most = max / 4 * 3;
    atomic_store_explicit(&lieni_guard_maps_most, most, memory_order_relaxed);
    return most;
}

static enum lieni_guard wanted(enum lieni_buf_state state)
{
    switch (state) {
    case LIENI_BUF_IDLE:
        return LIENI_GUARD_OPEN;
    case LIENI_BUF_BORROWED:
        return LIENI_GUARD_READ;
    case LIENI_BUF_TARGET:
    case LIENI_BUF_LOST:
        return LIENI_GUARD_SHUT;
    }
    return LIENI_GUARD_SHUT;
}

static int prot_of(enum lieni_guard guard)
{
    switch (guard) {
    case LIENI_GUARD_OPEN:
        return PROT_READ | PROT_WRITE;
    case LIENI_GUARD_READ:
        return PROT_READ;
    case LIENI_GUARD_SHUT:
        return PROT_NONE;
    }
    return PROT_NONE;
}

static void poison(const lien_buf *buf, bool on)
{
#ifdef ASAN
    size_t len = buf->block->pages * LIENI_PAGE;
    if (on) {
        ASAN_POISON_MEMORY_REGION(buf->app, len);
    } else {
        ASAN_UNPOISON_MEMORY_REGION(buf->app, len);
    }
#else
    (void)buf;
    (void)on;
#endif
}

// The whole pages (huge ones, in a chunk of those) within the buffer's block.
static size_t range_of(const lien_buf *buf, uint8_t **start)
{
    const struct lieni_chunk *chunk = buf->chunk;
    size_t from = buf->block->page * LIENI_PAGE;
    size_t to = from + buf->block->pages * LIENI_PAGE;
    from = (from + chunk->page - 1) / chunk->page * chunk->page;
    to = to / chunk->page * chunk->page;
    *start = chunk->app + from;
    return to > from ? to - from : 0;
}

// Borders between `block`, if it were `guard`, and its neighbours. On huge pages parts of it stay open at either side.
static unsigned borders(const struct lieni_block *block, enum lieni_guard guard)
{
    if (block->chunk->page != LIENI_PAGE) {
        return guard == LIENI_GUARD_OPEN ? 0 : 2;
    }
    unsigned n = block->before && block->before->guard != guard;
    return block->after && block->after->guard != guard ? n + 1 : n;
}

static bool change(const lien_buf *buf, enum lieni_guard want)
{
    struct lieni_block *block = buf->block;
    size_t less = borders(block, block->guard), more = borders(block, want);
    size_t maps = atomic_load_explicit(&lieni_guard_maps, memory_order_relaxed);
    if (want > block->guard && more > less && maps + more - less > maps_most()) {
        return false;
    }
    uint8_t *start;
    size_t len = range_of(buf, &start);
    if (len == 0 || mprotect(start, len, prot_of(want)) != 0) {
        return false;
    }
    // Unsigned, so the difference may be negative; the sum is not.
    atomic_fetch_add_explicit(&lieni_guard_maps, more - less, memory_order_relaxed);
    block->guard = want;
    return true;
}

// `own` is the block that is loosened, so it is not counted.
static void open_chunk(struct lieni_chunk *chunk, const struct lieni_block *own)
{
    struct lieni_mem_root *root = chunk->root;
    if (mprotect(chunk->app, chunk->len, PROT_READ | PROT_WRITE) != 0) {
        lieni_mem_fail(root, LIEN_ENOMEM,
                       "the kernel does not open %zu guarded bytes again: access to them faults",
                       chunk->len);
        return;
    }
    size_t gone = 0;
    for (struct lieni_block *block = chunk->first; block; block = block->after) {
        gone += borders(block, block->guard);
        root->guard_skipped += block->guard != LIENI_GUARD_OPEN && block != own;
    }
    // Seen from both sides, but on huge pages from inside.
    gone /= chunk->page == LIENI_PAGE ? 2 : 1;
    for (struct lieni_block *block = chunk->first; block; block = block->after) {
        block->guard = LIENI_GUARD_OPEN;
    }
    atomic_fetch_sub_explicit(&lieni_guard_maps, gone, memory_order_relaxed);
}

void lieni_guard_loosen(lien_buf *buf, enum lieni_buf_state to)
{
    enum lieni_guard want = wanted(to);
    if (want != LIENI_GUARD_SHUT) {
        poison(buf, false);
    }
    if (want < buf->block->guard && !change(buf, want)) {
        open_chunk(buf->chunk, buf->block);
    }
    if (want == LIENI_GUARD_OPEN) {
        lieni_guard_range_back(buf);
    }
}

void lieni_guard_tighten(lien_buf *buf, enum lieni_buf_state to)
{
    enum lieni_guard want = wanted(to);
    if (want <= buf->block->guard) {
        return;
    }
    lieni_guard_range_lent(buf);
    if (!change(buf, want)) {
        buf->root->guard_skipped++;
    }
    if (want == LIENI_GUARD_SHUT) {
        poison(buf, true);
    }
}
