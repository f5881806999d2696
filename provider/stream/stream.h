// SPDX-License-Identifier: Apache-2.0
//
// Inside of the stream providers: the provider interface over a byte stream, where there is no RMA and the peer is not trusted. A READ is a request that the owner of
// the memory answers with its bytes; the reader copies them from its socket into the destination. docs/wire.md has the frames, docs/stream.md the reasons.
//
// Layers: `pipe` is the socket, with TLS or without; `carrier` makes a stream of bytes of it (plain, WebSocket, HTTP/2); a `lane` is one connected socket with both; an endpoint has one
// lane, and while it waits for its peer one for each that may be it. stream_prov.c: provider, domains, regions, poll; stream_open.c: up to UP; stream_in.c, stream_out.c: frames;
// stream_ep.c: posts and the end.
//
// Threads. Everything of lanes, pipes and carriers belongs to the progress context. ep->lock guards the state and the posts' queues, domain->lock the region table and the bytes
// of a region while they are written, prov->lock the list of endpoints to serve. Order: ep->lock, domain->lock, prov->lock.
//
// What ends the lending: nothing of an endpoint touches memory of posts outside of poll, and poll touches none of an endpoint that is not UP. So an entry, and ep_shutdown, are proof.
// Memory that a peer READs is touched under domain->lock alone, and mr_close takes its region out under that lock.

#ifndef LIENI_STREAM_H
#define LIENI_STREAM_H

#include <pthread.h>
#include <sys/queue.h>
#include <sys/uio.h>

#include "provider/provider.h"

#define LIENI_STREAM_HEAD 12u // bytes before each frame's body
#define LIENI_STREAM_CHUNK                                                                         \
    65536u // most bytes of a READ in one frame: a message waits behind no more
#define LIENI_STREAM_PIECE (1u << 20)  // most bytes of a READ
#define LIENI_STREAM_READS 256u        // READs of one side that wait for their end
#define LIENI_STREAM_RECVS (1u << 20)  // receives that a peer may have told of
#define LIENI_STREAM_BATCH (64u << 20) // bytes of one read with all its operations
#define LIENI_STREAM_TURN                                                                          \
    (256u << 10)              // bytes of one endpoint and direction before the next has its turn
#define LIENI_STREAM_LANES 8u // peers that a waiting endpoint listens to at once

enum lieni_stream_kind {
    LIENI_STREAM_HELLO = 1,
    LIENI_STREAM_SEND = 2,
    LIENI_STREAM_RECVS_KIND = 3,
    LIENI_STREAM_READ = 4,
    LIENI_STREAM_DATA = 5,
    LIENI_STREAM_REFUSED = 6
};

// -- Pipe: a socket, with TLS or without ---------------------------------------------------------------------------------------------

struct lieni_tls;     // certificates and rules of a provider, NULL without TLS
struct lieni_tls_end; // TLS of one socket

struct lieni_pipe {
    int fd;
    struct lieni_tls_end *tls;
    bool can_read,
        can_write; // as far as known: cleared by LIEN_EAGAIN, set by epoll (edge-triggered)
    int error;     // errno of the last LIEN_EIO
};

// Bytes moved (at least 1), LIEN_EAGAIN, LIEN_ECLOSED or LIEN_EIO. `iov` has no empty part.
int64_t lieni_pipe_read(struct lieni_pipe *pipe, void *buf, size_t len);
int64_t lieni_pipe_write(struct lieni_pipe *pipe, const struct iovec *iov, int n);

// -- Carrier: bytes on a pipe --------------------------------------------------------------------------------------------------------

struct lieni_lane;

struct lieni_carrier {
    const char *alpn; // protocol that TLS must agree on, or NULL
    // Makes lane->carried. 0 or LIEN_ENOMEM.
    int (*open)(struct lieni_lane *lane);
    // The opening exchange, called again after LIEN_EAGAIN. 0: bytes may flow. Else an error, with lane->why set.
    int (*ready)(struct lieni_lane *lane);
    // As the pipe's. What was written may be kept in the carrier, but no address of it. A write that took less than all is gone on with by the rest, before any other: batches are whole.
    int64_t (*read)(struct lieni_lane *lane, void *buf, size_t len);
    int64_t (*write)(struct lieni_lane *lane, const struct iovec *iov, int n);
    // Gives to the pipe what the carrier has, also of its own. 0: it has none left. LIEN_EAGAIN, LIEN_ECLOSED, LIEN_EIO, LIEN_EPROTO.
    int (*flush)(struct lieni_lane *lane);
    // Says goodbye to the peer, as far as that goes without waiting.
    void (*end)(struct lieni_lane *lane);
    void (*close)(struct lieni_lane *lane);
};

extern const struct lieni_carrier lieni_carrier_plain, lieni_carrier_ws, lieni_carrier_h2;

// -- Provider ------------------------------------------------------------------------------------------------------------------------

enum lieni_stream_watch_kind {
    LIENI_WATCH_WAKE,
    LIENI_WATCH_LISTEN,
    LIENI_WATCH_LANE
};

// What an event of prov->epfd points to.
struct lieni_stream_watch {
    enum lieni_stream_watch_kind kind;
};

// What makes one provider of the common part.
struct lieni_stream_kind_of {
    const struct lieni_traits *traits;
    const struct lieni_carrier *carrier;
    bool tls;
};

TAILQ_HEAD(lieni_stream_eps, lieni_ep);
TAILQ_HEAD(lieni_stream_domains, lieni_domain);
TAILQ_HEAD(lieni_stream_mrs, lieni_mr);
TAILQ_HEAD(lieni_stream_lanes, lieni_lane);
STAILQ_HEAD(lieni_stream_posts, lieni_stream_post);

struct lieni_prov {
    const struct lieni_stream_kind_of *kind;
    const struct lieni_env *env;
    struct lieni_report report;
    struct lieni_tls *tls;
    int epfd, wakefd;
    struct lieni_stream_watch wake;
    struct lieni_stream_domains domains; // progress context

    pthread_mutex_t lock;
    struct lieni_stream_eps work; // endpoints to serve, in turn
    bool armed;                   // the progress context sleeps, or is about to
};

#define LIENI_STREAM_BUCKETS 256u // of the region table at first

struct lieni_domain {
    struct lieni_prov *prov;
    struct lieni_stream_eps eps; // progress context, but for listen and connect: prov->lock
    unsigned n_eps;
    TAILQ_ENTRY(lieni_domain) link;

    pthread_mutex_t lock;
    struct lieni_stream_mrs *buckets; // by key
    size_t n_buckets;
    size_t n_mrs; // with those that have no key
    size_t n_keys;
};

struct lieni_mr {
    struct lieni_domain *domain;
    uint8_t *addr;
    size_t len;
    uint64_t key;                  // 0: local only
    struct lieni_stream_eps users; // endpoints with a half-written answer out of it; domain->lock
    TAILQ_ENTRY(lieni_mr) link;
};

// -- Lane ----------------------------------------------------------------------------------------------------------------------------

#define LIENI_STREAM_IN 16384u

enum lieni_lane_stage {
    LIENI_LANE_CONNECTING, // the socket
    LIENI_LANE_SECURING,   // TLS
    LIENI_LANE_OPENING,    // the carrier
    LIENI_LANE_HELLO,      // the peer's first frame is awaited
    LIENI_LANE_TAKEN       // it is the endpoint's
};

struct lieni_lane {
    struct lieni_stream_watch watch;
    struct lieni_ep *ep;
    bool server;
    enum lieni_lane_stage stage; // rises by one
    struct lieni_pipe pipe;
    void *carried; // the carrier's
    bool again;    // the carrier gave LIEN_EAGAIN for the others' sake: it is to be asked again
    char why[320]; // what the carrier or TLS did not like
    TAILQ_ENTRY(lieni_lane) link;

    uint8_t hello[LIENI_STREAM_HEAD + LIENI_CM_DATA]; // the peer's
    size_t hello_len;

    size_t in_at, in_len; // bytes read ahead
    uint8_t in[LIENI_STREAM_IN];
};

// Bytes of the carrier, by way of what was read ahead. As the pipe's.
int64_t lieni_lane_read(struct lieni_lane *lane, void *buf, size_t len);
int lieni_lane_new(struct lieni_ep *ep, int fd, bool server, int error);
void lieni_lane_close(struct lieni_lane *lane);

// -- Endpoint ------------------------------------------------------------------------------------------------------------------------

enum lieni_stream_state {
    LIENI_STREAM_HALF, // awaits its peer; UP or FAILED ends it, or ep_shutdown. No deadline here: core's connect timer
    LIENI_STREAM_UP,     // the only state with posts, and in which memory is touched
    LIENI_STREAM_DOWN,   // told DOWN; its posts are flushed; awaits ep_shutdown
    LIENI_STREAM_FAILED, // told FAILED; awaits ep_shutdown
    LIENI_STREAM_CLOSING // ep_shutdown came; its posts are flushed; awaits ep_destroy
};

struct lieni_stream_post {
    STAILQ_ENTRY(lieni_stream_post) link;
    uint8_t *buf;
    const uint8_t *data; // of a send
    size_t len, done;
    uint64_t context;
    uint64_t remote_addr, remote_key; // of a READ
    uint32_t number;
};

// A READ of the peer that waits for its answer.
struct lieni_stream_serve {
    uint64_t key, addr;
    uint32_t len, done, number;
};

enum lieni_stream_in_state {
    LIENI_IN_HEAD, // of a frame
    LIENI_IN_BODY, // of one that is kept in in.body
    LIENI_IN_SEND, // into the first receive
    LIENI_IN_DATA  // into the first READ
};

struct lieni_stream_in {
    enum lieni_stream_in_state state;
    uint8_t bytes[32]; // head, or body
    size_t got, want;
    uint32_t kind, len, number;
};

enum lieni_stream_out_state {
    LIENI_OUT_IDLE,
    LIENI_OUT_WRITING, // a batch: small frames, then perhaps one with a body in somebody's memory
    LIENI_OUT_FLUSHING // the carrier has all of it
};

struct lieni_stream_out {
    enum lieni_stream_out_state state;
    uint8_t head[1024];
    size_t head_at, head_len;
    const uint8_t *body; // what is left of it; domain->lock while `mr` is set
    size_t body_left;
    struct lieni_stream_post *send; // whose body it is
    struct lieni_mr *mr;            // or: of which region it is; domain->lock
    uint8_t *spill; // a copy of what was left when that region was closed; domain->lock
    bool lost;      // it was closed, and there was no memory for a copy; domain->lock
    bool data_next; // an answer's turn, then a message's
};

struct lieni_ep {
    struct lieni_domain *domain;
    struct lieni_prov *prov;
    void *user;
    bool server;
    char peer[112]; // for reports
    char name[256]; // that the peer's certificate must have
    uint16_t port;  // client: of the peer
    uint8_t send_data[LIENI_CM_DATA], expect_data[LIENI_CM_DATA];
    uint32_t posts_max;
    TAILQ_ENTRY(lieni_ep) link;      // domain->eps
    TAILQ_ENTRY(lieni_ep) work_link; // prov->work
    bool working;                    // prov->lock; linked there
    TAILQ_ENTRY(lieni_ep) user_link; // out.mr->users; domain->lock

    pthread_mutex_t lock;
    enum lieni_stream_state state;
    bool was_up; // its posts are flushed when it ends
    struct lieni_stream_post *posts;
    struct lieni_stream_posts unused, sends, recvs, reads,
        asked;        // asked: READs whose request was written
    unsigned n_reads; // in reads and asked
    uint32_t recvs_untold;

    // Progress context:
    int listen_fd;
    struct lieni_stream_watch watch;
    bool can_accept;
    struct lieni_stream_lanes lanes;
    unsigned n_lanes;
    struct lieni_lane *lane; // the one, once taken
    uint32_t peer_recvs;     // receives of the peer's that are left for sends
    uint32_t next_number;    // of READs
    struct lieni_stream_in in;
    struct lieni_stream_out out;
    struct lieni_stream_serve serves[LIENI_STREAM_READS]; // a ring
    unsigned serve_at, n_serves;
};

// -- stream_prov.c -------------------------------------------------------------------------------------------------------------------

__attribute__((format(printf, 4, 5))) int lieni_stream_say(struct lieni_prov *prov,
                                                           lien_level level, int code,
                                                           const char *format, ...); // returns code
// Puts the endpoint on the list of those to serve, and wakes the progress context.
void lieni_stream_touch(struct lieni_ep *ep);
void lieni_stream_untouch(struct lieni_ep *ep);
int lieni_stream_watch(struct lieni_prov *prov, int fd, struct lieni_stream_watch *watch);
// Under domain->lock: the region with that key if it has these bytes, else NULL.
struct lieni_mr *lieni_stream_find(struct lieni_domain *domain, uint64_t key, uint64_t addr,
                                   uint64_t len);

int lieni_stream_open(const struct lieni_stream_kind_of *kind, const struct lieni_prov_args *args,
                      struct lieni_prov **prov);
void lieni_stream_close(struct lieni_prov *prov);
int lieni_stream_fd(struct lieni_prov *prov);
int lieni_stream_arm(struct lieni_prov *prov);
unsigned lieni_stream_poll(struct lieni_prov *prov, struct lieni_event *events, unsigned max);
int lieni_stream_domain_open(struct lieni_prov *prov, const char *host,
                             struct lieni_domain **domain);
int lieni_stream_domain_close(struct lieni_domain *domain, enum lieni_proof *proof);
void lieni_stream_domain_limits(struct lieni_domain *domain, struct lieni_limits *limits);
uint32_t lieni_stream_read_depth(struct lieni_prov *prov, const char *host);
int lieni_stream_mr_reg(struct lieni_domain *domain, void *addr, size_t len, unsigned access,
                        struct lieni_mr **mr, struct lieni_mr_info *info);
int lieni_stream_mr_close(struct lieni_mr *mr);

// -- stream_open.c -------------------------------------------------------------------------------------------------------------------

int lieni_stream_listen(struct lieni_domain *domain, const struct lieni_ep_args *args,
                        struct lieni_ep **ep, uint16_t *port);
int lieni_stream_connect(struct lieni_domain *domain, const struct lieni_ep_args *args,
                         struct lieni_ep **ep);
// Serves an endpoint that is HALF. True: *event was made, UP or FAILED.
bool lieni_stream_opening(struct lieni_ep *ep, struct lieni_event *event);
void lieni_stream_close_listener(struct lieni_ep *ep);

// -- stream_in.c, stream_out.c -------------------------------------------------------------------------------------------------------

enum lieni_step {
    LIENI_STEP_MORE,  // something was done
    LIENI_STEP_STOP,  // nothing more for now
    LIENI_STEP_ENTRY, // something was done, and *cqe made
    LIENI_STEP_DOWN   // the connection is over, for *status
};

// One step of an endpoint that is UP. *bytes are added up.
enum lieni_step lieni_stream_in(struct lieni_ep *ep, struct lieni_cqe *cqe, size_t *bytes,
                                int *status);
enum lieni_step lieni_stream_out(struct lieni_ep *ep, struct lieni_cqe *cqe, size_t *bytes,
                                 int *status);
// Frame head; `to` has LIENI_STREAM_HEAD bytes.
void lieni_stream_head(uint8_t *to, enum lieni_stream_kind kind, size_t len, uint32_t number);
// The first frame of this side, as the first batch.
void lieni_stream_hello(struct lieni_ep *ep);
// Forgets the batch: no memory of it is touched any more.
void lieni_stream_out_drop(struct lieni_ep *ep);

static inline uint32_t lieni_get32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t lieni_get64(const uint8_t *at)
{
    return lieni_get32(at) | (uint64_t)lieni_get32(at + 4) << 32;
}

static inline void lieni_put32(uint8_t *at, uint32_t v)
{
    for (unsigned i = 0; i < 4; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static inline void lieni_put64(uint8_t *at, uint64_t v)
{
    lieni_put32(at, (uint32_t)v);
    lieni_put32(at + 4, (uint32_t)(v >> 32));
}

// -- stream_ep.c ---------------------------------------------------------------------------------------------------------------------

// Changes the state; ep->lock. Forbidden changes abort.
void lieni_stream_enter(struct lieni_ep *ep, enum lieni_stream_state state);
int lieni_stream_ep_new(struct lieni_domain *domain, const struct lieni_ep_args *args, bool server,
                        struct lieni_ep **ep);
void lieni_stream_ep_free(struct lieni_ep *ep);
int lieni_stream_post_send(struct lieni_ep *ep, const void *buf, size_t len, struct lieni_mr *mr,
                           uint64_t context);
int lieni_stream_post_recv(struct lieni_ep *ep, void *buf, size_t len, struct lieni_mr *mr,
                           uint64_t context);
int lieni_stream_post_read(struct lieni_ep *ep, void *dst, size_t len, struct lieni_mr *mr,
                           uint64_t remote_addr, uint64_t remote_key, uint64_t context);
// Flushes one post of an endpoint that is DOWN or CLOSING. False: none is left.
bool lieni_stream_flush_one(struct lieni_ep *ep, struct lieni_cqe *cqe);
void lieni_stream_shutdown(struct lieni_ep *ep);
int lieni_stream_destroy(struct lieni_ep *ep, enum lieni_proof *proof, uint64_t *late);

// -- stream_tls.c --------------------------------------------------------------------------------------------------------------------

int lieni_tls_open(struct lieni_prov *prov, const struct lieni_prov_args *args,
                   struct lieni_tls **tls);
void lieni_tls_close(struct lieni_tls *tls);
bool lieni_tls_serves(const struct lieni_tls *tls); // has certificate and key
int lieni_tls_end_open(struct lieni_lane *lane);
int lieni_tls_ready(struct lieni_lane *lane); // as the carrier's
int64_t lieni_tls_read(struct lieni_pipe *pipe, void *buf, size_t len);
int64_t lieni_tls_write(struct lieni_pipe *pipe, const struct iovec *iov, int n);
void lieni_tls_end(struct lieni_pipe *pipe);
void lieni_tls_end_close(struct lieni_pipe *pipe);

// What a provider object of this folder has in common, but for traits and open.
#define LIENI_STREAM_OPS                                                                           \
    .close = lieni_stream_close, .fd = lieni_stream_fd, .arm = lieni_stream_arm,                   \
    .poll = lieni_stream_poll, .domain_open = lieni_stream_domain_open,                            \
    .domain_close = lieni_stream_domain_close, .domain_limits = lieni_stream_domain_limits,        \
    .read_depth = lieni_stream_read_depth, .mr_reg = lieni_stream_mr_reg,                          \
    .mr_close = lieni_stream_mr_close, .listen = lieni_stream_listen,                              \
    .connect = lieni_stream_connect, .post_send = lieni_stream_post_send,                          \
    .post_recv = lieni_stream_post_recv, .post_read = lieni_stream_post_read,                      \
    .ep_shutdown = lieni_stream_shutdown, .ep_destroy = lieni_stream_destroy

#endif
