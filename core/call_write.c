// SPDX-License-Identifier: Apache-2.0
//
// WRITEs of the peer's into write spaces of our calls: the frames are put together, checked (R3), and turned into a READ of ours; its evidence is the answer. A WRITE to a call that has
// ended, or that another one is running into, is refused, and its source is released at once. calls.n_inwrites counts those that were told in full, until their WRITTEN is queued: the source's
// release may leave before it, so grants do not bound them, and a peer that gives no control credit back could add to them without end [R22]. Under the state lock.

#include <stdlib.h>
#include <string.h>

#include "core/call.h"
#include "core/conn.h"
#include "core/read.h"

struct lieni_inwrite {
    struct lien_conn *conn;
    uint64_t id; // of the call
    uint32_t write;
    struct lieni_token_data *source; // with ops until the READ begins: answers that wait are small
    lien_op *ops;
    uint32_t n_ops;
    bool stopped;           // its call ended before its last frame came
    struct lien_call *call; // while the READ runs; a reference
    struct lien_read *read; // a reference
    int status;
    struct lieni_node node; // calls.written, once over
};

// -- Answers --

static void forget_plan(struct lieni_inwrite *w)
{
    free(w->source);
    free(w->ops);
    w->source = NULL;
    w->ops = NULL;
}

// Its WRITTEN is queued, or never will be.
static void answered(struct lien_conn *conn, struct lieni_inwrite *w)
{
    conn->calls.n_inwrites--;
    free(w);
}

static void answer(struct lieni_inwrite *w, int status)
{
    struct lien_conn *conn = w->conn;
    forget_plan(w);
    w->status = status;
    lieni_list_append(&conn->calls.written, &w->node);
    lieni_link_pump(conn);
}

void lieni_call_written_pump(struct lien_conn *conn)
{
    struct lieni_node *n;
    while ((n = lieni_list_first(&conn->calls.written))) {
        struct lieni_inwrite *w = lieni_container(n, struct lieni_inwrite, node);
        if (!lieni_link_control(conn, &(struct lieni_frame){.kind = LIENI_FRAME_WRITTEN,
                                                            .call = w->id,
                                                            .write = w->write,
                                                            .status = w->status}))
            return;
        lieni_list_remove(n);
        answered(conn, w);
    }
}

static void assembly_drop(struct lien_conn *conn)
{
    struct lieni_inwrite *w = conn->calls.assembly;
    if (!w)
        return;
    conn->calls.assembly = NULL;
    if (w->source && lieni_conn_usable(conn) == 0)
        lieni_import_release(conn, w->source->name);
    forget_plan(w);
    free(w);
}

void lieni_call_writes_end(struct lien_conn *conn)
{
    struct lieni_node *n;
    assembly_drop(conn);
    while ((n = lieni_list_pop(&conn->calls.written)))
        answered(conn, lieni_container(n, struct lieni_inwrite, node));
}

// -- The READ --

static void write_over(void *owner, int status)
{
    struct lieni_inwrite *w = owner;
    struct lien_conn *conn = w->conn;
    struct lien_call *call = w->call;
    int released = w->read->released; // of the space, whatever became of the bytes
    lieni_conn_ref(conn);
    lieni_read_unref(w->read);
    w->read = NULL;
    w->call = NULL;
    lieni_call_write_over(call, released);
    lieni_call_unref(call);
    if (lieni_conn_usable(conn) == 0 || conn->state == LIENI_CONN_ENDING)
        answer(w, status);
    else
        answered(conn, w);
    lieni_conn_unref(conn);
}

void lieni_call_write_stop(struct lien_call *call, int status)
{
    if (call->write)
        lieni_read_stop(call->write->read, status);
}

bool lieni_call_write_runs(const struct lien_call *call)
{
    return call->write && call->write->read && call->write->read->space;
}

// Lends the call's space to a READ, or says why not. `go`: the read, to be started.
static int plan(struct lieni_inwrite *w, struct lien_read **go)
{
    struct lien_conn *conn = w->conn;
    struct lien_call *call = lieni_call_find(conn, w->id);
    if (!call)
        return LIEN_ECANCELED;
    if (!call->space)
        return LIEN_ERANGE;
    if (call->space->state != LIENI_TARGET_AVAILABLE)
        return LIEN_EBUSY;
    const lien_read_opts opts = {
        .size = sizeof(opts), .flags = LIEN_RELEASE, .ops = w->ops, .n_ops = w->n_ops};
    int rc = lieni_read_new(conn, w->source, call->space, &opts, go);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < call->space->n; i++)
        lieni_buf_lent_by(call->space->bufs[i], LIENI_LENT_BY_CALL, conn->id, call->id);
    w->read = *go;
    w->read->refs++;
    w->read->over = write_over;
    w->read->owner = w;
    w->call = call;
    call->refs++;
    call->write = w;
    return 0;
}

static void run(struct lieni_inwrite *w)
{
    struct lien_read *read;
    int rc = plan(w, &read);
    if (rc == 0) {
        forget_plan(w);
        lieni_read_go(read);
        return;
    }
    lieni_import_release(w->conn, w->source->name);
    answer(w, rc);
}

// -- Frames --

// The frames that are still on their way are no fault of the peer's, and it awaits an answer.
void lieni_call_assembly_stop(struct lien_conn *conn, uint64_t call)
{
    struct lieni_inwrite *w = conn->calls.assembly;
    if (!w || w->id != call || w->stopped)
        return;
    w->stopped = true;
    if (lieni_conn_usable(conn) == 0)
        lieni_import_release(conn, w->source->name);
    forget_plan(w);
}

static int begin(struct lien_conn *conn, const struct lieni_frame *frame)
{
    assembly_drop(conn);
    struct lieni_inwrite *w = calloc(1, sizeof(*w));
    if (w)
        w->source = calloc(1, sizeof(*w->source));
    if (!w || !w->source) {
        free(w);
        return LIEN_ENOMEM;
    }
    w->conn = conn;
    w->id = frame->call;
    w->write = frame->write;
    *w->source = (struct lieni_token_data){.kind = LIENI_TOKEN_HELD,
                                           .conn = conn->id,
                                           .name = frame->name,
                                           .total = frame->total,
                                           .sums = frame->sums,
                                           .n_keys = frame->n_keys};
    memcpy(w->source->keys, frame->keys, frame->n_keys * sizeof(frame->keys[0]));
    lieni_list_init(&w->node);
    int rc = lieni_import_first(conn, frame->name); // its release is owed from now on
    if (rc != 0) {
        forget_plan(w);
        free(w);
        return rc;
    }
    conn->calls.assembly = w;
    return 0;
}

// It is complete: who sent it awaits an answer. No more of them than it may have. [R22]
static int complete(struct lien_conn *conn, const char **why)
{
    if (conn->calls.n_inwrites >= lieni_writes_max(&conn->calls)) {
        *why = "more WRITEs without an answer than one for each call and 256";
        return LIEN_EPROTO;
    }
    conn->calls.n_inwrites++;
    conn->calls.assembly = NULL;
    return 0;
}

int lieni_call_write_arrived(struct lien_conn *conn, const struct lieni_frame *frame,
                             const char **why)
{
    int rc = frame->first ? begin(conn, frame) : 0;
    if (rc != 0)
        return rc;
    struct lieni_inwrite *w = conn->calls.assembly;
    if (!w || w->id != frame->call || w->write != frame->write ||
        frame->n_ops > LIEN_OPS_MAX - w->n_ops)
        return LIEN_EPROTO;
    if (w->stopped) {
        w->n_ops += frame->n_ops;
        rc = frame->last ? complete(conn, why) : 0;
        if (frame->last && rc == 0)
            answer(w, LIEN_ECANCELED);
        return rc;
    }
    lien_op *ops = realloc(w->ops, (w->n_ops + frame->n_ops) * sizeof(*ops));
    if (!ops)
        return LIEN_ENOMEM;
    w->ops = ops;
    for (uint32_t i = 0; i < frame->n_ops; i++)
        lieni_op_load(frame->ops + i * LIENI_OP_SIZE, &w->ops[w->n_ops++]);
    rc = frame->last ? complete(conn, why) : 0;
    if (frame->last && rc == 0)
        run(w);
    return rc;
}
