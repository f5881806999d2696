// SPDX-License-Identifier: Apache-2.0
//
// The root object: owns the platform's objects, options, log, timers, memory root and all
// connections, listeners and NICs of one application context.
//
// One lock, the state lock, guards all of core (memory included). Progress context is whoever
// holds `turn`: it alone polls providers, destroys endpoints and frees connections and listeners.
// Lock order: turn, lock, then the locks inside dispatch and log.

#ifndef LIENI_CTX_H
#define LIENI_CTX_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/access.h"
#include "core/dispatch.h"
#include "core/list.h"
#include "core/log.h"
#include "core/mem/mem.h"
#include "core/options.h"
#include "core/quarantine.h"
#include "core/select.h"
#include "core/timer.h"

#define LIENI_PROVS_MAX 16
// Endpoints that may be on their way at once; more connections wait for their turn.
#define LIENI_FABRIC_MAX 64u

struct lieni_prov_slot {
    const struct lieni_provider *ops;
    struct lieni_prov *prov;
    bool weak; // an endpoint of it ended without proof: it may again
};

// Of lien_ctx_close(): what it found open.
struct lieni_leaks {
    uint64_t listeners, connections;
};

struct lien_ctx {
    pthread_mutex_t lock;
    pthread_cond_t changed; // something that a _wait function waits for
    uint64_t changes;       // how often
    unsigned waiters;       // that sleep
    bool wake_owed;         // tasks were queued that no dispatch thread was woken for
    unsigned inside;        // threads in lieni_ctx_wait_locked()
    pthread_mutex_t turn;
    bool app_driven;
    bool closing;
    atomic_bool stop;         // the progress thread ends
    bool net_again;           // net may have more to tell; under `turn`
    bool dead;                // closed, and kept for messages that the application still holds
    unsigned fork_generation; // of the process that opened it
    pthread_t thread;
    bool thread_started;

    struct lieni_platform platform;
    struct lieni_options options;
    struct lieni_select select;
    struct lieni_seen seen;     // what it chooses among, asked as connections begin; under `turn`
    struct lieni_keyring *keys; // pre-shared, or NULL
    struct lieni_log *log;
    struct lieni_dispatch *dispatch;
    struct lieni_strand *strand; // for log lines made in progress context
    struct lieni_task log_task;
    struct lieni_dispatch *checker;    // check.c: one thread, from the first large checksum on
    struct lieni_strand *check_strand; // its
    struct lieni_timers timers;
    struct lieni_mem_root *mem;
    lien_pool *receive_pool; // bodies of messages, when the application names no pool
    lien_pool *slab_pool;    // frames
    struct lieni_net *net;
    struct lieni_prov_slot provs[LIENI_PROVS_MAX];
    unsigned n_provs;

    struct lieni_node nics;
    struct lieni_node conns;          // all that are not freed
    uint64_t conns_made;              // the serial of the last one
    struct lieni_node listeners;      // the same
    struct lieni_node work;           // connections that need progress context
    struct lieni_node channels;       // until their last callback ran
    struct lieni_node channel_work;   // those that need progress context
    struct lieni_node graveyard;      // conns without references, freed by the next pass
    struct lieni_node dead_listeners; // the same
    unsigned half_open;               // accepted and on their way
    unsigned fabric_pending;        // endpoints on their way, each with a thread of the provider's
    struct lieni_node fabric_queue; // connections that wait for their turn
    struct lieni_quarantine quarantine;
    struct lieni_node room_waits; // connections whose READs wait for room in it
    uint64_t trace_files;         // begun in option trace_dir
    unsigned traces_queued;       // to be written
    struct lieni_leaks leaks;
    uint64_t spaces_held, messages_held,
        requests_held;       // the application's, until it gives them back
    bool traces_full;        // the log said that there are trace_files
    struct lieni_timer beat; // one for all connections
    bool beat_far;           // it may be set for later than heartbeat_ms from now
    struct lieni_node
        watched; // liveness.c: open connections that something may depend on, or that are asked
    struct lieni_node peers; // liveness.c: remote contexts, each with its open connections
    uint8_t instance[16];    // names this ctx to its peers

    int epoll_fd, wake_fd, timer_fd; // -1 under sim
    uint64_t armed;                  // when timer_fd fires; UINT64_MAX: never

    uint64_t held_bytes; // of live grants
    uint64_t requests;   // not freed
    uint64_t grants_live;
    lien_ctx_stats stats; // plain counters; levels are filled when asked for
    _Atomic uint64_t copied;
};

// In a forked child, where the ctx and all that belongs to it are the parent's: each public function that takes an object answers LIEN_EFORK there, before it takes the lock
// (whose holder may not exist in the child); those that return no code answer as for NULL.
static inline bool lieni_ctx_forked(const lien_ctx *ctx)
{
    return ctx->fork_generation != lieni_fork_generation();
}
// The state lock. Unlocking wakes progress if a timer was set earlier than it sleeps for. In a forked child, where only a callback that returned can come to it, it ends the
// process with a word: going on would work on the parent's descriptors.
void lieni_ctx_lock(lien_ctx *ctx);
void lieni_ctx_unlock(lien_ctx *ctx);
uint64_t lieni_ctx_now(const lien_ctx *ctx);
// Something that a _wait function may wait for changed. Under the lock.
void lieni_ctx_changed(lien_ctx *ctx);
// lieni_strand_post() under the state lock, by anybody who holds it: a dispatch thread is woken when the lock is given up.
void lieni_ctx_post(lien_ctx *ctx, struct lieni_strand *strand, struct lieni_task *task);
// Wakes whoever sleeps in progress. Any thread.
void lieni_ctx_wake(lien_ctx *ctx);
// ms from now in ns, saturating; LIEN_FOREVER: UINT64_MAX.
uint64_t lieni_ctx_deadline(const lien_ctx *ctx, uint32_t ms);
// Waits, with the lock held on entry and exit, until something changed or the deadline passed: 0, LIEN_ETIMEDOUT, LIEN_EDEADLK
// (waiting here would never end). Callers loop around their condition.
int lieni_ctx_wait_locked(void *ctx, uint64_t deadline_ns);
struct lieni_mem_root *lieni_ctx_mem(lien_ctx *ctx);
// For the public functions that may not run in a callback at all: LIEN_EDEADLK or 0.
int lieni_ctx_outside(lien_ctx *ctx);

// Copies a versioned options struct over defaults: the first `in_size` bytes. LIEN_EINVAL: smaller than its size field, or larger than any (it was not
// initialised: not walked through). LIEN_ENOTSUP: larger than this library knows, with bytes set that it does not know.
#define LIENI_OPTS_MAX 4096u
int lieni_opts_copy(void *out, size_t out_size, const void *in, size_t in_size);

// core/leaks.c, under the lock. What the application never closed, for a line in the log: first what lien_ctx_close() is about to close for it, then, when all connections have ended,
// the rest.
void lieni_leaks_look(lien_ctx *ctx);
void lieni_leaks_say(lien_ctx *ctx);

// core/ctx.c. As lien_ctx_open() on another platform: the tests' and the simulator's door.
int lieni_ctx_open_platform(const lien_ctx_opts *opts, const struct lieni_platform *platform,
                            lien_ctx **ctx);

// core/progress.c
int lieni_progress_open(lien_ctx *ctx);   // descriptors, and the thread unless app-driven
void lieni_progress_stop(lien_ctx *ctx);  // ends the thread
void lieni_progress_close(lien_ctx *ctx); // descriptors
// One pass in progress context. Returns how much there was to do.
unsigned lieni_progress_pass(lien_ctx *ctx);
int lieni_progress_arm(lien_ctx *ctx);
// Frees connections and listeners nobody refers to any more, and says how many. First in a pass, under the lock: no polled event can name them.
unsigned lieni_progress_bury(lien_ctx *ctx);
// Sets the descriptor's timer; under the lock.
void lieni_progress_set_timer(lien_ctx *ctx, uint64_t when);
// Whether the calling thread is the ctx's progress thread.
bool lieni_progress_thread(const lien_ctx *ctx);
// Whether the calling thread is inside a pass of this ctx.
bool lieni_progress_here(const lien_ctx *ctx);

#define LIENI_MS UINT64_C(1000000) // nanoseconds

#endif
