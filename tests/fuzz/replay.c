// SPDX-License-Identifier: Apache-2.0
//
// The main of a fuzz target without a fuzzer: runs each file that it is given, once. For coverage (gcc), and to look at one input under a debugger.

#include "tests/fuzz/fuzz.h"

static uint8_t bytes[1u << 20];

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) {
            perror(argv[i]);
            return 1;
        }
        const size_t len = fread(bytes, 1, sizeof bytes, file);
        (void)fclose(file);
        // A copy of its own size, so that whatever watches memory sees its end.
        uint8_t *copy = malloc(len ? len : 1);
        if (copy == NULL)
            return 1;
        memcpy(copy, bytes, len);
        (void)LLVMFuzzerTestOneInput(copy, len);
        free(copy);
    }
    printf("%d files\n", argc - 1);
    return 0;
}
