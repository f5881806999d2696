// SPDX-License-Identifier: Apache-2.0
//
// Written from the header and the manual alone: a server that calls its client back. "job/run" counts to a number, and after each step calls "job/progress" of whoever called it; a job that is cancelled
// stops. Two contexts in one process stand for two programs.

#include <lien/lien.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int rc, int line)
{
    if (rc != 0) {
        fprintf(stderr, "line %d: %s\n", line, lien_errname(rc));
        exit(1);
    }
}
#define MUST(call) must((call), __LINE__)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint32_t progress_seen, server_saw_cancel, ended, last_status;

// -- Server --

static void run(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    uint32_t steps, i;
    (void)arg;
    MUST(lien_request_args(request, &data, &len));
    if (len != sizeof steps) {
        MUST(lien_request_reply(&request, LIEN_EINVAL, NULL, 0));
        return;
    }
    memcpy(&steps, data, sizeof steps);
    for (i = 0; i < steps && !lien_request_cancelled(request); i++) {
        lien_call_opts opts;
        lien_call_opts_init(&opts);
        opts.timeout_ms = lien_request_left_ms(request);
        if (opts.timeout_ms == 0 ||
            lien_call_wait(conn, "job/progress", &i, sizeof i, &opts, NULL) != 0)
            break;
    }
    if (lien_request_cancelled(request)) {
        pthread_mutex_lock(&lock);
        server_saw_cancel++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        lien_request_drop(&request);
        return;
    }
    MUST(lien_request_reply(&request, 0, &i, sizeof i));
}

// -- Client --

static void progress(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    pthread_mutex_lock(&lock);
    progress_seen++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    MUST(lien_request_reply(&request, 0, NULL, 0));
}

static void on_done(void *arg, int status, lien_msg *reply)
{
    (void)arg;
    lien_msg_free(&reply);
    pthread_mutex_lock(&lock);
    ended++;
    last_status = (uint32_t)status;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_until(const uint32_t *what, uint32_t value)
{
    pthread_mutex_lock(&lock);
    while (*what < value)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

int main(void)
{
    static const lien_method server_methods[] = {{.name = "job/run", .handle = run}};
    static const lien_service server_service = {.methods = server_methods, .n_methods = 1};
    static const lien_method client_methods[] = {{.name = "job/progress", .handle = progress}};
    static const lien_service client_service = {.methods = client_methods, .n_methods = 1};
    lien_ctx *server_ctx, *client_ctx;
    lien_listener *listener;
    lien_conn *conn, *accepted;
    char address[96];
    MUST(lien_ctx_open(NULL, &server_ctx));
    MUST(lien_ctx_open(NULL, &client_ctx));

    lien_conn_opts conn_opts;
    lien_conn_opts_init(&conn_opts);
    conn_opts.service = &server_service;
    lien_listener_opts listener_opts;
    lien_listener_opts_init(&listener_opts);
    listener_opts.conn = &conn_opts;
    MUST(lien_listener_open(server_ctx, "127.0.0.1:0", &listener_opts, &listener));
    MUST(lien_listener_address(listener, address, sizeof address));

    lien_conn_opts_init(&conn_opts);
    conn_opts.service = &client_service;
    MUST(lien_conn_open_wait(client_ctx, address, &conn_opts, &conn));
    MUST(lien_listener_accept_wait(listener, 5000, &accepted));

    // A whole job.
    uint32_t steps = 10, did = 0;
    lien_msg *reply;
    const void *data;
    size_t len;
    MUST(lien_call_wait(conn, "job/run", &steps, sizeof steps, NULL, &reply));
    MUST(lien_msg_head(reply, &data, &len));
    memcpy(&did, data, len);
    lien_msg_free(&reply);
    if (did != 10 || progress_seen != 10)
        return 1;
    // One that is cancelled on the way.
    lien_call *call;
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.on_done = on_done;
    steps = UINT32_MAX;
    MUST(lien_call_start(conn, "job/run", &steps, sizeof steps, &opts, &call));
    wait_until(&progress_seen, 15);
    MUST(lien_call_cancel(call));
    MUST(lien_call_close(&call));
    wait_until(&ended, 1);
    wait_until(&server_saw_cancel, 1);
    if (last_status != (uint32_t)LIEN_ECANCELED)
        return 1;
    // What does not exist, and a server that takes no more.
    int rc = lien_call_wait(conn, "job/nosuch", NULL, 0, NULL, NULL);
    if (rc != LIEN_ENOTFOUND)
        return 1;
    MUST(lien_conn_goaway(accepted));
    do
        rc = lien_call_wait(conn, "job/nosuch", NULL, 0, NULL, NULL);
    while (rc == LIEN_ENOTFOUND);
    if (rc != LIEN_EOVERLOAD)
        return 1;
    MUST(lien_ctx_close(&client_ctx));
    MUST(lien_ctx_close(&server_ctx));
    puts("called back, cancelled, sent away");
    return 0;
}
