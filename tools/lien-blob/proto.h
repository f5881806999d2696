// SPDX-License-Identifier: Apache-2.0
//
// The language of lien-blob: what client and server say to each other. Each message is the head of one Lien message; bulk never travels here, only the token of a grant
// behind which it lies. Pure functions of bytes, no state, any thread.
//
// Bytes: version (1), kind (1), then the fields of that kind in the order of enum field in proto.c. Numbers are little-endian; a string is its length (2) and its bytes.
// Nothing that comes in is trusted: a message that is short, long, of another version, of an unknown kind, or with a field out of range does not decode.
//
// A put:  client BLOB_PUT, server BLOB_PUT_REPLY (how much it has already, and the sum of that), client BLOB_PUT_GO, then BLOB_PIECE for each piece, BLOB_PUT_END;
//         server BLOB_PUT_DONE.
// A get:  client BLOB_GET, server BLOB_GET_REPLY, then BLOB_PIECE for each piece, BLOB_GET_END.
// In both the sender of BLOB_PIECE grants, the other side READs, and releases the grant once the bytes are written away. So at most BLOB_WINDOW pieces are ever under way:
// the release is the flow control.
// After a status other than BLOB_OK to a running transfer the connection is of no more use: the client closes it.

#ifndef BLOB_PROTO_H
#define BLOB_PROTO_H

#include <stddef.h>
#include <stdint.h>

#include <lien/lien.h>

#include "error.h"

#define BLOB_VERSION 1
// Bytes of a piece; the last one of a file may be shorter.
#define BLOB_PIECE_BYTES ((uint32_t)1 << 20)
// Pieces under way in one transfer.
#define BLOB_WINDOW 8
// Bytes of a name: with ".", ".partial" and room to spare below the 255 of file systems.
#define BLOB_NAME_MAX 240
// Bytes of a checksum: XXH3, 128 bits, canonical (big-endian) form.
#define BLOB_SUM_BYTES 16
// Bytes of the largest encoded message.
#define BLOB_MESSAGE_MAX 2560
// Bytes of the body of one BLOB_LIST_REPLY.
#define BLOB_LIST_BYTES ((size_t)256 << 10)

enum blob_kind {
    BLOB_PUT = 1,
    BLOB_PUT_GO = 2,
    BLOB_PIECE = 3,
    BLOB_PUT_END = 4,
    BLOB_GET = 5,
    BLOB_STAT = 6,
    BLOB_LIST = 7,
    BLOB_REMOVE = 8,
    BLOB_PUT_REPLY = 9,
    BLOB_PUT_DONE = 10,
    BLOB_GET_REPLY = 11,
    BLOB_GET_END = 12,
    BLOB_STAT_REPLY = 13,
    BLOB_LIST_REPLY = 14,
    BLOB_REMOVE_REPLY = 15,
    BLOB_REFUSED = 16, // the request makes no sense, or comes at the wrong time
    BLOB_KINDS
};

#define BLOB_HAS_SUM     (1u << 0) // the sum is known
#define BLOB_HAS_OBJECT  (1u << 1) // stat, list: there is a whole object
#define BLOB_HAS_PARTIAL (1u << 2) // stat, list: there is the start of one
#define BLOB_MORE        (1u << 3) // list: ask again, after the last name
#define BLOB_FLAGS       (BLOB_HAS_SUM | BLOB_HAS_OBJECT | BLOB_HAS_PARTIAL | BLOB_MORE)

struct blob_message {
    enum blob_kind kind;
    enum blob_status status;
    uint16_t flags;
    uint64_t size;   // of the object or the piece; list: number of entries in the body
    uint64_t offset; // of the piece; put: where to go on; stat: length of the partial object
    int64_t mtime;   // seconds since 1970
    uint64_t copied; // payload bytes that Lien copied at the server during this transfer
    uint8_t sum[BLOB_SUM_BYTES];
    char name[BLOB_NAME_MAX + 1];
    char text[BLOB_TEXT_MAX + 1];
    lien_token token;
};

// Bytes written to `to` of BLOB_MESSAGE_MAX bytes. The message must be one that would decode (asserted): it is ours.
size_t proto_encode(const struct blob_message *message, uint8_t *to);

// False: malformed; *message is then untouched. Strings come out ended by NUL, and the text tamed (error.h); a name with a NUL inside is malformed.
bool proto_decode(const void *from, size_t len, struct blob_message *message);

// "BLOB_PUT" and so on, for logs.
const char *proto_kind_name(enum blob_kind kind);

// One entry in the body of BLOB_LIST_REPLY.
struct blob_entry {
    char name[BLOB_NAME_MAX + 1];
    uint64_t size; // of the object, or of what there is of it
    int64_t mtime;
    uint16_t flags; // BLOB_HAS_OBJECT or BLOB_HAS_PARTIAL
};

// Bytes written to `to`, or 0 when `room` is too small.
size_t proto_entry_encode(const struct blob_entry *entry, uint8_t *to, size_t room);
// Bytes used, or 0: malformed, *entry is then untouched.
size_t proto_entry_decode(const void *from, size_t len, struct blob_entry *entry);

#endif
