// SPDX-License-Identifier: Apache-2.0
//
// The client's side of a get. The bytes go into a file of a temporary name beside the wanted one, which takes its place only when everything is there, has the right sum and is
// on the disk. On any failure the temporary file is removed.

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client.h"

struct output {
    const char *path;
    char *temporary;
    int fd;
};

// Whatever is there already is replaced if it is an ordinary file; a device or a link is not.
static bool check_output(const char *path, struct blob_error *error)
{
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return error_set(error, BLOB_FAILED, "%s exists and is not an ordinary file", path);
    return true;
}

static bool open_output(struct output *output, const char *path, uint64_t size,
                        struct blob_error *error)
{
    *output = (struct output){.path = path, .fd = -1};
    const char *slash = strrchr(path, '/');
    int dir = slash ? (int)(slash - path) + 1 : 0;
    if (asprintf(&output->temporary, "%.*s.lien-blob.XXXXXX", dir, path) < 0) {
        output->temporary = NULL;
        return error_set(error, BLOB_FAILED, "out of memory");
    }
    output->fd = mkostemp(output->temporary, O_CLOEXEC);
    if (output->fd < 0) {
        error_set_errno(error, errno, "cannot make %s", output->temporary);
        free(output->temporary);
        output->temporary = NULL;
        return false;
    }
    return file_has_room(output->fd, size, error);
}

static mode_t usual_mode(void)
{
    mode_t mask = umask(0); // no other thread of this program makes files
    umask(mask);
    return 0666 & ~mask;
}

static bool sync_parent(const char *path, struct blob_error *error)
{
    char *copy = strdup(path);
    int dir = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    bool ok = dir >= 0 && fsync(dir) == 0;
    if (!ok)
        error_set_errno(error, errno, "writing the directory of %s to the disk", path);
    if (dir >= 0)
        close(dir);
    free(copy);
    return ok;
}

static bool publish(struct output *output, struct blob_error *error)
{
    if (fchmod(output->fd, usual_mode()) != 0 || fsync(output->fd) != 0)
        return error_set_errno(error, errno, "writing %s to the disk", output->temporary);
    if (rename(output->temporary, output->path) != 0)
        return error_set_errno(error, errno, "renaming to %s", output->path);
    free(output->temporary);
    output->temporary = NULL;
    return sync_parent(output->path, error);
}

// Removes the temporary file if it is still one.
static void close_output(struct output *output)
{
    if (output->fd >= 0)
        close(output->fd);
    if (output->temporary)
        unlink(output->temporary);
    free(output->temporary);
    *output = (struct output){.fd = -1};
}

static bool check_sums(struct client *client, const struct blob_answer *object,
                       const struct blob_answer *end, struct blob_error *error)
{
    uint8_t ours[BLOB_SUM_BYTES];
    sum_get(client->sum, ours);
    if (memcmp(ours, end->sum, BLOB_SUM_BYTES) != 0)
        return error_set(error, BLOB_BAD_SUM, "what arrived is not what the server sent");
    if ((object->flags & BLOB_HAS_SUM) && memcmp(ours, object->sum, BLOB_SUM_BYTES) != 0)
        return error_set(error, BLOB_BAD_SUM,
                         "what the server has is not what was once put: damaged on its disk");
    return true;
}

static bool transfer(struct client *client, const struct blob_ask *get, struct output *output,
                     const char *path, struct blob_error *error)
{
    struct blob_answer object, end;
    client_begin(client);
    if (!client_ask(client, "blob/get", get, &object, error) ||
        !open_output(output, path, object.size, error))
        return false;
    struct blob_ask pieces = {.transfer = object.transfer, .size = object.size};
    if (!client_pieces(client, PIECES_GET, get->name, output->fd, &pieces, error) ||
        !client_ask(client, "blob/end", &pieces, &end, error) ||
        !check_sums(client, &object, &end, error) || !publish(output, error))
        return false;
    client_report(client, "get", get->name, object.size, end.copied);
    return true;
}

bool client_get(struct client *client, const char *name, const char *path, struct blob_error *error)
{
    struct blob_ask get = {0};
    struct output output = {.fd = -1};
    if (!client_set_name(&get, name, error) || !check_output(path, error))
        return false;
    bool ok = client_connect(client, error) && transfer(client, &get, &output, path, error);
    close_output(&output);
    return ok;
}
