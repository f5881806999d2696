// SPDX-License-Identifier: Apache-2.0
//
// A peer whose application takes no messages for longer than the death timer: sends are refused at the credit, nothing is
// queued, and control frames (heartbeats, releases, credits) pass all the same [R22].

#include "tests/fault/fault.h"

static const char *const settings[] = {"heartbeat_ms=300", "dead_ms=1500", "message_credits=16",
                                       NULL};
static struct fault_peer peer;

static bool no_grants(void *arg)
{
    (void)arg;
    struct fault_levels l;
    fault_peer_levels(&peer, &l);
    return l.grants == 0;
}

// Takes the echoes of `n` messages.
static void take(lien_conn *conn, unsigned n)
{
    lien_msg *msg = NULL;
    for (unsigned i = 0; i < n; i++) {
        CHECK_EQ(lien_msg_recv_wait(conn, 10000, &msg), 0);
        lien_msg_free(&msg);
    }
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    struct fault_side side;
    struct fault_read r = {0};
    lien_token token;
    lien_conn_info info;
    fault_side_open(&side, settings, 0);
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    fault_ask_grant(conn, 2 * MIB, &token);
    lien_space *space = fault_space(&side, 2 * MIB);

    uint64_t begin = fault_ms();
    CHECK_EQ(lien_send(conn, "z", 1, NULL, 0, NULL), 0); // the peer's application sleeps 4 s
    fault_sleep(100);
    unsigned sent = 0;
    int rc;
    while ((rc = lien_send(conn, "x", 1, NULL, 0, NULL)) == 0) {
        sent++;
        CHECK(sent <= 16);
        fault_sleep(2);
    }
    CHECK_EQ(rc, LIEN_EAGAIN);
    fault_info(conn, &info);
    CHECK_EQ(info.message_credits, 0);
    // No message can leave, yet a READ passes, and its release arrives behind none of them.
    CHECK_EQ(fault_read_start(&r, conn, &token, space, 3000, LIEN_RELEASE), 0);
    CHECK(fault_until(fault_read_is_released, &r, 3000));
    CHECK_EQ(r.status, 0);
    CHECK(fault_until(no_grants, NULL, 1000));
    CHECK(fault_ms() - begin < 3500);
    CHECK_EQ(lien_send(conn, "x", 1, NULL, 0, NULL), LIEN_EAGAIN);
    while (fault_ms() - begin < 3800) { // longer than dead_ms without one message
        fault_info(conn, &info);
        CHECK(info.open);
        fault_sleep(20);
    }
    take(conn, sent);
    for (unsigned i = 0; i < 200; i++)
        CHECK(fault_echo(conn, 5000) >= 0);
    printf("%u messages of 16 credits taken, then LIEN_EAGAIN; release and heartbeats passed\n",
           sent + 1);
    lien_read_close(&r.read);
    lien_space_free(&space);
    CHECK_EQ(lien_conn_close_wait(&conn, 10000), 0);
    fault_peer_end(&peer);
    fault_side_close(&side);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
