// SPDX-License-Identifier: Apache-2.0
//
// The contract test: what each public function answers to bad input, and that it changes nothing then. Every call goes through a macro that records the
// function's name, so that tests/contract/run can compare the names with what liblien.so exports: a new function without a contract test fails.
// One process holds both peers: contexts `a` and `b` with threads of their own and a connection between them, and `c`, driven by the test, which therefore
// serves a READ only when the test lets it. Heartbeats are off: nothing changes by itself.

#ifndef LIEN_TEST_CONTRACT_H
#define LIEN_TEST_CONTRACT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/lien.h>

struct contract_world {
    lien_ctx *a, *b, *c;
    lien_pool *pool_a, *pool_b, *pool_c;
    lien_listener *listener_b, *listener_c;
    char address_b[96], address_c[96];
    lien_conn *ab, *ba; // one connection, seen from both ends
    lien_conn *ac, *ca;
};
extern struct contract_world w;

// For the functions under test. ANSWERS: an int or another number. REFUSES: the same, for an error; counters, levels and credits of both peers are the same
// before and after. CALLS: no answer.
#define ANSWERS(want, fn, ...)                                                                     \
    contract_answer(#fn, (long long)(want), (long long)(fn(__VA_ARGS__)), __FILE__, __LINE__)
#define REFUSES(want, fn, ...)                                                                     \
    do {                                                                                           \
        contract_before();                                                                         \
        contract_answer(#fn, (long long)(want), (long long)(fn(__VA_ARGS__)), __FILE__, __LINE__); \
        contract_after(#fn, __FILE__, __LINE__);                                                   \
    } while (0)
#define CALLS(fn, ...)                                                                             \
    do {                                                                                           \
        contract_note(#fn);                                                                        \
        fn(__VA_ARGS__);                                                                           \
    } while (0)
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            contract_fail(#condition, __FILE__, __LINE__);                                         \
    } while (0)

// Runs `call`, which uses `name` and expects `refusal`, with options whose size is 0, below the size field's own, beyond any struct, and larger with a byte set
// that this version does not know.
#define BAD_SIZES(type, init, name, call)                                                          \
    do {                                                                                           \
        static const size_t sizes_[] = {0, 1, sizeof(size_t) - 1, SIZE_MAX, sizeof(type) + 16};    \
        for (size_t i_ = 0; i_ < sizeof sizes_ / sizeof sizes_[0]; i_++) {                         \
            struct {                                                                               \
                type opts;                                                                         \
                unsigned char more[16];                                                            \
            } padded_;                                                                             \
            memset(&padded_, 0, sizeof padded_);                                                   \
            init(&padded_.opts);                                                                   \
            padded_.opts.size = sizes_[i_];                                                        \
            padded_.more[15] = 1;                                                                  \
            const int refusal = i_ == 4 ? LIEN_ENOTSUP : LIEN_EINVAL;                              \
            const type *name = &padded_.opts;                                                      \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

// A value that no function hands out: an output that still holds it was not written.
extern char contract_untouched[1];
#define UNTOUCHED ((void *)contract_untouched)

void contract_note(const char *name);
void contract_answer(const char *name, long long want, long long got, const char *file, int line);
void contract_before(void);
void contract_after(const char *name, const char *file, int line);
_Noreturn void contract_fail(const char *what, const char *file, int line);

// A buffer of `len` bytes, all `fill`.
lien_buf *contract_buf(lien_pool *pool, size_t len, unsigned char fill);
// Until nothing is under way between the peers any more: two looks in a row agree and no grant is live.
void contract_settle(void);
// Serves c until `done(arg)`.
void contract_drive_c(bool (*done)(void *arg), void *arg);
// A connection from a to c, both ends.
void contract_connect_c(lien_conn **ac, lien_conn **ca);

void contract_library(void);
void contract_ctx(void);
void contract_mem(void);
void contract_space(void);
void contract_conn(void);
void contract_message(void);
void contract_grant(void);
void contract_read(void);
void contract_token(void);
void contract_states(void);
void contract_call(void);
void contract_channel(void);

#endif
