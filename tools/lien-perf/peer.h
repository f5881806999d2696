// SPDX-License-Identifier: Apache-2.0
//
// A side's server in a process of its own: this program once more, which ends with its input.

#ifndef PERF_PEER_H
#define PERF_PEER_H

#include <sys/types.h>

#include "side.h"

struct peer {
    pid_t pid;
    int in; // its input: closing it ends it
    char address[128];
};

// 0, or nonzero after it said why; then there is no process.
int peer_start(const struct side *side, struct peer *peer);
// Ends it and waits. Nonzero: it failed.
int peer_stop(struct peer *peer);
// In the new process, its main: `name` is a side's.
int peer_main(const char *name);
// CPU time that the process used so far, in seconds.
double peer_cpu(const struct peer *peer);

#endif
