// SPDX-License-Identifier: Apache-2.0
//
// The first READ, with memory of the application's own: map, register, connect, transfer, compare, deregister, close. A process plays both peers.

#include <lien/lien.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LEN (4 << 20)

static void must(int rc) // every function answers 0 or a negative code
{
    if (rc != 0)
        exit(fprintf(stderr, "%s\n", lien_strerror(rc)) > 0);
}

int main(void)
{
    lien_ctx *ctx;
    lien_listener *listener;
    lien_conn *reader, *owner;
    lien_mem *source_mem, *target_mem;
    lien_buf *source, *target;
    lien_grant *grant;
    lien_token token;
    char address[96];

    char *from = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *to = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (from == MAP_FAILED || to == MAP_FAILED)
        return 1;
    for (size_t i = 0; i < LEN; i++)
        from[i] = (char)(i * 31 >> 4);
    must(lien_ctx_open(NULL, &ctx));
    must(lien_mem_register(ctx, from, LEN, NULL, &source_mem));
    must(lien_mem_register(ctx, to, LEN, NULL, &target_mem));
    must(lien_mem_buf(source_mem, 0, LEN, &source));
    must(lien_mem_buf(target_mem, 0, LEN, &target));
    must(lien_listener_open(ctx, "127.0.0.1:0", NULL, &listener));
    must(lien_listener_address(listener, address, sizeof address));
    must(lien_conn_open_wait(ctx, address, NULL, &reader));
    must(lien_listener_accept_wait(listener, 5000, &owner));

    must(lien_grant_open(owner, &source, 1, NULL, &token, &grant)); // the reader may read
    must(lien_read_wait(reader, token.bytes, token.len, &target, 1, NULL));
    must(lien_release(reader, token.bytes, token.len)); // and needs it no more

    int differs = memcmp(from, to, LEN);
    printf("%d bytes, %s\n", LEN, differs ? "which differ" : "the same at both ends");
    must(lien_grant_close(&grant));
    lien_buf_free(&source);
    lien_buf_free(&target);
    must(lien_mem_unregister_wait(&source_mem, 5000)); // now it may be unmapped
    must(lien_mem_unregister_wait(&target_mem, 5000));
    must(lien_ctx_close(&ctx)); // closes the connections and the listener too
    return differs || munmap(from, LEN) != 0 || munmap(to, LEN) != 0;
}
