// SPDX-License-Identifier: Apache-2.0
//
// Pre-shared keys (design.md 6, R20; docs/wire.md "Bootstrap"): where they come from, where they are kept, and the MACs made with them. A ring holds what is derived from each key, never the
// key itself, in memory of libsodium's that is locked if the system allows, out of core dumps, between guard pages, read-only, and wiped when it is freed. Immutable once opened, so
// without a lock; any thread.

#ifndef LIENI_ACCESS_H
#define LIENI_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/lien.h>

#include "core/log.h"

#define LIENI_MAC       32u
#define LIENI_PSK_MIN   16u // bytes of a key
#define LIENI_PSK_MAX   64u
#define LIENI_KEYS_MAX  16u    // keys of one ring
#define LIENI_KEY_BYTES 16384u // of a file of keys

struct lieni_keyring;

// What a MAC is for, which names its sender's role too: each has a key of its own, so that none passes for another, and none that a peer made passes for ours.
enum lieni_mac_use {
    LIENI_MAC_SELECT = 1,    // client: which key it proves with
    LIENI_MAC_PROOF = 2,     // client: PROOF
    LIENI_MAC_PLACE = 3,     // server: PLACE
    LIENI_MAC_CM_CLIENT = 4, // private data of the fabric connection
    LIENI_MAC_CM_SERVER = 5
};

struct lieni_mac_part {
    const void *bytes;
    size_t len;
};

// Keys from the application, or if there are none, from the file at `path`; *ring is NULL when there is neither. LIEN_EOPTION after a log line that names what is wrong and the limit (and
// never a byte of a key). LIEN_ENOMEM. LIEN_ESYS: libsodium does not start.
int lieni_keyring_open(const lien_psk *keys, size_t n_keys, const char *path, struct lieni_log *log,
                       struct lieni_keyring **ring);
void lieni_keyring_close(struct lieni_keyring *ring); // NULL: no effect

// BLAKE2b of the parts, each behind its length, so that no two lists of parts are alike. Keyed with what `use` derives from key number `key`; ring NULL: without a key, which only binds.
void lieni_mac(const struct lieni_keyring *ring, unsigned key, enum lieni_mac_use use,
               const struct lieni_mac_part *parts, size_t n_parts, uint8_t mac[LIENI_MAC]);
// The key whose MAC this is, or -1. In time that depends on the number of keys and parts only.
int lieni_mac_find(const struct lieni_keyring *ring, enum lieni_mac_use use,
                   const struct lieni_mac_part *parts, size_t n_parts,
                   const uint8_t mac[LIENI_MAC]);
// In constant time.
bool lieni_mac_same(const uint8_t a[LIENI_MAC], const uint8_t b[LIENI_MAC]);

#endif
