// SPDX-License-Identifier: Apache-2.0
//
// Traits of libfabric's `tcp`: laptops and plain Ethernet. One completion queue per endpoint is what makes fi_close(ep) == 0 a proof on 1.17 (libfabric-facts 1.1, 1.2).

#include "provider/tcp/tcp.h"

#include "provider/ofi/ofi.h"

static const struct lieni_traits traits = {
    .name = "tcp",
    .path = LIEN_PATH_KERNEL,
    .ep_end_proves = true,
    .domain_end_proves = false,
    .domain_per_conn = false,
    .refused_read_kills = true,
    .cm_data_max = 256,
    .read_piece_max = 1u << 20, // R19: measured, design.md 5
    .read_bytes_max = 4u << 20,
    .reads_max = 1024,  // libfabric sets no limit; it serves them first come, first served
    .posts_max = 16384, // nor here: it bounds the queue's memory
};

static atomic_bool offered;
static const struct lieni_ofi ofi = {.traits = &traits, .mode = 0, .offered = &offered};

static int open_tcp(const struct lieni_prov_args *args, struct lieni_prov **prov)
{
    return lieni_ofi_open(&ofi, args, prov);
}

static void candidates(lieni_candidate_fn *tell, void *arg)
{
    lieni_ofi_candidates(&ofi, tell, arg);
}

const struct lieni_provider lieni_provider_tcp = {
    .traits = &traits,
    .candidates = candidates,
    .open = open_tcp,
    LIENI_OFI_OPS,
};
