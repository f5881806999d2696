// SPDX-License-Identifier: Apache-2.0
//
// See fabric_port.h.

#include "provider/fabric_port.h"

#include <errno.h>
#include <netinet/in.h>
#include <unistd.h>

static in_port_t *port_of(struct sockaddr_storage *addr)
{
    return addr->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)addr)->sin6_port
                                       : &((struct sockaddr_in *)addr)->sin_port;
}

// A listening socket, or a negative errno.
static int try_listen(const struct sockaddr_storage *at, uint16_t port, int backlog,
                      uint16_t *bound)
{
    struct sockaddr_storage addr = *at;
    socklen_t len = at->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                              : sizeof(struct sockaddr_in);
    int on = 1;
    int fd = socket(at->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    *port_of(&addr) = htons(port);
    if (port != 0) // a port of the range whose last connection is still in TIME_WAIT
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&addr, len) == 0 && listen(fd, backlog) == 0 &&
        getsockname(fd, (struct sockaddr *)&addr, &len) == 0) {
        *bound = ntohs(*port_of(&addr));
        return fd;
    }
    int error = errno;
    close(fd);
    return -error;
}

// Begun at a random port of the range, so that listeners do not race for the same.
int lieni_fabric_port_listen(const struct lieni_env *env, const struct sockaddr_storage *at,
                             uint16_t lo, uint16_t hi, int backlog, uint16_t *bound)
{
    if (lo == 0 && hi == 0)
        return try_listen(at, 0, backlog, bound);
    if (lo == 0 || lo > hi)
        return -EINVAL;
    uint32_t count = (uint32_t)(hi - lo) + 1, start;
    env->random(env->self, &start, sizeof start);
    int fd = -EADDRINUSE;
    for (uint32_t i = 0; i < count && fd == -EADDRINUSE; i++)
        fd = try_listen(at, (uint16_t)(lo + (start % count + i) % count), backlog, bound);
    return fd;
}
