// SPDX-License-Identifier: Apache-2.0
//
// Teardown without proof, on the simulator: what then is in quarantine, for how long, and how much of it is allowed [R12];
// and an entry that comes when the endpoint's destruction has begun, which proves nothing [R17]. The simulator's provider is wrapped, so that
// the test says what a destruction proves.

#include "core/ctx.h"
#include "provider/sim/sim.h"
#include "tests/fault/fault.h"

#define MS   ((uint64_t)1000000)
#define SIZE ((size_t)65536)

// -- The wrap: node 0 alone uses it ----------------------------------------------------------------------------------------------

static struct lieni_provider wrapped;
static const struct lieni_provider *real;
static bool ep_unproven;   // ep_destroy succeeds and proves nothing
static bool domain_proves; // domain_close proves
static bool busy_once; // ep_destroy says busy, once, and an entry comes for the last READ posted
static bool swallow_reads; // READs are accepted and never happen
static bool swallow_sends; // SENDs
static bool refuse_sends;  // as by an endpoint that is down
static unsigned domains_open, domains_opened;
static uint64_t last_read; // its context
static void *last_user;
static struct lieni_event forged;
static bool has_forged;

static int wrap_destroy(struct lieni_ep *ep, enum lieni_proof *proof, uint64_t *late)
{
    if (busy_once) {
        busy_once = false;
        forged = (struct lieni_event){
            .kind = LIENI_EV_ENTRY, .user = last_user, .cqe = {.context = last_read}};
        has_forged = true;
        return LIEN_EBUSY;
    }
    int rc = real->ep_destroy(ep, proof, late);
    if (rc == 0 && ep_unproven)
        *proof = LIENI_UNKNOWN;
    return rc;
}

static unsigned wrap_poll(struct lieni_prov *prov, struct lieni_event *events, unsigned max)
{
    if (!has_forged)
        return real->poll(prov, events, max);
    has_forged = false;
    events[0] = forged;
    return 1;
}

static int wrap_read(struct lieni_ep *ep, void *dst, size_t len, struct lieni_mr *mr, uint64_t addr,
                     uint64_t key, uint64_t context)
{
    last_read = context;
    return swallow_reads ? 0 : real->post_read(ep, dst, len, mr, addr, key, context);
}

static int wrap_send(struct lieni_ep *ep, const void *buf, size_t len, struct lieni_mr *mr,
                     uint64_t context)
{
    if (refuse_sends)
        return LIEN_ESTATE;
    return swallow_sends ? 0 : real->post_send(ep, buf, len, mr, context);
}

static int wrap_connect(struct lieni_domain *domain, const struct lieni_ep_args *args,
                        struct lieni_ep **ep)
{
    last_user = args->user;
    return real->connect(domain, args, ep);
}

static int wrap_domain_open(struct lieni_prov *prov, const char *host, struct lieni_domain **domain)
{
    int rc = real->domain_open(prov, host, domain);
    domains_open += rc == 0;
    domains_opened += rc == 0;
    return rc;
}

static int wrap_domain_close(struct lieni_domain *domain, enum lieni_proof *proof)
{
    int rc = real->domain_close(domain, proof);
    if (rc == 0) {
        domains_open--;
        *proof = domain_proves ? LIENI_PROVEN : LIENI_UNKNOWN;
    }
    return rc;
}

// -- The world -------------------------------------------------------------------------------------------------------------------

struct bench {
    struct lieni_sim_world *world;
    struct lieni_traits traits;
    struct lieni_platform platform; // of node 0
    const struct lieni_provider *providers[2];
    lien_ctx *ctx[2];
    lien_pool *pool[2];
    lien_listener *listener;
    char address[96];
};

static void run(struct bench *b, uint64_t time)
{
    uint64_t end = lieni_sim_now(b->world) + time;
    while (lieni_sim_now(b->world) < end) {
        uint64_t next = lieni_sim_now(b->world) + MS;
        while (lieni_sim_step(b->world, next)) {
            for (unsigned i = 0; i < 2; i++)
                CHECK_EQ(lien_ctx_progress(b->ctx[i]), 0);
        }
        lieni_sim_advance(b->world, next);
        for (unsigned i = 0; i < 2; i++)
            CHECK_EQ(lien_ctx_progress(b->ctx[i]), 0);
    }
}

static void open_node(struct bench *b, unsigned i, const char *const *settings)
{
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.flags = LIEN_APP_DRIVEN;
    opts.settings = settings;
    opts.log = fault_log_line;
    const struct lieni_platform *platform = i == 0 ? &b->platform
                                                   : lieni_sim_node_platform(b->world, i);
    CHECK_EQ(lieni_ctx_open_platform(&opts, platform, &b->ctx[i]), 0);
    CHECK_EQ(lien_pool_open(b->ctx[i], NULL, &b->pool[i]), 0);
}

static void open_bench(struct bench *b, const char *const *settings)
{
    struct lieni_sim_config config;
    memset(b, 0, sizeof *b);
    lieni_sim_config_init(&config, LIENI_SIM_TCP);
    b->world = lieni_sim_world_new(1, &config);
    CHECK(b->world);
    b->platform = *lieni_sim_node_platform(b->world, 0);
    real = b->platform.providers[0];
    memcpy(&wrapped, real, sizeof wrapped);
    b->traits = *real->traits;
    b->traits.ep_end_proves = true;
    b->traits.domain_end_proves = true;
    wrapped.traits = &b->traits;
    wrapped.ep_destroy = wrap_destroy;
    wrapped.poll = wrap_poll;
    wrapped.post_read = wrap_read;
    wrapped.post_send = wrap_send;
    wrapped.connect = wrap_connect;
    wrapped.domain_open = wrap_domain_open;
    wrapped.domain_close = wrap_domain_close;
    b->providers[0] = &wrapped;
    b->platform.providers = b->providers;
    ep_unproven = domain_proves = busy_once = swallow_reads = has_forged = false;
    swallow_sends = refuse_sends = false;
    domains_open = domains_opened = 0;
    fault_log_clear();
    open_node(b, 0, settings);
    open_node(b, 1, NULL);
    char address[64];
    snprintf(address, sizeof address, "%s:7000", lieni_sim_node_host(b->world, 1));
    CHECK_EQ(lien_listener_open(b->ctx[1], address, NULL, &b->listener), 0);
    CHECK_EQ(lien_listener_address(b->listener, b->address, sizeof b->address), 0);
}

static void close_bench(struct bench *b)
{
    lien_listener_close(&b->listener);
    for (unsigned i = 0; i < 2; i++) {
        lien_pool_close(&b->pool[i]);
        int rc;
        while ((rc = lien_ctx_close(&b->ctx[i])) == LIEN_EDEADLK) {
            lieni_sim_advance(b->world, lieni_sim_now(b->world) + MS);
            for (unsigned j = i; j < 2; j++)
                lien_ctx_progress(b->ctx[j]);
        }
        CHECK_EQ(rc, 0);
    }
    lieni_sim_world_free(b->world);
}

struct link {
    lien_conn *mine, *theirs;
    lien_grant *grant;
    lien_token token;
    int closed; // 1: not yet
    lien_space *space;
    struct fault_read read;
};

static void on_closed(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    ((struct link *)arg)->closed = status;
}

static void open_link(struct bench *b, struct link *l)
{
    lien_conn_opts opts;
    lien_buf *buf = NULL;
    *l = (struct link){.closed = 1};
    lien_conn_opts_init(&opts);
    opts.arg = l;
    opts.on_closed = on_closed;
    CHECK_EQ(lien_conn_open(b->ctx[0], b->address, &opts, &l->mine), 0);
    run(b, 200 * MS);
    CHECK_EQ(lien_listener_accept_wait(b->listener, 0, &l->theirs), 0);
    CHECK_EQ(lien_pool_alloc(b->pool[1], SIZE, &buf), 0);
    CHECK_EQ(lien_grant_open(l->theirs, &buf, 1, NULL, &l->token, &l->grant), 0);
    lien_buf_free(&buf);
}

static int start_read(struct bench *b, struct link *l)
{
    lien_buf *buf = NULL;
    CHECK_EQ(lien_pool_alloc(b->pool[0], SIZE, &buf), 0);
    CHECK_EQ(lien_space_open(b->ctx[0], &buf, 1, &l->space), 0);
    int rc = fault_read_start(&l->read, l->mine, &l->token, l->space, LIEN_FOREVER, 0);
    if (rc != 0)
        lien_space_free(&l->space);
    return rc;
}

// A READ that never ends, and the end of its connection.
static void end_link(struct bench *b, struct link *l)
{
    lien_conn_close(&l->mine);
    run(b, 3000 * MS);
    lien_grant_close(&l->grant);
    lien_conn_close(&l->theirs);
    run(b, 3000 * MS);
    if (l->read.read)
        lien_read_close(&l->read.read);
}

static uint64_t quarantined(struct bench *b)
{
    lien_ctx_stats stats = {.size = sizeof stats};
    CHECK_EQ(lien_ctx_stats_get(b->ctx[0], &stats), 0);
    return stats.quarantined_bytes;
}

// -- Tests -----------------------------------------------------------------------------------------------------------------------

// The connection ends without proof, its domain with or without.
static void without_proof(bool domain_does)
{
    struct bench b;
    struct link l;
    lien_buf *buf = NULL;
    open_bench(&b, NULL);
    ep_unproven = swallow_reads = true;
    domain_proves = domain_does;
    open_link(&b, &l);
    CHECK_EQ(start_read(&b, &l), 0);
    run(&b, 50 * MS);
    CHECK_EQ(lien_read_cancel(l.read.read), 0);
    run(&b, 50 * MS);
    CHECK(l.read.done == 1 && l.read.released == 0); // no deadline begins a quarantine
    CHECK_EQ(quarantined(&b), 0);
    end_link(&b, &l);
    CHECK_EQ(l.closed, LIEN_EQUARANTINED);
    CHECK_EQ(l.read.released, 1);
    CHECK_EQ(l.read.released_status, LIEN_EQUARANTINED);
    CHECK_EQ(lien_space_wait(l.space, 0), LIEN_EQUARANTINED);
    CHECK_EQ(lien_space_take(l.space, &buf, 1), LIEN_EQUARANTINED);
    CHECK_EQ(lien_space_buf(l.space, 0, &buf), LIEN_EQUARANTINED);
    // With its last endpoint the domain ended: where that proves, all is home.
    CHECK_EQ(domains_open, 0);
    if (domain_does)
        CHECK_EQ(quarantined(&b), 0);
    else
        CHECK(quarantined(&b) >= SIZE);
    lien_space_free(&l.space);
    close_bench(&b);
}

static void with_proof(void)
{
    struct bench b;
    struct link l;
    open_bench(&b, NULL);
    swallow_reads = true;
    open_link(&b, &l);
    CHECK_EQ(start_read(&b, &l), 0);
    end_link(&b, &l);
    CHECK_EQ(l.closed, 0);
    CHECK_EQ(l.read.released_status, 0);
    CHECK_EQ(quarantined(&b), 0);
    lien_space_free(&l.space);
    close_bench(&b);
}

// A message in flight at an end without proof: told, and nothing of its connection stays.
static void lost_send(void)
{
    struct bench b;
    struct link l;
    open_bench(&b, NULL);
    open_link(&b, &l);
    ep_unproven = swallow_sends = true;
    CHECK_EQ(lien_send(l.mine, "x", 1, NULL, 0, NULL), 0);
    end_link(&b, &l);
    CHECK_EQ(l.closed, LIEN_EQUARANTINED);
    CHECK(lieni_list_empty(&b.ctx[0]->conns));
    close_bench(&b);
}

// Closing stops reads that wait to be posted; their releases are refused, since the endpoint broke: each read ends once.
static void refused_in_close(void)
{
    static const char *const one_read[] = {"reads_per_nic=1", NULL};
    struct bench b;
    struct link l;
    lien_grant *grants[4];
    open_bench(&b, one_read);
    open_link(&b, &l);
    swallow_reads = true;
    for (unsigned i = 0; i < 4; i++) {
        lien_buf *from = NULL, *to = NULL;
        lien_token token;
        lien_space *space;
        lien_read_opts opts;
        CHECK_EQ(lien_pool_alloc(b.pool[1], SIZE, &from), 0);
        CHECK_EQ(lien_grant_open(l.theirs, &from, 1, NULL, &token, &grants[i]), 0);
        lien_buf_free(&from);
        CHECK_EQ(lien_pool_alloc(b.pool[0], SIZE, &to), 0);
        CHECK_EQ(lien_space_open(b.ctx[0], &to, 1, &space), 0);
        lien_read_opts_init(&opts);
        opts.flags = LIEN_RELEASE;
        CHECK_EQ(lien_read_start(l.mine, token.bytes, token.len, space, &opts, NULL), 0);
        lien_space_free(&space);
    }
    refuse_sends = true;
    lien_conn_close(&l.mine);
    run(&b, 3000 * MS);
    for (unsigned i = 0; i < 4; i++)
        lien_grant_close(&grants[i]);
    end_link(&b, &l);
    CHECK_EQ(l.closed, 0);
    CHECK(lieni_list_empty(&b.ctx[0]->conns));
    close_bench(&b);
}

// An entry that is read after the destruction began does not prove the end of its READ.
static void late_entry(void)
{
    struct bench b;
    struct link l;
    lien_ctx_stats stats = {.size = sizeof stats};
    open_bench(&b, NULL);
    ep_unproven = swallow_reads = true;
    open_link(&b, &l);
    CHECK_EQ(start_read(&b, &l), 0);
    busy_once = true;
    end_link(&b, &l);
    CHECK(!has_forged); // it was read
    CHECK_EQ(l.read.released_status, LIEN_EQUARANTINED);
    CHECK_EQ(l.closed, LIEN_EQUARANTINED);
    CHECK_EQ(lien_ctx_stats_get(b.ctx[0], &stats), 0);
    CHECK(stats.evidence_unknown >= 1);
    lien_space_free(&l.space);
    close_bench(&b);
}

// At the cap of one peer READs from it are refused; at the cap of all, new connections get a new domain while
// those that are well stay where they are.
static void caps(void)
{
    static const char *const peer_cap[] = {"quarantine_peer_bytes=64K", NULL};
    static const char *const total_cap[] = {"quarantine_total_bytes=64K", NULL};
    struct bench b;
    struct link healthy, bad, next;
    open_bench(&b, peer_cap);
    open_link(&b, &healthy); // keeps the domain open
    CHECK_EQ(start_read(&b, &healthy), 0);
    run(&b, 200 * MS);
    CHECK_EQ(healthy.read.status, 0);
    CHECK_EQ(healthy.read.released, 1);
    lien_read_close(&healthy.read.read);
    lien_space_free(&healthy.space);
    open_link(&b, &bad);
    ep_unproven = swallow_reads = true;
    CHECK_EQ(start_read(&b, &bad), 0);
    end_link(&b, &bad);
    CHECK(quarantined(&b) >= SIZE);
    CHECK_EQ(domains_opened, 1);
    ep_unproven = swallow_reads = false;
    CHECK_EQ(start_read(&b, &healthy), LIEN_ELIMIT);
    run(&b, 10 * MS); // log lines leave in progress
    CHECK(fault_log_has("quarantine_peer_bytes"));
    end_link(&b, &healthy);
    lien_space_free(&bad.space);
    close_bench(&b);

    open_bench(&b, total_cap);
    open_link(&b, &healthy);
    open_link(&b, &bad);
    CHECK_EQ(domains_opened, 1);
    ep_unproven = swallow_reads = true;
    CHECK_EQ(start_read(&b, &bad), 0);
    end_link(&b, &bad);
    ep_unproven = swallow_reads = false;
    domain_proves = true;
    open_link(&b, &next);
    CHECK_EQ(domains_opened, 2);
    healthy.read = (struct fault_read){0};
    CHECK_EQ(start_read(&b, &healthy), 0); // the old one still works
    run(&b, 200 * MS);
    CHECK_EQ(healthy.read.released, 1);
    CHECK_EQ(healthy.read.status, 0);
    lien_space_free(&healthy.space);
    CHECK(quarantined(&b) >= SIZE);
    end_link(&b, &healthy); // its last connection: the old domain closes, with proof
    CHECK_EQ(domains_open, 1);
    CHECK_EQ(quarantined(&b), 0);
    end_link(&b, &next);
    lien_space_free(&bad.space);
    close_bench(&b);
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    with_proof();
    without_proof(false);
    without_proof(true);
    late_entry();
    lost_send();
    refused_in_close();
    caps();
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
