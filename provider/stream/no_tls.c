// SPDX-License-Identifier: Apache-2.0
//
// In place of stream_tls.c in a build without OpenSSL: the providers that need TLS are there by name, and say why they cannot be used.

#include "provider/stream/stream.h"

int lieni_tls_open(struct lieni_prov *prov, const struct lieni_prov_args *args,
                   struct lieni_tls **tls)
{
    (void)args;
    (void)tls;
    return lieni_stream_say(prov, LIEN_LOG_ERROR, LIEN_ENOPROVIDER,
                            "this build has no TLS: OpenSSL was not there");
}

void lieni_tls_close(struct lieni_tls *tls)
{
    (void)tls;
}

bool lieni_tls_serves(const struct lieni_tls *tls)
{
    (void)tls;
    return false;
}

int lieni_tls_end_open(struct lieni_lane *lane)
{
    (void)lane;
    return LIEN_ENOTSUP;
}

int lieni_tls_ready(struct lieni_lane *lane)
{
    (void)lane;
    return LIEN_ENOTSUP;
}

int64_t lieni_tls_read(struct lieni_pipe *pipe, void *buf, size_t len)
{
    (void)pipe;
    (void)buf;
    (void)len;
    return LIEN_ENOTSUP;
}

int64_t lieni_tls_write(struct lieni_pipe *pipe, const struct iovec *iov, int n)
{
    (void)pipe;
    (void)iov;
    (void)n;
    return LIEN_ENOTSUP;
}

void lieni_tls_end(struct lieni_pipe *pipe)
{
    (void)pipe;
}

void lieni_tls_end_close(struct lieni_pipe *pipe)
{
    (void)pipe;
}
