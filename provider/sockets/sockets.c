// SPDX-License-Identifier: Apache-2.0
//
// Traits of libfabric's `sockets`: legacy, and the weakest choice there is. Closing an endpoint drops operations without a word while its data connection may still write; so only an operation's own
// entry is evidence, and the end of the whole domain. Each dropped operation takes one of the domain's 128 entries for ever; so each connection has a domain of its own (libfabric-facts 1.3).

#include "provider/sockets/sockets.h"

#include "provider/ofi/ofi.h"

static const struct lieni_traits traits = {
    .name = "sockets",
    .path = LIEN_PATH_KERNEL,
    .ep_end_proves = false,
    .domain_end_proves = true,
    .domain_per_conn = true,
    .only_if_asked = true,
    .refused_read_kills = false, // LIEN_EACCES-like for that READ alone
    .cm_data_max = 256,
    .read_piece_max = 1u << 20,
    .read_bytes_max = 4u << 20,
    .reads_max = 64, // the domain has 128 entries for both directions
    .posts_max = 16384,
};

static atomic_bool offered;
static const struct lieni_ofi ofi = {.traits = &traits, .mode = 0, .offered = &offered};

static int open_sockets(const struct lieni_prov_args *args, struct lieni_prov **prov)
{
    return lieni_ofi_open(&ofi, args, prov);
}

static void candidates(lieni_candidate_fn *tell, void *arg)
{
    lieni_ofi_candidates(&ofi, tell, arg);
}

const struct lieni_provider lieni_provider_sockets = {
    .traits = &traits,
    .open = open_sockets,
    .candidates = candidates,
    LIENI_OFI_OPS,
};
