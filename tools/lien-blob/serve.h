// SPDX-License-Identifier: Apache-2.0
#ifndef BLOB_SERVE_H
#define BLOB_SERVE_H

#include "args.h"

// Serves until SIGINT or SIGTERM (signals_block() came before). Returns the exit code.
int serve(const struct args *args);

#endif
