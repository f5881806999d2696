// SPDX-License-Identifier: Apache-2.0
//
// Evidence and plans by themselves: what no provider of ours does on purpose. Entries that are unknown, late, repeated or without
// context make no evidence; a proof makes it, no proof does not; it is spent once [R11]. Operations out of range or
// over one another are refused before anything is posted [R3].

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/evidence.h"
#include "core/plan.h"
#include "tests/fault/fault.h"

static int owner_a, owner_b;

static uint64_t take(struct lieni_wrs *t, enum lieni_wr_kind kind, void *owner, uint64_t len)
{
    uint64_t seq = 0;
    CHECK_EQ(lieni_wr_take(t, kind, owner, len, &seq), 0);
    CHECK(seq != 0 && seq < (uint64_t)1 << 62);
    return seq;
}

static int entry(struct lieni_wrs *t, uint64_t context, struct lieni_evidence *ev)
{
    const struct lieni_cqe cqe = {.context = context};
    return lieni_evidence_from_entry(t, &cqe, ev);
}

static void entries(void)
{
    struct lieni_wrs t;
    struct lieni_evidence ev;
    CHECK_EQ(lieni_wrs_open(&t, 4, 7), 0);
    uint64_t a = take(&t, LIENI_WR_READ, &owner_a, 100);
    uint64_t b = take(&t, LIENI_WR_READ, &owner_b, 200);
    CHECK_EQ(entry(&t, 0, &ev), LIEN_ENOTFOUND);                     // NULL context
    CHECK_EQ(entry(&t, a + 1000, &ev), LIEN_ENOTFOUND);              // unknown
    CHECK_EQ(entry(&t, a ^ (uint64_t)1 << 40, &ev), LIEN_ENOTFOUND); // another generation
    CHECK_EQ(entry(&t, UINT64_MAX, &ev), LIEN_ENOTFOUND);
    CHECK_EQ(entry(&t, a, &ev), 0);
    CHECK(ev.owner == &owner_a && ev.posted_len == 100 && ev.conn == 7);
    CHECK(lieni_evidence_spend(&ev, 7, LIENI_WR_READ) == &owner_a);
    CHECK_EQ(entry(&t, a, &ev), LIEN_ENOTFOUND); // repeated
    // Its place is used anew: the old entry still names nothing.
    uint64_t c = take(&t, LIENI_WR_SEND, &owner_a, 300);
    CHECK(c != a);
    CHECK_EQ(entry(&t, a, &ev), LIEN_ENOTFOUND);
    CHECK_EQ(lieni_wrs_outstanding(&t), 2);
    CHECK_EQ(t.unknown, 6);
    // The destruction began: entries prove nothing, whoever they name.
    lieni_wrs_end(&t);
    CHECK_EQ(entry(&t, b, &ev), LIEN_ENOTFOUND);
    CHECK_EQ(lieni_wrs_outstanding(&t), 2);
    CHECK_EQ(lieni_evidence_from_end(&t, LIENI_UNKNOWN, &ev), LIEN_ENOTFOUND);
    CHECK_EQ(lieni_wrs_outstanding(&t), 2);
    CHECK_EQ(lieni_evidence_from_end(&t, LIENI_PROVEN, &ev), 0);
    CHECK_EQ(lieni_evidence_from_end(&t, LIENI_PROVEN, &ev), 0);
    CHECK_EQ(lieni_evidence_from_end(&t, LIENI_PROVEN, &ev), LIEN_ENOTFOUND);
    lieni_wrs_close(&t);
}

// Whether it ends in abort.
static bool aborts(void (*run)(void))
{
    int status = 0;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        fclose(stderr);
        run();
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void make(struct lieni_wrs *t, struct lieni_evidence *ev)
{
    CHECK_EQ(lieni_wrs_open(t, 4, 7), 0);
    CHECK_EQ(entry(t, take(t, LIENI_WR_READ, &owner_a, 1), ev), 0);
}

static void spend_twice(void)
{
    struct lieni_wrs t;
    struct lieni_evidence ev;
    make(&t, &ev);
    lieni_evidence_spend(&ev, 7, LIENI_WR_READ);
    lieni_evidence_spend(&ev, 7, LIENI_WR_READ);
}

static void spend_by_another_connection(void)
{
    struct lieni_wrs t;
    struct lieni_evidence ev;
    make(&t, &ev);
    lieni_evidence_spend(&ev, 8, LIENI_WR_READ);
}

static void spend_as_another_kind(void)
{
    struct lieni_wrs t;
    struct lieni_evidence ev;
    make(&t, &ev);
    lieni_evidence_spend(&ev, 7, LIENI_WR_SEND);
}

static void ops(void)
{
    static lien_op many[LIEN_OPS_MAX + 1];
    const lien_op fine[] = {{0, 50, 50}, {50, 0, 50}, {7, 70, 0}, {100, 100, 0}};
    const lien_op over[] = {{0, 0, 60}, {0, 59, 1}};
    const lien_op inside[] = {{0, 10, 50}, {0, 80, 1}, {0, 20, 1}};
    const lien_op outside[][1] = {{{0, 51, 50}}, {{51, 0, 50}}, {{101, 0, 0}}, {{0, 101, 0}}};
    const lien_op wraps[][1] = {
        {{UINT64_MAX, 0, 2}}, {{0, UINT64_MAX, 2}}, {{1, 0, UINT64_MAX}}, {{0, 1, UINT64_MAX}}};
    CHECK_EQ(lieni_ops_check(fine, 4, 100, 100), 0);
    CHECK_EQ(lieni_ops_check(NULL, 0, 100, 100), 0);
    CHECK_EQ(lieni_ops_check(over, 2, 100, 100), LIEN_EOVERLAP);
    CHECK_EQ(lieni_ops_check(inside, 3, 100, 100), LIEN_EOVERLAP);
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(lieni_ops_check(outside[i], 1, 100, 100), LIEN_ERANGE);
        CHECK_EQ(lieni_ops_check(wraps[i], 1, 100, 100), LIEN_ERANGE);
    }
    CHECK_EQ(lieni_ops_check(many, LIEN_OPS_MAX, 100, 100), 0);
    CHECK_EQ(lieni_ops_check(many, LIEN_OPS_MAX + 1, 100, 100), LIEN_EINVAL);
    CHECK_EQ(lieni_ops_check(NULL, 1, 100, 100), LIEN_EINVAL);
}

// Every piece lies in one source and one destination buffer, none is longer than allowed, and together they are the operations.
static void pieces(void)
{
    static const uint64_t src[] = {10, 1, 100}, dst[] = {37, 64, 20};
    static unsigned char from[111], to[121], want[121];
    const lien_op list[] = {{5, 100, 21}, {0, 0, 60}, {3, 60, 0}, {111 - 9, 91, 9}};
    struct lieni_plan plan;
    struct lieni_piece p;
    for (unsigned i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i + 1);
    for (unsigned i = 0; i < 4; i++)
        memcpy(want + list[i].dst, from + list[i].src, list[i].len);
    CHECK_EQ(lieni_plan_open(&plan, list, 4, src, 3, dst, 3), 0);
    while (lieni_plan_next(&plan, 16, &p)) {
        CHECK(p.len > 0 && p.len <= 16 && p.src < 3 && p.dst < 3);
        CHECK(p.src_off + p.len <= src[p.src] && p.dst_off + p.len <= dst[p.dst]);
        uint64_t s = p.src_off, d = p.dst_off;
        for (uint32_t i = 0; i < p.src; i++)
            s += src[i];
        for (uint32_t i = 0; i < p.dst; i++)
            d += dst[i];
        memcpy(to + d, from + s, p.len);
        lieni_plan_posted(&plan, &p);
        CHECK(!lieni_plan_idle(&plan));
        lieni_plan_piece_over(&plan, p.len, 0);
    }
    CHECK(lieni_plan_idle(&plan));
    CHECK(memcmp(to, want, sizeof to) == 0);
    lieni_plan_close(&plan);
    CHECK_EQ(lieni_plan_open(&plan, list, 4, src, 2, dst, 3), LIEN_ERANGE);
    CHECK_EQ(lieni_plan_open(&plan, list, 4, src, 3, dst, 2), LIEN_ERANGE);
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    entries();
    CHECK(aborts(spend_twice));
    CHECK(aborts(spend_by_another_connection));
    CHECK(aborts(spend_as_another_kind));
    ops();
    pieces();
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
