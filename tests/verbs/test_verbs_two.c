// SPDX-License-Identifier: Apache-2.0
//
// test_verbs_two PART DEVICE FILE: this side of two machines joined by a network device, DEVICE here, which is taken down in the middle of READs and brought back. FILE gets the address of the other side's process,
// which is this program with --peer there (tests/fault/fault_peer.c). Run by ci/verbs-test --two. The figures are for the reader; what must hold is the order, the status, and that all memory comes home by proof.

#include <unistd.h>

#include "tests/fault/fault.h"

#define READS 32u

static const char *const patient[] = {"heartbeat_ms=500", "dead_ms=20000", "read_watchdog_ms=30000",
                                      NULL};
static const char *const hasty[] = {"heartbeat_ms=500", "dead_ms=6000", NULL};
static const char *device;
static struct fault_peer peer;
static struct fault_side side;
static lien_conn *conn;
static lien_token token;
static lien_space *spaces[READS];
static struct fault_read reads[READS];

static void find_peer(const char *path)
{
    for (unsigned i = 0; i < 1200 && peer.address[0] == '\0'; i++) {
        FILE *file = fopen(path, "re");
        if (file &&
            (!fgets(peer.address, sizeof peer.address, file) || !strchr(peer.address, '\n')))
            peer.address[0] = '\0';
        if (file)
            fclose(file);
        fault_sleep(100);
    }
    CHECK(peer.address[0] != '\0');
    peer.address[strcspn(peer.address, "\n")] = '\0';
}

static void link_set(const char *state)
{
    char command[128];
    snprintf(command, sizeof command, "ip link set %s %s", device, state);
    CHECK_EQ(system(command), 0); // NOLINT(concurrency-mt-unsafe)
}

static void begin(const char *const *settings, uint32_t deadline_ms)
{
    fault_side_open(&side, settings, 0);
    conn = fault_connect(&side, &peer);
    fault_ask_grant(conn, MIB, &token);
    memset(reads, 0, sizeof reads);
    for (unsigned i = 0; i < READS; i++) {
        spaces[i] = fault_space(&side, MIB);
        CHECK_EQ(fault_read_start(&reads[i], conn, &token, spaces[i], deadline_ms, 0), 0);
    }
}

// At least two of them are over, and not all: the link goes down in the middle.
static uint64_t cut(void)
{
    CHECK(fault_until(fault_read_is_done, &reads[1], 60000));
    link_set("down");
    return fault_us();
}

static double ms(uint64_t begin_us, uint64_t at_us)
{
    return ((double)at_us - (double)begin_us) / 1e3;
}

// Waits for all; prints when those that the cut hit were done and released, after it. Returns how many it hit. Besides `status` any may be lost: a device may fail at once what it cannot send while its port is down, and
// the queue pair with it (supposed, not seen yet: docs/status.md).
static unsigned last_lost;
static unsigned all_over(const char *what, uint64_t cut_us, int status)
{
    unsigned hit = 0, lost = 0;
    double done[2] = {0, 0}, released[2] = {0, 0};
    for (unsigned i = 0; i < READS; i++) {
        struct fault_read *r = &reads[i];
        CHECK(fault_until(fault_read_is_released, r, 120000));
        CHECK(r->done == 1 && r->released == 1 && r->in_order);
        CHECK_EQ(r->released_status, 0);
        if (r->done_us > cut_us) {
            double d = ms(cut_us, r->done_us), l = ms(cut_us, r->released_us);
            CHECK(r->status == status || r->status == LIEN_EPEERLOST || r->status == 0);
            lost += r->status == LIEN_EPEERLOST;
            done[0] = hit == 0 || d < done[0] ? d : done[0];
            done[1] = d > done[1] ? d : done[1];
            released[0] = hit == 0 || l < released[0] ? l : released[0];
            released[1] = l > released[1] ? l : released[1];
            hit++;
        }
        if (r->status == 0)
            CHECK(fault_space_is_pattern(spaces[i]));
        lien_read_close(&r->read);
        lien_space_free(&spaces[i]);
    }
    printf("%s: %u of %u READs of 1 MiB were under way or waiting, %u of them lost; done %.0f to "
           "%.0f ms, released %.0f to %.0f ms after the link went down\n",
           what, hit, READS, lost, done[0], done[1], released[0], released[1]);
    last_lost = lost;
    return hit;
}

static void finish(void)
{
    lien_ctx_stats stats;
    lien_conn_close_wait(&conn, 60000);
    fault_stats(&side, &stats);
    CHECK_EQ(stats.pool_bytes, 0);
    CHECK_EQ(stats.quarantined_total, 0);
    fault_side_close(&side);
}

// What was before works again: a connection, and READs with the right bytes.
static void works(void)
{
    uint64_t cut_us = fault_us();
    begin(patient, LIEN_FOREVER);
    CHECK_EQ(all_over("a new connection, nothing cut", cut_us, 0), READS);
    CHECK_EQ(last_lost, 0);
    finish();
}

// Down for 2 s, which is less than the death timer: the connection goes on, unless the device gave up. Then the next one works.
static void short_cut(void)
{
    begin(patient, LIEN_FOREVER);
    uint64_t cut_us = cut();
    fault_sleep(2000);
    link_set("up");
    CHECK(all_over("down for 2 s", cut_us, 0) > 0);
    CHECK(last_lost > 0 || fault_echo(conn, 20000) >= 0);
    finish();
    works();
}

// Down for longer: the death timer ends the connection, and the proof brings the memory home while the link still is down.
static void long_cut(void)
{
    begin(hasty, LIEN_FOREVER);
    uint64_t cut_us = cut();
    CHECK(all_over("down for good", cut_us, LIEN_EPEERLOST) > 0);
    finish();
    link_set("up");
    works();
}

// A deadline while the link is down: done at once, released by the end of the connection.
static void deadline(void)
{
    begin(patient, 5000);
    uint64_t cut_us = cut();
    unsigned hit = all_over("down for good, deadline 5000 ms", cut_us, LIEN_ETIMEDOUT);
    CHECK(hit > last_lost); // or no deadline was shown
    finish();
    link_set("up");
    works();
}

static void test(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        {"works", works}, {"short_cut", short_cut}, {"long_cut", long_cut}, {"deadline", deadline}};
    CHECK_EQ(argc, 4);
    device = argv[2];
    find_peer(argv[3]);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strcmp(argv[1], parts[i].name) != 0)
            continue;
        parts[i].run();
        return;
    }
    fprintf(stderr, "no part %s\n", argv[1]);
    exit(2);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
