// SPDX-License-Identifier: Apache-2.0
//
// Endpoints: making them, posts, the end. ep->state is changed by lieni_ofi_ep_enter() alone, under ep->post_lock. The end is in this order, and no libfabric call on an endpoint overlaps
// its fi_close [R17]: state CLOSING under the locks of posts and queue reads, fi_shutdown, (poll goes on reading), fi_close(ep), drain to empty, fi_close(cq), fi_close(eq).

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/ofi/ofi.h"

_Static_assert(sizeof(void *) == 8, "op_context carries 64 bits");

// How long a queue may say that it is full before the endpoint counts as broken: far longer than a full queue needs to move, or fails to by the connection's own timers.
#define REFUSED_NS UINT64_C(10000000000)

#define TO(state) (1u << (state))

static const uint8_t may_enter[] = {
    [LIENI_OFI_HALF] = TO(LIENI_OFI_UP) | TO(LIENI_OFI_FAILED) | TO(LIENI_OFI_CLOSING),
    [LIENI_OFI_UP] = TO(LIENI_OFI_DOWN) | TO(LIENI_OFI_CLOSING),
    [LIENI_OFI_DOWN] = TO(LIENI_OFI_CLOSING),
    [LIENI_OFI_FAILED] = TO(LIENI_OFI_CLOSING),
    [LIENI_OFI_CLOSING] = 0,
};

void lieni_ofi_ep_enter(struct lieni_ep *ep, enum lieni_ofi_ep_state state)
{
    if (!(may_enter[ep->state] & TO(state)))
        abort(); // a bug of this folder: going on could release memory early
    ep->state = state;
}

void *lieni_ofi_desc(const struct lieni_mr *mr)
{
    return mr && mr->mr ? fi_mr_desc(mr->mr) : NULL;
}

// -- Making ------------------------------------------------------------------------------------------------------------------------

// Numeric `host` and `port` as a socket address, allocated.
static int resolve(struct lieni_prov *prov, const char *host, uint16_t port, void **addr,
                   size_t *len, uint32_t *format)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc != 0) {
        lieni_ofi_say(prov, LIEN_LOG_ERROR, LIEN_EADDR, "'%s' is no numeric address: %s", host,
                      gai_strerror(rc));
        return LIEN_EADDR;
    }
    *len = list->ai_addrlen;
    *format = list->ai_family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
    *addr = malloc(*len);
    if (*addr) {
        memcpy(*addr, list->ai_addr, *len);
        if (list->ai_family == AF_INET6)
            ((struct sockaddr_in6 *)*addr)->sin6_port = htons(port);
        else
            ((struct sockaddr_in *)*addr)->sin_port = htons(port);
    }
    freeaddrinfo(list);
    return *addr ? 0 : LIEN_ENOMEM;
}

// The domain's info without addresses, and one of its own in `passive` ? src : dest.
static int make_info(struct lieni_domain *domain, const char *host, uint16_t port, bool passive,
                     struct fi_info **out)
{
    void *addr = NULL;
    size_t len = 0;
    uint32_t format = 0;
    int code = resolve(domain->prov, host, port, &addr, &len, &format);
    if (code != 0)
        return code;
    struct fi_info *info = fi_dupinfo(domain->info);
    if (!info) {
        free(addr);
        return LIEN_ENOMEM;
    }
    free(info->src_addr);
    free(info->dest_addr);
    info->src_addr = passive ? addr : NULL;
    info->src_addrlen = passive ? len : 0;
    info->dest_addr = passive ? NULL : addr;
    info->dest_addrlen = passive ? 0 : len;
    info->addr_format = format;
    *out = info;
    return 0;
}

// The domain's own address, without a port: where a connection has to leave from.
static int leave_from(const struct lieni_domain *domain, struct fi_info *info)
{
    size_t len = domain->info->src_addrlen;
    void *addr = len >= sizeof(struct sockaddr_in) ? malloc(len) : NULL;
    if (!addr)
        return domain->info->src_addr ? LIEN_ENOMEM : 0;
    memcpy(addr, domain->info->src_addr, len);
    if (((struct sockaddr *)addr)->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)addr)->sin6_port = 0;
    else
        ((struct sockaddr_in *)addr)->sin_port = 0;
    info->src_addr = addr;
    info->src_addrlen = len;
    return 0;
}

static void free_ep(struct lieni_ep *ep)
{
    if (ep->cm.wakefd >= 0)
        close(ep->cm.wakefd);
    if (ep->cm.info)
        fi_freeinfo(ep->cm.info);
    free(ep->cm.recvs);
    pthread_mutex_destroy(&ep->post_lock);
    pthread_mutex_destroy(&ep->cq_lock);
    free(ep);
}

static int check_args(struct lieni_domain *domain, const struct lieni_ep_args *args)
{
    struct lieni_prov *prov = domain->prov;
    if (args->posts_max < 1 || args->posts_max > domain->limits.posts_max ||
        args->n_recvs > args->posts_max) {
        lieni_ofi_say(prov, LIEN_LOG_ERROR, LIEN_EINVAL,
                      "an endpoint of %u posts with %zu receives; the limit is %u", args->posts_max,
                      args->n_recvs, domain->limits.posts_max);
        return LIEN_EINVAL;
    }
    return prov->ofi->device ? prov->ofi->device->usable(domain->device) : 0;
}

static int make_ep(struct lieni_domain *domain, const struct lieni_ep_args *args, bool server,
                   struct lieni_ep **out)
{
    int code = check_args(domain, args);
    if (code != 0)
        return code;
    struct lieni_ep *ep = calloc(1, sizeof *ep);
    if (!ep)
        return LIEN_ENOMEM;
    ep->domain = domain;
    ep->prov = domain->prov;
    ep->user = args->user;
    ep->posts_max = args->posts_max;
    ep->state = LIENI_OFI_HALF;
    ep->cq_fd = ep->eq_fd = -1;
    ep->cm.server = server;
    ep->cm.n_recvs = args->n_recvs;
    snprintf(ep->cm.peer, sizeof ep->cm.peer, "%s port %u", args->host, args->port);
    memcpy(ep->cm.send_data, args->send_data, LIENI_CM_DATA);
    memcpy(ep->cm.expect_data, args->expect_data, LIENI_CM_DATA);
    pthread_mutex_init(&ep->post_lock, NULL);
    pthread_mutex_init(&ep->cq_lock, NULL);
    ep->cm.wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ep->cm.wakefd < 0) {
        lieni_ofi_fail(ep->prov, LIEN_LOG_ERROR, "eventfd", errno);
        free_ep(ep);
        return LIEN_ESYS;
    }
    if (args->n_recvs > 0) {
        ep->cm.recvs = calloc(args->n_recvs, sizeof *ep->cm.recvs);
        if (!ep->cm.recvs) {
            free_ep(ep);
            return LIEN_ENOMEM;
        }
        memcpy(ep->cm.recvs, args->recvs, args->n_recvs * sizeof *ep->cm.recvs);
    }
    *out = ep;
    return 0;
}

static void close_pep(struct lieni_ep *ep)
{
    if (ep->cm.pep)
        fi_close(&ep->cm.pep->fid);
    if (ep->cm.pep_eq)
        fi_close(&ep->cm.pep_eq->fid);
    ep->cm.pep = NULL;
    ep->cm.pep_eq = NULL;
}

static int listed(struct lieni_ep *ep)
{
    struct lieni_domain *domain = ep->domain;
    pthread_mutex_lock(&ep->prov->lock);
    TAILQ_INSERT_TAIL(&domain->eps, ep, link);
    domain->n_eps++;
    pthread_mutex_unlock(&ep->prov->lock);
    int code = lieni_ofi_cm_start(ep);
    if (code == 0)
        return 0;
    pthread_mutex_lock(&ep->prov->lock);
    TAILQ_REMOVE(&domain->eps, ep, link);
    domain->n_eps--;
    pthread_mutex_unlock(&ep->prov->lock);
    return code;
}

int lieni_ofi_connect(struct lieni_domain *domain, const struct lieni_ep_args *args,
                      struct lieni_ep **out)
{
    struct lieni_ep *ep;
    int code = make_ep(domain, args, false, &ep);
    if (code != 0)
        return code;
    code = make_info(domain, args->host, args->port, false, &ep->cm.info);
    if (code == 0 && ep->prov->ofi->connected_queues)
        code = leave_from(domain, ep->cm.info);
    if (code == 0)
        code = listed(ep);
    if (code != 0) {
        free_ep(ep);
        return code;
    }
    *out = ep;
    return 0;
}

static uint16_t bound_port(struct fid_pep *pep)
{
    struct sockaddr_storage addr = {0};
    size_t len = sizeof addr;
    if (fi_getname(&pep->fid, &addr, &len) != 0)
        return 0;
    if (addr.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&addr)->sin6_port);
    return ntohs(((struct sockaddr_in *)&addr)->sin_port);
}

// One try to listen, on `port` or, if 0, any. 0 or a negative libfabric error.
static int try_listen(struct lieni_ep *ep, const char *host, uint16_t port)
{
    struct lieni_domain *domain = ep->domain;
    if (ep->cm.info)
        fi_freeinfo(ep->cm.info);
    ep->cm.info = NULL;
    if (make_info(domain, host, port, true, &ep->cm.info) != 0)
        return -FI_EINVAL;
    struct fi_eq_attr attr = {.size = 16, .wait_obj = FI_WAIT_FD};
    int rc = fi_eq_open(domain->fabric, &attr, &ep->cm.pep_eq, NULL);
    if (rc == 0)
        rc = fi_passive_ep(domain->fabric, ep->cm.info, &ep->cm.pep, NULL);
    if (rc == 0)
        rc = fi_pep_bind(ep->cm.pep, &ep->cm.pep_eq->fid, 0);
    if (rc == 0)
        rc = fi_listen(ep->cm.pep);
    if (rc != 0)
        close_pep(ep);
    return rc;
}

// Listens on a port of the range, begun at a random one so that listeners do not race for the same.
static int listen_in_range(struct lieni_ep *ep, const struct lieni_ep_args *args)
{
    if (args->port_lo == 0 && args->port_hi == 0)
        return try_listen(ep, args->host, 0);
    if (args->port_lo == 0 || args->port_lo > args->port_hi)
        return -FI_EINVAL;
    uint32_t count = (uint32_t)(args->port_hi - args->port_lo) + 1;
    uint32_t start;
    ep->prov->env->random(ep->prov->env->self, &start, sizeof start);
    int rc = -FI_EADDRINUSE;
    for (uint32_t i = 0; i < count && rc == -FI_EADDRINUSE; i++)
        rc = try_listen(ep, args->host, (uint16_t)(args->port_lo + (start % count + i) % count));
    return rc;
}

int lieni_ofi_listen(struct lieni_domain *domain, const struct lieni_ep_args *args,
                     struct lieni_ep **out, uint16_t *port)
{
    struct lieni_ep *ep;
    int code = make_ep(domain, args, true, &ep);
    if (code != 0)
        return code;
    int rc = listen_in_range(ep, args);
    uint16_t bound = rc == 0 ? bound_port(ep->cm.pep) : 0;
    if (rc == 0 && bound == 0)
        rc = -FI_EADDRNOTAVAIL;
    if (rc != 0) {
        code = LIEN_EADDR;
        char hint[LIENI_LIMITS_NOTE];
        lieni_ofi_say(ep->prov, LIEN_LOG_ERROR, code,
                      "cannot listen at '%s', fabric ports %u-%u: %s (%d)%s", args->host,
                      args->port_lo, args->port_hi, fi_strerror(-rc), -rc,
                      lieni_limits_starved(hint, sizeof hint));
        goto fail;
    }
    snprintf(ep->cm.peer, sizeof ep->cm.peer, "listener %s port %u", args->host, bound);
    *port = bound;
    code = listed(ep);
    if (code != 0)
        goto fail;
    *out = ep;
    return 0;
fail:
    close_pep(ep);
    free_ep(ep);
    return code;
}

// -- Posts -------------------------------------------------------------------------------------------------------------------------

// Takes the post lock if a post is allowed now; 0, or an error without the lock.
static int post_begin(struct lieni_ep *ep)
{
    pthread_mutex_lock(&ep->post_lock);
    int code = 0;
    if (ep->state != LIENI_OFI_UP)
        code = LIEN_ESTATE;
    else if (atomic_load_explicit(&ep->outstanding, memory_order_relaxed) >= ep->posts_max)
        code = LIEN_EAGAIN;
    if (code != 0)
        pthread_mutex_unlock(&ep->post_lock);
    else // before the post: its entry may be read at once
        atomic_fetch_add_explicit(&ep->outstanding, 1, memory_order_relaxed);
    return code;
}

// Whether the queue is full as it says. Verbs says so of every post that failed, even on a queue pair that is broken (libfabric-facts 1.4): when nothing moved for longer than any queue
// takes, it is no longer believed.
static bool full(struct lieni_ep *ep, bool refused)
{
    struct lieni_prov *prov = ep->prov;
    if (!refused) {
        atomic_store_explicit(&ep->refused_since, 0, memory_order_relaxed);
        return false;
    }
    uint64_t now = prov->env->now(prov->env->self);
    uint64_t since = atomic_load_explicit(&ep->refused_since, memory_order_relaxed);
    if (since == 0)
        atomic_store_explicit(&ep->refused_since, now, memory_order_relaxed);
    return since == 0 || now - since < REFUSED_NS;
}

static int post_end(struct lieni_ep *ep, const char *what, ssize_t rc)
{
    if (rc != 0)
        atomic_fetch_sub_explicit(&ep->outstanding, 1, memory_order_relaxed);
    if (rc == 0 || rc == -FI_EAGAIN)
        lieni_ofi_touch(ep);
    bool again = full(ep, rc == -FI_EAGAIN);
    struct lieni_prov *prov = ep->prov;
    pthread_mutex_unlock(&ep->post_lock); // a shutdown may follow at once: ep is not ours any more
    if (rc == 0)
        return 0;
    if (again)
        return LIEN_EAGAIN;
    int code = lieni_ofi_fail(prov, LIEN_LOG_WARN, what, rc);
    // EAGAIN, EBUSY and EINVAL would invite another try; the endpoint is broken.
    return code == LIEN_EINVAL || code == LIEN_EBUSY || code == LIEN_EAGAIN ? LIEN_EIO : code;
}

// The op_context is the number itself: never followed, here or in libfabric.
static void *as_context(uint64_t context)
{
    return (void *)(uintptr_t)context; // NOLINT(performance-no-int-to-ptr)
}

int lieni_ofi_post_send(struct lieni_ep *ep, const void *buf, size_t len, struct lieni_mr *mr,
                        uint64_t context)
{
    int code = post_begin(ep);
    if (code != 0)
        return code;
    ssize_t rc = fi_send(ep->ep, buf, len, lieni_ofi_desc(mr), 0, as_context(context));
    return post_end(ep, "fi_send", rc);
}

int lieni_ofi_post_recv(struct lieni_ep *ep, void *buf, size_t len, struct lieni_mr *mr,
                        uint64_t context)
{
    int code = post_begin(ep);
    if (code != 0)
        return code;
    ssize_t rc = fi_recv(ep->ep, buf, len, lieni_ofi_desc(mr), 0, as_context(context));
    return post_end(ep, "fi_recv", rc);
}

int lieni_ofi_post_read(struct lieni_ep *ep, void *dst, size_t len, struct lieni_mr *mr,
                        uint64_t remote_addr, uint64_t remote_key, uint64_t context)
{
    if (len > ep->domain->limits.read_piece_max)
        return LIEN_EMSGSIZE;
    int code = post_begin(ep);
    if (code != 0)
        return code;
    ssize_t rc = fi_read(ep->ep, dst, len, lieni_ofi_desc(mr), 0, remote_addr, remote_key,
                         as_context(context));
    return post_end(ep, "fi_read", rc);
}

// -- The end -----------------------------------------------------------------------------------------------------------------------

void lieni_ofi_ep_shutdown(struct lieni_ep *ep)
{
    pthread_mutex_lock(&ep->post_lock);
    pthread_mutex_lock(&ep->cq_lock);
    enum lieni_ofi_ep_state was = ep->state;
    if (was != LIENI_OFI_CLOSING)
        lieni_ofi_ep_enter(ep, LIENI_OFI_CLOSING);
    pthread_mutex_unlock(&ep->cq_lock);
    pthread_mutex_unlock(&ep->post_lock);
    switch (was) {
    case LIENI_OFI_HALF:
        lieni_ofi_cm_cancel(ep);
        break;
    case LIENI_OFI_UP:
    case LIENI_OFI_DOWN:
        fi_shutdown(ep->ep, 0); // its result says nothing: the end is fi_close
        lieni_ofi_touch(ep);    // the entries it made
        break;
    case LIENI_OFI_FAILED:
    case LIENI_OFI_CLOSING:
        break;
    }
}

void lieni_ofi_learn(struct lieni_ep *ep)
{
    const struct lieni_ofi_device_ops *ops = ep->prov->ofi->device;
    struct sockaddr_storage own = {0}, peer = {0};
    size_t own_len = sizeof own, peer_len = sizeof peer;
    if (!ops)
        return;
    struct lieni_ofi_name name = {0};
    if (fi_getname(&ep->ep->fid, &own, &own_len) != 0 ||
        fi_getpeer(ep->ep, &peer, &peer_len) != 0 ||
        !ops->learn(ep->domain->device, (struct sockaddr *)&own, (struct sockaddr *)&peer, &name))
        return; // down again already: as it was made
    if (ep->name.number != 0 && ep->name.number != name.number)
        name = (struct lieni_ofi_name){0};
    ep->name = name;
}

// Whether there is an endpoint whose end can be proved. Before fi_close.
static bool provable(struct lieni_ep *ep)
{
    const struct lieni_ofi *ofi = ep->prov->ofi;
    if (!ofi->traits->ep_end_proves)
        return false;
    return !ofi->device || ofi->device->there(ep->domain->device, &ep->name);
}

// Whether the endpoint that was just closed is gone.
static bool proved(struct lieni_ep *ep)
{
    const struct lieni_ofi *ofi = ep->prov->ofi;
    return !ofi->device || ofi->device->gone(ep->domain->device, &ep->name);
}

enum lieni_proof lieni_ofi_close_fids(struct lieni_ep *ep, uint64_t *late)
{
    struct lieni_prov *prov = ep->prov;
    struct fid_ep *fid = ep->ep;
    // No endpoint was made, or none that takes posts: there is nothing to prove.
    bool posted = fid && ep->enabled, may = posted && provable(ep);
    int rc = fid ? fi_close(&fid->fid) : 0;
    if (rc != 0 || (posted && !(may && proved(ep))))
        ep->unproven = true;
    ep->name = (struct lieni_ofi_name){0}; // the next try has another
    ep->enabled = false;
    ep->ep = NULL;
    if (ep->cq)
        *late += lieni_ofi_drain(ep);
    if (rc != 0) {
        // A second fi_close could close a stranger's descriptor (libfabric-facts 1.2): it and its queues stay.
        lieni_ofi_fail(prov, LIEN_LOG_WARN, "fi_close(endpoint), left behind", rc);
        ep->cq = NULL;
        ep->eq = NULL;
    }
    if (ep->cq && (rc = fi_close(&ep->cq->fid)) != 0)
        lieni_ofi_fail(prov, LIEN_LOG_WARN, "fi_close(completion queue), left behind", rc);
    if (ep->eq && (rc = fi_close(&ep->eq->fid)) != 0)
        lieni_ofi_fail(prov, LIEN_LOG_WARN, "fi_close(event queue), left behind", rc);
    ep->cq = NULL;
    ep->eq = NULL;
    return ep->unproven ? LIENI_UNKNOWN : LIENI_PROVEN;
}

int lieni_ofi_ep_destroy(struct lieni_ep *ep, enum lieni_proof *proof, uint64_t *late)
{
    struct lieni_prov *prov = ep->prov;
    pthread_mutex_lock(&ep->post_lock);
    bool closing = ep->state == LIENI_OFI_CLOSING;
    pthread_mutex_unlock(&ep->post_lock);
    if (!closing)
        return LIEN_ESTATE;
    if (!lieni_ofi_cm_over(ep))
        return LIEN_EBUSY;
    lieni_ofi_forget(ep);
    uint64_t count = 0;
    enum lieni_proof shown = lieni_ofi_close_fids(ep, &count);
    close_pep(ep);
    pthread_mutex_lock(&prov->lock);
    TAILQ_REMOVE(&ep->domain->eps, ep, link);
    ep->domain->n_eps--;
    pthread_mutex_unlock(&prov->lock);
    free_ep(ep);
    *proof = shown;
    *late = count;
    return 0;
}
