// SPDX-License-Identifier: Apache-2.0
//
// lien_mem: memory of the application. Owns the chunk that stands for it, never the bytes. Under the
// state lock.
//
// It is released when no buffer of it is held or lent and no region is left. Buffers lost for good, or a region
// that outlived its domain, turn the release into LIEN_EQUARANTINED: the application then keeps the memory mapped for good.

#include "core/mem/impl.h"

#include <stdlib.h>

#define TO(state) (1u << (state))
static const uint8_t may_become[] = {
    [LIENI_MEM_OPEN] = TO(LIENI_MEM_CLOSING),
    [LIENI_MEM_CLOSING] = TO(LIENI_MEM_RELEASED),
    [LIENI_MEM_RELEASED] = 0,
};

static void set_state(lien_mem *mem, enum lieni_mem_state to)
{
    lieni_mem_assert_locked(mem->root);
    if (!(may_become[mem->state] & TO(to))) {
        abort();
    }
    mem->state = to;
    lieni_mem_changed(mem->root);
}

static int opts_check(struct lieni_mem_root *root, void *addr, size_t len,
                      const lien_mem_opts *given, lien_mem_opts *opts)
{
    lien_mem_opts_init(opts);
    int rc = lieni_mem_opts_take(root, opts, sizeof *opts, given);
    if (rc) {
        return rc;
    }
    if (!addr || len == 0) {
        return lieni_mem_fail(root, LIEN_EINVAL, "lien_mem_register of %zu bytes at %p", len, addr);
    }
    if (len > UINTPTR_MAX - (uintptr_t)addr) {
        return lieni_mem_fail(root, LIEN_EINVAL,
                              "lien_mem_register: %zu bytes at %p pass the end of memory", len,
                              addr);
    }
    return 0;
}

static void run_released(struct lieni_task *task)
{
    lien_mem *mem = lieni_container(task, lien_mem, task);
    void (*on_released)(void *, int) = mem->on_released;
    void *arg = mem->arg;
    int status = mem->status;
    free(mem);
    on_released(arg, status);
}

int lien_mem_register(lien_ctx *ctx, void *addr, size_t len, const lien_mem_opts *given,
                      lien_mem **out)
{
    if (!ctx || !out) {
        return LIEN_EINVAL;
    }
    struct lieni_mem_root *root = lieni_ctx_mem(ctx);
    if (lieni_mem_forked(root)) {
        return LIEN_EFORK;
    }
    lien_mem_opts opts;
    lieni_mem_enter(root);
    int rc = opts_check(root, addr, len, given, &opts);
    if (rc) {
        return lieni_mem_done(root, rc);
    }
    lien_mem *mem = calloc(1, sizeof *mem);
    struct lieni_chunk *chunk = mem ? lieni_chunk_new(root, addr, len) : NULL;
    if (!chunk) {
        free(mem);
        return lieni_mem_done(root, LIEN_ENOMEM);
    }
    chunk->mem = mem;
    mem->task.run = run_released;
    mem->root = root;
    mem->chunk = chunk;
    mem->on_released = opts.on_released;
    mem->arg = opts.arg;
    lieni_list_append(&root->mems, &mem->link);
    *out = mem;
    return lieni_mem_done(root, 0);
}

int lien_mem_buf(lien_mem *mem, size_t offset, size_t len, lien_buf **out)
{
    if (!mem || !out) {
        return LIEN_EINVAL;
    }
    struct lieni_mem_root *root = mem->root;
    if (lieni_mem_forked(root)) {
        return LIEN_EFORK;
    }
    lieni_mem_enter(root);
    struct lieni_chunk *chunk = mem->chunk;
    if (mem->state != LIENI_MEM_OPEN) {
        return lieni_mem_done(
            root, lieni_mem_fail(root, LIEN_ESTATE, "lien_mem_buf of memory being unregistered"));
    }
    if (len == 0) {
        return lieni_mem_done(root, lieni_mem_fail(root, LIEN_EINVAL, "a buffer of 0 bytes"));
    }
    if (offset > chunk->len || len > chunk->len - offset) {
        return lieni_mem_done(root, lieni_mem_fail(root, LIEN_ERANGE,
                                                   "%zu bytes at offset %zu of %zu registered ones",
                                                   len, offset, chunk->len));
    }
    lien_buf *buf = lieni_buf_new(root, chunk, chunk->base + offset, len, len);
    if (!buf) {
        return lieni_mem_done(root, LIEN_ENOMEM);
    }
    chunk->used++;
    *out = buf;
    return lieni_mem_done(root, 0);
}

// -- Release ---------------------------------------------------------------------------------------

// The application hears of it: by the callback it asked for, or by its next call of the waiting twin.
static void tell(lien_mem *mem)
{
    if (!mem->calls_back) {
        lieni_mem_changed(mem->root);
        return;
    }
    lieni_list_remove(&mem->link);
    if (mem->on_released) {
        lieni_strand_post(mem->root->strand, &mem->task);
    } else {
        free(mem);
    }
}

static void release(lien_mem *mem)
{
    struct lieni_chunk *chunk = mem->chunk;
    mem->status = chunk->lost || chunk->unprovable ? LIEN_EQUARANTINED : 0;
    mem->chunk = NULL;
    lieni_chunk_release(chunk);
    set_state(mem, LIENI_MEM_RELEASED);
    tell(mem);
}

void lieni_mem_try_release(lien_mem *mem)
{
    if (mem->state != LIENI_MEM_CLOSING || mem->chunk->used != mem->chunk->forever ||
        (mem->chunk->pins && !mem->chunk->unprovable)) {
        return;
    }
    if (lieni_regions_close(mem->chunk) || mem->chunk->unprovable) {
        release(mem);
    }
}

int lien_mem_unregister(lien_mem **slot)
{
    lien_mem *mem = slot ? *slot : NULL;
    if (!mem) {
        return LIEN_EINVAL;
    }
    struct lieni_mem_root *root = mem->root;
    if (lieni_mem_forked(root)) {
        return LIEN_EFORK;
    }
    lieni_mem_enter(root);
    if (mem->calls_back || mem->waited_for) {
        return lieni_mem_done(
            root, lieni_mem_fail(root, LIEN_ESTATE, "memory is being unregistered already"));
    }
    *slot = NULL;
    mem->calls_back = true;
    if (mem->state == LIENI_MEM_RELEASED) {
        tell(mem);
        return lieni_mem_done(root, 0);
    }
    if (mem->state == LIENI_MEM_OPEN) {
        set_state(mem, LIENI_MEM_CLOSING);
    }
    lieni_mem_try_release(mem);
    return lieni_mem_done(root, 0);
}

static int wait_released(lien_mem *mem, uint32_t timeout_ms)
{
    struct lieni_mem_root *root = mem->root;
    uint64_t deadline = lieni_mem_deadline(root, timeout_ms);
    int rc = 0;
    mem->waited_for = true;
    while (rc == 0 && mem->state != LIENI_MEM_RELEASED) {
        rc = timeout_ms ? lieni_ctx_wait_locked(root->args.ctx, deadline) : LIEN_ETIMEDOUT;
    }
    mem->waited_for = false;
    return mem->state == LIENI_MEM_RELEASED ? 0 : rc;
}

int lien_mem_unregister_wait(lien_mem **slot, uint32_t timeout_ms)
{
    lien_mem *mem = slot ? *slot : NULL;
    if (!mem) {
        return LIEN_EINVAL;
    }
    struct lieni_mem_root *root = mem->root;
    if (lieni_mem_forked(root)) {
        return LIEN_EFORK;
    }
    lieni_mem_enter(root);
    if (mem->calls_back || mem->waited_for) {
        return lieni_mem_done(
            root, lieni_mem_fail(root, LIEN_ESTATE, "memory is being unregistered already"));
    }
    if (mem->state == LIENI_MEM_OPEN) {
        set_state(mem, LIENI_MEM_CLOSING);
        lieni_mem_try_release(mem);
    }
    int rc = wait_released(mem, timeout_ms);
    if (rc == 0) {
        rc = mem->status;
        *slot = NULL;
        lieni_list_remove(&mem->link);
        free(mem);
    }
    return lieni_mem_done(root, rc);
}

// The ctx ends: no provider is left that could touch anything, but for what was lost.
void lieni_mem_finish_all(struct lieni_mem_root *root)
{
    struct lieni_node *node;
    while ((node = lieni_list_pop(&root->mems))) {
        lien_mem *mem = lieni_container(node, lien_mem, link);
        if (mem->state == LIENI_MEM_OPEN) {
            set_state(mem, LIENI_MEM_CLOSING);
            mem->calls_back = true;
        }
        if (mem->state == LIENI_MEM_CLOSING) {
            bool calls_back = mem->calls_back;
            release(mem); // frees it, or queues what will, if it calls back
            if (calls_back) {
                continue;
            }
        }
        free(mem);
    }
}
