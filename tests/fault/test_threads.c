// SPDX-License-Identifier: Apache-2.0
//
// No application code on the progress thread: a callback that blocks for longer than the death timer loses no peer. A
// blocking twin that could never return says so. An inline callback that blocks is named [R5].

#include <poll.h>

#include "tests/fault/fault.h"

static const char *const settings[] = {"heartbeat_ms=200", "dead_ms=1000", NULL};
static struct fault_side side;
static struct fault_peer peer;
static _Atomic int called;
static _Atomic int answers[4];

// A connection, waited for by making progress where that is ours to do.
static lien_conn *open_conn(lien_conn_opts *opts)
{
    lien_conn *conn = NULL;
    CHECK_EQ(lien_conn_open_wait(side.ctx, peer.address, opts, &conn), 0);
    return conn;
}

static bool was_called(void *arg)
{
    (void)arg;
    return called > 0;
}

static void block(lien_conn *conn, lien_msg *msg, void *arg)
{
    (void)conn;
    (void)arg;
    fault_sleep(2500); // more than dead_ms, twice
    lien_msg_free(&msg);
    called++;
}

static void blocking_callback(void)
{
    lien_conn_opts opts;
    lien_conn_info info;
    lien_token token;
    lien_conn_opts_init(&opts);
    opts.on_message = block;
    fault_side_open(&side, settings, 0);
    lien_conn *conn = open_conn(&opts);
    lien_conn *other = fault_connect(&side, &peer);
    fault_ask_grant(other, MIB, &token);
    called = 0;
    CHECK_EQ(lien_send(conn, "e", 1, NULL, 0, NULL), 0);
    fault_sleep(200);
    CHECK_EQ(called, 0);
    // Meanwhile READs complete: blocking twins need no callback.
    lien_buf *buf = NULL;
    CHECK_EQ(lien_pool_alloc(side.pool, MIB, &buf), 0);
    uint64_t begin = fault_ms();
    CHECK_EQ(lien_read_wait(other, token.bytes, token.len, &buf, 1, NULL), 0);
    CHECK(fault_ms() - begin < 1000);
    lien_buf_free(&buf);
    CHECK(fault_until(was_called, NULL, 5000));
    fault_info(conn, &info);
    CHECK(info.open);
    fault_info(other, &info);
    CHECK(info.open);
    CHECK_EQ(lien_conn_close_wait(&conn, 5000), 0);
    CHECK_EQ(lien_conn_close_wait(&other, 5000), 0);
    fault_side_close(&side);
}

// In a callback that runs inside progress, waiting could never end.
static void wait_inside(lien_conn *conn, lien_msg *msg, void *arg)
{
    lien_msg *next = NULL;
    lien_conn *none = NULL, *self = conn;
    lien_ctx *ctx = arg;
    answers[0] = lien_conn_open_wait(ctx, peer.address, NULL, &none);
    answers[1] = lien_conn_close_wait(&self, 100);
    answers[2] = lien_ctx_close(&ctx);
    lien_send_opts opts;
    lien_send_opts_init(&opts);
    opts.timeout_ms = 100;
    answers[3] = lien_send_wait(conn, "x", 1, NULL, 0, &opts);
    fault_sleep(300); // and that is too long for here
    lien_msg_free(&msg);
    lien_msg_free(&next);
    called++;
}

static void check_answers(void)
{
    CHECK_EQ(answers[0], LIEN_EDEADLK);
    CHECK_EQ(answers[1], LIEN_EDEADLK);
    CHECK_EQ(answers[2], LIEN_EDEADLK);
    // A head needs no waiting where there is credit.
    CHECK(answers[3] == LIEN_EDEADLK || answers[3] == 0);
}

static void inline_callback(void)
{
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    fault_side_open(&side, settings, 0);
    opts.flags = LIEN_INLINE;
    opts.on_message = wait_inside;
    opts.arg = side.ctx;
    lien_conn *conn = open_conn(&opts);
    called = 0;
    CHECK_EQ(lien_send(conn, "e", 1, NULL, 0, NULL), 0);
    CHECK(fault_until(was_called, NULL, 5000));
    check_answers();
    CHECK(fault_log_has("an inline callback"));
    CHECK_EQ(lien_conn_close_wait(&conn, 5000), 0);
    fault_side_close(&side);
}

static void app_driven(void)
{
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    fault_side_open(&side, settings, LIEN_APP_DRIVEN);
    opts.on_message = wait_inside;
    opts.arg = side.ctx;
    lien_conn *conn = open_conn(&opts);
    called = 0;
    CHECK_EQ(lien_send(conn, "e", 1, NULL, 0, NULL), 0);
    fault_sleep(200);
    CHECK_EQ(called, 0); // only inside our own call
    int fd = -1;
    CHECK_EQ(lien_ctx_fd(side.ctx, &fd), 0);
    for (unsigned i = 0; i < 1000 && called == 0; i++) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (lien_ctx_arm(side.ctx) == 0)
            poll(&p, 1, 100);
        CHECK_EQ(lien_ctx_progress(side.ctx), 0);
    }
    CHECK(called > 0);
    check_answers();
    CHECK_EQ(lien_conn_close_wait(&conn, 5000), 0);
    fault_side_close(&side);
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    fault_peer_start(&peer, settings);
    blocking_callback();
    inline_callback();
    app_driven();
    fault_peer_end(&peer);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
