// SPDX-License-Identifier: Apache-2.0
//
// Writes the table of core/metrics.h out as text. Owns no state, takes no lock.

#include "core/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The table covers lien_ctx_stats: a struct made from it has the same fields at the same places.
struct mirror {
    size_t size;
#define FIELD(field, kind, name, unit, help) uint64_t field;
    LIENI_METRICS(FIELD)
#undef FIELD
};
_Static_assert(sizeof(struct mirror) == sizeof(lien_ctx_stats),
               "LIENI_METRICS lacks a field of lien_ctx_stats");
#define PLACE(field, kind, name, unit, help)                                                       \
    _Static_assert(offsetof(struct mirror, field) == offsetof(lien_ctx_stats, field), #field);
LIENI_METRICS(PLACE)
#undef PLACE

enum kind {
    GAUGE,
    COUNTER
};

struct metric {
    size_t offset;
    enum kind kind;
    const char *name, *unit, *help;
};

static const struct metric table[] = {
#define ROW(field, kind, name, unit, help)                                                         \
    {offsetof(lien_ctx_stats, field), kind, name, unit, help},
    LIENI_METRICS(ROW)
#undef ROW
};

static void write_metric(FILE *out, const struct metric *m, uint64_t value)
{
    bool counter = m->kind == COUNTER;
    fprintf(out, "# TYPE %s %s\n", m->name, counter ? "counter" : "gauge");
    if (m->unit[0]) {
        fprintf(out, "# UNIT %s %s\n", m->name, m->unit);
    }
    fprintf(out, "# HELP %s %s.\n", m->name, m->help);
    fprintf(out, "%s%s %" PRIu64 "\n", m->name, counter ? "_total" : "", value);
}

int lieni_metrics_text(const lien_ctx_stats *stats, char **text)
{
    char *made = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&made, &len);
    if (!out) {
        return LIEN_ENOMEM;
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        uint64_t value;
        if (table[i].offset + sizeof value <= stats->size) {
            memcpy(&value, (const char *)stats + table[i].offset, sizeof value);
            write_metric(out, &table[i], value);
        }
    }
    fputs("# EOF\n", out);
    int failed = ferror(out);
    if (fclose(out) != 0 || failed) {
        free(made);
        return LIEN_ENOMEM;
    }
    *text = made;
    return 0;
}
