// SPDX-License-Identifier: Apache-2.0
//
// Guard mode from end to end over tcp, turned on by option `guard` alone: a READ into guarded buffers and a grant from
// one carry the right bytes while the application's mapping is protected, and the report of a stray access names connection and grant.

#include <criterion/criterion.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/lien.h>

#if defined(__SANITIZE_ADDRESS__)
#define UNCHECKED __attribute__((no_sanitize_address))
#else
#define UNCHECKED __attribute__((no_sanitize("address")))
#endif

#define LEN  ((size_t)3 * 1024 * 1024 + 17)
#define WAIT 20000u

static sigjmp_buf back;
static lien_ctx *ctx[2];
static lien_pool *pool[2];
static lien_listener *listener;
static lien_conn *conn[2]; // 0 connects to 1

static void on_fault(int sig)
{
    (void)sig;
    siglongjmp(back, 1);
}

static void setup(void)
{
    static const char *const settings[] = {"guard=1", "provider=tcp", NULL};
    signal(SIGSEGV, on_fault); // ours chains to it
    for (int i = 0; i < 2; i++) {
        lien_ctx_opts opts;
        lien_ctx_opts_init(&opts);
        opts.settings = settings;
        cr_assert_eq(lien_ctx_open(&opts, &ctx[i]), 0);
        cr_assert_eq(lien_pool_open(ctx[i], NULL, &pool[i]), 0);
    }
    char address[96];
    cr_assert_eq(lien_listener_open(ctx[1], "127.0.0.1:0", NULL, &listener), 0);
    cr_assert_eq(lien_listener_address(listener, address, sizeof address), 0);
    cr_assert_eq(lien_conn_open_wait(ctx[0], address, NULL, &conn[0]), 0);
    cr_assert_eq(lien_listener_accept_wait(listener, WAIT, &conn[1]), 0);
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        lien_ctx_stats stats = {.size = sizeof stats};
        cr_expect_eq(lien_ctx_stats_get(ctx[i], &stats), 0);
        cr_expect_eq(stats.guard_skipped, 0);
    }
    cr_expect_eq(lien_conn_close(&conn[0]), 0);
    cr_expect_eq(lien_conn_close(&conn[1]), 0);
    cr_expect_eq(lien_ctx_close(&ctx[0]), 0);
    cr_expect_eq(lien_ctx_close(&ctx[1]), 0);
}

TestSuite(guard_tcp, .init = setup, .fini = teardown);

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 31 + i / 4093);
}

static lien_buf *filled(int side)
{
    lien_buf *buf = NULL;
    void *data;
    cr_assert_eq(lien_pool_alloc(pool[side], LEN, &buf), 0);
    cr_assert_eq(lien_buf_mut(buf, &data), 0);
    for (size_t i = 0; i < LEN; i++) {
        ((uint8_t *)data)[i] = pattern(i);
    }
    return buf;
}

static void expect_filled(const lien_buf *buf)
{
    const void *data;
    cr_assert_eq(lien_buf_data(buf, &data), 0);
    cr_assert_eq(lien_buf_len(buf), LEN);
    size_t wrong = 0;
    for (size_t i = 0; i < LEN; i++) {
        wrong += ((const uint8_t *)data)[i] != pattern(i);
    }
    cr_expect_eq(wrong, 0);
}

UNCHECKED static void write_byte(uint8_t *at)
{
    *(volatile uint8_t *)at = 1;
}

UNCHECKED static void read_byte(const uint8_t *at)
{
    (void)*(const volatile uint8_t *)at;
}

// What the handler reported of an access; "" if there was no fault.
static const char *reported(uint8_t *at, bool write_it)
{
    static char text[2048];
    FILE *kept = tmpfile();
    int old = dup(STDERR_FILENO);
    memset(text, 0, sizeof text);
    fflush(NULL);
    dup2(fileno(kept), STDERR_FILENO);
    if (sigsetjmp(back, 1) == 0) {
        if (write_it) {
            write_byte(at);
        } else {
            read_byte(at);
        }
    }
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(kept);
    size_t n = fread(text, 1, sizeof text - 1, kept);
    text[n] = 0;
    fclose(kept);
    return text;
}

static void expect_report(const char *text, const char *by, int side, uint64_t grant)
{
    char want[128];
    lien_conn_info info = {.size = sizeof info};
    cr_assert_eq(lien_conn_info_get(conn[side], &info), 0);
    snprintf(want, sizeof want, "lent by %s %" PRIu64 " of conn %016" PRIx64 "\n", by, grant,
             info.id);
    cr_expect(strstr(text, want), "'%s' is not in: %s", want, text);
}

Test(guard_tcp, a_grant_and_a_read_between_guarded_buffers)
{
    lien_buf *src = filled(0), *dst = NULL;
    void *src_at, *dst_at;
    cr_assert_eq(lien_buf_mut(src, &src_at), 0);
    cr_assert_eq(lien_pool_alloc(pool[1], LEN, &dst), 0);
    cr_assert_eq(lien_buf_mut(dst, &dst_at), 0);
    lien_token token;
    lien_grant *grant;
    cr_assert_eq(lien_grant_open(conn[0], &src, 1, NULL, &token, &grant), 0);
    lien_token_info info = {.size = sizeof info};
    cr_assert_eq(lien_token_open(conn[1], token.bytes, token.len, &info), 0);

    // While it is lent: it can be read and not written.
    expect_filled(src);
    expect_report(reported(src_at, true), "grant", 0, info.grant);
    cr_expect_str_eq(reported(src_at, false), "");
    cr_expect_eq(lien_read_wait(conn[1], token.bytes, token.len, &dst, 1, NULL), 0);
    expect_filled(dst);
    cr_expect_str_eq(reported(dst_at, true), "", "back: open");

    cr_expect_eq(lien_release(conn[1], token.bytes, token.len), 0);
    cr_expect_eq(lien_grant_wait(grant, WAIT), 0);
    cr_expect_str_eq(reported(src_at, true), "");
    lien_grant_close(&grant);
    lien_buf_free(&src);
    lien_buf_free(&dst);
}

Test(guard_tcp, a_space_under_a_read_cannot_be_touched)
{
    lien_buf *src = filled(0), *dst = NULL;
    void *at;
    cr_assert_eq(lien_pool_alloc(pool[1], LEN, &dst), 0);
    cr_assert_eq(lien_buf_mut(dst, &at), 0);
    lien_token token;
    lien_grant *grant;
    lien_space *space;
    cr_assert_eq(lien_grant_open(conn[0], &src, 1, NULL, &token, &grant), 0);
    lien_token_info info = {.size = sizeof info};
    cr_assert_eq(lien_token_open(conn[1], token.bytes, token.len, &info), 0);
    cr_assert_eq(lien_space_open(ctx[1], &dst, 1, &space), 0);
    // The read runs on another thread, so it may be over before the look: again until one was in time.
    bool seen = false;
    for (int tries = 0; tries < 200 && !seen; tries++) {
        cr_assert_eq(lien_read_start(conn[1], token.bytes, token.len, space, NULL, NULL), 0);
        const char *text = reported(at, tries % 2);
        if (text[0]) {
            expect_report(text, "a read of grant", 1, info.grant);
            cr_expect(strstr(text, "under a read"), "%s", text);
            seen = true;
        }
        cr_assert_eq(lien_space_wait(space, WAIT), 0);
    }
    cr_expect(seen, "no access met the read");
    cr_assert_eq(lien_space_take(space, &dst, 1), 0);
    lien_space_free(&space);
    cr_expect_str_eq(reported(at, false), "");
    lien_release(conn[1], token.bytes, token.len);
    cr_expect_eq(lien_grant_wait(grant, WAIT), 0);
    lien_grant_close(&grant);
    lien_buf_free(&src);
    lien_buf_free(&dst);
}

Test(guard_tcp, the_body_of_a_message)
{
    lien_buf *src = filled(0);
    cr_assert_eq(lien_send_wait(conn[0], "head", 4, &src, 1, NULL), 0);
    lien_msg *msg;
    cr_assert_eq(lien_msg_recv_wait(conn[1], WAIT, &msg), 0);
    expect_filled(lien_msg_body(msg));
    void *at;
    cr_assert_eq(lien_buf_mut(src, &at), 0);
    cr_expect_str_eq(reported(at, true), "");
    lien_msg_free(&msg);
    lien_buf_free(&src);
}
