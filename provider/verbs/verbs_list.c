// SPDX-License-Identifier: Apache-2.0
//
// The description of this machine's RDMA devices. Owns nothing but what it returns; any thread.

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

#include "provider/verbs/internal.h"

#define GIDS_MAX 1024

static const char *transport_of(const struct ibv_device *device)
{
    if (device->transport_type == IBV_TRANSPORT_IB)
        return "InfiniBand";
    return device->transport_type == IBV_TRANSPORT_IWARP ? "iWARP" : "other";
}

// Software devices have no bus: the kernel puts them below /sys/devices/virtual.
static bool is_soft(const char *name)
{
    char path[128], target[512];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s", name);
    ssize_t len = readlink(path, target, sizeof target - 1);
    if (len < 0)
        return false;
    target[len] = '\0';
    return strstr(target, "/virtual/") != NULL;
}

static const char *link_layer_of(const struct ibv_port_attr *attr)
{
    if (attr->link_layer == IBV_LINK_LAYER_INFINIBAND)
        return "InfiniBand";
    return attr->link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "unspecified";
}

const char *lieni_verbs_state_text(enum ibv_port_state state)
{
    switch (state) {
    case IBV_PORT_NOP:
        return "NOP";
    case IBV_PORT_DOWN:
        return "DOWN";
    case IBV_PORT_INIT:
        return "INIT";
    case IBV_PORT_ARMED:
        return "ARMED";
    case IBV_PORT_ACTIVE:
        return "ACTIVE";
    case IBV_PORT_ACTIVE_DEFER:
        return "ACTIVE_DEFER";
    }
    return "unknown";
}

static const char *gid_type_of(uint32_t type)
{
    switch (type) {
    case IBV_GID_TYPE_IB:
        return "IB";
    case IBV_GID_TYPE_ROCE_V1:
        return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2:
        return "RoCE v2";
    default:
        return "other";
    }
}

static void describe_gid(const struct ibv_gid_entry *entry, struct lieni_verbs_gid *gid)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    gid->index = entry->gid_index;
    gid->type = gid_type_of(entry->gid_type);
    if (memcmp(entry->gid.raw, mapped, sizeof mapped) == 0)
        inet_ntop(AF_INET, entry->gid.raw + sizeof mapped, gid->text, sizeof gid->text);
    else
        inet_ntop(AF_INET6, entry->gid.raw, gid->text, sizeof gid->text);
    char name[IF_NAMESIZE];
    if (entry->ndev_ifindex != 0 && if_indextoname(entry->ndev_ifindex, name))
        snprintf(gid->netdev, sizeof gid->netdev, "%s", name);
}

static int describe_gids(struct ibv_context *context, struct lieni_verbs_port *port)
{
    struct ibv_gid_entry *entries = calloc(GIDS_MAX, sizeof *entries);
    if (!entries)
        return LIEN_ENOMEM;
    ssize_t n = ibv_query_gid_table(context, entries, GIDS_MAX, 0);
    port->gids = n > 0 ? calloc((size_t)n, sizeof *port->gids) : NULL;
    for (ssize_t i = 0; port->gids && i < n; i++)
        if (entries[i].port_num == port->number)
            describe_gid(&entries[i], &port->gids[port->n_gids++]);
    free(entries);
    return n > 0 && !port->gids ? LIEN_ENOMEM : 0;
}

static int describe_port(struct ibv_context *context, unsigned number,
                         struct lieni_verbs_port *port)
{
    struct ibv_port_attr attr;
    port->number = number;
    port->state = port->link_layer = "unknown";
    if (ibv_query_port(context, (uint8_t)number, &attr) != 0)
        return 0;
    port->active = attr.state == IBV_PORT_ACTIVE;
    port->state = lieni_verbs_state_text(attr.state);
    port->link_layer = link_layer_of(&attr);
    port->mtu = attr.active_mtu ? 128u << attr.active_mtu : 0;
    port->message_max = attr.max_msg_sz;
    return describe_gids(context, port);
}

static uint32_t positive(int number)
{
    return number > 0 ? (uint32_t)number : 0;
}

static int describe(struct ibv_device *handle, struct lieni_verbs_device *device)
{
    snprintf(device->name, sizeof device->name, "%s", ibv_get_device_name(handle));
    device->transport = transport_of(handle);
    device->soft = is_soft(device->name);
    device->guid = be64toh(ibv_get_device_guid(handle));
    struct ibv_context *context = ibv_open_device(handle);
    if (!context)
        return 0; // named, and nothing else known
    int code = 0;
    struct ibv_device_attr attr;
    if (ibv_query_device(context, &attr) == 0) {
        device->depth_out = positive(attr.max_qp_init_rd_atom);
        device->depth_in = positive(attr.max_qp_rd_atom);
        device->sge = positive(attr.max_sge);
        device->sge_read = positive(attr.max_sge_rd);
        device->posts = positive(attr.max_qp_wr);
        device->entries = positive(attr.max_cqe);
        device->region_max = attr.max_mr_size;
        device->ports = calloc(attr.phys_port_cnt ? attr.phys_port_cnt : 1, sizeof *device->ports);
        code = device->ports ? 0 : LIEN_ENOMEM;
        for (unsigned i = 0; code == 0 && i < attr.phys_port_cnt; i++)
            code = describe_port(context, i + 1, &device->ports[device->n_ports++]);
    }
    ibv_close_device(context);
    return code;
}

int lieni_verbs_devices(struct lieni_verbs_device **out, size_t *n)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    if (!list && errno != ENOSYS) // ENOSYS: the kernel has no RDMA, so no devices
        return errno == ENOMEM ? LIEN_ENOMEM : LIEN_ESYS;
    struct lieni_verbs_device *devices = calloc(count > 0 ? (size_t)count : 1, sizeof *devices);
    int code = devices ? 0 : LIEN_ENOMEM;
    for (int i = 0; code == 0 && i < count; i++)
        code = describe(list[i], &devices[i]);
    if (list)
        ibv_free_device_list(list);
    if (code != 0) {
        lieni_verbs_devices_free(devices, (size_t)count);
        return code;
    }
    *out = devices;
    *n = (size_t)count;
    return 0;
}

void lieni_verbs_devices_free(struct lieni_verbs_device *devices, size_t n)
{
    for (size_t i = 0; devices && i < n; i++) {
        for (size_t k = 0; k < devices[i].n_ports; k++)
            free(devices[i].ports[k].gids);
        free(devices[i].ports);
    }
    free(devices);
}

uint64_t lieni_verbs_memory_lock(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

// A connection identifier bound to the address: the one way that also knows IPoIB. NULL: no device serves it.
static struct rdma_cm_id *bind_to(const char *host)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    if (getaddrinfo(host, NULL, &hints, &list) != 0)
        return NULL;
    struct rdma_cm_id *id = NULL;
    if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) != 0)
        id = NULL;
    if (id && (rdma_bind_addr(id, list->ai_addr) != 0 || !id->verbs)) {
        rdma_destroy_id(id);
        id = NULL;
    }
    freeaddrinfo(list);
    return id;
}

int lieni_verbs_device_at(const char *host, char *name, size_t size, unsigned *port)
{
    struct rdma_cm_id *id = bind_to(host);
    if (!id)
        return LIEN_ENODEV;
    snprintf(name, size, "%s", ibv_get_device_name(id->verbs->device));
    *port = id->port_num;
    rdma_destroy_id(id);
    return 0;
}

// Appends, as far as there is room.
__attribute__((format(printf, 3, 4))) static void add(char *text, size_t size, const char *format,
                                                      ...)
{
    size_t len = strlen(text);
    va_list args;
    va_start(args, format);
    if (len < size)
        vsnprintf(text + len, size - len, format, args);
    va_end(args);
}

int lieni_verbs_path_at(const char *host, char *text, size_t size)
{
    struct rdma_cm_id *id = bind_to(host);
    if (!id)
        return LIEN_ENODEV;
    const char *name = ibv_get_device_name(id->verbs->device);
    struct lieni_verbs_port port = {.number = id->port_num};
    struct ibv_gid_entry own = {.ndev_ifindex = 0};
    struct lieni_verbs_gid mine = {0};
    memcpy(&own.gid, &id->route.addr.addr.ibaddr.sgid, sizeof own.gid);
    describe_gid(&own, &mine);
    snprintf(text, size, "device %s port %u%s, GID %s", name, id->port_num,
             is_soft(name) ? " (made of software)" : "", mine.text);
    // RoCE has one entry for each of its versions: which one is used is the kernel's setting (default_roce_mode).
    if (describe_gids(id->verbs, &port) == 0)
        for (size_t i = 0; i < port.n_gids; i++)
            if (strcmp(port.gids[i].text, mine.text) == 0)
                add(text, size, ", %s at index %u%s%s", port.gids[i].type, port.gids[i].index,
                    port.gids[i].netdev[0] ? " of " : "", port.gids[i].netdev);
    free(port.gids);
    rdma_destroy_id(id);
    return 0;
}

uint32_t lieni_verbs_depth_at(const char *host)
{
    struct rdma_cm_id *id = bind_to(host);
    if (!id)
        return 0;
    struct ibv_device_attr attr;
    uint32_t depth = ibv_query_device(id->verbs, &attr) == 0 ? positive(attr.max_qp_rd_atom) : 0;
    rdma_destroy_id(id);
    return depth;
}

bool lieni_verbs_can_prove(const char *device, char *why, size_t size)
{
    struct lieni_verbs_entry entry;
    int rc = lieni_verbs_entry_find(device, &entry);
    // No queue pair has the largest number of 24 bits: that is the multicast one.
    bool can = rc == 0 && lieni_verbs_qp_ask(&entry, 1, 0xffffff) == LIENI_VERBS_ABSENT;
    if (can)
        snprintf(why, size, "the kernel's resource table can be asked");
    else
        snprintf(why, size, "the kernel's resource table cannot be asked for %s: %s", device,
                 rc != 0 ? lieni_verbs_why(rc) : "it does not answer by number");
    return can;
}
