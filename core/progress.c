// SPDX-License-Identifier: Apache-2.0
//
// Progress: one pass polls net and providers without the state lock, then handles what came, timers and waiting work under it. A thread of the ctx's runs passes and sleeps in
// between on one epoll descriptor; an app-driven ctx gives that descriptor to the application. Nothing wakes on an idle machine but timers.

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "core/channel.h"
#include "core/conn.h"
#include "core/listener.h"
#include "core/providers.h"

#define EVENTS 128u
#define TASKS  256u // callbacks of one pass

// Passes of the thread in a row without a look at the descriptor, while there is work.
#define BUSY_MAX 4u

// What the descriptor reported: a set.
#define READY_WAKE  1u
#define READY_TIMER 2u
#define READY_NET   4u
#define READY_PROV  8u
#define READY_ALL   15u

static void on_net_events(const struct lieni_net_event *evs, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        const int *object = evs[i].user;
        if (*object == LIENI_OBJECT_CONN)
            lieni_conn_on_net(evs[i].user, &evs[i]);
        else if (evs[i].kind == LIENI_NET_ACCEPTED)
            lieni_listener_accepted(evs[i].user, evs[i].stream);
    }
}

static void on_events(const struct lieni_event *evs, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct lien_conn *conn = evs[i].user;
        switch (evs[i].kind) {
        case LIENI_EV_UP:
            lieni_conn_on_up(conn);
            break;
        case LIENI_EV_FAILED:
            lieni_conn_lose(conn, evs[i].status, "fabric connection");
            break;
        case LIENI_EV_DOWN:
            lieni_conn_on_down(conn, evs[i].status);
            break;
        case LIENI_EV_ENTRY:
            lieni_conn_on_entry(conn, &evs[i].cqe);
            break;
        }
    }
}

unsigned lieni_progress_bury(lien_ctx *ctx)
{
    struct lieni_node *n;
    unsigned done = 0;
    for (; (n = lieni_list_pop(&ctx->graveyard)); done++)
        lieni_conn_free(lieni_container(n, struct lien_conn, node));
    for (; (n = lieni_list_pop(&ctx->dead_listeners)); done++)
        lieni_listener_free(lieni_container(n, struct lien_listener, node));
    if (done > 0)
        lieni_ctx_changed(ctx); // lien_ctx_close
    return done;
}

// Whether a handshake begins with one of these.
static bool begin_connections(const struct lieni_net_event *evs, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (evs[i].kind == LIENI_NET_CONNECTED || evs[i].kind == LIENI_NET_ACCEPTED)
            return true;
    }
    return false;
}

static unsigned poll_net(lien_ctx *ctx)
{
    struct lieni_net_event evs[EVENTS];
    unsigned n = ctx->platform.net->poll(ctx->net, evs, EVENTS);
    ctx->net_again = n > 0; // until it has no more
    if (n == 0)
        return 0;
    if (begin_connections(evs, n))
        lieni_providers_look(ctx);
    lieni_ctx_lock(ctx);
    on_net_events(evs, n);
    lieni_ctx_unlock(ctx);
    return n;
}

static unsigned poll_provider(lien_ctx *ctx, const struct lieni_prov_slot *slot)
{
    struct lieni_event evs[EVENTS];
    unsigned n = slot->ops->poll(slot->prov, evs, EVENTS);
    if (n == 0)
        return 0;
    lieni_ctx_lock(ctx);
    on_events(evs, n);
    lieni_ctx_unlock(ctx);
    return n;
}

// What is on the list now; work that comes back at once waits for the next pass.
static unsigned do_work(lien_ctx *ctx)
{
    struct lieni_node batch;
    unsigned done = 0;
    lieni_list_init(&batch);
    struct lieni_node *n;
    while ((n = lieni_list_pop(&ctx->work)))
        lieni_list_append(&batch, n);
    while ((n = lieni_list_pop(&batch))) {
        struct lien_conn *conn = lieni_container(n, struct lien_conn, work);
        lieni_conn_ref(conn);
        lieni_conn_work(conn);
        lieni_conn_unref(conn);
        done++;
    }
    while ((n = lieni_list_pop(&ctx->channel_work)))
        lieni_list_append(&batch, n);
    while ((n = lieni_list_pop(&batch))) {
        struct lien_channel *channel = lieni_container(n, struct lien_channel, work);
        channel->refs++;
        lieni_channel_work(channel);
        lieni_channel_unref(channel);
        done++;
    }
    return done;
}

static unsigned run_tasks(lien_ctx *ctx)
{
    return ctx->app_driven ? lieni_dispatch_run(ctx->dispatch, TASKS)
                           : lieni_dispatch_run_inline(ctx->dispatch, TASKS);
}

static void clear_fd(int fd)
{
    uint64_t count;
    if (read(fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
        return;
}

// What is ready: waits for it up to `timeout_ms` (-1: for ever).
static unsigned look(const lien_ctx *ctx, int timeout_ms)
{
    struct epoll_event evs[LIENI_PROVS_MAX + 3];
    unsigned ready = 0;
    if (ctx->epoll_fd < 0)
        return READY_NET | READY_PROV; // a simulated world
    int n = epoll_wait(ctx->epoll_fd, evs, LIENI_PROVS_MAX + 3, timeout_ms);
    for (int i = 0; i < n; i++)
        ready |= evs[i].data.u32;
    return ready;
}

static _Thread_local const lien_ctx *in_pass;

static _Thread_local const lien_ctx *thread_of;

bool lieni_progress_thread(const lien_ctx *ctx)
{
    return thread_of == ctx;
}

bool lieni_progress_here(const lien_ctx *ctx)
{
    return in_pass == ctx;
}

// `ready` may lack what came since; then the descriptor reports it before anybody sleeps.
static unsigned pass(lien_ctx *ctx, unsigned ready)
{
    const lien_ctx *outer = in_pass;
    in_pass = ctx;
    if (ready & READY_TIMER)
        clear_fd(ctx->timer_fd);
    lieni_ctx_lock(ctx);
    // Not from under a thread that sleeps on the descriptor in wait_driven() and was not scheduled yet: it would sleep on.
    if ((ready & READY_WAKE) && !(ctx->app_driven && ctx->waiters > 0))
        clear_fd(ctx->wake_fd);
    unsigned done = lieni_progress_bury(ctx);
    lieni_ctx_unlock(ctx);
    if ((ready & READY_NET) || ctx->net_again)
        done += poll_net(ctx);
    // Always: what waits there needs no descriptor to say so.
    for (unsigned i = 0; i < ctx->n_provs; i++)
        done += poll_provider(ctx, &ctx->provs[i]);
    lieni_ctx_lock(ctx);
    done += lieni_timers_run(&ctx->timers, lieni_ctx_now(ctx));
    done += do_work(ctx);
    lieni_nics_reap(ctx, false);
    lieni_ctx_unlock(ctx);
    in_pass = outer;
    return done;
}

unsigned lieni_progress_pass(lien_ctx *ctx)
{
    pthread_mutex_lock(&ctx->turn);
    unsigned done = pass(ctx, look(ctx, 0));
    pthread_mutex_unlock(&ctx->turn);
    return done + run_tasks(ctx);
}

// -- Sleeping --

static bool work_waits(lien_ctx *ctx)
{
    return ctx->stop || !lieni_list_empty(&ctx->work) || !lieni_list_empty(&ctx->channel_work) ||
           !lieni_list_empty(&ctx->graveyard) || !lieni_list_empty(&ctx->dead_listeners);
}

void lieni_progress_set_timer(lien_ctx *ctx, uint64_t when)
{
    ctx->armed = when;
    if (ctx->timer_fd < 0)
        return;
    struct itimerspec at = {0};
    if (when != UINT64_MAX) {
        at.it_value.tv_sec = (time_t)(when / 1000000000u);
        at.it_value.tv_nsec = (long)(when % 1000000000u);
        if (when == 0)
            at.it_value.tv_nsec = 1;
    }
    timerfd_settime(ctx->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

int lieni_progress_arm(lien_ctx *ctx)
{
    pthread_mutex_lock(&ctx->turn);
    int rc = ctx->platform.net->arm(ctx->net);
    ctx->net_again = ctx->net_again || rc != 0;
    for (unsigned i = 0; rc == 0 && i < ctx->n_provs; i++)
        rc = ctx->provs[i].ops->arm(ctx->provs[i].prov);
    lieni_ctx_lock(ctx);
    if (rc == 0 && (work_waits(ctx) || lieni_dispatch_pending(ctx->dispatch)))
        rc = LIEN_EAGAIN;
    uint64_t next = lieni_timers_next(&ctx->timers);
    if (rc == 0 && next <= lieni_ctx_now(ctx))
        rc = LIEN_EAGAIN;
    if (rc == 0 && next != ctx->armed)
        lieni_progress_set_timer(ctx, next);
    lieni_ctx_unlock(ctx);
    pthread_mutex_unlock(&ctx->turn);
    return rc;
}

// Asks whether it may sleep after every pass, also one with events: being told so costs less than a pass that finds nothing.
static void *run(void *arg)
{
    lien_ctx *ctx = arg;
    thread_of = ctx;
    unsigned ready = READY_ALL, busy = 0;
    while (!atomic_load(&ctx->stop)) {
        pthread_mutex_lock(&ctx->turn);
        pass(ctx, ready);
        pthread_mutex_unlock(&ctx->turn);
        run_tasks(ctx);
        bool sleep = lieni_progress_arm(ctx) == 0;
        if (sleep || ++busy >= BUSY_MAX) {
            busy = 0;
            ready = look(ctx, sleep ? -1 : 0);
        } else {
            ready = 0; // timers and providers are served all the same
        }
    }
    return NULL;
}

// -- Opening and closing --

static int watch(lien_ctx *ctx, int fd, uint32_t ready)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = ready};
    return epoll_ctl(ctx->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0 ? 0 : LIEN_ESYS;
}

int lieni_progress_open(lien_ctx *ctx)
{
    if (ctx->platform.net->fd(ctx->net) < 0)
        return 0; // a simulated world: it is stepped, never slept on
    ctx->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    ctx->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    ctx->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (ctx->epoll_fd < 0 || ctx->wake_fd < 0 || ctx->timer_fd < 0) {
        char hint[LIENI_LIMITS_NOTE];
        const int error = errno;
        lieni_log_say(ctx->log, LIEN_LOG_ERROR, NULL, LIEN_ESYS, "descriptors of progress: %s%s",
                      strerror(error), lieni_limits_note(error, hint, sizeof(hint)));
        return LIEN_ESYS;
    }
    int rc = watch(ctx, ctx->wake_fd, READY_WAKE);
    if (rc == 0)
        rc = watch(ctx, ctx->timer_fd, READY_TIMER);
    if (rc == 0)
        rc = watch(ctx, ctx->platform.net->fd(ctx->net), READY_NET);
    for (unsigned i = 0; rc == 0 && i < ctx->n_provs; i++)
        rc = watch(ctx, ctx->provs[i].ops->fd(ctx->provs[i].prov), READY_PROV);
    if (rc != 0 || ctx->app_driven)
        return rc;
    const int error = lieni_thread_start("lien-progress", run, ctx, &ctx->thread);
    if (error != 0) {
        char hint[LIENI_LIMITS_NOTE];
        lieni_log_say(ctx->log, LIEN_LOG_ERROR, NULL, LIEN_ESYS,
                      "the progress thread cannot be started: %s%s", strerror(error),
                      lieni_limits_thread(error, hint, sizeof(hint)));
        return LIEN_ESYS;
    }
    ctx->thread_started = true;
    return 0;
}

void lieni_progress_stop(lien_ctx *ctx)
{
    if (!ctx->thread_started)
        return;
    atomic_store(&ctx->stop, true);
    lieni_ctx_wake(ctx);
    pthread_join(ctx->thread, NULL);
    ctx->thread_started = false;
}

void lieni_progress_close(lien_ctx *ctx)
{
    int *fds[] = {&ctx->epoll_fd, &ctx->wake_fd, &ctx->timer_fd};
    for (unsigned i = 0; i < 3; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

int lien_ctx_fd(lien_ctx *ctx, int *fd)
{
    if (!ctx || !fd)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    if (!ctx->app_driven || ctx->epoll_fd < 0)
        return LIEN_ESTATE;
    *fd = ctx->epoll_fd;
    return 0;
}

int lien_ctx_arm(lien_ctx *ctx)
{
    if (!ctx)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    return ctx->app_driven ? lieni_progress_arm(ctx) : LIEN_ESTATE;
}

int lien_ctx_progress(lien_ctx *ctx)
{
    if (!ctx)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    if (!ctx->app_driven)
        return LIEN_ESTATE;
    if (lieni_dispatch_where(ctx->dispatch, NULL) != LIENI_ELSEWHERE)
        return LIEN_EDEADLK;
    lieni_progress_pass(ctx);
    return 0;
}
