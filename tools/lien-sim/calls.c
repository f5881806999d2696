// SPDX-License-Identifier: Apache-2.0
//
// Calls, as their callers see them. A read space is written over with the next generation as soon as no call borrows it, which the application learns from the end of the call, from cancel, or by
// asking the buffers; so a READ that comes late fetches what nobody may believe. A write space is filled before it is lent; when it comes back after a success each of its bytes
// must be what the last write that arrived there wrote, or the filling.

#include <stdlib.h>
#include <string.h>

#include "calls.h"

#define MS UINT64_C(1000000)

// -- Read spaces -------------------------------------------------------------------------------------------------------------------

// Nobody else has it: it gets a pattern that it never had.
static void source_fill(struct app_source *s)
{
    s->tag = (uint64_t)++s->node->p->numbers << 8;
    bufs_fill(s->bufs, s->n, s->tag);
}

static struct app_source *source_new(struct app_node *node)
{
    struct app_source *s = app_new(sizeof *s);
    s->node = node;
    s->n = bufs_get(node, s->bufs, 0);
    for (unsigned i = 0; i < s->n; i++)
        s->total += s->bufs[i].len;
    s->freed = s->n == 0;
    s->next = node->p->sources;
    node->p->sources = s;
    if (s->n)
        source_fill(s);
    return s->n ? s : NULL;
}

// One that is there already, perhaps lent, or a new one. NULL: no memory.
static struct app_source *source_pick(struct app_node *node)
{
    struct app_source *found = NULL;
    unsigned n = 0;
    if (one_in(node->p, 2))
        for (struct app_source *s = node->p->sources; s && n < 8; s = s->next)
            if (s->node == node && !s->freed && one_in(node->p, ++n))
                found = s;
    return found ? found : source_new(node);
}

void model_source_free(struct app_source *s)
{
    if (s->freed)
        return;
    s->freed = true;
    bufs_free(s->node->p, s->bufs, s->n);
}

static int source_state(const struct app_source *s)
{
    int err = 0;
    for (unsigned i = 0; i < s->n && !err; i++) {
        void *data;
        err = lien_buf_mut(s->bufs[i].buf, &data);
    }
    return err;
}

// No call borrows it any more.
static void source_back(struct app_source *s)
{
    struct program *p = s->node->p;
    int err = source_state(s);
    if (err)
        program_fail(p, "no call borrows the read space %llu, yet it answers %s (R8)",
                     (unsigned long long)s->tag, lien_errname(err));
    else
        source_fill(s);
    if (one_in(p, 3))
        model_source_free(s);
}

static void borrow_over(struct app_call *c)
{
    struct app_source *s = c->source;
    struct program *p = c->op.p;
    if (!c->borrowing)
        return;
    c->borrowing = false;
    s->borrows--;
    if (s->freed)
        return;
    for (unsigned i = 0; i < s->n; i++)
        lieni_shadow_app_source_back(p->world, s->bufs[i].addr, s->bufs[i].len);
    if (!s->borrows)
        source_back(s);
    else if (source_state(s) != LIEN_EBUSY && !p->failed)
        model_poke(s); // the others have ended too
}

static void borrow(struct app_call *c)
{
    struct app_source *s = c->source;
    c->borrowing = true;
    s->borrows++;
    bufs_lend_source(c->op.p, s->bufs, s->n);
    if (one_in(c->op.p, 12)) // freeing is put off
        model_source_free(s);
}

void model_poke(struct app_source *s)
{
    struct program *p = s->node->p;
    if (s->freed || !s->borrows || source_state(s) != 0)
        return;
    say(p, "borrow over", (unsigned)(s->tag >> 8), 0);
    for (struct app_call *c = p->calls; c && s->borrows; c = c->next) {
        if (c->source != s || !c->borrowing)
            continue;
        c->borrowing = false;
        s->borrows--;
        for (unsigned i = 0; i < s->n; i++)
            lieni_shadow_app_source_back(p->world, s->bufs[i].addr, s->bufs[i].len);
    }
    source_back(s);
}

// -- Write spaces ------------------------------------------------------------------------------------------------------------------

static void lay(uint8_t *want, const struct app_write *w)
{
    const lien_op whole = {.len = w->total};
    unsigned n = w->n_ops ? w->n_ops : 1;
    for (unsigned i = 0; i < n; i++) {
        const lien_op *op = w->n_ops ? &w->ops[i] : &whole;
        pattern_fill(want + op->dst, op->len, w->tag, op->src);
    }
}

// The oldest first.
static void lay_all(uint8_t *want, const struct app_write *w)
{
    if (!w)
        return;
    lay_all(want, w->landed);
    lay(want, w);
}

static void verify_target(struct app_call *c)
{
    struct program *p = c->op.p;
    uint8_t *want = app_new(c->target_total);
    uint64_t at = 0;
    pattern_fill(want, c->target_total, c->target_tag, 0);
    lay_all(want, c->landed);
    for (unsigned i = 0; i < c->n_target; i++) {
        const uint8_t *is = c->target[i].addr;
        for (size_t j = 0; j < c->target[i].len; j++)
            if (is[j] != want[at + j]) {
                program_doubt(p, "call %u: byte %llu of its write space is wrong", c->op.number,
                              (unsigned long long)(at + j));
                break;
            }
        at += c->target[i].len;
    }
    free(want);
    p->tally.spaces++;
}

// -- Callbacks ---------------------------------------------------------------------------------------------------------------------

static void check_status(struct app_call *c, int status)
{
    struct program *p = c->op.p;
    bool lost = may_lose(p, status);
    bool ours = status == LIEN_ETIMEDOUT || status == LIEN_ECANCELED || status == LIEN_EOVERLOAD;
    bool handlers = c->replied && status == c->reply_status;
    bool unknown = status == LIEN_ENOTFOUND && !c->known;
    // Memory for a body could not be registered, at either side.
    bool memory = status == LIEN_EREGISTER;
    if (!lost && !ours && !handlers && !unknown && !memory)
        program_doubt(p, "call %u: done with %s; its handler %s %s", c->op.number,
                      lien_errname(status), c->replied ? "replied" : "did not reply",
                      c->replied ? lien_errname(c->reply_status) : "");
    if (status == 0 && (c->handled != 1 || c->gave_up))
        program_doubt(p, "call %u: success; handled %u times%s", c->op.number, c->handled,
                      c->gave_up ? ", and a write of it was given up (R2)" : "");
    if (status == LIEN_ETIMEDOUT && node_now(c->conn->node) + 2 * MS < c->deadline && !p->jumped &&
        !p->liars && !(c->replied && c->reply_status == status) && !c->gave_up)
        program_fail(p, "call %u: timed out %llu ns before its deadline", c->op.number,
                     (unsigned long long)(c->deadline - node_now(c->conn->node)));
}

// The reply's bytes; takes it over.
static void take_reply(struct app_call *c, lien_msg *reply)
{
    struct program *p = c->op.p;
    const void *data;
    size_t len;
    struct app_buf body = {0};
    int err = lien_msg_head(reply, &data, &len);
    if (err || len != c->reply_len || pattern_check(data, len, c->reply_tag, 0) != len)
        program_doubt(p, "call %u: its reply answers %s, %zu of %llu bytes, or they are wrong",
                      c->op.number, lien_errname(err), len, (unsigned long long)c->reply_len);
    lien_buf *buf = lien_msg_body(reply);
    if ((buf != NULL) != (c->reply_total != 0) || (buf && lien_buf_len(buf) != c->reply_total))
        program_doubt(p, "call %u: its reply has no body of %llu bytes", c->op.number,
                      (unsigned long long)c->reply_total);
    if (buf && lien_buf_len(buf) == c->reply_total && !p->failed &&
        (err = lien_buf_data(buf, &data)) == 0) {
        body = (struct app_buf){.addr = (uint8_t *)(uintptr_t)data, .len = c->reply_total};
        lieni_shadow_app_owns(p->world, data, body.len);
        if (pattern_check(data, body.len, c->reply_tag, 0) != body.len)
            program_doubt(p, "call %u: the body of its reply is wrong", c->op.number);
        p->tally.bodies++;
        if (one_in(p, 3))
            err = lien_msg_take_body(reply, &body.buf);
    }
    if (err)
        program_fail(p, "call %u: its reply's body answers %s", c->op.number, lien_errname(err));
    msg_keep(c->conn->node, reply, body);
}

static void call_done(void *arg, int status, lien_msg *reply)
{
    struct app_call *c = arg;
    struct program *p = c->op.p;
    op_done(&c->op, status);
    check_status(c, status);
    borrow_over(c);
    bool answered = c->replied && status == c->reply_status;
    if (status == 0 && !reply && c->reply_len + c->reply_total)
        program_doubt(p, "call %u: success without its reply", c->op.number);
    if (reply && answered)
        take_reply(c, reply);
    else if (reply && p->liars)
        lien_msg_free(&reply);
    else if (reply)
        program_doubt(p, "call %u: done with %s, and a reply", c->op.number, lien_errname(status));
    p->tally.calls += status == 0;
    if (status == LIEN_ETIMEDOUT)
        faults_deadline(c);
    if (!p->stopping && model_conn_usable(c->conn) && one_in(p, 6))
        model_call(c->conn);
}

static void call_released(void *arg, int status)
{
    struct app_call *c = arg;
    struct program *p = c->op.p;
    op_released(&c->op, status);
    sources_back(p, c->body, c->n_body, status);
    if (!c->space)
        return;
    // Quarantine may be of the body alone.
    int space = lien_space_wait(c->space, 0);
    if (space && space != status)
        program_fail(p, "call %u: released with %s, its write space answers %s", c->op.number,
                     lien_errname(status), lien_errname(space));
    bool back = space_back(p, "call", c->op.number, c->space, c->target, c->n_target, space);
    if (back && !c->op.status && !c->torn && !c->n_writing)
        verify_target(c);
    space_free(p, c->target, space ? 0 : c->n_target, &c->space);
}

// -- Starting ----------------------------------------------------------------------------------------------------------------------

static bool prepare_target(struct app_call *c)
{
    struct app_node *node = c->conn->node;
    c->n_target = bufs_get(node, c->target, 0);
    if (!c->n_target)
        return false;
    c->target_tag = c->op.number;
    c->target_total = bufs_fill(c->target, c->n_target, c->target_tag);
    return space_open(node, c->target, c->n_target, &c->space);
}

// What it carries: each part at times.
static void prepare(struct app_call *c)
{
    struct program *p = c->op.p;
    if (!one_in(p, 3)) {
        c->source = source_pick(c->conn->node);
        c->src_tag = c->source ? c->source->tag : 0;
        c->src_total = c->source ? c->source->total : 0;
    }
    if (!one_in(p, 3))
        prepare_target(c);
    if (one_in(p, 4) && (c->n_body = bufs_get(c->conn->node, c->body, 0))) {
        c->body_tag = c->op.number;
        c->body_total = bufs_fill(c->body, c->n_body, c->body_tag);
    }
    c->reply_max = one_in(p, 2) ? 1 + draw(p, 20000) : 0;
}

static void give_back(struct app_call *c)
{
    bufs_free(c->op.p, c->body, c->n_body);
    if (c->space)
        space_free(c->op.p, c->target, c->n_target, &c->space);
}

static void lent(struct app_call *c)
{
    struct program *p = c->op.p;
    lien_buf *buf;
    if (c->source)
        borrow(c);
    bufs_lend_source(p, c->body, c->n_body);
    if (one_in(p, 6))
        bufs_free(p, c->body, c->n_body);
    if (!c->space)
        return;
    int err = lien_space_buf(c->space, 0, &buf);
    if (err != LIEN_EBUSY)
        program_fail(p, "call %u: its write space answers %s while it is lent (R6)", c->op.number,
                     lien_errname(err));
    space_lent(p, c->target, c->n_target, false);
    if (!one_in(p, 10))
        return;
    for (unsigned i = 0; i < c->n_target; i++) // freeing is put off
        if (!from_mem(p, c->target[i].addr))
            lieni_shadow_app_gives(p->world, c->target[i].addr, c->target[i].len);
    lien_space_free(&c->space);
}

static uint32_t draw_timeout(struct program *p)
{
    switch (draw(p, 4)) {
    case 0:
        return 1 + (uint32_t)draw(p, 20);
    case 1:
        return 20 + (uint32_t)draw(p, 600);
    case 2:
        return 3000;
    default:
        return 0; // the option's
    }
}

static int start(struct app_call *c, const struct call_head *head, const lien_call_opts *opts)
{
    struct program *p = c->op.p;
    uint8_t args[sizeof *head + 256];
    memcpy(args, head, sizeof *head);
    pattern_fill(args + sizeof *head, head->fill, c->op.number, 0);
    const char *method = one_in(p, 3) ? "sim/inline" : "sim/desk";
    c->known = !one_in(p, 24);
    return lien_call_start(c->conn->conn, c->known ? method : "sim/none", args,
                           sizeof *head + head->fill, opts, one_in(p, 5) ? NULL : &c->call);
}

void model_call(struct app_conn *conn)
{
    struct program *p = conn->p;
    struct app_call *c = app_new(sizeof *c);
    lien_buf *read[BUFS_MAX], *body[BUFS_MAX];
    lien_call_opts opts;
    op_init(p, &c->op, "call");
    c->conn = conn;
    c->next = p->calls;
    p->calls = c;
    prepare(c);
    for (unsigned i = 0; c->source && i < c->source->n; i++)
        read[i] = c->source->bufs[i].buf;
    for (unsigned i = 0; i < c->n_body; i++)
        body[i] = c->body[i].buf;
    lien_call_opts_init(&opts);
    c->sums = one_in(p, 3);
    opts.flags = c->sums ? LIEN_CHECKSUM : 0;
    opts.timeout_ms = draw_timeout(p);
    opts.read = c->source ? read : NULL;
    opts.n_read = c->source ? c->source->n : 0;
    opts.write = c->space;
    opts.body = c->n_body ? body : NULL;
    opts.n_body = c->n_body;
    opts.reply_max = c->reply_max;
    opts.on_done = call_done;
    opts.on_released = call_released;
    opts.arg = c;
    const struct call_head head = {.number = c->op.number, .fill = draw(p, 256)};
    uint32_t ms = opts.timeout_ms ? opts.timeout_ms : CALL_MS;
    c->deadline = node_now(conn->node) + ms * MS;
    int err = start(c, &head, &opts);
    say(p, "call_start", c->op.number, err);
    check_answer(p, "lien_call_start", err, MAY_AGAIN | MAY_LIMIT | MAY_REGISTER | MAY_OVERLOAD);
    if (err == LIEN_EAGAIN || err == LIEN_ELIMIT || err == LIEN_EOVERLOAD)
        faults_exhausted(conn->node, conn);
    c->op.started = err == 0;
    if (err)
        give_back(c);
    else
        lent(c);
}

// -- Ending ------------------------------------------------------------------------------------------------------------------------

void model_call_cancel(struct app_call *c)
{
    say(c->op.p, "call_cancel", c->op.number, 0);
    int err = lien_call_cancel(c->call);
    if (err)
        program_fail(c->op.p, "lien_call_cancel answers %s", lien_errname(err));
    borrow_over(c);
}

void model_call_close(struct app_call *c)
{
    if (!c->call)
        return;
    say(c->op.p, "call_close", c->op.number, 0);
    int err = lien_call_close(&c->call);
    if (err || c->call)
        program_fail(c->op.p, "lien_call_close answers %s", lien_errname(err));
    borrow_over(c);
}

void model_check_deadlines(struct program *p, bool last)
{
    for (struct app_call *c = p->calls; c; c = c->next) {
        bool due = c->op.started && !c->op.done && node_now(c->conn->node) > c->deadline + 2 * MS;
        if (due && last && node_runs(c->conn->node))
            program_fail(p, "call %u: its deadline passed %llu ns ago and it is not done",
                         c->op.number, (unsigned long long)(node_now(c->conn->node) - c->deadline));
        else if (due && !last && node_runs(c->conn->node))
            program_progress(p, c->conn->node);
    }
    if (!last)
        model_check_deadlines(p, true);
}
