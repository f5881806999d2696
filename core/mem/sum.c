// SPDX-License-Identifier: Apache-2.0
//
// Checksums of what lies in buffers, and their zeroing. Owns nothing. The sums need no lock: whoever asks holds the buffers lent meanwhile, so that neither address nor length changes
// and nobody writes. Read through the provider's mapping, which guard mode leaves open.
//
// XXH3 of 64 bits: what it is to find is loss and garbling, not malice, against which no checksum by the sender helps; 2^-64 is rare enough for that, and 128 bits would double what frames and tokens
// carry.

#define XXH_STATIC_LINKING_ONLY // the state on the stack: a sum cannot fail for lack of memory
#include <xxhash.h>

#include <string.h>

#include "core/mem/impl.h"

static size_t least(uint64_t a, uint64_t b)
{
    return (size_t)(a < b ? a : b);
}

uint64_t lieni_bufs_sum(lien_buf *const *bufs, uint32_t n, uint64_t at, uint64_t len)
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (uint32_t i = 0; i < n && len > 0; i++) {
        const uint64_t have = atomic_load_explicit(&bufs[i]->len, memory_order_relaxed);
        if (at >= have) {
            at -= have;
            continue;
        }
        const size_t part = least(have - at, len);
        XXH3_64bits_update(&state, bufs[i]->addr + at, part);
        len -= part;
        at = 0;
    }
    return XXH3_64bits_digest(&state);
}

void lieni_buf_zero(lien_buf *buf, uint64_t at, uint64_t len)
{
    const lien_pool *pool = buf->block ? buf->chunk->pool : NULL;
    if (pool && (pool->flags & LIEN_ZERO) && !buf->blank)
        memset(buf->addr + at, 0, (size_t)len);
}
