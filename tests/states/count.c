// SPDX-License-Identifier: Apache-2.0
//
// Appended to core/version.c in a copy of the tree by ci/states, never compiled elsewhere: counts the changes of state that the setters make.
//
// The counts live in a file that every process of a run maps shared, so that nothing is lost by a fork, an _exit or a kill: a row of 8 bytes a count for each machine (in ci/states'
// order) and each state it leaves, a column for each state it enters. STATES_FILE names it; without, nothing is counted.

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATES 8u // states of a machine, at most

static _Atomic uint64_t *counts;
static size_t n_counts;

void lieni_state_reached(unsigned machine, unsigned from, unsigned to);

// Before main, so that no test sees a mapping or a descriptor come.
__attribute__((constructor)) static void states_map(void)
{
    const char *path = getenv("STATES_FILE");
    struct stat st;
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        void *at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at != MAP_FAILED) {
            n_counts = (size_t)st.st_size / sizeof *counts;
            counts = at;
        }
    }
    close(fd);
}

void lieni_state_reached(unsigned machine, unsigned from, unsigned to)
{
    const size_t i = ((size_t)machine * STATES + from) * STATES + to;
    if (counts && from < STATES && to < STATES && i < n_counts)
        atomic_fetch_add_explicit(&counts[i], 1, memory_order_relaxed);
}
