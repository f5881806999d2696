// SPDX-License-Identifier: Apache-2.0
//
// Calls cancelled at random moments, of all kinds, on one connection: what they leave behind is nothing. Report 10.

#include <dirent.h>
#include <malloc.h>

#include "core/conn.h"
#include "tests/field/field.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

// FIELD_CANCELS in the environment says otherwise.
#define CANCELS   (SANITIZED ? 4000u : 100000u)
#define AT_ONCE   48u
#define SMALL     ((size_t)16 << 10)
#define HEAP_MORE ((int64_t)256 << 10) // what the allocator may have kept for later

enum kind {
    SWALLOW, // nobody answers but the cancel
    ECHO,    // the reply may be on its way
    WRITE,   // the peer writes into a space
    READ,    // the peer reads a space
    BODY,    // arguments that the peer READs
    REPLY,   // a reply that we READ
    KINDS
};
static const char *const methods[KINDS] = {"swallow", "echo", "write", "read", "echo", "body"};

struct slot {
    lien_call *call;
    lien_space *space;
    _Atomic bool busy;
    _Atomic int done, released; // of this use
    _Atomic int status;
};

struct levels {
    uint32_t message_credits, control_credits, peer_message_credits, peer_control_credits;
    uint32_t free_slots;
    uint64_t grants, pool_bytes, peer_grants, peer_pool_bytes;
    int64_t heap, descriptors;
};

static struct field f;
static struct slot slots[AT_ONCE];
static lien_buf *shared; // read, and sent as a body, by many at once
static uint64_t seed = 88172645463325252u;
static unsigned results[3]; // done with 0, cancelled, else
static _Atomic unsigned wrong_order;

static uint64_t draw(uint64_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % below;
}

static void on_done(void *arg, int status, lien_msg *reply)
{
    struct slot *s = arg;
    lien_msg_free(&reply);
    s->status = status;
    wrong_order += s->done++ != 0 || s->released != 0;
}

static void on_released(void *arg, int status)
{
    struct slot *s = arg;
    wrong_order += s->done != 1 || s->released++ != 0 || status != 0;
    s->busy = false;
}

// Of a slot that is free.
static void start(struct slot *s)
{
    enum kind kind = (enum kind)draw(KINDS);
    struct field_source source;
    lien_call_opts opts = field_opts();
    memset(&source, 0, sizeof source);
    source.len = 1 + draw(SMALL);
    source.n_ops = draw(2) ? (uint32_t)(1 + draw(8)) : 0;
    opts.on_done = on_done;
    opts.on_released = on_released;
    opts.arg = s;
    if (kind == WRITE || draw(8) == 0)
        opts.write = s->space;
    if (kind == READ || draw(8) == 0) {
        opts.read = &shared;
        opts.n_read = 1;
    }
    if (kind == BODY) {
        opts.body = &shared;
        opts.n_body = 1;
    }
    if (kind == REPLY)
        opts.reply_max = SMALL;
    s->done = s->released = 0;
    s->busy = true;
    int rc;
    while ((rc = lien_call_start(f.conn, methods[kind], &source, sizeof source, &opts, &s->call)) ==
           LIEN_EAGAIN)
        sched_yield();
    CHECK_EQ(rc, 0);
}

static void cancel(struct slot *s)
{
    if (!s->call)
        return;
    if (draw(2))
        CHECK_EQ(lien_call_cancel(s->call), 0);
    CHECK_EQ(lien_call_close(&s->call), 0);
}

static void spin(uint64_t us)
{
    uint64_t end = fault_us() + us;
    while (fault_us() < end)
        sched_yield();
}

static bool is_free(void *arg)
{
    return !((struct slot *)arg)->busy;
}

static void settle(struct slot *s)
{
    cancel(s);
    CHECK(fault_until(is_free, s, 30000));
    if (s->done)
        results[s->status == 0 ? 0 : s->status == LIEN_ECANCELED ? 1 : 2]++;
    s->done = 0;
}

static void run(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct slot *s = &slots[draw(AT_ONCE)];
        settle(s);
        start(s);
        if (draw(3) == 0) // at once, in the same segment
            cancel(s);
        if (draw(4) == 0)
            cancel(&slots[draw(AT_ONCE)]);
        if (draw(16) == 0)
            spin(draw(200));
    }
    for (unsigned i = 0; i < AT_ONCE; i++)
        settle(&slots[i]);
}

static uint32_t free_slots(void)
{
    const struct lieni_calls *calls = &f.conn->calls;
    uint32_t n = 0;
    lieni_ctx_lock(f.side.ctx);
    for (uint32_t s = calls->free; s; s = calls->slots[s - 1].next_free)
        n++;
    bool none = lieni_list_empty(&calls->cancels) && f.conn->n_grants == 0;
    lieni_ctx_unlock(f.side.ctx);
    return none ? n : 0;
}

static bool all_free(void *arg)
{
    (void)arg;
    return free_slots() == f.conn->calls.max;
}

static bool peer_is_quiet(void *arg)
{
    struct field_verdict *v = arg;
    field_ask(&f, "verdict", NULL, 0, v, sizeof *v);
    return v->grants_live == 0 && v->pool_bytes == f.peer_before.pool_bytes;
}

static int64_t descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int64_t n = 0;
    CHECK(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static struct levels look(void)
{
    struct levels l;
    struct field_verdict v;
    lien_conn_info info;
    lien_ctx_stats stats;
    CHECK(fault_until(all_free, NULL, 30000));
    CHECK(fault_until(peer_is_quiet, &v, 30000));
    CHECK(fault_until(all_free, NULL, 30000)); // that of the question
    fault_info(f.conn, &info);
    fault_stats(&f.side, &stats);
    l = (struct levels){info.message_credits, info.control_credits,
                        v.message_credits,    v.control_credits,
                        free_slots(),         stats.grants_live,
                        stats.pool_bytes,     v.grants_live,
                        v.pool_bytes,         (int64_t)mallinfo2().uordblks,
                        descriptors()};
    return l;
}

static void check_same(const struct levels *a, const struct levels *b)
{
    CHECK_EQ(b->message_credits, a->message_credits);
    CHECK_EQ(b->control_credits, a->control_credits);
    CHECK_EQ(b->peer_message_credits, a->peer_message_credits);
    CHECK_EQ(b->peer_control_credits, a->peer_control_credits);
    CHECK_EQ(b->free_slots, a->free_slots);
    CHECK_EQ(b->grants, a->grants);
    CHECK_EQ(b->pool_bytes, a->pool_bytes);
    CHECK_EQ(b->peer_grants, a->peer_grants);
    CHECK_EQ(b->peer_pool_bytes, a->peer_pool_bytes);
    CHECK_EQ(b->descriptors, a->descriptors);
    if (!SANITIZED)
        CHECK(b->heap - a->heap < HEAP_MORE);
}

void field_report_10_cancelled_calls(void)
{
    // Without heartbeats, so that credits can be compared exactly.
    static const char *const settings[] = {"heartbeat_ms=0", NULL};
    const char *wanted = getenv("FIELD_CANCELS");
    unsigned n = wanted ? (unsigned)strtoul(wanted, NULL, 10) : CANCELS;
    field_open(&f, 0, NULL, settings);
    shared = field_buf(&f, SMALL, 0);
    for (unsigned i = 0; i < AT_ONCE; i++)
        slots[i].space = field_space(&f, SMALL, 1);
    run(n / 10);
    struct levels before = look();
    memset(results, 0, sizeof results);
    uint64_t begin = fault_ms();
    run(n);
    struct levels after = look();
    check_same(&before, &after);
    CHECK_EQ(wrong_order, 0);
    CHECK_EQ(results[2], 0);
    CHECK(results[1] > n / 10);
    lien_ctx_stats stats;
    fault_stats(&f.side, &stats);
    CHECK_EQ(stats.evidence_unknown, 0);
    CHECK_EQ(stats.protocol_errors, 0);
    CHECK_EQ(f.n_lost, 0);
    for (unsigned i = 0; i < 2 * AT_ONCE; i++) // more than there are credits
        field_ask(&f, "echo", NULL, 0, NULL, 0);
    printf("%u calls in %u ms, %u of them cancelled: credits %u and %u, %u slots, no grant, %lld "
           "descriptors, heap %+lld bytes: as before\n",
           n, (unsigned)(fault_ms() - begin), results[1], after.message_credits,
           after.control_credits, after.free_slots, (long long)after.descriptors,
           (long long)(after.heap - before.heap));
    for (unsigned i = 0; i < AT_ONCE; i++)
        lien_space_free(&slots[i].space);
    lien_buf_free(&shared);
    field_close(&f);
}
