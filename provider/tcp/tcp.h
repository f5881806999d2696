// SPDX-License-Identifier: Apache-2.0
//
// The provider object of libfabric's `tcp`.

#ifndef LIENI_TCP_H
#define LIENI_TCP_H

#include "provider/provider.h"

extern const struct lieni_provider lieni_provider_tcp;

#endif
