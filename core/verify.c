// SPDX-License-Identifier: Apache-2.0
//
// See verify.h.

#include "core/verify.h"

#include <stdlib.h>

#include "core/conn.h"
#include "core/read.h"

struct lieni_verify {
    struct lien_request *request;
    struct lieni_doubt *doubt; // a reference
    struct lieni_ask ask;
    uint64_t upto; // the last read that the ask covers
    bool again;    // a younger one wants an ask of its own
    struct lieni_timer timer;
    struct lieni_node waiters;
};

// Who asked by lien_request_verify().
struct verdict {
    struct lien_request *request; // a reference
    uint64_t upto;
    int status;
    void (*fn)(void *arg, int status);
    void *arg;
    struct lieni_task task;
    struct lieni_node node;
};

// -- Telling --

static void run_verdict(struct lieni_task *task)
{
    struct verdict *verdict = lieni_container(task, struct verdict, task);
    struct lien_request *request = verdict->request;
    lien_ctx *ctx = request->conn->ctx;
    verdict->fn(verdict->arg, verdict->status);
    free(verdict);
    lieni_ctx_lock(ctx);
    lieni_request_unref(request);
    lieni_ctx_unlock(ctx);
}

static void tell(struct verdict *verdict, int status)
{
    verdict->status = status;
    lieni_strand_post(verdict->request->strand, &verdict->task);
}

// Those whose reads are all covered, or everybody.
static void tell_waiters(struct lieni_verify *v, uint64_t upto, int status)
{
    struct lieni_node *n, *next;
    for (n = v->waiters.next; n != &v->waiters; n = next) {
        struct verdict *verdict = lieni_container(n, struct verdict, node);
        next = n->next;
        if (verdict->upto > upto)
            continue;
        lieni_list_remove(n);
        tell(verdict, status);
    }
    lieni_ctx_changed(v->request->conn->ctx);
}

// -- Asking --

// A probe vouches for what was here before it left (R14).
static void ask(struct lieni_verify *v)
{
    struct lien_conn *conn = v->request->conn;
    if (v->doubt->bad || v->doubt->good == v->doubt->last)
        return;
    if (lieni_node_in(&v->ask.node) && v->ask.left) {
        v->again = v->again || v->upto < v->doubt->last;
        return;
    }
    v->upto = v->doubt->last;
    if (lieni_node_in(&v->ask.node))
        return;
    uint64_t limit = lieni_ctx_deadline(conn->ctx, LIENI_PROBE_MS);
    if (v->request->deadline < limit)
        limit = v->request->deadline;
    lieni_timer_set(&conn->ctx->timers, &v->timer, limit);
    lieni_probe_ask(conn, &v->ask);
}

static void refuted(struct lieni_verify *v)
{
    v->doubt->bad = true;
    tell_waiters(v, UINT64_MAX, LIEN_ESTALE);
}

static void answered(struct lieni_ask *asked, bool holds)
{
    struct lieni_verify *v = lieni_container(asked, struct lieni_verify, ask);
    lieni_timer_clear(&v->request->conn->ctx->timers, &v->timer);
    if (!holds) {
        refuted(v);
        return;
    }
    v->doubt->good = v->upto;
    tell_waiters(v, v->upto, 0);
    if (v->again) {
        v->again = false;
        ask(v);
    }
}

// No answer in time is no.
static void on_timeout(struct lieni_timer *timer)
{
    struct lieni_verify *v = lieni_container(timer, struct lieni_verify, timer);
    lieni_list_remove(&v->ask.node);
    refuted(v);
}

// -- Reading --

static int verify_new(struct lien_request *request)
{
    struct lieni_verify *v = calloc(1, sizeof(*v));
    if (!v)
        return LIEN_ENOMEM;
    v->doubt = lieni_doubt_new(request);
    if (!v->doubt || lieni_timer_init(&request->conn->ctx->timers, &v->timer, on_timeout) != 0) {
        if (v->doubt)
            lieni_doubt_unref(v->doubt);
        free(v);
        return LIEN_ENOMEM;
    }
    v->request = request;
    v->ask = (struct lieni_ask){
        .call = request->id, .name = request->read->name, .answered = answered};
    lieni_list_init(&v->ask.node);
    lieni_list_init(&v->waiters);
    request->verify = v;
    return 0;
}

int lieni_verify_may_read(struct lien_request *request, const lien_space *space,
                          const lien_transfer_opts *opts)
{
    const lien_op whole = {.len = request->read->total};
    uint64_t at = 0;
    for (uint32_t i = 0; space->ctx == request->conn->ctx && i < space->n; i++) {
        uint64_t len = lien_buf_len(space->bufs[i]);
        const struct lieni_doubt *doubt = lieni_buf_doubt_of(space->bufs[i]);
        if (doubt && doubt != lieni_verify_own(request) &&
            (len < lieni_buf_doubt_len(space->bufs[i]) ||
             lieni_ops_cover(opts->ops ? opts->ops : &whole, opts->ops ? opts->n_ops : 1, at,
                             len) != len))
            return LIEN_EUNVERIFIED;
        at += len;
    }
    return request->verify ? 0 : verify_new(request);
}

void lieni_verify_mark(struct lien_read *read)
{
    const struct lien_request *request = read->owner;
    struct lieni_doubt *doubt = request->verify->doubt; // its reads are over before it ends
    doubt->last++;
    for (uint32_t i = 0; i < read->space->n; i++) {
        if (lieni_read_into(read, i) > 0)
            lieni_buf_doubt(read->space->bufs[i], doubt);
    }
}

void lieni_verify_ask_for(struct lien_read *read)
{
    const struct lien_request *request = read->owner;
    lieni_verify_mark(read);
    ask(request->verify);
}

struct lieni_doubt *lieni_verify_own(const struct lien_request *request)
{
    return request->verify ? request->verify->doubt : NULL;
}

void lieni_verify_end(struct lien_request *request)
{
    struct lieni_verify *v = request->verify;
    if (!v)
        return;
    request->verify = NULL;
    lieni_list_remove(&v->ask.node);
    lieni_timer_fini(&request->conn->ctx->timers, &v->timer);
    v->doubt->reader = NULL;
    tell_waiters(v, UINT64_MAX, LIEN_ECANCELED);
    lieni_doubt_unref(v->doubt);
    free(v);
}

// -- Waiting --

// What became of the first `upto` reads, once it is known.
static int wait(lien_ctx *ctx, struct lieni_doubt *doubt, uint64_t upto, uint64_t deadline)
{
    int rc = 0;
    doubt->refs++;
    while (rc == 0 && doubt->reader && !doubt->bad && doubt->good < upto)
        rc = lieni_ctx_wait_locked(ctx, deadline);
    if (doubt->good >= upto)
        rc = 0;
    else if (rc == 0)
        rc = doubt->bad ? LIEN_ESTALE : LIEN_ECANCELED;
    lieni_doubt_unref(doubt);
    return rc;
}

// One buffer: 0, or why it may not leave.
static int leaving(lien_ctx *ctx, lien_buf *buf, const struct lieni_doubt *own, uint64_t deadline)
{
    struct lieni_doubt *doubt = lieni_buf_doubt_of(buf);
    if (!doubt || doubt == own)
        return 0;
    const struct lien_request *reader = doubt->reader;
    if (!reader)
        return lieni_bufs_may_leave(&buf, 1, own);
    ask(reader->verify);
    int rc = wait(ctx, doubt, doubt->last, deadline);
    return rc == 0 || rc == LIEN_ETIMEDOUT || rc == LIEN_EDEADLK ? rc : LIEN_EUNVERIFIED;
}

int lieni_verify_leaving(lien_ctx *ctx, lien_buf *const *bufs, size_t n, struct lieni_doubt *own,
                         uint64_t deadline)
{
    int rc = 0;
    if (own)
        own->refs++; // its request may end in a wait, and another's doubt come to lie there
    for (size_t i = 0; rc == 0 && bufs && n <= LIEN_BUFS_MAX && i < n; i++) {
        if (!bufs[i] || !lieni_buf_in_ctx(bufs[i], ctx->mem))
            break;
        rc = leaving(ctx, bufs[i], own, deadline);
    }
    if (own)
        lieni_doubt_unref(own);
    return rc;
}

// -- Public --

static int start(struct lien_request *request, void (*fn)(void *arg, int status), void *arg)
{
    struct lieni_verify *v = request->verify;
    int rc = lieni_request_usable(request);
    if (rc != 0)
        return rc;
    if (v)
        ask(v);
    if (!fn)
        return 0;
    struct verdict *verdict = calloc(1, sizeof(*verdict));
    if (!verdict)
        return LIEN_ENOMEM;
    *verdict = (struct verdict){
        .request = request, .upto = v ? v->doubt->last : 0, .fn = fn, .arg = arg};
    verdict->task.run = run_verdict;
    lieni_list_init(&verdict->node);
    request->refs++;
    if (!v || v->doubt->good >= verdict->upto)
        tell(verdict, 0);
    else if (v->doubt->bad)
        tell(verdict, LIEN_ESTALE);
    else
        lieni_list_append(&v->waiters, &verdict->node);
    return 0;
}

int lien_request_verify(lien_request *request, void (*fn)(void *arg, int status), void *arg)
{
    if (!request)
        return LIEN_EINVAL;
    lien_ctx *ctx = request->conn->ctx;
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    lieni_ctx_lock(ctx);
    int rc = start(request, fn, arg);
    lieni_ctx_unlock(ctx);
    return rc;
}

int lien_request_verify_wait(lien_request *request)
{
    if (!request)
        return LIEN_EINVAL;
    lien_ctx *ctx = request->conn->ctx;
    if (lieni_ctx_forked(ctx))
        return LIEN_EFORK;
    if (lieni_dispatch_where(ctx->dispatch, NULL) == LIENI_IN_PROGRESS)
        return LIEN_EDEADLK;
    lieni_ctx_lock(ctx);
    int rc = start(request, NULL, NULL);
    if (rc == 0 && request->verify) {
        struct lieni_doubt *doubt = request->verify->doubt;
        rc = wait(ctx, doubt, doubt->last, UINT64_MAX); // its own time ends it
    }
    lieni_ctx_unlock(ctx);
    return rc;
}
