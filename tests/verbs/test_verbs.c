// SPDX-License-Identifier: Apache-2.0
//
// test_verbs PART: the provider over an RDMA device, without core. The device serves LIEN_TEST_ADDRESS; ci/verbs-test makes one. Part `port` takes the network device d0 down and up again.

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/capability.h>

#include "provider/verbs/internal.h"
#include "tests/address.h"
#include "tests/ofi/bench.h"

#define MIB   (1u << 20)
#define UP_MS 60000 // emulated machines are slow

static const struct lieni_provider *const verbs = &lieni_provider_verbs;
static struct side a, b;
static struct end server, client;

static bool up(void *arg)
{
    return ((struct end *)arg)->up;
}

static bool down(void *arg)
{
    return ((struct end *)arg)->down;
}

static bool failed(void *arg)
{
    return ((struct end *)arg)->failed;
}

struct until {
    struct end *end;
    unsigned entries;
};

static bool entries(void *arg)
{
    const struct until *until = arg;
    return until->end->entries >= until->entries;
}

static void connected(void)
{
    uint16_t port;
    side_open(&a);
    side_open(&b);
    struct lieni_ep_args args = end_args(&server, 0, 1, 2);
    end_listen(&a, &server, &args, &port);
    args = end_args(&client, port, 2, 1);
    end_connect(&b, &client, &args);
    CHECK(pump(&b, &a, up, &client, UP_MS));
    CHECK(pump(&a, &b, up, &server, UP_MS));
}

// Ends an endpoint and returns what that proved.
static enum lieni_proof ended(struct end *end, uint64_t *late)
{
    enum lieni_proof proof = LIENI_UNKNOWN;
    verbs->ep_shutdown(end->ep);
    int code = LIEN_EBUSY;
    for (unsigned i = 0; i < UP_MS && code == LIEN_EBUSY; i++) {
        code = verbs->ep_destroy(end->ep, &proof, late);
        if (code == LIEN_EBUSY)
            bench_sleep(1);
    }
    IS(code, 0);
    end->ep = NULL;
    return proof;
}

static uint8_t *pages(size_t len)
{
    uint8_t *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

// -- What the machine has ----------------------------------------------------------------------------------------------------------

static void list(void)
{
    struct lieni_verbs_device *devices;
    size_t n = 0;
    char name[64];
    unsigned port = 0;
    IS(lieni_verbs_devices(&devices, &n), 0);
    IS(lieni_verbs_device_at(bench_host, name, sizeof name, &port), 0);
    const struct lieni_verbs_device *mine = NULL;
    for (size_t i = 0; i < n; i++)
        if (strcmp(devices[i].name, name) == 0)
            mine = &devices[i];
    CHECK(mine && mine->soft && mine->guid != 0 && mine->depth_in > 0 && mine->depth_out > 0);
    CHECK(mine->sge > 0 && mine->sge_read > 0 && mine->posts > 0 && mine->entries > 0);
    CHECK(mine->n_ports >= port && port >= 1);
    const struct lieni_verbs_port *p = &mine->ports[port - 1];
    CHECK(p->active && strcmp(p->state, "ACTIVE") == 0 && strcmp(p->link_layer, "Ethernet") == 0);
    CHECK(p->message_max > 0 && p->mtu >= 256);
    bool has = false;
    for (size_t i = 0; i < p->n_gids; i++)
        has = has || (strcmp(p->gids[i].text, bench_host) == 0 && p->gids[i].netdev[0] != '\0');
    CHECK(has);
    IS(lieni_verbs_depth_at(bench_host), mine->depth_in);
    lieni_verbs_devices_free(devices, n);
    IS(lieni_verbs_device_at("10.9.2.99", name, sizeof name, &port), LIEN_ENODEV);
    IS(lieni_verbs_depth_at("10.9.2.99"), 0);
    CHECK(lieni_verbs_memory_lock() == UINT64_MAX);

    char why[128];
    CHECK(lieni_verbs_can_prove(name, why, sizeof why));
    CHECK(!lieni_verbs_can_prove("nodevice7", why, sizeof why) && strstr(why, "nodevice7"));
    atomic_store(&lieni_verbs_hide_table, true);
    CHECK(!lieni_verbs_can_prove(name, why, sizeof why) && strstr(why, "not permitted"));
}

// Addresses without a device are refused with the reason, and nothing falls back to another.
static void refusals(void)
{
    struct lieni_domain *domain;
    side_open(&a);
    bench_log.text[0] = '\0';
    IS(verbs->domain_open(a.prov, "127.0.0.1", &domain), LIEN_ENODEV);
    CHECK(strstr(bench_log.text, "127.0.0.1"));
    IS(verbs->domain_open(a.prov, "10.9.2.99", &domain), LIEN_ENODEV);
    CHECK(strstr(bench_log.text, "10.9.2.99"));
    struct lieni_limits limits;
    verbs->domain_limits(a.domain, &limits);
    CHECK(limits.read_piece_max > 0 && limits.read_piece_max <= verbs->traits->read_piece_max);
    CHECK(limits.reads_max > 0 && limits.reads_max <= verbs->traits->reads_max);
    struct lieni_ep_args args = end_args(&server, 0, 1, 2);
    args.posts_max = limits.posts_max + 1;
    uint16_t port;
    IS(verbs->listen(a.domain, &args, &server.ep, &port), LIEN_EINVAL);
    side_close(&a);
}

// -- READs -------------------------------------------------------------------------------------------------------------------------

static void reads(void)
{
    struct lieni_mr *from, *to;
    struct lieni_mr_info from_info, to_info;
    uint8_t *src = pages(MIB), *dst = pages(MIB);
    for (size_t i = 0; i < MIB; i++)
        src[i] = pattern(i);
    connected();
    IS(verbs->mr_reg(a.domain, src, MIB, LIENI_ACCESS_REMOTE, &from, &from_info), 0);
    IS(verbs->mr_reg(b.domain, dst, MIB, LIENI_ACCESS_LOCAL, &to, &to_info), 0);
    CHECK(from_info.base == (uintptr_t)src); // virtual addresses, keys by the provider
    IS(verbs->post_read(client.ep, dst, MIB, to, from_info.base, from_info.key, 1), 0);
    CHECK(pump(&b, &a, entries, &(struct until){&client, 1}, UP_MS));
    IS(client.seen[1], 1);
    IS(client.entry_status[1], 0);
    CHECK(memcmp(src, dst, MIB) == 0);
    memset(dst, 0, MIB);
    IS(verbs->post_read(client.ep, dst + 7, 4097, to, from_info.base + 11, from_info.key, 2), 0);
    CHECK(pump(&b, &a, entries, &(struct until){&client, 2}, UP_MS));
    CHECK(memcmp(src + 11, dst + 7, 4097) == 0 && dst[6] == 0 && dst[7 + 4097] == 0);
    struct lieni_limits limits;
    verbs->domain_limits(b.domain, &limits);
    IS(verbs->post_read(client.ep, dst, limits.read_piece_max + 1u, to, from_info.base,
                        from_info.key, 3),
       LIEN_EMSGSIZE);
    end_close(&client, NULL);
    end_close(&server, NULL);
    IS(verbs->mr_close(from), 0);
    IS(verbs->mr_close(to), 0);
    side_close(&a);
    side_close(&b);
}

// A dead key: an error for that READ, the rest flushed, and the end is proved all the same.
static void bad_key(void)
{
    struct lieni_mr *to;
    struct lieni_mr_info info;
    uint8_t *dst = pages(MIB);
    connected();
    IS(verbs->mr_reg(b.domain, dst, MIB, LIENI_ACCESS_LOCAL, &to, &info), 0);
    IS(verbs->post_read(client.ep, dst, 4096, to, 4096, 0x1234, 1), 0);
    CHECK(pump(&b, &a, entries, &(struct until){&client, 1}, UP_MS));
    CHECK(client.entry_status[1] != 0);
    uint64_t late = 0;
    IS(ended(&client, &late), LIENI_PROVEN);
    IS(ended(&server, &late), LIENI_PROVEN);
    IS(verbs->mr_close(to), 0);
    side_close(&a);
    side_close(&b);
}

// -- Proof -------------------------------------------------------------------------------------------------------------------------

// Queue pairs of the machine, but for those of the kernel itself.
static unsigned listed_of(const char *what)
{
    char command[128], line[512];
    snprintf(command, sizeof command, "rdma resource show %s", what);
    FILE *out = popen(command, "r");
    CHECK(out);
    unsigned n = 0;
    while (fgets(line, sizeof line, out))
        n += strstr(line, "[ib_core]") == NULL;
    CHECK(pclose(out) == 0);
    return n;
}

// A queue pair that is listed while it lives is absent after its end, and only then is that told; READs under way or not.
static void proof(void)
{
    struct lieni_verbs_entry entry;
    char name[64];
    unsigned port;
    unsigned before = listed_of("qp");
    IS(lieni_verbs_device_at(bench_host, name, sizeof name, &port), 0);
    IS(lieni_verbs_entry_find(name, &entry), 0);
    connected();
    IS(listed_of("qp"), before + 2);
    uint32_t mine = client.ep->name.number, theirs = server.ep->name.number;
    CHECK(mine != 0 && theirs != 0 && mine != theirs);
    IS(lieni_verbs_qp_ask(&entry, port, mine), LIENI_VERBS_LISTED);
    IS(lieni_verbs_qp_ask(&entry, port, theirs), LIENI_VERBS_LISTED);
    uint64_t late = 0;
    IS(ended(&client, &late), LIENI_PROVEN);
    IS(lieni_verbs_qp_ask(&entry, port, mine), LIENI_VERBS_ABSENT);
    IS(lieni_verbs_qp_ask(&entry, port, theirs), LIENI_VERBS_LISTED);
    IS(ended(&server, &late), LIENI_PROVEN);
    IS(lieni_verbs_qp_ask(&entry, port, theirs), LIENI_VERBS_ABSENT);
    // Another device proves nothing, whatever its table says of that number.
    struct lieni_verbs_entry other = entry;
    other.guid ^= 1;
    IS(lieni_verbs_qp_ask(&other, port, mine), LIENI_VERBS_UNKNOWN);
    other = entry;
    other.index += 7;
    IS(lieni_verbs_qp_ask(&other, port, mine), LIENI_VERBS_UNKNOWN);
    side_close(&a);
    side_close(&b);
    IS(listed_of("qp"), before);
}

// A forked child asks by a socket of its own: both ask again and again at once, and no answer goes to the other's question.
static void forked(void)
{
    enum {
        ROUNDS = 300
    };
    struct lieni_verbs_entry entry;
    char name[64];
    unsigned port;
    int status;
    uint64_t late = 0;
    IS(lieni_verbs_device_at(bench_host, name, sizeof name, &port), 0);
    IS(lieni_verbs_entry_find(name, &entry), 0);
    connected();
    uint32_t mine = client.ep->name.number;
    IS(lieni_verbs_qp_ask(&entry, port, mine), LIENI_VERBS_LISTED); // the socket is open
    pid_t pid = fork();
    CHECK(pid >= 0);
    for (int i = 0; i < ROUNDS; i++) // the child for one that is not, the parent for one that is
        IS(lieni_verbs_qp_ask(&entry, port, pid == 0 ? 0xfffff0 : mine),
           pid == 0 ? LIENI_VERBS_ABSENT : LIENI_VERBS_LISTED);
    if (pid == 0)
        _exit(0);
    IS(waitpid(pid, &status, 0), pid);
    IS(status, 0);
    IS(ended(&client, &late), LIENI_PROVEN);
    IS(ended(&server, &late), LIENI_PROVEN);
    side_close(&a);
    side_close(&b);
}

// The proof withheld: from the beginning, or only at the end.
static void hidden(void)
{
    uint64_t late = 0;
    connected();
    atomic_store(&lieni_verbs_hide_table, true);
    IS(ended(&client, &late), LIENI_UNKNOWN);
    CHECK(strstr(bench_log.text, "quarantine"));
    atomic_store(&lieni_verbs_hide_table, false);
    IS(ended(&server, &late), LIENI_PROVEN);
    side_close(&a);
    side_close(&b);

    // A number that is not there before the close proves nothing by not being there after it.
    connected();
    client.ep->name.number = 0xfffff0;
    IS(ended(&client, &late), LIENI_UNKNOWN);
    IS(ended(&server, &late), LIENI_PROVEN);
    side_close(&a);
    side_close(&b);

    atomic_store(&lieni_verbs_hide_table, true);
    connected();
    IS(client.ep->name.number, 0);
    atomic_store(&lieni_verbs_hide_table, false);
    IS(ended(&client, &late), LIENI_UNKNOWN);
    IS(ended(&server, &late), LIENI_UNKNOWN);
    side_close(&a);
    side_close(&b);
}

// Endpoints that never connected, with receives posted: refused, canceled, and a listener that nobody called.
static void unconnected(void)
{
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    uint8_t *memory = pages(4096);
    uint64_t late = 0;
    uint16_t port;
    side_open(&a);
    side_open(&b);
    IS(verbs->mr_reg(b.domain, memory, 4096, LIENI_ACCESS_LOCAL, &mr, &info), 0);
    struct lieni_recv recv = {.buf = memory, .len = 4096, .mr = mr, .context = 9};

    struct lieni_ep_args args = end_args(&client, 1, 2, 1);
    args.recvs = &recv;
    args.n_recvs = 1;
    end_connect(&b, &client, &args);
    CHECK(pump(&b, NULL, failed, &client, UP_MS));
    printf("refused: %s\n", bench_log.text);
    IS(ended(&client, &late), LIENI_PROVEN);

    args = end_args(&server, 0, 1, 2);
    end_listen(&a, &server, &args, &port);
    args = end_args(&client, port, 3, 1); // a stranger: rejected
    args.recvs = &recv;
    args.n_recvs = 1;
    end_connect(&b, &client, &args);
    CHECK(pump(&b, &a, failed, &client, UP_MS));
    printf("rejected: %s\n", bench_log.text);
    IS(ended(&client, &late), LIENI_PROVEN);
    IS(ended(&server, &late), LIENI_PROVEN);

    // Canceled at every stage on the way.
    for (unsigned us = 0; us < 40; us++) {
        args = end_args(&server, 0, 1, 2);
        end_listen(&a, &server, &args, &port);
        args = end_args(&client, port, 2, 1);
        args.recvs = &recv;
        args.n_recvs = 1;
        end_connect(&b, &client, &args);
        nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000000}, NULL);
        IS(ended(&client, &late), LIENI_PROVEN);
        IS(ended(&server, &late), LIENI_PROVEN);
    }
    IS(verbs->mr_close(mr), 0);
    side_close(&a);
    side_close(&b);
}

// Forty connections one after another, and what they took.
static void connects(void)
{
    uint64_t longest = 0, all = bench_ms(), late;
    side_open(&a);
    side_open(&b);
    for (unsigned i = 0; i < 40; i++) {
        uint16_t at;
        uint64_t begin = bench_ms();
        struct lieni_ep_args args = end_args(&server, 0, 1, 2);
        end_listen(&a, &server, &args, &at);
        args = end_args(&client, at, 2, 1);
        end_connect(&b, &client, &args);
        CHECK(pump(&b, &a, up, &client, UP_MS));
        CHECK(pump(&a, &b, up, &server, UP_MS));
        uint64_t took = bench_ms() - begin;
        longest = took > longest ? took : longest;
        IS(ended(&client, &late), LIENI_PROVEN);
        IS(ended(&server, &late), LIENI_PROVEN);
    }
    printf("40 connections in %llu ms, the longest %llu ms\n",
           (unsigned long long)(bench_ms() - all), (unsigned long long)longest);
    side_close(&a);
    side_close(&b);
}

// libfabric with its cache on, whatever the environment says by then, is refused.
static void cached(void)
{
    struct lieni_prov_args args = {.env = bench_env(), .report = bench_report()};
    struct lieni_prov *prov;
    struct lieni_domain *domain;
    struct fi_info *info = NULL;
    setenv("FI_MR_CACHE_MAX_COUNT", "1024", 1);
    setenv("FI_MR_CACHE_MONITOR", "memhooks", 1);
    IS(fi_getinfo(LIENI_OFI_VERSION, NULL, NULL, 0, NULL, &info), 0); // it looks now, and not again
    fi_freeinfo(info);
    setenv("FI_MR_CACHE_MAX_COUNT", "0", 1);
    IS(verbs->open(&args, &prov), 0);
    IS(verbs->domain_open(prov, bench_nic, &domain), LIEN_ENOPROVIDER);
    CHECK(strstr(bench_log.text, "registration cache is on"));
    verbs->close(prov);
}

// Without room to lock memory the error names the limit and its value, and does not say that memory ran out.
static void memory_lock(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];
    const struct rlimit none = {0, 0};
    struct lieni_prov_args args = {.env = bench_env(), .report = bench_report()};
    struct lieni_prov *prov;
    struct lieni_domain *domain;
    IS(syscall(SYS_capget, &head, caps), 0);
    caps[0].effective &= ~(1u << CAP_IPC_LOCK);
    IS(syscall(SYS_capset, &head, caps), 0);
    IS(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    IS(verbs->open(&args, &prov), 0);
    IS(verbs->domain_open(prov, bench_nic, &domain), LIEN_EREGISTER);
    CHECK(strstr(bench_log.text, "memory-lock limit (RLIMIT_MEMLOCK) is 0 bytes"));
    verbs->close(prov);
}

// A closed region is deregistered at once: libfabric's cache is off.
static void cache(void)
{
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    uint8_t *memory = pages(64 * 4096);
    side_open(&a);
    unsigned before = listed_of("mr");
    IS(verbs->mr_reg(a.domain, memory, 64 * 4096, LIENI_ACCESS_REMOTE, &mr, &info), 0);
    IS(listed_of("mr"), before + 1);
    uint64_t key = info.key;
    IS(verbs->mr_close(mr), 0);
    IS(listed_of("mr"), before);
    // Nor is the next one served from an older one.
    IS(verbs->mr_reg(a.domain, memory, 4096, LIENI_ACCESS_REMOTE, &mr, &info), 0);
    CHECK(info.key != key);
    IS(listed_of("mr"), before + 1);
    IS(verbs->mr_close(mr), 0);
    side_close(&a);
}

// -- Ends --------------------------------------------------------------------------------------------------------------------------

// The peer is killed in the middle of READs: DOWN comes, the reads come back after shutdown, and the end is proved.
static void killed(void)
{
    enum {
        READS = 16
    };
    static struct target target;
    struct lieni_mr *to;
    struct lieni_mr_info info;
    target_start(&target);
    side_open(&b);
    uint8_t *dst = pages(READS * MIB);
    IS(verbs->mr_reg(b.domain, dst, READS * MIB, LIENI_ACCESS_LOCAL, &to, &info), 0);
    struct lieni_ep_args args = end_args(&client, target.port, 2, 1);
    end_connect(&b, &client, &args);
    CHECK(pump(&b, NULL, up, &client, UP_MS));
    kill(target.pid, SIGSTOP); // a device goes on serving READs
    for (unsigned i = 0; i < READS / 2; i++)
        IS(verbs->post_read(client.ep, dst + i * MIB, MIB, to, target.base + i * MIB, target.key,
                            i + 1),
           0);
    target_kill(&target);
    for (unsigned i = READS / 2; i < READS; i++)
        verbs->post_read(client.ep, dst + i * MIB, MIB, to, target.base + i * MIB, target.key,
                         i + 1);
    uint64_t begin = bench_ms();
    CHECK(pump(&b, NULL, down, &client, UP_MS));
    uint64_t told = bench_ms();
    uint64_t late = 0;
    verbs->ep_shutdown(client.ep);
    pump(&b, NULL, entries, &(struct until){&client, READS}, 2000);
    unsigned before = client.entries;
    IS(ended(&client, &late), LIENI_PROVEN);
    printf("killed: down after %llu ms, %u of %u entries before the close (%u good), proved gone "
           "after %llu ms, %llu late entries\n",
           (unsigned long long)(told - begin), before, READS, client.good,
           (unsigned long long)(bench_ms() - begin), (unsigned long long)late);
    for (unsigned i = 0; i < READS; i++)
        CHECK(client.seen[i + 1] <= 1);
    IS(verbs->mr_close(to), 0);
    side_close(&b);
}

// A port that goes down is told, and bars new connections with the reason; back up, they work.
static void port(void)
{
    struct lieni_domain *domain;
    side_open(&a);
    CHECK(system("ip link set d0 down") == 0);
    for (unsigned i = 0; i < 100 && !strstr(bench_log.text, "port error"); i++)
        pump(&a, NULL, NULL, NULL, 100);
    CHECK(strstr(bench_log.text, "port error"));
    struct lieni_ep_args args = end_args(&server, 0, 1, 2);
    uint16_t number;
    IS(verbs->listen(a.domain, &args, &server.ep, &number), LIEN_ENODEV);
    CHECK(strstr(bench_log.text, "is DOWN"));
    int code = verbs->domain_open(a.prov, bench_host, &domain);
    IS(code, LIEN_ENODEV);
    CHECK(system("ip link set d0 up") == 0);
    side_close(&a);
    bench_sleep(500);
    connected();
    end_close(&client, NULL);
    end_close(&server, NULL);
    side_close(&a);
    side_close(&b);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"list", list},         {"refusals", refusals}, {"reads", reads},
                 {"proof", proof},       {"hidden", hidden},     {"unconnected", unconnected},
                 {"forked", forked},     {"cached", cached},     {"memory_lock", memory_lock},
                 {"connects", connects}, {"cache", cache},       {"killed", killed},
                 {"bad_key", bad_key},   {"port", port}};
    bench_provider = verbs;
    bench_host = bench_nic = test_host();
    unsigned ran = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (argc > 1 && strcmp(argv[1], parts[i].name) != 0)
            continue;
        parts[i].run();
        ran++;
    }
    CHECK(ran > 0);
    return 0;
}
