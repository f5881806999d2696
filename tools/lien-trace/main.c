// SPDX-License-Identifier: Apache-2.0
//
// lien-trace: shows traces of connections (lien_conn_trace(), option trace_dir), of one peer or of both, and single frames. Begin with dump.h; text.h has the words.

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/lien.h>

#include "dump.h"
#include "text.h"

static const char help[] =
    "lien-trace: what happened on a connection\n"
    "\n"
    "  lien-trace [--conn ID] FILE...\n"
    "  lien-trace --frame HEX\n"
    "\n"
    "FILE is a trace, as lien_conn_trace() and option trace_dir write it; - is standard input.\n"
    "Traces of one connection, of both peers too, are shown as one.\n"
    "\n"
    "  -c, --conn ID     only the connection with this id (hexadecimal, as in the log)\n"
    "  -f, --frame HEX   one frame, given as hexadecimal digits\n"
    "  -h, --help        this text\n"
    "  -V, --version     the version\n"
    "\n"
    "Status: 0; 1 if something could not be read, is damaged or malformed; 2 for a wrong use.\n";

static const struct option options[] = {
    {"conn", required_argument, NULL, 'c'},
    {"frame", required_argument, NULL, 'f'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

static int misuse(const char *what, const char *value)
{
    fprintf(stderr, "lien-trace: %s '%s'; see lien-trace --help\n", what, value);
    return 2;
}

// -- One frame ---------------------------------------------------------------------------------------------------------------------

static int digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

// Digits in pairs; blanks and colons between them are nothing.
static int show_frame(const char *hex)
{
    size_t room = strlen(hex) / 2 + 1, len = 0;
    uint8_t *bytes = malloc(room);
    int rc = bytes ? 0 : 1;
    for (const char *at = hex; rc == 0 && *at;) {
        if (strchr(" :\n\t", *at)) {
            at++;
            continue;
        }
        int high = digit(at[0]), low = high < 0 ? -1 : digit(at[1]);
        if (low < 0)
            rc = misuse("not pairs of hexadecimal digits:", at);
        else
            bytes[len++] = (uint8_t)(high << 4 | low);
        at += 2;
    }
    if (rc == 0) {
        rc = print_frame(stdout, bytes, len, true) != 0;
        putchar('\n');
    }
    free(bytes);
    return rc;
}

// -- Traces ------------------------------------------------------------------------------------------------------------------------

static uint8_t *read_all(FILE *in, size_t *len)
{
    size_t room = 1u << 16, n;
    uint8_t *bytes = malloc(room);
    *len = 0;
    while (bytes && (n = fread(bytes + *len, 1, room - *len, in)) > 0) {
        *len += n;
        if (*len < room)
            continue;
        uint8_t *more = realloc(bytes, room *= 2);
        if (!more)
            free(bytes);
        bytes = more;
    }
    return bytes;
}

static uint8_t *load(const char *name, size_t *len)
{
    FILE *in = strcmp(name, "-") == 0 ? stdin : fopen(name, "rb");
    uint8_t *bytes = in ? read_all(in, len) : NULL;
    if (!bytes || ferror(in)) {
        fprintf(stderr, "lien-trace: %s: %s\n", name, strerror(errno));
        free(bytes);
        bytes = NULL;
    }
    if (in && in != stdin)
        fclose(in);
    return bytes;
}

// Reads what can be read; *bad is set if that was not all. Returns how many there are.
static size_t open_all(char **names, size_t n, struct dump *dumps, bool *bad)
{
    size_t opened = 0;
    for (size_t i = 0; i < n; i++) {
        struct dump *dump = &dumps[opened];
        size_t len = 0;
        uint8_t *bytes = load(names[i], &len);
        if (!bytes) {
            *bad = true;
            continue;
        }
        if (dump_open(dump, names[i], bytes, len) == 0)
            opened++;
        else
            free(bytes);
        if (dump->why) {
            fprintf(stderr, "lien-trace: %s: offset %zu: %s\n", dump->name, dump->offset,
                    dump->why);
            *bad = true;
        }
    }
    return opened;
}

// Those of the connection of dumps[first] that were not shown yet.
static int show_conn(const struct dump *dumps, size_t n, size_t first, const struct dump **some)
{
    size_t k = 0;
    for (size_t i = 0; i < first; i++) {
        if (dumps[i].head.conn == dumps[first].head.conn)
            return 0;
    }
    for (size_t i = first; i < n; i++) {
        if (dumps[i].head.conn == dumps[first].head.conn)
            some[k++] = &dumps[i];
    }
    return dumps_print(stdout, some, k);
}

static int show_all(char **names, size_t n, const char *conn, uint64_t id)
{
    struct dump *dumps = calloc(n, sizeof *dumps);
    const struct dump **some = calloc(n, sizeof *some);
    bool bad = !dumps || !some, found = !conn;
    size_t opened = bad ? 0 : open_all(names, n, dumps, &bad);
    for (size_t i = 0; i < opened; i++) {
        if (conn && dumps[i].head.conn != id)
            continue;
        found = true;
        if (show_conn(dumps, opened, i, some) != 0) {
            fputs("lien-trace: no memory\n", stderr);
            bad = true;
        }
    }
    if (!found)
        fprintf(stderr, "lien-trace: no trace of connection %016" PRIx64 "\n", id);
    for (size_t i = 0; i < opened; i++)
        free((void *)(uintptr_t)dumps[i].bytes);
    free(dumps);
    free(some);
    return bad || !found;
}

int main(int argc, char **argv)
{
    const char *conn = NULL, *frame = NULL;
    uint64_t id = 0;
    int c;
    while ((c = getopt_long(argc, argv, "c:f:hV", options, NULL)) != -1) {
        char *end = NULL;
        switch (c) {
        case 'c':
            conn = optarg;
            errno = 0;
            id = strtoull(conn, &end, 16);
            if (digit(conn[0]) < 0 || *end != '\0' || errno != 0)
                return misuse("--conn needs a hexadecimal number of 64 bits, not", conn);
            break;
        case 'f':
            frame = optarg;
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        case 'V':
            printf("lien-trace %s\n", lien_version());
            return 0;
        default:
            return 2; // getopt said why
        }
    }
    if (frame && (conn || optind < argc))
        return misuse("--frame takes nothing besides its digits, not", conn ? conn : argv[optind]);
    if (!frame && optind == argc)
        return misuse("a FILE or --frame is needed, not", "");
    int rc = frame ? show_frame(frame) : show_all(argv + optind, (size_t)(argc - optind), conn, id);
    if (fflush(stdout) != 0) {
        fprintf(stderr, "lien-trace: standard output: %s\n", strerror(errno));
        rc = 1;
    }
    return rc;
}
