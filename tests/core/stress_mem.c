// SPDX-License-Identifier: Apache-2.0
//
// Threads that allocate, wait, lend, lose, free and look at once, for ThreadSanitizer. A plain main:
// the counts must add up at the end, and no two holders may ever see each other's mark.

#include "mem_world.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    THREADS = 4,
    ROUNDS = 2000
};

static struct world w;
static lien_pool *pool;
static struct lieni_domain domains[THREADS];

struct worker {
    unsigned id, seed;
    unsigned wrong;
};

static void lend_and_end(struct worker *self, lien_buf *buf, unsigned how)
{
    const void *data;
    void *mut;
    world_lock(&w);
    self->wrong += lieni_buf_borrow(buf) != 0;
    self->wrong += lieni_buf_borrow(buf) != 0;
    world_unlock(&w);
    self->wrong += lien_buf_data(buf, &data) != 0;
    self->wrong += lien_buf_mut(buf, &mut) != LIEN_EBUSY;
    if (how == 0) {
        lien_buf_free(&buf); // put off
        buf = NULL;
    }
    (void)buf;
}

static void *work(void *arg)
{
    struct worker *self = arg;
    for (unsigned round = 0; round < ROUNDS; round++) {
        self->seed = self->seed * 1103515245u + 12345u;
        unsigned dice = self->seed >> 16;
        lien_buf *buf = NULL;
        if (lien_pool_alloc_wait(pool, 1 + dice % 40000, LIEN_FOREVER, &buf) != 0) {
            self->wrong++;
            continue;
        }
        void *mut;
        if (lien_buf_mut(buf, &mut) != 0) {
            self->wrong++;
            continue;
        }
        memcpy(mut, &self->id, sizeof self->id);
        lien_buf *lent = buf;
        unsigned how = dice % 3;
        lend_and_end(self, buf, how);
        sched_yield(); // the others shall find the pool empty
        world_lock(&w);
        self->wrong += memcmp(mut, &self->id, sizeof self->id) != 0;
        lieni_buf_unborrow(lent);
        if (how == 1) {
            lieni_buf_lose(lent, &domains[self->id]);
            lieni_mem_domain_ended(w.root, &domains[self->id], true);
        } else {
            lieni_buf_unborrow(lent);
        }
        world_unlock(&w);
        if (how != 0) {
            lien_buf_free(&buf);
        }
    }
    return NULL;
}

int main(void)
{
    world_open(&w);
    w.threaded = true;
    pool = world_pool(&w, 40960, 0); // one of the largest: they do wait
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.id = i, .seed = i * 7919 + 1};
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0) {
            return 1;
        }
    }
    unsigned wrong = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        wrong += workers[i].wrong;
    }
    uint64_t out = lieni_mem_bytes_out(w.root), lost = lieni_mem_bytes_lost(w.root);
    printf("%u wrong answers, %u waits, %llu bytes out, %llu lost\n", wrong, w.waits,
           (unsigned long long)out, (unsigned long long)lost);
    bool waited = w.waits > 0;
    world_close(&w);
    return wrong == 0 && out == 0 && lost == 0 && waited ? 0 : 1;
}
