// SPDX-License-Identifier: Apache-2.0
//
// Options: defaults, sources and their order, what each kind of value takes, what is refused and how
// the log says it, FI_PROVIDER.

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/options.h"

static struct {
    unsigned n;
    char all[8192];
} said;

static void hear(const lien_log_line *line, void *arg)
{
    (void)arg;
    cr_assert_eq(line->level, LIEN_LOG_ERROR);
    cr_assert_eq(line->code, LIEN_EOPTION);
    said.n++;
    size_t len = strlen(said.all);
    snprintf(said.all + len, sizeof said.all - len, "%s\n", line->text);
}

static struct lieni_options options;

// Loads with one setting and one variable (each may be NULL); `said` has the log afterwards.
static int load(const char *setting, const char *variable)
{
    struct lieni_log *log = NULL;
    char copy[8192] = "";
    const char *settings[] = {setting, NULL};
    char *variables[] = {NULL, NULL};
    if (variable) {
        snprintf(copy, sizeof copy, "%s", variable);
        variables[0] = copy;
    }
    memset(&said, 0, sizeof said);
    cr_assert_eq(lieni_log_open(hear, NULL, LIEN_LOG_WARN, &log), 0);
    int status = lieni_options_load(&options, settings, variables, log);
    lieni_log_close(log);
    cr_assert_eq(status == 0, said.n == 0, "status and log disagree: %s", said.all);
    return status;
}

static void accept(const char *setting)
{
    cr_assert_eq(load(setting, NULL), 0, "%s refused: %s", setting, said.all);
}

// Refused, once, in words that include all of `parts`.
static void refused(const char *setting, const char *variable, char *const *parts)
{
    struct lieni_options before;
    memset(&options, 0x5a, sizeof options);
    memcpy(&before, &options, sizeof options);
    cr_assert_eq(load(setting, variable), LIEN_EOPTION, "%s %s taken", setting ? setting : "",
                 variable ? variable : "");
    cr_assert_eq(said.n, 1, "%s", said.all);
    cr_assert_eq(memcmp(&before, &options, sizeof options), 0, "written on error");
    for (; *parts; parts++) {
        cr_assert_not_null(strstr(said.all, *parts), "'%s' is not in: %s", *parts, said.all);
    }
}

Test(options, defaults)
{
    cr_assert_eq(load(NULL, NULL), 0);
    cr_assert_str_eq(options.provider, "");
    cr_assert_eq(options.log_level, LIEN_LOG_WARN);
    cr_assert_eq(options.dispatch_threads, 1);
    cr_assert_eq(options.heartbeat_ms, 1000);
    cr_assert_eq(options.read_piece, 1u << 20);
    cr_assert_eq(options.message_max, UINT64_C(4) << 30);
    cr_assert_eq(options.held_total_bytes, UINT64_C(64) << 30);
    cr_assert_eq(options.fabric_port_lo, 0);
    cr_assert_eq(options.fabric_port_hi, 0);
}

Test(options, settings_win_over_the_environment)
{
    cr_assert_eq(load(NULL, "LIEN_CONNECT_MS=70"), 0);
    cr_assert_eq(options.connect_ms, 70);
    cr_assert_eq(load("connect_ms=80", "LIEN_CONNECT_MS=70"), 0);
    cr_assert_eq(options.connect_ms, 80);
    const char *twice[] = {"connect_ms=80", "connect_ms=90", NULL};
    char *none[] = {NULL};
    struct lieni_log *log = NULL;
    cr_assert_eq(lieni_log_open(hear, NULL, LIEN_LOG_WARN, &log), 0);
    cr_assert_eq(lieni_options_load(&options, twice, none, log), 0);
    cr_assert_eq(options.connect_ms, 90);
    setenv("LIEN_DRAIN_MS", "33", 1);
    cr_assert_eq(lieni_options_load(&options, NULL, NULL, log), 0);
    cr_assert_eq(options.drain_ms, 33, "the process's environment was not read");
    lieni_log_close(log);
}

Test(options, numbers)
{
    accept("read_piece=4096");
    accept("read_piece=2m");
    cr_assert_eq(options.read_piece, 2u << 20);
    accept("read_piece=8K");
    cr_assert_eq(options.read_piece, 8192);
    accept("read_piece=1G");
    cr_assert_eq(options.read_piece, 1u << 30);
    accept("message_max=0");
    accept("dispatch_threads=64");
    char *limits[] = {"option read_piece", "1073741824 bytes", "above", NULL};
    refused("read_piece=1073741825", NULL, limits);
    refused("read_piece=2G", NULL, limits);
    refused("read_piece=18446744073709551616", NULL, limits);
    refused("read_piece=18446744073709551615G", NULL, limits);
    refused("read_piece=99999999999999999999999999999999", NULL, limits);
    refused("read_piece=17179869185G", NULL, limits); // 2^64 and 1 GiB
    refused("read_piece=4095", NULL,
            (char *[]){"option read_piece", "'4095'", "below", "4096 bytes", NULL});
    refused(NULL, "LIEN_CONNECT_MS=9", (char *[]){"LIEN_CONNECT_MS", "'9'", "10 ms", NULL});
    const char *bad[] = {"",  "-1",  "+5000", " 5000", "5000 ", "0x5000", "1e6",
                         "K", "5KB", "5T",    "1.5M",  "5KK",   "5000\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char setting[64];
        snprintf(setting, sizeof setting, "read_piece=%s", bad[i]);
        refused(setting, NULL, (char *[]){"option read_piece", "not a number", "4096", NULL});
    }
    // Suffixes are for sizes.
    refused("connect_ms=1K", NULL, (char *[]){"option connect_ms", "'1K'", "3600000 ms", NULL});
}

Test(options, levels_and_texts)
{
    accept("log_level=DEBUG");
    cr_assert_eq(options.log_level, LIEN_LOG_DEBUG);
    accept("log_level=error");
    cr_assert_eq(options.log_level, LIEN_LOG_ERROR);
    refused("log_level=loud", NULL, (char *[]){"log_level", "'loud'", "error, warn", NULL});
    accept("advertise=host.example");
    cr_assert_str_eq(options.advertise, "host.example");
    accept("advertise=");
    char longest[300] = "provider=";
    memset(longest + 9, 'p', 63);
    accept(longest);
    cr_assert_eq(strlen(options.provider), 63);
    longest[9 + 63] = 'p';
    refused(longest, NULL, (char *[]){"option provider", "64 bytes", "63", NULL});
    refused("advertise=a b", NULL, (char *[]){"option advertise", "blank", NULL});
    refused("advertise=a\033[0m", NULL, (char *[]){"option advertise", "\\x1b", NULL});
}

Test(options, ports)
{
    accept("fabric_ports=4000-4010");
    cr_assert_eq(options.fabric_port_lo, 4000);
    cr_assert_eq(options.fabric_port_hi, 4010);
    accept("fabric_ports=1-65535");
    accept("fabric_ports=7-7");
    const char *bad[] = {"0-5",  "5-4",   "1-65536", "4000",       "4000-",
                         "-400", "1-2-3", "a-b",     "4000-4010x", "1K-2K"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char setting[64];
        snprintf(setting, sizeof setting, "fabric_ports=%s", bad[i]);
        refused(setting, NULL, (char *[]){"fabric_ports", "65535", NULL});
        cr_assert_not_null(strstr(said.all, bad[i]));
    }
}

Test(options, unknown_names_get_the_nearest)
{
    refused("conect_ms=1", NULL, (char *[]){"'conect_ms'", "'1'", "'connect_ms'", NULL});
    refused("CONNECT_MS=50", NULL, (char *[]){"'CONNECT_MS'", "'connect_ms'", NULL});
    refused("hearbteat_ms=1", NULL, (char *[]){"'heartbeat_ms'", NULL});
    refused("grant_conn=1", NULL, (char *[]){"'grants_conn'", NULL});
    refused("=1", NULL, (char *[]){"unknown option ''", NULL});
    refused("connect_ms", NULL, (char *[]){"option connect_ms", "key=value", NULL});
    refused(NULL, "LIEN_PROVIDR=tcp",
            (char *[]){"LIEN_PROVIDR", "'tcp'", "nearest known one is LIEN_PROVIDER", NULL});
    refused(NULL, "LIEN_LOGLEVEL=warn", (char *[]){"LIEN_LOG_LEVEL", NULL});
    refused(NULL, "LIEN_=", (char *[]){"LIEN_", NULL});
    refused(NULL, "LIEN_connect_ms=50", (char *[]){"LIEN_CONNECT_MS", NULL});
    char longest[6000] = "";
    memset(longest, 'x', sizeof longest - 1);
    refused(longest, NULL, (char *[]){"unknown option", NULL});
    memcpy(longest, "LIEN_", 5);
    longest[5000] = '=';
    refused(NULL, longest, (char *[]){"unknown environment variable LIEN_xxx", NULL});
}

Test(options, reserved_prefixes_and_strangers_are_left_alone)
{
    const char *fine[] = {"LIEN_GRPC=1",   "LIEN_GRPC_X=1", "LIEN_TIRPC_A=", "LIEN_PROTOBUF_C_B=q",
                          "LIEN_TEST_X=1", "LIEN_BLOB_X=1", "LIEN_PERF=2",   "LIENS=1",
                          "XLIEN_FOO=1",   "lien_foo=1",    "LIEN_NOEQUALS"};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        cr_assert_eq(load(NULL, fine[i]), 0, "%s: %s", fine[i], said.all);
    }
    refused(NULL, "LIEN_GRP=1", (char *[]){"LIEN_GRP ", NULL});
}

Test(options, every_mistake_is_told)
{
    const char *settings[] = {"read_piece=1", "nonsense=2", NULL};
    char variable[] = "LIEN_DEAD_MS=1";
    char *variables[] = {variable, NULL};
    struct lieni_log *log = NULL;
    cr_assert_eq(lieni_log_open(hear, NULL, LIEN_LOG_WARN, &log), 0);
    cr_assert_eq(lieni_options_load(&options, settings, variables, log), LIEN_EOPTION);
    lieni_log_close(log);
    cr_assert_eq(said.n, 3, "%s", said.all);
}

Test(options, fi_provider_lists)
{
    cr_assert(lieni_fi_provider_allows(NULL, "tcp"));
    cr_assert(lieni_fi_provider_allows("", "tcp"));
    cr_assert(lieni_fi_provider_allows("tcp", "tcp"));
    cr_assert(lieni_fi_provider_allows("TCP", "tcp"));
    cr_assert(!lieni_fi_provider_allows("tcp", "verbs"));
    cr_assert(!lieni_fi_provider_allows("tcpx", "tcp"));
    cr_assert(!lieni_fi_provider_allows("tc", "tcp"));
    cr_assert(lieni_fi_provider_allows("tcp,verbs", "verbs"));
    cr_assert(lieni_fi_provider_allows("tcp,verbs", "tcp"));
    cr_assert(!lieni_fi_provider_allows("tcp,verbs", "sockets"));
    cr_assert(!lieni_fi_provider_allows("^sockets", "sockets"));
    cr_assert(lieni_fi_provider_allows("^sockets", "tcp"));
    cr_assert(!lieni_fi_provider_allows("^sockets,tcp", "tcp"));
    cr_assert(lieni_fi_provider_allows("^sockets,tcp", "verbs"));
    cr_assert(lieni_fi_provider_allows("^", "tcp"));
    cr_assert(lieni_fi_provider_allows(",,tcp,", "tcp"));
    cr_assert(!lieni_fi_provider_allows(",,tcp,", "verbs"));
    cr_assert(lieni_fi_provider_allows("tcp", "sim"), "not libfabric's");
}

Test(options, fi_provider_and_provider_must_agree)
{
    cr_assert_eq(load("provider=tcp", "FI_PROVIDER=tcp"), 0);
    cr_assert_eq(load("provider=tcp", "FI_PROVIDER=^sockets"), 0);
    cr_assert_eq(load("provider=sim", "FI_PROVIDER=tcp"), 0);
    cr_assert_eq(load(NULL, "FI_PROVIDER=sockets"), 0);
    refused("provider=verbs", "FI_PROVIDER=tcp", (char *[]){"'verbs'", "FI_PROVIDER='tcp'", NULL});
    refused("provider=tcp", "FI_PROVIDER=^tcp", (char *[]){"'tcp'", "FI_PROVIDER='^tcp'", NULL});
    char lien[] = "LIEN_PROVIDER=tcp", fi[] = "FI_PROVIDER=verbs";
    char *both[] = {lien, fi, NULL};
    struct lieni_log *log = NULL;
    cr_assert_eq(lieni_log_open(hear, NULL, LIEN_LOG_WARN, &log), 0);
    cr_assert_eq(lieni_options_load(&options, NULL, both, log), LIEN_EOPTION);
    lieni_log_close(log);
}
