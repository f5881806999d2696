// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target: one token.

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FUZZ_CHECK(check_token(data, size));
    return 0;
}
