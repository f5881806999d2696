// SPDX-License-Identifier: Apache-2.0
//
// Clock, events, randomness, nodes and trace of the simulated world. Events sit in a binary heap ordered by time, then by age; firing one only changes the simulator's
// own objects and, as a NIC does, memory that was posted to it. Randomness: xoshiro256** seeded by splitmix64; the world, the driver and each node draw from streams of their own.

#include "provider/sim/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS 1000000u
#define US 1000u

volatile unsigned lieni_sim_allocating;

void *sim_alloc(size_t size)
{
    lieni_sim_allocating++;
    void *p = calloc(1, size ? size : 1);
    lieni_sim_allocating--;
    if (!p) {
        fprintf(stderr, "sim: out of memory\n");
        abort();
    }
    return p;
}

void *sim_grow(void *array, size_t n, size_t *cap, size_t item)
{
    if (n < *cap)
        return array;
    *cap = *cap ? *cap * 2 : 16;
    lieni_sim_allocating++;
    void *p = realloc(array, *cap * item);
    lieni_sim_allocating--;
    if (!p) {
        fprintf(stderr, "sim: out of memory\n");
        abort();
    }
    return p;
}

// -- Randomness --------------------------------------------------------------------------------------------------------------------

static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void rng_seed(struct sim_rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        rng->s[i] = splitmix(&seed);
}

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

uint64_t sim_rand(struct sim_rng *rng)
{
    uint64_t *s = rng->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t sim_in(struct lieni_sim_world *world, struct lieni_sim_range range)
{
    if (range.max <= range.min)
        return range.min;
    return range.min + sim_rand(&world->rng) % (range.max - range.min + 1);
}

bool sim_chance(struct lieni_sim_world *world, uint32_t per_million)
{
    if (!per_million)
        return false;
    return sim_rand(&world->rng) % SIM_MILLION < per_million;
}

void lieni_sim_reseed(struct lieni_sim_world *world, uint64_t salt)
{
    uint64_t mix = world->seed ^ ((salt + 1) * 0x9e3779b97f4a7c15u);
    rng_seed(&world->rng, mix);
    rng_seed(&world->driver, ~mix);
}

uint64_t lieni_sim_draw(struct lieni_sim_world *world, uint64_t below)
{
    return sim_rand(&world->driver) % below;
}

// -- Trace and violations ----------------------------------------------------------------------------------------------------------

static void hash_bytes(uint64_t *hash, const void *data, size_t len)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++)
        *hash = (*hash ^ p[i]) * 0x100000001b3u;
}

static void hash_word(uint64_t *hash, uint64_t word)
{
    *hash = (*hash ^ word) * 0x9e3779b97f4a7c15u;
    *hash ^= *hash >> 32;
}

void sim_note(struct lieni_sim_world *world, const char *what, const struct sim_node *node,
              uint64_t object, uint64_t a, uint64_t b)
{
    uint64_t values[5] = {world->now, node ? node->index : UINT64_MAX, object, a, b};
    hash_bytes(&world->hash, what, strlen(what));
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        hash_word(&world->hash, values[i]);
    world->counts.events++;
    if (!world->say)
        return;
    char line[160];
    snprintf(line, sizeof line, "%12llu node %d %-14s #%llu %lld %lld",
             (unsigned long long)world->now, node ? (int)node->index : -1, what,
             (unsigned long long)object, (long long)a, (long long)b);
    world->say(world->say_self, line);
}

void lieni_sim_violate(struct lieni_sim_world *world, const char *format, ...)
{
    char text[512];
    va_list args;
    int used = snprintf(text, sizeof text, "at %llu ns: ", (unsigned long long)world->now);
    va_start(args, format);
    vsnprintf(text + used, sizeof text - (size_t)used, format, args);
    va_end(args);
    if (world->n_violations < SIM_VIOLATIONS_KEPT)
        world->violations[world->n_violations] = strdup(text);
    world->n_violations++;
    if (world->say)
        world->say(world->say_self, text);
}

unsigned lieni_sim_violations(const struct lieni_sim_world *world)
{
    return world->n_violations;
}

const char *lieni_sim_violation(const struct lieni_sim_world *world, unsigned i)
{
    bool kept = i < world->n_violations && i < SIM_VIOLATIONS_KEPT && world->violations[i];
    return kept ? world->violations[i] : "(not kept)";
}

uint64_t lieni_sim_trace_hash(const struct lieni_sim_world *world)
{
    return world->hash;
}

void lieni_sim_set_trace(struct lieni_sim_world *world, void (*say)(void *self, const char *line),
                         void *self)
{
    world->say = say;
    world->say_self = self;
}

void lieni_sim_counts_get(const struct lieni_sim_world *world, struct lieni_sim_counts *counts)
{
    *counts = world->counts;
}

void lieni_sim_set_fault_hook(struct lieni_sim_world *world,
                              void (*hook)(void *self, enum lieni_sim_fault fault, void *user),
                              void *self)
{
    world->hook = hook;
    world->hook_self = self;
}

void lieni_sim_set_address_hook(struct lieni_sim_world *world,
                                const void *(*address)(void *self, const void *addr), void *self)
{
    world->address = address;
    world->address_self = self;
}

void lieni_sim_arm_ep(struct lieni_ep *ep, enum lieni_sim_fault fault)
{
    ep->armed |= 1u << fault;
}

bool sim_struck(struct lieni_ep *ep, enum lieni_sim_fault fault, uint32_t per_million)
{
    bool armed = ep->armed >> fault & 1;
    ep->armed &= ~(1u << fault);
    return sim_chance(ep->node->world, per_million) || armed;
}

void sim_fault(struct lieni_sim_world *world, enum lieni_sim_fault fault, void *user)
{
    if (world->hook)
        world->hook(world->hook_self, fault, user);
}

struct lieni_sim_config *lieni_sim_world_config(struct lieni_sim_world *world)
{
    return &world->config;
}

// -- Events ------------------------------------------------------------------------------------------------------------------------

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void heap_push(struct lieni_sim_world *world, struct sim_event *ev)
{
    world->heap = sim_grow(world->heap, world->n_heap, &world->cap_heap, sizeof *world->heap);
    size_t i = world->n_heap++;
    while (i > 0 && before(ev, world->heap[(i - 1) / 2])) {
        world->heap[i] = world->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    world->heap[i] = ev;
}

static struct sim_event *heap_pop(struct lieni_sim_world *world)
{
    struct sim_event *top = world->heap[0], *last = world->heap[--world->n_heap];
    size_t i = 0, n = world->n_heap;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && before(world->heap[child + 1], world->heap[child]))
            child++;
        if (!before(world->heap[child], last))
            break;
        world->heap[i] = world->heap[child];
        i = child;
    }
    if (n)
        world->heap[i] = last;
    return top;
}

struct sim_event *sim_plan(struct lieni_sim_world *world, struct sim_node *node, uint64_t at,
                           void (*fire)(struct lieni_sim_world *, struct sim_event *))
{
    struct sim_event *ev = sim_alloc(sizeof *ev);
    ev->at = at < world->now ? world->now : at;
    ev->seq = ++world->seq;
    ev->fire = fire;
    ev->node = node;
    heap_push(world, ev);
    return ev;
}

static void event_free(struct sim_event *ev)
{
    free(ev->data);
    free(ev);
}

static void fire_wake(struct lieni_sim_world *world, struct sim_event *ev)
{
    (void)world;
    ev->node->wake = true;
}

void sim_wake_soon(struct sim_node *node)
{
    struct lieni_sim_world *world = node->world;
    sim_plan(world, node, world->now + 1000 + sim_in(world, world->config.latency), fire_wake);
}

uint64_t lieni_sim_now(const struct lieni_sim_world *world)
{
    return world->now;
}

uint64_t lieni_sim_next_time(const struct lieni_sim_world *world)
{
    return world->n_heap ? world->heap[0]->at : UINT64_MAX;
}

static void hold(struct sim_node *node, struct sim_event *ev)
{
    node->held = sim_grow(node->held, node->n_held, &node->cap_held, sizeof(struct sim_event *));
    node->held[node->n_held++] = ev;
}

bool lieni_sim_step(struct lieni_sim_world *world, uint64_t limit)
{
    if (!world->n_heap || world->heap[0]->at > limit)
        return false;
    struct sim_event *ev = heap_pop(world);
    struct sim_node *node = ev->node;
    world->now = ev->at;
    if (node && node->frozen && ev->needs_process) {
        hold(node, ev);
        return true;
    }
    if (!node || !node->killed)
        ev->fire(world, ev);
    event_free(ev);
    return true;
}

void lieni_sim_advance(struct lieni_sim_world *world, uint64_t to)
{
    while (lieni_sim_step(world, to))
        ;
    if (to > world->now)
        world->now = to;
}

bool lieni_sim_node_ready(const struct lieni_sim_world *world, unsigned node)
{
    const struct sim_node *n = &world->nodes[node];
    return n->wake || n->n_ready || n->serves_due || sim_net_ready(n);
}

// -- Nodes -------------------------------------------------------------------------------------------------------------------------

static uint64_t env_now(void *self)
{
    const struct sim_node *node = self;
    return node->world->now + node->ahead;
}

static void env_random(void *self, void *buf, size_t len)
{
    struct sim_node *node = self;
    uint8_t *p = buf;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t r = sim_rand(&node->random);
        memcpy(p + i, &r, len - i < 8 ? len - i : 8);
    }
}

static void node_open(struct lieni_sim_world *world, unsigned index)
{
    struct sim_node *node = &world->nodes[index];
    node->world = world;
    node->index = index;
    snprintf(node->host, sizeof node->host, "10.0.0.%u", index + 1);
    rng_seed(&node->random, world->seed ^ (0xabcdef01u + index));
    node->provider = sim_provider_ops;
    node->provider.traits = &world->config.traits;
    node->providers[0] = &node->provider;
    node->platform = (struct lieni_platform){
        .env = {.self = node, .now = env_now, .random = env_random},
        .net = &sim_net_ops,
        .net_world = node,
        .providers = node->providers,
    };
}

const struct lieni_platform *lieni_sim_node_platform(struct lieni_sim_world *world, unsigned node)
{
    return node < world->config.nodes ? &world->nodes[node].platform : NULL;
}

const char *lieni_sim_node_host(struct lieni_sim_world *world, unsigned node)
{
    return node < world->config.nodes ? world->nodes[node].host : NULL;
}

// -- Faults of nodes ---------------------------------------------------------------------------------------------------------------

void lieni_sim_freeze_node(struct lieni_sim_world *world, unsigned node)
{
    sim_note(world, "freeze", &world->nodes[node], 0, 0, 0);
    world->nodes[node].frozen = true;
}

void lieni_sim_thaw_node(struct lieni_sim_world *world, unsigned node)
{
    struct sim_node *n = &world->nodes[node];
    sim_note(world, "thaw", n, n->n_held, 0, 0);
    n->frozen = false;
    // Before whatever else is due now: what an earlier thaw brought back and has not happened yet comes behind them.
    world->early_seq -= n->n_held;
    for (size_t i = 0; i < n->n_held; i++) {
        n->held[i]->at = world->now;
        n->held[i]->seq = world->early_seq + i;
        heap_push(world, n->held[i]);
    }
    n->n_held = 0;
}

void lieni_sim_take_over(struct lieni_sim_world *world, unsigned fresh, unsigned killed)
{
    struct sim_node *node = &world->nodes[fresh];
    memcpy(node->host, world->nodes[killed].host, sizeof node->host);
    sim_note(world, "take over", node, killed, 0, 0);
}

void lieni_sim_jump_clock(struct lieni_sim_world *world, unsigned node, uint64_t ns)
{
    sim_note(world, "clock jumps", &world->nodes[node], ns, 0, 0);
    world->nodes[node].ahead += ns;
}

uint64_t lieni_sim_clock_ahead(const struct lieni_sim_world *world, unsigned node)
{
    return world->nodes[node].ahead;
}

bool lieni_sim_node_frozen(const struct lieni_sim_world *world, unsigned node)
{
    return world->nodes[node].frozen;
}

bool lieni_sim_node_killed(const struct lieni_sim_world *world, unsigned node)
{
    return world->nodes[node].killed;
}

void lieni_sim_kill_node(struct lieni_sim_world *world, unsigned node, bool silent)
{
    struct sim_node *n = &world->nodes[node];
    if (n->killed)
        return;
    sim_note(world, "kill", n, silent, 0, 0);
    if (n->frozen)
        lieni_sim_thaw_node(world, node);
    n->silent = silent;
    for (struct lieni_ep *ep = world->eps; ep; ep = ep->next) {
        if (ep->node != n || ep->state == SIM_EP_GONE)
            continue;
        bool was_up = ep->state == SIM_EP_UP;
        ep->serving = ep->serve_due = false;
        sim_break(ep, LIEN_EIO, silent);
        if (was_up)
            sim_say_down(ep, LIEN_EIO); // for whoever closes the dead context
        for (struct sim_op *op = ep->live_head; op; op = op->next_live)
            op->engine = false;
    }
    sim_net_kill(n);
    n->serves_due = 0;
    n->killed = true;
    n->wake = true;
}

bool lieni_sim_break_link(struct lieni_sim_world *world, unsigned a, unsigned b, uint64_t pick)
{
    for (int counting = 1; counting >= 0; counting--) {
        uint64_t n = 0;
        for (struct lieni_ep *ep = world->eps; ep; ep = ep->next) {
            if (ep->state != SIM_EP_UP || !ep->peer || ep->node->index != a ||
                ep->peer->node->index != b)
                continue;
            if (!counting && n == pick) {
                sim_break(ep, LIEN_EIO, false);
                return true;
            }
            n++;
        }
        if (!n)
            return false;
        pick %= n;
    }
    return false;
}

// -- World -------------------------------------------------------------------------------------------------------------------------

static const struct lieni_traits class_traits[LIENI_SIM_CLASSES] = {
    [LIENI_SIM_TCP] = {.ep_end_proves = true, .refused_read_kills = true},
    [LIENI_SIM_VERBS] = {.ep_end_proves = true, .refused_read_kills = true},
    [LIENI_SIM_SOCKETS] = {.domain_end_proves = true, .domain_per_conn = true},
    [LIENI_SIM_OWN_ONLY] = {.refused_read_kills = true},
};

void lieni_sim_config_init(struct lieni_sim_config *config, enum lieni_sim_class kind)
{
    *config = (struct lieni_sim_config){
        .traits = class_traits[kind],
        .nodes = 2,
        .target_polls = kind == LIENI_SIM_TCP,
        .key_checked_once = kind == LIENI_SIM_TCP || kind == LIENI_SIM_SOCKETS,
        .virtual_base = kind == LIENI_SIM_VERBS || kind == LIENI_SIM_OWN_ONLY,
        .starved_fails = true,
        .latency = {5 * US, 50 * US},
        .chunk = {512, 65536},
        .chunk_gap = {1 * US, 40 * US},
        .completion = {1 * US, 20 * US},
        .flush = {10 * US, 2 * MS},
        .ghost = {100 * US, 8000ull * MS},
        .net_piece = {1, 600},
        .slow_factor = 100,
    };
    config->traits.name = "sim";
    config->traits.path = LIEN_PATH_SIM;
    config->traits.cm_data_max = LIENI_CM_DATA;
    config->traits.read_piece_max = 256 * 1024;
    config->traits.read_bytes_max = 1024 * 1024;
    config->traits.reads_max = 16;
    config->traits.posts_max = 4096;
}

struct lieni_sim_world *lieni_sim_world_new(uint64_t seed, const struct lieni_sim_config *config)
{
    if (config->nodes < 1 || config->nodes > 64 || !config->chunk.min || !config->net_piece.min ||
        config->traits.cm_data_max < LIENI_CM_DATA)
        return NULL;
    struct lieni_sim_world *world = calloc(1, sizeof *world);
    if (!world)
        return NULL;
    world->early_seq = UINT64_C(1) << 62;
    world->seq = world->early_seq;
    world->nodes = calloc(config->nodes, sizeof *world->nodes);
    if (!world->nodes) {
        free(world);
        return NULL;
    }
    world->config = *config;
    world->seed = seed;
    world->now = 1000u * MS; // time 0 means "unset" in many programs
    world->hash = 0xcbf29ce484222325u;
    world->next_port = 20000;
    rng_seed(&world->rng, seed);
    rng_seed(&world->driver, ~seed);
    for (unsigned i = 0; i < config->nodes; i++)
        node_open(world, i);
    return world;
}

#define FREE_LIST(type, head, member)                                                              \
    for (struct type *p = (head), *next; p; p = next) {                                            \
        next = p->member;                                                                          \
        free(p);                                                                                   \
    }

static void free_messages(struct lieni_sim_world *world)
{
    for (struct lieni_ep *ep = world->eps; ep; ep = ep->next) {
        for (struct sim_message *m = ep->inbox, *next; m; m = next) {
            next = m->next;
            free(m->data);
            free(m);
        }
    }
    for (struct lieni_stream *s = world->streams; s; s = s->next)
        free(s->in);
}

void lieni_sim_world_free(struct lieni_sim_world *world)
{
    if (!world)
        return;
    for (size_t i = 0; i < world->n_heap; i++)
        event_free(world->heap[i]);
    free(world->heap);
    for (unsigned i = 0; i < world->config.nodes; i++) {
        struct sim_node *n = &world->nodes[i];
        for (size_t j = 0; j < n->n_held; j++)
            event_free(n->held[j]);
        free(n->held);
        free(n->ready);
        free(n->net_ready);
    }
    free_messages(world);
    FREE_LIST(sim_op, world->ops, next_all)
    FREE_LIST(lieni_ep, world->eps, next)
    FREE_LIST(lieni_mr, world->mrs, next_all)
    FREE_LIST(lieni_domain, world->domains, next)
    FREE_LIST(lieni_prov, world->provs, next)
    FREE_LIST(lieni_net, world->nets, next)
    FREE_LIST(lieni_stream, world->streams, next)
    FREE_LIST(lieni_acceptor, world->acceptors, next)
    for (unsigned i = 0; i < SIM_VIOLATIONS_KEPT; i++)
        free(world->violations[i]);
    sim_shadow_free(world);
    free(world->nodes);
    free(world);
}

void lieni_sim_check_quiet(struct lieni_sim_world *world)
{
    for (struct lieni_ep *ep = world->eps; ep; ep = ep->next)
        if (ep->state != SIM_EP_GONE)
            lieni_sim_violate(world, "node %u: endpoint #%llu leaked", ep->node->index,
                              (unsigned long long)ep->number);
    for (struct lieni_mr *mr = world->mrs; mr; mr = mr->next_all)
        if (!mr->closed)
            lieni_sim_violate(world, "node %u: region #%llu of %zu bytes leaked",
                              mr->domain->node->index, (unsigned long long)mr->number, mr->len);
    for (struct lieni_domain *d = world->domains; d; d = d->next)
        if (!d->closed)
            lieni_sim_violate(world, "node %u: domain #%llu leaked", d->node->index,
                              (unsigned long long)d->number);
    for (struct lieni_prov *p = world->provs; p; p = p->next)
        if (!p->closed)
            lieni_sim_violate(world, "node %u: provider not closed", p->node->index);
    for (struct lieni_net *n = world->nets; n; n = n->next)
        if (!n->closed)
            lieni_sim_violate(world, "node %u: net not closed", n->node->index);
    for (struct lieni_stream *s = world->streams; s; s = s->next)
        if (!s->closed)
            lieni_sim_violate(world, "node %u: stream #%llu leaked", s->node->index,
                              (unsigned long long)s->number);
    for (struct lieni_acceptor *a = world->acceptors; a; a = a->next)
        if (!a->closed)
            lieni_sim_violate(world, "node %u: acceptor on port %u leaked", a->node->index,
                              (unsigned)a->port);
}
