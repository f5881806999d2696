// SPDX-License-Identifier: Apache-2.0
//
// Guarded pools (LIEN_GUARD=1) are mapped twice, for the application and for the provider. The application of lien-sim tells the shadow the addresses that it has; here they become
// the provider's, which transfers name.

#include "program.h"

#include "core/ctx.h"
#include "core/mem/mem.h"

const void *guarded_address(void *self, const void *addr)
{
    const struct program *p = self;
    const void *found = NULL;
    for (unsigned i = 0; i < p->n_nodes && !found; i++)
        if (p->nodes[i].ctx)
            found = lieni_mem_provider_addr(p->nodes[i].ctx->mem, addr);
    return found ? found : addr; // the application's own memory
}
