// SPDX-License-Identifier: Apache-2.0
//
// The chaos test: a master (chaos.c) and 2 to 8 workers (worker.c, ops.c, serve.c), each a process of its own, all connected with all over libfabric tcp on loopback. The workers call, send, grant and
// read at random, with patterns in every buffer; the master kills, stops and starves them meanwhile.
//
// They share one memory map, struct chaos_world: what is in it is atomic, or written before the worker starts. Counters in it outlive a worker that is killed.
//
// The judgement: a buffer's bytes are a function of (id, generation, offset). Whoever may believe bytes compares all of them. As soon as the library gives memory back, its owner fills it with a
// pattern that nobody else knows, parks it for a while, and compares it again: whatever landed there meanwhile is a corruption.
//
// From time to time, and at the end, there is peace: everybody ends what it has, and compares its levels with those of its start. One worker is never killed and never exits, so its life is as long as the run; what
// leaks slowly shows there. Each status is judged (judge.c).

#ifndef CHAOS_H
#define CHAOS_H

#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <lien/lien.h>

#define CHAOS_WORKERS_MAX 8u
#define CHAOS_EXIT_DIED   42 // of a worker that was told to exit in a handler
#define CHAOS_LASTING     0u // the worker that is never killed and never exits: its life is the run

// -- What the processes share ----------------------------------------------------------------------------------------------------

// X(name, text): what is done, counted where it succeeded as it should.
#define CHAOS_OPS(X)                                                                               \
    X(CALLS, "calls that succeeded")                                                               \
    X(CALLS_ENDED, "calls that ended otherwise")                                                   \
    X(SERVED, "requests answered")                                                                 \
    X(MESSAGES, "messages taken over")                                                             \
    X(MESSAGES_LOST, "messages that were not")                                                     \
    X(READS, "reads by token that succeeded")                                                      \
    X(READS_ENDED, "reads by token that ended otherwise")                                          \
    X(GRANTS, "held grants released")                                                              \
    X(STALE, "reads of requests that were called stale")                                           \
    X(CONNECTIONS, "connections opened")                                                           \
    X(CONNECTS_FAILED, "connections that never opened")                                            \
    X(LOST, "connections lost")                                                                    \
    X(QUARANTINED, "pieces of memory quarantined")                                                 \
    X(NO_ROOM, "times a pool had no room")
#define CHAOS_FAULTS(X)                                                                            \
    X(KILL, "kill -9")                                                                             \
    X(STOP, "SIGSTOP, and SIGCONT later")                                                          \
    X(DIE, "exit in a handler")                                                                    \
    X(NOFILE, "no descriptors left")                                                               \
    X(POOL, "pool exhausted")                                                                      \
    X(HALF, "half-open connections")                                                               \
    X(CONN_STORM, "connection storms")                                                             \
    X(CANCEL_STORM, "cancel storms")                                                               \
    X(DEADLINE_STORM, "deadline storms")

enum chaos_op {
#define X(name, text) CHAOS_##name,
    CHAOS_OPS(X) CHAOS_N_OPS
#undef X
};
enum chaos_fault {
#define X(name, text) CHAOS_FAULT_##name,
    CHAOS_FAULTS(X) CHAOS_N_FAULTS
#undef X
};

// What has a status: judge.c says which it may have.
enum chaos_judged {
    CHAOS_OPEN,
    CHAOS_OPEN_WAIT,
    CHAOS_ON_OPEN,
    CHAOS_ON_LOST,
    CHAOS_ON_CLOSED,
    CHAOS_CLOSE,
    CHAOS_ALLOC,
    CHAOS_CALL,
    CHAOS_CALL_DONE,
    CHAOS_CALL_RELEASED,
    CHAOS_CALL_WAIT,
    CHAOS_SEND,
    CHAOS_SEND_DONE,
    CHAOS_SEND_RELEASED,
    CHAOS_GRANT_OPEN,
    CHAOS_GRANT_WAIT,
    CHAOS_GRANT_RELEASED,
    CHAOS_READ_START,
    CHAOS_READ_DONE,
    CHAOS_READ_RELEASED,
    CHAOS_RELEASE,
    CHAOS_REQUEST_READ,
    CHAOS_REQUEST_VERIFY,
    CHAOS_REQUEST_WRITE,
    CHAOS_WRITE_DONE,
    CHAOS_WRITE_RELEASED,
    CHAOS_REPLY,
    CHAOS_N_JUDGED
};
// Its name in a report.
const char *chaos_judged_name(unsigned what);
#define CHAOS_STATUSES 64 // more than the library has; the last is for what is none

// After RUN and a peace comes another RUN, or the END.
enum chaos_phase {
    CHAOS_RUN,
    CHAOS_DRAIN, // no new operations; connections of one's own are closed, parked memory is compared
    CHAOS_SETTLE, // all have drained: levels are compared
    CHAOS_END
};

struct chaos_levels {
    unsigned fds, threads, maps;
    unsigned forgotten; // sockets that libfabric lost, which are not in `fds`
    uint64_t heap;      // bytes that malloc gave out
    uint64_t conns, grants, grants_bytes, pool_bytes, quarantined;
};

// One worker's. Counters are added up over its lives.
struct chaos_slot {
    _Atomic unsigned port; // of its listener; 0: not up
    _Atomic unsigned
        faults; // bits of enum chaos_fault, asked for by the master, cleared by the worker
    _Atomic unsigned lives;
    _Atomic uint64_t born;  // of this life, in ms
    _Atomic uint64_t steps; // grows as long as it lives
    _Atomic uint64_t ops[CHAOS_N_OPS];
    _Atomic uint64_t faulted[CHAOS_N_FAULTS];
    _Atomic uint64_t bytes;        // compared
    _Atomic uint64_t parked_bytes; // of them, in memory that was back
    _Atomic unsigned corruptions;
    _Atomic unsigned wrong; // answers of the library that its header excludes
    _Atomic uint64_t statuses[CHAOS_N_JUDGED][CHAOS_STATUSES];
    _Atomic unsigned leaks;
    _Atomic int drained, settled; // as of this life
    struct chaos_levels start, first,
        end; // of this life: at its start, its first and its last peace; good once `settled`
    _Atomic uint64_t bare,
        closed; // heap of this life before the library was opened, and after it was closed
};

struct chaos_world {
    uint64_t seed;
    unsigned n;
    unsigned fabric_base;
    _Atomic int phase;
    _Atomic unsigned rounds; // points of peace that are over
    struct chaos_slot slot[CHAOS_WORKERS_MAX];
};

// Ports of fabric listeners of a worker.
#define CHAOS_FABRIC_PORTS 8u

// Main of a worker: the number of its slot, and the world. Never returns.
_Noreturn void chaos_worker(struct chaos_world *world, unsigned self);

// -- Patterns (pattern.c) --------------------------------------------------------------------------------------------------------

enum chaos_generation {
    CHAOS_READ = 1, // of a call's read space while the call lives
    CHAOS_NEXT,     // the same buffers right after
    CHAOS_BODY,     // of a message
    CHAOS_GRANT,    // held
    CHAOS_SPENT     // memory that is back
};
// What handlers do to what they read, before they write it.
#define CHAOS_TURN UINT64_C(0x5aa5c33c0ff00ff0)

// The byte at `at` (a multiple of 8 at the beginning of a piece) of what id and generation say, each word XORed with `turn`.
void chaos_fill(void *data, size_t len, uint64_t id, int generation, uint64_t at);
// The first byte that differs, or `len`.
size_t chaos_differs(const void *data, size_t len, uint64_t id, int generation, uint64_t at,
                     uint64_t turn);
void chaos_turn(void *data, size_t len);

uint64_t chaos_mix(uint64_t x);
// A random number of this thread.
uint64_t chaos_random(void);
unsigned chaos_below(unsigned n);
void chaos_seed(uint64_t seed);

uint64_t chaos_ms(void);
void chaos_sleep(unsigned ms);

#endif
