// SPDX-License-Identifier: Apache-2.0
//
// See quarantine.h.

#include "core/quarantine.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    struct lieni_node node;
    const struct lieni_domain *domain; // NULL: for good, its domain ended without proof
    uint64_t bytes;
    char peer[96];
};

void lieni_quarantine_init(struct lieni_quarantine *q)
{
    *q = (struct lieni_quarantine){0};
    lieni_list_init(&q->entries);
}

void lieni_quarantine_free(struct lieni_quarantine *q)
{
    struct lieni_node *n;
    while ((n = lieni_list_pop(&q->entries)))
        free(lieni_container(n, struct entry, node));
}

static struct entry *find(const struct lieni_quarantine *q, const struct lieni_domain *domain,
                          const char *peer)
{
    for (struct lieni_node *n = q->entries.next; n != &q->entries; n = n->next) {
        struct entry *e = lieni_container(n, struct entry, node);
        if (e->domain == domain && strcmp(e->peer, peer) == 0)
            return e;
    }
    return NULL;
}

void lieni_quarantine_add(struct lieni_quarantine *q, const struct lieni_domain *domain,
                          const char *peer, uint64_t bytes)
{
    q->bytes += bytes;
    q->total += bytes;
    struct entry *e = find(q, domain, peer);
    if (!e) {
        e = calloc(1, sizeof(*e));
        if (!e)
            return;
        e->domain = domain;
        strncpy(e->peer, peer, sizeof(e->peer) - 1);
        lieni_list_append(&q->entries, &e->node);
    }
    e->bytes += bytes;
}

uint64_t lieni_quarantine_of_peer(const struct lieni_quarantine *q, const char *peer)
{
    uint64_t bytes = 0;
    for (struct lieni_node *n = q->entries.next; n != &q->entries; n = n->next) {
        const struct entry *e = lieni_container(n, struct entry, node);
        if (strcmp(e->peer, peer) == 0)
            bytes += e->bytes;
    }
    return bytes;
}

void lieni_quarantine_ended(struct lieni_quarantine *q, const struct lieni_domain *domain,
                            bool proven)
{
    struct lieni_node *next;
    for (struct lieni_node *n = q->entries.next; n != &q->entries; n = next) {
        struct entry *e = lieni_container(n, struct entry, node);
        next = n->next;
        if (e->domain != domain)
            continue;
        e->domain = NULL; // its address may come again
        if (!proven)
            continue;
        q->bytes -= e->bytes;
        lieni_list_remove(n);
        free(e);
    }
}
