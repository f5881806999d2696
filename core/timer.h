// SPDX-License-Identifier: Apache-2.0
//
// Deadlines of a ctx: an intrusive binary heap of timers in nanoseconds of the environment's clock. Under the state lock. Setting, moving and clearing are O(log n);
// the heap's array grows when a timer is initialised (so setting never fails).

#ifndef LIENI_TIMER_H
#define LIENI_TIMER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lieni_timer {
    uint64_t when;                       // ns
    size_t place;                        // index in the heap + 1, or 0
    void (*fire)(struct lieni_timer *t); // under the state lock; may set or clear any timer
};
struct lieni_timers {
    struct lieni_timer **heap;
    size_t n, reserved, cap; // set, initialised, allocated
};

void lieni_timers_init(struct lieni_timers *ts);
void lieni_timers_free(struct lieni_timers *ts);
// Reserves its place in the heap. LIEN_ENOMEM. Undone by lieni_timer_fini (which clears it).
int lieni_timer_init(struct lieni_timers *ts, struct lieni_timer *t,
                     void (*fire)(struct lieni_timer *t));
void lieni_timer_fini(struct lieni_timers *ts, struct lieni_timer *t);
void lieni_timer_set(struct lieni_timers *ts, struct lieni_timer *t, uint64_t when); // also moves
void lieni_timer_clear(struct lieni_timers *ts, struct lieni_timer *t);
bool lieni_timer_is_set(const struct lieni_timer *t);
// The earliest, or UINT64_MAX.
uint64_t lieni_timers_next(const struct lieni_timers *ts);
// Fires all due at `now`, each once, in order of time; a timer set by another's fire for a time <= now runs at the next call. Returns how many.
unsigned lieni_timers_run(struct lieni_timers *ts, uint64_t now);

#endif
