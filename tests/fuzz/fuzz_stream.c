// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target of the inline providers: one endpoint of `stream`, `ws` or `h2c`, server or client, on a socket whose other end says what the input says. The first byte chooses carrier, side and how
// much of the opening is done right; then each step is a byte and its operands: frames made from fields, so that they can be nearly right, bytes inside of the carrier, bytes below it, the carrier's
// own frames, and what the endpoint's owner does: posts, a region that goes and comes, the end.
//
// The judges: the sanitizers (the region is allocated to the byte); each post has one entry, a successful READ all its bytes; nothing changes the posts' memory after ep_shutdown; polling comes to rest.

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/stream/providers.h"
#include "provider/stream/stream.h"
#include "tests/fuzz/fuzz.h"

#define POSTS     16u
#define POST_SIZE 2048u
#define REGION    70000u // more than a chunk
#define STEPS_MAX 200u

enum carrier {
    PLAIN,
    WS,
    H2
};

struct input {
    const uint8_t *at;
    size_t left;
};

struct run {
    const struct lieni_provider *ops;
    enum carrier carrier;
    bool server; // the endpoint is
    struct lieni_prov *prov;
    struct lieni_domain *domain;
    struct lieni_ep *ep;
    int fd; // the other end of its socket, -1: closed
    uint8_t *region;
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    uint8_t *memory;        // of posts
    uint32_t posted[POSTS]; // bytes + 1 of each, 0: none
    bool read[POSTS];
    bool was_up, ended, shut;
    uint32_t number; // of the last READ that was answered
};

static struct lieni_prov *provs[3];
static uint32_t random_state;

static uint8_t take(struct input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

// -- The endpoint's surroundings --

static uint64_t now(void *self)
{
    (void)self;
    return 0;
}

// The WebSocket key is all zeros, so what accepts it is known; the rest need not repeat itself within an input.
static void random_bytes(void *self, void *buf, size_t len)
{
    uint8_t *at = buf;
    (void)self;
    for (size_t i = 0; i < len; i++) {
        random_state = random_state * 1664525u + 1013904223u;
        at[i] = len == 16 ? 0 : (uint8_t)(random_state >> 24);
    }
}

static void say(void *self, lien_level level, int code, const char *text)
{
    (void)self;
    (void)level;
    (void)code;
    FUZZ_CHECK(strlen(text) < 512 ? NULL : "a report without an end");
}

static const struct lieni_env env = {.now = now, .random = random_bytes};
static const struct lieni_provider *const kinds[] = {&lieni_provider_stream, &lieni_provider_ws,
                                                     &lieni_provider_h2c};

static void took_event(struct run *r, const struct lieni_event *event)
{
    if (event->kind == LIENI_EV_UP) {
        FUZZ_CHECK(r->was_up || r->ended ? "up twice, or after the end" : NULL);
        r->was_up = true;
        return;
    }
    if (event->kind != LIENI_EV_ENTRY) {
        FUZZ_CHECK(r->ended ? "a second end" : NULL);
        FUZZ_CHECK(event->status == 0 ? "an end without a reason" : NULL);
        r->ended = true;
        return;
    }
    uint64_t i = event->cqe.context;
    FUZZ_CHECK(i >= POSTS || r->posted[i] == 0 ? "an entry of nothing that was posted" : NULL);
    if (event->cqe.status == 0)
        FUZZ_CHECK(event->cqe.len >= r->posted[i] ? "more bytes than were posted" : NULL);
    if (event->cqe.status == 0 && r->read[i])
        FUZZ_CHECK(event->cqe.len + 1 != r->posted[i] ? "a READ without all its bytes" : NULL);
    r->posted[i] = 0;
}

static void settle(struct run *r)
{
    struct lieni_event events[4];
    for (unsigned n = 0;; n++) {
        unsigned got = r->ops->poll(r->prov, events, 4);
        for (unsigned i = 0; i < got; i++)
            took_event(r, &events[i]);
        if (got == 0 && r->ops->arm(r->prov) == 0)
            return;
        FUZZ_CHECK(n > 5000 ? "work without an end" : NULL);
    }
}

static void region_open(struct run *r)
{
    r->region = malloc(REGION);
    FUZZ_CHECK(r->region ? NULL : "no memory");
    memset(r->region, 0x5a, REGION);
    FUZZ_CHECK(r->ops->mr_reg(r->domain, r->region, REGION, LIENI_ACCESS_REMOTE, &r->mr, &r->info)
                   ? "no region"
                   : NULL);
}

static void region_close(struct run *r)
{
    if (!r->mr)
        return;
    r->ops->mr_close(r->mr);
    r->mr = NULL;
    free(r->region); // whoever reads it now is found
}

// -- The peer's words --

// As much as the socket takes.
static void below(struct run *r, const void *bytes, size_t len)
{
    if (r->fd >= 0 && len > 0)
        (void)!send(r->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void ws_frame(struct run *r, uint8_t first, const uint8_t *bytes, size_t len)
{
    uint8_t head[8] = {first, (uint8_t)(len < 126 ? len : 126)};
    size_t n = 2;
    if (len >= 126) {
        head[n++] = (uint8_t)(len >> 8);
        head[n++] = (uint8_t)len;
    }
    if (r->server) { // masked by zeros
        head[1] |= 0x80;
        n += 4;
    }
    below(r, head, n);
    below(r, bytes, len);
}

static void h2_frame(struct run *r, uint8_t type, uint8_t flags, uint32_t stream, const void *bytes,
                     size_t len)
{
    const uint8_t head[9] = {
        (uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len, type, flags, 0, 0, 0,
        (uint8_t)stream};
    below(r, head, sizeof head);
    below(r, bytes, len);
}

static void inside(struct run *r, const uint8_t *bytes, size_t len)
{
    switch (r->carrier) {
    case PLAIN:
        below(r, bytes, len);
        break;
    case WS:
        ws_frame(r, 0x82, bytes, len);
        break;
    case H2:
        h2_frame(r, 0, 0, 1, bytes, len);
        break;
    }
}

static void open_carrier(struct run *r)
{
    static const char request[] =
        "GET /lien HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: lien\r\n\r\n";
    static const char answer[] =
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n"
        "Sec-WebSocket-Protocol: lien\r\n\r\n";
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    if (r->carrier == WS && r->server)
        below(r, request, sizeof request - 1);
    if (r->carrier == WS && !r->server)
        below(r, answer, sizeof answer - 1);
    if (r->carrier != H2)
        return;
    if (r->server)
        below(r, preface, sizeof preface - 1);
    h2_frame(r, 4, 0, 0, "", 0);
    if (r->server) // POST, http, /lien, authority x
        h2_frame(r, 1, 4, 1, "\x83\x86\x04\x05/lien\x01\x01x", 12);
    else // 200
        h2_frame(r, 1, 4, 1, "\x88", 1);
}

static void hello(struct run *r)
{
    uint8_t bytes[LIENI_STREAM_HEAD + LIENI_CM_DATA] = {0};
    lieni_stream_head(bytes, LIENI_STREAM_HELLO, LIENI_CM_DATA, 8);
    memset(bytes + LIENI_STREAM_HEAD, 1, LIENI_CM_DATA);
    inside(r, bytes, sizeof bytes);
}

// -- Steps --

static void frame(struct run *r, struct input *in)
{
    static const uint32_t lens[] = {0, 1, 4, 20, 64, 2048, 65536, 65537};
    uint8_t bytes[LIENI_STREAM_HEAD + 2048];
    uint8_t kind = take(in) & 7, how = take(in);
    uint32_t len = lens[how & 7], number = r->number + 1;
    size_t body = len <= 2048 ? len : 2048;
    memset(bytes, how, sizeof bytes);
    if (kind == LIENI_STREAM_SEND)
        number = 0;
    if (kind == LIENI_STREAM_READ || kind == LIENI_STREAM_REFUSED)
        len = kind == LIENI_STREAM_READ ? 20 : 4;
    if (kind == LIENI_STREAM_READ || kind == LIENI_STREAM_REFUSED)
        body = len;
    uint8_t *at = bytes + LIENI_STREAM_HEAD;
    if (kind == LIENI_STREAM_READ) {
        static const uint32_t sizes[] = {1, 4096, REGION, REGION + 1, 0, 1u << 20, 65536, 65537};
        lieni_put64(at, r->info.key + (how >> 6 == 3));
        lieni_put64(at + 8, how & 8 ? take(in) : how & 16 ? UINT64_MAX - take(in) : 0);
        lieni_put32(at + 16, sizes[how & 7]);
    }
    if (kind == LIENI_STREAM_REFUSED)
        lieni_put32(at, 1u + (how >> 5 == 7));
    if (how >> 5 == 6)
        number = take(in);
    if (how >> 5 == 5)
        body = body * take(in) / 256; // the rest is missing
    lieni_stream_head(bytes, kind, len, number);
    if (how >> 5 == 4)
        bytes[take(in) % sizeof bytes] = take(in);
    if (kind == LIENI_STREAM_REFUSED)
        r->number++;
    inside(r, bytes, LIENI_STREAM_HEAD + body);
}

static void raw(struct run *r, struct input *in, bool carried)
{
    uint8_t bytes[256];
    size_t len = take(in);
    for (size_t i = 0; i < len; i++)
        bytes[i] = take(in);
    if (carried)
        inside(r, bytes, len);
    else
        below(r, bytes, len);
}

// Frames of the carrier's own, of any kind; for the plain one, bytes of an answer that goes on.
static void carriers_own(struct run *r, struct input *in)
{
    uint8_t bytes[256];
    uint8_t type = take(in), flags = take(in), stream = take(in);
    size_t len = take(in);
    for (size_t i = 0; i < len; i++)
        bytes[i] = take(in);
    switch (r->carrier) {
    case PLAIN:
        r->number += type & 1;
        below(r, bytes, len);
        break;
    case WS:
        ws_frame(r, type, bytes, len);
        break;
    case H2:
        h2_frame(r, type % 11, flags, stream % 4, bytes, len);
        break;
    }
}

static void post(struct run *r, struct input *in, unsigned what)
{
    uint8_t how = take(in);
    unsigned i = how % POSTS;
    uint32_t len = how >> 4 == 15 ? POST_SIZE : (how >> 4) * 16u;
    uint8_t *buf = r->memory + i * POST_SIZE;
    if (r->posted[i] != 0 || r->shut)
        return;
    int rc;
    if (what == 0)
        rc = r->ops->post_send(r->ep, buf, len, NULL, i);
    else if (what == 1)
        rc = r->ops->post_recv(r->ep, buf, len, NULL, i);
    else
        rc = r->ops->post_read(r->ep, buf, len, NULL, 0, 1, i);
    r->read[i] = what == 2;
    if (rc == 0)
        r->posted[i] = len + 1;
}

static void drain(struct run *r, unsigned times)
{
    static uint8_t nowhere[65536];
    while (r->fd >= 0 && times-- > 0 && recv(r->fd, nowhere, sizeof nowhere, MSG_DONTWAIT) > 0)
        continue;
}

static void hang_up(struct run *r, bool half)
{
    if (r->fd >= 0 && half)
        shutdown(r->fd, SHUT_WR);
    if (r->fd < 0 || half)
        return;
    close(r->fd);
    r->fd = -1;
}

// The end: nothing is written any more to the memory of posts, and what was posted has its entries.
static void shut(struct run *r)
{
    static uint8_t before[POSTS * POST_SIZE];
    if (r->shut)
        return;
    r->shut = true;
    r->ops->ep_shutdown(r->ep);
    memcpy(before, r->memory, sizeof before);
    settle(r);
    FUZZ_CHECK(memcmp(before, r->memory, sizeof before) ? "written after the end" : NULL);
    for (unsigned i = 0; i < POSTS && r->was_up; i++)
        FUZZ_CHECK(r->posted[i] ? "a post without an entry" : NULL);
}

static void step(struct run *r, struct input *in)
{
    uint8_t what = take(in);
    switch (what & 15) {
    default: // 0 to 4
        frame(r, in);
        break;
    case 5:
    case 6:
        raw(r, in, what & 1);
        break;
    case 7:
        carriers_own(r, in);
        break;
    case 8:
    case 9:
    case 10:
        post(r, in, (what & 15) - 8u);
        break;
    case 11:
        drain(r, 1 + (what >> 4 & 3));
        break;
    case 12:
        r->number++;
        break;
    case 13:
        if (r->mr)
            region_close(r);
        else
            region_open(r);
        break;
    case 14:
        if (what >> 4 == 6 || what >> 4 == 7)
            hang_up(r, what >> 4 == 6);
        break;
    case 15:
        if (what >> 4 == 7)
            shut(r);
        break;
    }
    if (!(what & 0x80)) // else several come at once
        settle(r);
}

// -- One input --

static void make_ep(struct run *r, bool narrow)
{
    int fds[2], low = 4096;
    struct lieni_recv recvs[2] = {{.buf = r->memory, .len = 64, .context = 0},
                                  {.buf = r->memory + POST_SIZE, .len = POST_SIZE, .context = 1}};
    struct lieni_ep_args args = {.user = r,
                                 .host = "127.0.0.1",
                                 .name = "x",
                                 .port = 1,
                                 .posts_max = POSTS,
                                 .recvs = recvs,
                                 .n_recvs = 2};
    memset(args.send_data, 2, sizeof args.send_data);
    memset(args.expect_data, 1, sizeof args.expect_data);
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds)
                   ? "no sockets"
                   : NULL);
    if (narrow)
        setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &low, sizeof low);
    r->fd = fds[1];
    r->posted[0] = 64 + 1;
    r->posted[1] = POST_SIZE + 1;
    int rc = lieni_stream_ep_new(r->domain, &args, r->server, &r->ep);
    if (rc == 0)
        rc = lieni_lane_new(r->ep, fds[0], r->server, 0);
    FUZZ_CHECK(rc ? "no endpoint" : NULL);
}

static void open_run(struct run *r, uint8_t how)
{
    random_state = 1;
    r->carrier = (enum carrier)((how & 3) % 3);
    r->server = how >> 2 & 1;
    const struct lieni_prov_args args = {.env = &env, .report = {.say = say}};
    if (!provs[r->carrier] && kinds[r->carrier]->open(&args, &provs[r->carrier]) != 0)
        r->carrier = PLAIN; // this build has it not
    if (!provs[r->carrier])
        FUZZ_CHECK(kinds[PLAIN]->open(&args, &provs[PLAIN]) ? "no provider" : NULL);
    r->ops = kinds[r->carrier];
    r->prov = provs[r->carrier];
    r->memory = calloc(POSTS, POST_SIZE);
    FUZZ_CHECK(r->memory ? NULL : "no memory");
    FUZZ_CHECK(r->ops->domain_open(r->prov, "127.0.0.1", &r->domain) ? "no domain" : NULL);
    region_open(r);
    make_ep(r, how >> 5 & 1);
    settle(r);
    if (how & 8)
        open_carrier(r);
    settle(r);
    if (how & 16)
        hello(r);
    settle(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {.at = data, .left = size};
    struct run r = {0};
    enum lieni_proof proof = LIENI_UNKNOWN;
    uint64_t late = 1;
    open_run(&r, take(&in));
    for (unsigned i = 0; i < STEPS_MAX && in.left > 0; i++)
        step(&r, &in);
    settle(&r);
    shut(&r);
    hang_up(&r, false);
    FUZZ_CHECK(r.ops->ep_destroy(r.ep, &proof, &late) ? "not destroyed" : NULL);
    FUZZ_CHECK(proof != LIENI_PROVEN || late != 0 ? "no proof" : NULL);
    region_close(&r);
    FUZZ_CHECK(r.ops->domain_close(r.domain, &proof) ? "the domain does not close" : NULL);
    free(r.memory);
    return 0;
}
