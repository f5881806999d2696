// SPDX-License-Identifier: Apache-2.0
//
// What the client commands share: a ctx, a pool of a few buffers, and a connection that is made when first needed and made anew after a failure. Main thread; client_stop() any.

#ifndef BLOB_CLIENT_H
#define BLOB_CLIENT_H

#include "args.h"
#include "peer.h"
#include "progress.h"
#include "stream.h"

struct client {
    const struct args *args;
    lien_ctx *ctx;
    lien_pool *pool;
    struct peer peer;
    bool connected;
    XXH3_state_t *sum;
    struct stream stream;
    uint64_t copied; // Lien's counter when the transfer began
    double began;
};

// Runs one of the client commands; returns the exit code.
int client_run(const struct args *args);

// -- For put.c and get.c -------------------------------------------------------------------------------------------------------------

// Connects unless there is a connection.
bool client_connect(struct client *client, struct blob_error *error);
// Ends the connection, and with it everything that is lent.
void client_disconnect(struct client *client);
// Sends a request and waits for the answer of kind `kind`, which may have a body, then left in *body (NULL: it must have none). A status of the server becomes *error.
bool client_ask(struct client *client, const struct blob_message *request, enum blob_kind kind,
                struct blob_message *reply, lien_buf **body, struct blob_error *error);
// Waits for the next message or piece event of a running transfer. True and *got: a message, in *message; it is one of `kind`, `other`, or an error has been set.
bool client_wait(struct client *client, enum blob_kind kind, enum blob_kind other,
                 struct blob_message *message, bool *got, struct blob_error *error);
// After an error on sending: the server may have said why before it closed. Makes that *error if so.
void client_hear_why(struct client *client, struct blob_error *error);

void client_begin(struct client *client);
// The line at the end: bytes, seconds, GB/s, provider, path, payload bytes that Lien copied here and at the server.
void client_report(const struct client *client, const char *what, const char *name, uint64_t bytes,
                   uint64_t copied_there);

bool client_put(struct client *client, const char *path, const char *name,
                struct blob_error *error);
bool client_get(struct client *client, const char *name, const char *output,
                struct blob_error *error);

#endif
