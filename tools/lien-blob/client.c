// SPDX-License-Identifier: Apache-2.0
//
// Client commands. See client.h. What the server says is checked like anything from the wire: a wrong kind, a body nobody asked for or a malformed message end the connection.

#include "client.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "signals.h"
#include "store.h"

// Memory of a client, whatever the size of the file: the window of a transfer, and room for a page of a list.
#define POOL_RESERVE ((size_t)BLOB_LIST_BYTES * 4)
#define POOL_LIMIT   ((size_t)BLOB_WINDOW * BLOB_PIECE_BYTES + 2 * POOL_RESERVE)
// How long to listen for the server's reason after a connection broke.
#define REASON_MS 500u

// -- Connection ----------------------------------------------------------------------------------------------------------------------

bool client_connect(struct client *client, struct blob_error *error)
{
    if (client->connected)
        return true;
    client->connected = peer_connect(&client->peer, client->args->address, error);
    if (!client->connected)
        client_disconnect(client);
    return client->connected;
}

void client_disconnect(struct client *client)
{
    peer_close(&client->peer);
    if (client->stream.peer)
        stream_end(&client->stream);
    client->peer.over = 0;
    client->connected = false;
}

static bool decode(lien_msg *message, struct blob_message *out, struct blob_error *error)
{
    const void *head;
    size_t len;
    if (lien_msg_head(message, &head, &len) == 0 && proto_decode(head, len, out))
        return true;
    return error_set(error, BLOB_BAD_MESSAGE, "the server sent a malformed message");
}

static bool check_kind(const struct blob_message *message, enum blob_kind kind,
                       enum blob_kind other, struct blob_error *error)
{
    if (message->status != BLOB_OK)
        return error_set(error, message->status, "the server says: %s", message->text);
    if (message->kind == kind || message->kind == other)
        return true;
    return error_set(error, BLOB_BAD_MESSAGE, "the server sent %s instead of %s",
                     proto_kind_name(message->kind), proto_kind_name(kind));
}

// Waits for whatever comes. *got: a message, decoded and checked. Frees the event.
static bool hear(struct client *client, enum blob_kind kind, enum blob_kind other,
                 struct blob_message *message, lien_buf **body, bool *got, struct blob_error *error)
{
    bool piece;
    *got = false;
    // No timeout of ours: a server may take its time over a disk; one that is gone, Lien notices by its heartbeat.
    struct event *event = peer_wait(&client->peer, LIEN_FOREVER, &piece);
    if (piece)
        return true;
    switch (event->kind) {
    case EVENT_MESSAGE:
        *got = decode(event->message, message, error) && check_kind(message, kind, other, error);
        if (*got && body)
            lien_msg_take_body(event->message, body); // LIEN_ENOTFOUND: it stays NULL
        peer_free_message(&event);
        return *got;
    case EVENT_LOST:
        error_set_lien(error, event->status, "the server is gone");
        error->status = BLOB_GONE;
        return false;
    case EVENT_STOP:
        return error_set(error, BLOB_INTERRUPTED, "interrupted");
    case EVENT_OPEN:
    case EVENT_PIECE:
    case EVENT_CLOSED:
        break;
    }
    return true;
}

bool client_wait(struct client *client, enum blob_kind kind, enum blob_kind other,
                 struct blob_message *message, bool *got, struct blob_error *error)
{
    return hear(client, kind, other, message, NULL, got, error);
}

void client_hear_why(struct client *client, struct blob_error *error)
{
    if (error->status != BLOB_GONE || client->peer.over != 0)
        return;
    for (;;) {
        bool piece;
        struct event *event = peer_wait(&client->peer, REASON_MS, &piece);
        if (piece)
            continue;
        if (!event || event->kind != EVENT_MESSAGE)
            return; // lost or silent: no reason was given
        struct blob_message message;
        struct blob_error why = {0};
        if (decode(event->message, &message, &why) && message.status != BLOB_OK) {
            *error = (struct blob_error){0};
            error_set(error, message.status, "the server says: %s", message.text);
        }
        peer_free_message(&event);
    }
}

bool client_ask(struct client *client, const struct blob_message *request, enum blob_kind kind,
                struct blob_message *reply, lien_buf **body, struct blob_error *error)
{
    if (body)
        *body = NULL;
    if (!peer_send(&client->peer, request, NULL, 0, error)) {
        client_hear_why(client, error);
        return false;
    }
    for (bool got = false; !got;) {
        if (!hear(client, kind, kind, reply, body, &got, error))
            return false;
    }
    return true;
}

// -- The line at the end --------------------------------------------------------------------------------------------------------------

static uint64_t copied_so_far(const struct client *client)
{
    lien_ctx_stats stats = {.size = sizeof(stats)};
    return lien_ctx_stats_get(client->ctx, &stats) == 0 ? stats.payload_bytes_copied : 0;
}

void client_begin(struct client *client)
{
    client->copied = copied_so_far(client);
    client->began = progress_now();
}

static const char *path_name(lien_path path)
{
    switch (path) {
    case LIEN_PATH_NONE:
        return "none";
    case LIEN_PATH_RDMA:
        return "rdma";
    case LIEN_PATH_KERNEL:
        return "kernel";
    case LIEN_PATH_INLINE:
        return "inline";
    case LIEN_PATH_SIM:
        return "sim";
    }
    return "unknown";
}

void client_report(const struct client *client, const char *what, const char *name, uint64_t bytes,
                   uint64_t copied_there)
{
    double seconds = progress_now() - client->began;
    double rate = seconds > 0 ? (double)bytes / seconds / 1e9 : 0;
    uint64_t copied = copied_so_far(client) - client->copied + copied_there;
    lien_conn_info info = {.size = sizeof(info)};
    if (lien_conn_info_get(client->peer.conn, &info) != 0)
        info.provider[0] = '\0';
    printf(client->args->tabs ? "%s\t%s\t%" PRIu64 "\t%.3f\t%.3f\t%s\t%s\t%" PRIu64 "\n"
                              : "%s %s: %" PRIu64 " bytes in %.3f s, %.3f GB/s, provider %s, path "
                                "%s, payload bytes copied by Lien: %" PRIu64 "\n",
           what, name, bytes, seconds, rate, info.provider, path_name(info.path), copied);
    fflush(stdout);
}

// -- ls, stat, rm ----------------------------------------------------------------------------------------------------------------------

static bool set_name(struct blob_message *request, const char *name, struct blob_error *error)
{
    if (!store_check_name(name, error))
        return false;
    memcpy(request->name, name, strlen(name) + 1);
    return true;
}

static void print_time(int64_t seconds)
{
    char text[32] = "?";
    struct tm tm;
    time_t when = (time_t)seconds;
    if (localtime_r(&when, &tm))
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm);
    fputs(text, stdout);
}

static bool run_stat(struct client *client, struct blob_error *error)
{
    struct blob_message request = {.kind = BLOB_STAT}, reply;
    if (!set_name(&request, client->args->operands[0], error) || !client_connect(client, error) ||
        !client_ask(client, &request, BLOB_STAT_REPLY, &reply, NULL, error))
        return false;
    printf("name      %s\n", request.name);
    if (reply.flags & BLOB_HAS_OBJECT) {
        printf("bytes     %" PRIu64 "\nmodified  ", reply.size);
        print_time(reply.mtime);
        char sum[2 * BLOB_SUM_BYTES + 1];
        sum_text(reply.sum, sum);
        printf("\nxxh3-128  %s\n", reply.flags & BLOB_HAS_SUM ? sum : "unknown");
    }
    if (reply.flags & BLOB_HAS_PARTIAL)
        printf("partial   %" PRIu64 " bytes of a put that did not end\n", reply.offset);
    return true;
}

static bool run_rm(struct client *client, struct blob_error *error)
{
    struct blob_message request = {.kind = BLOB_REMOVE}, reply;
    return set_name(&request, client->args->operands[0], error) && client_connect(client, error) &&
           client_ask(client, &request, BLOB_REMOVE_REPLY, &reply, NULL, error);
}

// Prints the entries in the body of a reply, and leaves the last name in `last`.
static bool print_entries(const lien_buf *body, uint64_t n, char last[BLOB_NAME_MAX + 1],
                          struct blob_error *error)
{
    const void *data = NULL;
    int rc = lien_buf_data(body, &data);
    if (rc != 0)
        return error_set_lien(error, rc, "the body of the list");
    size_t used = 0, len = lien_buf_len(body);
    for (uint64_t i = 0; i < n; i++) {
        struct blob_entry entry;
        size_t step = proto_entry_decode((const char *)data + used, len - used, &entry);
        // Names must rise, or a bad server could keep us asking for ever.
        if (step == 0 || strcmp(entry.name, last) < 0)
            return error_set(error, BLOB_BAD_MESSAGE, "the server sent a malformed list");
        used += step;
        memcpy(last, entry.name, sizeof(entry.name));
        printf("%14" PRIu64 "  ", entry.size);
        print_time(entry.mtime);
        printf("  %s%s\n", entry.name, entry.flags & BLOB_HAS_PARTIAL ? " (partial)" : "");
    }
    return true;
}

static bool run_ls(struct client *client, struct blob_error *error)
{
    struct blob_message request = {.kind = BLOB_LIST}, reply = {.flags = BLOB_MORE};
    if (!client_connect(client, error))
        return false;
    while (reply.flags & BLOB_MORE) {
        lien_buf *body;
        char last[BLOB_NAME_MAX + 1];
        memcpy(last, request.name, sizeof(last));
        if (!client_ask(client, &request, BLOB_LIST_REPLY, &reply, &body, error))
            return false;
        bool ok = !body || print_entries(body, reply.size, last, error);
        lien_buf_free(&body);
        if (!ok)
            return false;
        if ((reply.flags & BLOB_MORE) && strcmp(last, request.name) == 0)
            return error_set(error, BLOB_BAD_MESSAGE, "the server's list does not go on");
        memcpy(request.name, last, sizeof(last));
    }
    return true;
}

// -- put and get of several -------------------------------------------------------------------------------------------------------------

static void complain(const char *what, const char *name, const struct blob_error *error)
{
    fprintf(stderr, "lien-blob: %s%s%s: %s\n", what, *name ? " " : "", name, error->text);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// Two files of one name would overwrite each other at the server.
static bool check_names(const struct args *args, struct blob_error *error)
{
    for (int i = 0; i < args->n_operands; i++) {
        for (int k = 0; k < i; k++) {
            if (strcmp(base_name(args->operands[i]), base_name(args->operands[k])) == 0)
                return error_set(error, BLOB_USAGE, "%s and %s would have the same name",
                                 args->operands[k], args->operands[i]);
        }
    }
    return true;
}

// Puts each file; goes on after one that fails, unless the server is gone. The first error is kept for the exit code.
static bool run_put(struct client *client, struct blob_error *first)
{
    const struct args *args = client->args;
    if (!check_names(args, first)) {
        complain("put", "", first);
        return false;
    }
    for (int i = 0; i < args->n_operands; i++) {
        const char *path = args->operands[i];
        struct blob_error error = {0};
        if (client_put(client, path, args->as ? args->as : base_name(path), &error))
            continue;
        complain("put", path, &error);
        client_disconnect(client);
        if (first->status == BLOB_OK)
            *first = error;
        if (error.status == BLOB_GONE || error.status == BLOB_INTERRUPTED)
            break;
    }
    return first->status == BLOB_OK;
}

static int run_command(struct client *client)
{
    const struct args *args = client->args;
    struct blob_error error = {0};
    const char *what = "", *name = args->n_operands > 0 ? args->operands[0] : "";
    switch (args->command) {
    case COMMAND_PUT:
        run_put(client, &error); // says what failed itself
        return error_exit_code(error.status);
    case COMMAND_GET:
        what = "get";
        client_get(client, name, args->output ? args->output : name, &error);
        break;
    case COMMAND_LS:
        what = "ls";
        run_ls(client, &error);
        break;
    case COMMAND_STAT:
        what = "stat";
        run_stat(client, &error);
        break;
    case COMMAND_RM:
        what = "rm";
        run_rm(client, &error);
        break;
    case COMMAND_SERVE:
    case COMMAND_HELP:
    case COMMAND_VERSION:
        break;
    }
    if (error.status != BLOB_OK)
        complain(what, name, &error);
    return error_exit_code(error.status);
}

// -- Life ------------------------------------------------------------------------------------------------------------------------------

static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;
static struct client *running; // whom a signal stops, under running_lock

static void stop_running(void)
{
    pthread_mutex_lock(&running_lock);
    if (running)
        peer_stop(&running->peer);
    pthread_mutex_unlock(&running_lock);
}

static void set_running(struct client *client)
{
    pthread_mutex_lock(&running_lock);
    running = client;
    pthread_mutex_unlock(&running_lock);
}

static int open_lien(struct client *client)
{
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    // The only bodies that come are pages of a list.
    opts.settings = (const char *const[]){"message_max=256K", NULL};
    int rc = lien_ctx_open(&opts, &client->ctx);
    if (rc != 0)
        return rc;
    lien_pool_opts pool;
    lien_pool_opts_init(&pool);
    pool.limit = POOL_LIMIT;
    pool.reserve = POOL_RESERVE;
    rc = lien_pool_open(client->ctx, &pool, &client->pool);
    if (rc != 0)
        lien_ctx_close(&client->ctx);
    return rc;
}

int client_run(const struct args *args)
{
    struct client client = {.args = args, .sum = sum_new()};
    int rc = client.sum ? open_lien(&client) : LIEN_ENOMEM;
    if (rc != 0) {
        fprintf(stderr, "lien-blob: cannot start Lien: %s\n", lien_strerror(rc));
        sum_free(&client.sum);
        return error_exit_code(BLOB_FAILED);
    }
    int code = error_exit_code(BLOB_FAILED);
    if (peer_init(&client.peer, client.ctx, client.pool)) {
        set_running(&client);
        if (signals_watch(stop_running))
            code = run_command(&client);
        client_disconnect(&client);
        set_running(NULL);
        peer_destroy(&client.peer);
    }
    sum_free(&client.sum);
    lien_pool_close(&client.pool);
    lien_ctx_close(&client.ctx);
    return code;
}
