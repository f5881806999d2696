// SPDX-License-Identifier: Apache-2.0
//
// See quarantine.h.

#include "core/quarantine.h"

#include <stdlib.h>
#include <string.h>

#include <lien/errors.h>

void lieni_quarantine_init(struct lieni_quarantine *q, uint64_t peer_max, uint64_t total_max)
{
    *q = (struct lieni_quarantine){.peer_max = peer_max, .total_max = total_max};
    for (unsigned i = 0; i < LIENI_QUARANTINE_BUCKETS; i++)
        lieni_list_init(&q->peers[i]);
}

static void peer_free(struct lieni_quarantine *q, struct lieni_quarantine_peer *peer)
{
    lieni_list_remove(&peer->node);
    q->n_peers--;
    free(peer);
}

void lieni_quarantine_free(struct lieni_quarantine *q)
{
    for (unsigned i = 0; i < LIENI_QUARANTINE_BUCKETS; i++) {
        struct lieni_node *n;
        while ((n = lieni_list_first(&q->peers[i]))) {
            struct lieni_quarantine_peer *peer = lieni_container(n, struct lieni_quarantine_peer,
                                                                 node);
            struct lieni_node *s; // of domains that would not close
            while ((s = lieni_list_pop(&peer->shares)))
                free(lieni_container(s, struct lieni_quarantine_share, of_peer));
            peer_free(q, peer);
        }
    }
}

void lieni_quarantine_domain_init(struct lieni_quarantine_domain *domain, bool weak)
{
    *domain = (struct lieni_quarantine_domain){.weak = weak};
    lieni_list_init(&domain->shares);
}

// -- Shares --

static struct lieni_node *bucket(struct lieni_quarantine *q, const char *host)
{
    uint32_t hash = 2166136261u; // FNV-1a
    for (const char *c = host; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    return &q->peers[hash % LIENI_QUARANTINE_BUCKETS];
}

static struct lieni_quarantine_peer *peer_get(struct lieni_quarantine *q, const char *host)
{
    struct lieni_node *head = bucket(q, host);
    for (struct lieni_node *n = head->next; n != head; n = n->next) {
        struct lieni_quarantine_peer *peer = lieni_container(n, struct lieni_quarantine_peer, node);
        if (strncmp(peer->host, host, sizeof(peer->host) - 1) == 0)
            return peer;
    }
    struct lieni_quarantine_peer *peer = calloc(1, sizeof(*peer));
    if (!peer)
        return NULL;
    strncpy(peer->host, host, sizeof(peer->host) - 1);
    lieni_list_init(&peer->shares);
    lieni_list_append(head, &peer->node);
    q->n_peers++;
    return peer;
}

// Nothing is left to be remembered of it?
static void peer_drop(struct lieni_quarantine *q, struct lieni_quarantine_peer *peer)
{
    if (lieni_list_empty(&peer->shares) && peer->sums.lost == 0)
        peer_free(q, peer);
}

static void share_free(struct lieni_quarantine *q, struct lieni_quarantine_share *share)
{
    struct lieni_quarantine_peer *peer = share->peer;
    lieni_list_remove(&share->of_domain);
    lieni_list_remove(&share->of_peer);
    q->n_shares--;
    free(share);
    peer_drop(q, peer);
}

int lieni_quarantine_join(struct lieni_quarantine *q, struct lieni_quarantine_domain *domain,
                          const char *host, struct lieni_quarantine_share **out)
{
    struct lieni_quarantine_peer *peer = peer_get(q, host);
    if (!peer)
        return LIEN_ENOMEM;
    for (struct lieni_node *n = peer->shares.next; n != &peer->shares; n = n->next) {
        struct lieni_quarantine_share *old = lieni_container(n, struct lieni_quarantine_share,
                                                             of_peer);
        if (old->domain == domain) {
            old->conns++;
            *out = old;
            return 0;
        }
    }
    struct lieni_quarantine_share *share = calloc(1, sizeof(*share));
    if (!share) {
        peer_drop(q, peer);
        return LIEN_ENOMEM;
    }
    share->domain = domain;
    share->peer = peer;
    share->conns = 1;
    lieni_list_append(&domain->shares, &share->of_domain);
    lieni_list_append(&peer->shares, &share->of_peer);
    q->n_shares++;
    *out = share;
    return 0;
}

void lieni_quarantine_leave(struct lieni_quarantine *q, struct lieni_quarantine_share *share)
{
    if (--share->conns == 0 && share->sums.lost == 0)
        share_free(q, share);
}

// -- Sums --

void lieni_quarantine_weak(struct lieni_quarantine *q, struct lieni_quarantine_domain *domain)
{
    if (domain->weak)
        return;
    domain->weak = true;
    for (struct lieni_node *n = domain->shares.next; n != &domain->shares; n = n->next) {
        struct lieni_quarantine_share *share = lieni_container(n, struct lieni_quarantine_share,
                                                               of_domain);
        share->peer->sums.held += share->sums.held;
        share->peer->sums.reads += share->sums.reads;
        q->sums.held += share->sums.held;
        q->sums.reads += share->sums.reads;
    }
}

void lieni_quarantine_hold(struct lieni_quarantine *q, struct lieni_quarantine_share *share,
                           uint64_t bytes)
{
    share->sums.held += bytes;
    if (!share->domain->weak)
        return;
    share->peer->sums.held += bytes;
    q->sums.held += bytes;
}

void lieni_quarantine_unhold(struct lieni_quarantine *q, struct lieni_quarantine_share *share,
                             uint64_t bytes)
{
    share->sums.held -= bytes;
    if (!share->domain->weak)
        return;
    share->peer->sums.held -= bytes;
    q->sums.held -= bytes;
}

void lieni_quarantine_read(struct lieni_quarantine *q, struct lieni_quarantine_share *share,
                           uint64_t bytes)
{
    share->sums.reads += bytes;
    if (!share->domain->weak)
        return;
    share->peer->sums.reads += bytes;
    q->sums.reads += bytes;
}

void lieni_quarantine_unread(struct lieni_quarantine *q, struct lieni_quarantine_share *share,
                             uint64_t bytes)
{
    share->sums.reads -= bytes;
    if (!share->domain->weak)
        return;
    share->peer->sums.reads -= bytes;
    q->sums.reads -= bytes;
}

void lieni_quarantine_lose(struct lieni_quarantine *q, struct lieni_quarantine_share *share,
                           uint64_t bytes)
{
    share->sums.lost += bytes;
    share->domain->lost += bytes;
    share->peer->sums.lost += bytes;
    q->sums.lost += bytes;
    q->ever += bytes;
}

void lieni_quarantine_ended(struct lieni_quarantine *q, struct lieni_quarantine_domain *domain,
                            bool proven)
{
    struct lieni_node *n;
    while ((n = lieni_list_first(&domain->shares))) {
        struct lieni_quarantine_share *share = lieni_container(n, struct lieni_quarantine_share,
                                                               of_domain);
        if (proven) {
            share->peer->sums.lost -= share->sums.lost;
            q->sums.lost -= share->sums.lost;
        }
        share_free(q, share);
    }
    domain->lost = 0;
}

// -- Caps --

static bool fits(const struct lieni_quarantine_sums *sums, uint64_t bytes, bool now, uint64_t max)
{
    const uint64_t there = sums->lost + sums->held + (now ? sums->reads : 0);
    return there <= max && bytes <= max - there;
}

enum lieni_quarantine_room lieni_quarantine_room(const struct lieni_quarantine *q,
                                                 const struct lieni_quarantine_share *share,
                                                 uint64_t bytes, bool now)
{
    const struct lieni_quarantine_sums *peer = &share->peer->sums;
    if (share->domain->weak) {
        if (!fits(peer, bytes, now, q->peer_max))
            return LIENI_ROOM_PEER;
        return fits(&q->sums, bytes, now, q->total_max) ? LIENI_ROOM : LIENI_ROOM_TOTAL;
    }
    // What runs comes back here; but not to a peer whose other memory did not.
    const struct lieni_quarantine_sums lost = {.lost = peer->lost};
    return peer->lost == 0 || fits(&lost, bytes, false, q->peer_max) ? LIENI_ROOM : LIENI_ROOM_PEER;
}
