// SPDX-License-Identifier: Apache-2.0
//
// Strands and the threads that serve them. `lock` guards every mutable field here, of strands and of
// queued tasks too; only the lock of the log may follow it, and no task or wake runs under it. A strand is
// `busy` while it is in a ready queue or one of its tasks runs, so it is in at most one queue and
// served by at most one thread; a strand with tasks is busy; a strand that is not busy and closed
// does not exist. A running task's frame is on the stack of its thread, in the thread's own chain
// (for lieni_dispatch_where) and, for inline strands, in the dispatch's list (for the watchdog).

#include "core/dispatch.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/log.h"

#define NS_PER_MS 1000000u
#define NS_PER_S  1000000000u

struct lieni_strand {
    struct lieni_dispatch *dispatch;
    struct lieni_task *head, *tail;
    struct lieni_strand *next; // in a ready queue
    uint64_t conn;             // for the log, or 0
    bool inline_ok;
    bool busy;
    bool closed;
};

struct ready_queue {
    struct lieni_strand *head, *tail;
};

// One task that runs now.
struct frame {
    struct frame *outer; // what this thread was in before
    struct lieni_dispatch *dispatch;
    struct lieni_strand *strand;
    enum lieni_where where;
    struct frame *watch_next; // inline only, as are the rest
    uint64_t since;           // ns
    bool named;
};

struct lieni_dispatch {
    struct lieni_env env;
    struct lieni_log *log;
    void (*wake)(void *self);
    void *wake_self;
    unsigned n_threads; // 0: app-driven

    pthread_mutex_t lock;
    struct ready_queue threaded; // for the dispatch threads
    struct ready_queue pumped;   // for lieni_dispatch_run and lieni_dispatch_run_inline
    pthread_cond_t work;         // threaded has work, or stopping
    atomic_uint owed;            // strands that became ready, of which `work` was not told yet
    pthread_cond_t settled;      // while closing: pumped has work, or nothing is busy any more
    unsigned n_busy;             // strands that are busy
    unsigned n_strands;
    bool closing;  // lieni_dispatch_close began
    bool stopping; // the threads end

    struct frame *watched;     // inline tasks that run
    pthread_cond_t watch;      // monotonic clock
    bool watchdog_here;        // its thread was started
    bool watchdog_idle;        // it sleeps without a time limit
    pthread_t watchdog_thread; // if watchdog_here
    pthread_t threads[];
};

static _Thread_local struct frame *innermost;

// -- Queues (all under the lock) ---------------------------------------------------------------------------------------------------

static struct ready_queue *queue_of(struct lieni_strand *s)
{
    struct lieni_dispatch *d = s->dispatch;
    return d->n_threads == 0 || s->inline_ok ? &d->pumped : &d->threaded;
}

static void push_ready(struct ready_queue *q, struct lieni_strand *s)
{
    s->next = NULL;
    if (q->tail) {
        q->tail->next = s;
    } else {
        q->head = s;
    }
    q->tail = s;
}

static struct lieni_strand *pop_ready(struct ready_queue *q)
{
    struct lieni_strand *s = q->head;
    if (s) {
        q->head = s->next;
        if (!q->head) {
            q->tail = NULL;
        }
        s->next = NULL;
    }
    return s;
}

static struct lieni_task *pop_task(struct lieni_strand *s)
{
    struct lieni_task *t = s->head;
    s->head = t->next;
    if (!s->head) {
        s->tail = NULL;
    }
    t->next = NULL;
    t->queued = false;
    return t;
}

static void free_strand(struct lieni_strand *s)
{
    s->dispatch->n_strands--;
    free(s);
}

// The strand's turn is over: to the end of its queue, or idle, or gone.
static void end_turn(struct lieni_strand *s)
{
    struct lieni_dispatch *d = s->dispatch;
    if (s->head) {
        push_ready(queue_of(s), s);
        if (d->closing) {
            pthread_cond_signal(&d->settled);
        }
        return;
    }
    s->busy = false;
    d->n_busy--;
    if (s->closed) {
        free_strand(s);
    }
    if (d->closing && d->n_busy == 0) {
        pthread_cond_signal(&d->settled);
    }
}

// -- Watchdog ----------------------------------------------------------------------------------------------------------------------

// The task begins: the watchdog, if it sleeps for good, begins to count. If it does not it sleeps no
// longer than until this one could be late, so most inline tasks cost no system call. Under the lock.
static void watch_begin(struct frame *f)
{
    struct lieni_dispatch *d = f->dispatch;
    f->since = d->env.now(d->env.self);
    f->watch_next = d->watched;
    d->watched = f;
    if (d->watchdog_idle) {
        d->watchdog_idle = false;
        pthread_cond_signal(&d->watch);
    }
}

// Returns for how many ms a task ran that the watchdog should have named and did not, else 0. Under
// the lock.
static uint64_t watch_end(struct frame *f)
{
    struct frame **at = &f->dispatch->watched;
    while (*at != f) {
        at = &(*at)->watch_next;
    }
    *at = f->watch_next;
    uint64_t ran = f->dispatch->env.now(f->dispatch->env.self) - f->since;
    return !f->named && ran > (uint64_t)LIENI_INLINE_MAX_MS * NS_PER_MS ? ran / NS_PER_MS : 0;
}

// The task in `watched` that began first and is not named yet, or NULL.
static struct frame *next_to_name(struct lieni_dispatch *d)
{
    struct frame *first = NULL;
    for (struct frame *f = d->watched; f; f = f->watch_next) {
        if (!f->named && (!first || f->since < first->since)) {
            first = f;
        }
    }
    return first;
}

// Sleeps for `ns`, or until woken. Under the lock, which it gives up meanwhile.
static void watch_sleep(struct lieni_dispatch *d, uint64_t ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(ns / NS_PER_S);
    until.tv_nsec = (long)(ns % NS_PER_S);
    pthread_cond_timedwait(&d->watch, &d->lock, &until);
}

static void say_slow(struct lieni_dispatch *d, uint64_t conn, uint64_t ms, bool still)
{
    struct lieni_log_at at = {.conn = conn};
    lieni_log_say(d->log, LIEN_LOG_WARN, &at, 0,
                  "an inline callback (LIEN_INLINE) %s %llu ms, the limit is %d ms: it blocks "
                  "the progress of all connections",
                  still ? "runs and has not returned for" : "ran for", (unsigned long long)ms,
                  LIENI_INLINE_MAX_MS);
}

static void *watchdog_main(void *arg)
{
    struct lieni_dispatch *d = arg;
    uint64_t limit = (uint64_t)LIENI_INLINE_MAX_MS * NS_PER_MS;
    pthread_mutex_lock(&d->lock);
    while (!d->stopping) {
        struct frame *f = next_to_name(d);
        if (!f) {
            d->watchdog_idle = true;
            pthread_cond_wait(&d->watch, &d->lock);
            continue;
        }
        uint64_t ran = d->env.now(d->env.self) - f->since;
        if (ran <= limit) {
            watch_sleep(d, limit - ran + 1);
            continue;
        }
        f->named = true;
        uint64_t conn = f->strand->conn;
        pthread_mutex_unlock(&d->lock);
        say_slow(d, conn, ran / NS_PER_MS, true);
        lieni_log_flush(d->log);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

// -- Running -----------------------------------------------------------------------------------------------------------------------

// Runs one task of `s`, which was just taken from its queue. The lock is held at both ends, not
// while the task runs; the task's object may be gone afterwards, and the strand after end_turn().
static void run_one(struct lieni_dispatch *d, struct lieni_strand *s, enum lieni_where where)
{
    struct lieni_task *task = pop_task(s);
    struct frame frame = {.outer = innermost, .dispatch = d, .strand = s, .where = where};
    uint64_t conn = s->conn, slow = 0;
    bool watched = s->inline_ok;
    if (watched) {
        watch_begin(&frame);
    }
    pthread_mutex_unlock(&d->lock);

    innermost = &frame;
    task->run(task);
    innermost = frame.outer;

    pthread_mutex_lock(&d->lock);
    if (watched) {
        slow = watch_end(&frame);
    }
    end_turn(s);
    if (slow) {
        pthread_mutex_unlock(&d->lock);
        say_slow(d, conn, slow, false);
        pthread_mutex_lock(&d->lock);
    }
}

static void *thread_main(void *arg)
{
    struct lieni_dispatch *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        struct lieni_strand *s = pop_ready(&d->threaded);
        if (s) {
            run_one(d, s, LIENI_IN_DISPATCH);
        } else if (d->stopping) {
            break;
        } else {
            pthread_cond_wait(&d->work, &d->lock);
        }
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static unsigned pump(struct lieni_dispatch *d, unsigned max)
{
    unsigned ran = 0;
    if (lieni_dispatch_where(d, NULL) != LIENI_ELSEWHERE) {
        return 0;
    }
    pthread_mutex_lock(&d->lock);
    while (ran < max) {
        struct lieni_strand *s = pop_ready(&d->pumped);
        if (!s) {
            break;
        }
        run_one(d, s, LIENI_IN_PROGRESS);
        ran++;
    }
    pthread_mutex_unlock(&d->lock);
    return ran;
}

unsigned lieni_dispatch_run(struct lieni_dispatch *dispatch, unsigned max)
{
    return pump(dispatch, max);
}

unsigned lieni_dispatch_run_inline(struct lieni_dispatch *dispatch, unsigned max)
{
    return pump(dispatch, max);
}

bool lieni_dispatch_pending(struct lieni_dispatch *dispatch)
{
    pthread_mutex_lock(&dispatch->lock);
    bool pending = dispatch->pumped.head != NULL;
    pthread_mutex_unlock(&dispatch->lock);
    return pending;
}

enum lieni_where lieni_dispatch_where(struct lieni_dispatch *dispatch, struct lieni_strand **strand)
{
    for (const struct frame *f = innermost; f; f = f->outer) {
        if (f->dispatch == dispatch) {
            if (strand) {
                *strand = f->strand;
            }
            return f->where;
        }
    }
    return LIENI_ELSEWHERE;
}

// -- Strands -----------------------------------------------------------------------------------------------------------------------

int lieni_thread_start(const char *name, void *(*main)(void *), void *arg, pthread_t *thread)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        sigdelset(&all, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        pthread_setname_np(*thread, name);
    }
    return error;
}

static int start_thread(struct lieni_dispatch *d, void *(*main)(void *), const char *name,
                        pthread_t *thread)
{
    int error = lieni_thread_start(name, main, d, thread);
    if (error) {
        char hint[LIENI_LIMITS_NOTE];
        lieni_log_say(d->log, LIEN_LOG_ERROR, NULL, LIEN_ESYS, "cannot start thread %s: %s%s", name,
                      strerrordesc_np(error), lieni_limits_thread(error, hint, sizeof hint));
        return LIEN_ESYS;
    }
    return 0;
}

// The watchdog's thread, once, for the first inline strand of a threaded dispatch. Under the lock.
static int need_watchdog(struct lieni_dispatch *d)
{
    if (d->n_threads == 0 || d->watchdog_here) {
        return 0;
    }
    int status = start_thread(d, watchdog_main, "lien-watchdog", &d->watchdog_thread);
    d->watchdog_here = status == 0;
    return status;
}

int lieni_strand_open(struct lieni_dispatch *dispatch, bool inline_ok, struct lieni_strand **strand)
{
    struct lieni_strand *s = calloc(1, sizeof *s);
    if (!s) {
        return LIEN_ENOMEM;
    }
    s->dispatch = dispatch;
    s->inline_ok = inline_ok;
    pthread_mutex_lock(&dispatch->lock);
    int status = inline_ok ? need_watchdog(dispatch) : 0;
    if (status == 0) {
        dispatch->n_strands++;
    }
    pthread_mutex_unlock(&dispatch->lock);
    if (status) {
        free(s);
        return status;
    }
    *strand = s;
    return 0;
}

void lieni_strand_conn(struct lieni_strand *strand, uint64_t conn)
{
    strand->conn = conn;
}

void lieni_strand_close(struct lieni_strand *strand)
{
    struct lieni_dispatch *d = strand->dispatch;
    pthread_mutex_lock(&d->lock);
    assert(!strand->closed);
    strand->closed = true;
    if (!strand->busy) {
        free_strand(strand);
    }
    pthread_mutex_unlock(&d->lock);
}

// The strand has its first task: into its queue. True: someone may sleep in progress. Under the lock.
static bool make_ready(struct lieni_strand *s)
{
    struct lieni_dispatch *d = s->dispatch;
    struct ready_queue *q = queue_of(s);
    bool was_empty = q->head == NULL;
    s->busy = true;
    d->n_busy++;
    push_ready(q, s);
    if (q == &d->threaded) {
        atomic_fetch_add_explicit(&d->owed, 1, memory_order_relaxed);
        return false;
    }
    if (d->closing) {
        pthread_cond_signal(&d->settled);
    }
    return was_empty;
}

void lieni_dispatch_wake(struct lieni_dispatch *dispatch)
{
    struct lieni_dispatch *d = dispatch;
    if (atomic_load_explicit(&d->owed, memory_order_relaxed) == 0) {
        return;
    }
    // Without the lock, or who wakes would wait for it at once.
    for (unsigned n = atomic_exchange(&d->owed, 0); n > 0; n--) {
        pthread_cond_signal(&d->work);
    }
}

void lieni_strand_post(struct lieni_strand *strand, struct lieni_task *task)
{
    struct lieni_dispatch *d = strand->dispatch; // the strand may be gone once its task can run
    lieni_strand_queue(strand, task);
    lieni_dispatch_wake(d);
}

void lieni_strand_queue(struct lieni_strand *strand, struct lieni_task *task)
{
    struct lieni_dispatch *d = strand->dispatch;
    bool wake = false;
    pthread_mutex_lock(&d->lock);
    if (!task->queued) {
        assert(!strand->closed);
        task->queued = true;
        task->next = NULL;
        if (strand->tail) {
            strand->tail->next = task;
        } else {
            strand->head = task;
        }
        strand->tail = task;
        if (!strand->busy) {
            wake = make_ready(strand);
        }
    }
    pthread_mutex_unlock(&d->lock);
    if (wake && d->wake) {
        d->wake(d->wake_self);
    }
}

// -- Opening and closing -----------------------------------------------------------------------------------------------------------

// Stops and joins the first `n` dispatch threads and the watchdog, and frees.
static void stop(struct lieni_dispatch *d, unsigned n)
{
    pthread_mutex_lock(&d->lock);
    d->stopping = true;
    pthread_cond_broadcast(&d->work);
    pthread_cond_broadcast(&d->watch);
    pthread_mutex_unlock(&d->lock);
    for (unsigned i = 0; i < n; i++) {
        pthread_join(d->threads[i], NULL);
    }
    if (d->watchdog_here) {
        pthread_join(d->watchdog_thread, NULL);
    }
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->settled);
    pthread_cond_destroy(&d->watch);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

int lieni_dispatch_open(unsigned threads, const struct lieni_env *env, struct lieni_log *log,
                        void (*wake)(void *self), void *wake_self, struct lieni_dispatch **dispatch)
{
    struct lieni_dispatch *d = calloc(1, sizeof *d + threads * sizeof d->threads[0]);
    if (!d) {
        return LIEN_ENOMEM;
    }
    d->env = *env;
    d->log = log;
    d->wake = wake;
    d->wake_self = wake_self;
    d->n_threads = threads;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->settled, NULL);
    pthread_cond_init(&d->watch, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (unsigned i = 0; i < threads; i++) {
        int status = start_thread(d, thread_main, "lien-dispatch", &d->threads[i]);
        if (status) {
            stop(d, i);
            return status;
        }
    }
    *dispatch = d;
    return 0;
}

void lieni_dispatch_close(struct lieni_dispatch *dispatch)
{
    struct lieni_dispatch *d = dispatch;
    assert(lieni_dispatch_where(d, NULL) == LIENI_ELSEWHERE);
    pthread_mutex_lock(&d->lock);
    d->closing = true;
    while (d->n_busy > 0) {
        struct lieni_strand *s = pop_ready(&d->pumped);
        if (s) {
            run_one(d, s, LIENI_IN_PROGRESS);
        } else {
            pthread_cond_wait(&d->settled, &d->lock);
        }
    }
    assert(d->n_strands == 0);
    pthread_mutex_unlock(&d->lock);
    stop(d, d->n_threads);
}
