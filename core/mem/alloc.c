// SPDX-License-Identifier: Apache-2.0
//
// The public ways to wait for pool memory: lien_alloc (a callback) and the blocking twin. A lien_alloc is
// owned by the pool's queue while it waits, then by its task, which frees it right before on_done. Under the state lock.

#include "core/mem/impl.h"

#include <stdlib.h>

struct lien_alloc {
    struct lieni_pool_wait wait;
    struct lieni_task task;
    struct lieni_mem_root *root;
    struct lieni_strand *strand;
    lien_alloc_fn *on_done;
    void *arg;
    lien_buf *buf;
    int status;
};

static void run_done(struct lieni_task *task)
{
    lien_alloc *alloc = lieni_container(task, lien_alloc, task);
    lien_alloc_fn *on_done = alloc->on_done;
    void *arg = alloc->arg;
    lien_buf *buf = alloc->buf;
    int status = alloc->status;
    free(alloc);
    if (buf) {
        lieni_buf_wipe(buf);
    }
    on_done(arg, status, buf);
}

static void alloc_ready(struct lieni_pool_wait *wait, lien_buf *buf, int status)
{
    lien_alloc *alloc = lieni_container(wait, lien_alloc, wait);
    alloc->buf = buf;
    alloc->status = status;
    lieni_strand_post(alloc->strand, &alloc->task);
}

static int start(lien_pool *pool, size_t len, lien_alloc_fn *on_done, void *arg, lien_alloc **out)
{
    int rc = lieni_pool_request_check(pool, len, false);
    if (rc == 0 && !pool->strand) {
        rc = lieni_strand_open(pool->root->args.dispatch, false, &pool->strand);
    }
    if (rc) {
        return rc;
    }
    lien_alloc *alloc = calloc(1, sizeof *alloc);
    if (!alloc) {
        return LIEN_ENOMEM;
    }
    alloc->wait.len = len;
    alloc->wait.ready = alloc_ready;
    alloc->task.run = run_done;
    alloc->root = pool->root;
    alloc->strand = pool->strand;
    alloc->on_done = on_done;
    alloc->arg = arg;
    if (out) {
        *out = alloc; // before it can be over
    }
    lieni_pool_wait_plain(pool, &alloc->wait);
    return 0;
}

int lien_pool_alloc_start(lien_pool *pool, size_t len, lien_alloc_fn *on_done, void *arg,
                          lien_alloc **out)
{
    if (!pool || !on_done) {
        return LIEN_EINVAL;
    }
    struct lieni_mem_root *root = pool->root;
    if (lieni_mem_forked(root)) {
        return LIEN_EFORK;
    }
    lieni_mem_enter(root);
    return lieni_mem_done(root, start(pool, len, on_done, arg, out));
}

int lien_pool_alloc_cancel(lien_alloc *alloc)
{
    if (!alloc) {
        return LIEN_EINVAL;
    }
    struct lieni_mem_root *root = alloc->root;
    if (lieni_mem_forked(root)) {
        return LIEN_EFORK;
    }
    lieni_mem_enter(root);
    if (!alloc->wait.pool) {
        return lieni_mem_done(root, LIEN_ESTATE);
    }
    lieni_pool_wait_stop(&alloc->wait);
    alloc_ready(&alloc->wait, NULL, LIEN_ECANCELED);
    return lieni_mem_done(root, 0);
}

struct blocked {
    struct lieni_pool_wait wait;
    bool over;
    int status;
    lien_buf *buf;
};

static void blocked_ready(struct lieni_pool_wait *wait, lien_buf *buf, int status)
{
    struct blocked *blocked = lieni_container(wait, struct blocked, wait);
    blocked->over = true;
    blocked->status = status;
    blocked->buf = buf;
}

int lien_pool_alloc_wait(lien_pool *pool, size_t len, uint32_t timeout_ms, lien_buf **out)
{
    if (!pool || !out) {
        return LIEN_EINVAL;
    }
    struct lieni_mem_root *root = pool->root;
    if (lieni_mem_forked(root)) {
        return LIEN_EFORK;
    }
    lieni_mem_enter(root);
    uint64_t deadline = lieni_mem_deadline(root, timeout_ms);
    struct blocked blocked = {.wait = {.len = len, .ready = blocked_ready}};
    lieni_pool_wait_plain(pool, &blocked.wait);
    int rc = 0;
    while (rc == 0 && !blocked.over) {
        rc = timeout_ms ? lieni_ctx_wait_locked(root->args.ctx, deadline) : LIEN_ETIMEDOUT;
    }
    if (blocked.over) {
        rc = blocked.status;
    } else {
        lieni_pool_wait_stop(&blocked.wait);
    }
    rc = lieni_mem_done(root, rc);
    if (rc == 0) {
        lieni_buf_wipe(blocked.buf);
        *out = blocked.buf;
    }
    return rc;
}
