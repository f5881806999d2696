// SPDX-License-Identifier: Apache-2.0
//
// A server for peers in other languages: listens on loopback with the providers of its environment, prints "port N", answers each call of "echo" with its arguments and its body, and each message with itself.
// Ends when its standard input does. Public API only.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/call.h>
#include <lien/lien.h>

static void must(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "echo_server: %s: %s\n", what, lien_strerror(rc));
    exit(1);
}

static void echo(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    lien_buf *body = NULL;
    (void)conn;
    (void)arg;
    must(lien_request_args(request, &data, &len), "lien_request_args");
    if (lien_request_take_body(request, &body) == 0)
        must(lien_request_reply_body(&request, 0, data, len, &body, 1), "lien_request_reply_body");
    else
        must(lien_request_reply(&request, 0, data, len), "lien_request_reply");
}

static int accepted(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    (void)listener;
    (void)conn;
    (void)arg;
    *conn_arg = NULL;
    return 0; // closed with the ctx
}

int main(void)
{
    static const lien_method methods[] = {{.name = "echo", .handle = echo}};
    static const lien_service service = {.methods = methods, .n_methods = 1};
    lien_ctx *ctx;
    lien_listener *listener;
    lien_conn_opts conn;
    lien_listener_opts opts;
    char address[96], byte;
    lien_conn_opts_init(&conn);
    conn.service = &service;
    lien_listener_opts_init(&opts);
    opts.conn = &conn;
    opts.on_accept = accepted;
    must(lien_ctx_open(NULL, &ctx), "lien_ctx_open");
    must(lien_listener_open(ctx, "127.0.0.1:0", &opts, &listener), "lien_listener_open");
    must(lien_listener_address(listener, address, sizeof address), "lien_listener_address");
    printf("port %s\n", strrchr(address, ':') + 1);
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    lien_ctx_stats stats = {.size = sizeof stats};
    must(lien_ctx_stats_get(ctx, &stats), "lien_ctx_stats_get");
    printf("protocol errors %llu, READ bytes %llu\n", (unsigned long long)stats.protocol_errors,
           (unsigned long long)stats.read_bytes);
    must(lien_ctx_close(&ctx), "lien_ctx_close");
    return 0;
}
