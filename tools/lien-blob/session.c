// SPDX-License-Identifier: Apache-2.0
//
// Sessions: where calls meet the thread that serves them. See server.h for threads and locks. A session ends in this order: its transfer is over, its connection closes, the jobs that Lien
// still had come back, and only then its memory goes: no callback can know it any more.

#include "server.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// How long a client may ask nothing. After the offer of a put to be resumed it may be reading gigabytes to compare sums.
#define SILENT_MS   60000u
#define THINKING_MS 900000u

void session_say(const struct session *session, const char *format, ...)
{
    char line[2 * BLOB_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fprintf(stderr, "%s: %s\n", session->who, line);
}

// -- The queue: filled by any thread, emptied by the session's -------------------------------------------------------------------------

static void push(struct session *session, struct job *job)
{
    pthread_mutex_lock(&session->lock);
    job->next = NULL;
    *session->tail = job;
    session->tail = &job->next;
    pthread_cond_signal(&session->filled);
    pthread_mutex_unlock(&session->lock);
}

static void flag(struct session *session, enum session_flag flag)
{
    pthread_mutex_lock(&session->lock);
    session->flags |= flag;
    pthread_cond_signal(&session->filled);
    pthread_mutex_unlock(&session->lock);
}

// The next job. NULL: a flag was raised, which is now in `seen`, or `ms` passed (then *late).
static struct job *take(struct session *session, uint32_t ms, bool *late)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += ms / 1000;
    int rc = 0;
    pthread_mutex_lock(&session->lock);
    while (!session->head && session->flags == session->seen && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&session->filled, &session->lock, &deadline);
    struct job *job = session->head;
    if (job) {
        session->head = job->next;
        if (!session->head)
            session->tail = &session->head;
    }
    *late = !job && session->flags == session->seen;
    session->seen = session->flags;
    pthread_mutex_unlock(&session->lock);
    if (job && job->out) {
        job->out = false;
        session->out--;
    }
    return job;
}

// -- A call begins, on the session's thread ---------------------------------------------------------------------------------------------

// The arguments are checked here, once for all methods.
static void begin(struct job *job)
{
    const void *args;
    size_t len;
    struct blob_answer answer = {0};
    struct blob_error error = {0};
    if (job->session->over)
        error_set(&error, BLOB_GONE, "the server is stopping");
    else if (lien_request_args(job->request, &args, &len) != 0 ||
             !proto_decode_ask(args, len, &job->ask))
        error_set(&error, BLOB_BAD_MESSAGE, "malformed arguments of %s", job->method->name);
    if (error.status == BLOB_OK)
        job->method->step(job);
    else
        job_answer(job, &answer, &error);
}

// -- Callbacks of Lien, on its dispatch threads ----------------------------------------------------------------------------------------

static struct session *find(const struct server *server, const lien_conn *conn)
{
    struct session *session = server->sessions;
    while (session && session->conn != conn)
        session = session->next;
    return session;
}

void session_handle(lien_request *request, lien_conn *conn, void *arg)
{
    const struct entry *entry = arg;
    struct server *server = entry->server;
    struct job *job = calloc(1, sizeof(*job));
    pthread_mutex_lock(&server->lock);
    struct session *session = find(server, conn);
    if (job && session) {
        *job = (struct job){
            .session = session, .request = request, .method = entry->method, .step = begin};
        push(session, job);
    }
    pthread_mutex_unlock(&server->lock);
    if (job && session)
        return;
    free(job);
    lien_request_drop(&request); // no memory, or the session is leaving
}

static void on_lost(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    (void)status;
    flag(arg, SESSION_LOST);
}

// LIEN_EQUARANTINED: some memory of this connection could not be proved free. Lien keeps it out of use by itself and has logged it; there is nothing to do here.
static void on_closed(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    (void)status;
    flag(arg, SESSION_CLOSED);
}

void session_conn_opts(lien_conn_opts *opts, struct server *server)
{
    lien_conn_opts_init(opts);
    opts->pool = server->pool;
    opts->service = &server->service;
    opts->on_lost = on_lost;
    opts->on_closed = on_closed;
}

// -- Jobs ------------------------------------------------------------------------------------------------------------------------------

void job_out(struct job *job, job_step *step)
{
    job->step = step;
    job->out = true;
    job->session->out++;
}

void job_not_out(struct job *job, int status)
{
    job->status = status;
    job->out = false;
    job->session->out--;
}

// The result is known. The memory may still be lent (a READ that timed out can land later), so nothing else happens here.
void job_done(void *arg, int status)
{
    struct job *job = arg;
    job->status = status;
}

// Now the memory is ours again; or, with LIEN_EQUARANTINED, never.
void job_back(void *arg, int status)
{
    struct job *job = arg;
    if (job->status == 0)
        job->status = status;
    push(job->session, job);
}

static void on_memory(void *arg, int status, lien_buf *buf)
{
    struct job *job = arg;
    job->buf = buf;
    job_back(job, status);
}

void job_memory(struct job *job, size_t len, job_step *step)
{
    lien_pool *pool = job->session->server->pool;
    int rc = lien_pool_alloc(pool, len, &job->buf);
    if (rc == LIEN_ELIMIT) { // all of it is in use: stand in line
        job_out(job, step);
        rc = lien_pool_alloc_start(pool, len, on_memory, job, NULL);
        if (rc == 0)
            return;
        job_not_out(job, rc);
    }
    job->status = rc;
    step(job);
}

void job_answer(struct job *job, struct blob_answer *answer, const struct blob_error *error)
{
    uint8_t bytes[BLOB_MESSAGE_MAX];
    if (error && error->status != BLOB_OK) {
        *answer = (struct blob_answer){.status = error->status};
        memcpy(answer->text, error->text, sizeof(answer->text));
    }
    // A body is moved out of the job. A call that nobody waits for any more is answered like any other.
    size_t len = proto_encode_answer(answer, bytes), n = job->body && answer->status == BLOB_OK;
    int rc = lien_request_reply_body(&job->request, 0, bytes, len, &job->buf, n);
    if (rc != 0) {
        session_say(job->session, "answering %s: %s", job->method->name, lien_strerror(rc));
        lien_request_drop(&job->request);
    }
    // Both take NULL. Neither is early, even if the memory should still be lent: then Lien puts the freeing off until it is not.
    lien_space_free(&job->space);
    lien_buf_free(&job->buf);
    free(job);
}

// -- Life --------------------------------------------------------------------------------------------------------------------------

static void work(struct session *session)
{
    while (!session->over) {
        const struct transfer *t = &session->transfer;
        bool offered = t->kind == TRANSFER_PUT && t->begin > 0 && t->started == t->begin;
        bool late;
        struct job *job = take(session, offered ? THINKING_MS : SILENT_MS, &late);
        if (job)
            job->step(job);
        else if (!late)
            session->over = true; // lost, or told to stop
        else if (session->out ==
                 0) { // else a piece waits for memory that others hold: not the client's fault
            session_say(session, "silent for too long");
            session->over = true;
        }
    }
}

// Drops what came too late to be begun. Nobody can find the session any more, so nothing new comes.
static void drop_late(struct session *session)
{
    bool late;
    for (struct job *job; (job = take(session, 0, &late));) {
        lien_request_drop(&job->request);
        free(job);
    }
}

static void leave(struct session *session)
{
    struct server *server = session->server;
    pthread_mutex_lock(&server->lock);
    struct session **at = &server->sessions;
    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    pthread_mutex_unlock(&server->lock);
    drop_late(session);
    sum_free(&session->transfer.sum);
    pthread_cond_destroy(&session->filled);
    pthread_mutex_destroy(&session->lock);
    free(session);
    pthread_mutex_lock(&server->lock);
    server->count--;
    pthread_cond_signal(&server->left);
    pthread_mutex_unlock(&server->lock);
}

static void *run(void *arg)
{
    struct session *session = arg;
    lien_conn_info info = {.size = sizeof(info)};
    if (lien_conn_info_get(session->conn, &info) == 0)
        snprintf(session->who, sizeof(session->who), "%s", info.peer);
    work(session);
    struct blob_error error = {0};
    error_set(&error, BLOB_GONE,
              session->seen & SESSION_STOPPED ? "the server is stopping" : "the connection ended");
    transfer_fail(session, &error);
    lien_conn *conn = session->conn; // the field stays, for find()
    lien_conn_close(&conn);
    while (!(session->seen & SESSION_CLOSED) || session->out > 0) {
        bool late;
        struct job *job = take(session, SILENT_MS, &late);
        if (job)
            job->step(job);
    }
    transfer_end(session);
    leave(session);
    return NULL;
}

static bool start_thread(struct session *session)
{
    pthread_attr_t attr;
    pthread_t thread;
    if (pthread_attr_init(&attr) != 0)
        return false;
    bool ok = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0 &&
              pthread_create(&thread, &attr, run, session) == 0;
    pthread_attr_destroy(&attr);
    return ok;
}

static bool init_queue(struct session *session)
{
    pthread_condattr_t attr;
    session->tail = &session->head;
    if (pthread_condattr_init(&attr) != 0)
        return false;
    bool ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
              pthread_cond_init(&session->filled, &attr) == 0;
    pthread_condattr_destroy(&attr);
    if (ok && pthread_mutex_init(&session->lock, NULL) != 0) {
        pthread_cond_destroy(&session->filled);
        ok = false;
    }
    return ok;
}

struct session *session_start(struct server *server, lien_conn *conn)
{
    struct session *session = calloc(1, sizeof(*session));
    if (!session)
        return NULL;
    *session = (struct session){.server = server, .conn = conn, .who = "?"};
    session->transfer.fd = session->transfer.put.fd = -1;
    session->transfer.sum = sum_new();
    if (!session->transfer.sum || !init_queue(session)) {
        sum_free(&session->transfer.sum);
        free(session);
        return NULL;
    }
    pthread_mutex_lock(&server->lock);
    bool taken = !server->stopping && server->count < server->max && start_thread(session);
    if (taken) { // it cannot leave before we let go of the lock
        session->next = server->sessions;
        server->sessions = session;
        server->count++;
    }
    pthread_mutex_unlock(&server->lock);
    if (taken)
        return session;
    pthread_cond_destroy(&session->filled);
    pthread_mutex_destroy(&session->lock);
    sum_free(&session->transfer.sum);
    free(session);
    return NULL;
}

void session_stop_all(struct server *server)
{
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    for (struct session *session = server->sessions; session; session = session->next)
        flag(session, SESSION_STOPPED);
    while (server->count > 0)
        pthread_cond_wait(&server->left, &server->lock);
    pthread_mutex_unlock(&server->lock);
}
