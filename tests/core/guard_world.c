// SPDX-License-Identifier: Apache-2.0
//
// See guard_world.h.

#include "guard_world.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#define SPACE ((size_t)1 << 30)

struct world w;
lien_pool *pool;
struct lieni_domain dom;

lien_pool *guarded_pool(unsigned flags)
{
    lien_pool_opts opts;
    lien_pool_opts_init(&opts);
    opts.limit = SPACE;
    opts.reserve = 0;
    opts.flags = flags;
    lien_pool *made;
    return lien_pool_open(world_ctx(&w), &opts, &made) == 0 ? made : NULL;
}

void guard_setup(void)
{
    world_open(&w);
    pool = guarded_pool(LIEN_GUARD);
    memset(&dom, 0, sizeof dom);
}

void guard_teardown(void)
{
    world_close(&w);
    cr_expect_eq(lieni_guard_maps, 0, "%zu mappings are still counted", lieni_guard_maps);
}

lien_buf *alloc(size_t len)
{
    lien_buf *buf = NULL;
    if (lien_pool_alloc(pool, len, &buf) != 0) {
        abort();
    }
    return buf;
}

void borrow(lien_buf *buf, uint64_t op)
{
    world_lock(&w);
    if (lieni_buf_borrow(buf) != 0) {
        abort();
    }
    lieni_buf_lent_by(buf, LIENI_LENT_BY_GRANT, CONN, op);
    world_unlock(&w);
}

void take(lien_buf *buf, uint64_t op)
{
    world_lock(&w);
    if (lieni_buf_take(buf) != 0) {
        abort();
    }
    lieni_buf_lent_by(buf, LIENI_LENT_BY_READ, CONN, op);
    world_unlock(&w);
}

void unborrow(lien_buf *buf)
{
    world_lock(&w);
    lieni_buf_unborrow(buf);
    world_unlock(&w);
}

void give(lien_buf *buf)
{
    world_lock(&w);
    lieni_buf_give(buf);
    world_unlock(&w);
}

void lose(lien_buf *buf)
{
    world_lock(&w);
    lieni_buf_lose(buf, &dom);
    world_unlock(&w);
}

void domain_ended(bool proven)
{
    world_lock(&w);
    lieni_mem_domain_leaving(w.root, &dom);
    lieni_mem_domain_ended(w.root, &dom, proven);
    world_unlock(&w);
}

uint64_t skipped(void)
{
    world_lock(&w);
    uint64_t n = lieni_mem_guard_skipped(w.root);
    world_unlock(&w);
    return n;
}

uint8_t *bytes(lien_buf *buf)
{
    void *data = NULL;
    if (lien_buf_mut(buf, &data) != 0) {
        abort();
    }
    return data;
}

// Accesses that no sanitizer looks at: only the page protection answers.
__attribute__((no_sanitize("address"))) void poke(uint8_t *at, uint8_t value)
{
    *(volatile uint8_t *)at = value;
}

__attribute__((no_sanitize("address"))) uint8_t peek(const uint8_t *at)
{
    return *(const volatile uint8_t *)at;
}

// -- Children --------------------------------------------------------------------------------------

// Runs `body` in a child with a world of its own, without the handlers of sanitizers; returning is exit code 42.
struct outcome in_child(void (*body)(void), bool own_world)
{
    static struct outcome out;
    int ends[2];
    memset(&out, 0, sizeof out);
    cr_assert_eq(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        const struct rlimit none = {0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(ends[1], STDERR_FILENO);
        signal(SIGSEGV, SIG_DFL);
#if ASAN
        __sanitizer_set_report_fd((void *)(uintptr_t)STDERR_FILENO);
#endif
        if (own_world) {
            guard_setup();
        }
        body();
        _exit(42);
    }
    close(ends[1]);
    size_t len = 0;
    ssize_t n;
    while ((n = read(ends[0], out.text + len, sizeof out.text - 1 - len)) > 0) {
        len += (size_t)n;
    }
    close(ends[0]);
    cr_assert_eq(waitpid(child, &out.status, 0), child);
    return out;
}

void expect_text(const struct outcome *out, const char *part)
{
    cr_expect(strstr(out->text, part), "'%s' is not in: %s", part, out->text);
}

void expect_fault(const struct outcome *out, const char *kind)
{
    cr_expect(WIFSIGNALED(out->status) && WTERMSIG(out->status) == SIGSEGV, "status %x: %s",
              (unsigned)out->status, out->text);
    cr_expect_eq(strncmp(out->text, "lien: guard: stray ", 19), 0, "%s", out->text);
#if defined(__x86_64__)
    expect_text(out, kind);
#else
    (void)kind;
#endif
}

void expect_fine(const struct outcome *out)
{
    cr_expect(WIFEXITED(out->status) && WEXITSTATUS(out->status) == 42, "status %x: %s",
              (unsigned)out->status, out->text);
}

struct outcome run_child(void (*body)(void))
{
    return in_child(body, true);
}

// Says what the report must contain, on the same stream.
void announce(const lien_buf *buf, const uint8_t *at)
{
    dprintf(STDERR_FILENO, "want <at %p: > <(handle %p, > <bytes at %p)>\n", (const void *)at,
            (const void *)buf, (const void *)buf->app);
}

// The announced texts are in the report.
void expect_announced(struct outcome *out)
{
    char *line = strchr(out->text, '\n');
    cr_assert(strncmp(out->text, "want ", 5) == 0 && line, "%s", out->text);
    *line = 0;
    for (char *from = strchr(out->text, '<'); from; from = strchr(from + 1, '<')) {
        char *to = strchr(from, '>');
        char part[128];
        snprintf(part, sizeof part, "%.*s", (int)(to - from - 1), from + 1);
        if (part[strlen(part) - 1] == ' ' && part[0] == 'a') {
            part[strlen(part) - 1] = 0;
        }
        cr_expect(strstr(line + 1, part), "'%s' is not in: %s", part, line + 1);
    }
    memmove(out->text, line + 1, strlen(line + 1) + 1);
}

uint8_t *taken(lien_buf **buf)
{
    *buf = alloc(3 * PAGE);
    uint8_t *at = bytes(*buf);
    take(*buf, 5);
    return at;
}
