// SPDX-License-Identifier: Apache-2.0
//
// Marks of bytes that were read from a peer and that nobody vouched for yet (see mem.h, core/verify.c). A mark is looked up, not hunted down: a yes raises one number of the doubt, and each buffer's
// mark falls when it is next asked for. Under the state lock.

#include "core/mem/impl.h"

#include <stdlib.h>
#include <string.h>

struct lieni_doubt *lieni_doubt_new(void *reader)
{
    struct lieni_doubt *doubt = calloc(1, sizeof *doubt);
    if (doubt) {
        doubt->reader = reader;
        doubt->refs = 1;
    }
    return doubt;
}

void lieni_doubt_unref(struct lieni_doubt *doubt)
{
    if (--doubt->refs == 0) {
        free(doubt);
    }
}

struct lieni_doubt *lieni_buf_doubt_of(lien_buf *buf)
{
    if (buf->doubt && buf->doubt_read <= buf->doubt->good) {
        lieni_buf_trust(buf);
    }
    return buf->doubt;
}

size_t lieni_buf_doubt_len(const lien_buf *buf)
{
    return buf->doubt ? buf->doubt_len : 0;
}

void lieni_buf_trust(lien_buf *buf)
{
    if (buf->doubt) {
        lieni_doubt_unref(buf->doubt);
    }
    buf->doubt = NULL;
}

void lieni_buf_doubt(lien_buf *buf, struct lieni_doubt *doubt)
{
    lieni_mem_assert_locked(buf->root);
    size_t len = lien_buf_len(buf);
    size_t was = lieni_buf_doubt_of(buf) ? buf->doubt_len : 0;
    doubt->refs++;
    lieni_buf_trust(buf);
    buf->doubt = doubt;
    buf->doubt_read = doubt->last;
    buf->doubt_len = was > len ? was : len;
}

// No more than a line for who looks for it: programs may try first and ask then.
static int refused(const lien_buf *buf, const struct lieni_doubt *doubt)
{
    if (buf->root->args.log) {
        struct lieni_log_at at = {0};
        lieni_log_say(buf->root->args.log, LIEN_LOG_DEBUG, &at, LIEN_EUNVERIFIED,
                      "buffer %llu holds bytes that a request read and nobody vouched for: %s",
                      (unsigned long long)buf->id,
                      !doubt->reader
                          ? "it has ended, so lien_buf_clear() or a read of all of it is left"
                      : doubt->bad ? "the answer was no, or none came"
                                   : "lien_request_verify() asks");
    }
    return LIEN_EUNVERIFIED;
}

int lieni_bufs_may_leave(lien_buf *const *bufs, size_t n, const struct lieni_doubt *own)
{
    for (size_t i = 0; i < n; i++) {
        const struct lieni_doubt *doubt = lieni_buf_doubt_of(bufs[i]);
        if (doubt && doubt != own) {
            return refused(bufs[i], doubt);
        }
    }
    return 0;
}

bool lien_buf_unverified(const lien_buf *buf)
{
    if (lieni_buf_check(buf) != 0) {
        return false;
    }
    struct lieni_mem_root *root = buf->root;
    lieni_mem_enter(root);
    bool yes = lieni_buf_alive(buf) && buf->doubt && buf->doubt_read > buf->doubt->good;
    lieni_mem_leave(root);
    return yes;
}

int lien_buf_clear(lien_buf *buf)
{
    int rc = lieni_buf_check(buf);
    if (rc != 0) {
        return rc;
    }
    // Nobody else gets at it meanwhile, and others do not wait for the zeroing.
    struct lieni_mem_root *root = buf->root;
    lieni_mem_enter(root);
    rc = lieni_buf_take(buf);
    lieni_mem_leave(root);
    if (rc != 0) {
        return rc;
    }
    memset(buf->addr, 0, buf->cap);
    lieni_mem_enter(root);
    lieni_buf_trust(buf);
    lieni_buf_give(buf);
    lieni_mem_leave(root);
    return 0;
}
