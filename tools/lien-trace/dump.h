// SPDX-License-Identifier: Apache-2.0
//
// Dumps of traces: one connection's events in one file, and several files of one connection as one story. Nothing in a file is trusted.

#ifndef LIEN_TRACE_DUMP_H
#define LIEN_TRACE_DUMP_H

#include <stdio.h>

#include "core/trace.h"

struct dump {
    const char *name; // of the file
    const uint8_t *bytes;
    size_t len;
    struct lieni_dump_head head;
    size_t records; // that are whole and well-formed
    // What is wrong, at which offset; NULL: nothing. The records before it are good.
    const char *why;
    size_t offset;
};

// Reads a dump's bytes, which stay the caller's and must live as long as it. LIEN_EPROTO: there is not even a header; why and offset say so.
int dump_open(struct dump *dump, const char *name, const uint8_t *bytes, size_t len);
// The i-th record, i < dump->records.
struct lieni_trace_event dump_event(const struct dump *dump, size_t i);

// Prints the events of `n` dumps of one connection, in the order of time. The clocks of the two sides are set against each other by the frames that both know: shown if
// they cannot be one clock. LIEN_ENOMEM.
int dumps_print(FILE *out, const struct dump *const *dumps, size_t n);

#endif
