// SPDX-License-Identifier: Apache-2.0
//
// A peer on the simulator that is no Lien: it knows the bootstrap and the frames, sends whatever it is told to, and remembers what came (names, calls, probes, keys), so that what it is
// told to send can be almost right. It keeps the contract of provider.h, as the provider's own violations would hide the library's. One thread, that of the world; nothing is checked of
// what the victim sends, except that it decodes: a frame of the library's that does not is a fault.

#ifndef TESTS_FUZZ_SIMPEER_H
#define TESTS_FUZZ_SIMPEER_H

#include "core/handshake.h"
#include "core/wire.h"
#include "provider/sim/sim.h"

#define PEER_RECVS  24u
#define PEER_FRAME  4096u
#define PEER_SENDS  8u
#define PEER_REGION 16384u // bytes that it serves
#define PEER_SLOTS  4u     // of its calls and its grants
#define PEER_SEEN   16u

struct simpeer {
    struct lieni_sim_world *sim;
    const struct lieni_platform *platform;
    const struct lieni_provider *ops;
    struct lieni_net *net;
    struct lieni_stream *stream;
    struct lieni_handshake hs;
    struct lieni_prov *prov;
    struct lieni_domain *domain;
    struct lieni_mr *mr, *region_mr;
    struct lieni_mr_info region_info;
    struct lieni_ep *ep;
    uint8_t *memory; // sends, receives, READ target
    uint8_t *region;
    bool connected, up, over;
    bool asleep; // it polls nothing, so it serves and takes nothing
    bool reading;
    unsigned sends_busy; // bits
    uint32_t number;     // of the last frame
    uint16_t owed_message, owed_control;
    // What is next, or was, of its own.
    uint32_t call_gen[PEER_SLOTS], grant_gen[PEER_SLOTS];
    uint32_t probe_id;
    // What came. Rings: n counts on.
    struct lieni_name names[PEER_SEEN]; // grants of the victim
    unsigned n_names;
    struct lieni_key keys[PEER_SEEN];
    unsigned n_keys;
    uint64_t calls[PEER_SEEN]; // of the victim
    unsigned n_calls;
    uint32_t probes[PEER_SEEN]; // to be answered
    unsigned n_probes, n_answered;
    uint64_t write_call; // the last WRITE of the victim
    uint32_t write_number;
    unsigned frames_in;
};

// Node `node` of the world connects to `address` by Lien's bootstrap; goes on in simpeer_pump().
void simpeer_open(struct simpeer *peer, struct lieni_sim_world *sim, unsigned node,
                  const char *address);
// Takes what came. True: something did.
bool simpeer_pump(struct simpeer *peer);
// It hears of a grant of the victim's, as by a message of its host.
void simpeer_hear(struct simpeer *peer, const lien_token *token);
// One SEND. False: not now, or never.
bool simpeer_send(struct simpeer *peer, const void *bytes, size_t len);
// READs what it likes. One at a time.
void simpeer_read(struct simpeer *peer, uint64_t addr, uint64_t key, size_t len);
void simpeer_shutdown(struct simpeer *peer); // the fabric connection
void simpeer_hang_up(struct simpeer *peer);  // the bootstrap's stream
// Closes all. False: not yet, the world has to move first.
bool simpeer_close(struct simpeer *peer);

#endif
