// SPDX-License-Identifier: Apache-2.0
//
// Calls in the wrong state: a connection that is not open yet, one that has ended, memory that is lent, and blocking twins where they could never return.

#include "tests/contract/contract.h"

#include <stdatomic.h>
#include <time.h>

struct things {
    lien_buf *buf, *slot;
    lien_space *space;
    lien_token token;
};

// What every operation of a connection answers when it cannot be used.
static void unusable(int code, lien_conn *conn, struct things *t)
{
    lien_grant *grant = UNTOUCHED;
    lien_token token = {.len = 77};
    lien_msg *msg = UNTOUCHED;
    lien_buf *kept = t->slot;
    REFUSES(code, lien_send, conn, "x", 1, NULL, 0, NULL);
    REFUSES(code, lien_send, conn, "x", 1, &t->buf, 1, NULL);
    REFUSES(code, lien_send_wait, conn, "x", 1, &t->buf, 1, NULL);
    REFUSES(code, lien_msg_recv_wait, conn, 10, &msg);
    REFUSES(code, lien_grant_open, conn, &t->buf, 1, NULL, &token, &grant);
    CHECK(grant == UNTOUCHED && msg == UNTOUCHED && token.len == 77 && t->slot == kept);
    void *data; // nothing is lent
    CHECK(lien_buf_mut(t->buf, &data) == 0);
}

static void not_open_yet(struct things *t)
{
    lien_conn *conn = NULL;
    lien_read *read = UNTOUCHED;
    // c is not driven, so nobody answers.
    ANSWERS(0, lien_conn_open, w.a, w.address_c, NULL, &conn);
    unusable(LIEN_ESTATE, conn, t);
    REFUSES(LIEN_ESTALE, lien_release, conn, t->token.bytes, t->token.len);
    REFUSES(LIEN_ESTALE, lien_read_start, conn, t->token.bytes, t->token.len, t->space, NULL,
            &read);
    REFUSES(LIEN_ESTALE, lien_read_wait, conn, t->token.bytes, t->token.len, &t->slot, 1, NULL);
    CHECK(read == UNTOUCHED);
    ANSWERS(0, lien_conn_close, &conn);
    CHECK(!conn);
    lien_conn_opts opts;
    lien_conn_opts_init(&opts);
    opts.timeout_ms = 50;
    conn = UNTOUCHED;
    REFUSES(LIEN_ETIMEDOUT, lien_conn_open_wait, w.a, w.address_c, &opts, &conn);
    CHECK(conn == UNTOUCHED);
}

static void ended(struct things *t)
{
    lien_conn *ab = NULL, *ba = NULL;
    lien_conn_info info = {.size = sizeof info, .open = true};
    lien_buf *source = contract_buf(w.pool_b, 64, 9);
    lien_grant *grant = NULL;
    lien_token token;
    lien_read *read = UNTOUCHED;
    CHECK(lien_conn_open_wait(w.a, w.address_b, NULL, &ab) == 0);
    CHECK(lien_listener_accept_wait(w.listener_b, 5000, &ba) == 0);
    CHECK(lien_grant_open(ba, &source, 1, NULL, &token, &grant) == 0);
    ANSWERS(0, lien_conn_close_wait, &ba, 5000);
    for (int i = 0; i < 2500 && info.open; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        CHECK(lien_conn_info_get(ab, &info) == 0);
    }
    CHECK(!info.open);
    CHECK(lien_grant_wait(grant, 5000) == 0); // the endpoint's end is proved
    unusable(LIEN_ECLOSED, ab, t);
    REFUSES(LIEN_ECLOSED, lien_release, ab, token.bytes, token.len);
    REFUSES(LIEN_ECLOSED, lien_read_start, ab, token.bytes, token.len, t->space, NULL, &read);
    REFUSES(LIEN_ECLOSED, lien_read_wait, ab, token.bytes, token.len, &t->slot, 1, NULL);
    CHECK(read == UNTOUCHED && t->slot);
    ANSWERS(0, lien_grant_revoke, grant); // over: no effect
    CHECK(lien_grant_close(&grant) == 0);
    ANSWERS(0, lien_conn_close_wait, &ab, 5000);
    CHECK(!ab);
    lien_buf_free(&source);
}

// -- Lent --

static _Atomic int done_status, done_calls, released_status, released_calls;

static void on_done(void *arg, int status)
{
    (void)arg;
    done_status = status;
    done_calls++;
}

static void on_released(void *arg, int status)
{
    (void)arg;
    CHECK(done_calls == 1); // never before
    released_status = status;
    released_calls++;
}

static bool is_released(void *arg)
{
    (void)arg;
    return released_calls > 0;
}

static void all_busy(struct things *t, lien_buf *inside)
{
    lien_buf *out = UNTOUCHED, *slot = inside;
    lien_space *space = UNTOUCHED;
    lien_read *read = UNTOUCHED;
    lien_grant *grant = UNTOUCHED;
    lien_token token;
    const void *data = UNTOUCHED;
    void *mut = UNTOUCHED;
    REFUSES(LIEN_EBUSY, lien_space_buf, t->space, 0, &out);
    REFUSES(LIEN_EBUSY, lien_space_take, t->space, &out, 1);
    REFUSES(LIEN_ETIMEDOUT, lien_space_wait, t->space, 0);
    REFUSES(LIEN_ETIMEDOUT, lien_space_wait, t->space, 1);
    REFUSES(LIEN_EBUSY, lien_buf_data, inside, &data);
    REFUSES(LIEN_EBUSY, lien_buf_mut, inside, &mut);
    REFUSES(LIEN_EBUSY, lien_buf_clear, inside);
    REFUSES(LIEN_EBUSY, lien_buf_set_len, inside, 1);
    REFUSES(LIEN_EBUSY, lien_space_open, w.a, &slot, 1, &space);
    REFUSES(LIEN_EBUSY, lien_read_start, w.ac, t->token.bytes, t->token.len, t->space, NULL, &read);
    REFUSES(LIEN_EBUSY, lien_read_wait, w.ac, t->token.bytes, t->token.len, &slot, 1, NULL);
    REFUSES(LIEN_EBUSY, lien_grant_open, w.ab, &slot, 1, NULL, &token, &grant);
    REFUSES(LIEN_EBUSY, lien_send, w.ab, NULL, 0, &slot, 1, NULL);
    REFUSES(LIEN_EBUSY, lien_send_wait, w.ab, NULL, 0, &slot, 1, NULL);
    CHECK(out == UNTOUCHED && space == UNTOUCHED && read == UNTOUCHED && grant == UNTOUCHED);
    CHECK(data == UNTOUCHED && mut == UNTOUCHED && slot == inside);
}

static void lent(struct things *t)
{
    lien_buf *source = contract_buf(w.pool_c, 64, 9), *inside = NULL;
    lien_grant *grant = NULL;
    lien_read *read = NULL;
    lien_read_opts opts;
    CHECK(lien_grant_open(w.ca, &source, 1, NULL, &t->token, &grant) == 0);
    CHECK(lien_space_buf(t->space, 0, &inside) == 0);
    lien_read_opts_init(&opts);
    opts.on_done = on_done;
    opts.on_released = on_released;
    ANSWERS(0, lien_read_start, w.ac, t->token.bytes, t->token.len, t->space, &opts, &read);
    all_busy(t, inside); // c serves nothing
    ANSWERS(0, lien_read_cancel, read);
    for (int i = 0; i < 2500 && done_calls == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    CHECK(done_calls == 1 && done_status == LIEN_ECANCELED && released_calls == 0);
    all_busy(t, inside); // a cancel is no evidence
    contract_drive_c(is_released, NULL);
    CHECK(released_status == 0 && released_calls == 1 && done_calls == 1);
    ANSWERS(0, lien_space_wait, t->space, 0);
    ANSWERS(0, lien_read_close, &read);
    ANSWERS(0, lien_release, w.ac, t->token.bytes, t->token.len);
    while (lien_grant_wait(grant, 20) == LIEN_ETIMEDOUT)
        ;
    CHECK(lien_grant_close(&grant) == 0);
    lien_buf_free(&source);
}

// -- Blocking where it could never return --

struct inside {
    bool over;
};

static void in_progress(void *arg, int status, lien_buf *buf)
{
    struct inside *inside = arg;
    lien_conn *conn = UNTOUCHED, *ca = w.ca;
    lien_msg *msg = UNTOUCHED;
    lien_grant *grant = NULL;
    lien_token token;
    CHECK(status == 0);
    ANSWERS(LIEN_EDEADLK, lien_listener_accept_wait, w.listener_c, 1000, &conn);
    ANSWERS(LIEN_EDEADLK, lien_conn_open_wait, w.c, w.address_b, NULL, &conn);
    ANSWERS(LIEN_EDEADLK, lien_conn_close_wait, &ca, 1000);
    ANSWERS(LIEN_EDEADLK, lien_msg_recv_wait, w.ca, 1000, &msg);
    ANSWERS(LIEN_EDEADLK, lien_send_wait, w.ca, "x", 1, NULL, 0, NULL);
    CHECK(lien_grant_open(w.ca, &buf, 1, NULL, &token, &grant) == 0);
    ANSWERS(LIEN_EDEADLK, lien_grant_wait, grant, 1000);
    ANSWERS(LIEN_EDEADLK, lien_read_wait, w.ca, token.bytes, token.len, &buf, 1, NULL);
    CHECK(conn == UNTOUCHED && msg == UNTOUCHED && ca == w.ca && buf);
    CHECK(lien_grant_close(&grant) == 0); // revokes; the peer releases
    lien_buf_free(&buf);
    inside->over = true;
}

static bool is_over(void *arg)
{
    return ((struct inside *)arg)->over;
}

void contract_states(void)
{
    struct things t = {.buf = contract_buf(w.pool_a, 64, 2), .slot = contract_buf(w.pool_a, 64, 2)};
    lien_buf *target = contract_buf(w.pool_a, 64, 2), *source = contract_buf(w.pool_b, 64, 9);
    lien_grant *grant = NULL;
    CHECK(lien_space_open(w.a, &target, 1, &t.space) == 0);
    CHECK(lien_grant_open(w.ba, &source, 1, NULL, &t.token, &grant) == 0);
    not_open_yet(&t);
    ended(&t);
    CHECK(lien_grant_close(&grant) == 0);
    lien_buf_free(&source);
    contract_settle();
    lent(&t);
    contract_settle();
    struct inside inside = {false};
    ANSWERS(0, lien_pool_alloc_start, w.pool_c, 1, in_progress, &inside, NULL);
    contract_drive_c(is_over, &inside);
    contract_settle();
    lien_space_free(&t.space);
    lien_buf_free(&t.buf);
    lien_buf_free(&t.slot);
}
