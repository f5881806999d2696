// SPDX-License-Identifier: Apache-2.0
//
// What tests of provider ucx at its interface share: sides with a provider, a domain and an endpoint each, whose events are counted. A side makes progress only when the test turns it, so one that
// is left out is a peer that stands still. One thread drives them.

#ifndef TESTS_UCX_PAIR_H
#define TESTS_UCX_PAIR_H

#include <stdbool.h>

#include "provider/ucx/ucx_provider.h"
#include "tests/support/check.h"

#define HANG_MS 60000u

struct side {
    struct lieni_prov *prov;
    struct lieni_domain *domain;
    struct lieni_ep *ep;
    uint16_t port;
    struct side *peer; // of pair_up: makes progress while this side ends, unless NULL
    unsigned up, failed, down, entries, good, bad;
    int status;
    struct lieni_cqe last;
    unsigned of[64]; // entries by context
    int status_of[64];
};

extern char report_text[512]; // the last

uint64_t pair_now(void *self);
void side_open(struct side *side);
// Ends the endpoint if there is one, with this proof; then the rest.
void side_close(struct side *side, enum lieni_proof want);
// Its endpoint only, also against a peer that stands still.
void side_end(struct side *side, enum lieni_proof want);
void side_listen(struct side *side, const struct lieni_recv *recvs, size_t n);
void side_connect(struct side *side, uint16_t port, const struct lieni_recv *recvs, size_t n);
int side_try_connect(struct side *side, uint16_t port);
// Both up.
void pair_up(struct side *owner, struct side *reader);
// Progress of these sides, each may be NULL; sleeps a ms when none has something.
void turn(struct side *a, struct side *b);

#define UNTIL(a, b, condition)                                                                     \
    for (uint64_t since_ = pair_now(NULL); !(condition); turn(a, b))                               \
    CHECK(pair_now(NULL) - since_ < HANG_MS * UINT64_C(1000000))

#endif
