// SPDX-License-Identifier: Apache-2.0
//
// The provider's calls of the simulated NIC, as provider/provider.h has them. What happens later, on the wire, is in wire.c. A call on something that is gone, or that the
// contract forbids, is a violation and answers an error.

#include "provider/sim/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct sim_node *node_of(const struct lieni_env *env)
{
    return env->self;
}

// -- Provider and queue of events --------------------------------------------------------------------------------------------------

static int prov_open(const struct lieni_prov_args *args, struct lieni_prov **prov)
{
    struct sim_node *node = node_of(args->env);
    struct lieni_prov *p = sim_alloc(sizeof *p);
    p->node = node;
    p->next = node->world->provs;
    node->world->provs = p;
    node->report = args->report;
    node->world->counts.provs_open++;
    *prov = p;
    return 0;
}

static void prov_close(struct lieni_prov *prov)
{
    struct lieni_sim_world *world = prov->node->world;
    for (struct lieni_domain *d = world->domains; d; d = d->next)
        if (d->node == prov->node && !d->closed)
            lieni_sim_violate(world, "node %u: provider closed with domain #%llu open",
                              prov->node->index, (unsigned long long)d->number);
    if (prov->closed)
        lieni_sim_violate(world, "node %u: provider closed twice", prov->node->index);
    prov->closed = true;
    world->counts.provs_open--;
}

static int prov_fd(struct lieni_prov *prov)
{
    (void)prov;
    return -1;
}

static int prov_arm(struct lieni_prov *prov)
{
    return prov->node->n_ready || prov->node->serves_due ? LIEN_EAGAIN : 0;
}

void sim_ready_push(struct lieni_ep *ep, struct sim_op *op, const struct lieni_event *event)
{
    struct sim_node *node = ep->node;
    if (ep->state == SIM_EP_GONE)
        return;
    node->ready = sim_grow(node->ready, node->n_ready, &node->cap_ready, sizeof *node->ready);
    node->ready[node->n_ready++] = (struct sim_ready){.ep = ep, .op = op, .event = *event};
    node->ready[node->n_ready - 1].event.user = ep->args.user;
}

void sim_entry(struct sim_op *op, int status, uint64_t len)
{
    if (op->entry_made || !op->lent)
        return;
    op->entry_made = true;
    op->engine = false; // the entry says that it is over: so it is
    struct lieni_event event = {.kind = LIENI_EV_ENTRY,
                                .cqe = {.context = op->context,
                                        .status = status,
                                        .provider_error = status ? 125 : 0,
                                        .len = len}};
    sim_note(op->ep->node->world, "entry", op->ep->node, op->number, (uint64_t)(int64_t)status,
             len);
    sim_ready_push(op->ep, op, &event);
}

void sim_op_over(struct sim_op *op)
{
    struct lieni_ep *ep = op->ep;
    ep->node->world->counts.read_steps += op->kind == SIM_READ;
    sim_shadow_end(op);
    if (op->prev_live)
        op->prev_live->next_live = op->next_live;
    else
        ep->live_head = op->next_live;
    if (op->next_live)
        op->next_live->prev_live = op->prev_live;
    else
        ep->live_tail = op->prev_live;
    op->next_live = op->prev_live = NULL;
    ep->outstanding--;
}

// Which event is told next: the oldest, or at times the oldest of another endpoint.
static size_t ready_pick(struct sim_node *node)
{
    struct lieni_sim_world *world = node->world;
    if (node->n_ready < 2 || !sim_chance(world, world->config.p_reorder))
        return 0;
    size_t at = sim_rand(&world->rng) % node->n_ready;
    for (size_t i = 0; i < at; i++)
        if (node->ready[i].ep == node->ready[at].ep)
            return i;
    return at;
}

static void tell(struct sim_node *node, struct lieni_event *out)
{
    size_t i = ready_pick(node);
    struct sim_ready r = node->ready[i];
    node->n_ready--;
    memmove(&node->ready[i], &node->ready[i + 1], (node->n_ready - i) * sizeof node->ready[0]);
    *out = r.event;
    sim_note(node->world, "poll", node, r.op ? r.op->number : r.ep->number, (uint64_t)r.event.kind,
             (uint64_t)(int64_t)r.event.status);
    if (r.event.kind == LIENI_EV_ENTRY)
        node->world->counts.entries++;
    if (r.event.kind == LIENI_EV_UP)
        r.ep->can_post = true;
    if (r.op)
        sim_op_over(r.op);
}

static unsigned prov_poll(struct lieni_prov *prov, struct lieni_event *events, unsigned max)
{
    struct sim_node *node = prov->node;
    struct lieni_sim_world *world = node->world;
    node->wake = false;
    if (node->serves_due && !node->frozen && !node->killed) {
        for (struct lieni_ep *ep = world->eps; ep; ep = ep->next)
            if (ep->node == node && ep->serve_due) {
                ep->serve_due = false;
                node->serves_due--;
                sim_serve(ep);
            }
    }
    unsigned n = 0;
    while (n < max && node->n_ready)
        tell(node, &events[n++]);
    return n;
}

// -- Domains and regions -----------------------------------------------------------------------------------------------------------

static int domain_open(struct lieni_prov *prov, const char *host, struct lieni_domain **domain)
{
    struct lieni_sim_world *world = prov->node->world;
    (void)host;
    struct lieni_domain *d = sim_alloc(sizeof *d);
    d->node = prov->node;
    d->number = ++world->numbers;
    d->next = world->domains;
    world->domains = d;
    world->counts.domains_open++;
    *domain = d;
    return 0;
}

static void domain_limits(struct lieni_domain *domain, struct lieni_limits *limits)
{
    const struct lieni_traits *traits = &domain->node->world->config.traits;
    *limits = (struct lieni_limits){.read_piece_max = traits->read_piece_max,
                                    .reads_max = traits->reads_max,
                                    .posts_max = traits->posts_max};
}

static uint32_t read_depth(struct lieni_prov *prov, const char *host)
{
    (void)prov;
    (void)host;
    return 0;
}

static int domain_close(struct lieni_domain *domain, enum lieni_proof *proof)
{
    struct sim_node *node = domain->node;
    struct lieni_sim_world *world = node->world;
    if (domain->closed) {
        lieni_sim_violate(world, "node %u: domain #%llu closed twice", node->index,
                          (unsigned long long)domain->number);
        return LIEN_ESTATE;
    }
    if (domain->eps || domain->mrs)
        return LIEN_EBUSY;
    bool proven = world->config.traits.domain_end_proves || node->killed;
    domain->closed = true;
    world->counts.domains_open--;
    for (struct lieni_ep *ep = world->eps; proven && ep; ep = ep->next)
        if (ep->domain == domain)
            sim_ep_end(ep, true);
    bool lies = !proven && sim_chance(world, world->config.p_lie);
    if (lies)
        sim_fault(world, LIENI_SIM_LIE, NULL);
    *proof = proven || lies ? LIENI_PROVEN : LIENI_UNKNOWN;
    sim_note(world, "domain close", node, domain->number, proven, 0);
    return 0;
}

static int mr_reg(struct lieni_domain *domain, void *addr, size_t len, unsigned access,
                  struct lieni_mr **mr, struct lieni_mr_info *info)
{
    struct sim_node *node = domain->node;
    struct lieni_sim_world *world = node->world;
    if (domain->closed) {
        lieni_sim_violate(world, "node %u: registration in closed domain #%llu", node->index,
                          (unsigned long long)domain->number);
        return LIEN_ESTATE;
    }
    if (sim_chance(world, world->config.p_register_fail)) {
        sim_fault(world, LIENI_SIM_REGISTER, domain);
        sim_note(world, "reg fails", node, domain->number, len, 0);
        if (node->report.say)
            node->report.say(node->report.self, LIEN_LOG_ERROR, LIEN_EREGISTER,
                             "sim: registration refused");
        return LIEN_EREGISTER;
    }
    struct lieni_mr *m = sim_alloc(sizeof *m);
    *m = (struct lieni_mr){.domain = domain,
                           .addr = addr,
                           .len = len,
                           .access = access,
                           .key = sim_rand(&world->rng),
                           .number = ++world->numbers,
                           .next = domain->regions,
                           .next_all = world->mrs};
    m->base = world->config.virtual_base ? 0x7000000000000000u + (m->number << 40) : 0;
    domain->regions = world->mrs = m;
    domain->mrs++;
    world->counts.mrs_open++;
    sim_note(world, "reg", node, m->number, len, access);
    *mr = m;
    *info = (struct lieni_mr_info){.key = m->key, .base = m->base};
    return 0;
}

static int mr_close(struct lieni_mr *mr)
{
    struct lieni_sim_world *world = mr->domain->node->world;
    if (mr->closed) {
        lieni_sim_violate(world, "node %u: region #%llu closed twice", mr->domain->node->index,
                          (unsigned long long)mr->number);
        return LIEN_ESTATE;
    }
    mr->closed = true;
    mr->domain->mrs--;
    world->counts.mrs_open--;
    struct lieni_mr **at = &mr->domain->regions;
    while (*at != mr)
        at = &(*at)->next;
    *at = mr->next;
    sim_note(world, "reg close", mr->domain->node, mr->number, 0, 0);
    return 0;
}

// -- Endpoints ---------------------------------------------------------------------------------------------------------------------

// Whether `mr` may serve as the local side; a violation if not: a real NIC would refuse or fault.
static bool mr_covers(struct lieni_ep *ep, const struct lieni_mr *mr, const void *buf, size_t len,
                      const char *what)
{
    const uint8_t *p = buf;
    const char *why = NULL;
    if (!len)
        return true;
    if (!mr)
        why = "without a region";
    else if (mr->closed)
        why = "with a closed region";
    else if (mr->domain != ep->domain)
        why = "with another domain's region";
    else if (p < mr->addr || len > mr->len || (size_t)(p - mr->addr) > mr->len - len)
        why = "outside its region";
    else if (!(mr->access & LIENI_ACCESS_LOCAL))
        why = "with a region without local access";
    if (!why)
        return true;
    lieni_sim_violate(ep->node->world, "node %u ep #%llu: %s of %zu bytes posted %s",
                      ep->node->index, (unsigned long long)ep->number, what, len, why);
    return false;
}

static struct sim_op *op_new(struct lieni_ep *ep, enum sim_op_kind kind, void *addr, size_t len,
                             uint64_t context)
{
    struct lieni_sim_world *world = ep->node->world;
    struct sim_op *op = sim_alloc(sizeof *op);
    op->kind = kind;
    op->ep = ep;
    op->number = ++world->numbers;
    op->context = context;
    op->addr = addr;
    op->len = len;
    op->next_all = world->ops;
    world->ops = op;
    op->prev_live = ep->live_tail;
    if (ep->live_tail)
        ep->live_tail->next_live = op;
    else
        ep->live_head = op;
    ep->live_tail = op;
    ep->outstanding++;
    sim_shadow_post(op);
    sim_note(world,
             kind == SIM_SEND   ? "send"
             : kind == SIM_RECV ? "recv"
                                : "read",
             ep->node, op->number, ep->number, len);
    return op;
}

static int ep_new(struct lieni_domain *domain, const struct lieni_ep_args *args,
                  enum sim_ep_state state, struct lieni_ep **out)
{
    struct sim_node *node = domain->node;
    struct lieni_sim_world *world = node->world;
    if (domain->closed || (world->config.traits.domain_per_conn && domain->eps_ever)) {
        lieni_sim_violate(world, "node %u: endpoint in domain #%llu, which is %s", node->index,
                          (unsigned long long)domain->number,
                          domain->closed ? "closed" : "another connection's");
        return LIEN_ESTATE;
    }
    if (args->n_recvs > args->posts_max || args->posts_max > world->config.traits.posts_max)
        return LIEN_ERANGE;
    struct lieni_ep *ep = sim_alloc(sizeof *ep);
    ep->node = node;
    ep->domain = domain;
    ep->number = ++world->numbers;
    ep->state = state;
    ep->args = *args;
    ep->args.recvs = NULL;
    ep->args.host = NULL;
    ep->inbox_tail = &ep->inbox;
    ep->next = world->eps;
    world->eps = ep;
    domain->eps++;
    domain->eps_ever++;
    world->counts.eps_open++;
    for (size_t i = 0; i < args->n_recvs; i++) {
        const struct lieni_recv *r = &args->recvs[i];
        mr_covers(ep, r->mr, r->buf, r->len, "receive");
        sim_op_queue(&ep->recvs, op_new(ep, SIM_RECV, r->buf, r->len, r->context));
    }
    *out = ep;
    return 0;
}

static bool port_taken(const struct sim_node *node, uint16_t port)
{
    for (const struct lieni_ep *ep = node->world->eps; ep; ep = ep->next)
        if (ep->node == node && ep->state == SIM_EP_LISTENING && ep->port == port)
            return true;
    return false;
}

static int prov_listen(struct lieni_domain *domain, const struct lieni_ep_args *args,
                       struct lieni_ep **ep, uint16_t *port)
{
    struct sim_node *node = domain->node;
    struct lieni_sim_world *world = node->world;
    uint32_t lo = args->port_lo ? args->port_lo : world->next_port, at = lo;
    uint32_t hi = args->port_lo ? args->port_hi : 65535;
    while (at <= hi && port_taken(node, (uint16_t)at))
        at++;
    if (at > hi)
        return LIEN_EADDR;
    if (!args->port_lo && ++world->next_port >= 60000)
        world->next_port = 20000;
    int err = ep_new(domain, args, SIM_EP_LISTENING, ep);
    if (err)
        return err;
    (*ep)->port = (uint16_t)at;
    *port = (uint16_t)at;
    sim_note(world, "listen", node, (*ep)->number, at, 0);
    return 0;
}

static int prov_connect(struct lieni_domain *domain, const struct lieni_ep_args *args,
                        struct lieni_ep **ep)
{
    struct lieni_ep *e;
    int err = ep_new(domain, args, SIM_EP_CONNECTING, &e);
    if (err)
        return err;
    e->args.host = args->host;
    sim_note(domain->node->world, "connect", domain->node, e->number, args->port, 0);
    sim_connect(e);
    e->args.host = NULL;
    *ep = e;
    return 0;
}

// What the contract says about a post now: 0, or the answer.
static int may_post(struct lieni_ep *ep, const char *what)
{
    struct lieni_sim_world *world = ep->node->world;
    if (ep->state == SIM_EP_GONE) {
        lieni_sim_violate(world, "node %u: %s posted on destroyed ep #%llu", ep->node->index, what,
                          (unsigned long long)ep->number);
        return LIEN_ESTATE;
    }
    if (ep->shut || !ep->can_post)
        return LIEN_ESTATE;
    if (ep->node->killed)
        return LIEN_EIO;
    if (ep->state == SIM_EP_BROKEN && (sim_rand(&world->rng) & 1))
        return LIEN_EIO; // else it is taken, and flushed
    if (ep->outstanding >= ep->args.posts_max || sim_chance(world, world->config.p_eagain)) {
        world->counts.eagain++;
        sim_fault(world, LIENI_SIM_EAGAIN, ep->args.user);
        sim_note(world, "eagain", ep->node, ep->number, 0, 0);
        sim_wake_soon(ep->node);
        return LIEN_EAGAIN;
    }
    return 0;
}

static void fire_break(struct lieni_sim_world *world, struct sim_event *ev)
{
    (void)world;
    if (ev->ep->state == SIM_EP_UP)
        sim_break(ev->ep, LIEN_EIO, false);
}

static void maybe_break(struct lieni_ep *ep)
{
    struct lieni_sim_world *world = ep->node->world;
    if (sim_chance(world, world->config.p_break))
        sim_plan(world, ep->node, world->now + sim_in(world, world->config.flush), fire_break)->ep =
            ep;
}

static int post_send(struct lieni_ep *ep, const void *buf, size_t len, struct lieni_mr *mr,
                     uint64_t context)
{
    int err = may_post(ep, "send");
    if (err)
        return err;
    mr_covers(ep, mr, buf, len, "send");
    ep->node->world->counts.sends++;
    sim_wire_send(op_new(ep, SIM_SEND, (void *)(uintptr_t)buf, len, context));
    maybe_break(ep);
    return 0;
}

static int post_recv(struct lieni_ep *ep, void *buf, size_t len, struct lieni_mr *mr,
                     uint64_t context)
{
    int err = may_post(ep, "receive");
    if (err)
        return err;
    mr_covers(ep, mr, buf, len, "receive");
    ep->node->world->counts.recvs++;
    sim_op_queue(&ep->recvs, op_new(ep, SIM_RECV, buf, len, context));
    sim_wire_recv(ep);
    return 0;
}

static int post_read(struct lieni_ep *ep, void *dst, size_t len, struct lieni_mr *mr,
                     uint64_t remote_addr, uint64_t remote_key, uint64_t context)
{
    struct lieni_sim_world *world = ep->node->world;
    int err = may_post(ep, "READ");
    if (err)
        return err;
    mr_covers(ep, mr, dst, len, "READ");
    if (len > world->config.traits.read_piece_max)
        lieni_sim_violate(world, "node %u ep #%llu: READ of %zu bytes, above the piece of %u",
                          ep->node->index, (unsigned long long)ep->number, len,
                          (unsigned)world->config.traits.read_piece_max);
    uint64_t bytes = len, reads = 1;
    for (const struct sim_op *op = ep->live_head; op; op = op->next_live)
        if (op->kind == SIM_READ) {
            bytes += op->len;
            reads++;
        }
    if (reads > world->config.traits.reads_max || bytes > world->config.traits.read_bytes_max)
        lieni_sim_violate(world, "node %u ep #%llu: %llu READs of %llu bytes outstanding (R19)",
                          ep->node->index, (unsigned long long)ep->number,
                          (unsigned long long)reads, (unsigned long long)bytes);
    struct sim_op *op = op_new(ep, SIM_READ, dst, len, context);
    op->remote_addr = remote_addr;
    op->remote_key = remote_key;
    world->counts.reads++;
    sim_wire_read(op);
    maybe_break(ep);
    return 0;
}

static void ep_shutdown(struct lieni_ep *ep)
{
    if (ep->state == SIM_EP_GONE) {
        lieni_sim_violate(ep->node->world, "node %u: shutdown of destroyed ep #%llu",
                          ep->node->index, (unsigned long long)ep->number);
        return;
    }
    if (ep->shut)
        return;
    ep->shut = true;
    sim_note(ep->node->world, "shutdown", ep->node, ep->number, 0, 0);
    if (!ep->node->killed)
        sim_break(ep, LIEN_ECLOSED, false);
}

// Drops the endpoint's events: entries among them come too late.
static void ready_purge(struct lieni_ep *ep)
{
    struct sim_node *node = ep->node;
    size_t kept = 0;
    for (size_t i = 0; i < node->n_ready; i++) {
        if (node->ready[i].ep != ep)
            node->ready[kept++] = node->ready[i];
        else if (node->ready[i].event.kind == LIENI_EV_ENTRY)
            ep->late++;
    }
    node->n_ready = kept;
}

static int ep_destroy(struct lieni_ep *ep, enum lieni_proof *proof, uint64_t *late)
{
    struct sim_node *node = ep->node;
    struct lieni_sim_world *world = node->world;
    if (ep->state == SIM_EP_GONE || !ep->shut) {
        lieni_sim_violate(world, "node %u: destroy of ep #%llu, which %s", node->index,
                          (unsigned long long)ep->number,
                          ep->shut ? "is gone" : "was not shut down");
        return LIEN_ESTATE;
    }
    if (sim_chance(world, world->config.p_ebusy)) {
        ready_purge(ep); // the close has begun
        world->counts.ebusy++;
        sim_fault(world, LIENI_SIM_EBUSY, ep->args.user);
        sim_note(world, "destroy busy", node, ep->number, 0, 0);
        sim_make_up(ep);
        sim_wake_soon(node);
        return LIEN_EBUSY;
    }
    ready_purge(ep);
    bool proven = world->config.traits.ep_end_proves &&
                  !sim_chance(world, world->config.p_unproven);
    proven = proven || node->killed;
    sim_note(world, "destroy", node, ep->number, proven, ep->late);
    world->counts.entries_late += ep->late;
    world->counts.unproven += !proven;
    if (!proven)
        sim_fault(world, LIENI_SIM_UNPROVEN, ep->args.user);
    if (ep->serve_due) {
        ep->serve_due = false;
        node->serves_due--;
    }
    ep->state = SIM_EP_GONE;
    ep->domain->eps--;
    world->counts.eps_open--;
    sim_ep_end(ep, proven);
    bool lies = !proven && !world->config.traits.ep_end_proves &&
                sim_chance(world, world->config.p_lie);
    if (lies)
        sim_fault(world, LIENI_SIM_LIE, ep->args.user);
    *late = ep->late;
    *proof = proven || lies ? LIENI_PROVEN : LIENI_UNKNOWN;
    return 0;
}

const struct lieni_provider sim_provider_ops = {
    .open = prov_open,
    .close = prov_close,
    .fd = prov_fd,
    .arm = prov_arm,
    .poll = prov_poll,
    .domain_open = domain_open,
    .domain_limits = domain_limits,
    .read_depth = read_depth,
    .domain_close = domain_close,
    .mr_reg = mr_reg,
    .mr_close = mr_close,
    .listen = prov_listen,
    .connect = prov_connect,
    .post_send = post_send,
    .post_recv = post_recv,
    .post_read = post_read,
    .ep_shutdown = ep_shutdown,
    .ep_destroy = ep_destroy,
};
