// SPDX-License-Identifier: Apache-2.0
//
// Tokens, keys and releases in a peer's hands: keys that are made up, dead, of another domain, or stretched; releases that come too early or never; names used twice; and tokens that the
// victim's application is given to read by. No byte outside a live grant reaches the peer, its connection ends where the provider refuses, the victim's memory comes back on evidence, and
// others go on.
//
// In a pool whose memory is used again only on proof (LIEN_REUSE_PROVEN). In others a key is that of a whole region on tcp (docs/design.md 8), so the key of a grant that has ended gets what is
// there now: test_reuse has that.

#include "tests/hostile/hostile.h"

#include "provider/tcp/tcp.h"

#define LEN     4096u // of what is granted
#define SECRET  0xa7  // what is not
#define OTHERS  0x5c  // nor this, which came there later
#define NOTHING 0x11  // what is where a READ should have gone
#define RELEASE 300u  // option release_ms

static uint8_t served[2 * 4096]; // the raw peer's
static struct lieni_key served_key;

// -- READs of a peer --

struct attack {
    struct rawpeer peer;
    lien_conn *conn;
    lien_grant *grant;
    lien_token token;
    struct lieni_token_data data; // what the token says
};

static void attack(struct attack *a, const char *name)
{
    memset(a, 0, sizeof *a);
    hostile_what = name;
    begin(&a->peer, &a->conn);
}

static lien_buf *secret(lien_pool *from, size_t len)
{
    lien_buf *buf;
    void *data;
    CHECK(lien_pool_alloc(from, len, &buf) == 0 && lien_buf_mut(buf, &data) == 0);
    memset(data, SECRET, len);
    return buf;
}

static void grant(struct attack *a, lien_buf *buf, unsigned flags)
{
    const char *why;
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.flags = flags;
    CHECK(lien_grant_open(a->conn, &buf, 1, &opts, &a->token, &a->grant) == 0);
    CHECK(lieni_token_decode(a->token.bytes, a->token.len, &a->data, &why) == 0);
}

static bool release(struct attack *a)
{
    const struct lieni_frame frame = {
        .kind = LIENI_FRAME_RELEASE, .n_names = 1, .names = {a->data.name}};
    return rawpeer_frame(&a->peer, &frame);
}

// A READ that gets nothing, and costs its connection.
static void read_is_refused(struct attack *a, uint64_t addr, uint64_t key, size_t len)
{
    const uint8_t *data;
    (void)rawpeer_read_wait(&a->peer, 0, &data);
    memset((uint8_t *)(uintptr_t)data, NOTHING, RAW_READ_MAX);
    CHECK(rawpeer_read(&a->peer, addr, key, len));
    int status = status_of_end(a->conn, &a->peer);
    CHECK(lien_errscope(status) == LIEN_SCOPE_CONN && status != LIEN_EQUARANTINED);
    CHECK(rawpeer_read_wait(&a->peer, 20000, &data) != 0);
    for (size_t i = 0; i < RAW_READ_MAX; i++)
        CHECK(data[i] == NOTHING);
}

// The grant ends by the proved end of the endpoint, as its peer never said a word.
static void ends(struct attack *a, lien_buf **buf)
{
    void *data;
    if (a->grant) {
        for (int i = 0; i < 20000 && lien_grant_wait(a->grant, 0) == LIEN_ETIMEDOUT; i++)
            rawpeer_pump(&world, 1);
        CHECK(lien_grant_wait(a->grant, 0) == 0 && lien_grant_close(&a->grant) == 0);
    }
    if (*buf)
        CHECK(lien_buf_mut(*buf, &data) == 0);
    lien_buf_free(buf);
    end(&a->peer, &a->conn);
}

static void made_up(void)
{
    struct attack a;
    static const uint64_t addrs[] = {0, 4096, UINT64_MAX - 100, (uint64_t)1 << 47};
    for (size_t i = 0; i < sizeof addrs / sizeof addrs[0]; i++) {
        lien_buf *buf = secret(pool, LEN);
        attack(&a, "a key that is made up");
        grant(&a, buf, 0);
        read_is_refused(&a, i == 0 ? a.data.keys[0].addr : addrs[i], a.data.keys[0].key ^ (1u << i),
                        100);
        ends(&a, &buf);
    }
}

// Memory that is a region of its own, so that its ends are the region's.
static void stretched(void)
{
    static uint8_t memory[3 * 4096];
    struct attack a;
    lien_mem *mem;
    lien_buf *buf;
    memset(memory, SECRET, sizeof memory);
    for (int i = 0; i < 3; i++) {
        CHECK(lien_mem_register(victim, memory + 4096, 4096, NULL, &mem) == 0);
        CHECK(lien_mem_buf(mem, 0, 4096, &buf) == 0);
        attack(&a, "a READ beyond its grant");
        grant(&a, buf, 0);
        const struct lieni_key key = a.data.keys[0];
        if (i == 0)
            read_is_refused(&a, key.addr + 4090, key.key, 7);
        else if (i == 1)
            read_is_refused(&a, key.addr, key.key, 4097);
        else
            read_is_refused(&a, key.addr - 1, key.key, 4096);
        ends(&a, &buf);
        CHECK(lien_mem_unregister_wait(&mem, 20000) == 0);
    }
}

// The grant of another ctx, so of another domain, is live, and its key is right there.
static void of_another_domain(void)
{
    struct attack a, b;
    lien_ctx *other;
    lien_pool *others;
    lien_listener *theirs;
    char there[96];
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    hostile_what = "another domain";
    CHECK(lien_ctx_open(&opts, &other) == 0 && lien_pool_open(other, NULL, &others) == 0);
    CHECK(lien_listener_open(other, "127.0.0.1:0", NULL, &theirs) == 0);
    CHECK(lien_listener_address(theirs, there, sizeof there) == 0);
    memset(&b, 0, sizeof b);
    rawpeer_connect(&world, &b.peer, there, NULL);
    CHECK(lien_listener_accept_wait(theirs, 5000, &b.conn) == 0);
    lien_buf *buf = secret(others, LEN), *none = NULL;
    grant(&b, buf, 0);
    attack(&a, "the key of another domain");
    read_is_refused(&a, b.data.keys[0].addr, b.data.keys[0].key, 100);
    ends(&a, &none);
    // Where it is at home it goes on.
    const uint8_t *data;
    CHECK(rawpeer_read(&b.peer, b.data.keys[0].addr, b.data.keys[0].key, LEN));
    CHECK(rawpeer_read_wait(&b.peer, 20000, &data) == 0 && data[0] == SECRET &&
          data[LEN - 1] == SECRET);
    CHECK(release(&b));
    CHECK(lien_grant_wait(b.grant, 20000) == 0 && lien_grant_close(&b.grant) == 0);
    lien_buf_free(&buf);
    CHECK(lien_conn_close(&b.conn) == 0);
    rawpeer_wait_down(&b.peer, 20000);
    rawpeer_close(&b.peer);
    CHECK(lien_ctx_close(&other) == 0);
}

static void dead(void)
{
    static uint8_t memory[2 * 4096];
    struct attack a;
    lien_mem *mem;
    lien_buf *buf = secret(pool, LEN);
    attack(&a, "the key of a grant that was revoked at once");
    grant(&a, buf, LIEN_REVOCABLE);
    CHECK(lien_grant_revoke(a.grant) == 0);
    read_is_refused(&a, a.data.keys[0].addr, a.data.keys[0].key, 100);
    ends(&a, &buf);

    memset(memory, SECRET, sizeof memory);
    CHECK(lien_mem_register(victim, memory, sizeof memory, NULL, &mem) == 0);
    CHECK(lien_mem_buf(mem, 0, LEN, &buf) == 0);
    attack(&a, "the key of memory that is unregistered");
    grant(&a, buf, 0);
    CHECK(release(&a));
    CHECK(lien_grant_wait(a.grant, 20000) == 0 && lien_grant_close(&a.grant) == 0);
    lien_buf_free(&buf);
    rawpeer_pump(&world, 5);
    // Its region goes while this connection, which saw its key, is open: that is what makes the READ come too late.
    CHECK(lien_mem_unregister_wait(&mem, 20000) == 0);
    memset(memory, OTHERS, sizeof memory);
    read_is_refused(&a, a.data.keys[0].addr, a.data.keys[0].key, 100);
    ends(&a, &buf);
}

// What was granted is free for others, who have put their own bytes into the pool; the key still may show what it was for, and nothing of theirs.
static void dead_in_a_pool(void)
{
    struct attack a;
    lien_pool *proven;
    lien_pool_opts opts;
    lien_buf *others[32], *buf;
    lien_pool_opts_init(&opts);
    opts.reuse = LIEN_REUSE_PROVEN;
    CHECK(lien_pool_open(victim, &opts, &proven) == 0);
    for (size_t beyond = 0; beyond <= LEN; beyond += LEN) {
        const uint8_t *data;
        buf = secret(proven, LEN);
        attack(&a, "the key of a grant that was released, in a pool");
        grant(&a, buf, 0);
        const struct lieni_key key = a.data.keys[0];
        CHECK(release(&a));
        CHECK(lien_grant_wait(a.grant, 20000) == 0 && lien_grant_close(&a.grant) == 0);
        lien_buf_free(&buf);
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
            void *bytes;
            others[i] = secret(proven, LEN);
            CHECK(lien_buf_mut(others[i], &bytes) == 0);
            memset(bytes, OTHERS, LEN);
        }
        (void)rawpeer_read_wait(&a.peer, 0, &data);
        memset((uint8_t *)(uintptr_t)data, NOTHING, RAW_READ_MAX);
        CHECK(rawpeer_read(&a.peer, key.addr + beyond, key.key, LEN));
        const int rc = rawpeer_read_wait(&a.peer, 20000, &data);
        CHECK(rc != LIEN_ETIMEDOUT && (beyond == 0 || rc != 0));
        for (size_t i = 0; i < LEN; i++)
            CHECK(data[i] == (rc == 0 ? SECRET : NOTHING));
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
            lien_buf_free(&others[i]);
        ends(&a, &buf);
    }
    CHECK(lien_pool_close(&proven) == 0);
}

// -- Releases --

static void too_early(void)
{
    struct attack a;
    const uint8_t *data;
    void *mine;
    lien_buf *buf = secret(pool, RAW_READ_MAX);
    attack(&a, "a release while its READ runs");
    grant(&a, buf, 0);
    CHECK(rawpeer_read(&a.peer, a.data.keys[0].addr, a.data.keys[0].key, RAW_READ_MAX));
    CHECK(release(&a));
    for (int i = 0; i < 20000 && lien_grant_wait(a.grant, 0) != 0; i++)
        rawpeer_pump(&world, 1);
    CHECK(lien_buf_mut(buf, &mine) == 0); // the peer's word is taken for it
    memset(mine, 0, RAW_READ_MAX);
    CHECK(rawpeer_read_wait(&a.peer, 20000, &data) == 0);
    CHECK(is_open(a.conn));
    CHECK(lien_grant_close(&a.grant) == 0);
    ends(&a, &buf);
}

// It is as lively as can be, and owes a release.
static void never(void)
{
    struct attack a;
    lien_buf *buf = secret(pool, LEN);
    attack(&a, "a release that never comes");
    grant(&a, buf, 0);
    rawpeer_pump(&world, 2 * RELEASE);
    CHECK(is_open(a.conn)); // nobody asked for it
    CHECK(lien_grant_revoke(a.grant) == 0);
    lien_msg *msg;
    int rc = LIEN_ETIMEDOUT;
    for (int i = 0; i < 5000 && rc == LIEN_ETIMEDOUT; i++) {
        if (i % 100 == 0)
            rawpeer_frame(&a.peer, &(struct lieni_frame){.kind = LIENI_FRAME_CREDIT});
        rawpeer_pump(&world, 1);
        rc = lien_msg_recv_wait(a.conn, 1, &msg);
    }
    CHECK(rc == LIEN_EPEERLOST);
    ends(&a, &buf);
}

// -- Names and tokens of the peer's --

static struct lieni_frame with_body(uint32_t slot, uint32_t gen)
{
    struct lieni_frame f = {
        .kind = LIENI_FRAME_MSG, .name = {.slot = slot, .gen = gen}, .total = LEN, .n_keys = 1};
    f.keys[0] = served_key;
    return f;
}

// Sends a message with a body, which arrives; then the name may be used again, in its next generation.
static void message(struct attack *a, uint32_t gen)
{
    struct lieni_frame f = with_body(3, gen);
    const uint8_t *bytes;
    size_t len;
    lien_msg *msg;
    int rc = LIEN_ETIMEDOUT;
    CHECK(rawpeer_frame(&a->peer, &f));
    for (int n = 0; n < 20000 && rc == LIEN_ETIMEDOUT; n++) {
        rawpeer_pump(&world, 1);
        rc = lien_msg_recv_wait(a->conn, 0, &msg);
    }
    CHECK(rc == 0);
    lien_msg_free(&msg);
    do
        CHECK(rawpeer_next(&a->peer, 20000, &bytes, &len));
    while (bytes[0] != LIENI_FRAME_RELEASE);
}

static void names_again(void)
{
    static const struct {
        const char *what;
        uint32_t before, gen; // generations used in their order, and the one that is wrong
    } cases[] = {{"a grant's name, twice", 1, 1},
                 {"a grant's name of before", 2, 1},
                 {"a grant's name that is still to come", 0, 2},
                 {"a grant's name that leaves one out", 1, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct attack a;
        lien_buf *none = NULL;
        attack(&a, cases[i].what);
        for (uint32_t gen = 1; gen <= cases[i].before; gen++)
            message(&a, gen);
        struct lieni_frame f = with_body(3, cases[i].gen);
        CHECK(is_open(a.conn));
        rawpeer_frame(&a.peer, &f);
        CHECK(status_of_end(a.conn, &a.peer) == LIEN_EPROTO);
        ends(&a, &none);
    }
}

static lien_token token_of(const struct attack *a, struct lieni_name name, struct lieni_key key)
{
    struct lieni_token_data data = {.kind = LIENI_TOKEN_HELD,
                                    .conn = a->peer.conn_id & ~UINT64_C(1), // the owner connected
                                    .name = name,
                                    .total = key.len,
                                    .n_keys = 1,
                                    .keys = {key}};
    lien_token token;
    lieni_token_encode(&data, &token);
    return token;
}

// What lien_read_wait() says; the buffer is back.
static int reads(const struct attack *a, const lien_token *token, size_t len)
{
    lien_buf *buf = secret(pool, LEN);
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.timeout_ms = 20000;
    int rc = lien_read_wait(a->conn, token->bytes, len, &buf, 1, &opts);
    CHECK(buf);
    lien_buf_free(&buf);
    return rc;
}

// Tokens that the application is given: each is refused for itself, and costs nothing else.
static void tokens_refused(void)
{
    struct attack a;
    lien_buf *none = NULL;
    attack(&a, "tokens that lie");
    lien_token good = token_of(&a, (struct lieni_name){.slot = 1, .gen = 1}, served_key), bad;
    for (size_t len = 0; len < good.len; len++)
        CHECK(reads(&a, &good, len) == LIEN_EPROTO);
    for (size_t at = 0; at < good.len; at++) { // one bit each
        bad = good;
        bad.bytes[at] ^= 0x80;
        // Slots, generations, addresses and keys can be any: those would be READ.
        if (at < 16 || at == 19 || at >= 24 + 8 + 16)
            CHECK(reads(&a, &bad, bad.len) != 0);
        CHECK(is_open(a.conn));
    }
    bad = token_of(&a, (struct lieni_name){.slot = 64, .gen = 1},
                   served_key); // grants_max of the peer
    CHECK(reads(&a, &bad, bad.len) == LIEN_EPROTO);
    bad = token_of(&a, (struct lieni_name){.slot = 1, .gen = 1},
                   (struct lieni_key){.key = 1, .len = (uint64_t)1 << 60});
    CHECK(reads(&a, &bad, bad.len) == LIEN_ERANGE);
    a.peer.conn_id ^= 2;
    bad = token_of(&a, (struct lieni_name){.slot = 1, .gen = 1}, served_key);
    CHECK(reads(&a, &bad, bad.len) == LIEN_ESTALE);
    a.peer.conn_id ^= 2;
    CHECK(lien_release(a.conn, good.bytes, good.len) == 0);
    CHECK(reads(&a, &good, good.len) == LIEN_ESTALE);
    CHECK(lien_release(a.conn, good.bytes, good.len) == LIEN_ESTALE);
    CHECK(is_open(a.conn));
    ends(&a, &none);
}

// A key that the peer does not serve: the READ is refused there, which costs the connection, and the memory is back.
static void token_of_nothing(void)
{
    struct attack a;
    lien_buf *buf = secret(pool, LEN), *none = NULL;
    lien_space *space;
    lien_read *read;
    struct lieni_key key = served_key;
    attack(&a, "a token of what is not served");
    key.key ^= 0x5555;
    const lien_token bad = token_of(&a, (struct lieni_name){.slot = 1, .gen = 1}, key);
    CHECK(lien_space_open(victim, &buf, 1, &space) == 0);
    int rc = lien_read_start(a.conn, bad.bytes, bad.len, space, NULL, &read);
    if (rc != 0)
        fprintf(stderr, "%s\n", lien_errname(rc));
    CHECK(rc == 0);
    CHECK(lien_errscope(status_of_end(a.conn, &a.peer)) == LIEN_SCOPE_CONN);
    for (int i = 0; i < 20000 && lien_space_wait(space, 0) == LIEN_ETIMEDOUT; i++)
        rawpeer_pump(&world, 1);
    CHECK(lien_space_wait(space, 0) == 0);
    CHECK(lien_read_close(&read) == 0);
    lien_space_free(&space);
    ends(&a, &none);
}

int main(void)
{
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    hostile_setting = "release_ms=300";
    set_up(NULL);
    CHECK(lieni_provider_tcp.mr_reg(world.domain, served, sizeof served, LIENI_ACCESS_REMOTE, &mr,
                                    &info) == 0);
    served_key = (struct lieni_key){.addr = info.base, .key = info.key, .len = LEN};
    made_up();
    stretched();
    of_another_domain();
    dead();
    dead_in_a_pool();
    too_early();
    never();
    names_again();
    tokens_refused();
    token_of_nothing();
    CHECK(lieni_provider_tcp.mr_close(mr) == 0);
    pull_down();
    printf("%u hostile connections, each cost itself alone\n", attacks);
    return 0;
}
