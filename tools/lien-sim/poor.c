// SPDX-License-Identifier: Apache-2.0
//
// Memory that runs out. The linker leads every allocation of the program here (--wrap). Only those of the library can fail: the simulator and the application suspend the shortage for
// theirs. One fails, the n-th from when the shortage was set, or several in a row.

#include "poor.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "provider/sim/sim.h"

static unsigned countdown; // 0: no shortage
static unsigned fails;     // in a row, from then on
static uint64_t failed;
static void (*watch)(void *self);
static void *watch_self;

void poor_set(unsigned nth, unsigned in_a_row)
{
    countdown = nth;
    fails = in_a_row;
}

uint64_t poor_failed(void)
{
    uint64_t n = failed;
    failed = 0;
    return n;
}

void poor_watch(void (*hook)(void *self), void *self)
{
    watch = hook;
    watch_self = self;
}

static bool out_of_memory(void)
{
    if (!countdown || lieni_sim_allocating)
        return false;
    if (countdown > 1) {
        countdown--;
        return false;
    }
    if (!fails) {
        countdown = 0;
        return false;
    }
    fails--;
    failed++;
    if (watch)
        watch(watch_self);
    return true;
}

// Names that the linker makes.
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

void *__wrap_malloc(size_t size)
{
    return out_of_memory() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return out_of_memory() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return out_of_memory() ? NULL : __real_realloc(p, size);
}

void *app_new(size_t size)
{
    lieni_sim_allocating++;
    void *p = calloc(1, size);
    lieni_sim_allocating--;
    if (!p)
        abort();
    return p;
}
