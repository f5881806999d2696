// SPDX-License-Identifier: Apache-2.0
//
// The table of faults by state. Reads core's own states, for counting only: no verdict about memory rests on them.

#include "cells.h"

#include "core/conn.h"
#include "core/message.h"
#include "core/read.h"
#include "core/request.h"

static const char *const fault_name[FAULTS] = {
    [FAULT_BREAK] = "break",         [FAULT_KILL] = "kill",         [FAULT_VANISH] = "vanish",
    [FAULT_FREEZE] = "freeze",       [FAULT_CLOSE] = "close",       [FAULT_CANCEL] = "cancel",
    [FAULT_REVOKE] = "revoke",       [FAULT_EAGAIN] = "eagain",     [FAULT_EBUSY] = "ebusy",
    [FAULT_WITHHOLD] = "withhold",   [FAULT_SPURIOUS] = "spurious", [FAULT_UNPROVEN] = "unproven",
    [FAULT_CALL_CANCEL] = "ccancel", [FAULT_DEADLINE] = "deadline", [FAULT_DROP] = "drop",
    [FAULT_GOAWAY] = "goaway",       [FAULT_JUMP] = "jump",         [FAULT_LIE] = "lie",
    [FAULT_STALL] = "stall",         [FAULT_LOST] = "lost",         [FAULT_HOLLOW] = "hollow",
    [FAULT_FALSE_SEND] = "fsend",    [FAULT_FALSE_RECV] = "frecv",  [FAULT_GARBAGE] = "garbage",
    [FAULT_MADE_UP] = "madeup",      [FAULT_CONNECT] = "connect",   [FAULT_REGISTER] = "register",
    [FAULT_NOMEM] = "nomem",         [FAULT_EXHAUSTED] = "exhaust", [FAULT_RESTART] = "restart",
};

static const char *const state_name[CELL_STATES] = {
    [CELL_BOOT] = "boot",
    [CELL_FABRIC] = "fabric",
    [CELL_OPEN] = "open",
    [CELL_ENDING] = "ending",
    [CELL_DRAIN] = "drain",
    [CELL_DESTROY] = "destroy",
    [CELL_READ_RUNNING] = "read",
    [CELL_READ_DRAINING] = "rdrain",
    [CELL_GRANT_LIVE] = "grant",
    [CELL_GRANT_ASKED] = "asked",
    [CELL_BODY_SENT] = "body>",
    [CELL_BODY_COMING] = "<body",
    [CELL_CALL_RUNNING] = "call",
    [CELL_CALL_FETCHING] = "fetch",
    [CELL_CALL_ENDED] = "ended",
    [CELL_CALL_READING] = "wread",
    [CELL_CALL_SEALED] = "sealed",
    [CELL_REQUEST_QUEUED] = "queued",
    [CELL_REQUEST_LIVE] = "request",
    [CELL_REQUEST_REPLYING] = "replies",
    [CELL_REQUEST_CANCELLED] = "cancld",
    [CELL_WRITE_OUT] = "write>",
    [CELL_WRITE_GIVEN_UP] = "gaveup",
    [CELL_READ_PROBING] = "probe",
};

// -- What cannot occur -------------------------------------------------------------------------------------------------------------

// Reads, grants and messages exist from OPEN on: with them, the first two states are out for faults that only operations meet.
// A cell that is not listed here can occur.
static const struct impossible {
    enum fault fault;
    enum cell_state state;
    const char *why;
} impossible[] = {
    {FAULT_CANCEL, CELL_BOOT, "a read needs an open connection"},
    {FAULT_CANCEL, CELL_FABRIC, "a read needs an open connection"},
    {FAULT_REVOKE, CELL_BOOT, "a grant needs an open connection"},
    {FAULT_REVOKE, CELL_FABRIC, "a grant needs an open connection"},
    {FAULT_CLOSE, CELL_ENDING,
     "ENDING begins with the application's close; there is no handle left"},
    {FAULT_EAGAIN, CELL_BOOT, "there is no endpoint yet, so no posts"},
    {FAULT_EAGAIN, CELL_FABRIC, "the first receives go with connect or listen, others wait for UP"},
    {FAULT_EAGAIN, CELL_DRAIN, "posts end with the shutdown"},
    {FAULT_EAGAIN, CELL_DESTROY, "posts end with the shutdown"},
    {FAULT_WITHHOLD, CELL_BOOT, "there is no endpoint yet"},
    {FAULT_SPURIOUS, CELL_BOOT, "there is no endpoint yet"},
};

// Happens to what was posted: from OPEN, the first that posts, to the shutdown, with which DRAIN begins.
static bool of_the_link(enum fault fault)
{
    return fault == FAULT_LOST || fault == FAULT_FALSE_SEND || fault == FAULT_GARBAGE;
}

// Happens when the peer takes a READ's request.
static bool of_a_read(enum fault fault)
{
    return fault == FAULT_STALL || fault == FAULT_HOLLOW;
}

static bool of_calls(enum fault fault)
{
    return fault >= FAULT_CALL_CANCEL && fault <= FAULT_GOAWAY;
}

// Decided when an endpoint is destroyed.
static bool of_destruction(enum fault fault)
{
    return fault == FAULT_EBUSY || fault == FAULT_UNPROVEN || fault == FAULT_LIE ||
           fault == FAULT_MADE_UP;
}

// So seldom that CELLS_RARE_SEEDS programs are needed.
static bool rare(enum fault fault, enum cell_state state)
{
    if (fault == FAULT_SPURIOUS &&
        state == CELL_FABRIC) // the entries of connections that never came up
        return true;
    return (fault >= FAULT_LIE && fault <= FAULT_GARBAGE) || fault >= FAULT_MADE_UP;
}

// States that end at the connection's loss at the latest.
static bool ends_with_conn(enum cell_state state)
{
    switch (state) {
    case CELL_CALL_RUNNING:
    case CELL_CALL_FETCHING:
    case CELL_CALL_ENDED:
    case CELL_CALL_READING:
    case CELL_REQUEST_QUEUED:
    case CELL_REQUEST_LIVE:
    case CELL_REQUEST_REPLYING:
    case CELL_WRITE_OUT:
    case CELL_READ_PROBING:
        return true;
    case CELL_BOOT:
    case CELL_FABRIC:
    case CELL_OPEN:
    case CELL_ENDING:
    case CELL_DRAIN:
    case CELL_DESTROY:
    case CELL_READ_RUNNING:
    case CELL_READ_DRAINING:
    case CELL_GRANT_LIVE:
    case CELL_GRANT_ASKED:
    case CELL_BODY_SENT:
    case CELL_BODY_COMING:
    case CELL_CALL_SEALED:
    case CELL_REQUEST_CANCELLED:
    case CELL_WRITE_GIVEN_UP:
    case CELL_STATES:
        return false;
    }
    return false;
}

// What can occur, but so seldom that no number is asked for.
static const struct impossible seldom[] = {
    {FAULT_CONNECT, CELL_DRAIN,
     "only while a process is stopped between its close and the shutdown"},
    {FAULT_STALL, CELL_DESTROY,
     "a READ's request outlives the drain only on its way to a stopped peer"},
    {FAULT_HOLLOW, CELL_DESTROY,
     "a READ's request outlives the drain only on its way to a stopped peer"},
    {FAULT_FALSE_RECV, CELL_FABRIC, "only where a peer's first frame comes before UP was polled"},
    {FAULT_FALSE_RECV, CELL_DESTROY,
     "what is on its way arrives in the drain, but for a stopped process"},
};

static bool is_seldom(enum fault fault, enum cell_state state)
{
    for (size_t i = 0; i < sizeof seldom / sizeof *seldom; i++)
        if (seldom[i].fault == fault && seldom[i].state == state)
            return true;
    return false;
}

static const char *why_not(enum fault fault, enum cell_state state)
{
    if (of_calls(fault) && state <= CELL_DESTROY && state != CELL_OPEN)
        return "counted on open connections only";
    if (fault == FAULT_CONNECT && state > CELL_FABRIC && state != CELL_DRAIN)
        return "it is connected, or does not connect any more";
    if (fault == FAULT_FALSE_RECV && state == CELL_BOOT)
        return "there is no endpoint yet";
    if ((of_the_link(fault) || of_a_read(fault)) && state < CELL_OPEN)
        return "SENDs and READs are posted from OPEN on";
    if (of_the_link(fault) && (state == CELL_DRAIN || state == CELL_DESTROY))
        return "SENDs leave, and entries are lost, until the shutdown, with which DRAIN begins";
    if (of_destruction(fault) && state < CELL_DESTROY)
        return "destruction begins in DESTROY";
    if (of_destruction(fault) && state == CELL_READ_RUNNING)
        return "reads are done at the loss, before DESTROY";
    if (of_destruction(fault) && state == CELL_BODY_COMING)
        return "messages whose bodies are not here are dropped at the loss";
    if (of_destruction(fault) && ends_with_conn(state))
        return "calls end at the loss, before DESTROY";
    if (of_destruction(fault) && state == CELL_WRITE_GIVEN_UP)
        return "from the loss on no answer is awaited: its source is a grant like others";
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++)
        if (impossible[i].fault == fault && impossible[i].state == state)
            return impossible[i].why;
    return NULL;
}

// -- Counting ----------------------------------------------------------------------------------------------------------------------

// False: GONE, which is no state to be hit in.
static bool conn_cell(const struct lien_conn *conn, enum cell_state *cell)
{
    switch (conn->state) {
    case LIENI_CONN_BOOT:
        *cell = CELL_BOOT;
        return true;
    case LIENI_CONN_FABRIC:
        *cell = CELL_FABRIC;
        return true;
    case LIENI_CONN_OPEN:
        *cell = CELL_OPEN;
        return true;
    case LIENI_CONN_ENDING:
        *cell = CELL_ENDING;
        return true;
    case LIENI_CONN_DRAIN:
        *cell = CELL_DRAIN;
        return true;
    case LIENI_CONN_DESTROY:
        *cell = CELL_DESTROY;
        return true;
    case LIENI_CONN_GONE:
        return false;
    }
    return false;
}

static void note_reads(bool *met, struct lien_conn *conn)
{
    for (struct lieni_node *n = conn->reads.next; n != &conn->reads; n = n->next) {
        const struct lien_read *read = lieni_container(n, struct lien_read, node);
        switch (read->state) {
        case LIENI_READ_RUNNING:
            met[CELL_READ_RUNNING] = true;
            break;
        case LIENI_READ_DRAINING:
            met[CELL_READ_DRAINING] = true;
            break;
        case LIENI_READ_PROBING:
            met[CELL_READ_PROBING] = true;
            break;
        case LIENI_READ_CHECKING: // inside one pass: no fault falls into it
        case LIENI_READ_OVER:
            break;
        }
    }
}

static void note_grants(bool *met, struct lien_conn *conn)
{
    struct lieni_node *head = &conn->live_grants;
    for (struct lieni_node *n = head->next; n != head; n = n->next) {
        const struct lien_grant *grant = lieni_container(n, struct lien_grant, node);
        switch (grant->state) {
        case LIENI_GRANT_LIVE:
            met[CELL_GRANT_LIVE] = true;
            break;
        case LIENI_GRANT_ASKED:
            met[CELL_GRANT_ASKED] = true;
            break;
        case LIENI_GRANT_OVER:
        case LIENI_GRANT_LOST:
            break;
        }
    }
}

static void note_messages(bool *met, struct lien_conn *conn)
{
    for (struct lieni_node *n = conn->sends.next; n != &conn->sends; n = n->next)
        if (lieni_container(n, struct lieni_send, node)->grant)
            met[CELL_BODY_SENT] = true;
    for (struct lieni_node *n = conn->inbox.next; n != &conn->inbox; n = n->next)
        if (!lieni_container(n, struct lien_msg, node)->ready)
            met[CELL_BODY_COMING] = true;
}

static void note_calls(bool *met, struct lien_conn *conn)
{
    struct lieni_node *head = &conn->calls.all;
    for (struct lieni_node *n = head->next; n != head; n = n->next) {
        const struct lien_call *call = lieni_container(n, struct lien_call, node);
        switch (call->state) {
        case LIENI_CALL_RUNNING:
            met[CELL_CALL_RUNNING] = true;
            break;
        case LIENI_CALL_FETCHING:
            met[CELL_CALL_FETCHING] = true;
            break;
        case LIENI_CALL_ENDED:
            met[CELL_CALL_ENDED] = true;
            break;
        case LIENI_CALL_OVER:
            break;
        }
        if (!call->space || !lieni_call_write_runs(call))
            continue;
        if (call->space->state == LIENI_TARGET_READING)
            met[CELL_CALL_READING] = true;
        if (call->space->state == LIENI_TARGET_SEALED)
            met[CELL_CALL_SEALED] = true;
    }
}

static void note_requests(bool *met, struct lien_conn *conn)
{
    struct lieni_node *head = &conn->calls.requests;
    for (struct lieni_node *n = head->next; n != head; n = n->next) {
        const struct lien_request *request = lieni_container(n, struct lien_request, node);
        switch (request->state) {
        case LIENI_REQUEST_QUEUED:
            met[CELL_REQUEST_QUEUED] = true;
            break;
        case LIENI_REQUEST_LIVE:
            met[CELL_REQUEST_LIVE] = true;
            break;
        case LIENI_REQUEST_REPLYING:
            met[CELL_REQUEST_REPLYING] = true;
            break;
        case LIENI_REQUEST_CANCELLED:
            met[CELL_REQUEST_CANCELLED] = true;
            break;
        case LIENI_REQUEST_OVER:
            break;
        }
    }
}

static void note_writes(bool *met, struct lien_conn *conn)
{
    struct lieni_node *head = &conn->calls.writes;
    for (struct lieni_node *n = head->next; n != head; n = n->next) {
        const struct lieni_write *write = lieni_container(n, struct lieni_write, node);
        met[write->done ? CELL_WRITE_GIVEN_UP : CELL_WRITE_OUT] = true;
    }
}

#define BIT(state) (1u << (state))
#define ALL_STATES (BIT(CELL_STATES) - 1)

// Those of `wanted`; others may be among them.
static bool states_of(struct lien_conn *conn, bool *met, uint32_t wanted)
{
    enum cell_state state;
    if (!conn_cell(conn, &state))
        return false;
    met[state] = true;
    if (wanted & (BIT(CELL_READ_RUNNING) | BIT(CELL_READ_DRAINING) | BIT(CELL_READ_PROBING)))
        note_reads(met, conn);
    if (wanted & (BIT(CELL_GRANT_LIVE) | BIT(CELL_GRANT_ASKED)))
        note_grants(met, conn);
    if (wanted & (BIT(CELL_BODY_SENT) | BIT(CELL_BODY_COMING)))
        note_messages(met, conn);
    if (wanted & (BIT(CELL_CALL_RUNNING) | BIT(CELL_CALL_FETCHING) | BIT(CELL_CALL_ENDED) |
                  BIT(CELL_CALL_READING) | BIT(CELL_CALL_SEALED)))
        note_calls(met, conn);
    if (wanted & (BIT(CELL_REQUEST_QUEUED) | BIT(CELL_REQUEST_LIVE) | BIT(CELL_REQUEST_REPLYING) |
                  BIT(CELL_REQUEST_CANCELLED)))
        note_requests(met, conn);
    if (wanted & (BIT(CELL_WRITE_OUT) | BIT(CELL_WRITE_GIVEN_UP)))
        note_writes(met, conn);
    return true;
}

void cells_note(struct cells *cells, enum fault fault, struct lien_conn *conn)
{
    bool met[CELL_STATES] = {false};
    if (!states_of(conn, met, ALL_STATES) || (of_calls(fault) && !met[CELL_OPEN]))
        return;
    for (int i = 0; i < CELL_STATES; i++)
        cells->count[fault][i] += met[i];
}

uint32_t cells_met(struct lien_conn *conn, uint32_t wanted)
{
    bool met[CELL_STATES] = {false};
    uint32_t bits = 0;
    if (states_of(conn, met, wanted))
        for (int i = 0; i < CELL_STATES; i++)
            bits |= (uint32_t)met[i] << i;
    return bits & wanted;
}

bool cells_possible(enum fault fault, enum cell_state state)
{
    return !why_not(fault, state);
}

void cells_add(struct cells *cells, const struct cells *more)
{
    for (int f = 0; f < FAULTS; f++)
        for (int s = 0; s < CELL_STATES; s++)
            cells->count[f][s] += more->count[f][s];
}

// What a cell of that row needs.
static uint64_t least_of(enum fault fault, enum cell_state state, uint64_t least, uint64_t seeds)
{
    if (is_seldom(fault, state))
        return 0;
    return !rare(fault, state) || seeds >= CELLS_RARE_SEEDS ? least
                                                            : least * seeds / CELLS_RARE_SEEDS;
}

unsigned cells_print(const struct cells *cells, FILE *out, uint64_t least, uint64_t seeds)
{
    unsigned low = 0;
    fprintf(out, "%-9s", "");
    for (int s = 0; s < CELL_STATES; s++)
        fprintf(out, "%8s", state_name[s]);
    fprintf(out, "\n");
    for (int f = 0; f < FAULTS; f++) {
        fprintf(out, "%-9s", fault_name[f]);
        for (int s = 0; s < CELL_STATES; s++) {
            const char *why = why_not((enum fault)f, (enum cell_state)s);
            if (why && !cells->count[f][s])
                fprintf(out, "%8s", "-");
            else
                fprintf(out, "%8llu", (unsigned long long)cells->count[f][s]);
        }
        fprintf(out, "\n");
    }
    for (int f = 0; f < FAULTS; f++) {
        for (int s = 0; s < CELL_STATES; s++) {
            uint64_t needs = least_of((enum fault)f, (enum cell_state)s, least, seeds);
            const char *why = why_not((enum fault)f, (enum cell_state)s);
            uint64_t n = cells->count[f][s];
            if (!why && n < needs)
                fprintf(out, "lien-sim: %s in state %s happened %llu times, less than %llu\n",
                        fault_name[f], state_name[s], (unsigned long long)n,
                        (unsigned long long)needs);
            if (why && n)
                fprintf(out, "lien-sim: %s in state %s happened, though: %s\n", fault_name[f],
                        state_name[s], why);
            low += why ? n > 0 : n < needs;
        }
    }
    return low;
}
