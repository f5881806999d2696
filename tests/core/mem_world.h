// SPDX-License-Identifier: Apache-2.0
//
// What the tests of core/mem run in: a root with a lock of its own, stand-ins for the ctx, the log and
// the dispatch (callbacks run when the test says so), and a provider that registers and nothing else.

#ifndef LIEN_TESTS_MEM_WORLD_H
#define LIEN_TESTS_MEM_WORLD_H

#include "core/mem/impl.h"

struct world {
    struct lieni_mem_root *root;
    struct lieni_mem_args args;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct lieni_env env;
    bool (*on_wait)(struct world *w); // app-driven: under the lock; false: LIEN_EDEADLK
    bool threaded;                    // lieni_ctx_wait_locked waits on cond
    unsigned waits;
};

struct lieni_domain {
    unsigned regions;
    unsigned registered, closed; // ever
    unsigned fail_reg;           // so many registrations fail
    bool fail_close;
    void *last_base;
    size_t last_len;
    unsigned last_access;
};

extern const struct lieni_provider fake_provider;
extern char world_log[512];    // the last line
extern unsigned world_strands; // open ones

void world_open(struct world *w);  // with LIEN_GUARD in the environment pools are guarded
void world_close(struct world *w); // lieni_mem_root_close, then what is queued
lien_ctx *world_ctx(struct world *w);
void world_lock(struct world *w);
void world_unlock(struct world *w);
unsigned world_run(void); // runs queued callbacks, returns how many
bool is_mapped(const void *addr);
lien_pool *world_pool(struct world *w, size_t limit, size_t reserve);

#endif
