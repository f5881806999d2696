// SPDX-License-Identifier: Apache-2.0
//
// The driver on the simulator: two nodes of one world, both sides in one process. Each side's script has a thread, and exactly one of the two runs at a time: `runs` says which.
// A side that waits makes progress, steps the world when no node has anything to do, and passes the baton. So world and core see one thread at a time, in a fixed order: a
// run is the same each time.

#include <stdio.h>
#include <stdlib.h>

#include "core/ctx.h"
#include "provider/sim/sim.h"
#include "tests/conformance/harness.h"

#define TICK 1000000u // ns the clock moves at most at once, so that Lien's timers see their time

static struct {
    pthread_mutex_t lock;
    pthread_cond_t passed;
    unsigned runs;
    bool over[2];
    bool idle[2]; // its node's progress is not run: the script keeps still, or it is frozen
    struct lieni_sim_world *world;
} sim = {.lock = PTHREAD_MUTEX_INITIALIZER, .passed = PTHREAD_COND_INITIALIZER};

static void pass(unsigned me)
{
    unsigned other = 1 - me;
    pthread_mutex_lock(&sim.lock);
    if (!sim.over[other] && !lieni_sim_node_frozen(sim.world, other)) {
        sim.runs = other;
        pthread_cond_broadcast(&sim.passed);
        while (sim.runs != me)
            pthread_cond_wait(&sim.passed, &sim.lock);
    }
    pthread_mutex_unlock(&sim.lock);
}

static bool anyone_ready(void)
{
    for (unsigned i = 0; i < 2; i++) {
        if (!sim.idle[i] && !sim.over[i] && !lieni_sim_node_frozen(sim.world, i) &&
            lieni_sim_node_ready(sim.world, i))
            return true;
    }
    return false;
}

static void turn(struct cf_side *side, bool still)
{
    unsigned me = (unsigned)side->role;
    sim.idle[me] = still || !side->ctx;
    if (!sim.idle[me]) {
        CHECK_RC(side, lien_ctx_progress(side->ctx), 0);
        if (lien_ctx_arm(side->ctx) == LIEN_EAGAIN)
            CHECK_RC(side, lien_ctx_progress(side->ctx), 0);
    }
    uint64_t to = lieni_sim_now(sim.world) + TICK;
    while (!anyone_ready()) {
        if (!lieni_sim_step(sim.world, to)) {
            lieni_sim_advance(sim.world, to);
            break;
        }
    }
    pass(me);
}

static int open_ctx(struct cf_side *side, lien_ctx_opts *opts, lien_ctx **ctx)
{
    opts->flags |= LIEN_APP_DRIVEN;
    return lieni_ctx_open_platform(opts, lieni_sim_node_platform(sim.world, (unsigned)side->role),
                                   ctx);
}

static uint64_t now_ms(struct cf_side *side)
{
    (void)side;
    return lieni_sim_now(sim.world) / TICK;
}

static void freeze(struct cf_side *side)
{
    lieni_sim_freeze_node(sim.world, 1 - (unsigned)side->role);
}

static void thaw(struct cf_side *side)
{
    lieni_sim_thaw_node(sim.world, 1 - (unsigned)side->role);
}

const struct cf_driver cf_sim = {.name = "sim",
                                 .host = "*",
                                 .provider = "sim",
                                 .path = LIEN_PATH_SIM,
                                 .ctx_open = open_ctx,
                                 .turn = turn,
                                 .now_ms = now_ms,
                                 .freeze = freeze,
                                 .thaw = thaw};

static void *script(void *arg)
{
    struct cf_side *side = arg;
    unsigned me = (unsigned)side->role;
    pthread_mutex_lock(&sim.lock);
    while (sim.runs != me)
        pthread_cond_wait(&sim.passed, &sim.lock);
    pthread_mutex_unlock(&sim.lock);
    cf_run(side);
    pthread_mutex_lock(&sim.lock);
    sim.over[me] = true;
    sim.runs = 1 - me;
    pthread_cond_broadcast(&sim.passed);
    pthread_mutex_unlock(&sim.lock);
    return NULL;
}

int cf_sim_run(const struct cf_case *test, struct cf_side sides[2])
{
    struct lieni_sim_config config;
    pthread_t threads[2];
    lieni_sim_config_init(&config, LIENI_SIM_TCP);
    if (test->arg >= 16 * MIB) // or most of the time goes into events
        config.chunk = (struct lieni_sim_range){64 * KIB, 256 * KIB};
    if (test->arg >= GIB) {
        config.chunk = (struct lieni_sim_range){256 * KIB, 1024 * KIB};
        config.traits.read_piece_max = MIB;
        config.traits.read_bytes_max = 4 * MIB;
    }
    sim.world = lieni_sim_world_new(1, &config);
    if (!sim.world)
        return 1;
    for (unsigned i = 0; i < 2; i++) {
        if (pthread_create(&threads[i], NULL, script, &sides[i]) != 0)
            return 1;
    }
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    lieni_sim_check_quiet(sim.world);
    unsigned bad = lieni_sim_violations(sim.world);
    for (unsigned i = 0; i < bad && i < 32; i++)
        fprintf(stderr, "%s on sim: %s\n", test->name, lieni_sim_violation(sim.world, i));
    lieni_sim_world_free(sim.world);
    return bad > 0;
}
