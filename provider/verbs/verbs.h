// SPDX-License-Identifier: Apache-2.0
//
// The provider object of libfabric's `verbs`, and a description of the RDMA devices of this machine for whoever explains a choice (lien-info, reports). Any thread.

#ifndef LIENI_VERBS_H
#define LIENI_VERBS_H

#include "provider/provider.h"

extern const struct lieni_provider lieni_provider_verbs;

// -- Devices -----------------------------------------------------------------------------------------------------------------------

struct lieni_verbs_gid {
    unsigned index;
    const char *type; // "IB", "RoCE v1", "RoCE v2"
    char text[48];    // as an IPv6 address; an IPv4 address mapped into one is told as IPv4
    char netdev[32];  // "" if none
};

struct lieni_verbs_port {
    unsigned number;
    bool active;
    const char *state;            // "ACTIVE", "DOWN" ...
    const char *link_layer;       // "InfiniBand", "Ethernet", "unspecified"
    unsigned mtu;                 // bytes
    uint32_t message_max;         // bytes of one READ
    struct lieni_verbs_gid *gids; // the valid ones
    size_t n_gids;
};

struct lieni_verbs_device {
    char name[64];
    const char *transport; // "InfiniBand" (RoCE, too), "iWARP", "other"
    bool soft;             // made of software (rxe, siw): no device moves the bytes
    uint64_t guid;
    uint32_t depth_out;      // READs outstanding from one queue pair
    uint32_t depth_in;       // READs served to one queue pair
    uint32_t sge, sge_read;  // segments of one work request, of one READ
    uint32_t posts, entries; // of one queue, of one completion queue
    uint64_t region_max;     // bytes of one registration
    struct lieni_verbs_port *ports;
    size_t n_ports;
};

// What rdma-core knows, allocated; 0 devices is no error. LIEN_ENOMEM, LIEN_ESYS (errno says why).
int lieni_verbs_devices(struct lieni_verbs_device **devices, size_t *n);
void lieni_verbs_devices_free(struct lieni_verbs_device *devices, size_t n);
// Bytes that this process may lock, UINT64_MAX: no limit.
uint64_t lieni_verbs_memory_lock(void);
// Name and port of the device that serves the numeric address `host`. LIEN_ENODEV: none does.
int lieni_verbs_device_at(const char *host, char *name, size_t size, unsigned *port);
// In words: the device there, its port, and the GIDs by which connections leave it. LIEN_ENODEV: none.
int lieni_verbs_path_at(const char *host, char *text, size_t size);
// READs that the device there serves to one queue pair; 0: no device.
uint32_t lieni_verbs_depth_at(const char *host);
// Whether the kernel's resource table can be asked, which is what an endpoint's end is proved by: false in some containers. `why` gets the reason.
bool lieni_verbs_can_prove(const char *device, char *why, size_t size);

#endif
