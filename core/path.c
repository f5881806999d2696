// SPDX-License-Identifier: Apache-2.0
//
// How transfers moved: each asks its connection, which knows its provider and NIC from the choice on, also after its end. What is read here is written before the transfer exists.

#include "core/call.h"
#include "core/conn.h"
#include "core/message.h"
#include "core/read.h"
#include "core/request.h"

lien_path lieni_conn_path(const struct lien_conn *conn, bool *soft)
{
    if (!conn->ops || lieni_ctx_forked(conn->ctx))
        return LIEN_PATH_NONE;
    if (soft)
        *soft = conn->soft;
    return conn->ops->traits->path;
}

lien_path lien_read_path(const lien_read *read, bool *soft)
{
    return read ? lieni_conn_path(read->conn, soft) : LIEN_PATH_NONE;
}

lien_path lien_call_path(const lien_call *call, bool *soft)
{
    return call ? lieni_conn_path(call->conn, soft) : LIEN_PATH_NONE;
}

lien_path lien_request_path(const lien_request *request, bool *soft)
{
    return request ? lieni_conn_path(request->conn, soft) : LIEN_PATH_NONE;
}

lien_path lien_msg_path(const lien_msg *msg, bool *soft)
{
    return msg ? lieni_conn_path(msg->conn, soft) : LIEN_PATH_NONE;
}
