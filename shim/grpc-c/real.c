// SPDX-License-Identifier: Apache-2.0
//
// See real.h.

#include "real.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct real_table real;

static void find(const char *name, void *slot)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    if (!symbol)
        symbol = dlsym(RTLD_DEFAULT, name); // gpr_ functions, and a libgrpc loaded first
    if (!symbol) {
        fprintf(stderr, "lien-grpc: this gRPC has no %s; the shim is made for 1.51\n", name);
        _Exit(2);
    }
    memcpy(slot, &symbol, sizeof symbol);
}

static void fill(void)
{
#define REAL_FIND(name) find(#name, &real.name);
    REAL_FUNCTIONS(REAL_FIND)
#undef REAL_FIND
}

void real_ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
}
