// SPDX-License-Identifier: Apache-2.0
//
// The server: opens the store, a ctx, a pool and a listener, waits for a signal, and closes them the other way round. All work is done in sessions. Main thread, except on_accept.

#include <stdio.h>

#include "server.h"
#include "signals.h"

// A connection is open. It becomes a session's, or goes back to Lien to be closed. Runs on a thread of Lien's, so it must be quick.
static int on_accept(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    (void)listener;
    struct session *session = session_start(arg, conn);
    if (!session) {
        fprintf(stderr, "lien-blob: a client was refused: too many at once, or no memory\n");
        return LIEN_EOVERLOAD;
    }
    *conn_arg = session;
    return 0;
}

// The memory for all transfers, and not a byte more: when clients want more at once, their pieces stand in line (session.c).
static bool open_pool(struct server *server, size_t memory, struct blob_error *error)
{
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.limit = memory;
    opts.reserve = 0; // nobody sends us bodies: see message_max below
    int rc = lien_pool_open(server->ctx, &opts, &server->pool);
    return rc == 0 || error_set_lien(error, rc, "a pool of %zu bytes", memory);
}

static void fill_service(struct server *server)
{
    for (unsigned i = 0; i < BLOB_METHODS; i++) {
        server->entries[i] = (struct entry){.server = server, .method = &blob_methods[i]};
        server->methods[i] = (lien_method){
            .name = blob_methods[i].name, .handle = session_handle, .arg = &server->entries[i]};
    }
    server->service = (lien_service){.methods = server->methods, .n_methods = BLOB_METHODS};
}

static bool open_listener(struct server *server, const char *address, lien_listener **listener,
                          struct blob_error *error)
{
    lien_listener_opts opts;
    lien_listener_opts_init(&opts);
    lien_conn_opts conn;
    session_conn_opts(&conn, server);
    opts.conn = &conn;
    opts.arg = server;
    opts.on_accept = on_accept;
    int rc = lien_listener_open(server->ctx, address, &opts, listener);
    return rc == 0 || error_set_lien(error, rc, "cannot listen at %s", address);
}

static void run(struct server *server, const struct args *args, struct blob_error *error)
{
    lien_listener *listener;
    fill_service(server);
    if (!open_listener(server, args->listen, &listener, error))
        return;
    char address[96] = "";
    lien_listener_address(listener, address, sizeof(address));
    printf("lien-blob: serving %s at %s\n", args->dir, address);
    fflush(stdout);
    int signal = signals_wait();
    fprintf(stderr, "lien-blob: signal %d, stopping\n", signal);
    lien_listener_close(&listener); // no new ones; running puts keep what they have
    session_stop_all(server);
}

int serve(const struct args *args)
{
    struct server server = {
        .max = args->clients, .lock = PTHREAD_MUTEX_INITIALIZER, .left = PTHREAD_COND_INITIALIZER};
    struct blob_error error = {0};
    if (store_open(&server.store, args->dir, &error)) {
        lien_ctx_opts opts;
        lien_ctx_opts_init(&opts);
        // Clients send no bodies, only spaces, which take no memory until we want them: so a client cannot make us hold memory.
        opts.settings = (const char *const[]){"message_max=0", NULL};
        int rc = lien_ctx_open(&opts, &server.ctx);
        if (rc != 0)
            error_set_lien(&error, rc, "cannot start Lien");
        if (rc == 0 && open_pool(&server, args->memory, &error)) {
            run(&server, args, &error);
            lien_pool_close(&server.pool);
        }
        if (rc == 0)
            lien_ctx_close(&server.ctx);
        store_close(&server.store);
    }
    if (error.status != BLOB_OK)
        fprintf(stderr, "lien-blob: %s\n", error.text);
    return error_exit_code(error.status);
}
