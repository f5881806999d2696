// SPDX-License-Identifier: Apache-2.0
//
// The drivers over real providers, where each side is a process: contexts driven by the script's thread, and contexts with their own.

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/conformance/harness.h"

static int open_driven(struct cf_side *side, lien_ctx_opts *opts, lien_ctx **ctx)
{
    (void)side;
    opts->flags |= LIEN_APP_DRIVEN;
    return lien_ctx_open(opts, ctx);
}

static int open_threaded(struct cf_side *side, lien_ctx_opts *opts, lien_ctx **ctx)
{
    (void)side;
    return lien_ctx_open(opts, ctx);
}

// Sleeps until the ctx or the control channel has something: bounded, since what a script waits for may show in neither.
static void turn_driven(struct cf_side *side, bool still)
{
    struct pollfd fds[2] = {{.fd = side->control, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    if (!still && side->ctx) {
        CHECK_RC(side, lien_ctx_progress(side->ctx), 0);
        if (lien_ctx_arm(side->ctx) != 0)
            return;
        CHECK_RC(side, lien_ctx_fd(side->ctx, &fds[1].fd), 0);
    }
    poll(fds, 2, 1);
}

static void turn_threaded(struct cf_side *side, bool still)
{
    (void)side;
    (void)still;
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static uint64_t now_ms(struct cf_side *side)
{
    (void)side;
    return cf_real_ms();
}

// Whether each thread of the process stands still.
static bool stopped(struct cf_side *side)
{
    char path[64], line[256];
    snprintf(path, sizeof(path), "/proc/%d/task", side->peer_pid);
    DIR *tasks = opendir(path);
    CHECK(side, tasks != NULL);
    bool all = true;
    for (struct dirent *entry; all && (entry = readdir(tasks));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%.16s/stat", side->peer_pid, entry->d_name);
        FILE *file = fopen(path, "r");
        char *after = file && fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
        all = !after || after[2] == 'T'; // a thread that is gone does not run either
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return all;
}

static void freeze(struct cf_side *side)
{
    CHECK(side, kill(side->peer_pid, SIGSTOP) == 0);
    while (!stopped(side))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void thaw(struct cf_side *side)
{
    CHECK(side, kill(side->peer_pid, SIGCONT) == 0);
}

#define DRIVEN                                                                                     \
    .processes = true, .blocking = true, .ctx_open = open_driven, .turn = turn_driven,             \
    .now_ms = now_ms, .freeze = freeze, .thaw = thaw
#define THREADED                                                                                   \
    .processes = true, .threaded = true, .blocking = true, .ctx_open = open_threaded,              \
    .turn = turn_threaded, .now_ms = now_ms, .freeze = freeze, .thaw = thaw
#define LOOPBACK .host = "127.0.0.1", .host6 = "[::1]"
#define TCP      LOOPBACK, .provider = "tcp", .path = LIEN_PATH_KERNEL
// The addresses of the RDMA device that ci/verbs-test makes.
#define VERBS                                                                                      \
    .serves_frozen = true, .host = "10.9.2.1", .host6 = "[fd09:2::1]", .provider = "verbs",        \
    .path = LIEN_PATH_RDMA
#define INLINE LOOPBACK, .path = LIEN_PATH_INLINE, .batch_max = 64 * MIB

const struct cf_driver cf_tcp = {.name = "tcp", TCP, DRIVEN};
const struct cf_driver cf_tcp_thread = {.name = "tcp-thread", TCP, THREADED};
const struct cf_driver cf_verbs = {.name = "verbs", VERBS, DRIVEN};
const struct cf_driver cf_verbs_thread = {.name = "verbs-thread", VERBS, THREADED};
const struct cf_driver cf_stream = {.name = "stream", .provider = "stream", INLINE, DRIVEN};
const struct cf_driver cf_stream_thread = {
    .name = "stream-thread", .provider = "stream", INLINE, THREADED};
const struct cf_driver cf_ws = {.name = "ws", .provider = "ws", INLINE, DRIVEN};
const struct cf_driver cf_wss = {.name = "wss", .provider = "wss", INLINE, DRIVEN};
const struct cf_driver cf_h2c = {.name = "h2c", .provider = "h2c", INLINE, DRIVEN};
const struct cf_driver cf_h2 = {.name = "h2", .provider = "h2", INLINE, DRIVEN};
