// SPDX-License-Identifier: Apache-2.0
//
// Guard mode's signal handler beside those of the application, forked children, and AddressSanitizer.

#include "guard_world.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if ASAN
#include <sanitizer/asan_interface.h>
#endif

TestSuite(guard_signals, .init = guard_setup, .fini = guard_teardown);

// -- Forks -----------------------------------------------------------------------------------------

static lien_buf *parents;
static uint8_t *parents_bytes;

CHILD(look_at_mappings)
{
    if (is_mapped(parents_bytes) || is_mapped(lieni_buf_addr(parents))) {
        _exit(1);
    }
}

CHILD(touch_the_parents)
{
    signal(SIGSEGV, SIG_DFL); // taken away: a new pool brings the handler back
    guard_setup();
    poke(parents_bytes, 1);
}

Test(guard_signals, a_forked_child_has_neither_mapping)
{
    parents = alloc(PAGE);
    parents_bytes = bytes(parents);
    struct outcome out = in_child(look_at_mappings, false);
    expect_fine(&out);
    out = in_child(touch_the_parents, false);
    expect_fault(&out, "stray write");
    expect_text(&out, "memory of a pool does not exist in a forked child");
    lien_buf_free(&parents);
}

// -- Handlers of the application -------------------------------------------------------------------

// No guarded pool was opened before, so the child's first installs the handler.
TestSuite(guard_handlers);

static void plain_handler(int sig)
{
    dprintf(STDERR_FILENO, "plain %d\n", sig);
    _exit(7);
}

static void info_handler(int sig, siginfo_t *info, void *context)
{
    dprintf(STDERR_FILENO, "info %d %p %d\n", sig, info->si_addr, context != NULL);
    _exit(8);
}

static void install(void (*plain)(int), void (*with_info)(int, siginfo_t *, void *), int flags,
                    struct sigaction *old)
{
    struct sigaction action = {.sa_flags = flags};
    sigemptyset(&action.sa_mask);
    if (with_info) {
        action.sa_sigaction = with_info;
        action.sa_flags |= SA_SIGINFO;
    } else {
        action.sa_handler = plain;
    }
    if (sigaction(SIGSEGV, &action, old) != 0) {
        abort();
    }
}

CHILD(fault_in_own_world)
{
    guard_setup();
    lien_buf *buf = alloc(PAGE);
    uint8_t *at = bytes(buf);
    take(buf, 3);
    announce(buf, at);
    poke(at, 1);
}

CHILD(plain_before)
{
    install(plain_handler, NULL, 0, NULL);
    fault_in_own_world();
}

CHILD(info_before)
{
    install(NULL, info_handler, 0, NULL);
    fault_in_own_world();
}

CHILD(ignored_before)
{
    signal(SIGSEGV, SIG_IGN);
    fault_in_own_world();
}

CHILD(elsewhere_with_info)
{
    install(NULL, info_handler, 0, NULL);
    guard_setup();
    poke((uint8_t *)(uintptr_t)8, 1); // not ours: no report
}

static struct sigaction ours;

static void chaining_handler(int sig, siginfo_t *info, void *context)
{
    dprintf(STDERR_FILENO, "later\n");
    ours.sa_sigaction(sig, info, context);
}

CHILD(chaining_after)
{
    guard_setup();
    install(NULL, chaining_handler, 0, &ours);
    lien_pool *another = guarded_pool(LIEN_GUARD); // leaves it in place
    if (!another) {
        _exit(1);
    }
    lien_buf *buf = alloc(PAGE);
    uint8_t *at = bytes(buf);
    take(buf, 3);
    poke(at, 1);
}

Test(guard_handlers, the_handler_chains)
{
    struct outcome out = in_child(plain_before, false);
    expect_announced(&out);
    cr_expect(WIFEXITED(out.status) && WEXITSTATUS(out.status) == 7, "%x", (unsigned)out.status);
    cr_expect_eq(strncmp(out.text, "lien: guard: stray ", 19), 0, "%s", out.text);
    expect_text(&out, "\nplain 11\n");
    out = in_child(info_before, false);
    char where[64];
    cr_assert_eq(sscanf(out.text, "want <at %60[^:]", where), 1);
    cr_expect(WIFEXITED(out.status) && WEXITSTATUS(out.status) == 8, "%x", (unsigned)out.status);
    char line[128];
    snprintf(line, sizeof line, "\ninfo 11 %s 1\n", where);
    expect_text(&out, line);
    out = in_child(ignored_before, false);
    expect_announced(&out);
    expect_fault(&out, "stray write");
    out = in_child(elsewhere_with_info, false);
    cr_expect_str_eq(out.text, "info 11 0x8 1\n");
    out = in_child(chaining_after, false);
    cr_expect_eq(strncmp(out.text, "later\nlien: guard: stray ", 25), 0, "%s", out.text);
    cr_expect(WIFSIGNALED(out.status) && WTERMSIG(out.status) == SIGSEGV);
}

static sigjmp_buf back;

static void jumping_handler(int sig)
{
    (void)sig;
    siglongjmp(back, 1);
}

CHILD(recover)
{
    install(jumping_handler, NULL, 0, NULL);
    guard_setup();
    lien_buf *buf = alloc(PAGE);
    uint8_t *at = bytes(buf);
    take(buf, 3);
    for (volatile int i = 0; i < 200; i++) {
        if (sigsetjmp(back, 1) == 0) {
            poke(at, 1);
            _exit(1);
        }
    }
}

CHILD(reset_hand)
{
    install(plain_handler, NULL, (int)SA_RESETHAND, NULL);
    guard_setup();
    install(NULL, NULL, 0, NULL); // somebody else takes ours away
    lien_pool *another = guarded_pool(LIEN_GUARD);
    if (!another) {
        _exit(1);
    }
    lien_buf *buf = alloc(PAGE);
    uint8_t *at = bytes(buf);
    take(buf, 3);
    poke(at, 1);
}

CHILD(killed)
{
    kill(getpid(), SIGSEGV);
}

Test(guard_handlers, faults_can_be_survived_sent_and_taken_away)
{
    struct outcome out = in_child(recover, false);
    expect_fine(&out);
    size_t reports = 0;
    for (const char *at = out.text; (at = strstr(at, "stray")); at++) {
        reports++;
    }
    cr_expect(reports > 0 && reports <= 64, "%zu reports", reports);
    out = in_child(reset_hand, false);
    expect_fault(&out, "stray write");
    out = run_child(killed);
    cr_expect(WIFSIGNALED(out.status) && WTERMSIG(out.status) == SIGSEGV);
    cr_expect_str_eq(out.text, "");
}

// -- AddressSanitizer ------------------------------------------------------------------------------

#if ASAN
CHILD(instrumented_write)
{
    lien_buf *buf;
    uint8_t *at = taken(&buf);
    *(volatile uint8_t *)(at + 100) = 1;
}

CHILD(intercepted_copy)
{
    lien_buf *buf;
    uint8_t *at = taken(&buf);
    char copy[64];
    volatile size_t n = sizeof copy;
    memcpy(copy, at, n);
    if (write(STDERR_FILENO, copy, 1) != 1) {
        _exit(1);
    }
}

CHILD(poison_without_mappings)
{
    lieni_guard_maps_most = 1;
    lien_buf *first = alloc(1), *buf;
    take(first, 1);
    uint8_t *at = taken(&buf);
    *(volatile uint8_t *)at = 1;
}

Test(guard_signals, targets_are_poisoned)
{
    static void (*const bodies[])(void) = {instrumented_write, intercepted_copy,
                                           poison_without_mappings};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct outcome out = run_child(bodies[i]);
        expect_text(&out, "use-after-poison");
        cr_expect(!(WIFEXITED(out.status) && WEXITSTATUS(out.status) == 42));
    }
    lien_buf *buf;
    uint8_t *at = taken(&buf);
    cr_expect(__asan_address_is_poisoned(at));
    cr_expect(!__asan_address_is_poisoned(lieni_buf_addr(buf)), "not the provider's");
    give(buf);
    cr_expect(!__asan_address_is_poisoned(at));
    borrow(buf, 1);
    cr_expect(!__asan_address_is_poisoned(at), "a source can be read");
    lose(buf);
    cr_expect(__asan_address_is_poisoned(at));
    domain_ended(true);
    cr_expect(!__asan_address_is_poisoned(at));
    lien_buf_free(&buf);
}
#endif
