// SPDX-License-Identifier: Apache-2.0
//
// Provider, domains, regions and poll. Endpoints that have something to do are on prov->work: reported by epoll (edge-triggered, so nothing is lost by leaving the list while a socket
// gives LIEN_EAGAIN), posted to, or not done when their turn ended. An idle endpoint costs nothing.
//
// Regions have random keys of 64 bits, and a peer names bytes by key and offset: addresses of this process do not travel. A domain serves one connection, so a key that one peer learns
// says nothing to another.

#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/stream/stream.h"

#define EPOLL_BATCH 64

int lieni_stream_say(struct lieni_prov *prov, lien_level level, int code, const char *format, ...)
{
    char text[512];
    int len = snprintf(text, sizeof text, "%s: ", prov->kind->traits->name);
    va_list args;
    va_start(args, format);
    vsnprintf(text + len, sizeof text - (size_t)len, format, args);
    va_end(args);
    prov->report.say(prov->report.self, level, code, text);
    return code;
}

// -- Provider ------------------------------------------------------------------------------------------------------------------------

static void wake(struct lieni_prov *prov)
{
    uint64_t one = 1;
    ssize_t rc = write(prov->wakefd, &one, sizeof one);
    (void)rc; // full means readable already
}

static void free_prov(struct lieni_prov *prov)
{
    lieni_tls_close(prov->tls);
    if (prov->epfd >= 0)
        close(prov->epfd);
    if (prov->wakefd >= 0)
        close(prov->wakefd);
    pthread_mutex_destroy(&prov->lock);
    free(prov);
}

int lieni_stream_watch(struct lieni_prov *prov, int fd, struct lieni_stream_watch *watch)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.ptr = watch};
    if (epoll_ctl(prov->epfd, EPOLL_CTL_ADD, fd, &event) == 0)
        return 0;
    return lieni_stream_say(prov, LIEN_LOG_ERROR, LIEN_ESYS, "watching a socket: %s",
                            strerror(errno));
}

static int make_descriptors(struct lieni_prov *prov)
{
    prov->epfd = epoll_create1(EPOLL_CLOEXEC);
    prov->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    prov->wake.kind = LIENI_WATCH_WAKE;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &prov->wake};
    if (prov->epfd >= 0 && prov->wakefd >= 0 &&
        epoll_ctl(prov->epfd, EPOLL_CTL_ADD, prov->wakefd, &event) == 0)
        return 0;
    char hint[LIENI_LIMITS_NOTE];
    int error = errno;
    return lieni_stream_say(prov, LIEN_LOG_ERROR, LIEN_ESYS, "making its descriptors: %s%s",
                            strerror(error), lieni_limits_note(error, hint, sizeof hint));
}

int lieni_stream_open(const struct lieni_stream_kind_of *kind, const struct lieni_prov_args *args,
                      struct lieni_prov **out)
{
    struct lieni_prov *prov = calloc(1, sizeof *prov);
    if (!prov)
        return LIEN_ENOMEM;
    prov->kind = kind;
    prov->env = args->env;
    prov->report = args->report;
    prov->epfd = prov->wakefd = -1;
    TAILQ_INIT(&prov->domains);
    TAILQ_INIT(&prov->work);
    pthread_mutex_init(&prov->lock, NULL);
    int code = make_descriptors(prov);
    if (code == 0 && kind->tls)
        code = lieni_tls_open(prov, args, &prov->tls);
    if (code != 0) {
        free_prov(prov);
        return code;
    }
    *out = prov;
    return 0;
}

void lieni_stream_close(struct lieni_prov *prov)
{
    size_t regions = 0;
    struct lieni_domain *domain, *next;
    for (domain = TAILQ_FIRST(&prov->domains); domain; domain = next) {
        next = TAILQ_NEXT(domain, link);
        struct lieni_ep *ep;
        enum lieni_proof proof;
        uint64_t late;
        while ((ep = TAILQ_FIRST(&domain->eps))) {
            lieni_stream_shutdown(ep);
            lieni_stream_destroy(ep, &proof, &late);
        }
        if (lieni_stream_domain_close(domain, &proof) != 0)
            regions += domain->n_mrs;
    }
    if (!TAILQ_EMPTY(&prov->domains)) { // who has the regions may close them yet
        lieni_stream_say(prov, LIEN_LOG_WARN, LIEN_EBUSY, "left behind at close: %zu regions",
                         regions);
        return;
    }
    free_prov(prov);
}

int lieni_stream_fd(struct lieni_prov *prov)
{
    return prov->epfd;
}

// -- Serving -------------------------------------------------------------------------------------------------------------------------

static void work_add(struct lieni_ep *ep)
{
    if (ep->working)
        return;
    ep->working = true;
    TAILQ_INSERT_TAIL(&ep->prov->work, ep, work_link);
}

void lieni_stream_touch(struct lieni_ep *ep)
{
    struct lieni_prov *prov = ep->prov;
    pthread_mutex_lock(&prov->lock);
    work_add(ep);
    bool asleep = prov->armed;
    prov->armed = false;
    pthread_mutex_unlock(&prov->lock);
    if (asleep)
        wake(prov);
}

void lieni_stream_untouch(struct lieni_ep *ep)
{
    struct lieni_prov *prov = ep->prov;
    pthread_mutex_lock(&prov->lock);
    if (ep->working)
        TAILQ_REMOVE(&prov->work, ep, work_link);
    ep->working = false;
    pthread_mutex_unlock(&prov->lock);
}

static struct lieni_ep *work_take(struct lieni_prov *prov)
{
    pthread_mutex_lock(&prov->lock);
    struct lieni_ep *ep = TAILQ_FIRST(&prov->work);
    if (ep) {
        TAILQ_REMOVE(&prov->work, ep, work_link);
        ep->working = false;
    }
    pthread_mutex_unlock(&prov->lock);
    return ep;
}

static void collect(struct lieni_prov *prov)
{
    struct epoll_event ready[EPOLL_BATCH];
    int n = epoll_wait(prov->epfd, ready, EPOLL_BATCH, 0);
    for (int i = 0; i < n; i++) {
        struct lieni_stream_watch *watch = ready[i].data.ptr;
        switch (watch->kind) {
        case LIENI_WATCH_WAKE: {
            uint64_t count;
            ssize_t rc = read(prov->wakefd, &count, sizeof count);
            (void)rc; // only empties it
            break;
        }
        case LIENI_WATCH_LISTEN: {
            struct lieni_ep *ep = (struct lieni_ep *)(void *)((char *)watch -
                                                              offsetof(struct lieni_ep, watch));
            ep->can_accept = true;
            lieni_stream_touch(ep);
            break;
        }
        case LIENI_WATCH_LANE: {
            struct lieni_lane *lane =
                (struct lieni_lane *)(void *)((char *)watch - offsetof(struct lieni_lane, watch));
            // TLS may have to write in order to read, and the other way round.
            lane->pipe.can_read = lane->pipe.can_write = true;
            lieni_stream_touch(lane->ep);
            break;
        }
        }
    }
}

static struct lieni_event went_down(struct lieni_ep *ep, int status)
{
    pthread_mutex_lock(&ep->lock);
    lieni_stream_enter(ep, LIENI_STREAM_DOWN);
    pthread_mutex_unlock(&ep->lock);
    lieni_stream_out_drop(ep);
    return (struct lieni_event){.kind = LIENI_EV_DOWN,
                                .user = ep->user,
                                .status = status,
                                .provider_error = ep->lane->pipe.error};
}

// Steps of one direction until its turn ends. *more: it has not come to a stop.
static unsigned direction(struct lieni_ep *ep,
                          enum lieni_step (*step)(struct lieni_ep *, struct lieni_cqe *, size_t *,
                                                  int *),
                          struct lieni_event *events, unsigned max, bool *more)
{
    unsigned n = 0;
    size_t bytes = 0;
    int status = 0;
    while (n < max && bytes < LIENI_STREAM_TURN) {
        struct lieni_cqe cqe;
        switch (step(ep, &cqe, &bytes, &status)) {
        case LIENI_STEP_MORE:
            break;
        case LIENI_STEP_STOP:
            *more = false;
            return n;
        case LIENI_STEP_ENTRY:
            events[n++] = (struct lieni_event){
                .kind = LIENI_EV_ENTRY, .user = ep->user, .cqe = cqe};
            break;
        case LIENI_STEP_DOWN:
            events[n++] = went_down(ep, status);
            *more = true; // its posts are to be flushed
            return n;
        }
    }
    *more = true;
    return n;
}

// True: it has more to do.
static bool serve(struct lieni_ep *ep, struct lieni_event *events, unsigned max, unsigned *n)
{
    pthread_mutex_lock(&ep->lock);
    enum lieni_stream_state state = ep->state;
    pthread_mutex_unlock(&ep->lock);
    switch (state) {
    case LIENI_STREAM_HALF:
        if (!lieni_stream_opening(ep, events))
            return false;
        *n = 1;
        return true;
    case LIENI_STREAM_UP: {
        bool in = false, out = false;
        *n = direction(ep, lieni_stream_in, events, max, &in);
        pthread_mutex_lock(&ep->lock);
        bool up = ep->state == LIENI_STREAM_UP;
        pthread_mutex_unlock(&ep->lock);
        if (up && *n < max)
            *n += direction(ep, lieni_stream_out, events + *n, max - *n, &out);
        else
            out = true;
        return in || out;
    }
    case LIENI_STREAM_DOWN:
    case LIENI_STREAM_CLOSING: {
        struct lieni_cqe cqe;
        while (*n < max && lieni_stream_flush_one(ep, &cqe))
            events[(*n)++] = (struct lieni_event){
                .kind = LIENI_EV_ENTRY, .user = ep->user, .cqe = cqe};
        return *n == max;
    }
    case LIENI_STREAM_FAILED:
        break;
    }
    return false;
}

unsigned lieni_stream_poll(struct lieni_prov *prov, struct lieni_event *events, unsigned max)
{
    unsigned n = 0, round = 0;
    collect(prov);
    pthread_mutex_lock(&prov->lock);
    prov->armed = false;
    struct lieni_ep *ep;
    TAILQ_FOREACH(ep, &prov->work, work_link)
    round++;
    pthread_mutex_unlock(&prov->lock);
    while (round-- > 0 && n < max && (ep = work_take(prov))) {
        unsigned got = 0;
        if (serve(ep, events + n, max - n, &got))
            lieni_stream_touch(ep);
        n += got;
    }
    return n;
}

int lieni_stream_arm(struct lieni_prov *prov)
{
    pthread_mutex_lock(&prov->lock);
    bool sleep = TAILQ_EMPTY(&prov->work);
    prov->armed = sleep;
    pthread_mutex_unlock(&prov->lock);
    return sleep ? 0 : LIEN_EAGAIN;
}

// -- Domains -------------------------------------------------------------------------------------------------------------------------

// Whether `host` is a numeric address of this machine.
static bool is_local(const char *host)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_DGRAM};
    struct addrinfo *list = NULL;
    if (getaddrinfo(host, NULL, &hints, &list) != 0)
        return false;
    int fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool local = fd >= 0 && bind(fd, list->ai_addr, list->ai_addrlen) == 0;
    if (fd >= 0)
        close(fd);
    freeaddrinfo(list);
    return local;
}

static struct lieni_stream_mrs *new_buckets(size_t n)
{
    struct lieni_stream_mrs *buckets = calloc(n, sizeof *buckets);
    for (size_t i = 0; buckets && i < n; i++)
        TAILQ_INIT(&buckets[i]);
    return buckets;
}

int lieni_stream_domain_open(struct lieni_prov *prov, const char *host, struct lieni_domain **out)
{
    if (host && !is_local(host))
        return lieni_stream_say(prov, LIEN_LOG_ERROR, LIEN_ENODEV,
                                "'%s' is no numeric address of this machine", host);
    struct lieni_domain *domain = calloc(1, sizeof *domain);
    if (!domain)
        return LIEN_ENOMEM;
    domain->prov = prov;
    domain->n_buckets = LIENI_STREAM_BUCKETS;
    domain->buckets = new_buckets(domain->n_buckets);
    if (!domain->buckets) {
        free(domain);
        return LIEN_ENOMEM;
    }
    TAILQ_INIT(&domain->eps);
    pthread_mutex_init(&domain->lock, NULL);
    TAILQ_INSERT_TAIL(&prov->domains, domain, link);
    *out = domain;
    return 0;
}

int lieni_stream_domain_close(struct lieni_domain *domain, enum lieni_proof *proof)
{
    struct lieni_prov *prov = domain->prov;
    pthread_mutex_lock(&domain->lock);
    pthread_mutex_lock(&prov->lock);
    bool busy = domain->n_mrs > 0 || domain->n_eps > 0;
    pthread_mutex_unlock(&prov->lock);
    pthread_mutex_unlock(&domain->lock);
    if (busy)
        return LIEN_EBUSY;
    TAILQ_REMOVE(&prov->domains, domain, link);
    pthread_mutex_destroy(&domain->lock);
    free(domain->buckets);
    free(domain);
    *proof = LIENI_PROVEN;
    return 0;
}

void lieni_stream_domain_limits(struct lieni_domain *domain, struct lieni_limits *limits)
{
    const struct lieni_traits *traits = domain->prov->kind->traits;
    *limits = (struct lieni_limits){.read_piece_max = traits->read_piece_max,
                                    .reads_max = traits->reads_max,
                                    .posts_max = traits->posts_max};
}

uint32_t lieni_stream_read_depth(struct lieni_prov *prov, const char *host)
{
    (void)prov;
    (void)host;
    return 0;
}

// -- Regions -------------------------------------------------------------------------------------------------------------------------

static struct lieni_stream_mrs *bucket_of(struct lieni_domain *domain, uint64_t key)
{
    return &domain->buckets[key & (domain->n_buckets - 1)];
}

static struct lieni_mr *find_key(struct lieni_domain *domain, uint64_t key)
{
    struct lieni_mr *mr;
    TAILQ_FOREACH(mr, bucket_of(domain, key), link)
    {
        if (mr->key == key)
            return mr;
    }
    return NULL;
}

struct lieni_mr *lieni_stream_find(struct lieni_domain *domain, uint64_t key, uint64_t addr,
                                   uint64_t len)
{
    struct lieni_mr *mr = find_key(domain, key);
    return mr && addr <= mr->len && len <= mr->len - addr ? mr : NULL;
}

// Twice as many buckets, if there is memory for them: without it lookups only get slower.
static void grow(struct lieni_domain *domain)
{
    size_t n = domain->n_buckets, wider = n * 2;
    struct lieni_stream_mrs *old = domain->buckets, *buckets = new_buckets(wider);
    if (!buckets)
        return;
    domain->buckets = buckets;
    domain->n_buckets = wider;
    for (size_t i = 0; i < n; i++) {
        struct lieni_mr *mr;
        while ((mr = TAILQ_FIRST(&old[i]))) {
            TAILQ_REMOVE(&old[i], mr, link);
            TAILQ_INSERT_HEAD(bucket_of(domain, mr->key), mr, link);
        }
    }
    free(old);
}

int lieni_stream_mr_reg(struct lieni_domain *domain, void *addr, size_t len, unsigned access,
                        struct lieni_mr **out, struct lieni_mr_info *info)
{
    struct lieni_mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return LIEN_ENOMEM;
    mr->domain = domain;
    mr->addr = addr;
    mr->len = len;
    TAILQ_INIT(&mr->users);
    pthread_mutex_lock(&domain->lock);
    if (access & LIENI_ACCESS_REMOTE) {
        do
            domain->prov->env->random(domain->prov->env->self, &mr->key, sizeof mr->key);
        while (mr->key == 0 || find_key(domain, mr->key));
        if (domain->n_keys >= 2 * domain->n_buckets)
            grow(domain);
        TAILQ_INSERT_HEAD(bucket_of(domain, mr->key), mr, link);
        domain->n_keys++;
    }
    domain->n_mrs++;
    pthread_mutex_unlock(&domain->lock);
    *info = (struct lieni_mr_info){.key = mr->key, .base = 0};
    *out = mr;
    return 0;
}

// The chunk of an answer that is half written: its rest is copied, since its frame has said its length. The answer ends there, by an error.
static void spill(struct lieni_ep *ep)
{
    struct lieni_stream_out *out = &ep->out;
    out->spill = malloc(out->body_left);
    if (out->spill) {
        memcpy(out->spill, out->body, out->body_left);
    } else {
        out->lost = true; // the connection ends
        out->body_left = 0;
    }
    out->body = out->spill;
    out->mr = NULL;
}

int lieni_stream_mr_close(struct lieni_mr *mr)
{
    struct lieni_domain *domain = mr->domain;
    struct lieni_ep *ep;
    pthread_mutex_lock(&domain->lock); // waits for a write of its bytes, which does not block
    if (mr->key != 0) {
        TAILQ_REMOVE(bucket_of(domain, mr->key), mr, link);
        domain->n_keys--;
    }
    while ((ep = TAILQ_FIRST(&mr->users))) {
        TAILQ_REMOVE(&mr->users, ep, user_link);
        spill(ep);
    }
    domain->n_mrs--;
    pthread_mutex_unlock(&domain->lock);
    free(mr);
    return 0;
}
