// SPDX-License-Identifier: Apache-2.0
//
// The language of lien-blob. The client calls, the server serves; each call has a struct blob_ask as its arguments and is answered with a struct blob_answer. Bulk is never in them: it lies in
// the call's spaces. Pure functions of bytes, no state, any thread.
//
//   method         asks with                 spaces           is answered with
//   blob/put       name, size                                 transfer; offset and sum of what the server has from an earlier put
//   blob/restart   transfer                                   (throws that away)
//   blob/write     transfer, offset          read: a piece
//   blob/commit    transfer, sum                              copied. The object is there
//   blob/get       name                                       transfer, size, mtime, flags, sum as it was when put
//   blob/read      transfer, offset          write: a piece
//   blob/sum       size                                       transfer
//   blob/digest    transfer, offset          read: a piece    (writes the digest of each block of it)
//                                            write: digests
//   blob/end       transfer                                   copied, sum of all pieces. The end of a get or sum
//   blob/stat      name                                       flags, size, offset (bytes of a partial object), mtime, sum
//   blob/ls        name (those after it)                      size (number of entries), flags; body: the entries
//   blob/rm        name
//
// Pieces are BLOB_PIECE_BYTES long, but for the last, and at most BLOB_WINDOW of a transfer are under way, which may overtake each other. A connection has one transfer at a time; after a
// status other than BLOB_OK it is over.
//
// Bytes: version (1), then the fields in the order of the struct. Numbers are little-endian; a string is its length (2) and its bytes. Nothing that comes in is trusted: what is short,
// long, of another version, or has a field out of range does not decode.

#ifndef BLOB_PROTO_H
#define BLOB_PROTO_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

#define BLOB_VERSION 2
// Bytes of a piece; the last one of a file may be shorter.
#define BLOB_PIECE_BYTES ((uint32_t)1 << 20)
// Pieces under way in one transfer.
#define BLOB_WINDOW 8
// Bytes of a name: with ".", ".partial" and room to spare below the 255 of file systems.
#define BLOB_NAME_MAX 240
// Bytes of a checksum: XXH3, 128 bits, canonical (big-endian) form.
#define BLOB_SUM_BYTES 16
// Bytes of a block, of which blob/digest takes a checksum each.
#define BLOB_BLOCK_BYTES 4096u
// Bytes of the largest ask or answer.
#define BLOB_MESSAGE_MAX 512
// Bytes of the body of a blob/ls answer.
#define BLOB_LIST_BYTES ((size_t)256 << 10)

#define BLOB_HAS_SUM     (1u << 0) // the sum is known
#define BLOB_HAS_OBJECT  (1u << 1) // stat, ls: there is a whole object
#define BLOB_HAS_PARTIAL (1u << 2) // stat, ls: there is the start of one
#define BLOB_MORE        (1u << 3) // ls: ask again, after the last name
#define BLOB_FLAGS       (BLOB_HAS_SUM | BLOB_HAS_OBJECT | BLOB_HAS_PARTIAL | BLOB_MORE)

// Fields that the table above does not name are 0.
struct blob_ask {
    uint64_t transfer;
    uint64_t offset;
    uint64_t size;
    uint8_t sum[BLOB_SUM_BYTES];
    char name[BLOB_NAME_MAX + 1];
};

struct blob_answer {
    enum blob_status status;
    uint16_t flags;
    uint64_t transfer;
    uint64_t offset;
    uint64_t size;
    int64_t mtime;   // seconds since 1970
    uint64_t copied; // payload bytes that Lien copied at the server during this transfer
    uint8_t sum[BLOB_SUM_BYTES];
    char text[BLOB_TEXT_MAX + 1]; // why, where the status is not BLOB_OK
};

// Bytes written to `to` of BLOB_MESSAGE_MAX bytes. What is encoded must be something that would decode (asserted): it is ours.
size_t proto_encode_ask(const struct blob_ask *ask, uint8_t *to);
size_t proto_encode_answer(const struct blob_answer *answer, uint8_t *to);

// False: malformed; the output is then untouched. Strings come out ended by NUL, and the text tamed (error.h); a name with a NUL inside is malformed.
bool proto_decode_ask(const void *from, size_t len, struct blob_ask *ask);
bool proto_decode_answer(const void *from, size_t len, struct blob_answer *answer);

// One entry in the body of a blob/ls answer.
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
