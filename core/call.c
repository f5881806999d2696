// SPDX-License-Identifier: Apache-2.0
//
// See call.h. Calls of ours, and the connection's side of the call level.

#include "core/call.h"

#include <stdlib.h>
#include <string.h>

#include "core/channel.h"
#include "core/check.h"
#include "core/conn.h"
#include "core/message.h"
#include "core/read.h"
#include "core/request.h"
#include "core/verify.h"

#define TO(state) (1u << (state))

static const unsigned may_enter[] = {
    [LIENI_CALL_RUNNING] = TO(LIENI_CALL_FETCHING) | TO(LIENI_CALL_ENDED) | TO(LIENI_CALL_OVER),
    [LIENI_CALL_FETCHING] = TO(LIENI_CALL_OVER),
    [LIENI_CALL_ENDED] = TO(LIENI_CALL_OVER),
    [LIENI_CALL_OVER] = 0,
};

static const char *const state_names[] = {"running", "fetching", "ended", "over"};

static void set_state(struct lien_call *call, enum lieni_call_state state)
{
    if (!(may_enter[call->state] & TO(state)))
        abort();
    lieni_trace_text(call->conn->trace, LIENI_TRACE_CALL, call->id, 0, call->status,
                     state_names[call->state], state_names[state]);
    call->state = state;
}

// -- Slots --

void lieni_calls_init(struct lieni_calls *calls)
{
    lieni_list_init(&calls->all);
    lieni_list_init(&calls->cancels);
    lieni_list_init(&calls->requests);
    lieni_list_init(&calls->replies);
    lieni_list_init(&calls->writes);
    lieni_list_init(&calls->writes_due);
    lieni_list_init(&calls->written);
    lieni_list_init(&calls->probes_due);
    lieni_list_init(&calls->probing);
}

int lieni_calls_open(struct lien_conn *conn, uint32_t max, unsigned side)
{
    struct lieni_calls *calls = &conn->calls;
    calls->max = max;
    calls->side = side;
    if (max == 0)
        return 0;
    calls->slots = calloc(max, sizeof(*calls->slots));
    calls->peer = calloc(max, sizeof(*calls->peer));
    if (!calls->slots || !calls->peer)
        return LIEN_ENOMEM;
    for (uint32_t i = max; i > 0; i--) {
        calls->slots[i - 1].next_free = calls->free;
        calls->free = i;
    }
    return 0;
}

void lieni_calls_free(struct lieni_calls *calls)
{
    free(calls->slots);
    free(calls->peer);
}

void lieni_call_slot_free(struct lien_conn *conn, uint32_t slot)
{
    struct lieni_call_slot *s = &conn->calls.slots[slot];
    if (s->gen < UINT32_MAX) { // else worn out: ids are never used again
        s->next_free = conn->calls.free;
        conn->calls.free = slot + 1;
    }
    lieni_conn_writable(conn);
}

struct lien_call *lieni_call_find(struct lien_conn *conn, uint64_t id)
{
    uint32_t slot = lieni_call_slot(id);
    if (slot >= conn->calls.max)
        return NULL;
    struct lien_call *call = conn->calls.slots[slot].call;
    return call && call->id == id && call->state == LIENI_CALL_RUNNING ? call : NULL;
}

// -- Ending --

void lieni_call_unref(struct lien_call *call)
{
    if (--call->refs > 0)
        return;
    struct lien_conn *conn = call->conn;
    if (call->has_timer)
        lieni_timer_fini(&conn->ctx->timers, &call->timer);
    lieni_list_remove(&call->node);
    free(call->read);
    free(call);
    if (conn->channel)
        lieni_channel_room(conn->channel);
    lieni_conn_unref(conn);
}

static void run_done(struct lieni_task *task)
{
    struct lien_call *call = lieni_container(task, struct lien_call, done_task);
    lien_ctx *ctx = call->conn->ctx;
    lien_msg *reply = call->reply;
    call->reply = NULL;
    call->on_done(call->arg, call->status, reply);
    lieni_ctx_lock(ctx);
    lieni_call_unref(call);
    lieni_ctx_unlock(ctx);
}

static void run_released(struct lieni_task *task)
{
    struct lien_call *call = lieni_container(task, struct lien_call, released_task);
    lien_ctx *ctx = call->conn->ctx;
    call->on_released(call->arg, call->released_status);
    lieni_ctx_lock(ctx);
    lieni_call_unref(call);
    lieni_ctx_unlock(ctx);
}

static void post(struct lien_call *call, struct lieni_task *task)
{
    call->refs++;
    lieni_ctx_post(call->conn->ctx, call->conn->strand, task);
}

// Whether its application waits for the result.
static bool is_live(const struct lien_call *call)
{
    return call->state == LIENI_CALL_RUNNING || call->state == LIENI_CALL_FETCHING;
}

// Both spaces and the arguments' body are settled.
static void released(struct lien_call *call)
{
    if (call->released || call->space || call->args || is_live(call))
        return;
    call->released = true;
    lieni_ctx_changed(call->conn->ctx);
    if (call->on_released)
        post(call, &call->released_task);
    if (call->owner)
        lieni_ccall_released(call->owner, call->released_status);
    call->owner = NULL;
}

// The borrow ends, whatever the peer does: late READs fetch newer bytes, and validation says no (R8).
static void end_borrow(struct lien_call *call)
{
    while (call->n_read > 0)
        lieni_buf_unborrow(call->read[--call->n_read]);
    if (call->grant)
        lieni_grant_call_over(call->grant);
}

static void seal(struct lien_call *call)
{
    if (!call->space)
        return;
    if (call->owner && call->owner->again)
        call->space = NULL; // back to it, still lent
    else if (lieni_target_seal(call->space))
        call->space = NULL;
    else
        lieni_call_write_stop(call, LIEN_ECANCELED); // what is not posted will not be
}

// The result is known; for memory see released().
static void end(struct lien_call *call, int status, lien_msg *reply)
{
    struct lien_conn *conn = call->conn;
    call->status = status;
    call->reply = reply;
    conn->ctx->messages_held += reply != NULL; // the application's
    lieni_timer_clear(&conn->ctx->timers, &call->timer);
    lieni_call_assembly_stop(conn, call->id);
    end_borrow(call);
    if (call->on_done)
        post(call, &call->done_task);
    if (call->owner)
        lieni_ccall_ended(call->owner, call);
    if (call->reply_buf)
        lieni_buf_free_locked(call->reply_buf);
    call->reply_buf = NULL;
    seal(call);
    released(call);
    lieni_ctx_changed(conn->ctx);
    lieni_call_unref(call); // running
}

void lieni_call_give_up(struct lien_call *call, int status)
{
    struct lien_conn *conn = call->conn;
    if (call->state == LIENI_CALL_FETCHING) { // its REPLY is here: there is nothing to cancel
        set_state(call, LIENI_CALL_OVER);
        lieni_body_stop(&call->body, status);
        end(call, status, NULL);
        return;
    }
    if (call->state != LIENI_CALL_RUNNING)
        return;
    set_state(call, LIENI_CALL_ENDED);
    lieni_list_append(&conn->calls.cancels, &call->cancel_node);
    end(call, status, NULL);
    lieni_link_pump(conn);
}

static void on_timeout(struct lieni_timer *timer)
{
    struct lien_call *call = lieni_container(timer, struct lien_call, timer);
    struct lien_conn *conn = call->conn;
    lieni_trace_text(conn->trace, LIENI_TRACE_TIMER, call->id, 0, 0, "deadline of a call", NULL);
    lieni_conn_ref(conn);
    lieni_call_give_up(call, LIEN_ETIMEDOUT);
    lieni_conn_unref(conn);
}

void lieni_call_write_over(struct lien_call *call, int status)
{
    call->write = NULL;
    if (status == LIEN_EQUARANTINED)
        call->released_status = status;
    // A space that is still lent to the call takes the next write; a sealed one is back, or lost.
    if (is_live(call) && status != LIEN_EQUARANTINED)
        return;
    call->space = NULL;
    released(call);
}

// -- Replies --

// The reply's body is here, or never will be.
static void fetched(struct lieni_body *body, int status)
{
    struct lien_call *call = lieni_container(body, struct lien_call, body);
    lien_msg *reply = call->fetching;
    call->fetching = NULL;
    reply->body = body->buf;
    if (reply->body)
        lieni_buf_keep(reply->body, true);
    body->buf = NULL;
    if (call->state == LIENI_CALL_FETCHING) {
        set_state(call, LIENI_CALL_OVER);
        end(call, status ? status : call->reply_status, status ? NULL : reply);
        reply = status ? reply : NULL;
    }
    if (reply)
        lieni_message_free(reply);
    lieni_call_unref(call); // the REPLY
}

// A reply with a body: read it into what was reserved, or release it unread.
static int fetch(struct lien_call *call, struct lieni_recv_slot *slot,
                 const struct lieni_frame *frame)
{
    struct lien_conn *conn = call->conn;
    lien_buf *buf = call->reply_buf;
    call->fetching = lieni_message_reply(conn, slot, frame, lieni_call_slot(frame->call));
    if (!call->fetching)
        return LIEN_ENOMEM;
    conn->calls.slots[lieni_call_slot(frame->call)].call = NULL;
    lieni_list_remove(&call->cancel_node);
    set_state(call, LIENI_CALL_FETCHING);
    call->reply_status = frame->status;
    call->reply_buf = NULL;
    call->body.over = fetched;
    int rc = lieni_body_fetch(&call->body, conn, frame, buf);
    if (rc == 0)
        return 0;
    fetched(&call->body, rc);
    return rc;
}

int lieni_call_replied(struct lien_conn *conn, struct lieni_recv_slot *slot,
                       const struct lieni_frame *frame)
{
    uint32_t index = lieni_call_slot(frame->call);
    struct lieni_call_slot *s = &conn->calls.slots[index];
    struct lien_call *call = s->call;
    if (!call || call->id != frame->call)
        return LIEN_EPROTO;
    bool wanted = call->state == LIENI_CALL_RUNNING && (call->on_done || call->waited);
    lien_msg *reply = NULL;
    if (frame->n_keys > 0 && wanted && call->reply_buf &&
        frame->total <= lien_buf_len(call->reply_buf))
        return fetch(call, slot, frame);
    if (frame->n_keys > 0) {
        int rc = lieni_import_first(conn, frame->name);
        if (rc == 0)
            rc = lieni_import_release(conn, frame->name);
        if (rc != 0)
            return rc;
    }
    if (wanted && frame->head_len > 0) {
        reply = lieni_message_reply(conn, slot, frame, index);
        if (!reply)
            return LIEN_ENOMEM;
    }
    s->call = NULL;
    lieni_list_remove(&call->cancel_node);
    bool runs = call->state == LIENI_CALL_RUNNING;
    call->unbegun = frame->unbegun;
    set_state(call, LIENI_CALL_OVER);
    if (runs) // a body for which nothing was reserved is no success
        end(call, frame->n_keys > 0 && frame->status == 0 ? LIEN_EMSGSIZE : frame->status, reply);
    if (!reply) {
        lieni_link_reply_freed(conn, slot);
        lieni_call_slot_free(conn, index);
    }
    lieni_call_unref(call); // the REPLY
    return 0;
}

// -- What is due --

static void cancels_pump(struct lien_conn *conn)
{
    struct lieni_node *n;
    while ((n = lieni_list_first(&conn->calls.cancels))) {
        struct lien_call *call = lieni_container(n, struct lien_call, cancel_node);
        if (!lieni_link_control(
                conn, &(struct lieni_frame){.kind = LIENI_FRAME_CANCEL, .call = call->id}))
            return;
        lieni_list_remove(n);
    }
}

void lieni_calls_pump(struct lien_conn *conn)
{
    struct lieni_calls *calls = &conn->calls;
    if (calls->max == 0)
        return;
    lieni_probe_pump(conn);
    cancels_pump(conn);
    lieni_call_written_pump(conn);
    lieni_request_write_pump(conn);
    if (calls->goaway_due &&
        lieni_link_control(conn, &(struct lieni_frame){.kind = LIENI_FRAME_GOAWAY}))
        calls->goaway_due = false;
    lieni_request_reply_pump(conn);
    // Behind every CALL that was queued before the GOAWAY came; there are none behind it.
    if (calls->heard_due &&
        lieni_link_control(conn, &(struct lieni_frame){.kind = LIENI_FRAME_HEARD}))
        calls->heard_due = false;
}

bool lieni_calls_quiet(const struct lien_conn *conn)
{
    const struct lieni_calls *calls = &conn->calls;
    return lieni_list_empty(&calls->cancels) && lieni_list_empty(&calls->replies) &&
           lieni_list_empty(&calls->written) && calls->n_answers == 0;
}

// -- The connection's end --

static void end_calls(struct lien_conn *conn, int status)
{
    struct lieni_node *next;
    for (struct lieni_node *n = conn->calls.all.next; n != &conn->calls.all; n = next) {
        struct lien_call *call = lieni_container(n, struct lien_call, node);
        next = n->next;
        if (call->state == LIENI_CALL_FETCHING) {
            call->refs++;
            lieni_call_give_up(call, status);
            next = n->next;
            lieni_call_unref(call);
            continue;
        }
        if (call->state != LIENI_CALL_RUNNING)
            continue;
        set_state(call, LIENI_CALL_ENDED);
        end(call, status, NULL);
    }
}

static void end_requests(struct lien_conn *conn, int status, bool gone)
{
    struct lieni_node *next;
    for (struct lieni_node *n = conn->calls.requests.next; n != &conn->calls.requests; n = next) {
        struct lien_request *request = lieni_container(n, struct lien_request, node);
        next = n->next;
        request->refs++;
        lieni_request_cancel(request, status, false);
        next = n->next;
        if (gone)
            lieni_request_reply_lost(request);
        lieni_request_unref(request);
    }
}

// No REPLY comes any more.
static void forget_slots(struct lien_conn *conn)
{
    for (uint32_t i = 0; i < conn->calls.max; i++) {
        struct lien_call *call = conn->calls.slots[i].call;
        if (!call)
            continue;
        conn->calls.slots[i].call = NULL;
        lieni_list_remove(&call->cancel_node);
        set_state(call, LIENI_CALL_OVER);
        lieni_call_unref(call);
    }
}

void lieni_calls_end(struct lien_conn *conn, int status, bool gone)
{
    lieni_conn_ref(conn);
    end_calls(conn, status);
    end_requests(conn, status, gone);
    if (gone) {
        forget_slots(conn);
        lieni_request_writes_lost(conn);
        lieni_call_writes_end(conn);
        conn->calls.n_answers = 0;
    }
    lieni_conn_unref(conn);
}

void lieni_calls_gone(struct lien_conn *conn)
{
    struct lieni_timers *ts = &conn->ctx->timers;
    for (struct lieni_node *n = conn->calls.all.next; n != &conn->calls.all; n = n->next) {
        struct lien_call *call = lieni_container(n, struct lien_call, node);
        if (call->has_timer)
            lieni_timer_fini(ts, &call->timer);
        call->has_timer = false;
    }
    for (struct lieni_node *n = conn->calls.requests.next; n != &conn->calls.requests;
         n = n->next) {
        struct lien_request *request = lieni_container(n, struct lien_request, node);
        if (request->has_timer)
            lieni_timer_fini(ts, &request->timer);
        request->has_timer = false;
        if (request->strand)
            lieni_strand_close(request->strand);
        request->strand = NULL;
    }
}

// -- Starting --

static void grant_over(void *owner, int status)
{
    struct lien_call *call = owner;
    (void)status;
    call->grant = NULL;
    lieni_call_unref(call);
}

// The peer released the arguments' body, or its endpoint's end settled it.
static void args_over(void *owner, int status)
{
    struct lien_call *call = owner;
    call->args = NULL;
    if (status != 0)
        call->released_status = status;
    released(call);
    lieni_call_unref(call);
}

static int check(struct lien_conn *conn, const char *method, const lien_call_opts *opts)
{
    struct lieni_calls *calls = &conn->calls;
    int rc = lieni_conn_usable(conn);
    if (rc != 0)
        return rc;
    size_t len = strnlen(method, LIEN_METHOD_MAX + 1);
    if (len == 0 || len > LIEN_METHOD_MAX || opts->timeout_ms == LIEN_FOREVER ||
        opts->n_read > LIEN_BUFS_MAX || opts->n_body > LIEN_BUFS_MAX ||
        (opts->n_body > 0 && !opts->body) || (opts->n_read > 0 && !opts->read) ||
        (opts->write && opts->write->ctx != conn->ctx))
        return LIEN_EINVAL;
    if (calls->max == 0)
        return LIEN_ENOTSUP;
    if (calls->peer_goaway)
        return LIEN_EOVERLOAD;
    if (calls->free == 0 || lieni_link_message_room(&conn->link) != 0) {
        conn->want_writable = true;
        return LIEN_EAGAIN;
    }
    return 0;
}

// For the report of a stray access.
static void lent_by(const struct lien_call *call, lien_buf *const *bufs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        lieni_buf_lent_by(bufs[i], LIENI_LENT_BY_CALL, call->conn->id, call->id);
}

static int lend_read(struct lien_call *call, const lien_call_opts *opts,
                     const struct lieni_sums *sums, struct lieni_frame *frame)
{
    struct lien_conn *conn = call->conn;
    uint64_t total = 0;
    for (size_t i = 0; i < opts->n_read; i++) {
        if (!opts->read[i] || !lieni_buf_in_ctx(opts->read[i], conn->ctx->mem))
            return LIEN_EINVAL;
        total += lien_buf_len(opts->read[i]);
    }
    if (total == 0)
        return 0;
    call->read = calloc(opts->n_read, sizeof(lien_buf *));
    if (!call->read)
        return LIEN_ENOMEM;
    while (call->n_read < opts->n_read) {
        int rc = lieni_buf_borrow(opts->read[call->n_read]);
        if (rc != 0)
            return rc;
        call->read[call->n_read] = opts->read[call->n_read];
        call->n_read++;
    }
    int rc = lieni_grant_open(conn, opts->read, opts->n_read, LIENI_GRANT_BORROWED, NULL, sums,
                              frame->read_keys, &frame->n_read_keys, &call->grant);
    if (rc != 0)
        return rc;
    call->grant->over = grant_over;
    call->grant->owner = call;
    call->refs++;
    lent_by(call, opts->read, opts->n_read);
    call->read_name = frame->read_name = call->grant->name;
    frame->read_total = call->grant->bytes;
    return 0;
}

// The arguments' body is a held grant; memory for a large reply is reserved now, or the reply fails. [R22]
static int lend_bodies(struct lien_call *call, const lien_call_opts *opts,
                       const struct lieni_sums *sums, struct lieni_frame *frame)
{
    struct lien_conn *conn = call->conn;
    uint64_t total = 0;
    int rc = 0;
    for (size_t i = 0; i < opts->n_body; i++) {
        if (!opts->body[i])
            return LIEN_EINVAL;
        total += lien_buf_len(opts->body[i]);
    }
    rc = lieni_read_batch_check(conn, total);
    if (rc != 0)
        return rc;
    if (total > conn->message_max)
        return LIEN_EMSGSIZE;
    if (total > 0)
        rc = lieni_grant_open(conn, opts->body, opts->n_body, 0, NULL, sums, frame->keys,
                              &frame->n_keys, &call->args);
    if (rc == 0 && call->args) {
        call->args->over = args_over;
        call->args->owner = call;
        call->refs++;
        lent_by(call, opts->body, opts->n_body);
        frame->name = call->args->name;
        frame->total = total;
    }
    frame->reply_max = opts->reply_max;
    lien_pool *pool = conn->opts.pool ? conn->opts.pool : conn->ctx->receive_pool;
    if (rc == 0 && opts->reply_max > 0)
        rc = lieni_pool_alloc_reserved(pool, opts->reply_max, &call->reply_buf);
    return rc;
}

static int lend(struct lien_call *call, const lien_call_opts *opts, const struct lieni_sums *sums,
                struct lieni_frame *frame)
{
    int rc = lend_read(call, opts, sums ? sums + 1 : NULL, frame);
    if (rc == 0)
        rc = lend_bodies(call, opts, sums, frame);
    if (rc != 0 || !opts->write)
        return rc;
    rc = call->owner ? 0 : lieni_target_call(opts->write);
    if (rc != 0)
        return rc;
    call->space = opts->write;
    lent_by(call, call->space->bufs, call->space->n);
    frame->space_len = call->space->len;
    return 0;
}

// The CALL was not queued: nobody heard of it.
static void undo(struct lien_call *call)
{
    while (call->n_read > 0)
        lieni_buf_unborrow(call->read[--call->n_read]);
    if (call->grant)
        lieni_grant_untold(call->grant);
    if (call->args)
        lieni_grant_untold(call->args);
    if (call->reply_buf)
        lieni_buf_free_locked(call->reply_buf);
    if (call->space && !call->owner)
        lieni_target_seal(call->space);
    call->owner = NULL;
    lieni_call_unref(call);
}

static int call_new(struct lien_conn *conn, struct lien_call **out)
{
    struct lien_call *call = calloc(1, sizeof(*call));
    if (!call)
        return LIEN_ENOMEM;
    int rc = lieni_timer_init(&conn->ctx->timers, &call->timer, on_timeout);
    if (rc != 0) {
        free(call);
        return rc;
    }
    call->has_timer = true;
    call->conn = conn;
    call->done_task.run = run_done;
    call->released_task.run = run_released;
    lieni_list_init(&call->cancel_node);
    lieni_list_init(&call->node);
    lieni_list_append(&conn->calls.all, &call->node);
    lieni_liveness_watch(conn);
    lieni_conn_ref(conn);
    call->refs = 1; // running
    *out = call;
    return 0;
}

// It is on its way: takes its slot.
static void take_slot(struct lien_call *call)
{
    struct lieni_calls *calls = &call->conn->calls;
    struct lieni_call_slot *slot = &calls->slots[lieni_call_slot(call->id)];
    calls->free = slot->next_free;
    slot->gen++;
    slot->call = call;
    call->refs++; // the REPLY
}

int lieni_call_begin(struct lien_conn *conn, const char *method, const void *args, size_t len,
                     const struct lieni_sums *sums, const lien_call_opts *opts,
                     struct lien_channel_call *owner, struct lien_call **out)
{
    int rc = check(conn, method, opts);
    if (rc != 0)
        return rc;
    struct lien_call *call;
    rc = call_new(conn, &call);
    if (rc != 0)
        return rc;
    call->owner = owner;
    struct lieni_calls *calls = &conn->calls;
    uint32_t ms = opts->timeout_ms ? opts->timeout_ms : (uint32_t)conn->ctx->options.call_ms;
    call->id = lieni_call_id(calls->slots[calls->free - 1].gen + 1, calls->free - 1, calls->side);
    struct lieni_frame frame = {.kind = LIENI_FRAME_CALL,
                                .call = call->id,
                                .deadline_ms = ms,
                                .sums = sums != NULL,
                                .method = method,
                                .method_len = (uint32_t)strlen(method),
                                .head = args,
                                .head_len = len};
    rc = lend(call, opts, sums, &frame);
    if (rc == 0)
        rc = lieni_link_message(conn, &frame, NULL);
    if (rc != 0) {
        undo(call);
        return rc;
    }
    take_slot(call);
    call->frame = conn->link.queued;
    lieni_trace_text(conn->trace, LIENI_TRACE_CALL, call->id, 0, 0, "new",
                     state_names[call->state]);
    call->on_done = opts->on_done;
    call->on_released = opts->on_released;
    call->arg = opts->arg;
    lieni_timer_set(&conn->ctx->timers, &call->timer, lieni_ctx_deadline(conn->ctx, ms));
    *out = call;
    return 0;
}

// -- Public --

int lieni_call_opts(const lien_call_opts *in, lien_call_opts *out)
{
    lien_call_opts_init(out);
    int rc = in ? lieni_opts_copy(out, sizeof(*out), in, in->size) : 0;
    return rc == 0 && (out->flags & ~LIEN_CHECKSUM) != 0 ? LIEN_EINVAL : rc;
}

int lieni_call_sums(lien_ctx *ctx, const lien_call_opts *opts, struct lieni_sums *sums)
{
    const struct lieni_summing lists[] = {{opts->body, opts->n_body, &sums[0]},
                                          {opts->read, opts->n_read, &sums[1]}};
    return lieni_sums_make(ctx, lists, 2);
}

int lien_call_start(lien_conn *conn, const char *method, const void *args, size_t len,
                    const lien_call_opts *opts, lien_call **out)
{
    lien_call_opts full;
    if (!conn || !method || (len > 0 && !args))
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    int rc = lieni_call_opts(opts, &full);
    if (rc != 0)
        return rc;
    struct lien_call *call;
    lien_ctx *ctx = conn->ctx;
    struct lieni_sums sums[2];
    const bool summed = lieni_sums_wanted(ctx, full.flags);
    lieni_ctx_lock(ctx);
    if (summed) { // nothing is hashed for what could not leave
        rc = check(conn, method, &full);
        lieni_conn_ref(conn); // another thread may close it meanwhile
        if (rc == 0)
            rc = lieni_call_sums(ctx, &full, sums);
        lieni_conn_unref(conn);
    }
    if (rc == 0)
        rc = lieni_call_begin(conn, method, args, len, summed ? sums : NULL, &full, NULL, &call);
    if (rc == 0) {
        call->has_handle = out != NULL;
        call->refs += out != NULL;
        if (out)
            *out = call;
        lieni_link_pump(conn);
    }
    lieni_ctx_unlock(ctx);
    return rc;
}

int lien_call_cancel(lien_call *call)
{
    if (!call)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(call->conn->ctx))
        return LIEN_EFORK;
    lien_ctx *ctx = call->conn->ctx;
    lieni_ctx_lock(ctx);
    lieni_call_give_up(call, LIEN_ECANCELED);
    lieni_ctx_unlock(ctx);
    return 0;
}

int lien_call_close(lien_call **slot)
{
    if (!slot || !*slot)
        return LIEN_EINVAL;
    if (lieni_ctx_forked((*slot)->conn->ctx))
        return LIEN_EFORK;
    struct lien_call *call = *slot;
    lien_ctx *ctx = call->conn->ctx;
    lieni_ctx_lock(ctx);
    *slot = NULL;
    call->has_handle = false;
    lieni_call_give_up(call, LIEN_ECANCELED);
    lieni_call_unref(call);
    lieni_ctx_unlock(ctx);
    return 0;
}

int lieni_call_wait_verdict(lien_ctx *ctx, const lien_call_opts *opts, uint64_t *deadline)
{
    uint32_t ms = opts->timeout_ms ? opts->timeout_ms : (uint32_t)ctx->options.call_ms;
    *deadline = lieni_ctx_deadline(ctx, ms);
    int rc = opts->timeout_ms == LIEN_FOREVER ? LIEN_EINVAL : 0;
    if (rc == 0)
        rc = lieni_verify_leaving(ctx, opts->read, opts->n_read, NULL, *deadline);
    if (rc == 0)
        rc = lieni_verify_leaving(ctx, opts->body, opts->n_body, NULL, *deadline);
    return rc;
}

uint32_t lieni_call_ms_left(uint64_t now, uint64_t deadline)
{
    return (uint32_t)((deadline - now + LIENI_MS - 1) / LIENI_MS);
}

// Waits for credit, and before that for the verdict on bytes that were read, within the call's own time.
static int start_wait(struct lien_conn *conn, const char *method, const void *args, size_t len,
                      lien_call_opts *opts, struct lien_call **call)
{
    lien_ctx *ctx = conn->ctx;
    uint64_t deadline;
    int rc = lieni_call_wait_verdict(ctx, opts, &deadline);
    struct lieni_sums sums[2];
    const bool summed = lieni_sums_wanted(ctx, opts->flags);
    while (rc == 0) {
        if (summed) // only once there is credit: until then the buffers are the caller's to write
            rc = check(conn, method, opts);
        if (rc == 0 && summed)
            rc = lieni_call_sums(ctx, opts, sums);
        uint64_t now = lieni_ctx_now(ctx);
        if (now >= deadline)
            return LIEN_ETIMEDOUT;
        opts->timeout_ms = lieni_call_ms_left(now, deadline);
        if (rc == 0)
            rc = lieni_call_begin(conn, method, args, len, summed ? sums : NULL, opts, NULL, call);
        if (rc != LIEN_EAGAIN)
            return rc;
        rc = lieni_ctx_wait_locked(ctx, deadline);
    }
    return rc;
}

int lien_call_wait(lien_conn *conn, const char *method, const void *args, size_t len,
                   const lien_call_opts *opts, lien_msg **reply)
{
    lien_call_opts full;
    if (!conn || !method || (len > 0 && !args))
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    int rc = lieni_call_opts(opts, &full);
    lien_ctx *ctx = conn->ctx;
    if (rc == 0 && lieni_dispatch_where(ctx->dispatch, NULL) == LIENI_IN_PROGRESS)
        rc = LIEN_EDEADLK;
    if (rc != 0)
        return rc;
    full.on_done = NULL;
    full.on_released = NULL;
    struct lien_call *call = NULL;
    lieni_ctx_lock(ctx);
    lieni_conn_ref(conn); // another thread may close it meanwhile
    rc = start_wait(conn, method, args, len, &full, &call);
    if (rc == 0) {
        call->waited = reply != NULL;
        call->refs++;
        lieni_link_pump(conn);
        while (is_live(call) && rc == 0)
            rc = lieni_ctx_wait_locked(ctx, UINT64_MAX); // its own timer ends it
        lieni_call_give_up(call, rc);
        rc = call->status;
        if (reply)
            *reply = call->reply;
        lieni_call_unref(call);
    }
    lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
    return rc;
}
