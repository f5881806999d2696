// SPDX-License-Identifier: Apache-2.0
//
// Endpoints: making and freeing them, posts, entries, the end. A post is taken from the endpoint's own array, so its number is bounded and posting allocates nothing; it goes back when its
// entry is given to poll's caller. `lieni_ucx_over` and `lieni_ucx_entry` are what decides which callback of UCX's is an entry.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider/ucx/ucx.h"

#define TO(state) (1u << (state))

static const uint8_t may_enter[] = {
    [LIENI_UCX_HALF] = TO(LIENI_UCX_UP) | TO(LIENI_UCX_FAILED) | TO(LIENI_UCX_CLOSING),
    [LIENI_UCX_UP] = TO(LIENI_UCX_DOWN) | TO(LIENI_UCX_CLOSING),
    [LIENI_UCX_DOWN] = TO(LIENI_UCX_CLOSING),
    [LIENI_UCX_FAILED] = TO(LIENI_UCX_CLOSING),
    [LIENI_UCX_CLOSING] = 0,
};

void lieni_ucx_enter(struct lieni_ep *ep, enum lieni_ucx_state state)
{
    if (!(may_enter[ep->state] & TO(state)))
        abort(); // a bug of this folder: going on could release memory early
    ep->state = state;
    ep->was_up = ep->was_up || state == LIENI_UCX_UP;
}

// -- Making ----------------------------------------------------------------------------------------------------------------------------

static struct lieni_ucx_post *take(struct lieni_ucx_posts *from)
{
    struct lieni_ucx_post *post = TAILQ_FIRST(from);
    if (post)
        TAILQ_REMOVE(from, post, link);
    return post;
}

static void prepare_lists(struct lieni_ep *ep)
{
    struct lieni_ucx_posts *const lists[] = {&ep->unused, &ep->sends, &ep->recvs, &ep->reads,
                                             &ep->flying, &ep->limbo, &ep->done};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        TAILQ_INIT(lists[i]);
    TAILQ_INIT(&ep->told);
    TAILQ_INIT(&ep->gone);
    TAILQ_INIT(&ep->lanes);
    TAILQ_INIT(&ep->keys);
    for (unsigned i = 0; i < LIENI_UCX_KINDS; i++)
        ep->controls[i].ep = ep;
}

static void first_posts(struct lieni_ep *ep, const struct lieni_ep_args *args)
{
    for (uint32_t i = 0; i < args->posts_max; i++) {
        ep->posts[i].ep = ep;
        TAILQ_INSERT_TAIL(&ep->unused, &ep->posts[i], link);
    }
    for (size_t i = 0; i < args->n_recvs; i++) {
        struct lieni_ucx_post *post = take(&ep->unused);
        post->buf = args->recvs[i].buf;
        post->len = args->recvs[i].len;
        post->context = args->recvs[i].context;
        TAILQ_INSERT_TAIL(&ep->recvs, post, link);
    }
    ep->recvs_posted = args->n_recvs;
}

int lieni_ucx_ep_new(struct lieni_domain *domain, const struct lieni_ep_args *args, bool server,
                     struct lieni_ep **out)
{
    struct lieni_prov *prov = domain->prov;
    if (args->posts_max < 1 || args->posts_max > LIENI_UCX_POSTS || args->n_recvs > args->posts_max)
        return lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_EINVAL,
                             "an endpoint of %u posts with %zu receives; the limit is %u",
                             args->posts_max, args->n_recvs, LIENI_UCX_POSTS);
    struct lieni_ep *ep = calloc(1, sizeof *ep);
    struct lieni_ucx_post *posts = calloc(args->posts_max, sizeof *posts);
    if (!ep || !posts) {
        free(ep);
        free(posts);
        return LIEN_ENOMEM;
    }
    ep->domain = domain;
    ep->prov = prov;
    ep->user = args->user;
    ep->server = server;
    ep->state = LIENI_UCX_HALF;
    ep->posts = posts;
    ep->listen_fd = ep->worker_fd = -1;
    ep->listen_watch.kind = LIENI_UCX_LISTEN;
    ep->worker_watch.kind = LIENI_UCX_WORKER;
    snprintf(ep->peer, sizeof ep->peer, "%s port %u", args->host, args->port);
    memcpy(ep->send_data, args->send_data, LIENI_CM_DATA);
    memcpy(ep->expect_data, args->expect_data, LIENI_CM_DATA);
    prov->env->random(prov->env->self, &ep->token, sizeof ep->token);
    pthread_mutex_init(&ep->lock, NULL);
    prepare_lists(ep);
    first_posts(ep, args);
    pthread_mutex_lock(&prov->lock);
    TAILQ_INSERT_TAIL(&domain->eps, ep, link);
    domain->n_eps++;
    pthread_mutex_unlock(&prov->lock);
    *out = ep;
    return 0;
}

void lieni_ucx_ep_free(struct lieni_ep *ep)
{
    struct lieni_domain *domain = ep->domain;
    struct lieni_ucx_told *told;
    pthread_mutex_lock(&domain->lock);
    while ((told = TAILQ_FIRST(&ep->told))) {
        TAILQ_REMOVE(&ep->told, told, ep_link);
        TAILQ_REMOVE(&told->mr->told, told, mr_link);
        free(told);
    }
    while ((told = TAILQ_FIRST(&ep->gone))) {
        TAILQ_REMOVE(&ep->gone, told, ep_link);
        free(told);
    }
    pthread_mutex_unlock(&domain->lock);
    lieni_ucx_untouch(ep); // after that: closing a region touches who was told of it
    pthread_mutex_lock(&ep->prov->lock);
    TAILQ_REMOVE(&domain->eps, ep, link);
    domain->n_eps--;
    pthread_mutex_unlock(&ep->prov->lock);
    pthread_mutex_destroy(&ep->lock);
    free(ep->posts);
    free(ep);
}

// -- Posts -----------------------------------------------------------------------------------------------------------------------------

// Takes a post and the lock; 0, or an error without both.
static int post_begin(struct lieni_ep *ep, struct lieni_ucx_post **post)
{
    pthread_mutex_lock(&ep->lock);
    int code = ep->state == LIENI_UCX_UP ? 0 : LIEN_ESTATE;
    if (code == 0) {
        *post = take(&ep->unused);
        code = *post ? 0 : LIEN_EAGAIN;
    }
    if (code != 0)
        pthread_mutex_unlock(&ep->lock);
    else
        **post = (struct lieni_ucx_post){.ep = ep};
    return code;
}

static int post_end(struct lieni_ep *ep)
{
    lieni_ucx_touch(ep);
    pthread_mutex_unlock(&ep->lock); // a shutdown may follow at once: ep is not ours any more
    return 0;
}

int lieni_ucx_post_send(struct lieni_ep *ep, const void *buf, size_t len, struct lieni_mr *mr,
                        uint64_t context)
{
    (void)mr;
    struct lieni_ucx_post *post;
    int code = post_begin(ep, &post);
    if (code != 0)
        return code;
    post->data = buf;
    post->len = len;
    post->context = context;
    TAILQ_INSERT_TAIL(&ep->sends, post, link);
    return post_end(ep);
}

int lieni_ucx_post_recv(struct lieni_ep *ep, void *buf, size_t len, struct lieni_mr *mr,
                        uint64_t context)
{
    (void)mr;
    struct lieni_ucx_post *post;
    int code = post_begin(ep, &post);
    if (code != 0)
        return code;
    post->buf = buf;
    post->len = len;
    post->context = context;
    TAILQ_INSERT_TAIL(&ep->recvs, post, link);
    ep->recvs_posted++;
    return post_end(ep);
}

int lieni_ucx_post_read(struct lieni_ep *ep, void *dst, size_t len, struct lieni_mr *mr,
                        uint64_t remote_addr, uint64_t remote_key, uint64_t context)
{
    struct lieni_ucx_post *post;
    if (len > LIENI_UCX_PIECE)
        return LIEN_EMSGSIZE;
    if (len == 0)
        return LIEN_EINVAL;
    int code = post_begin(ep, &post);
    if (code != 0)
        return code;
    if (ep->n_reads == LIENI_UCX_READS) {
        TAILQ_INSERT_HEAD(&ep->unused, post, link);
        pthread_mutex_unlock(&ep->lock);
        return LIEN_EAGAIN;
    }
    ep->n_reads++;
    post->read = true;
    post->buf = dst;
    post->len = len;
    post->mr = mr;
    post->context = context;
    post->remote_addr = remote_addr;
    post->remote_key = remote_key;
    TAILQ_INSERT_TAIL(&ep->reads, post, link);
    return post_end(ep);
}

// -- Entries ---------------------------------------------------------------------------------------------------------------------------

void lieni_ucx_over(struct lieni_ucx_post *post, ucs_status_t status)
{
    struct lieni_ep *ep = post->ep;
    bool evidence = status == UCS_OK && !ep->cancelled;
    pthread_mutex_lock(&ep->lock);
    TAILQ_REMOVE(&ep->flying, post, link);
    if (evidence)
        TAILQ_INSERT_TAIL(&ep->done, post, link);
    else
        TAILQ_INSERT_TAIL(&ep->limbo, post, link);
    pthread_mutex_unlock(&ep->lock);
    if (status != UCS_OK)
        lieni_ucx_break(ep, lieni_ucx_code(status), status);
}

// ep->lock. What was never UCX's is flushed, and what was, once the worker's end is proof.
static struct lieni_ucx_post *flush_one(struct lieni_ep *ep)
{
    struct lieni_ucx_posts *const queues[] = {&ep->sends, &ep->reads, &ep->recvs, &ep->flying,
                                              &ep->limbo};
    const size_t n = ep->prov->by_hand ? 5 : 3;
    struct lieni_ucx_post *post = NULL;
    for (size_t i = 0; !post && i < n; i++)
        post = take(queues[i]);
    if (post)
        post->status = LIEN_ECANCELED;
    return post;
}

bool lieni_ucx_entry(struct lieni_ep *ep, struct lieni_cqe *cqe)
{
    pthread_mutex_lock(&ep->lock);
    struct lieni_ucx_post *post = ep->unheard ? NULL : take(&ep->done);
    if (!post && !ep->unheard && ep->state == LIENI_UCX_CLOSING && ep->was_up && ep->ended)
        post = flush_one(ep);
    if (post) {
        *cqe = (struct lieni_cqe){.context = post->context,
                                  .status = post->status,
                                  .provider_error = post->error,
                                  .len = post->got};
        ep->n_reads -= post->read;
        TAILQ_INSERT_HEAD(&ep->unused, post, link);
    }
    pthread_mutex_unlock(&ep->lock);
    return post != NULL;
}

// -- The end ---------------------------------------------------------------------------------------------------------------------------

void lieni_ucx_shutdown(struct lieni_ep *ep)
{
    pthread_mutex_lock(&ep->lock);
    enum lieni_ucx_state was = ep->state;
    if (was != LIENI_UCX_CLOSING)
        lieni_ucx_enter(ep, LIENI_UCX_CLOSING);
    pthread_mutex_unlock(&ep->lock);
    if (was == LIENI_UCX_CLOSING)
        return;
    lieni_ucx_leave(ep, was == LIENI_UCX_UP && !ep->broken);
    if (lieni_ucx_may_end(ep))
        lieni_ucx_end(ep);
    lieni_ucx_touch(ep); // its posts are to be flushed
}

int lieni_ucx_destroy(struct lieni_ep *ep, enum lieni_proof *proof, uint64_t *late)
{
    pthread_mutex_lock(&ep->lock);
    bool closing = ep->state == LIENI_UCX_CLOSING;
    pthread_mutex_unlock(&ep->lock);
    if (!closing)
        return LIEN_ESTATE;
    ep->unheard = true;
    if (!ep->ended && !lieni_ucx_may_end(ep))
        return LIEN_EBUSY;
    if (!ep->ended)
        lieni_ucx_end(ep);
    *proof = ep->prov->by_hand ? LIENI_PROVEN : LIENI_UNKNOWN;
    *late = 0;
    lieni_ucx_ep_free(ep);
    return 0;
}
