// SPDX-License-Identifier: Apache-2.0
//
// The client's side of moving a file: a window of calls, one for each piece. A put lends its buffers as read spaces, a get as write spaces, a sum both. Main thread.
// Invariant: pieces that begin in [done, next) are under way; the one at `offset` is in its place of the window.

#include <stdlib.h>
#include <string.h>

#include "client.h"

struct piece {
    struct call call;
    uint64_t offset;
    uint32_t len;
    lien_buf *bytes;   // put, sum: the piece
    lien_space *space; // get: the piece; sum: the digests
};

struct window {
    struct client *client;
    enum pieces_kind kind;
    int fd;
    const struct blob_ask *ask;
    struct piece pieces[BLOB_WINDOW];
};

static const char *const methods[] = {
    [PIECES_PUT] = "blob/write", [PIECES_GET] = "blob/read", [PIECES_SUM] = "blob/digest"};
static const char *const words[] = {
    [PIECES_PUT] = "put", [PIECES_GET] = "get", [PIECES_SUM] = "sum"};

// -- Memory, taken once and used again and again -------------------------------------------------------------------------------------------

static bool get_space(struct client *client, size_t len, lien_space **space,
                      struct blob_error *error)
{
    lien_buf *buf;
    int rc = lien_pool_alloc(client->pool, len, &buf);
    if (rc == 0 && (rc = lien_space_open(client->ctx, &buf, 1, space)) != 0)
        lien_buf_free(&buf);
    return rc == 0 || error_set_lien(error, rc, "a write space");
}

static bool get_memory(struct window *w, struct piece *piece, struct blob_error *error)
{
    size_t space_len = w->kind == PIECES_GET ? BLOB_PIECE_BYTES : sum_blocks_len(BLOB_PIECE_BYTES);
    if (w->kind != PIECES_PUT && !piece->space &&
        !get_space(w->client, space_len, &piece->space, error))
        return false;
    if (w->kind == PIECES_GET || piece->bytes)
        return true;
    int rc = lien_pool_alloc(w->client->pool, BLOB_PIECE_BYTES, &piece->bytes);
    return rc == 0 || error_set_lien(error, rc, "memory for a piece");
}

// -- One piece ---------------------------------------------------------------------------------------------------------------------------------

// Fills its buffer from the file.
static bool fill(struct window *w, struct piece *piece, struct blob_error *error)
{
    void *data = NULL;
    int rc = lien_buf_set_len(piece->bytes, piece->len);
    if (rc == 0)
        rc = lien_buf_mut(piece->bytes, &data);
    if (rc != 0)
        return error_set_lien(error, rc, "a buffer of ours");
    if (!file_read(w->fd, data, piece->len, piece->offset, error))
        return false;
    sum_add(w->client->sum, data, piece->len);
    return true;
}

static bool start(struct window *w, struct piece *piece, struct blob_error *error)
{
    struct blob_ask ask = {.transfer = w->ask->transfer, .offset = piece->offset};
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    if (!get_memory(w, piece, error) || (w->kind != PIECES_GET && !fill(w, piece, error)))
        return false;
    if (w->kind !=
        PIECES_GET) { // the server reads it; until the call ends it can be read here too, not written
        opts.read = &piece->bytes;
        opts.n_read = 1;
    }
    opts.write = piece->space; // the server writes it; until on_released it is not ours
    return client_start(w->client, &piece->call, methods[w->kind], &ask, &opts, error);
}

static bool get_written(const struct piece *piece, const void **data, struct blob_error *error)
{
    lien_buf *buf;
    int rc = lien_space_buf(piece->space, 0, &buf);
    if (rc == 0)
        rc = lien_buf_data(buf, data);
    return rc == 0 || error_set_lien(error, rc, "what the server wrote");
}

// The server worked in place on what it read from us, and wrote that back: is it what we would have made of it?
static bool check_digests(const struct piece *piece, const uint8_t *theirs,
                          struct blob_error *error)
{
    const void *data;
    uint8_t ours[BLOB_PIECE_BYTES / BLOB_BLOCK_BYTES * BLOB_SUM_BYTES];
    int rc = lien_buf_data(piece->bytes, &data);
    if (rc != 0)
        return error_set_lien(error, rc, "a buffer of ours");
    size_t len = sum_blocks(data, piece->len, ours);
    for (size_t i = 0; i < len / BLOB_SUM_BYTES; i++) {
        if (memcmp(ours + i * BLOB_SUM_BYTES, theirs + i * BLOB_SUM_BYTES, BLOB_SUM_BYTES) != 0)
            return error_set(error, BLOB_BAD_SUM,
                             "the server's checksum of the block at %llu is not ours",
                             (unsigned long long)(piece->offset + i * BLOB_BLOCK_BYTES));
    }
    return true;
}

static bool finish(struct window *w, struct piece *piece, struct blob_error *error)
{
    const void *data = NULL;
    if (!client_finish(&piece->call, error) || (piece->space && !get_written(piece, &data, error)))
        return false;
    switch (w->kind) {
    case PIECES_PUT:
        break;
    case PIECES_GET:
        if (!file_write(w->fd, data, piece->len, piece->offset, error))
            return false;
        sum_add(w->client->sum, data, piece->len);
        break;
    case PIECES_SUM:
        return check_digests(piece, data, error);
    }
    return true;
}

// -- All of them ---------------------------------------------------------------------------------------------------------------------------

static bool move(struct window *w, struct progress *progress, struct blob_error *error)
{
    uint64_t size = w->ask->size, done = w->ask->offset, next = done;
    while (done < size) {
        struct piece *piece = &w->pieces[(next - w->ask->offset) / BLOB_PIECE_BYTES % BLOB_WINDOW];
        if (next < size && next - done < (uint64_t)BLOB_WINDOW * BLOB_PIECE_BYTES) {
            piece->offset = next;
            piece->len = size - next < BLOB_PIECE_BYTES ? (uint32_t)(size - next)
                                                        : BLOB_PIECE_BYTES;
            if (!start(w, piece, error))
                return false;
            next += piece->len;
            continue;
        }
        piece = &w->pieces[(done - w->ask->offset) / BLOB_PIECE_BYTES % BLOB_WINDOW];
        if (!finish(w, piece, error))
            return false;
        done += piece->len;
        progress_show(progress, done);
    }
    return true;
}

bool client_pieces(struct client *client, enum pieces_kind kind, const char *name, int fd,
                   const struct blob_ask *ask, struct blob_error *error)
{
    struct window w = {.client = client, .kind = kind, .fd = fd, .ask = ask};
    struct progress progress;
    progress_begin(&progress, words[kind], name, ask->size, ask->offset);
    bool ok = move(&w, &progress, error);
    progress_end(&progress);
    if (!ok)
        client_disconnect(
            client); // ends the calls that are under way, so nothing is lent when we go on
    for (unsigned i = 0; i < BLOB_WINDOW; i++) {
        lien_buf_free(&w.pieces[i].call.body);
        lien_buf_free(&w.pieces[i].bytes);
        lien_space_free(&w.pieces[i].space);
    }
    return ok;
}
