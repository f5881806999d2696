// SPDX-License-Identifier: Apache-2.0
//
// Tags of ours on batches: between gRPC's completion and the application's hearing of it the offer is taken out of the initial metadata, a message that came out of band is read, and a
// failure becomes the call's status. See state.h. A tag lives from tag_wrap() to its event. It is told from the application's tags by its address, never by what it points to. On a
// callback queue it is a functor that may not be inlined, whatever the application's is: so it need not be known what kind of queue a call is on.

#include <stdlib.h>
#include <string.h>

#include "state.h"

#define BUCKETS 4096u

struct tag {
    grpc_completion_queue_functor functor; // first: callback queues run it
    struct tag *by_own, *by_theirs;
    void *theirs;
    struct call *call; // pinned; NULL: a request, whose call is not there yet
    grpc_call **requested;
    grpc_metadata_array *initial;
    grpc_byte_buffer **message;
    grpc_status_code *status;
    grpc_slice *details;
};

static struct tag *by_own[BUCKETS], *by_theirs[BUCKETS];
static uint64_t count;

static struct tag **bucket(struct tag **table, const void *tag)
{
    uintptr_t bits = (uintptr_t)tag >> 4;
    return &table[(bits ^ bits >> 12) % BUCKETS];
}

uint64_t tags_left(void)
{
    state_lock();
    uint64_t n = count;
    state_unlock();
    return n;
}

// -- The table -------------------------------------------------------------------------------------------------------------------------

static void insert(struct tag *tag)
{
    struct tag **own = bucket(by_own, tag), **theirs = bucket(by_theirs, tag->theirs);
    tag->by_own = *own;
    *own = tag;
    tag->by_theirs = *theirs;
    *theirs = tag;
    count++;
}

// NULL: not one of ours.
static struct tag *take(const void *own)
{
    struct tag **at = bucket(by_own, own), *tag;
    while (*at && *at != own)
        at = &(*at)->by_own;
    tag = *at;
    if (!tag)
        return NULL;
    *at = tag->by_own;
    at = bucket(by_theirs, tag->theirs);
    while (*at != tag)
        at = &(*at)->by_theirs;
    *at = tag->by_theirs;
    count--;
    return tag;
}

void *tag_for_pluck(grpc_completion_queue *queue, void *theirs)
{
    (void)queue;
    state_lock();
    struct tag *tag = *bucket(by_theirs, theirs);
    while (tag && tag->theirs != theirs)
        tag = tag->by_theirs;
    state_unlock();
    return tag ? (void *)tag : theirs;
}

// -- What is done when the batch is complete -------------------------------------------------------------------------------------------

static bool is_offer(const grpc_metadata *entry)
{
    return GRPC_SLICE_LENGTH(entry->key) == strlen(OFFER_KEY) &&
           memcmp(GRPC_SLICE_START_PTR(entry->key), OFFER_KEY, strlen(OFFER_KEY)) == 0;
}

// The call's handle with a reference, unless the application gave it up.
static grpc_call *hold_handle(struct call *call)
{
    state_lock();
    grpc_call *handle = call->call;
    if (handle)
        real.grpc_call_ref(handle);
    state_unlock();
    return handle;
}

static void take_offer(struct call *call, const grpc_metadata *entry)
{
    struct offer_entry offer;
    if (!frame_get_offer((const char *)GRPC_SLICE_START_PTR(entry->value),
                         GRPC_SLICE_LENGTH(entry->value), &offer))
        return;
    state_lock();
    call_bind(call, offer.linked, offer.call);
    call->acked = true;
    state_unlock();
    grpc_call *handle = hold_handle(call);
    char *host = handle ? real.grpc_call_get_peer(handle) : NULL;
    channel_offer(call->channel, &offer, host);
    if (host)
        real.gpr_free(host);
    if (handle)
        real.grpc_call_unref(handle);
}

// The entries belong to the call; ours are only left out of the array.
static void strip_offers(struct call *call, grpc_metadata_array *array)
{
    size_t kept = 0;
    for (size_t i = 0; i < array->count; i++) {
        if (is_offer(&array->metadata[i]))
            take_offer(call, &array->metadata[i]);
        else
            array->metadata[kept++] = array->metadata[i];
    }
    array->count = kept;
    state_lock();
    call_bind(call, false, 0); // unless it has its number
    call->heard = true;
    if (call->good)
        channel_answered(call->channel, call->acked);
    state_unlock();
}

// Returns what the application is told of the batch.
static int open_message(struct tag *tag, int success)
{
    struct failure why = {.code = GRPC_STATUS_OK};
    struct call *call = tag->call;
    if (!*tag->message || fetch(*tag->message, call, &why))
        return success;
    real.grpc_byte_buffer_destroy(*tag->message);
    *tag->message = NULL;
    state_lock();
    call_fail(call, &why);
    state_unlock();
    grpc_call *handle = hold_handle(call);
    if (handle) {
        real.grpc_call_cancel_with_status(handle, why.code, why.text, NULL);
        real.grpc_call_unref(handle);
    }
    return tag->status || tag->requested ? success : 0;
}

static void settle_status(struct tag *tag)
{
    state_lock();
    struct call *call = tag->call;
    struct failure failure = call->failure;
    call->good = failure.code == GRPC_STATUS_OK && *tag->status == GRPC_STATUS_OK;
    if (call->good && call->heard) // else when it is: batches are told of by several threads
        channel_answered(call->channel, call->acked);
    state_unlock();
    if (failure.code != GRPC_STATUS_OK) {
        *tag->status = failure.code;
        real.grpc_slice_unref(*tag->details);
        *tag->details = real.grpc_slice_from_copied_buffer(failure.text, strlen(failure.text));
    }
}

// A request: its call is there now.
static bool arrived(struct tag *tag)
{
    if (tag->requested && *tag->requested)
        tag->call = call_adopt(*tag->requested);
    return tag->call != NULL;
}

static int finish(struct tag *tag, int success)
{
    if (!tag->call && !(success && arrived(tag)))
        return success;
    if (tag->initial)
        strip_offers(tag->call, tag->initial);
    if (tag->message)
        success = open_message(tag, success);
    if (tag->status)
        settle_status(tag);
    state_lock();
    call_unpin(tag->call);
    state_unlock();
    return success;
}

static void run_functor(grpc_completion_queue_functor *own, int success)
{
    state_lock();
    struct tag *tag = take(own);
    state_unlock();
    grpc_completion_queue_functor *theirs = tag->theirs;
    success = finish(tag, success);
    free(tag);
    theirs->functor_run(theirs, success);
}

void tag_event(grpc_event *event)
{
    if (event->type != GRPC_OP_COMPLETE)
        return;
    state_lock();
    struct tag *tag = take(event->tag);
    state_unlock();
    if (!tag)
        return;
    event->tag = tag->theirs;
    event->success = finish(tag, event->success);
    free(tag);
}

// -- Wrapping --------------------------------------------------------------------------------------------------------------------------

static void note_op(struct tag *tag, const grpc_op *op, bool messages)
{
    switch (op->op) {
    case GRPC_OP_RECV_INITIAL_METADATA:
        tag->initial = op->data.recv_initial_metadata.recv_initial_metadata;
        break;
    case GRPC_OP_RECV_MESSAGE:
        tag->message = messages ? op->data.recv_message.recv_message : NULL;
        break;
    case GRPC_OP_RECV_STATUS_ON_CLIENT:
        tag->status = op->data.recv_status_on_client.status;
        tag->details = op->data.recv_status_on_client.status_details;
        break;
    case GRPC_OP_SEND_INITIAL_METADATA:
    case GRPC_OP_SEND_MESSAGE:
    case GRPC_OP_SEND_CLOSE_FROM_CLIENT:
    case GRPC_OP_SEND_STATUS_FROM_SERVER:
    case GRPC_OP_RECV_CLOSE_ON_SERVER:
        break;
    }
}

static void *put(const struct tag *work)
{
    struct tag *tag = malloc(sizeof *tag);
    if (!tag)
        abort(); // the offer would be seen, and a descriptor taken for a message; gRPC itself aborts without memory
    *tag = *work;
    tag->functor.functor_run = run_functor;
    state_lock();
    if (tag->call)
        tag->call->pins++;
    insert(tag);
    state_unlock();
    return tag;
}

void *tag_wrap(struct call *call, const grpc_op *ops, size_t n, void *theirs)
{
    struct tag work = {.theirs = theirs, .call = call};
    for (size_t i = 0; i < n; i++)
        note_op(&work, &ops[i], call->server || call->linked);
    return work.initial || work.message || work.status ? put(&work) : theirs;
}

void *tag_wrap_request(grpc_call **call, grpc_byte_buffer **message, void *theirs)
{
    struct tag work = {.theirs = theirs, .requested = call, .message = message};
    return put(&work);
}

void tag_unused(void *wrapped)
{
    state_lock();
    struct tag *tag = take(wrapped);
    if (tag && tag->call)
        call_unpin(tag->call);
    state_unlock();
    free(tag);
}
