// SPDX-License-Identifier: Apache-2.0
//
// Provider `stream` against raw sockets that speak docs/wire.md as badly as they can: strangers while it waits, lengths and numbers that lie, bytes one at a time, keys that are wrong, a peer that
// does not read, a region that is closed in the middle of an answer, an answer that comes after the end. One thread drives both sides.

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/stream/raw.h"

// An endpoint that waits, with a raw peer that was let in. `recv`: a receive of 64 bytes, or NULL.
static int up_with(struct end *end, uint8_t *recv_buf, uint32_t peer_recvs, int rcvbuf)
{
    struct lieni_recv recv_post = {.buf = recv_buf, .len = 64, .context = 5};
    struct lieni_ep_args args = args_of(end, 0);
    uint16_t port = 0;
    *end = (struct end){0};
    args.recvs = recv_buf ? &recv_post : NULL;
    args.n_recvs = recv_buf ? 1 : 0;
    CHECK(stream->listen(domain, &args, &end->ep, &port) == 0 && port != 0);
    int fd = raw_connect(port, rcvbuf);
    raw_hello(fd, 1, peer_recvs);
    UNTIL(end->up);
    raw_take_hello(fd, recv_buf ? 1 : 0);
    return fd;
}

// -- Tests ---------------------------------------------------------------------------------------------------------------------------

static void strangers(void)
{
    struct end end = {0};
    struct lieni_ep_args args = args_of(&end, 0);
    uint16_t port = 0;
    CHECK(stream->listen(domain, &args, &end.ep, &port) == 0);
    // What is no HELLO, and a HELLO with other data, are closed and told nothing.
    int fds[12];
    fds[0] = raw_connect(port, 0);
    raw_write(fds[0], "GET / HTTP/1.1\r\n", 16);
    fds[1] = raw_connect(port, 0);
    raw_hello(fds[1], 9, 0);
    fds[2] = raw_connect(port, 0);
    raw_frame(fds[2], HELLO, 0xffffffffu, 0, NULL, 0); // a length that lies
    static const uint8_t zeros[LIENI_CM_DATA];
    raw_write(fds[2], zeros, sizeof zeros);
    for (unsigned i = 0; i < 3; i++) {
        UNTIL(raw_peek(fds[i]) >= 0);
        CHECK(raw_peek(fds[i]) == 0);
    }
    // Silent ones: no more than 8 are kept, the oldest go.
    for (unsigned i = 3; i < 12; i++)
        fds[i] = raw_connect(port, 0);
    UNTIL(raw_peek(fds[3]) == 0);
    CHECK(!end.up && !end.failed);
    // The right one is let in, one byte at a time.
    int fd = raw_connect(port, 0);
    uint8_t hello[HEAD + LIENI_CM_DATA] = {HELLO};
    put(hello + 4, LIENI_CM_DATA, 4);
    memset(hello + HEAD, 1, LIENI_CM_DATA);
    for (size_t i = 0; i < sizeof hello; i++) {
        raw_write(fd, hello + i, 1);
        turn();
    }
    UNTIL(end.up);
    raw_take_hello(fd, 0);
    for (unsigned i = 3; i < 12; i++)
        CHECK(raw_peek(fds[i]) == 0); // and the others are closed
    int late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(connect(late, (struct sockaddr *)&at, sizeof at) != 0); // the port too
    close(late);
    for (unsigned i = 0; i < 12; i++)
        close(fds[i]);
    close(fd);
    UNTIL(end.down);
    CHECK(end.status == LIEN_ECLOSED);
    end_close(&end);
}

static void reads_of_ours(void)
{
    enum {
        LEN = 200000
    };
    static uint8_t memory[LEN], got[LEN];
    struct end end;
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    for (size_t i = 0; i < LEN; i++)
        memory[i] = (uint8_t)(i * 7 + i / 251);
    CHECK(stream->mr_reg(domain, memory, LEN, LIENI_ACCESS_REMOTE, &mr, &info) == 0);
    CHECK(info.key != 0);
    int fd = up_with(&end, NULL, 0, 0);
    // Refused, each by its number, and the connection goes on.
    const struct {
        uint64_t key, addr, len;
    } wrong[] = {{info.key + 1, 0, 1},         {0, 0, 1},
                 {info.key, LEN, 1},           {info.key, LEN - 1, 2},
                 {info.key, UINT64_MAX, 2},    {info.key, (uintptr_t)memory, 1},
                 {info.key, UINT64_MAX - 7, 8}};
    uint32_t number = 0, n = sizeof wrong / sizeof wrong[0];
    for (uint32_t i = 0; i < n; i++)
        raw_read_frame(fd, ++number, wrong[i].key, wrong[i].addr, wrong[i].len);
    for (uint32_t i = 1; i <= n; i++)
        raw_take_refusal(fd, i);
    // Answered, in chunks that add up.
    raw_read_frame(fd, ++number, info.key, info.base + 1, LEN - 1);
    for (size_t at = 0; at < LEN - 1;) {
        struct frame frame = raw_take_head(fd);
        CHECK(frame.kind == DATA && frame.number == number && frame.len >= 1 && frame.len <= 65536);
        CHECK(frame.len <= LEN - 1 - at);
        raw_take(fd, got + at, frame.len);
        at += frame.len;
    }
    CHECK(memcmp(got, memory + 1, LEN - 1) == 0);
    CHECK(stream->mr_close(mr) == 0);
    raw_read_frame(fd, ++number, info.key, 0, 1);
    raw_take_refusal(fd, number);
    CHECK(!end.down && end.entries == 0);
    close(fd);
    end_close(&end);
}

// A peer asks for 8 MiB and does not read. Meanwhile another is served, and the region is closed and overwritten: what comes of it is what was there before, up to a chunk's end, then a refusal.
static void a_peer_that_does_not_read(void)
{
    enum {
        LEN = MIB,
        ASKED = 8
    };
    uint8_t *memory = malloc(LEN);
    static uint8_t got[65536];
    struct end slow, other;
    struct lieni_mr *mr, *mr2;
    struct lieni_mr_info info, info2;
    CHECK(memory);
    memset(memory, 0x11, LEN);
    CHECK(stream->mr_reg(domain, memory, LEN, LIENI_ACCESS_REMOTE, &mr, &info) == 0);
    static uint8_t small[100] = {42};
    CHECK(stream->mr_reg(domain, small, sizeof small, LIENI_ACCESS_REMOTE, &mr2, &info2) == 0);
    int fd = up_with(&slow, NULL, 1, 4096);
    for (uint32_t i = 1; i <= ASKED; i++)
        raw_read_frame(fd, i, info.key, 0, LEN);
    for (unsigned i = 0; i < 200; i++)
        turn();
    int fd2 = up_with(&other, NULL, 0, 0);
    raw_read_frame(fd2, 1, info2.key, 0, sizeof small);
    struct frame frame = raw_take_head(fd2);
    CHECK(frame.kind == DATA && frame.len == sizeof small);
    raw_take(fd2, got, sizeof small);
    CHECK(memcmp(got, small, sizeof small) == 0);

    CHECK(stream->mr_close(mr) == 0);
    memset(memory, 0xee, LEN);
    uint64_t bytes = 0;
    uint32_t refused = 0;
    while (refused < ASKED) {
        frame = raw_take_head(fd);
        CHECK(frame.kind == DATA || frame.kind == REFUSED);
        CHECK(frame.len <= sizeof got);
        raw_take(fd, got, frame.len);
        if (frame.kind == REFUSED) {
            refused = (uint32_t)frame.number;
            continue;
        }
        for (size_t i = 0; i < frame.len; i++)
            CHECK(got[i] == 0x11);
        bytes += frame.len;
    }
    CHECK(bytes > 0 && bytes < (uint64_t)LEN * ASKED); // it was in the middle
    free(memory);
    static const char hello[] = "still here";
    CHECK(stream->post_send(slow.ep, hello, sizeof hello, NULL, 77) == 0);
    UNTIL(slow.entries == 1);
    CHECK(slow.last.context == 77 && slow.last.status == 0);
    CHECK(stream->mr_close(mr2) == 0);
    close(fd);
    close(fd2);
    end_close(&slow);
    end_close(&other);
}

struct lie {
    const char *what;
    unsigned kind;
    uint64_t len, number;
    size_t body; // bytes that follow
    unsigned times;
};

static void lies(void)
{
    static const struct lie list[] = {
        {"unknown kind", 0, 0, 0, 0, 1},
        {"unknown kind", 7, 0, 0, 0, 1},
        {"a second HELLO", HELLO, LIENI_CM_DATA, 0, 0, 1},
        {"a message longer than the receive", SEND, 65, 0, 0, 1},
        {"a message of 4 GiB", SEND, 0xffffffffu, 0, 0, 1},
        {"a message with a number", SEND, 1, 1, 1, 1},
        {"a message without a receive", SEND, 0, 0, 0, 2},
        {"no receives", RECVS, 0, 0, 0, 1},
        {"too many receives", RECVS, 0, (1u << 20) + 1, 0, 1},
        {"receives with a body", RECVS, 4, 1, 4, 1},
        {"a short READ", READ, 19, 1, 0, 1},
        {"a READ of no bytes", READ, 20, 1, 20, 1},
        {"an answer to nothing", DATA, 10, 1, 0, 1},
        {"a refusal of nothing", REFUSED, 4, 1, 4, 1},
    };
    static const uint8_t zeros[64];
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        uint8_t buf[64 + 8];
        struct end end;
        memset(buf, 0x5a, sizeof buf);
        int fd = up_with(&end, buf, 0, 0);
        for (unsigned j = 0; j < list[i].times; j++)
            raw_frame(fd, list[i].kind, list[i].len, list[i].number, zeros, list[i].body);
        UNTIL(end.down);
        if (end.status != LIEN_EPROTO) {
            fprintf(stderr, "%s: %d\n", list[i].what, end.status);
            exit(1);
        }
        for (size_t k = 0; k < sizeof buf; k++)
            CHECK(buf[k] == 0x5a); // not one byte of it
        UNTIL(end.entries == 1);   // the receive, filled by a message of no bytes or flushed
        CHECK(end.last.status == (list[i].times == 2 ? 0 : LIEN_ECANCELED));
        CHECK(stream->post_send(end.ep, zeros, 1, NULL, 1) == LIEN_ESTATE);
        close(fd);
        end_close(&end);
    }
}

// 257 READs and no reading: the queue is bounded, and whoever goes beyond breaks the protocol. A head with bytes that must be 0 does, too.
static void more_lies(void)
{
    static uint8_t memory[MIB];
    struct end end;
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    CHECK(stream->mr_reg(domain, memory, sizeof memory, LIENI_ACCESS_REMOTE, &mr, &info) == 0);
    int fd = up_with(&end, NULL, 0, 4096);
    for (uint32_t i = 1; i <= 300; i++)
        raw_read_frame(fd, i, info.key, 0, sizeof memory);
    UNTIL(end.down);
    CHECK(end.status == LIEN_EPROTO);
    CHECK(strstr(report_text, "256") != NULL);
    close(fd);
    end_close(&end);
    CHECK(stream->mr_close(mr) == 0);

    fd = up_with(&end, NULL, 0, 0);
    raw_write(fd, "\x03\x00\x01\x00\x00\x00\x00\x00\x01\x00\x00\x00", HEAD);
    UNTIL(end.down);
    CHECK(end.status == LIEN_EPROTO);
    close(fd);
    end_close(&end);
}

// The reader's side: one byte at a time, a refusal, too much, and what comes after the end.
static void answers(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int lfd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(lfd, (struct sockaddr *)&at, len) == 0 && listen(lfd, 4) == 0);
    CHECK(getsockname(lfd, (struct sockaddr *)&at, &len) == 0);
    for (unsigned round = 0; round < 2; round++) {
        static uint8_t dst[300], bytes[300];
        struct end end = {0};
        struct lieni_ep_args args = args_of(&end, ntohs(at.sin_port));
        memset(dst, 0, sizeof dst);
        memset(bytes, 0x77, sizeof bytes);
        CHECK(stream->connect(domain, &args, &end.ep) == 0);
        int fd = accept(lfd, NULL, NULL);
        CHECK(fd >= 0);
        raw_take_hello(fd, 0);
        CHECK(stream->post_read(end.ep, dst, 1, NULL, 0, 1, 1) == LIEN_ESTATE);
        raw_hello(fd, 1, 0);
        UNTIL(end.up);
        CHECK(stream->post_read(end.ep, dst, MIB + 1, NULL, 0, 1, 1) == LIEN_EMSGSIZE);
        CHECK(stream->post_read(end.ep, dst, 200, NULL, 11, 12, 21) == 0);
        CHECK(stream->post_read(end.ep, dst + 200, 100, NULL, 13, 14, 22) == 0);
        for (uint32_t i = 0; i < 2; i++) {
            uint8_t body[20];
            struct frame frame = raw_take_head(fd);
            CHECK(frame.kind == READ && frame.len == 20 && frame.number == i + 1);
            raw_take(fd, body, 20);
            CHECK(get(body, 8) == 12 + 2 * i && get(body + 8, 8) == 11 + 2 * i);
            CHECK(get(body + 16, 4) == (i ? 100 : 200));
        }
        raw_frame(fd, DATA, 200, 1, NULL, 0);
        for (unsigned i = 0; i < 150; i++) {
            raw_write(fd, bytes + i, 1);
            turn();
        }
        if (round ==
            0) { // all of it, a refusal of the second, then an answer that nobody asked for
            raw_write(fd, bytes, 50);
            UNTIL(end.entries == 1);
            CHECK(end.last.context == 21 && end.last.status == 0 && memcmp(dst, bytes, 200) == 0);
            uint8_t reason[4] = {1};
            raw_frame(fd, REFUSED, 4, 2, reason, 4);
            UNTIL(end.entries == 2);
            CHECK(end.last.context == 22 && end.last.status == LIEN_EIO && !end.down);
            CHECK(stream->post_read(end.ep, dst, 10, NULL, 0, 1, 23) == 0);
            raw_frame(fd, DATA, 11, 3, bytes, 11);
            UNTIL(end.down);
            CHECK(end.status == LIEN_EPROTO);
            end_close(&end);
        } else { // the rest comes after the end: not a byte of it arrives
            UNTIL(dst[149] == 0x77);
            stream->ep_shutdown(end.ep);
            memset(dst, 0, sizeof dst);
            send(fd, bytes, 50, MSG_NOSIGNAL);
            for (unsigned i = 0; i < 20; i++)
                turn();
            for (size_t i = 0; i < sizeof dst; i++)
                CHECK(dst[i] == 0);
            CHECK(end.entries == 2 && end.last.status == LIEN_ECANCELED); // flushed
            enum lieni_proof proof;
            uint64_t late;
            CHECK(stream->ep_destroy(end.ep, &proof, &late) == 0 && proof == LIENI_PROVEN);
        }
        close(fd);
    }
    // A server that does not know us: refused.
    struct end end = {0};
    struct lieni_ep_args args = args_of(&end, ntohs(at.sin_port));
    CHECK(stream->connect(domain, &args, &end.ep) == 0);
    int fd = accept(lfd, NULL, NULL);
    raw_take_hello(fd, 0);
    close(fd);
    UNTIL(end.failed);
    CHECK(end.status == LIEN_EREFUSED);
    end_close(&end);
    // And one with other private data.
    end = (struct end){0};
    CHECK(stream->connect(domain, &args, &end.ep) == 0);
    fd = accept(lfd, NULL, NULL);
    raw_hello(fd, 8, 0);
    UNTIL(end.failed);
    CHECK(end.status == LIEN_EAUTH);
    end_close(&end);
    close(fd);
    close(lfd);
}

// Ended before anybody came, and while somebody had not yet shown who it is.
static void never_up(void)
{
    for (unsigned i = 0; i < 2; i++) {
        uint8_t buf[64];
        struct lieni_recv recv_post = {.buf = buf, .len = sizeof buf, .context = 5};
        struct end end = {0};
        struct lieni_ep_args args = args_of(&end, 0);
        uint16_t port = 0;
        args.recvs = &recv_post;
        args.n_recvs = 1;
        CHECK(stream->listen(domain, &args, &end.ep, &port) == 0);
        int fd = i ? raw_connect(port, 0) : -1;
        for (unsigned j = 0; j < 10; j++)
            turn();
        CHECK(stream->post_send(end.ep, buf, 1, NULL, 1) == LIEN_ESTATE);
        end_close(&end);
        turn();
        CHECK(!end.up && !end.failed && end.entries == 0);
        if (i) {
            UNTIL(raw_peek(fd) == 0);
            close(fd);
        }
    }
}

int main(void)
{
    stream = &lieni_provider_stream;
    const struct lieni_prov_args args = {.env = &raw_env, .report = {.say = raw_say}};
    enum lieni_proof proof = LIENI_UNKNOWN;
    CHECK(stream->traits->only_if_asked && stream->traits->ep_end_proves);
    CHECK(stream->open(&args, &prov) == 0);
    CHECK(stream->domain_open(prov, "192.0.2.1", &domain) == LIEN_ENODEV);
    CHECK(stream->domain_open(prov, "127.0.0.1", &domain) == 0);
    strangers();
    reads_of_ours();
    a_peer_that_does_not_read();
    lies();
    more_lies();
    answers();
    never_up();
    CHECK(stream->domain_close(domain, &proof) == 0 && proof == LIENI_PROVEN);
    stream->close(prov);
    printf("all passed\n");
    return 0;
}
