// SPDX-License-Identifier: Apache-2.0
//
// From listen or connect to UP. Each socket passes the stages of its lane: connected, TLS, the carrier's opening, the peer's HELLO. The client says HELLO first; the server compares it in constant
// time and answers with its own only then, so a stranger learns nothing. A stranger's socket is closed and the waiting goes on: at most 8 may be on their way at once, a ninth closes the
// oldest, so silent ones keep nobody out. There is no deadline here but core's.

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/fabric_port.h"
#include "provider/stream/stream.h"

// Bytes that may wait unsent in the kernel: enough to keep a link busy, few enough for messages not to wait long behind them (R19).
#define NOT_SENT_MAX (256 << 10)

#define ACCEPTS_A_TURN 16u

// -- Lanes ---------------------------------------------------------------------------------------------------------------------------

static void socket_options(int fd)
{
    int on = 1, low = NOT_SENT_MAX;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &low, sizeof low);
}

// Takes over `fd`, also when it fails. `error`: its connect failed. Watching comes last: from then on the progress context may see the lane, and end it.
int lieni_lane_new(struct lieni_ep *ep, int fd, bool server, int error)
{
    struct lieni_lane *lane = calloc(1, sizeof *lane);
    if (!lane) {
        close(fd);
        return LIEN_ENOMEM;
    }
    lane->watch.kind = LIENI_WATCH_LANE;
    lane->ep = ep;
    lane->server = server;
    lane->stage = server ? LIENI_LANE_SECURING : LIENI_LANE_CONNECTING;
    lane->pipe = (struct lieni_pipe){.fd = fd, .error = error};
    socket_options(fd);
    TAILQ_INSERT_TAIL(&ep->lanes, lane, link);
    ep->n_lanes++;
    int code = ep->prov->kind->tls ? lieni_tls_end_open(lane) : 0;
    if (code == 0)
        code = ep->prov->kind->carrier->open(lane);
    if (code == 0)
        code = lieni_stream_watch(ep->prov, fd, &lane->watch);
    if (code != 0)
        lieni_lane_close(lane);
    return code;
}

void lieni_lane_close(struct lieni_lane *lane)
{
    struct lieni_ep *ep = lane->ep;
    if (lane->carried)
        ep->prov->kind->carrier->close(lane);
    lieni_tls_end_close(&lane->pipe);
    epoll_ctl(ep->prov->epfd, EPOLL_CTL_DEL, lane->pipe.fd, NULL);
    close(lane->pipe.fd);
    TAILQ_REMOVE(&ep->lanes, lane, link);
    ep->n_lanes--;
    if (ep->lane == lane)
        ep->lane = NULL;
    free(lane);
}

int64_t lieni_lane_read(struct lieni_lane *lane, void *buf, size_t len)
{
    const struct lieni_carrier *carrier = lane->ep->prov->kind->carrier;
    if (lane->in_at == lane->in_len) {
        if (len >= sizeof lane->in)
            return carrier->read(lane, buf, len);
        int64_t rc = carrier->read(lane, lane->in, sizeof lane->in);
        if (rc < 0)
            return rc;
        lane->in_at = 0;
        lane->in_len = (size_t)rc;
    }
    size_t n = lane->in_len - lane->in_at;
    if (n > len)
        n = len;
    memcpy(buf, lane->in + lane->in_at, n);
    lane->in_at += n;
    return (int64_t)n;
}

// -- Addresses -----------------------------------------------------------------------------------------------------------------------

static int resolve(struct lieni_prov *prov, const char *host, uint16_t port,
                   struct sockaddr_storage *addr, socklen_t *len)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc != 0)
        return lieni_stream_say(prov, LIEN_LOG_ERROR, LIEN_EADDR, "'%s' is no numeric address: %s",
                                host, gai_strerror(rc));
    memcpy(addr, list->ai_addr, list->ai_addrlen);
    *len = list->ai_addrlen;
    freeaddrinfo(list);
    if (addr->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)addr)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)addr)->sin_port = htons(port);
    return 0;
}

// -- Listening -----------------------------------------------------------------------------------------------------------------------

void lieni_stream_close_listener(struct lieni_ep *ep)
{
    if (ep->listen_fd < 0)
        return;
    epoll_ctl(ep->prov->epfd, EPOLL_CTL_DEL, ep->listen_fd, NULL);
    close(ep->listen_fd);
    ep->listen_fd = -1;
}

int lieni_stream_listen(struct lieni_domain *domain, const struct lieni_ep_args *args,
                        struct lieni_ep **out, uint16_t *port)
{
    struct lieni_prov *prov = domain->prov;
    if (prov->tls && !lieni_tls_serves(prov->tls))
        return lieni_stream_say(
            prov, LIEN_LOG_ERROR, LIEN_EOPTION,
            "a server needs the options tls_cert and tls_key (files), which are not set");
    struct lieni_ep *ep;
    int code = lieni_stream_ep_new(domain, args, true, &ep);
    if (code != 0)
        return code;
    struct sockaddr_storage at;
    socklen_t len;
    uint16_t bound = 0;
    int fd = -EINVAL;
    if (resolve(prov, args->host, 0, &at, &len) == 0) // else it said why
        fd = lieni_fabric_port_listen(prov->env, &at, args->port_lo, args->port_hi,
                                      (int)LIENI_STREAM_LANES, &bound);
    if (fd < 0) {
        char hint[LIENI_LIMITS_NOTE];
        code = lieni_stream_say(
            prov, LIEN_LOG_ERROR, lieni_limits_short(-fd) ? LIEN_ESYS : LIEN_EADDR,
            "cannot listen at '%s', fabric ports %u-%u: %s%s", args->host, args->port_lo,
            args->port_hi, strerror(-fd), lieni_limits_note(-fd, hint, sizeof hint));
        lieni_stream_ep_free(ep);
        return code;
    }
    ep->listen_fd = fd;
    ep->watch.kind = LIENI_WATCH_LISTEN;
    snprintf(ep->peer, sizeof ep->peer, "listener %.64s port %u", args->host, bound);
    code = lieni_stream_watch(prov, fd, &ep->watch);
    if (code != 0) {
        lieni_stream_close_listener(ep);
        lieni_stream_ep_free(ep);
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
                lieni_stream_say(ep->prov, LIEN_LOG_ERROR, LIEN_ESYS,
                                 "%s: accepting a connection: %s%s", ep->peer, strerror(error),
                                 lieni_limits_note(error, hint, sizeof hint));
            }
            ep->can_accept = error == ECONNABORTED || error == EINTR;
            continue;
        }
        if (ep->n_lanes == LIENI_STREAM_LANES) {
            lieni_stream_say(ep->prov, LIEN_LOG_INFO, LIEN_ELIMIT,
                             "%s: a ninth socket; the oldest that did not show itself is closed",
                             ep->peer);
            lieni_lane_close(TAILQ_FIRST(&ep->lanes));
        }
        lieni_lane_new(ep, fd, true, 0); // else it said why
    }
    if (ep->can_accept)
        lieni_stream_touch(ep);
}

// -- Connecting ----------------------------------------------------------------------------------------------------------------------

int lieni_stream_connect(struct lieni_domain *domain, const struct lieni_ep_args *args,
                         struct lieni_ep **out)
{
    struct lieni_prov *prov = domain->prov;
    struct sockaddr_storage addr;
    socklen_t len = 0;
    int code = resolve(prov, args->host, args->port, &addr, &len);
    if (code != 0)
        return code;
    int fd = socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        char hint[LIENI_LIMITS_NOTE];
        int error = errno;
        return lieni_stream_say(prov, LIEN_LOG_ERROR, LIEN_ESYS, "making a socket: %s%s",
                                strerror(error), lieni_limits_note(error, hint, sizeof hint));
    }
    // An error shows as an event, as one that comes later does.
    int rc = connect(fd, (struct sockaddr *)&addr, len);
    int error = rc == 0 || errno == EINPROGRESS ? 0 : errno;
    struct lieni_ep *ep;
    code = lieni_stream_ep_new(domain, args, false, &ep);
    if (code != 0) {
        close(fd);
        return code;
    }
    code = lieni_lane_new(ep, fd, false,
                          error); // epoll reports it at once, or once it is connected
    if (code != 0)
        lieni_stream_ep_free(ep);
    else
        *out = ep;
    return code;
}

static int connected(struct lieni_lane *lane)
{
    int error = lane->pipe.error;
    socklen_t len = sizeof error;
    if (error == 0 && getsockopt(lane->pipe.fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    struct sockaddr_storage peer;
    len = sizeof peer;
    if (error == 0 && getpeername(lane->pipe.fd, (struct sockaddr *)&peer, &len) != 0) {
        if (errno == ENOTCONN && !lane->pipe.can_write)
            return LIEN_EAGAIN;
        error = errno;
        if (error == ENOTCONN) { // the event came before the connection
            lane->pipe.can_write = false;
            return LIEN_EAGAIN;
        }
    }
    if (error == 0)
        return 0;
    lane->pipe.error = error;
    snprintf(lane->why, sizeof lane->why, "%s", strerror(error));
    return error == ECONNREFUSED ? LIEN_EREFUSED : LIEN_EIO;
}

// -- HELLO ---------------------------------------------------------------------------------------------------------------------------

// The client's HELLO is on its way while the server's is awaited.
static int write_hello(struct lieni_lane *lane)
{
    struct lieni_ep *ep = lane->ep;
    size_t bytes = 0;
    int status = 0;
    struct lieni_cqe cqe;
    while (ep->out.state != LIENI_OUT_IDLE) {
        enum lieni_step step = lieni_stream_out(ep, &cqe, &bytes, &status);
        if (step != LIENI_STEP_MORE)
            return step == LIENI_STEP_DOWN ? status : LIEN_EAGAIN;
    }
    return 0;
}

static int bad_hello(struct lieni_lane *lane, const char *why)
{
    snprintf(lane->why, sizeof lane->why, "%s", why);
    return LIEN_EPROTO;
}

static int judge_hello(struct lieni_lane *lane)
{
    struct lieni_ep *ep = lane->ep;
    const uint8_t *hello = lane->hello;
    uint8_t head[LIENI_STREAM_HEAD];
    uint32_t recvs = lieni_get32(hello + 8);
    lieni_stream_head(head, LIENI_STREAM_HELLO, LIENI_CM_DATA, recvs);
    if (memcmp(head, hello, sizeof head) != 0)
        return bad_hello(lane, "the first frame is no HELLO of this version");
    if (recvs > LIENI_STREAM_RECVS)
        return bad_hello(lane, "the HELLO tells of more than 1048576 receives");
    if (sodium_memcmp(hello + LIENI_STREAM_HEAD, ep->expect_data, LIENI_CM_DATA) != 0) {
        bad_hello(lane, "the private data is not that of the bootstrap");
        return LIEN_EAUTH;
    }
    ep->peer_recvs = recvs;
    return 0;
}

static int read_hello(struct lieni_lane *lane)
{
    // Its kind shows in the first byte: a stranger is not waited for.
    while (lane->hello_len < sizeof lane->hello) {
        int64_t rc = lieni_lane_read(lane, lane->hello + lane->hello_len,
                                     sizeof lane->hello - lane->hello_len);
        if (rc < 0)
            return (int)rc;
        lane->hello_len += (size_t)rc;
        if (lane->hello[0] != LIENI_STREAM_HELLO)
            return bad_hello(lane, "the first frame is no HELLO");
    }
    return judge_hello(lane);
}

// -- Stages --------------------------------------------------------------------------------------------------------------------------

static int opened(struct lieni_lane *lane)
{
    int rc = lane->ep->prov->kind->carrier->ready(lane);
    if (rc != 0)
        return rc;
    if (!lane->server) {
        lane->ep->lane = lane; // whose out.* it uses from now on
        lieni_stream_hello(lane->ep);
    }
    return 0;
}

static int hello_stage(struct lieni_lane *lane)
{
    if (!lane->server) {
        int rc = write_hello(lane);
        if (rc != 0 && rc != LIEN_EAGAIN)
            return rc;
        rc = read_hello(lane);
        return rc == LIEN_ECLOSED ? LIEN_EREFUSED : rc;
    }
    return read_hello(lane);
}

// 0: it is the endpoint's peer. LIEN_EAGAIN: not yet. Else it is not.
static int advance(struct lieni_lane *lane)
{
    for (;;) {
        int rc = 0;
        switch (lane->stage) {
        case LIENI_LANE_CONNECTING:
            rc = connected(lane);
            break;
        case LIENI_LANE_SECURING:
            rc = lane->pipe.tls ? lieni_tls_ready(lane) : 0;
            break;
        case LIENI_LANE_OPENING:
            rc = opened(lane);
            break;
        case LIENI_LANE_HELLO:
            rc = hello_stage(lane);
            break;
        case LIENI_LANE_TAKEN:
            return 0;
        }
        if (rc != 0)
            return rc;
        lane->stage = (enum lieni_lane_stage)(lane->stage + 1);
    }
}

static void explain(struct lieni_lane *lane, lien_level level, int code)
{
    static const char *const at[] = {"connecting", "TLS", "the carrier's opening",
                                     "the private data", ""};
    const char *why = lane->why[0] ? lane->why : lien_strerror(code);
    lieni_stream_say(lane->ep->prov, level, code, "%s: %s: %s", lane->ep->peer, at[lane->stage],
                     why);
}

static void taken(struct lieni_lane *lane)
{
    struct lieni_ep *ep = lane->ep;
    struct lieni_lane *other, *next;
    for (other = TAILQ_FIRST(&ep->lanes); other; other = next) {
        next = TAILQ_NEXT(other, link);
        if (other != lane)
            lieni_lane_close(other);
    }
    lieni_stream_close_listener(ep);
    if (lane->server) {
        ep->lane = lane;
        lieni_stream_hello(ep);
    }
}

static struct lieni_event told(struct lieni_ep *ep, enum lieni_stream_state state, int status,
                               int error)
{
    pthread_mutex_lock(&ep->lock);
    lieni_stream_enter(ep, state);
    pthread_mutex_unlock(&ep->lock);
    return (struct lieni_event){.kind = state == LIENI_STREAM_UP ? LIENI_EV_UP : LIENI_EV_FAILED,
                                .user = ep->user,
                                .status = status,
                                .provider_error = error};
}

bool lieni_stream_opening(struct lieni_ep *ep, struct lieni_event *event)
{
    if (ep->server && ep->can_accept)
        accept_some(ep);
    struct lieni_lane *lane, *next;
    for (lane = TAILQ_FIRST(&ep->lanes); lane; lane = next) {
        next = TAILQ_NEXT(lane, link);
        int rc = advance(lane);
        if (rc == LIEN_EAGAIN) {
            if (lane->again)
                lieni_stream_touch(ep);
            lane->again = false;
            continue;
        }
        if (rc == 0) {
            taken(lane);
            *event = told(ep, LIENI_STREAM_UP, 0, 0);
            return true;
        }
        bool refused = rc == LIEN_EAUTH && lane->stage == LIENI_LANE_SECURING; // by a client
        explain(lane, ep->server && !refused ? LIEN_LOG_INFO : LIEN_LOG_WARN, rc);
        int error = lane->pipe.error;
        if (ep->server) {
            lieni_lane_close(lane);
            continue;
        }
        lieni_lane_close(lane);
        lieni_stream_out_drop(ep);
        *event = told(ep, LIENI_STREAM_FAILED, rc, error);
        return true;
    }
    return false;
}
