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
    {FAULT_EBUSY, CELL_BOOT, "there is no endpoint yet"},
    {FAULT_EBUSY, CELL_FABRIC, "destruction begins in DESTROY"},
    {FAULT_EBUSY, CELL_OPEN, "destruction begins in DESTROY"},
    {FAULT_EBUSY, CELL_ENDING, "destruction begins in DESTROY"},
    {FAULT_EBUSY, CELL_DRAIN, "destruction begins in DESTROY"},
    {FAULT_EBUSY, CELL_READ_RUNNING, "reads are done when the connection is lost, before DESTROY"},
    {FAULT_EBUSY, CELL_BODY_COMING, "messages whose bodies are not here are dropped at the loss"},
    {FAULT_WITHHOLD, CELL_BOOT, "there is no endpoint yet"},
    {FAULT_SPURIOUS, CELL_BOOT, "there is no endpoint yet"},
    {FAULT_UNPROVEN, CELL_BOOT, "there is no endpoint yet"},
    {FAULT_UNPROVEN, CELL_FABRIC, "destruction begins in DESTROY"},
    {FAULT_UNPROVEN, CELL_OPEN, "destruction begins in DESTROY"},
    {FAULT_UNPROVEN, CELL_ENDING, "destruction begins in DESTROY"},
    {FAULT_UNPROVEN, CELL_DRAIN, "destruction begins in DESTROY"},
    {FAULT_UNPROVEN, CELL_READ_RUNNING, "reads are done at the loss, before DESTROY"},
    {FAULT_UNPROVEN, CELL_BODY_COMING, "messages without body are dropped at the loss"},
};

static bool of_calls(enum fault fault)
{
    return fault >= FAULT_CALL_CANCEL && fault <= FAULT_GOAWAY;
}

static bool of_one_operation(enum fault fault)
{
    return fault >= FAULT_LIE;
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

static const char *why_not(enum fault fault, enum cell_state state)
{
    if (of_one_operation(fault) && state != (fault == FAULT_LIE ? CELL_DESTROY : CELL_OPEN))
        return "counted where it is at home";
    if (of_calls(fault) && state <= CELL_DESTROY && state != CELL_OPEN)
        return "counted on open connections only";
    if ((fault == FAULT_EBUSY || fault == FAULT_UNPROVEN) && ends_with_conn(state))
        return "calls end at the loss, before DESTROY";
    if ((fault == FAULT_EBUSY || fault == FAULT_UNPROVEN) && state == CELL_WRITE_GIVEN_UP)
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

static bool states_of(struct lien_conn *conn, bool *met)
{
    enum cell_state state;
    if (!conn_cell(conn, &state))
        return false;
    met[state] = true;
    note_reads(met, conn);
    note_grants(met, conn);
    note_messages(met, conn);
    note_calls(met, conn);
    note_requests(met, conn);
    note_writes(met, conn);
    return true;
}

void cells_note(struct cells *cells, enum fault fault, struct lien_conn *conn)
{
    bool met[CELL_STATES] = {false};
    if (!states_of(conn, met) || (of_calls(fault) && !met[CELL_OPEN]))
        return;
    if (of_one_operation(fault)) {
        enum cell_state home = fault == FAULT_LIE ? CELL_DESTROY : CELL_OPEN;
        cells->count[fault][home] += met[home];
        return;
    }
    for (int i = 0; i < CELL_STATES; i++)
        cells->count[fault][i] += met[i];
}

uint32_t cells_met(struct lien_conn *conn)
{
    bool met[CELL_STATES] = {false};
    uint32_t bits = 0;
    if (states_of(conn, met))
        for (int i = 0; i < CELL_STATES; i++)
            bits |= (uint32_t)met[i] << i;
    return bits;
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

unsigned cells_print(const struct cells *cells, FILE *out, uint64_t least)
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
            const char *why = why_not((enum fault)f, (enum cell_state)s);
            uint64_t n = cells->count[f][s];
            if (!why && n < least)
                fprintf(out, "lien-sim: %s in state %s happened %llu times, less than %llu\n",
                        fault_name[f], state_name[s], (unsigned long long)n,
                        (unsigned long long)least);
            if (why && n)
                fprintf(out, "lien-sim: %s in state %s happened, though: %s\n", fault_name[f],
                        state_name[s], why);
            low += why ? n > 0 : n < least;
        }
    }
    return low;
}
