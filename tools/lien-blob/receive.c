// SPDX-License-Identifier: Apache-2.0
//
// The receiving half of a stream: READ into spaces, space to file. Thread: the peer's owner, except on_done and on_released, which run on Lien's threads in this order.
// Nothing that the other side says is taken on trust: each piece must be the one that comes next, of just the right length, inside the window, and its token must fit.

#include "stream.h"

// The result is known. The memory may still be lent (a READ that timed out can land later), so nothing else happens here.
static void on_done(void *arg, int status)
{
    struct piece *piece = arg;
    piece->done = status;
}

// Now the memory is ours to look at; or, with LIEN_EQUARANTINED, never.
static void on_released(void *arg, int status)
{
    struct piece *piece = arg;
    peer_post(piece->stream->peer, &piece->event, status);
}

// Memory is here: moved into a space, which is lent as the target of a READ of the whole grant.
static bool start_read(struct piece *piece)
{
    struct stream *stream = piece->stream;
    int rc = lien_space_open(stream->peer->ctx, &piece->buf, 1, &piece->space);
    if (rc != 0)
        return error_set_lien(&stream->error, rc, "a space for a piece");
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.on_done = on_done;
    opts.on_released = on_released;
    opts.arg = piece;
    rc = lien_read_start(stream->peer->conn, piece->token.bytes, piece->token.len, piece->space,
                         &opts, NULL);
    if (rc != 0) // nothing was lent, and neither callback will run
        return error_set_lien(&stream->error, rc, "reading a piece");
    stream->peer->owed++;
    piece_enter(piece, PIECE_LENT);
    return true;
}

static void begin(struct piece *piece)
{
    if (stream_is_over(piece->stream) || !start_read(piece))
        piece_end(piece);
}

// Writes the piece away and discharges the other side's grant.
static bool store(struct piece *piece)
{
    struct stream *stream = piece->stream;
    lien_buf *buf;
    const void *data;
    int rc = lien_space_buf(piece->space, 0, &buf);
    if (rc == 0)
        rc = lien_buf_data(buf, &data);
    if (rc != 0)
        return error_set_lien(&stream->error, rc, "a piece that was read");
    if (!file_write(stream->fd, data, piece->len, piece->offset, &stream->error))
        return false;
    sum_add(stream->sum, data, piece->len);
    rc = lien_release(stream->peer->conn, piece->token.bytes, piece->token.len);
    if (rc != 0)
        return error_set_lien(&stream->error, rc, "releasing a piece");
    return true;
}

// Pieces may arrive in any order; the file and its sum grow in order.
static void store_ready(struct stream *stream)
{
    while (stream->count > 0 && stream->pieces[stream->first].state == PIECE_READY) {
        struct piece *piece = &stream->pieces[stream->first];
        if (stream_is_over(stream) || !store(piece))
            return;
        piece_end(piece);
    }
}

static void on_event(struct event *event)
{
    struct piece *piece = (struct piece *)((char *)event - offsetof(struct piece, event));
    struct stream *stream = piece->stream;
    if (piece->state == PIECE_WAITS && event->status == 0) {
        begin(piece);
        return;
    }
    int failed = piece->done != 0 ? piece->done : event->status;
    if (piece->state == PIECE_LENT && failed == 0) {
        piece_enter(piece, PIECE_READY);
        store_ready(stream);
        return;
    }
    error_set_lien(&stream->error, failed, "reading a piece");
    piece_end(piece);
}

static bool check(const struct stream *stream, const struct blob_message *message,
                  struct blob_error *error)
{
    uint64_t left = stream->size - stream->next;
    uint64_t due = left < BLOB_PIECE_BYTES ? left : BLOB_PIECE_BYTES;
    if (stream->count == BLOB_WINDOW)
        return error_set(error, BLOB_BAD_MESSAGE, "more than %d pieces under way", BLOB_WINDOW);
    if (message->offset != stream->next || message->size != due || due == 0)
        return error_set(error, BLOB_BAD_MESSAGE,
                         "a piece of %llu bytes at %llu where %llu bytes at %llu were due",
                         (unsigned long long)message->size, (unsigned long long)message->offset,
                         (unsigned long long)due, (unsigned long long)stream->next);
    lien_token_info info = {.size = sizeof(info)};
    int rc = lien_token_open(stream->peer->conn, message->token.bytes, message->token.len, &info);
    if (rc != 0)
        return error_set_lien(error, rc, "the token of a piece");
    if (info.len != due)
        return error_set(error, BLOB_BAD_MESSAGE, "a token of %llu bytes for a piece of %llu",
                         (unsigned long long)info.len, (unsigned long long)due);
    return true;
}

void stream_receive(struct stream *stream, const struct blob_message *message)
{
    if (stream_is_over(stream) || !check(stream, message, &stream->error))
        return;
    struct piece *piece = stream_add(stream, on_event);
    piece->token = message->token;
    if (stream_get_memory(piece))
        begin(piece);
}
