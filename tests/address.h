// SPDX-License-Identifier: Apache-2.0
//
// Where tests listen: loopback, or $LIEN_TEST_ADDRESS (numeric), since an RDMA device cannot be reached by loopback's address. Any thread, once the environment is fixed.

#ifndef LIENI_TEST_ADDRESS_H
#define LIENI_TEST_ADDRESS_H

#include <stdlib.h>

static inline const char *test_host(void)
{
    const char *host = getenv("LIEN_TEST_ADDRESS");
    return host && host[0] ? host : "127.0.0.1";
}

// printf's format and argument of an address there.
#define TEST_AT(port) "%s:%u", test_host(), (unsigned)(port)

#endif
