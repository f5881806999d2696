// SPDX-License-Identifier: Apache-2.0
//
// The application of lien-sim: its objects, what it may believe of them, and the checks of every callback and byte. It tells the shadow what it saw. Buffers carry a pattern of
// their grant or message; what was read must be that, and what was given back is overwritten at once, so that a transfer that comes later shows twice.

#include "model.h"

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

void program_doubt(struct program *p, const char *format, ...)
{
    char text[sizeof p->failure];
    va_list args;
    if (p->liars) {
        p->tally.lies++;
        return;
    }
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    program_fail(p, "%s", text);
}

uint64_t node_now(const struct app_node *node)
{
    const struct lieni_sim_world *w = node->p->world;
    return lieni_sim_now(w) + lieni_sim_clock_ahead(w, node->index);
}

uint64_t draw(struct program *p, uint64_t below)
{
    return lieni_sim_draw(p->world, below);
}

bool one_in(struct program *p, uint64_t n)
{
    return draw(p, n) == 0;
}

void say(struct program *p, const char *what, unsigned number, int err)
{
    if (p->trace)
        printf("%12llu app    %-22s %u: %s\n", (unsigned long long)lieni_sim_now(p->world), what,
               number, lien_errname(err));
}

// -- What a call may answer --------------------------------------------------------------------------------------------------------

bool may_lose(const struct program *p, int status)
{
    if (status == LIEN_ECLOSED || status == LIEN_EPEERLOST || status == LIEN_EIO)
        return true;
    if (status == LIEN_EPROTO)
        return p->short_release || p->liars;
    // Of a message's body: its checksum, or a false word that its grant is revoked.
    if (status == LIEN_ECHECKSUM || status == LIEN_ESTALE)
        return p->liars;
    // A message's body could not be registered, or READ.
    return (status == LIEN_EREGISTER && lieni_sim_world_config(p->world)->p_register_fail) ||
           (status == LIEN_ELIMIT && p->tight) || (status == LIEN_ENOMEM && p->poor);
}

void check_answer(struct program *p, const char *what, int err, unsigned may)
{
    bool fine = err == 0 || may_lose(p, err);
    fine = fine || (err == LIEN_ELIMIT && (may & MAY_LIMIT));
    fine = fine || (err == LIEN_EAGAIN && (may & MAY_AGAIN));
    fine = fine || (err == LIEN_ESTALE && (may & MAY_STALE));
    fine = fine || (err == LIEN_EOVERLOAD && (may & MAY_OVERLOAD));
    fine = fine || (err == LIEN_ECANCELED && (may & MAY_CANCELED));
    if (!fine)
        program_doubt(p, "%s answered %s (%s)", what, lien_errname(err), lien_strerror(err));
}

// -- Callbacks of operations -------------------------------------------------------------------------------------------------------

void op_init(struct program *p, struct app_op *op, const char *what)
{
    *op = (struct app_op){.p = p, .what = what, .number = ++p->numbers};
}

void op_done(struct app_op *op, int status)
{
    say(op->p, op->what, op->number, status);
    if (!op->started || op->one_event)
        program_fail(op->p, "%s %u: on_done though it was not started", op->what, op->number);
    if (op->done++)
        program_fail(op->p, "%s %u: on_done twice", op->what, op->number);
    if (op->released)
        program_fail(op->p, "%s %u: on_done after on_released", op->what, op->number);
    if (status == LIEN_EPROTO && !may_lose(op->p, status))
        program_fail(op->p, "%s %u: done with EPROTO between honest peers", op->what, op->number);
    op->status = status;
}

void op_released(struct app_op *op, int status)
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
    op->p->tally.quarantined += status != 0;
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

// Eight bytes of a pattern, the first at a multiple of eight.
static uint64_t pattern(uint64_t tag, uint64_t at)
{
    uint64_t x = tag * 0x9e3779b97f4a7c15u + (at >> 3);
    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9u;
}

static uint8_t pattern_byte(uint64_t tag, uint64_t at)
{
    return (uint8_t)(pattern(tag, at) >> (8 * (at & 7)));
}

void pattern_fill(uint8_t *p, size_t len, uint64_t tag, uint64_t at)
{
    size_t i = 0;
    for (; i < len && (at + i) % 8; i++)
        p[i] = pattern_byte(tag, at + i);
    for (; len - i >= 8; i += 8) {
        uint64_t word = pattern(tag, at + i);
        memcpy(p + i, &word, 8);
    }
    for (; i < len; i++)
        p[i] = pattern_byte(tag, at + i);
}

size_t pattern_check(const uint8_t *p, size_t len, uint64_t tag, uint64_t at)
{
    size_t i = 0;
    for (; i < len && (at + i) % 8; i++)
        if (p[i] != pattern_byte(tag, at + i))
            return i;
    for (; len - i >= 8; i += 8) {
        uint64_t word = pattern(tag, at + i);
        if (memcmp(p + i, &word, 8) != 0)
            break;
    }
    for (; i < len; i++)
        if (p[i] != pattern_byte(tag, at + i))
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
        return 1 + draw(p, 60000);
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

static bool buf_from(struct app_node *node, struct app_mem *mem, size_t len, struct app_buf *out)
{
    struct program *p = node->p;
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
        if (err == LIEN_ELIMIT && !mem)
            faults_exhausted(node, NULL);
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

// A buffer of the application's, from the pool or its own memory.
static bool buf_get(struct app_node *node, size_t len, struct app_buf *out)
{
    return buf_from(node, one_in(node->p, 4) ? usable_mem(node, len) : NULL, len, out);
}

bool mem_buf_get(struct app_mem *mem, size_t len, struct app_buf *out)
{
    return buf_from(mem->node, mem, len, out);
}

bool from_mem(const struct program *p, const uint8_t *addr)
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

void bufs_free(struct program *p, struct app_buf *bufs, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        buf_free(p, &bufs[i]);
}

unsigned bufs_get(struct app_node *node, struct app_buf *bufs, uint64_t total)
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

uint64_t bufs_fill(const struct app_buf *bufs, unsigned n, uint64_t tag)
{
    uint64_t at = 0;
    for (unsigned i = 0; i < n; i++) {
        pattern_fill(bufs[i].addr, bufs[i].len, tag, at);
        at += bufs[i].len;
    }
    return at;
}

void bufs_lend_source(struct program *p, const struct app_buf *bufs, unsigned n)
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

void sources_back(struct program *p, struct app_buf *bufs, unsigned n, int status)
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

// -- Spaces ------------------------------------------------------------------------------------------------------------------------

bool space_open(struct app_node *node, struct app_buf *bufs, unsigned n, lien_space **space)
{
    lien_buf *slots[BUFS_MAX];
    for (unsigned i = 0; i < n; i++)
        slots[i] = bufs[i].buf;
    lieni_sim_allocating++; // here it may not fail
    int err = lien_space_open(node->ctx, slots, n, space);
    lieni_sim_allocating--;
    if (err) {
        program_fail(node->p, "lien_space_open answers %s", lien_errname(err));
        return false;
    }
    for (unsigned i = 0; i < n; i++) {
        if (slots[i])
            program_fail(node->p, "lien_space_open left slot %u set (R6)", i);
        bufs[i].buf = NULL;
    }
    return true;
}

void space_lent(struct program *p, const struct app_buf *bufs, unsigned n, bool validated)
{
    for (unsigned i = 0; i < n; i++) {
        if (validated)
            lieni_shadow_app_lends_target_validated(p->world, bufs[i].addr, bufs[i].len);
        else
            lieni_shadow_app_lends_target(p->world, bufs[i].addr, bufs[i].len);
    }
}

bool space_back(struct program *p, const char *what, unsigned number, lien_space *space,
                const struct app_buf *bufs, unsigned n, int status)
{
    for (unsigned i = 0; i < n; i++) {
        if (status)
            lieni_shadow_app_lost(p->world, bufs[i].addr, bufs[i].len);
        else
            lieni_shadow_app_owns(p->world, bufs[i].addr, bufs[i].len);
    }
    int err = lien_space_wait(space, 0);
    if (err != status)
        program_fail(p, "%s %u: released with %s, but lien_space_wait answers %s", what, number,
                     lien_errname(status), lien_errname(err));
    for (unsigned i = 0; i < n && !status; i++) {
        lien_buf *buf;
        const void *data;
        err = lien_space_buf(space, i, &buf);
        if (!err)
            err = lien_buf_data(buf, &data);
        if (err || data != bufs[i].addr) {
            program_fail(p, "%s %u: a released buffer answers %s", what, number, lien_errname(err));
            return false;
        }
    }
    return !status;
}

void space_free(struct program *p, const struct app_buf *bufs, unsigned n, lien_space **space)
{
    for (unsigned i = 0; i < n; i++) {
        memset(bufs[i].addr, 0xcc, bufs[i].len);
        if (!from_mem(p, bufs[i].addr))
            lieni_shadow_app_gives(p->world, bufs[i].addr, bufs[i].len);
    }
    lien_space_free(space);
}

unsigned random_ops(struct program *p, lien_op *ops, uint64_t src, uint64_t dst)
{
    uint64_t at = 0;
    unsigned n = 1 + (unsigned)draw(p, 4);
    for (unsigned i = 0; i < n; i++) {
        uint64_t left = dst - at;
        uint64_t len = left ? draw(p, left + 1) : 0;
        if (one_in(p, 5))
            len = 0;
        if (len > src)
            len = src;
        ops[i] = (lien_op){.src = len < src ? draw(p, src - len + 1) : 0, .dst = at, .len = len};
        at += len;
    }
    return n;
}

// -- Waiting for memory ------------------------------------------------------------------------------------------------------------

static void alloc_done(void *arg, int status, lien_buf *buf)
{
    struct app_alloc *a = arg;
    struct program *p = a->op.p;
    void *data;
    op_released(&a->op, 0);
    say(p, "alloc", a->op.number, status);
    a->alloc = NULL;
    if (status != 0 && status != LIEN_ECANCELED && !may_lose(p, status))
        program_fail(p, "alloc %u: done with %s", a->op.number, lien_errname(status));
    if ((buf != NULL) != (status == 0))
        program_fail(p, "alloc %u: status %s, buffer %p", a->op.number, lien_errname(status),
                     (void *)buf);
    if (!buf)
        return;
    int err = lien_buf_mut(buf, &data);
    if (err || lien_buf_len(buf) != a->len) {
        program_fail(p, "alloc %u: its buffer answers %s, length %zu of %zu", a->op.number,
                     lien_errname(err), lien_buf_len(buf), a->len);
        return;
    }
    a->buf = (struct app_buf){.buf = buf, .addr = data, .len = a->len};
    lieni_shadow_app_owns(p->world, data, a->len);
    pattern_fill(data, a->len, a->op.number, 0);
}

void model_alloc(struct app_node *node)
{
    struct program *p = node->p;
    struct app_alloc *a = app_new(sizeof *a);
    op_init(p, &a->op, "alloc");
    a->op.one_event = true;
    a->node = node;
    a->len = random_len(p);
    a->next = p->allocs;
    p->allocs = a;
    a->op.started = true;
    int err = lien_pool_alloc_start(node->pool, a->len, alloc_done, a, &a->alloc);
    say(p, "alloc_start", a->op.number, err);
    check_answer(p, "lien_pool_alloc_start", err, 0);
    a->op.started = err == 0;
}

void model_alloc_end(struct app_alloc *a)
{
    if (!a->op.released) {
        int err = a->alloc ? lien_pool_alloc_cancel(a->alloc) : 0;
        say(a->op.p, "alloc_cancel", a->op.number, err);
        if (err && err != LIEN_ESTATE)
            program_fail(a->op.p, "lien_pool_alloc_cancel answers %s", lien_errname(err));
        return;
    }
    if (!a->buf.buf)
        return;
    if (pattern_check(a->buf.addr, a->len, a->op.number, 0) != a->len)
        program_fail(a->op.p, "alloc %u: somebody wrote into a buffer of the application's",
                     a->op.number);
    bufs_free(a->op.p, &a->buf, 1);
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
        lieni_shadow_app_unregistered(m->op.p->world, m->addr, MEM_BYTES);
    if (!status)
        memset(m->addr, 0xee, MEM_BYTES);
}

struct app_mem *model_mem_new(struct app_node *node)
{
    struct program *p = node->p;
    struct app_mem *m = app_new(sizeof *m);
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
    return m;
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
    if (!may_lose(c->p, status))
        program_fail(c->p, "connection %u: lost by %s between honest peers", c->number,
                     lien_errname(status));
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

void model_conn_opts(struct app_conn *c, lien_conn_opts *opts)
{
    lien_conn_opts_init(opts);
    opts->arg = c;
    opts->on_open = on_open;
    opts->on_message = on_message;
    opts->on_writable = on_writable;
    opts->on_lost = on_lost;
    opts->on_closed = on_closed;
    opts->service = &c->node->service;
    if (c->p->pool_of_conn)
        opts->pool = c->node->pool;
}

struct app_conn *model_conn_new(struct app_node *node, bool server)
{
    struct app_conn *c = app_new(sizeof *c);
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
    struct app_conn shape = {.p = node->p, .node = node};
    lien_conn_opts conn;
    model_conn_opts(&shape, &conn);
    conn.arg = NULL;
    opts.conn = &conn;
    int err = lien_listener_open(node->ctx, "*:0", &opts, &node->listener);
    if (err == LIEN_ENOMEM && node->p->poor)
        return;
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
    for (const struct app_call *c = p->calls; c; c = c->next)
        if (op_open(&c->op))
            return false;
    for (const struct app_write *w = p->writes; w; w = w->next)
        if (op_open(&w->op))
            return false;
    for (const struct app_alloc *a = p->allocs; a; a = a->next)
        if (op_open(&a->op))
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
    for (const struct app_call *c = p->calls; c; c = c->next)
        op_check_end(&c->op);
    for (const struct app_write *w = p->writes; w; w = w->next)
        op_check_end(&w->op);
    for (const struct app_alloc *a = p->allocs; a; a = a->next)
        op_check_end(&a->op);
    for (const struct app_source *s = p->sources; s; s = s->next)
        if (s->borrows)
            program_fail(p, "a read space is borrowed by %u calls at the end", s->borrows);
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
    FREE_LIST(app_source, p->sources)
    FREE_LIST(app_call, p->calls)
    FREE_LIST(app_request, p->requests)
    FREE_LIST(app_write, p->writes)
    FREE_LIST(app_alloc, p->allocs)
}
