// SPDX-License-Identifier: Apache-2.0
//
// Which limit of this process stands behind an error of the system, for the log. Owns nothing; any thread. Slow: for errors only.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "provider/provider.h"

// Descriptors that are open, without one more. Counting ends somewhere where the limit is in the millions.
#define COUNT_MOST 65536

static unsigned open_descriptors(rlim_t limit)
{
    unsigned n = 0;
    for (int fd = 0; fd < COUNT_MOST && (rlim_t)fd < limit; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void descriptors(char *text, size_t size)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(text, size,
                 "; the limit of descriptors (RLIMIT_NOFILE) is %llu, %u are open; a connection "
                 "needs up to "
                 "%d",
                 (unsigned long long)limit.rlim_cur, open_descriptors(limit.rlim_cur),
                 LIENI_CONN_DESCRIPTORS);
}

struct one {
    __rlimit_resource_t resource;
    const char *name, *unit;
};

// Those that are set. Bytes of text.
static size_t list(const struct one *limits, size_t n_limits, char *text, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < n_limits; i++) {
        struct rlimit limit;
        if (getrlimit(limits[i].resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
            continue;
        int n = snprintf(text + at, size - at, "%s%s %llu%s", at ? ", of " : "; limits: of ",
                         limits[i].name, (unsigned long long)limit.rlim_cur, limits[i].unit);
        if (n < 0 || (size_t)n >= size - at)
            break;
        at += (size_t)n;
    }
    return at;
}

static void memory(char *text, size_t size)
{
    static const struct one limits[] = {
        {RLIMIT_AS, "address space (RLIMIT_AS)", " bytes"},
        {RLIMIT_DATA, "data (RLIMIT_DATA)", " bytes"},
        {RLIMIT_MEMLOCK, "locked memory (RLIMIT_MEMLOCK)", " bytes"}};
    list(limits, sizeof limits / sizeof limits[0], text, size);
}

const char *lieni_limits_thread(int error, char *text, size_t size)
{
    // pthread_create says EAGAIN for want of processes and of memory for the stack alike.
    static const struct one limits[] = {{RLIMIT_AS, "address space (RLIMIT_AS)", " bytes"},
                                        {RLIMIT_DATA, "data (RLIMIT_DATA)", " bytes"},
                                        {RLIMIT_NPROC, "processes (RLIMIT_NPROC)", ""}};
    text[0] = '\0';
    if (error != EAGAIN && error != ENOMEM)
        return text;
    const size_t at = list(limits, sizeof limits / sizeof limits[0], text, size);
    snprintf(text + at, size - at, "%s", at ? ", or pids.max" : "; the limit may be pids.max");
    return text;
}

const char *lieni_limits_note(int error, char *text, size_t size)
{
    text[0] = '\0';
    if (error == EMFILE)
        descriptors(text, size);
    else if (error == ENFILE)
        snprintf(text, size, "; the limit is the system's (fs.file-max), not this process's");
    else if (error == ENOMEM)
        memory(text, size);
    else if (error == ENOSYS || error == EPERM)
        snprintf(text, size, "; a sandbox (seccomp) may forbid it");
    return text;
}

bool lieni_limits_short(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

const char *lieni_limits_starved(char *text, size_t size)
{
    struct rlimit limit;
    const int fd = open("/", O_PATH | O_CLOEXEC); // gets the lowest number that is free
    const int error = fd < 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    text[0] = '\0';
    if (error == EMFILE || error == ENFILE)
        return lieni_limits_note(error, text, size);
    if (fd >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
        (rlim_t)fd + LIENI_CONN_DESCRIPTORS > limit.rlim_cur)
        return lieni_limits_note(EMFILE, text, size);
    return text;
}
