// SPDX-License-Identifier: Apache-2.0
//
// Raw libfabric, as a careful program would use it for one connection: FI_EP_MSG, one thread, no lock, blocking by fi_trywait and poll, never busy. Two layouts of completion queues:
// Lien's (one for the endpoint) and the plain one (one for sends and READs, one for receives), each with its wait descriptor. It knows nothing of Lien: no credits, no
// evidence, no frames.

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "side.h"

#define API     FI_VERSION(1, 17)
#define RECVS   16u
#define ENTRIES 16u

enum layout {
    ONE_QUEUE,
    TWO_QUEUES
};

enum what {
    RECV,
    SEND,
    READ
};

// What a context points to.
struct slot {
    enum what what;
    uint8_t *bytes;
};

struct raw {
    enum layout layout;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_pep *pep;
    struct fid_ep *ep;
    struct fid_cq *cqs[2];
    int cq_fds[2];
    unsigned n_cqs;
    int stop_fd; // server: its end is ours; client: -1
    bool stopped;
    uint8_t *memory; // targets or source, then receives, then what is sent
    size_t len;
    struct fid_mr *mr;
    struct slot recvs[RECVS], send, reads[PERF_DEPTH_MAX];
    uint64_t remote_addr, remote_key; // client: of the source
    // The run at hand.
    size_t bytes;
    uint64_t to_start, over;
    bool echo; // answer each message with itself
};

// What the server tells first.
struct greeting {
    uint64_t addr, key;
};

static int failed(const char *what, ssize_t rc)
{
    fprintf(stderr, "lien-perf: raw: %s: %s\n", what, fi_strerror((int)(rc < 0 ? -rc : rc)));
    return -1;
}

// -- Making ------------------------------------------------------------------------------------------------------------------------

static struct fi_info *find(const char *host, const char *port, uint64_t flags)
{
    struct fi_info *hints = fi_allocinfo(), *info = NULL;
    if (!hints)
        return NULL;
    hints->caps = FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_REMOTE_READ;
    hints->ep_attr->type = FI_EP_MSG;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(perf_provider());
    int rc = fi_getinfo(API, host, port, flags, hints, &info);
    fi_freeinfo(hints);
    if (rc != 0)
        failed("fi_getinfo", rc);
    return rc == 0 ? info : NULL;
}

static int open_fabric(struct raw *raw)
{
    struct fi_eq_attr attr = {.size = 16, .wait_obj = FI_WAIT_FD};
    int rc = fi_fabric(raw->info->fabric_attr, &raw->fabric, NULL);
    if (rc == 0)
        rc = fi_domain(raw->fabric, raw->info, &raw->domain, NULL);
    if (rc == 0)
        rc = fi_eq_open(raw->fabric, &attr, &raw->eq, NULL);
    return rc == 0 ? 0 : failed("fi_fabric, fi_domain or fi_eq_open", rc);
}

static int open_queues(struct raw *raw)
{
    struct fi_cq_attr attr = {.size = 256, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
    raw->n_cqs = raw->layout == ONE_QUEUE ? 1 : 2;
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < raw->n_cqs; i++) {
        rc = fi_cq_open(raw->domain, &attr, &raw->cqs[i], NULL);
        if (rc == 0)
            rc = fi_control(&raw->cqs[i]->fid, FI_GETWAIT, &raw->cq_fds[i]);
    }
    return rc == 0 ? 0 : failed("fi_cq_open", rc);
}

static int bind_queues(struct raw *raw)
{
    int rc = fi_ep_bind(raw->ep, &raw->eq->fid, 0);
    if (rc == 0 && raw->layout == ONE_QUEUE)
        return fi_ep_bind(raw->ep, &raw->cqs[0]->fid, FI_TRANSMIT | FI_RECV);
    if (rc == 0)
        rc = fi_ep_bind(raw->ep, &raw->cqs[0]->fid, FI_TRANSMIT);
    if (rc == 0)
        rc = fi_ep_bind(raw->ep, &raw->cqs[1]->fid, FI_RECV);
    return rc;
}

// Registered memory, cut into slots; receives can be posted from here on.
static int open_memory(struct raw *raw)
{
    raw->len = PERF_SOURCE + (RECVS + 1) * PERF_MESSAGE_MAX;
    if (posix_memalign((void **)&raw->memory, 4096, raw->len) != 0)
        return failed("memory", FI_ENOMEM);
    memset(raw->memory, 0, raw->len);
    int rc = fi_mr_reg(raw->domain, raw->memory, raw->len,
                       FI_SEND | FI_RECV | FI_READ | FI_REMOTE_READ, 0, 0, 0, &raw->mr, NULL);
    if (rc != 0)
        return failed("fi_mr_reg", rc);
    for (unsigned i = 0; i < PERF_DEPTH_MAX; i++)
        raw->reads[i] = (struct slot){READ, raw->memory + i * PERF_READ_MAX};
    uint8_t *at = raw->memory + PERF_SOURCE;
    for (unsigned i = 0; i < RECVS; i++, at += PERF_MESSAGE_MAX)
        raw->recvs[i] = (struct slot){RECV, at};
    raw->send = (struct slot){SEND, at};
    return 0;
}

static int post_recv(struct raw *raw, struct slot *slot)
{
    ssize_t rc = fi_recv(raw->ep, slot->bytes, PERF_MESSAGE_MAX, fi_mr_desc(raw->mr), 0, slot);
    return rc == 0 ? 0 : failed("fi_recv", rc);
}

static int open_endpoint(struct raw *raw, struct fi_info *info)
{
    int rc = open_queues(raw);
    if (rc != 0)
        return rc;
    rc = fi_endpoint(raw->domain, info, &raw->ep, NULL);
    if (rc == 0)
        rc = bind_queues(raw);
    if (rc == 0)
        rc = fi_enable(raw->ep);
    if (rc != 0)
        return failed("fi_endpoint", rc);
    rc = open_memory(raw);
    for (unsigned i = 0; rc == 0 && i < RECVS; i++)
        rc = post_recv(raw, &raw->recvs[i]);
    return rc;
}

static void raw_free(struct raw *raw)
{
    struct fid *fids[] = {
        raw->ep ? &raw->ep->fid : NULL,         raw->pep ? &raw->pep->fid : NULL,
        raw->cqs[0] ? &raw->cqs[0]->fid : NULL, raw->cqs[1] ? &raw->cqs[1]->fid : NULL,
        raw->mr ? &raw->mr->fid : NULL,         raw->eq ? &raw->eq->fid : NULL,
        raw->domain ? &raw->domain->fid : NULL, raw->fabric ? &raw->fabric->fid : NULL};
    if (raw->ep)
        fi_shutdown(raw->ep, 0);
    for (size_t i = 0; i < sizeof fids / sizeof fids[0]; i++) {
        if (fids[i])
            fi_close(fids[i]);
    }
    if (raw->info)
        fi_freeinfo(raw->info);
    free(raw->memory);
    free(raw);
}

// -- Events ------------------------------------------------------------------------------------------------------------------------

static int post_send(struct raw *raw, struct slot *slot)
{
    for (;;) {
        ssize_t rc = fi_send(raw->ep, slot->bytes, raw->bytes, fi_mr_desc(raw->mr), 0, slot);
        if (rc == 0)
            return 0;
        if (rc != -FI_EAGAIN)
            return failed("fi_send", rc);
        struct fi_cq_msg_entry none;
        fi_cq_read(raw->cqs[0], &none, 0); // only progress
    }
}

static int post_read(struct raw *raw, struct slot *slot)
{
    uint64_t from = raw->remote_addr + (uint64_t)(slot->bytes - raw->memory);
    ssize_t rc = fi_read(raw->ep, slot->bytes, raw->bytes, fi_mr_desc(raw->mr), 0, from,
                         raw->remote_key, slot);
    if (rc != 0)
        return failed("fi_read", rc);
    raw->to_start--;
    return 0;
}

static int on_entry(struct raw *raw, const struct fi_cq_msg_entry *entry)
{
    struct slot *slot = entry->op_context;
    switch (slot->what) {
    case RECV:
        raw->over++;
        if (!raw->echo)
            return post_recv(raw, slot);
        raw->bytes = entry->len; // back from where it lies; a receive again once it left
        slot->what = SEND;
        return post_send(raw, slot);
    case SEND:
        if (slot == &raw->send)
            return 0;
        slot->what = RECV;
        return post_recv(raw, slot);
    case READ:
        raw->over++;
        return raw->to_start > 0 ? post_read(raw, slot) : 0;
    }
    return -1;
}

// Reads one queue once. *any: there was something.
static int read_queue(struct raw *raw, struct fid_cq *cq, bool *any)
{
    struct fi_cq_msg_entry entries[ENTRIES];
    ssize_t got = fi_cq_read(cq, entries, ENTRIES);
    if (got == -FI_EAGAIN)
        return 0;
    if (got == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(cq, &error, 0);
        return raw->stop_fd >= 0 ? 1 : failed("an operation", error.err);
    }
    if (got < 0)
        return failed("fi_cq_read", got);
    *any = true;
    for (ssize_t i = 0; i < got; i++) {
        if (on_entry(raw, &entries[i]) != 0)
            return -1;
    }
    return 0;
}

static int sleep_on_queues(struct raw *raw)
{
    struct fid *fids[2];
    struct pollfd fds[3];
    nfds_t n = 0;
    for (; n < raw->n_cqs; n++) {
        fids[n] = &raw->cqs[n]->fid;
        fds[n] = (struct pollfd){.fd = raw->cq_fds[n], .events = POLLIN};
    }
    if (fi_trywait(raw->fabric, fids, (int)n) != 0)
        return 0;
    fds[n] = (struct pollfd){.fd = raw->stop_fd, .events = POLLIN}; // ignored when -1
    int rc = poll(fds, n + 1, raw->stop_fd >= 0 ? -1 : PERF_STUCK_MS);
    if (rc == 0)
        return failed("no progress", FI_ETIMEDOUT);
    raw->stopped = raw->stop_fd >= 0 && fds[n].revents != 0;
    return 0;
}

// Makes progress until `over` reaches `n`, or until the end of the server.
static int run_until(struct raw *raw, uint64_t n)
{
    while (raw->over < n && !raw->stopped) {
        bool any = false;
        for (unsigned i = 0; i < raw->n_cqs; i++) {
            int rc = read_queue(raw, raw->cqs[i], &any);
            if (rc != 0)
                return rc;
        }
        if (!any && sleep_on_queues(raw) != 0)
            return -1;
    }
    return 0;
}

// The next connection event. Blocks.
static int next_event(struct raw *raw, uint32_t want, struct fi_eq_cm_entry *entry)
{
    uint32_t kind = 0;
    ssize_t rc = fi_eq_sread(raw->eq, &kind, entry, sizeof *entry, PERF_STUCK_MS, 0);
    if (rc >= 0 && kind == want)
        return 0;
    struct fi_eq_err_entry error = {0};
    if (rc == -FI_EAVAIL && fi_eq_readerr(raw->eq, &error, 0) > 0)
        rc = -error.err;
    return failed("connecting", rc < 0 ? rc : -FI_EOTHER);
}

// -- Server ------------------------------------------------------------------------------------------------------------------------

static int say_where(struct raw *raw, int out)
{
    struct sockaddr_in at;
    size_t len = sizeof at;
    int rc = fi_getname(&raw->pep->fid, &at, &len);
    if (rc != 0)
        return failed("fi_getname", rc);
    char text[64];
    snprintf(text, sizeof text, "127.0.0.1:%u", ntohs(at.sin_port));
    return perf_say_address(out, text);
}

static int listen_here(struct raw *raw, int out)
{
    raw->info = find("127.0.0.1", "0", FI_SOURCE);
    if (!raw->info || open_fabric(raw) != 0)
        return -1;
    int rc = fi_passive_ep(raw->fabric, raw->info, &raw->pep, NULL);
    if (rc == 0)
        rc = fi_pep_bind(raw->pep, &raw->eq->fid, 0);
    if (rc == 0)
        rc = fi_listen(raw->pep);
    return rc == 0 ? say_where(raw, out) : failed("fi_listen", rc);
}

static int accept_one(struct raw *raw)
{
    struct fi_eq_cm_entry entry;
    if (next_event(raw, FI_CONNREQ, &entry) != 0)
        return -1;
    int rc = open_endpoint(raw, entry.info);
    fi_freeinfo(entry.info);
    if (rc != 0)
        return rc;
    rc = fi_accept(raw->ep, NULL, 0);
    return rc == 0 ? next_event(raw, FI_CONNECTED, &entry) : failed("fi_accept", rc);
}

static int greet(struct raw *raw)
{
    bool virtual_addresses = (raw->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    const struct greeting hello = {.addr = virtual_addresses ? (uint64_t)(uintptr_t)raw->memory : 0,
                                   .key = fi_mr_key(raw->mr)};
    memcpy(raw->send.bytes, &hello, sizeof hello);
    raw->bytes = sizeof hello;
    return post_send(raw, &raw->send);
}

static int raw_serve(const struct side *side, int in, int out)
{
    struct raw *raw = calloc(1, sizeof *raw);
    if (!raw)
        return failed("memory", FI_ENOMEM);
    raw->layout = (enum layout)side->variant;
    raw->stop_fd = in;
    raw->echo = true;
    int rc = listen_here(raw, out);
    if (rc == 0)
        rc = accept_one(raw);
    if (rc == 0)
        perf_fill(raw->memory);
    if (rc == 0)
        rc = greet(raw);
    if (rc == 0)
        rc = run_until(raw, UINT64_MAX);
    raw_free(raw);
    return rc < 0 ? rc : 0; // above 0: the client went first
}

// -- Client ------------------------------------------------------------------------------------------------------------------------

static int dial(struct raw *raw, const char *address)
{
    char host[64];
    const char *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= sizeof host)
        return failed(address, FI_EINVAL);
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    raw->info = find(host, colon + 1, 0);
    if (!raw->info || open_fabric(raw) != 0 || open_endpoint(raw, raw->info) != 0)
        return -1;
    int rc = fi_connect(raw->ep, raw->info->dest_addr, NULL, 0);
    struct fi_eq_cm_entry entry;
    return rc == 0 ? next_event(raw, FI_CONNECTED, &entry) : failed("fi_connect", rc);
}

static int raw_open(const struct side *side, const char *address, void **client)
{
    struct raw *raw = calloc(1, sizeof *raw);
    if (!raw)
        return failed("memory", FI_ENOMEM);
    raw->layout = (enum layout)side->variant;
    raw->stop_fd = -1;
    int rc = dial(raw, address);
    if (rc == 0)
        rc = run_until(raw, 1); // the greeting, in the first receive
    if (rc != 0) {
        raw_free(raw);
        return rc;
    }
    struct greeting hello;
    memcpy(&hello, raw->recvs[0].bytes, sizeof hello);
    raw->remote_addr = hello.addr;
    raw->remote_key = hello.key;
    *client = raw;
    return 0;
}

static int raw_messages(void *client, size_t bytes, uint64_t n)
{
    struct raw *raw = client;
    raw->bytes = bytes;
    for (uint64_t i = 0; i < n; i++) {
        raw->over = 0;
        if (post_send(raw, &raw->send) != 0 || run_until(raw, 1) != 0)
            return -1;
    }
    return 0;
}

static int raw_reads(void *client, size_t bytes, unsigned depth, uint64_t n)
{
    struct raw *raw = client;
    raw->bytes = bytes;
    raw->to_start = n;
    raw->over = 0;
    for (unsigned i = 0; i < depth && raw->to_start > 0; i++) {
        if (post_read(raw, &raw->reads[i]) != 0)
            return -1;
    }
    return run_until(raw, n);
}

static const uint8_t *raw_target(void *client, unsigned i)
{
    return ((struct raw *)client)->reads[i].bytes;
}

static void raw_close(void *client)
{
    raw_free(client);
}

#define RAW                                                                                        \
    .serve = raw_serve, .open = raw_open, .messages = raw_messages, .reads = raw_reads,            \
    .target = raw_target, .close = raw_close

const struct side side_raw = {
    .name = "raw", .text = "libfabric, one queue an endpoint", .variant = ONE_QUEUE, RAW};
const struct side side_raw_plain = {
    .name = "raw-plain", .text = "libfabric, queues apart", .variant = TWO_QUEUES, RAW};
