// SPDX-License-Identifier: Apache-2.0
//
// What transfers and connections leave behind: nothing. 100,000 small READs and messages with random cancels on one connection, then 500 connections opened, used and closed in turn;
// resident memory, descriptors, threads, mappings and the levels of lien_ctx_stats of both processes, after a warm-up and at the end.

#include "tests/loops/support.h"

#define TRANSFERS     100000u
#define WARM_UP       10000u
#define CONNECTIONS   500u
#define DEPTH         16u // transfers in flight
#define RSS_SLACK_KIB 2048u

static const char *const settings[] = {NULL};

struct flow;

// One transfer at a time: a READ, or a message whose answer is not waited for.
struct lane {
    struct flow *flow;
    lien_space *space;
    lien_read *read;
};

struct flow {
    pthread_mutex_t lock;
    pthread_cond_t room;
    unsigned free[DEPTH], n_free;
    struct lane lanes[DEPTH];
    lien_pool *pool;
    uint64_t done, canceled;
};

static void on_done(void *arg, int status)
{
    struct lane *lane = arg;
    CHECK(status == 0 || status == LIEN_ECANCELED);
    pthread_mutex_lock(&lane->flow->lock);
    lane->flow->done++;
    lane->flow->canceled += status != 0;
    pthread_mutex_unlock(&lane->flow->lock);
}

static void on_released(void *arg, int status)
{
    struct lane *lane = arg;
    struct flow *flow = lane->flow;
    IS(status, 0);
    pthread_mutex_lock(&flow->lock);
    flow->free[flow->n_free++] = (unsigned)(lane - flow->lanes);
    pthread_cond_signal(&flow->room);
    pthread_mutex_unlock(&flow->lock);
}

static struct lane *take(struct flow *flow)
{
    pthread_mutex_lock(&flow->lock);
    while (flow->n_free == 0)
        pthread_cond_wait(&flow->room, &flow->lock);
    struct lane *lane = &flow->lanes[flow->free[--flow->n_free]];
    pthread_mutex_unlock(&flow->lock);
    return lane;
}

static void wait_idle(struct flow *flow)
{
    pthread_mutex_lock(&flow->lock);
    while (flow->n_free < DEPTH)
        pthread_cond_wait(&flow->room, &flow->lock);
    pthread_mutex_unlock(&flow->lock);
}

static void read_one(lien_conn *conn, struct lane *lane, const lien_token *token, unsigned i)
{
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    const lien_op op = {.src = i % 61440u, .dst = 0, .len = 1 + i % 4096u};
    opts.ops = &op;
    opts.n_ops = 1;
    opts.on_done = on_done;
    opts.on_released = on_released;
    opts.arg = lane;
    lien_read *read;
    IS(lien_read_start(conn, token->bytes, token->len, lane->space, &opts, &read), 0);
    if (rand() % 16 == 0)
        IS(lien_read_cancel(read), 0);
    // Every other handle is given up while it runs, which cancels it where it still can.
    if (lane->read)
        lien_read_close(&lane->read);
    lane->read = read;
}

static void message(lien_conn *conn)
{
    static const char head[100] = {ASK_DROP};
    IS(lien_send_wait(conn, head, sizeof head, NULL, 0, NULL), 0);
}

static void transfers(lien_conn *conn, struct flow *flow, unsigned n)
{
    lien_token token;
    conn_ask_grant(conn, &token);
    for (unsigned i = 0; i < n; i++) {
        if (i % 2)
            message(conn);
        else
            read_one(conn, take(flow), &token, i);
    }
    wait_idle(flow);
    for (unsigned i = 0; i < DEPTH; i++)
        if (flow->lanes[i].read)
            lien_read_close(&flow->lanes[i].read);
    IS(lien_release(conn, token.bytes, token.len), 0);
    char answer[1];
    conn_ask(conn, "E", 1, answer, sizeof answer); // the peer has seen all of it
}

static void connections(lien_ctx *ctx, const char *address, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        char answer[1];
        lien_conn *conn = conn_open(ctx, address);
        conn_ask(conn, "E", 1, answer, sizeof answer);
        IS(lien_conn_close_wait(&conn, 20000), 0);
    }
}

static struct remote_report local_report(lien_ctx *ctx)
{
    struct remote_report report = {.footprint = footprint_now(), .stats.size = sizeof report.stats};
    IS(lien_ctx_stats_get(ctx, &report.stats), 0);
    return report;
}

static bool compare(const char *end, const struct remote_report *a, const struct remote_report *b)
{
    const struct {
        const char *name;
        uint64_t before, after, slack;
    } rows[] = {
        {"resident KiB", a->footprint.rss_kib, b->footprint.rss_kib, RSS_SLACK_KIB},
        {"descriptors", a->footprint.fds, b->footprint.fds, 0},
        {"threads", a->footprint.threads, b->footprint.threads, 0},
        {"mappings", a->footprint.maps, b->footprint.maps, 4}, // malloc's arenas move
        {"connections", a->stats.conns_open, b->stats.conns_open, 0},
        {"grants", a->stats.grants_live, b->stats.grants_live, 0},
        {"grant bytes", a->stats.grants_bytes, b->stats.grants_bytes, 0},
        {"quarantined", a->stats.quarantined_bytes, b->stats.quarantined_bytes, 0},
        {"pool bytes", a->stats.pool_bytes, b->stats.pool_bytes, 0},
        {"protocol errors", a->stats.protocol_errors, b->stats.protocol_errors, 0},
        {"lost", a->stats.conns_lost, b->stats.conns_lost, 0},
    };
    bool same = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool ok = rows[i].after <= rows[i].before + rows[i].slack;
        printf("%-7s %-16s %10llu %10llu %s\n", end, rows[i].name,
               (unsigned long long)rows[i].before, (unsigned long long)rows[i].after,
               ok ? "" : "  <- left behind");
        same = same && ok;
    }
    return same;
}

static void flow_open(struct flow *flow, lien_ctx *ctx)
{
    memset(flow, 0, sizeof *flow);
    pthread_mutex_init(&flow->lock, NULL);
    pthread_cond_init(&flow->room, NULL);
    IS(lien_pool_open(ctx, NULL, &flow->pool), 0);
    for (unsigned i = 0; i < DEPTH; i++) {
        lien_buf *buf;
        IS(lien_pool_alloc(flow->pool, 4096, &buf), 0);
        IS(lien_space_open(ctx, &buf, 1, &flow->lanes[i].space), 0);
        flow->lanes[i].flow = flow;
        flow->free[flow->n_free++] = i;
    }
}

static void flow_close(struct flow *flow)
{
    for (unsigned i = 0; i < DEPTH; i++)
        lien_space_free(&flow->lanes[i].space);
    IS(lien_pool_close(&flow->pool), 0);
}

int main(void)
{
    struct remote remote;
    struct flow flow;
    srand(1);
    remote_start(&remote, settings);
    lien_ctx *ctx = ctx_open(settings);
    flow_open(&flow, ctx);
    lien_conn *conn = conn_open(ctx, remote.address);

    transfers(conn, &flow, WARM_UP);
    connections(ctx, remote.address, CONNECTIONS / 10);
    struct remote_report ours = local_report(ctx), theirs = remote_report(&remote, 1);
    uint64_t begin = now_ms(), canceled = flow.canceled;
    transfers(conn, &flow, TRANSFERS);
    printf("%u transfers in %llu ms, %llu of them canceled\n", TRANSFERS,
           (unsigned long long)(now_ms() - begin), (unsigned long long)(flow.canceled - canceled));
    begin = now_ms();
    connections(ctx, remote.address, CONNECTIONS);
    printf("%u connections in %llu ms\n", CONNECTIONS, (unsigned long long)(now_ms() - begin));
    struct remote_report ours_after = local_report(ctx), theirs_after = remote_report(&remote, 1);

    bool same = compare("client", &ours, &ours_after);
    same = compare("server", &theirs, &theirs_after) && same;
    IS(lien_conn_close(&conn), 0);
    flow_close(&flow);
    IS(lien_ctx_close(&ctx), 0);
    remote_stop(&remote);
    CHECK(flow.canceled > canceled);
    IS(flow.done, (TRANSFERS + WARM_UP) / 2);
    CHECK(same);
    puts("ok");
    return 0;
}
