// SPDX-License-Identifier: Apache-2.0
//
// See grant.h.

#include "core/grant.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/conn.h"
#include "core/read.h"

#define TO(state) (1u << (state))

static const unsigned may_enter[] = {
    [LIENI_GRANT_LIVE] = TO(LIENI_GRANT_ASKED) | TO(LIENI_GRANT_OVER) | TO(LIENI_GRANT_LOST),
    [LIENI_GRANT_ASKED] = TO(LIENI_GRANT_OVER) | TO(LIENI_GRANT_LOST),
    [LIENI_GRANT_OVER] = 0,
    [LIENI_GRANT_LOST] = 0,
};

static const char *const state_names[] = {"live", "asked to release", "over", "lost"};

static void set_state(struct lien_grant *grant, enum lieni_grant_state state)
{
    if (!(may_enter[grant->state] & TO(state)))
        abort();
    lieni_trace_text(grant->conn->trace, LIENI_TRACE_GRANT, lieni_name_id(grant->name),
                     grant->bytes, 0, state_names[grant->state], state_names[state]);
    grant->state = state;
}

static bool holds(const struct lien_grant *grant)
{
    return grant->state == LIENI_GRANT_LIVE || grant->state == LIENI_GRANT_ASKED;
}

uint64_t lieni_name_id(struct lieni_name name)
{
    return (uint64_t)name.gen << 32 | name.slot;
}

// -- Owner: the table --

static int grow(struct lieni_grant_table *t)
{
    if (t->n >= t->max)
        return LIEN_ELIMIT;
    uint32_t cap = t->cap ? t->cap * 2 : 16;
    if (cap > t->max)
        cap = t->max;
    struct lieni_grant_slot *slots = realloc(t->slots, cap * sizeof(*slots));
    if (!slots)
        return LIEN_ENOMEM;
    t->slots = slots;
    t->cap = cap;
    return 0;
}

static int name_take(struct lieni_grant_table *t, struct lien_grant *grant)
{
    if (t->free == 0) {
        int rc = t->n == t->cap ? grow(t) : 0;
        if (rc != 0)
            return rc;
        t->slots[t->n] = (struct lieni_grant_slot){0};
        t->free = ++t->n;
    }
    uint32_t slot = t->free - 1;
    t->free = t->slots[slot].next_free;
    t->slots[slot].grant = grant;
    t->slots[slot].gen++;
    grant->name = (struct lieni_name){.slot = slot, .gen = t->slots[slot].gen};
    return 0;
}

static void name_give(struct lieni_grant_table *t, struct lieni_name name)
{
    struct lieni_grant_slot *slot = &t->slots[name.slot];
    slot->grant = NULL;
    if (slot->gen == UINT32_MAX)
        return; // worn out: names are never used again
    slot->next_free = t->free;
    t->free = name.slot + 1;
}

static struct lien_grant *find(const struct lieni_grant_table *t, struct lieni_name name)
{
    if (name.slot >= t->n || t->slots[name.slot].gen != name.gen)
        return NULL;
    return t->slots[name.slot].grant;
}

// -- Owner: opening --

static int check(struct lien_conn *conn, lien_buf *const *bufs, size_t n, unsigned flags,
                 const struct lieni_doubt *own, uint64_t *bytes)
{
    const lien_ctx *ctx = conn->ctx;
    *bytes = 0;
    if (!bufs || n == 0 || n > LIEN_BUFS_MAX)
        return LIEN_EINVAL;
    for (size_t i = 0; i < n; i++) {
        if (!bufs[i] || !lieni_buf_in_ctx(bufs[i], ctx->mem))
            return LIEN_EINVAL;
        *bytes += lien_buf_len(bufs[i]);
    }
    int rc = lieni_bufs_may_leave(bufs, n, own); // [R15]
    if (rc == 0)
        rc = lieni_bufs_may_expose(bufs, n, conn->serial); // [R16]
    if (rc != 0 || (flags & LIENI_GRANT_BORROWED))
        return rc;
    struct lieni_log_at at = lieni_conn_at(conn, 0);
    if (conn->grants_bytes + *bytes > ctx->options.held_conn_bytes) {
        lieni_log_say(ctx->log, LIEN_LOG_DEBUG, &at, LIEN_ELIMIT,
                      "held grants of %llu bytes and %llu more are above held_conn_bytes %llu",
                      (unsigned long long)conn->grants_bytes, (unsigned long long)*bytes,
                      (unsigned long long)ctx->options.held_conn_bytes);
        return LIEN_ELIMIT;
    }
    if (ctx->held_bytes + *bytes > ctx->options.held_total_bytes) {
        lieni_log_say(ctx->log, LIEN_LOG_DEBUG, &at, LIEN_ELIMIT,
                      "held grants of %llu bytes and %llu more are above held_total_bytes %llu",
                      (unsigned long long)ctx->held_bytes, (unsigned long long)*bytes,
                      (unsigned long long)ctx->options.held_total_bytes);
        return LIEN_ELIMIT;
    }
    return lieni_nic_may_hold(conn, *bytes, "grants"); // [R12]
}

static bool is_borrowed(const struct lien_grant *grant)
{
    return (grant->flags & LIENI_GRANT_BORROWED) != 0;
}

static uint64_t held_bytes(const struct lien_grant *grant)
{
    return is_borrowed(grant) ? 0 : grant->bytes;
}

// Holds the memory of buffer `i`; unborrow() ends it for the first `n`.
static int borrow(struct lien_grant *grant, uint32_t i)
{
    return is_borrowed(grant) ? lieni_buf_pin(grant->bufs[i], &grant->pins[i])
                              : lieni_buf_borrow(grant->bufs[i]);
}

static void unborrow(struct lien_grant *grant, uint32_t n)
{
    while (n > 0) {
        n--;
        if (is_borrowed(grant))
            lieni_pin_end(grant->pins[n]);
        else
            lieni_buf_unborrow(grant->bufs[n]);
    }
}

static int region(struct lien_grant *grant, uint32_t i, struct lieni_region *r)
{
    struct lien_conn *conn = grant->conn;
    if (!(grant->flags & LIEN_REVOCABLE) && !lieni_buf_proven(grant->bufs[i]))
        return lieni_buf_region(grant->bufs[i], conn->ops, conn->nic->domain, r);
    int rc = lieni_buf_own_region(grant->bufs[i], conn->ops, conn->nic->domain, r);
    if (rc == 0)
        grant->own[i] = r->mr;
    return rc;
}

// Closes regions of its own; false if one could not be.
static bool close_own(struct lien_grant *grant)
{
    bool all = true;
    for (uint32_t i = 0; grant->own && i < grant->n; i++) {
        if (grant->own[i] && grant->conn->ops->mr_close(grant->own[i]) != 0)
            all = false;
        else
            grant->own[i] = NULL;
    }
    return all;
}

static int fill_keys(struct lien_grant *grant, const struct lieni_sums *sums,
                     struct lieni_key *keys, uint32_t *n_keys)
{
    *n_keys = 0;
    for (uint32_t i = 0; i < grant->n; i++) {
        uint64_t len = lien_buf_len(grant->bufs[i]);
        struct lieni_region r;
        if (len == 0)
            continue;
        int rc = region(grant, i, &r);
        if (rc != 0)
            return rc;
        keys[(*n_keys)++] = (struct lieni_key){
            .addr = r.addr, .key = r.key, .len = len, .sum = sums ? sums->of[i] : 0};
    }
    return 0;
}

static void run_released(struct lieni_task *task);
static void release_overdue(struct lieni_timer *timer);

static void grant_free(struct lien_grant *grant)
{
    free(grant->bufs);
    free(grant->own);
    free(grant->pins);
    free(grant);
}

static bool any_proven(lien_buf *const *bufs, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || lieni_buf_proven(bufs[i]);
    return any;
}

static struct lien_grant *grant_new(struct lien_conn *conn, lien_buf *const *bufs, size_t n,
                                    unsigned flags)
{
    struct lien_grant *grant = calloc(1, sizeof(*grant));
    if (!grant)
        return NULL;
    grant->bufs = calloc(n, sizeof(lien_buf *));
    const bool own = (flags & LIEN_REVOCABLE) != 0 || any_proven(bufs, n);
    grant->own = own ? calloc(n, sizeof(struct lieni_mr *)) : NULL;
    grant->pins = flags & LIENI_GRANT_BORROWED ? calloc(n, sizeof(struct lieni_pin *)) : NULL;
    if (!grant->bufs || (!grant->own && own) || (!grant->pins && (flags & LIENI_GRANT_BORROWED)) ||
        lieni_timer_init(&conn->ctx->timers, &grant->release_timer, release_overdue) != 0) {
        grant_free(grant);
        return NULL;
    }
    memcpy(grant->bufs, bufs, n * sizeof(lien_buf *));
    grant->conn = conn;
    grant->flags = flags;
    grant->n = (uint32_t)n;
    grant->released_task.run = run_released;
    lieni_list_init(&grant->node);
    lieni_list_init(&grant->revoke_node);
    lieni_list_init(&grant->handle);
    return grant;
}

static void say_full(const struct lien_conn *conn)
{
    struct lieni_log_at at = lieni_conn_at(conn, 0);
    lieni_log_say(conn->ctx->log, LIEN_LOG_DEBUG, &at, LIEN_ELIMIT,
                  "%u grants are live, the limit is %u: the smaller grants_conn of both peers",
                  conn->n_grants, conn->grants.max);
}

int lieni_grant_open(struct lien_conn *conn, lien_buf *const *bufs, size_t n, unsigned flags,
                     const struct lieni_doubt *own, const struct lieni_sums *sums,
                     struct lieni_key *keys, uint32_t *n_keys, struct lien_grant **out)
{
    uint64_t bytes;
    int rc = check(conn, bufs, n, flags, own, &bytes);
    if (rc != 0)
        return rc;
    struct lien_grant *grant = grant_new(conn, bufs, n, flags);
    if (!grant)
        return LIEN_ENOMEM;
    uint32_t borrowed = 0;
    while (rc == 0 && borrowed < n) {
        rc = borrow(grant, borrowed);
        borrowed += rc == 0;
    }
    if (rc == 0)
        rc = fill_keys(grant, sums, keys, n_keys);
    if (rc == 0)
        rc = lieni_bufs_expose(bufs, n, conn->serial, conn->id, &conn->exposures);
    if (rc == 0) {
        rc = name_take(&conn->grants, grant);
        if (rc == LIEN_ELIMIT)
            say_full(conn);
        if (rc != 0)
            lieni_bufs_unexpose(bufs, n, conn->serial); // a refused grant changes nothing
    }
    if (rc != 0) {
        // A region that would not close can still be read: what it covers must not go home.
        bool closed = close_own(grant);
        for (uint32_t i = 0; !closed && i < borrowed; i++)
            lieni_buf_lose(bufs[i], conn->nic->domain);
        unborrow(grant, closed ? borrowed : 0);
        lieni_timer_fini(&conn->ctx->timers, &grant->release_timer);
        grant_free(grant);
        return rc;
    }
    for (size_t i = 0; i < n; i++)
        lieni_buf_lent_by(bufs[i], LIENI_LENT_BY_GRANT, conn->id, lieni_name_id(grant->name));
    grant->bytes = bytes;
    lieni_trace_text(conn->trace, LIENI_TRACE_GRANT, lieni_name_id(grant->name), bytes, 0,
                     is_borrowed(grant) ? "borrowed" : "held", state_names[LIENI_GRANT_LIVE]);
    grant->refs = 1; // the table's
    lieni_conn_ref(conn);
    lieni_list_append(&conn->live_grants, &grant->node);
    conn->n_grants++;
    lieni_liveness_watch(conn);
    conn->grants_bytes += held_bytes(grant);
    lieni_nic_hold(conn, held_bytes(grant));
    conn->ctx->held_bytes += held_bytes(grant);
    conn->ctx->grants_live++;
    *out = grant;
    return 0;
}

// -- Owner: ending --

void lieni_grant_unref(struct lien_grant *grant)
{
    if (--grant->refs > 0)
        return;
    struct lien_conn *conn = grant->conn;
    lieni_timer_fini(&conn->ctx->timers, &grant->release_timer);
    grant_free(grant);
    lieni_conn_unref(conn);
}

static void run_released(struct lieni_task *task)
{
    struct lien_grant *grant = lieni_container(task, struct lien_grant, released_task);
    lien_ctx *ctx = grant->conn->ctx;
    grant->on_released(grant->arg, grant->state == LIENI_GRANT_LOST ? LIEN_EQUARANTINED : 0);
    lieni_ctx_lock(ctx);
    lieni_grant_unref(grant);
    lieni_ctx_unlock(ctx);
}

// It leaves the table; its buffers are settled by now.
static void leave(struct lien_grant *grant)
{
    struct lien_conn *conn = grant->conn;
    lieni_timer_clear(&conn->ctx->timers, &grant->release_timer);
    lieni_list_remove(&grant->node);
    lieni_list_remove(&grant->revoke_node);
    name_give(&conn->grants, grant->name);
    conn->n_grants--;
    conn->grants_bytes -= held_bytes(grant);
    if (grant->state != LIENI_GRANT_LOST) // else the account keeps it
        lieni_nic_unhold(conn, held_bytes(grant));
    conn->ctx->held_bytes -= held_bytes(grant);
    conn->ctx->grants_live--;
    lieni_ctx_changed(conn->ctx);
    if (grant->over)
        grant->over(grant->owner, grant->state == LIENI_GRANT_LOST ? LIEN_EQUARANTINED : 0);
    if (grant->on_released) {
        grant->refs++;
        lieni_ctx_post(conn->ctx, conn->strand, &grant->released_task);
    }
    lieni_grant_unref(grant);
}

static void lost(struct lien_grant *grant)
{
    struct lien_conn *conn = grant->conn;
    set_state(grant, LIENI_GRANT_LOST);
    for (uint32_t i = 0; i < grant->n; i++) {
        if (is_borrowed(grant))
            lieni_pin_lose(grant->pins[i], conn->nic->domain);
        else
            lieni_buf_lose(grant->bufs[i], conn->nic->domain);
    }
    if (!is_borrowed(grant)) {
        conn->lost = true;
        conn->lost_bytes += grant->bytes;
    }
    leave(grant);
}

static void over(struct lien_grant *grant)
{
    if (!close_own(grant)) { // a region that would not close can still be read
        lost(grant);
        return;
    }
    set_state(grant, LIENI_GRANT_OVER);
    unborrow(grant, grant->n);
    leave(grant);
}

void lieni_grant_untold(struct lien_grant *grant)
{
    struct lieni_grant_slot *slot = &grant->conn->grants.slots[grant->name.slot];
    lieni_bufs_unexpose(grant->bufs, grant->n, grant->conn->serial);
    over(grant);
    slot->gen--; // the peer expects this generation next
}

void lieni_grant_call_over(struct lien_grant *grant)
{
    if (grant->state != LIENI_GRANT_LIVE)
        return;
    struct lien_conn *conn = grant->conn;
    set_state(grant, LIENI_GRANT_ASKED);
    if (lieni_conn_usable(conn) == 0)
        lieni_timer_set(&conn->ctx->timers, &grant->release_timer,
                        lieni_ctx_deadline(conn->ctx, (uint32_t)conn->ctx->options.release_ms));
}

int lieni_grant_released(struct lien_conn *conn, struct lieni_name name)
{
    struct lien_grant *grant = find(&conn->grants, name);
    if (!grant)
        return LIEN_EPROTO;
    over(grant);
    return 0;
}

void lieni_grants_end(struct lien_conn *conn, bool proven)
{
    struct lieni_node *n;
    while ((n = lieni_list_first(&conn->live_grants))) {
        struct lien_grant *grant = lieni_container(n, struct lien_grant, node);
        if (proven) {
            over(grant);
            continue;
        }
        close_own(grant); // or they would keep the domain from closing
        lost(grant);
    }
    lieni_exposures_end(&conn->exposures, conn->nic->domain, proven);
}

static void release_overdue(struct lieni_timer *timer)
{
    struct lien_grant *grant = lieni_container(timer, struct lien_grant, release_timer);
    lieni_conn_lose(
        grant->conn, LIEN_EPEERLOST,
        "the peer owes the release of a revoked grant, or of an ended call's read space, "
        "for longer than release_ms");
}

void lieni_grant_revoke(struct lien_grant *grant)
{
    if (grant->state != LIENI_GRANT_LIVE)
        return;
    struct lien_conn *conn = grant->conn;
    set_state(grant, LIENI_GRANT_ASKED);
    if (grant->flags & LIEN_REVOCABLE)
        close_own(grant); // from now on a READ of it is refused by the provider; mapped it stays
    if (lieni_conn_usable(conn) != 0 && conn->state != LIENI_CONN_ENDING)
        return;
    lieni_list_append(&conn->revokes, &grant->revoke_node);
    lieni_timer_set(&conn->ctx->timers, &grant->release_timer,
                    lieni_ctx_deadline(conn->ctx, (uint32_t)conn->ctx->options.release_ms));
    lieni_link_pump(conn);
}

uint32_t lieni_grants_revokes_due(struct lien_conn *conn, struct lieni_name *names, uint32_t max)
{
    uint32_t n = 0;
    struct lieni_node *node;
    while (n < max && (node = lieni_list_pop(&conn->revokes)))
        names[n++] = lieni_container(node, struct lien_grant, revoke_node)->name;
    return n;
}

// -- Reader --

// The entry of a slot, or NULL: its page is not there.
static struct lieni_import *import_at(const struct lieni_import_table *t, uint32_t slot)
{
    if (slot >= t->max || !t->pages || !t->pages[slot / LIENI_IMPORT_PAGE])
        return NULL;
    return &t->pages[slot / LIENI_IMPORT_PAGE][slot % LIENI_IMPORT_PAGE];
}

static int import_get(struct lieni_import_table *t, uint32_t slot, struct lieni_import **out)
{
    if (slot >= t->max)
        return LIEN_EPROTO;
    if (!t->pages)
        t->pages = calloc(1 + (t->max - 1) / LIENI_IMPORT_PAGE, sizeof(struct lieni_import *));
    if (!t->pages)
        return LIEN_ENOMEM;
    struct lieni_import **page = &t->pages[slot / LIENI_IMPORT_PAGE];
    if (!*page)
        *page = calloc(LIENI_IMPORT_PAGE, sizeof(**page));
    if (!*page)
        return LIEN_ENOMEM;
    *out = import_at(t, slot);
    return 0;
}

void lieni_imports_free(struct lieni_import_table *t)
{
    for (uint32_t i = 0; t->pages && i * LIENI_IMPORT_PAGE < t->max; i++)
        free(t->pages[i]);
    free(t->pages);
    t->pages = NULL;
}

// The entry of a name that is known and owed, or NULL.
static struct lieni_import *owed(struct lien_conn *conn, struct lieni_name name)
{
    struct lieni_import *im = import_at(&conn->imports, name.slot);
    return im && name.gen != 0 && im->open == name.gen ? im : NULL;
}

// The release is sent as soon as no READ of it is in flight.
static void release_if_idle(struct lien_conn *conn, struct lieni_name name)
{
    struct lieni_import_table *t = &conn->imports;
    struct lieni_import *im = owed(conn, name);
    if (!im || !im->release || im->reads > 0 || im->queued)
        return;
    im->queued = true;
    im->next_due = 0;
    if (t->due_last)
        import_at(t, t->due_last - 1)->next_due = name.slot + 1;
    else
        t->due = name.slot + 1;
    t->due_last = name.slot + 1;
    lieni_link_pump(conn);
}

int lieni_import_open(struct lien_conn *conn, struct lieni_name name)
{
    struct lieni_import *im;
    int rc = import_get(&conn->imports, name.slot, &im);
    if (rc != 0)
        return rc;
    if (name.gen <= im->dead || im->release)
        return LIEN_ESTALE;
    if (name.gen != im->dead + 1)
        return LIEN_EPROTO; // the owner uses a slot again only after our release
    im->open = name.gen;
    return 0;
}

int lieni_import_first(struct lien_conn *conn, struct lieni_name name)
{
    int rc = owed(conn, name) ? LIEN_EPROTO : lieni_import_open(conn, name);
    return rc == LIEN_ESTALE ? LIEN_EPROTO : rc;
}

void lieni_import_read_begins(struct lien_conn *conn, struct lieni_name name)
{
    struct lieni_import *im = owed(conn, name);
    if (im)
        im->reads++;
}

void lieni_import_read_over(struct lien_conn *conn, struct lieni_name name)
{
    struct lieni_import *im = owed(conn, name);
    if (!im)
        return;
    im->reads--;
    release_if_idle(conn, name);
}

int lieni_import_release(struct lien_conn *conn, struct lieni_name name)
{
    int rc = lieni_import_open(conn, name);
    if (rc != 0)
        return rc;
    owed(conn, name)->release = true;
    release_if_idle(conn, name);
    return 0;
}

int lieni_import_revoked(struct lien_conn *conn, struct lieni_name name)
{
    struct lieni_import *im;
    int rc = import_get(&conn->imports, name.slot, &im);
    if (rc != 0)
        return rc;
    if (name.gen <= im->dead)
        return 0; // our release was on its way
    if (name.gen != im->dead + 1)
        return LIEN_EPROTO;
    im->open = name.gen;
    im->revoked = true;
    im->release = true;
    im->reads++; // held here while reads are stopped
    lieni_reads_stop(conn, &name, LIEN_ESTALE);
    lieni_import_read_over(conn, name);
    return 0;
}

uint32_t lieni_imports_due(struct lien_conn *conn, struct lieni_name *names, uint32_t max)
{
    struct lieni_import_table *t = &conn->imports;
    uint32_t n = 0;
    while (n < max && t->due) {
        uint32_t slot = t->due - 1;
        struct lieni_import *im = import_at(t, slot); // it is there: it was queued
        t->due = im->next_due;
        if (!t->due)
            t->due_last = 0;
        names[n++] = (struct lieni_name){.slot = slot, .gen = im->open};
        *im = (struct lieni_import){.dead = im->open};
    }
    return n;
}

bool lieni_imports_any_due(const struct lien_conn *conn)
{
    return conn->imports.due != 0;
}

// -- Public --

static int grant_opts(const lien_grant_opts *in, lien_grant_opts *out)
{
    lien_grant_opts_init(out);
    int rc = in ? lieni_opts_copy(out, sizeof(*out), in, in->size) : 0;
    if (rc == 0 && (out->flags & ~(LIEN_REVOCABLE | LIEN_CHECKSUM)) != 0)
        rc = LIEN_EINVAL;
    return rc;
}

// A connection as its tokens name it: the id, its lowest bit telling which side grants.
static uint64_t token_conn(const struct lien_conn *conn, bool server_grants)
{
    return (conn->id & ~UINT64_C(1)) | server_grants;
}

static int open_public(struct lien_conn *conn, lien_buf *const *bufs, size_t n,
                       const lien_grant_opts *opts, const struct lieni_sums *sums,
                       lien_token *token, struct lien_grant **out)
{
    struct lieni_token_data data = {
        .kind = LIENI_TOKEN_HELD, .sums = sums != NULL, .conn = token_conn(conn, conn->server)};
    int rc = lieni_conn_usable(conn);
    if (rc == 0)
        rc = lieni_grant_open(conn, bufs, n, opts->flags, NULL, sums, data.keys, &data.n_keys, out);
    if (rc != 0)
        return rc;
    struct lien_grant *grant = *out;
    grant->on_released = opts->on_released;
    grant->arg = opts->arg;
    lieni_list_append(&conn->grant_handles, &grant->handle);
    grant->refs++;
    data.name = grant->name;
    data.total = grant->bytes;
    lieni_token_encode(&data, token);
    return 0;
}

int lien_grant_open(lien_conn *conn, lien_buf *const *bufs, size_t n, const lien_grant_opts *opts,
                    lien_token *token, lien_grant **grant)
{
    lien_grant_opts full;
    if (!conn || !token || !grant)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    int rc = grant_opts(opts, &full);
    if (rc != 0)
        return rc;
    struct lieni_sums sums;
    const bool summed = lieni_sums_wanted(conn->ctx, full.flags);
    lien_ctx *ctx = conn->ctx;
    lieni_ctx_lock(ctx);
    lieni_conn_ref(conn); // another thread may close it meanwhile
    rc = lieni_conn_usable(conn);
    if (rc == 0 && summed)
        rc = lieni_sums_make(ctx, &(struct lieni_summing){bufs, n, &sums}, 1);
    if (rc == 0)
        rc = open_public(conn, bufs, n, &full, summed ? &sums : NULL, token, grant);
    lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
    return rc;
}

int lien_grant_revoke(lien_grant *grant)
{
    if (!grant)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(grant->conn->ctx))
        return LIEN_EFORK;
    lien_ctx *ctx = grant->conn->ctx;
    lieni_ctx_lock(ctx);
    lieni_grant_revoke(grant);
    lieni_ctx_unlock(ctx);
    return 0;
}

int lien_grant_wait(lien_grant *grant, uint32_t timeout_ms)
{
    if (!grant)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(grant->conn->ctx))
        return LIEN_EFORK;
    lien_ctx *ctx = grant->conn->ctx;
    lieni_ctx_lock(ctx);
    uint64_t deadline = lieni_ctx_deadline(ctx, timeout_ms);
    int rc = 0;
    while (holds(grant) && rc == 0)
        rc = timeout_ms == 0 ? LIEN_ETIMEDOUT : lieni_ctx_wait_locked(ctx, deadline);
    if (!holds(grant))
        rc = grant->state == LIENI_GRANT_LOST ? LIEN_EQUARANTINED : 0;
    lieni_ctx_unlock(ctx);
    return rc;
}

int lien_grant_close(lien_grant **slot)
{
    if (!slot || !*slot)
        return LIEN_EINVAL;
    if (lieni_ctx_forked((*slot)->conn->ctx))
        return LIEN_EFORK;
    struct lien_grant *grant = *slot;
    lien_ctx *ctx = grant->conn->ctx;
    lieni_ctx_lock(ctx);
    *slot = NULL;
    lieni_grant_revoke(grant);
    lieni_list_remove(&grant->handle);
    lieni_grant_unref(grant);
    lieni_ctx_unlock(ctx);
    return 0;
}

int lieni_token_of(lien_conn *conn, const void *bytes, size_t len, struct lieni_token_data *data)
{
    const char *why = "";
    int rc = lieni_token_decode(bytes, len, data, &why);
    struct lieni_log_at at = lieni_conn_at(conn, 0);
    if (rc != 0)
        lieni_log_say(conn->ctx->log, LIEN_LOG_WARN, &at, rc, "a token of %zu bytes: %s", len, why);
    else if (data->conn != token_conn(conn, !conn->server))
        rc = LIEN_ESTALE; // another connection's, or our own grant
    return rc;
}

int lien_token_open(lien_conn *conn, const void *token, size_t len, lien_token_info *info)
{
    struct lieni_token_data data;
    if (!conn || !token || !info || info->size < sizeof(info->size))
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    lieni_ctx_lock(conn->ctx);
    int rc = lieni_token_of(conn, token, len, &data);
    lieni_ctx_unlock(conn->ctx);
    if (rc != 0)
        return rc;
    const lien_token_info now = {.size = info->size,
                                 .conn = conn->id,
                                 .grant = lieni_name_id(data.name),
                                 .len = data.total,
                                 .bufs = data.n_keys,
                                 .held = data.kind == LIENI_TOKEN_HELD,
                                 .checksum = data.sums};
    memcpy(info, &now, info->size < sizeof(now) ? info->size : sizeof(now));
    return 0;
}

int lien_release(lien_conn *conn, const void *token, size_t len)
{
    struct lieni_token_data data;
    if (!conn || !token)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    lieni_ctx_lock(conn->ctx);
    int rc = lieni_token_of(conn, token, len, &data);
    if (rc == 0)
        rc = lieni_conn_usable(conn);
    if (rc == 0)
        rc = lieni_import_release(conn, data.name);
    lieni_ctx_unlock(conn->ctx);
    return rc;
}
