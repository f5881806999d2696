// SPDX-License-Identifier: Apache-2.0
//
// App-driven progress under libuv: a poll handle on the descriptor, and a prepare handle, which runs right before the loop sleeps, to arm. What arm refuses is done from an
// idle handle, whose being active keeps the loop from sleeping.

#include <uv.h>

#include "tests/loops/echo.h"

struct driver {
    lien_ctx *ctx;
    const bool *done;
    uv_poll_t poll;
    uv_prepare_t prepare;
    uv_idle_t idle;
};

static void progress(struct driver *driver)
{
    IS(lien_ctx_progress(driver->ctx), 0);
    if (*driver->done)
        uv_stop(driver->poll.loop);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)events;
    IS(status, 0);
    progress(poll->data);
}

static void on_idle(uv_idle_t *idle)
{
    uv_idle_stop(idle);
    progress(idle->data);
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct driver *driver = prepare->data;
    if (lien_ctx_arm(driver->ctx) == LIEN_EAGAIN)
        uv_idle_start(&driver->idle, on_idle);
}

static void start(uv_loop_t *loop, struct driver *driver)
{
    int fd;
    IS(lien_ctx_fd(driver->ctx, &fd), 0);
    IS(uv_poll_init(loop, &driver->poll, fd), 0);
    IS(uv_prepare_init(loop, &driver->prepare), 0);
    IS(uv_idle_init(loop, &driver->idle), 0);
    driver->poll.data = driver->prepare.data = driver->idle.data = driver;
    IS(uv_poll_start(&driver->poll, UV_READABLE, on_readable), 0);
    IS(uv_prepare_start(&driver->prepare, on_prepare), 0);
}

static void run(lien_ctx *const *ctxs, size_t n, const bool *done)
{
    uv_loop_t loop;
    struct driver drivers[2];
    CHECK(n <= 2);
    IS(uv_loop_init(&loop), 0);
    for (size_t i = 0; i < n; i++) {
        drivers[i] = (struct driver){.ctx = ctxs[i], .done = done};
        start(&loop, &drivers[i]);
    }
    if (!*done)
        uv_run(&loop, UV_RUN_DEFAULT);
    CHECK(*done);
    for (size_t i = 0; i < n; i++) {
        uv_close((uv_handle_t *)&drivers[i].poll, NULL);
        uv_close((uv_handle_t *)&drivers[i].prepare, NULL);
        uv_close((uv_handle_t *)&drivers[i].idle, NULL);
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    IS(uv_loop_close(&loop), 0);
}

int main(void)
{
    return echo_main(run);
}
