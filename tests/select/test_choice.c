// SPDX-License-Identifier: Apache-2.0
//
// The rule of core/select.h on providers whose candidates this file makes up: what is refused and why, which one is taken for which peer, loads, ports that go down, and the words of the error when
// none is left. One thread.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/select.h"

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "test_choice: line %d: %s; chosen %s, log:\n%s", __LINE__, #cond,      \
                    chosen, said);                                                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static char said[16384], chosen[200];

static void hear(const lien_log_line *line, void *arg)
{
    (void)arg;
    size_t len = strlen(said);
    snprintf(said + len, sizeof said - len, "%s\n", line->text);
}

// -- A machine: two ports of an RDMA device, two interfaces ------------------------------------------------------------------------

#define N_PORTS 3u
static struct lieni_candidate ports[N_PORTS], interfaces[N_PORTS];
static bool no_device;

static void fill(struct lieni_candidate *c, const char *nic, const char *interface,
                 const char *address)
{
    *c = (struct lieni_candidate){.prefix = 24, .state = LIEN_CANDIDATE_UP};
    snprintf(c->nic, sizeof c->nic, "%s", nic);
    snprintf(c->interface, sizeof c->interface, "%s", interface);
    snprintf(c->address, sizeof c->address, "%s", address);
}

static void machine(void)
{
    fill(&ports[0], "mlx0/1", "ib0", "10.1.0.1");
    fill(&ports[1], "mlx0/2", "ib1", "10.2.0.1");
    fill(&ports[2], "mlx1/1", "ib2", "10.2.0.2");
    fill(&interfaces[0], "lo", "lo", "127.0.0.1");
    interfaces[0].prefix = 8;
    fill(&interfaces[1], "eth0", "eth0", "10.9.0.1");
    fill(&interfaces[2], "eth1", "eth1", "fd09::1");
    interfaces[2].prefix = 64;
    no_device = false;
}

static void rdma_candidates(lieni_candidate_fn *tell, void *arg)
{
    struct lieni_candidate none = {.state = LIEN_CANDIDATE_REFUSED, .reason = "no RDMA device"};
    if (no_device)
        tell(arg, &none);
    for (size_t i = 0; i < N_PORTS && !no_device; i++)
        tell(arg, &ports[i]);
}

static void kernel_candidates(lieni_candidate_fn *tell, void *arg)
{
    for (size_t i = 0; i < N_PORTS; i++)
        tell(arg, &interfaces[i]);
}

static const struct lieni_traits rdma_traits = {.name = "verbs", .path = LIEN_PATH_RDMA};
static const struct lieni_traits kernel_traits = {.name = "tcp", .path = LIEN_PATH_KERNEL};
static const struct lieni_traits weak_traits = {
    .name = "sockets", .path = LIEN_PATH_KERNEL, .only_if_asked = true};
static const struct lieni_provider rdma = {.traits = &rdma_traits, .candidates = rdma_candidates};
static const struct lieni_provider kernel = {.traits = &kernel_traits,
                                             .candidates = kernel_candidates};
static const struct lieni_provider weak = {.traits = &weak_traits, .candidates = kernel_candidates};
static void not_built(lieni_candidate_fn *tell, void *arg)
{
    const struct lieni_candidate none = {.state = LIEN_CANDIDATE_REFUSED, .reason = "not built"};
    tell(arg, &none);
}

static const struct lieni_traits absent_traits = {
    .name = "ucx", .path = LIEN_PATH_KERNEL, .only_if_asked = true};
static const struct lieni_provider absent = {.traits = &absent_traits, .candidates = not_built};
static const struct lieni_provider *const providers[] = {&rdma, &kernel, &weak, &absent, NULL};

static const struct lieni_platform platform = {.providers = providers};

// -- Asking ------------------------------------------------------------------------------------------------------------------------

static struct lieni_options options;
static struct lieni_select selection;
static struct lieni_log *log_;
static char loaded[96]; // this address has an endpoint

static unsigned load(void *arg, const struct lieni_provider *ops, const char *address)
{
    (void)arg;
    (void)ops;
    return strcmp(address, loaded) == 0;
}

// Selection under up to three settings.
static int begin(const char *one, const char *two, const char *three)
{
    const char *settings[] = {one, two, three, NULL};
    char *variables[] = {NULL};
    lieni_log_flush(log_);
    said[0] = chosen[0] = loaded[0] = '\0';
    CHECK(lieni_options_load(&options, settings, variables, log_) == 0);
    int rc = lieni_select_open(&selection, &options, &platform, log_);
    selection.load = load;
    return rc;
}

// "provider nic address" of what would be taken, "" if nothing; every other has a reason.
static const char *to(const char *peer, const char *local)
{
    const struct lieni_target target = {.address = peer, .local = local, .local_reaches = true};
    struct lieni_verdict *list = NULL;
    size_t n = 0;
    unsigned taken = 0;
    chosen[0] = '\0';
    CHECK(lieni_select_all(&selection, NULL, &target, &list, &n) == 0);
    for (size_t i = 0; i < n; i++) {
        if (list[i].chosen)
            snprintf(chosen, sizeof chosen, "%s %s %s", list[i].provider, list[i].c.nic,
                     list[i].c.address);
        taken += list[i].chosen;
        if (list[i].chosen != (list[i].why[0] == '\0'))
            snprintf(said, sizeof said, "%s over %s: %d, '%s'\n", list[i].provider, list[i].c.nic,
                     list[i].chosen, list[i].why);
        CHECK(list[i].chosen == (list[i].why[0] == '\0'));
        CHECK(!list[i].chosen || list[i].usable);
    }
    CHECK(taken <= 1);
    free(list);
    return chosen;
}

static bool is(const char *got, const char *want)
{
    return strcmp(got, want) == 0;
}

// Whether the log has said it since begin().
static bool heard(const char *text)
{
    lieni_log_flush(log_);
    return strstr(said, text) != NULL;
}

// The reason of a candidate, by provider and NIC.
static bool reason(const char *provider, const char *nic, const char *why)
{
    struct lieni_verdict *list = NULL;
    size_t n = 0;
    bool met = false;
    CHECK(lieni_select_all(&selection, NULL, NULL, &list, &n) == 0);
    for (size_t i = 0; i < n; i++)
        met = met || (is(list[i].provider, provider) && is(list[i].c.nic, nic) &&
                      strstr(list[i].why, why));
    free(list);
    return met;
}

// -- The rule ----------------------------------------------------------------------------------------------------------------------

static void unset(void)
{
    CHECK(begin(NULL, NULL, NULL) == 0);
    // RDMA where a port leads to the peer: by its network, or as the bootstrap's own address.
    CHECK(is(to("10.1.0.7", "10.9.0.1"), "verbs mlx0/1 10.1.0.1"));
    CHECK(is(to("192.168.1.1", "10.1.0.1"), "verbs mlx0/1 10.1.0.1"));
    // Else tcp, from where the bootstrap went.
    CHECK(is(to("192.168.1.1", "10.9.0.1"), "tcp eth0 10.9.0.1"));
    CHECK(is(to("127.0.0.1", "127.0.0.1"), "tcp lo 127.0.0.1"));
    CHECK(is(to("fd09::2", "fd09::1"), "tcp eth1 fd09::1"));
    CHECK(reason("sockets", "", "never chosen by default: LIEN_PROVIDER or FI_PROVIDER"));
    CHECK(reason("ucx", "", "never chosen by default: LIEN_PROVIDER"));
    no_device = true;
    CHECK(is(to("10.1.0.7", "10.9.0.1"), "tcp eth0 10.9.0.1"));
    CHECK(reason("verbs", "", "no RDMA device"));
}

static void loads_and_links(void)
{
    CHECK(begin(NULL, NULL, NULL) == 0);
    // Two ports in the peer's network: the first, then the one without load.
    CHECK(is(to("10.2.0.7", "10.9.0.1"), "verbs mlx0/2 10.2.0.1"));
    snprintf(loaded, sizeof loaded, "10.2.0.1");
    CHECK(is(to("10.2.0.7", "10.9.0.1"), "verbs mlx1/1 10.2.0.2"));
    snprintf(loaded, sizeof loaded, "10.2.0.2");
    CHECK(is(to("10.2.0.7", "10.9.0.1"), "verbs mlx0/2 10.2.0.1"));
    // Load never sends anything where it does not lead.
    snprintf(loaded, sizeof loaded, "10.1.0.1");
    CHECK(is(to("10.1.0.7", "10.9.0.1"), "verbs mlx0/1 10.1.0.1"));
    // A port that goes down moves what comes next, however loaded the other is; none left, to tcp.
    snprintf(loaded, sizeof loaded, "10.2.0.2");
    ports[1].state = LIEN_CANDIDATE_DOWN;
    snprintf(ports[1].reason, sizeof ports[1].reason, "port 2 is DOWN");
    CHECK(is(to("10.2.0.7", "10.9.0.1"), "verbs mlx1/1 10.2.0.2"));
    CHECK(reason("verbs", "mlx0/2", "port 2 is DOWN"));
    ports[2].state = LIEN_CANDIDATE_DOWN;
    snprintf(ports[2].reason, sizeof ports[2].reason, "port 1 is DOWN");
    CHECK(is(to("10.2.0.7", "10.9.0.1"), "tcp eth0 10.9.0.1"));
    ports[1].state = LIEN_CANDIDATE_UP;
    CHECK(is(to("10.2.0.7", "10.9.0.1"), "verbs mlx0/2 10.2.0.1"));
}

static void policies(void)
{
    CHECK(begin("subnet=10.2.0.0/16", NULL, NULL) == 0);
    CHECK(is(to("10.1.0.7", "10.1.0.1"), "verbs mlx0/2 10.2.0.1")); // also away from the bootstrap
    CHECK(reason("verbs", "mlx0/1", "no address in the subnets asked for"));
    CHECK(reason("tcp", "eth0", "no address in the subnets asked for"));
    CHECK(begin("subnet=fd00::/8", NULL, NULL) == 0);
    CHECK(is(to("fd09::2", "fd09::1"), "tcp eth1 fd09::1"));
    CHECK(is(to("10.1.0.7", "10.1.0.1"), "")); // IPv6 does not lead to IPv4
    CHECK(begin("nic=mlx1,eth0", NULL, NULL) == 0);
    CHECK(is(to("10.2.0.7", "10.2.0.1"), "verbs mlx1/1 10.2.0.2"));
    CHECK(reason("verbs", "mlx0/2", "not among the NICs asked for"));
    CHECK(begin("nic=mlx0/2", NULL, NULL) == 0);
    CHECK(is(to("10.2.0.7", "10.2.0.1"), "verbs mlx0/2 10.2.0.1"));
    CHECK(begin("nic=ib2", NULL, NULL) == 0); // by the kernel's name
    CHECK(is(to("10.2.0.7", "10.2.0.1"), "verbs mlx1/1 10.2.0.2"));
    CHECK(begin("address=10.9.0.1", NULL, NULL) == 0);
    CHECK(is(to("10.2.0.7", "10.2.0.1"), "tcp eth0 10.9.0.1"));
    CHECK(begin("address=eth0", NULL, NULL) == 0);
    CHECK(is(to("10.2.0.7", "10.2.0.1"), "tcp eth0 10.9.0.1"));
    CHECK(begin("address=localhost", "provider=tcp", NULL) == 0); // a name
    CHECK(is(to("127.0.0.1", "127.0.0.1"), "tcp lo 127.0.0.1"));
    CHECK(begin("require_zero_copy=1", NULL, NULL) == 0);
    CHECK(is(to("10.2.0.7", "10.2.0.1"), "verbs mlx0/2 10.2.0.1"));
    CHECK(is(to("127.0.0.1", "127.0.0.1"), ""));
    CHECK(reason("tcp", "", "its path is kernel, and option require_zero_copy accepts only rdma"));
}

static void asked_for(void)
{
    CHECK(begin("provider=sockets", NULL, NULL) == 0);
    CHECK(is(to("10.2.0.7", "10.9.0.1"), "sockets eth0 10.9.0.1"));
    CHECK(reason("tcp", "", "option provider is \"sockets\""));
    CHECK(setenv("FI_PROVIDER", "^verbs", 1) == 0);
    CHECK(begin(NULL, NULL, NULL) == 0);
    CHECK(is(to("10.2.0.7", "10.9.0.1"), "tcp eth0 10.9.0.1"));
    CHECK(reason("verbs", "", "FI_PROVIDER is \"^verbs\""));
    CHECK(reason("sockets", "", "never chosen by default")); // not named, only not excluded
    CHECK(setenv("FI_PROVIDER", "sockets", 1) == 0);
    CHECK(begin(NULL, NULL, NULL) == 0);
    CHECK(is(to("10.2.0.7", "10.9.0.1"), "sockets eth0 10.9.0.1"));
    CHECK(unsetenv("FI_PROVIDER") == 0);
}

// Forced and not there: each candidate and its reason, and what was asked for.
static void complaints(void)
{
    CHECK(begin("provider=verbs", "subnet=10.1.0.0/16", NULL) == 0);
    ports[0].state = LIEN_CANDIDATE_DOWN;
    snprintf(ports[0].reason, sizeof ports[0].reason, "port 1 is DOWN");
    CHECK(lieni_select_complain(&selection, NULL, NULL, log_) == LIEN_ENOPROVIDER);
    CHECK(heard("candidate verbs over mlx0/1, address 10.1.0.1: port 1 is DOWN\n"));
    CHECK(heard("candidate verbs over mlx0/2, address 10.2.0.1: no address in the subnets "
                "asked for (option subnet is \"10.1.0.0/16\")\n"));
    CHECK(heard("candidate tcp: not among those asked for (option provider is \"verbs\")"));
    CHECK(heard("candidate ucx: not among those asked for"));
    CHECK(heard("no provider can be used: option provider is \"verbs\", FI_PROVIDER is "));
    CHECK(begin("provider=verbs", NULL, NULL) == 0);
    no_device = true;
    CHECK(lieni_select_complain(&selection, NULL, NULL, log_) == LIEN_ENOPROVIDER);
    CHECK(heard("candidate verbs: no RDMA device\n"));
    CHECK(begin("provider=ucx", NULL, NULL) == 0);
    CHECK(lieni_select_complain(&selection, NULL, NULL, log_) == LIEN_ENOPROVIDER);
    CHECK(heard("candidate ucx: not built\n"));
    CHECK(begin("provider=vebrs", NULL, NULL) == 0);
    CHECK(lieni_select_complain(&selection, NULL, NULL, log_) == LIEN_ENOPROVIDER);
    CHECK(heard("option provider is \"vebrs\" (the name of none)"));
    // For one peer: also what works and does not lead there.
    machine();
    CHECK(begin("provider=verbs", NULL, NULL) == 0);
    const struct lieni_target target = {.address = "10.9.0.7", .local = "10.9.0.1"};
    CHECK(lieni_select_complain(&selection, NULL, &target, log_) == LIEN_ENOPROVIDER);
    CHECK(heard("candidate verbs over mlx0/1, address 10.1.0.1: does not lead to 10.9.0.7"));
}

static void wrong_values(void)
{
    CHECK(begin("subnet=10.0.0.0/33", NULL, NULL) == LIEN_EOPTION);
    CHECK(heard("option subnet: '10.0.0.0/33' has more bits behind '/' than the address"));
    CHECK(begin("subnet=here", NULL, NULL) == LIEN_EOPTION);
    CHECK(heard("'here' is no numeric address"));
    CHECK(begin("subnet=10.0.0.0/8,", NULL, NULL) == LIEN_EOPTION);
    CHECK(begin("address=no-such-host.invalid", NULL, NULL) == LIEN_EOPTION);
    CHECK(heard("is no numeric address and no interface, and no name"));
}

int main(void)
{
    static void (*const tests[])(void) = {unset,     loads_and_links, policies,
                                          asked_for, complaints,      wrong_values};
    CHECK(unsetenv("FI_PROVIDER") == 0);
    CHECK(lieni_log_open(hear, NULL, LIEN_LOG_WARN, &log_) == 0);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        machine();
        tests[i]();
    }
    lieni_log_close(log_);
    return 0;
}
