// SPDX-License-Identifier: Apache-2.0
//
// The functions that stand in front of gRPC's. Each passes through when the shim is off. They may run on any thread; libgrpc calls some of them itself, which is harmless: what is not ours is left alone.

#include "state.h"

#define HOOK __attribute__((visibility("default")))

// gRPC's headers leave the parameters of these two open.
grpc_channel_credentials *grpc_insecure_credentials_create(void);
grpc_server_credentials *grpc_insecure_server_credentials_create(void);

// -- Channels and servers --------------------------------------------------------------------------------------------------------------

HOOK grpc_channel_credentials *grpc_insecure_credentials_create(void)
{
    real_ready();
    grpc_channel_credentials *creds = real.grpc_insecure_credentials_create();
    if (conf_active())
        insecure_count(creds, 1);
    return creds;
}

HOOK void grpc_channel_credentials_release(grpc_channel_credentials *creds)
{
    real_ready();
    if (conf_active())
        insecure_count(creds, -1);
    real.grpc_channel_credentials_release(creds);
}

HOOK grpc_channel *grpc_channel_create(const char *target, grpc_channel_credentials *creds,
                                       const grpc_channel_args *args)
{
    real_ready();
    grpc_channel *channel = real.grpc_channel_create(target, creds, args);
    if (channel && conf_active() && creds_carry(creds))
        channel_add(channel, args);
    return channel;
}

HOOK void grpc_channel_destroy(grpc_channel *channel)
{
    real_ready();
    if (conf_active())
        channel_destroyed(channel);
    real.grpc_channel_destroy(channel);
}

HOOK grpc_server_credentials *grpc_insecure_server_credentials_create(void)
{
    real_ready();
    grpc_server_credentials *creds = real.grpc_insecure_server_credentials_create();
    if (conf_active())
        insecure_count(creds, 1);
    return creds;
}

HOOK void grpc_server_credentials_release(grpc_server_credentials *creds)
{
    real_ready();
    if (conf_active())
        insecure_count(creds, -1);
    real.grpc_server_credentials_release(creds);
}

HOOK void grpc_server_credentials_set_auth_metadata_processor(
    grpc_server_credentials *creds, grpc_auth_metadata_processor processor)
{
    real_ready();
    if (conf_active())
        processor_own(creds);
    real.grpc_server_credentials_set_auth_metadata_processor(creds, processor);
}

HOOK grpc_server *grpc_server_create(const grpc_channel_args *args, void *reserved)
{
    real_ready();
    grpc_server *server = real.grpc_server_create(args, reserved);
    if (server && conf_active())
        server_created(server, args);
    return server;
}

HOOK int grpc_server_add_http2_port(grpc_server *server, const char *address,
                                    grpc_server_credentials *creds)
{
    real_ready();
    if (conf_active() && address)
        server_port(server, address, creds);
    return real.grpc_server_add_http2_port(server, address, creds);
}

HOOK void grpc_server_destroy(grpc_server *server)
{
    real_ready();
    if (conf_active())
        server_destroyed(server);
    real.grpc_server_destroy(server);
}

// -- Calls -----------------------------------------------------------------------------------------------------------------------------

HOOK grpc_call *grpc_channel_create_call(grpc_channel *channel, grpc_call *parent, uint32_t mask,
                                         grpc_completion_queue *queue, grpc_slice method,
                                         const grpc_slice *host, gpr_timespec deadline,
                                         void *reserved)
{
    real_ready();
    grpc_call *call = real.grpc_channel_create_call(channel, parent, mask, queue, method, host,
                                                    deadline, reserved);
    if (conf_active())
        call_created(channel, call, deadline);
    return call;
}

HOOK grpc_call *grpc_channel_create_registered_call(grpc_channel *channel, grpc_call *parent,
                                                    uint32_t mask, grpc_completion_queue *queue,
                                                    void *registered, gpr_timespec deadline,
                                                    void *reserved)
{
    real_ready();
    grpc_call *call = real.grpc_channel_create_registered_call(channel, parent, mask, queue,
                                                               registered, deadline, reserved);
    if (conf_active())
        call_created(channel, call, deadline);
    return call;
}

HOOK grpc_call_error grpc_call_start_batch(grpc_call *call, const grpc_op *ops, size_t n, void *tag,
                                           void *reserved)
{
    real_ready();
    return conf_active() ? batch_start(call, ops, n, tag, reserved)
                         : real.grpc_call_start_batch(call, ops, n, tag, reserved);
}

HOOK void grpc_call_ref(grpc_call *call)
{
    real_ready();
    if (conf_active())
        call_ref(call);
    real.grpc_call_ref(call);
}

HOOK void grpc_call_unref(grpc_call *call)
{
    real_ready();
    if (conf_active())
        call_unref(call);
    real.grpc_call_unref(call);
}

HOOK grpc_call_error grpc_server_request_registered_call(grpc_server *server, void *method,
                                                         grpc_call **call, gpr_timespec *deadline,
                                                         grpc_metadata_array *metadata,
                                                         grpc_byte_buffer **payload,
                                                         grpc_completion_queue *bound,
                                                         grpc_completion_queue *notified, void *tag)
{
    real_ready();
    void *own = conf_active() && payload ? tag_wrap_request(call, payload, tag) : tag;
    grpc_call_error error = real.grpc_server_request_registered_call(
        server, method, call, deadline, metadata, payload, bound, notified, own);
    if (error != GRPC_CALL_OK && own != tag)
        tag_unused(own);
    return error;
}

HOOK grpc_call_error grpc_call_cancel_with_status(grpc_call *call, grpc_status_code status,
                                                  const char *text, void *reserved)
{
    struct failure failure = {.code = GRPC_STATUS_OK};
    real_ready();
    if (conf_active()) { // of a message that could not be had: the reason is better than what the application makes of it
        state_lock();
        struct call *record = call_pin(call);
        if (record) {
            failure = record->failure;
            call_unpin(record);
        }
        state_unlock();
    }
    return failure.code == GRPC_STATUS_OK
               ? real.grpc_call_cancel_with_status(call, status, text, reserved)
               : real.grpc_call_cancel_with_status(call, failure.code, failure.text, reserved);
}

// -- Queues. Events of ours may still come when the shim stops: they are always looked for ------------------------------------------------

HOOK grpc_event grpc_completion_queue_next(grpc_completion_queue *queue, gpr_timespec deadline,
                                           void *reserved)
{
    real_ready();
    grpc_event event = real.grpc_completion_queue_next(queue, deadline, reserved);
    if (conf.on)
        tag_event(&event);
    return event;
}

HOOK grpc_event grpc_completion_queue_pluck(grpc_completion_queue *queue, void *tag,
                                            gpr_timespec deadline, void *reserved)
{
    real_ready();
    if (conf.on)
        tag = tag_for_pluck(queue, tag);
    grpc_event event = real.grpc_completion_queue_pluck(queue, tag, deadline, reserved);
    if (conf.on)
        tag_event(&event);
    return event;
}

// -- Messages --------------------------------------------------------------------------------------------------------------------------

HOOK int grpc_byte_buffer_reader_init(grpc_byte_buffer_reader *reader, grpc_byte_buffer *message)
{
    struct failure why;
    real_ready();
    if (conf_active() && !fetch(message, NULL, &why))
        return 0;
    return real.grpc_byte_buffer_reader_init(reader, message);
}

HOOK size_t grpc_byte_buffer_length(grpc_byte_buffer *message)
{
    real_ready();
    return conf_active() ? fetch_length(message) : real.grpc_byte_buffer_length(message);
}

HOOK grpc_byte_buffer *grpc_byte_buffer_copy(grpc_byte_buffer *message)
{
    struct failure why;
    real_ready();
    if (conf_active())
        fetch(message, NULL, &why); // one that cannot be had fails when its copy is opened, too
    return real.grpc_byte_buffer_copy(message);
}

HOOK void grpc_byte_buffer_destroy(grpc_byte_buffer *message)
{
    real_ready();
    if (conf_active())
        fetch_drop(message);
    real.grpc_byte_buffer_destroy(message);
}
