// SPDX-License-Identifier: Apache-2.0
//
// What a worker does for others: its methods, and the messages it gets. Handlers block, which is why a worker has several dispatch threads.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/chaos/worker.h"

const char *const call_names[CALL_KINDS] = {"chaos/plain", "chaos/overlapped", "chaos/pure"};

// -- Calls -----------------------------------------------------------------------------------------------------------------------

static void echo(lien_request *request, lien_conn *conn, void *arg)
{
    const void *data;
    size_t len;
    (void)conn;
    (void)arg;
    if (lien_request_args(request, &data, &len) != 0 ||
        worker_judge(CHAOS_REPLY, lien_request_reply(&request, 0, data, len)) != 0)
        lien_request_drop(&request);
}

// Calls the caller, on the connection its call came by.
static void call_back(const lien_conn *conn, uint64_t id)
{
    struct link *link = link_of(conn);
    lien_call_opts opts;
    lien_msg *reply = NULL;
    const void *data = NULL;
    size_t len = 0;
    if (!link)
        return;
    lien_call_opts_init(&opts);
    opts.timeout_ms = 500;
    if (worker_judge(CHAOS_CALL_WAIT, lien_call_wait(link->conn, "chaos/echo", &id, sizeof id,
                                                     &opts, &reply)) == 0) {
        int rc = lien_msg_head(reply, &data, &len);
        if (rc != 0 || len != sizeof id || memcmp(data, &id, len) != 0)
            worker_wrong("the echo of a call back", rc);
        lien_msg_free(&reply);
    }
    link_unref(link);
}

// The write of a request under way: the last thing that it does.
struct writing {
    lien_request *request;
    struct run run;
    uint64_t id;
};

static void on_written(void *arg, int status)
{
    struct writing *w = arg;
    if (worker_judge(CHAOS_WRITE_DONE, status) == 0)
        status = worker_judge(CHAOS_REPLY,
                              lien_request_reply(&w->request, 0, &w->id, sizeof w->id));
    if (status == 0)
        worker_count(CHAOS_SERVED);
    lien_request_drop(&w->request);
}

static void on_write_released(void *arg, int status)
{
    struct writing *w = arg;
    if (worker_judge(CHAOS_WRITE_RELEASED, status) == 0)
        run_park(&w->run);
    else
        run_free(&w->run);
    free(w);
    worker.pending--;
}

static void write_back(lien_request *request, struct run *run, uint64_t id)
{
    lien_transfer_opts opts;
    struct writing *w = malloc(sizeof *w);
    if (!w)
        abort();
    *w = (struct writing){request, *run, id};
    lien_transfer_opts_init(&opts);
    opts.on_done = on_written;
    opts.on_released = on_write_released;
    opts.arg = w;
    worker.pending++;
    if (worker_judge(CHAOS_REQUEST_WRITE, lien_request_write(request, run->bufs, run->n, &opts)) !=
        0) {
        worker.pending--;
        free(w);
        run_park(run);
        lien_request_drop(&request);
    }
}

// Reads the whole read space into `run`. 0: its bytes are there, and in the modes that ask, they are the caller's.
static int fetch(lien_request *request, enum call_kind kind, struct run *run, uint64_t id)
{
    lien_transfer_opts opts;
    lien_space *space = run_to_space(run);
    lien_transfer_opts_init(&opts);
    opts.flags = kind == CALL_OVERLAPPED ? LIEN_UNVERIFIED : 0;
    int rc = worker_judge(CHAOS_REQUEST_READ, lien_request_read_wait(request, space, &opts));
    if (rc == LIEN_EQUARANTINED) {
        worker_count(CHAOS_QUARANTINED);
        lien_space_free(&space);
        run->n = 0;
        return rc;
    }
    run_from_space(run, &space);
    if (rc == 0 && kind == CALL_OVERLAPPED)
        rc = worker_judge(CHAOS_REQUEST_VERIFY, lien_request_verify_wait(request));
    if (rc == 0 && kind != CALL_PURE)
        run_check(run, id, CHAOS_READ, 0, "a read space, vouched for");
    if (rc == LIEN_ESTALE)
        worker_count(CHAOS_STALE);
    return rc;
}

static void turn(lien_request *request, lien_conn *conn, void *arg)
{
    const enum call_kind kind = *(const enum call_kind *)arg;
    struct call_args args;
    struct run run;
    const void *data;
    size_t len;
    if (lien_request_args(request, &data, &len) != 0 || len != sizeof args) {
        worker_wrong("arguments of a call", 0);
        lien_request_drop(&request);
        return;
    }
    memcpy(&args, data, sizeof args);
    if (args.len != lien_request_read_len(request) || args.len != lien_request_write_len(request))
        worker_wrong("the spaces of a call", 0);
    if (run_open(&run, (size_t)args.len) != 0) {
        worker_judge(CHAOS_REPLY, lien_request_reply(&request, LIEN_ELIMIT, NULL, 0));
        lien_request_drop(&request);
        return;
    }
    run_fill(&run, worker_id(), CHAOS_SPENT);
    int rc = fetch(request, kind, &run, args.id);
    if (rc == 0 && worker_take_fault(CHAOS_FAULT_DIE))
        _exit(CHAOS_EXIT_DIED);
    if (rc == 0 && args.back)
        call_back(conn, args.id);
    if (rc == 0 && args.mood % 16 == 0)
        chaos_sleep(args.mood / 16 % 50);
    if (rc == 0 && args.mood % 16 != 1) {
        run_turn(&run);
        write_back(request, &run, args.id);
        return;
    }
    run_park(&run);
    lien_request_drop(&request);
}

static const enum call_kind kinds[CALL_KINDS] = {CALL_PLAIN, CALL_OVERLAPPED, CALL_PURE};
static const lien_method methods[] = {
    {.name = "chaos/plain", .handle = turn, .arg = (void *)(uintptr_t)&kinds[CALL_PLAIN]},
    {.name = "chaos/overlapped", .handle = turn, .arg = (void *)(uintptr_t)&kinds[CALL_OVERLAPPED]},
    {.name = "chaos/pure",
     .handle = turn,
     .arg = (void *)(uintptr_t)&kinds[CALL_PURE],
     .flags = LIEN_PURE},
    {.name = "chaos/echo", .handle = echo},
};
const lien_service serve_service = {.methods = methods,
                                    .n_methods = sizeof methods / sizeof methods[0]};

// -- Messages --------------------------------------------------------------------------------------------------------------------

// A read by token under way.
struct reading {
    struct run run;
    lien_space *space;
    uint64_t id;
    int status;
};

static void on_read_done(void *arg, int status)
{
    struct reading *r = arg;
    r->status = worker_judge(CHAOS_READ_DONE, status);
    worker_count(status == 0 ? CHAOS_READS : CHAOS_READS_ENDED);
}

static void on_read_released(void *arg, int status)
{
    struct reading *r = arg;
    if (worker_judge(CHAOS_READ_RELEASED, status) == 0) {
        run_from_space(&r->run, &r->space);
        if (r->status == 0)
            run_check(&r->run, r->id, CHAOS_GRANT, 0, "what a token gave to read");
        run_park(&r->run);
    } else {
        worker_count(CHAOS_QUARANTINED);
        lien_space_free(&r->space);
    }
    free(r);
    worker.pending--;
}

static void read_grant(lien_conn *conn, const struct message_head *head)
{
    lien_read_opts opts;
    lien_read *read = NULL;
    const bool cancel = chaos_below(5) == 0;
    lien_op ops[2] = {{.len = head->len / 2}, {.src = head->len / 2, .dst = head->len / 2}};
    ops[1].len = head->len - ops[1].src;
    struct reading *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    if (run_open(&r->run, (size_t)head->len) != 0) {
        worker_judge(CHAOS_RELEASE, lien_release(conn, head->token.bytes, head->token.len));
        free(r);
        return;
    }
    r->id = head->id;
    run_fill(&r->run, worker_id(), CHAOS_SPENT);
    r->space = run_to_space(&r->run);
    lien_read_opts_init(&opts);
    opts.flags = chaos_below(8) ? LIEN_RELEASE : 0; // else its revoking ends it
    opts.timeout_ms = chaos_below(3) ? 5000 : 5 + chaos_below(300);
    if (head->len > 1 && chaos_below(4) == 0) {
        opts.ops = ops;
        opts.n_ops = 2;
    }
    opts.on_done = on_read_done;
    opts.on_released = on_read_released;
    opts.arg = r;
    worker.pending++;
    if (worker_judge(CHAOS_READ_START, lien_read_start(conn, head->token.bytes, head->token.len,
                                                       r->space, &opts, cancel ? &read : NULL)) !=
        0) {
        worker.pending--;
        worker_count(CHAOS_READS_ENDED);
        run_from_space(&r->run, &r->space);
        run_park(&r->run);
        free(r);
    } else if (cancel) {
        worker_judge(CHAOS_CLOSE, lien_read_close(&read));
    }
}

void serve_message(lien_conn *conn, lien_msg *msg, void *arg)
{
    struct message_head head;
    const void *data;
    size_t len;
    (void)arg;
    if (lien_msg_head(msg, &data, &len) != 0 || len > sizeof head ||
        len < offsetof(struct message_head, token)) {
        worker_wrong("the head of a message", 0);
        lien_msg_free(&msg);
        return;
    }
    memset(&head, 0, sizeof head);
    memcpy(&head, data, len);
    if (lien_msg_body(msg)) {
        struct run run = {.n = 1, .len = (size_t)head.len};
        if (lien_msg_take_body(msg, &run.bufs[0]) != 0)
            worker_wrong("the body of a message", 0);
        if (lien_buf_len(run.bufs[0]) != head.len)
            worker_wrong("the length of a body", 0);
        run_check(&run, head.id, CHAOS_BODY, 0, "a message's body");
        run_park(&run);
    } else {
        read_grant(conn, &head);
    }
    lien_msg_free(&msg);
}
