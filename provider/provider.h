// SPDX-License-Identifier: Apache-2.0
//
// The one interface between core and everything below it: providers (RMA READ, SEND and RECV on a connected endpoint), the bootstrap's byte streams, and
// the environment (clock, randomness). Never installed. Core knows no more of the world than this file.
//
// Threads. "Progress context" is whoever runs the ctx's progress: one thread at a time, guaranteed by core. poll, ep_shutdown, ep_destroy, arm, domain_open,
// domain_close and everything of net except where said run there only. posts, mr_reg, mr_close, connect and listen are called by any thread under core's
// state lock, and return without blocking. A provider never calls core: events are pulled by poll.
//
// Lending. A buffer given to post_* is lent from the moment the call returns 0; a negative return means it was not posted. Receives passed with connect or
// listen are lent from the moment those return 0. What ends the lending is decided in core/evidence.c alone, from the entries and proofs below.

#ifndef LIEN_PROVIDER_H
#define LIEN_PROVIDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/errors.h>
#include <lien/lien.h>

// -- Environment -------------------------------------------------------------------------------------------------------------------

// Clock and randomness. `now` is monotonic nanoseconds; `random` fills buf with bytes nobody can guess (in sim: from the seed).
struct lieni_env {
    void *self;
    uint64_t (*now)(void *self);
    void (*random)(void *self, void *buf, size_t len);
};

// Where a provider or net says what it saw first (design.md 7). `code` is the LIEN_ code.
struct lieni_report {
    void *self;
    void (*say)(void *self, lien_level level, int code, const char *text);
};

// -- Traits ------------------------------------------------------------------------------------------------------------------------

struct lieni_traits {
    const char *name; // "tcp", "verbs", "sim" ...: the name in the offer; both peers must have it
    lien_path path;
    bool
        ep_end_proves; // ep_destroy() == LIENI_PROVEN ends every lending of that endpoint (design.md 5 (b))
    bool domain_end_proves;  // domain_close() == LIENI_PROVEN ends every lending of that domain (c)
    bool domain_per_conn;    // a domain serves one endpoint
    bool refused_read_kills; // a READ with a dead key takes the connection down
    bool only_if_asked;      // never chosen by default: option provider or FI_PROVIDER must name it
    uint32_t cm_data_max;    // bytes of private data connect and listen carry, at least 55
    uint32_t read_piece_max; // bytes of one READ (R19)
    uint32_t read_bytes_max; // outstanding READ bytes of one endpoint (R19)
    uint32_t reads_max;      // READs outstanding on one endpoint
    uint32_t posts_max;      // sends + reads + receives outstanding on one endpoint
    uint64_t read_batch_max; // bytes of one read with all its operations; 0: no limit
};

// -- Entries, proofs, events -------------------------------------------------------------------------------------------------------

// One entry of a completion queue: raw and untrusted. `context` is what the post carried, if the provider is honest.
struct lieni_cqe {
    uint64_t context;
    int status;         // 0 or a LIEN_ code
    int provider_error; // the provider's own code, for the log
    uint64_t len;       // bytes received, for receives; unbounded until checked
};

enum lieni_proof {
    LIENI_UNKNOWN = 0, // destruction proves nothing here
    LIENI_PROVEN = 1   // nothing of it can touch memory any more
};

enum lieni_event_kind {
    // UP, FAILED and DOWN come at most once, and not after ep_shutdown.
    LIENI_EV_UP,     // connected, both private data checked; entries follow only after this
    LIENI_EV_FAILED, // never connected; the endpoint still has to be destroyed
    LIENI_EV_DOWN,   // shut down by the peer, or broken; entries may still follow
    LIENI_EV_ENTRY   // `cqe`
};

struct lieni_event {
    enum lieni_event_kind kind;
    void *user; // of the endpoint
    int status; // FAILED, DOWN: LIEN_ code
    int provider_error;
    struct lieni_cqe cqe;
};

// -- Candidates --------------------------------------------------------------------------------------------------------------------

// One way a provider could reach peers from this machine: a device's port, or an interface, with one of its addresses; or one row without address that says why there is none.
struct lieni_candidate {
    char nic[64];       // "rxe0/1", "eth0"; "" in a row without address
    char interface[32]; // of the kernel, "eth0"; "" if unknown
    char address[96];   // numeric, without zone
    unsigned prefix;    // bits of its network
    lien_candidate_state state;
    bool soft; // a device that is software
    uint32_t
        read_depth;   // READs that the device serves one peer at a time; 0: no limit, or not known
    char reason[256]; // DOWN, REFUSED: why, with the value of the limit where that is it
};

typedef void lieni_candidate_fn(void *arg, const struct lieni_candidate *candidate);

// -- Provider ----------------------------------------------------------------------------------------------------------------------

struct lieni_prov;   // an opened provider, one per ctx and kind
struct lieni_domain; // registrations and endpoints live in one
struct lieni_mr;
struct lieni_ep;

struct lieni_recv {
    void *buf;
    size_t len;
    struct lieni_mr *mr;
    uint64_t context;
};

struct lieni_prov_args {
    const struct lieni_env *env;
    struct lieni_report report;
    // Files of the options of these names, and tls_name; NULL or "" is unset. Read while opening only.
    const char *tls_cert, *tls_key, *tls_ca, *tls_name;
};

// What a registration gives: remote address of byte `addr + i` is `base + i`.
struct lieni_mr_info {
    uint64_t key;
    uint64_t base;
};

// What the device of one domain allows: at most what the traits say.
struct lieni_limits {
    uint32_t read_piece_max;
    uint32_t reads_max;
    uint32_t posts_max;
};

#define LIENI_ACCESS_LOCAL  1u // local side of sends, receives and READs
#define LIENI_ACCESS_REMOTE 2u // peers may READ it

#define LIENI_CM_DATA                                                                              \
    55 // portable private data: version, 16 session id, 32 MAC, padding (design.md 6)

struct lieni_ep_args {
    void *user;       // comes back in events
    const char *host; // numeric address. connect: of the peer's fabric listener; listen: to bind
    uint16_t port;    // connect: the port. listen: 0
    const char *
        name; // connect: the host that the application named, which a certificate must have; NULL: as `host`
    uint16_t port_lo, port_hi;        // listen: range to bind in, 0,0 = any
    uint8_t send_data[LIENI_CM_DATA]; // private data we send
    uint8_t expect_data
        [LIENI_CM_DATA]; // private data the peer must send, compared in constant time; listen: others are rejected and waiting goes on
    const struct lieni_recv *recvs; // posted before the first byte can arrive
    size_t n_recvs;
    uint32_t
        posts_max; // sends + reads + receives this endpoint will have outstanding at most; sizes its queues
};

struct lieni_provider {
    const struct lieni_traits *traits;

    // Calls `tell` for each candidate of this moment, best first; at least once. Needs no opened provider; any thread; may block briefly. NULL: it goes wherever the bootstrap goes (sim).
    void (*candidates)(lieni_candidate_fn *tell, void *arg);

    // Opens the provider. LIEN_ENOPROVIDER when it cannot be used here, after a report that says why. May block briefly.
    int (*open)(const struct lieni_prov_args *args, struct lieni_prov **prov);
    // After all its domains are closed. What can't be closed (a thread stuck in the provider) is left behind with a report.
    void (*close)(struct lieni_prov *prov);
    // A descriptor readable when poll has something, or -1 (sim).
    int (*fd)(struct lieni_prov *prov);
    // 0: may sleep on fd; LIEN_EAGAIN: call poll first.
    int (*arm)(struct lieni_prov *prov);
    // Up to `max` events; returns their number. Serves what needs a call to be served (READs of tcp targets). Never blocks.
    unsigned (*poll)(struct lieni_prov *prov, struct lieni_event *events, unsigned max);

    // `host` (numeric, or NULL) selects the NIC. May block briefly. LIEN_ENODEV: not an address of this machine, or of no NIC of this provider.
    int (*domain_open)(struct lieni_prov *prov, const char *host, struct lieni_domain **domain);
    // 0: gone, *proof says what that proves. LIEN_EBUSY: endpoints or regions are left; try again.
    int (*domain_close)(struct lieni_domain *domain, enum lieni_proof *proof);

    // Fixed while the domain lives. Any thread.
    void (*domain_limits)(struct lieni_domain *domain, struct lieni_limits *limits);
    // READs that the device at `host` (numeric) serves one peer at a time, for the offer; 0: no limit. May block briefly. Not asked where a candidate has told it.
    uint32_t (*read_depth)(struct lieni_prov *prov, const char *host);

    // Registers. LIEN_EREGISTER after a report with the provider's reason (and the memory-lock limit where that is it).
    int (*mr_reg)(struct lieni_domain *domain, void *addr, size_t len, unsigned access,
                  struct lieni_mr **mr, struct lieni_mr_info *info);
    // 0, or an error: then the region may still be reachable; the caller keeps the memory.
    int (*mr_close)(struct lieni_mr *mr);

    // An endpoint that waits for one peer on a port of its own, written to *port; closes the port once used. Ends in UP or FAILED (no deadline of its own: core's).
    int (*listen)(struct lieni_domain *domain, const struct lieni_ep_args *args,
                  struct lieni_ep **ep, uint16_t *port);
    // An endpoint that connects. Ends in UP or FAILED.
    int (*connect)(struct lieni_domain *domain, const struct lieni_ep_args *args,
                   struct lieni_ep **ep);

    // `context` is not 0: that is what entries carry that match no post. LIEN_EAGAIN: queue full now (posts_max, or the provider's), try after progress.
    // LIEN_ESTATE: UP was not polled yet, or the endpoint went down or was shut down. LIEN_EMSGSIZE: a READ above read_piece_max. Others: the endpoint is broken.
    int (*post_send)(struct lieni_ep *ep, const void *buf, size_t len, struct lieni_mr *mr,
                     uint64_t context);
    int (*post_recv)(struct lieni_ep *ep, void *buf, size_t len, struct lieni_mr *mr,
                     uint64_t context);
    int (*post_read)(struct lieni_ep *ep, void *dst, size_t len, struct lieni_mr *mr,
                     uint64_t remote_addr, uint64_t remote_key, uint64_t context);

    // Bars posts from now on (under the locks of posts and queue reads, R17), then disconnects. Entries keep coming by poll. Idempotent.
    void (*ep_shutdown)(struct lieni_ep *ep);
    // After ep_shutdown. 0: gone, also from events; *proof says what that proves; entries read after the close began are counted in *late and proved nothing.
    // LIEN_EBUSY: not yet (connection management is stuck in the provider); call again, at latest when fd was readable: the end of that makes it so. LIEN_ESTATE: before ep_shutdown.
    // Never blocks longer than the provider's own close (tens of ms).
    int (*ep_destroy)(struct lieni_ep *ep, enum lieni_proof *proof, uint64_t *late);
};

// -- Net: byte streams for the bootstrap -------------------------------------------------------------------------------------------

struct lieni_net;      // one per ctx
struct lieni_stream;   // a connected, or connecting, byte stream
struct lieni_acceptor; // a listening socket

enum lieni_net_kind {
    LIENI_NET_ACCEPTED, // `stream` is new, on acceptor `user`; set its user with stream_user
    LIENI_NET_CONNECTED,
    LIENI_NET_FAILED, // could not connect (status, text already reported); the stream still has to be closed
    LIENI_NET_READABLE, // bytes, or the end, arrived: told once for each arrival (EPOLLET), so read until LIEN_EAGAIN. What is left unread is not told again
    LIENI_NET_WRITABLE  // once after each LIEN_EAGAIN from write
};

struct lieni_net_event {
    enum lieni_net_kind kind;
    void *user;
    struct lieni_stream *stream; // ACCEPTED only
    int status;
};

struct lieni_net_ops {
    int (*open)(const struct lieni_env *env, const struct lieni_report *report, void *world,
                struct lieni_net **net);
    void (*close)(struct lieni_net *net); // after all its streams and acceptors are closed
    int (*fd)(struct lieni_net *net);     // readable when poll has something, or -1
    int (*arm)(struct lieni_net *net);
    unsigned (*poll)(struct lieni_net *net, struct lieni_net_event *events, unsigned max);

    // All below: any thread, under core's lock.
    // "host:port", "[v6]:port", "*:port" (IPv4 and IPv6), port 0 any; host numeric or localhost. Binds at once (LIEN_EADDR after a report). `bound` gets the address as text.
    int (*listen)(struct lieni_net *net, const char *address, void *user,
                  struct lieni_acceptor **acceptor, char *bound, size_t size);
    // The same on a socket that listens already, taken over unless it fails. LIEN_EINVAL after a report: not a listening stream socket over IP. LIEN_ENOTSUP: sim.
    int (*listen_fd)(struct lieni_net *net, int fd, void *user, struct lieni_acceptor **acceptor,
                     char *bound, size_t size);
    // A descriptor of its own for the same socket, close-on-exec. LIEN_ESYS, LIEN_ENOTSUP: sim.
    int (*acceptor_fd)(struct lieni_acceptor *acceptor, int *fd);
    void (*acceptor_close)(struct lieni_acceptor *acceptor);

    // Names are resolved without blocking the caller; several addresses are tried in turn. LIEN_EADDR: malformed, after a report. No deadline of its own: core's.
    int (*connect)(struct lieni_net *net, const char *address, void *user,
                   struct lieni_stream **stream);
    void (*stream_user)(struct lieni_stream *stream, void *user);
    // Bytes taken or given (1 .. len; 0 if len is 0), LIEN_EAGAIN (also before CONNECTED), or LIEN_ECLOSED (read: the peer's end) / LIEN_EIO.
    int64_t (*write)(struct lieni_stream *stream, const void *data, size_t len);
    int64_t (*read)(struct lieni_stream *stream, void *data, size_t len);
    // Numeric host (no port) of our and the peer's end, and "host:port" of the peer. LIEN_ERANGE: size too small.
    int (*local_host)(struct lieni_stream *stream, char *text, size_t size);
    int (*peer_host)(struct lieni_stream *stream, char *text, size_t size);
    int (*peer_name)(struct lieni_stream *stream, char *text, size_t size);
    // Gives up the stream and returns its descriptor, blocking mode restored, or -1 (sim). The stream is gone.
    int (*detach)(struct lieni_stream *stream);
    void (*stream_close)(struct lieni_stream *stream); // no event of it comes afterwards
};

// -- Networks: pure functions on addresses as text (provider/network.c), and what asks the system -------------------------------------

// NULL if `list` is networks by comma ("10.1.0.0/16,fd00::/8"; no prefix: that address alone), or what is wrong with it.
const char *lieni_networks_fault(const char *list);
// Whether the numeric `address` is in one of them. False for what is no address.
bool lieni_networks_have(const char *list, const char *address);
// Whether both are in one network of `prefix` bits. Addresses of two families never are; all bits are compared where `prefix` is more.
bool lieni_networks_meet(const char *a, const char *b, unsigned prefix);
bool lieni_same_family(const char *a, const char *b);
// Whether `list`, names by comma, names the candidate: its nic, its device without "/port", or its interface.
bool lieni_nics_name(const char *list, const struct lieni_candidate *candidate);
// Whether `name` is a numeric address.
bool lieni_numeric(const char *name);
// The numeric addresses of a host, by comma, into `list`. NULL, or why not. Blocks: asks the resolver.
const char *lieni_resolve(const char *host, char *list, size_t size);
// Where a bootstrap to "host", "host:port" or "[v6]:port" would go: numeric address of the peer, and the local one that the kernel's routes lead to (96 bytes each). NULL, or why not. Blocks.
const char *lieni_route(const char *peer, char *remote, char *local);
// "RLIMIT_MEMLOCK is N bytes" or "RLIMIT_MEMLOCK is unlimited".
void lieni_memlock_text(char *text, size_t size);

// What a ctx runs on. `providers` is ended by NULL, in order of preference; `world` is passed to net open and, for sim, found by providers in env->self.
struct lieni_platform {
    struct lieni_env env;
    const struct lieni_net_ops *net;
    void *net_world;
    const struct lieni_provider *const *providers;
};

// The real one: CLOCK_MONOTONIC, getrandom, sockets, and the providers of this build. provider/platform.c
const struct lieni_platform *lieni_platform_real(void);

// Descriptors that one connection takes at most while it is being made (measured: libfabric tcp, the accepting side).
#define LIENI_CONN_DESCRIPTORS 12
// "" or "; ...": the limit of this process that an errno value speaks of, with its value and what is used or needed of it. Returns `text` (`size` > 0). Any thread; slow.
const char *lieni_limits_note(int error, char *text, size_t size);
// The same if descriptors are too few for a connection now: some libraries call that by other names, or keep it to themselves.
const char *lieni_limits_starved(char *text, size_t size);
// Is it this machine, or this process, that has too little (descriptors, memory) by this errno value? Then LIEN_ESYS, whatever was tried.
bool lieni_limits_short(int error);
// The same for an error of pthread_create: of processes, or of memory for its stack.
const char *lieni_limits_thread(int error, char *text, size_t size);
#define LIENI_LIMITS_NOTE 256 // bytes that are enough

#endif
