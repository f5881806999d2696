// SPDX-License-Identifier: Apache-2.0
//
// The smallest user of Lien: prints one error text.

#include <lien/errors.h>
#include <stdio.h>

int main(void)
{
    printf("%s\n", lien_strerror(LIEN_ESTALE));
    return 0;
}
