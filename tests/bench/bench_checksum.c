// SPDX-License-Identifier: Apache-2.0
//
// What LIEN_CHECKSUM costs: a grant, its whole read and its release, with and without, over the provider that FI_PROVIDER names, between two processes. Both kinds take turns, operation by operation, on
// one connection; the median of each, and the median of the ratio of neighbours. The reader is one thread that waits.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <lien/lien.h>

#define ROUNDS 400

static const size_t sizes[] = {4096, 65536, (size_t)1 << 20, (size_t)16 << 20};
#define N_SIZES (sizeof sizes / sizeof sizes[0])

static void must(int rc, const char *what)
{
    if (rc != 0) {
        fprintf(stderr, "bench_checksum: %s: %s\n", what, lien_errname(rc));
        exit(1);
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// Grants what each message asks for: its size's number, and whether with a checksum; the token goes back.
static void serve(int out)
{
    lien_ctx *ctx;
    lien_listener *listener;
    lien_conn *conn;
    lien_buf *bufs[N_SIZES];
    lien_pool *pool;
    char address[96];
    must(lien_ctx_open(NULL, &ctx), "ctx");
    must(lien_pool_open(ctx, NULL, &pool), "pool");
    for (size_t i = 0; i < N_SIZES; i++) {
        void *data;
        must(lien_pool_alloc(pool, sizes[i], &bufs[i]), "alloc");
        must(lien_buf_mut(bufs[i], &data), "mut");
        memset(data, (int)i + 1, sizes[i]);
    }
    must(lien_listener_open(ctx, "127.0.0.1:0", NULL, &listener), "listen");
    must(lien_listener_address(listener, address, sizeof address), "address");
    if (write(out, address, sizeof address) != (ssize_t)sizeof address)
        exit(1);
    must(lien_listener_accept_wait(listener, LIEN_FOREVER, &conn), "accept");
    lien_msg *msg;
    while (lien_msg_recv_wait(conn, LIEN_FOREVER, &msg) == 0) {
        const void *head;
        size_t len;
        uint8_t asked[2];
        lien_token token;
        lien_grant *grant;
        lien_grant_opts opts;
        lien_grant_opts_init(&opts);
        must(lien_msg_head(msg, &head, &len), "head");
        memcpy(asked, head, sizeof asked);
        lien_msg_free(&msg);
        opts.flags = asked[1] ? LIEN_CHECKSUM : 0;
        must(lien_grant_open(conn, &bufs[asked[0]], 1, &opts, &token, &grant), "grant");
        must(lien_send_wait(conn, token.bytes, token.len, NULL, 0, NULL), "send");
        must(lien_grant_wait(grant, LIEN_FOREVER), "release");
        lien_grant_close(&grant);
    }
    exit(0); // the client is gone
}

static uint64_t once(lien_conn *conn, lien_buf **slot, uint8_t size, uint8_t with)
{
    const uint8_t ask[2] = {size, with};
    const void *token;
    size_t len;
    lien_msg *msg;
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.flags = LIEN_RELEASE;
    const uint64_t start = now_ns();
    must(lien_send_wait(conn, ask, sizeof ask, NULL, 0, NULL), "ask");
    must(lien_msg_recv_wait(conn, LIEN_FOREVER, &msg), "token");
    must(lien_msg_head(msg, &token, &len), "head");
    must(lien_read_wait(conn, token, len, slot, 1, &opts), "read");
    const uint64_t took = now_ns() - start;
    lien_msg_free(&msg);
    return took;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_size);
    return values[n / 2];
}

int main(void)
{
    int ends[2];
    char address[96];
    if (pipe(ends) != 0)
        return 1;
    const pid_t child = fork();
    if (child == 0)
        serve(ends[1]);
    if (read(ends[0], address, sizeof address) != (ssize_t)sizeof address)
        return 1;
    lien_ctx *ctx;
    lien_pool *pool;
    lien_conn *conn;
    must(lien_ctx_open(NULL, &ctx), "ctx");
    must(lien_pool_open(ctx, NULL, &pool), "pool");
    must(lien_conn_open_wait(ctx, address, NULL, &conn), "connect");
    printf("%10s  %12s  %12s  %8s\n", "bytes", "without us", "with us", "ratio");
    for (uint8_t i = 0; i < N_SIZES; i++) {
        static double took[2][ROUNDS], ratio[ROUNDS];
        lien_buf *buf;
        must(lien_pool_alloc(pool, sizes[i], &buf), "alloc");
        const size_t rounds = sizes[i] > (1u << 20) ? ROUNDS / 8 : ROUNDS;
        for (size_t n = 0; n < rounds; n++) {
            for (uint8_t turn = 0; turn < 2; turn++) { // who is first takes turns, too
                const uint8_t with = (uint8_t)((n + turn) % 2);
                took[with][n] = (double)once(conn, &buf, i, with) / 1e3;
            }
            ratio[n] = took[1][n] / took[0][n];
        }
        printf("%10zu  %12.1f  %12.1f  %8.2f\n", sizes[i], median(took[0], rounds),
               median(took[1], rounds), median(ratio, rounds));
        lien_buf_free(&buf);
    }
    must(lien_conn_close_wait(&conn, 5000), "close");
    lien_ctx_close(&ctx);
    waitpid(child, NULL, 0);
    return 0;
}
