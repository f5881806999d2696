// SPDX-License-Identifier: Apache-2.0
//
// Reading and writing whole ranges of files, and the checksum over a file. No state; any thread. All of it may block on the disk.

#ifndef BLOB_FILE_H
#define BLOB_FILE_H

#include <stddef.h>
#include <stdint.h>

#include <xxhash.h>

#include "error.h"
#include "proto.h"

// Exactly `len` bytes at `offset`, through interruptions and short counts. False with *error set: a file that is shorter is an error too (it shrank under us).
bool file_read(int fd, void *to, size_t len, uint64_t offset, struct blob_error *error);
bool file_write(int fd, const void *from, size_t len, uint64_t offset, struct blob_error *error);

// Opens an ordinary file to be read; *fd is the caller's to close.
bool file_open_source(const char *path, int *fd, uint64_t *size, struct blob_error *error);

// Fails with BLOB_NO_SPACE when the file system of `fd` has not room for `need` bytes more. A courtesy: writing finds out for certain.
bool file_has_room(int fd, uint64_t need, struct blob_error *error);

// A new checksum, to be freed with sum_free. NULL: out of memory.
XXH3_state_t *sum_new(void);
void sum_free(XXH3_state_t **sum);
void sum_restart(XXH3_state_t *sum);
void sum_add(XXH3_state_t *sum, const void *bytes, size_t len);
// Of all that was added so far.
void sum_get(const XXH3_state_t *sum, uint8_t out[BLOB_SUM_BYTES]);
// Adds the first `len` bytes of the file, read through `scratch` of `scratch_len` bytes.
bool sum_add_file(XXH3_state_t *sum, int fd, uint64_t len, void *scratch, size_t scratch_len,
                  struct blob_error *error);
// The checksum of each block of BLOB_BLOCK_BYTES, one behind the other into `out`; returns how many bytes that is. `out` may be `bytes`: a block's checksum never reaches a later block. There must
// be room for BLOB_SUM_BYTES.
size_t sum_blocks(const void *bytes, size_t len, void *out);
size_t sum_blocks_len(size_t len);
// 33 bytes: hexadecimal digits and NUL.
void sum_text(const uint8_t sum[BLOB_SUM_BYTES], char text[2 * BLOB_SUM_BYTES + 1]);

#endif
