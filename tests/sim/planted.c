// SPDX-License-Identifier: Apache-2.0
//
// A fault planted into lien-sim (--wrap of the linker), for tests/sim/shrinks: that entries prove nothing once the destruction began (R17) is forgotten. The tool must find it, and shrink what it found.

#include "core/evidence.h"

void __wrap_lieni_wrs_end(struct lieni_wrs *t); // a name that the linker makes

void __wrap_lieni_wrs_end(struct lieni_wrs *t)
{
    (void)t;
}
