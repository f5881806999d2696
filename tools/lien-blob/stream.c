// SPDX-License-Identifier: Apache-2.0
//
// What sending and receiving share: the window of pieces, their states, and memory for them. See stream.h.

#include "stream.h"

#include <assert.h>
#include <stdlib.h>

#define TO(state) (1u << (state))

static const unsigned may_enter[PIECE_STATES] = {
    [PIECE_FREE] = TO(PIECE_WAITS),
    [PIECE_WAITS] = TO(PIECE_LENT) | TO(PIECE_FREE),
    [PIECE_LENT] = TO(PIECE_READY) | TO(PIECE_FREE),
    [PIECE_READY] = TO(PIECE_FREE),
};

void piece_enter(struct piece *piece, enum piece_state state)
{
    if (!(may_enter[piece->state] & TO(state)))
        abort(); // a bug of ours
    piece->state = state;
}

void stream_init(struct stream *stream, struct peer *peer, int fd, XXH3_state_t *sum, uint64_t size,
                 uint64_t offset)
{
    *stream = (struct stream){
        .peer = peer, .fd = fd, .sum = sum, .size = size, .next = offset, .finished = offset};
    for (unsigned i = 0; i < BLOB_WINDOW; i++) {
        stream->pieces[i].stream = stream;
        stream->pieces[i].event.kind = EVENT_PIECE;
    }
}

bool stream_finished(const struct stream *stream)
{
    return stream->finished == stream->size && stream_idle(stream) &&
           stream->error.status == BLOB_OK;
}

bool stream_idle(const struct stream *stream)
{
    return stream->count == 0;
}

bool stream_is_over(struct stream *stream)
{
    if (stream->peer->over != 0)
        error_set_lien(&stream->error, stream->peer->over, "the connection ended");
    return stream->error.status != BLOB_OK;
}

struct piece *stream_add(struct stream *stream, void (*handle)(struct event *event))
{
    assert(stream->count < BLOB_WINDOW && stream->next < stream->size);
    struct piece *piece = &stream->pieces[(stream->first + stream->count++) % BLOB_WINDOW];
    uint64_t left = stream->size - stream->next;
    piece->offset = stream->next;
    piece->len = left < BLOB_PIECE_BYTES ? (uint32_t)left : BLOB_PIECE_BYTES;
    piece->event.handle = handle;
    piece->done = 0;
    stream->next += piece->len;
    piece_enter(piece, PIECE_WAITS);
    return piece;
}

static void on_memory(void *arg, int status, lien_buf *buf)
{
    struct piece *piece = arg;
    piece->buf = buf;
    peer_post(piece->stream->peer, &piece->event, status);
}

bool stream_get_memory(struct piece *piece)
{
    struct stream *stream = piece->stream;
    int rc = lien_pool_alloc(stream->peer->pool, piece->len, &piece->buf);
    if (rc == 0)
        return true;
    // The pool is at its limit: stand in line. First come, first served, so every transfer gets its turn, and a large one cannot push small ones aside.
    if (rc == LIEN_ELIMIT)
        rc = lien_pool_alloc_start(stream->peer->pool, piece->len, on_memory, piece, NULL);
    if (rc == 0) {
        stream->peer->owed++;
        return false;
    }
    error_set_lien(&stream->error, rc, "memory for a piece");
    piece_end(piece);
    return false;
}

void piece_end(struct piece *piece)
{
    // All three take NULL. None of them is early, even if the memory should still be lent: then Lien puts the freeing off until it is not.
    if (piece->grant)
        lien_grant_close(&piece->grant);
    lien_space_free(&piece->space);
    lien_buf_free(&piece->buf);
    piece_enter(piece, PIECE_FREE);

    struct stream *stream = piece->stream;
    while (stream->count > 0 && stream->pieces[stream->first].state == PIECE_FREE) {
        if (stream->error.status == BLOB_OK)
            stream->finished += stream->pieces[stream->first].len;
        stream->first = (stream->first + 1) % BLOB_WINDOW;
        stream->count--;
    }
}

void stream_end(struct stream *stream)
{
    assert(stream->peer->owed == 0);
    for (unsigned i = 0; i < BLOB_WINDOW; i++) {
        if (stream->pieces[i].state == PIECE_READY)
            piece_end(&stream->pieces[i]);
    }
}
