// SPDX-License-Identifier: Apache-2.0
//
// What goes to UCX for an endpoint, and what comes from it. Progress context; no lock of ours is held over a call of UCX's.
//
// Each message has a header of 48 bytes: the receiver's token, so that a stranger who got to the worker's port is not heard; a number that rises by one, so that what is lost or comes out of
// order ends the connection; how many receives the sender has posted in all, so that no message comes without one. What the peer says is checked here; what UCX itself does with bytes of the
// wire is not (docs/ucx.md).

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/ucx/ucx.h"

#define AM_ID       1u
#define ROUNDS      16u // of push and progress before the next endpoint has its turn
#define FLUSH_NS    (20 * UINT64_C(1000000))
#define LEAVE_NS    (2000 * UINT64_C(1000000)) // a busy machine may keep the peer from looking
#define DESCRIPTORS 16u // of a worker, and of UCX's own thread with the first
#define CREDIT_AT   8u  // receives that are told of at once, unless the peer has few left

enum {
    AT_TOKEN = 0,
    AT_KIND = 8,
    AT_NUMBER = 12,
    AT_RECVS = 16,
    AT_KEY = 24,
    AT_BASE = 32,
    AT_LEN = 40
};

void lieni_ucx_break(struct lieni_ep *ep, int code, int error)
{
    if (ep->broken)
        return;
    ep->broken = code;
    ep->broken_error = error;
}

static ucs_status_t fault(struct lieni_ep *ep, const char *why)
{
    if (!ep->broken)
        lieni_ucx_say(ep->prov, LIEN_LOG_WARN, LIEN_EPROTO, "%s: %s", ep->peer, why);
    lieni_ucx_break(ep, LIEN_EPROTO, 0);
    return UCS_OK;
}

// -- Out -------------------------------------------------------------------------------------------------------------------------------

static void make_head(struct lieni_ep *ep, uint8_t *head, enum lieni_ucx_kind kind)
{
    pthread_mutex_lock(&ep->lock);
    ep->recvs_told = ep->recvs_posted;
    pthread_mutex_unlock(&ep->lock);
    memset(head, 0, LIENI_UCX_HEAD);
    lieni_ucx_put64(head + AT_TOKEN, ep->peer_token);
    lieni_ucx_put32(head + AT_KIND, kind);
    lieni_ucx_put32(head + AT_NUMBER, ep->number_out++);
    lieni_ucx_put64(head + AT_RECVS, ep->recvs_told);
}

static ucs_status_ptr_t send_message(struct lieni_ep *ep, const uint8_t *head, const void *data,
                                     size_t len, ucp_send_nbx_callback_t done, void *user)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = done,
        .user_data = user,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    return lieni_ucx.ucp_am_send_nbx(ep->uep, AM_ID, head, LIENI_UCX_HEAD, data, len, &param);
}

static void control_over(struct lieni_ucx_control *control)
{
    control->busy = false;
    if (control->packed)
        lieni_ucx.ucp_rkey_buffer_release(control->packed);
    control->packed = NULL;
}

static void control_done(void *request, ucs_status_t status, void *user)
{
    struct lieni_ucx_control *control = user;
    lieni_ucx.ucp_request_free(request);
    control_over(control);
    if (status != UCS_OK)
        lieni_ucx_break(control->ep, lieni_ucx_code(status), status);
}

// True: the message of that kind can be made now.
static bool may_say(struct lieni_ep *ep, enum lieni_ucx_kind kind)
{
    return !ep->controls[kind].busy;
}

static void say(struct lieni_ep *ep, enum lieni_ucx_kind kind, uint64_t key, uint64_t base,
                uint64_t len, void *packed, size_t size)
{
    struct lieni_ucx_control *control = &ep->controls[kind];
    control->busy = true;
    control->packed = packed;
    make_head(ep, control->head, kind);
    lieni_ucx_put64(control->head + AT_KEY, key);
    lieni_ucx_put64(control->head + AT_BASE, base);
    lieni_ucx_put64(control->head + AT_LEN, len);
    ucs_status_ptr_t rc = send_message(ep, control->head, packed, size, control_done, control);
    if (UCS_PTR_IS_PTR(rc))
        return;
    control_over(control);
    if (UCS_PTR_STATUS(rc) != UCS_OK)
        lieni_ucx_break(ep, lieni_ucx_code(UCS_PTR_STATUS(rc)), UCS_PTR_STATUS(rc));
}

static void post_done(void *request, ucs_status_t status, void *user)
{
    struct lieni_ucx_post *post = user;
    lieni_ucx.ucp_request_free(request);
    if (post->key)
        post->key->flying--;
    lieni_ucx_over(post, status);
}

static bool push_send(struct lieni_ep *ep)
{
    if (ep->peer_used == ep->peer_recvs)
        return false;
    pthread_mutex_lock(&ep->lock);
    struct lieni_ucx_post *post = TAILQ_FIRST(&ep->sends);
    if (post) {
        TAILQ_REMOVE(&ep->sends, post, link);
        TAILQ_INSERT_TAIL(&ep->flying, post, link);
    }
    pthread_mutex_unlock(&ep->lock);
    if (!post)
        return false;
    ep->peer_used++;
    post->got = post->len;
    make_head(ep, post->head, LIENI_UCX_SEND);
    ucs_status_ptr_t rc = send_message(ep, post->head, post->data, post->len, post_done, post);
    if (!UCS_PTR_IS_PTR(rc))
        lieni_ucx_over(post, UCS_PTR_STATUS(rc));
    return true;
}

// -- Remote keys -----------------------------------------------------------------------------------------------------------------------

static void drop_key(struct lieni_ep *ep, struct lieni_ucx_key *key)
{
    TAILQ_REMOVE(&ep->keys, key, link);
    ep->n_keys--;
    lieni_ucx.ucp_rkey_destroy(key->rkey);
    free(key);
}

static struct lieni_ucx_key *find_key(struct lieni_ep *ep, uint64_t id)
{
    struct lieni_ucx_key *key;
    TAILQ_FOREACH(key, &ep->keys, link)
    {
        if (key->key == id && !key->gone)
            break;
    }
    if (key && key != TAILQ_FIRST(&ep->keys)) {
        TAILQ_REMOVE(&ep->keys, key, link);
        TAILQ_INSERT_HEAD(&ep->keys, key, link);
    }
    return key;
}

// Makes room for one more. False: each is in use.
static bool room_for_key(struct lieni_ep *ep)
{
    struct lieni_ucx_key *key, *before;
    for (key = TAILQ_LAST(&ep->keys, lieni_ucx_keys); key; key = before) {
        before = TAILQ_PREV(key, lieni_ucx_keys, link);
        if (key->flying == 0 && (key->gone || ep->n_keys >= LIENI_UCX_KEYS))
            drop_key(ep, key);
    }
    return ep->n_keys < LIENI_UCX_KEYS;
}

// The peer's answer to ASK. What is unpacked lies in memory of our own with zeros behind it.
static ucs_status_t told(struct lieni_ep *ep, const uint8_t *head, const void *data, size_t len)
{
    uint8_t packed[2 * LIENI_UCX_RKEY] = {0};
    struct lieni_ucx_key *key;
    if (lieni_ucx_get64(head + AT_KEY) != ep->asking || ep->asking == 0)
        return fault(ep, "a remote key that was not asked for");
    if (len == 0 || len > LIENI_UCX_RKEY)
        return fault(ep, "a remote key of no bytes, or of more than 256");
    key = calloc(1, sizeof *key);
    if (!key) {
        lieni_ucx_break(ep, LIEN_ENOMEM, 0);
        return UCS_OK;
    }
    memcpy(packed, data, len);
    key->key = ep->asking;
    key->base = lieni_ucx_get64(head + AT_BASE);
    key->len = lieni_ucx_get64(head + AT_LEN);
    ucs_status_t status = key->base + key->len < key->base
                              ? UCS_ERR_INVALID_PARAM
                              : lieni_ucx.ucp_ep_rkey_unpack(ep->uep, packed, &key->rkey);
    if (status != UCS_OK) {
        free(key);
        return fault(ep, "a remote key that cannot be unpacked");
    }
    ep->asking = 0;
    TAILQ_INSERT_HEAD(&ep->keys, key, link);
    ep->n_keys++;
    return UCS_OK;
}

// READs that never were UCX's end with LIEN_EIO: all of that key, or the first.
static void refuse_reads(struct lieni_ep *ep, uint64_t id, bool all)
{
    struct lieni_ucx_post *post, *next;
    pthread_mutex_lock(&ep->lock);
    for (post = TAILQ_FIRST(&ep->reads); post; post = next) {
        next = TAILQ_NEXT(post, link);
        if (post->remote_key != id)
            continue;
        TAILQ_REMOVE(&ep->reads, post, link);
        post->status = LIEN_EIO;
        TAILQ_INSERT_TAIL(&ep->done, post, link);
        if (!all)
            break;
    }
    pthread_mutex_unlock(&ep->lock);
}

static ucs_status_t refused(struct lieni_ep *ep, const uint8_t *head)
{
    if (lieni_ucx_get64(head + AT_KEY) != ep->asking || ep->asking == 0)
        return fault(ep, "a refusal of a remote key that was not asked for");
    refuse_reads(ep, ep->asking, true);
    ep->asking = 0;
    return UCS_OK;
}

static ucs_status_t gone(struct lieni_ep *ep, const uint8_t *head)
{
    struct lieni_ucx_key *key = find_key(ep, lieni_ucx_get64(head + AT_KEY));
    if (key)
        key->gone = true;
    return UCS_OK;
}

// The peer asks for a remote key: it gets it, and is remembered to have it.
static bool push_answer(struct lieni_ep *ep)
{
    if (ep->asked == 0 || !may_say(ep, LIENI_UCX_TELL) || !may_say(ep, LIENI_UCX_REFUSE))
        return false;
    struct lieni_domain *domain = ep->domain;
    struct lieni_ucx_told *note = calloc(1, sizeof *note);
    void *packed = NULL;
    size_t size = 0;
    uint64_t base = 0, len = 0;
    pthread_mutex_lock(&domain->lock);
    struct lieni_mr *mr = note ? lieni_ucx_find(domain, ep->asked) : NULL;
    // UCX under a lock of ours, here alone: packing calls nothing back.
    if (mr && lieni_ucx.ucp_rkey_pack(domain->net->context, mr->memh, &packed, &size) == UCS_OK) {
        *note = (struct lieni_ucx_told){.mr = mr, .ep = ep, .key = mr->key};
        TAILQ_INSERT_TAIL(&mr->told, note, mr_link);
        TAILQ_INSERT_TAIL(&ep->told, note, ep_link);
        base = (uintptr_t)mr->addr;
        len = mr->len;
    } else {
        mr = NULL;
    }
    pthread_mutex_unlock(&domain->lock);
    uint64_t key = ep->asked;
    ep->asked = 0;
    if (mr) {
        say(ep, LIENI_UCX_TELL, key, base, len, packed, size);
    } else {
        free(note);
        say(ep, LIENI_UCX_REFUSE, key, 0, 0, NULL, 0);
    }
    return true;
}

static bool push_gone(struct lieni_ep *ep)
{
    if (!may_say(ep, LIENI_UCX_GONE))
        return false;
    pthread_mutex_lock(&ep->domain->lock);
    struct lieni_ucx_told *note = TAILQ_FIRST(&ep->gone);
    if (note)
        TAILQ_REMOVE(&ep->gone, note, ep_link);
    pthread_mutex_unlock(&ep->domain->lock);
    if (!note)
        return false;
    say(ep, LIENI_UCX_GONE, note->key, 0, 0, NULL, 0);
    free(note);
    return true;
}

// -- READs -----------------------------------------------------------------------------------------------------------------------------

static void get(struct lieni_ep *ep, struct lieni_ucx_post *post, struct lieni_ucx_key *key)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.send = post_done,
        .user_data = post,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    post->key = key;
    key->flying++;
    ucs_status_ptr_t rc = lieni_ucx.ucp_get_nbx(ep->uep, post->buf, post->len,
                                                key->base + post->remote_addr, key->rkey, &param);
    if (UCS_PTR_IS_PTR(rc))
        return;
    key->flying--;
    post->key = NULL;
    lieni_ucx_over(post, UCS_PTR_STATUS(rc));
}

// The first READ, in turn: one without its remote key holds up those behind it.
static bool push_read(struct lieni_ep *ep)
{
    pthread_mutex_lock(&ep->lock);
    struct lieni_ucx_post *post = TAILQ_FIRST(&ep->reads);
    pthread_mutex_unlock(&ep->lock);
    if (!post || ep->asking != 0)
        return false;
    uint64_t id = post->remote_key;
    struct lieni_ucx_key *key = find_key(ep, id);
    if (!key) {
        if (!may_say(ep, LIENI_UCX_ASK) || !room_for_key(ep))
            return false;
        ep->asking = id;
        if (id == 0)
            refuse_reads(ep, id, true);
        else
            say(ep, LIENI_UCX_ASK, id, 0, 0, NULL, 0);
        return true;
    }
    if (post->remote_addr > key->len || post->len > key->len - post->remote_addr) {
        refuse_reads(ep, id, false);
        return true;
    }
    pthread_mutex_lock(&ep->lock);
    TAILQ_REMOVE(&ep->reads, post, link);
    TAILQ_INSERT_TAIL(&ep->flying, post, link);
    post->got = post->len;
    pthread_mutex_unlock(&ep->lock);
    get(ep, post, key);
    return true;
}

// -- In --------------------------------------------------------------------------------------------------------------------------------

static ucs_status_t received(struct lieni_ep *ep, const void *data, size_t len)
{
    pthread_mutex_lock(&ep->lock);
    struct lieni_ucx_post *post = TAILQ_FIRST(&ep->recvs);
    bool fits = post && len <= post->len;
    if (fits) {
        TAILQ_REMOVE(&ep->recvs, post, link);
        if (len > 0)
            memcpy(post->buf, data, len);
        post->got = len;
        TAILQ_INSERT_TAIL(&ep->done, post, link);
    }
    pthread_mutex_unlock(&ep->lock);
    ep->recvs_used++;
    return fits ? UCS_OK
                : fault(ep, post ? "a message longer than the receive that it has"
                                 : "a message without a receive");
}

static ucs_status_t asked(struct lieni_ep *ep, const uint8_t *head)
{
    if (ep->asked != 0)
        return fault(ep, "it asks for two remote keys at once");
    ep->asked = lieni_ucx_get64(head + AT_KEY);
    return ep->asked != 0 ? UCS_OK : fault(ep, "it asks for the remote key 0");
}

static ucs_status_t greeted(struct lieni_ep *ep)
{
    if (ep->heard)
        return fault(ep, "a second greeting");
    ep->heard = true;
    return UCS_OK;
}

static bool counts_right(struct lieni_ep *ep, const uint8_t *head)
{
    uint64_t recvs = lieni_ucx_get64(head + AT_RECVS);
    if (lieni_ucx_get32(head + AT_NUMBER) != ep->number_in++) {
        fault(ep, "a message out of order, or lost");
        return false;
    }
    if (recvs < ep->peer_recvs || recvs - ep->peer_used > LIENI_UCX_RECVS) {
        fault(ep, "it takes receives back, or has more than 1048576");
        return false;
    }
    ep->peer_recvs = recvs;
    return true;
}

static ucs_status_t on_message(void *arg, const void *header, size_t header_len, void *data,
                               size_t len, const ucp_am_recv_param_t *param)
{
    struct lieni_ep *ep = arg;
    const uint8_t *head = header;
    if (ep->broken)
        return UCS_OK;
    if (header_len != LIENI_UCX_HEAD || lieni_ucx_get64(head + AT_TOKEN) != ep->token) {
        lieni_ucx_say(ep->prov, LIEN_LOG_WARN, LIEN_EAUTH,
                      "%s: a message of a stranger's was dropped", ep->peer);
        return UCS_OK;
    }
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
        return fault(ep, "a message whose bytes are still to be fetched");
    if (!counts_right(ep, head))
        return UCS_OK;
    uint32_t kind = lieni_ucx_get32(head + AT_KIND);
    if (!ep->heard && kind != LIENI_UCX_GREET)
        return fault(ep, "no greeting");
    switch (kind) {
    case LIENI_UCX_GREET:
        return greeted(ep);
    case LIENI_UCX_SEND:
        return received(ep, data, len);
    case LIENI_UCX_CREDIT:
        return UCS_OK;
    case LIENI_UCX_ASK:
        return asked(ep, head);
    case LIENI_UCX_TELL:
        return told(ep, head, data, len);
    case LIENI_UCX_REFUSE:
        return refused(ep, head);
    case LIENI_UCX_GONE:
        return gone(ep, head);
    default: // a number of the wire
        return fault(ep, "a message of unknown kind");
    }
}

static void on_error(void *arg, ucp_ep_h uep, ucs_status_t status)
{
    struct lieni_ep *ep = arg;
    (void)uep;
    lieni_ucx_break(ep, lieni_ucx_code(status), status);
}

// -- Progress --------------------------------------------------------------------------------------------------------------------------

// Receives are told of in every message; alone when the peer may run out of them.
static bool push_credit(struct lieni_ep *ep)
{
    pthread_mutex_lock(&ep->lock);
    uint64_t untold = ep->recvs_posted - ep->recvs_told;
    pthread_mutex_unlock(&ep->lock);
    uint64_t left = ep->recvs_told - ep->recvs_used;
    if (untold == 0 || (untold < CREDIT_AT && left >= CREDIT_AT) || !may_say(ep, LIENI_UCX_CREDIT))
        return false;
    say(ep, LIENI_UCX_CREDIT, 0, 0, 0, NULL, 0);
    return true;
}

// The client greets first: each message of a side comes after it has its endpoint.
static bool push_greeting(struct lieni_ep *ep)
{
    if (ep->number_out != 0 || (ep->server && !ep->heard))
        return false;
    say(ep, LIENI_UCX_GREET, 0, 0, 0, NULL, 0);
    return true;
}

bool lieni_ucx_push(struct lieni_ep *ep)
{
    bool any = push_greeting(ep);
    if (!ep->heard)
        return any;
    any |= push_answer(ep);
    any |= push_gone(ep);
    while (!ep->broken && push_send(ep))
        any = true;
    while (!ep->broken && push_read(ep))
        any = true;
    any |= push_credit(ep);
    return any;
}

// -- The line --------------------------------------------------------------------------------------------------------------------------

// UCX 1.13 aborts the process when what it has to send on its own (an answer to a READ, its opening) meets a connection that is gone. So nobody ends a worker before the peer said over the line
// that it calls UCX no more, or was waited for; and each progress begins with a look at the line.

enum line {
    QUIET,
    BYE,
    GONE // it leaves with READs unanswered, or is dead
};

static enum line look(struct lieni_ep *ep)
{
    while (ep->line && ep->word_len < LIENI_UCX_WORD) {
        ssize_t n = recv(ep->line->fd, ep->word + ep->word_len, LIENI_UCX_WORD - ep->word_len,
                         MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return QUIET;
        if (n <= 0)
            return GONE;
        ep->word_len += (size_t)n;
    }
    return ep->line && ep->word[0] == LIENI_UCX_BYE ? BYE : GONE;
}

// Whether nothing is to be had from UCX any more. A peer that said BYE is heard to its last message.
static bool peer_left(struct lieni_ep *ep, enum line line)
{
    if (line == QUIET || (line == BYE && ep->number_in != lieni_ucx_get32(ep->word + 1)))
        return false;
    lieni_ucx_break(ep, LIEN_ECLOSED, 0);
    return true;
}

bool lieni_ucx_turn(struct lieni_ep *ep)
{
    for (unsigned round = 0; round < ROUNDS && !ep->broken; round++) {
        enum line line = look(ep);
        if (peer_left(ep, line))
            return true;
        bool pushed = line == QUIET && lieni_ucx_push(ep);
        unsigned n = lieni_ucx.ucp_worker_progress(ep->worker);
        if (peer_left(ep, line))
            return true;
        if (n == 0 && !pushed)
            return false;
    }
    return true;
}

// -- The worker ------------------------------------------------------------------------------------------------------------------------

// UCX aborts on its way back from a descriptor that it did not get, so it is asked only where there are enough.
static bool starved(char *text, size_t size)
{
    struct rlimit limit;
    int fd = open("/", O_PATH | O_CLOEXEC); // gets the lowest number that is free
    if (fd >= 0)
        close(fd);
    if (fd >= 0 &&
        (getrlimit(RLIMIT_NOFILE, &limit) != 0 || (rlim_t)fd + DESCRIPTORS <= limit.rlim_cur))
        return false;
    lieni_limits_note(EMFILE, text, size);
    return true;
}

int lieni_ucx_worker(struct lieni_ep *ep)
{
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
        .flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK,
    };
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_message,
        .arg = ep,
    };
    char hint[LIENI_LIMITS_NOTE];
    if (starved(hint, sizeof hint))
        return lieni_ucx_say(ep->prov, LIEN_LOG_ERROR, LIEN_ESYS,
                             "%s: making a worker takes up to %u descriptors%s", ep->peer,
                             DESCRIPTORS, hint);
    sigset_t all, before; // UCX may start a thread: the host's signals are not for it
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ucs_status_t status = lieni_ucx.ucp_worker_create(ep->domain->net->context, &params,
                                                      &ep->worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status == UCS_OK)
        status = lieni_ucx.ucp_worker_set_am_recv_handler(ep->worker, &handler);
    if (status == UCS_OK)
        status = lieni_ucx.ucp_worker_get_efd(ep->worker, &ep->worker_fd);
    if (status == UCS_OK)
        return lieni_ucx_watch(ep->prov, ep->worker_fd, false, &ep->worker_watch);
    const char *why = lieni_ucx_said();
    return lieni_ucx_say(ep->prov, LIEN_LOG_ERROR, lieni_ucx_code(status),
                         "%s: making a worker: %s%s%s", ep->peer,
                         lieni_ucx.ucs_status_string(status), why[0] ? ": " : "", why);
}

int lieni_ucx_peer(struct lieni_ep *ep, const void *address)
{
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = ep},
    };
    ucs_status_t status = lieni_ucx.ucp_ep_create(ep->worker, &params, &ep->uep);
    if (status == UCS_OK)
        return 0;
    const char *why = lieni_ucx_said();
    return lieni_ucx_say(ep->prov, LIEN_LOG_WARN, lieni_ucx_code(status),
                         "%s: making an endpoint: %s%s%s", ep->peer,
                         lieni_ucx.ucs_status_string(status), why[0] ? ": " : "", why);
}

// What was sent reaches the kernel, if that takes no longer than FLUSH_NS.
static void flush(struct lieni_ep *ep)
{
    const struct lieni_env *env = ep->prov->env;
    const ucp_request_param_t param = {0};
    uint64_t until = env->now(env->self) + FLUSH_NS;
    void *request = lieni_ucx.ucp_ep_flush_nbx(ep->uep, &param);
    if (!UCS_PTR_IS_PTR(request))
        return;
    while (!ep->broken && !peer_left(ep, look(ep)) &&
           lieni_ucx.ucp_request_check_status(request) == UCS_INPROGRESS &&
           env->now(env->self) < until) {
        struct pollfd fd = {.fd = ep->worker_fd, .events = POLLIN};
        if (lieni_ucx.ucp_worker_progress(ep->worker) == 0 &&
            lieni_ucx.ucp_worker_arm(ep->worker) == UCS_OK)
            poll(&fd, 1, 1);
    }
    lieni_ucx.ucp_request_free(request);
}

static bool reads_fly(struct lieni_ep *ep)
{
    struct lieni_ucx_post *post;
    pthread_mutex_lock(&ep->lock);
    TAILQ_FOREACH(post, &ep->flying, link)
    {
        if (post->read)
            break;
    }
    pthread_mutex_unlock(&ep->lock);
    return post != NULL;
}

void lieni_ucx_quiet(struct lieni_ep *ep)
{
    if (ep->worker_fd >= 0)
        epoll_ctl(ep->prov->epfd, EPOLL_CTL_DEL, ep->worker_fd, NULL);
    ep->worker_fd = -1;
    if (ep->line)
        shutdown(ep->line->fd, SHUT_WR); // its result says nothing
}

static void worker_end(struct lieni_ep *ep)
{
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    struct lieni_ucx_key *key;
    if (ep->uep) {
        void *request = lieni_ucx.ucp_ep_close_nbx(ep->uep, &force);
        if (UCS_PTR_IS_PTR(request))
            lieni_ucx.ucp_request_free(request);
    }
    TAILQ_FOREACH(key, &ep->keys, link)
    {
        lieni_ucx.ucp_rkey_destroy(key->rkey); // part of the worker's memory
    }
    lieni_ucx_quiet(ep);
    lieni_ucx.ucp_worker_destroy(ep->worker); // calls back what still flies; and with it worker_fd
    while ((key = TAILQ_FIRST(&ep->keys))) {
        TAILQ_REMOVE(&ep->keys, key, link);
        free(key);
    }
    ep->worker = NULL;
    ep->uep = NULL;
    for (unsigned i = 0; i < LIENI_UCX_KINDS; i++)
        control_over(&ep->controls[i]);
}

void lieni_ucx_leave(struct lieni_ep *ep, bool flush_first)
{
    const struct lieni_env *env = ep->prov->env;
    uint8_t word[LIENI_UCX_WORD];
    if (ep->uep && flush_first)
        flush(ep);
    ep->cancelled = true;
    bool clean = flush_first && !ep->broken && !reads_fly(ep);
    word[0] = clean ? LIENI_UCX_BYE : LIENI_UCX_LEAVE;
    lieni_ucx_put32(word + 1, ep->number_out);
    if (ep->line)
        (void)!send(ep->line->fd, word, sizeof word, MSG_NOSIGNAL | MSG_DONTWAIT);
    lieni_ucx_quiet(ep);
    lieni_ucx_close_lanes(ep, !ep->uep);
    ep->leave_until = env->now(env->self) + LEAVE_NS;
}

bool lieni_ucx_may_end(struct lieni_ep *ep)
{
    const struct lieni_env *env = ep->prov->env;
    return !ep->worker || look(ep) != QUIET || env->now(env->self) >= ep->leave_until;
}

void lieni_ucx_end(struct lieni_ep *ep)
{
    if (ep->worker)
        worker_end(ep);
    lieni_ucx_close_lanes(ep, true);
    lieni_ucx_untouch(ep);
    ep->ended = true;
}
