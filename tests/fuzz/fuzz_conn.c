// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target with state: a peer that is no Lien speaks to a live connection on the simulator, while the victim's application calls, grants, reads, answers and gives up. The input is a
// program of both: its first byte chooses the evidence class, then each step is a byte and its operands. Frames are made from fields, with names, calls, probes and keys that
// came from the victim, so that they can be right, nearly right, or wrong anywhere; or they are raw bytes. The judges: the simulator's shadow of all memory, the sanitizers, and conn_app.c, which
// counts callbacks. At the end everything is given up, and all that is owed must come. The same input is the same run.

#include "tests/fuzz/conn_app.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/simpeer.h"

#define US        UINT64_C(1000)
#define MS        UINT64_C(1000000)
#define STEPS_MAX 200u // of one input

struct input {
    const uint8_t *at;
    size_t left;
};

struct run {
    struct lieni_sim_world *sim;
    struct app app;
    struct simpeer peer;
};

static uint8_t take(struct input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

static unsigned take2(struct input *in)
{
    unsigned low = take(in);
    return low | (unsigned)take(in) << 8;
}

// -- Time --

static void settle(struct run *r)
{
    do
        app_progress(&r->app);
    while (simpeer_pump(&r->peer));
    FUZZ_CHECK(lieni_sim_violations(r->sim) ? lieni_sim_violation(r->sim, 0) : NULL);
}

// The world moves for `ns`. A moment without an end in it is a fault of its own: events must not make events for ever.
static void run_for(struct run *r, uint64_t ns)
{
    uint64_t limit = lieni_sim_now(r->sim) + ns;
    settle(r);
    for (unsigned n = 0;; n++) {
        uint64_t at = lieni_sim_next_time(r->sim), timer = app_next(&r->app);
        at = timer < at ? timer : at;
        if (at > limit)
            break;
        if (!lieni_sim_step(r->sim, at))
            lieni_sim_advance(r->sim, at);
        settle(r);
        FUZZ_CHECK(n > 200000 ? "events without an end" : NULL);
    }
    lieni_sim_advance(r->sim, limit);
    settle(r);
}

// -- Frames --

static struct lieni_name own_name(const struct simpeer *peer, uint8_t how)
{
    uint32_t slot = how % PEER_SLOTS;
    return (struct lieni_name){.slot = slot, .gen = peer->grant_gen[slot] + (how >> 6 == 3)};
}

// One of the last that came; 0 is the last.
static unsigned last_of(unsigned n, uint8_t how)
{
    return (n - 1 - how % (n < PEER_SEEN ? n : PEER_SEEN)) % PEER_SEEN;
}

static struct lieni_name victims_name(const struct simpeer *peer, uint8_t how)
{
    if (peer->n_names == 0 || how >= 240)
        return (struct lieni_name){.slot = how & 7, .gen = how >> 3 & 3};
    return peer->names[last_of(peer->n_names, how)];
}

static uint64_t victims_call(const struct simpeer *peer, uint8_t how)
{
    if (peer->n_calls == 0 || how >= 240)
        return lieni_call_id(1 + (how >> 2 & 3), how & 3, how >> 4 & 1);
    return peer->calls[last_of(peer->n_calls, how)];
}

static uint64_t own_call(const struct simpeer *peer, uint8_t how)
{
    uint32_t slot = how % PEER_SLOTS;
    return lieni_call_id(peer->call_gen[slot] - (how >> 6 == 3), slot, how >> 5 == 5);
}

// 0 .. 3 keys of its region, or one that leads nowhere; their sum.
static uint64_t own_keys(const struct simpeer *peer, uint8_t how, struct lieni_key *keys,
                         uint32_t *n)
{
    static const uint32_t lens[] = {1, 64, 4096, 5000};
    uint64_t sum = 0;
    *n = how & 3;
    for (uint32_t i = 0; i < *n; i++) {
        keys[i] = (struct lieni_key){.addr = peer->region_info.base + (how >> 4) * 16u,
                                     .key = peer->region_info.key + (how >> 2 == 63),
                                     .len = lens[how >> 2 & 3]};
        sum += keys[i].len;
    }
    return sum;
}

static uint8_t op_bytes[3 * LIENI_OP_SIZE];

static void fill_call(const struct simpeer *peer, struct input *in, struct lieni_frame *f)
{
    static const char *const methods[] = {"t/a", "t/p", "t/none", "t/a"};
    uint8_t how = take(in);
    f->call = own_call(peer, how);
    f->deadline_ms = how & 16 ? 3000 : 25;
    f->method = methods[how >> 2 & 3];
    f->method_len = (uint32_t)strlen(f->method);
    f->space_len = take(in) * 100u;
    f->reply_max = take(in) * 100u;
    f->read_total = own_keys(peer, take(in), f->read_keys, &f->n_read_keys);
    if (f->n_read_keys)
        f->read_name = own_name(peer, take(in));
}

static void fill_write(const struct simpeer *peer, struct input *in, struct lieni_frame *f)
{
    uint8_t how = take(in);
    f->call = victims_call(peer, take(in));
    f->write = how >> 4;
    f->first = !(how & 1);
    f->last = !(how & 2);
    f->n_ops = how >> 2 & 3;
    f->ops = op_bytes;
    for (uint32_t i = 0; i < f->n_ops; i++) {
        uint8_t op = take(in);
        lieni_op_store(
            op_bytes + i * LIENI_OP_SIZE,
            &(lien_op){.src = op & 3, .dst = (op >> 2 & 3) + i * 1000, .len = (op >> 4) * 64u});
    }
}

static void fill_probes(struct simpeer *peer, struct input *in, struct lieni_frame *f)
{
    f->n_probes = 1 + take(in) % 3;
    for (uint32_t i = 0; i < f->n_probes; i++) {
        uint8_t how = take(in);
        struct lieni_probe *p = &f->probes[i];
        if (f->kind == LIENI_FRAME_PROBE) {
            *p = (struct lieni_probe){.id = peer->probe_id++,
                                      .call = victims_call(peer, how),
                                      .name = victims_name(peer, how >> 3)};
        } else {
            *p = (struct lieni_probe){.id = peer->probes[peer->n_answered % PEER_SEEN],
                                      .holds = how & 1};
            if (peer->n_answered < peer->n_probes)
                peer->n_answered++;
        }
    }
}

// What the fields of this kind are.
static void fill(struct simpeer *peer, struct input *in, struct lieni_frame *f)
{
    static const uint8_t head[200];
    f->head = head;
    switch (f->kind) {
    case LIENI_FRAME_MSG:
    case LIENI_FRAME_CALL:
    case LIENI_FRAME_REPLY:
    case LIENI_FRAME_WRITE:
        f->total = own_keys(peer, take(in), f->keys, &f->n_keys);
        if (f->n_keys)
            f->name = own_name(peer, take(in));
        if (f->kind != LIENI_FRAME_WRITE)
            f->head_len = take(in) % sizeof head;
        break;
    case LIENI_FRAME_RELEASE:
    case LIENI_FRAME_REVOKE:
        f->n_names = 1 + take(in) % 4;
        for (uint32_t i = 0; i < f->n_names; i++)
            f->names[i] = f->kind == LIENI_FRAME_REVOKE ? own_name(peer, take(in))
                                                        : victims_name(peer, take(in));
        break;
    case LIENI_FRAME_PROBE:
    case LIENI_FRAME_ANSWER:
        fill_probes(peer, in, f);
        break;
    case LIENI_FRAME_CANCEL:
        f->call = own_call(peer, take(in));
        break;
    case LIENI_FRAME_WRITTEN:
        f->call = take(in) & 1 ? own_call(peer, take(in)) : peer->write_call;
        f->write = peer->write_number;
        f->status = take(in) & 1 ? LIEN_ESTALE : 0;
        break;
    case LIENI_FRAME_CREDIT:
    case LIENI_FRAME_BEAT:
    case LIENI_FRAME_ALIVE:
    case LIENI_FRAME_BYE:
    case LIENI_FRAME_GOAWAY:
    case LIENI_FRAME_HEARD:
        break;
    }
    if (f->kind == LIENI_FRAME_CALL)
        fill_call(peer, in, f);
    else if (f->kind == LIENI_FRAME_WRITE)
        fill_write(peer, in, f);
    else if (f->kind == LIENI_FRAME_REPLY) {
        f->call = victims_call(peer, take(in));
        f->status = take(in) & 1 ? LIEN_EIO : 0;
    }
}

static void send_frame(struct run *r, struct input *in)
{
    static struct lieni_frame f;
    static uint8_t bytes[PEER_FRAME];
    struct simpeer *peer = &r->peer;
    _Atomic uint64_t copied = 0;
    size_t len;
    memset(&f, 0, sizeof f);
    f.kind = (enum lieni_frame_kind)(1 + take(in) % 16);
    uint8_t how = take(in);
    fill(peer, in, &f);
    if (lieni_frame_encode(&f, bytes, sizeof bytes, &copied, &len) != 0)
        return;
    for (unsigned i = how & 3; i > 1; i--) { // two or one bytes change
        uint8_t at = take(in);
        bytes[at % len] = take(in);
    }
    if ((how >> 2 & 7) == 7) // cut, with the length of the rest
        len -= take(in) % len;
    if ((how >> 2 & 7) == 7 && len >= 4) {
        bytes[2] = (uint8_t)len;
        bytes[3] = (uint8_t)(len >> 8);
    }
    bool liar = (how >> 5) == 7;
    uint16_t message = liar ? take(in) : peer->owed_message,
             control = liar ? take(in) : peer->owed_control;
    uint32_t number = peer->number + (liar ? take(in) % 3 : 1);
    if (len >= LIENI_FRAME_HEADER)
        lieni_frame_stamp(bytes, message, control, number);
    if (!simpeer_send(peer, bytes, len))
        return;
    peer->number = number;
    peer->owed_message = peer->owed_control = 0;
}

static void send_raw(struct run *r, struct input *in)
{
    uint8_t bytes[256];
    size_t len = take(in);
    for (size_t i = 0; i < len; i++)
        bytes[i] = take(in);
    (void)simpeer_send(&r->peer, bytes, len);
}

// -- Steps --

// A token as the peer would make one, and what the application does with it.
static void use_token(struct run *r, struct input *in)
{
    static struct lieni_token_data data;
    lien_token token;
    uint8_t how = take(in);
    memset(&data, 0, sizeof data);
    data.kind = how & 1 ? LIENI_TOKEN_BORROWED : LIENI_TOKEN_HELD;
    data.conn = (r->peer.hs.conn_id & ~UINT64_C(1)) + (how >> 5 == 7); // the owner connected
    data.name = own_name(&r->peer, take(in));
    data.total = own_keys(&r->peer, take(in) | 1, data.keys, &data.n_keys);
    lieni_token_encode(&data, &token);
    if (how & 2)
        token.bytes[take(in) % token.len] = take(in);
    if ((how & 12) == 12)
        app_release(&r->app, token.bytes, token.len);
    else
        app_read(&r->app, token.bytes, token.len, take2(in));
}

static void peer_reads(struct run *r, struct input *in)
{
    uint8_t how = take(in);
    if (r->peer.n_keys == 0)
        return;
    const struct lieni_key *key = &r->peer.keys[last_of(r->peer.n_keys, how)];
    uint64_t len = key->len < 4000 ? key->len : 4000;
    if (how >> 5 == 7)
        simpeer_read(&r->peer, key->addr + take(in) * 64u, key->key + (how & 1), PEER_FRAME);
    else
        simpeer_read(&r->peer, key->addr, key->key, (size_t)len);
}

static void an_end(struct run *r, struct input *in)
{
    switch (take(in) % 8) {
    case 0:
        simpeer_shutdown(&r->peer);
        break;
    case 1:
        simpeer_hang_up(&r->peer);
        break;
    case 2:
        lien_conn_close(&r->app.conn);
        break;
    case 3:
        if (r->app.conn)
            lien_conn_goaway(r->app.conn);
        break;
    case 4:
        if (r->app.listener)
            lien_listener_drain(r->app.listener);
        break;
    case 5:
        if (r->peer.ep)
            lieni_sim_break_ep(r->peer.ep);
        break;
    case 6:
        if (r->peer.stream)
            (void)r->peer.platform->net->write(r->peer.stream, "late", 4);
        break;
    default:
        r->peer.asleep = !r->peer.asleep;
        break;
    }
}

static void step(struct run *r, struct input *in)
{
    uint8_t what = take(in);
    lien_token token;
    switch (what % 20) {
    default: // 0 to 8
        send_frame(r, in);
        break;
    case 9:
        send_raw(r, in);
        break;
    case 10:
        peer_reads(r, in);
        break;
    case 11:
        run_for(r, MS << take(in) % 12);
        break;
    case 12:
        app_call(&r->app, take(in));
        break;
    case 13:
        app_send(&r->app, take(in));
        break;
    case 14:
        if (app_grant(&r->app, take(in), &token))
            simpeer_hear(&r->peer, &token);
        break;
    case 15:
        use_token(r, in);
        break;
    case 16:
        app_end(&r->app, take(in), what / 20);
        break;
    case 17:
    case 18:
        app_serve(&r->app, what / 20, take2(in));
        break;
    case 19:
        if (what / 20 % 3 == 0)
            an_end(r, in);
        else if (what / 20 % 3 == 1)
            r->app.keep = !r->app.keep;
        else
            app_free_msgs(&r->app);
        break;
    }
    // Some steps come close upon each other.
    run_for(r, what & 0x80 ? 0 : 150 * US);
}

// -- One input --

static void finish(struct run *r)
{
    r->peer.asleep = false;
    app_give_up(&r->app);
    simpeer_shutdown(&r->peer);
    simpeer_hang_up(&r->peer);
    for (unsigned i = 0; i < 40 && !app_quiet(&r->app); i++)
        run_for(r, 500 * MS);
    FUZZ_CHECK(app_quiet(&r->app) ? NULL : "something that is owed never comes");
    run_for(r, 10 * MS);
    for (unsigned i = 0; !simpeer_close(&r->peer); i++) {
        FUZZ_CHECK(i > 1000 ? "the peer of the test does not close" : NULL);
        run_for(r, 10 * MS);
    }
    app_close(&r->app);
    lieni_sim_check_quiet(r->sim);
    FUZZ_CHECK(lieni_sim_violations(r->sim) ? lieni_sim_violation(r->sim, 0) : NULL);
    lieni_sim_world_free(r->sim);
}

static void say(void *self, const char *line)
{
    (void)self;
    fprintf(stderr, "sim: %s\n", line);
}

// Where nothing proves an end, memory stays mapped until the process ends: seldom.
static enum lieni_sim_class class_of(unsigned i)
{
    return i < 6    ? LIENI_SIM_TCP
           : i < 11 ? LIENI_SIM_VERBS
           : i < 15 ? LIENI_SIM_SOCKETS
                    : LIENI_SIM_OWN_ONLY;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run run;
    struct input in = {.at = data, .left = size};
    struct lieni_sim_config config;
    uint8_t first = take(&in);
    lieni_sim_config_init(&config, class_of(first & 15));
    config.starved_fails = false; // a peer that lies about its receives starves itself
    config.writes_only = true;    // and one that lies about releases fetches what it likes
    config.net_piece = (struct lieni_sim_range){600, 600};
    config.p_reorder = first & 32 ? 200000 : 0;
    config.p_withhold = first & 64 ? 300000 : 0;
    config.ghost = (struct lieni_sim_range){100 * US, 20 * MS};
    memset(&run, 0, sizeof run);
    run.sim = lieni_sim_world_new(first, &config);
    FUZZ_CHECK(run.sim ? NULL : "no world");
    if (getenv("FUZZ_TRACE"))
        lieni_sim_set_trace(run.sim, say, NULL);
    app_open(&run.app, run.sim);
    run.app.keep = first & 16;
    simpeer_open(&run.peer, run.sim, 1, run.app.address);
    for (unsigned i = 0; i < 20 && !(run.peer.up && run.app.conn); i++)
        run_for(&run, MS);
    FUZZ_CHECK(run.peer.up && run.app.conn ? NULL : "no connection");
    for (unsigned n = 0; n < STEPS_MAX && in.left > 0; n++)
        step(&run, &in);
    finish(&run);
    return 0;
}
