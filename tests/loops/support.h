// SPDX-License-Identifier: Apache-2.0
//
// What the tests of this folder share: checks, clocks, what a process holds, and a peer: a threaded ctx with a listener that takes every connection, answers messages and grants one buffer.
// Of the library only <lien/lien.h> is used.

#ifndef LIENI_TEST_LOOPS_SUPPORT_H
#define LIENI_TEST_LOOPS_SUPPORT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <lien/lien.h>

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

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

uint64_t now_ms(void);
void sleep_ms(unsigned ms);
// Polls `done` every ms; fails the test after `ms`.
void wait_until(bool (*done)(void *arg), void *arg, unsigned ms, const char *what);

// -- What a process holds ----------------------------------------------------------------------------------------------------------

struct footprint {
    uint64_t cpu_us;   // user and system, since its start
    uint64_t switches; // voluntary context switches, since its start
    uint64_t rss_kib;
    unsigned fds, threads, maps;
};
struct footprint footprint_now(void);
struct footprint footprint_cpu(void); // cpu_us and switches alone, without the cost of the rest

// -- The peer ----------------------------------------------------------------------------------------------------------------------

// First byte of a message to the peer; of its answer too.
enum {
    ASK_ECHO = 'E',  // answered with the same head
    ASK_GRANT = 'G', // answered with 'G' and a token of its buffer, granted for this
    ASK_DROP = 'D'   // not answered
};

#define PEER_BYTES 65536u // of the buffer, byte i being (uint8_t)(i * 7)

struct peer {
    lien_ctx *ctx;
    lien_pool *pool;
    lien_buf *buf;
    lien_listener *listener;
    char address[96];
    atomic_uint taken, closed; // connections
    atomic_uint asked;         // messages
    atomic_uint granted, released;
};

// `settings` as in lien_ctx_opts; `conn_flags` LIEN_INLINE or 0.
void peer_open(struct peer *peer, const char *const *settings, unsigned conn_flags);
// Waits for the end of its connections, which the other side closes.
void peer_close(struct peer *peer);

// A peer in a process of its own, to be forked before this process opens a ctx.
struct remote {
    pid_t pid;
    int fd;
    char address[96];
};
struct remote_report {
    struct footprint footprint;
    lien_ctx_stats stats;
};
void remote_start(struct remote *remote, const char *const *settings);
// Once all its connections but `open` are closed.
struct remote_report remote_report(struct remote *remote, unsigned open);
struct footprint remote_cpu(struct remote *remote); // as footprint_cpu()
void remote_stop(struct remote *remote);

// A threaded ctx, and a connection with messages for lien_msg_recv_wait().
lien_ctx *ctx_open(const char *const *settings);
lien_conn *conn_open(lien_ctx *ctx, const char *address);
// Sends `ask` and waits for the answer's head; returns its length.
size_t conn_ask(lien_conn *conn, const void *ask, size_t len, void *answer, size_t size);
// Asks for a grant.
void conn_ask_grant(lien_conn *conn, lien_token *token);

#endif
