// SPDX-License-Identifier: Apache-2.0
//
// The ledger: what is lent to peers, call by call. See state.h and docs/grpc.md, "Ownership". A loan ends by Lien's on_released and by nothing else; here it is only asked for (revoke), and the
// peer is told that a call is over.

#include <stdlib.h>

#include "state.h"

static uint64_t count;

uint64_t loans_left(void)
{
    state_lock();
    uint64_t n = count;
    state_unlock();
    return n;
}

// -- Loans -----------------------------------------------------------------------------------------------------------------------------

static void insert(struct call *call, struct loan *loan)
{
    loan->call = call;
    loan->next = call->loans;
    loan->at = &call->loans;
    if (loan->next)
        loan->next->at = &loan->next;
    call->loans = loan;
    count++;
}

// With the lock. The caller frees it.
static void take_out(struct loan *loan)
{
    struct call *call = loan->call;
    *loan->at = loan->next;
    if (loan->next)
        loan->next->at = loan->at;
    count--;
    call->link->lent -= loan->len;
    call->pins++;
    call_unpin(call); // may have been what it waited for
}

struct loan *loan_begin(struct call *call, uint64_t len)
{
    struct link *link = call->link;
    if (link->lent > 0 && (link->lent > conf.budget || len > conf.budget - link->lent)) {
        stat_add(STAT_large_budget, 1);
        return NULL;
    }
    struct loan *loan = calloc(1, sizeof *loan);
    if (!loan || !link_enter(link)) {
        stat_add(loan ? STAT_large_unlinked : STAT_large_memory, 1);
        free(loan);
        return NULL;
    }
    loan->len = len;
    link->lent += len;
    insert(call, loan);
    return loan;
}

void loan_abandon(struct loan *loan)
{
    state_lock();
    struct link *link = loan->call->link;
    take_out(loan); // `link` is entered, so it stays
    link_leave(link);
    state_unlock();
    free(loan);
}

static void on_released(void *arg, int status)
{
    struct loan *loan = arg;
    (void)status; // quarantined memory is Lien's to keep
    state_lock();
    lien_grant *grant = loan->grant;
    loan->over = true;
    if (grant)
        take_out(loan);
    state_unlock();
    if (!grant)
        return; // loan_grant() is not there yet, and will see it
    lien_grant_close(&grant);
    free(loan);
}

int loan_grant(struct loan *loan, lien_buf **buf, lien_token *token)
{
    struct link *link = loan->call->link;
    lien_grant *grant = NULL;
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.on_released = on_released;
    opts.arg = loan;
    int rc = lien_grant_open(link->conn, buf, 1, &opts, token, &grant);
    lien_buf_free(buf); // put off until the grant has ended
    if (rc != 0) {
        loan_abandon(loan);
        return rc;
    }
    state_lock();
    bool over = loan->over;
    if (over)
        take_out(loan);
    else
        loan->grant = grant;
    link_leave(link);
    state_unlock();
    if (!over)
        return 0;
    lien_grant_close(&grant);
    free(loan);
    return LIEN_ECLOSED;
}

// -- The end of calls ------------------------------------------------------------------------------------------------------------------

void ledger_revoke(struct call *call)
{
    for (struct loan *loan = call->loans; loan; loan = loan->next)
        if (loan->grant && lien_grant_revoke(loan->grant) == 0)
            stat_add(STAT_revoked, 1);
}

void ledger_retract(struct call *call, uint32_t sent)
{
    state_lock();
    if (call->sent == sent + 1 && call->loans && call->loans->grant)
        lien_grant_revoke(call->loans->grant); // the newest is the first
    state_unlock();
}

// -- Telling the peer ------------------------------------------------------------------------------------------------------------------

struct notice {
    struct notice *next;
    struct link *link; // held while it is on its way
    uint64_t number;
};

// The server asked for a call of which we know no number yet. It was begun before the question came: so once no call older than `upto` is without its number, it is over.
struct question {
    struct question *next;
    uint64_t number, upto;
};

static void on_told(void *arg, int status, lien_msg *reply)
{
    struct notice *notice = arg;
    struct link *link = notice->link;
    const void *bytes;
    size_t len;
    bool over = status == 0 && reply && lien_msg_head(reply, &bytes, &len) == 0 && len == 1 &&
                *(const uint8_t *)bytes == 1;
    state_lock();
    struct call *call = over && link->server ? call_by_number(&link->nonce, notice->number, true)
                                             : NULL;
    if (call) {
        call->peer_over = true;
        ledger_revoke(call);
    }
    ledger_pump(link);
    link_put(link);
    state_unlock();
    lien_msg_free(&reply);
    free(notice);
}

void ledger_pump(struct link *link)
{
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.on_done = on_told;
    while (link->notices && link->state == LINK_READY) {
        struct notice *notice = link->notices;
        uint8_t args[OVER_BYTES];
        frame_put_u64(args, notice->number);
        opts.arg = notice;
        int rc = lien_call_start(link->conn, "grpc/over", args, sizeof args, &opts, NULL);
        if (rc == LIEN_EAGAIN)
            return; // on_writable, or the next answer
        link->notices = notice->next;
        if (rc == 0) {
            link_hold(link); // until on_told
            stat_add(STAT_over_sent, 1);
        } else {
            free(notice); // the connection is ending, and the loans with it
        }
    }
}

void ledger_tell(struct link *link, uint64_t number)
{
    struct notice *notice = link->state == LINK_READY ? calloc(1, sizeof *notice) : NULL;
    if (!notice)
        return; // the loans end with the connection
    *notice = (struct notice){.link = link, .number = number};
    struct notice **at = &link->notices;
    while (*at)
        at = &(*at)->next;
    *at = notice;
    ledger_pump(link);
}

bool ledger_asked(struct link *link, uint64_t number)
{
    struct call *call = call_by_number(&link->nonce, number, false);
    if (call) {
        call->asked = !call->ended;
        return call->asked;
    }
    struct question *question = link->unbound ? calloc(1, sizeof *question) : NULL;
    if (!question)
        return false;
    *question = (struct question){.next = link->questions, .number = number, .upto = link->calls};
    link->questions = question;
    return true;
}

void ledger_bound(struct link *link, struct call *call)
{
    struct question **at = &link->questions;
    while (*at) {
        struct question *question = *at;
        bool found = call && question->number == call->number;
        bool over = !link->unbound || link->unbound->id >= question->upto;
        if (!found && !over) {
            at = &question->next;
            continue;
        }
        *at = question->next;
        if (found)
            call->asked = true;
        else
            ledger_tell(link, question->number);
        free(question);
    }
}

void ledger_link_dead(struct link *link)
{
    while (link->notices) {
        struct notice *notice = link->notices;
        link->notices = notice->next;
        free(notice);
    }
    while (link->questions) {
        struct question *question = link->questions;
        link->questions = question->next;
        free(question);
    }
}
