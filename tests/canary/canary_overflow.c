// SPDX-License-Identifier: Apache-2.0
//
// Planted fault: a read one byte behind a heap block.

#include <stdlib.h>

int main(void)
{
    volatile size_t size = 10;
    volatile char *p = calloc(size, 1);
    if (p == NULL) {
        return 2;
    }
    char past = p[size];
    free((void *)(size_t)p);
    return past;
}
