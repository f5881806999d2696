// SPDX-License-Identifier: Apache-2.0
//
// App-driven progress under plain epoll.

#include <sys/epoll.h>
#include <unistd.h>

#include "tests/loops/echo.h"

static bool all_armed(lien_ctx *const *ctxs, size_t n)
{
    bool armed = true;
    for (size_t i = 0; i < n; i++) {
        int rc = lien_ctx_arm(ctxs[i]);
        CHECK(rc == 0 || rc == LIEN_EAGAIN);
        if (rc == LIEN_EAGAIN) {
            armed = false;
            IS(lien_ctx_progress(ctxs[i]), 0);
        }
    }
    return armed;
}

static void run(lien_ctx *const *ctxs, size_t n, const bool *done)
{
    int epfd = epoll_create1(EPOLL_CLOEXEC);
    CHECK(epfd >= 0);
    for (size_t i = 0; i < n; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = ctxs[i]};
        int fd;
        IS(lien_ctx_fd(ctxs[i], &fd), 0);
        CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    while (!*done) {
        struct epoll_event events[4];
        if (!all_armed(ctxs, n))
            continue;
        int got = epoll_wait(epfd, events, 4, -1);
        for (int i = 0; i < got; i++)
            IS(lien_ctx_progress(events[i].data.ptr), 0);
    }
    close(epfd);
}

int main(void)
{
    return echo_main(run);
}
