// SPDX-License-Identifier: Apache-2.0
//
// Read spaces and write spaces: what arrives, what is refused on both sides (R3), validation (R13, R14), reverse requests (R2), states of the target (R6, R10).

#include "tests/calls/world.h"

static struct desk desk;
static const lien_method methods[] = {{.name = "test/desk", .handle = to_desk, .arg = &desk}};
static const lien_service service = {.methods = methods, .n_methods = 1};

static struct world *plain(void)
{
    return world_open(7, NULL, NULL, &service, NULL);
}

static struct world *slow(void)
{
    return world_slow(LIENI_SIM_TCP, &service, NULL);
}

static lien_request *call(struct world *w, const lien_call_opts *opts, lien_call **handle)
{
    return desk_call(w, &desk, opts, handle);
}

static const size_t sizes[] = {1, 4095, 65536, 1000001, 16 * MIB};

Test(space, reads_of_each_size, .timeout = 500)
{
    struct lieni_sim_config config;
    lieni_sim_config_init(&config, LIENI_SIM_TCP);
    config.chunk = (struct lieni_sim_range){65536, 262144};
    struct world *w = world_open(7, &config, NULL, &service, NULL);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct seen s = {0}, r = {0};
        lien_buf *source = buf_new(w, CLIENT, sizes[i], i);
        lien_call_opts opts = call_to(&s);
        opts.read = &source;
        opts.n_read = 1;
        lien_request *request = call(w, &opts, NULL);
        cr_assert_eq(lien_request_read_len(request), sizes[i]);
        cr_assert_eq(lien_request_write_len(request), 0);
        lien_space *space = space_of(w, SERVER, buf_new(w, SERVER, sizes[i], 99));
        lien_transfer_opts to = transfer_to(&r);
        cr_assert_eq(lien_request_read(request, space, &to), 0);
        lien_buf *dst;
        cr_assert_eq(lien_space_buf(space, 0, &dst), LIEN_EBUSY);
        cr_assert(run_until(w, &r.released, 5000));
        cr_assert_eq(r.status, 0, "%s", lien_errname(r.status));
        cr_assert(buf_is(space_first(space), i));
        lien_space_free(&space);
        finish(w, &request, &s, 0);
        lien_buf_free(&source);
    }
    world_close(w);
}

Test(space, writes_of_each_size, .timeout = 500)
{
    struct lieni_sim_config config;
    lieni_sim_config_init(&config, LIENI_SIM_TCP);
    config.chunk = (struct lieni_sim_range){65536, 262144};
    struct world *w = world_open(7, &config, NULL, &service, NULL);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct seen s = {0}, r = {0};
        lien_space *space = space_of(w, CLIENT, buf_new(w, CLIENT, sizes[i], 99));
        lien_call_opts opts = call_to(&s);
        opts.write = space;
        lien_request *request = call(w, &opts, NULL);
        cr_assert_eq(lien_request_write_len(request), sizes[i]);
        lien_buf *source = buf_new(w, SERVER, sizes[i], i), *dst;
        lien_transfer_opts to = transfer_to(&r);
        cr_assert_eq(lien_request_write(request, &source, 1, &to), 0);
        cr_assert(run_until(w, &r.released, 5000));
        cr_assert_eq(r.status, 0, "%s", lien_errname(r.status));
        cr_assert_eq(lien_space_buf(space, 0, &dst), LIEN_EBUSY); // the call's, until it ends
        finish(w, &request, &s, 0);
        cr_assert(buf_is(space_first(space), i));
        lien_space_free(&space);
        lien_buf_free(&source);
    }
    world_close(w);
}

// 64 buffers of odd sizes on both sides, 1024 operations that turn the order round.
Test(space, many_buffers_and_operations, .timeout = 500)
{
    struct world *w = plain();
    lien_buf *src[64], *dst[64], *back[64];
    uint64_t total = 0;
    for (unsigned i = 0; i < 64; i++) {
        src[i] = buf_new(w, CLIENT, 1000 + 7 * i, i);
        back[i] = buf_new(w, CLIENT, 1000 + 7 * (63 - i), 500);
        dst[i] = buf_new(w, SERVER, 1000 + 7 * (63 - i), 600);
        total += lien_buf_len(src[i]);
    }
    struct seen s = {0}, r = {0}, x = {0};
    lien_call_opts opts = call_to(&s);
    opts.read = src;
    opts.n_read = 64;
    lien_space *caller, *space;
    cr_assert_eq(lien_space_open(w->ctx[CLIENT], back, 64, &caller), 0);
    opts.write = caller;
    lien_request *request = call(w, &opts, NULL);
    cr_assert_eq(lien_space_open(w->ctx[SERVER], dst, 64, &space), 0);
    static lien_op ops[1024];
    uint64_t piece = total / 1024, at = 0;
    for (unsigned i = 0; i < 1024; i++) {
        uint64_t len = i == 1023 ? total - at : piece;
        ops[i] = (lien_op){.src = at, .dst = total - at - len, .len = len};
        at += len;
    }
    lien_transfer_opts to = transfer_to(&r);
    to.ops = ops;
    to.n_ops = 1024;
    cr_assert_eq(lien_request_read(request, space, &to), 0);
    cr_assert(run_until(w, &r.released, 5000));
    cr_assert_eq(r.status, 0, "%s", lien_errname(r.status));
    // Written back with the same operations: twice turned is as it was.
    lien_buf *bufs[64];
    cr_assert_eq(lien_space_take(space, bufs, 64), 0);
    for (unsigned i = 0; i < 1024; i++) {
        uint64_t src_at = ops[i].src;
        ops[i].src = ops[i].dst;
        ops[i].dst = src_at;
    }
    to = transfer_to(&x);
    to.ops = ops;
    to.n_ops = 1024;
    cr_assert_eq(lien_request_write(request, bufs, 64, &to), 0);
    cr_assert(run_until(w, &x.released, 5000));
    cr_assert_eq(x.status, 0, "%s", lien_errname(x.status));
    finish(w, &request, &s, 0);
    // The caller's two spaces hold the same run of bytes.
    uint64_t i = 0, i_at = 0;
    cr_assert_eq(lien_space_take(caller, back, 64), 0);
    for (unsigned k = 0; k < 64; k++) {
        const void *data, *expected;
        cr_assert_eq(lien_buf_data(back[k], &data), 0);
        for (size_t b = 0; b < lien_buf_len(back[k]); b++) {
            lien_buf_data(src[i], &expected);
            cr_assert_eq(((const uint8_t *)data)[b], ((const uint8_t *)expected)[i_at]);
            if (++i_at == lien_buf_len(src[i])) {
                i++;
                i_at = 0;
            }
        }
    }
    for (unsigned k = 0; k < 64; k++) {
        lien_buf_free(&src[k]);
        lien_buf_free(&back[k]);
        lien_buf_free(&bufs[k]);
    }
    lien_space_free(&space);
    lien_space_free(&caller);
    world_close(w);
}

// What the handler's side refuses before anything is posted. [R3]
Test(space, operations_are_checked_where_they_start)
{
    struct world *w = plain();
    struct seen s = {0};
    lien_buf *source = buf_new(w, CLIENT, 1000, 1), *mine = buf_new(w, SERVER, 1000, 2);
    lien_space *target = space_of(w, CLIENT, buf_new(w, CLIENT, 1000, 3));
    lien_space *space = space_of(w, SERVER, buf_new(w, SERVER, 1000, 4));
    lien_call_opts opts = call_to(&s);
    opts.read = &source;
    opts.n_read = 1;
    opts.write = target;
    lien_request *request = call(w, &opts, NULL);
    static const struct {
        lien_op ops[2];
        int rc;
    } wrong[] = {
        {{{0, 0, 1001}, {0, 0, 0}}, LIEN_ERANGE},
        {{{1000, 0, 1}, {0, 0, 0}}, LIEN_ERANGE},
        {{{0, 1000, 1}, {0, 0, 0}}, LIEN_ERANGE},
        {{{UINT64_MAX, 0, 2}, {0, 0, 0}}, LIEN_ERANGE},
        {{{0, UINT64_MAX, 2}, {0, 0, 0}}, LIEN_ERANGE},
        {{{0, 0, UINT64_MAX}, {0, 0, 0}}, LIEN_ERANGE},
        {{{0, 0, 10}, {0, 9, 10}}, LIEN_EOVERLAP},
        {{{0, 1, 0}, {1001, 0, 0}}, LIEN_ERANGE},
    };
    uint64_t frames = w->conn[SERVER]->link.number_out;
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct seen no = {0};
        lien_transfer_opts to = transfer_to(&no);
        to.ops = wrong[i].ops;
        to.n_ops = 2;
        cr_assert_eq(lien_request_read(request, space, &to), wrong[i].rc, "read %u", i);
        cr_assert_eq(lien_request_write(request, &mine, 1, &to), wrong[i].rc, "write %u", i);
        run_ms(w, 2);
        cr_assert_not(no.done || no.released);
    }
    static lien_op many[LIEN_OPS_MAX + 1];
    lien_transfer_opts to = {.size = sizeof(to), .ops = many, .n_ops = LIEN_OPS_MAX + 1};
    cr_assert_eq(lien_request_read(request, space, &to), LIEN_EINVAL);
    cr_assert_eq(lien_request_write(request, &mine, 1, &to), LIEN_EINVAL);
    cr_assert_eq(w->conn[SERVER]->link.number_out, frames);
    // Operations of no bytes are done at once.
    struct seen none = {0};
    to = transfer_to(&none);
    to.ops = many;
    to.n_ops = LIEN_OPS_MAX;
    cr_assert_eq(lien_request_write(request, &mine, 1, &to), 0);
    cr_assert(run_until(w, &none.released, 10));
    cr_assert_eq(none.status, 0);
    void *data;
    cr_assert_eq(lien_buf_mut(mine, &data), 0);
    finish(w, &request, &s, 0);
    cr_assert(buf_is(space_first(target), 3));
    lien_space_free(&space);
    lien_space_free(&target);
    lien_buf_free(&mine);
    lien_buf_free(&source);
    world_close(w);
}

// The caller's side does not trust the handler's: it refuses them too, and posts nothing. [R3]
Test(space, operations_are_checked_where_they_arrive)
{
    struct world *w = plain();
    struct seen s = {0};
    lien_space *target = space_of(w, CLIENT, buf_new(w, CLIENT, 1000, 3));
    lien_buf *mine = buf_new(w, SERVER, 2000, 2);
    lien_call_opts opts = call_to(&s);
    opts.write = target;
    lien_request *request = call(w, &opts, NULL);
    request->space_len = UINT64_MAX; // a handler's side that lies to itself
    static const lien_op beyond[] = {{0, 1, 1000}};
    struct seen x = {0};
    lien_transfer_opts to = transfer_to(&x);
    to.ops = beyond;
    to.n_ops = 1;
    cr_assert_eq(lien_request_write(request, &mine, 1, &to), 0);
    cr_assert(run_until(w, &x.released, 1000));
    cr_assert_eq(x.status, LIEN_ERANGE, "%s", lien_errname(x.status));
    cr_assert_eq(w->ctx[CLIENT]->stats.read_pieces_posted, 0);
    // The call goes on.
    struct seen y = {0};
    to = transfer_to(&y);
    cr_assert_eq(lien_buf_set_len(mine, 1000), 0);
    cr_assert_eq(lien_request_write(request, &mine, 1, &to), 0);
    cr_assert(run_until(w, &y.released, 1000));
    cr_assert_eq(y.status, 0);
    finish(w, &request, &s, 0);
    cr_assert(buf_is(space_first(target), 2));
    lien_space_free(&target);
    lien_buf_free(&mine);
    world_close(w);
}

// While a READ runs into a call's space a second one is refused, and so is every access. [R10, R6]
Test(space, one_writer_at_a_time)
{
    struct world *w = slow();
    struct seen s = {0}, a = {0}, b = {0}, c = {0};
    lien_space *target = space_of(w, CLIENT, buf_new(w, CLIENT, 100000, 3));
    lien_buf *one = buf_new(w, SERVER, 100000, 1), *two = buf_new(w, SERVER, 100, 2), *dst;
    lien_call_opts opts = call_to(&s);
    opts.write = target;
    lien_request *request = call(w, &opts, NULL);
    cr_assert_eq(target->state, LIENI_TARGET_AVAILABLE);
    cr_assert_eq(lien_space_buf(target, 0, &dst), LIEN_EBUSY);
    cr_assert_eq(lien_space_take(target, &dst, 1), LIEN_EBUSY);
    cr_assert_eq(lien_space_wait(target, 0), LIEN_ETIMEDOUT);
    // A call cannot have it while another has it.
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", NULL, 0, &opts, NULL), LIEN_EBUSY);
    lien_transfer_opts to = transfer_to(&a), to2 = transfer_to(&b);
    cr_assert_eq(lien_request_write(request, &one, 1, &to), 0);
    cr_assert_eq(lien_request_write(request, &two, 1, &to2), 0);
    cr_assert(run_until(w, &b.released, 1000));
    cr_assert_eq(b.status, LIEN_EBUSY, "%s", lien_errname(b.status));
    cr_assert_not(a.done);
    cr_assert_eq(target->state, LIENI_TARGET_READING);
    cr_assert_eq(lien_space_buf(target, 0, &dst), LIEN_EBUSY);
    cr_assert(run_until(w, &a.released, 1000));
    cr_assert_eq(a.status, 0);
    cr_assert_eq(target->state, LIENI_TARGET_AVAILABLE);
    to2 = transfer_to(&c);
    cr_assert_eq(lien_request_write(request, &two, 1, &to2), 0); // over the first 100 bytes
    cr_assert(run_until(w, &c.released, 1000));
    finish(w, &request, &s, 0);
    const void *data;
    cr_assert_eq(lien_buf_data(space_first(target), &data), 0);
    cr_assert_eq(((const uint8_t *)data)[99], pattern(2, 99));
    cr_assert_eq(((const uint8_t *)data)[100], pattern(1, 100));
    lien_space_free(&target);
    lien_buf_free(&one);
    lien_buf_free(&two);
    world_close(w);
}

// `cancel`, or the deadline: the call ends at once, its space is back with the evidence of what was posted, and no sooner.
static void end_in_the_middle(bool cancel)
{
    struct world *w = slow();
    struct seen s = {0}, x = {0}, other = {0}, late = {0};
    lien_buf *probe_dst, *source = buf_new(w, SERVER, 4 * MIB, 1),
                         *dst = buf_new(w, CLIENT, 4 * MIB, 3);
    lien_space *target = space_of(w, CLIENT, dst);
    lien_call_opts opts = call_to(&s), other_opts = call_to(&other);
    opts.write = target;
    opts.timeout_ms = 40;
    lien_call *handle;
    lien_request *request = call(w, &opts, &handle), *second = call(w, &other_opts, NULL);
    lien_transfer_opts to = transfer_to(&x);
    cr_assert_eq(lien_request_write(request, &source, 1, &to), 0);
    run_ms(w, 20);
    cr_assert_eq(target->state, LIENI_TARGET_READING);
    uint32_t posted = w->conn[CLIENT]->reads_outstanding;
    cr_assert_gt(posted, 0);
    if (cancel)
        lien_call_cancel(handle);
    else
        run_ms(w, 20);
    progress(w);
    cr_assert(s.done);
    cr_assert_eq(s.status, cancel ? LIEN_ECANCELED : LIEN_ETIMEDOUT);
    cr_assert_not(s.released);
    cr_assert_eq(target->state, LIENI_TARGET_SEALED);
    cr_assert_eq(lien_space_buf(target, 0, &probe_dst), LIEN_EBUSY);
    run_ms(w, 10); // the handler hears of it; its source is not back: the caller's READs run
    cr_assert(x.done);
    cr_assert_eq(x.status, LIEN_ECANCELED);
    void *mut;
    cr_assert_not(x.released);
    cr_assert_eq(lien_buf_mut(source, &mut), LIEN_EBUSY);
    // No writer gets in any more, and the request can only fail.
    to = transfer_to(&late);
    cr_assert_eq(lien_request_write(request, &source, 1, &to), LIEN_ECANCELED);
    cr_assert(run_until(w, &s.released, 5000));
    cr_assert_eq(s.released_status, 0);
    cr_assert_eq(target->state, LIENI_TARGET_HOME);
    cr_assert_eq(lien_space_buf(target, 0, &probe_dst), 0);
    cr_assert(run_until(w, &x.released, 1000));
    cr_assert_eq(lien_buf_mut(source, &mut), 0);
    cr_assert_eq(lien_request_reply(&request, 0, NULL, 0), 0); // goes nowhere
    cr_assert_not(other.done);
    finish(w, &second, &other, 0);
    cr_assert_not(w->lost[0] || w->lost[1]);
    lien_call_close(&handle);
    lien_space_free(&target);
    lien_buf_free(&source);
    world_close(w);
}

Test(space, cancel_in_the_middle_of_a_write)
{
    end_in_the_middle(true);
}

Test(space, deadline_in_the_middle_of_a_write)
{
    end_in_the_middle(false);
}

// A space may be freed at any time; it is put off.
Test(space, freed_while_sealed)
{
    struct world *w = slow();
    struct seen s = {0}, x = {0};
    lien_buf *source = buf_new(w, SERVER, MIB, 1);
    lien_space *target = space_of(w, CLIENT, buf_new(w, CLIENT, MIB, 3));
    lien_call_opts opts = call_to(&s);
    opts.write = target;
    lien_call *handle;
    lien_request *request = call(w, &opts, &handle);
    lien_transfer_opts to = transfer_to(&x);
    cr_assert_eq(lien_request_write(request, &source, 1, &to), 0);
    run_ms(w, 10);
    uint64_t out = lieni_mem_bytes_out(w->ctx[CLIENT]->mem);
    lien_space_free(&target);
    lien_call_close(&handle);
    cr_assert_eq(lieni_mem_bytes_out(w->ctx[CLIENT]->mem), out);
    cr_assert(run_until(w, &s.released, 5000));
    cr_assert_eq(lieni_mem_bytes_out(w->ctx[CLIENT]->mem), out - MIB);
    lien_request_drop(&request);
    cr_assert(run_until(w, &x.released, 1000));
    lien_buf_free(&source);
    world_close(w);
}

// The reply leaves when all writes are answered, though it was given before. [R2]
Test(space, reply_after_write)
{
    struct world *w = slow();
    struct seen s = {0}, x = {0};
    lien_buf *source = buf_new(w, SERVER, 200000, 1);
    lien_space *target = space_of(w, CLIENT, buf_new(w, CLIENT, 200000, 3));
    lien_call_opts opts = call_to(&s);
    opts.write = target;
    lien_request *request = call(w, &opts, NULL);
    lien_transfer_opts to = transfer_to(&x);
    cr_assert_eq(lien_request_write(request, &source, 1, &to), 0);
    cr_assert_eq(lien_request_reply(&request, 0, "ok", 2), 0);
    run_ms(w, 5);
    cr_assert_not(s.done);
    cr_assert_not(x.done);
    cr_assert(run_until(w, &s.done, 1000));
    cr_assert_eq(s.status, 0);
    cr_assert_eq(s.reply_len, 2);
    cr_assert(x.done);
    cr_assert_eq(x.status, 0);
    cr_assert(run_until(w, &s.released, 100));
    cr_assert(buf_is(space_first(target), 1));
    lien_space_free(&target);
    lien_buf_free(&source);
    run_ms(w, 100);
    world_close(w);
}

// A write that was given up may still arrive: its request cannot succeed, and the source stays held. [R2]
// The reply waits for the write, and the write is given up meanwhile.
Test(space, a_write_given_up_after_the_reply)
{
    struct world *w = slow();
    struct seen s = {0}, x = {0};
    lien_buf *source = buf_new(w, SERVER, MIB, 1);
    lien_space *target = space_of(w, CLIENT, buf_new(w, CLIENT, MIB, 3));
    lien_call_opts opts = call_to(&s);
    opts.write = target;
    lien_request *request = call(w, &opts, NULL);
    lien_transfer_opts to = transfer_to(&x);
    to.timeout_ms = 10;
    cr_assert_eq(lien_request_write(request, &source, 1, &to), 0);
    cr_assert_eq(lien_request_reply(&request, 0, "fine", 4), 0);
    cr_assert(run_until(w, &x.done, 100));
    cr_assert_eq(x.status, LIEN_ETIMEDOUT);
    cr_assert(run_until(w, &s.done, 20));
    cr_assert_eq(s.status, LIEN_ETIMEDOUT, "%s", lien_errname(s.status));
    cr_assert(run_until(w, &s.released, 1000));
    cr_assert(run_until(w, &x.released, 1000));
    lien_space_free(&target);
    lien_buf_free(&source);
    run_ms(w, 100);
    world_close(w);
}

Test(space, a_write_given_up_can_only_fail)
{
    struct world *w = slow();
    struct seen s = {0}, x = {0};
    lien_buf *source = buf_new(w, SERVER, MIB, 1);
    lien_space *target = space_of(w, CLIENT, buf_new(w, CLIENT, MIB, 3));
    lien_call_opts opts = call_to(&s);
    opts.write = target;
    lien_request *request = call(w, &opts, NULL);
    lien_transfer_opts to = transfer_to(&x);
    to.timeout_ms = 10;
    cr_assert_eq(lien_request_write(request, &source, 1, &to), 0);
    cr_assert(run_until(w, &x.done, 100));
    cr_assert_eq(x.status, LIEN_ETIMEDOUT);
    cr_assert_not(x.released);
    void *mut;
    cr_assert_eq(lien_buf_mut(source, &mut), LIEN_EBUSY);
    cr_assert_eq(lien_request_write(request, &source, 1, &to), LIEN_ESTATE);
    cr_assert_eq(lien_request_reply(&request, 0, "fine", 4), LIEN_ESTATE);
    cr_assert_not_null(request);
    cr_assert_eq(lien_request_reply(&request, LIEN_EIO, NULL, 0), 0);
    cr_assert(run_until(w, &s.done, 20));
    cr_assert_eq(s.status, LIEN_EIO);
    cr_assert_not(s.released);
    cr_assert_not(x.released);
    cr_assert(run_until(w, &s.released, 1000));
    cr_assert(run_until(w, &x.released, 1000));
    cr_assert_eq(lien_buf_mut(source, &mut), 0);
    lien_space_free(&target);
    lien_buf_free(&source);
    run_ms(w, 100);
    cr_assert_not(w->lost[0] || w->lost[1]);
    world_close(w);
}

// The caller cancels and reuses its source at each moment of a read: what the handler gets is good bytes or an error, never a mixture said to be good. [R13, R14, R8]
// `hold`: the CANCEL cannot leave for lack of credit, so that the probe's answer alone can tell.
static void reuse_at_each_moment(bool hold)
{
    struct world *w = slow();
    struct lieni_link *link = &w->conn[CLIENT]->link;
    unsigned good = 0, stale = 0, cancelled = 0;
    for (uint64_t at = 0; at < 12000; at += 150) { // us after the read began
        struct seen s = {0}, r = {0};
        lien_buf *source = buf_new(w, CLIENT, 100000, 1);
        lien_call_opts opts = call_to(&s);
        opts.read = &source;
        opts.n_read = 1;
        lien_call *handle;
        lien_request *request = call(w, &opts, &handle);
        lien_space *space = space_of(w, SERVER, buf_new(w, SERVER, 100000, 9));
        lien_transfer_opts to = transfer_to(&r);
        cr_assert_eq(lien_request_read(request, space, &to), 0);
        uint64_t until = lieni_sim_now(w->sim) + at * 1000;
        while (lieni_sim_now(w->sim) < until) {
            progress(w);
            if (!lieni_sim_step(w->sim, until))
                lieni_sim_advance(w->sim, until);
        }
        uint32_t kept = hold ? link->control_left - 1 : 0;
        link->control_left -= kept;
        cr_assert_eq(lien_call_close(&handle), 0);
        void *data;
        cr_assert_eq(lien_buf_mut(source, &data), 0);
        memset(data, 0xee, 100000);
        if (hold)
            run_ms(w, 20);
        link->control_left += kept;
        lieni_ctx_lock(w->ctx[CLIENT]);
        lieni_link_pump(w->conn[CLIENT]);
        lieni_ctx_unlock(w->ctx[CLIENT]);
        cr_assert(run_until(w, &r.released, 1000));
        cr_assert_eq(r.released_status, 0);
        good += r.status == 0;
        stale += r.status == LIEN_ESTALE;
        cancelled += r.status == LIEN_ECANCELED;
        cr_assert_eq(good + stale + cancelled, at / 150 + 1, "%s", lien_errname(r.status));
        if (r.status == 0)
            cr_assert(buf_is(space_first(space), 1), "stale bytes were called good at %lu us",
                      (unsigned long)at);
        lien_space_free(&space);
        lien_request_drop(&request);
        lien_buf_free(&source);
        run_ms(w, 50);
    }
    cr_assert_gt(good, 2);
    cr_assert_gt(hold ? stale : cancelled + stale, 20);
    cr_assert_not(w->lost[0] || w->lost[1]);
    world_close(w);
}

Test(space, source_reused_at_each_moment, .timeout = 500)
{
    reuse_at_each_moment(false);
}

Test(space, source_reused_and_no_cancel_comes, .timeout = 500)
{
    reuse_at_each_moment(true);
}

// The owner says no of a call that ended, though no CANCEL has arrived yet; and of one that is another.
Test(space, the_owner_answers_from_the_live_call)
{
    struct world *w = slow();
    struct seen s = {0}, r = {0};
    lien_buf *source = buf_new(w, CLIENT, 20000, 1);
    lien_call_opts opts = call_to(&s);
    opts.read = &source;
    opts.n_read = 1;
    lien_call *handle;
    lien_request *request = call(w, &opts, &handle);
    lien_space *space = space_of(w, SERVER, buf_new(w, SERVER, 20000, 9));
    lien_transfer_opts to = transfer_to(&r);
    cr_assert_eq(lien_request_read(request, space, &to), 0);
    while (w->conn[SERVER]->calls.n_probing == 0)
        run_until(w, NULL, 0), lieni_sim_advance(w->sim, lieni_sim_now(w->sim) + 1000);
    // The probe is on its way. The caller ends the call; its CANCEL will cross the answer.
    lien_call_close(&handle);
    cr_assert(run_until(w, &r.released, 1000));
    cr_assert(r.status == LIEN_ESTALE || r.status == LIEN_ECANCELED);
    lien_request_drop(&request);
    lien_space_free(&space);
    lien_buf_free(&source);
    run_ms(w, 100);
    world_close(w);
}

// No answer within the probe's time: the bytes are not believed, and the space comes back.
Test(space, no_answer_is_no)
{
    struct world *w = slow();
    struct seen s = {0}, r = {0};
    lien_buf *source = buf_new(w, CLIENT, 20000, 1);
    lien_call_opts opts = call_to(&s);
    opts.read = &source;
    opts.n_read = 1;
    opts.timeout_ms = 300;
    lien_request *request = call(w, &opts, NULL);
    lien_space *space = space_of(w, SERVER, buf_new(w, SERVER, 20000, 9));
    lien_transfer_opts to = transfer_to(&r);
    cr_assert_eq(lien_request_read(request, space, &to), 0);
    while (w->conn[SERVER]->calls.n_probing == 0)
        run_until(w, NULL, 0), lieni_sim_advance(w->sim, lieni_sim_now(w->sim) + 1000);
    w->asleep[CLIENT] = true;
    cr_assert(run_until(w, &r.released, 1000));
    cr_assert(r.status == LIEN_ESTALE || r.status == LIEN_ECANCELED, "%s", lien_errname(r.status));
    cr_assert_eq(r.released_status, 0);
    w->asleep[CLIENT] = false;
    run_ms(w, 100);
    lien_request_drop(&request);
    lien_space_free(&space);
    lien_buf_free(&source);
    run_ms(w, 100);
    world_close(w);
}

// Many reads of one call that end together share a probe. [R14: batched]
Test(space, reads_share_a_probe)
{
    struct world *w = plain();
    struct seen s = {0}, r[20] = {{0}};
    lien_buf *source = buf_new(w, CLIENT, 20000, 1);
    lien_call_opts opts = call_to(&s);
    opts.read = &source;
    opts.n_read = 1;
    lien_request *request = call(w, &opts, NULL);
    lien_space *space[20];
    uint32_t probes = w->conn[SERVER]->calls.next_probe;
    for (unsigned i = 0; i < 20; i++) {
        space[i] = space_of(w, SERVER, buf_new(w, SERVER, 20000, 9));
        lien_transfer_opts to = transfer_to(&r[i]);
        cr_assert_eq(lien_request_read(request, space[i], &to), 0);
    }
    // The reads are posted, and complete while their node does nothing.
    progress(w);
    w->asleep[SERVER] = true;
    run_ms(w, 20);
    w->asleep[SERVER] = false;
    run_ms(w, 1000);
    for (unsigned i = 0; i < 20; i++) {
        cr_assert(r[i].released);
        cr_assert_eq(r[i].status, 0);
        cr_assert(buf_is(space_first(space[i]), 1));
        lien_space_free(&space[i]);
    }
    cr_assert_leq(w->conn[SERVER]->calls.next_probe - probes, 6); // 16 READs at a time
    cr_assert_eq(w->conn[SERVER]->calls.n_probing, 0);
    finish(w, &request, &s, 0);
    lien_buf_free(&source);
    world_close(w);
}

// The connection breaks under a write: at once done, and released as evidence allows.
Test(space, lost_connection)
{
    struct world *w = slow();
    struct seen s = {0}, x = {0}, r = {0};
    lien_buf *source = buf_new(w, SERVER, MIB, 1), *readable = buf_new(w, CLIENT, MIB, 2);
    lien_space *target = space_of(w, CLIENT, buf_new(w, CLIENT, MIB, 3));
    lien_space *space = space_of(w, SERVER, buf_new(w, SERVER, MIB, 4));
    lien_call_opts opts = call_to(&s);
    opts.write = target;
    opts.read = &readable;
    opts.n_read = 1;
    lien_request *request = call(w, &opts, NULL);
    lien_transfer_opts to = transfer_to(&x), to2 = transfer_to(&r);
    cr_assert_eq(lien_request_write(request, &source, 1, &to), 0);
    cr_assert_eq(lien_request_read(request, space, &to2), 0);
    run_ms(w, 10);
    cr_assert(lieni_sim_break_link(w->sim, 0, 1, 0));
    cr_assert(run_until(w, &s.released, 10000));
    cr_assert(run_until(w, &x.released, 10000));
    cr_assert(run_until(w, &r.released, 10000));
    cr_assert(s.status < 0 && x.status < 0 && r.status < 0);
    void *mut;
    cr_assert_eq(lien_buf_mut(readable, &mut), 0);
    lien_request_drop(&request);
    lien_space_free(&target);
    lien_space_free(&space);
    lien_buf_free(&source);
    lien_buf_free(&readable);
    world_close(w);
}

// A WRITE of many operations comes in several frames. A call that ends between two of them costs itself, not the connection; and the handler hears what became of its write.
Test(space, cancel_between_frames_of_a_write)
{
    static lien_op ops[LIEN_OPS_MAX];
    for (unsigned i = 0; i < LIEN_OPS_MAX; i++)
        ops[i] = (lien_op){.src = i * 4, .dst = i * 4, .len = 4};
    for (unsigned k = 0; k < 120; k++) {
        struct world *w = world_open(7, NULL, NULL, &service, NULL);
        struct seen s = {0}, x = {0};
        lien_space *space = space_of(w, CLIENT, buf_new(w, CLIENT, 4096, 2));
        lien_buf *src = buf_new(w, SERVER, 4096, 1);
        lien_call_opts opts = call_to(&s);
        lien_transfer_opts to = transfer_to(&x);
        lien_call *call;
        opts.write = space;
        lien_request *request = desk_call(w, &desk, &opts, &call);
        to.ops = ops;
        to.n_ops = LIEN_OPS_MAX;
        cr_assert_eq(lien_request_write(request, &src, 1, &to), 0);
        for (unsigned i = 0; i < k; i++) {
            uint64_t at = lieni_sim_next_time(w->sim);
            if (at == UINT64_MAX || !lieni_sim_step(w->sim, at))
                break;
            lien_ctx_progress(w->ctx[CLIENT]);
            lien_ctx_progress(w->ctx[SERVER]);
        }
        cr_assert_eq(lien_call_cancel(call), 0);
        run_ms(w, 500);
        cr_assert(!w->lost[CLIENT] && !w->lost[SERVER], "cancel after %u steps", k);
        cr_assert(x.done && x.released, "cancel after %u steps", k);
        lien_request_drop(&request);
        cr_assert_eq(lien_call_close(&call), 0);
        run_ms(w, 100);
        lien_space_free(&space);
        lien_buf_free(&src);
        run_ms(w, 100);
        world_close(w);
    }
}
