// SPDX-License-Identifier: Apache-2.0
//
// The provider object of libfabric's `sockets`.

#ifndef LIENI_SOCKETS_H
#define LIENI_SOCKETS_H

#include "provider/provider.h"

extern const struct lieni_provider lieni_provider_sockets;

#endif
