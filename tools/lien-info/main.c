// SPDX-License-Identifier: Apache-2.0
//
// lien-info: what Lien sees on this machine, what it would take to reach a peer, and why. Begin with gather.h.

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/lien.h>

#include "gather.h"
#include "text.h"

static const char help[] =
    "lien-info: what Lien sees on this machine, and what it would take to reach a peer\n"
    "\n"
    "  lien-info [--json] [PEER]\n"
    "  lien-info --options [--json]\n"
    "\n"
    "PEER is a host, host:port or [v6]:port.\n"
    "\n"
    "  -o, --options   each option with its value and where that came from\n"
    "  -j, --json      the same for programs\n"
    "  -h, --help      this text\n"
    "  -V, --version   the version\n"
    "\n"
    "Status: 0; 1 if no provider can be used, or options are wrong; 2 for a wrong use.\n";

static const struct option options[] = {
    {"options", no_argument, NULL, 'o'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

static int show(bool only_options, bool json, const char *peer)
{
    int status = 0;
    json_t *all = only_options ? gather_options(&status) : gather_report(peer);
    if (json) {
        json_dumpf(all, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
        putchar('\n');
    } else if (only_options) {
        text_options(all);
    } else {
        text_report(all);
    }
    if (!only_options) {
        const json_t *word = json_object_get(json_object_get(all, "choice"), "status");
        status = strcmp(json_string_value(word), "0");
    }
    json_decref(all);
    if (fflush(stdout) != 0) {
        perror("lien-info: standard output");
        return 1;
    }
    return status ? 1 : 0;
}

int main(int argc, char **argv)
{
    bool only_options = false, json = false;
    for (int c; (c = getopt_long(argc, argv, "ojhV", options, NULL)) != -1;) {
        switch (c) {
        case 'o':
            only_options = true;
            break;
        case 'j':
            json = true;
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        case 'V':
            printf("lien-info %s\n", lien_version());
            return 0;
        default:
            return 2;
        }
    }
    if (argc - optind > 1 || (only_options && optind < argc)) {
        fprintf(stderr, "lien-info: too many arguments; see lien-info --help\n");
        return 2;
    }
    return show(only_options, json, optind < argc ? argv[optind] : NULL);
}
