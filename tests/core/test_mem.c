// SPDX-License-Identifier: Apache-2.0
//
// Memory of the application: when it is the application's again [R9, R12], by callback and by waiting.

#include "mem_world.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static struct world w;
static struct lieni_domain dom;
static char memory[3 * 4096];
static lien_mem *mem;
static int released, status;

static void on_released(void *arg, int rc)
{
    cr_expect_eq(arg, memory);
    released++;
    status = rc;
}

static void setup(void)
{
    world_open(&w);
    memset(&dom, 0, sizeof dom);
    released = 0;
    status = 1;
    lien_mem_opts opts;
    lien_mem_opts_init(&opts);
    opts.on_released = on_released;
    opts.arg = memory;
    cr_assert_eq(lien_mem_register(world_ctx(&w), memory, sizeof memory, &opts, &mem), 0);
}

static void teardown(void)
{
    world_close(&w);
    cr_expect_eq(world_strands, 0);
}

TestSuite(mem, .init = setup, .fini = teardown);

static lien_buf *part(size_t offset, size_t len)
{
    lien_buf *buf = NULL;
    cr_assert_eq(lien_mem_buf(mem, offset, len, &buf), 0);
    return buf;
}

static void lend(lien_buf *buf)
{
    struct lieni_region region;
    world_lock(&w);
    cr_assert_eq(lieni_buf_region(buf, &fake_provider, &dom, &region), 0);
    cr_assert_eq(lieni_buf_borrow(buf), 0);
    world_unlock(&w);
}

static void end_lend(lien_buf *buf)
{
    world_lock(&w);
    lieni_buf_unborrow(buf);
    world_unlock(&w);
}

static void lose(lien_buf *buf)
{
    world_lock(&w);
    lieni_buf_lose(buf, &dom);
    world_unlock(&w);
}

static void ended(bool proven)
{
    world_lock(&w);
    lieni_mem_domain_leaving(w.root, &dom);
    lieni_mem_domain_ended(w.root, &dom, proven);
    world_unlock(&w);
}

static void expect_not_yet(void)
{
    world_run();
    cr_expect_eq(released, 0);
}

static void expect_released(int rc)
{
    world_run();
    cr_expect_eq(released, 1);
    cr_expect_eq(status, rc);
}

Test(mem, bad_arguments_change_nothing)
{
    lien_mem *other = NULL;
    lien_buf *buf = NULL;
    lien_ctx *ctx = world_ctx(&w);
    cr_expect_eq(lien_mem_register(NULL, memory, 1, NULL, &other), LIEN_EINVAL);
    cr_expect_eq(lien_mem_register(ctx, NULL, 1, NULL, &other), LIEN_EINVAL);
    cr_expect_eq(lien_mem_register(ctx, memory, 0, NULL, &other), LIEN_EINVAL);
    cr_expect_eq(lien_mem_register(ctx, memory, SIZE_MAX, NULL, &other), LIEN_EINVAL);
    cr_expect_eq(lien_mem_register(ctx, memory, 1, NULL, NULL), LIEN_EINVAL);
    lien_mem_opts opts = {.size = 3};
    cr_expect_eq(lien_mem_register(ctx, memory, 1, &opts, &other), LIEN_EINVAL);
    struct {
        lien_mem_opts opts;
        uint64_t later;
    } newer = {.opts = {.size = sizeof newer}, .later = 1};
    cr_expect_eq(lien_mem_register(ctx, memory, 1, &newer.opts, &other), LIEN_ENOTSUP);
    cr_expect_null(other);
    cr_expect_eq(lien_mem_buf(NULL, 0, 1, &buf), LIEN_EINVAL);
    cr_expect_eq(lien_mem_buf(mem, 0, 1, NULL), LIEN_EINVAL);
    cr_expect_eq(lien_mem_buf(mem, 0, 0, &buf), LIEN_EINVAL);
    cr_expect_eq(lien_mem_buf(mem, 0, sizeof memory + 1, &buf), LIEN_ERANGE);
    cr_expect_eq(lien_mem_buf(mem, 1, sizeof memory, &buf), LIEN_ERANGE);
    cr_expect_eq(lien_mem_buf(mem, SIZE_MAX, 2, &buf), LIEN_ERANGE);
    cr_expect_eq(lien_mem_buf(mem, 2, SIZE_MAX, &buf), LIEN_ERANGE);
    cr_expect_null(buf);
    cr_expect_eq(lien_mem_unregister(NULL), LIEN_EINVAL);
    cr_expect_eq(lien_mem_unregister(&other), LIEN_EINVAL);
    cr_expect_eq(lien_mem_unregister_wait(&other, 0), LIEN_EINVAL);
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    cr_expect_null(mem);
    cr_expect_eq(lien_mem_unregister(&mem), LIEN_EINVAL);
    expect_released(0);
}

Test(mem, buffers_point_into_it_and_may_overlap)
{
    lien_buf *one = part(1, 4097), *two = part(0, sizeof memory);
    void *data;
    cr_assert_eq(lien_buf_mut(one, &data), 0);
    cr_expect_eq(data, memory + 1);
    cr_expect_eq(lien_buf_capacity(one), 4097);
    lend(one);
    cr_expect_eq(dom.last_base, memory);
    cr_expect_eq(dom.last_len, sizeof memory);
    cr_expect_eq(lien_buf_mut(two, &data), 0);
    end_lend(one);
    lien_buf_free(&one);
    lien_buf_free(&two);
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    cr_expect_eq(dom.regions, 0);
    expect_released(0);
}

Test(mem, released_waits_for_the_last_holder_and_lend)
{
    lien_buf *held = part(0, 10), *lent = part(0, 10), *lent_handle = lent, *more = NULL;
    lien_mem *copy = mem;
    lend(lent);
    lien_buf_free(&lent);
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    cr_expect_null(mem);
    expect_not_yet();
    cr_expect_eq(dom.regions, 1, "registered while it is lent");
    cr_expect_eq(lien_mem_buf(copy, 0, 1, &more), LIEN_ESTATE);
    lien_mem *again = copy;
    cr_expect_eq(lien_mem_unregister(&again), LIEN_ESTATE);
    cr_expect_eq(lien_mem_unregister_wait(&again, 0), LIEN_ESTATE);
    cr_expect_eq(again, copy);
    lien_buf_free(&held);
    expect_not_yet();
    end_lend(lent_handle);
    cr_expect_eq(dom.regions, 0, "closed before it is told");
    expect_released(0);
}

Test(mem, the_callback_never_runs_inside_a_call)
{
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    cr_expect_eq(released, 0);
    expect_released(0);
}

Test(mem, lost_memory_waits_for_the_proof)
{
    lien_buf *buf = part(0, 10), *handle = buf;
    lend(buf);
    lose(handle);
    lien_buf_free(&buf);
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    expect_not_yet();
    ended(true);
    expect_released(0);
}

Test(mem, lost_memory_without_proof_is_told_so)
{
    lien_buf *buf = part(0, 10), *handle = buf, *other = part(20, 10);
    lend(buf);
    lose(handle);
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    ended(false);
    expect_not_yet(); // both are held by the application
    lien_buf_free(&buf);
    expect_not_yet();
    lien_buf_free(&other);
    expect_released(LIEN_EQUARANTINED);
}

Test(mem, a_region_that_does_not_close_keeps_the_memory)
{
    lien_buf *buf = part(0, 10);
    lend(buf);
    end_lend(buf);
    lien_buf_free(&buf);
    dom.fail_close = true;
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    expect_not_yet();
    dom.fail_close = false;
    world_lock(&w);
    cr_expect_eq(lieni_mem_domain_leaving(w.root, &dom), 0);
    world_unlock(&w);
    expect_released(0);
}

Test(mem, a_region_that_outlives_its_domain_keeps_it_for_good)
{
    lien_buf *buf = part(0, 10);
    lend(buf);
    end_lend(buf);
    lien_buf_free(&buf);
    dom.fail_close = true;
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    world_lock(&w);
    cr_expect_eq(lieni_mem_domain_leaving(w.root, &dom), 1);
    world_unlock(&w);
    expect_not_yet();
    ended(false);
    expect_released(LIEN_EQUARANTINED);
    cr_expect_eq(dom.regions, 1);
}

Test(mem, a_region_is_gone_with_a_domain_whose_end_is_proved)
{
    lien_buf *buf = part(0, 10);
    lend(buf);
    end_lend(buf);
    lien_buf_free(&buf);
    dom.fail_close = true;
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    ended(true);
    expect_released(0);
}

// -- Waiting ---------------------------------------------------------------------------------------

static lien_buf *waited;

static bool end_it(struct world *world)
{
    (void)world;
    if (w.waits == 2) {
        lieni_buf_unborrow(waited);
    }
    return true;
}

Test(mem, waiting_ends_with_the_release)
{
    cr_expect_eq(w.waits, 0);
    cr_expect_eq(lien_mem_unregister_wait(&mem, LIEN_FOREVER), 0);
    cr_expect_null(mem);
    cr_assert_eq(lien_mem_register(world_ctx(&w), memory, sizeof memory, NULL, &mem), 0);
    waited = part(0, 10);
    lien_buf *buf = waited;
    lend(buf);
    lien_buf_free(&buf);
    cr_expect_eq(lien_mem_unregister_wait(&mem, 0), LIEN_ETIMEDOUT);
    cr_expect_eq(w.waits, 0, "0 asks");
    cr_assert_not_null(mem);
    cr_expect_eq(lien_mem_unregister_wait(&mem, 1000), LIEN_EDEADLK);
    cr_assert_not_null(mem);
    w.waits = 0;
    w.on_wait = end_it;
    cr_expect_eq(lien_mem_unregister_wait(&mem, LIEN_FOREVER), 0);
    cr_expect_null(mem);
    cr_expect_eq(w.waits, 2);
    world_run();
    cr_expect_eq(released, 0, "on_released does not run");
}

Test(mem, waiting_times_out_and_the_callback_takes_over)
{
    lien_buf *buf = part(0, 10), *handle = buf;
    lend(buf);
    lien_buf_free(&buf);
    w.threaded = true;
    uint64_t before = w.env.now(NULL);
    cr_expect_eq(lien_mem_unregister_wait(&mem, 20), LIEN_ETIMEDOUT);
    cr_expect_geq(w.env.now(NULL) - before, 20000000u);
    cr_assert_not_null(mem);
    cr_expect_eq(lien_mem_unregister(&mem), 0);
    expect_not_yet();
    end_lend(handle);
    expect_released(0);
}

Test(mem, released_between_two_waits)
{
    lien_buf *buf = part(0, 10), *handle = buf;
    lend(buf);
    lien_buf_free(&buf);
    cr_expect_eq(lien_mem_unregister_wait(&mem, 0), LIEN_ETIMEDOUT);
    end_lend(handle);
    cr_expect_eq(lien_mem_unregister_wait(&mem, 0), 0);
    cr_expect_null(mem);
}

Test(mem, waiting_for_what_is_lost_for_good)
{
    lien_buf *buf = part(0, 10), *handle = buf;
    lend(buf);
    lose(handle);
    lien_buf_free(&buf);
    cr_expect_eq(lien_mem_unregister_wait(&mem, 0), LIEN_ETIMEDOUT);
    ended(false);
    cr_expect_eq(lien_mem_unregister_wait(&mem, 0), LIEN_EQUARANTINED);
    cr_expect_null(mem);
}

// -- The ctx's end ---------------------------------------------------------------------------------

Test(end, open_memory_is_released_with_the_ctx)
{
    setup();
    lien_buf *buf = part(0, 10);
    const void *data;
    world_close(&w);
    cr_expect_eq(released, 1);
    cr_expect_eq(status, 0);
    cr_expect_eq(lien_buf_data(buf, &data), 0);
    lien_buf_free(&buf);
}

Test(end, lent_memory_is_quarantined_with_the_ctx)
{
    setup();
    lien_buf *buf = part(0, 10);
    lend(buf);
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    world_close(&w);
    cr_expect_eq(released, 1);
    cr_expect_eq(status, LIEN_EQUARANTINED);
}

Test(end, memory_whose_wait_timed_out)
{
    setup();
    lien_buf *buf = part(0, 10);
    cr_expect_eq(lien_mem_unregister_wait(&mem, 0), LIEN_ETIMEDOUT);
    world_close(&w);
    cr_expect_eq(released, 0);
    lien_buf_free(&buf);
}
