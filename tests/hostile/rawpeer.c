// SPDX-License-Identifier: Apache-2.0
//
// See rawpeer.h.

#include "tests/hostile/rawpeer.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "provider/tcp/tcp.h"

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: rawpeer: not so: %s\n", __FILE__, __LINE__, #condition);       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum {
    CONTEXT_SEND = 1000,
    CONTEXT_READ = 1001,
    CONTEXT_RECV = 1 // and up
};

static const struct lieni_provider *const tcp = &lieni_provider_tcp;

static uint64_t now(void *self)
{
    struct timespec time;
    (void)self;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void random_bytes(void *self, void *buf, size_t len)
{
    (void)self;
    NEED(getrandom(buf, len, 0) == (ssize_t)len);
}

static void say(void *self, lien_level level, int code, const char *text)
{
    (void)self;
    if (getenv("RAWPEER_VERBOSE"))
        fprintf(stderr, "rawpeer: log %d: %s (%s)\n", (int)level, text, lien_errname(code));
}

static const struct lieni_env env = {.now = now, .random = random_bytes};

void rawworld_open(struct rawworld *world)
{
    const struct lieni_prov_args args = {.env = &env, .report = {.say = say}};
    NEED(tcp->open(&args, &world->prov) == 0);
    NEED(tcp->domain_open(world->prov, "127.0.0.1", &world->domain) == 0);
}

void rawworld_close(struct rawworld *world)
{
    enum lieni_proof proof;
    NEED(tcp->domain_close(world->domain, &proof) == 0);
    tcp->close(world->prov);
}

// -- Events --

static void on_entry(struct rawpeer *peer, const struct lieni_cqe *cqe)
{
    if (cqe->context == CONTEXT_SEND) {
        peer->sends_over++;
        peer->send_status = cqe->status;
    } else if (cqe->context == CONTEXT_READ) {
        peer->reads_over++;
        peer->read_status = cqe->status;
    } else if (cqe->status == 0 && cqe->context >= CONTEXT_RECV && peer->n_in < RAW_RECVS) {
        peer->in_len[peer->n_in] = cqe->len;
        peer->in_slot[peer->n_in++] = (unsigned)(cqe->context - CONTEXT_RECV);
    }
}

static void poll_once(struct rawworld *world)
{
    struct lieni_event events[32];
    unsigned n = tcp->poll(world->prov, events, 32);
    for (unsigned i = 0; i < n; i++) {
        struct rawpeer *peer = events[i].user;
        switch (events[i].kind) {
        case LIENI_EV_UP:
            peer->up = true;
            break;
        case LIENI_EV_FAILED:
            peer->failed = true;
            peer->status = events[i].status;
            break;
        case LIENI_EV_DOWN:
            peer->down = true;
            peer->status = events[i].status;
            break;
        case LIENI_EV_ENTRY:
            on_entry(peer, &events[i].cqe);
            break;
        }
    }
    if (n == 0 && tcp->arm(world->prov) == 0) {
        struct pollfd fd = {.fd = tcp->fd(world->prov), .events = POLLIN};
        poll(&fd, 1, 1);
    }
}

void rawpeer_pump(struct rawworld *world, uint32_t ms)
{
    uint64_t end = now(NULL) + ms * 1000000ull;
    do
        poll_once(world);
    while (now(NULL) < end);
}

// -- Bootstrap --

struct lieni_offer rawpeer_offer(void)
{
    struct lieni_offer offer = {.version_min = LIENI_WIRE_VERSION,
                                .version_max = LIENI_WIRE_VERSION,
                                .n_providers = 1,
                                .providers = {"tcp"},
                                .frame_max = RAW_FRAME_MAX,
                                .message_credits = RAW_RECVS / 2,
                                .control_credits = RAW_RECVS / 2,
                                .message_max = 1 << 20,
                                .grants_max = 64,
                                .call_credits = RAW_CALLS};
    random_bytes(NULL, offer.nonce, sizeof offer.nonce);
    return offer;
}

static int dial(const char *address)
{
    char host[96];
    const char *colon = strrchr(address, ':');
    NEED(colon && (size_t)(colon - address) < sizeof host);
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    NEED(inet_pton(AF_INET, host, &to.sin_addr) == 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    NEED(fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static void shake_hands(int fd, struct lieni_handshake *hs)
{
    uint8_t bytes[1024];
    while (hs->state == LIENI_HS_CLIENT_WAIT) {
        while (hs->out_len > 0) {
            ssize_t sent = send(fd, hs->out, hs->out_len, MSG_NOSIGNAL);
            NEED(sent > 0);
            lieni_hs_sent(hs, (size_t)sent);
        }
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        NEED(got >= 0);
        lieni_hs_input(hs, bytes, (size_t)got);
    }
    NEED(hs->state == LIENI_HS_READY);
}

static void make_endpoint(struct rawpeer *peer, const struct lieni_handshake *hs)
{
    struct lieni_recv recvs[RAW_RECVS];
    struct lieni_mr_info info;
    size_t bytes = RAW_SEND_MAX + RAW_RECVS * RAW_FRAME_MAX + RAW_READ_MAX;
    peer->memory = aligned_alloc(4096, bytes);
    NEED(peer->memory);
    memset(peer->memory, 0, bytes);
    NEED(tcp->mr_reg(peer->world->domain, peer->memory, bytes, LIENI_ACCESS_LOCAL, &peer->mr,
                     &info) == 0);
    for (unsigned i = 0; i < RAW_RECVS; i++)
        recvs[i] = (struct lieni_recv){.buf = peer->memory + RAW_SEND_MAX + i * RAW_FRAME_MAX,
                                       .len = RAW_FRAME_MAX,
                                       .mr = peer->mr,
                                       .context = CONTEXT_RECV + i};
    struct lieni_ep_args args = {.user = peer,
                                 .host = hs->host[0] ? hs->host : "127.0.0.1",
                                 .port = hs->port,
                                 .recvs = recvs,
                                 .n_recvs = RAW_RECVS,
                                 .posts_max = RAW_RECVS + 64};
    lieni_hs_cm_data(hs, false, args.send_data);
    lieni_hs_cm_data(hs, true, args.expect_data);
    NEED(tcp->connect(peer->world->domain, &args, &peer->ep) == 0);
}

void rawpeer_connect(struct rawworld *world, struct rawpeer *peer, const char *address,
                     const struct lieni_offer *offer)
{
    static struct lieni_handshake hs;
    memset(peer, 0, sizeof *peer);
    peer->world = world;
    peer->local = offer ? *offer : rawpeer_offer();
    peer->socket = dial(address);
    NEED(lieni_hs_start(&hs, false, &peer->local, NULL, NULL) == 0);
    shake_hands(peer->socket, &hs);
    peer->peer = hs.peer;
    peer->conn_id = hs.conn_id;
    make_endpoint(peer, &hs);
    for (uint64_t end = now(NULL) + 10000000000ull; !peer->up && now(NULL) < end;)
        poll_once(world);
    NEED(peer->up && !peer->failed);
}

void rawpeer_close(struct rawpeer *peer)
{
    enum lieni_proof proof;
    uint64_t late;
    tcp->ep_shutdown(peer->ep);
    for (int i = 0; tcp->ep_destroy(peer->ep, &proof, &late) != 0; i++) {
        NEED(i < 5000);
        poll_once(peer->world);
    }
    NEED(tcp->mr_close(peer->mr) == 0);
    free(peer->memory);
    close(peer->socket);
    peer->ep = NULL;
}

// -- Frames --

bool rawpeer_bytes(struct rawpeer *peer, const void *bytes, size_t len)
{
    unsigned before = peer->sends_over;
    NEED(len <= RAW_SEND_MAX);
    memcpy(peer->memory, bytes, len);
    int rc;
    while ((rc = tcp->post_send(peer->ep, peer->memory, len, peer->mr, CONTEXT_SEND)) ==
           LIEN_EAGAIN)
        poll_once(peer->world);
    if (rc != 0)
        return false;
    while (peer->sends_over == before && !peer->down)
        poll_once(peer->world);
    return peer->sends_over != before && peer->send_status == 0;
}

bool rawpeer_frame(struct rawpeer *peer, const struct lieni_frame *frame)
{
    uint8_t bytes[RAW_FRAME_MAX];
    _Atomic uint64_t copied = 0;
    size_t len;
    NEED(lieni_frame_encode(frame, bytes, sizeof bytes, &copied, &len) == 0);
    lieni_frame_stamp(bytes, frame->message_credits, frame->control_credits, ++peer->number);
    return rawpeer_bytes(peer, bytes, len);
}

bool rawpeer_next(struct rawpeer *peer, uint32_t ms, const uint8_t **bytes, size_t *len)
{
    uint64_t end = now(NULL) + ms * 1000000ull;
    while (peer->taken == peer->n_in && now(NULL) < end && !peer->down)
        poll_once(peer->world);
    if (peer->taken == peer->n_in)
        return false;
    *bytes = peer->memory + RAW_SEND_MAX + peer->in_slot[peer->taken] * RAW_FRAME_MAX;
    *len = peer->in_len[peer->taken++];
    return true;
}

void rawpeer_again(struct rawpeer *peer)
{
    if (peer->taken < peer->n_in || peer->down)
        return;
    const unsigned n = peer->n_in;
    peer->n_in = peer->taken = 0;
    for (unsigned i = 0; i < n; i++) {
        const unsigned slot = peer->in_slot[i];
        NEED(tcp->post_recv(peer->ep, peer->memory + RAW_SEND_MAX + slot * RAW_FRAME_MAX,
                            RAW_FRAME_MAX, peer->mr, CONTEXT_RECV + slot) == 0);
    }
}

// -- READs --

static uint8_t *read_target(struct rawpeer *peer)
{
    return peer->memory + RAW_SEND_MAX + RAW_RECVS * RAW_FRAME_MAX;
}

bool rawpeer_read(struct rawpeer *peer, uint64_t addr, uint64_t key, size_t len)
{
    NEED(len <= RAW_READ_MAX);
    int rc;
    while ((rc = tcp->post_read(peer->ep, read_target(peer), len, peer->mr, addr, key,
                                CONTEXT_READ)) == LIEN_EAGAIN)
        poll_once(peer->world);
    return rc == 0;
}

int rawpeer_read_wait(struct rawpeer *peer, uint32_t ms, const uint8_t **data)
{
    uint64_t end = now(NULL) + ms * 1000000ull;
    while (peer->reads_over == 0 && now(NULL) < end)
        poll_once(peer->world);
    *data = read_target(peer);
    if (peer->reads_over == 0)
        return LIEN_ETIMEDOUT;
    peer->reads_over--;
    return peer->read_status;
}

bool rawpeer_wait_down(struct rawpeer *peer, uint32_t ms)
{
    uint64_t end = now(NULL) + ms * 1000000ull;
    while (!peer->down && now(NULL) < end)
        poll_once(peer->world);
    return peer->down;
}
