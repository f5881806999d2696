// SPDX-License-Identifier: Apache-2.0
//
// lien-sim: random programs on the simulator, one for each seed. Seeds run in batches, each in a process of its own, so that a crash or an abort names its seed as any
// other failure does, and memory in quarantine that nobody can free does not pile up. Prints the table of faults by state. Exit status: 0 all is well, 1 a seed failed or
// a cell stayed empty, 2 wrong usage.

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "run.h"

#define BATCH      25u
#define CELL_LEAST 100u

// For what nobody asked to be shrunk.
#define SHRINK_SECONDS 60u

struct options {
    struct run run;
    uint64_t first, last;
    bool range, keep_going, shrink, no_shrink;
    const char *only;
    uint64_t cell_least;
};

#define CLASSES (LIENI_SIM_CLASSES + 1)
// The last one is own-only without entries after a break.
static const char *const class_name[CLASSES] = {"tcp", "verbs", "sockets", "own-only", "none"};

static int usage(FILE *out)
{
    fprintf(
        out,
        "Usage: lien-sim --seed N [--steps M] [--class CLASS] [--only STEPS] [--without FAULTS]\n"
        "                [--trace | --shrink]\n"
        "       lien-sim --seeds A..B [--steps M] [--class CLASS] [--cells N] [--keep-going]\n"
        "                [--shrink | --no-shrink]\n"
        "Runs a random program for each seed on simulated nodes and checks every byte.\n"
        "  --seed N       one program; the same each time\n"
        "  --seeds A..B   programs A to B, then a table of faults by state\n"
        "  --steps M      actions of a program (300)\n"
        "  --trace        prints every event (one seed)\n"
        "  --class CLASS  tcp, verbs, sockets, own-only or none; default: each in turn\n"
        "  --shrink       makes a program that fails as short as it can, and shows it\n"
        "  --no-shrink    does not; default with --seeds: the first that fails, within %u s of\n"
        "                 processor time\n"
        "  --only STEPS   leaves out all other steps: numbers and ranges, as 3,17,20-25\n"
        "  --without F    leaves out faults: names, as slow,break\n"
        "  --cells N      fail when a cell of the table that can occur is below N (%u with\n"
        "                 --seeds and no class, else 0)\n"
        "  --keep-going   go on after a failure\n",
        SHRINK_SECONDS, CELL_LEAST);
    return out == stdout ? 0 : 2;
}

static bool parse_number(const char *text, char end, uint64_t *value, const char **rest)
{
    char *stop;
    errno = 0;
    if (*text < '0' || *text > '9')
        return false;
    *value = strtoull(text, &stop, 10);
    *rest = stop;
    return errno == 0 && *stop == end;
}

static bool parse_range(const char *text, struct options *o)
{
    const char *rest;
    if (!parse_number(text, '.', &o->first, &rest) || strncmp(rest, "..", 2) != 0)
        return false;
    return parse_number(rest + 2, 0, &o->last, &rest) && o->last >= o->first;
}

static bool parse_class(const char *text, int *kind)
{
    for (int i = 0; i < CLASSES; i++)
        if (strcmp(class_name[i], text) == 0)
            *kind = i;
    return *kind >= 0;
}

// "3,17,20-25" within `steps`.
static bool parse_only(const char *text, struct run *run)
{
    run->skip = malloc(run->steps);
    if (!run->skip)
        abort();
    memset(run->skip, 1, run->steps);
    for (;;) {
        char *stop;
        uint64_t first = strtoull(text, &stop, 10), last = first;
        if (stop == text)
            return false;
        if (*stop == '-')
            last = strtoull(text = stop + 1, &stop, 10);
        if (stop == text || last < first || last >= run->steps || (*stop && *stop != ','))
            return false;
        memset(run->skip + first, 0, last - first + 1);
        if (!*stop)
            return true;
        text = stop + 1;
    }
}

static bool parse_without(const char *text, uint64_t *without)
{
    while (*text) {
        size_t len = strcspn(text, ",");
        unsigned i = 0;
        const char *name;
        while ((name = program_knob(i)) && (strlen(name) != len || strncmp(name, text, len) != 0))
            i++;
        if (!name)
            return false;
        *without |= UINT64_C(1) << i;
        text += len + (text[len] == ',');
    }
    return true;
}

static bool take_option(struct options *o, int c, bool *seeds, bool *least)
{
    uint64_t value;
    const char *rest;
    switch (c) {
    case 's':
        *seeds = parse_number(optarg, 0, &o->first, &rest);
        o->last = o->first;
        return *seeds;
    case 'S':
        return *seeds = o->range = parse_range(optarg, o);
    case 'n':
        if (!parse_number(optarg, 0, &value, &rest) || value == 0 || value >= 1000000)
            return false;
        o->run.steps = (unsigned)value;
        return true;
    case 't':
        o->run.trace = TRACE_ALL;
        return true;
    case 'c':
        return parse_class(optarg, &o->run.kind);
    case 'm':
        return *least = parse_number(optarg, 0, &o->cell_least, &rest);
    case 'k':
        o->keep_going = true;
        return true;
    case 'x':
        o->shrink = true;
        return true;
    case 'X':
        o->no_shrink = true;
        return true;
    case 'o':
        o->only = optarg;
        return true;
    default: // 'w'
        return parse_without(optarg, &o->run.without);
    }
}

// 0: run; else the exit status + 1.
static int parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {{"seed", required_argument, NULL, 's'},
                                          {"seeds", required_argument, NULL, 'S'},
                                          {"steps", required_argument, NULL, 'n'},
                                          {"trace", no_argument, NULL, 't'},
                                          {"class", required_argument, NULL, 'c'},
                                          {"cells", required_argument, NULL, 'm'},
                                          {"keep-going", no_argument, NULL, 'k'},
                                          {"shrink", no_argument, NULL, 'x'},
                                          {"only", required_argument, NULL, 'o'},
                                          {"without", required_argument, NULL, 'w'},
                                          {"help", no_argument, NULL, 'h'},
                                          {"no-shrink", no_argument, NULL, 'X'},
                                          {NULL, 0, NULL, 0}};
    int c;
    bool seeds = false, least = false;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'h')
            return usage(stdout) + 1;
        if (c == '?')
            return usage(stderr) + 1;
        if (take_option(o, c, &seeds, &least))
            continue;
        fprintf(stderr, "lien-sim: '%s' is not a value for this option\n", optarg);
        return usage(stderr) + 1;
    }
    bool one = o->run.trace || o->only;
    if (!seeds || optind != argc || (one && o->range) || (o->run.trace && o->shrink) ||
        (o->shrink && o->no_shrink))
        return usage(stderr) + 1;
    if (o->only && !parse_only(o->only, &o->run)) {
        fprintf(stderr, "lien-sim: '%s' is no list of steps below %u\n", o->only, o->run.steps);
        return usage(stderr) + 1;
    }
    if (!least && o->range && o->run.kind < 0 && !o->run.without)
        o->cell_least = CELL_LEAST;
    return 0;
}

static void tally_add(struct tally *sum, const struct tally *more)
{
    sum->reads += more->reads;
    sum->bodies += more->bodies;
    sum->calls += more->calls;
    sum->spaces += more->spaces;
    sum->stale += more->stale;
    sum->quarantined += more->quarantined;
    sum->reads_posted += more->reads_posted;
    sum->read_steps += more->read_steps;
    sum->lies += more->lies;
    sum->caught += more->caught;
    sum->allocs_failed += more->allocs_failed;
}

static unsigned class_of(const struct run *run)
{
    return run->kind >= 0 ? (unsigned)run->kind : (unsigned)(run->seed % CLASSES);
}

bool run_here(const struct run *run, struct outcome *outcome)
{
    struct program *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    p->seed = run->seed;
    p->steps = run->steps;
    p->skip = run->skip;
    p->without = run->without;
    p->trace = run->trace;
    p->no_entries = class_of(run) == LIENI_SIM_CLASSES;
    p->kind = p->no_entries ? LIENI_SIM_OWN_ONLY : (enum lieni_sim_class)class_of(run);
    p->cells = &outcome->cells;
    outcome->seed = run->seed;
    bool fine = program_run(p);
    tally_add(&outcome->tally, &p->tally);
    if (!fine) {
        outcome->failed = true;
        outcome->step = p->step;
        memcpy(outcome->failure, p->failure, sizeof outcome->failure);
        return false;
    }
    free(p);
    return true;
}

void run_print(const struct run *run, FILE *out)
{
    fprintf(out, "--seed %" PRIu64 " --steps %u", run->seed, run->steps);
    if (run->kind >= 0)
        fprintf(out, " --class %s", class_name[run->kind]);
    const char *before = " --without ";
    for (unsigned i = 0; program_knob(i); i++) {
        if (run->without >> i & 1) {
            fprintf(out, "%s%s", before, program_knob(i));
            before = ",";
        }
    }
    before = " --only ";
    for (unsigned i = 0; run->skip && i < run->steps; i++) {
        unsigned first = i;
        if (run->skip[i])
            continue;
        while (i + 1 < run->steps && !run->skip[i + 1])
            i++;
        fprintf(out, i > first ? "%s%u-%u" : "%s%u", before, first, i);
        before = ",";
    }
}

static void say_failure(const struct run *run, const struct outcome *outcome, int status)
{
    const char *kind = class_name[class_of(run)];
    if (outcome->failed)
        printf("lien-sim: seed %" PRIu64 " (%s) failed: %s\n", run->seed, kind, outcome->failure);
    else if (WIFSIGNALED(status))
        printf("lien-sim: seed %" PRIu64 " (%s) ended by signal %d (%s)\n", run->seed, kind,
               WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        printf("lien-sim: seed %" PRIu64 " (%s), or one of its batch, exited with %d\n", run->seed,
               kind, WEXITSTATUS(status));
    printf("lien-sim: again with: lien-sim ");
    run_print(run, stdout);
    printf(" --trace\n");
}

// A failing program, `first` or not of this run: what is counted stays as it was.
static void shrink_one(const struct options *o, const struct run *run, struct outcome *outcome,
                       bool first)
{
    static struct outcome before;
    if (o->no_shrink || (!o->shrink && (!first || !o->range)))
        return;
    before = *outcome;
    shrink(run, outcome, o->shrink ? 0 : SHRINK_SECONDS);
    *outcome = before;
}

// Runs seeds first .. last in a process. Returns true if all passed; *next is where to go on.
static bool run_batch(const struct options *o, uint64_t first, uint64_t last,
                      struct outcome *outcome, uint64_t *next, bool fine_so_far)
{
    struct run run = o->run;
    outcome->failed = false;
    outcome->seed = first;
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        perror("lien-sim: fork");
        exit(1);
    }
    if (pid == 0) {
        bool fine = true;
        for (run.seed = first; fine && run.seed <= last; run.seed++)
            fine = run_here(&run, outcome);
        fflush(stdout);
        if (fine)
            exit(0); // with exit handlers: a leak report fails the batch
        _exit(3);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    *next = last + 1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    *next = outcome->seed + 1;
    run.seed = outcome->seed;
    say_failure(&run, outcome, status);
    shrink_one(o, &run, outcome, fine_so_far);
    return false;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    struct options o = {.run = {.steps = 300, .kind = -1}};
    int bad = parse(argc, argv, &o);
    if (bad)
        return bad - 1;
    if (o.run.trace)
        setvbuf(stdout, NULL, _IOLBF, 0); // a crash loses nothing
    struct outcome *outcome = mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (outcome == MAP_FAILED) {
        perror("lien-sim: mmap");
        return 1;
    }
    if (o.shrink && !o.range) {
        o.run.seed = o.first;
        return shrink(&o.run, outcome, 0);
    }
    double start = seconds();
    uint64_t failures = 0, at = o.first;
    while (at <= o.last) {
        uint64_t last = o.last - at < BATCH ? o.last : at + BATCH - 1;
        failures += !run_batch(&o, at, last, outcome, &at, failures == 0);
        if (failures && !o.keep_going)
            return 1;
    }
    unsigned low = 0;
    if (o.range)
        low = cells_print(&outcome->cells, stdout, o.cell_least, o.last - o.first + 1);
    const struct tally *t = &outcome->tally;
    printf("lien-sim: %" PRIu64 " seeds of %u steps in %.1f s; verified: %" PRIu64
           " reads, %" PRIu64 " bodies, %" PRIu64 " calls, %" PRIu64 " write spaces; %" PRIu64
           " reads of calls not vouched for, %" PRIu64 " lendings quarantined, %" PRIu64
           " lies heard, %" PRIu64 " caught by checksums, %" PRIu64 " allocations failed; %" PRIu64
           " READs posted, %" PRIu64 " READ steps; %" PRIu64 " failed\n",
           o.last - o.first + 1, o.run.steps, seconds() - start, t->reads, t->bodies, t->calls,
           t->spaces, t->stale, t->quarantined, t->lies, t->caught, t->allocs_failed,
           t->reads_posted, t->read_steps, failures);
    return failures || low ? 1 : 0;
}
