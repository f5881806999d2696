// SPDX-License-Identifier: Apache-2.0
//
// SIGINT and SIGTERM as calls on an ordinary thread, where everything is allowed that a signal handler must not do.

#ifndef BLOB_SIGNALS_H
#define BLOB_SIGNALS_H

#include <stdbool.h>

// Blocks both in the calling thread and in all it will start: call first, before Lien starts threads.
void signals_block(void);
// Waits for one of them and returns it. Blocks.
int signals_wait(void);
// Starts a thread that calls `fn` on the first of them, and ends the process with 130 on the second. False: no thread.
bool signals_watch(void (*fn)(void));

#endif
