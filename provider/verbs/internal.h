// SPDX-License-Identifier: Apache-2.0
//
// Inside of provider/verbs: the device of one domain, and the questions to the kernel's resource table, from any thread.

#ifndef LIENI_VERBS_INTERNAL_H
#define LIENI_VERBS_INTERNAL_H

#include <infiniband/verbs.h>

#include "provider/ofi/ofi.h"
#include "provider/verbs/verbs.h"

extern const struct lieni_ofi_device_ops lieni_verbs_device_ops;

const char *lieni_verbs_state_text(enum ibv_port_state state);

// -- verbs_proof.c -----------------------------------------------------------------------------------------------------------------

// A device as the kernel's table knows it. An index may be given to another device later, so the rest is compared as well.
struct lieni_verbs_entry {
    uint32_t index;
    char name[64];
    uint64_t guid;
};

enum lieni_verbs_answer {
    LIENI_VERBS_UNKNOWN = 0, // anything but the other two, hidden tables included
    LIENI_VERBS_LISTED,      // there is such a queue pair
    LIENI_VERBS_ABSENT,      // -ENOENT for its number, on the same device
};

// Finds the device `name`. 0, or a negative errno, which lieni_verbs_why() puts in words.
int lieni_verbs_entry_find(const char *name, struct lieni_verbs_entry *entry);
const char *lieni_verbs_why(int rc);
// Asks for one queue pair by its number.
enum lieni_verbs_answer lieni_verbs_qp_ask(const struct lieni_verbs_entry *entry, uint32_t port,
                                           uint32_t number);
// Right before the close of a queue pair: whether it is listed, and nothing but its own end can take it off the list. Some kernels hide what a thread made that has ended: so its maker must be the caller or the
// process as a whole, which live on, or have ended already, and it is listed all the same. Waits up to a second for a maker that is about to end.
bool lieni_verbs_qp_stays(const struct lieni_verbs_entry *entry, uint32_t port, uint32_t number);
// The one queue pair that the calling thread made and that still is. False: none, several, or no answer.
bool lieni_verbs_qp_made(const struct lieni_verbs_entry *entry, uint32_t port, uint32_t *number);
// The queue pair of the one connection identifier with these addresses. False: none, several, or no answer.
bool lieni_verbs_qp_find(const struct lieni_verbs_entry *entry, uint32_t port,
                         const struct sockaddr *own, const struct sockaddr *peer, uint32_t *number);
// Tests hide the table with this: every answer is then UNKNOWN.
extern _Atomic bool lieni_verbs_hide_table;

#endif
