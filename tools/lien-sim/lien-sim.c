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

#include "program.h"

#define BATCH      25u
#define CELL_LEAST 100u

struct shared { // with the process of a batch
    uint64_t seed;
    bool failed;
    char failure[640];
    struct cells cells;
    struct tally tally;
};

struct options {
    uint64_t first, last;
    unsigned steps;
    bool trace, range, keep_going;
    int kind; // -1: by seed
    uint64_t cell_least;
};

static const char *const class_name[LIENI_SIM_CLASSES] = {"tcp", "verbs", "sockets", "own-only"};

static int usage(FILE *out)
{
    fprintf(out,
            "Usage: lien-sim --seed N | --seeds A..B [--steps M] [--trace] [--class CLASS]\n"
            "                [--cells N] [--keep-going]\n"
            "Runs a random program for each seed on simulated nodes and checks every byte.\n"
            "  --seed N       one program; the same each time\n"
            "  --seeds A..B   programs A to B, then a table of faults by state\n"
            "  --steps M      actions of a program (300)\n"
            "  --trace        prints every event (one seed)\n"
            "  --class CLASS  tcp, verbs, sockets or own-only; default: each in turn\n"
            "  --cells N      fail when a cell of the table that can occur is below N (%u with\n"
            "                 --seeds and no class, else 0)\n"
            "  --keep-going   go on after a failure\n",
            CELL_LEAST);
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
    for (int i = 0; i < LIENI_SIM_CLASSES; i++)
        if (strcmp(class_name[i], text) == 0)
            *kind = i;
    return *kind >= 0;
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
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    int c;
    uint64_t value;
    const char *rest;
    bool seeds = false, fine = true, least = false;
    while (fine && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 's':
            fine = seeds = parse_number(optarg, 0, &o->first, &rest);
            o->last = o->first;
            break;
        case 'S':
            fine = seeds = o->range = parse_range(optarg, o);
            break;
        case 'n':
            fine = parse_number(optarg, 0, &value, &rest) && value > 0 && value < 1000000;
            o->steps = (unsigned)value;
            break;
        case 't':
            o->trace = true;
            break;
        case 'c':
            fine = parse_class(optarg, &o->kind);
            break;
        case 'm':
            fine = least = parse_number(optarg, 0, &o->cell_least, &rest);
            break;
        case 'k':
            o->keep_going = true;
            break;
        case 'h':
            return usage(stdout) + 1;
        default:
            return usage(stderr) + 1;
        }
        if (!fine)
            fprintf(stderr, "lien-sim: '%s' is not a value for this option\n", optarg);
    }
    if (!fine || !seeds || optind != argc || (o->trace && o->range))
        return usage(stderr) + 1;
    if (!least && o->range && o->kind < 0)
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
}

// In the process of a batch.
static bool run_seed(const struct options *o, uint64_t seed, struct shared *shared)
{
    struct program *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    p->seed = seed;
    p->steps = o->steps;
    p->trace = o->trace;
    p->kind = (enum lieni_sim_class)(o->kind >= 0 ? (uint64_t)o->kind : seed % LIENI_SIM_CLASSES);
    p->cells = &shared->cells;
    shared->seed = seed;
    bool fine = program_run(p);
    tally_add(&shared->tally, &p->tally);
    if (!fine) {
        shared->failed = true;
        memcpy(shared->failure, p->failure, sizeof shared->failure);
        return false;
    }
    free(p);
    return true;
}

// Runs seeds first .. last in a process. Returns true if all passed; *next is where to go on.
static bool run_batch(const struct options *o, uint64_t first, uint64_t last, struct shared *shared,
                      uint64_t *next)
{
    shared->failed = false;
    shared->seed = first;
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        perror("lien-sim: fork");
        exit(1);
    }
    if (pid == 0) {
        bool fine = true;
        for (uint64_t seed = first; fine && seed <= last; seed++)
            fine = run_seed(o, seed, shared);
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
    *next = shared->seed + 1;
    int kind = o->kind >= 0 ? o->kind : (int)(shared->seed % LIENI_SIM_CLASSES);
    if (shared->failed)
        printf("lien-sim: seed %" PRIu64 " (%s) failed: %s\n", shared->seed, class_name[kind],
               shared->failure);
    else if (WIFSIGNALED(status))
        printf("lien-sim: seed %" PRIu64 " (%s) ended by signal %d (%s)\n", shared->seed,
               class_name[kind], WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        printf("lien-sim: seed %" PRIu64 " (%s), or one of its batch, exited with %d\n",
               shared->seed, class_name[kind], WEXITSTATUS(status));
    printf("lien-sim: again with: lien-sim --seed %" PRIu64 " --steps %u%s%s --trace\n",
           shared->seed, o->steps, o->kind >= 0 ? " --class " : "",
           o->kind >= 0 ? class_name[kind] : "");
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
    struct options o = {.steps = 300, .kind = -1};
    int bad = parse(argc, argv, &o);
    if (bad)
        return bad - 1;
    if (o.trace)
        setvbuf(stdout, NULL, _IOLBF, 0); // a crash loses nothing
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("lien-sim: mmap");
        return 1;
    }
    double start = seconds();
    uint64_t failures = 0, at = o.first;
    while (at <= o.last) {
        uint64_t last = o.last - at < BATCH ? o.last : at + BATCH - 1;
        failures += !run_batch(&o, at, last, shared, &at);
        if (failures && !o.keep_going)
            return 1;
    }
    unsigned low = 0;
    if (o.range)
        low = cells_print(&shared->cells, stdout, o.cell_least);
    const struct tally *t = &shared->tally;
    printf("lien-sim: %" PRIu64 " seeds of %u steps in %.1f s; verified: %" PRIu64
           " reads, %" PRIu64 " bodies, %" PRIu64 " calls, %" PRIu64 " write spaces; %" PRIu64
           " reads of calls not vouched for, %" PRIu64 " lendings quarantined; %" PRIu64
           " failed\n",
           o.last - o.first + 1, o.steps, seconds() - start, t->reads, t->bodies, t->calls,
           t->spaces, t->stale, t->quarantined, failures);
    return failures || low ? 1 : 0;
}
