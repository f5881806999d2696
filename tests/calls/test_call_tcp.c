// SPDX-License-Identifier: Apache-2.0
//
// Calls over libfabric tcp, with the server in a process of its own and threads of the library on both sides. The handler "test/turn" reads the caller's buffers, changes
// them in place and writes them back, in each mode of validation; "test/carry" passes them on to its client; "test/call" calls its client back; "test/keep" keeps its request.

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

#include "tests/support/check.h"

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

// Its call has ended, or its connection: whatever it did not say.
static void check_ended(lien_request *request, int status)
{
    CHECK(status == LIEN_ECANCELED || status == LIEN_ESTALE || status == LIEN_EUNVERIFIED);
    CHECK(status == LIEN_ESTALE || lien_request_cancelled(request));
}

// Four reads of a quarter each, which share what they can.
static int read_batch(lien_request *request, lien_space *space, size_t len)
{
    lien_op op[4];
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    for (size_t i = 0; i < 4; i++) {
        op[i] = (lien_op){.src = len * i / 4, .dst = len * i / 4};
        op[i].len = len * (i + 1) / 4 - op[i].src;
    }
    opts.ops = op;
    opts.n_ops = 4;
    return lien_request_read_wait(request, space, &opts);
}

// The caller's bytes in *buf, or why not. `flags`: LIEN_UNVERIFIED.
static int fetch(lien_request *request, bool batch, unsigned flags, lien_buf **buf)
{
    size_t len = (size_t)lien_request_read_len(request);
    lien_space *space;
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.flags = flags;
    CHECK_RC(lien_pool_alloc(pool, len, buf), 0);
    CHECK_RC(lien_space_open(ctx, buf, 1, &space), 0);
    int rc = batch ? read_batch(request, space, len)
                   : lien_request_read_wait(request, space, &opts);
    if (rc == 0)
        CHECK_RC(lien_space_take(space, buf, 1), 0);
    lien_space_free(&space);
    return rc;
}

enum mode {
    PLAIN,
    BATCHED,
    OVERLAPPED,
    DEFERRED
};
static const enum mode modes[] = {PLAIN, BATCHED, OVERLAPPED, DEFERRED};

// The bytes are vouched for: so they are those that every caller here lends.
static void check_good(const uint8_t *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        CHECK(data[i] == (uint8_t)(pattern(i, 3) ^ 0x5au));
}

static void turn(lien_request *request, lien_conn *conn, void *arg)
{
    const enum mode mode = *(const enum mode *)arg;
    size_t len = (size_t)lien_request_read_len(request);
    lien_buf *buf;
    void *data;
    (void)conn;
    int rc = fetch(request, mode == BATCHED, mode == OVERLAPPED ? LIEN_UNVERIFIED : 0, &buf);
    if (rc == 0) {
        CHECK_RC(lien_buf_mut(buf, &data), 0);
        for (size_t i = 0; i < len; i++)
            ((uint8_t *)data)[i] ^= 0x5au;
        if (mode == DEFERRED)
            CHECK(lien_buf_unverified(buf));
        if (mode == OVERLAPPED)
            rc = lien_request_verify_wait(request);
        if (rc == 0 && mode != DEFERRED) {
            CHECK(!lien_buf_unverified(buf));
            check_good(data, len);
        }
    }
    if (rc == 0)
        rc = lien_request_write_wait(request, &buf, 1, NULL);
    if (rc == 0)
        rc = lien_request_reply(&request, 0, "turned", 6);
    if (rc != 0)
        check_ended(request, rc);
    lien_buf_free(&buf);
    lien_request_drop(&request);
}

// What it read goes on to its client, by another call: nothing leaves before the verdict.
static void carry(lien_request *request, lien_conn *conn, void *arg)
{
    lien_buf *buf;
    lien_call_opts opts;
    (void)arg;
    int rc = fetch(request, false, 0, &buf);
    if (rc == 0) {
        lien_call_opts_init(&opts);
        opts.read = &buf;
        opts.n_read = 1;
        rc = lien_call_start(conn, "client/take", NULL, 0, &opts, NULL);
        CHECK(rc == LIEN_EUNVERIFIED || rc == LIEN_EAGAIN || rc == LIEN_ECLOSED);
        rc = lien_call_wait(conn, "client/take", NULL, 0, &opts, NULL);
        CHECK(rc != 0 || !lien_buf_unverified(buf));
    }
    if (rc == 0)
        rc = lien_request_reply(&request, 0, "taken", 5);
    lien_buf_free(&buf);
    lien_request_drop(&request);
}

// The client's: it gets nothing but good bytes.
static void take(lien_request *request, lien_conn *conn, void *arg)
{
    size_t len = (size_t)lien_request_read_len(request);
    const void *data;
    lien_buf *buf;
    (void)conn;
    (void)arg;
    int rc = fetch(request, false, 0, &buf);
    if (rc == 0)
        rc = lien_buf_data(buf, &data);
    for (size_t i = 0; rc == 0 && i < len; i++)
        CHECK(((const uint8_t *)data)[i] == pattern(i, 3));
    lien_buf_free(&buf);
    lien_request_reply(&request, rc, NULL, 0);
    lien_request_drop(&request);
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
    {.name = "test/turn", .handle = turn, .arg = (void *)(uintptr_t)&modes[PLAIN]},
    {.name = "test/batch", .handle = turn, .arg = (void *)(uintptr_t)&modes[BATCHED]},
    {.name = "test/overlap", .handle = turn, .arg = (void *)(uintptr_t)&modes[OVERLAPPED]},
    {.name = "test/pure",
     .handle = turn,
     .arg = (void *)(uintptr_t)&modes[DEFERRED],
     .flags = LIEN_PURE},
    {.name = "test/carry", .handle = carry, .flags = LIEN_PURE},
    {.name = "test/call", .handle = call_back},
    {.name = "test/keep", .handle = keep}};
static const lien_service server_service = {
    .methods = server_methods, .n_methods = sizeof(server_methods) / sizeof(server_methods[0])};
static const lien_method client_methods[] = {{.name = "client/echo", .handle = echo},
                                             {.name = "client/take", .handle = take}};
static const lien_service client_service = {.methods = client_methods, .n_methods = 2};

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

static void turn_round(lien_conn *conn, const char *method, size_t len)
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
    CHECK_RC(lien_call_wait(conn, method, NULL, 0, &opts, &reply), 0);
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

// Writes over a source whose borrow has ended, while late READs of it may still be served: what validation is for, and no mistake of the program's.
__attribute__((no_sanitize("thread"))) static void write_over(void *data, size_t len, bool good)
{
    volatile uint8_t *bytes = data;
    for (size_t i = 0; i < len; i++)
        bytes[i] = good ? (uint8_t)((i * 2654435761u + 3) >> 7) : 0xee;
}

// Calls that end somewhere in the middle, by a cancel or their deadline, and whose source is written over at once: no byte that was made of what it is then gets into a write space.
static void reuses(lien_conn *conn, const char *method, unsigned n)
{
    const size_t len = 300000;
    lien_buf *source = new_buf(len, 3);
    for (unsigned i = 0; i < n; i++) {
        lien_buf *target = new_buf(len, 4);
        lien_space *space;
        lien_call *call;
        void *data;
        const void *got;
        CHECK_RC(lien_buf_mut(source, &data), 0);
        write_over(data, len, true);
        CHECK_RC(lien_space_open(ctx, &target, 1, &space), 0);
        lien_call_opts opts;
        lien_call_opts_init(&opts);
        opts.read = &source;
        opts.n_read = 1;
        opts.write = space;
        opts.timeout_ms = i % 2 ? 1 + i % 5 : 10000;
        int rc;
        while ((rc = lien_call_start(conn, method, NULL, 0, &opts, &call)) == LIEN_EAGAIN)
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        CHECK_RC(rc, 0);
        if (i % 2) { // its deadline ends it
            while (lien_buf_mut(source, &data) == LIEN_EBUSY)
                nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        } else {
            nanosleep(&(struct timespec){.tv_nsec = 50000L * (long)i}, NULL);
        }
        CHECK_RC(lien_call_close(&call), 0);
        CHECK_RC(lien_buf_mut(source, &data), 0);
        write_over(data, len, false);
        CHECK_RC(lien_space_wait(space, 20000), 0);
        CHECK_RC(lien_space_take(space, &target, 1), 0);
        CHECK_RC(lien_buf_data(target, &got), 0);
        for (size_t j = 0; j < len; j++) {
            uint8_t byte = ((const uint8_t *)got)[j];
            CHECK(byte == (uint8_t)(pattern(j, 3) ^ 0x5au) || byte == pattern(j, 4));
        }
        lien_space_free(&space);
        lien_buf_free(&target);
    }
    lien_buf_free(&source);
}

static void validation(lien_conn *conn)
{
    static const char *const methods[] = {"test/turn", "test/batch", "test/overlap", "test/pure"};
    for (unsigned i = 0; i < 4; i++) {
        turn_round(conn, methods[i], 1);
        turn_round(conn, methods[i], 3u << 20);
        reuses(conn, methods[i], 60);
    }
    lien_buf *source = new_buf(200000, 3);
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.read = &source;
    opts.n_read = 1;
    for (unsigned i = 0; i < 20; i++)
        CHECK_RC(lien_call_wait(conn, "test/carry", NULL, 0, &opts, NULL), 0);
    lien_buf_free(&source);
    reuses(conn, "test/carry", 60);
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
        turn_round(conn, "test/turn", len);
    turn_round(conn, "test/turn", 16u << 20);
    validation(conn);
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
