// SPDX-License-Identifier: Apache-2.0
//
// The socket itself (pipe), and the carrier that adds nothing to it. Reads and writes go until LIEN_EAGAIN, as edge-triggered watching wants it; once that was seen no call is made until
// epoll reports the socket again. Progress context.

#include <errno.h>
#include <sys/socket.h>

#include "provider/stream/stream.h"

static int64_t failed(struct lieni_pipe *pipe, bool *can)
{
    if (errno == EAGAIN) {
        *can = false;
        return LIEN_EAGAIN;
    }
    pipe->error = errno;
    return errno == EPIPE || errno == ECONNRESET ? LIEN_ECLOSED : LIEN_EIO;
}

int64_t lieni_pipe_read(struct lieni_pipe *pipe, void *buf, size_t len)
{
    if (pipe->tls)
        return lieni_tls_read(pipe, buf, len);
    if (!pipe->can_read)
        return LIEN_EAGAIN;
    ssize_t n;
    do
        n = recv(pipe->fd, buf, len, 0);
    while (n < 0 && errno == EINTR);
    if (n == 0)
        return LIEN_ECLOSED;
    return n > 0 ? n : failed(pipe, &pipe->can_read);
}

int64_t lieni_pipe_write(struct lieni_pipe *pipe, const struct iovec *iov, int n)
{
    if (pipe->tls)
        return lieni_tls_write(pipe, iov, n);
    if (!pipe->can_write)
        return LIEN_EAGAIN;
    union {
        const struct iovec *from;
        struct iovec *iov; // read only there
    } parts = {.from = iov};
    struct msghdr msg = {.msg_iov = parts.iov, .msg_iovlen = (size_t)n};
    ssize_t sent;
    do
        sent = sendmsg(pipe->fd, &msg, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent > 0 ? sent : failed(pipe, &pipe->can_write);
}

static int plain_open(struct lieni_lane *lane)
{
    (void)lane;
    return 0;
}

static int64_t plain_read(struct lieni_lane *lane, void *buf, size_t len)
{
    return lieni_pipe_read(&lane->pipe, buf, len);
}

static int64_t plain_write(struct lieni_lane *lane, const struct iovec *iov, int n)
{
    return lieni_pipe_write(&lane->pipe, iov, n);
}

static void plain_nothing(struct lieni_lane *lane)
{
    (void)lane;
}

const struct lieni_carrier lieni_carrier_plain = {
    .open = plain_open,
    .ready = plain_open,
    .read = plain_read,
    .write = plain_write,
    .flush = plain_open,
    .end = plain_nothing,
    .close = plain_nothing,
};
