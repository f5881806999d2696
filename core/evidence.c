// SPDX-License-Identifier: Apache-2.0
//
// See evidence.h. A sequence is (count << shift) | index, so that an entry finds its request in one
// step and a context that was ever used is never used again.

#include "core/evidence.h"

#include <stdio.h>
#include <stdlib.h>

#define SEQ_MAX ((UINT64_C(1) << 62) - 1)

int lieni_wrs_open(struct lieni_wrs *t, uint32_t n, uint64_t conn)
{
    *t = (struct lieni_wrs){.conn = conn, .n = 1};
    while (t->n < n) {
        t->n <<= 1;
        t->shift++;
    }
    t->wrs = calloc(t->n, sizeof(*t->wrs));
    if (!t->wrs)
        return LIEN_ENOMEM;
    for (uint32_t i = t->n; i > 0; i--) {
        t->wrs[i - 1].next_free = t->free;
        t->free = i;
    }
    return 0;
}

void lieni_wrs_close(struct lieni_wrs *t)
{
    if (t->wrs && lieni_wrs_outstanding(t) != 0) {
        fprintf(stderr, "lien: bug: work requests freed while outstanding\n");
        abort();
    }
    free(t->wrs);
    t->wrs = NULL;
}

int lieni_wr_take(struct lieni_wrs *t, enum lieni_wr_kind kind, void *owner, uint64_t len,
                  uint64_t *seq)
{
    if (t->free == 0)
        return LIEN_EAGAIN;
    if (t->count + 1 > SEQ_MAX >> t->shift)
        return LIEN_ELIMIT;
    uint32_t index = t->free - 1;
    struct lieni_wr *wr = &t->wrs[index];
    t->free = wr->next_free;
    t->count++; // so that no sequence is 0
    *wr = (struct lieni_wr){
        .seq = t->count << t->shift | index, .kind = kind, .owner = owner, .len = len};
    t->posted[kind]++;
    *seq = wr->seq;
    lieni_trace_wr(t->trace, LIENI_TRACE_POST, kind, wr->seq, len, 0, 0);
    return 0;
}

static struct lieni_wr *find(struct lieni_wrs *t, uint64_t seq)
{
    if (seq == 0 || !t->wrs)
        return NULL;
    struct lieni_wr *wr = &t->wrs[seq & (t->n - 1)];
    return wr->seq == seq ? wr : NULL;
}

static void put(struct lieni_wrs *t, struct lieni_wr *wr)
{
    t->posted[wr->kind]--;
    *wr = (struct lieni_wr){.next_free = t->free};
    t->free = (uint32_t)(wr - t->wrs) + 1;
}

void lieni_wr_untake(struct lieni_wrs *t, uint64_t seq)
{
    struct lieni_wr *wr = find(t, seq);
    if (!wr)
        return;
    lieni_trace_wr(t->trace, LIENI_TRACE_UNPOST, wr->kind, seq, wr->len, 0, 0);
    put(t, wr);
}

uint32_t lieni_wrs_outstanding(const struct lieni_wrs *t)
{
    return t->posted[LIENI_WR_RECV] + t->posted[LIENI_WR_SEND] + t->posted[LIENI_WR_READ];
}

int lieni_evidence_from_entry(struct lieni_wrs *t, const struct lieni_cqe *cqe,
                              struct lieni_evidence *ev)
{
    struct lieni_wr *wr = t->ended ? NULL : find(t, cqe->context);
    if (!wr) {
        t->unknown++;
        lieni_trace_wr(t->trace, LIENI_TRACE_STRAY, 0, cqe->context, cqe->len, cqe->status,
                       cqe->provider_error);
        return LIEN_ENOTFOUND;
    }
    *ev = (struct lieni_evidence){.source = LIENI_BY_ENTRY,
                                  .kind = wr->kind,
                                  .conn = t->conn,
                                  .seq = wr->seq,
                                  .owner = wr->owner,
                                  .status = cqe->status,
                                  .provider_error = cqe->provider_error,
                                  .posted_len = wr->len,
                                  .len = cqe->len};
    if (ev->len > ev->posted_len) {
        // A receive cannot hold more than it was posted with: the length is a lie, the end is not.
        ev->len = 0;
        if (ev->kind == LIENI_WR_RECV && ev->status == 0)
            ev->status = LIEN_EPROTO;
    }
    lieni_trace_wr(t->trace, LIENI_TRACE_ENTRY, wr->kind, wr->seq, ev->len, ev->status,
                   ev->provider_error);
    put(t, wr);
    return 0;
}

void lieni_wrs_end(struct lieni_wrs *t)
{
    t->ended = true;
}

// The first outstanding request at or after the start of the table, or NULL.
static struct lieni_wr *outstanding(struct lieni_wrs *t)
{
    for (uint32_t i = 0; t->wrs && i < t->n; i++) {
        if (t->wrs[i].seq != 0)
            return &t->wrs[i];
    }
    return NULL;
}

int lieni_evidence_from_end(struct lieni_wrs *t, enum lieni_proof proof, struct lieni_evidence *ev)
{
    struct lieni_wr *wr = proof == LIENI_PROVEN ? outstanding(t) : NULL;
    if (!wr)
        return LIEN_ENOTFOUND;
    *ev = (struct lieni_evidence){.source = LIENI_BY_END,
                                  .kind = wr->kind,
                                  .conn = t->conn,
                                  .seq = wr->seq,
                                  .owner = wr->owner,
                                  .status = LIEN_ECANCELED,
                                  .posted_len = wr->len};
    lieni_trace_wr(t->trace, LIENI_TRACE_PROVED, wr->kind, wr->seq, wr->len, 0, 0);
    put(t, wr);
    return 0;
}

bool lieni_wrs_abandon(struct lieni_wrs *t, enum lieni_wr_kind *kind, void **owner)
{
    struct lieni_wr *wr = outstanding(t);
    if (!wr)
        return false;
    *kind = wr->kind;
    *owner = wr->owner;
    lieni_trace_wr(t->trace, LIENI_TRACE_ABANDONED, wr->kind, wr->seq, wr->len, 0, 0);
    put(t, wr);
    return true;
}

void *lieni_evidence_spend(struct lieni_evidence *ev, uint64_t conn, enum lieni_wr_kind kind)
{
    if (ev->spent || ev->conn != conn || ev->kind != kind) {
        fprintf(stderr, "lien: bug: evidence spent twice or by a stranger\n");
        abort();
    }
    ev->spent = true;
    return ev->owner;
}
