// SPDX-License-Identifier: Apache-2.0
//
// See report.h.

#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lien/lien.h>

// How far the two raw layouts may differ before that is said.
#define RAW_APART 0.03

void report_begin(struct report *report)
{
    if (report->json)
        printf("{\"version\": \"%s\", \"provider\": \"%s\", \"rounds\": %u, \"rows\": [",
               lien_version(), perf_provider(), report->rounds);
    else
        printf("lien-perf %s, provider %s, two processes on loopback, %u rounds. Medians; between "
               "brackets what four fifths of the rounds lay in.\nTimes are per operation, ratios "
               "to raw within a round, CPU of both processes together.\n",
               lien_version(), perf_provider(), report->rounds);
}

static void json_row(const struct report *report, const struct bench *bench, const struct row *row,
                     const struct figure *figures, uint64_t ops)
{
    printf("%s\n {\"name\": \"%s\", \"bytes\": %zu, \"depth\": %u, \"ops\": %" PRIu64
           ", \"sides\": [",
           report->n_rows ? "," : "", row->name, row->bytes, row->depth, ops);
    for (unsigned i = 0; i < bench->n; i++) {
        const struct figure *f = &figures[i];
        printf("%s\n  {\"name\": \"%s\", \"us\": %.3f, \"us_p10\": %.3f, \"us_p90\": %.3f, "
               "\"ratio\": %.4f, \"ratio_p10\": %.4f, \"ratio_p90\": %.4f, \"cpu_us\": %.3f}",
               i ? "," : "", bench->side[i]->name, f->us, f->us_lo, f->us_hi, f->ratio, f->ratio_lo,
               f->ratio_hi, f->cpu_us);
    }
    printf("]}");
}

// The reference must not be worse than libfabric can do: queues as Lien has them against the plain ones.
static void compare_raw(const struct bench *bench, const struct figure *figures)
{
    for (unsigned i = 1; i < bench->n; i++) {
        if (bench->side[i] != &side_raw_plain)
            continue;
        double apart = 1 / figures[i].ratio - 1;
        if (fabs(apart) <= RAW_APART)
            printf("  raw and raw-plain are within %.0f %%\n", RAW_APART * 100);
        else
            printf("  NOTE: raw takes %.1f %% %s time than raw-plain; ratios are to raw\n",
                   fabs(apart) * 100, apart > 0 ? "more" : "less");
    }
}

static void text_row(const struct bench *bench, const struct row *row, const struct figure *figures,
                     uint64_t ops)
{
    printf("\n%s: %s (%" PRIu64 " in a segment)\n", row->name, row->text, ops);
    printf("  %-12s %10s  %-21s %6s  %-15s %9s%s\n", "side", "us", "[p10 .. p90]", "ratio",
           "[p10 .. p90]", "CPU us", row->depth ? "     GB/s" : "");
    for (unsigned i = 0; i < bench->n; i++) {
        const struct figure *f = &figures[i];
        printf("  %-12s %10.2f  [%8.2f .. %8.2f] %6.2f  [%5.2f .. %5.2f] %9.2f",
               bench->side[i]->name, f->us, f->us_lo, f->us_hi, f->ratio, f->ratio_lo, f->ratio_hi,
               f->cpu_us);
        if (row->depth)
            printf(" %8.2f", (double)row->bytes / f->us / 1e3);
        printf("\n");
    }
    compare_raw(bench, figures);
}

void report_row(struct report *report, const struct bench *bench, const struct row *row,
                const struct figure *figures, uint64_t ops)
{
    if (report->json)
        json_row(report, bench, row, figures, ops);
    else
        text_row(bench, row, figures, ops);
    report->n_rows++;
    fflush(stdout);
}

int report_end(struct report *report)
{
    if (report->json)
        printf("]}\n");
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    perror("lien-perf: standard output");
    return -1;
}
