// SPDX-License-Identifier: Apache-2.0
//
// The process that safety needs (design.md 8): libfabric's registration cache off, since it widens access and keeps regions registered; io_uring off, since its endpoint close can
// fail after it closed the descriptor; and the signals libinfinipath takes, merely by being loaded, given back. Runs before main, or at dlopen; there in a process that
// has threads already it must not write the environment, and open refuses unless the host has set it.

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider/ofi/ofi.h"

#if defined(__SANITIZE_THREAD__)
#define SANITIZER_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SANITIZER_THREADS 1
#endif
#endif
#ifndef SANITIZER_THREADS
#define SANITIZER_THREADS 0
#endif

static const struct {
    const char *name;
    const char *value;
    const char *fault;
} wanted[] = {
    {"FI_MR_CACHE_MAX_COUNT", "0",
     "FI_MR_CACHE_MAX_COUNT must be 0: libfabric's registration cache widens access and keeps "
     "regions registered; set it before the process starts threads, or load Lien earlier"},
    {"FI_TCP_IO_URING", "0",
     "FI_TCP_IO_URING must be 0: closing an endpoint is no proof with io_uring; set it before the "
     "process starts threads, or load Lien earlier"},
};

// Threads of this process, 0 if unknown.
static unsigned threads(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    if (!file)
        return 0;
    char line[256];
    unsigned n = 0;
    while (n == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "Threads: %u", &n) != 1)
            n = 0;
    fclose(file);
    return n;
}

void lieni_ofi_restore_signals(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGINT, SIGTERM};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction action;
        if (sigaction(signals[i], NULL, &action) != 0)
            continue;
        // Both members of the union hold the handler's address.
        uintptr_t handler;
        if (action.sa_flags & SA_SIGINFO)
            handler = (uintptr_t)action.sa_sigaction;
        else
            handler = (uintptr_t)action.sa_handler;
        if (handler == (uintptr_t)SIG_DFL || handler == (uintptr_t)SIG_IGN)
            continue;
        Dl_info where;
        // NOLINTNEXTLINE(performance-no-int-to-ptr)
        if (dladdr((void *)handler, &where) == 0 || !where.dli_fname)
            continue;
        if (!strstr(where.dli_fname, "libinfinipath"))
            continue;
        memset(&action, 0, sizeof action);
        action.sa_handler = SIG_DFL;
        sigaction(signals[i], &action, NULL);
    }
}

__attribute__((constructor)) static void prepare(void)
{
    if (threads() <= 1 + SANITIZER_THREADS)
        for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
            setenv(wanted[i].name, wanted[i].value, 1);
    lieni_ofi_restore_signals();
}

const char *lieni_ofi_environment_fault(void)
{
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        const char *value = getenv(wanted[i].name);
        if (!value || strcmp(value, wanted[i].value) != 0)
            return wanted[i].fault;
    }
    return NULL;
}
