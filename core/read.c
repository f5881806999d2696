// SPDX-License-Identifier: Apache-2.0
//
// See read.h.

#include "core/read.h"

#include <stdlib.h>
#include <string.h>

#include "core/grant.h"

#define TO(state) (1u << (state))

static const unsigned may_enter[] = {
    [LIENI_READ_RUNNING] = TO(LIENI_READ_PROBING) | TO(LIENI_READ_CHECKING) |
                           TO(LIENI_READ_DRAINING) | TO(LIENI_READ_OVER),
    [LIENI_READ_PROBING] = TO(LIENI_READ_CHECKING) | TO(LIENI_READ_OVER),
    [LIENI_READ_CHECKING] = TO(LIENI_READ_DRAINING) | TO(LIENI_READ_OVER),
    [LIENI_READ_DRAINING] = TO(LIENI_READ_OVER),
    [LIENI_READ_OVER] = 0,
};

static const char *const state_names[] = {"running", "probing", "checking", "draining", "over"};

// Fewer bytes are compared where they arrive: it takes a few microseconds.
#define LIENI_CHECK_HERE ((uint64_t)64 << 10)

static void set_state(struct lien_read *read, enum lieni_read_state state)
{
    if (!(may_enter[read->state] & TO(state)))
        abort();
    lieni_trace_text(read->conn->trace, LIENI_TRACE_READ, lieni_name_id(read->name), 0,
                     read->status, state_names[read->state], state_names[state]);
    read->state = state;
}

// -- Ending --

void lieni_read_unref(struct lien_read *read)
{
    if (--read->refs > 0)
        return;
    struct lien_conn *conn = read->conn;
    lieni_timer_fini(&conn->ctx->timers, &read->timer);
    lieni_plan_close(&read->plan);
    free(read->keys);
    free(read);
    lieni_conn_unref(conn);
}

static void unref_unlocked(struct lien_read *read)
{
    lien_ctx *ctx = read->conn->ctx;
    lieni_ctx_lock(ctx);
    lieni_read_unref(read);
    lieni_ctx_unlock(ctx);
}

static void run_done(struct lieni_task *task)
{
    struct lien_read *read = lieni_container(task, struct lien_read, done_task);
    read->on_done(read->arg, read->status);
    unref_unlocked(read);
}

static void run_released(struct lieni_task *task)
{
    struct lien_read *read = lieni_container(task, struct lien_read, released_task);
    read->on_released(read->arg, read->released);
    unref_unlocked(read);
}

static void post_task(struct lien_read *read, struct lieni_task *task)
{
    read->refs++;
    lieni_strand_post(read->strand, task);
}

// The result is known.
static void done(struct lien_read *read, int status)
{
    lien_ctx *ctx = read->conn->ctx;
    read->status = status;
    lieni_timer_clear(&ctx->timers, &read->timer);
    lieni_list_remove(&read->queue);
    if (status == 0)
        ctx->stats.reads_done++, read->conn->counts.reads_done++;
    else
        ctx->stats.reads_failed++, read->conn->counts.reads_failed++;
    if (read->on_done)
        post_task(read, &read->done_task);
    lieni_ctx_changed(ctx);
}

// The space is settled: back, or lost.
static void settled(struct lien_read *read, int released)
{
    struct lien_conn *conn = read->conn;
    set_state(read, LIENI_READ_OVER);
    if (read->at_risk && released == 0) // what is lost stays in the account
        lieni_nic_unread(conn, read->at_risk);
    read->at_risk = 0;
    read->released = released;
    read->space = NULL;
    lieni_list_remove(&read->node);
    lieni_import_read_over(conn, read->name);
    if (read->on_released)
        post_task(read, &read->released_task);
    if (read->over) // after the task: the strand is the owner's, which this may end
        read->over(read->owner, read->status != 0 ? read->status : released);
    lieni_ctx_changed(conn->ctx);
    lieni_read_unref(read); // running
}

// -- Verdicts --

uint64_t lieni_read_into(const struct lien_read *read, uint32_t i)
{
    uint64_t at = 0;
    for (uint32_t j = 0; j < i; j++)
        at += lien_buf_len(read->space->bufs[j]);
    return lieni_ops_cover(read->plan.ops, read->plan.n_ops, at,
                           lien_buf_len(read->space->bufs[i]));
}

// Its bytes are good: of what was in doubt in its buffers, what they replaced is no more.
static void trust(struct lien_read *read)
{
    for (uint32_t i = 0; i < read->space->n; i++) {
        lien_buf *buf = read->space->bufs[i];
        if (lieni_buf_doubt_of(buf) && lieni_read_into(read, i) == lien_buf_len(buf) &&
            lien_buf_len(buf) >= lieni_buf_doubt_len(buf))
            lieni_buf_trust(buf);
    }
}

static void probe_answered(struct lieni_ask *ask, bool holds);

// Asks whether the bytes are good, with a limit of its own. [R13, R14]
static void probe(struct lien_read *read)
{
    lien_ctx *ctx = read->conn->ctx;
    uint64_t limit = lieni_ctx_deadline(ctx, LIENI_PROBE_MS);
    if (read->probe_deadline < limit)
        limit = read->probe_deadline;
    if (!lieni_timer_is_set(&read->timer) || limit < read->timer.when)
        lieni_timer_set(&ctx->timers, &read->timer, limit);
    set_state(read, LIENI_READ_PROBING);
    read->ask.name = read->name;
    read->ask.answered = probe_answered;
    lieni_probe_ask(read->conn, &read->ask);
}

// All is known, and nothing touches the space any more.
static void finish(struct lien_read *read, int status)
{
    if (status == 0 && read->unverified)
        read->unverified(read);
    else if (status == 0)
        trust(read);
    done(read, status);
    lieni_target_back(read->space);
    settled(read, 0);
}

// -- Checksums [R16] --

// Whether what arrived is what was granted. Without the lock, while the space is lent; operations move whole buffers.
static bool sums_hold(const struct lien_read *read)
{
    for (size_t i = 0; i < read->plan.n_ops; i++) {
        const lien_op *op = &read->plan.ops[i];
        uint64_t at = 0; // of the source's buffers
        for (uint32_t k = 0; k < read->plan.n_src && at < op->src + op->len; k++) {
            const struct lieni_key *key = &read->keys[k];
            if (at >= op->src && lieni_bufs_sum(read->space->bufs, read->space->n,
                                                op->dst + (at - op->src), key->len) != key->sum)
                return false;
            at += key->len;
        }
    }
    return true;
}

static void checked(struct lien_read *read, bool holds)
{
    struct lien_conn *conn = read->conn;
    if (!holds) {
        conn->ctx->stats.checksums_wrong++;
        struct lieni_log_at at = lieni_conn_at(conn, lieni_name_id(read->name));
        lieni_log_say(conn->ctx->log, LIEN_LOG_ERROR, &at, LIEN_ECHECKSUM,
                      "a READ succeeded, and its bytes are not those that the peer granted");
    }
    finish(read, holds ? 0 : LIEN_ECHECKSUM);
}

static void run_check(struct lieni_task *task)
{
    struct lien_read *read = lieni_container(task, struct lien_read, check.task);
    struct lien_conn *conn = read->conn;
    lien_ctx *ctx = conn->ctx;
    const bool holds = sums_hold(read);
    lieni_ctx_lock(ctx);
    lieni_conn_ref(conn);
    read->check.runs = false;
    if (read->state == LIENI_READ_CHECKING) {
        checked(read, holds);
    } else { // done was told meanwhile
        lieni_target_back(read->space);
        settled(read, 0);
    }
    lieni_read_unref(read); // the check's
    if (--conn->n_checks == 0)
        lieni_conn_kick(conn);
    lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
}

// The bytes are here, and true if they arrived.
static void verdict(struct lien_read *read)
{
    if (!read->sums) {
        finish(read, 0);
        return;
    }
    set_state(read, LIENI_READ_CHECKING);
    if (read->plan.bytes_over > LIENI_CHECK_HERE &&
        lieni_check_post(read->conn->ctx, &read->check)) {
        read->check.runs = true;
        read->refs++;
        read->conn->n_checks++;
        return;
    }
    checked(read, sums_hold(read));
}

static void probed(struct lien_read *read, int status)
{
    lieni_list_remove(&read->ask.node);
    if (status == 0)
        verdict(read);
    else
        finish(read, status);
}

static void probe_answered(struct lieni_ask *ask, bool holds)
{
    probed(lieni_container(ask, struct lien_read, ask), holds ? 0 : LIEN_ESTALE);
}

// Whatever ends it for the memory passes here: nothing is posted that has no evidence.
static void settle_if_idle(struct lien_read *read)
{
    if (read->state == LIENI_READ_OVER || !lieni_plan_idle(&read->plan) || read->check.runs)
        return;
    if (read->state == LIENI_READ_RUNNING && read->plan.status == 0) {
        if (read->validate)
            probe(read);
        else
            verdict(read);
        return;
    }
    if (read->state == LIENI_READ_RUNNING)
        done(read, read->plan.status);
    lieni_target_back(read->space);
    settled(read, 0);
}

void lieni_read_stop(struct lien_read *read, int status)
{
    if (read->state == LIENI_READ_PROBING) { // no answer: nobody vouches for the bytes
        probed(read, status == LIEN_ECANCELED ? status : LIEN_ESTALE);
        return;
    }
    if (read->state != LIENI_READ_RUNNING && read->state != LIENI_READ_CHECKING)
        return;
    lieni_plan_stop(&read->plan);
    done(read, status);
    set_state(read, LIENI_READ_DRAINING);
    settle_if_idle(read);
}

void lieni_read_lost(struct lien_read *read)
{
    struct lien_conn *conn = read->conn;
    if (read->state == LIENI_READ_OVER)
        return;
    if (read->state == LIENI_READ_RUNNING)
        done(read, conn->status);
    conn->lost = true;
    conn->lost_bytes += read->space->len;
    lieni_target_lose(read->space, conn->nic->domain);
    settled(read, LIEN_EQUARANTINED);
}

void lieni_reads_stop(struct lien_conn *conn, const struct lieni_name *name, int status)
{
    // Off a list of its own: memory that comes home may start reads, and a refused registration end them.
    struct lieni_node batch, *n;
    lieni_list_init(&batch);
    while ((n = lieni_list_pop(&conn->reads)))
        lieni_list_append(&batch, n);
    while ((n = lieni_list_pop(&batch))) {
        struct lien_read *read = lieni_container(n, struct lien_read, node);
        lieni_list_append(&conn->reads, n);
        if (!name || (read->name.slot == name->slot && read->name.gen == name->gen))
            lieni_read_stop(read, status);
    }
}

static void on_timeout(struct lieni_timer *timer)
{
    struct lien_read *read = lieni_container(timer, struct lien_read, timer);
    lieni_trace_text(read->conn->trace, LIENI_TRACE_TIMER, lieni_name_id(read->name), 0, 0,
                     "deadline of a read", NULL);
    lieni_read_stop(read, LIEN_ETIMEDOUT);
}

// -- Posting --

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int post_piece(struct lien_read *read, const struct lieni_piece *piece)
{
    struct lien_conn *conn = read->conn;
    lien_buf *dst = read->space->bufs[piece->dst];
    struct lieni_region region;
    int rc = lieni_buf_region(dst, conn->ops, conn->nic->domain, &region);
    if (rc != 0)
        return rc;
    uint64_t seq;
    rc = lieni_wr_take(&conn->wrs, LIENI_WR_READ, read, piece->len, &seq);
    if (rc != 0)
        return rc;
    const struct lieni_key *key = &read->keys[piece->src];
    uint8_t *at = (uint8_t *)lieni_buf_addr(dst) + piece->dst_off;
    // [R16] Under the lock: a piece is 1 MiB at most, unless option read_piece says more, which takes tens of microseconds, or some milliseconds where no page of it was ever touched.
    lieni_buf_zero(dst, piece->dst_off, piece->len);
    rc = conn->ops->post_read(conn->ep, at, piece->len, region.mr, key->addr + piece->src_off,
                              key->key, seq);
    if (rc != 0)
        lieni_wr_untake(&conn->wrs, seq);
    return rc;
}

static void posted(struct lien_read *read, const struct lieni_piece *piece)
{
    struct lien_conn *conn = read->conn;
    lieni_plan_posted(&read->plan, piece);
    conn->ctx->stats.read_pieces_posted++;
    conn->nic->reads_inflight++;
    conn->reads_outstanding++;
    conn->read_bytes += piece->len;
    if (!read->at_risk) {
        read->at_risk = read->space->len;
        lieni_nic_read(conn, read->at_risk);
    }
    lieni_liveness_posted(conn);
    lieni_liveness_read_posted(conn);
    struct lieni_piece next;
    lieni_list_remove(&read->queue); // reads of a connection take turns, too
    if (lieni_plan_next(&read->plan, 1, &next))
        lieni_list_append(&conn->read_queue, &read->queue);
}

// R19: what may be outstanding on one connection, so that control frames keep their time.
static bool room(const struct lien_conn *conn, uint64_t len)
{
    const struct lieni_traits *t = conn->ops->traits;
    uint64_t max = least(conn->ctx->options.read_conn_bytes, t->read_bytes_max);
    return conn->reads_outstanding == 0 ||
           (conn->reads_outstanding < conn->reads_max && conn->read_bytes + len <= max);
}

// One piece of `read`. *next: it has none, or never will: another one's turn.
static enum lieni_post post_of(struct lien_read *read, bool *next)
{
    struct lien_conn *conn = read->conn;
    const struct lieni_traits *t = conn->ops->traits;
    uint64_t max = least(conn->ctx->options.read_piece, conn->nic->limits.read_piece_max);
    max = least(max, least(conn->ctx->options.read_conn_bytes, t->read_bytes_max));
    struct lieni_piece piece;
    *next = !lieni_plan_next(&read->plan, max, &piece);
    if (*next) {
        lieni_list_remove(&read->queue);
        return LIENI_NOTHING;
    }
    if (!room(conn, piece.len))
        return LIENI_BLOCKED;
    int rc = read->at_risk ? 0 : lieni_nic_read_room(conn, read->space->len);
    if (rc == LIEN_EAGAIN)
        return LIENI_BLOCKED;
    *next = rc != 0;
    if (*next) {
        lieni_read_stop(read, rc);
        return LIENI_NOTHING;
    }
    rc = post_piece(read, &piece);
    if (rc == 0) {
        posted(read, &piece);
        return LIENI_POSTED;
    }
    if (rc == LIEN_EREGISTER || rc == LIEN_ENOMEM) {
        *next = true;
        lieni_read_stop(read, rc);
        return LIENI_NOTHING;
    }
    if (rc == LIEN_EAGAIN)
        lieni_liveness_again(conn);
    else
        lieni_conn_break(conn, rc == LIEN_ESTATE ? LIEN_EPEERLOST : rc, "a READ was refused");
    return LIENI_BLOCKED;
}

enum lieni_post lieni_read_post_one(struct lien_conn *conn)
{
    enum lieni_post did = LIENI_NOTHING;
    struct lieni_node *n;
    bool next = true;
    while (next && (n = lieni_list_first(&conn->read_queue))) {
        if (lieni_conn_usable(conn) != 0 || conn->broken != 0)
            return LIENI_NOTHING;
        did = post_of(lieni_container(n, struct lien_read, queue), &next);
    }
    return did;
}

void lieni_read_on_evidence(struct lien_conn *conn, struct lieni_evidence *ev)
{
    struct lien_read *read = lieni_evidence_spend(ev, conn->id, LIENI_WR_READ);
    struct lieni_nic *nic = conn->nic;
    nic->reads_inflight--;
    conn->reads_outstanding--;
    conn->read_bytes -= ev->posted_len;
    if (ev->status == 0) {
        conn->ctx->stats.read_pieces_done++;
        conn->ctx->stats.read_bytes += ev->posted_len;
        conn->counts.read_bytes += ev->posted_len;
    }
    lieni_liveness_read_over(conn, ev->status == 0);
    // Where a failed READ takes the connection along, that is what the application has to hear, whatever the device calls it.
    int status = ev->status == LIEN_EIO && conn->ops->traits->refused_read_kills ? LIEN_EPEERLOST
                                                                                 : ev->status;
    lieni_plan_piece_over(&read->plan, ev->posted_len, lieni_conn_op_status(conn, status));
    if (ev->status != 0)
        lieni_plan_stop(&read->plan);
    settle_if_idle(read);
    if (ev->status != 0 && conn->ops->traits->refused_read_kills)
        lieni_conn_lose(conn, LIEN_EPEERLOST, "a READ failed");
    lieni_nic_want_reads(conn);
    lieni_nic_pump(nic);
}

// -- Starting --

static int make_plan(struct lien_read *read, const struct lieni_token_data *token,
                     const lien_space *space, const lien_read_opts *opts)
{
    uint64_t src[LIEN_BUFS_MAX], dst[LIEN_BUFS_MAX];
    for (uint32_t i = 0; i < token->n_keys; i++)
        src[i] = token->keys[i].len;
    for (uint32_t i = 0; i < space->n; i++)
        dst[i] = lien_buf_len(space->bufs[i]);
    return lieni_plan_open(&read->plan, opts->ops, opts->n_ops, src, token->n_keys, dst, space->n);
}

// What is in quarantine leaves room for it; it waits for what runs only when it is posted. [R12]
static int quarantine_room(struct lien_conn *conn, const lien_space *space)
{
    uint64_t len = 0; // the application may have changed lengths
    for (uint32_t i = 0; i < space->n; i++)
        len += lien_buf_len(space->bufs[i]);
    return lieni_nic_may_read(conn, len);
}

// With checksums whole buffers are moved only; without, the peer must not owe them. [R16]
static int check_sums(struct lien_read *read, const struct lieni_token_data *token)
{
    const struct lien_conn *conn = read->conn;
    struct lieni_log_at at = lieni_conn_at(conn, lieni_name_id(token->name));
    read->sums = token->sums;
    if (!token->sums) {
        if (!conn->ctx->options.checksum_require || token->total == 0)
            return 0;
        lieni_log_say(conn->ctx->log, LIEN_LOG_WARN, &at, LIEN_ECHECKSUM,
                      "the peer granted %llu bytes without a checksum, option checksum is require",
                      (unsigned long long)token->total);
        return LIEN_ECHECKSUM;
    }
    int rc = lieni_check_whole(read->plan.ops, read->plan.n_ops, read->plan.src_lens,
                               read->plan.n_src);
    if (rc != 0)
        lieni_log_say(conn->ctx->log, LIEN_LOG_WARN, &at, rc,
                      "an operation moves a part of a buffer that has a checksum over its whole");
    return rc;
}

int lieni_read_batch_check(const struct lien_conn *conn, uint64_t bytes)
{
    const struct lieni_traits *traits = conn->ops->traits;
    if (traits->read_batch_max == 0 || bytes <= traits->read_batch_max)
        return 0;
    struct lieni_log_at at = lieni_conn_at(conn, 0);
    lieni_log_say(
        conn->ctx->log, LIEN_LOG_WARN, &at, LIEN_EMSGSIZE,
        "%llu bytes are more than provider %s moves in one read, %llu: split them, or use a "
        "provider with RMA",
        (unsigned long long)bytes, traits->name, (unsigned long long)traits->read_batch_max);
    return LIEN_EMSGSIZE;
}

static int fill(struct lien_read *read, const struct lieni_token_data *token, lien_space *space,
                const lien_read_opts *opts)
{
    struct lien_conn *conn = read->conn;
    int rc = make_plan(read, token, space, opts);
    if (rc != 0)
        return rc;
    uint64_t bytes = 0;
    for (size_t i = 0; i < read->plan.n_ops; i++)
        bytes += read->plan.ops[i].len; // no byte of the space twice: cannot wrap
    rc = lieni_read_batch_check(conn, bytes);
    if (rc == 0)
        rc = check_sums(read, token);
    if (rc != 0) {
        lieni_plan_close(&read->plan);
        return rc;
    }
    read->keys = calloc(token->n_keys ? token->n_keys : 1, sizeof(*read->keys));
    rc = read->keys ? lieni_timer_init(&conn->ctx->timers, &read->timer, on_timeout) : LIEN_ENOMEM;
    if (rc != 0)
        goto close_plan;
    memcpy(read->keys, token->keys, token->n_keys * sizeof(*read->keys));
    rc = lieni_import_open(conn, token->name);
    if (rc == 0)
        rc = lieni_target_lend(space);
    if (rc == 0)
        return 0;
    lieni_timer_fini(&conn->ctx->timers, &read->timer);
close_plan:
    free(read->keys);
    lieni_plan_close(&read->plan);
    return rc;
}

int lieni_read_new(struct lien_conn *conn, const struct lieni_token_data *token, lien_space *space,
                   const lien_read_opts *opts, struct lien_read **out)
{
    int rc = lieni_conn_usable(conn);
    if (rc == 0 && (space->ctx != conn->ctx || token->name.slot >= conn->imports.max))
        rc = space->ctx != conn->ctx ? LIEN_EINVAL : LIEN_EPROTO;
    if (rc == 0)
        rc = quarantine_room(conn, space);
    if (rc != 0)
        return rc;
    struct lien_read *read = calloc(1, sizeof(*read));
    if (!read)
        return LIEN_ENOMEM;
    read->conn = conn;
    rc = fill(read, token, space, opts);
    if (rc != 0) {
        free(read);
        return rc;
    }
    read->name = token->name;
    read->space = space;
    for (uint32_t i = 0; i < space->n; i++)
        lieni_buf_lent_by(space->bufs[i], LIENI_LENT_BY_READ, conn->id, lieni_name_id(read->name));
    read->flags = opts->flags;
    read->strand = conn->strand;
    lieni_list_init(&read->ask.node);
    read->done_task.run = run_done;
    read->released_task.run = run_released;
    read->check.task.run = run_check;
    lieni_list_init(&read->node);
    lieni_list_init(&read->queue);
    lieni_list_init(&read->handle);
    read->refs = 1; // running
    lieni_conn_ref(conn);
    lieni_import_read_begins(conn, read->name);
    lieni_trace_text(conn->trace, LIENI_TRACE_READ, lieni_name_id(read->name), space->len, 0, "new",
                     state_names[read->state]);
    lieni_list_append(&conn->reads, &read->node);
    lieni_liveness_watch(conn);
    if (opts->timeout_ms && opts->timeout_ms != LIEN_FOREVER)
        lieni_timer_set(&conn->ctx->timers, &read->timer,
                        lieni_ctx_deadline(conn->ctx, opts->timeout_ms));
    conn->ctx->stats.reads_started++;
    *out = read;
    return 0;
}

void lieni_read_go(struct lien_read *read)
{
    struct lien_conn *conn = read->conn;
    if (read->flags & LIEN_RELEASE)
        lieni_import_release(conn, read->name); // due when its last evidence is spent
    if (lieni_plan_idle(&read->plan)) {         // nothing to move
        settle_if_idle(read);
        return;
    }
    lieni_list_append(&conn->read_queue, &read->queue);
    lieni_nic_want_reads(conn);
    if (conn->nic)
        lieni_nic_pump(conn->nic);
}

// -- Public --

static int read_opts(const lien_read_opts *in, lien_read_opts *out)
{
    lien_read_opts_init(out);
    int rc = in ? lieni_opts_copy(out, sizeof(*out), in, in->size) : 0;
    if (rc == 0 && (out->flags & ~(LIEN_RELEASE | LIEN_INLINE)) != 0)
        rc = LIEN_EINVAL;
    if (rc == 0 && out->n_ops > 0 && !out->ops)
        rc = LIEN_EINVAL;
    return rc;
}

// Checks the token and makes the read; the caller starts it.
static int start(lien_conn *conn, const void *token, size_t token_len, lien_space *space,
                 const lien_read_opts *opts, struct lien_read **read)
{
    struct lieni_token_data data;
    int rc = lieni_token_of(conn, token, token_len, &data);
    return rc == 0 ? lieni_read_new(conn, &data, space, opts, read) : rc;
}

int lien_read_start(lien_conn *conn, const void *token, size_t token_len, lien_space *space,
                    const lien_read_opts *opts, lien_read **out)
{
    lien_read_opts full;
    if (!conn || !token || !space)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    int rc = read_opts(opts, &full);
    if (rc != 0)
        return rc;
    struct lien_read *read;
    lieni_ctx_lock(conn->ctx);
    rc = start(conn, token, token_len, space, &full, &read);
    if (rc == 0) {
        read->on_done = full.on_done;
        read->on_released = full.on_released;
        read->arg = full.arg;
        if (out) {
            lieni_list_append(&conn->read_handles, &read->handle);
            read->refs++;
            *out = read;
        }
        lieni_read_go(read);
    }
    lieni_ctx_unlock(conn->ctx);
    return rc;
}

int lien_read_cancel(lien_read *read)
{
    if (!read)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(read->conn->ctx))
        return LIEN_EFORK;
    lien_ctx *ctx = read->conn->ctx;
    lieni_ctx_lock(ctx);
    lieni_read_stop(read, LIEN_ECANCELED);
    lieni_ctx_unlock(ctx);
    return 0;
}

int lien_read_close(lien_read **slot)
{
    if (!slot || !*slot)
        return LIEN_EINVAL;
    if (lieni_ctx_forked((*slot)->conn->ctx))
        return LIEN_EFORK;
    struct lien_read *read = *slot;
    lien_ctx *ctx = read->conn->ctx;
    lieni_ctx_lock(ctx);
    *slot = NULL;
    lieni_list_remove(&read->handle);
    lieni_read_stop(read, LIEN_ECANCELED);
    lieni_read_unref(read);
    lieni_ctx_unlock(ctx);
    return 0;
}

// Waits for evidence, however long it takes: its timer, the watchdog and the teardown bound it.
int lieni_read_wait_over(struct lien_read *read)
{
    lien_ctx *ctx = read->conn->ctx;
    int rc = 0;
    while (read->state != LIENI_READ_OVER && rc == 0)
        rc = lieni_ctx_wait_locked(ctx, UINT64_MAX);
    if (read->state == LIENI_READ_OVER)
        rc = read->released != 0 ? read->released : read->status;
    return rc;
}

int lien_read_wait(lien_conn *conn, const void *token, size_t token_len, lien_buf **slots, size_t n,
                   const lien_read_opts *opts)
{
    lien_read_opts full;
    if (!conn || !token)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    lien_ctx *ctx = conn->ctx;
    int rc = read_opts(opts, &full);
    if (rc == 0)
        rc = lieni_dispatch_where(ctx->dispatch, NULL) == LIENI_IN_PROGRESS ? LIEN_EDEADLK : 0;
    if (rc != 0)
        return rc;
    lien_space *space = NULL;
    struct lien_read *read = NULL;
    lieni_ctx_lock(ctx);
    rc = lieni_target_open(ctx, slots, n, &space);
    if (rc == 0)
        rc = start(conn, token, token_len, space, &full, &read);
    if (read) {
        read->refs++;
        lieni_read_go(read);
        rc = lieni_read_wait_over(read);
        lieni_read_unref(read);
    }
    // With evidence the slots are refilled; in quarantine they stay NULL.
    if (space) {
        lieni_target_take(space, slots, n);
        lieni_target_free(space);
    }
    lieni_ctx_unlock(ctx);
    return rc;
}
