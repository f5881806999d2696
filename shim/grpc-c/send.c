// SPDX-License-Identifier: Apache-2.0
//
// Sending: a large message becomes a loan and a descriptor, one that looks like a descriptor is escaped, all others stay as they are. See state.h.

#include <stdlib.h>
#include <string.h>

#include "state.h"

static void copy_slices(const grpc_slice_buffer *slices, uint8_t *out)
{
    for (size_t i = 0; i < slices->count; i++) {
        size_t len = GRPC_SLICE_LENGTH(slices->slices[i]);
        memcpy(out, GRPC_SLICE_START_PTR(slices->slices[i]), len);
        out += len;
    }
}

static bool begins_like_ours(const grpc_slice_buffer *slices)
{
    uint8_t bytes[MAGIC_BYTES];
    size_t done = 0;
    for (size_t i = 0; i < slices->count && done < sizeof bytes; i++) {
        size_t len = GRPC_SLICE_LENGTH(slices->slices[i]);
        size_t n = len < sizeof bytes - done ? len : sizeof bytes - done;
        memcpy(bytes + done, GRPC_SLICE_START_PTR(slices->slices[i]), n);
        done += n;
        if (bytes[0] != 7)
            return false;
    }
    return frame_magic(bytes, done);
}

// Why a large message of a linked call stays in band, or STAT_COUNT.
static enum stat obstacle(const struct call *call, uint64_t len)
{
    if (call->link->state != LINK_READY)
        return STAT_large_unlinked;
    if (len > call->limit || len > call->send_limit)
        return STAT_large_limit;
    if (!call->server && (call->channel->balanced || call->channel->doubt > 0))
        return STAT_large_several;
    return STAT_COUNT;
}

static struct loan *begin(struct call *call, uint64_t len)
{
    state_lock();
    enum stat why = obstacle(call, len);
    struct loan *loan = why == STAT_COUNT ? loan_begin(call, len) : NULL;
    state_unlock();
    if (why != STAT_COUNT)
        stat_add(why, 1);
    return loan;
}

static lien_buf *stage(const grpc_slice_buffer *slices)
{
    lien_buf *buf = NULL;
    void *data;
    if (lien_pool_alloc(ctx_send_pool(), slices->length, &buf) != 0)
        return NULL;
    if (lien_buf_mut(buf, &data) != 0) {
        lien_buf_free(&buf);
        return NULL;
    }
    copy_slices(slices, data);
    stat_add(STAT_copied_bytes, slices->length);
    return buf;
}

static grpc_byte_buffer *put_descriptor(struct call *call, uint64_t len, const lien_token *token)
{
    uint8_t bytes[HEAD_BYTES + LIEN_TOKEN_MAX];
    struct head head = {.kind = HEAD_DESCRIPTOR,
                        .from_server = call->server,
                        .index = call->sent++,
                        .nonce = call->nonce,
                        .call = call->server ? call->number : call->id,
                        .len = len,
                        .token_len = token->len};
    frame_put_head(&head, bytes);
    memcpy(bytes + HEAD_BYTES, token->bytes, token->len);
    grpc_slice slice = real.grpc_slice_from_copied_buffer((const char *)bytes,
                                                          HEAD_BYTES + token->len);
    grpc_byte_buffer *message = real.grpc_raw_byte_buffer_create(&slice, 1);
    real.grpc_slice_unref(slice);
    return message;
}

// NULL: in band.
static grpc_byte_buffer *lend(struct call *call, const grpc_slice_buffer *slices)
{
    lien_token token;
    struct loan *loan = begin(call, slices->length);
    if (!loan)
        return NULL;
    lien_buf *buf = stage(slices);
    if (!buf) {
        stat_add(STAT_large_memory, 1);
        loan_abandon(loan);
        return NULL;
    }
    if (loan_grant(loan, &buf, &token) != 0) {
        stat_add(STAT_large_refused, 1);
        return NULL;
    }
    stat_add(STAT_sent_out_of_band, 1);
    stat_add(STAT_sent_bytes, slices->length);
    return put_descriptor(call, slices->length, &token);
}

static grpc_byte_buffer *escape(struct call *call, const grpc_slice_buffer *slices)
{
    uint8_t bytes[HEAD_BYTES];
    struct head head = {.kind = HEAD_ESCAPED,
                        .from_server = call->server,
                        .nonce = call->nonce,
                        .call = call->server ? call->number : call->id,
                        .len = slices->length};
    grpc_slice *all = calloc(slices->count + 1, sizeof *all);
    if (!all)
        abort(); // sent as it is, it could be misread; gRPC itself aborts without memory
    frame_put_head(&head, bytes);
    all[0] = real.grpc_slice_from_copied_buffer((const char *)bytes, sizeof bytes);
    for (size_t i = 0; i < slices->count; i++)
        all[i + 1] = slices->slices[i];
    grpc_byte_buffer *message = real.grpc_raw_byte_buffer_create(all, slices->count + 1);
    real.grpc_slice_unref(all[0]);
    free(all);
    stat_add(STAT_escaped, 1);
    return message;
}

static bool is_plain(const grpc_byte_buffer *message)
{
    return message && message->type == GRPC_BB_RAW &&
           message->data.raw.compression == GRPC_COMPRESS_NONE;
}

void send_prepare(struct call *call, grpc_op *op, struct sending *sending)
{
    grpc_byte_buffer *message = op->data.send_message.send_message;
    *sending = (struct sending){.own = NULL};
    if (!is_plain(message))
        return;
    const grpc_slice_buffer *slices = &message->data.raw.slice_buffer;
    bool large = slices->length >= conf.threshold && slices->length > 0;
    if (large && call && call->link)
        sending->own = lend(call, slices);
    else if (large)
        stat_add(STAT_large_unlinked, 1);
    sending->lent = sending->own != NULL;
    if (!sending->own && call && call->linked && begins_like_ours(slices))
        sending->own = escape(call, slices);
    if (!sending->lent)
        stat_add(STAT_sent_in_band, 1);
    if (!sending->own)
        return;
    // Emptied as gRPC does with what it takes over, and before the batch starts: it may be complete, and the byte buffer gone, before the start returns.
    sending->theirs = message;
    real.grpc_slice_buffer_init(&sending->kept);
    real.grpc_slice_buffer_swap(&sending->kept, &message->data.raw.slice_buffer);
    op->data.send_message.send_message = sending->own;
    if (sending->lent)
        op->flags |= GRPC_WRITE_NO_COMPRESS;
}

void send_done(struct call *call, struct sending *sending, bool started)
{
    if (!sending->own)
        return;
    if (!started) {
        real.grpc_slice_buffer_swap(&sending->kept, &sending->theirs->data.raw.slice_buffer);
        if (sending->lent)
            ledger_retract(call, call->sent - 1);
    }
    real.grpc_slice_buffer_destroy(&sending->kept);
    real.grpc_byte_buffer_destroy(sending->own);
}
