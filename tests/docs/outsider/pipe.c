// SPDX-License-Identifier: Apache-2.0
//
// Written from the header and the manual alone: a stream of messages with bodies from a producer to a consumer that is slower, through a pool of 1 MiB at either end. The producer waits for memory,
// not for time: lien_pool_alloc_wait() returns when the consumer's release has freed an earlier body.

#include <lien/lien.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int rc, int line)
{
    if (rc != 0) {
        fprintf(stderr, "line %d: %s\n", line, lien_errname(rc));
        exit(1);
    }
}
#define MUST(call) must((call), __LINE__)

enum {
    BODY = 65536,
    MESSAGES = 200
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned writable, sent, released;

static void on_writable(lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    pthread_mutex_lock(&lock);
    writable++;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static void on_sent(void *arg, int status)
{
    (void)arg;
    MUST(status);
    pthread_mutex_lock(&lock);
    sent++;
    pthread_mutex_unlock(&lock);
}

static void on_released(void *arg, int status)
{
    (void)arg;
    MUST(status);
    pthread_mutex_lock(&lock);
    released++;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static lien_pool *small_pool(lien_ctx *ctx)
{
    lien_pool *pool;
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.limit = 1 << 20;
    opts.reserve = 0;
    MUST(lien_pool_open(ctx, &opts, &pool));
    return pool;
}

static void send_one(lien_conn *conn, lien_pool *pool, uint32_t i)
{
    lien_buf *buf;
    void *data;
    MUST(lien_pool_alloc_wait(pool, BODY, 30000, &buf));
    MUST(lien_buf_mut(buf, &data));
    memset(data, (int)(i & 0xff), BODY);
    lien_send_opts opts;
    lien_send_opts_init(&opts);
    opts.on_done = on_sent;
    opts.on_released = on_released;
    for (;;) {
        pthread_mutex_lock(&lock);
        unsigned before = writable;
        pthread_mutex_unlock(&lock);
        int rc = lien_send(conn, &i, sizeof i, &buf, 1, &opts);
        if (rc == 0)
            break;
        if (rc != LIEN_EAGAIN)
            MUST(rc);
        pthread_mutex_lock(&lock);
        while (writable == before)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
    }
    lien_buf_free(&buf); // takes effect when the consumer has read it
}

static void *produce(void *arg)
{
    const char *address = arg;
    lien_ctx *ctx;
    lien_conn *conn;
    MUST(lien_ctx_open(NULL, &ctx));
    lien_pool *pool = small_pool(ctx);
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.on_writable = on_writable;
    MUST(lien_conn_open_wait(ctx, address, &opts, &conn));
    for (uint32_t i = 0; i < MESSAGES; i++)
        send_one(conn, pool, i);
    pthread_mutex_lock(&lock);
    while (released < MESSAGES)
        pthread_cond_wait(&changed, &lock);
    bool right = sent == MESSAGES;
    pthread_mutex_unlock(&lock);
    MUST(lien_conn_close_wait(&conn, 5000));
    MUST(lien_pool_close(&pool));
    MUST(lien_ctx_close(&ctx));
    return right ? arg : NULL;
}

int main(void)
{
    lien_ctx *ctx;
    lien_listener *listener;
    lien_conn *conn;
    char address[96];
    MUST(lien_ctx_open(NULL, &ctx));
    lien_pool *pool = small_pool(ctx);
    lien_conn_opts conn_opts;
    lien_conn_opts_init(&conn_opts);
    conn_opts.pool = pool;
    lien_listener_opts opts;
    lien_listener_opts_init(&opts);
    opts.conn = &conn_opts;
    MUST(lien_listener_open(ctx, "127.0.0.1:0", &opts, &listener));
    MUST(lien_listener_address(listener, address, sizeof address));
    pthread_t producer;
    if (pthread_create(&producer, NULL, produce, address) != 0)
        return 1;
    MUST(lien_listener_accept_wait(listener, 5000, &conn));
    unsigned wrong = 0;
    for (uint32_t i = 0; i < MESSAGES; i++) {
        lien_msg *msg;
        const void *head, *body;
        size_t len;
        uint32_t n = 0;
        MUST(lien_msg_recv_wait(conn, 30000, &msg));
        MUST(lien_msg_head(msg, &head, &len));
        memcpy(&n, head, len < sizeof n ? len : sizeof n);
        MUST(lien_buf_data(lien_msg_body(msg), &body));
        const unsigned char *bytes = body;
        wrong += n != i || bytes[0] != (i & 0xff) || bytes[BODY - 1] != (i & 0xff);
        lien_msg_free(&msg);
    }
    lien_msg *none;
    int rc = lien_msg_recv_wait(conn, 30000, &none);
    void *right;
    pthread_join(producer, &right);
    MUST(lien_conn_close_wait(&conn, 5000));
    MUST(lien_ctx_close(&ctx));
    printf("%d messages, %u wrong, then %s\n", MESSAGES, wrong, lien_errname(rc));
    return wrong != 0 || rc != LIEN_ECLOSED || !right;
}
