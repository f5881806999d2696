// SPDX-License-Identifier: Apache-2.0
//
// Runs of buffers, what is compared in them, and parked memory. The list of what is parked is under `lock`; a run is its holder's alone.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/chaos/worker.h"

#define REPORTED 5u // corruptions that are described, of each life

struct parcel {
    struct run run;
    uint64_t id, due;
    struct parcel *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct parcel *parked;

size_t run_size(void)
{
    unsigned kind = chaos_below(16);
    if (kind == 0)
        return 1 + chaos_below(64);
    if (kind < 12)
        return 1 + chaos_below(64u << 10);
    return 1 + chaos_below(kind < 15 ? 512u << 10 : 4u << 20);
}

int run_open(struct run *run, size_t len)
{
    *run = (struct run){.len = len};
    unsigned n = len >= 1024 ? 1 + chaos_below(CHAOS_RUN_BUFS) : 1;
    for (unsigned i = 0; i < n; i++) {
        size_t part = i + 1 < n ? len / n / 8 * 8 : len - (n - 1) * (len / n / 8 * 8);
        int rc = worker_judge(CHAOS_ALLOC, lien_pool_alloc(worker.pool, part, &run->bufs[i]));
        if (rc != 0) {
            worker_count(CHAOS_NO_ROOM);
            run_free(run);
            return rc;
        }
        run->n++;
    }
    return 0;
}

void run_free(struct run *run)
{
    for (unsigned i = 0; i < run->n; i++)
        lien_buf_free(&run->bufs[i]);
    run->n = 0;
}

// The bytes of a buffer that is not lent.
static void *bytes_of(lien_buf *buf)
{
    void *data = NULL;
    int rc = lien_buf_mut(buf, &data);
    if (rc != 0)
        worker_wrong("lien_buf_mut of a buffer that is ours", rc);
    return data;
}

void run_fill(const struct run *run, uint64_t id, int generation)
{
    uint64_t at = 0;
    for (unsigned i = 0; i < run->n; i++) {
        void *data = bytes_of(run->bufs[i]);
        if (data)
            chaos_fill(data, lien_buf_len(run->bufs[i]), id, generation, at);
        at += lien_buf_len(run->bufs[i]);
    }
}

void run_turn(const struct run *run)
{
    for (unsigned i = 0; i < run->n; i++) {
        void *data = bytes_of(run->bufs[i]);
        if (data)
            chaos_turn(data, lien_buf_len(run->bufs[i]));
    }
}

void run_check(const struct run *run, uint64_t id, int generation, uint64_t turn, const char *what)
{
    uint64_t at = 0;
    for (unsigned i = 0; i < run->n; i++) {
        const void *data = NULL;
        size_t len = lien_buf_len(run->bufs[i]);
        int rc = lien_buf_data(run->bufs[i], &data);
        if (rc != 0) {
            worker_wrong("lien_buf_data of a buffer that is ours", rc);
            continue;
        }
        size_t same = chaos_differs(data, len, id, generation, at, turn);
        worker.slot->bytes += len;
        if (generation == CHAOS_SPENT)
            worker.slot->parked_bytes += len;
        if (same < len && worker.slot->corruptions++ < REPORTED)
            fprintf(stderr,
                    "corruption: worker %u (pid %d), %s, id %" PRIx64
                    ", from byte %zu of %zu on (buffer %u of %u)\n",
                    worker.self, (int)getpid(), what, id, same, len, i + 1, run->n);
        at += len;
    }
}

void run_park(struct run *run)
{
    struct parcel *p = malloc(sizeof *p);
    if (!p)
        abort();
    p->run = *run;
    p->id = worker_id();
    run_fill(&p->run, p->id, CHAOS_SPENT);
    // Mostly short, else the pool would be full of it; sometimes longer than any peer is stopped.
    p->due = chaos_ms() + (chaos_below(4) == 0 ? chaos_below(4000) : chaos_below(300));
    run->n = 0;
    pthread_mutex_lock(&lock);
    p->next = parked;
    parked = p;
    pthread_mutex_unlock(&lock);
}

unsigned run_sweep(bool all)
{
    struct parcel *due = NULL, **at = &parked, *p;
    uint64_t now = chaos_ms();
    unsigned left = 0;
    pthread_mutex_lock(&lock);
    while ((p = *at)) {
        if (all || p->due <= now) {
            *at = p->next;
            p->next = due;
            due = p;
        } else {
            at = &p->next;
            left++;
        }
    }
    pthread_mutex_unlock(&lock);
    while ((p = due)) {
        due = p->next;
        run_check(&p->run, p->id, CHAOS_SPENT, 0, "memory that was given back and filled anew");
        run_free(&p->run);
        free(p);
    }
    return left;
}

lien_space *run_to_space(struct run *run)
{
    lien_space *space = NULL;
    int rc = lien_space_open(worker.ctx, run->bufs, run->n, &space);
    if (rc != 0)
        worker_wrong("lien_space_open", rc);
    return space;
}

void run_from_space(struct run *run, lien_space **space)
{
    int rc = lien_space_take(*space, run->bufs, run->n);
    if (rc != 0) {
        worker_wrong("lien_space_take of a space that is back", rc);
        run->n = 0;
    }
    lien_space_free(space);
}
