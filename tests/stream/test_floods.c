// SPDX-License-Identifier: Apache-2.0
//
// What a peer that was not let in yet, and one that was, can make providers `ws` and `h2c` hold or do: heads without an end, one byte at a time, headers that unfold, headers in endless
// frames, streams by the thousand, resets, settings and pings whose answers nobody reads, messages of no bytes. Each is bounded: the connection ends with its reason, or costs no memory; and who
// behaves is let in beside it. One thread drives both sides.

#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/stream/raw.h"

#define FLOOD (4u << 20)   // bytes of one
#define GROWN (512u << 10) // bytes of heap that it may cost

// -- Words of HTTP/2 and WebSocket ---------------------------------------------------------------------------------------------------

enum h2_kind {
    H2_DATA = 0,
    H2_HEADERS = 1,
    H2_RESET = 3,
    H2_SETTINGS = 4,
    H2_PING = 6,
    H2_MORE = 9
};

#define H2_END 4u // of headers

static size_t h2(uint8_t *to, enum h2_kind kind, uint8_t flags, uint32_t id, const void *body,
                 size_t len)
{
    const uint8_t head[9] = {
        (uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len,       (uint8_t)kind, flags,
        (uint8_t)(id >> 24),  (uint8_t)(id >> 16), (uint8_t)(id >> 8), (uint8_t)id};
    memcpy(to, head, sizeof head);
    if (len > 0)
        memcpy(to + sizeof head, body, len);
    return sizeof head + len;
}

// POST, http, /lien, authority x.
static const char request[] = "\x83\x86\x04\x05/lien\x01\x01x";
#define REQUEST (sizeof request - 1)

// `settings`: with the frame that has to be first.
static void h2_begin(int fd, bool asks)
{
    uint8_t bytes[128];
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    raw_write(fd, preface, sizeof preface - 1);
    raw_write(fd, bytes, h2(bytes, H2_SETTINGS, 0, 0, NULL, 0));
    if (asks)
        raw_write(fd, bytes, h2(bytes, H2_HEADERS, H2_END, 1, request, REQUEST));
}

static const char upgrade[] = "GET /lien HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
                              "Connection: Upgrade\r\n"
                              "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                              "Sec-WebSocket-Version: 13\r\n\r\n";

// Masked by zeros; at most 125 bytes.
static size_t ws(uint8_t *to, uint8_t first, const void *body, size_t len)
{
    const uint8_t head[6] = {first, (uint8_t)(0x80 | len)};
    memcpy(to, head, sizeof head);
    if (len > 0)
        memcpy(to + sizeof head, body, len);
    return sizeof head + len;
}

// -- Floods --------------------------------------------------------------------------------------------------------------------------

static struct end victim;
static uint16_t port;

static bool is_h2(void)
{
    return stream == &lieni_provider_h2c;
}

static size_t heap(void)
{
    return mallinfo2().uordblks;
}

// Says `words` again and again, and reads nothing. True: the other side ended it; false: FLOOD bytes were taken. At no time it may cost more than GROWN.
static bool flood(int fd, const uint8_t *words, size_t words_len)
{
    static uint8_t
        bytes[16384]; // as often as they fit: a small word at a time is mostly system calls
    size_t len = 0;
    for (; len + words_len <= sizeof bytes; len += words_len)
        memcpy(bytes + len, words, words_len);
    size_t before = heap(), at = 0;
    const uint64_t since = raw_now(NULL);
    for (size_t said = 0; said < FLOOD;) {
        ssize_t n = send(fd, bytes + at, len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        size_t now = heap();
        CHECK(now < before + GROWN);
        CHECK(raw_now(NULL) - since < 4 * HANG_MS * UINT64_C(1000000));
        if ((n < 0 && errno != EAGAIN) || victim.down)
            return true;
        if (n > 0) {
            said += (size_t)n;
            at = (at + (size_t)n) % len;
        }
        if (n < 0 || said % 65536 < len)
            turn();
    }
    return false;
}

static void say_hello(int fd)
{
    uint8_t hello[12 + LIENI_CM_DATA] = {HELLO}, bytes[256];
    put(hello + 4, LIENI_CM_DATA, 4);
    memset(hello + 12, 1, LIENI_CM_DATA);
    size_t len = is_h2() ? h2(bytes, H2_DATA, 0, 1, hello, sizeof hello)
                         : ws(bytes, 0x82, hello, sizeof hello);
    raw_write(fd, bytes, len);
}

static void wait_for_peer(void)
{
    struct lieni_ep_args args = args_of(&victim, 0);
    victim = (struct end){0};
    report_text[0] = '\0';
    CHECK(stream->listen(domain, &args, &victim.ep, &port) == 0);
}

// Somebody who behaves.
static int let_in(void)
{
    int fd = raw_connect(port, 0);
    if (is_h2())
        h2_begin(fd, true);
    else
        raw_write(fd, upgrade, sizeof upgrade - 1);
    say_hello(fd);
    UNTIL(victim.up);
    return fd;
}

// A stranger's flood ends it, with a reason, and it alone.
static void ends_by(const uint8_t *bytes, size_t len, bool begins, bool asks, const char *why)
{
    wait_for_peer();
    int fd = raw_connect(port, 4096);
    if (begins)
        h2_begin(fd, asks);
    if (!flood(fd, bytes, len) || !strstr(report_text, why)) {
        fprintf(stderr, "not ended by '%s' but '%s'\n", why, report_text);
        exit(1);
    }
    CHECK(!victim.up && !victim.failed);
    close(fd);
    fd = let_in();
    close(fd);
    end_close(&victim);
}

// -- HTTP/2 --------------------------------------------------------------------------------------------------------------------------

static void headers_that_unfold(void)
{
    uint8_t block[4096], bytes[4200];
    size_t n = REQUEST;
    memcpy(block, request, REQUEST);
    block[n++] = 0x40; // x: 2000 bytes, and from now on it has a number
    block[n++] = 1;
    block[n++] = 'x';
    block[n++] = 0x7f; // 127 + ...
    block[n++] = (uint8_t)((2000 - 127) | 0x80);
    block[n++] = (uint8_t)((2000 - 127) >> 7);
    memset(block + n, 'y', 2000);
    n += 2000;
    memset(block + n, 0xbe, 1000); // a thousand times the same
    n += 1000;
    ends_by(bytes, h2(bytes, H2_HEADERS, H2_END, 1, block, n), true, false, "more than 4096 bytes");
}

static void strangers_of_h2(void)
{
    uint8_t bytes[4096];
    size_t len = h2(bytes, H2_PING, 0, 0, "12345678", 8);
    ends_by(bytes, len, true, false, "Flooding");
    ends_by(bytes, len, true, true, "Flooding");
    len = h2(bytes, H2_SETTINGS, 0, 0, NULL, 0);
    ends_by(bytes, len, true, false, "Flooding");
    // Headers that never end, by frames without a byte.
    len = h2(bytes, H2_MORE, 0, 1, NULL, 0);
    uint8_t all[4096];
    size_t n = h2(all, H2_HEADERS, 0, 1, request, REQUEST);
    for (unsigned i = 0; i < 100; i++, n += len)
        memcpy(all + n, bytes, len);
    ends_by(all, n, true, false, "HTTP/2: ");
    headers_that_unfold();
    // Streams, with a reset each or without. Our settings are not acknowledged, so their limit does not hold yet.
    n = 0;
    for (uint32_t id = 1; id < 60; id += 2)
        n += h2(all + n, H2_HEADERS, H2_END, id, request, REQUEST);
    ends_by(all, n, true, false, "a second request");
    n = 0;
    for (uint32_t id = 1; id < 60; id += 2) {
        n += h2(all + n, H2_HEADERS, H2_END, id, request, REQUEST);
        n += h2(all + n, H2_RESET, 0, id, "\0\0\0\x8", 4);
    }
    ends_by(all, n, true, false, "a second request");
    // Requests that are none: each would be answered by a reset.
    n = 0;
    for (uint32_t id = 1; id < 60; id += 2)
        n += h2(all + n, H2_HEADERS, H2_END, id, "\x84", 1);
    ends_by(all, n, true, false, "HTTP/2: ");
}

static void friends_of_h2(void)
{
    uint8_t bytes[64];
    size_t len = h2(bytes, H2_PING, 0, 0, "12345678", 8);
    wait_for_peer();
    int fd = let_in();
    CHECK(flood(fd, bytes, len));
    UNTIL(victim.down);
    CHECK(victim.status == LIEN_EPROTO && strstr(report_text, "Flooding"));
    close(fd);
    end_close(&victim);
}

// -- WebSocket -----------------------------------------------------------------------------------------------------------------------

static void strangers_of_ws(void)
{
    uint8_t bytes[1024];
    memset(bytes, 'G', sizeof bytes);
    ends_by(bytes, sizeof bytes, false, false, "longer than 8192 bytes");
    // Slowly: who takes its time keeps nobody out, and gets in if it goes on.
    wait_for_peer();
    int fds[4];
    for (unsigned i = 0; i < 4; i++)
        fds[i] = raw_connect(port, 0);
    for (size_t at = 0; at < sizeof upgrade - 1; at++) {
        for (unsigned i = 0; i < (at < 40 ? 4 : 1); i++)
            raw_write(fds[i], upgrade + at, 1);
        turn();
    }
    say_hello(fds[0]);
    UNTIL(victim.up);
    for (unsigned i = 1; i < 4; i++)
        UNTIL(raw_peek(fds[i]) == 0);
    for (unsigned i = 0; i < 4; i++)
        close(fds[i]);
    end_close(&victim);
}

// Pings that are answered as the socket has room, and messages of no bytes: they cost their bytes, nothing more.
static void friends_of_ws(void)
{
    static const uint8_t body[125];
    uint8_t bytes[256];
    for (unsigned i = 0; i < 2; i++) {
        size_t len = i ? ws(bytes, 0x82, NULL, 0) : ws(bytes, 0x89, body, sizeof body);
        wait_for_peer();
        int fd = let_in();
        CHECK(!flood(fd, bytes, len));
        CHECK(!victim.down);
        close(fd);
        end_close(&victim);
    }
}

int main(void)
{
    const struct lieni_provider *const kinds[] = {&lieni_provider_ws, &lieni_provider_h2c};
    const struct lieni_prov_args args = {.env = &raw_env, .report = {.say = raw_say}};
    unsigned tested = 0;
    for (unsigned i = 0; i < 2; i++) {
        enum lieni_proof proof = LIENI_UNKNOWN;
        stream = kinds[i];
        if (stream->open(&args, &prov) != 0)
            continue; // this build has it not
        CHECK(stream->domain_open(prov, "127.0.0.1", &domain) == 0);
        if (is_h2()) {
            strangers_of_h2();
            friends_of_h2();
        } else {
            strangers_of_ws();
            friends_of_ws();
        }
        CHECK(stream->domain_close(domain, &proof) == 0 && proof == LIENI_PROVEN);
        stream->close(prov);
        tested++;
    }
    printf("%u carriers: all passed\n", tested);
    return tested ? 0 : 77;
}
