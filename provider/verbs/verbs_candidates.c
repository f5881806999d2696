// SPDX-License-Identifier: Apache-2.0
//
// What verbs could reach peers by: each address of this machine that a device serves, with the state of its port, or why it cannot be used. Asked for as connections come, so that a port that
// went down moves new ones: it opens no device while there is a port that works. No state; any thread.

#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "provider/interfaces.h"
#include "provider/verbs/internal.h"

// Less than the frames of one connection take in registered memory, whatever the options say.
#define LOCK_MIN 65536u

struct telling {
    lieni_candidate_fn *tell;
    void *arg;
    char refusal[256]; // of the provider as a whole: "" none
    bool up;           // a candidate was UP
    char told[2048];   // " name/port" of those that had an address
};

static void refuse(struct lieni_candidate *c, const char *why)
{
    c->state = LIEN_CANDIDATE_REFUSED;
    snprintf(c->reason, sizeof c->reason, "%s", why);
}

// Whether the limit of locked memory does not bind this process, as far as it can see.
static bool may_lock(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    memset(data, 0, sizeof data);
    return syscall(SYS_capget, &head, data) == 0 &&
           (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

// Why no device can be used at all, or "".
static void whole(const struct lieni_ofi *ofi, char *why, size_t size)
{
    uint64_t limit = lieni_verbs_memory_lock();
    why[0] = '\0';
    if (limit < LOCK_MIN && !may_lock())
        snprintf(why, size,
                 "the memory-lock limit (RLIMIT_MEMLOCK) is %llu bytes, and a connection registers "
                 "at least %u",
                 (unsigned long long)limit, LOCK_MIN);
    else if (lieni_ofi_offered(ofi, why, size))
        why[0] = '\0';
}

static uint32_t depth_of(struct ibv_context *context)
{
    struct ibv_device_attr attr;
    return ibv_query_device(context, &attr) == 0 && attr.max_qp_rd_atom > 0
               ? (uint32_t)attr.max_qp_rd_atom
               : 0;
}

static void judge_port(const struct telling *t, struct ibv_context *context, unsigned port,
                       struct lieni_candidate *c)
{
    struct ibv_port_attr attr;
    int rc = ibv_query_port(context, (uint8_t)port, &attr);
    if (rc != 0) {
        refuse(c, "its port does not answer: the device may be on its way out");
    } else if (attr.state != IBV_PORT_ACTIVE) {
        c->state = LIEN_CANDIDATE_DOWN;
        snprintf(c->reason, sizeof c->reason, "port %u is %s", port,
                 lieni_verbs_state_text(attr.state));
    } else if (t->refusal[0] && c->state == LIEN_CANDIDATE_UP) {
        refuse(c, t->refusal);
    }
}

// One address of one interface: whose device serves it?
static void address(void *arg, const struct lieni_candidate *of)
{
    struct telling *t = arg;
    struct lieni_candidate c = *of;
    if (!c.address[0] || lieni_verbs_is_loopback(c.address))
        return;
    struct rdma_cm_id *id = lieni_verbs_bind(c.address);
    if (!id) {
        char why[160];
        snprintf(why, sizeof why, "no RDMA device serves address %.95s", c.address);
        refuse(&c, why);
    } else {
        const char *name = ibv_get_device_name(id->verbs->device);
        size_t len = strlen(t->told);
        snprintf(c.nic, sizeof c.nic, "%.50s/%u", name, id->port_num);
        snprintf(t->told + len, sizeof t->told - len, " %.63s ", c.nic);
        c.soft = lieni_verbs_soft(name);
        c.read_depth = depth_of(id->verbs);
        judge_port(t, id->verbs, id->port_num, &c);
        rdma_destroy_id(id);
    }
    t->up = t->up || c.state == LIEN_CANDIDATE_UP;
    t->tell(t->arg, &c);
}

static void port_without_address(struct telling *t, const struct lieni_verbs_device *device,
                                 const struct lieni_verbs_port *port)
{
    struct lieni_candidate c = {.state = LIEN_CANDIDATE_DOWN, .soft = device->soft};
    char told[80];
    snprintf(c.nic, sizeof c.nic, "%.50s/%u", device->name, port->number);
    snprintf(told, sizeof told, " %s ", c.nic);
    if (strstr(t->told, told))
        return;
    for (size_t i = 0; i < port->n_gids && !c.interface[0]; i++)
        snprintf(c.interface, sizeof c.interface, "%s", port->gids[i].netdev);
    snprintf(c.reason, sizeof c.reason, "port %u is %s, and %s%s has no address", port->number,
             port->state, c.interface[0] ? "its interface " : "no interface of it", c.interface);
    t->tell(t->arg, &c);
}

// Ports that no address led to.
static void others(struct telling *t, const struct lieni_verbs_device *devices, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < devices[i].n_ports; k++)
            port_without_address(t, &devices[i], &devices[i].ports[k]);
        if (devices[i].n_ports > 0)
            continue;
        struct lieni_candidate c = {.soft = devices[i].soft};
        snprintf(c.nic, sizeof c.nic, "%s", devices[i].name);
        refuse(&c, "this process cannot open the device");
        t->tell(t->arg, &c);
    }
}

static bool any_device(void)
{
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    if (list)
        ibv_free_device_list(list);
    return n > 0;
}

static void no_device(const struct telling *t)
{
    struct lieni_candidate c = {.nic = ""};
    char why[200], memlock[64];
    lieni_memlock_text(memlock, sizeof memlock);
    snprintf(why, sizeof why, "no RDMA device; %s", memlock);
    refuse(&c, why);
    t->tell(t->arg, &c);
}

void lieni_verbs_candidates(const struct lieni_ofi *ofi, lieni_candidate_fn *tell, void *arg)
{
    struct telling t = {.tell = tell, .arg = arg};
    struct lieni_verbs_device *devices = NULL;
    size_t n = 0;
    if (!any_device()) {
        no_device(&t);
        return;
    }
    whole(ofi, t.refusal, sizeof t.refusal);
    lieni_interfaces(address, &t);
    if (t.up || lieni_verbs_devices(&devices, &n) != 0)
        return;
    others(&t, devices, n);
    lieni_verbs_devices_free(devices, n);
}
