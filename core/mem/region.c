// SPDX-License-Identifier: Apache-2.0
//
// Registrations: one region for each chunk and domain that met, made at first use. Under the state
// lock. A region is in its chunk's list and in the root's until it was closed, or its domain's end proved it
// gone. While a chunk has one, the chunk is never unmapped.

#include "core/mem/impl.h"

#include <stdlib.h>

static void region_free(struct lieni_region_rec *region)
{
    lieni_list_remove(&region->by_chunk);
    lieni_list_remove(&region->by_root);
    free(region);
}

bool lieni_regions_close(struct lieni_chunk *chunk)
{
    struct lieni_node *next;
    for (struct lieni_node *node = lieni_list_first(&chunk->regions); node; node = next) {
        next = lieni_list_next(&chunk->regions, node);
        struct lieni_region_rec *region = lieni_container(node, struct lieni_region_rec, by_chunk);
        if (!region->domain) {
            continue;
        }
        int rc = region->prov->mr_close(region->mr);
        if (rc) {
            lieni_mem_fail(chunk->root, rc, "a region of %zu bytes did not close; memory is kept",
                           chunk->len);
            continue;
        }
        region_free(region);
    }
    return lieni_list_empty(&chunk->regions);
}

static struct lieni_region_rec *region_find(struct lieni_chunk *chunk, struct lieni_domain *domain)
{
    for (struct lieni_node *node = lieni_list_first(&chunk->regions); node;
         node = lieni_list_next(&chunk->regions, node)) {
        struct lieni_region_rec *region = lieni_container(node, struct lieni_region_rec, by_chunk);
        if (region->domain == domain) {
            return region;
        }
    }
    return NULL;
}

static int region_make(struct lieni_chunk *chunk, const struct lieni_provider *prov,
                       struct lieni_domain *domain, struct lieni_region_rec **out)
{
    struct lieni_region_rec *region = calloc(1, sizeof *region);
    if (!region) {
        return LIEN_ENOMEM;
    }
    int rc = prov->mr_reg(domain, chunk->base, chunk->len, LIENI_ACCESS_LOCAL | LIENI_ACCESS_REMOTE,
                          &region->mr, &region->info);
    if (rc) {
        free(region);
        return rc;
    }
    region->chunk = chunk;
    region->prov = prov;
    region->domain = domain;
    lieni_list_append(&chunk->regions, &region->by_chunk);
    lieni_list_append(&chunk->root->regions, &region->by_root);
    *out = region;
    return 0;
}

int lieni_buf_region(lien_buf *buf, const struct lieni_provider *prov, struct lieni_domain *domain,
                     struct lieni_region *out)
{
    if (!buf || !prov || !domain || !out) {
        return LIEN_EINVAL;
    }
    lieni_mem_assert_locked(buf->root);
    struct lieni_chunk *chunk = buf->chunk;
    struct lieni_region_rec *region = region_find(chunk, domain);
    if (!region) {
        int rc = region_make(chunk, prov, domain, &region);
        if (rc) {
            return rc;
        }
    }
    *out = (struct lieni_region){.mr = region->mr,
                                 .key = region->info.key,
                                 .addr = region->info.base + (uint64_t)(buf->addr - chunk->base)};
    return 0;
}

int lieni_buf_own_region(lien_buf *buf, const struct lieni_provider *prov,
                         struct lieni_domain *domain, struct lieni_region *out)
{
    if (!buf || !prov || !domain || !out) {
        return LIEN_EINVAL;
    }
    lieni_mem_assert_locked(buf->root);
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    // Its length and no more: what the rest of its last page holds was not granted.
    int rc = prov->mr_reg(domain, buf->addr, lien_buf_len(buf), LIENI_ACCESS_REMOTE, &mr, &info);
    if (rc) {
        return rc;
    }
    *out = (struct lieni_region){.mr = mr, .key = info.key, .addr = info.base};
    return 0;
}

// Regions went: a lien_mem may be released, a kept chunk unmapped.
static void look_again(struct lieni_mem_root *root)
{
    struct lieni_node *next;
    for (struct lieni_node *node = lieni_list_first(&root->mems); node; node = next) {
        next = lieni_list_next(&root->mems, node);
        lieni_mem_try_release(lieni_container(node, lien_mem, link));
    }
    for (struct lieni_node *node = lieni_list_first(&root->kept); node; node = next) {
        next = lieni_list_next(&root->kept, node);
        lieni_chunk_settle(lieni_container(node, struct lieni_chunk, link));
    }
    lieni_mem_reap(root);
}

unsigned lieni_mem_domain_leaving(struct lieni_mem_root *root, struct lieni_domain *domain)
{
    lieni_mem_assert_locked(root);
    unsigned failed = 0;
    struct lieni_node *next;
    for (struct lieni_node *node = lieni_list_first(&root->regions); node; node = next) {
        next = lieni_list_next(&root->regions, node);
        struct lieni_region_rec *region = lieni_container(node, struct lieni_region_rec, by_root);
        if (region->domain != domain) {
            continue;
        }
        int rc = region->prov->mr_close(region->mr);
        if (rc) {
            lieni_mem_fail(root, rc, "a region of %zu bytes did not close with its domain",
                           region->chunk->len);
            failed++;
            continue;
        }
        region_free(region);
    }
    look_again(root);
    return failed;
}

// Regions that would not close: gone with the domain if its end is proved, else for ever in the way.
void lieni_regions_domain_ended(struct lieni_mem_root *root, struct lieni_domain *domain,
                                bool proven)
{
    struct lieni_node *next;
    for (struct lieni_node *node = lieni_list_first(&root->regions); node; node = next) {
        next = lieni_list_next(&root->regions, node);
        struct lieni_region_rec *region = lieni_container(node, struct lieni_region_rec, by_root);
        if (region->domain != domain) {
            continue;
        }
        if (proven) {
            region_free(region);
        } else {
            region->domain = NULL;
            region->chunk->unprovable = true;
        }
    }
    look_again(root);
}
