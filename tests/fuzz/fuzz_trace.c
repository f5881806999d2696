// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target: a file given to lien-trace.

#include "tests/fuzz/fuzz.h"
#include "tests/trace/reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)reader_show(data, size);
    return 0;
}
