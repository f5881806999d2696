// SPDX-License-Identifier: Apache-2.0
//
// Allocations of the library that fail.

#ifndef LIEN_SIM_POOR_H
#define LIEN_SIM_POOR_H

#include <stddef.h>
#include <stdint.h>

// The `nth` allocation from now on fails, and as many in a row; 0: none does.
void poor_set(unsigned nth, unsigned in_a_row);
// How many failed since it was last asked.
uint64_t poor_failed(void);
// Called at each that fails; must not allocate.
void poor_watch(void (*hook)(void *self), void *self);
// Zeroed memory of the application's own, which never fails; free().
void *app_new(size_t size);

#endif
