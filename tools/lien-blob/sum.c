// SPDX-License-Identifier: Apache-2.0
//
// The client's side of a sum, which stores nothing: the server reads our buffers, takes the checksum of the whole and of each block, writes the latter over the bytes in its own buffer, and that
// back into ours. Each is checked against our own (pieces.c).

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

static bool transfer(struct client *client, const char *path, int fd, uint64_t size,
                     struct blob_error *error)
{
    struct blob_ask sum = {.size = size};
    struct blob_answer begun, ended;
    uint8_t ours[BLOB_SUM_BYTES];
    char text[2 * BLOB_SUM_BYTES + 1];
    client_begin(client);
    if (!client_ask(client, "blob/sum", &sum, &begun, error))
        return false;
    sum.transfer = begun.transfer;
    if (!client_pieces(client, PIECES_SUM, path, fd, &sum, error) ||
        !client_ask(client, "blob/end", &sum, &ended, error))
        return false;
    sum_get(client->sum, ours);
    if (memcmp(ours, ended.sum, BLOB_SUM_BYTES) != 0)
        return error_set(error, BLOB_BAD_SUM, "the server's checksum is not ours");
    sum_text(ended.sum, text);
    if (!client->args->tabs)
        printf("%s  %s\n", text, path);
    client_report(client, "sum", path, size, ended.copied);
    return true;
}

bool client_sum(struct client *client, const char *path, struct blob_error *error)
{
    int fd;
    uint64_t size;
    if (!file_open_source(path, &fd, &size, error))
        return false;
    bool ok = client_connect(client, error) && transfer(client, path, fd, size, error);
    close(fd);
    return ok;
}
