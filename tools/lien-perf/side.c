// SPDX-License-Identifier: Apache-2.0
//
// What all sides share: the list of them and the bytes they move. No state.

#include "side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct side *const sides[] = {&side_raw,         &side_raw_plain,   &side_lien,
                                    &side_lien_inline, &side_lien_driven, NULL};

uint64_t perf_pattern(size_t at)
{
    return (uint64_t)at * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

void perf_fill(uint8_t *source)
{
    for (size_t at = 0; at < PERF_SOURCE; at += sizeof(uint64_t)) {
        uint64_t word = perf_pattern(at);
        memcpy(source + at, &word, sizeof word);
    }
}

int perf_say_address(int out, const char *address)
{
    char line[128];
    int len = snprintf(line, sizeof line, "%s\n", address);
    if (write(out, line, (size_t)len) == len)
        return 0;
    perror("lien-perf: writing the address");
    return -1;
}

const char *perf_provider(void)
{
    const char *set = getenv("FI_PROVIDER");
    return set && *set ? set : "tcp";
}
