// SPDX-License-Identifier: Apache-2.0
//
// Frames and tokens: the bytes are those of docs/wire.md; what is encoded comes back; everything else is refused with a reason that names the field, and nothing is written.

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/bytes.h"
#include "core/wire.h"
#include "tests/support/wire_checks.h"

static const struct lieni_wire_limits limits = {.frame_max = 8192,
                                                .message_max = UINT64_C(1) << 32,
                                                .grants_max = 4096,
                                                .own_grants_max = 1000,
                                                .calls_max = 32,
                                                .side = 1};

static const uint8_t head[4096] = "the head of a message";

struct sample {
    uint8_t bytes[8192];
    size_t len;
};

static struct lieni_key key_of(uint32_t i)
{
    return (struct lieni_key){
        .addr = 0x1000u * (i + 1), .key = 0x0123456789abcdefu + i, .len = 1u + i};
}

static struct lieni_frame msg_of(uint32_t n_keys, size_t head_len)
{
    struct lieni_frame frame = {.kind = LIENI_FRAME_MSG,
                                .message_credits = 3,
                                .control_credits = 4,
                                .number = 0x01020304,
                                .n_keys = n_keys,
                                .head = head,
                                .head_len = head_len};
    if (n_keys > 0)
        frame.name = (struct lieni_name){.slot = 4095, .gen = 9};
    for (uint32_t i = 0; i < n_keys; i++) {
        frame.keys[i] = key_of(i);
        frame.total += frame.keys[i].len;
    }
    return frame;
}

static struct lieni_frame names_of(enum lieni_frame_kind kind, uint32_t n)
{
    struct lieni_frame frame = {.kind = kind, .number = 1, .n_names = n};
    for (uint32_t i = 0; i < n; i++)
        frame.names[i] = (struct lieni_name){.slot = i, .gen = UINT32_MAX - i};
    return frame;
}

static struct lieni_frame bare_of(enum lieni_frame_kind kind)
{
    return (struct lieni_frame){.kind = kind, .message_credits = UINT16_MAX, .number = UINT32_MAX};
}

static uint32_t some_keys(uint32_t n, struct lieni_key *keys, uint64_t *total)
{
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = key_of(i);
        *total += keys[i].len;
    }
    return n;
}

// Ours are of side 1.
static struct lieni_frame call_of(uint32_t n_keys, uint32_t n_read, size_t head_len)
{
    struct lieni_frame frame = {.kind = LIENI_FRAME_CALL,
                                .number = 7,
                                .call = lieni_call_id(UINT32_MAX, 31, 0),
                                .deadline_ms = 30000,
                                .method = "store/put",
                                .method_len = 9,
                                .reply_max = 1u << 20,
                                .space_len = 12345,
                                .head = head,
                                .head_len = head_len};
    frame.n_keys = some_keys(n_keys, frame.keys, &frame.total);
    frame.n_read_keys = some_keys(n_read, frame.read_keys, &frame.read_total);
    if (n_keys)
        frame.name = (struct lieni_name){.slot = 4095, .gen = 9};
    if (n_read)
        frame.read_name = (struct lieni_name){.slot = 4094, .gen = 1};
    return frame;
}

static struct lieni_frame reply_of(uint32_t n_keys, size_t head_len)
{
    struct lieni_frame frame = {.kind = LIENI_FRAME_REPLY,
                                .call = lieni_call_id(1, 0, 1),
                                .status = -7,
                                .unbegun = n_keys == 0,
                                .head = head,
                                .head_len = head_len};
    frame.n_keys = some_keys(n_keys, frame.keys, &frame.total);
    if (n_keys)
        frame.name = (struct lieni_name){.slot = 1, .gen = 9};
    return frame;
}

static struct lieni_frame write_of(uint32_t n_keys, uint32_t n_ops, bool last)
{
    static uint8_t ops[64 * LIENI_OP_SIZE];
    struct lieni_frame frame = {.kind = LIENI_FRAME_WRITE,
                                .call = lieni_call_id(3, 30, 1),
                                .write = 0xfffffffe,
                                .first = n_keys > 0,
                                .last = last,
                                .n_ops = n_ops,
                                .ops = ops};
    for (unsigned i = 0; i < 64; i++)
        lieni_op_store(ops + i * LIENI_OP_SIZE, &(lien_op){.src = i, .dst = 100 - i, .len = 7});
    frame.n_keys = some_keys(n_keys, frame.keys, &frame.total);
    if (n_keys)
        frame.name = (struct lieni_name){.slot = 2, .gen = 3};
    return frame;
}

static struct lieni_frame probes_of(enum lieni_frame_kind kind, uint32_t n)
{
    struct lieni_frame frame = {.kind = kind, .n_probes = n};
    for (uint32_t i = 0; i < n; i++) {
        frame.probes[i] = (struct lieni_probe){.id = 0x80000000u + i};
        if (kind == LIENI_FRAME_ANSWER) {
            frame.probes[i].holds = i % 2;
        } else {
            frame.probes[i].call = lieni_call_id(i + 1, i % 32, 1);
            frame.probes[i].name = (struct lieni_name){.slot = i, .gen = i + 1};
        }
    }
    return frame;
}

static struct lieni_frame small_of(enum lieni_frame_kind kind)
{
    const bool written = kind == LIENI_FRAME_WRITTEN;
    return (struct lieni_frame){.kind = kind,
                                .call = lieni_call_id(2, 5, 0),
                                .write = written ? 77 : 0,
                                .status = written ? -4 : 0};
}

static struct sample encoded(const struct lieni_frame *frame)
{
    struct sample sample;
    _Atomic uint64_t copied = 0;
    const int rc = lieni_frame_encode(frame, sample.bytes, sizeof sample.bytes, &copied,
                                      &sample.len);
    cr_assert_eq(rc, 0);
    cr_assert_eq(copied, frame->head_len);
    return sample;
}

// One of each shape: `i` from 0 until false.
static bool sample_frame(unsigned i, struct lieni_frame *frame)
{
    const struct lieni_frame all[] = {
        msg_of(0, 0),
        msg_of(0, 100),
        msg_of(1, 0),
        msg_of(3, 17),
        msg_of(64, 300),
        names_of(LIENI_FRAME_RELEASE, 1),
        names_of(LIENI_FRAME_RELEASE, 64),
        names_of(LIENI_FRAME_REVOKE, 5),
        bare_of(LIENI_FRAME_CREDIT),
        bare_of(LIENI_FRAME_BEAT),
        bare_of(LIENI_FRAME_BYE),
        bare_of(LIENI_FRAME_GOAWAY),
        bare_of(LIENI_FRAME_HEARD),
        call_of(0, 0, 0),
        call_of(2, 0, 13),
        call_of(0, 3, 1),
        call_of(64, 64, 300),
        reply_of(0, 0),
        reply_of(5, 200),
        small_of(LIENI_FRAME_CANCEL),
        small_of(LIENI_FRAME_WRITTEN),
        probes_of(LIENI_FRAME_PROBE, 1),
        probes_of(LIENI_FRAME_PROBE, 64),
        probes_of(LIENI_FRAME_ANSWER, 3),
        write_of(1, 1, true),
        write_of(64, 64, false),
        write_of(0, 10, true),
    };
    if (i >= sizeof all / sizeof all[0])
        return false;
    *frame = all[i];
    return true;
}

static void expect_refused(const struct sample *sample, const struct lieni_wire_limits *with,
                           const char *word)
{
    static struct lieni_frame frame;
    const char *why = NULL;
    const int rc = lieni_frame_decode(sample->bytes, sample->len, with, &frame, &why);
    cr_assert_eq(rc, LIEN_EPROTO, "accepted, though: %s", word);
    cr_assert_not_null(strstr(why, word), "refused with \"%s\", expected \"%s\"", why, word);
    cr_assert_null(check_frame(sample->bytes, sample->len, with));
}

// -- The bytes -----------------------------------------------------------------------------------------------------------------------

Test(frame, msg_bytes)
{
    static const uint8_t expected[] = {
        1,    0,    67,   0,    3,    0,    4,    0,    4, 3, 2, 1, 0, 0, 0, 0, // header
        0xff, 0x0f, 0,    0,    9,    0,    0,    0,                            // slot, generation
        1,    0,    0,    0,    0,    0,    0,    0,    1, 0, 0, 0, 0, 0, 0, 0, // total, buffers
        0,    0x10, 0,    0,    0,    0,    0,    0,                            // key: address
        0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,                         // key
        1,    0,    0,    0,    0,    0,    0,    0,                            // length
        't',  'h',  'e',
    };
    const struct lieni_frame frame = msg_of(1, 3);
    const struct sample sample = encoded(&frame);
    cr_assert_eq(sample.len, sizeof expected);
    cr_assert_arr_eq(sample.bytes, expected, sizeof expected);
}

Test(frame, names_bytes)
{
    static const uint8_t expected[] = {
        2, 0, 32, 0, 0,    0,    0,    0,    1, 0, 0, 0, 0,    0,    0,    0,
        0, 0, 0,  0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff,
    };
    const struct lieni_frame frame = names_of(LIENI_FRAME_RELEASE, 2);
    const struct sample sample = encoded(&frame);
    cr_assert_eq(sample.len, sizeof expected);
    cr_assert_arr_eq(sample.bytes, expected, sizeof expected);
}

Test(frame, round_trip)
{
    struct lieni_frame in;
    for (unsigned i = 0; sample_frame(i, &in); i++) {
        const struct sample sample = encoded(&in);
        static struct lieni_frame out;
        const char *why = "";
        const int rc = lieni_frame_decode(sample.bytes, sample.len, &limits, &out, &why);
        cr_assert_eq(rc, 0, "sample %u: %s", i, why);
        cr_assert_eq(out.kind, in.kind);
        cr_assert_eq(out.message_credits, in.message_credits);
        cr_assert_eq(out.control_credits, in.control_credits);
        cr_assert_eq(out.number, in.number);
        cr_assert_eq(out.name.slot, in.name.slot);
        cr_assert_eq(out.name.gen, in.name.gen);
        cr_assert_eq(out.total, in.total);
        cr_assert_eq(out.n_keys, in.n_keys);
        cr_assert_arr_eq(out.keys, in.keys, in.n_keys * sizeof in.keys[0]);
        cr_assert_eq(out.n_names, in.n_names);
        cr_assert_arr_eq(out.names, in.names, in.n_names * sizeof in.names[0]);
        cr_assert_eq(out.head_len, in.head_len);
        cr_assert(in.head_len == 0 || memcmp(out.head, in.head, in.head_len) == 0);
    }
}

Test(frame, stamp_sets_credits_and_number_only)
{
    struct lieni_frame frame = msg_of(2, 5);
    struct sample stamped = encoded(&frame);
    lieni_frame_stamp(stamped.bytes, 0x1122, 0x3344, 0x55667788);
    frame.message_credits = 0x1122;
    frame.control_credits = 0x3344;
    frame.number = 0x55667788;
    const struct sample sample = encoded(&frame);
    cr_assert_arr_eq(stamped.bytes, sample.bytes, sample.len);
}

// -- Cut, extended ---------------------------------------------------------------------------------------------------------------------

Test(frame, cut_at_each_byte)
{
    struct lieni_frame frame;
    for (unsigned i = 0; sample_frame(i, &frame); i++) {
        const struct sample full = encoded(&frame);
        for (size_t len = 0; len < full.len; len++) {
            struct sample cut = full;
            cut.len = len;
            expect_refused(&cut, &limits, len < LIENI_FRAME_HEADER ? "header" : "length");
            if (len < LIENI_FRAME_HEADER)
                continue;
            // With a length that agrees only a shorter head, or fewer names, can be meant.
            lieni_put16(cut.bytes + 2, (uint16_t)len);
            cr_assert_null(check_frame(cut.bytes, cut.len, &limits), "sample %u, %zu", i, len);
            const bool in_head = frame.head_len > 0 && len >= full.len - frame.head_len;
            const bool at_name = frame.n_names > 0 && len > 16 && (len - 16) % 8 == 0;
            const size_t entry = frame.kind == LIENI_FRAME_PROBE ? 20 : 8;
            const bool at_probe = frame.n_probes > 0 && len > 16 && (len - 16) % entry == 0;
            static struct lieni_frame out;
            const char *why;
            const int rc = lieni_frame_decode(cut.bytes, len, &limits, &out, &why);
            cr_assert_eq(rc == 0, in_head || at_name || at_probe, "sample %u, %zu bytes", i, len);
        }
    }
}

Test(frame, trailing_bytes)
{
    struct lieni_frame frame;
    for (unsigned i = 0; sample_frame(i, &frame); i++) {
        struct sample more = encoded(&frame);
        more.bytes[more.len++] = 0;
        expect_refused(&more, &limits, "length");
        lieni_put16(more.bytes + 2, (uint16_t)more.len);
        const bool has_head = frame.kind == LIENI_FRAME_MSG || frame.kind == LIENI_FRAME_CALL ||
                              frame.kind == LIENI_FRAME_REPLY;
        const bool bare = lieni_get16(more.bytes + 2) == LIENI_FRAME_HEADER + 1;
        if (!has_head)
            expect_refused(&more, &limits,
                           frame.n_names > 0    ? "part of a name"
                           : frame.n_probes > 0 ? "number of probes"
                           : bare               ? "after"
                                                : "length is not");
    }
}

// -- Each field wrong -------------------------------------------------------------------------------------------------------------------

struct wrong {
    size_t at, size; // of the field
    uint64_t value;
    const char *word; // in the reason
};

static void put(uint8_t *at, size_t size, uint64_t value)
{
    for (size_t i = 0; i < size; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static void expect_each_refused(const struct lieni_frame *frame, const struct wrong *wrongs,
                                size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct sample sample = encoded(frame);
        put(sample.bytes + wrongs[i].at, wrongs[i].size, wrongs[i].value);
        expect_refused(&sample, &limits, wrongs[i].word);
    }
}
#define EXPECT_EACH_REFUSED(frame, wrongs)                                                         \
    expect_each_refused(frame, wrongs, sizeof(wrongs) / sizeof(wrongs)[0])

Test(frame, header_fields)
{
    static const struct wrong wrongs[] = {
        {0, 1, 0, "kind"},
        {0, 1, 17, "kind"},
        {0, 1, 255, "kind"},
        {1, 1, 2, "flags"},
        {1, 1, 0x80, "flags"},
        {2, 2, 0, "length"},
        {2, 2, 15, "length"},
        {2, 2, 65535, "length"},
        {12, 1, 1, "header reserved"},
        {15, 1, 0x80, "header reserved"},
    };
    struct lieni_frame frame;
    for (unsigned i = 0; sample_frame(i, &frame); i++)
        EXPECT_EACH_REFUSED(&frame, wrongs);
}

Test(frame, body_fields)
{
    static const struct wrong wrongs[] = {
        {16, 4, 4096, "slot"},
        {16, 4, UINT32_MAX, "slot"},
        {20, 4, 0, "generation"},
        {24, 8, 0, "more than total"},
        {24, 8, 5, "more than total"},
        {24, 8, 7, "less than total"},
        {24, 8, (UINT64_C(1) << 32) + 1, "message_max"},
        {24, 8, UINT64_MAX, "message_max"},
        {32, 1, 0, "without buffers"},
        {32, 1, 2, "less than total"},
        {32, 1, 4, "buffers is above what"},
        {32, 1, 64, "buffers is above what"},
        {32, 1, 65, "above 64"},
        {32, 1, 255, "above 64"},
        {33, 1, 1, "MSG reserved"},
        {39, 1, 1, "MSG reserved"},
        {40, 8, UINT64_MAX, "key address"},
        {56, 8, 0, "key length is 0"},
        {56, 8, 2, "more than total"},
        {56, 8, UINT64_MAX, "key address"},
        {80, 8, UINT64_MAX - 0x2000, "more than total"},
        {104, 8, 1, "less than total"},
    };
    const struct lieni_frame frame = msg_of(3, 17);
    EXPECT_EACH_REFUSED(&frame, wrongs);
}

Test(frame, no_body_is_all_zero)
{
    static const struct wrong wrongs[] = {
        {16, 4, 1, "without buffers"},
        {20, 4, 1, "without buffers"},
        {24, 8, 1, "without buffers"},
        {33, 1, 1, "reserved"},
    };
    const struct lieni_frame frame = msg_of(0, 100);
    EXPECT_EACH_REFUSED(&frame, wrongs);
}

Test(frame, name_fields)
{
    static const struct wrong wrongs[] = {
        {16, 4, 4096, "slot"},
        {20, 4, 0, "generation"},
        {48, 4, UINT32_MAX, "slot"},
        {52, 4, 0, "generation"},
    };
    static const struct wrong release_wrongs[] = {{16, 4, 1000, "slot"}, {24, 4, 1000, "slot"}};
    struct lieni_frame frame = names_of(LIENI_FRAME_RELEASE, 5);
    EXPECT_EACH_REFUSED(&frame, wrongs);
    EXPECT_EACH_REFUSED(&frame, release_wrongs);
    frame.kind = LIENI_FRAME_REVOKE;
    EXPECT_EACH_REFUSED(&frame, wrongs);
}

Test(frame, number_of_names)
{
    const struct lieni_frame frame = names_of(LIENI_FRAME_RELEASE, 64);
    struct sample sample = encoded(&frame);
    memset(sample.bytes + sample.len, 1, 8);
    sample.len += 8;
    lieni_put16(sample.bytes + 2, (uint16_t)sample.len);
    expect_refused(&sample, &limits, "1..64");
    sample.len = LIENI_FRAME_HEADER;
    lieni_put16(sample.bytes + 2, LIENI_FRAME_HEADER);
    expect_refused(&sample, &limits, "1..64");
}

// Lengths whose sum wraps to the total: 2^63 + 2^63 + 6 = 6.
Test(frame, sum_of_keys_does_not_wrap)
{
    struct lieni_frame frame = msg_of(3, 0);
    frame.total = 6;
    for (unsigned i = 0; i < 3; i++)
        frame.keys[i].addr = 0;
    frame.keys[0].len = UINT64_C(1) << 63;
    frame.keys[1].len = UINT64_C(1) << 63;
    frame.keys[2].len = 6;
    const struct sample sample = encoded(&frame);
    expect_refused(&sample, &limits, "more than total");
}

Test(frame, limits_are_those_given)
{
    const struct lieni_frame frame = msg_of(3, 17);
    struct sample sample = encoded(&frame);
    struct lieni_wire_limits tight = limits;
    struct lieni_frame out;
    const char *why = "";
    tight.frame_max = sample.len;
    tight.message_max = 6;
    tight.grants_max = 4096;
    cr_assert_eq(lieni_frame_decode(sample.bytes, sample.len, &tight, &out, &why), 0, "%s", why);
    tight.frame_max = sample.len - 1;
    expect_refused(&sample, &tight, "frame_max");
    tight.frame_max = sample.len;
    tight.message_max = 5;
    expect_refused(&sample, &tight, "message_max");
    tight.message_max = 6;
    tight.grants_max = 4095;
    expect_refused(&sample, &tight, "slot");
}

// A RELEASE names grants of the receiver, a REVOKE those of the sender: each has its own table.
Test(frame, slots_are_below_the_owners_table)
{
    static const enum lieni_frame_kind kinds[] = {LIENI_FRAME_RELEASE, LIENI_FRAME_REVOKE};
    for (unsigned i = 0; i < 2; i++) {
        const struct lieni_frame frame = names_of(kinds[i], 5); // slots 0 .. 4
        const struct sample sample = encoded(&frame);
        struct lieni_wire_limits with = limits;
        struct lieni_frame out;
        const char *why = "";
        uint32_t *owner = i == 0 ? &with.own_grants_max : &with.grants_max;
        uint32_t *other = i == 0 ? &with.grants_max : &with.own_grants_max;
        *owner = 5;
        *other = 0;
        cr_assert_eq(lieni_frame_decode(sample.bytes, sample.len, &with, &out, &why), 0, "%s", why);
        *owner = 4;
        *other = UINT32_MAX;
        expect_refused(&sample, &with, "slot");
    }
}

// What the decoder must notice in the frames of calls, each by one value changed.
Test(frame, calls_are_checked)
{
    static const struct {
        unsigned frame; // 0 CALL, 1 REPLY, 2 CANCEL, 3 PROBE, 4 ANSWER, 5 WRITE, 6 WRITTEN
        size_t at, size;
        uint64_t value;
        const char *word;
    } wrongs[] = {
        {0, 16, 8, 1u << 17 | 32u << 1, "call slot"},
        {0, 16, 8, 0, "call generation"},
        {0, 16, 8, UINT64_C(1) << 49, "call generation"},
        {0, 16, 8, 1u << 17 | 1, "wrong side"},
        {0, 24, 4, 0, "deadline is 0"},
        {0, 24, 4, UINT32_MAX, "without end"},
        {0, 28, 1, 0, "method is empty"},
        {0, 28, 1, 255, "above what the frame"},
        {0, 29, 1, 65, "above 64"},
        {0, 30, 1, 65, "above 64"},
        {0, 29, 1, 64, "above what the frame"},
        {0, 31, 1, 1, "reserved"},
        {0, 52, 4, 0, "generation is 0"},
        {0, 64, 4, 4096, "slot"},
        {0, 56, 8, 2, "more than total"},
        {0, 72, 8, 7, "less than total"},
        {0, 80 + 5 * 24, 1, 0, "NUL"},
        {1, 16, 8, 1u << 17, "wrong side"},
        {1, 24, 4, 1, "status is above 0"},
        {1, 28, 1, 65, "above 64"},
        {1, 29, 1, 2, "unbegun"},
        {1, 30, 1, 1, "reserved"},
        {1, 40, 8, 0, "more than total"},
        {2, 16, 8, 1u << 17 | 1, "wrong side"},
        {3, 20, 8, 1u << 17, "wrong side"},
        {3, 28, 4, 1000, "slot"},
        {3, 32, 4, 0, "generation is 0"},
        {4, 20, 1, 2, "neither 0 nor 1"},
        {4, 23, 1, 1, "neither 0 nor 1"},
        {5, 16, 8, 1u << 17, "wrong side"},
        {5, 28, 1, 4, "flags"},
        {5, 28, 1, 2, "first frame"},
        {5, 29, 1, 0, "first frame"},
        {5, 30, 2, 0, "1..1024"},
        {5, 30, 2, 1025, "1..1024"},
        {5, 30, 2, 4, "length is not"},
        {5, 40, 8, 2, "more than total"},
        {6, 16, 8, 1u << 17 | 1, "wrong side"},
        {6, 28, 4, 1, "status is above 0"},
    };
    const struct lieni_frame frames[] = {call_of(2, 3, 5),
                                         reply_of(2, 5),
                                         small_of(LIENI_FRAME_CANCEL),
                                         probes_of(LIENI_FRAME_PROBE, 2),
                                         probes_of(LIENI_FRAME_ANSWER, 2),
                                         write_of(2, 3, true),
                                         small_of(LIENI_FRAME_WRITTEN)};
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        struct sample sample = encoded(&frames[wrongs[i].frame]);
        for (size_t k = 0; k < wrongs[i].size; k++)
            sample.bytes[wrongs[i].at + k] = (uint8_t)(wrongs[i].value >> (8 * k));
        expect_refused(&sample, &limits, wrongs[i].word);
    }
    // Both sides at the other end: what was ours is theirs.
    struct lieni_wire_limits other = limits;
    other.side = 0;
    for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
        const struct sample sample = encoded(&frames[i]);
        if (frames[i].kind != LIENI_FRAME_ANSWER)
            expect_refused(&sample, &other, "wrong side");
    }
}

Test(frame, call_ids)
{
    const uint64_t id = lieni_call_id(UINT32_MAX, 65535, 1);
    cr_assert_eq(id, (UINT64_C(1) << 49) - 1);
    cr_assert_eq(lieni_call_gen(id), UINT32_MAX);
    cr_assert_eq(lieni_call_slot(id), 65535);
    cr_assert_eq(lieni_call_side(id), 1);
    cr_assert_eq(lieni_call_id(1, 2, 0), 1u << 17 | 4);
}

// The last byte of the address space but one can be named, the sum 2^64 cannot.
Test(frame, key_at_the_end_of_the_address_space)
{
    struct lieni_frame frame = msg_of(1, 0);
    frame.keys[0].addr = UINT64_MAX - 1;
    struct sample sample = encoded(&frame);
    struct lieni_frame out;
    const char *why = "";
    cr_assert_eq(lieni_frame_decode(sample.bytes, sample.len, &limits, &out, &why), 0, "%s", why);
    frame.keys[0].addr = UINT64_MAX;
    sample = encoded(&frame);
    expect_refused(&sample, &limits, "key address");
}

// -- Encoding refuses -------------------------------------------------------------------------------------------------------------------

static int try_encode(const struct lieni_frame *frame, size_t size)
{
    static uint8_t bytes[65537];
    _Atomic uint64_t copied = 0;
    size_t len = 12345;
    memset(bytes, 0xa5, sizeof bytes);
    const int rc = lieni_frame_encode(frame, bytes, size, &copied, &len);
    if (rc != 0) {
        cr_assert_eq(len, 12345);
        cr_assert_eq(copied, 0);
        cr_assert_eq(bytes[0], 0xa5);
    }
    cr_assert_eq(bytes[size], 0xa5);
    return rc;
}

Test(frame, encoding_stays_in_size)
{
    struct lieni_frame frame;
    for (unsigned i = 0; sample_frame(i, &frame); i++) {
        const size_t len = encoded(&frame).len;
        for (size_t size = 0; size < len; size++)
            cr_assert_eq(try_encode(&frame, size), LIEN_EMSGSIZE);
        cr_assert_eq(try_encode(&frame, len), 0);
    }
}

Test(frame, encoding_refuses_what_no_frame_holds)
{
    struct lieni_frame frame = msg_of(64, 0);
    frame.n_keys = 65;
    cr_assert_eq(try_encode(&frame, 65536), LIEN_EINVAL);
    frame = names_of(LIENI_FRAME_REVOKE, 64);
    frame.n_names = 65;
    cr_assert_eq(try_encode(&frame, 65536), LIEN_EINVAL);
    frame.n_names = 0;
    cr_assert_eq(try_encode(&frame, 65536), LIEN_EINVAL);
    frame.kind = (enum lieni_frame_kind)0;
    cr_assert_eq(try_encode(&frame, 65536), LIEN_EINVAL);
    frame = msg_of(0, 0);
    frame.head_len = SIZE_MAX;
    cr_assert_eq(try_encode(&frame, 65536), LIEN_EMSGSIZE);
    frame.head_len = 65536 - 40; // the length field has 16 bits
    cr_assert_eq(try_encode(&frame, 65536), LIEN_EMSGSIZE);
}

// -- Mutations ---------------------------------------------------------------------------------------------------------------------------

Test(frame, random_mutations)
{
    uint64_t random = 20240917;
    unsigned accepted = 0;
    for (unsigned round = 0; round < 200000; round++) {
        struct lieni_frame frame;
        if (!sample_frame((unsigned)(next_random(&random) % 26), &frame))
            continue;
        struct sample sample = encoded(&frame);
        mutate(&random, sample.bytes, &sample.len, 2048);
        // Half of them with the length set right, to get past it.
        if (sample.len >= 4 && next_random(&random) % 2 == 0)
            lieni_put16(sample.bytes + 2, (uint16_t)sample.len);
        const char *fault = check_frame(sample.bytes, sample.len, &limits);
        cr_assert_null(fault, "round %u: %s", round, fault);
        static struct lieni_frame out;
        const char *why;
        accepted += lieni_frame_decode(sample.bytes, sample.len, &limits, &out, &why) == 0;
    }
    // Neither all nor none get through, or the test would show nothing.
    cr_assert(accepted > 10000 && accepted < 190000, "%u accepted", accepted);
}

// -- Tokens ------------------------------------------------------------------------------------------------------------------------------

static struct lieni_token_data token_of(uint32_t n)
{
    struct lieni_token_data token = {.kind = LIENI_TOKEN_HELD,
                                     .conn = 0x1122334455667788,
                                     .name = {.slot = 7, .gen = 8},
                                     .n_keys = n};
    for (uint32_t i = 0; i < n; i++) {
        token.keys[i] = key_of(i);
        token.total += token.keys[i].len;
    }
    return token;
}

static void expect_token_refused(const lien_token *token, const char *word)
{
    static struct lieni_token_data out;
    const char *why = NULL;
    const int rc = lieni_token_decode(token->bytes, token->len, &out, &why);
    cr_assert_eq(rc, LIEN_EPROTO, "accepted, though: %s", word);
    cr_assert_not_null(strstr(why, word), "refused with \"%s\", expected \"%s\"", why, word);
    cr_assert_null(check_token(token->bytes, token->len));
}

Test(token, bytes)
{
    static const uint8_t expected[] = {
        'L',  'T',  'K',  '1',  1,    1,    1,    0,                            // magic .. buffers
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,                         // connection
        7,    0,    0,    0,    8,    0,    0,    0,    1, 0, 0, 0, 0, 0, 0, 0, // name, total
        0,    0x10, 0,    0,    0,    0,    0,    0,                            // key: address
        0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,                         // key
        1,    0,    0,    0,    0,    0,    0,    0,                            // length
    };
    const struct lieni_token_data token = token_of(1);
    lien_token out;
    lieni_token_encode(&token, &out);
    cr_assert_eq(out.len, sizeof expected);
    cr_assert_arr_eq(out.bytes, expected, sizeof expected);
}

Test(token, round_trip)
{
    for (uint32_t n = 1; n <= LIEN_BUFS_MAX; n++) {
        struct lieni_token_data in = token_of(n), out;
        in.kind = n % 2 == 0 ? LIENI_TOKEN_HELD : LIENI_TOKEN_BORROWED;
        lien_token token;
        const char *why = "";
        lieni_token_encode(&in, &token);
        cr_assert_leq(token.len, LIEN_TOKEN_MAX);
        cr_assert_eq(lieni_token_decode(token.bytes, token.len, &out, &why), 0, "%s", why);
        cr_assert_eq(out.kind, in.kind);
        cr_assert_eq(out.conn, in.conn);
        cr_assert_eq(out.name.slot, in.name.slot);
        cr_assert_eq(out.name.gen, in.name.gen);
        cr_assert_eq(out.total, in.total);
        cr_assert_eq(out.n_keys, n);
        cr_assert_arr_eq(out.keys, in.keys, n * sizeof in.keys[0]);
    }
}

Test(token, cut_or_extended)
{
    const struct lieni_token_data data = token_of(3);
    lien_token token;
    lieni_token_encode(&data, &token);
    const uint32_t full = token.len;
    for (uint32_t len = 0; len <= LIEN_TOKEN_MAX; len++) {
        token.len = len;
        if (len != full)
            expect_token_refused(&token, len < 32 ? "header" : "length");
    }
}

Test(token, fields)
{
    static const struct wrong wrongs[] = {
        {0, 1, 'l', "magic"},
        {3, 1, '2', "magic"},
        {4, 1, 0, "version"},
        {4, 1, 2, "version"},
        {5, 1, 0, "kind"},
        {5, 1, 3, "kind"},
        {6, 2, 0, "length"},
        {6, 2, 2, "length"},
        {6, 2, 4, "length"},
        {6, 2, 65, "0..64"},
        {6, 2, 65535, "0..64"},
        {8, 8, 0, "connection"},
        {20, 4, 0, "generation"},
        {24, 8, 0, "more than total"},
        {24, 8, 5, "more than total"},
        {24, 8, 7, "less than total"},
        {24, 8, UINT64_MAX, "less than total"},
        {32, 8, UINT64_MAX, "key address"},
        {48, 8, 0, "key length is 0"},
        {48, 8, UINT64_MAX, "key address"},
        {96, 8, 4, "more than total"},
    };
    const struct lieni_token_data data = token_of(3);
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        lien_token token;
        lieni_token_encode(&data, &token);
        put(token.bytes + wrongs[i].at, wrongs[i].size, wrongs[i].value);
        expect_token_refused(&token, wrongs[i].word);
    }
}

Test(token, encoding_refuses_what_no_token_holds)
{
    struct lieni_token_data data = token_of(64);
    lien_token token = {.len = 1};
    data.n_keys = 65;
    lieni_token_encode(&data, &token);
    cr_assert_eq(token.len, 0);
}

// A grant of buffers without bytes has no key, and can be named all the same: or nobody could release it.
Test(token, of_no_bytes)
{
    struct lieni_token_data data = token_of(1), back;
    lien_token token;
    const char *why = "";
    data.n_keys = 0;
    data.total = 0;
    lieni_token_encode(&data, &token);
    cr_assert_eq(token.len, LIENI_TOKEN_HEADER);
    cr_assert_eq(lieni_token_decode(token.bytes, token.len, &back, &why), 0);
    cr_assert(back.n_keys == 0 && back.total == 0 && back.name.gen == data.name.gen);
    data.total = 1;
    lieni_token_encode(&data, &token);
    expect_token_refused(&token, "less than total");
}

Test(token, random_mutations)
{
    uint64_t random = 7;
    unsigned accepted = 0;
    for (unsigned round = 0; round < 200000; round++) {
        const struct lieni_token_data data = token_of(1 + (uint32_t)(next_random(&random) % 64));
        static lien_token token;
        lieni_token_encode(&data, &token);
        size_t len = token.len;
        mutate(&random, token.bytes, &len, LIEN_TOKEN_MAX);
        const char *fault = check_token(token.bytes, len);
        cr_assert_null(fault, "round %u: %s", round, fault);
        struct lieni_token_data out;
        const char *why;
        accepted += lieni_token_decode(token.bytes, len, &out, &why) == 0;
    }
    cr_assert(accepted > 10000 && accepted < 190000, "%u accepted", accepted);
}
