// SPDX-License-Identifier: Apache-2.0
//
// Two sides in one process: messages, READs, private data, addresses, refusals.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/ofi/bench.h"

#define MIB (1u << 20)

static const struct lieni_provider *const tcp = &lieni_provider_tcp;
static struct side a;
static struct side b;
static struct end server;
static struct end client;

struct until {
    struct end *end;
    unsigned entries;
};

static bool entries(void *arg)
{
    const struct until *until = arg;
    return until->end->entries >= until->entries;
}

static bool over(void *arg)
{
    const struct end *end = arg;
    return end->failed || end->down;
}

static bool up(void *arg)
{
    const struct end *end = arg;
    return end->up;
}

static void close_all(void)
{
    end_close(&client, NULL);
    end_close(&server, NULL);
    side_close(&a);
    side_close(&b);
}

// Messages both ways, into receives given with listen and posted later; contexts and lengths come back.
static void messages(void)
{
    static char early[64];
    static char later[64];
    static char hello[] = "hello";
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    side_open(&a);
    side_open(&b);
    IS(tcp->mr_reg(a.domain, early, sizeof early, LIENI_ACCESS_LOCAL, &mr, &info), 0);
    struct lieni_recv recv = {.buf = early, .len = sizeof early, .mr = mr, .context = 7};
    uint16_t port;
    struct lieni_ep_args args = end_args(&server, 0, 1, 2);
    args.recvs = &recv;
    args.n_recvs = 1;
    end_listen(&a, &server, &args, &port);
    args = end_args(&client, port, 2, 1);
    end_connect(&b, &client, &args);
    IS(tcp->post_send(client.ep, hello, 6, NULL, 1), LIEN_ESTATE); // not told UP yet
    CHECK(pump(&b, &a, up, &client, 5000));
    CHECK(pump(&a, &b, up, &server, 5000));

    IS(tcp->post_send(client.ep, hello, 6, NULL, 1), 0);
    CHECK(pump(&a, &b, entries, &(struct until){&server, 1}, 5000));
    CHECK(pump(&b, &a, entries, &(struct until){&client, 1}, 5000));
    IS(server.seen[7], 1);
    IS(server.len[7], 6);
    IS(client.seen[1], 1);
    IS(client.entry_status[1], 0);
    CHECK(memcmp(early, hello, 6) == 0);

    IS(tcp->post_recv(client.ep, later, sizeof later, NULL, 2), 0);
    IS(tcp->post_send(server.ep, "back", 5, NULL, 8), 0);
    CHECK(pump(&b, &a, entries, &(struct until){&client, 2}, 5000));
    IS(client.len[2], 5);
    CHECK(strcmp(later, "back") == 0);

    tcp->ep_shutdown(client.ep);
    IS(tcp->post_send(client.ep, hello, 6, NULL, 3), LIEN_ESTATE);
    tcp->ep_shutdown(client.ep); // again: no effect
    CHECK(pump(&a, &b, over, &server, 5000));
    IS(server.down, 1);
    IS(server.status, LIEN_ECLOSED);
    IS(tcp->post_send(server.ep, hello, 6, NULL, 9), LIEN_ESTATE);
    enum lieni_proof proof;
    IS(tcp->domain_close(a.domain, &proof), LIEN_EBUSY);
    pump(&a, &b, NULL, NULL, 50);
    IS(server.down, 1); // told once
    IS(client.down, 0); // our own shutdown is no news
    end_close(&client, NULL);
    end_close(&server, NULL);
    IS(tcp->domain_close(a.domain, &proof), LIEN_EBUSY); // a region is left
    IS(tcp->mr_close(mr), 0);
    side_close(&a);
    side_close(&b);
}

// 64 READs of 1 MiB, contents checked; keys cannot be guessed; a piece above the limit is refused.
static void reads(void)
{
    uint8_t *source = malloc(64 * MIB);
    uint8_t *target = calloc(64, MIB);
    CHECK(source && target);
    for (size_t i = 0; i < 64 * MIB; i++)
        source[i] = pattern(i);
    side_open(&a);
    side_open(&b);
    pair(&a, &server, &b, &client);
    struct lieni_mr *mr;
    struct lieni_mr *other;
    struct lieni_mr *local;
    struct lieni_mr_info info;
    struct lieni_mr_info other_info;
    IS(tcp->mr_reg(a.domain, source, 64 * MIB, LIENI_ACCESS_REMOTE, &mr, &info), 0);
    IS(tcp->mr_reg(a.domain, source, MIB, LIENI_ACCESS_REMOTE, &other, &other_info), 0);
    IS(tcp->mr_reg(b.domain, target, 64 * MIB, LIENI_ACCESS_LOCAL, &local, &other_info), 0);
    CHECK(info.key > 0xffff && info.key != other_info.key);
    IS(tcp->post_read(client.ep, target, MIB + 1, local, info.base, info.key, 1), LIEN_EMSGSIZE);
    for (unsigned i = 0; i < 64; i++)
        IS(tcp->post_read(client.ep, target + i * MIB, MIB, local, info.base + i * MIB, info.key,
                          i + 1),
           0);
    CHECK(pump(&b, &a, entries, &(struct until){&client, 64}, 20000));
    for (unsigned i = 1; i <= 64; i++) {
        IS(client.seen[i], 1);
        IS(client.entry_status[i], 0);
    }
    CHECK(memcmp(source, target, 64 * MIB) == 0);
    // A key that is not there takes the connection down: refused_read_kills says so.
    CHECK(tcp->traits->refused_read_kills);
    IS(tcp->post_read(client.ep, target, 64, local, info.base, info.key + 1, 70), 0);
    CHECK(pump(&b, &a, over, &client, 5000));
    CHECK(client.down == 1 && client.seen[70] == 1 && client.entry_status[70] != 0);
    IS(tcp->mr_close(mr), 0);
    IS(tcp->mr_close(other), 0);
    IS(tcp->mr_close(local), 0);
    close_all();
    free(source);
    free(target);
}

// More posts than posts_max: LIEN_EAGAIN, and room again after entries.
static void posts_bound(void)
{
    static char bytes[8];
    side_open(&a);
    side_open(&b);
    pair(&a, &server, &b, &client);
    for (unsigned i = 1; i <= 128; i++)
        IS(tcp->post_recv(client.ep, bytes, sizeof bytes, NULL, i), 0);
    IS(tcp->post_recv(client.ep, bytes, sizeof bytes, NULL, 129), LIEN_EAGAIN);
    IS(tcp->post_send(server.ep, bytes, 1, NULL, 1), 0);
    CHECK(pump(&b, &a, entries, &(struct until){&client, 1}, 5000));
    IS(tcp->post_recv(client.ep, bytes, sizeof bytes, NULL, 129), 0);
    uint64_t late;
    end_close(&client, &late);
    IS(client.entries + late, 129); // each post has its entry, told or late
    end_close(&server, NULL);
    side_close(&a);
    side_close(&b);
}

// A stranger's request is rejected and the wait goes on; a stranger's answer fails the connect.
static void private_data(void)
{
    static struct end stranger;
    side_open(&a);
    side_open(&b);
    uint16_t port;
    struct lieni_ep_args args = end_args(&server, 0, 1, 2);
    end_listen(&a, &server, &args, &port);
    args = end_args(&stranger, port, 3, 1);
    end_connect(&b, &stranger, &args);
    CHECK(pump(&b, &a, over, &stranger, 5000));
    IS(stranger.failed, 1);
    IS(stranger.status, LIEN_EREFUSED);
    IS(server.up + server.failed, 0);
    end_close(&stranger, NULL);
    // The last byte counts too.
    args = end_args(&stranger, port, 2, 1);
    args.send_data[LIENI_CM_DATA - 1] ^= 1;
    end_connect(&b, &stranger, &args);
    CHECK(pump(&b, &a, over, &stranger, 5000));
    IS(stranger.failed, 1);
    end_close(&stranger, NULL);
    args = end_args(&client, port, 2, 1);
    end_connect(&b, &client, &args);
    CHECK(pump(&b, &a, up, &client, 5000));
    CHECK(pump(&a, &b, up, &server, 5000));
    end_close(&client, NULL);
    end_close(&server, NULL);
    // The port was closed once used.
    args = end_args(&stranger, port, 2, 1);
    end_connect(&b, &stranger, &args);
    CHECK(pump(&b, &a, over, &stranger, 5000));
    IS(stranger.status, LIEN_EREFUSED);
    end_close(&stranger, NULL);

    args = end_args(&server, 0, 9, 2);
    end_listen(&a, &server, &args, &port);
    args = end_args(&client, port, 2, 1);
    end_connect(&b, &client, &args);
    CHECK(pump(&b, &a, over, &client, 5000));
    IS(client.failed, 1);
    IS(client.status, LIEN_EPROTO);
    close_all();
}

static void addresses(void)
{
    side_open(&a);
    side_open(&b);
    uint16_t port;
    struct lieni_ep_args args = end_args(&server, 0, 1, 2);
    args.host = "::1";
    end_listen(&a, &server, &args, &port);
    args = end_args(&client, port, 2, 1);
    args.host = "::1";
    end_connect(&b, &client, &args);
    CHECK(pump(&b, &a, up, &client, 5000));
    CHECK(pump(&a, &b, up, &server, 5000));
    end_close(&client, NULL);
    end_close(&server, NULL);

    args = end_args(&server, 0, 1, 2);
    args.host = "no-number";
    IS(tcp->listen(a.domain, &args, &server.ep, &port), LIEN_EADDR);
    CHECK(strstr(bench_log.text, "no-number"));
    args.host = "192.0.2.1"; // not of this machine
    IS(tcp->listen(a.domain, &args, &server.ep, &port), LIEN_EADDR);
    CHECK(strstr(bench_log.text, "192.0.2.1"));
    // A range of two ports takes two listeners.
    static struct end three[3];
    uint16_t ports[3] = {0};
    args = end_args(&three[0], 0, 1, 2);
    args.port_lo = 41970;
    args.port_hi = 41971;
    for (unsigned i = 0; i < 2; i++) {
        args.user = &three[i];
        end_listen(&a, &three[i], &args, &ports[i]);
        CHECK(ports[i] == 41970 || ports[i] == 41971);
    }
    CHECK(ports[0] != ports[1]);
    IS(tcp->listen(a.domain, &args, &three[2].ep, &ports[2]), LIEN_EADDR);
    CHECK(strstr(bench_log.text, "41970-41971"));
    end_close(&three[0], NULL);
    end_close(&three[1], NULL);
    args = end_args(&client, 1, 2, 1); // nobody there
    end_connect(&b, &client, &args);
    CHECK(pump(&b, &a, over, &client, 5000));
    IS(client.failed, 1);
    IS(client.status, LIEN_EREFUSED);
    end_close(&client, NULL);
    struct lieni_domain *domain;
    IS(tcp->domain_open(a.prov, "192.0.2.1", &domain), LIEN_ENODEV);
    IS(tcp->domain_open(a.prov, "127.0.0.1", &domain), 0);
    enum lieni_proof proof;
    IS(tcp->domain_close(domain, &proof), 0);
    args.posts_max = 0;
    IS(tcp->listen(a.domain, &args, &three[2].ep, &ports[2]), LIEN_EINVAL);
    side_close(&a);
    side_close(&b);
}

// Descriptors that a program started by exec would inherit, above the three usual ones.
static unsigned inheritable(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir);
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        int fd = atoi(entry->d_name);
        int flags = fcntl(fd, F_GETFD);
        if (fd > 2 && flags >= 0 && !(flags & FD_CLOEXEC)) {
            n++;
            struct sockaddr_storage addr = {0};
            socklen_t len = sizeof addr;
            if (getsockname(fd, (struct sockaddr *)&addr, &len) == 0)
                CHECK(addr.ss_family != AF_INET && addr.ss_family != AF_INET6);
            char path[64];
            char what[128] = "";
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            if (readlink(path, what, sizeof what - 1) > 0)
                printf("inheritable: %d %s\n", fd, what);
        }
    }
    closedir(dir);
    return n;
}

// No socket of a connection is inherited.
static void descriptors(void)
{
    unsigned before = inheritable();
    side_open(&a);
    side_open(&b);
    pair(&a, &server, &b, &client);
    pump(&a, &b, NULL, NULL, 50);
    unsigned with = inheritable();
    printf("inheritable descriptors of a connected pair: %u\n", with - before);
    close_all();
    IS(inheritable(), before);
}

int main(void)
{
    messages();
    reads();
    posts_bound();
    private_data();
    addresses();
    descriptors();
    puts("ok");
    return 0;
}
