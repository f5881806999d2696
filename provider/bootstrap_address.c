// SPDX-License-Identifier: Apache-2.0
//
// Addresses as text, and sockets that listen at them. Owns nothing; any thread.

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "provider/bootstrap.h"

static const char *parse_port(const char *text, char port[6])
{
    size_t len = strlen(text);
    if (len == 0)
        return "the port is missing";
    if (strspn(text, "0123456789") != len)
        return "the port is not a number";
    if (len > 5 || strtoul(text, NULL, 10) > UINT16_MAX)
        return "the port is above 65535";
    memcpy(port, text, len + 1);
    return NULL;
}

const char *lieni_address_parse(const char *text, struct lieni_address *address)
{
    const char *host = text;
    const char *end;
    const char *port;
    if (text[0] == '[') {
        host = text + 1;
        end = strchr(host, ']');
        if (!end)
            return "']' is missing";
        if (end[1] != ':')
            return "':port' is missing";
        port = end + 2;
    } else {
        end = strrchr(text, ':');
        if (!end)
            return "':port' is missing";
        if (strchr(text, ':') != end)
            return "an IPv6 address needs brackets: [address]:port";
        port = end + 1;
    }
    size_t len = (size_t)(end - host);
    if (len == 0)
        return "the host is missing";
    if (len >= sizeof address->host)
        return "the host is longer than 255 bytes";
    memcpy(address->host, host, len);
    address->host[len] = '\0';
    return parse_port(port, address->port);
}

// IPv4 inside IPv6 is what a dual-stack socket shows of an IPv4 peer.
static struct sockaddr_storage unmapped(const struct sockaddr_storage *addr)
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)addr;
    if (addr->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
        return *addr;
    struct sockaddr_storage plain = {0};
    struct sockaddr_in *four = (struct sockaddr_in *)&plain;
    four->sin_family = AF_INET;
    four->sin_port = six->sin6_port;
    memcpy(&four->sin_addr, &six->sin6_addr.s6_addr[12], 4);
    return plain;
}

static int numeric(const struct sockaddr_storage *addr, char host[LIENI_HOST_MAX], char port[8])
{
    socklen_t len = addr->ss_family == AF_INET6 ? (socklen_t)sizeof(struct sockaddr_in6)
                                                : (socklen_t)sizeof(struct sockaddr_in);
    int rc = getnameinfo((const struct sockaddr *)addr, len, host, LIENI_HOST_MAX, port, 8,
                         NI_NUMERICHOST | NI_NUMERICSERV);
    return rc == 0 ? 0 : LIEN_ESYS;
}

int lieni_address_host(const struct sockaddr_storage *addr, char *text, size_t size)
{
    struct sockaddr_storage plain = unmapped(addr);
    char host[LIENI_HOST_MAX];
    char port[8];
    int code = numeric(&plain, host, port);
    if (code != 0)
        return code;
    if (strlen(host) >= size)
        return LIEN_ERANGE;
    strcpy(text, host);
    return 0;
}

int lieni_address_name(const struct sockaddr_storage *addr, char *text, size_t size)
{
    struct sockaddr_storage plain = unmapped(addr);
    char host[LIENI_HOST_MAX];
    char port[8];
    char name[LIENI_HOST_MAX + 16];
    int code = numeric(&plain, host, port);
    if (code != 0)
        return code;
    int len = snprintf(name, sizeof name, plain.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
                       port);
    if (len < 0 || (size_t)len >= size)
        return LIEN_ERANGE;
    strcpy(text, name);
    return 0;
}

// -- Listening sockets -------------------------------------------------------------------------------------------------------------

// A bound and listening socket, or -1 and errno.
static int listen_at(const struct addrinfo *at, bool dual)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int on = 1;
    int off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bool ok = true;
    if (at->ai_family == AF_INET6)
        ok = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, dual ? &off : &on, sizeof on) == 0;
    if (ok && bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

const char *lieni_address_listen(const struct lieni_address *address, int *fd, int *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    bool any = strcmp(address->host, "*") == 0;
    // Listening happens at once, so names are not looked up; this one needs no looking up.
    const char *host = strcmp(address->host, "localhost") == 0 ? "127.0.0.1" : address->host;
    const char *tries[] = {any ? "::" : host, any ? "0.0.0.0" : NULL};
    const char *why = NULL;
    *fd = -1;
    *error = 0;
    for (size_t i = 0; i < 2 && tries[i] && *fd < 0; i++) {
        struct addrinfo *list = NULL;
        int rc = getaddrinfo(tries[i], address->port, &hints, &list);
        if (rc == EAI_NONAME)
            return "the host must be a numeric address of this machine, localhost or *";
        if (rc != 0)
            return gai_strerror(rc);
        *fd = listen_at(list, any);
        *error = errno;
        freeaddrinfo(list);
        if (*fd >= 0)
            return NULL;
        why = strerror(*error);
        if (*error != EAFNOSUPPORT && *error != EADDRNOTAVAIL)
            break; // a machine without IPv6 goes on to IPv4
    }
    return why;
}

static bool sock_opt(int fd, int option, int *value)
{
    socklen_t len = sizeof *value;
    return getsockopt(fd, SOL_SOCKET, option, value, &len) == 0;
}

const char *lieni_address_inherit(int fd)
{
    int type, domain, protocol, listening;
    if (fd < 0 || !sock_opt(fd, SO_TYPE, &type))
        return fd < 0 ? "it is negative" : strerror(errno);
    if (type != SOCK_STREAM || !sock_opt(fd, SO_DOMAIN, &domain) ||
        (domain != AF_INET && domain != AF_INET6) || !sock_opt(fd, SO_PROTOCOL, &protocol) ||
        protocol != IPPROTO_TCP)
        return "it is not a TCP socket";
    if (!sock_opt(fd, SO_ACCEPTCONN, &listening) || !listening)
        return "it does not listen";
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return strerror(errno);
    return NULL;
}

int lieni_address_bound(const struct lieni_address *address, int fd, char *text, size_t size)
{
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof addr;
    if (getsockname(fd, (struct sockaddr *)&addr, &len) != 0)
        return LIEN_ESYS;
    if (strcmp(address->host, "*") != 0)
        return lieni_address_name(&addr, text, size);
    unsigned port = addr.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&addr)->sin6_port)
                                               : ntohs(((struct sockaddr_in *)&addr)->sin_port);
    int n = snprintf(text, size, "*:%u", port);
    return n < 0 || (size_t)n >= size ? LIEN_ERANGE : 0;
}
