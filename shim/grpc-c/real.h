// SPDX-License-Identifier: Apache-2.0
//
// The functions of gRPC that the shim calls, found behind it with dlsym(RTLD_NEXT): the shim is linked with no libgrpc, so it serves whichever of libgrpc and libgrpc_unsecure the program
// has. The table is filled once, by real_ready(), and read-only afterwards.

#ifndef LIEN_GRPC_REAL_H
#define LIEN_GRPC_REAL_H

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/slice_buffer.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#define REAL_FUNCTIONS(X)                                                                          \
    X(grpc_auth_context_add_property)                                                              \
    X(grpc_auth_context_find_properties_by_name)                                                   \
    X(grpc_auth_context_release)                                                                   \
    X(grpc_auth_property_iterator_next)                                                            \
    X(grpc_byte_buffer_copy)                                                                       \
    X(grpc_byte_buffer_destroy)                                                                    \
    X(grpc_byte_buffer_length)                                                                     \
    X(grpc_byte_buffer_reader_init)                                                                \
    X(grpc_call_auth_context)                                                                      \
    X(grpc_call_cancel_with_status)                                                                \
    X(grpc_call_get_peer)                                                                          \
    X(grpc_call_ref)                                                                               \
    X(grpc_call_start_batch)                                                                       \
    X(grpc_call_unref)                                                                             \
    X(grpc_channel_create)                                                                         \
    X(grpc_channel_create_call)                                                                    \
    X(grpc_channel_create_registered_call)                                                         \
    X(grpc_channel_credentials_release)                                                            \
    X(grpc_channel_destroy)                                                                        \
    X(grpc_completion_queue_next)                                                                  \
    X(grpc_completion_queue_pluck)                                                                 \
    X(grpc_insecure_credentials_create)                                                            \
    X(grpc_insecure_server_credentials_create)                                                     \
    X(grpc_raw_byte_buffer_create)                                                                 \
    X(grpc_server_add_http2_port)                                                                  \
    X(grpc_server_create)                                                                          \
    X(grpc_server_credentials_release)                                                             \
    X(grpc_server_credentials_set_auth_metadata_processor)                                         \
    X(grpc_server_destroy)                                                                         \
    X(grpc_server_request_registered_call)                                                         \
    X(grpc_slice_buffer_add)                                                                       \
    X(grpc_slice_buffer_destroy)                                                                   \
    X(grpc_slice_buffer_init)                                                                      \
    X(grpc_slice_buffer_reset_and_unref)                                                           \
    X(grpc_slice_buffer_swap)                                                                      \
    X(grpc_slice_buffer_take_first)                                                                \
    X(grpc_slice_buffer_undo_take_first)                                                           \
    X(grpc_slice_from_copied_buffer)                                                               \
    X(grpc_slice_from_static_string)                                                               \
    X(grpc_slice_malloc)                                                                           \
    X(grpc_slice_new_with_user_data)                                                               \
    X(grpc_slice_split_tail)                                                                       \
    X(grpc_slice_unref)                                                                            \
    X(gpr_convert_clock_type)                                                                      \
    X(gpr_free)                                                                                    \
    X(gpr_now)                                                                                     \
    X(gpr_time_sub)                                                                                \
    X(gpr_time_to_millis)

struct real_table {
#define REAL_MEMBER(name) __typeof__(name) *name;
    REAL_FUNCTIONS(REAL_MEMBER)
#undef REAL_MEMBER
};

extern struct real_table real;

// Fills the table at the first call. A function that is missing ends the process with its name: an interposed one was called, so gRPC is there, and it is not the one that the
// shim was made for.
void real_ready(void);

#endif
