// SPDX-License-Identifier: Apache-2.0
//
// Channels, and listeners on descriptors: bad input. What they do with good input is the matter of tests/calls.

#include <fcntl.h>
#include <unistd.h>

#include "contract.h"

static void no_event(lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    contract_fail("a callback of a refused call never runs", __FILE__, __LINE__);
}

static void opens(void)
{
    lien_channel *channel = UNTOUCHED;
    lien_channel_opts opts;
    lien_conn_opts conn;
    char longest[257];
    memset(longest, 'a', sizeof longest - 1);
    longest[256] = 0;
    const char *const good[] = {w.address_b};
    const char *const bad[][2] = {{w.address_b, NULL}, {w.address_b, ""}, {w.address_b, longest}};
    const char *many[LIEN_ADDRESSES_MAX + 1];
    for (size_t i = 0; i <= LIEN_ADDRESSES_MAX; i++)
        many[i] = w.address_b;
    CALLS(lien_channel_opts_init, NULL);
    CALLS(lien_channel_opts_init, &opts);
    CHECK(opts.size == sizeof opts && opts.queue_max == 0 && !opts.conn);
    REFUSES(LIEN_EINVAL, lien_channel_open, NULL, good, 1, NULL, &channel);
    REFUSES(LIEN_EINVAL, lien_channel_open, w.a, NULL, 1, NULL, &channel);
    REFUSES(LIEN_EINVAL, lien_channel_open, w.a, good, 0, NULL, &channel);
    REFUSES(LIEN_EINVAL, lien_channel_open, w.a, many, LIEN_ADDRESSES_MAX + 1, NULL, &channel);
    REFUSES(LIEN_EINVAL, lien_channel_open, w.a, good, 1, NULL, NULL);
    for (size_t i = 0; i < 3; i++)
        REFUSES(LIEN_EINVAL, lien_channel_open, w.a, bad[i], 2, NULL, &channel);
    opts.backoff_min_ms = 100;
    opts.backoff_max_ms = 99;
    REFUSES(LIEN_EINVAL, lien_channel_open, w.a, good, 1, &opts, &channel);
    lien_channel_opts_init(&opts);
    opts.backoff_min_ms = 10001; // above the default of the other
    REFUSES(LIEN_EINVAL, lien_channel_open, w.a, good, 1, &opts, &channel);
    lien_channel_opts_init(&opts);
    opts.conn = &conn;
    lien_conn_opts_init(&conn);
    conn.on_goaway = no_event;
    REFUSES(LIEN_EINVAL, lien_channel_open, w.a, good, 1, &opts, &channel);
    lien_conn_opts_init(&conn);
    conn.on_writable = no_event;
    REFUSES(LIEN_EINVAL, lien_channel_open, w.a, good, 1, &opts, &channel);
    lien_conn_opts_init(&conn);
    conn.flags = 1u << 31;
    REFUSES(LIEN_EINVAL, lien_channel_open, w.a, good, 1, &opts, &channel);
    lien_conn_opts_init(&conn);
    conn.pool = w.pool_b; // of another ctx
    REFUSES(LIEN_EINVAL, lien_channel_open, w.a, good, 1, &opts, &channel);
    BAD_SIZES(lien_channel_opts, lien_channel_opts_init, sized,
              REFUSES(refusal, lien_channel_open, w.a, good, 1, sized, &channel));
    CHECK(channel == UNTOUCHED);
}

static void calls(lien_channel *channel)
{
    lien_channel_call *call = NULL;
    lien_call_opts opts;
    lien_channel_info info = {.size = sizeof info};
    REFUSES(LIEN_EINVAL, lien_channel_info_get, NULL, &info);
    REFUSES(LIEN_EINVAL, lien_channel_info_get, channel, NULL);
    info.size = sizeof(size_t) - 1;
    REFUSES(LIEN_EINVAL, lien_channel_info_get, channel, &info);
    info.size = sizeof info;
    ANSWERS(0, lien_channel_info_get, channel, &info);
    CHECK(strcmp(info.address, w.address_b) == 0);
    REFUSES(LIEN_EINVAL, lien_channel_call_start, NULL, "s/m", NULL, 0, NULL, &call);
    REFUSES(LIEN_EINVAL, lien_channel_call_start, channel, NULL, NULL, 0, NULL, &call);
    REFUSES(LIEN_EINVAL, lien_channel_call_start, channel, "", NULL, 0, NULL, &call);
    REFUSES(LIEN_EINVAL, lien_channel_call_start, channel, "s/m", NULL, 1, NULL, &call);
    REFUSES(LIEN_EINVAL, lien_channel_call_wait, NULL, "s/m", NULL, 0, NULL, NULL);
    REFUSES(LIEN_EINVAL, lien_channel_call_wait, channel, NULL, NULL, 0, NULL, NULL);
    REFUSES(LIEN_EINVAL, lien_channel_call_wait, channel, "s/m", NULL, 1, NULL, NULL);
    lien_call_opts_init(&opts);
    opts.timeout_ms = LIEN_FOREVER;
    REFUSES(LIEN_EINVAL, lien_channel_call_start, channel, "s/m", NULL, 0, &opts, &call);
    lien_call_opts_init(&opts);
    opts.n_read = 1;
    REFUSES(LIEN_EINVAL, lien_channel_call_start, channel, "s/m", NULL, 0, &opts, &call);
    lien_call_opts_init(&opts);
    opts.n_body = LIEN_BUFS_MAX + 1;
    REFUSES(LIEN_EINVAL, lien_channel_call_start, channel, "s/m", NULL, 0, &opts, &call);
    char *large = calloc(1, 70000);
    CHECK(large != NULL);
    REFUSES(LIEN_EMSGSIZE, lien_channel_call_start, channel, "s/m", large, 70000, NULL, &call);
    free(large);
    lien_buf *bufs[2] = {contract_buf(w.pool_a, 10, 1), NULL}; // the second is bad
    void *data;
    lien_call_opts_init(&opts);
    opts.read = bufs;
    opts.n_read = 2;
    REFUSES(LIEN_EINVAL, lien_channel_call_start, channel, "s/m", NULL, 0, &opts, &call);
    CHECK(lien_buf_mut(bufs[0], &data) == 0); // and the first is not lent
    lien_buf *other = contract_buf(w.pool_b, 10, 1);
    opts.read = &other;
    opts.n_read = 1;
    REFUSES(LIEN_EINVAL, lien_channel_call_start, channel, "s/m", NULL, 0, &opts, &call);
    lien_buf_free(&bufs[0]);
    lien_buf_free(&other);
    BAD_SIZES(lien_call_opts, lien_call_opts_init, sized,
              REFUSES(refusal, lien_channel_call_start, channel, "s/m", NULL, 0, sized, &call));
    CHECK(call == NULL);
    // Nobody serves it.
    ANSWERS(LIEN_ENOTFOUND, lien_channel_call_wait, channel, "s/m", NULL, 0, NULL, NULL);
    ANSWERS(0, lien_channel_call_start, channel, "s/m", NULL, 0, NULL, &call);
    lien_path path = lien_channel_call_path(call, NULL);
    CHECK(path == LIEN_PATH_KERNEL || path == LIEN_PATH_NONE); // not sent yet
    ANSWERS(LIEN_PATH_NONE, lien_channel_call_path, NULL, NULL);
    ANSWERS(0, lien_channel_call_cancel, call);
    ANSWERS(0, lien_channel_call_close, &call);
    CHECK(call == NULL);
    REFUSES(LIEN_EINVAL, lien_channel_call_cancel, NULL);
    REFUSES(LIEN_EINVAL, lien_channel_call_close, NULL);
    REFUSES(LIEN_EINVAL, lien_channel_call_close, &call);
}

static void closes(void)
{
    lien_channel *channel = NULL;
    const char *const good[] = {w.address_b};
    ANSWERS(0, lien_channel_open, w.a, good, 1, NULL, &channel);
    lien_conn *theirs = NULL;
    CHECK(lien_listener_accept_wait(w.listener_b, 5000, &theirs) == 0);
    CHECK(lien_channel_call_wait(channel, "s/m", NULL, 0, NULL, NULL) == LIEN_ENOTFOUND);
    contract_settle();
    calls(channel);
    ANSWERS(0, lien_channel_close_wait, &channel, 5000);
    CHECK(channel == NULL);
    CHECK(lien_conn_close_wait(&theirs, 5000) == 0);
    const char *const nobody[] = {"127.0.0.1:1"};
    ANSWERS(0, lien_channel_open, w.a, nobody, 1, NULL, &channel);
    ANSWERS(0, lien_channel_close, &channel);
    CHECK(channel == NULL);
    contract_settle();
    REFUSES(LIEN_EINVAL, lien_channel_close, NULL);
    REFUSES(LIEN_EINVAL, lien_channel_close, &channel);
    REFUSES(LIEN_EINVAL, lien_channel_close_wait, NULL, 0);
    REFUSES(LIEN_EINVAL, lien_channel_close_wait, &channel, 0);
}

static void descriptors(void)
{
    lien_listener *listener = UNTOUCHED;
    int fd = -7, pipes[2];
    size_t n = 7;
    CHECK(pipe(pipes) == 0);
    REFUSES(LIEN_EINVAL, lien_listen_fd, NULL, 3, NULL, &listener);
    REFUSES(LIEN_EINVAL, lien_listen_fd, w.a, pipes[0], NULL, NULL);
    REFUSES(LIEN_EINVAL, lien_listen_fd, w.a, pipes[0], NULL, &listener);
    REFUSES(LIEN_EINVAL, lien_listen_fd, w.a, -1, NULL, &listener);
    CHECK(fcntl(pipes[0], F_GETFD) == 0); // still ours, and as it was
    close(pipes[0]);
    close(pipes[1]);
    REFUSES(LIEN_EINVAL, lien_listener_fd, NULL, &fd);
    REFUSES(LIEN_EINVAL, lien_listener_fd, w.listener_b, NULL);
    REFUSES(LIEN_EINVAL, lien_listener_drain, NULL);
    CHECK(listener == UNTOUCHED && fd == -7);
    ANSWERS(0, lien_listener_open, w.b, "127.0.0.1:0", NULL, &listener);
    ANSWERS(0, lien_listener_fd, listener, &fd);
    close(fd);
    ANSWERS(0, lien_listener_drain, listener);
    ANSWERS(0, lien_listener_drain, listener);
    REFUSES(LIEN_ESTATE, lien_listener_fd, listener, &fd);
    ANSWERS(0, lien_listener_close, &listener);
    CHECK(unsetenv("LISTEN_PID") == 0 && unsetenv("LISTEN_FDS") == 0);
    REFUSES(LIEN_EINVAL, lien_activated_fds, NULL, NULL, 1, &n);
    REFUSES(LIEN_EINVAL, lien_activated_fds, NULL, &fd, 1, NULL);
    REFUSES(LIEN_ENOTFOUND, lien_activated_fds, NULL, &fd, 1, &n);
    CHECK(n == 7);
}

void contract_channel(void)
{
    opens();
    closes();
    descriptors();
}
