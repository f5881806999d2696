// SPDX-License-Identifier: Apache-2.0
//
// Byte streams between simulated nodes, as lieni_net_ops has them: in order, in pieces of random size, with latency, bounded buffers, ends and resets. An address is
// "host:port" with a node's host ("10.0.0.1"), "*" or "" to listen on. READABLE is told by each poll while bytes, or an end that no read has answered yet, can be read.

#include "provider/sim/internal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_BYTES 65536u // on the way and unread, one direction

static void set_readable(struct lieni_stream *s)
{
    bool now = !s->closed && s->connected && (s->in_len || (s->end && !s->end_told));
    if (now != s->readable)
        s->node->n_readable += now ? 1u : -1u;
    s->readable = now;
}

bool sim_net_ready(const struct sim_node *node)
{
    return node->n_net_ready || node->n_readable;
}

static void push(struct sim_node *node, struct lieni_stream *stream,
                 struct lieni_acceptor *acceptor, struct lieni_net_event event)
{
    node->net_ready = sim_grow(node->net_ready, node->n_net_ready, &node->cap_net_ready,
                               sizeof *node->net_ready);
    node->net_ready[node->n_net_ready++] = (struct sim_net_ready){
        .stream = stream, .acceptor = acceptor, .event = event};
}

static struct lieni_stream *stream_new(struct sim_node *node)
{
    struct lieni_sim_world *world = node->world;
    struct lieni_stream *s = sim_alloc(sizeof *s);
    s->node = node;
    s->number = ++world->numbers;
    s->next = world->streams;
    world->streams = s;
    world->counts.streams_open++;
    return s;
}

// -- Net ---------------------------------------------------------------------------------------------------------------------------

static int net_open(const struct lieni_env *env, const struct lieni_report *report, void *world,
                    struct lieni_net **net)
{
    struct sim_node *node = world;
    (void)env;
    node->report = *report;
    struct lieni_net *n = sim_alloc(sizeof *n);
    n->node = node;
    n->next = node->world->nets;
    node->world->nets = n;
    node->world->counts.nets_open++;
    *net = n;
    return 0;
}

static void net_close(struct lieni_net *net)
{
    if (net->closed)
        lieni_sim_violate(net->node->world, "node %u: net closed twice", net->node->index);
    net->closed = true;
    net->node->world->counts.nets_open--;
}

static int net_fd(struct lieni_net *net)
{
    (void)net;
    return -1;
}

static int net_arm(struct lieni_net *net)
{
    return sim_net_ready(net->node) ? LIEN_EAGAIN : 0;
}

static unsigned net_poll(struct lieni_net *net, struct lieni_net_event *events, unsigned max)
{
    struct sim_node *node = net->node;
    unsigned n = 0;
    node->wake = false;
    while (n < max && node->n_net_ready) {
        struct sim_net_ready r = node->net_ready[0];
        memmove(&node->net_ready[0], &node->net_ready[1],
                --node->n_net_ready * sizeof node->net_ready[0]);
        r.event.user = r.stream && !r.acceptor ? r.stream->user : r.acceptor->user;
        sim_note(node->world, "net", node, r.stream->number, (uint64_t)r.event.kind,
                 (uint64_t)(int64_t)r.event.status);
        events[n++] = r.event;
    }
    if (!node->n_readable)
        return n;
    for (struct lieni_stream *s = node->world->streams; s && n < max; s = s->next)
        if (s->node == node && s->readable && s->user) // accepted in this call: the next one tells
            events[n++] = (struct lieni_net_event){.kind = LIENI_NET_READABLE, .user = s->user};
    return n;
}

// -- Listening ---------------------------------------------------------------------------------------------------------------------

// Splits "host:port"; false: malformed.
static bool split(const char *address, char *host, size_t size, uint16_t *port)
{
    const char *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= size || !colon[1])
        return false;
    char *end;
    unsigned long value = strtoul(colon + 1, &end, 10);
    if (*end || value > 65535)
        return false;
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = 0;
    *port = (uint16_t)value;
    return true;
}

static struct lieni_acceptor *acceptor_at(const struct sim_node *node, uint16_t port)
{
    for (struct lieni_acceptor *a = node->world->acceptors; a; a = a->next)
        if (a->node == node && a->port == port && !a->closed)
            return a;
    return NULL;
}

static int net_listen(struct lieni_net *net, const char *address, void *user,
                      struct lieni_acceptor **acceptor, char *bound, size_t size)
{
    struct sim_node *node = net->node;
    char host[64];
    uint16_t port;
    if (!split(address, host, sizeof host, &port))
        return LIEN_EADDR;
    if (host[0] && strcmp(host, "*") != 0 && strcmp(host, node->host) != 0)
        return LIEN_EADDR;
    if (port && acceptor_at(node, port))
        return LIEN_EADDR;
    for (port = port ? port : 7000; acceptor_at(node, port);)
        port++;
    if (snprintf(bound, size, "%s:%u", node->host, (unsigned)port) >= (int)size)
        return LIEN_ERANGE;
    struct lieni_acceptor *a = sim_alloc(sizeof *a);
    a->node = node;
    a->user = user;
    a->port = port;
    a->next = node->world->acceptors;
    node->world->acceptors = a;
    node->world->counts.acceptors_open++;
    *acceptor = a;
    return 0;
}

// There are no descriptors here.
static int net_listen_fd(struct lieni_net *net, int fd, void *user,
                         struct lieni_acceptor **acceptor, char *bound, size_t size)
{
    (void)net;
    (void)fd;
    (void)user;
    (void)acceptor;
    (void)bound;
    (void)size;
    return LIEN_ENOTSUP;
}

static int net_acceptor_fd(struct lieni_acceptor *acceptor, int *fd)
{
    (void)acceptor;
    (void)fd;
    return LIEN_ENOTSUP;
}

static void acceptor_close(struct lieni_acceptor *acceptor)
{
    struct sim_node *node = acceptor->node;
    if (acceptor->closed)
        lieni_sim_violate(node->world, "node %u: acceptor closed twice", node->index);
    acceptor->closed = true;
    node->world->counts.acceptors_open--;
    for (size_t i = 0; i < node->n_net_ready;) {
        if (node->net_ready[i].acceptor != acceptor)
            i++;
        else // never told to core; also takes the event away
            sim_net_ops.stream_close(node->net_ready[i].stream);
    }
}

// -- Connecting --------------------------------------------------------------------------------------------------------------------

static void fire_connected(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct lieni_stream *s = ev->stream;
    (void)world;
    if (s->closed || s->failed || s->connected)
        return;
    if (ev->value) {
        s->failed = true;
        sim_fault(s->node->world, LIENI_SIM_CONNECT, s->user);
        push(s->node, s, NULL,
             (struct lieni_net_event){.kind = LIENI_NET_FAILED, .status = LIEN_EREFUSED});
        return;
    }
    s->connected = true;
    push(s->node, s, NULL, (struct lieni_net_event){.kind = LIENI_NET_CONNECTED});
    set_readable(s);
}

static void plan_connected(struct lieni_stream *s, bool refused)
{
    struct lieni_sim_world *world = s->node->world;
    struct sim_event *ev = sim_plan(
        world, s->node, world->now + sim_in(world, world->config.latency), fire_connected);
    ev->stream = s;
    ev->value = refused;
}

static void fire_accept(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct lieni_stream *from = ev->stream;
    (void)world;
    if (from->closed)
        return;
    struct lieni_acceptor *a = acceptor_at(ev->node, (uint16_t)ev->value);
    if (!a) {
        plan_connected(from, true);
        return;
    }
    struct lieni_stream *s = stream_new(ev->node);
    s->connected = true;
    s->peer = from;
    from->peer = s;
    snprintf(s->peer_host, sizeof s->peer_host, "%s", from->node->host);
    snprintf(s->peer_name, sizeof s->peer_name, "%s:%u", from->node->host,
             40000u + (unsigned)(from->number % 20000));
    push(ev->node, s, a, (struct lieni_net_event){.kind = LIENI_NET_ACCEPTED, .stream = s});
    plan_connected(from, false);
}

static int net_connect(struct lieni_net *net, const char *address, void *user,
                       struct lieni_stream **stream)
{
    struct sim_node *node = net->node, *target = NULL;
    struct lieni_sim_world *world = node->world;
    char host[64];
    uint16_t port;
    if (!split(address, host, sizeof host, &port) || !host[0] || !port)
        return LIEN_EADDR;
    struct lieni_stream *s = stream_new(node);
    s->user = user;
    snprintf(s->peer_host, sizeof s->peer_host, "%s", host);
    snprintf(s->peer_name, sizeof s->peer_name, "%s:%u", host, (unsigned)port);
    for (unsigned i = 0; i < world->config.nodes; i++)
        if (strcmp(world->nodes[i].host, host) == 0)
            target = &world->nodes[i];
    sim_note(world, "net connect", node, s->number, port, target != NULL);
    *stream = s;
    if (!target || (target->killed && !target->silent)) {
        plan_connected(s, true);
        return 0;
    }
    struct sim_event *ev = sim_plan(world, target,
                                    world->now + sim_in(world, world->config.latency), fire_accept);
    ev->stream = s;
    ev->value = port;
    return 0;
}

// -- Streams -----------------------------------------------------------------------------------------------------------------------

static void stream_user(struct lieni_stream *stream, void *user)
{
    stream->user = user;
}

static void fire_bytes(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct lieni_stream *s = ev->stream;
    (void)world;
    if (s->peer)
        s->peer->in_flight -= ev->len;
    if (s->closed)
        return;
    while (s->in_len + ev->len > s->in_cap)
        s->in = sim_grow(s->in, s->in_cap, &s->in_cap, 1);
    memcpy(s->in + s->in_len, ev->data, ev->len);
    s->in_len += ev->len;
    set_readable(s);
}

static void fire_end(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct lieni_stream *s = ev->stream;
    (void)world;
    s->end = true;
    s->reset = ev->value != 0;
    set_readable(s);
}

static uint64_t arrival(struct lieni_stream *s)
{
    struct lieni_sim_world *world = s->node->world;
    uint64_t at = world->now + sim_in(world, world->config.latency);
    if (at <= s->clock)
        at = s->clock + 1;
    s->clock = at;
    return at;
}

static int64_t stream_write(struct lieni_stream *s, const void *data, size_t len)
{
    struct lieni_sim_world *world = s->node->world;
    if (s->closed)
        lieni_sim_violate(world, "node %u: write on closed stream", s->node->index);
    if (s->closed || s->failed || s->node->killed || s->end)
        return LIEN_ECLOSED;
    if (!s->connected)
        return LIEN_EAGAIN; // CONNECTED says when
    if (!s->peer)
        return (int64_t)len; // gone, but we could not know yet
    if (!len)
        return 0;
    size_t used = s->in_flight + s->peer->in_len;
    if (used >= STREAM_BYTES || sim_chance(world, world->config.p_eagain)) {
        s->want_write = true;
        world->counts.eagain++;
        if (used < STREAM_BYTES) {
            s->want_write = false;
            push(s->node, s, NULL, (struct lieni_net_event){.kind = LIENI_NET_WRITABLE});
        }
        return LIEN_EAGAIN;
    }
    size_t n = sim_in(world, world->config.net_piece);
    if (n > len)
        n = len;
    struct sim_event *ev = sim_plan(world, s->peer->node, arrival(s), fire_bytes);
    ev->stream = s->peer;
    ev->data = sim_alloc(n);
    ev->len = n;
    memcpy(ev->data, data, n);
    s->in_flight += n;
    sim_note(world, "net write", s->node, s->number, n, len);
    return (int64_t)n;
}

static int64_t stream_read(struct lieni_stream *s, void *data, size_t len)
{
    struct lieni_sim_world *world = s->node->world;
    if (s->closed) {
        lieni_sim_violate(world, "node %u: read on closed stream", s->node->index);
        return LIEN_ECLOSED;
    }
    if (!len)
        return 0;
    if (!s->in_len && s->end) {
        s->end_told = true;
        set_readable(s);
        return s->reset ? LIEN_EIO : LIEN_ECLOSED;
    }
    if (!s->in_len)
        return s->failed ? LIEN_ECLOSED : LIEN_EAGAIN;
    size_t n = len < s->in_len ? len : s->in_len;
    memcpy(data, s->in, n);
    s->in_len -= n;
    memmove(s->in, s->in + n, s->in_len);
    set_readable(s);
    if (s->peer && s->peer->want_write) {
        s->peer->want_write = false;
        push(s->peer->node, s->peer, NULL, (struct lieni_net_event){.kind = LIENI_NET_WRITABLE});
    }
    return (int64_t)n;
}

static int put_text(const char *value, char *text, size_t size)
{
    return snprintf(text, size, "%s", value) >= (int)(size < INT_MAX ? size : INT_MAX) ? LIEN_ERANGE
                                                                                       : 0;
}

static int local_host(struct lieni_stream *stream, char *text, size_t size)
{
    return put_text(stream->node->host, text, size);
}

static int peer_host(struct lieni_stream *stream, char *text, size_t size)
{
    return put_text(stream->peer_host, text, size);
}

static int peer_name(struct lieni_stream *stream, char *text, size_t size)
{
    return put_text(stream->peer_name, text, size);
}

static void end_stream(struct lieni_stream *s, bool reset, bool silent)
{
    struct sim_node *node = s->node;
    struct lieni_stream *peer = s->peer;
    s->closed = true;
    set_readable(s);
    node->world->counts.streams_open--;
    size_t kept = 0;
    for (size_t i = 0; i < node->n_net_ready; i++)
        if (node->net_ready[i].stream != s)
            node->net_ready[kept++] = node->net_ready[i];
    node->n_net_ready = kept;
    if (!peer || silent)
        return;
    struct sim_event *ev = sim_plan(node->world, peer->node, arrival(s), fire_end);
    ev->stream = peer;
    ev->value = reset;
    peer->peer = NULL;
    s->peer = NULL;
}

static void stream_close(struct lieni_stream *stream)
{
    if (stream->closed) {
        lieni_sim_violate(stream->node->world, "node %u: stream closed twice", stream->node->index);
        return;
    }
    sim_note(stream->node->world, "net close", stream->node, stream->number, 0, 0);
    end_stream(stream, stream->in_len != 0, stream->node->killed);
}

static int stream_detach(struct lieni_stream *stream)
{
    sim_note(stream->node->world, "net detach", stream->node, stream->number, 0, 0);
    end_stream(stream, false, false);
    return -1;
}

// This side sees a reset.
static void reset_here(struct lieni_stream *s)
{
    s->end = s->reset = true;
    set_readable(s);
}

void lieni_sim_break_stream(struct lieni_stream *stream)
{
    struct lieni_stream *peer = stream->peer;
    if (stream->closed || stream->end || stream->node->killed)
        return;
    sim_note(stream->node->world, "net break", stream->node, stream->number, 0, 0);
    if (!stream->connected) {
        plan_connected(stream, true);
        return;
    }
    reset_here(stream);
    stream->peer = NULL;
    if (!peer)
        return;
    peer->peer = NULL;
    struct sim_event *ev = sim_plan(stream->node->world, peer->node, arrival(stream), fire_end);
    ev->stream = peer;
    ev->value = 1;
}

// The process died: its kernel resets what is open, or nobody hears of it. The handles stay open, for whoever closes the dead context.
void sim_net_kill(struct sim_node *node)
{
    for (struct lieni_stream *s = node->world->streams; s; s = s->next) {
        if (s->node != node || s->closed)
            continue;
        s->end = true;
        set_readable(s);
        if (!s->peer || node->silent)
            continue;
        struct sim_event *ev = sim_plan(node->world, s->peer->node, arrival(s), fire_end);
        ev->stream = s->peer;
        ev->value = 1;
        s->peer->peer = NULL;
        s->peer = NULL;
    }
}

const struct lieni_net_ops sim_net_ops = {
    .open = net_open,
    .close = net_close,
    .fd = net_fd,
    .arm = net_arm,
    .poll = net_poll,
    .listen = net_listen,
    .listen_fd = net_listen_fd,
    .acceptor_fd = net_acceptor_fd,
    .acceptor_close = acceptor_close,
    .connect = net_connect,
    .stream_user = stream_user,
    .write = stream_write,
    .read = stream_read,
    .local_host = local_host,
    .peer_host = peer_host,
    .peer_name = peer_name,
    .detach = stream_detach,
    .stream_close = stream_close,
};
