// SPDX-License-Identifier: Apache-2.0
//
// What an endpoint reads: frames, of a peer that may say anything. A frame is judged by its head before a byte of its body is read, and a body goes to one place: a message into the first
// receive, an answer into the first READ that was asked, all others into a few bytes here. The first fault ends the connection and is said, with the field.

#include <stdlib.h>
#include <string.h>

#include "provider/stream/stream.h"

#define READ_BODY    20u
#define REFUSED_BODY 4u

static enum lieni_step fault(struct lieni_ep *ep, int *status, const char *what)
{
    const struct lieni_stream_in *in = &ep->in;
    *status = lieni_stream_say(ep->prov, LIEN_LOG_WARN, LIEN_EPROTO,
                               "%s sent a frame of kind %u, length %u, number %u: %s", ep->peer,
                               in->kind, in->len, in->number, what);
    return LIENI_STEP_DOWN;
}

static void next_frame(struct lieni_stream_in *in)
{
    in->state = LIENI_IN_HEAD;
    in->got = 0;
    in->want = LIENI_STREAM_HEAD;
}

static struct lieni_stream_post *first(struct lieni_ep *ep, const struct lieni_stream_posts *queue)
{
    pthread_mutex_lock(&ep->lock);
    struct lieni_stream_post *post = STAILQ_FIRST(queue);
    pthread_mutex_unlock(&ep->lock);
    return post;
}

// -- Ends of posts -------------------------------------------------------------------------------------------------------------------

static enum lieni_step received(struct lieni_ep *ep, struct lieni_stream_post *post,
                                struct lieni_cqe *cqe)
{
    pthread_mutex_lock(&ep->lock);
    *cqe = (struct lieni_cqe){.context = post->context, .len = post->done};
    STAILQ_REMOVE_HEAD(&ep->recvs, link);
    STAILQ_INSERT_HEAD(&ep->unused, post, link);
    pthread_mutex_unlock(&ep->lock);
    next_frame(&ep->in);
    return LIENI_STEP_ENTRY;
}

static enum lieni_step read_over(struct lieni_ep *ep, struct lieni_stream_post *post, int status,
                                 struct lieni_cqe *cqe)
{
    pthread_mutex_lock(&ep->lock);
    *cqe = (struct lieni_cqe){.context = post->context, .status = status, .len = post->done};
    STAILQ_REMOVE_HEAD(&ep->asked, link);
    STAILQ_INSERT_HEAD(&ep->unused, post, link);
    ep->n_reads--;
    pthread_mutex_unlock(&ep->lock);
    next_frame(&ep->in);
    return LIENI_STEP_ENTRY;
}

// -- Heads ---------------------------------------------------------------------------------------------------------------------------

static enum lieni_step head_of_send(struct lieni_ep *ep, struct lieni_cqe *cqe, int *status)
{
    struct lieni_stream_in *in = &ep->in;
    struct lieni_stream_post *post = first(ep, &ep->recvs);
    if (in->number != 0)
        return fault(ep, status, "the number must be 0");
    if (!post)
        return fault(ep, status, "no receive was told of that is left for it");
    if (in->len > post->len)
        return fault(ep, status, "it is longer than the receive");
    post->done = 0;
    in->want = in->len;
    in->state = LIENI_IN_SEND;
    return in->len == 0 ? received(ep, post, cqe) : LIENI_STEP_MORE;
}

static enum lieni_step head_of_recvs(struct lieni_ep *ep, int *status)
{
    struct lieni_stream_in *in = &ep->in;
    if (in->len != 0)
        return fault(ep, status, "the length must be 0");
    if (in->number == 0 || in->number > LIENI_STREAM_RECVS - ep->peer_recvs)
        return fault(ep, status, "no receives, or more than 1048576 in all");
    ep->peer_recvs += in->number;
    next_frame(in);
    return LIENI_STEP_MORE;
}

static enum lieni_step head_of_data(struct lieni_ep *ep, int *status)
{
    struct lieni_stream_in *in = &ep->in;
    const struct lieni_stream_post *post = first(ep, &ep->asked);
    if (!post || post->number != in->number)
        return fault(ep, status, "no READ of that number is the next to be answered");
    if (in->len == 0 || in->len > LIENI_STREAM_CHUNK || in->len > post->len - post->done)
        return fault(ep, status, "no bytes, above 65536, or more than are left of the READ");
    in->want = in->len;
    in->state = LIENI_IN_DATA;
    return LIENI_STEP_MORE;
}

static enum lieni_step small_body(struct lieni_ep *ep, uint32_t len, int *status)
{
    struct lieni_stream_in *in = &ep->in;
    if (in->len != len)
        return fault(ep, status, "its kind has another length");
    in->want = len;
    in->state = LIENI_IN_BODY;
    return LIENI_STEP_MORE;
}

static enum lieni_step judge_head(struct lieni_ep *ep, struct lieni_cqe *cqe, int *status)
{
    struct lieni_stream_in *in = &ep->in;
    in->kind = in->bytes[0];
    in->len = lieni_get32(in->bytes + 4);
    in->number = lieni_get32(in->bytes + 8);
    in->got = 0;
    if (in->bytes[1] != 0 || in->bytes[2] != 0 || in->bytes[3] != 0)
        return fault(ep, status, "bytes 1 to 3 are not 0");
    switch (in->kind) { // a number of the peer's, not one of ours
    case LIENI_STREAM_SEND:
        return head_of_send(ep, cqe, status);
    case LIENI_STREAM_RECVS_KIND:
        return head_of_recvs(ep, status);
    case LIENI_STREAM_READ:
        if (ep->n_serves == LIENI_STREAM_READS)
            return fault(ep, status, "256 READs wait for their answers already");
        return small_body(ep, READ_BODY, status);
    case LIENI_STREAM_DATA:
        return head_of_data(ep, status);
    case LIENI_STREAM_REFUSED:
        return small_body(ep, REFUSED_BODY, status);
    default:
        return fault(ep, status,
                     in->kind == LIENI_STREAM_HELLO ? "a second HELLO" : "unknown kind");
    }
}

// -- Bodies --------------------------------------------------------------------------------------------------------------------------

static enum lieni_step asked(struct lieni_ep *ep, int *status)
{
    const uint8_t *body = ep->in.bytes;
    uint32_t len = lieni_get32(body + 16);
    if (len == 0 || len > LIENI_STREAM_PIECE)
        return fault(ep, status, "a READ of no bytes, or of more than 1048576");
    ep->serves[(ep->serve_at + ep->n_serves) % LIENI_STREAM_READS] = (struct lieni_stream_serve){
        .key = lieni_get64(body),
        .addr = lieni_get64(body + 8),
        .len = len,
        .number = ep->in.number};
    ep->n_serves++;
    next_frame(&ep->in);
    return LIENI_STEP_MORE;
}

static enum lieni_step refused(struct lieni_ep *ep, struct lieni_cqe *cqe, int *status)
{
    struct lieni_stream_post *post = first(ep, &ep->asked);
    if (!post || post->number != ep->in.number)
        return fault(ep, status, "no READ of that number is the next to be answered");
    if (lieni_get32(ep->in.bytes) != 1)
        return fault(ep, status, "unknown reason");
    return read_over(ep, post, LIEN_EIO, cqe);
}

static enum lieni_step judge_body(struct lieni_ep *ep, struct lieni_cqe *cqe, int *status)
{
    return ep->in.kind == LIENI_STREAM_READ ? asked(ep, status) : refused(ep, cqe, status);
}

static enum lieni_step stopped(struct lieni_ep *ep, int64_t rc, size_t *bytes, int *status)
{
    if (rc == LIEN_EAGAIN && ep->lane->again) {
        ep->lane->again = false;
        *bytes += LIENI_STREAM_TURN; // its turn is over
        return LIENI_STEP_MORE;
    }
    if (rc == LIEN_EAGAIN)
        return LIENI_STEP_STOP;
    *status = (int)rc;
    if (rc == LIEN_EPROTO)
        lieni_stream_say(ep->prov, LIEN_LOG_WARN, LIEN_EPROTO, "%s: %s", ep->peer, ep->lane->why);
    return LIENI_STEP_DOWN;
}

static enum lieni_step into_bytes(struct lieni_ep *ep, struct lieni_cqe *cqe, size_t *bytes,
                                  int *status)
{
    struct lieni_stream_in *in = &ep->in;
    int64_t rc = lieni_lane_read(ep->lane, in->bytes + in->got, in->want - in->got);
    if (rc < 0)
        return stopped(ep, rc, bytes, status);
    *bytes += (size_t)rc;
    in->got += (size_t)rc;
    if (in->got < in->want)
        return LIENI_STEP_MORE;
    return in->state == LIENI_IN_HEAD ? judge_head(ep, cqe, status) : judge_body(ep, cqe, status);
}

static enum lieni_step into_memory(struct lieni_ep *ep, struct lieni_cqe *cqe, size_t *bytes,
                                   int *status)
{
    struct lieni_stream_in *in = &ep->in;
    bool data = in->state == LIENI_IN_DATA;
    struct lieni_stream_post *post = first(ep, data ? &ep->asked : &ep->recvs);
    int64_t rc = lieni_lane_read(ep->lane, post->buf + post->done, in->want);
    if (rc < 0)
        return stopped(ep, rc, bytes, status);
    *bytes += (size_t)rc;
    post->done += (size_t)rc;
    in->want -= (size_t)rc;
    if (in->want > 0)
        return LIENI_STEP_MORE;
    if (!data)
        return received(ep, post, cqe);
    if (post->done == post->len)
        return read_over(ep, post, 0, cqe);
    next_frame(in);
    return LIENI_STEP_MORE;
}

enum lieni_step lieni_stream_in(struct lieni_ep *ep, struct lieni_cqe *cqe, size_t *bytes,
                                int *status)
{
    switch (ep->in.state) {
    case LIENI_IN_HEAD:
    case LIENI_IN_BODY:
        return into_bytes(ep, cqe, bytes, status);
    case LIENI_IN_SEND:
    case LIENI_IN_DATA:
        return into_memory(ep, cqe, bytes, status);
    }
    return LIENI_STEP_STOP;
}
