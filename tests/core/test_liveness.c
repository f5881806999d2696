// SPDX-License-Identifier: Apache-2.0
//
// Liveness on a virtual clock: how little an idle pair of contexts says, and how soon a silent peer is lost, whenever the silence begins.

#include "tests/calls/world.h"

#define BEAT 1000u // heartbeat_ms
#define DEAD 5000u // dead_ms
#define IDLE (2 * BEAT)

static const char *const settings[] = {"heartbeat_ms=1000", "dead_ms=5000", NULL};

// One question and one answer every two heartbeats, asked by the side that accepted.
Test(liveness, idle_contexts_say_little)
{
    struct world *w = world_open(1, NULL, settings, NULL, NULL);
    run_ms(w, 3 * IDLE);
    uint64_t before[2], asked = 0, seconds = 100;
    for (unsigned i = 0; i < 2; i++)
        before[i] = w->conn[i]->link.number_out;
    for (unsigned i = 0; i < 10 * seconds; i++) {
        run_ms(w, 100);
        asked += w->conn[CLIENT]->asked != 0;
    }
    for (unsigned i = 0; i < 2; i++) {
        uint64_t frames = w->conn[i]->link.number_out - before[i];
        cr_assert_geq(frames, seconds * 1000 / IDLE - 2);
        cr_assert_leq(frames, seconds * 1000 / IDLE + 5, "node %u sent %llu frames", i,
                      (unsigned long long)frames); // some credits among them
        cr_assert(!w->lost[i]);
    }
    cr_assert_eq(asked, 0, "the connecting side asks only when it is not asked");
    cr_assert(lieni_list_empty(&w->ctx[CLIENT]->watched), "an idle connection is not looked at");
    world_close(w);
}

// Of two nodes one falls silent `after` ms into idleness; the other learns of it within `limit` ms.
static void silence(unsigned left, uint64_t after, bool grant, uint64_t limit)
{
    struct world *w = world_open(after + left, NULL, settings, NULL, NULL);
    lien_grant *held = NULL;
    run_ms(w, 3 * IDLE + after);
    w->asleep[1 - left] = true;
    if (grant) {
        lien_buf *buf = buf_new(w, left, 4096, 1);
        lien_grant_opts opts;
        lien_grant_opts_init(&opts);
        lien_token token;
        cr_assert_eq(lien_grant_open(w->conn[left], &buf, 1, &opts, &token, &held), 0);
        lien_buf_free(&buf); // when it is released
    }
    uint64_t begin = lieni_sim_now(w->sim);
    cr_assert(run_until(w, &w->lost[left], 10 * DEAD));
    uint64_t ms = (lieni_sim_now(w->sim) - begin) / MS;
    cr_assert_leq(ms, limit, "node %u, %llu ms into idleness: lost after %llu ms", left,
                  (unsigned long long)after, (unsigned long long)ms);
    cr_assert_geq(ms, DEAD, "lost after %llu ms", (unsigned long long)ms);
    w->asleep[1 - left] = false;
    if (held)
        lien_grant_close(&held);
    world_close(w);
}

Test(liveness, an_idle_connection_is_lost_in_time)
{
    for (uint64_t after = 0; after < 3000; after += 230) {
        silence(SERVER, after, false, IDLE + DEAD + 1);
        silence(CLIENT, after, false, IDLE + IDLE / 4 + DEAD + 1);
    }
}

// What depends on a connection makes it be asked within a heartbeat, also in the middle of an idle one's longer rest.
Test(liveness, a_connection_in_use_is_lost_sooner)
{
    for (uint64_t after = 0; after < 3000; after += 230) {
        silence(SERVER, after, true, BEAT + DEAD + 1);
        silence(CLIENT, after, true, BEAT + DEAD + 1);
    }
}
