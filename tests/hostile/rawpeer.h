// SPDX-License-Identifier: Apache-2.0
//
// A peer without a ctx, for tests that say on the wire what Lien never would: the handshake of core/handshake.h over a plain socket, then an endpoint of the tcp provider on which any bytes
// can be sent. It keeps no rules and checks nothing that comes. One thread drives it; a failure ends the program with a line on stderr.

#ifndef LIEN_TEST_RAWPEER_H
#define LIEN_TEST_RAWPEER_H

#include "core/handshake.h"
#include "core/wire.h"
#include "provider/provider.h"

#define RAW_RECVS     64u
#define RAW_CALLS     8u
#define RAW_FRAME_MAX 4096u
#define RAW_SEND_MAX  (128u << 10)
#define RAW_READ_MAX  (64u << 10)

struct rawworld {
    struct lieni_prov *prov;
    struct lieni_domain *domain;
};

struct rawpeer {
    struct rawworld *world;
    struct lieni_ep *ep;
    int socket;               // the bootstrap, kept open
    struct lieni_offer local; // ours and the peer's, as agreed
    struct lieni_offer peer;
    uint64_t conn_id;
    bool up, failed, down;
    int status;
    uint8_t *memory; // sends, then receives
    struct lieni_mr *mr;
    unsigned sends_over, reads_over;
    int read_status; // of the last READ
    int send_status; // of the last send
    uint32_t number; // of the last frame sent by rawpeer_frame()
    unsigned n_in,
        taken; // frames that came, in order; receives are posted again by rawpeer_again() alone
    uint64_t in_len[RAW_RECVS];
    unsigned in_slot[RAW_RECVS];
};

void rawworld_open(struct rawworld *world);
void rawworld_close(struct rawworld *world);

// What a connection offers by default: one version, tcp, frames of RAW_FRAME_MAX, RAW_RECVS / 2 credits of each class, RAW_CALLS calls.
struct lieni_offer rawpeer_offer(void);
// Connects to a Lien listener at 127.0.0.1:port ("host:port" as lien_listener_address() gives it). NULL: the default offer.
void rawpeer_connect(struct rawworld *world, struct rawpeer *peer, const char *address,
                     const struct lieni_offer *offer);
void rawpeer_close(struct rawpeer *peer);

// One SEND of these bytes, whatever they are. False: the connection was down before they left.
bool rawpeer_bytes(struct rawpeer *peer, const void *bytes, size_t len);
// One frame as it should be: encoded, and numbered.
bool rawpeer_frame(struct rawpeer *peer, const struct lieni_frame *frame);
// The next frame that came. False: none within `ms`.
bool rawpeer_next(struct rawpeer *peer, uint32_t ms, const uint8_t **bytes, size_t *len);
// All receives whose frames were taken are posted again, if none came meanwhile. What rawpeer_next() gave is gone.
void rawpeer_again(struct rawpeer *peer);
// Starts one READ of at most RAW_READ_MAX bytes of what it has a key for, or says it has. False: the connection was down before it left.
bool rawpeer_read(struct rawpeer *peer, uint64_t addr, uint64_t key, size_t len);
// Its status. The bytes are at *data until the next. LIEN_ETIMEDOUT: it is not over.
int rawpeer_read_wait(struct rawpeer *peer, uint32_t ms, const uint8_t **data);
// Drives it until it is down. False: it is not, after `ms`.
bool rawpeer_wait_down(struct rawpeer *peer, uint32_t ms);
void rawpeer_pump(struct rawworld *world, uint32_t ms); // for the connections that nobody waits for

#endif
