// SPDX-License-Identifier: Apache-2.0
//
// Bad input to pools, buffers and registered memory; and to spaces, while nothing is lent.

#include "tests/contract/contract.h"

static void no_alloc(void *arg, int status, lien_buf *buf)
{
    (void)arg;
    (void)status;
    (void)buf;
    contract_fail("a callback of a refused call never runs", __FILE__, __LINE__);
}

static void pool_open(void)
{
    lien_pool *pool = UNTOUCHED;
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    REFUSES(LIEN_EINVAL, lien_pool_open, NULL, &opts, &pool);
    REFUSES(LIEN_EINVAL, lien_pool_open, w.a, &opts, NULL);
    BAD_SIZES(lien_pool_opts, lien_pool_opts_init, o,
              REFUSES(refusal, lien_pool_open, w.a, o, &pool));
    for (unsigned bit = 4; bit < 32; bit++) {
        lien_pool_opts_init(&opts);
        opts.flags = 1u << bit;
        REFUSES(LIEN_EINVAL, lien_pool_open, w.a, &opts, &pool);
    }
    lien_pool_opts_init(&opts);
    opts.reuse = (lien_reuse)(LIEN_REUSE_PEER + 1);
    REFUSES(LIEN_EINVAL, lien_pool_open, w.a, &opts, &pool);
    lien_pool_opts_init(&opts);
    opts.expose_max = opts.limit + 1;
    REFUSES(LIEN_EINVAL, lien_pool_open, w.a, &opts, &pool);
    lien_pool_opts_init(&opts);
    opts.flags = LIEN_GUARD | LIEN_UNGUARDED;
    REFUSES(LIEN_EINVAL, lien_pool_open, w.a, &opts, &pool);
    lien_pool_opts_init(&opts);
    opts.limit = 0;
    REFUSES(LIEN_EINVAL, lien_pool_open, w.a, &opts, &pool);
    opts.limit = SIZE_MAX;
    REFUSES(LIEN_EINVAL, lien_pool_open, w.a, &opts, &pool);
    opts.limit = 8192;
    opts.reserve = 8193;
    REFUSES(LIEN_EINVAL, lien_pool_open, w.a, &opts, &pool);
    opts.reserve = 0;
    opts.populate = 8193;
    REFUSES(LIEN_EINVAL, lien_pool_open, w.a, &opts, &pool);
    opts.populate = 0;
    opts.numa_node = 100000;
    REFUSES(LIEN_EINVAL, lien_pool_open, w.a, &opts, &pool);
    CHECK(pool == UNTOUCHED);
}

static void pool_alloc(void)
{
    static const struct {
        size_t len;
        int code;
    } bad[] = {{0, LIEN_EINVAL}, {SIZE_MAX, LIEN_EMSGSIZE}, {(63u << 20) + 1, LIEN_EMSGSIZE}};
    lien_buf *buf = UNTOUCHED;
    lien_alloc *alloc = UNTOUCHED;
    REFUSES(LIEN_EINVAL, lien_pool_alloc, NULL, 1, &buf);
    REFUSES(LIEN_EINVAL, lien_pool_alloc, w.pool_a, 1, NULL);
    REFUSES(LIEN_EINVAL, lien_pool_alloc_start, NULL, 1, no_alloc, NULL, &alloc);
    REFUSES(LIEN_EINVAL, lien_pool_alloc_start, w.pool_a, 1, NULL, NULL, &alloc);
    REFUSES(LIEN_EINVAL, lien_pool_alloc_cancel, NULL);
    REFUSES(LIEN_EINVAL, lien_pool_alloc_wait, NULL, 1, 10, &buf);
    REFUSES(LIEN_EINVAL, lien_pool_alloc_wait, w.pool_a, 1, 10, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        REFUSES(bad[i].code, lien_pool_alloc, w.pool_a, bad[i].len, &buf);
        REFUSES(bad[i].code, lien_pool_alloc_start, w.pool_a, bad[i].len, no_alloc, NULL, &alloc);
        REFUSES(bad[i].code, lien_pool_alloc_wait, w.pool_a, bad[i].len, 10, &buf);
    }
    CHECK(buf == UNTOUCHED && alloc == UNTOUCHED);
}

// All memory is out: no room now, in each of the three ways to ask; then the pool is closed and answers for itself until the last buffer is home.
static void pool_full_and_closed(void)
{
    lien_pool_opts opts;
    lien_pool *pool = NULL, *none = NULL;
    lien_buf *all = NULL, *buf = UNTOUCHED;
    lien_pool_opts_init(&opts);
    opts.limit = 8192;
    opts.reserve = 0;
    ANSWERS(0, lien_pool_open, w.a, &opts, &pool);
    ANSWERS(0, lien_pool_alloc, pool, 8192, &all);
    REFUSES(LIEN_ELIMIT, lien_pool_alloc, pool, 1, &buf);
    REFUSES(LIEN_ETIMEDOUT, lien_pool_alloc_wait, pool, 1, 5, &buf);
    REFUSES(LIEN_ETIMEDOUT, lien_pool_alloc_wait, pool, 1, 0, &buf);
    lien_pool *same = pool;
    REFUSES(LIEN_EINVAL, lien_pool_close, NULL);
    REFUSES(LIEN_EINVAL, lien_pool_close, &none);
    ANSWERS(0, lien_pool_close, &pool);
    CHECK(!pool);
    REFUSES(LIEN_ESTATE, lien_pool_alloc, same, 1, &buf);
    REFUSES(LIEN_ESTATE, lien_pool_alloc_start, same, 1, no_alloc, NULL, NULL);
    REFUSES(LIEN_ESTATE, lien_pool_alloc_wait, same, 1, 10, &buf);
    lien_pool *again = same;
    REFUSES(LIEN_ESTATE, lien_pool_close, &again);
    CHECK(again == same && buf == UNTOUCHED);
    CALLS(lien_buf_free, &all);
    CHECK(!all);
}

static void buffers(void)
{
    const void *data = UNTOUCHED;
    void *mut = UNTOUCHED;
    lien_buf *none = NULL, *buf = contract_buf(w.pool_a, 100, 1);
    CALLS(lien_buf_free, NULL);
    CALLS(lien_buf_free, &none);
    ANSWERS(0, lien_buf_len, NULL);
    ANSWERS(0, lien_buf_capacity, NULL);
    REFUSES(LIEN_EINVAL, lien_buf_set_len, NULL, 1);
    REFUSES(LIEN_ERANGE, lien_buf_set_len, buf, lien_buf_capacity(buf) + 1);
    REFUSES(LIEN_ERANGE, lien_buf_set_len, buf, SIZE_MAX);
    CHECK(lien_buf_len(buf) == 100);
    REFUSES(LIEN_EINVAL, lien_buf_data, NULL, &data);
    REFUSES(LIEN_EINVAL, lien_buf_data, buf, NULL);
    REFUSES(LIEN_EINVAL, lien_buf_mut, NULL, &mut);
    REFUSES(LIEN_EINVAL, lien_buf_mut, buf, NULL);
    CHECK(data == UNTOUCHED && mut == UNTOUCHED);
    ANSWERS(0, lien_buf_unverified, NULL);
    ANSWERS(0, lien_buf_unverified, buf);
    REFUSES(LIEN_EINVAL, lien_buf_clear, NULL);
    ANSWERS(0, lien_buf_clear, buf);
    CHECK(lien_buf_data(buf, &data) == 0 && ((const char *)data)[99] == 0);
    CHECK(lien_buf_len(buf) == 100);
    CALLS(lien_buf_free, &buf);
}

static void registered(void)
{
    static char bytes[8192];
    lien_mem *mem = UNTOUCHED, *none = NULL;
    lien_buf *buf = UNTOUCHED, *part = NULL;
    REFUSES(LIEN_EINVAL, lien_mem_register, NULL, bytes, sizeof bytes, NULL, &mem);
    REFUSES(LIEN_EINVAL, lien_mem_register, w.a, NULL, sizeof bytes, NULL, &mem);
    REFUSES(LIEN_EINVAL, lien_mem_register, w.a, bytes, 0, NULL, &mem);
    REFUSES(LIEN_EINVAL, lien_mem_register, w.a, bytes, SIZE_MAX, NULL, &mem);
    REFUSES(LIEN_EINVAL, lien_mem_register, w.a, bytes, sizeof bytes, NULL, NULL);
    BAD_SIZES(lien_mem_opts, lien_mem_opts_init, o,
              REFUSES(refusal, lien_mem_register, w.a, bytes, sizeof bytes, o, &mem));
    CHECK(mem == UNTOUCHED);
    ANSWERS(0, lien_mem_register, w.a, bytes, sizeof bytes, NULL, &mem);
    REFUSES(LIEN_EINVAL, lien_mem_buf, NULL, 0, 1, &buf);
    REFUSES(LIEN_EINVAL, lien_mem_buf, mem, 0, 1, NULL);
    REFUSES(LIEN_EINVAL, lien_mem_buf, mem, 0, 0, &buf);
    REFUSES(LIEN_ERANGE, lien_mem_buf, mem, 0, sizeof bytes + 1, &buf);
    REFUSES(LIEN_ERANGE, lien_mem_buf, mem, sizeof bytes, 1, &buf);
    REFUSES(LIEN_ERANGE, lien_mem_buf, mem, SIZE_MAX, 1, &buf);
    REFUSES(LIEN_ERANGE, lien_mem_buf, mem, 1, SIZE_MAX, &buf);
    CHECK(buf == UNTOUCHED);
    ANSWERS(0, lien_mem_buf, mem, 0, 10, &part);
    REFUSES(LIEN_EINVAL, lien_mem_unregister, NULL);
    REFUSES(LIEN_EINVAL, lien_mem_unregister, &none);
    REFUSES(LIEN_EINVAL, lien_mem_unregister_wait, NULL, 1);
    REFUSES(LIEN_EINVAL, lien_mem_unregister_wait, &none, 1);
    REFUSES(LIEN_ETIMEDOUT, lien_mem_unregister_wait, &mem, 1);
    CHECK(mem && mem != UNTOUCHED);
    REFUSES(LIEN_ESTATE, lien_mem_buf, mem, 0, 1, &buf); // being unregistered
    lien_mem *same = mem;
    ANSWERS(0, lien_mem_unregister, &mem);
    CHECK(!mem);
    lien_mem *again = same;
    REFUSES(LIEN_ESTATE, lien_mem_unregister, &again);
    REFUSES(LIEN_ESTATE, lien_mem_unregister_wait, &again, 1);
    CHECK(again == same && buf == UNTOUCHED);
    CALLS(lien_buf_free, &part);
}

void contract_mem(void)
{
    pool_open();
    pool_alloc();
    pool_full_and_closed();
    buffers();
    registered();
}

// -- Spaces --

static void space_open(void)
{
    lien_space *space = UNTOUCHED;
    lien_buf *bufs[LIEN_BUFS_MAX + 1], *kept[LIEN_BUFS_MAX + 1];
    for (size_t i = 0; i < LIEN_BUFS_MAX + 1; i++)
        kept[i] = bufs[i] = contract_buf(w.pool_a, 16, 2);
    REFUSES(LIEN_EINVAL, lien_space_open, NULL, bufs, 1, &space);
    REFUSES(LIEN_EINVAL, lien_space_open, w.a, NULL, 1, &space);
    REFUSES(LIEN_EINVAL, lien_space_open, w.a, bufs, 0, &space);
    REFUSES(LIEN_EINVAL, lien_space_open, w.a, bufs, LIEN_BUFS_MAX + 1, &space);
    REFUSES(LIEN_EINVAL, lien_space_open, w.a, bufs, SIZE_MAX, &space);
    REFUSES(LIEN_EINVAL, lien_space_open, w.a, bufs, 1, NULL);
    REFUSES(LIEN_EINVAL, lien_space_open, w.b, bufs, 1, &space); // buffers of another ctx
    lien_buf *twice[] = {bufs[0], bufs[1], bufs[0]};
    REFUSES(LIEN_EINVAL, lien_space_open, w.a, twice, 3, &space);
    lien_buf *hole[] = {bufs[0], NULL};
    REFUSES(LIEN_EINVAL, lien_space_open, w.a, hole, 2, &space);
    CHECK(twice[0] == bufs[0] && twice[2] == bufs[0] && hole[0] == bufs[0]);
    CHECK(memcmp(bufs, kept, sizeof bufs) == 0 && space == UNTOUCHED);
    for (size_t i = 0; i < LIEN_BUFS_MAX + 1; i++)
        CALLS(lien_buf_free, &bufs[i]);
}

void contract_space(void)
{
    lien_space *space = NULL, *none = NULL;
    lien_buf *bufs[] = {contract_buf(w.pool_a, 16, 2), contract_buf(w.pool_a, 8, 2)};
    lien_buf *out[3] = {UNTOUCHED, UNTOUCHED, UNTOUCHED};
    space_open();
    ANSWERS(0, lien_space_open, w.a, bufs, 2, &space);
    CHECK(!bufs[0] && !bufs[1]);
    ANSWERS(0, lien_space_len, NULL);
    ANSWERS(24, lien_space_len, space);
    REFUSES(LIEN_EINVAL, lien_space_buf, NULL, 0, out);
    REFUSES(LIEN_EINVAL, lien_space_buf, space, 0, NULL);
    REFUSES(LIEN_ERANGE, lien_space_buf, space, 2, out);
    REFUSES(LIEN_ERANGE, lien_space_buf, space, SIZE_MAX, out);
    // A buffer of a space is to look at: freeing it has no effect on the space.
    lien_buf *looked = NULL;
    CHECK(lien_space_buf(space, 0, &looked) == 0);
    size_t looked_len = lien_buf_len(looked);
    lien_buf *given = looked;
    lien_buf_free(&given);
    CHECK(!given && lien_buf_len(looked) == looked_len &&
          lien_buf_data(looked, &(const void *){NULL}) == 0);
    lien_space *second = UNTOUCHED;
    REFUSES(LIEN_EINVAL, lien_space_open, w.a, &looked, 1, &second);
    CHECK(looked && second == UNTOUCHED);
    REFUSES(LIEN_EINVAL, lien_space_take, NULL, out, 2);
    REFUSES(LIEN_EINVAL, lien_space_take, space, NULL, 2);
    REFUSES(LIEN_ERANGE, lien_space_take, space, out, 0);
    REFUSES(LIEN_ERANGE, lien_space_take, space, out, 1);
    REFUSES(LIEN_ERANGE, lien_space_take, space, out, 3);
    REFUSES(LIEN_EINVAL, lien_space_wait, NULL, 0);
    CHECK(out[0] == UNTOUCHED && out[1] == UNTOUCHED && lien_space_len(space) == 24);
    ANSWERS(0, lien_space_wait, space, 0);
    ANSWERS(0, lien_space_take, space, out, 2);
    REFUSES(LIEN_ERANGE, lien_space_buf, space, 0, &bufs[0]);
    CALLS(lien_space_free, NULL);
    CALLS(lien_space_free, &none);
    CALLS(lien_space_free, &space);
    CHECK(!space);
    CALLS(lien_buf_free, &out[0]);
    CALLS(lien_buf_free, &out[1]);
}
