// SPDX-License-Identifier: Apache-2.0
//
// test_cancel [READS [SEED]]: reads cancelled at random moments leave credits, grants and memory as they were, and each has its two events once, in order [R4].

#include <signal.h>

#include "tests/fault/fault.h"

#define AT_ONCE 8u
#define STOPPED 10u // lots whose peer stands still

static struct fault_side side;
static struct fault_peer peer;
// Without heartbeats, so that credits can be compared exactly.
static const char *const settings[] = {"heartbeat_ms=0", "read_watchdog_ms=60000", NULL};
static uint64_t seed = 1;

static uint64_t draw(uint64_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % below;
}

static void spin(uint64_t us)
{
    uint64_t end = fault_us() + us;
    while (fault_us() < end) {
    }
}

static void check_over(struct fault_read *r)
{
    CHECK(fault_until(fault_read_is_released, r, 60000));
    CHECK(r->done == 1 && r->released == 1 && r->in_order);
    CHECK(r->status == 0 || r->status == LIEN_ECANCELED);
    CHECK_EQ(r->released_status, 0);
}

// One lot of reads at once, each cancelled, or its handle closed, at a moment of its own; `stopped`: while the peer stands still.
static unsigned lot(lien_conn *conn, const lien_token *token, lien_space **spaces, bool stopped)
{
    struct fault_read r[AT_ONCE];
    unsigned cancelled = 0;
    memset(r, 0, sizeof r);
    if (stopped)
        fault_peer_signal(&peer, SIGSTOP);
    for (unsigned i = 0; i < AT_ONCE; i++)
        CHECK_EQ(fault_read_start(&r[i], conn, token, spaces[i], LIEN_FOREVER, 0), 0);
    for (unsigned i = 0; i < AT_ONCE; i++) {
        spin(draw(4) ? draw(200) : 0);
        if (draw(2)) {
            CHECK_EQ(lien_read_cancel(r[i].read), 0);
            if (draw(2))
                CHECK_EQ(lien_read_cancel(r[i].read), 0); // again: no effect
        }
        CHECK_EQ(lien_read_close(&r[i].read), 0);
    }
    if (stopped)
        fault_peer_signal(&peer, SIGCONT);
    for (unsigned i = 0; i < AT_ONCE; i++) {
        check_over(&r[i]);
        CHECK_EQ(lien_space_wait(spaces[i], 0), 0);
        CHECK(r[i].status != 0 || fault_space_is_pattern(spaces[i]));
        cancelled += r[i].status == LIEN_ECANCELED;
    }
    return cancelled;
}

static void many(lien_conn *conn, unsigned reads)
{
    lien_token token;
    lien_space *spaces[AT_ONCE];
    lien_conn_info before, after;
    lien_ctx_stats at_start, at_end;
    struct fault_levels owner_before, owner_after;
    unsigned cancelled = 0;
    const size_t size = 96 * 1024;
    fault_ask_grant(conn, size, &token);
    for (unsigned i = 0; i < AT_ONCE; i++)
        spaces[i] = fault_space(&side, size);
    fault_info(conn, &before);
    fault_stats(&side, &at_start);
    fault_peer_levels(&peer, &owner_before);
    for (unsigned n = 0; n < STOPPED; n++)
        cancelled += lot(conn, &token, spaces, true);
    for (unsigned n = STOPPED * AT_ONCE; n < reads; n += AT_ONCE)
        cancelled += lot(conn, &token, spaces, false);
    fault_info(conn, &after);
    fault_stats(&side, &at_end);
    fault_peer_levels(&peer, &owner_after);
    CHECK_EQ(after.message_credits, before.message_credits);
    CHECK_EQ(after.control_credits, before.control_credits);
    CHECK_EQ(after.reads_outstanding, 0);
    CHECK_EQ(after.read_bytes_outstanding, 0);
    CHECK_EQ(at_end.pool_bytes, at_start.pool_bytes);
    CHECK_EQ(at_end.grants_live, at_start.grants_live);
    CHECK_EQ(at_end.evidence_unknown, at_start.evidence_unknown);
    CHECK_EQ(at_end.quarantined_total, 0);
    CHECK_EQ(at_end.reads_started - at_start.reads_started,
             at_end.reads_done + at_end.reads_failed - at_start.reads_done - at_start.reads_failed);
    CHECK_EQ(at_end.read_pieces_posted, at_end.read_pieces_done);
    CHECK_EQ(owner_after.grants, owner_before.grants);
    CHECK_EQ(owner_after.pool_bytes, owner_before.pool_bytes);
    printf("%u reads, %u of them cancelled: credits, grants and memory as before\n", reads,
           cancelled); // how many still run when they are cancelled is up to the machine,
    CHECK(cancelled >= AT_ONCE * STOPPED); // but those of a stopped peer do
    CHECK_EQ(lien_release(conn, token.bytes, token.len), 0);
    for (unsigned i = 0; i < AT_ONCE; i++)
        lien_space_free(&spaces[i]);
}

static bool no_grants(void *arg)
{
    (void)arg;
    struct fault_levels l;
    fault_peer_levels(&peer, &l);
    return l.grants == 0;
}

// A cancelled read still releases its grant, once nothing of it is in flight.
static void released_when_cancelled(lien_conn *conn)
{
    for (unsigned i = 0; i < 200; i++) {
        struct fault_read r = {0};
        lien_token token;
        const size_t size = 256 * 1024;
        fault_ask_grant(conn, size, &token);
        lien_space *space = fault_space(&side, size);
        CHECK_EQ(fault_read_start(&r, conn, &token, space, LIEN_FOREVER, LIEN_RELEASE), 0);
        spin(draw(300));
        CHECK_EQ(lien_read_close(&r.read), 0);
        lien_space_free(&space); // put off while lent
        check_over(&r);
        CHECK_EQ(lien_release(conn, token.bytes, token.len), LIEN_ESTALE);
    }
    CHECK(fault_until(no_grants, NULL, 60000));
    for (unsigned i = 0; i < 100; i++) // more than there are credits
        CHECK(fault_echo(conn, 60000) >= 0);
}

// A start that is refused runs neither event; one with nothing to move runs both.
static void events(lien_conn *conn)
{
    struct fault_read running = {0}, refused = {0}, nothing = {0}, outside = {0};
    lien_token token;
    const size_t size = 16 * MIB;
    fault_ask_grant(conn, size, &token);
    lien_space *space = fault_space(&side, size);
    lien_space *small = fault_space(&side, 4096);
    fault_peer_signal(&peer, SIGSTOP); // so that it runs
    CHECK_EQ(fault_read_start(&running, conn, &token, space, LIEN_FOREVER, 0), 0);
    CHECK_EQ(fault_read_start(&refused, conn, &token, space, LIEN_FOREVER, 0), LIEN_EBUSY);
    fault_peer_signal(&peer, SIGCONT);
    CHECK_EQ(fault_read_start(&outside, conn, &token, small, LIEN_FOREVER, 0), LIEN_ERANGE);
    CHECK_EQ(lien_space_wait(small, 0), 0); // nothing was lent
    check_over(&running);
    CHECK(fault_space_is_pattern(space));
    const lien_op none = {.src = 3, .dst = 5, .len = 0};
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.ops = &none;
    opts.n_ops = 1;
    lien_buf *buf = NULL;
    CHECK_EQ(lien_space_take(small, &buf, 1), 0);
    CHECK_EQ(lien_read_wait(conn, token.bytes, token.len, &buf, 1, &opts), 0);
    CHECK(buf);
    lien_buf_free(&buf);
    CHECK_EQ(fault_read_start(&nothing, conn, &token, space, LIEN_FOREVER, LIEN_RELEASE), 0);
    check_over(&nothing);
    fault_sleep(50);
    CHECK(refused.done == 0 && refused.released == 0);
    CHECK(outside.done == 0 && outside.released == 0);
    CHECK(running.done == 1 && running.released == 1);
    lien_read_close(&running.read);
    lien_read_close(&nothing.read);
    lien_space_free(&space);
    lien_space_free(&small);
}

static void test(int argc, char **argv)
{
    unsigned reads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 10000;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : fault_us() | 1;
    printf("seed %" PRIu64 "\n", seed);
    fault_side_open(&side, settings, 0);
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    events(conn);
    many(conn, reads);
    released_when_cancelled(conn);
    CHECK_EQ(lien_conn_close_wait(&conn, 60000), 0);
    fault_peer_end(&peer);
    fault_side_close(&side);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
