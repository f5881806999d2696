// SPDX-License-Identifier: Apache-2.0
//
// Provider, domains, regions and poll. Endpoints that have something to do are on prov->work: reported by epoll, posted to, or not done when their turn ended. One that was served goes to
// prov->awake, and leaves it when its worker was armed before a sleep: an idle endpoint costs nothing.
//
// UCX contexts are made for each network interface once, and kept until the provider is closed. Regions have random keys of 64 bits, and are named to peers by key and offset.

#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "provider/interfaces.h"
#include "provider/ucx/ucx.h"

#define EPOLL_BATCH 64

int lieni_ucx_say(struct lieni_prov *prov, lien_level level, int code, const char *format, ...)
{
    char text[512];
    int len = snprintf(text, sizeof text, "ucx: ");
    va_list args;
    va_start(args, format);
    vsnprintf(text + len, sizeof text - (size_t)len, format, args);
    va_end(args);
    prov->report.say(prov->report.self, level, code, text);
    return code;
}

// -- Provider --------------------------------------------------------------------------------------------------------------------------

static void free_prov(struct lieni_prov *prov)
{
    struct lieni_ucx_net *net;
    while ((net = STAILQ_FIRST(&prov->nets))) {
        STAILQ_REMOVE_HEAD(&prov->nets, link);
        lieni_ucx.ucp_cleanup(net->context);
        free(net);
    }
    if (prov->epfd >= 0)
        close(prov->epfd);
    if (prov->wakefd >= 0)
        close(prov->wakefd);
    pthread_mutex_destroy(&prov->lock);
    free(prov);
}

int lieni_ucx_watch(struct lieni_prov *prov, int fd, bool edge, struct lieni_ucx_watch *watch)
{
    struct epoll_event event = {
        .events = edge ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : EPOLLIN, .data.ptr = watch};
    if (epoll_ctl(prov->epfd, EPOLL_CTL_ADD, fd, &event) == 0)
        return 0;
    return lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_ESYS, "watching a descriptor: %s",
                         strerror(errno));
}

static int make_descriptors(struct lieni_prov *prov)
{
    prov->epfd = epoll_create1(EPOLL_CLOEXEC);
    prov->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    prov->wake.kind = LIENI_UCX_WAKE;
    if (prov->epfd >= 0 && prov->wakefd >= 0)
        return lieni_ucx_watch(prov, prov->wakefd, false, &prov->wake);
    char hint[LIENI_LIMITS_NOTE];
    int error = errno;
    return lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_ESYS, "making its descriptors: %s%s",
                         strerror(error), lieni_limits_note(error, hint, sizeof hint));
}

static int prov_open(const struct lieni_prov_args *args, struct lieni_prov **out)
{
    struct lieni_prov *prov = calloc(1, sizeof *prov);
    if (!prov)
        return LIEN_ENOMEM;
    prov->env = args->env;
    prov->report = args->report;
    prov->epfd = prov->wakefd = -1;
    STAILQ_INIT(&prov->nets);
    TAILQ_INIT(&prov->domains);
    TAILQ_INIT(&prov->work);
    TAILQ_INIT(&prov->awake);
    pthread_mutex_init(&prov->lock, NULL);
    const char *why = lieni_ucx_load();
    int code = why ? lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_ENOPROVIDER,
                                   "UCX cannot be loaded (Debian: libucx0): %s", why)
                   : make_descriptors(prov);
    if (code != 0) {
        free_prov(prov);
        return code;
    }
    prov->by_hand = lieni_ucx_by_hand();
    if (!prov->by_hand)
        lieni_ucx_say(prov, LIEN_LOG_WARN, LIEN_ENOTSUP,
                      "UCX_TLS has more than tcp and self: nothing is known of what the end of a "
                      "connection proves there; memory of READs that did not succeed stays in "
                      "quarantine");
    *out = prov;
    return 0;
}

static int domain_close(struct lieni_domain *domain, enum lieni_proof *proof);

static void prov_close(struct lieni_prov *prov)
{
    struct lieni_domain *domain, *next;
    for (domain = TAILQ_FIRST(&prov->domains); domain; domain = next) {
        next = TAILQ_NEXT(domain, link);
        struct lieni_ep *ep;
        enum lieni_proof proof;
        uint64_t late;
        while ((ep = TAILQ_FIRST(&domain->eps))) {
            lieni_ucx_shutdown(ep);
            if (!ep->ended)
                lieni_ucx_end(ep);
            lieni_ucx_destroy(ep, &proof, &late);
        }
        domain_close(domain, &proof);
    }
    if (!TAILQ_EMPTY(&prov->domains)) { // who has the regions may close them yet
        lieni_ucx_say(prov, LIEN_LOG_WARN, LIEN_EBUSY, "left behind at close: regions");
        return;
    }
    free_prov(prov);
}

static int prov_fd(struct lieni_prov *prov)
{
    return prov->epfd;
}

// -- Serving ---------------------------------------------------------------------------------------------------------------------------

// prov->lock.
static void off_lists(struct lieni_ep *ep)
{
    if (ep->working)
        TAILQ_REMOVE(&ep->prov->work, ep, work_link);
    else if (ep->waking)
        TAILQ_REMOVE(&ep->prov->awake, ep, work_link);
    ep->working = ep->waking = false;
}

void lieni_ucx_touch(struct lieni_ep *ep)
{
    struct lieni_prov *prov = ep->prov;
    pthread_mutex_lock(&prov->lock);
    if (!ep->working) {
        off_lists(ep);
        ep->working = true;
        TAILQ_INSERT_TAIL(&prov->work, ep, work_link);
    }
    bool asleep = prov->armed;
    prov->armed = false;
    pthread_mutex_unlock(&prov->lock);
    if (asleep) {
        uint64_t one = 1;
        ssize_t rc = write(prov->wakefd, &one, sizeof one);
        (void)rc; // full means readable already
    }
}

void lieni_ucx_untouch(struct lieni_ep *ep)
{
    pthread_mutex_lock(&ep->prov->lock);
    off_lists(ep);
    pthread_mutex_unlock(&ep->prov->lock);
}

static struct lieni_ep *work_take(struct lieni_prov *prov)
{
    pthread_mutex_lock(&prov->lock);
    struct lieni_ep *ep = TAILQ_FIRST(&prov->work);
    if (ep) {
        off_lists(ep);
        ep->waking = true;
        TAILQ_INSERT_TAIL(&prov->awake, ep, work_link);
    }
    pthread_mutex_unlock(&prov->lock);
    return ep;
}

#define HOLDS(watch, type, member)                                                                 \
    ((struct type *)(void *)((char *)(watch)-offsetof(struct type, member)))

static void collect(struct lieni_prov *prov)
{
    struct epoll_event ready[EPOLL_BATCH];
    int n = epoll_wait(prov->epfd, ready, EPOLL_BATCH, 0);
    for (int i = 0; i < n; i++) {
        struct lieni_ucx_watch *watch = ready[i].data.ptr;
        switch (watch->kind) {
        case LIENI_UCX_WAKE: {
            uint64_t count;
            ssize_t rc = read(prov->wakefd, &count, sizeof count);
            (void)rc; // only empties it
            break;
        }
        case LIENI_UCX_LISTEN: {
            struct lieni_ep *ep = HOLDS(watch, lieni_ep, listen_watch);
            ep->can_accept = true;
            lieni_ucx_touch(ep);
            break;
        }
        case LIENI_UCX_LANE: {
            struct lieni_ucx_lane *lane = HOLDS(watch, lieni_ucx_lane, watch);
            lane->ready = true;
            lieni_ucx_touch(lane->ep);
            break;
        }
        case LIENI_UCX_WORKER:
            lieni_ucx_touch(HOLDS(watch, lieni_ep, worker_watch));
            break;
        }
    }
}

static unsigned entries(struct lieni_ep *ep, struct lieni_event *events, unsigned max)
{
    unsigned n = 0;
    struct lieni_cqe cqe;
    while (n < max && lieni_ucx_entry(ep, &cqe))
        events[n++] = (struct lieni_event){.kind = LIENI_EV_ENTRY, .user = ep->user, .cqe = cqe};
    return n;
}

static struct lieni_event went_down(struct lieni_ep *ep)
{
    pthread_mutex_lock(&ep->lock);
    lieni_ucx_enter(ep, LIENI_UCX_DOWN);
    pthread_mutex_unlock(&ep->lock);
    lieni_ucx_quiet(ep);
    return (struct lieni_event){.kind = LIENI_EV_DOWN,
                                .user = ep->user,
                                .status = ep->broken,
                                .provider_error = ep->broken_error};
}

// True: it has more to do.
static bool serve(struct lieni_ep *ep, struct lieni_event *events, unsigned max, unsigned *n)
{
    pthread_mutex_lock(&ep->lock);
    enum lieni_ucx_state state = ep->state;
    pthread_mutex_unlock(&ep->lock);
    bool more = false;
    switch (state) {
    case LIENI_UCX_HALF:
        if (!lieni_ucx_opening(ep, events))
            return false;
        *n = 1;
        return true;
    case LIENI_UCX_UP:
        more = lieni_ucx_turn(ep);
        *n = entries(ep, events, max);
        if (ep->broken && *n < max)
            events[(*n)++] = went_down(ep);
        return more || *n == max;
    case LIENI_UCX_CLOSING:
        if (!ep->ended && lieni_ucx_may_end(ep))
            lieni_ucx_end(ep);
        *n = entries(ep, events, max);
        return *n == max;
    case LIENI_UCX_DOWN:
        *n = entries(ep, events, max);
        return *n == max;
    case LIENI_UCX_FAILED:
        break;
    }
    return false;
}

static unsigned prov_poll(struct lieni_prov *prov, struct lieni_event *events, unsigned max)
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
            lieni_ucx_touch(ep);
        n += got;
    }
    return n;
}

// Arms the workers of all that were served. False: one has something.
static bool arm_workers(struct lieni_prov *prov)
{
    for (;;) {
        pthread_mutex_lock(&prov->lock);
        struct lieni_ep *ep = TAILQ_FIRST(&prov->awake);
        if (ep)
            off_lists(ep);
        pthread_mutex_unlock(&prov->lock);
        if (!ep)
            return true;
        pthread_mutex_lock(&ep->lock);
        bool live = ep->state == LIENI_UCX_HALF || ep->state == LIENI_UCX_UP;
        pthread_mutex_unlock(&ep->lock);
        if (live && ep->worker && lieni_ucx.ucp_worker_arm(ep->worker) != UCS_OK) {
            lieni_ucx_touch(ep);
            return false;
        }
    }
}

static int prov_arm(struct lieni_prov *prov)
{
    if (!arm_workers(prov))
        return LIEN_EAGAIN;
    pthread_mutex_lock(&prov->lock);
    bool sleep = TAILQ_EMPTY(&prov->work);
    prov->armed = sleep;
    pthread_mutex_unlock(&prov->lock);
    return sleep ? 0 : LIEN_EAGAIN;
}

// -- Domains ---------------------------------------------------------------------------------------------------------------------------

// The interface that has the address. IPv4 only, as UCX 1.13's tcp.
static int find_device(struct lieni_prov *prov, const char *host, char *device, size_t size)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *want = NULL;
    struct ifaddrs *all = NULL;
    if (getaddrinfo(host, NULL, &hints, &want) != 0)
        return lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_ENODEV, "'%s' is no numeric address", host);
    int family = want->ai_family;
    struct in_addr address = {0};
    if (family == AF_INET)
        address = ((struct sockaddr_in *)(void *)want->ai_addr)->sin_addr;
    freeaddrinfo(want);
    if (family != AF_INET)
        return lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_ENODEV,
                             "'%s': UCX's tcp has IPv4 addresses only", host);
    if (getifaddrs(&all) != 0)
        return lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_ENODEV, "looking for interfaces: %s",
                             strerror(errno));
    device[0] = '\0';
    for (struct ifaddrs *at = all; at && !device[0]; at = at->ifa_next) {
        if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET)
            continue;
        struct in_addr has = ((struct sockaddr_in *)(void *)at->ifa_addr)->sin_addr;
        bool loop = (ntohl(address.s_addr) >> 24) == 127 && (ntohl(has.s_addr) >> 24) == 127;
        if (has.s_addr == address.s_addr || loop)
            snprintf(device, size, "%s", at->ifa_name);
    }
    freeifaddrs(all);
    if (device[0])
        return 0;
    return lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_ENODEV, "'%s' is no address of this machine",
                         host);
}

static int net_of(struct lieni_prov *prov, const char *host, struct lieni_ucx_net **out)
{
    char device[sizeof((*out)->device)] = "";
    int code = host ? find_device(prov, host, device, sizeof device) : 0;
    if (code != 0)
        return code;
    struct lieni_ucx_net *net;
    STAILQ_FOREACH(net, &prov->nets, link)
    {
        if (strcmp(net->device, device) == 0) {
            *out = net;
            return 0;
        }
    }
    net = calloc(1, sizeof *net);
    if (!net)
        return LIEN_ENOMEM;
    memcpy(net->device, device, sizeof device);
    code = lieni_ucx_context(prov, device, &net->context);
    if (code != 0) {
        free(net);
        return code;
    }
    STAILQ_INSERT_TAIL(&prov->nets, net, link);
    *out = net;
    return 0;
}

static int domain_open(struct lieni_prov *prov, const char *host, struct lieni_domain **out)
{
    struct lieni_domain *domain = calloc(1, sizeof *domain);
    if (!domain)
        return LIEN_ENOMEM;
    int code = net_of(prov, host, &domain->net);
    if (code != 0) {
        free(domain);
        return code;
    }
    domain->prov = prov;
    for (unsigned i = 0; i < LIENI_UCX_BUCKETS; i++)
        TAILQ_INIT(&domain->buckets[i]);
    TAILQ_INIT(&domain->eps);
    pthread_mutex_init(&domain->lock, NULL);
    TAILQ_INSERT_TAIL(&prov->domains, domain, link);
    *out = domain;
    return 0;
}

static int domain_close(struct lieni_domain *domain, enum lieni_proof *proof)
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
    free(domain);
    *proof = LIENI_UNKNOWN; // the end of each endpoint proved what there is to prove
    return 0;
}

static void domain_limits(struct lieni_domain *domain, struct lieni_limits *limits)
{
    (void)domain;
    *limits = (struct lieni_limits){.read_piece_max = LIENI_UCX_PIECE,
                                    .reads_max = LIENI_UCX_READS,
                                    .posts_max = LIENI_UCX_POSTS};
}

static uint32_t read_depth(struct lieni_prov *prov, const char *host)
{
    (void)prov;
    (void)host;
    return 0;
}

// -- Regions ---------------------------------------------------------------------------------------------------------------------------

static struct lieni_ucx_mrs *bucket_of(struct lieni_domain *domain, uint64_t key)
{
    return &domain->buckets[key % LIENI_UCX_BUCKETS];
}

struct lieni_mr *lieni_ucx_find(struct lieni_domain *domain, uint64_t key)
{
    struct lieni_mr *mr;
    if (key == 0)
        return NULL;
    TAILQ_FOREACH(mr, bucket_of(domain, key), link)
    {
        if (mr->key == key)
            return mr;
    }
    return NULL;
}

static int mr_reg(struct lieni_domain *domain, void *addr, size_t len, unsigned access,
                  struct lieni_mr **out, struct lieni_mr_info *info)
{
    struct lieni_prov *prov = domain->prov;
    struct lieni_mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return LIEN_ENOMEM;
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = addr,
        .length = len,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_t status = lieni_ucx.ucp_mem_map(domain->net->context, &params, &mr->memh);
    if (status != UCS_OK) {
        free(mr);
        return lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_EREGISTER,
                             "registering %zu bytes: %s; UCX: %s", len,
                             lieni_ucx.ucs_status_string(status), lieni_ucx_said());
    }
    mr->domain = domain;
    mr->addr = addr;
    mr->len = len;
    TAILQ_INIT(&mr->told);
    pthread_mutex_lock(&domain->lock);
    while ((access & LIENI_ACCESS_REMOTE) && mr->key == 0) {
        uint64_t key;
        prov->env->random(prov->env->self, &key, sizeof key);
        if (!lieni_ucx_find(domain, key))
            mr->key = key;
    }
    TAILQ_INSERT_TAIL(bucket_of(domain, mr->key), mr, link);
    domain->n_mrs++;
    *info = (struct lieni_mr_info){.key = mr->key};
    pthread_mutex_unlock(&domain->lock);
    *out = mr;
    return 0;
}

// Those who have its remote key are to be told.
static int mr_close(struct lieni_mr *mr)
{
    struct lieni_domain *domain = mr->domain;
    struct lieni_ucx_told *told;
    pthread_mutex_lock(&domain->lock);
    TAILQ_REMOVE(bucket_of(domain, mr->key), mr, link);
    domain->n_mrs--;
    while ((told = TAILQ_FIRST(&mr->told))) {
        TAILQ_REMOVE(&mr->told, told, mr_link);
        TAILQ_REMOVE(&told->ep->told, told, ep_link);
        told->mr = NULL;
        TAILQ_INSERT_TAIL(&told->ep->gone, told, ep_link);
        lieni_ucx_touch(told->ep);
    }
    pthread_mutex_unlock(&domain->lock);
    ucs_status_t status = lieni_ucx.ucp_mem_unmap(domain->net->context, mr->memh);
    if (status != UCS_OK)
        lieni_ucx_say(domain->prov, LIEN_LOG_ERROR, LIEN_EIO, "unregistering: %s",
                      lieni_ucx.ucs_status_string(status));
    free(mr);
    return status == UCS_OK ? 0 : LIEN_EIO;
}

static const struct lieni_traits traits = LIENI_UCX_TRAITS;

// The library is not loaded for this question: that leaves traces in the process.
const struct lieni_provider lieni_provider_ucx = {
    .traits = &traits,
    .candidates = lieni_interfaces,
    .open = prov_open,
    .close = prov_close,
    .fd = prov_fd,
    .arm = prov_arm,
    .poll = prov_poll,
    .domain_open = domain_open,
    .domain_close = domain_close,
    .domain_limits = domain_limits,
    .read_depth = read_depth,
    .mr_reg = mr_reg,
    .mr_close = mr_close,
    .listen = lieni_ucx_listen,
    .connect = lieni_ucx_connect,
    .post_send = lieni_ucx_post_send,
    .post_recv = lieni_ucx_post_recv,
    .post_read = lieni_ucx_post_read,
    .ep_shutdown = lieni_ucx_shutdown,
    .ep_destroy = lieni_ucx_destroy,
};
