// SPDX-License-Identifier: Apache-2.0
//
// The provider objects of this folder. In a build without a library one needs, its object is there and does not open.

#ifndef LIENI_STREAM_PROVIDERS_H
#define LIENI_STREAM_PROVIDERS_H

#include "provider/provider.h"

extern const struct lieni_provider lieni_provider_stream; // plain TCP
extern const struct lieni_provider lieni_provider_ws;     // WebSocket
extern const struct lieni_provider lieni_provider_wss;    // the same over TLS
extern const struct lieni_provider lieni_provider_h2c;    // HTTP/2
extern const struct lieni_provider lieni_provider_h2;     // the same over TLS

#endif
