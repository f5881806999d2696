// SPDX-License-Identifier: Apache-2.0
//
// The methods of the server but for the three that move pieces (transfer.c). All run on the session's thread: they may block on the disk.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "progress.h"
#include "server.h"

// Bytes read at once to take the sum of a partial object.
#define SCRATCH_BYTES ((size_t)256 << 10)
// Entries looked up for one page of a list; a page may hold fewer, as its bytes are limited too.
#define LIST_ENTRIES 512

static void say_done(const struct session *session, const char *what)
{
    const struct transfer *t = &session->transfer;
    session_say(session, "%s %s: %llu bytes in %.3f s", what, t->name, (unsigned long long)t->size,
                progress_now() - t->began);
}

// -- Put -------------------------------------------------------------------------------------------------------------------------------

// Takes the sum of what is there already.
static bool sum_partial(struct transfer *t, struct blob_error *error)
{
    void *scratch = malloc(SCRATCH_BYTES);
    if (!scratch)
        return error_set(error, BLOB_FAILED, "out of memory");
    bool ok = sum_add_file(t->sum, t->put.fd, t->put.have, scratch, SCRATCH_BYTES, error);
    free(scratch);
    return ok;
}

static void put(struct job *job)
{
    struct transfer *t = &job->session->transfer;
    struct blob_answer answer = {0};
    struct blob_error error = {0};
    if (transfer_begin(job->session, TRANSFER_PUT, job->ask.name, job->ask.size, &error) &&
        store_put_begin(&job->session->server->store, t->name, t->size, &t->put, &error) &&
        sum_partial(t, &error)) {
        answer.transfer = t->id;
        answer.offset = t->begin = t->started = t->worked = t->put.have;
        sum_get(t->sum, answer.sum);
    } else if (error.status != BLOB_BAD_MESSAGE)
        transfer_fail(job->session, &error);
    job_answer(job, &answer, &error);
}

static void restart(struct job *job)
{
    struct transfer *t = &job->session->transfer;
    struct blob_answer answer = {0};
    struct blob_error error = {0};
    if (transfer_check(job, TRANSFER_PUT, &error)) {
        sum_restart(t->sum);
        t->begin = t->started = t->worked = 0;
        if (!store_put_restart(&t->put, &error))
            transfer_fail(job->session, &error);
    }
    job_answer(job, &answer, &error);
}

static void commit(struct job *job)
{
    struct session *session = job->session;
    struct transfer *t = &session->transfer;
    struct blob_answer answer = {0};
    struct blob_error error = {0};
    uint8_t sum[BLOB_SUM_BYTES];
    sum_get(t->sum, sum);
    if (!transfer_check(job, TRANSFER_PUT, &error))
        ;
    else if (t->worked != t->size)
        error_set(&error, BLOB_BAD_MESSAGE, "the put of '%s' ended at %llu of %llu bytes", t->name,
                  (unsigned long long)t->worked, (unsigned long long)t->size);
    else if (memcmp(sum, job->ask.sum, BLOB_SUM_BYTES) != 0)
        error_set(&error, BLOB_BAD_SUM, "'%s' arrived with a wrong checksum", t->name);
    else if (store_put_finish(&t->put, t->size, sum, &error))
        say_done(session, "put");
    if (error.status != BLOB_OK) {
        session_say(session, "%s", error.text);
        transfer_fail(session, &error);
    } else {
        answer.copied = transfer_copied(session);
        transfer_end(session);
    }
    job_answer(job, &answer, &error);
}

// -- Get and sum -----------------------------------------------------------------------------------------------------------------------

static void get(struct job *job)
{
    struct transfer *t = &job->session->transfer;
    struct object_info info = {0};
    struct blob_answer answer = {0};
    struct blob_error error = {0};
    if (transfer_begin(job->session, TRANSFER_GET, job->ask.name, 0, &error) &&
        store_get(&job->session->server->store, t->name, &t->fd, &info, &error)) {
        t->size = info.size;
        answer = (struct blob_answer){
            .transfer = t->id, .size = info.size, .mtime = info.mtime, .flags = info.flags};
        memcpy(answer.sum, info.sum, BLOB_SUM_BYTES);
    } else if (error.status != BLOB_BAD_MESSAGE)
        transfer_fail(job->session, &error);
    job_answer(job, &answer, &error);
}

static void sum(struct job *job)
{
    struct blob_answer answer = {0};
    struct blob_error error = {0};
    if (transfer_begin(job->session, TRANSFER_SUM, "a client's file", job->ask.size, &error))
        answer.transfer = job->session->transfer.id;
    job_answer(job, &answer, &error);
}

static void end(struct job *job)
{
    struct transfer *t = &job->session->transfer;
    struct blob_answer answer = {0};
    struct blob_error error = {0};
    if (transfer_check(job, TRANSFER_NONE, &error)) {
        answer.copied = transfer_copied(job->session);
        sum_get(t->sum, answer.sum);
        say_done(job->session, t->kind == TRANSFER_GET ? "get" : "sum");
        transfer_end(job->session);
    }
    job_answer(job, &answer, &error);
}

// -- Small ones ------------------------------------------------------------------------------------------------------------------------

static void look(struct job *job)
{
    struct object_info info = {0};
    struct blob_error error = {0};
    store_stat(&job->session->server->store, job->ask.name, &info, &error);
    struct blob_answer answer = {
        .flags = info.flags, .size = info.size, .offset = info.partial, .mtime = info.mtime};
    memcpy(answer.sum, info.sum, BLOB_SUM_BYTES);
    job_answer(job, &answer, &error);
}

static void rm(struct job *job)
{
    struct blob_answer answer = {0};
    struct blob_error error = {0};
    if (store_remove(&job->session->server->store, job->ask.name, &error))
        session_say(job->session, "rm %s", job->ask.name);
    job_answer(job, &answer, &error);
}

// Encodes as many entries as fit into the buffer, and sets its length; returns how many.
static uint64_t fill_list(lien_buf *buf, const struct blob_entry *entries, size_t n,
                          struct blob_error *error)
{
    void *data;
    size_t used = 0, i = 0;
    int rc = lien_buf_mut(buf, &data);
    for (size_t step = 1; rc == 0 && i < n && step > 0; used += step, i += step > 0)
        step = proto_entry_encode(&entries[i], (uint8_t *)data + used, BLOB_LIST_BYTES - used);
    if (rc == 0)
        rc = lien_buf_set_len(buf, used);
    if (rc != 0)
        error_set_lien(error, rc, "the list");
    return i;
}

// The list is the body of the answer: the client READs it from our buffer, which Lien frees afterwards.
static void list(struct job *job)
{
    struct blob_answer answer = {0};
    struct blob_error error = {0};
    size_t n = 0;
    bool more = false;
    struct blob_entry *entries = calloc(LIST_ENTRIES, sizeof(*entries));
    if (job->status != 0)
        error_set_lien(&error, job->status, "memory for the list");
    else if (!entries)
        error_set(&error, BLOB_FAILED, "out of memory");
    else if (store_list(&job->session->server->store, job->ask.name, entries, LIST_ENTRIES, &n,
                        &more, &error))
        answer.size = fill_list(job->buf, entries, n, &error);
    free(entries);
    if (more || answer.size < n)
        answer.flags = BLOB_MORE;
    job->body = answer.size > 0;
    job_answer(job, &answer, &error);
}

static void ls(struct job *job)
{
    job_memory(job, BLOB_LIST_BYTES, list);
}

const struct method blob_methods[BLOB_METHODS] = {
    {.name = "blob/put", .step = put},
    {.name = "blob/restart", .step = restart},
    {.name = "blob/write", .step = transfer_piece, .moves = TRANSFER_PUT},
    {.name = "blob/commit", .step = commit},
    {.name = "blob/get", .step = get},
    {.name = "blob/read", .step = transfer_piece, .moves = TRANSFER_GET},
    {.name = "blob/sum", .step = sum},
    {.name = "blob/digest", .step = transfer_piece, .moves = TRANSFER_SUM},
    {.name = "blob/end", .step = end},
    {.name = "blob/stat", .step = look},
    {.name = "blob/ls", .step = ls},
    {.name = "blob/rm", .step = rm},
};
