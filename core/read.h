// SPDX-License-Identifier: Apache-2.0
//
// A read: one transfer from a peer's grant into a space of ours. Its pieces are posted one by one as budget and R19 allow. *Done* is
// when the result is known, *released* when evidence for every posted piece was spent (R4): a timeout, a cancel or a lost connection brings done at once and
// releases nothing. Under the state lock.

#ifndef LIENI_READ_H
#define LIENI_READ_H

#include "core/check.h"
#include "core/conn.h"
#include "core/plan.h"
#include "core/target.h"

enum lieni_read_state {
    LIENI_READ_RUNNING, // posting and awaiting evidence. Ends by its last evidence, deadline, cancel, loss
    LIENI_READ_PROBING, // evidence is spent; awaits the owner's word that the bytes are good. Ends by it, deadline, cancel, loss
    LIENI_READ_CHECKING, // the bytes are here, and vouched for if that is due; awaits the comparison of checksums. Ends by it, deadline, cancel, loss
    LIENI_READ_DRAINING, // done is told; awaits the evidence of what is posted, or the end of a comparison. Ends by it, or by the endpoint's end
    LIENI_READ_OVER      // released
};

struct lien_read {
    struct lien_conn *conn; // a reference
    enum lieni_read_state state;
    struct lieni_name name;
    lien_space *space;
    struct lieni_plan plan;
    struct lieni_key *keys; // n = plan.n_src
    bool sums;              // they carry checksums
    struct lieni_check check;
    uint64_t at_risk; // bytes of the space, from its first piece until it is settled (R12)
    unsigned flags;
    struct lieni_strand *strand; // of the callbacks
    // Of a borrowed source: done only when the owner said that the call lives ...
    bool validate;
    uint64_t probe_deadline; // ns
    struct lieni_ask ask;
    // ... or else, if this is set: all bytes are here, before done, space and all. Marks them as nobody's word.
    void (*unverified)(struct lien_read *read);
    int status;   // of done
    int released; // of released
    void (*on_done)(void *arg, int status);
    void (*on_released)(void *arg, int status);
    void *arg;
    void (*over)(void *owner,
                 int status); // internal owner, under the lock, when the space is back or lost
    void *owner;
    struct lieni_task done_task, released_task;
    struct lieni_timer timer;
    struct lieni_node node;   // conn->reads, until over
    struct lieni_node queue;  // conn->read_queue, while it has pieces to post
    unsigned refs;            // handle; running; tasks
    struct lieni_node handle; // conn->read_handles, while the application has it
};

enum lieni_post {
    LIENI_POSTED,
    LIENI_BLOCKED,
    LIENI_NOTHING
};

// Starts one on checked token data; the caller fills callbacks or over/owner and calls lieni_read_go().
int lieni_read_new(struct lien_conn *conn, const struct lieni_token_data *token, lien_space *space,
                   const lien_read_opts *opts, struct lien_read **read);
void lieni_read_go(struct lien_read *read);
void lieni_read_unref(struct lien_read *read);
// Done with `status` now, if not yet; nothing more is posted.
void lieni_read_stop(struct lien_read *read, int status);
// Posts one piece of the connection's next read.
enum lieni_post lieni_read_post_one(struct lien_conn *conn);
void lieni_read_on_evidence(struct lien_conn *conn, struct lieni_evidence *ev);
// Bytes that it put into buffer `i` of its space.
uint64_t lieni_read_into(const struct lien_read *read, uint32_t i);
// Waits until the space is settled; the lock is held.
int lieni_read_wait_over(struct lien_read *read);
// All reads of a connection, or those of one grant (name not NULL), are stopped.
void lieni_reads_stop(struct lien_conn *conn, const struct lieni_name *name, int status);
// The endpoint ended without proof: what is in flight is lost.
void lieni_read_lost(struct lien_read *read);

// LIEN_EMSGSIZE, after a log line with the limit and the ways out, if the provider does not move so many bytes in one read with all its operations.
int lieni_read_batch_check(const struct lien_conn *conn, uint64_t bytes);

#endif
