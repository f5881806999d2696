// SPDX-License-Identifier: Apache-2.0
//
// Addresses and networks as text, declared in provider.h: what selection compares. No state; any thread. Only lieni_resolve() and lieni_route() ask the system.

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/bootstrap.h"

struct bits {
    int family; // AF_INET, AF_INET6, or 0: no address
    unsigned char of[16];
};

// A zone ("%eth0") says where a link-local address is, not what it is.
static struct bits parse(const char *text, size_t len)
{
    struct bits bits = {0};
    char copy[INET6_ADDRSTRLEN + 1];
    const char *zone = memchr(text, '%', len);
    len = zone ? (size_t)(zone - text) : len;
    if (len == 0 || len >= sizeof copy)
        return bits;
    memcpy(copy, text, len);
    copy[len] = '\0';
    if (inet_pton(AF_INET, copy, bits.of) == 1)
        bits.family = AF_INET;
    else if (inet_pton(AF_INET6, copy, bits.of) == 1)
        bits.family = AF_INET6;
    return bits;
}

static unsigned width(const struct bits *bits)
{
    return bits->family == AF_INET ? 32 : 128;
}

static bool meet(const struct bits *a, const struct bits *b, unsigned prefix)
{
    if (a->family == 0 || a->family != b->family)
        return false;
    unsigned n = prefix < width(a) ? prefix : width(a);
    if (memcmp(a->of, b->of, n / 8) != 0)
        return false;
    return n % 8 == 0 || (unsigned)(a->of[n / 8] ^ b->of[n / 8]) >> (8 - n % 8) == 0;
}

// One network of a list, up to comma or end. NULL, or what is wrong.
static const char *parse_network(const char *text, size_t len, struct bits *bits, unsigned *prefix)
{
    const char *slash = memchr(text, '/', len);
    *bits = parse(text, slash ? (size_t)(slash - text) : len);
    if (bits->family == 0)
        return "is no numeric address";
    *prefix = width(bits);
    if (!slash)
        return NULL;
    size_t digits = len - (size_t)(slash - text) - 1;
    if (digits < 1 || digits > 3 || strspn(slash + 1, "0123456789") < digits)
        return "has no number behind '/'";
    *prefix = (unsigned)strtoul(slash + 1, NULL, 10);
    return *prefix <= width(bits) ? NULL : "has more bits behind '/' than the address";
}

const char *lieni_networks_fault(const char *list)
{
    struct bits bits;
    unsigned prefix;
    for (const char *at = list; *at || at == list;) {
        size_t len = strcspn(at, ",");
        const char *fault = parse_network(at, len, &bits, &prefix);
        if (fault)
            return fault;
        at += len;
        if (*at == ',' && !*++at)
            return "ends in a comma";
    }
    return NULL;
}

bool lieni_networks_have(const char *list, const char *address)
{
    struct bits own = parse(address, strlen(address)), bits;
    unsigned prefix;
    for (const char *at = list; *at; at += *at ? 1 : 0) {
        size_t len = strcspn(at, ",");
        if (!parse_network(at, len, &bits, &prefix) && meet(&own, &bits, prefix))
            return true;
        at += len;
    }
    return false;
}

bool lieni_networks_meet(const char *a, const char *b, unsigned prefix)
{
    struct bits x = parse(a, strlen(a)), y = parse(b, strlen(b));
    return meet(&x, &y, prefix);
}

bool lieni_same_family(const char *a, const char *b)
{
    return lieni_networks_meet(a, b, 0);
}

bool lieni_numeric(const char *name)
{
    return parse(name, strlen(name)).family != 0;
}

static bool is_word(const char *at, size_t len, const char *word, size_t word_len)
{
    return len > 0 && len == word_len && memcmp(at, word, len) == 0;
}

bool lieni_nics_name(const char *list, const struct lieni_candidate *c)
{
    for (const char *at = list; *at; at += *at ? 1 : 0) {
        size_t len = strcspn(at, ",");
        if (is_word(at, len, c->nic, strlen(c->nic)) ||
            is_word(at, len, c->nic, strcspn(c->nic, "/")) ||
            is_word(at, len, c->interface, strlen(c->interface)))
            return true;
        at += len;
    }
    return false;
}

const char *lieni_resolve(const char *host, char *list, size_t size)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &found);
    if (rc != 0)
        return rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc);
    list[0] = '\0';
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
        struct sockaddr_storage address = {0};
        char text[96];
        size_t len = strlen(list);
        memcpy(&address, a->ai_addr, a->ai_addrlen);
        if (lieni_address_host(&address, text, sizeof text) != 0 || len + strlen(text) + 2 > size)
            continue;
        snprintf(list + len, size - len, "%s%s", len ? "," : "", text);
    }
    freeaddrinfo(found);
    return list[0] ? NULL : "it has no address";
}

// `peer` may come without a port.
static const char *split(const char *peer, struct lieni_address *address)
{
    const char *colon = strchr(peer, ':');
    bool bare = peer[0] != '[' && (!colon || strchr(colon + 1, ':'));
    if (!bare)
        return lieni_address_parse(peer, address);
    if (strlen(peer) == 0 || strlen(peer) >= sizeof address->host)
        return "the host is missing, or longer than 255 bytes";
    snprintf(address->host, sizeof address->host, "%s", peer);
    snprintf(address->port, sizeof address->port, "9"); // any: nothing is sent
    return NULL;
}

// A datagram socket that is connected sends nothing, and knows which address it would send from.
static const char *ask_route(const struct addrinfo *a, char *remote, char *local)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t len = sizeof own;
    int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return strerror(errno);
    const char *why = NULL;
    memcpy(&peer, a->ai_addr, a->ai_addrlen);
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &len) != 0)
        why = strerror(errno);
    else if (lieni_address_host(&own, local, 96) != 0 || lieni_address_host(&peer, remote, 96) != 0)
        why = "its address has no text";
    close(fd);
    return why;
}

const char *lieni_route(const char *peer, char *remote, char *local)
{
    struct lieni_address address;
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *list = NULL;
    const char *why = split(peer, &address);
    if (why)
        return why;
    int rc = getaddrinfo(address.host, strcmp(address.port, "0") == 0 ? "9" : address.port, &hints,
                         &list);
    if (rc != 0)
        return rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc);
    why = "it has no address";
    for (const struct addrinfo *a = list; a && why; a = a->ai_next)
        why = ask_route(a, remote, local);
    freeaddrinfo(list);
    return why;
}

void lieni_memlock_text(char *text, size_t size)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        snprintf(text, size, "RLIMIT_MEMLOCK is unknown");
    else if (limit.rlim_cur == RLIM_INFINITY)
        snprintf(text, size, "RLIMIT_MEMLOCK is unlimited");
    else
        snprintf(text, size, "RLIMIT_MEMLOCK is %llu bytes", (unsigned long long)limit.rlim_cur);
}
