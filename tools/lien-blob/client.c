// SPDX-License-Identifier: Apache-2.0
//
// Client commands. See client.h.

#include "client.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "signals.h"

// Memory of a client, whatever the size of the file: the window of a transfer, digests, and room for a page of a list.
#define POOL_RESERVE ((size_t)BLOB_LIST_BYTES * 4)
#define POOL_LIMIT   ((size_t)BLOB_WINDOW * BLOB_PIECE_BYTES + 2 * POOL_RESERVE)

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
    sum_restart(client->sum);
}

void client_report(const struct client *client, const char *what, const char *name, uint64_t bytes,
                   uint64_t copied_there)
{
    double seconds = progress_now() - client->began;
    double rate = seconds > 0 ? (double)bytes / seconds / 1e9 : 0;
    uint64_t copied = copied_so_far(client) - client->copied + copied_there;
    lien_conn_info info = {.size = sizeof(info)};
    if (lien_conn_info_get(client->conn, &info) != 0)
        info.provider[0] = '\0';
    printf(client->args->tabs ? "%s\t%s\t%" PRIu64 "\t%.3f\t%.3f\t%s\t%s\t%" PRIu64 "\n"
                              : "%s %s: %" PRIu64 " bytes in %.3f s, %.3f GB/s, provider %s, path "
                                "%s, payload bytes copied by Lien: %" PRIu64 "\n",
           what, name, bytes, seconds, rate, info.provider, lien_path_name(info.path), copied);
    fflush(stdout);
}

// -- Running -----------------------------------------------------------------------------------------------------------------------------

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

// Puts or sums each file; goes on after one that fails, unless the server is gone. The first error is kept for the exit code.
static void run_several(struct client *client, const char *what, struct blob_error *first)
{
    const struct args *args = client->args;
    bool put = args->command == COMMAND_PUT;
    if (put && !check_names(args, first)) {
        complain(what, "", first);
        return;
    }
    for (int i = 0; i < args->n_operands; i++) {
        const char *path = args->operands[i];
        struct blob_error error = {0};
        if (put ? client_put(client, path, args->as ? args->as : base_name(path), &error)
                : client_sum(client, path, &error))
            continue;
        complain(what, path, &error);
        client_disconnect(client);
        if (first->status == BLOB_OK)
            *first = error;
        if (error.status == BLOB_GONE || error.status == BLOB_INTERRUPTED)
            break;
    }
}

static int run_command(struct client *client)
{
    const struct args *args = client->args;
    struct blob_error error = {0};
    const char *what = "", *name = args->n_operands > 0 ? args->operands[0] : "";
    switch (args->command) {
    case COMMAND_PUT:
        run_several(client, "put", &error); // says what failed itself
        return error_exit_code(error.status);
    case COMMAND_SUM:
        run_several(client, "sum", &error);
        return error_exit_code(error.status);
    case COMMAND_GET:
        what = "get";
        client_get(client, name, args->output ? args->output : name, &error);
        break;
    case COMMAND_LS:
        what = "ls";
        client_ls(client, &error);
        break;
    case COMMAND_STAT:
        what = "stat";
        client_stat(client, name, &error);
        break;
    case COMMAND_RM:
        what = "rm";
        client_rm(client, name, &error);
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

static struct client running = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                .changed = PTHREAD_COND_INITIALIZER};

// A signal came: whatever waits goes on, and fails.
static void stop_running(void)
{
    pthread_mutex_lock(&running.lock);
    running.stopped = true;
    pthread_cond_signal(&running.changed);
    pthread_mutex_unlock(&running.lock);
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
    struct client *client = &running;
    client->args = args;
    client->sum = sum_new();
    int rc = client->sum ? open_lien(client) : LIEN_ENOMEM;
    if (rc != 0) {
        fprintf(stderr, "lien-blob: cannot start Lien: %s\n", lien_strerror(rc));
        sum_free(&client->sum);
        return error_exit_code(BLOB_FAILED);
    }
    int code = error_exit_code(BLOB_FAILED);
    if (signals_watch(stop_running))
        code = run_command(client);
    client_disconnect(client);
    sum_free(&client->sum);
    lien_pool_close(&client->pool);
    lien_ctx_close(&client->ctx);
    return code;
}
