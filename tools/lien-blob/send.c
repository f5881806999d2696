// SPDX-License-Identifier: Apache-2.0
//
// The sending half of a stream: file to granted buffers. Thread: the peer's owner, except on_released, which only posts an event.

#include "stream.h"

#include <string.h>

// The lien on the buffer is discharged: the other side released it, or its endpoint is proved gone. Only now may the buffer change or go home.
static void on_released(void *arg, int status)
{
    struct piece *piece = arg;
    peer_post(piece->stream->peer, &piece->event, status);
}

static bool fill(struct piece *piece)
{
    struct stream *stream = piece->stream;
    void *data;
    int rc = lien_buf_mut(piece->buf, &data);
    if (rc != 0)
        return error_set_lien(&stream->error, rc, "a fresh buffer");
    if (!file_read(stream->fd, data, piece->len, piece->offset, &stream->error))
        return false;
    sum_add(stream->sum, data, piece->len);
    return true;
}

// Grants the buffer to the other side. On success exactly one on_released will come.
static bool grant(struct piece *piece)
{
    struct stream *stream = piece->stream;
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.on_released = on_released;
    opts.arg = piece;
    int rc = lien_grant_open(stream->peer->conn, &piece->buf, 1, &opts, &piece->token,
                             &piece->grant);
    if (rc != 0)
        return error_set_lien(&stream->error, rc, "granting a piece");
    stream->peer->owed++;
    piece_enter(piece, PIECE_LENT);
    return true;
}

// Memory is here: fill it, grant it, tell the other side.
static void begin(struct piece *piece)
{
    struct stream *stream = piece->stream;
    if (stream_is_over(stream) || !fill(piece) || !grant(piece)) {
        piece_end(piece);
        return;
    }
    struct blob_message message = {
        .kind = BLOB_PIECE, .offset = piece->offset, .size = piece->len, .token = piece->token};
    // If this fails the grant still holds. It ends with the connection, which the owner of the stream closes after an error, and then on_released comes.
    peer_send(stream->peer, &message, NULL, 0, &stream->error);
}

static void on_event(struct event *event)
{
    struct piece *piece = (struct piece *)((char *)event - offsetof(struct piece, event));
    struct stream *stream = piece->stream;
    if (piece->state == PIECE_WAITS && event->status == 0) {
        begin(piece);
        return;
    }
    if (event->status != 0)
        error_set_lien(&stream->error, event->status,
                       piece->state == PIECE_WAITS ? "memory for a piece" : "a granted piece");
    stream_is_over(
        stream); // a lost connection releases grants too, though nobody may have read them: not counted as sent
    piece_end(piece);
}

void stream_send(struct stream *stream)
{
    while (!stream_is_over(stream) && stream->next < stream->size && stream->count < BLOB_WINDOW) {
        // The file is read in order, since the sum needs that; so is at most one piece waiting for memory.
        unsigned last = (stream->first + stream->count - 1) % BLOB_WINDOW;
        if (stream->count > 0 && stream->pieces[last].state == PIECE_WAITS)
            return;
        struct piece *piece = stream_add(stream, on_event);
        if (stream_get_memory(piece))
            begin(piece);
    }
}
