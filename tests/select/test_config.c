// SPDX-License-Identifier: Apache-2.0
//
// The file that LIEN_CONFIG names: what it takes, what it refuses and in which words, and the order of sources, each of which is told. One thread.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/options.h"

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "test_config: line %d: %s; log:\n%s", __LINE__, #cond, said);          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static char said[16384];
static unsigned lines;
static char path[64];
static struct lieni_options options;

static void hear(const lien_log_line *line, void *arg)
{
    (void)arg;
    size_t len = strlen(said);
    lines++;
    snprintf(said + len, sizeof said - len, "%s\n", line->text);
}

static void write_file(const void *text, size_t len)
{
    FILE *file = fopen(path, "we");
    CHECK(file && fwrite(text, 1, len, file) == len && fclose(file) == 0);
}

// Loads with LIEN_CONFIG at `name`, one more variable and one setting (each may be NULL).
static int load_from(const char *name, const char *variable, const char *setting)
{
    struct lieni_log *log = NULL;
    char config[1200], copy[200] = "";
    const char *settings[] = {setting, NULL};
    snprintf(config, sizeof config, "LIEN_CONFIG=%s", name);
    if (variable)
        snprintf(copy, sizeof copy, "%s", variable);
    char *variables[] = {config, variable ? copy : NULL, NULL};
    said[0] = '\0';
    lines = 0;
    CHECK(lieni_log_open(hear, NULL, LIEN_LOG_WARN, &log) == 0);
    int rc = lieni_options_load(&options, settings, variables, log);
    lieni_log_close(log);
    return rc;
}

static int load(const char *text)
{
    write_file(text, strlen(text));
    return load_from(path, NULL, NULL);
}

// Refused with one line, that begins with the file's name and the line's number and has `why`.
static void refused(const char *text, unsigned line, const char *why)
{
    char begin[100];
    snprintf(begin, sizeof begin, "%s:%u: ", path, line);
    CHECK(load(text) == LIEN_EOPTION);
    CHECK(lines == 1 && strncmp(said, begin, strlen(begin)) == 0 && strstr(said, why));
}

static void taken(void)
{
    CHECK(load("") == 0 && lines == 0);
    CHECK(
        load("# a comment\n\n  \t\r\nconnect_ms=777\n\theartbeat_ms = 500 # beats\r\nguard = on") ==
        0);
    CHECK(options.connect_ms == 777 && options.heartbeat_ms == 500 && options.guard);
    CHECK(load("connect_ms = 100\nconnect_ms = 200\n") == 0 && options.connect_ms == 200);
    CHECK(load("nic = a#b\n") == 0 && strcmp(options.nic, "a#b") == 0); // no blank before it
}

static void mistakes(void)
{
    refused("connect_ms = 1000\n\nheartbeet_ms = 500\n", 3,
            "unknown option 'heartbeet_ms' (value '500'), the nearest known one is 'heartbeat_ms'");
    refused("subnets = 10.0.0.0/8\n", 1, "the nearest known one is 'subnet'");
    refused("connect_ms 1000\n", 1, "'connect_ms 1000' has no '=': write key = value");
    refused(" = 7\n", 1, "has no key");
    refused("connect_ms = soon\n", 1, "connect_ms: 'soon' is not a number (10 to 3600000 ms)");
    refused("#\nconnect_ms = 9\n", 2, "connect_ms: '9' is below the limit, 10 ms");
    refused("guard = perhaps\n", 1, "guard: 'perhaps' is none of 0, 1, no, yes, off, on");
    refused("config = /etc/lien.conf\n", 1, "cannot name another file");
    static const char nul[] = "connect_ms = 1\0000\n";
    write_file(nul, sizeof nul - 1);
    CHECK(load_from(path, NULL, NULL) == LIEN_EOPTION && strstr(said, "has a NUL byte"));
    // All of them at once, each with its line.
    CHECK(load("a = 1\nconnect_ms = 1000\nb\nguard = 2\n") == LIEN_EOPTION && lines == 3);
    CHECK(strstr(said, ":1: ") && strstr(said, ":3: ") && strstr(said, ":4: "));
}

static void no_file(void)
{
    CHECK(load_from("/no/such/file", NULL, NULL) == LIEN_EOPTION);
    CHECK(lines == 1 && strstr(said, "/no/such/file No such file or directory"));
    CHECK(load_from("/tmp", NULL, NULL) == LIEN_EOPTION && strstr(said, "is no regular file"));
    CHECK(load_from("/dev/zero", NULL, NULL) == LIEN_EOPTION && strstr(said, "is no regular file"));
    CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0); // is not waited for
    CHECK(load_from(path, NULL, NULL) == LIEN_EOPTION && strstr(said, "is no regular file"));
    CHECK(unlink(path) == 0);
    size_t big = ((size_t)1 << 20) + 1;
    char *blanks = malloc(big);
    CHECK(blanks);
    memset(blanks, '\n', big);
    write_file(blanks, big - 1);
    CHECK(load_from(path, NULL, NULL) == 0);
    write_file(blanks, big);
    CHECK(load_from(path, NULL, NULL) == LIEN_EOPTION);
    CHECK(strstr(said, "has more than 1048576 bytes"));
    free(blanks);
}

struct told {
    const char *key, *value, *file;
    lien_origin origin;
    unsigned line;
    bool met;
};

static void compare(const lien_option_info *o, void *arg)
{
    struct told *want = arg;
    if (strcmp(o->key, want->key) != 0)
        return;
    want->met = strcmp(o->value, want->value) == 0 && o->origin == want->origin &&
                o->line == want->line &&
                (want->file ? o->file && strcmp(o->file, want->file) == 0 : !o->file);
}

static bool tells(const char *key, const char *value, lien_origin origin, unsigned line)
{
    struct told want = {.key = key,
                        .value = value,
                        .file = origin == LIEN_ORIGIN_FILE ? path : NULL,
                        .origin = origin,
                        .line = line};
    lieni_options_tell(&options, compare, &want);
    return want.met;
}

// Default, file, environment, setting: the later wins, and says where it is from.
static void origins(void)
{
    static const char text[] = "\nconnect_ms = 1001\nheartbeat_ms = 1002\ndead_ms = 5003\n";
    write_file(text, sizeof text - 1);
    CHECK(load_from(path, "LIEN_HEARTBEAT_MS=2002", NULL) == 0);
    CHECK(tells("connect_ms", "1001", LIEN_ORIGIN_FILE, 2));
    CHECK(tells("heartbeat_ms", "2002", LIEN_ORIGIN_ENVIRONMENT, 0));
    CHECK(tells("dead_ms", "5003", LIEN_ORIGIN_FILE, 4));
    CHECK(tells("config", path, LIEN_ORIGIN_ENVIRONMENT, 0));
    CHECK(tells("drain_ms", "200", LIEN_ORIGIN_DEFAULT, 0));
    CHECK(tells("nic", "", LIEN_ORIGIN_DEFAULT, 0));
    CHECK(load_from(path, "LIEN_HEARTBEAT_MS=2002", "heartbeat_ms=3002") == 0);
    CHECK(tells("heartbeat_ms", "3002", LIEN_ORIGIN_SETTING, 0));
    // The file is what a setting names, if one does; the same value twice is still the later's.
    char setting[100];
    snprintf(setting, sizeof setting, "config=%s", path);
    CHECK(load_from("/no/such/file", "LIEN_CONNECT_MS=1001", setting) == 0);
    CHECK(tells("config", path, LIEN_ORIGIN_SETTING, 0));
    CHECK(tells("connect_ms", "1001", LIEN_ORIGIN_ENVIRONMENT, 0));
    CHECK(tells("dead_ms", "5003", LIEN_ORIGIN_FILE, 4));
}

int main(void)
{
    snprintf(path, sizeof path, "/tmp/lien-test-config-XXXXXX");
    int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0);
    taken();
    mistakes();
    no_file();
    origins();
    unlink(path);
    return 0;
}
