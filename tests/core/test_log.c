// SPDX-License-Identifier: Apache-2.0
//
// The log: what is kept, escaped, cut and dropped, who may flush, and how stderr lines look.

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"

static struct {
    unsigned n;
    lien_log_line last;
    char text[LIENI_LOG_TEXT], provider[64], peer[128];
    struct lieni_log *nested; // flush this from inside
    unsigned depth, deepest;
} seen;

static void collect(const lien_log_line *line, void *arg)
{
    cr_assert_eq(arg, &seen);
    seen.depth++;
    seen.deepest = seen.depth > seen.deepest ? seen.depth : seen.deepest;
    seen.n++;
    seen.last = *line;
    snprintf(seen.text, sizeof seen.text, "%s", line->text);
    snprintf(seen.provider, sizeof seen.provider, "%s", line->provider ? line->provider : "-");
    snprintf(seen.peer, sizeof seen.peer, "%s", line->peer ? line->peer : "-");
    if (seen.nested) {
        lieni_log_say(seen.nested, LIEN_LOG_ERROR, NULL, 0, "from inside");
        struct lieni_log *log = seen.nested;
        seen.nested = NULL;
        lieni_log_flush(log);
    }
    seen.depth--;
}

static struct lieni_log *open_log(lien_level level)
{
    struct lieni_log *log = NULL;
    memset(&seen, 0, sizeof seen);
    cr_assert_eq(lieni_log_open(collect, &seen, level, &log), 0);
    return log;
}

Test(log, carries_every_field_and_copies_the_strings)
{
    struct lieni_log *log = open_log(LIEN_LOG_INFO);
    char provider[] = "tcp", peer[] = "10.0.0.1:7";
    struct lieni_log_at at = {.conn = 7, .op = 9, .provider = provider, .peer = peer};
    errno = 77;
    lieni_log_say(log, LIEN_LOG_WARN, &at, LIEN_EIO, "failed %d times", 3);
    cr_assert_eq(errno, 77);
    memset(provider, 'x', 3);
    memset(peer, 'x', 3);
    cr_assert_eq(seen.n, 0, "said before the flush");
    cr_assert(lieni_log_pending(log));
    lieni_log_flush(log);
    cr_assert(!lieni_log_pending(log));
    cr_assert_eq(seen.n, 1);
    cr_assert_eq(seen.last.level, LIEN_LOG_WARN);
    cr_assert_eq(seen.last.conn, 7);
    cr_assert_eq(seen.last.op, 9);
    cr_assert_eq(seen.last.code, LIEN_EIO);
    cr_assert_str_eq(seen.text, "failed 3 times");
    cr_assert_str_eq(seen.provider, "tcp");
    cr_assert_str_eq(seen.peer, "10.0.0.1:7");
    struct lieni_report report = lieni_log_report(log);
    report.say(report.self, LIEN_LOG_ERROR, LIEN_ENODEV, "100%s");
    lieni_log_close(log);
    cr_assert_eq(seen.n, 2, "close did not flush");
    cr_assert_str_eq(seen.text, "100%s");
    cr_assert_eq(seen.last.code, LIEN_ENODEV);
    cr_assert_str_eq(seen.provider, "-");
}

Test(log, level_decides)
{
    struct lieni_log *log = open_log(LIEN_LOG_WARN);
    lieni_log_say(log, LIEN_LOG_INFO, NULL, 0, "no");
    cr_assert(!lieni_log_pending(log));
    lieni_log_set_level(log, LIEN_LOG_DEBUG);
    lieni_log_say(log, LIEN_LOG_DEBUG, NULL, 0, "yes");
    lieni_log_set_level(log, LIEN_LOG_ERROR);
    lieni_log_say(log, LIEN_LOG_WARN, NULL, 0, "no");
    lieni_log_close(log);
    cr_assert_eq(seen.n, 1);
}

Test(log, control_characters_are_escaped)
{
    struct lieni_log *log = open_log(LIEN_LOG_WARN);
    struct lieni_log_at at = {.peer = "a\nb"};
    lieni_log_say(log, LIEN_LOG_WARN, &at, 0, "%s", "a\nb\tc\r\x1b[1m\x7f \xc2\x9b \xc3\xa9");
    lieni_log_close(log);
    cr_assert_str_eq(seen.text, "a\\nb\\tc\\r\\x1b[1m\\x7f \\xc2\\x9b \xc3\xa9");
    cr_assert_str_eq(seen.peer, "a\\nb");
}

Test(log, long_lines_are_cut_with_dots)
{
    char text[4000];
    for (size_t len = LIENI_LOG_TEXT - 6; len < LIENI_LOG_TEXT + 6; len++) {
        struct lieni_log *log = open_log(LIEN_LOG_WARN);
        memset(text, 'a', len);
        text[len] = '\0';
        lieni_log_say(log, LIEN_LOG_WARN, NULL, 0, "%s", text);
        lieni_log_close(log);
        bool fits = len < LIENI_LOG_TEXT;
        cr_assert_eq(strlen(seen.text), fits ? len : LIENI_LOG_TEXT - 1);
        cr_assert_eq(strcmp(seen.text + strlen(seen.text) - 3, "...") == 0, !fits);
    }
    // Cut after escaping, and never inside a character or an escape.
    for (size_t shift = 0; shift < 8; shift++) {
        struct lieni_log *log = open_log(LIEN_LOG_WARN);
        memset(text, 'a', shift);
        for (size_t i = 0; i < 500; i++) {
            memcpy(text + shift + 3 * i, "\x01\xc3\xa9", 3);
        }
        text[shift + 1500] = '\0';
        lieni_log_say(log, LIEN_LOG_WARN, NULL, 0, "%s", text);
        lieni_log_close(log);
        size_t len = strlen(seen.text);
        cr_assert_lt(len, LIENI_LOG_TEXT);
        cr_assert_str_eq(seen.text + len - 3, "...");
        size_t body = len - 3 - shift;
        cr_assert(body % 6 == 0 || body % 6 == 4, "cut inside: %zu", body);
    }
}

Test(log, a_full_ring_drops_counts_and_says_where)
{
    struct lieni_log *log = open_log(LIEN_LOG_WARN);
    for (unsigned i = 0; i < LIENI_LOG_LINES + 5; i++) {
        lieni_log_say(log, LIEN_LOG_WARN, NULL, 0, "line %u", i);
    }
    cr_assert_eq(lieni_log_dropped(log), 5);
    lieni_log_flush(log);
    cr_assert_eq(seen.n, LIENI_LOG_LINES + 1);
    cr_assert_str_eq(seen.text, "5 log lines were dropped here, the ring holds 256");
    lieni_log_say(log, LIEN_LOG_WARN, NULL, 0, "later");
    lieni_log_flush(log);
    cr_assert_eq(seen.n, LIENI_LOG_LINES + 2, "said twice");
    cr_assert_str_eq(seen.text, "later");
    cr_assert_eq(lieni_log_dropped(log), 5);
    lieni_log_close(log);
}

Test(log, a_nested_flush_returns_and_its_line_still_comes)
{
    struct lieni_log *log = open_log(LIEN_LOG_WARN);
    seen.nested = log;
    lieni_log_say(log, LIEN_LOG_WARN, NULL, 0, "first");
    lieni_log_flush(log);
    cr_assert_eq(seen.deepest, 1, "the function was entered twice at once");
    cr_assert_eq(seen.n, 2);
    cr_assert_str_eq(seen.text, "from inside");
    lieni_log_close(log);
}

static void number_of(const lien_log_line *line, void *arg)
{
    unsigned got;
    cr_assert_eq(sscanf(line->text, "n %u", &got), 1);
    cr_assert_eq(got, *(unsigned *)arg);
    ++*(unsigned *)arg;
}

Test(log, order_is_kept_around_the_ring)
{
    unsigned expect = 0, said = 0;
    struct lieni_log *log = NULL;
    cr_assert_eq(lieni_log_open(number_of, &expect, LIEN_LOG_WARN, &log), 0);
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 100; i++) {
            lieni_log_say(log, LIEN_LOG_WARN, NULL, 0, "n %u", said++);
        }
        lieni_log_flush(log);
    }
    lieni_log_close(log);
    cr_assert_eq(expect, 2000);
}

Test(log, stderr_lines, .init = cr_redirect_stderr)
{
    struct lieni_log *log = NULL;
    cr_assert_eq(lieni_log_open(NULL, NULL, LIEN_LOG_INFO, &log), 0);
    struct lieni_log_at at = {.conn = 0xab, .op = 3, .provider = "tcp", .peer = "10.0.0.1:7"};
    lieni_log_say(log, LIEN_LOG_ERROR, &at, LIEN_ETIMEDOUT, "no answer");
    lieni_log_say(log, LIEN_LOG_INFO, NULL, 0, "plain");
    lieni_log_close(log);
    fflush(stderr);
    cr_assert_stderr_eq_str(
        "lien: error: conn 00000000000000ab op 3 tcp 10.0.0.1:7: no answer (ETIMEDOUT)\n"
        "lien: info: plain\n");
}
