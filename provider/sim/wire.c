// SPDX-License-Identifier: Apache-2.0
//
// What moves between simulated NICs: connection requests, SENDs, READs chunk by chunk, breaks and what follows them. SENDs arrive in order, READs are served in order, but a
// SEND may overtake a READ posted before it. A READ's bytes are fetched when they are served, so a source changed too early shows. After a break each outstanding operation
// goes on until its flush entry, which may be withheld; then late writes follow until destruction proves that they cannot.

#include "provider/sim/internal.h"

#include <stdlib.h>
#include <string.h>

static uint64_t latency(struct lieni_sim_world *world)
{
    return sim_in(world, world->config.latency);
}

// `clock` moves to a time after `at` and after all that went before.
static uint64_t in_order(uint64_t *clock, uint64_t at)
{
    if (at <= *clock)
        at = *clock + 1;
    *clock = at;
    return at;
}

void sim_op_queue(struct sim_queue *queue, struct sim_op *op)
{
    op->next_queued = NULL;
    if (queue->tail)
        queue->tail->next_queued = op;
    else
        queue->head = op;
    queue->tail = op;
}

struct sim_op *sim_op_unqueue(struct sim_queue *queue)
{
    struct sim_op *op = queue->head;
    if (!op)
        return NULL;
    queue->head = op->next_queued;
    if (!queue->head)
        queue->tail = NULL;
    op->next_queued = NULL;
    return op;
}

// -- Entries -----------------------------------------------------------------------------------------------------------------------

static void spurious_entry(struct sim_op *op)
{
    struct lieni_sim_world *world = op->ep->node->world;
    uint64_t dice = sim_rand(&world->rng);
    bool again = dice & 1;
    // Once more, without a context, or with one that nobody ever posted.
    uint64_t context = again ? op->context : dice & 2 ? 0 : sim_rand(&world->rng) | 1u;
    bool success = dice & 4;
    struct lieni_event event = {.kind = LIENI_EV_ENTRY,
                                .cqe = {.context = context,
                                        .status = success ? 0 : LIEN_EIO,
                                        .provider_error = success ? 0 : 125,
                                        .len = success ? op->len : 0}};
    sim_fault(world, LIENI_SIM_SPURIOUS, op->ep->args.user);
    sim_note(world, "spurious", op->ep->node, op->number, again, 0);
    sim_ready_push(op->ep, NULL, &event);
}

static void fire_entry(struct lieni_sim_world *world, struct sim_event *ev)
{
    sim_entry(ev->op, (int)(int64_t)ev->value, ev->len);
    if (sim_chance(world, world->config.p_spurious / 32))
        spurious_entry(ev->op);
}

static void plan_ghosts(struct sim_op *op);

static void plan_entry(struct sim_op *op, uint64_t at, int status, size_t len)
{
    struct lieni_ep *ep = op->ep;
    struct lieni_sim_world *world = ep->node->world;
    if (op->kind != SIM_RECV && ep->state == SIM_EP_UP &&
        sim_struck(ep, LIENI_SIM_LOST, world->config.p_lost)) {
        world->counts.entries_withheld++;
        sim_fault(world, LIENI_SIM_LOST, ep->args.user);
        sim_note(world, "entry lost", ep->node, op->number, 0, 0);
        plan_ghosts(op);
        return;
    }
    at = in_order(&ep->entry_clock[op->kind], at + sim_in(world, world->config.completion));
    struct sim_event *ev = sim_plan(world, ep->node, at, fire_entry);
    ev->needs_process = world->config.target_polls;
    ev->op = op;
    ev->value = (uint64_t)(int64_t)status;
    ev->len = len;
}

// -- Late writes -------------------------------------------------------------------------------------------------------------------

static void fire_ghost(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct sim_op *op = ev->op;
    if (!op->lent || !op->engine || !op->len)
        return;
    size_t at = sim_rand(&world->rng) % op->len;
    size_t n = 1 + sim_rand(&world->rng) % (op->len - at < 4096 ? op->len - at : 4096);
    int garbage = (int)(sim_rand(&world->rng) & 255);
    world->counts.ghost_writes++;
    world->counts.read_steps += op->kind == SIM_READ;
    sim_note(world, "ghost write", op->ep->node, op->number, at, n);
    if (sim_shadow_write(op, op->addr + at, n))
        memset(op->addr + at, garbage, n);
}

static void plan_ghosts(struct sim_op *op)
{
    struct lieni_sim_world *world = op->ep->node->world;
    if (op->kind == SIM_SEND || !op->engine)
        return;
    struct lieni_sim_range range = world->config.ghost;
    for (uint64_t i = 1 + sim_rand(&world->rng) % 3; i > 0; i--) {
        sim_plan(world, op->ep->node, world->now + sim_in(world, range), fire_ghost)->op = op;
        range.max = range.min + (range.max - range.min) / 8; // some soon, some much later
    }
}

// -- Entries that the close makes up -----------------------------------------------------------------------------------------------

// As verbs has them: the queue's list is flushed into entries whether or not the queue is gone. The operation stays lent, and its engine goes on.
static void fire_made_up(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct sim_op *op = ev->op;
    bool success = ev->value & 1;
    struct lieni_event event = {.kind = LIENI_EV_ENTRY,
                                .cqe = {.context = op->context,
                                        .status = success ? 0 : LIEN_ECANCELED,
                                        .provider_error = success ? 0 : 125,
                                        .len = success ? op->len : 0}};
    if (!op->engine || op->ep->state == SIM_EP_GONE)
        return;
    world->counts.made_up++;
    sim_fault(world, LIENI_SIM_MADE_UP, op->ep->args.user);
    sim_note(world, "made up", op->ep->node, op->number, success, 0);
    sim_ready_push(op->ep, NULL, &event);
    plan_ghosts(op);
}

void sim_make_up(struct lieni_ep *ep)
{
    struct lieni_sim_world *world = ep->node->world;
    for (struct sim_op *op = ep->live_head; op; op = op->next_live) {
        if (!op->engine || !sim_chance(world, world->config.p_made_up))
            continue;
        uint64_t dice = sim_rand(&world->rng);
        // At once, or some time later; success is rare.
        uint64_t at = world->now + (dice & 1 ? 0 : sim_in(world, world->config.flush));
        struct sim_event *ev = sim_plan(world, ep->node, at, fire_made_up);
        ev->op = op;
        ev->value = (dice >> 1 & 7) == 0;
    }
}

// -- Breaks ------------------------------------------------------------------------------------------------------------------------

static void fire_flush(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct sim_op *op = ev->op;
    if (!op->lent || op->entry_made || op->filled || op->ep->state == SIM_EP_GONE)
        return;
    sim_entry(op, op->ep->shut ? LIEN_ECLOSED : LIEN_EIO, 0);
    if (sim_chance(world, world->config.p_spurious))
        spurious_entry(op);
}

static void flush_one(struct sim_op *op)
{
    struct lieni_ep *ep = op->ep;
    struct lieni_sim_world *world = ep->node->world;
    if (sim_chance(world, world->config.p_withhold)) {
        world->counts.entries_withheld++;
        sim_fault(world, LIENI_SIM_WITHHOLD, ep->args.user);
        plan_ghosts(op);
        return;
    }
    uint64_t at = in_order(&ep->flush_clock, world->now + sim_in(world, world->config.flush));
    struct sim_event *ev = sim_plan(world, ep->node, at, fire_flush);
    ev->needs_process = world->config.target_polls;
    ev->op = op;
}

static void flush_all(struct lieni_ep *ep)
{
    for (struct sim_op *op = ep->live_head; op; op = op->next_live)
        if (!op->entry_made)
            flush_one(op);
}

static void fire_serve_stop(struct lieni_sim_world *world, struct sim_event *ev)
{
    (void)world;
    ev->ep->serving = false;
}

void sim_say_down(struct lieni_ep *ep, int status)
{
    struct lieni_event event = {.kind = ep->up_at ? LIENI_EV_DOWN : LIENI_EV_FAILED,
                                .status = status,
                                .provider_error = 104};
    sim_note(ep->node->world, "down", ep->node, ep->number, (uint64_t)(int64_t)status, 0);
    sim_ready_push(ep, NULL, &event);
}

static void fire_say_down(struct lieni_sim_world *world, struct sim_event *ev)
{
    (void)world;
    sim_say_down(ev->ep, (int)(int64_t)ev->value);
}

static void fire_peer_broke(struct lieni_sim_world *world, struct sim_event *ev)
{
    (void)world;
    sim_break(ev->ep, (int)(int64_t)ev->value, true);
}

void sim_break(struct lieni_ep *ep, int status, bool silent)
{
    struct lieni_sim_world *world = ep->node->world;
    if (ep->state == SIM_EP_BROKEN || ep->state == SIM_EP_GONE)
        return;
    bool listening = ep->state == SIM_EP_LISTENING;
    ep->state = SIM_EP_BROKEN;
    world->counts.breaks++;
    sim_note(world, "break", ep->node, ep->number, (uint64_t)(int64_t)status, silent);
    if (!listening) {
        uint64_t at = world->now + latency(world);
        if (at <= ep->up_at)
            at = ep->up_at + 1;
        struct sim_event *ev = sim_plan(world, ep->node, at, fire_say_down);
        ev->needs_process = world->config.target_polls;
        ev->ep = ep;
        ev->value = (uint64_t)(int64_t)status;
    }
    flush_all(ep);
    if (sim_rand(&world->rng) & 1)
        sim_plan(world, ep->node, world->now + sim_in(world, world->config.flush), fire_serve_stop)
            ->ep = ep;
    struct lieni_ep *peer = ep->peer;
    if (!peer || silent)
        return;
    // A close follows what was sent before it, a fault does not.
    uint64_t at = world->now + latency(world);
    if (status == LIEN_ECLOSED)
        at = in_order(&ep->send_clock, at);
    struct sim_event *ev = sim_plan(world, peer->node, at, fire_peer_broke);
    ev->needs_process = world->config.target_polls;
    ev->ep = peer;
    ev->value = (uint64_t)(int64_t)(status == LIEN_ECLOSED ? LIEN_ECLOSED : LIEN_EIO);
}

void lieni_sim_break_ep(struct lieni_ep *ep)
{
    if (!ep->node->killed)
        sim_break(ep, LIEN_EIO, false);
}

static void plan_serve(struct lieni_ep *ep);

void sim_ep_end(struct lieni_ep *ep, bool proven)
{
    struct lieni_sim_world *world = ep->node->world;
    if (proven) {
        ep->serving = false;
        while (sim_op_unqueue(&ep->serve))
            ;
        while (ep->live_head)
            sim_op_over(ep->live_head);
        return;
    }
    for (struct sim_op *op = ep->live_head; op; op = op->next_live)
        if (!op->entry_made)
            plan_ghosts(op);
    if (sim_rand(&world->rng) & 1)
        plan_serve(ep);
    else
        ep->serving = false;
}

// -- Connecting --------------------------------------------------------------------------------------------------------------------

static struct sim_event *plan_cm(struct lieni_ep *ep, struct sim_node *at_node,
                                 void (*fire)(struct lieni_sim_world *, struct sim_event *))
{
    struct lieni_sim_world *world = ep->node->world;
    struct sim_event *ev = sim_plan(world, at_node, world->now + latency(world), fire);
    ev->needs_process = true;
    ev->ep = ep;
    return ev;
}

static void fire_failed(struct lieni_sim_world *world, struct sim_event *ev)
{
    if (ev->ep->state != SIM_EP_CONNECTING)
        return;
    ev->ep->state = SIM_EP_BROKEN;
    sim_fault(world, LIENI_SIM_CONNECT, ev->ep->args.user);
    sim_note(world, "failed", ev->ep->node, ev->ep->number, ev->value, 0);
    struct lieni_event event = {
        .kind = LIENI_EV_FAILED, .status = (int)(int64_t)ev->value, .provider_error = 111};
    sim_ready_push(ev->ep, NULL, &event);
    flush_all(ev->ep);
}

static void plan_failed(struct lieni_ep *ep, int status)
{
    plan_cm(ep, ep->node, fire_failed)->value = (uint64_t)(int64_t)status;
}

static void take_parked(struct lieni_ep *ep);

static void say_up(struct lieni_ep *ep)
{
    struct lieni_event event = {.kind = LIENI_EV_UP};
    ep->state = SIM_EP_UP;
    sim_note(ep->node->world, "up", ep->node, ep->number, ep->peer->number, 0);
    sim_ready_push(ep, NULL, &event);
    take_parked(ep);
}

static void fire_up_passive(struct lieni_sim_world *world, struct sim_event *ev)
{
    (void)world;
    if (ev->ep->state == SIM_EP_CONNECTING)
        say_up(ev->ep);
}

// At the connecting side: the listener's answer.
static void fire_accepted(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct lieni_ep *ep = ev->ep, *peer = ep->peer;
    if (ep->state != SIM_EP_CONNECTING) { // given up meanwhile
        plan_failed(peer, LIEN_ECLOSED);
        return;
    }
    if (memcmp(ep->args.expect_data, peer->args.send_data, LIENI_CM_DATA) != 0) {
        plan_failed(ep, LIEN_EPROTO);
        plan_failed(peer, LIEN_EPROTO);
        return;
    }
    ep->slow = peer->slow = sim_chance(world, world->config.p_slow);
    ep->serving = peer->serving = true;
    ep->up_at = world->now;
    peer->up_at = world->now + 1 + latency(world);
    ep->send_clock = ep->read_clock = ep->chunk_clock = peer->up_at; // nothing arrives before UP
    say_up(ep);
    struct sim_event *up = sim_plan(world, peer->node, peer->up_at, fire_up_passive);
    up->needs_process = true;
    up->ep = peer;
}

// At the listening side: the request of `ev->ep`.
static void fire_request(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct lieni_ep *from = ev->ep, *l = world->eps;
    if (from->state != SIM_EP_CONNECTING)
        return;
    while (l && (l->node != ev->node || l->state != SIM_EP_LISTENING || l->port != ev->value))
        l = l->next;
    if (!l || memcmp(l->args.expect_data, from->args.send_data, LIENI_CM_DATA) != 0) {
        sim_note(world, "refused", ev->node, from->number, l != NULL, 0);
        plan_failed(from, LIEN_EREFUSED);
        return;
    }
    l->state = SIM_EP_CONNECTING; // its port is closed
    l->peer = from;
    from->peer = l;
    plan_cm(from, from->node, fire_accepted);
}

void sim_connect(struct lieni_ep *ep)
{
    struct lieni_sim_world *world = ep->node->world;
    struct sim_node *target = NULL;
    for (unsigned i = 0; ep->args.host && i < world->config.nodes; i++)
        if (strcmp(world->nodes[i].host, ep->args.host) == 0)
            target = &world->nodes[i];
    if (!target || sim_chance(world, world->config.p_connect_fail)) {
        plan_failed(ep, LIEN_EREFUSED);
        return;
    }
    plan_cm(ep, target, fire_request)->value = ep->args.port;
}

// -- SEND --------------------------------------------------------------------------------------------------------------------------

static void fill_receive(struct lieni_ep *ep, struct sim_op *op, const uint8_t *data, size_t len)
{
    if (len > op->len) {
        sim_entry(op, LIEN_EIO, 0);
        sim_break(ep, LIEN_EIO, false);
        return;
    }
    bool false_one = sim_struck(ep, LIENI_SIM_FALSE_RECV, ep->node->world->config.p_false_recv);
    if (false_one)
        sim_fault(ep->node->world, LIENI_SIM_FALSE_RECV, ep->args.user);
    if (sim_shadow_write(op, op->addr, len) && len && !false_one)
        memcpy(op->addr, data, len);
    op->filled = true;
    plan_entry(op, ep->node->world->now, 0, len);
}

// The next receive that the engine may still fill.
static struct sim_op *next_receive(struct lieni_ep *ep)
{
    struct sim_op *op;
    do
        op = sim_op_unqueue(&ep->recvs);
    while (op && !op->engine);
    return op;
}

// The message waits for a receive, or for UP.
static void park(struct lieni_ep *ep, struct sim_event *ev)
{
    struct lieni_sim_world *world = ep->node->world;
    struct sim_message *m = sim_alloc(sizeof *m);
    if (ep->state == SIM_EP_UP) {
        world->counts.starved++;
        if (world->config.starved_fails)
            lieni_sim_violate(world, "node %u ep #%llu: a SEND of %zu bytes found no receive (R22)",
                              ep->node->index, (unsigned long long)ep->number, ev->len);
    }
    m->data = ev->data;
    m->len = ev->len;
    ev->data = NULL;
    *ep->inbox_tail = m;
    ep->inbox_tail = &m->next;
}

static void fire_deliver(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct lieni_ep *ep = ev->ep;
    if (ep->state == SIM_EP_GONE)
        return;
    sim_note(world, "deliver", ep->node, ev->op->number, ep->number, ev->len);
    bool early = ep->state == SIM_EP_CONNECTING; // its process did not say UP yet
    struct sim_op *op = ep->inbox || early ? NULL : next_receive(ep);
    if (op)
        fill_receive(ep, op, ev->data, ev->len);
    else
        park(ep, ev);
    if (!world->config.target_polls) // the acknowledgement
        plan_entry(ev->op, world->now + latency(world), 0, 0);
}

static void take_parked(struct lieni_ep *ep)
{
    while (ep->inbox && ep->recvs.head) {
        struct sim_op *op = next_receive(ep);
        if (!op)
            return;
        struct sim_message *m = ep->inbox;
        ep->inbox = m->next;
        if (!ep->inbox)
            ep->inbox_tail = &ep->inbox;
        fill_receive(ep, op, m->data, m->len);
        free(m->data);
        free(m);
    }
}

void sim_wire_recv(struct lieni_ep *ep)
{
    if (ep->state != SIM_EP_UP)
        flush_one(ep->recvs.tail);
    take_parked(ep);
}

// Some bytes of a SEND change, or it gets shorter.
static size_t spoil(struct lieni_ep *ep, uint8_t *data, size_t len)
{
    struct lieni_sim_world *world = ep->node->world;
    if (!len || !sim_struck(ep, LIENI_SIM_GARBAGE, world->config.p_garbage))
        return len;
    sim_fault(world, LIENI_SIM_GARBAGE, ep->args.user);
    sim_note(world, "garbage", ep->node, ep->number, len, 0);
    for (uint64_t n = 1 + sim_rand(&world->rng) % 4; n > 0; n--)
        data[sim_rand(&world->rng) % len] ^= (uint8_t)(1 + sim_rand(&world->rng) % 255);
    return sim_rand(&world->rng) % 4 ? len : 1 + sim_rand(&world->rng) % len;
}

static void fire_send_fetch(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct sim_op *op = ev->op;
    struct lieni_ep *ep = op->ep;
    if (!op->engine || ep->state != SIM_EP_UP)
        return;
    uint8_t *copy = sim_alloc(op->len);
    if (sim_shadow_fetch(op, op->addr, op->len) && op->len)
        memcpy(copy, op->addr, op->len);
    op->filled = true;
    if (sim_struck(ep, LIENI_SIM_FALSE_SEND, world->config.p_false_send)) {
        sim_fault(world, LIENI_SIM_FALSE_SEND, ep->args.user);
        free(copy);
        plan_entry(op, world->now, 0, 0);
        return;
    }
    uint64_t at = in_order(&ep->send_clock, world->now + latency(world));
    struct sim_event *out = sim_plan(world, ep->peer->node, at, fire_deliver);
    out->needs_process = world->config.target_polls;
    out->ep = ep->peer;
    out->op = op;
    out->data = copy;
    out->len = spoil(ep, copy, op->len);
    if (world->config.target_polls)
        plan_entry(op, world->now, 0, 0); // the kernel has it
    else
        op->filled = false; // until acknowledged
}

void sim_wire_send(struct sim_op *op)
{
    struct lieni_ep *ep = op->ep;
    struct lieni_sim_world *world = ep->node->world;
    if (ep->state != SIM_EP_UP) {
        flush_one(op);
        return;
    }
    uint64_t at = in_order(&ep->fetch_clock, world->now + sim_in(world, world->config.completion));
    sim_plan(world, ep->node, at, fire_send_fetch)->op = op;
}

// -- READ --------------------------------------------------------------------------------------------------------------------------

static void fire_chunk(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct sim_op *op = ev->op;
    if (!op->lent || !op->engine)
        return;
    world->counts.read_chunks++;
    world->counts.read_steps++;
    sim_note(world, "chunk", op->ep->node, op->number, ev->value, ev->len);
    if (op->ep->state != SIM_EP_UP)
        world->counts.ghost_writes++;
    if (sim_shadow_write(op, op->addr + ev->value, ev->len) && ev->len && !op->hollow)
        memcpy(op->addr + ev->value, ev->data, ev->len);
    op->written += ev->len;
    if (op->written < op->len)
        return;
    op->filled = true;
    plan_entry(op, world->now, 0, 0);
}

static void fire_serve(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct lieni_ep *ep = ev->ep;
    ep->serve_planned = false;
    if (!ep->serving || !ep->serve.head)
        return;
    if (!world->config.target_polls || ep->state == SIM_EP_GONE) {
        sim_serve(ep);
    } else if (!ep->serve_due) {
        ep->serve_due = true;
        ep->node->serves_due++;
    }
}

static void plan_serve(struct lieni_ep *ep)
{
    struct lieni_sim_world *world = ep->node->world;
    if (ep->serve_planned || ep->serve_due || !ep->serving || !ep->serve.head || ep->stalled)
        return;
    uint64_t gap = sim_in(world, world->config.chunk_gap);
    if (ep->slow)
        gap *= world->config.slow_factor;
    ep->serve_planned = true;
    sim_plan(world, ep->node, world->now + gap, fire_serve)->ep = ep;
}

static void refuse_read(struct lieni_ep *ep, struct sim_op *op)
{
    struct lieni_sim_world *world = ep->node->world;
    world->counts.refused_reads++;
    sim_note(world, "READ refused", ep->node, op->number, op->remote_addr, 0);
    if (world->config.traits.refused_read_kills)
        sim_break(ep, LIEN_EIO, false);
    else
        plan_entry(op, world->now + latency(world), LIEN_EIO, 0);
}

void sim_serve(struct lieni_ep *ep)
{
    struct lieni_sim_world *world = ep->node->world;
    struct sim_op *op = ep->serve.head;
    if (!op || !ep->serving)
        return;
    if (!world->config.key_checked_once && op->src_mr->closed) {
        sim_op_unqueue(&ep->serve);
        refuse_read(ep, op);
        plan_serve(ep);
        return;
    }
    size_t n = sim_in(world, world->config.chunk);
    if (n > op->len - op->fetched)
        n = op->len - op->fetched;
    uint64_t at = in_order(&ep->chunk_clock, world->now + latency(world));
    struct sim_event *ev = sim_plan(world, op->ep->node, at, fire_chunk);
    ev->needs_process = world->config.target_polls;
    ev->op = op;
    ev->value = op->fetched;
    ev->len = n;
    ev->data = sim_alloc(n);
    sim_note(world, "serve", ep->node, op->number, op->fetched, n);
    if (sim_shadow_fetch(op, op->src + op->fetched, n) && n)
        memcpy(ev->data, op->src + op->fetched, n);
    op->fetched += n;
    if (op->fetched == op->len)
        sim_op_unqueue(&ep->serve);
    plan_serve(ep);
}

static void fire_read_request(struct lieni_sim_world *world, struct sim_event *ev)
{
    struct lieni_ep *ep = ev->ep;
    struct sim_op *op = ev->op;
    if (!ep->serving)
        return;
    struct lieni_mr *mr = ep->domain->regions;
    while (mr && mr->key != op->remote_key)
        mr = mr->next;
    uint64_t at = mr ? op->remote_addr - mr->base : 0;
    if (!mr || !(mr->access & LIENI_ACCESS_REMOTE) || at > mr->len || op->len > mr->len - at) {
        refuse_read(ep, op);
        return;
    }
    op->src_mr = mr;
    op->src = mr->addr + at;
    op->hollow = sim_struck(op->ep, LIENI_SIM_HOLLOW, world->config.p_hollow);
    if (op->hollow)
        sim_fault(world, LIENI_SIM_HOLLOW, op->ep->args.user);
    if (!ep->stalled && sim_struck(op->ep, LIENI_SIM_STALL, world->config.p_stall)) {
        ep->stalled = true;
        sim_fault(world, LIENI_SIM_STALL, op->ep->args.user);
        sim_note(world, "stalls", ep->node, ep->number, 0, 0);
    }
    sim_op_queue(&ep->serve, op);
    plan_serve(ep);
}

void sim_wire_read(struct sim_op *op)
{
    struct lieni_ep *ep = op->ep;
    struct lieni_sim_world *world = ep->node->world;
    if (ep->state != SIM_EP_UP) {
        flush_one(op);
        return;
    }
    // It does not overtake SENDs posted before it, also those not fetched yet.
    uint64_t at = world->now + latency(world), sends = ep->send_clock;
    if (ep->fetch_clock >= world->now && sends < ep->fetch_clock + world->config.latency.max)
        sends = ep->fetch_clock + world->config.latency.max;
    at = in_order(&ep->read_clock, at > sends ? at : sends);
    struct sim_event *ev = sim_plan(world, ep->peer->node, at, fire_read_request);
    ev->needs_process = world->config.target_polls;
    ev->ep = ep->peer;
    ev->op = op;
}
