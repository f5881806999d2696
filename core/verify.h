// SPDX-License-Identifier: Apache-2.0
//
// Bytes that a handler uses before anybody vouched for them (design.md 4: overlapped, deferred; R15). Each request that reads so has a doubt (core/mem/mem.h), with which the buffers are marked, and
// asks for the verdict: by itself (LIEN_UNVERIFIED), or when lien_request_verify() does. Until then what would carry the bytes elsewhere is refused in lieni_grant_open(); the blocking twins
// wait here first. The request's end ends it all: marks that are left stay. Under the state lock.

#ifndef LIENI_VERIFY_H
#define LIENI_VERIFY_H

#include "core/request.h"

struct lieni_doubt;
struct lien_read;

// Before a read that does not wait for the verdict: LIEN_ENOMEM. LIEN_EUNVERIFIED: a buffer has such bytes of another request, and these would replace only a part of them.
int lieni_verify_may_read(struct lien_request *request, const lien_space *space,
                          const lien_transfer_opts *opts);
// Its bytes are here (lien_read.unverified): marks them; the second also asks.
void lieni_verify_mark(struct lien_read *read);
void lieni_verify_ask_for(struct lien_read *read);
// What the request's own writes and reply are the check of; NULL: nothing.
struct lieni_doubt *lieni_verify_own(const struct lien_request *request);
// The request ends: who waits hears LIEN_ECANCELED.
void lieni_verify_end(struct lien_request *request);
// Asks and waits until these bytes may leave: 0 (or they are no good in another way, which the start will tell), LIEN_EUNVERIFIED, LIEN_ETIMEDOUT, LIEN_EDEADLK. Lets go of the lock meanwhile.
int lieni_verify_leaving(lien_ctx *ctx, lien_buf *const *bufs, size_t n, struct lieni_doubt *own,
                         uint64_t deadline);

#endif
