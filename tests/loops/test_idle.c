// SPDX-License-Identifier: Apache-2.0
//
// An idle process wakes for heartbeats only. Without them, 100 connections between two processes take no CPU time at all. With them, at their default of a second, 100 idle
// connections to one peer vouch for each other, so they cost what one costs: five questions and answers in 10 s, and about 0.06 % of a core; the bound asserted leaves room for a machine that is busy, where each
// wakeup begins with cold caches. CPU time and voluntary context switches of both ends are asserted; a loaded machine changes neither much.

#include <sys/wait.h>
#include <unistd.h>

#include "tests/loops/support.h"

#define MOST 100u

struct phase {
    const char *name;
    unsigned conns;
    const char *const *settings;
    unsigned seconds;
    uint64_t cpu_us, switches; // the most that one process may take
};

static void print(const struct phase *phase, const char *end, struct footprint a,
                  struct footprint b)
{
    uint64_t cpu = b.cpu_us - a.cpu_us;
    printf(
        "%-15s %-7s %3u connections %3u s: %6llu us of CPU (%.3f %% of a core), %4llu switches\n",
        phase->name, end, phase->conns, phase->seconds, (unsigned long long)cpu,
        (double)cpu / 1e4 / phase->seconds, (unsigned long long)(b.switches - a.switches));
}

static void judge(const struct phase *phase, struct footprint a, struct footprint b)
{
    CHECK(b.cpu_us - a.cpu_us < phase->cpu_us);
    CHECK(b.switches - a.switches < phase->switches);
}

static void run(const struct phase *phase)
{
    struct remote remote;
    static lien_conn *conns[MOST];
    remote_start(&remote, phase->settings);
    lien_ctx *ctx = ctx_open(phase->settings);
    for (unsigned i = 0; i < phase->conns; i++) {
        char answer[1];
        conns[i] = conn_open(ctx, remote.address);
        conn_ask(conns[i], "E", 1, answer, sizeof answer);
    }
    sleep_ms(500); // what was under way is over
    struct footprint theirs = remote_cpu(&remote);
    struct footprint ours = footprint_cpu();
    sleep_ms(phase->seconds * 1000);
    struct footprint ours_after = footprint_cpu();
    struct footprint theirs_after = remote_cpu(&remote);
    print(phase, "client", ours, ours_after);
    print(phase, "server", theirs, theirs_after);
    lien_conn_info info = {.size = sizeof info};
    for (unsigned i = 0; i < phase->conns; i++) {
        IS(lien_conn_info_get(conns[i], &info), 0);
        CHECK(info.open);
        IS(lien_conn_close(&conns[i]), 0);
    }
    IS(lien_ctx_close(&ctx), 0);
    remote_stop(&remote);
    judge(phase, ours, ours_after);
    judge(phase, theirs, theirs_after);
}

// With a number: this phase alone, in this process.
int main(int argc, char **argv)
{
    static const char *const off[] = {"heartbeat_ms=0", NULL};
    static const char *const on[] = {NULL};
    static const struct phase phases[] = {{"no heartbeats", MOST, off, 5, 10000, 5},
                                          {"heartbeats", 1, on, 10, 20000, 40},
                                          {"heartbeats", MOST, on, 10, 30000, 40}};
    enum {
        PHASES = sizeof phases / sizeof phases[0]
    };
    pid_t pids[PHASES];
    if (argc == 2) {
        unsigned n = (unsigned)atoi(argv[1]);
        CHECK(n < PHASES);
        run(&phases[n]);
        return 0;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (unsigned i = 0; i < PHASES; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            run(&phases[i]);
            exit(0);
        }
    }
    for (unsigned i = 0; i < PHASES; i++) {
        int status;
        CHECK(waitpid(pids[i], &status, 0) == pids[i]);
        CHECK(WIFEXITED(status));
        IS(WEXITSTATUS(status), 0);
    }
    puts("ok");
    return 0;
}
