// SPDX-License-Identifier: Apache-2.0
//
// GOAWAY of a connection, both sides: one says it and takes no new calls, the other starts none and answers HEARD, behind which no CALL of it follows. The first has drained when that
// came and no request is left. Under the state lock; the frames leave by lieni_calls_pump().

#include "core/call.h"
#include "core/conn.h"

int lieni_calls_goaway(struct lien_conn *conn)
{
    struct lieni_calls *calls = &conn->calls;
    if (calls->peer_goaway)
        return LIEN_EPROTO;
    calls->peer_goaway = true;
    calls->heard_due = true;
    lieni_ctx_changed(conn->ctx); // lien_call_wait, for credit
    lieni_conn_tell_goaway(conn);
    return 0;
}

int lieni_calls_heard(struct lien_conn *conn)
{
    struct lieni_calls *calls = &conn->calls;
    if (!calls->goaway || calls->goaway_due || calls->heard)
        return LIEN_EPROTO;
    calls->heard = true;
    lieni_calls_drain_step(conn);
    return 0;
}

void lieni_calls_drain_step(struct lien_conn *conn)
{
    struct lieni_calls *calls = &conn->calls;
    if (!calls->heard || calls->drained || !lieni_list_empty(&calls->requests) ||
        conn->state != LIENI_CONN_OPEN)
        return;
    calls->drained = true;
    lieni_conn_drained(conn);
}

int lieni_calls_say_goaway(struct lien_conn *conn)
{
    int rc = lieni_conn_usable(conn);
    if (rc == 0 && conn->calls.max == 0)
        rc = LIEN_ENOTSUP;
    if (rc != 0 || conn->calls.goaway)
        return rc;
    conn->calls.goaway = true;
    conn->calls.goaway_due = true;
    lieni_link_pump(conn);
    return 0;
}

int lien_conn_goaway(lien_conn *conn)
{
    if (!conn)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    lieni_ctx_lock(conn->ctx);
    int rc = lieni_calls_say_goaway(conn);
    lieni_ctx_unlock(conn->ctx);
    return rc;
}
