// SPDX-License-Identifier: Apache-2.0
//
// Channels: which address when, after what wait; the queue and what is lent to it.

#include "tests/calls/channel_world.h"

// -- Connecting --

Test(channel, connects_and_calls)
{
    begin(1, 7, NULL);
    open_channel(3);
    struct seen s;
    cr_assert_eq(call("test/echo", "early", &s, NULL), 0); // before there is a connection
    cr_assert_eq(info().calls_waiting, 1);
    cr_assert_not(info().connected);
    expect(&s, 0, 1000);
    cr_assert_eq(s.reply_len, 5);
    cr_assert_arr_eq(s.reply, "early", 5);
    cr_assert(info().connected);
    cr_assert_str_eq(info().address, set->address[0]);
    cr_assert_eq(call("test/echo", "", &s, NULL), 0);
    cr_assert_eq(info().calls_running, 1);
    expect(&s, 0, 1000);
    cr_assert_eq(call("test/none", "x", &s, NULL), 0);
    expect(&s, LIEN_ENOTFOUND, 1000);
    go(60000); // an idle channel stays as it is
    cr_assert_eq(info().attempts, 1);
    cr_assert_eq(set->n_events, 1);
    finish_all();
}

// The dead ones are passed over in the first round, without a wait.
Test(channel, passes_over_dead_addresses)
{
    begin(2, 4, NULL);
    open_channel(3);
    cr_assert(until(&set->connected, 50));
    cr_assert_eq(set->n_events, 3);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(set->events[i].event, i < 2 ? LIEN_CHANNEL_FAILED : LIEN_CHANNEL_CONNECTED);
        cr_assert_eq(set->events[i].status, i < 2 ? LIEN_EREFUSED : 0);
        cr_assert_str_eq(set->events[i].address, set->address[i]);
    }
    cr_assert_eq(info().failures, 0);
    finish_all();
}

// An address that nobody answers at takes the time of one attempt, and one that cannot be parsed none.
Test(channel, silent_and_malformed_addresses)
{
    begin(3, 6, NULL);
    lieni_sim_kill_node(set->sim, 0, true);
    lien_conn_opts co;
    lien_conn_opts_init(&co);
    co.timeout_ms = 300;
    lien_channel_opts opts;
    lien_channel_opts_init(&opts);
    opts.conn = &co;
    opts.arg = set;
    opts.on_event = on_event;
    opts.on_closed = on_closed;
    const char *addresses[] = {"no address", set->address[0], set->address[1]};
    cr_assert_eq(lien_channel_open(set->ctx[BOSS], addresses, 3, &opts, &set->channel), 0);
    uint64_t start = lieni_sim_now(set->sim);
    cr_assert(until(&set->connected, 1000));
    cr_assert_eq(set->n_events, 3);
    cr_assert_eq(set->events[0].status, LIEN_EADDR);
    cr_assert_lt(set->events[0].at - start, 10 * MS);
    cr_assert_eq(set->events[1].status, LIEN_ETIMEDOUT);
    cr_assert_geq(set->events[1].at - start, 300 * MS);
    cr_assert_lt(set->events[2].at - start, 350 * MS);
    finish_all();
}

// The waits of one channel whose only address refuses: wait[i] is between attempt i's end and i + 1's.
static void waits(uint64_t seed, uint64_t *wait, unsigned n)
{
    begin(seed, 0, NULL);
    open_channel(1);
    for (unsigned i = 0; set->n_events <= n; i++) {
        cr_assert_lt(i, 100);
        go(1100);
    }
    for (unsigned i = 0; i < n; i++)
        wait[i] = set->events[i + 1].at - set->events[i].at;
    finish_all();
}

Test(channel, waits_grow_are_bounded_and_spread)
{
    enum {
        N = 8,
        SEEDS = 60
    };
    static const uint64_t bounds[N] = {100, 200, 400, 800, 1000, 1000, 1000, 1000};
    const uint64_t trip = 5; // ms that an attempt itself takes, at most
    uint64_t wait[N], again[N], sum[N] = {0}, least[N], most[N] = {0};
    memset(least, 0xff, sizeof(least));
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        waits(seed, wait, N);
        for (unsigned i = 0; i < N; i++) {
            cr_assert_geq(wait[i], MS);
            cr_assert_leq(wait[i], (bounds[i] + trip) * MS, "wait %u is %llu ns", i,
                          (unsigned long long)wait[i]);
            sum[i] += wait[i];
            least[i] = wait[i] < least[i] ? wait[i] : least[i];
            most[i] = wait[i] > most[i] ? wait[i] : most[i];
        }
    }
    waits(SEEDS, again, N); // one seed is one schedule
    cr_assert_arr_eq(again, wait, sizeof(wait));
    for (unsigned i = 0; i < N; i++) { // full jitter: all of the range, evenly
        cr_assert_lt(least[i], bounds[i] * MS / 5);
        cr_assert_gt(most[i], bounds[i] * MS * 4 / 5);
        cr_assert_gt(sum[i], SEEDS * bounds[i] * MS / 3);
        cr_assert_lt(sum[i], SEEDS * bounds[i] * MS * 2 / 3 + SEEDS * trip * MS);
    }
}

// A server that takes each connection and ends it at once is not asked more and more often.
Test(channel, short_lives_do_not_reset_the_wait)
{
    begin(4, 1, NULL);
    open_channel(1);
    for (unsigned i = 0; i < 3000; i++) {
        go(10);
        while (set->n_conns[0] > 0)
            lien_conn_close(&set->conn[0][--set->n_conns[0]]);
    }
    unsigned n = events_of(LIEN_CHANNEL_CONNECTED);
    cr_assert_lt(n, 150, "%u connections in 30 s", n); // about 60, at a mean wait of half a second
    cr_assert_gt(n, 20);
    set->connected = false; // one that stays makes the next wait a first one
    cr_assert(until(&set->connected, 3000));
    go(3000);
    lien_conn_close(&set->conn[0][--set->n_conns[0]]);
    set->connected = false;
    cr_assert(until(&set->connected, 250));
    cr_assert_eq(info().failures, 1);
    finish_all();
}

// -- The queue --

Test(channel, queue_is_bounded_and_memory_lent_meanwhile)
{
    begin(5, 0, NULL);
    lien_channel_opts opts;
    lien_channel_opts_init(&opts);
    opts.queue_max = 4;
    open_with(&opts, 3);
    struct seen s[5];
    lien_buf *source = NULL, *target = NULL, *body = NULL;
    void *data;
    cr_assert_eq(lien_pool_alloc(set->pool, 5000, &source), 0);
    cr_assert_eq(lien_pool_alloc(set->pool, 5000, &body), 0);
    cr_assert_eq(lien_pool_alloc(set->pool, 5000, &target), 0);
    lien_space *space;
    cr_assert_eq(lien_space_open(set->ctx[BOSS], &target, 1, &space), 0);
    for (unsigned i = 0; i < 5; i++) {
        lien_call_opts co = call_to(&s[i]);
        s[i] = (struct seen){0};
        co.timeout_ms = 100 + i;
        co.read = &source;
        co.n_read = 1;
        co.body = &body;
        co.n_body = 1;
        co.write = i == 0 ? space : NULL;
        cr_assert_eq(lien_channel_call_start(set->channel, "test/echo", "x", 1, &co, NULL),
                     i < 4 ? 0 : LIEN_EAGAIN);
        if (i == 0) // a space serves one call
            cr_assert_eq(lien_channel_call_start(set->channel, "test/echo", "x", 1, &co, NULL),
                         LIEN_EBUSY);
    }
    cr_assert_eq(info().calls_waiting, 4);
    cr_assert_eq(lien_buf_mut(source, &data), LIEN_EBUSY);
    cr_assert_eq(lien_buf_mut(body, &data), LIEN_EBUSY);
    cr_assert_eq(lien_space_wait(space, 0), LIEN_ETIMEDOUT);
    expect(&s[3], LIEN_EAGAIN, 200); // nobody had it by its deadline
    for (unsigned i = 0; i < 3; i++)
        expect(&s[i], LIEN_EAGAIN, 0);
    cr_assert_eq(info().calls_waiting, 0);
    cr_assert_eq(lien_buf_mut(source, &data), 0);
    cr_assert_eq(lien_buf_mut(body, &data), 0);
    cr_assert_eq(lien_space_wait(space, 0), 0);
    lien_space_free(&space);
    lien_buf_free(&source);
    lien_buf_free(&body);
    finish_all();
}

static void add_one(lien_request *request, lien_conn *conn, void *arg);

struct work {
    lien_request *request;
    lien_space *space;
    lien_buf *buf;
};

static void added(void *arg, int status)
{
    struct work *work = arg;
    cr_assert_eq(status, 0, "%s", lien_errname(status));
    cr_assert_eq(lien_request_reply(&work->request, 0, "ok", 2), 0);
}

static void work_over(void *arg, int status)
{
    struct work *work = arg;
    cr_assert_eq(status, 0);
    lien_buf_free(&work->buf);
    free(work);
}

static void has_read(void *arg, int status)
{
    cr_assert_eq(status, 0, "%s", lien_errname(status));
    (void)arg;
}

static void write_back(void *arg, int status)
{
    struct work *work = arg;
    void *data;
    cr_assert_eq(status, 0);
    cr_assert_eq(lien_space_take(work->space, &work->buf, 1), 0);
    lien_space_free(&work->space);
    cr_assert_eq(lien_buf_mut(work->buf, &data), 0);
    for (size_t i = 0; i < lien_buf_len(work->buf); i++)
        ((uint8_t *)data)[i] ^= 0xffu;
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.on_done = added;
    opts.on_released = work_over;
    opts.arg = work;
    cr_assert_eq(lien_request_write(work->request, &work->buf, 1, &opts), 0);
}

static void add_one(lien_request *request, lien_conn *conn, void *arg)
{
    struct work *work = calloc(1, sizeof(*work));
    (void)conn;
    work->request = request;
    cr_assert_eq(lien_buf_len(lien_request_body(request)), 3000);
    cr_assert_eq(lien_pool_alloc(arg, (size_t)lien_request_read_len(request), &work->buf), 0);
    cr_assert_eq(lien_space_open(set->ctx[0], &work->buf, 1, &work->space), 0);
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.on_done = has_read;
    opts.on_released = write_back;
    opts.arg = work;
    cr_assert_eq(lien_request_read(request, work->space, &opts), 0);
}

// What was lent, and even freed, while the call waited is there when a server comes.
Test(channel, memory_lent_in_the_queue_goes_along)
{
    begin(6, 0, NULL);
    open_channel(1);
    lien_pool *server_pool;
    cr_assert_eq(lien_pool_open(set->ctx[0], NULL, &server_pool), 0);
    set->methods[0][2] = (lien_method){.name = "test/add", .handle = add_one, .arg = server_pool};
    lien_buf *source = filled(9000, 7), *body = filled(3000, 8), *target = filled(9000, 9);
    lien_space *space;
    struct seen s = {0};
    cr_assert_eq(lien_space_open(set->ctx[BOSS], &target, 1, &space), 0);
    lien_call_opts opts = call_to(&s);
    opts.read = &source;
    opts.n_read = 1;
    opts.body = &body;
    opts.n_body = 1;
    opts.write = space;
    cr_assert_eq(lien_channel_call_start(set->channel, "test/add", NULL, 0, &opts, NULL), 0);
    lien_buf_free(&source);
    lien_buf_free(&body);
    go(500);
    cr_assert_not(s.done);
    serve(0);
    expect(&s, 0, 5000);
    cr_assert_eq(s.reply_len, 2);
    cr_assert_eq(lien_space_take(space, &target, 1), 0);
    lien_space_free(&space);
    const void *data;
    cr_assert_eq(lien_buf_data(target, &data), 0);
    for (size_t i = 0; i < 9000; i++)
        cr_assert_eq(((const uint8_t *)data)[i], (uint8_t)(pattern(7, i) ^ 0xff));
    lien_buf_free(&target);
    go(100);
    cr_assert_eq(lien_pool_close(&server_pool), 0);
    finish_all();
}

// Above the credits of the connection calls wait, and go on in order as slots come free.
Test(channel, waits_for_credit)
{
    static const char *const settings[] = {"call_credits=2", NULL};
    begin(7, 1, settings);
    open_channel(1);
    struct seen s[6];
    for (unsigned i = 0; i < 6; i++)
        cr_assert_eq(call("test/desk", "x", &s[i], NULL), 0);
    go(100);
    cr_assert_eq(info().calls_running, 2);
    cr_assert_eq(info().calls_waiting, 4);
    for (unsigned i = 0; i < 6; i++) {
        cr_assert_eq(set->desk[0].n, i + 2 < 6 ? i + 2 : 6);
        cr_assert_eq(lien_request_reply(&set->desk[0].request[i], 0, NULL, 0), 0);
        expect(&s[i], 0, 100);
        go(10);
    }
    finish_all();
}

Test(channel, cancel_and_deadline)
{
    begin(8, 1, NULL);
    open_channel(1);
    struct seen s;
    lien_channel_call *handle;
    lien_buf *source = filled(100, 1);
    void *data;
    for (unsigned running = 0; running < 2; running++) {
        s = (struct seen){0};
        lien_call_opts opts = call_to(&s);
        opts.read = &source;
        opts.n_read = 1;
        cr_assert_eq(lien_channel_call_start(set->channel, "test/desk", "x", 1, &opts, &handle), 0);
        if (running)
            go(100);
        cr_assert_eq(info().calls_running, running);
        cr_assert_eq(lien_channel_call_path(handle, NULL),
                     running ? LIEN_PATH_SIM : LIEN_PATH_NONE);
        cr_assert_eq(lien_buf_mut(source, &data), LIEN_EBUSY);
        cr_assert_eq(lien_channel_call_cancel(handle), 0);
        cr_assert_eq(lien_buf_mut(source, &data), 0); // at once
        cr_assert_eq(lien_channel_call_cancel(handle), 0);
        expect(&s, LIEN_ECANCELED, 1000);
        cr_assert_eq(lien_channel_call_path(handle, NULL),
                     running ? LIEN_PATH_SIM : LIEN_PATH_NONE);
        cr_assert_eq(lien_channel_call_close(&handle), 0);
        cr_assert_null(handle);
    }
    go(50);
    cr_assert(lien_request_cancelled(set->desk[0].request[0]));
    s = (struct seen){0};
    lien_call_opts opts = call_to(&s);
    opts.timeout_ms = 70;
    uint64_t start = lieni_sim_now(set->sim);
    cr_assert_eq(lien_channel_call_start(set->channel, "test/desk", "x", 1, &opts, &handle), 0);
    expect(&s, LIEN_ETIMEDOUT, 1000);
    cr_assert_leq(lieni_sim_now(set->sim) - start, 72 * MS);
    cr_assert_eq(lien_channel_call_close(&handle), 0);
    lien_buf_free(&source);
    finish_all();
}
