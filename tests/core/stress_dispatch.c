// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and log under load, for ThreadSanitizer: posters, dispatch threads, a pump for the inline
// strands and a flusher. What a strand's tasks touch is not atomic: two of them at once are a race,
// and a lost, doubled or misplaced run is counted.

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/dispatch.h"
#include "core/log.h"

#define POSTERS 3
#define STRANDS 24
#define ROUNDS  4000

static uint64_t now(void *self)
{
    (void)self;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// One strand and what its tasks see. `next` and `ran` are plain on purpose.
struct lane {
    struct lieni_strand *strand;
    unsigned next[POSTERS]; // number expected from each poster
    unsigned long ran;
    pthread_mutex_t lock; // a poster numbers and posts under it, as under a state lock
    unsigned numbers[POSTERS];
};

struct parcel {
    struct lieni_task task; // first
    struct lane *lane;
    unsigned poster, number;
};

static struct lane lanes[STRANDS];
static struct lieni_dispatch *dispatch;
static struct lieni_log *the_log;
static atomic_uint failures, fresh_runs, wakes;
static atomic_bool over;

static void fail(const char *what)
{
    if (atomic_fetch_add(&failures, 1) < 10) {
        fprintf(stderr, "stress_dispatch: %s\n", what);
    }
}

static void run_parcel(struct lieni_task *task)
{
    struct parcel *p = (struct parcel *)task;
    struct lieni_strand *strand = NULL;
    if (lieni_dispatch_where(dispatch, &strand) == LIENI_ELSEWHERE || strand != p->lane->strand) {
        fail("a task is not where it is");
    }
    if (p->number != p->lane->next[p->poster]++) {
        fail("order lost");
    }
    p->lane->ran++;
    free(p);
}

// A strand that lives for one task, which closes it and frees itself.
struct fresh {
    struct lieni_task task; // first
    struct lieni_strand *strand;
};

static void run_fresh(struct lieni_task *task)
{
    struct fresh *f = (struct fresh *)task;
    lieni_strand_close(f->strand);
    atomic_fetch_add(&fresh_runs, 1);
    free(f);
}

static void post_fresh(bool inline_ok)
{
    struct fresh *f = calloc(1, sizeof *f);
    if (!f || lieni_strand_open(dispatch, inline_ok, &f->strand)) {
        abort();
    }
    f->task.run = run_fresh;
    lieni_strand_post(f->strand, &f->task);
}

static void *poster_main(void *arg)
{
    unsigned poster = *(unsigned *)arg;
    unsigned random = poster + 1;
    for (unsigned round = 0; round < ROUNDS; round++) {
        random = random * 1664525u + 1013904223u;
        struct lane *lane = &lanes[(random >> 8) % STRANDS];
        struct parcel *p = calloc(1, sizeof *p);
        if (!p) {
            abort();
        }
        p->task.run = run_parcel;
        p->lane = lane;
        p->poster = poster;
        pthread_mutex_lock(&lane->lock);
        p->number = lane->numbers[poster]++;
        lieni_strand_post(lane->strand, &p->task);
        pthread_mutex_unlock(&lane->lock);
        if (round % 16 == 0) {
            post_fresh(round % 32 == 0);
            lieni_log_say(the_log, LIEN_LOG_WARN, NULL, 0, "poster %u round %u", poster, round);
        }
        if (round % 64 == 0) {
            lieni_log_flush(the_log);
        }
    }
    return NULL;
}

static void *pump_main(void *arg)
{
    (void)arg;
    while (!atomic_load(&over)) {
        struct timespec t = {.tv_nsec = 200000};
        if (lieni_dispatch_run_inline(dispatch, 50) == 0 && !lieni_dispatch_pending(dispatch)) {
            nanosleep(&t, NULL);
        }
    }
    return NULL;
}

static void count_wake(void *self)
{
    (void)self;
    atomic_fetch_add(&wakes, 1);
}

// Not atomic: the log promises one call at a time.
static unsigned long plain_lines;

static void count_line(const lien_log_line *line, void *arg)
{
    (void)line;
    (void)arg;
    plain_lines++;
}

int main(void)
{
    struct lieni_env env = {.now = now};
    if (lieni_log_open(count_line, NULL, LIEN_LOG_WARN, &the_log) ||
        lieni_dispatch_open(3, &env, the_log, count_wake, NULL, &dispatch)) {
        return 1;
    }
    for (unsigned i = 0; i < STRANDS; i++) {
        pthread_mutex_init(&lanes[i].lock, NULL);
        if (lieni_strand_open(dispatch, i % 3 == 0, &lanes[i].strand)) {
            return 1;
        }
    }
    pthread_t posters[POSTERS], pump;
    unsigned ids[POSTERS];
    pthread_create(&pump, NULL, pump_main, NULL);
    for (unsigned i = 0; i < POSTERS; i++) {
        ids[i] = i;
        pthread_create(&posters[i], NULL, poster_main, &ids[i]);
    }
    for (unsigned i = 0; i < POSTERS; i++) {
        pthread_join(posters[i], NULL);
    }
    for (unsigned i = 0; i < STRANDS; i++) {
        lieni_strand_close(lanes[i].strand);
    }
    atomic_store(&over, true);
    pthread_join(pump, NULL);
    lieni_dispatch_close(dispatch);

    unsigned long ran = 0;
    for (unsigned i = 0; i < STRANDS; i++) {
        ran += lanes[i].ran;
        pthread_mutex_destroy(&lanes[i].lock);
    }
    unsigned long said = (unsigned long)POSTERS * (ROUNDS / 16);
    if (ran != (unsigned long)POSTERS * ROUNDS) {
        fail("tasks lost or run twice");
    }
    if (atomic_load(&fresh_runs) != said) {
        fail("tasks of short-lived strands lost");
    }
    lieni_log_flush(the_log);
    if (plain_lines < said - lieni_log_dropped(the_log)) {
        fail("log lines lost");
    }
    lieni_log_close(the_log);
    printf("stress_dispatch: %lu tasks, %u short strands, %lu log lines, %u wakes\n", ran,
           atomic_load(&fresh_runs), plain_lines, atomic_load(&wakes));
    return atomic_load(&failures) ? 1 : 0;
}
