// SPDX-License-Identifier: Apache-2.0
//
// Encoding and decoding by one table: which fields each kind of message has. Owns nothing; pure functions, any thread.

#include "proto.h"

#include <assert.h>
#include <string.h>

// Fields travel in this order.
enum field {
    STATUS = 1 << 0, // 2 bytes
    FLAGS = 1 << 1,  // 2 bytes
    SIZE = 1 << 2,   // 8 bytes
    OFFSET = 1 << 3, // 8 bytes
    MTIME = 1 << 4,  // 8 bytes, two's complement
    COPIED = 1 << 5, // 8 bytes
    SUM = 1 << 6,    // BLOB_SUM_BYTES
    NAME = 1 << 7,   // string, at most BLOB_NAME_MAX
    TEXT = 1 << 8,   // string, at most BLOB_TEXT_MAX
    TOKEN = 1 << 9,  // string, at most LIEN_TOKEN_MAX
};

static const struct {
    const char *name;
    unsigned fields;
} kinds[BLOB_KINDS] = {
    [BLOB_PUT] = {"BLOB_PUT", NAME | SIZE},
    [BLOB_PUT_GO] = {"BLOB_PUT_GO", OFFSET},
    [BLOB_PIECE] = {"BLOB_PIECE", SIZE | OFFSET | TOKEN},
    [BLOB_PUT_END] = {"BLOB_PUT_END", SUM},
    [BLOB_GET] = {"BLOB_GET", NAME},
    [BLOB_STAT] = {"BLOB_STAT", NAME},
    [BLOB_LIST] = {"BLOB_LIST", NAME},
    [BLOB_REMOVE] = {"BLOB_REMOVE", NAME},
    [BLOB_PUT_REPLY] = {"BLOB_PUT_REPLY", STATUS | TEXT | OFFSET | SUM},
    [BLOB_PUT_DONE] = {"BLOB_PUT_DONE", STATUS | TEXT | COPIED},
    [BLOB_GET_REPLY] = {"BLOB_GET_REPLY", STATUS | TEXT | FLAGS | SIZE | MTIME | SUM},
    [BLOB_GET_END] = {"BLOB_GET_END", STATUS | TEXT | COPIED | SUM},
    [BLOB_STAT_REPLY] = {"BLOB_STAT_REPLY", STATUS | TEXT | FLAGS | SIZE | OFFSET | MTIME | SUM},
    [BLOB_LIST_REPLY] = {"BLOB_LIST_REPLY", STATUS | TEXT | FLAGS | SIZE},
    [BLOB_REMOVE_REPLY] = {"BLOB_REMOVE_REPLY", STATUS | TEXT},
    [BLOB_REFUSED] = {"BLOB_REFUSED", STATUS | TEXT},
};

const char *proto_kind_name(enum blob_kind kind)
{
    return kind > 0 && kind < BLOB_KINDS ? kinds[kind].name : "unknown";
}

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

// -- Messages ----------------------------------------------------------------------------------------------------------------------

size_t proto_encode(const struct blob_message *message, uint8_t *to)
{
    assert(message->kind > 0 && message->kind < BLOB_KINDS);
    unsigned fields = kinds[message->kind].fields;
    struct out out = {.at = to, .room = BLOB_MESSAGE_MAX};
    out_number(&out, BLOB_VERSION, 1);
    out_number(&out, (uint64_t)message->kind, 1);
    if (fields & STATUS)
        out_number(&out, (uint64_t)message->status, 2);
    if (fields & FLAGS)
        out_number(&out, message->flags, 2);
    if (fields & SIZE)
        out_number(&out, message->size, 8);
    if (fields & OFFSET)
        out_number(&out, message->offset, 8);
    if (fields & MTIME)
        out_number(&out, (uint64_t)message->mtime, 8);
    if (fields & COPIED)
        out_number(&out, message->copied, 8);
    if (fields & SUM)
        out_bytes(&out, message->sum, BLOB_SUM_BYTES);
    if (fields & NAME)
        out_string(&out, message->name, strlen(message->name));
    if (fields & TEXT)
        out_string(&out, message->text, strlen(message->text));
    if (fields & TOKEN)
        out_string(&out, message->token.bytes, message->token.len);
    assert(!out.bad);
    return BLOB_MESSAGE_MAX - out.room;
}

static void decode_fields(struct in *in, unsigned fields, struct blob_message *message)
{
    if (fields & STATUS)
        message->status = in_status(in);
    if (fields & FLAGS)
        message->flags = in_flags(in);
    if (fields & SIZE)
        message->size = in_offset(in);
    if (fields & OFFSET)
        message->offset = in_offset(in);
    if (fields & MTIME)
        message->mtime = (int64_t)in_number(in, 8);
    if (fields & COPIED)
        message->copied = in_number(in, 8);
    if (fields & SUM)
        in_bytes(in, message->sum, BLOB_SUM_BYTES);
    if (fields & NAME)
        in_text(in, message->name, BLOB_NAME_MAX);
    if (fields & TEXT)
        in_text(in, message->text, BLOB_TEXT_MAX);
    if (fields & TOKEN)
        message->token.len = (uint32_t)in_string(in, message->token.bytes, LIEN_TOKEN_MAX);
}

bool proto_decode(const void *from, size_t len, struct blob_message *message)
{
    struct in in = {.at = from, .left = len};
    uint64_t version = in_number(&in, 1);
    uint64_t kind = in_number(&in, 1);
    if (in.bad || version != BLOB_VERSION || kind == 0 || kind >= BLOB_KINDS)
        return false;
    struct blob_message got = {.kind = (enum blob_kind)kind};
    decode_fields(&in, kinds[kind].fields, &got);
    if (in.bad || in.left != 0)
        return false;
    error_tame(got.text);
    *message = got;
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
