// SPDX-License-Identifier: Apache-2.0
//
// See support.h.

#include "tests/loops/support.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

void sleep_ms(unsigned ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0)
        ;
}

void wait_until(bool (*done)(void *arg), void *arg, unsigned ms, const char *what)
{
    uint64_t end = now_ms() + ms;
    while (!done(arg)) {
        if (now_ms() > end) {
            fprintf(stderr, "not within %u ms: %s\n", ms, what);
            exit(1);
        }
        sleep_ms(1);
    }
}

// -- What a process holds --

static unsigned entries_in(const char *path)
{
    DIR *dir = opendir(path);
    CHECK(dir != NULL);
    unsigned n = 0;
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static unsigned lines_in(const char *path)
{
    FILE *file = fopen(path, "re");
    CHECK(file != NULL);
    unsigned n = 0;
    for (int c = getc(file); c != EOF; c = getc(file))
        n += c == '\n';
    fclose(file);
    return n;
}

// The kernel's own count: a listing of /proc/self/task may end early when a thread ends meanwhile.
static unsigned threads_running(void)
{
    char line[128];
    unsigned n = 0;
    FILE *file = fopen("/proc/self/status", "re");
    CHECK(file != NULL);
    while (n == 0 && fgets(line, sizeof line, file))
        (void)sscanf(line, "Threads: %u", &n);
    fclose(file);
    return n;
}

static uint64_t rss_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    CHECK(file != NULL);
    unsigned long size, resident;
    CHECK(fscanf(file, "%lu %lu", &size, &resident) == 2);
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE) / 1024u;
}

static uint64_t us(struct timeval t)
{
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_usec;
}

struct footprint footprint_cpu(void)
{
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return (struct footprint){.cpu_us = us(usage.ru_utime) + us(usage.ru_stime),
                              .switches = (uint64_t)usage.ru_nvcsw};
}

struct footprint footprint_now(void)
{
    struct footprint now = footprint_cpu();
    now.rss_kib = rss_kib();
    now.fds = entries_in("/proc/self/fd") - 1; // the one that reads it
    now.threads = threads_running();
    now.maps = lines_in("/proc/self/maps");
    return now;
}

// -- The peer --

struct given {
    struct peer *peer;
    lien_grant *grant;
};

static void on_released(void *arg, int status)
{
    struct given *given = arg;
    IS(status, 0);
    IS(lien_grant_close(&given->grant), 0);
    atomic_fetch_add(&given->peer->released, 1);
    free(given);
}

// Grants the buffer; returns the token's length, or 0 where the connection has ended or its limit is reached. The handle is closed when the grant is
// released: on the strand that runs this now, so it is stored by then.
static size_t give(struct peer *peer, lien_conn *conn, uint8_t *bytes)
{
    struct given *given = calloc(1, sizeof *given);
    CHECK(given != NULL);
    given->peer = peer;
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.on_released = on_released;
    opts.arg = given;
    lien_token token;
    int rc = lien_grant_open(conn, &peer->buf, 1, &opts, &token, &given->grant);
    if (rc != 0) {
        CHECK(rc == LIEN_ECLOSED || rc == LIEN_EPEERLOST || rc == LIEN_ELIMIT);
        free(given);
        return 0;
    }
    atomic_fetch_add(&peer->granted, 1);
    memcpy(bytes, token.bytes, token.len);
    return token.len;
}

static void on_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct peer *peer = arg;
    const void *head;
    size_t len;
    uint8_t answer[1 + LIEN_TOKEN_MAX];
    IS(lien_msg_head(msg, &head, &len), 0);
    CHECK(len >= 1 && len <= sizeof answer);
    memcpy(answer, head, len);
    atomic_fetch_add(&peer->asked, 1);
    if (answer[0] == ASK_GRANT)
        len = 1 + give(peer, conn, answer + 1);
    int rc = answer[0] == ASK_DROP ? 0 : lien_send(conn, answer, len, NULL, 0, NULL);
    // Without credit there is no answer: who asks has as many credits as we.
    CHECK(rc == 0 || rc == LIEN_ECLOSED || rc == LIEN_EPEERLOST || rc == LIEN_EAGAIN);
    lien_msg_free(&msg);
}

static void on_lost(lien_conn *conn, int status, void *arg)
{
    (void)status;
    (void)arg;
    lien_conn_close(&conn);
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    struct peer *peer = arg;
    (void)conn;
    IS(status, 0);
    atomic_fetch_add(&peer->closed, 1);
}

static int on_accept(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    struct peer *peer = arg;
    (void)listener;
    (void)conn;
    *conn_arg = peer;
    atomic_fetch_add(&peer->taken, 1);
    return 0;
}

lien_ctx *ctx_open(const char *const *settings)
{
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    lien_ctx *ctx;
    IS(lien_ctx_open(&opts, &ctx), 0);
    return ctx;
}

void peer_open(struct peer *peer, const char *const *settings, unsigned conn_flags)
{
    memset(peer, 0, sizeof *peer);
    peer->ctx = ctx_open(settings);
    IS(lien_pool_open(peer->ctx, NULL, &peer->pool), 0);
    IS(lien_pool_alloc(peer->pool, PEER_BYTES, &peer->buf), 0);
    void *bytes;
    IS(lien_buf_mut(peer->buf, &bytes), 0);
    for (unsigned i = 0; i < PEER_BYTES; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)(i * 7);
    lien_conn_opts conn;
    lien_conn_opts_init(&conn);
    lien_listener_opts opts;
    lien_listener_opts_init(&opts);
    opts.arg = peer;
    opts.on_accept = on_accept;
    conn.flags = conn_flags;
    conn.on_message = on_message;
    conn.on_lost = on_lost;
    conn.on_closed = on_closed;
    opts.conn = &conn;
    IS(lien_listener_open(peer->ctx, "127.0.0.1:0", &opts, &peer->listener), 0);
    IS(lien_listener_address(peer->listener, peer->address, sizeof peer->address), 0);
}

static bool all_closed(void *arg)
{
    const struct peer *peer = arg;
    return atomic_load(&peer->closed) == atomic_load(&peer->taken);
}

void peer_close(struct peer *peer)
{
    IS(lien_listener_close(&peer->listener), 0);
    wait_until(all_closed, peer, 20000, "the end of the peer's connections");
    lien_buf_free(&peer->buf);
    lien_pool_close(&peer->pool);
    IS(lien_ctx_close(&peer->ctx), 0);
    IS(atomic_load(&peer->released), atomic_load(&peer->granted));
}

// -- In a process of its own --

struct command {
    char what; // 'r': report, 'c': the report's CPU time alone
    unsigned open;
};

struct open_only {
    const struct peer *peer;
    unsigned open;
};

static bool only_open(void *arg)
{
    const struct open_only *o = arg;
    return atomic_load(&o->peer->taken) - atomic_load(&o->peer->closed) == o->open;
}

static _Noreturn void serve(int fd, const char *const *settings)
{
    struct peer peer;
    peer_open(&peer, settings, 0);
    CHECK(write(fd, peer.address, sizeof peer.address) == (ssize_t)sizeof peer.address);
    struct command command;
    while (read(fd, &command, sizeof command) == (ssize_t)sizeof command) {
        struct remote_report report = {.stats.size = sizeof report.stats};
        struct open_only o = {.peer = &peer, .open = command.open};
        if (command.what == 'c') {
            report.footprint = footprint_cpu();
        } else {
            wait_until(only_open, &o, 20000, "the end of connections at the peer");
            report.footprint = footprint_now();
            IS(lien_ctx_stats_get(peer.ctx, &report.stats), 0);
        }
        CHECK(write(fd, &report, sizeof report) == (ssize_t)sizeof report);
    }
    peer_close(&peer);
    exit(0);
}

void remote_start(struct remote *remote, const char *const *settings)
{
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    remote->pid = fork();
    CHECK(remote->pid >= 0);
    if (remote->pid == 0) {
        close(ends[0]);
        serve(ends[1], settings);
    }
    close(ends[1]);
    remote->fd = ends[0];
    CHECK(read(remote->fd, remote->address, sizeof remote->address) ==
          (ssize_t)sizeof remote->address);
}

static struct remote_report request(struct remote *remote, char what, unsigned open)
{
    struct command command;
    memset(&command, 0, sizeof command);
    command.what = what;
    command.open = open;
    CHECK(write(remote->fd, &command, sizeof command) == (ssize_t)sizeof command);
    struct remote_report report;
    CHECK(recv(remote->fd, &report, sizeof report, MSG_WAITALL) == (ssize_t)sizeof report);
    return report;
}

struct remote_report remote_report(struct remote *remote, unsigned open)
{
    return request(remote, 'r', open);
}

struct footprint remote_cpu(struct remote *remote)
{
    return request(remote, 'c', 0).footprint;
}

void remote_stop(struct remote *remote)
{
    close(remote->fd);
    int status;
    CHECK(waitpid(remote->pid, &status, 0) == remote->pid);
    CHECK(WIFEXITED(status));
    IS(WEXITSTATUS(status), 0);
}

// -- The other side --

lien_conn *conn_open(lien_ctx *ctx, const char *address)
{
    lien_conn *conn;
    IS(lien_conn_open_wait(ctx, address, NULL, &conn), 0);
    return conn;
}

size_t conn_ask(lien_conn *conn, const void *ask, size_t len, void *answer, size_t size)
{
    lien_msg *msg;
    const void *head;
    size_t got;
    IS(lien_send_wait(conn, ask, len, NULL, 0, NULL), 0);
    IS(lien_msg_recv_wait(conn, 20000, &msg), 0);
    IS(lien_msg_head(msg, &head, &got), 0);
    CHECK(got >= 1 && got <= size);
    memcpy(answer, head, got);
    IS(*(uint8_t *)answer, *(const uint8_t *)ask);
    lien_msg_free(&msg);
    return got;
}

void conn_ask_grant(lien_conn *conn, lien_token *token)
{
    uint8_t answer[1 + LIEN_TOKEN_MAX];
    size_t got = conn_ask(conn, "G", 1, answer, sizeof answer);
    CHECK(got > 1);
    token->len = (uint32_t)(got - 1);
    memcpy(token->bytes, answer + 1, token->len);
}
