// SPDX-License-Identifier: Apache-2.0
//
// See hostile.h.

#include "tests/hostile/hostile.h"

#include <pthread.h>

const char *hostile_what = "set-up";
lien_ctx *victim;
static lien_ctx *friendly;
lien_pool *pool;
lien_listener *listener;
char address[96];
static lien_conn *to_friend, *from_friend;
struct rawworld world;
static struct rawpeer quiet; // keeps the rules
static lien_conn *quiet_conn;
unsigned attacks;
const char *hostile_setting;

static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[8192]; // lines of interest, the latest may be missing

static void log_line(const lien_log_line *line, void *arg)
{
    (void)arg;
    if (line->code == LIEN_EPROTO || line->code == LIEN_ELIMIT) {
        pthread_mutex_lock(&said_lock);
        const size_t len = strlen(said);
        snprintf(said + len, sizeof said - len, "%s\n", line->text);
        pthread_mutex_unlock(&said_lock);
    }
    if (getenv("HOSTILE_VERBOSE"))
        fprintf(stderr, "%s: %s\n", lien_errname(line->code), line->text);
}

static lien_ctx *open_ctx(void)
{
    const char *const settings[] = {"heartbeat_ms=0", "message_credits=8", "control_credits=8",
                                    "frame_max=4096", hostile_setting,     NULL};
    lien_ctx_opts opts;
    lien_ctx *ctx;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    opts.log = log_line;
    CHECK(lien_ctx_open(&opts, &ctx) == 0);
    return ctx;
}

bool hostile_heard(const char *text)
{
    bool found = false;
    for (int i = 0; i < 5000 && !found; i++) {
        pthread_mutex_lock(&said_lock);
        found = strstr(said, text) != NULL;
        pthread_mutex_unlock(&said_lock);
        if (!found)
            rawpeer_pump(&world, 1);
    }
    return found;
}

void hostile_heard_nothing(void)
{
    pthread_mutex_lock(&said_lock);
    said[0] = '\0';
    pthread_mutex_unlock(&said_lock);
}

lien_ctx_stats stats(void)
{
    lien_ctx_stats s = {.size = sizeof s};
    CHECK(lien_ctx_stats_get(victim, &s) == 0);
    return s;
}

bool is_open(lien_conn *conn)
{
    lien_conn_info info = {.size = sizeof info};
    CHECK(lien_conn_info_get(conn, &info) == 0);
    return info.open;
}

void others_go_on(void)
{
    lien_conn *const ends[][2] = {{from_friend, to_friend}, {to_friend, from_friend}};
    for (int i = 0; i < 2; i++) {
        lien_msg *msg;
        const void *head;
        size_t len;
        CHECK(lien_send(ends[i][0], &attacks, sizeof attacks, NULL, 0, NULL) == 0);
        CHECK(lien_msg_recv_wait(ends[i][1], 5000, &msg) == 0);
        CHECK(lien_msg_head(msg, &head, &len) == 0 && len == sizeof attacks);
        CHECK(memcmp(head, &attacks, len) == 0);
        lien_msg_free(&msg);
    }
    CHECK(is_open(quiet_conn) && !quiet.down);
}

void begin(struct rawpeer *peer, lien_conn **conn)
{
    rawpeer_connect(&world, peer, address, NULL);
    CHECK(lien_listener_accept_wait(listener, 5000, conn) == 0);
    CHECK(is_open(*conn));
}

void end(struct rawpeer *peer, lien_conn **conn)
{
    attacks++;
    others_go_on();
    CHECK(lien_conn_close(conn) == 0);
    rawpeer_close(peer);
}

int status_of_end(lien_conn *conn, struct rawpeer *peer)
{
    lien_msg *msg;
    int rc = LIEN_ETIMEDOUT;
    for (int i = 0; i < 5000 && (rc == 0 || rc == LIEN_ETIMEDOUT); i++) {
        rawpeer_pump(peer->world, 0);
        rc = lien_msg_recv_wait(conn, 1, &msg);
        if (rc == 0)
            lien_msg_free(&msg);
    }
    return rc;
}

static void renumber(uint8_t *bytes, size_t len, uint32_t number)
{
    if (len >= AT_NUMBER + 4 && lieni_get32(bytes + AT_NUMBER) == 1)
        lieni_put32(bytes + AT_NUMBER, number);
}

void breaks(const uint8_t *bytes, size_t len, const struct stage *stage)
{
    struct rawpeer peer;
    lien_conn *conn;
    uint8_t copy[1024];
    uint64_t errors = stats().protocol_errors;
    begin(&peer, &conn);
    if (stage && stage->prepare)
        stage->prepare(&peer, conn);
    CHECK(len <= sizeof copy && is_open(conn));
    memcpy(copy, bytes, len);
    renumber(copy, len, peer.number + 1);
    rawpeer_bytes(&peer, copy, len);
    int status = status_of_end(conn, &peer);
    if (status != LIEN_EPROTO)
        fprintf(stderr, "%zu bytes of kind %d: %s\n", len, len > 0 ? bytes[0] : -1,
                lien_errname(status));
    CHECK(status == LIEN_EPROTO);
    CHECK(stats().protocol_errors == errors + 1);
    if (stage && stage->clear)
        stage->clear();
    end(&peer, &conn);
}

// -- Samples --

struct sample make_sample(const char *name, const struct lieni_frame *frame, size_t from,
                          size_t step, const struct stage *stage)
{
    struct sample s = {.name = name, .whole_from = from, .whole_step = step, .stage = stage};
    _Atomic uint64_t copied = 0;
    CHECK(lieni_frame_encode(frame, s.bytes, sizeof s.bytes, &copied, &s.len) == 0);
    lieni_frame_stamp(s.bytes, 0, 0, 1);
    return s;
}

static bool whole(const struct sample *s, size_t len)
{
    return s->whole_step > 0 && len >= s->whole_from && (len - s->whole_from) % s->whole_step == 0;
}

// -- Cut, and lengths that lie --

void cuts(const struct sample *s, bool plain)
{
    hostile_what = s->name;
    for (size_t len = 0; len < s->len; len++) {
        if (plain || len <= AT_LEN + 1)
            breaks(s->bytes, len, s->stage);
        uint8_t patched[sizeof s->bytes];
        memcpy(patched, s->bytes, s->len);
        lieni_put16(patched + AT_LEN, (uint16_t)len);
        if (len > AT_LEN + 1 && !whole(s, len))
            breaks(patched, len, s->stage);
    }
    uint8_t longer[sizeof s->bytes + 8] = {0};
    memcpy(longer, s->bytes, s->len);
    breaks(longer, s->len + 1, s->stage);
    breaks(longer, s->len + 8, s->stage);
    lieni_put16(longer + AT_LEN, (uint16_t)(s->len + 1));
    if (!whole(s, s->len + 1))
        breaks(longer, s->len + 1, s->stage);
}

void lengths(const struct sample *s)
{
    const uint16_t lies[] = {0,
                             1,
                             15,
                             16,
                             (uint16_t)(s->len - 1),
                             (uint16_t)(s->len + 1),
                             (uint16_t)(2 * s->len),
                             RAW_FRAME_MAX,
                             0x7fff,
                             0xffff};
    hostile_what = s->name;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        uint8_t bytes[sizeof s->bytes];
        memcpy(bytes, s->bytes, s->len);
        lieni_put16(bytes + AT_LEN, lies[i]);
        if (lies[i] != s->len)
            breaks(bytes, s->len, s->stage);
    }
}

// -- Set-up --

void set_up(const lien_service *service)
{
    rawworld_open(&world);
    victim = open_ctx();
    friendly = open_ctx();
    CHECK(lien_pool_open(victim, NULL, &pool) == 0);
    lien_conn_opts conn;
    lien_listener_opts opts;
    lien_conn_opts_init(&conn);
    lien_listener_opts_init(&opts);
    conn.service = service;
    opts.conn = &conn;
    CHECK(lien_listener_open(victim, "127.0.0.1:0", &opts, &listener) == 0);
    CHECK(lien_listener_address(listener, address, sizeof address) == 0);
    CHECK(lien_conn_open_wait(friendly, address, NULL, &from_friend) == 0);
    CHECK(lien_listener_accept_wait(listener, 5000, &to_friend) == 0);
    begin(&quiet, &quiet_conn);
}

void pull_down(void)
{
    hostile_what = "the end";
    lien_ctx_stats s = stats();
    CHECK(s.quarantined_total == 0 && s.grants_live == 0);
    CHECK(lien_conn_close(&quiet_conn) == 0);
    rawpeer_wait_down(&quiet, 5000);
    rawpeer_close(&quiet);
    CHECK(lien_ctx_close(&friendly) == 0);
    CHECK(lien_ctx_close(&victim) == 0);
    rawworld_close(&world);
}
