// SPDX-License-Identifier: Apache-2.0
//
// See request.h. Arrival, handler, cancel and reply.

#include "core/request.h"

#include <stdlib.h>
#include <string.h>

#include "core/channel.h"
#include "core/check.h"
#include "core/message.h"
#include "core/read.h"
#include "core/verify.h"

#define TO(state) (1u << (state))

static const unsigned may_enter[] = {
    [LIENI_REQUEST_QUEUED] = TO(LIENI_REQUEST_LIVE) | TO(LIENI_REQUEST_CANCELLED),
    [LIENI_REQUEST_LIVE] = TO(LIENI_REQUEST_REPLYING) | TO(LIENI_REQUEST_CANCELLED),
    [LIENI_REQUEST_REPLYING] = TO(LIENI_REQUEST_CANCELLED) | TO(LIENI_REQUEST_OVER),
    [LIENI_REQUEST_CANCELLED] = TO(LIENI_REQUEST_OVER),
    [LIENI_REQUEST_OVER] = 0,
};

static const char *const state_names[] = {"queued", "live", "replying", "cancelled", "over"};

static void set_state(struct lien_request *request, enum lieni_request_state state)
{
    if (!(may_enter[request->state] & TO(state)))
        abort();
    lieni_trace_text(request->conn->trace, LIENI_TRACE_REQUEST, request->id, 0,
                     request->reply_status, state_names[request->state], state_names[state]);
    request->state = state;
    lieni_ctx_changed(request->conn->ctx);
}

// -- Ending --

// The arguments' receive goes back to work.
static void args_free(struct lien_request *request)
{
    struct lien_conn *conn = request->conn;
    if (!request->slot)
        return;
    struct lieni_recv_slot *slot = request->slot;
    request->slot = NULL;
    request->args = NULL;
    lieni_link_message_freed(conn, slot);
    lieni_link_slab_unref(conn->ctx, &conn->link);
}

void lieni_request_unref(struct lien_request *request)
{
    if (--request->refs > 0)
        return;
    struct lien_conn *conn = request->conn;
    if (request->has_timer)
        lieni_timer_fini(&conn->ctx->timers, &request->timer);
    if (request->strand)
        lieni_strand_close(request->strand);
    lieni_list_remove(&request->node);
    conn->ctx->requests--;
    free(request->reply_body);
    free(request->read);
    free(request->reply);
    free(request);
    lieni_calls_drain_step(conn);
    if (conn->channel)
        lieni_channel_room(conn->channel);
    lieni_conn_unref(conn);
}

static void unref_unlocked(struct lien_request *request)
{
    lien_ctx *ctx = request->conn->ctx;
    lieni_ctx_lock(ctx);
    lieni_request_unref(request);
    lieni_ctx_unlock(ctx);
}

// The read space is not read any more: its reads end, and the owner gets the release that is owed.
static void release_read(struct lien_request *request, int status)
{
    struct lien_conn *conn = request->conn;
    if (!request->read || request->read_released)
        return;
    request->read_released = true;
    lieni_reads_stop(conn, &request->read->name, status);
    if (lieni_conn_usable(conn) == 0 || conn->state == LIENI_CONN_ENDING)
        lieni_import_release(conn, request->read->name); // due after the last evidence
}

// The application has let go of a request whose answer is under way or needed by nobody.
static void let_go(struct lien_request *request)
{
    args_free(request);
    if (request->body.buf)
        lieni_buf_keep(request->body.buf, false);
    if (request->body.buf && request->conn->ctx->dead)
        lien_buf_free(&request->body.buf);
    else if (request->body.buf)
        lieni_buf_free_locked(request->body.buf);
    request->body.buf = NULL;
    lieni_request_unref(request); // the application's
}

// -- Replies --

static void answer(struct lien_request *request, int status)
{
    struct lien_conn *conn = request->conn;
    if (conn->calls.peer[lieni_call_slot(request->id)].request != request)
        return; // answered, or nobody can be told
    request->reply_status = status;
    if (!lieni_node_in(&request->reply_node))
        lieni_list_append(&conn->calls.replies, &request->reply_node);
    lieni_link_pump(conn);
}

// The caller has not heard of the reply's body.
static void forget_body(struct lien_request *request)
{
    if (request->reply_grant)
        lieni_grant_untold(request->reply_grant);
    request->reply_grant = NULL;
}

void lieni_request_reply_lost(struct lien_request *request)
{
    struct lieni_request_slot *slot = &request->conn->calls.peer[lieni_call_slot(request->id)];
    lieni_list_remove(&request->reply_node);
    forget_body(request);
    if (slot->request != request)
        return;
    slot->request = NULL;
    lieni_request_unref(request); // the REPLY
}

void lieni_request_reply_pump(struct lien_conn *conn)
{
    struct lieni_node *n;
    while ((n = lieni_list_first(&conn->calls.replies))) {
        struct lien_request *request = lieni_container(n, struct lien_request, reply_node);
        if (conn->calls.goaway_due && !request->begun)
            return; // the caller is to know why
        struct lieni_frame frame = {.kind = LIENI_FRAME_REPLY,
                                    .call = request->id,
                                    .status = request->reply_status,
                                    .unbegun = !request->begun,
                                    .head = request->reply,
                                    .head_len = request->reply_len};
        const struct lieni_token_data *body = request->reply_body;
        if (request->reply_grant) {
            frame.name = body->name;
            frame.total = body->total;
            frame.sums = body->sums;
            frame.n_keys = body->n_keys;
            memcpy(frame.keys, body->keys, body->n_keys * sizeof(frame.keys[0]));
        }
        if (!lieni_link_reply(conn, &frame))
            return;
        request->reply_grant = NULL;       // ends by the caller's release
        lieni_request_reply_lost(request); // it is on its way
    }
}

static void forget_reply(struct lien_request *request)
{
    free(request->reply);
    request->reply = NULL;
    request->reply_len = 0;
    forget_body(request);
}

static void run_cancel(struct lieni_task *task)
{
    struct lien_request *request = lieni_container(task, struct lien_request, cancel_task);
    lien_ctx *ctx = request->conn->ctx;
    lieni_ctx_lock(ctx);
    void (*fn)(void *arg) = request->state == LIENI_REQUEST_CANCELLED ? request->on_cancel : NULL;
    void *arg = request->cancel_arg;
    request->on_cancel = NULL;
    lieni_ctx_unlock(ctx);
    if (fn)
        fn(arg);
    unref_unlocked(request);
}

void lieni_request_cancel(struct lien_request *request, int status, bool tell)
{
    enum lieni_request_state was = request->state;
    if (was == LIENI_REQUEST_CANCELLED || was == LIENI_REQUEST_OVER)
        return;
    request->refs++;
    set_state(request, LIENI_REQUEST_CANCELLED);
    if (request->has_timer)
        lieni_timer_clear(&request->conn->ctx->timers, &request->timer);
    lieni_request_give_up(request, LIEN_ECANCELED);
    release_read(request, LIEN_ECANCELED);
    lieni_verify_end(request);
    lieni_body_stop(&request->body, LIEN_ECANCELED);
    forget_reply(request);
    if (was == LIENI_REQUEST_LIVE && request->on_cancel && request->strand) {
        request->refs++;
        lieni_strand_post(request->strand, &request->cancel_task);
    }
    if (tell)
        answer(request, status);
    if (was == LIENI_REQUEST_QUEUED && !request->posted) { // its handler never will begin
        set_state(request, LIENI_REQUEST_OVER);
        let_go(request);
    }
    lieni_request_unref(request);
}

int lieni_request_cancel_arrived(struct lien_conn *conn, uint64_t id)
{
    struct lieni_request_slot *slot = &conn->calls.peer[lieni_call_slot(id)];
    if (slot->gen != lieni_call_gen(id) || slot->cancelled)
        return LIEN_EPROTO;
    slot->cancelled = true;
    if (slot->request)
        lieni_request_cancel(slot->request, LIEN_ECANCELED, true);
    return 0; // else our REPLY was on its way
}

static void on_deadline(struct lieni_timer *timer)
{
    struct lien_request *request = lieni_container(timer, struct lien_request, timer);
    struct lien_conn *conn = request->conn;
    lieni_trace_text(conn->trace, LIENI_TRACE_TIMER, request->id, 0, 0, "deadline of a request",
                     NULL);
    lieni_conn_ref(conn);
    lieni_request_cancel(request, LIEN_ETIMEDOUT, true);
    lieni_conn_unref(conn);
}

// -- The handler --

static void run_handle(struct lieni_task *task)
{
    struct lien_request *request = lieni_container(task, struct lien_request, handle_task);
    struct lien_conn *conn = request->conn;
    lien_ctx *ctx = conn->ctx;
    lieni_ctx_lock(ctx);
    lieni_conn_ref(conn);
    // An expired call is dropped before it starts; so is one whose caller is gone.
    if (request->state == LIENI_REQUEST_QUEUED && lieni_ctx_now(ctx) >= request->deadline)
        lieni_request_cancel(request, LIEN_ETIMEDOUT, true);
    if (request->state == LIENI_REQUEST_QUEUED && !conn->has_handle)
        lieni_request_cancel(request, LIEN_ECANCELED, true);
    bool begins = request->state == LIENI_REQUEST_QUEUED;
    if (begins) {
        request->begun = true;
        ctx->requests_held++;
        set_state(request, LIENI_REQUEST_LIVE);
    } else {
        set_state(request, LIENI_REQUEST_OVER);
        let_go(request);
    }
    lieni_ctx_unlock(ctx);
    if (begins)
        request->method->handle(request, conn, request->method->arg);
    lieni_ctx_lock(ctx);
    lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
}

// All of it is here. The handler waits for the application to know the connection.
static int begin(struct lien_request *request)
{
    if (request->conn->calls.ready) {
        request->posted = true;
        lieni_strand_post(request->strand, &request->handle_task);
    }
    return 0;
}

static void fetched(struct lieni_body *body, int status)
{
    struct lien_request *request = lieni_container(body, struct lien_request, body);
    if (body->buf)
        lieni_buf_keep(body->buf, true);
    if (status != 0)
        lieni_request_cancel(request, status, true);
    else if (request->state == LIENI_REQUEST_QUEUED)
        begin(request);
    lieni_request_unref(request); // the body's
}

static int fetch(struct lien_request *request, const struct lieni_frame *frame)
{
    request->refs++;
    request->body.over = fetched;
    int rc = lieni_body_fetch(&request->body, request->conn, frame, NULL);
    if (rc != 0)
        lieni_request_unref(request);
    return rc;
}

static const lien_method *find(const struct lien_conn *conn, const struct lieni_frame *frame)
{
    const lien_service *service = conn->opts.service;
    for (size_t i = 0; service && i < service->n_methods; i++) {
        const lien_method *m = &service->methods[i];
        if (strlen(m->name) == frame->method_len &&
            memcmp(m->name, frame->method, frame->method_len) == 0)
            return m;
    }
    return NULL;
}

// Why this request gets no handler, or 0.
static int refusal(struct lien_request *request, const struct lieni_frame *frame)
{
    struct lien_conn *conn = request->conn;
    request->method = find(conn, frame);
    if (!request->method)
        return LIEN_ENOTFOUND;
    if (conn->state != LIENI_CONN_OPEN || (!conn->has_handle && !conn->listener))
        return LIEN_ECLOSED;
    if (conn->calls.goaway || conn->ctx->requests > conn->ctx->options.requests_max)
        return LIEN_EOVERLOAD;
    int rc = lieni_strand_open(conn->ctx->dispatch, (request->method->flags & LIEN_INLINE) != 0,
                               &request->strand);
    if (rc == 0)
        lieni_strand_conn(request->strand, conn->id);
    return rc;
}

static int open_spaces(struct lien_request *request, const struct lieni_frame *frame)
{
    struct lien_conn *conn = request->conn;
    int rc = 0;
    request->space_len = frame->space_len;
    request->reply_max = frame->reply_max;
    request->sums = frame->sums;
    if (frame->n_read_keys == 0)
        return 0;
    request->read = calloc(1, sizeof(*request->read));
    if (!request->read)
        return LIEN_ENOMEM;
    *request->read = (struct lieni_token_data){.kind = LIENI_TOKEN_BORROWED,
                                               .conn = conn->id,
                                               .name = frame->read_name,
                                               .total = frame->read_total,
                                               .sums = frame->sums,
                                               .n_keys = frame->n_read_keys};
    memcpy(request->read->keys, frame->read_keys, frame->n_read_keys * sizeof(frame->read_keys[0]));
    rc = lieni_import_first(conn, frame->read_name);
    if (rc != 0) {
        free(request->read);
        request->read = NULL;
    }
    return rc;
}

static struct lien_request *request_new(struct lien_conn *conn, struct lieni_recv_slot *slot,
                                        const struct lieni_frame *frame)
{
    struct lien_request *request = calloc(1, sizeof(*request));
    if (!request)
        return NULL;
    if (lieni_timer_init(&conn->ctx->timers, &request->timer, on_deadline) != 0) {
        free(request);
        return NULL;
    }
    request->has_timer = true;
    request->conn = conn;
    request->id = frame->call;
    request->slot = slot;
    request->args = frame->head;
    request->args_len = frame->head_len;
    request->deadline = lieni_ctx_deadline(conn->ctx, frame->deadline_ms);
    request->handle_task.run = run_handle;
    request->cancel_task.run = run_cancel;
    lieni_list_init(&request->writes);
    lieni_list_init(&request->reply_node);
    lieni_list_init(&request->node);
    lieni_list_append(&conn->calls.requests, &request->node);
    lieni_conn_ref(conn);
    conn->link.slab_refs++;
    conn->ctx->requests++;
    request->refs = 2; // the REPLY, the application
    return request;
}

int lieni_request_arrived(struct lien_conn *conn, struct lieni_recv_slot *slot,
                          const struct lieni_frame *frame)
{
    struct lieni_request_slot *s = &conn->calls.peer[lieni_call_slot(frame->call)];
    if (s->request || lieni_call_gen(frame->call) != (uint64_t)s->gen + 1)
        return LIEN_EPROTO;
    struct lien_request *request = request_new(conn, slot, frame);
    if (!request)
        return LIEN_ENOMEM;
    s->gen++;
    s->cancelled = false;
    s->request = request;
    lieni_trace_text(conn->trace, LIENI_TRACE_REQUEST, request->id, 0, 0, "new",
                     state_names[request->state]);
    int refused = 0, rc = open_spaces(request, frame);
    if (rc != 0) { // the connection ends, and with it the request
        lieni_request_cancel(request, rc, false);
        return rc;
    }
    rc = refusal(request, frame);
    if (rc != 0) {
        if (frame->n_keys > 0) // released unread
            refused = lieni_import_first(conn, frame->name);
        if (frame->n_keys > 0 && refused == 0)
            refused = lieni_import_release(conn, frame->name);
        lieni_request_cancel(request, rc, true);
        return refused;
    }
    lieni_timer_set(&conn->ctx->timers, &request->timer, request->deadline);
    return frame->n_keys > 0 ? fetch(request, frame) : begin(request);
}

void lieni_requests_ready(struct lien_conn *conn)
{
    conn->calls.ready = true;
    for (struct lieni_node *n = conn->calls.requests.next; n != &conn->calls.requests;
         n = n->next) {
        struct lien_request *request = lieni_container(n, struct lien_request, node);
        if (request->state == LIENI_REQUEST_QUEUED && !request->posted && !request->body.token)
            begin(request);
    }
}

// -- The application's end of it --

// The reply is the application's last word; it leaves once no write awaits its answer (R2).
static void finish(struct lien_request *request)
{
    request->conn->ctx->requests_held--;
    release_read(request, LIEN_ECANCELED);
    lieni_verify_end(request);
    if (request->state == LIENI_REQUEST_CANCELLED) {
        set_state(request, LIENI_REQUEST_OVER);
    } else {
        set_state(request, LIENI_REQUEST_REPLYING);
        lieni_request_writes_over(request);
    }
    let_go(request);
}

void lieni_request_writes_over(struct lien_request *request)
{
    if (request->state != LIENI_REQUEST_REPLYING || request->n_writes > 0)
        return;
    if (request->gave_up && request->reply_status == 0) { // after the reply: it fails all the same
        forget_reply(request);
        request->reply_status = LIEN_ETIMEDOUT;
    }
    set_state(request, LIENI_REQUEST_OVER);
    if (request->has_timer)
        lieni_timer_clear(&request->conn->ctx->timers, &request->timer);
    answer(request, request->reply_status);
}

static int reply(struct lien_request *request, int status, const void *data, size_t len)
{
    if (request->state != LIENI_REQUEST_LIVE)
        return request->state == LIENI_REQUEST_CANCELLED ? 0 : LIEN_EINVAL;
    if (status == 0 && request->gave_up)
        return LIEN_ESTATE;
    if (len > lieni_link_head_max(&request->conn->link))
        return LIEN_EMSGSIZE;
    request->reply = len > 0 ? malloc(len) : NULL;
    if (len > 0 && !request->reply)
        return LIEN_ENOMEM;
    if (len > 0)
        lieni_copy_payload(&request->conn->ctx->copied, request->reply, data, len);
    request->reply_len = len;
    request->reply_status = status;
    return 0;
}

// The body becomes a held grant, and its buffers are freed by its release.
static int reply_body(struct lien_request *request, lien_buf **bufs, size_t n,
                      const struct lieni_sums *sums)
{
    uint64_t total = 0;
    if (n > LIEN_BUFS_MAX || (n > 0 && !bufs))
        return LIEN_EINVAL;
    for (size_t i = 0; i < n; i++) {
        if (!bufs[i] || !lieni_buf_in_ctx(bufs[i], request->conn->ctx->mem) ||
            lieni_buf_kept(bufs[i]) || lieni_buf_among(bufs[i], bufs, i))
            return LIEN_EINVAL;
        total += lien_buf_len(bufs[i]);
    }
    if (total > request->reply_max)
        return LIEN_EMSGSIZE;
    if (total == 0 || request->state != LIENI_REQUEST_LIVE)
        return 0;
    struct lieni_token_data *body = calloc(1, sizeof(*body));
    if (!body)
        return LIEN_ENOMEM;
    int rc = lieni_grant_open(request->conn, bufs, n, 0, lieni_verify_own(request), sums,
                              body->keys, &body->n_keys, &request->reply_grant);
    if (rc != 0) {
        free(body);
        return rc;
    }
    body->name = request->reply_grant->name;
    body->total = total;
    body->sums = sums != NULL;
    request->reply_body = body;
    return 0;
}

int lien_request_reply(lien_request **slot, int status, const void *data, size_t len)
{
    return lien_request_reply_body(slot, status, data, len, NULL, 0);
}

int lien_request_reply_body(lien_request **slot, int status, const void *data, size_t len,
                            lien_buf **bufs, size_t n)
{
    if (!slot || !*slot || (len > 0 && !data) || status > 0 || status == LIEN_EAGAIN)
        return LIEN_EINVAL;
    if (lieni_ctx_forked((*slot)->conn->ctx))
        return LIEN_EFORK;
    struct lien_request *request = *slot;
    lien_ctx *ctx = request->conn->ctx;
    struct lieni_sums sums;
    const bool summed = n > 0 && (request->sums || lieni_sums_wanted(ctx, 0));
    lieni_ctx_lock(ctx);
    int rc = 0;
    const bool dead = ctx->dead;
    if (summed && request->state == LIENI_REQUEST_LIVE) // others answer nobody
        rc = lieni_sums_make(ctx, &(struct lieni_summing){bufs, n, &sums}, 1);
    if (rc == 0)
        rc = reply(request, status, data, len);
    if (rc == 0 && n > 0)
        rc = reply_body(request, bufs, n, summed ? &sums : NULL);
    if (rc != 0 && request->state == LIENI_REQUEST_LIVE)
        forget_reply(request);
    if (rc == 0) {
        *slot = NULL;
        for (size_t i = 0; i < n && !dead; i++) {
            lieni_buf_free_locked(bufs[i]); // when it is released
            bufs[i] = NULL;
        }
        finish(request);
    }
    lieni_ctx_unlock(ctx);
    for (size_t i = 0; i < n && rc == 0 && dead; i++)
        lien_buf_free(&bufs[i]); // takes the gate of what is left, which comes before the lock
    return rc;
}

void lien_request_drop(lien_request **slot)
{
    if (!slot || !*slot)
        return;
    struct lien_request *request = *slot;
    lien_ctx *ctx = request->conn->ctx;
    *slot = NULL;
    if (lieni_ctx_forked(ctx))
        return;
    lieni_ctx_lock(ctx);
    request->on_cancel = NULL;
    lieni_request_cancel(request, LIEN_ECANCELED, true);
    finish(request);
    lieni_ctx_unlock(ctx);
}

// -- Asking --

static bool usable_here(const lien_request *request)
{
    return request && !lieni_ctx_forked(request->conn->ctx);
}

int lien_request_args(const lien_request *request, const void **data, size_t *len)
{
    if (!request || !data || !len)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(request->conn->ctx))
        return LIEN_EFORK;
    *data = request->args;
    *len = request->args_len;
    return 0;
}

lien_buf *lien_request_body(lien_request *request)
{
    return usable_here(request) ? request->body.buf : NULL;
}

int lien_request_take_body(lien_request *request, lien_buf **buf)
{
    if (!request || !buf)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(request->conn->ctx))
        return LIEN_EFORK;
    lien_ctx *ctx = request->conn->ctx;
    lieni_ctx_lock(ctx);
    int rc = request->body.buf ? 0 : LIEN_ENOTFOUND;
    if (rc == 0) {
        *buf = request->body.buf;
        lieni_buf_keep(*buf, false);
        request->body.buf = NULL;
    }
    lieni_ctx_unlock(ctx);
    return rc;
}

const char *lien_request_method(const lien_request *request)
{
    return usable_here(request) ? request->method->name : NULL;
}

uint64_t lien_request_read_len(const lien_request *request)
{
    return usable_here(request) && request->read ? request->read->total : 0;
}

uint64_t lien_request_write_len(const lien_request *request)
{
    return usable_here(request) ? request->space_len : 0;
}

uint32_t lien_request_left_ms(lien_request *request)
{
    if (!usable_here(request))
        return 0;
    uint64_t now = lieni_ctx_now(request->conn->ctx);
    return now < request->deadline ? (uint32_t)((request->deadline - now) / LIENI_MS) : 0;
}

bool lien_request_cancelled(lien_request *request)
{
    if (!usable_here(request))
        return true;
    lien_ctx *ctx = request->conn->ctx;
    lieni_ctx_lock(ctx);
    bool yes = request->state == LIENI_REQUEST_CANCELLED;
    lieni_ctx_unlock(ctx);
    return yes;
}

int lien_request_on_cancel(lien_request *request, void (*fn)(void *arg), void *arg)
{
    if (!request)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(request->conn->ctx))
        return LIEN_EFORK;
    lien_ctx *ctx = request->conn->ctx;
    lieni_ctx_lock(ctx);
    int rc = request->state == LIENI_REQUEST_LIVE ? 0 : LIEN_ECANCELED;
    if (rc == 0) {
        request->on_cancel = fn;
        request->cancel_arg = arg;
    }
    lieni_ctx_unlock(ctx);
    return rc;
}
