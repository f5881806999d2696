// SPDX-License-Identifier: Apache-2.0
//
// Half-open connections: bounded in number and in time, whoever is at the other end [R20]; a server that stands still, and
// a fabric port at which a stranger calls, or calls half [R18].

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/tcp/tcp.h"
#include "tests/fault/fault.h"

static const uint8_t preamble[8] = {0xc7, 'L', 'I', 'E', 'N', '\r', '\n', 0}; // docs/wire.md

#define HANG_MS 60000u // what takes so long never comes

static struct fault_side side;
static _Atomic int foreign_fd = -1;
static char foreign_first[64];

static void on_foreign(lien_listener *listener, int fd, const void *first, size_t len, void *arg)
{
    (void)listener;
    (void)arg;
    CHECK(len < sizeof foreign_first);
    memcpy(foreign_first, first, len);
    foreign_fd = fd;
}

static bool foreign_came(void *arg)
{
    (void)arg;
    return foreign_fd >= 0;
}

// Milliseconds until the other end closes; bytes that come before are ignored.
static uint64_t until_closed(int fd, unsigned ms)
{
    uint64_t begin = fault_ms();
    char bytes[1024];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (;;) {
        CHECK(fault_ms() - begin < ms);
        if (poll(&p, 1, (int)ms) > 0 && recv(fd, bytes, sizeof bytes, 0) <= 0)
            return fault_ms() - begin;
    }
}

static bool is_closed(int fd)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
}

// Each byte comes in time, and the whole never: while they still come the server has had enough. [R20]
static void silent_and_slow(uint16_t port)
{
    static const uint8_t offer[] = {1, 0, 0, 16}; // an OFFER of 4,096 bytes
    int silent = fault_dial("127.0.0.1", port);
    int slow = fault_dial("127.0.0.1", port);
    uint64_t begin = fault_ms();
    CHECK_EQ(send(slow, preamble, sizeof preamble, MSG_NOSIGNAL), sizeof preamble);
    CHECK_EQ(send(slow, offer, sizeof offer, MSG_NOSIGNAL), sizeof offer);
    unsigned sent = 0;
    while (!is_closed(slow)) {
        CHECK(++sent < 600); // it went on for a minute
        if (send(slow, preamble, 1, MSG_NOSIGNAL) != 1)
            break;
        fault_sleep(100);
    }
    until_closed(silent, HANG_MS);
    CHECK(fault_ms() - begin >= 900); // connect_ms=1000, whatever came
    CHECK(fault_log_has("bootstrap handshake"));
    close(silent);
    close(slow);
}

// One more than the limit is closed while those that fill it are still open: not by time.
static void limited(void)
{
    static const char *const settings[] = {"connect_ms=120000", "half_open_max=4", NULL};
    lien_listener *listener = NULL;
    char address[96];
    int fds[4];
    fault_side_open(&side, settings, 0);
    CHECK_EQ(lien_listener_open(side.ctx, "127.0.0.1:0", NULL, &listener), 0);
    CHECK_EQ(lien_listener_address(listener, address, sizeof address), 0);
    for (unsigned i = 0; i < 4; i++) // taken in this order
        fds[i] = fault_dial("127.0.0.1", fault_port_of(address));
    int one_more = fault_dial("127.0.0.1", fault_port_of(address));
    until_closed(one_more, HANG_MS);
    CHECK(fault_log_has("half_open_max"));
    for (unsigned i = 0; i < 4; i++) {
        CHECK(!is_closed(fds[i]));
        close(fds[i]);
    }
    close(one_more);
    CHECK_EQ(lien_listener_close(&listener), 0);
    fault_side_close(&side);
}

static void foreign(uint16_t port)
{
    static const char hello[] = "GET / HTTP/1.1\r\n\r\n";
    char answer[8] = "";
    int fd = fault_dial("127.0.0.1", port);
    CHECK_EQ(send(fd, hello, sizeof hello - 1, MSG_NOSIGNAL), sizeof hello - 1);
    CHECK(fault_until(foreign_came, NULL, HANG_MS));
    CHECK(memcmp(foreign_first, hello, 1) == 0);
    CHECK_EQ(send(foreign_fd, "hi", 2, MSG_NOSIGNAL), 2); // it is the host's now, and open
    CHECK_EQ(recv(fd, answer, sizeof answer, 0), 2);
    fault_sleep(1200); // longer than connect_ms
    CHECK_EQ(send(foreign_fd, "ho", 2, MSG_NOSIGNAL), 2);
    CHECK_EQ(recv(fd, answer, sizeof answer, 0), 2);
    close(foreign_fd);
    close(fd);
}

static void half_open(void)
{
    static const char *const settings[] = {"connect_ms=1000", "half_open_max=4", NULL};
    lien_listener *listener = NULL;
    lien_listener_opts opts;
    char address[96];
    lien_conn *client = NULL, *server = NULL;
    fault_side_open(&side, settings, 0);
    lien_listener_opts_init(&opts);
    opts.on_foreign = on_foreign;
    CHECK_EQ(lien_listener_open(side.ctx, "127.0.0.1:0", &opts, &listener), 0);
    CHECK_EQ(lien_listener_address(listener, address, sizeof address), 0);
    uint16_t port = fault_port_of(address);
    silent_and_slow(port);
    foreign(port);
    // And after all that a peer still gets in.
    CHECK_EQ(lien_conn_open_wait(side.ctx, address, NULL, &client), 0);
    CHECK_EQ(lien_listener_accept_wait(listener, HANG_MS, &server), 0);
    CHECK_EQ(lien_conn_close_wait(&client, HANG_MS), 0);
    CHECK_EQ(lien_conn_close_wait(&server, HANG_MS), 0);
    CHECK_EQ(lien_listener_close(&listener), 0);
    fault_side_close(&side);
}

static void stopped_server(void)
{
    struct fault_peer peer;
    lien_conn *conn = NULL;
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.timeout_ms = 500;
    fault_side_open(&side, NULL, 0);
    fault_peer_start(&peer, NULL);
    fault_peer_signal(&peer, SIGSTOP);
    fault_log_clear();
    uint64_t begin = fault_ms();
    CHECK_EQ(lien_conn_open_wait(side.ctx, peer.address, &opts, &conn), LIEN_ETIMEDOUT);
    CHECK(fault_ms() - begin >= 450);
    CHECK(fault_log_has("not open in time, stage: bootstrap handshake"));
    fault_peer_signal(&peer, SIGCONT);
    opts.timeout_ms = HANG_MS;
    CHECK_EQ(lien_conn_open_wait(side.ctx, peer.address, &opts, &conn), 0);
    CHECK_EQ(lien_conn_close_wait(&conn, HANG_MS), 0);
    fault_peer_end(&peer);
    fault_side_close(&side);
}

// -- At the fabric port ----------------------------------------------------------------------------------------------------------

static void say(void *self, lien_level level, int code, const char *text)
{
    (void)self;
    (void)level;
    (void)code;
    (void)text;
}

// A libfabric client of the right provider that knows nothing of the bootstrap's secret. How it ended.
static enum lieni_event_kind stranger(uint16_t port)
{
    const struct lieni_provider *ops = &lieni_provider_tcp;
    const struct lieni_prov_args args = {.env = &lieni_platform_real()->env,
                                         .report = {.say = say}};
    struct lieni_ep_args ep_args = {.host = "127.0.0.1", .port = port, .posts_max = 16};
    struct lieni_prov *prov = NULL;
    struct lieni_domain *domain = NULL;
    struct lieni_ep *ep = NULL;
    struct lieni_event ev;
    enum lieni_proof proof;
    uint64_t late = 0, begin = fault_ms();
    memset(ep_args.send_data, 0x5a, LIENI_CM_DATA);
    CHECK_EQ(ops->open(&args, &prov), 0);
    CHECK_EQ(ops->domain_open(prov, NULL, &domain), 0);
    CHECK_EQ(ops->connect(domain, &ep_args, &ep), 0);
    while (ops->poll(prov, &ev, 1) == 0) {
        CHECK(fault_ms() - begin < HANG_MS);
        fault_sleep(1);
    }
    ops->ep_shutdown(ep);
    while (ops->ep_destroy(ep, &proof, &late) == LIEN_EBUSY)
        fault_sleep(1);
    CHECK_EQ(ops->domain_close(domain, &proof), 0);
    ops->close(prov);
    return ev.kind;
}

static _Atomic int opened = 1;

static void on_open(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    (void)arg;
    opened = status;
}

static bool has_opened(void *arg)
{
    (void)arg;
    return opened <= 0;
}

static bool is_held(void *arg)
{
    struct fault_relay *relay = arg;
    return relay->held > 0;
}

static lien_conn *start(const struct fault_peer *peer, struct fault_relay *relay,
                        unsigned timeout_ms)
{
    lien_conn *conn = NULL;
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.timeout_ms = timeout_ms;
    opts.on_open = on_open;
    opened = 1;
    CHECK_EQ(lien_conn_open(side.ctx, peer->address, &opts, &conn), 0);
    CHECK(fault_until(is_held, relay, HANG_MS));
    CHECK_EQ(opened, 1);
    return conn;
}

static void at_the_fabric_port(void)
{
    static const uint8_t half_request[32] = {[0] = 3, [3] = 55, [24] = 1};
    struct fault_peer peer;
    struct fault_relay relay = {0};
    char ports[32];
    uint16_t port = fault_free_port();
    snprintf(ports, sizeof ports, "fabric_ports=%u-%u", port, port);
    const char *const settings[] = {"heartbeat_ms=200", "dead_ms=60000", "connect_ms=60000", NULL};
    const char *const peer_settings[] = {"heartbeat_ms=200",    "dead_ms=60000",
                                         "connect_ms=60000",    ports,
                                         "advertise=127.0.0.2", NULL};
    fault_relay_start(&relay, port);
    fault_side_open(&side, settings, 0);
    fault_peer_start(&peer, peer_settings);

    // A stranger is rejected, and the right one gets in after him.
    relay.held = 0;
    relay.hold = true;
    lien_conn *conn = start(&peer, &relay, HANG_MS);
    CHECK_EQ(stranger(port), LIENI_EV_FAILED);
    CHECK_EQ(opened, 1);
    relay.hold = false;
    CHECK(fault_until(has_opened, NULL, HANG_MS));
    CHECK_EQ(opened, 0);
    CHECK(fault_echo(conn, HANG_MS) >= 0);

    // Half a request: only that connection suffers, the other one talks on while it waits, and ends by its time. Half is the header (version 3, a request, 55 bytes to follow, our byte
    // order) without those bytes, which libfabric then waits for; of less it takes no notice.
    relay.held = 0;
    relay.hold = true;
    fault_log_clear();
    lien_conn *other = start(&peer, &relay, 5000);
    int fd = fault_dial("127.0.0.1", port);
    CHECK_EQ(send(fd, half_request, sizeof half_request, MSG_NOSIGNAL), sizeof half_request);
    do {
        CHECK(fault_echo(conn, HANG_MS) >= 0);
        fault_sleep(20);
    } while (!has_opened(NULL));
    CHECK_EQ(opened, LIEN_ETIMEDOUT);
    CHECK(fault_log_has("not open in time, stage: fabric connection"));
    lien_conn_close_wait(&other, HANG_MS);
    close(fd);
    CHECK(fault_echo(conn, HANG_MS) >= 0);
    CHECK_EQ(lien_conn_close_wait(&conn, HANG_MS), 0);
    fault_peer_end(&peer);
    fault_relay_stop(&relay);
    fault_side_close(&side);
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    half_open();
    limited();
    stopped_server();
    at_the_fabric_port();
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
