// SPDX-License-Identifier: Apache-2.0
//
// Guard mode: each access that a state forbids faults, in a child that dies of it, and the report says what it was; what is
// allowed; what is not guarded; the kernel's limits.

#include "guard_world.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

TestSuite(guard, .init = guard_setup, .fini = guard_teardown);

// -- Each forbidden access -------------------------------------------------------------------------

CHILD(write_borrowed)
{
    alloc(1);
    lien_buf *buf = alloc(100);
    uint8_t *at = bytes(buf);
    at[12] = 7;
    borrow(buf, 77);
    if (peek(at + 12) != 7) {
        _exit(1);
    }
    announce(buf, at + 12);
    poke(at + 12, 1);
}

Test(guard, writing_what_is_borrowed_faults)
{
    struct outcome out = run_child(write_borrowed);
    expect_announced(&out);
    expect_fault(&out, "stray write at");
    expect_text(&out, "offset 12 of buffer 2 (");
    expect_text(&out, ", 100 bytes at ");
    expect_text(&out, "which is borrowed, lent by grant 77 of conn 00000000000000ab\n");
}

CHILD(write_borrowed_twice)
{
    lien_buf *buf = alloc(100), *copy = buf;
    uint8_t *at = bytes(buf);
    borrow(buf, 77);
    borrow(buf, 78);
    lien_buf_free(&copy);
    poke(at + 4095, 1);
}

Test(guard, the_report_tells_of_several_lends_and_of_a_freed_buffer)
{
    struct outcome out = run_child(write_borrowed_twice);
    expect_fault(&out, "stray write");
    expect_text(&out, "offset 4095 (beyond its end) of buffer 1");
    expect_text(&out, "borrowed, lent more than once, last by grant 78 of");
    expect_text(&out, "; its holder has freed it");
}

CHILD(write_target)
{
    lien_buf *buf;
    uint8_t *at = taken(&buf);
    announce(buf, at + 2 * PAGE);
    poke(at + 2 * PAGE, 1);
}

CHILD(read_target)
{
    lien_buf *buf;
    uint8_t *at = taken(&buf);
    announce(buf, at);
    peek(at);
}

Test(guard, a_target_can_neither_be_written_nor_read)
{
    struct outcome out = run_child(write_target);
    expect_announced(&out);
    expect_fault(&out, "stray write");
    expect_text(&out, "offset 8192 of buffer 1 ");
    expect_text(&out, "under a read, lent by a read of grant 5 of conn 00000000000000ab\n");
    out = run_child(read_target);
    expect_announced(&out);
    expect_fault(&out, "stray read");
    expect_text(&out, "offset 0 of buffer 1 ");
    expect_text(&out, "under a read, lent by a read of grant 5");
}

static uint8_t *lost(bool target)
{
    lien_buf *buf = alloc(PAGE);
    uint8_t *at = bytes(buf);
    if (target) {
        take(buf, 6);
    } else {
        borrow(buf, 6);
    }
    lose(buf);
    return at;
}

CHILD(write_lost_target)
{
    poke(lost(true), 1);
}

CHILD(read_lost_source)
{
    peek(lost(false));
}

CHILD(read_lost_for_good)
{
    uint8_t *at = lost(true);
    domain_ended(false);
    lieni_mem_root_close(w.root);
    peek(at);
}

Test(guard, what_is_lost_can_neither_be_written_nor_read)
{
    struct outcome out = run_child(write_lost_target);
    expect_fault(&out, "stray write");
    expect_text(&out, "in quarantine, lent by a read of grant 6");
    out = run_child(read_lost_source);
    expect_fault(&out, "stray read");
    expect_text(&out, "in quarantine, lent by grant 6");
    out = run_child(read_lost_for_good);
    expect_fault(&out, "stray read");
    expect_text(&out, "in quarantine");
}

// -- What is allowed -------------------------------------------------------------------------------

static void expect_open(lien_buf *buf)
{
    uint8_t *at = bytes(buf);
    size_t len = lien_buf_len(buf);
    at[0] = 1;
    at[len - 1] = 2;
    cr_expect_eq(at[0] + at[len - 1], len > 1 ? 3 : 4);
}

Test(guard, what_came_back_is_open_again)
{
    lien_buf *bufs[3];
    for (size_t i = 0; i < 3; i++) {
        bufs[i] = alloc(100 * PAGE);
    }
    borrow(bufs[0], 1);
    borrow(bufs[0], 2);
    take(bufs[1], 3);
    borrow(bufs[2], 4);
    borrow(bufs[2], 5);
    lose(bufs[2]);
    cr_expect_eq(skipped(), 0);
    cr_expect_gt(lieni_guard_maps, 0);
    unborrow(bufs[0]);
    unborrow(bufs[0]);
    give(bufs[1]);
    expect_open(bufs[0]);
    expect_open(bufs[1]);
    domain_ended(true); // lost no more, borrowed once
    const void *data;
    cr_assert_eq(lien_buf_data(bufs[2], &data), 0);
    cr_expect_eq(peek(data), 0);
    unborrow(bufs[2]);
    expect_open(bufs[2]);
    cr_expect_eq(skipped(), 0);
    cr_expect_eq(lieni_guard_maps, 0);
    for (size_t i = 0; i < 3; i++) {
        lien_buf_free(&bufs[i]);
    }
}

// The provider writes a target and reads a source while the application may not.
Test(guard, both_mappings_are_the_same_memory)
{
    lien_buf *buf = alloc(2 * PAGE);
    uint8_t *app = bytes(buf), *provider = lieni_buf_addr(buf);
    cr_assert_neq(app, provider);
    memcpy(app, "from here", 10);
    borrow(buf, 1);
    cr_expect_str_eq((char *)provider, "from here");
    unborrow(buf);
    take(buf, 2);
    strcpy((char *)provider + PAGE, "from there");
    give(buf);
    cr_expect_str_eq((char *)app + PAGE, "from there");
    lien_buf_free(&buf);
}

// Buffers of odd sizes side by side: protecting one leaves its neighbours alone to the last byte.
Test(guard, buffers_share_no_page)
{
    static const size_t sizes[] = {1, 100, 4095, 4096, 4097, 5 * PAGE + 1, 9 * PAGE - 1, 8191};
    enum {
        N = sizeof sizes / sizeof sizes[0]
    };
    lien_buf *bufs[N];
    for (size_t i = 0; i < N; i++) {
        bufs[i] = alloc(sizes[i]);
        cr_expect_eq((uintptr_t)bytes(bufs[i]) % PAGE, 0);
    }
    for (size_t i = 0; i < N; i++) {
        take(bufs[i], i);
        for (size_t j = 0; j < N; j++) {
            if (j != i) {
                uint8_t *at = bytes(bufs[j]);
                memset(at, 1, lien_buf_capacity(bufs[j]));
            }
        }
        give(bufs[i]);
    }
    for (size_t i = 0; i < N; i++) {
        lien_buf_free(&bufs[i]);
    }
    cr_expect_eq(skipped(), 0);
}

Test(guard, pools_follow_the_option_unless_they_say_otherwise)
{
    lien_pool *plain = guarded_pool(0), *not = guarded_pool(LIEN_UNGUARDED);
    cr_expect(!not ->guarded);
    cr_expect_eq(plain->guarded, w.root->args.guard);
    w.root->args.guard = true;
    lien_pool *with = guarded_pool(0), *without = guarded_pool(LIEN_UNGUARDED);
    cr_expect(with->guarded);
    cr_expect(!without->guarded);
    lien_buf *buf;
    cr_assert_eq(lien_pool_alloc(without, 10, &buf), 0);
    uint8_t *at = bytes(buf);
    cr_expect_eq(at, lieni_buf_addr(buf), "one mapping");
    take(buf, 1);
    poke(at, 1);
    give(buf);
    lien_buf_free(&buf);
    cr_expect_eq(skipped(), 0);
}

Test(guard, memory_of_the_application_is_not_guarded)
{
    static uint8_t own[PAGE];
    lien_mem *mem;
    lien_buf *buf;
    cr_assert_eq(lien_mem_register(world_ctx(&w), own, sizeof own, NULL, &mem), 0);
    cr_assert_eq(lien_mem_buf(mem, 1, 100, &buf), 0);
    take(buf, 1);
    poke(own + 1, 9);
    give(buf);
    cr_expect_eq(own[1], 9);
    cr_expect_eq(skipped(), 0);
    lien_buf_free(&buf);
    cr_expect_eq(lien_mem_unregister(&mem), 0);
}

// By hand, since the accesses of instrumented code and of interceptors end the program first under AddressSanitizer.
Test(guard, a_system_call_gets_efault)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    lien_buf *buf = alloc(PAGE);
    uint8_t *at = bytes(buf);
    memset(at, 5, PAGE);
    borrow(buf, 1);
    cr_expect_eq(syscall(SYS_write, ends[1], at, 10), 10, "a borrowed source can be sent");
    cr_expect_eq(syscall(SYS_read, ends[0], at, 10), -1);
    cr_expect_eq(errno, EFAULT);
    unborrow(buf);
    take(buf, 2);
    cr_expect_eq(syscall(SYS_write, ends[1], at, 10), -1);
    cr_expect_eq(errno, EFAULT);
    give(buf);
    cr_expect_eq(syscall(SYS_read, ends[0], at, 10), 10);
    lien_buf_free(&buf);
    close(ends[0]);
    close(ends[1]);
}

// -- The kernel's limit of mappings ----------------------------------------------------------------

// Every second of `n` small buffers is lent; returns how many lends were skipped. All come back and must be open.
static uint64_t alternate(size_t n)
{
    lien_buf **bufs = calloc(n, sizeof(lien_buf *));
    if (!bufs) {
        abort();
    }
    for (size_t i = 0; i < n; i++) {
        bufs[i] = alloc(1);
    }
    for (size_t i = 0; i < n; i += 2) {
        take(bufs[i], i);
    }
    uint64_t seen = skipped();
    for (size_t i = 0; i < n; i += 2) {
        give(bufs[i]);
    }
    for (size_t i = 0; i < n; i++) {
        *bytes(bufs[i]) = 1;
        lien_buf_free(&bufs[i]);
    }
    free(bufs);
    return seen;
}

Test(guard, mappings_are_counted_and_bounded)
{
    lieni_guard_maps_most = 10; // each lend in between costs two
    cr_expect_eq(alternate(20), 5, "5 of 10 fit");
    cr_expect_eq(lieni_guard_maps, 0);
    lien_buf *bufs[20];
    for (size_t i = 0; i < 20; i++) {
        bufs[i] = alloc(1);
    }
    for (size_t i = 0; i < 20; i++) {
        take(bufs[i], i); // neighbours share one
    }
    cr_expect_eq(skipped(), 5, "%llu", (unsigned long long)skipped());
    cr_expect_leq(lieni_guard_maps, 2);
    for (size_t i = 0; i < 20; i++) {
        give(bufs[i]);
        lien_buf_free(&bufs[i]);
    }
    lieni_guard_maps_most = 0;
}

CHILD(exhaust)
{
    if (alternate(70000) == 0) {
        _exit(1);
    }
    lien_buf *buf = alloc(PAGE); // and guarding goes on
    uint8_t *at = bytes(buf);
    take(buf, 9);
    poke(at, 1);
}

CHILD(exhaust_for_real)
{
    lieni_guard_maps_most = SIZE_MAX;
    exhaust();
}

Test(guard, when_mappings_run_out_lends_go_on_unguarded)
{
    struct outcome out = run_child(exhaust);
    expect_fault(&out, "stray write");
    if (!ASAN) { // its own mappings fail
        out = run_child(exhaust_for_real);
        expect_fault(&out, "stray write");
        expect_text(&out, "lent by a read of grant 9");
    }
}

// The kernel cannot split a mapping to open the middle one: the whole chunk is opened.
CHILD(open_without_mappings)
{
    lien_buf *bufs[3];
    for (size_t i = 0; i < 3; i++) {
        bufs[i] = alloc(1);
    }
    for (size_t i = 0; i < 3; i++) {
        take(bufs[i], i);
    }
    uint8_t *area = mmap(NULL, 200000 * PAGE, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t i = 0;
    while (mprotect(area + i * PAGE, PAGE, PROT_READ) == 0) {
        i += 2;
    }
    if (i >= 200000) {
        _exit(1);
    }
    give(bufs[1]);
    poke(bytes(bufs[1]), 1);
    if (skipped() != 2) { // those still lent
        dprintf(STDERR_FILENO, "skipped %llu\n", (unsigned long long)skipped());
        _exit(2);
    }
    munmap(area, 200000 * PAGE);
    give(bufs[0]);
    give(bufs[2]);
    if (lieni_guard_maps != 0) {
        dprintf(STDERR_FILENO, "%zu mappings counted\n", lieni_guard_maps);
        _exit(3);
    }
}

Test(guard, what_comes_back_is_open_even_without_mappings)
{
    struct outcome out = run_child(open_without_mappings);
    expect_fine(&out);
}

// -- Huge pages ------------------------------------------------------------------------------------

// A chunk as if on huge pages: what a buffer does not fill of one stays open.
CHILD(part_of_a_huge_page)
{
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.flags = LIEN_GUARD;
    opts.populate = 16 * MIB;
    if (lien_pool_open(world_ctx(&w), &opts, &pool) != 0) {
        _exit(3);
    }
    lien_buf *first = alloc(1), *large = alloc(6 * MIB); // from 4 KiB on
    large->chunk->page = 2 * MIB;
    first->chunk->page = 2 * MIB;
    uint8_t *at = bytes(large), *small = bytes(first);
    take(first, 1);
    poke(small, 1);
    if (skipped() != 1) {
        _exit(1);
    }
    take(large, 2);
    if (skipped() != 1) {
        _exit(2);
    }
    poke(at, 1);           // shares a huge page
    poke(at + 3 * MIB, 1); // does not
}

Test(guard, only_whole_huge_pages_are_guarded)
{
    struct outcome out = run_child(part_of_a_huge_page);
    expect_fault(&out, "stray write");
    expect_text(&out, "offset 3145728 of buffer 2");
    lien_pool *huge = guarded_pool(LIEN_GUARD | LIEN_HUGE_PAGES);
    if (!huge) {
        cr_expect(strstr(world_log, "huge") || strstr(world_log, "memfd"), "%s", world_log);
        return; // the system has none
    }
    lien_buf *buf;
    cr_assert_eq(lien_pool_alloc(huge, 1, &buf), 0);
    take(buf, 1);
    cr_expect_eq(skipped(), 1);
    give(buf);
    lien_buf_free(&buf);
}
