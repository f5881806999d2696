// SPDX-License-Identifier: Apache-2.0
//
// What guard mode costs: median time of a pair of lend and return, and of a pair after which the application writes to each
// page, in a pool with and without it. One thread, no provider.

#include "mem_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 1001 // medians of these; each is PAIRS pairs
#define PAIRS  10

static struct world w;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void touch(lien_buf *buf)
{
    void *data;
    if (lien_buf_mut(buf, &data) != 0) {
        abort();
    }
    for (size_t i = 0; i < lien_buf_len(buf); i += LIENI_PAGE) {
        ((volatile uint8_t *)data)[i] = 1;
    }
}

static void pair(lien_buf *buf, bool target)
{
    world_lock(&w);
    if (target ? lieni_buf_take(buf) : lieni_buf_borrow(buf)) {
        abort();
    }
    lieni_buf_lent_by(buf, target ? LIENI_LENT_BY_READ : LIENI_LENT_BY_GRANT, 1, 1);
    world_unlock(&w);
    world_lock(&w);
    if (target) {
        lieni_buf_give(buf);
    } else {
        lieni_buf_unborrow(buf);
    }
    world_unlock(&w);
}

// Median nanoseconds of one pair.
static uint64_t median(lien_buf *buf, bool target, bool touching)
{
    static uint64_t took[ROUNDS];
    touch(buf);
    for (size_t i = 0; i < ROUNDS; i++) {
        uint64_t start = now_ns();
        for (int n = 0; n < PAIRS; n++) {
            pair(buf, target);
            if (touching) {
                touch(buf);
            }
        }
        took[i] = (now_ns() - start) / PAIRS;
    }
    qsort(took, ROUNDS, sizeof took[0], by_size);
    return took[ROUNDS / 2];
}

static void measure(size_t len, unsigned flags)
{
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.flags = flags;
    lien_pool *pool;
    lien_buf *before, *buf, *after;
    if (lien_pool_open(world_ctx(&w), &opts, &pool) != 0 ||
        lien_pool_alloc(pool, len, &before) != 0 || lien_pool_alloc(pool, len, &buf) != 0 ||
        lien_pool_alloc(pool, len, &after) != 0) {
        abort();
    }
    printf(
        "%8zu  %-5s  %12llu  %12llu  %12llu  %12llu\n", len, flags & LIEN_GUARD ? "on" : "off",
        (unsigned long long)median(buf, false, false), (unsigned long long)median(buf, true, false),
        (unsigned long long)median(buf, false, true), (unsigned long long)median(buf, true, true));
    lien_buf_free(&before);
    lien_buf_free(&buf);
    lien_buf_free(&after);
    lien_pool_close(&pool);
}

int main(void)
{
    static const size_t sizes[] = {4096, (size_t)1 << 20};
    world_open(&w);
    printf("median ns of a pair of lend and return\n%8s  %-5s  %12s  %12s  %12s  %12s\n", "bytes",
           "guard", "source", "target", "source+write", "target+write");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        measure(sizes[i], LIEN_UNGUARDED);
        measure(sizes[i], LIEN_GUARD);
    }
    world_close(&w);
    return 0;
}
