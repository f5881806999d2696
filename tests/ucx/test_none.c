// SPDX-License-Identifier: Apache-2.0
//
// Provider ucx of a build without UCX: it has its name and its traits, says what is missing, and does not open.

#include <string.h>

#include "provider/ucx/ucx_provider.h"
#include "tests/support/check.h"

static char text[256];

static void say(void *self, lien_level level, int code, const char *said)
{
    (void)self;
    CHECK(level == LIEN_LOG_ERROR && code == LIEN_ENOPROVIDER);
    snprintf(text, sizeof text, "%s", said);
}

int main(void)
{
    const struct lieni_prov_args args = {.report = {.say = say}};
    struct lieni_prov *prov = NULL;
    CHECK(strcmp(lieni_provider_ucx.traits->name, "ucx") == 0);
    CHECK(lieni_provider_ucx.traits->only_if_asked);
    CHECK(lieni_provider_ucx.open(&args, &prov) == LIEN_ENOPROVIDER && !prov);
    CHECK(strstr(text, "this build has it not"));
    return 0;
}
