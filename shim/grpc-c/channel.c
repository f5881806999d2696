// SPDX-License-Identifier: Apache-2.0
//
// Client channels, and the peers that they lead to: see state.h. Everything here is driven by calls and answers; there is no timer. A peer is tried again not before its wait is over, which doubles with each failure.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define WAIT_MIN_MS 100u
#define WAIT_MAX_MS 10000u
// After an answer that does not fit: so many that do before requests go out of band again.
#define DOUBT_ANSWERS 16u
// A channel whose answers bring no offer asks so often, then on each ASK_EACHth call.
#define ASK_FIRST 8u
#define ASK_EACH  64u

static struct channel *channels;
static struct peer *peers;

// -- Peers -----------------------------------------------------------------------------------------------------------------------------

static struct peer *peer_get(const char *address)
{
    struct peer *peer = peers;
    while (peer && strcmp(peer->address, address) != 0)
        peer = peer->next;
    if (!peer) {
        peer = calloc(1, sizeof *peer);
        if (!peer)
            return NULL;
        snprintf(peer->address, sizeof peer->address, "%s", address);
        peer->next = peers;
        peers = peer;
    }
    peer->refs++;
    return peer;
}

static void peer_put(struct peer *peer)
{
    if (--peer->refs > 0)
        return;
    struct peer **at = &peers;
    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    struct link *link = peer->link;
    peer->link = NULL;
    if (link) {
        link->peer = NULL;
        link_kill(link);
        link_put(link);
    }
    free(peer);
}

void peer_lost(struct peer *peer, bool was_ready)
{
    struct link *link = peer->link;
    peer->link = NULL;
    peer->wait = was_ready || peer->wait == 0 ? WAIT_MIN_MS : peer->wait * 2;
    if (peer->wait > WAIT_MAX_MS)
        peer->wait = WAIT_MAX_MS;
    peer->next_try = now_ms() + peer->wait;
    if (link)
        link_put(link);
}

static void peer_connect(struct peer *peer)
{
    if (peer->link || now_ms() < peer->next_try || !conf_active())
        return;
    peer->link = link_open(peer, peer->address);
    if (peer->link)
        link_hold(peer->link);
    else
        peer_lost(peer, false);
}

// -- Channels --------------------------------------------------------------------------------------------------------------------------

uint64_t limit_of(const grpc_channel_args *args, const char *name, uint64_t def)
{
    for (size_t i = 0; args && i < args->num_args; i++)
        if (strcmp(args->args[i].key, name) == 0 && args->args[i].type == GRPC_ARG_INTEGER)
            return args->args[i].value.integer < 0 ? UINT64_MAX
                                                   : (uint64_t)args->args[i].value.integer;
    return def;
}

static const char *text_of(const grpc_channel_args *args, const char *name)
{
    for (size_t i = 0; args && i < args->num_args; i++)
        if (strcmp(args->args[i].key, name) == 0 && args->args[i].type == GRPC_ARG_STRING)
            return args->args[i].value.string;
    return NULL;
}

// Whether requests may be spread over servers, or sent twice.
static bool is_balanced(const grpc_channel_args *args)
{
    const char *policy = text_of(args, GRPC_ARG_LB_POLICY_NAME);
    const char *config = text_of(args, GRPC_ARG_SERVICE_CONFIG);
    return (policy && strcmp(policy, "pick_first") != 0) ||
           (config && (strstr(config, "oadBalancing") || strstr(config, "retryPolicy")));
}

struct channel *channel_add(grpc_channel *handle, const grpc_channel_args *args)
{
    struct channel *channel = ctx_get() ? calloc(1, sizeof *channel) : NULL;
    if (!channel)
        return NULL;
    channel->channel = handle;
    channel->refs = 1;
    channel->receive_limit = limit_of(args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                                      GRPC_DEFAULT_MAX_RECV_MESSAGE_LENGTH);
    channel->send_limit = limit_of(args, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, UINT64_MAX);
    channel->balanced = is_balanced(args);
    state_lock();
    channel->next = channels;
    channels = channel;
    if (conf.address)
        channel->peer = peer_get(conf.address);
    if (channel->peer)
        peer_connect(channel->peer);
    state_unlock();
    return channel;
}

struct channel *channel_find(grpc_channel *handle)
{
    struct channel *channel = channels;
    while (channel && channel->channel != handle)
        channel = channel->next;
    return channel;
}

void channel_put(struct channel *channel)
{
    if (--channel->refs > 0)
        return;
    struct channel **at = &channels;
    while (*at != channel)
        at = &(*at)->next;
    *at = channel->next;
    if (channel->peer)
        peer_put(channel->peer);
    free(channel);
}

void channel_destroyed(grpc_channel *handle)
{
    state_lock();
    struct channel *channel = channel_find(handle);
    if (channel) {
        channel->channel = NULL;
        channel_put(channel);
    }
    state_unlock();
}

struct link *channel_link(struct channel *channel, bool *ask)
{
    struct link *link = channel->peer ? channel->peer->link : NULL;
    channel->calls++;
    if (!link && channel->peer && conf.address)
        peer_connect(channel->peer);
    *ask = channel->unoffered < ASK_FIRST || channel->calls % ASK_EACH == 0;
    return link && link->state == LINK_READY ? link : NULL;
}

// "ipv4:1.2.3.4:5" or "ipv6:%5B::1%5D:5", as gRPC tells it, and ":6": "1.2.3.4:6". Anything else has no host that could be connected to.
static bool complete(const char *offered, const char *host, char *address, size_t size)
{
    if (offered[0] != ':')
        return (size_t)snprintf(address, size, "%s", offered) < size;
    if (!host || (strncmp(host, "ipv4:", 5) != 0 && strncmp(host, "ipv6:", 5) != 0))
        return false;
    const char *from = host + 5, *end = strrchr(from, ':');
    char plain[64];
    size_t n = 0;
    for (; end && from < end && n + 1 < sizeof plain; from++, n++) {
        bool open = strncmp(from, "%5B", 3) == 0, closed = strncmp(from, "%5D", 3) == 0;
        plain[n] = open ? '[' : closed ? ']' : *from;
        from += open || closed ? 2 : 0;
    }
    plain[n] = 0;
    return n > 0 && (size_t)snprintf(address, size, "%s%s", plain, offered) < size;
}

static void move_to(struct channel *channel, const char *address)
{
    if (channel->peer && strcmp(channel->peer->address, address) == 0)
        return;
    struct peer *peer = peer_get(address);
    if (!peer)
        return;
    if (channel->peer)
        peer_put(channel->peer);
    channel->peer = peer;
}

void channel_offer(struct channel *channel, const struct offer_entry *offer, const char *host)
{
    char address[sizeof channel->peer->address];
    state_lock();
    struct link *link = channel->peer ? channel->peer->link : NULL;
    bool ready = link && link->state == LINK_READY;
    channel->unoffered = 0;
    if (ready && link->instance != offer->instance)
        channel->doubt = DOUBT_ANSWERS; // somebody else: which of them gets the next request?
    else if (ready && channel->doubt > 0)
        channel->doubt--;
    if (!ready && !link && offer->address[0] && !conf.address &&
        complete(offer->address, host, address, sizeof address))
        move_to(channel, address);
    if (channel->peer)
        peer_connect(channel->peer);
    state_unlock();
}

void channel_answered(struct channel *channel, bool offered)
{
    if (offered)
        return;
    if (channel->unoffered < ASK_FIRST)
        channel->unoffered++;
    channel->doubt = DOUBT_ANSWERS;
}
