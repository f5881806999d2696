// SPDX-License-Identifier: Apache-2.0
//
// Calls and requests: arguments and replies, deadlines, cancels, both directions, reply credits (R22).

#include "tests/calls/world.h"

static void echo(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    (void)conn;
    (void)arg;
    cr_assert_eq(lien_request_args(request, &data, &len), 0);
    cr_assert_eq(lien_request_reply(&request, 0, data, len), 0);
    cr_assert_null(request);
}

static void refuse(lien_request *request, lien_conn *conn, void *arg)
{
    (void)conn;
    (void)arg;
    cr_assert_str_eq(lien_request_method(request), "test/refuse");
    cr_assert_eq(lien_request_reply(&request, LIEN_ELIMIT, "why", 3), 0);
}

static struct desk desk;
static const lien_method methods[] = {{.name = "test/echo", .handle = echo},
                                      {.name = "test/refuse", .handle = refuse},
                                      {.name = "test/desk", .handle = to_desk, .arg = &desk}};
static const lien_service service = {.methods = methods, .n_methods = 3};

static struct world *plain(void)
{
    return world_open(1, NULL, NULL, &service, &service);
}

// All slots are free, and each can be called again.
static void nothing_left(struct world *w)
{
    for (unsigned i = 0; i < 2; i++) {
        const struct lieni_calls *calls = &w->conn[i]->calls;
        uint32_t free_slots = 0;
        for (uint32_t s = calls->free; s; s = calls->slots[s - 1].next_free)
            free_slots++;
        cr_assert_eq(free_slots, calls->max, "%u of %u slots are free on node %u", free_slots,
                     calls->max, i);
        cr_assert(lieni_list_empty(&calls->all), "a call is left on node %u", i);
        cr_assert(lieni_list_empty(&calls->requests), "a request is left on node %u", i);
        cr_assert(lieni_list_empty(&calls->writes));
        cr_assert_eq(w->conn[i]->n_grants, 0, "a grant is left on node %u", i);
        cr_assert_eq(w->conn[i]->link.message_left,
                     w->conn[i]->link.message_spent_max - w->conn[1 - i]->link.message_owed);
    }
}

static void say(struct world *w, unsigned from, const char *method, const char *text, int status,
                const char *answer)
{
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    cr_assert_eq(lien_call_start(w->conn[from], method, text, strlen(text), &opts, NULL), 0);
    cr_assert(run_until(w, &s.released, 1000));
    cr_assert_eq(s.status, status, "%s", lien_errname(s.status));
    cr_assert_eq(s.reply_len, strlen(answer));
    cr_assert_arr_eq(s.reply, answer, strlen(answer));
    cr_assert_eq(s.n_done, 1);
    cr_assert_eq(s.n_released, 1);
}

Test(call, echo_both_ways)
{
    struct world *w = plain();
    for (unsigned from = 0; from < 2; from++) {
        say(w, from, "test/echo", "hello", 0, "hello");
        say(w, from, "test/echo", "", 0, "");
        say(w, from, "test/refuse", "x", LIEN_ELIMIT, "why");
        say(w, from, "test/none", "x", LIEN_ENOTFOUND, "");
        say(w, from, "test/ech", "x", LIEN_ENOTFOUND, "");
        say(w, from, "test/echoo", "x", LIEN_ENOTFOUND, "");
    }
    run_ms(w, 100);
    nothing_left(w);
    world_close(w);
}

Test(call, sizes_inline)
{
    struct world *w = plain();
    lien_conn_info info = {.size = sizeof(info)};
    lien_conn_info_get(w->conn[CLIENT], &info);
    char *text = malloc(info.eager_max + 1000);
    memset(text, 'x', info.eager_max + 1000);
    for (size_t len = info.eager_max; len > 0; len /= 3) {
        struct seen s = {0};
        lien_call_opts opts = call_to(&s);
        cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/echo", text, len, &opts, NULL), 0);
        cr_assert(run_until(w, &s.done, 1000));
        cr_assert_eq(s.status, 0);
        cr_assert_eq(s.reply_len, len);
    }
    size_t more = 2 * (size_t)info.eager_max;
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    char *large = calloc(1, more);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/echo", large, more, &opts, NULL),
                 LIEN_EMSGSIZE);
    char name[300];
    memset(name, 'n', sizeof(name));
    name[255] = 0;
    cr_assert_eq(lien_call_start(w->conn[CLIENT], name, NULL, 0, &opts, NULL), 0);
    cr_assert(run_until(w, &s.done, 1000));
    cr_assert_eq(s.status, LIEN_ENOTFOUND);
    name[255] = 'n';
    name[256] = 0;
    cr_assert_eq(lien_call_start(w->conn[CLIENT], name, NULL, 0, &opts, NULL), LIEN_EINVAL);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "", NULL, 0, &opts, NULL), LIEN_EINVAL);
    opts.timeout_ms = LIEN_FOREVER;
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/echo", NULL, 0, &opts, NULL), LIEN_EINVAL);
    free(text);
    free(large);
    run_ms(w, 100);
    nothing_left(w);
    world_close(w);
}

static bool was_told;
static void told(void *arg)
{
    cr_assert_eq(arg, &was_told);
    was_told = true;
}

// The caller hears of it at once; the handler learns of it and keeps its request; the late reply goes nowhere.
Test(call, cancel)
{
    struct world *w = plain();
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    lien_call *call;
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", "abc", 3, &opts, &call), 0);
    run_ms(w, 50);
    cr_assert_eq(desk.n, 1);
    lien_request *request = desk.request[0];
    cr_assert_not(lien_request_cancelled(request));
    cr_assert_eq(lien_request_on_cancel(request, told, &was_told), 0);
    cr_assert_eq(lien_call_cancel(call), 0);
    cr_assert_eq(lien_call_cancel(call), 0);
    progress(w);
    cr_assert(s.done && s.released);
    cr_assert_eq(s.status, LIEN_ECANCELED);
    cr_assert(run_until(w, &was_told, 100));
    cr_assert(lien_request_cancelled(request));
    cr_assert_eq(lien_request_on_cancel(request, told, &was_told), LIEN_ECANCELED);
    const void *data;
    size_t len;
    lien_request_args(request, &data, &len);
    cr_assert_eq(len, 3);
    cr_assert_arr_eq(data, "abc", 3);
    run_ms(w, 100); // its slot is free though the handler has not answered
    cr_assert_null(w->conn[CLIENT]->calls.slots[0].call);
    say(w, CLIENT, "test/echo", "again", 0, "again");
    cr_assert_eq(lien_request_reply(&request, 0, "late", 4), 0);
    lien_call_close(&call);
    run_ms(w, 100);
    cr_assert_eq(s.n_done, 1);
    nothing_left(w);
    world_close(w);
}

Test(call, deadline)
{
    struct world *w = plain();
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    opts.timeout_ms = 50;
    uint64_t begin = lieni_sim_now(w->sim);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", NULL, 0, &opts, NULL), 0);
    cr_assert(run_until(w, &s.done, 1000));
    cr_assert_eq(s.status, LIEN_ETIMEDOUT);
    cr_assert_geq(lieni_sim_now(w->sim), begin + 50 * MS);
    cr_assert_leq(lieni_sim_now(w->sim), begin + 51 * MS);
    run_ms(w, 50);
    cr_assert(lien_request_cancelled(desk.request[0]));
    cr_assert_eq(lien_request_left_ms(desk.request[0]), 0);
    lien_request_drop(&desk.request[0]);
    run_ms(w, 100);
    nothing_left(w);
    world_close(w);
}

// A server that comes to it too late does not begin; the caller is answered by the library.
Test(call, expired_before_it_starts)
{
    struct world *w = plain();
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    opts.timeout_ms = 20;
    w->asleep[SERVER] = true;
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", NULL, 0, &opts, NULL), 0);
    w->asleep[CLIENT] = true; // so that no CANCEL can come first
    run_ms(w, 1);
    w->asleep[CLIENT] = false;
    progress(w);
    w->asleep[CLIENT] = true;
    w->asleep[SERVER] = false;
    // The frame arrives, and its deadline passes before handlers run.
    struct lieni_calls *calls = &w->conn[SERVER]->calls;
    calls->ready = false;
    run_ms(w, 60);
    lieni_ctx_lock(w->ctx[SERVER]);
    lieni_requests_ready(w->conn[SERVER]);
    lieni_ctx_unlock(w->ctx[SERVER]);
    run_ms(w, 1);
    w->asleep[CLIENT] = false;
    cr_assert(run_until(w, &s.done, 100));
    cr_assert_eq(s.status, LIEN_ETIMEDOUT);
    cr_assert_eq(desk.n, 0);
    run_ms(w, 100);
    nothing_left(w);
    world_close(w);
}

Test(call, drop_is_cancel)
{
    struct world *w = plain();
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", NULL, 0, &opts, NULL), 0);
    run_ms(w, 50);
    lien_request_drop(&desk.request[0]);
    cr_assert_null(desk.request[0]);
    cr_assert(run_until(w, &s.done, 100));
    cr_assert_eq(s.status, LIEN_ECANCELED);
    run_ms(w, 100);
    nothing_left(w);
    world_close(w);
}

// A reply is received only into a receive that its call reserved; a reply that is not freed keeps the reservation. [R22]
Test(call, reply_credits)
{
    static const char *const settings[] = {"call_credits=4", NULL};
    struct world *w = world_open(1, NULL, settings, &service, NULL);
    struct seen s[5] = {{.keep = true}, {.keep = true}, {.keep = true}, {.keep = true}, {0}};
    for (unsigned i = 0; i < 4; i++) {
        lien_call_opts opts = call_to(&s[i]);
        cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/echo", "x", 1, &opts, NULL), 0);
    }
    lien_call_opts opts = call_to(&s[4]);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/echo", "y", 1, &opts, NULL), LIEN_EAGAIN);
    run_ms(w, 100);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_not_null(s[i].kept);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/echo", "y", 1, &opts, NULL), LIEN_EAGAIN);
    lien_msg_free(&s[2].kept);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/echo", "y", 1, &opts, NULL), 0);
    cr_assert(run_until(w, &s[4].done, 100));
    for (unsigned i = 0; i < 4; i++)
        lien_msg_free(&s[i].kept);
    run_ms(w, 100);
    nothing_left(w);
    world_close(w);
}

// Ten thousand calls that nobody waits for, at random moments: credits, slots and grants are as at the start. [R22]
Test(call, field_report_10_cancelled_calls, .timeout = 500)
{
    struct world *w = plain();
    unsigned started = 0, answered = 0;
    struct seen s[32] = {{0}};
    lien_call *call[32] = {NULL};
    lien_buf *source = buf_new(w, CLIENT, 5000, 1);
    while (started < 10000) {
        unsigned i = (unsigned)lieni_sim_draw(w->sim, 32);
        if (call[i]) {
            if (lieni_sim_draw(w->sim, 2))
                lien_call_cancel(call[i]);
            answered += s[i].done && s[i].status == 0;
            lien_call_close(&call[i]);
            progress(w);
            s[i] = (struct seen){0};
        } else {
            lien_call_opts opts = call_to(&s[i]);
            opts.timeout_ms = 1 + (uint32_t)lieni_sim_draw(w->sim, 3);
            opts.read = &source;
            opts.n_read = lieni_sim_draw(w->sim, 2);
            const char *method = lieni_sim_draw(w->sim, 3) ? "test/echo" : "test/desk";
            int rc = lien_call_start(w->conn[CLIENT], method, "abc", 3, &opts, &call[i]);
            cr_assert(rc == 0 || rc == LIEN_EAGAIN, "%s", lien_errname(rc));
            started += rc == 0;
        }
        if (lieni_sim_draw(w->sim, 4) == 0)
            run_until(w, NULL, 0);
        if (lieni_sim_draw(w->sim, 8) == 0)
            lieni_sim_advance(w->sim, lieni_sim_now(w->sim) + lieni_sim_draw(w->sim, MS / 2));
        if (lieni_sim_draw(w->sim, 4) == 0)
            lien_request_drop(&desk.request[lieni_sim_draw(w->sim, 64)]);
        cr_assert_not(w->lost[0] || w->lost[1]);
    }
    for (unsigned i = 0; i < 32; i++)
        if (call[i])
            lien_call_close(&call[i]);
    run_ms(w, 100);
    for (unsigned i = 0; i < 64; i++)
        lien_request_drop(&desk.request[i]);
    run_ms(w, 3000);
    cr_assert_gt(answered, 100);
    void *data;
    cr_assert_eq(lien_buf_mut(source, &data), 0);
    nothing_left(w);
    say(w, CLIENT, "test/echo", "still", 0, "still");
    lien_buf_free(&source);
    world_close(w);
}

// Memory that was read-lent by a call is writable before the cancel returns. [R8]
Test(call, read_space_borrow)
{
    struct world *w = plain();
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    lien_buf *source = buf_new(w, CLIENT, 10000, 1);
    opts.read = &source;
    opts.n_read = 1;
    lien_call *call;
    void *mut;
    const void *data;
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", NULL, 0, &opts, &call), 0);
    cr_assert_eq(lien_buf_mut(source, &mut), LIEN_EBUSY);
    cr_assert_eq(lien_buf_data(source, &data), 0);
    run_ms(w, 50);
    cr_assert_eq(lien_request_read_len(desk.request[0]), 10000);
    cr_assert_eq(lien_buf_mut(source, &mut), LIEN_EBUSY);
    cr_assert_eq(lien_call_cancel(call), 0);
    cr_assert_eq(lien_buf_mut(source, &mut), 0);
    cr_assert_eq(w->conn[CLIENT]->n_grants, 1); // its name waits for the release
    run_ms(w, 50);
    cr_assert_eq(w->conn[CLIENT]->n_grants, 0);
    lien_request_drop(&desk.request[0]);
    lien_call_close(&call);
    // By the handle's end just the same.
    s = (struct seen){0};
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", NULL, 0, &opts, &call), 0);
    lien_call_close(&call);
    cr_assert_eq(lien_buf_mut(source, &mut), 0);
    lien_buf_free(&source);
    run_ms(w, 50);
    lien_request_drop(&desk.request[1]);
    run_ms(w, 100);
    nothing_left(w);
    world_close(w);
}

// A region and its memory stay for a peer that may still READ, though the buffer is the application's again. [R9]
Test(call, memory_stays_registered_until_the_release)
{
    struct world *w = plain();
    struct seen s = {0};
    static uint8_t bytes[8192];
    struct seen gone = {0};
    lien_mem_opts mo;
    lien_mem_opts_init(&mo);
    mo.on_released = saw_released;
    mo.arg = &gone;
    lien_mem *mem;
    lien_buf *source;
    cr_assert_eq(lien_mem_register(w->ctx[CLIENT], bytes, sizeof(bytes), &mo, &mem), 0);
    cr_assert_eq(lien_mem_buf(mem, 0, sizeof(bytes), &source), 0);
    lien_call_opts opts = call_to(&s);
    opts.read = &source;
    opts.n_read = 1;
    lien_call *call;
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", NULL, 0, &opts, &call), 0);
    run_ms(w, 50);
    w->asleep[SERVER] = true;
    lien_call_close(&call);
    lien_buf_free(&source);
    cr_assert_eq(lien_mem_unregister(&mem), 0);
    run_ms(w, 100);
    cr_assert_not(gone.released);
    w->asleep[SERVER] = false;
    cr_assert(run_until(w, &gone.released, 100));
    cr_assert_eq(gone.released_status, 0);
    lien_request_drop(&desk.request[0]);
    run_ms(w, 100);
    nothing_left(w);
    world_close(w);
}

Test(call, goaway)
{
    struct world *w = plain();
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", NULL, 0, &opts, NULL), 0);
    run_ms(w, 50);
    cr_assert_eq(lien_conn_goaway(w->conn[SERVER]), 0);
    struct seen late = {0};
    lien_call_opts late_opts = call_to(&late); // on its way before the news came
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/echo", NULL, 0, &late_opts, NULL), 0);
    cr_assert(run_until(w, &late.done, 100));
    cr_assert_eq(late.status, LIEN_EOVERLOAD);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/echo", NULL, 0, &opts, NULL),
                 LIEN_EOVERLOAD);
    say(w, SERVER, "test/echo", "mine go on", 0, "mine go on");
    cr_assert_eq(lien_request_reply(&desk.request[0], 0, "bye", 3), 0);
    cr_assert(run_until(w, &s.done, 100));
    cr_assert_eq(s.status, 0);
    run_ms(w, 100);
    nothing_left(w);
    world_close(w);
}

Test(call, load_is_shed)
{
    static const char *const settings[] = {"requests_max=2", NULL};
    struct world *w = world_open(1, NULL, settings, &service, NULL);
    struct seen s[3] = {{0}};
    for (unsigned i = 0; i < 3; i++) {
        lien_call_opts opts = call_to(&s[i]);
        cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", NULL, 0, &opts, NULL), 0);
    }
    run_ms(w, 50);
    cr_assert_eq(desk.n, 2);
    cr_assert(s[2].done);
    cr_assert_eq(s[2].status, LIEN_EOVERLOAD);
    cr_assert_not(s[0].done || s[1].done);
    lien_request_drop(&desk.request[0]);
    lien_request_drop(&desk.request[1]);
    run_ms(w, 100);
    nothing_left(w);
    world_close(w);
}

// The connection ends under calls and requests; the application keeps its request and may drop it later, even after the ctx.
Test(call, lost_connection)
{
    struct world *w = plain();
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", "abc", 3, &opts, NULL), 0);
    run_ms(w, 50);
    cr_assert_eq(lien_request_on_cancel(desk.request[0], told, &was_told), 0);
    cr_assert(lieni_sim_break_link(w->sim, 0, 1, 0));
    cr_assert(run_until(w, &s.released, 10000));
    cr_assert_lt(s.status, 0);
    cr_assert(run_until(w, &was_told, 10000));
    lien_request *request = desk.request[0];
    lien_conn_close(&w->conn[SERVER]);
    lien_conn_close(&w->conn[CLIENT]);
    run_ms(w, 5000);
    cr_assert_eq(lien_request_reply(&request, 0, "late", 4), 0);
    run_ms(w, 100);
    world_close(w);
}

Test(call, closing_ends_calls)
{
    struct world *w = plain();
    struct seen s = {0};
    lien_call_opts opts = call_to(&s);
    lien_buf *source = buf_new(w, CLIENT, 100, 1);
    opts.read = &source;
    opts.n_read = 1;
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", "abc", 3, &opts, NULL), 0);
    run_ms(w, 50);
    lien_conn_close(&w->conn[CLIENT]);
    progress(w);
    cr_assert_eq(s.status, LIEN_ECLOSED);
    run_ms(w, 100);
    cr_assert(s.released);
    lien_request_drop(&desk.request[0]);
    lien_buf_free(&source);
    world_close(w);
}

// -- Bodies ------------------------------------------------------------------------------------------------------------------------

struct body_seen {
    struct seen seen;
    lien_buf *body;
};

static void saw_body(void *arg, int status, lien_msg *reply)
{
    struct body_seen *b = arg;
    b->seen.done = true;
    b->seen.status = status;
    if (reply) {
        lien_msg_take_body(reply, &b->body);
        lien_msg_free(&reply);
    }
}

// One buffer twice would be freed twice, perhaps as somebody else's.
static void refused_twice(lien_request **request, lien_buf *buf, uint64_t seed)
{
    lien_buf *twice[2] = {buf, buf};
    const size_t len = lien_buf_len(buf);
    for (unsigned with = 0; with < 2; with++) { // bytes, and none
        cr_assert_eq(lien_buf_set_len(buf, with ? len / 2 : 0), 0);
        cr_assert_eq(lien_request_reply_body(request, 0, NULL, 0, twice, 2), LIEN_EINVAL);
        cr_assert(*request && twice[0] == buf && twice[1] == buf);
    }
    cr_assert_eq(lien_buf_set_len(buf, len), 0); // and it is the holder's still
    cr_assert(buf_is(buf, seed));
}

// Arguments and replies of each size: they move as held grants, unchanged; the handler's buffers and the caller's come home.
Test(call, bodies_of_each_size, .timeout = 500)
{
    static const size_t sizes[] = {1, 4095, 65536, 1000001, 16 * MIB};
    struct lieni_sim_config config;
    lieni_sim_config_init(&config, LIENI_SIM_TCP);
    config.chunk = (struct lieni_sim_range){65536, 262144};
    struct world *w = world_open(3, &config, NULL, &service, NULL);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct body_seen b = {0};
        lien_buf *body = buf_new(w, CLIENT, sizes[i], i);
        lien_call_opts opts = call_to(&b.seen);
        opts.on_done = saw_body;
        opts.arg = &b;
        opts.body = &body;
        opts.n_body = 1;
        opts.reply_max = sizes[i];
        unsigned n = desk.n;
        cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", "h", 1, &opts, NULL), 0);
        for (unsigned k = 0; k < 5000 && desk.n == n; k++)
            run_ms(w, 1);
        cr_assert_eq(desk.n, n + 1);
        lien_request *request = desk.request[n % 64];
        desk.request[n % 64] = NULL;
        cr_assert(buf_is(lien_request_body(request), i));
        cr_assert_eq(lien_buf_len(lien_request_body(request)), sizes[i]);
        // It is the request's, to look at: not to be freed, or moved on.
        lien_buf *looked = lien_request_body(request), *given = looked;
        lien_space *space;
        lien_buf_free(&given);
        cr_assert_eq(lien_space_open(w->ctx[SERVER], &looked, 1, &space), LIEN_EINVAL);
        cr_assert_eq(lien_request_reply_body(&request, 0, NULL, 0, &looked, 1), LIEN_EINVAL);
        cr_assert(looked == lien_request_body(request) && buf_is(looked, i));
        if (i % 2) { // until it is taken out
            cr_assert_eq(lien_request_take_body(request, &looked), 0);
            cr_assert_eq(lien_request_take_body(request, &given), LIEN_ENOTFOUND);
            lien_buf_free(&looked);
        }
        lien_buf *answer = buf_new(w, SERVER, sizes[i], 100 + i);
        lien_buf *too_large[2] = {answer, buf_new(w, SERVER, 1, 0)};
        cr_assert_eq(lien_request_reply_body(&request, 0, NULL, 0, too_large, 2), LIEN_EMSGSIZE);
        cr_assert_not_null(too_large[1]);
        lien_buf_free(&too_large[1]);
        refused_twice(&request, answer, 100 + i);
        cr_assert_eq(lien_request_reply_body(&request, 0, NULL, 0, &answer, 1), 0);
        cr_assert_null(answer);
        cr_assert(run_until(w, &b.seen.released, 5000));
        cr_assert_eq(b.seen.status, 0, "%s", lien_errname(b.seen.status));
        cr_assert_not_null(b.body);
        cr_assert_eq(lien_buf_len(b.body), sizes[i]);
        cr_assert(buf_is(b.body, 100 + i));
        lien_buf_free(&b.body);
        void *data;
        cr_assert_eq(lien_buf_mut(body, &data), 0);
        lien_buf_free(&body);
    }
    run_ms(w, 100);
    nothing_left(w);
    cr_assert_eq(lieni_mem_bytes_out(w->ctx[SERVER]->mem),
                 lien_buf_capacity(w->conn[SERVER]->link.slab));
    world_close(w);
}

// A call that ends at each moment of a large exchange leaves nothing lent, and tells done once.
Test(call, bodies_cancelled_at_each_moment, .timeout = 500)
{
    struct lieni_sim_config config;
    lieni_sim_config_init(&config, LIENI_SIM_TCP);
    config.chunk = (struct lieni_sim_range){16384, 16384};
    config.chunk_gap = (struct lieni_sim_range){MS, MS};
    struct world *w = world_open(3, &config, NULL, &service, NULL);
    unsigned ends[2] = {0, 0};
    for (unsigned us = 0; us < 25000; us += 500) {
        struct body_seen b = {0};
        lien_buf *body = buf_new(w, CLIENT, 100000, 1);
        lien_call_opts opts = call_to(&b.seen);
        opts.on_done = saw_body;
        opts.arg = &b;
        opts.body = &body;
        opts.n_body = 1;
        opts.reply_max = 100000;
        lien_call *call;
        unsigned n = desk.n;
        cr_assert_eq(lien_call_start(w->conn[CLIENT], "test/desk", "h", 1, &opts, &call), 0);
        uint64_t until = lieni_sim_now(w->sim) + us * UINT64_C(1000);
        while (lieni_sim_now(w->sim) < until) {
            progress(w);
            if (!lieni_sim_step(w->sim, until))
                lieni_sim_advance(w->sim, until);
            if (desk.n > n) {
                lien_buf *answer = buf_new(w, SERVER, 100000, 2);
                cr_assert_eq(lien_request_reply_body(&desk.request[n % 64], 0, NULL, 0, &answer, 1),
                             0);
                n = UINT32_MAX;
            }
        }
        lien_call_close(&call);
        cr_assert(run_until(w, &b.seen.released, 5000));
        cr_assert(b.seen.status == 0 || b.seen.status == LIEN_ECANCELED);
        ends[b.seen.status == 0]++;
        cr_assert_eq(b.body != NULL, b.seen.status == 0);
        if (b.body)
            cr_assert(buf_is(b.body, 2));
        lien_buf_free(&b.body);
        void *data;
        cr_assert_eq(lien_buf_mut(body, &data), 0);
        lien_buf_free(&body);
        for (unsigned i = 0; i < 64; i++)
            lien_request_drop(&desk.request[i]);
        run_ms(w, 100);
        nothing_left(w);
        for (unsigned i = 0; i < 2; i++)
            cr_assert_eq(lieni_mem_bytes_out(w->ctx[i]->mem),
                         lien_buf_capacity(w->conn[i]->link.slab), "memory is left on node %u", i);
    }
    cr_assert_gt(ends[0], 10);
    cr_assert_gt(ends[1], 5);
    cr_assert_not(w->lost[0] || w->lost[1]);
    world_close(w);
}
