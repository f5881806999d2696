// SPDX-License-Identifier: Apache-2.0
//
// Bench of the fault tests: this side of a connection in the test's process, the other side in a
// process of its own (the same program, started anew by fork and exec), so that it can be stopped,
// continued and killed by its pid. All over libfabric tcp on loopback.
//
// The other process listens and obeys the first bytes of each message; see fault_peer.c. Nothing
// here is used by two threads at once but the log.

#ifndef FAULT_H
#define FAULT_H

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <lien/lien.h>

#define MIB ((size_t)1 << 20)

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            fault_fail(__FILE__, __LINE__, #cond, 0, 0);                                           \
    } while (0)
// Both sides as numbers; says both when they differ.
#define CHECK_EQ(got, want)                                                                        \
    do {                                                                                           \
        long long got_ = (long long)(got), want_ = (long long)(want);                              \
        if (got_ != want_)                                                                         \
            fault_fail(__FILE__, __LINE__, #got " == " #want, got_, want_);                        \
    } while (0)

_Noreturn void fault_fail(const char *file, int line, const char *what, long long got,
                          long long want);

uint64_t fault_us(void); // monotonic
uint64_t fault_ms(void);
void fault_sleep(unsigned ms);
// Waits until `done` says so, at most `ms`. Whether it did.
bool fault_until(bool (*done)(void *arg), void *arg, unsigned ms);

// The main of every program: runs `test`, or the other side when started as that.
int fault_main(int argc, char **argv, void (*test)(int argc, char **argv));

// -- The other process -----------------------------------------------------------------------------------------------------------

struct fault_peer {
    pid_t pid;
    int in, out; // its standard input and output
    char address[96];
};

// Starts it with options "key=value" (ended by NULL, or NULL) and waits for its address.
void fault_peer_start(struct fault_peer *peer, const char *const *settings);
void fault_peer_signal(const struct fault_peer *peer, int sig);
// Asks it to end and checks that it ended well.
void fault_peer_end(struct fault_peer *peer);
// SIGKILL, and waits.
void fault_peer_kill(struct fault_peer *peer);

// What it answers to a question on its standard input, whatever became of connections.
struct fault_levels {
    unsigned long long grants, grants_bytes, pool_bytes, conns, quarantined, protocol_errors, reads;
};
void fault_peer_levels(const struct fault_peer *peer, struct fault_levels *levels);
// What the other process serves on its connections (lien/call.h). Set before fault_main, since the other process is this program, too. NULL, the default: nothing.
void fault_peer_serves(const lien_service *service);

// -- This side -------------------------------------------------------------------------------------------------------------------

struct fault_side {
    lien_ctx *ctx;
    lien_pool *pool;
};

// In the other process: its own.
struct fault_side *fault_peer_side(void);

void fault_side_open(struct fault_side *side, const char *const *settings, unsigned flags);
void fault_side_close(struct fault_side *side);
lien_conn *fault_connect(struct fault_side *side, const struct fault_peer *peer);
lien_conn *fault_connect_with(struct fault_side *side, const struct fault_peer *peer,
                              const lien_conn_opts *opts);
void fault_stats(const struct fault_side *side, lien_ctx_stats *stats);
void fault_info(lien_conn *conn, lien_conn_info *info);
// Whether a log line of this process contained `text`; forgets all lines.
bool fault_log_has(const char *text);
void fault_log_clear(void);
// For contexts that a test opens itself.
void fault_log_line(const lien_log_line *line, void *arg);

// -- Talking to it ---------------------------------------------------------------------------------------------------------------

// The peer grants us `size` bytes of fault_pattern; we get the token.
void fault_ask_grant(lien_conn *conn, uint64_t size, lien_token *token);
// The peer reads our grant and releases it; returns at once.
void fault_tell_read(lien_conn *conn, const lien_token *token);
// One small message there and back, in microseconds; or a negative LIEN_ code.
int64_t fault_echo(lien_conn *conn, unsigned timeout_ms);
// A space of one buffer.
lien_space *fault_space(struct fault_side *side, size_t len);
void fault_pattern(void *data, size_t len);
bool fault_pattern_is(const void *data, size_t len);
// Other patterns, one for each seed; that of seed 0 is the one above.
void fault_fill(void *data, size_t len, uint64_t seed);
bool fault_is(const void *data, size_t len, uint64_t seed);
bool fault_space_is_pattern(lien_space *space);
bool fault_space_is(lien_space *space, uint64_t seed);

// -- An observed read ------------------------------------------------------------------------------------------------------------

// Counts and times of its two events. Zero it first.
struct fault_read {
    _Atomic int done, released; // how often each ran
    _Atomic int status, released_status;
    _Atomic uint64_t done_us, released_us;
    _Atomic bool in_order; // done ran before released
    lien_read *read;
};
int fault_read_start(struct fault_read *r, lien_conn *conn, const lien_token *token,
                     lien_space *space, uint32_t timeout_ms, unsigned flags);
bool fault_read_is_done(void *read);
bool fault_read_is_released(void *read);

// -- A relay between fabric ports ------------------------------------------------------------------------------------------------

// Stands at 127.0.0.2:port and passes to 127.0.0.1:port, on threads of its own. All switches can be
// flipped at any time.
struct fault_relay {
    int listener;
    uint16_t port;
    _Atomic bool hold;      // accepted, but not passed on
    _Atomic unsigned held;  // connections that are
    _Atomic bool no_reads;  // READ requests towards 127.0.0.1 vanish; everything else passes
    _Atomic unsigned eaten; // how many
    _Atomic bool
        limited; // of what comes from 127.0.0.1 only `left` bytes still pass: then it stands
    _Atomic uint64_t left;
    _Atomic bool cut; // its connections end
    _Atomic bool stop;
    _Atomic int open;
    unsigned long thread;
};
void fault_relay_start(struct fault_relay *relay, uint16_t port);
void fault_relay_stop(struct fault_relay *relay);
// A port that nobody used a moment ago.
uint16_t fault_free_port(void);
// A plain TCP connection.
int fault_dial(const char *host, uint16_t port);
uint16_t fault_port_of(const char *address);

#endif
