// SPDX-License-Identifier: Apache-2.0
//
// The kinds of fault in docs/field-reports.md on the simulator, where the shadow of all memory judges and NICs go on writing after cancel, shutdown and disconnect. The tests of the same numbers over tcp
// are in the other files of this folder.

#include "core/grant.h"
#include "tests/calls/world.h"

static struct desk desk;
static const lien_method methods[] = {{.name = "test/desk", .handle = to_desk, .arg = &desk}};
static const lien_service service = {.methods = methods, .n_methods = 1};

static struct world *slow(enum lieni_sim_class kind)
{
    return world_slow(kind, &service, &service);
}

// What the application has now, as the shadow is told: nobody else may write there.
static void owns(struct world *w, lien_buf *buf)
{
    lieni_shadow_app_owns(w->sim, lieni_buf_addr(buf), lien_buf_len(buf));
    cr_assert_eq(lieni_sim_violations(w->sim), 0, "%s", lieni_sim_violation(w->sim, 0));
}

static void fill(lien_buf *buf, uint64_t seed)
{
    void *data;
    cr_assert_eq(lien_buf_mut(buf, &data), 0);
    for (size_t i = 0; i < lien_buf_len(buf); i++)
        ((uint8_t *)data)[i] = pattern(seed, i);
}

static void once(const struct seen *s, int status)
{
    cr_assert_eq(s->n_done, 1);
    cr_assert_eq(s->n_released, 1);
    cr_assert_eq(s->status, status, "%s", lien_errname(s->status));
}

// -- 1, 5: ends in the middle of a transfer --

enum how {
    DEADLINE,
    CANCEL,
    FROZEN, // deadline, and the peer stands still for good
    CLOSE,
    BREAK
};

// `kind`: the evidence class. What the call had comes back when nothing can write there any more, or is not the caller's.
static void end_in_the_middle(enum lieni_sim_class kind, enum how how)
{
    struct world *w = slow(kind);
    struct seen s = {0}, x = {0}, others[10] = {{0}};
    lien_request *request[10];
    for (unsigned i = 0; i < 10; i++) {
        lien_call_opts plain = call_to(&others[i]);
        request[i] = desk_call(w, &desk, &plain, NULL);
    }
    lien_buf *source = buf_new(w, SERVER, 4 * MIB, 1), *back = NULL;
    lien_space *space = space_of(w, CLIENT, buf_new(w, CLIENT, 4 * MIB, 3));
    lien_call_opts opts = call_to(&s);
    opts.write = space;
    opts.timeout_ms = 40;
    lien_call *handle;
    lien_request *writer = desk_call(w, &desk, &opts, &handle);
    lien_transfer_opts to = transfer_to(&x);
    cr_assert_eq(lien_request_write(writer, &source, 1, &to), 0);
    run_ms(w, 20);
    cr_assert_gt(w->conn[CLIENT]->reads_outstanding, 0);
    if (how == FROZEN)
        w->asleep[SERVER] = true;
    if (how == CANCEL)
        lien_call_cancel(handle);
    else if (how == CLOSE)
        lien_conn_close(&w->conn[CLIENT]);
    else if (how == BREAK)
        cr_assert(lieni_sim_break_link(w->sim, 0, 1, 0));
    progress(w);
    cr_assert(run_until(w, &s.done, 25));
    cr_assert_not(s.released);
    cr_assert_eq(lien_space_buf(space, 0, &back), LIEN_EBUSY);
    bool alone = how == DEADLINE || how == CANCEL; // the call ended alone
    for (unsigned i = 0; i < 10 && alone; i++)
        cr_assert_not(others[i].done);
    cr_assert(run_until(w, &s.released, 20000));
    if (s.released_status == 0) {
        back = space_first(space);
        owns(w, back);
        fill(back, 77);
        run_ms(w, 5000);
        cr_assert(buf_is(back, 77));
    } else {
        cr_assert_eq(s.released_status, LIEN_EQUARANTINED);
        cr_assert_eq(lien_space_buf(space, 0, &back), LIEN_EQUARANTINED);
        cr_assert(!alone && kind != LIENI_SIM_TCP, "lost though it could be proved");
    }
    once(&s, how == CANCEL  ? LIEN_ECANCELED
             : how == CLOSE ? LIEN_ECLOSED
             : how == BREAK ? s.status
                            : LIEN_ETIMEDOUT);
    w->asleep[SERVER] = false;
    run_ms(w, 10);
    for (unsigned i = 0; i < 10; i++) {
        if (alone)
            finish(w, &request[i], &others[i], 0);
        else
            lien_request_drop(&request[i]);
    }
    lien_request_drop(&writer);
    cr_assert(run_until(w, &x.released, 20000));
    lien_call_close(&handle);
    lien_space_free(&space);
    lien_buf_free(&source);
    run_ms(w, 5000);
    for (unsigned i = 0; i < 10; i++)
        cr_assert_eq(others[i].n_done, 1);
    world_close(w);
}

Test(sim, field_report_01_timed_out_destination)
{
    end_in_the_middle(LIENI_SIM_TCP, DEADLINE);
    end_in_the_middle(LIENI_SIM_VERBS, DEADLINE);
    end_in_the_middle(LIENI_SIM_TCP, CANCEL);
    end_in_the_middle(LIENI_SIM_VERBS, CANCEL);
    end_in_the_middle(LIENI_SIM_TCP, FROZEN);
}

Test(sim, field_report_05_forced_end)
{
    for (int kind = 0; kind < LIENI_SIM_CLASSES; kind++) {
        end_in_the_middle((enum lieni_sim_class)kind, CLOSE);
        end_in_the_middle((enum lieni_sim_class)kind, BREAK);
    }
}

// -- 2: a source used for the next call --

static void step_us(struct world *w, uint64_t us)
{
    uint64_t until = lieni_sim_now(w->sim) + us * 1000;
    while (lieni_sim_now(w->sim) < until) {
        progress(w);
        if (!lieni_sim_step(w->sim, until))
            lieni_sim_advance(w->sim, until);
    }
}

// The server's READ of the first call is queued, and may fetch what the buffer has for the second one. `hold`: no CANCEL comes.
static void reused_after(struct world *w, uint64_t us, bool hold, unsigned *stale)
{
    struct seen s[2] = {{0}}, r[2] = {{0}};
    lien_call *handle[2];
    lien_request *request[2];
    lien_space *space[2];
    lien_buf *buf = buf_new(w, CLIENT, 100000, 1);
    uint32_t kept = 0;
    for (unsigned i = 0; i < 2; i++) {
        lien_call_opts opts = call_to(&s[i]);
        opts.read = &buf;
        opts.n_read = 1;
        request[i] = desk_call(w, &desk, &opts, &handle[i]);
        space[i] = space_of(w, SERVER, buf_new(w, SERVER, 100000, 9));
        lien_transfer_opts to = transfer_to(&r[i]);
        cr_assert_eq(lien_request_read(request[i], space[i], &to), 0);
        if (i == 1)
            break;
        step_us(w, us);
        struct lieni_link *link = &w->conn[CLIENT]->link;
        kept = hold ? link->control_left - 1 : 0;
        link->control_left -= kept;
        cr_assert_eq(lien_call_close(&handle[0]), 0);
        fill(buf, 2);
        if (hold)
            run_ms(w, 20);
        link->control_left += kept;
        lieni_ctx_lock(w->ctx[CLIENT]);
        lieni_link_pump(w->conn[CLIENT]);
        lieni_ctx_unlock(w->ctx[CLIENT]);
    }
    for (unsigned i = 0; i < 2; i++) {
        cr_assert(run_until(w, &r[i].released, 1000));
        if (r[i].status == 0)
            cr_assert(buf_is(space_first(space[i]), i + 1), "believed another call's bytes");
        lien_space_free(&space[i]);
    }
    cr_assert_eq(r[1].status, 0);
    *stale += r[0].status == LIEN_ESTALE;
    lien_request_drop(&request[0]);
    finish(w, &request[1], &s[1], 0);
    lien_call_close(&handle[1]);
    lien_buf_free(&buf);
    run_ms(w, 50);
}

Test(sim, field_report_02_reused_source, .timeout = 500)
{
    struct world *w = slow(LIENI_SIM_TCP);
    unsigned stale = 0;
    for (uint64_t us = 0; us < 12000; us += 500) {
        reused_after(w, us, false, &stale);
        reused_after(w, us, true, &stale);
    }
    cr_assert_gt(stale, 5);
    cr_assert_not(w->lost[0] || w->lost[1]);
    world_close(w);
}

// -- 3: a lost connection, and the source --

// The client's memory stays its peer's to read until the endpoint is gone, though the call ended; and what the peer has read is not believed, since nobody can vouch for it any more.
Test(sim, field_report_03_lost_source)
{
    static uint8_t bytes[100000];
    struct world *w = slow(LIENI_SIM_TCP);
    struct seen s = {0}, r = {0}, gone = {0};
    lien_mem *mem;
    lien_buf *source;
    lien_mem_opts mo;
    lien_mem_opts_init(&mo);
    mo.on_released = saw_released;
    mo.arg = &gone;
    cr_assert_eq(lien_mem_register(w->ctx[CLIENT], bytes, sizeof(bytes), &mo, &mem), 0);
    cr_assert_eq(lien_mem_buf(mem, 0, sizeof(bytes), &source), 0);
    lien_call_opts opts = call_to(&s);
    opts.read = &source;
    opts.n_read = 1;
    lien_request *request = desk_call(w, &desk, &opts, NULL);
    lien_space *space = space_of(w, SERVER, buf_new(w, SERVER, sizeof(bytes), 9));
    lien_transfer_opts to = transfer_to(&r);
    cr_assert_eq(lien_request_read(request, space, &to), 0);
    for (unsigned i = 0; i < 100000 && w->conn[SERVER]->calls.n_probing == 0; i++)
        step_us(w, 1);
    cr_assert_eq(w->conn[SERVER]->calls.n_probing, 1); // all bytes are there
    cr_assert_not(r.done);
    w->asleep[CLIENT] = true; // it answers no more
    cr_assert(lieni_sim_break_link(w->sim, 0, 1, 0));
    cr_assert(run_until(w, &r.released, 10000));
    cr_assert_lt(r.status, 0, "believed what nobody vouched for");
    w->asleep[CLIENT] = false;
    lien_buf_free(&source);
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    cr_assert(run_until(w, &s.done, 10000));
    cr_assert_lt(s.status, 0);
    bool ended = w->conn[CLIENT]->state >= LIENI_CONN_GONE;
    cr_assert_eq(gone.released, ended);
    cr_assert(run_until(w, &gone.released, 10000));
    cr_assert_geq(w->conn[CLIENT]->state, LIENI_CONN_GONE);
    lien_request_drop(&request);
    lien_space_free(&space);
    world_close(w);
}

// -- 4: a session ends under its handler --

Test(sim, field_report_04_handler_keeps_buffers)
{
    struct world *w = slow(LIENI_SIM_TCP);
    struct seen s = {0}, r = {0};
    lien_buf *body = buf_new(w, CLIENT, 50000, 1), *source = buf_new(w, CLIENT, 60000, 2);
    lien_call_opts opts = call_to(&s);
    opts.read = &source;
    opts.n_read = 1;
    opts.body = &body;
    opts.n_body = 1;
    lien_request *request = desk_call(w, &desk, &opts, NULL);
    lien_space *space = space_of(w, SERVER, buf_new(w, SERVER, 60000, 9));
    lien_transfer_opts to = transfer_to(&r);
    cr_assert_eq(lien_request_read(request, space, &to), 0);
    cr_assert(run_until(w, &r.released, 1000));
    cr_assert_eq(r.status, 0);
    cr_assert(lieni_sim_break_link(w->sim, 0, 1, 0));
    cr_assert(run_until(w, &w->lost[SERVER], 10000));
    lien_conn_close(&w->conn[SERVER]);
    cr_assert_eq(lien_pool_close(&w->pool[SERVER]), 0);
    run_ms(w, 20000);
    // The handler still works on both.
    cr_assert(buf_is(lien_request_body(request), 1));
    cr_assert(buf_is(space_first(space), 2));
    owns(w, space_first(space));
    fill(space_first(space), 3);
    run_ms(w, 1000);
    cr_assert(buf_is(space_first(space), 3));
    cr_assert(buf_is(lien_request_body(request), 1));
    lieni_shadow_app_gives(w->sim, lieni_buf_addr(space_first(space)), 60000);
    lien_space_free(&space);
    cr_assert_eq(lien_request_reply(&request, 0, NULL, 0), 0); // to nobody
    cr_assert_eq(lieni_mem_bytes_out(w->ctx[SERVER]->mem), 0); // and all is home
    lien_buf_free(&body);
    lien_buf_free(&source);
    world_close(w);
}

// -- 6: late, repeated and missing entries --

Test(sim, field_report_06_late_entries, .timeout = 500)
{
    uint64_t unknown = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct lieni_sim_config config;
        lieni_sim_config_init(&config, LIENI_SIM_TCP);
        config.chunk = (struct lieni_sim_range){16384, 16384};
        config.chunk_gap = (struct lieni_sim_range){MS, MS};
        config.p_spurious = 1000000; // each flushed entry comes twice, or one without a name
        config.p_withhold = 200000;
        struct world *w = world_open(seed, &config, NULL, &service, NULL);
        struct seen s[8] = {{0}}, x[8] = {{0}};
        lien_space *space[8];
        lien_buf *source = buf_new(w, SERVER, MIB, 1);
        lien_request *request[8];
        for (unsigned i = 0; i < 8; i++) {
            lien_call_opts opts = call_to(&s[i]);
            opts.write = space[i] = space_of(w, CLIENT, buf_new(w, CLIENT, MIB, 3));
            request[i] = desk_call(w, &desk, &opts, NULL);
            lien_transfer_opts to = transfer_to(&x[i]);
            cr_assert_eq(lien_request_write(request[i], &source, 1, &to), 0);
        }
        run_ms(w, 10);
        cr_assert_gt(w->conn[CLIENT]->reads_outstanding, 1);
        if (seed % 2)
            lien_conn_close(&w->conn[CLIENT]);
        else
            cr_assert(lieni_sim_break_link(w->sim, 0, 1, 0));
        for (unsigned i = 0; i < 8; i++) {
            cr_assert(run_until(w, &s[i].released, 20000));
            cr_assert_eq(s[i].released_status, 0);
            once(&s[i], s[i].status);
            cr_assert_lt(s[i].status, 0);
            owns(w, space_first(space[i]));
            lieni_shadow_app_gives(w->sim, lieni_buf_addr(space_first(space[i])), MIB);
            lien_space_free(&space[i]);
            lien_request_drop(&request[i]);
            cr_assert(run_until(w, &x[i].released, 20000));
        }
        lien_ctx_stats stats = {.size = sizeof(stats)};
        lien_ctx_stats_get(w->ctx[CLIENT], &stats);
        unknown += stats.evidence_unknown;
        lien_buf_free(&source);
        world_close(w);
    }
    cr_assert_gt(unknown, 0);
}

// -- 7: a reply before the data --

Test(sim, field_report_07_early_reply)
{
    struct world *w = slow(LIENI_SIM_TCP);
    for (unsigned i = 0; i < 10; i++) {
        struct seen s = {0}, x = {0};
        lien_buf *source = buf_new(w, SERVER, 100000, 1), *dst = buf_new(w, CLIENT, 100000, 3);
        const uint8_t *raw = lieni_buf_addr(dst);
        lien_space *space = space_of(w, CLIENT, dst);
        lien_call_opts opts = call_to(&s);
        opts.write = space;
        lien_request *request = desk_call(w, &desk, &opts, NULL);
        lien_transfer_opts to = transfer_to(&x);
        cr_assert_eq(lien_request_write(request, &source, 1, &to), 0);
        step_us(w, i * 500);
        cr_assert_eq(lien_request_reply(&request, 0, "ok", 2), 0);
        cr_assert(run_until(w, &s.done, 1000));
        cr_assert_eq(s.status, 0);
        for (size_t b = 0; b < 100000; b++)
            cr_assert_eq(raw[b], pattern(1, b), "success with the bytes of before");
        cr_assert(run_until(w, &s.released, 1000));
        cr_assert(run_until(w, &x.released, 1000));
        lien_space_free(&space);
        lien_buf_free(&source);
        run_ms(w, 10);
    }
    world_close(w);
}

// -- 11: one failed piece --

// Where a refused READ does not take its connection along, the others of its transfer go on, and so does the connection.
Test(sim, field_report_11_failed_piece)
{
    static const unsigned bad[] = {0, 31, 63};
    struct world *w = slow(LIENI_SIM_SOCKETS);
    for (unsigned k = 0; k < 3; k++) {
        struct seen r = {0};
        lien_buf *from[64], *to[64];
        lien_token token;
        lien_grant *grant;
        lien_space *space;
        for (unsigned i = 0; i < 64; i++) {
            from[i] = buf_new(w, SERVER, 1000, i);
            to[i] = buf_new(w, CLIENT, 1000, 99);
        }
        cr_assert_eq(lien_grant_open(w->conn[SERVER], from, 64, NULL, &token, &grant), 0);
        token.bytes[32 + bad[k] * LIENI_KEY_SIZE + 8] ^= 0xff; // docs/wire.md, "Token"
        cr_assert_eq(lien_space_open(w->ctx[CLIENT], to, 64, &space), 0);
        lien_read_opts opts;
        lien_read_opts_init(&opts);
        opts.flags = LIEN_RELEASE;
        opts.on_done = saw_done;
        opts.on_released = saw_released;
        opts.arg = &r;
        cr_assert_eq(lien_read_start(w->conn[CLIENT], token.bytes, token.len, space, &opts, NULL),
                     0);
        cr_assert(run_until(w, &r.released, 10000));
        run_ms(w, 1000);
        once(&r, LIEN_EIO);
        cr_assert_eq(r.released_status, 0);
        for (unsigned i = 0; i < 64; i++) {
            lien_buf *buf;
            cr_assert_eq(lien_space_buf(space, i, &buf), 0);
            owns(w, buf);
            lieni_shadow_app_gives(w->sim, lieni_buf_addr(buf), 1000);
            lien_buf_free(&from[i]);
        }
        lien_space_free(&space);
        lien_grant_close(&grant);
        cr_assert_not(w->lost[0] || w->lost[1]);
    }
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    lien_request *request = desk_call(w, &desk, &opts, NULL);
    finish(w, &request, &s, 0);
    world_close(w);
}

// -- 12: of nothing --

Test(sim, field_report_12_zero_lengths)
{
    static const lien_op nothing[] = {{0, 0, 0}, {1000, 1000, 0}, {5, 7, 0}};
    struct world *w = slow(LIENI_SIM_TCP);
    for (size_t n = 1; n <= 3; n++) {
        struct seen s = {0}, r = {0}, x = {0};
        lien_buf *source = buf_new(w, CLIENT, 1000, 1), *mine = buf_new(w, SERVER, 1000, 2);
        lien_space *target = space_of(w, CLIENT, buf_new(w, CLIENT, 1000, 3));
        lien_space *space = space_of(w, SERVER, buf_new(w, SERVER, 1000, 4));
        lien_call_opts opts = call_to(&s);
        opts.read = &source;
        opts.n_read = 1;
        opts.write = target;
        lien_request *request = desk_call(w, &desk, &opts, NULL);
        lien_transfer_opts read = transfer_to(&r), write = transfer_to(&x);
        read.ops = write.ops = nothing;
        read.n_ops = write.n_ops = n;
        cr_assert_eq(lien_request_read(request, space, &read), 0);
        cr_assert_eq(lien_request_write(request, &mine, 1, &write), 0);
        cr_assert(run_until(w, &r.released, 100));
        cr_assert(run_until(w, &x.released, 100));
        once(&r, 0);
        once(&x, 0);
        cr_assert(buf_is(space_first(space), 4));
        finish(w, &request, &s, 0);
        cr_assert(buf_is(space_first(target), 3));
        lien_space_free(&target);
        lien_space_free(&space);
        lien_buf_free(&mine);
        lien_buf_free(&source);
    }
    world_close(w);
}

// -- 13: EAGAIN for ever --

// The provider takes nothing any more: tried again for as long as the peer may be alive, seldom, and then told.
Test(sim, field_report_13_eagain_ends)
{
    struct world *w = slow(LIENI_SIM_TCP);
    struct seen s = {0};
    struct lieni_sim_counts before, after;
    lieni_sim_counts_get(w->sim, &before);
    lieni_sim_world_config(w->sim)->p_eagain = 1000000;
    lien_call_opts opts = call_to(&s);
    uint64_t begin = lieni_sim_now(w->sim);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", "x", 1, &opts, NULL), 0);
    cr_assert(run_until(w, &s.released, 60000));
    once(&s, LIEN_EPEERLOST);
    cr_assert(w->lost[CLIENT]);
    cr_assert_leq(lieni_sim_now(w->sim) - begin, 11000 * MS); // twice dead_ms, and a little
    lieni_sim_counts_get(w->sim, &after);
    cr_assert_lt(after.eagain - before.eagain, 5000);
    cr_assert_eq(lien_send(w->conn[CLIENT], "x", 1, NULL, 0, NULL), LIEN_EPEERLOST);
    lieni_sim_world_config(w->sim)->p_eagain = 0;
    world_close(w);
}

// -- 20, 21, 22: a connection of its own, which nobody has accepted --

struct second {
    lien_listener *listener;
    lien_conn *mine, *theirs;
    bool over;
    int status;
    uint64_t at;
    struct world *w;
};

static void second_opened(lien_conn *conn, int status, void *arg)
{
    struct second *s = arg;
    (void)conn;
    s->over = true;
    s->status = status;
    s->at = lieni_sim_now(s->w->sim);
}

static void second_open(struct world *w, struct second *s, lien_pool *pool)
{
    char bound[96], address[96];
    lien_conn_opts conn, mine;
    lien_listener_opts opts;
    *s = (struct second){.w = w};
    lien_conn_opts_init(&conn);
    conn.service = &service;
    lien_listener_opts_init(&opts);
    opts.conn = &conn;
    cr_assert_eq(lien_listener_open(w->ctx[SERVER], "*:0", &opts, &s->listener), 0);
    cr_assert_eq(lien_listener_address(s->listener, bound, sizeof(bound)), 0);
    snprintf(address, sizeof(address), "%s%s", lieni_sim_node_host(w->sim, SERVER),
             strrchr(bound, ':'));
    lien_conn_opts_init(&mine);
    mine.on_open = second_opened;
    mine.arg = s;
    mine.pool = pool;
    cr_assert_eq(lien_conn_open(w->ctx[CLIENT], address, &mine, &s->mine), 0);
}

static void second_close(struct second *s)
{
    lien_conn_close(&s->mine);
    if (s->theirs)
        lien_conn_close(&s->theirs);
    lien_listener_close(&s->listener);
    run_ms(s->w, 5000);
}

Test(sim, field_report_20_first_message)
{
    struct world *w = slow(LIENI_SIM_TCP);
    struct second s;
    struct seen c = {0};
    lien_msg *msg;
    second_open(w, &s, NULL);
    cr_assert(run_until(w, &s.over, 5000));
    cr_assert_eq(s.status, 0);
    for (unsigned i = 0; i < 20; i++)
        cr_assert_eq(lien_send(s.mine, &i, sizeof(i), NULL, 0, NULL), 0);
    lien_call_opts opts = call_to(&c);
    cr_assert_eq(lien_call_start(s.mine, "test/desk", NULL, 0, &opts, NULL), 0);
    run_ms(w, 1000);
    cr_assert_eq(desk.n, 0); // nobody has taken the connection
    cr_assert_not(c.done);
    cr_assert_eq(lien_listener_accept_wait(s.listener, 0, &s.theirs), 0);
    for (unsigned i = 0; i < 20; i++) {
        const void *head;
        size_t len;
        cr_assert_eq(lien_msg_recv_wait(s.theirs, 0, &msg), 0);
        cr_assert_eq(lien_msg_head(msg, &head, &len), 0);
        cr_assert(len == sizeof(i) && memcmp(head, &i, len) == 0);
        lien_msg_free(&msg);
    }
    run_ms(w, 10);
    cr_assert_eq(desk.n, 1);
    finish(w, &desk.request[0], &c, 0);
    second_close(&s);
    world_close(w);
}

struct sent {
    bool done, released;
    int status;
};

static void sent_done(void *arg, int status)
{
    struct sent *sent = arg;
    sent->done = true;
    sent->status = status;
}

static void sent_released(void *arg, int status)
{
    struct sent *sent = arg;
    cr_assert_eq(status, 0);
    sent->released = true;
}

// A body is taken over when the application has taken the connection, not before.
Test(sim, field_report_20_first_body)
{
    struct world *w = slow(LIENI_SIM_TCP);
    struct second s;
    struct sent sent = {0};
    lien_msg *msg;
    lien_send_opts opts;
    second_open(w, &s, NULL);
    cr_assert(run_until(w, &s.over, 5000));
    lien_buf *body = buf_new(w, CLIENT, MIB, 5);
    lien_send_opts_init(&opts);
    opts.on_done = sent_done;
    opts.on_released = sent_released;
    opts.arg = &sent;
    cr_assert_eq(lien_send(s.mine, "m", 1, &body, 1, &opts), 0);
    run_ms(w, 3000);
    cr_assert_not(sent.done);
    cr_assert_eq(lien_listener_accept_wait(s.listener, 0, &s.theirs), 0);
    cr_assert(run_until(w, &sent.released, 5000));
    cr_assert(sent.done && sent.status == 0);
    cr_assert_eq(lien_msg_recv_wait(s.theirs, 0, &msg), 0);
    cr_assert(buf_is(lien_msg_body(msg), 5));
    lien_msg_free(&msg);
    lien_buf_free(&body);
    second_close(&s);
    world_close(w);
}

Test(sim, field_report_21_reserve_for_receiving)
{
    struct world *w = slow(LIENI_SIM_TCP);
    struct second s;
    lien_pool *pool;
    lien_pool_opts opts;
    lien_buf *taken[64];
    lien_msg *msg;
    unsigned n = 0;
    lien_pool_opts_init(&opts);
    opts.limit = 8 * MIB;
    opts.reserve = 2 * MIB;
    cr_assert_eq(lien_pool_open(w->ctx[CLIENT], &opts, &pool), 0);
    second_open(w, &s, pool);
    cr_assert(run_until(w, &s.over, 5000));
    run_ms(w, 10);
    cr_assert_eq(lien_listener_accept_wait(s.listener, 0, &s.theirs), 0);
    while (lien_pool_alloc(pool, MIB / 4, &taken[n]) == 0)
        n++;
    cr_assert_eq(n, 24);
    for (unsigned i = 0; i < 8; i++) {
        lien_buf *body = buf_new(w, SERVER, MIB, i);
        cr_assert_eq(lien_send(s.theirs, "b", 1, &body, 1, NULL), 0);
        lien_buf_free(&body);
        run_ms(w, 500);
        cr_assert_eq(lien_msg_recv_wait(s.mine, 0, &msg), 0);
        cr_assert(buf_is(lien_msg_body(msg), i));
        lien_msg_free(&msg);
    }
    while (n > 0)
        lien_buf_free(&taken[--n]);
    second_close(&s);
    cr_assert_eq(lien_pool_close(&pool), 0);
    world_close(w);
}

Test(sim, field_report_22_connect_timer)
{
    struct world *w = slow(LIENI_SIM_TCP);
    struct second s;
    w->asleep[SERVER] = true;
    uint64_t begin = lieni_sim_now(w->sim);
    second_open(w, &s, NULL);
    cr_assert(run_until(w, &s.over, 60000));
    cr_assert_eq(s.status, LIEN_ETIMEDOUT);
    cr_assert_eq((s.at - begin) / MS, 5000); // connect_ms
    w->asleep[SERVER] = false;
    second_close(&s);
    world_close(w);
}
