// SPDX-License-Identifier: Apache-2.0
//
// See link.h.

#include "core/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/conn.h"
#include "core/message.h"
#include "core/request.h"

#define SENDS_CONTROL 4u // of them kept for control frames
#define SENDS_REPLY   1u // likewise, from replies
#define HEADERS                                                                                    \
    (LIENI_FRAME_HEADER + LIENI_BODY_HEADER + LIEN_BUFS_MAX * (LIENI_KEY_SIZE + LIENI_SUM_SIZE))

uint32_t lieni_link_head_max(const struct lieni_link *link)
{
    uint32_t frame = link->frame_max < link->peer_frame_max ? link->frame_max
                                                            : link->peer_frame_max;
    return frame > HEADERS ? frame - (uint32_t)HEADERS : 0;
}

// -- Slab --

static int register_slab(struct lien_conn *conn)
{
    struct lieni_region region;
    int rc = lieni_buf_region(conn->link.slab, conn->ops, conn->nic->domain, &region);
    if (rc == 0)
        conn->link.mr = region.mr;
    return rc;
}

static void cut_slab(struct lien_conn *conn, uint8_t *base)
{
    struct lieni_link *link = &conn->link;
    for (uint32_t i = 0; i < link->n_recv; i++) {
        link->recvs[i].conn = conn;
        link->recvs[i].bytes = base + (size_t)i * link->frame_max;
    }
    for (uint32_t i = 0; i < link->n_send; i++) {
        struct lieni_send_slot *slot = &link->sends[i];
        slot->conn = conn;
        slot->bytes = base + (size_t)(link->n_recv + i) * link->frame_max;
        slot->next = link->send_free;
        link->send_free = slot;
        link->n_send_free++;
    }
}

// The receives the endpoint starts with, each with its work request.
static int first_receives(struct lien_conn *conn, struct lieni_recv *recvs)
{
    struct lieni_link *link = &conn->link;
    for (uint32_t i = 0; i < link->n_recv; i++) {
        recvs[i] = (struct lieni_recv){
            .buf = link->recvs[i].bytes, .len = link->frame_max, .mr = link->mr};
        int rc = lieni_wr_take(&conn->wrs, LIENI_WR_RECV, &link->recvs[i], link->frame_max,
                               &recvs[i].context);
        if (rc != 0)
            return rc;
        link->recvs[i].posted = true;
    }
    return 0;
}

int lieni_link_open(struct lien_conn *conn, struct lieni_recv **out)
{
    struct lieni_link *link = &conn->link;
    link->n_recv = link->message_all + link->control_all + conn->calls.max;
    link->n_send = LIENI_SENDS_MAX;
    link->fifo_end = &link->fifo;
    link->recvs = calloc(link->n_recv, sizeof(*link->recvs));
    link->sends = calloc(link->n_send, sizeof(*link->sends));
    struct lieni_recv *recvs = calloc(link->n_recv, sizeof(*recvs));
    size_t bytes = (size_t)(link->n_recv + link->n_send) * link->frame_max;
    int rc = link->recvs && link->sends && recvs ? 0 : LIEN_ENOMEM;
    if (rc == 0)
        rc = lieni_pool_alloc_locked(conn->ctx->slab_pool, bytes, &link->slab);
    if (rc == 0) {
        link->slab_refs = 1;
        rc = register_slab(conn);
    }
    if (rc == 0) {
        cut_slab(conn, lieni_buf_addr(link->slab));
        rc = first_receives(conn, recvs);
    }
    if (rc == 0)
        *out = recvs;
    else
        free(recvs);
    return rc;
}

void lieni_link_slab_unref(const lien_ctx *ctx, struct lieni_link *link)
{
    if (!link->slab || --link->slab_refs > 0)
        return;
    if (ctx->dead) // the memory root went with the ctx, and left what is held
        lien_buf_free(&link->slab);
    else
        lieni_buf_free_locked(link->slab);
    link->slab = NULL;
    free(link->recvs);
    free(link->sends);
    link->recvs = NULL;
    link->sends = NULL;
}

void lieni_link_send_lost(struct lien_conn *conn, struct lieni_send_slot *slot)
{
    if (slot->owner)
        lieni_send_over_wire(slot->owner, conn->status);
    slot->owner = NULL;
}

void lieni_link_close(struct lien_conn *conn, bool lost)
{
    struct lieni_link *link = &conn->link;
    for (struct lieni_send_slot *slot = link->fifo; slot; slot = slot->next) {
        if (slot->owner) // never posted
            lieni_send_over_wire(slot->owner, conn->status);
        slot->owner = NULL;
    }
    link->fifo = NULL;
    if (!link->slab) { // opening failed half-way
        free(link->recvs);
        free(link->sends);
        return;
    }
    if (lost) {
        lieni_buf_take(link->slab);
        lieni_buf_lose(link->slab, conn->nic->domain);
        conn->lost_bytes += lien_buf_len(link->slab);
    }
    lieni_link_slab_unref(conn->ctx, link);
}

// -- Sending --

int lieni_link_message_room(const struct lieni_link *link)
{
    return link->message_left > 0 && link->n_send_free > SENDS_CONTROL ? 0 : LIEN_EAGAIN;
}

static void queue(struct lieni_link *link, struct lieni_send_slot *slot)
{
    slot->next = NULL;
    *link->fifo_end = slot;
    link->fifo_end = &slot->next;
}

size_t lieni_link_frame_room(const struct lieni_link *link)
{
    return link->frame_max < link->peer_frame_max ? link->frame_max : link->peer_frame_max;
}

// Encodes a frame into a free slot (there is one) and queues it.
static int encode(struct lien_conn *conn, const struct lieni_frame *frame, struct lieni_send *owner)
{
    struct lieni_link *link = &conn->link;
    struct lieni_send_slot *slot = link->send_free;
    size_t room = lieni_link_frame_room(link);
    int rc = lieni_frame_encode(frame, slot->bytes, room, &conn->ctx->copied, &slot->len);
    if (rc != 0)
        return rc;
    link->send_free = slot->next;
    link->n_send_free--;
    slot->owner = owner;
    link->queued++;
    queue(link, slot);
    return 0;
}

int lieni_link_message(struct lien_conn *conn, const struct lieni_frame *frame,
                       struct lieni_send *owner)
{
    int rc = lieni_link_message_room(&conn->link);
    if (rc == 0)
        rc = encode(conn, frame, owner);
    if (rc == 0)
        conn->link.message_left--;
    return rc;
}

// Posts one encoded frame; its credits are those owed at this moment.
static int post(struct lien_conn *conn, struct lieni_send_slot *slot)
{
    struct lieni_link *link = &conn->link;
    uint64_t seq;
    int rc = lieni_wr_take(&conn->wrs, LIENI_WR_SEND, slot, slot->len, &seq);
    if (rc != 0)
        return rc;
    uint16_t messages = (uint16_t)(link->message_owed < UINT16_MAX ? link->message_owed
                                                                   : UINT16_MAX);
    uint16_t controls = (uint16_t)(link->control_owed < UINT16_MAX ? link->control_owed
                                                                   : UINT16_MAX);
    lieni_frame_stamp(slot->bytes, messages, controls, link->number_out + 1);
    // The peer may have it before the post returns.
    const uint64_t now = lieni_trace_now(conn->trace);
    rc = conn->ops->post_send(conn->ep, slot->bytes, slot->len, link->mr, seq);
    if (rc != 0) {
        lieni_wr_untake(&conn->wrs, seq);
        return rc;
    }
    lieni_trace_frame(conn->trace, LIENI_TRACE_SENT, now, slot->bytes, slot->len);
    link->number_out++;
    link->posted++;
    link->message_owed -= messages;
    link->control_owed -= controls;
    link->peer_message_left += messages;
    link->peer_control_left += controls;
    return 0;
}

// Posts what waits, in order. False: the provider's queue is full, or the connection broke.
static bool post_waiting(struct lien_conn *conn)
{
    struct lieni_link *link = &conn->link;
    while (link->fifo) {
        struct lieni_send_slot *slot = link->fifo;
        int rc = post(conn, slot);
        if (rc == LIEN_EAGAIN) {
            lieni_liveness_again(conn);
            return false;
        }
        if (rc != 0) {
            lieni_conn_break(conn, rc == LIEN_ESTATE ? LIEN_EPEERLOST : rc, "a send was refused");
            return false;
        }
        lieni_liveness_posted(conn);
        link->fifo = slot->next;
        if (!link->fifo)
            link->fifo_end = &link->fifo;
    }
    return true;
}

// The last credit is spent only by what gives some back: else both sides could spend theirs before either heard of the other, for good.
static bool control_room(const struct lieni_link *link, enum lieni_frame_kind kind)
{
    uint32_t kept = kind == LIENI_FRAME_CREDIT && link->control_owed > 0 ? 0 : 1;
    return link->n_send_free > 0 && link->control_left > kept;
}

static bool send_control(struct lien_conn *conn, const struct lieni_frame *frame)
{
    if (encode(conn, frame, NULL) != 0)
        return false;
    conn->link.control_left--;
    return true;
}

bool lieni_link_control_room(const struct lien_conn *conn)
{
    return control_room(&conn->link, LIENI_FRAME_CANCEL); // any but CREDIT
}

bool lieni_link_control(struct lien_conn *conn, const struct lieni_frame *frame)
{
    return lieni_link_control_room(conn) && send_control(conn, frame);
}

bool lieni_link_reply(struct lien_conn *conn, const struct lieni_frame *frame)
{
    return conn->link.n_send_free > SENDS_REPLY && encode(conn, frame, NULL) == 0;
}

static void names_due(struct lien_conn *conn, enum lieni_frame_kind kind,
                      uint32_t (*take)(struct lien_conn *, struct lieni_name *, uint32_t))
{
    struct lieni_frame frame; // large, and mostly not needed
    frame.kind = kind;
    frame.message_credits = frame.control_credits = 0;
    frame.number = 0;
    while (control_room(&conn->link, kind) &&
           (frame.n_names = take(conn, frame.names, LIENI_NAMES_MAX)) > 0)
        send_control(conn, &frame);
}

static bool credit_due(const struct lieni_link *link)
{
    return link->message_owed * 2 >= link->message_all ||
           link->control_owed * 2 >= link->control_all;
}

static void simple_due(struct lien_conn *conn)
{
    struct lieni_link *link = &conn->link;
    if (link->beat_due && control_room(link, LIENI_FRAME_BEAT)) {
        link->beat_due = false;
        send_control(conn, &(struct lieni_frame){.kind = LIENI_FRAME_BEAT});
    }
    if (link->alive_due && control_room(link, LIENI_FRAME_ALIVE)) {
        link->alive_due = false;
        send_control(conn, &(struct lieni_frame){.kind = LIENI_FRAME_ALIVE});
    }
    if (link->bye_due && !link->bye_sent && !link->fifo && control_room(link, LIENI_FRAME_BYE)) {
        link->bye_sent = true;
        send_control(conn, &(struct lieni_frame){.kind = LIENI_FRAME_BYE});
    }
}

static bool can_send(const struct lien_conn *conn)
{
    return (conn->state == LIENI_CONN_OPEN || conn->state == LIENI_CONN_ENDING) &&
           !conn->link.bye_sent;
}

// Receives that the provider's full queue did not take.
static void repost(struct lien_conn *conn);

void lieni_link_pump(struct lien_conn *conn)
{
    if ((conn->state != LIENI_CONN_OPEN && conn->state != LIENI_CONN_ENDING) || conn->broken != 0)
        return;
    repost(conn);
    if (can_send(conn)) {
        names_due(conn, LIENI_FRAME_RELEASE, lieni_imports_due);
        names_due(conn, LIENI_FRAME_REVOKE, lieni_grants_revokes_due);
        lieni_calls_pump(conn);
        simple_due(conn);
    }
    if (!post_waiting(conn) || !can_send(conn))
        return;
    if (credit_due(&conn->link) && control_room(&conn->link, LIENI_FRAME_CREDIT) &&
        send_control(conn, &(struct lieni_frame){.kind = LIENI_FRAME_CREDIT}))
        post_waiting(conn);
}

bool lieni_link_quiet(const struct lien_conn *conn)
{
    return !conn->link.fifo && lieni_calls_quiet(conn) && !lieni_imports_any_due(conn) &&
           lieni_list_empty(&conn->revokes);
}

// -- Receiving --

static int post_recv(struct lien_conn *conn, struct lieni_recv_slot *slot)
{
    uint64_t seq;
    size_t len = conn->link.frame_max;
    int rc = lieni_wr_take(&conn->wrs, LIENI_WR_RECV, slot, len, &seq);
    if (rc != 0)
        return rc;
    rc = conn->ops->post_recv(conn->ep, slot->bytes, len, conn->link.mr, seq);
    if (rc != 0) {
        lieni_wr_untake(&conn->wrs, seq);
        return rc;
    }
    slot->posted = true;
    return 0;
}

static void repost(struct lien_conn *conn)
{
    struct lieni_link *link = &conn->link;
    if (conn->state != LIENI_CONN_OPEN && conn->state != LIENI_CONN_ENDING)
        return;
    while (link->repost) {
        int rc = post_recv(conn, link->repost);
        if (rc == LIEN_EAGAIN)
            lieni_liveness_again(conn);
        if (rc != 0)
            return; // a broken endpoint says so itself
        link->repost = link->repost->next;
    }
}

static void recv_free(struct lien_conn *conn, struct lieni_recv_slot *slot)
{
    slot->next = conn->link.repost;
    conn->link.repost = slot;
}

void lieni_link_reply_freed(struct lien_conn *conn, struct lieni_recv_slot *slot)
{
    recv_free(conn, slot);
    repost(conn);
}

void lieni_link_message_freed(struct lien_conn *conn, struct lieni_recv_slot *slot)
{
    recv_free(conn, slot);
    repost(conn);
    conn->link.message_owed++;
    lieni_link_pump(conn);
}

// A control frame's payload. 0, or why the connection must end.
static int control(struct lien_conn *conn, const struct lieni_frame *frame, const char **why)
{
    int rc = 0;
    *why = "a release, revoke, cancel, write or answer of what is unknown";
    switch (frame->kind) {
    case LIENI_FRAME_RELEASE:
        for (uint32_t i = 0; rc == 0 && i < frame->n_names; i++)
            rc = lieni_grant_released(conn, frame->names[i]);
        break;
    case LIENI_FRAME_REVOKE:
        for (uint32_t i = 0; rc == 0 && i < frame->n_names; i++)
            rc = lieni_import_revoked(conn, frame->names[i]);
        break;
    case LIENI_FRAME_BYE:
        rc = LIEN_ECLOSED;
        break;
    case LIENI_FRAME_BEAT:
        conn->link.alive_due = true; // sent by the pump that follows every frame
        lieni_liveness_was_asked(conn);
        break;
    case LIENI_FRAME_CANCEL:
        rc = lieni_request_cancel_arrived(conn, frame->call);
        break;
    case LIENI_FRAME_PROBE:
        rc = lieni_probe_arrived(conn, frame, why);
        break;
    case LIENI_FRAME_ANSWER:
        rc = lieni_probe_answered(conn, frame);
        break;
    case LIENI_FRAME_WRITE:
        rc = lieni_call_write_arrived(conn, frame, why);
        break;
    case LIENI_FRAME_WRITTEN:
        rc = lieni_request_written(conn, frame);
        break;
    case LIENI_FRAME_GOAWAY:
        rc = lieni_calls_goaway(conn);
        break;
    case LIENI_FRAME_HEARD:
        rc = lieni_calls_heard(conn);
        break;
    case LIENI_FRAME_CALL:
    case LIENI_FRAME_REPLY:
    case LIENI_FRAME_MSG:
    case LIENI_FRAME_CREDIT:
    case LIENI_FRAME_ALIVE:
        break;
    }
    return rc;
}

// MSG and CALL.
static bool takes_message_credit(const struct lieni_frame *frame)
{
    return frame->kind == LIENI_FRAME_MSG || frame->kind == LIENI_FRAME_CALL;
}

// Counts a frame against the peer's credits (a REPLY: against its call, later) and takes those it gives back.
static int account(struct lien_conn *conn, const struct lieni_frame *frame, const char **why)
{
    struct lieni_link *link = &conn->link;
    uint32_t reserved = 1;
    uint32_t *left = frame->kind == LIENI_FRAME_REPLY ? &reserved
                     : takes_message_credit(frame)    ? &link->peer_message_left
                                                      : &link->peer_control_left;
    *why = "a frame without credit";
    if (*left == 0)
        return LIEN_EPROTO;
    (*left)--;
    *why = "a frame out of order";
    if (frame->number != link->number_in + 1)
        return LIEN_EPROTO;
    link->number_in++;
    *why = "more credits given back than were spent";
    if (frame->message_credits > link->message_spent_max - link->message_left ||
        frame->control_credits > link->control_spent_max - link->control_left)
        return LIEN_EPROTO;
    link->message_left += frame->message_credits;
    link->control_left += frame->control_credits;
    return 0;
}

static int frame_in(struct lien_conn *conn, struct lieni_recv_slot *slot, size_t len,
                    const char **why)
{
    struct lieni_link *link = &conn->link;
    struct lieni_frame frame;
    const struct lieni_wire_limits limits = {.frame_max = link->frame_max,
                                             .message_max = conn->body_max,
                                             .grants_max = conn->imports.max,
                                             .own_grants_max = conn->grants.max,
                                             .calls_max = conn->calls.max,
                                             .side = conn->calls.side};
    lieni_trace_frame(conn->trace, LIENI_TRACE_RECEIVED, 0, slot->bytes, len);
    int rc = lieni_frame_decode(slot->bytes, len, &limits, &frame, why);
    if (rc == 0)
        rc = account(conn, &frame, why);
    if (rc != 0)
        return rc;
    if (frame.kind == LIENI_FRAME_MSG) {
        rc = lieni_message_arrived(conn, slot, &frame);
        *why = rc == LIEN_ESTALE ? "a message that names no live grant"
               : rc == LIEN_ECHECKSUM
                   ? "a message whose body has no checksum, which option checksum demands"
                   : "a message that cannot be taken";
        return rc == LIEN_ESTALE ? LIEN_EPROTO : rc;
    }
    if (frame.kind == LIENI_FRAME_CALL) {
        *why = "a call whose id or grant is not the next one";
        return lieni_request_arrived(conn, slot, &frame);
    }
    if (frame.kind == LIENI_FRAME_REPLY) {
        *why = "a reply to no call";
        return lieni_call_replied(conn, slot, &frame);
    }
    rc = control(conn, &frame, why);
    link->control_owed++;
    recv_free(conn, slot);
    return rc;
}

// The endpoint gave an operation back with an error: nothing more will pass. After our own farewell that is the peer's answer.
static void broken(struct lien_conn *conn, const struct lieni_evidence *ev, const char *what)
{
    char text[96];
    snprintf(text, sizeof(text), "%s, provider's code %d", what, ev->provider_error);
    if (conn->state == LIENI_CONN_ENDING)
        lieni_conn_lose(conn, LIEN_ECLOSED, NULL);
    else
        lieni_conn_lose(conn, ev->status == LIEN_EPROTO ? LIEN_EPROTO : LIEN_EPEERLOST, text);
}

static void received(struct lien_conn *conn, struct lieni_evidence *ev)
{
    struct lieni_recv_slot *slot = lieni_evidence_spend(ev, conn->id, LIENI_WR_RECV);
    slot->posted = false;
    if (conn->state != LIENI_CONN_OPEN && conn->state != LIENI_CONN_ENDING)
        return;
    if (ev->status != 0) {
        broken(conn, ev, "a receive failed");
        return;
    }
    lieni_liveness_heard(conn);
    const char *why = "";
    int rc = frame_in(conn, slot, ev->len, &why);
    if (rc == LIEN_EPROTO)
        conn->ctx->stats.protocol_errors++;
    if (rc != 0) {
        lieni_conn_lose(conn, rc, rc == LIEN_ECLOSED ? NULL : why);
        return;
    }
    lieni_link_pump(conn);
    lieni_conn_writable(conn);
    if (conn->state == LIENI_CONN_ENDING)
        lieni_conn_ending_step(conn);
}

static void sent(struct lien_conn *conn, struct lieni_evidence *ev)
{
    struct lieni_link *link = &conn->link;
    struct lieni_send_slot *slot = lieni_evidence_spend(ev, conn->id, LIENI_WR_SEND);
    struct lieni_send *owner = slot->owner;
    slot->owner = NULL;
    slot->next = link->send_free;
    link->send_free = slot;
    link->n_send_free++;
    if (owner)
        lieni_send_over_wire(owner, lieni_conn_op_status(conn, ev->status));
    if (ev->status != 0) {
        broken(conn, ev, "a send failed");
        return;
    }
    lieni_link_pump(conn);
    lieni_conn_writable(conn);
    if (conn->state == LIENI_CONN_ENDING)
        lieni_conn_ending_step(conn);
}

void lieni_link_on_evidence(struct lien_conn *conn, struct lieni_evidence *ev)
{
    if (ev->kind == LIENI_WR_RECV)
        received(conn, ev);
    else
        sent(conn, ev);
}
