// SPDX-License-Identifier: Apache-2.0
//
// What the fuzz targets share: a check that ends the process, so that libFuzzer keeps the input.

#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdio.h>
#include <stdlib.h>

#include "tests/support/wire_checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// `call` answers NULL or what is wrong.
#define FUZZ_CHECK(call)                                                                           \
    do {                                                                                           \
        const char *fault_ = (call);                                                               \
        if (fault_ != NULL) {                                                                      \
            fprintf(stderr, "fault: %s\n", fault_);                                                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
