// SPDX-License-Identifier: Apache-2.0
//
// See conf.h.

#include "conf.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct conf conf;
static atomic_bool active;
static atomic_uint_fast64_t counts[STAT_COUNT];

void say(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "lien-grpc: %s\n", line);
}

void stat_add(enum stat stat, uint64_t n)
{
    atomic_fetch_add_explicit(&counts[stat], n, memory_order_relaxed);
}

void stats_report(uint64_t loans, uint64_t calls, uint64_t tags, uint64_t pool_bytes)
{
    static const char *const texts[] = {
#define STAT_TEXT(name, text) text,
        STATS(STAT_TEXT)
#undef STAT_TEXT
    };
    for (int i = 0; i < STAT_COUNT; i++)
        say("%12" PRIuFAST64 " %s", counts[i], texts[i]);
    say("%12" PRIu64 " grants left", loans);
    say("%12" PRIu64 " calls left", calls);
    say("%12" PRIu64 " batches left", tags);
    say("%12" PRIu64 " pool bytes left", pool_bytes);
}

bool conf_active(void)
{
    return atomic_load_explicit(&active, memory_order_relaxed);
}

void conf_stop(void)
{
    atomic_store(&active, false);
}

// -- Reading the environment; only before main, so getenv() is safe --------------------------------------------------------------------

static void refuse(const char *name, const char *value, const char *why)
{
    say("%s=%s: %s", name, value, why);
    exit(2);
}

static uint64_t bytes(const char *name, uint64_t def, uint64_t least, uint64_t most)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return def;
    char *end, why[96];
    errno = 0;
    unsigned long long n = *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    unsigned shift = 0;
    bool good = *text >= '0' && *text <= '9' && errno == 0;
    if (good && *end) {
        const char *unit = strchr("kKmMgG", *end);
        good = unit && !end[1];
        shift = good ? 10 * (1 + (unsigned)(unit - "kKmMgG") / 2) : 0;
    }
    if (!good || n > UINT64_MAX >> shift || n << shift < least || n << shift > most) {
        snprintf(why, sizeof why, "not a number of bytes from %" PRIu64 " to %" PRIu64, least,
                 most);
        refuse(name, text, why);
    }
    return n << shift;
}

static bool flag(const char *name, const char *yes, const char *no, const char *why)
{
    const char *text = getenv(name);
    if (!text || !*text || strcmp(text, no) == 0)
        return false;
    if (strcmp(text, yes) != 0)
        refuse(name, text, why);
    return true;
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *mode = getenv("LIEN_GRPC");
    if (mode && strcmp(mode, "full") == 0)
        refuse("LIEN_GRPC", mode,
               "HTTP/2 over the fabric is not there yet; `on` carries large messages");
    conf.on = flag("LIEN_GRPC", "on", "off", "neither `on` nor `off`");
    conf.stats = flag("LIEN_GRPC_STATS", "1", "0", "neither 0 nor 1");
    conf.trusted = flag("LIEN_GRPC_TLS", "trusted", "in-band", "neither `in-band` nor `trusted`");
    conf.threshold = bytes("LIEN_GRPC_THRESHOLD", 65536, 1, (uint64_t)4 << 30);
    conf.budget = bytes("LIEN_GRPC_BUDGET", 64 << 20, 4096, (uint64_t)1 << 40);
    conf.pool = bytes("LIEN_GRPC_POOL", (uint64_t)4 << 30, 1 << 20, (uint64_t)1 << 40);
    const char *address = getenv("LIEN_GRPC_ADDRESS");
    conf.address = address && *address ? address : NULL;
    atomic_store(&active, conf.on);
    pthread_atfork(NULL, NULL, conf_stop);
}
