// SPDX-License-Identifier: Apache-2.0
//
// Connection management of one half-open endpoint, in a short-lived thread of its own: libfabric may block in it for as long as a peer likes (a half-sent request blocks
// fi_eq_read or fi_trywait, which reads as well) [R18]. The thread owns the endpoint's libfabric objects until it sets `over` under prov->lock, together with its result; it then touches nothing any more.
// It ends at once when canceled, unless libfabric holds it. It posts receives only while it is not canceled, and before it accepts or connects.

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "provider/bootstrap.h"
#include "provider/ofi/ofi.h"

// Bytes of private data that any provider may hand us.
#define DATA_MAX 256
// Tries to connect, and the pause after the first that failed; it doubles.
#define DIALS_MAX 4
#define REDIAL_MS 10
// fi_trywait may say "read again" a few times in a row; past this many, pause.
#define TRYWAIT_MAX 16

// An event as libfabric writes it: struct fi_eq_cm_entry, whose private data runs on. Read by copying.
struct cm_event {
    _Alignas(struct fi_eq_cm_entry) uint8_t bytes[sizeof(struct fi_eq_cm_entry) + DATA_MAX];
};

static const uint8_t *event_data(const struct cm_event *event)
{
    return event->bytes + offsetof(struct fi_eq_cm_entry, data);
}

static struct fi_info *event_info(const struct cm_event *event)
{
    struct fi_info *info;
    memcpy(&info, event->bytes + offsetof(struct fi_eq_cm_entry, info), sizeof info);
    return info;
}

static bool canceled(struct lieni_ep *ep)
{
    return atomic_load_explicit(&ep->cm.cancel, memory_order_acquire);
}

// Whether the private data is what the bootstrap says. In constant time.
static bool expected(const struct lieni_ep *ep, const struct cm_event *event, int64_t len)
{
    return len >= LIENI_CM_DATA &&
           sodium_memcmp(event_data(event), ep->cm.expect_data, LIENI_CM_DATA) == 0;
}

static int failed(struct lieni_ep *ep, const char *what, ssize_t rc)
{
    ep->cm.provider_error = (int)(rc < 0 ? -rc : rc);
    int code = lieni_ofi_code(ep->cm.provider_error);
    char hint[LIENI_LIMITS_NOTE];
    lieni_ofi_say(ep->prov, LIEN_LOG_WARN, code, "%s: %s: %s (%d)%s", ep->cm.peer, what,
                  fi_strerror(ep->cm.provider_error), ep->cm.provider_error,
                  lieni_limits_starved(hint, sizeof hint));
    return code == LIEN_EAGAIN || code == LIEN_EBUSY ? LIEN_EIO : code;
}

// -- Waiting for an event ----------------------------------------------------------------------------------------------------------

static void sleep_on(struct lieni_ep *ep, int fd, bool ready, unsigned tries)
{
    struct pollfd fds[2] = {{.fd = ep->cm.wakefd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    if (ready)
        poll(fds, 2, -1);
    else if (tries > TRYWAIT_MAX)
        poll(fds, 1, 1);
}

// The next event of `eq`: its bytes of private data, LIEN_ECANCELED, or a negative libfabric error in *error with LIEN_EIO.
static int64_t next_event(struct lieni_ep *ep, struct fid_eq *eq, uint32_t *kind,
                          struct cm_event *event, int *error)
{
    const ssize_t head = offsetof(struct fi_eq_cm_entry, data);
    int fd = -1;
    int rc = fi_control(&eq->fid, FI_GETWAIT, &fd);
    if (rc != 0) {
        *error = rc;
        return LIEN_EIO;
    }
    lieni_ofi_cloexec(fd);
    struct fid *fids[1] = {&eq->fid};
    for (unsigned tries = 0;;) {
        if (canceled(ep))
            return LIEN_ECANCELED;
        ssize_t got = fi_eq_read(eq, kind, event, sizeof *event, 0);
        if (got >= 0)
            return got > head ? got - head : 0;
        if (got == -FI_EAVAIL) {
            struct fi_eq_err_entry entry = {0};
            got = fi_eq_readerr(eq, &entry, 0);
            if (got == -FI_EAGAIN)
                continue;
            *error = got < 0 ? (int)got : -(entry.err ? entry.err : FI_EOTHER);
            return LIEN_EIO;
        }
        if (got != -FI_EAGAIN && got != -FI_EINTR) {
            *error = (int)got;
            return LIEN_EIO;
        }
        bool ready = fi_trywait(ep->domain->fabric, fids, 1) == 0;
        tries = ready ? 0 : tries + 1;
        sleep_on(ep, fd, ready, tries);
    }
}

// -- Making the endpoint -----------------------------------------------------------------------------------------------------------

static int create(struct lieni_ep *ep, struct fi_info *info)
{
    struct lieni_domain *domain = ep->domain;
    struct fi_eq_attr eq_attr = {.size = 16, .wait_obj = FI_WAIT_FD};
    struct fi_cq_attr cq_attr = {.size = ep->posts_max < 16 ? 16 : ep->posts_max,
                                 .format = FI_CQ_FORMAT_MSG,
                                 .wait_obj = FI_WAIT_FD};
    int rc = fi_eq_open(domain->fabric, &eq_attr, &ep->eq, NULL);
    if (rc != 0)
        return failed(ep, "fi_eq_open", rc);
    rc = fi_cq_open(domain->domain, &cq_attr, &ep->cq, NULL);
    if (rc != 0)
        return failed(ep, "fi_cq_open", rc);
    // What providers offer by default (tcp: 256) may be fewer than the credits that were promised.
    if (info->rx_attr->size < ep->cm.n_recvs)
        info->rx_attr->size = ep->cm.n_recvs;
    if (ep->prov->ofi->connected_queues) {
        size_t rest = ep->posts_max - ep->cm.n_recvs;
        info->tx_attr->size = rest > 0 ? rest : 1;
        info->rx_attr->size = ep->cm.n_recvs > 0 ? ep->cm.n_recvs : 1;
    }
    rc = fi_endpoint(domain->domain, info, &ep->ep, NULL);
    if (rc != 0)
        return failed(ep, "fi_endpoint", rc);
    rc = fi_ep_bind(ep->ep, &ep->eq->fid, 0);
    if (rc == 0)
        rc = fi_ep_bind(ep->ep, &ep->cq->fid, FI_TRANSMIT | FI_RECV);
    if (rc == 0)
        rc = fi_enable(ep->ep);
    ep->enabled = rc == 0;
    // Before the first receive: it may never get as far as to be connected.
    const struct lieni_ofi_device_ops *device = ep->prov->ofi->device;
    if (rc == 0 && device)
        device->made(domain->device, &ep->name);
    return rc == 0 ? 0 : failed(ep, "binding the endpoint", rc);
}

static int post_receives(struct lieni_ep *ep)
{
    if (canceled(ep))
        return LIEN_ECANCELED;
    for (size_t i = 0; i < ep->cm.n_recvs; i++) {
        const struct lieni_recv *recv = &ep->cm.recvs[i];
        // NOLINTNEXTLINE(performance-no-int-to-ptr)
        void *context = (void *)(uintptr_t)recv->context;
        ssize_t rc = fi_recv(ep->ep, recv->buf, recv->len, lieni_ofi_desc(recv->mr), 0, context);
        if (rc != 0)
            return failed(ep, "fi_recv", rc);
        atomic_fetch_add_explicit(&ep->outstanding, 1, memory_order_relaxed);
    }
    return 0;
}

// Waits for FI_CONNECTED. The accepting side has compared the peer's data already.
static int await_connected(struct lieni_ep *ep)
{
    struct cm_event event;
    uint32_t kind = 0;
    int error = 0;
    int64_t len = next_event(ep, ep->eq, &kind, &event, &error);
    if (len == LIEN_ECANCELED)
        return LIEN_ECANCELED;
    if (len < 0)
        return failed(ep, "connecting", error);
    if (kind == FI_SHUTDOWN)
        return failed(ep, "connecting", FI_ECONNRESET);
    if (kind != FI_CONNECTED) {
        lieni_ofi_say(ep->prov, LIEN_LOG_WARN, LIEN_EIO, "%s: unexpected event %u", ep->cm.peer,
                      kind);
        return LIEN_EIO;
    }
    if (!ep->cm.server && !expected(ep, &event, len)) {
        lieni_ofi_say(ep->prov, LIEN_LOG_WARN, LIEN_EPROTO,
                      "%s: the peer that accepted is not the one of the bootstrap", ep->cm.peer);
        return LIEN_EPROTO;
    }
    return 0;
}

// -- The two sides -----------------------------------------------------------------------------------------------------------------

static int dial_once(struct lieni_ep *ep)
{
    int code = create(ep, ep->cm.info);
    if (code == 0)
        code = post_receives(ep);
    if (code != 0)
        return code;
    int rc = fi_connect(ep->ep, ep->cm.info->dest_addr, ep->cm.send_data, LIENI_CM_DATA);
    if (rc != 0)
        return failed(ep, "fi_connect", rc);
    return await_connected(ep);
}

// Whether the connection broke before anybody answered. 1.17's listener hangs up on a request whose header comes in two segments, and goes on listening; the error at our end is then
// whatever errno held. A refusal, a timeout and an unreachable peer are answers.
static bool broke(const struct lieni_ep *ep, int code)
{
    switch (ep->cm.provider_error) {
    case FI_EINPROGRESS:
    case FI_EAGAIN:
    case FI_EINTR:
    case FI_EIO:
    case FI_EOTHER:
    case FI_ECONNRESET:
    case FI_ENOTCONN:
    case EPIPE:
        return code != LIEN_ECANCELED && code != LIEN_EPROTO;
    default:
        return false;
    }
}

// Core's connect timer is the deadline. A try's endpoint held the receives: only where its end is proved may the next one have them.
static int dial(struct lieni_ep *ep)
{
    int code = dial_once(ep), first = code, error = ep->cm.provider_error;
    struct pollfd wake = {.fd = ep->cm.wakefd, .events = POLLIN};
    for (int i = 1, ms = REDIAL_MS; i < DIALS_MAX && code != 0 && broke(ep, code); i++, ms *= 2) {
        uint64_t late = 0;
        if (lieni_ofi_close_fids(ep, &late) != LIENI_PROVEN || poll(&wake, 1, ms) > 0)
            break;
        atomic_store_explicit(&ep->outstanding, 0, memory_order_relaxed);
        ep->cm.provider_error = 0;
        code = dial_once(ep);
    }
    if (code != 0 &&
        code != LIEN_ECANCELED) { // the first cause; what follows may be a port closed meanwhile
        ep->cm.provider_error = error;
        code = first;
    }
    return code;
}

static void reject(struct lieni_ep *ep, struct fi_info *stranger)
{
    struct sockaddr_storage addr = {0};
    char name[96] = "an unknown address";
    if (stranger->dest_addr && stranger->dest_addrlen <= sizeof addr) {
        memcpy(&addr, stranger->dest_addr, stranger->dest_addrlen);
        (void)lieni_address_name(&addr, name, sizeof name);
    }
    lieni_ofi_say(ep->prov, LIEN_LOG_WARN, LIEN_EPROTO,
                  "%s: rejected a connection from %s: its private data is not that of the "
                  "bootstrap",
                  ep->cm.peer, name);
    fi_reject(ep->cm.pep, stranger->handle, NULL, 0);
    fi_freeinfo(stranger);
    pthread_mutex_lock(&ep->prov->lock);
    lieni_ofi_wake(ep->prov); // progress writes the log; nothing else may happen for long
    pthread_mutex_unlock(&ep->prov->lock);
}

// Waits for the request of the right peer; rejects others.
static int await_request(struct lieni_ep *ep, struct fi_info **request)
{
    for (;;) {
        struct cm_event event;
        uint32_t kind = 0;
        int error = 0;
        int64_t len = next_event(ep, ep->cm.pep_eq, &kind, &event, &error);
        if (len == LIEN_ECANCELED)
            return LIEN_ECANCELED;
        if (len < 0)
            return failed(ep, "waiting for a connection", error);
        if (kind != FI_CONNREQ)
            continue;
        if (expected(ep, &event, len)) {
            *request = event_info(&event);
            return 0;
        }
        reject(ep, event_info(&event));
    }
}

static int serve(struct lieni_ep *ep)
{
    struct fi_info *request = NULL;
    int code = await_request(ep, &request);
    if (code != 0)
        return code;
    code = create(ep, request);
    if (!ep->ep) // the request was not consumed
        fi_reject(ep->cm.pep, request->handle, NULL, 0);
    fi_freeinfo(request);
    if (code == 0)
        code = post_receives(ep);
    if (code != 0)
        return code;
    int rc = fi_accept(ep->ep, ep->cm.send_data, LIENI_CM_DATA);
    if (rc != 0)
        return failed(ep, "fi_accept", rc);
    code = await_connected(ep);
    if (code != 0)
        return code;
    fi_close(&ep->cm.pep->fid); // the port is used
    fi_close(&ep->cm.pep_eq->fid);
    ep->cm.pep = NULL;
    ep->cm.pep_eq = NULL;
    return 0;
}

// The wait descriptors, for poll.
static int descriptors(struct lieni_ep *ep)
{
    int rc = fi_control(&ep->cq->fid, FI_GETWAIT, &ep->cq_fd);
    if (rc == 0)
        rc = fi_control(&ep->eq->fid, FI_GETWAIT, &ep->eq_fd);
    if (rc != 0) {
        ep->cq_fd = ep->eq_fd = -1;
        return failed(ep, "FI_GETWAIT", rc);
    }
    lieni_ofi_cloexec(ep->cq_fd);
    lieni_ofi_cloexec(ep->eq_fd);
    return 0;
}

// -- The thread --------------------------------------------------------------------------------------------------------------------

static void *run(void *arg)
{
    struct lieni_ep *ep = arg;
    struct lieni_prov *prov = ep->prov;
    int code = ep->cm.server ? serve(ep) : dial(ep);
    if (code == 0)
        lieni_ofi_learn(ep);
    if (code == 0)
        code = descriptors(ep);
    ep->cm.status = code;
    pthread_mutex_lock(&prov->lock);
    ep->cm.over = true;
    ep->cm.handed = true;
    TAILQ_INSERT_TAIL(&prov->handed, ep, cm.link);
    // Still under the lock: whoever joins this thread may then free prov.
    lieni_ofi_wake(prov);
    pthread_mutex_unlock(&prov->lock);
    return NULL;
}

int lieni_ofi_cm_start(struct lieni_ep *ep)
{
    // The host's signals are its own: none is handled on our threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&ep->cm.thread, NULL, run, ep);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        return 0;
    char hint[LIENI_LIMITS_NOTE];
    lieni_ofi_say(ep->prov, LIEN_LOG_ERROR, LIEN_ESYS, "starting the thread that connects: %s%s",
                  strerror(rc), lieni_limits_thread(rc, hint, sizeof hint));
    return LIEN_ESYS;
}

void lieni_ofi_cm_cancel(struct lieni_ep *ep)
{
    atomic_store_explicit(&ep->cm.cancel, true, memory_order_release);
    uint64_t one = 1;
    if (write(ep->cm.wakefd, &one, sizeof one) < 0 && errno != EAGAIN)
        lieni_ofi_fail(ep->prov, LIEN_LOG_ERROR, "waking the thread that connects", errno);
}

bool lieni_ofi_cm_over(struct lieni_ep *ep)
{
    struct lieni_prov *prov = ep->prov;
    pthread_mutex_lock(&prov->lock);
    bool over = ep->cm.over;
    if (over && ep->cm.handed) {
        TAILQ_REMOVE(&prov->handed, ep, cm.link);
        ep->cm.handed = false;
    }
    pthread_mutex_unlock(&prov->lock);
    if (!over || ep->cm.joined)
        return over;
    pthread_join(ep->cm.thread, NULL); // it has only to return
    ep->cm.joined = true;
    close(ep->cm.wakefd);
    ep->cm.wakefd = -1;
    free(ep->cm.recvs);
    ep->cm.recvs = NULL;
    fi_freeinfo(ep->cm.info);
    ep->cm.info = NULL;
    return true;
}
