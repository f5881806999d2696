// SPDX-License-Identifier: Apache-2.0
//
// R5: a blocking twin answers LIEN_EDEADLK where it could never return, in callbacks of a LIEN_INLINE connection and inside lien_ctx_progress(), and changes nothing by it; on a dispatch
// thread the twins work; and an inline callback that blocks is named by the watchdog while it still does.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/loops/support.h"

static const char *const settings[] = {"dispatch_threads=1", "log_level=warn", NULL};

enum place {
    PLACE_INLINE,   // a callback of a LIEN_INLINE connection, on the progress thread
    PLACE_DRIVEN,   // a callback inside lien_ctx_progress()
    PLACE_DISPATCH, // a callback on a dispatch thread
    PLACES
};
static const char *const names[] = {"inline", "app-driven", "dispatch"};

struct world {
    enum place place;
    struct peer *peer;
    lien_ctx *ctx;
    lien_pool *pool, *small;
    lien_buf *slot, *all;    // all: the small pool's only room
    lien_conn *conn, *queue; // queue: one without on_message
    lien_listener *listener;
    lien_token token;
    atomic_bool tried, closed;
};

// -- Log --

static struct {
    pthread_mutex_t lock;
    char slow[256]; // the watchdog's last line
    uint64_t at;    // ms
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_log(const lien_log_line *line, void *arg)
{
    (void)arg;
    pthread_mutex_lock(&seen.lock);
    if (strstr(line->text, "inline")) {
        snprintf(seen.slow, sizeof seen.slow, "conn %llx: %s", (unsigned long long)line->conn,
                 line->text);
        seen.at = now_ms();
    }
    pthread_mutex_unlock(&seen.lock);
}

// -- Every twin --

static void refuses(struct world *w)
{
    lien_conn *conn = NULL, *closing = w->conn;
    lien_ctx *ctx = w->ctx;
    lien_buf *buf = NULL;
    lien_msg *msg;
    const void *bytes;
    IS(lien_conn_open_wait(w->ctx, w->peer->address, NULL, &conn), LIEN_EDEADLK);
    CHECK(conn == NULL);
    IS(lien_conn_close_wait(&closing, 1000), LIEN_EDEADLK);
    CHECK(closing == w->conn);
    IS(lien_listener_accept_wait(w->listener, 1000, &conn), LIEN_EDEADLK);
    IS(lien_send_wait(w->conn, "D", 1, NULL, 0, NULL), LIEN_EDEADLK);
    IS(lien_msg_recv_wait(w->queue, 1000, &msg), LIEN_EDEADLK);
    IS(lien_pool_alloc_wait(w->small, 4096, 1000, &buf), LIEN_EDEADLK);
    IS(lien_read_wait(w->conn, w->token.bytes, w->token.len, &w->slot, 1, NULL), LIEN_EDEADLK);
    IS(lien_buf_data(w->slot, &bytes), 0); // still the caller's, and not lent
    IS(lien_ctx_close(&ctx), LIEN_EDEADLK);
    CHECK(ctx == w->ctx);
    if (w->place == PLACE_DRIVEN)
        IS(lien_ctx_progress(w->ctx), LIEN_EDEADLK);
    // A grant that its peer did not hear of is not released yet, and memory registered and lent to it neither.
    static uint8_t own[4096];
    lien_mem *mem;
    lien_grant *grant;
    lien_token token;
    IS(lien_mem_register(w->ctx, own, sizeof own, NULL, &mem), 0);
    IS(lien_mem_buf(mem, 0, sizeof own, &buf), 0);
    IS(lien_grant_open(w->conn, &buf, 1, NULL, &token, &grant), 0);
    IS(lien_grant_wait(grant, 1000), LIEN_EDEADLK);
    lien_buf_free(&buf); // at the grant's release
    IS(lien_mem_unregister_wait(&mem, 1000), LIEN_EDEADLK);
    CHECK(mem != NULL);
    IS(lien_mem_unregister(&mem), 0);
    IS(lien_grant_close(&grant), 0);
    // So is a space that a read was just started into.
    lien_space *space;
    IS(lien_pool_alloc(w->pool, PEER_BYTES, &buf), 0);
    IS(lien_space_open(w->ctx, &buf, 1, &space), 0);
    IS(lien_read_start(w->conn, w->token.bytes, w->token.len, space, NULL, NULL), 0);
    IS(lien_space_wait(space, 1000), LIEN_EDEADLK);
    lien_space_free(&space);
}

static void works(struct world *w)
{
    lien_conn *conn;
    lien_msg *msg;
    const void *head;
    size_t len;
    IS(lien_conn_open_wait(w->ctx, w->peer->address, NULL, &conn), 0);
    IS(lien_send_wait(conn, "Ea", 2, NULL, 0, NULL), 0);
    IS(lien_msg_recv_wait(conn, 20000, &msg), 0);
    IS(lien_msg_head(msg, &head, &len), 0);
    CHECK(len == 2 && memcmp(head, "Ea", 2) == 0);
    lien_msg_free(&msg);
    IS(lien_conn_close(&conn), 0);
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.flags = LIEN_RELEASE;
    IS(lien_read_wait(w->conn, w->token.bytes, w->token.len, &w->slot, 1, &opts), 0);
    const void *bytes;
    IS(lien_buf_data(w->slot, &bytes), 0);
    CHECK(((const uint8_t *)bytes)[12345] == (uint8_t)(12345u * 7));
    lien_buf *buf;
    IS(lien_pool_alloc_wait(w->small, 4096, 50, &buf), LIEN_ETIMEDOUT);
    IS(lien_listener_accept_wait(w->listener, 50, &conn), LIEN_ETIMEDOUT);
}

// -- The worlds --

static void on_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct world *w = arg;
    const void *head;
    size_t len;
    (void)conn;
    IS(lien_msg_head(msg, &head, &len), 0);
    w->token.len = (uint32_t)(len - 1);
    memcpy(w->token.bytes, (const uint8_t *)head + 1, w->token.len);
    lien_msg_free(&msg);
    if (w->place == PLACE_DISPATCH)
        works(w);
    else
        refuses(w);
    atomic_store(&w->tried, true);
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    struct world *w = arg;
    (void)conn;
    IS(status, 0);
    atomic_store(&w->closed, true);
}

static void world_open(struct world *w, enum place place, struct peer *peer)
{
    memset(w, 0, sizeof *w);
    w->place = place;
    w->peer = peer;
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    opts.flags = place == PLACE_DRIVEN ? LIEN_APP_DRIVEN : 0;
    opts.log = on_log;
    IS(lien_ctx_open(&opts, &w->ctx), 0);
    IS(lien_pool_open(w->ctx, NULL, &w->pool), 0);
    lien_pool_opts small;
    lien_pool_opts_init(&small);
    small.limit = 4096;
    small.reserve = 0;
    IS(lien_pool_open(w->ctx, &small, &w->small), 0);
    IS(lien_pool_alloc(w->small, 4096, &w->all), 0);
    IS(lien_pool_alloc(w->pool, PEER_BYTES, &w->slot), 0);
    IS(lien_listener_open(w->ctx, "127.0.0.1:0", NULL, &w->listener), 0);
    lien_conn_opts conn;
    lien_conn_opts_init(&conn);
    conn.flags = place == PLACE_INLINE ? LIEN_INLINE : 0;
    conn.arg = w;
    conn.on_message = on_message;
    conn.on_closed = on_closed;
    IS(lien_conn_open_wait(w->ctx, peer->address, NULL, &w->queue), 0);
    IS(lien_conn_open_wait(w->ctx, peer->address, &conn, &w->conn), 0);
}

static bool is_set(void *arg)
{
    return atomic_load((atomic_bool *)arg);
}

// Until `flag` is set: by threads, or by progress here.
static void until(struct world *w, atomic_bool *flag, const char *what)
{
    if (w->place != PLACE_DRIVEN) {
        wait_until(is_set, flag, 20000, what);
        return;
    }
    for (uint64_t end = now_ms() + 20000; !atomic_load(flag); sleep_ms(1)) {
        CHECK(now_ms() < end);
        IS(lien_ctx_progress(w->ctx), 0);
    }
}

static void world_close(struct world *w)
{
    IS(lien_conn_close(&w->queue), 0);
    IS(lien_conn_close(&w->conn), 0);
    until(w, &w->closed, "on_closed");
    lien_buf_free(&w->slot);
    lien_buf_free(&w->all);
    IS(lien_pool_close(&w->pool), 0);
    IS(lien_pool_close(&w->small), 0);
    IS(lien_listener_close(&w->listener), 0);
    IS(lien_ctx_close(&w->ctx), 0);
}

static void twins(enum place place, struct peer *peer)
{
    struct world w;
    world_open(&w, place, peer);
    IS(lien_send(w.conn, "G", 1, NULL, 0, NULL), 0);
    until(&w, &w.tried, "the callback");
    // And from the application's own thread each of them works, also where it makes the progress itself.
    IS(lien_send_wait(w.conn, "D", 1, NULL, 0, NULL), 0);
    world_close(&w);
    printf("twins in %s callbacks: ok\n", names[place]);
}

// -- A connection closed under its waiters --

struct waiter {
    lien_conn *conn;
    bool send; // waits for credit, else for a message
    int rc;
};

static void *wait_on(void *arg)
{
    struct waiter *waiter = arg;
    lien_msg *msg;
    do
        waiter->rc = waiter->send ? lien_send_wait(waiter->conn, "G", 1, NULL, 0, NULL)
                                  : lien_msg_recv_wait(waiter->conn, LIEN_FOREVER, &msg);
    while (waiter->rc == 0 && waiter->send);
    return NULL;
}

// One that waits for a message that never comes, and one for credit that never comes, since nobody takes what it sent.
static void closed_under(bool send)
{
    lien_ctx *ctx = ctx_open(settings);
    lien_listener *listener;
    char address[96];
    struct waiter waiter = {.send = send};
    pthread_t thread;
    lien_conn *conn, *deaf;
    lien_conn_info info = {.size = sizeof info};
    IS(lien_listener_open(ctx, "127.0.0.1:0", NULL, &listener), 0);
    IS(lien_listener_address(listener, address, sizeof address), 0);
    IS(lien_conn_open_wait(ctx, address, NULL, &conn), 0);
    IS(lien_listener_accept_wait(listener, 20000, &deaf), 0);
    waiter.conn = conn;
    CHECK(pthread_create(&thread, NULL, wait_on, &waiter) == 0);
    do {
        sleep_ms(50);
        IS(lien_conn_info_get(conn, &info), 0);
    } while (send && info.message_credits > 0);
    sleep_ms(200); // it sleeps by now; if not, nothing is shown, and nothing fails
    IS(lien_conn_close_wait(&conn, 20000), 0);
    pthread_join(thread, NULL);
    IS(waiter.rc, LIEN_ECLOSED);
    IS(lien_conn_close(&deaf), 0);
    IS(lien_listener_close(&listener), 0);
    IS(lien_ctx_close(&ctx), 0);
    printf("closed while another thread waits to %s: ok\n", send ? "send" : "receive");
}

// -- A ctx closed under a thread that connects --

struct opener {
    lien_ctx *ctx;
    char address[32];
    int rc;
};

static void *open_to_nobody(void *arg)
{
    struct opener *opener = arg;
    lien_conn *conn = NULL;
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.timeout_ms = 60000;
    opener->rc = lien_conn_open_wait(opener->ctx, opener->address, &opts, &conn);
    CHECK(conn == NULL);
    return NULL;
}

// The server takes the connection and never says a word.
static void ctx_closed_under(unsigned flags)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int mute = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(mute >= 0 && bind(mute, (struct sockaddr *)&at, len) == 0 && listen(mute, 4) == 0);
    CHECK(getsockname(mute, (struct sockaddr *)&at, &len) == 0);
    struct opener opener = {.rc = 1};
    snprintf(opener.address, sizeof opener.address, "127.0.0.1:%u", ntohs(at.sin_port));
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.flags = flags;
    opts.settings = settings;
    IS(lien_ctx_open(&opts, &opener.ctx), 0);
    lien_ctx *ctx = opener.ctx;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, open_to_nobody, &opener) == 0);
    int got = accept(mute, NULL, NULL);
    CHECK(got >= 0);
    sleep_ms(100); // it sleeps by now; if not, nothing is shown, and nothing fails
    IS(lien_ctx_close(&ctx), 0);
    pthread_join(thread, NULL);
    IS(opener.rc, LIEN_ECLOSED);
    close(got);
    close(mute);
    printf("ctx closed while another thread connects, %s: ok\n", flags ? "app-driven" : "threaded");
}

// -- Watchdog --

static void block(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct world *w = arg;
    (void)conn;
    lien_msg_free(&msg);
    for (int i = 0; i < 5000; i++) { // for as long as it is not named
        sleep_ms(1);
        pthread_mutex_lock(&seen.lock);
        bool named = seen.at != 0;
        pthread_mutex_unlock(&seen.lock);
        if (named)
            break;
    }
    atomic_store(&w->tried, true);
}

static void watchdog(struct peer *peer)
{
    struct world w;
    world_open(&w, PLACE_INLINE, peer);
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.flags = LIEN_INLINE;
    opts.arg = &w;
    opts.on_message = block;
    lien_conn *conn;
    IS(lien_conn_open_wait(w.ctx, peer->address, &opts, &conn), 0);
    lien_conn_info info = {.size = sizeof info};
    IS(lien_conn_info_get(conn, &info), 0);
    uint64_t begin = now_ms();
    IS(lien_send(conn, "E", 1, NULL, 0, NULL), 0);
    wait_until(is_set, &w.tried, 20000, "the blocking callback");
    pthread_mutex_lock(&seen.lock);
    printf("watchdog after %llu ms: %s\n", (unsigned long long)(seen.at ? seen.at - begin : 0),
           seen.slow);
    char id[32];
    snprintf(id, sizeof id, "conn %llx:", (unsigned long long)info.id);
    CHECK(seen.at != 0 && strncmp(seen.slow, id, strlen(id)) == 0);
    pthread_mutex_unlock(&seen.lock);
    IS(lien_conn_close(&conn), 0);
    world_close(&w);
}

// A deadline that is set by a thread which then sleeps: progress must wake for it, though all else that it waits for is hours away.
static void channel_to_nobody(void)
{
    static const char *const waits[] = {"backoff_min_ms=3600000", "backoff_max_ms=3600000", NULL};
    const char *const nobody[] = {"127.0.0.1:1"};
    lien_ctx *ctx = ctx_open(waits);
    lien_channel *channel;
    lien_call_opts opts;
    lien_msg *reply = NULL;
    IS(lien_channel_open(ctx, nobody, 1, NULL, &channel), 0);
    sleep_ms(200); // the attempt has failed by now
    lien_call_opts_init(&opts);
    opts.timeout_ms = 50;
    for (int i = 0; i < 3; i++)
        IS(lien_channel_call_wait(channel, "m", NULL, 0, &opts, &reply), LIEN_EAGAIN);
    IS(lien_channel_close_wait(&channel, 20000), 0);
    IS(lien_ctx_close(&ctx), 0);
    puts("a call waits for a channel to nobody no longer than its deadline: ok");
}

int main(void)
{
    struct peer peer;
    setvbuf(stdout, NULL, _IOLBF, 0);
    peer_open(&peer, settings, 0);
    for (int place = 0; place < PLACES; place++)
        twins((enum place)place, &peer);
    closed_under(false);
    closed_under(true);
    ctx_closed_under(0);
    ctx_closed_under(LIEN_APP_DRIVEN);
    channel_to_nobody();
    watchdog(&peer);
    peer_close(&peer);
    puts("ok");
    return 0;
}
