// SPDX-License-Identifier: Apache-2.0
//
// See echo.h. Everything of one process runs on its one thread, so nothing here is atomic.

#include "tests/loops/echo.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS  200u
#define BYTES   65536u
#define DEAD_MS 600u

static const char *const settings[] = {"heartbeat_ms=100", "dead_ms=600", NULL};

static lien_ctx *driven_ctx(void)
{
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.flags = LIEN_APP_DRIVEN;
    opts.settings = settings;
    lien_ctx *ctx;
    IS(lien_ctx_open(&opts, &ctx), 0);
    return ctx;
}

// -- Server: reads what it is granted, and answers with the sum of the bytes it read --

struct server {
    lien_ctx *ctx;
    lien_pool *pool;
    lien_listener *listener;
    lien_grant *grant; // to its one connection
    bool done;         // that is closed
};

struct job {
    struct server *server;
    lien_conn *conn;
    lien_space *space;
    uint64_t sum;
};

static uint64_t sum_of(const uint8_t *bytes, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum = sum * 31 + bytes[i];
    return sum;
}

static void job_done(void *arg, int status)
{
    (void)arg;
    CHECK(status == 0 || status == LIEN_ECLOSED || status == LIEN_EPEERLOST);
}

static void job_released(void *arg, int status)
{
    struct job *job = arg;
    lien_buf *buf;
    const void *bytes;
    IS(status, 0);
    IS(lien_space_buf(job->space, 0, &buf), 0);
    IS(lien_buf_data(buf, &bytes), 0);
    job->sum = sum_of(bytes, lien_buf_len(buf));
    if (!job->server->done)
        lien_send(job->conn, &job->sum, sizeof job->sum, NULL, 0, NULL);
    lien_space_free(&job->space);
    free(job);
}

static void server_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct server *server = arg;
    const void *token;
    size_t len;
    IS(lien_msg_head(msg, &token, &len), 0);
    lien_token_info info = {.size = sizeof info};
    IS(lien_token_open(conn, token, len, &info), 0);
    struct job *job = calloc(1, sizeof *job);
    CHECK(job != NULL);
    job->server = server;
    job->conn = conn;
    lien_buf *buf;
    IS(lien_pool_alloc(server->pool, info.len, &buf), 0);
    IS(lien_space_open(server->ctx, &buf, 1, &job->space), 0);
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.flags = LIEN_RELEASE;
    opts.on_done = job_done;
    opts.on_released = job_released;
    opts.arg = job;
    IS(lien_read_start(conn, token, len, job->space, &opts, NULL), 0);
    lien_msg_free(&msg);
}

static void server_lost(lien_conn *conn, int status, void *arg)
{
    (void)arg;
    CHECK(status == LIEN_ECLOSED || status == LIEN_EPEERLOST);
    IS(lien_conn_close(&conn), 0);
}

static void server_closed(lien_conn *conn, int status, void *arg)
{
    struct server *server = arg;
    (void)conn;
    IS(status, 0);
    IS(lien_grant_close(&server->grant), 0);
    server->done = true;
}

// Grants its buffer to a new connection at once, for the client's reads with a deadline.
static int server_accept(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    struct server *server = arg;
    (void)listener;
    lien_token token;
    lien_buf *buf;
    *conn_arg = server;
    IS(lien_pool_alloc(server->pool, BYTES, &buf), 0);
    IS(lien_grant_open(conn, &buf, 1, NULL, &token, &server->grant), 0);
    lien_buf_free(&buf); // at its release
    IS(lien_send(conn, token.bytes, token.len, NULL, 0, NULL), 0);
    return 0;
}

static void server_open(struct server *server, char *address, size_t size)
{
    memset(server, 0, sizeof *server);
    server->ctx = driven_ctx();
    IS(lien_pool_open(server->ctx, NULL, &server->pool), 0);
    lien_conn_opts conn;
    lien_conn_opts_init(&conn);
    lien_listener_opts opts;
    lien_listener_opts_init(&opts);
    opts.arg = server;
    opts.on_accept = server_accept;
    conn.on_message = server_message;
    conn.on_lost = server_lost;
    conn.on_closed = server_closed;
    opts.conn = &conn;
    IS(lien_listener_open(server->ctx, "127.0.0.1:0", &opts, &server->listener), 0);
    IS(lien_listener_address(server->listener, address, size), 0);
}

static void server_close(struct server *server)
{
    lien_pool_close(&server->pool);
    IS(lien_ctx_close(&server->ctx), 0);
}

// -- Client --

struct lent {
    struct client *client;
    lien_grant *grant;
};

struct client {
    lien_ctx *ctx;
    lien_pool *pool;
    lien_conn *conn;
    lien_buf *buf;
    lien_space *space;
    lien_token token; // of the server's buffer
    struct lent lent[ROUNDS];
    unsigned round, released;
    uint64_t sum;
    int read_status;
    bool have_token, echoed, timed_out, read_released, lost, closed, black_hole;
    uint64_t started, ended; // ms
};

static void grant_over(void *arg, int status)
{
    struct lent *lent = arg;
    IS(status, 0);
    IS(lien_grant_close(&lent->grant), 0);
    lent->client->released++;
}

// One round: new bytes, a grant of them, and its token as the message.
static void ask(struct client *client)
{
    void *bytes;
    if (client->buf)
        lien_buf_free(&client->buf); // at its release
    IS(lien_pool_alloc(client->pool, BYTES, &client->buf), 0);
    IS(lien_buf_mut(client->buf, &bytes), 0);
    for (size_t i = 0; i < BYTES; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)(i * 13 + client->round * 7);
    client->sum = sum_of(bytes, BYTES);
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.on_released = grant_over;
    struct lent *lent = &client->lent[client->round];
    lent->client = client;
    opts.arg = lent;
    lien_token token;
    IS(lien_grant_open(client->conn, &client->buf, 1, &opts, &token, &lent->grant), 0);
    IS(lien_send(client->conn, token.bytes, token.len, NULL, 0, NULL), 0);
}

static void client_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct client *client = arg;
    const void *head;
    size_t len;
    (void)conn;
    IS(lien_msg_head(msg, &head, &len), 0);
    if (!client->have_token) {
        client->token.len = (uint32_t)len;
        memcpy(client->token.bytes, head, len);
        client->have_token = true;
        ask(client);
    } else {
        uint64_t sum;
        IS(len, sizeof sum);
        memcpy(&sum, head, sizeof sum);
        CHECK(sum == client->sum);
        client->round++;
        if (client->round < ROUNDS)
            ask(client);
        else
            client->echoed = true;
    }
    lien_msg_free(&msg);
}

static void client_open_done(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    (void)arg;
    IS(status, 0);
}

static void client_lost(lien_conn *conn, int status, void *arg)
{
    struct client *client = arg;
    (void)conn;
    IS(status, LIEN_EPEERLOST);
    client->ended = now_ms();
    client->lost = true;
}

static void client_closed(lien_conn *conn, int status, void *arg)
{
    struct client *client = arg;
    (void)conn;
    IS(status, 0);
    client->closed = true;
}

static void client_open(struct client *client, const char *address)
{
    memset(client, 0, sizeof *client);
    client->ctx = driven_ctx();
    IS(lien_pool_open(client->ctx, NULL, &client->pool), 0);
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.arg = client;
    opts.on_open = client_open_done;
    opts.on_message = client_message;
    opts.on_lost = client_lost;
    opts.on_closed = client_closed;
    IS(lien_conn_open(client->ctx, address, &opts, &client->conn), 0);
}

static void client_close(struct client *client)
{
    lien_buf_free(&client->buf);
    lien_pool_close(&client->pool);
    IS(lien_ctx_close(&client->ctx), 0);
}

// -- What must come out of the descriptor --

static void hole_open(lien_conn *conn, int status, void *arg)
{
    struct client *client = arg;
    (void)conn;
    IS(status, LIEN_ETIMEDOUT);
    client->ended = now_ms();
    client->black_hole = true;
}

// Quiet for longer than the death timer, with a connection attempt to somebody who never answers as the only clock: heartbeats keep the other connection.
static void quiet(struct client *client, echo_loop *loop, lien_ctx *const *ctxs, size_t n)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 4) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &len) == 0);
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(at.sin_port));
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.arg = client;
    opts.on_open = hole_open;
    opts.timeout_ms = 3 * DEAD_MS;
    lien_conn *hole;
    client->started = now_ms();
    IS(lien_conn_open(client->ctx, address, &opts, &hole), 0);
    loop(ctxs, n, &client->black_hole);
    uint64_t took = client->ended - client->started;
    printf("quiet: the attempt ended after %llu ms of %u\n", (unsigned long long)took,
           opts.timeout_ms);
    CHECK(took >= opts.timeout_ms && took < opts.timeout_ms + 1000);
    CHECK(!client->lost);
    lien_conn_info info = {.size = sizeof info};
    IS(lien_conn_info_get(client->conn, &info), 0);
    CHECK(info.open);
    IS(lien_conn_close(&hole), 0);
    close(fd);
}

static void late_done(void *arg, int status)
{
    struct client *client = arg;
    client->read_status = status;
    client->ended = now_ms();
    client->timed_out = true;
}

static void late_released(void *arg, int status)
{
    struct client *client = arg;
    IS(status, 0);
    client->read_released = true;
}

// The server is stopped: a read's deadline, then the connection's death, then the release of the read's space.
static void stopped(struct client *client, pid_t server, echo_loop *loop)
{
    lien_buf *buf;
    IS(lien_pool_alloc(client->pool, BYTES, &buf), 0);
    IS(lien_space_open(client->ctx, &buf, 1, &client->space), 0);
    CHECK(kill(server, SIGSTOP) == 0);
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.timeout_ms = 200;
    opts.on_done = late_done;
    opts.on_released = late_released;
    opts.arg = client;
    client->started = now_ms();
    IS(lien_read_start(client->conn, client->token.bytes, client->token.len, client->space, &opts,
                       NULL),
       0);
    loop(&client->ctx, 1, &client->timed_out);
    IS(client->read_status, LIEN_ETIMEDOUT);
    printf("stopped: the read ended after %llu ms of 200\n",
           (unsigned long long)(client->ended - client->started));
    CHECK(client->ended - client->started >= 200);
    CHECK(!client->read_released && !client->lost);
    loop(&client->ctx, 1, &client->lost);
    printf("stopped: the peer was lost after %llu ms, dead_ms is %u\n",
           (unsigned long long)(client->ended - client->started), DEAD_MS);
    loop(&client->ctx, 1, &client->read_released);
    lien_space_free(&client->space);
}

// -- Two processes, two contexts --

static _Noreturn void serve(int fd, echo_loop *loop)
{
    struct server server;
    char address[96];
    server_open(&server, address, sizeof address);
    CHECK(write(fd, address, sizeof address) == (ssize_t)sizeof address);
    loop(&server.ctx, 1, &server.done);
    server_close(&server);
    exit(0);
}

static void two_processes(echo_loop *loop)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        serve(ends[1], loop);
    char address[96];
    CHECK(read(ends[0], address, sizeof address) == (ssize_t)sizeof address);
    struct client client;
    client_open(&client, address);
    loop(&client.ctx, 1, &client.echoed);
    quiet(&client, loop, &client.ctx, 1);
    stopped(&client, pid, loop);
    IS(lien_conn_close(&client.conn), 0);
    loop(&client.ctx, 1, &client.closed);
    IS(client.released, ROUNDS);
    client_close(&client);
    // Continued, the server finds its connection gone, and ends.
    CHECK(kill(pid, SIGCONT) == 0);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    IS(WEXITSTATUS(status), 0);
    close(ends[0]);
    close(ends[1]);
    printf("two processes: %u messages and READs of %u bytes\n", ROUNDS, BYTES);
}

static void two_contexts(echo_loop *loop)
{
    struct server server;
    struct client client;
    char address[96];
    server_open(&server, address, sizeof address);
    client_open(&client, address);
    lien_ctx *ctxs[2] = {server.ctx, client.ctx};
    loop(ctxs, 2, &client.echoed);
    quiet(&client, loop, ctxs, 2);
    IS(lien_conn_close(&client.conn), 0);
    loop(ctxs, 2, &server.done);
    loop(ctxs, 2, &client.closed);
    IS(client.released, ROUNDS);
    client_close(&client);
    server_close(&server);
    printf("two contexts: %u messages and READs of %u bytes\n", ROUNDS, BYTES);
}

int echo_main(echo_loop *loop)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    two_processes(loop);
    two_contexts(loop);
    puts("ok");
    return 0;
}
