// SPDX-License-Identifier: Apache-2.0
//
// See simpeer.h.

#include "tests/fuzz/simpeer.h"

#include "tests/fuzz/fuzz.h"

enum {
    CONTEXT_READ = 1,
    CONTEXT_SEND = 100,
    CONTEXT_RECV = 200
};

#define MEMORY   ((PEER_SENDS + PEER_RECVS + 1) * PEER_FRAME)
#define MUST(ok) FUZZ_CHECK((ok) ? NULL : "the peer of the test: not so: " #ok)

// One peer at a time; not cleared: nothing that the victim does depends on what was there.
static _Alignas(4096) uint8_t memory[MEMORY], region[PEER_REGION];

static uint8_t *send_at(struct simpeer *peer, unsigned i)
{
    return peer->memory + i * PEER_FRAME;
}
static uint8_t *recv_at(struct simpeer *peer, unsigned i)
{
    return peer->memory + (PEER_SENDS + i) * PEER_FRAME;
}

void simpeer_open(struct simpeer *peer, struct lieni_sim_world *sim, unsigned node,
                  const char *address)
{
    memset(peer, 0, sizeof *peer);
    peer->sim = sim;
    peer->platform = lieni_sim_node_platform(sim, node);
    peer->ops = peer->platform->providers[0];
    const struct lieni_prov_args args = {.env = &peer->platform->env};
    const struct lieni_report report = {0};
    struct lieni_mr_info info;
    MUST(peer->ops->open(&args, &peer->prov) == 0);
    MUST(peer->ops->domain_open(peer->prov, NULL, &peer->domain) == 0);
    peer->memory = memory;
    peer->region = region;
    MUST(peer->ops->mr_reg(peer->domain, peer->memory, MEMORY, LIENI_ACCESS_LOCAL, &peer->mr,
                           &info) == 0);
    MUST(peer->ops->mr_reg(peer->domain, peer->region, PEER_REGION, LIENI_ACCESS_REMOTE,
                           &peer->region_mr, &peer->region_info) == 0);
    const struct lieni_offer offer = {.version_min = LIENI_WIRE_VERSION,
                                      .version_max = LIENI_WIRE_VERSION,
                                      .nonce = {1, 2, 3},
                                      .n_providers = 1,
                                      .providers = {"sim"},
                                      .frame_max = PEER_FRAME,
                                      .message_credits = 8,
                                      .control_credits = 8,
                                      .call_credits = PEER_SLOTS,
                                      .message_max = 1 << 16,
                                      .grants_max = 16,
                                      .dead_ms = 5000};
    MUST(lieni_hs_start(&peer->hs, false, &offer, NULL, NULL) == 0);
    MUST(peer->platform->net->open(&peer->platform->env, &report, peer->platform->net_world,
                                   &peer->net) == 0);
    MUST(peer->platform->net->connect(peer->net, address, peer, &peer->stream) == 0);
    for (unsigned i = 0; i < PEER_SLOTS; i++)
        peer->call_gen[i] = peer->grant_gen[i] = 1;
    peer->probe_id = 1;
}

// -- Bootstrap --

static void fabric_connect(struct simpeer *peer)
{
    struct lieni_recv recvs[PEER_RECVS];
    for (unsigned i = 0; i < PEER_RECVS; i++)
        recvs[i] = (struct lieni_recv){.buf = recv_at(peer, i),
                                       .len = PEER_FRAME,
                                       .mr = peer->mr,
                                       .context = CONTEXT_RECV + i};
    char host[96];
    MUST(peer->platform->net->peer_host(peer->stream, host, sizeof host) == 0);
    struct lieni_ep_args args = {.user = peer,
                                 .host = peer->hs.host[0] ? peer->hs.host : host,
                                 .port = peer->hs.port,
                                 .recvs = recvs,
                                 .n_recvs = PEER_RECVS,
                                 .posts_max = PEER_RECVS + PEER_SENDS + 1};
    lieni_hs_cm_data(&peer->hs, false, args.send_data);
    lieni_hs_cm_data(&peer->hs, true, args.expect_data);
    MUST(peer->ops->connect(peer->domain, &args, &peer->ep) == 0);
}

static void stream_work(struct simpeer *peer)
{
    uint8_t bytes[512];
    while (peer->stream && peer->hs.out_len > 0) {
        int64_t n = peer->platform->net->write(peer->stream, peer->hs.out, peer->hs.out_len);
        if (n <= 0)
            break;
        lieni_hs_sent(&peer->hs, (size_t)n);
    }
    while (peer->stream) {
        int64_t n = peer->platform->net->read(peer->stream, bytes, sizeof bytes);
        if (n == LIEN_EAGAIN)
            return;
        if (peer->hs.state == LIENI_HS_CLIENT_WAIT) {
            lieni_hs_input(&peer->hs, bytes, n > 0 ? (size_t)n : 0);
            if (peer->hs.state == LIENI_HS_READY)
                fabric_connect(peer);
        }
        if (n <= 0) {
            if (!peer->ep)
                peer->over = true;
            return;
        }
    }
}

static bool net_pump(struct simpeer *peer)
{
    struct lieni_net_event events[8];
    unsigned n = peer->platform->net->poll(peer->net, events, 8);
    for (unsigned i = 0; i < n; i++) {
        if (events[i].kind == LIENI_NET_FAILED)
            peer->over = true;
        else if (peer->stream)
            stream_work(peer);
    }
    return n > 0;
}

// -- What comes --

static void see_name(struct simpeer *peer, struct lieni_name name)
{
    if (name.gen)
        peer->names[peer->n_names++ % PEER_SEEN] = name;
}

static void see_keys(struct simpeer *peer, const struct lieni_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        peer->keys[peer->n_keys++ % PEER_SEEN] = keys[i];
}

void simpeer_hear(struct simpeer *peer, const lien_token *token)
{
    static struct lieni_token_data data;
    const char *why = NULL;
    MUST(lieni_token_decode(token->bytes, token->len, &data, &why) == 0);
    see_name(peer, data.name);
    see_keys(peer, data.keys, data.n_keys);
}

static void see(struct simpeer *peer, const struct lieni_frame *f)
{
    see_name(peer, f->name);
    see_keys(peer, f->keys, f->n_keys);
    if (f->kind == LIENI_FRAME_MSG || f->kind == LIENI_FRAME_CALL)
        peer->owed_message++;
    else if (f->kind != LIENI_FRAME_REPLY)
        peer->owed_control++;
    if (f->kind == LIENI_FRAME_CALL) {
        peer->calls[peer->n_calls++ % PEER_SEEN] = f->call;
        see_name(peer, f->read_name);
        see_keys(peer, f->read_keys, f->n_read_keys);
    } else if (f->kind == LIENI_FRAME_REPLY && lieni_call_slot(f->call) < PEER_SLOTS) {
        peer->call_gen[lieni_call_slot(f->call)]++;
    } else if (f->kind == LIENI_FRAME_WRITE) {
        peer->write_call = f->call;
        peer->write_number = f->write;
    } else if (f->kind == LIENI_FRAME_PROBE) {
        for (uint32_t i = 0; i < f->n_probes; i++)
            peer->probes[peer->n_probes++ % PEER_SEEN] = f->probes[i].id;
    } else if (f->kind == LIENI_FRAME_RELEASE) {
        for (uint32_t i = 0; i < f->n_names; i++)
            if (f->names[i].slot < PEER_SLOTS &&
                f->names[i].gen == peer->grant_gen[f->names[i].slot])
                peer->grant_gen[f->names[i].slot]++;
    }
}

static void on_entry(struct simpeer *peer, const struct lieni_cqe *cqe)
{
    const struct lieni_wire_limits limits = {.frame_max = PEER_FRAME,
                                             .message_max = UINT64_MAX,
                                             .grants_max = 1u << 20,
                                             .own_grants_max = 1u << 20,
                                             .calls_max = LIENI_CALL_SLOTS_MAX,
                                             .side = 0};
    static struct lieni_frame frame;
    const char *why = NULL;
    if (cqe->context == CONTEXT_READ)
        peer->reading = false;
    else if (cqe->context < CONTEXT_RECV)
        peer->sends_busy &= ~(1u << (cqe->context - CONTEXT_SEND));
    if (cqe->context < CONTEXT_RECV || cqe->status != 0)
        return;
    unsigned i = (unsigned)(cqe->context - CONTEXT_RECV);
    peer->frames_in++;
    FUZZ_CHECK(lieni_frame_decode(recv_at(peer, i), cqe->len, &limits, &frame, &why) == 0
                   ? NULL
                   : "the library sent a frame that does not decode");
    see(peer, &frame);
    (void)peer->ops->post_recv(peer->ep, recv_at(peer, i), PEER_FRAME, peer->mr, CONTEXT_RECV + i);
}

bool simpeer_pump(struct simpeer *peer)
{
    struct lieni_event events[8];
    if (peer->asleep)
        return false;
    bool did = net_pump(peer);
    unsigned n = peer->ops->poll(peer->prov, events, 8);
    for (unsigned i = 0; i < n; i++) {
        switch (events[i].kind) {
        case LIENI_EV_UP:
            peer->up = true;
            break;
        case LIENI_EV_FAILED:
        case LIENI_EV_DOWN:
            peer->over = true;
            break;
        case LIENI_EV_ENTRY:
            on_entry(peer, &events[i].cqe);
            break;
        }
    }
    return did || n > 0;
}

// -- What it does --

bool simpeer_send(struct simpeer *peer, const void *bytes, size_t len)
{
    unsigned i = 0;
    while (i < PEER_SENDS && peer->sends_busy & 1u << i)
        i++;
    if (i == PEER_SENDS || !peer->up || peer->over || len > PEER_FRAME)
        return false;
    memcpy(send_at(peer, i), bytes, len);
    if (peer->ops->post_send(peer->ep, send_at(peer, i), len, peer->mr, CONTEXT_SEND + i) != 0)
        return false;
    peer->sends_busy |= 1u << i;
    return true;
}

void simpeer_read(struct simpeer *peer, uint64_t addr, uint64_t key, size_t len)
{
    if (peer->reading || !peer->up || peer->over || len > PEER_FRAME)
        return;
    peer->reading = peer->ops->post_read(peer->ep, recv_at(peer, PEER_RECVS), len, peer->mr, addr,
                                         key, CONTEXT_READ) == 0;
}

void simpeer_shutdown(struct simpeer *peer)
{
    if (peer->ep)
        peer->ops->ep_shutdown(peer->ep);
    peer->over = true;
}

void simpeer_hang_up(struct simpeer *peer)
{
    if (peer->stream)
        peer->platform->net->stream_close(peer->stream);
    peer->stream = NULL;
    if (!peer->ep)
        peer->over = true;
}

bool simpeer_close(struct simpeer *peer)
{
    enum lieni_proof proof;
    uint64_t late;
    peer->asleep = false;
    simpeer_hang_up(peer);
    if (peer->ep) {
        simpeer_shutdown(peer);
        if (peer->ops->ep_destroy(peer->ep, &proof, &late) != 0)
            return false;
        peer->ep = NULL;
    }
    if (peer->mr) {
        MUST(peer->ops->mr_close(peer->mr) == 0 && peer->ops->mr_close(peer->region_mr) == 0);
        peer->mr = NULL;
    }
    if (peer->ops->domain_close(peer->domain, &proof) != 0)
        return false;
    peer->ops->close(peer->prov);
    peer->platform->net->close(peer->net);
    return true;
}
