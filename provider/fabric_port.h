// SPDX-License-Identifier: Apache-2.0
//
// Fabric ports of the providers that listen on a socket of their own. No state; any thread.

#ifndef LIENI_FABRIC_PORT_H
#define LIENI_FABRIC_PORT_H

#include <sys/socket.h>

#include "provider/provider.h"

// Listens at the address `at` (its port is not looked at), at a free port of lo..hi, or at any if both are 0. Returns the socket, non-blocking and close-on-exec, and its port in *bound; or a negative
// errno: -EINVAL for a range that is none, -EADDRINUSE if none is free. Does not block.
int lieni_fabric_port_listen(const struct lieni_env *env, const struct sockaddr_storage *at,
                             uint16_t lo, uint16_t hi, int backlog, uint16_t *bound);

#endif
