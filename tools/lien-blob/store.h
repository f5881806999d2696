// SPDX-License-Identifier: Apache-2.0
//
// The objects of a server: ordinary files in one directory. Object NAME is the file NAME; while it is being put it is .NAME.partial, which no object can be called, since names
// do not begin with a dot. A partial file holds the first bytes of the object and nothing else, so its length says where to go on; whether they are the right
// bytes is settled by their checksum, taken from the disk. It becomes the object by one rename, after fsync.
//
// Thread: any; a store is read-only after store_open, and a put belongs to one thread. Across threads and processes the partial file is guarded by flock.
// The checksum of a whole object is kept in its extended attribute user.lien.xxh3, where the file system has those.

#ifndef BLOB_STORE_H
#define BLOB_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "file.h"
#include "proto.h"

struct store {
    int dir;
};

// Opens the directory, which must exist, and locks it against a second server. Removes partial files older than a week.
bool store_open(struct store *store, const char *dir, struct blob_error *error);
void store_close(struct store *store);

// Names: 1 to BLOB_NAME_MAX bytes, without '/', without control characters, not beginning with '.' (so neither "." nor ".."), not containing "..".
bool store_check_name(const char *name, struct blob_error *error);

struct object_info {
    uint16_t flags; // BLOB_HAS_OBJECT, BLOB_HAS_PARTIAL, BLOB_HAS_SUM
    uint64_t size;
    int64_t mtime;
    uint64_t partial; // bytes
    uint8_t sum[BLOB_SUM_BYTES];
};

// BLOB_NOT_FOUND: neither an object nor a partial one.
bool store_stat(const struct store *store, const char *name, struct object_info *info,
                struct blob_error *error);
// Opens an object to be read; *fd is the caller's to close. A put of the same name meanwhile does not disturb it.
bool store_get(const struct store *store, const char *name, int *fd, struct object_info *info,
               struct blob_error *error);
// Removes the object, and the partial one unless it is being put. BLOB_NOT_FOUND: there was neither.
bool store_remove(const struct store *store, const char *name, struct blob_error *error);

// Up to `max` (at least 2) entries in order of name (bytes), after `after` ("" from the start), into `entries`. *more: there are others behind the last.
bool store_list(const struct store *store, const char *after, struct blob_entry *entries,
                size_t max, size_t *n, bool *more, struct blob_error *error);

struct put {
    const struct store *store;
    char name[BLOB_NAME_MAX + 1];
    int fd;        // of the partial file; -1: no put
    uint64_t have; // bytes there at the begin
};

// Opens or makes the partial file of `name` and locks it. BLOB_BUSY: somebody else is putting it. BLOB_NO_SPACE: `size` bytes will not fit.
// One that is longer than `size` is made empty: it cannot be the start of this object.
bool store_put_begin(const struct store *store, const char *name, uint64_t size, struct put *put,
                     struct blob_error *error);
// Throws away what was there.
bool store_put_restart(struct put *put, struct blob_error *error);
// All `size` bytes are written: makes it the object, durably, with its sum. On error the partial file is gone.
bool store_put_finish(struct put *put, uint64_t size, const uint8_t sum[BLOB_SUM_BYTES],
                      struct blob_error *error);
// Leaves the partial file for another time (an empty one goes), or removes it. Nothing happens without a put.
void store_put_park(struct put *put);
void store_put_discard(struct put *put);

#endif
