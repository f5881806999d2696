// SPDX-License-Identifier: Apache-2.0
//
// See mem_world.h. The stand-ins define the symbols of core/dispatch.h, core/log.h and core/ctx.c, so
// the tests are linked with PARTS: nothing else of those files comes in.

#include "mem_world.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

char world_log[512];
unsigned world_strands;

// -- Dispatch --------------------------------------------------------------------------------------

struct lieni_strand {
    unsigned queued;
    bool closed;
};

static struct entry {
    struct lieni_task *task;
    struct lieni_strand *strand;
} queue[4096];
static unsigned queued;
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;

int lieni_strand_open(struct lieni_dispatch *dispatch, bool inline_ok, struct lieni_strand **strand)
{
    (void)dispatch;
    (void)inline_ok;
    *strand = calloc(1, sizeof **strand);
    world_strands++;
    return *strand ? 0 : LIEN_ENOMEM;
}

static void strand_end(struct lieni_strand *strand)
{
    if (strand->closed && strand->queued == 0) {
        free(strand);
        world_strands--;
    }
}

void lieni_strand_close(struct lieni_strand *strand)
{
    strand->closed = true;
    strand_end(strand);
}

void lieni_strand_post(struct lieni_strand *strand, struct lieni_task *task)
{
    pthread_mutex_lock(&queue_lock);
    if (strand->closed || queued == sizeof queue / sizeof queue[0]) {
        abort();
    }
    strand->queued++;
    queue[queued++] = (struct entry){.task = task, .strand = strand};
    pthread_mutex_unlock(&queue_lock);
}

unsigned world_run(void)
{
    unsigned ran = 0;
    while (queued) {
        struct entry entry = queue[0];
        memmove(queue, queue + 1, --queued * sizeof queue[0]);
        entry.task->run(entry.task);
        entry.strand->queued--;
        strand_end(entry.strand);
        ran++;
    }
    return ran;
}

// -- Log -------------------------------------------------------------------------------------------

void lieni_log_say(struct lieni_log *log, lien_level level, const struct lieni_log_at *at, int code,
                   const char *format, ...)
{
    (void)log;
    (void)level;
    (void)at;
    (void)code;
    static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&log_lock);
    vsnprintf(world_log, sizeof world_log, format, args);
    pthread_mutex_unlock(&log_lock);
    va_end(args);
}

bool lieni_log_pending(struct lieni_log *log)
{
    (void)log;
    return false;
}

void lieni_log_flush(struct lieni_log *log)
{
    (void)log;
}

// -- Ctx -------------------------------------------------------------------------------------------

struct lieni_mem_root *lieni_ctx_mem(lien_ctx *ctx)
{
    return ((struct world *)(void *)ctx)->root;
}

void lieni_ctx_mem_changed(void *ctx)
{
    struct world *w = ctx;
    pthread_cond_broadcast(&w->cond);
}

int lieni_ctx_wait_locked(void *ctx, uint64_t deadline_ns)
{
    struct world *w = ctx;
    w->waits++;
    if (!w->threaded) {
        if (w->env.now(NULL) >= deadline_ns) {
            return LIEN_ETIMEDOUT;
        }
        return w->on_wait && w->on_wait(w) ? 0 : LIEN_EDEADLK;
    }
    if (deadline_ns == UINT64_MAX) {
        pthread_cond_wait(&w->cond, &w->lock);
        return 0;
    }
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(&w->cond, &w->lock, &until) == ETIMEDOUT ? LIEN_ETIMEDOUT : 0;
}

static uint64_t now(void *self)
{
    (void)self;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

lien_ctx *world_ctx(struct world *w)
{
    return (lien_ctx *)(void *)w;
}

void world_open(struct world *w)
{
    *w = (struct world){.env = {.now = now}};
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->cond, &attr);
    w->args = (struct lieni_mem_args){.lock = &w->lock,
                                      .dispatch = (struct lieni_dispatch *)(void *)w,
                                      .env = &w->env,
                                      .ctx = w,
                                      .guard = getenv("LIEN_GUARD") != NULL,
                                      .log = (struct lieni_log *)(void *)w};
    world_log[0] = 0;
    if (lieni_mem_root_open(&w->args, &w->root) != 0) {
        abort();
    }
}

void world_close(struct world *w)
{
    lieni_mem_root_close(w->root);
    world_run();
    pthread_mutex_destroy(&w->lock); // a later use shows under the sanitizers
    pthread_cond_destroy(&w->cond);
    memset(&w->args, 0, sizeof w->args);
}

void world_lock(struct world *w)
{
    pthread_mutex_lock(&w->lock);
}

void world_unlock(struct world *w)
{
    pthread_mutex_unlock(&w->lock);
}

lien_pool *world_pool(struct world *w, size_t limit, size_t reserve)
{
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.limit = limit;
    opts.reserve = reserve;
    lien_pool *pool;
    if (lien_pool_open(world_ctx(w), &opts, &pool) != 0) {
        abort();
    }
    return pool;
}

bool is_mapped(const void *addr)
{
    unsigned char in;
    void *page = (void *)((uintptr_t)addr & ~(uintptr_t)4095);
    return mincore(page, 1, &in) == 0;
}

// -- Provider --------------------------------------------------------------------------------------

static struct lieni_mr {
    struct lieni_domain *domain; // NULL: free
    void *base;
} mrs[256];

static int fake_reg(struct lieni_domain *domain, void *addr, size_t len, unsigned access,
                    struct lieni_mr **mr, struct lieni_mr_info *info)
{
    if (domain->fail_reg) {
        domain->fail_reg--;
        return LIEN_EREGISTER;
    }
    size_t i = 0;
    while (mrs[i].domain) {
        if (++i == sizeof mrs / sizeof mrs[0]) {
            abort();
        }
    }
    mrs[i] = (struct lieni_mr){.domain = domain, .base = addr};
    *mr = &mrs[i];
    domain->regions++;
    domain->registered++;
    domain->last_base = addr;
    domain->last_len = len;
    domain->last_access = access;
    *info = (struct lieni_mr_info){.key = domain->registered, .base = 0x100000};
    return 0;
}

// Memory that is unmapped while registered is what R9 forbids.
static int fake_close(struct lieni_mr *mr)
{
    if (!mr->domain || !is_mapped(mr->base)) {
        abort();
    }
    if (mr->domain->fail_close) {
        return LIEN_ENODEV;
    }
    mr->domain->regions--;
    mr->domain->closed++;
    mr->domain = NULL;
    return 0;
}

const struct lieni_provider fake_provider = {.mr_reg = fake_reg, .mr_close = fake_close};
