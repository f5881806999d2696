// SPDX-License-Identifier: Apache-2.0
//
// The file of options that LIEN_CONFIG names: lines "key = value", blank lines, and comments, which begin with '#' at the line's start or after a blank. Knows lines, not keys: core/options.c
// has those. No state; the thread that opens the ctx.

#ifndef LIENI_CONFIG_H
#define LIENI_CONFIG_H

#include "core/log.h"

#define LIENI_CONFIG_MAX (1u << 20) // bytes of a file

// One line with a key. `key` is not empty; `value` may be. False: a mistake, already logged; the reading goes on, so that all are told at once.
typedef bool lieni_config_line(void *arg, const char *key, const char *value, unsigned line);

// Reads the file at `path` and calls `take` for each line with a key. LIEN_EOPTION after a log line for each mistake, with path and line: the file cannot be read, is no regular file or above
// LIENI_CONFIG_MAX, a line has no '=' or no key, or holds a NUL; or `take` said so.
int lieni_config_read(const char *path, struct lieni_log *log, lieni_config_line *take, void *arg);

#endif
