// SPDX-License-Identifier: Apache-2.0
//
// See body.h.

#include "core/body.h"

#include <stdlib.h>
#include <string.h>

#include "core/conn.h"
#include "core/read.h"

static void finish(struct lieni_body *body, int status)
{
    free(body->token);
    body->token = NULL;
    body->over(body, status);
}

// The READ is over and its space settled.
static void read_over(void *owner, int status)
{
    struct lieni_body *body = owner;
    size_t len = (size_t)body->token->total;
    lien_space *space = body->space;
    body->space = NULL;
    lieni_read_unref(body->read);
    body->read = NULL;
    if (status == 0)
        status = body->status;
    if (status == 0)
        status = lieni_target_take(space, &body->buf, 1);
    if (status == 0)
        lieni_buf_trim(body->buf, len);
    lieni_target_free(space);
    finish(body, status);
}

static int start(struct lieni_body *body, lien_buf *buf)
{
    struct lien_conn *conn = body->conn;
    struct lien_read *read;
    int rc = lieni_target_open(conn->ctx, &buf, 1, &body->space);
    if (rc != 0) {
        lieni_buf_free_locked(buf);
        return rc;
    }
    lien_read_opts opts = {.size = sizeof(opts), .flags = LIEN_RELEASE};
    rc = lieni_read_new(conn, body->token, body->space, &opts, &read);
    if (rc != 0) {
        lieni_target_free(body->space);
        body->space = NULL;
        return rc;
    }
    read->over = read_over;
    read->owner = body;
    read->refs++;
    body->read = read;
    lieni_read_go(read);
    return 0;
}

// It cannot be read: the grant is released unread.
static void give_up(struct lieni_body *body, int status)
{
    lieni_import_release(body->conn, body->token->name);
    finish(body, status);
}

static void memory_came(struct lieni_pool_wait *wait, lien_buf *buf, int status)
{
    struct lieni_body *body = lieni_container(wait, struct lieni_body, wait);
    if (status == 0)
        status = start(body, buf);
    if (status != 0)
        give_up(body, status);
}

int lieni_body_fetch(struct lieni_body *body, struct lien_conn *conn,
                     const struct lieni_frame *frame, lien_buf *buf)
{
    int rc = lieni_import_first(conn, frame->name); // its release is owed from now on
    body->conn = conn;
    body->token = rc == 0 ? calloc(1, sizeof(*body->token)) : NULL;
    if (!body->token) {
        if (buf)
            lieni_buf_free_locked(buf);
        return rc == 0 ? LIEN_ENOMEM : rc;
    }
    *body->token = (struct lieni_token_data){.kind = LIENI_TOKEN_HELD,
                                             .conn = conn->id,
                                             .name = frame->name,
                                             .total = frame->total,
                                             .sums = frame->sums,
                                             .n_keys = frame->n_keys};
    memcpy(body->token->keys, frame->keys, frame->n_keys * sizeof(frame->keys[0]));
    lien_pool *pool = conn->opts.pool ? conn->opts.pool : conn->ctx->receive_pool;
    if (!buf)
        rc = lieni_pool_alloc_reserved(pool, (size_t)frame->total, &buf);
    if (rc == LIEN_ELIMIT) {
        body->wait.len = (size_t)frame->total;
        body->wait.ready = memory_came;
        lieni_pool_wait_start(pool, &body->wait);
        return 0;
    }
    if (rc == 0)
        rc = start(body, buf);
    if (rc != 0)
        give_up(body, rc);
    return 0;
}

void lieni_body_stop(struct lieni_body *body, int status)
{
    if (!body->token)
        return;
    body->status = status;
    if (body->read) {
        lieni_read_stop(body->read, status);
    } else if (body->wait.pool) {
        lieni_pool_wait_stop(&body->wait);
        give_up(body, status);
    }
}
