// SPDX-License-Identifier: Apache-2.0
//
// The real platform: the kernel's clock and randomness, sockets, and the providers of this build in order of preference. Constant; any thread.

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#include "provider/bootstrap.h"
#include "provider/stream/providers.h"
#include "provider/tcp/tcp.h"
#include "provider/verbs/verbs.h"

static uint64_t now(void *self)
{
    (void)self;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

static void random_bytes(void *self, void *buf, size_t len)
{
    (void)self;
    unsigned char *at = buf;
    while (len > 0) {
        ssize_t n = getrandom(at, len, 0);
        if (n < 0 && errno != EINTR)
            abort(); // keys and session ids that can be guessed are worse than no process
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
}

static const struct lieni_provider *const providers[] = {
    &lieni_provider_tcp, &lieni_provider_verbs, &lieni_provider_stream, &lieni_provider_ws,
    &lieni_provider_wss, &lieni_provider_h2c,   &lieni_provider_h2,     NULL};

static const struct lieni_platform platform = {
    .env = {.self = NULL, .now = now, .random = random_bytes},
    .net = &lieni_net_sockets,
    .net_world = NULL,
    .providers = providers,
};

const struct lieni_platform *lieni_platform_real(void)
{
    return &platform;
}
