// SPDX-License-Identifier: Apache-2.0
//
// What the tests of this folder share: checks, an opened provider with a log, endpoints that record their events, and the pump that polls and sleeps as core does. One thread drives
// everything.

#ifndef LIENI_TEST_OFI_BENCH_H
#define LIENI_TEST_OFI_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "provider/provider.h"
#include "provider/tcp/tcp.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define IS(got, want)                                                                              \
    do {                                                                                           \
        long long got_ = (long long)(got);                                                         \
        long long want_ = (long long)(want);                                                       \
        if (got_ != want_) {                                                                       \
            fprintf(stderr, "%s:%d: %s: %s is %lld, not %s (%lld)\n", __FILE__, __LINE__,          \
                    __func__, #got, got_, #want, want_);                                           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CONTEXTS 256

// The log: says on stderr with BENCH_VERBOSE set, keeps the last line.
struct bench_log {
    unsigned lines;
    int code;
    char text[512];
};
extern struct bench_log bench_log;
struct lieni_report bench_report(void);

struct side {
    struct lieni_prov *prov;
    struct lieni_domain *domain;
    unsigned wakes; // returns from sleep
};

// An endpoint and all that was heard of it.
struct end {
    struct side *side;
    struct lieni_ep *ep;
    unsigned up, failed, down;
    int status; // of failed or down
    unsigned entries, good, null_context;
    unsigned seen[CONTEXTS]; // entries by context
    int entry_status[CONTEXTS];
    uint64_t len[CONTEXTS];
};

// What it all runs on: tcp on loopback, unless a test sets others before it opens a side. bench_nic: the address of the domain, NULL: none.
extern const struct lieni_provider *bench_provider;
extern const char *bench_host, *bench_nic;

const struct lieni_env *bench_env(void);
uint64_t bench_ms(void);
double bench_cpu(void); // seconds of this process
void bench_sleep(unsigned ms);

void side_open(struct side *side);
void side_close(struct side *side); // everything must be closable

// The arguments of an endpoint; data bytes are all `send` and all `expect`.
struct lieni_ep_args end_args(struct end *end, uint16_t port, uint8_t send, uint8_t expect);
void end_listen(struct side *side, struct end *end, const struct lieni_ep_args *args,
                uint16_t *port);
void end_connect(struct side *side, struct end *end, const struct lieni_ep_args *args);
// A connected pair over loopback, `recvs` posted on both by the caller's args.
void pair(struct side *a, struct end *server, struct side *b, struct end *client);
void end_close(struct end *end, uint64_t *late); // shutdown and destroy, which must prove

// Polls once, without sleep; events go to their ends.
unsigned pump_once(struct side *side);
// Polls and sleeps both sides (b may be NULL) until done(arg) or the time is over. True: done.
bool pump(struct side *a, struct side *b, bool (*done)(void *arg), void *arg, unsigned ms);

// What a process that serves READs tells its parent.
struct target {
    pid_t pid;
    int in; // commands to it
    uint16_t port;
    uint64_t key;
    uint64_t base;
};
#define TARGET_BYTES (64u << 20)
// Forks a process that lets one peer after another read TARGET_BYTES of pattern, in a region of its own. Call before any side is opened here.
void target_start(struct target *target);
// Waits for its next listener's port.
void target_next(struct target *target);
void target_kill(struct target *target);
// Byte `i` of the pattern.
uint8_t pattern(size_t i);

#endif
