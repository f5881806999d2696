// SPDX-License-Identifier: Apache-2.0
//
// Buffers: handles, their states, and what was lost. Under the state lock, but for the readers of
// state and length, which take none.
//
// Only set_state() assigns buf.state. Each lend ends exactly once, by evidence (unborrow, give) or by
// loss (lose); `borrows` counts the borrows still running, `losses` the records of domains that have not ended.
// A handle's struct is used again, the longest unused first, and freed with the root only, so a stale handle
// is recognised for long.

#include "core/mem/impl.h"

#include <stdlib.h>

#define TO(state) (1u << (state))
static const uint8_t may_become[] = {
    [LIENI_BUF_IDLE] = TO(LIENI_BUF_BORROWED) | TO(LIENI_BUF_TARGET),
    [LIENI_BUF_BORROWED] = TO(LIENI_BUF_IDLE) | TO(LIENI_BUF_LOST),
    [LIENI_BUF_TARGET] = TO(LIENI_BUF_IDLE) | TO(LIENI_BUF_LOST),
    [LIENI_BUF_LOST] = TO(LIENI_BUF_IDLE) | TO(LIENI_BUF_BORROWED),
};

static const char *const state_names[] = {
    [LIENI_BUF_IDLE] = "idle",
    [LIENI_BUF_BORROWED] = "borrowed",
    [LIENI_BUF_TARGET] = "under a read",
    [LIENI_BUF_LOST] = "in quarantine",
};

static enum lieni_buf_state state_of(const lien_buf *buf)
{
    return (enum lieni_buf_state)atomic_load_explicit(&buf->state, memory_order_acquire);
}

static void set_state(lien_buf *buf, enum lieni_buf_state to)
{
    enum lieni_buf_state from = state_of(buf);
    lieni_mem_assert_locked(buf->root);
    if (!(may_become[from] & TO(to))) {
        // Going on would hand out memory that somebody may be writing.
        lieni_mem_fail(buf->root, LIEN_ESTATE, "buffer %p: %s -> %s is not possible", (void *)buf,
                       state_names[from], state_names[to]);
        abort();
    }
    if (from == LIENI_BUF_LOST) {
        buf->root->bytes_lost -= buf->cap;
    }
    if (to == LIENI_BUF_LOST) {
        buf->root->bytes_lost += buf->cap;
    }
    bool guarded = lieni_buf_guarded(buf);
    if (guarded) {
        lieni_guard_loosen(buf, to);
    }
    atomic_store_explicit(&buf->state, (int)to, memory_order_release);
    if (guarded) {
        lieni_guard_tighten(buf, to);
    }
    lieni_mem_changed(buf->root);
}

const char *lieni_buf_state_name(enum lieni_buf_state state)
{
    return state_names[state];
}

enum lieni_buf_state lieni_buf_state(const lien_buf *buf)
{
    return state_of(buf);
}

// -- Handles ---------------------------------------------------------------------------------------

lien_buf *lieni_buf_new(struct lieni_mem_root *root, struct lieni_chunk *chunk, uint8_t *addr,
                        size_t len, size_t cap)
{
    struct lieni_node *node = lieni_list_pop(&root->spare);
    lien_buf *buf = node ? lieni_container(node, lien_buf, spare) : calloc(1, sizeof *buf);
    if (!buf) {
        return NULL;
    }
    if (!node) {
        lieni_list_append(&root->bufs, &buf->all);
    }
    buf->cap = cap;
    buf->room = cap;
    buf->old = cap;
    buf->wipe = 0;
    buf->addr = addr;
    buf->app = chunk->app + (addr - chunk->base);
    buf->id = ++root->bufs_made;
    buf->root = root;
    buf->chunk = chunk;
    buf->block = NULL;
    buf->borrows = 0;
    buf->losses = 0;
    buf->forever = false;
    buf->freed = false;
    buf->received = false;
    buf->kept = false;
    buf->doubt = NULL;
    lieni_list_init(&buf->exposures);
    lieni_list_init(&buf->spare);
    atomic_store_explicit(&buf->len, len, memory_order_relaxed);
    atomic_store_explicit(&buf->state, LIENI_BUF_IDLE, memory_order_relaxed);
    atomic_store_explicit(&buf->magic, LIENI_BUF_LIVE, memory_order_release);
    root->live++;
    return buf;
}

void lieni_buf_retire(lien_buf *buf)
{
    lieni_buf_trust(buf);
    atomic_store_explicit(&buf->magic, LIENI_BUF_STALE, memory_order_release);
    buf->root->live--;
    lieni_list_append(&buf->root->spare, &buf->spare);
}

static bool alive(const lien_buf *buf)
{
    return atomic_load_explicit(&buf->magic, memory_order_acquire) == LIENI_BUF_LIVE;
}

bool lieni_buf_alive(const lien_buf *buf)
{
    return buf && alive(buf) && !buf->freed;
}

// Takes no lock and logs nothing: the handle's ctx may be gone.
int lieni_buf_check(const lien_buf *buf)
{
    if (!buf || !alive(buf)) {
        return LIEN_EINVAL;
    }
    return lieni_mem_forked(buf->root) ? LIEN_EFORK : 0;
}

bool lieni_buf_in_ctx(const lien_buf *buf, const struct lieni_mem_root *root)
{
    return buf && alive(buf) && buf->root == root;
}

bool lieni_buf_among(const lien_buf *buf, lien_buf *const *bufs, size_t n)
{
    size_t i = 0;
    while (i < n && bufs[i] != buf)
        i++;
    return i < n;
}

void *lieni_buf_addr(const lien_buf *buf)
{
    return buf->addr;
}

static void go_home(lien_buf *buf)
{
    struct lieni_chunk *chunk = buf->chunk;
    struct lieni_block *block = buf->block;
    if (lieni_buf_exposed(buf)) {
        buf->freed =
            true; // its holder is done with it; home it goes when nobody knows its keys [R16]
        return;
    }
    lieni_buf_retire(buf);
    if (block) {
        lieni_pool_home(chunk->pool, block, buf->room, buf->received);
        return;
    }
    chunk->used--;
    if (chunk->mem) {
        lieni_mem_try_release(chunk->mem);
    } else {
        lieni_chunk_settle(chunk);
    }
}

static void free_or_defer(lien_buf *buf)
{
    if (buf->freed) {
        lieni_mem_fail(buf->root, LIEN_EINVAL, "buffer %p is freed twice", (void *)buf);
        return;
    }
    if (state_of(buf) != LIENI_BUF_IDLE) {
        buf->freed = true;
        if (buf->forever && buf->chunk->mem) {
            buf->chunk->forever++;
            lieni_mem_try_release(buf->chunk->mem);
        }
        return;
    }
    go_home(buf);
}

void lieni_buf_settle_freed(lien_buf *buf)
{
    if (buf->freed && state_of(buf) == LIENI_BUF_IDLE)
        go_home(buf);
}

void lieni_buf_free_locked(lien_buf *buf)
{
    if (!buf || !alive(buf)) {
        return;
    }
    struct lieni_mem_root *root = buf->root;
    if (root->orphan) { // a handler that outlives its ctx: the state lock does not guard it any more
        lieni_mem_enter(root);
        free_or_defer(buf);
        lieni_mem_leave(root);
        return;
    }
    lieni_mem_assert_locked(root);
    free_or_defer(buf);
    lieni_mem_reap(root);
}

void lien_buf_free(lien_buf **slot)
{
    lien_buf *buf = slot ? *slot : NULL;
    if (!buf) {
        return;
    }
    *slot = NULL;
    struct lieni_mem_root *root = buf->root;
    if (lieni_buf_check(buf)) {
        return;
    }
    lieni_mem_enter(root);
    if (alive(buf) && buf->kept) {
        if (!root->orphan)
            (void)lieni_mem_fail(
                root, LIEN_EBUSY,
                "buffer %llu belongs to a space, a message or a request: it is not freed by itself",
                (unsigned long long)buf->id);
    } else if (alive(buf)) {
        free_or_defer(buf);
    }
    lieni_mem_leave(root);
}

void lieni_buf_keep(lien_buf *buf, bool kept)
{
    buf->kept = kept;
}

bool lieni_buf_kept(const lien_buf *buf)
{
    return buf->kept;
}

// -- Lends -----------------------------------------------------------------------------------------

static int refuse(enum lieni_buf_state state)
{
    return state == LIENI_BUF_LOST ? LIEN_EQUARANTINED : LIEN_EBUSY;
}

int lieni_buf_borrow(lien_buf *buf)
{
    if (!lieni_buf_alive(buf)) {
        return LIEN_EINVAL;
    }
    lieni_mem_assert_locked(buf->root);
    enum lieni_buf_state state = state_of(buf);
    switch (state) {
    case LIENI_BUF_IDLE:
        set_state(buf, LIENI_BUF_BORROWED);
        break;
    case LIENI_BUF_BORROWED:
        if (buf->borrows == UINT32_MAX) {
            return LIEN_ELIMIT;
        }
        break;
    case LIENI_BUF_TARGET:
    case LIENI_BUF_LOST:
        return refuse(state);
    }
    buf->borrows++;
    return 0;
}

int lieni_buf_take(lien_buf *buf)
{
    if (!lieni_buf_alive(buf)) {
        return LIEN_EINVAL;
    }
    lieni_mem_assert_locked(buf->root);
    enum lieni_buf_state state = state_of(buf);
    if (state != LIENI_BUF_IDLE) {
        return refuse(state);
    }
    set_state(buf, LIENI_BUF_TARGET);
    return 0;
}

void lieni_buf_lent_by(lien_buf *buf, enum lieni_lender lender, uint64_t conn, uint64_t op)
{
    if (lieni_buf_guarded(buf)) {
        atomic_store_explicit(&buf->lent_conn, conn, memory_order_relaxed);
        atomic_store_explicit(&buf->lent_op, op, memory_order_relaxed);
        atomic_store_explicit(&buf->lender, (int)lender, memory_order_release);
    }
}

// The last hold on it may be gone: home to its holder, or to its pool if that freed it.
static void settle(lien_buf *buf)
{
    enum lieni_buf_state state = state_of(buf);
    if (buf->losses || buf->forever) {
        return;
    }
    if (buf->borrows) {
        if (state == LIENI_BUF_LOST) {
            set_state(buf, LIENI_BUF_BORROWED);
        }
        return;
    }
    set_state(buf, LIENI_BUF_IDLE);
    if (buf->freed) {
        go_home(buf);
    }
}

// Ending a lend that does not run would end somebody else's: said, and nothing is done.
static bool ends_wrongly(const lien_buf *buf, bool right, const char *what)
{
    if (right) {
        return false;
    }
    lieni_mem_fail(buf->root, LIEN_ESTATE, "%s of buffer %p which is %s", what, (const void *)buf,
                   state_names[state_of(buf)]);
    return true;
}

bool lieni_buf_set_freed(lien_buf *buf, bool freed)
{
    lieni_mem_assert_locked(buf->root);
    bool was = buf->freed;
    buf->freed = freed;
    return was;
}

void lieni_buf_unborrow(lien_buf *buf)
{
    struct lieni_mem_root *root = buf->root;
    lieni_mem_assert_locked(root);
    if (ends_wrongly(buf, alive(buf) && buf->borrows > 0, "unborrow")) {
        return;
    }
    buf->borrows--;
    settle(buf);
    lieni_mem_reap(root);
}

void lieni_buf_give(lien_buf *buf)
{
    struct lieni_mem_root *root = buf->root;
    lieni_mem_assert_locked(root);
    if (ends_wrongly(buf, alive(buf) && state_of(buf) == LIENI_BUF_TARGET, "give")) {
        return;
    }
    buf->old = buf->cap;
    settle(buf);
    lieni_mem_reap(root);
}

// -- Loss ------------------------------------------------------------------------------------------

static struct lieni_loss *loss_find(lien_buf *buf, struct lieni_domain *domain)
{
    struct lieni_node *losses = &buf->root->losses;
    for (struct lieni_node *node = lieni_list_first(losses); node;
         node = lieni_list_next(losses, node)) {
        struct lieni_loss *loss = lieni_container(node, struct lieni_loss, link);
        if (loss->buf == buf && loss->domain == domain) {
            return loss;
        }
    }
    return NULL;
}

// False: no memory for the record.
static bool loss_record(lien_buf *buf, struct lieni_domain *domain)
{
    if (buf->losses && loss_find(buf, domain)) {
        return true;
    }
    // The first record is embedded; it is free exactly when there are no losses.
    struct lieni_loss *loss = buf->losses ? malloc(sizeof *loss) : &buf->loss;
    if (!loss) {
        return false;
    }
    *loss = (struct lieni_loss){.buf = buf, .domain = domain, .embedded = buf->losses == 0};
    lieni_list_append(&buf->root->losses, &loss->link);
    buf->losses++;
    return true;
}

static void lost_forever(lien_buf *buf)
{
    if (buf->forever) {
        return;
    }
    buf->forever = true;
    buf->chunk->lost++;
    if (buf->freed && buf->chunk->mem) {
        buf->chunk->forever++;
        lieni_mem_try_release(buf->chunk->mem);
    }
}

void lieni_buf_lose(lien_buf *buf, struct lieni_domain *domain)
{
    lieni_mem_assert_locked(buf->root);
    enum lieni_buf_state state = state_of(buf);
    bool lent = alive(buf) && (state == LIENI_BUF_TARGET || buf->borrows > 0);
    if (ends_wrongly(buf, lent, "loss")) {
        return;
    }
    if (buf->borrows) {
        buf->borrows--;
    }
    if (state != LIENI_BUF_LOST) {
        set_state(buf, LIENI_BUF_LOST);
    }
    if (!loss_record(buf, domain)) {
        lost_forever(buf); // out of memory: never handed out again, which is safe
    }
}

void lieni_mem_domain_ended(struct lieni_mem_root *root, struct lieni_domain *domain, bool proven)
{
    lieni_mem_assert_locked(root);
    lieni_pins_domain_ended(root, domain, proven);
    lieni_exposures_domain_ended(root, domain, proven);
    lieni_regions_domain_ended(root, domain, proven);
    // Going home can free other buffers' waiters into lending again, but adds no loss to a domain that is gone.
    struct lieni_node ended;
    lieni_list_init(&ended);
    struct lieni_node *next;
    for (struct lieni_node *node = lieni_list_first(&root->losses); node; node = next) {
        next = lieni_list_next(&root->losses, node);
        if (lieni_container(node, struct lieni_loss, link)->domain == domain) {
            lieni_list_remove(node);
            lieni_list_append(&ended, node);
        }
    }
    struct lieni_node *node;
    while ((node = lieni_list_pop(&ended))) {
        struct lieni_loss *loss = lieni_container(node, struct lieni_loss, link);
        lien_buf *buf = loss->buf;
        if (!loss->embedded) {
            free(loss);
        }
        buf->losses--;
        if (!proven) {
            lost_forever(buf);
        }
        settle(buf);
    }
    lieni_mem_changed(root);
    lieni_mem_reap(root);
}

void lieni_losses_abandon(struct lieni_mem_root *root)
{
    struct lieni_node *node;
    while ((node = lieni_list_pop(&root->losses))) {
        struct lieni_loss *loss = lieni_container(node, struct lieni_loss, link);
        lien_buf *buf = loss->buf;
        if (!loss->embedded) {
            free(loss);
        }
        buf->losses--;
        lost_forever(buf);
    }
    for (node = lieni_list_first(&root->bufs); node; node = lieni_list_next(&root->bufs, node)) {
        lien_buf *buf = lieni_container(node, lien_buf, all);
        enum lieni_buf_state state = state_of(buf);
        if (!lieni_buf_alive(buf) || state == LIENI_BUF_IDLE || buf->forever) {
            continue;
        }
        lieni_mem_fail(root, LIEN_ESTATE, "buffer %p is still %s as the context ends; it is kept",
                       (void *)buf, state_names[state]);
        if (state != LIENI_BUF_LOST) {
            set_state(buf, LIENI_BUF_LOST);
        }
        lost_forever(buf);
    }
}

// -- Access ----------------------------------------------------------------------------------------

size_t lien_buf_len(const lien_buf *buf)
{
    return lieni_buf_check(buf) == 0 ? atomic_load_explicit(&buf->len, memory_order_relaxed) : 0;
}

size_t lien_buf_capacity(const lien_buf *buf)
{
    return lieni_buf_check(buf) == 0 ? buf->cap : 0;
}

void lieni_buf_trim(lien_buf *buf, size_t len)
{
    lieni_mem_assert_locked(buf->root);
    if (state_of(buf) == LIENI_BUF_IDLE && len <= buf->cap) {
        atomic_store_explicit(&buf->len, len, memory_order_relaxed);
        lieni_buf_hide(buf, len);
    }
}

int lien_buf_set_len(lien_buf *buf, size_t len)
{
    int rc = lieni_buf_check(buf);
    if (rc) {
        return rc;
    }
    struct lieni_mem_root *root = buf->root;
    lieni_mem_enter(root);
    enum lieni_buf_state state = state_of(buf);
    if (!lieni_buf_alive(buf)) {
        rc = LIEN_EINVAL;
    } else if (state != LIENI_BUF_IDLE) {
        rc = refuse(state);
    } else if (len > buf->cap) {
        rc = lieni_mem_fail(root, LIEN_ERANGE, "length %zu is above the buffer's capacity %zu", len,
                            buf->cap);
    } else {
        atomic_store_explicit(&buf->len, len, memory_order_relaxed);
    }
    lieni_mem_leave(root);
    return rc;
}

int lien_buf_data(const lien_buf *buf, const void **data)
{
    int rc = lieni_buf_check(buf);
    if (rc || !data) {
        return rc ? rc : LIEN_EINVAL;
    }
    enum lieni_buf_state state = state_of(buf);
    if (state == LIENI_BUF_TARGET || state == LIENI_BUF_LOST) {
        return refuse(state);
    }
    *data = buf->app;
    return 0;
}

int lien_buf_mut(lien_buf *buf, void **data)
{
    int rc = lieni_buf_check(buf);
    if (rc || !data) {
        return rc ? rc : LIEN_EINVAL;
    }
    enum lieni_buf_state state = state_of(buf);
    if (state != LIENI_BUF_IDLE) {
        return refuse(state);
    }
    *data = buf->app;
    return 0;
}
