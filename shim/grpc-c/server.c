// SPDX-License-Identifier: Apache-2.0
//
// gRPC servers and what stands beside their ports: a Lien listener, and a processor of metadata on insecure credentials. See state.h.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

static struct server *servers;
static uint64_t numbers;

// Credentials of this process that are insecure, or that have a processor of the application's own.
struct creds {
    struct creds *next;
    const void *creds;
    unsigned count;
    bool own;
};
static struct creds *known;

// -- Credentials -----------------------------------------------------------------------------------------------------------------------

static struct creds **creds_at(const void *pointer)
{
    struct creds **at = &known;
    while (*at && (*at)->creds != pointer)
        at = &(*at)->next;
    return at;
}

void insecure_count(const void *pointer, int count)
{
    state_lock();
    struct creds **at = creds_at(pointer), *creds = *at;
    if (!creds && count > 0 && (creds = calloc(1, sizeof *creds))) {
        creds->creds = pointer;
        *at = creds;
    }
    if (creds && count > 0) {
        creds->count++;
    } else if (creds && --creds->count == 0) {
        *at = creds->next;
        free(creds);
    }
    state_unlock();
}

bool creds_carry(const void *pointer)
{
    state_lock();
    struct creds *creds = *creds_at(pointer);
    bool carry = creds ? !creds->own : conf.trusted;
    state_unlock();
    return carry;
}

void processor_own(grpc_server_credentials *pointer)
{
    state_lock();
    struct creds *creds = *creds_at(pointer);
    bool missing = !creds && conf.trusted; // they count as insecure ones do, and must not
    state_unlock();
    if (missing)
        insecure_count(pointer, 1);
    state_lock();
    creds = *creds_at(pointer);
    if (creds)
        creds->own = true;
    state_unlock();
}

// -- Whose call is it ------------------------------------------------------------------------------------------------------------------

// gRPC shows the metadata of each call to a processor, with the auth context of its *connection*, before anybody else hears of the call; and later the call itself, in its first batch, with the same context. So what
// is known of a call is known by its connection: as long as all calls that passed the processor and had no batch yet are of one class, the next first batch is of that class. Where classes
// are mixed the call is unclear, and stays in band, until all calls of the connection that are on their way have arrived. The state is kept in the bytes of a property, which gRPC frees with the
// connection. Guarded by the shim's lock; added once, before the first call of the connection is delivered.
struct wire_state {
    uint64_t server;
    uint64_t limit;
    struct nonce nonce;
    uint32_t coming[3]; // calls on their way: SETTLED_PLAIN, SETTLED_ASKS, SETTLED_LINKED
    uint32_t unclear;   // of them, that have arrived and could not be told apart
};

#define PROPERTY "lien-calls"

static char *find_state(grpc_auth_context *context)
{
    grpc_auth_property_iterator all = real.grpc_auth_context_find_properties_by_name(context,
                                                                                     PROPERTY);
    const grpc_auth_property *property = real.grpc_auth_property_iterator_next(&all);
    return property && property->value_length == sizeof(struct wire_state) ? property->value : NULL;
}

static void note_call(struct wire_state *state, const struct call_entry *entry, bool asks)
{
    if (!entry->linked) {
        state->coming[asks ? SETTLED_ASKS : SETTLED_PLAIN]++;
        return;
    }
    nonce_meet(&entry->nonce); // ours or not: its descriptors are no messages
    bool same = memcmp(&state->nonce, &entry->nonce, sizeof entry->nonce) == 0;
    if (!same || state->limit > entry->limit)
        state->limit = entry->limit;
    if (!same && state->coming[SETTLED_LINKED] > 0) { // two clients behind a proxy, or a new link
        state->coming[SETTLED_PLAIN] += state->coming[SETTLED_LINKED];
        state->coming[SETTLED_LINKED] = 0;
    }
    state->nonce = entry->nonce;
    state->coming[SETTLED_LINKED]++;
}

static bool is_key(grpc_slice key, const char *name)
{
    return GRPC_SLICE_LENGTH(key) == strlen(name) &&
           memcmp(GRPC_SLICE_START_PTR(key), name, strlen(name)) == 0;
}

// On gRPC's threads, for each call on these credentials.
static void process(void *arg, grpc_auth_context *context, const grpc_metadata *metadata, size_t n,
                    grpc_process_auth_metadata_done_cb done, void *done_arg)
{
    const struct server *server = arg;
    struct wire_state state = {.server = server->number, .limit = UINT64_MAX};
    struct call_entry entry = {.linked = false};
    size_t i = 0;
    while (i < n && !is_key(metadata[i].key, CALL_KEY))
        i++;
    bool asks = i < n && frame_get_call((const char *)GRPC_SLICE_START_PTR(metadata[i].value),
                                        GRPC_SLICE_LENGTH(metadata[i].value), &entry);
    state_lock();
    char *kept = find_state(context);
    if (kept)
        memcpy(&state, kept, sizeof state);
    note_call(&state, &entry, asks);
    if (kept)
        memcpy(kept, &state, sizeof state);
    else
        real.grpc_auth_context_add_property(context, PROPERTY, (const char *)&state, sizeof state);
    state_unlock();
    done(done_arg, i < n ? &metadata[i] : NULL, i < n, NULL, 0, GRPC_STATUS_OK, NULL);
}

static void processor_gone(void *state)
{
    state_lock();
    server_put(state);
    state_unlock();
}

static enum settled settle(struct wire_state *state)
{
    uint32_t total = 0, classes = 0;
    enum settled which = SETTLED_UNCLEAR;
    for (int i = SETTLED_PLAIN; i <= SETTLED_LINKED; i++) {
        total += state->coming[i];
        classes += state->coming[i] > 0;
        which = state->coming[i] > 0 ? (enum settled)i : which;
    }
    if (classes == 1 && state->unclear == 0) {
        state->coming[which]--;
        return which;
    }
    if (total > 0 && ++state->unclear >= total) { // all have arrived
        memset(state->coming, 0, sizeof state->coming);
        state->unclear = 0;
    }
    return SETTLED_UNCLEAR;
}

bool server_settle(grpc_call *call, struct origin *origin)
{
    struct wire_state state;
    grpc_auth_context *context = real.grpc_call_auth_context(call);
    if (!context)
        return false;
    char *kept = find_state(context);
    if (kept) {
        memcpy(&state, kept, sizeof state);
        origin->settled = settle(&state);
        origin->nonce = state.nonce;
        origin->limit = state.limit;
        origin->server_number = state.server;
        memcpy(kept, &state, sizeof state);
    }
    real.grpc_auth_context_release(context);
    return kept != NULL;
}

// -- Servers ---------------------------------------------------------------------------------------------------------------------------

void server_created(grpc_server *handle, const grpc_channel_args *args)
{
    struct server *server = calloc(1, sizeof *server);
    if (!server)
        return;
    server->server = handle;
    server->refs = 1;
    server->receive_limit = limit_of(args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                                     GRPC_DEFAULT_MAX_RECV_MESSAGE_LENGTH);
    server->send_limit = limit_of(args, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, UINT64_MAX);
    state_lock();
    server->number = ++numbers;
    server->next = servers;
    servers = server;
    state_unlock();
}

static struct server *find(grpc_server *handle)
{
    struct server *server = servers;
    while (server && server->server != handle)
        server = server->next;
    return server;
}

struct server *server_numbered(uint64_t number)
{
    struct server *server = servers;
    while (server && (server->number != number || !server->server))
        server = server->next;
    return server;
}

void server_put(struct server *server)
{
    if (--server->refs > 0)
        return;
    struct server **at = &servers;
    while (*at != server)
        at = &(*at)->next;
    *at = server->next;
    free(server);
}

void server_destroyed(grpc_server *handle)
{
    lien_listener *listener = NULL;
    state_lock();
    struct server *server = find(handle);
    if (server) {
        listener = server->listener;
        server->listener = NULL;
        server->server = NULL;
        server_put(server);
    }
    state_unlock();
    if (listener)
        lien_listener_close(&listener);
}

// "0.0.0.0:1", "[::]:1", "name:1": where the listener beside it goes, and whether the host is left to the client.
static bool beside(const char *address, char *bind, size_t size)
{
    const char *colon = strrchr(address, ':');
    size_t host = colon ? (size_t)(colon - address) : 0;
    bool any = (host == 7 && strncmp(address, "0.0.0.0", host) == 0) ||
               (host == 4 && strncmp(address, "[::]", host) == 0);
    bool other = strncmp(address, "unix:", 5) == 0 || strncmp(address, "unix-abstract:", 14) == 0 ||
                 strncmp(address, "vsock:", 6) == 0;
    if (strncmp(address, "dns:", 4) == 0 || strncmp(address, "ipv4:", 5) == 0 ||
        strncmp(address, "ipv6:", 5) == 0 || !colon || host == 0)
        any = true;
    if (any || other)
        snprintf(bind, size, "%s:0", other ? "127.0.0.1" : "*");
    else
        snprintf(bind, size, "%.*s:0", (int)host, address);
    return !other;
}

static lien_listener *listen_at(struct server *server, const char *address, bool host_known,
                                char *offer, size_t size)
{
    lien_listener *listener = NULL;
    lien_listener_opts opts;
    lien_conn_opts conn;
    char bound[96];
    link_callbacks(&conn);
    lien_listener_opts_init(&opts);
    opts.conn = &conn;
    opts.on_accept = link_accept;
    opts.arg = server;
    int rc = lien_listener_open(ctx_get(), address, &opts, &listener);
    if (rc == 0)
        rc = lien_listener_address(listener, bound, sizeof bound);
    if (rc != 0) {
        say("cannot listen at %s, this server goes in band: %s", address, lien_strerror(rc));
        lien_listener_close(&listener);
        return NULL;
    }
    const char *port = strrchr(bound, ':');
    snprintf(offer, size, "%s", host_known ? bound : port ? port : "");
    return listener;
}

static void listen_beside(struct server *server, const char *address)
{
    static bool address_used; // with the lock
    char bind[128], offer[96] = "";
    bool host_left = beside(address, bind, sizeof bind);
    state_lock();
    bool configured = conf.address && !address_used;
    address_used = address_used || configured;
    state_unlock();
    if (configured)
        snprintf(bind, sizeof bind, "%s", conf.address);
    bool any = bind[0] == '*' || strncmp(bind, "0.0.0.0:", 8) == 0 ||
               strncmp(bind, "[::]:", 5) == 0;
    lien_listener *listener = listen_at(server, bind, !any && (configured || !host_left), offer,
                                        sizeof offer);
    state_lock();
    server->listener = listener;
    memcpy(server->offer, offer, sizeof offer);
    state_unlock();
}

void server_port(grpc_server *handle, const char *address, grpc_server_credentials *creds)
{
    if (!creds_carry(creds) || !ctx_get())
        return;
    state_lock();
    struct server *server = find(handle);
    bool listens = server && server->listener;
    if (server)
        server->refs++; // the processor's
    state_unlock();
    if (!server)
        return;
    if (!listens)
        listen_beside(server, address);
    grpc_auth_metadata_processor processor = {
        .process = process, .destroy = processor_gone, .state = server};
    real.grpc_server_credentials_set_auth_metadata_processor(creds, processor);
}
