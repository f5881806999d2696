// SPDX-License-Identifier: Apache-2.0
//
// What the tests of guard mode run in: a world with a guarded pool, lends, and children that may die of an access.

#ifndef LIEN_TESTS_GUARD_WORLD_H
#define LIEN_TESTS_GUARD_WORLD_H

#include "mem_world.h"

#if defined(__SANITIZE_ADDRESS__)
#define ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASAN 1
#endif
#endif
#ifndef ASAN
#define ASAN 0
#endif

#define PAGE ((size_t)4096)
#define MIB  ((size_t)1 << 20)
#define CONN UINT64_C(0xab)

// What runs in a child.
#define CHILD(name) static void name(void)

extern struct world w;
extern lien_pool *pool; // guarded
extern struct lieni_domain dom;

struct outcome {
    int status;
    char text[8192]; // what it wrote to stderr
};

lien_pool *guarded_pool(unsigned flags);
void guard_setup(void);
void guard_teardown(void);
lien_buf *alloc(size_t len);
void borrow(lien_buf *buf, uint64_t op);
void take(lien_buf *buf, uint64_t op);
void unborrow(lien_buf *buf);
void give(lien_buf *buf);
void lose(lien_buf *buf);
void domain_ended(bool proven);
uint64_t skipped(void);
uint8_t *bytes(lien_buf *buf);
void poke(uint8_t *at, uint8_t value);
uint8_t peek(const uint8_t *at);
struct outcome in_child(void (*body)(void), bool own_world);
void expect_text(const struct outcome *out, const char *part);
void expect_fault(const struct outcome *out, const char *kind);
void expect_fine(const struct outcome *out);
struct outcome run_child(void (*body)(void));
void announce(const lien_buf *buf, const uint8_t *at);
void expect_announced(struct outcome *out);
uint8_t *taken(lien_buf **buf);

#endif
