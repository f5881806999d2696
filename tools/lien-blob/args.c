// SPDX-License-Identifier: Apache-2.0
//
// Parsing of the command line. No state.

#include "args.h"

#include <errno.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto.h"

// The least memory with which a server can serve one client at full speed.
#define MEMORY_MIN ((size_t)BLOB_WINDOW * BLOB_PIECE_BYTES * 2)

static const char help[] =
    "lien-blob: a small object store over Lien\n"
    "\n"
    "  lien-blob serve --dir DIR [--listen HOST:PORT] [--memory BYTES] [--clients N]\n"
    "  lien-blob put  ADDR FILE...       store files, each under its own name\n"
    "  lien-blob get  ADDR NAME [-o FILE]\n"
    "  lien-blob ls   ADDR\n"
    "  lien-blob stat ADDR NAME\n"
    "  lien-blob rm   ADDR NAME\n"
    "  lien-blob sum  ADDR FILE...       checksums taken by the server, which stores nothing\n"
    "\n"
    "ADDR is HOST:PORT or [IPV6]:PORT. It is left out when the variable LIEN_BLOB_ADDRESS\n"
    "or the option --address names the server.\n"
    "\n"
    "  -a, --address ADDR  the server\n"
    "  -d, --dir DIR       serve: the directory that holds the objects\n"
    "  -l, --listen ADDR   serve: where to listen; port 0 picks one (default 127.0.0.1:7471)\n"
    "  -m, --memory BYTES  serve: memory for all transfers, with K, M or G (default 64M)\n"
    "  -c, --clients N     serve: clients at once (default 64)\n"
    "  -n, --name NAME     put: the name of the object, for a single file\n"
    "  -o, --output FILE   get: where to (default: NAME in the current directory)\n"
    "  -t, --tabs          put, get, sum: results as fields separated by tabs\n"
    "  -h, --help          this text\n"
    "  -V, --version       the version\n"
    "\n"
    "Interrupted puts are resumed by the same command. Exit status: 0 done, 1 failed, 2 usage,\n"
    "3 no server, 4 not found, 5 disk full, 6 checksum wrong, 7 name refused or busy,\n"
    "8 protocol error, 130 interrupted. More in lien-blob(1).\n";

static const struct option options[] = {
    {"address", required_argument, NULL, 'a'},
    {"dir", required_argument, NULL, 'd'},
    {"listen", required_argument, NULL, 'l'},
    {"memory", required_argument, NULL, 'm'},
    {"clients", required_argument, NULL, 'c'},
    {"name", required_argument, NULL, 'n'},
    {"output", required_argument, NULL, 'o'},
    {"tabs", no_argument, NULL, 't'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

// Which commands there are, which options they take besides -h and -V, and how many operands after ADDR.
static const struct {
    const char *name;
    enum command command;
    const char *takes;
    int min, max;
} commands[] = {
    {"serve", COMMAND_SERVE, "dlmc", 0, 0},   {"put", COMMAND_PUT, "atn", 1, INT32_MAX},
    {"get", COMMAND_GET, "aot", 1, 1},        {"ls", COMMAND_LS, "a", 0, 0},
    {"stat", COMMAND_STAT, "a", 1, 1},        {"rm", COMMAND_RM, "a", 1, 1},
    {"sum", COMMAND_SUM, "at", 1, INT32_MAX},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

void args_help(void)
{
    fputs(help, stdout);
}

static bool usage(const char *what, const char *value)
{
    fprintf(stderr, "lien-blob: %s%s%s (lien-blob --help says more)\n", what, value ? ": " : "",
            value ? value : "");
    return false;
}

static bool parse_size(const char *text, size_t min, size_t max, size_t *value)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    unsigned shift = 0;
    if (*end == 'K')
        shift = 10;
    else if (*end == 'M')
        shift = 20;
    else if (*end == 'G')
        shift = 30;
    if (shift != 0)
        end++;
    if (text[0] < '0' || text[0] > '9' || errno != 0 || *end != '\0' || n > max >> shift ||
        n << shift < min) {
        fprintf(stderr, "lien-blob: '%s' is no number from %zu to %zu\n", text, min, max);
        return false;
    }
    *value = (size_t)(n << shift);
    return true;
}

static bool set_option(struct args *args, int option, const char *value)
{
    size_t number;
    switch (option) {
    case 'a':
        args->address = value;
        return true;
    case 'd':
        args->dir = value;
        return true;
    case 'l':
        args->listen = value;
        return true;
    case 'm':
        return parse_size(value, MEMORY_MIN, (size_t)1 << 40, &args->memory);
    case 'c':
        if (!parse_size(value, 1, 4096, &number))
            return false;
        args->clients = (unsigned)number;
        return true;
    case 'n':
        args->as = value;
        return true;
    case 'o':
        args->output = value;
        return true;
    case 't':
        args->tabs = true;
        return true;
    case 'h':
        args->command = COMMAND_HELP;
        return true;
    case 'V':
        args->command = COMMAND_VERSION;
        return true;
    }
    return false;
}

// The operands: for clients ADDR comes first unless it is known already.
static bool set_operands(struct args *args, size_t command, char **operands, int n)
{
    if (args->command != COMMAND_SERVE && !args->address) {
        const char *set = getenv("LIEN_BLOB_ADDRESS");
        if (set && *set)
            args->address = set;
        else if (n > 0) {
            args->address = *operands++;
            n--;
        } else
            return usage("the address of the server is missing", NULL);
    }
    args->operands = operands;
    args->n_operands = n;
    if (n < commands[command].min)
        return usage(commands[command].max > 1 ? "no file is named" : "the name is missing", NULL);
    if (n > commands[command].max)
        return usage("one operand too many", operands[commands[command].max]);
    if (args->command == COMMAND_SERVE && !args->dir)
        return usage("serve needs --dir DIR", NULL);
    if (args->as && n != 1)
        return usage("--name goes with a single file", NULL);
    return true;
}

bool args_parse(int argc, char **argv, struct args *args)
{
    *args = (struct args){.listen = "127.0.0.1:7471", .memory = (size_t)64 << 20, .clients = 64};
    char given[16] = "";
    for (int option;
         (option = getopt_long(argc, argv, "a:d:l:m:c:n:o:thV", options, NULL)) != -1;) {
        if (option == '?')
            return usage("see above", NULL);
        if (!set_option(args, option, optarg))
            return false;
        if (option == 'h' || option == 'V')
            return true;
        if (!strchr(given, option))
            given[strlen(given)] = (char)option; // ten options at most: it stays ended by NUL
    }
    if (optind == argc)
        return usage("the command is missing", NULL);
    const char *name = argv[optind++];
    size_t command = 0;
    while (command < N_COMMANDS && strcmp(commands[command].name, name) != 0)
        command++;
    if (command == N_COMMANDS)
        return usage("unknown command", name);
    size_t known = strspn(given, commands[command].takes);
    if (given[known] != '\0')
        return usage("this command does not take the option", (char[]){'-', given[known], '\0'});
    args->command = commands[command].command;
    return set_operands(args, command, argv + optind, argc - optind);
}
