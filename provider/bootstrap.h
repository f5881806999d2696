// SPDX-License-Identifier: Apache-2.0
//
// Inside of the bootstrap's byte streams: addresses and the resolver. The table of lieni_net_ops over sockets is lieni_net_sockets.

#ifndef LIENI_BOOTSTRAP_H
#define LIENI_BOOTSTRAP_H

#include <netdb.h>
#include <sys/socket.h>

#include "provider/provider.h"

extern const struct lieni_net_ops lieni_net_sockets;

// -- bootstrap_address.c: no state -------------------------------------------------------------------------------

#define LIENI_HOST_MAX 256 // bytes of a host name, with its NUL

struct lieni_address {
    char host[LIENI_HOST_MAX]; // without brackets; "*" for any
    char port[6];              // decimal
};

// Takes "host:port", "[v6]:port" or "*:port" apart. NULL, or what is wrong with it.
const char *lieni_address_parse(const char *text, struct lieni_address *address);
// Numeric host of a socket address, an IPv4 one inside IPv6 as IPv4. LIEN_ERANGE.
int lieni_address_host(const struct sockaddr_storage *addr, char *text, size_t size);
// "host:port" of it, "[v6]:port". LIEN_ERANGE.
int lieni_address_name(const struct sockaddr_storage *addr, char *text, size_t size);
// A socket that listens there, in *fd. NULL, or why not, and in *error the errno behind it (0: the text is at fault).
const char *lieni_address_listen(const struct lieni_address *address, int *fd, int *error);
// NULL if `fd` is a socket that listens for TCP connections, or what is wrong with it; then it is made non-blocking and close-on-exec.
const char *lieni_address_inherit(int fd);
// Where `fd` of lieni_address_listen() listens, "*:port" for any. LIEN_ERANGE.
int lieni_address_bound(const struct lieni_address *address, int fd, char *text, size_t size);

// -- bootstrap_resolver.c ----------------------------------------------------------------------------------------------------------

// Resolves names on threads of its own, started when first needed, a few at most, so that one dead name server does not hold up everything. Any thread, own lock.
struct lieni_resolver;
struct lieni_lookup;

// `wakefd`: an eventfd, written when a lookup is done; not used after close.
int lieni_resolver_open(int wakefd, struct lieni_resolver **resolver);
// Never blocks: a thread inside getaddrinfo ends by itself. All lookups were forgotten or freed.
void lieni_resolver_close(struct lieni_resolver *resolver);
// Starts a lookup. LIEN_ENOMEM, LIEN_ESYS (no thread).
int lieni_resolver_ask(struct lieni_resolver *resolver, const struct lieni_address *address,
                       void *user, struct lieni_lookup **lookup);
// Gives up a lookup that was not taken; frees it when its thread is done with it.
void lieni_resolver_forget(struct lieni_resolver *resolver, struct lieni_lookup *lookup);

struct lieni_resolved {
    void *user;
    struct addrinfo *list; // the caller frees it with freeaddrinfo(); NULL on error
    const char *error;     // NULL, or why
};
// Takes the next lookup that is done, which ends it. False: none.
bool lieni_resolver_take(struct lieni_resolver *resolver, struct lieni_resolved *resolved);

#endif
