// SPDX-License-Identifier: Apache-2.0
//
// What lien_ctx_close() says of what the application never closed.

#include "tests/calls/world.h"

static char said[2][512];
static lien_level level[2];
static struct desk desk;
static const lien_method methods[] = {{.name = "s/m", .handle = to_desk, .arg = &desk}};
static const lien_service service = {.methods = methods, .n_methods = 1};
static const char *const settings[] = {"log_level=info", NULL};

static void hear(const lien_log_line *line, void *arg)
{
    unsigned node = *(unsigned *)arg;
    if (strstr(line->text, "never closed")) {
        snprintf(said[node], sizeof said[node], "%s", strchr(line->text, ':') + 2);
        level[node] = line->level;
    }
}

static struct world *open_world(void)
{
    static unsigned nodes[2] = {0, 1};
    struct world *w = world_open(5, NULL, settings, &service, NULL);
    for (unsigned i = 0; i < 2; i++) {
        lieni_log_close(w->ctx[i]->log);
        cr_assert_eq(lieni_log_open(hear, &nodes[i], LIEN_LOG_INFO, &w->ctx[i]->log), 0);
    }
    return w;
}

// A simulated world stands still while it waits: stepped, and asked again.
static void close_ctx(struct world *w, unsigned i)
{
    int rc;
    while ((rc = lien_ctx_close(&w->ctx[i])) == LIEN_EDEADLK)
        run_ms(w, 100);
    cr_assert_eq(rc, 0);
}

Test(leaks, nothing_was_left)
{
    struct world *w = open_world();
    lien_listener_close(&w->listener);
    lien_conn_close(&w->conn[SERVER]);
    lien_conn_close(&w->conn[CLIENT]);
    lien_buf *buf = buf_new(w, CLIENT, 10, 1);
    lien_space *space = space_of(w, CLIENT, buf);
    lien_space_free(&space);
    for (unsigned i = 0; i < 2; i++)
        lien_pool_close(&w->pool[i]);
    run_ms(w, 5000);
    close_ctx(w, CLIENT);
    close_ctx(w, SERVER);
    cr_expect_str_eq(said[SERVER], "");
    cr_expect_str_eq(said[CLIENT], "");
}

Test(leaks, what_a_close_takes_along_is_no_warning)
{
    struct world *w = open_world();
    close_ctx(w, CLIENT);
    close_ctx(w, SERVER);
    cr_expect_str_eq(said[CLIENT], "1 connection, 1 pool");
    cr_expect_str_eq(said[SERVER], "1 listener, 1 connection, 1 pool");
    cr_expect(level[CLIENT] == LIEN_LOG_INFO && level[SERVER] == LIEN_LOG_INFO);
}

Test(leaks, each_kind_is_counted)
{
    static char own[64];
    struct world *w = open_world();
    struct seen s = {0};
    lien_mem *mem;
    lien_grant *grant;
    lien_read *read;
    lien_token token;
    lien_msg *msg;
    lien_call *call;
    cr_assert_eq(lien_mem_register(w->ctx[CLIENT], own, sizeof own, NULL, &mem), 0);
    lien_buf *a = buf_new(w, CLIENT, 10, 1), *b = buf_new(w, CLIENT, 10, 1);
    lien_space *space = space_of(w, CLIENT, buf_new(w, CLIENT, 10, 1));
    lien_buf *source = buf_new(w, SERVER, 10, 1);
    cr_assert_eq(lien_grant_open(w->conn[SERVER], &source, 1, NULL, &token, &grant), 0);
    cr_assert_eq(lien_read_start(w->conn[CLIENT], token.bytes, token.len, space, NULL, &read), 0);
    cr_assert_eq(lien_send(w->conn[CLIENT], "one", 3, NULL, 0, NULL), 0);
    lien_call_opts opts = call_to(&s);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "s/m", NULL, 0, &opts, &call), 0);
    run_ms(w, 100);
    cr_assert_eq(lien_msg_recv_wait(w->conn[SERVER], 0, &msg), 0);
    cr_assert_eq(desk.n, 1);
    close_ctx(w, CLIENT);
    cr_expect_str_eq(
        said[CLIENT],
        "1 connection, 1 pool, 1 registered memory, 2 buffers, 1 space, 1 read, 1 call");
    cr_expect_eq(level[CLIENT], LIEN_LOG_WARN);
    close_ctx(w, SERVER);
    cr_expect_str_eq(said[SERVER],
                     "1 listener, 1 connection, 1 pool, 1 buffer, 1 message, 1 grant, 1 request");
    cr_expect_eq(level[SERVER], LIEN_LOG_WARN);
    (void)a;
    (void)b;
}
