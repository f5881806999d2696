// SPDX-License-Identifier: Apache-2.0
//
// A peer that answers heartbeats and messages, but serves no READ: between the two stands a relay from which READ
// requests do not come out. The READ watchdog ends the connection [R21].

#include "tests/fault/fault.h"

static const char *const settings[] = {"heartbeat_ms=200", "dead_ms=2000", "read_watchdog_ms=1500",
                                       NULL};

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    struct fault_side side;
    struct fault_peer peer;
    struct fault_relay relay = {0};
    struct fault_read r = {0};
    lien_token token;
    lien_conn_info info;
    char ports[32];
    uint16_t port = fault_free_port();
    snprintf(ports, sizeof ports, "fabric_ports=%u-%u", port, port);
    const char *const peer_settings[] = {"heartbeat_ms=200", "dead_ms=2000", ports,
                                         "advertise=127.0.0.2", NULL};
    fault_relay_start(&relay, port);
    fault_side_open(&side, settings, 0);
    fault_peer_start(&peer, peer_settings);
    lien_conn *conn = fault_connect(&side, &peer);
    fault_ask_grant(conn, MIB, &token);
    lien_space *space = fault_space(&side, MIB);
    CHECK_EQ(fault_read_start(&r, conn, &token, space, LIEN_FOREVER, 0), 0);
    CHECK(fault_until(fault_read_is_released, &r, 5000));
    CHECK_EQ(r.status, 0); // through the relay it works
    CHECK(fault_space_is_pattern(space));
    lien_read_close(&r.read);
    // No READ is outstanding, so no watchdog runs.
    fault_sleep(2000);
    fault_info(conn, &info);
    CHECK(info.open);

    relay.no_reads = true;
    r = (struct fault_read){0};
    uint64_t begin = fault_ms();
    CHECK_EQ(fault_read_start(&r, conn, &token, space, LIEN_FOREVER, 0), 0);
    int64_t slowest = 0;
    while (fault_ms() - begin < 1000) { // the peer is as lively as can be
        int64_t us = fault_echo(conn, 1000);
        CHECK(us >= 0);
        slowest = us > slowest ? us : slowest;
        fault_sleep(10);
    }
    CHECK_EQ(r.done, 0);
    CHECK(fault_until(fault_read_is_released, &r, 10000));
    uint64_t took = fault_ms() - begin;
    CHECK(relay.eaten > 0);
    CHECK_EQ(r.status, LIEN_EPEERLOST);
    CHECK_EQ(r.released_status, 0);
    CHECK(took >= 1400 && took < 6000);
    CHECK(fault_log_has("read_watchdog_ms"));
    printf("%u READ requests vanished, messages took at most %" PRId64
           " us: the connection ended after %" PRIu64 " ms (read_watchdog_ms=1500)\n",
           relay.eaten, slowest, took);
    lien_read_close(&r.read);
    lien_space_free(&space);
    CHECK_EQ(lien_conn_close_wait(&conn, 10000), 0);
    fault_peer_end(&peer);
    fault_relay_stop(&relay);
    fault_side_close(&side);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
