// SPDX-License-Identifier: Apache-2.0
//
// test_verbs_end PART: the end of a connection with READs outstanding, through the whole library over an RDMA device: what comes back, and what goes to quarantine when the proof is withheld [R11, R12, R17].
// The peer is a process of its own, which is killed. The device's completions are withheld here (it has none to withhold of its own accord: it flushes at once), and so, part by part, is the proof: the kernel's
// table is hidden, or the queue pair really stays, since its destruction fails and librdmacm drops that result.

#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>

#include <infiniband/verbs.h>

#include "core/ctx.h"
#include "provider/verbs/internal.h"
#include "tests/fault/fault.h"

#define DEADLINE_MS 300u

static const char *const settings[] = {"heartbeat_ms=500", "dead_ms=20000", NULL};

// -- The device, and what is withheld ----------------------------------------------------------------------------------------------

static _Atomic bool deaf;       // entries are read and not told
static _Atomic unsigned unsaid; // how many
static _Atomic bool keep;       // queue pairs are not destroyed
static _Atomic unsigned kept;
static _Atomic bool hide_then; // with the destruction of a queue pair the table hides

// Where librdmacm's calls arrive: this program's symbols come first.
__attribute__((visibility("default"))) int ibv_destroy_qp(struct ibv_qp *qp)
{
    int (*real)(struct ibv_qp *);
    void *symbol = dlsym(RTLD_NEXT, "ibv_destroy_qp");
    CHECK(symbol);
    memcpy(&real, &symbol, sizeof real);
    if (hide_then)
        atomic_store(&lieni_verbs_hide_table, true);
    if (!keep)
        return real(qp);
    kept++;
    return EBUSY;
}

static unsigned deaf_poll(struct lieni_prov *prov, struct lieni_event *events, unsigned max)
{
    unsigned n = lieni_provider_verbs.poll(prov, events, max), left = 0;
    for (unsigned i = 0; i < n; i++) {
        if (deaf && events[i].kind == LIENI_EV_ENTRY)
            unsaid++;
        else
            events[left++] = events[i];
    }
    return left;
}

static void open_side(struct fault_side *side)
{
    static struct lieni_provider wrapped;
    static const struct lieni_provider *providers[2];
    static struct lieni_platform platform;
    lien_ctx_opts opts;
    memcpy(&wrapped, &lieni_provider_verbs, sizeof wrapped);
    wrapped.poll = deaf_poll;
    providers[0] = &wrapped;
    platform = *lieni_platform_real();
    platform.providers = providers;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    opts.log = fault_log_line;
    CHECK_EQ(lieni_ctx_open_platform(&opts, &platform, &side->ctx), 0);
    CHECK_EQ(lien_pool_open(side->ctx, NULL, &side->pool), 0);
}

// -- One connection ----------------------------------------------------------------------------------------------------------------

struct end {
    struct fault_side side;
    struct fault_peer peer;
    lien_conn *conn;
    lien_space *space;
    const void *data; // of the space's buffer
    struct fault_read read;
    uint64_t killed_us;
    _Atomic int closed; // 1: not yet
};

static void on_closed(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    ((struct end *)arg)->closed = status;
}

static bool is_closed(void *arg)
{
    return ((struct end *)arg)->closed != 1;
}

static void begin(struct end *e)
{
    lien_conn_opts opts;
    lien_conn_info info;
    lien_token token;
    lien_buf *buf = NULL;
    void *data = NULL;
    memset(e, 0, sizeof *e);
    e->closed = 1;
    open_side(&e->side);
    fault_peer_start(&e->peer, settings);
    lien_conn_opts_init(&opts);
    opts.arg = e;
    opts.on_closed = on_closed;
    e->conn = fault_connect_with(&e->side, &e->peer, &opts);
    fault_info(e->conn, &info);
    CHECK_EQ(strcmp(info.provider, "verbs"), 0);
    fault_ask_grant(e->conn, MIB, &token);
    CHECK_EQ(lien_pool_alloc(e->side.pool, MIB, &buf), 0);
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    e->data = data;
    CHECK_EQ(lien_space_open(e->side.ctx, &buf, 1, &e->space), 0);
    deaf = true;
    CHECK_EQ(fault_read_start(&e->read, e->conn, &token, e->space, DEADLINE_MS, 0), 0);
    CHECK(fault_until(fault_read_is_done, &e->read, 60000));
    CHECK_EQ(e->read.status, LIEN_ETIMEDOUT);
    CHECK_EQ(e->read.released, 0); // a deadline releases nothing
    CHECK_EQ(lien_space_buf(e->space, 0, &buf), LIEN_EBUSY);
}

// Kills the peer; the connection's teardown ends.
static void kill_peer(struct end *e)
{
    e->killed_us = fault_us();
    fault_peer_kill(&e->peer);
    CHECK(fault_until(fault_read_is_released, &e->read, 60000));
    CHECK(e->read.done == 1 && e->read.released == 1 && e->read.in_order);
    CHECK_EQ(lien_conn_close(&e->conn), 0);
    CHECK(fault_until(is_closed, e, 60000));
    CHECK(unsaid > 0);
    deaf = false;
}

static uint64_t quarantined(const struct end *e)
{
    lien_ctx_stats stats;
    fault_stats(&e->side, &stats);
    return stats.quarantined_bytes;
}

// In quarantine: told, counted, not handed out, and mapped, even after the ctx.
static void check_quarantine(struct end *e)
{
    lien_buf *buf = NULL;
    unsigned char there;
    CHECK_EQ(e->read.released_status, LIEN_EQUARANTINED);
    CHECK_EQ(e->closed, LIEN_EQUARANTINED);
    CHECK(quarantined(e) >= MIB);
    CHECK_EQ(lien_space_wait(e->space, 0), LIEN_EQUARANTINED);
    CHECK_EQ(lien_space_buf(e->space, 0, &buf), LIEN_EQUARANTINED);
    CHECK_EQ(lien_space_take(e->space, &buf, 1), LIEN_EQUARANTINED);
    CHECK(fault_log_has("teardown ended without proof"));
    lien_space_free(&e->space);
    CHECK(quarantined(e) >= MIB);
    CHECK_EQ(mincore((void *)((uintptr_t)e->data & ~(uintptr_t)4095), 4096, &there), 0);
    printf("quarantined %.1f ms after the kill: %llu bytes, %u entries untold\n",
           (double)(e->read.released_us - e->killed_us) / 1e3, (unsigned long long)quarantined(e),
           unsaid);
}

// Whoever comes next has a connection that works, and its memory back.
static void check_next(struct end *e)
{
    struct fault_peer peer;
    struct fault_read r = {0};
    lien_token token;
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&e->side, &peer);
    fault_ask_grant(conn, MIB, &token);
    lien_space *space = fault_space(&e->side, MIB);
    lien_buf *buf = NULL;
    const void *data = NULL;
    CHECK_EQ(fault_read_start(&r, conn, &token, space, LIEN_FOREVER, LIEN_RELEASE), 0);
    CHECK(fault_until(fault_read_is_released, &r, 60000));
    CHECK_EQ(r.status, 0);
    CHECK_EQ(r.released_status, 0);
    CHECK(fault_space_is_pattern(space));
    CHECK_EQ(lien_space_buf(space, 0, &buf), 0);
    CHECK_EQ(lien_buf_data(buf, &data), 0);
    CHECK(e->closed == 0 || data != e->data);
    lien_read_close(&r.read);
    lien_space_free(&space);
    CHECK_EQ(lien_conn_close_wait(&conn, 60000), 0);
    fault_peer_end(&peer);
}

static void finish(struct end *e)
{
    lien_read_close(&e->read.read);
    if (e->space)
        lien_space_free(&e->space);
    CHECK_EQ(lien_pool_close(&e->side.pool), 0);
    CHECK_EQ(lien_ctx_close(&e->side.ctx), 0);
}

// -- Parts -------------------------------------------------------------------------------------------------------------------------

// Without any completion, and with the proof: all is home.
static void proved(void)
{
    struct end e;
    begin(&e);
    kill_peer(&e);
    CHECK_EQ(e.read.released_status, 0);
    CHECK_EQ(e.closed, 0);
    CHECK_EQ(quarantined(&e), 0);
    lien_buf *buf = NULL;
    void *data = NULL;
    CHECK_EQ(lien_space_take(e.space, &buf, 1), 0);
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    lien_buf_free(&buf);
    printf("home %.1f ms after the kill by proof alone, %u entries untold\n",
           (double)(e.read.released_us - e.killed_us) / 1e3, unsaid);
    check_next(&e);
    finish(&e);
}

// The table is hidden when it is asked at the end.
static void withheld(void)
{
    struct end e;
    begin(&e);
    atomic_store(&lieni_verbs_hide_table, true);
    kill_peer(&e);
    atomic_store(&lieni_verbs_hide_table, false);
    check_quarantine(&e);
    CHECK(fault_log_has("before its end"));
    check_next(&e);
    CHECK(quarantined(&e) >= MIB); // no domain's end proves
    finish(&e);
}

// It is hidden between the two questions, before and after.
static void vanished(void)
{
    struct end e;
    begin(&e);
    hide_then = true;
    kill_peer(&e);
    hide_then = false;
    CHECK(atomic_exchange(&lieni_verbs_hide_table, false));
    check_quarantine(&e);
    CHECK(fault_log_has("does not tell whether"));
    check_next(&e);
    finish(&e);
}

// It was hidden when the queue pair was made: that nothing is listed at the end then proves nothing.
static void unseen(void)
{
    struct end e;
    atomic_store(&lieni_verbs_hide_table, true);
    begin(&e);
    atomic_store(&lieni_verbs_hide_table, false);
    kill_peer(&e);
    check_quarantine(&e);
    check_next(&e);
    finish(&e);
}

// fi_close says 0, and the queue pair is still there.
static void undestroyed(void)
{
    struct end e;
    begin(&e);
    keep = true;
    kill_peer(&e);
    keep = false;
    CHECK(kept > 0);
    check_quarantine(&e);
    CHECK(fault_log_has("still there after its end"));
    check_next(&e);
    finish(&e);
}

static void test(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"proved", proved},
                 {"withheld", withheld},
                 {"vanished", vanished},
                 {"unseen", unseen},
                 {"undestroyed", undestroyed}};
    CHECK_EQ(argc, 2);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strcmp(argv[1], parts[i].name) != 0)
            continue;
        parts[i].run();
        return;
    }
    fprintf(stderr, "no part %s\n", argv[1]);
    exit(2);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
