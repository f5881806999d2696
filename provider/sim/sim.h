// SPDX-License-Identifier: Apache-2.0
//
// The simulated world: NICs, network, byte streams and clock of all nodes in one process, exactly behind provider/provider.h. One seed is one schedule, forever: nothing here
// depends on addresses, on the wall clock or on the order of a hash. For tests only, never part of the installed library.
//
// Threads: none. One thread calls everything of one world: the contexts on it, these functions and the shadow's. Nothing here calls core; lieni_sim_step() only moves bytes
// and queues events, which core pulls by poll. So it may be called between any two calls into core.
//
// A *node* is what one lien_ctx runs on. The world outlives all contexts on it. Objects of the provider stay allocated until the world is freed, so that a call on
// one that is gone is a recorded violation, not a crash.

#ifndef LIENI_SIM_H
#define LIENI_SIM_H

#include "provider/provider.h"

struct lieni_sim_world;

struct lieni_sim_range { // both ends included
    uint64_t min, max;
};

// Evidence classes (design.md 5), each a preset of the config.
enum lieni_sim_class {
    LIENI_SIM_TCP, // ep_destroy proves; targets serve READs in poll; a refused READ kills; key checked once
    LIENI_SIM_VERBS,    // ep_destroy proves, or says unknown at times; the NIC serves by itself
    LIENI_SIM_SOCKETS,  // only the domain's end proves; a domain per connection; entries get lost
    LIENI_SIM_OWN_ONLY, // nothing proves but the own entry
    LIENI_SIM_CLASSES
};

// Probabilities are per million, times nanoseconds.
struct lieni_sim_config {
    struct lieni_traits traits;
    unsigned nodes;    // 1 .. 64
    bool target_polls; // READs are served, and arrivals taken, only while the node calls poll (tcp)
    bool key_checked_once; // at the request's arrival; else before each chunk
    bool virtual_base;     // remote addresses are (made up) virtual addresses; else offsets from 0
    bool starved_fails;    // a SEND that finds no receive is a violation (credits must prevent it)
    struct lieni_sim_range latency;    // one way
    struct lieni_sim_range chunk;      // bytes a READ moves at a time
    struct lieni_sim_range chunk_gap;  // between two chunks
    struct lieni_sim_range completion; // from the last byte to the entry
    struct lieni_sim_range flush;      // from a break to the flush of each outstanding operation
    struct lieni_sim_range
        ghost; // from a break or destruction to late writes of operations without an end
    struct lieni_sim_range net_piece; // bytes of the bootstrap stream that arrive at a time
    unsigned slow_factor;             // chunk_gap of a slow link is multiplied by it
    uint32_t p_slow;                  // a link is slow
    uint32_t p_eagain;                // a post, or a net write, answers LIEN_EAGAIN without need
    uint32_t p_ebusy;                 // ep_destroy answers LIEN_EBUSY without need
    uint32_t p_unproven;              // ep_destroy of a class that proves says LIENI_UNKNOWN
    uint32_t p_withhold;              // an outstanding operation gets no entry after a break
    uint32_t p_spurious;              // an entry repeated, or with context 0, after a flush
    uint32_t p_break;                 // a post breaks the link, some time later
    uint32_t p_connect_fail;          // connect ends in FAILED
    uint32_t p_register_fail;         // mr_reg answers LIEN_EREGISTER
    uint32_t
        p_made_up; // once the close began, an operation whose engine still runs gets an entry that no engine made; told between LIEN_EBUSY and the end, as the contract allows
    uint32_t p_reorder; // poll takes another connection's event first
    // Against what the classes promise nothing about.
    uint32_t p_lie; // where an end is no proof, it says all the same that it is; the engine goes on
    uint32_t p_stall; // an endpoint serves no READ any more, and all else
    uint32_t p_lost;  // a READ or a SEND is over, and its entry never comes, though the link is up
    // Of networks and peers that lie about bytes. Memory must be safe all the same; what the bytes say is nobody's to vouch for, nor is a peer's word that it released something.
    bool writes_only;      // the shadow judges what is written, not what is fetched
    uint32_t p_hollow;     // a READ succeeds with nothing written
    uint32_t p_false_send; // a SEND succeeds and does not arrive
    uint32_t p_false_recv; // a receive succeeds with the bytes that were there before
    uint32_t p_garbage;    // a SEND's bytes change on the way
};

// Fills all of *config: the class, two nodes, moderate times, no faults.
void lieni_sim_config_init(struct lieni_sim_config *config, enum lieni_sim_class kind);

// Not 0 while the simulator allocates for itself: for drivers that make allocations fail, which it could not bear. Volatile: compilers know that malloc reads no
// variable of the program, and leave out a change around it; a driver's does.
extern volatile unsigned lieni_sim_allocating;

// -- World -------------------------------------------------------------------------------------------------------------------------

// NULL: out of memory, or a value of the config out of range.
struct lieni_sim_world *lieni_sim_world_new(uint64_t seed, const struct lieni_sim_config *config);
void lieni_sim_world_free(struct lieni_sim_world *world);

// The platform of a node, good as long as the world. Its env.self is the node.
const struct lieni_platform *lieni_sim_node_platform(struct lieni_sim_world *world, unsigned node);
// The node's address: "10.0.0.1" is node 0.
const char *lieni_sim_node_host(struct lieni_sim_world *world, unsigned node);

uint64_t lieni_sim_now(const struct lieni_sim_world *world);
// When the next event is due, or UINT64_MAX.
uint64_t lieni_sim_next_time(const struct lieni_sim_world *world);
// Makes the next event happen, moving the clock to it, if it is due at or before `limit`; else false, and the clock stays.
bool lieni_sim_step(struct lieni_sim_world *world, uint64_t limit);
// Makes all events up to `to` happen and moves the clock there (never back).
void lieni_sim_advance(struct lieni_sim_world *world, uint64_t to);
// Whether the node's poll has something (a frozen or killed node too). The caller runs the node's progress then.
bool lieni_sim_node_ready(const struct lieni_sim_world *world, unsigned node);

// From now on all draws but those of the nodes come from the seed and `salt` alone, whatever was drawn before. So a program of which parts are left out can go on much as the whole.
void lieni_sim_reseed(struct lieni_sim_world *world, uint64_t salt);
// A number of the driver's own from the seed: in [0, below), `below` > 0. Draws of the driver and of the world do not disturb each other.
uint64_t lieni_sim_draw(struct lieni_sim_world *world, uint64_t below);

// -- Faults ------------------------------------------------------------------------------------------------------------------------

// The process dies: nothing of it moves any more. Not silent: peers learn it soon (the kernel closes its connections). Silent: they never do.
// Its context can still be closed to free memory: everything ends at once there and with proof.
void lieni_sim_kill_node(struct lieni_sim_world *world, unsigned node, bool silent);
bool lieni_sim_node_killed(const struct lieni_sim_world *world, unsigned node);
// The process is stopped: the caller must not run its progress. With target_polls its NIC serves and takes nothing either.
void lieni_sim_freeze_node(struct lieni_sim_world *world, unsigned node);
void lieni_sim_thaw_node(struct lieni_sim_world *world, unsigned node);
// A killed node's host gets a new process: `fresh`, a node that nothing ran on, has its address from now on.
void lieni_sim_take_over(struct lieni_sim_world *world, unsigned fresh, unsigned killed);
// The node's clock jumps forward; the others' do not.
void lieni_sim_jump_clock(struct lieni_sim_world *world, unsigned node, uint64_t ns);
// What the node's clock is ahead of the world's.
uint64_t lieni_sim_clock_ahead(const struct lieni_sim_world *world, unsigned node);
bool lieni_sim_node_frozen(const struct lieni_sim_world *world, unsigned node);
// Breaks one live link between the nodes, the `pick`-th modulo their number. False: there is none.
bool lieni_sim_break_link(struct lieni_sim_world *world, unsigned a, unsigned b, uint64_t pick);
// Breaks this endpoint's link (or its connecting), this stream: a fault of the network between the two. Nothing happens to what is already over.
void lieni_sim_break_ep(struct lieni_ep *ep);
void lieni_sim_break_stream(struct lieni_stream *stream);
// Changes a probability while the world runs.
struct lieni_sim_config *lieni_sim_world_config(struct lieni_sim_world *world);

// Faults that the world decides on by itself. `user` is the endpoint's (of STALL and HOLLOW: the reader's), or NULL.
enum lieni_sim_fault {
    LIENI_SIM_EAGAIN,
    LIENI_SIM_EBUSY,
    LIENI_SIM_WITHHOLD,
    LIENI_SIM_SPURIOUS,
    LIENI_SIM_UNPROVEN, // also where the class never proves
    LIENI_SIM_REGISTER, // `user` is the domain
    LIENI_SIM_MADE_UP,
    LIENI_SIM_CONNECT, // connecting ends in FAILED
    LIENI_SIM_LIE,
    LIENI_SIM_STALL,
    LIENI_SIM_LOST,
    LIENI_SIM_HOLLOW,
    LIENI_SIM_FALSE_SEND,
    LIENI_SIM_FALSE_RECV,
    LIENI_SIM_GARBAGE,
    LIENI_SIM_FAULTS
};
// The next thing of this endpoint's that such a fault can happen to has it, once, whatever the probabilities: STALL, LOST, HOLLOW, FALSE_SEND, FALSE_RECV, GARBAGE.
void lieni_sim_arm_ep(struct lieni_ep *ep, enum lieni_sim_fault fault);
// Called at the moment of each. Must not call into the world or into core.
void lieni_sim_set_fault_hook(struct lieni_sim_world *world,
                              void (*hook)(void *self, enum lieni_sim_fault fault, void *user),
                              void *self);
// Answers where the provider has what the application has at `addr`: guarded pools are mapped twice, and the shadow goes by the provider's addresses. Without: at the same.
void lieni_sim_set_address_hook(struct lieni_sim_world *world,
                                const void *(*address)(void *self, const void *addr), void *self);

// -- What was seen -----------------------------------------------------------------------------------------------------------------

// Hash of all events so far: equal for equal seeds and equal calls.
uint64_t lieni_sim_trace_hash(const struct lieni_sim_world *world);
// Each event as a line of text. NULL: off.
void lieni_sim_set_trace(struct lieni_sim_world *world, void (*say)(void *self, const char *line),
                         void *self);

struct lieni_sim_counts {
    uint64_t events, sends, recvs, reads, read_chunks, entries, entries_late, entries_withheld;
    uint64_t ghost_writes; // DMA after break or destruction
    uint64_t made_up;      // entries
    uint64_t read_steps;   // in which a READ moved bytes, or ended
    uint64_t eagain, ebusy, breaks, starved, refused_reads, unproven;
    uint64_t eps_open, mrs_open, domains_open, provs_open, nets_open, streams_open, acceptors_open;
};
void lieni_sim_counts_get(const struct lieni_sim_world *world, struct lieni_sim_counts *counts);

// Violations found so far, in order; text of the first 32.
unsigned lieni_sim_violations(const struct lieni_sim_world *world);
const char *lieni_sim_violation(const struct lieni_sim_world *world, unsigned i);
// For drivers: records one of their own.
__attribute__((format(printf, 2, 3))) void lieni_sim_violate(struct lieni_sim_world *world,
                                                             const char *format, ...);
// At the end of a run: whatever is still open on any node is a violation each.
void lieni_sim_check_quiet(struct lieni_sim_world *world);

// -- Shadow: who owns each byte ----------------------------------------------------------------------------------------------------
//
// Learnt from posts at the provider interface and from the calls below, which the driver makes when it *saw an answer* from the public API, never from core's records.
// A driver calls them right after the answer, before anything else can happen in the world. Memory that the application never owned is the library's.

// The application owns it, for reading and writing: a buffer it allocated or was given, memory of its own, memory it was told is released.
// A violation if the NIC may still write there, or if a READ that was accepted may still fetch from there.
void lieni_shadow_app_owns(struct lieni_sim_world *world, const void *addr, size_t len);
// It gave the memory back to the library (lien_buf_free), or it is unmapped or gone.
void lieni_shadow_app_gives(struct lieni_sim_world *world, const void *addr, size_t len);
// It lent owned memory as the target of a read: only DMA writes, until lieni_shadow_app_owns.
void lieni_shadow_app_lends_target(struct lieni_sim_world *world, const void *addr, size_t len);
// The same as the target of a read that is validated (of a call's read space): its READs may fetch bytes that are their owner's again, since nobody believes what they bring
// before the owner said so. The shadow judges what they write, not what they fetch.
void lieni_shadow_app_lends_target_validated(struct lieni_sim_world *world, const void *addr,
                                             size_t len);
// It lent owned memory as a source: nobody writes. Counts; undone one by one by lieni_shadow_app_source_back, the last of which has the effect of
// lieni_shadow_app_owns. A driver may free (give) a lent source: then it hears no more of it, and must not call source_back.
void lieni_shadow_app_lends_source(struct lieni_sim_world *world, const void *addr, size_t len);
void lieni_shadow_app_source_back(struct lieni_sim_world *world, const void *addr, size_t len);
// Memory of its own is unregistered and released: as lieni_shadow_app_owns, and no READ at all may still fetch from there (R9), validated or not.
void lieni_shadow_app_unregistered(struct lieni_sim_world *world, const void *addr, size_t len);
// A released status of LIEN_EQUARANTINED: not the application's, nor expected back. As lieni_shadow_app_gives.
void lieni_shadow_app_lost(struct lieni_sim_world *world, const void *addr, size_t len);

#endif
