// SPDX-License-Identifier: Apache-2.0
//
// What a worker does by itself: CHAOS_DRIVERS threads that pick a peer and an operation at random, over and over. A driver's links are its own. An operation belongs to its callbacks and its
// driver, the last of whom ends it.

#include <stdlib.h>
#include <string.h>

#include "tests/chaos/worker.h"

#define BATCH     4u
#define STORM     16u
#define HANG_MS   60000u // of a call whose deadline is a few seconds
#define GRANTS    3u
#define ROOM_WAIT 20u // ms after the pool had no room
#define IN_FLIGHT 200 // operations at most

struct driver {
    struct link *links[CHAOS_WORKERS_MAX];
};

// -- Calls -----------------------------------------------------------------------------------------------------------------------

struct call {
    _Atomic int refs; // the driver, and on_released
    uint64_t id;
    struct run read, write;
    lien_space *space;
    lien_call *handle;
    _Atomic bool done;
    int status;
};

static void call_unref(struct call *c)
{
    if (--c->refs > 0)
        return;
    run_park(&c->read);
    free(c);
    worker.pending--;
}

static void on_call_done(void *arg, int status, lien_msg *reply)
{
    struct call *c = arg;
    const void *data = NULL;
    size_t len = 0;
    // The call borrows its read space no more: a handler that reads on must not believe this.
    run_fill(&c->read, c->id, CHAOS_NEXT);
    c->status = worker_judge(CHAOS_CALL_DONE, status);
    worker_count(status == 0 ? CHAOS_CALLS : CHAOS_CALLS_ENDED);
    if (status == 0) {
        int rc = reply ? lien_msg_head(reply, &data, &len) : LIEN_ENOTFOUND;
        if (rc != 0 || len != sizeof c->id || memcmp(data, &c->id, len) != 0)
            worker_wrong("the reply of a call", rc);
    }
    lien_msg_free(&reply);
    c->done = true;
}

static void on_call_released(void *arg, int status)
{
    struct call *c = arg;
    if (worker_judge(CHAOS_CALL_RELEASED, status) == 0) {
        run_from_space(&c->write, &c->space);
        if (c->status == 0)
            run_check(&c->write, c->id, CHAOS_READ, CHAOS_TURN, "a write space");
        run_park(&c->write);
    } else {
        worker_count(CHAOS_QUARANTINED);
        lien_space_free(&c->space);
    }
    call_unref(c);
}

static uint32_t call_timeout(bool storm)
{
    if (storm)
        return 1 + chaos_below(4);
    return chaos_below(4) ? 3000 : 1 + chaos_below(150);
}

// NULL: not now.
static struct call *call_begin(struct link *link, bool storm)
{
    struct call *c = calloc(1, sizeof *c);
    lien_call_opts opts;
    if (!c)
        abort();
    size_t len = run_size();
    if (run_open(&c->read, len) != 0 || run_open(&c->write, len) != 0) {
        run_free(&c->read);
        free(c);
        return NULL;
    }
    c->id = worker_id();
    c->refs = 2;
    run_fill(&c->read, c->id, CHAOS_READ);
    run_fill(&c->write, worker_id(), CHAOS_SPENT);
    c->space = run_to_space(&c->write);
    const struct call_args args = {
        .id = c->id, .len = len, .back = chaos_below(8) == 0, .mood = (uint32_t)chaos_random()};
    lien_call_opts_init(&opts);
    opts.timeout_ms = call_timeout(storm);
    opts.read = c->read.bufs;
    opts.n_read = c->read.n;
    opts.write = c->space;
    opts.on_done = on_call_done;
    opts.on_released = on_call_released;
    opts.arg = c;
    worker.pending++;
    if (worker_judge(CHAOS_CALL, lien_call_start(link->conn, call_names[chaos_below(CALL_KINDS)],
                                                 &args, sizeof args, &opts, &c->handle)) == 0)
        return c;
    worker.pending--;
    run_from_space(&c->write, &c->space);
    run_park(&c->write);
    run_park(&c->read);
    free(c);
    return NULL;
}

static void call_end(struct call *c, bool cancel)
{
    void *data;
    if (cancel) {
        int rc = worker_judge(CHAOS_CLOSE, lien_call_cancel(c->handle));
        if (rc == 0)
            rc = lien_buf_mut(c->read.bufs[0], &data);
        if (rc != 0)
            worker_wrong("the read space after a cancel", rc);
    }
    uint64_t begin = chaos_ms();
    while (!c->done && chaos_ms() - begin < HANG_MS)
        chaos_sleep(1);
    if (!c->done)
        worker_wrong("a call that is not done a minute after its deadline", 0);
    worker_judge(CHAOS_CLOSE, lien_call_close(&c->handle));
    call_unref(c);
}

static void calls(struct link *link)
{
    struct call *all[STORM];
    const bool cancels = worker_take_fault(CHAOS_FAULT_CANCEL_STORM);
    const bool deadlines = worker_take_fault(CHAOS_FAULT_DEADLINE_STORM);
    unsigned want = cancels || deadlines ? STORM : 1 + chaos_below(BATCH), n = 0;
    while (n < want && (all[n] = call_begin(link, deadlines)))
        n++;
    if (!cancels || chaos_below(2))
        chaos_sleep(chaos_below(10));
    for (unsigned i = 0; i < n; i++)
        call_end(all[i], cancels || chaos_below(5) == 0);
    if (n < want)
        chaos_sleep(ROOM_WAIT);
}

// -- Messages and grants ---------------------------------------------------------------------------------------------------------

// Memory that a peer reads: of a message's body, or a held grant.
struct lent {
    struct run run;
};

static struct lent *lend(int generation, struct message_head *head)
{
    struct lent *l = calloc(1, sizeof *l);
    if (!l)
        abort();
    *head = (struct message_head){.id = worker_id(), .len = run_size()};
    if (run_open(&l->run, (size_t)head->len) != 0) {
        free(l);
        return NULL;
    }
    run_fill(&l->run, head->id, generation);
    worker.pending++;
    return l;
}

static void lent_back(struct lent *l, int status)
{
    if (status == 0) {
        run_park(&l->run);
    } else {
        worker_count(CHAOS_QUARANTINED);
        run_free(&l->run);
    }
    free(l);
    worker.pending--;
}

static void on_sent(void *arg, int status)
{
    (void)arg;
    worker_judge(CHAOS_SEND_DONE, status);
    worker_count(status == 0 ? CHAOS_MESSAGES : CHAOS_MESSAGES_LOST);
}

static void on_body_released(void *arg, int status)
{
    lent_back(arg, worker_judge(CHAOS_SEND_RELEASED, status));
}

static void message(struct link *link)
{
    struct message_head head;
    lien_send_opts opts;
    struct lent *l = lend(CHAOS_BODY, &head);
    if (!l)
        return;
    lien_send_opts_init(&opts);
    opts.on_done = on_sent;
    opts.on_released = on_body_released;
    opts.arg = l;
    if (worker_judge(CHAOS_SEND, lien_send(link->conn, &head, offsetof(struct message_head, token),
                                           l->run.bufs, l->run.n, &opts)) != 0)
        lent_back(l, 0);
}

static void on_grant_released(void *arg, int status)
{
    if (worker_judge(CHAOS_GRANT_RELEASED, status) == 0)
        worker_count(CHAOS_GRANTS);
    lent_back(arg, status);
}

static lien_grant *grant_begin(struct link *link)
{
    struct message_head head;
    lien_grant_opts opts;
    lien_grant *grant = NULL;
    struct lent *l = lend(CHAOS_GRANT, &head);
    if (!l)
        return NULL;
    lien_grant_opts_init(&opts);
    opts.on_released = on_grant_released;
    opts.arg = l;
    if (worker_judge(CHAOS_GRANT_OPEN, lien_grant_open(link->conn, l->run.bufs, l->run.n, &opts,
                                                       &head.token, &grant)) != 0) {
        lent_back(l, 0);
        return NULL;
    }
    // When it cannot be sent nobody reads the grant, and closing it ends it.
    if (worker_judge(CHAOS_SEND, lien_send(link->conn, &head, sizeof head, NULL, 0, NULL)) != 0)
        chaos_sleep(1);
    return grant;
}

static void grants(struct link *link)
{
    lien_grant *all[GRANTS];
    unsigned n = 0, want = 1 + chaos_below(GRANTS);
    while (n < want && (all[n] = grant_begin(link)))
        n++;
    uint64_t end = chaos_ms() + (chaos_below(3) ? 1000 : chaos_below(20));
    for (unsigned i = 0; i < n; i++) {
        uint64_t now = chaos_ms();
        worker_judge(CHAOS_GRANT_WAIT,
                     lien_grant_wait(all[i], now < end ? (uint32_t)(end - now) : 0));
        worker_judge(CHAOS_CLOSE, lien_grant_close(&all[i])); // which revokes it
    }
}

// -- Drivers ---------------------------------------------------------------------------------------------------------------------

static void drop(struct link **link)
{
    if (*link)
        link_unref(*link);
    *link = NULL;
}

static struct link *link_to(struct driver *d, unsigned to)
{
    if (d->links[to] && (d->links[to]->lost || chaos_below(60) == 0))
        drop(&d->links[to]);
    if (!d->links[to])
        d->links[to] = link_open(to);
    return d->links[to];
}

static void step(struct driver *d)
{
    unsigned to = chaos_below(worker.world->n - 1);
    struct link *link = link_to(d, to < worker.self ? to : to + 1);
    if (!link) {
        chaos_sleep(20 + chaos_below(50));
        return;
    }
    unsigned what = chaos_below(8);
    if (what < 4)
        calls(link);
    else if (what < 6)
        message(link);
    else
        grants(link);
    while (worker.pending > IN_FLIGHT && worker_running()) {
        worker.slot->steps++;
        chaos_sleep(5);
    }
}

void *drive(void *arg)
{
    struct driver d = {0};
    chaos_seed(chaos_mix(worker.world->seed ^ (uint64_t)worker.self << 32) +
               (uint64_t)(uintptr_t)arg + ((uint64_t)worker.slot->lives << 16));
    while (!worker.go)
        chaos_sleep(5);
    while (worker_running()) {
        worker.slot->steps++;
        step(&d);
    }
    for (unsigned i = 0; i < CHAOS_WORKERS_MAX; i++)
        drop(&d.links[i]);
    return NULL;
}
