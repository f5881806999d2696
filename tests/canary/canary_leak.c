// SPDX-License-Identifier: Apache-2.0
//
// Planted fault: a leak inside a Criterion test, which Criterion itself lets pass.

#include <criterion/criterion.h>
#include <stdlib.h>

Test(canary, leaks)
{
    char *volatile p = malloc(10);
    cr_assert(p != NULL);
    p = NULL;
}
