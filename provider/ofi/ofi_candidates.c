// SPDX-License-Identifier: Apache-2.0
//
// Candidates of libfabric's providers over the kernel's TCP: its interfaces, where libfabric has the provider at all. No state; any thread.

#include <stdio.h>

#include "provider/interfaces.h"
#include "provider/ofi/ofi.h"

void lieni_ofi_candidates(const struct lieni_ofi *ofi, lieni_candidate_fn *tell, void *arg)
{
    struct lieni_candidate none = {.state = LIEN_CANDIDATE_REFUSED};
    if (lieni_ofi_offered(ofi, none.reason, sizeof none.reason))
        lieni_interfaces(tell, arg);
    else
        tell(arg, &none);
}
