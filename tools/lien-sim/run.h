// SPDX-License-Identifier: Apache-2.0
//
// Running programs in processes of their own: lien-sim.c runs them, shrink.c runs one again and again.

#ifndef LIEN_SIM_RUN_H
#define LIEN_SIM_RUN_H

#include "program.h"

struct run { // which program
    uint64_t seed;
    unsigned steps;
    uint8_t *skip; // `steps` of them, or NULL
    uint64_t without;
    int kind; // -1: by seed
    enum trace trace;
};

struct outcome { // shared with the process that runs
    uint64_t seed;
    bool failed;
    unsigned step; // at which it failed
    char failure[640];
    struct cells cells;
    struct tally tally;
};

// In this process. False: it failed.
bool run_here(const struct run *run, struct outcome *outcome);
// The rest of the command line that runs it again.
void run_print(const struct run *run, FILE *out);

// Leaves out steps and faults of a program that fails as long as it goes on failing in the same way, then shows what is left. The exit status.
// It stops looking after `seconds` of processor time; 0: when there is nothing left to try.
int shrink(const struct run *run, struct outcome *outcome, unsigned seconds);

#endif
