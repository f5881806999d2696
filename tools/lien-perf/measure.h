// SPDX-License-Identifier: Apache-2.0
//
// Rows, and their measurement: in every round each side has one segment of equal work, in an order that turns, so that what else the machine does meets all alike. Ratios are taken
// within a round. One thread.

#ifndef PERF_MEASURE_H
#define PERF_MEASURE_H

#include <stddef.h>
#include <stdint.h>

#include "peer.h"
#include "side.h"

#define SIDES_MAX  8u
#define ROUNDS_MAX 10000u

struct row {
    const char *name;
    const char *text;
    size_t bytes;
    unsigned depth; // 0: messages
};

extern const struct row rows[]; // ended by a NULL name
const struct row *row_find(const char *name);

// One side of a row: medians over the rounds, and between which values four fifths of them lay.
struct figure {
    double us, us_lo, us_hi;          // per operation
    double ratio, ratio_lo, ratio_hi; // to the first side, in the same round
    double cpu_us;                    // CPU time of both processes per operation
};

struct bench {
    const struct side *side[SIDES_MAX];
    struct peer peer[SIDES_MAX];
    void *client[SIDES_MAX];
    unsigned n;
};

// Starts the peers of the sides in `chosen` (a bit for each of `sides`; 0: all) and connects to them. Nonzero: it said why; bench_close() all the same.
int bench_open(struct bench *bench, unsigned chosen);
// Nonzero: a peer failed.
int bench_close(struct bench *bench);
// Measures a row, `rounds` rounds of segments of about `segment_ms`; *ops gets the operations of a segment. Nonzero: a side failed, or the bytes read are wrong.
int bench_row(struct bench *bench, const struct row *row, unsigned rounds, unsigned segment_ms,
              struct figure *figures, uint64_t *ops);

#endif
