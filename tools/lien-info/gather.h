// SPDX-License-Identifier: Apache-2.0
//
// What lien-info knows, as one JSON value that the caller frees: --json prints it, text.c shows it. So both say the same. One thread; nothing is kept.
// Each function ends the program with a message when memory runs out.

#ifndef LIEN_INFO_GATHER_H
#define LIEN_INFO_GATHER_H

#include <jansson.h>

// Log lines of the library, in order, into array `messages`.
json_t *gather_report(const char *peer);
// Only the options. *status: what lien_options_each() answered; its log lines are under "messages".
json_t *gather_options(int *status);

// system.c: what the system says.
json_t *system_versions(void);
json_t *system_limits(void);
json_t *system_devices(void);     // RDMA devices and their ports
json_t *system_environment(void); // FI_* and LIEN_*, values of secrets left out

// Never NULL.
json_t *need(json_t *value);

#endif
