// SPDX-License-Identifier: Apache-2.0
//
// lien-trace's reader and words against dumps that are damaged at random, from one seed: each is refused by name, or shown; under the sanitizers nothing is read that is not there.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/trace/reader.h"

#define ROUNDS 3000

static uint64_t state = 4711;

static uint32_t next(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

int main(void)
{
    uint8_t good[16384];
    size_t len = reader_sample(good, sizeof good);
    if (reader_show(good, len) != 0) {
        fprintf(stderr, "a good dump is refused\n");
        return 1;
    }
    for (int i = 0; i < ROUNDS; i++) {
        // On the heap, in its size, so that a byte beyond is noticed.
        size_t cut = next(4) == 0 ? next((uint32_t)len + 1) : len;
        uint8_t *bad = malloc(cut ? cut : 1);
        if (!bad)
            return 1;
        memcpy(bad, good, cut);
        for (uint32_t k = next(12); cut > 0 && k > 0; k--)
            bad[next(next(2) ? (uint32_t)cut : (uint32_t)(cut < 300 ? cut : 300))] =
                (uint8_t)(next(3) ? next(256) : next(20));
        reader_show(bad, cut);
        free(bad);
    }
    return 0;
}
