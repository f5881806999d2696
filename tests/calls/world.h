// SPDX-License-Identifier: Apache-2.0
//
// Two contexts on a simulated world, driven by one thread: node 0 serves, node 1 connects. The world moves only in run_until() and run_ms(); one seed is one schedule.

#ifndef TESTS_CALLS_WORLD_H
#define TESTS_CALLS_WORLD_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/conn.h"
#include "core/ctx.h"
#include "core/request.h"
#include "core/target.h"
#include "provider/sim/sim.h"

#define MS  UINT64_C(1000000)
#define MIB (UINT64_C(1) << 20)

enum {
    SERVER,
    CLIENT
};

struct world {
    struct lieni_sim_world *sim;
    lien_ctx *ctx[2];
    lien_pool *pool[2];
    lien_listener *listener;
    lien_conn *conn[2];
    bool open, lost[2], closed[2];
    bool asleep[2]; // its progress is not run
};

static inline int accepted(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    struct world *w = arg;
    (void)listener;
    w->conn[SERVER] = conn;
    *conn_arg = w;
    return 0;
}

static inline void opened(lien_conn *conn, int status, void *arg)
{
    struct world *w = arg;
    (void)conn;
    cr_assert_eq(status, 0, "open: %s", lien_errname(status));
    w->open = true;
}

static inline void lost(lien_conn *conn, int status, void *arg)
{
    struct world *w = arg;
    (void)status;
    w->lost[conn == w->conn[CLIENT]] = true;
}

static inline void progress(struct world *w)
{
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned pass = 0; w->ctx[i] && !w->asleep[i]; pass++) {
            if (!lieni_sim_node_ready(w->sim, i) &&
                lieni_timers_next(&w->ctx[i]->timers) > lieni_sim_now(w->sim) &&
                lien_ctx_arm(w->ctx[i]) != LIEN_EAGAIN)
                break;
            cr_assert_eq(lien_ctx_progress(w->ctx[i]), 0);
            cr_assert_lt(pass, 100000, "node %u does not come to rest", i);
        }
    }
}

// Runs until *flag, or for `ms`. Returns *flag (flag NULL: false).
static inline bool run_until(struct world *w, const bool *flag, uint64_t ms)
{
    uint64_t limit = lieni_sim_now(w->sim) + ms * MS;
    progress(w);
    while (!(flag && *flag)) {
        uint64_t at = lieni_sim_next_time(w->sim);
        for (unsigned i = 0; i < 2; i++) {
            uint64_t t = w->ctx[i] && !w->asleep[i] ? lieni_timers_next(&w->ctx[i]->timers)
                                                    : UINT64_MAX;
            at = t < at ? t : at;
        }
        if (at > limit) {
            lieni_sim_advance(w->sim, limit);
            break;
        }
        if (!lieni_sim_step(w->sim, at))
            lieni_sim_advance(w->sim, at);
        progress(w);
        cr_assert_eq(lieni_sim_violations(w->sim), 0, "%s", lieni_sim_violation(w->sim, 0));
    }
    return flag && *flag;
}

static inline void run_ms(struct world *w, uint64_t ms)
{
    run_until(w, NULL, ms);
}

static inline void quiet_log(const lien_log_line *line, void *arg)
{
    (void)arg;
    if (getenv("CALLS_LOG"))
        fprintf(stderr, "%s\n", line->text);
}

// `settings`: of both contexts.
static inline struct world *world_open(uint64_t seed, const struct lieni_sim_config *config,
                                       const char *const *settings, const lien_service *server,
                                       const lien_service *client)
{
    struct world *w = calloc(1, sizeof(*w));
    struct lieni_sim_config plain;
    lieni_sim_config_init(&plain, LIENI_SIM_TCP);
    w->sim = lieni_sim_world_new(seed, config ? config : &plain);
    cr_assert_not_null(w->sim);
    for (unsigned i = 0; i < 2; i++) {
        lien_ctx_opts opts;
        lien_ctx_opts_init(&opts);
        opts.flags = LIEN_APP_DRIVEN | LIEN_KEEP_NOFILE;
        opts.settings = settings;
        opts.log = quiet_log;
        cr_assert_eq(lieni_ctx_open_platform(&opts, lieni_sim_node_platform(w->sim, i), &w->ctx[i]),
                     0);
        cr_assert_eq(lien_pool_open(w->ctx[i], NULL, &w->pool[i]), 0);
    }
    lien_listener_opts lo;
    lien_listener_opts_init(&lo);
    lien_conn_opts served;
    lien_conn_opts_init(&served);
    served.on_lost = lost;
    served.service = server;
    lo.arg = w;
    lo.on_accept = accepted;
    lo.conn = &served;
    cr_assert_eq(lien_listener_open(w->ctx[SERVER], "*:0", &lo, &w->listener), 0);
    char bound[96], address[96];
    cr_assert_eq(lien_listener_address(w->listener, bound, sizeof(bound)), 0);
    snprintf(address, sizeof(address), "%s%s", lieni_sim_node_host(w->sim, SERVER),
             strrchr(bound, ':'));
    lien_conn_opts co;
    lien_conn_opts_init(&co);
    co.arg = w;
    co.on_open = opened;
    co.on_lost = lost;
    co.service = client;
    cr_assert_eq(lien_conn_open(w->ctx[CLIENT], address, &co, &w->conn[CLIENT]), 0);
    cr_assert(run_until(w, &w->open, 1000));
    run_ms(w, 10);
    cr_assert_not_null(w->conn[SERVER]);
    return w;
}

// READs move 16 KiB a ms, so that a test can be in the middle of one.
static inline struct world *world_slow(enum lieni_sim_class kind, const lien_service *server,
                                       const lien_service *client)
{
    struct lieni_sim_config config;
    lieni_sim_config_init(&config, kind);
    config.chunk = (struct lieni_sim_range){16384, 16384};
    config.chunk_gap = (struct lieni_sim_range){MS, MS};
    return world_open(7, &config, NULL, server, client);
}

// Nothing is left, on the connection and in the world.
static inline void world_close(struct world *w)
{
    lien_listener_close(&w->listener);
    for (unsigned i = 0; i < 2; i++) {
        if (w->conn[i])
            lien_conn_close(&w->conn[i]);
    }
    run_ms(w, 5000);
    for (unsigned i = 0; i < 2; i++) {
        cr_assert(lieni_list_empty(&w->ctx[i]->conns), "a connection of node %u is left", i);
        lien_pool_close(&w->pool[i]);
        cr_assert_eq(lien_ctx_close(&w->ctx[i]), 0);
    }
    lieni_sim_check_quiet(w->sim);
    cr_assert_eq(lieni_sim_violations(w->sim), 0, "%s", lieni_sim_violation(w->sim, 0));
    lieni_sim_world_free(w->sim);
    free(w);
}

// -- Memory with a pattern --

static inline uint8_t pattern(uint64_t seed, uint64_t at)
{
    uint64_t z = (seed + at / 8) * 0x9e3779b97f4a7c15u;
    z ^= z >> 29;
    return (uint8_t)(z >> (8 * (at % 8)));
}

static inline lien_buf *buf_new(struct world *w, unsigned node, size_t len, uint64_t seed)
{
    lien_buf *buf;
    void *data;
    cr_assert_eq(lien_pool_alloc(w->pool[node], len, &buf), 0);
    cr_assert_eq(lien_buf_mut(buf, &data), 0);
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)data)[i] = pattern(seed, i);
    return buf;
}

static inline bool buf_is(lien_buf *buf, uint64_t seed)
{
    const void *data;
    if (lien_buf_data(buf, &data) != 0)
        return false;
    for (size_t i = 0; i < lien_buf_len(buf); i++)
        if (((const uint8_t *)data)[i] != pattern(seed, i))
            return false;
    return true;
}

static inline lien_space *space_of(struct world *w, unsigned node, lien_buf *buf)
{
    lien_space *space;
    cr_assert_eq(lien_space_open(w->ctx[node], &buf, 1, &space), 0);
    return space;
}

static inline lien_buf *space_first(lien_space *space)
{
    lien_buf *buf = NULL;
    cr_assert_eq(lien_space_buf(space, 0, &buf), 0);
    return buf;
}

// -- What happened to a call, a read, a write --

struct seen {
    bool done, released;
    unsigned n_done, n_released;
    int status, released_status;
    size_t reply_len;
    char reply[64];
    lien_msg *kept; // if keep
    bool keep;
};

static inline void saw_reply(void *arg, int status, lien_msg *reply)
{
    struct seen *s = arg;
    cr_assert_not(s->released, "done after released");
    s->done = true;
    s->n_done++;
    s->status = status;
    if (!reply)
        return;
    const void *data;
    lien_msg_head(reply, &data, &s->reply_len);
    memcpy(s->reply, data, s->reply_len < sizeof(s->reply) ? s->reply_len : sizeof(s->reply));
    if (s->keep)
        s->kept = reply;
    else
        lien_msg_free(&reply);
}

static inline void saw_done(void *arg, int status)
{
    struct seen *s = arg;
    cr_assert_not(s->released, "done after released");
    s->done = true;
    s->n_done++;
    s->status = status;
}

static inline void saw_released(void *arg, int status)
{
    struct seen *s = arg;
    s->released = true;
    s->n_released++;
    s->released_status = status;
}

static inline lien_call_opts call_to(struct seen *s)
{
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.on_done = saw_reply;
    opts.on_released = saw_released;
    opts.arg = s;
    return opts;
}

static inline lien_transfer_opts transfer_to(struct seen *s)
{
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.on_done = saw_done;
    opts.on_released = saw_released;
    opts.arg = s;
    return opts;
}

// A service that hands its requests to the test.
struct desk {
    lien_request *request[64];
    unsigned n; // handlers that began
};

static inline void to_desk(lien_request *request, lien_conn *conn, void *arg)
{
    struct desk *desk = arg;
    (void)conn;
    unsigned at = desk->n++ % 64;
    lien_request_drop(&desk->request[at]); // one that was left
    desk->request[at] = request;
}

// A call to the desk "test/desk", and its request.
static inline lien_request *desk_call(struct world *w, struct desk *desk,
                                      const lien_call_opts *opts, lien_call **handle)
{
    unsigned n = desk->n;
    int rc = lien_call_start(w->conn[CLIENT], "test/desk", NULL, 0, opts, handle);
    cr_assert_eq(rc, 0, "%s", lien_errname(rc));
    for (unsigned i = 0; i < 100 && desk->n == n; i++)
        run_ms(w, 1);
    cr_assert_eq(desk->n, n + 1);
    lien_request *request = desk->request[n % 64];
    desk->request[n % 64] = NULL;
    return request;
}

// The reply, and what its call saw.
static inline void finish(struct world *w, lien_request **request, struct seen *s, int status)
{
    cr_assert_eq(lien_request_reply(request, status, NULL, 0), 0);
    cr_assert(run_until(w, &s->released, 5000));
    cr_assert_eq(s->status, status, "%s", lien_errname(s->status));
    cr_assert_eq(s->released_status, 0);
}

#endif
