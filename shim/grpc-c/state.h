// SPDX-License-Identifier: Apache-2.0
//
// The objects of the shim and the one mutex that guards them all (state_lock). Under it no function of gRPC but reference counts is called, nothing blocks, and no user code runs; functions of Lien that never
// block may be called. An object is freed when the last of what its first paragraph names has let go.

#ifndef LIEN_GRPC_STATE_H
#define LIEN_GRPC_STATE_H

#include <lien/lien.h>

#include "conf.h"
#include "frame.h"
#include "real.h"

void state_lock(void);
void state_unlock(void);
uint64_t now_ms(void);

// -- ctx.c: the one ctx of the process -------------------------------------------------------------------------------------------------

// Opens it at the first call; NULL when it cannot be had, which is said once. Blocks.
lien_ctx *ctx_get(void);
lien_pool *ctx_send_pool(void);
lien_pool *ctx_receive_pool(void);

// -- link.c: a Lien connection beside gRPC's -------------------------------------------------------------------------------------------

enum link_state {
    LINK_OPENING, // connecting, or accepted and not named yet; ends by grpc/link or by its loss
    LINK_READY,   // named: calls are linked to it; ends by its loss, or with the last channel
    LINK_DEAD,    // lost, or not wanted; the handle is closed when the last thread has left it
    LINK_CLOSED   // lien_conn_close() was called: waits for on_closed
};

// Lives until Lien's on_closed and while calls name it.
struct link {
    struct link *next; // all links
    enum link_state state;
    lien_conn *conn; // to be used between link_enter() and link_leave()
    unsigned refs, users;
    struct peer *peer;     // client: whose it is, until it is dead
    struct server *server; // server: whose listener took it
    struct nonce nonce;
    uint64_t instance; // client: of the server process
    uint64_t limit;    // largest message that the peer takes (client), or that we take (server)
    uint64_t lent;     // bytes of loans, against the budget
    uint64_t calls;    // numbers given out
    struct notice *notices; // ends of calls that the peer is to be told, in order
    struct call
        *unbound; // client: calls of which the server's number is not known yet, oldest first
    struct question
        *questions; // client: numbers that the server asked for, and that no call has yet
};

// All with the lock.
struct link *link_open(struct peer *peer, const char *address);
void link_hold(struct link *link);
void link_put(struct link *link);
bool link_enter(struct link *link); // false: not ready
void link_leave(struct link *link);
void link_kill(struct link *link);
struct link *link_find(
    const struct nonce *nonce,
    bool server); // ready; `server`: one that we accepted (a process may be both ends)
// Whether this process has met `nonce`: a link of ours, live or gone, or named by a client (nonce_meet).
bool nonce_met(const struct nonce *nonce);
void nonce_meet(const struct nonce *nonce);
// Without the lock.
extern const lien_service link_service;
int link_accept(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg);
void link_callbacks(lien_conn_opts *opts);
uint64_t process_instance(void);
// At exit: ends all links; returns how many threads are still inside one.
unsigned link_kill_all(void);
bool link_any(void); // without the lock

// -- channel.c: client channels and the peers they lead to -----------------------------------------------------------------------------

// A Lien address; channels to one address share it and its link. Lives while channels name it.
struct peer {
    struct peer *next;
    char address[96];
    unsigned refs;
    struct link *link; // held, or NULL
    uint64_t next_try;
    uint32_t wait;
};

// Lives until grpc_channel_destroy() and while calls name it.
struct channel {
    struct channel *next;
    grpc_channel *channel; // NULL once destroyed
    unsigned refs;
    struct peer *peer;
    uint64_t receive_limit, send_limit;
    uint64_t calls;     // so far
    uint32_t unoffered; // answers without an offer in a row
    uint32_t doubt;     // answers of the one server still needed before requests go out of band
    bool balanced;      // its arguments choose a policy: requests stay in band
};

struct channel *channel_add(grpc_channel *channel, const grpc_channel_args *args);
struct channel *channel_find(grpc_channel *channel); // with the lock
void channel_destroyed(grpc_channel *channel);
void channel_put(struct channel *channel); // with the lock
// What an answer said. `host` is the peer's address as gRPC tells it, for offers without a host; may be NULL.
void channel_offer(struct channel *channel, const struct offer_entry *offer, const char *host);
void channel_answered(struct channel *channel, bool offered); // a call ended with OK; with the lock
// The link for a new call, or NULL; *ask: ask for an offer. With the lock.
struct link *channel_link(struct channel *channel, bool *ask);
void peer_lost(struct peer *peer, bool was_ready); // with the lock
uint64_t limit_of(const grpc_channel_args *args, const char *name, uint64_t def);

// -- server.c: gRPC servers and their Lien listeners -----------------------------------------------------------------------------------

// Lives until grpc_server_destroy(), and while processors and links name it.
struct server {
    struct server *next;
    grpc_server *server; // NULL once destroyed
    unsigned refs;
    uint64_t number, receive_limit, send_limit;
    lien_listener *listener;
    char offer[96];
};

void server_created(grpc_server *server, const grpc_channel_args *args);
void server_destroyed(grpc_server *server);
// Before a port is added: listens beside it, and sees to it that its calls show their metadata.
void server_port(grpc_server *server, const char *address, grpc_server_credentials *creds);
struct server *server_numbered(uint64_t number); // with the lock
// Whose call is it: settles one call of its HTTP/2 connection (docs/grpc.md). False: the port is none of ours. With the lock.
enum settled {
    SETTLED_PLAIN,
    SETTLED_ASKS,
    SETTLED_LINKED,
    SETTLED_UNCLEAR
};
struct origin {
    enum settled settled;
    struct nonce nonce;
    uint64_t limit, server_number;
};
bool server_settle(grpc_call *call, struct origin *origin);
void server_put(struct server *server); // with the lock
// Insecure credentials: `count` +1: created, -1: any were released.
void insecure_count(const void *creds, int count);
// Whether messages under these credentials may go out of band: insecure ones, or all on a trusted fabric.
bool creds_carry(const void *creds);
void processor_own(grpc_server_credentials *creds); // the application has one on them

// -- call.c: calls ---------------------------------------------------------------------------------------------------------------------

struct failure {
    grpc_status_code code; // OK: none
    char text[160];
};

// Lives until the application gave it up, its loans have ended and nothing pins it.
struct call {
    struct call *by_call, *by_number, *next_unbound;
    grpc_call *call; // NULL once given up
    bool server, linked;
    bool heard;     // client: of the initial metadata
    bool acked;     // client: there was an offer in it
    bool good;      // client: its status is OK
    bool bound;     // client: the server's number of it is known, and `number`
    bool unbound;   // in link->unbound
    bool offers;    // server: the client takes an offer
    bool ended;     // the application gave it up
    bool peer_over; // server: the client did
    bool asked;     // client: the server waits to be told of our end
    unsigned refs, pins;
    struct link *link; // held; NULL: not linked
    struct nonce nonce;
    uint64_t id; // client: ours, for descriptors that it sends
    uint64_t
        number; // the server's: names it in `grpc/over` and in descriptors that the server sends
    uint64_t limit, send_limit, server_number;
    struct channel *channel;
    uint32_t sent; // descriptors
    struct loan *loans;
    gpr_timespec deadline;
    struct failure failure;
};

// A client's new call.
void call_created(grpc_channel *channel, grpc_call *call, gpr_timespec deadline);
// With the lock: the record of a call, pinned; NULL: none.
struct call *call_pin(grpc_call *call);
void call_unpin(struct call *call); // with the lock
struct call *call_by_number(const struct nonce *nonce, uint64_t number,
                            bool server); // with the lock
// Without the lock: as call_pin(), and a server's call that is seen for the first time gets its record.
struct call *call_adopt(grpc_call *call);
// A client's call: the server's number of it, or (false) that it has none. With the lock.
void call_bind(struct call *call, bool linked, uint64_t number);
void call_ref(grpc_call *call);
void call_unref(grpc_call *call);
// A message of it cannot be had: kept for its status. With the lock.
void call_fail(struct call *call, const struct failure *why);
uint64_t calls_left(void);

// -- ledger.c: what is lent --------------------------------------------------------------------------------------------------------------

// One granted message, from before its grant to the grant's end.
struct loan {
    struct loan *next, **at; // of its call
    struct call *call;       // pinned by being in its list
    lien_grant *grant;       // NULL until it is opened
    uint64_t len;
    bool over; // released before the grant was known here
};

// Room in the budget for `len` bytes: a loan that is in the ledger, with its link entered; or NULL. With the lock.
struct loan *loan_begin(struct call *call, uint64_t len);
// Grants `buf`, which is freed when the loan ends. Leaves the link. On error the loan is gone. Without the lock.
int loan_grant(struct loan *loan, lien_buf **buf, lien_token *token);
void loan_abandon(struct loan *loan); // instead of loan_grant()
// Without the lock.
void ledger_retract(struct call *call,
                    uint32_t sent); // the last loan of `call` will never be heard of
// With the lock.
void ledger_revoke(struct call *call);
void ledger_tell(struct link *link, uint64_t number);  // our end of that call, to the peer
void ledger_pump(struct link *link);                   // after credit came
bool ledger_asked(struct link *link, uint64_t number); // client: false: it is over, or never was
void ledger_bound(
    struct link *link,
    struct call *call); // client: one less unbound; `call`: it has its number now, or NULL
void ledger_link_dead(struct link *link);
uint64_t loans_left(void);

// -- fetch.c, send.c, tag.c, batch.c -----------------------------------------------------------------------------------------------------

// Makes `message` what the application is to see, if a descriptor or escape stands for it. False: it cannot be had, *why says it; the message is unchanged. `call`: whose it is, or NULL: then the failure is
// kept for the next status that this thread sends (failure_of_thread()).
bool fetch(grpc_byte_buffer *message, struct call *call, struct failure *why);
// The failure of the last fetch() of this thread without a call; once.
struct failure failure_of_thread(void);
// Bytes of the message behind a descriptor or escape, or of what it is.
uint64_t fetch_length(grpc_byte_buffer *message);
// Right before it is destroyed.
void fetch_drop(grpc_byte_buffer *message);

// Replaces the message of a SEND op of `call`. NULL: it stays as it is. Else the op now carries this one; afterwards: send_done().
struct sending {
    grpc_byte_buffer *own, *theirs;
    grpc_slice_buffer kept; // their slices; `theirs` is not looked at once the batch has started
    bool lent;
};
void send_prepare(struct call *call, grpc_op *op, struct sending *sending);
void send_done(struct call *call, struct sending *sending, bool started);

// Puts a tag of ours on a batch, where something is to be done before the application hears of it; returns the tag to use. tag_unused(): the batch did not start.
void *tag_wrap(struct call *call, const grpc_op *ops, size_t n, void *tag);
// The same for a server's request of a call whose first message comes with it.
void *tag_wrap_request(grpc_call **call, grpc_byte_buffer **message, void *tag);
void tag_unused(void *wrapped);
void tag_event(grpc_event *event);
void *tag_for_pluck(grpc_completion_queue *queue, void *tag);
uint64_t tags_left(void);

grpc_call_error batch_start(grpc_call *call, const grpc_op *ops, size_t n, void *tag,
                            void *reserved);

#endif
