// SPDX-License-Identifier: Apache-2.0
//
// The relay of fault.h, with a thread for each connection. To drop READ requests it follows the frames of
// libfabric's tcp provider (1.17): first a connection request (32 bytes of header, of which bytes 2 and 3 are
// the length of what follows it, big-endian), then frames that begin with 16 bytes of header: the operation in
// byte 1, and in the last 8 bytes the length of the whole frame, in the sender's own order.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fault/fault.h"

#define HEADER   16u
#define GREETING 32u
#define READ_REQ 2 // ofi_op_read_req

static struct sockaddr_in at(const char *host, uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK_EQ(inet_pton(AF_INET, host, &a.sin_addr), 1);
    return a;
}

int fault_dial(const char *host, uint16_t port)
{
    struct sockaddr_in to = at(host, port);
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

uint16_t fault_free_port(void)
{
    struct sockaddr_in a = at("127.0.0.1", 0);
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    close(fd);
    return ntohs(a.sin_port);
}

uint16_t fault_port_of(const char *address)
{
    const char *colon = strrchr(address, ':');
    CHECK(colon);
    return (uint16_t)strtoul(colon + 1, NULL, 10);
}

// Bytes of one direction; `left` of them belong to the frame that passes or is dropped.
struct flow {
    uint8_t header[HEADER];
    size_t have;
    uint64_t left;
    bool greeted; // the connection request has passed
    bool drop;
};

static void send_all(int fd, const uint8_t *bytes, size_t len, int flags)
{
    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL | flags);
        if (n <= 0)
            return; // the other end is gone, which its own direction shows
        bytes += n;
        len -= (size_t)n;
    }
}

// Bytes after the 16 of this header.
static uint64_t rest(const struct flow *f)
{
    uint64_t all;
    if (!f->greeted)
        return GREETING - HEADER + (uint64_t)f->header[2] * 256 + f->header[3];
    memcpy(&all, f->header + 8, sizeof all);
    CHECK(all >= HEADER && all < (uint64_t)1 << 32); // else this is not the protocol we know
    return all - HEADER;
}

static void header_done(struct fault_relay *relay, struct flow *f, int to)
{
    f->left = rest(f);
    f->drop = f->greeted && relay->no_reads && f->header[1] == READ_REQ;
    f->greeted = true;
    f->have = 0;
    if (f->drop)
        relay->eaten++;
    else
        // In one segment with what follows: libfabric takes a request that it reads in two parts for a broken one.
        send_all(to, f->header, HEADER, f->left > 0 ? MSG_MORE : 0);
}

static void follow(struct fault_relay *relay, struct flow *f, int to, const uint8_t *bytes,
                   size_t n)
{
    while (n > 0) {
        size_t part;
        if (f->left > 0) {
            part = f->left < n ? (size_t)f->left : n;
            if (!f->drop)
                send_all(to, bytes, part, 0);
            f->left -= part;
        } else {
            part = HEADER - f->have < n ? HEADER - f->have : n;
            memcpy(f->header + f->have, bytes, part);
            f->have += part;
            if (f->have == HEADER)
                header_done(relay, f, to);
        }
        bytes += part;
        n -= part;
    }
}

// How many of `most` bytes from 127.0.0.1 may pass now.
static size_t allowed(const struct fault_relay *relay, size_t most)
{
    return relay->limited && relay->left < most ? (size_t)relay->left : most;
}

static void pass(struct fault_relay *relay, int client, int server)
{
    uint8_t bytes[1 << 16];
    struct flow f = {0};
    while (!relay->stop && !relay->cut) {
        size_t back = allowed(relay, sizeof bytes);
        // A descriptor below 0 is not looked at, not even for the peer's hanging up.
        struct pollfd fds[2] = {{.fd = client, .events = POLLIN},
                                {.fd = back > 0 ? server : -1, .events = POLLIN}};
        if (poll(fds, 2, 20) <= 0)
            continue;
        for (int i = 0; i < 2; i++) {
            if (!fds[i].revents)
                continue;
            ssize_t n = recv(fds[i].fd, bytes, i == 0 ? sizeof bytes : back, 0);
            if (n <= 0)
                return;
            if (i == 1 && relay->limited)
                relay->left -= (uint64_t)n;
            if (i == 0)
                follow(relay, &f, server, bytes, (size_t)n);
            else
                send_all(client, bytes, (size_t)n, 0);
        }
    }
}

struct passage {
    struct fault_relay *relay;
    int client;
};

static void *run_passage(void *arg)
{
    struct passage *p = arg;
    struct fault_relay *relay = p->relay;
    relay->held++;
    while (relay->hold && !relay->stop)
        fault_sleep(5);
    if (!relay->stop) {
        int server = fault_dial("127.0.0.1", relay->port);
        pass(relay, p->client, server);
        close(server);
    }
    close(p->client);
    free(p);
    relay->open--;
    return NULL;
}

static void *run(void *arg)
{
    struct fault_relay *relay = arg;
    while (!relay->stop) {
        struct pollfd fd = {.fd = relay->listener, .events = POLLIN};
        if (poll(&fd, 1, 20) <= 0)
            continue;
        struct passage *p = malloc(sizeof *p);
        CHECK(p);
        *p = (struct passage){relay, accept4(relay->listener, NULL, NULL, SOCK_CLOEXEC)};
        CHECK(p->client >= 0);
        relay->open++;
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, run_passage, p), 0);
        pthread_detach(thread);
    }
    return NULL;
}

void fault_relay_start(struct fault_relay *relay, uint16_t port)
{
    struct sockaddr_in a = at("127.0.0.2", port);
    int one = 1;
    relay->port = port;
    relay->stop = false;
    relay->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(relay->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    CHECK_EQ(bind(relay->listener, (struct sockaddr *)&a, sizeof a), 0);
    CHECK_EQ(listen(relay->listener, 16), 0);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, run, relay), 0);
    relay->thread = thread;
}

void fault_relay_stop(struct fault_relay *relay)
{
    relay->stop = true;
    pthread_join(relay->thread, NULL);
    while (relay->open > 0)
        fault_sleep(5);
    close(relay->listener);
}
