// SPDX-License-Identifier: Apache-2.0
//
// Inside of the provider over UCX. Messages are active messages, a READ is ucp_get_nbx with a remote key that the owner of the region packs when it is asked for it. docs/ucx.md has the
// reasons, what UCX's source says of evidence, and the bytes.
//
// Each endpoint has a UCX worker of its own. UCX is called for it by the progress context alone, so a worker knows one thread at a time, and never under a lock of ours. ucx_prov.c: provider,
// domains, regions, poll; ucx_open.c: up to UP; ucx_peer.c: what goes to UCX and comes from it; ucx_ep.c: posts and the end; ucx_library.c: the library and its settings.
//
// Locks: ep->lock guards the state and the lists of posts, domain->lock the regions and who was told of them, prov->lock the lists of endpoints. Order: ep->lock, domain->lock, prov->lock.
//
// What ends the lending. A post that UCX has is `flying`. UCX's callback with success, before anything was cancelled, is its entry. Each other callback leaves it in `limbo`: UCX calls back
// when it cancels, too, and what that proves depends on the transport. The end of the worker takes flying and limbo along where each transport moves bytes by this process's own hand
// (tcp, self): nothing of UCX can touch memory for it any more. Elsewhere nothing is declared.

#ifndef LIENI_UCX_H
#define LIENI_UCX_H

#include <pthread.h>
#include <sys/queue.h>

#include <ucp/api/ucp.h>

#include "provider/ucx/ucx_provider.h"

// -- The library -----------------------------------------------------------------------------------------------------------------------

// Each function of UCX that is called.
#define LIENI_UCX_CALLS(X)                                                                         \
    X(ucp_am_send_nbx)                                                                             \
    X(ucp_cleanup)                                                                                 \
    X(ucp_config_modify)                                                                           \
    X(ucp_config_read)                                                                             \
    X(ucp_config_release)                                                                          \
    X(ucp_ep_close_nbx)                                                                            \
    X(ucp_ep_create)                                                                               \
    X(ucp_ep_flush_nbx)                                                                            \
    X(ucp_ep_rkey_unpack)                                                                          \
    X(ucp_get_nbx)                                                                                 \
    X(ucp_get_version_string)                                                                      \
    X(ucp_init_version)                                                                            \
    X(ucp_mem_map)                                                                                 \
    X(ucp_mem_unmap)                                                                               \
    X(ucp_request_check_status)                                                                    \
    X(ucp_request_free)                                                                            \
    X(ucp_rkey_buffer_release)                                                                     \
    X(ucp_rkey_destroy)                                                                            \
    X(ucp_rkey_pack)                                                                               \
    X(ucp_worker_arm)                                                                              \
    X(ucp_worker_create)                                                                           \
    X(ucp_worker_destroy)                                                                          \
    X(ucp_worker_get_address)                                                                      \
    X(ucp_worker_get_efd)                                                                          \
    X(ucp_worker_progress)                                                                         \
    X(ucp_worker_release_address)                                                                  \
    X(ucp_worker_set_am_recv_handler)                                                              \
    X(ucs_status_string)

struct lieni_ucx_calls {
#define X(name) __typeof__(name) *name;
    LIENI_UCX_CALLS(X)
#undef X
};

// Filled by lieni_ucx_load, constant afterwards.
extern struct lieni_ucx_calls lieni_ucx;

// Loads UCX, once for the process; it stays. NULL, or why it cannot be used. Any thread.
const char *lieni_ucx_load(void);
// Whether bytes are moved by this process's own hand only: what UCX_TLS says, or the default.
bool lieni_ucx_by_hand(void);
// A context for `device` (a network interface; "": all).
int lieni_ucx_context(struct lieni_prov *prov, const char *device, ucp_context_h *context);
// What UCX said last on this thread, or ""; then it is forgotten.
const char *lieni_ucx_said(void);
int lieni_ucx_code(ucs_status_t status);

// -- Provider --------------------------------------------------------------------------------------------------------------------------

enum lieni_ucx_watch_kind {
    LIENI_UCX_WAKE,
    LIENI_UCX_LISTEN,
    LIENI_UCX_LANE,
    LIENI_UCX_WORKER
};

// What an event of prov->epfd points to.
struct lieni_ucx_watch {
    enum lieni_ucx_watch_kind kind;
};

TAILQ_HEAD(lieni_ucx_eps, lieni_ep);
TAILQ_HEAD(lieni_ucx_domains, lieni_domain);
TAILQ_HEAD(lieni_ucx_mrs, lieni_mr);
TAILQ_HEAD(lieni_ucx_lanes, lieni_ucx_lane);
TAILQ_HEAD(lieni_ucx_posts, lieni_ucx_post);
TAILQ_HEAD(lieni_ucx_keys, lieni_ucx_key);
TAILQ_HEAD(lieni_ucx_tolds, lieni_ucx_told);
STAILQ_HEAD(lieni_ucx_nets, lieni_ucx_net);

// A UCX context, which sees one network interface.
struct lieni_ucx_net {
    STAILQ_ENTRY(lieni_ucx_net) link;
    char device[64];
    ucp_context_h context;
};

struct lieni_prov {
    const struct lieni_env *env;
    struct lieni_report report;
    bool by_hand; // see above
    int epfd, wakefd;
    struct lieni_ucx_watch wake;
    struct lieni_ucx_nets nets;       // progress context
    struct lieni_ucx_domains domains; // progress context

    pthread_mutex_t lock;
    struct lieni_ucx_eps work;  // endpoints to serve, in turn
    struct lieni_ucx_eps awake; // served, but their workers must be armed before a sleep
    bool armed;                 // the progress context sleeps, or is about to
};

#define LIENI_UCX_BUCKETS 256u

struct lieni_domain {
    struct lieni_prov *prov;
    struct lieni_ucx_net *net;
    struct lieni_ucx_eps eps; // prov->lock
    unsigned n_eps;           // prov->lock
    TAILQ_ENTRY(lieni_domain) link;

    pthread_mutex_t lock;
    struct lieni_ucx_mrs buckets[LIENI_UCX_BUCKETS]; // by key
    size_t n_mrs;
};

struct lieni_mr {
    struct lieni_domain *domain;
    uint8_t *addr;
    size_t len;
    uint64_t key;                // 0: local only
    struct lieni_ucx_tolds told; // domain->lock
    ucp_mem_h memh;
    TAILQ_ENTRY(lieni_mr) link;
};

// A peer has the remote key of a region: domain->lock.
struct lieni_ucx_told {
    struct lieni_mr *mr; // NULL: closed; the peer is to be told that, too
    struct lieni_ep *ep;
    uint64_t key;
    TAILQ_ENTRY(lieni_ucx_told) mr_link; // mr->told
    TAILQ_ENTRY(lieni_ucx_told) ep_link; // ep->told, or ep->gone
};

// -- Endpoint --------------------------------------------------------------------------------------------------------------------------

#define LIENI_UCX_LANES 8u // peers that a waiting endpoint listens to at once
#define LIENI_UCX_HELLO 76u
#define LIENI_UCX_ADDRESS                                                                          \
    4096u // most bytes of a worker's address; as many zeros are behind a peer's, for who reads on
#define LIENI_UCX_RKEY  256u       // most bytes of a packed remote key; likewise
#define LIENI_UCX_KEYS  1024u      // remote keys of the peer that are kept
#define LIENI_UCX_RECVS (1u << 20) // receives that a peer may have told of and not had
#define LIENI_UCX_HEAD  48u        // bytes of each message's header

// A socket on which worker addresses are exchanged.
struct lieni_ucx_lane {
    struct lieni_ucx_watch watch;
    struct lieni_ep *ep;
    int fd;
    bool connected;
    bool judged; // the peer's HELLO was the right one
    int error;   // errno of a connect that failed at once
    bool ready;  // epoll reported it since it last gave EAGAIN
    uint8_t out[LIENI_UCX_HELLO + LIENI_UCX_ADDRESS];
    size_t out_at, out_len;
    size_t got;
    uint8_t in[LIENI_UCX_HELLO + 2 * LIENI_UCX_ADDRESS];
    TAILQ_ENTRY(lieni_ucx_lane) link;
};

enum lieni_ucx_state {
    LIENI_UCX_HALF, // awaits its peer; UP or FAILED ends it, or ep_shutdown. No deadline here: core's connect timer
    LIENI_UCX_UP,     // the only state with posts
    LIENI_UCX_DOWN,   // told DOWN; UCX is not called any more; awaits ep_shutdown
    LIENI_UCX_FAILED, // told FAILED; awaits ep_shutdown
    LIENI_UCX_CLOSING // ep_shutdown came; UCX is not called any more until the worker's end, then posts are flushed; awaits ep_destroy
};

enum lieni_ucx_kind {
    LIENI_UCX_GREET = 1, // the first of each side
    LIENI_UCX_SEND,
    LIENI_UCX_CREDIT, // receives were posted
    LIENI_UCX_ASK,    // for the remote key of a region
    LIENI_UCX_TELL,   // the remote key
    LIENI_UCX_REFUSE, // no such region
    LIENI_UCX_GONE,   // a region whose remote key was told is closed
    LIENI_UCX_KINDS
};

// Over the line, with the number of messages that the sender sent in all (4 bytes): it calls UCX no more for this connection.
#define LIENI_UCX_BYE   'B' // and no READ of its is unanswered
#define LIENI_UCX_LEAVE 'L' // and READs of its may be
#define LIENI_UCX_WORD  5u

struct lieni_ucx_post {
    TAILQ_ENTRY(lieni_ucx_post) link;
    struct lieni_ep *ep;
    bool read;
    uint8_t *buf;
    const uint8_t *data; // of a send
    size_t len, got;
    struct lieni_mr *mr;
    uint64_t context, remote_addr, remote_key;
    struct lieni_ucx_key *key; // of a READ that flies
    int status, error;         // once done
    uint8_t head[LIENI_UCX_HEAD];
};

// A region of the peer's.
struct lieni_ucx_key {
    TAILQ_ENTRY(lieni_ucx_key) link; // the last used first
    uint64_t key, base, len;
    ucp_rkey_h rkey;
    unsigned flying; // READs with it
    bool gone;
};

// A message of ours that carries no post. One of each kind at a time.
struct lieni_ucx_control {
    struct lieni_ep *ep;
    bool busy;
    void *packed; // of TELL: UCX's buffer
    uint8_t head[LIENI_UCX_HEAD];
};

struct lieni_ep {
    struct lieni_domain *domain;
    struct lieni_prov *prov;
    void *user;
    bool server;
    char peer[112]; // for reports
    uint8_t send_data[LIENI_CM_DATA], expect_data[LIENI_CM_DATA];
    TAILQ_ENTRY(lieni_ep) link;      // domain->eps
    TAILQ_ENTRY(lieni_ep) work_link; // prov->work or ->awake
    bool working, waking;            // prov->lock; linked there

    pthread_mutex_t lock;
    enum lieni_ucx_state state;
    bool was_up; // its posts are flushed when it ends
    struct lieni_ucx_post *posts;
    struct lieni_ucx_posts unused, sends, recvs, reads; // queued
    struct lieni_ucx_posts flying, limbo, done;         // see above; done: an entry each
    unsigned n_reads;                                   // of them not in done
    uint64_t recvs_posted;

    struct lieni_ucx_tolds told, gone; // domain->lock

    // Progress context:
    int listen_fd;
    struct lieni_ucx_watch listen_watch, worker_watch;
    bool can_accept;
    struct lieni_ucx_lanes lanes;
    unsigned n_lanes;
    uint64_t token;               // that messages to us must have
    struct lieni_ucx_lane *line;  // of lanes: the socket to the peer, kept open until the end
    uint8_t word[LIENI_UCX_WORD]; // that came over it
    size_t word_len;
    uint64_t leave_until; // CLOSING: the peer's end of the line is awaited no longer
    bool ended;           // the worker is gone for good
    bool unheard;         // ep_destroy was tried: entries would prove nothing any more
    ucp_worker_h worker;
    int worker_fd;
    ucp_ep_h uep;
    bool cancelled; // the close began: no callback is evidence from now on
    int broken, broken_error;
    bool heard; // the peer's GREET
    uint64_t peer_token;
    uint64_t recvs_told, recvs_used; // of ours
    uint64_t peer_recvs, peer_used;  // of the peer's: told in all, sent to in all
    uint32_t number_out, number_in;  // of the next message
    struct lieni_ucx_keys keys;
    unsigned n_keys;
    uint64_t asking; // key we asked for, 0: none
    uint64_t asked;  // key the peer asks for, 0: none
    struct lieni_ucx_control controls[LIENI_UCX_KINDS];
};

// -- ucx_prov.c ------------------------------------------------------------------------------------------------------------------------

__attribute__((format(printf, 4, 5))) int lieni_ucx_say(struct lieni_prov *prov, lien_level level,
                                                        int code, const char *format,
                                                        ...); // returns code
// Puts the endpoint on the list of those to serve, and wakes the progress context.
void lieni_ucx_touch(struct lieni_ep *ep);
// Takes it off the lists.
void lieni_ucx_untouch(struct lieni_ep *ep);
int lieni_ucx_watch(struct lieni_prov *prov, int fd, bool edge, struct lieni_ucx_watch *watch);
// Under domain->lock: the region with that key, or NULL.
struct lieni_mr *lieni_ucx_find(struct lieni_domain *domain, uint64_t key);

// -- ucx_open.c ------------------------------------------------------------------------------------------------------------------------

int lieni_ucx_listen(struct lieni_domain *domain, const struct lieni_ep_args *args,
                     struct lieni_ep **ep, uint16_t *port);
int lieni_ucx_connect(struct lieni_domain *domain, const struct lieni_ep_args *args,
                      struct lieni_ep **ep);
// Serves an endpoint that is HALF. True: *event was made, UP or FAILED.
bool lieni_ucx_opening(struct lieni_ep *ep, struct lieni_event *event);
// All but the line, or all; and the listener.
void lieni_ucx_close_lanes(struct lieni_ep *ep, bool line);

// -- ucx_peer.c ------------------------------------------------------------------------------------------------------------------------

int lieni_ucx_worker(struct lieni_ep *ep);                    // makes it
int lieni_ucx_peer(struct lieni_ep *ep, const void *address); // makes ep->uep
bool lieni_ucx_push(struct lieni_ep *ep); // gives UCX what is due; false: nothing was
bool lieni_ucx_turn(struct lieni_ep *ep); // push and progress; true: there may be more
void lieni_ucx_break(struct lieni_ep *ep, int code, int error); // it is over, unless it was
// Its worker is not called any more, and wakes nobody; the peer sees the end of the line.
void lieni_ucx_quiet(struct lieni_ep *ep);
// The beginning of the end: what was sent is flushed if `flush`, the peer hears of it.
void lieni_ucx_leave(struct lieni_ep *ep, bool flush);
// The peer does not call UCX any more either, or was waited for long enough.
bool lieni_ucx_may_end(struct lieni_ep *ep);
void lieni_ucx_end(struct lieni_ep *ep);

static inline uint32_t lieni_ucx_get32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t lieni_ucx_get64(const uint8_t *at)
{
    return lieni_ucx_get32(at) | (uint64_t)lieni_ucx_get32(at + 4) << 32;
}

static inline void lieni_ucx_put32(uint8_t *at, uint32_t v)
{
    for (unsigned i = 0; i < 4; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static inline void lieni_ucx_put64(uint8_t *at, uint64_t v)
{
    lieni_ucx_put32(at, (uint32_t)v);
    lieni_ucx_put32(at + 4, (uint32_t)(v >> 32));
}

// -- ucx_ep.c --------------------------------------------------------------------------------------------------------------------------

// Changes the state; ep->lock. Forbidden changes abort.
void lieni_ucx_enter(struct lieni_ep *ep, enum lieni_ucx_state state);
int lieni_ucx_ep_new(struct lieni_domain *domain, const struct lieni_ep_args *args, bool server,
                     struct lieni_ep **ep);
void lieni_ucx_ep_free(struct lieni_ep *ep);
int lieni_ucx_post_send(struct lieni_ep *ep, const void *buf, size_t len, struct lieni_mr *mr,
                        uint64_t context);
int lieni_ucx_post_recv(struct lieni_ep *ep, void *buf, size_t len, struct lieni_mr *mr,
                        uint64_t context);
int lieni_ucx_post_read(struct lieni_ep *ep, void *dst, size_t len, struct lieni_mr *mr,
                        uint64_t remote_addr, uint64_t remote_key, uint64_t context);
// UCX is done with a post that flew, or says so.
void lieni_ucx_over(struct lieni_ucx_post *post, ucs_status_t status);
// The next entry; false: none is left that may be given.
bool lieni_ucx_entry(struct lieni_ep *ep, struct lieni_cqe *cqe);
void lieni_ucx_shutdown(struct lieni_ep *ep);
int lieni_ucx_destroy(struct lieni_ep *ep, enum lieni_proof *proof, uint64_t *late);

#endif
