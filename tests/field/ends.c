// SPDX-License-Identifier: Apache-2.0
//
// Connections that end under memory: a source that may still be read, a handler at work, READs outstanding. Reports 3, 4, 6.

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

#include "core/conn.h"
#include "tests/field/field.h"

// -- Requests of this side ---------------------------------------------------------------------------------------------------------

static _Atomic(lien_request *) at_work; // "work": its handler has it

static void work(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    at_work = request;
}

static const lien_method methods[] = {{.name = "work", .handle = work}};
static const lien_service service = {.methods = methods, .n_methods = 1};

static bool is_at_work(void *arg)
{
    (void)arg;
    return at_work != NULL;
}

// The other process calls us.
static lien_request *rung(struct field *f, uint64_t seed, size_t len, size_t body_len)
{
    struct field_ring ring;
    memset(&ring, 0, sizeof ring);
    ring.source.seed = seed;
    ring.source.len = len;
    ring.body_len = body_len;
    strcpy(ring.method, "work");
    at_work = NULL;
    field_ask(f, "ring", &ring, sizeof ring, NULL, 0);
    CHECK(fault_until(is_at_work, NULL, 30000));
    return at_work;
}

struct transfer {
    _Atomic int done, released, status, released_status;
};

static void on_done(void *arg, int status)
{
    struct transfer *t = arg;
    t->status = status;
    t->done++;
}

static void on_released(void *arg, int status)
{
    struct transfer *t = arg;
    t->released_status = status;
    t->released++;
}

static bool is_released(void *arg)
{
    return ((struct transfer *)arg)->released > 0;
}

static void read_start(lien_request *request, lien_space *space, struct transfer *t)
{
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.on_done = on_done;
    opts.on_released = on_released;
    opts.arg = t;
    CHECK_EQ(lien_request_read(request, space, &opts), 0);
}

// -- 3: the source of a lost connection --------------------------------------------------------------------------------------------

static bool is_mapped(void *page)
{
    unsigned char there;
    return mincore(page, 4096, &there) == 0;
}

// Of a call that a stopped peer is about to read: the call's borrow ends, the memory is not unmapped nor unregistered while the endpoint is there.
static void source_stays(void)
{
    static const char *const settings[] = {"linger_ms=2000", NULL};
    struct field f;
    struct field_call c = {0};
    struct field_source s;
    lien_mem *mem = NULL;
    lien_pool *pool = NULL;
    lien_buf *bufs[2] = {NULL, NULL};
    void *page = NULL;
    field_open(&f, 0, NULL, settings);
    void *own = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    CHECK_EQ(lien_mem_register(f.side.ctx, own, MIB, NULL, &mem), 0);
    CHECK_EQ(lien_mem_buf(mem, 0, MIB, &bufs[0]), 0);
    CHECK_EQ(lien_pool_open(f.side.ctx, NULL, &pool), 0);
    CHECK_EQ(lien_pool_alloc(pool, MIB, &bufs[1]), 0);
    CHECK_EQ(lien_buf_mut(bufs[1], &page), 0);
    memset(&s, 0, sizeof s);
    s.wait = true;
    lien_call_opts opts = field_opts();
    opts.read = bufs;
    opts.n_read = 2;
    field_start(&f, &c, "read", &s, sizeof s, &opts);
    struct field_verdict v = {0};
    while (v.waiting == 0)
        field_ask(&f, "verdict", NULL, 0, &v, sizeof v);
    fault_peer_signal(&f.peer, SIGSTOP);
    field_shut(&f);
    CHECK_EQ(field_over(&c), LIEN_ECLOSED);
    for (unsigned i = 0; i < 2; i++) {
        void *data = NULL;
        CHECK_EQ(lien_buf_mut(bufs[i], &data), 0); // the borrow is over
        lien_buf_free(&bufs[i]);
    }
    CHECK_EQ(lien_pool_close(&pool), 0);
    CHECK_EQ(lien_mem_unregister_wait(&mem, 300), LIEN_ETIMEDOUT); // but the peer has its key
    CHECK(is_mapped(page));
    CHECK_EQ(lien_mem_unregister_wait(&mem, 30000), 0);
    for (unsigned i = 0; i < 500 && is_mapped(page); i++)
        fault_sleep(10);
    CHECK(!is_mapped(page)); // and then it does go
    munmap(own, MIB);
    fault_peer_kill(&f.peer);
    field_close(&f);
}

// All bytes of a read are here, and the peer dies before it could say that they are good.
static void nothing_is_believed(void)
{
    struct field f;
    struct transfer t = {0};
    field_open(&f, 0, &service, NULL);
    lien_request *request = rung(&f, 1, MIB, 0);
    lien_space *space = field_space(&f, MIB, 9);
    uint32_t kept = field_hold_control(&f);
    lien_ctx_stats before, now;
    fault_stats(&f.side, &before);
    read_start(request, space, &t);
    do {
        fault_sleep(1);
        fault_stats(&f.side, &now);
    } while (now.read_bytes - before.read_bytes < MIB);
    CHECK_EQ(t.done, 0);
    fault_peer_kill(&f.peer);
    CHECK(fault_until(is_released, &t, 60000));
    CHECK(t.done == 1 && t.released == 1 && t.status < 0);
    CHECK_EQ(t.released_status, 0);
    (void)kept; // the connection is gone
    lien_space_free(&space);
    CHECK(lien_request_cancelled(request));
    lien_request_drop(&request);
    field_lose(&f);
    field_close(&f);
}

void field_report_03_lost_source(void)
{
    source_stays();
    nothing_is_believed();
}

// -- 4: a session ends under its handler -------------------------------------------------------------------------------------------

void field_report_04_handler_keeps_buffers(void)
{
    for (unsigned i = 0; i < 4; i++) {
        struct field f;
        struct transfer t = {0};
        lien_ctx_stats stats;
        lien_pool *pool = NULL;
        lien_buf *buf = NULL;
        lien_space *space = NULL;
        field_open(&f, 0, &service, NULL);
        CHECK_EQ(lien_pool_open(f.side.ctx, NULL, &pool), 0);
        CHECK_EQ(lien_pool_alloc(pool, MIB, &buf), 0);
        CHECK_EQ(lien_space_open(f.side.ctx, &buf, 1, &space), 0);
        lien_request *request = rung(&f, 1, MIB, 300000);
        read_start(request, space, &t);
        CHECK(fault_until(is_released, &t, 30000));
        CHECK_EQ(t.status, 0);
        if (i % 2) {
            fault_peer_kill(&f.peer);
            field_lose(&f);
        } else {
            CHECK_EQ(lien_conn_close_wait(&f.conn, 30000), 0);
        }
        CHECK_EQ(lien_pool_close(&pool), 0);
        // The handler works on: all it has is there, as it was.
        CHECK(lien_request_cancelled(request));
        CHECK(fault_space_is(space, 1));
        CHECK(field_buf_is(lien_request_body(request), 2));
        CHECK_EQ(lien_space_buf(space, 0, &buf), 0);
        void *data = NULL;
        CHECK_EQ(lien_buf_mut(buf, &data), 0);
        fault_fill(data, MIB, 3);
        fault_stats(&f.side, &stats);
        CHECK(stats.pool_bytes >= MIB + 300000);
        CHECK(fault_space_is(space, 3));
        CHECK(field_buf_is(lien_request_body(request), 2));
        if (i < 2)
            CHECK_EQ(lien_request_reply(&request, 0, "late", 4), 0); // to nobody
        else
            lien_request_drop(&request);
        lien_space_free(&space);
        field_close(&f); // all of it is home
    }
}

// -- 6: endpoints destroyed with READs outstanding ---------------------------------------------------------------------------------

#define AT_ONCE 16u
#define EACH    MIB

// `kill`: by the peer's death; else by a close here.
static void destroyed_at_work(bool kill, unsigned after_ms)
{
    struct field f;
    struct fault_read r[AT_ONCE];
    lien_token token;
    lien_space *spaces[AT_ONCE];
    static const char *const settings[] = {"linger_ms=1000", NULL};
    memset(r, 0, sizeof r);
    field_open(&f, 0, NULL, settings);
    fault_ask_grant(f.conn, EACH, &token);
    for (unsigned i = 0; i < AT_ONCE; i++) {
        spaces[i] = field_space(&f, EACH, 9);
        CHECK_EQ(fault_read_start(&r[i], f.conn, &token, spaces[i], LIEN_FOREVER, 0), 0);
    }
    fault_sleep(after_ms);
    if (kill) {
        fault_peer_kill(&f.peer);
    } else {
        field_shut(&f);
    }
    for (unsigned i = 0; i < AT_ONCE; i++) {
        CHECK(fault_until(fault_read_is_released, &r[i], 30000));
        CHECK(r[i].done == 1 && r[i].released == 1 && r[i].in_order);
        CHECK_EQ(r[i].released_status, 0);
        CHECK(r[i].status == 0 || r[i].status == LIEN_ECLOSED || r[i].status == LIEN_EPEERLOST);
        CHECK(r[i].status != 0 || fault_space_is(spaces[i], 0));
        lien_buf *buf = field_take(&spaces[i]);
        void *data = NULL;
        CHECK_EQ(lien_buf_mut(buf, &data), 0);
        fault_fill(data, EACH, 50 + i);
        CHECK_EQ(lien_space_open(f.side.ctx, &buf, 1, &spaces[i]), 0);
    }
    fault_sleep(20);
    for (unsigned i = 0; i < AT_ONCE; i++) {
        CHECK(fault_space_is(spaces[i], 50 + i)); // nothing came late
        CHECK(r[i].done == 1 && r[i].released == 1);
        lien_read_close(&r[i].read);
        lien_space_free(&spaces[i]);
    }
    if (kill)
        field_lose(&f);
    field_close(&f);
}

void field_report_06_late_entries(void)
{
    for (unsigned i = 0; i < 8; i++)
        destroyed_at_work(i % 2, i);
}
