// SPDX-License-Identifier: Apache-2.0
//
// See contract.h. The program: builds the world, runs each part, and writes the names of the functions under test to the file that it is given.

#include "tests/contract/contract.h"

#include <time.h>

struct contract_world w;
char contract_untouched[1];

// -- Names and answers --

#define NAMES_MAX 256
static const char *names[NAMES_MAX];
static size_t n_names;

void contract_note(const char *name)
{
    for (size_t i = 0; i < n_names; i++) {
        if (strcmp(names[i], name) == 0)
            return;
    }
    CHECK(n_names < NAMES_MAX);
    names[n_names++] = name;
}

_Noreturn void contract_fail(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
    exit(1);
}

void contract_answer(const char *name, long long want, long long got, const char *file, int line)
{
    contract_note(name);
    if (want == got)
        return;
    fprintf(stderr, "%s:%d: %s answered %lld (%s), not %lld (%s)\n", file, line, name, got,
            lien_errname((int)got), want, lien_errname((int)want));
    exit(1);
}

// -- What must not change --

struct sight {
    lien_ctx_stats ctx[3];
    lien_conn_info conn[4];
};

static struct sight before;

static void look(struct sight *sight)
{
    lien_ctx *const ctxs[] = {w.a, w.b, w.c};
    lien_conn *const conns[] = {w.ab, w.ba, w.ac, w.ca};
    memset(sight, 0, sizeof *sight);
    for (size_t i = 0; i < 3; i++) {
        sight->ctx[i].size = sizeof sight->ctx[i];
        CHECK(lien_ctx_stats_get(ctxs[i], &sight->ctx[i]) == 0);
        sight->ctx[i].log_dropped = 0; // the refusals are logged
    }
    for (size_t i = 0; i < 4; i++) {
        sight->conn[i].size = sizeof sight->conn[i];
        CHECK(lien_conn_info_get(conns[i], &sight->conn[i]) == 0);
    }
}

void contract_before(void)
{
    if (w.ca)
        look(&before);
}

void contract_after(const char *name, const char *file, int line)
{
    struct sight after;
    if (!w.ca)
        return;
    look(&after);
    if (memcmp(&before, &after, sizeof before) == 0)
        return;
    fprintf(stderr, "%s:%d: %s was refused, yet something changed: byte", file, line, name);
    for (size_t i = 0; i < sizeof before; i++) {
        if (((const char *)&before)[i] != ((const char *)&after)[i])
            fprintf(stderr, " %zu", i);
    }
    fprintf(stderr, "\n");
    exit(1);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

void contract_settle(void)
{
    struct sight one, two;
    int still = 0; // one look too few: a credit may be on its way while a thread is kept waiting
    for (int i = 0; i < 2500 && still < 10; i++) {
        look(&one);
        nap();
        CHECK(lien_ctx_progress(w.c) == 0);
        look(&two);
        const bool rest = memcmp(&one, &two, sizeof one) == 0 && two.ctx[0].grants_live == 0 &&
                          two.ctx[1].grants_live == 0 && two.ctx[2].grants_live == 0;
        still = rest ? still + 1 : 0;
    }
    if (still == 10)
        return;
    contract_fail("the peers come to rest", __FILE__, __LINE__);
}

void contract_drive_c(bool (*done)(void *arg), void *arg)
{
    for (int i = 0; i < 5000 && !done(arg); i++) {
        CHECK(lien_ctx_progress(w.c) == 0);
        nap();
    }
    CHECK(done(arg));
}

// -- The world --

static void quiet(const lien_log_line *line, void *arg)
{
    (void)arg;
    if (getenv("CONTRACT_VERBOSE"))
        fprintf(stderr, "%s %s\n", lien_errname(line->code), line->text);
}

static lien_ctx *open_ctx(unsigned flags)
{
    static const char *const settings[] = {"provider=tcp", "heartbeat_ms=0", "drain_ms=1000", NULL};
    lien_ctx_opts opts;
    lien_ctx *ctx = NULL;
    lien_ctx_opts_init(&opts);
    opts.flags = flags;
    opts.settings = settings;
    opts.log = quiet;
    CHECK(lien_ctx_open(&opts, &ctx) == 0);
    return ctx;
}

static lien_pool *open_pool(lien_ctx *ctx)
{
    lien_pool_opts opts;
    lien_pool *pool = NULL;
    lien_pool_opts_init(&opts);
    opts.limit = 64u << 20;
    opts.reserve = 1u << 20;
    CHECK(lien_pool_open(ctx, &opts, &pool) == 0);
    return pool;
}

static lien_listener *listen_on(lien_ctx *ctx, char address[96])
{
    lien_listener *listener = NULL;
    CHECK(lien_listener_open(ctx, "127.0.0.1:0", NULL, &listener) == 0);
    CHECK(lien_listener_address(listener, address, 96) == 0);
    return listener;
}

static bool is_open(void *conn)
{
    lien_conn_info info = {.size = sizeof info};
    CHECK(lien_conn_info_get(conn, &info) == 0);
    return info.open;
}

void contract_connect_c(lien_conn **ac, lien_conn **ca)
{
    CHECK(lien_conn_open(w.a, w.address_c, NULL, ac) == 0);
    CHECK(lien_listener_accept_wait(w.listener_c, 5000, ca) == 0);
    contract_drive_c(is_open, *ac);
}

lien_buf *contract_buf(lien_pool *pool, size_t len, unsigned char fill)
{
    lien_buf *buf = NULL;
    void *data;
    CHECK(lien_pool_alloc(pool, len, &buf) == 0);
    CHECK(lien_buf_mut(buf, &data) == 0);
    memset(data, fill, len);
    return buf;
}

static void build(void)
{
    w.a = open_ctx(0);
    w.b = open_ctx(0);
    w.c = open_ctx(LIEN_APP_DRIVEN);
    w.pool_a = open_pool(w.a);
    w.pool_b = open_pool(w.b);
    w.pool_c = open_pool(w.c);
    w.listener_b = listen_on(w.b, w.address_b);
    w.listener_c = listen_on(w.c, w.address_c);
    CHECK(lien_conn_open_wait(w.a, w.address_b, NULL, &w.ab) == 0);
    CHECK(lien_listener_accept_wait(w.listener_b, 5000, &w.ba) == 0);
    contract_connect_c(&w.ac, &w.ca);
}

static void pull_down(void)
{
    CHECK(lien_conn_close_wait(&w.ab, 5000) == 0);
    CHECK(lien_conn_close(&w.ba) == 0);
    CHECK(lien_conn_close(&w.ac) == 0);
    CHECK(lien_conn_close_wait(&w.ca, 5000) == 0);
    ANSWERS(0, lien_ctx_close, &w.c);
    ANSWERS(0, lien_ctx_close, &w.b);
    ANSWERS(0, lien_ctx_close, &w.a);
    CHECK(!w.a && !w.b && !w.c);
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"library", contract_library}, {"ctx", contract_ctx},   {"mem", contract_mem},
    {"space", contract_space},     {"conn", contract_conn}, {"message", contract_message},
    {"grant", contract_grant},     {"read", contract_read}, {"token", contract_token},
    {"states", contract_states},   {"call", contract_call}, {"channel", contract_channel},
};

int main(int argc, char **argv)
{
    CHECK(unsetenv("FI_PROVIDER") == 0); // what it does is tried in contract_library.c
    build();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        fprintf(stderr, "contract: %s\n", parts[i].name);
        contract_settle();
        parts[i].run();
    }
    pull_down();
    FILE *out = argc > 1 ? fopen(argv[1], "w") : stdout;
    CHECK(out);
    for (size_t i = 0; i < n_names; i++)
        fprintf(out, "%s\n", names[i]);
    CHECK(fclose(out) == 0);
    return 0;
}
