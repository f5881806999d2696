// SPDX-License-Identifier: Apache-2.0
//
// Corners where one end meets another, each once a bug: a peer that dies while one body is read, one is here and one waits for memory; both sides at their last control credit;
// a pool closed under its connections; memory that comes home to a thread that waits in an app-driven ctx; a listener that ends before we look. Over tcp; app-driven but for the third.

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fault/fault.h"

static lien_ctx *open_ctx(unsigned flags, const char *const *settings)
{
    lien_ctx *ctx;
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.flags = flags;
    opts.settings = settings;
    opts.log = fault_log_line;
    CHECK_EQ(lien_ctx_open(&opts, &ctx), 0);
    return ctx;
}

static lien_listener *listen_with(lien_ctx *ctx, const lien_conn_opts *conn, char address[96])
{
    lien_listener *listener;
    lien_listener_opts opts;
    lien_listener_opts_init(&opts);
    opts.conn = conn;
    CHECK_EQ(lien_listener_open(ctx, "127.0.0.1:0", &opts, &listener), 0);
    CHECK_EQ(lien_listener_address(listener, address, 96), 0);
    return listener;
}

// -- A body read, a body here, a body that waits ---------------------------------------------------------------------------------

static _Noreturn void send_three(int fd)
{
    static const size_t sizes[] = {40 * MIB, 8 * MIB, 8 * MIB};
    char address[96] = {0};
    lien_ctx *ctx;
    lien_pool *pool;
    lien_conn *conn;
    lien_buf *buf;
    CHECK(read(fd, address, sizeof address) > 0);
    CHECK_EQ(lien_ctx_open(NULL, &ctx), 0);
    CHECK_EQ(lien_pool_open(ctx, NULL, &pool), 0);
    CHECK_EQ(lien_conn_open_wait(ctx, address, NULL, &conn), 0);
    for (unsigned i = 0; i < 3; i++) {
        CHECK_EQ(lien_pool_alloc(pool, sizes[i], &buf), 0);
        CHECK_EQ(lien_send(conn, "x", 1, &buf, 1, NULL), 0);
    }
    for (;;)
        pause();
}

static void bodies_at_a_loss(void)
{
    int fds[2];
    CHECK_EQ(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0)
        send_three(fds[0]);
    lien_pool *pool;
    lien_pool_opts pool_opts;
    lien_conn_opts conn_opts;
    lien_conn *conn;
    char address[96] = {0};
    lien_ctx *ctx = open_ctx(LIEN_APP_DRIVEN, NULL);
    lien_pool_opts_init(&pool_opts);
    pool_opts.limit = pool_opts.reserve = 50 * MIB; // the first two bodies, not the third
    CHECK_EQ(lien_pool_open(ctx, &pool_opts, &pool), 0);
    lien_conn_opts_init(&conn_opts);
    conn_opts.pool = pool;
    lien_listener *listener = listen_with(ctx, &conn_opts, address);
    CHECK_EQ(write(fds[1], address, sizeof address), sizeof address);
    CHECK_EQ(lien_listener_accept_wait(listener, 20000, &conn), 0);
    lien_ctx_stats stats = {.size = sizeof stats};
    for (uint64_t end = fault_ms() + 20000; stats.messages_received == 0 && fault_ms() < end;) {
        CHECK_EQ(lien_ctx_progress(ctx), 0);
        CHECK_EQ(lien_ctx_stats_get(ctx, &stats), 0);
    }
    CHECK_EQ(stats.reads_started, 2); // the small one is here, the large one is not
    CHECK_EQ(stats.reads_done, 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    for (uint64_t end = fault_ms() + 20000; stats.conns_open != 0 && fault_ms() < end;) {
        CHECK_EQ(lien_ctx_progress(ctx), 0);
        CHECK_EQ(lien_ctx_stats_get(ctx, &stats), 0);
    }
    CHECK_EQ(stats.conns_open, 0);
    CHECK_EQ(lien_conn_close_wait(&conn, 20000), 0);
    CHECK_EQ(lien_ctx_stats_get(ctx, &stats), 0);
    CHECK_EQ(stats.pool_bytes, 0);
    CHECK_EQ(lien_ctx_close(&ctx), 0);
    close(fds[0]);
    close(fds[1]);
}

// -- The last control credit -----------------------------------------------------------------------------------------------------

#define TOKENS 40

struct end {
    lien_ctx *ctx;
    lien_conn *conn;
    lien_pool *pool;
    lien_grant *grants[TOKENS];
    lien_msg *msgs[TOKENS]; // each a token of the other end's
    unsigned taken, freed;
};

static struct end ends[2];

static void spin(unsigned ms)
{
    for (uint64_t until = fault_ms() + ms; fault_ms() < until; fault_sleep(1)) {
        lien_ctx_progress(ends[0].ctx);
        lien_ctx_progress(ends[1].ctx);
    }
}

static int take_conn(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    (void)listener;
    (void)arg;
    (void)conn_arg;
    ends[1].conn = conn;
    return 0;
}

static void take_msgs(struct end *e)
{
    while (e->taken < TOKENS && lien_msg_recv_wait(e->conn, 0, &e->msgs[e->taken]) == 0)
        e->taken++;
}

static void free_msgs(struct end *e)
{
    while (e->freed < e->taken)
        lien_msg_free(&e->msgs[e->freed++]);
}

static uint32_t credits(struct end *e)
{
    lien_conn_info info = {.size = sizeof info};
    CHECK_EQ(lien_conn_info_get(e->conn, &info), 0);
    return info.control_credits;
}

static void send_token(struct end *e, unsigned i)
{
    lien_buf *buf;
    lien_token token;
    int rc;
    CHECK_EQ(lien_pool_alloc(e->pool, 4096, &buf), 0);
    CHECK_EQ(lien_grant_open(e->conn, &buf, 1, NULL, &token, &e->grants[i]), 0);
    lien_buf_free(&buf);
    while ((rc = lien_send(e->conn, token.bytes, token.len, NULL, 0, NULL)) == LIEN_EAGAIN) {
        spin(2);
        for (unsigned k = 0; k < 2; k++) {
            take_msgs(&ends[k]);
            free_msgs(&ends[k]);
        }
    }
    CHECK_EQ(rc, 0);
}

// Releases until the last credit, then frees messages: their credits are due.
static void spend(struct end *e)
{
    const void *head;
    size_t len;
    for (unsigned i = e->freed; credits(e) > 1; i++) {
        CHECK(i < e->taken);
        CHECK_EQ(lien_msg_head(e->msgs[i], &head, &len), 0);
        CHECK_EQ(lien_release(e->conn, head, len), 0);
    }
    CHECK(e->taken - e->freed >= 8);
    free_msgs(e);
}

static void last_credit(void)
{
    static const char *const settings[] = {"control_credits=8", "message_credits=16", NULL};
    char address[96];
    lien_listener *listener;
    lien_listener_opts opts;
    for (unsigned k = 0; k < 2; k++) {
        ends[k].ctx = open_ctx(LIEN_APP_DRIVEN, settings);
        CHECK_EQ(lien_pool_open(ends[k].ctx, NULL, &ends[k].pool), 0);
    }
    lien_listener_opts_init(&opts);
    opts.on_accept = take_conn;
    CHECK_EQ(lien_listener_open(ends[1].ctx, "127.0.0.1:0", &opts, &listener), 0);
    CHECK_EQ(lien_listener_address(listener, address, sizeof address), 0);
    CHECK_EQ(lien_conn_open(ends[0].ctx, address, NULL, &ends[0].conn), 0);
    for (unsigned i = 0; i < 500 && !ends[1].conn; i++)
        spin(10);
    CHECK(ends[1].conn);
    spin(50);
    for (unsigned i = 0; i < TOKENS; i++) {
        send_token(&ends[0], i);
        send_token(&ends[1], i);
    }
    spin(100);
    take_msgs(&ends[0]);
    take_msgs(&ends[1]);
    spend(&ends[0]); // neither hears of the other meanwhile
    spend(&ends[1]);
    for (unsigned i = 0; i < 200 && (credits(&ends[0]) < 4 || credits(&ends[1]) < 4); i++)
        spin(10);
    CHECK(credits(&ends[0]) >= 4);
    CHECK(credits(&ends[1]) >= 4);
    for (unsigned k = 0; k < 2; k++) {
        for (unsigned i = 0; i < TOKENS; i++)
            lien_grant_close(&ends[k].grants[i]);
    }
    CHECK_EQ(lien_ctx_close(&ends[0].ctx), 0);
    CHECK_EQ(lien_ctx_close(&ends[1].ctx), 0);
}

// -- Pools -----------------------------------------------------------------------------------------------------------------------

static void pool_closed_first(void)
{
    char address[96];
    lien_ctx *ctx = open_ctx(0, NULL);
    lien_pool *from, *into;
    lien_conn *mine, *theirs, *another;
    lien_buf *buf;
    lien_conn_opts conn_opts;
    CHECK_EQ(lien_pool_open(ctx, NULL, &from), 0);
    CHECK_EQ(lien_pool_open(ctx, NULL, &into), 0);
    lien_conn_opts_init(&conn_opts);
    conn_opts.pool = into;
    lien_listener *listener = listen_with(ctx, &conn_opts, address);
    CHECK_EQ(lien_conn_open_wait(ctx, address, NULL, &mine), 0);
    CHECK_EQ(lien_listener_accept_wait(listener, 5000, &theirs), 0);
    CHECK_EQ(lien_pool_alloc(from, 65536, &buf), 0);
    CHECK_EQ(lien_pool_close(&into), 0);
    CHECK(lien_send_wait(mine, "h", 1, &buf, 1, NULL) != 0);
    CHECK_EQ(lien_conn_open_wait(ctx, address, NULL, &another), 0);
    lien_buf_free(&buf);
    CHECK_EQ(lien_ctx_close(&ctx), 0);
}

static void *wait_for_memory(void *arg)
{
    lien_buf *buf = NULL;
    uint64_t begin = fault_ms();
    CHECK_EQ(lien_pool_alloc_wait(arg, MIB, 20000, &buf), 0);
    CHECK(fault_ms() - begin < 10000);
    lien_buf_free(&buf);
    return NULL;
}

static void memory_comes_home(void)
{
    lien_ctx *ctx = open_ctx(LIEN_APP_DRIVEN, NULL);
    lien_pool *pool;
    lien_pool_opts opts;
    lien_buf *buf;
    pthread_t thread;
    lien_pool_opts_init(&opts);
    opts.limit = MIB;
    opts.reserve = 0;
    CHECK_EQ(lien_pool_open(ctx, &opts, &pool), 0);
    CHECK_EQ(lien_pool_alloc(pool, MIB, &buf), 0);
    CHECK_EQ(pthread_create(&thread, NULL, wait_for_memory, pool), 0);
    fault_sleep(300);
    lien_buf_free(&buf);
    pthread_join(thread, NULL);
    CHECK_EQ(lien_ctx_close(&ctx), 0);
}

// -- A listener that ends before we look -----------------------------------------------------------------------------------------

static void on_open_status(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    *(int *)arg = status;
}

// The kernel connects us and resets that at once, as a process that is killed with a full backlog does. The address is not to blame.
static void reset_while_connecting(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    char address[32];
    int status = 1;
    lien_conn *conn;
    lien_conn_opts opts;
    lien_ctx *ctx = open_ctx(LIEN_APP_DRIVEN, NULL);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(at.sin_port));
    lien_conn_opts_init(&opts);
    opts.on_open = on_open_status;
    opts.arg = &status;
    CHECK_EQ(lien_conn_open(ctx, address, &opts, &conn), 0);
    close(fd);
    const uint64_t begin = fault_ms();
    while (status == 1 && fault_ms() - begin < 60000) {
        lien_ctx_progress(ctx);
        fault_sleep(1);
    }
    CHECK_EQ(status, LIEN_ECLOSED);
    CHECK_EQ(lien_conn_close(&conn), 0);
    CHECK_EQ(lien_ctx_close(&ctx), 0);
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    bodies_at_a_loss(); // forks: before any thread
    last_credit();
    pool_closed_first();
    memory_comes_home();
    reset_while_connecting();
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
