// SPDX-License-Identifier: Apache-2.0
//
// Draws a program from its seed and runs it: nodes, faults and timing differ from seed to seed, actions from step to step. Core's clock moves only here, from event to event and
// timer to timer. At the end all is closed and the world runs until nothing is owed; then what is left is a leak.

#include "model.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/ctx.h"

#define MS UINT64_C(1000000)

// Passes of one node at one moment: more means that it never comes to rest.
#define PASSES_MAX 20000

// -- The clock ---------------------------------------------------------------------------------------------------------------------

bool node_runs(const struct app_node *node)
{
    return node->ctx && !node->dead && !node->frozen;
}

static uint64_t next_timer(const struct app_node *node)
{
    uint64_t at = node_runs(node) ? lieni_timers_next(&node->ctx->timers) : UINT64_MAX;
    uint64_t ahead = lieni_sim_clock_ahead(node->p->world, node->index);
    return at == UINT64_MAX || at < ahead ? (at == UINT64_MAX ? at : 0) : at - ahead;
}

void program_progress(struct program *p, struct app_node *node)
{
    for (unsigned i = 0; node_runs(node) && !p->failed; i++) {
        bool due = lieni_sim_node_ready(p->world, node->index) ||
                   next_timer(node) <= lieni_sim_now(p->world) ||
                   lien_ctx_arm(node->ctx) == LIEN_EAGAIN;
        if (!due)
            return;
        if (p->poor && !p->stopping && one_in(p, 6))
            poor_set(1 + (unsigned)draw(p, 12), 1 + (unsigned)draw(p, 3));
        p->actor = node;
        int err = lien_ctx_progress(node->ctx);
        p->actor = NULL;
        poor_set(0, 0);
        if (err && !(p->poor && err == LIEN_ENOMEM))
            program_fail(p, "lien_ctx_progress answers %s", lien_errname(err));
        if (i == PASSES_MAX)
            program_fail(p, "node %u does not come to rest: %u passes at one moment", node->index,
                         i);
    }
}

static void progress_all(struct program *p, bool lazy)
{
    for (unsigned i = 0; i < p->n_nodes; i++)
        if (!lazy || !one_in(p, 8))
            program_progress(p, &p->nodes[i]);
}

static void thaw_due(struct program *p)
{
    for (unsigned i = 0; i < p->n_nodes; i++) {
        struct app_node *node = &p->nodes[i];
        if (node->frozen && !node->dead && lieni_sim_now(p->world) >= node->thaw_at) {
            node->frozen = false;
            lieni_sim_thaw_node(p->world, i);
        }
    }
}

static uint64_t next_moment(const struct program *p)
{
    uint64_t at = lieni_sim_next_time(p->world);
    for (unsigned i = 0; i < p->n_nodes; i++) {
        const struct app_node *node = &p->nodes[i];
        if (next_timer(node) < at)
            at = next_timer(node);
        if (node->frozen && !node->dead && node->thaw_at < at)
            at = node->thaw_at;
    }
    return at;
}

static void check_world(struct program *p)
{
    if (lieni_sim_violations(p->world))
        program_fail(p, "%s", lieni_sim_violation(p->world, 0));
}

// Runs until `until`, or at most `moments` moments.
static void run_world(struct program *p, uint64_t until, unsigned moments)
{
    progress_all(p, true);
    while (!p->failed && moments--) {
        uint64_t at = next_moment(p);
        if (at > until || at == UINT64_MAX)
            break;
        if (!lieni_sim_step(p->world, at))
            lieni_sim_advance(p->world, at);
        thaw_due(p);
        progress_all(p, true);
        faults_try(p);
        check_world(p);
    }
}

// -- Choosing ----------------------------------------------------------------------------------------------------------------------

// One of a list, by reservoir; `fine` may refuse.
#define PICK(type, head, fine)                                                                     \
    struct type *found = NULL;                                                                     \
    uint64_t seen = 0;                                                                             \
    for (struct type *x = (head); x && seen < 64; x = x->next)                                     \
        if ((fine) && one_in(p, ++seen))                                                           \
            found = x;                                                                             \
    return found

static void open_node(struct program *p, unsigned i);

static struct app_conn *pick_usable(struct program *p)
{
    PICK(app_conn, p->conns, model_conn_usable(x) && node_runs(x->node));
}

static struct app_conn *pick_open_handle(struct program *p)
{
    PICK(app_conn, p->conns, x->conn && node_runs(x->node));
}

static struct app_conn *pick_over(struct program *p)
{
    PICK(app_conn, p->conns, x->conn && node_runs(x->node) && (x->lost || x->open_status));
}

static struct app_grant *pick_grant(struct program *p)
{
    PICK(app_grant, p->grants, x->grant && node_runs(x->conn->node));
}

static struct app_read *pick_read(struct program *p)
{
    PICK(app_read, p->reads, x->read && node_runs(x->conn->node));
}

static struct app_read *pick_read_running(struct program *p)
{
    PICK(app_read, p->reads, x->read && !x->op.done && node_runs(x->conn->node));
}

static struct app_call *pick_call(struct program *p)
{
    PICK(app_call, p->calls, x->call && !x->op.done && node_runs(x->conn->node));
}

static struct app_call *pick_call_handle(struct program *p)
{
    PICK(app_call, p->calls, x->call && node_runs(x->conn->node));
}

static struct app_source *pick_source(struct program *p)
{
    PICK(app_source, p->sources, x->borrows && !x->freed && node_runs(x->node));
}

static struct app_request *pick_request(struct program *p)
{
    PICK(app_request, p->requests, x->request && node_runs(x->conn->node));
}

static struct app_alloc *pick_alloc(struct program *p)
{
    PICK(app_alloc, p->allocs, (!x->op.released || x->buf.buf) && node_runs(x->node));
}

static struct app_msg *pick_msg(struct program *p)
{
    PICK(app_msg, p->msgs, node_runs(x->node));
}

static struct app_mem *pick_mem(struct program *p)
{
    PICK(app_mem, p->mems, x->mem && node_runs(x->node));
}

static struct app_node *pick_node(struct program *p)
{
    struct app_node *node = &p->nodes[draw(p, p->n_nodes)];
    return node_runs(node) ? node : NULL;
}

// -- Actions -----------------------------------------------------------------------------------------------------------------------

static void do_connect(struct program *p)
{
    struct app_node *from = pick_node(p), *to = &p->nodes[draw(p, p->n_nodes)];
    unsigned open = 0;
    for (struct app_conn *c = p->conns; c; c = c->next)
        open += c->conn != NULL;
    if (!from || from == to || open > 6 * p->n_nodes || (to->dead && !one_in(p, 8)))
        return;
    struct app_conn *c = model_conn_new(from, false);
    p->actor = from;
    lien_conn_opts opts;
    model_conn_opts(c, &opts);
    opts.timeout_ms = one_in(p, 6) ? 10 + (uint32_t)draw(p, 20) : 0;
    int err = lien_conn_open(from->ctx, to->address, &opts, &c->conn);
    check_answer(p, "lien_conn_open", err, 0);
    c->closed = err != 0; // it never was
}

static void do_close(struct program *p)
{
    struct app_conn *c = one_in(p, 3) ? pick_open_handle(p) : pick_over(p);
    if (c)
        faults_close(c);
}

static void do_cancel(struct program *p)
{
    struct app_read *r = pick_read_running(p);
    if (r)
        faults_cancel(r);
}

static void do_revoke(struct program *p)
{
    struct app_grant *g = pick_grant(p);
    if (g)
        faults_revoke(g);
}

static void do_listener(struct program *p)
{
    struct app_node *node = pick_node(p);
    if (!node)
        return;
    if (node->listener)
        model_listener_close(node);
    else
        model_listen(node);
}

static void do_mem(struct program *p)
{
    struct app_node *node = pick_node(p);
    struct app_mem *m = one_in(p, 2) ? pick_mem(p) : NULL;
    p->actor = m ? m->node : node;
    if (m)
        model_mem_unregister(m);
    else if (node)
        model_mem_new(node);
}

static void do_alloc(struct program *p)
{
    struct app_node *node = pick_node(p);
    struct app_alloc *a = one_in(p, 2) ? pick_alloc(p) : NULL;
    p->actor = a ? a->node : node;
    if (a)
        model_alloc_end(a);
    else if (node)
        model_alloc(node);
}

static void do_request(struct program *p)
{
    struct app_request *r = pick_request(p);
    if (!r)
        return;
    p->actor = r->conn->node;
    model_request_act(r);
}

static void do_call_end(struct program *p)
{
    struct app_call *c = one_in(p, 8) ? pick_call_handle(p) : pick_call(p);
    struct app_source *s = one_in(p, 2) ? pick_source(p) : NULL;
    if (s)
        model_poke(s);
    else if (c)
        faults_call_cancel(c);
}

static void do_goaway(struct program *p)
{
    struct app_conn *c = pick_usable(p);
    if (c && !c->goaway)
        faults_goaway(c);
}

void program_restart(struct program *p, struct app_node *dead)
{
    if (!dead->dead || dead->replaced || p->n_nodes == NODES_ALL)
        return;
    poor_set(0, 0); // the context must open
    dead->replaced = true;
    lieni_sim_take_over(p->world, p->n_nodes, dead->index);
    faults_restart(p, dead);
    open_node(p, p->n_nodes++);
}

static void do_restart(struct program *p)
{
    program_restart(p, &p->nodes[draw(p, p->n_nodes)]);
}

static void do_jump(struct program *p)
{
    struct app_node *node = pick_node(p);
    if (node && one_in(p, 8))
        faults_jump(p, node);
}

static void do_stats(struct program *p)
{
    struct app_node *node = pick_node(p);
    lien_ctx_stats stats = {.size = sizeof stats};
    if (!node)
        return;
    int err = lien_ctx_stats_get(node->ctx, &stats);
    if (err || (stats.protocol_errors && !p->short_release && !p->liars))
        program_fail(p, "node %u: stats answer %s, %llu protocol errors between honest peers",
                     node->index, lien_errname(err), (unsigned long long)stats.protocol_errors);
}

static void with_conn(struct program *p, void (*action)(struct app_conn *))
{
    struct app_conn *c = pick_usable(p);
    if (!c)
        return;
    p->actor = c->node;
    action(c);
}

static bool few_conns(const struct program *p)
{
    unsigned open = 0;
    for (const struct app_conn *c = p->conns; c; c = c->next)
        open += model_conn_usable(c) && !c->lost;
    return open < 2 * p->n_nodes;
}

// The calls' half of what is done.
static void act_calls(struct program *p)
{
    uint64_t at = draw(p, 100);
    if (at < 42)
        with_conn(p, model_call);
    else if (at < 80)
        do_request(p);
    else if (at < 93)
        do_call_end(p);
    else if (at < 95)
        do_goaway(p);
    else if (at < 98)
        do_alloc(p);
    else if (one_in(p, 2))
        do_jump(p);
    else
        do_restart(p);
}

static void act(struct program *p)
{
    uint64_t at = draw(p, 100);
    if (at < 5 || (at < 20 && few_conns(p))) {
        do_connect(p);
    } else if (at < 24) {
        with_conn(p, model_grant);
    } else if (at < 46) {
        with_conn(p, model_read);
    } else if (at < 60) {
        with_conn(p, model_send);
    } else if (at < 68) {
        struct app_msg *m = pick_msg(p);
        if (m)
            model_msg_free(m);
    } else if (at < 73) {
        do_revoke(p);
    } else if (at < 78) {
        do_cancel(p);
    } else if (at < 81) {
        struct app_read *r = pick_read(p);
        if (r && r->op.done && one_in(p, 4))
            model_read_close(r);
    } else if (at < 85) {
        with_conn(p, model_release);
    } else if (at < 89) {
        do_close(p);
    } else if (at < 91) {
        do_mem(p);
    } else if (at < 93) {
        faults_break_any(p);
    } else {
        if (one_in(p, 6))
            do_listener(p);
        else
            do_stats(p);
    }
}

static void step(struct program *p)
{
    if (p->skip && p->skip[p->step])
        return;
    lieni_sim_reseed(p->world, p->step);
    if (p->trace)
        printf("-- step %u\n", p->step);
    uint64_t now = lieni_sim_now(p->world);
    if (p->poor && one_in(p, 2))
        poor_set(1 + (unsigned)draw(p, 16), 1 + (unsigned)draw(p, 3));
    if (one_in(p, 2))
        act_calls(p);
    else
        act(p);
    p->actor = NULL;
    poor_set(0, 0);
    if (p->step % 16 == 0)
        model_check_deadlines(p, false);
    if ((p->calm ? one_in(p, 12) : !one_in(p, 3)) && !p->no_wishes)
        faults_wish(p);
    if (one_in(p, 3))
        return; // two actions at one moment
    if (one_in(p, 40))
        run_world(p, now + MS * draw(p, 1500), UINT32_MAX);
    else if (one_in(p, 3))
        run_world(p, now + MS * draw(p, 4), UINT32_MAX);
    else
        run_world(p, UINT64_MAX, (unsigned)draw(p, 12));
}

// -- Setup -------------------------------------------------------------------------------------------------------------------------

// Each fault is on in one of so many worlds, so that others are seen undisturbed; where it is on, it is frequent.
#define IN(kind)    (1u << (kind))
#define ALL_CLASSES (IN(LIENI_SIM_CLASSES) - 1)
static const struct knob {
    const char *name;
    size_t offset; // of its probability in the config
    uint64_t worlds;
    uint32_t per_million; // at most
    unsigned classes;
} knobs[] = {
#define KNOB(field) #field, offsetof(struct lieni_sim_config, p_##field)
    {KNOB(slow), 2, 600000, ALL_CLASSES},
    {KNOB(eagain), 3, 200000, ALL_CLASSES},
    {KNOB(ebusy), 2, 800000, ALL_CLASSES}, // so that a hundred tries always do
    {KNOB(withhold), 2, 800000, ALL_CLASSES & ~IN(LIENI_SIM_TCP)},
    {KNOB(spurious), 2, 900000, ALL_CLASSES},
    {KNOB(unproven), 2, 600000, IN(LIENI_SIM_VERBS)},
    {KNOB(break), 4, 8000, ALL_CLASSES},
    {KNOB(connect_fail), 3, 200000, ALL_CLASSES},
    {KNOB(register_fail), 8, 50000, ALL_CLASSES},
    {KNOB(reorder), 2, 800000, ALL_CLASSES},
    {KNOB(lie), 2, 900000, IN(LIENI_SIM_SOCKETS) | IN(LIENI_SIM_OWN_ONLY)},
    {KNOB(stall), 8, 60000, ALL_CLASSES},
    {KNOB(lost), 8, 20000, ALL_CLASSES},
    {KNOB(hollow), 24, 500000, ALL_CLASSES},
    {KNOB(false_send), 16, 20000, ALL_CLASSES},
    {KNOB(false_recv), 12, 20000, ALL_CLASSES},
    {KNOB(garbage), 20, 60000, ALL_CLASSES},
    // Over tcp the entries of a close are true.
    {KNOB(made_up), 2, 900000, ALL_CLASSES & ~IN(LIENI_SIM_TCP)},
};
#define N_KNOBS (sizeof knobs / sizeof knobs[0])

_Static_assert(N_KNOBS < 63, "a bit each");
#define KNOB_WITHHOLD 3 // in that table

const char *program_knob(unsigned i)
{
    return i < N_KNOBS ? knobs[i].name : i == N_KNOBS ? "wishes" : NULL;
}

static void draw_faults(struct program *p)
{
    struct lieni_sim_world *w = p->world;
    struct lieni_sim_config *c = lieni_sim_world_config(w);
    for (unsigned i = 0; i < N_KNOBS; i++) {
        const struct knob *k = &knobs[i];
        bool on = lieni_sim_draw(w, k->worlds) == 0;
        uint32_t value = (uint32_t)lieni_sim_draw(w, k->per_million);
        on = on && (k->classes & IN(p->kind)) && !(p->without >> i & 1);
        memcpy((char *)c + k->offset, &(uint32_t){on ? value : 0}, sizeof value);
    }
    p->liars = c->p_hollow || c->p_false_send || c->p_false_recv || c->p_garbage;
    c->writes_only = p->liars;
    c->starved_fails = !p->liars; // credits may be lies
    if (p->no_entries && !(p->without >> KNOB_WITHHOLD & 1))
        c->p_withhold = 1000000;
    p->no_wishes = p->without >> N_KNOBS & 1;
    c->slow_factor = 20 + (unsigned)lieni_sim_draw(w, 300);
    c->latency.max = 10000 + lieni_sim_draw(w, 400000);
    c->chunk.min = 64 + lieni_sim_draw(w, 2048);
    c->chunk.max = c->chunk.min + lieni_sim_draw(w, 16384);
    c->completion.max = 2000 + lieni_sim_draw(w, 200000);
}

static void log_line(const lien_log_line *line, void *arg)
{
    const struct app_node *node = arg;
    if (node->p->trace == TRACE_ALL)
        printf("%12llu node %u  log level %d conn %llx op %llu %s: %s\n",
               (unsigned long long)lieni_sim_now(node->p->world), node->index, (int)line->level,
               (unsigned long long)line->conn, (unsigned long long)line->op,
               lien_errname(line->code), line->text);
}

static void open_node(struct program *p, unsigned i)
{
    static const char *const small[] = {"heartbeat_ms=50",
                                        "dead_ms=250",
                                        "read_watchdog_ms=400",
                                        "drain_ms=20",
                                        "linger_ms=60",
                                        "connect_ms=300",
                                        "frame_max=4096",
                                        "message_credits=6",
                                        "control_credits=8",
                                        "read_piece=4096",
                                        "log_level=debug",
                                        "reads_per_nic=6",
                                        "grants_conn=32",
                                        "half_open_max=8",
                                        "call_credits=5",
                                        "requests_max=40",
                                        NULL};
    static const char *const usual[] = {"dead_ms=1000", "heartbeat_ms=200", "log_level=debug",
                                        NULL};
    struct app_node *node = &p->nodes[i];
    lien_ctx_opts opts;
    lien_pool_opts pool;
    node->p = p;
    node->index = i;
    lien_ctx_opts_init(&opts);
    opts.flags = LIEN_APP_DRIVEN | LIEN_KEEP_NOFILE;
    const char *settings[32];
    const char *const *from = one_in(p, 4) ? usual : small;
    unsigned n = 0;
    while (from[n] && n < 24) {
        settings[n] = from[n];
        n++;
    }
    if (p->tight) {
        settings[n++] = "quarantine_peer_bytes=16384";
        settings[n++] = "quarantine_total_bytes=65536";
        settings[n++] = "held_conn_bytes=100000";
        settings[n++] = "held_total_bytes=300000";
    }
    settings[n++] = p->short_release ? "release_ms=100" : "release_ms=20000";
    settings[n] = NULL;
    opts.settings = settings;
    opts.log = log_line;
    opts.log_arg = node;
    int err = lieni_ctx_open_platform(&opts, lieni_sim_node_platform(p->world, i), &node->ctx);
    if (err) {
        program_fail(p, "opening a context answers %s", lien_errname(err));
        return;
    }
    lien_pool_opts_init(&pool);
    pool.limit = p->small_pools ? 768u << 10 : 64u << 20;
    pool.reuse = p->proven ? LIEN_REUSE_PROVEN : LIEN_REUSE_RELEASE;
    pool.flags = p->zero ? LIEN_ZERO : 0;
    calls_service(node);
    err = lien_pool_open(node->ctx, &pool, &node->pool);
    if (err)
        program_fail(p, "opening a pool answers %s", lien_errname(err));
    else
        model_listen(node);
}

static void trace_line(void *self, const char *line)
{
    (void)self;
    puts(line);
}

static bool setup(struct program *p)
{
    struct lieni_sim_config config;
    lieni_sim_config_init(&config, p->kind);
    config.nodes = NODES_ALL;
    p->world = lieni_sim_world_new(p->seed, &config);
    if (!p->world) {
        snprintf(p->failure, sizeof p->failure, "no world");
        return false;
    }
    if (p->trace == TRACE_ALL)
        lieni_sim_set_trace(p->world, trace_line, p);
    lieni_sim_set_fault_hook(p->world, faults_hook, p);
    lieni_sim_set_address_hook(p->world, guarded_address, p);
    poor_watch(faults_nomem, p);
    p->n_nodes = !one_in(p, 3) ? NODES_MAX : 2 + (unsigned)draw(p, NODES_MAX - 1);
    draw_faults(p);
    p->short_release = one_in(p, 5);
    p->calm = one_in(p, 4);
    p->poor = one_in(p, 5);
    p->tight = one_in(p, 6);
    p->small_pools = one_in(p, 6);
    p->pool_of_conn = one_in(p, 3);
    p->revocable = one_in(p, 4);
    p->proven = one_in(p, 5);
    p->zero = one_in(p, 5);
    for (unsigned i = 0; i < p->n_nodes && !p->failed; i++)
        open_node(p, i);
    return !p->failed;
}

// -- The end -----------------------------------------------------------------------------------------------------------------------

static void close_everything(struct program *p)
{
    p->stopping = true;
    faults_hoard_end(p);
    for (unsigned i = 0; i < p->n_nodes; i++) {
        struct app_node *node = &p->nodes[i];
        if (node->frozen && !node->dead)
            lieni_sim_thaw_node(p->world, i);
        node->frozen = node->dead = false; // dead ones are only closed, their NICs stay dead
        model_listener_close(node);
    }
    for (struct app_request *r = p->requests; r; r = r->next)
        if (r->request && one_in(p, 2))
            model_request_drop(r);
    for (struct app_conn *c = p->conns; c; c = c->next) {
        faults_close(c);
        if (one_in(p, 3))
            run_world(p, UINT64_MAX, (unsigned)draw(p, 20));
    }
    for (struct app_grant *g = p->grants; g; g = g->next)
        model_grant_close(g);
    for (struct app_read *r = p->reads; r; r = r->next)
        model_read_close(r);
    while (p->msgs)
        model_msg_free(p->msgs);
    for (struct app_call *c = p->calls; c; c = c->next)
        model_call_close(c);
    for (struct app_mem *m = p->mems; m; m = m->next)
        model_mem_unregister(m);
}

// Connections that were accepted after the closing began are closed too, and what was kept is freed.
static void close_late(struct program *p)
{
    for (struct app_request *r = p->requests; r; r = r->next)
        if (r->request)
            model_request_drop(r);
    for (struct app_source *s = p->sources; s; s = s->next)
        if (!s->borrows)
            model_source_free(s);
    for (struct app_alloc *a = p->allocs; a; a = a->next)
        model_alloc_end(a);
    for (struct app_conn *c = p->conns; c; c = c->next)
        model_conn_close(c);
    while (p->msgs)
        model_msg_free(p->msgs);
}

static void check_levels(struct program *p, struct app_node *node)
{
    lien_ctx_stats s = {.size = sizeof s};
    int err = lien_ctx_stats_get(node->ctx, &s);
    if (err || s.conns_open || s.grants_live || s.grants_bytes)
        program_fail(p, "node %u at the end: %s, %llu connections, %llu grants of %llu bytes",
                     node->index, lien_errname(err), (unsigned long long)s.conns_open,
                     (unsigned long long)s.grants_live, (unsigned long long)s.grants_bytes);
    if (s.protocol_errors && !p->short_release && !p->liars)
        program_fail(p, "node %u: %llu protocol errors between honest peers", node->index,
                     (unsigned long long)s.protocol_errors);
    uint64_t lost = lieni_mem_bytes_lost(node->ctx->mem);
    if (s.pool_bytes > lost)
        program_fail(p, "node %u at the end: %llu bytes of buffers leaked, %llu are quarantined",
                     node->index, (unsigned long long)s.pool_bytes, (unsigned long long)lost);
}

static void close_ctx(struct program *p, struct app_node *node)
{
    uint64_t limit = lieni_sim_now(p->world) + 60000 * MS;
    int err = lien_pool_close(&node->pool);
    // Where waiting would never end it answers so, and goes on as the world does.
    while (!err && (err = lien_ctx_close(&node->ctx)) == LIEN_EDEADLK && !p->failed &&
           lieni_sim_now(p->world) < limit) {
        run_world(p, lieni_sim_now(p->world) + 10 * MS, UINT32_MAX);
        lieni_sim_advance(p->world, lieni_sim_now(p->world) + 10 * MS);
        err = 0;
    }
    if (err || node->ctx)
        program_fail(p, "node %u: closing answers %s", node->index, lien_errname(err));
}

// Also those that nobody has a handle of, whose destruction may be refused for long.
static bool conns_gone(const struct program *p)
{
    for (unsigned i = 0; i < p->n_nodes; i++)
        if (!lieni_list_empty(&p->nodes[i].ctx->conns))
            return false;
    return true;
}

static void finish(struct program *p)
{
    p->tally.allocs_failed = poor_failed();
    lieni_sim_reseed(p->world, UINT32_MAX);
    if (p->trace)
        puts("-- the end");
    close_everything(p);
    close_late(p);
    uint64_t limit = lieni_sim_now(p->world) + 120000 * MS;
    while (!p->failed && !(model_quiet(p) && conns_gone(p)) && lieni_sim_now(p->world) < limit) {
        run_world(p, lieni_sim_now(p->world) + 100 * MS, UINT32_MAX);
        lieni_sim_advance(p->world, lieni_sim_now(p->world) + MS);
        close_late(p);
    }
    close_late(p);
    model_check_end(p, false);
    // A while longer: nothing may come any more, and late writes still may.
    run_world(p, lieni_sim_now(p->world) + 20000 * MS, UINT32_MAX);
    for (unsigned i = 0; i < p->n_nodes && !p->failed; i++)
        check_levels(p, &p->nodes[i]);
    for (unsigned i = 0; i < p->n_nodes && !p->failed; i++)
        close_ctx(p, &p->nodes[i]);
    model_check_end(p, true);
    if (!p->failed)
        lieni_sim_check_quiet(p->world);
    lieni_sim_advance(p->world, lieni_sim_now(p->world) + 20000 * MS);
    check_world(p);
}

static void count_reads(struct program *p)
{
    struct lieni_sim_counts counts;
    lieni_sim_counts_get(p->world, &counts);
    p->tally.reads_posted = counts.reads;
    p->tally.read_steps = counts.read_steps;
}

bool program_run(struct program *p)
{
    if (setup(p)) {
        for (p->step = 0; p->step < p->steps && !p->failed; p->step++)
            step(p);
        if (!p->failed)
            finish(p);
        count_reads(p);
    }
    if (p->failed)
        return false; // what hangs together is left as it is: the process ends
    lieni_sim_world_free(p->world);
    model_free(p);
    return true;
}
