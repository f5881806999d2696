// SPDX-License-Identifier: Apache-2.0
//
// See fault.h: processes, this side, and talking. The relay is in fault_relay.c.

#include "tests/fault/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/fault/fault_peer.h"

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char fault_log[1 << 16];
static size_t log_len;

_Noreturn void fault_fail(const char *file, int line, const char *what, long long got,
                          long long want)
{
    fprintf(stderr, "%s:%d: failed: %s", file, line, what);
    if (got != want)
        fprintf(stderr, " (%lld, %lld; %s)", got, want, lien_errname((int)got));
    fprintf(stderr, "\n%s%s", fault_log[0] ? "the log:\n" : "", fault_log);
    fflush(NULL);
    _exit(1);
}

uint64_t fault_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

uint64_t fault_ms(void)
{
    return fault_us() / 1000;
}

void fault_sleep(unsigned ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

bool fault_until(bool (*done)(void *arg), void *arg, unsigned ms)
{
    uint64_t end = fault_ms() + ms;
    while (!done(arg)) {
        if (fault_ms() > end)
            return false;
        fault_sleep(1);
    }
    return true;
}

int fault_main(int argc, char **argv, void (*test)(int argc, char **argv))
{
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && strcmp(argv[1], "--peer") == 0)
        return fault_peer_main((const char *const *)argv + 2);
    test(argc, argv);
    return 0;
}

// -- The other process -----------------------------------------------------------------------------------------------------------

#define SETTINGS_MAX 16

static void become_peer(const char *const *settings, int in, int out)
{
    const char *args[SETTINGS_MAX + 3] = {"peer", "--peer"};
    for (int i = 0; settings && settings[i] && i < SETTINGS_MAX; i++)
        args[i + 2] = settings[i];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    execv("/proc/self/exe", (char *const *)(uintptr_t)args);
    _exit(127);
}

// One line of its output, without the newline.
static void read_line(const struct fault_peer *peer, char *line, size_t size)
{
    size_t n = 0;
    while (n + 1 < size) {
        ssize_t got = read(peer->out, line + n, 1);
        if (got < 0 && errno == EINTR)
            continue;
        CHECK_EQ(got, 1);
        if (line[n] == '\n')
            break;
        n++;
    }
    line[n] = '\0';
}

void fault_peer_start(struct fault_peer *peer, const char *const *settings)
{
    int in[2], out[2];
    CHECK_EQ(pipe2(in, O_CLOEXEC), 0);
    CHECK_EQ(pipe2(out, O_CLOEXEC), 0);
    peer->pid = fork();
    CHECK(peer->pid >= 0);
    if (peer->pid == 0)
        become_peer(settings, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    peer->in = in[1];
    peer->out = out[0];
    read_line(peer, peer->address, sizeof peer->address);
}

void fault_peer_signal(const struct fault_peer *peer, int sig)
{
    CHECK_EQ(kill(peer->pid, sig), 0);
    int status;
    if (sig == SIGSTOP) // stopped when this returns
        CHECK_EQ(waitpid(peer->pid, &status, WUNTRACED), peer->pid);
}

static int reap(struct fault_peer *peer)
{
    int status = 0;
    close(peer->in);
    CHECK_EQ(waitpid(peer->pid, &status, 0), peer->pid);
    close(peer->out);
    peer->pid = 0;
    return status;
}

void fault_peer_end(struct fault_peer *peer)
{
    CHECK_EQ(reap(peer), 0);
}

void fault_peer_kill(struct fault_peer *peer)
{
    fault_peer_signal(peer, SIGKILL);
    CHECK(WIFSIGNALED(reap(peer)));
}

void fault_peer_levels(const struct fault_peer *peer, struct fault_levels *l)
{
    char line[256];
    CHECK_EQ(write(peer->in, "s", 1), 1);
    read_line(peer, line, sizeof line);
    CHECK_EQ(sscanf(line, "%llu %llu %llu %llu %llu %llu %llu", &l->grants, &l->grants_bytes,
                    &l->pool_bytes, &l->conns, &l->quarantined, &l->protocol_errors, &l->reads),
             7);
}

// -- This side -------------------------------------------------------------------------------------------------------------------

void fault_log_line(const lien_log_line *line, void *arg)
{
    (void)arg;
    pthread_mutex_lock(&log_lock);
    int n = snprintf(fault_log + log_len, sizeof fault_log - log_len, "%s\n", line->text);
    if (n > 0 && log_len + (size_t)n < sizeof fault_log)
        log_len += (size_t)n;
    pthread_mutex_unlock(&log_lock);
}

void fault_log_clear(void)
{
    pthread_mutex_lock(&log_lock);
    log_len = 0;
    fault_log[0] = '\0';
    pthread_mutex_unlock(&log_lock);
}

static bool log_has_now(void *text)
{
    pthread_mutex_lock(&log_lock);
    bool yes = strstr(fault_log, text) != NULL;
    pthread_mutex_unlock(&log_lock);
    return yes;
}

bool fault_log_has(const char *text)
{
    char copy[256];
    snprintf(copy, sizeof copy, "%s", text);
    bool yes = fault_until(log_has_now, copy, 60000); // lines leave on a thread of their own
    if (!yes)
        fprintf(stderr, "the log has no \"%s\" but:\n%s", text, fault_log);
    return yes;
}

void fault_side_open(struct fault_side *side, const char *const *settings, unsigned flags)
{
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    opts.flags = flags;
    opts.log = fault_log_line;
    CHECK_EQ(lien_ctx_open(&opts, &side->ctx), 0);
    CHECK_EQ(lien_pool_open(side->ctx, NULL, &side->pool), 0);
}

void fault_side_close(struct fault_side *side)
{
    CHECK_EQ(lien_pool_close(&side->pool), 0);
    CHECK_EQ(lien_ctx_close(&side->ctx), 0);
}

lien_conn *fault_connect_with(struct fault_side *side, const struct fault_peer *peer,
                              const lien_conn_opts *opts)
{
    lien_conn *conn = NULL;
    CHECK_EQ(lien_conn_open_wait(side->ctx, peer->address, opts, &conn), 0);
    return conn;
}

lien_conn *fault_connect(struct fault_side *side, const struct fault_peer *peer)
{
    return fault_connect_with(side, peer, NULL);
}

void fault_stats(const struct fault_side *side, lien_ctx_stats *stats)
{
    *stats = (lien_ctx_stats){.size = sizeof *stats};
    CHECK_EQ(lien_ctx_stats_get(side->ctx, stats), 0);
}

void fault_info(lien_conn *conn, lien_conn_info *info)
{
    *info = (lien_conn_info){.size = sizeof *info};
    CHECK_EQ(lien_conn_info_get(conn, info), 0);
}

// -- Talking to it ---------------------------------------------------------------------------------------------------------------

void fault_ask_grant(lien_conn *conn, uint64_t size, lien_token *token)
{
    char ask[1 + sizeof size] = {'g'};
    memcpy(ask + 1, &size, sizeof size);
    CHECK_EQ(lien_send_wait(conn, ask, sizeof ask, NULL, 0, NULL), 0);
    lien_msg *msg = NULL;
    CHECK_EQ(lien_msg_recv_wait(conn, 20000, &msg), 0);
    const void *head = NULL;
    size_t len = 0;
    CHECK_EQ(lien_msg_head(msg, &head, &len), 0);
    CHECK(len > 1 && len - 1 <= sizeof token->bytes && ((const char *)head)[0] == 't');
    token->len = (uint32_t)(len - 1);
    memcpy(token->bytes, (const char *)head + 1, len - 1);
    lien_msg_free(&msg);
}

void fault_tell_read(lien_conn *conn, const lien_token *token)
{
    char ask[1 + LIEN_TOKEN_MAX] = {'r'};
    memcpy(ask + 1, token->bytes, token->len);
    CHECK_EQ(lien_send_wait(conn, ask, 1 + token->len, NULL, 0, NULL), 0);
}

int64_t fault_echo(lien_conn *conn, unsigned timeout_ms)
{
    static uint32_t number;
    char ask[5] = {'e'};
    uint64_t begin = fault_us();
    number++;
    memcpy(ask + 1, &number, sizeof number);
    lien_send_opts opts;
    lien_send_opts_init(&opts);
    opts.timeout_ms = timeout_ms;
    int rc = lien_send_wait(conn, ask, sizeof ask, NULL, 0, &opts);
    lien_msg *msg = NULL;
    if (rc == 0)
        rc = lien_msg_recv_wait(conn, timeout_ms, &msg);
    if (rc != 0)
        return rc;
    const void *head = NULL;
    size_t len = 0;
    CHECK_EQ(lien_msg_head(msg, &head, &len), 0);
    CHECK(len == sizeof ask && memcmp(head, ask, len) == 0);
    lien_msg_free(&msg);
    return (int64_t)(fault_us() - begin);
}

lien_space *fault_space(struct fault_side *side, size_t len)
{
    lien_buf *buf = NULL;
    lien_space *space = NULL;
    CHECK_EQ(lien_pool_alloc(side->pool, len, &buf), 0);
    CHECK_EQ(lien_space_open(side->ctx, &buf, 1, &space), 0);
    return space;
}

static uint64_t word(size_t i, uint64_t seed)
{
    return (i + 1 + seed * UINT64_C(0xd6e8feb86659fd93)) * UINT64_C(0x9e3779b97f4a7c15);
}

void fault_fill(void *data, size_t len, uint64_t seed)
{
    size_t i = 0;
    uint64_t w;
    for (; i + sizeof w <= len; i += sizeof w) {
        w = word(i, seed);
        memcpy((char *)data + i, &w, sizeof w);
    }
    w = word(i, seed);
    memcpy((char *)data + i, &w, len - i);
}

bool fault_is(const void *data, size_t len, uint64_t seed)
{
    size_t i = 0;
    uint64_t w, is;
    for (; i + sizeof w <= len; i += sizeof w) {
        memcpy(&is, (const char *)data + i, sizeof is);
        if (is != word(i, seed))
            return false;
    }
    w = word(i, seed);
    return memcmp((const char *)data + i, &w, len - i) == 0;
}

void fault_pattern(void *data, size_t len)
{
    fault_fill(data, len, 0);
}

bool fault_pattern_is(const void *data, size_t len)
{
    return fault_is(data, len, 0);
}

bool fault_space_is(lien_space *space, uint64_t seed)
{
    lien_buf *buf = NULL;
    const void *data = NULL;
    CHECK_EQ(lien_space_buf(space, 0, &buf), 0);
    CHECK_EQ(lien_buf_data(buf, &data), 0);
    return fault_is(data, lien_buf_len(buf), seed);
}

bool fault_space_is_pattern(lien_space *space)
{
    return fault_space_is(space, 0);
}

// -- An observed read ------------------------------------------------------------------------------------------------------------

static void on_done(void *arg, int status)
{
    struct fault_read *r = arg;
    r->status = status;
    r->done_us = fault_us();
    r->in_order = r->released == 0;
    r->done++;
}

static void on_released(void *arg, int status)
{
    struct fault_read *r = arg;
    r->released_status = status;
    r->released_us = fault_us();
    r->in_order = r->in_order && r->done == 1;
    r->released++;
}

int fault_read_start(struct fault_read *r, lien_conn *conn, const lien_token *token,
                     lien_space *space, uint32_t timeout_ms, unsigned flags)
{
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.flags = flags;
    opts.timeout_ms = timeout_ms;
    opts.on_done = on_done;
    opts.on_released = on_released;
    opts.arg = r;
    return lien_read_start(conn, token->bytes, token->len, space, &opts, &r->read);
}

bool fault_read_is_done(void *read)
{
    return ((struct fault_read *)read)->done > 0;
}

bool fault_read_is_released(void *read)
{
    return ((struct fault_read *)read)->released > 0;
}
