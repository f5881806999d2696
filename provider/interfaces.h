// SPDX-License-Identifier: Apache-2.0
//
// The kernel's interfaces as candidates: what providers over the kernel's TCP reach peers by. No state; any thread.

#ifndef LIENI_INTERFACES_H
#define LIENI_INTERFACES_H

#include "provider/provider.h"

// Calls `tell` for each address of each interface, as nic and interface: UP, or DOWN where the interface has no link. One REFUSED row if the system shows none.
void lieni_interfaces(lieni_candidate_fn *tell, void *arg);

#endif
