// SPDX-License-Identifier: Apache-2.0
//
// The bootstrap's streams over real sockets: addresses, names, events, back-pressure, exhaustion of descriptors, and idle cost.

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/bootstrap.h"
#include "tests/ofi/bench.h"

static const struct lieni_net_ops *ops;
static struct lieni_net *net;

// What was heard for one user.
struct heard {
    unsigned accepted, connected, failed, readable, writable;
    int status;
    struct lieni_stream *streams[64]; // accepted
};

static unsigned poll_once(void)
{
    struct lieni_net_event events[8];
    unsigned n = ops->poll(net, events, 8);
    for (unsigned i = 0; i < n; i++) {
        struct heard *heard = events[i].user;
        if (!heard)
            continue; // an accepted stream without a user yet
        switch (events[i].kind) {
        case LIENI_NET_ACCEPTED:
            if (heard->accepted < 64)
                heard->streams[heard->accepted] = events[i].stream;
            heard->accepted++;
            break;
        case LIENI_NET_CONNECTED:
            heard->connected++;
            break;
        case LIENI_NET_FAILED:
            heard->failed++;
            heard->status = events[i].status;
            break;
        case LIENI_NET_READABLE:
            heard->readable++;
            break;
        case LIENI_NET_WRITABLE:
            heard->writable++;
            break;
        }
    }
    return n;
}

// Polls and sleeps until *counter reaches `want`. Returns wakes in `wakes`.
static bool until_counted(const unsigned *counter, unsigned want, unsigned ms, unsigned *wakes)
{
    uint64_t end = bench_ms() + ms;
    for (;;) {
        unsigned n = poll_once();
        if (counter && *counter >= want)
            return true;
        uint64_t at = bench_ms();
        if (at >= end)
            return false;
        if (n > 0 || ops->arm(net) != 0)
            continue;
        struct pollfd fd = {.fd = ops->fd(net), .events = POLLIN};
        if (poll(&fd, 1, (int)(end - at)) > 0 && wakes)
            ++*wakes;
    }
}

static bool until(const unsigned *counter, unsigned want)
{
    return until_counted(counter, want, 5000, NULL);
}

static void open_net(void)
{
    struct lieni_report report = bench_report();
    IS(ops->open(bench_env(), &report, NULL, &net), 0);
}

static struct lieni_acceptor *listen_on(const char *address, struct heard *heard, char bound[64])
{
    struct lieni_acceptor *acceptor;
    memset(heard, 0, sizeof *heard);
    IS(ops->listen(net, address, heard, &acceptor, bound, 64), 0);
    return acceptor;
}

static struct lieni_stream *dial(const char *address, struct heard *heard)
{
    struct lieni_stream *stream;
    memset(heard, 0, sizeof *heard);
    IS(ops->connect(net, address, heard, &stream), 0);
    return stream;
}

static const char *port_of(const char *bound)
{
    return strrchr(bound, ':') + 1;
}

// Connects to `host`:port of a listener at `address`, and checks names and bytes both ways.
static void through(const char *address, const char *host, const char *numeric)
{
    struct heard at;
    struct heard mine;
    struct heard theirs = {0};
    char bound[64];
    char to[128];
    char text[128];
    struct lieni_acceptor *acceptor = listen_on(address, &at, bound);
    snprintf(to, sizeof to, "%s:%s", host, port_of(bound));
    struct lieni_stream *stream = dial(to, &mine);
    CHECK(until(&mine.connected, 1));
    CHECK(until(&at.accepted, 1));
    struct lieni_stream *peer = at.streams[0];
    ops->stream_user(peer, &theirs);
    IS(ops->local_host(peer, text, sizeof text), 0);
    CHECK(strcmp(text, numeric) == 0);
    IS(ops->peer_host(stream, text, sizeof text), 0);
    CHECK(strcmp(text, numeric) == 0);
    IS(ops->peer_host(stream, text, 3), LIEN_ERANGE);
    IS(ops->peer_name(stream, text, sizeof text), 0);
    CHECK(strstr(text, port_of(bound)));
    char byte[8];
    IS(ops->read(peer, byte, sizeof byte), LIEN_EAGAIN);
    IS(ops->write(stream, "ping", 4), 4);
    CHECK(until(&theirs.readable, 1));
    IS(ops->read(peer, byte, sizeof byte), 4);
    IS(ops->read(peer, byte, sizeof byte), LIEN_EAGAIN);
    IS(ops->write(peer, "pong!", 5), 5);
    CHECK(until(&mine.readable, 1));
    IS(ops->read(stream, byte, sizeof byte), 5);
    ops->stream_close(stream);
    unsigned before = theirs.readable;
    CHECK(until(&theirs.readable, before + 1));
    IS(ops->read(peer, byte, sizeof byte), LIEN_ECLOSED);
    ops->stream_close(peer);
    ops->acceptor_close(acceptor);
}

static void addresses(void)
{
    through("127.0.0.1:0", "127.0.0.1", "127.0.0.1");
    through("[::1]:0", "[::1]", "::1");
    through("*:0", "127.0.0.1", "127.0.0.1"); // dual stack, told as IPv4
    through("*:0", "[::1]", "::1");
    // A name with two addresses, of which the first may refuse: the second is tried.
    through("localhost:0", "localhost", "127.0.0.1");

    struct heard at;
    char bound[64];
    struct lieni_acceptor *acceptor = listen_on("127.0.0.1:0", &at, bound);
    struct lieni_acceptor *other;
    char text[64];
    IS(ops->listen(net, bound, &at, &other, text, sizeof text), LIEN_EADDR);
    CHECK(strstr(bench_log.text, bound) && strstr(bench_log.text, "in use"));
    ops->acceptor_close(acceptor);
    static const char *const bad[] = {"",
                                      "127.0.0.1",
                                      "127.0.0.1:",
                                      ":80",
                                      "::1:80",
                                      "[::1]",
                                      "[::1:80",
                                      "[::1]80",
                                      "host:80x",
                                      "127.0.0.1:65536",
                                      "192.0.2.1:0",
                                      "a.name:0",
                                      "127.0.0.1:-1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bench_log.text[0] = '\0';
        IS(ops->listen(net, bad[i], &at, &other, text, sizeof text), LIEN_EADDR);
        char quoted[64];
        snprintf(quoted, sizeof quoted, "'%s'", bad[i]);
        CHECK(strstr(bench_log.text, quoted));
    }
    struct lieni_stream *stream;
    IS(ops->connect(net, "*:80", &at, &stream), LIEN_EADDR);
    IS(ops->connect(net, "127.0.0.1:0", &at, &stream), LIEN_EADDR);
    IS(ops->connect(net, "nothing", &at, &stream), LIEN_EADDR);
}

static void refused(void)
{
    struct heard mine;
    struct lieni_stream *stream = dial("127.0.0.1:1", &mine);
    CHECK(until(&mine.failed, 1));
    IS(mine.status, LIEN_EREFUSED);
    CHECK(strstr(bench_log.text, "127.0.0.1:1") && strstr(bench_log.text, "refused"));
    IS(ops->write(stream, "x", 1), LIEN_ECLOSED);
    until_counted(NULL, 0, 50, NULL);
    IS(mine.failed, 1);
    ops->stream_close(stream);
    stream = dial("no-such-host.invalid:80", &mine);
    CHECK(until_counted(&mine.failed, 1, 30000, NULL));
    IS(mine.status, LIEN_EADDR);
    CHECK(strstr(bench_log.text, "no-such-host.invalid:80"));
    ops->stream_close(stream);
    // Closed while the name is looked up, and while connecting: nothing is heard.
    stream = dial("localhost:1", &mine);
    ops->stream_close(stream);
    stream = dial("127.0.0.1:1", &mine);
    ops->stream_close(stream);
    until_counted(NULL, 0, 200, NULL);
    IS(mine.failed + mine.connected + mine.readable, 0);
}

// A full stream: LIEN_EAGAIN, then WRITABLE once there is room, and no event before.
static void back_pressure(void)
{
    struct heard at;
    struct heard mine;
    struct heard theirs = {0};
    char bound[64];
    static char bytes[1 << 16];
    struct lieni_acceptor *acceptor = listen_on("127.0.0.1:0", &at, bound);
    struct lieni_stream *stream = dial(bound, &mine);
    CHECK(until(&mine.connected, 1));
    CHECK(until(&at.accepted, 1));
    ops->stream_user(at.streams[0], &theirs);
    int64_t sent = 0;
    int64_t n;
    while ((n = ops->write(stream, bytes, sizeof bytes)) > 0)
        sent += n;
    IS(n, LIEN_EAGAIN);
    until_counted(NULL, 0, 50, NULL);
    IS(mine.writable, 0);
    double cpu = bench_cpu();
    unsigned wakes = 0;
    until_counted(NULL, 0, 500, &wakes); // unread bytes wake nobody
    CHECK(bench_cpu() - cpu < 0.02 && wakes < 5);
    int64_t got = 0;
    while (got < sent) {
        n = ops->read(at.streams[0], bytes, sizeof bytes);
        if (n == LIEN_EAGAIN)
            CHECK(until(&theirs.readable, theirs.readable + 1));
        else
            got += n;
    }
    CHECK(until(&mine.writable, 1));
    IS(ops->write(stream, "x", 1), 1);
    int fd = ops->detach(stream);
    CHECK(fd >= 0);
    CHECK((fcntl(fd, F_GETFL) & O_NONBLOCK) == 0);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    IS(write(fd, "y", 1), 1);
    close(fd);
    // Nothing is heard after the close, though bytes and the end had come.
    bench_sleep(20);
    unsigned before = theirs.readable;
    ops->stream_close(at.streams[0]);
    until_counted(NULL, 0, 50, NULL);
    IS(theirs.readable, before);
    ops->acceptor_close(acceptor);
}

// Out of descriptors: said once, no spinning, and accepting goes on when there are some again.
static void descriptors(void)
{
    struct heard at;
    char bound[64];
    struct rlimit old;
    CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
    struct lieni_acceptor *acceptor = listen_on("127.0.0.1:0", &at, bound);
    int raw = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(port_of(bound))),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rlimit none = {.rlim_cur = (rlim_t)raw + 1, .rlim_max = old.rlim_max};
    int spare[1024];
    unsigned spares = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    while (spares < 1024 && (spare[spares] = dup(raw)) >= 0)
        spares++;
    CHECK(connect(raw, (struct sockaddr *)&to, sizeof to) == 0);
    unsigned lines = bench_log.lines;
    double cpu = bench_cpu();
    unsigned wakes = 0;
    CHECK(!until_counted(&at.accepted, 1, 700, &wakes));
    CHECK(bench_cpu() - cpu < 0.02);
    CHECK(wakes > 2 && wakes < 40);
    IS(bench_log.lines, lines + 1);
    CHECK(strstr(bench_log.text, "RLIMIT_NOFILE"));
    CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    CHECK(until(&at.accepted, 1));
    ops->stream_close(at.streams[0]);
    while (spares > 0)
        close(spare[--spares]);
    close(raw);
    ops->acceptor_close(acceptor);
}

// Forty connections in one go arrive in bounded batches, each once; then they cost nothing.
static void many(void)
{
    struct heard at;
    struct heard mine[40];
    struct lieni_stream *streams[40];
    char bound[64];
    struct lieni_acceptor *acceptor = listen_on("127.0.0.1:0", &at, bound);
    for (unsigned i = 0; i < 40; i++)
        streams[i] = dial(bound, &mine[i]);
    CHECK(until(&at.accepted, 40));
    for (unsigned i = 0; i < 40; i++)
        CHECK(until(&mine[i].connected, 1));
    until_counted(NULL, 0, 50, NULL);
    double cpu = bench_cpu();
    unsigned wakes = 0;
    until_counted(NULL, 0, 1000, &wakes);
    IS(wakes, 0);
    CHECK(bench_cpu() - cpu < 0.01);
    for (unsigned i = 0; i < 40; i++) {
        IS(mine[i].connected, 1);
        ops->stream_close(streams[i]);
        ops->stream_close(at.streams[i]);
    }
    ops->acceptor_close(acceptor);
}

int main(void)
{
    const struct lieni_platform *platform = lieni_platform_real();
    ops = platform->net;
    static const char *const names[] = {"verbs", "tcp", "sockets", "stream", "ws",
                                        "wss",   "h2c", "h2",      "ucx"};
    const size_t n = sizeof names / sizeof names[0];
    for (size_t i = 0; i < n; i++)
        CHECK(platform->providers[i] && !strcmp(platform->providers[i]->traits->name, names[i]));
    CHECK(!platform->providers[n]);
    uint64_t numbers[2] = {0};
    platform->env.random(platform->env.self, numbers, sizeof numbers);
    CHECK(numbers[0] != numbers[1]);
    uint64_t at = platform->env.now(platform->env.self);
    CHECK(platform->env.now(platform->env.self) >= at);
    open_net();
    addresses();
    refused();
    back_pressure();
    descriptors();
    many();
    ops->close(net);
    puts("ok");
    return 0;
}
