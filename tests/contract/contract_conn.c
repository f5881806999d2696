// SPDX-License-Identifier: Apache-2.0
//
// Bad input to connections and listeners.

#include "tests/contract/contract.h"

static void no_open(lien_conn *conn, int status, void *arg)
{
    (void)conn;
    (void)status;
    (void)arg;
    contract_fail("a callback of a refused call never runs", __FILE__, __LINE__);
}

static const char *const malformed[] = {
    "",
    ":",
    "host",
    "127.0.0.1",
    "127.0.0.1:",
    "127.0.0.1:65536",
    "127.0.0.1:-1",
    "127.0.0.1:x",
    "[::1:5",
    "::1:5:",
    "[]:5",
};

// A host longer than any name.
static const char *overlong(void)
{
    static char text[5000];
    memset(text, 'a', sizeof text - 1);
    memcpy(text + sizeof text - 6, ":1234", 5);
    return text;
}

static void conn_addresses(void)
{
    lien_conn *conn = UNTOUCHED;
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.on_open = no_open;
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        REFUSES(LIEN_EADDR, lien_conn_open, w.a, malformed[i], &opts, &conn);
        REFUSES(LIEN_EADDR, lien_conn_open_wait, w.a, malformed[i], &opts, &conn);
    }
    REFUSES(LIEN_EADDR, lien_conn_open, w.a, overlong(), &opts, &conn);
    REFUSES(LIEN_EADDR, lien_conn_open_wait, w.a, overlong(), &opts, &conn);
    REFUSES(LIEN_EADDR, lien_conn_open, w.a, "*:1234", &opts, &conn);
    CHECK(conn == UNTOUCHED);
}

static void conn_open(void)
{
    lien_conn *conn = UNTOUCHED;
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    REFUSES(LIEN_EINVAL, lien_conn_open, NULL, w.address_b, NULL, &conn);
    REFUSES(LIEN_EINVAL, lien_conn_open, w.a, NULL, NULL, &conn);
    REFUSES(LIEN_EINVAL, lien_conn_open, w.a, w.address_b, NULL, NULL);
    REFUSES(LIEN_EINVAL, lien_conn_open_wait, NULL, w.address_b, NULL, &conn);
    REFUSES(LIEN_EINVAL, lien_conn_open_wait, w.a, NULL, NULL, &conn);
    REFUSES(LIEN_EINVAL, lien_conn_open_wait, w.a, w.address_b, NULL, NULL);
    BAD_SIZES(lien_conn_opts, lien_conn_opts_init, o,
              REFUSES(refusal, lien_conn_open, w.a, w.address_b, o, &conn));
    BAD_SIZES(lien_conn_opts, lien_conn_opts_init, o,
              REFUSES(refusal, lien_conn_open_wait, w.a, w.address_b, o, &conn));
    for (unsigned bit = 1; bit < 32; bit++) {
        opts.flags = 1u << bit;
        REFUSES(LIEN_EINVAL, lien_conn_open, w.a, w.address_b, &opts, &conn);
        REFUSES(LIEN_EINVAL, lien_conn_open_wait, w.a, w.address_b, &opts, &conn);
    }
    opts.flags = 0;
    opts.pool = w.pool_b; // of another ctx
    REFUSES(LIEN_EINVAL, lien_conn_open, w.a, w.address_b, &opts, &conn);
    REFUSES(LIEN_EINVAL, lien_conn_open_wait, w.a, w.address_b, &opts, &conn);
    CHECK(conn == UNTOUCHED);
}

static void conn_rest(void)
{
    lien_conn *none = NULL;
    lien_conn_info info;
    REFUSES(LIEN_EINVAL, lien_conn_close, NULL);
    REFUSES(LIEN_EINVAL, lien_conn_close, &none);
    REFUSES(LIEN_EINVAL, lien_conn_close_wait, NULL, 1);
    REFUSES(LIEN_EINVAL, lien_conn_close_wait, &none, 1);
    REFUSES(LIEN_EINVAL, lien_conn_info_get, NULL, &info);
    CALLS(lien_conn_ctx, NULL);
    CHECK(!lien_conn_ctx(NULL) && lien_conn_ctx(w.ab) == w.a);
    REFUSES(LIEN_EINVAL, lien_conn_info_get, w.ab, NULL);
    for (size_t size = 0; size < sizeof(size_t); size++) {
        memset(&info, 0x5e, sizeof info);
        info.size = size;
        REFUSES(LIEN_EINVAL, lien_conn_info_get, w.ab, &info);
        CHECK(info.id == 0x5e5e5e5e5e5e5e5eu);
    }
    memset(&info, 0x5e, sizeof info);
    info.size = offsetof(lien_conn_info, provider);
    ANSWERS(0, lien_conn_info_get, w.ab, &info);
    REFUSES(LIEN_EINVAL, lien_conn_trace, NULL, 2);
    REFUSES(LIEN_EINVAL, lien_conn_trace, w.ab, -1);
    REFUSES(LIEN_ESTATE, lien_conn_trace, w.ab, 2); // option trace is 0
    CHECK(info.id != 0 && info.provider[0] == 0x5e);
}

static void listener_addresses(void)
{
    lien_listener *listener = UNTOUCHED;
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        REFUSES(LIEN_EADDR, lien_listener_open, w.a, malformed[i], NULL, &listener);
    }
    REFUSES(LIEN_EADDR, lien_listener_open, w.a, overlong(), NULL, &listener);
    REFUSES(LIEN_EADDR, lien_listener_open, w.a, "192.0.2.1:0", NULL,
            &listener);                                                         // not of this host
    REFUSES(LIEN_EADDR, lien_listener_open, w.a, w.address_b, NULL, &listener); // in use
    CHECK(listener == UNTOUCHED);
}

static int refuse_all(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    (void)listener;
    (void)conn;
    (void)arg;
    (void)conn_arg;
    return 1;
}

static void listener_rest(void)
{
    char text[96] = "x";
    lien_listener *none = NULL, *listener = NULL;
    lien_conn *conn = UNTOUCHED;
    lien_listener_opts opts;
    REFUSES(LIEN_EINVAL, lien_listener_address, NULL, text, sizeof text);
    REFUSES(LIEN_EINVAL, lien_listener_address, w.listener_b, NULL, sizeof text);
    for (size_t size = 0; size <= strlen(w.address_b); size++)
        REFUSES(LIEN_ERANGE, lien_listener_address, w.listener_b, text, size);
    CHECK(strcmp(text, "x") == 0);
    ANSWERS(0, lien_listener_address, w.listener_b, text, strlen(w.address_b) + 1);
    REFUSES(LIEN_EINVAL, lien_listener_accept_wait, NULL, 1, &conn);
    REFUSES(LIEN_EINVAL, lien_listener_accept_wait, w.listener_b, 1, NULL);
    REFUSES(LIEN_ETIMEDOUT, lien_listener_accept_wait, w.listener_b, 1, &conn);
    REFUSES(LIEN_ETIMEDOUT, lien_listener_accept_wait, w.listener_b, 0, &conn);
    lien_listener_opts_init(&opts);
    opts.on_accept = refuse_all;
    ANSWERS(0, lien_listener_open, w.b, "127.0.0.1:0", &opts, &listener);
    REFUSES(LIEN_ESTATE, lien_listener_accept_wait, listener, 1, &conn);
    REFUSES(LIEN_EINVAL, lien_listener_close, NULL);
    REFUSES(LIEN_EINVAL, lien_listener_close, &none);
    ANSWERS(0, lien_listener_close, &listener);
    CHECK(!listener && conn == UNTOUCHED);
}

void contract_conn(void)
{
    lien_listener *listener = UNTOUCHED;
    lien_listener_opts opts;
    conn_addresses();
    conn_open();
    conn_rest();
    listener_addresses();
    lien_listener_opts_init(&opts);
    REFUSES(LIEN_EINVAL, lien_listener_open, NULL, "127.0.0.1:0", NULL, &listener);
    REFUSES(LIEN_EINVAL, lien_listener_open, w.a, NULL, NULL, &listener);
    REFUSES(LIEN_EINVAL, lien_listener_open, w.a, "127.0.0.1:0", NULL, NULL);
    BAD_SIZES(lien_listener_opts, lien_listener_opts_init, o,
              REFUSES(refusal, lien_listener_open, w.a, "127.0.0.1:0", o, &listener));
    lien_conn_opts conn;
    lien_conn_opts_init(&conn);
    conn.size = 0;
    opts.conn = &conn;
    REFUSES(LIEN_EINVAL, lien_listener_open, w.a, "127.0.0.1:0", &opts, &listener);
    lien_conn_opts_init(&conn);
    conn.flags = 1u << 31;
    REFUSES(LIEN_EINVAL, lien_listener_open, w.a, "127.0.0.1:0", &opts, &listener);
    conn.flags = 0;
    conn.pool = w.pool_b;
    REFUSES(LIEN_EINVAL, lien_listener_open, w.a, "127.0.0.1:0", &opts, &listener);
    CHECK(listener == UNTOUCHED);
    listener_rest();
}
