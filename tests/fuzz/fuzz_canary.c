// SPDX-License-Identifier: Apache-2.0
//
// A target with a planted fault that only a guided search finds in time: ci/fuzz runs it to see that the fuzzer is awake.

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 3 && data[0] == 'l' && data[1] == 'i' && data[2] == 'e' && data[3] == 'n')
        FUZZ_CHECK("the planted fault");
    return 0;
}
