// SPDX-License-Identifier: Apache-2.0
//
// Pools: sizes, limits, the reserve, fair waiting, O(1) counted in steps, what goes back to the system
// and when [R9], bad input.

#include "mem_world.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define MIB  ((size_t)1 << 20)

static struct world w;
static lien_pool *pool;

static void setup(void)
{
    world_open(&w);
    pool = NULL;
}

static void teardown(void)
{
    world_close(&w);
    cr_expect_eq(world_strands, 0);
}

TestSuite(pool, .init = setup, .fini = teardown);

static lien_buf *alloc(size_t len)
{
    lien_buf *buf = NULL;
    int rc = lien_pool_alloc(pool, len, &buf);
    cr_assert_eq(rc, 0, "%zu bytes: %d %s", len, rc, world_log);
    return buf;
}

static int reserved(size_t len, lien_buf **buf)
{
    world_lock(&w);
    int rc = lieni_pool_alloc_reserved(pool, len, buf);
    world_unlock(&w);
    return rc;
}

static uint8_t *bytes_of(lien_buf *buf)
{
    return lieni_buf_addr(buf);
}

// -- Sizes and limits ------------------------------------------------------------------------------

Test(pool, buffers_of_all_sizes_are_aligned_and_usable)
{
    pool = world_pool(&w, 1024 * MIB, 0);
    const size_t sizes[] = {
        1,        4095,         4096,          4097,      65536,         5 * MIB + 1,
        64 * MIB, 64 * MIB + 1, 200 * MIB - 1, 13 * PAGE, 33 * PAGE + 7, 3 * MIB};
    enum {
        N = sizeof sizes / sizeof sizes[0]
    };
    lien_buf *bufs[N];
    for (size_t i = 0; i < N; i++) {
        bufs[i] = alloc(sizes[i]);
        cr_expect_eq((uintptr_t)bytes_of(bufs[i]) % PAGE, 0);
        cr_expect_eq(lien_buf_len(bufs[i]), sizes[i]);
        cr_expect_eq(lien_buf_capacity(bufs[i]), (sizes[i] + PAGE - 1) / PAGE * PAGE);
        bytes_of(bufs[i])[0] = (uint8_t)(i + 1);
        bytes_of(bufs[i])[lien_buf_capacity(bufs[i]) - 1] = (uint8_t)(i + 1);
    }
    for (size_t i = 0; i < N; i++) {
        cr_expect_eq(bytes_of(bufs[i])[0], i + 1);
        cr_expect_eq(bytes_of(bufs[i])[lien_buf_capacity(bufs[i]) - 1], i + 1);
        lien_buf_free(&bufs[i]);
    }
    cr_expect_eq(lieni_mem_bytes_out(w.root), 0);
}

Test(pool, four_gib_in_one_buffer)
{
    pool = world_pool(&w, (size_t)4 << 30, 0);
    lien_buf *buf = alloc((size_t)4 << 30), *more = NULL;
    bytes_of(buf)[((size_t)4 << 30) - 1] = 1;
    cr_expect_eq(lien_pool_alloc(pool, 1, &more), LIEN_ELIMIT);
    lien_buf_free(&buf);
}

// A user who asks for a limit of n buffers gets n, whatever their size.
Test(pool, the_limit_is_exact)
{
    const size_t sizes[] = {1, PAGE, 9 * PAGE, 21 * PAGE, 5 * MIB, 5 * MIB + PAGE, 65 * MIB};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        size_t each = (sizes[s] + PAGE - 1) / PAGE * PAGE;
        pool = world_pool(&w, 7 * each, 0);
        lien_buf *bufs[7], *more = NULL;
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 7; i++) {
                bufs[i] = alloc(sizes[s]);
            }
            cr_expect_eq(lien_pool_alloc(pool, 1, &more), LIEN_ELIMIT);
            cr_expect_eq(lien_pool_alloc(pool, 7 * each + 1, &more), LIEN_EMSGSIZE);
            cr_expect_null(more);
            for (int i = 0; i < 7; i++) {
                lien_buf_free(&bufs[i]);
            }
        }
        cr_expect_leq(pool->mapped, 2 * pool->limit + PAGE);
        cr_assert_eq(lien_pool_close(&pool), 0);
    }
}

Test(pool, holes_map_at_most_twice_the_limit)
{
    pool = world_pool(&w, 64 * MIB, 0);
    enum {
        N = 16384
    };
    lien_buf **bufs = calloc(N, sizeof *bufs);
    for (size_t i = 0; i < N; i++) {
        bufs[i] = alloc(PAGE);
    }
    for (size_t i = 0; i < N; i++) {
        if (i % 16 != 0) {
            lien_buf_free(&bufs[i]);
        }
    }
    lien_buf *large[60] = {0};
    int rc = 0, n = 0;
    while (n < 60 && (rc = lien_pool_alloc(pool, MIB, &large[n])) == 0) {
        n++;
    }
    cr_expect_leq(pool->mapped, 128 * MIB);
    cr_expect_eq(n, 60, "%d %d", n, rc);
    for (int i = 0; i < n; i++) {
        lien_buf_free(&large[i]);
    }
    for (size_t i = 0; i < N; i++) {
        lien_buf_free(&bufs[i]);
    }
    free(bufs);
}

// Keeps every `nth` of `n` buffers, so that no hole is larger than the others were.
static size_t thin(lien_buf **bufs, size_t n, size_t nth)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % nth != 0) {
            lien_buf_free(&bufs[i]);
        } else {
            kept++;
        }
    }
    return kept;
}

// Sizes each too large for the holes of the one before, and every chunk in use.
Test(pool, holes_never_reach_the_reserve)
{
    enum {
        ONES = 3584,
        MORE = 300
    };
    pool = world_pool(&w, 16 * MIB, 2 * MIB);
    static lien_buf *ones[ONES], *mid[MORE], *large[MORE];
    lien_buf *body = NULL;
    for (size_t i = 0; i < ONES; i++) {
        ones[i] = alloc(PAGE);
    }
    size_t out = thin(ones, ONES, 8) * PAGE, n = 0;
    while (lien_pool_alloc(pool, 64 << 10, &mid[n]) == 0) {
        n++;
    }
    for (size_t i = 0; i < n; i++) {
        lien_buf_free(&mid[i]);
    }
    for (size_t i = 0; i < n; i++) { // one for each of those chunks: none is empty
        mid[i] = alloc(9 * PAGE);
        out += 9 * PAGE;
    }
    n = 0;
    while (lien_pool_alloc(pool, 512 << 10, &large[n]) == 0) {
        n++;
    }
    out += n * (512 << 10);
    cr_expect_leq(out + (512 << 10), 14 * MIB, "it was the holes that refused");
    cr_expect_leq(pool->mapped, 32 * MIB - 3 * MIB);
    cr_expect_eq(reserved(2 * MIB, &body), 0);
    cr_expect_leq(pool->mapped, 32 * MIB);
    lien_buf_free(&body);
    for (size_t i = 0; i < ONES; i++) {
        lien_buf_free(&ones[i]);
    }
    for (size_t i = 0; i < MORE; i++) {
        lien_buf_free(&mid[i]);
        lien_buf_free(&large[i]);
    }
}

Test(pool, steps_do_not_grow_with_the_number_of_buffers)
{
    pool = world_pool(&w, 1024 * MIB, 0);
    enum {
        N = 20000
    };
    lien_buf **bufs = calloc(N, sizeof *bufs);
    uint64_t most = 0;
    srand(1);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < N; i++) {
            uint64_t before = pool->steps;
            bufs[i] = alloc(PAGE * (size_t)(1 + rand() % 12));
            most = pool->steps - before > most ? pool->steps - before : most;
        }
        for (size_t i = 0; i < N; i++) {
            uint64_t before = pool->steps;
            lien_buf_free(&bufs[(i * 7919) % N]);
            most = pool->steps - before > most ? pool->steps - before : most;
        }
    }
    free(bufs);
    cr_expect_gt(most, 0);
    cr_expect_leq(most, 3, "%llu steps", (unsigned long long)most);
}

Test(pool, bad_arguments_are_named)
{
    lien_ctx *ctx = world_ctx(&w);
    lien_pool *none = NULL;
    lien_buf *buf = NULL;
    struct {
        lien_pool_opts opts;
        int rc;
        const char *text;
    } bad[] = {
        {{.size = 1, .limit = MIB, .numa_node = -1}, LIEN_EINVAL, "size 1"},
        {{.size = sizeof(lien_pool_opts), .limit = 0, .numa_node = -1}, LIEN_EINVAL, "limit 0"},
        {{.size = sizeof(lien_pool_opts), .limit = SIZE_MAX, .numa_node = -1},
         LIEN_EINVAL,
         "limit"},
        {{.size = sizeof(lien_pool_opts), .limit = MIB, .reserve = MIB + 1, .numa_node = -1},
         LIEN_EINVAL,
         "1048577"},
        {{.size = sizeof(lien_pool_opts), .limit = MIB, .populate = MIB + 1, .numa_node = -1},
         LIEN_EINVAL,
         "1048577"},
        {{.size = sizeof(lien_pool_opts), .flags = 1u << 20, .limit = MIB, .numa_node = -1},
         LIEN_EINVAL,
         "0x100000"},
        {{.size = sizeof(lien_pool_opts),
          .flags = LIEN_GUARD | LIEN_UNGUARDED,
          .limit = MIB,
          .numa_node = -1},
         LIEN_EINVAL,
         "exclude"},
        {{.size = sizeof(lien_pool_opts), .limit = MIB, .numa_node = 1023}, LIEN_EINVAL, "1023"},
        {{.size = sizeof(lien_pool_opts), .limit = MIB, .numa_node = 5000}, LIEN_EINVAL, "5000"},
        {{.size = sizeof(lien_pool_opts), .limit = MIB, .numa_node = -2}, LIEN_EINVAL, "-2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int rc = lien_pool_open(ctx, &bad[i].opts, &none);
        cr_expect_eq(rc, bad[i].rc, "case %zu: %d", i, rc);
        cr_expect(strstr(world_log, bad[i].text), "case %zu: %s", i, world_log);
        cr_expect_null(none);
    }
    cr_expect_eq(lien_pool_open(NULL, NULL, &none), LIEN_EINVAL);
    cr_expect_eq(lien_pool_open(ctx, NULL, NULL), LIEN_EINVAL);
    cr_expect_eq(lien_pool_close(NULL), LIEN_EINVAL);
    cr_expect_eq(lien_pool_close(&none), LIEN_EINVAL);
    pool = world_pool(&w, MIB, 0);
    cr_expect_eq(lien_pool_alloc(NULL, 1, &buf), LIEN_EINVAL);
    cr_expect_eq(lien_pool_alloc(pool, 0, &buf), LIEN_EINVAL);
    cr_expect_eq(lien_pool_alloc(pool, 1, NULL), LIEN_EINVAL);
    cr_expect_eq(lien_pool_alloc(pool, SIZE_MAX, &buf), LIEN_EMSGSIZE);
    cr_expect_eq(lien_pool_alloc_start(pool, 1, NULL, NULL, NULL), LIEN_EINVAL);
    cr_expect_eq(lien_pool_alloc_cancel(NULL), LIEN_EINVAL);
    cr_expect_eq(lien_pool_alloc_wait(NULL, 1, 0, &buf), LIEN_EINVAL);
    cr_expect_eq(lien_pool_alloc_wait(pool, 0, 0, &buf), LIEN_EINVAL);
    cr_expect_eq(lien_pool_alloc_wait(pool, MIB + 1, 0, &buf), LIEN_EMSGSIZE);
    cr_expect_null(buf);
}

Test(pool, defaults)
{
    cr_assert_eq(lien_pool_open(world_ctx(&w), NULL, &pool), 0);
    cr_expect_eq(pool->limit, (size_t)4 << 30);
    cr_expect_eq(pool->reserve, (size_t)512 << 20);
    cr_expect_eq(pool->mapped, 0, "nothing before it is used");
}

// -- Reserve ---------------------------------------------------------------------------------------

Test(pool, plain_buffers_cannot_touch_the_reserve)
{
    pool = world_pool(&w, 8 * PAGE, 2 * PAGE);
    lien_buf *plain[6], *more = NULL, *received[2] = {0};
    for (int i = 0; i < 6; i++) {
        plain[i] = alloc(PAGE);
    }
    cr_expect_eq(lien_pool_alloc(pool, PAGE, &more), LIEN_ELIMIT);
    cr_expect_eq(lien_pool_alloc(pool, 7 * PAGE, &more), LIEN_EMSGSIZE);
    cr_expect_eq(reserved(PAGE, &received[0]), 0);
    cr_expect_eq(reserved(PAGE, &received[1]), 0);
    cr_expect_eq(reserved(PAGE, &more), LIEN_ELIMIT);
    lien_buf_free(&received[0]);
    cr_expect_eq(lien_pool_alloc(pool, PAGE, &more), LIEN_ELIMIT, "it is the reserve again");
    lien_buf_free(&plain[0]);
    cr_expect_eq(reserved(2 * PAGE, &received[0]), 0, "a receive may use both");
    cr_expect_eq(lien_pool_alloc(pool, PAGE, &more), LIEN_ELIMIT);
    lien_buf_free(&received[0]);
    lien_buf_free(&received[1]);
    for (int i = 1; i < 6; i++) {
        lien_buf_free(&plain[i]);
    }
    cr_expect_eq(reserved(8 * PAGE, &received[0]), 0);
    lien_buf_free(&received[0]);
}

// -- Waiting ---------------------------------------------------------------------------------------

static char order[64]; // the letters of those served, in order
static lien_buf *got[64];
static int last_status;

static void done(void *arg, int status, lien_buf *buf)
{
    size_t n = strlen(order);
    order[n] = *(const char *)arg;
    got[n] = buf;
    last_status = status;
    cr_expect_eq(buf != NULL, status == 0);
}

static lien_alloc *start(const char *name, size_t len)
{
    lien_alloc *handle = NULL;
    cr_assert_eq(lien_pool_alloc_start(pool, len, done, (void *)(uintptr_t)name, &handle), 0);
    return handle;
}

Test(pool, waiters_are_served_in_order_large_or_small)
{
    pool = world_pool(&w, 8 * PAGE, 0);
    lien_buf *held[8], *more = NULL;
    for (int i = 0; i < 8; i++) {
        held[i] = alloc(PAGE);
    }
    start("L", 6 * PAGE);
    start("s", PAGE);
    start("t", PAGE);
    for (int i = 0; i < 5; i++) {
        lien_buf_free(&held[i]);
        world_run();
        cr_expect_str_eq(order, "", "small ones must not overtake");
        cr_expect_eq(lien_pool_alloc(pool, PAGE, &more), LIEN_ELIMIT, "nor those who do not wait");
    }
    lien_buf_free(&held[5]);
    cr_expect_str_eq(order, "", "never inside a call");
    world_run();
    cr_expect_str_eq(order, "L");
    lien_buf_free(&held[6]);
    world_run();
    cr_expect_str_eq(order, "Ls");
    lien_buf_free(&got[0]);
    world_run();
    cr_expect_str_eq(order, "Lst");
    lien_buf_free(&got[1]);
    lien_buf_free(&got[2]);
    lien_buf_free(&held[7]);
    cr_expect_eq(lieni_mem_bytes_out(w.root), 0);
}

Test(pool, a_canceled_head_lets_the_next_go)
{
    pool = world_pool(&w, 4 * PAGE, 0);
    lien_buf *held = alloc(PAGE);
    lien_alloc *large = start("L", 4 * PAGE);
    start("s", PAGE);
    world_run();
    cr_expect_str_eq(order, "");
    cr_expect_eq(lien_pool_alloc_cancel(large), 0);
    cr_expect_eq(lien_pool_alloc_cancel(large), LIEN_ESTATE, "its result is under way");
    world_run();
    cr_expect_str_eq(order, "sL");
    cr_expect_eq(last_status, LIEN_ECANCELED);
    lien_buf_free(&got[0]);
    lien_buf_free(&held);
}

Test(pool, closing_cancels_those_who_wait)
{
    pool = world_pool(&w, PAGE, 0);
    lien_buf *held = alloc(PAGE), *more = NULL;
    void *bytes = bytes_of(held);
    lien_alloc *waits = start("a", PAGE);
    start("b", PAGE);
    lien_pool *copy = pool;
    cr_assert_eq(lien_pool_close(&pool), 0);
    cr_expect_null(pool);
    cr_expect_eq(lien_pool_alloc_cancel(waits), LIEN_ESTATE);
    cr_expect_eq(lien_pool_alloc(copy, PAGE, &more), LIEN_ESTATE);
    cr_expect_eq(lien_pool_close(&copy), LIEN_ESTATE);
    world_run();
    cr_expect_str_eq(order, "ab");
    cr_expect_eq(last_status, LIEN_ECANCELED);
    cr_expect(is_mapped(bytes), "valid until freed");
    lien_buf_free(&held);
    cr_expect_not(is_mapped(bytes));
}

struct receive {
    struct lieni_pool_wait wait;
    char name;
};

static void received(struct lieni_pool_wait *wait, lien_buf *buf, int status)
{
    done(&lieni_container(wait, struct receive, wait)->name, status, buf);
}

static void receive(struct receive *r, char name, size_t len)
{
    *r = (struct receive){.wait = {.len = len, .ready = received}, .name = name};
    world_lock(&w);
    lieni_pool_wait_start(pool, &r->wait);
    world_unlock(&w);
}

Test(pool, receives_within_the_reserve_do_not_wait_for_senders)
{
    pool = world_pool(&w, 8 * PAGE, 2 * PAGE);
    lien_buf *held = alloc(6 * PAGE);
    struct receive r[4];
    start("P", PAGE);
    receive(&r[0], 'a', PAGE);
    receive(&r[1], 'b', PAGE);
    cr_expect_str_eq(order, "ab");
    receive(&r[2], 'c', PAGE);
    receive(&r[3], 'd', PAGE);
    cr_expect_str_eq(order, "ab");
    lien_buf_free(&got[0]);
    cr_expect_str_eq(order, "abc");
    world_lock(&w);
    lieni_pool_wait_stop(&r[3].wait);
    lieni_pool_wait_stop(&r[3].wait);
    world_unlock(&w);
    lien_buf_free(&got[1]);
    lien_buf_free(&held);
    world_run();
    cr_expect_str_eq(order, "abcP");
    lien_buf_free(&got[2]);
    lien_buf_free(&got[3]);
}

// Beyond the reserve the one who waited longer goes first, whichever kind he is.
Test(pool, receives_beyond_the_reserve_take_turns_with_senders)
{
    pool = world_pool(&w, 8 * PAGE, 2 * PAGE);
    lien_buf *held = alloc(5 * PAGE), *more = NULL;
    struct receive r[2];
    start("P", 4 * PAGE);
    receive(&r[0], 'R', 3 * PAGE); // has room, but would take what P waits for
    cr_expect_str_eq(order, "");
    lien_buf_free(&held);
    cr_expect_str_eq(order, "R", "P has its memory: R could go, at once");
    world_run();
    cr_expect_str_eq(order, "RP");
    held = alloc(PAGE);
    receive(&r[1], 'S', 4 * PAGE);
    start("Q", PAGE);
    lien_buf_free(&held);
    world_run();
    cr_expect_str_eq(order, "RP", "Q is younger than S, and S needs more than the reserve");
    cr_expect_eq(lien_pool_alloc(pool, PAGE, &more), LIEN_ELIMIT);
    lien_buf_free(&got[0]);
    world_run();
    cr_expect_str_eq(order, "RPS");
    lien_buf_free(&got[1]);
    world_run();
    cr_expect_str_eq(order, "RPSQ");
    lien_buf_free(&got[2]);
    lien_buf_free(&got[3]);
}

static void received_chain(struct lieni_pool_wait *wait, lien_buf *buf, int status)
{
    if (strlen(order) < 50) {
        done(&lieni_container(wait, struct receive, wait)->name, status, buf);
        lieni_buf_free_locked(buf);
        lieni_pool_wait_start(pool, wait);
        return;
    }
    done(&lieni_container(wait, struct receive, wait)->name, status, buf);
}

Test(pool, ready_may_come_back)
{
    pool = world_pool(&w, PAGE, PAGE);
    struct receive r = {.wait = {.len = PAGE, .ready = received_chain}, .name = 'x'};
    world_lock(&w);
    lieni_pool_wait_start(pool, &r.wait);
    world_unlock(&w);
    cr_expect_eq(strlen(order), 51);
    lien_buf_free(&got[50]);
    struct receive large = {.wait = {.len = PAGE + 1, .ready = received}, .name = 'y'};
    world_lock(&w);
    lieni_pool_wait_start(pool, &large.wait);
    world_unlock(&w);
    cr_expect_eq(last_status, LIEN_EMSGSIZE);
}

static lien_buf *to_free;

static bool free_later(struct world *world)
{
    if (world->waits == 3) {
        lieni_buf_free_locked(to_free);
    }
    return true;
}

Test(pool, waiting_blocks_until_there_is_room)
{
    pool = world_pool(&w, PAGE, 0);
    lien_buf *buf = NULL, *other = NULL;
    cr_assert_eq(lien_pool_alloc_wait(pool, PAGE, 0, &buf), 0);
    cr_expect_eq(w.waits, 0);
    cr_expect_eq(lien_pool_alloc_wait(pool, PAGE, 0, &other), LIEN_ETIMEDOUT);
    cr_expect_eq(lien_pool_alloc_wait(pool, PAGE, LIEN_FOREVER, &other), LIEN_EDEADLK);
    w.threaded = true;
    cr_expect_eq(lien_pool_alloc_wait(pool, PAGE, 10, &other), LIEN_ETIMEDOUT);
    cr_expect_null(other);
    w.threaded = false;
    w.waits = 0;
    w.on_wait = free_later;
    to_free = buf;
    cr_assert_eq(lien_pool_alloc_wait(pool, PAGE, LIEN_FOREVER, &other), 0);
    cr_expect_eq(w.waits, 3);
    lien_buf_free(&other);
    buf = alloc(PAGE); // none of those who gave up is in the way
    lien_buf_free(&buf);
}

// -- Back to the system ----------------------------------------------------------------------------

static struct lieni_domain dom;

static void register_it(lien_buf *buf)
{
    struct lieni_region region;
    world_lock(&w);
    cr_assert_eq(lieni_buf_region(buf, &fake_provider, &dom, &region), 0);
    world_unlock(&w);
}

Test(pool, large_chunks_go_back_at_once_and_small_ones_at_close)
{
    pool = world_pool(&w, 512 * MIB, 0);
    lien_buf *large = alloc(100 * MIB), *small = alloc(PAGE);
    void *one = bytes_of(large), *two = bytes_of(small);
    register_it(large);
    register_it(small);
    lien_buf_free(&large);
    cr_expect_not(is_mapped(one));
    cr_expect_eq(dom.regions, 1);
    lien_buf_free(&small);
    cr_expect(is_mapped(two));
    cr_assert_eq(lien_pool_close(&pool), 0);
    cr_expect_not(is_mapped(two));
    cr_expect_eq(dom.regions, 0);
}

Test(pool, lent_memory_stays_mapped_and_registered_after_free_and_close)
{
    pool = world_pool(&w, 512 * MIB, 0);
    lien_buf *large = alloc(100 * MIB), *small = alloc(PAGE), *lent[2] = {large, small};
    void *bytes[2] = {bytes_of(large), bytes_of(small)};
    register_it(large);
    register_it(small);
    world_lock(&w);
    cr_assert_eq(lieni_buf_borrow(large), 0);
    cr_assert_eq(lieni_buf_take(small), 0);
    world_unlock(&w);
    lien_buf_free(&large);
    lien_buf_free(&small);
    cr_assert_eq(lien_pool_close(&pool), 0);
    cr_expect(is_mapped(bytes[0]) && is_mapped(bytes[1]));
    cr_expect_eq(dom.regions, 2);
    world_lock(&w);
    lieni_buf_unborrow(lent[0]);
    lieni_buf_give(lent[1]);
    world_unlock(&w);
    cr_expect(!is_mapped(bytes[0]) && !is_mapped(bytes[1]));
    cr_expect_eq(dom.regions, 0);
}

Test(pool, empty_chunks_make_room_for_others)
{
    pool = world_pool(&w, 128 * MIB, 0);
    lien_buf *bufs[32], *large;
    for (int i = 0; i < 32; i++) {
        bufs[i] = alloc(4 * MIB);
    }
    for (int i = 0; i < 32; i++) {
        lien_buf_free(&bufs[i]);
    }
    cr_expect_geq(pool->mapped, 128 * MIB);
    large = alloc(128 * MIB);
    cr_expect_eq(pool->mapped, 128 * MIB);
    lien_buf_free(&large);
}

static void stuck(bool proven, bool mapped)
{
    pool = world_pool(&w, 512 * MIB, 0);
    memset(&dom, 0, sizeof dom);
    lien_buf *large = alloc(100 * MIB);
    void *bytes = bytes_of(large);
    register_it(large);
    dom.fail_close = true;
    lien_buf_free(&large);
    cr_expect(is_mapped(bytes), "a region that did not close still reaches it");
    cr_expect_eq(lieni_mem_bytes_lost(w.root), 100 * MIB);
    world_lock(&w);
    cr_expect_eq(lieni_mem_domain_leaving(w.root, &dom), 1);
    lieni_mem_domain_ended(w.root, &dom, proven);
    world_unlock(&w);
    cr_expect_eq(is_mapped(bytes), mapped);
    cr_expect_eq(lieni_mem_bytes_lost(w.root), mapped ? 100 * MIB : 0);
}

Test(pool, memory_whose_region_does_not_close_is_kept_until_proof)
{
    stuck(true, false);
}

Test(pool, memory_whose_region_does_not_close_is_kept_for_good)
{
    stuck(false, true);
}

Test(pool, a_second_try_to_close_a_region_lets_the_memory_go)
{
    pool = world_pool(&w, 512 * MIB, 0);
    memset(&dom, 0, sizeof dom);
    lien_buf *large = alloc(100 * MIB);
    void *bytes = bytes_of(large);
    register_it(large);
    dom.fail_close = true;
    lien_buf_free(&large);
    dom.fail_close = false;
    world_lock(&w);
    cr_expect_eq(lieni_mem_domain_leaving(w.root, &dom), 0);
    world_unlock(&w);
    cr_expect_not(is_mapped(bytes));
    cr_expect_eq(lieni_mem_bytes_lost(w.root), 0);
}

// -- Kinds of memory -------------------------------------------------------------------------------

Test(pool, populated_memory_is_there)
{
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.limit = 64 * MIB;
    opts.reserve = 0;
    opts.populate = 8 * MIB;
    opts.numa_node = 0;
    cr_assert_eq(lien_pool_open(world_ctx(&w), &opts, &pool), 0);
    cr_expect_eq(pool->mapped, 8 * MIB);
    lien_buf *buf = alloc(8 * MIB);
    static unsigned char in[2048];
    cr_assert_eq(mincore(bytes_of(buf), 8 * MIB, in), 0);
    size_t there = 0;
    for (size_t i = 0; i < sizeof in; i++) {
        there += in[i] & 1;
    }
    cr_expect_eq(there, sizeof in);
    lien_buf_free(&buf);
}

Test(pool, huge_pages_or_a_clear_no)
{
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.flags = LIEN_HUGE_PAGES;
    int rc = lien_pool_open(world_ctx(&w), &opts, &pool);
    if (rc != 0) {
        cr_expect_eq(rc, LIEN_ENOMEM);
        cr_expect(strstr(world_log, "huge pages"), "%s", world_log);
        return;
    }
    lien_buf *buf = alloc(10);
    bytes_of(buf)[0] = 1;
    lien_buf_free(&buf);
}

Test(pool, a_child_has_neither_the_memory_nor_the_handles)
{
    pool = world_pool(&w, MIB, 0);
    lien_buf *buf = alloc(PAGE);
    fflush(NULL);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        lien_buf *other, *copy = buf;
        const void *data;
        lien_pool *pool_copy = pool;
        bool ok = !is_mapped(bytes_of(buf)) && lien_buf_data(buf, &data) == LIEN_EFORK &&
                  lien_pool_alloc(pool, 1, &other) == LIEN_EFORK &&
                  lien_pool_close(&pool_copy) == LIEN_EFORK;
        lien_buf_free(&copy);
        _exit(ok ? 42 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 42, "status %x", (unsigned)status);
    lien_buf_free(&buf);
}

// -- Against a model -------------------------------------------------------------------------------

// Random requests of both kinds; the model knows what is out, and marks in the memory tell whether two buffers
// ever share a page.
struct slot {
    lien_buf *buf;
    size_t bytes;
    bool received;
    uint32_t mark;
};

static void mark(struct slot *s, uint32_t value)
{
    s->mark = value;
    for (size_t i = 0; i < s->bytes; i += PAGE) {
        memcpy(bytes_of(s->buf) + i, &value, sizeof value);
    }
}

static bool marked(const struct slot *s)
{
    for (size_t i = 0; i < s->bytes; i += PAGE) {
        if (memcmp(bytes_of(s->buf) + i, &s->mark, sizeof s->mark) != 0) {
            return false;
        }
    }
    return true;
}

static unsigned seed_state;

static unsigned roll(unsigned n)
{
    seed_state = seed_state * 1103515245u + 12345u;
    return (seed_state >> 8) % n;
}

static void stress(unsigned seed, size_t limit, size_t reserve, size_t largest)
{
    enum {
        SLOTS = 256,
        STEPS = 6000
    };
    static struct slot slots[SLOTS];
    memset(slots, 0, sizeof slots);
    seed_state = seed;
    pool = world_pool(&w, limit, reserve);
    size_t plain = 0, recv = 0;
    unsigned holes = 0, served = 0;
    for (unsigned step = 1; step <= STEPS; step++) {
        struct slot *s = &slots[roll(SLOTS)];
        if (s->buf) {
            cr_assert(marked(s), "seed %u step %u: overwritten", seed, step);
            lien_buf_free(&s->buf);
            *(s->received ? &recv : &plain) -= s->bytes;
            continue;
        }
        size_t len = 1 + roll((unsigned)(largest >> roll(8)));
        s->received = roll(3) == 0;
        s->bytes = (len + PAGE - 1) / PAGE * PAGE;
        size_t taken = recv > reserve ? recv - reserve : 0;
        bool fits = s->received ? plain + recv + s->bytes <= limit
                                : plain + taken + s->bytes <= limit - reserve;
        int rc = s->received ? reserved(len, &s->buf) : lien_pool_alloc(pool, len, &s->buf);
        if (rc == 0) {
            cr_assert(fits, "seed %u step %u: above the limit", seed, step);
            mark(s, step);
            *(s->received ? &recv : &plain) += s->bytes;
            served++;
        } else {
            cr_assert(rc == LIEN_ELIMIT || rc == LIEN_EMSGSIZE, "%d", rc);
            holes += fits;
        }
        cr_assert_eq(lieni_mem_bytes_out(w.root), plain + recv);
        cr_assert_leq(pool->mapped, 2 * limit);
    }
    cr_expect_gt(served, 1000);
    cr_expect_leq(holes, served / 100, "seed %u: %u refused for holes, %u served", seed, holes,
                  served);
    for (size_t i = 0; i < SLOTS; i++) {
        lien_buf_free(&slots[i].buf);
    }
    lieni_pool_trim(pool, true);
    cr_expect_eq(pool->filled, 0, "empty chunks are whole again");
    cr_expect_eq(pool->mapped, 0);
    cr_assert_eq(lien_pool_close(&pool), 0);
}

Test(pool, random_requests_agree_with_a_model)
{
    for (unsigned seed = 1; seed <= 4; seed++) {
        stress(seed, 16 * MIB, 2 * MIB, MIB);
        stress(seed, 64 * PAGE, 8 * PAGE, 16 * PAGE);
        stress(seed, 256 * MIB, 0, 8 * MIB);
    }
}
