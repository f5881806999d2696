// SPDX-License-Identifier: Apache-2.0
//
// What an endpoint writes: batches. A batch has the small frames that are due (receives told, READs asked, refusals), and at its end at most one frame with bytes in somebody's memory: a
// message, or a chunk of an answer, in turns. Those bytes go to the carrier from where they are. A batch is built when the one before is with the kernel, so nothing queues up here but
// posts, which are bounded, and the peer's READs, which are too: a peer that does not read stalls itself alone.
//
// A region's bytes are looked up anew for each chunk, by key, and touched under domain->lock only.

#include <stdlib.h>
#include <string.h>

#include "provider/stream/stream.h"

// -- Frames --------------------------------------------------------------------------------------------------------------------------

void lieni_stream_head(uint8_t *to, enum lieni_stream_kind kind, size_t len, uint32_t number)
{
    to[0] = (uint8_t)kind;
    to[1] = to[2] = to[3] = 0;
    lieni_put32(to + 4, (uint32_t)len);
    lieni_put32(to + 8, number);
}

static size_t room(const struct lieni_stream_out *out)
{
    return sizeof out->head - out->head_len;
}

// A frame's head in the batch, with `body` bytes right behind it that the caller fills: there is room for both.
static uint8_t *append(struct lieni_stream_out *out, enum lieni_stream_kind kind, size_t len,
                       uint32_t number, size_t body)
{
    uint8_t *at = out->head + out->head_len;
    lieni_stream_head(at, kind, len, number);
    out->head_len += LIENI_STREAM_HEAD + body;
    return at + LIENI_STREAM_HEAD;
}

void lieni_stream_hello(struct lieni_ep *ep)
{
    pthread_mutex_lock(&ep->lock);
    uint32_t recvs = ep->recvs_untold;
    ep->recvs_untold = 0;
    pthread_mutex_unlock(&ep->lock);
    uint8_t *body = append(&ep->out, LIENI_STREAM_HELLO, LIENI_CM_DATA, recvs, LIENI_CM_DATA);
    memcpy(body, ep->send_data, LIENI_CM_DATA);
    ep->out.state = LIENI_OUT_WRITING;
}

// -- Building ------------------------------------------------------------------------------------------------------------------------

#define READ_BODY    20u
#define REFUSED_BODY 4u
// Kept free for the frame with a body elsewhere.
#define LAST_HEAD LIENI_STREAM_HEAD

// ep->lock.
static void add_requests(struct lieni_ep *ep)
{
    struct lieni_stream_out *out = &ep->out;
    struct lieni_stream_post *post;
    if (ep->recvs_untold > 0) {
        append(out, LIENI_STREAM_RECVS_KIND, 0, ep->recvs_untold, 0);
        ep->recvs_untold = 0;
    }
    while (room(out) >= LIENI_STREAM_HEAD + READ_BODY + LAST_HEAD &&
           (post = STAILQ_FIRST(&ep->reads))) {
        post->number = ++ep->next_number;
        uint8_t *body = append(out, LIENI_STREAM_READ, READ_BODY, post->number, READ_BODY);
        lieni_put64(body, post->remote_key);
        lieni_put64(body + 8, post->remote_addr);
        lieni_put32(body + 16, (uint32_t)post->len);
        STAILQ_REMOVE_HEAD(&ep->reads, link);
        STAILQ_INSERT_TAIL(&ep->asked, post, link);
    }
}

static void served(struct lieni_ep *ep)
{
    ep->serve_at = (ep->serve_at + 1) % LIENI_STREAM_READS;
    ep->n_serves--;
}

// domain->lock. Refuses what has no region any more; true: the first that is left has one, and bytes to be written.
static bool add_refusals(struct lieni_ep *ep, struct lieni_mr **mr)
{
    struct lieni_stream_out *out = &ep->out;
    while (ep->n_serves > 0) {
        const struct lieni_stream_serve *serve = &ep->serves[ep->serve_at];
        *mr = lieni_stream_find(ep->domain, serve->key, serve->addr, serve->len);
        if (*mr)
            return true;
        if (room(out) < LIENI_STREAM_HEAD + REFUSED_BODY + LAST_HEAD)
            return false;
        lieni_put32(append(out, LIENI_STREAM_REFUSED, REFUSED_BODY, serve->number, REFUSED_BODY),
                    1);
        served(ep);
    }
    return false;
}

// domain->lock.
static void add_data(struct lieni_ep *ep, struct lieni_mr *mr)
{
    struct lieni_stream_out *out = &ep->out;
    struct lieni_stream_serve *serve = &ep->serves[ep->serve_at];
    uint32_t left = serve->len - serve->done;
    uint32_t len = left < LIENI_STREAM_CHUNK ? left : LIENI_STREAM_CHUNK;
    append(out, LIENI_STREAM_DATA, len, serve->number, 0);
    out->body = mr->addr + serve->addr + serve->done;
    out->body_left = len;
    out->mr = mr;
    TAILQ_INSERT_TAIL(&mr->users, ep, user_link);
    out->data_next = false;
    serve->done += len;
    if (serve->done == serve->len)
        served(ep);
}

// ep->lock.
static void add_send(struct lieni_ep *ep, struct lieni_stream_post *post)
{
    struct lieni_stream_out *out = &ep->out;
    append(out, LIENI_STREAM_SEND, post->len, 0, 0);
    out->body = post->data;
    out->body_left = post->len;
    out->send = post; // and stays the first of ep->sends
    out->data_next = true;
    ep->peer_recvs--;
}

// The next batch. False: there is nothing to write.
static bool build(struct lieni_ep *ep)
{
    struct lieni_stream_out *out = &ep->out;
    struct lieni_mr *mr = NULL;
    out->head_at = out->head_len = 0;
    pthread_mutex_lock(&ep->lock);
    add_requests(ep);
    struct lieni_stream_post *send = ep->peer_recvs > 0 ? STAILQ_FIRST(&ep->sends) : NULL;
    pthread_mutex_lock(&ep->domain->lock);
    bool answer = add_refusals(ep, &mr);
    if (answer && (out->data_next || !send))
        add_data(ep, mr);
    pthread_mutex_unlock(&ep->domain->lock);
    if (send && !(answer && out->body_left > 0))
        add_send(ep, send);
    pthread_mutex_unlock(&ep->lock);
    if (out->head_len == 0)
        return false;
    out->state = LIENI_OUT_WRITING;
    return true;
}

// -- Writing -------------------------------------------------------------------------------------------------------------------------

// domain->lock.
static void forget_region(struct lieni_ep *ep)
{
    struct lieni_stream_out *out = &ep->out;
    if (out->mr)
        TAILQ_REMOVE(&out->mr->users, ep, user_link);
    out->mr = NULL;
    free(out->spill);
    out->spill = NULL;
}

void lieni_stream_out_drop(struct lieni_ep *ep)
{
    pthread_mutex_lock(&ep->domain->lock);
    forget_region(ep);
    ep->out.body = NULL;
    ep->out.body_left = 0;
    pthread_mutex_unlock(&ep->domain->lock);
}

// domain->lock, since the body may be a region's. As the carrier's write.
static int64_t write_some(struct lieni_ep *ep)
{
    struct lieni_stream_out *out = &ep->out;
    struct iovec iov[2];
    int n = 0;
    if (out->lost)
        return LIEN_ENOMEM;
    if (out->head_at < out->head_len)
        iov[n++] = (struct iovec){.iov_base = out->head + out->head_at,
                                  .iov_len = out->head_len - out->head_at};
    if (out->body_left > 0) {
        union {
            const void *from;
            void *iov; // written from only
        } body = {.from = out->body};
        iov[n++] = (struct iovec){.iov_base = body.iov, .iov_len = out->body_left};
    }
    if (n == 0)
        return 0;
    int64_t rc = ep->prov->kind->carrier->write(ep->lane, iov, n);
    if (rc <= 0)
        return rc;
    size_t of_head = out->head_len - out->head_at, taken = (size_t)rc;
    if (of_head > taken)
        of_head = taken;
    out->head_at += of_head;
    if (out->body_left > 0) {
        out->body += taken - of_head;
        out->body_left -= taken - of_head;
    }
    if (out->body_left == 0)
        forget_region(ep);
    return rc;
}

static enum lieni_step stopped(struct lieni_ep *ep, int64_t rc, int *status)
{
    if (rc == LIEN_EAGAIN)
        return LIENI_STEP_STOP;
    *status = (int)rc;
    if (rc == LIEN_EPROTO)
        lieni_stream_say(ep->prov, LIEN_LOG_WARN, LIEN_EPROTO, "%s: %s", ep->peer, ep->lane->why);
    return LIENI_STEP_DOWN;
}

static enum lieni_step write_step(struct lieni_ep *ep, size_t *bytes, int *status)
{
    pthread_mutex_lock(&ep->domain->lock);
    int64_t rc = write_some(ep);
    bool all = ep->out.head_at == ep->out.head_len && ep->out.body_left == 0;
    pthread_mutex_unlock(&ep->domain->lock);
    if (rc < 0)
        return stopped(ep, rc, status);
    *bytes += (size_t)rc;
    if (all)
        ep->out.state = LIENI_OUT_FLUSHING;
    return LIENI_STEP_MORE;
}

// The kernel has the batch: its message is done.
static enum lieni_step batch_over(struct lieni_ep *ep, struct lieni_cqe *cqe)
{
    struct lieni_stream_post *post = ep->out.send;
    ep->out.state = LIENI_OUT_IDLE;
    ep->out.send = NULL;
    if (!post)
        return LIENI_STEP_MORE;
    pthread_mutex_lock(&ep->lock);
    *cqe = (struct lieni_cqe){.context = post->context, .len = post->len};
    STAILQ_REMOVE_HEAD(&ep->sends, link);
    STAILQ_INSERT_HEAD(&ep->unused, post, link);
    pthread_mutex_unlock(&ep->lock);
    return LIENI_STEP_ENTRY;
}

enum lieni_step lieni_stream_out(struct lieni_ep *ep, struct lieni_cqe *cqe, size_t *bytes,
                                 int *status)
{
    int rc;
    switch (ep->out.state) {
    case LIENI_OUT_IDLE:
        if (build(ep))
            return LIENI_STEP_MORE;
        rc = ep->prov->kind->carrier->flush(ep->lane); // what it has of its own
        return rc == 0 ? LIENI_STEP_STOP : stopped(ep, rc, status);
    case LIENI_OUT_WRITING:
        return write_step(ep, bytes, status);
    case LIENI_OUT_FLUSHING:
        rc = ep->prov->kind->carrier->flush(ep->lane);
        return rc == 0 ? batch_over(ep, cqe) : stopped(ep, rc, status);
    }
    return LIENI_STEP_STOP;
}
