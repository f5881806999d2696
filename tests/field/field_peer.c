// SPDX-License-Identifier: Apache-2.0
//
// What the other process serves: see field.h. Handlers run on its dispatch threads; what they share is under one lock.

#include <pthread.h>

#include "tests/field/field.h"

#define KEPT_MAX     64u
#define PREPARED_MAX 16u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate = PTHREAD_COND_INITIALIZER;
static unsigned went; // how often "go" came
static struct field_verdict verdict;
static lien_request *kept[KEPT_MAX];
static struct {
    uint64_t seed;
    lien_buf *buf;
} prepared[PREPARED_MAX];
static unsigned n_prepared;

static void source_of(lien_request *request, struct field_source *source)
{
    const void *data;
    size_t len;
    CHECK_EQ(lien_request_args(request, &data, &len), 0);
    CHECK_EQ(len, sizeof *source);
    memcpy(source, data, len);
}

static void reply(lien_request *request, int status, const void *data, size_t len)
{
    if (lien_request_reply(&request, status, data, len) != 0)
        lien_request_drop(&request); // a write was given up
}

static void count(uint32_t *what)
{
    pthread_mutex_lock(&lock);
    (*what)++;
    pthread_mutex_unlock(&lock);
}

static lien_buf *new_buf(size_t len, uint64_t seed)
{
    lien_buf *buf;
    void *data;
    CHECK_EQ(lien_pool_alloc(fault_peer_side()->pool, len, &buf), 0);
    CHECK_EQ(lien_buf_mut(buf, &data), 0);
    fault_fill(data, len, seed);
    return buf;
}

static void echo(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    (void)conn;
    (void)arg;
    CHECK_EQ(lien_request_args(request, &data, &len), 0);
    CHECK_EQ(lien_request_reply(&request, 0, data, len), 0);
}

// -- Writing -----------------------------------------------------------------------------------------------------------------------

static void prepare(lien_request *request, lien_conn *conn, void *arg)
{
    struct field_source source;
    (void)conn;
    (void)arg;
    source_of(request, &source);
    lien_mem *mem = NULL;
    lien_buf *buf = NULL;
    if (source.repeated) {
        CHECK_EQ(lien_mem_register(fault_peer_side()->ctx, field_repeated(source.len, source.seed),
                                   source.len, NULL, &mem),
                 0);
        CHECK_EQ(lien_mem_buf(mem, 0, source.len, &buf), 0);
    } else {
        buf = new_buf(source.len, source.seed);
    }
    pthread_mutex_lock(&lock);
    CHECK(n_prepared < PREPARED_MAX);
    prepared[n_prepared].seed = source.seed;
    prepared[n_prepared++].buf = buf;
    pthread_mutex_unlock(&lock);
    reply(request, 0, NULL, 0);
}

static lien_buf *prepared_of(uint64_t seed)
{
    lien_buf *buf = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n_prepared; i++)
        buf = prepared[i].seed == seed ? prepared[i].buf : buf;
    pthread_mutex_unlock(&lock);
    return buf;
}

struct job {
    lien_request *request; // NULL: answered
    struct field_source source;
};

static void written(void *arg, int status)
{
    struct job *job = arg;
    if (job->request)
        reply(job->request, status ? LIEN_EIO : 0, &job->source, sizeof job->source);
    job->request = NULL;
}

static void write_released(void *arg, int status)
{
    (void)status;
    count(&verdict.n_over);
    free(arg);
}

static void write_now(lien_request *request, const struct field_source *source)
{
    lien_op ops[LIEN_OPS_MAX];
    struct job *job = calloc(1, sizeof *job);
    lien_buf *own = NULL, *buf = prepared_of(source->seed);
    count(&verdict.n_begun);
    lien_transfer_opts opts;
    CHECK(job && source->n_ops <= LIEN_OPS_MAX);
    if (!buf)
        buf = own = new_buf(source->len, source->seed);
    *job = (struct job){.request = source->reply_first ? NULL : request, .source = *source};
    lien_transfer_opts_init(&opts);
    opts.on_done = written;
    opts.on_released = write_released;
    opts.arg = job;
    uint64_t piece = source->n_ops ? source->len / source->n_ops : 0;
    for (uint32_t i = 0; i < source->n_ops; i++) {
        uint64_t at = i * piece;
        ops[i] = (lien_op){at, at, i + 1 < source->n_ops ? piece : source->len - at};
    }
    opts.ops = source->n_ops ? ops : NULL;
    opts.n_ops = source->n_ops;
    int rc = lien_request_write(request, &buf, 1, &opts);
    if (rc != 0) {
        free(job);
        count(&verdict.n_over);
        reply(request, LIEN_EIO, NULL, 0);
    } else if (source->reply_first) {
        reply(request, 0, source, sizeof *source);
    }
    lien_buf_free(&own); // put off until the caller released it
}

static void write_(lien_request *request, lien_conn *conn, void *arg)
{
    struct field_source source;
    (void)conn;
    (void)arg;
    source_of(request, &source);
    write_now(request, &source);
}

// A reply with a body.
static void body(lien_request *request, lien_conn *conn, void *arg)
{
    struct field_source source;
    (void)conn;
    (void)arg;
    source_of(request, &source);
    lien_buf *buf = new_buf(source.len, source.seed);
    if (lien_request_reply_body(&request, 0, &source, sizeof source, &buf, 1) != 0) {
        lien_buf_free(&buf);
        lien_request_drop(&request);
    }
}

// -- Keeping -----------------------------------------------------------------------------------------------------------------------

static void keep(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    pthread_mutex_lock(&lock);
    CHECK(verdict.kept < KEPT_MAX);
    kept[verdict.kept++] = request;
    pthread_mutex_unlock(&lock);
}

static void answer(lien_request *request, lien_conn *conn, void *arg)
{
    lien_request *all[KEPT_MAX];
    (void)conn;
    (void)arg;
    pthread_mutex_lock(&lock);
    uint32_t n = verdict.kept;
    memcpy(all, kept, sizeof all);
    verdict.kept = 0;
    pthread_mutex_unlock(&lock);
    for (uint32_t i = 0; i < n; i++) {
        struct field_source source;
        source_of(all[i], &source);
        if (lien_request_write_len(all[i]) > 0)
            write_now(all[i], &source);
        else
            reply(all[i], 0, &source, sizeof source);
    }
    reply(request, 0, &n, sizeof n);
}

static void cancelled(void *arg)
{
    lien_request *request = arg;
    lien_request_drop(&request);
}

static void swallow(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    if (lien_request_on_cancel(request, cancelled, request) != 0)
        lien_request_drop(&request);
}

// -- Reading -----------------------------------------------------------------------------------------------------------------------

static void wait_for_go(void)
{
    pthread_mutex_lock(&lock);
    unsigned now = went;
    verdict.waiting++;
    while (went == now)
        pthread_cond_wait(&gate, &lock);
    verdict.waiting--;
    pthread_mutex_unlock(&lock);
}

// What a server does with what it read: here it only compares, but what it believed it would have acted on.
static void act(const struct field_source *source, lien_space *space, int status)
{
    lien_buf *buf = NULL;
    const void *data = NULL;
    bool wrong = false;
    CHECK_EQ(lien_space_take(space, &buf, 1), 0);
    if (status == 0) {
        CHECK_EQ(lien_buf_data(buf, &data), 0);
        wrong = !fault_is(data, lien_buf_len(buf), source->seed);
    }
    lien_buf_free(&buf);
    pthread_mutex_lock(&lock);
    verdict.believed += status == 0;
    verdict.acted_wrong += wrong;
    verdict.stale += status == LIEN_ESTALE;
    verdict.other += status != 0 && status != LIEN_ESTALE;
    verdict.n_over++;
    pthread_mutex_unlock(&lock);
}

static void read_(lien_request *request, lien_conn *conn, void *arg)
{
    struct field_source source;
    lien_space *space = NULL;
    (void)conn;
    (void)arg;
    source_of(request, &source);
    count(&verdict.n_begun);
    if (source.wait)
        wait_for_go();
    lien_buf *buf = new_buf((size_t)lien_request_read_len(request), ~source.seed);
    CHECK_EQ(lien_space_open(fault_peer_side()->ctx, &buf, 1, &space), 0);
    int rc = lien_request_read_wait(request, space, NULL);
    act(&source, space, rc);
    lien_space_free(&space);
    reply(request, 0, &source, sizeof source);
}

static void go(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    pthread_mutex_lock(&lock);
    went++;
    pthread_cond_broadcast(&gate);
    pthread_mutex_unlock(&lock);
    reply(request, 0, NULL, 0);
}

// -- Granting ----------------------------------------------------------------------------------------------------------------------

// 64 buffers of a page; replies with the token. The grant holds until it is released, or the connection's end.
static void grant64(lien_request *request, lien_conn *conn, void *arg)
{
    lien_buf *bufs[LIEN_BUFS_MAX];
    lien_token token;
    lien_grant *grant;
    (void)arg;
    memset(&token, 0, sizeof token);
    for (unsigned i = 0; i < LIEN_BUFS_MAX; i++)
        bufs[i] = new_buf(4096, i);
    CHECK_EQ(lien_grant_open(conn, bufs, LIEN_BUFS_MAX, NULL, &token, &grant), 0);
    for (unsigned i = 0; i < LIEN_BUFS_MAX; i++)
        lien_buf_free(&bufs[i]);
    reply(request, 0, &token, sizeof token);
}

// -- Calling back ------------------------------------------------------------------------------------------------------------------

struct rung {
    lien_buf *read, *body;
};

static void rung_released(void *arg, int status)
{
    struct rung *r = arg;
    (void)status;
    lien_buf_free(&r->read);
    lien_buf_free(&r->body);
    free(r);
}

static void ring(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    struct field_ring ring;
    lien_call_opts opts;
    (void)arg;
    CHECK_EQ(lien_request_args(request, &data, &len), 0);
    CHECK_EQ(len, sizeof ring);
    memcpy(&ring, data, sizeof ring);
    struct rung *r = calloc(1, sizeof *r);
    CHECK(r);
    r->read = new_buf(ring.source.len, ring.source.seed);
    lien_call_opts_init(&opts);
    opts.read = &r->read;
    opts.n_read = 1;
    if (ring.body_len > 0) {
        r->body = new_buf(ring.body_len, ring.source.seed + 1);
        opts.body = &r->body;
        opts.n_body = 1;
    }
    opts.on_released = rung_released;
    opts.arg = r;
    CHECK_EQ(lien_call_start(conn, ring.method, &ring.source, sizeof ring.source, &opts, NULL), 0);
    reply(request, 0, NULL, 0);
}

// -- Looking -----------------------------------------------------------------------------------------------------------------------

static void tell(lien_request *request, lien_conn *conn, void *arg)
{
    lien_ctx_stats stats;
    lien_conn_info info;
    (void)arg;
    fault_stats(fault_peer_side(), &stats);
    fault_info(conn, &info);
    pthread_mutex_lock(&lock);
    struct field_verdict v = verdict;
    pthread_mutex_unlock(&lock);
    v.message_credits = info.message_credits;
    v.control_credits = info.control_credits;
    v.grants_live = stats.grants_live;
    v.pool_bytes = stats.pool_bytes;
    reply(request, 0, &v, sizeof v);
}

static const lien_method methods[] = {
    {.name = "echo", .handle = echo},       {.name = "prepare", .handle = prepare},
    {.name = "write", .handle = write_},    {.name = "body", .handle = body},
    {.name = "keep", .handle = keep},       {.name = "answer", .handle = answer},
    {.name = "swallow", .handle = swallow}, {.name = "read", .handle = read_},
    {.name = "go", .handle = go},           {.name = "verdict", .handle = tell},
    {.name = "grant64", .handle = grant64}, {.name = "ring", .handle = ring},
};
const lien_service field_peer_service = {.methods = methods,
                                         .n_methods = sizeof methods / sizeof methods[0]};
