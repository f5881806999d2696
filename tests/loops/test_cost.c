// SPDX-License-Identifier: Apache-2.0
//
// What a connection costs at each end, between two processes: resident memory and descriptors before its first traffic and after it. Most of it is libfabric's (docs/libfabric-facts.md
// section 10): a pool of about 0.5 MiB an endpoint that the receives posted at the start touch already, so traffic adds little. Descriptors: the endpoint's socket, three of its
// completion queue, three of its event queue, and the bootstrap's socket.

#include "tests/loops/support.h"

#define CONNS 100u

struct cost {
    double kib;
    double fds;
};

static struct cost per_conn(const char *end, const char *when, struct footprint a,
                            struct footprint b)
{
    struct cost cost = {.kib = ((double)b.rss_kib - (double)a.rss_kib) / CONNS,
                        .fds = ((double)b.fds - (double)a.fds) / CONNS};
    printf("%-7s %-15s %8.1f KiB %6.2f descriptors a connection, %+d threads\n", end, when,
           cost.kib, cost.fds, (int)b.threads - (int)a.threads);
    return cost;
}

static bool bulk(lien_ctx *ctx, lien_conn *conn)
{
    lien_token token;
    conn_ask_grant(conn, &token);
    lien_pool *pool;
    lien_buf *buf;
    IS(lien_pool_open(ctx, NULL, &pool), 0);
    IS(lien_pool_alloc(pool, PEER_BYTES, &buf), 0);
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.flags = LIEN_RELEASE;
    IS(lien_read_wait(conn, token.bytes, token.len, &buf, 1, &opts), 0);
    lien_buf_free(&buf);
    IS(lien_pool_close(&pool), 0);
    return true;
}

int main(void)
{
    static lien_conn *conns[CONNS];
    static const char *const settings[] = {NULL};
    struct remote remote;
    remote_start(&remote, settings);
    lien_ctx *ctx = ctx_open(settings);
    lien_conn *first = conn_open(ctx, remote.address); // what all share: domain, threads
    bulk(ctx, first);
    struct footprint theirs[3], ours[3];
    theirs[0] = remote_report(&remote, 1).footprint;
    ours[0] = footprint_now();
    for (unsigned i = 0; i < CONNS; i++)
        conns[i] = conn_open(ctx, remote.address);
    theirs[1] = remote_report(&remote, CONNS + 1).footprint;
    ours[1] = footprint_now();
    for (unsigned i = 0; i < CONNS; i++)
        bulk(ctx, conns[i]);
    theirs[2] = remote_report(&remote, CONNS + 1).footprint;
    ours[2] = footprint_now();
    const struct cost before[2] = {per_conn("client", "before traffic", ours[0], ours[1]),
                                   per_conn("server", "before traffic", theirs[0], theirs[1])};
    const struct cost after[2] = {per_conn("client", "after traffic", ours[0], ours[2]),
                                  per_conn("server", "after traffic", theirs[0], theirs[2])};
    for (unsigned i = 0; i < CONNS; i++)
        IS(lien_conn_close(&conns[i]), 0);
    IS(lien_conn_close(&first), 0);
    IS(lien_ctx_close(&ctx), 0);
    remote_stop(&remote);
    for (unsigned i = 0; i < 2; i++) {
        CHECK(before[i].kib < 800);
        CHECK(after[i].kib < 900);
        CHECK(before[i].fds < 8.5 && after[i].fds < 8.5);
    }
    puts("ok");
    return 0;
}
