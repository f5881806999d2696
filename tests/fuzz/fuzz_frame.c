// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target: one received frame. The first byte chooses the limits.

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct lieni_wire_limits all[] = {
        {.frame_max = 8192,
         .message_max = UINT64_C(1) << 32,
         .grants_max = 4096,
         .own_grants_max = 64,
         .calls_max = 32,
         .side = 1},
        {.frame_max = 65536,
         .message_max = 0,
         .grants_max = 1,
         .own_grants_max = UINT32_MAX,
         .calls_max = 4096},
        {.frame_max = 4096,
         .message_max = UINT64_MAX,
         .grants_max = UINT32_MAX,
         .own_grants_max = 2},
    };
    if (size == 0)
        return 0;
    FUZZ_CHECK(check_frame(data + 1, size - 1, &all[data[0] % 3]));
    return 0;
}
