// SPDX-License-Identifier: Apache-2.0
//
// Records of calls: see state.h. Two tables, by the call's handle and by its name over Lien (nonce, number). A call without a link and without an offer to wait for has no record.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define BUCKETS 4096u

static struct call *by_call[BUCKETS], *by_number[BUCKETS];
static uint64_t count;

static struct call **handle_bucket(const grpc_call *call)
{
    uintptr_t bits = (uintptr_t)call >> 4;
    return &by_call[(bits ^ bits >> 12) % BUCKETS];
}

static struct call **number_bucket(const struct nonce *nonce, uint64_t number)
{
    uint64_t bits;
    memcpy(&bits, nonce->bytes, sizeof bits);
    return &by_number[(bits ^ number) % BUCKETS];
}

static struct call *find(const grpc_call *handle)
{
    struct call *call = *handle_bucket(handle);
    while (call && call->call != handle)
        call = call->by_call;
    return call;
}

struct call *call_by_number(const struct nonce *nonce, uint64_t number, bool server)
{
    struct call *call = *number_bucket(nonce, number);
    while (call && (call->number != number || call->server != server ||
                    memcmp(&call->nonce, nonce, sizeof *nonce) != 0))
        call = call->by_number;
    return call;
}

static void insert(struct call *call)
{
    struct call **bucket = handle_bucket(call->call);
    call->by_call = *bucket;
    *bucket = call;
    count++;
}

static void insert_number(struct call *call, uint64_t number)
{
    struct call **bucket = number_bucket(&call->nonce, number);
    call->number = number;
    call->bound = true;
    call->by_number = *bucket;
    *bucket = call;
}

static void remove_handle(struct call *call)
{
    struct call **at = handle_bucket(call->call);
    while (*at != call)
        at = &(*at)->by_call;
    *at = call->by_call;
    call->call = NULL;
}

static void free_if_over(struct call *call)
{
    if (!call->ended || call->pins > 0 || call->loans)
        return;
    if (call->bound) {
        struct call **at = number_bucket(&call->nonce, call->number);
        while (*at != call)
            at = &(*at)->by_number;
        *at = call->by_number;
    }
    if (call->link)
        link_put(call->link);
    if (call->channel)
        channel_put(call->channel);
    free(call);
    count--;
}

struct call *call_pin(grpc_call *handle)
{
    struct call *call = find(handle);
    if (call)
        call->pins++;
    return call;
}

void call_unpin(struct call *call)
{
    call->pins--;
    free_if_over(call);
}

uint64_t calls_left(void)
{
    state_lock();
    uint64_t n = count;
    state_unlock();
    return n;
}

// -- Clients ---------------------------------------------------------------------------------------------------------------------------

void call_created(grpc_channel *handle, grpc_call *call, gpr_timespec deadline)
{
    struct call *made = call ? calloc(1, sizeof *made) : NULL;
    bool ask = false;
    state_lock();
    struct channel *channel = made ? channel_find(handle) : NULL;
    struct link *link = channel ? channel_link(channel, &ask) : NULL;
    if (!link && !ask) {
        state_unlock();
        free(made);
        stat_add(STAT_client_calls, channel != NULL);
        return;
    }
    made->call = call;
    made->refs = 1;
    made->deadline = deadline;
    made->channel = channel;
    made->send_limit = channel->send_limit;
    channel->refs++;
    if (link) {
        link_hold(link);
        made->link = link;
        made->linked = true;
        made->nonce = link->nonce;
        made->id = link->calls++;
        made->limit = link->limit;
        made->unbound = true;
        struct call **at = &link->unbound;
        while (*at)
            at = &(*at)->next_unbound;
        *at = made;
    }
    insert(made);
    state_unlock();
    stat_add(STAT_client_calls, 1);
    stat_add(STAT_client_linked, link != NULL);
}

static void leave_unbound(struct call *call)
{
    struct call **at = &call->link->unbound;
    while (*at != call)
        at = &(*at)->next_unbound;
    *at = call->next_unbound;
    call->unbound = false;
}

void call_bind(struct call *call, bool linked, uint64_t number)
{
    if (!call->unbound)
        return;
    leave_unbound(call);
    if (linked && !call_by_number(&call->nonce, number, false))
        insert_number(call, number);
    ledger_bound(call->link, call->bound ? call : NULL);
}

// -- Servers ---------------------------------------------------------------------------------------------------------------------------

static struct call *adopt(grpc_call *handle, const struct origin *origin)
{
    struct call *call = calloc(1, sizeof *call);
    if (!call)
        return NULL;
    const struct server *server = server_numbered(origin->server_number);
    *call = (struct call){.call = handle,
                          .server = true,
                          .refs = 1,
                          .pins = 1,
                          .nonce = origin->nonce,
                          .limit = origin->limit,
                          .send_limit = server ? server->send_limit : UINT64_MAX,
                          .server_number = origin->server_number};
    call->offers = origin->settled == SETTLED_ASKS || origin->settled == SETTLED_LINKED;
    if (origin->settled == SETTLED_LINKED)
        call->link = link_find(&origin->nonce, true);
    insert(call);
    if (call->link) {
        link_hold(call->link);
        call->linked = true;
        insert_number(call, call->link->calls++);
        stat_add(STAT_server_linked, 1);
    }
    return call;
}

struct call *call_adopt(grpc_call *handle)
{
    struct origin origin;
    state_lock();
    struct call *call = call_pin(handle);
    if (!call && server_settle(handle, &origin)) // once a call, whichever of its threads is first
        call = adopt(handle, &origin);
    state_unlock();
    return call;
}

// -- Their end -------------------------------------------------------------------------------------------------------------------------

void call_ref(grpc_call *handle)
{
    struct call *call = call_adopt(handle);
    if (!call)
        return;
    state_lock();
    call->refs++;
    call_unpin(call);
    state_unlock();
}

// A client that gave its call up has no use for what the server still may open of it. What a server sent may be on its way to a client: it is asked.
static void end(struct call *call)
{
    remove_handle(call);
    call->ended = true;
    call->pins++;
    call_bind(call, false, 0);
    if (!call->server || call->peer_over)
        ledger_revoke(call);
    if (call->link && (call->asked || (call->server && call->loans && !call->peer_over)))
        ledger_tell(call->link, call->number);
    call_unpin(call);
}

void call_unref(grpc_call *handle)
{
    state_lock();
    struct call *call = find(handle);
    if (call && --call->refs == 0)
        end(call);
    state_unlock();
}

void call_fail(struct call *call, const struct failure *why)
{
    if (call->failure.code == GRPC_STATUS_OK)
        call->failure = *why;
}
