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
    size_t size; // of the grant, and of the READ
    lien_grant *grant;
    lien_token token;
    int opened; // 1: not yet
    int closed; // the same
    lien_space *space;
    struct fault_read read;
};

static void on_closed(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    ((struct link *)arg)->closed = status;
}

static void on_open(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    ((struct link *)arg)->opened = status;
}

// Returns what its opening came to.
static int try_link(struct bench *b, struct link *l)
{
    lien_conn_opts opts;
    *l = (struct link){.opened = 1, .closed = 1, .size = SIZE};
    lien_conn_opts_init(&opts);
    opts.arg = l;
    opts.on_open = on_open;
    opts.on_closed = on_closed;
    CHECK_EQ(lien_conn_open(b->ctx[0], b->address, &opts, &l->mine), 0);
    run(b, 200 * MS);
    return l->opened;
}

static void open_link_of(struct bench *b, struct link *l, size_t size)
{
    lien_buf *buf = NULL;
    CHECK_EQ(try_link(b, l), 0);
    l->size = size;
    CHECK_EQ(lien_listener_accept_wait(b->listener, 0, &l->theirs), 0);
    CHECK_EQ(lien_pool_alloc(b->pool[1], size, &buf), 0);
    CHECK_EQ(lien_grant_open(l->theirs, &buf, 1, NULL, &l->token, &l->grant), 0);
    lien_buf_free(&buf);
}

static void open_link(struct bench *b, struct link *l)
{
    open_link_of(b, l, SIZE);
}

static int start_read(struct bench *b, struct link *l)
{
    lien_buf *buf = NULL;
    l->read = (struct fault_read){0};
    CHECK_EQ(lien_pool_alloc(b->pool[0], l->size, &buf), 0);
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

// -- Caps ----------------------------------------------------------------------------------------------------------------------

// Small frames, so that caps can be small.
#define SLAB ((size_t)(4 + 8 + 32) * 4096)

struct caps {
    char peer[64], total[64];
    const char *settings[7];
};

static const char *const *caps_of(struct caps *c, uint64_t peer, uint64_t total)
{
    snprintf(c->peer, sizeof c->peer, "quarantine_peer_bytes=%llu", (unsigned long long)peer);
    snprintf(c->total, sizeof c->total, "quarantine_total_bytes=%llu", (unsigned long long)total);
    const char *const settings[7] = {c->peer,
                                     c->total,
                                     "message_credits=4",
                                     "call_credits=0",
                                     "frame_max=4096",
                                     "control_credits=8",
                                     NULL};
    memcpy(c->settings, settings, sizeof settings);
    return c->settings;
}

// Memory that is lost counts against its peer, and from the first loss on also what may be: a READ is refused that has no room beside that.
static void peer_cap(void)
{
    struct bench b;
    struct link healthy, bad;
    struct caps c;
    open_bench(&b, caps_of(&c, 3 * SIZE + SLAB + SIZE, 1 << 30));
    open_link(&b, &healthy); // keeps the domain open
    CHECK_EQ(start_read(&b, &healthy), 0);
    run(&b, 200 * MS);
    CHECK_EQ(healthy.read.status, 0);
    CHECK_EQ(healthy.read.released, 1);
    lien_read_close(&healthy.read.read);
    lien_space_free(&healthy.space);
    open_link_of(&b, &bad, 3 * SIZE);
    ep_unproven = swallow_reads = true;
    CHECK_EQ(start_read(&b, &bad), 0);
    end_link(&b, &bad);
    CHECK_EQ(quarantined(&b), 3 * SIZE);
    CHECK_EQ(domains_opened, 1);
    ep_unproven = swallow_reads = false;
    CHECK_EQ(start_read(&b, &healthy), 0); // its frames and this: just the cap
    run(&b, 200 * MS);
    CHECK_EQ(healthy.read.status, 0);
    lien_read_close(&healthy.read.read);
    lien_space_free(&healthy.space);
    healthy.size = SIZE + 4096;
    CHECK_EQ(start_read(&b, &healthy), LIEN_ELIMIT);
    run(&b, 10 * MS); // log lines leave in progress
    CHECK(fault_log_has("quarantine_peer_bytes"));
    CHECK(fault_log_has("READs are refused"));
    end_link(&b, &healthy);
    lien_space_free(&bad.space);
    close_bench(&b);
}

#define READS 5u

struct reads {
    lien_grant *grants[READS];
    lien_space *spaces[READS];
    struct fault_read reads[READS];
};

static void start_reads(struct bench *b, struct link *l, struct reads *r)
{
    memset(r, 0, sizeof *r);
    for (unsigned i = 0; i < READS; i++) {
        lien_buf *from = NULL, *to = NULL;
        lien_token token;
        CHECK_EQ(lien_pool_alloc(b->pool[1], SIZE, &from), 0);
        CHECK_EQ(lien_grant_open(l->theirs, &from, 1, NULL, &token, &r->grants[i]), 0);
        lien_buf_free(&from);
        CHECK_EQ(lien_pool_alloc(b->pool[0], SIZE, &to), 0);
        CHECK_EQ(lien_space_open(b->ctx[0], &to, 1, &r->spaces[i]), 0);
        CHECK_EQ(fault_read_start(&r->reads[i], l->mine, &token, r->spaces[i], LIEN_FOREVER, 0), 0);
    }
}

static unsigned count_released(const struct reads *r, int status)
{
    unsigned n = 0;
    for (unsigned i = 0; i < READS; i++)
        n += r->reads[i].released == 1 && r->reads[i].released_status == status;
    return n;
}

static void end_reads(struct reads *r)
{
    for (unsigned i = 0; i < READS; i++) {
        lien_grant_close(&r->grants[i]);
        lien_read_close(&r->reads[i].read);
        lien_space_free(&r->spaces[i]);
    }
}

// READs that run count as what may be lost: more than have room are not posted, whatever is started at once, so no more is lost.
static void in_flight(bool by_word)
{
    struct bench b;
    struct link first, l;
    struct reads r;
    struct caps c;
    const uint64_t before = by_word ? 0 : SIZE; // of the end that told
    open_bench(&b, caps_of(&c, before + SLAB + 3 * SIZE + SIZE / 2, 1 << 30));
    b.traits.ep_end_proves = !by_word;
    ep_unproven = swallow_reads = true;
    if (!by_word) {
        open_link(&b, &first);
        CHECK_EQ(start_read(&b, &first), 0);
        end_link(&b, &first);
        lien_space_free(&first.space);
    }
    CHECK_EQ(quarantined(&b), before);
    open_link(&b, &l);
    start_reads(&b, &l, &r);
    run(&b, 100 * MS);
    CHECK_EQ(b.ctx[0]->stats.read_pieces_posted, 3 + !by_word);
    end_link(&b, &l);
    CHECK_EQ(quarantined(&b), before + 3 * SIZE);
    CHECK_EQ(count_released(&r, LIEN_EQUARANTINED), 3);
    CHECK_EQ(count_released(&r, 0), READS - 3);
    end_reads(&r);
    close_bench(&b);
}

// Those that have no room have their turn when others are back, of another connection too.
static void turns(void)
{
    struct bench b;
    struct link one, two;
    struct reads r, s;
    struct caps c;
    open_bench(&b, caps_of(&c, 1 << 30, 2 * SLAB + SIZE));
    b.traits.ep_end_proves = false;
    open_link(&b, &one);
    open_link(&b, &two);
    start_reads(&b, &one, &r);
    start_reads(&b, &two, &s);
    run(&b, 1000 * MS);
    CHECK_EQ(count_released(&r, 0), READS);
    CHECK_EQ(count_released(&s, 0), READS);
    CHECK_EQ(b.ctx[0]->stats.reads_done, 2 * READS);
    end_reads(&r);
    end_reads(&s);
    end_link(&b, &one);
    end_link(&b, &two);
    CHECK_EQ(b.ctx[0]->quarantine.sums.held, 0);
    CHECK_EQ(b.ctx[0]->quarantine.sums.reads, 0);
    close_bench(&b);
}

// What could never be allowed is refused at its start: a READ, a held grant.
static void too_large(void)
{
    struct bench b;
    struct link l;
    struct caps c;
    lien_buf *buf = NULL;
    lien_token token;
    lien_grant *grant = NULL;
    open_bench(&b, caps_of(&c, SLAB + SIZE, 1 << 30));
    b.traits.ep_end_proves = false;
    open_link_of(&b, &l, SIZE + 4096);
    CHECK_EQ(start_read(&b, &l), LIEN_ELIMIT);
    run(&b, 10 * MS);
    CHECK(fault_log_has("quarantine_peer_bytes is 245760: READs are refused"));
    CHECK_EQ(lien_pool_alloc(b.pool[0], SIZE + 4096, &buf), 0);
    CHECK_EQ(lien_grant_open(l.mine, &buf, 1, NULL, &token, &grant), LIEN_ELIMIT);
    run(&b, 10 * MS);
    CHECK(fault_log_has("grants are refused"));
    CHECK_EQ(lien_buf_set_len(buf, SIZE), 0);
    CHECK_EQ(lien_grant_open(l.mine, &buf, 1, NULL, &token, &grant), 0);
    lien_buf_free(&buf);
    l.size = 4096; // nor does a READ wait for what a grant has
    CHECK_EQ(start_read(&b, &l), LIEN_ELIMIT);
    CHECK_EQ(lien_grant_close(&grant), 0);
    end_link(&b, &l);
    close_bench(&b);
}

// Connection after connection ends without proof, and no domain's end proves: there is an end to what is lost. Who is there stays, and goes on with messages.
static void total_cap(void)
{
    const uint64_t most = 2 * SLAB + 6 * SIZE;
    struct bench b;
    struct link healthy, bad, next, more;
    struct caps c;
    lien_msg *msg;
    unsigned refused = 0;
    open_bench(&b, caps_of(&c, 1 << 30, most));
    open_link(&b, &healthy);
    ep_unproven = swallow_reads = true;
    for (unsigned i = 0; i < 10; i++) {
        open_link(&b, &bad);
        int rc = start_read(&b, &bad);
        CHECK(rc == (i < 6 ? 0 : LIEN_ELIMIT));
        refused += rc != 0;
        end_link(&b, &bad);
        if (rc == 0)
            lien_space_free(&bad.space);
        CHECK_EQ(quarantined(&b), (i < 6 ? i + 1 : 6) * SIZE);
    }
    CHECK(refused == 4 && fault_log_has("quarantine_total_bytes"));
    open_link(&b, &next); // its frames have room, those of one more have none
    CHECK_EQ(try_link(&b, &more), LIEN_ELIMIT);
    run(&b, 10 * MS);
    CHECK(fault_log_has("new connections are refused"));
    lien_conn_close(&more.mine);
    swallow_reads = false;
    CHECK_EQ(start_read(&b, &healthy), LIEN_ELIMIT); // it could be lost as well
    CHECK_EQ(lien_send(healthy.mine, "x", 1, NULL, 0, NULL), 0);
    run(&b, 100 * MS);
    CHECK_EQ(lien_msg_recv_wait(healthy.theirs, 0, &msg), 0);
    lien_msg_free(&msg);
    end_link(&b, &next);
    end_link(&b, &healthy);
    CHECK_EQ(quarantined(&b), 6 * SIZE);
    CHECK_EQ(b.ctx[0]->quarantine.sums.held, 0);
    CHECK_EQ(b.ctx[0]->quarantine.n_peers, 1); // what is for good is one sum
    CHECK_EQ(b.ctx[0]->quarantine.n_shares, 0);
    close_bench(&b);
}

// From half of the total on new connections get a new domain, and the old one gives back with its last connection.
static void new_domain(void)
{
    struct bench b;
    struct link healthy, bad, next;
    struct caps c;
    open_bench(&b, caps_of(&c, 1 << 30, 4 * SLAB + 2 * SIZE));
    open_link(&b, &healthy);
    open_link_of(&b, &bad, 2 * SLAB + SIZE);
    CHECK_EQ(domains_opened, 1);
    ep_unproven = swallow_reads = true;
    CHECK_EQ(start_read(&b, &bad), 0);
    end_link(&b, &bad);
    CHECK_EQ(quarantined(&b), 2 * SLAB + SIZE);
    ep_unproven = swallow_reads = false;
    domain_proves = true;
    open_link(&b, &next);
    CHECK_EQ(domains_opened, 2);
    CHECK_EQ(start_read(&b, &healthy), 0); // the old one still works, as far as there is room
    run(&b, 200 * MS);
    CHECK_EQ(healthy.read.released, 1);
    CHECK_EQ(healthy.read.status, 0);
    lien_space_free(&healthy.space);
    next.size = SLAB; // beside what is lost there is none for this
    CHECK_EQ(start_read(&b, &next), LIEN_ELIMIT);
    end_link(&b, &healthy); // its last connection: the old domain closes, with proof
    CHECK_EQ(domains_open, 1);
    CHECK_EQ(quarantined(&b), 0);
    next.size = SIZE;
    CHECK_EQ(start_read(&b, &next), 0);
    run(&b, 200 * MS);
    CHECK_EQ(next.read.status, 0);
    lien_space_free(&next.space);
    end_link(&b, &next);
    lien_space_free(&bad.space);
    close_bench(&b);
}

// The account by itself: what it keeps is bounded by who is there and what is lost, and its sums come out even.
static void account(void)
{
    enum {
        PEERS = 500,
        DOMAINS = 3
    };
    static struct lieni_quarantine_share *shares[DOMAINS][PEERS];
    struct lieni_quarantine_domain domains[DOMAINS];
    struct lieni_quarantine q;
    char host[32];
    lieni_quarantine_init(&q, 1000, 1 << 20);
    for (unsigned d = 0; d < DOMAINS; d++) {
        lieni_quarantine_domain_init(&domains[d], d == 0);
        for (unsigned i = 0; i < PEERS; i++) {
            snprintf(host, sizeof host, "10.0.%u.%u", i / 250, i % 250);
            CHECK_EQ(lieni_quarantine_join(&q, &domains[d], host, &shares[d][i]), 0);
            CHECK_EQ(lieni_quarantine_join(&q, &domains[d], host, &shares[d][i]), 0);
            lieni_quarantine_hold(&q, shares[d][i], 10);
            lieni_quarantine_read(&q, shares[d][i], 100);
        }
    }
    CHECK(q.n_peers == PEERS && q.n_shares == DOMAINS * PEERS);
    CHECK(q.sums.held == 10 * PEERS && q.sums.reads == 100 * PEERS); // of the weak one
    lieni_quarantine_weak(&q, &domains[1]);
    lieni_quarantine_weak(&q, &domains[1]);
    CHECK(q.sums.held == 20 * PEERS && q.sums.reads == 200 * PEERS);
    CHECK_EQ(lieni_quarantine_room(&q, shares[1][7], 780, true), LIENI_ROOM);
    CHECK_EQ(lieni_quarantine_room(&q, shares[1][7], 781, true), LIENI_ROOM_PEER);
    CHECK_EQ(lieni_quarantine_room(&q, shares[1][7], 980, false), LIENI_ROOM);
    CHECK_EQ(lieni_quarantine_room(&q, shares[1][7], 981, false), LIENI_ROOM_PEER);
    CHECK_EQ(lieni_quarantine_room(&q, shares[1][7], UINT64_MAX, false), LIENI_ROOM_PEER);
    CHECK_EQ(lieni_quarantine_room(&q, shares[2][7], UINT64_MAX, true), LIENI_ROOM);
    for (unsigned d = 0; d < DOMAINS; d++) {
        for (unsigned i = 0; i < PEERS; i++) {
            lieni_quarantine_unhold(&q, shares[d][i], 10);
            lieni_quarantine_unread(&q, shares[d][i], 100);
            if (i % 5 == 0)
                lieni_quarantine_lose(&q, shares[d][i], 50);
            lieni_quarantine_leave(&q, shares[d][i]);
            lieni_quarantine_leave(&q, shares[d][i]);
        }
    }
    CHECK(q.sums.held == 0 && q.sums.reads == 0 && q.sums.lost == DOMAINS * 50 * PEERS / 5);
    CHECK(q.n_peers == PEERS / 5 && q.n_shares == DOMAINS * PEERS / 5); // others left nothing
    lieni_quarantine_ended(&q, &domains[0], true);
    CHECK(q.sums.lost == 2 * 50 * PEERS / 5 && q.n_peers == PEERS / 5);
    lieni_quarantine_ended(&q, &domains[1], false);
    CHECK(q.sums.lost == 2 * 50 * PEERS / 5 && q.n_shares == PEERS / 5);
    CHECK_EQ(shares[2][0]->peer->sums.lost, 100);
    lieni_quarantine_ended(&q, &domains[2], true);
    CHECK(q.sums.lost == 50 * PEERS / 5 && q.n_peers == PEERS / 5 && q.n_shares == 0);
    CHECK_EQ(q.ever, DOMAINS * 50 * PEERS / 5);
    lieni_quarantine_free(&q);
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
    peer_cap();
    in_flight(true);
    in_flight(false);
    turns();
    too_large();
    total_cap();
    new_domain();
    account();
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
