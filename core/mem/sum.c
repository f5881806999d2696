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

// -- Zeroing [R16] --

// The first touch of a page costs a fault and the kernel's zeroing, up to some milliseconds a MiB on virtual machines: a GiB under the state lock would stop every connection of the
// ctx for seconds, and lose them. So memory that nobody had is not zeroed at all; what the application gets is zeroed by whom it is for, without the lock; and under it only the
// piece that the next READ fills (option read_piece, 1 MiB unless set: tens of microseconds, or those milliseconds if its pages were never touched), of which a connection has read_conn_bytes, 4 MiB, at a time.

static bool zeroes(const lien_buf *buf)
{
    const lien_pool *pool = buf->block ? buf->chunk->pool : NULL;
    return pool && (pool->flags & LIEN_ZERO);
}

void lieni_buf_zero(lien_buf *buf, uint64_t at, uint64_t len)
{
    if (zeroes(buf) && at < buf->old)
        memset(buf->addr + at, 0, least(buf->old - at, len));
}

void lieni_buf_owes(lien_buf *buf, size_t old)
{
    if (!buf->received) {
        buf->wipe = old;
        return;
    }
    // No application has it before all of its length was read into; the page's rest is not.
    const size_t len = atomic_load_explicit(&buf->len, memory_order_relaxed);
    buf->old = old;
    lieni_buf_zero(buf, len, buf->cap - len);
}

void lieni_buf_hide(lien_buf *buf, size_t len)
{
    if (!zeroes(buf) || !buf->received)
        return;
    const size_t pages = (len + LIENI_PAGE - 1) / LIENI_PAGE * LIENI_PAGE;
    buf->cap = pages == 0 ? LIENI_PAGE : pages;
    lieni_buf_zero(buf, len, buf->cap - len);
}

void lieni_buf_wipe(lien_buf *buf)
{
    memset(buf->addr, 0, buf->wipe);
    buf->wipe = 0;
}
