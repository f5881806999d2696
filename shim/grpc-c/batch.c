// SPDX-License-Identifier: Apache-2.0
//
// grpc_call_start_batch(): the one door of a call after its creation. See state.h. The application's ops are copied, changed where Lien has a part in them, and handed on; what could not start is undone.

#include <stdlib.h>
#include <string.h>

#include "state.h"

// gRPC takes each kind of op once.
#define OPS_MAX 8

// What was put into a batch, to be let go when gRPC has it.
struct changes {
    grpc_op ops[OPS_MAX];
    grpc_metadata *metadata; // the longer array
    grpc_slice value;
    bool has_value;
    struct sending sending;
    grpc_slice details; // of a status that was replaced
    bool has_details;
};

static void add_metadata(struct changes *changes, grpc_op *op, const char *key, const char *text,
                         size_t len)
{
    size_t n = op->data.send_initial_metadata.count;
    changes->metadata = calloc(n + 1, sizeof *changes->metadata);
    if (!changes->metadata)
        return;
    if (n > 0)
        memcpy(changes->metadata, op->data.send_initial_metadata.metadata,
               n * sizeof *changes->metadata);
    changes->value = real.grpc_slice_from_copied_buffer(text, len);
    changes->has_value = true;
    changes->metadata[n].key = real.grpc_slice_from_static_string(key);
    changes->metadata[n].value = changes->value;
    op->data.send_initial_metadata.metadata = changes->metadata;
    op->data.send_initial_metadata.count = n + 1;
}

static void add_entry(const struct call *call, struct changes *changes, grpc_op *op)
{
    char text[CALL_ENTRY_MAX];
    struct call_entry entry = {
        .linked = call->linked, .nonce = call->nonce, .limit = call->channel->receive_limit};
    size_t len = frame_put_call(&entry, text);
    add_metadata(changes, op, CALL_KEY, text, len);
}

static void add_offer(const struct call *call, struct changes *changes, grpc_op *op)
{
    char text[OFFER_ENTRY_MAX];
    struct offer_entry offer = {.linked = call->linked, .call = call->number};
    state_lock();
    const struct server *server = server_numbered(call->server_number);
    offer.instance = process_instance();
    if (server)
        memcpy(offer.address, server->offer, sizeof server->offer);
    state_unlock();
    size_t len = frame_put_offer(&offer, text);
    add_metadata(changes, op, OFFER_KEY, text, len);
}

// An unopened message that is sent on is opened first. One that cannot be had ends the call.
static void open_first(grpc_call *handle, const grpc_op *op)
{
    struct failure why = {.code = GRPC_STATUS_OK};
    grpc_byte_buffer *message = op->data.send_message.send_message;
    if (!message || fetch(message, NULL, &why))
        return;
    real.grpc_call_cancel_with_status(handle, why.code, why.text, NULL);
    fetch_drop(message);
    real.grpc_slice_buffer_reset_and_unref(&message->data.raw.slice_buffer);
}

static void replace_status(struct call *call, struct changes *changes, grpc_op *op)
{
    struct failure early = failure_of_thread();
    state_lock();
    struct failure failure = call->failure;
    state_unlock();
    // The first message of a synchronous or callback server's call is opened before the call can be known, and by the thread that then answers it with an error.
    if (failure.code == GRPC_STATUS_OK && op->data.send_status_from_server.status != GRPC_STATUS_OK)
        failure = early;
    if (failure.code == GRPC_STATUS_OK)
        return;
    changes->details = real.grpc_slice_from_copied_buffer(failure.text, strlen(failure.text));
    changes->has_details = true;
    op->data.send_status_from_server.status = failure.code;
    op->data.send_status_from_server.status_details = &changes->details;
}

// `call` may be NULL.
static void change(grpc_call *handle, struct call *call, struct changes *changes, grpc_op *op)
{
    switch (op->op) {
    case GRPC_OP_SEND_INITIAL_METADATA:
        if (call && call->offers)
            add_offer(call, changes, op);
        else if (call && !call->server)
            add_entry(call, changes, op);
        break;
    case GRPC_OP_SEND_MESSAGE:
        open_first(handle, op);
        send_prepare(call, op, &changes->sending);
        break;
    case GRPC_OP_SEND_STATUS_FROM_SERVER:
        if (call)
            replace_status(call, changes, op);
        break;
    case GRPC_OP_SEND_CLOSE_FROM_CLIENT:
    case GRPC_OP_RECV_INITIAL_METADATA:
    case GRPC_OP_RECV_MESSAGE:
    case GRPC_OP_RECV_STATUS_ON_CLIENT:
    case GRPC_OP_RECV_CLOSE_ON_SERVER:
        break;
    }
}

static void let_go(struct call *call, struct changes *changes, bool started)
{
    send_done(call, &changes->sending, started);
    free(changes->metadata);
    if (changes->has_value)
        real.grpc_slice_unref(changes->value);
    if (changes->has_details)
        real.grpc_slice_unref(changes->details);
}

grpc_call_error batch_start(grpc_call *handle, const grpc_op *ops, size_t n, void *tag,
                            void *reserved)
{
    struct changes changes = {.metadata = NULL};
    if (n > OPS_MAX || (n > 0 && !ops))
        return real.grpc_call_start_batch(handle, ops, n, tag, reserved);
    struct call *call = call_adopt(handle);
    for (size_t i = 0; i < n; i++) {
        changes.ops[i] = ops[i];
        change(handle, call, &changes, &changes.ops[i]);
    }
    void *own = call ? tag_wrap(call, ops, n, tag) : tag;
    grpc_call_error error = real.grpc_call_start_batch(handle, changes.ops, n, own, reserved);
    let_go(call, &changes, error == GRPC_CALL_OK);
    if (error != GRPC_CALL_OK && own != tag)
        tag_unused(own);
    if (call) {
        state_lock();
        call_unpin(call);
        state_unlock();
    }
    return error;
}
