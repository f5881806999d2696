// SPDX-License-Identifier: Apache-2.0
//
// The one place where Lien's CPU copies payload, so that the count of copied bytes cannot lie. Owns
// nothing; any thread.

#include "core/mem/mem.h"

#include <string.h>

void lieni_copy_payload(_Atomic uint64_t *counter, void *dst, const void *src, size_t len)
{
    if (len == 0) {
        return;
    }
    memcpy(dst, src, len);
    atomic_fetch_add_explicit(counter, len, memory_order_relaxed);
}
