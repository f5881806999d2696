// SPDX-License-Identifier: Apache-2.0
//
// The command line of lien-blob. Each test sets the environment it needs.

#include <criterion/criterion.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/lien-blob/args.h"

// Parses a command line given as words.
static bool parse(struct args *args, char **words)
{
    int n = 0;
    while (words[n])
        n++;
    optind = 0; // starts getopt anew
    return args_parse(n, words, args);
}

#define WORDS(...) ((char *[]){"lien-blob", __VA_ARGS__, NULL})

static void begin(void)
{
    unsetenv("LIEN_BLOB_ADDRESS");
}

TestSuite(args, .init = begin);

Test(args, put)
{
    struct args args;
    cr_assert(parse(&args, WORDS("put", "h:1", "a", "b")));
    cr_assert_eq(args.command, COMMAND_PUT);
    cr_assert_str_eq(args.address, "h:1");
    cr_assert_eq(args.n_operands, 2);
    cr_assert_str_eq(args.operands[1], "b");
    cr_assert_not(parse(&args, WORDS("put", "h:1")));
    cr_assert_not(parse(&args, WORDS("put")));
    cr_assert(parse(&args, WORDS("put", "h:1", "--", "-a")));
    cr_assert_str_eq(args.operands[0], "-a");
    cr_assert(parse(&args, WORDS("put", "--name", "n", "h:1", "a")));
    cr_assert_not(parse(&args, WORDS("put", "--name", "n", "h:1", "a", "b")));
}

Test(args, the_address_comes_from_operand_option_or_environment)
{
    struct args args;
    cr_assert(parse(&args, WORDS("get", "-a", "x:1", "name", "-o", "f")));
    cr_assert_str_eq(args.address, "x:1");
    cr_assert_str_eq(args.operands[0], "name");
    cr_assert_str_eq(args.output, "f");
    setenv("LIEN_BLOB_ADDRESS", "env:1", 1);
    cr_assert(parse(&args, WORDS("get", "name")));
    cr_assert_str_eq(args.address, "env:1");
    cr_assert(parse(&args, WORDS("get", "-a", "x:1", "name")));
    cr_assert_str_eq(args.address, "x:1");
    cr_assert_not(parse(&args, WORDS("get", "h:1", "name")), "one too many");
    setenv("LIEN_BLOB_ADDRESS", "", 1);
    cr_assert(parse(&args, WORDS("ls", "h:1")));
    cr_assert_str_eq(args.address, "h:1");
}

Test(args, serve)
{
    struct args args;
    cr_assert_not(parse(&args, WORDS("serve")));
    cr_assert(parse(&args, WORDS("serve", "--dir", "d")));
    cr_assert_str_eq(args.listen, "127.0.0.1:7471");
    cr_assert_eq(args.memory, 64u << 20);
    cr_assert(parse(&args, WORDS("serve", "-d", "d", "-m", "1G", "-c", "3", "-l", "*:0")));
    cr_assert_eq(args.memory, 1u << 30);
    cr_assert_eq(args.clients, 3u);
    char *bad[] = {"", "x", "1", "-64M", "64MB", "99999999999999999999", "20000000000G", "64 M"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_not(parse(&args, WORDS("serve", "-d", "d", "-m", bad[i])), "'%s'", bad[i]);
    cr_assert_not(parse(&args, WORDS("serve", "-d", "d", "-c", "0")));
}

Test(args, commands_and_options_that_do_not_exist)
{
    struct args args;
    cr_assert_not(parse(&args, (char *[]){"lien-blob", NULL}));
    cr_assert_not(parse(&args, WORDS("putt", "h:1", "a")));
    cr_assert_not(parse(&args, WORDS("put", "--nonsense", "h:1", "a")));
    cr_assert_not(parse(&args, WORDS("ls", "-o", "f", "h:1")));
    cr_assert_not(parse(&args, WORDS("ls", "h:1", "extra")));
    cr_assert(parse(&args, WORDS("--help")));
    cr_assert_eq(args.command, COMMAND_HELP);
    cr_assert(parse(&args, WORDS("--version")));
    cr_assert_eq(args.command, COMMAND_VERSION);
}

Test(args, sum)
{
    struct args args;
    cr_assert(parse(&args, WORDS("sum", "--tabs", "h:1", "a", "b")));
    cr_assert_eq(args.command, COMMAND_SUM);
    cr_assert(args.tabs);
    cr_assert_eq(args.n_operands, 2);
    cr_assert_not(parse(&args, WORDS("sum", "h:1")));
    cr_assert_not(parse(&args, WORDS("sum", "-o", "f", "h:1", "a")));
}
