// SPDX-License-Identifier: Apache-2.0
//
// The device of one domain, beside libfabric: its limits, the state of its port, its asynchronous events, and the proof that a queue pair is gone. It has a context of its own with the
// device, on which the kernel tells events of port and device; `gone` and the port's state are the only things that change, both atomic.

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider/verbs/internal.h"

struct device {
    struct lieni_prov *prov;
    struct ibv_context *context;
    char host[96];
    unsigned port;
    struct ibv_device_attr attr;
    struct lieni_verbs_entry entry;
    bool has_entry; // the kernel's table lists it
    atomic_bool gone;
    atomic_bool doubted; // said once that nothing can be proved
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static struct ibv_context *open_named(const char *name)
{
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    struct ibv_context *context = NULL;
    for (int i = 0; list && i < n && !context; i++)
        if (strcmp(ibv_get_device_name(list[i]), name) == 0)
            context = ibv_open_device(list[i]);
    if (list)
        ibv_free_device_list(list);
    return context;
}

// A loopback address binds to any device and then reaches none.
static bool is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static int port_usable(struct device *device)
{
    struct ibv_port_attr attr;
    int rc = ibv_query_port(device->context, (uint8_t)device->port, &attr);
    if (rc == 0 && attr.state == IBV_PORT_ACTIVE)
        return 0;
    lieni_ofi_say(device->prov, LIEN_LOG_ERROR, LIEN_ENODEV, "device %s port %u at %s is %s",
                  device->entry.name, device->port, device->host,
                  rc == 0 ? lieni_verbs_state_text(attr.state) : strerror(rc));
    return LIEN_ENODEV;
}

static int fill(struct device *device)
{
    int flags = fcntl(device->context->async_fd, F_GETFL);
    if (flags < 0 || fcntl(device->context->async_fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(device->context->async_fd, F_SETFD, FD_CLOEXEC) != 0)
        return lieni_ofi_fail(device->prov, LIEN_LOG_ERROR, "its events", errno);
    int rc = ibv_query_device(device->context, &device->attr);
    if (rc != 0)
        return lieni_ofi_fail(device->prov, LIEN_LOG_ERROR, "ibv_query_device", rc);
    struct lieni_verbs_entry entry;
    rc = lieni_verbs_entry_find(device->entry.name, &entry);
    device->has_entry = rc == 0;
    if (rc == 0)
        device->entry = entry;
    else
        lieni_ofi_say(device->prov, LIEN_LOG_WARN, LIEN_EQUARANTINED,
                      "the kernel's resource table does not show device %s (%s): the end of an "
                      "endpoint with operations outstanding cannot be proved, and their memory "
                      "will be in quarantine",
                      device->entry.name, lieni_verbs_why(rc));
    return port_usable(device);
}

static int serves(struct lieni_prov *prov, const char *host)
{
    char name[64];
    unsigned port;
    if (host && !is_loopback(host) && lieni_verbs_device_at(host, name, sizeof name, &port) == 0)
        return 0;
    lieni_ofi_say(prov, LIEN_LOG_ERROR, LIEN_ENODEV, "no RDMA device serves address %s",
                  host ? host : "(any)");
    return LIEN_ENODEV;
}

static int open_device(struct lieni_prov *prov, const char *host, const struct fi_info *info,
                       void **out)
{
    char name[64];
    unsigned port = 0;
    if (lieni_verbs_device_at(host, name, sizeof name, &port) != 0 ||
        strcmp(name, info->domain_attr->name) != 0) {
        lieni_ofi_say(prov, LIEN_LOG_ERROR, LIEN_ENODEV,
                      "libfabric's device for address %s is %s, the kernel's another", host,
                      info->domain_attr->name);
        return LIEN_ENODEV;
    }
    struct device *device = calloc(1, sizeof *device);
    if (!device)
        return LIEN_ENOMEM;
    device->prov = prov;
    device->port = port;
    snprintf(device->host, sizeof device->host, "%s", host);
    snprintf(device->entry.name, sizeof device->entry.name, "%s", name);
    device->context = open_named(name);
    int code = LIEN_ENODEV;
    if (device->context)
        code = fill(device);
    else
        lieni_ofi_fail(prov, LIEN_LOG_ERROR, "ibv_open_device", errno);
    if (code != 0) {
        if (device->context)
            ibv_close_device(device->context);
        free(device);
        return code;
    }
    char path[256];
    if (lieni_verbs_path_at(host, path, sizeof path) == 0)
        lieni_ofi_say(prov, LIEN_LOG_INFO, 0, "%s is served by %s", host, path);
    *out = device;
    return 0;
}

static void close_device(void *self)
{
    struct device *device = self;
    ibv_close_device(device->context);
    free(device);
}

static uint32_t or_one(int number)
{
    return number > 0 ? (uint32_t)number : 1;
}

static void limits(void *self, struct lieni_limits *limits)
{
    const struct device *device = self;
    const struct ibv_device_attr *attr = &device->attr;
    struct ibv_port_attr port;
    if (ibv_query_port(device->context, (uint8_t)device->port, &port) == 0 && port.max_msg_sz > 0)
        limits->read_piece_max = (uint32_t)least(limits->read_piece_max, port.max_msg_sz);
    limits->reads_max = (uint32_t)least(limits->reads_max, or_one(attr->max_qp_init_rd_atom));
    // All of an endpoint's posts have one completion queue.
    limits->posts_max = (uint32_t)least(limits->posts_max, or_one(attr->max_cqe));
    limits->posts_max = (uint32_t)least(limits->posts_max, or_one(attr->max_qp_wr));
}

static uint32_t read_depth(struct lieni_prov *prov, const char *host)
{
    (void)prov;
    return is_loopback(host) ? 0 : lieni_verbs_depth_at(host);
}

static int event_fd(void *self)
{
    return ((struct device *)self)->context->async_fd;
}

static void say_event(struct device *device, const struct ibv_async_event *event)
{
    bool port = event->event_type == IBV_EVENT_PORT_ACTIVE ||
                event->event_type == IBV_EVENT_PORT_ERR;
    bool bad = event->event_type == IBV_EVENT_PORT_ERR ||
               event->event_type == IBV_EVENT_DEVICE_FATAL;
    if ((!port && !bad) || (port && (unsigned)event->element.port_num != device->port))
        return; // GID tables, subnet managers ...: nothing to act on
    lieni_ofi_say(device->prov, bad ? LIEN_LOG_WARN : LIEN_LOG_INFO, bad ? LIEN_ENODEV : 0,
                  "device %s port %u: %s", device->entry.name, device->port,
                  ibv_event_type_str(event->event_type));
}

static bool look(void *self)
{
    struct device *device = self;
    struct ibv_async_event event;
    errno = 0;
    while (ibv_get_async_event(device->context, &event) == 0) {
        say_event(device, &event);
        if (event.event_type == IBV_EVENT_DEVICE_FATAL)
            atomic_store(&device->gone, true);
        ibv_ack_async_event(&event);
        errno = 0;
    }
    // A device that was removed answers EIO for ever.
    if (errno != EAGAIN && errno != EINTR)
        atomic_store(&device->gone, true);
    return atomic_load(&device->gone);
}

static int usable(void *self)
{
    struct device *device = self;
    if (!atomic_load(&device->gone))
        return port_usable(device);
    lieni_ofi_say(device->prov, LIEN_LOG_ERROR, LIEN_ENODEV, "device %s is gone",
                  device->entry.name);
    return LIEN_ENODEV;
}

// Says once for a device that its memory will not come home by proof.
static void doubt(struct device *device, const char *why)
{
    if (!atomic_exchange(&device->doubted, true))
        lieni_ofi_say(device->prov, LIEN_LOG_WARN, LIEN_EQUARANTINED,
                      "device %s: %s: what its endpoints had outstanding goes to quarantine",
                      device->entry.name, why);
}

static bool made(void *self, struct lieni_ofi_name *name)
{
    struct device *device = self;
    uint32_t number = 0;
    if (!device->has_entry || !lieni_verbs_qp_made(&device->entry, device->port, &number) ||
        lieni_verbs_qp_ask(&device->entry, device->port, number) != LIENI_VERBS_LISTED)
        return false;
    *name = (struct lieni_ofi_name){.number = number, .port = device->port};
    return true;
}

static bool learn(void *self, const struct sockaddr *own, const struct sockaddr *peer,
                  struct lieni_ofi_name *name)
{
    struct device *device = self;
    uint32_t number = 0;
    if (!device->has_entry ||
        !lieni_verbs_qp_find(&device->entry, device->port, own, peer, &number))
        return false;
    if (lieni_verbs_qp_ask(&device->entry, device->port, number) != LIENI_VERBS_LISTED)
        return false;
    *name = (struct lieni_ofi_name){.number = number, .port = device->port};
    return true;
}

static bool there(void *self, const struct lieni_ofi_name *name)
{
    struct device *device = self;
    if (name->number == 0) {
        doubt(device, "the kernel's resource table did not tell an endpoint's queue pair");
        return false;
    }
    if (lieni_verbs_qp_stays(&device->entry, name->port, name->number))
        return true;
    doubt(device, "the kernel's resource table does not show a queue pair before its end");
    return false;
}

static bool gone(void *self, const struct lieni_ofi_name *name)
{
    struct device *device = self;
    enum lieni_verbs_answer answer = lieni_verbs_qp_ask(&device->entry, name->port, name->number);
    if (answer == LIENI_VERBS_ABSENT)
        return true;
    doubt(device, answer == LIENI_VERBS_LISTED
                      ? "a queue pair is still there after its end"
                      : "the kernel's resource table does not tell whether a queue pair is gone");
    return false;
}

const struct lieni_ofi_device_ops lieni_verbs_device_ops = {
    .serves = serves,
    .open = open_device,
    .close = close_device,
    .limits = limits,
    .read_depth = read_depth,
    .fd = event_fd,
    .look = look,
    .usable = usable,
    .made = made,
    .learn = learn,
    .there = there,
    .gone = gone,
};
