// SPDX-License-Identifier: Apache-2.0
//
// Patterns, random numbers and time of the chaos test. The state of the random numbers is the thread's.

#include <string.h>
#include <time.h>

#include "tests/chaos/chaos.h"

uint64_t chaos_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static _Thread_local uint64_t state = 1;

void chaos_seed(uint64_t seed)
{
    state = seed;
}

uint64_t chaos_random(void)
{
    state += UINT64_C(0x9e3779b97f4a7c15);
    return chaos_mix(state);
}

unsigned chaos_below(unsigned n)
{
    return (unsigned)(chaos_random() % n);
}

uint64_t chaos_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

void chaos_sleep(unsigned ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static uint64_t key(uint64_t id, int generation)
{
    return chaos_mix(id ^ chaos_mix((uint64_t)generation));
}

static uint64_t word(uint64_t k, uint64_t i)
{
    uint64_t x = (k + i) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ (x >> 29);
}

void chaos_fill(void *data, size_t len, uint64_t id, int generation, uint64_t at)
{
    uint64_t k = key(id, generation), i = at / 8, w;
    size_t done = 0;
    for (; done + sizeof w <= len; done += sizeof w) {
        w = word(k, i++);
        memcpy((char *)data + done, &w, sizeof w);
    }
    w = word(k, i);
    memcpy((char *)data + done, &w, len - done);
}

size_t chaos_differs(const void *data, size_t len, uint64_t id, int generation, uint64_t at,
                     uint64_t turn)
{
    uint64_t k = key(id, generation), i = at / 8, w, is;
    size_t done = 0;
    for (; done + sizeof w <= len; done += sizeof w) {
        memcpy(&is, (const char *)data + done, sizeof is);
        if (is != (word(k, i++) ^ turn))
            return done;
    }
    w = word(k, i) ^ turn;
    return memcmp((const char *)data + done, &w, len - done) == 0 ? len : done;
}

void chaos_turn(void *data, size_t len)
{
    uint64_t w;
    size_t done = 0;
    for (; done + sizeof w <= len; done += sizeof w) {
        memcpy(&w, (char *)data + done, sizeof w);
        w ^= CHAOS_TURN;
        memcpy((char *)data + done, &w, sizeof w);
    }
    w = CHAOS_TURN;
    for (size_t i = 0; i < len - done; i++)
        ((char *)data)[done + i] ^= (char)(w >> (8 * i));
}
