// SPDX-License-Identifier: Apache-2.0
//
// The root of a ctx's memory. Owns pools, lien_mems, regions, losses and buffer handles.
//
// Locks. The state lock belongs to the ctx and ends with it; buffers may outlive the ctx. So functions
// that a buffer can reach later take `gate` first, look whether the root is an orphan, and only
// then the state lock; closing takes both. The order is gate, state lock. Nobody takes the gate while
// holding the state lock.

#include "core/mem/impl.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Roots whose ctx is gone and whose memory somebody may still touch: kept for good, on purpose.
// No lock: it could be held by a thread that a forked child does not have.
static struct lieni_mem_root *_Atomic abandoned;

static _Atomic unsigned fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    atomic_fetch_add_explicit(&fork_generation, 1, memory_order_relaxed);
    lieni_guard_in_child();
}

unsigned lieni_fork_generation(void)
{
    return atomic_load_explicit(&fork_generation, memory_order_relaxed);
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

bool lieni_mem_forked(const struct lieni_mem_root *root)
{
    return root->fork_generation != atomic_load_explicit(&fork_generation, memory_order_relaxed);
}

int lieni_mem_root_open(const struct lieni_mem_args *args, struct lieni_mem_root **out)
{
    if (!args || !args->lock || !args->ctx || !args->dispatch || !args->env || !out) {
        return LIEN_EINVAL;
    }
    struct lieni_mem_root *root = calloc(1, sizeof *root);
    if (!root) {
        return LIEN_ENOMEM;
    }
    int rc = lieni_strand_open(args->dispatch, false, &root->strand);
    if (rc) {
        free(root);
        return rc;
    }
    if (pthread_mutex_init(&root->gate, NULL) != 0) {
        lieni_strand_close(root->strand);
        free(root);
        return LIEN_ENOMEM;
    }
    (void)pthread_once(&fork_once, watch_forks);
    root->fork_generation = atomic_load_explicit(&fork_generation, memory_order_relaxed);
    root->args = *args;
    struct lieni_node *heads[] = {&root->pools,   &root->mems,   &root->kept,
                                  &root->regions, &root->losses, &root->bufs,
                                  &root->spare,   &root->pins,   &root->exposures};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        lieni_list_init(heads[i]);
    }
    *out = root;
    return 0;
}

static void root_free(struct lieni_mem_root *root)
{
    struct lieni_node *node;
    while ((node = lieni_list_pop(&root->bufs))) {
        free(lieni_container(node, lien_buf, all));
    }
    pthread_mutex_destroy(&root->gate);
    free(root);
}

void lieni_mem_enter(struct lieni_mem_root *root)
{
    pthread_mutex_lock(&root->gate);
    if (!root->orphan) {
        pthread_mutex_lock(root->args.lock);
        pthread_mutex_unlock(&root->gate);
    }
}

static void abandon(struct lieni_mem_root *root)
{
    root->abandoned = true;
    root->abandoned_next = atomic_load(&abandoned);
    while (!atomic_compare_exchange_weak(&abandoned, &root->abandoned_next, root)) {
    }
}

void lieni_mem_leave(struct lieni_mem_root *root)
{
    if (root->orphan && root->bytes_lost && !root->abandoned) {
        abandon(root);
    }
    struct lieni_chunk *graves = root->graves;
    root->graves = NULL;
    bool orphan = root->orphan;
    bool over = orphan && !root->abandoned && root->live == 0 && lieni_list_empty(&root->kept);
    pthread_mutex_unlock(orphan ? &root->gate : root->args.lock);
    lieni_chunk_bury(graves);
    if (over) {
        root_free(root);
    }
}

int lieni_mem_done(struct lieni_mem_root *root, int rc)
{
    lieni_mem_leave(root);
    struct lieni_log *log = root->args.log;
    if (rc && log && lieni_log_pending(log)) {
        lieni_log_flush(log);
    }
    return rc;
}

void lieni_mem_reap(struct lieni_mem_root *root)
{
    struct lieni_chunk *graves = root->graves;
    root->graves = NULL;
    lieni_chunk_bury(graves);
}

void lieni_mem_assert_locked(struct lieni_mem_root *root)
{
#ifndef NDEBUG
    assert(pthread_mutex_trylock(root->orphan ? &root->gate : root->args.lock) == EBUSY);
#else
    (void)root;
#endif
}

int lieni_mem_fail(struct lieni_mem_root *root, int code, const char *format, ...)
{
    if (root->args.log) {
        char text[384];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        struct lieni_log_at at = {0};
        // A limit that is reached is back pressure, no fault.
        lieni_log_say(root->args.log, code == LIEN_ELIMIT ? LIEN_LOG_DEBUG : LIEN_LOG_ERROR, &at,
                      code, "%s", text);
    }
    return code;
}

void lieni_mem_changed(struct lieni_mem_root *root)
{
    if (!root->orphan) {
        lieni_ctx_mem_changed(root->args.ctx);
    }
}

uint64_t lieni_mem_deadline(struct lieni_mem_root *root, uint32_t timeout_ms)
{
    const struct lieni_env *env = root->args.env;
    return timeout_ms == LIEN_FOREVER ? UINT64_MAX
                                      : env->now(env->self) + (uint64_t)timeout_ms * 1000000u;
}

int lieni_mem_opts_take(struct lieni_mem_root *root, void *opts, size_t size, const void *given)
{
    if (!given) {
        return 0;
    }
    size_t theirs;
    memcpy(&theirs, given, sizeof theirs);
    if (theirs < sizeof theirs || theirs > 4096) {
        return lieni_mem_fail(root, LIEN_EINVAL, "options of size %zu: not initialised?", theirs);
    }
    const uint8_t *bytes = given;
    for (size_t i = size; i < theirs; i++) {
        if (bytes[i] != 0) {
            return lieni_mem_fail(root, LIEN_ENOTSUP,
                                  "options of size %zu use a field that this library, which knows "
                                  "%zu bytes, does not have",
                                  theirs, size);
        }
    }
    memcpy(opts, given, theirs < size ? theirs : size);
    return 0;
}

// Every domain has ended, so whatever is still lent, lost or registered stays so for good.
static void abandon_rest(struct lieni_mem_root *root)
{
    lieni_losses_abandon(root);
    struct lieni_node *node;
    while ((node = lieni_list_pop(&root->regions))) {
        struct lieni_region_rec *region = lieni_container(node, struct lieni_region_rec, by_root);
        if (region->domain) {
            lieni_mem_fail(root, LIEN_ESTATE,
                           "a region of %zu bytes outlives its domain; its memory is kept",
                           region->chunk->len);
        }
        region->domain = NULL;
        region->chunk->unprovable = true;
    }
}

void lieni_mem_root_close(struct lieni_mem_root *root)
{
    lieni_mem_enter(root);
    struct lieni_node *node;
    while ((node = lieni_list_first(&root->pools))) {
        lien_pool *pool = lieni_container(node, lien_pool, link);
        if (pool->closed) {
            lieni_list_remove(node); // it lives on with its buffers
            continue;
        }
        lieni_pool_close_locked(pool);
    }
    lieni_pins_abandon(root);
    abandon_rest(root);
    lieni_mem_finish_all(root);
    lieni_strand_close(root->strand);
    if (root->bytes_lost) {
        lieni_mem_fail(root, LIEN_EQUARANTINED,
                       "%llu bytes stay mapped until the process ends: their transfers could not "
                       "be proved over",
                       (unsigned long long)root->bytes_lost);
    }
    lieni_mem_leave(root);

    // The gate was free while the state lock was held; now both, in order.
    pthread_mutex_lock(&root->gate);
    pthread_mutex_t *lock = root->args.lock;
    pthread_mutex_lock(lock);
    root->orphan = true; // who holds either sees it
    pthread_mutex_unlock(lock);
    memset(&root->args, 0, sizeof root->args);
    lieni_mem_leave(root);
}

uint64_t lieni_mem_bytes_out(const struct lieni_mem_root *root)
{
    return root->bytes_out;
}

uint64_t lieni_mem_bytes_lost(const struct lieni_mem_root *root)
{
    return root->bytes_lost;
}

uint64_t lieni_mem_bytes_exposed(const struct lieni_mem_root *root)
{
    return root->bytes_exposed;
}

uint64_t lieni_mem_guard_skipped(const struct lieni_mem_root *root)
{
    return root->guard_skipped;
}

void lieni_mem_left(struct lieni_mem_root *root, struct lieni_mem_left *left)
{
    struct lieni_node *node;
    *left = (struct lieni_mem_left){0};
    for (node = lieni_list_first(&root->pools); node; node = lieni_list_next(&root->pools, node)) {
        left->pools += !lieni_container(node, lien_pool, link)->closed;
    }
    for (node = lieni_list_first(&root->mems); node; node = lieni_list_next(&root->mems, node)) {
        left->mems += lieni_container(node, lien_mem, link)->state == LIENI_MEM_OPEN;
    }
    for (node = lieni_list_first(&root->bufs); node; node = lieni_list_next(&root->bufs, node)) {
        const lien_buf *buf = lieni_container(node, lien_buf, all);
        left->bufs += lieni_buf_alive(buf) && !buf->kept;
    }
}
