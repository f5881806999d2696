// SPDX-License-Identifier: Apache-2.0
//
// Links: see state.h. A link is named by its client (grpc/link) and from then on found by its nonce. The handle of the connection is closed when it is dead and no thread is inside it; its memory goes
// after on_closed, when no call names it any more.

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "state.h"

// Nonces that messages may still name although their link is gone. One that falls out could only matter to a message that was under way during the loss of a thousand connections.
#define MET_MAX 1024

static struct link *links;
static struct nonce met[MET_MAX];
static size_t met_count;

static const uint8_t may_enter[] = {
    [LINK_OPENING] = 1 << LINK_READY | 1 << LINK_DEAD,
    [LINK_READY] = 1 << LINK_DEAD,
    [LINK_DEAD] = 1 << LINK_CLOSED,
    [LINK_CLOSED] = 0,
};

static void set_state(struct link *link, enum link_state state)
{
    if (!(may_enter[link->state] >> state & 1))
        abort();
    link->state = state;
}

uint64_t process_instance(void)
{
    static uint64_t instance; // with the lock
    while (instance == 0)
        if (getrandom(&instance, sizeof instance, 0) != (ssize_t)sizeof instance)
            abort(); // cannot happen for 8 bytes once the kernel is up
    return instance;
}

// -- Nonces ----------------------------------------------------------------------------------------------------------------------------

static bool same(const struct nonce *a, const struct nonce *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

struct link *link_find(const struct nonce *nonce, bool server)
{
    struct link *link = links;
    while (link &&
           !(link->state == LINK_READY && !link->server == !server && same(&link->nonce, nonce)))
        link = link->next;
    return link;
}

bool nonce_met(const struct nonce *nonce)
{
    if (link_find(nonce, true) || link_find(nonce, false))
        return true;
    for (size_t i = 0; i < met_count && i < MET_MAX; i++)
        if (same(&met[i], nonce))
            return true;
    return false;
}

void nonce_meet(const struct nonce *nonce)
{
    if (!nonce_met(nonce))
        met[met_count++ % MET_MAX] = *nonce;
}

// -- Life ------------------------------------------------------------------------------------------------------------------------------

static struct link *link_new(void)
{
    struct link *link = calloc(1, sizeof *link);
    if (!link)
        return NULL;
    link->refs = 1; // until on_closed
    link->next = links;
    links = link;
    return link;
}

void link_hold(struct link *link)
{
    link->refs++;
}

void link_put(struct link *link)
{
    if (--link->refs > 0)
        return;
    struct link **at = &links;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    if (link->server)
        server_put(link->server);
    free(link);
}

bool link_enter(struct link *link)
{
    if (link->state != LINK_READY)
        return false;
    link->users++;
    return true;
}

static void close_idle(struct link *link)
{
    if (link->state != LINK_DEAD || link->users > 0)
        return;
    set_state(link, LINK_CLOSED);
    lien_conn_close(&link->conn);
}

void link_leave(struct link *link)
{
    link->users--;
    close_idle(link);
}

void link_kill(struct link *link)
{
    if (link->state == LINK_DEAD || link->state == LINK_CLOSED)
        return;
    bool ready = link->state == LINK_READY;
    set_state(link, LINK_DEAD);
    if (ready)
        nonce_meet(&link->nonce);
    struct peer *peer = link->peer;
    link->peer = NULL;
    ledger_link_dead(link);
    if (peer)
        peer_lost(peer, ready);
    close_idle(link);
}

bool link_any(void)
{
    state_lock();
    bool any = links != NULL;
    state_unlock();
    return any;
}

unsigned link_kill_all(void)
{
    unsigned users = 0;
    state_lock();
    for (struct link *link = links; link; link = link->next) {
        link_kill(link);
        users += link->users;
    }
    state_unlock();
    return users;
}

// -- Callbacks of Lien -----------------------------------------------------------------------------------------------------------------

static void on_lost(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    struct link *link = arg;
    state_lock();
    bool ready = link->state == LINK_READY;
    link_kill(link);
    state_unlock();
    stat_add(STAT_losses, ready);
    if (ready && conf.stats)
        say("link lost: %s", lien_strerror(status));
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    (void)status;
    state_lock();
    link_put(arg);
    state_unlock();
}

static void on_writable(lien_conn *conn, void *arg)
{
    (void)conn;
    state_lock();
    ledger_pump(arg);
    state_unlock();
}

static void on_named(void *arg, int status, lien_msg *reply)
{
    struct link *link = arg;
    const void *bytes = NULL;
    size_t len = 0;
    bool ready = false;
    char address[sizeof link->peer->address];
    if (reply)
        lien_msg_head(reply, &bytes, &len);
    state_lock();
    if (status != 0 || len != LINKED_BYTES) {
        link_kill(link);
    } else if (link->state == LINK_OPENING) {
        link->instance = frame_get_u64(bytes);
        link->limit = frame_get_u64((const uint8_t *)bytes + 8);
        set_state(link, LINK_READY);
        link->peer->wait = 0;
        ready = true;
        memcpy(address, link->peer->address, sizeof address);
        stat_add(STAT_connects, 1);
    }
    link_put(link);
    state_unlock();
    lien_msg_free(&reply);
    if (ready && conf.stats)
        say("linked to %s", address);
}

static void on_open(lien_conn *conn, int status, void *arg)
{
    struct link *link = arg;
    uint8_t args[LINK_BYTES];
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.on_done = on_named;
    opts.arg = link;
    state_lock();
    frame_put_link(&link->nonce, args);
    if (status == 0 && link->state == LINK_OPENING)
        status = lien_call_start(conn, "grpc/link", args, sizeof args, &opts, NULL);
    if (status == 0)
        link_hold(link); // until on_named
    else
        link_kill(link);
    state_unlock();
}

void link_callbacks(lien_conn_opts *opts)
{
    lien_conn_opts_init(opts);
    opts->pool = ctx_receive_pool();
    opts->service = &link_service;
    opts->on_writable = on_writable;
    opts->on_lost = on_lost;
    opts->on_closed = on_closed;
}

struct link *link_open(struct peer *peer, const char *address)
{
    struct link *link = link_new();
    if (!link)
        return NULL;
    lien_conn_opts opts;
    link_callbacks(&opts);
    opts.on_open = on_open;
    opts.arg = link;
    link->peer = peer;
    if (getrandom(link->nonce.bytes, NONCE_BYTES, 0) == NONCE_BYTES &&
        lien_conn_open(ctx_get(), address, &opts, &link->conn) == 0)
        return link;
    link_put(link);
    return NULL;
}

int link_accept(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    (void)listener;
    struct server *server = arg;
    state_lock();
    struct link *link = conf_active() ? link_new() : NULL;
    if (link) {
        link->conn = conn;
        link->server = server;
        server->refs++;
        link->limit = server->receive_limit;
        *conn_arg = link;
    }
    state_unlock();
    return link ? 0 : -1;
}

// -- What peers may call ---------------------------------------------------------------------------------------------------------------

static struct link *of_conn(const lien_conn *conn)
{
    struct link *link = links;
    while (link && link->conn != conn)
        link = link->next;
    return link;
}

static void handle_link(lien_request *request, lien_conn *conn, void *arg)
{
    (void)arg;
    const void *args;
    size_t len;
    struct nonce nonce;
    uint8_t answer[LINKED_BYTES];
    bool good = lien_request_args(request, &args, &len) == 0 && frame_get_link(args, len, &nonce);
    state_lock();
    struct link *link = of_conn(conn);
    good = good && link && link->server && link->state == LINK_OPENING && !link_find(&nonce, true);
    if (good) {
        link->nonce = nonce;
        set_state(link, LINK_READY);
        stat_add(STAT_accepts, 1);
        frame_put_u64(answer, process_instance());
        frame_put_u64(answer + 8, link->limit);
    }
    state_unlock();
    if (lien_request_reply(&request, good ? 0 : LIEN_EPROTO, answer, good ? sizeof answer : 0) != 0)
        lien_request_drop(&request);
}

static void handle_over(lien_request *request, lien_conn *conn, void *arg)
{
    (void)arg;
    const void *args;
    size_t len;
    bool good = lien_request_args(request, &args, &len) == 0 && len == OVER_BYTES;
    uint8_t answer = 1;
    state_lock();
    struct link *link = good ? of_conn(conn) : NULL;
    uint64_t number = link ? frame_get_u64(args) : 0;
    struct call *call = link && link->server ? call_by_number(&link->nonce, number, true) : NULL;
    if (call) {
        call->peer_over = true;
        if (call->ended)
            ledger_revoke(call);
    } else if (link && !link->server) {
        answer = !ledger_asked(link, number);
    }
    state_unlock();
    if (lien_request_reply(&request, good ? 0 : LIEN_EPROTO, &answer, good) != 0)
        lien_request_drop(&request);
}

static const lien_method methods[] = {
    {.name = "grpc/link", .handle = handle_link},
    {.name = "grpc/over", .handle = handle_over},
};
const lien_service link_service = {.methods = methods, .n_methods = 2};
