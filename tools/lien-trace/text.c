// SPDX-License-Identifier: Apache-2.0
//
// See text.h. Frames are decoded by core's own decoder (core/wire.c). A trace keeps only the fixed part of most: what it left out is put back as placeholders of the same size, so that the
// decoder judges the rest as it did then; nothing of the placeholders is shown.

#include "text.h"

#include <inttypes.h>
#include <string.h>

#include "core/bytes.h"
#include "core/evidence.h"
#include "core/wire.h"

#define FRAME_MAX 65535u

void print_escaped(FILE *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c >= 0x7f || c == '\\')
            fprintf(out, "\\x%02x", c);
        else
            fputc(c, out);
    }
}

// -- Putting back what was left out ------------------------------------------------------------------------------------------------

// `n` keys whose lengths add up to `total`, from `at` on, as far as there is room.
static size_t fill_keys(uint8_t *bytes, size_t len, size_t at, unsigned n, uint64_t total)
{
    for (unsigned i = 0; i < n && len - at >= LIENI_KEY_SIZE; i++, at += LIENI_KEY_SIZE)
        lieni_put64(bytes + at + 16, i > 0 ? 1 : total - (n - 1));
    return at;
}

// Entries of `size` bytes: those beyond what was kept are as the last one that was.
static void fill_entries(uint8_t *bytes, size_t len, size_t have, size_t size)
{
    size_t whole = have > LIENI_FRAME_HEADER ? (have - LIENI_FRAME_HEADER) / size : 0;
    if (whole == 0)
        return;
    const uint8_t *last = bytes + LIENI_FRAME_HEADER + (whole - 1) * size;
    for (size_t at = LIENI_FRAME_HEADER + whole * size; at + size <= len; at += size)
        memcpy(bytes + at, last, size);
}

static void fill_call(uint8_t *bytes, size_t len, size_t have)
{
    size_t at = fill_keys(bytes, len, have, bytes[29], lieni_get64(bytes + 56));
    at = fill_keys(bytes, len, at, bytes[30], lieni_get64(bytes + 72));
    if (len - at >= bytes[28])
        memset(bytes + at, 'x', bytes[28]); // the method
}

static void fill(uint8_t *bytes, size_t len, size_t have)
{
    switch ((enum lieni_frame_kind)bytes[0]) {
    case LIENI_FRAME_MSG:
        if (have == LIENI_FRAME_HEADER + LIENI_BODY_HEADER)
            fill_keys(bytes, len, have, bytes[32], lieni_get64(bytes + 24));
        break;
    case LIENI_FRAME_REPLY:
        if (have == LIENI_FRAME_HEADER + LIENI_REPLY_FIXED)
            fill_keys(bytes, len, have, bytes[28], lieni_get64(bytes + 40));
        break;
    case LIENI_FRAME_WRITE:
        if (have == LIENI_FRAME_HEADER + LIENI_WRITE_FIXED)
            fill_keys(bytes, len, have, bytes[29], lieni_get64(bytes + 40));
        break;
    case LIENI_FRAME_CALL:
        if (have == LIENI_FRAME_HEADER + LIENI_CALL_FIXED)
            fill_call(bytes, len, have);
        break;
    case LIENI_FRAME_RELEASE:
    case LIENI_FRAME_REVOKE:
    case LIENI_FRAME_ANSWER:
        fill_entries(bytes, len, have, 8);
        break;
    case LIENI_FRAME_PROBE:
        fill_entries(bytes, len, have, 20);
        break;
    case LIENI_FRAME_CANCEL:
    case LIENI_FRAME_WRITTEN:
    case LIENI_FRAME_CREDIT:
    case LIENI_FRAME_BEAT:
    case LIENI_FRAME_ALIVE:
    case LIENI_FRAME_BYE:
    case LIENI_FRAME_GOAWAY:
    case LIENI_FRAME_HEARD:
        break;
    }
}

// The frame of an event, in full size. Returns its length.
static size_t restore(const struct lieni_trace_event *event, uint8_t bytes[FRAME_MAX])
{
    size_t len = event->amount < FRAME_MAX ? (size_t)event->amount : FRAME_MAX;
    size_t have = event->len < len ? event->len : len;
    memset(bytes, 0, len);
    if (have > 0)
        memcpy(bytes, event->bytes, have);
    if (have == len)
        return len;
    size_t fixed = lieni_trace_fixed_part(bytes, have);
    memset(bytes + fixed, 0, have - fixed); // keys of which some are missing do not add up
    fill(bytes, len, fixed);
    return len;
}

// -- Frames ------------------------------------------------------------------------------------------------------------------------

static uint64_t id_of(struct lieni_name name)
{
    return (uint64_t)name.gen << 32 | name.slot; // as the log has it
}

static void print_grant(FILE *out, const char *what, struct lieni_name name, uint64_t total,
                        uint32_t n)
{
    if (n > 0)
        fprintf(out, ", %s: grant %" PRIu64 ", %" PRIu64 " bytes in %u buffers", what, id_of(name),
                total, n);
}

static void print_names(FILE *out, const struct lieni_frame *f, size_t known)
{
    fprintf(out, " of %u grants:", f->n_names);
    for (uint32_t i = 0; i < f->n_names && i < known; i++)
        fprintf(out, " %" PRIu64, id_of(f->names[i]));
    if (f->n_names > known)
        fputs(" ...", out);
}

static void print_probes(FILE *out, const struct lieni_frame *f, size_t known)
{
    for (uint32_t i = 0; i < f->n_probes && i < known; i++) {
        const struct lieni_probe *p = &f->probes[i];
        fprintf(out, "%s %" PRIu32, i > 0 ? "," : "", p->id);
        if (f->kind == LIENI_FRAME_PROBE)
            fprintf(out, " (call %" PRIu64 ", grant %" PRIu64 ")", p->call, id_of(p->name));
        else
            fputs(p->holds ? " yes" : " no", out);
    }
    if (f->n_probes > known)
        fprintf(out, ", ... of %u", f->n_probes);
}

static void print_call(FILE *out, const struct lieni_frame *f, bool whole)
{
    fprintf(out, " %" PRIu64 ", %" PRIu32 " ms left, method ", f->call, f->deadline_ms);
    if (whole)
        print_escaped(out, f->method, f->method_len);
    else
        fprintf(out, "of %u bytes", f->method_len);
    fprintf(out, ", arguments: %zu bytes", f->head_len);
    print_grant(out, "body", f->name, f->total, f->n_keys);
    print_grant(out, "read space", f->read_name, f->read_total, f->n_read_keys);
    if (f->space_len > 0)
        fprintf(out, ", write space: %" PRIu64 " bytes", f->space_len);
    if (f->reply_max > 0)
        fprintf(out, ", reply up to %" PRIu64, f->reply_max);
}

static const char *kind_name(enum lieni_frame_kind kind)
{
    switch (kind) {
#define NAME(k)                                                                                    \
    case LIENI_FRAME_##k:                                                                          \
        return #k
        NAME(MSG);
        NAME(RELEASE);
        NAME(REVOKE);
        NAME(CREDIT);
        NAME(BEAT);
        NAME(ALIVE);
        NAME(BYE);
        NAME(CALL);
        NAME(REPLY);
        NAME(CANCEL);
        NAME(PROBE);
        NAME(ANSWER);
        NAME(WRITE);
        NAME(WRITTEN);
        NAME(GOAWAY);
        NAME(HEARD);
#undef NAME
    }
    return "unknown kind";
}

// `have`: bytes of it that are not placeholders.
static void print_decoded(FILE *out, const struct lieni_frame *f, size_t len, size_t have)
{
    const size_t entries = have > LIENI_FRAME_HEADER ? have - LIENI_FRAME_HEADER : 0;
    switch (f->kind) {
    case LIENI_FRAME_MSG:
        fprintf(out, ", head: %zu bytes", f->head_len);
        print_grant(out, "body", f->name, f->total, f->n_keys);
        break;
    case LIENI_FRAME_RELEASE:
    case LIENI_FRAME_REVOKE:
        print_names(out, f, entries / 8);
        break;
    case LIENI_FRAME_CALL:
        print_call(out, f, have == len);
        break;
    case LIENI_FRAME_REPLY:
        fprintf(out, " to call %" PRIu64 ": %s, %zu bytes%s", f->call, lien_errname(f->status),
                f->head_len, f->unbegun ? ", no handler began" : "");
        print_grant(out, "body", f->name, f->total, f->n_keys);
        break;
    case LIENI_FRAME_CANCEL:
        fprintf(out, " of call %" PRIu64, f->call);
        break;
    case LIENI_FRAME_PROBE:
        print_probes(out, f, entries / 20);
        break;
    case LIENI_FRAME_ANSWER:
        print_probes(out, f, entries / 8);
        break;
    case LIENI_FRAME_WRITE:
        fprintf(out, " %" PRIu32 " into call %" PRIu64 ", %u operations%s%s", f->write, f->call,
                f->n_ops, f->first ? ", first" : "", f->last ? ", last" : "");
        print_grant(out, "source", f->name, f->total, f->n_keys);
        break;
    case LIENI_FRAME_WRITTEN:
        fprintf(out, " %" PRIu32 " of call %" PRIu64 ": %s", f->write, f->call,
                lien_errname(f->status));
        break;
    case LIENI_FRAME_CREDIT:
    case LIENI_FRAME_BEAT:
    case LIENI_FRAME_ALIVE:
    case LIENI_FRAME_BYE:
    case LIENI_FRAME_GOAWAY:
    case LIENI_FRAME_HEARD:
        break;
    }
    if (f->message_credits > 0 || f->control_credits > 0)
        fprintf(out, ", credits back: %u messages, %u control", f->message_credits,
                f->control_credits);
}

// Decodes with the widest limits; `side` is that of the frame's receiver.
static int decode(const uint8_t *bytes, size_t len, unsigned side, struct lieni_frame *frame,
                  const char **why)
{
    const struct lieni_wire_limits limits = {.frame_max = FRAME_MAX,
                                             .message_max = UINT64_MAX,
                                             .grants_max = UINT32_MAX,
                                             .own_grants_max = UINT32_MAX,
                                             .calls_max = UINT16_MAX + 1u,
                                             .side = side};
    return lieni_frame_decode(bytes, len, &limits, frame, why);
}

static void print_malformed(FILE *out, const uint8_t *bytes, size_t have, size_t len,
                            const char *why)
{
    fprintf(out, "malformed frame of %zu bytes: %s:", len, why);
    for (size_t i = 0; i < have && i < 32; i++)
        fprintf(out, " %02x", bytes[i]);
    if (have > 32)
        fputs(" ...", out);
}

static void print_head(FILE *out, const struct lieni_frame *frame)
{
    fprintf(out, "%s #%" PRIu32, kind_name(frame->kind), frame->number);
}

static void print_frame_event(FILE *out, const struct lieni_trace_event *event, bool server)
{
    static uint8_t bytes[FRAME_MAX];
    struct lieni_frame frame;
    const char *why = "";
    size_t len = restore(event, bytes);
    size_t have = event->len < len ? event->len : len;
    if (have < len)
        have = lieni_trace_fixed_part(bytes, have);
    const unsigned receiver = event->kind == LIENI_TRACE_SENT ? !server : server;
    if (event->amount > FRAME_MAX || decode(bytes, len, receiver, &frame, &why) != 0) {
        print_malformed(out, bytes, have, (size_t)event->amount, *why ? why : "too large");
        return;
    }
    print_head(out, &frame);
    print_decoded(out, &frame, len, have);
}

static void print_keys(FILE *out, const char *what, const struct lieni_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        fprintf(out, "\n  %s key %u: address 0x%" PRIx64 ", key 0x%" PRIx64 ", %" PRIu64 " bytes",
                what, i, keys[i].addr, keys[i].key, keys[i].len);
}

static void print_ops(FILE *out, const struct lieni_frame *frame)
{
    for (uint32_t i = 0; i < frame->n_ops; i++) {
        lien_op op;
        lieni_op_load(frame->ops + (size_t)i * LIENI_OP_SIZE, &op);
        fprintf(out,
                "\n  operation %u: source %" PRIu64 ", destination %" PRIu64 ", %" PRIu64 " bytes",
                i, op.src, op.dst, op.len);
    }
}

int print_frame(FILE *out, const uint8_t *bytes, size_t len, bool keys)
{
    struct lieni_frame frame;
    const char *why = "";
    int rc = decode(bytes, len, 0, &frame, &why);
    if (rc != 0)
        rc = decode(bytes, len, 1, &frame, &why); // whose call it names is not known
    if (rc != 0) {
        print_malformed(out, bytes, len, len, why);
        return rc;
    }
    print_head(out, &frame);
    print_decoded(out, &frame, len, len);
    if (keys) {
        print_keys(out, "body", frame.keys, frame.n_keys);
        print_keys(out, "read space", frame.read_keys, frame.n_read_keys);
        print_ops(out, &frame);
    }
    return 0;
}

// -- Events ------------------------------------------------------------------------------------------------------------------------

static void print_wr(FILE *out, const struct lieni_trace_event *event)
{
    static const char *const kinds[] = {
        [LIENI_WR_RECV] = "receive", [LIENI_WR_SEND] = "send", [LIENI_WR_READ] = "READ"};
    if (event->what < sizeof kinds / sizeof kinds[0])
        fprintf(out, "%s ", kinds[event->what]);
    else
        fprintf(out, "work request of kind %" PRIu32 " ", event->what);
    fprintf(out, "%" PRIu64 ", %" PRIu64 " bytes", event->op, event->amount);
}

static void print_status(FILE *out, const struct lieni_trace_event *event)
{
    if (event->status != 0)
        fprintf(out, " (%s)", lien_errname(event->status));
    if (event->detail != 0)
        fprintf(out, " (provider's code %" PRId32 ")", event->detail);
}

static void print_object(FILE *out, const struct lieni_trace_event *event)
{
    if (event->op != 0)
        fprintf(out, "%" PRIu64 ": ", event->op);
    print_escaped(out, (const char *)event->bytes, event->len);
    if (event->kind == LIENI_TRACE_WRITE)
        fprintf(out, ", write %" PRIu64, event->amount);
    else if (event->amount != 0)
        fprintf(out, ", %" PRIu64 " bytes", event->amount);
    print_status(out, event);
}

void print_event(FILE *out, const struct lieni_trace_event *event, bool server)
{
    switch ((enum lieni_trace_kind)event->kind) {
#define NAME(number, name, text)                                                                   \
    case LIENI_TRACE_##name:                                                                       \
        fprintf(out, "%-14s ", text);                                                              \
        break;
        LIENI_TRACE_KINDS(NAME)
#undef NAME
    }
    switch ((enum lieni_trace_kind)event->kind) {
    case LIENI_TRACE_SENT:
    case LIENI_TRACE_RECEIVED:
        print_frame_event(out, event, server);
        return;
    case LIENI_TRACE_POST:
    case LIENI_TRACE_UNPOST:
    case LIENI_TRACE_ENTRY:
    case LIENI_TRACE_PROVED:
    case LIENI_TRACE_ABANDONED:
        print_wr(out, event);
        print_status(out, event);
        return;
    case LIENI_TRACE_STRAY:
        fprintf(out, "context %" PRIu64, event->op);
        print_status(out, event);
        return;
    case LIENI_TRACE_STATE:
    case LIENI_TRACE_GRANT:
    case LIENI_TRACE_READ:
    case LIENI_TRACE_CALL:
    case LIENI_TRACE_REQUEST:
    case LIENI_TRACE_WRITE:
    case LIENI_TRACE_TIMER:
    case LIENI_TRACE_ERROR:
        print_object(out, event);
        return;
    }
    fprintf(out, "kind %u ", event->kind); // of a later version
    print_object(out, event);
}
