// SPDX-License-Identifier: Apache-2.0
//
// make_traces DIR: traces over tcp for tests/trace/run to look at. client.trace and server.trace: both ends of a connection on which messages, a grant and calls went. asked.trace: with
// frames' bytes. lost/: what connections to a peer that was killed left by themselves. Checks the answers of lien_conn_trace() on the way.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lien/lien.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char *dir;

static lien_ctx *open_ctx(const char *one, const char *two, const char *three)
{
    const char *const settings[] = {"provider=tcp", one, two, three, NULL};
    lien_ctx_opts opts;
    lien_ctx *ctx = NULL;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    CHECK(lien_ctx_open(&opts, &ctx) == 0);
    return ctx;
}

static void save(lien_conn *conn, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    CHECK(lien_conn_trace(conn, fd) == 0);
    CHECK(close(fd) == 0);
}

// -- Both ends ---------------------------------------------------------------------------------------------------------------------

static void answer(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    CHECK(lien_request_reply(&request, 0, "SECRET-REPLY", 12) == 0);
}

static const lien_method methods[] = {{.name = "SECRET/method", .handle = answer}};
static const lien_service service = {.methods = methods, .n_methods = 1};

static void talk(lien_ctx *ctx, lien_conn *ab, lien_conn *ba)
{
    lien_pool *pool = NULL;
    lien_buf *buf = NULL;
    lien_msg *msg = NULL;
    void *data;
    CHECK(lien_pool_open(ctx, NULL, &pool) == 0);
    CHECK(lien_pool_alloc(pool, 4096, &buf) == 0);
    CHECK(lien_buf_mut(buf, &data) == 0);
    memset(data, 's', 4096);
    CHECK(lien_send(ab, "SECRET-HEAD", 11, &buf, 1, NULL) == 0);
    CHECK(lien_msg_recv_wait(ba, 10000, &msg) == 0);
    lien_msg_free(&msg);
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.body = &buf;
    opts.n_body = 1;
    CHECK(lien_call_wait(ab, "SECRET/method", "SECRET-ARGS", 11, &opts, &msg) == 0);
    lien_msg_free(&msg);
    CHECK(lien_call_wait(ab, "no/method", NULL, 0, NULL, NULL) == LIEN_ENOTFOUND);
    lien_buf_free(&buf);
    CHECK(lien_pool_close(&pool) == 0);
}

static void both_ends(const char *bytes, const char *client, const char *server)
{
    lien_ctx *a = open_ctx("trace=4096", bytes, NULL), *b = open_ctx("trace=4096", NULL, NULL);
    lien_listener *listener = NULL;
    lien_listener_opts opts;
    lien_conn_opts conn;
    lien_conn *ab = NULL, *ba = NULL;
    char address[96];
    lien_conn_opts_init(&conn);
    conn.service = &service;
    lien_listener_opts_init(&opts);
    opts.conn = &conn;
    CHECK(lien_listener_open(b, "127.0.0.1:0", &opts, &listener) == 0);
    CHECK(lien_listener_address(listener, address, sizeof address) == 0);
    CHECK(lien_conn_open_wait(a, address, NULL, &ab) == 0);
    CHECK(lien_listener_accept_wait(listener, 10000, &ba) == 0);
    talk(a, ab, ba);
    save(ab, client);
    save(ba, server);
    int fd = open("/dev/null", O_RDONLY);
    CHECK(fd >= 0 && lien_conn_trace(ab, fd) == LIEN_ESYS && errno == EBADF);
    close(fd);
    CHECK(lien_ctx_close(&a) == 0 && lien_ctx_close(&b) == 0);
}

static void off(void)
{
    lien_ctx *a = open_ctx(NULL, NULL, NULL);
    lien_conn *conn = NULL;
    CHECK(lien_conn_open(a, "127.0.0.1:1", NULL, &conn) == 0);
    CHECK(lien_conn_trace(conn, 1) == LIEN_ESTATE);
    CHECK(lien_conn_close(&conn) == 0);
    CHECK(lien_ctx_close(&a) == 0);
}

// -- A peer that is killed ---------------------------------------------------------------------------------------------------------

static _Noreturn void peer(int out)
{
    lien_ctx *ctx = open_ctx(NULL, NULL, NULL);
    lien_listener *listener = NULL;
    char address[96] = "";
    lien_conn *conn = NULL;
    CHECK(lien_listener_open(ctx, "127.0.0.1:0", NULL, &listener) == 0);
    CHECK(lien_listener_address(listener, address, sizeof address) == 0);
    CHECK(write(out, address, sizeof address) == (ssize_t)sizeof address);
    for (;;)
        (void)lien_listener_accept_wait(listener, LIEN_FOREVER, &conn);
}

// Two connections are lost, and one more than trace_files allows is none. The files are whole once the ctx is closed.
static void killed(const char *address, pid_t pid)
{
    char lost[4096], setting[4200];
    lien_conn *conns[2] = {NULL, NULL};
    lien_msg *msg = NULL;
    snprintf(lost, sizeof lost, "%s/lost", dir);
    CHECK(mkdir(lost, 0700) == 0);
    snprintf(setting, sizeof setting, "trace_dir=%s", lost);
    lien_ctx *ctx = open_ctx("trace=512", setting, "trace_files=1");
    for (int i = 0; i < 2; i++)
        CHECK(lien_conn_open_wait(ctx, address, NULL, &conns[i]) == 0);
    CHECK(kill(pid, SIGKILL) == 0);
    CHECK(waitpid(pid, NULL, 0) == pid);
    for (int i = 0; i < 2; i++)
        CHECK(lien_msg_recv_wait(conns[i], 60000, &msg) == LIEN_EPEERLOST);
    CHECK(lien_ctx_close(&ctx) == 0);
}

int main(int argc, char **argv)
{
    int fds[2];
    char address[96];
    CHECK(argc == 2);
    dir = argv[1];
    CHECK(unsetenv("FI_PROVIDER") == 0);
    CHECK(pipe(fds) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        peer(fds[1]);
    CHECK(read(fds[0], address, sizeof address) == (ssize_t)sizeof address);
    killed(address, pid);
    both_ends(NULL, "client.trace", "server.trace");
    both_ends("trace_bytes=4096", "asked.trace", "asked-server.trace");
    off();
    return 0;
}
