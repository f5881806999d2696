// SPDX-License-Identifier: Apache-2.0
//
// The providers: a name, a carrier, with TLS or without. All are there for peers who are not trusted, at the price of a copy, so none is ever chosen by default. A domain serves one
// connection: what one peer learns of keys says nothing of another's.

#include "provider/stream/providers.h"

#include <stdio.h>

#include "provider/stream/stream.h"

#ifdef LIENI_HAS_WS
#define WS (&lieni_carrier_ws)
#else
#define WS NULL
#endif
#ifdef LIENI_HAS_H2
#define H2 (&lieni_carrier_h2)
#else
#define H2 NULL
#endif

static int open_kind(const struct lieni_stream_kind_of *kind, const char *library,
                     const struct lieni_prov_args *args, struct lieni_prov **prov)
{
    if (kind->carrier)
        return lieni_stream_open(kind, args, prov);
    char text[128];
    snprintf(text, sizeof text, "%s: this build has it not: %s was not there", kind->traits->name,
             library);
    args->report.say(args->report.self, LIEN_LOG_ERROR, LIEN_ENOPROVIDER, text);
    return LIEN_ENOPROVIDER;
}

// READs are bounded as on tcp (R19): with the chunks of stream_out.c a message waits behind little.
#define PROVIDER(id, carrier_of, with_tls, library)                                                \
    static const struct lieni_traits id##_traits = {                                               \
        .name = #id,                                                                               \
        .path = LIEN_PATH_INLINE,                                                                  \
        .ep_end_proves = true,                                                                     \
        .domain_end_proves = true,                                                                 \
        .domain_per_conn = true,                                                                   \
        .refused_read_kills = false,                                                               \
        .only_if_asked = true,                                                                     \
        .cm_data_max = LIENI_CM_DATA,                                                              \
        .read_piece_max = LIENI_STREAM_PIECE,                                                      \
        .read_bytes_max = 4u << 20,                                                                \
        .reads_max = LIENI_STREAM_READS,                                                           \
        .posts_max = 16384,                                                                        \
        .read_batch_max = LIENI_STREAM_BATCH,                                                      \
    };                                                                                             \
    static const struct lieni_stream_kind_of id##_kind = {                                         \
        .traits = &id##_traits, .carrier = carrier_of, .tls = with_tls};                           \
    static int id##_open(const struct lieni_prov_args *args, struct lieni_prov **prov)             \
    {                                                                                              \
        return open_kind(&id##_kind, library, args, prov);                                         \
    }                                                                                              \
    const struct lieni_provider lieni_provider_##id = {                                            \
        .traits = &id##_traits, .open = id##_open, LIENI_STREAM_OPS}

PROVIDER(stream, &lieni_carrier_plain, false, "");
PROVIDER(ws, WS, false, "libwslay or OpenSSL");
PROVIDER(wss, WS, true, "libwslay or OpenSSL");
PROVIDER(h2c, H2, false, "libnghttp2");
PROVIDER(h2, H2, true, "libnghttp2");
