// SPDX-License-Identifier: Apache-2.0
//
// Shrinking: a failing program with ever less in it. Each attempt runs in a process of its own, silent and limited in time. The failure must stay the same but for its numbers; a step draws from its
// own number alone, so what is left goes on much as before.

#include "run.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define ATTEMPTS_MAX 3000u
#define SECONDS_MAX  30u // of one attempt

struct failure {
    char text[200]; // without numbers
};

struct search {
    struct run run;
    struct outcome *outcome;
    struct failure wanted;
    unsigned attempts;
    time_t until; // 0: for ever
};

// The processor time of all attempts so far, so that a busy machine does not shrink less.
static time_t now(void)
{
    struct rusage use;
    getrusage(RUSAGE_CHILDREN, &use);
    return use.ru_utime.tv_sec + use.ru_stime.tv_sec;
}

static bool goes_on(const struct search *s)
{
    return s->attempts < ATTEMPTS_MAX && (!s->until || now() < s->until);
}

static void describe(const char *text, struct failure *f)
{
    size_t n = 0;
    for (; *text && n + 1 < sizeof f->text; text++)
        if (!isdigit((unsigned char)*text))
            f->text[n++] = *text;
    f->text[n] = 0;
}

static void silence(void)
{
    int null = open("/dev/null", O_WRONLY);
    if (null < 0)
        return;
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    close(null);
}

// True: it failed, *how says how.
static bool attempt(struct search *s, struct failure *how)
{
    struct outcome *o = s->outcome;
    int status;
    o->failed = false;
    o->step = UINT32_MAX;
    s->attempts++;
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        perror("lien-sim: fork");
        exit(1);
    }
    if (pid == 0) {
        silence();
        alarm(SECONDS_MAX);
        _exit(run_here(&s->run, o) ? 0 : 3);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return false;
    describe(o->failed             ? o->failure
             : WIFSIGNALED(status) ? strsignal(WTERMSIG(status))
                                   : "an exit in the middle",
             how);
    return true;
}

static bool still_fails(struct search *s)
{
    struct failure how;
    return goes_on(s) && attempt(s, &how) && strcmp(how.text, s->wanted.text) == 0;
}

static unsigned steps_left(const struct run *run)
{
    unsigned n = 0;
    for (unsigned i = 0; i < run->steps; i++)
        n += !run->skip[i];
    return n;
}

// Leaves out the `n`-th to the (n + len)-th of the steps that are left. True: it still fails so.
static bool drop(struct search *s, unsigned n, unsigned len)
{
    struct run *run = &s->run;
    uint8_t *before = malloc(run->steps);
    if (!before)
        abort();
    memcpy(before, run->skip, run->steps);
    unsigned seen = 0;
    for (unsigned i = 0; i < run->steps; i++) {
        if (before[i])
            continue;
        if (seen >= n && seen < n + len)
            run->skip[i] = 1;
        seen++;
    }
    bool fine = still_fails(s);
    if (!fine)
        memcpy(run->skip, before, run->steps);
    free(before);
    return fine;
}

static bool drop_steps(struct search *s, unsigned len)
{
    bool any = false;
    for (unsigned at = 0; at < steps_left(&s->run);) {
        if (drop(s, at, len))
            any = true;
        else
            at += len;
    }
    return any;
}

static bool drop_faults(struct search *s)
{
    bool any = false;
    for (unsigned i = 0; program_knob(i); i++) {
        uint64_t bit = UINT64_C(1) << i;
        if (s->run.without & bit)
            continue;
        s->run.without |= bit;
        if (still_fails(s))
            any = true;
        else
            s->run.without &= ~bit;
    }
    return any;
}

static void search(struct search *s)
{
    struct run *run = &s->run;
    if (s->outcome->step < run->steps) // what comes after the failure
        drop(s, s->outcome->step + 1, run->steps);
    drop_faults(s);
    for (bool any = true; any && goes_on(s);) {
        unsigned len = steps_left(run) / 2;
        any = false;
        for (; len > 0; len /= 2)
            any = drop_steps(s, len) || any;
        any = drop_faults(s) || any;
    }
}

static void show(struct search *s)
{
    printf("lien-sim: %u of %u steps are left after %u attempts; they fail so:\n",
           steps_left(&s->run), s->run.steps, s->attempts);
    s->run.trace = TRACE_APP;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        setvbuf(stdout, NULL, _IOLBF, 0);
        _exit(run_here(&s->run, s->outcome) ? 0 : 3);
    }
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (pid > 0 && WIFSIGNALED(status))
        printf("ENDED by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    printf("lien-sim: again with: lien-sim ");
    run_print(&s->run, stdout);
    printf(" --trace\n");
}

int shrink(const struct run *run, struct outcome *outcome, unsigned seconds)
{
    struct search s = {.run = *run, .outcome = outcome};
    s.until = seconds ? now() + (time_t)seconds : 0;
    s.run.trace = TRACE_NONE;
    s.run.skip = calloc(run->steps, 1);
    if (!s.run.skip)
        abort();
    if (run->skip)
        memcpy(s.run.skip, run->skip, run->steps);
    if (!attempt(&s, &s.wanted)) {
        printf("lien-sim: seed %" PRIu64 " does not fail: nothing to shrink\n", run->seed);
        free(s.run.skip);
        return 0;
    }
    printf("lien-sim: seed %" PRIu64 " fails; shrinking\n", run->seed);
    search(&s);
    show(&s);
    free(s.run.skip);
    return 1;
}
