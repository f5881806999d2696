// SPDX-License-Identifier: Apache-2.0
//
// Written from the header and the manual alone: one thread, no locks, an event loop of the program's own. It asks for 200 squares, at most 16 at a time, beside a timer of its own, and cancels those
// that "math/slow" does not answer when its timer says so. The server is another context of the same loop.

#include <lien/lien.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        int rc_ = (x);                                                                             \
        if (rc_ != 0) {                                                                            \
            fprintf(stderr, "line %d: %s\n", __LINE__, lien_errname(rc_));                         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define TOTAL 200u

static lien_conn *client, *accepted;
static uint32_t next, answered, wrong, running, cancelled;
static bool open_now, client_closed, server_closed;
static lien_request *slow_request;

static void square(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    uint32_t n = 0;
    (void)conn;
    (void)arg;
    CHECK(lien_request_args(request, &data, &len));
    memcpy(&n, data, len < sizeof n ? len : sizeof n);
    n *= n;
    CHECK(lien_request_reply(&request, 0, &n, sizeof n));
}

static void slow(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    slow_request = request;
}

static void start_some(void);

struct question {
    uint32_t n;
};

static void on_answer(void *arg, int status, lien_msg *reply)
{
    struct question *q = arg;
    const void *data;
    size_t len;
    uint32_t got = 0;
    CHECK(status);
    CHECK(lien_msg_head(reply, &data, &len));
    memcpy(&got, data, sizeof got);
    wrong += got != q->n * q->n;
    lien_msg_free(&reply);
    answered++;
    running--;
}

static void on_over(void *arg, int status)
{
    (void)status;
    free(arg);
    start_some();
}

static void start_some(void)
{
    while (next < TOTAL && running < 16) {
        struct question *q = malloc(sizeof *q);
        lien_call_opts opts;
        lien_call_opts_init(&opts);
        opts.on_done = on_answer;
        opts.on_released = on_over;
        opts.arg = q;
        if (!q)
            exit(1);
        q->n = next;
        int rc = lien_call_start(client, "math/square", &next, sizeof next, &opts, NULL);
        if (rc != 0) {
            free(q);
            if (rc == LIEN_EAGAIN)
                return;
            CHECK(rc);
        }
        next++;
        running++;
    }
}

static void on_open(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    (void)arg;
    CHECK(status);
    open_now = true;
}

static void on_writable(lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    start_some();
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    CHECK(status);
    *(bool *)arg = true;
}

static int on_accept(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    (void)listener;
    accepted = conn;
    *conn_arg = arg;
    return 0;
}

static void on_slow(void *arg, int status, lien_msg *reply)
{
    (void)arg;
    lien_msg_free(&reply);
    cancelled += status == LIEN_ECANCELED;
}

// The program's own loop: both contexts' descriptors and a timer.
static void loop_until(lien_ctx *const *ctx, int timer, bool (*over)(void))
{
    struct pollfd fds[3];
    for (int i = 0; i < 2; i++) {
        CHECK(lien_ctx_fd(ctx[i], &fds[i].fd));
        fds[i].events = POLLIN;
    }
    fds[2] = (struct pollfd){.fd = timer, .events = POLLIN};
    while (!over()) {
        int sleep_ok = 1;
        for (int i = 0; i < 2; i++) {
            CHECK(lien_ctx_progress(ctx[i]));
            int rc = lien_ctx_arm(ctx[i]);
            if (rc == LIEN_EAGAIN)
                sleep_ok = 0;
            else
                CHECK(rc);
        }
        if (over())
            return;
        if (poll(fds, 3, sleep_ok ? 10000 : 0) < 0)
            exit(1);
        if (fds[2].revents)
            return;
    }
}

static bool opened(void)
{
    return open_now && accepted;
}
static bool all_answered(void)
{
    return answered == TOTAL;
}
static bool never(void)
{
    return false;
}
static bool was_cancelled(void)
{
    return cancelled == 1 && slow_request && lien_request_cancelled(slow_request);
}
static bool all_closed(void)
{
    return client_closed && server_closed;
}

int main(void)
{
    static const lien_method methods[] = {{.name = "math/square", .handle = square},
                                          {.name = "math/slow", .handle = slow}};
    static const lien_service service = {.methods = methods, .n_methods = 2};
    lien_ctx *ctx[2];
    lien_ctx_opts ctx_opts;
    lien_ctx_opts_init(&ctx_opts);
    ctx_opts.flags = LIEN_APP_DRIVEN;
    CHECK(lien_ctx_open(&ctx_opts, &ctx[0]));
    CHECK(lien_ctx_open(&ctx_opts, &ctx[1]));
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);

    lien_conn_opts conn_opts;
    lien_conn_opts_init(&conn_opts);
    conn_opts.service = &service;
    conn_opts.on_closed = on_closed;
    lien_listener_opts listener_opts;
    lien_listener_opts_init(&listener_opts);
    listener_opts.conn = &conn_opts;
    listener_opts.arg = &server_closed;
    listener_opts.on_accept = on_accept;
    lien_listener *listener;
    char address[96];
    CHECK(lien_listener_open(ctx[0], "127.0.0.1:0", &listener_opts, &listener));
    CHECK(lien_listener_address(listener, address, sizeof address));
    lien_conn_opts_init(&conn_opts);
    conn_opts.on_open = on_open;
    conn_opts.on_writable = on_writable;
    conn_opts.on_closed = on_closed;
    conn_opts.arg = &client_closed;
    CHECK(lien_conn_open(ctx[1], address, &conn_opts, &client));
    loop_until(ctx, timer, opened);

    start_some();
    loop_until(ctx, timer, all_answered);

    lien_call *call;
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.on_done = on_slow;
    CHECK(lien_call_start(client, "math/slow", NULL, 0, &opts, &call));
    struct itimerspec soon = {.it_value.tv_nsec = 50000000};
    timerfd_settime(timer, 0, &soon, NULL);
    loop_until(ctx, timer, never); // until the timer
    uint64_t ticks;
    if (read(timer, &ticks, sizeof ticks) != sizeof ticks)
        return 1;
    CHECK(lien_call_close(&call));
    loop_until(ctx, timer, was_cancelled);
    lien_request_drop(&slow_request);

    CHECK(lien_conn_close(&client));
    CHECK(lien_conn_close(&accepted));
    loop_until(ctx, timer, all_closed);
    CHECK(lien_ctx_close(&ctx[1]));
    CHECK(lien_ctx_close(&ctx[0]));
    close(timer);
    printf("%u squares, %u wrong, %u cancelled\n", (unsigned)answered, (unsigned)wrong,
           (unsigned)cancelled);
    return wrong != 0;
}
