// SPDX-License-Identifier: Apache-2.0
//
// What the interoperability client and server have in common: messages that say what is to be answered, and their bytes.

#ifndef LIEN_TEST_INTEROP_H
#define LIEN_TEST_INTEROP_H

#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ECHO_INITIAL  "x-grpc-test-echo-initial"
#define ECHO_TRAILING "x-grpc-test-echo-trailing-bin"

// A request: this, and `size` bytes. An answer is its bytes alone.
struct plan {
    uint32_t status; // of the call, at once; 0: go on
    uint32_t size;
    uint32_t answers, sizes[4];
    uint32_t compress; // the answers
    char text[64];     // of the status
};

static inline void die(const char *what)
{
    fprintf(stderr, "interop: %s\n", what);
    exit(1);
}

static inline uint8_t byte_at(size_t i, size_t size)
{
    return (uint8_t)(i >> 8 ^ i * 31 ^ size);
}

static inline grpc_byte_buffer *with_plan(const struct plan *plan, size_t size)
{
    size_t head = plan ? sizeof *plan : 0;
    uint8_t *bytes = calloc(1, head + size + 1);
    if (!bytes)
        die("memory");
    if (plan)
        memcpy(bytes, plan, head);
    for (size_t i = 0; i < size; i++)
        bytes[head + i] = byte_at(i, size);
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes, head + size);
    free(bytes);
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return message;
}

static inline grpc_slice whole(grpc_byte_buffer *message)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, message))
        return grpc_empty_slice();
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    return all;
}

// Whether the bytes from `from` on are those of with_plan().
static inline bool is_filled(grpc_slice slice, size_t from)
{
    const uint8_t *bytes = GRPC_SLICE_START_PTR(slice);
    size_t size = GRPC_SLICE_LENGTH(slice) - from, i = 0;
    while (i < size && bytes[from + i] == byte_at(i, size))
        i++;
    return i == size;
}

// One batch, to its end.
static inline bool batch(grpc_completion_queue *queue, grpc_call *call, const grpc_op *ops,
                         size_t n)
{
    static char tag;
    if (grpc_call_start_batch(call, ops, n, &tag, NULL) != GRPC_CALL_OK)
        die("start_batch");
    return grpc_completion_queue_pluck(queue, &tag, gpr_inf_future(GPR_CLOCK_REALTIME), NULL)
        .success;
}

static inline bool send_message(grpc_completion_queue *queue, grpc_call *call,
                                grpc_byte_buffer *message)
{
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = message;
    bool sent = batch(queue, call, &op, 1);
    grpc_byte_buffer_destroy(message);
    return sent;
}

// NULL: there is none any more.
static inline grpc_byte_buffer *receive_message(grpc_completion_queue *queue, grpc_call *call)
{
    grpc_byte_buffer *message = NULL;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &message;
    batch(queue, call, &op, 1);
    return message;
}

#endif
