// SPDX-License-Identifier: Apache-2.0
//
// A 64 MiB READ from a peer that is stopped: for less than the death timer, and for good. A report of
// time to done and time to released, and what must hold in both [R1, R4, R6, R7].

#include <signal.h>

#include "tests/fault/fault.h"

#define SIZE (64 * MIB)

static struct fault_side side;
static const char *const settings[] = {"heartbeat_ms=500", "dead_ms=3000", NULL};

static uint64_t ms_since(uint64_t begin_us, uint64_t at_us)
{
    return (at_us - begin_us) / 1000;
}

// A lent space refuses every access, and freeing what is in it is put off.
static void check_lent(lien_space *space)
{
    lien_buf *buf = NULL;
    CHECK_EQ(lien_space_buf(space, 0, &buf), LIEN_EBUSY);
    CHECK_EQ(lien_space_take(space, &buf, 1), LIEN_EBUSY);
    CHECK_EQ(lien_space_wait(space, 0), LIEN_ETIMEDOUT);
    CHECK(!buf);
}

// Other work of the same connection goes on as if nothing had been.
static void check_usable(lien_conn *conn)
{
    lien_token token;
    struct fault_read r = {0};
    int64_t echo = fault_echo(conn, 5000);
    CHECK(echo >= 0);
    fault_ask_grant(conn, 4096, &token);
    lien_space *space = fault_space(&side, 4096);
    CHECK_EQ(fault_read_start(&r, conn, &token, space, 5000, LIEN_RELEASE), 0);
    CHECK(fault_until(fault_read_is_released, &r, 5000));
    CHECK_EQ(r.status, 0);
    CHECK(fault_space_is_pattern(space));
    lien_read_close(&r.read);
    lien_space_free(&space);
}

static void stopped_for_a_while(void)
{
    struct fault_peer peer;
    struct fault_read r = {0};
    lien_token token;
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    fault_ask_grant(conn, SIZE, &token);
    lien_space *space = fault_space(&side, SIZE);
    fault_peer_signal(&peer, SIGSTOP);
    uint64_t begin = fault_us();
    CHECK_EQ(fault_read_start(&r, conn, &token, space, LIEN_FOREVER, LIEN_RELEASE), 0);
    fault_sleep(1500);
    CHECK(r.done == 0 && r.released == 0);
    check_lent(space);
    fault_peer_signal(&peer, SIGCONT);
    CHECK(fault_until(fault_read_is_released, &r, 20000));
    CHECK_EQ(r.status, 0);
    CHECK_EQ(r.released_status, 0);
    CHECK(r.done == 1 && r.released == 1 && r.in_order);
    CHECK(fault_space_is_pattern(space));
    check_usable(conn);
    printf("stopped 1500 ms of a death timer of 3000: done %" PRIu64 " ms, released %" PRIu64
           " ms after the start, the connection goes on\n",
           ms_since(begin, r.done_us), ms_since(begin, r.released_us));
    lien_read_close(&r.read);
    lien_space_free(&space);
    CHECK_EQ(lien_conn_close_wait(&conn, 10000), 0);
    fault_peer_end(&peer);
}

// A device goes on serving READs for a process that stands still: the bytes arrive, their release and messages do not, and the death timer ends the connection.
static void served_while_stopped(void)
{
    struct fault_peer peer;
    struct fault_read r = {0};
    lien_token token;
    lien_ctx_stats stats;
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    fault_ask_grant(conn, SIZE, &token);
    lien_space *space = fault_space(&side, SIZE);
    fault_peer_signal(&peer, SIGSTOP);
    uint64_t begin = fault_us();
    CHECK_EQ(fault_read_start(&r, conn, &token, space, LIEN_FOREVER, LIEN_RELEASE), 0);
    CHECK(fault_until(fault_read_is_released, &r, 60000));
    CHECK(r.done == 1 && r.released == 1 && r.in_order);
    CHECK_EQ(r.released_status, 0);
    CHECK(r.status == 0 ||
          r.status == LIEN_EPEERLOST); // the death timer may come first on a slow machine
    CHECK(r.status != 0 || fault_space_is_pattern(space));
    CHECK(fault_echo(conn, 60000) == LIEN_EPEERLOST);
    CHECK(ms_since(begin, fault_us()) >= 2000);
    fault_stats(&side, &stats);
    CHECK_EQ(stats.quarantined_bytes, 0);
    printf("stopped for good, served by its device: %s after %" PRIu64
           " ms, the connection ended by "
           "the death timer after %" PRIu64 " ms\n",
           lien_errname(r.status), ms_since(begin, r.done_us), ms_since(begin, fault_us()));
    lien_read_close(&r.read);
    lien_space_free(&space);
    CHECK_EQ(lien_conn_close_wait(&conn, 10000), 0);
    fault_peer_kill(&peer);
}

static bool device_serves(void)
{
    struct fault_peer peer;
    lien_conn_info info;
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    fault_info(conn, &info);
    CHECK_EQ(lien_conn_close_wait(&conn, 10000), 0);
    fault_peer_end(&peer);
    return info.path == LIEN_PATH_RDMA;
}

static void stopped_for_good(void)
{
    struct fault_peer peer;
    struct fault_read r = {0};
    lien_token token;
    lien_ctx_stats before, during, after;
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    fault_ask_grant(conn, SIZE, &token);
    lien_space *space = fault_space(&side, SIZE);
    fault_stats(&side, &before);
    fault_peer_signal(&peer, SIGSTOP);
    uint64_t begin = fault_us();
    CHECK_EQ(fault_read_start(&r, conn, &token, space, 500, 0), 0);
    CHECK(fault_until(fault_read_is_done, &r, 2000));
    CHECK_EQ(r.status, LIEN_ETIMEDOUT);
    CHECK(ms_since(begin, r.done_us) >= 500);
    // The deadline ended the waiting and released nothing; the connection is open still.
    lien_conn_info info;
    fault_info(conn, &info);
    CHECK(info.open && info.reads_outstanding > 0);
    CHECK_EQ(r.released, 0);
    check_lent(space);
    lien_space_free(&space); // put off
    fault_stats(&side, &during);
    CHECK_EQ(during.pool_bytes, before.pool_bytes);
    CHECK(fault_until(fault_read_is_released, &r, 20000));
    CHECK_EQ(r.released_status, 0);
    CHECK(r.done == 1 && r.released == 1 && r.in_order);
    CHECK(ms_since(begin, r.released_us) >= 2000); // by the death timer, and not before
    fault_stats(&side, &after);
    CHECK_EQ(after.quarantined_bytes, 0);
    CHECK(before.pool_bytes - after.pool_bytes >= SIZE); // the free that was put off
    CHECK_EQ(fault_echo(conn, 1000), LIEN_EPEERLOST);
    printf("stopped for good, deadline 500 ms: done %" PRIu64 " ms, released %" PRIu64
           " ms after the start, by the proved end of the endpoint\n",
           ms_since(begin, r.done_us), ms_since(begin, r.released_us));
    lien_read_close(&r.read);
    CHECK_EQ(lien_conn_close_wait(&conn, 10000), 0);
    fault_peer_kill(&peer);
}

// Sources that a stopped reader may still fetch: readable, not writable, and freeing is put off.
static void granted_to_a_stopped_peer(void)
{
    struct fault_peer peer;
    lien_token token;
    lien_grant *grant = NULL;
    lien_buf *buf = NULL;
    void *data = NULL;
    const void *readable = NULL;
    lien_ctx_stats before, after;
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    CHECK_EQ(lien_pool_alloc(side.pool, MIB, &buf), 0);
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    fault_pattern(data, MIB);
    CHECK_EQ(lien_grant_open(conn, &buf, 1, NULL, &token, &grant), 0);
    fault_peer_signal(&peer, SIGSTOP);
    CHECK_EQ(lien_buf_mut(buf, &data), LIEN_EBUSY);
    CHECK_EQ(lien_buf_data(buf, &readable), 0);
    CHECK(fault_pattern_is(readable, MIB));
    CHECK_EQ(lien_grant_revoke(grant), 0); // asks; takes nothing
    CHECK_EQ(lien_buf_mut(buf, &data), LIEN_EBUSY);
    CHECK_EQ(lien_grant_wait(grant, 200), LIEN_ETIMEDOUT);
    fault_stats(&side, &before);
    lien_buf_free(&buf);
    fault_stats(&side, &after);
    CHECK_EQ(after.pool_bytes, before.pool_bytes); // lent still
    CHECK_EQ(lien_grant_wait(grant, 20000), 0);
    fault_stats(&side, &after);
    CHECK(before.pool_bytes - after.pool_bytes >= MIB);
    CHECK_EQ(lien_grant_close(&grant), 0);
    CHECK_EQ(lien_conn_close_wait(&conn, 10000), 0);
    fault_peer_kill(&peer);
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    fault_side_open(&side, settings, 0);
    if (device_serves()) {
        served_while_stopped();
    } else {
        stopped_for_a_while();
        stopped_for_good();
    }
    granted_to_a_stopped_peer();
    fault_side_close(&side);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
