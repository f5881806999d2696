// SPDX-License-Identifier: Apache-2.0
//
// What is printed: a table for people, or one JSON object. One thread.

#ifndef PERF_REPORT_H
#define PERF_REPORT_H

#include <stdbool.h>

#include "measure.h"

struct report {
    bool json;
    unsigned rounds;
    unsigned n_rows; // printed so far
};

void report_begin(struct report *report);
void report_row(struct report *report, const struct bench *bench, const struct row *row,
                const struct figure *figures, uint64_t ops);
// Nonzero: standard output is full or closed.
int report_end(struct report *report);

#endif
