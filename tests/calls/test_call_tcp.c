// SPDX-License-Identifier: Apache-2.0
//
// Calls over libfabric tcp, with the server in a process of its own and threads of the library on both sides. The handler "test/turn" reads the caller's buffers, changes
// them in place and writes them back; "test/call" calls its client back; "test/sleep" keeps its request.

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <lien/lien.h>

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d (pid %d): %s\n", __FILE__, __LINE__, (int)getpid(), #x);        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define CHECK_RC(call, expected)                                                                   \
    do {                                                                                           \
        int rc_ = (call);                                                                          \
        if (rc_ != (expected)) {                                                                   \
            fprintf(stderr, "%s:%d (pid %d): %s is %s\n", __FILE__, __LINE__, (int)getpid(),       \
                    #call, lien_errname(rc_));                                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static lien_pool *pool;
static lien_ctx *ctx;

static uint8_t pattern(size_t i, unsigned seed)
{
    return (uint8_t)((i * 2654435761u + seed) >> 7);
}

// -- Server ------------------------------------------------------------------------------------------------------------------------

static void echo(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    (void)conn;
    (void)arg;
    CHECK_RC(lien_request_args(request, &data, &len), 0);
    CHECK_RC(lien_request_reply(&request, 0, data, len), 0);
}

static void turn(lien_request *request, lien_conn *conn, void *arg)
{
    size_t len = (size_t)lien_request_read_len(request);
    lien_buf *buf;
    lien_space *space;
    void *data;
    (void)conn;
    (void)arg;
    CHECK_RC(lien_pool_alloc(pool, len, &buf), 0);
    lien_buf *slot = buf;
    CHECK_RC(lien_space_open(ctx, &slot, 1, &space), 0);
    CHECK_RC(lien_request_read_wait(request, space, NULL), 0);
    CHECK_RC(lien_space_take(space, &buf, 1), 0);
    lien_space_free(&space);
    CHECK_RC(lien_buf_mut(buf, &data), 0);
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)data)[i] ^= 0x5au;
    CHECK_RC(lien_request_write_wait(request, &buf, 1, NULL), 0);
    lien_buf_free(&buf);
    CHECK_RC(lien_request_reply(&request, 0, "turned", 6), 0);
}

static void call_back(lien_request *request, lien_conn *conn, void *arg)
{
    lien_msg *reply = NULL;
    const void *data;
    size_t len;
    (void)arg;
    CHECK_RC(lien_call_wait(conn, "client/echo", "back", 4, NULL, &reply), 0);
    CHECK_RC(lien_msg_head(reply, &data, &len), 0);
    CHECK(len == 4 && memcmp(data, "back", 4) == 0);
    lien_msg_free(&reply);
    CHECK_RC(lien_request_reply(&request, 0, NULL, 0), 0);
}

static void cancelled(void *arg)
{
    lien_request *request = arg;
    CHECK(lien_request_cancelled(request));
    lien_request_drop(&request);
}

static void keep(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    if (lien_request_on_cancel(request, cancelled, request) != 0)
        lien_request_drop(&request); // it was cancelled already
}

static const lien_method server_methods[] = {
    {.name = "test/echo", .handle = echo},
    {.name = "test/inline", .handle = echo, .flags = LIEN_INLINE},
    {.name = "test/turn", .handle = turn},
    {.name = "test/call", .handle = call_back},
    {.name = "test/keep", .handle = keep}};
static const lien_service server_service = {.methods = server_methods, .n_methods = 5};
static const lien_method client_methods[] = {{.name = "client/echo", .handle = echo}};
static const lien_service client_service = {.methods = client_methods, .n_methods = 1};

static void open_ctx(void)
{
    static const char *const settings[] = {"provider=tcp", "dispatch_threads=4", NULL};
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    CHECK_RC(lien_ctx_open(&opts, &ctx), 0);
    CHECK_RC(lien_pool_open(ctx, NULL, &pool), 0);
}

static void serve(int out, int in)
{
    char address[96] = {0}, byte;
    lien_listener *listener;
    lien_listener_opts opts;
    open_ctx();
    lien_listener_opts_init(&opts);
    lien_conn_opts conn_opts;
    lien_conn_opts_init(&conn_opts);
    conn_opts.service = &server_service;
    opts.conn = &conn_opts;
    CHECK_RC(lien_listener_open(ctx, "127.0.0.1:0", &opts, &listener), 0);
    CHECK_RC(lien_listener_address(listener, address, sizeof(address)), 0);
    CHECK(write(out, address, sizeof(address)) == sizeof(address));
    lien_conn *conn;
    CHECK_RC(lien_listener_accept_wait(listener, 20000, &conn), 0);
    CHECK(read(in, &byte, 1) == 0); // until the client is gone
    int rc = lien_conn_close_wait(&conn, 10000);
    CHECK_RC(rc, 0);
    lien_listener_close(&listener);
    lien_ctx_stats stats = {.size = sizeof(stats)};
    CHECK_RC(lien_ctx_stats_get(ctx, &stats), 0);
    CHECK(stats.protocol_errors == 0 && stats.grants_live == 0 && stats.pool_bytes == 0);
    CHECK_RC(lien_pool_close(&pool), 0);
    CHECK_RC(lien_ctx_close(&ctx), 0);
    exit(0);
}

// -- Client ------------------------------------------------------------------------------------------------------------------------

static lien_buf *new_buf(size_t len, unsigned seed)
{
    lien_buf *buf;
    void *data;
    CHECK_RC(lien_pool_alloc(pool, len, &buf), 0);
    CHECK_RC(lien_buf_mut(buf, &data), 0);
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)data)[i] = pattern(i, seed);
    return buf;
}

static void turn_round(lien_conn *conn, size_t len)
{
    lien_buf *source = new_buf(len, 3), *target = new_buf(len, 4);
    lien_space *space;
    lien_msg *reply = NULL;
    const void *data;
    size_t n;
    CHECK_RC(lien_space_open(ctx, &target, 1, &space), 0);
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.read = &source;
    opts.n_read = 1;
    opts.write = space;
    CHECK_RC(lien_call_wait(conn, "test/turn", NULL, 0, &opts, &reply), 0);
    CHECK_RC(lien_msg_head(reply, &data, &n), 0);
    CHECK(n == 6 && memcmp(data, "turned", 6) == 0);
    lien_msg_free(&reply);
    CHECK_RC(lien_space_wait(space, 1000), 0);
    CHECK_RC(lien_space_take(space, &target, 1), 0);
    CHECK_RC(lien_buf_data(target, &data), 0);
    for (size_t i = 0; i < len; i++)
        CHECK(((const uint8_t *)data)[i] == (uint8_t)(pattern(i, 3) ^ 0x5au));
    void *mut;
    CHECK_RC(lien_buf_mut(source, &mut), 0);
    lien_space_free(&space);
    lien_buf_free(&source);
    lien_buf_free(&target);
}

static void echoes(lien_conn *conn, const char *method, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        lien_msg *reply = NULL;
        const void *data;
        size_t len;
        CHECK_RC(lien_call_wait(conn, method, &i, sizeof(i), NULL, &reply), 0);
        CHECK_RC(lien_msg_head(reply, &data, &len), 0);
        CHECK(len == sizeof(i) && memcmp(data, &i, sizeof(i)) == 0);
        lien_msg_free(&reply);
    }
}

static void *echo_thread(void *arg)
{
    echoes(arg, "test/echo", 300);
    return NULL;
}

// Calls that nobody waits for, some of whose cancels meet the handler and some do not.
static void cancels(lien_conn *conn, unsigned n)
{
    lien_buf *source = new_buf(100000, 1);
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.read = &source;
    opts.n_read = 1;
    for (unsigned i = 0; i < n;) {
        lien_call *call;
        int rc = lien_call_start(conn, "test/keep", NULL, 0, &opts, &call);
        if (rc == LIEN_EAGAIN) {
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
            continue;
        }
        CHECK_RC(rc, 0);
        if (i++ % 3 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        CHECK_RC(lien_call_close(&call), 0);
        void *data;
        CHECK_RC(lien_buf_mut(source, &data), 0);
    }
    lien_buf_free(&source);
}

static void run(const char *address)
{
    lien_conn *conn;
    lien_conn_opts opts;
    open_ctx();
    lien_conn_opts_init(&opts);
    opts.service = &client_service;
    CHECK_RC(lien_conn_open_wait(ctx, address, &opts, &conn), 0);
    echoes(conn, "test/echo", 100);
    echoes(conn, "test/inline", 100);
    CHECK_RC(lien_call_wait(conn, "test/none", NULL, 0, NULL, NULL), LIEN_ENOTFOUND);
    for (size_t len = 1; len <= 16u << 20; len = len * 7 + 1)
        turn_round(conn, len);
    turn_round(conn, 16u << 20);
    for (unsigned i = 0; i < 20; i++)
        CHECK_RC(lien_call_wait(conn, "test/call", NULL, 0, NULL, NULL), 0);
    lien_call_opts brief;
    lien_call_opts_init(&brief);
    brief.timeout_ms = 50;
    CHECK_RC(lien_call_wait(conn, "test/keep", NULL, 0, &brief, NULL), LIEN_ETIMEDOUT);
    pthread_t threads[4];
    for (unsigned i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, echo_thread, conn) == 0);
    cancels(conn, 1000);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    echoes(conn, "test/echo", 100);
    // What cancelled calls left is gone.
    lien_conn_info info = {.size = sizeof(info)};
    for (unsigned i = 0; i < 500; i++) {
        CHECK_RC(lien_conn_info_get(conn, &info), 0);
        if (info.grants_live == 0)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    CHECK(info.open && info.grants_live == 0);
    CHECK_RC(lien_conn_close_wait(&conn, 10000), 0);
    lien_ctx_stats stats = {.size = sizeof(stats)};
    CHECK_RC(lien_ctx_stats_get(ctx, &stats), 0);
    CHECK(stats.protocol_errors == 0 && stats.quarantined_bytes == 0);
    CHECK_RC(lien_pool_close(&pool), 0);
    CHECK_RC(lien_ctx_close(&ctx), 0);
}

int main(void)
{
    int out[2], in[2], status;
    char address[96];
    CHECK(pipe(out) == 0 && pipe(in) == 0);
    pid_t server = fork();
    CHECK(server >= 0);
    if (server == 0) {
        close(in[1]);
        serve(out[1], in[0]);
    }
    close(in[0]);
    close(out[1]);
    CHECK(read(out[0], address, sizeof(address)) == sizeof(address));
    run(address);
    close(in[1]);
    CHECK(waitpid(server, &status, 0) == server);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}
