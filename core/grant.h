// SPDX-License-Identifier: Apache-2.0
//
// Grants: both sides of a peer's right to read buffers.
//
// The owner has a table of slots; a grant's name is its slot and generation. A slot is used again, with the next generation, only after the
// peer's release, so names are never reused on a connection and the reader needs to remember one number a slot. Owner's memory is untouched (BORROWED) until the
// release frame, or the proved end of the endpoint (design.md 3, held).
//
// The reader has the same table of what it knows: a token opens an entry; the release is owed from then on, and is sent only when no READ of this grant is in flight,
// since a SEND may overtake a READ (libfabric-facts 4, "No SAR"). A revoke makes the running reads end and the release due; it may be the first that is heard of a grant, whose token
// the application still carries, so it is remembered as any: else that token would be good after the release. Slots are below what both peers allow, option grants_conn, and entries are
// made as slots are named. Under the state lock.

#ifndef LIENI_GRANT_H
#define LIENI_GRANT_H

#include "core/ctx.h"
#include "core/wire.h"

// Flag of a read space's grant, kind borrowed: the buffers are lent by the call and may be its owner's again before the release; the grant itself keeps the
// name, and the memory mapped and registered (pins). It takes none of the budget of held bytes.
#define LIENI_GRANT_BORROWED (1u << 31)

enum lieni_grant_state {
    LIENI_GRANT_LIVE,  // the peer may read. Ends by release, revoke, or the endpoint's end
    LIENI_GRANT_ASKED, // revoked: the peer was asked to release. Ends by release or the endpoint's end; deadline release_ms
    LIENI_GRANT_OVER,  // released: its buffers are the owner's. For good
    LIENI_GRANT_LOST   // its endpoint ended without proof: quarantine. For good
};

struct lien_grant {
    struct lien_conn *conn; // a reference
    struct lieni_name name;
    enum lieni_grant_state state;
    unsigned flags;
    uint32_t n;
    lien_buf **bufs;
    struct lieni_mr **own;   // LIEN_REVOCABLE, LIEN_REUSE_PROVEN: regions of its own; or NULL
    struct lieni_pin **pins; // LIENI_GRANT_BORROWED: instead of borrows; NULL entries are over
    uint64_t bytes;
    void (*on_released)(void *arg, int status);
    void *arg;
    void (*over)(void *owner, int status); // internal owner, under the lock, instead of on_released
    void *owner;
    struct lieni_task released_task;
    struct lieni_timer release_timer;
    struct lieni_node node;        // conn->grants, while not over
    struct lieni_node revoke_node; // conn->revokes, while its REVOKE waits to be sent
    unsigned refs;                 // handle; table; released task
    struct lieni_node handle;      // conn->grant_handles, while the application has it
};

struct lieni_sums;

struct lieni_grant_slot {
    struct lien_grant *grant; // NULL: free
    uint32_t gen;             // of the grant, or of the last one
    uint32_t next_free;       // slot + 1
};
struct lieni_grant_table {
    struct lieni_grant_slot *slots;
    uint32_t n, cap, max;
    uint32_t free; // slot + 1
};

struct lieni_import {
    uint32_t dead;  // generations up to it are released
    uint32_t open;  // dead + 1 if known and owed, else 0
    uint32_t reads; // running, evidence outstanding
    bool release;   // wanted as soon as reads is 0
    bool revoked;
    bool queued;       // in the list of names to send
    uint32_t next_due; // slot + 1
};
// Pages of entries, each made when the first of its slots is named: a name costs one page at most, wherever its slot is.
#define LIENI_IMPORT_PAGE 64u
struct lieni_import_table {
    struct lieni_import *
        *pages; // of max slots; made with the first page; NULL entries: nothing of theirs was named
    uint32_t max;           // slots: what both peers' offers allow
    uint32_t due, due_last; // names to release, slot + 1
};

// -- Owner --
// As lien_grant_open, with the lock held; `keys` gets what the peer needs, *n_keys entries (empty buffers have none). All that leaves in buffers passes here: LIEN_EUNVERIFIED if nobody vouched for
// bytes of them, but for those of `own` (or NULL), which the peer checks by taking them. `sums`: checksums that the keys are to carry, or NULL.
int lieni_grant_open(struct lien_conn *conn, lien_buf *const *bufs, size_t n, unsigned flags,
                     const struct lieni_doubt *own, const struct lieni_sums *sums,
                     struct lieni_key *keys, uint32_t *n_keys, struct lien_grant **grant);
void lieni_grant_revoke(struct lien_grant *grant);
// A borrowed grant's call ended, and the peer knows or will: the release is due within release_ms.
void lieni_grant_call_over(struct lien_grant *grant);
// It was never told to the peer: over at once.
void lieni_grant_untold(struct lien_grant *grant);
void lieni_grant_unref(struct lien_grant *grant);
// The peer released it: LIEN_EPROTO if there is no such grant.
int lieni_grant_released(struct lien_conn *conn, struct lieni_name name);
// The endpoint is gone: all grants are over, or lost.
void lieni_grants_end(struct lien_conn *conn, bool proven);
// Takes up to `max` names whose REVOKE is due; put_back undoes the last take.
uint32_t lieni_grants_revokes_due(struct lien_conn *conn, struct lieni_name *names, uint32_t max);

// -- Reader --
// A token of this connection: LIEN_EPROTO (malformed, logged), LIEN_ESTALE (another connection).
int lieni_token_of(struct lien_conn *conn, const void *bytes, size_t len,
                   struct lieni_token_data *data);
uint64_t lieni_name_id(struct lieni_name name);
// Whether this name can be read now: 0, LIEN_ESTALE, LIEN_EPROTO, LIEN_ENOMEM. Opens the entry: from now on its release is owed.
int lieni_import_open(struct lien_conn *conn, struct lieni_name name);
// The same of a grant that a frame brings: no frame and no token named it before. LIEN_EPROTO else; never LIEN_ESTALE.
int lieni_import_first(struct lien_conn *conn, struct lieni_name name);
void lieni_import_read_begins(struct lien_conn *conn, struct lieni_name name);
void lieni_import_read_over(struct lien_conn *conn, struct lieni_name name);
// The release is wanted: due at once, or after the last read. LIEN_ESTALE.
int lieni_import_release(struct lien_conn *conn, struct lieni_name name);
// The owner revoked it. LIEN_EPROTO.
int lieni_import_revoked(struct lien_conn *conn, struct lieni_name name);
// Takes up to `max` names whose RELEASE is due.
uint32_t lieni_imports_due(struct lien_conn *conn, struct lieni_name *names, uint32_t max);
bool lieni_imports_any_due(const struct lien_conn *conn);
void lieni_imports_free(struct lieni_import_table *t);

#endif
