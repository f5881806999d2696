// SPDX-License-Identifier: Apache-2.0
//
// The shadow: who owns each byte. Two tables, both ordered by address and used for lookups only, so that no schedule depends on where memory lies:
//  - spans, disjoint: what the application said about memory after it saw an answer. Not in a span: the library's.
//  - lent operations: what was posted and has neither told its entry nor been proved over.
// A violation is recorded at three moments: when memory is handed to the application (or posted again) that the NIC may still write; when it gets back a source that an accepted
// READ may still fetch; and at each DMA chunk that touches bytes of somebody else.

#include "provider/sim/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum span_owner {
    SPAN_APP,    // the application reads and writes
    SPAN_SOURCE, // lent as a source `count` times: nobody writes
    SPAN_TARGET  // lent as a target: DMA writes
};

struct sim_span {
    uintptr_t lo, hi;
    enum span_owner owner;
    unsigned count;
    bool given;     // SOURCE, validated TARGET: freed while lent
    bool validated; // TARGET of a read that is validated
};

static const char *const kind_name[] = {
    [SIM_SEND] = "send", [SIM_RECV] = "receive", [SIM_READ] = "READ"};

// -- Spans -------------------------------------------------------------------------------------------------------------------------

// Index of the first span that ends above `at`.
static size_t span_at(const struct lieni_sim_world *world, uintptr_t at)
{
    size_t lo = 0, hi = world->n_spans;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (world->spans[mid].hi > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static void span_insert(struct lieni_sim_world *world, size_t i, struct sim_span span)
{
    world->spans = sim_grow(world->spans, world->n_spans, &world->cap_spans, sizeof span);
    memmove(&world->spans[i + 1], &world->spans[i], (world->n_spans - i) * sizeof span);
    world->spans[i] = span;
    world->n_spans++;
}

static void span_remove(struct lieni_sim_world *world, size_t i)
{
    world->n_spans--;
    memmove(&world->spans[i], &world->spans[i + 1], (world->n_spans - i) * sizeof world->spans[0]);
}

// Makes `at` a border: no span reaches across it.
static void span_cut(struct lieni_sim_world *world, uintptr_t at)
{
    size_t i = span_at(world, at);
    if (i == world->n_spans || world->spans[i].lo >= at)
        return;
    struct sim_span tail = world->spans[i];
    world->spans[i].hi = at;
    tail.lo = at;
    span_insert(world, i + 1, tail);
}

// Removes what is known about the range; returns where a new span for it goes.
static size_t span_clear(struct lieni_sim_world *world, uintptr_t lo, uintptr_t hi)
{
    span_cut(world, lo);
    span_cut(world, hi);
    size_t i = span_at(world, lo);
    while (i < world->n_spans && world->spans[i].lo < hi)
        span_remove(world, i);
    return i;
}

// Whether the whole range is the application's; says so otherwise.
static bool owned_by_app(struct lieni_sim_world *world, uintptr_t lo, uintptr_t hi,
                         const char *what)
{
    uintptr_t at = lo;
    for (size_t i = span_at(world, lo); i < world->n_spans && world->spans[i].lo <= at && at < hi;
         i++) {
        if (world->spans[i].owner == SPAN_TARGET)
            break;
        at = world->spans[i].hi;
    }
    if (at >= hi)
        return true;
    lieni_sim_violate(world, "driver: %s of memory that the application does not own", what);
    return false;
}

// -- Lent operations ---------------------------------------------------------------------------------------------------------------

static size_t lent_at(const struct lieni_sim_world *world, uintptr_t at)
{
    size_t lo = 0, hi = world->n_lent;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if ((uintptr_t)world->lent[mid]->addr >= at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

// A lent operation that overlaps the range and writes memory (or any, if `any`), other than `self`.
static struct sim_op *lent_overlap(const struct lieni_sim_world *world, uintptr_t lo, uintptr_t hi,
                                   bool any, const struct sim_op *self)
{
    for (size_t i = lent_at(world, hi); i-- > 0;) {
        struct sim_op *op = world->lent[i];
        uintptr_t start = (uintptr_t)op->addr;
        if (start + world->lent_longest <= lo)
            break;
        if (op != self && start + op->len > lo && (any || op->kind != SIM_SEND))
            return op;
    }
    return NULL;
}

// A READ of a peer, accepted by an endpoint that still serves, with bytes of the range left to fetch; of those that are validated only if `any`.
static const struct sim_op *fetch_overlap(const struct lieni_sim_world *world, uintptr_t lo,
                                          uintptr_t hi, bool any)
{
    for (const struct lieni_ep *ep = world->eps; ep && !world->config.writes_only; ep = ep->next) {
        if (!ep->serving)
            continue;
        for (const struct sim_op *op = ep->serve.head; op; op = op->next_queued) {
            uintptr_t start = (uintptr_t)op->src + op->fetched, end = (uintptr_t)op->src + op->len;
            if (start < hi && lo < end && (any || !op->validated))
                return op;
        }
    }
    return NULL;
}

static bool validated_target(const struct lieni_sim_world *world, uintptr_t at)
{
    size_t i = span_at(world, at);
    return i < world->n_spans && world->spans[i].lo <= at && world->spans[i].validated;
}

void sim_shadow_post(struct sim_op *op)
{
    struct lieni_sim_world *world = op->ep->node->world;
    uintptr_t lo = (uintptr_t)op->addr, hi = lo + op->len;
    struct sim_op *other = lent_overlap(world, lo, hi, op->kind != SIM_SEND, op);
    if (op->len && other)
        lieni_sim_violate(world,
                          "node %u ep #%llu: %s #%llu of %zu bytes posted over memory that %s "
                          "#%llu of ep #%llu still holds (offset %lld)",
                          op->ep->node->index, (unsigned long long)op->ep->number,
                          kind_name[op->kind], (unsigned long long)op->number, op->len,
                          kind_name[other->kind], (unsigned long long)other->number,
                          (unsigned long long)other->ep->number,
                          (long long)(op->addr - other->addr));
    const struct sim_op *fetch = op->kind == SIM_SEND ? NULL : fetch_overlap(world, lo, hi, false);
    if (op->len && fetch)
        lieni_sim_violate(world,
                          "node %u ep #%llu: %s #%llu posted over a source that READ #%llu of node "
                          "%u still fetches",
                          op->ep->node->index, (unsigned long long)op->ep->number,
                          kind_name[op->kind], (unsigned long long)op->number,
                          (unsigned long long)fetch->number, fetch->ep->node->index);
    if (op->len > world->lent_longest)
        world->lent_longest = op->len;
    size_t i = lent_at(world, lo);
    world->lent = sim_grow(world->lent, world->n_lent, &world->cap_lent, sizeof(struct sim_op *));
    memmove(&world->lent[i + 1], &world->lent[i], (world->n_lent - i) * sizeof(struct sim_op *));
    world->lent[i] = op;
    world->n_lent++;
    op->lent = op->engine = true;
    op->validated = op->kind == SIM_READ && validated_target(world, lo);
}

void sim_shadow_end(struct sim_op *op)
{
    struct lieni_sim_world *world = op->ep->node->world;
    size_t i = lent_at(world, (uintptr_t)op->addr);
    while (i < world->n_lent && world->lent[i] != op)
        i++;
    if (i < world->n_lent) {
        world->n_lent--;
        memmove(&world->lent[i], &world->lent[i + 1],
                (world->n_lent - i) * sizeof(struct sim_op *));
    }
    op->lent = op->engine = false;
}

// -- What the driver saw -----------------------------------------------------------------------------------------------------------

static void check_handed_out(struct lieni_sim_world *world, uintptr_t lo, uintptr_t hi,
                             bool unregistered)
{
    const struct sim_op *op = lent_overlap(world, lo, hi, false, NULL);
    if (op)
        lieni_sim_violate(world,
                          "node %u ep #%llu: memory given to the application while %s #%llu of %zu "
                          "bytes may still write it: neither its entry nor a proof was seen",
                          op->ep->node->index, (unsigned long long)op->ep->number,
                          kind_name[op->kind], (unsigned long long)op->number, op->len);
    op = fetch_overlap(world, lo, hi, unregistered);
    if (op)
        lieni_sim_violate(world,
                          "source given back to the application while READ #%llu of node %u ep "
                          "#%llu still fetches it (%zu of %zu bytes so far)",
                          (unsigned long long)op->number, op->ep->node->index,
                          (unsigned long long)op->ep->number, op->fetched, op->len);
}

// Where the NIC sees what the application has at `addr`.
static uintptr_t nic_address(const struct lieni_sim_world *world, const void *addr)
{
    return (uintptr_t)(world->address ? world->address(world->address_self, addr) : addr);
}

static void owns(struct lieni_sim_world *world, const void *addr, size_t len, bool unregistered)
{
    uintptr_t lo = nic_address(world, addr), hi = lo + len;
    if (!len)
        return;
    check_handed_out(world, lo, hi, unregistered);
    size_t i = span_clear(world, lo, hi);
    span_insert(world, i, (struct sim_span){.lo = lo, .hi = hi, .owner = SPAN_APP});
}

void lieni_shadow_app_owns(struct lieni_sim_world *world, const void *addr, size_t len)
{
    owns(world, addr, len, false);
}

void lieni_shadow_app_unregistered(struct lieni_sim_world *world, const void *addr, size_t len)
{
    owns(world, addr, len, true);
}

void lieni_shadow_app_gives(struct lieni_sim_world *world, const void *addr, size_t len)
{
    uintptr_t lo = nic_address(world, addr), hi = lo + len;
    if (!len)
        return;
    span_cut(world, lo);
    span_cut(world, hi);
    for (size_t i = span_at(world, lo); i < world->n_spans && world->spans[i].lo < hi;) {
        if (world->spans[i].owner == SPAN_SOURCE || world->spans[i].validated) {
            world->spans[i++].given = true;
            continue;
        }
        span_remove(world, i);
    }
}

void lieni_shadow_app_lost(struct lieni_sim_world *world, const void *addr, size_t len)
{
    uintptr_t lo = nic_address(world, addr);
    if (len)
        span_clear(world, lo, lo + len);
}

static void lends_target(struct lieni_sim_world *world, const void *addr, size_t len,
                         bool validated)
{
    uintptr_t lo = nic_address(world, addr), hi = lo + len;
    if (!len || !owned_by_app(world, lo, hi, "lending as a target"))
        return;
    size_t i = span_clear(world, lo, hi);
    span_insert(
        world, i,
        (struct sim_span){.lo = lo, .hi = hi, .owner = SPAN_TARGET, .validated = validated});
    // What was posted before the answer came.
    for (i = lent_at(world, lo); validated && i < world->n_lent; i++) {
        if ((uintptr_t)world->lent[i]->addr >= hi)
            break;
        world->lent[i]->validated = world->lent[i]->kind == SIM_READ;
    }
}

void lieni_shadow_app_lends_target(struct lieni_sim_world *world, const void *addr, size_t len)
{
    lends_target(world, addr, len, false);
}

void lieni_shadow_app_lends_target_validated(struct lieni_sim_world *world, const void *addr,
                                             size_t len)
{
    lends_target(world, addr, len, true);
}

void lieni_shadow_app_lends_source(struct lieni_sim_world *world, const void *addr, size_t len)
{
    uintptr_t lo = nic_address(world, addr), hi = lo + len;
    if (!len || !owned_by_app(world, lo, hi, "lending as a source"))
        return;
    span_cut(world, lo);
    span_cut(world, hi);
    for (size_t i = span_at(world, lo); i < world->n_spans && world->spans[i].lo < hi; i++) {
        world->spans[i].owner = SPAN_SOURCE;
        world->spans[i].count++;
    }
}

void lieni_shadow_app_source_back(struct lieni_sim_world *world, const void *addr, size_t len)
{
    uintptr_t lo = nic_address(world, addr), hi = lo + len;
    if (!len)
        return;
    span_cut(world, lo);
    span_cut(world, hi);
    for (size_t i = span_at(world, lo); i < world->n_spans && world->spans[i].lo < hi; i++) {
        struct sim_span *span = &world->spans[i];
        if (span->owner != SPAN_SOURCE || span->given || --span->count)
            continue;
        check_handed_out(world, span->lo, span->hi, false);
        span->owner = SPAN_APP;
    }
}

// -- DMA ---------------------------------------------------------------------------------------------------------------------------

static bool mapped(const uint8_t *addr, size_t len)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t off = (uintptr_t)addr & (page - 1);
    const uint8_t *lo = addr - off;
    size_t left = len + off;
    unsigned char in_core[64];
    while (left) {
        size_t piece = left < sizeof in_core * page ? left : sizeof in_core * page;
        if (mincore((void *)(uintptr_t)lo, piece, in_core) != 0)
            return false;
        lo += piece;
        left -= piece;
    }
    return true;
}

static void say_dma(struct sim_op *op, const uint8_t *addr, size_t len, bool write,
                    const char *whose)
{
    const uint8_t *start = write ? op->addr : op->src;
    lieni_sim_violate(
        op->ep->node->world,
        "node %u ep #%llu: %s #%llu %s bytes %lld..%lld of its %zu (context %llx): %s",
        op->ep->node->index, (unsigned long long)op->ep->number, kind_name[op->kind],
        (unsigned long long)op->number, write ? "writes" : "fetches", (long long)(addr - start),
        (long long)(addr - start) + (long long)len, op->len, (unsigned long long)op->context,
        whose);
}

bool sim_shadow_write(struct sim_op *op, const uint8_t *addr, size_t len)
{
    struct lieni_sim_world *world = op->ep->node->world;
    uintptr_t lo = (uintptr_t)addr, hi = lo + len;
    if (!len)
        return true;
    for (size_t i = span_at(world, lo); i < world->n_spans && world->spans[i].lo < hi; i++) {
        // A source that was freed is the library's once it is released, which the driver does not see.
        if (world->spans[i].owner == SPAN_TARGET || world->spans[i].given)
            continue;
        say_dma(op, addr, len, true,
                world->spans[i].owner == SPAN_APP ? "the application owns them"
                                                  : "they are lent as a source");
        return false;
    }
    if (mapped(addr, len))
        return true;
    say_dma(op, addr, len, true, "they are not mapped");
    return false;
}

bool sim_shadow_fetch(struct sim_op *op, const uint8_t *addr, size_t len)
{
    struct lieni_sim_world *world = op->ep->node->world;
    uintptr_t lo = (uintptr_t)addr, hi = lo + len;
    if (!len)
        return true;
    for (size_t i = span_at(world, lo);
         op->kind == SIM_READ && !op->validated && !world->config.writes_only &&
         i < world->n_spans && world->spans[i].lo < hi;
         i++) {
        if (world->spans[i].owner == SPAN_SOURCE)
            continue;
        say_dma(op, addr, len, false,
                world->spans[i].owner == SPAN_APP ? "their owner may write them"
                                                  : "they are the target of a read");
        return false;
    }
    if (mapped(addr, len))
        return true;
    if (op->kind == SIM_READ && world->config.writes_only)
        return false; // a release that nobody sent
    say_dma(op, addr, len, false, "they are not mapped");
    return false;
}

void sim_shadow_free(struct lieni_sim_world *world)
{
    free(world->spans);
    free(world->lent);
}
