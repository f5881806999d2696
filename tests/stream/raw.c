// SPDX-License-Identifier: Apache-2.0
//
// See raw.h.

#include "tests/stream/raw.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

char report_text[512];

void raw_say(void *self, lien_level level, int code, const char *text)
{
    (void)self;
    (void)level;
    (void)code;
    snprintf(report_text, sizeof report_text, "%s", text);
}

uint64_t raw_now(void *self)
{
    (void)self;
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void random_bytes(void *self, void *buf, size_t len)
{
    (void)self;
    CHECK(getrandom(buf, len, 0) == (ssize_t)len);
}

const struct lieni_env raw_env = {.now = raw_now, .random = random_bytes};

const struct lieni_provider *stream;
struct lieni_prov *prov;
struct lieni_domain *domain;

void turn(void)
{
    struct lieni_event events[16];
    unsigned n = stream->poll(prov, events, 16);
    for (unsigned i = 0; i < n; i++) {
        struct end *end = events[i].user;
        end->up += events[i].kind == LIENI_EV_UP;
        end->failed += events[i].kind == LIENI_EV_FAILED;
        end->down += events[i].kind == LIENI_EV_DOWN;
        if (events[i].kind == LIENI_EV_DOWN || events[i].kind == LIENI_EV_FAILED)
            end->status = events[i].status;
        if (events[i].kind == LIENI_EV_ENTRY) {
            end->entries++;
            end->last = events[i].cqe;
        }
    }
    if (n == 0 && stream->arm(prov) == 0)
        poll(&(struct pollfd){.fd = stream->fd(prov), .events = POLLIN}, 1, 1);
}

struct lieni_ep_args args_of(struct end *end, uint16_t port)
{
    struct lieni_ep_args args = {.user = end, .host = "127.0.0.1", .port = port, .posts_max = 64};
    memset(args.send_data, 2, sizeof args.send_data);
    memset(args.expect_data, 1, sizeof args.expect_data);
    return args;
}

void end_close(struct end *end)
{
    enum lieni_proof proof = LIENI_UNKNOWN;
    uint64_t late = 7;
    CHECK(stream->ep_destroy(end->ep, &proof, &late) == LIEN_ESTATE);
    stream->ep_shutdown(end->ep);
    stream->ep_shutdown(end->ep);
    CHECK(stream->ep_destroy(end->ep, &proof, &late) == 0);
    CHECK(proof == LIENI_PROVEN && late == 0);
}

// -- The raw side --------------------------------------------------------------------------------------------------------------------

int raw_connect(uint16_t port, int rcvbuf)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    if (rcvbuf)
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf) == 0);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

void put(uint8_t *at, uint64_t v, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

uint64_t get(const uint8_t *at, unsigned n)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < n; i++)
        v |= (uint64_t)at[i] << (8 * i);
    return v;
}

void raw_write(int fd, const void *data, size_t len)
{
    CHECK(send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len);
}

void raw_frame(int fd, unsigned kind, uint64_t len, uint64_t number, const void *body,
               size_t body_len)
{
    uint8_t frame[HEAD + 256] = {(uint8_t)kind};
    put(frame + 4, len, 4);
    put(frame + 8, number, 4);
    if (body_len > 0)
        memcpy(frame + HEAD, body, body_len);
    raw_write(fd, frame, HEAD + body_len);
}

void raw_read_frame(int fd, uint32_t number, uint64_t key, uint64_t addr, uint64_t len)
{
    uint8_t body[20];
    put(body, key, 8);
    put(body + 8, addr, 8);
    put(body + 16, len, 4);
    raw_frame(fd, READ, sizeof body, number, body, sizeof body);
}

void raw_hello(int fd, uint8_t byte, uint32_t recvs)
{
    uint8_t body[LIENI_CM_DATA];
    memset(body, byte, sizeof body);
    raw_frame(fd, HELLO, sizeof body, recvs, body, sizeof body);
}

// What the socket has to read: bytes, 0 if the peer ended it, -1 nothing yet.
ssize_t raw_peek(int fd)
{
    uint8_t byte;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n < 0 && errno == ECONNRESET ? 0 : n;
}

void raw_take(int fd, void *to, size_t len)
{
    uint8_t *at = to;
    while (len > 0) {
        ssize_t n;
        UNTIL((n = recv(fd, at, len, MSG_DONTWAIT)) >= 0);
        CHECK(n > 0);
        at += n;
        len -= (size_t)n;
    }
}

struct frame raw_take_head(int fd)
{
    uint8_t head[HEAD];
    raw_take(fd, head, sizeof head);
    CHECK(head[1] == 0 && head[2] == 0 && head[3] == 0);
    return (struct frame){.kind = head[0], .len = get(head + 4, 4), .number = get(head + 8, 4)};
}

void raw_take_hello(int fd, uint32_t recvs)
{
    uint8_t body[LIENI_CM_DATA];
    struct frame frame = raw_take_head(fd);
    CHECK(frame.kind == HELLO && frame.len == LIENI_CM_DATA && frame.number == recvs);
    raw_take(fd, body, sizeof body);
    for (size_t i = 0; i < sizeof body; i++)
        CHECK(body[i] == 2);
}

void raw_take_refusal(int fd, uint32_t number)
{
    uint8_t body[4];
    struct frame frame = raw_take_head(fd);
    CHECK(frame.kind == REFUSED && frame.len == 4 && frame.number == number);
    raw_take(fd, body, sizeof body);
    CHECK(get(body, 4) == 1);
}
