// SPDX-License-Identifier: Apache-2.0
//
// The log of a ctx. Lines are made anywhere, also under the state lock, and kept in a bounded ring
// (own lock, a leaf); lieni_log_flush() hands them to the user's function, one at a time, in order,
// with no lock held. A full ring drops the line and counts it; the flush says how many, at the place
// where they are missing.

#ifndef LIENI_LOG_H
#define LIENI_LOG_H

#include "provider/provider.h"

#define LIENI_LOG_LINES 256  // lines the ring holds
#define LIENI_LOG_TEXT  1024 // bytes of a line's text with its NUL; a longer one ends in "..."

struct lieni_log;

// fn NULL: stderr, as "lien: error: conn 00000000000000ab op 3 tcp 10.0.0.1:7: text (ETIMEDOUT)"
// without the parts that are not known. `level` is the least severe that passes. LIEN_ENOMEM.
int lieni_log_open(lien_log_fn *fn, void *arg, lien_level level, struct lieni_log **log);
void lieni_log_close(struct lieni_log *log); // flushes; nobody may use the log any more

struct lieni_log_at { // what a line is about; any may be 0 or NULL
    uint64_t conn;
    uint64_t op;
    const char *provider; // up to 31 bytes are kept
    const char *peer;     // up to 95 bytes are kept
};
// Copies all strings. Control characters are kept as \n, \t, \r or \xHH, so that no peer can forge a
// line or talk to a terminal. `at` may be NULL. Keeps errno. Never blocks.
__attribute__((format(printf, 5, 6))) void lieni_log_say(struct lieni_log *log, lien_level level,
                                                         const struct lieni_log_at *at, int code,
                                                         const char *format, ...);
void lieni_log_set_level(struct lieni_log *log, lien_level level);
// Lines wait for lieni_log_flush(). A flush under way on another thread takes them too.
bool lieni_log_pending(struct lieni_log *log);
// No lock held by the caller. Calls from inside the user's function and calls while another thread
// flushes return at once: that flush takes their lines.
void lieni_log_flush(struct lieni_log *log);
uint64_t lieni_log_dropped(struct lieni_log *log);           // since open
struct lieni_report lieni_log_report(struct lieni_log *log); // for providers

#endif
