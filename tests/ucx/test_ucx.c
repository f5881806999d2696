// SPDX-License-Identifier: Apache-2.0
//
// Provider ucx at its interface: messages and receives in any order, READs within and beyond a region, keys that are not, a region that closes, strangers while it waits, sleeping when idle.

#include <arpa/inet.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/ucx/pair.h"

#define LEN 300000u

static const struct lieni_provider *const ucx = &lieni_provider_ucx;
static uint8_t memory[LEN], copy[LEN];

static struct side owner, reader;

static void messages(void)
{
    static uint8_t out[70000], in[40][70000];
    struct lieni_recv first = {.buf = in[0], .len = sizeof in[0], .context = 40};
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (uint8_t)(i * 13 + i / 255);
    side_open(&owner);
    side_open(&reader);
    side_listen(&owner, &first, 1);
    CHECK_RC(ucx->post_send(owner.ep, out, 1, NULL, 9), LIEN_ESTATE);
    side_connect(&reader, owner.port, NULL, 0);
    UNTIL(&owner, &reader, owner.up && reader.up);
    // One has its receive, the others wait for theirs: nothing is lost, copied aside or out of order.
    static const size_t lens[] = {0, 1, 48, 8000, 8192, 8193, 16384, 65536, 69999, 70000};
    for (unsigned i = 0; i < 30; i++)
        CHECK_RC(ucx->post_send(reader.ep, out, lens[i % 10], NULL, i), 0);
    UNTIL(&owner, &reader, owner.entries == 1 && reader.entries == 1);
    CHECK(owner.last.context == 40 && owner.last.status == 0 && owner.last.len == 0);
    for (unsigned i = 0; i < 200; i++)
        turn(&owner, &reader);
    CHECK(owner.entries == 1 && reader.entries == 1);
    for (unsigned i = 1; i < 30; i++) {
        CHECK_RC(ucx->post_recv(owner.ep, in[i], sizeof in[i], NULL, i), 0);
        if (i % 3 == 0)
            turn(&owner, &reader);
    }
    UNTIL(&owner, &reader, owner.entries == 30 && reader.entries == 30);
    for (unsigned i = 1; i < 30; i++) {
        CHECK(owner.of[i] == 1 && reader.of[i] == 1);
        CHECK(memcmp(in[i], out, lens[i % 10]) == 0);
    }
    CHECK(owner.bad == 0 && reader.bad == 0);
    // Idle: both sleep, and their descriptors are quiet.
    for (unsigned i = 0; i < 50; i++)
        turn(&owner, &reader);
    struct pollfd fds[2] = {{.fd = ucx->fd(owner.prov), .events = POLLIN},
                            {.fd = ucx->fd(reader.prov), .events = POLLIN}};
    CHECK(ucx->arm(owner.prov) == 0 && ucx->arm(reader.prov) == 0);
    CHECK(poll(fds, 2, 300) == 0);
    // Its peer leaves after a last message, which comes.
    CHECK_RC(ucx->post_recv(owner.ep, in[1], sizeof in[1], NULL, 41), 0);
    UNTIL(&owner, &reader, poll(fds, 2, 0) == 0);
    CHECK_RC(ucx->post_send(reader.ep, out, 4000, NULL, 42), 0);
    UNTIL(&owner, &reader, reader.of[42] == 1);
    reader.peer = &owner;
    side_close(&reader, LIENI_PROVEN);
    UNTIL(&owner, NULL, owner.down == 1);
    CHECK(owner.of[41] == 1 && owner.status_of[41] == 0 && owner.last.len == 4000);
    CHECK(owner.status == LIEN_ECLOSED || owner.status == LIEN_EPEERLOST);
    enum lieni_proof proof;
    uint64_t late;
    CHECK_RC(ucx->ep_destroy(owner.ep, &proof, &late), LIEN_ESTATE);
    side_close(&owner, LIENI_PROVEN);
}

// One READ, and its status.
static int read_one(size_t to, size_t len, uint64_t addr, uint64_t key)
{
    unsigned before = reader.entries;
    CHECK_RC(ucx->post_read(reader.ep, copy + to, len, NULL, addr, key, 7), 0);
    UNTIL(&owner, &reader, reader.entries == before + 1);
    CHECK(reader.last.context == 7);
    return reader.last.status;
}

static void reads(void)
{
    struct lieni_mr *mr, *local;
    struct lieni_mr_info info, none;
    for (size_t i = 0; i < LEN; i++)
        memory[i] = (uint8_t)(i * 7 + i / 251);
    side_open(&owner);
    side_open(&reader);
    CHECK_RC(ucx->mr_reg(owner.domain, memory, LEN, LIENI_ACCESS_REMOTE, &mr, &info), 0);
    CHECK_RC(ucx->mr_reg(owner.domain, memory, LEN, LIENI_ACCESS_LOCAL, &local, &none), 0);
    CHECK(info.key != 0 && none.key == 0);
    pair_up(&owner, &reader);
    CHECK_RC(ucx->post_read(reader.ep, copy, 0, NULL, 0, info.key, 1), LIEN_EINVAL);
    CHECK_RC(ucx->post_read(reader.ep, copy, LIENI_UCX_PIECE + 1, NULL, 0, info.key, 1),
             LIEN_EMSGSIZE);
    CHECK(read_one(0, LEN, info.base, info.key) == 0);
    CHECK(memcmp(copy, memory, LEN) == 0);
    memset(copy, 0, LEN);
    // Refused, nothing written, and the connection goes on.
    const struct {
        uint64_t key, addr, len;
    } wrong[] = {{info.key + 1, 0, 1},       {0, 0, 1},
                 {info.key, LEN, 1},         {info.key, LEN - 1, 2},
                 {info.key, UINT64_MAX, 2},  {info.key, (uintptr_t)memory, 1},
                 {info.key, UINT64_MAX, LEN}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK(read_one(0, wrong[i].len, wrong[i].addr, wrong[i].key) == LIEN_EIO);
    for (size_t i = 0; i < LEN; i++)
        CHECK(copy[i] == 0);
    CHECK(read_one(1, LEN - 1, info.base + 1, info.key) == 0);
    CHECK(copy[0] == 0 && memcmp(copy + 1, memory + 1, LEN - 1) == 0);
    // A region that closed is not read any more once the peer heard of it.
    CHECK_RC(ucx->mr_close(mr), 0);
    for (unsigned i = 0; i < 100; i++)
        turn(&owner, &reader);
    CHECK(read_one(0, 1, info.base, info.key) == LIEN_EIO);
    CHECK_RC(ucx->mr_close(local), 0);
    side_close(&owner, LIENI_PROVEN);
    side_close(&reader, LIENI_PROVEN);
}

static int stranger(const void *bytes, size_t len)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons(owner.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    CHECK(send(fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len);
    return fd;
}

static ssize_t peek(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT);
}

static void strangers(void)
{
    static uint8_t hello[76 + 64] = {'L', 'I', 'E', 'N', 'U', 'C', 'X', 1};
    int fds[10];
    side_open(&owner);
    side_open(&reader);
    side_listen(&owner, NULL, 0);
    // No HELLO; other private data; an address of no bytes, and of too many. Told nothing, closed.
    fds[0] = stranger("GET / HTTP/1.1\r\n", 16);
    fds[1] = stranger(hello, sizeof hello);
    memset(hello + 8, 3, 55);
    fds[2] = stranger(hello, sizeof hello);
    memset(hello + 72, 255, 4);
    fds[3] = stranger(hello, sizeof hello);
    for (unsigned i = 0; i < 4; i++)
        UNTIL(&owner, NULL, peek(fds[i]) == 0);
    // Silent ones: no more than 8 are kept, the oldest go.
    for (unsigned i = 0; i < 4; i++)
        close(fds[i]);
    for (unsigned i = 0; i < 10; i++) {
        fds[i] = stranger(hello, 7);
        turn(&owner, NULL);
    }
    UNTIL(&owner, NULL, peek(fds[1]) == 0);
    CHECK(peek(fds[9]) == -1 && !owner.up && !owner.failed);
    side_connect(&reader, owner.port, NULL, 0);
    UNTIL(&owner, &reader, owner.up && reader.up);
    for (unsigned i = 0; i < 10; i++) {
        CHECK(peek(fds[i]) == 0);
        close(fds[i]);
    }
    owner.peer = &reader;
    side_close(&owner, LIENI_PROVEN);
    UNTIL(&reader, NULL, reader.down == 1);
    side_close(&reader, LIENI_PROVEN);
    // Nobody there any more.
    uint16_t port = owner.port;
    side_open(&reader);
    side_connect(&reader, port, NULL, 0);
    UNTIL(&reader, NULL, reader.failed == 1);
    CHECK(reader.status == LIEN_EREFUSED);
    side_close(&reader, LIENI_PROVEN);
}

static void addresses(void)
{
    struct lieni_domain *domain;
    side_open(&owner);
    CHECK_RC(ucx->domain_open(owner.prov, "::1", &domain), LIEN_ENODEV);
    CHECK(strstr(report_text, "IPv4"));
    CHECK_RC(ucx->domain_open(owner.prov, "203.0.113.9", &domain), LIEN_ENODEV);
    CHECK_RC(ucx->domain_open(owner.prov, "localhost", &domain), LIEN_ENODEV);
    side_close(&owner, LIENI_PROVEN);
}

int main(void)
{
    messages();
    reads();
    strangers();
    addresses();
    return 0;
}
