// SPDX-License-Identifier: Apache-2.0
//
// The bench of the hostile tests: a ctx that is the victim, a friend whose messages must get through after each attack, a raw peer that keeps the rules and must stay connected, and attacks: a new
// raw peer each, which costs its own connection, with LIEN_EPROTO, and nothing else. One thread; a failure ends the program with a line on stderr.

#ifndef LIEN_TEST_HOSTILE_H
#define LIEN_TEST_HOSTILE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/call.h>

#include "core/bytes.h"
#include "tests/hostile/rawpeer.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, hostile_what,           \
                    #condition);                                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum {
    CREDITS = 8 // the victim's, of each class
};

// docs/wire.md, "Frames".
enum {
    AT_FLAGS = 1,
    AT_LEN = 2,
    AT_MESSAGE_CREDITS = 4,
    AT_CONTROL_CREDITS = 6,
    AT_NUMBER = 8,
    AT_ZERO = 12
};

extern const char *hostile_what; // is being tried
extern lien_ctx *victim;
extern lien_pool *pool;
extern lien_listener *listener;
extern char address[96];
extern struct rawworld world;
extern unsigned attacks;

lien_ctx_stats stats(void); // the victim's
// Whether a line of the victim's or its friend's log with LIEN_EPROTO or LIEN_ELIMIT had this text since the last hostile_heard_nothing(). Waits for it.
bool hostile_heard(const char *text);
void hostile_heard_nothing(void);
bool is_open(lien_conn *conn);
// The friend's message gets through, both ways, and the quiet peer is there.
void others_go_on(void);

// A raw peer connects, and the victim accepts it; the end of an attack, whose connection is over or not.
void begin(struct rawpeer *peer, lien_conn **conn);
void end(struct rawpeer *peer, lien_conn **conn);
// The connection ends, with this status; messages that came before are thrown away.
int status_of_end(lien_conn *conn, struct rawpeer *peer);

// What comes before the bytes of an attack on its connection, and what must be seen to afterwards; NULL: nothing.
struct stage {
    void (*prepare)(struct rawpeer *peer, lien_conn *conn);
    void (*clear)(void);
};

struct sample {
    const char *name;
    uint8_t bytes[256];
    size_t len;
    size_t whole_from,
        whole_step; // cut there and given the length of the rest it is a frame again; 0: never
    const struct stage *stage;
};

struct sample make_sample(const char *name, const struct lieni_frame *frame, size_t from,
                          size_t step, const struct stage *stage);
// A new connection, its stage, these bytes, with the number that is due if they have the sample's own, 1: a protocol error.
void breaks(const uint8_t *bytes, size_t len, const struct stage *stage);
// Cut at each byte: as it is, if `plain`, and with the length of the rest.
void cuts(const struct sample *s, bool plain);
void lengths(const struct sample *s);

// One more setting of the victim and its friend, before set_up().
extern const char *hostile_setting;
// `service`: the victim's.
void set_up(const lien_service *service);
void pull_down(void);

#endif
