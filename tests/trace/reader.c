// SPDX-License-Identifier: Apache-2.0
//
// See reader.h.

#include "tests/trace/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/wire.h"
#include "tools/lien-trace/dump.h"
#include "tools/lien-trace/text.h"

static uint64_t fake_now(void *self)
{
    return ++*(uint64_t *)self;
}

static void must(int rc)
{
    if (rc != 0)
        abort();
}

static void add_frames(struct lieni_trace *trace)
{
    static const enum lieni_frame_kind kinds[] = {
        LIENI_FRAME_MSG,   LIENI_FRAME_RELEASE, LIENI_FRAME_REVOKE, LIENI_FRAME_CREDIT,
        LIENI_FRAME_BEAT,  LIENI_FRAME_ALIVE,   LIENI_FRAME_BYE,    LIENI_FRAME_CALL,
        LIENI_FRAME_REPLY, LIENI_FRAME_CANCEL,  LIENI_FRAME_PROBE,  LIENI_FRAME_ANSWER,
        LIENI_FRAME_WRITE, LIENI_FRAME_WRITTEN, LIENI_FRAME_GOAWAY};
    static struct lieni_frame frame;
    uint8_t bytes[4096], op[LIENI_OP_SIZE];
    _Atomic uint64_t copied = 0;
    lieni_op_store(op, &(lien_op){0, 0, 4096});
    for (uint32_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t len = 0;
        frame = (struct lieni_frame){.kind = kinds[i],
                                     .number = i + 1,
                                     .name = {1, 1},
                                     .total = 4096,
                                     .n_keys = 1,
                                     .keys = {{.addr = 1, .key = 2, .len = 4096}},
                                     .head = (const uint8_t *)"head",
                                     .head_len = 4,
                                     .call = lieni_call_id(1, 2, i % 2),
                                     .deadline_ms = 5,
                                     .method = "s/m",
                                     .method_len = 3,
                                     .read_name = {2, 1},
                                     .read_total = 4096,
                                     .n_read_keys = 1,
                                     .read_keys = {{.addr = 1, .key = 2, .len = 4096}},
                                     .status = LIEN_EBUSY,
                                     .first = true,
                                     .last = true,
                                     .n_ops = 1,
                                     .ops = op,
                                     .n_names = 40,
                                     .n_probes = 20};
        for (uint32_t k = 0; k < frame.n_names; k++)
            frame.names[k] = (struct lieni_name){.slot = k, .gen = 1};
        for (uint32_t k = 0; k < frame.n_probes; k++)
            frame.probes[k] = (struct lieni_probe){.id = k, .call = frame.call, .name = {1, 1}};
        must(lieni_frame_encode(&frame, bytes, sizeof bytes, &copied, &len));
        lieni_trace_frame(trace, i % 2 ? LIENI_TRACE_SENT : LIENI_TRACE_RECEIVED, 0, bytes, len);
    }
}

size_t reader_sample(uint8_t *bytes, size_t size)
{
    uint64_t clock = 0;
    const struct lieni_env env = {.self = &clock, .now = fake_now};
    struct lieni_trace *trace;
    struct lieni_dump_head head = {.conn = 0xab, .state = "open", .provider = "tcp"};
    must(lieni_trace_open(&env, 64, 0, &trace));
    if (lieni_trace_dump_room(trace) > size)
        abort();
#define ADD(number, name, text)                                                                    \
    lieni_trace_text(trace, LIENI_TRACE_##name, number, 7, LIEN_EIO, text, "then");
    LIENI_TRACE_KINDS(ADD)
#undef ADD
    lieni_trace_wr(trace, LIENI_TRACE_ENTRY, 2, 5, 4096, LIEN_EIO, 61);
    add_frames(trace);
    size_t len = lieni_trace_dump(trace, &head, bytes);
    lieni_trace_close(trace);
    return len;
}

int reader_show(const uint8_t *bytes, size_t len)
{
    static FILE *nobody;
    if (!nobody)
        nobody = fopen("/dev/null", "w");
    if (!nobody)
        abort();
    struct dump one, other;
    int rc = dump_open(&one, "one", bytes, len);
    if (rc == 0) {
        must(dump_open(&other, "other", bytes, len));
        other.head.server = !other.head.server; // the peer's, so that clocks are compared
        const struct dump *const both[] = {&one, &other, &one};
        must(dumps_print(nobody, both, 3));
    }
    (void)print_frame(nobody, bytes, len, true);
    return rc != 0 || one.why ? -1 : 0;
}
