// SPDX-License-Identifier: Apache-2.0
//
// The language of lien-blob: what is encoded decodes to the same, and nothing else decodes. Pure functions; no state.

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tools/lien-blob/proto.h"

// A message of each kind with every field filled in.
static struct blob_message sample(enum blob_kind kind)
{
    struct blob_message message = {.kind = kind,
                                   .status = BLOB_NO_SPACE,
                                   .flags = BLOB_HAS_SUM | BLOB_MORE,
                                   .size = 0x0123456789abcdef,
                                   .offset = INT64_MAX,
                                   .mtime = -5,
                                   .copied = UINT64_MAX,
                                   .name = "a name",
                                   .text = "a text",
                                   .token = {.len = 40}};
    memset(message.sum, 0x5a, BLOB_SUM_BYTES);
    memset(message.token.bytes, 0xa5, message.token.len);
    return message;
}

// Copies to a block of exactly `len` bytes, so that AddressSanitizer sees a read behind it.
static bool decode_exact(const uint8_t *bytes, size_t len, struct blob_message *message)
{
    uint8_t *exact = malloc(len ? len : 1);
    cr_assert(exact);
    memcpy(exact, bytes, len);
    bool ok = proto_decode(exact, len, message);
    free(exact);
    return ok;
}

Test(proto, every_kind_survives_the_journey)
{
    for (unsigned kind = 1; kind < BLOB_KINDS; kind++) {
        struct blob_message in = sample((enum blob_kind)kind), out;
        uint8_t bytes[BLOB_MESSAGE_MAX], again[BLOB_MESSAGE_MAX];
        size_t len = proto_encode(&in, bytes);
        cr_assert(decode_exact(bytes, len, &out), "kind %u", kind);
        cr_assert_eq(out.kind, in.kind);
        // What decodes encodes to the same bytes, so no field is lost and none is invented.
        cr_assert_eq(proto_encode(&out, again), len);
        cr_assert_arr_eq(again, bytes, len, "kind %u", kind);
    }
}

Test(proto, fields_arrive_in_their_places)
{
    struct blob_message in = sample(BLOB_GET_REPLY), out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    cr_assert(decode_exact(bytes, proto_encode(&in, bytes), &out));
    cr_assert_eq(out.status, BLOB_NO_SPACE);
    cr_assert_eq(out.flags, in.flags);
    cr_assert_eq(out.size, in.size);
    cr_assert_eq(out.mtime, -5);
    cr_assert_arr_eq(out.sum, in.sum, BLOB_SUM_BYTES);
    cr_assert_str_eq(out.text, "a text");
    cr_assert_eq(out.copied, 0u, "a field of another kind");
}

Test(proto, a_message_cut_anywhere_is_refused_and_leaves_the_output_alone)
{
    for (unsigned kind = 1; kind < BLOB_KINDS; kind++) {
        struct blob_message in = sample((enum blob_kind)kind);
        uint8_t bytes[BLOB_MESSAGE_MAX + 1] = {0};
        size_t len = proto_encode(&in, bytes);
        for (size_t cut = 0; cut < len; cut++) {
            struct blob_message out = {.kind = BLOB_KINDS};
            cr_assert_not(decode_exact(bytes, cut, &out), "kind %u cut at %zu", kind, cut);
            cr_assert_eq(out.kind, BLOB_KINDS);
        }
        struct blob_message out;
        cr_assert_not(decode_exact(bytes, len + 1, &out), "kind %u with one byte more", kind);
    }
}

Test(proto, every_byte_may_be_anything_without_harm)
{
    for (unsigned kind = 1; kind < BLOB_KINDS; kind++) {
        struct blob_message in = sample((enum blob_kind)kind);
        uint8_t bytes[BLOB_MESSAGE_MAX];
        size_t len = proto_encode(&in, bytes);
        for (size_t at = 0; at < len; at++) {
            uint8_t was = bytes[at];
            for (unsigned value = 0; value < 256; value++) {
                bytes[at] = (uint8_t)value;
                struct blob_message out;
                if (!decode_exact(bytes, len, &out))
                    continue;
                cr_assert_leq(strlen(out.name), (size_t)BLOB_NAME_MAX);
                cr_assert_leq(out.token.len, (uint32_t)LIEN_TOKEN_MAX);
                cr_assert_leq(out.size, (uint64_t)INT64_MAX);
                cr_assert_leq(out.status, BLOB_GONE);
            }
            bytes[at] = was;
        }
    }
}

Test(proto, versions_kinds_and_statuses_that_do_not_exist_are_refused)
{
    struct blob_message in = sample(BLOB_REFUSED), out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    size_t len = proto_encode(&in, bytes);
    bytes[0] = BLOB_VERSION + 1;
    cr_assert_not(decode_exact(bytes, len, &out));
    bytes[0] = BLOB_VERSION;
    bytes[1] = 0;
    cr_assert_not(decode_exact(bytes, len, &out));
    bytes[1] = BLOB_KINDS;
    cr_assert_not(decode_exact(bytes, len, &out));
    bytes[1] = BLOB_REFUSED;
    bytes[2] = BLOB_USAGE; // a status that is never sent
    cr_assert_not(decode_exact(bytes, len, &out));
    bytes[2] = BLOB_OK;
    cr_assert(decode_exact(bytes, len, &out));
}

Test(proto, sizes_beyond_a_file_offset_are_refused)
{
    struct blob_message in = sample(BLOB_PUT), out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    in.size = (uint64_t)INT64_MAX + 1;
    cr_assert_not(decode_exact(bytes, proto_encode(&in, bytes), &out));
    in.size = INT64_MAX;
    cr_assert(decode_exact(bytes, proto_encode(&in, bytes), &out));
}

Test(proto, a_name_with_a_nul_inside_is_refused)
{
    struct blob_message in = sample(BLOB_GET), out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    size_t len = proto_encode(&in, bytes);
    bytes[len - 1] = 0;
    cr_assert_not(decode_exact(bytes, len, &out));
}

Test(proto, the_longest_fields_fit)
{
    struct blob_message in = sample(BLOB_PIECE), out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    in.token.len = LIEN_TOKEN_MAX;
    cr_assert(decode_exact(bytes, proto_encode(&in, bytes), &out));
    cr_assert_eq(out.token.len, LIEN_TOKEN_MAX);
    in = sample(BLOB_PUT);
    memset(in.name, 'n', BLOB_NAME_MAX);
    cr_assert(decode_exact(bytes, proto_encode(&in, bytes), &out));
    cr_assert_eq(strlen(out.name), BLOB_NAME_MAX);
    in = sample(BLOB_STAT_REPLY);
    memset(in.text, 't', BLOB_TEXT_MAX);
    cr_assert(decode_exact(bytes, proto_encode(&in, bytes), &out));
    cr_assert_eq(strlen(out.text), BLOB_TEXT_MAX);
}

Test(proto, text_cannot_steer_a_terminal)
{
    struct blob_message in = sample(BLOB_REFUSED), out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    strcpy(in.text, "\033[2Jgone\n");
    cr_assert(decode_exact(bytes, proto_encode(&in, bytes), &out));
    cr_assert_str_eq(out.text, "?[2Jgone?");
}

Test(proto, list_entries_survive_and_cut_ones_are_refused)
{
    struct blob_entry in = {.name = "x", .size = 7, .mtime = 9, .flags = BLOB_HAS_PARTIAL}, out;
    uint8_t bytes[64];
    size_t len = proto_entry_encode(&in, bytes, sizeof(bytes));
    cr_assert_gt(len, 0u);
    cr_assert_eq(proto_entry_encode(&in, bytes, len - 1), 0u, "no room");
    cr_assert_eq(proto_entry_encode(&in, bytes, len), len);
    cr_assert_eq(proto_entry_decode(bytes, sizeof(bytes), &out), len);
    cr_assert_str_eq(out.name, "x");
    cr_assert_eq(out.size, 7u);
    cr_assert_eq(out.mtime, 9);
    cr_assert_eq(out.flags, BLOB_HAS_PARTIAL);
    for (size_t cut = 0; cut < len; cut++)
        cr_assert_eq(proto_entry_decode(bytes, cut, &out), 0u, "cut at %zu", cut);
}
