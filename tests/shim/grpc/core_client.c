// SPDX-License-Identifier: Apache-2.0
//
// An ordinary client on the C core of gRPC, which knows nothing of Lien. Runs the steps named on its command line, in order, over one channel, and prints one line for each: what came
// back, and nothing that a run under Lien may change. So the output of two runs can be compared.
//
//   METHOD:SIZE:COUNT[:how]   one call of /METHOD with COUNT messages of SIZE bytes
//   how: unary (one batch, one message), magic (messages begin like one of the shim's descriptors), cancel (cancelled when all is sent), early (cancelled right after the start), deadline (of
//   50 ms), short (of 1 ms), later (of 2 s)
//   xN:STEP   the step N times, one line
//   until:N:STEP   repeats the step up to N times, 50 ms apart, until it succeeds; one line
//   wait   for a line on standard input

#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "creds.h"

static grpc_channel *channel;
static grpc_completion_queue *queue;

struct ask {
    char method[32], how[16];
    size_t size, count;
};

struct answer {
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;
    size_t messages, wrong;
};

static void die(const char *what)
{
    fprintf(stderr, "core_client: %s\n", what);
    exit(1);
}

static uint8_t byte_at(size_t message, size_t i)
{
    return (uint8_t)(i * 2654435761u >> 13 ^ message * 97 ^ i);
}

static grpc_byte_buffer *make(const struct ask *ask, size_t number)
{
    static const char magic[] = "\aLIENRPC\1\1";
    grpc_slice parts[3];
    size_t done = 0;
    for (int p = 0; p < 3; p++) { // in three parts, as applications' messages are
        size_t n = p == 2 ? ask->size - done : ask->size / 3;
        parts[p] = grpc_slice_malloc(n);
        for (size_t i = 0; i < n; i++)
            GRPC_SLICE_START_PTR(parts[p])[i] = byte_at(number, done + i);
        done += n;
    }
    if (strcmp(ask->how, "magic") == 0)
        memcpy(GRPC_SLICE_START_PTR(parts[0]), magic,
               GRPC_SLICE_LENGTH(parts[0]) < 10 ? GRPC_SLICE_LENGTH(parts[0]) : 10);
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(parts, 3);
    for (int p = 0; p < 3; p++)
        grpc_slice_unref(parts[p]);
    return message;
}

static grpc_slice all_of(grpc_byte_buffer *message)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, message))
        return grpc_empty_slice();
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    return all;
}

static void compare(const struct ask *ask, struct answer *answer, grpc_byte_buffer *got)
{
    size_t number = strcmp(ask->method, "Burst") == 0 ? 0 : answer->messages;
    grpc_byte_buffer *want = make(ask, number);
    grpc_slice a = all_of(want), b = all_of(got);
    if (grpc_byte_buffer_length(got) != ask->size || !grpc_slice_eq(a, b))
        answer->wrong++;
    grpc_slice_unref(a);
    grpc_slice_unref(b);
    grpc_byte_buffer_destroy(want);
    answer->messages++;
}

// Waits for the batch `tag`, of at most two that are under way.
static bool await(void *tag)
{
    static void *other;
    static bool other_ok;
    if (other == tag) {
        other = NULL;
        return other_ok;
    }
    for (;;) {
        grpc_event event = grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_REALTIME),
                                                      NULL);
        if (event.type != GRPC_OP_COMPLETE)
            die("the queue");
        if (event.tag == tag)
            return event.success;
        other = event.tag;
        other_ok = event.success;
    }
}

static bool batch(grpc_call *call, const grpc_op *ops, size_t n)
{
    static char tag;
    if (grpc_call_start_batch(call, ops, n, &tag, NULL) != GRPC_CALL_OK)
        die("start_batch");
    return await(&tag);
}

static grpc_op op_initial(grpc_metadata *own)
{
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    op.data.send_initial_metadata.count = 1;
    op.data.send_initial_metadata.metadata = own;
    return op;
}

static grpc_op op_status(struct answer *answer)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.status = &answer->status;
    op.data.recv_status_on_client.status_details = &answer->details;
    op.data.recv_status_on_client.trailing_metadata = &answer->trailing;
    return op;
}

static grpc_op op_send(grpc_byte_buffer *message)
{
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = message;
    return op;
}

static grpc_op op_recv(grpc_byte_buffer **message)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = message;
    return op;
}

static void unary(grpc_call *call, const struct ask *ask, struct answer *answer, grpc_metadata *own)
{
    grpc_byte_buffer *sent = make(ask, 0), *got = NULL;
    grpc_op ops[6] = {op_initial(own),
                      op_send(sent),
                      {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
                      {.op = GRPC_OP_RECV_INITIAL_METADATA},
                      op_recv(&got),
                      op_status(answer)};
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &answer->initial;
    batch(call, ops, 6);
    if (got)
        compare(ask, answer, got);
    grpc_byte_buffer_destroy(sent);
    if (got)
        grpc_byte_buffer_destroy(got);
}

static bool take(grpc_call *call, const struct ask *ask, struct answer *answer)
{
    grpc_byte_buffer *got = NULL;
    grpc_op op = op_recv(&got);
    if (!batch(call, &op, 1) || !got)
        return false;
    compare(ask, answer, got);
    grpc_byte_buffer_destroy(got);
    return true;
}

// Sends and receives in turn where the method answers each message.
static void stream(grpc_call *call, const struct ask *ask, struct answer *answer,
                   grpc_metadata *own)
{
    static char end;
    grpc_op ends[2] = {op_status(answer), {.op = GRPC_OP_RECV_INITIAL_METADATA}};
    grpc_op first = op_initial(own);
    ends[1].data.recv_initial_metadata.recv_initial_metadata = &answer->initial;
    batch(call, &first, 1);
    if (strcmp(ask->how, "early") == 0)
        grpc_call_cancel(call, NULL);
    if (grpc_call_start_batch(call, ends, 1, &end, NULL) != GRPC_CALL_OK)
        die("start_batch");
    bool ok = true,
         answers = strcmp(ask->method, "Echo") == 0 || strcmp(ask->method, "Reflect") == 0;
    if (ask->count == 0)
        batch(call, &ends[1], 1);
    for (size_t i = 0; i < ask->count && ok; i++) {
        grpc_byte_buffer *sent = make(ask, i);
        grpc_op op = op_send(sent);
        ok = batch(call, &op, 1);
        grpc_byte_buffer_destroy(sent);
        if (i == 0 && ok)
            batch(call, &ends[1], 1);
        ok = ok && (!answers || take(call, ask, answer));
    }
    if (strcmp(ask->how, "cancel") == 0)
        grpc_call_cancel(call, NULL);
    grpc_op close = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    if (ok)
        batch(call, &close, 1);
    while (ok && !answers)
        ok = take(call, ask, answer);
    await(&end);
}

static gpr_timespec deadline_of(const struct ask *ask)
{
    int64_t ms = strcmp(ask->how, "deadline") == 0 ? 50
                 : strcmp(ask->how, "short") == 0  ? 1
                 : strcmp(ask->how, "later") == 0  ? 2000
                                                   : 60000;
    return gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

static void print_metadata(const char *name, const grpc_metadata_array *array)
{
    printf(" %s{", name);
    for (size_t i = 0; i < array->count; i++) {
        grpc_slice key = array->metadata[i].key, value = array->metadata[i].value;
        printf("%.*s=%.*s;", (int)GRPC_SLICE_LENGTH(key), (char *)GRPC_SLICE_START_PTR(key),
               (int)GRPC_SLICE_LENGTH(value), (char *)GRPC_SLICE_START_PTR(value));
    }
    printf("}");
}

static grpc_status_code run_call(const struct ask *ask, bool print)
{
    struct answer answer = {.details = grpc_empty_slice()};
    char path[40];
    snprintf(path, sizeof path, "/%s", ask->method);
    grpc_metadata own = {.key = grpc_slice_from_static_string("x-client"),
                         .value = grpc_slice_from_static_string("1")};
    grpc_metadata_array_init(&answer.initial);
    grpc_metadata_array_init(&answer.trailing);
    grpc_slice method = grpc_slice_from_copied_string(path);
    grpc_call *call = grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue,
                                               method, NULL, deadline_of(ask), NULL);
    grpc_slice_unref(method);
    if (strcmp(ask->how, "unary") == 0)
        unary(call, ask, &answer, &own);
    else
        stream(call, ask, &answer, &own);
    if (print) {
        printf(" status=%d messages=%zu wrong=%zu", (int)answer.status, answer.messages,
               answer.wrong);
        if (answer.status == GRPC_STATUS_OK || answer.status == GRPC_STATUS_FAILED_PRECONDITION) {
            print_metadata("initial", &answer.initial);
            print_metadata("trailing", &answer.trailing);
        }
        if (answer.status != GRPC_STATUS_UNAVAILABLE) // that text has times and addresses
            printf(" \"%.*s\"", (int)GRPC_SLICE_LENGTH(answer.details),
                   (char *)GRPC_SLICE_START_PTR(answer.details));
    }
    if (getenv("CORE_CLIENT_DETAILS"))
        fprintf(stderr, "details: %.*s\n", (int)GRPC_SLICE_LENGTH(answer.details),
                (char *)GRPC_SLICE_START_PTR(answer.details));
    grpc_slice_unref(answer.details);
    grpc_metadata_array_destroy(&answer.initial);
    grpc_metadata_array_destroy(&answer.trailing);
    grpc_call_unref(call);
    return answer.status;
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static bool parse(const char *text, struct ask *ask)
{
    *ask = (struct ask){.how = "stream"};
    return sscanf(text, "%31[^:]:%zu:%zu:%15s", ask->method, &ask->size, &ask->count, ask->how) >=
           3;
}

static void step(const char *text)
{
    struct ask ask;
    unsigned long n = 1;
    bool until = sscanf(text, "until:%lu:", &n) == 1;
    if (strcmp(text, "wait") == 0) {
        int byte;
        do
            byte = getchar();
        while (byte != '\n' && byte != EOF);
        return;
    }
    const char *inner = text;
    if (until)
        inner = strchr(text + 6, ':') + 1;
    else if (*text == 'x' && sscanf(text, "x%lu:", &n) == 1)
        inner = strchr(text, ':') + 1;
    if (!parse(inner, &ask))
        die(text);
    printf("%s", text);
    unsigned long codes[17] = {0};
    grpc_status_code last = GRPC_STATUS_UNKNOWN;
    for (unsigned long i = 0; i < n && !(until && last == GRPC_STATUS_OK); i++) {
        if (until && i > 0)
            pause_ms(50);
        last = run_call(&ask, n == 1);
        codes[(int)last < 17 ? (int)last : 2]++;
    }
    if (until)
        printf(" %s", last == GRPC_STATUS_OK ? "yes" : "no");
    for (int i = 0; i < 17 && n > 1 && !until; i++)
        if (codes[i])
            printf(" %lu of status %d", codes[i], i);
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        die("usage: core_client HOST:PORT STEP...");
    grpc_init();
    grpc_arg args[2] = {{.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH},
                        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_RECONNECT_BACKOFF_MS}};
    const char *limit = getenv("CORE_CLIENT_LIMIT");
    args[0].value.integer = limit ? atoi(limit) : -1;
    args[1].value.integer = 200;
    grpc_channel_args list = {.num_args = 2, .args = args};
    grpc_channel_credentials *creds = channel_creds();
    channel = grpc_channel_create(argv[1], creds, &list);
    grpc_channel_credentials_release(creds);
    queue = grpc_completion_queue_create_for_next(NULL);
    for (int i = 2; i < argc; i++)
        step(argv[i]);
    grpc_channel_destroy(channel);
    grpc_completion_queue_shutdown(queue);
    while (grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(queue);
    grpc_shutdown();
    return 0;
}
