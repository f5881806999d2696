// SPDX-License-Identifier: Apache-2.0
//
// The example of README.md, which shows it without this paragraph (tests/docs/check-readme compares them). One thread; a process plays both peers, for brevity.

#include <lien/lien.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Every function answers 0 or a negative code.
static void must(int rc)
{
    if (rc != 0)
        exit(fprintf(stderr, "%s\n", lien_strerror(rc)) > 0);
}

int main(void)
{
    lien_ctx *ctx;
    lien_pool *pool;
    lien_listener *listener;
    lien_conn *client, *server;
    char address[96];
    must(lien_ctx_open(NULL, &ctx));
    must(lien_pool_open(ctx, NULL, &pool));
    must(lien_listener_open(ctx, "127.0.0.1:0", NULL, &listener));
    must(lien_listener_address(listener, address, sizeof address));
    must(lien_conn_open_wait(ctx, address, NULL, &client));
    must(lien_listener_accept_wait(listener, 5000, &server));

    // The server grants a buffer: until the grant ends it can be read, not written.
    lien_buf *source, *target;
    lien_grant *grant;
    lien_token token;
    void *data;
    must(lien_pool_alloc(pool, 1 << 20, &source));
    must(lien_buf_mut(source, &data));
    memset(data, 'x', 1 << 20);
    must(lien_grant_open(server, &source, 1, NULL, &token, &grant));
    must(lien_send(server, token.bytes, token.len, NULL, 0, NULL));

    // The client gets the grant's token in a message, reads, and releases.
    lien_msg *msg;
    const void *head, *got;
    size_t len;
    must(lien_msg_recv_wait(client, 5000, &msg));
    must(lien_msg_head(msg, &head, &len));
    must(lien_pool_alloc(pool, 1 << 20, &target));
    must(lien_read_wait(client, head, len, &target, 1, NULL));
    must(lien_release(client, head, len));
    must(lien_grant_wait(grant, 5000)); // now the source can be written again
    must(lien_buf_data(target, &got));
    printf("%zu bytes read, the first is %c\n", lien_buf_len(target), *(const char *)got);

    lien_msg_free(&msg);
    lien_buf_free(&source);
    lien_buf_free(&target);
    must(lien_grant_close(&grant));
    must(lien_ctx_close(&ctx)); // and what is open in it
}
