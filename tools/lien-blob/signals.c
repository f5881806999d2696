// SPDX-License-Identifier: Apache-2.0
//
// Signals by sigwait. The watching thread lives as long as the process.

#include "signals.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static sigset_t both(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    return set;
}

void signals_block(void)
{
    sigset_t set = both();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

int signals_wait(void)
{
    sigset_t set = both();
    int signal = 0;
    sigwait(&set, &signal);
    return signal;
}

static void (*call)(void); // set before the thread starts

static void *watch(void *arg)
{
    (void)arg;
    signals_wait();
    call();
    signals_wait();
    _exit(130);
}

bool signals_watch(void (*fn)(void))
{
    call = fn;
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch, NULL) != 0)
        return false;
    pthread_detach(thread);
    return true;
}
