// SPDX-License-Identifier: Apache-2.0
//
// The ring of log lines. `lock` guards all but `level` (atomic) and fn, arg (constant). Only the
// thread that set `flushing` calls fn and copies lines out; the ring's order is the order of calls.

#include "core/log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct line {
    lien_level level;
    int code;
    uint64_t conn, op;
    uint64_t missing; // lines dropped just before this one
    char provider[32];
    char peer[96];
    char text[LIENI_LOG_TEXT];
};

struct lieni_log {
    lien_log_fn *fn;
    void *arg;
    atomic_int level;
    pthread_mutex_t lock;
    bool flushing;
    unsigned first, n; // the ring: lines[first], and n - 1 after it
    uint64_t missing;  // dropped since the last line was taken in
    uint64_t dropped;  // since open
    struct line lines[LIENI_LOG_LINES];
};

// -- Text --------------------------------------------------------------------------------------------------------------------------

// What one character becomes: returns how many bytes of `in` it used, writes up to 8 and a NUL.
static size_t escape_one(const unsigned char *in, char out[9])
{
    if (in[0] == '\n' || in[0] == '\t' || in[0] == '\r') {
        snprintf(out, 9, "\\%c", in[0] == '\n' ? 'n' : in[0] == '\t' ? 't' : 'r');
        return 1;
    }
    if (in[0] < 0x20 || in[0] == 0x7f) {
        snprintf(out, 9, "\\x%02x", in[0]);
        return 1;
    }
    if (in[0] == 0xc2 && in[1] >= 0x80 && in[1] < 0xa0) { // U+0080 .. U+009F
        snprintf(out, 9, "\\xc2\\x%02x", in[1]);
        return 2;
    }
    // UTF-8 goes in whole, so that cutting never splits a character; other bytes go in as they are.
    size_t len = in[0] >= 0xf0 ? 4 : in[0] >= 0xe0 ? 3 : in[0] >= 0xc0 ? 2 : 1;
    size_t used = 0;
    do {
        out[used] = (char)in[used];
        used++;
    } while (used < len && (in[used] & 0xc0) == 0x80);
    out[used] = '\0';
    return used;
}

// Copies `in` escaped into `out`; what does not fit, or `cut`, makes it end in "...".
static void copy_escaped(char *out, size_t size, const char *in, bool cut)
{
    const unsigned char *from = (const unsigned char *)in;
    size_t len = 0, keep = 0; // keep: the longest length that leaves room for "..."
    while (*from) {
        char piece[9];
        from += escape_one(from, piece);
        size_t n = strlen(piece);
        if (len + n >= size) {
            cut = true;
            break;
        }
        memcpy(out + len, piece, n);
        len += n;
        if (len + 3 < size) {
            keep = len;
        }
    }
    if (cut) {
        len = keep;
        memcpy(out + len, "...", 3);
        len += 3;
    }
    out[len] = '\0';
}

static const char *level_name(lien_level level)
{
    switch (level) {
    case LIEN_LOG_ERROR:
        return "error";
    case LIEN_LOG_WARN:
        return "warning";
    case LIEN_LOG_INFO:
        return "info";
    case LIEN_LOG_DEBUG:
        return "debug";
    }
    return "?";
}

// The default function. One write of the whole line, so that lines of several processes do not mix.
static void to_stderr(const lien_log_line *line, void *arg)
{
    (void)arg;
    char about[192] = "";
    size_t len = 0;
    if (line->conn) {
        len += (size_t)snprintf(about, sizeof about, " conn %016" PRIx64, line->conn);
    }
    if (line->op) {
        len += (size_t)snprintf(about + len, sizeof about - len, " op %" PRIu64, line->op);
    }
    snprintf(about + len, sizeof about - len, "%s%s%s%s", line->provider ? " " : "",
             line->provider ? line->provider : "", line->peer ? " " : "",
             line->peer ? line->peer : "");
    char code[48] = "";
    if (line->code) {
        snprintf(code, sizeof code, " (%s)", lien_errname(line->code) + strlen("LIEN_"));
    }
    fprintf(stderr, "lien: %s:%s%s %s%s\n", level_name(line->level), about, about[0] ? ":" : "",
            line->text, code);
}

// -- Ring --------------------------------------------------------------------------------------------------------------------------

int lieni_log_open(lien_log_fn *fn, void *arg, lien_level level, struct lieni_log **log)
{
    struct lieni_log *l = calloc(1, sizeof *l);
    if (!l) {
        return LIEN_ENOMEM;
    }
    l->fn = fn ? fn : to_stderr;
    l->arg = arg;
    atomic_init(&l->level, (int)level);
    pthread_mutex_init(&l->lock, NULL);
    *log = l;
    return 0;
}

void lieni_log_close(struct lieni_log *log)
{
    lieni_log_flush(log);
    pthread_mutex_destroy(&log->lock);
    free(log);
}

void lieni_log_set_level(struct lieni_log *log, lien_level level)
{
    atomic_store_explicit(&log->level, (int)level, memory_order_relaxed);
}

// A line's place at the end of the ring, or NULL: full, counted. Under the lock.
static struct line *take_in(struct lieni_log *log)
{
    if (log->n == LIENI_LOG_LINES) {
        log->missing++;
        log->dropped++;
        return NULL;
    }
    struct line *line = &log->lines[(log->first + log->n) % LIENI_LOG_LINES];
    log->n++;
    line->missing = log->missing;
    log->missing = 0;
    return line;
}

void lieni_log_say(struct lieni_log *log, lien_level level, const struct lieni_log_at *at, int code,
                   const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&log->level, memory_order_relaxed)) {
        return;
    }
    int saved = errno;
    static const struct lieni_log_at nowhere;
    at = at ? at : &nowhere;
    char text[LIENI_LOG_TEXT];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (len < 0) {
        snprintf(text, sizeof text, "%s", format);
    }

    pthread_mutex_lock(&log->lock);
    struct line *line = take_in(log);
    if (line) {
        line->level = level;
        line->code = code;
        line->conn = at->conn;
        line->op = at->op;
        copy_escaped(line->provider, sizeof line->provider, at->provider ? at->provider : "",
                     false);
        copy_escaped(line->peer, sizeof line->peer, at->peer ? at->peer : "", false);
        copy_escaped(line->text, sizeof line->text, text, len >= (int)sizeof text);
    }
    pthread_mutex_unlock(&log->lock);
    errno = saved;
}

bool lieni_log_pending(struct lieni_log *log)
{
    pthread_mutex_lock(&log->lock);
    bool pending = log->n > 0 || log->missing > 0;
    pthread_mutex_unlock(&log->lock);
    return pending;
}

uint64_t lieni_log_dropped(struct lieni_log *log)
{
    pthread_mutex_lock(&log->lock);
    uint64_t dropped = log->dropped;
    pthread_mutex_unlock(&log->lock);
    return dropped;
}

// -- Flush -------------------------------------------------------------------------------------------------------------------------

// The next line out of the ring, copied since its place may be taken again at once. A line without a level
// stands for missing lines alone, at the end. False: nothing is left. Under the lock.
static bool take_out(struct lieni_log *log, struct line *line)
{
    if (log->n > 0) {
        *line = log->lines[log->first];
        log->first = (log->first + 1) % LIENI_LOG_LINES;
        log->n--;
        return true;
    }
    *line = (struct line){.missing = log->missing};
    log->missing = 0;
    return line->missing > 0;
}

static void hand_over(struct lieni_log *log, const struct line *line)
{
    if (line->missing) {
        char text[96];
        snprintf(text, sizeof text, "%" PRIu64 " log lines were dropped here, the ring holds %d",
                 line->missing, LIENI_LOG_LINES);
        lien_log_line said = {.level = LIEN_LOG_WARN, .text = text};
        log->fn(&said, log->arg);
    }
    if (line->level) {
        lien_log_line said = {.level = line->level,
                              .conn = line->conn,
                              .op = line->op,
                              .code = line->code,
                              .provider = line->provider[0] ? line->provider : NULL,
                              .peer = line->peer[0] ? line->peer : NULL,
                              .text = line->text};
        log->fn(&said, log->arg);
    }
}

void lieni_log_flush(struct lieni_log *log)
{
    struct line line;
    pthread_mutex_lock(&log->lock);
    if (log->flushing) {
        pthread_mutex_unlock(&log->lock);
        return;
    }
    log->flushing = true;
    while (take_out(log, &line)) {
        pthread_mutex_unlock(&log->lock);
        hand_over(log, &line);
        pthread_mutex_lock(&log->lock);
    }
    log->flushing = false; // under the same lock as "nothing is left": no line is left behind
    pthread_mutex_unlock(&log->lock);
}

static void report_say(void *self, lien_level level, int code, const char *text)
{
    struct lieni_log *log = self;
    lieni_log_say(log, level, NULL, code, "%s", text);
}

struct lieni_report lieni_log_report(struct lieni_log *log)
{
    return (struct lieni_report){.self = log, .say = report_say};
}
