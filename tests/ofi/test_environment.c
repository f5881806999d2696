// SPDX-License-Identifier: Apache-2.0
//
// What the library does to its process: signals stay the host's, the environment that safety needs is set and verified, and a provider that is not there is named. Each case runs in a
// fresh process, since libfabric reads its environment once.

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/ofi/bench.h"

static const struct lieni_provider *const tcp = &lieni_provider_tcp;

static int open_one(void)
{
    struct lieni_prov *prov;
    struct lieni_prov_args args = {.env = bench_env(), .report = bench_report()};
    int code = tcp->open(&args, &prov);
    if (code == 0)
        tcp->close(prov);
    return code;
}

static int sit(int in, int out)
{
    (void)in;
    IS(open_one(), 0);
    CHECK(write(out, "x", 1) == 1);
    for (;;)
        pause();
}

static int refused_env(int in, int out)
{
    (void)in;
    (void)out;
    IS(strcmp(getenv("FI_MR_CACHE_MAX_COUNT"), "0"), 0); // by the constructor, over what was there
    IS(strcmp(getenv("FI_TCP_IO_URING"), "0"), 0);
    setenv("FI_MR_CACHE_MAX_COUNT", "1", 1);
    IS(open_one(), LIEN_ENOPROVIDER);
    CHECK(strstr(bench_log.text, "FI_MR_CACHE_MAX_COUNT"));
    setenv("FI_MR_CACHE_MAX_COUNT", "0", 1);
    unsetenv("FI_TCP_IO_URING");
    IS(open_one(), LIEN_ENOPROVIDER);
    CHECK(strstr(bench_log.text, "FI_TCP_IO_URING"));
    setenv("FI_TCP_IO_URING", "0", 1);
    IS(open_one(), 0);
    return 0;
}

// libfabric was told to load another provider only.
static int no_provider(int in, int out)
{
    (void)in;
    (void)out;
    IS(open_one(), LIEN_ENOPROVIDER);
    IS(bench_log.code, LIEN_ENOPROVIDER);
    CHECK(strstr(bench_log.text, "provider tcp: ") && strstr(bench_log.text, "No data available"));
    return 0;
}

struct variable {
    const char *name;
    const char *value; // NULL: unset
};

// Runs this program's case `name` with the variables; returns its wait status. `signal`: sent once it is ready, or 0.
static int run(const char *name, const struct variable *variables, size_t n, int signal_number)
{
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        for (size_t i = 0; i < n; i++)
            if (variables[i].value)
                setenv(variables[i].name, variables[i].value, 1);
            else
                unsetenv(variables[i].name);
        dup2(ready[1], 9);
        execl("/proc/self/exe", "test_environment", name, (char *)NULL);
        _exit(99);
    }
    close(ready[1]);
    if (signal_number) {
        char byte;
        CHECK(read(ready[0], &byte, 1) == 1);
        kill(pid, signal_number);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    close(ready[0]);
    return status;
}

static void passes(const char *name, const struct variable *variables, size_t n)
{
    int status = run(name, variables, n, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "case %s: wait status %#x\n", name, (unsigned)status);
        exit(1);
    }
}

static void signals(void)
{
    static const int each[] = {SIGTERM, SIGINT};
    const struct variable with[] = {{"IPATH_NO_BACKTRACE", "1"}};
    const struct variable without[] = {{"IPATH_NO_BACKTRACE", NULL}};
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        int status = run("sit", without, 1, each[i]);
        CHECK(WIFSIGNALED(status));
        IS(WTERMSIG(status), each[i]);
        status = run("sit", with, 1, each[i]);
        CHECK(WIFSIGNALED(status));
        IS(WTERMSIG(status), each[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "sit") == 0)
        return sit(0, 9);
    if (argc == 2 && strcmp(argv[1], "refused_env") == 0)
        return refused_env(0, 1);
    if (argc == 2 && strcmp(argv[1], "no_provider") == 0)
        return no_provider(0, 1);
    signals();
    passes("refused_env", (const struct variable[]){{"FI_MR_CACHE_MAX_COUNT", "7"}}, 1);
    passes("no_provider", (const struct variable[]){{"FI_PROVIDER", "sockets"}}, 1);
    puts("ok");
    return 0;
}
