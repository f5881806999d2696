// SPDX-License-Identifier: Apache-2.0
//
// Evidence: the only thing that ends the lending of a buffer to a provider (design.md 1, R1, R11).
//
// Each endpoint has one table of work requests. A post takes an entry and carries its sequence
// number as context; the entry lives until evidence is made of it, here and nowhere else: from one
// completion entry that names a posted sequence of this table, or from a proved destruction. What
// names nothing, or names something twice, is counted and ignored. Evidence is spent once, by the
// owner of the work request that it ends. Under the state lock.

#ifndef LIENI_EVIDENCE_H
#define LIENI_EVIDENCE_H

#include "core/trace.h"

enum lieni_wr_kind {
    LIENI_WR_RECV,
    LIENI_WR_SEND,
    LIENI_WR_READ
};
#define LIENI_WR_KINDS 3

struct lieni_wr {
    uint64_t seq; // 0: free
    enum lieni_wr_kind kind;
    void *owner; // receive slot, send slot, or read operation
    uint64_t len;
    uint32_t next_free; // index + 1
};

struct lieni_wrs {
    struct lieni_wr *wrs;
    uint32_t n;    // a power of two
    uint32_t free; // index + 1 of the first free one
    unsigned shift;
    uint64_t count; // posts so far: the high part of the sequence
    uint64_t conn;
    uint32_t posted[LIENI_WR_KINDS]; // outstanding
    uint64_t unknown;                // entries that matched nothing
    bool ended;                      // the endpoint's destruction began: entries prove nothing now
    struct lieni_trace *trace;       // of the connection, or NULL; set after lieni_wrs_open()
};

enum lieni_evidence_source {
    LIENI_BY_ENTRY,
    LIENI_BY_END
};

// A value. `spent` is set by lieni_evidence_spend(); spending twice is a bug and aborts.
struct lieni_evidence {
    enum lieni_evidence_source source;
    enum lieni_wr_kind kind;
    uint64_t conn;
    uint64_t seq;
    void *owner;
    int status;         // of the operation: 0 or a LIEN_ code
    int provider_error; // for the log
    uint64_t posted_len;
    uint64_t len; // bytes received; at most posted_len
    bool spent;
};

// Room for `n` outstanding requests of the connection `conn`. LIEN_ENOMEM.
int lieni_wrs_open(struct lieni_wrs *t, uint32_t n, uint64_t conn);
// All entries must be free, by evidence or by lieni_wrs_abandon().
void lieni_wrs_close(struct lieni_wrs *t);

// Takes an entry before a post; *seq is its context. LIEN_EAGAIN: all are outstanding. LIEN_ELIMIT: the
// sequence is exhausted (it never wraps).
int lieni_wr_take(struct lieni_wrs *t, enum lieni_wr_kind kind, void *owner, uint64_t len,
                  uint64_t *seq);
// The post of `seq` was refused by the provider: nothing was lent.
void lieni_wr_untake(struct lieni_wrs *t, uint64_t seq);
uint32_t lieni_wrs_outstanding(const struct lieni_wrs *t);

// From a completion entry. LIEN_ENOTFOUND: unknown, duplicate, late or NULL context; counted, and to be ignored.
int lieni_evidence_from_entry(struct lieni_wrs *t, const struct lieni_cqe *cqe,
                              struct lieni_evidence *ev);
// The destruction of the endpoint begins: from here on entries prove nothing.
void lieni_wrs_end(struct lieni_wrs *t);
// From its destruction: one outstanding request after the other. LIEN_ENOTFOUND: none is left, or `proof` proves nothing.
int lieni_evidence_from_end(struct lieni_wrs *t, enum lieni_proof proof, struct lieni_evidence *ev);
// Without proof: what is still outstanding, one after the other, for quarantine. This is not evidence. False: none is left.
bool lieni_wrs_abandon(struct lieni_wrs *t, enum lieni_wr_kind *kind, void **owner);

// Marks it used up, checking that it is `conn`'s and of that kind. Returns the owner.
void *lieni_evidence_spend(struct lieni_evidence *ev, uint64_t conn, enum lieni_wr_kind kind);

#endif
