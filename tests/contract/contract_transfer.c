// SPDX-License-Identifier: Apache-2.0
//
// Bad input to messages, grants and reads, between a and b.

#include "tests/contract/contract.h"

static void no_end(void *arg, int status)
{
    (void)arg;
    (void)status;
    contract_fail("a callback of a refused call never runs", __FILE__, __LINE__);
}

// -- Messages --

#define SENDS(want, conn, head, head_len, bufs, n, opts)                                           \
    do {                                                                                           \
        REFUSES(want, lien_send, conn, head, head_len, bufs, n, opts);                             \
        REFUSES(want, lien_send_wait, conn, head, head_len, bufs, n, opts);                        \
    } while (0)

static void sends(void)
{
    lien_buf *bufs[LIEN_BUFS_MAX + 1], *foreign = contract_buf(w.pool_b, 16, 3);
    static char head[70000];
    lien_conn_info info = {.size = sizeof info};
    lien_send_opts opts;
    lien_send_opts_init(&opts);
    opts.on_done = opts.on_released = no_end;
    for (size_t i = 0; i < LIEN_BUFS_MAX + 1; i++)
        bufs[i] = contract_buf(w.pool_a, 16, 2);
    CHECK(lien_conn_info_get(w.ab, &info) == 0);
    SENDS(LIEN_EINVAL, NULL, head, 1, bufs, 1, &opts);
    SENDS(LIEN_EINVAL, w.ab, NULL, 1, bufs, 1, &opts);
    SENDS(LIEN_EINVAL, w.ab, head, 1, NULL, 1, &opts);
    SENDS(LIEN_EINVAL, w.ab, head, 1, bufs, LIEN_BUFS_MAX + 1, &opts);
    SENDS(LIEN_EINVAL, w.ab, head, 1, bufs, SIZE_MAX, &opts);
    SENDS(LIEN_EMSGSIZE, w.ab, head, info.eager_max + 1, NULL, 0, &opts);
    SENDS(LIEN_EMSGSIZE, w.ab, head, sizeof head, NULL, 0, &opts);
    SENDS(LIEN_EMSGSIZE, w.ab, head, SIZE_MAX, NULL, 0, &opts);
    BAD_SIZES(lien_send_opts, lien_send_opts_init, o, SENDS(refusal, w.ab, head, 1, bufs, 1, o));
    for (unsigned bit = 0; bit < 32; bit++) {
        if (1u << bit == LIEN_CHECKSUM)
            continue;
        opts.flags = 1u << bit;
        SENDS(LIEN_EINVAL, w.ab, head, 1, bufs, 1, &opts);
    }
    opts.flags = 0;
    lien_buf *hole[] = {bufs[0], NULL}, *mixed[] = {bufs[0], foreign};
    SENDS(LIEN_EINVAL, w.ab, head, 1, hole, 2, &opts);
    SENDS(LIEN_EINVAL, w.ab, head, 1, mixed, 2, &opts);
    CHECK(lien_buf_set_len(foreign, 0) == 0); // also when nothing of it would be sent
    SENDS(LIEN_EINVAL, w.ab, head, 1, &foreign, 1, &opts);
    void *data; // nothing is lent
    for (size_t i = 0; i < LIEN_BUFS_MAX + 1; i++) {
        CHECK(lien_buf_mut(bufs[i], &data) == 0);
        lien_buf_free(&bufs[i]);
    }
    lien_buf_free(&foreign);
}

void contract_message(void)
{
    lien_msg *msg = UNTOUCHED, *none = NULL;
    lien_buf *body = UNTOUCHED;
    const void *head = UNTOUCHED;
    size_t len = 77;
    sends();
    REFUSES(LIEN_EINVAL, lien_msg_recv_wait, NULL, 1, &msg);
    REFUSES(LIEN_EINVAL, lien_msg_recv_wait, w.ba, 1, NULL);
    REFUSES(LIEN_ETIMEDOUT, lien_msg_recv_wait, w.ba, 1, &msg);
    REFUSES(LIEN_ETIMEDOUT, lien_msg_recv_wait, w.ba, 0, &msg);
    CHECK(msg == UNTOUCHED);
    // Of no length at all, which is allowed.
    ANSWERS(0, lien_send, w.ab, NULL, 0, NULL, 0, NULL);
    ANSWERS(0, lien_msg_recv_wait, w.ba, 5000, &msg);
    REFUSES(LIEN_EINVAL, lien_msg_head, NULL, &head, &len);
    REFUSES(LIEN_EINVAL, lien_msg_head, msg, NULL, &len);
    REFUSES(LIEN_EINVAL, lien_msg_head, msg, &head, NULL);
    CHECK(head == UNTOUCHED && len == 77);
    ANSWERS(0, lien_msg_head, msg, &head, &len);
    CHECK(len == 0);
    CHECK(lien_msg_body(NULL) == NULL && lien_msg_body(msg) == NULL);
    contract_note("lien_msg_body");
    REFUSES(LIEN_EINVAL, lien_msg_take_body, NULL, &body);
    REFUSES(LIEN_EINVAL, lien_msg_take_body, msg, NULL);
    REFUSES(LIEN_ENOTFOUND, lien_msg_take_body, msg, &body);
    CHECK(body == UNTOUCHED);
    CALLS(lien_msg_free, NULL);
    CALLS(lien_msg_free, &none);
    CALLS(lien_msg_free, &msg);
    CHECK(!msg);
}

// -- Grants --

#define GRANTS(want, conn, bufs, n, opts)                                                          \
    REFUSES(want, lien_grant_open, conn, bufs, n, opts, &token, &grant)

static void grant_open(void)
{
    lien_grant *grant = UNTOUCHED;
    lien_token token = {.len = 77};
    lien_buf *bufs[LIEN_BUFS_MAX + 1], *foreign = contract_buf(w.pool_b, 16, 3);
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.on_released = no_end;
    for (size_t i = 0; i < LIEN_BUFS_MAX + 1; i++)
        bufs[i] = contract_buf(w.pool_a, 16, 2);
    GRANTS(LIEN_EINVAL, NULL, bufs, 1, &opts);
    GRANTS(LIEN_EINVAL, w.ab, NULL, 1, &opts);
    REFUSES(LIEN_EINVAL, lien_grant_open, w.ab, bufs, 1, &opts, NULL, &grant);
    REFUSES(LIEN_EINVAL, lien_grant_open, w.ab, bufs, 1, &opts, &token, NULL);
    GRANTS(LIEN_EINVAL, w.ab, bufs, 0, &opts);
    GRANTS(LIEN_EINVAL, w.ab, bufs, LIEN_BUFS_MAX + 1, &opts);
    GRANTS(LIEN_EINVAL, w.ab, bufs, SIZE_MAX, &opts);
    BAD_SIZES(lien_grant_opts, lien_grant_opts_init, o, GRANTS(refusal, w.ab, bufs, 1, o));
    for (unsigned bit = 0; bit < 32; bit++) {
        if (1u << bit == LIEN_REVOCABLE || 1u << bit == LIEN_CHECKSUM)
            continue;
        opts.flags = 1u << bit;
        GRANTS(LIEN_EINVAL, w.ab, bufs, 1, &opts);
    }
    opts.flags = 0;
    lien_buf *hole[] = {bufs[0], NULL}, *mixed[] = {bufs[0], foreign};
    GRANTS(LIEN_EINVAL, w.ab, hole, 2, &opts);
    GRANTS(LIEN_EINVAL, w.ab, mixed, 2, &opts);
    CHECK(grant == UNTOUCHED && token.len == 77);
    void *data; // nothing is lent
    for (size_t i = 0; i < LIEN_BUFS_MAX + 1; i++) {
        CHECK(lien_buf_mut(bufs[i], &data) == 0);
        lien_buf_free(&bufs[i]);
    }
    lien_buf_free(&foreign);
}

void contract_grant(void)
{
    lien_grant *grant = NULL, *none = NULL;
    lien_token token;
    lien_buf *buf = contract_buf(w.pool_a, 16, 4);
    const void *data;
    void *mut = UNTOUCHED;
    grant_open();
    REFUSES(LIEN_EINVAL, lien_grant_revoke, NULL);
    REFUSES(LIEN_EINVAL, lien_grant_wait, NULL, 1);
    REFUSES(LIEN_EINVAL, lien_grant_close, NULL);
    REFUSES(LIEN_EINVAL, lien_grant_close, &none);
    ANSWERS(0, lien_grant_open, w.ab, &buf, 1, NULL, &token, &grant);
    REFUSES(LIEN_ETIMEDOUT, lien_grant_wait, grant, 0);
    REFUSES(LIEN_ETIMEDOUT, lien_grant_wait, grant, 1);
    // Lent: read by many, written by nobody, and no target.
    ANSWERS(0, lien_buf_data, buf, &data);
    REFUSES(LIEN_EBUSY, lien_buf_mut, buf, &mut);
    REFUSES(LIEN_EBUSY, lien_buf_set_len, buf, 1);
    lien_space *space = UNTOUCHED;
    lien_buf *slot = buf;
    REFUSES(LIEN_EBUSY, lien_space_open, w.a, &slot, 1, &space);
    REFUSES(LIEN_EBUSY, lien_read_wait, w.ab, token.bytes, token.len, &slot, 1, NULL);
    CHECK(slot == buf && space == UNTOUCHED && mut == UNTOUCHED && lien_buf_len(buf) == 16);
    ANSWERS(0, lien_grant_revoke, grant);
    ANSWERS(0, lien_grant_revoke, grant); // again: no effect
    ANSWERS(0, lien_grant_wait, grant, 5000);
    ANSWERS(0, lien_grant_wait, grant, 0);
    ANSWERS(0, lien_grant_close, &grant);
    CHECK(!grant);
    ANSWERS(0, lien_buf_mut, buf, &mut);
    lien_buf_free(&buf);
}

// -- Reads --

struct lent {
    lien_buf *source;
    lien_grant *grant;
    lien_token token;
};

// b grants `len` bytes to a.
static struct lent grant_to_a(size_t len)
{
    struct lent lent = {.source = contract_buf(w.pool_b, len, 9)};
    CHECK(lien_grant_open(w.ba, &lent.source, 1, NULL, &lent.token, &lent.grant) == 0);
    return lent;
}

#define READS(want, conn, token, len, target, opts)                                                \
    REFUSES(want, lien_read_start, conn, token, len, target, opts, &read)

static void bad_ops(const lien_token *t, lien_space *space)
{
    enum {
        SRC = 64,
        DST = 48
    };
    static const struct {
        lien_op ops[2];
        size_t n;
        int code;
    } bad[] = {
        {{{.src = SRC + 1}}, 1, LIEN_ERANGE}, // of no length, yet outside
        {{{.dst = DST + 1}}, 1, LIEN_ERANGE},
        {{{.src = SRC, .len = 1}}, 1, LIEN_ERANGE},
        {{{.dst = DST, .len = 1}}, 1, LIEN_ERANGE},
        {{{.len = SRC + 1}}, 1, LIEN_ERANGE},
        {{{.len = DST + 1}}, 1, LIEN_ERANGE},
        {{{.len = UINT64_MAX}}, 1, LIEN_ERANGE},
        {{{.src = UINT64_MAX, .len = 1}}, 1, LIEN_ERANGE},
        {{{.dst = UINT64_MAX, .len = 1}}, 1, LIEN_ERANGE},
        {{{.src = UINT64_MAX - 7, .len = 16}}, 1, LIEN_ERANGE},
        {{{.dst = UINT64_MAX - 7, .len = 16}}, 1, LIEN_ERANGE},
        {{{.src = UINT64_MAX, .dst = UINT64_MAX, .len = UINT64_MAX}}, 1, LIEN_ERANGE},
        {{{.len = 1}, {.dst = UINT64_MAX - 1, .len = 2}}, 2, LIEN_ERANGE},
        {{{.len = 8}, {.src = 20, .dst = 7, .len = 1}}, 2, LIEN_EOVERLAP},
        {{{.src = 8, .dst = 8, .len = 8}, {.src = 8, .dst = 8, .len = 8}}, 2, LIEN_EOVERLAP},
    };
    lien_read *read = UNTOUCHED;
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.on_done = opts.on_released = no_end;
    READS(LIEN_ERANGE, w.ab, t->bytes, t->len, space, &opts); // the whole grant does not fit
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        opts.ops = bad[i].ops;
        opts.n_ops = bad[i].n;
        READS(bad[i].code, w.ab, t->bytes, t->len, space, &opts);
    }
    static lien_op many[LIEN_OPS_MAX + 1];
    opts.ops = many;
    opts.n_ops = LIEN_OPS_MAX + 1;
    READS(LIEN_EINVAL, w.ab, t->bytes, t->len, space, &opts);
    opts.n_ops = SIZE_MAX;
    READS(LIEN_EINVAL, w.ab, t->bytes, t->len, space, &opts);
    opts.ops = NULL;
    opts.n_ops = 1;
    READS(LIEN_EINVAL, w.ab, t->bytes, t->len, space, &opts);
    CHECK(read == UNTOUCHED);
}

static void read_start(const lien_token *t, lien_space *space, lien_space *foreign)
{
    lien_read *read = UNTOUCHED, *none = NULL;
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.on_done = opts.on_released = no_end;
    READS(LIEN_EINVAL, NULL, t->bytes, t->len, space, &opts);
    READS(LIEN_EINVAL, w.ab, NULL, t->len, space, &opts);
    READS(LIEN_EINVAL, w.ab, t->bytes, t->len, NULL, &opts);
    BAD_SIZES(lien_read_opts, lien_read_opts_init, o,
              READS(refusal, w.ab, t->bytes, t->len, space, o));
    for (unsigned bit = 2; bit < 32; bit++) {
        opts.flags = 1u << bit;
        READS(LIEN_EINVAL, w.ab, t->bytes, t->len, space, &opts);
    }
    opts.flags = 0;
    READS(LIEN_EINVAL, w.ab, t->bytes, t->len, foreign, &opts); // a space of another ctx
    READS(LIEN_ESTALE, w.ac, t->bytes, t->len, space, &opts);   // another connection's token
    REFUSES(LIEN_EINVAL, lien_read_cancel, NULL);
    REFUSES(LIEN_EINVAL, lien_read_close, NULL);
    REFUSES(LIEN_EINVAL, lien_read_close, &none);
    ANSWERS(LIEN_PATH_NONE, lien_read_path, NULL, NULL);
    ANSWERS(LIEN_PATH_NONE, lien_msg_path, NULL, NULL);
    CHECK(read == UNTOUCHED);
}

static void read_wait(const lien_token *t)
{
    lien_buf *bufs[LIEN_BUFS_MAX + 1], *kept[LIEN_BUFS_MAX + 1];
    static const lien_op far = {.dst = UINT64_MAX, .len = 1};
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    for (size_t i = 0; i < LIEN_BUFS_MAX + 1; i++)
        kept[i] = bufs[i] = contract_buf(w.pool_a, 16, 2);
    REFUSES(LIEN_EINVAL, lien_read_wait, NULL, t->bytes, t->len, bufs, 4, &opts);
    REFUSES(LIEN_EINVAL, lien_read_wait, w.ab, NULL, t->len, bufs, 4, &opts);
    REFUSES(LIEN_EINVAL, lien_read_wait, w.ab, t->bytes, t->len, NULL, 4, &opts);
    REFUSES(LIEN_EINVAL, lien_read_wait, w.ab, t->bytes, t->len, bufs, 0, &opts);
    REFUSES(LIEN_EINVAL, lien_read_wait, w.ab, t->bytes, t->len, bufs, LIEN_BUFS_MAX + 1, &opts);
    REFUSES(LIEN_ERANGE, lien_read_wait, w.ab, t->bytes, t->len, bufs, 3, &opts);
    REFUSES(LIEN_EPROTO, lien_read_wait, w.ab, t->bytes, t->len - 1, bufs, 4, &opts);
    BAD_SIZES(lien_read_opts, lien_read_opts_init, o,
              REFUSES(refusal, lien_read_wait, w.ab, t->bytes, t->len, bufs, 4, o));
    opts.ops = &far;
    opts.n_ops = 1;
    REFUSES(LIEN_ERANGE, lien_read_wait, w.ab, t->bytes, t->len, bufs, 4, &opts);
    lien_buf *twice[] = {bufs[0], bufs[0]}, *hole[] = {bufs[0], NULL};
    REFUSES(LIEN_EINVAL, lien_read_wait, w.ab, t->bytes, t->len, twice, 2, NULL);
    REFUSES(LIEN_EINVAL, lien_read_wait, w.ab, t->bytes, t->len, hole, 2, NULL);
    REFUSES(LIEN_EINVAL, lien_read_wait, w.ba, t->bytes, t->len, bufs, 4, NULL); // another ctx
    CHECK(twice[0] == bufs[0] && twice[1] == bufs[0] && hole[0] == bufs[0]);
    CHECK(memcmp(bufs, kept, sizeof bufs) == 0); // every slot is as it was
    for (size_t i = 0; i < LIEN_BUFS_MAX + 1; i++) {
        void *data;
        CHECK(lien_buf_mut(bufs[i], &data) == 0);
        CHECK(*(unsigned char *)data == 2);
        lien_buf_free(&bufs[i]);
    }
}

void contract_read(void)
{
    struct lent lent = grant_to_a(64);
    lien_buf *target = contract_buf(w.pool_a, 48, 2), *other = contract_buf(w.pool_b, 64, 2);
    lien_space *space = NULL, *foreign = NULL;
    CHECK(lien_space_open(w.a, &target, 1, &space) == 0);
    CHECK(lien_space_open(w.b, &other, 1, &foreign) == 0);
    bad_ops(&lent.token, space);
    read_start(&lent.token, space, foreign);
    read_wait(&lent.token);
    REFUSES(LIEN_EINVAL, lien_release, NULL, lent.token.bytes, lent.token.len);
    REFUSES(LIEN_EINVAL, lien_release, w.ab, NULL, lent.token.len);
    REFUSES(LIEN_ESTALE, lien_release, w.ac, lent.token.bytes, lent.token.len);
    // After all that the same grant, space and connection still work.
    static const lien_op ops[] = {{.src = 16, .dst = 0, .len = 48}, {.src = 64, .dst = 48}};
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.ops = ops;
    opts.n_ops = 2;
    lien_read *read = NULL;
    ANSWERS(0, lien_read_start, w.ab, lent.token.bytes, lent.token.len, space, &opts, &read);
    ANSWERS(0, lien_space_wait, space, 5000);
    ANSWERS(LIEN_PATH_KERNEL, lien_read_path, read, NULL);
    ANSWERS(0, lien_read_cancel, read); // over already: no effect
    ANSWERS(0, lien_read_close, &read);
    CHECK(!read && lien_space_take(space, &target, 1) == 0);
    const void *data;
    CHECK(lien_buf_data(target, &data) == 0 && *(const unsigned char *)data == 9);
    ANSWERS(0, lien_release, w.ab, lent.token.bytes, lent.token.len);
    REFUSES(LIEN_ESTALE, lien_release, w.ab, lent.token.bytes, lent.token.len);
    CHECK(lien_grant_wait(lent.grant, 5000) == 0 && lien_grant_close(&lent.grant) == 0);
    contract_settle();
    lien_buf *kept = contract_buf(w.pool_a, 64, 2), *slot = kept;
    REFUSES(LIEN_ESTALE, lien_read_wait, w.ab, lent.token.bytes, lent.token.len, &slot, 1, NULL);
    CHECK(slot == kept);
    lien_buf_free(&slot);
    lien_buf_free(&target);
    lien_buf_free(&lent.source);
    lien_space_free(&space);
    lien_space_free(&foreign);
}
