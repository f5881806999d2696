// SPDX-License-Identifier: Apache-2.0
//
// The provider object over UCX (UCP). In a build without UCX it is there and does not open.

#ifndef LIENI_UCX_PROVIDER_H
#define LIENI_UCX_PROVIDER_H

#include "provider/provider.h"

extern const struct lieni_provider lieni_provider_ucx;

// Traits, the same in both builds: READs are bounded as on tcp (R19), since over UCX's tcp a message waits behind the answers to READs, too.
#define LIENI_UCX_PIECE (1u << 20) // most bytes of a READ
#define LIENI_UCX_READS 256u       // READs of one side that wait for their end
#define LIENI_UCX_POSTS 16384u
#define LIENI_UCX_TRAITS                                                                           \
    {                                                                                              \
        .name = "ucx", .path = LIEN_PATH_KERNEL, .ep_end_proves = true,                            \
        .domain_end_proves = false, .domain_per_conn = true, .refused_read_kills = false,          \
        .only_if_asked = true, .cm_data_max = LIENI_CM_DATA, .read_piece_max = LIENI_UCX_PIECE,    \
        .read_bytes_max = 4u << 20, .reads_max = LIENI_UCX_READS, .posts_max = LIENI_UCX_POSTS,    \
        .read_batch_max = 0,                                                                       \
    }

#endif
