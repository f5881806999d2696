// SPDX-License-Identifier: Apache-2.0
//
// Events and frames as text, one line each, without the newline. What comes from a dump or a peer is shown with its control characters escaped. No state.

#ifndef LIEN_TRACE_TEXT_H
#define LIEN_TRACE_TEXT_H

#include <stdio.h>

#include "core/trace.h"

// `server`: the dump's side, which tells whose call an id names.
void print_event(FILE *out, const struct lieni_trace_event *event, bool server);
// A whole frame, as it was on the wire. LIEN_EPROTO: malformed, and said so in the line. `keys`: each key on a line of its own behind.
int print_frame(FILE *out, const uint8_t *bytes, size_t len, bool keys);
void print_escaped(FILE *out, const char *text, size_t len);

#endif
