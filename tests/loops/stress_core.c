// SPDX-License-Identifier: Apache-2.0
//
// Thread stress of the core over tcp: two contexts of one process, each with two dispatch threads, several connections of both kinds (LIEN_INLINE and not), and threads that
// send, read, cancel, revoke, release, allocate, ask and close, all at once and on the same connections. Run under ThreadSanitizer and under AddressSanitizer; what it asserts itself is
// that every operation ends once, that what was read is what was granted, and that nothing is left. Time-bound: SECONDS of work.

#include "tests/loops/support.h"

#define SECONDS 6u
#define CONNS   4u
#define THREADS 4u

static const char *const settings[] = {"dispatch_threads=2", "heartbeat_ms=50", "dead_ms=20000",
                                       NULL};

// A connection of the client's side, shared by all threads: used under `use` held shared, replaced under it held alone, since a handle ends with its close.
struct shared {
    pthread_rwlock_t use;
    lien_conn *conn;
    pthread_mutex_t lock; // of the tokens
    lien_token tokens[16];
    unsigned n_tokens;
};

static struct peer peers[2]; // callbacks on dispatch threads, and inline
static lien_ctx *ctx;
static lien_pool *pool;
static struct shared shared[CONNS];
static atomic_bool stop;
static atomic_uint reads_started, reads_done, reads_released, canceled, sends_started,
    sends_released;
static atomic_uint grants_opened, grants_released, allocs_started, allocs_done, conns_closed,
    conns_opened;

// -- Client callbacks --

static void on_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct shared *s = arg;
    const void *head;
    size_t len;
    (void)conn;
    IS(lien_msg_head(msg, &head, &len), 0);
    if (*(const uint8_t *)head == ASK_GRANT && len > 1) {
        lien_token token = {.len = (uint32_t)(len - 1)};
        memcpy(token.bytes, (const uint8_t *)head + 1, token.len);
        pthread_mutex_lock(&s->lock);
        if (s->n_tokens < 16)
            s->tokens[s->n_tokens++] = token; // others stay granted till the connection ends
        pthread_mutex_unlock(&s->lock);
    }
    lien_msg_free(&msg);
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    (void)arg;
    IS(status, 0);
    atomic_fetch_add(&conns_closed, 1);
}

// What an operation may end with, while connections are closed under it.
static void expected(int status)
{
    CHECK(status == 0 || status == LIEN_ECANCELED || status == LIEN_ECLOSED ||
          status == LIEN_ESTALE || status == LIEN_EPEERLOST || status == LIEN_ETIMEDOUT);
}

// -- Reads --

struct job {
    lien_space *space;
    size_t src;
};

static void read_done(void *arg, int status)
{
    (void)arg;
    expected(status);
    atomic_fetch_add(&reads_done, 1);
    atomic_fetch_add(&canceled, status == LIEN_ECANCELED);
    if (status != 0)
        return;
}

static void read_released(void *arg, int status)
{
    struct job *job = arg;
    IS(status, 0);
    lien_space_free(&job->space);
    free(job);
    atomic_fetch_add(&reads_released, 1);
}

static bool take_token(struct shared *s, lien_token *token)
{
    pthread_mutex_lock(&s->lock);
    bool have = s->n_tokens > 0;
    if (have)
        *token = s->tokens[--s->n_tokens];
    pthread_mutex_unlock(&s->lock);
    return have;
}

static void refused(int rc)
{
    CHECK(rc == LIEN_EAGAIN || rc == LIEN_ELIMIT || rc == LIEN_EBUSY);
}

static void start_read(struct shared *s, const lien_token *token, unsigned r, unsigned flags)
{
    struct job *job = calloc(1, sizeof *job);
    lien_buf *buf;
    lien_read *read = NULL;
    CHECK(job != NULL);
    if (lien_pool_alloc(pool, PEER_BYTES, &buf) != 0) {
        free(job);
        return;
    }
    IS(lien_space_open(ctx, &buf, 1, &job->space), 0);
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.flags = flags;
    opts.on_done = read_done;
    opts.on_released = read_released;
    opts.arg = job;
    opts.timeout_ms = r % 8 == 0 ? 1 : 0;
    atomic_fetch_add(&reads_started, 1);
    int rc = lien_read_start(s->conn, token->bytes, token->len, job->space, &opts,
                             r % 3 ? NULL : &read);
    if (rc != 0) {
        expected(rc);
        atomic_fetch_sub(&reads_started, 1);
        lien_space_free(&job->space);
        free(job);
        return;
    }
    if (!read)
        return;
    if (r % 2)
        IS(lien_read_cancel(read), 0);
    IS(lien_read_close(&read), 0); // cancels too
}

static void reads(struct shared *s, unsigned r)
{
    lien_token token;
    if (!take_token(s, &token)) {
        int rc = lien_send(s->conn, "G", 1, NULL, 0, NULL);
        if (rc != 0 && rc != LIEN_EAGAIN)
            expected(rc);
        return;
    }
    if (r % 2)
        start_read(s, &token, r, 0);
    start_read(s, &token, r + 1, LIEN_RELEASE);
}

// The blocking twin, whose bytes are compared.
static void read_wait(struct shared *s)
{
    lien_token token;
    lien_buf *buf;
    const void *bytes;
    if (!take_token(s, &token) || lien_pool_alloc(pool, PEER_BYTES, &buf) != 0)
        return;
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.flags = LIEN_RELEASE;
    int rc = lien_read_wait(s->conn, token.bytes, token.len, &buf, 1, &opts);
    expected(rc);
    IS(lien_buf_data(buf, &bytes), 0);
    for (size_t i = 0; rc == 0 && i < PEER_BYTES; i += 1021)
        CHECK(((const uint8_t *)bytes)[i] == (uint8_t)(i * 7));
    lien_buf_free(&buf);
}

// -- Sends and grants of our own --

static void send_released(void *arg, int status)
{
    (void)arg;
    IS(status, 0);
    atomic_fetch_add(&sends_released, 1);
}

static void sends(struct shared *s, unsigned r)
{
    lien_buf *buf = NULL;
    if (r % 2 && lien_pool_alloc(pool, 20000, &buf) != 0)
        return;
    lien_send_opts opts;
    lien_send_opts_init(&opts);
    opts.on_released = send_released;
    atomic_fetch_add(&sends_started, 1);
    int rc = lien_send(s->conn, r % 3 ? "D" : "E", 1, &buf, buf ? 1 : 0, &opts);
    if (rc != 0) {
        atomic_fetch_sub(&sends_started, 1);
        if (rc < 0 && rc != LIEN_EAGAIN && rc != LIEN_ELIMIT)
            expected(rc);
        else
            refused(rc);
    }
    lien_buf_free(&buf);
}

static void grant_released(void *arg, int status)
{
    (void)arg;
    IS(status, 0);
    atomic_fetch_add(&grants_released, 1);
}

// Granted, and revoked before the peer ever heard of it.
static void grants(struct shared *s, unsigned r)
{
    lien_buf *buf;
    lien_token token;
    lien_grant *grant;
    if (lien_pool_alloc(pool, 5000, &buf) != 0)
        return;
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.flags = r % 2 ? LIEN_REVOCABLE : 0;
    opts.on_released = grant_released;
    atomic_fetch_add(&grants_opened, 1);
    int rc = lien_grant_open(s->conn, &buf, 1, &opts, &token, &grant);
    if (rc != 0) {
        atomic_fetch_sub(&grants_opened, 1);
        if (rc != LIEN_ELIMIT)
            expected(rc);
    } else {
        if (r % 3 == 0)
            IS(lien_grant_revoke(grant), 0);
        IS(lien_grant_close(&grant), 0);
    }
    lien_buf_free(&buf);
}

// -- Memory, questions --

static void alloc_done(void *arg, int status, lien_buf *buf)
{
    (void)arg;
    CHECK(status == 0 || status == LIEN_ECANCELED);
    lien_buf_free(&buf);
    atomic_fetch_add(&allocs_done, 1);
}

static void allocs(unsigned r)
{
    lien_buf *buf;
    atomic_fetch_add(&allocs_started, 1);
    IS(lien_pool_alloc_start(pool, 1 + r % 200000, alloc_done, NULL, NULL), 0);
    if (lien_pool_alloc_wait(pool, 4096 + r % 9000, 1000, &buf) == 0) {
        void *bytes;
        IS(lien_buf_mut(buf, &bytes), 0);
        memset(bytes, 1, lien_buf_len(buf));
        lien_buf_free(&buf);
    }
}

static void ask(struct shared *s)
{
    lien_ctx_stats stats = {.size = sizeof stats};
    lien_conn_info info = {.size = sizeof info};
    char *text;
    IS(lien_ctx_stats_get(ctx, &stats), 0);
    IS(lien_conn_info_get(s->conn, &info), 0);
    IS(lien_ctx_metrics(ctx, &text), 0);
    free(text);
}

// -- Connections --

static void open_one(struct shared *s, unsigned i)
{
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.flags = i % 2 ? LIEN_INLINE : 0;
    opts.arg = s;
    opts.on_message = on_message;
    opts.on_closed = on_closed;
    opts.timeout_ms = 30000;
    IS(lien_conn_open_wait(ctx, peers[i / 2 % 2].address, &opts, &s->conn), 0);
    atomic_fetch_add(&conns_opened, 1);
}

static void replace(unsigned i)
{
    struct shared *s = &shared[i];
    pthread_rwlock_wrlock(&s->use);
    IS(lien_conn_close(&s->conn), 0);
    pthread_mutex_lock(&s->lock);
    s->n_tokens = 0;
    pthread_mutex_unlock(&s->lock);
    open_one(s, i);
    pthread_rwlock_unlock(&s->use);
}

static void step(struct shared *s, unsigned r)
{
    switch (r % 7) {
    case 0:
    case 1:
        reads(s, r / 7);
        break;
    case 2:
        read_wait(s);
        break;
    case 3:
        sends(s, r / 7);
        break;
    case 4:
        grants(s, r / 7);
        break;
    case 5:
        allocs(r / 7);
        break;
    default:
        ask(s);
        break;
    }
}

static void *work(void *arg)
{
    unsigned seed = *(unsigned *)arg;
    while (!atomic_load(&stop)) {
        unsigned r = (unsigned)rand_r(&seed);
        unsigned i = (unsigned)rand_r(&seed) % CONNS;
        if (r % 997 == 0) {
            replace(i);
            continue;
        }
        pthread_rwlock_rdlock(&shared[i].use);
        step(&shared[i], r);
        pthread_rwlock_unlock(&shared[i].use);
    }
    return NULL;
}

static bool all_over(void *arg)
{
    (void)arg;
    return atomic_load(&reads_started) == atomic_load(&reads_released) &&
           atomic_load(&reads_started) == atomic_load(&reads_done) &&
           atomic_load(&sends_started) == atomic_load(&sends_released) &&
           atomic_load(&grants_opened) == atomic_load(&grants_released) &&
           atomic_load(&allocs_started) == atomic_load(&allocs_done) &&
           atomic_load(&conns_opened) == atomic_load(&conns_closed);
}

static void print(void)
{
    printf("%u reads (%u canceled), %u sends, %u grants, %u allocations, %u connections\n",
           reads_done, canceled, sends_released, grants_released, allocs_done, conns_opened);
}

int main(void)
{
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];
    setvbuf(stdout, NULL, _IOLBF, 0);
    peer_open(&peers[0], settings, 0);
    peer_open(&peers[1], settings, LIEN_INLINE);
    ctx = ctx_open(settings);
    IS(lien_pool_open(ctx, NULL, &pool), 0);
    for (unsigned i = 0; i < CONNS; i++) {
        pthread_rwlock_init(&shared[i].use, NULL);
        pthread_mutex_init(&shared[i].lock, NULL);
        open_one(&shared[i], i);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = i + 1;
        CHECK(pthread_create(&threads[i], NULL, work, &seeds[i]) == 0);
    }
    sleep_ms(SECONDS * 1000);
    atomic_store(&stop, true);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < CONNS; i++)
        IS(lien_conn_close(&shared[i].conn), 0);
    wait_until(all_over, NULL, 20000, "the end of every operation");
    print();
    CHECK(reads_done > 50 && canceled > 5 && sends_released > 50 && grants_released > 50);
    lien_ctx_stats stats = {.size = sizeof stats};
    IS(lien_ctx_stats_get(ctx, &stats), 0);
    IS(stats.grants_live, 0);
    IS(stats.quarantined_bytes, 0);
    IS(stats.protocol_errors, 0);
    lien_pool_close(&pool);
    IS(lien_ctx_close(&ctx), 0);
    peer_close(&peers[0]);
    peer_close(&peers[1]);
    puts("ok");
    return 0;
}
