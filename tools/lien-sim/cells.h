// SPDX-License-Identifier: Apache-2.0
//
// The table of lien-sim: how often each kind of fault met each state of a connection and of its operations. What can occur must occur often
// enough; what cannot is listed in cells.c with the reason.

#ifndef LIEN_SIM_CELLS_H
#define LIEN_SIM_CELLS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct lien_conn;

enum fault {
    FAULT_BREAK,    // the network between two endpoints, or of a bootstrap stream
    FAULT_KILL,     // the peer's process dies, its kernel tells
    FAULT_VANISH,   // the peer's machine dies
    FAULT_FREEZE,   // the peer stops
    FAULT_CLOSE,    // the application closes
    FAULT_CANCEL,   // the application cancels a read of this connection
    FAULT_REVOKE,   // the application revokes a grant of this connection
    FAULT_EAGAIN,   // a post is refused for now
    FAULT_EBUSY,    // destruction is refused for now
    FAULT_WITHHOLD, // an entry never comes
    FAULT_SPURIOUS, // an entry comes twice, or names nothing
    FAULT_UNPROVEN, // destruction proves nothing
    // Of calls, counted on open connections only: with any other the calls have ended.
    FAULT_CALL_CANCEL, // the application cancels a call, or closes its handle
    FAULT_DEADLINE,    // a call's deadline passed
    FAULT_DROP,        // a handler drops a request
    FAULT_GOAWAY,      // the application takes no new calls
    FAULT_JUMP,        // the clock of its node jumps
    // Decided by the world for one operation.
    FAULT_LIE,        // an end that is no proof says that it is one
    FAULT_STALL,      // the peer serves no READ any more
    FAULT_LOST,       // an entry is lost though the link is up
    FAULT_HOLLOW,     // a READ succeeds with nothing written
    FAULT_FALSE_SEND, // a SEND succeeds and does not arrive
    FAULT_FALSE_RECV, // a receive succeeds with old bytes
    FAULT_GARBAGE,    // a SEND's bytes change on the way
    FAULT_MADE_UP,    // the close makes an entry up while the engine goes on
    FAULT_CONNECT,    // connecting fails
    // Of a node: they count for each of its connections; of registrations for those of the domain.
    FAULT_REGISTER, // a registration is refused
    FAULT_NOMEM,    // an allocation of the library fails
    FAULT_EXHAUSTED, // the application's pool, or what a connection may lend, send or call, is used up
    FAULT_RESTART, // the peer's machine is back: a new process, which knows nothing of this connection
    FAULTS
};

// States of a connection, then states of operations that are on it at that moment.
enum cell_state {
    CELL_BOOT,
    CELL_FABRIC,
    CELL_OPEN,
    CELL_ENDING,
    CELL_DRAIN,
    CELL_DESTROY,
    CELL_READ_RUNNING,
    CELL_READ_DRAINING,
    CELL_GRANT_LIVE,
    CELL_GRANT_ASKED,
    CELL_BODY_SENT,   // a message with a body is not released yet
    CELL_BODY_COMING, // a message whose body is being read
    CELL_CALL_RUNNING,
    CELL_CALL_FETCHING, // its reply's body is being read
    CELL_CALL_ENDED,    // the peer owes its REPLY
    CELL_CALL_READING,  // a READ runs into its write space
    CELL_CALL_SEALED,   // the same, and the call has ended
    CELL_REQUEST_QUEUED,
    CELL_REQUEST_LIVE,
    CELL_REQUEST_REPLYING,  // its writes await their answers
    CELL_REQUEST_CANCELLED, // the application still holds it
    CELL_WRITE_OUT,
    CELL_WRITE_GIVEN_UP, // its source is still lent
    CELL_READ_PROBING,
    CELL_STATES
};

struct cells {
    uint64_t count[FAULTS][CELL_STATES];
};

// The fault happens now to this connection: its state and those of its operations count.
void cells_note(struct cells *cells, enum fault fault, struct lien_conn *conn);
// The states among `wanted` that the connection and the operations on it are in now, one bit each.
uint32_t cells_met(struct lien_conn *conn, uint32_t wanted);
// Whether that cell can occur.
bool cells_possible(enum fault fault, enum cell_state state);
void cells_add(struct cells *cells, const struct cells *more);
// Prints the table of that many seeds. Returns how many cells that can occur are below `least`, each named (a class restricts what can occur only when it is set). Rows of rare
// faults need as many in CELLS_RARE_SEEDS seeds only, and with fewer as many fewer.
unsigned cells_print(const struct cells *cells, FILE *out, uint64_t least, uint64_t seeds);
#define CELLS_RARE_SEEDS 15000u // of ci/nightly sim

#endif
