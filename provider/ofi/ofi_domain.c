// SPDX-License-Identifier: Apache-2.0
//
// The opened provider, its domains and regions. Domains are listed under prov->lock; counts of what lives in a domain decide whether it can close.

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "provider/ofi/ofi.h"

// How long close waits for CM threads that are on their way out.
#define CLOSE_WAIT_MS 200u
// Tries for a random key: a second collision of 64 bits is a broken random source.
#define KEY_TRIES 8
// What is registered to see whether that is cached.
#define PROBE_BYTES 4096u

// What we can obey; anything else a provider asks for, we cannot use it.
static const int mr_modes = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

// -- Finding -----------------------------------------------------------------------------------------------------------------------

static struct fi_info *make_hints(const struct lieni_ofi *ofi)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    hints->caps = FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_REMOTE_READ;
    hints->mode = ofi->mode;
    hints->addr_format = FI_FORMAT_UNSPEC;
    hints->ep_attr->type = FI_EP_MSG;
    hints->ep_attr->protocol = ofi->protocol;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->mr_mode = mr_modes;
    hints->fabric_attr->prov_name = strdup(ofi->traits->name);
    if (!hints->fabric_attr->prov_name) {
        fi_freeinfo(hints);
        return NULL;
    }
    return hints;
}

// Why we cannot use it, or NULL.
static const char *unusable(const struct lieni_ofi *ofi, const struct fi_info *info)
{
    if (!info->fabric_attr->prov_name ||
        strcmp(info->fabric_attr->prov_name, ofi->traits->name) != 0)
        return "another provider answered";
    if (info->ep_attr->type != FI_EP_MSG)
        return "it has no connected endpoints (FI_EP_MSG)";
    if (ofi->protocol != 0 && info->ep_attr->protocol != ofi->protocol)
        return "it has another protocol";
    if ((info->domain_attr->mr_mode & ~mr_modes) != 0)
        return "it wants a way of registering memory that Lien does not have";
    if ((info->mode & ~ofi->mode) != 0)
        return "it wants a mode that Lien does not have";
    return NULL;
}

// The first usable info, alone, into *found. `host`: NULL, or the numeric address of the NIC.
static int find(struct lieni_prov *prov, const char *host, int missing, struct fi_info **found)
{
    struct fi_info *hints = make_hints(prov->ofi);
    if (!hints)
        return LIEN_ENOMEM;
    struct fi_info *list = NULL;
    uint64_t flags = host ? FI_SOURCE | FI_NUMERICHOST : 0;
    int rc = fi_getinfo(LIENI_OFI_VERSION, host, NULL, flags, hints, &list);
    fi_freeinfo(hints);
    if (rc != 0) {
        lieni_ofi_say(prov, LIEN_LOG_WARN, missing,
                      "libfabric has no such provider with connected endpoints (FI_EP_MSG) and "
                      "READ%s%s: %s (%d)",
                      host ? " at address " : "", host ? host : "", fi_strerror(-rc), -rc);
        return missing;
    }
    const char *why = "nothing was offered";
    const struct fi_info *info;
    for (info = list; info; info = info->next) {
        why = unusable(prov->ofi, info);
        if (!why)
            break;
    }
    int code = 0;
    if (!info) {
        code = missing;
        lieni_ofi_say(prov, LIEN_LOG_WARN, code, "libfabric's offer cannot be used: %s", why);
    } else {
        *found = fi_dupinfo(info);
        if (!*found)
            code = LIEN_ENOMEM;
    }
    fi_freeinfo(list);
    return code;
}

// -- Provider ----------------------------------------------------------------------------------------------------------------------

static int make_descriptors(struct lieni_prov *prov)
{
    prov->epfd = epoll_create1(EPOLL_CLOEXEC);
    prov->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event wake = {.events = EPOLLIN, .data.u64 = 0};
    if (prov->epfd < 0 || prov->wakefd < 0 ||
        epoll_ctl(prov->epfd, EPOLL_CTL_ADD, prov->wakefd, &wake) != 0) {
        lieni_ofi_fail(prov, LIEN_LOG_ERROR, "making its descriptors", errno);
        return LIEN_ESYS;
    }
    return 0;
}

static void free_prov(struct lieni_prov *prov)
{
    if (prov->epfd >= 0)
        close(prov->epfd);
    if (prov->wakefd >= 0)
        close(prov->wakefd);
    pthread_mutex_destroy(&prov->lock);
    pthread_mutex_destroy(&prov->say_lock);
    free(prov);
}

int lieni_ofi_open(const struct lieni_ofi *ofi, const struct lieni_prov_args *args,
                   struct lieni_prov **out)
{
    struct lieni_prov *prov = calloc(1, sizeof *prov);
    if (!prov)
        return LIEN_ENOMEM;
    prov->ofi = ofi;
    prov->env = args->env;
    prov->report = args->report;
    prov->epfd = prov->wakefd = -1;
    TAILQ_INIT(&prov->ring);
    TAILQ_INIT(&prov->handed);
    TAILQ_INIT(&prov->domains);
    pthread_mutex_init(&prov->lock, NULL);
    pthread_mutex_init(&prov->say_lock, NULL);

    int code;
    struct fi_info *info = NULL;
    const char *fault = lieni_ofi_environment_fault();
    if (fault) {
        code = LIEN_ENOPROVIDER;
        lieni_ofi_say(prov, LIEN_LOG_ERROR, code, "%s", fault);
        goto fail;
    }
    code = find(prov, NULL, LIEN_ENOPROVIDER, &info);
    lieni_ofi_restore_signals(); // fi_getinfo may have loaded libraries
    if (code != 0)
        goto fail;
    fi_freeinfo(info);
    code = make_descriptors(prov);
    if (code != 0)
        goto fail;
    *out = prov;
    return 0;
fail:
    free_prov(prov);
    return code;
}

// Ends what the domain still has. True: nothing is left.
static bool reap_domain(struct lieni_domain *domain)
{
    struct lieni_ep *ep = TAILQ_FIRST(&domain->eps);
    while (ep) {
        struct lieni_ep *next = TAILQ_NEXT(ep, link);
        enum lieni_proof proof;
        uint64_t late = 0;
        lieni_ofi_ep_shutdown(ep);
        lieni_ofi_ep_destroy(ep, &proof, &late);
        ep = next;
    }
    enum lieni_proof proof;
    return lieni_ofi_domain_close(domain, &proof) == 0;
}

static bool reap(struct lieni_prov *prov)
{
    bool all = true;
    struct lieni_domain *domain = TAILQ_FIRST(&prov->domains);
    while (domain) {
        struct lieni_domain *next = TAILQ_NEXT(domain, link);
        all = reap_domain(domain) && all;
        domain = next;
    }
    return all;
}

void lieni_ofi_close(struct lieni_prov *prov)
{
    bool all = reap(prov);
    for (unsigned ms = 0; !all && ms < CLOSE_WAIT_MS; ms++) {
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
        all = reap(prov);
    }
    if (all) {
        free_prov(prov);
        return;
    }
    unsigned stuck = 0;
    unsigned regions = 0;
    struct lieni_domain *domain;
    struct lieni_ep *ep;
    TAILQ_FOREACH(domain, &prov->domains, link)
    {
        regions += atomic_load(&domain->n_mrs);
        TAILQ_FOREACH(ep, &domain->eps, link)
        {
            stuck++;
            pthread_detach(ep->cm.thread);
        }
    }
    lieni_ofi_say(prov, LIEN_LOG_WARN, LIEN_EBUSY,
                  "left behind at close: %u half-open endpoints whose threads are stuck in "
                  "libfabric, %u regions",
                  stuck, regions);
    // The threads use prov when they come back, so it stays; its report's owner does not.
    pthread_mutex_lock(&prov->say_lock);
    prov->mute = true;
    pthread_mutex_unlock(&prov->say_lock);
}

// -- Domains -----------------------------------------------------------------------------------------------------------------------

// Whether `host` is a numeric address of this machine: tcp takes any, and would fail at its first endpoint.
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

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

// The limits of the domain, and what its device has to say.
static int open_device(struct lieni_domain *domain, const char *host)
{
    struct lieni_prov *prov = domain->prov;
    const struct lieni_traits *traits = prov->ofi->traits;
    const struct lieni_ofi_device_ops *ops = prov->ofi->device;
    domain->limits = (struct lieni_limits){.read_piece_max = traits->read_piece_max,
                                           .reads_max = traits->reads_max,
                                           .posts_max = traits->posts_max};
    domain->device_fd = -1;
    if (!ops)
        return 0;
    // What listens at any address says 0 here.
    size_t largest = domain->info->ep_attr->max_msg_size;
    if (largest != 0)
        domain->limits.read_piece_max = least(traits->read_piece_max, largest);
    int code = ops->open(prov, host, domain->info, &domain->device);
    if (code != 0)
        return code;
    ops->limits(domain->device, &domain->limits);
    code = lieni_ofi_watch_device(domain);
    if (code != 0)
        ops->close(domain->device);
    return code;
}

void lieni_ofi_domain_limits(struct lieni_domain *domain, struct lieni_limits *limits)
{
    *limits = domain->limits;
}

uint32_t lieni_ofi_read_depth(struct lieni_prov *prov, const char *host)
{
    const struct lieni_ofi_device_ops *ops = prov->ofi->device;
    return ops ? ops->read_depth(prov, host) : 0;
}

static void refused_registration(struct lieni_prov *prov, const void *addr, size_t len, int rc)
{
    char hint[128] = "";
    struct rlimit limit;
    if ((rc == -FI_ENOMEM || rc == -FI_EAGAIN || rc == -FI_EPERM) &&
        getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        if (limit.rlim_cur == RLIM_INFINITY)
            snprintf(hint, sizeof hint, "; RLIMIT_MEMLOCK is unlimited");
        else
            snprintf(hint, sizeof hint,
                     "; the memory-lock limit (RLIMIT_MEMLOCK) is %llu bytes and may be the cause",
                     (unsigned long long)limit.rlim_cur);
    }
    lieni_ofi_say(prov, LIEN_LOG_ERROR, LIEN_EREGISTER, "registering %zu bytes at %p: %s (%d)%s",
                  len, addr, fi_strerror(-rc), -rc, hint);
}

// Whether libfabric gives out the same region twice: two live ones of one page have the same key.
static int is_cached(struct lieni_domain *domain, void *page, bool *cached)
{
    const uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_REMOTE_READ;
    struct fid_mr *first, *second;
    *cached = false;
    int rc = fi_mr_reg(domain->domain, page, PROBE_BYTES, access, 0, 0, 0, &first, NULL);
    if (rc != 0)
        return rc;
    rc = fi_mr_reg(domain->domain, page, PROBE_BYTES, access, 0, 0, 0, &second, NULL);
    if (rc == 0) {
        *cached = fi_mr_key(first) == fi_mr_key(second);
        fi_close(&second->fid);
    }
    fi_close(&first->fid);
    return rc;
}

// libfabric's registration cache is off, whatever the environment says by now: it looked at it once, which may have been before us. Seen where the provider makes the keys; elsewhere none is used.
static int check_uncached(struct lieni_domain *domain)
{
    struct lieni_prov *prov = domain->prov;
    bool cached;
    if ((domain->info->domain_attr->mr_mode & FI_MR_PROV_KEY) == 0)
        return 0;
    void *page = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);
    if (page == MAP_FAILED)
        return LIEN_ENOMEM;
    int rc = is_cached(domain, page, &cached);
    if (rc != 0)
        refused_registration(prov, page, PROBE_BYTES, rc);
    munmap(page, PROBE_BYTES);
    if (rc != 0)
        return LIEN_EREGISTER;
    if (!cached)
        return 0;
    lieni_ofi_say(prov, LIEN_LOG_ERROR, LIEN_ENOPROVIDER,
                  "libfabric's registration cache is on: libfabric was used before "
                  "FI_MR_CACHE_MAX_COUNT was 0; set it before the process starts, or load Lien "
                  "earlier");
    return LIEN_ENOPROVIDER;
}

int lieni_ofi_domain_open(struct lieni_prov *prov, const char *host, struct lieni_domain **out)
{
    if (host && !is_local(host)) {
        lieni_ofi_say(prov, LIEN_LOG_ERROR, LIEN_ENODEV,
                      "'%s' is no numeric address of this machine", host);
        return LIEN_ENODEV;
    }
    int code = prov->ofi->device ? prov->ofi->device->serves(prov, host) : 0;
    if (code != 0)
        return code;
    struct lieni_domain *domain = calloc(1, sizeof *domain);
    if (!domain)
        return LIEN_ENOMEM;
    domain->prov = prov;
    TAILQ_INIT(&domain->eps);
    code = find(prov, host, LIEN_ENODEV, &domain->info);
    if (code != 0)
        goto fail_find;
    int rc = fi_fabric(domain->info->fabric_attr, &domain->fabric, NULL);
    if (rc != 0) {
        code = lieni_ofi_fail(prov, LIEN_LOG_ERROR, "fi_fabric", rc);
        goto fail_fabric;
    }
    rc = fi_domain(domain->fabric, domain->info, &domain->domain, NULL);
    if (rc != 0) {
        code = lieni_ofi_fail(prov, LIEN_LOG_ERROR, "fi_domain", rc);
        goto fail_domain;
    }
    code = check_uncached(domain);
    if (code == 0)
        code = open_device(domain, host);
    if (code != 0)
        goto fail_device;
    pthread_mutex_lock(&prov->lock);
    TAILQ_INSERT_TAIL(&prov->domains, domain, link);
    pthread_mutex_unlock(&prov->lock);
    *out = domain;
    return 0;
fail_device:
    fi_close(&domain->domain->fid);
fail_domain:
    fi_close(&domain->fabric->fid);
fail_fabric:
    fi_freeinfo(domain->info);
fail_find:
    free(domain);
    return code;
}

int lieni_ofi_domain_close(struct lieni_domain *domain, enum lieni_proof *proof)
{
    struct lieni_prov *prov = domain->prov;
    pthread_mutex_lock(&prov->lock);
    bool busy = domain->n_eps != 0 || atomic_load(&domain->n_mrs) != 0;
    pthread_mutex_unlock(&prov->lock);
    if (busy)
        return LIEN_EBUSY;
    int rc = fi_close(&domain->domain->fid);
    if (rc != 0) {
        lieni_ofi_fail(prov, LIEN_LOG_WARN, "fi_close(domain)", rc);
        return LIEN_EBUSY;
    }
    *proof = prov->ofi->traits->domain_end_proves ? LIENI_PROVEN : LIENI_UNKNOWN;
    rc = fi_close(&domain->fabric->fid);
    if (rc != 0)
        lieni_ofi_fail(prov, LIEN_LOG_WARN, "fi_close(fabric)", rc);
    lieni_ofi_unwatch_device(domain);
    if (domain->device)
        prov->ofi->device->close(domain->device);
    pthread_mutex_lock(&prov->lock);
    TAILQ_REMOVE(&prov->domains, domain, link);
    pthread_mutex_unlock(&prov->lock);
    fi_freeinfo(domain->info);
    free(domain);
    return 0;
}

// -- Regions -----------------------------------------------------------------------------------------------------------------------

// A key nobody can guess, of the size the provider has.
static uint64_t random_key(struct lieni_domain *domain)
{
    uint64_t key;
    size_t size = domain->info->domain_attr->mr_key_size;
    do {
        domain->prov->env->random(domain->prov->env->self, &key, sizeof key);
        if (size < sizeof key)
            key &= (UINT64_C(1) << (8 * size)) - 1;
    } while (key == FI_KEY_NOTAVAIL);
    return key;
}

static int register_region(struct lieni_domain *domain, void *addr, size_t len, uint64_t access,
                           struct fid_mr **mr)
{
    bool chosen = (domain->info->domain_attr->mr_mode & FI_MR_PROV_KEY) == 0;
    int rc = -FI_ENOKEY;
    for (int i = 0; i < KEY_TRIES && rc == -FI_ENOKEY; i++) {
        uint64_t key = chosen ? random_key(domain) : 0;
        rc = fi_mr_reg(domain->domain, addr, len, access, 0, key, 0, mr, NULL);
    }
    return rc;
}

int lieni_ofi_mr_reg(struct lieni_domain *domain, void *addr, size_t len, unsigned access,
                     struct lieni_mr **out, struct lieni_mr_info *info)
{
    int mode = domain->info->domain_attr->mr_mode;
    struct lieni_mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return LIEN_ENOMEM;
    mr->domain = domain;
    struct lieni_mr_info made = {0};
    if ((access & LIENI_ACCESS_REMOTE) || (mode & FI_MR_LOCAL)) {
        uint64_t flags = 0;
        if (access & LIENI_ACCESS_LOCAL)
            flags |= FI_SEND | FI_RECV | FI_READ;
        if (access & LIENI_ACCESS_REMOTE)
            flags |= FI_REMOTE_READ;
        int rc = register_region(domain, addr, len, flags, &mr->mr);
        if (rc != 0) {
            refused_registration(domain->prov, addr, len, rc);
            free(mr);
            return LIEN_EREGISTER;
        }
        made.key = fi_mr_key(mr->mr);
        made.base = (mode & FI_MR_VIRT_ADDR) ? (uint64_t)(uintptr_t)addr : 0;
    }
    atomic_fetch_add(&domain->n_mrs, 1);
    *info = made;
    *out = mr;
    return 0;
}

int lieni_ofi_mr_close(struct lieni_mr *mr)
{
    struct lieni_domain *domain = mr->domain;
    if (mr->mr) {
        int rc = fi_close(&mr->mr->fid);
        if (rc != 0)
            return lieni_ofi_fail(domain->prov, LIEN_LOG_WARN, "fi_close(region)", rc);
    }
    free(mr);
    atomic_fetch_sub(&domain->n_mrs, 1);
    return 0;
}
