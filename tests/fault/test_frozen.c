// SPDX-License-Identifier: Apache-2.0
//
// 64 READs of 1 MiB started on a peer that is then frozen (SIGSTOP), and on one that is killed: when each is done, and when its memory is back. The figures are for the reader of the report; what
// must hold is the order, the status, and that nothing is left over [R1, R4].

#include <signal.h>

#include "tests/fault/fault.h"

#define READS       64u
#define DEADLINE_MS 1000u

static struct fault_side side;
static const char *const settings[] = {"heartbeat_ms=500", "dead_ms=3000", NULL};

static int by_time(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void print_times(const char *what, uint64_t *us, uint64_t begin)
{
    qsort(us, READS, sizeof *us, by_time);
    printf("  %-8s first %8.1f ms, median %8.1f, last %8.1f\n", what, (double)(us[0] - begin) / 1e3,
           (double)(us[READS / 2] - begin) / 1e3, (double)(us[READS - 1] - begin) / 1e3);
}

static void run(int sig, uint32_t deadline_ms)
{
    static struct fault_read reads[READS];
    struct fault_peer peer;
    lien_space *spaces[READS];
    uint64_t done[READS], released[READS];
    lien_token token;
    lien_ctx_stats stats;
    unsigned ok = 0;
    memset(reads, 0, sizeof reads);
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    fault_ask_grant(conn, MIB, &token);
    for (unsigned i = 0; i < READS; i++)
        spaces[i] = fault_space(&side, MIB);
    uint64_t begin = fault_us();
    for (unsigned i = 0; i < READS; i++)
        CHECK_EQ(fault_read_start(&reads[i], conn, &token, spaces[i], deadline_ms, 0), 0);
    uint64_t struck = fault_us();
    if (sig == SIGSTOP)
        fault_peer_signal(&peer, SIGSTOP);
    else
        fault_peer_kill(&peer);
    for (unsigned i = 0; i < READS; i++) {
        struct fault_read *r = &reads[i];
        CHECK(fault_until(fault_read_is_released, r, 60000));
        CHECK(r->done == 1 && r->released == 1 && r->in_order);
        CHECK_EQ(r->released_status, 0);
        done[i] = r->done_us;
        released[i] = r->released_us;
        ok += r->status == 0;
        if (r->status == 0)
            CHECK(fault_space_is_pattern(spaces[i]));
        lien_read_close(&r->read);
        lien_space_free(&spaces[i]);
    }
    printf("%s %.1f ms after the start of %u READs of 1 MiB, deadline %s: %u of them succeeded\n",
           sig == SIGSTOP ? "frozen" : "killed", (double)(struck - begin) / 1e3, READS,
           deadline_ms == LIEN_FOREVER ? "none" : "1000 ms", ok);
    print_times("done", done, begin);
    print_times("released", released, begin);
    lien_conn_close_wait(&conn, 10000);
    if (sig == SIGSTOP)
        fault_peer_kill(&peer);
    fault_stats(&side, &stats);
    CHECK_EQ(stats.pool_bytes, 0);
    CHECK_EQ(stats.quarantined_bytes, 0);
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    fault_side_open(&side, settings, 0);
    run(SIGSTOP, DEADLINE_MS);
    run(SIGSTOP, LIEN_FOREVER);
    run(SIGKILL, DEADLINE_MS);
    fault_side_close(&side);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
