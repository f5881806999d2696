// SPDX-License-Identifier: Apache-2.0
//
// The ctx of the process, its two pools, the mutex of the shim, and the end: see state.h. The ctx is opened at the first need and closed at exit, after the peers had a chance to read what is still lent.

#include <pthread.h>
#include <time.h>

#include "state.h"

// How long the exit waits for peers to read what was sent. Plain gRPC's last bytes would be in the kernel's hands by then.
#define LINGER_MS 2000u

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static lien_ctx *ctx;
static lien_pool *send_pool, *receive_pool;

void state_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void state_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int open_pools(void)
{
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.limit = conf.pool;
    opts.reserve = 0;
    int rc = lien_pool_open(ctx, &opts, &send_pool);
    return rc == 0 ? lien_pool_open(ctx, &opts, &receive_pool) : rc;
}

static void open_all(void)
{
    int rc = lien_ctx_open(NULL, &ctx);
    if (rc == 0)
        rc = open_pools();
    if (rc == 0)
        return;
    say("no Lien here, everything goes in band: %s", lien_strerror(rc));
    if (ctx)
        lien_ctx_close(&ctx);
    ctx = NULL;
}

lien_ctx *ctx_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_all);
    return ctx;
}

lien_pool *ctx_send_pool(void)
{
    return send_pool;
}

lien_pool *ctx_receive_pool(void)
{
    return receive_pool;
}

static bool any_loans(void)
{
    return loans_left() > 0;
}

static void linger(bool (*any)(void))
{
    uint64_t until = now_ms() + LINGER_MS;
    while (any() && now_ms() < until)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static uint64_t pool_bytes(void)
{
    lien_ctx_stats stats = {.size = sizeof stats};
    return ctx && lien_ctx_stats_get(ctx, &stats) == 0 ? stats.pool_bytes : 0;
}

// A thread of the application that is inside gRPC still may be in a READ: then the ctx stays open, and the process's end closes it.
__attribute__((destructor)) static void end(void)
{
    if (!conf_active())
        return;
    linger(any_loans);
    conf_stop();
    unsigned users = link_kill_all();
    linger(link_any);
    if (conf.stats)
        stats_report(loans_left(), calls_left(), tags_left(), pool_bytes());
    if (users == 0 && ctx)
        lien_ctx_close(&ctx);
}
