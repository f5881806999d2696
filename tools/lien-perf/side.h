// SPDX-License-Identifier: Apache-2.0
//
// A side: one way to move the same bytes between two processes, Lien's or raw libfabric's. Each has a server, which runs in a process of its own, and a client, which is what gets
// measured. A client is used by one thread. Functions return 0, or nonzero after they said on stderr what went wrong.

#ifndef PERF_SIDE_H
#define PERF_SIDE_H

#include <stddef.h>
#include <stdint.h>

// READs in flight at most, and bytes of the largest; the server's source holds that many of them.
#define PERF_DEPTH_MAX 16u
#define PERF_READ_MAX  ((size_t)1 << 20)
#define PERF_SOURCE    (PERF_READ_MAX * PERF_DEPTH_MAX)
// Bytes of the largest message.
#define PERF_MESSAGE_MAX ((size_t)1024)
// Without progress for so long a side gives up.
#define PERF_STUCK_MS 30000

struct side {
    const char *name;
    const char *text;
    unsigned variant;
    // Serves one client. Writes "host:port\n" to `out`, ends when `in` does.
    int (*serve)(const struct side *side, int in, int out);
    int (*open)(const struct side *side, const char *address, void **client);
    // `n` round trips of `bytes`, one after the other.
    int (*messages)(void *client, size_t bytes, uint64_t n);
    // `n` READs of `bytes`, `depth` at a time, each into a target that was used before.
    int (*reads)(void *client, size_t bytes, unsigned depth, uint64_t n);
    // The i-th target of the last reads().
    const uint8_t *(*target)(void *client, unsigned i);
    // While other sides run: what must not wait. NULL: nothing.
    void (*idle)(void *client);
    void (*close)(void *client);
};

extern const struct side *const sides[]; // ended by NULL; the first is what ratios refer to

extern const struct side side_raw, side_raw_plain, side_lien, side_lien_inline, side_lien_driven;

// What the source holds: the word at byte `at`, a multiple of 8.
uint64_t perf_pattern(size_t at);
void perf_fill(uint8_t *source);
// Writes the server's address. 0 or nonzero.
int perf_say_address(int out, const char *address);
const char *perf_provider(void);

#endif
