// SPDX-License-Identifier: Apache-2.0
//
// The log of a ctx. Lines are made anywhere, also under the state lock, and kept in a bounded ring (own lock); lieni_log_flush() hands them to the user's function, one at
// a time, in order, with no lock held. A full ring drops the line and counts it; the next flush says how many.

#ifndef LIENI_LOG_H
#define LIENI_LOG_H

#include "provider/provider.h"

struct lieni_log;

// fn NULL: stderr, as "lien: error: conn 00..: text (ETIMEDOUT)". `level` is the least severe that passes.
int lieni_log_open(lien_log_fn *fn, void *arg, lien_level level, struct lieni_log **log);
void lieni_log_close(struct lieni_log *log); // flushes

struct lieni_log_at { // what a line is about; any may be 0 or NULL
    uint64_t conn;
    uint64_t op;
    const char *provider;
    const char *peer;
};
__attribute__((format(printf, 5, 6))) void lieni_log_say(struct lieni_log *log, lien_level level,
                                                         const struct lieni_log_at *at, int code,
                                                         const char *format, ...);
void lieni_log_set_level(struct lieni_log *log, lien_level level);
bool lieni_log_pending(struct lieni_log *log);
void lieni_log_flush(
    struct lieni_log *log); // no lock held by the caller; nested or concurrent calls return at once
uint64_t lieni_log_dropped(struct lieni_log *log);
struct lieni_report lieni_log_report(struct lieni_log *log); // for providers

#endif
