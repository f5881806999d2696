// SPDX-License-Identifier: Apache-2.0
//
// The simulator itself, driven at the provider interface without core: what the contract promises, that each fault it is meant to show does show, that the shadow speaks when
// memory is released too early and only then, and that one seed is one schedule.

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "provider/sim/sim.h"

#define MS    1000000ull
#define RECVS 8u
#define FRAME 256u
#define BIG   (200u * 1024u)

struct side {
    const struct lieni_platform *platform;
    const struct lieni_provider *prov_ops;
    struct lieni_prov *prov;
    struct lieni_domain *domain;
    struct lieni_ep *ep;
    uint16_t port;
    uint8_t frames[RECVS][FRAME];
    uint8_t *bulk;
    struct lieni_mr *frame_mr, *bulk_mr;
    struct lieni_mr_info bulk_info;
    // events seen
    bool up, down, failed;
    unsigned sends, reads, recvs, errors, unknown;
    int last_status, failed_status;
    unsigned order[64], n_order; // receives, by their context
    uint64_t read_context;
};

struct pair {
    struct lieni_sim_world *world;
    struct side s[2];
};

enum {
    CTX_SEND = 1000,
    CTX_READ = 2000
};

static void side_open(struct pair *p, unsigned i)
{
    struct side *s = &p->s[i];
    s->platform = lieni_sim_node_platform(p->world, i);
    s->prov_ops = s->platform->providers[0];
    struct lieni_prov_args args = {.env = &s->platform->env};
    cr_assert_eq(s->prov_ops->open(&args, &s->prov), 0);
    cr_assert_eq(s->prov_ops->domain_open(s->prov, NULL, &s->domain), 0);
    struct lieni_mr_info info;
    s->bulk = malloc(BIG);
    cr_assert_eq(s->prov_ops->mr_reg(s->domain, s->frames, sizeof s->frames, LIENI_ACCESS_LOCAL,
                                     &s->frame_mr, &info),
                 0);
    cr_assert_eq(s->prov_ops->mr_reg(s->domain, s->bulk, BIG,
                                     LIENI_ACCESS_LOCAL | LIENI_ACCESS_REMOTE, &s->bulk_mr,
                                     &s->bulk_info),
                 0);
}

static void side_ep(struct pair *p, unsigned i, uint8_t send, uint8_t expect)
{
    struct side *s = &p->s[i];
    struct lieni_recv recvs[RECVS - 1];
    for (unsigned j = 0; j < RECVS - 1; j++)
        recvs[j] = (struct lieni_recv){s->frames[j], FRAME, s->frame_mr, j + 1};
    struct lieni_ep_args args = {.user = s,
                                 .host = lieni_sim_node_host(p->world, 0),
                                 .port = p->s[0].port,
                                 .recvs = recvs,
                                 .n_recvs = RECVS - 1,
                                 .posts_max = 64};
    memset(args.send_data, send, LIENI_CM_DATA);
    memset(args.expect_data, expect, LIENI_CM_DATA);
    if (i == 0)
        cr_assert_eq(s->prov_ops->listen(s->domain, &args, &s->ep, &s->port), 0);
    else
        cr_assert_eq(s->prov_ops->connect(s->domain, &args, &s->ep), 0);
}

static void take(const struct lieni_event *e)
{
    struct side *s = e->user;
    switch (e->kind) {
    case LIENI_EV_UP:
        s->up = true;
        return;
    case LIENI_EV_FAILED:
        s->failed = true;
        s->failed_status = e->status;
        return;
    case LIENI_EV_DOWN:
        s->down = true;
        return;
    case LIENI_EV_ENTRY:
        break;
    }
    s->errors += e->cqe.status != 0;
    s->last_status = e->cqe.status;
    if (e->cqe.context >= CTX_READ) {
        s->reads++;
        s->read_context = e->cqe.context;
    } else if (e->cqe.context >= CTX_SEND) {
        s->sends++;
    } else if (e->cqe.context) {
        s->recvs++;
        s->order[s->n_order++ % 64] = (unsigned)e->cqe.context;
    } else {
        s->unknown++;
    }
}

static void poll_all(struct pair *p, unsigned mask)
{
    struct lieni_event events[4];
    for (unsigned i = 0; i < 2; i++) {
        unsigned n;
        while ((mask & (1u << i)) && p->s[i].prov &&
               (n = p->s[i].prov_ops->poll(p->s[i].prov, events, 4)) > 0)
            for (unsigned j = 0; j < n; j++)
                take(&events[j]);
    }
}

static void run_mask(struct pair *p, uint64_t time, unsigned mask)
{
    uint64_t end = lieni_sim_now(p->world) + time;
    while (lieni_sim_step(p->world, end))
        poll_all(p, mask);
    lieni_sim_advance(p->world, end);
    poll_all(p, mask);
}

static void run(struct pair *p, uint64_t time)
{
    run_mask(p, time, 3);
}

static struct pair *pair_new(uint64_t seed, const struct lieni_sim_config *config)
{
    struct pair *p = calloc(1, sizeof *p);
    p->world = lieni_sim_world_new(seed, config);
    cr_assert_not_null(p->world);
    side_open(p, 0);
    side_open(p, 1);
    return p;
}

static struct pair *pair_up(uint64_t seed, const struct lieni_sim_config *config)
{
    struct pair *p = pair_new(seed, config);
    side_ep(p, 0, 'a', 'b');
    side_ep(p, 1, 'b', 'a');
    run(p, 10 * MS);
    cr_assert(p->s[0].up && p->s[1].up);
    return p;
}

// Destroys the endpoint; returns the proof.
static enum lieni_proof side_down(struct pair *p, unsigned i)
{
    struct side *s = &p->s[i];
    enum lieni_proof proof = LIENI_UNKNOWN;
    uint64_t late;
    s->prov_ops->ep_shutdown(s->ep);
    while (s->prov_ops->ep_destroy(s->ep, &proof, &late) == LIEN_EBUSY)
        run(p, MS);
    s->ep = NULL;
    return proof;
}

static enum lieni_proof side_close(struct pair *p, unsigned i)
{
    struct side *s = &p->s[i];
    enum lieni_proof proof = LIENI_UNKNOWN;
    if (s->ep)
        side_down(p, i);
    cr_assert_eq(s->prov_ops->mr_close(s->frame_mr), 0);
    cr_assert_eq(s->prov_ops->mr_close(s->bulk_mr), 0);
    cr_assert_eq(s->prov_ops->domain_close(s->domain, &proof), 0);
    s->prov_ops->close(s->prov);
    s->prov = NULL;
    return proof;
}

static void pair_free(struct pair *p, unsigned violations)
{
    for (unsigned i = 0; i < 2; i++)
        if (p->s[i].prov)
            side_close(p, i);
    lieni_sim_check_quiet(p->world);
    for (unsigned i = violations; i < lieni_sim_violations(p->world); i++)
        cr_log_error("%s", lieni_sim_violation(p->world, i));
    cr_assert_eq(lieni_sim_violations(p->world), violations);
    lieni_sim_world_free(p->world);
    free(p->s[0].bulk);
    free(p->s[1].bulk);
    free(p);
}

static void fill(uint8_t *p, size_t len, unsigned tag)
{
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)(i * 7 + (i >> 8) + tag);
}

// Side 1 reads `len` bytes of side 0's bulk into its own.
static int start_read(struct pair *p, size_t len, uint64_t context)
{
    struct side *s = &p->s[1];
    return s->prov_ops->post_read(s->ep, s->bulk, len, s->bulk_mr, p->s[0].bulk_info.base,
                                  p->s[0].bulk_info.key, CTX_READ + context);
}

static struct lieni_sim_config config_of(enum lieni_sim_class kind)
{
    struct lieni_sim_config c;
    lieni_sim_config_init(&c, kind);
    c.chunk = (struct lieni_sim_range){4096, 16384};
    return c;
}

// -- Contract ----------------------------------------------------------------------------------------------------------------------

Test(sim, connects_only_with_the_right_private_data)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
    struct pair *p = pair_new(1, &c);
    side_ep(p, 0, 'a', 'b');
    side_ep(p, 1, 'x', 'a'); // the listener does not expect x
    run(p, 10 * MS);
    cr_assert(p->s[1].failed && !p->s[0].up && !p->s[0].failed);
    cr_assert_eq(p->s[1].failed_status, LIEN_EREFUSED);
    side_down(p, 1);
    p->s[1].failed = false;
    side_ep(p, 1, 'b', 'a'); // the listener still waits
    run(p, 10 * MS);
    cr_assert(p->s[1].up && p->s[0].up);
    side_down(p, 1);
    side_ep(p, 1, 'b', 'a'); // its port was closed once used
    run(p, 10 * MS);
    cr_assert(p->s[1].failed);
    pair_free(p, 0);
}

Test(sim, connecting_side_checks_too)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
    struct pair *p = pair_new(1, &c);
    side_ep(p, 0, 'a', 'b');
    side_ep(p, 1, 'b', 'y');
    run(p, 10 * MS);
    cr_assert(p->s[1].failed && p->s[0].failed && !p->s[1].up && !p->s[0].up);
    pair_free(p, 0);
}

Test(sim, sends_arrive_in_order_with_their_bytes)
{
    for (int kind = 0; kind < LIENI_SIM_CLASSES; kind++) {
        struct lieni_sim_config c = config_of((enum lieni_sim_class)kind);
        struct pair *p = pair_up(7, &c);
        struct side *s = &p->s[1];
        uint8_t *frame = s->frames[RECVS - 1];
        for (unsigned i = 0; i < RECVS - 1; i++) {
            fill(frame, FRAME, i);
            cr_assert_eq(s->prov_ops->post_send(s->ep, frame, FRAME - i, s->frame_mr, CTX_SEND), 0);
            run(p, MS); // the frame is used again only after its entry
            cr_assert_eq(s->sends, i + 1);
        }
        cr_assert_eq(p->s[0].recvs, RECVS - 1);
        for (unsigned i = 0; i < RECVS - 1; i++) {
            uint8_t want[FRAME];
            fill(want, FRAME, i);
            cr_assert_eq(p->s[0].order[i], i + 1);
            cr_assert_arr_eq(p->s[0].frames[i], want, FRAME - i);
        }
        pair_free(p, 0);
    }
}

Test(sim, a_read_brings_the_bytes)
{
    for (int kind = 0; kind < LIENI_SIM_CLASSES; kind++) {
        struct lieni_sim_config c = config_of((enum lieni_sim_class)kind);
        struct pair *p = pair_up(8, &c);
        fill(p->s[0].bulk, BIG, 3);
        lieni_shadow_app_owns(p->world, p->s[0].bulk, BIG);
        lieni_shadow_app_owns(p->world, p->s[1].bulk, BIG);
        lieni_shadow_app_lends_source(p->world, p->s[0].bulk, BIG);
        lieni_shadow_app_lends_target(p->world, p->s[1].bulk, BIG);
        cr_assert_eq(start_read(p, BIG, 1), 0);
        run(p, 50 * MS);
        cr_assert_eq(p->s[1].reads, 1);
        cr_assert_eq(p->s[1].last_status, 0);
        cr_assert_arr_eq(p->s[0].bulk, p->s[1].bulk, BIG);
        lieni_shadow_app_owns(p->world, p->s[1].bulk, BIG);
        lieni_shadow_app_source_back(p->world, p->s[0].bulk, BIG);
        cr_assert_eq(start_read(p, 0, 2), 0); // of length zero
        run(p, 50 * MS);
        cr_assert_eq(p->s[1].reads, 2);
        pair_free(p, 0);
    }
}

Test(sim, a_send_may_overtake_a_read)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_VERBS);
    struct pair *p = pair_up(9, &c);
    struct side *s = &p->s[1];
    cr_assert_eq(start_read(p, BIG, 1), 0);
    cr_assert_eq(s->prov_ops->post_send(s->ep, s->frames[RECVS - 1], 8, s->frame_mr, CTX_SEND), 0);
    while (!p->s[0].recvs && lieni_sim_step(p->world, UINT64_MAX))
        poll_all(p, 3);
    cr_assert_eq(p->s[0].recvs, 1);
    cr_assert_eq(s->reads, 0);
    pair_free(p, 0);
}

Test(sim, a_dead_key_is_refused_as_the_class_says)
{
    for (int kind = 0; kind < LIENI_SIM_CLASSES; kind++) {
        struct lieni_sim_config c = config_of((enum lieni_sim_class)kind);
        struct pair *p = pair_up(10, &c);
        struct side *s = &p->s[1];
        cr_assert_eq(s->prov_ops->post_read(s->ep, s->bulk, 64, s->bulk_mr,
                                            p->s[0].bulk_info.base + BIG - 63,
                                            p->s[0].bulk_info.key, CTX_READ),
                     0);
        run(p, 50 * MS);
        cr_assert_eq(s->reads, 1);
        cr_assert_eq(s->down, c.traits.refused_read_kills);
        cr_assert_eq(p->s[0].down, c.traits.refused_read_kills);
        cr_assert_neq(s->errors, 0);
        pair_free(p, 0);
    }
}

Test(sim, posts_are_barred_after_shutdown)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
    struct pair *p = pair_up(11, &c);
    struct side *s = &p->s[1];
    s->prov_ops->ep_shutdown(s->ep);
    s->prov_ops->ep_shutdown(s->ep);
    cr_assert_eq(start_read(p, 8, 1), LIEN_ESTATE);
    run(p, 50 * MS);
    cr_assert(p->s[0].down);
    cr_assert_eq(s->recvs, RECVS - 1); // each receive was flushed, once
    cr_assert_eq(s->errors, RECVS - 1);
    cr_assert_eq(p->s[0].recvs, RECVS - 1);
    pair_free(p, 0);
}

Test(sim, eagain_when_the_queue_is_full)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
    struct pair *p = pair_up(12, &c);
    struct side *s = &p->s[1];
    unsigned posted = 0;
    int err;
    while ((err = s->prov_ops->post_send(s->ep, s->frames[RECVS - 1], 0, s->frame_mr, CTX_SEND)) ==
           0)
        posted++;
    cr_assert_eq(err, LIEN_EAGAIN);
    cr_assert_eq(posted, 64 - (RECVS - 1));
    lieni_sim_world_config(p->world)->starved_fails = false; // on purpose: no credits here
    run(p, 10 * MS);
    cr_assert_eq(s->sends, posted);
    cr_assert_eq(p->s[0].recvs, RECVS - 1);
    struct lieni_sim_counts counts;
    lieni_sim_counts_get(p->world, &counts);
    cr_assert_eq(counts.starved, posted - (RECVS - 1));
    pair_free(p, 0);
}

// -- Torn, late, withheld ----------------------------------------------------------------------------------------------------------

Test(sim, a_source_changed_early_gives_torn_data)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_VERBS);
    struct pair *p = pair_up(13, &c);
    struct lieni_sim_counts counts;
    memset(p->s[0].bulk, 1, BIG);
    cr_assert_eq(start_read(p, BIG, 1), 0);
    do {
        lieni_sim_step(p->world, UINT64_MAX);
        lieni_sim_counts_get(p->world, &counts);
    } while (counts.read_chunks < 3);
    uint8_t *dst = p->s[1].bulk;
    cr_assert_eq(dst[0], 1); // written partly, before any entry
    cr_assert_eq(p->s[1].reads, 0);
    memset(p->s[0].bulk, 2, BIG);
    run(p, 50 * MS);
    cr_assert_eq(p->s[1].reads, 1);
    cr_assert_eq(p->s[1].last_status, 0);
    cr_assert_eq(dst[0], 1);
    cr_assert_eq(dst[BIG - 1], 2);
    pair_free(p, 0);
}

// Bytes of the destination that change from now on.
static unsigned long changes(struct pair *p, uint64_t time)
{
    memset(p->s[1].bulk, 0xcc, BIG);
    run(p, time);
    unsigned long n = 0;
    for (size_t i = 0; i < BIG; i++)
        n += p->s[1].bulk[i] != 0xcc;
    return n;
}

Test(sim, dma_goes_on_after_shutdown_and_stops_where_the_class_proves)
{
    unsigned after_shutdown = 0;
    for (int kind = 0; kind < LIENI_SIM_CLASSES; kind++) {
        unsigned after_ep = 0;
        for (uint64_t seed = 0; seed < 40; seed++) {
            struct lieni_sim_config c = config_of((enum lieni_sim_class)kind);
            c.p_withhold = 500000;
            c.flush = (struct lieni_sim_range){MS, 4 * MS};
            struct pair *p = pair_up(seed, &c);
            struct side *s = &p->s[1];
            memset(p->s[0].bulk, 1, BIG);
            cr_assert_eq(start_read(p, BIG, 1), 0);
            run(p, MS / 10);
            s->prov_ops->ep_shutdown(s->ep);
            after_shutdown += changes(p, MS / 2) > 0;
            enum lieni_proof proof = side_down(p, 1);
            cr_assert_eq(proof == LIENI_PROVEN, c.traits.ep_end_proves);
            unsigned long n = changes(p, 20000 * MS);
            after_ep += n > 0;
            cr_assert(!n || !c.traits.ep_end_proves);
            proof = side_close(p, 1);
            cr_assert_eq(proof == LIENI_PROVEN, c.traits.domain_end_proves);
            pair_free(p, 0);
        }
        cr_assert_eq(after_ep > 0, kind == LIENI_SIM_SOCKETS || kind == LIENI_SIM_OWN_ONLY);
    }
    cr_assert_gt(after_shutdown, 10);
}

Test(sim, the_domains_end_stops_dma_only_where_it_proves)
{
    for (int kind = LIENI_SIM_SOCKETS; kind < LIENI_SIM_CLASSES; kind++) {
        unsigned changed = 0;
        for (uint64_t seed = 0; seed < 40; seed++) {
            struct lieni_sim_config c = config_of((enum lieni_sim_class)kind);
            c.p_withhold = 1000000;
            struct pair *p = pair_up(seed, &c);
            cr_assert_eq(start_read(p, BIG, 1), 0);
            run(p, MS / 20);
            side_close(p, 1);
            changed += changes(p, 20000 * MS) > 0;
            pair_free(p, 0);
        }
        cr_assert_eq(changed > 0, kind == LIENI_SIM_OWN_ONLY);
    }
}

Test(sim, destruction_reports_unknown_late_and_busy)
{
    unsigned unknown = 0, busy = 0, late = 0, spurious = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct lieni_sim_config c = config_of(LIENI_SIM_VERBS);
        c.p_unproven = 300000;
        c.p_ebusy = 300000;
        c.p_spurious = 500000;
        struct pair *p = pair_up(seed, &c);
        p->s[1].prov_ops->ep_shutdown(p->s[1].ep);
        run_mask(p, 4 * MS, 1); // node 1 does not look
        unknown += side_down(p, 1) == LIENI_UNKNOWN;
        p->s[0].prov_ops->ep_shutdown(p->s[0].ep);
        run(p, 10 * MS);
        spurious += p->s[0].unknown > 0 || p->s[0].recvs > RECVS - 1;
        struct lieni_sim_counts counts;
        lieni_sim_counts_get(p->world, &counts);
        busy += counts.ebusy > 0;
        late += counts.entries_late > 0;
        pair_free(p, 0);
    }
    cr_assert(unknown > 5 && unknown < 55 && busy > 5 && late > 30 && spurious > 30);
}

// -- Shadow ------------------------------------------------------------------------------------------------------------------------

// A READ, whose target the application takes back before or after its entry.
static unsigned target_taken(bool before_entry)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
    struct pair *p = pair_up(20, &c);
    uint8_t *dst = p->s[1].bulk;
    lieni_shadow_app_owns(p->world, dst, BIG);
    lieni_shadow_app_lends_target(p->world, dst, BIG);
    cr_assert_eq(start_read(p, BIG, 1), 0);
    if (before_entry) {
        run(p, MS / 20);
        cr_assert_eq(p->s[1].reads, 0);
        lieni_shadow_app_owns(p->world, dst, BIG); // "released", by a timeout say
    }
    run(p, 50 * MS);
    if (!before_entry)
        lieni_shadow_app_owns(p->world, dst, BIG);
    unsigned n = lieni_sim_violations(p->world);
    pair_free(p, n);
    return n;
}

Test(sim, shadow_tells_a_target_released_too_early)
{
    cr_assert_eq(target_taken(false), 0);
    cr_assert_geq(target_taken(true), 2); // at the release, and at each chunk that came then
}

Test(sim, shadow_tells_a_target_never_lent)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_VERBS);
    struct pair *p = pair_up(21, &c);
    lieni_shadow_app_owns(p->world, p->s[1].bulk + 4096, 100);
    cr_assert_eq(start_read(p, 4096, 1), 0);
    run(p, 50 * MS);
    cr_assert_eq(lieni_sim_violations(p->world), 0); // next to it
    cr_assert_eq(start_read(p, 4097, 2), 0);
    run(p, 50 * MS);
    unsigned n = lieni_sim_violations(p->world);
    cr_assert_geq(n, 1);
    pair_free(p, n);
}

Test(sim, shadow_tells_an_unproven_release)
{
    for (int kind = 0; kind < LIENI_SIM_CLASSES; kind++) {
        struct lieni_sim_config c = config_of((enum lieni_sim_class)kind);
        c.p_withhold = 1000000;
        struct pair *p = pair_up(22, &c);
        uint8_t *dst = p->s[1].bulk;
        lieni_shadow_app_owns(p->world, dst, BIG);
        lieni_shadow_app_lends_target(p->world, dst, BIG);
        cr_assert_eq(start_read(p, BIG, 1), 0);
        run(p, MS / 20);
        bool proven = side_down(p, 1) == LIENI_PROVEN;
        lieni_shadow_app_owns(p->world, dst, BIG); // takes the destruction for a proof
        unsigned n = lieni_sim_violations(p->world);
        cr_assert_eq(n > 0, !proven);
        run(p, 20000 * MS);
        n = lieni_sim_violations(p->world);
        pair_free(p, n);
    }
}

Test(sim, shadow_tells_a_source_taken_back_too_early)
{
    for (unsigned early = 0; early < 2; early++) {
        struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
        struct pair *p = pair_up(23, &c);
        uint8_t *src = p->s[0].bulk;
        lieni_shadow_app_owns(p->world, src, BIG);
        lieni_shadow_app_lends_source(p->world, src, BIG);
        lieni_shadow_app_lends_source(p->world, src, BIG); // two grants of one buffer
        cr_assert_eq(start_read(p, BIG, 1), 0);
        run(p, early ? MS / 10 : 50 * MS);
        cr_assert_eq(p->s[1].reads, early ? 0 : 1);
        lieni_shadow_app_source_back(p->world, src, BIG);
        cr_assert_eq(lieni_sim_violations(p->world), 0); // one grant is left
        lieni_shadow_app_source_back(p->world, src, BIG);
        run(p, 50 * MS);
        unsigned n = lieni_sim_violations(p->world);
        cr_assert(early ? n >= 2 : n == 0);
        pair_free(p, n);
    }
}

Test(sim, shadow_tells_a_receive_posted_over_a_running_read)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
    struct pair *p = pair_up(24, &c);
    struct side *s = &p->s[1];
    cr_assert_eq(start_read(p, BIG, 1), 0);
    cr_assert_eq(s->prov_ops->post_recv(s->ep, s->bulk + BIG - 8, 8, s->bulk_mr, 77), 0);
    cr_assert_eq(lieni_sim_violations(p->world), 1);
    run(p, 50 * MS);
    cr_assert_eq(s->prov_ops->post_send(s->ep, s->bulk, 8, s->bulk_mr, CTX_SEND), 0);
    cr_assert_eq(s->prov_ops->post_send(s->ep, s->bulk, 8, s->bulk_mr, CTX_SEND), 0);
    cr_assert_eq(lieni_sim_violations(p->world), 1); // two sends of the same bytes are fine
    pair_free(p, 1);
}

Test(sim, calls_on_what_is_gone_are_violations)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
    struct pair *p = pair_up(25, &c);
    struct side *s = &p->s[1];
    struct lieni_ep *ep = s->ep;
    enum lieni_proof proof;
    uint64_t late;
    cr_assert_eq(s->prov_ops->ep_destroy(ep, &proof, &late), LIEN_ESTATE); // not shut down
    cr_assert_eq(lieni_sim_violations(p->world), 1);
    cr_assert_eq(s->prov_ops->domain_close(s->domain, &proof), LIEN_EBUSY);
    side_down(p, 1);
    cr_assert_eq(s->prov_ops->ep_destroy(ep, &proof, &late), LIEN_ESTATE);
    cr_assert_eq(s->prov_ops->post_recv(ep, s->bulk, 8, s->bulk_mr, 1), LIEN_ESTATE);
    cr_assert_eq(lieni_sim_violations(p->world), 3);
    unsigned before = s->recvs + s->reads + s->sends;
    run(p, 100 * MS);
    cr_assert_eq(s->recvs + s->reads + s->sends, before); // nothing of it is told
    pair_free(p, 3);
}

Test(sim, leaks_are_violations)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
    struct pair *p = pair_up(26, &c);
    side_close(p, 0);
    lieni_sim_check_quiet(p->world);
    cr_assert_eq(lieni_sim_violations(p->world), 1 + 2 + 1 + 1); // ep, regions, domain, provider
    pair_free(p, 5);
}

// -- Faults of nodes ---------------------------------------------------------------------------------------------------------------

Test(sim, a_killed_peer_is_noticed_unless_silent)
{
    for (unsigned silent = 0; silent < 2; silent++) {
        struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
        struct pair *p = pair_up(30, &c);
        cr_assert_eq(start_read(p, BIG, 1), 0);
        run(p, MS / 10);
        lieni_sim_kill_node(p->world, 0, silent != 0);
        run_mask(p, 20000 * MS, 2);
        cr_assert_eq(p->s[1].down, !silent);
        cr_assert_eq(p->s[1].reads, silent ? 0 : 1);
        pair_free(p, 0);
    }
}

Test(sim, a_frozen_tcp_target_serves_nothing_and_a_verbs_one_does)
{
    for (int kind = LIENI_SIM_TCP; kind <= LIENI_SIM_VERBS; kind++) {
        struct lieni_sim_config c = config_of((enum lieni_sim_class)kind);
        struct pair *p = pair_up(31, &c);
        fill(p->s[0].bulk, BIG, 5);
        lieni_sim_freeze_node(p->world, 0);
        cr_assert_eq(start_read(p, BIG, 1), 0);
        run_mask(p, 5000 * MS, 2);
        cr_assert_eq(p->s[1].reads, kind == LIENI_SIM_TCP ? 0 : 1);
        lieni_sim_thaw_node(p->world, 0);
        run(p, 50 * MS);
        cr_assert_eq(p->s[1].reads, 1);
        cr_assert_arr_eq(p->s[0].bulk, p->s[1].bulk, BIG);
        pair_free(p, 0);
    }
}

Test(sim, a_broken_link_ends_each_operation_once)
{
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
        struct pair *p = pair_up(seed, &c);
        cr_assert_eq(start_read(p, 64 * 1024, 1), 0);
        cr_assert_eq(start_read(p, 0, 2), 0);
        run(p, MS * (seed % 10) / 40);
        cr_assert(lieni_sim_break_link(p->world, 0, 1, seed));
        run(p, 100 * MS);
        cr_assert(p->s[0].down && p->s[1].down);
        cr_assert_eq(p->s[1].reads, 2);
        cr_assert_eq(p->s[1].recvs, RECVS - 1);
        cr_assert(!lieni_sim_break_link(p->world, 0, 1, 0));
        pair_free(p, 0);
    }
}

Test(sim, registration_can_fail)
{
    struct lieni_sim_config c = config_of(LIENI_SIM_TCP);
    struct pair *p = pair_up(32, &c);
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    lieni_sim_world_config(p->world)->p_register_fail = 1000000;
    cr_assert_eq(
        p->s[0].prov_ops->mr_reg(p->s[0].domain, p->s[0].bulk, 8, LIENI_ACCESS_LOCAL, &mr, &info),
        LIEN_EREGISTER);
    pair_free(p, 0);
}

// -- Determinism -------------------------------------------------------------------------------------------------------------------

static uint64_t scenario(uint64_t seed, int kind)
{
    struct lieni_sim_config c = config_of((enum lieni_sim_class)kind);
    c.p_withhold = c.p_eagain = c.p_ebusy = c.p_reorder = c.p_slow = c.p_spurious = 200000;
    c.p_break = 20000;
    struct pair *p = pair_up(seed, &c);
    struct side *s = &p->s[1];
    for (unsigned i = 0; i < 40; i++) {
        if (lieni_sim_draw(p->world, 2))
            (void)start_read(p, lieni_sim_draw(p->world, 5000), i);
        else if (s->sends < RECVS - 1)
            (void)s->prov_ops->post_send(s->ep, s->frames[RECVS - 1], 16, s->frame_mr, CTX_SEND);
        run(p, MS * lieni_sim_draw(p->world, 20));
        if (!s->recvs && !p->s[0].recvs)
            continue;
        lieni_sim_world_config(p->world)->starved_fails = false;
    }
    run(p, 20000 * MS);
    side_close(p, 0);
    side_close(p, 1);
    uint64_t hash = lieni_sim_trace_hash(p->world);
    pair_free(p, lieni_sim_violations(p->world)); // overlapping reads here are on purpose
    return hash;
}

Test(sim, one_seed_is_one_schedule)
{
    unsigned same = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        int kind = (int)(seed % LIENI_SIM_CLASSES);
        void *moved = malloc(1 + 1000 * (size_t)seed); // addresses differ between the two
        uint64_t one = scenario(seed, kind);
        void *again = malloc(100000);
        cr_assert_eq(one, scenario(seed, kind));
        same += one == scenario(seed + 1000, kind);
        free(moved);
        free(again);
    }
    cr_assert_eq(same, 0);
}
