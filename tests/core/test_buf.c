// SPDX-License-Identifier: Apache-2.0
//
// Buffers: what each state allows [R7], frees that wait, loss and its end [R12], regions, handles
// that outlive their ctx, stale handles.

#include "mem_world.h"

#include <criterion/criterion.h>
#include <string.h>

static struct world w;
static lien_pool *pool;
static struct lieni_domain dom_a, dom_b;

static void setup(void)
{
    world_open(&w);
    pool = world_pool(&w, 1 << 20, 0);
    memset(&dom_a, 0, sizeof dom_a);
    memset(&dom_b, 0, sizeof dom_b);
}

static void teardown(void)
{
    world_close(&w);
    cr_expect_eq(world_strands, 0);
}

TestSuite(buf, .init = setup, .fini = teardown);

static lien_buf *alloc(size_t len)
{
    lien_buf *buf = NULL;
    cr_assert_eq(lien_pool_alloc(pool, len, &buf), 0);
    return buf;
}

static int borrow(lien_buf *buf)
{
    world_lock(&w);
    int rc = lieni_buf_borrow(buf);
    world_unlock(&w);
    return rc;
}

static int take(lien_buf *buf)
{
    world_lock(&w);
    int rc = lieni_buf_take(buf);
    world_unlock(&w);
    return rc;
}

static void unborrow(lien_buf *buf)
{
    world_lock(&w);
    lieni_buf_unborrow(buf);
    world_unlock(&w);
}

static void give(lien_buf *buf)
{
    world_lock(&w);
    lieni_buf_give(buf);
    world_unlock(&w);
}

static void lose(lien_buf *buf, struct lieni_domain *domain)
{
    world_lock(&w);
    lieni_buf_lose(buf, domain);
    world_unlock(&w);
}

static void ended(struct lieni_domain *domain, bool proven)
{
    world_lock(&w);
    lieni_mem_domain_leaving(w.root, domain);
    lieni_mem_domain_ended(w.root, domain, proven);
    world_unlock(&w);
}

static uint64_t bytes_out(void)
{
    return lieni_mem_bytes_out(w.root);
}

static uint64_t bytes_lost(void)
{
    return lieni_mem_bytes_lost(w.root);
}

// What each access answers in the buffer's present state.
static void expect_access(lien_buf *buf, int data_rc, int mut_rc)
{
    const void *data = NULL;
    void *mut = NULL;
    size_t len = lien_buf_len(buf);
    cr_expect_eq(lien_buf_data(buf, &data), data_rc);
    cr_expect_eq(data != NULL, data_rc == 0, "written only on success");
    cr_expect_eq(lien_buf_mut(buf, &mut), mut_rc);
    cr_expect_eq(mut != NULL, mut_rc == 0, "written only on success");
    cr_expect_eq(lien_buf_set_len(buf, 1), mut_rc);
    cr_expect_eq(lien_buf_len(buf), mut_rc == 0 ? 1 : len);
}

Test(buf, each_state_allows_what_it_says)
{
    lien_buf *buf = alloc(100);
    expect_access(buf, 0, 0);
    cr_assert_eq(borrow(buf), 0);
    expect_access(buf, 0, LIEN_EBUSY);
    cr_expect_eq(take(buf), LIEN_EBUSY);
    cr_assert_eq(borrow(buf), 0);
    unborrow(buf);
    expect_access(buf, 0, LIEN_EBUSY);
    unborrow(buf);
    expect_access(buf, 0, 0);
    cr_assert_eq(take(buf), 0);
    expect_access(buf, LIEN_EBUSY, LIEN_EBUSY);
    cr_expect_eq(borrow(buf), LIEN_EBUSY);
    cr_expect_eq(take(buf), LIEN_EBUSY);
    lose(buf, &dom_a);
    expect_access(buf, LIEN_EQUARANTINED, LIEN_EQUARANTINED);
    cr_expect_eq(borrow(buf), LIEN_EQUARANTINED);
    cr_expect_eq(take(buf), LIEN_EQUARANTINED);
    ended(&dom_a, true);
    expect_access(buf, 0, 0);
    lien_buf_free(&buf);
    cr_expect_null(buf);
    cr_expect_eq(bytes_out(), 0);
}

Test(buf, ending_a_lend_that_does_not_run_changes_nothing)
{
    lien_buf *buf = alloc(100);
    unborrow(buf);
    give(buf);
    lose(buf, &dom_a);
    expect_access(buf, 0, 0);
    cr_assert_eq(borrow(buf), 0);
    give(buf);
    expect_access(buf, 0, LIEN_EBUSY);
    unborrow(buf);
    cr_assert_eq(take(buf), 0);
    world_log[0] = 0;
    unborrow(buf);
    cr_expect_neq(world_log[0], 0, "it is said");
    expect_access(buf, LIEN_EBUSY, LIEN_EBUSY);
    give(buf);
    lien_buf_free(&buf);
}

// A freed and lent buffer's memory must not serve another before its release.
static void free_waits(bool target)
{
    lien_buf *buf = alloc(1 << 20), *next = NULL;
    lien_buf *lent = buf;
    cr_assert_eq(target ? take(buf) : borrow(buf), 0);
    lien_buf_free(&buf);
    cr_expect_null(buf);
    cr_expect_eq(bytes_out(), 1 << 20);
    cr_expect_eq(lien_pool_alloc(pool, 4096, &next), LIEN_ELIMIT);
    cr_expect_eq(borrow(lent), LIEN_EINVAL, "nothing new with a freed one");
    lien_buf *again = lent;
    lien_buf_free(&again);
    cr_expect_eq(bytes_out(), 1 << 20, "freeing twice is freeing once");
    target ? give(lent) : unborrow(lent);
    cr_expect_eq(bytes_out(), 0);
    cr_expect_eq(lien_pool_alloc(pool, 1 << 20, &next), 0);
    lien_buf_free(&next);
}

Test(buf, free_of_a_borrowed_one_waits_for_its_release)
{
    free_waits(false);
}

Test(buf, free_of_a_target_waits_for_its_release)
{
    free_waits(true);
}

Test(buf, free_waits_for_the_last_of_many_borrows)
{
    lien_buf *buf = alloc(4096), *lent = buf;
    for (int i = 0; i < 100; i++) {
        cr_assert_eq(borrow(buf), 0);
    }
    lien_buf_free(&buf);
    for (int i = 0; i < 99; i++) {
        unborrow(lent);
    }
    cr_expect_eq(bytes_out(), 4096);
    unborrow(lent);
    cr_expect_eq(bytes_out(), 0);
}

Test(buf, lost_ones_come_back_by_proof_only)
{
    lien_buf *buf = alloc(1 << 20), *next = NULL, *lent = buf;
    cr_assert_eq(take(buf), 0);
    lien_buf_free(&buf);
    lose(lent, &dom_a);
    cr_expect_eq(bytes_lost(), 1 << 20);
    ended(&dom_b, true);
    cr_expect_eq(lien_pool_alloc(pool, 4096, &next), LIEN_ELIMIT, "another domain proves nothing");
    ended(&dom_a, true);
    cr_expect_eq(bytes_lost(), 0);
    cr_expect_eq(bytes_out(), 0);
    cr_expect_eq(lien_pool_alloc(pool, 1 << 20, &next), 0);
    lien_buf_free(&next);
}

Test(buf, lost_ones_without_proof_stay_lost_and_mapped)
{
    lien_buf *buf = alloc(1 << 20), *next = NULL, *lent = buf;
    void *bytes = lieni_buf_addr(buf);
    cr_assert_eq(borrow(buf), 0);
    lien_buf_free(&buf);
    lose(lent, &dom_a);
    ended(&dom_a, false);
    ended(&dom_a, true); // the address of a new domain may be the old one's
    cr_expect_eq(bytes_lost(), 1 << 20);
    cr_expect_eq(lien_pool_alloc(pool, 4096, &next), LIEN_ELIMIT);
    cr_expect_eq(lieni_buf_state(lent), LIENI_BUF_LOST);
    cr_assert_eq(lien_pool_close(&pool), 0);
    cr_expect(is_mapped(bytes));
}

Test(buf, loss_in_one_domain_and_borrows_in_others)
{
    lien_buf *buf = alloc(4096);
    cr_assert_eq(borrow(buf), 0); // a
    cr_assert_eq(borrow(buf), 0); // b
    cr_assert_eq(borrow(buf), 0); // a third, in a healthy domain
    lose(buf, &dom_a);
    lose(buf, &dom_b);
    ended(&dom_b, true);
    expect_access(buf, LIEN_EQUARANTINED, LIEN_EQUARANTINED);
    ended(&dom_a, true);
    expect_access(buf, 0, LIEN_EBUSY); // the third still reads
    cr_assert_eq(borrow(buf), 0);
    lose(buf, &dom_b);
    unborrow(buf);
    expect_access(buf, LIEN_EQUARANTINED, LIEN_EQUARANTINED);
    ended(&dom_b, true);
    expect_access(buf, 0, 0);
    lien_buf_free(&buf);
}

Test(buf, lost_twice_to_one_domain_ends_once)
{
    lien_buf *buf = alloc(4096);
    cr_assert_eq(borrow(buf), 0);
    cr_assert_eq(borrow(buf), 0);
    lose(buf, &dom_a);
    lose(buf, &dom_a);
    cr_expect_eq(bytes_lost(), 4096);
    ended(&dom_a, true);
    expect_access(buf, 0, 0);
    lien_buf_free(&buf);
    cr_expect_eq(bytes_out(), 0);
}

Test(buf, one_proof_of_two_is_not_enough)
{
    lien_buf *buf = alloc(4096), *lent = buf;
    cr_assert_eq(borrow(buf), 0);
    cr_assert_eq(borrow(buf), 0);
    lien_buf_free(&buf);
    lose(lent, &dom_a);
    lose(lent, &dom_b);
    ended(&dom_a, false);
    ended(&dom_b, true);
    cr_expect_eq(lieni_buf_state(lent), LIENI_BUF_LOST);
    cr_expect_eq(bytes_lost(), 4096);
}

Test(buf, a_region_is_made_once_for_a_chunk_and_domain)
{
    lien_buf *one = alloc(4096), *two = alloc(4096);
    struct lieni_region a, b, c;
    world_lock(&w);
    cr_assert_eq(lieni_buf_region(one, &fake_provider, &dom_a, &a), 0);
    cr_assert_eq(lieni_buf_region(two, &fake_provider, &dom_a, &b), 0);
    cr_assert_eq(lieni_buf_region(two, &fake_provider, &dom_b, &c), 0);
    world_unlock(&w);
    cr_expect_eq(dom_a.registered, 1);
    cr_expect_eq(dom_b.registered, 1);
    cr_expect_eq(dom_a.last_access, LIENI_ACCESS_LOCAL | LIENI_ACCESS_REMOTE);
    cr_expect_eq(a.mr, b.mr);
    cr_expect_eq((intptr_t)(b.addr - a.addr),
                 (char *)lieni_buf_addr(two) - (char *)lieni_buf_addr(one));
    cr_expect_eq(a.addr,
                 0x100000 + (uint64_t)((char *)lieni_buf_addr(one) - (char *)dom_a.last_base));
    lien_buf_free(&one);
    lien_buf_free(&two);
    world_lock(&w);
    cr_expect_eq(lieni_mem_domain_leaving(w.root, &dom_a), 0);
    cr_expect_eq(dom_a.regions, 0);
    cr_expect_eq(dom_b.regions, 1);
    world_unlock(&w);
    ended(&dom_b, true);
}

Test(buf, a_failed_registration_is_told_and_tried_again)
{
    lien_buf *buf = alloc(4096);
    struct lieni_region region;
    dom_a.fail_reg = 1;
    world_lock(&w);
    cr_expect_eq(lieni_buf_region(buf, &fake_provider, &dom_a, &region), LIEN_EREGISTER);
    cr_expect_eq(lieni_buf_region(buf, &fake_provider, &dom_a, &region), 0);
    world_unlock(&w);
    ended(&dom_a, true);
    lien_buf_free(&buf);
}

Test(buf, an_own_region_covers_the_buffer_alone)
{
    lien_buf *buf = alloc(5000);
    struct lieni_region region;
    world_lock(&w);
    cr_assert_eq(lieni_buf_own_region(buf, &fake_provider, &dom_a, &region), 0);
    cr_expect_eq(dom_a.last_base, lieni_buf_addr(buf));
    cr_expect_eq(dom_a.last_len, 5000);
    cr_expect_eq(dom_a.last_access, LIENI_ACCESS_REMOTE);
    cr_expect_eq(fake_provider.mr_close(region.mr), 0);
    world_unlock(&w);
    lien_buf_free(&buf);
}

Test(buf, stale_and_null_handles_are_refused)
{
    lien_buf *buf = alloc(4096), *stale = buf;
    const void *data;
    void *mut;
    lien_buf_free(&buf);
    cr_expect_eq(lien_buf_data(stale, &data), LIEN_EINVAL);
    cr_expect_eq(lien_buf_mut(stale, &mut), LIEN_EINVAL);
    cr_expect_eq(lien_buf_set_len(stale, 1), LIEN_EINVAL);
    cr_expect_eq(lien_buf_len(stale), 0);
    cr_expect_eq(lien_buf_capacity(stale), 0);
    cr_expect_eq(borrow(stale), LIEN_EINVAL);
    cr_expect_eq(take(stale), LIEN_EINVAL);
    cr_expect_not(lieni_buf_in_ctx(stale, w.root));
    lien_buf_free(&stale);
    cr_expect_eq(bytes_out(), 0);
    lien_buf_free(NULL);
    lien_buf_free(&buf);
    cr_expect_eq(lien_buf_data(NULL, &data), LIEN_EINVAL);
    cr_expect_eq(lien_buf_mut(NULL, &mut), LIEN_EINVAL);
    cr_expect_eq(lien_buf_set_len(NULL, 0), LIEN_EINVAL);
    buf = alloc(10);
    cr_expect_eq(lien_buf_data(buf, NULL), LIEN_EINVAL);
    cr_expect_eq(lien_buf_mut(buf, NULL), LIEN_EINVAL);
    cr_expect(lieni_buf_in_ctx(buf, w.root));
    cr_expect_not(lieni_buf_in_ctx(buf, (struct lieni_mem_root *)(void *)&w));
    lien_buf_free(&buf);
}

Test(buf, length_stays_within_capacity)
{
    lien_buf *buf = alloc(5000);
    cr_expect_eq(lien_buf_len(buf), 5000);
    cr_expect_eq(lien_buf_capacity(buf), 8192);
    cr_expect_eq(lien_buf_set_len(buf, 8193), LIEN_ERANGE);
    cr_expect(strstr(world_log, "8193") && strstr(world_log, "8192"), "%s", world_log);
    cr_expect_eq(lien_buf_len(buf), 5000);
    cr_expect_eq(lien_buf_set_len(buf, 8192), 0);
    cr_expect_eq(lien_buf_set_len(buf, 0), 0);
    cr_expect_eq(lien_buf_len(buf), 0);
    lien_buf_free(&buf);
}

Test(buf, the_copy_that_counts)
{
    _Atomic uint64_t counter = 5;
    char from[] = "payload", to[sizeof from] = "";
    lieni_copy_payload(&counter, to, from, sizeof from);
    lieni_copy_payload(&counter, NULL, NULL, 0);
    cr_expect_str_eq(to, from);
    cr_expect_eq(counter, 5 + sizeof from);
}

// -- The ctx's end ---------------------------------------------------------------------------------

Test(end, held_buffers_outlive_the_ctx)
{
    setup();
    lien_buf *buf = alloc(4096), *large = alloc(1 << 19);
    void *mut;
    const void *data;
    cr_assert_eq(lien_buf_mut(buf, &mut), 0);
    memset(mut, 7, 4096);
    void *base = lieni_buf_addr(large);
    world_close(&w);
    cr_expect_eq(lien_buf_data(buf, &data), 0);
    cr_expect_eq(((const char *)data)[4095], 7);
    cr_expect_eq(lien_buf_set_len(buf, 10), 0);
    lien_buf_free(&large);
    lien_buf_free(&buf);
    cr_expect_not(is_mapped(base), "the last one takes the chunk with it");
}

Test(end, what_is_lent_or_lost_stays_mapped_for_good)
{
    setup();
    lien_buf *borrowed = alloc(4096), *lost = alloc(4096), *held = alloc(4096);
    void *one = lieni_buf_addr(borrowed), *two = lieni_buf_addr(lost);
    lien_buf *handle = borrowed;
    cr_assert_eq(borrow(borrowed), 0);
    cr_assert_eq(take(lost), 0);
    lose(lost, &dom_a);
    lien_buf_free(&lost);
    world_close(&w);
    lien_buf_free(&handle);
    lien_buf_free(&held);
    cr_expect(is_mapped(one));
    cr_expect(is_mapped(two));
    cr_expect_eq(lieni_buf_state(borrowed), LIENI_BUF_LOST);
}

Test(end, memory_with_a_region_that_never_closed_stays_mapped)
{
    setup();
    lien_buf *buf = alloc(4096);
    void *bytes = lieni_buf_addr(buf);
    struct lieni_region region;
    world_lock(&w);
    cr_assert_eq(lieni_buf_region(buf, &fake_provider, &dom_a, &region), 0);
    dom_a.fail_close = true;
    cr_expect_eq(lieni_mem_domain_leaving(w.root, &dom_a), 1);
    lieni_mem_domain_ended(w.root, &dom_a, false);
    world_unlock(&w);
    world_close(&w);
    lien_buf_free(&buf);
    cr_expect(is_mapped(bytes));
}
