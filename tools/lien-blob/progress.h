// SPDX-License-Identifier: Apache-2.0
//
// How far a transfer is: a bar that redraws itself where stderr is a terminal, elsewhere a plain line now and then. One thread.

#ifndef BLOB_PROGRESS_H
#define BLOB_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; // "put" or "get"
    const char *name;
    uint64_t total;
    uint64_t from; // bytes that were there already
    double began;
    double shown; // when something was last printed
    bool terminal;
};

// Seconds on a clock that only moves forward.
double progress_now(void);
void progress_begin(struct progress *progress, const char *what, const char *name, uint64_t total,
                    uint64_t from);
// `done` of `total` bytes are there. Cheap: prints at most ten times a second (terminal) or every two seconds.
void progress_show(struct progress *progress, uint64_t done);
// Wipes the bar, so that the next line stands alone.
void progress_end(struct progress *progress);

#endif
