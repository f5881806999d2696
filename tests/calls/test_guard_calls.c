// SPDX-License-Identifier: Apache-2.0
//
// Guard mode under calls: what a call lent faults when it is touched, in each state, and the report names the call. The simulated world stands still meanwhile, so each state is met for sure.

#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include "tests/calls/world.h"

#if defined(__SANITIZE_ADDRESS__)
#define UNCHECKED __attribute__((no_sanitize_address))
#else
#define UNCHECKED __attribute__((no_sanitize("address")))
#endif

static struct desk desk;
static const lien_method methods[] = {{.name = "s/m", .handle = to_desk, .arg = &desk}};
static const lien_service service = {.methods = methods, .n_methods = 1};
static const char *const settings[] = {"guard=1", NULL};
static sigjmp_buf back;

static void on_fault(int sig)
{
    (void)sig;
    siglongjmp(back, 1);
}

UNCHECKED static void touch(uint8_t *at, bool write_it)
{
    if (write_it)
        *(volatile uint8_t *)at = 1;
    else
        (void)*(volatile uint8_t *)at;
}

// What was reported of an access; "" if there was no fault.
static const char *reported(uint8_t *at, bool write_it)
{
    static char text[2048];
    FILE *kept = tmpfile();
    int old = dup(STDERR_FILENO);
    cr_assert(kept && old >= 0);
    fflush(NULL);
    dup2(fileno(kept), STDERR_FILENO);
    if (sigsetjmp(back, 1) == 0)
        touch(at, write_it);
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(kept);
    text[fread(text, 1, sizeof text - 1, kept)] = 0;
    fclose(kept);
    return text;
}

static void expect_fault(uint8_t *at, bool write_it, const char *state, const char *by, uint64_t id,
                         uint64_t conn)
{
    char want[160];
    const char *text = reported(at, write_it);
    snprintf(want, sizeof want, "which is %s, lent by %s %llu of conn %016llx\n", state, by,
             (unsigned long long)id, (unsigned long long)conn);
    cr_expect(strstr(text, write_it ? "stray write" : "stray read") && strstr(text, want),
              "'%s' is not in: %s", want, text);
}

static uint8_t *at_of(lien_buf *buf)
{
    void *data;
    cr_assert_eq(lien_buf_mut(buf, &data), 0);
    return data;
}

Test(guard_calls, what_a_call_lends_in_each_state)
{
    struct lieni_sim_config config;
    lieni_sim_config_init(&config, LIENI_SIM_TCP);
    config.chunk = (struct lieni_sim_range){16384, 16384}; // long enough to look
    config.chunk_gap = (struct lieni_sim_range){MS, MS};
    signal(SIGSEGV, on_fault); // ours chains to it
    struct world *w = world_open(7, &config, settings, &service, NULL);
    struct seen s = {0}, x = {0}, r = {0};
    lien_buf *read = buf_new(w, CLIENT, 4096, 1), *target = buf_new(w, CLIENT, MIB, 2),
             *body = buf_new(w, CLIENT, 4096, 3), *source = buf_new(w, SERVER, MIB, 4),
             *into = buf_new(w, SERVER, 4096, 5);
    uint8_t *read_at = at_of(read), *target_at = at_of(target), *body_at = at_of(body),
            *source_at = at_of(source), *into_at = at_of(into);
    lien_space *space = space_of(w, CLIENT, target), *dst = space_of(w, SERVER, into);
    lien_call_opts opts = call_to(&s);
    lien_call *call;
    opts.read = &read;
    opts.n_read = 1;
    opts.write = space;
    opts.body = &body;
    opts.n_body = 1;
    cr_assert_eq(lien_call_start(w->conn[CLIENT], "s/m", NULL, 0, &opts, &call), 0);
    const uint64_t id = call->id, conn = w->conn[CLIENT]->id;

    // Nothing runs yet: the sources can be read and not written, the write space is the call's.
    cr_expect_str_eq(reported(read_at, false), "");
    expect_fault(read_at, true, "borrowed", "call", id, conn);
    cr_expect_str_eq(reported(body_at, false), "");
    expect_fault(body_at, true, "borrowed", "call", id, conn);
    expect_fault(target_at, false, "under a read", "call", id, conn);
    expect_fault(target_at, true, "under a read", "call", id, conn);

    // The handler reads, and writes.
    while (desk.n == 0)
        run_ms(w, 10);
    lien_request *request = desk.request[0];
    desk.request[0] = NULL;
    lien_transfer_opts to = transfer_to(&r);
    cr_assert_eq(lien_request_read(request, dst, &to), 0);
    expect_fault(into_at, false, "under a read", "the handler of call", id, conn);
    expect_fault(into_at, true, "under a read", "the handler of call", id, conn);
    to = transfer_to(&x);
    cr_assert_eq(lien_request_write(request, &source, 1, &to), 0);
    cr_expect_str_eq(reported(source_at, false), "");
    expect_fault(source_at, true, "borrowed", "the handler of call", id, conn);

    // The caller's READ runs into the write space; then the call ends, and the space is sealed: still nobody's.
    while (space->state == LIENI_TARGET_AVAILABLE)
        run_ms(w, 1);
    cr_assert_eq(space->state, LIENI_TARGET_READING);
    expect_fault(target_at, true, "under a read", "call", id, conn);
    cr_assert_eq(lien_call_cancel(call), 0);
    cr_assert_eq(space->state, LIENI_TARGET_SEALED);
    expect_fault(target_at, true, "under a read", "call", id, conn);
    expect_fault(target_at, false, "under a read", "call", id, conn);
    cr_expect_str_eq(reported(read_at, true), "", "the borrow ended with the call");

    // Evidence brings everything back.
    cr_assert(run_until(w, &s.released, 5000));
    run_ms(w, 1000);
    cr_expect(x.released && r.released);
    cr_expect_str_eq(reported(target_at, true), "");
    cr_expect_str_eq(reported(body_at, true), "");
    cr_expect_str_eq(reported(source_at, true), "");
    cr_expect_str_eq(reported(into_at, true), "");
    lien_request_drop(&request);
    lien_call_close(&call);
    lien_space_free(&space);
    lien_space_free(&dst);
    lien_buf_free(&read);
    lien_buf_free(&body);
    lien_buf_free(&source);
    world_close(w);
}
