// SPDX-License-Identifier: Apache-2.0
//
// See interfaces.h.

#include "provider/interfaces.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

// Leading ones.
static unsigned prefix_of(const struct sockaddr *mask, int family)
{
    struct sockaddr_storage copy = {0};
    unsigned char bytes[16] = {0};
    unsigned n = 0, len = family == AF_INET ? 4 : 16;
    if (!mask)
        return len * 8;
    memcpy(&copy, mask,
           family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    if (family == AF_INET)
        memcpy(bytes, &((struct sockaddr_in *)&copy)->sin_addr, 4);
    else
        memcpy(bytes, &((struct sockaddr_in6 *)&copy)->sin6_addr, 16);
    while (n < len * 8 && bytes[n / 8] & (0x80u >> n % 8))
        n++;
    return n;
}

static bool fill(const struct ifaddrs *i, struct lieni_candidate *c)
{
    int family = i->ifa_addr->sa_family;
    struct sockaddr_storage copy = {0};
    memset(c, 0, sizeof *c);
    if (family == AF_INET)
        memcpy(&copy, i->ifa_addr, sizeof(struct sockaddr_in));
    else
        memcpy(&copy, i->ifa_addr, sizeof(struct sockaddr_in6));
    const void *address = family == AF_INET
                              ? (const void *)&((struct sockaddr_in *)&copy)->sin_addr
                              : (const void *)&((struct sockaddr_in6 *)&copy)->sin6_addr;
    // Link-local addresses mean nothing without their zone, which the peer does not know.
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL((const struct in6_addr *)address))
        return false;
    if (!inet_ntop(family, address, c->address, sizeof c->address))
        return false;
    snprintf(c->nic, sizeof c->nic, "%s", i->ifa_name);
    snprintf(c->interface, sizeof c->interface, "%s", i->ifa_name);
    c->prefix = prefix_of(i->ifa_netmask, family);
    c->state = LIEN_CANDIDATE_UP;
    if (!(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_RUNNING)) {
        c->state = LIEN_CANDIDATE_DOWN;
        snprintf(c->reason, sizeof c->reason, "the interface is down%s",
                 i->ifa_flags & IFF_UP ? ": no link" : "");
    }
    return true;
}

static void none(lieni_candidate_fn *tell, void *arg, const char *why)
{
    struct lieni_candidate c = {.state = LIEN_CANDIDATE_REFUSED};
    snprintf(c.reason, sizeof c.reason, "%s", why);
    tell(arg, &c);
}

void lieni_interfaces(lieni_candidate_fn *tell, void *arg)
{
    struct ifaddrs *list = NULL;
    bool any = false;
    if (getifaddrs(&list) != 0) {
        char why[128];
        snprintf(why, sizeof why, "the system does not list its interfaces: %s", strerror(errno));
        none(tell, arg, why);
        return;
    }
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        struct lieni_candidate c;
        if (!i->ifa_addr ||
            (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6) ||
            !fill(i, &c))
            continue;
        any = true;
        tell(arg, &c);
    }
    freeifaddrs(list);
    if (!any)
        none(tell, arg, "no interface has an address");
}
