// SPDX-License-Identifier: Apache-2.0
//
// Requests: what the handlers of lien-sim do with the calls of their peers. At once, or step by step later: reads of the caller's space (believed only as far as the library vouches), writes into the
// caller's, also of the very buffers that were read, calls back, replies, drops; also long after nobody waits any more.

#include <stdlib.h>
#include <string.h>

#include "calls.h"

// -- Arrival -----------------------------------------------------------------------------------------------------------------------

static struct app_conn *conn_of(struct program *p, const lien_conn *conn)
{
    for (struct app_conn *c = p->conns; c; c = c->next)
        if (c->conn == conn)
            return c;
    return NULL;
}

static struct app_call *call_of(struct program *p, uint64_t number)
{
    for (struct app_call *c = p->calls; c; c = c->next)
        if (c->op.number == number)
            return c;
    return NULL;
}

static void take_body(struct app_request *r)
{
    struct app_call *c = r->call;
    const void *data;
    lien_buf *buf = lien_request_body(r->request);
    int err = buf ? lien_buf_data(buf, &data) : 0;
    if ((buf != NULL) != (c->body_total != 0) || err ||
        (buf && lien_buf_len(buf) != c->body_total)) {
        program_doubt(r->p, "request %u: no body of %llu bytes, %s", r->number,
                      (unsigned long long)c->body_total, lien_errname(err));
        return;
    }
    if (!buf)
        return;
    r->body = (struct app_buf){.addr = (uint8_t *)(uintptr_t)data, .len = c->body_total};
    lieni_shadow_app_owns(r->p->world, data, c->body_total);
    if (pattern_check(data, r->body.len, c->body_tag, 0) != r->body.len)
        program_doubt(r->p, "request %u: the body of call %u is wrong", r->number, c->op.number);
    r->p->tally.bodies++;
    if (one_in(r->p, 3))
        err = lien_request_take_body(r->request, &r->body.buf);
    if (err)
        program_fail(r->p, "lien_request_take_body answers %s", lien_errname(err));
}

// Finds the call by its arguments and compares what came with what left.
static struct app_call *check_args(struct app_request *r)
{
    const void *data;
    size_t len;
    struct call_head h;
    int err = lien_request_args(r->request, &data, &len);
    if (err || len < sizeof h) {
        program_doubt(r->p, "a request's arguments answer %s, %zu bytes", lien_errname(err), len);
        return NULL;
    }
    memcpy(&h, data, sizeof h);
    struct app_call *c = call_of(r->p, h.number);
    if (!c || c->conn == r->conn || c->conn->id != r->conn->id || !c->known) {
        program_doubt(r->p, "a request of call %llu, which is none of this connection's peer",
                      (unsigned long long)h.number);
        return NULL;
    }
    len -= sizeof h;
    if (len != h.fill ||
        pattern_check((const uint8_t *)data + sizeof h, len, c->op.number, 0) != len)
        program_doubt(r->p, "request %u: the arguments of call %u are wrong", r->number,
                      c->op.number);
    if (c->handled++)
        program_doubt(r->p, "call %u came to a handler twice", c->op.number);
    if (lien_request_read_len(r->request) != c->src_total ||
        lien_request_write_len(r->request) != c->target_total)
        program_doubt(r->p, "request %u: its spaces have other lengths than those of call %u",
                      r->number, c->op.number);
    else
        return c;
    return NULL;
}

static void on_cancel(void *arg)
{
    struct app_request *r = arg;
    say(r->p, "cancel told", r->number, 0);
    if (r->cancelled++ || !r->request || !r->want_cancel)
        program_fail(r->p, "request %u: told of its cancel twice, after its end, or unasked",
                     r->number);
    if (r->request && !lien_request_cancelled(r->request))
        program_fail(r->p, "request %u: told of its cancel, but it is not", r->number);
    if (r->request && one_in(r->p, 4))
        model_request_drop(r);
}

static void ask_cancel(struct app_request *r)
{
    bool was = lien_request_cancelled(r->request);
    int err = lien_request_on_cancel(r->request, on_cancel, r);
    if (was ? err != LIEN_ECANCELED : err != 0)
        program_fail(r->p, "request %u: lien_request_on_cancel answers %s, cancelled: %d",
                     r->number, lien_errname(err), was);
    r->want_cancel = r->want_cancel || !err;
}

static void handle(lien_request *request, lien_conn *conn, void *arg)
{
    struct app_node *node = arg;
    struct program *p = node->p;
    struct app_request *r = app_new(sizeof *r);
    r->p = p;
    r->number = ++p->numbers;
    r->request = request;
    r->conn = conn_of(p, conn);
    r->next = p->requests;
    p->requests = r;
    say(p, "request", r->number, 0);
    if (!r->conn || r->conn->node != node) {
        program_fail(p, "a request on a connection that the application does not know");
        return;
    }
    r->call = check_args(r);
    if (!r->call) { // a lie
        lien_request_drop(&r->request);
        return;
    }
    take_body(r);
    if (one_in(p, 2) && !p->failed)
        ask_cancel(r);
    for (uint64_t n = draw(p, 4); n && r->request && !p->failed && !p->stopping; n--)
        model_request_act(r);
    if (p->stopping && r->request)
        model_request_drop(r);
}

void calls_service(struct app_node *node)
{
    node->methods[0] = (lien_method){.name = "sim/desk", .handle = handle, .arg = node};
    node->methods[1] = (lien_method){
        .name = "sim/inline", .handle = handle, .arg = node, .flags = LIEN_INLINE};
    node->service = (lien_service){.methods = node->methods, .n_methods = 2};
}

// -- Reads -------------------------------------------------------------------------------------------------------------------------

// Works in place and passes the same buffers on.
static void pass_on(struct app_read *read)
{
    lien_buf *out[BUFS_MAX];
    int err = lien_space_take(read->space, out, read->n);
    if (err) {
        program_fail(read->op.p, "read %u: lien_space_take answers %s", read->op.number,
                     lien_errname(err));
        return;
    }
    for (unsigned i = 0; i < read->n; i++)
        read->bufs[i].buf = out[i];
    request_write(read->request, read->bufs, read->n);
    read->n = 0;
}

void request_read_over(struct app_read *read, bool good)
{
    struct app_request *r = read->request;
    r->n_transfers--;
    if (good && r->request && r->call->target_total && one_in(r->p, 2) && !r->p->stopping)
        pass_on(read);
}

// -- Writes ------------------------------------------------------------------------------------------------------------------------

static void write_done(void *arg, int status)
{
    struct app_write *w = arg;
    struct app_request *r = w->request;
    op_done(&w->op, status);
    w->call->n_writing--;
    bool gave_up = status == LIEN_ETIMEDOUT;
    r->gave_up = r->gave_up || gave_up;
    w->call->gave_up = w->call->gave_up || gave_up;
    bool fine = status == 0 || status == LIEN_EBUSY || status == LIEN_ELIMIT ||
                status == LIEN_ETIMEDOUT || status == LIEN_ECANCELED || status == LIEN_EREGISTER ||
                may_lose(w->op.p, status);
    if (!fine)
        program_doubt(w->op.p, "write %u: done with %s", w->op.number, lien_errname(status));
    if (status == 0) {
        w->landed = w->call->landed;
        w->call->landed = w;
    } else if (status != LIEN_EBUSY && status != LIEN_ELIMIT) {
        w->call->torn = true;
    }
}

static void write_released(void *arg, int status)
{
    struct app_write *w = arg;
    op_released(&w->op, status);
    w->request->n_transfers--;
    if (w->empty)
        bufs_free(w->op.p, w->bufs, w->n);
    else
        sources_back(w->op.p, w->bufs, w->n, status);
}

static struct app_write *write_new(struct app_request *r, const struct app_buf *bufs, unsigned n)
{
    struct app_write *w = app_new(sizeof *w);
    op_init(r->p, &w->op, "write");
    w->request = r;
    w->call = r->call;
    w->n = n;
    memcpy(w->bufs, bufs, n * sizeof *bufs);
    w->tag = w->op.number;
    w->total = bufs_fill(w->bufs, n, w->tag);
    if (w->total > r->call->target_total || one_in(r->p, 3))
        w->n_ops = random_ops(r->p, w->ops, w->total, r->call->target_total);
    w->next = r->p->writes;
    r->p->writes = w;
    return w;
}

static bool moves_nothing(const struct app_write *w)
{
    uint64_t bytes = w->n_ops ? 0 : w->total;
    for (unsigned i = 0; i < w->n_ops; i++)
        bytes += w->ops[i].len;
    return bytes == 0;
}

bool request_write(struct app_request *r, struct app_buf *bufs, unsigned n)
{
    struct program *p = r->p;
    struct app_write *w = write_new(r, bufs, n);
    lien_buf *out[BUFS_MAX];
    lien_transfer_opts opts;
    for (unsigned i = 0; i < n; i++)
        out[i] = w->bufs[i].buf;
    lien_transfer_opts_init(&opts);
    opts.timeout_ms = one_in(p, 3) ? 1 + (uint32_t)draw(p, one_in(p, 2) ? 3 : 30) : 0;
    opts.on_done = write_done;
    opts.on_released = write_released;
    opts.arg = w;
    opts.ops = w->n_ops ? w->ops : NULL;
    opts.n_ops = w->n_ops;
    w->op.started = true;
    int err = lien_request_write(r->request, out, n, &opts);
    say(p, "request_write", w->op.number, err);
    bool refused = (err == LIEN_ESTATE && (r->unsure || r->gave_up)) ||
                   (err == LIEN_EPARTIAL && r->call->sums);
    if (!refused)
        check_answer(p, "lien_request_write", err, MAY_LIMIT | MAY_REGISTER | MAY_CANCELED);
    w->op.started = err == 0;
    if (err) {
        bufs_free(p, w->bufs, n);
        return false;
    }
    r->unsure = r->unsure || opts.timeout_ms;
    r->n_transfers++;
    r->call->n_writing++;
    faults_ambush(p, r->call);
    w->empty = moves_nothing(w);
    if (w->empty)
        return true;
    bufs_lend_source(p, w->bufs, n);
    if (one_in(p, 6))
        bufs_free(p, w->bufs, n);
    return true;
}

// -- Answers -----------------------------------------------------------------------------------------------------------------------

// The application has let go of it.
static void over(struct app_request *r)
{
    if (r->body.addr) {
        lieni_shadow_app_gives(r->p->world, r->body.addr, r->body.len);
        lien_buf_free(&r->body.buf);
    }
}

void model_request_drop(struct app_request *r)
{
    say(r->p, "request_drop", r->number, 0);
    lien_request_drop(&r->request);
    if (r->request)
        program_fail(r->p, "lien_request_drop left the variable set");
    over(r);
}

static void replied(struct app_request *r, int status, uint64_t len, uint64_t total)
{
    struct app_call *c = r->call;
    c->replied = true;
    c->reply_status = status;
    c->reply_len = len;
    c->reply_total = total;
    c->reply_tag = r->number;
    over(r);
}

// Fails as the library must; the request stays.
static void check_refusal(struct app_request *r, int err, int status)
{
    if (err == LIEN_ESTATE && status == 0 && (r->unsure || r->gave_up))
        return;
    check_answer(r->p, "lien_request_reply", err, MAY_LIMIT | MAY_REGISTER);
}

static void reply(struct app_request *r, int status)
{
    struct program *p = r->p;
    uint8_t data[256];
    uint64_t len = draw(p, sizeof data), total = 0;
    struct app_buf bufs[BUFS_MAX];
    lien_buf *slots[BUFS_MAX];
    unsigned n = 0;
    pattern_fill(data, len, r->number, 0);
    if (r->call->reply_max && !one_in(p, 4))
        n = bufs_get(r->conn->node, bufs, 1 + draw(p, r->call->reply_max));
    for (unsigned i = 0; i < n; i++)
        slots[i] = bufs[i].buf;
    total = bufs_fill(bufs, n, r->number);
    bool cancelled = lien_request_cancelled(r->request);
    int err = lien_request_reply_body(&r->request, status, data, len, n ? slots : NULL, n);
    say(p, "request_reply", r->number, err);
    if (!err && status == 0 && r->gave_up && !cancelled)
        program_fail(p, "request %u: success though a write was given up (R2)", r->number);
    if (err) {
        check_refusal(r, err, status);
        bufs_free(p, bufs, n);
        return;
    }
    if (r->request)
        program_fail(p, "lien_request_reply left the variable set");
    // Its buffers are the library's now, and lent till the caller's release.
    for (unsigned i = 0; i < n; i++) {
        if (!cancelled)
            lieni_shadow_app_lends_source(p->world, bufs[i].addr, bufs[i].len);
        if (!from_mem(p, bufs[i].addr))
            lieni_shadow_app_gives(p->world, bufs[i].addr, bufs[i].len);
    }
    if (!cancelled)
        replied(r, status, len, total);
    else
        over(r);
}

static void do_write(struct app_request *r)
{
    struct app_buf bufs[BUFS_MAX];
    if (!r->call->target_total)
        return;
    unsigned n = bufs_get(r->conn->node, bufs, one_in(r->p, 2) ? r->call->target_total : 0);
    if (n && request_write(r, bufs, n) && one_in(r->p, 3))
        reply(r, 0); // leaves once the write is answered
}

// -- What is done ------------------------------------------------------------------------------------------------------------------

static void check_state(struct app_request *r)
{
    bool cancelled = lien_request_cancelled(r->request);
    uint32_t left = lien_request_left_ms(r->request);
    if (!cancelled && r->cancelled)
        program_fail(r->p, "request %u: it was cancelled, and is not any more", r->number);
    if (left > CALL_MS)
        program_doubt(r->p, "request %u: %u ms are left", r->number, left);
}

void model_request_act(struct app_request *r)
{
    uint64_t at = draw(r->p, 20);
    if (at < 6) {
        if ((r->call->src_total || one_in(r->p, 8)) && model_request_read(r))
            r->n_transfers++;
    } else if (at < 11) {
        do_write(r);
    } else if (at < 13) {
        check_state(r);
    } else if (at < 14) {
        if (model_conn_usable(r->conn))
            model_call(r->conn); // calls back
    } else if (at < 18) {
        reply(r, one_in(r->p, 5) ? LIEN_EADDR : 0);
    } else if (at < 19) {
        faults_drop(r);
    } else if (one_in(r->p, 2)) {
        ask_cancel(r);
    }
}
