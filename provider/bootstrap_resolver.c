// SPDX-License-Identifier: Apache-2.0
//
// Names to addresses, off the caller's thread. One lock guards everything; the queue is bounded by the streams that ask. A lookup is QUEUED (on `queue`), RUNNING (a thread has it) or DONE
// (on `done`). getaddrinfo cannot be stopped, so the resolver itself is counted: by its opener and by each thread; the last one frees it, and close never waits.

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "provider/bootstrap.h"

// Name lookups at once; more wait their turn. Source: a dead name server holds one for some 10 s.
#define THREADS_MAX 4u

enum lookup_state {
    QUEUED,  // awaits a thread; the asker or that thread ends it
    RUNNING, // in getaddrinfo, which has its own time limits
    DONE     // awaits take or forget
};

struct lieni_lookup {
    enum lookup_state state;
    bool forgotten; // RUNNING: nobody wants it
    struct lieni_address address;
    void *user;
    struct addrinfo *list;
    const char *error;
    TAILQ_ENTRY(lieni_lookup) link;
};

TAILQ_HEAD(lookups, lieni_lookup);

struct lieni_resolver {
    pthread_mutex_t lock;
    pthread_cond_t work;
    unsigned refs;    // opener and threads
    unsigned threads; // running
    unsigned idle;    // of them waiting for work
    bool closed;
    int wakefd;
    struct lookups queue;
    struct lookups done;
};

int lieni_resolver_open(int wakefd, struct lieni_resolver **out)
{
    struct lieni_resolver *resolver = calloc(1, sizeof *resolver);
    if (!resolver)
        return LIEN_ENOMEM;
    pthread_mutex_init(&resolver->lock, NULL);
    pthread_cond_init(&resolver->work, NULL);
    resolver->refs = 1;
    resolver->wakefd = wakefd;
    TAILQ_INIT(&resolver->queue);
    TAILQ_INIT(&resolver->done);
    *out = resolver;
    return 0;
}

// Gives up one reference and the lock.
static void release(struct lieni_resolver *resolver)
{
    bool last = --resolver->refs == 0;
    pthread_mutex_unlock(&resolver->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&resolver->lock);
    pthread_cond_destroy(&resolver->work);
    free(resolver);
}

static void free_lookup(struct lieni_lookup *lookup)
{
    if (lookup->list)
        freeaddrinfo(lookup->list);
    free(lookup);
}

void lieni_resolver_close(struct lieni_resolver *resolver)
{
    pthread_mutex_lock(&resolver->lock);
    resolver->closed = true;
    pthread_cond_broadcast(&resolver->work);
    release(resolver);
}

static void finish(struct lieni_resolver *resolver, struct lieni_lookup *lookup)
{
    if (lookup->forgotten) {
        free_lookup(lookup);
        return;
    }
    lookup->state = DONE;
    TAILQ_INSERT_TAIL(&resolver->done, lookup, link);
    uint64_t one = 1;
    if (!resolver->closed && write(resolver->wakefd, &one, sizeof one) < 0)
        return; // full: readable already
}

static void *run(void *arg)
{
    struct lieni_resolver *resolver = arg;
    pthread_mutex_lock(&resolver->lock);
    while (!resolver->closed) {
        struct lieni_lookup *lookup = TAILQ_FIRST(&resolver->queue);
        if (!lookup) {
            resolver->idle++;
            pthread_cond_wait(&resolver->work, &resolver->lock);
            resolver->idle--;
            continue;
        }
        TAILQ_REMOVE(&resolver->queue, lookup, link);
        lookup->state = RUNNING;
        pthread_mutex_unlock(&resolver->lock);

        struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
        struct addrinfo *list = NULL;
        int rc = getaddrinfo(lookup->address.host, lookup->address.port, &hints, &list);

        pthread_mutex_lock(&resolver->lock);
        lookup->list = rc == 0 ? list : NULL;
        lookup->error = rc == 0 ? NULL : gai_strerror(rc);
        finish(resolver, lookup);
    }
    release(resolver);
    return NULL;
}

// Caller holds the lock. False: no thread could be started and none runs.
static bool enough_threads(struct lieni_resolver *resolver)
{
    if (resolver->idle > 0 || resolver->threads == THREADS_MAX)
        return true;
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all;
    sigset_t before;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // the host's signals are its own
    int rc = pthread_create(&thread, &attr, run, resolver);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc == 0) {
        resolver->threads++;
        resolver->refs++;
    }
    return resolver->threads > 0;
}

int lieni_resolver_ask(struct lieni_resolver *resolver, const struct lieni_address *address,
                       void *user, struct lieni_lookup **out)
{
    struct lieni_lookup *lookup = calloc(1, sizeof *lookup);
    if (!lookup)
        return LIEN_ENOMEM;
    lookup->state = QUEUED;
    lookup->address = *address;
    lookup->user = user;
    pthread_mutex_lock(&resolver->lock);
    bool ok = enough_threads(resolver);
    if (ok) {
        TAILQ_INSERT_TAIL(&resolver->queue, lookup, link);
        pthread_cond_signal(&resolver->work);
        *out = lookup;
    }
    pthread_mutex_unlock(&resolver->lock);
    if (ok)
        return 0;
    free(lookup);
    return LIEN_ESYS;
}

void lieni_resolver_forget(struct lieni_resolver *resolver, struct lieni_lookup *lookup)
{
    pthread_mutex_lock(&resolver->lock);
    switch (lookup->state) {
    case QUEUED:
        TAILQ_REMOVE(&resolver->queue, lookup, link);
        free_lookup(lookup);
        break;
    case RUNNING:
        lookup->forgotten = true;
        break;
    case DONE:
        TAILQ_REMOVE(&resolver->done, lookup, link);
        free_lookup(lookup);
        break;
    }
    pthread_mutex_unlock(&resolver->lock);
}

bool lieni_resolver_take(struct lieni_resolver *resolver, struct lieni_resolved *resolved)
{
    pthread_mutex_lock(&resolver->lock);
    struct lieni_lookup *lookup = TAILQ_FIRST(&resolver->done);
    if (lookup)
        TAILQ_REMOVE(&resolver->done, lookup, link);
    pthread_mutex_unlock(&resolver->lock);
    if (!lookup)
        return false;
    *resolved = (struct lieni_resolved){
        .user = lookup->user, .list = lookup->list, .error = lookup->error};
    free(lookup);
    return true;
}
