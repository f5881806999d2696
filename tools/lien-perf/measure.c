// SPDX-License-Identifier: Apache-2.0
//
// See measure.h.

#include "measure.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KIB ((size_t)1024)

const struct row rows[] = {
    {"message-64", "message of 64 B, round trip", 64, 0},
    {"read-4K", "READ of 4 KiB, one at a time", 4 * KIB, 1},
    {"read-4K-x16", "READ of 4 KiB, 16 at a time", 4 * KIB, 16},
    {"read-64K", "READ of 64 KiB, one at a time", 64 * KIB, 1},
    {"read-64K-x16", "READ of 64 KiB, 16 at a time", 64 * KIB, 16},
    {"read-1M", "READ of 1 MiB, one at a time", KIB *KIB, 1},
    {"read-1M-x16", "READ of 1 MiB, 16 at a time", KIB *KIB, 16},
    {NULL, NULL, 0, 0},
};

const struct row *row_find(const char *name)
{
    for (const struct row *row = rows; row->name; row++) {
        if (strcmp(row->name, name) == 0)
            return row;
    }
    return NULL;
}

// -- Peers -------------------------------------------------------------------------------------------------------------------------

int bench_open(struct bench *bench, unsigned chosen)
{
    memset(bench, 0, sizeof *bench);
    for (const struct side *const *side = sides; *side && bench->n < SIDES_MAX; side++) {
        unsigned i = bench->n;
        if (chosen && !(chosen & 1u << (side - sides)))
            continue;
        if (peer_start(*side, &bench->peer[i]) != 0)
            return -1;
        bench->side[bench->n++] = *side;
        if ((*side)->open(*side, bench->peer[i].address, &bench->client[i]) != 0)
            return -1;
    }
    return 0;
}

int bench_close(struct bench *bench)
{
    int status = 0;
    for (unsigned i = 0; i < bench->n; i++) {
        if (bench->client[i])
            bench->side[i]->close(bench->client[i]);
        if (peer_stop(&bench->peer[i]) != 0) {
            fprintf(stderr, "lien-perf: the peer of %s failed\n", bench->side[i]->name);
            status = -1;
        }
    }
    bench->n = 0;
    return status;
}

// -- Segments ----------------------------------------------------------------------------------------------------------------------

static double now(clockid_t clock)
{
    struct timespec at;
    clock_gettime(clock, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

// `n` operations: seconds per operation, and of CPU.
static int segment(struct bench *bench, unsigned i, const struct row *row, uint64_t n, double *each,
                   double *cpu)
{
    const struct side *side = bench->side[i];
    double cpu_before = now(CLOCK_PROCESS_CPUTIME_ID) + peer_cpu(&bench->peer[i]);
    double before = now(CLOCK_MONOTONIC);
    int status = row->depth == 0 ? side->messages(bench->client[i], row->bytes, n)
                                 : side->reads(bench->client[i], row->bytes, row->depth, n);
    *each = (now(CLOCK_MONOTONIC) - before) / (double)n;
    *cpu = (now(CLOCK_PROCESS_CPUTIME_ID) + peer_cpu(&bench->peer[i]) - cpu_before) / (double)n;
    return status;
}

// Whether the targets hold what the source does.
static int check(struct bench *bench, unsigned i, const struct row *row)
{
    const struct side *side = bench->side[i];
    for (unsigned t = 0; t < row->depth; t++) {
        const uint8_t *target = side->target(bench->client[i], t);
        if (!target)
            return -1;
        for (size_t at = 0; at < row->bytes; at += sizeof(uint64_t)) {
            uint64_t word;
            memcpy(&word, target + at, sizeof word);
            if (word != perf_pattern(t * PERF_READ_MAX + at)) {
                fprintf(stderr, "lien-perf: %s, %s: wrong bytes at %zu\n", row->name, side->name,
                        at);
                return -1;
            }
        }
    }
    return 0;
}

// Nobody may be taken for dead while others run.
static void idle(struct bench *bench)
{
    for (unsigned i = 0; i < bench->n; i++) {
        if (bench->side[i]->idle)
            bench->side[i]->idle(bench->client[i]);
    }
}

// How many operations make a segment of the first side, after all are warm.
static int calibrate(struct bench *bench, const struct row *row, unsigned segment_ms, uint64_t *n)
{
    uint64_t warm = row->depth > 1 ? row->depth : 4;
    double each = 0, cpu;
    for (unsigned turn = 0; turn < 2; turn++) {
        for (unsigned i = bench->n; i-- > 0;) {
            idle(bench);
            if (segment(bench, i, row, warm, &each, &cpu) != 0 || check(bench, i, row) != 0)
                return -1;
        }
    }
    double fit = each > 0 ? segment_ms / 1e3 / each : 1;
    *n = fit > 1e6 ? 1000000 : (uint64_t)fit;
    if (*n < warm)
        *n = warm;
    return 0;
}

// -- Statistics --------------------------------------------------------------------------------------------------------------------

static int by_value(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

// The value below which `share` of them lie; sorted.
static double quantile(const double *sorted, unsigned n, double share)
{
    double at = share * (double)(n - 1);
    unsigned low = (unsigned)at;
    unsigned high = low + 1 < n ? low + 1 : low;
    return sorted[low] + (at - (double)low) * (sorted[high] - sorted[low]);
}

static void summarize(double *values, unsigned n, double *mid, double *lo, double *hi)
{
    qsort(values, n, sizeof *values, by_value);
    *mid = quantile(values, n, 0.5);
    *lo = quantile(values, n, 0.1);
    *hi = quantile(values, n, 0.9);
}

// Turns times[side][round] and cpus[side][round], in seconds, into figures.
static void figures_of(unsigned sides_n, unsigned rounds, double *times, double *cpus,
                       double *ratios, struct figure *figures)
{
    for (unsigned i = sides_n; i-- > 0;) { // the first side, the base of ratios, is sorted last
        struct figure *f = &figures[i];
        double *mine = times + (size_t)i * rounds, *cpu = cpus + (size_t)i * rounds, lo, hi;
        for (unsigned r = 0; r < rounds; r++) {
            ratios[r] = mine[r] / times[r];
            cpu[r] *= 1e6;
        }
        summarize(ratios, rounds, &f->ratio, &f->ratio_lo, &f->ratio_hi);
        summarize(cpu, rounds, &f->cpu_us, &lo, &hi);
        if (i > 0)
            summarize(mine, rounds, &f->us, &f->us_lo, &f->us_hi);
    }
    summarize(times, rounds, &figures[0].us, &figures[0].us_lo, &figures[0].us_hi);
    for (unsigned i = 0; i < sides_n; i++) {
        figures[i].us *= 1e6;
        figures[i].us_lo *= 1e6;
        figures[i].us_hi *= 1e6;
    }
}

int bench_row(struct bench *bench, const struct row *row, unsigned rounds, unsigned segment_ms,
              struct figure *figures, uint64_t *ops)
{
    size_t cells = (size_t)bench->n * rounds;
    double *times = calloc(2 * cells + rounds, sizeof *times);
    if (!times) {
        fprintf(stderr, "lien-perf: no memory for %u rounds\n", rounds);
        return -1;
    }
    double *cpus = times + cells;
    int status = calibrate(bench, row, segment_ms, ops);
    for (unsigned r = 0; status == 0 && r < rounds; r++) {
        for (unsigned k = 0; status == 0 && k < bench->n; k++) {
            unsigned i = (r + k) % bench->n;
            idle(bench);
            size_t cell = (size_t)i * rounds + r;
            status = segment(bench, i, row, *ops, &times[cell], &cpus[cell]);
        }
    }
    for (unsigned i = 0; status == 0 && i < bench->n; i++)
        status = check(bench, i, row);
    if (status == 0)
        figures_of(bench->n, rounds, times, cpus, cpus + cells, figures);
    free(times);
    return status;
}
