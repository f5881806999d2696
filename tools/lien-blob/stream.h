// SPDX-License-Identifier: Apache-2.0
//
// One file on its way over a connection, piece by piece, through at most BLOB_WINDOW buffers of BLOB_PIECE_BYTES. The same code serves client and server: a put sends from
// the client and receives at the server, a get the other way round.
//
//   sending (send.c)                                   receiving (receive.c)
//   buffer from the pool, file read into it
//   lien_grant_open: the buffer is lent
//   BLOB_PIECE with the token            ------------>  buffer from the pool, moved into a space
//                                                       lien_read_start: the space is lent
//                                        <== READ ====
//                                                       on_done: the result is known
//                                                       on_released: the bytes are ours to look at
//                                                       written to the file, added to the sum
//                                        <------------  lien_release: discharged
//   on_released: the buffer is ours again
//
// Nobody copies: the disk fills and empties the very buffers that the provider reads from and into.
//
// Thread: the peer's owner. Invariant: pieces[first .. first + count) (modulo BLOB_WINDOW) are the pieces under way, in the order of the file; `finished` is where the first
// of them begins, so everything before it is done with (it stands still after an error). An error stops new work; what is lent comes home by its events all the same.

#ifndef BLOB_STREAM_H
#define BLOB_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include <lien/lien.h>

#include "file.h"
#include "peer.h"

enum piece_state {
    PIECE_FREE,  // not in use; no memory
    PIECE_WAITS, // for memory of the pool; ended by its event (others' transfers give memory back)
    PIECE_LENT, // sending: granted to the other side; receiving: under our READ. Not ours until on_released
    PIECE_READY, // receiving: the bytes are here, earlier pieces are not yet
    PIECE_STATES
};

struct piece {
    struct event event;
    struct stream *stream;
    enum piece_state state;
    uint64_t offset;
    uint32_t len;
    lien_buf *buf;     // PIECE_LENT of a sender; on the way into a space at a receiver
    lien_space *space; // receiver, while LENT and READY
    lien_grant *grant; // sender, while LENT
    int done;          // receiver: what on_done said
    lien_token token;
};

struct stream {
    struct peer *peer;
    int fd; // the caller's
    XXH3_state_t *
        sum; // the caller's; covers the file up to `next` at a sender, up to `finished` at a receiver
    uint64_t size; // of the whole file
    uint64_t next; // where the next piece begins
    uint64_t finished;
    unsigned first;
    unsigned count;
    struct piece pieces[BLOB_WINDOW];
    struct blob_error error;
};

// Starts at `offset`; the sum must cover what is before it already.
void stream_init(struct stream *stream, struct peer *peer, int fd, XXH3_state_t *sum, uint64_t size,
                 uint64_t offset);
// Every byte is where it should be, and nothing is lent.
bool stream_finished(const struct stream *stream);
// Nothing is lent and no memory is waited for; true also after an error, in the end.
bool stream_idle(const struct stream *stream);
// After peer_close() of a stream that failed: frees what arrived and was not written.
void stream_end(struct stream *stream);

// Sender: begins as many pieces as fit. Call at the start and after each piece event. An error is left in stream->error.
void stream_send(struct stream *stream);
// Receiver: a BLOB_PIECE came. An error is left in stream->error.
void stream_receive(struct stream *stream, const struct blob_message *message);

// -- For send.c and receive.c --------------------------------------------------------------------------------------------------------

// Takes the next range of the file into a free piece, which then waits for memory. The window must have room.
struct piece *stream_add(struct stream *stream, void (*handle)(struct event *event));
// Asks the pool for the piece's memory. True: piece->buf is there. False: it will come as an event with status 0 (or an error has been set).
bool stream_get_memory(struct piece *piece);
// No new work: there is an error, or the connection is ending (which becomes the error).
bool stream_is_over(struct stream *stream);
void piece_enter(struct piece *piece, enum piece_state state);
// Frees whatever of piece is ours, makes it PIECE_FREE, and moves first/finished over all free pieces at the front.
void piece_end(struct piece *piece);

#endif
