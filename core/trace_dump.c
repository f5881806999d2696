// SPDX-License-Identifier: Apache-2.0
//
// Traces on their way out: lien_conn_trace(), and the files in option trace_dir. The ring is copied under the state lock and written without it; files are written by a task of the ctx's own
// strand, on a dispatch thread, never on the progress thread (inside lien_ctx_progress() in an app-driven ctx). A connection's end asks for its file twice: when it
// begins, in case the process does not live to see the rest, and when it is over.

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/conn.h"

static void describe(const struct lien_conn *conn, struct lieni_dump_head *head)
{
    *head = (struct lieni_dump_head){.conn = conn->id,
                                     .server = conn->server,
                                     .status = conn->status,
                                     .read_bytes = conn->read_bytes};
    memcpy(head->ctx, conn->ctx->instance, sizeof(head->ctx));
    memcpy(head->peer_ctx, conn->peer_instance, sizeof(head->peer_ctx));
    strncpy(head->state, lieni_conn_state_name(conn->state), sizeof(head->state) - 1);
    if (conn->ops)
        strncpy(head->provider, conn->ops->traits->name, sizeof(head->provider) - 1);
    memcpy(head->peer, conn->peer, strnlen(conn->peer, sizeof(conn->peer)));
}

// The ring as it is now, freed by the caller. NULL: no memory. Without the lock.
static uint8_t *snapshot(struct lien_conn *conn, struct lieni_dump_head *head, size_t *len)
{
    uint8_t *bytes = malloc(lieni_trace_dump_room(conn->trace));
    if (!bytes)
        return NULL;
    lieni_ctx_lock(conn->ctx);
    describe(conn, head);
    *len = lieni_trace_dump(conn->trace, head, bytes);
    lieni_ctx_unlock(conn->ctx);
    return bytes;
}

static int write_all(int fd, const uint8_t *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, bytes, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return LIEN_ESYS;
        bytes += n;
        len -= (size_t)n;
    }
    return 0;
}

int lien_conn_trace(lien_conn *conn, int fd)
{
    if (!conn || fd < 0)
        return LIEN_EINVAL;
    if (lieni_ctx_forked(conn->ctx))
        return LIEN_EFORK;
    if (!conn->trace)
        return LIEN_ESTATE;
    struct lieni_dump_head head;
    size_t len;
    uint8_t *bytes = snapshot(conn, &head, &len);
    if (!bytes)
        return LIEN_ENOMEM;
    int rc = write_all(fd, bytes, len);
    int why = errno;
    free(bytes);
    errno = why;
    return rc;
}

// -- Files -------------------------------------------------------------------------------------------------------------------------

// Whole or not at all: a reader never finds half a file under its name. Readable by the user alone.
static int write_file(const char *path, const uint8_t *bytes, size_t len)
{
    char part[4352];
    snprintf(part, sizeof(part), "%s.part", path);
    unlink(part); // of a process that did not live to finish it
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return LIEN_ESYS;
    int rc = write_all(fd, bytes, len);
    if (close(fd) != 0 && rc == 0)
        rc = LIEN_ESYS;
    if (rc == 0 && rename(part, path) != 0)
        rc = LIEN_ESYS;
    if (rc != 0) {
        int why = errno;
        unlink(part);
        errno = why;
    }
    return rc;
}

// The ctx's random name keeps contexts and processes apart, and the number the connections that never got an id.
static void file_name(const struct lien_conn *conn, const struct lieni_dump_head *head, char *path,
                      size_t size)
{
    const uint8_t *ctx = head->ctx;
    snprintf(path, size, "%s/lien-%016" PRIx64 "-%s-%02x%02x%02x%02x-%" PRIu64 ".trace",
             conn->ctx->options.trace_dir, head->conn, head->server ? "server" : "client", ctx[0],
             ctx[1], ctx[2], ctx[3], conn->trace_file);
}

static void run_dump(struct lieni_task *task)
{
    struct lien_conn *conn = lieni_container(task, struct lien_conn, trace_task);
    lien_ctx *ctx = conn->ctx;
    struct lieni_dump_head head;
    char path[512];
    size_t len = 0;
    lieni_ctx_lock(ctx);
    conn->trace_queued = false; // what happens from now on may ask again
    lieni_ctx_unlock(ctx);
    uint8_t *bytes = snapshot(conn, &head, &len);
    int rc = bytes ? 0 : LIEN_ENOMEM;
    if (rc == 0) {
        file_name(conn, &head, path, sizeof(path));
        rc = write_file(path, bytes, len);
    }
    int why = errno;
    free(bytes);
    lieni_ctx_lock(ctx);
    struct lieni_log_at at = lieni_conn_at(conn, 0);
    if (rc == 0)
        lieni_log_say(ctx->log, LIEN_LOG_INFO, &at, 0, "its trace is in %s", path);
    else
        lieni_log_say(ctx->log, LIEN_LOG_WARN, &at, rc, "its trace could not be written to %s: %s",
                      ctx->options.trace_dir, rc == LIEN_ESYS ? strerror(why) : "no memory");
    ctx->traces_queued--;
    lieni_ctx_changed(ctx); // lien_ctx_close
    lieni_conn_unref(conn);
    lieni_ctx_unlock(ctx);
}

// One more file of this ctx, or false.
static bool number_file(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    if (conn->trace_file != 0)
        return true;
    if (ctx->trace_files >= ctx->options.trace_files) {
        struct lieni_log_at at = lieni_conn_at(conn, 0);
        if (ctx->traces_full)
            return false; // said once
        ctx->traces_full = true;
        lieni_log_say(ctx->log, LIEN_LOG_WARN, &at, LIEN_ELIMIT,
                      "this trace and later ones are not written: there are %" PRIu64
                      " already, as many as trace_files allows",
                      ctx->trace_files);
        return false;
    }
    conn->trace_file = ++ctx->trace_files;
    return true;
}

void lieni_trace_ended(struct lien_conn *conn)
{
    lien_ctx *ctx = conn->ctx;
    if (!conn->trace || ctx->options.trace_dir[0] == '\0' || conn->trace_queued ||
        conn->status == 0 || conn->status == LIEN_ECLOSED || !number_file(conn))
        return;
    conn->trace_queued = true;
    conn->trace_task.run = run_dump;
    ctx->traces_queued++;
    lieni_conn_ref(conn);
    lieni_strand_post(ctx->strand, &conn->trace_task);
}
