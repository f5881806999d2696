// SPDX-License-Identifier: Apache-2.0
//
// Idle endpoints cost nothing: 100 of them, connected and used once, then 3 seconds of nothing; with peers that went down and were not destroyed yet; and a post from another thread
// wakes a sleeping progress.

#include <pthread.h>
#include <string.h>

#include "tests/ofi/bench.h"

#define PAIRS 50u

static const struct lieni_provider *const tcp = &lieni_provider_tcp;
static struct side a;
static struct side b;
static struct end servers[PAIRS];
static struct end clients[PAIRS];
static char bytes[8];

static bool all_heard(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < PAIRS; i++)
        if (servers[i].entries < 1 || clients[i].entries < 1)
            return false;
    return true;
}

static bool heard(void *arg)
{
    const struct end *end = arg;
    return end->entries >= 2;
}

static void *post_later(void *arg)
{
    struct end *end = arg;
    bench_sleep(300);
    IS(tcp->post_send(end->ep, "late", 5, NULL, 3), 0);
    return NULL;
}

static void idle(const char *what)
{
    pump(&a, &b, NULL, NULL, 200); // settles
    double cpu = bench_cpu();
    unsigned wakes = a.wakes;
    pump(&a, &b, NULL, NULL, 3000);
    cpu = bench_cpu() - cpu;
    printf("%s: %.4f s of CPU in 3 s, woken %u times\n", what, cpu, a.wakes - wakes);
    CHECK(cpu < 0.02);
    CHECK(a.wakes - wakes < 5);
}

int main(void)
{
    side_open(&a);
    side_open(&b);
    for (unsigned i = 0; i < PAIRS; i++) {
        pair(&a, &servers[i], &b, &clients[i]);
        IS(tcp->post_recv(servers[i].ep, bytes, sizeof bytes, NULL, 1), 0);
        IS(tcp->post_send(clients[i].ep, "hi", 3, NULL, 2), 0);
    }
    CHECK(pump(&a, &b, all_heard, NULL, 5000));
    idle("100 endpoints");

    // Both progress contexts are asleep when this post comes.
    IS(tcp->post_recv(servers[0].ep, bytes, sizeof bytes, NULL, 2), 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, post_later, &clients[0]) == 0);
    CHECK(pump(&a, &b, heard, &servers[0], 5000));
    CHECK(pump(&a, &b, heard, &clients[0], 5000));
    pthread_join(thread, NULL);

    for (unsigned i = 0; i < PAIRS / 2; i++)
        end_close(&clients[i], NULL);
    idle("50 endpoints, half of them down");
    for (unsigned i = 0; i < PAIRS; i++) {
        IS(servers[i].down, i < PAIRS / 2);
        end_close(&servers[i], NULL);
        if (i >= PAIRS / 2)
            end_close(&clients[i], NULL);
    }
    side_close(&a);
    side_close(&b);
    puts("ok");
    return 0;
}
