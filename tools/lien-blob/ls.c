// SPDX-License-Identifier: Apache-2.0
//
// The commands that move no file: ls, stat, rm. One call each, or one for each page of a list. What the server says is checked like anything from the wire.

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client.h"

static void print_time(int64_t seconds)
{
    char text[32] = "?";
    struct tm tm;
    time_t when = (time_t)seconds;
    if (localtime_r(&when, &tm))
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm);
    fputs(text, stdout);
}

bool client_stat(struct client *client, const char *name, struct blob_error *error)
{
    struct blob_ask ask = {0};
    struct blob_answer answer;
    if (!client_set_name(&ask, name, error) || !client_connect(client, error) ||
        !client_ask(client, "blob/stat", &ask, &answer, error))
        return false;
    printf("name      %s\n", name);
    if (answer.flags & BLOB_HAS_OBJECT) {
        printf("bytes     %" PRIu64 "\nmodified  ", answer.size);
        print_time(answer.mtime);
        char sum[2 * BLOB_SUM_BYTES + 1];
        sum_text(answer.sum, sum);
        printf("\nxxh3-128  %s\n", answer.flags & BLOB_HAS_SUM ? sum : "unknown");
    }
    if (answer.flags & BLOB_HAS_PARTIAL)
        printf("partial   %" PRIu64 " bytes of a put that did not end\n", answer.offset);
    return true;
}

bool client_rm(struct client *client, const char *name, struct blob_error *error)
{
    struct blob_ask ask = {0};
    struct blob_answer answer;
    return client_set_name(&ask, name, error) && client_connect(client, error) &&
           client_ask(client, "blob/rm", &ask, &answer, error);
}

// Prints the entries in the body of a reply, and leaves the last name in `last`.
static bool print_entries(const lien_buf *body, uint64_t n, char last[BLOB_NAME_MAX + 1],
                          struct blob_error *error)
{
    const void *data = NULL;
    int rc = lien_buf_data(body, &data);
    if (rc != 0)
        return error_set_lien(error, rc, "the body of the list");
    size_t used = 0, len = lien_buf_len(body);
    for (uint64_t i = 0; i < n; i++) {
        struct blob_entry entry;
        size_t step = proto_entry_decode((const char *)data + used, len - used, &entry);
        // Names must rise, or a bad server could keep us asking for ever.
        if (step == 0 || strcmp(entry.name, last) < 0)
            return error_set(error, BLOB_BAD_MESSAGE, "the server sent a malformed list");
        used += step;
        memcpy(last, entry.name, sizeof(entry.name));
        printf("%14" PRIu64 "  ", entry.size);
        print_time(entry.mtime);
        printf("  %s%s\n", entry.name, entry.flags & BLOB_HAS_PARTIAL ? " (partial)" : "");
    }
    return true;
}

// A page of the list: memory for it is reserved with the call, and the server's buffer is READ into that.
static bool ask_page(struct client *client, const struct blob_ask *ask, struct call *call,
                     struct blob_error *error)
{
    lien_call_opts opts;
    lien_call_opts_init(&opts);
    opts.reply_max = BLOB_LIST_BYTES;
    return client_start(client, call, "blob/ls", ask, &opts, error) && client_finish(call, error);
}

bool client_ls(struct client *client, struct blob_error *error)
{
    struct blob_ask ask = {0};
    if (!client_connect(client, error))
        return false;
    for (bool more = true; more;) {
        struct call call = {0};
        char last[BLOB_NAME_MAX + 1];
        memcpy(last, ask.name, sizeof(last));
        bool ok = ask_page(client, &ask, &call, error) &&
                  (!call.body || print_entries(call.body, call.answer.size, last, error));
        more = call.answer.flags & BLOB_MORE;
        lien_buf_free(&call.body);
        if (!ok)
            return false;
        if (more && strcmp(last, ask.name) == 0)
            return error_set(error, BLOB_BAD_MESSAGE, "the server's list does not go on");
        memcpy(ask.name, last, sizeof(last));
    }
    return true;
}
