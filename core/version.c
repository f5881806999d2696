// SPDX-License-Identifier: Apache-2.0
//
// The version, which the build takes from project() and hands to this file alone.

#include <lien/lien.h>

const char *lien_version(void)
{
    return LIENI_VERSION;
}
