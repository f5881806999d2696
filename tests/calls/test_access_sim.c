// SPDX-License-Identifier: Apache-2.0
//
// Pre-shared keys on the simulator [R20]: two contexts, each with keys of its own or none. Who shares one gets a connection and calls through it; the others are refused at both ends, at once
// (no timer ends it), with one line of log each, and nothing of them stays.

#include "tests/calls/world.h"

static const uint8_t key_a[32] = {0xa}, key_b[16] = {0xb};

static struct {
    unsigned lines;
    int code;
    char text[512], peer[128];
} said[2];

static void keep(const lien_log_line *line, void *arg)
{
    unsigned node = (unsigned)(uintptr_t)arg;
    if (line->level > LIEN_LOG_WARN)
        return;
    said[node].lines++;
    said[node].code = line->code;
    snprintf(said[node].text, sizeof(said[node].text), "%s", line->text);
    snprintf(said[node].peer, sizeof(said[node].peer), "%s", line->peer ? line->peer : "");
}

// A key for each letter.
static size_t keys_of(const char *letters, lien_psk keys[4])
{
    size_t n = strlen(letters);
    for (size_t i = 0; i < n; i++)
        keys[i] = letters[i] == 'a' ? (lien_psk){key_a, sizeof(key_a)}
                                    : (lien_psk){key_b, sizeof(key_b)};
    return n;
}

static struct {
    bool over;
    int status;
} opening;

static void on_open(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    (void)arg;
    opening.over = true;
    opening.status = status;
}

static void world_with_keys(struct world *w, uint64_t seed, const char *server, const char *client)
{
    static const char *const patient[] = {"connect_ms=3600000", NULL};
    struct lieni_sim_config config;
    memset(w, 0, sizeof(*w));
    memset(said, 0, sizeof(said));
    lieni_sim_config_init(&config, LIENI_SIM_TCP);
    w->sim = lieni_sim_world_new(seed, &config);
    cr_assert_not_null(w->sim);
    for (unsigned i = 0; i < 2; i++) {
        lien_psk keys[4];
        lien_ctx_opts opts;
        lien_ctx_opts_init(&opts);
        opts.flags = LIEN_APP_DRIVEN | LIEN_KEEP_NOFILE;
        opts.settings = patient;
        opts.log = keep;
        opts.log_arg = (void *)(uintptr_t)i;
        opts.psks = keys;
        opts.n_psks = keys_of(i == SERVER ? server : client, keys);
        cr_assert_eq(lieni_ctx_open_platform(&opts, lieni_sim_node_platform(w->sim, i), &w->ctx[i]),
                     0);
        memset(keys, 0xff, sizeof(keys)); // they were used up
        cr_assert_eq(lien_pool_open(w->ctx[i], NULL, &w->pool[i]), 0);
    }
}

// Whether the client got in.
static int try_once(struct world *w)
{
    lien_listener_opts lo;
    lien_conn_opts co;
    char bound[96], address[128];
    lien_listener_opts_init(&lo);
    lo.arg = w;
    lo.on_accept = accepted;
    cr_assert_eq(lien_listener_open(w->ctx[SERVER], "*:0", &lo, &w->listener), 0);
    cr_assert_eq(lien_listener_address(w->listener, bound, sizeof(bound)), 0);
    snprintf(address, sizeof(address), "%s%s", lieni_sim_node_host(w->sim, SERVER),
             strrchr(bound, ':'));
    lien_conn_opts_init(&co);
    co.on_open = on_open;
    memset(&opening, 0, sizeof(opening));
    cr_assert_eq(lien_conn_open(w->ctx[CLIENT], address, &co, &w->conn[CLIENT]), 0);
    cr_assert(run_until(w, &opening.over, 1000), "not decided");
    run_ms(w, 10);
    return opening.status;
}

static void settle(struct world *w)
{
    lien_listener_close(&w->listener);
    for (unsigned i = 0; i < 2; i++)
        if (w->conn[i])
            lien_conn_close(&w->conn[i]);
    run_ms(w, 5000);
    for (unsigned i = 0; i < 2; i++) {
        cr_assert(lieni_list_empty(&w->ctx[i]->conns), "a connection of node %u is left", i);
        cr_assert_eq(w->ctx[i]->half_open, 0);
        lien_pool_close(&w->pool[i]);
        cr_assert_eq(lien_ctx_close(&w->ctx[i]), 0);
    }
    lieni_sim_check_quiet(w->sim);
    cr_assert_eq(lieni_sim_violations(w->sim), 0, "%s", lieni_sim_violation(w->sim, 0));
    lieni_sim_world_free(w->sim);
}

static void echo(struct world *w)
{
    lien_msg *msg = NULL;
    const void *head;
    size_t len;
    cr_assert_eq(lien_send(w->conn[CLIENT], "key", 3, NULL, 0, NULL), 0);
    run_ms(w, 100);
    cr_assert_eq(lien_msg_recv_wait(w->conn[SERVER], 0, &msg), 0);
    cr_assert_eq(lien_msg_head(msg, &head, &len), 0);
    cr_assert(len == 3 && memcmp(head, "key", 3) == 0);
    lien_msg_free(&msg);
}

Test(access, who_shares_a_key_and_who_does_not)
{
    static const struct {
        const char *server, *client;
        int status;
        const char *at_server, *at_client;
    } cases[] = {
        {"", "", 0, "", ""},
        {"a", "a", 0, "", ""},
        {"b", "b", 0, "", ""},
        {"ba", "a", 0, "", ""},
        {"a", "ab", 0, "", ""},
        {"a", "ba", LIEN_EAUTH, "none of the server's", "refused: LIEN_EAUTH"},
        {"a", "b", LIEN_EAUTH, "none of the server's", "refused: LIEN_EAUTH"},
        {"a", "", LIEN_EAUTH, "the server requires a pre-shared key",
         "the server requires a pre-shared key"},
        {"", "a", LIEN_EAUTH, "the client requires a pre-shared key",
         "the client requires a pre-shared key"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (uint64_t seed = 1; seed <= 5; seed++) {
            struct world w;
            world_with_keys(&w, seed, cases[i].server, cases[i].client);
            int status = try_once(&w);
            cr_assert_eq(status, cases[i].status, "\"%s\", \"%s\": %s", cases[i].server,
                         cases[i].client, lien_errname(status));
            cr_assert_eq(w.conn[SERVER] != NULL, status == 0);
            if (status == 0)
                echo(&w);
            for (unsigned node = 0; node < 2; node++) {
                const char *word = node == SERVER ? cases[i].at_server : cases[i].at_client;
                cr_assert_eq(said[node].lines, status != 0, "node %u: %s", node, said[node].text);
                cr_assert_eq(said[node].code, status);
                cr_assert_not_null(strstr(said[node].text, word), "%s", said[node].text);
                cr_assert(status == 0 || strchr(said[node].peer, ':'), "without the peer");
            }
            settle(&w);
        }
    }
}

Test(access, a_wrong_key_costs_the_server_no_port)
{
    struct world w;
    world_with_keys(&w, 3, "a", "b");
    cr_assert_eq(try_once(&w), LIEN_EAUTH);
    cr_assert_eq(w.ctx[SERVER]->fabric_pending, 0);
    cr_assert(lieni_list_empty(&w.ctx[SERVER]->nics), "a NIC was opened for a stranger");
    settle(&w);
}
