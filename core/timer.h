// SPDX-License-Identifier: Apache-2.0
//
// Deadlines of a ctx: an intrusive binary heap of timers in nanoseconds of the environment's clock.
// Everything here runs under the state lock. Setting, moving and clearing are O(log n); the heap's
// array grows when a timer is initialised, so setting never fails.

#ifndef LIENI_TIMER_H
#define LIENI_TIMER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lieni_timer {
    uint64_t when; // ns
    size_t place;  // index in the heap + 1, or 0: not set
    // Under the state lock; the timer is clear by then. May set or clear any timer, this one too,
    // initialise and finish timers, and free the timer's object.
    void (*fire)(struct lieni_timer *t);
};
struct lieni_timers {
    struct lieni_timer **heap;
    size_t n, reserved, cap; // set, initialised, allocated
    uint64_t floor;          // ns, 0 but in lieni_timers_run: nothing is set for earlier
};

void lieni_timers_init(struct lieni_timers *ts);
// All its timers must be finished.
void lieni_timers_free(struct lieni_timers *ts);
// Reserves its place in the heap. LIEN_ENOMEM. Undone by lieni_timer_fini (which clears it).
int lieni_timer_init(struct lieni_timers *ts, struct lieni_timer *t,
                     void (*fire)(struct lieni_timer *t));
void lieni_timer_fini(struct lieni_timers *ts, struct lieni_timer *t);
// Also moves. UINT64_MAX never comes.
void lieni_timer_set(struct lieni_timers *ts, struct lieni_timer *t, uint64_t when);
// A timer that is not set stays so.
void lieni_timer_clear(struct lieni_timers *ts, struct lieni_timer *t);
bool lieni_timer_is_set(const struct lieni_timer *t);
// The earliest, or UINT64_MAX.
uint64_t lieni_timers_next(const struct lieni_timers *ts);
// Fires all due at `now`, each once, in order of time. A timer that a fire sets for a time <= now
// is set for now + 1, so one call ends and time has to pass before the next does anything. Returns
// how many fired. Not to be called from a fire.
unsigned lieni_timers_run(struct lieni_timers *ts, uint64_t now);

#endif
