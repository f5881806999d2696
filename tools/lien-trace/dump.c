// SPDX-License-Identifier: Apache-2.0
//
// See dump.h.

#include "dump.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"
#include "core/wire.h"
#include "text.h"

static void fault(struct dump *dump, size_t offset, const char *why)
{
    if (!dump->why) {
        dump->why = why;
        dump->offset = offset;
    }
}

int dump_open(struct dump *dump, const char *name, const uint8_t *bytes, size_t len)
{
    *dump = (struct dump){.name = name, .bytes = bytes, .len = len};
    const char *why = "";
    if (lieni_dump_head_decode(bytes, len, &dump->head, &why) != 0) {
        fault(dump, 0, why);
        return LIEN_EPROTO;
    }
    const struct lieni_dump_head *head = &dump->head;
    size_t rest = len - head->header_size, n = rest / head->record_size;
    if (n < head->records)
        fault(dump, len, "the file ends before the last record");
    else if (n > head->records || rest % head->record_size != 0)
        fault(dump, head->header_size + (size_t)head->records * head->record_size,
              "bytes behind the last record");
    n = n < head->records ? n : head->records;
    for (size_t i = 0; i < n; i++) {
        struct lieni_trace_event event;
        size_t at = head->header_size + i * head->record_size;
        if (lieni_dump_record_decode(bytes + at, head, &event, &why) != 0) {
            dump->why = NULL; // the first one counts
            fault(dump, at, why);
            n = i;
        }
    }
    dump->records = n;
    return 0;
}

struct lieni_trace_event dump_event(const struct dump *dump, size_t i)
{
    struct lieni_trace_event event = {0};
    const char *why;
    size_t at = dump->head.header_size + i * dump->head.record_size;
    if (lieni_dump_record_decode(dump->bytes + at, &dump->head, &event, &why) != 0)
        event.len = 0; // dump_open counted only those that can be
    return event;
}

// -- Clocks ------------------------------------------------------------------------------------------------------------------------

// The next event of `kind` from the i-th on that has a frame's header; its number.
static bool next_frame(const struct dump *dump, enum lieni_trace_kind kind, size_t *i,
                       uint32_t *number, uint64_t *time)
{
    for (; *i < dump->records; (*i)++) {
        struct lieni_trace_event event = dump_event(dump, *i);
        if (event.kind != kind || event.len < LIENI_FRAME_HEADER)
            continue;
        *number = lieni_get32(event.bytes + 8);
        *time = event.time;
        (*i)++;
        return true;
    }
    return false;
}

// The least time from sending a frame to receiving it, each by its own clock. False: no frame is in both.
static bool least_delay(const struct dump *from, const struct dump *to, int64_t *least)
{
    size_t i = 0, j = 0;
    uint32_t sent, received;
    uint64_t sent_at, received_at;
    bool any = false;
    bool more = next_frame(from, LIENI_TRACE_SENT, &i, &sent, &sent_at) &&
                next_frame(to, LIENI_TRACE_RECEIVED, &j, &received, &received_at);
    while (more) {
        if (sent == received) {
            int64_t delay = (int64_t)(received_at - sent_at);
            *least = !any || delay < *least ? delay : *least;
            any = true;
        }
        // Frames of one direction are numbered in their order.
        more = sent <= received ? next_frame(from, LIENI_TRACE_SENT, &i, &sent, &sent_at)
                                : next_frame(to, LIENI_TRACE_RECEIVED, &j, &received, &received_at);
    }
    return any;
}

// How far the second one's clock is ahead: 0 if no frame came before it was sent by that.
static uint64_t clock_ahead(const struct dump *first, const struct dump *second)
{
    int64_t there = 0, back = 0;
    bool has_there = least_delay(first, second, &there),
         has_back = least_delay(second, first, &back);
    if ((!has_there || there >= 0) && (!has_back || back >= 0))
        return 0;
    if (!has_back)
        return (uint64_t)there;
    if (!has_there)
        return 0 - (uint64_t)back;
    return (uint64_t)(there / 2) - (uint64_t)(back / 2);
}

// -- Printing ----------------------------------------------------------------------------------------------------------------------

struct line {
    uint64_t time; // by the first dump's clock
    uint32_t dump, record;
};

static int by_time(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    if (x->dump != y->dump)
        return x->dump < y->dump ? -1 : 1;
    return x->record < y->record ? -1 : x->record > y->record;
}

static bool same_ring(const struct dump *a, const struct dump *b)
{
    return a->head.server == b->head.server &&
           memcmp(a->head.ctx, b->head.ctx, sizeof a->head.ctx) == 0;
}

// Whether an earlier dump of the same ring has this event already.
static bool seen(const struct dump *const *dumps, size_t n, const struct dump *dump,
                 uint64_t number)
{
    for (size_t i = 0; i < n; i++) {
        const struct dump *d = dumps[i];
        if (!same_ring(d, dump) || d->records == 0)
            continue;
        if (number >= dump_event(d, 0).number && number <= dump_event(d, d->records - 1).number)
            return true;
    }
    return false;
}

static void print_seconds(FILE *out, uint64_t ns)
{
    fprintf(out, "%" PRIu64 ".%09" PRIu64, ns / 1000000000u, ns % 1000000000u);
}

static const char *side(const struct dump *dump)
{
    return dump->head.server ? "server" : "client";
}

static void print_head(FILE *out, const struct dump *dump, uint64_t ahead)
{
    const struct lieni_dump_head *head = &dump->head;
    fprintf(out, "%s: %s, peer ", dump->name, side(dump));
    print_escaped(out, head->peer, strlen(head->peer));
    fputs(", provider ", out);
    print_escaped(out, head->provider, strlen(head->provider));
    fputs(", ", out);
    print_escaped(out, head->state, strlen(head->state));
    if (head->status != 0)
        fprintf(out, " (%s)", lien_errname(head->status));
    fprintf(out, ", %zu of %" PRIu64 " events", dump->records, head->events);
    if (head->read_bytes > 0)
        fprintf(out, ", %" PRIu64 " bytes of READs outstanding", head->read_bytes);
    if (ahead != 0)
        fprintf(out, ", its clock is taken to be %+.6f s ahead", (double)(int64_t)ahead / 1e9);
    fputc('\n', out);
}

static void print_line(FILE *out, const struct line *line, const struct dump *dump, uint64_t first)
{
    struct lieni_trace_event event = dump_event(dump, line->record);
    print_seconds(out, line->time - first);
    fprintf(out, " %s %6" PRIu64 " ", side(dump), event.number);
    print_event(out, &event, dump->head.server);
    fputc('\n', out);
}

int dumps_print(FILE *out, const struct dump *const *dumps, size_t n)
{
    size_t all = 0, lines = 0;
    for (size_t i = 0; i < n; i++)
        all += dumps[i]->records;
    struct line *line = calloc(all > 0 ? all : 1, sizeof *line);
    if (!line)
        return LIEN_ENOMEM;
    fprintf(out, "connection %016" PRIx64 "\n", dumps[0]->head.conn);
    for (size_t i = 0; i < n; i++) {
        uint64_t ahead = dumps[i]->head.server != dumps[0]->head.server
                             ? clock_ahead(dumps[0], dumps[i])
                             : 0;
        print_head(out, dumps[i], ahead);
        for (size_t k = 0; k < dumps[i]->records; k++) {
            struct lieni_trace_event event = dump_event(dumps[i], k);
            if (!seen(dumps, i, dumps[i], event.number))
                line[lines++] = (struct line){
                    .time = event.time - ahead, .dump = (uint32_t)i, .record = (uint32_t)k};
        }
    }
    qsort(line, lines, sizeof *line, by_time);
    if (lines > 0) {
        fputs("seconds since ", out);
        print_seconds(out, line[0].time);
        fputs(" of the first one's clock, side, number, event\n", out);
    }
    for (size_t i = 0; i < lines; i++)
        print_line(out, &line[i], dumps[line[i].dump], line[0].time);
    free(line);
    return 0;
}
