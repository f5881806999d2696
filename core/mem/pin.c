// SPDX-License-Identifier: Apache-2.0
//
// Pins: memory that a peer may still READ although its buffer is its owner's again. Owns the pins; a chunk counts those on it and is neither unregistered nor unmapped while
// there is one. Under the state lock.

#include "core/mem/impl.h"

#include <stdlib.h>

int lieni_buf_pin(lien_buf *buf, struct lieni_pin **out)
{
    lieni_mem_assert_locked(buf->root);
    struct lieni_pin *pin = calloc(1, sizeof *pin);
    if (!pin) {
        return LIEN_ENOMEM;
    }
    lieni_list_init(&pin->link);
    pin->chunk = buf->chunk;
    pin->chunk->pins++;
    *out = pin;
    return 0;
}

void lieni_pin_end(struct lieni_pin *pin)
{
    struct lieni_chunk *chunk = pin->chunk;
    struct lieni_mem_root *root = chunk->root;
    lieni_mem_assert_locked(root);
    lieni_list_remove(&pin->link);
    free(pin);
    if (--chunk->pins > 0) {
        return;
    }
    if (chunk->mem) {
        lieni_mem_try_release(chunk->mem);
    } else if (chunk->doomed && lieni_regions_close(chunk)) {
        lieni_chunk_settle(chunk);
    }
    lieni_mem_reap(root);
}

void lieni_pin_lose(struct lieni_pin *pin, struct lieni_domain *domain)
{
    struct lieni_mem_root *root = pin->chunk->root;
    lieni_mem_assert_locked(root);
    pin->domain = domain;
    lieni_list_append(&root->pins, &pin->link);
}

void lieni_pins_domain_ended(struct lieni_mem_root *root, struct lieni_domain *domain, bool proven)
{
    struct lieni_node *next;
    for (struct lieni_node *node = lieni_list_first(&root->pins); node; node = next) {
        next = lieni_list_next(&root->pins, node);
        struct lieni_pin *pin = lieni_container(node, struct lieni_pin, link);
        if (pin->domain != domain) {
            continue;
        }
        pin->domain = NULL; // not proven: for good
        if (!proven) {
            pin->chunk->unprovable = true;
            continue;
        }
        lieni_pin_end(pin);
    }
}

// The root ends: chunks that are still pinned stay mapped until the process ends.
void lieni_pins_abandon(struct lieni_mem_root *root)
{
    struct lieni_node *node;
    while ((node = lieni_list_pop(&root->pins))) {
        struct lieni_pin *pin = lieni_container(node, struct lieni_pin, link);
        struct lieni_chunk *chunk = pin->chunk;
        chunk->unprovable = true;
        if (!chunk->counted) { // so that the root, which it is part of, is kept on purpose
            chunk->counted = true;
            root->bytes_lost += chunk->len;
        }
        free(pin);
    }
}
