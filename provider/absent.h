// SPDX-License-Identifier: Apache-2.0
//
// Providers that Lien knows by name and this build does not have: so that who asks for one hears why he does not get it. Constant.

#ifndef LIENI_ABSENT_H
#define LIENI_ABSENT_H

#include "provider/provider.h"

extern const struct lieni_absent lieni_absent_providers[]; // ended by an empty name

#endif
