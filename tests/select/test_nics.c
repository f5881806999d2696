// SPDX-License-Identifier: Apache-2.0
//
// Contexts over libfabric tcp on a machine with several NICs, which is a network namespace of the test's own: a subnet policy, a list of NICs taken least loaded first, a link that goes down, and
// a provider that leads nowhere. Skips where no namespace can be had. One thread.

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fault/fault.h"

static void run(const char *command)
{
    int rc = system(command); // NOLINT(concurrency-mt-unsafe)
    if (rc != 0)
        fprintf(stderr, "%s: %d\n", command, rc);
    CHECK_EQ(rc, 0);
}

static bool d1_runs(void *arg)
{
    struct ifreq request = {.ifr_name = "d1"};
    (void)arg;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0 && close(fd) == 0);
    return (request.ifr_flags & IFF_RUNNING) != 0;
}

static bool d1_stands(void *arg)
{
    return !d1_runs(arg);
}

static bool make_machine(void)
{
    if (unshare(geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) != 0 ||
        system("ip link set lo up") != 0) // NOLINT(concurrency-mt-unsafe)
        return false;
    run("ip link add d0 type veth peer name e0 && ip addr add 10.71.0.1/24 dev d0");
    run("ip link add d1 type veth peer name e1 && ip addr add 10.72.0.1/24 dev d1");
    run("ip link set d0 up && ip link set e0 up && ip link set d1 up && ip link set e1 up");
    run("ip addr add fd71::1/64 dev d0 nodad");
    // The kernel takes note of a link a moment later.
    CHECK(fault_until(d1_runs, NULL, 30000));
    return true;
}

struct pair {
    struct fault_side client, server;
    lien_listener *listener;
    char address[96];
};

// The server listens at `host`; `one` and `two` are its options (or NULL), `own` the client's.
static void open_pair(struct pair *p, const char *host, const char *own, const char *one,
                      const char *two)
{
    const char *const mine[] = {"log_level=info", own, NULL};
    const char *const its[] = {"log_level=info", one, two, NULL};
    fault_log_clear();
    fault_side_open(&p->client, mine, 0);
    fault_side_open(&p->server, its, 0);
    snprintf(p->address, sizeof p->address, "%s:0", host);
    CHECK_EQ(lien_listener_open(p->server.ctx, p->address, NULL, &p->listener), 0);
    CHECK_EQ(lien_listener_address(p->listener, p->address, sizeof p->address), 0);
}

static void close_pair(struct pair *p)
{
    CHECK_EQ(lien_listener_close(&p->listener), 0);
    fault_side_close(&p->client);
    fault_side_close(&p->server);
}

struct conns {
    lien_conn *ours, *theirs;
    lien_conn_info at; // the server's end
};

static int connect_pair(struct pair *p, struct conns *c)
{
    int rc = lien_conn_open_wait(p->client.ctx, p->address, NULL, &c->ours);
    if (rc != 0)
        return rc;
    CHECK_EQ(lien_listener_accept_wait(p->listener, 30000, &c->theirs), 0);
    fault_info(c->theirs, &c->at);
    return 0;
}

static void end_pair(struct conns *c)
{
    CHECK_EQ(lien_conn_close_wait(&c->ours, 30000), 0);
    CHECK_EQ(lien_conn_close_wait(&c->theirs, 30000), 0);
}

static bool at(const struct conns *c, const char *nic, const char *local)
{
    return strcmp(c->at.nic, nic) == 0 && strcmp(c->at.local, local) == 0;
}

// Without options the fabric goes where the bootstrap went.
static void no_policy(void)
{
    struct pair p;
    struct conns c;
    open_pair(&p, "10.71.0.1", NULL, NULL, NULL);
    CHECK(fault_log_has("provider tcp (path kernel); not verbs: no RDMA device; RLIMIT_MEMLOCK"));
    CHECK_EQ(connect_pair(&p, &c), 0);
    CHECK_EQ(strcmp(c.at.local, "10.71.0.1"), 0);
    end_pair(&c);
    close_pair(&p);
}

// With a subnet it goes there, whichever address the bootstrap had; of either family.
static void subnet(void)
{
    struct pair p;
    struct conns c;
    open_pair(&p, "10.71.0.1", NULL, "subnet=10.72.0.0/16", NULL);
    CHECK_EQ(connect_pair(&p, &c), 0);
    CHECK(at(&c, "d1", "10.72.0.1"));
    end_pair(&c);
    close_pair(&p);
    open_pair(&p, "[fd71::1]", NULL, "subnet=fd00::/8", "nic=d0");
    CHECK_EQ(connect_pair(&p, &c), 0);
    CHECK(at(&c, "d0", "fd71::1"));
    end_pair(&c);
    close_pair(&p);
    // A name of an interface; and a subnet without an address here, which each side says with its candidates.
    open_pair(&p, "10.71.0.1", NULL, "address=d1", NULL);
    CHECK_EQ(connect_pair(&p, &c), 0);
    CHECK(at(&c, "d1", "10.72.0.1"));
    end_pair(&c);
    close_pair(&p);
    const char *const none[] = {"subnet=10.99.0.0/16", NULL};
    lien_ctx_opts opts;
    lien_ctx *ctx = NULL;
    lien_ctx_opts_init(&opts);
    opts.settings = none;
    opts.log = fault_log_line;
    fault_log_clear();
    CHECK_EQ(lien_ctx_open(&opts, &ctx), LIEN_ENOPROVIDER);
    CHECK(fault_log_has("candidate tcp over d0, address 10.71.0.1: no address in the subnets asked "
                        "for (option subnet is \"10.99.0.0/16\")"));
}

// Two NICs: each new connection to the one with fewer; a link that goes down moves those that come, and one that comes back has its share again.
static void least_loaded_and_down(void)
{
    struct pair p;
    struct conns c[8];
    unsigned on_d1 = 0;
    open_pair(&p, "10.71.0.1", NULL, "nic=d0,d1", "subnet=10.72.0.0/16,127.0.0.0/8");
    CHECK_EQ(connect_pair(&p, &c[0]), 0);
    CHECK(at(&c[0], "d1", "10.72.0.1"));
    end_pair(&c[0]);
    close_pair(&p);
    // Both in the peer's network, so that neither is nearer.
    run("ip addr add 10.71.0.2/24 dev d1");
    open_pair(&p, "10.71.0.1", NULL, "nic=d0,d1", "subnet=10.71.0.0/16");
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(connect_pair(&p, &c[i]), 0);
        on_d1 += at(&c[i], "d1", "10.71.0.2");
        CHECK(at(&c[i], "d1", "10.71.0.2") || at(&c[i], "d0", "10.71.0.1"));
    }
    CHECK_EQ(on_d1, 2);
    run("ip link set e1 down"); // so d1 has no link
    CHECK(fault_until(d1_stands, NULL, 30000));
    for (unsigned i = 4; i < 7; i++) {
        CHECK_EQ(connect_pair(&p, &c[i]), 0);
        CHECK(at(&c[i], "d0", "10.71.0.1"));
    }
    run("ip link set e1 up");
    CHECK(fault_until(d1_runs, NULL, 30000));
    CHECK_EQ(connect_pair(&p, &c[7]), 0);
    CHECK(at(&c[7], "d1", "10.71.0.2"));
    for (unsigned i = 0; i < 8; i++)
        end_pair(&c[i]);
    close_pair(&p);
}

// A peer that no candidate leads to: the connection fails, and the log lists them.
static void leads_nowhere(void)
{
    struct pair p;
    struct conns c;
    open_pair(&p, "10.71.0.1", "subnet=fd00::/8", NULL, NULL);
    CHECK_EQ(connect_pair(&p, &c), LIEN_ENOPROVIDER);
    CHECK(fault_log_has("no candidate of any provider leads to 10.71.0.1"));
    CHECK(fault_log_has("candidate tcp over d0, address fd71::1: does not lead to 10.71.0.1"));
    CHECK(fault_log_has("candidate verbs: it could not be used when this context was opened"));
    close_pair(&p);
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    unsetenv("FI_PROVIDER");
    setenv("LIEN_CONNECT_MS", "120000", 1); // a busy machine makes nobody late
    setenv("LIEN_DEAD_MS", "120000", 1);
    if (!make_machine()) {
        fprintf(stderr, "no network namespace of our own can be had here\n");
        exit(77);
    }
    no_policy();
    subnet();
    least_loaded_and_down();
    leads_nowhere();
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
