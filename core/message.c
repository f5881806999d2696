// SPDX-License-Identifier: Apache-2.0
//
// See message.h.

#include "core/message.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/read.h"
#include "core/verify.h"

// -- Sending --

static void send_unref(struct lieni_send *send)
{
    if (--send->refs > 0)
        return;
    struct lien_conn *conn = send->conn;
    lieni_list_remove(&send->node);
    free(send);
    lieni_conn_unref(conn);
}

static void unref_unlocked(struct lieni_send *send)
{
    lien_ctx *ctx = send->conn->ctx;
    lieni_ctx_lock(ctx);
    send_unref(send);
    lieni_ctx_unlock(ctx);
}

static void run_done(struct lieni_task *task)
{
    struct lieni_send *send = lieni_container(task, struct lieni_send, done_task);
    send->on_done(send->arg, send->status);
    unref_unlocked(send);
}

static void run_released(struct lieni_task *task)
{
    struct lieni_send *send = lieni_container(task, struct lieni_send, released_task);
    send->on_released(send->arg, send->released_status);
    unref_unlocked(send);
}

static void done(struct lieni_send *send, int status)
{
    if (send->done)
        return;
    send->done = true;
    send->status = status;
    lieni_ctx_changed(send->conn->ctx);
    if (!send->on_done)
        return;
    send->refs++;
    lieni_ctx_post(send->conn->ctx, send->conn->strand, &send->done_task);
}

static void released(struct lieni_send *send, int status)
{
    if (send->released)
        return;
    send->released = true;
    send->released_status = status;
    lieni_list_remove(&send->node);
    lieni_ctx_changed(send->conn->ctx);
    if (!send->on_released)
        return;
    send->refs++;
    lieni_ctx_post(send->conn->ctx, send->conn->strand, &send->released_task);
}

// The peer released the body, or its endpoint's end settled it.
static void body_over(void *owner, int status)
{
    struct lieni_send *send = owner;
    struct lien_conn *conn = send->conn;
    // Once the connection was lost, done was told already: a late end is not delivery.
    done(send, status);
    released(send, status);
    send->grant = NULL;
    send_unref(send); // the body's
    if (conn->state == LIENI_CONN_ENDING)
        lieni_conn_ending_step(conn);
}

void lieni_send_over_wire(struct lieni_send *send, int status)
{
    send->on_wire = false;
    if (!send->grant && !send->released) { // a head alone: copied, nothing of the caller's is lent
        done(send, status);
        released(send, 0);
    }
    send_unref(send); // the frame's
}

static int send_new(struct lien_conn *conn, struct lieni_send **out)
{
    struct lieni_send *send = calloc(1, sizeof(*send));
    if (!send)
        return LIEN_ENOMEM;
    send->conn = conn;
    send->done_task.run = run_done;
    send->released_task.run = run_released;
    send->on_wire = true;
    send->refs = 1; // the frame's
    lieni_conn_ref(conn);
    lieni_list_init(&send->node);
    *out = send;
    return 0;
}

static int too_big(struct lien_conn *conn, const char *what, uint64_t len, uint64_t limit)
{
    struct lieni_log_at at = lieni_conn_at(conn, 0);
    lieni_log_say(conn->ctx->log, LIEN_LOG_DEBUG, &at, LIEN_EMSGSIZE,
                  "a message's %s of %llu bytes is above its limit of %llu", what,
                  (unsigned long long)len, (unsigned long long)limit);
    return LIEN_EMSGSIZE;
}

static int check(struct lien_conn *conn, size_t head_len, lien_buf *const *bufs, size_t n,
                 uint64_t *body)
{
    int rc = lieni_conn_usable(conn);
    *body = 0;
    if (rc != 0)
        return rc;
    if (n > LIEN_BUFS_MAX || (n > 0 && !bufs))
        return LIEN_EINVAL;
    if (head_len > lieni_link_head_max(&conn->link))
        return too_big(conn, "head", head_len, lieni_link_head_max(&conn->link));
    for (size_t i = 0; i < n; i++) {
        if (!bufs[i] || !lieni_buf_in_ctx(bufs[i], conn->ctx->mem))
            return LIEN_EINVAL;
        *body += lien_buf_len(bufs[i]);
    }
    rc = lieni_read_batch_check(conn, *body);
    if (rc != 0)
        return rc;
    if (*body > conn->message_max)
        return too_big(conn, "body", *body, conn->message_max);
    rc = lieni_link_message_room(&conn->link);
    if (rc != 0)
        conn->want_writable = true;
    return rc;
}

// Grants the body, and queues the frame that carries head and keys.
static int frame_out(struct lien_conn *conn, struct lieni_send *send, struct lieni_frame *frame,
                     lien_buf *const *bufs, size_t n, const struct lieni_sums *sums)
{
    struct lien_grant *grant = NULL;
    if (n > 0) {
        int rc = lieni_grant_open(conn, bufs, n, 0, NULL, sums, frame->keys, &frame->n_keys,
                                  &grant);
        if (rc != 0)
            return rc;
        frame->name = grant->name;
        frame->total = grant->bytes;
        frame->sums = sums != NULL;
    }
    int rc = lieni_link_message(conn, frame, send);
    if (rc != 0) {
        if (grant)
            lieni_grant_untold(grant);
        return rc;
    }
    if (grant) {
        grant->over = body_over;
        grant->owner = send;
        send->grant = grant;
        send->refs++; // the body's
    }
    return 0;
}

static int send_locked(struct lien_conn *conn, const void *head, size_t head_len,
                       lien_buf *const *bufs, size_t n, const struct lieni_sums *sums,
                       const lien_send_opts *opts, struct lieni_send **out)
{
    uint64_t body;
    int rc = check(conn, head_len, bufs, n, &body);
    if (rc != 0)
        return rc;
    struct lieni_send *send;
    rc = send_new(conn, &send);
    if (rc != 0)
        return rc;
    struct lieni_frame frame = {.kind = LIENI_FRAME_MSG, .head = head, .head_len = head_len};
    rc = frame_out(conn, send, &frame, bufs, body > 0 ? n : 0, sums);
    if (rc != 0) {
        send_unref(send);
        return rc;
    }
    if (opts) {
        send->on_done = opts->on_done;
        send->on_released = opts->on_released;
        send->arg = opts->arg;
    }
    lieni_list_append(&conn->sends, &send->node);
    lieni_liveness_watch(conn);
    conn->ctx->stats.messages_sent++;
    if (out) {
        send->refs++;
        *out = send;
    }
    lieni_link_pump(conn);
    return 0;
}

static int send_opts(const lien_send_opts *in, lien_send_opts *out)
{
    lien_send_opts_init(out);
    int rc = in ? lieni_opts_copy(out, sizeof(*out), in, in->size) : 0;
    return rc == 0 && (out->flags & ~LIEN_CHECKSUM) != 0 ? LIEN_EINVAL : rc;
}

int lien_send(lien_conn *conn, const void *head, size_t head_len, lien_buf *const *bufs, size_t n,
              const lien_send_opts *opts)
{
    lien_send_opts full;
    if (!conn || (head_len > 0 && !head))
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    int rc = send_opts(opts, &full);
    if (rc != 0)
        return rc;
    struct lieni_sums sums;
    const bool summed = n > 0 && lieni_sums_wanted(conn->ctx, full.flags);
    uint64_t body;
    lieni_ctx_lock(conn->ctx);
    if (summed) { // nothing is hashed for what could not leave
        rc = check(conn, head_len, bufs, n, &body);
        lieni_conn_ref(conn); // another thread may close it meanwhile
        if (rc == 0)
            rc = lieni_sums_make(conn->ctx, &(struct lieni_summing){bufs, n, &sums}, 1);
        lieni_conn_unref(conn);
    }
    if (rc == 0)
        rc = send_locked(conn, head, head_len, bufs, n, summed ? &sums : NULL, &full, NULL);
    lieni_ctx_unlock(conn->ctx);
    return rc;
}

int lien_send_wait(lien_conn *conn, const void *head, size_t head_len, lien_buf *const *bufs,
                   size_t n, const lien_send_opts *opts)
{
    lien_send_opts full;
    if (!conn || (head_len > 0 && !head))
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    int rc = send_opts(opts, &full);
    lien_ctx *ctx = conn->ctx;
    if (rc == 0 && lieni_dispatch_where(ctx->dispatch, NULL) == LIENI_IN_PROGRESS)
        rc = LIEN_EDEADLK;
    if (rc != 0)
        return rc;
    struct lieni_send *send = NULL;
    struct lieni_sums sums;
    const bool summed = n > 0 && lieni_sums_wanted(ctx, full.flags);
    lieni_ctx_lock(ctx);
    lieni_conn_ref(conn); // another thread may close it meanwhile
    uint64_t deadline = lieni_ctx_deadline(ctx, full.timeout_ms ? full.timeout_ms : LIEN_FOREVER);
    rc = lieni_verify_leaving(ctx, bufs, n, NULL, deadline);
    while (rc == 0) {
        uint64_t body;
        if (summed) // only once there is credit: until then the buffers are the caller's to write
            rc = check(conn, head_len, bufs, n, &body);
        if (rc == 0 && summed)
            rc = lieni_sums_make(ctx, &(struct lieni_summing){bufs, n, &sums}, 1);
        if (rc == 0)
            rc = send_locked(conn, head, head_len, bufs, n, summed ? &sums : NULL, NULL, &send);
        if (rc != LIEN_EAGAIN)
            break;
        rc = lieni_ctx_wait_locked(ctx, deadline);
    }
    while (send && rc == 0 && !send->released)
        rc = lieni_ctx_wait_locked(ctx, deadline);
    if (send && send->released)
        rc = send->released_status != 0 ? send->released_status : send->status;
    if (send)
        send_unref(send);
    lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
    return rc;
}

// -- Receiving --

static void msg_free(struct lien_msg *msg)
{
    struct lien_conn *conn = msg->conn;
    lieni_list_remove(&msg->node);
    if (msg->wait.pool)
        lieni_pool_wait_stop(&msg->wait);
    if (msg->body)
        lieni_buf_keep(msg->body, false);
    if (msg->body && conn->ctx->dead)
        lien_buf_free(&msg->body);
    else if (msg->body)
        lieni_buf_free_locked(msg->body);
    free(msg->token);
    if (msg->call_slot) {
        lieni_link_reply_freed(conn, msg->slot);
        lieni_call_slot_free(conn, msg->call_slot - 1);
    } else {
        lieni_link_message_freed(conn, msg->slot);
    }
    lieni_link_slab_unref(conn->ctx, &conn->link);
    free(msg);
    lieni_conn_unref(conn);
}

void lieni_message_free(struct lien_msg *msg)
{
    msg_free(msg);
}

static void run_message(struct lieni_task *task)
{
    struct lien_msg *msg = lieni_container(task, struct lien_msg, task);
    struct lien_conn *conn = msg->conn;
    lien_ctx *ctx = conn->ctx;
    lieni_ctx_lock(ctx);
    bool wanted = conn->has_handle;
    lieni_conn_ref(conn);
    ctx->messages_held += wanted;
    if (!wanted)
        msg_free(msg);
    lieni_ctx_unlock(ctx);
    if (wanted)
        conn->opts.on_message(conn, msg, conn->opts.arg);
    lieni_ctx_lock(ctx);
    lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
}

void lieni_messages_deliver(struct lien_conn *conn)
{
    struct lieni_node *n;
    if (!conn->has_handle)
        return; // not accepted yet: they wait
    while ((n = lieni_list_first(&conn->inbox))) {
        struct lien_msg *msg = lieni_container(n, struct lien_msg, node);
        if (!msg->ready)
            return;
        if (!conn->opts.on_message) {
            lieni_ctx_changed(conn->ctx); // lien_msg_recv_wait
            return;
        }
        lieni_list_remove(n);
        lieni_ctx_post(conn->ctx, conn->strand, &msg->task);
    }
}

static void ready(struct lien_msg *msg)
{
    msg->ready = true;
    msg->conn->ctx->stats.messages_received++;
    lieni_messages_deliver(msg->conn);
}

// The body's READ is over and its space settled. Only a body that is good is released: its sender takes that for the message's arrival. For one that is thrown away the end of the
// connection is the answer.
static void body_read(void *owner, int status)
{
    struct lien_msg *msg = owner;
    struct lien_conn *conn = msg->conn;
    lien_space *space = msg->space;
    msg->space = NULL;
    if (status == 0 && !msg->dropped && lieni_target_take(space, &msg->body, 1) == 0) {
        lieni_target_free(space);
        lieni_buf_keep(msg->body, true);
        lieni_import_release(conn, msg->token->name); // to the sender: taken over
        ready(msg);
        return;
    }
    lieni_target_free(space);
    if (msg->dropped)
        msg_free(msg);
    else if (lieni_conn_usable(conn) ==
             0) // the end of the connection drops it, and what is behind it
        lieni_conn_break(conn, status ? status : LIEN_EIO, "a message's body could not be read");
}

static int start_body(struct lien_msg *msg, lien_buf *buf)
{
    struct lien_conn *conn = msg->conn;
    struct lien_read *read;
    int rc = lieni_target_open(conn->ctx, &buf, 1, &msg->space);
    if (rc != 0) {
        lieni_buf_free_locked(buf);
        return rc;
    }
    lien_read_opts opts = {.size = sizeof(opts)}; // the release is body_read()'s
    rc = lieni_read_new(conn, msg->token, msg->space, &opts, &read);
    if (rc != 0) {
        lieni_target_free(msg->space);
        msg->space = NULL;
        return rc;
    }
    read->over = body_read;
    read->owner = msg;
    lieni_read_go(read);
    return 0;
}

// Memory for the body came, after a wait. A message that cannot have its body stays where it is: the loss drops it, and what is behind it.
static void body_memory(struct lieni_pool_wait *wait, lien_buf *buf, int status)
{
    struct lien_msg *msg = lieni_container(wait, struct lien_msg, wait);
    struct lien_conn *conn = msg->conn;
    if (status == 0)
        status = start_body(msg, buf);
    if (status != 0)
        lieni_conn_break(conn, status, "no memory for a message's body");
}

// Memory, then the READ. `first`: the grant is not known yet.
static int get_body(struct lien_msg *msg, bool first)
{
    struct lien_conn *conn = msg->conn;
    lien_pool *pool = conn->opts.pool ? conn->opts.pool : conn->ctx->receive_pool;
    lien_buf *buf;
    int rc = lieni_pool_alloc_reserved(pool, msg->token->total, &buf);
    if (rc == 0)
        return start_body(msg, buf);
    if (rc == LIEN_ELIMIT)
        rc = first ? lieni_import_first(conn, msg->token->name) : 0;
    if (rc != 0)
        return rc;
    msg->wait.len = msg->token->total;
    msg->wait.ready = body_memory;
    lieni_pool_wait_start(pool, &msg->wait);
    return 0;
}

// A body is fetched, and with that acknowledged, only once the application has taken the connection: it may refuse it still, and then nobody took the message.
static int fetch_body(struct lien_msg *msg, const struct lieni_frame *frame)
{
    struct lien_conn *conn = msg->conn;
    msg->token = calloc(1, sizeof(*msg->token));
    if (!msg->token)
        return LIEN_ENOMEM;
    *msg->token = (struct lieni_token_data){.kind = LIENI_TOKEN_HELD,
                                            .conn = conn->id,
                                            .name = frame->name,
                                            .total = frame->total,
                                            .sums = frame->sums,
                                            .n_keys = frame->n_keys};
    memcpy(msg->token->keys, frame->keys, frame->n_keys * sizeof(frame->keys[0]));
    // The release of a body that waits is owed from now on, though nothing is read yet.
    if (!conn->server || conn->wanted)
        return get_body(msg, true);
    msg->held_back = true;
    return lieni_import_first(conn, frame->name);
}

void lieni_messages_wanted(struct lien_conn *conn)
{
    if (conn->wanted)
        return;
    conn->wanted = true;
    struct lieni_node *next;
    for (struct lieni_node *n = conn->inbox.next; n != &conn->inbox; n = next) {
        struct lien_msg *msg = lieni_container(n, struct lien_msg, node);
        next = n->next;
        if (!msg->held_back)
            continue;
        msg->held_back = false;
        int rc = get_body(msg, false);
        if (rc != 0) {
            lieni_conn_break(conn, rc, "no memory for a message's body");
            return;
        }
    }
}

struct lien_msg *lieni_message_reply(struct lien_conn *conn, struct lieni_recv_slot *slot,
                                     const struct lieni_frame *frame, uint32_t call_slot)
{
    struct lien_msg *msg = calloc(1, sizeof(*msg));
    if (!msg)
        return NULL;
    msg->conn = conn;
    msg->slot = slot;
    msg->head = frame->head;
    msg->head_len = frame->head_len;
    msg->ready = true;
    msg->call_slot = call_slot + 1;
    lieni_conn_ref(conn);
    conn->link.slab_refs++;
    lieni_list_init(&msg->node);
    return msg;
}

int lieni_message_arrived(struct lien_conn *conn, struct lieni_recv_slot *slot,
                          const struct lieni_frame *frame)
{
    struct lien_msg *msg = calloc(1, sizeof(*msg));
    if (!msg)
        return LIEN_ENOMEM;
    msg->conn = conn;
    msg->slot = slot;
    msg->head = frame->head;
    msg->head_len = frame->head_len;
    msg->task.run = run_message;
    lieni_conn_ref(conn);
    conn->link.slab_refs++;
    lieni_list_init(&msg->node);
    lieni_list_append(&conn->inbox, &msg->node);
    lieni_liveness_watch(conn);
    if ((!conn->has_handle && !conn->listener) ||
        conn->inbox_gap) { // closed here: nobody will take it
        msg->ready = true;
        msg_free(msg);
        return 0;
    }
    if (frame->name.gen == 0) {
        ready(msg);
        return 0;
    }
    int rc = fetch_body(msg, frame);
    if (rc != 0) {
        conn->inbox_gap = true;
        msg_free(msg);
    }
    return rc;
}

void lieni_messages_lost(struct lien_conn *conn, int status)
{
    struct lieni_node *next;
    for (struct lieni_node *n = conn->sends.next; n != &conn->sends; n = next) {
        struct lieni_send *send = lieni_container(n, struct lieni_send, node);
        next = n->next;
        done(send, status);
        if (!send->grant)
            released(send, 0);
    }
    // Messages whose body is not here never will be; those whose READ runs are freed by its end. Those behind them go too: the peer's order has no gaps.
    // First out of the inbox all of them, then freed: a body that goes home may let another message's wait for memory end, which frees that message.
    struct lieni_node dropped, *n;
    bool gap = false;
    lieni_list_init(&dropped);
    for (n = conn->inbox.next; n != &conn->inbox; n = next) {
        struct lien_msg *msg = lieni_container(n, struct lien_msg, node);
        next = n->next;
        gap = gap || !msg->ready;
        if (!gap)
            continue;
        conn->inbox_gap = true;
        msg->dropped = true;
        lieni_list_remove(n);
        lieni_list_append(&dropped, n);
    }
    while ((n = lieni_list_pop(&dropped))) {
        struct lien_msg *msg = lieni_container(n, struct lien_msg, node);
        if (!msg->space)
            msg_free(msg);
    }
    lieni_messages_deliver(conn);
}

void lieni_messages_drop(struct lien_conn *conn)
{
    struct lieni_node *n;
    while ((n = lieni_list_pop(&conn->inbox))) {
        struct lien_msg *msg = lieni_container(n, struct lien_msg, node);
        msg->dropped = true;
        if (!msg->space)
            msg_free(msg);
    }
}

// -- Public --

int lien_msg_recv_wait(lien_conn *conn, uint32_t timeout_ms, lien_msg **out)
{
    if (!conn || !out)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    if (conn->opts.on_message)
        return LIEN_ESTATE;
    lien_ctx *ctx = conn->ctx;
    lieni_ctx_lock(ctx);
    lieni_conn_ref(conn); // as above
    uint64_t deadline = lieni_ctx_deadline(ctx, timeout_ms);
    int rc = 0;
    lieni_messages_wanted(conn); // also inside on_accept
    for (;;) {
        struct lieni_node *n = lieni_list_first(&conn->inbox);
        struct lien_msg *msg = n ? lieni_container(n, struct lien_msg, node) : NULL;
        if (msg && msg->ready) {
            lieni_list_remove(n);
            *out = msg;
            ctx->messages_held++;
            break;
        }
        rc = lieni_conn_usable(conn);
        if (rc == 0)
            rc = timeout_ms == 0 ? LIEN_ETIMEDOUT : lieni_ctx_wait_locked(ctx, deadline);
        if (rc != 0)
            break;
    }
    lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
    return rc;
}

int lien_msg_head(const lien_msg *msg, const void **data, size_t *len)
{
    if (!msg || !data || !len)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(msg->conn->ctx))
        return LIEN_EFORK;
    *data = msg->head;
    *len = msg->head_len;
    return 0;
}

lien_buf *lien_msg_body(lien_msg *msg)
{
    return msg && !lieni_ctx_forked(msg->conn->ctx) ? msg->body : NULL;
}

int lien_msg_take_body(lien_msg *msg, lien_buf **buf)
{
    if (!msg || !buf)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(msg->conn->ctx))
        return LIEN_EFORK;
    if (!msg->body)
        return LIEN_ENOTFOUND;
    lieni_ctx_lock(msg->conn->ctx);
    lieni_buf_keep(msg->body, false);
    *buf = msg->body;
    msg->body = NULL;
    lieni_ctx_unlock(msg->conn->ctx);
    return 0;
}

void lien_msg_free(lien_msg **slot)
{
    if (!slot || !*slot)
        return;
    struct lien_msg *msg = *slot;
    *slot = NULL;
    lien_ctx *ctx = msg->conn->ctx;
    if (lieni_ctx_forked(ctx))
        return;
    lieni_ctx_lock(ctx);
    ctx->messages_held--;
    msg_free(msg);
    lieni_ctx_unlock(ctx);
}
