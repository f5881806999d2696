// SPDX-License-Identifier: Apache-2.0
//
// See pair.h.

#include "tests/ucx/pair.h"

#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

char report_text[512];

static void say(void *self, lien_level level, int code, const char *text)
{
    (void)self;
    (void)level;
    (void)code;
    snprintf(report_text, sizeof report_text, "%s", text);
}

uint64_t pair_now(void *self)
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

static const struct lieni_env env = {.now = pair_now, .random = random_bytes};
static const struct lieni_provider *const ucx = &lieni_provider_ucx;

void side_open(struct side *side)
{
    const struct lieni_prov_args args = {.env = &env, .report = {.say = say}};
    *side = (struct side){0};
    int rc = ucx->open(&args, &side->prov);
    if (rc != 0)
        fprintf(stderr, "%s\n", report_text);
    CHECK_RC(rc, 0);
    CHECK_RC(ucx->domain_open(side->prov, "127.0.0.1", &side->domain), 0);
}

void side_end(struct side *side, enum lieni_proof want)
{
    enum lieni_proof proof = LIENI_UNKNOWN;
    uint64_t late = 7, since = pair_now(NULL);
    int rc;
    ucx->ep_shutdown(side->ep);
    ucx->ep_shutdown(side->ep);
    while ((rc = ucx->ep_destroy(side->ep, &proof, &late)) == LIEN_EBUSY) {
        CHECK(pair_now(NULL) - since < HANG_MS * UINT64_C(1000000));
        turn(side, side->peer && side->peer->ep ? side->peer : NULL);
    }
    CHECK_RC(rc, 0);
    CHECK(proof == want && late == 0);
    side->ep = NULL;
}

void side_close(struct side *side, enum lieni_proof want)
{
    enum lieni_proof proof;
    if (side->ep)
        side_end(side, want);
    CHECK_RC(ucx->domain_close(side->domain, &proof), 0);
    ucx->close(side->prov);
}

static struct lieni_ep_args args_of(struct side *side, const struct lieni_recv *recvs, size_t n)
{
    struct lieni_ep_args args = {
        .user = side, .host = "127.0.0.1", .posts_max = 64, .recvs = recvs, .n_recvs = n};
    memset(args.send_data, 3, sizeof args.send_data);
    memset(args.expect_data, 3, sizeof args.expect_data);
    return args;
}

void side_listen(struct side *side, const struct lieni_recv *recvs, size_t n)
{
    const struct lieni_ep_args args = args_of(side, recvs, n);
    CHECK_RC(ucx->listen(side->domain, &args, &side->ep, &side->port), 0);
    CHECK(side->port != 0);
}

void side_connect(struct side *side, uint16_t port, const struct lieni_recv *recvs, size_t n)
{
    struct lieni_ep_args args = args_of(side, recvs, n);
    args.port = port;
    CHECK_RC(ucx->connect(side->domain, &args, &side->ep), 0);
}

int side_try_connect(struct side *side, uint16_t port)
{
    struct lieni_ep_args args = args_of(side, NULL, 0);
    args.port = port;
    return ucx->connect(side->domain, &args, &side->ep);
}

void pair_up(struct side *owner, struct side *reader)
{
    side_listen(owner, NULL, 0);
    side_connect(reader, owner->port, NULL, 0);
    UNTIL(owner, reader, owner->up && reader->up);
    owner->peer = reader;
    reader->peer = owner;
}

static unsigned events_of(struct side *side)
{
    struct lieni_event events[16];
    unsigned n = side ? ucx->poll(side->prov, events, 16) : 0;
    for (unsigned i = 0; i < n; i++) {
        const struct lieni_event *event = &events[i];
        CHECK(event->user == side);
        side->up += event->kind == LIENI_EV_UP;
        side->failed += event->kind == LIENI_EV_FAILED;
        side->down += event->kind == LIENI_EV_DOWN;
        if (event->kind == LIENI_EV_DOWN || event->kind == LIENI_EV_FAILED)
            side->status = event->status;
        if (event->kind != LIENI_EV_ENTRY)
            continue;
        side->entries++;
        side->good += event->cqe.status == 0;
        side->bad += event->cqe.status != 0;
        side->last = event->cqe;
        CHECK(event->cqe.context < 64);
        side->of[event->cqe.context]++;
        side->status_of[event->cqe.context] = event->cqe.status;
    }
    return n;
}

void turn(struct side *a, struct side *b)
{
    struct pollfd fds[2] = {{.fd = -1}, {.fd = -1}};
    struct side *const sides[2] = {a, b};
    bool sleep = true;
    for (unsigned i = 0; i < 2; i++)
        sleep = events_of(sides[i]) == 0 && sleep;
    for (unsigned i = 0; sleep && i < 2; i++) {
        if (sides[i])
            fds[i] = (struct pollfd){.fd = ucx->fd(sides[i]->prov), .events = POLLIN};
        sleep = !sides[i] || ucx->arm(sides[i]->prov) == 0;
    }
    if (sleep)
        poll(fds, 2, 1);
}
