// SPDX-License-Identifier: Apache-2.0
//
// The second half of the application of lien-sim: what moves bytes. Grants, reads of the peers' grants, messages; each started at random, its answer checked, its bytes
// verified when they are the application's again.

#include <stdlib.h>
#include <string.h>

#include "model.h"

// -- Grants ------------------------------------------------------------------------------------------------------------------------

static void grant_released(void *arg, int status)
{
    struct app_grant *g = arg;
    op_released(&g->op, status);
    sources_back(g->op.p, g->bufs, g->n, status);
}

static struct app_grant *grant_new(struct app_conn *c)
{
    struct program *p = c->p;
    struct app_grant *g = app_new(sizeof *g);
    op_init(p, &g->op, "grant");
    g->op.one_event = true;
    g->conn = c;
    g->next = p->grants;
    p->grants = g;
    return g;
}

static void grant_open(struct app_grant *g)
{
    struct program *p = g->op.p;
    struct app_conn *c = g->conn;
    lien_grant_opts opts;
    lien_buf *bufs[BUFS_MAX];
    g->tag = g->op.number;
    g->total = bufs_fill(g->bufs, g->n, g->tag);
    for (unsigned i = 0; i < g->n; i++)
        bufs[i] = g->bufs[i].buf;
    lien_grant_opts_init(&opts);
    opts.flags = p->revocable && one_in(p, 3) ? LIEN_REVOCABLE : 0;
    g->sums = one_in(p, 2);
    opts.flags |= g->sums ? LIEN_CHECKSUM : 0;
    opts.on_released = grant_released;
    opts.arg = g;
    int err = lien_grant_open(c->conn, bufs, g->n, &opts, &g->token, &g->grant);
    say(p, "grant_open", g->op.number, err);
    check_answer(p, "lien_grant_open", err, MAY_LIMIT | MAY_REGISTER);
    if (err == LIEN_ELIMIT)
        faults_exhausted(c->node, c);
    if (err) {
        bufs_free(p, g->bufs, g->n);
        return;
    }
    g->op.started = true;
    bufs_lend_source(p, g->bufs, g->n);
    if (one_in(p, 6)) // freeing is put off
        bufs_free(p, g->bufs, g->n);
}

void model_grant(struct app_conn *c)
{
    struct app_grant *g = grant_new(c);
    g->n = bufs_get(c->node, g->bufs, 0);
    if (g->n)
        grant_open(g);
}

void model_grant_new(struct app_conn *c)
{
    struct app_grant *g;
    struct app_mem *mem = model_mem_new(c->node);
    if (!mem->mem)
        return;
    g = grant_new(c);
    g->n = mem_buf_get(mem, 4096, g->bufs) ? 1 : 0;
    if (g->n)
        grant_open(g);
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
    uint64_t bytes = r->n_ops ? 0 : r->total;
    for (unsigned i = 0; i < r->n_ops; i++)
        bytes += r->ops[i].len;
    return bytes;
}

static void read_done(void *arg, int status)
{
    struct app_read *r = arg;
    struct program *p = r->op.p;
    op_done(&r->op, status);
    if (r->never_lent && !status && bytes_of(r))
        program_fail(p, "read %u: wrote into a space that was not lent (R6)", r->op.number);
    bool fine = status == 0 || status == LIEN_ETIMEDOUT || status == LIEN_ECANCELED ||
                status == LIEN_ESTALE || may_lose(p, status);
    if (r->sums && status == LIEN_ECHECKSUM && p->liars) {
        p->tally.caught++;
        fine = true;
    }
    if (!fine)
        program_doubt(p, "read %u: done with %s", r->op.number, lien_errname(status));
    p->tally.stale += r->request && status == LIEN_ESTALE;
}

// Checks one operation's bytes, across the buffers of the space.
static void verify_op(const struct app_read *r, const lien_op *op)
{
    uint64_t base = 0;
    for (unsigned i = 0; i < r->n; base += r->bufs[i++].len) {
        uint64_t lo = op->dst > base ? op->dst : base, hi = op->dst + op->len;
        if (hi > base + r->bufs[i].len)
            hi = base + r->bufs[i].len;
        if (lo >= hi)
            continue;
        const uint8_t *bytes = r->bufs[i].addr + (lo - base);
        size_t bad = pattern_check(bytes, hi - lo, r->tag, op->src + (lo - op->dst));
        if (bad < hi - lo && r->sums) // whatever the network does
            program_fail(r->op.p,
                         "read %u: byte %llu of %llu is wrong, in spite of its checksum (R16)",
                         r->op.number, (unsigned long long)(lo + bad), (unsigned long long)r->tag);
        else if (bad < hi - lo)
            program_doubt(r->op.p, "read %u of %s %llu: byte %llu of the space is wrong%s",
                          r->op.number, r->request ? "read space" : "grant",
                          (unsigned long long)r->tag, (unsigned long long)(lo + bad),
                          r->request ? ": stale bytes were believed (R13)" : "");
    }
}

static void verify_read(const struct app_read *r)
{
    lien_op whole = {.len = r->total};
    if (!r->n_ops)
        verify_op(r, &whole);
    for (unsigned i = 0; i < r->n_ops; i++)
        verify_op(r, &r->ops[i]);
    r->op.p->tally.reads++;
}

static void read_released(void *arg, int status)
{
    struct app_read *r = arg;
    struct program *p = r->op.p;
    op_released(&r->op, status);
    if (r->op.status == 0 && status)
        program_fail(p, "read %u: succeeded, yet its memory is quarantined", r->op.number);
    bool back = r->space && space_back(p, "read", r->op.number, r->space, r->bufs, r->n, status);
    bool good = back && !r->op.status;
    if (good)
        verify_read(r);
    if (r->request)
        request_read_over(r, good); // may take the buffers
    if (r->space)
        space_free(p, r->bufs, status ? 0 : r->n, &r->space);
}

// Its space, of at least `len` bytes, and its operations.
static bool read_prepare(struct app_read *r)
{
    r->n = bufs_get(r->conn->node, r->bufs, r->total);
    if (!r->sums && one_in(r->op.p, 2))
        r->n_ops = random_ops(r->op.p, r->ops, r->total, r->total);
    return r->n && space_open(r->conn->node, r->bufs, r->n, &r->space);
}

static struct app_read *read_new(struct app_conn *c, uint64_t tag, uint64_t total)
{
    struct app_read *r = app_new(sizeof *r);
    op_init(c->p, &r->op, "read");
    r->conn = c;
    r->tag = tag;
    r->total = total;
    r->next = c->p->reads;
    c->p->reads = r;
    return r;
}

// The starting call answered.
static void read_answered(struct app_read *r, int err)
{
    struct program *p = r->op.p;
    lien_buf *buf;
    r->op.started = err == 0;
    if (err) {
        space_free(p, r->bufs, r->n, &r->space);
        return;
    }
    space_lent(p, r->bufs, r->n, r->request != NULL);
    if ((r->never_lent = lien_space_buf(r->space, 0, &buf) != LIEN_EBUSY)) {
        say(p, "read lends nothing", r->op.number, 0);
    } else if (one_in(p, 8)) { // freeing is put off
        for (unsigned i = 0; i < r->n; i++)
            if (!from_mem(p, r->bufs[i].addr))
                lieni_shadow_app_gives(p->world, r->bufs[i].addr, r->bufs[i].len);
        lien_space_free(&r->space);
    }
}

static void start_read(struct app_conn *c, const struct app_grant *g)
{
    struct program *p = c->p;
    struct app_read *r = read_new(c, g->tag, g->total);
    lien_read_opts opts;
    r->sums = g->sums;
    if (!read_prepare(r))
        return;
    lien_read_opts_init(&opts);
    opts.flags = one_in(p, 2) ? LIEN_RELEASE : 0;
    opts.timeout_ms = one_in(p, 3) ? 1 + (uint32_t)draw(p, 30) : LIEN_FOREVER;
    opts.on_done = read_done;
    opts.on_released = read_released;
    opts.arg = r;
    opts.ops = r->n_ops ? r->ops : NULL;
    opts.n_ops = r->n_ops;
    r->op.started = true;
    int err = lien_read_start(c->conn, g->token.bytes, g->token.len, r->space, &opts,
                              one_in(p, 4) ? NULL : &r->read);
    say(p, "read_start", r->op.number, err);
    check_answer(p, "lien_read_start", err, MAY_STALE | MAY_LIMIT | MAY_REGISTER);
    read_answered(r, err);
}

bool model_request_read(struct app_request *request)
{
    struct program *p = request->p;
    struct app_read *r = read_new(request->conn, request->call->src_tag, request->call->src_total);
    lien_transfer_opts opts;
    r->op.what = "request read";
    r->sums = request->call->sums;
    r->request = request;
    if (!read_prepare(r))
        return false;
    lien_transfer_opts_init(&opts);
    opts.timeout_ms = one_in(p, 4) ? 1 + (uint32_t)draw(p, 30) : 0;
    opts.on_done = read_done;
    opts.on_released = read_released;
    opts.arg = r;
    opts.ops = r->n_ops ? r->ops : NULL;
    opts.n_ops = r->n_ops;
    r->op.started = true;
    int err = lien_request_read(request->request, r->space, &opts);
    say(p, "request_read", r->op.number, err);
    unsigned may = MAY_LIMIT | MAY_REGISTER | MAY_CANCELED;
    if (r->total || err != LIEN_ERANGE)
        check_answer(p, "lien_request_read", err, may);
    read_answered(r, err);
    if (!err)
        faults_ambush(p, request->call);
    return !err;
}

// The other side of an open connection, where it can grant.
static struct app_conn *other_side(const struct app_conn *c)
{
    for (struct app_conn *o = c->p->conns; o; o = o->next)
        if (o != c && o->id == c->id && model_conn_usable(o) && node_runs(o->node))
            return o;
    return NULL;
}

void model_read(struct app_conn *c)
{
    const struct app_grant *g = peers_grant(c);
    struct app_conn *other = g || !one_in(c->p, 3) ? NULL : other_side(c);
    if (other) { // grants are rarer than reads are wanted
        model_grant(other);
        g = peers_grant(c);
    }
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
    struct app_send *s = app_new(sizeof *s);
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
    opts.flags = one_in(p, 3) ? LIEN_CHECKSUM : 0;
    opts.on_done = send_done;
    opts.on_released = send_released;
    opts.arg = s;
    int err = lien_send(c->conn, bytes, sizeof h + h.fill, bufs, s->n, &opts);
    say(p, "send", s->op.number, err);
    check_answer(p, "lien_send", err, MAY_AGAIN | MAY_LIMIT | MAY_REGISTER);
    if (err == LIEN_EAGAIN || err == LIEN_ELIMIT)
        faults_exhausted(c->node, c);
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
        program_doubt(c->p, "connection %u: a message's head answers %s, %zu bytes", c->number,
                      lien_errname(err), len);
        return;
    }
    memcpy(&h, data, sizeof h);
    if (h.seq != c->rx || h.fill != len - sizeof h)
        program_doubt(c->p, "connection %u: message %llu came as number %llu, with %zu bytes",
                      c->number, (unsigned long long)h.seq, (unsigned long long)c->rx, len);
    c->rx = h.seq + 1;
    if (pattern_check((const uint8_t *)data + sizeof h, len - sizeof h, h.tag, 0) != len - sizeof h)
        program_doubt(c->p, "connection %u: head of message %llu is wrong", c->number,
                      (unsigned long long)h.seq);
    lien_buf *body = lien_msg_body(m->msg);
    if ((body != NULL) != (h.len != 0) || (body && lien_buf_len(body) != h.len)) {
        program_doubt(c->p, "connection %u: message %llu has no body of %llu bytes", c->number,
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
        program_doubt(c->p, "connection %u: byte %zu of the body of message %llu is wrong",
                      c->number, bad, (unsigned long long)h.seq);
    c->p->tally.bodies++;
}

static struct app_msg *msg_new(struct app_node *node, lien_msg *msg)
{
    struct app_msg *m = app_new(sizeof *m);
    m->node = node;
    m->msg = msg;
    m->next = node->p->msgs;
    node->p->msgs = m;
    return m;
}

void msg_keep(struct app_node *node, lien_msg *msg, struct app_buf body)
{
    struct app_msg *m = msg_new(node, msg);
    m->body = body;
    if (one_in(node->p, 2))
        model_msg_free(m);
}

void on_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct app_conn *c = arg;
    (void)conn;
    say(c->p, "message", c->number, 0);
    if (c->closed || !c->conn)
        program_fail(c->p, "connection %u: a message after its close", c->number);
    struct app_msg *m = msg_new(c->node, msg);
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
