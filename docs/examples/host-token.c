// SPDX-License-Identifier: Apache-2.0
//
// A host with a protocol of its own, which uses Lien for bulk only: its messages go over its own TCP socket, and one of them carries the token of a grant. The peers are two processes:
//
//   reader                                        owner
//   connects its socket                           sends HELLO: where its Lien listener is
//   connects by Lien, sends WANT: the id of that  finds the connection of that id, grants its buffer to it,
//   connection, which is the same at both ends    sends BULK: the token, and a checksum
//   READs, checks, releases, sends DONE           waits until the buffer is its own again
//
// A token is good on the connection that it was made for, and nowhere else; so the host has to know which of its clients is which connection.

#include <arpa/inet.h>
#include <lien/lien.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN (8 << 20)

// The host's messages. Both ends are this program on one machine, so plain structs do.
struct hello {
    char address[96];
};
struct want {
    uint64_t conn;
};
struct bulk {
    uint64_t checksum;
    uint32_t token_len;
    uint8_t token[LIEN_TOKEN_MAX];
};
struct done {
    char matches;
};

static void must(int rc)
{
    if (rc != 0)
        exit(fprintf(stderr, "%s\n", lien_strerror(rc)) > 0);
}

static void must_be(int yes, const char *what)
{
    if (!yes)
        exit(fprintf(stderr, "%s failed\n", what) > 0);
}

static void send_all(int fd, const void *bytes, size_t len)
{
    must_be(send(fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len, "send"); // blocking: all or nothing
}

static void recv_all(int fd, void *bytes, size_t len)
{
    must_be(recv(fd, bytes, len, MSG_WAITALL) == (ssize_t)len, "recv");
}

static uint64_t checksum(const void *data, size_t len) // FNV-1a
{
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return sum;
}

static uint64_t conn_id(lien_conn *conn)
{
    lien_conn_info info = {.size = sizeof info};
    must(lien_conn_info_get(conn, &info));
    return info.id;
}

// -- Owner -----------------------------------------------------------------------------------------------------------------------------

static void fill(lien_buf *buf, struct bulk *bulk)
{
    void *data;
    must(lien_buf_mut(buf, &data));
    for (size_t i = 0; i < LEN; i++)
        ((unsigned char *)data)[i] = (unsigned char)(i * 2654435761u >> 11);
    bulk->checksum = checksum(data, LEN);
}

static int own(int fd)
{
    lien_ctx *ctx;
    lien_pool *pool;
    lien_listener *listener;
    lien_conn *conn;
    lien_buf *buf;
    lien_grant *grant;
    lien_token token;
    struct hello hello = {{0}};
    struct want want;
    struct bulk bulk = {0};
    struct done done;
    must(lien_ctx_open(NULL, &ctx));
    must(lien_pool_open(ctx, NULL, &pool));
    must(lien_listener_open(ctx, "127.0.0.1:0", NULL, &listener));
    must(lien_listener_address(listener, hello.address, sizeof hello.address));
    send_all(fd, &hello, sizeof hello);

    recv_all(fd, &want, sizeof want);
    must(lien_listener_accept_wait(listener, 5000, &conn));
    must_be(conn_id(conn) == want.conn,
            "finding the connection"); // a real host looks it up in a table

    must(lien_pool_alloc(pool, LEN, &buf));
    fill(buf, &bulk);
    must(lien_grant_open(conn, &buf, 1, NULL, &token, &grant));
    bulk.token_len = token.len;
    memcpy(bulk.token, token.bytes, token.len);
    send_all(fd, &bulk, sizeof bulk);

    recv_all(fd, &done, sizeof done);
    must(lien_grant_wait(
        grant, 5000)); // DONE is the reader's word; this is what makes the buffer ours again
    void *data;
    must(lien_buf_mut(buf, &data));
    must(lien_grant_close(&grant));
    lien_buf_free(&buf);
    must(lien_ctx_close(&ctx));
    return done.matches ? 0 : 1;
}

// -- Reader ----------------------------------------------------------------------------------------------------------------------------

static int read_it(int fd)
{
    lien_ctx *ctx;
    lien_pool *pool;
    lien_conn *conn;
    lien_buf *buf;
    struct hello hello;
    struct want want;
    struct bulk bulk;
    struct done done;
    recv_all(fd, &hello, sizeof hello);
    must(lien_ctx_open(NULL, &ctx));
    must(lien_pool_open(ctx, NULL, &pool));
    must(lien_conn_open_wait(ctx, hello.address, NULL, &conn));
    want.conn = conn_id(conn);
    send_all(fd, &want, sizeof want);

    recv_all(fd, &bulk, sizeof bulk);
    lien_token_info info = {.size = sizeof info}; // what came is not trusted: does the token fit?
    must_be(bulk.token_len <= LIEN_TOKEN_MAX, "the token's length");
    must(lien_token_open(conn, bulk.token, bulk.token_len, &info));
    must_be(info.len == LEN, "the grant's length");
    must(lien_pool_alloc(pool, LEN, &buf));
    must(lien_read_wait(conn, bulk.token, bulk.token_len, &buf, 1, NULL));
    must(lien_release(conn, bulk.token, bulk.token_len));

    const void *data;
    must(lien_buf_data(buf, &data));
    done.matches = checksum(data, LEN) == bulk.checksum;
    send_all(fd, &done, sizeof done);
    printf("%d bytes by a token in a message of the host's, checksum %s\n", LEN,
           done.matches ? "right" : "WRONG");
    lien_buf_free(&buf);
    must(lien_ctx_close(&ctx));
    return done.matches ? 0 : 1;
}

// -- The host's own socket -------------------------------------------------------------------------------------------------------------

int main(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), status;
    must_be(listener >= 0 && bind(listener, (struct sockaddr *)&at, len) == 0 &&
                listen(listener, 1) == 0 &&
                getsockname(listener, (struct sockaddr *)&at, &len) == 0,
            "listening");
    pid_t child = fork(); // before Lien is used: a child cannot use its parent's handles
    must_be(child >= 0, "fork");
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        must_be(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0, "connecting");
        return read_it(fd);
    }
    int fd = accept(listener, NULL, NULL);
    must_be(fd >= 0, "accept");
    int bad = own(fd);
    must_be(waitpid(child, &status, 0) == child, "waitpid");
    return bad || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
