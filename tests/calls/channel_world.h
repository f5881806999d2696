// SPDX-License-Identifier: Apache-2.0
//
// Channels on the simulator: three servers (nodes 0 to 2) and one client (node 3), a virtual clock, one seed one schedule.

#ifndef TESTS_CALLS_CHANNEL_WORLD_H
#define TESTS_CALLS_CHANNEL_WORLD_H

#include "core/channel.h"
#include "core/listener.h"
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
    unsigned listeners_drained;
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

static struct set *set; // of the test that runs

// -- The world --

static inline void steps(void)
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

static inline bool until(const bool *flag, uint64_t ms)
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

static inline void go(uint64_t ms)
{
    until(NULL, ms);
}

static inline void echo(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    (void)conn;
    (void)arg;
    lien_request_args(request, &data, &len);
    cr_assert_eq(lien_request_reply(&request, 0, data, len), 0);
}

static inline void count(lien_request *request, lien_conn *conn, void *arg)
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

static inline unsigned node_of(const void *arg)
{
    return (unsigned)((const struct desk *)arg - set->desk);
}

static inline void forget(unsigned node, const lien_conn *conn)
{
    for (unsigned i = 0; i < set->n_conns[node]; i++) {
        if (set->conn[node][i] == conn)
            set->conn[node][i] = set->conn[node][--set->n_conns[node]];
    }
}

static inline int took(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    unsigned node = node_of(arg);
    (void)listener;
    cr_assert_lt(set->n_conns[node], CONNS);
    set->conn[node][set->n_conns[node]++] = conn;
    *conn_arg = arg;
    return 0;
}

static inline void server_lost(lien_conn *conn, int status, void *arg)
{
    (void)status;
    set->lost[node_of(arg)]++;
    forget(node_of(arg), conn);
    cr_assert_eq(lien_conn_close(&conn), 0);
}

static inline void server_drained(lien_conn *conn, void *arg)
{
    (void)conn;
    set->drained[node_of(arg)]++;
}

static inline void listener_drained(lien_listener *listener, void *arg)
{
    cr_assert_eq(listener, set->listener[node_of(arg)]);
    set->listeners_drained++;
}

static inline void on_event(lien_channel *channel, lien_channel_event event, const char *address,
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

static inline void on_closed(lien_channel *channel, int status, void *arg)
{
    (void)channel;
    cr_assert_eq(arg, set);
    cr_assert_eq(status, 0);
    set->closed = true;
    set->n_closed++;
}

static inline void serve(unsigned i)
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
    lo.on_drained = listener_drained;
    lo.conn = &served;
    cr_assert_eq(lien_listener_open(set->ctx[i], "*:9000", &lo, &set->listener[i]), 0);
}

// `listening`: bits of the servers that do.
static inline void begin(uint64_t seed, unsigned listening, const char *const *settings)
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

static inline void open_with(lien_channel_opts *opts, unsigned n)
{
    const char *addresses[SERVERS];
    for (unsigned i = 0; i < SERVERS; i++)
        addresses[i] = set->address[i];
    opts->arg = set;
    opts->on_event = on_event;
    opts->on_closed = on_closed;
    cr_assert_eq(lien_channel_open(set->ctx[BOSS], addresses, n, opts, &set->channel), 0);
}

static inline void open_channel(unsigned n)
{
    lien_channel_opts opts;
    lien_channel_opts_init(&opts);
    opts.backoff_min_ms = 100;
    opts.backoff_max_ms = 1000;
    open_with(&opts, n);
}

static inline lien_channel_info info(void)
{
    lien_channel_info now = {.size = sizeof(now)};
    cr_assert_eq(lien_channel_info_get(set->channel, &now), 0);
    return now;
}

static inline void drop_desks(void)
{
    for (unsigned i = 0; i < SERVERS; i++) {
        for (unsigned k = 0; k < 64; k++)
            lien_request_drop(&set->desk[i].request[k]);
    }
}

// A dead process's context can be closed all the same, as lieni_sim_kill_node() says.
static inline void close_ctx(unsigned i)
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
static inline void finish_all(void)
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

static inline int call(const char *method, const char *text, struct seen *s,
                       lien_channel_call **handle)
{
    lien_call_opts opts = call_to(s);
    *s = (struct seen){0};
    return lien_channel_call_start(set->channel, method, text, strlen(text), &opts, handle);
}

static inline void expect(struct seen *s, int status, uint64_t ms)
{
    cr_assert(until(&s->released, ms));
    cr_assert_eq(s->status, status, "%s", lien_errname(s->status));
    cr_assert_eq(s->n_done, 1);
    cr_assert_eq(s->n_released, 1);
    cr_assert_eq(s->released_status, 0);
}

static inline unsigned events_of(lien_channel_event event)
{
    unsigned n = 0;
    for (unsigned i = 0; i < set->n_events; i++)
        n += set->events[i].event == event;
    return n;
}

static inline lien_buf *filled(size_t len, uint64_t seed)
{
    lien_buf *buf;
    void *data;
    cr_assert_eq(lien_pool_alloc(set->pool, len, &buf), 0);
    cr_assert_eq(lien_buf_mut(buf, &data), 0);
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)data)[i] = pattern(seed, i);
    return buf;
}

#endif
