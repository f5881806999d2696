// SPDX-License-Identifier: Apache-2.0
//
// The ring of a trace, what it keeps of frames, and the bytes of a dump.

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"
#include "core/trace.h"
#include "core/wire.h"

static uint64_t clock_ns;

static uint64_t fake_now(void *self)
{
    (void)self;
    return ++clock_ns;
}

static const struct lieni_env env = {.now = fake_now};

static struct lieni_trace *trace;
static uint8_t *dump;
static size_t dump_len;
static struct lieni_dump_head head;

static void open_trace(uint32_t events, uint32_t bytes)
{
    cr_assert_eq(lieni_trace_open(&env, events, bytes, &trace), 0);
}

static void take_dump(void)
{
    const char *why = "";
    struct lieni_dump_head given = {.conn = 0xab, .server = true, .status = LIEN_EPROTO};
    strcpy(given.peer, "10.0.0.1:7");
    dump = calloc(1, lieni_trace_dump_room(trace));
    cr_assert_not_null(dump);
    dump_len = lieni_trace_dump(trace, &given, dump);
    cr_assert_leq(dump_len, lieni_trace_dump_room(trace));
    cr_assert_eq(lieni_dump_head_decode(dump, dump_len, &head, &why), 0, "%s", why);
    cr_assert_eq(dump_len, head.header_size + (size_t)head.records * head.record_size);
}

static struct lieni_trace_event event_at(size_t i)
{
    struct lieni_trace_event event = {0};
    const char *why = "";
    cr_assert_eq(lieni_dump_record_decode(dump + head.header_size + i * head.record_size, &head,
                                          &event, &why),
                 0, "%s", why);
    return event;
}

static void over(void)
{
    lieni_trace_close(trace);
    free(dump);
}

Test(trace, the_last_events_are_kept_in_their_order)
{
    open_trace(5, 0);
    for (uint64_t i = 1; i <= 13; i++)
        lieni_trace_wr(trace, LIENI_TRACE_ENTRY, 2, 100 + i, 7, LIEN_EIO, -61);
    take_dump();
    cr_assert_eq(head.records, 5);
    cr_assert_eq(head.events, 13);
    for (size_t i = 0; i < 5; i++) {
        struct lieni_trace_event e = event_at(i);
        cr_expect_eq(e.number, 9 + i);
        cr_expect_eq(e.op, 109 + i);
        cr_expect(e.amount == 7 && e.what == 2 && e.status == LIEN_EIO && e.detail == -61);
        cr_expect(i == 0 || e.time > event_at(i - 1).time);
    }
    over();
}

Test(trace, a_ring_that_is_not_full_has_what_came)
{
    open_trace(5, 0);
    take_dump();
    cr_expect(head.records == 0 && head.events == 0 && head.conn == 0xab && head.server);
    cr_expect(head.status == LIEN_EPROTO && strcmp(head.peer, "10.0.0.1:7") == 0);
    free(dump);
    lieni_trace_text(trace, LIENI_TRACE_STATE, 0, 0, 0, "open", "drain");
    lieni_trace_text(trace, LIENI_TRACE_TIMER, 3, 0, 0, "late", NULL);
    take_dump();
    cr_assert_eq(head.records, 2);
    cr_expect(event_at(0).len == 13 && memcmp(event_at(0).bytes, "open -> drain", 13) == 0);
    cr_expect(event_at(1).len == 4 && memcmp(event_at(1).bytes, "late", 4) == 0);
    over();
}

Test(trace, a_text_that_is_too_long_is_cut)
{
    char text[3 * LIENI_TRACE_BYTES];
    memset(text, 'y', sizeof text);
    text[sizeof text - 1] = '\0';
    open_trace(2, 0);
    lieni_trace_text(trace, LIENI_TRACE_ERROR, 0, 0, LIEN_EPROTO, text, text);
    take_dump();
    cr_expect_eq(event_at(0).len, LIENI_TRACE_BYTES);
    over();
}

Test(trace, without_a_trace_nothing_happens)
{
    lieni_trace_frame(NULL, LIENI_TRACE_SENT, 0, NULL, 0);
    lieni_trace_text(NULL, LIENI_TRACE_ERROR, 0, 0, 0, NULL, NULL);
    lieni_trace_wr(NULL, LIENI_TRACE_POST, 0, 0, 0, 0, 0);
    lieni_trace_close(NULL);
}

// -- What of a frame is private ----------------------------------------------------------------------------------------------------

#define KEY UINT64_C(0x1122334455667788)
static const char secret[] = "SECRET-BYTES";

static size_t encode(enum lieni_frame_kind kind, uint8_t *bytes, size_t size)
{
    static struct lieni_frame frame;
    _Atomic uint64_t copied = 0;
    size_t len = 0;
    frame = (struct lieni_frame){.kind = kind,
                                 .number = 3,
                                 .name = {1, 1},
                                 .total = 8192,
                                 .n_keys = 2,
                                 .head = (const uint8_t *)secret,
                                 .head_len = sizeof secret,
                                 .call = lieni_call_id(1, 2, 0),
                                 .deadline_ms = 5,
                                 .method = secret,
                                 .method_len = sizeof secret - 1,
                                 .read_name = {2, 1},
                                 .read_total = 4096,
                                 .n_read_keys = 1,
                                 .write = 1,
                                 .first = true,
                                 .last = true};
    frame.keys[0] = frame.keys[1] = (struct lieni_key){.addr = KEY, .key = KEY, .len = 4096};
    frame.read_keys[0] = frame.keys[0];
    uint8_t ops[LIENI_OP_SIZE];
    lieni_op_store(ops, &(lien_op){0, 0, 8192});
    frame.ops = ops;
    frame.n_ops = 1;
    cr_assert_eq(lieni_frame_encode(&frame, bytes, size, &copied, &len), 0);
    return len;
}

static bool has(const void *what, size_t len)
{
    return memmem(dump, dump_len, what, len) != NULL;
}

Test(trace, neither_bytes_of_the_application_nor_keys_are_kept)
{
    static const enum lieni_frame_kind kinds[] = {LIENI_FRAME_MSG, LIENI_FRAME_CALL,
                                                  LIENI_FRAME_REPLY, LIENI_FRAME_WRITE};
    uint8_t bytes[4096], key[8];
    lieni_put64(key, KEY);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t len = encode(kinds[i], bytes, sizeof bytes);
        open_trace(4, 0);
        lieni_trace_frame(trace, LIENI_TRACE_SENT, 0, bytes, len);
        take_dump();
        cr_expect(!has(secret, sizeof secret - 1) && !has(key, 8), "kind %d", (int)kinds[i]);
        cr_expect_eq(event_at(0).amount, len);
        cr_expect_geq(event_at(0).len, LIENI_FRAME_HEADER + 24);
        cr_expect_eq(memcmp(event_at(0).bytes, bytes, event_at(0).len), 0);
        over();
        open_trace(4, 4096); // asked for
        lieni_trace_frame(trace, LIENI_TRACE_SENT, 0, bytes, len);
        take_dump();
        cr_expect(has(key, 8) && event_at(0).len == len);
        cr_expect(kinds[i] == LIENI_FRAME_WRITE || has(secret, sizeof secret - 1));
        over();
    }
}

// What a peer may send as its first bytes is not a frame yet: nothing beyond a header is kept of it.
Test(trace, of_an_unknown_frame_only_a_header_is_kept)
{
    uint8_t bytes[64];
    for (int kind = 0; kind < 256; kind++) {
        memset(bytes, 'z', sizeof bytes);
        bytes[0] = (uint8_t)kind;
        size_t fixed = lieni_trace_fixed_part(bytes, sizeof bytes);
        cr_expect(kind >= 1 && kind <= 16 ? fixed >= 16 : fixed == 16, "kind %d: %zu", kind, fixed);
        cr_expect_eq(lieni_trace_fixed_part(bytes, 7), 7);
    }
}

// -- Damaged dumps -----------------------------------------------------------------------------------------------------------------

static void expect_refused(size_t offset, uint8_t byte, const char *field)
{
    const char *why = NULL;
    struct lieni_dump_head out;
    uint8_t was = dump[offset];
    dump[offset] = byte;
    cr_expect_eq(lieni_dump_head_decode(dump, dump_len, &out, &why), LIEN_EPROTO);
    cr_expect(why && strstr(why, field), "%s", why);
    dump[offset] = was;
}

Test(trace, a_damaged_header_is_named)
{
    const char *why = NULL;
    struct lieni_dump_head out;
    open_trace(2, 0);
    take_dump();
    expect_refused(0, 'X', "magic");
    expect_refused(4, 2, "version");
    expect_refused(6, 0, "header");
    expect_refused(8, 1, "record");
    expect_refused(24, 2, "side");
    for (size_t len = 0; len < LIENI_DUMP_HEADER; len++)
        cr_expect_eq(lieni_dump_head_decode(dump, len, &out, &why), LIEN_EPROTO);
    over();
}

Test(trace, a_damaged_record_is_named)
{
    const char *why = NULL;
    struct lieni_trace_event out;
    open_trace(2, 0);
    lieni_trace_text(trace, LIENI_TRACE_STATE, 0, 0, 0, "open", NULL);
    take_dump();
    lieni_put16(dump + head.header_size + 42, (uint16_t)(head.record_size - LIENI_DUMP_RECORD + 1));
    cr_expect_eq(lieni_dump_record_decode(dump + head.header_size, &head, &out, &why), LIEN_EPROTO);
    cr_expect(why && strstr(why, "length"));
    over();
}
