// SPDX-License-Identifier: Apache-2.0
//
// Credentials of the test programs: insecure, or, with CORE_TLS=DIR, TLS with DIR/key.pem and DIR/cert.pem, which is its own root.

#ifndef LIEN_TEST_CREDS_H
#define LIEN_TEST_CREDS_H

#include <grpc/grpc_security.h>
#include <stdio.h>
#include <stdlib.h>

#define PEM_MAX 8192

static inline void read_pem(const char *dir, const char *name, char out[PEM_MAX])
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.pem", dir, name);
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(out, 1, PEM_MAX - 1, file) : 0;
    if (n == 0) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    out[n] = 0;
    fclose(file);
}

static inline grpc_channel_credentials *channel_creds(void)
{
    char cert[PEM_MAX];
    const char *dir = getenv("CORE_TLS");
    if (!dir)
        return grpc_insecure_credentials_create();
    read_pem(dir, "cert", cert);
    return grpc_ssl_credentials_create(cert, NULL, NULL, NULL);
}

static inline grpc_server_credentials *server_creds(void)
{
    char cert[PEM_MAX], key[PEM_MAX];
    const char *dir = getenv("CORE_TLS");
    if (!dir)
        return grpc_insecure_server_credentials_create();
    read_pem(dir, "cert", cert);
    read_pem(dir, "key", key);
    grpc_ssl_pem_key_cert_pair pair = {key, cert};
    return grpc_ssl_server_credentials_create(NULL, &pair, 1, 0, NULL);
}

#endif
