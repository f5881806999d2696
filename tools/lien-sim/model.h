// SPDX-License-Identifier: Apache-2.0
//
// What model.c and transfers.c share: checks of answers and callbacks, buffers and their patterns.

#ifndef LIEN_SIM_MODEL_H
#define LIEN_SIM_MODEL_H

#include "poor.h"
#include "program.h"

void say(struct program *p, const char *what, unsigned number, int err);

// Answers that an honest peer and a correct call can meet: the end of the connection, and those of `may`.
enum {
    MAY_LIMIT = 1,
    MAY_AGAIN = 2,
    MAY_STALE = 4,
    MAY_REGISTER = 8, // registrations fail in this world
    MAY_OVERLOAD = 16,
    MAY_CANCELED = 32
};
void check_answer(struct program *p, const char *what, int err, unsigned may);

void op_init(struct program *p, struct app_op *op, const char *what);
void op_done(struct app_op *op, int status);
void op_released(struct app_op *op, int status);

void pattern_fill(uint8_t *p, size_t len, uint64_t tag, uint64_t at);
// Index of the first byte that differs, or `len`.
size_t pattern_check(const uint8_t *p, size_t len, uint64_t tag, uint64_t at);

// Up to BUFS_MAX buffers of `total` bytes in all (0: some); returns their number, 0 when there was no room.
unsigned bufs_get(struct app_node *node, struct app_buf *bufs, uint64_t total);
bool mem_buf_get(struct app_mem *mem, size_t len,
                 struct app_buf *out); // of memory with room for it
void bufs_free(struct program *p, struct app_buf *bufs, unsigned n);
uint64_t bufs_fill(const struct app_buf *bufs, unsigned n, uint64_t tag);
void bufs_lend_source(struct program *p, const struct app_buf *bufs, unsigned n);
// Moves the buffers into a space; a failure of the program when that is refused.
bool space_open(struct app_node *node, struct app_buf *bufs, unsigned n, lien_space **space);
void space_lent(struct program *p, const struct app_buf *bufs, unsigned n, bool validated);
// The library answered `status` for it; true: its bytes can be looked at.
bool space_back(struct program *p, const char *what, unsigned number, lien_space *space,
                const struct app_buf *bufs, unsigned n, int status);
// Writes over it and frees it.
void space_free(struct program *p, const struct app_buf *bufs, unsigned n, lien_space **space);
// Operations of random shape whose destinations do not overlap: within `src` and `dst` bytes. Returns their number.
unsigned random_ops(struct program *p, lien_op *ops, uint64_t src, uint64_t dst);
// The sources of an operation are released: written over at once, and freed.
void sources_back(struct program *p, struct app_buf *bufs, unsigned n, int status);
bool from_mem(const struct program *p, const uint8_t *addr);

// requests.c
void request_read_over(struct app_read *read, bool good);
// Handlers write `n` buffers, which it takes over; false: it did not start and they are freed.
bool request_write(struct app_request *request, struct app_buf *bufs, unsigned n);

// transfers.c
void msg_keep(struct app_node *node, lien_msg *msg, struct app_buf body);
// Starts to read `request`'s read space; false: it did not start.
bool model_request_read(struct app_request *request);
void on_message(lien_conn *conn, lien_msg *msg, void *arg);

#endif
