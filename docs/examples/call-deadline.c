// SPDX-License-Identifier: Apache-2.0
//
// A call whose deadline passes while the server keeps it, and which uses its buffers again. Two events tell the caller where it stands:
//
//  - done: the call has ended (LIEN_ETIMEDOUT). The read space is the caller's from here on: a server that still reads it is told that its bytes are stale.
//  - released: the write space is the caller's too. Here nothing ran into it, so that is at once; if a transfer had, it would be when that transfer's end is proved.
//
// A second call, with the same buffers and other contents, then gets a right answer: nothing of the first call is left in them. A process plays both peers.

#include <lien/lien.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEN (1 << 16)

static void must(int rc)
{
    if (rc != 0)
        exit(fprintf(stderr, "%s\n", lien_strerror(rc)) > 0);
}

// -- The server ------------------------------------------------------------------------------------------------------------------------

// "demo/keep": never answers. The request is ours until we say otherwise, also after its call has ended; we let it go when nobody waits any more.
static void nobody_waits(void *arg)
{
    lien_request *request = arg;
    lien_request_drop(&request);
}

static void keep(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    if (lien_request_on_cancel(request, nobody_waits, request) != 0)
        lien_request_drop(&request); // it is so already
}

struct server {
    lien_ctx *ctx;
    lien_pool *pool;
};

// "demo/copy": reads the caller's bytes and writes them into its write space. It blocks, which is fair with a dispatch thread to spare (see handler-in-place.c for one that does not).
static void copy(lien_request *request, lien_conn *conn, void *arg)
{
    struct server *server = arg;
    lien_buf *buf;
    lien_space *space;
    (void)conn;
    must(lien_pool_alloc(server->pool, (size_t)lien_request_read_len(request), &buf));
    must(lien_space_open(server->ctx, &buf, 1, &space));
    must(lien_request_read_wait(request, space, NULL));
    must(lien_space_take(space, &buf, 1));
    must(lien_request_write_wait(request, &buf, 1, NULL));
    must(lien_request_reply(&request, 0, NULL, 0));
    lien_space_free(&space);
    lien_buf_free(&buf); // takes effect when the caller has released it
}

// -- The client ------------------------------------------------------------------------------------------------------------------------

struct events {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done, released;
    int done_status, released_status;
};

static void on_done(void *arg, int status, lien_msg *reply)
{
    struct events *e = arg;
    lien_msg_free(&reply); // NULL here: no handler said anything
    pthread_mutex_lock(&e->lock);
    e->done = true;
    e->done_status = status;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void on_released(void *arg, int status)
{
    struct events *e = arg;
    pthread_mutex_lock(&e->lock);
    e->released = true;
    e->released_status = status;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void wait_for(struct events *e, const bool *event)
{
    pthread_mutex_lock(&e->lock);
    while (!*event)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

static void fill(lien_buf *buf, int value)
{
    void *data;
    must(lien_buf_mut(buf, &data));
    memset(data, value, LEN);
}

// Buffers come back from a call that timed out.
static int time_out(lien_conn *conn, lien_buf *source, lien_space *target)
{
    struct events e = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.timeout_ms = 100;
    opts.read = &source;
    opts.n_read = 1;
    opts.write = target;
    opts.on_done = on_done;
    opts.on_released = on_released;
    opts.arg = &e;
    must(lien_call_start(conn, "demo/keep", NULL, 0, &opts, NULL));

    wait_for(&e, &e.done);
    printf("done: %s\n", lien_errname(e.done_status));
    fill(source, 'b'); // the borrow ended with the call: this would have been LIEN_EBUSY before
    wait_for(&e, &e.released);
    printf("released: %s\n", lien_errname(e.released_status));
    return e.done_status == LIEN_ETIMEDOUT && e.released_status == 0 ? 0 : 1;
}

// And are used again.
static int use_again(lien_conn *conn, lien_buf *source, lien_space *target)
{
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.read = &source;
    opts.n_read = 1;
    opts.write = target;
    must(lien_call_wait(conn, "demo/copy", NULL, 0, &opts, NULL));
    must(lien_space_wait(target, 5000)); // the blocking twin of on_released

    lien_buf *buf;
    const void *data;
    must(lien_space_buf(target, 0, &buf));
    must(lien_buf_data(buf, &data));
    for (size_t i = 0; i < LEN; i++) {
        if (((const char *)data)[i] != 'b')
            return 1;
    }
    puts("the same buffers served another call");
    return 0;
}

int main(void)
{
    lien_ctx *ctx;
    lien_pool *pool;
    lien_listener *listener;
    lien_conn *client, *server;
    lien_buf *source, *slot;
    lien_space *target;
    char address[96];
    lien_ctx_opts ctx_opts;
    lien_ctx_opts_init(&ctx_opts);
    ctx_opts.settings = (const char *const[]){"dispatch_threads=2", NULL};
    must(lien_ctx_open(&ctx_opts, &ctx));
    must(lien_pool_open(ctx, NULL, &pool));

    struct server demo = {.ctx = ctx, .pool = pool};
    const lien_method methods[] = {{.name = "demo/keep", .handle = keep},
                                   {.name = "demo/copy", .handle = copy, .arg = &demo}};
    const lien_service service = {.methods = methods, .n_methods = 2};
    lien_conn_opts conn_opts;
    lien_conn_opts_init(&conn_opts);
    conn_opts.service = &service;
    lien_listener_opts listener_opts;
    lien_listener_opts_init(&listener_opts);
    listener_opts.conn = &conn_opts;
    must(lien_listener_open(ctx, "127.0.0.1:0", &listener_opts, &listener));
    must(lien_listener_address(listener, address, sizeof address));
    must(lien_conn_open_wait(ctx, address, NULL, &client));
    must(lien_listener_accept_wait(listener, 5000, &server));

    must(lien_pool_alloc(pool, LEN, &source));
    must(lien_pool_alloc(pool, LEN, &slot));
    must(lien_space_open(ctx, &slot, 1, &target));
    fill(source, 'a');
    int bad = time_out(client, source, target) || use_again(client, source, target);

    lien_space_free(&target);
    lien_buf_free(&source);
    must(lien_ctx_close(&ctx));
    return bad;
}
