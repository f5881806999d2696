// SPDX-License-Identifier: Apache-2.0
//
// The client's side of a put. The server tells how much of the object it has from an earlier try, and the sum of that; if our file begins the same way, only the rest travels.

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

// Whether our file begins with what the server has. Leaves in client->sum the sum of what need not travel.
static bool same_beginning(struct client *client, int fd, const struct blob_answer *offer,
                           bool *same, struct blob_error *error)
{
    lien_buf *scratch; // a buffer of the pool serves: the pieces do not need it yet
    void *data;
    int rc = lien_pool_alloc(client->pool, BLOB_PIECE_BYTES, &scratch);
    if (rc == 0 && (rc = lien_buf_mut(scratch, &data)) != 0)
        lien_buf_free(&scratch);
    if (rc != 0)
        return error_set_lien(error, rc, "memory to compare");
    bool ok = sum_add_file(client->sum, fd, offer->offset, data, BLOB_PIECE_BYTES, error);
    lien_buf_free(&scratch);
    uint8_t ours[BLOB_SUM_BYTES];
    sum_get(client->sum, ours);
    *same = memcmp(ours, offer->sum, BLOB_SUM_BYTES) == 0;
    if (!*same)
        sum_restart(client->sum);
    return ok;
}

static bool choose_offset(struct client *client, const char *name, int fd,
                          const struct blob_answer *offer, struct blob_ask *pieces,
                          struct blob_error *error)
{
    bool same = false;
    struct blob_answer answer;
    if (offer->offset == 0)
        return true;
    if (offer->offset > pieces->size)
        return error_set(error, BLOB_BAD_MESSAGE, "the server offers more than the file has");
    if (!same_beginning(client, fd, offer, &same, error))
        return false;
    if (!same)
        return client_ask(client, "blob/restart", pieces, &answer, error);
    pieces->offset = offer->offset;
    fprintf(stderr, "put %s: the server has %llu bytes, going on from there\n", name,
            (unsigned long long)offer->offset);
    return true;
}

static bool transfer(struct client *client, int fd, const struct blob_ask *put,
                     struct blob_error *error)
{
    struct blob_answer offer, done;
    client_begin(client);
    if (!client_ask(client, "blob/put", put, &offer, error))
        return false;
    struct blob_ask pieces = {.transfer = offer.transfer, .size = put->size};
    if (!choose_offset(client, put->name, fd, &offer, &pieces, error) ||
        !client_pieces(client, PIECES_PUT, put->name, fd, &pieces, error))
        return false;
    struct blob_ask commit = {.transfer = offer.transfer};
    sum_get(client->sum, commit.sum);
    if (!client_ask(client, "blob/commit", &commit, &done, error))
        return false;
    client_report(client, "put", put->name, put->size - pieces.offset, done.copied);
    return true;
}

bool client_put(struct client *client, const char *path, const char *name, struct blob_error *error)
{
    struct blob_ask put = {0};
    int fd;
    if (!client_set_name(&put, name, error) || !file_open_source(path, &fd, &put.size, error))
        return false;
    bool ok = client_connect(client, error) && transfer(client, fd, &put, error);
    close(fd);
    return ok;
}
