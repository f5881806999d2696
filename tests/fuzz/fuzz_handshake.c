// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target: what one side of the bootstrap receives, whole and in pieces. The first byte: bit 0 a server reads, bit 1 the stream ends afterwards, bit 2 this side has a pre-shared key, the rest the pieces' size.

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct lieni_offer local = {
        .version_min = 1,
        .version_max = 1,
        .nonce = {1},
        .n_providers = 2,
        .providers = {"tcp", "sim"},
        .frame_max = 8192,
        .message_credits = 32,
        .control_credits = 32,
        .message_max = UINT64_C(1) << 32,
        .grants_max = 4096,
        .dead_ms = 5000,
    };
    static struct lieni_keyring *keys;
    static const lien_psk psk = {"0123456789abcdef", 16};
    if (keys == NULL && lieni_keyring_open(&psk, 1, "", NULL, &keys) != 0)
        abort();
    if (size == 0)
        return 0;
    FUZZ_CHECK(check_handshake_input((data[0] & 1) != 0, &local, (data[0] & 4) != 0 ? keys : NULL,
                                     data + 1, size - 1, 1u + (data[0] >> 3), (data[0] & 2) != 0));
    return 0;
}
