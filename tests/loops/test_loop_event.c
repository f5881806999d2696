// SPDX-License-Identifier: Apache-2.0
//
// App-driven progress under libevent.

#include <event2/event.h>

#include "tests/loops/echo.h"

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    IS(lien_ctx_progress(arg), 0);
}

static bool all_armed(lien_ctx *const *ctxs, size_t n)
{
    bool armed = true;
    for (size_t i = 0; i < n; i++) {
        if (lien_ctx_arm(ctxs[i]) == LIEN_EAGAIN) {
            armed = false;
            IS(lien_ctx_progress(ctxs[i]), 0);
        }
    }
    return armed;
}

static void run(lien_ctx *const *ctxs, size_t n, const bool *done)
{
    struct event_base *base = event_base_new();
    struct event *events[2];
    CHECK(base != NULL && n <= 2);
    for (size_t i = 0; i < n; i++) {
        int fd;
        IS(lien_ctx_fd(ctxs[i], &fd), 0);
        events[i] = event_new(base, fd, EV_READ | EV_PERSIST, on_readable, ctxs[i]);
        CHECK(events[i] != NULL && event_add(events[i], NULL) == 0);
    }
    // One turn a time, so that arm comes right before the sleep.
    while (!*done)
        CHECK(event_base_loop(base, all_armed(ctxs, n) ? EVLOOP_ONCE : EVLOOP_NONBLOCK) >= 0);
    for (size_t i = 0; i < n; i++)
        event_free(events[i]);
    event_base_free(base);
}

int main(void)
{
    return echo_main(run);
}
