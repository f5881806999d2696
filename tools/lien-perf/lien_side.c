// SPDX-License-Identifier: Apache-2.0
//
// Lien's sides, over the public API: with a progress thread and dispatch threads (the default), with callbacks on the progress thread (LIEN_INLINE), and driven by the application.
// Client and server are of the same kind. Callbacks start the next operation themselves; the measuring thread only waits for the last. `lock` guards the run at hand.

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lien/lien.h>

#include "side.h"

enum variant {
    DEFAULT,
    INLINE,
    DRIVEN
};

struct target {
    struct client *client;
    unsigned index;
    lien_space *space;
};

struct client {
    enum variant variant;
    lien_ctx *ctx;
    lien_pool *pool;
    lien_conn *conn;
    struct target targets[PERF_DEPTH_MAX];
    pthread_mutex_t lock;
    pthread_cond_t changed; // monotonic clock
    uint8_t token[LIEN_TOKEN_MAX];
    size_t token_len;
    uint8_t message[PERF_MESSAGE_MAX];
    // The run at hand.
    size_t bytes;
    uint64_t to_start, to_end;
    int status;
};

struct server {
    lien_ctx *ctx;
    lien_pool *pool;
    lien_buf *source;
    lien_conn *conn;
    lien_grant *grant;
};

static int failed(const char *what, int status)
{
    fprintf(stderr, "lien-perf: lien: %s: %s\n", what, lien_strerror(status));
    return status;
}

static int open_ctx(enum variant variant, size_t bytes, lien_ctx **ctx, lien_pool **pool)
{
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.flags = variant == DRIVEN ? LIEN_APP_DRIVEN : 0;
    int status = lien_ctx_open(&opts, ctx);
    if (status != 0)
        return failed("lien_ctx_open", status);
    lien_pool_opts pool_opts;
    lien_pool_opts_init(&pool_opts);
    pool_opts.limit = bytes;
    pool_opts.reserve = 0;
    status = lien_pool_open(*ctx, &pool_opts, pool);
    return status == 0 ? 0 : failed("lien_pool_open", status);
}

// Sleeps until an app-driven ctx has something to do or `fd` (or -1) is readable; not at all if it has. Right after lien_ctx_progress(), and after a look at what that brought.
// *readable: `fd` is.
static int sleep_on(lien_ctx *ctx, int fd, int timeout_ms, bool *readable)
{
    struct pollfd fds[2] = {{.events = POLLIN}, {.fd = fd, .events = POLLIN}};
    int status = lien_ctx_arm(ctx);
    if (status == LIEN_EAGAIN)
        return 0;
    if (status == 0)
        status = lien_ctx_fd(ctx, &fds[0].fd);
    if (status != 0)
        return failed("progress", status);
    if (poll(fds, 2, timeout_ms) == 0)
        return failed("no progress", LIEN_ETIMEDOUT);
    *readable = fds[1].revents != 0;
    return 0;
}

// -- Server ------------------------------------------------------------------------------------------------------------------------

static void echo(lien_conn *conn, lien_msg *msg, void *arg)
{
    (void)arg;
    const void *head;
    size_t len;
    lien_msg_head(msg, &head, &len);
    int status = lien_send(conn, head, len, NULL, 0, NULL);
    if (status != 0 && status != LIEN_ECLOSED && status != LIEN_EPEERLOST)
        failed("lien_send", status);
    lien_msg_free(&msg);
}

static int accepted(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    struct server *server = arg;
    lien_token token;
    (void)listener;
    *conn_arg = server;
    if (server->conn)
        return -1; // one client
    int status = lien_grant_open(conn, &server->source, 1, NULL, &token, &server->grant);
    if (status == 0)
        status = lien_send(conn, token.bytes, token.len, NULL, 0, NULL);
    if (status != 0)
        return failed("greeting", status);
    server->conn = conn;
    return 0;
}

static int open_source(struct server *server)
{
    int status = lien_pool_alloc(server->pool, PERF_SOURCE, &server->source);
    void *bytes;
    if (status == 0)
        status = lien_buf_mut(server->source, &bytes);
    if (status != 0)
        return failed("the source", status);
    perf_fill(bytes);
    return 0;
}

static int say_where(lien_listener *listener, int out)
{
    char address[96];
    int status = lien_listener_address(listener, address, sizeof address);
    return status == 0 ? perf_say_address(out, address) : failed("the address", status);
}

static int wait_for_end(struct server *server, enum variant variant, int in)
{
    bool end = false;
    int status = 0;
    if (variant != DRIVEN) {
        struct pollfd fd = {.fd = in, .events = POLLIN};
        while (poll(&fd, 1, -1) < 0 && errno == EINTR)
            ;
        return 0;
    }
    while (status == 0 && !end) {
        lien_ctx_progress(server->ctx);
        status = sleep_on(server->ctx, in, -1, &end);
    }
    return status;
}

static int lien_serve(const struct side *side, int in, int out)
{
    enum variant variant = (enum variant)side->variant;
    struct server server = {0};
    lien_listener *listener = NULL;
    lien_conn_opts conn;
    lien_conn_opts_init(&conn);
    lien_listener_opts opts;
    lien_listener_opts_init(&opts);
    conn.flags = variant == INLINE ? LIEN_INLINE : 0;
    conn.on_message = echo;
    opts.arg = &server;
    opts.on_accept = accepted;
    int status = open_ctx(variant, PERF_SOURCE, &server.ctx, &server.pool);
    if (status == 0)
        status = open_source(&server);
    if (status == 0) {
        opts.conn = &conn;
        status = lien_listener_open(server.ctx, "127.0.0.1:0", &opts, &listener);
        status = status == 0 ? say_where(listener, out) : failed("lien_listener_open", status);
    }
    if (status == 0)
        status = wait_for_end(&server, variant, in);
    if (server.grant)
        lien_grant_close(&server.grant);
    if (server.conn)
        lien_conn_close(&server.conn);
    if (server.source)
        lien_buf_free(&server.source);
    if (server.ctx)
        lien_ctx_close(&server.ctx);
    return status;
}

// -- Client ------------------------------------------------------------------------------------------------------------------------

// The run fails, or one of its operations ended. Under the lock.
static void ended(struct client *client, int status)
{
    if (status != 0 && client->status == 0)
        client->status = status;
    if (client->to_end > 0)
        client->to_end--;
    if (client->to_end == 0 || status != 0)
        pthread_cond_signal(&client->changed);
}

static void on_lost(lien_conn *conn, int status, void *arg)
{
    struct client *client = arg;
    (void)conn;
    pthread_mutex_lock(&client->lock);
    ended(client, status);
    pthread_mutex_unlock(&client->lock);
}

static void on_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct client *client = arg;
    const void *head;
    size_t len;
    lien_msg_head(msg, &head, &len);
    pthread_mutex_lock(&client->lock);
    bool next = client->to_start > 0;
    if (next)
        client->to_start--;
    if (client->token_len == 0 && len <= sizeof client->token) {
        memcpy(client->token, head, len);
        client->token_len = len;
    }
    pthread_mutex_unlock(&client->lock);
    lien_msg_free(&msg);
    int status = next ? lien_send(conn, client->message, client->bytes, NULL, 0, NULL) : 0;
    pthread_mutex_lock(&client->lock);
    ended(client, status);
    pthread_mutex_unlock(&client->lock);
}

// Whether the run goes on.
static bool running(struct client *client)
{
    pthread_mutex_lock(&client->lock);
    bool is = client->to_end > 0 && client->status == 0;
    pthread_mutex_unlock(&client->lock);
    return is;
}

static int wait_driven(struct client *client)
{
    bool none;
    int status = 0;
    while (status == 0) {
        lien_ctx_progress(client->ctx);
        if (!running(client))
            break;
        status = sleep_on(client->ctx, -1, PERF_STUCK_MS, &none);
    }
    return status;
}

static int wait_threaded(struct client *client)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PERF_STUCK_MS / 1000;
    int rc = 0;
    pthread_mutex_lock(&client->lock);
    while (client->to_end > 0 && client->status == 0 && rc == 0)
        rc = pthread_cond_timedwait(&client->changed, &client->lock, &until);
    pthread_mutex_unlock(&client->lock);
    return rc == 0 ? 0 : failed("no end of a run", LIEN_ETIMEDOUT);
}

// Waits for the end of the run.
static int wait_end(struct client *client)
{
    int status = client->variant == DRIVEN ? wait_driven(client) : wait_threaded(client);
    if (status != 0)
        return status;
    pthread_mutex_lock(&client->lock);
    status = client->status;
    pthread_mutex_unlock(&client->lock);
    return status == 0 ? 0 : failed("an operation", status);
}

static void start_run(struct client *client, size_t bytes, uint64_t to_start, uint64_t n)
{
    pthread_mutex_lock(&client->lock);
    client->bytes = bytes;
    client->to_start = to_start;
    client->to_end = n;
    pthread_mutex_unlock(&client->lock);
}

static int open_targets(struct client *client)
{
    int status = 0;
    for (unsigned i = 0; status == 0 && i < PERF_DEPTH_MAX; i++) {
        lien_buf *buf;
        client->targets[i] = (struct target){.client = client, .index = i};
        status = lien_pool_alloc(client->pool, PERF_READ_MAX, &buf);
        if (status == 0)
            status = lien_space_open(client->ctx, &buf, 1, &client->targets[i].space);
    }
    return status == 0 ? 0 : failed("the targets", status);
}

static int dial(struct client *client, const char *address)
{
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.flags = client->variant == INLINE ? LIEN_INLINE : 0;
    opts.arg = client;
    opts.on_message = on_message;
    opts.on_lost = on_lost;
    start_run(client, 0, 0, 1); // the token
    int status = lien_conn_open_wait(client->ctx, address, &opts, &client->conn);
    return status == 0 ? wait_end(client) : failed("connecting", status);
}

static void lien_close(void *arg)
{
    struct client *client = arg;
    for (unsigned i = 0; i < PERF_DEPTH_MAX; i++) {
        if (client->targets[i].space)
            lien_space_free(&client->targets[i].space);
    }
    if (client->conn)
        lien_conn_close(&client->conn);
    if (client->ctx)
        lien_ctx_close(&client->ctx);
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

static int lien_open(const struct side *side, const char *address, void **out)
{
    struct client *client = calloc(1, sizeof *client);
    if (!client)
        return failed("memory", LIEN_ENOMEM);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&client->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&client->lock, NULL);
    client->variant = (enum variant)side->variant;
    int status = open_ctx(client->variant, PERF_SOURCE, &client->ctx, &client->pool);
    if (status == 0)
        status = open_targets(client);
    if (status == 0)
        status = dial(client, address);
    if (status != 0) {
        lien_close(client);
        return status;
    }
    *out = client;
    return 0;
}

static int lien_messages(void *arg, size_t bytes, uint64_t n)
{
    struct client *client = arg;
    start_run(client, bytes, n - 1, n);
    int status = lien_send(client->conn, client->message, bytes, NULL, 0, NULL);
    return status == 0 ? wait_end(client) : failed("lien_send", status);
}

static int start_read(struct target *target);

// The target is ours again: the next READ.
static void on_released(void *arg, int status)
{
    struct target *target = arg;
    struct client *client = target->client;
    pthread_mutex_lock(&client->lock);
    bool next = status == 0 && client->to_start > 0;
    if (next)
        client->to_start--;
    pthread_mutex_unlock(&client->lock);
    if (next)
        status = start_read(target);
    pthread_mutex_lock(&client->lock);
    ended(client, status);
    pthread_mutex_unlock(&client->lock);
}

static int start_read(struct target *target)
{
    struct client *client = target->client;
    lien_op op = {.src = target->index * PERF_READ_MAX, .len = client->bytes};
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.ops = &op;
    opts.n_ops = 1;
    opts.on_released = on_released;
    opts.arg = target;
    return lien_read_start(client->conn, client->token, client->token_len, target->space, &opts,
                           NULL);
}

static int lien_reads(void *arg, size_t bytes, unsigned depth, uint64_t n)
{
    struct client *client = arg;
    uint64_t first = n < depth ? n : depth;
    start_run(client, bytes, n - first, n);
    for (unsigned i = 0; i < first; i++) {
        int status = start_read(&client->targets[i]);
        if (status != 0)
            return failed("lien_read_start", status);
    }
    return wait_end(client);
}

static const uint8_t *lien_target(void *arg, unsigned i)
{
    struct client *client = arg;
    lien_buf *buf;
    const void *data;
    int status = lien_space_buf(client->targets[i].space, 0, &buf);
    if (status == 0)
        status = lien_buf_data(buf, &data);
    if (status == 0)
        return data;
    failed("looking at a target", status);
    return NULL;
}

// Heartbeats of a ctx that nobody else drives.
static void lien_idle(void *arg)
{
    struct client *client = arg;
    if (client->variant == DRIVEN)
        lien_ctx_progress(client->ctx);
}

#define LIEN                                                                                       \
    .serve = lien_serve, .open = lien_open, .messages = lien_messages, .reads = lien_reads,        \
    .target = lien_target, .idle = lien_idle, .close = lien_close

const struct side side_lien = {
    .name = "lien", .text = "Lien: progress thread, dispatch threads", .variant = DEFAULT, LIEN};
const struct side side_lien_inline = {.name = "lien-inline",
                                      .text = "Lien: callbacks on the progress thread",
                                      .variant = INLINE,
                                      LIEN};
const struct side side_lien_driven = {
    .name = "lien-driven", .text = "Lien: driven by the application", .variant = DRIVEN, LIEN};
