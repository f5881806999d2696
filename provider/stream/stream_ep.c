// SPDX-License-Identifier: Apache-2.0
//
// Endpoints: making and freeing them, posts, flushing, the end. A post is taken from the endpoint's own array, so its number is bounded and posting allocates nothing; it goes back when its
// entry is given to poll's caller.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/stream/stream.h"

#define TO(state) (1u << (state))

static const uint8_t may_enter[] = {
    [LIENI_STREAM_HALF] = TO(LIENI_STREAM_UP) | TO(LIENI_STREAM_FAILED) | TO(LIENI_STREAM_CLOSING),
    [LIENI_STREAM_UP] = TO(LIENI_STREAM_DOWN) | TO(LIENI_STREAM_CLOSING),
    [LIENI_STREAM_DOWN] = TO(LIENI_STREAM_CLOSING),
    [LIENI_STREAM_FAILED] = TO(LIENI_STREAM_CLOSING),
    [LIENI_STREAM_CLOSING] = 0,
};

void lieni_stream_enter(struct lieni_ep *ep, enum lieni_stream_state state)
{
    if (!(may_enter[ep->state] & TO(state)))
        abort(); // a bug of this folder: going on could release memory early
    ep->state = state;
    ep->was_up = ep->was_up || state == LIENI_STREAM_UP;
}

// -- Making --------------------------------------------------------------------------------------------------------------------------

static int check_args(struct lieni_prov *prov, const struct lieni_ep_args *args)
{
    uint32_t most = prov->kind->traits->posts_max;
    if (args->posts_max >= 1 && args->posts_max <= most && args->n_recvs <= args->posts_max)
        return 0;
    return lieni_stream_say(prov, LIEN_LOG_ERROR, LIEN_EINVAL,
                            "an endpoint of %u posts with %zu receives; the limit is %u",
                            args->posts_max, args->n_recvs, most);
}

static struct lieni_stream_post *take(struct lieni_ep *ep, struct lieni_stream_posts *from)
{
    (void)ep;
    struct lieni_stream_post *post = STAILQ_FIRST(from);
    if (post)
        STAILQ_REMOVE_HEAD(from, link);
    return post;
}

int lieni_stream_ep_new(struct lieni_domain *domain, const struct lieni_ep_args *args, bool server,
                        struct lieni_ep **out)
{
    int code = check_args(domain->prov, args);
    if (code != 0)
        return code;
    struct lieni_ep *ep = calloc(1, sizeof *ep);
    if (!ep)
        return LIEN_ENOMEM;
    ep->posts = calloc(args->posts_max, sizeof *ep->posts);
    if (!ep->posts) {
        free(ep);
        return LIEN_ENOMEM;
    }
    ep->domain = domain;
    ep->prov = domain->prov;
    ep->user = args->user;
    ep->server = server;
    ep->port = args->port;
    ep->posts_max = args->posts_max;
    ep->state = LIENI_STREAM_HALF;
    ep->listen_fd = -1;
    ep->in.want = LIENI_STREAM_HEAD;
    snprintf(ep->peer, sizeof ep->peer, "%s port %u", args->host, args->port);
    snprintf(ep->name, sizeof ep->name, "%s", args->name ? args->name : args->host);
    memcpy(ep->send_data, args->send_data, LIENI_CM_DATA);
    memcpy(ep->expect_data, args->expect_data, LIENI_CM_DATA);
    pthread_mutex_init(&ep->lock, NULL);
    TAILQ_INIT(&ep->lanes);
    STAILQ_INIT(&ep->unused);
    STAILQ_INIT(&ep->sends);
    STAILQ_INIT(&ep->recvs);
    STAILQ_INIT(&ep->reads);
    STAILQ_INIT(&ep->asked);
    for (uint32_t i = 0; i < args->posts_max; i++)
        STAILQ_INSERT_TAIL(&ep->unused, &ep->posts[i], link);
    for (size_t i = 0; i < args->n_recvs; i++) {
        struct lieni_stream_post *post = take(ep, &ep->unused);
        *post = (struct lieni_stream_post){.buf = args->recvs[i].buf,
                                           .len = args->recvs[i].len,
                                           .context = args->recvs[i].context};
        STAILQ_INSERT_TAIL(&ep->recvs, post, link);
    }
    ep->recvs_untold = (uint32_t)args->n_recvs;
    pthread_mutex_lock(&ep->prov->lock);
    TAILQ_INSERT_TAIL(&domain->eps, ep, link);
    domain->n_eps++;
    pthread_mutex_unlock(&ep->prov->lock);
    *out = ep;
    return 0;
}

void lieni_stream_ep_free(struct lieni_ep *ep)
{
    struct lieni_domain *domain = ep->domain;
    lieni_stream_untouch(ep);
    pthread_mutex_lock(&ep->prov->lock);
    TAILQ_REMOVE(&domain->eps, ep, link);
    domain->n_eps--;
    pthread_mutex_unlock(&ep->prov->lock);
    pthread_mutex_destroy(&ep->lock);
    free(ep->out.spill);
    free(ep->posts);
    free(ep);
}

// -- Posts ---------------------------------------------------------------------------------------------------------------------------

// Takes a post and the lock; 0, or an error without both.
static int post_begin(struct lieni_ep *ep, struct lieni_stream_post **post)
{
    pthread_mutex_lock(&ep->lock);
    int code = ep->state == LIENI_STREAM_UP ? 0 : LIEN_ESTATE;
    if (code == 0) {
        *post = take(ep, &ep->unused);
        code = *post ? 0 : LIEN_EAGAIN;
    }
    if (code != 0)
        pthread_mutex_unlock(&ep->lock);
    return code;
}

static int post_end(struct lieni_ep *ep)
{
    lieni_stream_touch(ep);
    pthread_mutex_unlock(&ep->lock); // a shutdown may follow at once: ep is not ours any more
    return 0;
}

int lieni_stream_post_send(struct lieni_ep *ep, const void *buf, size_t len, struct lieni_mr *mr,
                           uint64_t context)
{
    (void)mr;
    struct lieni_stream_post *post;
    if (len > UINT32_MAX)
        return LIEN_EMSGSIZE;
    int code = post_begin(ep, &post);
    if (code != 0)
        return code;
    *post = (struct lieni_stream_post){.data = buf, .len = len, .context = context};
    STAILQ_INSERT_TAIL(&ep->sends, post, link);
    return post_end(ep);
}

int lieni_stream_post_recv(struct lieni_ep *ep, void *buf, size_t len, struct lieni_mr *mr,
                           uint64_t context)
{
    (void)mr;
    struct lieni_stream_post *post;
    int code = post_begin(ep, &post);
    if (code != 0)
        return code;
    *post = (struct lieni_stream_post){.buf = buf, .len = len, .context = context};
    STAILQ_INSERT_TAIL(&ep->recvs, post, link);
    ep->recvs_untold++;
    return post_end(ep);
}

int lieni_stream_post_read(struct lieni_ep *ep, void *dst, size_t len, struct lieni_mr *mr,
                           uint64_t remote_addr, uint64_t remote_key, uint64_t context)
{
    (void)mr;
    struct lieni_stream_post *post;
    if (len > LIENI_STREAM_PIECE)
        return LIEN_EMSGSIZE;
    if (len == 0)
        return LIEN_EINVAL;
    int code = post_begin(ep, &post);
    if (code != 0)
        return code;
    if (ep->n_reads == LIENI_STREAM_READS) {
        STAILQ_INSERT_HEAD(&ep->unused, post, link);
        pthread_mutex_unlock(&ep->lock);
        return LIEN_EAGAIN;
    }
    ep->n_reads++;
    *post = (struct lieni_stream_post){.buf = dst,
                                       .len = len,
                                       .context = context,
                                       .remote_addr = remote_addr,
                                       .remote_key = remote_key};
    STAILQ_INSERT_TAIL(&ep->reads, post, link);
    return post_end(ep);
}

bool lieni_stream_flush_one(struct lieni_ep *ep, struct lieni_cqe *cqe)
{
    pthread_mutex_lock(&ep->lock);
    struct lieni_stream_posts *const queues[] = {&ep->sends, &ep->asked, &ep->reads, &ep->recvs};
    struct lieni_stream_post *post = NULL;
    for (size_t i = 0; ep->was_up && !post && i < sizeof queues / sizeof queues[0]; i++)
        post = take(ep, queues[i]);
    if (post) {
        *cqe = (struct lieni_cqe){.context = post->context, .status = LIEN_ECANCELED};
        STAILQ_INSERT_HEAD(&ep->unused, post, link);
    }
    pthread_mutex_unlock(&ep->lock);
    return post != NULL;
}

// -- The end -------------------------------------------------------------------------------------------------------------------------

static void say_goodbye(struct lieni_ep *ep)
{
    struct lieni_lane *lane = ep->lane;
    if (ep->prov->kind->carrier->flush(lane) == 0)
        ep->prov->kind->carrier->end(lane);
    if (lane->pipe.tls)
        lieni_tls_end(&lane->pipe);
    shutdown(lane->pipe.fd, SHUT_WR); // its result says nothing
}

void lieni_stream_shutdown(struct lieni_ep *ep)
{
    pthread_mutex_lock(&ep->lock);
    enum lieni_stream_state was = ep->state;
    if (was != LIENI_STREAM_CLOSING)
        lieni_stream_enter(ep, LIENI_STREAM_CLOSING);
    pthread_mutex_unlock(&ep->lock);
    if (was == LIENI_STREAM_CLOSING)
        return;
    lieni_stream_out_drop(ep);
    if (was == LIENI_STREAM_UP)
        say_goodbye(ep);
    struct lieni_lane *lane, *next;
    for (lane = TAILQ_FIRST(&ep->lanes); lane; lane = next) {
        next = TAILQ_NEXT(lane, link);
        if (lane != ep->lane)
            lieni_lane_close(lane);
    }
    lieni_stream_close_listener(ep);
    lieni_stream_touch(ep); // its posts are to be flushed
}

// What came and was not read would make the close a reset, which can take from the peer what we sent last.
static void discard(int fd)
{
    char nowhere[16384];
    for (unsigned i = 0; i < 256; i++) {
        if (recv(fd, nowhere, sizeof nowhere, MSG_DONTWAIT) <= 0)
            return;
    }
}

int lieni_stream_destroy(struct lieni_ep *ep, enum lieni_proof *proof, uint64_t *late)
{
    pthread_mutex_lock(&ep->lock);
    bool closing = ep->state == LIENI_STREAM_CLOSING;
    pthread_mutex_unlock(&ep->lock);
    if (!closing)
        return LIEN_ESTATE;
    if (ep->lane) {
        discard(ep->lane->pipe.fd);
        lieni_lane_close(ep->lane);
    }
    lieni_stream_ep_free(ep);
    *late = 0;
    *proof = LIENI_PROVEN;
    return 0;
}
