// SPDX-License-Identifier: Apache-2.0
//
// The bootstrap's byte streams over non-blocking sockets. Everything is guarded by net->lock, which is held for short system calls only, so any thread may call anything; none blocks.
//
// Streams are watched edge-triggered for their whole life, so an idle one costs nothing, and one whose reader stopped in the middle wakes nobody but for new bytes. What happened is noted in
// stream->pending and told by poll, in turn; an event noted and not yet told dies with its stream. Acceptors are level-triggered: what one poll does not accept the next one does.

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "provider/bootstrap.h"

#define EPOLL_BATCH  64
#define ACCEPT_BATCH 16u
// Out of descriptors: how long until accepting is tried again.
#define ACCEPT_PAUSE_NS 100000000L
// SYNs sent to an address (1 s, then 2 s apart) while there are others to try.
#define SYNS_WITH_OTHERS 1

enum stream_state {
    RESOLVING,  // awaits its lookup, which getaddrinfo ends
    CONNECTING, // awaits the socket; the kernel ends it, or core's connect timer
    OPEN,       // until stream_close or detach
    DEAD        // could not connect; until stream_close
};

#define TO(state) (1u << (state))

static const uint8_t may_enter[] = {
    [RESOLVING] = TO(CONNECTING) | TO(DEAD),
    [CONNECTING] = TO(CONNECTING) | TO(OPEN) | TO(DEAD),
    [OPEN] = 0,
    [DEAD] = 0,
};

// What poll has to tell of a stream, told in this order.
#define TELL_CONNECTED (1u << 0)
#define TELL_FAILED    (1u << 1)
#define TELL_READABLE  (1u << 2)
#define TELL_WRITABLE  (1u << 3)

enum watch_kind {
    WATCH_WAKE,
    WATCH_TIMER,
    WATCH_ACCEPTOR,
    WATCH_STREAM
};

// What epoll data points to: the first member of whatever is watched.
struct watch {
    enum watch_kind kind;
};

struct lieni_stream {
    struct watch watch;
    struct lieni_net *net;
    void *user;
    int fd;
    enum stream_state state;
    unsigned pending;
    bool noted;      // linked in net->noted
    bool want_write; // a write answered LIEN_EAGAIN since
    int status;      // DEAD
    struct lieni_lookup *lookup;
    struct addrinfo *list; // all addresses
    struct addrinfo *next; // not tried yet
    char name[LIENI_HOST_MAX + 16];
    TAILQ_ENTRY(lieni_stream) link;
};

struct lieni_acceptor {
    struct watch watch;
    struct lieni_net *net;
    void *user;
    int fd;
    bool ready;  // inside poll: epoll reported it
    bool paused; // out of descriptors: not watched until the timer
    TAILQ_ENTRY(lieni_acceptor) link;
};

TAILQ_HEAD(streams, lieni_stream);
TAILQ_HEAD(acceptors, lieni_acceptor);

struct lieni_net {
    pthread_mutex_t lock;
    struct lieni_report report;
    int epfd;
    int wakefd;
    int timerfd;
    bool starved; // out of descriptors was reported
    struct watch wake;
    struct watch timer;
    struct lieni_resolver *resolver;
    struct streams noted;
    struct acceptors acceptors;
};

// -- Small things ------------------------------------------------------------------------------------------------------------------

__attribute__((format(printf, 4, 5))) static int say(struct lieni_net *net, lien_level level,
                                                     int code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    net->report.say(net->report.self, level, code, text);
    return code;
}

// An error of the system, with the limit behind it.
static int say_limit(struct lieni_net *net, const char *what, int error)
{
    char hint[LIENI_LIMITS_NOTE];
    return say(net, LIEN_LOG_ERROR, LIEN_ESYS, "%s: %s%s", what, strerror(error),
               lieni_limits_note(error, hint, sizeof hint));
}

static int watch_fd(struct lieni_net *net, int fd, uint32_t events, struct watch *watch)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return epoll_ctl(net->epfd, EPOLL_CTL_ADD, fd, &event);
}

static void enter(struct lieni_stream *stream, enum stream_state state)
{
    if (!(may_enter[stream->state] & TO(state)))
        abort(); // a bug of this file
    stream->state = state;
}

static void note(struct lieni_stream *stream, unsigned what)
{
    stream->pending |= what;
    if (stream->noted)
        return;
    stream->noted = true;
    TAILQ_INSERT_TAIL(&stream->net->noted, stream, link);
}

// What was noted outside poll must wake it.
static void wake(struct lieni_net *net)
{
    uint64_t one = 1;
    ssize_t rc = write(net->wakefd, &one, sizeof one);
    (void)rc; // full: readable already
}

static int code_of(int error)
{
    switch (error) {
    case ECONNREFUSED:
        return LIEN_EREFUSED;
    case ETIMEDOUT:
        return LIEN_ETIMEDOUT;
    case ECONNRESET: // it was there, and ended before we heard so: the address is not to blame
        return LIEN_ECLOSED;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
        return LIEN_ESYS;
    case ENOMEM:
        return LIEN_ENOMEM;
    default: // system error numbers are an open set
        return LIEN_EADDR;
    }
}

// -- Net ---------------------------------------------------------------------------------------------------------------------------

static void free_net(struct lieni_net *net)
{
    if (net->resolver)
        lieni_resolver_close(net->resolver);
    int fds[] = {net->epfd, net->wakefd, net->timerfd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    pthread_mutex_destroy(&net->lock);
    free(net);
}

static int net_open(const struct lieni_env *env, const struct lieni_report *report, void *world,
                    struct lieni_net **out)
{
    (void)env;
    (void)world;
    struct lieni_net *net = calloc(1, sizeof *net);
    if (!net)
        return LIEN_ENOMEM;
    pthread_mutex_init(&net->lock, NULL);
    net->report = *report;
    net->wake.kind = WATCH_WAKE;
    net->timer.kind = WATCH_TIMER;
    TAILQ_INIT(&net->noted);
    TAILQ_INIT(&net->acceptors);
    net->epfd = epoll_create1(EPOLL_CLOEXEC);
    net->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    net->timerfd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int code = 0;
    if (net->epfd < 0 || net->wakefd < 0 || net->timerfd < 0 ||
        watch_fd(net, net->wakefd, EPOLLIN, &net->wake) != 0 ||
        watch_fd(net, net->timerfd, EPOLLIN, &net->timer) != 0)
        code = say_limit(net, "bootstrap: making descriptors", errno);
    else
        code = lieni_resolver_open(net->wakefd, &net->resolver);
    if (code != 0) {
        free_net(net);
        return code;
    }
    *out = net;
    return 0;
}

static void net_close(struct lieni_net *net)
{
    free_net(net);
}

static int net_fd(struct lieni_net *net)
{
    return net->epfd;
}

static int net_arm(struct lieni_net *net)
{
    pthread_mutex_lock(&net->lock);
    bool sleep = TAILQ_EMPTY(&net->noted);
    pthread_mutex_unlock(&net->lock);
    return sleep ? 0 : LIEN_EAGAIN;
}

// -- Listening ---------------------------------------------------------------------------------------------------------------------

// Accepts on `fd`, which is the acceptor's from a return of 0 on.
static int accept_on(struct lieni_net *net, int fd, const char *text, void *user,
                     struct lieni_acceptor **out)
{
    struct lieni_acceptor *acceptor = calloc(1, sizeof *acceptor);
    int code = 0;
    if (!acceptor)
        return LIEN_ENOMEM;
    acceptor->watch.kind = WATCH_ACCEPTOR;
    acceptor->net = net;
    acceptor->user = user;
    acceptor->fd = fd;
    pthread_mutex_lock(&net->lock);
    if (watch_fd(net, fd, EPOLLIN, &acceptor->watch) != 0)
        code = say(net, LIEN_LOG_ERROR, LIEN_ESYS, "cannot listen at '%s': epoll: %s", text,
                   strerror(errno));
    else
        TAILQ_INSERT_TAIL(&net->acceptors, acceptor, link);
    pthread_mutex_unlock(&net->lock);
    if (code == 0)
        *out = acceptor;
    else
        free(acceptor);
    return code;
}

static int net_listen(struct lieni_net *net, const char *text, void *user,
                      struct lieni_acceptor **out, char *bound, size_t size)
{
    struct lieni_address address;
    int fd = -1;
    int error = 0;
    const char *why = lieni_address_parse(text, &address);
    if (!why)
        why = lieni_address_listen(&address, &fd, &error);
    if (why) {
        char hint[LIENI_LIMITS_NOTE];
        return say(net, LIEN_LOG_ERROR, lieni_limits_short(error) ? LIEN_ESYS : LIEN_EADDR,
                   "cannot listen at '%s': %s%s", text, why,
                   lieni_limits_starved(hint, sizeof hint));
    }
    int code = lieni_address_bound(&address, fd, bound, size);
    if (code == 0)
        code = accept_on(net, fd, text, user, out);
    if (code != 0)
        close(fd);
    return code;
}

static int net_listen_fd(struct lieni_net *net, int fd, void *user, struct lieni_acceptor **out,
                         char *bound, size_t size)
{
    struct lieni_address address = {.host = ""};
    const char *why = lieni_address_inherit(fd);
    if (why)
        return say(net, LIEN_LOG_ERROR, LIEN_EINVAL, "cannot listen on descriptor %d: %s", fd, why);
    int code = lieni_address_bound(&address, fd, bound, size);
    if (code == 0 && (strncmp(bound, "[::]:", 5) == 0 || strncmp(bound, "0.0.0.0:", 8) == 0)) {
        address.host[0] = '*'; // as net_listen() says it
        code = lieni_address_bound(&address, fd, bound, size);
    }
    return code == 0 ? accept_on(net, fd, bound, user, out) : code;
}

static int net_acceptor_fd(struct lieni_acceptor *acceptor, int *fd)
{
    int own = fcntl(acceptor->fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        return say(acceptor->net, LIEN_LOG_ERROR, LIEN_ESYS,
                   "the listening socket cannot be duplicated: %s", strerror(errno));
    *fd = own;
    return 0;
}

static void net_acceptor_close(struct lieni_acceptor *acceptor)
{
    struct lieni_net *net = acceptor->net;
    pthread_mutex_lock(&net->lock);
    TAILQ_REMOVE(&net->acceptors, acceptor, link);
    epoll_ctl(net->epfd, EPOLL_CTL_DEL, acceptor->fd, NULL);
    close(acceptor->fd);
    pthread_mutex_unlock(&net->lock);
    free(acceptor);
}

// -- Streams -----------------------------------------------------------------------------------------------------------------------

static struct lieni_stream *new_stream(struct lieni_net *net, void *user, enum stream_state state)
{
    struct lieni_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->watch.kind = WATCH_STREAM;
    stream->net = net;
    stream->user = user;
    stream->fd = -1;
    stream->state = state;
    return stream;
}

static int watch_stream(struct lieni_stream *stream)
{
    return watch_fd(stream->net, stream->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                    &stream->watch);
}

static void set_options(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void drop_fd(struct lieni_stream *stream)
{
    if (stream->fd < 0)
        return;
    epoll_ctl(stream->net->epfd, EPOLL_CTL_DEL, stream->fd, NULL);
    close(stream->fd);
    stream->fd = -1;
}

static void fail(struct lieni_stream *stream, int code, const char *why)
{
    char hint[LIENI_LIMITS_NOTE];
    lieni_limits_starved(hint, sizeof hint); // while its own is still open
    drop_fd(stream);
    say(stream->net, LIEN_LOG_WARN, code, "cannot connect to '%s': %s%s", stream->name, why, hint);
    stream->status = code;
    enter(stream, DEAD);
    note(stream, TELL_FAILED);
}

static int start(struct lieni_stream *stream, const struct addrinfo *at)
{
    stream->fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (stream->fd < 0)
        return errno;
    set_options(stream->fd);
    int syns = SYNS_WITH_OTHERS;
    if (at->ai_next) // do not spend the whole connect time on this one
        setsockopt(stream->fd, IPPROTO_TCP, TCP_SYNCNT, &syns, sizeof syns);
    if (connect(stream->fd, at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS)
        return errno;
    return watch_stream(stream) == 0 ? 0 : errno;
}

// Tries the addresses that are left, until one may yet answer. `error`: of the one before, or 0.
static void try_next(struct lieni_stream *stream, int error)
{
    enter(stream, CONNECTING);
    while (stream->next) {
        drop_fd(stream);
        const struct addrinfo *at = stream->next;
        stream->next = at->ai_next;
        error = start(stream, at);
        if (error == 0)
            return;
    }
    fail(stream, code_of(error), strerror(error));
}

static void resolved(struct lieni_stream *stream, const struct lieni_resolved *result)
{
    stream->lookup = NULL;
    if (result->error) {
        fail(stream, LIEN_EADDR, result->error);
        return;
    }
    stream->list = stream->next = result->list;
    try_next(stream, EADDRNOTAVAIL);
}

static int net_connect(struct lieni_net *net, const char *text, void *user,
                       struct lieni_stream **out)
{
    struct lieni_address address;
    const char *why = lieni_address_parse(text, &address);
    if (!why && strcmp(address.host, "*") == 0)
        why = "'*' is for listening";
    if (!why && strtoul(address.port, NULL, 10) == 0)
        why = "port 0 is for listening";
    if (why)
        return say(net, LIEN_LOG_ERROR, LIEN_EADDR, "cannot connect to '%s': %s", text, why);
    struct lieni_stream *stream = new_stream(net, user, RESOLVING);
    if (!stream)
        return LIEN_ENOMEM;
    snprintf(stream->name, sizeof stream->name, "%s", text);

    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct lieni_resolved result = {.user = stream};
    int code = 0;
    pthread_mutex_lock(&net->lock);
    if (getaddrinfo(address.host, address.port, &hints, &result.list) == 0) {
        resolved(stream, &result);
        wake(net);
    } else {
        code = lieni_resolver_ask(net->resolver, &address, stream, &stream->lookup);
    }
    pthread_mutex_unlock(&net->lock);
    if (code != 0) {
        char hint[LIENI_LIMITS_NOTE];
        free(stream);
        lieni_limits_thread(code == LIEN_ENOMEM ? ENOMEM : EAGAIN, hint, sizeof hint);
        return say(net, LIEN_LOG_ERROR, code, "cannot connect to '%s': no thread to resolve it%s",
                   text, hint);
    }
    *out = stream;
    return 0;
}

static void net_stream_user(struct lieni_stream *stream, void *user)
{
    pthread_mutex_lock(&stream->net->lock);
    stream->user = user;
    pthread_mutex_unlock(&stream->net->lock);
}

static int64_t moved(ssize_t n, int error)
{
    if (n >= 0)
        return n;
    if (error == EAGAIN || error == EINTR)
        return LIEN_EAGAIN;
    if (error == EPIPE || error == ECONNRESET || error == ENOTCONN)
        return LIEN_ECLOSED;
    return LIEN_EIO;
}

static int64_t net_write(struct lieni_stream *stream, const void *data, size_t len)
{
    int64_t rc = LIEN_EAGAIN;
    pthread_mutex_lock(&stream->net->lock);
    if (stream->state == OPEN) {
        ssize_t n;
        do
            n = send(stream->fd, data, len, MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        rc = moved(n, errno);
    } else if (stream->state == DEAD) {
        rc = LIEN_ECLOSED;
    }
    if (rc == LIEN_EAGAIN)
        stream->want_write = true;
    pthread_mutex_unlock(&stream->net->lock);
    return rc;
}

static int64_t net_read(struct lieni_stream *stream, void *data, size_t len)
{
    if (len == 0)
        return 0;
    int64_t rc = LIEN_EAGAIN;
    pthread_mutex_lock(&stream->net->lock);
    if (stream->state == OPEN) {
        ssize_t n;
        do
            n = recv(stream->fd, data, len, 0);
        while (n < 0 && errno == EINTR);
        rc = n == 0 ? LIEN_ECLOSED : moved(n, errno);
    } else if (stream->state == DEAD) {
        rc = LIEN_ECLOSED;
    }
    pthread_mutex_unlock(&stream->net->lock);
    return rc;
}

typedef int name_fn(int fd, struct sockaddr *addr, socklen_t *len);
typedef int text_fn(const struct sockaddr_storage *addr, char *text, size_t size);

static int describe(struct lieni_stream *stream, name_fn *get, text_fn *format, char *text,
                    size_t size)
{
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof addr;
    pthread_mutex_lock(&stream->net->lock);
    int rc = stream->fd < 0 ? -1 : get(stream->fd, (struct sockaddr *)&addr, &len);
    pthread_mutex_unlock(&stream->net->lock);
    return rc == 0 ? format(&addr, text, size) : LIEN_ECLOSED;
}

// glibc's prototypes take a transparent union.
static int own_name(int fd, struct sockaddr *addr, socklen_t *len)
{
    return getsockname(fd, addr, len);
}

static int their_name(int fd, struct sockaddr *addr, socklen_t *len)
{
    return getpeername(fd, addr, len);
}

static int net_local_host(struct lieni_stream *stream, char *text, size_t size)
{
    return describe(stream, own_name, lieni_address_host, text, size);
}

static int net_peer_host(struct lieni_stream *stream, char *text, size_t size)
{
    return describe(stream, their_name, lieni_address_host, text, size);
}

static int net_peer_name(struct lieni_stream *stream, char *text, size_t size)
{
    return describe(stream, their_name, lieni_address_name, text, size);
}

// Frees the stream and returns its descriptor, no longer watched.
static int take_apart(struct lieni_stream *stream)
{
    struct lieni_net *net = stream->net;
    pthread_mutex_lock(&net->lock);
    if (stream->noted)
        TAILQ_REMOVE(&net->noted, stream, link);
    if (stream->lookup)
        lieni_resolver_forget(net->resolver, stream->lookup);
    int fd = stream->fd;
    if (fd >= 0)
        epoll_ctl(net->epfd, EPOLL_CTL_DEL, fd, NULL);
    pthread_mutex_unlock(&net->lock);
    if (stream->list)
        freeaddrinfo(stream->list);
    free(stream);
    return fd;
}

static int net_detach(struct lieni_stream *stream)
{
    int fd = take_apart(stream);
    int flags = fd < 0 ? -1 : fcntl(fd, F_GETFL);
    if (flags >= 0)
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    return fd;
}

static void net_stream_close(struct lieni_stream *stream)
{
    int fd = take_apart(stream);
    if (fd >= 0)
        close(fd);
}

// -- Events ------------------------------------------------------------------------------------------------------------------------

static void connecting_event(struct lieni_stream *stream, uint32_t events)
{
    if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
        return;
    int error = 0;
    socklen_t len = sizeof error;
    if (getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    struct sockaddr_storage peer;
    socklen_t peer_len = sizeof peer;
    if (error == 0 && getpeername(stream->fd, (struct sockaddr *)&peer, &peer_len) != 0) {
        if (events & EPOLLOUT && !(events & EPOLLHUP))
            return; // not decided yet
        error = errno;
    }
    if (error != 0) {
        try_next(stream, error);
        return;
    }
    enter(stream, OPEN);
    note(stream, TELL_CONNECTED);
    if (events & (EPOLLIN | EPOLLRDHUP))
        note(stream, TELL_READABLE);
    if (stream->want_write) {
        stream->want_write = false;
        note(stream, TELL_WRITABLE);
    }
}

static void stream_event(struct lieni_stream *stream, uint32_t events)
{
    switch (stream->state) {
    case CONNECTING:
        connecting_event(stream, events);
        break;
    case OPEN:
        if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
            note(stream, TELL_READABLE);
        if (stream->want_write && (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))) {
            stream->want_write = false;
            note(stream, TELL_WRITABLE);
        }
        break;
    case RESOLVING: // no descriptor
    case DEAD:
        break;
    }
}

static void pause_accepting(struct lieni_acceptor *acceptor, int error)
{
    struct lieni_net *net = acceptor->net;
    if (!net->starved) {
        char hint[LIENI_LIMITS_NOTE];
        say(net, LIEN_LOG_ERROR, LIEN_ESYS,
            "accepting a connection: %s%s; trying again every %ld ms", strerror(error),
            lieni_limits_note(error, hint, sizeof hint), ACCEPT_PAUSE_NS / 1000000);
    }
    net->starved = true;
    acceptor->paused = true;
    struct epoll_event event = {.events = 0, .data.ptr = &acceptor->watch};
    epoll_ctl(net->epfd, EPOLL_CTL_MOD, acceptor->fd, &event);
    struct itimerspec when = {.it_value.tv_nsec = ACCEPT_PAUSE_NS};
    timerfd_settime(net->timerfd, 0, &when, NULL);
}

static void resume_accepting(struct lieni_net *net)
{
    struct lieni_acceptor *acceptor;
    TAILQ_FOREACH(acceptor, &net->acceptors, link)
    {
        if (!acceptor->paused)
            continue;
        acceptor->paused = false;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &acceptor->watch};
        epoll_ctl(net->epfd, EPOLL_CTL_MOD, acceptor->fd, &event);
    }
}

// The next connection as a stream, or NULL: none now.
static struct lieni_stream *accept_one(struct lieni_acceptor *acceptor)
{
    struct lieni_net *net = acceptor->net;
    int fd = accept4(acceptor->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (lieni_limits_short(errno))
            pause_accepting(acceptor, errno);
        return NULL; // the others concern a connection that is gone, or none was there
    }
    net->starved = false;
    set_options(fd);
    struct lieni_stream *stream = new_stream(net, NULL, OPEN);
    if (!stream) {
        close(fd);
        return NULL;
    }
    stream->fd = fd;
    if (watch_stream(stream) != 0) {
        say(net, LIEN_LOG_ERROR, LIEN_ESYS, "accepting a connection: epoll: %s", strerror(errno));
        drop_fd(stream);
        free(stream);
        return NULL;
    }
    return stream;
}

static unsigned accept_some(struct lieni_net *net, struct lieni_net_event *events, unsigned max)
{
    unsigned n = 0;
    struct lieni_acceptor *acceptor;
    TAILQ_FOREACH(acceptor, &net->acceptors, link)
    {
        if (!acceptor->ready)
            continue;
        acceptor->ready = false;
        for (unsigned i = 0; i < ACCEPT_BATCH && n < max; i++) {
            struct lieni_stream *stream = accept_one(acceptor);
            if (!stream)
                break;
            events[n++] = (struct lieni_net_event){
                .kind = LIENI_NET_ACCEPTED, .user = acceptor->user, .stream = stream};
        }
    }
    return n;
}

static void take_resolved(struct lieni_net *net)
{
    uint64_t count;
    ssize_t rc = read(net->wakefd, &count, sizeof count);
    (void)rc; // only empties it
    struct lieni_resolved result;
    while (lieni_resolver_take(net->resolver, &result))
        resolved(result.user, &result);
}

static void collect(struct lieni_net *net)
{
    struct epoll_event ready[EPOLL_BATCH];
    int n = epoll_wait(net->epfd, ready, EPOLL_BATCH, 0);
    for (int i = 0; i < n; i++) {
        struct watch *watch = ready[i].data.ptr;
        switch (watch->kind) {
        case WATCH_WAKE:
            take_resolved(net);
            break;
        case WATCH_TIMER: {
            uint64_t count;
            ssize_t rc = read(net->timerfd, &count, sizeof count);
            (void)rc;
            resume_accepting(net);
            break;
        }
        case WATCH_ACCEPTOR:
            ((struct lieni_acceptor *)watch)->ready = true;
            break;
        case WATCH_STREAM:
            stream_event((struct lieni_stream *)watch, ready[i].events);
            break;
        }
    }
}

// One event of the stream; the bit of it is cleared.
static struct lieni_net_event tell(struct lieni_stream *stream)
{
    static const struct {
        unsigned bit;
        enum lieni_net_kind kind;
    } order[] = {{TELL_CONNECTED, LIENI_NET_CONNECTED},
                 {TELL_FAILED, LIENI_NET_FAILED},
                 {TELL_READABLE, LIENI_NET_READABLE},
                 {TELL_WRITABLE, LIENI_NET_WRITABLE}};
    size_t i = 0;
    while (!(stream->pending & order[i].bit))
        i++; // a noted stream has a bit set
    stream->pending &= ~order[i].bit;
    return (struct lieni_net_event){
        .kind = order[i].kind, .user = stream->user, .status = stream->status};
}

static unsigned net_poll(struct lieni_net *net, struct lieni_net_event *events, unsigned max)
{
    unsigned n = 0;
    pthread_mutex_lock(&net->lock);
    collect(net);
    while (n < max && !TAILQ_EMPTY(&net->noted)) {
        struct lieni_stream *stream = TAILQ_FIRST(&net->noted);
        TAILQ_REMOVE(&net->noted, stream, link);
        stream->noted = false;
        events[n++] = tell(stream);
        if (stream->pending)
            note(stream, 0); // the others have their turn first
    }
    n += accept_some(net, &events[n], max - n);
    pthread_mutex_unlock(&net->lock);
    return n;
}

const struct lieni_net_ops lieni_net_sockets = {
    .open = net_open,
    .close = net_close,
    .fd = net_fd,
    .arm = net_arm,
    .poll = net_poll,
    .listen = net_listen,
    .listen_fd = net_listen_fd,
    .acceptor_fd = net_acceptor_fd,
    .acceptor_close = net_acceptor_close,
    .connect = net_connect,
    .stream_user = net_stream_user,
    .write = net_write,
    .read = net_read,
    .local_host = net_local_host,
    .peer_host = net_peer_host,
    .peer_name = net_peer_name,
    .detach = net_detach,
    .stream_close = net_stream_close,
};
