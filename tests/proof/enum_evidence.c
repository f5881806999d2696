// SPDX-License-Identifier: Apache-2.0
//
// Run by ci/proof: core/evidence.c under every sequence of ENUM_DEPTH events on tables of 1 and 2 requests, and
// again where the sequence numbers end, against a list of what is outstanding. Each sequence number is new, each is ended
// once, by its own entry or by the end, with its owner; what is unknown, spent, late or NULL gives LIEN_ENOTFOUND, is counted, and changes nothing else.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/evidence.h"

#ifndef ENUM_DEPTH
#define ENUM_DEPTH 6
#endif

#define CONN    77u
#define SEQ_END ((UINT64_C(1) << 62) - 1)

static unsigned long events;

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

// What has happened, in words that evidence.c does not share.
struct world {
    struct lieni_wrs t;
    struct lieni_wr slots[2];
    struct {
        uint64_t seq;
        enum lieni_wr_kind kind;
        bool out;
    } given[ENUM_DEPTH];
    unsigned n_given, n_out;
    uint64_t unknown;
    bool ended;
};

static char owners[ENUM_DEPTH]; // addresses alone

static void check_evidence(const struct world *w, unsigned i, struct lieni_evidence *ev,
                           enum lieni_evidence_source source)
{
    CHECK(ev->source == source && ev->conn == CONN && ev->seq == w->given[i].seq);
    CHECK(ev->kind == w->given[i].kind && ev->owner == &owners[i] && !ev->spent);
    CHECK(lieni_evidence_spend(ev, CONN, ev->kind) == &owners[i] && ev->spent);
}

static void take(struct world *w, enum lieni_wr_kind kind)
{
    uint64_t seq = 0;
    const bool last = w->t.count + 1 > SEQ_END >> w->t.shift;
    int rc = lieni_wr_take(&w->t, kind, &owners[w->n_given], 8, &seq);
    if (w->n_out == w->t.n) {
        CHECK(rc == LIEN_EAGAIN);
        return;
    }
    CHECK(rc == (last ? LIEN_ELIMIT : 0));
    if (rc != 0)
        return;
    CHECK(seq != 0 && seq <= SEQ_END);
    for (unsigned i = 0; i < w->n_given; i++)
        CHECK(seq > w->given[i].seq || (seq ^ w->given[i].seq) >> w->t.shift);
    w->given[w->n_given].seq = seq;
    w->given[w->n_given].kind = kind;
    w->given[w->n_given++].out = true;
    w->n_out++;
}

// `i` == n_given and beyond: contexts that were never given.
static void entry(struct world *w, unsigned i)
{
    const bool known = i < w->n_given;
    const uint64_t strange[] = {0, SEQ_END + 1, UINT64_MAX};
    struct lieni_evidence ev = {.status = 99};
    const struct lieni_cqe cqe = {.context = known ? w->given[i].seq : strange[i - w->n_given],
                                  .len = 9};
    int rc = lieni_evidence_from_entry(&w->t, &cqe, &ev);
    if (!known || w->ended || !w->given[i].out) {
        CHECK(rc == LIEN_ENOTFOUND && ev.status == 99);
        w->unknown++;
        return;
    }
    CHECK(rc == 0 && ev.len <= ev.posted_len);
    check_evidence(w, i, &ev, LIENI_BY_ENTRY);
    w->given[i].out = false;
    w->n_out--;
}

static void untake(struct world *w, unsigned i)
{
    lieni_wr_untake(&w->t, w->given[i].seq);
    w->n_out -= w->given[i].out;
    w->given[i].out = false;
}

static unsigned of_seq(const struct world *w, uint64_t seq)
{
    for (unsigned i = 0; i < w->n_given; i++)
        if (w->given[i].seq == seq && w->given[i].out)
            return i;
    CHECK(!"evidence of what is not outstanding");
    return 0;
}

static void from_end(struct world *w, enum lieni_proof proof)
{
    struct lieni_evidence ev = {.status = 99};
    int rc = lieni_evidence_from_end(&w->t, proof, &ev);
    if (proof != LIENI_PROVEN || w->n_out == 0) {
        CHECK(rc == LIEN_ENOTFOUND && ev.status == 99);
        return;
    }
    CHECK(rc == 0 && ev.status == LIEN_ECANCELED);
    const unsigned i = of_seq(w, ev.seq);
    check_evidence(w, i, &ev, LIENI_BY_END);
    w->given[i].out = false;
    w->n_out--;
}

static void abandon(struct world *w)
{
    enum lieni_wr_kind kind;
    void *owner = NULL;
    if (!lieni_wrs_abandon(&w->t, &kind, &owner)) {
        CHECK(w->n_out == 0);
        return;
    }
    const size_t i = (size_t)((char *)owner - owners);
    CHECK(i < w->n_given && w->given[i].out && w->given[i].kind == kind);
    w->given[i].out = false;
    w->n_out--;
}

// Event number `e`; false: there is none.
static bool event(struct world *w, unsigned e)
{
    const unsigned n = w->n_given;
    if (e < 2)
        take(w, e == 0 ? LIENI_WR_RECV : LIENI_WR_READ);
    else if (e == 2) {
        lieni_wrs_end(&w->t);
        w->ended = true;
    } else if (e == 3)
        from_end(w, LIENI_PROVEN);
    else if (e == 4)
        from_end(w, LIENI_UNKNOWN);
    else if (e == 5)
        abandon(w);
    else if (e < 6 + n + 3)
        entry(w, e - 6);
    else if (e < 6 + n + 3 + n)
        untake(w, e - 6 - n - 3);
    else
        return false;
    return true;
}

static void explore(const struct world *from, unsigned depth)
{
    for (unsigned e = 0;; e++) {
        struct world w = *from;
        w.t.wrs = w.slots;
        if (!event(&w, e))
            return;
        events++;
        CHECK(lieni_wrs_outstanding(&w.t) == w.n_out && w.t.unknown == w.unknown);
        if (depth > 1)
            explore(&w, depth - 1);
    }
}

int main(void)
{
    for (uint32_t n = 1; n <= 2; n++) {
        for (int late = 0; late < 2; late++) {
            struct world w = {.t = {0}};
            CHECK(lieni_wrs_open(&w.t, n, CONN) == 0);
            memcpy(w.slots, w.t.wrs, n * sizeof(w.slots[0]));
            struct lieni_wr *own = w.t.wrs;
            if (late)
                w.t.count = (SEQ_END >> w.t.shift) - 2;
            explore(&w, ENUM_DEPTH);
            w.t.wrs = own;
            lieni_wrs_close(&w.t);
        }
    }
    printf("%lu events, depth %d\n", events, ENUM_DEPTH);
    return 0;
}
