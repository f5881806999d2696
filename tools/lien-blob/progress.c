// SPDX-License-Identifier: Apache-2.0
//
// Progress on stderr. No state but the caller's struct.

#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BAR_WIDTH 30

double progress_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void progress_begin(struct progress *progress, const char *what, const char *name, uint64_t total,
                    uint64_t from)
{
    double now = progress_now();
    *progress = (struct progress){.what = what,
                                  .name = name,
                                  .total = total,
                                  .from = from,
                                  .began = now,
                                  .shown = now,
                                  .terminal = isatty(STDERR_FILENO) == 1};
}

static void draw_bar(const struct progress *progress, int percent, double mb, double rate)
{
    char bar[BAR_WIDTH + 1];
    int filled = percent * BAR_WIDTH / 100;
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(BAR_WIDTH - filled));
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r\033[K%s %.40s [%s] %3d %% %.1f MB %.2f GB/s", progress->what,
            progress->name, bar, percent, mb, rate);
}

void progress_show(struct progress *progress, uint64_t done)
{
    double now = progress_now();
    if (now - progress->shown < (progress->terminal ? 0.1 : 2.0))
        return;
    progress->shown = now;
    int percent = progress->total ? (int)((double)done / (double)progress->total * 100) : 100;
    double rate = (double)(done - progress->from) / (now - progress->began) / 1e9;
    if (progress->terminal)
        draw_bar(progress, percent, (double)done / 1e6, rate);
    else
        fprintf(stderr, "%s %s: %d %%, %.1f of %.1f MB, %.2f GB/s\n", progress->what,
                progress->name, percent, (double)done / 1e6, (double)progress->total / 1e6, rate);
}

void progress_end(struct progress *progress)
{
    if (progress->terminal)
        fputs("\r\033[K", stderr);
}
