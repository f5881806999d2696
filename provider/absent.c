// SPDX-License-Identifier: Apache-2.0
//
// See absent.h. A provider that joins the build leaves this list.

#include "provider/absent.h"

#include <stdio.h>

static void ucx(char *text, size_t size)
{
    snprintf(text, size, "this build of Lien has no ucx provider");
}

const struct lieni_absent lieni_absent_providers[] = {{"ucx", ucx}, {NULL, NULL}};
