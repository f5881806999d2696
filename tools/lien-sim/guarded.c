// SPDX-License-Identifier: Apache-2.0
//
// Guarded pools (LIEN_GUARD=1) are mapped twice, for the application and for the provider. The application of lien-sim tells the shadow the addresses that it has; here they become
// the provider's, which transfers name. Reads core's own tables, as cells.c does.

#include "program.h"

#include "core/ctx.h"
#include "core/mem/impl.h"

// Among the chunks of a list. NULL: in none.
static const void *in_chunks(const struct lieni_node *head, const uint8_t *addr)
{
    for (struct lieni_node *n = head->next; n != head; n = n->next) {
        const struct lieni_chunk *chunk = lieni_container(n, struct lieni_chunk, link);
        if (addr >= chunk->app && addr < chunk->app + chunk->len)
            return chunk->base + (addr - chunk->app);
    }
    return NULL;
}

static const void *in_root(const struct lieni_mem_root *root, const uint8_t *addr)
{
    const void *found = in_chunks(&root->kept, addr);
    const struct lieni_node *head = &root->pools;
    for (struct lieni_node *n = head->next; n != head && !found; n = n->next)
        found = in_chunks(&lieni_container(n, lien_pool, link)->chunks, addr);
    return found;
}

const void *guarded_address(void *self, const void *addr)
{
    const struct program *p = self;
    const void *found = NULL;
    for (unsigned i = 0; i < p->n_nodes && !found; i++)
        if (p->nodes[i].ctx)
            found = in_root(p->nodes[i].ctx->mem, addr);
    return found ? found : addr; // the application's own memory
}
