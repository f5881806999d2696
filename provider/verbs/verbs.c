// SPDX-License-Identifier: Apache-2.0
//
// Traits of libfabric's `verbs`: reliable connected queue pairs. fi_close(ep) == 0 alone proves nothing there: librdmacm drops the result of ibv_destroy_qp, and libfabric then makes flush
// entries up. The kernel's resource table proves it (verbs_proof.c).

#include "provider/verbs/verbs.h"

#include "provider/ofi/ofi.h"
#include "provider/verbs/internal.h"

static const struct lieni_traits traits = {
    .name = "verbs",
    .path = LIEN_PATH_RDMA,
    .ep_end_proves = true,
    .domain_end_proves = false,
    .domain_per_conn = false,
    .refused_read_kills = true,
    .cm_data_max = 55,
    .read_piece_max =
        1u << 20, // the device's max_msg_size may be less, never more than this is asked
    .read_bytes_max =
        4u << 20,       // far above what fills a link; it bounds what a cancel cannot take back
    .reads_max = 1024,  // the device's depth may be less
    .posts_max = 16384, // so may its queues
};

// libfabric warns by it that a message may carry data of the remote completion queue, which only writes with immediate data would bring: there are none.
#define MODE FI_RX_CQ_DATA

static const struct lieni_ofi ofi = {.traits = &traits,
                                     .mode = MODE,
                                     .protocol = FI_PROTO_RDMA_CM_IB_RC,
                                     .connected_queues = true,
                                     .device = &lieni_verbs_device_ops};

static int open_verbs(const struct lieni_prov_args *args, struct lieni_prov **prov)
{
    return lieni_ofi_open(&ofi, args, prov);
}

const struct lieni_provider lieni_provider_verbs = {
    .traits = &traits,
    .open = open_verbs,
    LIENI_OFI_OPS,
};
