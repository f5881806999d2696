// SPDX-License-Identifier: Apache-2.0
//
// An ordinary server on the C core of gRPC, which knows nothing of Lien: one thread, one queue, methods by path. Each call is an object with at most one batch of each kind under way. Prints
// "port N" once it listens and ends on SIGTERM, or when its standard input ends.
//
//   /Echo     each message comes back: opened, and built anew from its bytes
//   /Reflect  each message comes back as it came, unopened
//   /Drop     each message is destroyed unopened, then the status is OK
//   /Ignore   nothing is read; ends when the client does
//   /Hold     one message is read and kept unopened until the client ends the call
//   /Fail     reads one message and ends with status 9 and the message "as asked"
//   /Burst    reads one message and sends it back eight times
//
// Trailing metadata "seen" holds the keys of the client's metadata.

#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "creds.h"

enum kind {
    NEW,
    READ,
    WRITE,
    STATUS,
    CLOSE
};

struct step {
    struct call *call;
    enum kind kind;
};

struct call {
    struct step steps[5];
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *message;
    int cancelled, refs, again;
    char path[32], keys[512];
};

static grpc_server *server;
static grpc_completion_queue *queue;

static void die(const char *what)
{
    fprintf(stderr, "core_server: %s\n", what);
    exit(1);
}

static void start(struct call *call, enum kind kind, const grpc_op *ops, size_t n)
{
    call->refs++;
    if (grpc_call_start_batch(call->call, ops, n, &call->steps[kind], NULL) != GRPC_CALL_OK)
        die("start_batch");
}

static void await_call(void)
{
    struct call *call = calloc(1, sizeof *call);
    if (!call)
        die("memory");
    for (int i = 0; i < 5; i++)
        call->steps[i] = (struct step){call, (enum kind)i};
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    call->refs = 1;
    if (grpc_server_request_call(server, &call->call, &call->details, &call->metadata, queue, queue,
                                 &call->steps[NEW]) != GRPC_CALL_OK)
        die("request_call");
}

static void put(struct call *call)
{
    if (--call->refs > 0)
        return;
    if (call->message)
        grpc_byte_buffer_destroy(call->message);
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
    if (call->call)
        grpc_call_unref(call->call);
    free(call);
}

static void read_message(struct call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->message;
    start(call, READ, &op, 1);
}

static void finish(struct call *call, grpc_status_code code, const char *text)
{
    grpc_slice details = grpc_slice_from_copied_string(text);
    grpc_metadata seen = {.key = grpc_slice_from_static_string("seen"),
                          .value = grpc_slice_from_copied_string(call->keys)};
    grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    op.data.send_status_from_server.status = code;
    op.data.send_status_from_server.status_details = &details;
    op.data.send_status_from_server.trailing_metadata = &seen;
    op.data.send_status_from_server.trailing_metadata_count = 1;
    start(call, STATUS, &op, 1);
    grpc_slice_unref(details);
    grpc_slice_unref(seen.value);
}

// Built anew from the bytes, as an application would. NULL: it cannot be opened.
static grpc_byte_buffer *rebuild(grpc_byte_buffer *message)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, message))
        return NULL;
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer *copy = grpc_raw_byte_buffer_create(&all, 1);
    grpc_slice_unref(all);
    return copy;
}

static void send_back(struct call *call)
{
    bool as_is = strcmp(call->path, "/Reflect") == 0;
    grpc_byte_buffer *message = as_is ? call->message : rebuild(call->message);
    if (!message) {
        finish(call, GRPC_STATUS_INTERNAL, "a message could not be opened");
        return;
    }
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = message;
    start(call, WRITE, &op, 1);
    if (!as_is)
        grpc_byte_buffer_destroy(message);
}

static void begin(struct call *call)
{
    size_t len = GRPC_SLICE_LENGTH(call->details.method);
    if (len >= sizeof call->path)
        len = sizeof call->path - 1;
    memcpy(call->path, GRPC_SLICE_START_PTR(call->details.method), len);
    for (size_t i = 0; i < call->metadata.count; i++) {
        grpc_slice key = call->metadata.metadata[i].key;
        size_t at = strlen(call->keys);
        if (at + GRPC_SLICE_LENGTH(key) + 2 < sizeof call->keys)
            snprintf(call->keys + at, sizeof call->keys - at, "%.*s ", (int)GRPC_SLICE_LENGTH(key),
                     (const char *)GRPC_SLICE_START_PTR(key));
    }
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_RECV_CLOSE_ON_SERVER}};
    grpc_metadata hello = {.key = grpc_slice_from_static_string("x-server"),
                           .value = grpc_slice_from_static_string("plain")};
    ops[0].data.send_initial_metadata.metadata = &hello;
    ops[0].data.send_initial_metadata.count = 1;
    ops[1].data.recv_close_on_server.cancelled = &call->cancelled;
    start(call, CLOSE, ops, 2);
    if (strcmp(call->path, "/Ignore") != 0)
        read_message(call);
}

static void got_message(struct call *call)
{
    const char *path = call->path;
    bool once = strcmp(path, "/Fail") == 0;
    if (!call->message || once)
        finish(call, once ? GRPC_STATUS_FAILED_PRECONDITION : GRPC_STATUS_OK,
               once ? "as asked" : "");
    else if (strcmp(path, "/Drop") == 0) {
        grpc_byte_buffer_destroy(call->message);
        call->message = NULL;
        read_message(call);
    } else if (strcmp(path, "/Hold") != 0) {
        call->again = strcmp(path, "/Burst") == 0 ? 7 : 0;
        send_back(call);
    }
}

static void wrote(struct call *call, bool ok)
{
    if (ok && call->again-- > 0) {
        send_back(call);
        return;
    }
    grpc_byte_buffer_destroy(call->message);
    call->message = NULL;
    if (ok)
        read_message(call);
}

static void on_event(const struct step *step, bool ok)
{
    struct call *call = step->call;
    switch (step->kind) {
    case NEW:
        if (ok) {
            await_call();
            begin(call);
        }
        break;
    case READ:
        got_message(call);
        break;
    case WRITE:
        wrote(call, ok);
        break;
    case STATUS:
    case CLOSE:
        break;
    }
    put(call);
}

static volatile sig_atomic_t stopping;

static void on_term(int number)
{
    (void)number;
    stopping = 1;
}

static bool input_ended(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char byte;
    return poll(&input, 1, 0) > 0 && fread(&byte, 1, 1, stdin) == 0;
}

int main(int argc, char **argv)
{
    const char *address = argc > 1 ? argv[1] : "127.0.0.1:0";
    struct sigaction action = {.sa_handler = on_term};
    sigaction(SIGTERM, &action, NULL);
    grpc_init();
    grpc_arg limit = {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH};
    limit.value.integer = argc > 2 ? atoi(argv[2]) : -1;
    grpc_channel_args args = {.num_args = 1, .args = &limit};
    server = grpc_server_create(&args, NULL);
    queue = grpc_completion_queue_create_for_next(NULL);
    grpc_server_register_completion_queue(server, queue, NULL);
    grpc_server_credentials *creds = server_creds();
    int port = grpc_server_add_http2_port(server, address, creds);
    grpc_server_credentials_release(creds);
    if (port == 0)
        die("cannot listen");
    grpc_server_start(server);
    printf("port %d\n", port);
    fflush(stdout);
    await_call();
    int downs = 0;
    for (;;) {
        gpr_timespec soon = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                         gpr_time_from_millis(100, GPR_TIMESPAN));
        grpc_event event = grpc_completion_queue_next(queue, soon, NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            break;
        if (event.type == GRPC_OP_COMPLETE && event.tag == &server)
            grpc_completion_queue_shutdown(queue);
        else if (event.type == GRPC_OP_COMPLETE)
            on_event(event.tag, event.success);
        if (downs == 0 && (stopping || input_ended())) {
            downs = 1;
            grpc_server_shutdown_and_notify(server, queue, &server);
            grpc_server_cancel_all_calls(server);
        }
    }
    grpc_server_destroy(server);
    grpc_completion_queue_destroy(queue);
    grpc_shutdown();
    return 0;
}
