// SPDX-License-Identifier: Apache-2.0
//
// Channels: what is sent again and what is not, GOAWAY on both sides, close in each state; and random faults, in which each call runs at most once and its status tells the truth about that.

#include "tests/calls/channel_world.h"

// -- What is sent again --

// Its frame waited for the provider when the server died: it never left.
Test(channel_end, unsent_call_goes_to_the_next_server)
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
Test(channel_end, sent_call_is_not_repeated)
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
Test(channel_end, overload_is_told)
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

Test(channel_end, goaway_moves_new_calls)
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
Test(channel_end, goaway_everywhere_does_not_spin)
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

// -- The serving side --

struct plain {
    lien_conn *conn;
    bool open, goaway, lost;
    int status;
};

static void plain_open(lien_conn *conn, int status, void *arg)
{
    struct plain *p = arg;
    (void)conn;
    p->open = true;
    p->status = status;
}

static void plain_goaway(lien_conn *conn, void *arg)
{
    struct plain *p = arg;
    cr_assert_eq(conn, p->conn);
    cr_assert(p->open);
    cr_assert_not(p->goaway, "on_goaway twice");
    p->goaway = true;
}

static void plain_lost(lien_conn *conn, int status, void *arg)
{
    struct plain *p = arg;
    (void)conn;
    p->lost = true;
    p->status = status;
}

static void plain_connect(struct plain *p, const lien_service *service)
{
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    *p = (struct plain){0};
    opts.arg = p;
    opts.on_open = plain_open;
    opts.on_goaway = plain_goaway;
    opts.on_lost = plain_lost;
    opts.service = service;
    cr_assert_eq(lien_conn_open(set->ctx[BOSS], set->address[0], &opts, &p->conn), 0);
}

// Who is open hears GOAWAY; who is on the way comes in, and hears it too; nobody comes later. It has drained when all requests have ended.
Test(channel_end, listener_drains)
{
    begin(30, 1, NULL);
    open_channel(1);
    struct plain open, half, late;
    struct seen s;
    cr_assert_eq(call("test/desk", "x", &s, NULL), 0);
    plain_connect(&open, NULL);
    cr_assert(until(&open.open, 100));
    go(100);
    cr_assert_eq(set->ctx[0]->half_open, 0);
    plain_connect(&half, NULL);
    while (set->ctx[0]->half_open == 0) {
        cr_assert(lieni_sim_step(set->sim, UINT64_MAX));
        steps();
    }
    cr_assert_not(half.open);
    cr_assert_eq(lien_listener_drain(set->listener[0]), 0);
    plain_connect(&late, NULL);
    go(500);
    cr_assert(half.open && late.open);
    cr_assert_eq(half.status, 0, "%s", lien_errname(half.status));
    cr_assert_eq(late.status, LIEN_EREFUSED);
    cr_assert(open.goaway && half.goaway);
    cr_assert_not(late.goaway);
    cr_assert_eq(set->drained[0], 2);
    cr_assert_eq(set->listeners_drained, 0, "a request still runs");
    cr_assert_eq(lien_call_start(half.conn, "test/echo", NULL, 0, NULL, NULL), LIEN_EOVERLOAD);
    cr_assert_eq(lien_request_reply(&set->desk[0].request[0], 0, NULL, 0), 0);
    expect(&s, 0, 100);
    go(100);
    cr_assert_eq(set->drained[0], 3);
    cr_assert_eq(set->listeners_drained, 1);
    cr_assert_eq(lien_conn_close(&open.conn), 0);
    cr_assert_eq(lien_conn_close(&half.conn), 0);
    cr_assert_eq(lien_conn_close(&late.conn), 0);
    go(100);
    cr_assert_eq(set->listeners_drained, 1);
    finish_all();
}

// A listener whose last connection is lost while it drains has drained, too; one without any at once.
Test(channel_end, listener_drains_by_loss)
{
    begin(31, 3, NULL);
    open_channel(1);
    struct seen s;
    cr_assert_eq(call("test/desk", "x", &s, NULL), 0);
    go(100);
    cr_assert_eq(lien_listener_drain(set->listener[1]), 0);
    go(1);
    cr_assert_eq(set->listeners_drained, 1);
    cr_assert_eq(lien_listener_drain(set->listener[0]), 0);
    go(100);
    cr_assert_eq(set->listeners_drained, 1);
    cr_assert_eq(lien_channel_close(&set->channel), 0);
    cr_assert(until(&set->closed, 5000));
    go(5000);
    cr_assert_eq(set->listeners_drained, 2);
    finish_all();
}

// HEARD that nobody asked for, and a second GOAWAY, break the protocol.
Test(channel_end, unasked_frames_end_the_connection)
{
    for (unsigned twice = 0; twice < 2; twice++) {
        begin(32, 1, NULL);
        open_channel(1);
        struct plain p;
        plain_connect(&p, NULL);
        go(100);
        struct lieni_frame frame = {.kind = twice ? LIENI_FRAME_GOAWAY : LIENI_FRAME_HEARD};
        lieni_ctx_lock(set->ctx[BOSS]);
        for (unsigned i = 0; i <= twice; i++)
            cr_assert(lieni_link_control(p.conn, &frame));
        lieni_link_pump(p.conn);
        lieni_ctx_unlock(set->ctx[BOSS]);
        cr_assert(until(&p.lost, 1000));
        lien_ctx_stats stats = {.size = sizeof(stats)};
        cr_assert_eq(lien_ctx_stats_get(set->ctx[0], &stats), 0);
        cr_assert_eq(stats.protocol_errors, 1);
        cr_assert_eq(lien_conn_close(&p.conn), 0);
        cr_assert(info().connected); // that connection only
        finish_all();
    }
}

// -- Closing --

// In each state: on_closed once, after the calls' ends; what waits never ran, what ran may have.
Test(channel_end, close_in_each_state)
{
    static const enum lieni_channel_state state[] = {
        LIENI_CHANNEL_CONNECTING, LIENI_CHANNEL_WAITING, LIENI_CHANNEL_CONNECTING,
        LIENI_CHANNEL_OPEN,       LIENI_CHANNEL_OPEN,    LIENI_CHANNEL_WAITING};
    for (unsigned at = 0; at < 6; at++) {
        begin(14 + at, at == 1 ? 0 : 1, NULL);
        if (at == 0)
            lieni_sim_kill_node(set->sim, 0, true); // connecting, for long
        open_channel(1);
        struct seen s[2] = {{0}, {0}};
        cr_assert_eq(call("test/desk", "x", &s[0], NULL), 0);
        if (at == 0)
            go(1);
        if (at == 1)
            go(2000); // waiting for the next round
        if (at == 2)
            steps(); // connecting, in the middle
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
        cr_assert_eq(set->channel->state, state[at], "close at %u: state %d", at,
                     (int)set->channel->state);
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

Test(channel_end, close_from_a_callback)
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
Test(channel_end, ctx_close)
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

Test(channel_end, random_faults)
{
    for (uint64_t seed = 1; seed <= 150; seed++)
        soak(seed);
    // All of it happened.
    cr_assert_gt(resent_in_all, 100, "%u", resent_in_all);
    cr_assert_gt(ended_by_loss, 100, "%u", ended_by_loss);
    cr_assert_gt(ended_unsent, 100, "%u", ended_unsent);
}
