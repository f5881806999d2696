// SPDX-License-Identifier: Apache-2.0
//
// The client's side of a put. The server tells how much of the object it has from an earlier try, and the sum of that; if our file begins the same way, only the rest travels.

#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store.h"

static bool open_source(const char *path, int *fd, uint64_t *size, struct blob_error *error)
{
    struct stat st;
    int opened = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
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

// Where to begin: behind what the server has, if that is the same as what we have. Leaves in client->sum the sum of what is before it.
static bool choose_offset(struct client *client, int fd, uint64_t size,
                          const struct blob_message *offer, uint64_t *offset,
                          struct blob_error *error)
{
    *offset = 0;
    sum_restart(client->sum);
    if (offer->offset == 0)
        return true;
    if (offer->offset > size)
        return error_set(error, BLOB_BAD_MESSAGE, "the server offers more than the file has");
    // A pool buffer serves as scratch: the pieces do not need it yet.
    lien_buf *scratch;
    void *data;
    int rc = lien_pool_alloc(client->pool, BLOB_PIECE_BYTES, &scratch);
    if (rc == 0 && (rc = lien_buf_mut(scratch, &data)) != 0)
        lien_buf_free(&scratch);
    if (rc != 0)
        return error_set_lien(error, rc, "memory to compare");
    bool ok = sum_add_file(client->sum, fd, offer->offset, data, BLOB_PIECE_BYTES, error);
    lien_buf_free(&scratch);
    if (!ok)
        return false;
    uint8_t ours[BLOB_SUM_BYTES];
    sum_get(client->sum, ours);
    if (memcmp(ours, offer->sum, BLOB_SUM_BYTES) == 0)
        *offset = offer->offset;
    else
        sum_restart(client->sum);
    return true;
}

// Sends the pieces from client->stream's beginning until the other side has released the last.
static bool send_pieces(struct client *client, struct progress *progress, struct blob_error *error)
{
    struct stream *stream = &client->stream;
    stream_send(stream);
    while (!stream_finished(stream)) {
        struct blob_message message;
        bool got;
        if (stream->error.status != BLOB_OK) {
            *error = stream->error;
            client_hear_why(client, error);
            return false;
        }
        // The only message that can come now is the server giving up.
        if (!client_wait(client, BLOB_PUT_DONE, BLOB_PUT_DONE, &message, &got, error))
            return false;
        if (got)
            return error_set(error, BLOB_BAD_MESSAGE, "the server says done before the end");
        stream_send(stream);
        progress_show(progress, stream->finished);
    }
    return true;
}

static bool transfer(struct client *client, int fd, const struct blob_message *request,
                     struct blob_error *error)
{
    struct blob_message offer, done, go = {.kind = BLOB_PUT_GO}, end = {.kind = BLOB_PUT_END};
    client_begin(client);
    if (!client_ask(client, request, BLOB_PUT_REPLY, &offer, NULL, error) ||
        !choose_offset(client, fd, request->size, &offer, &go.offset, error))
        return false;
    if (go.offset > 0)
        fprintf(stderr, "put %s: the server has %llu bytes, going on from there\n", request->name,
                (unsigned long long)go.offset);
    if (!peer_send(&client->peer, &go, NULL, 0, error)) {
        client_hear_why(client, error);
        return false;
    }
    struct progress progress;
    progress_begin(&progress, "put", request->name, request->size, go.offset);
    stream_init(&client->stream, &client->peer, fd, client->sum, request->size, go.offset);
    bool ok = send_pieces(client, &progress, error);
    progress_end(&progress);
    if (!ok)
        return false;
    sum_get(client->sum, end.sum);
    if (!client_ask(client, &end, BLOB_PUT_DONE, &done, NULL, error))
        return false;
    client_report(client, "put", request->name, request->size - go.offset, done.copied);
    return true;
}

bool client_put(struct client *client, const char *path, const char *name, struct blob_error *error)
{
    struct blob_message request = {.kind = BLOB_PUT};
    int fd = -1;
    if (!store_check_name(name, error) || !open_source(path, &fd, &request.size, error))
        return false;
    memcpy(request.name, name, strlen(name) + 1);
    bool ok = client_connect(client, error) && transfer(client, fd, &request, error);
    if (!ok)
        client_disconnect(client); // before the file is closed: nothing reads for it any more
    close(fd);
    return ok;
}
