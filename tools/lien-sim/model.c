// SPDX-License-Identifier: Apache-2.0
//
// The application of lien-sim: its objects, what it may believe of them, and the checks of every callback and byte. It tells the shadow what it saw. Buffers carry a pattern of
// their grant or message; what was read must be that, and what was given back is overwritten at once, so that a transfer that comes later shows twice.

#include "program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void program_fail(struct program *p, const char *format, ...)
{
    va_list args;
    if (p->failed)
        return;
    p->failed = true;
    va_start(args, format);
    vsnprintf(p->failure, sizeof p->failure, format, args);
    va_end(args);
    if (p->trace)
        printf("FAILED: %s\n", p->failure);
}

uint64_t draw(struct program *p, uint64_t below)
{
    return lieni_sim_draw(p->world, below);
}

bool one_in(struct program *p, uint64_t n)
{
    return draw(p, n) == 0;
}

static void say(struct program *p, const char *what, unsigned number, int err)
{
    if (p->trace)
        printf("%12llu app    %-22s %u: %s\n", (unsigned long long)lieni_sim_now(p->world), what,
               number, lien_errname(err));
}

// -- What a call may answer --------------------------------------------------------------------------------------------------------

enum {
    MAY_LIMIT = 1,
    MAY_AGAIN = 2,
    MAY_STALE = 4,
    MAY_REGISTER = 8, // registrations fail in this world
};

// Answers that an honest peer and a correct call can meet: the end of the connection, and `may`.
static void check_answer(struct program *p, const char *what, int err, unsigned may)
{
    bool fine = err == 0 || err == LIEN_ECLOSED || err == LIEN_EPEERLOST || err == LIEN_EIO;
    fine = fine || (err == LIEN_EPROTO && p->short_release);
    fine = fine || (err == LIEN_ELIMIT && (may & MAY_LIMIT));
    fine = fine || (err == LIEN_EAGAIN && (may & MAY_AGAIN));
    fine = fine || (err == LIEN_ESTALE && (may & MAY_STALE));
    fine = fine || (err == LIEN_EREGISTER && (may & MAY_REGISTER) &&
                    lieni_sim_world_config(p->world)->p_register_fail);
    if (!fine)
        program_fail(p, "%s answered %s (%s)", what, lien_errname(err), lien_strerror(err));
}

// -- Callbacks of operations -------------------------------------------------------------------------------------------------------

static void op_init(struct program *p, struct app_op *op, const char *what)
{
    *op = (struct app_op){.p = p, .what = what, .number = ++p->numbers};
}

static bool op_done(struct app_op *op, int status)
{
    say(op->p, op->what, op->number, status);
    if (!op->started || op->one_event)
        program_fail(op->p, "%s %u: on_done though it was not started", op->what, op->number);
    if (op->done++)
        program_fail(op->p, "%s %u: on_done twice", op->what, op->number);
    if (op->released)
        program_fail(op->p, "%s %u: on_done after on_released", op->what, op->number);
    if (status == LIEN_EPROTO && !op->p->short_release)
        program_fail(op->p, "%s %u: done with EPROTO between honest peers", op->what, op->number);
    op->status = status;
    return true;
}

static void op_released(struct app_op *op, int status)
{
    say(op->p, op->what, op->number, status);
    if (!op->started)
        program_fail(op->p, "%s %u: on_released though it was not started", op->what, op->number);
    if (!op->one_event && !op->done)
        program_fail(op->p, "%s %u: on_released before on_done", op->what, op->number);
    if (op->released++)
        program_fail(op->p, "%s %u: on_released twice", op->what, op->number);
    if (status && status != LIEN_EQUARANTINED)
        program_fail(op->p, "%s %u: released with %s", op->what, op->number, lien_errname(status));
    op->released_status = status;
    op->p->quarantined += status != 0;
}

static void op_check_end(const struct app_op *op)
{
    if (!op->started)
        return;
    if (!op->one_event && op->done != 1)
        program_fail(op->p, "%s %u: on_done ran %u times", op->what, op->number, op->done);
    if (op->released != 1)
        program_fail(op->p, "%s %u: on_released ran %u times", op->what, op->number, op->released);
}

static bool op_open(const struct app_op *op)
{
    return op->started && !op->released;
}

// -- Patterns and buffers ----------------------------------------------------------------------------------------------------------

static uint8_t pattern(uint64_t tag, uint64_t at)
{
    uint64_t x = tag * 0x9e3779b97f4a7c15u + (at >> 3);
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (uint8_t)(x >> (8 * (at & 7)));
}

static void pattern_fill(uint8_t *p, size_t len, uint64_t tag, uint64_t at)
{
    for (size_t i = 0; i < len; i++)
        p[i] = pattern(tag, at + i);
}

// Index of the first byte that differs, or `len`.
static size_t pattern_check(const uint8_t *p, size_t len, uint64_t tag, uint64_t at)
{
    for (size_t i = 0; i < len; i++)
        if (p[i] != pattern(tag, at + i))
            return i;
    return len;
}

static size_t random_len(struct program *p)
{
    switch (draw(p, 8)) {
    case 0:
        return 1;
    case 1:
        return 4096;
    case 2:
        return 1 + draw(p, 40000);
    default:
        return 1 + draw(p, 3000);
    }
}

static struct app_mem *usable_mem(struct app_node *node, size_t len)
{
    for (struct app_mem *m = node->p->mems; m; m = m->next)
        if (m->node == node && m->mem && m->used + len <= MEM_BYTES)
            return m;
    return NULL;
}

// A buffer of the application's, from the pool or its own memory.
static bool buf_get(struct app_node *node, size_t len, struct app_buf *out)
{
    struct program *p = node->p;
    struct app_mem *mem = one_in(p, 4) ? usable_mem(node, len) : NULL;
    lien_buf *buf = NULL;
    int err;
    if (mem) {
        err = lien_mem_buf(mem->mem, mem->used, len, &buf);
        mem->used += (len + 63) & ~(size_t)63;
    } else {
        err = lien_pool_alloc(node->pool, len, &buf);
    }
    if (err) {
        check_answer(p, mem ? "lien_mem_buf" : "lien_pool_alloc", err, MAY_LIMIT);
        return false;
    }
    void *data;
    err = lien_buf_mut(buf, &data);
    if (err || lien_buf_len(buf) != len) {
        program_fail(p, "a fresh buffer answers %s, length %zu of %zu", lien_errname(err),
                     lien_buf_len(buf), len);
        return false;
    }
    *out = (struct app_buf){.buf = buf, .addr = data, .len = len};
    if (!mem)
        lieni_shadow_app_owns(p->world, data, len);
    return true;
}

static bool from_mem(const struct program *p, const uint8_t *addr)
{
    for (const struct app_mem *m = p->mems; m; m = m->next)
        if (addr >= m->addr && addr < m->addr + MEM_BYTES)
            return true;
    return false;
}

static void buf_free(struct program *p, struct app_buf *b)
{
    if (!b->buf)
        return;
    if (!from_mem(p, b->addr))
        lieni_shadow_app_gives(p->world, b->addr, b->len);
    lien_buf_free(&b->buf);
}

static void bufs_free(struct program *p, struct app_buf *bufs, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        buf_free(p, &bufs[i]);
}

// Up to BUFS_MAX buffers of `total` bytes in all (0: some); returns their number, 0 when there was no room.
static unsigned bufs_get(struct app_node *node, struct app_buf *bufs, uint64_t total)
{
    struct program *p = node->p;
    unsigned n = 1 + (unsigned)draw(p, BUFS_MAX);
    uint64_t left = total;
    for (unsigned i = 0; i < n; i++) {
        size_t len = random_len(p);
        if (total && (i + 1 == n || len >= left))
            len = left;
        if (!buf_get(node, len, &bufs[i])) {
            bufs_free(p, bufs, i);
            return 0;
        }
        left -= total ? len : 0;
        if (total && !left)
            return i + 1;
    }
    return n;
}

static uint64_t bufs_fill(const struct app_buf *bufs, unsigned n, uint64_t tag)
{
    uint64_t at = 0;
    for (unsigned i = 0; i < n; i++) {
        pattern_fill(bufs[i].addr, bufs[i].len, tag, at);
        at += bufs[i].len;
    }
    return at;
}

static void bufs_lend_source(struct program *p, const struct app_buf *bufs, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        lieni_shadow_app_lends_source(p->world, bufs[i].addr, bufs[i].len);
    for (unsigned i = 0; i < n; i++) {
        void *data;
        int err = lien_buf_mut(bufs[i].buf, &data);
        if (err != LIEN_EBUSY)
            program_fail(p, "a lent source can be written: lien_buf_mut answers %s (R8)",
                         lien_errname(err));
    }
}

// The sources of an operation are released: written over at once, and freed.
static void sources_back(struct program *p, struct app_buf *bufs, unsigned n, int status)
{
    for (unsigned i = 0; i < n; i++) {
        void *data;
        if (!bufs[i].buf)
            continue; // freed early
        if (status) {
            lieni_shadow_app_lost(p->world, bufs[i].addr, bufs[i].len);
            lien_buf_free(&bufs[i].buf);
            continue;
        }
        lieni_shadow_app_source_back(p->world, bufs[i].addr, bufs[i].len);
        int err = lien_buf_mut(bufs[i].buf, &data);
        if (err || data != bufs[i].addr)
            program_fail(p, "a released source cannot be written: %s (R4)", lien_errname(err));
        else
            memset(data, 0xdd, bufs[i].len);
        buf_free(p, &bufs[i]);
    }
}

// -- Registered memory -------------------------------------------------------------------------------------------------------------

static void mem_released(void *arg, int status)
{
    struct app_mem *m = arg;
    if (m->mem)
        program_fail(m->op.p, "memory %u: released before it was unregistered", m->op.number);
    op_released(&m->op, status);
    if (status)
        lieni_shadow_app_lost(m->op.p->world, m->addr, MEM_BYTES);
    else
        lieni_shadow_app_owns(m->op.p->world, m->addr, MEM_BYTES);
    if (!status)
        memset(m->addr, 0xee, MEM_BYTES);
}

void model_mem_new(struct app_node *node)
{
    struct program *p = node->p;
    struct app_mem *m = calloc(1, sizeof *m);
    lien_mem_opts opts;
    lien_mem_opts_init(&opts);
    opts.on_released = mem_released;
    opts.arg = m;
    op_init(p, &m->op, "registered memory");
    m->op.one_event = true;
    m->node = node;
    m->addr = aligned_alloc(4096, MEM_BYTES);
    m->next = p->mems;
    p->mems = m;
    memset(m->addr, 0xee, MEM_BYTES);
    int err = lien_mem_register(node->ctx, m->addr, MEM_BYTES, &opts, &m->mem);
    check_answer(p, "lien_mem_register", err, 0);
    m->op.started = err == 0;
    if (!err)
        lieni_shadow_app_owns(p->world, m->addr, MEM_BYTES);
}

void model_mem_unregister(struct app_mem *m)
{
    if (!m->mem)
        return;
    say(m->op.p, "unregister", m->op.number, 0);
    int err = lien_mem_unregister(&m->mem);
    if (err || m->mem)
        program_fail(m->op.p, "lien_mem_unregister answers %s", lien_errname(err));
}

// -- Connections -------------------------------------------------------------------------------------------------------------------

static void conn_learn(struct app_conn *c, lien_conn *conn)
{
    lien_conn_info info = {.size = sizeof info};
    int err = lien_conn_info_get(conn, &info);
    if (err || !info.id)
        program_fail(c->p, "lien_conn_info_get of an open connection answers %s, id %llu",
                     lien_errname(err), (unsigned long long)info.id);
    c->id = info.id;
}

static void on_open(lien_conn *conn, int status, void *arg)
{
    struct app_conn *c = arg;
    say(c->p, "open", c->number, status);
    if (c->opened++ || c->lost || c->closed || c->server)
        program_fail(c->p, "connection %u: on_open twice, late, or at the server", c->number);
    if (status == LIEN_EPROTO || status == LIEN_ENOCOMMON)
        program_fail(c->p, "connection %u: opening failed with %s", c->number,
                     lien_errname(status));
    c->open_status = status;
    if (!status)
        conn_learn(c, conn);
}

static void on_lost(lien_conn *conn, int status, void *arg)
{
    struct app_conn *c = arg;
    (void)conn;
    say(c->p, "lost", c->number, status);
    if (c->lost++ || c->closed || !c->conn)
        program_fail(c->p, "connection %u: on_lost twice, or after the close", c->number);
    if (status == LIEN_EPROTO && !c->p->short_release)
        program_fail(c->p, "connection %u: lost by EPROTO between honest peers", c->number);
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    struct app_conn *c = arg;
    (void)conn;
    say(c->p, "closed", c->number, status);
    if (c->closed++ || c->conn)
        program_fail(c->p, "connection %u: on_closed twice, or before the close", c->number);
    if (status && status != LIEN_EQUARANTINED)
        program_fail(c->p, "connection %u: closed with %s", c->number, lien_errname(status));
}

static void on_writable(lien_conn *conn, void *arg)
{
    struct app_conn *c = arg;
    (void)conn;
    if (c->closed)
        program_fail(c->p, "connection %u: on_writable after on_closed", c->number);
    if (!c->p->stopping && c->conn && one_in(c->p, 2))
        model_send(c);
}

static void on_message(lien_conn *conn, lien_msg *msg, void *arg);

void model_conn_opts(struct app_conn *c, lien_conn_opts *opts)
{
    lien_conn_opts_init(opts);
    opts->arg = c;
    opts->on_open = on_open;
    opts->on_message = on_message;
    opts->on_writable = on_writable;
    opts->on_lost = on_lost;
    opts->on_closed = on_closed;
}

struct app_conn *model_conn_new(struct app_node *node, bool server)
{
    struct app_conn *c = calloc(1, sizeof *c);
    c->p = node->p;
    c->node = node;
    c->number = ++node->p->numbers;
    c->server = server;
    c->next = node->p->conns;
    node->p->conns = c;
    return c;
}

void model_conn_close(struct app_conn *c)
{
    if (!c->conn)
        return;
    say(c->p, "close", c->number, 0);
    int err = lien_conn_close(&c->conn);
    if (err || c->conn)
        program_fail(c->p, "lien_conn_close answers %s", lien_errname(err));
}

bool model_conn_usable(const struct app_conn *c)
{
    return c->conn && c->id && !c->node->dead;
}

static int on_accept(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    struct app_node *node = arg;
    (void)listener;
    if (node->p->stopping || one_in(node->p, 24))
        return LIEN_EREFUSED;
    struct app_conn *c = model_conn_new(node, true);
    c->conn = conn;
    *conn_arg = c;
    say(node->p, "accept", c->number, 0);
    conn_learn(c, conn);
    return 0;
}

static void on_listener_closed(lien_listener *listener, void *arg)
{
    struct app_node *node = arg;
    (void)listener;
    if (++node->listeners_closed > node->listeners_opened - (node->listener != NULL))
        program_fail(node->p, "node %u: a listener's on_closed ran twice or too early",
                     node->index);
}

void model_listen(struct app_node *node)
{
    lien_listener_opts opts;
    if (node->listener)
        return;
    lien_listener_opts_init(&opts);
    opts.arg = node;
    opts.on_accept = on_accept;
    opts.on_closed = on_listener_closed;
    struct app_conn shape = {.p = node->p};
    model_conn_opts(&shape, &opts.conn);
    opts.conn.arg = NULL;
    int err = lien_listener_open(node->ctx, "*:0", &opts, &node->listener);
    if (!err)
        err = lien_listener_address(node->listener, node->address, sizeof node->address);
    if (err)
        program_fail(node->p, "listening answers %s", lien_errname(err));
    node->listeners_opened++;
}

void model_listener_close(struct app_node *node)
{
    if (node->listener && lien_listener_close(&node->listener))
        program_fail(node->p, "lien_listener_close failed");
}

// -- Grants ------------------------------------------------------------------------------------------------------------------------

static void grant_released(void *arg, int status)
{
    struct app_grant *g = arg;
    op_released(&g->op, status);
    sources_back(g->op.p, g->bufs, g->n, status);
}

void model_grant(struct app_conn *c)
{
    struct program *p = c->p;
    struct app_grant *g = calloc(1, sizeof *g);
    lien_grant_opts opts;
    lien_buf *bufs[BUFS_MAX];
    op_init(p, &g->op, "grant");
    g->op.one_event = true;
    g->conn = c;
    g->next = p->grants;
    p->grants = g;
    g->n = bufs_get(c->node, g->bufs, 0);
    if (!g->n)
        return;
    g->tag = g->op.number;
    g->total = bufs_fill(g->bufs, g->n, g->tag);
    for (unsigned i = 0; i < g->n; i++)
        bufs[i] = g->bufs[i].buf;
    lien_grant_opts_init(&opts);
    opts.on_released = grant_released;
    opts.arg = g;
    int err = lien_grant_open(c->conn, bufs, g->n, &opts, &g->token, &g->grant);
    say(p, "grant_open", g->op.number, err);
    check_answer(p, "lien_grant_open", err, MAY_LIMIT | MAY_REGISTER);
    if (err) {
        bufs_free(p, g->bufs, g->n);
        return;
    }
    g->op.started = true;
    bufs_lend_source(p, g->bufs, g->n);
    if (one_in(p, 6)) // freeing is put off
        bufs_free(p, g->bufs, g->n);
}

void model_revoke(struct app_grant *g)
{
    say(g->op.p, "revoke", g->op.number, 0);
    int err = lien_grant_revoke(g->grant);
    if (err)
        check_answer(g->op.p, "lien_grant_revoke", err, MAY_STALE);
}

void model_grant_close(struct app_grant *g)
{
    say(g->op.p, "grant_close", g->op.number, 0);
    if (g->grant && (lien_grant_close(&g->grant) || g->grant))
        program_fail(g->op.p, "lien_grant_close failed");
}

// A grant of the peer on this connection, at times one that is over; NULL: none.
static struct app_grant *peers_grant(struct app_conn *c)
{
    struct program *p = c->p;
    struct app_grant *found = NULL;
    unsigned n = 0;
    bool any = one_in(p, 10);
    for (struct app_grant *g = p->grants; g && n < 12; g = g->next)
        if (g->op.started && g->conn->id == c->id && g->conn != c && (any || !g->op.released) &&
            one_in(p, ++n))
            found = g;
    return found;
}

void model_release(struct app_conn *c)
{
    struct app_grant *g = peers_grant(c);
    if (!g)
        return;
    int err = lien_release(c->conn, g->token.bytes, g->token.len);
    say(c->p, "release", g->op.number, err);
    check_answer(c->p, "lien_release", err, MAY_STALE);
}

// -- Reads -------------------------------------------------------------------------------------------------------------------------

static uint64_t bytes_of(const struct app_read *r)
{
    uint64_t bytes = r->n_ops ? 0 : r->grant->total;
    for (unsigned i = 0; i < r->n_ops; i++)
        bytes += r->ops[i].len;
    return bytes;
}

static void read_done(void *arg, int status)
{
    struct app_read *r = arg;
    op_done(&r->op, status);
    if (r->never_lent && !status && bytes_of(r))
        program_fail(r->op.p, "read %u: wrote into a space that was not lent (R6)", r->op.number);
    bool fine = status == 0 || status == LIEN_ETIMEDOUT || status == LIEN_ECANCELED ||
                status == LIEN_ESTALE || status == LIEN_ECLOSED || status == LIEN_EPEERLOST ||
                status == LIEN_EIO || status == LIEN_EREGISTER || status == LIEN_EPROTO;
    if (!fine)
        program_fail(r->op.p, "read %u: done with %s", r->op.number, lien_errname(status));
}

// Checks one operation's bytes, across the buffers of the space.
static void verify_op(struct app_read *r, const lien_op *op)
{
    uint64_t base = 0;
    for (unsigned i = 0; i < r->n; base += r->bufs[i++].len) {
        uint64_t lo = op->dst > base ? op->dst : base, hi = op->dst + op->len;
        if (hi > base + r->bufs[i].len)
            hi = base + r->bufs[i].len;
        if (lo >= hi)
            continue;
        lien_buf *buf;
        const void *data;
        int err = lien_space_buf(r->space, i, &buf);
        if (!err)
            err = lien_buf_data(buf, &data);
        if (err) {
            program_fail(r->op.p, "read %u: a released buffer answers %s", r->op.number,
                         lien_errname(err));
            return;
        }
        const uint8_t *bytes = (const uint8_t *)data + (lo - base);
        size_t bad = pattern_check(bytes, hi - lo, r->grant->tag, op->src + (lo - op->dst));
        if (bad < hi - lo)
            program_fail(r->op.p, "read %u of grant %u: byte %llu of the space is wrong",
                         r->op.number, r->grant->op.number, (unsigned long long)(lo + bad));
    }
}

static void verify_read(struct app_read *r)
{
    lien_op whole = {.len = r->grant->total};
    if (!r->n_ops)
        verify_op(r, &whole);
    for (unsigned i = 0; i < r->n_ops; i++)
        verify_op(r, &r->ops[i]);
    r->op.p->reads_verified++;
}

static void read_released(void *arg, int status)
{
    struct app_read *r = arg;
    struct program *p = r->op.p;
    op_released(&r->op, status);
    if (r->op.status == 0 && status)
        program_fail(p, "read %u: succeeded, yet its memory is quarantined", r->op.number);
    if (!r->space)
        return; // freed while lent
    for (unsigned i = 0; i < r->n; i++) {
        if (status)
            lieni_shadow_app_lost(p->world, r->bufs[i].addr, r->bufs[i].len);
        else
            lieni_shadow_app_owns(p->world, r->bufs[i].addr, r->bufs[i].len);
    }
    int err = lien_space_wait(r->space, 0);
    if (err != status)
        program_fail(p, "read %u: released with %s, but lien_space_wait answers %s", r->op.number,
                     lien_errname(status), lien_errname(err));
    if (!status && !r->op.status)
        verify_read(r);
    for (unsigned i = 0; i < r->n && !status; i++) {
        memset(r->bufs[i].addr, 0xcc, r->bufs[i].len);
        if (!from_mem(p, r->bufs[i].addr))
            lieni_shadow_app_gives(p->world, r->bufs[i].addr, r->bufs[i].len);
    }
    lien_space_free(&r->space);
}

// Operations of random shape whose destinations do not overlap.
static void random_ops(struct program *p, struct app_read *r)
{
    uint64_t total = r->grant->total, at = 0;
    r->n_ops = 1 + (unsigned)draw(p, 4);
    for (unsigned i = 0; i < r->n_ops; i++) {
        uint64_t left = total - at;
        uint64_t len = left ? draw(p, left + 1) : 0;
        if (one_in(p, 5))
            len = 0;
        uint64_t src = len < total ? draw(p, total - len + 1) : 0;
        r->ops[i] = (lien_op){.src = src, .dst = at, .len = len};
        at += len;
    }
}

static bool open_space(struct app_read *r)
{
    lien_buf *bufs[BUFS_MAX];
    r->n = bufs_get(r->conn->node, r->bufs, r->grant->total);
    if (!r->n)
        return false;
    for (unsigned i = 0; i < r->n; i++)
        bufs[i] = r->bufs[i].buf;
    int err = lien_space_open(r->conn->node->ctx, bufs, r->n, &r->space);
    if (err) {
        program_fail(r->op.p, "lien_space_open answers %s", lien_errname(err));
        return false;
    }
    for (unsigned i = 0; i < r->n; i++) {
        if (bufs[i])
            program_fail(r->op.p, "lien_space_open left slot %u set (R6)", i);
        r->bufs[i].buf = NULL;
    }
    return true;
}

static void start_read(struct app_conn *c, const struct app_grant *g)
{
    struct program *p = c->p;
    struct app_read *r = calloc(1, sizeof *r);
    lien_read_opts opts;
    op_init(p, &r->op, "read");
    r->conn = c;
    r->grant = g;
    r->next = p->reads;
    p->reads = r;
    if (!open_space(r))
        return;
    lien_read_opts_init(&opts);
    opts.flags = one_in(p, 2) ? LIEN_RELEASE : 0;
    opts.timeout_ms = one_in(p, 3) ? 1 + (uint32_t)draw(p, 30) : LIEN_FOREVER;
    opts.on_done = read_done;
    opts.on_released = read_released;
    opts.arg = r;
    if (one_in(p, 2)) {
        random_ops(p, r);
        opts.ops = r->ops;
        opts.n_ops = r->n_ops;
    }
    r->op.started = true;
    int err = lien_read_start(c->conn, g->token.bytes, g->token.len, r->space, &opts,
                              one_in(p, 4) ? NULL : &r->read);
    say(p, "read_start", r->op.number, err);
    check_answer(p, "lien_read_start", err, MAY_STALE | MAY_LIMIT | MAY_REGISTER);
    r->op.started = err == 0;
    for (unsigned i = 0; i < r->n; i++) {
        if (!err)
            lieni_shadow_app_lends_target(p->world, r->bufs[i].addr, r->bufs[i].len);
        else if (!from_mem(p, r->bufs[i].addr))
            lieni_shadow_app_gives(p->world, r->bufs[i].addr, r->bufs[i].len);
    }
    lien_buf *buf;
    if (err) {
        lien_space_free(&r->space);
    } else if ((r->never_lent = lien_space_buf(r->space, 0, &buf) != LIEN_EBUSY)) {
        say(p, "read lends nothing", r->op.number, 0);
    } else if (one_in(p, 8)) { // freeing is put off
        for (unsigned i = 0; i < r->n; i++)
            if (!from_mem(p, r->bufs[i].addr))
                lieni_shadow_app_gives(p->world, r->bufs[i].addr, r->bufs[i].len);
        lien_space_free(&r->space);
    }
}

void model_read(struct app_conn *c)
{
    const struct app_grant *g = peers_grant(c);
    if (g)
        start_read(c, g);
}

void model_cancel(struct app_read *r)
{
    say(r->op.p, "read_cancel", r->op.number, 0);
    int err = lien_read_cancel(r->read);
    if (err)
        check_answer(r->op.p, "lien_read_cancel", err, MAY_STALE);
}

void model_read_close(struct app_read *r)
{
    say(r->op.p, "read_close", r->op.number, 0);
    if (r->read && (lien_read_close(&r->read) || r->read))
        program_fail(r->op.p, "lien_read_close failed");
}

// -- Messages ----------------------------------------------------------------------------------------------------------------------

struct head {
    uint64_t seq, tag, len;
    uint64_t fill; // bytes after the head, of the pattern
};

static void send_done(void *arg, int status)
{
    op_done(&((struct app_send *)arg)->op, status);
}

static void send_released(void *arg, int status)
{
    struct app_send *s = arg;
    op_released(&s->op, status);
    sources_back(s->op.p, s->bufs, s->n, status);
}

void model_send(struct app_conn *c)
{
    struct program *p = c->p;
    struct app_send *s = calloc(1, sizeof *s);
    uint8_t bytes[sizeof(struct head) + 512];
    lien_buf *bufs[BUFS_MAX];
    lien_send_opts opts;
    op_init(p, &s->op, "send");
    s->conn = c;
    s->next = p->sends;
    p->sends = s;
    if (one_in(p, 2) && !(s->n = bufs_get(c->node, s->bufs, 0)))
        return;
    struct head h = {.seq = c->tx, .tag = s->op.number, .fill = draw(p, 512)};
    h.len = bufs_fill(s->bufs, s->n, h.tag);
    memcpy(bytes, &h, sizeof h);
    pattern_fill(bytes + sizeof h, h.fill, h.tag, 0);
    for (unsigned i = 0; i < s->n; i++)
        bufs[i] = s->bufs[i].buf;
    lien_send_opts_init(&opts);
    opts.on_done = send_done;
    opts.on_released = send_released;
    opts.arg = s;
    int err = lien_send(c->conn, bytes, sizeof h + h.fill, bufs, s->n, &opts);
    say(p, "send", s->op.number, err);
    check_answer(p, "lien_send", err, MAY_AGAIN | MAY_LIMIT | MAY_REGISTER);
    if (err) {
        bufs_free(p, s->bufs, s->n);
        return;
    }
    s->op.started = true;
    c->tx++;
    bufs_lend_source(p, s->bufs, s->n);
    if (one_in(p, 6))
        bufs_free(p, s->bufs, s->n);
}

static void check_message(struct app_conn *c, struct app_msg *m)
{
    const void *data;
    size_t len;
    struct head h;
    int err = lien_msg_head(m->msg, &data, &len);
    if (err || len < sizeof h) {
        program_fail(c->p, "connection %u: a message's head answers %s, %zu bytes", c->number,
                     lien_errname(err), len);
        return;
    }
    memcpy(&h, data, sizeof h);
    if (h.seq != c->rx || h.fill != len - sizeof h)
        program_fail(c->p, "connection %u: message %llu came as number %llu, with %zu bytes",
                     c->number, (unsigned long long)h.seq, (unsigned long long)c->rx, len);
    c->rx++;
    if (pattern_check((const uint8_t *)data + sizeof h, len - sizeof h, h.tag, 0) != len - sizeof h)
        program_fail(c->p, "connection %u: head of message %llu is wrong", c->number,
                     (unsigned long long)h.seq);
    lien_buf *body = lien_msg_body(m->msg);
    if ((body != NULL) != (h.len != 0) || (body && lien_buf_len(body) != h.len)) {
        program_fail(c->p, "connection %u: message %llu has no body of %llu bytes", c->number,
                     (unsigned long long)h.seq, (unsigned long long)h.len);
        return;
    }
    if (!body)
        return;
    err = lien_buf_data(body, &data);
    if (err) {
        program_fail(c->p, "a received body answers %s", lien_errname(err));
        return;
    }
    m->body.addr = (uint8_t *)(uintptr_t)data;
    m->body.len = h.len;
    lieni_shadow_app_owns(c->p->world, data, h.len);
    size_t bad = pattern_check(data, h.len, h.tag, 0);
    if (bad < h.len)
        program_fail(c->p, "connection %u: byte %zu of the body of message %llu is wrong",
                     c->number, bad, (unsigned long long)h.seq);
    c->p->bodies_verified++;
}

static void on_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct app_conn *c = arg;
    struct app_msg *m = calloc(1, sizeof *m);
    (void)conn;
    say(c->p, "message", c->number, 0);
    if (c->closed || !c->conn)
        program_fail(c->p, "connection %u: a message after its close", c->number);
    m->node = c->node;
    m->msg = msg;
    m->next = c->p->msgs;
    c->p->msgs = m;
    check_message(c, m);
    if (m->body.addr && one_in(c->p, 4)) {
        int err = lien_msg_take_body(msg, &m->body.buf);
        if (err)
            program_fail(c->p, "lien_msg_take_body answers %s", lien_errname(err));
    }
    if (one_in(c->p, 3))
        model_msg_free(m);
    if (!c->p->stopping && model_conn_usable(c) && one_in(c->p, 3))
        model_read(c);
}

void model_msg_free(struct app_msg *m)
{
    struct program *p = m->node->p;
    struct app_msg **at = &p->msgs;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    if (m->body.addr)
        lieni_shadow_app_gives(p->world, m->body.addr, m->body.len);
    lien_buf_free(&m->body.buf);
    lien_msg_free(&m->msg);
    if (m->msg)
        program_fail(p, "lien_msg_free left the variable set");
    free(m);
}

// -- The end -----------------------------------------------------------------------------------------------------------------------

bool model_quiet(const struct program *p)
{
    for (unsigned i = 0; i < p->n_nodes; i++)
        if (!p->nodes[i].listener && p->nodes[i].listeners_closed < p->nodes[i].listeners_opened)
            return false;
    for (const struct app_conn *c = p->conns; c; c = c->next)
        if (!c->closed && !c->conn)
            return false;
    for (const struct app_grant *g = p->grants; g; g = g->next)
        if (op_open(&g->op))
            return false;
    for (const struct app_read *r = p->reads; r; r = r->next)
        if (op_open(&r->op))
            return false;
    for (const struct app_send *s = p->sends; s; s = s->next)
        if (op_open(&s->op))
            return false;
    return true; // memory in quarantine may wait for its domain's end
}

void model_check_end(struct program *p, bool contexts_closed)
{
    for (const struct app_conn *c = p->conns; c; c = c->next) {
        if (c->closed != 1)
            program_fail(p, "connection %u: on_closed ran %u times", c->number, c->closed);
        if (!c->server && c->opened > 1)
            program_fail(p, "connection %u: on_open ran %u times", c->number, c->opened);
    }
    for (const struct app_grant *g = p->grants; g; g = g->next)
        op_check_end(&g->op);
    for (const struct app_read *r = p->reads; r; r = r->next)
        op_check_end(&r->op);
    for (const struct app_send *s = p->sends; s; s = s->next)
        op_check_end(&s->op);
    for (const struct app_mem *m = p->mems; m && contexts_closed; m = m->next)
        op_check_end(&m->op);
    for (unsigned i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].listeners_closed != p->nodes[i].listeners_opened)
            program_fail(p, "node %u: %u of %u listeners told their end", i,
                         p->nodes[i].listeners_closed, p->nodes[i].listeners_opened);
}

#define FREE_LIST(type, head)                                                                      \
    for (struct type *x = (head), *next; x; x = next) {                                            \
        next = x->next;                                                                            \
        free(x);                                                                                   \
    }

void model_free(struct program *p)
{
    for (struct app_mem *m = p->mems; m; m = m->next)
        free(m->addr);
    FREE_LIST(app_conn, p->conns)
    FREE_LIST(app_grant, p->grants)
    FREE_LIST(app_read, p->reads)
    FREE_LIST(app_send, p->sends)
    FREE_LIST(app_msg, p->msgs)
    FREE_LIST(app_mem, p->mems)
}
