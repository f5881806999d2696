// SPDX-License-Identifier: Apache-2.0
//
// Encoding and decoding, field by field. Owns nothing; pure functions, any thread.

#include "proto.h"

#include <assert.h>
#include <string.h>

// -- Bytes: a cursor that turns bad at the first step outside and stays so -------------------------------------------------------------

struct out {
    uint8_t *at;
    size_t room;
    bool bad;
};

static void out_bytes(struct out *out, const void *bytes, size_t len)
{
    if (out->bad || len > out->room) {
        out->bad = true;
        return;
    }
    memcpy(out->at, bytes, len);
    out->at += len;
    out->room -= len;
}

static void out_number(struct out *out, uint64_t value, size_t width)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < width; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    out_bytes(out, bytes, width);
}

static void out_string(struct out *out, const void *bytes, size_t len)
{
    out_number(out, len, 2);
    out_bytes(out, bytes, len);
}

struct in {
    const uint8_t *at;
    size_t left;
    bool bad;
};

static void in_bytes(struct in *in, void *bytes, size_t len)
{
    if (in->bad || len > in->left) {
        in->bad = true;
        return;
    }
    memcpy(bytes, in->at, len);
    in->at += len;
    in->left -= len;
}

static uint64_t in_number(struct in *in, size_t width)
{
    uint8_t bytes[8] = {0};
    uint64_t value = 0;
    in_bytes(in, bytes, width);
    for (size_t i = 0; i < width; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

// At most `max` bytes; returns how many.
static size_t in_string(struct in *in, void *bytes, size_t max)
{
    size_t len = (size_t)in_number(in, 2);
    if (len > max)
        in->bad = true;
    in_bytes(in, bytes, len);
    return in->bad ? 0 : len;
}

// A string of characters into `text` of max + 1 bytes.
static void in_text(struct in *in, char *text, size_t max)
{
    size_t len = in_string(in, text, max);
    text[len] = '\0';
    if (strlen(text) != len)
        in->bad = true;
}

// An offset or size: file offsets are signed, so the top bit must be clear.
static uint64_t in_offset(struct in *in)
{
    uint64_t value = in_number(in, 8);
    if (value > INT64_MAX)
        in->bad = true;
    return value;
}

static uint16_t in_flags(struct in *in)
{
    uint64_t flags = in_number(in, 2);
    if (flags & ~(uint64_t)BLOB_FLAGS)
        in->bad = true;
    return (uint16_t)flags;
}

static enum blob_status in_status(struct in *in)
{
    uint64_t status = in_number(in, 2);
    if (status > BLOB_GONE) { // the later ones are never sent
        in->bad = true;
        return BLOB_BAD_MESSAGE;
    }
    return (enum blob_status)status;
}

// -- Asks and answers --------------------------------------------------------------------------------------------------------------

size_t proto_encode_ask(const struct blob_ask *ask, uint8_t *to)
{
    struct out out = {.at = to, .room = BLOB_MESSAGE_MAX};
    out_number(&out, BLOB_VERSION, 1);
    out_number(&out, ask->transfer, 8);
    out_number(&out, ask->offset, 8);
    out_number(&out, ask->size, 8);
    out_bytes(&out, ask->sum, BLOB_SUM_BYTES);
    out_string(&out, ask->name, strlen(ask->name));
    assert(!out.bad);
    return BLOB_MESSAGE_MAX - out.room;
}

bool proto_decode_ask(const void *from, size_t len, struct blob_ask *ask)
{
    struct in in = {.at = from, .left = len};
    struct blob_ask got = {0};
    uint64_t version = in_number(&in, 1);
    got.transfer = in_number(&in, 8);
    got.offset = in_offset(&in);
    got.size = in_offset(&in);
    in_bytes(&in, got.sum, BLOB_SUM_BYTES);
    in_text(&in, got.name, BLOB_NAME_MAX);
    if (in.bad || in.left != 0 || version != BLOB_VERSION)
        return false;
    *ask = got;
    return true;
}

size_t proto_encode_answer(const struct blob_answer *answer, uint8_t *to)
{
    struct out out = {.at = to, .room = BLOB_MESSAGE_MAX};
    out_number(&out, BLOB_VERSION, 1);
    out_number(&out, (uint64_t)answer->status, 2);
    out_number(&out, answer->flags, 2);
    out_number(&out, answer->transfer, 8);
    out_number(&out, answer->offset, 8);
    out_number(&out, answer->size, 8);
    out_number(&out, (uint64_t)answer->mtime, 8);
    out_number(&out, answer->copied, 8);
    out_bytes(&out, answer->sum, BLOB_SUM_BYTES);
    out_string(&out, answer->text, strlen(answer->text));
    assert(!out.bad);
    return BLOB_MESSAGE_MAX - out.room;
}

bool proto_decode_answer(const void *from, size_t len, struct blob_answer *answer)
{
    struct in in = {.at = from, .left = len};
    struct blob_answer got = {0};
    uint64_t version = in_number(&in, 1);
    got.status = in_status(&in);
    got.flags = in_flags(&in);
    got.transfer = in_number(&in, 8);
    got.offset = in_offset(&in);
    got.size = in_offset(&in);
    got.mtime = (int64_t)in_number(&in, 8);
    got.copied = in_number(&in, 8);
    in_bytes(&in, got.sum, BLOB_SUM_BYTES);
    in_text(&in, got.text, BLOB_TEXT_MAX);
    if (in.bad || in.left != 0 || version != BLOB_VERSION)
        return false;
    error_tame(got.text);
    *answer = got;
    return true;
}

// -- List entries ------------------------------------------------------------------------------------------------------------------

size_t proto_entry_encode(const struct blob_entry *entry, uint8_t *to, size_t room)
{
    struct out out = {.at = to, .room = room};
    out_number(&out, entry->flags, 2);
    out_number(&out, entry->size, 8);
    out_number(&out, (uint64_t)entry->mtime, 8);
    out_string(&out, entry->name, strlen(entry->name));
    return out.bad ? 0 : room - out.room;
}

size_t proto_entry_decode(const void *from, size_t len, struct blob_entry *entry)
{
    struct in in = {.at = from, .left = len};
    struct blob_entry got = {.flags = in_flags(&in)};
    got.size = in_offset(&in);
    got.mtime = (int64_t)in_number(&in, 8);
    in_text(&in, got.name, BLOB_NAME_MAX);
    if (in.bad)
        return 0;
    error_tame(got.name);
    *entry = got;
    return len - in.left;
}
