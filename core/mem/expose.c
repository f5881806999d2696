// SPDX-License-Identifier: Apache-2.0
//
// Exposures: which connections still know a key of a buffer's memory (LIEN_REUSE_PROVEN, R16), and whose alone a pool is (LIEN_REUSE_PEER). Owns the exposures. Each hangs in its buffer and in
// its connection's list; when the connection's endpoint has ended without proof, in the root's, until the domain's end, or for good: the root outlives its ctx then, as with all that is lost. A buffer that its holder freed goes home with the last of them.
// Invariant: pool.exposed is the sum of the capacities of its buffers that have any, and at most expose_max. Under the state lock.

#include "core/mem/impl.h"

#include <stdlib.h>

static lien_pool *pool_of(const lien_buf *buf)
{
    return buf->block ? buf->chunk->pool : NULL;
}

bool lieni_buf_proven(const lien_buf *buf)
{
    const lien_pool *pool = pool_of(buf);
    return pool && pool->reuse == LIEN_REUSE_PROVEN;
}

bool lieni_buf_exposed(const lien_buf *buf)
{
    return !lieni_list_empty(&buf->exposures);
}

static struct lieni_exposure *find(lien_buf *buf, uint64_t conn)
{
    for (struct lieni_node *n = buf->exposures.next; n != &buf->exposures; n = n->next) {
        struct lieni_exposure *e = lieni_container(n, struct lieni_exposure, by_buf);
        if (e->conn == conn)
            return e;
    }
    return NULL;
}

int lieni_bufs_may_expose(lien_buf *const *bufs, size_t n, uint64_t conn)
{
    for (size_t i = 0; i < n; i++) {
        const lien_pool *pool = pool_of(bufs[i]);
        if (!pool)
            continue;
        if (pool->reuse == LIEN_REUSE_PEER && pool->peer != 0 && pool->peer != conn)
            return lieni_mem_fail(pool->root, LIEN_ESTATE,
                                  "a buffer's pool (LIEN_REUSE_PEER) is connection %016llx's alone",
                                  (unsigned long long)pool->peer_id);
        // Those of this grant that are of this pool and new to it.
        size_t more = 0;
        for (size_t j = 0; pool->reuse == LIEN_REUSE_PROVEN && j <= i; j++)
            more += pool_of(bufs[j]) == pool && !lieni_buf_exposed(bufs[j]) ? bufs[j]->cap : 0;
        if (more > 0 && pool->exposed + more > pool->expose_max)
            return lieni_mem_fail(
                pool->root, LIEN_ELIMIT,
                "peers know the keys of %zu bytes of a pool (LIEN_REUSE_PROVEN), and %zu more are "
                "above its expose_max of %zu: connections that saw them have to end first",
                pool->exposed, more, pool->expose_max);
    }
    return 0;
}

int lieni_bufs_expose(lien_buf *const *bufs, size_t n, uint64_t conn, uint64_t id,
                      struct lieni_node *list)
{
    for (size_t i = 0; i < n; i++) {
        lien_buf *buf = bufs[i];
        lien_pool *pool = pool_of(buf);
        if (pool && pool->reuse == LIEN_REUSE_PEER) {
            pool->peer = conn;
            pool->peer_id = id;
        }
        if (!lieni_buf_proven(buf) || find(buf, conn))
            continue;
        struct lieni_exposure *e = calloc(1, sizeof *e);
        if (!e)
            return LIEN_ENOMEM; // those before it stay: too careful is safe
        e->buf = buf;
        e->conn = conn;
        if (!lieni_buf_exposed(buf)) {
            pool->exposed += buf->cap;
            buf->root->bytes_exposed += buf->cap;
        }
        lieni_list_append(&buf->exposures, &e->by_buf);
        lieni_list_append(list, &e->by_conn);
    }
    return 0;
}

// Nobody can use the key of this connection any more.
static void end(struct lieni_exposure *e)
{
    lien_buf *buf = e->buf;
    lieni_list_remove(&e->by_buf);
    lieni_list_remove(&e->by_conn);
    if (e->domain)
        buf->root->bytes_lost -= buf->cap;
    free(e);
    if (lieni_buf_exposed(buf))
        return;
    pool_of(buf)->exposed -= buf->cap;
    buf->root->bytes_exposed -= buf->cap;
    lieni_buf_settle_freed(buf);
}

void lieni_exposures_end(struct lieni_node *list, struct lieni_domain *domain, bool proven)
{
    struct lieni_node *n;
    while ((n = lieni_list_first(list))) {
        struct lieni_exposure *e = lieni_container(n, struct lieni_exposure, by_conn);
        struct lieni_mem_root *root = e->buf->root;
        if (proven) {
            end(e);
            lieni_mem_reap(root);
            continue;
        }
        e->domain = domain;
        root->bytes_lost += e->buf->cap;
        lieni_list_remove(n);
        lieni_list_append(&root->exposures, n);
    }
}

void lieni_exposures_domain_ended(struct lieni_mem_root *root, struct lieni_domain *domain,
                                  bool proven)
{
    struct lieni_node ended, *next;
    lieni_list_init(&ended);
    for (struct lieni_node *n = root->exposures.next; n != &root->exposures; n = next) {
        next = n->next;
        if (lieni_container(n, struct lieni_exposure, by_conn)->domain != domain || !proven)
            continue; // not proven: for good
        lieni_list_remove(n);
        lieni_list_append(&ended, n);
    }
    struct lieni_node *n;
    while ((n = lieni_list_first(&ended)))
        end(lieni_container(n, struct lieni_exposure, by_conn));
}
