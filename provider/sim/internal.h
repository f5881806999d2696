// SPDX-License-Identifier: Apache-2.0
//
// What the files of the simulator share. world.c: clock, events, nodes, randomness, trace. nic.c: the provider's calls. wire.c: what moves on links (sends, READs, breaks).
// net.c: byte streams. shadow.c: ownership. One thread; every object is allocated here and freed with the world.

#ifndef LIENI_SIM_INTERNAL_H
#define LIENI_SIM_INTERNAL_H

#include "provider/sim/sim.h"

#define SIM_VIOLATIONS_KEPT 32u
#define SIM_MILLION         1000000u

struct sim_rng {
    uint64_t s[4];
};

struct sim_node;
struct sim_op;
struct sim_event;
struct lieni_ep;

// -- Events ------------------------------------------------------------------------------------------------------------------------

struct sim_event {
    uint64_t at, seq; // order: time, then age
    void (*fire)(struct lieni_sim_world *world, struct sim_event *ev);
    struct sim_node *node; // whose NIC does it; a killed node's events vanish
    bool needs_process;    // waits while that node is frozen
    struct lieni_ep *ep;
    struct sim_op *op;
    struct lieni_stream *stream;
    uint64_t value;
    uint8_t *data; // freed with the event
    size_t len;
};

// -- NIC objects -------------------------------------------------------------------------------------------------------------------

enum sim_op_kind {
    SIM_SEND,
    SIM_RECV,
    SIM_READ
};

// One posted operation. `lent`: the NIC may touch the memory, as the contract says: until its entry came out of poll, or a proof. `engine`: whether
// the NIC really still may write or fetch; never true without `lent`.
struct sim_op {
    enum sim_op_kind kind;
    struct lieni_ep *ep;
    uint64_t number; // of the world, for traces
    uint64_t context;
    uint8_t *addr;
    size_t len;
    bool lent, engine, entry_made;
    bool filled;                      // all bytes are there, a success is on its way
    bool hollow;                      // READ of which nothing is written
    bool validated;                   // READ whose bytes nobody believes before their owner said so
    uint64_t remote_addr, remote_key; // READ
    const uint8_t *src;               // READ, once accepted
    struct lieni_mr *src_mr;
    size_t fetched, written;
    struct sim_op *next_live, *prev_live; // of the endpoint, in order of posting, while lent
    struct sim_op *next_queued;           // receives, serve queue
    struct sim_op *next_all;
};

struct sim_queue {
    struct sim_op *head, *tail;
};

struct sim_message { // a SEND that arrived and found no receive
    struct sim_message *next;
    uint8_t *data;
    size_t len;
};

enum sim_ep_state {
    SIM_EP_LISTENING,  // waits for a peer
    SIM_EP_CONNECTING, // request or answer on the way
    SIM_EP_UP,         // has a peer; UP was queued
    SIM_EP_BROKEN,     // DOWN or FAILED was or will be queued
    SIM_EP_GONE        // destroyed
};

struct lieni_ep {
    struct sim_node *node;
    struct lieni_domain *domain;
    uint64_t number;
    enum sim_ep_state state;
    bool shut;    // ep_shutdown was called: no posts
    bool serving; // its NIC still serves the peer's READs
    bool serve_due, serve_planned;
    bool stalled;              // ... and never will again
    bool can_post;             // UP came out of poll
    struct lieni_ep_args args; // recvs not kept
    uint16_t port;
    struct lieni_ep *peer;
    bool slow;
    uint64_t send_clock, read_clock, chunk_clock; // arrivals at the peer are in order
    uint64_t fetch_clock;                         // sends are fetched in order
    uint64_t flush_clock;
    uint64_t entry_clock[3]; // entries of a kind come in order
    uint64_t up_at;
    uint32_t outstanding;
    struct sim_op *live_head, *live_tail;
    struct sim_queue recvs;
    struct sim_queue serve; // the peer's READs accepted here
    struct sim_message *inbox, **inbox_tail;
    uint64_t late;
    uint32_t armed; // bits of faults: see lieni_sim_arm_ep
    struct lieni_ep *next;
};

struct lieni_mr {
    struct lieni_domain *domain;
    uint8_t *addr;
    size_t len;
    unsigned access;
    uint64_t key, base, number;
    bool closed;
    struct lieni_mr *next, *next_all;
};

struct lieni_domain {
    struct sim_node *node;
    uint64_t number;
    bool closed;
    unsigned eps, mrs, eps_ever;
    struct lieni_mr *regions;
    struct lieni_domain *next;
};

struct sim_ready { // an event that poll will tell
    struct lieni_ep *ep;
    struct sim_op *op; // NULL: not an entry, or a spurious one
    struct lieni_event event;
};

struct lieni_prov {
    struct sim_node *node;
    bool closed;
    struct lieni_prov *next;
};

// -- Net objects -------------------------------------------------------------------------------------------------------------------

struct lieni_stream {
    struct sim_node *node;
    uint64_t number;
    void *user;
    struct lieni_stream *peer; // NULL until connected, and once it is gone
    bool connected, failed, closed;
    bool end;      // the peer's end arrived
    bool reset;    // ... as an error
    bool end_told; // read has answered with it
    bool readable; // counted in the node's
    bool want_write;
    uint64_t clock; // arrivals at the peer are in order
    uint8_t *in;
    size_t in_len, in_cap;
    size_t in_flight; // bytes on the way to the peer
    char peer_host[64], peer_name[96];
    struct lieni_stream *next;
};

struct lieni_acceptor {
    struct sim_node *node;
    void *user;
    uint16_t port;
    bool closed;
    struct lieni_acceptor *next;
};

struct lieni_net {
    struct sim_node *node;
    bool closed;
    struct lieni_net *next;
};

struct sim_net_ready {
    struct lieni_stream *stream;
    struct lieni_acceptor *acceptor;
    struct lieni_net_event event;
};

// -- Nodes and world ---------------------------------------------------------------------------------------------------------------

struct sim_node {
    struct lieni_sim_world *world;
    unsigned index;
    char host[32];
    bool frozen, killed, silent;
    uint64_t ahead; // of the world's clock
    bool wake;      // poll has nothing, but progress should run (after EAGAIN, EBUSY)
    struct sim_rng random;
    struct lieni_platform platform;
    struct lieni_provider provider;
    const struct lieni_provider *providers[2];
    struct lieni_report report;
    struct sim_ready *ready;
    size_t n_ready, cap_ready;
    struct sim_net_ready *net_ready;
    size_t n_net_ready, cap_net_ready;
    struct sim_event **held; // waiting for thaw
    size_t n_held, cap_held;
    unsigned serves_due;
    unsigned n_readable; // streams
};

struct sim_span; // shadow.c

struct lieni_sim_world {
    struct lieni_sim_config config;
    uint64_t seed, now, seq;
    uint64_t early_seq; // goes down: of events that come before all others of their time
    struct sim_rng rng, driver;
    struct sim_event **heap;
    size_t n_heap, cap_heap;
    struct sim_node *nodes;
    uint64_t numbers; // of objects and operations
    uint16_t next_port;
    struct lieni_ep *eps;
    struct lieni_domain *domains;
    struct lieni_mr *mrs;
    struct sim_op *ops;
    struct lieni_prov *provs;
    struct lieni_net *nets;
    struct lieni_stream *streams;
    struct lieni_acceptor *acceptors;
    struct lieni_sim_counts counts;
    uint64_t hash;
    void (*say)(void *self, const char *line);
    void *say_self;
    void (*hook)(void *self, enum lieni_sim_fault fault, void *user);
    void *hook_self;
    const void *(*address)(void *self, const void *addr);
    void *address_self;
    unsigned n_violations;
    char *violations[SIM_VIOLATIONS_KEPT];
    // shadow.c
    struct sim_span *spans; // by address, disjoint
    size_t n_spans, cap_spans;
    struct sim_op **lent; // by address
    size_t n_lent, cap_lent, lent_longest;
};

// -- world.c -----------------------------------------------------------------------------------------------------------------------

void *sim_alloc(
    size_t
        size); // zeroed; ends the program when there is none: a simulation cannot go on without being another one
void *sim_grow(void *array, size_t n, size_t *cap, size_t item);
uint64_t sim_rand(struct sim_rng *rng);
uint64_t sim_in(struct lieni_sim_world *world, struct lieni_sim_range range);
bool sim_chance(struct lieni_sim_world *world, uint32_t per_million);
// A new event of `node` at `at`; the caller fills the rest.
struct sim_event *sim_plan(struct lieni_sim_world *world, struct sim_node *node, uint64_t at,
                           void (*fire)(struct lieni_sim_world *, struct sim_event *));
// Runs the node's progress once more, soon.
void sim_wake_soon(struct sim_node *node);
void sim_fault(struct lieni_sim_world *world, enum lieni_sim_fault fault, void *user);
// Whether `fault` happens to something of the endpoint's now: by chance, or because it was armed.
bool sim_struck(struct lieni_ep *ep, enum lieni_sim_fault fault, uint32_t per_million);
// Hashes and, if asked, prints one thing that happened.
void sim_note(struct lieni_sim_world *world, const char *what, const struct sim_node *node,
              uint64_t object, uint64_t a, uint64_t b);

// -- nic.c -------------------------------------------------------------------------------------------------------------------------

extern const struct lieni_provider sim_provider_ops;
void sim_ready_push(struct lieni_ep *ep, struct sim_op *op, const struct lieni_event *event);
void sim_entry(struct sim_op *op, int status, uint64_t len);
// The NIC will not touch its memory again, and that was seen: the entry came out of poll, or there is a proof.
void sim_op_over(struct sim_op *op);

// -- wire.c ------------------------------------------------------------------------------------------------------------------------

void sim_wire_send(struct sim_op *op);
void sim_wire_read(struct sim_op *op);
void sim_wire_recv(struct lieni_ep *ep); // a receive was posted: waiting messages
void sim_serve(struct lieni_ep *ep);     // moves one chunk
void sim_connect(struct lieni_ep *ep);
// The link of `ep` breaks; the peer learns it after a latency unless `silent`.
void sim_break(struct lieni_ep *ep, int status, bool silent);
// The endpoint is destroyed: proven ends all, else late writes follow.
void sim_ep_end(struct lieni_ep *ep, bool proven);
// The close began and is not over: entries are made up.
void sim_make_up(struct lieni_ep *ep);
// Says DOWN, or FAILED, to this side only.
void sim_say_down(struct lieni_ep *ep, int status);
void sim_op_queue(struct sim_queue *queue, struct sim_op *op);
struct sim_op *sim_op_unqueue(struct sim_queue *queue);

// -- net.c -------------------------------------------------------------------------------------------------------------------------

extern const struct lieni_net_ops sim_net_ops;
void sim_net_kill(struct sim_node *node);
bool sim_net_ready(const struct sim_node *node);

// -- shadow.c ----------------------------------------------------------------------------------------------------------------------

void sim_shadow_post(struct sim_op *op); // the operation is lent from now
void sim_shadow_end(struct sim_op *op);  // ... no longer
// Before DMA; false: do not touch the memory (violation recorded).
bool sim_shadow_write(struct sim_op *op, const uint8_t *addr, size_t len);
bool sim_shadow_fetch(struct sim_op *op, const uint8_t *addr, size_t len);
void sim_shadow_free(struct lieni_sim_world *world);

#endif
