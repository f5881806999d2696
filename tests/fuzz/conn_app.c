// SPDX-License-Identifier: Apache-2.0
//
// See conn_app.h.

#include "tests/fuzz/conn_app.h"

#include "core/ctx.h"
#include "tests/fuzz/fuzz.h"

#define SIZES 8u

static const size_t sizes[SIZES] = {1, 40, 300, 4000, 4096, 4097, 9000, 12288};

// -- Memory --

static bool mem_new(struct app *app, struct app_mem *mem, unsigned how)
{
    void *data = NULL;
    mem->len = sizes[how % SIZES];
    mem->addr = NULL;
    if (lien_pool_alloc(app->pool, mem->len, &mem->buf) != 0) {
        mem->buf = NULL;
        return false;
    }
    FUZZ_CHECK(lien_buf_mut(mem->buf, &data) == 0 ? NULL : "a fresh buffer cannot be written");
    mem->addr = data;
    lieni_shadow_app_owns(app->sim, data, mem->len);
    memset(data, 0x33, mem->len);
    return true;
}

static void mem_free(struct app *app, struct app_mem *mem)
{
    if (mem->buf)
        lieni_shadow_app_gives(app->sim, mem->addr, mem->len);
    lien_buf_free(&mem->buf);
}

// A source is the application's again, or lost. Which, its own state says: on_released speaks of all that an operation had.
static void mem_back(struct app *app, struct app_mem *mem, int status)
{
    void *data = NULL;
    if (!mem->buf)
        return; // freed early
    int rc = lien_buf_mut(mem->buf, &data);
    FUZZ_CHECK(rc != 0 && rc != status ? "what was released cannot be written (R4)" : NULL);
    if (rc != 0) {
        lieni_shadow_app_lost(app->sim, mem->addr, mem->len);
        lien_buf_free(&mem->buf);
    } else {
        memset(data, 0xee, mem->len);
    }
}

// -- Operations --

static struct app_op *op_new(struct app *app, enum app_kind kind)
{
    for (unsigned i = 0; i < APP_OPS; i++) {
        struct app_op *op = &app->ops[i];
        if (op->kind == APP_NONE) {
            *op = (struct app_op){.app = app, .kind = kind};
            return op;
        }
    }
    return NULL;
}

static void op_free(struct app_op *op)
{
    mem_free(op->app, &op->source);
    mem_free(op->app, &op->body);
    if (op->space) {
        if (op->target.addr)
            lieni_shadow_app_gives(op->app->sim, op->target.addr, op->target.len);
        lien_space_free(&op->space);
    }
    lien_call_close(&op->call);
    lien_grant_close(&op->grant);
    lien_read_close(&op->read);
    op->kind = APP_NONE;
}

static bool target_new(struct app_op *op, unsigned how)
{
    if (!mem_new(op->app, &op->target, how))
        return false;
    FUZZ_CHECK(lien_space_open(op->app->ctx, &op->target.buf, 1, &op->space) == 0
                   ? NULL
                   : "no space of a fresh buffer");
    return true;
}

// The start answered `rc`: the space is lent, or nothing is.
static void started(struct app_op *op, int rc, bool validated)
{
    if (rc != 0) {
        op_free(op);
        return;
    }
    if (!op->space)
        return;
    if (validated)
        lieni_shadow_app_lends_target_validated(op->app->sim, op->target.addr, op->target.len);
    else
        lieni_shadow_app_lends_target(op->app->sim, op->target.addr, op->target.len);
}

static void on_done(void *arg, int status)
{
    struct app_op *op = arg;
    (void)status;
    FUZZ_CHECK(op->kind == APP_NONE || op->done ? "done twice (R4)"
               : op->released                   ? "done after released (R4)"
                                                : NULL);
    op->done = true;
}

static void look_at_body(struct app *app, lien_buf *body, bool take)
{
    const void *data = NULL;
    if (!body)
        return;
    FUZZ_CHECK(lien_buf_data(body, &data) == 0 ? NULL : "a body cannot be read");
    if (take)
        lieni_shadow_app_owns(app->sim, data, lien_buf_len(body));
    else
        lieni_shadow_app_gives(app->sim, data, lien_buf_len(body));
}

static void msg_free(struct app *app, lien_msg **msg)
{
    look_at_body(app, lien_msg_body(*msg), false);
    lien_msg_free(msg);
}

static void on_reply(void *arg, int status, lien_msg *reply)
{
    struct app_op *op = arg;
    void *data = NULL;
    on_done(arg, status);
    // The borrow has ended (R8).
    FUZZ_CHECK(op->source.buf && lien_buf_mut(op->source.buf, &data) != 0
                   ? "a read space outlives its call (R8)"
                   : NULL);
    if (op->source.buf)
        memset(data, 0x77, op->source.len);
    if (reply) {
        look_at_body(op->app, lien_msg_body(reply), true);
        msg_free(op->app, &reply);
    }
}

static void on_released(void *arg, int status)
{
    struct app_op *op = arg;
    FUZZ_CHECK(op->kind == APP_NONE || op->released         ? "released twice (R4)"
               : !op->done && !op->no_done                  ? "released before done (R4)"
               : status != 0 && status != LIEN_EQUARANTINED ? "released with another status"
                                                            : NULL);
    op->released = true;
    op->app->finished++;
    if (op->kind != APP_CALL) // a call's read space was back when it was done
        mem_back(op->app, &op->source, status);
    mem_back(op->app, &op->body, status);
    if (!op->space)
        return;
    int rc = lien_space_wait(op->space, 0);
    FUZZ_CHECK(rc != 0 && rc != status ? "a released space is not back (R4)" : NULL);
    if (rc != 0) {
        lieni_shadow_app_lost(op->app->sim, op->target.addr, op->target.len);
        op->target.addr = NULL;
        return;
    }
    lieni_shadow_app_owns(op->app->sim, op->target.addr, op->target.len);
    lien_buf *buf = NULL;
    void *data = NULL;
    FUZZ_CHECK(lien_space_buf(op->space, 0, &buf) == 0 && lien_buf_mut(buf, &data) == 0
                   ? NULL
                   : "a released space is not at home");
    memset(data, 0xdd, op->target.len);
}

// Handles of what has ended are given up between two calls of progress.
static void sweep(struct app *app)
{
    for (unsigned i = 0; i < APP_OPS; i++)
        if (app->ops[i].kind != APP_NONE && app->ops[i].released)
            op_free(&app->ops[i]);
}

// -- Callbacks of the connection --

static void on_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct app *app = arg;
    (void)conn;
    look_at_body(app, lien_msg_body(msg), true);
    if (app->keep && app->n_msgs < APP_MSGS)
        app->msgs[app->n_msgs++] = msg;
    else
        msg_free(app, &msg);
}

static void on_request(lien_request *request, lien_conn *conn, void *arg)
{
    struct app *app = arg;
    (void)conn;
    app->n_requests++;
    if (!app->keep && lien_request_reply(&request, 0, "ok", 2) == 0)
        return;
    for (unsigned i = 0; i < APP_REQUESTS && request; i++)
        if (!app->requests[i].request) {
            app->requests[i] = (struct app_request){.app = app, .request = request};
            return;
        }
    lien_request_drop(&request);
}

static void on_lost(lien_conn *conn, int status, void *arg)
{
    struct app *app = arg;
    (void)conn;
    FUZZ_CHECK(app->lost ? "lost twice" : NULL);
    app->lost = true;
    app->lost_status = status;
}

static void on_closed(lien_conn *conn, int status, void *arg)
{
    struct app *app = arg;
    (void)conn;
    (void)status;
    FUZZ_CHECK(app->closed ? "closed twice" : NULL);
    app->closed = true;
}

static int on_accept(lien_listener *listener, lien_conn *conn, void *arg, void **conn_arg)
{
    struct app *app = arg;
    (void)listener;
    if (app->accepted)
        return LIEN_ELIMIT;
    app->accepted = true;
    app->conn = conn;
    *conn_arg = app;
    return 0;
}

static void no_log(const lien_log_line *line, void *arg)
{
    (void)arg;
    if (getenv("FUZZ_LOG"))
        fprintf(stderr, "%s\n", line->text);
}

// -- Life --

static lien_method methods[2];
static const lien_service service = {.methods = methods, .n_methods = 2};

void app_open(struct app *app, struct lieni_sim_world *sim)
{
    static const char *const settings[] = {"frame_max=4096",
                                           "message_credits=8",
                                           "control_credits=8",
                                           "call_credits=4",
                                           "requests_max=6",
                                           "grants_conn=16",
                                           "message_max=65536",
                                           "held_conn_bytes=64K",
                                           "release_ms=2000",
                                           "read_watchdog_ms=1000",
                                           "receive_pool=256K",
                                           "trace=8",
                                           NULL};
    memset(app, 0, sizeof *app);
    app->sim = sim;
    methods[0] = (lien_method){.name = "t/a", .handle = on_request, .arg = app};
    methods[1] = (lien_method){.name = "t/p", .handle = on_request, .arg = app, .flags = LIEN_PURE};
    lien_ctx_opts ctx_opts;
    lien_ctx_opts_init(&ctx_opts);
    ctx_opts.flags = LIEN_APP_DRIVEN | LIEN_KEEP_NOFILE;
    ctx_opts.settings = settings;
    ctx_opts.log = no_log;
    lien_pool_opts pool_opts;
    lien_pool_opts_init(&pool_opts);
    pool_opts.limit = 1u << 20;
    lien_conn_opts conn_opts;
    lien_conn_opts_init(&conn_opts);
    conn_opts.pool = NULL;
    conn_opts.on_message = on_message;
    conn_opts.on_lost = on_lost;
    conn_opts.on_closed = on_closed;
    conn_opts.service = &service;
    lien_listener_opts opts;
    lien_listener_opts_init(&opts);
    opts.conn = &conn_opts;
    opts.arg = app;
    opts.on_accept = on_accept;
    char bound[96];
    FUZZ_CHECK(lieni_ctx_open_platform(&ctx_opts, lieni_sim_node_platform(sim, 0), &app->ctx) ==
                           0 &&
                       lien_pool_open(app->ctx, &pool_opts, &app->pool) == 0 &&
                       lien_listener_open(app->ctx, "*:0", &opts, &app->listener) == 0 &&
                       lien_listener_address(app->listener, bound, sizeof bound) == 0
                   ? NULL
                   : "the victim does not open");
    (void)snprintf(app->address, sizeof app->address, "%s%s", lieni_sim_node_host(sim, 0),
                   strrchr(bound, ':'));
}

uint64_t app_next(struct app *app)
{
    return lieni_timers_next(&app->ctx->timers);
}

void app_progress(struct app *app)
{
    for (unsigned pass = 0;
         lieni_sim_node_ready(app->sim, 0) || app_next(app) <= lieni_sim_now(app->sim) ||
         lien_ctx_arm(app->ctx) == LIEN_EAGAIN;
         pass++) {
        FUZZ_CHECK(lien_ctx_progress(app->ctx) != 0 ? "progress fails"
                   : pass > 20000                   ? "it does not come to rest"
                                                    : NULL);
        sweep(app);
    }
    sweep(app);
}

void app_give_up(struct app *app)
{
    app->keep = false;
    app_free_msgs(app);
    for (unsigned i = 0; i < APP_REQUESTS; i++)
        lien_request_drop(&app->requests[i].request);
    for (unsigned i = 0; i < APP_OPS; i++) {
        lien_call_close(&app->ops[i].call);
        lien_grant_close(&app->ops[i].grant);
        lien_read_close(&app->ops[i].read);
    }
    if (app->conn)
        lien_conn_close(&app->conn);
    lien_listener_close(&app->listener);
}

bool app_quiet(const struct app *app)
{
    for (unsigned i = 0; i < APP_OPS; i++)
        if (app->ops[i].kind != APP_NONE)
            return false;
    return (!app->accepted || app->closed) && lieni_list_empty(&app->ctx->conns);
}

void app_close(struct app *app)
{
    lien_pool_close(&app->pool);
    FUZZ_CHECK(lien_ctx_close(&app->ctx) == 0 ? NULL : "the ctx does not close");
}

// -- What it does --

void app_call(struct app *app, unsigned how)
{
    static const char *const names[] = {"x", "a/longer-name"};
    struct app_op *op = app->conn ? op_new(app, APP_CALL) : NULL;
    if (!op)
        return;
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.on_done = on_reply;
    opts.on_released = on_released;
    opts.arg = op;
    opts.timeout_ms = how & 1 ? 20 : 4000;
    if (how & 2 && mem_new(app, &op->source, how >> 5)) {
        opts.read = &op->source.buf;
        opts.n_read = 1;
    }
    if (how & 4 && target_new(op, (how >> 5) + 3))
        opts.write = op->space;
    if (how & 8 && mem_new(app, &op->body, (how >> 5) + 1)) {
        opts.body = &op->body.buf;
        opts.n_body = 1;
    }
    opts.reply_max = how & 16 ? 9000 : 0;
    started(op, lien_call_start(app->conn, names[how & 1], "args", 4, &opts, &op->call), false);
}

void app_send(struct app *app, unsigned how)
{
    struct app_op *op = app->conn ? op_new(app, APP_SEND) : NULL;
    if (!op)
        return;
    lien_send_opts opts;
    lien_send_opts_init(&opts);
    opts.on_done = on_done;
    opts.on_released = on_released;
    opts.arg = op;
    bool body = how & 1 && mem_new(app, &op->body, how >> 1);
    started(op, lien_send(app->conn, "head", 4, body ? &op->body.buf : NULL, body, &opts), false);
}

bool app_grant(struct app *app, unsigned how, lien_token *token)
{
    struct app_op *op = app->conn ? op_new(app, APP_GRANT) : NULL;
    if (!op)
        return false;
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.flags = how & 1 ? LIEN_REVOCABLE : 0;
    opts.on_released = on_released;
    opts.arg = op;
    op->no_done = true;
    if (mem_new(app, &op->source, how >> 1))
        started(op, lien_grant_open(app->conn, &op->source.buf, 1, &opts, token, &op->grant),
                false);
    else
        op_free(op);
    return op->kind != APP_NONE;
}

void app_read(struct app *app, const void *token, size_t len, unsigned how)
{
    struct app_op *op = app->conn ? op_new(app, APP_READ) : NULL;
    if (!op)
        return;
    const lien_op piece = {.src = how >> 6 & 7, .dst = how >> 9 & 7, .len = 1 + (how >> 6) * 8};
    lien_token_info info = {.size = sizeof info};
    lien_read_opts opts;
    lien_read_opts_init(&opts);
    opts.flags = how & 1 ? LIEN_RELEASE : 0;
    opts.timeout_ms = how & 2 ? 30 : LIEN_FOREVER;
    opts.ops = how & 4 ? &piece : NULL;
    opts.n_ops = how & 4 ? 1 : 0;
    opts.on_done = on_done;
    opts.on_released = on_released;
    opts.arg = op;
    (void)lien_token_open(app->conn, token, len, &info);
    if (target_new(op, how >> 3))
        started(op, lien_read_start(app->conn, token, len, op->space, &opts, &op->read), false);
    else
        op_free(op);
}

void app_release(struct app *app, const void *token, size_t len)
{
    if (app->conn)
        (void)lien_release(app->conn, token, len);
}

void app_end(struct app *app, unsigned i, unsigned how)
{
    struct app_op *op = &app->ops[i % APP_OPS];
    if (op->kind == APP_NONE || op->released)
        return;
    switch (how % 4) {
    case 0:
        if (op->call)
            lien_call_cancel(op->call);
        if (op->grant)
            lien_grant_revoke(op->grant);
        if (op->read)
            lien_read_cancel(op->read);
        break;
    case 1:
        lien_call_close(&op->call);
        lien_grant_close(&op->grant);
        lien_read_close(&op->read);
        break;
    case 2: // freeing is put off
        mem_free(app, &op->body);
        if (op->kind != APP_CALL)
            mem_free(app, &op->source);
        break;
    default:
        if (op->space)
            lieni_shadow_app_gives(app->sim, op->target.addr, op->target.len);
        lien_space_free(&op->space);
        break;
    }
}

static void request_transfer(struct app *app, lien_request *request, unsigned how)
{
    bool write = how & 1;
    struct app_op *op = op_new(app, write ? APP_REQUEST_WRITE : APP_REQUEST_READ);
    if (!op)
        return;
    const lien_op piece = {.src = how >> 7 & 3, .dst = how >> 9 & 3, .len = 1 + (how >> 7) * 64};
    lien_transfer_opts opts;
    lien_transfer_opts_init(&opts);
    opts.on_done = on_done;
    opts.on_released = on_released;
    opts.arg = op;
    opts.timeout_ms = how & 2 ? 30 : opts.timeout_ms;
    opts.flags = !write && how & 4 ? LIEN_UNVERIFIED : 0;
    opts.ops = how & 8 ? &piece : NULL;
    opts.n_ops = how & 8 ? 1 : 0;
    if (write && mem_new(app, &op->source, how >> 4))
        started(op, lien_request_write(request, &op->source.buf, 1, &opts), false);
    else if (!write && target_new(op, how >> 4))
        started(op, lien_request_read(request, op->space, &opts), true);
    else
        op_free(op);
}

static void on_verdict(void *arg, int status)
{
    (void)status;
    ((struct app *)arg)->finished++;
}

static void on_cancel(void *arg)
{
    ((struct app *)arg)->finished++;
}

void app_serve(struct app *app, unsigned i, unsigned how)
{
    struct app_request *r = &app->requests[i % APP_REQUESTS];
    struct app_mem body = {0};
    const void *args;
    size_t len;
    if (!r->request)
        return;
    switch (how % 8) {
    case 0:
    case 1:
    case 2:
        request_transfer(app, r->request, how >> 3);
        break;
    case 3:
        (void)lien_request_verify(r->request, on_verdict, app);
        break;
    case 4:
        (void)lien_request_reply(&r->request, how & 8 ? LIEN_EIO : 0, "reply", 5);
        break;
    case 5:
        if (mem_new(app, &body, how >> 3) &&
            lien_request_reply_body(&r->request, 0, "b", 1, &body.buf, 1) == 0)
            lieni_shadow_app_gives(app->sim, body.addr, body.len);
        mem_free(app, &body);
        break;
    case 6:
        (void)lien_request_args(r->request, &args, &len);
        (void)lien_request_on_cancel(r->request, on_cancel, app);
        break;
    default:
        lien_request_drop(&r->request);
        break;
    }
}

void app_free_msgs(struct app *app)
{
    while (app->n_msgs > 0)
        msg_free(app, &app->msgs[--app->n_msgs]);
}
