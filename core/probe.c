// SPDX-License-Identifier: Apache-2.0
//
// Validation (design.md 4). The reader asks the owner, on the same connection, whether the call still lives and the grant still holds. An ask gets into `probes_due` when evidence for all of
// its READs was spent, and frames are made from that list alone: so a probe vouches for nothing younger than itself (R14). One frame carries all that is due, and asks for one call share a probe.
// Under the state lock.

#include "core/call.h"
#include "core/conn.h"

// -- Asking --

void lieni_probe_ask(struct lien_conn *conn, struct lieni_ask *ask)
{
    ask->left = false;
    lieni_list_append(&conn->calls.probes_due, &ask->node);
    lieni_conn_kick(conn); // at the end of this pass: one probe for all that completed in it
}

// The probe of this frame for the call, made if there is none.
static struct lieni_probe *probe_for(struct lien_conn *conn, struct lieni_frame *frame,
                                     const struct lieni_ask *ask)
{
    for (uint32_t i = 0; i < frame->n_probes; i++) {
        if (frame->probes[i].call == ask->call)
            return &frame->probes[i];
    }
    if (frame->n_probes == LIENI_PROBES_MAX ||
        conn->calls.n_probing + frame->n_probes == LIENI_PROBES_OUT)
        return NULL;
    struct lieni_probe *p = &frame->probes[frame->n_probes++];
    *p = (struct lieni_probe){.id = conn->calls.next_probe++, .call = ask->call, .name = ask->name};
    return p;
}

static void ask_pump(struct lien_conn *conn)
{
    struct lieni_calls *calls = &conn->calls;
    while (!lieni_list_empty(&calls->probes_due) && calls->n_probing < LIENI_PROBES_OUT &&
           lieni_link_control_room(conn)) {
        struct lieni_frame frame = {.kind = LIENI_FRAME_PROBE};
        struct lieni_node *n;
        while ((n = lieni_list_first(&calls->probes_due))) {
            struct lieni_ask *ask = lieni_container(n, struct lieni_ask, node);
            struct lieni_probe *p = probe_for(conn, &frame, ask);
            if (!p)
                break;
            ask->probe = p->id;
            ask->left = true;
            lieni_list_remove(n);
            lieni_list_append(&calls->probing, n);
        }
        calls->n_probing += frame.n_probes;
        lieni_link_control(conn, &frame); // there is room
    }
}

static void answered(struct lien_conn *conn, const struct lieni_probe *p)
{
    struct lieni_calls *calls = &conn->calls;
    struct lieni_node batch, *n, *next; // who hears of it may take others off their list
    lieni_list_init(&batch);
    for (n = calls->probing.next; n != &calls->probing; n = next) {
        next = n->next;
        if (lieni_container(n, struct lieni_ask, node)->probe != p->id)
            continue;
        lieni_list_remove(n);
        lieni_list_append(&batch, n);
    }
    while ((n = lieni_list_pop(&batch))) {
        struct lieni_ask *ask = lieni_container(n, struct lieni_ask, node);
        ask->answered(ask, p->holds);
    }
}

int lieni_probe_answered(struct lien_conn *conn, const struct lieni_frame *frame)
{
    struct lieni_calls *calls = &conn->calls;
    for (uint32_t i = 0; i < frame->n_probes; i++) {
        // Answers come in the order of the questions: so each question gets one, and an answer is never taken for another's.
        if (calls->n_probing == 0 || frame->probes[i].id != calls->next_probe - calls->n_probing)
            return LIEN_EPROTO;
        calls->n_probing--;
        answered(conn, &frame->probes[i]);
    }
    return 0;
}

// -- Answering --

// From the live call itself, and from nothing else (R13).
static bool holds(struct lien_conn *conn, const struct lieni_probe *p)
{
    const struct lien_call *call = lieni_call_find(conn, p->call);
    return call && call->grant && call->read_name.slot == p->name.slot &&
           call->read_name.gen == p->name.gen;
}

int lieni_probe_arrived(struct lien_conn *conn, const struct lieni_frame *frame, const char **why)
{
    struct lieni_calls *calls = &conn->calls;
    for (uint32_t i = 0; i < frame->n_probes; i++) {
        *why = "more than 256 probes without an answer";
        if (calls->n_answers == LIENI_PROBES_OUT)
            return LIEN_EPROTO;
        uint32_t at = (calls->answer_first + calls->n_answers++) % LIENI_PROBES_OUT;
        calls->answers[at] = frame->probes[i];
    }
    return 0;
}

static void answer_pump(struct lien_conn *conn)
{
    struct lieni_calls *calls = &conn->calls;
    while (calls->n_answers > 0 && lieni_link_control_room(conn)) {
        struct lieni_frame frame = {.kind = LIENI_FRAME_ANSWER};
        while (calls->n_answers > 0 && frame.n_probes < LIENI_PROBES_MAX) {
            const struct lieni_probe *p = &calls->answers[calls->answer_first];
            frame.probes[frame.n_probes++] = (struct lieni_probe){.id = p->id,
                                                                  .holds = holds(conn, p)};
            calls->answer_first = (calls->answer_first + 1) % LIENI_PROBES_OUT;
            calls->n_answers--;
        }
        lieni_link_control(conn, &frame); // there is room
    }
}

void lieni_probe_pump(struct lien_conn *conn)
{
    answer_pump(conn);
    ask_pump(conn);
}
