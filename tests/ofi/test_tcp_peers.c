// SPDX-License-Identifier: Apache-2.0
//
// A peer process that is killed, or stopped, while READs are outstanding: what entries come, and that nothing writes after ep_destroy gave its proof (libfabric-facts 1.1, 1.2).

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/ofi/bench.h"

#define MIB   (1u << 20)
#define READS 32u // more than the kernel buffers of a connection hold

static const struct lieni_provider *const tcp = &lieni_provider_tcp;
static struct side side;
static struct end client;
static struct target target;
static uint8_t *memory;
static struct lieni_mr *mr;

static bool up(void *arg)
{
    const struct end *end = arg;
    CHECK(!end->failed);
    return end->up;
}

static bool down(void *arg)
{
    const struct end *end = arg;
    return end->down;
}

struct until {
    const struct end *end;
    unsigned entries;
};

static bool entries(void *arg)
{
    const struct until *until = arg;
    return until->end->entries - until->end->null_context >= until->entries;
}

static void connect_target(void)
{
    struct lieni_ep_args args = end_args(&client, target.port, 2, 1);
    end_connect(&side, &client, &args);
    CHECK(pump(&side, NULL, up, &client, 5000));
}

static void post(unsigned n, unsigned first)
{
    for (unsigned i = 0; i < n; i++)
        IS(tcp->post_read(client.ep, memory + (size_t)i * MIB, MIB, mr,
                          target.base + (uint64_t)i * MIB, target.key, first + i),
           0);
}

// Every READ has at most one entry; returns how many have one.
static unsigned answered(unsigned n, unsigned first)
{
    unsigned count = 0;
    for (unsigned i = first; i < first + n; i++) {
        CHECK(client.seen[i] <= 1);
        count += client.seen[i];
    }
    return count;
}

// 64 READs, the peer killed in the middle: one entry for each, and DOWN once.
static void killed(void)
{
    target_start(&target);
    side_open(&side);
    struct lieni_mr_info info;
    IS(tcp->mr_reg(side.domain, memory, 64 * MIB, LIENI_ACCESS_LOCAL, &mr, &info), 0);
    connect_target();
    post(64, 1);
    CHECK(pump(&side, NULL, entries, &(struct until){&client, 4}, 10000));
    uint64_t at = bench_ms();
    target_kill(&target);
    CHECK(pump(&side, NULL, entries, &(struct until){&client, 64}, 5000));
    CHECK(pump(&side, NULL, down, &client, 5000));
    printf("killed: %u good, %u failed, all told after %u ms\n", client.good,
           client.entries - client.good, (unsigned)(bench_ms() - at));
    IS(answered(64, 1), 64);
    IS(client.down, 1);
    uint64_t late = 0;
    end_close(&client, &late);
    IS(late, 0);
    IS(tcp->mr_close(mr), 0);
    side_close(&side);
}

// READs of 1 MiB to a stopped peer, one of them likely half received; then the end. Nothing may write after the proof, also when the peer goes on.
static void stopped(void)
{
    unsigned told = 0;
    uint64_t lates = 0;
    unsigned spurious = 0;
    target_start(&target);
    side_open(&side);
    struct lieni_mr_info info;
    IS(tcp->mr_reg(side.domain, memory, 64 * MIB, LIENI_ACCESS_LOCAL, &mr, &info), 0);
    uint8_t *copy = malloc(READS * MIB);
    uint8_t *expected = malloc(READS * MIB);
    CHECK(copy && expected);
    for (size_t i = 0; i < READS * MIB; i++)
        expected[i] = pattern(i);
    for (unsigned round = 0; round < 10; round++) {
        memset(memory, 0, READS * MIB);
        connect_target();
        post(READS, 1);
        // Nothing reads here meanwhile, so it gets as far as the kernel's buffers: elsewhere each round.
        bench_sleep(2 + round * 3);
        kill(target.pid, SIGSTOP);
        pump(&side, NULL, NULL, NULL, 20); // what the kernel had already
        unsigned before = answered(READS, 1);
        CHECK(before < READS); // else the test shows nothing
        tcp->ep_shutdown(client.ep);
        if (round % 2)
            pump(&side, NULL, NULL, NULL, 5); // entries by poll; otherwise all are late
        told += answered(READS, 1);
        spurious += client.null_context;
        uint64_t late = 0;
        uint64_t at = bench_ms();
        end_close(&client, &late);
        CHECK(bench_ms() - at < 1000);
        lates += late;
        CHECK(answered(READS, 1) + late >= READS); // each had its entry, or a late one
        memcpy(copy, memory, READS * MIB);
        kill(target.pid, SIGCONT);
        pump(&side, NULL, NULL, NULL, round == 0 ? 500 : 50);
        CHECK(memcmp(copy, memory, READS * MIB) == 0);

        // A fresh endpoint is whole: its queue is its own.
        target_next(&target);
        connect_target();
        post(READS, 100);
        CHECK(pump(&side, NULL, entries, &(struct until){&client, READS}, 10000));
        IS(answered(READS, 100), READS);
        IS(client.good, READS);
        CHECK(memcmp(memory, expected, READS * MIB) == 0);
        end_close(&client, &late);
        IS(late, 0);
        target_next(&target);
    }
    printf("stopped: of %u READs %u told, %u late, %u entries without context\n", 10 * READS, told,
           (unsigned)lates, spurious);
    CHECK(lates > 0);
    free(copy);
    free(expected);
    IS(tcp->mr_close(mr), 0);
    side_close(&side);
    target_kill(&target);
}

int main(void)
{
    memory = calloc(64, MIB);
    CHECK(memory);
    killed();
    stopped();
    free(memory);
    puts("ok");
    return 0;
}
