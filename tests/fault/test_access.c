// SPDX-License-Identifier: Apache-2.0
//
// Pre-shared keys over tcp [R20]. A server in this process, whose log is read: who shares its key gets in, from a process of its own too; who has another, none, an old recording, somebody
// else's session is refused, with one line of log that names him and the check: LIEN_EAUTH at both ends in the bootstrap, LIEN_EPROTO at the fabric port, which knows no key. A session that was
// used has no port any more, so nobody is there to write a line. The server serves on, and nothing of them stays.

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/handshake.h"
#include "provider/tcp/tcp.h"
#include "tests/fault/fault.h"

#define HANG_MS 10000u // what takes so long never comes

static uint8_t key_a[32] = {0xa}, key_b[32] = {0xb};
static const lien_psk just_a[] = {{key_a, sizeof key_a}}, just_b[] = {{key_b, sizeof key_b}};
static const lien_psk b_then_a[] = {{key_b, sizeof key_b}, {key_a, sizeof key_a}};

// -- Contexts whose log is kept ----------------------------------------------------------------------------------------------------

struct end {
    lien_ctx *ctx;
    lien_listener *listener;
    char address[96];
    pthread_mutex_t lock;
    unsigned lines; // warnings and errors
    lien_log_line last;
    char text[1024], peer[128];
};

static void keep(const lien_log_line *line, void *arg)
{
    struct end *e = arg;
    if (line->level > LIEN_LOG_WARN)
        return;
    pthread_mutex_lock(&e->lock);
    e->lines++;
    e->last = *line;
    snprintf(e->text, sizeof e->text, "%s", line->text);
    snprintf(e->peer, sizeof e->peer, "%s", line->peer ? line->peer : "");
    pthread_mutex_unlock(&e->lock);
}

static void end_open(struct end *e, const lien_psk *keys, size_t n, const char *const *settings)
{
    lien_ctx_opts opts;
    memset(e, 0, sizeof *e);
    pthread_mutex_init(&e->lock, NULL);
    lien_ctx_opts_init(&opts);
    opts.psks = keys;
    opts.n_psks = n;
    opts.log = keep;
    opts.log_arg = e;
    opts.settings = settings;
    CHECK_EQ(lien_ctx_open(&opts, &e->ctx), 0);
}

static void end_listen(struct end *e)
{
    CHECK_EQ(lien_listener_open(e->ctx, "127.0.0.1:0", NULL, &e->listener), 0);
    CHECK_EQ(lien_listener_address(e->listener, e->address, sizeof e->address), 0);
}

static void end_close(struct end *e)
{
    if (e->listener)
        CHECK_EQ(lien_listener_close(&e->listener), 0);
    CHECK_EQ(lien_ctx_close(&e->ctx), 0);
    pthread_mutex_destroy(&e->lock);
}

static unsigned lines_of(struct end *e)
{
    pthread_mutex_lock(&e->lock);
    unsigned n = e->lines;
    pthread_mutex_unlock(&e->lock);
    return n;
}

static bool has_line(void *arg)
{
    return lines_of(arg) > 0;
}

// One line so far, of this code, about a peer on loopback, that says this. Forgets it.
static void one_line(struct end *e, int code, const char *word)
{
    if (!fault_until(has_line, e, HANG_MS))
        fprintf(stderr, "no line \"%s\"\n", word);
    CHECK(lines_of(e) > 0);
    fault_sleep(20); // a second one would show here, or with the next
    pthread_mutex_lock(&e->lock);
    if (e->lines != 1 || e->last.code != code || !strstr(e->text, word) ||
        !strstr(e->peer[0] ? e->peer : e->text, "127.0.0.1:"))
        fprintf(stderr, "%u lines, %s, peer %s: \"%s\", expected \"%s\"\n", e->lines,
                lien_errname(e->last.code), e->peer, e->text, word);
    CHECK_EQ(e->lines, 1);
    CHECK_EQ(e->last.code, code);
    CHECK(strstr(e->text, word) != NULL);
    CHECK(strstr(e->peer[0] ? e->peer : e->text, "127.0.0.1:") != NULL);
    e->lines = 0;
    pthread_mutex_unlock(&e->lock);
}

static void no_line(struct end *e)
{
    if (lines_of(e) != 0)
        fprintf(stderr, "unexpected: %s\n", e->text);
    CHECK_EQ(lines_of(e), 0);
}

static unsigned descriptors(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static unsigned before;

static bool as_before(void *arg)
{
    (void)arg;
    return descriptors() <= before;
}

// -- Those who may ---------------------------------------------------------------------------------------------------------------

static struct end server, friendly;

// A message both ways over a new connection.
static void serves(struct end *from, struct end *to)
{
    lien_conn *ends[2] = {NULL, NULL};
    CHECK_EQ(lien_conn_open_wait(from->ctx, to->address, NULL, &ends[0]), 0);
    CHECK_EQ(lien_listener_accept_wait(to->listener, HANG_MS, &ends[1]), 0);
    for (int i = 0; i < 2; i++) {
        lien_msg *msg = NULL;
        const void *head;
        size_t len;
        CHECK_EQ(lien_send(ends[i], "key", 3, NULL, 0, NULL), 0);
        CHECK_EQ(lien_msg_recv_wait(ends[!i], HANG_MS, &msg), 0);
        CHECK_EQ(lien_msg_head(msg, &head, &len), 0);
        CHECK(len == 3 && memcmp(head, "key", 3) == 0);
        lien_msg_free(&msg);
    }
    CHECK_EQ(lien_conn_close_wait(&ends[0], HANG_MS), 0);
    lien_conn_close_wait(&ends[1], HANG_MS);
}

// The key in a file, as a user has it; the other end is another process: messages and 8 MiB by READ.
static void another_process(void)
{
    char dir[] = "/tmp/lien-access-XXXXXX", path[64], setting[80];
    CHECK(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/key", dir);
    snprintf(setting, sizeof setting, "psk_file=%s", path);
    FILE *file = fopen(path, "we");
    CHECK(file && fchmod(fileno(file), 0600) == 0);
    fputs("# made for a test\n0123456789abcdef0123456789abcdef0123456789abcdef\n", file);
    fclose(file);
    const char *const settings[] = {setting, NULL};
    struct fault_side side;
    struct fault_peer peer;
    struct fault_read r = {0};
    lien_token token;
    fault_side_open(&side, settings, 0);
    fault_peer_start(&peer, settings);
    lien_conn *conn = fault_connect(&side, &peer);
    CHECK(fault_echo(conn, HANG_MS) >= 0);
    fault_ask_grant(conn, 8 * MIB, &token);
    lien_space *space = fault_space(&side, 8 * MIB);
    CHECK_EQ(fault_read_start(&r, conn, &token, space, HANG_MS, LIEN_RELEASE), 0);
    CHECK(fault_until(fault_read_is_released, &r, HANG_MS));
    CHECK_EQ(r.status, 0);
    CHECK(fault_space_is_pattern(space));
    lien_space_free(&space);
    lien_read_close(&r.read);
    CHECK_EQ(lien_conn_close_wait(&conn, HANG_MS), 0);
    // Nobody without the key gets in there either.
    struct end none;
    end_open(&none, NULL, 0, NULL);
    CHECK_EQ(lien_conn_open_wait(none.ctx, peer.address, NULL, &conn), LIEN_EAUTH);
    end_close(&none);
    fault_peer_end(&peer);
    fault_side_close(&side);
    unlink(path);
    rmdir(dir);
}

// -- Those who may not -----------------------------------------------------------------------------------------------------------

// Refused at both ends, within the time of a handshake: not by a timer.
static void refused(const lien_psk *keys, size_t n, const char *there, const char *here)
{
    static const char *const patient[] = {"connect_ms=3600000", NULL};
    struct end stranger;
    lien_conn *conn = NULL;
    end_open(&stranger, keys, n, patient);
    CHECK_EQ(lien_conn_open_wait(stranger.ctx, server.address, NULL, &conn), LIEN_EAUTH);
    CHECK(!conn);
    one_line(&server, LIEN_EAUTH, there);
    one_line(&stranger, LIEN_EAUTH, here);
    end_close(&stranger);
    serves(&friendly, &server);
}

static void wrong_and_missing_keys(void)
{
    refused(just_b, 1, "the client's pre-shared key is none of the server's", "LIEN_EAUTH");
    refused(NULL, 0, "the server requires a pre-shared key, the client has none",
            "the server requires a pre-shared key, the client has none");
    before = descriptors();
    for (int i = 0; i < 5; i++)
        refused(just_b, 1, "none of the server's", "LIEN_EAUTH");
    CHECK(fault_until(as_before, NULL, HANG_MS));
}

// The server has none, its client asks for one.
static void server_without(void)
{
    struct end bare;
    lien_conn *conn = NULL;
    end_open(&bare, NULL, 0, NULL);
    end_listen(&bare);
    CHECK_EQ(lien_conn_open_wait(friendly.ctx, bare.address, NULL, &conn), LIEN_EAUTH);
    one_line(&bare, LIEN_EAUTH, "the client requires a pre-shared key, the server has none");
    one_line(&friendly, LIEN_EAUTH, "the client requires a pre-shared key, the server has none");
    end_close(&bare);
}

// A key is replaced: servers take both, clients change over, and who still has the old one only is refused in the end.
static void rotation(void)
{
    struct end both, fresh;
    end_open(&both, b_then_a, 2, NULL);
    end_listen(&both);
    end_open(&fresh, just_b, 1, NULL);
    serves(&friendly, &both);
    serves(&fresh, &both);
    no_line(&both);
    end_close(&fresh);
    end_close(&both);
}

// -- By hand ---------------------------------------------------------------------------------------------------------------------

// A handshake of ours over a plain socket, with what was sent.
struct by_hand {
    int fd;
    struct lieni_handshake hs;
    uint8_t sent[8192];
    size_t n_sent;
};

static struct lieni_keyring *ring_a(void)
{
    struct lieni_keyring *ring = NULL;
    CHECK_EQ(lieni_keyring_open(just_a, 1, "", NULL, &ring), 0);
    return ring;
}

static void shake_hands(struct by_hand *b, const struct lieni_keyring *ring)
{
    struct lieni_offer offer = {.version_min = LIENI_WIRE_VERSION,
                                .version_max = LIENI_WIRE_VERSION,
                                .n_providers = 1,
                                .providers = {"tcp"},
                                .frame_max = 4096,
                                .message_credits = 4,
                                .control_credits = 8,
                                .message_max = 1 << 20,
                                .grants_max = 64};
    uint8_t bytes[1024];
    const struct lieni_env *env = &lieni_platform_real()->env;
    env->random(env->self, offer.nonce, sizeof offer.nonce);
    b->n_sent = 0;
    b->fd = fault_dial("127.0.0.1", fault_port_of(server.address));
    CHECK_EQ(lieni_hs_start(&b->hs, false, &offer, NULL, ring), 0);
    while (b->hs.state == LIENI_HS_CLIENT_WAIT) {
        CHECK(b->n_sent + b->hs.out_len <= sizeof b->sent);
        memcpy(b->sent + b->n_sent, b->hs.out, b->hs.out_len);
        b->n_sent += b->hs.out_len;
        if (b->hs.out_len > 0)
            CHECK_EQ(send(b->fd, b->hs.out, b->hs.out_len, MSG_NOSIGNAL), b->hs.out_len);
        lieni_hs_sent(&b->hs, b->hs.out_len);
        ssize_t got = recv(b->fd, bytes, sizeof bytes, 0);
        CHECK(got >= 0);
        lieni_hs_input(&b->hs, bytes, (size_t)got);
    }
    CHECK_EQ(b->hs.state, LIENI_HS_READY);
}

// A recording of a bootstrap, key and all, played to the server again.
static void replayed(const struct by_hand *b)
{
    char answer[4096];
    int fd = fault_dial("127.0.0.1", fault_port_of(server.address));
    CHECK_EQ(send(fd, b->sent, b->n_sent, MSG_NOSIGNAL), b->n_sent);
    while (recv(fd, answer, sizeof answer, 0) > 0)
        ; // until it hangs up
    one_line(&server, LIEN_EAUTH, "none of the server's");
    close(fd);
}

// An endpoint at the fabric port that `hs` was told, with this private data.
struct fabric {
    struct lieni_prov *prov;
    struct lieni_domain *domain;
    struct lieni_ep *ep;
    bool up, over; // polled
};

static void say(void *self, lien_level level, int code, const char *text)
{
    (void)self;
    (void)level;
    (void)code;
    (void)text;
}

static void fabric_connect(struct fabric *f, const struct lieni_handshake *hs,
                           const uint8_t data[LIENI_CM_DATA], const uint8_t expect[LIENI_CM_DATA])
{
    const struct lieni_provider *ops = &lieni_provider_tcp;
    const struct lieni_prov_args args = {.env = &lieni_platform_real()->env,
                                         .report = {.say = say}};
    struct lieni_ep_args ep_args = {
        .user = f, .host = "127.0.0.1", .port = hs->port, .posts_max = 16};
    memset(f, 0, sizeof *f);
    memcpy(ep_args.send_data, data, LIENI_CM_DATA);
    memcpy(ep_args.expect_data, expect, LIENI_CM_DATA);
    CHECK_EQ(ops->open(&args, &f->prov), 0);
    CHECK_EQ(ops->domain_open(f->prov, NULL, &f->domain), 0);
    CHECK_EQ(ops->connect(f->domain, &ep_args, &f->ep), 0);
}

static bool decided(void *arg)
{
    struct fabric *f = arg;
    struct lieni_event ev;
    while (lieni_provider_tcp.poll(f->prov, &ev, 1) > 0) {
        f->up = f->up || ev.kind == LIENI_EV_UP;
        f->over = f->over || ev.kind == LIENI_EV_FAILED || ev.kind == LIENI_EV_DOWN;
    }
    return f->up || f->over;
}

static void fabric_close(struct fabric *f)
{
    const struct lieni_provider *ops = &lieni_provider_tcp;
    enum lieni_proof proof;
    uint64_t late = 0;
    ops->ep_shutdown(f->ep);
    while (ops->ep_destroy(f->ep, &proof, &late) == LIEN_EBUSY)
        fault_sleep(1);
    CHECK_EQ(ops->domain_close(f->domain, &proof), 0);
    ops->close(f->prov);
}

// Does whoever comes with this get in?
static bool gets_in(const struct lieni_handshake *hs, const uint8_t data[LIENI_CM_DATA],
                    const uint8_t expect[LIENI_CM_DATA])
{
    struct fabric f;
    fabric_connect(&f, hs, data, expect);
    CHECK(fault_until(decided, &f, HANG_MS));
    bool up = f.up;
    fabric_close(&f);
    return up;
}

// Who reads the bootstrap on the line knows port, session, offers and nonces, all but the key. He comes first; then who may; then again, with the very private data that was good once.
static void hijack_and_replay(void)
{
    struct by_hand b;
    struct lieni_keyring *ring = ring_a();
    uint8_t ours[LIENI_CM_DATA], theirs[LIENI_CM_DATA], guess[LIENI_CM_DATA];
    shake_hands(&b, ring);
    lieni_hs_cm_data(&b.hs, false, ours);
    lieni_hs_cm_data(&b.hs, true, theirs);

    struct lieni_handshake heard = b.hs;
    heard.keys = NULL;
    lieni_hs_cm_data(&heard, false, guess);
    CHECK(!gets_in(&b.hs, guess, theirs));
    one_line(&server, LIEN_EPROTO, "its private data is not that of the bootstrap");
    memcpy(guess, ours, sizeof guess);
    memset(guess + 17, 0, 32);
    CHECK(!gets_in(&b.hs, guess, theirs));
    one_line(&server, LIEN_EPROTO, "its private data is not that of the bootstrap");
    CHECK(!gets_in(&b.hs, theirs, ours)); // the server's own, reflected
    one_line(&server, LIEN_EPROTO, "its private data is not that of the bootstrap");
    serves(&friendly, &server);

    struct fabric f;
    lien_conn *conn = NULL;
    fabric_connect(&f, &b.hs, ours, theirs);
    CHECK(fault_until(decided, &f, HANG_MS));
    CHECK(f.up);
    CHECK_EQ(lien_listener_accept_wait(server.listener, HANG_MS, &conn), 0);
    CHECK(!gets_in(&b.hs, ours, theirs)); // the session is used
    no_line(&server);
    lien_conn *second = NULL;
    CHECK_EQ(lien_listener_accept_wait(server.listener, 0, &second), LIEN_ETIMEDOUT);
    lien_conn_info info = {.size = sizeof info};
    CHECK_EQ(lien_conn_info_get(conn, &info), 0);
    CHECK(info.open);

    replayed(&b);
    CHECK_EQ(lien_conn_info_get(conn, &info), 0);
    CHECK(info.open);
    close(b.fd);
    fabric_close(&f);
    lien_conn_close_wait(&conn, HANG_MS);
    lieni_keyring_close(ring);
    pthread_mutex_lock(&server.lock);
    server.lines = 0; // of that connection's end
    pthread_mutex_unlock(&server.lock);
    serves(&friendly, &server);
}

// -- A man in the middle -----------------------------------------------------------------------------------------------------------

struct middle {
    int listener;
    char address[32];
    bool
        to_client; // whose view is changed: the offer that passes towards the client, else the other
    size_t at;     // offset in the OFFER's body
    uint8_t value;    // is put there
    pthread_t thread; // of one connection
};

static bool receive_all(int fd, uint8_t *bytes, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = recv(fd, bytes + got, len - got, 0);
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

// Preamble and OFFER of one side, changed or not.
static bool pass_offer(const struct middle *m, int from, int to, bool change)
{
    uint8_t bytes[12 + LIENI_OFFER_MAX];
    if (!receive_all(from, bytes, 12))
        return false;
    const size_t len = lieni_get16(bytes + 10);
    CHECK(len <= LIENI_OFFER_MAX);
    if (!receive_all(from, bytes + 12, len))
        return false;
    if (change)
        bytes[12 + m->at] = m->value;
    return send(to, bytes, 12 + len, MSG_NOSIGNAL) == (ssize_t)(12 + len);
}

static void *in_the_middle(void *arg)
{
    struct middle *m = arg;
    int fds[2] = {accept4(m->listener, NULL, NULL, SOCK_CLOEXEC),
                  fault_dial("127.0.0.1", fault_port_of(server.address))};
    uint8_t bytes[1024];
    CHECK(fds[0] >= 0);
    bool alive = pass_offer(m, fds[0], fds[1], !m->to_client) &&
                 pass_offer(m, fds[1], fds[0], m->to_client);
    while (alive) {
        struct pollfd p[2] = {{.fd = fds[0], .events = POLLIN}, {.fd = fds[1], .events = POLLIN}};
        CHECK(poll(p, 2, -1) > 0);
        for (int i = 0; i < 2 && alive; i++) {
            ssize_t n = p[i].revents ? recv(fds[i], bytes, sizeof bytes, 0) : -1;
            if (p[i].revents && n <= 0)
                alive = false;
            else if (n > 0)
                alive = send(fds[!i], bytes, (size_t)n, MSG_NOSIGNAL) == n;
        }
    }
    close(fds[0]);
    close(fds[1]);
    return NULL;
}

static void changed_on_the_way(bool to_client, size_t at, uint8_t value, const char *word)
{
    struct sockaddr_storage name;
    socklen_t len = sizeof name;
    struct middle m = {.to_client = to_client, .at = at, .value = value};
    lien_conn *conn = NULL;
    m.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(m.listener >= 0 && listen(m.listener, 1) == 0); // any port
    CHECK_EQ(getsockname(m.listener, (struct sockaddr *)&name, &len), 0);
    uint16_t port;
    memcpy(&port, (const uint8_t *)&name + 2, sizeof port);
    snprintf(m.address, sizeof m.address, "127.0.0.1:%u",
             (unsigned)((port >> 8 | port << 8) & 0xffff));
    CHECK_EQ(pthread_create(&m.thread, NULL, in_the_middle, &m), 0);
    CHECK_EQ(lien_conn_open_wait(friendly.ctx, m.address, NULL, &conn), LIEN_EAUTH);
    CHECK_EQ(pthread_join(m.thread, NULL), 0);
    close(m.listener);
    one_line(to_client && at == 65 ? &friendly : &server, LIEN_EAUTH, word);
    // The other end heard of it by a refusal, or by the end of the bootstrap.
    struct end *other = to_client && at == 65 ? &server : &friendly;
    CHECK(fault_until(has_line, other, HANG_MS));
    pthread_mutex_lock(&other->lock);
    CHECK_EQ(other->lines, 1);
    other->lines = 0;
    pthread_mutex_unlock(&other->lock);
    serves(&friendly, &server);
}

static void downgrade(void)
{
    for (int to_client = 0; to_client < 2; to_client++) {
        changed_on_the_way(to_client, 40, 1, "an offer was changed on the way"); // credits
        changed_on_the_way(to_client, 2, 3, "an offer was changed on the way");  // version_max
        changed_on_the_way(to_client, 65, 0, "requires a pre-shared key");
    }
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    another_process();
    static const char *const patient[] = {"connect_ms=3600000", NULL}; // nothing ends by time
    end_open(&server, just_a, 1, patient);
    end_listen(&server);
    end_open(&friendly, just_a, 1, patient);
    serves(&friendly, &server);
    wrong_and_missing_keys();
    server_without();
    rotation();
    hijack_and_replay();
    downgrade();
    no_line(&server);
    no_line(&friendly);
    end_close(&friendly);
    end_close(&server);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
