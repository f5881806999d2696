// SPDX-License-Identifier: Apache-2.0
//
// Planted fault: signed overflow.

#include <limits.h>

int main(void)
{
    volatile int x = INT_MAX;
    x = x + 1;
    return 0;
}
