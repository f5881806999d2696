// SPDX-License-Identifier: Apache-2.0
//
// The other process of the fault tests. Listens on loopback, prints its address, and serves each connection
// on a thread of its own with the blocking calls. The first byte of a message says what to do:
//   e    echo the message
//   g    grant: u64 size follows; the answer is 't' and the token
//   r    read the grant whose token follows, release it, and stay silent
//   z    take no message for 4 s, and stay silent
// Its standard input: 's' asks for a line of levels; its end ends the process.

#include <pthread.h>
#include <unistd.h>

#include "tests/address.h"
#include "tests/fault/fault.h"
#include "tests/fault/fault_peer.h"

#define GRANTS_MAX 1024

struct server {
    struct fault_side side;
    lien_listener *listener;
    pthread_t accepting;
};

static struct server server;
static const lien_service *serves;

void fault_peer_serves(const lien_service *service)
{
    serves = service;
}

struct fault_side *fault_peer_side(void)
{
    return &server.side;
}

struct client {
    struct server *server;
    lien_conn *conn;
    lien_grant *grants[GRANTS_MAX];
    unsigned n_grants;
};

static int open_grant(struct client *c, uint64_t size)
{
    lien_buf *buf = NULL;
    void *data = NULL;
    CHECK_EQ(lien_pool_alloc(c->server->side.pool, size, &buf), 0);
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    fault_pattern(data, size);
    char answer[1 + LIEN_TOKEN_MAX] = {'t'};
    lien_token token;
    CHECK(c->n_grants < GRANTS_MAX);
    int rc = lien_grant_open(c->conn, &buf, 1, NULL, &token, &c->grants[c->n_grants]);
    lien_buf_free(&buf); // put off until the grant ends
    if (rc != 0)
        return rc;
    c->n_grants++;
    memcpy(answer + 1, token.bytes, token.len);
    return lien_send_wait(c->conn, answer, 1 + token.len, NULL, 0, NULL);
}

static int read_grant(struct client *c, const char *token, size_t len)
{
    lien_token_info info = {.size = sizeof(info)};
    lien_buf *buf = NULL;
    int rc = lien_token_open(c->conn, token, len, &info);
    if (rc == 0)
        rc = lien_pool_alloc(c->server->side.pool, info.len, &buf);
    if (rc != 0)
        return rc;
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.flags = LIEN_RELEASE;
    rc = lien_read_wait(c->conn, token, len, &buf, 1, &opts);
    const void *data = NULL;
    if (rc == 0) {
        CHECK_EQ(lien_buf_data(buf, &data), 0);
        CHECK(fault_pattern_is(data, info.len));
    }
    lien_buf_free(&buf);
    return rc;
}

static int obey(struct client *c, const char *head, size_t len)
{
    uint64_t size;
    switch (len > 0 ? head[0] : 0) {
    case 'g':
        CHECK_EQ(len, 1 + sizeof size);
        memcpy(&size, head + 1, sizeof size);
        return open_grant(c, size);
    case 'r':
        return read_grant(c, head + 1, len - 1);
    case 'z':
        fault_sleep(4000);
        return 0;
    default:
        return lien_send_wait(c->conn, head, len, NULL, 0, NULL);
    }
}

static void *serve(void *arg)
{
    struct client *c = arg;
    lien_msg *msg = NULL;
    while (lien_msg_recv_wait(c->conn, LIEN_FOREVER, &msg) == 0) {
        const void *head = NULL;
        size_t len = 0;
        char copy[8192];
        CHECK_EQ(lien_msg_head(msg, &head, &len), 0);
        CHECK(len <= sizeof copy);
        memcpy(copy, head, len);
        lien_msg_free(&msg);
        obey(c, copy, len); // what fails here, fails at the other side too
    }
    for (unsigned i = 0; i < c->n_grants; i++)
        lien_grant_close(&c->grants[i]);
    lien_conn_close_wait(&c->conn, LIEN_FOREVER);
    free(c);
    return NULL;
}

static void *accepting(void *arg)
{
    struct server *s = arg;
    lien_conn *conn = NULL;
    while (lien_listener_accept_wait(s->listener, LIEN_FOREVER, &conn) == 0) {
        struct client *c = calloc(1, sizeof *c);
        CHECK(c);
        c->server = s;
        c->conn = conn;
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, serve, c), 0);
        pthread_detach(thread);
    }
    return NULL;
}

static void print_levels(const struct server *s)
{
    lien_ctx_stats st = {.size = sizeof st};
    CHECK_EQ(lien_ctx_stats_get(s->side.ctx, &st), 0);
    printf("%llu %llu %llu %llu %llu %llu %llu\n", (unsigned long long)st.grants_live,
           (unsigned long long)st.grants_bytes, (unsigned long long)st.pool_bytes,
           (unsigned long long)st.conns_open, (unsigned long long)st.quarantined_bytes,
           (unsigned long long)st.protocol_errors, (unsigned long long)st.reads_started);
    fflush(stdout);
}

int fault_peer_main(const char *const *settings)
{
    struct server *s = &server;
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    CHECK_EQ(lien_ctx_open(&opts, &s->side.ctx), 0);
    CHECK_EQ(lien_pool_open(s->side.ctx, NULL, &s->side.pool), 0);
    lien_conn_opts conn_opts;
    lien_conn_opts_init(&conn_opts);
    conn_opts.service = serves;
    lien_listener_opts listener_opts;
    lien_listener_opts_init(&listener_opts);
    listener_opts.conn = &conn_opts;
    char address[96];
    snprintf(address, sizeof address, TEST_AT(0));
    CHECK_EQ(lien_listener_open(s->side.ctx, address, &listener_opts, &s->listener), 0);
    CHECK_EQ(lien_listener_address(s->listener, address, sizeof address), 0);
    printf("%s\n", address);
    fflush(stdout);
    // It stays open while a thread may wait in it: the process ends without closing it.
    CHECK_EQ(pthread_create(&s->accepting, NULL, accepting, s), 0);
    char command;
    while (read(STDIN_FILENO, &command, 1) == 1) {
        if (command == 's')
            print_levels(s);
    }
    fflush(NULL);
    _exit(0);
}
