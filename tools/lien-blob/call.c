// SPDX-License-Identifier: Apache-2.0
//
// The connection of a client and calls over it. See client.h for threads and lock.

#include "client.h"

#include <string.h>

#include "store.h"

// A server may take its time over a disk, and over the sum of gigabytes that it has already; one that is gone, Lien notices by its heartbeat. So this is for a server that is alive and stuck.
#define ANSWER_MS 900000u

// -- What happens on Lien's threads ------------------------------------------------------------------------------------------------------

static void lock(struct client *client)
{
    pthread_mutex_lock(&client->lock);
}

static void unlock_changed(struct client *client)
{
    client->changes++;
    pthread_cond_signal(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

static void on_open(lien_conn *conn, int status, void *arg)
{
    struct client *client = arg;
    (void)conn;
    lock(client);
    client->open = true;
    client->open_status = status;
    unlock_changed(client);
}

static void on_writable(lien_conn *conn, void *arg)
{
    (void)conn;
    lock(arg);
    unlock_changed(arg);
}

static void on_lost(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    (void)status; // every call that runs, or starts, says it too
    lock(arg);
    unlock_changed(arg);
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    struct client *client = arg;
    (void)conn;
    (void)status; // LIEN_EQUARANTINED: Lien keeps that memory out of use by itself
    lock(client);
    client->closed = true;
    unlock_changed(client);
}

// The result is known. A write space may still be lent: a READ that runs into it when the deadline passes ends later. The message is freed at once: until then it takes the place of another call.
static void on_done(void *arg, int status, lien_msg *reply)
{
    struct call *call = arg;
    const void *head;
    size_t len;
    lock(call->client);
    call->status = status;
    call->understood = reply && lien_msg_head(reply, &head, &len) == 0 &&
                       proto_decode_answer(head, len, &call->answer);
    if (reply)
        lien_msg_take_body(reply, &call->body); // LIEN_ENOTFOUND: there is none
    unlock_changed(call->client);
    lien_msg_free(&reply);
}

// Now both spaces are ours; or, with LIEN_EQUARANTINED, never.
static void on_released(void *arg, int status)
{
    struct call *call = arg;
    struct client *client = call->client;
    lock(client);
    if (call->status == 0)
        call->status = status;
    call->out = false;
    unlock_changed(client);
}

// -- The connection ------------------------------------------------------------------------------------------------------------------------

bool client_connect(struct client *client, struct blob_error *error)
{
    if (client->conn)
        return true;
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.pool = client->pool;
    opts.arg = client;
    opts.on_open = on_open;
    opts.on_writable = on_writable;
    opts.on_lost = on_lost;
    opts.on_closed = on_closed;
    client->open = client->closed = false;
    int rc = lien_conn_open(client->ctx, client->args->address, &opts, &client->conn);
    if (rc != 0)
        return error_set_lien(error, rc, "cannot connect to %s", client->args->address);
    lock(client);
    while (!client->open && !client->stopped) // Lien has the timeout
        pthread_cond_wait(&client->changed, &client->lock);
    if (!client->open)
        error_set(error, BLOB_INTERRUPTED, "interrupted");
    else if (client->open_status != 0) {
        error_set_lien(error, client->open_status, "cannot connect to %s", client->args->address);
        error->status = BLOB_GONE;
    }
    pthread_mutex_unlock(&client->lock);
    if (error->status != BLOB_OK)
        client_disconnect(client);
    return error->status == BLOB_OK;
}

void client_disconnect(struct client *client)
{
    if (!client->conn)
        return;
    lien_conn_close(&client->conn);
    lock(client);
    while (!client->closed) // after the last on_released
        pthread_cond_wait(&client->changed, &client->lock);
    pthread_mutex_unlock(&client->lock);
}

// -- Calls ---------------------------------------------------------------------------------------------------------------------------------

// False: interrupted. Nothing of any call is under way then.
static bool wait_change(struct client *client, uint64_t since, struct blob_error *error)
{
    lock(client);
    while (client->changes == since && !client->stopped)
        pthread_cond_wait(&client->changed, &client->lock);
    bool stopped = client->stopped;
    pthread_mutex_unlock(&client->lock);
    if (!stopped)
        return true;
    client_disconnect(client);
    return error_set(error, BLOB_INTERRUPTED, "interrupted");
}

static uint64_t changes(struct client *client)
{
    lock(client);
    uint64_t n = client->changes;
    pthread_mutex_unlock(&client->lock);
    return n;
}

bool client_start(struct client *client, struct call *call, const char *method,
                  const struct blob_ask *ask, lien_call_opts *opts, struct blob_error *error)
{
    uint8_t args[BLOB_MESSAGE_MAX];
    size_t len = proto_encode_ask(ask, args);
    if (opts->timeout_ms == 0)
        opts->timeout_ms = ANSWER_MS;
    opts->on_done = on_done;
    opts->on_released = on_released;
    opts->arg = call;
    for (;;) {
        uint64_t before = changes(client);
        *call = (struct call){.client = client, .out = true};
        int rc = lien_call_start(client->conn, method, args, len, opts, NULL);
        if (rc == 0)
            return true;
        call->out = false; // nothing was lent, and no callback will run
        if (rc != LIEN_EAGAIN)
            return error_set_lien(error, rc, "%s", method);
        if (!wait_change(client, before, error)) // on_writable, or the end of the connection
            return false;
    }
}

static bool is_out(struct call *call, uint64_t *before)
{
    lock(call->client);
    bool out = call->out;
    *before = call->client->changes;
    pthread_mutex_unlock(&call->client->lock);
    return out;
}

// What the call brought.
static bool understand(const struct call *call, struct blob_error *error)
{
    if (call->status == LIEN_ECANCELED) // not by us, so the server gave it up
        return error_set(error, BLOB_GONE, "the server dropped the call");
    if (call->status == LIEN_ENOTFOUND)
        return error_set(error, BLOB_BAD_MESSAGE, "the server is no lien-blob of this version");
    if (call->status != 0)
        return error_set_lien(error, call->status, "the server is gone, or does not answer");
    if (!call->understood)
        return error_set(error, BLOB_BAD_MESSAGE, "the server sent a malformed answer");
    return call->answer.status == BLOB_OK ||
           error_set(error, call->answer.status, "the server says: %s", call->answer.text);
}

bool client_finish(struct call *call, struct blob_error *error)
{
    bool ok = true;
    uint64_t before;
    while (ok && is_out(call, &before))
        ok = wait_change(call->client, before, error);
    return ok && understand(call, error);
}

bool client_ask(struct client *client, const char *method, const struct blob_ask *ask,
                struct blob_answer *answer, struct blob_error *error)
{
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    struct call call;
    bool ok = client_start(client, &call, method, ask, &opts, error) && client_finish(&call, error);
    if (ok)
        *answer = call.answer;
    lien_buf_free(&call.body);
    return ok;
}

bool client_set_name(struct blob_ask *ask, const char *name, struct blob_error *error)
{
    if (!store_check_name(name, error))
        return false;
    memcpy(ask->name, name, strlen(name) + 1);
    return true;
}
