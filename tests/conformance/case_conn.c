// SPDX-License-Identifier: Apache-2.0
//
// Connections and listeners.

#include <stdio.h>
#include <string.h>

#include "tests/conformance/harness.h"

static void info(struct cf_side *side)
{
    lien_conn_info mine = cf_info(side, side->link), theirs;
    struct {
        uint64_t id;
        uint32_t eager_max;
        char provider[32];
    } told = {.id = mine.id, .eager_max = mine.eager_max}, heard;
    memcpy(told.provider, mine.provider, sizeof(told.provider));
    cf_tell(side, &told, sizeof(told));
    cf_hear(side, &heard, sizeof(heard));
    CHECK(side, mine.id != 0 && mine.id == heard.id);
    CHECK_EQ(side, mine.eager_max, heard.eager_max);
    CHECK(side, strcmp(mine.provider, heard.provider) == 0);
    CHECK(side, strcmp(mine.provider, side->driver->provider) == 0);
    CHECK(side, mine.path == side->driver->path);
    CHECK(side, mine.open && mine.peer[0] != '\0' && mine.message_credits > 0);
    CHECK(side, mine.ep_end_proves);
    CHECK_EQ(side, mine.message_max, side->driver->batch_max ? side->driver->batch_max : 4 * GIB);
    CHECK(side,
          mine.reads_outstanding == 0 && mine.grants_live == 0 && mine.quarantined_bytes == 0);
    memset(&theirs, 0x5a, sizeof(theirs));
    theirs.size = offsetof(lien_conn_info, provider); // an older program's struct
    CHECK_RC(side, lien_conn_info_get(side->link->conn, &theirs), 0);
    CHECK_EQ(side, theirs.id, mine.id);
    CHECK_EQ(side, (uint8_t)theirs.provider[0], 0x5a);
    cf_alive(side, side->link);
}

static void several(struct cf_side *side)
{
    enum {
        CONNS = 8
    };
    struct cf_link *links[CONNS];
    for (unsigned i = 0; i < CONNS; i++)
        links[i] = cf_connect(side, side->listener, i % 2 ? LIEN_INLINE : 0);
    for (unsigned i = 0; i < CONNS; i++) {
        for (unsigned j = 0; j < i; j++)
            CHECK(side, cf_info(side, links[i]).id != cf_info(side, links[j]).id);
        cf_alive(side, links[i]);
    }
    CHECK_EQ(side, cf_stats(side).conns_open, CONNS + 1);
    cf_sync(side);
    if (side->role == CF_READER)
        cf_close(side, links[3]);
    UNTIL(side, side->role == CF_READER || atomic_load(&links[3]->lost));
    for (unsigned i = 0; i < CONNS; i++) {
        if (i != 3)
            cf_alive(side, links[i]);
    }
}

static void two_listeners(struct cf_side *side)
{
    char first[96], second[96];
    lien_listener *other = side->role == CF_OWNER ? cf_listen(side, NULL) : NULL;
    struct cf_link *link = cf_connect(side, other, 0);
    cf_address(side, side->listener, first, sizeof(first));
    cf_address(side, other, second, sizeof(second));
    CHECK(side, strcmp(first, second) != 0);
    cf_alive(side, link);
    cf_alive(side, side->link);
    if (other) { // connections stay
        CHECK_RC(side, lien_listener_close(&other), 0);
        CHECK(side, other == NULL);
    }
    cf_sync(side);
    cf_alive(side, link);
    if (side->role == CF_READER) { // and nobody is there any more
        struct cf_link *late = cf_link_new(side);
        lien_conn_opts opts = cf_conn_opts(late);
        CHECK_RC(side, lien_conn_open(side->ctx, second, &opts, &late->conn), 0);
        UNTIL(side, atomic_load(&late->ready));
        CHECK_RC(side, atomic_load(&late->open_status), LIEN_EREFUSED);
        cf_close(side, late);
    }
    cf_alive(side, side->link);
}

static void ipv6(struct cf_side *side)
{
    char address[96];
    const char *host = side->driver->host6;
    char prefix[32];
    snprintf(prefix, sizeof(prefix), "%s:", host);
    lien_listener *listener = side->role == CF_OWNER ? cf_listen(side, host) : NULL;
    struct cf_link *link = cf_connect(side, listener, 0);
    cf_address(side, listener, address, sizeof(address));
    CHECK(side, strncmp(address, prefix, strlen(prefix)) == 0);
    CHECK(side, strncmp(cf_info(side, link).peer, prefix, strlen(prefix)) == 0);
    cf_alive(side, link);
    if (listener)
        CHECK_RC(side, lien_listener_close(&listener), 0);
}

static void bad_address(struct cf_side *side)
{
    static const char *const addresses[] = {
        "", "nowhere", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x", ":"};
    lien_conn *conn = NULL;
    for (unsigned i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        CHECK_RC(side, lien_conn_open(side->ctx, addresses[i], NULL, &conn), LIEN_EADDR);
        CHECK(side, conn == NULL);
    }
    cf_alive(side, side->link);
}

// on_accept says no: the other side hears it, and the next one is taken.
static void refused(struct cf_side *side)
{
    char address[96];
    cf_address(side, side->listener, address, sizeof(address));
    if (side->role == CF_OWNER) {
        atomic_store(&side->refuse_accepts, 1);
        cf_sync(side);
        UNTIL(side, atomic_load(&side->refuse_accepts) == 0);
    } else {
        cf_sync(side);
        struct cf_link *link = cf_link_new(side);
        lien_conn_opts opts = cf_conn_opts(link);
        CHECK_RC(side, lien_conn_open(side->ctx, address, &opts, &link->conn), 0);
        UNTIL(side, atomic_load(&link->lost) ||
                        (atomic_load(&link->ready) && atomic_load(&link->open_status) != 0));
        cf_close(side, link);
    }
    cf_sync(side);
    cf_alive(side, cf_connect(side, side->listener, 0));
}

// Closed before it is open: on_closed runs, and on_open does not.
static void close_early(struct cf_side *side)
{
    char address[96];
    cf_address(side, side->listener, address, sizeof(address));
    if (side->role == CF_READER) {
        for (unsigned i = 0; i < 10; i++) {
            struct cf_link *link = cf_link_new(side);
            lien_conn_opts opts = cf_conn_opts(link);
            CHECK_RC(side, lien_conn_open(side->ctx, address, &opts, &link->conn), 0);
            for (unsigned turns = 0; turns < i * i; turns++)
                cf_turn(side, false, cf_real_ms(), __FILE__, __LINE__, "a turn");
            CHECK_RC(side, lien_conn_close(&link->conn), 0);
            int ready = atomic_load(&link->ready);
            UNTIL(side, atomic_load(&link->closed));
            CHECK_EQ(side, atomic_load(&link->ready), ready);
        }
    }
    cf_sync(side);
    cf_alive(side, side->link);
}

// Opened, used and closed again and again: nothing is left behind.
static void again(struct cf_side *side)
{
    for (unsigned i = 0; i < 15; i++) {
        struct cf_link *link = cf_connect(side, side->listener, 0);
        cf_alive(side, link);
        cf_sync(side);
        if ((side->role == CF_OWNER) == (i % 2 == 0))
            cf_close(side, link);
        UNTIL(side, !link->conn || atomic_load(&link->lost));
        if (link->conn)
            cf_close(side, link);
        CHECK_EQ(side, cf_stats(side).conns_lost, 0);
    }
    UNTIL(side, cf_stats(side).conns_open == 1);
    cf_alive(side, side->link);
}

// -- The blocking twins, from listening to closing --

static void waiting_owner(struct cf_side *side)
{
    lien_listener *listener;
    lien_conn *conn = NULL;
    lien_msg *msg;
    const void *head;
    size_t len;
    char at[96];
    snprintf(at, sizeof(at), "%s:0", side->driver->host);
    CHECK_RC(side, lien_listener_open(side->ctx, at, NULL, &listener), 0);
    CHECK_RC(side, lien_listener_accept_wait(listener, 0, &conn), LIEN_ETIMEDOUT);
    char address[96];
    cf_address(side, listener, address, sizeof(address));
    CHECK_RC(side, lien_listener_accept_wait(listener, 10000, &conn), 0);
    CHECK_RC(side, lien_msg_recv_wait(conn, 10000, &msg), 0);
    CHECK_RC(side, lien_msg_head(msg, &head, &len), 0);
    CHECK(side, len == 5 && memcmp(head, "hello", 5) == 0);
    cf_check_buf(side, lien_msg_body(msg), 1, 0);
    CHECK_RC(side, lien_send_wait(conn, head, len, NULL, 0, NULL), 0);
    side->head_bytes += len;
    lien_msg_free(&msg);
    CHECK_RC(side, lien_msg_recv_wait(conn, 10000, &msg), LIEN_ECLOSED);
    CHECK_RC(side, lien_conn_close_wait(&conn, 10000), 0);
    CHECK(side, conn == NULL);
    CHECK_RC(side, lien_listener_close(&listener), 0);
}

static void waiting_reader(struct cf_side *side)
{
    lien_conn *conn = NULL;
    lien_msg *msg = NULL;
    void *p;
    char address[96];
    lien_buf *buf = cf_buf(side, 100000, 1, 0);
    cf_address(side, NULL, address, sizeof(address));
    CHECK_RC(side, lien_conn_open_wait(side->ctx, address, NULL, &conn), 0);
    CHECK_RC(side, lien_msg_recv_wait(conn, 0, &msg), LIEN_ETIMEDOUT);
    CHECK_RC(side, lien_send_wait(conn, "hello", 5, &buf, 1, NULL), 0);
    side->head_bytes += 5;
    CHECK_RC(side, lien_buf_mut(buf, &p), 0);
    CHECK_RC(side, lien_msg_recv_wait(conn, 10000, &msg), 0);
    lien_msg_free(&msg);
    CHECK_RC(side, lien_msg_recv_wait(side->link->conn, 0, &msg), LIEN_ESTATE); // it has on_message
    CHECK_RC(side, lien_conn_close_wait(&conn, 10000), 0);
    CHECK(side, conn == NULL);
    lien_buf_free(&buf);
}

static void waiting(struct cf_side *side)
{
    if (side->role == CF_OWNER)
        waiting_owner(side);
    else
        waiting_reader(side);
    cf_alive(side, side->link);
}

const struct cf_case cf_conn_cases[] = {
    {.group = "conn", .name = "info", .run = info},
    {.group = "conn", .name = "several", .run = several, .flags = CF_ENDS},
    {.group = "conn", .name = "two-listeners", .run = two_listeners},
    {.group = "conn", .name = "ipv6", .run = ipv6},
    {.group = "conn", .name = "bad-address", .run = bad_address},
    {.group = "conn", .name = "refused-by-on-accept", .run = refused, .flags = CF_ENDS},
    {.group = "conn", .name = "close-before-open", .run = close_early, .flags = CF_ENDS},
    {.group = "conn", .name = "open-and-close", .run = again, .flags = CF_ENDS},
    {.group = "conn", .name = "blocking-twins", .run = waiting},
    {0},
};
