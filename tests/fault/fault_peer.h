// SPDX-License-Identifier: Apache-2.0
//
// The other process's main; see fault_peer.c.

#ifndef FAULT_PEER_H
#define FAULT_PEER_H

// Runs until standard input ends. `settings` ends in NULL.
int fault_peer_main(const char *const *settings);

#endif
