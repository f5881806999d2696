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

// Bytes of this pool among these that nobody knows a key of yet. One buffer may be there twice.
static size_t newly(const lien_pool *pool, lien_buf *const *bufs, size_t n)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (pool_of(bufs[i]) == pool && !lieni_buf_exposed(bufs[i]) &&
            !lieni_buf_among(bufs[i], bufs, i))
            bytes += bufs[i]->cap;
    }
    return bytes;
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
        if (pool->reuse != LIEN_REUSE_PROVEN || (i > 0 && pool_of(bufs[i - 1]) == pool))
            continue; // not bounded, or seen
        const size_t more = newly(pool, bufs, n);
        if (more > 0 && pool->exposed + more > pool->expose_max)
            return lieni_mem_fail(
                pool->root, LIEN_ELIMIT,
                "peers know the keys of %zu bytes of a pool (LIEN_REUSE_PROVEN), and %zu more are "
                "above its expose_max of %zu: connections that saw them have to end first",
                pool->exposed, more, pool->expose_max);
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

static int expose(lien_buf *buf, uint64_t conn, struct lieni_node *list)
{
    struct lieni_exposure *e = find(buf, conn);
    if (!e) {
        e = calloc(1, sizeof *e);
        if (!e)
            return LIEN_ENOMEM;
        e->buf = buf;
        e->conn = conn;
        if (!lieni_buf_exposed(buf)) {
            pool_of(buf)->exposed += buf->cap;
            buf->root->bytes_exposed += buf->cap;
        }
        lieni_list_append(&buf->exposures, &e->by_buf);
        lieni_list_append(list, &e->by_conn);
    }
    e->grants++;
    return 0;
}

int lieni_bufs_expose(lien_buf *const *bufs, size_t n, uint64_t conn, uint64_t id,
                      struct lieni_node *list)
{
    for (size_t i = 0; i < n; i++) {
        lien_pool *pool = pool_of(bufs[i]);
        int rc = lieni_buf_proven(bufs[i]) ? expose(bufs[i], conn, list) : 0;
        if (rc != 0) {
            lieni_bufs_unexpose(bufs, i, conn);
            return rc;
        }
        if (pool && pool->reuse == LIEN_REUSE_PEER) {
            pool->peer = conn;
            pool->peer_id = id;
            pool->peer_grants++;
        }
    }
    return 0;
}

void lieni_bufs_unexpose(lien_buf *const *bufs, size_t n, uint64_t conn)
{
    for (size_t i = 0; i < n; i++) {
        lien_pool *pool = pool_of(bufs[i]);
        struct lieni_exposure *e = find(bufs[i], conn);
        if (e && --e->grants == 0)
            end(e);
        if (pool && pool->reuse == LIEN_REUSE_PEER && --pool->peer_grants == 0)
            pool->peer = pool->peer_id = 0;
    }
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
