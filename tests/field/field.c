// SPDX-License-Identifier: Apache-2.0
//
// See field.h: the bench, and the main of all reports.

#include "tests/field/field.h"

#include <sys/mman.h>
#include <unistd.h>

#include "core/conn.h"

#define OWN_SETTINGS 4

// Patient: the tests stop things on purpose, and machines are slow.
static const char *const common[OWN_SETTINGS] = {"heartbeat_ms=1000", "dead_ms=60000",
                                                 "call_ms=120000", "dispatch_threads=4"};

static void on_lost(lien_conn *conn, int status, void *arg)
{
    struct field *f = arg;
    (void)conn;
    f->lost_status = status;
    f->n_lost++;
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    CHECK_EQ(status, 0);
    ((struct field *)arg)->n_closed++;
}

static bool is_closed(void *field)
{
    return ((struct field *)field)->n_closed > 0;
}

void field_shut(struct field *f)
{
    f->closing = true;
    CHECK_EQ(lien_conn_close(&f->conn), 0);
}

static void start_peer(struct field *f)
{
    char ports[32];
    uint16_t port = fault_free_port();
    snprintf(ports, sizeof ports, "fabric_ports=%u-%u", port, port);
    const char *settings[] = {common[0], common[1], common[2], common[3], NULL, NULL, NULL, NULL};
    if (f->relayed) {
        settings[OWN_SETTINGS] = ports;
        settings[OWN_SETTINGS + 1] = "advertise=127.0.0.2";
        settings[OWN_SETTINGS + 2] = "read_watchdog_ms=60000";
    }
    if (f->relayed)
        fault_relay_start(&f->relay, port);
    fault_peer_start(&f->peer, settings);
}

void field_open(struct field *f, unsigned flags, const lien_service *service,
                const char *const *settings)
{
    const char *all[16] = {common[0], common[1], common[2], common[3], "read_watchdog_ms=60000"};
    memset(f, 0, sizeof *f);
    f->relayed = (flags & FIELD_RELAYED) != 0;
    for (unsigned i = 0; settings && settings[i]; i++) {
        CHECK(OWN_SETTINGS + 1 + i < 15);
        all[OWN_SETTINGS + 1 + i] = settings[i];
    }
    start_peer(f);
    fault_side_open(&f->side, all, 0);
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.service = service;
    opts.arg = f;
    opts.on_lost = on_lost;
    opts.on_closed = on_closed;
    f->conn = fault_connect_with(&f->side, &f->peer, &opts);
    fault_peer_levels(&f->peer, &f->peer_before);
    fault_stats(&f->side, &f->before);
}

static bool peer_is_empty(void *arg)
{
    struct fault_levels l;
    fault_peer_levels(arg, &l);
    return l.grants == 0 && l.conns == 0;
}

void field_close(struct field *f)
{
    lien_ctx_stats stats;
    struct fault_levels l;
    if (f->conn)
        CHECK_EQ(lien_conn_close_wait(&f->conn, 30000), 0);
    CHECK(!f->closing || fault_until(is_closed, f, 60000));
    if (f->peer.pid) {
        CHECK(fault_until(peer_is_empty, &f->peer, 30000));
        fault_peer_levels(&f->peer, &l);
        CHECK_EQ(l.quarantined, 0);
        fault_peer_end(&f->peer);
    }
    if (f->relayed)
        fault_relay_stop(&f->relay);
    fault_stats(&f->side, &stats);
    CHECK_EQ(stats.grants_live, 0);
    CHECK_EQ(stats.grants_bytes, 0);
    CHECK_EQ(stats.quarantined_total, 0);
    CHECK_EQ(stats.pool_bytes, 0);
    fault_side_close(&f->side);
}

uint32_t field_reads_outstanding(struct field *f)
{
    lien_conn_info info;
    fault_info(f->conn, &info);
    return info.reads_outstanding;
}

uint32_t field_hold_control(struct field *f)
{
    lieni_ctx_lock(f->side.ctx);
    struct lieni_link *link = &f->conn->link;
    uint32_t kept = link->control_left > 1 ? link->control_left - 1 : 0;
    link->control_left -= kept;
    lieni_ctx_unlock(f->side.ctx);
    return kept;
}

void field_give_control(struct field *f, uint32_t kept)
{
    lieni_ctx_lock(f->side.ctx);
    f->conn->link.control_left += kept;
    lieni_link_pump(f->conn);
    lieni_ctx_unlock(f->side.ctx);
}

bool field_is_lost(void *field)
{
    return ((struct field *)field)->n_lost > 0;
}

void field_lose(struct field *f)
{
    CHECK(fault_until(field_is_lost, f, 60000));
    CHECK_EQ(f->n_lost, 1);
    CHECK_EQ(lien_conn_close_wait(&f->conn, 30000), 0);
}

// -- Calls -------------------------------------------------------------------------------------------------------------------------

lien_call_opts field_opts(void)
{
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    return opts;
}

static void on_done(void *arg, int status, lien_msg *reply)
{
    struct field_call *c = arg;
    const void *data;
    if (status == 0 && c->look)
        c->looked = c->look(c->look_arg);
    if (reply) {
        CHECK_EQ(lien_msg_head(reply, &data, &c->reply_len), 0);
        memcpy(c->reply, data, c->reply_len < sizeof c->reply ? c->reply_len : sizeof c->reply);
        lien_msg_free(&reply);
    }
    c->status = status;
    c->done_us = fault_us();
    c->in_order = c->released == 0;
    c->done++;
}

// READs that were posted and whose end is not known: in the test's ctx only the calls under test READ.
static int64_t pieces_running(struct field *f)
{
    int64_t n = 0;
    lien_ctx *ctx = f->side.ctx;
    lieni_ctx_lock(ctx);
    for (struct lieni_node *p = ctx->nics.next; p != &ctx->nics; p = p->next)
        n += lieni_container(p, struct lieni_nic, node)->reads_inflight;
    lieni_ctx_unlock(ctx);
    return n;
}

static void on_released(void *arg, int status)
{
    struct field_call *c = arg;
    c->released_status = status;
    c->pieces_at_released = pieces_running(c->field);
    c->released_us = fault_us();
    c->in_order = c->in_order && c->done == 1;
    c->released++;
}

void field_start(struct field *f, struct field_call *c, const char *method, const void *args,
                 size_t len, lien_call_opts *opts)
{
    int rc;
    c->field = f;
    opts->on_done = on_done;
    opts->on_released = on_released;
    opts->arg = c;
    c->begin_us = fault_us();
    while ((rc = lien_call_start(f->conn, method, args, len, opts, &c->call)) == LIEN_EAGAIN)
        fault_sleep(1);
    CHECK_EQ(rc, 0);
}

bool field_is_done(void *call)
{
    return ((struct field_call *)call)->done > 0;
}

bool field_is_released(void *call)
{
    return ((struct field_call *)call)->released > 0;
}

int field_over(struct field_call *c)
{
    CHECK(fault_until(field_is_released, c, 120000));
    CHECK(c->done == 1 && c->released == 1 && c->in_order);
    CHECK_EQ(c->released_status, 0);
    if (c->call)
        lien_call_close(&c->call);
    CHECK(c->done == 1 && c->released == 1);
    return c->status;
}

void field_ask(struct field *f, const char *method, const void *args, size_t len, void *reply,
               size_t reply_len)
{
    lien_msg *msg = NULL;
    const void *data = NULL;
    size_t got = 0;
    CHECK_EQ(lien_call_wait(f->conn, method, args, len, NULL, &msg), 0);
    if (msg)
        CHECK_EQ(lien_msg_head(msg, &data, &got), 0);
    CHECK_EQ(got, reply_len);
    if (got > 0)
        memcpy(reply, data, got);
    lien_msg_free(&msg);
}

// -- Memory ------------------------------------------------------------------------------------------------------------------------

lien_buf *field_buf(struct field *f, size_t len, uint64_t seed)
{
    lien_buf *buf = NULL;
    void *data = NULL;
    CHECK_EQ(lien_pool_alloc(f->side.pool, len, &buf), 0);
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    fault_fill(data, len, seed);
    return buf;
}

lien_space *field_space(struct field *f, size_t len, uint64_t seed)
{
    lien_buf *buf = field_buf(f, len, seed);
    lien_space *space = NULL;
    CHECK_EQ(lien_space_open(f->side.ctx, &buf, 1, &space), 0);
    return space;
}

lien_buf *field_take(lien_space **space)
{
    lien_buf *buf = NULL;
    CHECK_EQ(lien_space_take(*space, &buf, 1), 0);
    lien_space_free(space);
    return buf;
}

bool field_buf_is(const lien_buf *buf, uint64_t seed)
{
    const void *data = NULL;
    CHECK_EQ(lien_buf_data(buf, &data), 0);
    return fault_is(data, lien_buf_len(buf), seed);
}

void *field_repeated(size_t total, uint64_t seed)
{
    int fd = memfd_create("repeated", MFD_CLOEXEC);
    CHECK(fd >= 0 && total % FIELD_CHUNK == 0);
    CHECK_EQ(ftruncate(fd, FIELD_CHUNK), 0);
    uint8_t *at = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    for (size_t i = 0; i < total; i += FIELD_CHUNK)
        CHECK(mmap(at + i, FIELD_CHUNK, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) == at + i);
    close(fd);
    fault_fill(at, FIELD_CHUNK, seed);
    return at;
}

// -- Main --------------------------------------------------------------------------------------------------------------------------

static const struct {
    const char *name;
    void (*run)(void);
} reports[] = {
#define ROW(name) {#name, name},
    FIELD_REPORTS(ROW)
#undef ROW
};

static void test(int argc, char **argv)
{
    unsigned n = 0;
    if (argc > 2 && strcmp(argv[1], "--case") == 0) {
        CHECK(field_case(argv[2]));
        return;
    }
    for (unsigned i = 0; i < sizeof reports / sizeof reports[0]; i++) {
        if (argc > 1 && strcmp(argv[1], reports[i].name) != 0)
            continue;
        reports[i].run();
        n++;
    }
    if (n == 0)
        fprintf(stderr, "no report is named %s\n", argc > 1 ? argv[1] : "so");
    CHECK(n > 0);
}

int main(int argc, char **argv)
{
    fault_peer_serves(&field_peer_service);
    return fault_main(argc, argv, test);
}
