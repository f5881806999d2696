// SPDX-License-Identifier: Apache-2.0
//
// What others do while a thread of the application hashes (LIEN_CHECKSUM), over libfabric tcp within one process. The hash is held at a gate (the linker's --wrap), so that the moment is certain: closing a
// ctx waits for whoever hashes, a channel may be closed meanwhile, who is late hashes nothing, and a twin that waits for credit hashes only when it has it, since until then the
// buffers are the caller's to write.

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/lien.h>

#include "tests/support/check.h"

#define UNDER_TSAN 0
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#undef UNDER_TSAN
#define UNDER_TSAN 1
#endif
#endif

#define LEN      4096u
#define HELD_MS  100 // for how long it is seen that nobody goes past the gate
#define PLENTY_S 300 // for what hangs

// -- The gate --

static _Atomic bool gate;
static _Atomic unsigned entered;

uint64_t __real_lieni_bufs_sum(lien_buf *const *bufs, uint32_t n, uint64_t at, uint64_t len);
uint64_t __wrap_lieni_bufs_sum(lien_buf *const *bufs, uint32_t n, uint64_t at, uint64_t len);
uint64_t __wrap_lieni_bufs_sum(lien_buf *const *bufs, uint32_t n, uint64_t at, uint64_t len)
{
    entered++;
    while (gate)
        usleep(1000);
    return __real_lieni_bufs_sum(bufs, n, at, len);
}

static void wait_for(const _Atomic unsigned *count, unsigned n)
{
    while (*count < n)
        usleep(1000);
}

// -- Two contexts --

struct pair {
    lien_ctx *client, *server;
    lien_pool *client_pool, *server_pool;
    lien_listener *listener;
    lien_conn *ours, *theirs;
    char address[96];
};

static lien_ctx *ctx_of(const char *const *settings)
{
    lien_ctx_opts opts;
    lien_ctx *ctx;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    CHECK_RC(lien_ctx_open(&opts, &ctx), 0);
    return ctx;
}

static struct pair pair_of(const lien_service *service)
{
    static const char *const settings[] = {"dispatch_threads=2",
                                           "message_credits=1",
                                           "call_credits=1",
                                           "call_ms=120000",
                                           "connect_ms=60000",
                                           "dead_ms=60000",
                                           NULL};
    struct pair p = {.client = ctx_of(settings), .server = ctx_of(settings)};
    lien_conn_opts conn;
    lien_listener_opts opts;
    lien_conn_opts_init(&conn);
    conn.service = service;
    lien_listener_opts_init(&opts);
    opts.conn = &conn;
    CHECK_RC(lien_pool_open(p.client, NULL, &p.client_pool), 0);
    CHECK_RC(lien_pool_open(p.server, NULL, &p.server_pool), 0);
    CHECK_RC(lien_listener_open(p.server, "127.0.0.1:0", &opts, &p.listener), 0);
    CHECK_RC(lien_listener_address(p.listener, p.address, sizeof p.address), 0);
    CHECK_RC(lien_conn_open_wait(p.client, p.address, NULL, &p.ours), 0);
    CHECK_RC(lien_listener_accept_wait(p.listener, 60000, &p.theirs), 0);
    return p;
}

static void pair_close(struct pair *p)
{
    if (p->client)
        CHECK_RC(lien_ctx_close(&p->client), 0);
    if (p->server)
        CHECK_RC(lien_ctx_close(&p->server), 0);
}

static lien_buf *buf_of(lien_pool *pool, int byte)
{
    lien_buf *buf;
    void *data;
    CHECK_RC(lien_pool_alloc(pool, LEN, &buf), 0);
    CHECK_RC(lien_buf_mut(buf, &data), 0);
    memset(data, byte, LEN);
    return buf;
}

// -- A ctx is closed by one thread while another one hashes --

struct user {
    struct pair *pair;
    lien_channel *channel;
    lien_buf *buf;
    int rc;
    _Atomic unsigned over;
};

static void *send_wait(void *arg)
{
    struct user *u = arg;
    lien_send_opts opts;
    lien_send_opts_init(&opts);
    opts.flags = LIEN_CHECKSUM;
    u->rc = lien_send_wait(u->pair->ours, "x", 1, &u->buf, 1, &opts);
    u->over = 1;
    return NULL;
}

static lien_call_opts call_opts(struct user *u)
{
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.flags = LIEN_CHECKSUM;
    opts.read = &u->buf;
    opts.n_read = 1;
    return opts;
}

static void *call_wait(void *arg)
{
    struct user *u = arg;
    lien_call_opts opts = call_opts(u);
    u->rc = lien_call_wait(u->pair->ours, "test/sum", "x", 1, &opts, NULL);
    u->over = 1;
    return NULL;
}

static void *channel_call_wait(void *arg)
{
    struct user *u = arg;
    lien_call_opts opts = call_opts(u);
    u->rc = lien_channel_call_wait(u->channel, "test/sum", "x", 1, &opts, NULL);
    u->over = 1;
    return NULL;
}

static void *channel_call_start(void *arg)
{
    struct user *u = arg;
    lien_call_opts opts = call_opts(u);
    u->rc = lien_channel_call_start(u->channel, "test/sum", "x", 1, &opts, NULL);
    u->over = 1;
    return NULL;
}

struct closer {
    lien_ctx **ctx;
    int rc;
    _Atomic unsigned over;
};

static void *close_ctx(void *arg)
{
    struct closer *c = arg;
    c->rc = lien_ctx_close(c->ctx);
    c->over = 1;
    return NULL;
}

// Closes *ctx while somebody stands at the gate: it waits.
static void closes_after(lien_ctx **ctx)
{
    struct closer closer = {.ctx = ctx};
    pthread_t thread;
    wait_for(&entered, 1);
    CHECK_RC(pthread_create(&thread, NULL, close_ctx, &closer), 0);
    usleep(HELD_MS * 1000);
    CHECK(!closer.over);
    gate = false;
    CHECK_RC(pthread_join(thread, NULL), 0);
    CHECK_RC(closer.rc, 0);
}

static void close_while(void *(*run)(void *))
{
    struct pair p = pair_of(NULL);
    const char *const address = p.address;
    struct user u = {.pair = &p, .buf = buf_of(p.client_pool, 1)};
    pthread_t thread;
    CHECK_RC(lien_channel_open(p.client, &address, 1, NULL, &u.channel), 0);
    entered = 0;
    gate = true;
    CHECK_RC(pthread_create(&thread, NULL, run, &u), 0);
    closes_after(&p.client);
    CHECK_RC(pthread_join(thread, NULL), 0);
    // A channel's call that waits was never begun, which it says like this.
    CHECK(u.rc == LIEN_ECLOSED || u.rc == LIEN_EAGAIN);
    lien_buf_free(&u.buf);
    pair_close(&p);
}

// -- The same from a handler --

enum act {
    REPLY,
    WRITE,
    WRITE_WAIT,
    KEEP
};

static struct handler {
    lien_pool *pool;
    enum act what;
    lien_request *kept;
    int rc;
    _Atomic unsigned over;
} handler;

static void sum(lien_request *request, lien_conn *conn, void *arg)
{
    lien_buf *buf = buf_of(handler.pool, 2);
    lien_transfer_opts opts;
    (void)conn;
    (void)arg;
    lien_transfer_opts_init(&opts);
    opts.flags = LIEN_CHECKSUM;
    switch (handler.what) {
    case REPLY:
        handler.rc = lien_request_reply_body(&request, 0, NULL, 0, &buf, 1);
        break;
    case WRITE:
        handler.rc = lien_request_write(request, &buf, 1, &opts);
        break;
    case WRITE_WAIT:
        handler.rc = lien_request_write_wait(request, &buf, 1, &opts);
        break;
    case KEEP:
        handler.kept = request;
        request = NULL;
        break;
    }
    lien_buf_free(&buf);
    lien_request_drop(&request);
    handler.over = 1;
}

static const lien_method methods[] = {{.name = "test/sum", .handle = sum}};
static const lien_service service = {.methods = methods, .n_methods = 1};

static void begin_call(struct pair *p, lien_space **space)
{
    lien_buf *buf = buf_of(p->client_pool, 3);
    lien_call_opts opts;
    CHECK_RC(lien_space_open(p->client, &buf, 1, space), 0);
    lien_call_opts_init(&opts);
    opts.flags = LIEN_CHECKSUM;
    opts.write = *space;
    opts.reply_max = LEN;
    CHECK_RC(lien_call_start(p->ours, "test/sum", "x", 1, &opts, NULL), 0);
}

static void close_under_handler(enum act what)
{
    struct pair p = pair_of(&service);
    lien_space *space;
    memset(&handler, 0, sizeof handler);
    handler.pool = p.server_pool;
    handler.what = what;
    entered = 0;
    gate = true;
    begin_call(&p, &space);
    closes_after(&p.server);
    CHECK(handler.over);
    lien_space_free(&space);
    pair_close(&p);
}

// A request that was kept beyond its ctx is answered by nobody's hash.
static void reply_after_the_end(void)
{
    struct pair p = pair_of(&service);
    lien_space *space;
    memset(&handler, 0, sizeof handler);
    handler.pool = p.server_pool;
    handler.what = KEEP;
    entered = 0;
    gate = false;
    begin_call(&p, &space);
    wait_for(&handler.over, 1);
    lien_buf *buf = buf_of(p.server_pool, 4);
    lien_space_free(&space);
    pair_close(&p);
    CHECK_RC(lien_request_reply_body(&handler.kept, 0, NULL, 0, &buf, 1), 0);
    CHECK(!handler.kept && !buf && entered == 0);
}

// -- A channel is closed by one thread while another one hashes for a call on it --

static void channel_closed_meanwhile(void)
{
    struct pair p = pair_of(NULL);
    const char *const nobody = "127.0.0.1:1";
    struct user u = {.pair = &p, .buf = buf_of(p.client_pool, 5)};
    pthread_t thread;
    CHECK_RC(lien_channel_open(p.client, &nobody, 1, NULL, &u.channel), 0);
    entered = 0;
    gate = true;
    lien_channel *channel = u.channel;
    CHECK_RC(pthread_create(&thread, NULL, channel_call_start, &u), 0);
    wait_for(&entered, 1);
    CHECK_RC(lien_channel_close_wait(&channel, 60000), 0);
    gate = false;
    CHECK_RC(pthread_join(thread, NULL), 0);
    CHECK_RC(u.rc, LIEN_ECLOSED);
    lien_buf_free(&u.buf);
    pair_close(&p);
}

// -- Credit comes before the hash --

// Whoever waits is asleep soon; that it has not hashed by then is what counts, and it never does.
static void write_meanwhile(struct user *u)
{
    void *data;
    usleep(HELD_MS * 1000);
    CHECK(!u->over && entered == 0);
    CHECK_RC(lien_buf_mut(u->buf, &data), 0);
    memset(data, 7, LEN);
}

static void send_without_credit(void)
{
    struct pair p = pair_of(NULL);
    struct user u = {.pair = &p, .buf = buf_of(p.client_pool, 6)};
    pthread_t thread;
    lien_msg *msg;
    const void *data;
    CHECK_RC(lien_send(p.ours, "first", 5, NULL, 0, NULL), 0); // the only credit
    entered = 0;
    gate = false;
    CHECK_RC(pthread_create(&thread, NULL, send_wait, &u), 0);
    write_meanwhile(&u);
    CHECK_RC(lien_msg_recv_wait(p.theirs, 60000, &msg), 0);
    lien_msg_free(&msg);
    CHECK_RC(lien_msg_recv_wait(p.theirs, 60000, &msg), 0);
    CHECK_RC(lien_buf_data(lien_msg_body(msg), &data), 0);
    for (size_t i = 0; i < LEN; i++)
        CHECK(((const char *)data)[i] == 7);
    CHECK(entered > 0);
    lien_msg_free(&msg);
    CHECK_RC(pthread_join(thread, NULL), 0);
    CHECK_RC(u.rc, 0);
    lien_buf_free(&u.buf);
    pair_close(&p);
}

static void call_without_credit(void)
{
    struct pair p = pair_of(&service);
    struct user u = {.pair = &p, .buf = buf_of(p.client_pool, 6)};
    pthread_t thread;
    memset(&handler, 0, sizeof handler);
    handler.pool = p.server_pool;
    handler.what = KEEP;
    CHECK_RC(lien_call_start(p.ours, "test/sum", "x", 1, NULL, NULL), 0); // the only credit
    wait_for(&handler.over, 1);
    lien_request *first = handler.kept;
    handler.what = REPLY;
    entered = 0;
    gate = false;
    CHECK_RC(pthread_create(&thread, NULL, call_wait, &u), 0);
    write_meanwhile(&u);
    CHECK_RC(lien_request_reply(&first, 0, NULL, 0), 0);
    CHECK_RC(pthread_join(thread, NULL), 0);
    CHECK(entered > 0);
    lien_buf_free(&u.buf);
    pair_close(&p);
}

int main(void)
{
    alarm(PLENTY_S);
    close_while(send_wait);
    close_while(call_wait);
    close_while(channel_call_wait);
    // Memory of a ctx that has ended has a lock of its own, taken with the ctx's held; before the end it is the other way round. No two threads can do both, which ThreadSanitizer cannot know.
    if (!UNDER_TSAN) {
        close_under_handler(REPLY);
        close_under_handler(WRITE);
        close_under_handler(WRITE_WAIT);
        reply_after_the_end();
    }
    channel_closed_meanwhile();
    send_without_credit();
    call_without_credit();
    return 0;
}
