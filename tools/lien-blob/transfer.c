// SPDX-License-Identifier: Apache-2.0
//
// The pieces of a transfer at the server: the five steps of server.h. All of it on the session's thread.
// Invariant: a piece at `offset` is in jobs[place(offset)], from its arrival to its answer; pieces are started and worked on in the order of the file, so started >= worked.

#include "server.h"

#include <string.h>
#include <unistd.h>

#include "progress.h"

static uint64_t copied_so_far(const struct session *session)
{
    lien_ctx_stats stats = {.size = sizeof(stats)};
    return lien_ctx_stats_get(session->server->ctx, &stats) == 0 ? stats.payload_bytes_copied : 0;
}

uint64_t transfer_copied(const struct session *session)
{
    return copied_so_far(session) - session->transfer.copied;
}

static unsigned place(const struct transfer *t, uint64_t offset)
{
    return (unsigned)((offset - t->begin) / BLOB_PIECE_BYTES % BLOB_WINDOW);
}

static bool idle(const struct transfer *t)
{
    for (unsigned i = 0; i < BLOB_WINDOW; i++) {
        if (t->jobs[i])
            return false;
    }
    return true;
}

// -- Begin and end -----------------------------------------------------------------------------------------------------------------

void transfer_end(struct session *session)
{
    struct transfer *t = &session->transfer;
    store_put_park(&t->put);
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
    t->kind = TRANSFER_NONE;
}

bool transfer_begin(struct session *session, enum transfer_kind kind, const char *name,
                    uint64_t size, struct blob_error *error)
{
    struct server *server = session->server;
    struct transfer *t = &session->transfer;
    if (!idle(t))
        return error_set(error, BLOB_BAD_MESSAGE, "another transfer is under way");
    transfer_end(session);
    sum_restart(t->sum);
    *t = (struct transfer){.kind = kind, .size = size, .put.fd = -1, .fd = -1, .sum = t->sum};
    memcpy(t->name, name, strlen(name) + 1);
    t->copied = copied_so_far(session);
    t->began = progress_now();
    pthread_mutex_lock(&server->lock);
    t->id = ++server->last_transfer;
    pthread_mutex_unlock(&server->lock);
    return true;
}

static bool belongs(const struct job *job, enum transfer_kind kind, struct blob_error *error)
{
    const struct transfer *t = &job->session->transfer;
    if (t->error.status != BLOB_OK && t->id == job->ask.transfer)
        *error = t->error;
    else if (t->kind == TRANSFER_NONE || t->id != job->ask.transfer || (kind && t->kind != kind))
        error_set(error, BLOB_BAD_MESSAGE, "%s: there is no such transfer", job->method->name);
    return error->status == BLOB_OK;
}

bool transfer_check(const struct job *job, enum transfer_kind kind, struct blob_error *error)
{
    return belongs(job, kind, error) &&
           (idle(&job->session->transfer) ||
            error_set(error, BLOB_BAD_MESSAGE, "%s comes in the middle of a transfer",
                      job->method->name));
}

// The piece leaves its place and is answered.
static void end_piece(struct job *job)
{
    struct transfer *t = &job->session->transfer;
    struct blob_answer answer = {0};
    t->jobs[place(t, job->ask.offset)] = NULL;
    job_answer(job, &answer, &t->error);
}

void transfer_fail(struct session *session, const struct blob_error *error)
{
    struct transfer *t = &session->transfer;
    if (t->error.status == BLOB_OK)
        t->error = *error;
    if (t->error.status == BLOB_NO_SPACE || t->error.status == BLOB_BAD_SUM)
        store_put_discard(&t->put);
    // Those that Lien has come back, and are answered then.
    for (unsigned i = 0; i < BLOB_WINDOW; i++) {
        if (t->jobs[i] && !t->jobs[i]->out)
            end_piece(t->jobs[i]);
    }
    if (idle(t))
        transfer_end(session);
}

// What a piece that came back has to say. False: it has been answered, and the transfer is over.
static bool went_well(struct job *job, const char *what)
{
    struct session *session = job->session;
    struct blob_error error = {0};
    if (job->status == 0 && session->transfer.error.status == BLOB_OK)
        return true;
    if (job->status != 0)
        error_set_lien(&error, job->status, "%s %s", job->method->name, what);
    transfer_fail(session, &error); // the job is one that is not out
    return false;
}

// -- Step 4: write it back, 5: answer ---------------------------------------------------------------------------------------------------

static void written_back(struct job *job)
{
    if (went_well(job, "writing to the client"))
        end_piece(job);
}

static bool write_back(struct job *job)
{
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.on_done = job_done;
    opts.on_released = job_back;
    opts.arg = job;
    job_out(job, written_back); // the callbacks may be faster than this function's return
    int rc = lien_request_write(job->request, &job->buf, 1, &opts);
    if (rc == 0)
        return true;
    job_not_out(job, rc);
    return went_well(job, "writing to the client");
}

// -- Step 3: the work ------------------------------------------------------------------------------------------------------------------

// False with *error set.
static bool work(struct job *job, struct blob_error *error)
{
    struct transfer *t = &job->session->transfer;
    void *data;
    int rc = lien_buf_mut(job->buf, &data); // ours, so it may be changed
    if (rc != 0)
        return error_set_lien(error, rc, "a piece");
    bool ok = true;
    if (t->kind == TRANSFER_PUT)
        ok = file_write(t->put.fd, data, job->len, job->ask.offset, error);
    else if (t->kind == TRANSFER_GET)
        ok = file_read(t->fd, data, job->len, job->ask.offset, error);
    if (!ok)
        return false;
    sum_add(t->sum, data, job->len);
    if (t->kind == TRANSFER_SUM) {
        rc = lien_buf_set_len(job->buf, sum_blocks(data, job->len, data));
        ok = rc == 0 || error_set_lien(error, rc, "digests");
    }
    return ok;
}

static void work_in_order(struct session *session)
{
    struct transfer *t = &session->transfer;
    while (t->error.status == BLOB_OK && t->worked < t->started) {
        struct job *job = t->jobs[place(t, t->worked)];
        struct blob_error error = {0};
        if (!job->ready)
            return;
        job->ready = false;
        if (!work(job, &error)) {
            session_say(session, "%s", error.text);
            transfer_fail(session, &error);
            return;
        }
        t->worked += job->len;
        if (t->kind == TRANSFER_PUT)
            end_piece(job);
        else if (!write_back(job))
            return;
    }
}

static void is_ready(struct job *job)
{
    job->ready = true;
    work_in_order(job->session);
}

// -- Steps 1 and 2: memory, and the client's bytes in it ---------------------------------------------------------------------------------

static void was_read(struct job *job)
{
    if (job->status == 0)
        job->status = lien_space_take(job->space, &job->buf, 1);
    if (went_well(job, "reading from the client"))
        is_ready(job);
}

// Validated: on_done says 0 only if the client confirmed, after the last byte was read, that its call still holds them still.
static void read_from_client(struct job *job)
{
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.on_done = job_done;
    opts.on_released = job_back;
    opts.arg = job;
    job->status = lien_space_open(job->session->server->ctx, &job->buf, 1, &job->space);
    if (job->status == 0) {
        job_out(job, was_read);
        int rc = lien_request_read(job->request, job->space, &opts);
        if (rc == 0)
            return;
        job_not_out(job, rc);
    }
    went_well(job, "reading from the client");
}

static void has_memory(struct job *job)
{
    if (job->status == 0) // there may be a little more than was asked for: see transfer_piece()
        job->status = lien_buf_set_len(job->buf, job->len);
    if (!went_well(job, "memory for a piece"))
        return;
    if (job->session->transfer.kind == TRANSFER_GET)
        is_ready(job);
    else
        read_from_client(job);
}

// -- Arrival ---------------------------------------------------------------------------------------------------------------------------

// Nothing that the client says is taken on trust: a piece must lie where pieces lie, inside the window, and its spaces must fit it.
static bool check(struct job *job, struct blob_error *error)
{
    const struct transfer *t = &job->session->transfer;
    uint64_t offset = job->ask.offset;
    if (!belongs(job, job->method->moves, error))
        return false;
    if (offset < t->started || offset >= t->size || (offset - t->begin) % BLOB_PIECE_BYTES != 0 ||
        offset - t->started >= (uint64_t)BLOB_WINDOW * BLOB_PIECE_BYTES ||
        t->jobs[place(t, offset)])
        return error_set(error, BLOB_BAD_MESSAGE, "no piece at %llu is due",
                         (unsigned long long)offset);
    uint64_t left = t->size - offset;
    job->len = left < BLOB_PIECE_BYTES ? (uint32_t)left : BLOB_PIECE_BYTES;
    uint64_t read_len = t->kind == TRANSFER_GET ? 0 : job->len, write_len = 0;
    if (t->kind == TRANSFER_GET)
        write_len = job->len;
    else if (t->kind == TRANSFER_SUM)
        write_len = sum_blocks_len(job->len);
    if (lien_request_read_len(job->request) != read_len ||
        lien_request_write_len(job->request) < write_len)
        return error_set(error, BLOB_BAD_MESSAGE, "the spaces of a piece of %u bytes do not fit it",
                         job->len);
    return true;
}

void transfer_piece(struct job *job)
{
    struct session *session = job->session;
    struct transfer *t = &session->transfer;
    struct blob_error error = {0};
    if (!check(job, &error)) {
        struct blob_answer answer = {0};
        session_say(session, "%s", error.text);
        if (belongs(job, job->method->moves, &(struct blob_error){0}))
            transfer_fail(session, &error);
        job_answer(job, &answer, &error);
        return;
    }
    t->jobs[place(t, job->ask.offset)] = job;
    // Memory is asked for in the file's order: a piece that has it never waits for one that has not.
    while (t->error.status == BLOB_OK && t->started < t->size &&
           (job = t->jobs[place(t, t->started)]) && job->ask.offset == t->started) {
        t->started += job->len;
        // For a sum there must be room for one digest, however short the piece.
        job_memory(job, job->len > BLOB_SUM_BYTES ? job->len : BLOB_SUM_BYTES, has_memory);
    }
}
