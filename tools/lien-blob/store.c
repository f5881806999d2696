// SPDX-License-Identifier: Apache-2.0
//
// Objects as files of one directory; see store.h. Every file is reached by openat from the directory's descriptor with O_NOFOLLOW, and must be an ordinary one, so neither a name
// from the wire nor a link in the directory leads out of it.

#include "store.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static const char partial_tail[] = ".partial";
static const char sum_attribute[] = "user.lien.xxh3";

// Partial files older than this are removed when a server starts. Long enough to resume after a holiday weekend, short enough not to fill a disk for ever.
#define PARTIAL_SECONDS ((time_t)7 * 24 * 3600)

#define FILE_NAME_MAX (1 + BLOB_NAME_MAX + sizeof(partial_tail))

static void partial_name(const char *name, char out[FILE_NAME_MAX])
{
    snprintf(out, FILE_NAME_MAX, ".%s%s", name, partial_tail);
}

// The name of the object that a directory entry stands for, and whether it is the partial one. False: it is no business of ours.
static bool object_of_entry(const char *entry, char name[BLOB_NAME_MAX + 1], bool *partial)
{
    size_t len = strlen(entry), tail = strlen(partial_tail);
    *partial = entry[0] == '.';
    if (*partial) {
        if (len <= 1 + tail || strcmp(entry + len - tail, partial_tail) != 0)
            return false;
        entry++;
        len -= 1 + tail;
    }
    if (len > BLOB_NAME_MAX)
        return false;
    memcpy(name, entry, len);
    name[len] = '\0';
    struct blob_error ignored = {0};
    return store_check_name(name, &ignored);
}

bool store_check_name(const char *name, struct blob_error *error)
{
    size_t len = strlen(name);
    if (len == 0)
        return error_set(error, BLOB_BAD_NAME, "the name is empty");
    if (len > BLOB_NAME_MAX)
        return error_set(error, BLOB_BAD_NAME, "the name has %zu bytes, at most %d are allowed",
                         len, BLOB_NAME_MAX);
    if (name[0] == '.')
        return error_set(error, BLOB_BAD_NAME, "the name '%s' begins with a dot", name);
    if (strchr(name, '/'))
        return error_set(error, BLOB_BAD_NAME, "the name '%s' has a '/'", name);
    if (strstr(name, ".."))
        return error_set(error, BLOB_BAD_NAME, "the name '%s' has '..'", name);
    for (const char *c = name; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return error_set(error, BLOB_BAD_NAME, "the name has a control character (byte %d)",
                             (unsigned char)*c);
    }
    return true;
}

// -- The directory -----------------------------------------------------------------------------------------------------------------

static DIR *open_dir(const struct store *store)
{
    int fd = openat(store->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir && fd >= 0)
        close(fd);
    return dir;
}

static void remove_old_partials(const struct store *store)
{
    DIR *dir = open_dir(store);
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char name[BLOB_NAME_MAX + 1];
        bool partial;
        struct stat st;
        if (object_of_entry(entry->d_name, name, &partial) && partial &&
            fstatat(store->dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode) && st.st_mtime < time(NULL) - PARTIAL_SECONDS)
            unlinkat(store->dir, entry->d_name, 0);
    }
    closedir(dir);
}

bool store_open(struct store *store, const char *dir, struct blob_error *error)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(error, errno, "directory %s", dir);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            error_set(error, BLOB_BUSY, "directory %s is served by another process", dir);
        else
            error_set_errno(error, errno, "locking directory %s", dir);
        close(fd);
        return false;
    }
    if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) != 0) {
        error_set_errno(error, errno, "directory %s cannot be written", dir);
        close(fd);
        return false;
    }
    store->dir = fd;
    remove_old_partials(store);
    return true;
}

void store_close(struct store *store)
{
    close(store->dir);
    store->dir = -1;
}

// -- Looking at objects --------------------------------------------------------------------------------------------------------------

static bool regular_at(const struct store *store, const char *file, struct stat *st)
{
    if (fstatat(store->dir, file, st, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    if (S_ISREG(st->st_mode))
        return true;
    errno = ENOENT; // a directory, a link, a device: no object of ours
    return false;
}

static int open_object(const struct store *store, const char *name, struct stat *st)
{
    // O_NONBLOCK: opening a FIFO that somebody put there must not hang.
    int fd = openat(store->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, st) == 0 && S_ISREG(st->st_mode))
        return fd;
    close(fd);
    errno = ENOENT;
    return -1;
}

static void fill_info(struct object_info *info, int fd, const struct stat *st)
{
    info->flags |= BLOB_HAS_OBJECT;
    info->size = (uint64_t)st->st_size;
    info->mtime = st->st_mtime;
    if (fgetxattr(fd, sum_attribute, info->sum, BLOB_SUM_BYTES) == BLOB_SUM_BYTES)
        info->flags |= BLOB_HAS_SUM;
    else
        memset(info->sum, 0, BLOB_SUM_BYTES);
}

bool store_get(const struct store *store, const char *name, int *fd, struct object_info *info,
               struct blob_error *error)
{
    if (!store_check_name(name, error))
        return false;
    struct stat st;
    int opened = open_object(store, name, &st);
    if (opened < 0)
        return errno == ENOENT || errno == ELOOP
                   ? error_set(error, BLOB_NOT_FOUND, "no object '%s'", name)
                   : error_set_errno(error, errno, "object '%s'", name);
    *info = (struct object_info){0};
    fill_info(info, opened, &st);
    *fd = opened;
    return true;
}

bool store_stat(const struct store *store, const char *name, struct object_info *info,
                struct blob_error *error)
{
    if (!store_check_name(name, error))
        return false;
    struct object_info got = {0};
    struct stat st;
    int fd = open_object(store, name, &st);
    if (fd >= 0) {
        fill_info(&got, fd, &st);
        close(fd);
    }
    char partial[FILE_NAME_MAX];
    partial_name(name, partial);
    if (regular_at(store, partial, &st)) {
        got.flags |= BLOB_HAS_PARTIAL;
        got.partial = (uint64_t)st.st_size;
    }
    if (got.flags == 0)
        return error_set(error, BLOB_NOT_FOUND, "no object '%s'", name);
    *info = got;
    return true;
}

// -- Listing: one pass over the directory, keeping the `max` smallest names after `after` ------------------------------------------------

static int by_name(const void *a, const void *b)
{
    const struct blob_entry *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (int)y->flags - (int)x->flags;
}

static bool list_entry(const struct store *store, const char *file, const char *after,
                       struct blob_entry *out)
{
    bool partial;
    struct stat st;
    if (!object_of_entry(file, out->name, &partial) || strcmp(out->name, after) <= 0 ||
        !regular_at(store, file, &st))
        return false;
    out->flags = partial ? BLOB_HAS_PARTIAL : BLOB_HAS_OBJECT;
    out->size = (uint64_t)st.st_size;
    out->mtime = st.st_mtime;
    return true;
}

// Sorts and keeps the first `max`; says by *more whether any fell off.
static size_t keep_smallest(struct blob_entry *entries, size_t n, size_t max, bool *more)
{
    qsort(entries, n, sizeof(*entries), by_name);
    if (n <= max)
        return n;
    *more = true;
    return max;
}

bool store_list(const struct store *store, const char *after, struct blob_entry *entries,
                size_t max, size_t *n, bool *more, struct blob_error *error)
{
    assert(max >= 2);
    // Twice the room, sorted and halved whenever it is full: memory does not grow with the directory. One more than `max`, so that a name's object and partial stay together.
    size_t room = 2 * (max + 1), count = 0;
    struct blob_entry *found = calloc(room, sizeof(*found));
    DIR *dir = open_dir(store);
    if (!found || !dir) {
        error_set_errno(error, errno, "listing the directory");
        free(found);
        if (dir)
            closedir(dir);
        return false;
    }
    *more = false;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (count == room)
            count = keep_smallest(found, count, max + 1, more);
        if (list_entry(store, entry->d_name, after, &found[count]))
            count++;
    }
    closedir(dir);
    count = keep_smallest(found, count, max, more);
    // The next page begins after the last name, so a name cut in two goes there whole.
    if (*more && count > 1 && found[count].name[0] != '\0' &&
        strcmp(found[count].name, found[count - 1].name) == 0)
        count--;
    memcpy(entries, found, count * sizeof(*found));
    *n = count;
    free(found);
    return true;
}

// -- Removing ----------------------------------------------------------------------------------------------------------------------

static bool remove_partial(const struct store *store, const char *name)
{
    char partial[FILE_NAME_MAX];
    partial_name(name, partial);
    int fd = openat(store->dir, partial, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool removed = flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(store->dir, partial, 0) == 0;
    close(fd);
    return removed;
}

bool store_remove(const struct store *store, const char *name, struct blob_error *error)
{
    if (!store_check_name(name, error))
        return false;
    struct stat st;
    bool removed = remove_partial(store, name);
    if (!regular_at(store, name, &st))
        return removed || error_set(error, BLOB_NOT_FOUND, "no object '%s'", name);
    if (unlinkat(store->dir, name, 0) != 0)
        return error_set_errno(error, errno, "removing '%s'", name);
    return true;
}

// -- Putting -----------------------------------------------------------------------------------------------------------------------

static void put_close(struct put *put)
{
    close(put->fd); // the lock goes with it
    put->fd = -1;
}

// Opens and locks the partial file. Its owner may have renamed or removed it between our opening and our locking: then what we hold is no longer the partial file, and we try anew.
static bool lock_partial(struct put *put, const char *partial, struct blob_error *error)
{
    for (;;) {
        put->fd = openat(put->store->dir, partial,
                         O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
        if (put->fd < 0)
            return error_set_errno(error, errno, "making %s", partial);
        if (flock(put->fd, LOCK_EX | LOCK_NB) != 0) {
            int code = errno;
            put_close(put);
            return code == EWOULDBLOCK ? error_set(error, BLOB_BUSY,
                                                   "'%s' is being put by another client", put->name)
                                       : error_set_errno(error, code, "locking %s", partial);
        }
        struct stat held, named;
        if (fstat(put->fd, &held) != 0 || !S_ISREG(held.st_mode)) {
            put_close(put);
            return error_set(error, BLOB_FAILED, "%s is no ordinary file", partial);
        }
        if (fstatat(put->store->dir, partial, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
            held.st_ino == named.st_ino && held.st_dev == named.st_dev) {
            put->have = (uint64_t)held.st_size;
            return true;
        }
        put_close(put);
    }
}

bool store_put_begin(const struct store *store, const char *name, uint64_t size, struct put *put,
                     struct blob_error *error)
{
    *put = (struct put){.store = store, .fd = -1};
    if (!store_check_name(name, error))
        return false;
    memcpy(put->name, name, strlen(name) + 1);
    struct stat st;
    if (fstatat(store->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode))
        return error_set(error, BLOB_BAD_NAME, "'%s' is taken by something that is no object",
                         name);
    char partial[FILE_NAME_MAX];
    partial_name(name, partial);
    if (!lock_partial(put, partial, error))
        return false;
    if (put->have > size && !store_put_restart(put, error))
        return false;
    if (file_has_room(put->fd, size - put->have, error))
        return true;
    store_put_discard(put);
    return false;
}

bool store_put_restart(struct put *put, struct blob_error *error)
{
    if (ftruncate(put->fd, 0) == 0) {
        put->have = 0;
        return true;
    }
    error_set_errno(error, errno, "emptying the partial '%s'", put->name);
    store_put_discard(put);
    return false;
}

bool store_put_finish(struct put *put, uint64_t size, const uint8_t sum[BLOB_SUM_BYTES],
                      struct blob_error *error)
{
    char partial[FILE_NAME_MAX];
    partial_name(put->name, partial);
    struct stat st;
    // An old partial may carry the attribute of nothing; where attributes are not to be had, an object lives without.
    if (fsetxattr(put->fd, sum_attribute, sum, BLOB_SUM_BYTES, 0) != 0)
        fremovexattr(put->fd, sum_attribute);
    if (fstat(put->fd, &st) != 0 || (uint64_t)st.st_size != size)
        error_set(error, BLOB_FAILED, "the partial '%s' was changed by somebody else", put->name);
    else if (fsync(put->fd) != 0)
        error_set_errno(error, errno, "writing '%s' to the disk", put->name);
    else if (renameat(put->store->dir, partial, put->store->dir, put->name) != 0)
        error_set_errno(error, errno, "renaming '%s'", put->name);
    else if (fsync(put->store->dir) != 0)
        error_set_errno(error, errno, "writing the directory to the disk");
    if (error->status != BLOB_OK) {
        store_put_discard(put);
        return false;
    }
    put_close(put);
    return true;
}

void store_put_discard(struct put *put)
{
    if (put->fd < 0)
        return;
    char partial[FILE_NAME_MAX];
    partial_name(put->name, partial);
    unlinkat(put->store->dir, partial, 0);
    put_close(put);
}

void store_put_park(struct put *put)
{
    struct stat st;
    if (put->fd < 0)
        return;
    if (fstat(put->fd, &st) == 0 && st.st_size > 0)
        put_close(put);
    else
        store_put_discard(put);
}
