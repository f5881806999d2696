// SPDX-License-Identifier: Apache-2.0
//
// The faults that lien-sim chooses, each counted with the states that it meets. Rare states are met by wishes: a fault and a state are drawn, and as soon as a connection is
// in that state the fault happens to it. The draw does not look at what was counted, so that a seed stays one schedule.

#include "model.h"

#include <string.h>

#include "core/call.h"
#include "core/conn.h"
#include "core/read.h"

#define MS UINT64_C(1000000)

// A connection of core's, in whatever state, of a node that runs; by turns a rare state is preferred.
static struct lien_conn *pick_core_conn(struct program *p)
{
    struct app_node *node = &p->nodes[draw(p, p->n_nodes)];
    struct lien_conn *found = NULL;
    uint64_t seen = 0;
    bool rare = one_in(p, 2);
    if (!node_runs(node))
        return NULL;
    struct lieni_node *head = &node->ctx->conns;
    for (struct lieni_node *n = head->next; n != head; n = n->next) {
        struct lien_conn *conn = lieni_container(n, struct lien_conn, node);
        bool fine = conn->state != LIENI_CONN_GONE && (!rare || conn->state != LIENI_CONN_OPEN);
        if (fine && one_in(p, ++seen))
            found = conn;
    }
    return found;
}

// -- Faults ------------------------------------------------------------------------------------------------------------------------

// The fault happens to all connections of other nodes whose peer is `node`.
static void note_peers(struct program *p, enum fault fault, const struct app_node *node)
{
    const char *host = lieni_sim_node_host(p->world, node->index);
    for (unsigned i = 0; i < p->n_nodes; i++) {
        if (i == node->index || !node_runs(&p->nodes[i]))
            continue;
        struct lieni_node *head = &p->nodes[i].ctx->conns;
        for (struct lieni_node *n = head->next; n != head; n = n->next) {
            struct lien_conn *conn = lieni_container(n, struct lien_conn, node);
            if (strcmp(conn->peer_host, host) == 0)
                cells_note(p->cells, fault, conn);
        }
    }
}

static void break_conn(struct program *p, struct lien_conn *conn)
{
    if (!conn || (!conn->ep && !conn->stream))
        return;
    cells_note(p->cells, FAULT_BREAK, conn);
    if (conn->ep)
        lieni_sim_break_ep(conn->ep);
    if (conn->stream && (!conn->ep || one_in(p, 2)))
        lieni_sim_break_stream(conn->stream);
}

// Two are left, so that there are connections; near the end one.
static bool may_kill(const struct program *p)
{
    unsigned alive = 0;
    for (unsigned i = 0; i < p->n_nodes; i++)
        alive += !p->nodes[i].dead;
    return alive > (p->step * 4 > p->steps * 3 ? 1u : 2u);
}

static void kill_node(struct program *p, struct app_node *node, bool silent)
{
    note_peers(p, silent ? FAULT_VANISH : FAULT_KILL, node);
    node->dead = true;
    lieni_sim_kill_node(p->world, node->index, silent);
}

static void freeze_node(struct program *p, struct app_node *node)
{
    note_peers(p, FAULT_FREEZE, node);
    node->frozen = true;
    node->thaw_at = lieni_sim_now(p->world) + MS * (one_in(p, 3) ? draw(p, 1500) : draw(p, 40));
    lieni_sim_freeze_node(p->world, node->index);
}

void faults_hook(void *self, enum lieni_sim_fault fault, void *user)
{
    static const enum fault row[LIENI_SIM_FAULTS] = {
        [LIENI_SIM_EAGAIN] = FAULT_EAGAIN,     [LIENI_SIM_EBUSY] = FAULT_EBUSY,
        [LIENI_SIM_WITHHOLD] = FAULT_WITHHOLD, [LIENI_SIM_SPURIOUS] = FAULT_SPURIOUS,
        [LIENI_SIM_UNPROVEN] = FAULT_UNPROVEN,
    };
    struct program *p = self;
    if (user && fault != LIENI_SIM_REGISTER)
        cells_note(p->cells, row[fault], user);
}

void faults_break_any(struct program *p)
{
    break_conn(p, pick_core_conn(p));
}

// -- What the application does -----------------------------------------------------------------------------------------------------

void faults_close(struct app_conn *c)
{
    if (!c->conn)
        return;
    cells_note(c->p->cells, FAULT_CLOSE, c->conn);
    model_conn_close(c);
}

void faults_cancel(struct app_read *r)
{
    struct program *p = r->op.p;
    cells_note(p->cells, FAULT_CANCEL, r->read->conn);
    if (one_in(p, 2))
        model_cancel(r);
    else
        model_read_close(r);
}

void faults_revoke(struct app_grant *g)
{
    struct program *p = g->op.p;
    cells_note(p->cells, FAULT_REVOKE, g->grant->conn);
    if (one_in(p, 2))
        model_revoke(g);
    else
        model_grant_close(g);
}

void faults_call_cancel(struct app_call *c)
{
    struct program *p = c->op.p;
    if (c->conn->conn)
        cells_note(p->cells, FAULT_CALL_CANCEL, c->conn->conn);
    if (one_in(p, 2))
        model_call_cancel(c);
    else
        model_call_close(c);
}

void faults_deadline(struct app_call *c)
{
    if (c->conn->conn)
        cells_note(c->op.p->cells, FAULT_DEADLINE, c->conn->conn);
}

void faults_drop(struct app_request *r)
{
    if (r->conn->conn)
        cells_note(r->p->cells, FAULT_DROP, r->conn->conn);
    model_request_drop(r);
}

void faults_goaway(struct app_conn *c)
{
    int err = lien_conn_goaway(c->conn);
    say(c->p, "goaway", c->number, err);
    if (err != LIEN_ECLOSED && err != LIEN_EPEERLOST && err != LIEN_EIO && err != LIEN_EPROTO &&
        err != 0)
        program_fail(c->p, "lien_conn_goaway answers %s", lien_errname(err));
    c->goaway = true;
    cells_note(c->p->cells, FAULT_GOAWAY, c->conn);
}

// -- Wishes ------------------------------------------------------------------------------------------------------------------------

void faults_wish(struct program *p)
{
    static const enum fault faults[] = {
        FAULT_BREAK,  FAULT_KILL,        FAULT_KILL,        FAULT_VANISH, FAULT_VANISH,
        FAULT_FREEZE, FAULT_CLOSE,       FAULT_CANCEL,      FAULT_CANCEL, FAULT_CANCEL,
        FAULT_REVOKE, FAULT_CALL_CANCEL, FAULT_CALL_CANCEL, FAULT_DROP,   FAULT_GOAWAY};
    // The rarer a state, the more often it is wished for; OPEN and live grants meet faults without.
    static const enum cell_state states[] = {
        CELL_BOOT,          CELL_BOOT,           CELL_FABRIC,           CELL_FABRIC,
        CELL_ENDING,        CELL_ENDING,         CELL_ENDING,           CELL_ENDING,
        CELL_DRAIN,         CELL_DESTROY,        CELL_DESTROY,          CELL_DESTROY,
        CELL_DESTROY,       CELL_READ_RUNNING,   CELL_READ_DRAINING,    CELL_READ_DRAINING,
        CELL_READ_DRAINING, CELL_GRANT_ASKED,    CELL_GRANT_ASKED,      CELL_GRANT_ASKED,
        CELL_BODY_SENT,     CELL_BODY_COMING,    CELL_BODY_COMING,      CELL_CALL_FETCHING,
        CELL_CALL_FETCHING, CELL_CALL_ENDED,     CELL_CALL_READING,     CELL_CALL_SEALED,
        CELL_CALL_SEALED,   CELL_REQUEST_QUEUED, CELL_REQUEST_REPLYING, CELL_REQUEST_REPLYING,
        CELL_WRITE_OUT,     CELL_WRITE_GIVEN_UP, CELL_WRITE_GIVEN_UP,   CELL_READ_PROBING,
        CELL_READ_PROBING};
    struct wish w = {.active = true, .moments = 300};
    if (p->wish.active)
        return;
    w.fault = faults[draw(p, sizeof faults / sizeof *faults)];
    // A cancel of a read on a connection that ends is rare: the handle must have been kept.
    static const enum cell_state cancels[] = {
        CELL_ENDING,  CELL_ENDING,  CELL_ENDING,        CELL_DESTROY, CELL_DESTROY, CELL_DESTROY,
        CELL_DESTROY, CELL_DESTROY, CELL_READ_DRAINING, CELL_DRAIN,   CELL_DRAIN};
    w.state = states[draw(p, sizeof states / sizeof *states)];
    if (w.fault == FAULT_CANCEL)
        w.state = cancels[draw(p, sizeof cancels / sizeof *cancels)];
    // Nodes are few: kills are kept for what is rare.
    static const enum cell_state kills[] = {
        CELL_BOOT,          CELL_BOOT,          CELL_BOOT,          CELL_FABRIC,
        CELL_FABRIC,        CELL_ENDING,        CELL_ENDING,        CELL_ENDING,
        CELL_DRAIN,         CELL_DRAIN,         CELL_DRAIN,         CELL_DESTROY,
        CELL_READ_DRAINING, CELL_READ_DRAINING, CELL_READ_DRAINING, CELL_READ_DRAINING,
        CELL_GRANT_ASKED,   CELL_GRANT_ASKED};
    bool kill = w.fault == FAULT_KILL || w.fault == FAULT_VANISH;
    if (kill && !one_in(p, 4))
        w.state = kills[draw(p, sizeof kills / sizeof *kills)];
    if (kill && (p->step * 5 < p->steps || !may_kill(p)))
        w.fault = FAULT_FREEZE;
    if (cells_possible(w.fault, w.state))
        p->wish = w;
}

static struct app_node *peer_node(struct program *p, const struct lien_conn *conn)
{
    for (unsigned i = 0; i < p->n_nodes; i++)
        if (strcmp(lieni_sim_node_host(p->world, i), conn->peer_host) == 0)
            return node_runs(&p->nodes[i]) ? &p->nodes[i] : NULL;
    return NULL;
}

// The wished fault happens to the connection or its peer. False: not possible here.
static bool grant_wish(struct program *p, struct lien_conn *conn)
{
    struct app_node *peer = peer_node(p, conn);
    enum fault fault = p->wish.fault;
    if (fault == FAULT_BREAK) {
        break_conn(p, conn);
        return true;
    }
    if (fault == FAULT_FREEZE && peer) {
        freeze_node(p, peer);
        return true;
    }
    if ((fault == FAULT_KILL || fault == FAULT_VANISH) && peer && may_kill(p)) {
        kill_node(p, peer, fault == FAULT_VANISH);
        return true;
    }
    return false;
}

static bool try_conns(struct program *p)
{
    for (unsigned i = 0; i < p->n_nodes; i++) {
        if (!node_runs(&p->nodes[i]))
            continue;
        struct lieni_node *head = &p->nodes[i].ctx->conns;
        for (struct lieni_node *n = head->next; n != head; n = n->next) {
            struct lien_conn *conn = lieni_container(n, struct lien_conn, node);
            if (cells_in(conn, p->wish.state) && grant_wish(p, conn))
                return true;
        }
    }
    return false;
}

static bool try_close(struct program *p)
{
    for (struct app_conn *c = p->conns; c; c = c->next)
        if (c->conn && node_runs(c->node) && cells_in(c->conn, p->wish.state)) {
            faults_close(c);
            return true;
        }
    return false;
}

static bool try_cancel(struct program *p)
{
    for (struct app_read *r = p->reads; r; r = r->next)
        if (r->read && node_runs(r->conn->node) && cells_in(r->read->conn, p->wish.state)) {
            faults_cancel(r);
            return true;
        }
    return false;
}

// Prefers the call itself.
static bool try_call_cancel(struct program *p)
{
    for (struct app_call *c = p->calls; c; c = c->next)
        if (c->call && c->conn->conn && node_runs(c->conn->node) &&
            cells_in(c->call->conn, p->wish.state)) {
            faults_call_cancel(c);
            return true;
        }
    return false;
}

static bool try_drop(struct program *p)
{
    for (struct app_request *r = p->requests; r; r = r->next)
        if (r->request && r->conn->conn && node_runs(r->conn->node) &&
            cells_in(r->conn->conn, p->wish.state)) {
            faults_drop(r);
            return true;
        }
    return false;
}

static bool try_goaway(struct program *p)
{
    for (struct app_conn *c = p->conns; c; c = c->next)
        if (c->conn && !c->goaway && node_runs(c->node) && cells_in(c->conn, p->wish.state)) {
            faults_goaway(c);
            return true;
        }
    return false;
}

static bool try_revoke(struct program *p)
{
    for (struct app_grant *g = p->grants; g; g = g->next)
        if (g->grant && node_runs(g->conn->node) && cells_in(g->grant->conn, p->wish.state)) {
            faults_revoke(g);
            return true;
        }
    return false;
}

void faults_try(struct program *p)
{
    bool met = false;
    if (!p->wish.active || p->failed)
        return;
    if (p->wish.fault == FAULT_CLOSE)
        met = try_close(p);
    else if (p->wish.fault == FAULT_CANCEL)
        met = try_cancel(p);
    else if (p->wish.fault == FAULT_REVOKE)
        met = try_revoke(p);
    else if (p->wish.fault == FAULT_CALL_CANCEL)
        met = try_call_cancel(p);
    else if (p->wish.fault == FAULT_DROP)
        met = try_drop(p);
    else if (p->wish.fault == FAULT_GOAWAY)
        met = try_goaway(p);
    else
        met = try_conns(p);
    if (met || !p->wish.moments--)
        p->wish.active = false;
}
