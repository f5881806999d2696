// SPDX-License-Identifier: Apache-2.0
//
// The faults that lien-sim chooses, each counted with the states that it meets. Rare states are met by wishes: a fault and a state are drawn, and as soon as a connection is
// in that state the fault happens to it. The draw does not look at what was counted, so that a seed stays one schedule.

#include "model.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/call.h"
#include "core/conn.h"
#include "core/nic.h"
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

static void say_fault(struct program *p, const char *what, const char *host)
{
    if (p->trace)
        printf("%12llu fault  %-22s %s\n", (unsigned long long)lieni_sim_now(p->world), what, host);
}

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

// ... to all connections of `node`.
static void note_node(struct program *p, enum fault fault, struct app_node *node)
{
    if (!node->ctx)
        return;
    struct lieni_node *head = &node->ctx->conns;
    for (struct lieni_node *n = head->next; n != head; n = n->next)
        cells_note(p->cells, fault, lieni_container(n, struct lien_conn, node));
}

// A registration in `domain` was refused.
static void note_domain(struct program *p, const struct lieni_domain *domain)
{
    for (unsigned i = 0; i < p->n_nodes; i++) {
        if (!p->nodes[i].ctx)
            continue;
        struct lieni_node *head = &p->nodes[i].ctx->conns;
        for (struct lieni_node *n = head->next; n != head; n = n->next) {
            struct lien_conn *conn = lieni_container(n, struct lien_conn, node);
            if (conn->nic && conn->nic->domain == domain)
                cells_note(p->cells, FAULT_REGISTER, conn);
        }
    }
}

static void break_conn(struct program *p, struct lien_conn *conn)
{
    if (!conn || (!conn->ep && !conn->stream))
        return;
    cells_note(p->cells, FAULT_BREAK, conn);
    say_fault(p, "break", conn->peer_host);
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
    say_fault(p, silent ? "vanishes" : "is killed", lieni_sim_node_host(p->world, node->index));
    node->dead = true;
    lieni_sim_kill_node(p->world, node->index, silent);
    if (one_in(p, 8)) // it is back while its peers still have the connections
        program_restart(p, node);
}

static void freeze_node(struct program *p, struct app_node *node)
{
    note_peers(p, FAULT_FREEZE, node);
    say_fault(p, "freezes", lieni_sim_node_host(p->world, node->index));
    node->frozen = true;
    node->thaw_at = lieni_sim_now(p->world) + MS * (one_in(p, 3) ? draw(p, 1500) : draw(p, 40));
    lieni_sim_freeze_node(p->world, node->index);
}

void faults_hook(void *self, enum lieni_sim_fault fault, void *user)
{
    static const enum fault row[LIENI_SIM_FAULTS] = {
        [LIENI_SIM_EAGAIN] = FAULT_EAGAIN,         [LIENI_SIM_EBUSY] = FAULT_EBUSY,
        [LIENI_SIM_WITHHOLD] = FAULT_WITHHOLD,     [LIENI_SIM_SPURIOUS] = FAULT_SPURIOUS,
        [LIENI_SIM_UNPROVEN] = FAULT_UNPROVEN,     [LIENI_SIM_LIE] = FAULT_LIE,
        [LIENI_SIM_STALL] = FAULT_STALL,           [LIENI_SIM_LOST] = FAULT_LOST,
        [LIENI_SIM_HOLLOW] = FAULT_HOLLOW,         [LIENI_SIM_FALSE_SEND] = FAULT_FALSE_SEND,
        [LIENI_SIM_FALSE_RECV] = FAULT_FALSE_RECV, [LIENI_SIM_GARBAGE] = FAULT_GARBAGE,
        [LIENI_SIM_MADE_UP] = FAULT_MADE_UP,       [LIENI_SIM_CONNECT] = FAULT_CONNECT,
    };
    struct program *p = self;
    if (user && fault == LIENI_SIM_REGISTER)
        note_domain(p, user);
    else if (user)
        cells_note(p->cells, row[fault], user);
}

void faults_nomem(void *self)
{
    struct program *p = self;
    if (p->actor)
        note_node(p, FAULT_NOMEM, p->actor);
}

void faults_exhausted(struct app_node *node, struct app_conn *c)
{
    if (!c)
        note_node(node->p, FAULT_EXHAUSTED, node);
    else if (c->conn)
        cells_note(c->p->cells, FAULT_EXHAUSTED, c->conn);
}

void faults_restart(struct program *p, const struct app_node *dead)
{
    note_peers(p, FAULT_RESTART, dead);
    say_fault(p, "is back", lieni_sim_node_host(p->world, dead->index));
}

void faults_jump(struct program *p, struct app_node *node)
{
    uint64_t ns = MS * (one_in(p, 2) ? draw(p, 300) : draw(p, 5000));
    note_node(p, FAULT_JUMP, node);
    say_fault(p, "clock jumps", lieni_sim_node_host(p->world, node->index));
    p->jumped = true;
    lieni_sim_jump_clock(p->world, node->index, ns);
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
    check_answer(c->p, "lien_conn_goaway", err, 0);
    c->goaway = true;
    cells_note(c->p->cells, FAULT_GOAWAY, c->conn);
}

bool faults_hoard(struct program *p, struct app_node *node)
{
    static const size_t lens[] = {65536, 4096, 64};
    if (p->n_hoard)
        return false;
    p->hoard_moments = (unsigned)draw(p, 60);
    for (unsigned i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        lien_buf *buf;
        int err = 0;
        while (p->n_hoard < HOARD && !(err = lien_pool_alloc(node->pool, lens[i], &buf)))
            p->hoard[p->n_hoard++].buf = buf;
        if (err)
            check_answer(p, "lien_pool_alloc", err, MAY_LIMIT);
        if (err == LIEN_ELIMIT && i == 0)
            faults_exhausted(node, NULL);
    }
    return true;
}

void faults_hoard_end(struct program *p)
{
    while (p->n_hoard)
        lien_buf_free(&p->hoard[--p->n_hoard].buf);
}

// -- Wishes ------------------------------------------------------------------------------------------------------------------------

// The rarer a state, the more often it is wished for; OPEN and live grants meet faults without.
static const uint8_t rarity[CELL_STATES] = {
    [CELL_BOOT] = 2,
    [CELL_FABRIC] = 4,
    [CELL_ENDING] = 7,
    [CELL_DRAIN] = 2,
    [CELL_DESTROY] = 7,
    [CELL_READ_RUNNING] = 1,
    [CELL_READ_DRAINING] = 3,
    [CELL_GRANT_ASKED] = 2,
    [CELL_BODY_SENT] = 2,
    [CELL_BODY_COMING] = 5,
    [CELL_CALL_FETCHING] = 10,
    [CELL_CALL_ENDED] = 1,
    [CELL_CALL_READING] = 4,
    [CELL_CALL_SEALED] = 12,
    [CELL_REQUEST_QUEUED] = 3,
    [CELL_REQUEST_REPLYING] = 7,
    [CELL_REQUEST_CANCELLED] = 1,
    [CELL_WRITE_OUT] = 3,
    [CELL_WRITE_GIVEN_UP] = 9,
    [CELL_READ_PROBING] = 12,
};

static enum cell_state draw_state(struct program *p)
{
    unsigned sum = 0;
    for (int i = 0; i < CELL_STATES; i++)
        sum += rarity[i];
    uint64_t at = draw(p, sum);
    int i = 0;
    while (at >= rarity[i])
        at -= rarity[i++];
    return (enum cell_state)i;
}

// A state that this fault meets more rarely than others do. The handle of a read or a grant must have been kept; a node dies once.
static enum cell_state rare_meeting(struct program *p, enum fault fault)
{
    static const enum cell_state cancels[] = {CELL_ENDING, CELL_DESTROY, CELL_DESTROY,
                                              CELL_CALL_READING};
    static const enum cell_state deaths[] = {CELL_BOOT, CELL_ENDING, CELL_CALL_READING};
    if (fault == FAULT_CANCEL)
        return cancels[draw(p, sizeof cancels / sizeof *cancels)];
    if (fault == FAULT_REVOKE)
        return CELL_ENDING;
    if ((fault == FAULT_KILL || fault == FAULT_VANISH) && one_in(p, 3))
        return deaths[draw(p, sizeof deaths / sizeof *deaths)];
    return draw_state(p);
}

static struct wish *free_wish(struct wish *first, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (!first[i].active)
            return &first[i];
    return NULL;
}

static const struct lie { // what can be wished for where it happens by chance as well
    enum fault fault;
    enum lieni_sim_fault sim;
    size_t offset;
} lies[] = {
#define LIE(FAULT, p)                                                                              \
    {                                                                                              \
        FAULT_##FAULT, LIENI_SIM_##FAULT, offsetof(struct lieni_sim_config, p)                     \
    }
    LIE(STALL, p_stall),           LIE(LOST, p_lost),
    LIE(HOLLOW, p_hollow),         LIE(FALSE_SEND, p_false_send),
    LIE(FALSE_RECV, p_false_recv), LIE(GARBAGE, p_garbage),
};
#define N_LIES (sizeof lies / sizeof lies[0])

static void wish_for_lie(struct program *p)
{
    const struct lieni_sim_config *config = lieni_sim_world_config(p->world);
    struct wish *w = free_wish(p->wishes + WISHES, LIES);
    enum fault on[N_LIES + 2];
    unsigned n = 0;
    for (size_t i = 0; i < N_LIES; i++) {
        uint32_t chance;
        memcpy(&chance, (const char *)config + lies[i].offset, sizeof chance);
        if (chance)
            on[n++] = lies[i].fault;
    }
    if (p->small_pools)
        on[n++] = FAULT_EXHAUSTED;
    if (config->p_register_fail)
        on[n++] = FAULT_REGISTER;
    if (!w || !n)
        return;
    static const enum cell_state rarest[] = {CELL_ENDING,         CELL_CALL_FETCHING,
                                             CELL_CALL_READING,   CELL_CALL_SEALED,
                                             CELL_WRITE_GIVEN_UP, CELL_READ_PROBING};
    struct wish new = {.active = true, .moments = 200, .fault = on[draw(p, n)]};
    new.state = one_in(p, 2) ? rarest[draw(p, sizeof rarest / sizeof *rarest)] : draw_state(p);
    if (cells_possible(new.fault, new.state))
        *w = new;
}

// Something of the connection's that is next.
static bool arm(struct lien_conn *conn, enum fault fault)
{
    for (size_t i = 0; i < N_LIES; i++)
        if (lies[i].fault == fault && conn->ep)
            lieni_sim_arm_ep(conn->ep, lies[i].sim);
    return conn->ep != NULL;
}

void faults_wish(struct program *p)
{
    static const enum fault faults[] = {
        FAULT_BREAK,  FAULT_BREAK,  FAULT_KILL,        FAULT_KILL,        FAULT_KILL,
        FAULT_VANISH, FAULT_VANISH, FAULT_VANISH,      FAULT_VANISH,      FAULT_FREEZE,
        FAULT_CLOSE,  FAULT_CLOSE,  FAULT_CANCEL,      FAULT_CANCEL,      FAULT_CANCEL,
        FAULT_CANCEL, FAULT_CANCEL, FAULT_CANCEL,      FAULT_REVOKE,      FAULT_REVOKE,
        FAULT_REVOKE, FAULT_DROP,   FAULT_DROP,        FAULT_DROP,        FAULT_DROP,
        FAULT_GOAWAY, FAULT_GOAWAY, FAULT_CALL_CANCEL, FAULT_CALL_CANCEL, FAULT_JUMP,
        FAULT_JUMP};
    for (unsigned i = 0; i < 4; i++)
        wish_for_lie(p);
    struct wish *w = free_wish(p->wishes, WISHES);
    if (!w)
        return;
    struct wish new = {.active = true, .moments = 1000};
    new.fault = faults[draw(p, sizeof faults / sizeof *faults)];
    new.state = one_in(p, 4) ? rare_meeting(p, new.fault) : draw_state(p);
    bool kill = new.fault == FAULT_KILL || new.fault == FAULT_VANISH;
    if (kill && (p->step * 5 < p->steps || !may_kill(p)))
        new.fault = FAULT_FREEZE;
    if (cells_possible(new.fault, new.state))
        *w = new;
}

static struct app_node *peer_node(struct program *p, const struct lien_conn *conn)
{
    for (unsigned i = 0; i < p->n_nodes; i++)
        if (strcmp(lieni_sim_node_host(p->world, i), conn->peer_host) == 0 &&
            node_runs(&p->nodes[i]))
            return &p->nodes[i];
    return NULL;
}

static struct app_node *own_node(struct program *p, const struct lien_conn *conn)
{
    unsigned i = 0;
    while (p->nodes[i].ctx != conn->ctx)
        i++;
    return &p->nodes[i];
}

static struct app_conn *conn_of(struct program *p, const struct lien_conn *conn)
{
    for (struct app_conn *c = p->conns; c; c = c->next)
        if (c->conn == conn)
            return c;
    return NULL;
}

static bool try_close(struct program *p, struct lien_conn *conn)
{
    struct app_conn *c = conn_of(p, conn);
    bool early = conn->state < LIENI_CONN_OPEN;
    if (!c)
        return false;
    faults_close(c);
    // The time to drain passes before the node does the first thing for it: the endpoint is shut down in DESTROY.
    if (early && one_in(p, 3))
        freeze_node(p, c->node);
    else if (early && one_in(p, 3))
        faults_jump(p, c->node);
    return true;
}

static bool try_goaway(struct program *p, struct lien_conn *conn)
{
    struct app_conn *c = conn_of(p, conn);
    if (!c || c->goaway)
        return false;
    faults_goaway(c);
    return true;
}

static bool try_cancel(struct program *p, struct lien_conn *conn)
{
    for (struct app_read *r = p->reads; r; r = r->next)
        if (r->read && r->read->conn == conn) {
            faults_cancel(r);
            return true;
        }
    return false;
}

static bool try_call_cancel(struct program *p, struct lien_conn *conn)
{
    for (struct app_call *c = p->calls; c; c = c->next)
        if (c->call && c->call->conn == conn) {
            faults_call_cancel(c);
            return true;
        }
    return false;
}

static bool try_drop(struct program *p, struct lien_conn *conn)
{
    for (struct app_request *r = p->requests; r; r = r->next)
        if (r->request && r->conn->conn == conn) {
            faults_drop(r);
            return true;
        }
    return false;
}

// Another connection of the same domain grants memory that is new, so that it has to be registered there.
static bool try_register(struct program *p, struct lien_conn *conn)
{
    struct app_conn *c = p->conns;
    while (c && !(model_conn_usable(c) && node_runs(c->node) && c->conn->nic && conn->nic &&
                  c->conn->nic->domain == conn->nic->domain))
        c = c->next;
    if (!c)
        return false;
    struct lieni_sim_config *config = lieni_sim_world_config(p->world);
    uint32_t before = config->p_register_fail;
    config->p_register_fail = 1000000;
    model_grant_new(c);
    config->p_register_fail = before;
    return true;
}

static bool try_revoke(struct program *p, struct lien_conn *conn)
{
    for (struct app_grant *g = p->grants; g; g = g->next)
        if (g->grant && g->grant->conn == conn) {
            faults_revoke(g);
            return true;
        }
    return false;
}

// The wished fault happens to the connection or its peer. False: not possible here.
static bool grant_wish(struct program *p, const struct wish *w, struct lien_conn *conn)
{
    struct app_node *peer = peer_node(p, conn);
    switch (w->fault) {
    case FAULT_BREAK:
        break_conn(p, conn);
        return true;
    case FAULT_FREEZE:
        if (peer)
            freeze_node(p, peer);
        return peer != NULL;
    case FAULT_KILL:
    case FAULT_VANISH:
        if (!peer || !may_kill(p))
            return false;
        kill_node(p, peer, w->fault == FAULT_VANISH);
        return true;
    case FAULT_CLOSE:
        return try_close(p, conn);
    case FAULT_CANCEL:
        return try_cancel(p, conn);
    case FAULT_REVOKE:
        return try_revoke(p, conn);
    case FAULT_CALL_CANCEL:
        return try_call_cancel(p, conn);
    case FAULT_DROP:
        return try_drop(p, conn);
    case FAULT_GOAWAY:
        return try_goaway(p, conn);
    case FAULT_JUMP:
        faults_jump(p, own_node(p, conn));
        return true;
    case FAULT_STALL:
    case FAULT_LOST:
    case FAULT_HOLLOW:
    case FAULT_FALSE_SEND:
    case FAULT_FALSE_RECV:
    case FAULT_GARBAGE:
        return arm(conn, w->fault);
    case FAULT_EXHAUSTED:
        return faults_hoard(p, own_node(p, conn));
    case FAULT_REGISTER:
        return try_register(p, conn);
    case FAULT_EAGAIN:
    case FAULT_EBUSY:
    case FAULT_WITHHOLD:
    case FAULT_SPURIOUS:
    case FAULT_UNPROVEN:
    case FAULT_DEADLINE:
    case FAULT_LIE:
    case FAULT_MADE_UP:
    case FAULT_CONNECT:
    case FAULT_NOMEM:
    case FAULT_RESTART:
    case FAULTS:
        break;
    }
    return false;
}

static bool grant_any(struct program *p, struct lien_conn *conn, uint32_t wished)
{
    uint32_t met = cells_met(conn, wished);
    if (!met)
        return false;
    for (unsigned i = 0; i < WISHES + LIES; i++) {
        struct wish *w = &p->wishes[i];
        if (!w->active || !(met >> w->state & 1) || !grant_wish(p, w, conn))
            continue;
        w->active = false;
        return true;
    }
    return false;
}

void faults_ambush(struct program *p, struct app_call *c)
{
    if (p->ambush || !c->call || !one_in(p, 4))
        return;
    p->ambush = c;
    p->ambush_in = (unsigned)draw(p, 30);
}

static void spring(struct program *p)
{
    struct app_call *c = p->ambush;
    if (!c || p->ambush_in--)
        return;
    p->ambush = NULL;
    if (c->call && !c->op.done && node_runs(c->conn->node))
        faults_call_cancel(c);
}

void faults_try(struct program *p)
{
    if (p->failed || p->stopping)
        return;
    spring(p);
    if (p->n_hoard && !p->hoard_moments--)
        faults_hoard_end(p);
    uint32_t wished = 0; // states
    for (unsigned i = 0; i < WISHES + LIES; i++) {
        struct wish *w = &p->wishes[i];
        if (w->active && !w->moments--)
            w->active = false;
        wished |= (uint32_t)w->active << w->state;
    }
    if (!wished)
        return;
    for (unsigned i = 0; i < p->n_nodes; i++) {
        if (!node_runs(&p->nodes[i]))
            continue;
        struct lieni_node *head = &p->nodes[i].ctx->conns;
        for (struct lieni_node *n = head->next; n != head; n = n->next)
            if (grant_any(p, lieni_container(n, struct lien_conn, node), wished))
                return; // the list may have changed
    }
}
