// SPDX-License-Identifier: Apache-2.0
//
// Peers that stand still, die, come early or late, and memory that senders would take all of. Reports 13, 20, 21, 22.

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/address.h"
#include "tests/field/field.h"

static uint64_t cpu_ms(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000u +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1000u;
}

// -- 13: EAGAIN for ever -----------------------------------------------------------------------------------------------------------

static int send_one(struct field *f)
{
    char head[1000] = {0};
    return lien_send(f->conn, head, sizeof head, NULL, 0, NULL);
}

// A peer that stands still takes nothing: messages, calls and READs are refused with LIEN_EAGAIN or wait, for as long as it may be alive and no longer.
static void stopped_for_good(bool killed)
{
    static const char *const settings[] = {"dead_ms=2000", "heartbeat_ms=300",
                                           "message_credits=1024", NULL};
    struct field f;
    struct field_call c[4];
    struct fault_read r = {0};
    lien_token token;
    int rc;
    memset(c, 0, sizeof c);
    field_open(&f, 0, NULL, settings);
    fault_ask_grant(f.conn, 4 * MIB, &token);
    lien_space *space = field_space(&f, 4 * MIB, 9);
    for (unsigned i = 0; i < 4; i++) {
        lien_call_opts opts = field_opts();
        field_start(&f, &c[i], "swallow", NULL, 0, &opts);
    }
    fault_peer_signal(&f.peer, SIGSTOP);
    uint64_t begin = fault_ms(), cpu = cpu_ms();
    CHECK_EQ(fault_read_start(&r, f.conn, &token, space, LIEN_FOREVER, 0), 0);
    while ((rc = send_one(&f)) == 0)
        CHECK(fault_ms() - begin < 60000);
    CHECK_EQ(rc, LIEN_EAGAIN);
    if (killed)
        fault_peer_kill(&f.peer);
    // Who tries again and again hears of the end, by time where nothing else tells. What the peer sent before may come late and make room once more.
    while ((rc = send_one(&f)) == LIEN_EAGAIN || rc == 0) {
        CHECK(fault_ms() - begin < 60000);
        fault_sleep(2);
    }
    CHECK_EQ(rc, LIEN_EPEERLOST);
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(field_over(&c[i]), LIEN_EPEERLOST);
    CHECK(fault_until(fault_read_is_released, &r, 30000));
    CHECK(r.done == 1 && r.released == 1 && r.status < 0 && r.released_status == 0);
    uint64_t took = fault_ms() - begin;
    CHECK(killed || took >= 1900); // not before dead_ms
    lien_read_close(&r.read);
    lien_space_free(&space);
    field_lose(&f);
    printf("%s: the end after %u ms, %u ms of CPU time\n", killed ? "killed" : "stopped",
           (unsigned)took, (unsigned)(cpu_ms() - cpu));
    CHECK(killed || cpu_ms() - cpu < took / 2); // nothing spins
    if (!killed)
        fault_peer_kill(&f.peer);
    field_close(&f);
}

void field_report_13_eagain_ends(void)
{
    stopped_for_good(false);
    stopped_for_good(true);
}

// -- 20: messages that are there before the connection is --------------------------------------------------------------------------

#define EARLY 20u

static _Atomic unsigned n_handled, n_wrong;

static void early(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    n_handled++;
    CHECK_EQ(lien_request_reply(&request, 0, "ok", 2), 0);
}

static const lien_method early_methods[] = {{.name = "early", .handle = early}};
static const lien_service early_service = {.methods = early_methods, .n_methods = 1};

// Refuses, and takes its time.
static int refuse(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    (void)listener;
    (void)conn;
    (void)arg;
    (void)conn_arg;
    fault_sleep(200);
    return 1;
}

struct early {
    struct fault_side server, client;
    lien_listener *listener;
    lien_conn *accepted;
    struct field f; // the client's view, for its calls
};

static void early_open(struct early *e, bool refused)
{
    static const char *const settings[] = {"dispatch_threads=4", NULL};
    char address[96];
    lien_conn_opts conn;
    lien_listener_opts opts;
    memset(e, 0, sizeof *e);
    fault_side_open(&e->server, settings, 0);
    fault_side_open(&e->client, settings, 0);
    lien_conn_opts_init(&conn);
    conn.service = &early_service;
    lien_listener_opts_init(&opts);
    opts.conn = &conn;
    opts.on_accept = refused ? refuse : NULL;
    snprintf(address, sizeof address, TEST_AT(0));
    CHECK_EQ(lien_listener_open(e->server.ctx, address, &opts, &e->listener), 0);
    CHECK_EQ(lien_listener_address(e->listener, address, sizeof address), 0);
    e->f.side = e->client;
    CHECK_EQ(lien_conn_open_wait(e->client.ctx, address, NULL, &e->f.conn), 0);
}

static void early_close(struct early *e)
{
    if (e->f.conn)
        CHECK_EQ(lien_conn_close_wait(&e->f.conn, 30000), 0);
    if (e->accepted)
        CHECK_EQ(lien_conn_close_wait(&e->accepted, 30000), 0);
    lien_listener_close(&e->listener);
    fault_side_close(&e->client);
    fault_side_close(&e->server);
}

// All that was sent while the server had not accepted yet arrives, in order; calls are handled then.
static void early_and_accepted(void)
{
    struct early e;
    struct field_call c[4];
    lien_msg *msg = NULL;
    const void *head;
    size_t len;
    memset(c, 0, sizeof c);
    n_handled = 0;
    early_open(&e, false);
    for (uint32_t i = 0; i < EARLY; i++)
        CHECK_EQ(lien_send(e.f.conn, &i, sizeof i, NULL, 0, NULL), 0);
    for (unsigned i = 0; i < 4; i++) {
        lien_call_opts opts = field_opts();
        field_start(&e.f, &c[i], "early", NULL, 0, &opts);
    }
    fault_sleep(200);
    CHECK_EQ(n_handled, 0); // nobody has taken the connection
    CHECK_EQ(lien_listener_accept_wait(e.listener, 30000, &e.accepted), 0);
    for (uint32_t i = 0; i < EARLY; i++) {
        CHECK_EQ(lien_msg_recv_wait(e.accepted, 30000, &msg), 0);
        CHECK_EQ(lien_msg_head(msg, &head, &len), 0);
        CHECK(len == sizeof i && memcmp(head, &i, sizeof i) == 0);
        lien_msg_free(&msg);
    }
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(field_over(&c[i]), 0);
    CHECK_EQ(n_handled, 4);
    early_close(&e);
}

static void body_sent(void *arg, int status)
{
    atomic_store((atomic_int *)arg, status);
}

// Refused in the end: each call and each message with a body hears of it, and so does whoever waits for a message.
static void early_and_refused(void)
{
    struct early e;
    struct field_call c[4];
    lien_msg *msg = NULL;
    memset(c, 0, sizeof c);
    n_handled = 0;
    early_open(&e, true);
    lien_buf *body = field_buf(&e.f, 100000, 1);
    CHECK_EQ(lien_send(e.f.conn, "x", 1, NULL, 0, NULL), 0);
    lien_send_opts send;
    atomic_int sent = 1;
    lien_send_opts_init(&send);
    send.on_done = body_sent;
    send.arg = &sent;
    CHECK_EQ(lien_send(e.f.conn, "y", 1, &body, 1, &send), 0);
    for (unsigned i = 0; i < 4; i++) {
        lien_call_opts opts = field_opts();
        opts.body = &body;
        opts.n_body = i % 2;
        field_start(&e.f, &c[i], "early", NULL, 0, &opts);
    }
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(field_over(&c[i]), LIEN_ECLOSED);
    CHECK_EQ(n_handled, 0);
    for (unsigned k = 0; k < 30000 && sent == 1; k++)
        fault_sleep(1);
    CHECK_EQ(sent, LIEN_ECLOSED); // nobody took the message
    CHECK_EQ(lien_msg_recv_wait(e.f.conn, 30000, &msg), LIEN_ECLOSED);
    lien_buf_free(&body);
    early_close(&e);
}

void field_report_20_first_message(void)
{
    for (unsigned i = 0; i < 3; i++)
        early_and_accepted();
    early_and_refused();
}

// -- 21: senders and receivers of one pool -----------------------------------------------------------------------------------------

static void take_body(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    n_wrong += !field_buf_is(lien_request_body(request), 2);
    n_handled++;
    CHECK_EQ(lien_request_reply(&request, 0, NULL, 0), 0);
}

static const lien_method body_methods[] = {{.name = "body", .handle = take_body}};
static const lien_service body_service = {.methods = body_methods, .n_methods = 1};

// All that senders can have of a pool is taken: bodies of requests and of replies arrive in it all the same.
void field_report_21_reserve_for_receiving(void)
{
    struct field f;
    lien_pool *pool = NULL;
    lien_buf *taken[64];
    unsigned n = 0;
    int rc;
    n_handled = n_wrong = 0;
    field_open(&f, 0, NULL, NULL);
    CHECK_EQ(lien_conn_close_wait(&f.conn, 30000), 0);
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.limit = 8 * MIB;
    opts.reserve = 2 * MIB;
    CHECK_EQ(lien_pool_open(f.side.ctx, &opts, &pool), 0);
    lien_conn_opts conn_opts;
    lien_conn_opts_init(&conn_opts);
    conn_opts.pool = pool;
    conn_opts.service = &body_service;
    f.conn = fault_connect_with(&f.side, &f.peer, &conn_opts);
    while ((rc = lien_pool_alloc(pool, 256 * 1024, &taken[n])) == 0)
        CHECK(++n < 64);
    CHECK_EQ(rc, LIEN_ELIMIT);
    CHECK_EQ(n, 24);
    for (unsigned i = 0; i < 20; i++) {
        struct field_ring ring;
        memset(&ring, 0, sizeof ring);
        ring.source.seed = 1;
        ring.source.len = 100;
        ring.body_len = MIB;
        strcpy(ring.method, "body");
        field_ask(&f, "ring", &ring, sizeof ring, NULL, 0);
        struct field_call c = {0};
        lien_call_opts call = field_opts();
        call.reply_max = 512 * 1024;
        ring.source.len = call.reply_max;
        field_start(&f, &c, "body", &ring.source, sizeof ring.source, &call);
        CHECK_EQ(field_over(&c), 0);
        for (unsigned k = 0; k < 30000 && n_handled <= i; k++)
            fault_sleep(1);
        CHECK_EQ(n_handled, i + 1);
    }
    CHECK_EQ(n_wrong, 0);
    while (n > 0)
        lien_buf_free(&taken[--n]);
    CHECK_EQ(lien_pool_close(&pool), 0);
    field_close(&f);
}

// -- 22: connecting to who does not answer -----------------------------------------------------------------------------------------

static void not_in_time(struct field *f, const char *address, const char *stage)
{
    lien_conn_opts opts;
    lien_conn *conn = NULL;
    lien_conn_opts_init(&opts);
    opts.timeout_ms = 500;
    fault_log_clear();
    uint64_t begin = fault_ms();
    CHECK_EQ(lien_conn_open_wait(f->side.ctx, address, &opts, &conn), LIEN_ETIMEDOUT);
    uint64_t took = fault_ms() - begin;
    CHECK(!conn && took >= 490);
    CHECK(fault_log_has(stage));
    printf("%s: after %u ms\n", stage, (unsigned)took);
}

#define DIALS 8u

// A listening port whose kernel takes no more connections: it does not answer.
static void full_port(int fds[DIALS + 1], char *address, size_t size)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    fds[DIALS] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(fds[DIALS], (struct sockaddr *)&a, sizeof a), 0);
    CHECK_EQ(listen(fds[DIALS], 0), 0);
    CHECK_EQ(getsockname(fds[DIALS], (struct sockaddr *)&a, &len), 0);
    for (unsigned i = 0; i < DIALS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        CHECK(connect(fds[i], (struct sockaddr *)&a, sizeof a) == 0 || errno == EINPROGRESS);
    }
    fault_sleep(50);
    snprintf(address, size, "127.0.0.1:%u", ntohs(a.sin_port));
}

void field_report_22_connect_timer(void)
{
    struct field f;
    int fds[DIALS + 1];
    char full[32];
    field_open(&f, FIELD_RELAYED, NULL, NULL);
    CHECK_EQ(lien_conn_close_wait(&f.conn, 30000), 0);
    f.relay.hold = true; // the fabric port takes the connection, and no more comes
    not_in_time(&f, f.peer.address, "fabric connection");
    f.relay.hold = false;
    fault_peer_signal(&f.peer, SIGSTOP); // the kernel takes the connection, and no more comes
    not_in_time(&f, f.peer.address, "bootstrap handshake");
    fault_peer_kill(&f.peer);
    full_port(fds, full, sizeof full); // not even the kernel answers
    not_in_time(&f, full, "bootstrap connection");
    for (unsigned i = 0; i <= DIALS; i++)
        close(fds[i]);
    field_close(&f);
}
