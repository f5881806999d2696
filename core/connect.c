// SPDX-License-Identifier: Apache-2.0
//
// How a connection is made: the bootstrap stream carries the handshake (handshake.h), both sides take the same provider, the server opens a fresh
// fabric listener for this one peer (R20), and the endpoint comes up. Under the state lock, in progress context.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/channel.h"
#include "core/conn.h"
#include "core/listener.h"
#include "core/providers.h"
#include "core/request.h"

// The peer as the bootstrap shows it, or, on the client, as the server's place says.
static struct lieni_target target_of(const struct lien_conn *conn)
{
    // An empty host is the address that the bootstrap reached.
    bool moved = conn->hs && !conn->hs->server && conn->hs->host[0];
    return (struct lieni_target){.address = moved ? conn->hs->host : conn->peer_host,
                                 .local = conn->local_host,
                                 .local_reaches = !moved ||
                                                  strcmp(conn->hs->host, conn->peer_host) == 0};
}

static int fill_offer(struct lien_conn *conn, struct lieni_offer *offer)
{
    const struct lieni_target target = target_of(conn);
    lien_ctx *ctx = conn->ctx;
    const struct lieni_options *o = &ctx->options;
    lien_pool *pool = conn->opts.pool ? conn->opts.pool : ctx->receive_pool;
    uint64_t room = lieni_pool_limit(pool);
    conn->body_max = o->message_max < room ? o->message_max : room;
    *offer = (struct lieni_offer){.version_min = LIENI_WIRE_VERSION,
                                  .version_max = LIENI_WIRE_VERSION,
                                  .frame_max = (uint32_t)o->frame_max,
                                  .message_credits = (uint16_t)o->message_credits,
                                  .control_credits = (uint16_t)o->control_credits,
                                  .call_credits = (uint16_t)o->call_credits,
                                  .message_max = conn->body_max,
                                  .grants_max = (uint32_t)o->grants_conn,
                                  .dead_ms = o->heartbeat_ms ? (uint32_t)o->dead_ms : 0};
    // The first half of the nonce names the ctx: connections of one peer vouch for each other's life.
    const size_t half = sizeof(ctx->instance);
    memcpy(offer->nonce, ctx->instance, half);
    ctx->platform.env.random(ctx->platform.env.self, offer->nonce + half,
                             sizeof(offer->nonce) - half);
    return lieni_providers_offer(ctx, &target, offer);
}

static int start_handshake(struct lien_conn *conn, bool server)
{
    lien_ctx *ctx = conn->ctx;
    const struct lieni_net_ops *net = ctx->platform.net;
    struct lieni_offer offer;
    uint8_t seed[LIENI_SESSION];
    net->peer_name(conn->stream, conn->peer, sizeof(conn->peer));
    net->peer_host(conn->stream, conn->peer_host, sizeof(conn->peer_host));
    int rc = net->local_host(conn->stream, conn->local_host, sizeof(conn->local_host));
    if (rc == 0)
        rc = fill_offer(conn, &offer);
    if (rc != 0)
        return rc;
    ctx->platform.env.random(ctx->platform.env.self, seed, sizeof(seed));
    conn->hs = calloc(1, sizeof(*conn->hs));
    if (!conn->hs)
        return LIEN_ENOMEM;
    return lieni_hs_start(conn->hs, server, &offer, seed, ctx->keys);
}

// Sends what the handshake has to say; the rest when the stream is writable.
static int flush(struct lien_conn *conn)
{
    struct lieni_handshake *hs = conn->hs;
    while (hs->out_len > 0) {
        int64_t n = conn->ctx->platform.net->write(conn->stream, hs->out, hs->out_len);
        if (n == LIEN_EAGAIN || n == 0)
            return 0;
        if (n < 0)
            return (int)n;
        lieni_hs_sent(hs, (size_t)n);
    }
    return 0;
}

// What both offers make of this connection's limits.
static void agree(struct lien_conn *conn)
{
    const struct lieni_handshake *hs = conn->hs;
    struct lieni_link *link = &conn->link;
    conn->id = hs->conn_id;
    lieni_strand_conn(conn->strand, conn->id);
    conn->message_max = hs->peer.message_max;
    // Neither side says how much the other has to remember: as with calls the smaller offer holds, in both directions.
    conn->grants.max = hs->local.grants_max < hs->peer.grants_max ? hs->local.grants_max
                                                                  : hs->peer.grants_max;
    conn->imports.max = conn->grants.max;
    link->frame_max = hs->local.frame_max;
    link->peer_frame_max = hs->peer.frame_max;
    link->message_left = link->message_spent_max = hs->peer.message_credits;
    link->control_left = link->control_spent_max = hs->peer.control_credits;
    link->message_all = link->peer_message_left = hs->local.message_credits;
    link->control_all = link->peer_control_left = hs->local.control_credits;
    conn->peer_dead_ms = hs->peer.dead_ms;
    memcpy(conn->peer_instance, hs->peer.nonce, sizeof(conn->peer_instance));
}

// A body is one READ, so what the provider moves in one bounds both directions: sender and receiver know the provider.
static void bound_bodies(struct lien_conn *conn)
{
    uint64_t most = conn->ops->traits->read_batch_max;
    if (most == 0)
        return;
    conn->message_max = conn->message_max < most ? conn->message_max : most;
    conn->body_max = conn->body_max < most ? conn->body_max : most;
}

// Undoes what prepare() did for an endpoint that was never made.
static void unprepare(struct lien_conn *conn)
{
    enum lieni_wr_kind kind;
    void *owner;
    while (lieni_wrs_abandon(&conn->wrs, &kind, &owner))
        ; // never posted
    lieni_link_close(conn, false);
    lieni_wrs_close(&conn->wrs);
    lieni_nic_leave(conn, 0);
    lieni_nic_endpoint_gone(conn->nic);
    conn->nic = NULL;
}

// Its frames are lent to the provider as long as the endpoint lives. Where its end proves nothing there must be room for them.
static int lend_slab(struct lien_conn *conn, struct lieni_recv **recvs)
{
    const uint64_t bytes = lien_buf_len(conn->link.slab);
    int rc = lieni_nic_may_hold(conn, bytes, "new connections");
    if (rc != 0) {
        free(*recvs);
        *recvs = NULL;
        return rc;
    }
    lieni_nic_hold(conn, bytes);
    return 0;
}

// NIC, work requests, slab: everything an endpoint needs.
static int prepare(struct lien_conn *conn, struct lieni_ep_args *args, struct lieni_recv **recvs)
{
    lien_ctx *ctx = conn->ctx;
    const struct lieni_prov_slot *slot = lieni_providers_named(ctx, conn->hs->provider);
    const struct lieni_target target = target_of(conn);
    struct lieni_selected local;
    if (!slot)
        return LIEN_ENOCOMMON;
    int rc = lieni_providers_local(ctx, slot, &target, &local);
    if (rc == 0)
        rc = lieni_nic_get(ctx, slot, &local, &conn->nic);
    if (rc != 0)
        return rc;
    memcpy(conn->fabric_host, local.address, sizeof(conn->fabric_host));
    memcpy(conn->nic_name, local.nic, sizeof(conn->nic_name));
    conn->soft = local.soft;
    agree(conn);
    conn->ops = slot->ops;
    bound_bodies(conn);
    conn->reads_max = conn->nic->limits.reads_max;
    if (ctx->options.reads_per_nic < conn->reads_max) // more are never in flight; it sizes queues
        conn->reads_max = (uint32_t)ctx->options.reads_per_nic;
    // The peer speaks of its device: that matters where ours is of such a kind, too.
    if (local.read_depth != 0 && conn->hs->peer.read_depth != 0 &&
        conn->hs->peer.read_depth < conn->reads_max)
        conn->reads_max = conn->hs->peer.read_depth;
    uint32_t calls = conn->hs->local.call_credits < conn->hs->peer.call_credits
                         ? conn->hs->local.call_credits
                         : conn->hs->peer.call_credits;
    uint32_t posts = calls + conn->link.message_all + conn->link.control_all + LIENI_SENDS_MAX +
                     conn->reads_max;
    if (posts > conn->nic->limits.posts_max)
        rc = LIEN_ELIMIT;
    if (rc == 0)
        rc = lieni_nic_join(conn);
    if (rc == 0)
        rc = lieni_wrs_open(&conn->wrs, posts, conn->id);
    conn->wrs.trace = conn->trace;
    if (rc == 0)
        rc = lieni_calls_open(conn, calls, conn->hs->server);
    if (rc == 0)
        rc = lieni_link_open(conn, recvs);
    if (rc == 0)
        rc = lend_slab(conn, recvs);
    if (rc != 0) {
        unprepare(conn);
        return rc;
    }
    *args = (struct lieni_ep_args){.user = conn,
                                   .recvs = *recvs,
                                   .n_recvs = conn->link.n_recv,
                                   .posts_max = posts,
                                   .port_lo = ctx->options.fabric_port_lo,
                                   .port_hi = ctx->options.fabric_port_hi};
    lieni_hs_cm_data(conn->hs, conn->hs->server, args->send_data);
    lieni_hs_cm_data(conn->hs, !conn->hs->server, args->expect_data);
    return 0;
}

// What the peer is told: nothing where the fabric listener is at the address that the bootstrap reached.
static const char *place_of(const struct lien_conn *conn)
{
    const char *advertise = conn->ctx->options.advertise;
    if (advertise[0])
        return advertise;
    return strcmp(conn->fabric_host, conn->local_host) == 0 ? "" : conn->fabric_host;
}

static int make_endpoint(struct lien_conn *conn)
{
    struct lieni_ep_args args;
    struct lieni_recv *recvs = NULL;
    uint16_t port = 0;
    int rc = prepare(conn, &args, &recvs);
    if (rc != 0)
        return rc;
    const struct lieni_log_at at = lieni_conn_at(conn, 0);
    lieni_providers_agreed(conn->ctx, conn->hs, &at);
    if (conn->hs->server) {
        args.host = conn->fabric_host;
        rc = conn->ops->listen(conn->nic->domain, &args, &conn->ep, &port);
    } else {
        // An empty host is the address that the bootstrap reached.
        args.host = conn->hs->host[0] ? conn->hs->host : conn->peer_host;
        args.port = conn->hs->port;
        args.name = conn->dialled[0] ? conn->dialled : NULL;
        rc = conn->ops->connect(conn->nic->domain, &args, &conn->ep);
    }
    free(recvs);
    if (rc != 0) {
        conn->ep = NULL;
        unprepare(conn);
        return rc;
    }
    lieni_conn_set_state(conn, LIENI_CONN_FABRIC);
    if (conn->hs->server)
        rc = lieni_hs_place(conn->hs, place_of(conn), port);
    return rc;
}

struct foreign {
    struct lieni_task task;
    struct lien_listener *listener;
    int fd;
    size_t len;
    uint8_t first[];
};

static void run_foreign(struct lieni_task *task)
{
    struct foreign *f = lieni_container(task, struct foreign, task);
    struct lien_listener *listener = f->listener;
    lien_ctx *ctx = listener->ctx;
    listener->opts.on_foreign(listener, f->fd, f->first, f->len, listener->opts.arg);
    free(f);
    lieni_ctx_lock(ctx);
    listener->n_foreign--;
    lieni_listener_unref(listener);
    lieni_ctx_unlock(ctx);
}

// The first bytes are not ours: the host stack gets the descriptor.
static void give_away(struct lien_conn *conn)
{
    struct lien_listener *listener = conn->listener;
    const struct lieni_handshake *hs = conn->hs;
    bool wanted = listener->opts.on_foreign &&
                  listener->n_foreign < conn->ctx->options.half_open_max;
    struct foreign *f = wanted ? malloc(sizeof(*f) + hs->in_len) : NULL;
    if (f) {
        *f = (struct foreign){.task.run = run_foreign, .listener = listener, .len = hs->in_len};
        memcpy(f->first, hs->in, hs->in_len);
        f->fd = conn->ctx->platform.net->detach(conn->stream);
        conn->stream = NULL;
        listener->refs++;
        listener->n_foreign++;
        lieni_strand_post(listener->strand, &f->task);
    }
    lieni_conn_lose(conn, LIEN_EPROTO, f ? NULL : "the first bytes are not Lien's");
}

static bool wants_endpoint(const struct lien_conn *conn)
{
    return conn->state == LIENI_CONN_BOOT && conn->hs &&
           (conn->hs->state == LIENI_HS_SERVER_PLACE || conn->hs->state == LIENI_HS_READY);
}

// Whether the endpoint may be made now; if not, its turn will come.
static bool has_turn(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    if (conn->fabric_counted)
        return true;
    if (ctx->fabric_pending >= LIENI_FABRIC_MAX) {
        if (!lieni_node_in(&conn->fabric_node))
            lieni_list_append(&ctx->fabric_queue, &conn->fabric_node);
        return false;
    }
    conn->fabric_counted = true;
    ctx->fabric_pending++;
    return true;
}

void lieni_conn_fabric_over(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    lieni_list_remove(&conn->fabric_node);
    if (conn->fabric_counted)
        ctx->fabric_pending--;
    conn->fabric_counted = false;
    if (ctx->fabric_pending >= LIENI_FABRIC_MAX)
        return;
    struct lieni_node *n = lieni_list_pop(&ctx->fabric_queue);
    if (n)
        lieni_conn_kick(lieni_container(n, struct lien_conn, fabric_node));
}

// After any change of the handshake: what follows from its state.
static void advance(struct lien_conn *conn)
{
    struct lieni_handshake *hs = conn->hs;
    int rc = 0;
    if (hs->state == LIENI_HS_FOREIGN) {
        give_away(conn);
        return;
    }
    if (wants_endpoint(conn) && has_turn(conn)) {
        rc = make_endpoint(conn);
        if (rc != 0 && hs->server)
            lieni_hs_refuse(hs, rc, lien_strerror(rc));
    }
    int sent = flush(conn);
    if (hs->state == LIENI_HS_FAILED)
        lieni_conn_lose(conn, hs->status ? hs->status : rc, hs->text);
    else if (rc != 0 || sent != 0)
        lieni_conn_lose(conn, rc ? rc : sent, "bootstrap");
}

void lieni_conn_fabric_turn(struct lien_conn *conn)
{
    if (wants_endpoint(conn))
        advance(conn);
}

// Reads what has come. The end of the stream is fed as no bytes.
static void feed(struct lien_conn *conn)
{
    const struct lieni_net_ops *net = conn->ctx->platform.net;
    uint8_t bytes[1024];
    while (conn->hs && conn->stream) {
        int64_t n = net->read(conn->stream, bytes, sizeof(bytes));
        if (n == LIEN_EAGAIN)
            return;
        size_t len = n > 0 ? (size_t)n : 0;
        size_t used = lieni_hs_input(conn->hs, bytes, len);
        advance(conn);
        if (len == 0 && conn->hs) // the peer gave up before its fabric connection was there
            lieni_conn_lose(conn, LIEN_ECLOSED,
                            "the bootstrap ended before the connection was open");
        if (len == 0 || used < len)
            return;
    }
}

// The stream of an open connection: its end is a hint to ask the peer, and never evidence.
static void after_open(struct lien_conn *conn)
{
    uint8_t byte;
    int64_t n = conn->ctx->platform.net->read(conn->stream, &byte, 1);
    if (n == LIEN_EAGAIN)
        return;
    conn->ctx->platform.net->stream_close(conn->stream);
    conn->stream = NULL;
    if (conn->state == LIENI_CONN_OPEN)
        lieni_liveness_ask(conn);
}

void lieni_conn_on_net(struct lien_conn *conn, const struct lieni_net_event *ev)
{
    if (!conn->stream)
        return;
    switch (ev->kind) {
    case LIENI_NET_CONNECTED: {
        int rc = start_handshake(conn, false);
        if (rc != 0)
            lieni_conn_lose(conn, rc, "bootstrap");
        else
            advance(conn);
        break;
    }
    case LIENI_NET_FAILED:
        lieni_conn_lose(conn, ev->status, "bootstrap connection");
        break;
    case LIENI_NET_READABLE:
        if (conn->hs)
            feed(conn);
        else if (conn->was_open)
            after_open(conn);
        break;
    case LIENI_NET_WRITABLE:
        if (conn->hs)
            advance(conn);
        break;
    case LIENI_NET_ACCEPTED:
        break;
    }
}

void lieni_conn_start_server(struct lien_conn *conn, struct lieni_stream *stream)
{
    conn->stream = stream;
    conn->ctx->platform.net->stream_user(stream, conn);
    int rc = start_handshake(conn, true);
    if (rc != 0)
        lieni_conn_lose(conn, rc, "bootstrap");
    else
        feed(conn); // what came with the connection
}

void lieni_conn_on_up(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    if (conn->state != LIENI_CONN_FABRIC)
        return;
    lieni_conn_set_state(conn, LIENI_CONN_OPEN);
    conn->was_open = true;
    lieni_timer_clear(&ctx->timers, &conn->timer);
    lieni_conn_fabric_over(conn);
    free(conn->hs);
    conn->hs = NULL;
    if (conn->half_open)
        ctx->half_open--;
    conn->half_open = false;
    ctx->stats.conns_open++;
    ctx->stats.conns_total++;
    int rc = lieni_liveness_open(conn);
    if (rc != 0) {
        lieni_conn_lose(conn, rc, "connection open");
        return;
    }
    struct lieni_log_at at = lieni_conn_at(conn, 0);
    lieni_log_say(
        ctx->log, LIEN_LOG_INFO, &at, 0,
        "connection open, path %s%s; the peer takes a silence of %u ms for our death (0: never)",
        lien_path_name(conn->ops->traits->path), conn->soft ? " (soft)" : "", conn->peer_dead_ms);
    if (conn->listener)
        lieni_listener_opened(conn->listener, conn);
    else if (conn->has_handle && !conn->quiet)
        lieni_conn_post(conn, &conn->open_task);
    else if (conn->has_handle)
        lieni_requests_ready(conn);
    if (conn->channel)
        lieni_channel_up(conn->channel);
    lieni_ctx_changed(ctx);
    if (conn->stream)
        after_open(conn); // its end may have been read already
}
