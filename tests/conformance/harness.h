// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of both levels: cases written once against lien.h and call.h, each with two sides, and run by a driver: over
// libfabric tcp with a process for each side, or on the simulator with both sides in one process.
//
// A case is a function that both sides run, told apart by side->role. It starts with a connection (side->link) unless it is CF_BARE, uses asynchronous
// functions, and waits with UNTIL, which lets the driver make progress. Each case runs in processes of its own: a failure ends them and says where.
//
// Besides messages of Lien the sides have a control channel of the harness's own (cf_sync, cf_tell, cf_hear), so that a
// script can go on while the connection is what is being broken.
//
// After a case the harness closes all connections and checks: each operation's callbacks ran exactly once and in order (R4), nothing is granted, handed
// out, quarantined or unexplained.
//
// Threads: a side's script runs on one thread; callbacks may run on others (driver "tcp-thread"), so what they write is atomic.

#ifndef LIENI_CONFORMANCE_HARNESS_H
#define LIENI_CONFORMANCE_HARNESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/call.h>
#include <lien/lien.h>

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

enum cf_role {
    CF_OWNER, // listens; owns the grants of most cases
    CF_READER // connects
};

#define CF_BARE (1u << 0) // no connection is made for it
#define CF_ENDS (1u << 1) // its connections end by themselves: on_lost is no failure
#define CF_BACK (1u << 2) // the owner calls, not the reader: see cf_calls()

// Settings with which a side is not taken for dead, however long a busy machine lets it stand still: it fills and compares much memory, and makes no progress meanwhile.
#define CF_UNHURRIED                                                                               \
    {                                                                                              \
        "dead_ms=120000", "read_watchdog_ms=120000"                                                \
    }

struct cf_side;

struct cf_case {
    const char *group;
    const char *name;
    void (*run)(struct cf_side *side);
    uint64_t arg;
    unsigned flags;
    const char *settings[4]; // of both contexts, ended by NULL
};

// Ended by a case without name.
extern const struct cf_case cf_read_cases[], cf_layout_cases[], cf_message_cases[],
    cf_grant_cases[], cf_refuse_cases[], cf_end_cases[], cf_memory_cases[], cf_conn_cases[],
    cf_call_cases[], cf_serve_cases[], cf_space_cases[], cf_giant_cases[], cf_callend_cases[],
    cf_reuse_cases[], cf_batch_cases[];

struct cf_driver {
    const char *name;
    const char
        *provider; // of the connections; where sides are processes it is asked for by LIEN_PROVIDER
    lien_path path;
    uint64_t batch_max; // bytes that it moves in one read, 0: no limit
    bool processes;     // a process for each side
    bool threaded;      // contexts have a progress thread of their own
    bool blocking;      // blocking functions can be used
    bool serves_frozen; // READs go on while the owner's process stands still
    const char *host;   // where the owner listens
    const char *host6;
    int (*ctx_open)(struct cf_side *side, lien_ctx_opts *opts, lien_ctx **ctx);
    // Lets something happen; `still`: but not by this side's progress. May sleep for a ms or so.
    void (*turn)(struct cf_side *side, bool still);
    // ms of the clock that Lien sees.
    uint64_t (*now_ms)(struct cf_side *side);
    // The other side's process stops, and goes on.
    void (*freeze)(struct cf_side *side);
    void (*thaw)(struct cf_side *side);
};
extern const struct cf_driver cf_tcp, cf_tcp_thread, cf_verbs, cf_verbs_thread, cf_sim, cf_stream,
    cf_stream_thread, cf_ws, cf_wss, cf_h2c, cf_h2;

// One connection, at one side.
struct cf_link {
    struct cf_side *side;
    lien_conn *conn;
    _Atomic int ready; // accepted, or on_open ran
    _Atomic int open_status;
    _Atomic int lost, lost_status;
    _Atomic int closed, closed_status;
    _Atomic int writable;
    pthread_mutex_t lock;
    lien_msg *inbox[4096];
    unsigned head, tail;
};

// One operation with its two events.
struct cf_op {
    struct cf_op *next;
    struct cf_side *side;
    const char *what;
    bool has_done;
    bool refused; // its starting call returned an error: no callback may run
    _Atomic int done, released;
    _Atomic int status, released_status;
    lien_msg *reply; // of a call; freed with the operation if nobody took it
};

#define CF_LINKS 32

// What a side serves. Requests of "cf/desk" wait there for its script; "cf/inline" is the same, handled on the progress thread. "cf/echo" answers with its arguments, and
// its body with its body. "cf/case" and "cf/case-inline" are the case's own: `handle`.
struct cf_desk {
    pthread_mutex_t lock;
    lien_request *requests[256];
    unsigned head, tail;
    lien_method methods[5];
    lien_service service;
    void (*_Atomic handle)(lien_request *request, lien_conn *conn, struct cf_side *side);
};

struct cf_side {
    const struct cf_case *test;
    const struct cf_driver *driver;
    enum cf_role role;
    int control;
    int peer_pid; // the process of the other side, where it has one
    lien_ctx *ctx;
    lien_pool *pool;
    lien_listener *listener;
    struct cf_link *link; // links[0]
    struct cf_link links[CF_LINKS];
    _Atomic unsigned n_links;
    unsigned n_told; // accepted ones that cf_connect returned
    _Atomic int refuse_accepts;
    struct cf_op *ops;
    struct cf_desk desk;
    uint64_t head_bytes;         // of messages sent: all that Lien may copy
    _Atomic uint64_t call_bytes; // arguments and replies: some of these too
    bool over;                   // the script ended
    _Atomic int log_code;        // log lines of this code are looked at
    char log_want[2][64];        // and must have these texts
    _Atomic unsigned log_lines;  // that had
};

// -- Failing and waiting --

_Noreturn void cf_fail(struct cf_side *side, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define FAIL(side, ...) cf_fail(side, __FILE__, __LINE__, __VA_ARGS__)
#define CHECK(side, cond)                                                                          \
    do {                                                                                           \
        if (!(cond))                                                                               \
            cf_fail(side, __FILE__, __LINE__, "%s", #cond);                                        \
    } while (0)
#define CHECK_RC(side, call, want)                                                                 \
    do {                                                                                           \
        int cf_rc = (call);                                                                        \
        if (cf_rc != (want))                                                                       \
            cf_fail(side, __FILE__, __LINE__, "%s is %s, not %s", #call, lien_errname(cf_rc),      \
                    lien_errname(want));                                                           \
    } while (0)
#define CHECK_EQ(side, value, want)                                                                \
    do {                                                                                           \
        unsigned long long cf_is = (unsigned long long)(value);                                    \
        unsigned long long cf_want = (unsigned long long)(want);                                   \
        if (cf_is != cf_want)                                                                      \
            cf_fail(side, __FILE__, __LINE__, "%s is %llu, not %llu", #value, cf_is, cf_want);     \
    } while (0)

// Fails when the time of a wait, begun at `since` (real ms), is over, or when the other side failed.
void cf_turn(struct cf_side *side, bool still, uint64_t since, const char *file, int line,
             const char *cond);
uint64_t cf_real_ms(void);

#define UNTIL(side, cond)                                                                          \
    for (uint64_t cf_since = cf_real_ms(); !(cond);)                                               \
    cf_turn(side, false, cf_since, __FILE__, __LINE__, #cond)

// -- Control channel --

// Both sides get here.
void cf_sync(struct cf_side *side);
void cf_tell(struct cf_side *side, const void *data, size_t len);
void cf_hear(struct cf_side *side, void *data, size_t len);
// The same, without progress of this side until it is heard.
void cf_hear_still(struct cf_side *side, void *data, size_t len);
// Whether a word waits to be heard.
bool cf_word_waits(struct cf_side *side);

// -- Pattern: a function of (case, generation, offset) --

void cf_fill(const struct cf_side *side, void *to, size_t len, unsigned gen, uint64_t off);
bool cf_same(const struct cf_side *side, const void *is, size_t len, unsigned gen, uint64_t off,
             uint64_t *bad);

#define CF_GUARD  64u  // bytes behind each buffer that nobody may touch
#define CF_BEFORE 999u // generation of what a destination holds before

// A pool buffer of `len` bytes (0 too) with guard bytes behind, filled with generation `gen` from offset `off`.
lien_buf *cf_buf(struct cf_side *side, uint64_t len, unsigned gen, uint64_t off);
void cf_check_buf(struct cf_side *side, const lien_buf *buf, unsigned gen, uint64_t off);
// Buffers one after the other.
void cf_bufs(struct cf_side *side, const uint64_t *lens, size_t n, unsigned gen, lien_buf **bufs);
// Ours again: overwritten at once, so that a read that still runs brings other bytes.
void cf_scribble(struct cf_side *side, lien_buf *const *bufs, size_t n);
void cf_free_bufs(lien_buf **bufs, size_t n);
// `n` unequal lengths (some of no bytes) with the sum `total`.
void cf_cut(uint64_t total, size_t n, uint64_t *lens);

lien_space *cf_space(struct cf_side *side, const uint64_t *lens, size_t n);
lien_space *cf_space_of(struct cf_side *side, uint64_t len);
// The space holds the first `len` bytes of generation `gen`, and what it held before behind them; guards whole.
void cf_check_space(struct cf_side *side, lien_space *space, size_t n, unsigned gen, uint64_t len);
// The space holds what these operations brought, and else what it held before.
void cf_check_ops(struct cf_side *side, lien_space *space, size_t n, unsigned gen,
                  const lien_op *ops, size_t n_ops);

// -- Operations --

struct cf_op *cf_op(struct cf_side *side, const char *what, bool has_done);
void cf_op_done(void *arg, int status); // the two events, for options of the case's own
void cf_op_released(void *arg, int status);
// Waits for both events and checks them.
void cf_op_over(struct cf_side *side, struct cf_op *op, int status, int released);

// Grants, sends the token as a message's head.
void cf_offer(struct cf_side *side, struct cf_link *link, lien_buf *const *bufs, size_t n,
              unsigned flags, struct cf_op *op, lien_token *token, lien_grant **grant);
// The head of the next message as a token.
void cf_take_token(struct cf_side *side, struct cf_link *link, lien_token *token);
int cf_read(struct cf_link *link, const lien_token *token, lien_space *space, const lien_op *ops,
            size_t n_ops, unsigned flags, uint32_t timeout_ms, struct cf_op *op, lien_read **read);
// Waits for credit.
void cf_send(struct cf_side *side, struct cf_link *link, const void *head, size_t len,
             lien_buf *const *bufs, size_t n, struct cf_op *op);
lien_msg *cf_recv(struct cf_side *side, struct cf_link *link);
bool cf_has_message(struct cf_link *link);
// One small read of a fresh grant in each direction: the connection lives.
void cf_alive(struct cf_side *side, struct cf_link *link);

// -- Calls (calls.c) --

// Whether this side calls and the other serves.
static inline bool cf_calls(const struct cf_side *side)
{
    return (side->role == CF_READER) != ((side->test->flags & CF_BACK) != 0);
}
void cf_desk_open(struct cf_side *side);
void cf_desk_close(struct cf_side *side); // drops the requests that nobody took
// The next request at the desk.
lien_request *cf_request(struct cf_side *side);
bool cf_has_request(struct cf_side *side);
// Options that bring done, reply and released to `op`.
lien_call_opts cf_call_opts(struct cf_op *op);
lien_transfer_opts cf_transfer_opts(struct cf_op *op);
// Starts a call; waits for credit.
void cf_call(struct cf_side *side, struct cf_link *link, const char *method, const void *args,
             size_t len, const lien_call_opts *opts, lien_call **call);
// One try, its error.
int cf_try_call(struct cf_side *side, struct cf_link *link, const char *method, const void *args,
                size_t len, const lien_call_opts *opts, lien_call **call);
void cf_reply(struct cf_side *side, lien_request **request, int status, const void *data,
              size_t len);
// The call's reply is these bytes, without body.
void cf_check_reply(struct cf_side *side, const struct cf_op *op, const void *data, size_t len);
// A start of a transfer and its wait, with success.
void cf_request_read(struct cf_side *side, lien_request *request, lien_space *space,
                     const lien_op *ops, size_t n_ops);
void cf_request_write(struct cf_side *side, lien_request *request, lien_buf *const *bufs, size_t n,
                      const lien_op *ops, size_t n_ops);
// A small call in each direction: the connection lives, calls too.
void cf_calls_alive(struct cf_side *side, struct cf_link *link);

// -- The middle of a transfer (calls.c) --

// Stops the other side when at least four READs were over since `before`, of a transfer of `len` bytes that ends with `op`: so many of its bytes are still to come that it cannot end while that side
// stands still. False: it came too far; the other side goes on, and the caller tries again.
bool cf_freeze_in_middle(struct cf_side *side, const lien_ctx_stats *before, uint64_t len,
                         const struct cf_op *op);
// The space of the operation, which is done, stays lent for 200 ms, unless what the stopped side's kernel held already brought evidence for each READ but `others`.
void cf_lent_while_frozen(struct cf_side *side, const struct cf_op *op, lien_space *space,
                          unsigned others);

lien_ctx_stats cf_stats(struct cf_side *side);
lien_conn_info cf_info(struct cf_side *side, struct cf_link *link);

// -- Connections --

// The owner listens at `host` (NULL: the driver's) and tells the address, the reader hears it.
lien_listener *cf_listen(struct cf_side *side, const char *host);
void cf_address(struct cf_side *side, lien_listener *listener, char *text, size_t size);
// One more connection: the reader connects, the owner waits for it. Not to be called twice at once.
struct cf_link *cf_connect(struct cf_side *side, lien_listener *listener, unsigned conn_flags);
struct cf_link *cf_link_new(struct cf_side *side);
lien_conn_opts cf_conn_opts(struct cf_link *link);
void cf_close(struct cf_side *side, struct cf_link *link);

// -- Running --

// Runs the case's side, from opening to the checks at the end.
void cf_run(struct cf_side *side);
// The simulator: both sides in this process. Returns its exit status.
int cf_sim_run(const struct cf_case *test, struct cf_side sides[2]);

#endif
