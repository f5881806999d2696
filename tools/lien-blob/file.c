// SPDX-License-Identifier: Apache-2.0
//
// Whole-range file I/O and XXH3 sums. Owns nothing but the sums it hands out; any thread.

#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

bool file_read(int fd, void *to, size_t len, uint64_t offset, struct blob_error *error)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pread(fd, (char *)to + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set_errno(error, errno, "reading %zu bytes at %llu", len,
                                   (unsigned long long)offset);
        if (n == 0)
            return error_set(error, BLOB_FAILED,
                             "the file became shorter than %llu bytes while it was read",
                             (unsigned long long)(offset + len));
        done += (size_t)n;
    }
    return true;
}

bool file_write(int fd, const void *from, size_t len, uint64_t offset, struct blob_error *error)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(fd, (const char *)from + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) // POSIX knows no 0 here; taken as a full disk rather than tried for ever
            return error_set_errno(error, n < 0 ? errno : ENOSPC, "writing %zu bytes at %llu", len,
                                   (unsigned long long)offset);
        done += (size_t)n;
    }
    return true;
}

bool file_has_room(int fd, uint64_t need, struct blob_error *error)
{
    struct statvfs fs;
    if (fstatvfs(fd, &fs) != 0 || fs.f_frsize == 0)
        return true; // unknown: writing will tell
    uint64_t blocks = need / fs.f_frsize + (need % fs.f_frsize != 0);
    if (blocks <= fs.f_bavail)
        return true;
    return error_set(error, BLOB_NO_SPACE, "%llu bytes are needed, the disk has %llu left",
                     (unsigned long long)need, (unsigned long long)(fs.f_bavail * fs.f_frsize));
}

bool file_open_source(const char *path, int *fd, uint64_t *size, struct blob_error *error)
{
    struct stat st;
    int opened = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); // a FIFO must not hang
    if (opened < 0)
        return error_set_errno(error, errno, "cannot open it");
    if (fstat(opened, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(opened);
        return error_set(error, BLOB_FAILED, "it is not an ordinary file");
    }
    *fd = opened;
    *size = (uint64_t)st.st_size;
    return true;
}

XXH3_state_t *sum_new(void)
{
    XXH3_state_t *sum = XXH3_createState();
    if (sum)
        sum_restart(sum);
    return sum;
}

void sum_free(XXH3_state_t **sum)
{
    XXH3_freeState(*sum);
    *sum = NULL;
}

void sum_restart(XXH3_state_t *sum)
{
    XXH3_128bits_reset(sum);
}

void sum_add(XXH3_state_t *sum, const void *bytes, size_t len)
{
    XXH3_128bits_update(sum, bytes, len);
}

static void store_sum(XXH128_hash_t hash, void *out)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    memcpy(out, canonical.digest, BLOB_SUM_BYTES);
}

void sum_get(const XXH3_state_t *sum, uint8_t out[BLOB_SUM_BYTES])
{
    store_sum(XXH3_128bits_digest(sum), out);
}

size_t sum_blocks_len(size_t len)
{
    return (len + BLOB_BLOCK_BYTES - 1) / BLOB_BLOCK_BYTES * BLOB_SUM_BYTES;
}

size_t sum_blocks(const void *bytes, size_t len, void *out)
{
    size_t n = 0;
    for (size_t at = 0; at < len; at += BLOB_BLOCK_BYTES, n += BLOB_SUM_BYTES) {
        size_t step = len - at < BLOB_BLOCK_BYTES ? len - at : BLOB_BLOCK_BYTES;
        store_sum(XXH3_128bits((const char *)bytes + at, step), (char *)out + n);
    }
    return n;
}

bool sum_add_file(XXH3_state_t *sum, int fd, uint64_t len, void *scratch, size_t scratch_len,
                  struct blob_error *error)
{
    for (uint64_t at = 0; at < len;) {
        size_t step = len - at < scratch_len ? (size_t)(len - at) : scratch_len;
        if (!file_read(fd, scratch, step, at, error))
            return false;
        sum_add(sum, scratch, step);
        at += step;
    }
    return true;
}

void sum_text(const uint8_t sum[BLOB_SUM_BYTES], char text[2 * BLOB_SUM_BYTES + 1])
{
    for (size_t i = 0; i < BLOB_SUM_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", sum[i]);
}
