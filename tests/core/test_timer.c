// SPDX-License-Identifier: Apache-2.0
//
// Timers against a model: an array of deadlines in which the earliest is looked for one by one.
// Random programs of set, move, clear, add and remove, with fires that change other timers.

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "core/timer.h"
#include "lien/errors.h"

#define TIMERS 200

struct entry {
    struct lieni_timer timer;
    bool here;     // initialised
    bool set;      // the model's word
    uint64_t when; // the model's word
    unsigned fired;
};

struct world {
    struct lieni_timers timers;
    struct entry entries[TIMERS];
    uint64_t now;
    uint64_t last; // time of the latest fire in this run
    bool running;
    unsigned random;
    unsigned fires;
};
static struct world w;

static unsigned rnd(unsigned below)
{
    w.random = w.random * 1664525u + 1013904223u;
    return (w.random >> 8) % below;
}

static void change(void);

static void fire(struct lieni_timer *t)
{
    struct entry *e = (struct entry *)((char *)t - offsetof(struct entry, timer));
    cr_assert(e->here && e->set, "a timer fired that is not set");
    cr_assert(e->when <= w.now, "a timer fired early");
    cr_assert(e->when >= w.last, "fired out of order");
    for (unsigned i = 0; i < TIMERS; i++) {
        cr_assert(!w.entries[i].set || w.entries[i].when >= e->when, "not the earliest");
    }
    w.last = e->when;
    cr_assert(!lieni_timer_is_set(t));
    e->set = false;
    e->fired++;
    w.fires++;
    for (unsigned n = rnd(3); n > 0; n--) {
        change();
    }
}

// One random step, done to the heap and to the model.
static void change(void)
{
    struct entry *e = &w.entries[rnd(TIMERS)];
    if (!e->here) {
        cr_assert_eq(lieni_timer_init(&w.timers, &e->timer, fire), 0);
        e->here = true;
        return;
    }
    unsigned what = rnd(20);
    if (what == 0) {
        lieni_timer_fini(&w.timers, &e->timer);
        memset(&e->timer, 0xee, sizeof e->timer);
        e->here = e->set = false;
    } else if (what < 4) {
        lieni_timer_clear(&w.timers, &e->timer);
        e->set = false;
    } else {
        uint64_t when = w.now + rnd(50) - (w.now > 20 ? 20 : 0);
        lieni_timer_set(&w.timers, &e->timer, when);
        e->set = true;
        e->when = w.running && when <= w.now ? w.now + 1 : when;
    }
}

static void compare(void)
{
    uint64_t next = UINT64_MAX;
    for (unsigned i = 0; i < TIMERS; i++) {
        struct entry *e = &w.entries[i];
        if (e->here) {
            cr_assert_eq(lieni_timer_is_set(&e->timer), e->set);
        }
        if (e->set && e->when < next) {
            next = e->when;
        }
    }
    cr_assert_eq(lieni_timers_next(&w.timers), next);
}

static void run(void)
{
    unsigned before = w.fires;
    w.last = 0;
    w.running = true;
    unsigned n = lieni_timers_run(&w.timers, w.now);
    w.running = false;
    cr_assert_eq(n, w.fires - before);
    for (unsigned i = 0; i < TIMERS; i++) {
        cr_assert(!w.entries[i].set || w.entries[i].when > w.now, "a due timer did not fire");
    }
}

Test(timer, random_programs_agree_with_the_model)
{
    for (unsigned seed = 1; seed <= 40; seed++) {
        memset(&w, 0, sizeof w);
        w.random = seed;
        lieni_timers_init(&w.timers);
        for (unsigned step = 0; step < 2000; step++) {
            change();
            compare();
            if (rnd(8) == 0) {
                w.now += rnd(30);
                run();
                compare();
            }
        }
        cr_assert_gt(w.fires, 100);
        for (unsigned i = 0; i < TIMERS; i++) {
            if (w.entries[i].here) {
                lieni_timer_fini(&w.timers, &w.entries[i].timer);
            }
        }
        lieni_timers_free(&w.timers);
    }
}

static struct lieni_timers again_timers;
static unsigned again_fires;

static void set_again(struct lieni_timer *t)
{
    again_fires++;
    lieni_timer_set(&again_timers, t, 0);
}

Test(timer, one_that_sets_itself_for_the_past_does_not_hold_up_a_run)
{
    struct lieni_timer t;
    lieni_timers_init(&again_timers);
    cr_assert_eq(lieni_timer_init(&again_timers, &t, set_again), 0);
    lieni_timer_set(&again_timers, &t, 5);
    cr_assert_eq(lieni_timers_run(&again_timers, 4), 0);
    cr_assert_eq(lieni_timers_run(&again_timers, 7), 1);
    cr_assert_eq(lieni_timers_next(&again_timers), 8);
    cr_assert_eq(lieni_timers_run(&again_timers, 7), 0);
    cr_assert_eq(lieni_timers_run(&again_timers, 8), 1);
    cr_assert_eq(again_fires, 2);
    lieni_timer_fini(&again_timers, &t);
    cr_assert_eq(lieni_timers_next(&again_timers), UINT64_MAX);
    lieni_timers_free(&again_timers);
}

static void free_it(struct lieni_timer *t)
{
    lieni_timer_fini(&again_timers, t);
    free(t);
}

Test(timer, a_fire_may_free_its_timer)
{
    lieni_timers_init(&again_timers);
    for (uint64_t i = 0; i < 100; i++) {
        struct lieni_timer *t = malloc(sizeof *t);
        cr_assert_eq(lieni_timer_init(&again_timers, t, free_it), 0);
        lieni_timer_set(&again_timers, t, (i * 37) % 100);
    }
    cr_assert_eq(lieni_timers_run(&again_timers, 49), 50);
    cr_assert_eq(lieni_timers_run(&again_timers, 99), 50);
    lieni_timers_free(&again_timers);
}
