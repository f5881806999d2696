// SPDX-License-Identifier: Apache-2.0
//
// The OpenMetrics text: read back line by line by the rules of the format, and each value found under
// its name. Also the version.

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/metrics.h"

#define FIELDS ((sizeof(lien_ctx_stats) - sizeof(size_t)) / sizeof(uint64_t))

// Every field has a value of its own, large ones too.
static lien_ctx_stats numbered(void)
{
    lien_ctx_stats stats;
    uint64_t values[FIELDS];
    for (size_t i = 0; i < FIELDS; i++) {
        values[i] = UINT64_MAX - i;
    }
    memcpy((char *)&stats + sizeof(size_t), values, sizeof values);
    stats.size = sizeof stats;
    return stats;
}

static void expect_line(const char *text, const char *name, uint64_t value)
{
    char line[128];
    snprintf(line, sizeof line, "\n%s %" PRIu64 "\n", name, value);
    cr_assert_not_null(strstr(text, line), "no line '%s %" PRIu64 "' in:\n%s", name, value, text);
}

// One family: metadata in order, then one sample whose name and value fit. Returns what follows.
static const char *read_family(const char *at)
{
    char name[96], type[16], again[96], unit[16], sample[96];
    int used = 0;
    uint64_t value;
    cr_assert_eq(sscanf(at, "# TYPE %95s %15[a-z]\n%n", name, type, &used), 2, "at: %.80s", at);
    at += used;
    cr_assert_eq(strncmp(name, "lien_", 5), 0);
    if (strncmp(at, "# UNIT", 6) == 0) {
        cr_assert_eq(sscanf(at, "# UNIT %95s %15[a-z]\n%n", again, unit, &used), 2);
        at += used;
        cr_assert_str_eq(again, name);
        cr_assert_gt(strlen(name), strlen(unit));
        cr_assert_str_eq(name + strlen(name) - strlen(unit), unit, "%s lacks its unit", name);
        cr_assert_eq(name[strlen(name) - strlen(unit) - 1], '_');
    } else {
        cr_assert_null(strstr(name, "bytes"), "%s lacks # UNIT", name);
    }
    cr_assert_eq(sscanf(at, "# HELP %95s %*[^\n]\n%n", again, &used), 1, "at: %.80s", at);
    at += used;
    cr_assert_str_eq(again, name);
    cr_assert_eq(sscanf(at, "%95s %" SCNu64 "\n%n", sample, &value, &used), 2);
    bool counter = strcmp(type, "counter") == 0;
    cr_assert(counter || strcmp(type, "gauge") == 0);
    cr_assert_eq(strncmp(sample, name, strlen(name)), 0);
    cr_assert_str_eq(sample + strlen(name), counter ? "_total" : "");
    cr_assert_null(strstr(name, "_total"), "the family of a counter has no suffix");
    return at + used;
}

Test(metrics, the_text_follows_openmetrics)
{
    lien_ctx_stats stats = numbered();
    char *text = NULL;
    cr_assert_eq(lieni_metrics_text(&stats, &text), 0);
    size_t families = 0;
    const char *at = text;
    while (strncmp(at, "# EOF", 5) != 0) {
        at = read_family(at);
        families++;
    }
    cr_assert_str_eq(at, "# EOF\n");
    cr_assert_eq(families, FIELDS);
    free(text);
}

Test(metrics, values_stand_under_their_names)
{
    lien_ctx_stats stats = numbered();
    char *text = NULL;
    cr_assert_eq(lieni_metrics_text(&stats, &text), 0);
    expect_line(text, "lien_conns_open", stats.conns_open);
    expect_line(text, "lien_conns_total", stats.conns_total);
    expect_line(text, "lien_reads_failed_total", stats.reads_failed);
    expect_line(text, "lien_read_bytes_total", stats.read_bytes);
    expect_line(text, "lien_payload_copied_bytes_total", stats.payload_bytes_copied);
    expect_line(text, "lien_grants_bytes", stats.grants_bytes);
    expect_line(text, "lien_quarantined_bytes", stats.quarantined_bytes);
    expect_line(text, "lien_quarantined_ever_bytes_total", stats.quarantined_total);
    expect_line(text, "lien_evidence_unknown_total", stats.evidence_unknown);
    expect_line(text, "lien_pool_bytes", stats.pool_bytes);
    expect_line(text, "lien_log_dropped_total", stats.log_dropped);
    free(text);
}

Test(metrics, fields_beyond_size_are_not_read)
{
    lien_ctx_stats stats = numbered();
    char *text = NULL;
    stats.size = offsetof(lien_ctx_stats, conns_lost);
    cr_assert_eq(lieni_metrics_text(&stats, &text), 0);
    cr_assert_not_null(strstr(text, "lien_conns_total "));
    cr_assert_null(strstr(text, "lien_conns_lost"));
    cr_assert_str_eq(text + strlen(text) - 6, "# EOF\n");
    free(text);
}

Test(version, is_three_numbers)
{
    unsigned a, b, c;
    char rest;
    cr_assert_eq(sscanf(lien_version(), "%u.%u.%u%c", &a, &b, &c, &rest), 3);
    cr_assert_str_eq(lien_version(), LIENI_EXPECT_VERSION);
}
