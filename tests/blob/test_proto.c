// SPDX-License-Identifier: Apache-2.0
//
// The language of lien-blob: what is encoded decodes to the same, and nothing else decodes. Pure functions; no state.

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tools/lien-blob/proto.h"

static const struct blob_ask ask = {.transfer = UINT64_MAX,
                                    .offset = INT64_MAX,
                                    .size = 0x0123456789abcdef,
                                    .sum = {0x5a, 1, 2, 3},
                                    .name = "a name"};
static const struct blob_answer answer = {.status = BLOB_NO_SPACE,
                                          .flags = BLOB_HAS_SUM | BLOB_MORE,
                                          .transfer = 77,
                                          .offset = INT64_MAX,
                                          .size = 0x0123456789abcdef,
                                          .mtime = -5,
                                          .copied = UINT64_MAX,
                                          .sum = {0xa5, 1, 2, 3},
                                          .text = "a text"};

// Copies to a block of exactly `len` bytes, so that AddressSanitizer sees a read behind it.
static void *exact(const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len ? len : 1);
    cr_assert(copy);
    memcpy(copy, bytes, len);
    return copy;
}

static bool decode_ask(const uint8_t *bytes, size_t len, struct blob_ask *out)
{
    void *copy = exact(bytes, len);
    bool ok = proto_decode_ask(copy, len, out);
    free(copy);
    return ok;
}

static bool decode_answer(const uint8_t *bytes, size_t len, struct blob_answer *out)
{
    void *copy = exact(bytes, len);
    bool ok = proto_decode_answer(copy, len, out);
    free(copy);
    return ok;
}

Test(proto, an_ask_survives_the_journey)
{
    struct blob_ask out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    cr_assert(decode_ask(bytes, proto_encode_ask(&ask, bytes), &out));
    cr_assert_eq(out.transfer, ask.transfer);
    cr_assert_eq(out.offset, ask.offset);
    cr_assert_eq(out.size, ask.size);
    cr_assert_arr_eq(out.sum, ask.sum, BLOB_SUM_BYTES);
    cr_assert_str_eq(out.name, "a name");
}

Test(proto, an_answer_survives_the_journey)
{
    struct blob_answer out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    cr_assert(decode_answer(bytes, proto_encode_answer(&answer, bytes), &out));
    cr_assert_eq(out.status, BLOB_NO_SPACE);
    cr_assert_eq(out.flags, answer.flags);
    cr_assert_eq(out.transfer, 77u);
    cr_assert_eq(out.offset, answer.offset);
    cr_assert_eq(out.size, answer.size);
    cr_assert_eq(out.mtime, -5);
    cr_assert_eq(out.copied, UINT64_MAX);
    cr_assert_arr_eq(out.sum, answer.sum, BLOB_SUM_BYTES);
    cr_assert_str_eq(out.text, "a text");
}

Test(proto, what_is_cut_or_too_long_is_refused_and_leaves_the_output_alone)
{
    uint8_t bytes[BLOB_MESSAGE_MAX + 1] = {0};
    size_t len = proto_encode_ask(&ask, bytes);
    for (size_t cut = 0; cut <= len + 1; cut++) {
        struct blob_ask out = {.size = 42};
        cr_assert_eq(decode_ask(bytes, cut, &out), cut == len, "an ask cut at %zu", cut);
        cr_assert_eq(out.size, cut == len ? ask.size : 42u);
    }
    len = proto_encode_answer(&answer, bytes);
    for (size_t cut = 0; cut <= len + 1; cut++) {
        struct blob_answer out = {.size = 42};
        cr_assert_eq(decode_answer(bytes, cut, &out), cut == len, "an answer cut at %zu", cut);
        cr_assert_eq(out.size, cut == len ? answer.size : 42u);
    }
}

Test(proto, every_byte_may_be_anything_without_harm)
{
    uint8_t asked[BLOB_MESSAGE_MAX], answered[BLOB_MESSAGE_MAX];
    size_t ask_len = proto_encode_ask(&ask, asked);
    size_t answer_len = proto_encode_answer(&answer, answered);
    for (unsigned change = 1; change < 256; change++) {
        for (size_t at = 0; at < ask_len; at++) {
            struct blob_ask out;
            asked[at] = (uint8_t)(asked[at] ^ change);
            if (decode_ask(asked, ask_len, &out)) {
                cr_assert_leq(strlen(out.name), (size_t)BLOB_NAME_MAX);
                cr_assert(out.size <= INT64_MAX && out.offset <= INT64_MAX);
            }
            asked[at] = (uint8_t)(asked[at] ^ change);
        }
        for (size_t at = 0; at < answer_len; at++) {
            struct blob_answer out;
            answered[at] = (uint8_t)(answered[at] ^ change);
            if (decode_answer(answered, answer_len, &out)) {
                cr_assert_leq(strlen(out.text), (size_t)BLOB_TEXT_MAX);
                cr_assert(out.size <= INT64_MAX && out.offset <= INT64_MAX);
                cr_assert_leq(out.status, BLOB_GONE);
            }
            answered[at] = (uint8_t)(answered[at] ^ change);
        }
    }
}

Test(proto, versions_and_statuses_that_do_not_exist_are_refused)
{
    struct blob_ask ask_out;
    struct blob_answer out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    size_t len = proto_encode_ask(&ask, bytes);
    bytes[0] = BLOB_VERSION + 1;
    cr_assert_not(decode_ask(bytes, len, &ask_out));
    len = proto_encode_answer(&answer, bytes);
    bytes[1] = BLOB_USAGE; // a status that is never sent
    cr_assert_not(decode_answer(bytes, len, &out));
    bytes[1] = BLOB_OK;
    cr_assert(decode_answer(bytes, len, &out));
    bytes[0] = BLOB_VERSION + 1;
    cr_assert_not(decode_answer(bytes, len, &out));
}

Test(proto, sizes_beyond_a_file_offset_are_refused)
{
    struct blob_ask in = ask, out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    in.size = (uint64_t)INT64_MAX + 1;
    cr_assert_not(decode_ask(bytes, proto_encode_ask(&in, bytes), &out));
    in.size = INT64_MAX;
    cr_assert(decode_ask(bytes, proto_encode_ask(&in, bytes), &out));
}

Test(proto, a_name_with_a_nul_inside_is_refused)
{
    struct blob_ask out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    size_t len = proto_encode_ask(&ask, bytes);
    bytes[len - 1] = 0;
    cr_assert_not(decode_ask(bytes, len, &out));
}

Test(proto, the_longest_strings_fit)
{
    struct blob_ask in = ask, out;
    struct blob_answer long_answer = answer, answer_out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    memset(in.name, 'n', BLOB_NAME_MAX);
    cr_assert(decode_ask(bytes, proto_encode_ask(&in, bytes), &out));
    cr_assert_eq(strlen(out.name), BLOB_NAME_MAX);
    memset(long_answer.text, 't', BLOB_TEXT_MAX);
    cr_assert(decode_answer(bytes, proto_encode_answer(&long_answer, bytes), &answer_out));
    cr_assert_eq(strlen(answer_out.text), BLOB_TEXT_MAX);
}

Test(proto, text_cannot_steer_a_terminal)
{
    struct blob_answer in = answer, out;
    uint8_t bytes[BLOB_MESSAGE_MAX];
    strcpy(in.text, "\033[2Jgone\n");
    cr_assert(decode_answer(bytes, proto_encode_answer(&in, bytes), &out));
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
