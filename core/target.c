// SPDX-License-Identifier: Apache-2.0
//
// See target.h.

#include "core/target.h"

#include <stdlib.h>
#include <string.h>

#define TO(state) (1u << (state))

static const unsigned may_enter[] = {
    [LIENI_TARGET_HOME] = TO(LIENI_TARGET_AVAILABLE) | TO(LIENI_TARGET_READING),
    [LIENI_TARGET_AVAILABLE] = TO(LIENI_TARGET_HOME) | TO(LIENI_TARGET_READING),
    [LIENI_TARGET_READING] = TO(LIENI_TARGET_HOME) | TO(LIENI_TARGET_AVAILABLE) |
                             TO(LIENI_TARGET_SEALED) | TO(LIENI_TARGET_LOST),
    [LIENI_TARGET_SEALED] = TO(LIENI_TARGET_HOME) | TO(LIENI_TARGET_LOST),
    [LIENI_TARGET_LOST] = 0,
};

static void set_state(lien_space *space, enum lieni_target_state state)
{
    if (!(may_enter[space->state] & TO(state)))
        abort();
    space->state = state;
}

static int refusal(const lien_space *space)
{
    switch (space->state) {
    case LIENI_TARGET_HOME:
        return 0;
    case LIENI_TARGET_AVAILABLE:
    case LIENI_TARGET_READING:
    case LIENI_TARGET_SEALED:
        return LIEN_EBUSY;
    case LIENI_TARGET_LOST:
        return LIEN_EQUARANTINED;
    }
    return LIEN_EINVAL;
}

static int check_bufs(const lien_ctx *ctx, lien_buf *const *bufs, size_t n)
{
    if (!bufs || n == 0 || n > LIEN_BUFS_MAX)
        return LIEN_EINVAL;
    for (size_t i = 0; i < n; i++) {
        if (!bufs[i] || !lieni_buf_in_ctx(bufs[i], ctx->mem))
            return LIEN_EINVAL;
        if (lieni_buf_among(bufs[i], bufs, i))
            return LIEN_EINVAL;
        if (lieni_buf_state(bufs[i]) == LIENI_BUF_LOST)
            return LIEN_EQUARANTINED;
        if (lieni_buf_state(bufs[i]) != LIENI_BUF_IDLE)
            return LIEN_EBUSY;
        if (lieni_buf_kept(bufs[i])) // it has a holder
            return LIEN_EINVAL;
    }
    return 0;
}

int lieni_target_open(lien_ctx *ctx, lien_buf **bufs, size_t n, lien_space **out)
{
    int rc = check_bufs(ctx, bufs, n);
    if (rc != 0)
        return rc;
    lien_space *space = calloc(1, sizeof(*space));
    if (!space)
        return LIEN_ENOMEM;
    space->ctx = ctx;
    space->n = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        space->bufs[i] = bufs[i];
        lieni_buf_keep(bufs[i], true);
        space->len += lien_buf_len(bufs[i]);
        bufs[i] = NULL;
    }
    *out = space;
    return 0;
}

// Whether somebody else has the buffers now.
static bool lent(const lien_space *space)
{
    return refusal(space) == LIEN_EBUSY;
}

// Buffers out of the holder's hands, all or none.
static int take_bufs(lien_space *space)
{
    int rc = space->free_wanted ? LIEN_EINVAL : refusal(space);
    uint64_t len = 0; // the application may have changed lengths
    for (uint32_t i = 0; rc == 0 && i < space->n; i++) {
        rc = lieni_buf_take(space->bufs[i]);
        len += lien_buf_len(space->bufs[i]);
        if (rc == 0)
            continue;
        while (i > 0)
            lieni_buf_give(space->bufs[--i]);
    }
    if (rc == 0)
        space->len = len;
    return rc;
}

int lieni_target_lend(lien_space *space)
{
    int rc = space->state == LIENI_TARGET_AVAILABLE ? 0 : take_bufs(space);
    if (rc == 0)
        set_state(space, LIENI_TARGET_READING);
    return rc;
}

int lieni_target_call(lien_space *space)
{
    int rc = take_bufs(space);
    if (rc != 0)
        return rc;
    set_state(space, LIENI_TARGET_AVAILABLE);
    space->called = true;
    return 0;
}

void lieni_target_free(lien_space *space)
{
    if (lent(space)) {
        space->free_wanted = true;
        return;
    }
    for (uint32_t i = 0; i < space->n; i++) {
        lieni_buf_keep(space->bufs[i], false);
        lieni_buf_free_locked(space->bufs[i]);
    }
    free(space);
}

static void settled(lien_space *space)
{
    lieni_ctx_changed(space->ctx);
    if (space->free_wanted)
        lieni_target_free(space);
}

static void home(lien_space *space)
{
    set_state(space, LIENI_TARGET_HOME);
    for (uint32_t i = 0; i < space->n; i++)
        lieni_buf_give(space->bufs[i]);
    settled(space);
}

void lieni_target_back(lien_space *space)
{
    if (space->called)
        set_state(space, LIENI_TARGET_AVAILABLE);
    else
        home(space);
}

bool lieni_target_seal(lien_space *space)
{
    space->called = false;
    if (space->state == LIENI_TARGET_READING) {
        set_state(space, LIENI_TARGET_SEALED);
        return false;
    }
    if (space->state == LIENI_TARGET_AVAILABLE)
        home(space);
    return true;
}

void lieni_target_lose(lien_space *space, struct lieni_domain *domain)
{
    set_state(space, LIENI_TARGET_LOST);
    for (uint32_t i = 0; i < space->n; i++)
        lieni_buf_lose(space->bufs[i], domain);
    settled(space);
}

int lieni_target_take(lien_space *space, lien_buf **bufs, size_t n)
{
    int rc = refusal(space);
    if (rc != 0)
        return rc;
    if (n != space->n)
        return LIEN_ERANGE;
    memcpy(bufs, space->bufs, n * sizeof(*bufs));
    for (size_t i = 0; i < n; i++)
        lieni_buf_keep(bufs[i], false);
    space->n = 0;
    space->len = 0;
    return 0;
}

int lien_space_open(lien_ctx *ctx, lien_buf **bufs, size_t n, lien_space **space)
{
    if (!ctx || !space)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    lieni_ctx_lock(ctx);
    int rc = lieni_target_open(ctx, bufs, n, space);
    ctx->spaces_held += rc == 0;
    lieni_ctx_unlock(ctx);
    return rc;
}

uint64_t lien_space_len(const lien_space *space)
{
    return space && !lieni_ctx_forked(space->ctx) ? space->len : 0;
}

int lien_space_buf(lien_space *space, size_t i, lien_buf **buf)
{
    if (!space || !buf)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(space->ctx))
        return LIEN_EFORK;
    lieni_ctx_lock(space->ctx);
    int rc = refusal(space);
    if (rc == 0 && i >= space->n)
        rc = LIEN_ERANGE;
    if (rc == 0)
        *buf = space->bufs[i];
    lieni_ctx_unlock(space->ctx);
    return rc;
}

int lien_space_take(lien_space *space, lien_buf **bufs, size_t n)
{
    if (!space || (!bufs && n > 0))
        return LIEN_EINVAL;
    if (lieni_ctx_forked(space->ctx))
        return LIEN_EFORK;
    lieni_ctx_lock(space->ctx);
    int rc = lieni_target_take(space, bufs, n);
    lieni_ctx_unlock(space->ctx);
    return rc;
}

int lien_space_wait(lien_space *space, uint32_t timeout_ms)
{
    if (!space)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(space->ctx))
        return LIEN_EFORK;
    lien_ctx *ctx = space->ctx;
    lieni_ctx_lock(ctx);
    uint64_t deadline = lieni_ctx_deadline(ctx, timeout_ms);
    int rc = 0;
    while (lent(space) && rc == 0)
        rc = timeout_ms == 0 ? LIEN_ETIMEDOUT : lieni_ctx_wait_locked(ctx, deadline);
    if (!lent(space))
        rc = refusal(space);
    lieni_ctx_unlock(ctx);
    return rc;
}

void lien_space_free(lien_space **slot)
{
    if (!slot || !*slot)
        return;
    lien_space *space = *slot;
    lien_ctx *ctx = space->ctx;
    *slot = NULL;
    if (lieni_ctx_forked(ctx))
        return;
    lieni_ctx_lock(ctx);
    ctx->spaces_held--;
    lieni_target_free(space);
    lieni_ctx_unlock(ctx);
}
