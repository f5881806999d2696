// SPDX-License-Identifier: Apache-2.0
//
// Threads that post while another one drives progress, shuts down and destroys, over and over. `gate` is core's state lock: posts are made under it and only while the endpoint stands;
// polling is done without it. Every post has one entry, told or late.

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/ofi/bench.h"

#define ROUNDS  40u
#define POSTERS 2u
#define BYTES   65536u

static const struct lieni_provider *const tcp = &lieni_provider_tcp;
static struct side a;
static struct side b;
static struct end server;
static struct end client;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static bool standing; // gate
static atomic_bool quit;
static unsigned posted; // gate
static struct lieni_mr_info source;
static struct lieni_mr *mr;
static uint8_t from[BYTES];
static uint8_t to[POSTERS][BYTES];

static void post_one(unsigned self)
{
    pthread_mutex_lock(&gate);
    if (standing) {
        int code = tcp->post_read(client.ep, to[self], BYTES, mr, source.base, source.key,
                                  self + 1);
        CHECK(code == 0 || code == LIEN_EAGAIN || code == LIEN_ESTATE);
        posted += code == 0;
    }
    pthread_mutex_unlock(&gate);
}

static void *poster(void *arg)
{
    unsigned self = (unsigned)(uintptr_t)arg;
    while (!atomic_load(&quit))
        post_one(self);
    return NULL;
}

static void set_standing(bool is)
{
    pthread_mutex_lock(&gate);
    standing = is;
    pthread_mutex_unlock(&gate);
}

int main(void)
{
    pthread_t threads[POSTERS];
    unsigned total = 0;
    side_open(&a);
    side_open(&b);
    struct lieni_mr *exposed;
    struct lieni_mr_info info;
    IS(tcp->mr_reg(a.domain, from, BYTES, LIENI_ACCESS_REMOTE, &exposed, &source), 0);
    IS(tcp->mr_reg(b.domain, to, sizeof to, LIENI_ACCESS_LOCAL, &mr, &info), 0);
    memset(from, 0x5a, sizeof from);
    for (unsigned i = 0; i < POSTERS; i++)
        CHECK(pthread_create(&threads[i], NULL, poster, (void *)(uintptr_t)i) == 0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        pair(&a, &server, &b, &client);
        set_standing(true);
        pump(&a, &b, NULL, NULL, 5 + round % 20);
        tcp->ep_shutdown(client.ep); // posts race with this
        pump(&a, &b, NULL, NULL, round % 3);
        set_standing(false);
        uint64_t late = 0;
        end_close(&client, &late);
        CHECK(client.entries - client.null_context <= posted);
        CHECK(client.entries + late >= posted);
        total += posted;
        posted = 0;
        end_close(&server, NULL);
    }
    atomic_store(&quit, true);
    for (unsigned i = 0; i < POSTERS; i++)
        pthread_join(threads[i], NULL);
    CHECK(total > ROUNDS);
    CHECK(to[0][0] == 0x5a && to[1][BYTES - 1] == 0x5a);
    IS(tcp->mr_close(exposed), 0);
    IS(tcp->mr_close(mr), 0);
    side_close(&a);
    side_close(&b);
    printf("%u posts in %u rounds\nok\n", total, ROUNDS);
    return 0;
}
