// SPDX-License-Identifier: Apache-2.0
//
// What the application left open when it closed its ctx, counted by kind, for one line in the log. Closing a ctx closes listeners, connections and pools: leaving those is no mistake, and said
// at level info. Anything else is a handle that nobody can give back any more, or memory that lives on: a warning. Under the state lock.

#include <inttypes.h>
#include <stdio.h>

#include "core/conn.h"
#include "core/listener.h"
#include "core/request.h"

#define OWN_POOLS 2 // receive_pool, slab_pool

void lieni_leaks_look(lien_ctx *ctx)
{
    struct lieni_leaks *leaks = &ctx->leaks;
    *leaks = (struct lieni_leaks){0};
    for (struct lieni_node *n = ctx->listeners.next; n != &ctx->listeners; n = n->next)
        leaks->listeners += !lieni_container(n, struct lien_listener, node)->closed;
    for (struct lieni_node *n = ctx->conns.next; n != &ctx->conns; n = n->next)
        leaks->connections += lieni_container(n, struct lien_conn, node)->has_handle;
}

static uint64_t length(const struct lieni_node *list)
{
    uint64_t n = 0;
    for (const struct lieni_node *at = list->next; at != list; at = at->next)
        n++;
    return n;
}

static uint64_t calls_held(const struct lien_conn *conn)
{
    const struct lieni_node *all = &conn->calls.all;
    uint64_t n = 0;
    for (struct lieni_node *at = all->next; at != all; at = at->next)
        n += lieni_container(at, struct lien_call, node)->has_handle;
    return n;
}

// Buffers that belong to something else that is counted: frames that messages keep, bodies of requests.
static uint64_t inside(const struct lien_conn *conn)
{
    const struct lieni_node *all = &conn->calls.requests;
    uint64_t n = conn->link.slab != NULL;
    for (struct lieni_node *at = all->next; at != all; at = at->next)
        n += lieni_container(at, struct lien_request, node)->body.buf != NULL;
    return n;
}

struct kind {
    uint64_t n;
    const char *one, *many;
    bool harmless;
};

static bool list(const struct kind *kinds, size_t n, char *text, size_t size)
{
    bool harmless = true;
    size_t len = 0;
    text[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        if (kinds[i].n == 0)
            continue;
        harmless = harmless && kinds[i].harmless;
        int more = snprintf(text + len, size - len, "%s%" PRIu64 " %s", len > 0 ? ", " : "",
                            kinds[i].n, kinds[i].n == 1 ? kinds[i].one : kinds[i].many);
        len += more > 0 && (size_t)more < size - len ? (size_t)more : 0;
    }
    return harmless;
}

void lieni_leaks_say(lien_ctx *ctx)
{
    uint64_t grants = 0, reads = 0, calls = 0;
    struct lieni_mem_left mem;
    lieni_mem_left(ctx->mem, &mem);
    for (struct lieni_node *n = ctx->conns.next; n != &ctx->conns; n = n->next) {
        const struct lien_conn *conn = lieni_container(n, struct lien_conn, node);
        grants += length(&conn->grant_handles);
        reads += length(&conn->read_handles);
        calls += calls_held(conn);
        mem.bufs -= inside(conn);
    }
    const struct kind kinds[] = {
        {ctx->leaks.listeners, "listener", "listeners", true},
        {ctx->leaks.connections, "connection", "connections", true},
        {mem.pools - OWN_POOLS, "pool", "pools", true},
        {mem.mems, "registered memory", "registered memories", false},
        {mem.bufs, "buffer", "buffers", false},
        {ctx->spaces_held, "space", "spaces", false},
        {ctx->messages_held, "message", "messages", false},
        {grants, "grant", "grants", false},
        {reads, "read", "reads", false},
        {calls, "call", "calls", false},
        {ctx->requests_held, "request", "requests", false},
    };
    char text[512];
    bool harmless = list(kinds, sizeof kinds / sizeof kinds[0], text, sizeof text);
    if (text[0])
        lieni_log_say(ctx->log, harmless ? LIEN_LOG_INFO : LIEN_LOG_WARN, NULL, 0,
                      "the context is closed with what was never closed: %s", text);
}
