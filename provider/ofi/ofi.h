// SPDX-License-Identifier: Apache-2.0
//
// Inside of the libfabric engine: FI_EP_MSG endpoints, READ, SEND and RECV, for any libfabric provider, parametrised by struct lieni_ofi. It fills in provider/provider.h.
//
// Locks, in this order: ep->post_lock, ep->cq_lock, prov->lock, prov->say_lock. ep->post_lock guards ep->state and bars posts; ep->cq_lock is held while the completion
// queue is read. prov->lock guards the ring of endpoints that need serving, the queue of finished half-open endpoints, and the lists of domains and endpoints.
//
// A half-open endpoint belongs to its CM thread (ofi_cm.c) until `over`; from then on its libfabric objects belong to the progress context, but for posts.

#ifndef LIENI_OFI_H
#define LIENI_OFI_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "provider/provider.h"

#define LIENI_OFI_VERSION FI_VERSION(1, 17)

// What an endpoint is called below libfabric, from where its end can be proved. Zero: not known.
struct lieni_ofi_name {
    uint32_t number;
    uint32_t port;
};

// What only the device's own library and kernel tell. All functions but `open` get what that made.
struct lieni_ofi_device_ops {
    // 0: a device serves `host` (numeric); else LIEN_ENODEV after a report. Before libfabric is asked, which does not say why.
    int (*serves)(struct lieni_prov *prov, const char *host);
    // Of the device at `host`, which `info` names. A LIEN_ code after a report. May block briefly.
    int (*open)(struct lieni_prov *prov, const char *host, const struct fi_info *info,
                void **device);
    void (*close)(void *device);
    // Narrows limits that are the traits' to what the device has.
    void (*limits)(void *device, struct lieni_limits *limits);
    uint32_t (*read_depth)(struct lieni_prov *prov, const char *host);
    // Readable when the device has something to say.
    int (*fd)(void *device);
    // Reads and reports that. True: the device is gone, and all its connections with it. Progress context.
    bool (*look)(void *device);
    // 0, or a LIEN_ code after a report: new connections cannot work now. Any thread.
    int (*usable)(void *device);
    // The name of the endpoint that the calling thread has just made, its only one; false: not known.
    bool (*made)(void *device, struct lieni_ofi_name *name);
    // The name of the endpoint with these addresses, which is connected or tried to be; false: not known. Any thread.
    bool (*learn)(void *device, const struct sockaddr *own, const struct sockaddr *peer,
                  struct lieni_ofi_name *name);
    // Right before fi_close(ep): whether that endpoint is seen. Unless this very thread saw it then, that it is not seen later proves nothing. Any thread.
    bool (*there)(void *device, const struct lieni_ofi_name *name);
    // After fi_close(ep) == 0 of one that was there: whether it is proved gone. Any thread.
    bool (*gone)(void *device, const struct lieni_ofi_name *name);
};

// What differs between libfabric's providers. traits->name is libfabric's name of it, matched exactly (never a layered "a;b").
struct lieni_ofi {
    const struct lieni_traits *traits;
    uint64_t mode;     // libfabric mode bits that this engine can live with there
    uint32_t protocol; // the only one to take (FI_PROTO_); 0: any
    bool
        connected_queues; // queues are as deep as asked for when the endpoint is made, and a connection leaves from the NIC's address
    const struct lieni_ofi_device_ops *device; // NULL: libfabric tells all there is
};

enum lieni_ofi_ep_state {
    LIENI_OFI_HALF, // awaits its CM thread; UP or FAILED ends it, or ep_shutdown. No deadline here: core's connect timer
    LIENI_OFI_UP,   // connected; the only state with posts
    LIENI_OFI_DOWN, // told DOWN; awaits ep_shutdown
    LIENI_OFI_FAILED, // told FAILED; awaits ep_shutdown
    LIENI_OFI_CLOSING, // ep_shutdown came; awaits ep_destroy. The memory of its posts stays lent until then
};

TAILQ_HEAD(lieni_ofi_ring, lieni_ep);
TAILQ_HEAD(lieni_ofi_handed, lieni_ep);
TAILQ_HEAD(lieni_ofi_eps, lieni_ep);
TAILQ_HEAD(lieni_ofi_domains, lieni_domain);

struct lieni_prov {
    const struct lieni_ofi *ofi;
    const struct lieni_env *env;
    int epfd;         // wait descriptors of all connected endpoints, and wakefd
    unsigned skipped; // polls that did not ask epfd, in a row; progress context
    int wakefd;       // a CM thread is over, or a post came while the progress context slept

    pthread_mutex_t lock;
    struct lieni_ofi_ring ring;     // endpoints to serve, in turn
    unsigned ring_size;             // members that are linked
    struct lieni_ofi_handed handed; // CM thread over, not yet taken by poll
    bool armed;                     // the progress context sleeps, or is about to
    struct lieni_ofi_domains domains;

    pthread_mutex_t say_lock;
    struct lieni_report report;
    bool mute; // left behind by close: the report's owner is gone
};

// What an event of prov->epfd points to; NULL: prov->wakefd.
struct lieni_ofi_watch {
    struct lieni_domain *domain; // its device's descriptor, and then no endpoint's
    struct lieni_ep *ep;
    bool eq; // its event queue's descriptor, not its completion queue's
};

struct lieni_domain {
    struct lieni_prov *prov;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct lieni_limits limits;
    void *device; // of ofi->device
    struct lieni_ofi_watch watch;
    int device_fd; // watched by prov->epfd, or -1
    atomic_uint n_mrs;
    unsigned n_eps;           // prov->lock
    struct lieni_ofi_eps eps; // prov->lock
    TAILQ_ENTRY(lieni_domain) link;
};

struct lieni_mr {
    struct lieni_domain *domain;
    struct fid_mr *mr; // NULL: local only, where the provider wants no registration for that
};

// The half-open part; written by the CM thread until `over`.
struct lieni_ofi_cm {
    pthread_t thread;
    int wakefd; // cancels the wait
    atomic_bool cancel;
    bool over;   // prov->lock; the thread touches nothing any more but its own return
    bool handed; // prov->lock; linked in prov->handed
    bool joined; // progress context
    bool server;
    struct fi_info *info; // connect: with the peer's address; listen: of the passive endpoint
    struct fid_pep *pep;
    struct fid_eq *pep_eq;
    char peer[96]; // for reports
    uint8_t send_data[LIENI_CM_DATA];
    uint8_t expect_data[LIENI_CM_DATA];
    struct lieni_recv *recvs;
    size_t n_recvs;
    int status; // 0: connected
    int provider_error;
    TAILQ_ENTRY(lieni_ep) link; // prov->handed
};

struct lieni_ep {
    struct lieni_domain *domain;
    struct lieni_prov *prov;
    void *user;
    uint32_t posts_max;

    pthread_mutex_t post_lock;
    pthread_mutex_t cq_lock;
    enum lieni_ofi_ep_state state; // post_lock
    atomic_uint outstanding;       // posts without an entry yet

    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_eq *eq;
    struct lieni_ofi_name name; // CM thread, then progress context
    bool enabled;               // something can have been posted; CM thread, then progress context
    bool unproven;              // an endpoint of it was closed without proof
    bool device_gone;           // its device went away; progress context
    bool shut; // by the peer, not told yet: what it had sent before comes first; progress context
    _Atomic uint64_t
        refused_since; // when the full queue first refused a post, and nothing moved since; 0: it did
    int cq_fd;         // -1 until registered with prov->epfd
    int eq_fd;

    TAILQ_ENTRY(lieni_ep) ring_link;
    bool in_ring;        // prov->lock; stays true while the progress context has it in hand
    bool linked;         // prov->lock; linked in prov->ring
    atomic_bool touched; // posted to since last served
    unsigned quiet;      // servings in a row that found nothing; progress context
    bool look_eq;        // the event queue may have something; progress context
    bool
        eq_sleeps; // fi_trywait let the event queue sleep, and it was neither reported nor read since; progress context
    struct lieni_ofi_watch watch_cq, watch_eq;
    bool cq_broken; // progress context
    struct lieni_ofi_cm cm;
    TAILQ_ENTRY(lieni_ep) link; // domain->eps
};

// -- ofi_error.c -------------------------------------------------------------------------------------------------------------------

// The LIEN_ code of a libfabric error, given with either sign.
int lieni_ofi_code(int error);
// Reports, from any thread.
__attribute__((format(printf, 4, 5))) void lieni_ofi_say(struct lieni_prov *prov, lien_level level,
                                                         int code, const char *format, ...);
// Reports a failed libfabric call `what` and returns its LIEN_ code; names the limit of descriptors where that is it.
int lieni_ofi_fail(struct lieni_prov *prov, lien_level level, const char *what, int64_t error);
// Marks `fd` close-on-exec, and what it watches if it is an epoll descriptor (libfabric's wait descriptors watch its sockets). As far as it can.
void lieni_ofi_cloexec(int fd);

// -- ofi_environment.c -------------------------------------------------------------------------------------------------------------

// What this process must look like before libfabric is used (design.md 8). Returns NULL, or what is wrong.
const char *lieni_ofi_environment_fault(void);
// Gives back to the process the signals that libinfinipath took.
void lieni_ofi_restore_signals(void);

// -- ofi_domain.c ------------------------------------------------------------------------------------------------------------------

int lieni_ofi_open(const struct lieni_ofi *ofi, const struct lieni_prov_args *args,
                   struct lieni_prov **prov);
void lieni_ofi_close(struct lieni_prov *prov);
int lieni_ofi_domain_open(struct lieni_prov *prov, const char *host, struct lieni_domain **domain);
int lieni_ofi_domain_close(struct lieni_domain *domain, enum lieni_proof *proof);
void lieni_ofi_domain_limits(struct lieni_domain *domain, struct lieni_limits *limits);
uint32_t lieni_ofi_read_depth(struct lieni_prov *prov, const char *host);
int lieni_ofi_mr_reg(struct lieni_domain *domain, void *addr, size_t len, unsigned access,
                     struct lieni_mr **mr, struct lieni_mr_info *info);
int lieni_ofi_mr_close(struct lieni_mr *mr);

// -- ofi_ep.c ----------------------------------------------------------------------------------------------------------------------

int lieni_ofi_listen(struct lieni_domain *domain, const struct lieni_ep_args *args,
                     struct lieni_ep **ep, uint16_t *port);
int lieni_ofi_connect(struct lieni_domain *domain, const struct lieni_ep_args *args,
                      struct lieni_ep **ep);
int lieni_ofi_post_send(struct lieni_ep *ep, const void *buf, size_t len, struct lieni_mr *mr,
                        uint64_t context);
int lieni_ofi_post_recv(struct lieni_ep *ep, void *buf, size_t len, struct lieni_mr *mr,
                        uint64_t context);
int lieni_ofi_post_read(struct lieni_ep *ep, void *dst, size_t len, struct lieni_mr *mr,
                        uint64_t remote_addr, uint64_t remote_key, uint64_t context);
void lieni_ofi_ep_shutdown(struct lieni_ep *ep);
int lieni_ofi_ep_destroy(struct lieni_ep *ep, enum lieni_proof *proof, uint64_t *late);
// fi_close(ep), drain, fi_close(cq), fi_close(eq), of what there is; *late counts the entries drained. What it proves of all that was ever posted.
enum lieni_proof lieni_ofi_close_fids(struct lieni_ep *ep, uint64_t *late);
// The only writer of ep->state. Caller holds ep->post_lock.
void lieni_ofi_ep_enter(struct lieni_ep *ep, enum lieni_ofi_ep_state state);
// The local descriptor of a region.
void *lieni_ofi_desc(const struct lieni_mr *mr);
// Learns the name of an endpoint that is connected, where its end is proved by that. One made under another name is not known any more.
void lieni_ofi_learn(struct lieni_ep *ep);

// -- ofi_cm.c ----------------------------------------------------------------------------------------------------------------------

// Starts the CM thread of a half-open endpoint.
int lieni_ofi_cm_start(struct lieni_ep *ep);
// Asks the thread to end.
void lieni_ofi_cm_cancel(struct lieni_ep *ep);
// Whether the thread is over; then joins it and takes the endpoint off prov->handed. Progress context.
bool lieni_ofi_cm_over(struct lieni_ep *ep);

// -- ofi_poll.c --------------------------------------------------------------------------------------------------------------------

int lieni_ofi_fd(struct lieni_prov *prov);
int lieni_ofi_arm(struct lieni_prov *prov);
unsigned lieni_ofi_poll(struct lieni_prov *prov, struct lieni_event *events, unsigned max);
// Marks the endpoint for serving, and wakes a sleeping progress context. Any thread.
void lieni_ofi_touch(struct lieni_ep *ep);
// Takes it off the ring and out of prov->epfd. Progress context.
void lieni_ofi_forget(struct lieni_ep *ep);
// Watches the descriptor of the domain's device, and ends that.
int lieni_ofi_watch_device(struct lieni_domain *domain);
void lieni_ofi_unwatch_device(struct lieni_domain *domain);
// Wakes whoever sleeps on the provider's descriptor.
void lieni_ofi_wake(struct lieni_prov *prov);
// Reads the endpoint's queue to its end and returns the number of entries, which prove nothing. After fi_close(ep).
uint64_t lieni_ofi_drain(struct lieni_ep *ep);

// The table of a libfabric provider but for `open`, which names its traits.
#define LIENI_OFI_OPS                                                                              \
    .close = lieni_ofi_close, .fd = lieni_ofi_fd, .arm = lieni_ofi_arm, .poll = lieni_ofi_poll,    \
    .domain_open = lieni_ofi_domain_open, .domain_close = lieni_ofi_domain_close,                  \
    .domain_limits = lieni_ofi_domain_limits, .read_depth = lieni_ofi_read_depth,                  \
    .mr_reg = lieni_ofi_mr_reg, .mr_close = lieni_ofi_mr_close, .listen = lieni_ofi_listen,        \
    .connect = lieni_ofi_connect, .post_send = lieni_ofi_post_send,                                \
    .post_recv = lieni_ofi_post_recv, .post_read = lieni_ofi_post_read,                            \
    .ep_shutdown = lieni_ofi_ep_shutdown, .ep_destroy = lieni_ofi_ep_destroy

#endif
