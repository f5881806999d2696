// SPDX-License-Identifier: Apache-2.0
//
// conformance [--provider P]... [--group G]... [--case C]...: runs the cases, each in processes of its own, and prints a table of provider by case and
// "N passed, N failed". Without options: all. --list prints group and name of each case.
//
// A case that cannot run somewhere is listed in expected-limits with the reason; the table shows "-" for it. Inside, a process with --side runs one side (tcp) or both (sim).

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/conformance/harness.h"

#define CASE_MS 900000u
#define MANY    32u // options of one kind

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

static const struct cf_case *const lists[] = {
    cf_read_cases,  cf_layout_cases, cf_message_cases, cf_grant_cases, cf_refuse_cases,
    cf_end_cases,   cf_memory_cases, cf_conn_cases,    cf_call_cases,  cf_serve_cases,
    cf_space_cases, cf_giant_cases,  cf_callend_cases, cf_reuse_cases, cf_batch_cases};
#define N_LISTS (sizeof(lists) / sizeof(lists[0]))

static const struct cf_driver *const drivers[] = {
    &cf_sim, &cf_tcp, &cf_tcp_thread, &cf_verbs, &cf_verbs_thread, &cf_stream, &cf_stream_thread,
    &cf_ws,  &cf_wss, &cf_h2c,        &cf_h2};
#define N_DRIVERS (sizeof(drivers) / sizeof(drivers[0]))

enum verdict {
    NOT_ASKED,
    PASSED,
    FAILED,
    LIMITED
};

struct limit {
    char where[32], name[64], reason[256];
};

static struct limit limits[128];
static unsigned n_limits;

struct filter {
    const char *words[MANY];
    unsigned n;
};
static struct filter providers, groups, names;

static bool passes(const struct filter *filter, const char *word)
{
    for (unsigned i = 0; i < filter->n; i++) {
        if (strcmp(filter->words[i], word) == 0)
            return true;
    }
    return filter->n == 0;
}

static const struct cf_case *find_case(const char *name)
{
    for (size_t i = 0; i < N_LISTS; i++) {
        for (const struct cf_case *c = lists[i]; c->name; c++) {
            if (strcmp(c->name, name) == 0)
                return c;
        }
    }
    return NULL;
}

static const struct cf_driver *find_driver(const char *name)
{
    for (size_t i = 0; i < N_DRIVERS; i++) {
        if (strcmp(drivers[i]->name, name) == 0)
            return drivers[i];
    }
    return NULL;
}

// -- Limits --

// "asan" is all providers of a sanitized build, "asan-sim" one: what follows "asan", else NULL.
static const char *in_asan(const char *where)
{
    if (strncmp(where, "asan", 4) != 0)
        return NULL;
    bool one = where[4] == '-' && find_driver(where + 5);
    return where[4] == '\0' || one ? where + 4 : NULL;
}

static bool limited(const char *where, const struct cf_driver *driver)
{
    const char *rest = in_asan(where);
    if (!rest)
        return strcmp(where, driver->name) == 0;
    return SANITIZED && (*rest == '\0' || strcmp(rest + 1, driver->name) == 0);
}

static bool load_limits(const char *path)
{
    char line[512];
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return false;
    }
    bool ok = true;
    while (fgets(line, sizeof(line), file)) {
        if (line[0] == '#' || line[0] == '\n')
            continue;
        struct limit *l = &limits[n_limits];
        ok = n_limits < 128 &&
             sscanf(line, "%31s %63s %255[^\n]", l->where, l->name, l->reason) == 3 &&
             find_case(l->name) && (find_driver(l->where) || in_asan(l->where) != NULL);
        if (!ok) {
            fprintf(stderr, "%s: no such place or case, or no reason: %s", path, line);
            break;
        }
        n_limits++;
    }
    fclose(file);
    return ok;
}

static const char *limit_of(const struct cf_driver *driver, const struct cf_case *test)
{
    for (unsigned i = 0; i < n_limits; i++) {
        if (strcmp(limits[i].name, test->name) == 0 && limited(limits[i].where, driver))
            return limits[i].reason;
    }
    return NULL;
}

// -- One side, in a process of its own --

static void side_init(struct cf_side *side, const struct cf_case *test,
                      const struct cf_driver *driver, enum cf_role role, int control)
{
    side->test = test;
    side->driver = driver;
    side->role = role;
    side->control = control;
}

static int run_sim(const struct cf_case *test)
{
    static struct cf_side sides[2];
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        return 1;
    side_init(&sides[0], test, &cf_sim, CF_OWNER, fds[0]);
    side_init(&sides[1], test, &cf_sim, CF_READER, fds[1]);
    int rc = cf_sim_run(test, sides);
    close(fds[0]);
    close(fds[1]);
    return rc;
}

static int run_side(const struct cf_case *test, const struct cf_driver *driver, const char *role,
                    int control)
{
    static struct cf_side side;
    if (!driver->processes)
        return run_sim(test);
    side_init(&side, test, driver, strcmp(role, "owner") == 0 ? CF_OWNER : CF_READER, control);
    setenv("LIEN_PROVIDER", driver->provider, 1);
    int pid = getpid(), peer;
    cf_tell(&side, &pid, sizeof(pid));
    cf_hear(&side, &peer, sizeof(peer));
    side.peer_pid = peer;
    cf_run(&side);
    return 0;
}

// -- One case --

static pid_t spawn(const char *self, const struct cf_case *test, const struct cf_driver *driver,
                   const char *role, int control)
{
    char fd[16];
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    snprintf(fd, sizeof(fd), "%d", dup(control)); // dup: not close-on-exec
    execl(self, self, "--side", role, "--control", fd, "--provider", driver->name, "--case",
          test->name, (char *)NULL);
    fprintf(stderr, "%s: %s\n", self, strerror(errno));
    _exit(127);
}

static uint64_t real_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

// Waits for both; one that outlasts its time is killed.
static bool wait_all(pid_t *pids, unsigned n, const char *what)
{
    uint64_t since = cf_real_ms();
    unsigned left = n;
    bool ok = true, killed = false;
    while (left > 0) {
        for (unsigned i = 0; i < n; i++) {
            int status;
            if (pids[i] == 0 || waitpid(pids[i], &status, WNOHANG) != pids[i])
                continue;
            if (WIFSIGNALED(status) && !killed)
                fprintf(stderr, "%s: a side died of signal %d\n", what, WTERMSIG(status));
            else if (WEXITSTATUS(status) > 2)
                fprintf(stderr, "%s: a side ended with %d\n", what, WEXITSTATUS(status));
            ok = ok && WIFEXITED(status) && WEXITSTATUS(status) == 0;
            pids[i] = 0;
            left--;
        }
        if (!killed && (cf_real_ms() - since > CASE_MS || !ok)) {
            if (ok)
                fprintf(stderr, "%s: not over after %u ms\n", what, CASE_MS);
            // After a failure the other side ends by itself, unless it is frozen.
            for (unsigned i = 0; i < n; i++) {
                if (pids[i] != 0)
                    kill(pids[i], ok ? SIGKILL : SIGCONT);
            }
            killed = ok;
            ok = false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return ok;
}

static enum verdict run_case(const char *self, const struct cf_case *test,
                             const struct cf_driver *driver)
{
    int fds[2];
    pid_t pids[2] = {0, 0};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        return FAILED;
    unsigned n = driver->processes ? 2 : 1;
    uint64_t since = real_us();
    for (unsigned i = 0; i < n; i++)
        pids[i] = spawn(self, test, driver, i == 0 ? "owner" : "reader", fds[i]);
    close(fds[0]);
    close(fds[1]);
    bool ok = wait_all(pids, n, test->name);
    printf("%-10s %-8s %-28s %s  %.3f s\n", driver->name, test->group, test->name,
           ok ? "pass" : "FAIL", (double)(real_us() - since) / 1e6);
    fflush(stdout);
    return ok ? PASSED : FAILED;
}

// -- All of them --

static const char *word_of(enum verdict verdict)
{
    static const char *const words[] = {"", "pass", "FAIL", "-"};
    return words[verdict];
}

static void table_row(const struct cf_case *test, const enum verdict verdicts[N_DRIVERS])
{
    printf("%-8s %-28s", test->group, test->name);
    for (size_t d = 0; d < N_DRIVERS; d++) {
        if (passes(&providers, drivers[d]->name))
            printf(" %-10s", word_of(verdicts[d]));
    }
    printf("\n");
}

static bool asked(const struct cf_case *test)
{
    return passes(&groups, test->group) && passes(&names, test->name);
}

static int run_all(const char *self)
{
    static enum verdict verdicts[512][N_DRIVERS];
    unsigned passed = 0, failed = 0, row = 0;
    for (size_t d = 0; d < N_DRIVERS; d++) {
        row = 0;
        for (size_t i = 0; i < N_LISTS && passes(&providers, drivers[d]->name); i++) {
            for (const struct cf_case *c = lists[i]; c->name && row < 512; c++) {
                enum verdict *v = &verdicts[row++][d];
                if (!asked(c))
                    continue;
                *v = limit_of(drivers[d], c) ? LIMITED : run_case(self, c, drivers[d]);
                passed += *v == PASSED;
                failed += *v == FAILED;
            }
        }
    }
    printf("\n%-8s %-28s", "group", "case");
    for (size_t d = 0; d < N_DRIVERS; d++) {
        if (passes(&providers, drivers[d]->name))
            printf(" %-10s", drivers[d]->name);
    }
    printf("\n");
    row = 0;
    for (size_t i = 0; i < N_LISTS; i++) {
        for (const struct cf_case *c = lists[i]; c->name && row < 512; c++, row++) {
            if (asked(c))
                table_row(c, verdicts[row]);
        }
    }
    for (unsigned i = 0; i < n_limits; i++) {
        const struct cf_case *c = find_case(limits[i].name);
        bool here = false;
        for (size_t d = 0; d < N_DRIVERS; d++)
            here = here ||
                   (passes(&providers, drivers[d]->name) && limited(limits[i].where, drivers[d]));
        if (here && asked(c))
            printf("- %s on %s: %s\n", limits[i].name, limits[i].where, limits[i].reason);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed > 0 || passed == 0;
}

static void list_all(void)
{
    for (size_t i = 0; i < N_LISTS; i++) {
        for (const struct cf_case *c = lists[i]; c->name; c++)
            printf("%s %s\n", c->group, c->name);
    }
}

static void add(struct filter *filter, const char *word, bool known)
{
    if (!known || filter->n == MANY) {
        fprintf(stderr, "conformance: no such name, or too many: %s\n", word);
        exit(2);
    }
    filter->words[filter->n++] = word;
}

static bool known_group(const char *name)
{
    for (size_t i = 0; i < N_LISTS; i++) {
        if (strcmp(lists[i]->group, name) == 0)
            return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    const char *role = NULL;
    int control = -1;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--list") == 0) {
            list_all();
            return 0;
        }
        if (strcmp(argv[i], "--provider") == 0)
            add(&providers, value, find_driver(value) != NULL);
        else if (strcmp(argv[i], "--group") == 0)
            add(&groups, value, known_group(value));
        else if (strcmp(argv[i], "--case") == 0)
            add(&names, value, find_case(value) != NULL);
        else if (strcmp(argv[i], "--side") == 0)
            role = value;
        else if (strcmp(argv[i], "--control") == 0)
            control = (int)strtol(value, NULL, 10);
        else {
            fprintf(stderr, "usage: conformance [--list] [--provider P]... [--group G]... "
                            "[--case C]...\n");
            return 2;
        }
    }
    if (role)
        return run_side(find_case(names.words[0]), find_driver(providers.words[0]), role, control);
    return load_limits(CF_EXPECTED_LIMITS) ? run_all("/proc/self/exe") : 2;
}
