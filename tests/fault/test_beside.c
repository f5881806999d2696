// SPDX-License-Identifier: Apache-2.0
//
// Ten connections that read all the time, and one on the same NIC whose peer answers heartbeats and messages but no READ: the ten go on, the one is closed by the READ watchdog [R21]. Between that
// peer and us stands a relay from which READ requests do not come out. The speed of the ten, before, during and after, is for the reader of the report.

#include "tests/fault/fault.h"

#define HEALTHY 10u
#define STUCK   64u // READs of the one: more than one NIC has in flight
#define PIECE   ((size_t)64 << 10)

static const char *const settings[] = {"heartbeat_ms=200", "dead_ms=5000", "read_watchdog_ms=2000",
                                       NULL};

// One that reads over and over.
struct reader {
    lien_conn *conn;
    lien_token token;
    lien_space *space;
    struct fault_read read;
    uint64_t reads; // that succeeded
};

static struct fault_side side;
static struct fault_peer peer, stuck_peer;
static struct reader readers[HEALTHY];
static struct fault_read stuck[STUCK];
static lien_space *stuck_spaces[STUCK];

static void read_again(struct reader *r)
{
    r->read = (struct fault_read){0};
    CHECK_EQ(fault_read_start(&r->read, r->conn, &r->token, r->space, LIEN_FOREVER, 0), 0);
}

static void keep_reading(struct reader *r)
{
    if (r->read.released == 0)
        return;
    CHECK_EQ(r->read.status, 0);
    CHECK_EQ(r->read.released_status, 0);
    lien_read_close(&r->read.read);
    r->reads++;
    read_again(r);
}

// The ten read for `ms`, and longer until each has done something; or until `over` says so.
static void measure(const char *what, unsigned ms, bool (*over)(void))
{
    uint64_t before[HEALTHY], begin = fault_ms(), least = UINT64_MAX, most = 0, all = 0, took;
    bool idle = true;
    for (unsigned i = 0; i < HEALTHY; i++)
        before[i] = readers[i].reads;
    while (idle || (over ? !over() : fault_ms() - begin < ms)) {
        CHECK(fault_ms() - begin < 120000);
        idle = false;
        for (unsigned i = 0; i < HEALTHY; i++) {
            keep_reading(&readers[i]);
            idle = idle || readers[i].reads == before[i];
        }
        fault_sleep(1);
    }
    took = fault_ms() - begin;
    for (unsigned i = 0; i < HEALTHY; i++) {
        uint64_t n = readers[i].reads - before[i];
        least = n < least ? n : least;
        most = n > most ? n : most;
        all += n;
    }
    printf("%-28s %6" PRIu64 " ms: the ten read %7.1f MiB/s in all; each %" PRIu64 " to %" PRIu64
           " READs of 64 KiB in a second\n",
           what, took, (double)all * (double)PIECE / (double)MIB * 1e3 / (double)took,
           least * 1000 / took, most * 1000 / took);
}

static bool stuck_is_over(void)
{
    for (unsigned i = 0; i < STUCK; i++)
        if (stuck[i].released == 0)
            return false;
    return true;
}

static void open_readers(void)
{
    for (unsigned i = 0; i < HEALTHY; i++) {
        struct reader *r = &readers[i];
        r->conn = fault_connect(&side, &peer);
        fault_ask_grant(r->conn, PIECE, &r->token);
        r->space = fault_space(&side, PIECE);
        read_again(r);
    }
}

static void close_readers(void)
{
    for (unsigned i = 0; i < HEALTHY; i++) {
        struct reader *r = &readers[i];
        CHECK(fault_until(fault_read_is_released, &r->read, 60000));
        CHECK(fault_space_is_pattern(r->space));
        lien_read_close(&r->read.read);
        lien_space_free(&r->space);
        CHECK_EQ(lien_conn_close_wait(&r->conn, 60000), 0);
    }
}

static void test(int argc, char **argv)
{
    struct fault_relay relay = {0};
    lien_token token;
    lien_conn_info info;
    char ports[32];
    uint16_t port = fault_free_port();
    (void)argc;
    (void)argv;
    snprintf(ports, sizeof ports, "fabric_ports=%u-%u", port, port);
    const char *const stuck_settings[] = {"heartbeat_ms=200", "dead_ms=5000", ports,
                                          "advertise=127.0.0.2", NULL};
    fault_relay_start(&relay, port);
    fault_side_open(&side, settings, 0);
    fault_peer_start(&peer, settings);
    fault_peer_start(&stuck_peer, stuck_settings);
    lien_conn *one = fault_connect(&side, &stuck_peer);
    fault_ask_grant(one, PIECE, &token);
    open_readers();
    measure("before", 1000, NULL);

    relay.no_reads = true;
    uint64_t begin = fault_us(), done = 0, released = 0;
    for (unsigned i = 0; i < STUCK; i++) {
        stuck_spaces[i] = fault_space(&side, PIECE);
        CHECK_EQ(fault_read_start(&stuck[i], one, &token, stuck_spaces[i], LIEN_FOREVER, 0), 0);
    }
    CHECK(fault_echo(one, 60000) >= 0); // it is as lively as can be
    measure("beside the one", 0, stuck_is_over);
    for (unsigned i = 0; i < STUCK; i++) {
        CHECK_EQ(stuck[i].status, LIEN_EPEERLOST);
        CHECK_EQ(stuck[i].released_status, 0);
        CHECK(stuck[i].in_order);
        done = stuck[i].done_us > done ? stuck[i].done_us : done;
        released = stuck[i].released_us > released ? stuck[i].released_us : released;
        lien_read_close(&stuck[i].read);
        lien_space_free(&stuck_spaces[i]);
    }
    CHECK(relay.eaten > 0);
    CHECK(fault_log_has("read_watchdog_ms"));
    printf(
        "the one: %u READs, %u requests vanished; done %.1f ms, released %.1f ms after the start "
        "(read_watchdog_ms=2000)\n",
        STUCK, relay.eaten, (double)(done - begin) / 1e3, (double)(released - begin) / 1e3);
    measure("after", 1000, NULL);
    for (unsigned i = 0; i < HEALTHY; i++) {
        fault_info(readers[i].conn, &info);
        CHECK(info.open);
    }
    close_readers();
    lien_conn_close_wait(&one, 10000);
    fault_peer_end(&stuck_peer);
    fault_peer_end(&peer);
    fault_relay_stop(&relay);
    fault_side_close(&side);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
