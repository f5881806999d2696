// SPDX-License-Identifier: Apache-2.0
//
// Receiving: what a descriptor or an escape stands for, put in its place. See state.h. Two threads that open one byte buffer at once, which gRPC allows, take turns at a mutex chosen by its
// address; the READ runs inside it and outside the shim's lock.

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "state.h"

#define TURNS 64u
// For how long a receiver waits for room in its pool.
#define ROOM_MS 5000u

static pthread_mutex_t turns[TURNS];

__attribute__((constructor)) static void init_turns(void)
{
    for (size_t i = 0; i < TURNS; i++)
        pthread_mutex_init(&turns[i], NULL);
}

static pthread_mutex_t *turn_of(const grpc_byte_buffer *message)
{
    return &turns[((uintptr_t)message >> 4) % TURNS];
}

// -- Looking at it ---------------------------------------------------------------------------------------------------------------------

// Copies the bytes from `from` on into `out`, as far as there are; returns how many.
static size_t gather(const grpc_slice_buffer *slices, size_t from, uint8_t *out, size_t size)
{
    size_t done = 0;
    for (size_t i = 0; i < slices->count && done < size; i++) {
        size_t len = GRPC_SLICE_LENGTH(slices->slices[i]), skip = from < len ? from : len;
        size_t n = len - skip < size - done ? len - skip : size - done;
        memcpy(out + done, GRPC_SLICE_START_PTR(slices->slices[i]) + skip, n);
        done += n;
        from -= skip;
    }
    return done;
}

// The head of what stands for another message; HEAD_NONE: it is a message. The usual answer costs a comparison of one byte.
static struct head look(const grpc_byte_buffer *message)
{
    struct head head = {.kind = HEAD_NONE};
    uint8_t bytes[HEAD_BYTES];
    if (!message || message->type != GRPC_BB_RAW ||
        message->data.raw.compression != GRPC_COMPRESS_NONE ||
        message->data.raw.slice_buffer.length < HEAD_BYTES)
        return head;
    const grpc_slice_buffer *slices = &message->data.raw.slice_buffer;
    if (GRPC_SLICE_LENGTH(slices->slices[0]) > 0 && GRPC_SLICE_START_PTR(slices->slices[0])[0] != 7)
        return head;
    gather(slices, 0, bytes, sizeof bytes);
    head = frame_get_head(bytes, slices->length);
    if (head.kind == HEAD_NONE)
        return head;
    state_lock();
    if (!nonce_met(&head.nonce))
        head.kind = HEAD_NONE;
    state_unlock();
    return head;
}

// -- Reading it ------------------------------------------------------------------------------------------------------------------------

static bool fail(struct failure *why, grpc_status_code code, const char *text)
{
    why->code = code;
    snprintf(why->text, sizeof why->text, "%s", text);
    return false;
}

static bool fail_lien(struct failure *why, int status)
{
    if (status == LIEN_ETIMEDOUT)
        return fail(why, GRPC_STATUS_DEADLINE_EXCEEDED, "Deadline Exceeded");
    why->code = GRPC_STATUS_UNAVAILABLE;
    snprintf(why->text, sizeof why->text, "lien: the message could not be read: %s",
             lien_strerror(status));
    return false;
}

static uint32_t left_ms(const struct call *call)
{
    if (!call || call->server)
        return LIEN_FOREVER; // a connection that is lost ends it
    gpr_timespec now = real.gpr_now(GPR_CLOCK_MONOTONIC);
    gpr_timespec end = real.gpr_convert_clock_type(call->deadline, GPR_CLOCK_MONOTONIC);
    int32_t ms = real.gpr_time_to_millis(real.gpr_time_sub(end, now));
    return ms == INT32_MAX ? LIEN_FOREVER : ms < 1 ? 1 : (uint32_t)ms;
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void destroy_buf(void *arg)
{
    lien_buf *buf = arg;
    lien_buf_free(&buf);
}

// Inside the link. `*buf` is filled on success, and NULL otherwise.
static bool read_it(lien_conn *conn, const struct head *head, const uint8_t *token, uint32_t ms,
                    lien_buf **buf, struct failure *why)
{
    lien_token_info info = {.size = sizeof info};
    int rc = lien_token_open(conn, token, head->token_len, &info);
    if (rc == 0 && info.len != head->len)
        rc = LIEN_EPROTO;
    if (rc == 0)
        rc = lien_pool_alloc(ctx_receive_pool(), head->len, buf);
    if (rc == LIEN_ELIMIT)
        rc = lien_pool_alloc_wait(ctx_receive_pool(), head->len, ms < ROOM_MS ? ms : ROOM_MS, buf);
    if (rc != 0) {
        lien_release(conn, token, head->token_len);
        return rc == LIEN_EPROTO || rc == LIEN_ESTALE
                   ? fail_lien(why, rc)
                   : fail(why, GRPC_STATUS_RESOURCE_EXHAUSTED,
                          "lien: no room to receive the message");
    }
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.flags = LIEN_RELEASE;
    opts.timeout_ms = ms == LIEN_FOREVER ? 0 : ms;
    uint64_t begin = now_us();
    rc = lien_read_wait(conn, token, head->token_len, buf, 1, &opts);
    stat_add(STAT_read_us, now_us() - begin);
    if (rc == 0)
        return true;
    lien_release(conn, token, head->token_len); // no effect where the read did it
    lien_buf_free(buf);
    return fail_lien(why, rc);
}

// Whether the descriptor is one of this call. A client may hear of the first message before the thread that has the server's metadata has come to it: then the descriptor tells the number.
static bool belongs(struct call *call, const struct head *head)
{
    if (call->server)
        return !head->from_server;
    if (!head->from_server || memcmp(&call->nonce, &head->nonce, NONCE_BYTES) != 0)
        return false;
    state_lock();
    call_bind(call, true, head->call);
    bool ours = call->bound && call->number == head->call;
    state_unlock();
    return ours;
}

static bool descriptor(grpc_byte_buffer *message, const struct head *head, struct call *call,
                       struct failure *why)
{
    uint8_t token[LIEN_TOKEN_MAX];
    lien_buf *buf = NULL;
    void *data;
    if (call && !belongs(call, head))
        return fail(why, GRPC_STATUS_UNAVAILABLE, "lien: the message belongs to another call");
    gather(&message->data.raw.slice_buffer, HEAD_BYTES, token, head->token_len);
    state_lock();
    struct link *link = link_find(&head->nonce, !head->from_server);
    uint64_t limit = !link          ? 0
                     : link->server ? link->limit
                     : call         ? call->channel->receive_limit
                                    : UINT64_MAX;
    if (link && !link_enter(link))
        link = NULL;
    state_unlock();
    if (!link)
        return fail(why, GRPC_STATUS_UNAVAILABLE,
                    "lien: the connection that carries the message has ended");
    bool good;
    if (head->len > limit) {
        lien_release(link->conn, token, head->token_len);
        snprintf(why->text, sizeof why->text,
                 "Received message larger than max (%" PRIu64 " vs. %" PRIu64 ")", head->len,
                 limit);
        why->code = GRPC_STATUS_RESOURCE_EXHAUSTED;
        good = false;
    } else {
        good = read_it(link->conn, head, token, left_ms(call), &buf, why);
    }
    state_lock();
    link_leave(link);
    state_unlock();
    if (!good)
        return false;
    if (lien_buf_mut(buf, &data) != 0) {
        lien_buf_free(&buf);
        return fail_lien(why, LIEN_EBUSY);
    }
    grpc_slice slice = real.grpc_slice_new_with_user_data(data, head->len, destroy_buf, buf);
    real.grpc_slice_buffer_reset_and_unref(&message->data.raw.slice_buffer);
    real.grpc_slice_buffer_add(&message->data.raw.slice_buffer, slice);
    stat_add(STAT_received_out_of_band, 1);
    stat_add(STAT_received_bytes, head->len);
    return true;
}

static void unescape(grpc_slice_buffer *slices)
{
    for (size_t left = HEAD_BYTES; left > 0;) {
        grpc_slice first = real.grpc_slice_buffer_take_first(slices);
        size_t len = GRPC_SLICE_LENGTH(first);
        if (len > left) {
            grpc_slice rest = real.grpc_slice_split_tail(&first, left);
            real.grpc_slice_buffer_undo_take_first(slices, rest);
            len = left;
        }
        real.grpc_slice_unref(first);
        left -= len;
    }
}

static _Thread_local struct failure last; // of a message whose call was not known

struct failure failure_of_thread(void)
{
    struct failure failure = last;
    last.code = GRPC_STATUS_OK;
    return failure;
}

bool fetch(grpc_byte_buffer *message, struct call *call, struct failure *why)
{
    last.code = GRPC_STATUS_OK;
    struct head head = look(message);
    if (head.kind == HEAD_NONE)
        return true;
    pthread_mutex_t *turn = turn_of(message);
    bool good = true;
    pthread_mutex_lock(turn);
    head = look(message); // another thread may have done it
    if (head.kind == HEAD_ESCAPED)
        unescape(&message->data.raw.slice_buffer);
    else if (head.kind == HEAD_DESCRIPTOR)
        good = descriptor(message, &head, call, why);
    pthread_mutex_unlock(turn);
    if (good)
        return true;
    stat_add(STAT_read_failed, 1);
    if (!call)
        last = *why;
    return false;
}

uint64_t fetch_length(grpc_byte_buffer *message)
{
    struct head head = look(message);
    return head.kind == HEAD_NONE ? real.grpc_byte_buffer_length(message) : head.len;
}

void fetch_drop(grpc_byte_buffer *message)
{
    uint8_t token[LIEN_TOKEN_MAX];
    struct head head = look(message);
    if (head.kind != HEAD_DESCRIPTOR)
        return;
    gather(&message->data.raw.slice_buffer, HEAD_BYTES, token, head.token_len);
    state_lock();
    struct link *link = link_find(&head.nonce, !head.from_server);
    if (link && link_enter(link)) {
        if (lien_release(link->conn, token, head.token_len) == 0)
            stat_add(STAT_unopened, 1);
        link_leave(link);
    }
    state_unlock();
}
