// SPDX-License-Identifier: Apache-2.0
//
// What tests of the inline providers at their interface share: the side under test (one provider, one domain, endpoints whose events are counted), and raw sockets that speak docs/wire.md
// as they like. One thread drives both sides.

#ifndef TESTS_STREAM_RAW_H
#define TESTS_STREAM_RAW_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "provider/stream/providers.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: not so: %s (last report: %s)\n", __FILE__, __LINE__,       \
                    __func__, #condition, report_text);                                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define HANG_MS 30000u
#define HEAD    12u
#define MIB     (1u << 20)

enum kind {
    HELLO = 1,
    SEND,
    RECVS,
    READ,
    DATA,
    REFUSED
};

extern char report_text[512];               // the last
extern const struct lieni_provider *stream; // a test sets these
extern struct lieni_prov *prov;
extern struct lieni_domain *domain;
extern const struct lieni_env raw_env;

void raw_say(void *self, lien_level level, int code, const char *text);
uint64_t raw_now(void *self);

struct end {
    struct lieni_ep *ep;
    unsigned up, failed, down, entries;
    int status;
    struct lieni_cqe last;
};

// Progress, or a ms of sleep.
void turn(void);

#define UNTIL(condition)                                                                           \
    for (uint64_t since_ = raw_now(NULL); !(condition); turn())                                    \
    CHECK(raw_now(NULL) - since_ < HANG_MS * UINT64_C(1000000))

struct lieni_ep_args args_of(struct end *end, uint16_t port);
void end_close(struct end *end);

// -- Raw sockets --

int raw_connect(uint16_t port, int rcvbuf);
void put(uint8_t *at, uint64_t v, unsigned n);
uint64_t get(const uint8_t *at, unsigned n);
void raw_write(int fd, const void *data, size_t len);
void raw_frame(int fd, unsigned kind, uint64_t len, uint64_t number, const void *body,
               size_t body_len);
void raw_read_frame(int fd, uint32_t number, uint64_t key, uint64_t addr, uint64_t len);
void raw_hello(int fd, uint8_t byte, uint32_t recvs);
// What the socket has to read: bytes, 0 if the peer ended it, -1 nothing yet.
ssize_t raw_peek(int fd);
void raw_take(int fd, void *to, size_t len);

struct frame {
    unsigned kind;
    uint64_t len, number;
};

struct frame raw_take_head(int fd);
void raw_take_hello(int fd, uint32_t recvs);
void raw_take_refusal(int fd, uint32_t number);

#endif
