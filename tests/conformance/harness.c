// SPDX-License-Identifier: Apache-2.0
//
// What scripts are made of: control channel, operations, messages, connections, and the frame around a case. See harness.h.

#include "tests/conformance/harness.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 800000u // of real time; what a wait takes on a busy machine is far below

// -- Control channel, failing, waiting ---------------------------------------------------------------------------------------------

enum note_kind {
    NOTE_SYNC = 1,
    NOTE_DATA,
    NOTE_FAILED
};

struct note {
    uint32_t kind, len;
    uint8_t data[192];
};

uint64_t cf_real_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static bool put(struct cf_side *side, enum note_kind kind, const void *data, size_t len)
{
    struct note note = {.kind = kind, .len = (uint32_t)len};
    if (len > 0)
        memcpy(note.data, data, len);
    return send(side->control, &note, sizeof(note), MSG_NOSIGNAL) == sizeof(note);
}

void cf_fail(struct cf_side *side, const char *file, int line, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr, "%s on %s, %s: %s:%d: %s\n", side->test->name, side->driver->name,
            side->role == CF_OWNER ? "owner" : "reader", file, line, text);
    put(side, NOTE_FAILED, NULL, 0);
    _exit(1);
}

void cf_turn(struct cf_side *side, bool still, uint64_t since, const char *file, int line,
             const char *cond)
{
    struct note note;
    ssize_t n = recv(side->control, &note, sizeof(note), MSG_PEEK | MSG_DONTWAIT);
    if (n == sizeof(note) && note.kind == NOTE_FAILED)
        _exit(2); // it said why
    if (n == 0 && !side->over)
        cf_fail(side, file, line, "the other side is gone");
    if (cf_real_ms() - since > WAIT_MS)
        cf_fail(side, file, line, "%u ms are over and not yet: %s", WAIT_MS, cond);
    side->driver->turn(side, still);
}

static bool get(struct cf_side *side, struct note *note)
{
    ssize_t n = recv(side->control, note, sizeof(*note), MSG_DONTWAIT);
    return n == sizeof(*note);
}

static void hear(struct cf_side *side, enum note_kind kind, void *data, size_t len, bool still)
{
    struct note note;
    for (uint64_t since = cf_real_ms(); !get(side, &note);)
        cf_turn(side, still, since, __FILE__, __LINE__, "a word of the other side");
    if (note.kind == NOTE_FAILED)
        _exit(2);
    if (note.kind != (uint32_t)kind || note.len != len)
        FAIL(side, "the scripts of the sides do not fit: note %u of %u bytes", note.kind, note.len);
    if (len > 0)
        memcpy(data, note.data, len);
}

void cf_sync(struct cf_side *side)
{
    CHECK(side, put(side, NOTE_SYNC, NULL, 0));
    hear(side, NOTE_SYNC, NULL, 0, false);
}

void cf_tell(struct cf_side *side, const void *data, size_t len)
{
    CHECK(side, len <= sizeof(((struct note *)NULL)->data) && put(side, NOTE_DATA, data, len));
}

void cf_hear(struct cf_side *side, void *data, size_t len)
{
    hear(side, NOTE_DATA, data, len, false);
}

void cf_hear_still(struct cf_side *side, void *data, size_t len)
{
    hear(side, NOTE_DATA, data, len, true);
}

bool cf_word_waits(struct cf_side *side)
{
    struct note note;
    return recv(side->control, &note, sizeof(note), MSG_PEEK | MSG_DONTWAIT) > 0;
}

// -- Operations --------------------------------------------------------------------------------------------------------------------

struct cf_op *cf_op(struct cf_side *side, const char *what, bool has_done)
{
    struct cf_op *op = calloc(1, sizeof(*op));
    CHECK(side, op != NULL);
    *op = (struct cf_op){.next = side->ops, .side = side, .what = what, .has_done = has_done};
    side->ops = op;
    return op;
}

void cf_op_done(void *arg, int status)
{
    struct cf_op *op = arg;
    if (atomic_load(&op->released))
        FAIL(op->side, "%s: done after released", op->what);
    atomic_store(&op->status, status);
    if (atomic_fetch_add(&op->done, 1) != 0)
        FAIL(op->side, "%s: done twice", op->what);
}

void cf_op_released(void *arg, int status)
{
    struct cf_op *op = arg;
    if (op->has_done && !atomic_load(&op->done))
        FAIL(op->side, "%s: released before done", op->what);
    atomic_store(&op->released_status, status);
    if (atomic_fetch_add(&op->released, 1) != 0)
        FAIL(op->side, "%s: released twice", op->what);
}

void cf_op_over(struct cf_side *side, struct cf_op *op, int status, int released)
{
    UNTIL(side, atomic_load(&op->released));
    if (op->has_done && atomic_load(&op->status) != status)
        FAIL(side, "%s: done with %s, not %s", op->what, lien_errname(atomic_load(&op->status)),
             lien_errname(status));
    if (atomic_load(&op->released_status) != released)
        FAIL(side, "%s: released with %s, not %s", op->what,
             lien_errname(atomic_load(&op->released_status)), lien_errname(released));
}

// R4: each exactly once, or neither where the starting call failed.
static void check_ops(struct cf_side *side)
{
    while (side->ops) {
        struct cf_op *op = side->ops;
        int want = op->refused ? 0 : 1;
        if (atomic_load(&op->released) != want || (op->has_done && atomic_load(&op->done) != want))
            FAIL(side, "%s: done ran %d times and released %d times, not %d", op->what,
                 atomic_load(&op->done), atomic_load(&op->released), want);
        side->ops = op->next;
        if (op->reply)
            lien_msg_free(&op->reply);
        free(op);
    }
}

void cf_offer(struct cf_side *side, struct cf_link *link, lien_buf *const *bufs, size_t n,
              unsigned flags, struct cf_op *op, lien_token *token, lien_grant **grant)
{
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.flags = flags;
    opts.on_released = cf_op_released;
    opts.arg = op;
    CHECK_RC(side, lien_grant_open(link->conn, bufs, n, &opts, token, grant), 0);
    cf_send(side, link, token->bytes, token->len, NULL, 0, NULL);
}

void cf_take_token(struct cf_side *side, struct cf_link *link, lien_token *token)
{
    const void *head;
    size_t len;
    lien_msg *msg = cf_recv(side, link);
    CHECK_RC(side, lien_msg_head(msg, &head, &len), 0);
    CHECK(side, len <= LIEN_TOKEN_MAX);
    memcpy(token->bytes, head, len);
    token->len = (uint32_t)len;
    lien_msg_free(&msg);
    CHECK(side, msg == NULL);
}

int cf_read(struct cf_link *link, const lien_token *token, lien_space *space, const lien_op *ops,
            size_t n_ops, unsigned flags, uint32_t timeout_ms, struct cf_op *op, lien_read **read)
{
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.flags = flags;
    opts.timeout_ms = timeout_ms ? timeout_ms : LIEN_FOREVER;
    opts.ops = ops;
    opts.n_ops = n_ops;
    opts.on_done = cf_op_done;
    opts.on_released = cf_op_released;
    opts.arg = op;
    int rc = lien_read_start(link->conn, token->bytes, token->len, space, &opts, read);
    op->refused = rc != 0;
    return rc;
}

static int try_send(struct cf_link *link, const void *head, size_t len, lien_buf *const *bufs,
                    size_t n, struct cf_op *op)
{
    lien_send_opts opts;
    lien_send_opts_init(&opts);
    opts.on_done = op ? cf_op_done : NULL;
    opts.on_released = op ? cf_op_released : NULL;
    opts.arg = op;
    int rc = lien_send(link->conn, head, len, bufs, n, &opts);
    link->side->head_bytes += rc == 0 ? len : 0;
    return rc;
}

void cf_send(struct cf_side *side, struct cf_link *link, const void *head, size_t len,
             lien_buf *const *bufs, size_t n, struct cf_op *op)
{
    int rc;
    UNTIL(side, (rc = try_send(link, head, len, bufs, n, op)) != LIEN_EAGAIN);
    CHECK_RC(side, rc, 0);
}

bool cf_has_message(struct cf_link *link)
{
    pthread_mutex_lock(&link->lock);
    bool yes = link->head != link->tail;
    pthread_mutex_unlock(&link->lock);
    return yes;
}

lien_msg *cf_recv(struct cf_side *side, struct cf_link *link)
{
    UNTIL(side, cf_has_message(link));
    pthread_mutex_lock(&link->lock);
    lien_msg *msg = link->inbox[link->head++ % 4096];
    pthread_mutex_unlock(&link->lock);
    return msg;
}

static void give_and_take(struct cf_side *side, struct cf_link *link, bool give)
{
    const unsigned gen = 500;
    lien_token token;
    if (give) {
        lien_grant *grant;
        lien_buf *buf = cf_buf(side, 10000, gen, 0);
        struct cf_op *op = cf_op(side, "grant of the proof of life", false);
        cf_offer(side, link, &buf, 1, 0, op, &token, &grant);
        cf_op_over(side, op, 0, 0);
        CHECK_RC(side, lien_grant_close(&grant), 0);
        lien_buf_free(&buf);
        return;
    }
    cf_take_token(side, link, &token);
    lien_space *space = cf_space_of(side, 10000);
    struct cf_op *op = cf_op(side, "read of the proof of life", true);
    CHECK_RC(side, cf_read(link, &token, space, NULL, 0, LIEN_RELEASE, 0, op, NULL), 0);
    cf_op_over(side, op, 0, 0);
    cf_check_space(side, space, 1, gen, 10000);
    lien_space_free(&space);
}

void cf_alive(struct cf_side *side, struct cf_link *link)
{
    give_and_take(side, link, side->role == CF_OWNER);
    give_and_take(side, link, side->role == CF_READER);
    CHECK_EQ(side, atomic_load(&link->lost), 0);
    CHECK(side, cf_info(side, link).open);
}

lien_ctx_stats cf_stats(struct cf_side *side)
{
    lien_ctx_stats stats = {.size = sizeof(stats)};
    CHECK_RC(side, lien_ctx_stats_get(side->ctx, &stats), 0);
    return stats;
}

lien_conn_info cf_info(struct cf_side *side, struct cf_link *link)
{
    lien_conn_info info = {.size = sizeof(info)};
    CHECK_RC(side, lien_conn_info_get(link->conn, &info), 0);
    return info;
}

// -- Connections -------------------------------------------------------------------------------------------------------------------

static void on_open(lien_conn *conn, int status, void *arg)
{
    struct cf_link *link = arg;
    (void)conn;
    atomic_store(&link->open_status, status);
    if (atomic_fetch_add(&link->ready, 1) != 0)
        FAIL(link->side, "on_open ran twice");
}

static void on_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct cf_link *link = arg;
    (void)conn;
    if (!atomic_load(&link->ready))
        FAIL(link->side, "a message came before on_open or on_accept");
    pthread_mutex_lock(&link->lock);
    if (link->tail - link->head == 4096)
        FAIL(link->side, "4096 messages wait");
    link->inbox[link->tail++ % 4096] = msg;
    pthread_mutex_unlock(&link->lock);
}

static void on_writable(lien_conn *conn, void *arg)
{
    struct cf_link *link = arg;
    (void)conn;
    atomic_fetch_add(&link->writable, 1);
}

static void on_lost(lien_conn *conn, int status, void *arg)
{
    struct cf_link *link = arg;
    (void)conn;
    atomic_store(&link->lost_status, status);
    if (atomic_fetch_add(&link->lost, 1) != 0)
        FAIL(link->side, "on_lost ran twice");
    if (atomic_load(&link->closed))
        FAIL(link->side, "on_lost ran after on_closed");
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    struct cf_link *link = arg;
    (void)conn;
    atomic_store(&link->closed_status, status);
    if (atomic_fetch_add(&link->closed, 1) != 0)
        FAIL(link->side, "on_closed ran twice");
}

struct cf_link *cf_link_new(struct cf_side *side)
{
    unsigned i = atomic_load(&side->n_links);
    CHECK(side, i < CF_LINKS);
    struct cf_link *link = &side->links[i];
    link->side = side;
    pthread_mutex_init(&link->lock, NULL);
    atomic_store(&side->n_links, i + 1);
    return link;
}

lien_conn_opts cf_conn_opts(struct cf_link *link)
{
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.arg = link;
    opts.on_open = on_open;
    opts.on_message = on_message;
    opts.on_writable = on_writable;
    opts.on_lost = on_lost;
    opts.on_closed = on_closed;
    return opts;
}

static int on_accept(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    struct cf_side *side = arg;
    (void)listener;
    if (atomic_load(&side->refuse_accepts) > 0) {
        atomic_fetch_sub(&side->refuse_accepts, 1);
        return 1;
    }
    struct cf_link *link = cf_link_new(side);
    link->conn = conn;
    *conn_arg = link;
    atomic_store(&link->ready, 1);
    return 0;
}

lien_listener *cf_listen(struct cf_side *side, const char *host)
{
    lien_listener *listener;
    lien_listener_opts opts;
    char address[96];
    lien_listener_opts_init(&opts);
    lien_conn_opts conn = cf_conn_opts(NULL);
    conn.service = &side->desk.service;
    opts.conn = &conn;
    opts.arg = side;
    opts.on_accept = on_accept;
    snprintf(address, sizeof(address), "%s:0", host ? host : side->driver->host);
    CHECK_RC(side, lien_listener_open(side->ctx, address, &opts, &listener), 0);
    return listener;
}

void cf_address(struct cf_side *side, lien_listener *listener, char *text, size_t size)
{
    char address[96] = "";
    if (side->role == CF_OWNER) {
        CHECK_RC(side, lien_listener_address(listener, address, sizeof(address)), 0);
        cf_tell(side, address, sizeof(address));
    } else {
        cf_hear(side, address, sizeof(address));
    }
    CHECK(side, size >= sizeof(address));
    memcpy(text, address, sizeof(address));
}

struct cf_link *cf_connect(struct cf_side *side, lien_listener *listener, unsigned conn_flags)
{
    char address[96];
    cf_address(side, listener, address, sizeof(address));
    if (side->role == CF_OWNER) {
        struct cf_link *accepted = &side->links[side->n_told++];
        UNTIL(side, atomic_load(&accepted->ready));
        cf_sync(side);
        return accepted;
    }
    struct cf_link *link = cf_link_new(side);
    lien_conn_opts opts = cf_conn_opts(link);
    opts.service = &side->desk.service;
    opts.flags = conn_flags;
    CHECK_RC(side, lien_conn_open(side->ctx, address, &opts, &link->conn), 0);
    UNTIL(side, atomic_load(&link->ready));
    CHECK_RC(side, atomic_load(&link->open_status), 0);
    cf_sync(side);
    return link;
}

void cf_close(struct cf_side *side, struct cf_link *link)
{
    CHECK_RC(side, lien_conn_close(&link->conn), 0);
    CHECK(side, link->conn == NULL);
    UNTIL(side, atomic_load(&link->closed));
    CHECK_RC(side, atomic_load(&link->closed_status), 0);
}

// -- The frame around a case -------------------------------------------------------------------------------------------------------

static void say(const lien_log_line *line, void *arg)
{
    struct cf_side *side = arg;
    if (line->code == atomic_load(&side->log_code) && line->code != 0)
        atomic_fetch_add(&side->log_lines, strstr(line->text, side->log_want[0]) != NULL &&
                                               strstr(line->text, side->log_want[1]) != NULL);
    if (getenv("LIEN_TEST_LOG"))
        fprintf(stderr, "%llu [%s] %llx %d %s\n", (unsigned long long)cf_real_ms() % 1000000,
                side->role == CF_OWNER ? "owner" : "reader", (unsigned long long)line->conn,
                line->code, line->text);
}

static void begin(struct cf_side *side)
{
    lien_ctx_opts opts;
    cf_desk_open(side);
    lien_ctx_opts_init(&opts);
    opts.settings = side->test->settings;
    opts.log = say;
    opts.log_arg = side;
    CHECK_RC(side, side->driver->ctx_open(side, &opts, &side->ctx), 0);
    lien_pool_opts pool;
    lien_pool_opts_init(&pool);
    pool.reserve = 0;
    CHECK_RC(side, lien_pool_open(side->ctx, &pool, &side->pool), 0);
    if (side->role == CF_OWNER)
        side->listener = cf_listen(side, NULL);
    if (!(side->test->flags & CF_BARE))
        side->link = cf_connect(side, side->listener, 0);
}

static void drop_messages(struct cf_link *link)
{
    while (cf_has_message(link)) {
        lien_msg *msg = link->inbox[link->head++ % 4096];
        lien_msg_free(&msg);
    }
}

// A reply that is kept keeps its connection's receives.
static void drop_replies(struct cf_side *side)
{
    for (struct cf_op *op = side->ops; op; op = op->next) {
        if (atomic_load(&op->done) && op->reply)
            lien_msg_free(&op->reply);
    }
}

static void close_links(struct cf_side *side)
{
    for (unsigned i = 0; i < atomic_load(&side->n_links); i++) {
        struct cf_link *link = &side->links[i];
        if (link->conn)
            lien_conn_close(&link->conn);
    }
    for (unsigned i = 0; i < atomic_load(&side->n_links); i++) {
        struct cf_link *link = &side->links[i];
        UNTIL(side, atomic_load(&link->closed));
        CHECK_RC(side, atomic_load(&link->closed_status), 0);
        drop_messages(link);
        pthread_mutex_destroy(&link->lock);
    }
}

static void end(struct cf_side *side)
{
    for (unsigned i = 0; i < atomic_load(&side->n_links) && !(side->test->flags & CF_ENDS); i++) {
        if (atomic_load(&side->links[i].lost) && side->links[i].conn)
            FAIL(side, "connection %u was lost: %s", i,
                 lien_errname(atomic_load(&side->links[i].lost_status)));
    }
    cf_sync(side);
    side->over = true;
    cf_desk_close(side);
    drop_replies(side);
    if (!side->ctx) { // the case closed it
        check_ops(side);
        return;
    }
    close_links(side);
    if (side->listener)
        CHECK_RC(side, lien_listener_close(&side->listener), 0);
    CHECK_RC(side, lien_pool_close(&side->pool), 0);
    UNTIL(side, cf_stats(side).conns_open == 0 && cf_stats(side).pool_bytes == 0);
    lien_ctx_stats stats = cf_stats(side);
    CHECK_EQ(side, stats.grants_live, 0);
    CHECK_EQ(side, stats.grants_bytes, 0);
    CHECK_EQ(side, stats.quarantined_total, 0);
    // libfabric 1.17's tcp reports a READ that is half received when its endpoint ends once more, without a context.
    bool halves = side->driver->processes && (side->test->flags & CF_ENDS);
    CHECK(side, stats.evidence_unknown <= (halves ? atomic_load(&side->n_links) : 0));
    CHECK_EQ(side, stats.protocol_errors, 0);
    // Bodies and reads: never. What was said in calls that ended early may not have been copied.
    CHECK(side,
          stats.payload_bytes_copied >= side->head_bytes &&
              stats.payload_bytes_copied <= side->head_bytes + atomic_load(&side->call_bytes));
    CHECK_EQ(side, stats.reads_started, stats.reads_done + stats.reads_failed);
    int rc;
    UNTIL(side, (rc = lien_ctx_close(&side->ctx)) != LIEN_EDEADLK);
    CHECK_RC(side, rc, 0);
    check_ops(side);
}

void cf_run(struct cf_side *side)
{
    begin(side);
    side->test->run(side);
    end(side);
}
