// SPDX-License-Identifier: Apache-2.0
//
// Settings (environment variables, read once, before main) and counters, with the report at exit. Settings are read-only afterwards; counters are atomic and may be bumped anywhere.

#ifndef LIEN_GRPC_CONF_H
#define LIEN_GRPC_CONF_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct conf {
    bool on, stats;
    bool
        trusted; // the fabric is: payload of channels with other than insecure credentials may use it
    uint64_t threshold, budget, pool;
    const char *address; // or NULL
};

extern struct conf conf;

// Whether the shim does anything: LIEN_GRPC=on, in the process that loaded it, before its exit. False makes every hook pass through.
bool conf_active(void);
// From here on false.
void conf_stop(void);

// X(name, "text"): in the order of the report.
#define STATS(X)                                                                                   \
    X(client_calls, "client calls")                                                                \
    X(client_linked, "client calls linked to a Lien connection")                                   \
    X(server_linked, "server calls linked to a Lien connection")                                   \
    X(sent_in_band, "messages sent in band")                                                       \
    X(sent_out_of_band, "messages sent out of band")                                               \
    X(sent_bytes, "bytes sent out of band")                                                        \
    X(escaped, "messages sent escaped")                                                            \
    X(received_out_of_band, "messages received out of band")                                       \
    X(received_bytes, "bytes received out of band")                                                \
    X(read_us, "microseconds spent in READs")                                                      \
    X(unopened, "messages released unopened")                                                      \
    X(read_failed, "messages that could not be read")                                              \
    X(copied_bytes, "bytes copied for sending")                                                    \
    X(large_unlinked, "large messages in band: call not linked")                                   \
    X(large_budget, "large messages in band: budget")                                              \
    X(large_limit, "large messages in band: above the peer's limit")                               \
    X(large_memory, "large messages in band: no memory")                                           \
    X(large_several, "large messages in band: several servers")                                    \
    X(large_refused, "large messages in band: grant refused")                                      \
    X(connects, "Lien connections opened")                                                         \
    X(accepts, "Lien connections accepted")                                                        \
    X(losses, "Lien connections lost")                                                             \
    X(revoked, "grants revoked after their call's end")                                            \
    X(over_sent, "calls whose end was told to the peer")

enum stat {
#define STAT_ENUM(name, text) STAT_##name,
    STATS(STAT_ENUM)
#undef STAT_ENUM
    STAT_COUNT
};

void stat_add(enum stat stat, uint64_t n);
// Writes the counters to stderr, one a line, and the levels that the caller knows.
void stats_report(uint64_t loans, uint64_t calls, uint64_t tags, uint64_t pool_bytes);

// A line on stderr, "lien-grpc: ...".
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
