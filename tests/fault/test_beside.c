// SPDX-License-Identifier: Apache-2.0
//
// Ten connections that read over and over, and one on the same NIC whose peer answers heartbeats and messages but no READ: the ten keep their speed, the one is closed by the READ watchdog [R21]. Between that
// peer and us stands a relay from which READ requests do not come out.
//
// Their speed is compared with itself, in one run: some rounds of a fixed number of READs beside hanging ones, and as many without, in turn. It passes when the median of the one is no less than half of that of
// the other; a machine that is busy with other things may spoil one attempt, so that only several attempts in a row fail.

#include <stdlib.h>

#include "tests/fault/fault.h"

#define HEALTHY  10u
#define STUCK    64u // READs of the one: more than one NIC has in flight
#define PIECE    ((size_t)64 << 10)
#define READS    100u // of each of the ten in one round
#define ROUNDS   5u
#define ATTEMPTS 5u

// The watchdog's time must outlast a round on a busy machine.
static const char *const settings[] = {"heartbeat_ms=200", "dead_ms=30000", "read_watchdog_ms=5000",
                                       NULL};

// One that reads, each READ started by the end of the one before. Its callbacks are the only ones that write it.
struct reader {
    lien_conn *conn;
    lien_token token;
    lien_space *space;
    _Atomic unsigned left; // READs of this round
    _Atomic int failed;    // the first status that was not 0
};

static struct fault_side side;
static struct fault_peer peer, stuck_peer;
static struct fault_relay relay;
static struct reader readers[HEALTHY];
static struct fault_read stuck[STUCK];
static lien_space *stuck_spaces[STUCK];

// -- The ten ---------------------------------------------------------------------------------------------------------------------

static void read_next(struct reader *r);

static void on_read(void *arg, int status)
{
    struct reader *r = arg;
    if (status != 0 && r->failed == 0)
        r->failed = status;
}

static void on_back(void *arg, int status)
{
    struct reader *r = arg;
    on_read(r, status);
    if (--r->left > 0)
        read_next(r);
}

static void read_next(struct reader *r)
{
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.on_done = on_read;
    opts.on_released = on_back;
    opts.arg = r;
    int rc = lien_read_start(r->conn, r->token.bytes, r->token.len, r->space, &opts, NULL);
    if (rc != 0) {
        r->failed = rc;
        r->left = 0;
    }
}

// READs of the ten in a second.
static double round_of_reads(void)
{
    const uint64_t begin = fault_us();
    for (unsigned i = 0; i < HEALTHY; i++) {
        readers[i].left = READS;
        read_next(&readers[i]);
    }
    for (unsigned i = 0; i < HEALTHY; i++) {
        while (readers[i].left > 0) {
            CHECK(fault_us() - begin < 300000000u);
            fault_sleep(1);
        }
        CHECK_EQ(readers[i].failed, 0);
    }
    return HEALTHY * READS * 1e6 / (double)(fault_us() - begin);
}

static void open_readers(void)
{
    for (unsigned i = 0; i < HEALTHY; i++) {
        struct reader *r = &readers[i];
        r->conn = fault_connect(&side, &peer);
        fault_ask_grant(r->conn, PIECE, &r->token);
        r->space = fault_space(&side, PIECE);
    }
}

static void close_readers(void)
{
    lien_conn_info info;
    for (unsigned i = 0; i < HEALTHY; i++) {
        struct reader *r = &readers[i];
        fault_info(r->conn, &info);
        CHECK(info.open);
        CHECK(fault_space_is_pattern(r->space));
        lien_space_free(&r->space);
        CHECK_EQ(lien_conn_close_wait(&r->conn, 60000), 0);
    }
}

// -- The one ---------------------------------------------------------------------------------------------------------------------

// Its READs hang from now on.
static lien_conn *hang(void)
{
    lien_token token;
    relay.no_reads = false;
    lien_conn *one = fault_connect(&side, &stuck_peer);
    fault_ask_grant(one, PIECE, &token);
    relay.no_reads = true;
    for (unsigned i = 0; i < STUCK; i++) {
        stuck[i] = (struct fault_read){0};
        stuck_spaces[i] = fault_space(&side, PIECE);
        CHECK_EQ(fault_read_start(&stuck[i], one, &token, stuck_spaces[i], LIEN_FOREVER, 0), 0);
    }
    CHECK(fault_echo(one, 60000) >= 0); // it is as lively as can be
    return one;
}

static bool hangs(void)
{
    for (unsigned i = 0; i < STUCK; i++)
        if (stuck[i].done > 0)
            return false;
    return true;
}

// All of its READs are over, with this status, and their memory is back.
static void hung(int status)
{
    for (unsigned i = 0; i < STUCK; i++) {
        CHECK(fault_until(fault_read_is_released, &stuck[i], 120000));
        CHECK_EQ(stuck[i].status, status);
        CHECK_EQ(stuck[i].released_status, 0);
        CHECK(stuck[i].in_order);
        lien_read_close(&stuck[i].read);
        lien_space_free(&stuck_spaces[i]);
    }
}

// READs of the ten in a second while those of the one hang. A round that the watchdog cut short does not count.
static double beside(void)
{
    for (unsigned i = 0; i < 20; i++) {
        lien_conn *one = hang();
        const double speed = round_of_reads();
        const bool hung_on = hangs();
        lien_conn_close_wait(&one, 60000);
        hung(hung_on ? LIEN_ECLOSED : LIEN_EPEERLOST);
        if (hung_on)
            return speed;
    }
    fault_fail(__FILE__, __LINE__, "a round takes less than read_watchdog_ms", 0, 0);
}

// -- Comparing -------------------------------------------------------------------------------------------------------------------

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof values[0], by_size);
    return values[ROUNDS / 2];
}

// The speed beside the one, as a share of that without it.
static double compare(void)
{
    double with[ROUNDS], without[ROUNDS];
    for (unsigned i = 0; i < ROUNDS; i++) {
        with[i] = beside();
        without[i] = round_of_reads();
    }
    const double a = median(with), b = median(without);
    printf(
        "READs of 64 KiB in a second, the ten together, median of %u rounds: beside the one %.0f, "
        "without it %.0f: %.2f\n",
        ROUNDS, a, b, a / b);
    return a / b;
}

static void closed_by_the_watchdog(void)
{
    const uint64_t begin = fault_us();
    uint64_t done = 0, released = 0;
    fault_log_clear();
    lien_conn *one = hang();
    while (hangs()) {
        CHECK(fault_us() - begin < 300000000u);
        fault_sleep(5);
    }
    for (unsigned i = 0; i < STUCK; i++) {
        CHECK(fault_until(fault_read_is_released, &stuck[i], 120000));
        done = stuck[i].done_us > done ? stuck[i].done_us : done;
        released = stuck[i].released_us > released ? stuck[i].released_us : released;
    }
    hung(LIEN_EPEERLOST);
    CHECK(fault_log_has("read_watchdog_ms"));
    printf("the one: %u READs; done %.1f ms, released %.1f ms after the start "
           "(read_watchdog_ms=5000)\n",
           STUCK, (double)(done - begin) / 1e3, (double)(released - begin) / 1e3);
    lien_conn_close_wait(&one, 10000);
}

static void test(int argc, char **argv)
{
    char ports[32];
    uint16_t port = fault_free_port();
    (void)argc;
    (void)argv;
    snprintf(ports, sizeof ports, "fabric_ports=%u-%u", port, port);
    const char *const stuck_settings[] = {"heartbeat_ms=200", "dead_ms=30000", ports,
                                          "advertise=127.0.0.2", NULL};
    fault_relay_start(&relay, port);
    fault_side_open(&side, settings, 0);
    fault_peer_start(&peer, settings);
    fault_peer_start(&stuck_peer, stuck_settings);
    open_readers();
    round_of_reads(); // so that memory is registered and touched
    unsigned attempts = 1;
    while (compare() < 0.5)
        CHECK(attempts++ < ATTEMPTS);
    closed_by_the_watchdog();
    round_of_reads(); // and they go on
    CHECK(relay.eaten > 0);
    close_readers();
    fault_peer_end(&stuck_peer);
    fault_peer_end(&peer);
    fault_relay_stop(&relay);
    fault_side_close(&side);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
