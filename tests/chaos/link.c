// SPDX-License-Identifier: Apache-2.0
//
// Connections with references: a handler that runs beside the end of its connection uses the handle safely. The list and the references are under `lock`; nothing of the library is called under it.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/address.h"
#include "tests/chaos/worker.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct link *links;

static void add(struct link *link)
{
    pthread_mutex_lock(&lock);
    link->refs = 1;
    link->next = links;
    links = link;
    pthread_mutex_unlock(&lock);
}

struct link *link_of(const lien_conn *conn)
{
    struct link *link;
    pthread_mutex_lock(&lock);
    for (link = links; link && link->conn != conn; link = link->next)
        ;
    if (link)
        link->refs++;
    pthread_mutex_unlock(&lock);
    return link;
}

void link_unref(struct link *link)
{
    bool last;
    pthread_mutex_lock(&lock);
    last = --link->refs == 0;
    if (last) {
        struct link **at = &links;
        while (*at != link)
            at = &(*at)->next;
        *at = link->next;
    }
    pthread_mutex_unlock(&lock);
    if (last) {
        lien_conn *conn = link->conn; // on_closed frees the link
        worker_judge(CHAOS_CLOSE, lien_conn_close(&conn));
    }
}

static void on_lost(lien_conn *conn, int status, void *arg)
{
    struct link *link = arg;
    (void)conn;
    if (worker_judge(CHAOS_ON_LOST, status) != LIEN_ECLOSED)
        worker_count(CHAOS_LOST);
    link->lost = true;
    if (link->accepted)
        link_unref(link);
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    if (worker_judge(CHAOS_ON_CLOSED, status) == LIEN_EQUARANTINED)
        worker_count(CHAOS_QUARANTINED);
    free(arg);
    worker.pending--;
}

void link_conn_opts(lien_conn_opts *opts)
{
    lien_conn_opts_init(opts);
    opts->pool = worker.pool;
    opts->service = &serve_service;
    opts->on_message = serve_message;
    opts->on_lost = on_lost;
    opts->on_closed = on_closed;
}

static struct link *make(void)
{
    struct link *link = calloc(1, sizeof *link);
    if (!link)
        abort();
    worker.pending++;
    return link;
}

static void unmake(struct link *link)
{
    free(link);
    worker.pending--;
    worker_count(CHAOS_CONNECTS_FAILED);
}

int link_accepted(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    (void)listener;
    (void)arg;
    struct link *link = make();
    link->conn = conn;
    link->accepted = true;
    add(link);
    *conn_arg = link;
    return 0;
}

static bool address_of(unsigned to, char *address, size_t size)
{
    unsigned port = to == worker.self ? worker.port : worker.world->slot[to].port;
    snprintf(address, size, TEST_AT(port));
    return port != 0;
}

struct link *link_open(unsigned to)
{
    char address[32];
    lien_conn_opts opts;
    if (!address_of(to, address, sizeof address))
        return NULL;
    struct link *link = make();
    link_conn_opts(&opts);
    opts.arg = link;
    if (worker_judge(CHAOS_OPEN_WAIT,
                     lien_conn_open_wait(worker.ctx, address, &opts, &link->conn)) != 0) {
        unmake(link);
        return NULL;
    }
    worker_count(CHAOS_CONNECTIONS);
    add(link);
    return link;
}

static void on_storm_open(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    (void)arg;
    worker_judge(CHAOS_ON_OPEN, status);
    worker_count(status == 0 ? CHAOS_CONNECTIONS : CHAOS_CONNECTS_FAILED);
}

void link_storm(unsigned to)
{
    enum {
        STORM = 16
    };
    lien_conn *conns[STORM];
    char address[32];
    lien_conn_opts opts;
    unsigned n = 0;
    if (!address_of(to, address, sizeof address))
        return;
    for (unsigned i = 0; i < STORM; i++) {
        link_conn_opts(&opts);
        struct link *link = make();
        opts.arg = link;
        opts.on_open = on_storm_open;
        opts.on_lost = NULL;
        if (worker_judge(CHAOS_OPEN, lien_conn_open(worker.ctx, address, &opts, &conns[n])) == 0)
            n++;
        else
            unmake(link);
        if (chaos_below(4) == 0)
            chaos_sleep(chaos_below(10));
    }
    chaos_sleep(chaos_below(100));
    for (unsigned i = 0; i < n; i++)
        worker_judge(CHAOS_CLOSE, lien_conn_close(&conns[i]));
}
