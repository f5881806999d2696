// SPDX-License-Identifier: Apache-2.0
//
// Prints how often the processor's time stamp counter ticks, in kHz, for ci/verbs-test. One thread, and nothing kept. However often it is interrupted: each reading of the counter is the closest of many to one of the clock.

#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct reading {
    uint64_t ticks;
    double ns;
};

static struct reading read_both(void)
{
    struct reading best = {0, 0};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 1000; i++) {
        struct timespec at;
        uint64_t before = __rdtsc();
        clock_gettime(CLOCK_MONOTONIC, &at);
        uint64_t took = __rdtsc() - before;
        if (took < least) {
            least = took;
            best.ticks = before + took / 2;
            best.ns = (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
        }
    }
    return best;
}

int main(void)
{
    struct reading begin = read_both();
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    struct reading end = read_both();
    printf("%.0f\n", (double)(end.ticks - begin.ticks) / (end.ns - begin.ns) * 1e6);
    return 0;
}
