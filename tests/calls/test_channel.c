// SPDX-License-Identifier: Apache-2.0
//
// Channels on the simulator: three servers (nodes 0 to 2) and one client (node 3), a virtual clock, one seed one schedule. Waits and their spread, the order of addresses, the queue, what is sent again and what
// is not, GOAWAY, close in each state; and random faults, in which each call runs at most once and its status tells the truth about that.

#include "core/channel.h"
#include "tests/calls/world.h"

#define SERVERS 3u
#define NODES   4u
#define BOSS    3u // the client's node
#define CONNS   256u
#define EVENTS  4096u

struct happened {
    lien_channel_event event;
    char address[64];
    int status;
    uint64_t at;
};

struct set {
    struct lieni_sim_world *sim;
    lien_ctx *ctx[NODES];
    lien_pool *pool;
    lien_listener *listener[SERVERS];
    char address[SERVERS][64];
    lien_conn *conn[SERVERS][CONNS]; // accepted and not closed
    unsigned n_conns[SERVERS];
    unsigned drained[SERVERS], lost[SERVERS];
    struct desk desk[SERVERS];
    unsigned ran[1024]; // how often a handler of "test/count" got that number
    lien_method methods[SERVERS][3];
    lien_service service[SERVERS];
    lien_channel *channel;
    struct happened events[EVENTS];
    unsigned n_events;
    bool connected, left, closed;
    unsigned n_closed;
};

static struct set *set;

// -- The world --

static void steps(void)
{
    for (unsigned i = 0; i < NODES; i++) {
        if (!set->ctx[i] || lieni_sim_node_killed(set->sim, i))
            continue;
        for (unsigned pass = 0;; pass++) {
            if (!lieni_sim_node_ready(set->sim, i) &&
                lieni_timers_next(&set->ctx[i]->timers) > lieni_sim_now(set->sim) &&
                lien_ctx_arm(set->ctx[i]) != LIEN_EAGAIN)
                break;
            cr_assert_eq(lien_ctx_progress(set->ctx[i]), 0);
            cr_assert_lt(pass, 100000, "node %u does not come to rest", i);
        }
    }
}

static bool until(const bool *flag, uint64_t ms)
{
    uint64_t limit = lieni_sim_now(set->sim) + ms * MS;
    steps();
    while (!(flag && *flag)) {
        uint64_t at = lieni_sim_next_time(set->sim);
        for (unsigned i = 0; i < NODES; i++) {
            bool runs = set->ctx[i] && !lieni_sim_node_killed(set->sim, i);
            uint64_t t = runs ? lieni_timers_next(&set->ctx[i]->timers) : UINT64_MAX;
            at = t < at ? t : at;
        }
        if (at > limit) {
            lieni_sim_advance(set->sim, limit);
            break;
        }
        if (!lieni_sim_step(set->sim, at))
            lieni_sim_advance(set->sim, at);
        steps();
        cr_assert_eq(lieni_sim_violations(set->sim), 0, "%s", lieni_sim_violation(set->sim, 0));
    }
    return flag && *flag;
}

static void go(uint64_t ms)
{
    until(NULL, ms);
}

static void echo(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    (void)conn;
    (void)arg;
    lien_request_args(request, &data, &len);
    cr_assert_eq(lien_request_reply(&request, 0, data, len), 0);
}

static void count(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    uint32_t number;
    (void)conn;
    (void)arg;
    lien_request_args(request, &data, &len);
    cr_assert_eq(len, sizeof(number));
    memcpy(&number, data, sizeof(number));
    set->ran[number]++;
    cr_assert_eq(lien_request_reply(&request, 0, data, len), 0);
}

static unsigned node_of(const void *arg)
{
    return (unsigned)((const struct desk *)arg - set->desk);
}

static void forget(unsigned node, const lien_conn *conn)
{
    for (unsigned i = 0; i < set->n_conns[node]; i++) {
        if (set->conn[node][i] == conn)
            set->conn[node][i] = set->conn[node][--set->n_conns[node]];
    }
}

static int took(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    unsigned node = node_of(arg);
    (void)listener;
    cr_assert_lt(set->n_conns[node], CONNS);
    set->conn[node][set->n_conns[node]++] = conn;
    *conn_arg = arg;
    return 0;
}

static void server_lost(lien_conn *conn, int status, void *arg)
{
    (void)status;
    set->lost[node_of(arg)]++;
    forget(node_of(arg), conn);
    cr_assert_eq(lien_conn_close(&conn), 0);
}

static void server_drained(lien_conn *conn, void *arg)
{
    (void)conn;
    set->drained[node_of(arg)]++;
}

static void on_event(lien_channel *channel, lien_channel_event event, const char *address,
                     int status, void *arg)
{
    (void)channel;
    cr_assert_eq(arg, set);
    cr_assert_lt(set->n_events, EVENTS);
    struct happened *h = &set->events[set->n_events++];
    *h = (struct happened){event, "", status, lieni_sim_now(set->sim)};
    snprintf(h->address, sizeof(h->address), "%s", address);
    if (event == LIEN_CHANNEL_CONNECTED)
        set->connected = true;
    if (event == LIEN_CHANNEL_LOST)
        set->left = true;
}

static void on_closed(lien_channel *channel, int status, void *arg)
{
    (void)channel;
    cr_assert_eq(arg, set);
    cr_assert_eq(status, 0);
    set->closed = true;
    set->n_closed++;
}

static void serve(unsigned i)
{
    lien_conn_opts served;
    lien_conn_opts_init(&served);
    served.on_lost = server_lost;
    served.on_drained = server_drained;
    served.service = &set->service[i];
    lien_listener_opts lo;
    lien_listener_opts_init(&lo);
    lo.arg = &set->desk[i];
    lo.on_accept = took;
    lo.conn = &served;
    cr_assert_eq(lien_listener_open(set->ctx[i], "*:9000", &lo, &set->listener[i]), 0);
}

// `listening`: bits of the servers that do.
static void begin(uint64_t seed, unsigned listening, const char *const *settings)
{
    struct lieni_sim_config config;
    set = calloc(1, sizeof(*set));
    lieni_sim_config_init(&config, LIENI_SIM_TCP);
    config.nodes = NODES;
    set->sim = lieni_sim_world_new(seed, &config);
    cr_assert_not_null(set->sim);
    for (unsigned i = 0; i < NODES; i++) {
        lien_ctx_opts opts;
        lien_ctx_opts_init(&opts);
        opts.flags = LIEN_APP_DRIVEN | LIEN_KEEP_NOFILE;
        opts.settings = settings;
        opts.log = quiet_log;
        cr_assert_eq(
            lieni_ctx_open_platform(&opts, lieni_sim_node_platform(set->sim, i), &set->ctx[i]), 0);
    }
    cr_assert_eq(lien_pool_open(set->ctx[BOSS], NULL, &set->pool), 0);
    for (unsigned i = 0; i < SERVERS; i++) {
        set->methods[i][0] = (lien_method){.name = "test/echo", .handle = echo};
        set->methods[i][1] = (lien_method){
            .name = "test/desk", .handle = to_desk, .arg = &set->desk[i]};
        set->methods[i][2] = (lien_method){.name = "test/count", .handle = count};
        set->service[i] = (lien_service){set->methods[i], 3};
        snprintf(set->address[i], sizeof(set->address[i]), "%s:9000",
                 lieni_sim_node_host(set->sim, i));
        if (listening & 1u << i)
            serve(i);
    }
}

static void open_with(lien_channel_opts *opts, unsigned n)
{
    const char *addresses[SERVERS];
    for (unsigned i = 0; i < SERVERS; i++)
        addresses[i] = set->address[i];
    opts->arg = set;
    opts->on_event = on_event;
    opts->on_closed = on_closed;
    cr_assert_eq(lien_channel_open(set->ctx[BOSS], addresses, n, opts, &set->channel), 0);
}

static void open_channel(unsigned n)
{
    lien_channel_opts opts;
    lien_channel_opts_init(&opts);
    opts.backoff_min_ms = 100;
    opts.backoff_max_ms = 1000;
    open_with(&opts, n);
}

static lien_channel_info info(void)
{
    lien_channel_info now = {.size = sizeof(now)};
    cr_assert_eq(lien_channel_info_get(set->channel, &now), 0);
    return now;
}

static void drop_desks(void)
{
    for (unsigned i = 0; i < SERVERS; i++) {
        for (unsigned k = 0; k < 64; k++)
            lien_request_drop(&set->desk[i].request[k]);
    }
}

// A dead process's context can be closed all the same, as lieni_sim_kill_node() says.
static void close_ctx(unsigned i)
{
    int rc;
    while ((rc = lien_ctx_close(&set->ctx[i])) == LIEN_EDEADLK) {
        go(10);
        if (lieni_sim_node_killed(set->sim, i))
            cr_assert_eq(lien_ctx_progress(set->ctx[i]), 0);
    }
    cr_assert_eq(rc, 0);
}

// Closes all, and nothing is left.
static void finish_all(void)
{
    if (set->channel)
        cr_assert_eq(lien_channel_close(&set->channel), 0);
    drop_desks();
    cr_assert(until(&set->closed, 20000));
    for (unsigned i = 0; i < SERVERS; i++) {
        if (set->listener[i])
            lien_listener_close(&set->listener[i]);
        while (set->n_conns[i] > 0)
            lien_conn_close(&set->conn[i][--set->n_conns[i]]);
    }
    go(20000);
    cr_assert_eq(set->n_closed, 1);
    cr_assert(lieni_list_empty(&set->ctx[BOSS]->channels));
    cr_assert(lieni_list_empty(&set->ctx[BOSS]->conns), "a connection is left");
    lien_ctx_stats stats = {.size = sizeof(stats)};
    cr_assert_eq(lien_ctx_stats_get(set->ctx[BOSS], &stats), 0);
    cr_assert_eq(stats.pool_bytes, 0);
    cr_assert_eq(lien_pool_close(&set->pool), 0);
    for (unsigned i = 0; i < NODES; i++)
        close_ctx(i);
    lieni_sim_check_quiet(set->sim);
    cr_assert_eq(lieni_sim_violations(set->sim), 0, "%s", lieni_sim_violation(set->sim, 0));
    lieni_sim_world_free(set->sim);
    free(set);
}

static int call(const char *method, const char *text, struct seen *s, lien_channel_call **handle)
{
    lien_call_opts opts = call_to(s);
    *s = (struct seen){0};
    return lien_channel_call_start(set->channel, method, text, strlen(text), &opts, handle);
}

static void expect(struct seen *s, int status, uint64_t ms)
{
    cr_assert(until(&s->released, ms));
    cr_assert_eq(s->status, status, "%s", lien_errname(s->status));
    cr_assert_eq(s->n_done, 1);
    cr_assert_eq(s->n_released, 1);
    cr_assert_eq(s->released_status, 0);
}

static unsigned events_of(lien_channel_event event)
{
    unsigned n = 0;
    for (unsigned i = 0; i < set->n_events; i++)
        n += set->events[i].event == event;
    return n;
}

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

static lien_buf *filled(size_t len, uint64_t seed)
{
    lien_buf *buf;
    void *data;
    cr_assert_eq(lien_pool_alloc(set->pool, len, &buf), 0);
    cr_assert_eq(lien_buf_mut(buf, &data), 0);
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)data)[i] = pattern(seed, i);
    return buf;
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
        cr_assert_eq(lien_buf_mut(source, &data), LIEN_EBUSY);
        cr_assert_eq(lien_channel_call_cancel(handle), 0);
        cr_assert_eq(lien_buf_mut(source, &data), 0); // at once
        cr_assert_eq(lien_channel_call_cancel(handle), 0);
        expect(&s, LIEN_ECANCELED, 1000);
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

// -- What is sent again --

// Its frame waited for the provider when the server died: it never left.
Test(channel, unsent_call_goes_to_the_next_server)
{
    begin(9, 7, NULL);
    open_channel(3);
    cr_assert(until(&set->connected, 1000));
    go(50);
    lieni_sim_world_config(set->sim)->p_eagain = 1000000;
    struct seen s;
    lien_buf *body = filled(3000, 1);
    s = (struct seen){0};
    lien_call_opts opts = call_to(&s);
    opts.body = &body;
    opts.n_body = 1;
    cr_assert_eq(lien_channel_call_start(set->channel, "test/desk", "x", 1, &opts, NULL), 0);
    cr_assert_eq(info().calls_running, 1);
    lieni_sim_kill_node(set->sim, 0, false);
    lieni_sim_world_config(set->sim)->p_eagain = 0;
    // Before anything else is posted: the connection's end must come first.
    struct lien_conn *conn = set->channel->current->conn;
    lieni_ctx_lock(set->ctx[BOSS]);
    lieni_conn_lose(conn, LIEN_EPEERLOST, NULL);
    lieni_ctx_unlock(set->ctx[BOSS]);
    go(1000);
    cr_assert_not(s.done);
    cr_assert_eq(info().resent, 1);
    cr_assert_eq(set->desk[1].n, 1);
    cr_assert_eq(lien_request_reply(&set->desk[1].request[0], 0, "ok", 2), 0);
    expect(&s, 0, 1000);
    void *data;
    cr_assert_eq(lien_buf_mut(body, &data), 0);
    lien_buf_free(&body);
    cr_assert_eq(set->desk[0].n, 0);
    finish_all();
}

// It may have run: the caller hears so, and nobody runs it again.
Test(channel, sent_call_is_not_repeated)
{
    begin(10, 7, NULL);
    open_channel(3);
    struct seen s;
    cr_assert_eq(call("test/desk", "x", &s, NULL), 0);
    go(50);
    cr_assert_eq(set->desk[0].n, 1);
    lieni_sim_kill_node(set->sim, 0, false);
    cr_assert(until(&s.done, 10000));
    cr_assert_eq(lien_errscope(s.status), LIEN_SCOPE_CONN, "%s", lien_errname(s.status));
    go(3000);
    cr_assert_eq(s.n_done, 1);
    cr_assert_eq(info().resent, 0);
    cr_assert_eq(set->desk[1].n + set->desk[2].n, 0);
    cr_assert_eq(call("test/echo", "x", &s, NULL), 0); // and the channel goes on elsewhere
    expect(&s, 0, 1000);
    cr_assert_str_eq(info().address, set->address[1]);
    cr_assert_eq(events_of(LIEN_CHANNEL_LOST), 1);
    finish_all();
}

// Shedding is the server's answer, not a reason to ask again.
Test(channel, overload_is_told)
{
    static const char *const settings[] = {"requests_max=1", NULL};
    begin(11, 7, settings);
    open_channel(3);
    struct seen s[3];
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(call("test/desk", "x", &s[i], NULL), 0);
    go(100);
    cr_assert_eq(set->desk[0].n, 1);
    cr_assert_eq(s[1].status, LIEN_EOVERLOAD);
    cr_assert_eq(s[2].status, LIEN_EOVERLOAD);
    cr_assert_eq(info().resent, 0);
    finish_all();
}

// -- GOAWAY --

Test(channel, goaway_moves_new_calls)
{
    begin(12, 7, NULL);
    open_channel(3);
    struct seen old, late, fresh;
    cr_assert_eq(call("test/desk", "old", &old, NULL), 0);
    go(1500); // longer than the wait's bound: the next attempt comes at once
    cr_assert_eq(set->desk[0].n, 1);
    cr_assert_eq(lien_conn_goaway(set->conn[0][0]), 0);
    cr_assert_eq(call("test/desk", "late", &late, NULL), 0); // on its way when the GOAWAY is
    cr_assert_eq(info().calls_running, 2);
    set->connected = false;
    cr_assert(until(&set->connected, 60));
    cr_assert_eq(events_of(LIEN_CHANNEL_GOAWAY), 1);
    cr_assert_str_eq(info().address, set->address[1]);
    cr_assert_eq(info().conns_old, 1);
    cr_assert_eq(call("test/desk", "fresh", &fresh, NULL), 0);
    go(300);
    cr_assert_eq(set->desk[0].n, 1);
    cr_assert_eq(set->desk[1].n, 2); // late and fresh
    cr_assert_eq(info().resent, 1);
    cr_assert_eq(set->drained[0], 0); // one still runs
    cr_assert_not(old.done);
    cr_assert_eq(lien_request_reply(&set->desk[0].request[0], 0, "old", 3), 0);
    expect(&old, 0, 100);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(lien_request_reply(&set->desk[1].request[i], 0, NULL, 0), 0);
    expect(&late, 0, 100);
    expect(&fresh, 0, 100);
    go(100);
    cr_assert_eq(set->drained[0], 1);
    cr_assert_eq(set->lost[0], 1); // closed by the channel when idle
    cr_assert_eq(info().conns_old, 0);
    cr_assert_eq(events_of(LIEN_CHANNEL_LOST), 0);
    finish_all();
}

// Everybody goes away at once, always: the waits hold, and no connection piles up.
Test(channel, goaway_everywhere_does_not_spin)
{
    begin(13, 7, NULL);
    open_channel(3);
    for (unsigned i = 0; i < 2000; i++) {
        go(10);
        for (unsigned n = 0; n < SERVERS; n++) {
            for (unsigned c = 0; c < set->n_conns[n]; c++)
                lien_conn_goaway(set->conn[n][c]);
        }
        cr_assert_leq(info().conns_old, 2);
    }
    cr_assert_lt(info().attempts, 100);
    cr_assert_gt(info().attempts, 15);
    finish_all();
}

// -- Closing --

// In each state: on_closed once, after the calls' ends; what waits never ran, what ran may have.
Test(channel, close_in_each_state)
{
    for (unsigned at = 0; at < 6; at++) {
        begin(14 + at, at == 1 ? 0 : 1, NULL);
        if (at == 0)
            lieni_sim_kill_node(set->sim, 0, true); // connecting, for long
        open_channel(1);
        struct seen s[2] = {{0}, {0}};
        cr_assert_eq(call("test/desk", "x", &s[0], NULL), 0);
        if (at == 1)
            go(2000); // waiting for the next round
        if (at == 2)
            lieni_sim_step(set->sim, UINT64_MAX); // connecting, in the middle
        if (at > 2)
            go(1500);
        if (at == 4) { // going away, with a call that runs
            lien_conn_goaway(set->conn[0][0]);
            go(20);
        }
        if (at == 5) { // lost
            lien_conn_close(&set->conn[0][--set->n_conns[0]]);
            cr_assert(until(&set->left, 100));
        }
        cr_assert_eq(call("test/desk", "y", &s[1], NULL), 0);
        if (at == 1 || at == 2)
            cr_assert_neq(set->channel->state, LIENI_CHANNEL_OPEN);
        int first = at < 3 ? LIEN_EAGAIN : LIEN_ECLOSED;
        int second = at == 3 || at == 4 ? LIEN_ECLOSED : LIEN_EAGAIN; // 4: connected anew by then
        cr_assert_eq(lien_channel_close(&set->channel), 0);
        cr_assert_null(set->channel);
        unsigned events = set->n_events;
        drop_desks();
        cr_assert(until(&set->closed, 10000));
        for (unsigned i = 0; i < 2; i++) {
            int status = i == 0 ? first : second;
            cr_assert(s[i].released, "close at %u, call %u", at, i);
            cr_assert_eq(s[i].status, status, "close at %u, call %u: %s", at, i,
                         lien_errname(s[i].status));
            cr_assert_eq(s[i].n_done, 1);
        }
        cr_assert_eq(set->n_events, events, "an event after close");
        finish_all();
    }
}

static int closed_in_callback;
static void close_from_done(void *arg, int status, lien_msg *reply)
{
    struct seen *s = arg;
    lien_msg_free(&reply);
    s->done = true;
    s->status = status;
    closed_in_callback = lien_channel_close(&set->channel);
    lien_channel *none = NULL;
    cr_assert_eq(lien_channel_close_wait(&none, 0), LIEN_EINVAL);
}

Test(channel, close_from_a_callback)
{
    begin(20, 1, NULL);
    open_channel(1);
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    opts.on_done = close_from_done;
    closed_in_callback = -1;
    cr_assert_eq(lien_channel_call_start(set->channel, "test/echo", "x", 1, &opts, NULL), 0);
    cr_assert(until(&set->closed, 5000));
    cr_assert_eq(closed_in_callback, 0);
    cr_assert(s.released);
    finish_all();
}

// The ctx's end takes an open channel along, with calls that wait and run.
Test(channel, ctx_close)
{
    begin(21, 1, NULL);
    open_channel(1);
    struct seen s[2];
    cr_assert_eq(call("test/desk", "x", &s[0], NULL), 0);
    go(100);
    cr_assert_eq(call("test/desk", "x", &s[1], NULL), 0);
    int rc;
    while ((rc = lien_ctx_close(&set->ctx[BOSS])) == LIEN_EDEADLK)
        go(10);
    cr_assert_eq(rc, 0);
    cr_assert(s[0].released && s[1].released);
    cr_assert_eq(set->n_closed, 1);
    drop_desks();
    lien_listener_close(&set->listener[0]);
    go(20000);
    for (unsigned i = 0; i < SERVERS; i++)
        cr_assert_eq(lien_ctx_close(&set->ctx[i]), 0);
    lieni_sim_check_quiet(set->sim);
    cr_assert_eq(lieni_sim_violations(set->sim), 0, "%s", lieni_sim_violation(set->sim, 0));
    lieni_sim_world_free(set->sim);
    free(set);
}

// -- Random faults --

#define CALLS 60u

static void fault(void)
{
    unsigned node = (unsigned)lieni_sim_draw(set->sim, SERVERS);
    unsigned n = set->n_conns[node];
    unsigned which = n ? (unsigned)lieni_sim_draw(set->sim, n) : 0;
    switch (lieni_sim_draw(set->sim, 8)) {
    case 0:
        lieni_sim_break_link(set->sim, node, BOSS, 0);
        break;
    case 1:
        if (n > 0)
            lien_conn_goaway(set->conn[node][which]);
        break;
    case 2:
        if (n > 0) {
            lien_conn *conn = set->conn[node][which];
            forget(node, conn);
            lien_conn_close(&conn);
        }
        break;
    case 3:
        lieni_sim_world_config(set->sim)->p_eagain = lieni_sim_draw(set->sim, 2) ? 900000 : 0;
        break;
    case 4:
        if (set->listener[node])
            lien_listener_close(&set->listener[node]);
        else
            serve(node);
        break;
    default:
        break;
    }
}

static unsigned resent_in_all, ended_by_loss, ended_unsent;

static void soak(uint64_t seed)
{
    static struct seen s[CALLS];
    begin(seed, 7, NULL);
    open_channel(3);
    for (uint32_t i = 0; i < CALLS; i++) {
        s[i] = (struct seen){0};
        lien_call_opts opts = call_to(&s[i]);
        opts.timeout_ms = 1 + (uint32_t)lieni_sim_draw(set->sim, 3000);
        cr_assert_eq(
            lien_channel_call_start(set->channel, "test/count", &i, sizeof(i), &opts, NULL), 0);
        if (lieni_sim_draw(set->sim, 3) == 0)
            fault();
        if (lieni_sim_draw(set->sim, 2) == 0)
            until(NULL, lieni_sim_draw(set->sim, 60));
        if (lieni_sim_draw(set->sim, 3) == 0)
            fault();
    }
    lieni_sim_world_config(set->sim)->p_eagain = 0;
    resent_in_all += (unsigned)info().resent;
    go(10000);
    for (unsigned i = 0; i < CALLS; i++) {
        cr_assert_eq(s[i].n_done, 1, "seed %llu, call %u", (unsigned long long)seed, i);
        cr_assert_eq(s[i].n_released, 1, "seed %llu, call %u", (unsigned long long)seed, i);
        cr_assert_leq(set->ran[i], 1, "seed %llu: call %u ran twice", (unsigned long long)seed, i);
        if (s[i].status == 0)
            cr_assert_eq(set->ran[i], 1, "seed %llu: call %u succeeded and never ran",
                         (unsigned long long)seed, i);
        else if (s[i].status == LIEN_EAGAIN)
            cr_assert_eq(set->ran[i], 0, "seed %llu: call %u ran, and its status says not",
                         (unsigned long long)seed, i);
        else
            cr_assert(
                s[i].status == LIEN_ETIMEDOUT || lien_errscope(s[i].status) == LIEN_SCOPE_CONN,
                "seed %llu, call %u: %s", (unsigned long long)seed, i, lien_errname(s[i].status));
        ended_by_loss += lien_errscope(s[i].status) == LIEN_SCOPE_CONN;
        ended_unsent += s[i].status == LIEN_EAGAIN;
    }
    finish_all();
}

Test(channel, random_faults)
{
    for (uint64_t seed = 1; seed <= 150; seed++)
        soak(seed);
    // All of it happened.
    cr_assert_gt(resent_in_all, 100, "%u", resent_in_all);
    cr_assert_gt(ended_by_loss, 100, "%u", ended_by_loss);
    cr_assert_gt(ended_unsent, 100, "%u", ended_unsent);
}
