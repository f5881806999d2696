// SPDX-License-Identifier: Apache-2.0
//
// Every event in every state, to a stated depth, on the real machines: connection, read, grant, call, request and write space of two peers on the simulator. From each of some beginnings every sequence of DEPTH
// events is run, each in a world of its own, then all is given up: whatever was owed came once, nothing is left, the shadow of all memory has nothing to say, and no setter met a change that its table does not
// have (it aborts). At the end each event must have met each of the states named below. EVENTS_DEPTH: another depth.

#include "core/call.h"
#include "core/grant.h"
#include "core/read.h"
#include "tests/calls/world.h"

#define BYTES 65536u // a READ of it takes 4 ms
#define MAX   8u     // operations of a kind in one sequence

static struct desk desk;
static const lien_method methods[] = {{.name = "test/desk", .handle = to_desk, .arg = &desk}};
static const lien_service service = {.methods = methods, .n_methods = 1};

// What happens. Each does nothing where the application has no handle for it.
enum event {
    STEP, // 0.3 ms
    WAIT, // 70 ms: past deadlines, and the drain
    GRANT,
    REVOKE,
    GRANT_CLOSE,
    READ,
    READ_CANCEL,
    READ_CLOSE,
    RELEASE,
    CALL,
    CALL_CANCEL,
    CALL_CLOSE,
    WRITE,
    REPLY,
    DROP,
    CLIENT_CLOSE,
    SERVER_CLOSE,
    BREAK,
    GOAWAY,
    SLEEP, // the server's process stops, or goes on
    EVENTS
};

static const char *const event_name[EVENTS] = {
    "step",         "wait",         "grant",      "revoke",  "grant close",
    "read",         "read cancel",  "read close", "release", "call",
    "call cancel",  "call close",   "write",      "reply",   "drop",
    "client close", "server close", "break",      "goaway",  "sleep"};

// States by machine, as they are met: connection, read, grant, call, write space, request.
enum machine {
    CONNS,
    READS,
    GRANTS,
    CALLS,
    SPACES,
    REQUESTS,
    MACHINES
};

static unsigned met[MACHINES][8][EVENTS];

struct stage {
    struct world *w;
    lien_grant *grant[MAX];
    lien_token token;
    lien_buf *source;
    struct seen granted[MAX], read[MAX], called[MAX], wrote[MAX];
    lien_space *read_space[MAX], *call_space[MAX];
    lien_read *reading[MAX];
    lien_call *calling[MAX];
    lien_buf *written[MAX];
    unsigned n_grants, n_reads, n_calls, n_writes;
};

static void note(struct stage *s, enum event event)
{
    for (unsigned i = 0; i < 2; i++) {
        struct lieni_node *head = &s->w->ctx[i]->conns;
        for (struct lieni_node *n = head->next; n != head; n = n->next) {
            struct lien_conn *conn = lieni_container(n, struct lien_conn, node);
            met[CONNS][conn->state][event]++;
            for (struct lieni_node *r = conn->reads.next; r != &conn->reads; r = r->next)
                met[READS][lieni_container(r, struct lien_read, node)->state][event]++;
            for (struct lieni_node *g = conn->live_grants.next; g != &conn->live_grants;
                 g = g->next)
                met[GRANTS][lieni_container(g, struct lien_grant, node)->state][event]++;
            head = &conn->calls.all;
            for (struct lieni_node *c = head->next; c != head; c = c->next) {
                const struct lien_call *call = lieni_container(c, struct lien_call, node);
                met[CALLS][call->state][event]++;
                if (call->space)
                    met[SPACES][call->space->state][event]++;
            }
            head = &conn->calls.requests;
            for (struct lieni_node *q = head->next; q != head; q = q->next)
                met[REQUESTS][lieni_container(q, struct lien_request, node)->state][event]++;
            head = &s->w->ctx[i]->conns;
        }
    }
}

static void step_us(struct world *w, uint64_t us)
{
    uint64_t until = lieni_sim_now(w->sim) + us * 1000;
    while (lieni_sim_now(w->sim) < until) {
        progress(w);
        if (!lieni_sim_step(w->sim, until))
            lieni_sim_advance(w->sim, until);
    }
    progress(w);
}

static lien_request **a_request(void)
{
    for (unsigned i = 0; i < 64; i++)
        if (desk.request[i])
            return &desk.request[i];
    return NULL;
}

// -- Events ------------------------------------------------------------------------------------------------------------------------

static void start_grant(struct stage *s)
{
    lien_grant_opts opts;
    lien_grant_opts_init(&opts);
    opts.on_released = saw_released;
    opts.arg = &s->granted[s->n_grants];
    if (s->n_grants < MAX && s->w->conn[SERVER] &&
        lien_grant_open(s->w->conn[SERVER], &s->source, 1, &opts, &s->token,
                        &s->grant[s->n_grants]) == 0)
        s->n_grants++;
}

static void start_read(struct stage *s)
{
    unsigned i = s->n_reads;
    lien_read_opts opts;
    if (i == MAX || !s->w->conn[CLIENT] || !s->n_grants)
        return;
    lien_read_opts_init(&opts);
    opts.on_done = saw_done;
    opts.on_released = saw_released;
    opts.arg = &s->read[i];
    s->read_space[i] = space_of(s->w, CLIENT, buf_new(s->w, CLIENT, BYTES, 3));
    if (lien_read_start(s->w->conn[CLIENT], s->token.bytes, s->token.len, s->read_space[i], &opts,
                        &s->reading[i]) == 0)
        s->n_reads++;
    else
        lien_space_free(&s->read_space[i]);
}

static void start_call(struct stage *s)
{
    unsigned i = s->n_calls;
    if (i == MAX || !s->w->conn[CLIENT])
        return;
    lien_call_opts opts = call_to(&s->called[i]);
    opts.timeout_ms = 40;
    opts.write = s->call_space[i] = space_of(s->w, CLIENT, buf_new(s->w, CLIENT, BYTES, 3));
    if (lien_call_start(s->w->conn[CLIENT], "test/desk", NULL, 0, &opts, &s->calling[i]) == 0)
        s->n_calls++;
    else
        lien_space_free(&s->call_space[i]);
}

static void start_write(struct stage *s)
{
    lien_request **request = a_request();
    unsigned i = s->n_writes;
    if (!request || i == MAX)
        return;
    lien_transfer_opts opts = transfer_to(&s->wrote[i]);
    s->written[i] = buf_new(s->w, SERVER, BYTES, 5);
    if (lien_request_write(*request, &s->written[i], 1, &opts) == 0)
        s->n_writes++;
    else
        lien_buf_free(&s->written[i]);
}

static void close_conn(struct world *w, unsigned side)
{
    if (w->conn[side])
        lien_conn_close(&w->conn[side]);
}

static void happen(struct stage *s, enum event event)
{
    struct world *w = s->w;
    lien_request **request = a_request();
    unsigned r = s->n_reads ? s->n_reads - 1 : 0, c = s->n_calls ? s->n_calls - 1 : 0,
             g = s->n_grants ? s->n_grants - 1 : 0;
    note(s, event);
    switch (event) {
    case STEP:
        step_us(w, 300);
        break;
    case WAIT:
        run_ms(w, 70);
        break;
    case GRANT:
        start_grant(s);
        break;
    case REVOKE:
        if (s->grant[g])
            (void)lien_grant_revoke(s->grant[g]);
        break;
    case GRANT_CLOSE:
        if (s->grant[g])
            cr_assert_eq(lien_grant_close(&s->grant[g]), 0);
        break;
    case READ:
        start_read(s);
        break;
    case READ_CANCEL:
        if (s->reading[r])
            (void)lien_read_cancel(s->reading[r]);
        break;
    case READ_CLOSE:
        if (s->reading[r])
            cr_assert_eq(lien_read_close(&s->reading[r]), 0);
        break;
    case RELEASE:
        if (w->conn[CLIENT] && s->n_grants)
            (void)lien_release(w->conn[CLIENT], s->token.bytes, s->token.len);
        break;
    case CALL:
        start_call(s);
        break;
    case CALL_CANCEL:
        if (s->calling[c])
            (void)lien_call_cancel(s->calling[c]);
        break;
    case CALL_CLOSE:
        if (s->calling[c])
            cr_assert_eq(lien_call_close(&s->calling[c]), 0);
        break;
    case WRITE:
        start_write(s);
        break;
    case REPLY:
        if (request)
            (void)lien_request_reply(request, 0, NULL, 0);
        break;
    case DROP:
        if (request)
            lien_request_drop(request);
        break;
    case CLIENT_CLOSE:
        close_conn(w, CLIENT);
        break;
    case SERVER_CLOSE:
        close_conn(w, SERVER);
        break;
    case BREAK:
        (void)lieni_sim_break_link(w->sim, 0, 1, 0);
        break;
    case GOAWAY:
        if (w->conn[CLIENT])
            (void)lien_conn_goaway(w->conn[CLIENT]);
        break;
    case SLEEP:
        w->asleep[SERVER] = !w->asleep[SERVER];
        break;
    case EVENTS:
        break;
    }
    progress(w);
}

// -- One sequence ------------------------------------------------------------------------------------------------------------------

static void once(const struct seen *s, bool has_done)
{
    cr_assert_eq(s->n_done, has_done ? 1 : 0);
    cr_assert_eq(s->n_released, 1);
}

static void give_up(struct stage *s)
{
    struct world *w = s->w;
    w->asleep[SERVER] = false;
    for (unsigned i = 0; i < 64; i++)
        lien_request_drop(&desk.request[i]);
    close_conn(w, CLIENT);
    close_conn(w, SERVER);
    run_ms(w, 6000);
    for (unsigned i = 0; i < 64; i++)
        lien_request_drop(&desk.request[i]); // that came meanwhile
    for (unsigned i = 0; i < s->n_grants; i++) {
        once(&s->granted[i], false);
        if (s->grant[i])
            lien_grant_close(&s->grant[i]);
    }
    for (unsigned i = 0; i < s->n_reads; i++) {
        once(&s->read[i], true);
        if (s->reading[i])
            lien_read_close(&s->reading[i]);
        lien_space_free(&s->read_space[i]);
    }
    for (unsigned i = 0; i < s->n_calls; i++) {
        once(&s->called[i], true);
        if (s->calling[i])
            lien_call_close(&s->calling[i]);
        lien_space_free(&s->call_space[i]);
    }
    for (unsigned i = 0; i < s->n_writes; i++) {
        once(&s->wrote[i], true);
        lien_buf_free(&s->written[i]);
    }
    lien_buf_free(&s->source);
    world_close(w);
}

// -1 ends one.
static const int beginning[][10] = {
    {-1}, // open, nothing under way
    {GRANT, READ, STEP, STEP, -1},
    {GRANT, READ, STEP, STEP, READ_CANCEL, -1}, // its READ goes on
    {GRANT, READ, STEP, STEP, REVOKE, -1},
    {CALL, STEP, STEP, WRITE, STEP, STEP, STEP, -1},              // a READ runs into its space
    {CALL, STEP, STEP, WRITE, STEP, STEP, STEP, CALL_CANCEL, -1}, // ... and it has ended
    {CALL, STEP, STEP, WRITE, STEP, STEP, REPLY, -1},             // the reply waits for the write
    {GRANT, READ, CALL, STEP, STEP, CLIENT_CLOSE, -1},
    {GRANT, READ, CALL, STEP, STEP, BREAK, STEP, -1},
};
#define BEGINNINGS (sizeof beginning / sizeof beginning[0])

static void run_sequence(enum lieni_sim_class kind, const int *begin, unsigned long number,
                         unsigned depth)
{
    static struct stage s;
    memset(&s, 0, sizeof s);
    memset(&desk, 0, sizeof desk);
    s.w = world_slow(kind, &service, NULL);
    s.source = buf_new(s.w, SERVER, BYTES, 1);
    for (unsigned i = 0; i < 10 && begin[i] >= 0; i++)
        happen(&s, (enum event)begin[i]);
    for (unsigned i = 0; i < depth; i++, number /= EVENTS)
        happen(&s, (enum event)(number % EVENTS));
    give_up(&s);
}

static unsigned long power(unsigned long base, unsigned n)
{
    return n ? base * power(base, n - 1) : 1;
}

static void each_event_met(enum machine machine, unsigned state, const char *name)
{
    for (unsigned e = 0; e < EVENTS; e++)
        cr_assert_gt(met[machine][state][e], 0, "%s never met %s", name, event_name[e]);
}

Test(states, every_event, .timeout = 900)
{
    const char *text = getenv("EVENTS_DEPTH");
    unsigned depth = text ? (unsigned)atoi(text) : 2;
    unsigned long n = power(EVENTS, depth), ran = 0;
    for (unsigned b = 0; b < BEGINNINGS; b++)
        for (unsigned long i = 0; i < n; i++, ran++)
            run_sequence(i % 2 ? LIENI_SIM_TCP : LIENI_SIM_VERBS, beginning[b], i, depth);
    unsigned pairs = 0;
    for (unsigned m = 0; m < MACHINES; m++)
        for (unsigned state = 0; state < 8; state++)
            for (unsigned e = 0; e < EVENTS; e++)
                pairs += met[m][state][e] > 0;
    cr_log_warn("%lu sequences of %u events, %u pairs of state and event", ran, depth, pairs);
    if (getenv("EVENTS_SHOW"))
        for (unsigned m = 0; m < MACHINES; m++)
            for (unsigned state = 0; state < 8; state++) {
                fprintf(stderr, "%u.%u:", m, state);
                for (unsigned e = 0; e < EVENTS; e++)
                    fprintf(stderr, " %u", met[m][state][e]);
                fprintf(stderr, "\n");
            }
    each_event_met(CONNS, LIENI_CONN_OPEN, "an open connection");
    each_event_met(CONNS, LIENI_CONN_ENDING, "a connection that ends");
    each_event_met(CONNS, LIENI_CONN_DRAIN, "a connection that drains");
    each_event_met(READS, LIENI_READ_RUNNING, "a running read");
    each_event_met(READS, LIENI_READ_DRAINING, "a draining read");
    each_event_met(GRANTS, LIENI_GRANT_LIVE, "a live grant");
    each_event_met(GRANTS, LIENI_GRANT_ASKED, "a grant whose release was asked for");
    each_event_met(CALLS, LIENI_CALL_RUNNING, "a running call");
    each_event_met(CALLS, LIENI_CALL_ENDED, "a call that has ended");
    each_event_met(SPACES, LIENI_TARGET_READING, "a write space under a READ");
    each_event_met(SPACES, LIENI_TARGET_SEALED, "a sealed write space");
    each_event_met(REQUESTS, LIENI_REQUEST_LIVE, "a live request");
    each_event_met(REQUESTS, LIENI_REQUEST_REPLYING, "a request that awaits its writes");
}
