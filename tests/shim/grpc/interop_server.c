// SPDX-License-Identifier: Apache-2.0
//
// The server of the cases that gRPC's interoperability description names, on the C core, one call after another; it knows nothing of Lien. Calls are on a queue that is plucked. Prints "port N" once
// it listens and ends when its standard input does.
//
//   /test/Empty      one message, answered by an empty one
//   /test/Answer     each message is answered as its plan says
//   /test/Sum        the messages are counted together; the answer is the sum of their bytes, as text
//   /test/Sleep      reads one message and sleeps until the call ends
//   others           UNIMPLEMENTED

#include <poll.h>

#include "interop.h"

struct call {
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    int cancelled;
    bool greeted;
    grpc_status_code status;
    char text[80];
};

static grpc_completion_queue *calls; // plucked
static char closed;

static bool is(grpc_slice slice, const char *text)
{
    return GRPC_SLICE_LENGTH(slice) == strlen(text) &&
           memcmp(GRPC_SLICE_START_PTR(slice), text, strlen(text)) == 0;
}

// The client's entry of that name comes back.
static size_t echoed(const struct call *call, const char *key, grpc_metadata *out)
{
    for (size_t i = 0; i < call->metadata.count; i++)
        if (is(call->metadata.metadata[i].key, key)) {
            *out = call->metadata.metadata[i];
            return 1;
        }
    return 0;
}

static void greet(struct call *call, bool compress)
{
    grpc_metadata echo;
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    if (call->greeted)
        return;
    call->greeted = true;
    op.data.send_initial_metadata.count = echoed(call, ECHO_INITIAL, &echo);
    op.data.send_initial_metadata.metadata = &echo;
    op.data.send_initial_metadata.maybe_compression_level.is_set = compress;
    op.data.send_initial_metadata.maybe_compression_level.level = GRPC_COMPRESS_LEVEL_HIGH;
    batch(calls, call->call, &op, 1);
}

static void finish(struct call *call)
{
    greet(call, false);
    grpc_metadata echo;
    grpc_slice text = grpc_slice_from_copied_string(call->text);
    grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    op.data.send_status_from_server.status = call->status;
    op.data.send_status_from_server.status_details = &text;
    op.data.send_status_from_server.trailing_metadata_count = echoed(call, ECHO_TRAILING, &echo);
    op.data.send_status_from_server.trailing_metadata = &echo;
    batch(calls, call->call, &op, 1);
    grpc_slice_unref(text);
}

static void spoiled(struct call *call)
{
    call->status = GRPC_STATUS_DATA_LOSS;
    snprintf(call->text, sizeof call->text, "a message is not what was sent");
}

// False: the call is over.
static bool answer(struct call *call, grpc_byte_buffer *message)
{
    struct plan plan;
    grpc_slice all = whole(message);
    bool good = GRPC_SLICE_LENGTH(all) >= sizeof plan && is_filled(all, sizeof plan);
    if (good)
        memcpy(&plan, GRPC_SLICE_START_PTR(all), sizeof plan);
    grpc_slice_unref(all);
    if (!good) {
        spoiled(call);
        return false;
    }
    greet(call, plan.compress);
    for (uint32_t i = 0; i < plan.answers && i < 4; i++)
        if (!send_message(calls, call->call, with_plan(NULL, plan.sizes[i])))
            return false;
    call->status = (grpc_status_code)plan.status;
    memcpy(call->text, plan.text, sizeof plan.text);
    return plan.status == 0;
}

static bool add(struct call *call, grpc_byte_buffer *message, size_t *sum)
{
    grpc_slice all = whole(message);
    bool good = GRPC_SLICE_LENGTH(all) >= sizeof(struct plan) &&
                is_filled(all, sizeof(struct plan));
    *sum += good ? GRPC_SLICE_LENGTH(all) - sizeof(struct plan) : 0;
    grpc_slice_unref(all);
    if (!good)
        spoiled(call);
    return good;
}

static void serve_messages(struct call *call, bool sums)
{
    size_t sum = 0;
    grpc_byte_buffer *message;
    bool more = true;
    while (more && (message = receive_message(calls, call->call))) {
        more = sums ? add(call, message, &sum) : answer(call, message);
        grpc_byte_buffer_destroy(message);
    }
    if (!sums || !more)
        return;
    char text[32];
    snprintf(text, sizeof text, "%zu", sum);
    grpc_slice slice = grpc_slice_from_copied_string(text);
    grpc_byte_buffer *total = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    greet(call, false);
    send_message(calls, call->call, total);
}

static void serve_one(struct call *call, bool sleeps)
{
    grpc_byte_buffer *message = receive_message(calls, call->call);
    if (message)
        grpc_byte_buffer_destroy(message);
    greet(call, false);
    if (!sleeps)
        send_message(calls, call->call, with_plan(NULL, 0));
}

static void serve(struct call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    if (grpc_call_start_batch(call->call, &op, 1, &closed, NULL) != GRPC_CALL_OK)
        die("start_batch");
    grpc_slice path = call->details.method;
    bool sleeps = is(path, "/test/Sleep");
    if (is(path, "/test/Empty") || sleeps)
        serve_one(call, sleeps);
    else if (is(path, "/test/Answer") || is(path, "/test/Sum"))
        serve_messages(call, is(path, "/test/Sum"));
    else
        call->status = GRPC_STATUS_UNIMPLEMENTED;
    if (!sleeps)
        finish(call);
    grpc_completion_queue_pluck(calls, &closed, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    grpc_call_unref(call->call);
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
}

static bool input_ended(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char byte;
    return poll(&input, 1, 0) > 0 && fread(&byte, 1, 1, stdin) == 0;
}

static void await_call(grpc_server *server, grpc_completion_queue *queue, struct call *call)
{
    *call = (struct call){.cancelled = 0};
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    if (grpc_server_request_call(server, &call->call, &call->details, &call->metadata, calls, queue,
                                 call) != GRPC_CALL_OK)
        die("request_call");
}

static void run(grpc_server *server, grpc_completion_queue *queue)
{
    struct call call;
    bool stopping = false;
    await_call(server, queue, &call);
    for (;;) {
        gpr_timespec soon = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                         gpr_time_from_millis(50, GPR_TIMESPAN));
        grpc_event event = grpc_completion_queue_next(queue, soon, NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            break;
        if (event.type == GRPC_OP_COMPLETE && event.tag == server)
            grpc_completion_queue_shutdown(queue);
        else if (event.type == GRPC_OP_COMPLETE && event.success) {
            serve(&call);
            await_call(server, queue, &call);
        }
        if (!stopping && input_ended()) {
            stopping = true;
            grpc_server_shutdown_and_notify(server, queue, server);
            grpc_server_cancel_all_calls(server);
        }
    }
    grpc_call_details_destroy(&call.details);
    grpc_metadata_array_destroy(&call.metadata);
}

int main(int argc, char **argv)
{
    grpc_init();
    grpc_server *server = grpc_server_create(NULL, NULL);
    grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);
    calls = grpc_completion_queue_create_for_pluck(NULL);
    grpc_server_register_completion_queue(server, queue, NULL);
    grpc_server_credentials *plain = grpc_insecure_server_credentials_create();
    int port = grpc_server_add_http2_port(server, argc > 1 ? argv[1] : "127.0.0.1:0", plain);
    grpc_server_credentials_release(plain);
    if (port == 0)
        die("cannot listen");
    grpc_server_start(server);
    printf("port %d\n", port);
    fflush(stdout);
    run(server, queue);
    grpc_server_destroy(server);
    grpc_completion_queue_destroy(queue);
    grpc_completion_queue_shutdown(calls);
    grpc_completion_queue_destroy(calls);
    grpc_shutdown();
    return 0;
}
