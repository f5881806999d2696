// SPDX-License-Identifier: Apache-2.0
//
// Channels and restarts over libfabric tcp, each server and each client in a process of its own. The parent, which has no ctx, starts, kills and counts.
//
// handover: three generations of a server hand one listening socket on while clients call through channels and others connect and close all the time. No connect fails, no call fails, each
// call ran once; one that a handler had when its server went away is answered by that server.
// killed: servers at two of three addresses (nobody is at the third) are killed and started again in turn. Every call ends; one whose status says that it ran, or
// that it did not, tells the truth; none ran twice.

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <lien/lien.h>

#include "tests/support/check.h"

#define IDS         (1u << 20)
#define GENERATIONS 3u
#define HANG_MS     60000

// What all processes see.
struct shared {
    atomic_uint next_id;
    atomic_uint good;     // calls that succeeded
    atomic_uint connects; // of the client that does nothing else
    atomic_uint slow;     // handlers of "test/slow" that began
    atomic_bool stop;     // clients end
    atomic_uchar ran[IDS];
};
static struct shared *shared;
static lien_ctx *ctx;

static void nap(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

// Until `counter` has grown by `more`: others make progress.
static void grows(atomic_uint *counter, unsigned more)
{
    unsigned from = atomic_load(counter);
    for (int i = 0; atomic_load(counter) - from < more; i++) {
        CHECK(i < HANG_MS / 5);
        nap(5);
    }
}

static void open_ctx(void)
{
    static const char *const settings[] = {"provider=tcp", "dispatch_threads=4", "log_level=error",
                                           NULL};
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    CHECK_RC(lien_ctx_open(&opts, &ctx), 0);
}

// -- Servers ------------------------------------------------------------------------------------------------------------------------

static unsigned generation;
static lien_request *held[64];
static atomic_uint n_held;
static atomic_bool drained;

static void count(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    uint32_t id;
    (void)conn;
    (void)arg;
    CHECK_RC(lien_request_args(request, &data, &len), 0);
    CHECK(len == sizeof(id));
    memcpy(&id, data, sizeof(id));
    CHECK(id < IDS);
    CHECK(atomic_fetch_add(&shared->ran[id], 1) == 0);
    CHECK_RC(lien_request_reply(&request, 0, &generation, sizeof(generation)), 0);
}

// Answered when this server goes away, or with the next such call.
static void slow(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    unsigned at = atomic_fetch_add(&n_held, 1);
    CHECK(at < 64);
    held[at] = request;
    atomic_fetch_add(&shared->slow, 1);
}

static const lien_method methods[] = {{.name = "test/count", .handle = count},
                                      {.name = "test/slow", .handle = slow, .flags = LIEN_INLINE}};
static const lien_service service = {.methods = methods, .n_methods = 2};

static int on_accept(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    (void)listener;
    (void)conn;
    (void)arg;
    (void)conn_arg;
    return 0;
}

static void on_lost(lien_conn *conn, int status, void *arg)
{
    (void)status;
    (void)arg;
    CHECK_RC(lien_conn_close(&conn), 0);
}

static void on_drained(lien_listener *listener, void *arg)
{
    (void)listener;
    (void)arg;
    CHECK(!atomic_exchange(&drained, true));
}

static void listener_opts(lien_listener_opts *opts, lien_conn_opts *conn)
{
    lien_conn_opts_init(conn);
    conn->service = &service;
    conn->on_lost = on_lost;
    lien_listener_opts_init(opts);
    opts->conn = conn;
    opts->on_accept = on_accept;
    opts->on_drained = on_drained;
}

static void send_fd(int to, int fd)
{
    char byte = 'f', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control,
                         .msg_controllen = sizeof(control)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    CHECK(sendmsg(to, &msg, 0) == 1);
}

static int receive_fd(int from)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control,
                         .msg_controllen = sizeof(control)};
    int fd;
    CHECK(recvmsg(from, &msg, 0) == 1);
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    CHECK(c && c->cmsg_type == SCM_RIGHTS);
    memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}

// Hands the socket on, and leaves when nothing of its connections runs any more.
static void retire(lien_listener *listener, int next)
{
    int fd;
    char byte;
    CHECK_RC(lien_listener_fd(listener, &fd), 0);
    send_fd(next, fd);
    close(fd);
    CHECK(read(next, &byte, 1) == 1); // it listens
    CHECK_RC(lien_listener_drain(listener), 0);
    CHECK_RC(lien_listener_drain(listener), 0);
    CHECK_RC(lien_listener_fd(listener, &fd), LIEN_ESTATE);
    nap(100);
    CHECK(atomic_load(&n_held) == 0 || !atomic_load(&drained));
    for (unsigned i = 0; i < atomic_load(&n_held); i++)
        CHECK_RC(lien_request_reply(&held[i], 0, &generation, sizeof(generation)), 0);
    for (int i = 0; !atomic_load(&drained); i++) {
        CHECK(i < HANG_MS / 5);
        nap(5);
    }
}

// `out` (generation 0) gets the address; a byte on `command` retires it; `before` and `next` are sockets to the generations around it.
static void serve_generation(unsigned which, int out, int command, int before, int next)
{
    lien_listener *listener;
    lien_listener_opts opts;
    lien_conn_opts conn;
    char byte, address[96] = {0};
    generation = which;
    int inherited = which > 0 ? receive_fd(before) : -1;
    open_ctx();
    listener_opts(&opts, &conn);
    if (which == 0)
        CHECK_RC(lien_listener_open(ctx, "127.0.0.1:0", &opts, &listener), 0);
    else
        CHECK_RC(lien_listen_fd(ctx, inherited, &opts, &listener), 0);
    CHECK_RC(lien_listener_address(listener, address, sizeof(address)), 0);
    if (which == 0)
        CHECK(write(out, address, sizeof(address)) == sizeof(address));
    else
        CHECK(write(before, "r", 1) == 1);
    CHECK(read(command, &byte, 1) == 1);
    if (which + 1 < GENERATIONS)
        retire(listener, next);
    lien_ctx_stats stats = {.size = sizeof(stats)};
    CHECK_RC(lien_ctx_stats_get(ctx, &stats), 0);
    CHECK(stats.protocol_errors == 0);
    CHECK_RC(lien_listener_close(&listener), 0);
    CHECK_RC(lien_ctx_close(&ctx), 0);
    exit(0);
}

// At `address`, until it is killed.
static void serve_killed(const char *address, int out)
{
    lien_listener *listener;
    lien_listener_opts opts;
    lien_conn_opts conn;
    char bound[96] = {0};
    open_ctx();
    listener_opts(&opts, &conn);
    CHECK_RC(lien_listener_open(ctx, address, &opts, &listener), 0);
    CHECK_RC(lien_listener_address(listener, bound, sizeof(bound)), 0);
    CHECK(write(out, bound, sizeof(bound)) == sizeof(bound));
    pause();
    exit(1);
}

// -- Clients ------------------------------------------------------------------------------------------------------------------------

struct caller {
    pthread_t thread;
    lien_channel *channel;
    bool all_succeed;
    unsigned ended[3]; // 0, LIEN_EAGAIN, scope CONN
};

static void *call_on(void *arg)
{
    struct caller *caller = arg;
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.timeout_ms = HANG_MS;
    while (!atomic_load(&shared->stop)) {
        uint32_t id = atomic_fetch_add(&shared->next_id, 1);
        CHECK(id < IDS);
        int rc = lien_channel_call_wait(caller->channel, "test/count", &id, sizeof(id), &opts,
                                        NULL);
        unsigned ran = atomic_load(&shared->ran[id]);
        if (rc == 0) {
            CHECK(ran == 1);
            atomic_fetch_add(&shared->good, 1);
            caller->ended[0]++;
        } else if (rc == LIEN_EAGAIN) {
            CHECK(ran == 0);
            caller->ended[1]++;
        } else {
            CHECK(ran <= 1 && lien_errscope(rc) == LIEN_SCOPE_CONN);
            caller->ended[2]++;
        }
        if (caller->all_succeed)
            CHECK_RC(rc, 0);
        nap(1);
    }
    return NULL;
}

static void call_through_channel(const char *const *addresses, size_t n, bool all_succeed)
{
    struct caller callers[4];
    lien_channel *channel;
    lien_channel_opts opts;
    open_ctx();
    lien_channel_opts_init(&opts);
    opts.backoff_min_ms = 10;
    opts.backoff_max_ms = 200;
    CHECK_RC(lien_channel_open(ctx, addresses, n, &opts, &channel), 0);
    for (unsigned i = 0; i < 4; i++) {
        callers[i] = (struct caller){.channel = channel, .all_succeed = all_succeed};
        CHECK(pthread_create(&callers[i].thread, NULL, call_on, &callers[i]) == 0);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(callers[i].thread, NULL);
    lien_channel_info info = {.size = sizeof(info)};
    CHECK_RC(lien_channel_info_get(channel, &info), 0);
    CHECK(info.attempts > 1 && info.calls_waiting == 0 && info.calls_running == 0);
    CHECK_RC(lien_channel_close_wait(&channel, 10000), 0);
    CHECK_RC(lien_ctx_close(&ctx), 0);
    exit(0);
}

// One call that its handler keeps until the first generation goes away.
static void call_slowly(const char *address)
{
    lien_channel *channel;
    lien_msg *reply = NULL;
    const void *data;
    size_t len;
    unsigned who;
    lien_call_opts opts;
    open_ctx();
    lien_call_opts_init(&opts);
    opts.timeout_ms = HANG_MS;
    CHECK_RC(lien_channel_open(ctx, &address, 1, NULL, &channel), 0);
    CHECK_RC(lien_channel_call_wait(channel, "test/slow", NULL, 0, &opts, &reply), 0);
    CHECK_RC(lien_msg_head(reply, &data, &len), 0);
    CHECK(len == sizeof(who));
    memcpy(&who, data, sizeof(who));
    CHECK(who == 0);
    lien_msg_free(&reply);
    CHECK_RC(lien_channel_close_wait(&channel, 10000), 0);
    CHECK_RC(lien_ctx_close(&ctx), 0);
    exit(0);
}

// Connects, calls, closes, all the time. A server that is going away takes the connection and no call.
static void connect_on(const char *address)
{
    open_ctx();
    while (!atomic_load(&shared->stop)) {
        lien_conn *conn;
        uint32_t id = atomic_fetch_add(&shared->next_id, 1);
        CHECK_RC(lien_conn_open_wait(ctx, address, NULL, &conn), 0);
        int rc = lien_call_wait(conn, "test/count", &id, sizeof(id), NULL, NULL);
        CHECK(rc == 0 || rc == LIEN_EOVERLOAD);
        CHECK(atomic_load(&shared->ran[id]) == (rc == 0));
        CHECK_RC(lien_conn_close_wait(&conn, 10000), 0);
        atomic_fetch_add(&shared->connects, 1);
    }
    CHECK_RC(lien_ctx_close(&ctx), 0);
    exit(0);
}

// -- The parent ---------------------------------------------------------------------------------------------------------------------

static void ends_well(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void handover(void)
{
    int out[2], command[GENERATIONS][2], pair[GENERATIONS][2];
    pid_t servers[GENERATIONS], clients[4];
    char address[96];
    const char *only = address;
    CHECK(pipe(out) == 0);
    for (unsigned i = 0; i < GENERATIONS; i++) {
        CHECK(pipe(command[i]) == 0);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair[i]) == 0);
    }
    for (unsigned i = 0; i < GENERATIONS; i++) {
        servers[i] = fork();
        CHECK(servers[i] >= 0);
        if (servers[i] == 0)
            serve_generation(i, out[1], command[i][0], i > 0 ? pair[i - 1][1] : -1, pair[i][0]);
    }
    CHECK(read(out[0], address, sizeof(address)) == sizeof(address));
    for (unsigned i = 0; i < 4; i++) {
        clients[i] = fork();
        CHECK(clients[i] >= 0);
        if (clients[i] > 0)
            continue;
        if (i < 2)
            call_through_channel(&only, 1, true);
        else if (i == 2)
            call_slowly(address);
        else
            connect_on(address);
    }
    while (atomic_load(&shared->slow) == 0)
        nap(5);
    for (unsigned i = 0; i + 1 < GENERATIONS; i++) {
        grows(&shared->good, 200);
        grows(&shared->connects, 3);
        CHECK(write(command[i][1], "x", 1) == 1);
        ends_well(servers[i]);
    }
    grows(&shared->good, 200);
    grows(&shared->connects, 3);
    atomic_store(&shared->stop, true);
    for (unsigned i = 0; i < 4; i++)
        ends_well(clients[i]);
    CHECK(write(command[GENERATIONS - 1][1], "x", 1) == 1);
    ends_well(servers[GENERATIONS - 1]);
}

static pid_t start_killed(const char *address, char bound[96])
{
    int out[2];
    CHECK(pipe(out) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        serve_killed(address, out[1]);
    close(out[1]);
    CHECK(read(out[0], bound, 96) == 96);
    close(out[0]);
    return pid;
}

static void killed(void)
{
    char address[2][96];
    pid_t servers[2], clients[2];
    atomic_store(&shared->stop, false);
    for (unsigned i = 0; i < 2; i++)
        servers[i] = start_killed("127.0.0.1:0", address[i]);
    const char *const all[] = {"127.0.0.1:1", address[0], address[1]};
    for (unsigned i = 0; i < 2; i++) {
        clients[i] = fork();
        CHECK(clients[i] >= 0);
        if (clients[i] == 0)
            call_through_channel(all, 3, false);
    }
    for (unsigned round = 0; round < 4; round++) {
        unsigned which = round % 2;
        grows(&shared->good, 100);
        CHECK(kill(servers[which], SIGKILL) == 0);
        CHECK(waitpid(servers[which], NULL, 0) == servers[which]);
        grows(&shared->good, 100);
        servers[which] = start_killed(address[which], address[which]);
    }
    grows(&shared->good, 100);
    atomic_store(&shared->stop, true);
    for (unsigned i = 0; i < 2; i++)
        ends_well(clients[i]);
    for (unsigned i = 0; i < 2; i++) {
        kill(servers[i], SIGKILL);
        CHECK(waitpid(servers[i], NULL, 0) == servers[i]);
    }
}

int main(void)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    handover();
    killed();
    for (uint32_t i = 0; i < atomic_load(&shared->next_id); i++)
        CHECK(atomic_load(&shared->ran[i]) <= 1);
    return 0;
}
