// SPDX-License-Identifier: Apache-2.0
//
// From listen or connect to UP. On a socket of our own each side says HELLO: private data, the token that messages to it must have, its worker's address. The client says it first; the server compares the
// private data in constant time before it lets UCX see the address, and answers only then, so a stranger learns nothing. The socket is closed, and the sides greet each other over UCX: that is UP.
// At most 8 strangers may be on their way at once, a ninth closes the oldest. There is no deadline here but core's.

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/fabric_port.h"
#include "provider/ucx/ucx.h"

#define ACCEPTS_A_TURN 16u

static const uint8_t magic[8] = {'L', 'I', 'E', 'N', 'U', 'C', 'X', 1};

enum {
    AT_DATA = 8,
    AT_TOKEN = 64,
    AT_LEN = 72
};

// -- Lanes -----------------------------------------------------------------------------------------------------------------------------

static void lane_close(struct lieni_ucx_lane *lane)
{
    struct lieni_ep *ep = lane->ep;
    epoll_ctl(ep->prov->epfd, EPOLL_CTL_DEL, lane->fd, NULL);
    close(lane->fd);
    TAILQ_REMOVE(&ep->lanes, lane, link);
    ep->n_lanes--;
    if (ep->line == lane)
        ep->line = NULL;
    free(lane);
}

// Takes over `fd`, also when it fails.
static int lane_new(struct lieni_ep *ep, int fd, int error)
{
    struct lieni_ucx_lane *lane = calloc(1, sizeof *lane);
    if (!lane) {
        close(fd);
        return LIEN_ENOMEM;
    }
    lane->watch.kind = LIENI_UCX_LANE;
    lane->ep = ep;
    lane->fd = fd;
    lane->error = error;
    lane->connected = ep->server;
    TAILQ_INSERT_TAIL(&ep->lanes, lane, link);
    ep->n_lanes++;
    int code = lieni_ucx_watch(ep->prov, fd, true, &lane->watch);
    if (code != 0)
        lane_close(lane);
    return code;
}

void lieni_ucx_close_lanes(struct lieni_ep *ep, bool line)
{
    struct lieni_ucx_lane *lane, *next;
    for (lane = TAILQ_FIRST(&ep->lanes); lane; lane = next) {
        next = TAILQ_NEXT(lane, link);
        if (line || lane != ep->line)
            lane_close(lane);
    }
    if (ep->listen_fd >= 0) {
        epoll_ctl(ep->prov->epfd, EPOLL_CTL_DEL, ep->listen_fd, NULL);
        close(ep->listen_fd);
    }
    ep->listen_fd = -1;
}

// -- Addresses -------------------------------------------------------------------------------------------------------------------------

static int resolve(struct lieni_prov *prov, const char *host, uint16_t port,
                   struct sockaddr_in *addr)
{
    struct addrinfo hints = {
        .ai_flags = AI_NUMERICHOST, .ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc != 0)
        return lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_EADDR,
                             "'%s' is no numeric IPv4 address: %s", host, gai_strerror(rc));
    memcpy(addr, list->ai_addr, sizeof *addr);
    freeaddrinfo(list);
    addr->sin_port = htons(port);
    return 0;
}

// -- Listening -------------------------------------------------------------------------------------------------------------------------

int lieni_ucx_listen(struct lieni_domain *domain, const struct lieni_ep_args *args,
                     struct lieni_ep **out, uint16_t *port)
{
    struct lieni_prov *prov = domain->prov;
    struct sockaddr_in at;
    struct sockaddr_storage any = {0};
    struct lieni_ep *ep;
    uint16_t bound = 0;
    int code = resolve(prov, args->host, 0, &at);
    if (code == 0)
        code = lieni_ucx_ep_new(domain, args, true, &ep);
    if (code != 0)
        return code;
    memcpy(&any, &at, sizeof at);
    int fd = lieni_fabric_port_listen(prov->env, &any, args->port_lo, args->port_hi,
                                      (int)LIENI_UCX_LANES, &bound);
    if (fd < 0) {
        char hint[LIENI_LIMITS_NOTE];
        code = lieni_ucx_say(prov, LIEN_LOG_ERROR, lieni_limits_short(-fd) ? LIEN_ESYS : LIEN_EADDR,
                             "cannot listen at '%s', fabric ports %u-%u: %s%s", args->host,
                             args->port_lo, args->port_hi, strerror(-fd),
                             lieni_limits_note(-fd, hint, sizeof hint));
        lieni_ucx_ep_free(ep);
        return code;
    }
    ep->listen_fd = fd;
    snprintf(ep->peer, sizeof ep->peer, "listener %.64s port %u", args->host, bound);
    code = lieni_ucx_watch(prov, fd, true, &ep->listen_watch);
    if (code != 0) {
        lieni_ucx_close_lanes(ep, true);
        lieni_ucx_ep_free(ep);
        return code;
    }
    *port = bound;
    *out = ep;
    return 0;
}

static void accept_some(struct lieni_ep *ep)
{
    for (unsigned i = 0; i < ACCEPTS_A_TURN && ep->can_accept; i++) {
        int fd = accept4(ep->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) { // also without descriptors: the next connection tells again
            const int error = errno;
            if (lieni_limits_short(error)) {
                char hint[LIENI_LIMITS_NOTE];
                lieni_ucx_say(ep->prov, LIEN_LOG_ERROR, LIEN_ESYS,
                              "%s: accepting a connection: %s%s", ep->peer, strerror(error),
                              lieni_limits_note(error, hint, sizeof hint));
            }
            ep->can_accept = error == ECONNABORTED || error == EINTR;
            continue;
        }
        if (ep->n_lanes == LIENI_UCX_LANES)
            lane_close(TAILQ_FIRST(&ep->lanes));
        lane_new(ep, fd, 0); // else it said why
    }
    if (ep->can_accept)
        lieni_ucx_touch(ep);
}

// -- Connecting ------------------------------------------------------------------------------------------------------------------------

int lieni_ucx_connect(struct lieni_domain *domain, const struct lieni_ep_args *args,
                      struct lieni_ep **out)
{
    struct lieni_prov *prov = domain->prov;
    struct sockaddr_in addr;
    int code = resolve(prov, args->host, args->port, &addr);
    if (code != 0)
        return code;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        char hint[LIENI_LIMITS_NOTE];
        int error = errno;
        return lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_ESYS, "making a socket: %s%s",
                             strerror(error), lieni_limits_note(error, hint, sizeof hint));
    }
    // An error shows as an event, as one that comes later does.
    int rc = connect(fd, (struct sockaddr *)&addr, sizeof addr);
    int error = rc == 0 || errno == EINPROGRESS ? 0 : errno;
    struct lieni_ep *ep;
    code = lieni_ucx_ep_new(domain, args, false, &ep);
    if (code != 0) {
        close(fd);
        return code;
    }
    code = lane_new(ep, fd, error); // epoll reports it at once, or once it is connected
    if (code != 0)
        lieni_ucx_ep_free(ep);
    else
        *out = ep;
    return code;
}

static int connected(struct lieni_ucx_lane *lane)
{
    int error = lane->error;
    socklen_t len = sizeof error;
    if (error == 0 && getsockopt(lane->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    struct sockaddr_storage peer;
    len = sizeof peer;
    if (error == 0 && getpeername(lane->fd, (struct sockaddr *)&peer, &len) != 0)
        return LIEN_EAGAIN;
    lane->error = error;
    lane->connected = error == 0;
    if (error == 0)
        return 0;
    return error == ECONNREFUSED ? LIEN_EREFUSED : LIEN_EIO;
}

// -- HELLO -----------------------------------------------------------------------------------------------------------------------------

// Makes the worker, and the HELLO with its address.
static int make_hello(struct lieni_ucx_lane *lane)
{
    struct lieni_ep *ep = lane->ep;
    ucp_address_t *address = NULL;
    size_t len = 0;
    int code = lieni_ucx_worker(ep);
    if (code != 0)
        return code;
    ucs_status_t status = lieni_ucx.ucp_worker_get_address(ep->worker, &address, &len);
    if (status == UCS_OK && len <= LIENI_UCX_ADDRESS) {
        memcpy(lane->out, magic, sizeof magic);
        memcpy(lane->out + AT_DATA, ep->send_data, LIENI_CM_DATA);
        lieni_ucx_put64(lane->out + AT_TOKEN, ep->token);
        lieni_ucx_put32(lane->out + AT_LEN, (uint32_t)len);
        memcpy(lane->out + LIENI_UCX_HELLO, address, len);
        lane->out_len = LIENI_UCX_HELLO + len;
    }
    if (status == UCS_OK)
        lieni_ucx.ucp_worker_release_address(ep->worker, address);
    if (lane->out_len > 0)
        return 0;
    return lieni_ucx_say(ep->prov, LIEN_LOG_ERROR, LIEN_EIO,
                         "%s: no worker address of at most %u bytes: %s, %zu bytes", ep->peer,
                         LIENI_UCX_ADDRESS, lieni_ucx.ucs_status_string(status), len);
}

static int write_hello(struct lieni_ucx_lane *lane)
{
    while (lane->out_at < lane->out_len) {
        ssize_t n = send(lane->fd, lane->out + lane->out_at, lane->out_len - lane->out_at,
                         MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            lane->error = errno;
            return errno == EAGAIN ? LIEN_EAGAIN : LIEN_ECLOSED;
        }
        lane->out_at += (size_t)n;
    }
    return 0;
}

// Reads until there are `want` bytes in all.
static int read_hello(struct lieni_ucx_lane *lane, size_t want)
{
    while (lane->got < want) {
        ssize_t n = recv(lane->fd, lane->in + lane->got, want - lane->got, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return LIEN_EAGAIN;
        if (n <= 0)
            return lane->ep->server ? LIEN_ECLOSED : LIEN_EREFUSED;
        size_t more = (size_t)n, known = sizeof magic;
        lane->got += more;
        if (known > lane->got)
            known = lane->got;
        if (memcmp(lane->in, magic, known) != 0) // a stranger is not waited for
            return LIEN_EPROTO;
    }
    return 0;
}

// The peer's HELLO, in whole and right. Only then are its bytes UCX's.
static int judge_hello(struct lieni_ucx_lane *lane)
{
    struct lieni_ep *ep = lane->ep;
    int rc = read_hello(lane, LIENI_UCX_HELLO);
    if (rc != 0)
        return rc;
    if (sodium_memcmp(lane->in + AT_DATA, ep->expect_data, LIENI_CM_DATA) != 0)
        return LIEN_EAUTH;
    uint32_t len = lieni_ucx_get32(lane->in + AT_LEN);
    if (len == 0 || len > LIENI_UCX_ADDRESS)
        return LIEN_EPROTO;
    rc = read_hello(lane, LIENI_UCX_HELLO + len);
    if (rc == 0) {
        ep->peer_token = lieni_ucx_get64(lane->in + AT_TOKEN);
        lane->judged = true;
    }
    return rc;
}

// -- Stages ----------------------------------------------------------------------------------------------------------------------------

// 0: ep->uep is there. LIEN_EAGAIN: not yet. *own: an error that is ours, not the other side's.
static int advance(struct lieni_ucx_lane *lane, bool *own)
{
    struct lieni_ep *ep = lane->ep;
    int rc = lane->connected ? 0 : connected(lane);
    if (rc == 0 && ep->server && !lane->judged)
        rc = judge_hello(lane);
    if (rc != 0)
        return rc;
    *own = true;
    if (!ep->worker)
        rc = make_hello(lane);
    if (rc == 0 && ep->server && !ep->uep)
        rc = lieni_ucx_peer(ep, lane->in + LIENI_UCX_HELLO);
    if (rc != 0)
        return rc;
    *own = ep->server;
    rc = write_hello(lane);
    if (rc == 0 && !ep->server)
        rc = judge_hello(lane);
    if (rc == 0 && !ep->server) {
        *own = true;
        rc = lieni_ucx_peer(ep, lane->in + LIENI_UCX_HELLO);
    }
    return rc;
}

static bool told(struct lieni_ep *ep, struct lieni_event *event, enum lieni_ucx_state state,
                 int status, int error)
{
    pthread_mutex_lock(&ep->lock);
    lieni_ucx_enter(ep, state);
    pthread_mutex_unlock(&ep->lock);
    if (state == LIENI_UCX_FAILED)
        lieni_ucx_quiet(ep);
    *event = (struct lieni_event){.kind = state == LIENI_UCX_UP ? LIENI_EV_UP : LIENI_EV_FAILED,
                                  .user = ep->user,
                                  .status = status,
                                  .provider_error = error};
    return true;
}

static bool greeting(struct lieni_ep *ep, struct lieni_event *event)
{
    if (lieni_ucx_turn(ep))
        lieni_ucx_touch(ep);
    if (ep->broken)
        return told(ep, event, LIENI_UCX_FAILED, ep->broken, ep->broken_error);
    return ep->heard && ep->number_out > 0 && told(ep, event, LIENI_UCX_UP, 0, 0);
}

bool lieni_ucx_opening(struct lieni_ep *ep, struct lieni_event *event)
{
    struct lieni_ucx_lane *lane, *next;
    if (ep->server && ep->can_accept)
        accept_some(ep);
    for (lane = TAILQ_FIRST(&ep->lanes); lane && !ep->line; lane = next) {
        next = TAILQ_NEXT(lane, link);
        if (!lane->ready)
            continue;
        bool own = false;
        int rc = advance(lane, &own);
        if (rc == 0) {
            ep->line = lane;
            lieni_ucx_close_lanes(ep, false);
            break;
        }
        if (rc == LIEN_EAGAIN) {
            lane->ready = false;
            continue;
        }
        int error = lane->error;
        lieni_ucx_say(ep->prov, ep->server && !own ? LIEN_LOG_INFO : LIEN_LOG_WARN, rc,
                      "%s: %s: %s", ep->peer, lane->connected ? "the private data" : "connecting",
                      lane->connected ? lien_strerror(rc) : strerror(error));
        lane_close(lane);
        if (!ep->server || own)
            return told(ep, event, LIENI_UCX_FAILED, rc, error);
    }
    if (!ep->line) { // what comes for UCX before that must not keep us awake
        if (ep->worker && lieni_ucx.ucp_worker_progress(ep->worker) > 0)
            lieni_ucx_touch(ep);
        return false;
    }
    return greeting(ep, event);
}
