// SPDX-License-Identifier: Apache-2.0
//
// The manual page of options says what the table says: its OPTIONS section is, byte for byte, the text
// made here. When they differ the text is printed, to be put into docs/man/lien_options.5.scd.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/options.h"

enum type {
    UINT,
    FLAG,
    TEXT,
    LEVEL
};

static void write_option(FILE *out, const char *key, enum type type, const char *initial,
                         uint64_t min, uint64_t max, const char *unit, const char *text)
{
    fprintf(out, "*%s*", key);
    switch (type) {
    case UINT:
        fprintf(out, " (%s, %" PRIu64 " to %" PRIu64 ", default %s)", unit, min, max, initial);
        break;
    case FLAG:
        fprintf(out, " (0 1 no yes off on, default %s)", initial);
        break;
    case TEXT:
        fprintf(out, " (%s, at most %" PRIu64 " bytes, default %s)", unit, max,
                initial[0] ? initial : "unset");
        break;
    case LEVEL:
        fprintf(out, " (%s, default %s)", unit, initial);
        break;
    }
    fprintf(out, "\n\t%s.\n\n", text);
}

static char *read_all(const char *path)
{
    FILE *in = fopen(path, "re");
    char *text = calloc(1, 1 << 20);
    if (!in || !text || fread(text, 1, (1 << 20) - 1, in) == 0) {
        fprintf(stderr, "test_options_man: cannot read %s\n", path);
        exit(1);
    }
    fclose(in);
    return text;
}

int main(void)
{
    char *want = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&want, &len);
    if (!out) {
        return 1;
    }
    fputs("# OPTIONS\n\n", out);
#define WRITE(key, type, initial, min, max, unit, text)                                            \
    write_option(out, #key, type, initial, min, max, unit, text);
    LIENI_OPTIONS(WRITE)
#undef WRITE
    fputs("# RESERVED VARIABLES\n\n", out);
    fputs("Variables that begin so belong to shims and tools, and are not read as options:\n", out);
#define WRITE(prefix) fprintf(out, "%s\n", prefix);
    LIENI_RESERVED_PREFIXES(WRITE)
#undef WRITE
    fputs("\n# ", out);
    fclose(out);
    char *page = read_all(LIENI_OPTIONS_PAGE);
    int differs = strstr(page, want) == NULL;
    if (differs) {
        fprintf(stderr, "test_options_man: %s differs from the table, which says:\n",
                LIENI_OPTIONS_PAGE);
        puts(want);
    }
    free(page);
    free(want);
    return differs;
}
