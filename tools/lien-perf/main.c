// SPDX-License-Identifier: Apache-2.0
//
// lien-perf: what Lien costs over raw libfabric, measured in the same run between two processes. It judges nothing: numbers of one machine at one moment. Begin with
// side.h, then raw.c and lien_side.c (what is measured), measure.c (how).

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/lien.h>

#include "measure.h"
#include "report.h"

static const char help[] =
    "lien-perf: Lien against raw libfabric, between two processes on this machine\n"
    "\n"
    "  lien-perf [--rounds N] [--segment MS] [--row NAME]... [--side NAME]... [--json]\n"
    "\n"
    "  -r, --rounds N    rounds of each row, 1 to 10000 (default 20)\n"
    "  -s, --segment MS  about how long each side runs in a round, 1 to 10000 (default 50)\n"
    "  -R, --row NAME    only this row; may be given again\n"
    "  -S, --side NAME   only this side; ratios are to the first one\n"
    "  -j, --json        the result as JSON\n"
    "  -h, --help        this text\n"
    "  -V, --version     the version\n"
    "\n"
    "FI_PROVIDER names the provider (default tcp). More in lien-perf(1). Rows:\n";

static const struct option options[] = {
    {"rounds", required_argument, NULL, 'r'},
    {"segment", required_argument, NULL, 's'},
    {"row", required_argument, NULL, 'R'},
    {"side", required_argument, NULL, 'S'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {"peer", required_argument, NULL, 'P'}, // for the second process alone
    {NULL, 0, NULL, 0},
};

struct args {
    unsigned rounds, segment_ms;
    unsigned rows; // chosen: a bit for each; 0: all
    unsigned sides;
    bool json;
};

static int parse_count(const char *text, unsigned *value)
{
    char *end;
    errno = 0;
    unsigned long n = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || n < 1 || n > ROUNDS_MAX) {
        fprintf(stderr, "lien-perf: '%s' is no number from 1 to %u\n", text, ROUNDS_MAX);
        return 2;
    }
    *value = (unsigned)n;
    return 0;
}

static int choose_row(struct args *args, const char *name)
{
    const struct row *row = row_find(name);
    if (!row) {
        fprintf(stderr, "lien-perf: no row '%s' (lien-perf --help lists them)\n", name);
        return 2;
    }
    args->rows |= 1u << (row - rows);
    return 0;
}

static int choose_side(struct args *args, const char *name)
{
    for (const struct side *const *side = sides; *side; side++) {
        if (strcmp((*side)->name, name) != 0)
            continue;
        args->sides |= 1u << (side - sides);
        return 0;
    }
    fprintf(stderr, "lien-perf: no side '%s' (lien-perf --help lists them)\n", name);
    return 2;
}

static void say_help(void)
{
    fputs(help, stdout);
    for (const struct row *row = rows; row->name; row++)
        printf("  %-14s %s\n", row->name, row->text);
    printf("Sides:\n");
    for (const struct side *const *side = sides; *side; side++)
        printf("  %-14s %s\n", (*side)->name, (*side)->text);
}

static int measure(const struct args *args)
{
    struct bench bench;
    struct report report = {.json = args->json, .rounds = args->rounds};
    int status = bench_open(&bench, args->sides);
    if (status == 0)
        report_begin(&report);
    for (const struct row *row = rows; status == 0 && row->name; row++) {
        struct figure figures[SIDES_MAX];
        uint64_t ops;
        if (args->rows && !(args->rows & 1u << (row - rows)))
            continue;
        status = bench_row(&bench, row, args->rounds, args->segment_ms, figures, &ops);
        if (status == 0)
            report_row(&report, &bench, row, figures, ops);
    }
    if (status == 0)
        status = report_end(&report);
    if (bench_close(&bench) != 0 || status != 0)
        return 1;
    return 0;
}

int main(int argc, char **argv)
{
    struct args args = {.rounds = 20, .segment_ms = 50};
    signal(SIGPIPE, SIG_IGN);
    if (setenv("FI_PROVIDER", perf_provider(), 1) != 0)
        return 1;
    int status = 0;
    for (int option;
         status == 0 && (option = getopt_long(argc, argv, "r:s:R:S:jhV", options, NULL)) != -1;) {
        switch (option) {
        case 'r':
            status = parse_count(optarg, &args.rounds);
            break;
        case 's':
            status = parse_count(optarg, &args.segment_ms);
            break;
        case 'R':
            status = choose_row(&args, optarg);
            break;
        case 'S':
            status = choose_side(&args, optarg);
            break;
        case 'j':
            args.json = true;
            break;
        case 'h':
            say_help();
            return 0;
        case 'V':
            printf("lien-perf %s\n", lien_version());
            return 0;
        case 'P':
            return peer_main(optarg);
        default:
            status = 2;
        }
    }
    if (status == 0 && optind < argc) {
        fprintf(stderr, "lien-perf: no operand is expected: '%s'\n", argv[optind]);
        status = 2;
    }
    return status == 0 ? measure(&args) : status;
}
