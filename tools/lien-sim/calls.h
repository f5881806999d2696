// SPDX-License-Identifier: Apache-2.0
//
// What calls.c and requests.c share: the head of a call's arguments, by which the handler finds what the caller knows of it.

#ifndef LIEN_SIM_CALLS_H
#define LIEN_SIM_CALLS_H

#include "model.h"

#define CALL_MS 30000u // default of option call_ms

struct call_head {
    uint64_t number; // of the call's operation
    uint64_t fill;   // bytes after the head, of the pattern of that number
};

#endif
