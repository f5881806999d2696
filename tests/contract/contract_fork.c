// SPDX-License-Identifier: Apache-2.0
//
// What each public function answers in a forked child (design.md 8): LIEN_EFORK, or as for NULL if it returns no code, and a new ctx works there. Every function is called with a real
// object, while the parent's locks were held at the fork, so that one which takes a lock before it looks never returns: SIGALRM then ends the child. The names that
// were tried go to the file named by the first argument; tests/contract/run compares them with what the library exports.

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/ctx.h"

#define HANG_S 60

static FILE *out;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)
#define ANSWERS(want, fn, ...)                                                                     \
    answer(#fn, (long long)(want), (long long)(fn(__VA_ARGS__)), __LINE__)
#define FORKED(fn, ...) ANSWERS(LIEN_EFORK, fn, __VA_ARGS__)
#define NONE(fn, ...)                                                                              \
    do {                                                                                           \
        fprintf(out, "%s\n", #fn);                                                                 \
        CHECK(fn(__VA_ARGS__) == 0);                                                               \
    } while (0)
// Frees nothing, and empties the caller's variable as ever.
#define EMPTIES(fn, slot)                                                                          \
    do {                                                                                           \
        fprintf(out, "%s\n", #fn);                                                                 \
        fn(&(slot));                                                                               \
        CHECK(!(slot));                                                                            \
    } while (0)

static void answer(const char *name, long long want, long long got, int line)
{
    fprintf(out, "%s\n", name);
    if (got == want)
        return;
    fprintf(stderr, "%s:%d: %s answers %s, not %s\n", __FILE__, line, name, lien_errname((int)got),
            lien_errname((int)want));
    _exit(1);
}

static struct {
    lien_ctx *a, *b, *driven;
    lien_pool *pool;
    lien_listener *listener;
    char address[96];
    lien_conn *ab, *ba;
    lien_buf *buf, *body, *source;
    lien_buf *rest[256];
    size_t n_rest;
    lien_pool *pool_b;
    lien_mem *mem;
    lien_alloc *alloc;
    lien_space *space;
    lien_msg *msg;
    lien_token token;
    lien_grant *grant;
    lien_read *read;
    lien_call *call;
    lien_channel *channel;
    lien_channel_call *channel_call;
    lien_request *_Atomic request;
} w;

// -- The parent's objects --

static lien_ctx *open_ctx(unsigned flags)
{
    static const char *const settings[] = {"provider=tcp", "trace=16", NULL};
    lien_ctx_opts opts;
    lien_ctx *ctx = NULL;
    lien_ctx_opts_init(&opts);
    opts.flags = flags;
    opts.settings = settings;
    CHECK(lien_ctx_open(&opts, &ctx) == 0);
    return ctx;
}

static void take_request(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    atomic_store(&w.request, request);
}

static const lien_method methods[] = {{.name = "s/m", .handle = take_request}};
static const lien_service service = {.methods = methods, .n_methods = 1};

static void unused_alloc(void *arg, int status, lien_buf *buf)
{
    (void)arg;
    (void)status;
    lien_buf_free(&buf);
}

static void connect_both(void)
{
    lien_conn_opts conn;
    lien_listener_opts listener;
    lien_conn_opts_init(&conn);
    lien_listener_opts_init(&listener);
    conn.service = &service;
    listener.conn = &conn;
    CHECK(lien_listener_open(w.b, "127.0.0.1:0", &listener, &w.listener) == 0);
    CHECK(lien_listener_address(w.listener, w.address, sizeof w.address) == 0);
    CHECK(lien_conn_open_wait(w.a, w.address, NULL, &w.ab) == 0);
    CHECK(lien_listener_accept_wait(w.listener, 10000, &w.ba) == 0);
}

static void open_memory(void)
{
    static char own[4096];
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.limit = 1u << 20;
    opts.reserve = 0;
    CHECK(lien_pool_open(w.a, &opts, &w.pool) == 0);
    CHECK(lien_pool_alloc(w.pool, 4096, &w.buf) == 0);
    lien_buf *target = NULL;
    CHECK(lien_pool_alloc(w.pool, 4096, &target) == 0);
    CHECK(lien_space_open(w.a, &target, 1, &w.space) == 0);
    CHECK(lien_pool_alloc(w.pool, 4096, &w.body) == 0);
    CHECK(lien_mem_register(w.a, own, sizeof own, NULL, &w.mem) == 0);
    while (lien_pool_alloc(w.pool, 4096, &w.rest[w.n_rest]) == 0)
        w.n_rest++; // what follows waits
    CHECK(lien_pool_alloc_start(w.pool, 4096, unused_alloc, NULL, &w.alloc) == 0);
}

static void open_transfers(void)
{
    lien_buf *bodies[1] = {w.body};
    lien_call_opts call;
    CHECK(lien_pool_open(w.b, NULL, &w.pool_b) == 0);
    CHECK(lien_pool_alloc(w.pool_b, 4096, &w.source) == 0);
    CHECK(lien_grant_open(w.ba, &w.source, 1, NULL, &w.token, &w.grant) == 0);
    CHECK(lien_read_start(w.ab, w.token.bytes, w.token.len, w.space, NULL, &w.read) == 0);
    CHECK(lien_space_wait(w.space, 10000) == 0);
    CHECK(lien_send(w.ab, "head", 4, bodies, 1, NULL) == 0);
    CHECK(lien_msg_recv_wait(w.ba, 10000, &w.msg) == 0);
    lien_call_opts_init(&call);
    call.timeout_ms = HANG_S * 1000;
    call.body = bodies;
    call.n_body = 1;
    CHECK(lien_call_start(w.ab, "s/m", "args", 4, &call, &w.call) == 0);
    // A channel to nobody, with a call that waits.
    const char *const nobody[] = {"127.0.0.1:1"};
    CHECK(lien_channel_open(w.a, nobody, 1, NULL, &w.channel) == 0);
    CHECK(lien_channel_call_start(w.channel, "s/m", "args", 4, &call, &w.channel_call) == 0);
    while (!atomic_load(&w.request))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

// -- The child --

static void memory(void)
{
    lien_buf *other = NULL;
    lien_pool *pool = NULL;
    lien_mem *mem = NULL;
    const void *data;
    void *mut;
    static char bytes[16];
    FORKED(lien_pool_open, w.a, NULL, &pool);
    FORKED(lien_pool_alloc, w.pool, 1, &other);
    FORKED(lien_pool_alloc_start, w.pool, 1, unused_alloc, NULL, NULL);
    FORKED(lien_pool_alloc_cancel, w.alloc);
    FORKED(lien_pool_alloc_wait, w.pool, 1, LIEN_FOREVER, &other);
    FORKED(lien_buf_set_len, w.buf, 1);
    FORKED(lien_buf_data, w.buf, &data);
    FORKED(lien_buf_mut, w.buf, &mut);
    FORKED(lien_buf_clear, w.buf);
    NONE(lien_buf_unverified, w.buf);
    NONE(lien_buf_len, w.buf);
    NONE(lien_buf_capacity, w.buf);
    FORKED(lien_mem_register, w.a, bytes, sizeof bytes, NULL, &mem);
    FORKED(lien_mem_buf, w.mem, 0, 1, &other);
    FORKED(lien_mem_unregister_wait, &w.mem, LIEN_FOREVER);
    FORKED(lien_mem_unregister, &w.mem);
    FORKED(lien_space_open, w.a, &w.buf, 1, &w.space);
    NONE(lien_space_len, w.space);
    FORKED(lien_space_buf, w.space, 0, &other);
    FORKED(lien_space_take, w.space, &other, 1);
    FORKED(lien_space_wait, w.space, LIEN_FOREVER);
    CHECK(!other && !pool && !mem && w.mem && w.buf);
}

static void connections(void)
{
    lien_conn *conn = NULL;
    lien_listener *listener = NULL;
    lien_conn_info info = {.size = sizeof info};
    char text[96];
    int fd = -1;
    FORKED(lien_conn_open, w.a, w.address, NULL, &conn);
    FORKED(lien_conn_open_wait, w.a, w.address, NULL, &conn);
    FORKED(lien_conn_info_get, w.ab, &info);
    FORKED(lien_conn_trace, w.ab, 2);
    NONE(lien_conn_ctx, w.ab);
    FORKED(lien_conn_goaway, w.ab);
    FORKED(lien_listener_open, w.b, "127.0.0.1:0", NULL, &listener);
    FORKED(lien_listen_fd, w.b, 0, NULL, &listener);
    FORKED(lien_listener_fd, w.listener, &fd);
    FORKED(lien_listener_drain, w.listener);
    FORKED(lien_listener_address, w.listener, text, sizeof text);
    FORKED(lien_listener_accept_wait, w.listener, LIEN_FOREVER, &conn);
    CHECK(!conn && !listener && fd == -1);
}

static void channels(void)
{
    lien_channel *channel = NULL;
    lien_channel_call *call = NULL;
    lien_channel_info info = {.size = sizeof info};
    const char *const addresses[] = {w.address};
    FORKED(lien_channel_open, w.a, addresses, 1, NULL, &channel);
    FORKED(lien_channel_info_get, w.channel, &info);
    FORKED(lien_channel_call_start, w.channel, "s/m", NULL, 0, NULL, &call);
    FORKED(lien_channel_call_wait, w.channel, "s/m", NULL, 0, NULL, NULL);
    FORKED(lien_channel_call_cancel, w.channel_call);
    NONE(lien_channel_call_path, w.channel_call, NULL);
    FORKED(lien_channel_call_close, &w.channel_call);
    FORKED(lien_channel_close_wait, &w.channel, LIEN_FOREVER);
    FORKED(lien_channel_close, &w.channel);
    CHECK(!channel && !call && w.channel && w.channel_call);
}

static void transfers(void)
{
    lien_msg *msg = NULL;
    lien_buf *bufs[1] = {w.buf}, *other = NULL;
    const void *data;
    size_t len;
    lien_grant *grant = NULL;
    lien_token_info info = {.size = sizeof info};
    const void *token = w.token.bytes;
    const size_t n = w.token.len;
    FORKED(lien_send, w.ab, "x", 1, bufs, 1, NULL);
    FORKED(lien_send_wait, w.ab, "x", 1, bufs, 1, NULL);
    FORKED(lien_msg_recv_wait, w.ba, LIEN_FOREVER, &msg);
    FORKED(lien_msg_head, w.msg, &data, &len);
    NONE(lien_msg_body, w.msg);
    FORKED(lien_msg_take_body, w.msg, &other);
    FORKED(lien_grant_open, w.ab, bufs, 1, NULL, &w.token, &grant);
    FORKED(lien_grant_revoke, w.grant);
    FORKED(lien_grant_wait, w.grant, LIEN_FOREVER);
    FORKED(lien_token_open, w.ab, token, n, &info);
    FORKED(lien_read_start, w.ab, token, n, w.space, NULL, NULL);
    FORKED(lien_read_wait, w.ab, token, n, bufs, 1, NULL);
    FORKED(lien_read_cancel, w.read);
    NONE(lien_read_path, w.read, NULL);
    NONE(lien_msg_path, w.msg, NULL);
    FORKED(lien_release, w.ab, token, n);
    CHECK(!msg && !other && !grant && bufs[0] == w.buf);
}

static void calls(void)
{
    lien_request *request = atomic_load(&w.request);
    lien_buf *bufs[1] = {w.buf}, *other = NULL;
    lien_call *call = NULL;
    lien_msg *msg = NULL;
    const void *data;
    size_t len;
    FORKED(lien_call_start, w.ab, "s/m", NULL, 0, NULL, &call);
    FORKED(lien_call_wait, w.ab, "s/m", NULL, 0, NULL, &msg);
    FORKED(lien_call_cancel, w.call);
    NONE(lien_call_path, w.call, NULL);
    FORKED(lien_call_close, &w.call);
    FORKED(lien_request_args, request, &data, &len);
    NONE(lien_request_body, request);
    FORKED(lien_request_take_body, request, &other);
    NONE(lien_request_method, request);
    NONE(lien_request_read_len, request);
    NONE(lien_request_write_len, request);
    NONE(lien_request_left_ms, request);
    NONE(lien_request_path, request, NULL);
    ANSWERS(1, lien_request_cancelled, request);
    FORKED(lien_request_on_cancel, request, NULL, NULL);
    FORKED(lien_request_read, request, w.space, NULL);
    FORKED(lien_request_read_wait, request, w.space, NULL);
    FORKED(lien_request_verify, request, NULL, NULL);
    FORKED(lien_request_verify_wait, request);
    FORKED(lien_request_write, request, bufs, 1, NULL);
    FORKED(lien_request_write_wait, request, bufs, 1, NULL);
    FORKED(lien_request_reply, &request, 0, NULL, 0);
    FORKED(lien_request_reply_body, &request, 0, NULL, 0, bufs, 1);
    CHECK(request && w.call && !call && !msg && bufs[0] == w.buf);
    EMPTIES(lien_request_drop, request);
}

static void ends(void)
{
    lien_ctx_stats stats = {.size = sizeof stats};
    char *text = NULL;
    int fd = -1;
    FORKED(lien_ctx_stats_get, w.a, &stats);
    FORKED(lien_ctx_metrics, w.a, &text);
    FORKED(lien_ctx_fd, w.driven, &fd);
    FORKED(lien_ctx_arm, w.driven);
    FORKED(lien_ctx_progress, w.driven);
    FORKED(lien_read_close, &w.read);
    FORKED(lien_grant_close, &w.grant);
    EMPTIES(lien_msg_free, w.msg);
    EMPTIES(lien_space_free, w.space);
    EMPTIES(lien_buf_free, w.buf);
    FORKED(lien_pool_close, &w.pool);
    FORKED(lien_conn_close_wait, &w.ab, LIEN_FOREVER);
    FORKED(lien_conn_close, &w.ab);
    FORKED(lien_listener_close, &w.listener);
    FORKED(lien_ctx_close, &w.a);
    CHECK(w.read && w.grant && w.pool && w.ab && w.listener && w.a && !text && fd == -1);
}

// A ctx of the child's own, which talks to the parent's.
static void anew(void)
{
    lien_ctx *ctx;
    lien_conn *conn = NULL;
    lien_msg *msg = NULL;
    ctx = open_ctx(0);
    fprintf(out, "lien_ctx_open\n");
    CHECK(lien_conn_open_wait(ctx, w.address, NULL, &conn) == 0);
    CHECK(lien_send_wait(conn, "from the child", 14, NULL, 0, NULL) == 0);
    CHECK(lien_msg_recv_wait(conn, HANG_S * 1000, &msg) == 0); // it was heard
    lien_msg_free(&msg);
    CHECK(lien_conn_close_wait(&conn, 10000) == 0);
    CHECK(lien_ctx_close(&ctx) == 0);
}

static _Noreturn void child(void)
{
    alarm(HANG_S);
    memory();
    connections();
    channels();
    transfers();
    calls();
    ends();
    anew();
    CHECK(fclose(out) == 0);
    _exit(0);
}

static void check_end(int status)
{
    if (WIFSIGNALED(status))
        fprintf(stderr, "the child ended by %s\n", strsignal(WTERMSIG(status)));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void hear_the_child(pid_t pid)
{
    lien_conn *conn = NULL;
    lien_msg *msg = NULL;
    const void *head;
    size_t len;
    int status, rc;
    while ((rc = lien_listener_accept_wait(w.listener, 100, &conn)) == LIEN_ETIMEDOUT) {
        if (waitpid(pid, &status, WNOHANG) != pid)
            continue;
        check_end(status); // it failed, and says so
        CHECK(false);
    }
    CHECK(rc == 0);
    CHECK(lien_msg_recv_wait(conn, HANG_S * 1000, &msg) == 0);
    CHECK(lien_msg_head(msg, &head, &len) == 0 && len == 14 && !memcmp(head, "from the child", 14));
    lien_msg_free(&msg);
    CHECK(lien_send_wait(conn, "heard", 5, NULL, 0, NULL) == 0);
    CHECK(waitpid(pid, &status, 0) == pid);
    check_end(status);
    CHECK(lien_conn_close_wait(&conn, 10000) == 0);
}

// What the child did is nothing to the parent.
static void parent_goes_on(void)
{
    lien_request *request = atomic_load(&w.request);
    CHECK(lien_send_wait(w.ab, "on", 2, NULL, 0, NULL) == 0);
    CHECK(lien_request_reply(&request, 0, NULL, 0) == 0);
    lien_msg_free(&w.msg);
    CHECK(lien_call_close(&w.call) == 0);
    CHECK(lien_channel_call_close(&w.channel_call) == 0);
    CHECK(lien_channel_close_wait(&w.channel, 10000) == 0);
    CHECK(lien_read_close(&w.read) == 0);
    CHECK(lien_grant_close(&w.grant) == 0);
    lien_space_free(&w.space);
    CHECK(lien_conn_close_wait(&w.ab, 10000) == 0);
    CHECK(lien_conn_close_wait(&w.ba, 10000) == 0);
    lien_listener_close(&w.listener);
    CHECK(lien_mem_unregister(&w.mem) == 0);
    while (w.n_rest > 0)
        lien_buf_free(&w.rest[--w.n_rest]);
    lien_buf_free(&w.buf);
    lien_buf_free(&w.body);
    lien_buf_free(&w.source);
    CHECK(lien_pool_close(&w.pool) == 0);
    CHECK(lien_pool_close(&w.pool_b) == 0);
    CHECK(lien_ctx_close(&w.a) == 0);
    CHECK(lien_ctx_close(&w.b) == 0);
    CHECK(lien_ctx_close(&w.driven) == 0);
}

int main(int argc, char **argv)
{
    CHECK(unsetenv("FI_PROVIDER") == 0);
    out = argc > 1 ? fopen(argv[1], "w") : fopen("/dev/null", "w");
    CHECK(out);
    alarm(2 * HANG_S);
    w.a = open_ctx(0);
    w.b = open_ctx(0);
    w.driven = open_ctx(LIEN_APP_DRIVEN);
    connect_both();
    open_memory();
    open_transfers();
    lien_ctx *const all[] = {w.a, w.b, w.driven};
    for (int i = 0; i < 3; i++) {
        pthread_mutex_lock(&all[i]->turn);
        pthread_mutex_lock(&all[i]->lock);
    }
    pid_t pid = fork();
    if (pid == 0)
        child();
    for (int i = 0; i < 3; i++) {
        pthread_mutex_unlock(&all[i]->lock);
        pthread_mutex_unlock(&all[i]->turn);
    }
    CHECK(pid > 0);
    hear_the_child(pid);
    parent_goes_on();
    return 0;
}
