// SPDX-License-Identifier: Apache-2.0
//
// A host's signals are its own. This program, linked with liblien.so as any host is, runs itself anew for each case, with and without IPATH_NO_BACKTRACE (libinfinipath, which libfabric pulls in, otherwise
// takes six signals): untouched signals end it by their number; handlers installed before or after lien_ctx_open() stay, and run on the host's thread, never on one of ours.

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lien/lien.h>

#include "tests/loops/support.h"

static const int signals[] = {SIGTERM, SIGINT, SIGSEGV, SIGBUS, SIGILL, SIGABRT};
#define N_SIGNALS (sizeof signals / sizeof signals[0])

static lien_ctx *open_one(void)
{
    lien_ctx *ctx;
    IS(lien_ctx_open(NULL, &ctx), 0);
    lien_listener *listener;
    IS(lien_listener_open(ctx, "127.0.0.1:0", NULL, &listener), 0);
    return ctx;
}

static void ready(void)
{
    CHECK(write(9, "x", 1) == 1);
}

// -- Cases, each in a process of its own --

static _Noreturn void sit_for_ever(void)
{
    open_one();
    ready();
    for (;;)
        pause();
}

static int sit(void)
{
    sit_for_ever();
}

static int fault(void)
{
    open_one();
    ready();
    raise(SIGSEGV);
    return 1;
}

static volatile sig_atomic_t handled;
static pthread_t handled_by;

static void on_signal(int number)
{
    handled = number;
    handled_by = pthread_self();
}

static void install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    for (size_t i = 0; i < N_SIGNALS; i++)
        CHECK(sigaction(signals[i], &action, NULL) == 0);
}

static void installed(void)
{
    for (size_t i = 0; i < N_SIGNALS; i++) {
        struct sigaction action;
        CHECK(sigaction(signals[i], NULL, &action) == 0);
        CHECK(action.sa_handler == on_signal && !(action.sa_flags & SA_SIGINFO));
    }
}

// A signal to the process comes to the host's one thread, though it sleeps and ours do too. Blocked there, it stays pending.
static void delivered(void)
{
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    handled = 0;
    CHECK(kill(getpid(), SIGTERM) == 0);
    for (int i = 0; i < 5000 && !handled; i++)
        sleep_ms(1);
    IS(handled, SIGTERM);
    CHECK(pthread_equal(handled_by, pthread_self()));
    handled = 0;
    CHECK(pthread_sigmask(SIG_BLOCK, &term, NULL) == 0);
    CHECK(kill(getpid(), SIGTERM) == 0);
    sleep_ms(100);
    IS(handled, 0);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &term, NULL) == 0);
    IS(handled, SIGTERM);
}

static int before(void)
{
    install();
    lien_ctx *ctx = open_one();
    installed();
    delivered();
    IS(lien_ctx_close(&ctx), 0);
    installed();
    return 0;
}

static int after(void)
{
    lien_ctx *ctx = open_one();
    install();
    delivered();
    IS(lien_ctx_close(&ctx), 0);
    installed();
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} cases[] = {{"sit", sit}, {"fault", fault}, {"before", before}, {"after", after}};

// -- Running them --

// Runs the case and returns its wait status. `number`: sent once it is ready, or 0.
static int run(const char *name, bool no_backtrace, int number)
{
    int pipe_fds[2];
    CHECK(pipe(pipe_fds) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        if (no_backtrace)
            setenv("IPATH_NO_BACKTRACE", "1", 1);
        else
            unsetenv("IPATH_NO_BACKTRACE");
        // AddressSanitizer would take the fault for itself.
        setenv("ASAN_OPTIONS",
               "handle_segv=0:handle_sigbus=0:handle_sigill=0:handle_abort=0:detect_leaks=0", 1);
        dup2(pipe_fds[1], 9);
        execl("/proc/self/exe", "test_signals", name, (char *)NULL);
        _exit(99);
    }
    close(pipe_fds[1]);
    if (number) {
        char byte;
        CHECK(read(pipe_fds[0], &byte, 1) == 1);
        CHECK(kill(pid, number) == 0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    close(pipe_fds[0]);
    return status;
}

static void ended_by(int status, int number)
{
    CHECK(WIFSIGNALED(status));
    IS(WTERMSIG(status), number);
}

static void all(bool no_backtrace)
{
    ended_by(run("sit", no_backtrace, SIGTERM), SIGTERM);
    ended_by(run("sit", no_backtrace, SIGINT), SIGINT);
    ended_by(run("sit", no_backtrace, SIGSEGV), SIGSEGV);
    ended_by(run("fault", no_backtrace, 0), SIGSEGV);
    for (size_t i = 2; i < sizeof cases / sizeof cases[0]; i++) {
        int status = run(cases[i].name, no_backtrace, 0);
        CHECK(WIFEXITED(status));
        IS(WEXITSTATUS(status), 0);
    }
    printf("IPATH_NO_BACKTRACE %s: ok\n", no_backtrace ? "set" : "unset");
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(argv[1], cases[i].name) == 0)
            return cases[i].run();
    all(false);
    all(true);
    puts("ok");
    return 0;
}
