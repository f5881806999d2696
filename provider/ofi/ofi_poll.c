// SPDX-License-Identifier: Apache-2.0
//
// Events. prov->epfd watches the wait descriptors of every connected endpoint; the ring holds the endpoints that need serving: reported by epoll, posted to, or not yet put back to sleep
// by fi_trywait. An endpoint that was quiet for a few servings is put to sleep and leaves the ring, so idle ones cost nothing; arm does that for all. The ring turns, so no endpoint
// starves another. All but touch and wake run in the progress context.
//
// An event queue is read when its descriptor was reported, when fi_trywait refused it (which takes that report back), and once at the start: not at every serving. Put to sleep once, it
// sleeps until it is reported or read: an endpoint falls asleep after most messages, and asking its event queue each time would be a system call a message.
//
// Sleep: arm sets prov->armed when the ring is empty; a post that then puts an endpoint on the ring writes wakefd, since fi_trywait was before the post.

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "provider/ofi/ofi.h"

#define EPOLL_BATCH 64
// Entries of one endpoint before the next has its turn.
#define TURN 16u
// Servings without anything before an endpoint is put to sleep: fi_trywait costs a few system calls.
#define QUIET_MAX 4u

// Polls in a row that do not ask epoll, while endpoints on the ring are busy.
#define SKIP_MAX 4u

// -- Ring --------------------------------------------------------------------------------------------------------------------------

void lieni_ofi_wake(struct lieni_prov *prov)
{
    uint64_t one = 1;
    ssize_t rc = write(prov->wakefd, &one, sizeof one);
    (void)rc; // full means readable already
}

static void ring_add(struct lieni_prov *prov, struct lieni_ep *ep)
{
    ep->in_ring = true;
    ep->linked = true;
    TAILQ_INSERT_TAIL(&prov->ring, ep, ring_link);
    prov->ring_size++;
}

static void ring_put(struct lieni_ep *ep)
{
    struct lieni_prov *prov = ep->prov;
    pthread_mutex_lock(&prov->lock);
    if (!ep->linked)
        ring_add(prov, ep);
    pthread_mutex_unlock(&prov->lock);
}

// Takes the next one in hand: off the list, but still `in_ring` for posts.
static struct lieni_ep *ring_take(struct lieni_prov *prov)
{
    pthread_mutex_lock(&prov->lock);
    struct lieni_ep *ep = TAILQ_FIRST(&prov->ring);
    if (ep) {
        TAILQ_REMOVE(&prov->ring, ep, ring_link);
        prov->ring_size--;
        ep->linked = false;
    }
    pthread_mutex_unlock(&prov->lock);
    return ep;
}

// Lets the endpoint in hand go to sleep, unless a post came meanwhile. False: it is back on the ring.
static bool ring_leave(struct lieni_ep *ep)
{
    struct lieni_prov *prov = ep->prov;
    pthread_mutex_lock(&prov->lock);
    bool leave = !atomic_load(&ep->touched);
    if (leave)
        ep->in_ring = false;
    else
        ring_add(prov, ep);
    pthread_mutex_unlock(&prov->lock);
    return leave;
}

void lieni_ofi_touch(struct lieni_ep *ep)
{
    struct lieni_prov *prov = ep->prov;
    atomic_store(&ep->touched, true);
    pthread_mutex_lock(&prov->lock);
    if (!ep->in_ring) {
        ring_add(prov, ep);
        if (prov->armed) {
            prov->armed = false;
            lieni_ofi_wake(prov);
        }
    }
    pthread_mutex_unlock(&prov->lock);
}

void lieni_ofi_forget(struct lieni_ep *ep)
{
    struct lieni_prov *prov = ep->prov;
    pthread_mutex_lock(&prov->lock);
    if (ep->linked) {
        TAILQ_REMOVE(&prov->ring, ep, ring_link);
        prov->ring_size--;
    }
    ep->linked = ep->in_ring = false;
    pthread_mutex_unlock(&prov->lock);
    if (ep->cq_fd >= 0)
        epoll_ctl(prov->epfd, EPOLL_CTL_DEL, ep->cq_fd, NULL);
    if (ep->eq_fd >= 0)
        epoll_ctl(prov->epfd, EPOLL_CTL_DEL, ep->eq_fd, NULL);
    ep->cq_fd = ep->eq_fd = -1;
}

// -- One endpoint ------------------------------------------------------------------------------------------------------------------

static void entry_read(struct lieni_ep *ep)
{
    // Entries that match no post (libfabric-facts 1.1) must not make room that is not there.
    unsigned now = atomic_load_explicit(&ep->outstanding, memory_order_relaxed);
    atomic_store_explicit(&ep->refused_since, 0, memory_order_relaxed);
    while (now > 0 &&
           !atomic_compare_exchange_weak_explicit(&ep->outstanding, &now, now - 1,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

static struct lieni_event entry_event(struct lieni_ep *ep, uint64_t context, int error, size_t len)
{
    if (context != 0)
        entry_read(ep);
    return (struct lieni_event){.kind = LIENI_EV_ENTRY,
                                .user = ep->user,
                                .cqe = {.context = context,
                                        .status = lieni_ofi_code(error),
                                        .provider_error = error,
                                        .len = len}};
}

static void went_down(struct lieni_ep *ep, int error, struct lieni_event *event, unsigned *n)
{
    pthread_mutex_lock(&ep->post_lock);
    bool tell = ep->state == LIENI_OFI_UP;
    if (tell)
        lieni_ofi_ep_enter(ep, LIENI_OFI_DOWN);
    pthread_mutex_unlock(&ep->post_lock);
    if (!tell)
        return;
    *event = (struct lieni_event){.kind = LIENI_EV_DOWN,
                                  .user = ep->user,
                                  .status = error ? lieni_ofi_code(error) : LIEN_ECLOSED,
                                  .provider_error = error};
    *n += 1;
}

// Reads one error entry. 1: read; 0: there was none; negative: the queue is broken.
static int read_error(struct lieni_ep *ep, struct fi_cq_err_entry *entry)
{
    memset(entry, 0, sizeof *entry); // all of it: err_data_size asks for a copy to err_data
    ssize_t rc = fi_cq_readerr(ep->cq, entry, 0);
    if (rc == -FI_EAGAIN)
        return 0;
    return rc < 0 ? (int)rc : 1;
}

static void queue_broke(struct lieni_ep *ep, ssize_t rc)
{
    lieni_ofi_fail(ep->prov, LIEN_LOG_ERROR, "reading a completion queue", rc);
    ep->cq_broken = true; // and no longer watched, or it would wake us for ever
    epoll_ctl(ep->prov->epfd, EPOLL_CTL_DEL, ep->cq_fd, NULL);
}

// Up to `max` entries. *empty: the queue surely had no more.
static unsigned read_queue(struct lieni_ep *ep, struct lieni_event *events, unsigned max,
                           bool *empty)
{
    struct fi_cq_msg_entry entries[TURN];
    unsigned n = 0;
    *empty = false;
    while (n < max && !ep->cq_broken) {
        unsigned room = max - n < TURN ? max - n : TURN;
        ssize_t rc = fi_cq_read(ep->cq, entries, room);
        if (rc > 0) {
            for (ssize_t i = 0; i < rc; i++)
                events[n++] = entry_event(ep, (uintptr_t)entries[i].op_context, 0, entries[i].len);
            if (rc < (ssize_t)room)
                break; // another call would make progress again, to find nothing most often
        } else if (rc == -FI_EAVAIL) {
            struct fi_cq_err_entry entry;
            int got = read_error(ep, &entry);
            if (got > 0)
                events[n++] = entry_event(ep, (uintptr_t)entry.op_context,
                                          entry.err ? entry.err : FI_EOTHER, 0);
            else if (got < 0)
                queue_broke(ep, got);
        } else if (rc == -FI_EAGAIN || rc == 0) {
            *empty = true;
            break;
        } else if (rc != -FI_EINTR) {
            queue_broke(ep, rc);
        }
    }
    if (ep->cq_broken) {
        *empty = true;
        if (n < max)
            went_down(ep, FI_EIO, &events[n], &n);
    }
    return n;
}

// Connection events, into one slot. The peer's shutdown is told when the completion queue was empty once more: a device's connection events overtake the last messages.
static unsigned read_events(struct lieni_ep *ep, struct lieni_event *event)
{
    unsigned n = 0;
    ep->look_eq = ep->eq_sleeps = false;
    while (n == 0) {
        _Alignas(struct fi_eq_cm_entry) uint8_t buffer[sizeof(struct fi_eq_cm_entry) + 256];
        uint32_t kind = 0;
        ssize_t rc = fi_eq_read(ep->eq, &kind, buffer, sizeof buffer, 0);
        if (rc >= 0) {
            ep->shut = ep->shut || kind == FI_SHUTDOWN;
        } else if (rc == -FI_EAVAIL) {
            struct fi_eq_err_entry entry = {0};
            rc = fi_eq_readerr(ep->eq, &entry, 0);
            if (rc < 0 && rc != -FI_EAGAIN)
                break;
            if (rc >= 0)
                went_down(ep, entry.err ? entry.err : FI_EOTHER, event, &n);
        } else {
            break;
        }
    }
    return n;
}

// Tells the end of an endpoint whose device went away, since its queues may never say; or that the peer shut down.
static unsigned tell_end(struct lieni_ep *ep, struct lieni_event *event)
{
    unsigned n = 0;
    int error = ep->device_gone ? FI_ENODEV : 0;
    ep->device_gone = ep->shut = false;
    went_down(ep, error, event, &n);
    return n;
}

// Serves one endpoint: at most `max` events, at least one slot.
static unsigned serve(struct lieni_ep *ep, struct lieni_event *events, unsigned max, bool *empty)
{
    pthread_mutex_lock(&ep->cq_lock);
    unsigned n = read_queue(ep, events, max, empty);
    pthread_mutex_unlock(&ep->cq_lock);
    if (n == max)
        *empty = false;
    else if (ep->device_gone || (ep->shut && *empty))
        n += tell_end(ep, &events[n]);
    else if (ep->look_eq)
        n += read_events(ep, &events[n]);
    return n;
}

// Whether it has an end to tell: it must not sleep before.
static bool ends(const struct lieni_ep *ep)
{
    return ep->device_gone || ep->shut;
}

// 0: both queues are empty and their descriptors will tell. Asked one by one, to know which one refused.
static int try_sleep(struct lieni_ep *ep)
{
    struct fid *eq = &ep->eq->fid, *cq = &ep->cq->fid;
    int rc = ep->eq_sleeps ? 0 : fi_trywait(ep->domain->fabric, &eq, 1);
    if (rc != 0)
        ep->look_eq = true;
    ep->eq_sleeps = rc == 0;
    if (rc == 0 && !ep->cq_broken)
        rc = fi_trywait(ep->domain->fabric, &cq, 1);
    return rc;
}

uint64_t lieni_ofi_drain(struct lieni_ep *ep)
{
    uint64_t n = 0;
    bool empty = ep->cq_broken;
    while (!empty) {
        struct lieni_event events[TURN];
        n += read_queue(ep, events, TURN, &empty);
    }
    return n;
}

// -- Handed over by CM threads -----------------------------------------------------------------------------------------------------

static int watch(struct lieni_prov *prov, struct lieni_ofi_watch *what, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    if (epoll_ctl(prov->epfd, EPOLL_CTL_ADD, fd, &event) == 0)
        return 0;
    lieni_ofi_fail(prov, LIEN_LOG_ERROR, "watching an endpoint", errno);
    return LIEN_ESYS;
}

// Takes a half-open endpoint whose thread is over. False: it was shut down meanwhile and has no event.
static bool take_over(struct lieni_ep *ep, struct lieni_event *event)
{
    lieni_ofi_cm_over(ep);
    pthread_mutex_lock(&ep->post_lock);
    bool half = ep->state == LIENI_OFI_HALF;
    int status = ep->cm.status;
    if (half && status == 0) {
        ep->watch_cq = (struct lieni_ofi_watch){.ep = ep};
        ep->watch_eq = (struct lieni_ofi_watch){.ep = ep, .eq = true};
        ep->look_eq = true;
        status = watch(ep->prov, &ep->watch_cq, ep->cq_fd);
        if (status == 0)
            status = watch(ep->prov, &ep->watch_eq, ep->eq_fd);
    }
    if (half)
        lieni_ofi_ep_enter(ep, status == 0 ? LIENI_OFI_UP : LIENI_OFI_FAILED);
    pthread_mutex_unlock(&ep->post_lock);
    if (!half)
        return false;
    *event = (struct lieni_event){.kind = status == 0 ? LIENI_EV_UP : LIENI_EV_FAILED,
                                  .user = ep->user,
                                  .status = status,
                                  .provider_error = ep->cm.provider_error};
    if (status == 0)
        lieni_ofi_touch(ep); // entries may be there already
    return true;
}

static unsigned take_handed(struct lieni_prov *prov, struct lieni_event *events, unsigned max)
{
    unsigned n = 0;
    while (n < max) {
        pthread_mutex_lock(&prov->lock);
        struct lieni_ep *ep = TAILQ_FIRST(&prov->handed);
        pthread_mutex_unlock(&prov->lock);
        if (!ep)
            break;
        if (take_over(ep, &events[n]))
            n++;
    }
    return n;
}

// -- The interface -----------------------------------------------------------------------------------------------------------------

int lieni_ofi_fd(struct lieni_prov *prov)
{
    return prov->epfd;
}

int lieni_ofi_watch_device(struct lieni_domain *domain)
{
    int fd = domain->prov->ofi->device->fd(domain->device);
    domain->watch = (struct lieni_ofi_watch){.domain = domain};
    int code = watch(domain->prov, &domain->watch, fd);
    if (code == 0)
        domain->device_fd = fd;
    return code;
}

void lieni_ofi_unwatch_device(struct lieni_domain *domain)
{
    if (domain->device_fd >= 0)
        epoll_ctl(domain->prov->epfd, EPOLL_CTL_DEL, domain->device_fd, NULL);
    domain->device_fd = -1;
}

static void look_at_device(struct lieni_domain *domain)
{
    struct lieni_prov *prov = domain->prov;
    if (!prov->ofi->device->look(domain->device))
        return;
    lieni_ofi_unwatch_device(domain); // it has nothing more to say, or would go on saying it
    pthread_mutex_lock(&prov->lock);
    struct lieni_ep *ep;
    TAILQ_FOREACH(ep, &domain->eps, link)
    {
        ep->device_gone = true;
        if (ep->cq_fd >= 0 && ep->cm.over && !ep->linked)
            ring_add(prov, ep);
    }
    pthread_mutex_unlock(&prov->lock);
}

static void collect(struct lieni_prov *prov)
{
    struct epoll_event ready[EPOLL_BATCH];
    int n = epoll_wait(prov->epfd, ready, EPOLL_BATCH, 0);
    for (int i = 0; i < n; i++) {
        const struct lieni_ofi_watch *what = ready[i].data.ptr;
        if (what && what->domain) {
            look_at_device(what->domain);
        } else if (what) {
            what->ep->quiet = 0;
            if (what->eq) {
                what->ep->look_eq = true;
                what->ep->eq_sleeps = false;
            }
            ring_put(what->ep);
        } else {
            uint64_t count;
            ssize_t rc = read(prov->wakefd, &count, sizeof count);
            (void)rc; // only empties it
        }
    }
}

unsigned lieni_ofi_poll(struct lieni_prov *prov, struct lieni_event *events, unsigned max)
{
    pthread_mutex_lock(&prov->lock);
    prov->armed = false;
    unsigned round = prov->ring_size;
    pthread_mutex_unlock(&prov->lock);
    if (round == 0 || prov->skipped++ >= SKIP_MAX) {
        prov->skipped = 0;
        collect(prov);
    }
    unsigned n = take_handed(prov, events, max);

    pthread_mutex_lock(&prov->lock);
    round = prov->ring_size;
    pthread_mutex_unlock(&prov->lock);
    while (round-- > 0 && n < max) {
        struct lieni_ep *ep = ring_take(prov);
        if (!ep)
            break;
        if (atomic_exchange(&ep->touched, false))
            ep->quiet = 0;
        bool empty;
        unsigned got = serve(ep, &events[n], max - n < TURN ? max - n : TURN, &empty);
        n += got;
        ep->quiet = got == 0 && empty ? ep->quiet + 1 : 0;
        if (ends(ep) || ep->quiet < QUIET_MAX || try_sleep(ep) != 0)
            ring_put(ep);
        else
            ring_leave(ep);
    }
    return n;
}

int lieni_ofi_arm(struct lieni_prov *prov)
{
    pthread_mutex_lock(&prov->lock);
    unsigned round = prov->ring_size;
    pthread_mutex_unlock(&prov->lock);
    while (round-- > 0) {
        struct lieni_ep *ep = ring_take(prov);
        if (!ep)
            break;
        if (atomic_load(&ep->touched) || ends(ep) ||
            try_sleep(ep) != 0) { // posted to: entries are likely
            ring_put(ep);
            return LIEN_EAGAIN;
        }
        if (!ring_leave(ep))
            return LIEN_EAGAIN;
    }
    pthread_mutex_lock(&prov->lock);
    bool sleep = TAILQ_EMPTY(&prov->ring) && TAILQ_EMPTY(&prov->handed);
    prov->armed = sleep;
    pthread_mutex_unlock(&prov->lock);
    return sleep ? 0 : LIEN_EAGAIN;
}
