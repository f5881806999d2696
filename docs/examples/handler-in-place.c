// SPDX-License-Identifier: Apache-2.0
//
// A handler that works in place: it reads the caller's buffers into one of its own, changes the bytes there (text to capitals), and writes the same buffer back into the caller's write space. It
// never blocks: each step is started, and the next one begins in the callback of the last, so one dispatch thread serves any number of requests. A process plays both peers.

#include <ctype.h>
#include <lien/lien.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int rc)
{
    if (rc != 0)
        exit(fprintf(stderr, "%s\n", lien_strerror(rc)) > 0);
}

// -- The server ------------------------------------------------------------------------------------------------------------------------

struct server {
    lien_ctx *ctx;
    lien_pool *pool;
};

// One request on its way. All of it runs on the request's strand: one step at a time.
struct work {
    struct server *server;
    lien_request *request;
    lien_space *space; // under the read
    lien_buf *buf;     // before and after it
    int status;        // what on_done said
};

static void finish(struct work *work, int status)
{
    if (lien_request_reply(&work->request, status, NULL, 0) != 0)
        lien_request_drop(&work->request); // a write was given up, say
    lien_space_free(&work->space);         // these two take NULL, and wait for what is still lent
    lien_buf_free(&work->buf);
    free(work);
}

static void on_done(void *arg, int status)
{
    struct work *work = arg;
    work->status = status; // known now; but the memory may still be lent: go on in on_released
}

static void written(void *arg, int status)
{
    struct work *work = arg;
    finish(work, work->status != 0 ? work->status : status);
}

static void was_read(void *arg, int status)
{
    struct work *work = arg;
    void *data;
    if (work->status != 0 ||
        status != 0) { // LIEN_ESTALE, a lost connection ...: not one byte is to be believed
        finish(work, work->status != 0 ? work->status : status);
        return;
    }
    must(lien_space_take(work->space, &work->buf, 1)); // ours again: not lent to anybody
    must(lien_buf_mut(work->buf, &data));
    unsigned char *text = data;
    for (size_t i = 0; i < lien_buf_len(work->buf); i++)
        text[i] = (unsigned char)toupper(text[i]);

    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.on_done = on_done;
    opts.on_released = written;
    opts.arg = work;
    int rc = lien_request_write(work->request, &work->buf, 1, &opts);
    if (rc != 0) // nothing was lent, and neither callback runs
        finish(work, rc);
}

static void capitals(lien_request *request, lien_conn *conn, void *arg)
{
    struct server *server = arg;
    struct work *work = calloc(1, sizeof *work);
    size_t len = (size_t)lien_request_read_len(request);
    (void)conn;
    if (!work) {
        lien_request_drop(&request);
        return;
    }
    *work = (struct work){.server = server, .request = request};
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.on_done = on_done;
    opts.on_released = was_read;
    opts.arg = work;
    int rc = len == lien_request_write_len(request) ? 0 : LIEN_ERANGE;
    if (rc == 0)
        rc = lien_pool_alloc(server->pool, len, &work->buf);
    if (rc == 0)
        rc = lien_space_open(server->ctx, &work->buf, 1, &work->space);
    if (rc == 0)
        rc = lien_request_read(request, work->space, &opts);
    if (rc != 0)
        finish(work, rc);
}

// -- The client ------------------------------------------------------------------------------------------------------------------------

static const char first[] = "a lien is a right over somebody else's property, ";
static const char second[] = "that ends only when it is discharged";

static lien_buf *text_buf(lien_pool *pool, const char *text)
{
    lien_buf *buf;
    void *data;
    must(lien_pool_alloc(pool, strlen(text), &buf));
    must(lien_buf_mut(buf, &data));
    memcpy(data, text, strlen(text));
    return buf;
}

// Two buffers are read as one run of bytes, and written into one.
static int call(lien_ctx *ctx, lien_pool *pool, lien_conn *conn)
{
    lien_buf *parts[] = {text_buf(pool, first), text_buf(pool, second)}, *whole;
    lien_space *target;
    size_t len = strlen(first) + strlen(second);
    must(lien_pool_alloc(pool, len, &whole));
    must(lien_space_open(ctx, &whole, 1, &target)); // moved in: `whole` is NULL now

    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.read = parts;
    opts.n_read = 2;
    opts.write = target;
    must(lien_call_wait(conn, "demo/capitals", NULL, 0, &opts, NULL));
    must(lien_space_wait(target, 5000));
    must(lien_space_take(target, &whole, 1));

    const void *data;
    must(lien_buf_data(whole, &data));
    const char *got = data;
    int bad = 0;
    for (size_t i = 0; i < len; i++) {
        char was = i < strlen(first) ? first[i] : second[i - strlen(first)];
        bad |= got[i] != (char)toupper((unsigned char)was);
    }
    printf("%.*s\n", (int)len, got);
    lien_space_free(&target);
    lien_buf_free(&whole);
    lien_buf_free(&parts[0]);
    lien_buf_free(&parts[1]);
    return bad;
}

int main(void)
{
    struct server demo;
    lien_listener *listener;
    lien_conn *client, *server;
    char address[96];
    must(lien_ctx_open(NULL, &demo.ctx));
    must(lien_pool_open(demo.ctx, NULL, &demo.pool));

    const lien_method methods[] = {{.name = "demo/capitals", .handle = capitals, .arg = &demo}};
    const lien_service service = {.methods = methods, .n_methods = 1};
    lien_conn_opts conn_opts;
    lien_conn_opts_init(&conn_opts);
    conn_opts.service = &service;
    lien_listener_opts listener_opts;
    lien_listener_opts_init(&listener_opts);
    listener_opts.conn = &conn_opts;
    must(lien_listener_open(demo.ctx, "127.0.0.1:0", &listener_opts, &listener));
    must(lien_listener_address(listener, address, sizeof address));
    must(lien_conn_open_wait(demo.ctx, address, NULL, &client));
    must(lien_listener_accept_wait(listener, 5000, &server));
    int bad = call(demo.ctx, demo.pool, client);
    must(lien_ctx_close(&demo.ctx)); // closes the connections, the listener and the pool too
    return bad;
}
