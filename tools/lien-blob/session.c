// SPDX-License-Identifier: Apache-2.0
//
// The server's side of the conversation (proto.h), one thread for each client, so that a slow disk or a slow client holds up nobody else. Everything in struct session belongs to
// that thread, except `next`, which is the server's. What a client sends is checked three times: its bytes (proto.c), its place in the conversation (may_come below), its contents
// (store.c, receive.c). A client that breaks the protocol gets one answer and loses its connection; its grants and our READs then end with that.

#include "session.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "peer.h"
#include "progress.h"
#include "stream.h"

// How long a client may be silent. While it puts or gets that is generous even for a tape; between put's question and its start it may be reading gigabytes to compare sums.
#define SILENT_MS   60000u
#define THINKING_MS 900000u
// Bytes read at once to take the sum of a partial object.
#define SCRATCH_BYTES ((size_t)256 << 10)
// Entries looked up for one page of a list; a page may hold fewer, as its bytes are limited too.
#define LIST_ENTRIES 512

enum session_state {
    SESSION_READY,   // for a request. Ended by one, or by silence
    SESSION_OFFERED, // put: answered what we have; the client decides where to begin. Ended as above
    SESSION_PUTTING, // pieces come in; ended by BLOB_PUT_END
    SESSION_GETTING, // pieces go out; ended by the release of the last one
    SESSION_OVER,    // the connection is to be closed
    SESSION_STATES
};

#define TO(state) (1u << (state))

static const unsigned may_enter[SESSION_STATES] = {
    [SESSION_READY] = TO(SESSION_OFFERED) | TO(SESSION_GETTING) | TO(SESSION_OVER),
    [SESSION_OFFERED] = TO(SESSION_PUTTING) | TO(SESSION_OVER),
    [SESSION_PUTTING] = TO(SESSION_READY) | TO(SESSION_OVER),
    [SESSION_GETTING] = TO(SESSION_READY) | TO(SESSION_OVER),
    [SESSION_OVER] = TO(SESSION_OVER),
};

struct session {
    struct peer peer; // first: the arg of the connection's callbacks is the peer
    struct server *server;
    struct session *next;
    enum session_state state;
    char who[96];
    XXH3_state_t *sum;
    struct put put;               // OFFERED, PUTTING
    int fd;                       // GETTING
    char name[BLOB_NAME_MAX + 1]; // of the transfer
    uint64_t size;
    uint64_t copied; // Lien's counter at the beginning of the transfer
    double began;
    struct stream stream; // PUTTING, GETTING
};

static void say(const struct session *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(const struct session *s, const char *format, ...)
{
    char line[2 * BLOB_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fprintf(stderr, "%s: %s\n", s->who, line);
}

static void enter(struct session *s, enum session_state state)
{
    if (!(may_enter[s->state] & TO(state)))
        abort();
    s->state = state;
}

static uint64_t copied_so_far(const struct session *s)
{
    lien_ctx_stats stats = {.size = sizeof(stats)};
    return lien_ctx_stats_get(s->server->ctx, &stats) == 0 ? stats.payload_bytes_copied : 0;
}

// Answers; a client that cannot be answered is over.
static void answer(struct session *s, struct blob_message *message, const struct blob_error *error)
{
    if (error) {
        message->status = error->status;
        memcpy(message->text, error->text, sizeof(message->text));
    }
    struct blob_error failed = {0};
    if (!peer_send(&s->peer, message, NULL, 0, &failed))
        enter(s, SESSION_OVER);
}

// Answers with an error in the middle of a transfer: the conversation cannot go on (proto.h). What was put so far stays for another time, unless it is what fills the
// disk, or is wrong.
static void fail(struct session *s, enum blob_kind kind, const struct blob_error *error)
{
    say(s, "%s", error->text);
    struct blob_message message = {.kind = kind};
    answer(s, &message, error);
    if (error->status == BLOB_NO_SPACE || error->status == BLOB_BAD_SUM)
        store_put_discard(&s->put);
    enter(s, SESSION_OVER);
}

static void begin_transfer(struct session *s, const char *name, uint64_t size)
{
    memcpy(s->name, name, strlen(name) + 1);
    s->size = size;
    s->copied = copied_so_far(s);
    s->began = progress_now();
}

static void say_done(const struct session *s, const char *what)
{
    double seconds = progress_now() - s->began;
    say(s, "%s %s: %llu bytes in %.3f s", what, s->name, (unsigned long long)s->size, seconds);
}

// -- Put ---------------------------------------------------------------------------------------------------------------------------

// Leaves in s->sum, and in the answer, the sum of what is there already.
static bool sum_partial(struct session *s, struct blob_error *error)
{
    sum_restart(s->sum);
    void *scratch = malloc(SCRATCH_BYTES);
    if (!scratch)
        return error_set(error, BLOB_FAILED, "out of memory");
    bool ok = sum_add_file(s->sum, s->put.fd, s->put.have, scratch, SCRATCH_BYTES, error);
    free(scratch);
    return ok;
}

static void on_put(struct session *s, const struct blob_message *request)
{
    struct blob_message reply = {.kind = BLOB_PUT_REPLY};
    struct blob_error error = {0};
    if (!store_put_begin(&s->server->store, request->name, request->size, &s->put, &error)) {
        answer(s, &reply, &error);
        return;
    }
    if (!sum_partial(s, &error)) {
        store_put_discard(&s->put);
        answer(s, &reply, &error);
        return;
    }
    begin_transfer(s, request->name, request->size);
    reply.offset = s->put.have;
    sum_get(s->sum, reply.sum);
    enter(s, SESSION_OFFERED);
    answer(s, &reply, NULL);
}

static void on_put_go(struct session *s, const struct blob_message *request)
{
    struct blob_error error = {0};
    if (request->offset != 0 && request->offset != s->put.have) {
        error_set(&error, BLOB_BAD_MESSAGE, "a put from %llu, where 0 or %llu was offered",
                  (unsigned long long)request->offset, (unsigned long long)s->put.have);
        fail(s, BLOB_PUT_DONE, &error);
        return;
    }
    if (request->offset == 0) {
        sum_restart(s->sum);
        if (s->put.have > 0 && !store_put_restart(&s->put, &error)) {
            fail(s, BLOB_PUT_DONE, &error);
            return;
        }
    }
    enter(s, SESSION_PUTTING);
    stream_init(&s->stream, &s->peer, s->put.fd, s->sum, s->size, request->offset);
}

static void on_put_end(struct session *s, const struct blob_message *request)
{
    struct blob_error error = {0};
    uint8_t sum[BLOB_SUM_BYTES];
    sum_get(s->sum, sum);
    if (!stream_finished(&s->stream))
        error_set(&error, BLOB_BAD_MESSAGE, "the put of '%s' ended at %llu of %llu bytes",
                  s->put.name, (unsigned long long)s->stream.finished, (unsigned long long)s->size);
    else if (memcmp(sum, request->sum, BLOB_SUM_BYTES) != 0)
        error_set(&error, BLOB_BAD_SUM, "'%s' arrived with a wrong checksum", s->put.name);
    else
        store_put_finish(&s->put, s->size, sum, &error);
    if (error.status != BLOB_OK) {
        fail(s, BLOB_PUT_DONE, &error);
        return;
    }
    say_done(s, "put");
    struct blob_message reply = {.kind = BLOB_PUT_DONE, .copied = copied_so_far(s) - s->copied};
    enter(s, SESSION_READY);
    answer(s, &reply, NULL);
}

static void go_on_putting(struct session *s)
{
    if (s->stream.error.status != BLOB_OK)
        fail(s, BLOB_PUT_DONE, &s->stream.error);
}

static void on_piece(struct session *s, const struct blob_message *request)
{
    stream_receive(&s->stream, request);
    go_on_putting(s);
}

// -- Get ---------------------------------------------------------------------------------------------------------------------------

static void end_get(struct session *s)
{
    struct blob_message end = {.kind = BLOB_GET_END, .copied = copied_so_far(s) - s->copied};
    sum_get(s->sum, end.sum);
    close(s->fd);
    s->fd = -1;
    enter(s, SESSION_READY);
    answer(s, &end, NULL);
}

static void go_on_getting(struct session *s)
{
    stream_send(&s->stream);
    if (s->stream.error.status != BLOB_OK)
        fail(s, BLOB_GET_END, &s->stream.error);
    else if (stream_finished(&s->stream)) {
        say_done(s, "get");
        end_get(s);
    }
}

static void on_get(struct session *s, const struct blob_message *request)
{
    struct blob_message reply = {.kind = BLOB_GET_REPLY};
    struct blob_error error = {0};
    struct object_info info;
    if (!store_get(&s->server->store, request->name, &s->fd, &info, &error)) {
        answer(s, &reply, &error);
        return;
    }
    begin_transfer(s, request->name, info.size);
    sum_restart(s->sum);
    stream_init(&s->stream, &s->peer, s->fd, s->sum, info.size, 0);
    reply.size = info.size;
    reply.mtime = info.mtime;
    reply.flags = info.flags;
    memcpy(reply.sum, info.sum, BLOB_SUM_BYTES);
    enter(s, SESSION_GETTING);
    answer(s, &reply, NULL);
    if (s->state == SESSION_GETTING)
        go_on_getting(s);
}

// -- Small requests ------------------------------------------------------------------------------------------------------------------

static void on_stat(struct session *s, const struct blob_message *request)
{
    struct blob_message reply = {.kind = BLOB_STAT_REPLY};
    struct blob_error error = {0};
    struct object_info info = {0};
    store_stat(&s->server->store, request->name, &info, &error);
    reply.flags = info.flags;
    reply.size = info.size;
    reply.offset = info.partial;
    reply.mtime = info.mtime;
    memcpy(reply.sum, info.sum, BLOB_SUM_BYTES);
    answer(s, &reply, &error);
}

static void on_remove(struct session *s, const struct blob_message *request)
{
    struct blob_message reply = {.kind = BLOB_REMOVE_REPLY};
    struct blob_error error = {0};
    if (store_remove(&s->server->store, request->name, &error))
        say(s, "rm %s", request->name);
    answer(s, &reply, &error);
}

// Encodes as many entries as fit into the buffer; returns how many, and sets the buffer's length.
static bool fill_list(lien_buf *buf, const struct blob_entry *entries, size_t n, uint64_t *fitted)
{
    void *data;
    if (lien_buf_mut(buf, &data) != 0)
        return false;
    size_t used = 0;
    *fitted = 0;
    for (size_t i = 0; i < n; i++, ++*fitted) {
        size_t step = proto_entry_encode(&entries[i], (uint8_t *)data + used,
                                         BLOB_LIST_BYTES - used);
        if (step == 0)
            break;
        used += step;
    }
    return lien_buf_set_len(buf, used) == 0;
}

// The list is the body of the message: the client READs it from our buffer, which is ours again when peer_send() returns.
static void send_list(struct session *s, const struct blob_entry *entries, size_t n, bool more,
                      struct blob_error *error)
{
    struct blob_message reply = {.kind = BLOB_LIST_REPLY, .flags = more ? BLOB_MORE : 0};
    if (n == 0) {
        answer(s, &reply, NULL);
        return;
    }
    lien_buf *buf;
    int rc = lien_pool_alloc_wait(s->server->pool, BLOB_LIST_BYTES, SILENT_MS, &buf);
    if (rc != 0) {
        error_set_lien(error, rc, "memory for the list");
        return;
    }
    if (!fill_list(buf, entries, n, &reply.size))
        error_set(error, BLOB_FAILED, "a fresh buffer is not ours");
    else if (!peer_send(&s->peer, &reply, &buf, 1, error))
        enter(s, SESSION_OVER);
    lien_buf_free(&buf);
}

static void on_list(struct session *s, const struct blob_message *request)
{
    struct blob_error error = {0};
    size_t n = 0;
    bool more = false;
    struct blob_entry *entries = calloc(LIST_ENTRIES, sizeof(*entries));
    if (!entries)
        error_set(&error, BLOB_FAILED, "out of memory");
    else if (store_list(&s->server->store, request->name, entries, LIST_ENTRIES, &n, &more, &error))
        send_list(s, entries, n, more, &error);
    free(entries);
    struct blob_message reply = {.kind = BLOB_LIST_REPLY};
    if (error.status != BLOB_OK && s->state != SESSION_OVER)
        answer(s, &reply, &error);
}

// -- The conversation ----------------------------------------------------------------------------------------------------------------

// What may come in which state, and who deals with it. Kinds that are not here are the server's own words: a client that says them breaks the protocol.
static const struct {
    enum session_state state;
    void (*handle)(struct session *s, const struct blob_message *request);
} may_come[BLOB_KINDS] = {
    [BLOB_PUT] = {SESSION_READY, on_put},       [BLOB_PUT_GO] = {SESSION_OFFERED, on_put_go},
    [BLOB_PIECE] = {SESSION_PUTTING, on_piece}, [BLOB_PUT_END] = {SESSION_PUTTING, on_put_end},
    [BLOB_GET] = {SESSION_READY, on_get},       [BLOB_STAT] = {SESSION_READY, on_stat},
    [BLOB_LIST] = {SESSION_READY, on_list},     [BLOB_REMOVE] = {SESSION_READY, on_remove},
};

static void on_request(struct session *s, lien_msg *message)
{
    const void *head;
    size_t len;
    struct blob_message request;
    struct blob_error error = {0};
    if (lien_msg_head(message, &head, &len) != 0 || !proto_decode(head, len, &request))
        error_set(&error, BLOB_BAD_MESSAGE, "a malformed message");
    else if (!may_come[request.kind].handle || may_come[request.kind].state != s->state)
        error_set(&error, BLOB_BAD_MESSAGE, "%s does not belong here",
                  proto_kind_name(request.kind));
    if (error.status == BLOB_OK)
        may_come[request.kind].handle(s, &request);
    else
        fail(s, BLOB_REFUSED, &error);
}

static void on_piece_event(struct session *s)
{
    switch (s->state) {
    case SESSION_PUTTING:
        go_on_putting(s);
        break;
    case SESSION_GETTING:
        go_on_getting(s);
        break;
    case SESSION_READY:
    case SESSION_OFFERED:
    case SESSION_OVER:
    case SESSION_STATES:
        break;
    }
}

// Nothing came for long. Not the client's fault while a piece waits for memory that other clients hold.
static void on_silence(struct session *s)
{
    if (s->state == SESSION_PUTTING || s->state == SESSION_GETTING) {
        for (unsigned i = 0; i < BLOB_WINDOW; i++) {
            if (s->stream.pieces[i].state == PIECE_WAITS)
                return;
        }
    }
    say(s, "silent for too long");
    enter(s, SESSION_OVER);
}

static void step(struct session *s)
{
    bool piece;
    struct event *event = peer_wait(&s->peer, s->state == SESSION_OFFERED ? THINKING_MS : SILENT_MS,
                                    &piece);
    if (piece) {
        on_piece_event(s);
        return;
    }
    if (!event) {
        on_silence(s);
        return;
    }
    switch (event->kind) {
    case EVENT_MESSAGE:
        on_request(s, event->message);
        peer_free_message(&event);
        break;
    case EVENT_LOST:
        if (event->status != LIEN_ECLOSED)
            say(s, "lost: %s", lien_strerror(event->status));
        enter(s, SESSION_OVER);
        break;
    case EVENT_STOP:
        enter(s, SESSION_OVER);
        break;
    case EVENT_OPEN:
    case EVENT_CLOSED:
    case EVENT_PIECE:
        break;
    }
}

// -- Life --------------------------------------------------------------------------------------------------------------------------

static void leave(struct session *s)
{
    struct server *server = s->server;
    pthread_mutex_lock(&server->lock);
    struct session **at = &server->sessions;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&server->lock);
    // Nobody can find it any more, so peer_stop() cannot come.
    peer_destroy(&s->peer);
    sum_free(&s->sum);
    free(s);
    pthread_mutex_lock(&server->lock);
    server->count--;
    pthread_cond_signal(&server->left);
    pthread_mutex_unlock(&server->lock);
}

static void *run(void *arg)
{
    struct session *s = arg;
    lien_conn_info info = {.size = sizeof(info)};
    if (lien_conn_info_get(s->peer.conn, &info) == 0)
        memcpy(s->who, info.peer, sizeof(s->who));
    s->who[sizeof(s->who) - 1] = '\0';
    while (s->state != SESSION_OVER)
        step(s);
    // First the connection: after it nothing of ours is lent or written into. Then the files.
    peer_close(&s->peer);
    if (s->stream.peer)
        stream_end(&s->stream);
    store_put_park(&s->put);
    if (s->fd >= 0)
        close(s->fd);
    leave(s);
    return NULL;
}

static bool start_thread(struct session *s)
{
    pthread_attr_t attr;
    pthread_t thread;
    if (pthread_attr_init(&attr) != 0)
        return false;
    bool ok = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0 &&
              pthread_create(&thread, &attr, run, s) == 0;
    pthread_attr_destroy(&attr);
    return ok;
}

static struct session *new_session(struct server *server, lien_conn *conn)
{
    struct session *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->server = server;
    s->fd = -1;
    s->put.fd = -1;
    s->sum = sum_new();
    if (!s->sum || !peer_init(&s->peer, server->ctx, server->pool)) {
        sum_free(&s->sum);
        free(s);
        return NULL;
    }
    s->peer.conn = conn;
    return s;
}

void *session_start(struct server *server, lien_conn *conn)
{
    struct session *s = new_session(server, conn);
    if (!s)
        return NULL;
    pthread_mutex_lock(&server->lock);
    bool taken = !server->stopping && server->count < server->max && start_thread(s);
    if (taken) { // it cannot leave before we let go of the lock
        s->next = server->sessions;
        server->sessions = s;
        server->count++;
    }
    pthread_mutex_unlock(&server->lock);
    if (taken)
        return &s->peer;
    s->peer.conn = NULL;
    peer_destroy(&s->peer);
    sum_free(&s->sum);
    free(s);
    return NULL;
}

void session_stop_all(struct server *server)
{
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    for (struct session *s = server->sessions; s; s = s->next)
        peer_stop(&s->peer);
    while (server->count > 0)
        pthread_cond_wait(&server->left, &server->lock);
    pthread_mutex_unlock(&server->lock);
}
