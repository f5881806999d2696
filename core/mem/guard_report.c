// SPDX-License-Identifier: Apache-2.0
//
// The report of a stray access to guarded memory. Owns the process's SIGSEGV handler, once a guarded pool was opened, and
// a list of the guarded chunks that the handler searches.
//
// The handler takes no lock, allocates nothing and writes one text to stderr; then it chains to the handler that was there
// before, or lets the fault happen again with the default action. So the list is only ever pushed to, its entries are used
// again and never freed; an entry's table names the lent buffer that begins at a page. A table in which a fault finds a buffer cannot go
// away under the handler: the buffer is lent, and lent memory is not unmapped.

#include "core/mem/impl.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#define REPORTS_MAX                                                                                \
    64 // of one process: a handler that returns without a remedy faults again and again

// -- Chunks ----------------------------------------------------------------------------------------

struct lieni_guard_range {
    struct lieni_guard_range *next; // set before it is pushed
    atomic_bool used;
    _Atomic unsigned fork_generation; // of the process it is mapped in
    _Atomic uintptr_t start;          // 0: none
    _Atomic size_t len;
    size_t slots; // pages, or 1 for a chunk that is one buffer
    lien_buf *_Atomic *lent;
};

static struct lieni_guard_range *_Atomic ranges;

static struct lieni_guard_range *range_claim(void)
{
    struct lieni_guard_range *range = atomic_load(&ranges);
    for (; range; range = range->next) {
        bool no = false;
        if (atomic_compare_exchange_strong(&range->used, &no, true)) {
            return range;
        }
    }
    range = calloc(1, sizeof *range);
    if (range) {
        atomic_store(&range->used, true);
        range->next = atomic_load(&ranges);
        while (!atomic_compare_exchange_weak(&ranges, &range->next, range)) {
        }
    }
    return range;
}

int lieni_guard_range_add(struct lieni_chunk *chunk, bool single)
{
    struct lieni_guard_range *range = range_claim();
    if (!range) {
        return LIEN_ENOMEM;
    }
    size_t slots = single ? 1 : chunk->len / LIENI_PAGE;
    range->lent = calloc(slots, sizeof *range->lent);
    if (!range->lent) {
        atomic_store(&range->used, false);
        return LIEN_ENOMEM;
    }
    range->slots = slots;
    atomic_store(&range->fork_generation, lieni_fork_generation());
    atomic_store(&range->len, chunk->len);
    atomic_store(&range->start, (uintptr_t)chunk->app);
    chunk->range = range;
    return 0;
}

void lieni_guard_range_drop(struct lieni_chunk *chunk)
{
    struct lieni_guard_range *range = chunk->range;
    chunk->range = NULL;
    atomic_store(&range->start, 0);
    free(range->lent);
    range->lent = NULL;
    atomic_store(&range->used, false);
}

void lieni_guard_range_lent(lien_buf *buf)
{
    atomic_store_explicit(&buf->chunk->range->lent[buf->block->page], buf, memory_order_release);
}

void lieni_guard_range_back(lien_buf *buf)
{
    atomic_store_explicit(&buf->lender, LIENI_LENT_BY_NOBODY, memory_order_relaxed);
    atomic_store_explicit(&buf->chunk->range->lent[buf->block->page], NULL, memory_order_release);
}

// The range of this process that holds `addr`, else one of a process that this one was forked from, or NULL.
static const struct lieni_guard_range *range_find(uintptr_t addr, bool *inherited)
{
    const struct lieni_guard_range *older = NULL;
    for (const struct lieni_guard_range *r = atomic_load(&ranges); r; r = r->next) {
        uintptr_t start = atomic_load(&r->start);
        if (!start || addr < start || addr - start >= atomic_load(&r->len)) {
            continue;
        }
        if (atomic_load(&r->fork_generation) == lieni_fork_generation()) {
            *inherited = false;
            return r;
        }
        older = r;
    }
    *inherited = older != NULL;
    return older;
}

static const lien_buf *lent_at(const struct lieni_guard_range *range, uintptr_t addr)
{
    size_t page = (addr - atomic_load(&range->start)) / LIENI_PAGE;
    page = page < range->slots ? page : range->slots - 1;
    for (size_t i = page + 1; i > 0; i--) {
        const lien_buf *buf = atomic_load_explicit(&range->lent[i - 1], memory_order_acquire);
        if (buf) {
            size_t len = buf->block->pages * LIENI_PAGE;
            return addr - (uintptr_t)buf->app < len ? buf : NULL;
        }
    }
    return NULL;
}

// -- Text: what stdio does is not for signal handlers ----------------------------------------------

struct text {
    size_t len;
    char bytes[1024];
};

static void put(struct text *t, const char *s)
{
    size_t n = strlen(s), room = sizeof t->bytes - t->len;
    n = n < room ? n : room;
    memcpy(t->bytes + t->len, s, n);
    t->len += n;
}

static void put_number(struct text *t, uint64_t n, unsigned base, unsigned digits)
{
    char s[24];
    size_t at = sizeof s - 1;
    s[at] = 0;
    do {
        s[--at] = "0123456789abcdef"[n % base];
        n /= base;
    } while (n || sizeof s - 1 - at < digits);
    put(t, s + at);
}

static void put_address(struct text *t, uintptr_t addr)
{
    put(t, "0x");
    put_number(t, addr, 16, 1);
}

static const char *lender_name(enum lieni_lender lender)
{
    switch (lender) {
    case LIENI_LENT_BY_NOBODY:
        break;
    case LIENI_LENT_BY_GRANT:
        return "grant ";
    case LIENI_LENT_BY_READ:
        return "a read of grant ";
    case LIENI_LENT_BY_CALL:
        return "call ";
    case LIENI_LENT_BY_REQUEST:
        return "the handler of call ";
    }
    return "";
}

static void put_lender(struct text *t, const lien_buf *buf)
{
    int lender = atomic_load_explicit(&buf->lender, memory_order_acquire);
    if (lender == LIENI_LENT_BY_NOBODY) {
        put(t, ", just being lent");
        return;
    }
    put(t, buf->borrows > 1 ? ", lent more than once, last by " : ", lent by ");
    put(t, lender_name((enum lieni_lender)lender));
    put_number(t, atomic_load_explicit(&buf->lent_op, memory_order_relaxed), 10, 1);
    put(t, " of conn ");
    put_number(t, atomic_load_explicit(&buf->lent_conn, memory_order_relaxed), 16, 16);
}

// What was tried: the processor tells on x86-64.
static const char *kind_of(const void *context)
{
#if defined(__x86_64__)
    const ucontext_t *uc = context;
    return uc && uc->uc_mcontext.gregs[REG_ERR] & 2 ? "write" : "read";
#else
    (void)context;
    return "access";
#endif
}

static void put_buffer(struct text *t, const lien_buf *buf, uintptr_t addr)
{
    size_t offset = addr - (uintptr_t)buf->app;
    size_t len = atomic_load_explicit(&buf->len, memory_order_relaxed);
    put(t, ": offset ");
    put_number(t, offset, 10, 1);
    put(t, offset < len ? " of buffer " : " (beyond its end) of buffer ");
    put_number(t, buf->id, 10, 1);
    put(t, " (handle ");
    put_address(t, (uintptr_t)buf);
    put(t, ", ");
    put_number(t, len, 10, 1);
    put(t, " bytes at ");
    put_address(t, (uintptr_t)buf->app);
    put(t, "), which is ");
    put(t, lieni_buf_state_name(lieni_buf_state(buf)));
    put_lender(t, buf);
    put(t, buf->freed ? "; its holder has freed it" : "");
}

static void report(const siginfo_t *info, const void *context)
{
    static _Atomic unsigned reports;
    bool inherited;
    uintptr_t addr = (uintptr_t)info->si_addr;
    const struct lieni_guard_range *range = range_find(addr, &inherited);
    if (!range || (inherited && info->si_code != SEGV_MAPERR)) {
        return;
    }
    const lien_buf *buf = inherited ? NULL : lent_at(range, addr);
    if ((!buf && !inherited) || atomic_fetch_add(&reports, 1) >= REPORTS_MAX) {
        return;
    }
    struct text t = {0};
    put(&t, "lien: guard: stray ");
    put(&t, kind_of(context));
    put(&t, " at ");
    put_address(&t, addr);
    if (inherited) {
        put(&t, ": memory of a pool does not exist in a forked child");
    } else {
        put_buffer(&t, buf, addr);
    }
    put(&t, "\n");
    ssize_t written = write(STDERR_FILENO, t.bytes, t.len);
    (void)written; // there is nobody to tell
}

// -- The handler -----------------------------------------------------------------------------------

static const struct sigaction by_default = {.sa_handler = SIG_DFL};
static struct sigaction found; // what was there when ours was installed; written once
static const struct sigaction *_Atomic previous = &by_default;
static atomic_bool installing, installed;

// Lets the same fault happen again without a handler, or sends a signal that was sent.
static void die(int sig, const siginfo_t *info)
{
    sigaction(sig, &by_default, NULL);
    if (info->si_code <= 0) {
        raise(sig);
    }
}

static void chain(int sig, siginfo_t *info, void *context)
{
    const struct sigaction *old = atomic_load(&previous);
    bool plain = !(old->sa_flags & SA_SIGINFO);
    if (plain && old->sa_handler == SIG_IGN && info->si_code <= 0) {
        return;
    }
    if (plain && (old->sa_handler == SIG_DFL || old->sa_handler == SIG_IGN)) {
        die(sig, info);
        return;
    }
    if (old->sa_flags & (int)SA_RESETHAND) {
        atomic_store(&previous, &by_default);
    }
    sigset_t mask = old->sa_mask, before, self;
    sigemptyset(&self);
    sigaddset(&self, sig);
    pthread_sigmask(SIG_BLOCK, &mask, &before);
    if (old->sa_flags & SA_NODEFER) {
        pthread_sigmask(SIG_UNBLOCK, &self, NULL);
    }
    if (plain) {
        old->sa_handler(sig);
    } else {
        old->sa_sigaction(sig, info, context);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
    int saved = errno;
    if (info->si_code > 0) {
        report(info, context);
    }
    errno = saved;
    chain(sig, info, context);
}

static bool is_default(const struct sigaction *action)
{
    return !(action->sa_flags & SA_SIGINFO) && action->sa_handler == SIG_DFL;
}

// The first time over whatever is there; later only where somebody took ours away and put nothing in its place. A handler
// that was installed over ours is left alone: it may chain to ours.
void lieni_guard_watch(void)
{
    if (atomic_exchange(&installing, true)) {
        return; // another thread does it
    }
    struct sigaction now;
    if (sigaction(SIGSEGV, NULL, &now) == 0) {
        bool first = !atomic_load(&installed);
        if (first) {
            found = now;
            atomic_store(&previous, &found);
        } else if (is_default(&now)) {
            atomic_store(&previous, &by_default);
        }
        if (first || is_default(&now)) {
            struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
            sigemptyset(&ours.sa_mask);
            atomic_store(&installed, sigaction(SIGSEGV, &ours, NULL) == 0);
        }
    }
    atomic_store(&installing, false);
}
