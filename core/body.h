// SPDX-License-Identifier: Apache-2.0
//
// The body of a call or a reply on its way here: a held grant of the peer's that is READ into a buffer, which comes from a pool (perhaps after a wait) or was reserved before. Embedded in
// its owner, which lives until `over` ran. Under the state lock.

#ifndef LIENI_BODY_H
#define LIENI_BODY_H

#include "core/ctx.h"
#include "core/wire.h"

struct lien_conn;
struct lien_read;

struct lieni_body {
    struct lien_conn *conn;
    struct lieni_token_data *token; // NULL: nothing is on its way
    lien_buf *buf;                  // once over with status 0, the owner's
    lien_space *space;
    struct lien_read *read; // a reference
    struct lieni_pool_wait wait;
    void (*over)(struct lieni_body *body, int status); // once; the owner may be freed by it
    int status;                                        // why it was stopped
};

// Fetches the body that the frame names. `buf`: a reserved buffer that is large enough, moved; or NULL. `over` runs later, or before this returns. Nonzero: it does not run, the connection
// must end, and `buf` is freed.
int lieni_body_fetch(struct lieni_body *body, struct lien_conn *conn,
                     const struct lieni_frame *frame, lien_buf *buf);
// Nobody wants it any more: `over` runs with `status` as soon as no READ can touch its buffer. No effect without one.
void lieni_body_stop(struct lieni_body *body, int status);

#endif
