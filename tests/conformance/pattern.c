// SPDX-License-Identifier: Apache-2.0
//
// Contents of buffers as a function of (case, generation, offset), and what is built on it: buffers with guard bytes, spaces, and their checks.
// No state; runs on the script's thread.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/harness.h"

#define GUARD_BYTE 0xa5

static uint64_t seed_of(const struct cf_side *side, unsigned gen)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *p = side->test->name; *p; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001b3u;
    return h ^ (gen + 1) * 0x9e3779b97f4a7c15u;
}

// Eight bytes, at offset 8 * i.
static inline uint64_t word(uint64_t seed, uint64_t i)
{
    uint64_t x = (i ^ seed) * 0xd6e8feb86659fd93u;
    return x ^ x >> 29;
}

static inline uint8_t byte_at(uint64_t seed, uint64_t off)
{
    return (uint8_t)(word(seed, off / 8) >> 8 * (off % 8));
}

#define BREATH ((size_t)16 << 20)

// Between two stretches of memory an app-driven ctx makes progress: a GiB takes longer than a peer may be silent.
static void breathe(const struct cf_side *side)
{
    if (side->ctx && side->driver->processes && !side->driver->threaded)
        lien_ctx_progress(side->ctx);
}

static void fill(uint64_t seed, uint8_t *p, size_t len, uint64_t off)
{
    size_t i = 0;
    for (; i < len && (off + i) % 8 != 0; i++)
        p[i] = byte_at(seed, off + i);
    for (; i + 8 <= len; i += 8) {
        uint64_t w = word(seed, (off + i) / 8);
        memcpy(p + i, &w, 8);
    }
    for (; i < len; i++)
        p[i] = byte_at(seed, off + i);
}

void cf_fill(const struct cf_side *side, void *to, size_t len, unsigned gen, uint64_t off)
{
    for (size_t at = 0; at < len; at += BREATH) {
        size_t n = len - at < BREATH ? len - at : BREATH;
        fill(seed_of(side, gen), (uint8_t *)to + at, n, off + at);
        if (n == BREATH)
            breathe(side);
    }
}

static bool same(uint64_t seed, const uint8_t *p, size_t len, uint64_t off, uint64_t *bad)
{
    for (size_t i = 0; i < len;) {
        uint64_t w;
        if ((off + i) % 8 == 0 && i + 8 <= len) {
            memcpy(&w, p + i, 8);
            if (w == word(seed, (off + i) / 8)) {
                i += 8;
                continue;
            }
        }
        if (p[i] != byte_at(seed, off + i)) {
            *bad = i;
            return false;
        }
        i++;
    }
    return true;
}

bool cf_same(const struct cf_side *side, const void *is, size_t len, unsigned gen, uint64_t off,
             uint64_t *bad)
{
    for (size_t at = 0; at < len; at += BREATH) {
        size_t n = len - at < BREATH ? len - at : BREATH;
        if (!same(seed_of(side, gen), (const uint8_t *)is + at, n, off + at, bad)) {
            *bad += at;
            return false;
        }
        if (n == BREATH)
            breathe(side);
    }
    return true;
}

lien_buf *cf_buf(struct cf_side *side, uint64_t len, unsigned gen, uint64_t off)
{
    lien_buf *buf;
    void *p;
    CHECK_RC(side, lien_pool_alloc(side->pool, (size_t)len + CF_GUARD, &buf), 0);
    CHECK_RC(side, lien_buf_set_len(buf, (size_t)len), 0);
    CHECK_RC(side, lien_buf_mut(buf, &p), 0);
    cf_fill(side, p, (size_t)len, gen, off);
    memset((uint8_t *)p + len, GUARD_BYTE, CF_GUARD);
    return buf;
}

static void check_guard(struct cf_side *side, const lien_buf *buf)
{
    const void *p;
    CHECK_RC(side, lien_buf_data(buf, &p), 0);
    const uint8_t *guard = (const uint8_t *)p + lien_buf_len(buf);
    for (unsigned i = 0; i < CF_GUARD; i++) {
        if (guard[i] != GUARD_BYTE)
            FAIL(side, "guard byte %u behind a buffer of %zu bytes was written", i,
                 lien_buf_len(buf));
    }
}

static void check_bytes(struct cf_side *side, const lien_buf *buf, size_t from, size_t to,
                        unsigned gen, uint64_t off)
{
    const void *p;
    uint64_t bad;
    CHECK_RC(side, lien_buf_data(buf, &p), 0);
    if (to > from && !cf_same(side, (const uint8_t *)p + from, to - from, gen, off, &bad))
        FAIL(side, "byte %llu of a buffer of %zu is not that of generation %u, offset %llu",
             (unsigned long long)(from + bad), lien_buf_len(buf), gen,
             (unsigned long long)(off + bad));
}

void cf_check_buf(struct cf_side *side, const lien_buf *buf, unsigned gen, uint64_t off)
{
    check_bytes(side, buf, 0, lien_buf_len(buf), gen, off);
}

void cf_bufs(struct cf_side *side, const uint64_t *lens, size_t n, unsigned gen, lien_buf **bufs)
{
    uint64_t off = 0;
    for (size_t i = 0; i < n; i++) {
        bufs[i] = cf_buf(side, lens[i], gen, off);
        off += lens[i];
    }
}

void cf_free_bufs(lien_buf **bufs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        lien_buf_free(&bufs[i]);
}

void cf_scribble(struct cf_side *side, lien_buf *const *bufs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *p;
        CHECK_RC(side, lien_buf_mut(bufs[i], &p), 0);
        memset(p, 0xdb, lien_buf_len(bufs[i]));
    }
}

void cf_cut(uint64_t total, size_t n, uint64_t *lens)
{
    uint64_t left = total;
    for (size_t i = 0; i + 1 < n; i++) {
        uint64_t share = left / (n - i);
        uint64_t swing = (i * 2654435761u) % (share + 1);
        lens[i] = i % 7 == 3 ? 0 : share / 2 + swing;
        if (lens[i] > left)
            lens[i] = left;
        left -= lens[i];
    }
    lens[n - 1] = left;
}

lien_space *cf_space(struct cf_side *side, const uint64_t *lens, size_t n)
{
    lien_buf *bufs[LIEN_BUFS_MAX];
    lien_space *space;
    cf_bufs(side, lens, n, CF_BEFORE, bufs);
    CHECK_RC(side, lien_space_open(side->ctx, bufs, n, &space), 0);
    for (size_t i = 0; i < n; i++)
        CHECK(side, bufs[i] == NULL);
    return space;
}

lien_space *cf_space_of(struct cf_side *side, uint64_t len)
{
    return cf_space(side, &len, 1);
}

void cf_check_space(struct cf_side *side, lien_space *space, size_t n, unsigned gen, uint64_t len)
{
    uint64_t off = 0;
    for (size_t i = 0; i < n; i++) {
        lien_buf *buf;
        CHECK_RC(side, lien_space_buf(space, i, &buf), 0);
        uint64_t size = lien_buf_len(buf);
        uint64_t read = off >= len ? 0 : len - off < size ? len - off : size;
        check_bytes(side, buf, 0, (size_t)read, gen, off);
        check_bytes(side, buf, (size_t)read, (size_t)size, CF_BEFORE, off + read);
        check_guard(side, buf);
        off += size;
    }
    CHECK_EQ(side, off, lien_space_len(space));
}

void cf_check_ops(struct cf_side *side, lien_space *space, size_t n, unsigned gen,
                  const lien_op *ops, size_t n_ops)
{
    uint64_t total = lien_space_len(space), off = 0;
    uint8_t *want = malloc((size_t)total + 1);
    CHECK(side, want != NULL);
    cf_fill(side, want, (size_t)total, CF_BEFORE, 0);
    for (size_t i = 0; i < n_ops; i++)
        cf_fill(side, want + ops[i].dst, (size_t)ops[i].len, gen, ops[i].src);
    for (size_t i = 0; i < n; i++) {
        lien_buf *buf;
        const void *p;
        CHECK_RC(side, lien_space_buf(space, i, &buf), 0);
        CHECK_RC(side, lien_buf_data(buf, &p), 0);
        for (size_t at = 0; at < lien_buf_len(buf); at++) {
            if (((const uint8_t *)p)[at] != want[off + at])
                FAIL(side, "byte %llu of the space is not what the operations bring",
                     (unsigned long long)(off + at));
        }
        check_guard(side, buf);
        off += lien_buf_len(buf);
    }
    free(want);
}
