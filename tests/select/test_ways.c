// SPDX-License-Identifier: Apache-2.0
//
// Selection in contexts over loopback: devices are asked once as a connection begins, and never under the state lock; require_zero_copy refuses every provider that copies; peers whose lists of
// providers differ take what both have, and where that is nothing the error shows both. One thread and those of the contexts.

#include "core/ctx.h"
#include "provider/tcp/tcp.h"
#include "tests/fault/fault.h"

// -- Two contexts in this process --------------------------------------------------------------------------------------------------

// Options of both sides besides those that a busy machine needs; NULL: none.
static int open_ctx(const struct lieni_platform *platform, const char *option, unsigned flags,
                    lien_ctx **ctx)
{
    const char *const settings[] = {"log_level=info", "connect_ms=120000", "dead_ms=120000", option,
                                    NULL};
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    opts.flags = flags;
    opts.log = fault_log_line;
    return lieni_ctx_open_platform(&opts, platform, ctx);
}

struct two {
    lien_ctx *client, *server;
    lien_listener *listener;
    lien_conn *ours, *theirs;
    char address[96];
};

static void open_two(struct two *t, const struct lieni_platform *platform, const char *client,
                     const char *server, unsigned flags)
{
    *t = (struct two){.client = NULL};
    fault_log_clear();
    CHECK_EQ(open_ctx(platform, client, flags, &t->client), 0);
    CHECK_EQ(open_ctx(platform, server, flags, &t->server), 0);
    CHECK_EQ(lien_listener_open(t->server, "127.0.0.1:0", NULL, &t->listener), 0);
    CHECK_EQ(lien_listener_address(t->listener, t->address, sizeof t->address), 0);
}

static void close_two(struct two *t)
{
    CHECK_EQ(lien_listener_close(&t->listener), 0);
    CHECK_EQ(lien_ctx_close(&t->client), 0);
    CHECK_EQ(lien_ctx_close(&t->server), 0);
}

// -- Asking ------------------------------------------------------------------------------------------------------------------------

static struct two asked; // app-driven: nobody but this thread takes a lock
static unsigned asks;

static void check_free(lien_ctx *ctx)
{
    if (!ctx)
        return;
    CHECK_EQ(pthread_mutex_trylock(&ctx->lock), 0);
    CHECK_EQ(pthread_mutex_unlock(&ctx->lock), 0);
}

static void ask(lieni_candidate_fn *tell, void *arg)
{
    asks++;
    check_free(asked.client);
    check_free(asked.server);
    lieni_provider_tcp.candidates(tell, arg);
}

static bool is_open(void *arg)
{
    struct two *t = arg;
    lien_conn_info info;
    (void)lien_ctx_progress(t->client);
    (void)lien_ctx_progress(t->server);
    if (!t->theirs)
        (void)lien_listener_accept_wait(t->listener, 0, &t->theirs);
    fault_info(t->ours, &info);
    return info.open && t->theirs;
}

static bool is_closed(void *arg)
{
    struct two *t = arg;
    (void)lien_ctx_progress(t->client);
    (void)lien_ctx_progress(t->server);
    return t->client->stats.conns_open == 0 && t->server->stats.conns_open == 0;
}

// With a policy the candidates of tcp have to be looked at, which is here seen.
static void once_and_without_the_lock(void)
{
    struct lieni_provider looked_at = lieni_provider_tcp;
    looked_at.candidates = ask;
    const struct lieni_provider *const providers[] = {&looked_at, NULL};
    struct lieni_platform platform = *lieni_platform_real();
    platform.providers = providers;
    open_two(&asked, &platform, "nic=lo", "nic=lo", LIEN_APP_DRIVEN);
    CHECK_EQ(asks, 2); // each ctx as it opened
    for (unsigned i = 1; i <= 3; i++) {
        CHECK_EQ(lien_conn_open(asked.client, asked.address, NULL, &asked.ours), 0);
        CHECK(fault_until(is_open, &asked, 120000));
        CHECK_EQ(asks, 2 + 2 * i); // each side once, whatever it needs to know
        lien_conn_info info;
        fault_info(asked.ours, &info);
        CHECK_EQ(strcmp(info.nic, "lo"), 0);
        CHECK_EQ(lien_conn_close(&asked.ours), 0);
        CHECK_EQ(lien_conn_close(&asked.theirs), 0);
        CHECK(fault_until(is_closed, &asked, 120000));
    }
    close_two(&asked);
}

// -- require_zero_copy ---------------------------------------------------------------------------------------------------------------

static void zero_copy_or_nothing(void)
{
    static const struct {
        const char *provider, *why;
    } copies[] = {
        {"tcp", "candidate tcp: its path is kernel, and option require_zero_copy accepts only"},
        {"stream", "candidate stream: its path is inline, and option require_zero_copy accepts"},
        {"ws", "candidate ws: its path is inline, and option require_zero_copy accepts only rdma"},
        {"wss", "candidate wss: its path is inline, and option require_zero_copy accepts only"},
        {"h2c", "candidate h2c: its path is inline, and option require_zero_copy accepts only"},
        {"h2", "candidate h2: its path is inline, and option require_zero_copy accepts only rdma"},
    };
    lien_ctx *ctx = NULL;
    CHECK_EQ(setenv("LIEN_REQUIRE_ZERO_COPY", "1", 1), 0);
    for (size_t i = 0; i < sizeof copies / sizeof copies[0]; i++) {
        char option[64], asked_for[96];
        snprintf(option, sizeof option, "provider=%s", copies[i].provider);
        snprintf(asked_for, sizeof asked_for, "no provider can be used: option provider is \"%s\"",
                 copies[i].provider);
        fault_log_clear();
        CHECK_EQ(open_ctx(lieni_platform_real(), option, 0, &ctx), LIEN_ENOPROVIDER);
        CHECK(ctx == NULL);
        CHECK(fault_log_has(copies[i].why));
        CHECK(fault_log_has(asked_for));
    }
    CHECK_EQ(unsetenv("LIEN_REQUIRE_ZERO_COPY"), 0);
}

// -- Different lists ---------------------------------------------------------------------------------------------------------------

// Whether each side has said both offers, its own first.
static bool both(const char *one, const char *verb, const char *two)
{
    char client[160], server[160];
    snprintf(client, sizeof client, "this side offers %s, the peer%s %s", one, verb, two);
    snprintf(server, sizeof server, "this side offers %s, the peer%s %s", two, verb, one);
    return fault_log_has(client) && fault_log_has(server);
}

// A list of this machine and one of another that has less: what both have, and it is said.
static void what_both_have(void)
{
    struct two t;
    lien_conn_info info;
    CHECK_EQ(setenv("FI_PROVIDER", "tcp,sockets", 1), 0);
    open_two(&t, lieni_platform_real(), NULL, "provider=sockets", 0);
    CHECK_EQ(lien_conn_open_wait(t.client, t.address, NULL, &t.ours), 0);
    CHECK_EQ(lien_listener_accept_wait(t.listener, 120000, &t.theirs), 0);
    fault_info(t.ours, &info);
    CHECK(strcmp(info.provider, "sockets") == 0 && info.path == LIEN_PATH_KERNEL);
    CHECK(!info.ep_end_proves && info.domain_end_proves);
    CHECK(info.read_piece_max > 0 && info.read_bytes_max > 0 && info.reads_max > 0);
    fault_info(t.theirs, &info);
    CHECK_EQ(strcmp(info.provider, "sockets"), 0);
    CHECK(fault_log_has("goes over sockets"));
    CHECK(both("tcp,sockets", "", "sockets"));
    (void)lien_conn_close_wait(&t.ours, 120000);
    (void)lien_conn_close_wait(&t.theirs, 120000);
    close_two(&t);
}

// Nothing in common: both sides show both lists, and nobody falls back.
static void nothing_in_common(void)
{
    struct two t;
    open_two(&t, lieni_platform_real(), "provider=tcp", "provider=sockets", 0);
    CHECK_EQ(lien_conn_open_wait(t.client, t.address, NULL, &t.ours), LIEN_ENOCOMMON);
    CHECK(fault_log_has("no provider in common"));
    CHECK(both("tcp", " offers", "sockets"));
    close_two(&t);
    CHECK_EQ(unsetenv("FI_PROVIDER"), 0);
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    what_both_have(); // first: libfabric reads FI_PROVIDER once
    nothing_in_common();
    CHECK_EQ(setenv("FI_PROVIDER", "tcp,sockets", 1), 0);
    once_and_without_the_lock();
    zero_copy_or_nothing();
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
