// SPDX-License-Identifier: Apache-2.0
//
// An idle process wakes for heartbeats only: 100 connections between two processes, used once, then left alone. Without heartbeats nothing runs at all; with them, at their default, each
// process takes less than 0.1 % of a core. CPU time and voluntary context switches of both ends are asserted: a loaded machine changes neither much.

#include <sys/wait.h>
#include <unistd.h>

#include "tests/loops/support.h"

#define CONNS 100u

struct phase {
    const char *name;
    const char *const *settings;
    unsigned seconds;
    uint64_t cpu_us, switches; // the most that one process may take
};

static void print(const struct phase *phase, const char *end, struct footprint a, struct footprint b)
{
    uint64_t cpu = b.cpu_us - a.cpu_us;
    printf("%-15s %-7s %3u connections %3u s: %6llu us of CPU (%.3f %% of a core), %4llu switches\n",
           phase->name, end, CONNS, phase->seconds, (unsigned long long)cpu,
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
    static lien_conn *conns[CONNS];
    remote_start(&remote, phase->settings);
    lien_ctx *ctx = ctx_open(phase->settings);
    for (unsigned i = 0; i < CONNS; i++) {
        char answer[1];
        conns[i] = conn_open(ctx, remote.address);
        conn_ask(conns[i], "E", 1, answer, sizeof answer);
    }
    sleep_ms(500); // what was under way is over
    struct footprint theirs = remote_report(&remote, CONNS).footprint;
    struct footprint ours = footprint_now();
    sleep_ms(phase->seconds * 1000);
    struct footprint ours_after = footprint_now();
    struct footprint theirs_after = remote_report(&remote, CONNS).footprint;
    print(phase, "client", ours, ours_after);
    print(phase, "server", theirs, theirs_after);
    lien_conn_info info = {.size = sizeof info};
    for (unsigned i = 0; i < CONNS; i++) {
        IS(lien_conn_info_get(conns[i], &info), 0);
        CHECK(info.open);
        IS(lien_conn_close(&conns[i]), 0);
    }
    IS(lien_ctx_close(&ctx), 0);
    remote_stop(&remote);
    judge(phase, ours, ours_after);
    judge(phase, theirs, theirs_after);
}

int main(void)
{
    static const char *const off[] = {"heartbeat_ms=0", NULL};
    static const char *const on[] = {NULL};
    // The numbers of the phase without heartbeats allow for the measuring itself.
    static const struct phase phases[] = {{"no heartbeats", off, 5, 5000, 10},
                                          {"heartbeats", on, 10, 10000, 200}};
    pid_t pids[2];
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (unsigned i = 0; i < 2; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            run(&phases[i]);
            exit(0);
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        int status;
        CHECK(waitpid(pids[i], &status, 0) == pids[i]);
        CHECK(WIFEXITED(status));
        IS(WEXITSTATUS(status), 0);
    }
    puts("ok");
    return 0;
}
