// SPDX-License-Identifier: Apache-2.0
//
// test_slow [SECONDS]: 16 READs of 1 MiB always started by the application, whose process makes progress
// only now and then. Small messages, the release of our own grants and heartbeats keep their time, because
// Lien posts no more than R19 allows. Then the same with the bound taken away, for comparison: a
// provider table of our own whose traits allow 64 MiB [R19].

#include "core/ctx.h"
#include "provider/tcp/tcp.h"
#include "tests/fault/fault.h"

#define READS   16u
#define SAMPLES 20000u
#define GAP_MS  4u // between two calls of progress

struct run {
    struct fault_side side;
    struct fault_peer peer;
    lien_conn *conn;
    lien_token token; // of what is read over and over
    struct fault_read reads[READS];
    lien_space *spaces[READS];
    uint64_t bytes, most_outstanding;
    uint64_t sent_us; // of the message on its way; 0: none is
    bool release_pending;
    uint64_t granted_us;
    lien_buf *source;
    lien_grant *grant;
    uint32_t *echo, *release; // samples, us
    unsigned n_echo, n_release;
    bool got_token;
    _Atomic int lost;
};

static void on_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct run *r = arg;
    const void *head = NULL;
    size_t len = 0;
    (void)conn;
    CHECK_EQ(lien_msg_head(msg, &head, &len), 0);
    if (len > 1 && ((const char *)head)[0] == 't') {
        r->token.len = (uint32_t)(len - 1);
        memcpy(r->token.bytes, (const char *)head + 1, len - 1);
        r->got_token = true;
    } else if (r->n_echo < SAMPLES) {
        r->echo[r->n_echo++] = (uint32_t)(fault_us() - r->sent_us);
        r->sent_us = 0;
    }
    lien_msg_free(&msg);
}

static void on_lost(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    ((struct run *)arg)->lost = status;
}

static void on_grant_released(void *arg, int status)
{
    struct run *r = arg;
    if (status == 0 && r->n_release < SAMPLES)
        r->release[r->n_release++] = (uint32_t)(fault_us() - r->granted_us);
    r->release_pending = false;
}

static void send_small(struct run *r)
{
    if (r->sent_us)
        return;
    if (lien_send(r->conn, "e", 1, NULL, 0, NULL) == 0)
        r->sent_us = fault_us();
}

// A grant of ours that the peer reads and releases: its release comes the way the READs' bytes come.
static void grant_small(struct run *r)
{
    lien_grant_opts opts;
    lien_token token;
    char ask[1 + LIEN_TOKEN_MAX] = {'r'};
    if (r->release_pending)
        return;
    lien_grant_opts_init(&opts);
    opts.on_released = on_grant_released;
    opts.arg = r;
    if (r->grant)
        CHECK_EQ(lien_grant_close(&r->grant), 0);
    if (lien_grant_open(r->conn, &r->source, 1, &opts, &token, &r->grant) != 0)
        return;
    r->release_pending = true;
    r->granted_us = fault_us();
    memcpy(ask + 1, token.bytes, token.len);
    if (lien_send(r->conn, ask, 1 + token.len, NULL, 0, NULL) != 0)
        lien_grant_close(&r->grant); // no credit: another time
}

static void keep_reading(struct run *r)
{
    for (unsigned i = 0; i < READS; i++) {
        struct fault_read *read = &r->reads[i];
        if (read->read && read->released == 0)
            continue;
        if (read->read) {
            CHECK(r->lost || read->status == 0);
            r->bytes += MIB;
            lien_read_close(&read->read);
        }
        *read = (struct fault_read){0};
        if (fault_read_start(read, r->conn, &r->token, r->spaces[i], LIEN_FOREVER, 0) != 0)
            CHECK(r->lost);
    }
}

static void observe(struct run *r)
{
    lien_conn_info info;
    fault_info(r->conn, &info);
    if (info.read_bytes_outstanding > r->most_outstanding)
        r->most_outstanding = info.read_bytes_outstanding;
}

static void open_run(struct run *r, const struct lieni_platform *platform)
{
    static const char *const mine[] = {"heartbeat_ms=200", "dead_ms=60000", NULL};
    static const char *const mine_unbound[] = {"heartbeat_ms=200", "dead_ms=2000",
                                               "read_conn_bytes=64M", NULL};
    lien_ctx_opts opts;
    lien_conn_opts conn;
    void *data = NULL;
    fault_peer_start(&r->peer, mine);
    lien_ctx_opts_init(&opts);
    opts.flags = LIEN_APP_DRIVEN;
    opts.settings = platform ? mine_unbound : mine;
    opts.log = fault_log_line;
    CHECK_EQ(
        lieni_ctx_open_platform(&opts, platform ? platform : lieni_platform_real(), &r->side.ctx),
        0);
    CHECK_EQ(lien_pool_open(r->side.ctx, NULL, &r->side.pool), 0);
    lien_conn_opts_init(&conn);
    conn.arg = r;
    conn.on_message = on_message;
    conn.on_lost = on_lost;
    CHECK_EQ(lien_conn_open_wait(r->side.ctx, r->peer.address, &conn, &r->conn), 0);
    for (unsigned i = 0; i < READS; i++)
        r->spaces[i] = fault_space(&r->side, MIB);
    CHECK_EQ(lien_pool_alloc(r->side.pool, 4096, &r->source), 0);
    CHECK_EQ(lien_buf_mut(r->source, &data), 0);
    fault_pattern(data, 4096);
    r->echo = calloc(SAMPLES, sizeof *r->echo);
    r->release = calloc(SAMPLES, sizeof *r->release);
    CHECK(r->echo && r->release);
    const uint64_t size = MIB;
    char ask[1 + sizeof size] = {'g'};
    memcpy(ask + 1, &size, sizeof size);
    CHECK_EQ(lien_send(r->conn, ask, sizeof ask, NULL, 0, NULL), 0);
    while (!r->got_token) {
        CHECK_EQ(lien_ctx_progress(r->side.ctx), 0);
        fault_sleep(1);
    }
}

static void close_run(struct run *r)
{
    lien_conn_close_wait(&r->conn, 10000);
    for (unsigned i = 0; i < READS; i++) {
        if (r->reads[i].read)
            lien_read_close(&r->reads[i].read);
        lien_space_free(&r->spaces[i]);
    }
    if (r->grant)
        lien_grant_close(&r->grant);
    lien_buf_free(&r->source);
    fault_side_close(&r->side);
    fault_peer_kill(&r->peer);
    free(r->echo);
    free(r->release);
}

static int by_size(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void report(const char *what, uint32_t *us, unsigned n)
{
    qsort(us, n, sizeof *us, by_size);
    if (n == 0)
        printf("  %-18s none came\n", what);
    else
        printf("  %-18s n %5u   p50 %8.1f ms   p90 %8.1f   p99 %8.1f   max %8.1f\n", what, n,
               us[n / 2] / 1e3, us[n - n / 10 - 1] / 1e3, us[n - n / 100 - 1] / 1e3,
               us[n - 1] / 1e3);
}

static void run(struct run *r, const struct lieni_platform *platform, unsigned seconds)
{
    open_run(r, platform);
    uint64_t begin = fault_ms(), end = begin + seconds * 1000;
    while (!r->lost && (fault_ms() < end || (!platform && (r->n_echo == 0 || r->n_release == 0)))) {
        CHECK(fault_ms() < end + 60000);
        keep_reading(r);
        send_small(r);
        grant_small(r);
        observe(r);
        CHECK_EQ(lien_ctx_progress(r->side.ctx), 0);
        observe(r);
        fault_sleep(GAP_MS);
    }
    uint64_t waiting = r->sent_us ? fault_us() - r->sent_us : 0;
    printf("%s: %" PRIu64 " s, %.0f MiB/s, at most %.1f MiB of READs outstanding, %s\n",
           platform ? "without R19's bound" : "as it is", (fault_ms() - begin) / 1000,
           (double)r->bytes / (double)MIB / (double)seconds,
           (double)r->most_outstanding / (double)MIB,
           r->lost ? lien_errname(r->lost) : "the connection is open");
    report("message and answer", r->echo, r->n_echo);
    report("read and release", r->release, r->n_release);
    printf("  one more message waits for its answer since %.1f ms\n", (double)waiting / 1e3);
}

static void test(int argc, char **argv)
{
    static struct run bound, unbound;
    static struct lieni_traits traits;
    static struct lieni_provider tcp;
    static const struct lieni_provider *providers[] = {&tcp, NULL};
    unsigned seconds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 5;
    run(&bound, NULL, seconds);
    CHECK(bound.most_outstanding <= 4 * MIB);
    CHECK_EQ(bound.lost, 0);
    CHECK(bound.n_echo > 0 &&
          bound.n_release > 0); // how fast is for the reader of the report: machines differ
    close_run(&bound);

    traits = *lieni_provider_tcp.traits;
    traits.read_bytes_max = 64u << 20;
    memcpy(&tcp, &lieni_provider_tcp, sizeof tcp);
    tcp.traits = &traits;
    struct lieni_platform platform = *lieni_platform_real();
    platform.providers = providers;
    run(&unbound, &platform, seconds);
    CHECK(unbound.most_outstanding > 4 * MIB); // it is the bound that held it
    close_run(&unbound);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
