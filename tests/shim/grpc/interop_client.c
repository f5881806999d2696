// SPDX-License-Identifier: Apache-2.0
//
// The client of the cases that gRPC's interoperability description names, on the C core, with its sizes; it knows nothing of Lien. `interop_client HOST:PORT CASE...` prints a line for each call, of nothing that a
// run under Lien may change; at the end, on standard error, the bytes of the messages of 64 KiB and more that it sent and got. `link`: calls until one succeeds. `wait`: for a line on standard input.

#include <inttypes.h>
#include <time.h>

#include "interop.h"

#define LARGE 65536u

static grpc_channel *channel, *gzipped;
static grpc_completion_queue *queue; // plucked
static uint64_t large_sent, large_got;

enum how {
    TO_THE_END,
    CANCEL_FIRST,  // right after the start
    CANCEL_ANSWER, // after the first answer
    SLEEP          // past a deadline
};

struct test {
    const char *name, *path;
    size_t requests;
    struct plan plans[4];
    enum how how;
    bool empty, metadata, gzip, no_compress, unary;
};

// clang-format off
static const struct test tests[] = {
    {.name = "empty_unary", .path = "/test/Empty", .requests = 1, .empty = true, .unary = true},
    {.name = "large_unary", .path = "/test/Answer", .requests = 1, .unary = true,
     .plans = {{.size = 271828, .answers = 1, .sizes = {314159}}}},
    {.name = "client_streaming", .path = "/test/Sum", .requests = 4,
     .plans = {{.size = 27182}, {.size = 8}, {.size = 1828}, {.size = 45904}}},
    {.name = "client_streaming_large", .path = "/test/Sum", .requests = 4,
     .plans = {{.size = 271820}, {.size = 80}, {.size = 18280}, {.size = 459040}}},
    {.name = "server_streaming", .path = "/test/Answer", .requests = 1,
     .plans = {{.answers = 4, .sizes = {31415, 9, 2653, 58979}}}},
    {.name = "server_streaming_large", .path = "/test/Answer", .requests = 1,
     .plans = {{.answers = 4, .sizes = {314150, 90, 26530, 589790}}}},
    {.name = "ping_pong", .path = "/test/Answer", .requests = 4,
     .plans = {{.size = 27182, .answers = 1, .sizes = {31415}}, {.size = 8, .answers = 1, .sizes = {9}},
               {.size = 1828, .answers = 1, .sizes = {2653}}, {.size = 45904, .answers = 1, .sizes = {58979}}}},
    {.name = "ping_pong_large", .path = "/test/Answer", .requests = 4,
     .plans = {{.size = 271820, .answers = 1, .sizes = {314150}}, {.size = 80, .answers = 1, .sizes = {90}},
               {.size = 18280, .answers = 1, .sizes = {26530}}, {.size = 459040, .answers = 1, .sizes = {589790}}}},
    {.name = "empty_stream", .path = "/test/Answer"},
    {.name = "cancel_after_begin", .path = "/test/Sum", .how = CANCEL_FIRST},
    {.name = "cancel_after_first_response", .path = "/test/Answer", .requests = 1, .how = CANCEL_ANSWER,
     .plans = {{.size = 27182, .answers = 1, .sizes = {31415}}}},
    {.name = "cancel_after_first_response_large", .path = "/test/Answer", .requests = 1, .how = CANCEL_ANSWER,
     .plans = {{.size = 271820, .answers = 1, .sizes = {314150}}}},
    {.name = "timeout_on_sleeping_server", .path = "/test/Sleep", .requests = 1, .how = SLEEP, .plans = {{.size = 27182}}},
    {.name = "status_code_and_message", .path = "/test/Answer", .requests = 1, .unary = true,
     .plans = {{.status = 2, .text = "test status message"}}},
    {.name = "status_code_and_message_stream", .path = "/test/Answer", .requests = 1,
     .plans = {{.status = 2, .text = "test status message"}}},
    {.name = "special_status_message", .path = "/test/Answer", .requests = 1, .unary = true,
     .plans = {{.status = 2, .text = "\t\ntest with whitespace\r\nand Unicode BMP \xe2\x98\xba and non-BMP \xf0\x9f\x98\x88\t\n"}}},
    {.name = "custom_metadata", .path = "/test/Answer", .requests = 1, .unary = true, .metadata = true,
     .plans = {{.size = 271828, .answers = 1, .sizes = {314159}}}},
    {.name = "custom_metadata_stream", .path = "/test/Answer", .requests = 1, .metadata = true,
     .plans = {{.size = 271828, .answers = 1, .sizes = {314159}}}},
    {.name = "unimplemented_method", .path = "/test/Unimplemented", .requests = 1, .empty = true, .unary = true},
    {.name = "unimplemented_service", .path = "/unimplemented/Unimplemented", .requests = 1, .empty = true, .unary = true},
    {.name = "client_compressed_unary", .path = "/test/Answer", .requests = 1, .unary = true, .gzip = true,
     .plans = {{.size = 271828, .answers = 1, .sizes = {314159}}}},
    {.name = "client_uncompressed_unary", .path = "/test/Answer", .requests = 1, .unary = true, .gzip = true, .no_compress = true,
     .plans = {{.size = 271828, .answers = 1, .sizes = {314159}}}},
    {.name = "client_compressed_small", .path = "/test/Answer", .requests = 1, .unary = true, .gzip = true,
     .plans = {{.size = 2718, .answers = 1, .sizes = {3141}}}},
    {.name = "server_compressed_unary", .path = "/test/Answer", .requests = 1, .unary = true,
     .plans = {{.size = 271828, .answers = 1, .sizes = {314159}, .compress = 1}}},
    {.name = "server_compressed_streaming", .path = "/test/Answer", .requests = 1,
     .plans = {{.answers = 4, .sizes = {31415, 9, 2653, 92653}, .compress = 1}}},
};
// clang-format on

struct result {
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;
};

static void got(grpc_byte_buffer *message, bool text)
{
    grpc_slice all = whole(message);
    if (text)
        printf(" sum=%.*s", (int)GRPC_SLICE_LENGTH(all), (char *)GRPC_SLICE_START_PTR(all));
    else
        printf(" %zu%s", GRPC_SLICE_LENGTH(all), is_filled(all, 0) ? "" : "(wrong)");
    if (GRPC_SLICE_LENGTH(all) >= LARGE)
        large_got += GRPC_SLICE_LENGTH(all);
    grpc_slice_unref(all);
    grpc_byte_buffer_destroy(message);
}

static grpc_byte_buffer *request(const struct test *test, size_t i)
{
    if (test->empty)
        return with_plan(NULL, 0);
    size_t size = sizeof(struct plan) + test->plans[i].size;
    if (size >= LARGE)
        large_sent += size;
    return with_plan(&test->plans[i], test->plans[i].size);
}

static size_t custom(grpc_metadata out[2])
{
    static const uint8_t bytes[] = {0xab, 0xab, 0xab};
    out[0].key = grpc_slice_from_static_string(ECHO_INITIAL);
    out[0].value = grpc_slice_from_static_string("test_initial_metadata_value");
    out[1].key = grpc_slice_from_static_string(ECHO_TRAILING);
    out[1].value = grpc_slice_from_static_buffer(bytes, sizeof bytes);
    return 2;
}

static void ops_of(const struct test *test, struct result *result, grpc_metadata own[2],
                   grpc_op ops[6])
{
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    ops[0].data.send_initial_metadata.count = test->metadata ? custom(own) : 0;
    ops[0].data.send_initial_metadata.metadata = own;
    ops[1] = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA};
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &result->initial;
    ops[2] = (grpc_op){.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    ops[2].data.recv_status_on_client.status = &result->status;
    ops[2].data.recv_status_on_client.status_details = &result->details;
    ops[2].data.recv_status_on_client.trailing_metadata = &result->trailing;
    ops[3] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
}

// All in one batch.
static void unary(grpc_call *call, const struct test *test, struct result *result)
{
    grpc_metadata own[2];
    grpc_op ops[6];
    grpc_byte_buffer *sent = request(test, 0), *answer = NULL;
    ops_of(test, result, own, ops);
    ops[4] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE,
                       .flags = test->no_compress ? GRPC_WRITE_NO_COMPRESS : 0};
    ops[4].data.send_message.send_message = sent;
    ops[5] = (grpc_op){.op = GRPC_OP_RECV_MESSAGE};
    ops[5].data.recv_message.recv_message = &answer;
    batch(queue, call, ops, 6);
    grpc_byte_buffer_destroy(sent);
    if (answer)
        got(answer, false);
}

static void stream(grpc_call *call, const struct test *test, struct result *result)
{
    static char started, ended;
    grpc_metadata own[2];
    grpc_op ops[6];
    grpc_byte_buffer *answer;
    bool sum = strcmp(test->path, "/test/Sum") == 0, cancelled = test->how == CANCEL_FIRST;
    gpr_timespec ever = gpr_inf_future(GPR_CLOCK_REALTIME);
    ops_of(test, result, own, ops);
    if (grpc_call_start_batch(call, ops, 2, &started, NULL) != GRPC_CALL_OK ||
        grpc_call_start_batch(call, ops + 2, 1, &ended, NULL) != GRPC_CALL_OK)
        die("start_batch");
    if (cancelled)
        grpc_call_cancel(call, NULL);
    for (size_t i = 0; i < test->requests && !cancelled; i++) {
        if (!send_message(queue, call, request(test, i)))
            break;
        for (uint32_t a = 0; !sum && a < test->plans[i].answers; a++)
            if ((answer = receive_message(queue, call)))
                got(answer, false);
        if ((cancelled = test->how == CANCEL_ANSWER))
            grpc_call_cancel(call, NULL);
    }
    if (!cancelled && test->how != SLEEP)
        batch(queue, call, ops + 3, 1);
    while (!cancelled && (answer = receive_message(queue, call)))
        got(answer, sum);
    grpc_completion_queue_pluck(queue, &started, ever, NULL);
    grpc_completion_queue_pluck(queue, &ended, ever, NULL);
}

static void print_slice(grpc_slice slice)
{
    for (size_t i = 0; i < GRPC_SLICE_LENGTH(slice); i++) {
        uint8_t byte = GRPC_SLICE_START_PTR(slice)[i];
        printf(byte < 32 || byte > 126 ? "\\x%02x" : "%c", byte);
    }
}

static void print_metadata(const char *name, const grpc_metadata_array *array)
{
    printf(" %s{", name);
    for (size_t i = 0; i < array->count; i++) {
        print_slice(array->metadata[i].key);
        printf("=");
        print_slice(array->metadata[i].value);
        printf(";");
    }
    printf("}");
}

static grpc_status_code run_test(const struct test *test, bool print)
{
    struct result result = {.details = grpc_empty_slice()};
    grpc_metadata_array_init(&result.initial);
    grpc_metadata_array_init(&result.trailing);
    int64_t ms = test->how == SLEEP ? 50 : 120000;
    gpr_timespec deadline = gpr_time_add(gpr_now(GPR_CLOCK_REALTIME),
                                         gpr_time_from_millis(ms, GPR_TIMESPAN));
    grpc_call *call = grpc_channel_create_call(
        test->gzip ? gzipped : channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue,
        grpc_slice_from_static_string(test->path), NULL, deadline, NULL);
    if (print)
        printf("%s:", test->name);
    if (test->unary)
        unary(call, test, &result);
    else
        stream(call, test, &result);
    if (print) {
        printf(" status=%d", (int)result.status);
        if (test->how == TO_THE_END) {
            print_metadata("initial", &result.initial);
            print_metadata("trailing", &result.trailing);
        }
        printf(" \"");
        print_slice(result.details);
        printf("\"\n");
    }
    grpc_slice_unref(result.details);
    grpc_metadata_array_destroy(&result.initial);
    grpc_metadata_array_destroy(&result.trailing);
    grpc_call_unref(call);
    return result.status;
}

static void step(const char *name)
{
    int byte, tries = 0;
    if (strcmp(name, "wait") == 0) {
        do
            byte = getchar();
        while (byte != '\n' && byte != EOF);
        return;
    }
    if (strcmp(name, "link") == 0) {
        printf("link:");
        while (run_test(&tests[0], false) != GRPC_STATUS_OK && ++tries < 200)
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        printf("\n");
        return;
    }
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(name, "all") == 0 || strcmp(name, tests[i].name) == 0)
            run_test(&tests[i], true);
}

static grpc_channel *open_channel(const char *target, bool gzip)
{
    grpc_arg args[2] = {
        {.type = GRPC_ARG_INTEGER, .key = GRPC_COMPRESSION_CHANNEL_DEFAULT_ALGORITHM},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_RECONNECT_BACKOFF_MS}};
    args[0].value.integer = gzip ? GRPC_COMPRESS_GZIP : GRPC_COMPRESS_NONE;
    args[1].value.integer = 200;
    grpc_channel_args list = {.num_args = 2, .args = args};
    grpc_channel_credentials *plain = grpc_insecure_credentials_create();
    grpc_channel *opened = grpc_channel_create(target, plain, &list);
    grpc_channel_credentials_release(plain);
    return opened;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        die("usage: interop_client HOST:PORT CASE...");
    grpc_init();
    channel = open_channel(argv[1], false);
    gzipped = open_channel(argv[1], true);
    queue = grpc_completion_queue_create_for_pluck(NULL);
    for (int i = 2; i < argc; i++)
        step(argv[i]);
    fprintf(stderr, "large: sent %" PRIu64 " got %" PRIu64 "\n", large_sent, large_got);
    grpc_channel_destroy(channel);
    grpc_channel_destroy(gzipped);
    grpc_completion_queue_shutdown(queue);
    grpc_completion_queue_destroy(queue);
    grpc_shutdown();
    return 0;
}
