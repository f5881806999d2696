// SPDX-License-Identifier: Apache-2.0
//
// Peers that die by SIGKILL in the middle of READs, as owner and as reader, and connections closed here while
// grants are out. Memory comes back by the endpoint's end alone, and it does come back [R1, R9].

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

#include "tests/fault/fault.h"

#define SIZE (64 * MIB)

static struct fault_side side;
static const char *const settings[] = {"heartbeat_ms=500", "dead_ms=3000", "linger_ms=1000", NULL};

static void owner_dies(unsigned after_ms)
{
    struct fault_peer peer;
    struct fault_read r = {0};
    lien_token token;
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    fault_ask_grant(conn, SIZE, &token);
    lien_space *space = fault_space(&side, SIZE);
    CHECK_EQ(fault_read_start(&r, conn, &token, space, LIEN_FOREVER, LIEN_RELEASE), 0);
    fault_sleep(after_ms);
    fault_peer_kill(&peer);
    CHECK(fault_until(fault_read_is_released, &r, 10000));
    CHECK_EQ(r.released_status, 0);
    CHECK(r.done == 1 && r.released == 1 && r.in_order);
    CHECK(r.status == 0 || r.status == LIEN_EPEERLOST);
    CHECK(r.status != 0 || fault_space_is_pattern(space));
    CHECK_EQ(lien_space_wait(space, 0), 0);
    printf("owner killed %u ms after the start: %s\n", after_ms, lien_errname(r.status));
    lien_read_close(&r.read);
    lien_space_free(&space);
    CHECK_EQ(lien_conn_close_wait(&conn, 10000), 0);
}

static lien_buf *source(size_t len)
{
    lien_buf *buf = NULL;
    void *data = NULL;
    CHECK_EQ(lien_pool_alloc(side.pool, len, &buf), 0);
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    fault_pattern(data, len);
    return buf;
}

static void reader_dies(unsigned after_ms)
{
    struct fault_peer peer;
    lien_token token;
    lien_grant *grant = NULL;
    void *data = NULL;
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    lien_buf *buf = source(SIZE);
    CHECK_EQ(lien_grant_open(conn, &buf, 1, NULL, &token, &grant), 0);
    fault_tell_read(conn, &token);
    fault_sleep(after_ms);
    fault_peer_kill(&peer);
    CHECK_EQ(lien_grant_wait(grant, 10000), 0);
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    lien_grant_close(&grant);
    lien_buf_free(&buf);
    CHECK_EQ(lien_conn_close_wait(&conn, 10000), 0);
}

// Closed here, while the peer holds a grant and is stopped: it cannot say that it is done.
static void closed_with_grants_out(void)
{
    struct fault_peer peer;
    lien_token token;
    lien_grant *grant = NULL;
    void *data = NULL;
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    lien_buf *buf = source(MIB);
    CHECK_EQ(lien_grant_open(conn, &buf, 1, NULL, &token, &grant), 0);
    fault_peer_signal(&peer, SIGSTOP);
    uint64_t begin = fault_ms();
    CHECK_EQ(lien_conn_close(&conn), 0);
    CHECK_EQ(lien_buf_mut(buf, &data), LIEN_EBUSY);
    CHECK_EQ(lien_grant_wait(grant, 500), LIEN_ETIMEDOUT); // the endpoint is there still
    CHECK_EQ(lien_buf_mut(buf, &data), LIEN_EBUSY);
    CHECK_EQ(lien_grant_wait(grant, 10000), 0);
    CHECK(fault_ms() - begin >= 900);
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    lien_grant_close(&grant);
    lien_buf_free(&buf);
    fault_peer_kill(&peer);
}

// Memory of the application stays registered, and memory of a pool mapped, while a stopped reader may be
// fetching it, whatever was freed, closed or unregistered meanwhile.
static void unregistered_while_granted(void)
{
    struct fault_peer peer;
    lien_token token;
    lien_grant *grants[2] = {NULL, NULL};
    lien_mem *mem = NULL;
    lien_pool *pool = NULL;
    lien_buf *buf = NULL;
    void *data = NULL;
    unsigned char there;
    char *own = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    CHECK_EQ(lien_mem_register(side.ctx, own, MIB, NULL, &mem), 0);
    CHECK_EQ(lien_mem_buf(mem, 0, MIB, &buf), 0);
    CHECK_EQ(lien_grant_open(conn, &buf, 1, NULL, &token, &grants[0]), 0);
    lien_buf_free(&buf);
    CHECK_EQ(lien_pool_open(side.ctx, NULL, &pool), 0);
    CHECK_EQ(lien_pool_alloc(pool, MIB, &buf), 0);
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    CHECK_EQ(lien_grant_open(conn, &buf, 1, NULL, &token, &grants[1]), 0);
    lien_buf_free(&buf);
    CHECK_EQ(lien_pool_close(&pool), 0);
    fault_peer_signal(&peer, SIGSTOP);
    CHECK_EQ(lien_mem_unregister_wait(&mem, 300), LIEN_ETIMEDOUT);
    CHECK_EQ(mincore(data, 4096, &there), 0);
    CHECK_EQ(lien_conn_close(&conn), 0);
    CHECK_EQ(lien_mem_unregister_wait(&mem, 300), LIEN_ETIMEDOUT);
    CHECK_EQ(mincore(data, 4096, &there), 0);
    CHECK_EQ(lien_mem_unregister_wait(&mem, 10000), 0);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(lien_grant_wait(grants[i], 10000), 0);
        lien_grant_close(&grants[i]);
    }
    CHECK(mincore(data, 4096, &there) == -1 && errno == ENOMEM); // and then it does go
    munmap(own, MIB);
    fault_peer_kill(&peer);
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    static const unsigned after[] = {0, 3, 10, 25};
    lien_ctx_stats stats;
    fault_side_open(&side, settings, 0);
    for (unsigned i = 0; i < sizeof after / sizeof after[0]; i++) {
        owner_dies(after[i]);
        reader_dies(after[i]);
    }
    closed_with_grants_out();
    unregistered_while_granted();
    fault_stats(&side, &stats);
    CHECK_EQ(stats.grants_live, 0);
    CHECK_EQ(stats.grants_bytes, 0);
    CHECK_EQ(stats.quarantined_bytes, 0);
    fault_side_close(&side);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
