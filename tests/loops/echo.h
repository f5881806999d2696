// SPDX-License-Identifier: Apache-2.0
//
// One scenario for every event loop: app-driven contexts echo messages and READs, in two processes and as two contexts of one, and live by what lien_ctx_fd(), lien_ctx_arm() and
// lien_ctx_progress() do alone. A loop sets no timer and never sleeps with a time limit: heartbeats, deadlines and the loss of a stopped peer must come out of the descriptor.

#ifndef LIENI_TEST_LOOPS_ECHO_H
#define LIENI_TEST_LOOPS_ECHO_H

#include "tests/loops/support.h"

// Runs the contexts until *done, which a callback sets.
typedef void echo_loop(lien_ctx *const *ctxs, size_t n, const bool *done);

// The whole test. Returns what main returns.
int echo_main(echo_loop *loop);

#endif
