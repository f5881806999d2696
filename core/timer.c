// SPDX-License-Identifier: Apache-2.0
//
// The heap of deadlines: heap[0 .. n) is ordered so that no child is earlier than its parent, and
// each timer in it knows its place. cap >= reserved >= n always, so inserting never allocates.
// No lock of its own: the caller's state lock guards it.

#include "core/timer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <lien/errors.h>

static void put(struct lieni_timers *ts, size_t i, struct lieni_timer *t)
{
    ts->heap[i] = t;
    t->place = i + 1;
}

// Moves `t` from the hole at `i` towards the root as far as its time asks.
static void sift_up(struct lieni_timers *ts, size_t i, struct lieni_timer *t)
{
    while (i > 0) {
        size_t parent = (i - 1) / 2;
        if (ts->heap[parent]->when <= t->when) {
            break;
        }
        put(ts, i, ts->heap[parent]);
        i = parent;
    }
    put(ts, i, t);
}

static void sift_down(struct lieni_timers *ts, size_t i, struct lieni_timer *t)
{
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= ts->n) {
            break;
        }
        if (child + 1 < ts->n && ts->heap[child + 1]->when < ts->heap[child]->when) {
            child++;
        }
        if (t->when <= ts->heap[child]->when) {
            break;
        }
        put(ts, i, ts->heap[child]);
        i = child;
    }
    put(ts, i, t);
}

// Puts `t` in the hole at `i`, whose neighbours may be on either side of it.
static void settle(struct lieni_timers *ts, size_t i, struct lieni_timer *t)
{
    if (i > 0 && t->when < ts->heap[(i - 1) / 2]->when) {
        sift_up(ts, i, t);
    } else {
        sift_down(ts, i, t);
    }
}

void lieni_timers_init(struct lieni_timers *ts)
{
    memset(ts, 0, sizeof *ts);
}

void lieni_timers_free(struct lieni_timers *ts)
{
    assert(ts->reserved == 0);
    free(ts->heap);
    memset(ts, 0, sizeof *ts);
}

int lieni_timer_init(struct lieni_timers *ts, struct lieni_timer *t,
                     void (*fire)(struct lieni_timer *t))
{
    if (ts->reserved == ts->cap) {
        size_t cap = ts->cap ? 2 * ts->cap : 16;
        struct lieni_timer **heap = reallocarray(ts->heap, cap, sizeof *heap);
        if (!heap) {
            return LIEN_ENOMEM;
        }
        ts->heap = heap;
        ts->cap = cap;
    }
    ts->reserved++;
    *t = (struct lieni_timer){.fire = fire};
    return 0;
}

void lieni_timer_fini(struct lieni_timers *ts, struct lieni_timer *t)
{
    assert(ts->reserved > 0);
    lieni_timer_clear(ts, t);
    ts->reserved--;
}

void lieni_timer_set(struct lieni_timers *ts, struct lieni_timer *t, uint64_t when)
{
    t->when = when < ts->floor ? ts->floor : when;
    if (t->place) {
        settle(ts, t->place - 1, t);
        return;
    }
    assert(ts->n < ts->reserved);
    ts->n++;
    sift_up(ts, ts->n - 1, t);
}

void lieni_timer_clear(struct lieni_timers *ts, struct lieni_timer *t)
{
    if (!t->place) {
        return;
    }
    size_t hole = t->place - 1;
    assert(hole < ts->n && ts->heap[hole] == t);
    t->place = 0;
    struct lieni_timer *last = ts->heap[--ts->n];
    if (last != t) {
        settle(ts, hole, last);
    }
}

bool lieni_timer_is_set(const struct lieni_timer *t)
{
    return t->place != 0;
}

uint64_t lieni_timers_next(const struct lieni_timers *ts)
{
    return ts->n ? ts->heap[0]->when : UINT64_MAX;
}

unsigned lieni_timers_run(struct lieni_timers *ts, uint64_t now)
{
    assert(ts->floor == 0 && now < UINT64_MAX);
    unsigned fired = 0;
    ts->floor = now + 1;
    while (ts->n && ts->heap[0]->when <= now) {
        struct lieni_timer *t = ts->heap[0];
        lieni_timer_clear(ts, t);
        fired++;
        t->fire(t); // may have freed it
    }
    ts->floor = 0;
    return fired;
}
