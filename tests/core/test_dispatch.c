// SPDX-License-Identifier: Apache-2.0
//
// Strands and tasks: order, turns, ends, where(), wake and the watchdog (R5). Threads meet at
// semaphores with a limit, so nothing here depends on how long anything sleeps, but for the
// watchdog's own 100 ms.

#include <criterion/criterion.h>
#include <dirent.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/dispatch.h"
#include "core/log.h"

#define MS 1000000u

static uint64_t real_now(void *self)
{
    (void)self;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static const struct lieni_env real_env = {.now = real_now};

static uint64_t fake_time = 1;
static uint64_t fake_now(void *self)
{
    (void)self;
    return fake_time;
}
static const struct lieni_env fake_env = {.now = fake_now};

// The log of a test: the last line, how many, and a semaphore posted for each.
static struct {
    atomic_uint n;
    lien_log_line last;
    char text[LIENI_LOG_TEXT];
    sem_t said;
} heard;

static void hear(const lien_log_line *line, void *arg)
{
    (void)arg;
    heard.last = *line;
    snprintf(heard.text, sizeof heard.text, "%s", line->text);
    atomic_fetch_add(&heard.n, 1);
    sem_post(&heard.said);
}

static atomic_uint wakes;
static void wake(void *self)
{
    cr_assert_eq(self, &wakes);
    atomic_fetch_add(&wakes, 1);
}

static struct lieni_log *the_log;

static struct lieni_dispatch *open_dispatch(unsigned threads, const struct lieni_env *env)
{
    struct lieni_dispatch *d = NULL;
    if (!the_log) {
        sem_init(&heard.said, 0, 0);
        cr_assert_eq(lieni_log_open(hear, NULL, LIEN_LOG_DEBUG, &the_log), 0);
    }
    cr_assert_eq(lieni_dispatch_open(threads, env, the_log, wake, &wakes, &d), 0);
    return d;
}

static struct lieni_strand *open_strand(struct lieni_dispatch *d, bool inline_ok)
{
    struct lieni_strand *s = NULL;
    cr_assert_eq(lieni_strand_open(d, inline_ok, &s), 0);
    return s;
}

static bool wait_for(sem_t *sem)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    return sem_timedwait(sem, &until) == 0;
}

// A task with a letter, written to a trace as it runs, and a step of its own.
struct job {
    struct lieni_task task; // first
    char letter;
    void (*step)(struct job *job);
    struct lieni_dispatch *dispatch;
    struct lieni_strand *strand;
    struct job *other;
    enum lieni_where where;
    struct lieni_strand *where_strand;
    sem_t *begun, *go;
    unsigned runs;
};
static char trace[64];

static void run_job(struct lieni_task *task)
{
    struct job *job = (struct job *)task;
    job->runs++;
    if (job->letter) {
        size_t len = strlen(trace);
        trace[len] = job->letter;
    }
    if (job->dispatch) {
        job->where = lieni_dispatch_where(job->dispatch, &job->where_strand);
    }
    if (job->step) {
        job->step(job);
    }
}

static void fill_jobs(struct job *jobs, size_t n, char first)
{
    memset(jobs, 0, n * sizeof *jobs);
    for (size_t i = 0; i < n; i++) {
        jobs[i].task.run = run_job;
        jobs[i].letter = first ? (char)(first + (char)i) : '\0';
    }
}

Test(dispatch, app_driven_takes_strands_in_turn_and_at_most_max)
{
    struct lieni_dispatch *d = open_dispatch(0, &real_env);
    struct lieni_strand *s[2] = {open_strand(d, false), open_strand(d, true)};
    struct job upper[4], lower[2];
    fill_jobs(upper, 4, 'A');
    fill_jobs(lower, 2, 'a');
    cr_assert(!lieni_dispatch_pending(d));
    for (int i = 0; i < 4; i++) {
        lieni_strand_post(s[0], &upper[i].task);
        lieni_strand_post(s[0], &upper[i].task); // queued already: stays as it is
    }
    lieni_strand_post(s[1], &lower[0].task);
    lieni_strand_post(s[1], &lower[1].task);
    cr_assert_eq(atomic_load(&wakes), 1, "wake is for an empty queue only");
    cr_assert(lieni_dispatch_pending(d));
    cr_assert_eq(lieni_dispatch_run(d, 0), 0);
    cr_assert_eq(lieni_dispatch_run(d, 5), 5);
    cr_assert_str_eq(trace, "AaBbC");
    cr_assert(lieni_dispatch_pending(d));
    cr_assert_eq(lieni_dispatch_run(d, 100), 1);
    cr_assert_str_eq(trace, "AaBbCD");
    cr_assert(!lieni_dispatch_pending(d));
    lieni_strand_post(s[0], &upper[0].task);
    cr_assert_eq(atomic_load(&wakes), 2);
    lieni_strand_close(s[0]);
    lieni_strand_close(s[1]);
    lieni_dispatch_close(d);
    cr_assert_str_eq(trace, "AaBbCDA", "close runs what is queued");
}

static void post_again(struct job *job)
{
    if (job->runs < 3) {
        lieni_strand_post(job->strand, &job->task);
    }
}

Test(dispatch, a_task_may_post_itself)
{
    struct lieni_dispatch *d = open_dispatch(0, &real_env);
    struct job job;
    fill_jobs(&job, 1, 'A');
    job.strand = open_strand(d, false);
    job.step = post_again;
    lieni_strand_post(job.strand, &job.task);
    cr_assert_eq(lieni_dispatch_run(d, 100), 3);
    lieni_strand_close(job.strand);
    lieni_dispatch_close(d);
}

static unsigned chain_ended;

// Each link opens the next, on a strand of its own, and is gone: object, strand and all.
static void run_link(struct lieni_task *task)
{
    struct job *job = (struct job *)task;
    if (job->runs > 0) {
        struct job *next = calloc(1, sizeof *next);
        next->task.run = run_link;
        next->runs = job->runs - 1;
        next->dispatch = job->dispatch;
        next->strand = open_strand(job->dispatch, next->runs % 2 == 0);
        lieni_strand_post(next->strand, &next->task);
    } else {
        chain_ended++;
    }
    lieni_strand_close(job->strand);
    free(job);
}

static void close_runs_a_chain(unsigned threads)
{
    chain_ended = 0;
    struct lieni_dispatch *d = open_dispatch(threads, &real_env);
    struct job *job = calloc(1, sizeof *job);
    job->task.run = run_link;
    job->runs = 101;
    job->dispatch = d;
    job->strand = open_strand(d, false);
    lieni_strand_post(job->strand, &job->task);
    lieni_dispatch_close(d); // with threads: links alternate between a thread and this call
    cr_assert_eq(chain_ended, 1);
}

Test(dispatch, close_runs_what_tasks_post_and_tasks_may_free_all)
{
    close_runs_a_chain(0);
    close_runs_a_chain(1);
    close_runs_a_chain(3);
}

static void meet(struct job *job)
{
    sem_post(job->begun);
    cr_assert(wait_for(job->go), "the other strand did not run meanwhile");
}

Test(dispatch, two_threads_run_two_strands_at_once)
{
    struct lieni_dispatch *d = open_dispatch(2, &real_env);
    struct job jobs[2];
    sem_t sems[2];
    fill_jobs(jobs, 2, '\0');
    for (int i = 0; i < 2; i++) {
        sem_init(&sems[i], 0, 0);
        jobs[i].strand = open_strand(d, false);
        jobs[i].step = meet;
        jobs[i].begun = &sems[i];
        jobs[i].go = &sems[1 - i];
    }
    for (int i = 0; i < 2; i++) {
        lieni_strand_post(jobs[i].strand, &jobs[i].task);
        lieni_strand_close(jobs[i].strand);
    }
    lieni_dispatch_close(d);
    cr_assert_eq(jobs[0].runs + jobs[1].runs, 2);
}

// -- where() -----------------------------------------------------------------------------------------------------------------------

Test(dispatch, where_names_thread_and_strand)
{
    struct lieni_dispatch *d = open_dispatch(1, &real_env);
    struct lieni_strand *none = (struct lieni_strand *)&trace;
    struct job jobs[2];
    fill_jobs(jobs, 2, '\0');
    for (int i = 0; i < 2; i++) {
        jobs[i].dispatch = d;
        jobs[i].strand = open_strand(d, i == 1);
        lieni_strand_post(jobs[i].strand, &jobs[i].task);
    }
    cr_assert_eq(lieni_dispatch_where(d, &none), LIENI_ELSEWHERE);
    cr_assert_eq(none, (struct lieni_strand *)&trace, "written though elsewhere");
    cr_assert_eq(lieni_dispatch_run_inline(d, 9), 1, "only the inline strand's");
    cr_assert_eq(jobs[1].where, LIENI_IN_PROGRESS);
    cr_assert_eq(jobs[1].where_strand, jobs[1].strand);
    cr_assert_eq(lieni_dispatch_where(d, NULL), LIENI_ELSEWHERE);
    lieni_strand_close(jobs[0].strand);
    lieni_strand_close(jobs[1].strand);
    lieni_dispatch_close(d);
    cr_assert_eq(jobs[0].where, LIENI_IN_DISPATCH);
    cr_assert_eq(jobs[0].where_strand, jobs[0].strand);
}

static unsigned nested_ran;

// In a task of the outer ctx: drives the inner one, and may not drive its own.
static void drive_other(struct job *job)
{
    cr_assert_eq(lieni_dispatch_run(job->dispatch, 9), 0, "a task drove its own ctx");
    lieni_strand_post(job->other->strand, &job->other->task);
    nested_ran = lieni_dispatch_run(job->other->other->dispatch, 9);
}

static void nested(unsigned outer_threads, enum lieni_where expect)
{
    struct lieni_dispatch *outer = open_dispatch(outer_threads, &real_env);
    struct lieni_dispatch *inner = open_dispatch(0, &real_env);
    struct job job, in, self;
    fill_jobs(&job, 1, '\0');
    fill_jobs(&in, 1, '\0');
    fill_jobs(&self, 1, '\0');
    job.dispatch = outer;
    job.strand = open_strand(outer, false);
    job.step = drive_other;
    job.other = &in;
    in.dispatch = outer; // inside the inner task, ask about the outer ctx
    in.strand = open_strand(inner, false);
    in.other = &self;
    self.dispatch = inner;
    lieni_strand_post(job.strand, &job.task);
    lieni_strand_close(job.strand);
    lieni_dispatch_close(outer);
    cr_assert_eq(nested_ran, 1);
    cr_assert_eq(in.where, expect, "the inner task hides that it runs inside the outer ctx");
    cr_assert_eq(in.where_strand, job.strand);
    lieni_strand_close(in.strand);
    lieni_dispatch_close(inner);
}

Test(dispatch, where_sees_through_nested_contexts)
{
    nested(0, LIENI_IN_PROGRESS);
    nested(1, LIENI_IN_DISPATCH);
}

// -- Watchdog (R5) -----------------------------------------------------------------------------------------------------------------

static void until_named(struct job *job)
{
    job->where = wait_for(&heard.said) ? LIENI_IN_PROGRESS : LIENI_ELSEWHERE;
}

static void nap(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * (long)MS};
    nanosleep(&t, NULL);
}

Test(dispatch, watchdog_names_an_inline_task_while_it_runs)
{
    struct lieni_dispatch *d = open_dispatch(1, &real_env);
    struct job job;
    fill_jobs(&job, 1, '\0');
    job.strand = open_strand(d, true);
    lieni_strand_conn(job.strand, 0xabc);
    job.step = until_named; // returns only when the log has spoken
    for (unsigned round = 1; round <= 2; round++) {
        nap(round == 1 ? 0 : 300); // the second time the watchdog sleeps for good
        lieni_strand_post(job.strand, &job.task);
        uint64_t begun = real_now(NULL);
        cr_assert_eq(lieni_dispatch_run_inline(d, 1), 1);
        uint64_t took = real_now(NULL) - begun;
        cr_assert_eq(job.where, LIENI_IN_PROGRESS, "not named while it ran");
        cr_assert_geq(took, 100 * (uint64_t)MS, "named too early");
        cr_assert_eq(heard.last.level, LIEN_LOG_WARN);
        cr_assert_eq(heard.last.conn, 0xabc);
        cr_assert(strstr(heard.text, "has not returned"), "%s", heard.text);
        lieni_log_flush(the_log);
        cr_assert_eq(atomic_load(&heard.n), round, "named again");
    }
    lieni_strand_close(job.strand);
    lieni_dispatch_close(d);
}

static void take_fake_ms(struct job *job)
{
    fake_time += job->runs == 1 ? 100 * (uint64_t)MS : 101 * (uint64_t)MS;
}

Test(dispatch, app_driven_inline_tasks_are_named_afterwards)
{
    struct lieni_dispatch *d = open_dispatch(0, &fake_env);
    struct job job;
    fill_jobs(&job, 1, '\0');
    job.step = take_fake_ms;
    struct lieni_strand *s = open_strand(d, true);
    lieni_strand_conn(s, 5);
    lieni_strand_post(s, &job.task);
    lieni_dispatch_run(d, 1);
    lieni_log_flush(the_log);
    cr_assert_eq(atomic_load(&heard.n), 0, "100 ms are allowed");
    lieni_strand_post(s, &job.task);
    lieni_dispatch_run(d, 1);
    lieni_log_flush(the_log);
    cr_assert_eq(atomic_load(&heard.n), 1);
    cr_assert_eq(heard.last.conn, 5);
    cr_assert(strstr(heard.text, "ran for 101 ms"), "%s", heard.text);
    lieni_strand_close(s);
    s = open_strand(d, false); // no promise, no warning
    lieni_strand_post(s, &job.task);
    lieni_dispatch_run(d, 1);
    lieni_log_flush(the_log);
    cr_assert_eq(atomic_load(&heard.n), 1);
    lieni_strand_close(s);
    lieni_dispatch_close(d);
}

// Voluntary context switches of the thread named `name`, or -1: there is none.
static long switches_of(const char *name)
{
    long found = -1;
    DIR *dir = opendir("/proc/self/task");
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[300], line[200];
        bool it = false;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *f = fopen(path, "re");
        while (f && fgets(line, sizeof line, f)) {
            char got[64];
            long n;
            if (sscanf(line, "Name: %63s", got) == 1) {
                it = strcmp(got, name) == 0;
            } else if (it && sscanf(line, "voluntary_ctxt_switches: %ld", &n) == 1) {
                found = n;
            }
        }
        if (f) {
            fclose(f);
        }
    }
    closedir(dir);
    return found;
}

Test(dispatch, nothing_wakes_when_idle)
{
    struct lieni_dispatch *d = open_dispatch(1, &real_env);
    struct job job;
    fill_jobs(&job, 1, '\0');
    struct lieni_strand *s = open_strand(d, false);
    cr_assert_eq(switches_of("lien-watchdog"), -1, "a watchdog without an inline strand");
    lieni_strand_close(s);
    s = open_strand(d, true);
    lieni_strand_post(s, &job.task);
    lieni_dispatch_run_inline(d, 1);
    // The watchdog looks once more, then sleeps for good: 1.5 s without a switch must come.
    bool quiet = false;
    for (int tries = 0; tries < 3 && !quiet; tries++) {
        long watchdog = switches_of("lien-watchdog"), thread = switches_of("lien-dispatch");
        cr_assert(watchdog >= 0 && thread >= 0, "no such threads");
        nap(1500);
        quiet = switches_of("lien-watchdog") == watchdog && switches_of("lien-dispatch") == thread;
    }
    cr_assert(quiet, "an idle thread keeps waking");
    lieni_strand_close(s);
    lieni_dispatch_close(d);
}

static void check_signals(struct job *job)
{
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    job->where = sigismember(&now, SIGTERM) && sigismember(&now, SIGINT) &&
                         !sigismember(&now, SIGSEGV) && !sigismember(&now, SIGBUS)
                     ? LIENI_IN_DISPATCH
                     : LIENI_ELSEWHERE;
}

Test(dispatch, threads_leave_signals_to_the_host)
{
    struct lieni_dispatch *d = open_dispatch(1, &real_env);
    struct job job;
    fill_jobs(&job, 1, '\0');
    job.step = check_signals;
    struct lieni_strand *s = open_strand(d, false);
    lieni_strand_post(s, &job.task);
    lieni_strand_close(s);
    lieni_dispatch_close(d);
    cr_assert_eq(job.where, LIENI_IN_DISPATCH);
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    cr_assert(!sigismember(&now, SIGTERM), "the opener's mask changed");
}
