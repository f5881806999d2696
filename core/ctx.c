// SPDX-License-Identifier: Apache-2.0
//
// See ctx.h.

#include "core/ctx.h"
#include "core/check.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/channel.h"
#include "core/conn.h"
#include "core/listener.h"
#include "core/metrics.h"
#include "core/providers.h"
#include "core/read.h"

// -- Lock, clock, waiting --

void lieni_ctx_lock(lien_ctx *ctx)
{
    if (lieni_ctx_forked(ctx)) {
        static const char text[] =
            "lien: a callback returned in a forked child, which must exec or _exit in it\n";
        ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
        (void)written; // there is nobody to tell
        abort();
    }
    pthread_mutex_lock(&ctx->lock);
}

static void ctx_free(lien_ctx *ctx);

// Under the lock, since closing the ctx takes the strand away. True: log lines are to be said once the lock is given up.
// The user's function may block, so the progress thread leaves it to another. A caller of ours hears why a call failed before the call returns.
static bool log_is_due(lien_ctx *ctx)
{
    if (!ctx->strand || !lieni_log_pending(ctx->log))
        return false;
    if (!lieni_progress_thread(ctx) &&
        lieni_dispatch_where(ctx->dispatch, NULL) != LIENI_IN_PROGRESS)
        return true;
    lieni_ctx_post(ctx, ctx->strand, &ctx->log_task);
    return false;
}

// Whoever gives the lock up outside progress context has progress woken in time for what he set.
static void arm_timers(lien_ctx *ctx)
{
    if (lieni_progress_here(ctx))
        return;
    uint64_t next = lieni_timers_next(&ctx->timers);
    if (next < ctx->armed)
        lieni_progress_set_timer(ctx, next);
}

void lieni_ctx_unlock(lien_ctx *ctx)
{
    if (ctx->dead) {
        // A message that outlived the ctx was freed: the last one takes the rest along.
        lieni_progress_bury(ctx);
        bool last = lieni_list_empty(&ctx->conns);
        pthread_mutex_unlock(&ctx->lock);
        if (last)
            ctx_free(ctx);
        return;
    }
    arm_timers(ctx);
    bool log = log_is_due(ctx);
    bool owed = ctx->wake_owed;
    ctx->wake_owed = false;
    pthread_mutex_unlock(&ctx->lock);
    if (owed)
        lieni_dispatch_wake(ctx->dispatch);
    if (log)
        lieni_log_flush(ctx->log);
}

void lieni_ctx_post(lien_ctx *ctx, struct lieni_strand *strand, struct lieni_task *task)
{
    ctx->wake_owed = true;
    lieni_strand_queue(strand, task);
}

uint64_t lieni_ctx_now(const lien_ctx *ctx)
{
    return ctx->platform.env.now(ctx->platform.env.self);
}

static void wake_sleeper(const lien_ctx *ctx)
{
    const uint64_t one = 1;
    if (ctx->wake_fd >= 0 && write(ctx->wake_fd, &one, sizeof(one)) < 0)
        return; // full: it is awake
}

void lieni_ctx_changed(lien_ctx *ctx)
{
    ctx->changes++;
    if (ctx->waiters == 0)
        return;
    if (ctx->app_driven)
        wake_sleeper(ctx); // another thread, in wait_driven(), sleeps on the descriptor
    else
        pthread_cond_broadcast(&ctx->changed);
}

void lieni_ctx_mem_changed(void *ctx)
{
    lieni_ctx_changed(ctx);
}

void lieni_ctx_wake(lien_ctx *ctx)
{
    if (!lieni_progress_here(ctx))
        wake_sleeper(ctx);
}

static void wake(void *self)
{
    lieni_ctx_wake(self);
}

uint64_t lieni_ctx_deadline(const lien_ctx *ctx, uint32_t ms)
{
    return ms == LIEN_FOREVER ? UINT64_MAX : lieni_ctx_now(ctx) + ms * LIENI_MS;
}

static int wait_threaded(lien_ctx *ctx, uint64_t deadline)
{
    int rc = 0;
    arm_timers(ctx);
    if (ctx->wake_owed) // the condition variable gives the lock up
        lieni_dispatch_wake(ctx->dispatch);
    ctx->wake_owed = false;
    ctx->waiters++;
    if (deadline == UINT64_MAX) {
        pthread_cond_wait(&ctx->changed, &ctx->lock);
    } else {
        const struct timespec at = {.tv_sec = (time_t)(deadline / 1000000000u),
                                    .tv_nsec = (long)(deadline % 1000000000u)};
        rc = pthread_cond_timedwait(&ctx->changed, &ctx->lock, &at) == ETIMEDOUT ? LIEN_ETIMEDOUT
                                                                                 : 0;
    }
    ctx->waiters--;
    return rc;
}

// The waiting thread makes progress itself.
static int wait_driven(lien_ctx *ctx, uint64_t deadline)
{
    if (ctx->epoll_fd < 0)
        return LIEN_EDEADLK; // a simulated world stands still while it waits
    uint64_t now = lieni_ctx_now(ctx);
    if (now >= deadline)
        return LIEN_ETIMEDOUT;
    uint64_t seen = ctx->changes;
    lieni_ctx_unlock(ctx);
    bool idle = lieni_progress_pass(ctx) == 0 && lieni_progress_arm(ctx) == 0;
    lieni_ctx_lock(ctx);
    if (!idle || ctx->changes != seen) {
        wake_sleeper(
            ctx); // the caller may stop here: whoever sleeps on the descriptor arms anew what this pass took in hand
        return 0; // perhaps what the caller waits for: by this pass, or another thread's
    }
    struct pollfd pfd = {.fd = ctx->epoll_fd, .events = POLLIN};
    uint64_t ms = deadline == UINT64_MAX ? UINT64_MAX : (deadline - now) / LIENI_MS + 1;
    ctx->waiters++;
    lieni_ctx_unlock(ctx);
    poll(&pfd, 1, ms > 1000000 ? 1000000 : (int)ms);
    lieni_ctx_lock(ctx);
    ctx->waiters--;
    return 0;
}

int lieni_ctx_wait_locked(void *self, uint64_t deadline)
{
    lien_ctx *ctx = self;
    if (lieni_dispatch_where(ctx->dispatch, NULL) == LIENI_IN_PROGRESS)
        return LIEN_EDEADLK;
    ctx->inside++;
    int rc = ctx->app_driven ? wait_driven(ctx, deadline) : wait_threaded(ctx, deadline);
    ctx->inside--;
    if (ctx->closing)
        lieni_ctx_changed(ctx); // lien_ctx_close
    return rc;
}

struct lieni_mem_root *lieni_ctx_mem(lien_ctx *ctx)
{
    return ctx->mem;
}

int lieni_ctx_outside(lien_ctx *ctx)
{
    return lieni_dispatch_where(ctx->dispatch, NULL) == LIENI_ELSEWHERE ? 0 : LIEN_EDEADLK;
}

int lieni_opts_copy(void *out, size_t out_size, const void *in, size_t in_size)
{
    if (in_size < sizeof(size_t) || in_size > LIENI_OPTS_MAX)
        return LIEN_EINVAL;
    for (size_t i = out_size; i < in_size; i++) {
        if (((const unsigned char *)in)[i] != 0)
            return LIEN_ENOTSUP; // a field of a later version
    }
    memcpy(out, in, in_size < out_size ? in_size : out_size);
    memcpy(out, &out_size, sizeof(out_size));
    return 0;
}

// -- Opening --

static int init_sync(lien_ctx *ctx)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0)
        return LIEN_ENOMEM;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int rc = pthread_cond_init(&ctx->changed, &attr) == 0 ? 0 : LIEN_ENOMEM;
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_mutex_init(&ctx->turn, NULL);
    return rc;
}

static void run_log(struct lieni_task *task)
{
    lieni_log_flush(lieni_container(task, lien_ctx, log_task)->log);
}

static lien_ctx *ctx_new(const lien_ctx_opts *opts, const struct lieni_platform *platform)
{
    lien_ctx *ctx = calloc(1, sizeof(*ctx));
    if (!ctx)
        return NULL;
    ctx->platform = *platform;
    ctx->app_driven = (opts->flags & LIEN_APP_DRIVEN) != 0;
    ctx->epoll_fd = ctx->wake_fd = ctx->timer_fd = -1;
    ctx->armed = UINT64_MAX;
    ctx->log_task.run = run_log;
    ctx->fork_generation = lieni_fork_generation();
    lieni_list_init(&ctx->nics);
    lieni_list_init(&ctx->peers);
    lieni_list_init(&ctx->watched);
    lieni_list_init(&ctx->conns);
    lieni_list_init(&ctx->listeners);
    lieni_list_init(&ctx->dead_listeners);
    lieni_list_init(&ctx->work);
    lieni_list_init(&ctx->graveyard);
    lieni_list_init(&ctx->channels);
    lieni_list_init(&ctx->channel_work);
    lieni_list_init(&ctx->fabric_queue);
    lieni_list_init(&ctx->room_waits);
    lieni_quarantine_init(&ctx->quarantine, 0, 0); // until the options are known
    lieni_timers_init(&ctx->timers);
    if (init_sync(ctx) != 0) {
        free(ctx);
        return NULL;
    }
    return ctx;
}

// The soft limit of descriptors becomes the hard one: a connection takes several.
static void raise_nofile(lien_ctx *ctx)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == lim.rlim_max)
        return;
    lim.rlim_cur = lim.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &lim) != 0)
        lieni_log_say(ctx->log, LIEN_LOG_INFO, NULL, LIEN_ESYS,
                      "the soft limit of descriptors stays at its value: %s", strerror(errno));
}

static int open_pools(lien_ctx *ctx)
{
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.limit = (size_t)ctx->options.receive_pool;
    opts.reserve = 0;
    lieni_ctx_lock(ctx);
    int rc = lieni_pool_open_locked(ctx->mem, &opts, &ctx->receive_pool);
    opts.limit = (size_t)1 << 40; // address space: bounded by connections
    opts.flags = LIEN_UNGUARDED;  // the application never sees it
    if (rc == 0)
        rc = lieni_pool_open_locked(ctx->mem, &opts, &ctx->slab_pool);
    lieni_ctx_unlock(ctx);
    return rc;
}

// Settings that are well-formed each, and wrong for what they mean.
static int check_settings(const lien_ctx *ctx)
{
    const struct lieni_options *o = &ctx->options;
    if (strspn(o->advertise, "0123456789abcdefABCDEF.:%") != strlen(o->advertise)) {
        lieni_log_say(ctx->log, LIEN_LOG_ERROR, NULL, LIEN_EOPTION,
                      "advertise is \"%s\" and must be a numeric address", o->advertise);
        return LIEN_EOPTION;
    }
    if (o->heartbeat_ms == 0 || o->dead_ms >= 2 * o->heartbeat_ms)
        return 0;
    lieni_log_say(ctx->log, LIEN_LOG_ERROR, NULL, LIEN_EOPTION,
                  "dead_ms is %llu and must be at least twice heartbeat_ms, which is %llu",
                  (unsigned long long)o->dead_ms, (unsigned long long)o->heartbeat_ms);
    return LIEN_EOPTION;
}

static int open_parts(lien_ctx *ctx, const lien_ctx_opts *opts)
{
    int rc = lieni_options_load(&ctx->options, opts->settings, NULL, ctx->log);
    if (rc == 0)
        rc = check_settings(ctx);
    if (rc != 0)
        return rc;
    ctx->quarantine.peer_max = ctx->options.quarantine_peer_bytes;
    ctx->quarantine.total_max = ctx->options.quarantine_total_bytes;
    lieni_log_set_level(ctx->log, ctx->options.log_level);
    rc = lieni_keyring_open(opts->psks, opts->n_psks, ctx->options.psk_file, ctx->log, &ctx->keys);
    if (rc == 0)
        rc = lieni_select_open(&ctx->select, &ctx->options, &ctx->platform, ctx->log);
    if (rc != 0)
        return rc;
    ctx->platform.env.random(ctx->platform.env.self, ctx->instance, sizeof(ctx->instance));
    rc = lieni_timer_init(&ctx->timers, &ctx->beat, lieni_liveness_beat);
    if (rc == 0)
        rc = lieni_dispatch_open(ctx->app_driven ? 0 : (unsigned)ctx->options.dispatch_threads,
                                 &ctx->platform.env, ctx->log, wake, ctx, &ctx->dispatch);
    if (rc == 0)
        rc = lieni_strand_open(ctx->dispatch, false, &ctx->strand);
    const struct lieni_mem_args mem = {.lock = &ctx->lock,
                                       .dispatch = ctx->dispatch,
                                       .env = &ctx->platform.env,
                                       .log = ctx->log,
                                       .guard = ctx->options.guard,
                                       .ctx = ctx};
    if (rc == 0)
        rc = lieni_mem_root_open(&mem, &ctx->mem);
    if (rc == 0)
        rc = open_pools(ctx);
    const struct lieni_report report = lieni_log_report(ctx->log);
    if (rc == 0)
        rc = ctx->platform.net->open(&ctx->platform.env, &report, ctx->platform.net_world,
                                     &ctx->net);
    if (rc == 0)
        rc = lieni_providers_open(ctx);
    if (rc == 0 && ctx->platform.net->fd(ctx->net) >= 0 && !(opts->flags & LIEN_KEEP_NOFILE))
        raise_nofile(ctx);
    return rc == 0 ? lieni_progress_open(ctx) : rc;
}

static void close_parts(lien_ctx *ctx);

int lieni_ctx_open_platform(const lien_ctx_opts *in, const struct lieni_platform *platform,
                            lien_ctx **out)
{
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    int rc = in ? lieni_opts_copy(&opts, sizeof(opts), in, in->size) : 0;
    if (rc != 0)
        return rc;
    if (!platform || !out || (opts.flags & ~(LIEN_APP_DRIVEN | LIEN_KEEP_NOFILE)) != 0)
        return LIEN_EINVAL;
    lien_ctx *ctx = ctx_new(&opts, platform);
    if (!ctx)
        return LIEN_ENOMEM;
    rc = lieni_log_open(opts.log, opts.log_arg, LIEN_LOG_WARN, &ctx->log);
    if (rc == 0)
        rc = open_parts(ctx, &opts);
    if (rc == LIEN_ENOMEM && ctx->log) {
        char hint[LIENI_LIMITS_NOTE];
        lieni_log_say(ctx->log, LIEN_LOG_ERROR, NULL, rc, "no memory to open the context%s",
                      lieni_limits_note(ENOMEM, hint, sizeof(hint)));
    }
    if (rc != 0) {
        close_parts(ctx);
        ctx_free(ctx);
        return rc;
    }
    *out = ctx;
    return 0;
}

int lien_ctx_open(const lien_ctx_opts *opts, lien_ctx **ctx)
{
    if (!ctx)
        return LIEN_EINVAL;
    return lieni_ctx_open_platform(opts, lieni_platform_real(), ctx);
}

// -- Closing --

// What is left when nothing runs any more.
static void ctx_free(lien_ctx *ctx)
{
    lieni_quarantine_free(&ctx->quarantine);
    lieni_timers_free(&ctx->timers);
    pthread_cond_destroy(&ctx->changed);
    pthread_mutex_destroy(&ctx->lock);
    pthread_mutex_destroy(&ctx->turn);
    free(ctx);
}

// Domains: in progress context, with no thread left but this one.
static void close_nics(lien_ctx *ctx)
{
    lieni_ctx_lock(ctx);
    for (int tries = 0; !lieni_list_empty(&ctx->nics) && tries < 100; tries++) {
        lieni_nics_reap(ctx, true);
        if (lieni_list_empty(&ctx->nics) || ctx->wake_fd < 0)
            break;
        lieni_ctx_unlock(ctx);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        lieni_ctx_lock(ctx);
    }
    if (!lieni_list_empty(&ctx->nics))
        lieni_log_say(ctx->log, LIEN_LOG_ERROR, NULL, LIEN_EBUSY,
                      "a domain could not be closed and is left behind");
    if (ctx->quarantine.sums.lost > 0)
        lieni_log_say(ctx->log, LIEN_LOG_WARN, NULL, LIEN_EQUARANTINED,
                      "%llu bytes stay in quarantine until the process ends",
                      (unsigned long long)ctx->quarantine.sums.lost);
    lieni_ctx_unlock(ctx);
}

static void close_parts(lien_ctx *ctx)
{
    lieni_progress_stop(ctx);
    lieni_check_close(ctx);
    if (ctx->beat.fire) {
        lieni_ctx_lock(ctx); // a callback that is not back yet arms timers as it gives the lock up
        lieni_timer_fini(&ctx->timers, &ctx->beat);
        lieni_ctx_unlock(ctx);
    }
    close_nics(ctx);
    for (unsigned i = 0; i < ctx->n_provs; i++)
        ctx->provs[i].ops->close(ctx->provs[i].prov);
    ctx->n_provs = 0;
    if (ctx->net)
        ctx->platform.net->close(ctx->net);
    ctx->net = NULL;
    if (ctx->strand) {
        pthread_mutex_lock(&ctx->lock); // the last callbacks may still give it up
        struct lieni_strand *strand = ctx->strand;
        ctx->strand = NULL;
        pthread_mutex_unlock(&ctx->lock);
        lieni_strand_close(strand);
    }
    if (ctx->mem) {
        lieni_ctx_lock(ctx);
        if (ctx->receive_pool)
            lieni_pool_close_locked(ctx->receive_pool);
        if (ctx->slab_pool)
            lieni_pool_close_locked(ctx->slab_pool);
        lieni_ctx_unlock(ctx);
        lieni_mem_root_close(ctx->mem);
    }
    if (ctx->dispatch)
        lieni_dispatch_close(ctx->dispatch);
    lieni_progress_close(ctx);
    free(ctx->seen.list);
    ctx->seen = (struct lieni_seen){.n = 0};
    lieni_keyring_close(ctx->keys);
    ctx->keys = NULL;
    if (ctx->log)
        lieni_log_close(ctx->log);
}

// Every connection and listener that the application still has ends.
static void close_handles(lien_ctx *ctx)
{
    struct lieni_node *next;
    for (struct lieni_node *n = ctx->channels.next; n != &ctx->channels; n = n->next)
        lieni_channel_close_locked(lieni_container(n, struct lien_channel, node));
    for (struct lieni_node *n = ctx->listeners.next; n != &ctx->listeners; n = next) {
        next = n->next;
        lieni_listener_close_locked(lieni_container(n, struct lien_listener, node));
    }
    for (struct lieni_node *n = ctx->conns.next; n != &ctx->conns; n = next) {
        struct lien_conn *conn = lieni_container(n, struct lien_conn, node);
        next = n->next;
        if (conn->has_handle)
            lieni_conn_close_handle(conn);
        else
            lieni_conn_close_locked(conn);
    }
}

// Whether all of them have ended and been told so, and nobody is left who waits for one.
static bool settled(lien_ctx *ctx)
{
    for (struct lieni_node *n = ctx->conns.next; n != &ctx->conns; n = n->next) {
        if (!lieni_container(n, struct lien_conn, node)->closed_done)
            return false;
    }
    return ctx->traces_queued == 0 && lieni_list_empty(&ctx->channels) &&
           lieni_list_empty(&ctx->listeners) && lieni_list_empty(&ctx->dead_listeners) &&
           ctx->inside == 0;
}

// Handles of grants and reads that the application never closed end with the ctx. All are over.
static void drop_handles(lien_ctx *ctx)
{
    struct lieni_node *next, *h;
    for (struct lieni_node *n = ctx->conns.next; n != &ctx->conns; n = next) {
        struct lien_conn *conn = lieni_container(n, struct lien_conn, node);
        next = n->next;
        lieni_conn_ref(conn); // it stays where it is meanwhile
        while ((h = lieni_list_pop(&conn->grant_handles)))
            lieni_grant_unref(lieni_container(h, struct lien_grant, handle));
        while ((h = lieni_list_pop(&conn->read_handles)))
            lieni_read_unref(lieni_container(h, struct lien_read, handle));
        lieni_conn_unref(conn);
    }
}

int lien_ctx_close(lien_ctx **slot)
{
    if (!slot || !*slot)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(*slot))
        return LIEN_EFORK;
    lien_ctx *ctx = *slot;
    int rc = lieni_ctx_outside(ctx);
    if (rc != 0)
        return rc;
    lieni_ctx_lock(ctx);
    if (!ctx->closing)
        lieni_leaks_look(ctx);
    ctx->closing = true;
    close_handles(ctx);
    uint64_t most = ctx->options.linger_ms + ctx->options.drain_ms + 5000;
    uint64_t deadline = lieni_ctx_now(ctx) + most * LIENI_MS;
    while (!settled(ctx) && rc == 0)
        rc = lieni_ctx_wait_locked(ctx, deadline);
    if (rc == LIEN_EDEADLK) { // a simulated world: step it and call again
        lieni_ctx_unlock(ctx);
        return rc;
    }
    if (rc == 0)
        lieni_leaks_say(ctx);
    if (rc == 0)
        drop_handles(ctx);
    else
        lieni_log_say(ctx->log, LIEN_LOG_ERROR, NULL, LIEN_ETIMEDOUT,
                      "connections did not end within %llu ms: the ctx is left behind",
                      (unsigned long long)most);
    lieni_ctx_unlock(ctx);
    *slot = NULL;
    if (rc != 0) {
        lieni_progress_stop(ctx);
        return rc;
    }
    close_parts(ctx);
    lieni_ctx_lock(ctx);
    ctx->dead = true;
    lieni_ctx_unlock(ctx);
    return 0;
}

// -- Asking --

int lien_ctx_stats_get(lien_ctx *ctx, lien_ctx_stats *stats)
{
    if (!ctx || !stats || stats->size < sizeof(stats->size))
        return LIEN_EINVAL;
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    lieni_ctx_lock(ctx);
    lien_ctx_stats now = ctx->stats;
    now.size = stats->size;
    now.payload_bytes_copied = atomic_load(&ctx->copied);
    now.grants_live = ctx->grants_live;
    now.grants_bytes = ctx->held_bytes;
    now.quarantined_bytes = ctx->quarantine.sums.lost;
    now.quarantined_total = ctx->quarantine.ever;
    now.pool_bytes = lieni_mem_bytes_out(ctx->mem);
    now.exposed_bytes = lieni_mem_bytes_exposed(ctx->mem);
    now.log_dropped = lieni_log_dropped(ctx->log);
    now.guard_skipped = lieni_mem_guard_skipped(ctx->mem);
    for (struct lieni_node *n = ctx->conns.next; n != &ctx->conns; n = n->next)
        now.evidence_unknown += lieni_container(n, struct lien_conn, node)->wrs.unknown;
    lieni_ctx_unlock(ctx);
    memcpy(stats, &now, stats->size < sizeof(now) ? stats->size : sizeof(now));
    return 0;
}

int lien_ctx_metrics(lien_ctx *ctx, char **text)
{
    lien_ctx_stats stats = {.size = sizeof(stats)};
    if (!ctx || !text)
        return LIEN_EINVAL;
    int rc = lien_ctx_stats_get(ctx, &stats);
    return rc == 0 ? lieni_metrics_text(&stats, text) : rc;
}
