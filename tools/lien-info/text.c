// SPDX-License-Identifier: Apache-2.0
//
// See text.h.

#include "text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

// A member as text; "" if there is none.
static const char *get(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

static int64_t number(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
}

static bool flag(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

// Values come from the environment and from files: no control character reaches the terminal.
static void print_value(const char *value)
{
    for (; *value; value++) {
        if ((unsigned char)*value < 0x20 || *value == 0x7f)
            printf("\\x%02x", (unsigned char)*value);
        else
            putchar(*value);
    }
}

static void messages(const json_t *all)
{
    size_t i;
    const json_t *m;
    json_array_foreach(json_object_get(all, "messages"), i, m)
    {
        printf(i ? "  %s: " : "\nmessages\n  %s: ", get(m, "level"));
        print_value(get(m, "text"));
        putchar('\n');
    }
}

static void limit(const char *name, const json_t *value)
{
    if (json_is_integer(value))
        printf("  %-20s %" PRId64 "\n", name, (int64_t)json_integer_value(value));
    else
        printf("  %-20s %s\n", name, json_string_value(value) ? json_string_value(value) : "?");
}

static void head(const json_t *all)
{
    const json_t *versions = json_object_get(all, "versions");
    const json_t *limits = json_object_get(all, "limits");
    const json_t *memlock = json_object_get(limits, "memlock");
    printf("versions\n  %-20s %s\n  %-20s %s\n  %-20s %s\n", "lien", get(versions, "lien"),
           "libfabric", get(versions, "libfabric"), "kernel", get(versions, "kernel"));
    puts("\nlimits");
    limit("memory lock (bytes)", memlock);
    if (json_is_integer(memlock) && json_integer_value(memlock) < 64 << 20)
        puts("                       verbs locks what it registers, so this is little for it "
             "(ulimit -l); "
             "tcp and sockets lock nothing");
    limit("descriptors", json_object_get(limits, "nofile"));
    limit("descriptors, hard", json_object_get(limits, "nofile_hard"));
    limit("processors", json_object_get(limits, "processors"));
}

static void devices(const json_t *all)
{
    size_t i, j;
    const json_t *d, *p;
    const json_t *list = json_object_get(all, "devices");
    puts("\nRDMA devices");
    if (json_array_size(list) == 0)
        puts("  none (/sys/class/infiniband has none)");
    json_array_foreach(list, i, d)
    {
        printf("  %s%s\n", get(d, "name"), flag(d, "soft") ? " (software)" : "");
        json_array_foreach(json_object_get(d, "ports"), j, p)
        {
            printf("    port %s: %s, %s, %s, %s, interface %s\n", get(p, "port"), get(p, "state"),
                   get(p, "phys_state"), get(p, "link_layer"), get(p, "rate"), get(p, "interface"));
        }
    }
}

static void providers(const json_t *all)
{
    size_t i;
    const json_t *p;
    puts("\nproviders, in order of preference");
    json_array_foreach(json_object_get(all, "providers"), i, p)
    {
        if (!flag(p, "built")) {
            printf("  %-8s not in this build\n", get(p, "name"));
            continue;
        }
        printf("  %-8s path %s%s\n", get(p, "name"), get(p, "path"),
               flag(p, "only_if_asked") ? "; never chosen by default" : "");
        printf("           memory is released by: %s\n", get(p, "evidence"));
        printf("           limits: one READ %" PRId64 " bytes, outstanding %" PRId64
               " bytes and %" PRId64 " READs a connection\n",
               number(p, "read_piece_max"), number(p, "read_bytes_max"), number(p, "reads_max"));
    }
}

static void candidates(const json_t *all)
{
    size_t i;
    const json_t *c;
    puts("\ncandidates");
    json_array_foreach(json_object_get(all, "candidates"), i, c)
    {
        printf("  %s %-8s",
               flag(c, "chosen")   ? "*"
               : flag(c, "usable") ? "+"
                                   : "-",
               get(c, "provider"));
        if (get(c, "address")[0])
            printf(" %s, %s/%" PRId64 ", %s%s", get(c, "nic"), get(c, "address"),
                   number(c, "prefix"), get(c, "state"), flag(c, "soft") ? ", software" : "");
        if (get(c, "why")[0]) {
            printf(get(c, "address")[0] ? ": " : " ");
            print_value(get(c, "why"));
        }
        putchar('\n');
    }
    puts("  (* would be taken, + could be, - could not)");
}

static void choice(const json_t *all)
{
    const json_t *c = json_object_get(all, "choice");
    puts("\nchoice");
    if (get(c, "provider")[0])
        printf("  for %s: %s over %s, from %s, path %s%s\n", get(c, "peer"), get(c, "provider"),
               get(c, "nic")[0] ? get(c, "nic") : "the route", get(c, "address"), get(c, "path"),
               flag(c, "soft") ? " (software)" : "");
    else if (strcmp(get(c, "status"), "0") != 0)
        printf("  none: %s\n", get(c, "status"));
    else
        puts("  name a peer's address to see what would be taken for it: lien-info HOST");
}

static void environment(const json_t *all)
{
    const char *name;
    json_t *value;
    json_t *list = json_object_get(all, "environment");
    puts("\nenvironment");
    if (json_object_size(list) == 0)
        puts("  no FI_ and no LIEN_ variable");
    json_object_foreach(list, name, value)
    {
        printf("  ");
        print_value(name);
        putchar('=');
        print_value(json_string_value(value));
        putchar('\n');
    }
}

static void one_option(const json_t *o)
{
    printf("  %s = ", get(o, "key"));
    print_value(get(o, "value"));
    if (get(o, "file")[0]) {
        printf("  (");
        print_value(get(o, "file"));
        printf(":%" PRId64 ")\n", number(o, "line"));
    } else if (strcmp(get(o, "origin"), "environment") == 0)
        printf("  (environment, %s)\n", get(o, "variable"));
    else
        printf("  (%s)\n", get(o, "origin"));
}

static void changed_options(const json_t *all)
{
    size_t i, n = 0;
    const json_t *o;
    puts("\noptions that are not at their default (all: lien-info --options)");
    json_array_foreach(json_object_get(all, "options"), i, o)
    {
        if (strcmp(get(o, "origin"), "default") == 0)
            continue;
        one_option(o);
        n++;
    }
    if (n == 0)
        puts("  none");
}

void text_report(const json_t *all)
{
    head(all);
    devices(all);
    providers(all);
    candidates(all);
    choice(all);
    environment(all);
    changed_options(all);
    messages(all);
}

void text_options(const json_t *all)
{
    size_t i;
    const json_t *o;
    json_array_foreach(json_object_get(all, "options"), i, o)
    {
        one_option(o);
        printf("      %s.%s%s", get(o, "text"), get(o, "unit")[0] ? " Unit: " : "", get(o, "unit"));
        if (strcmp(get(o, "type"), "number") == 0)
            printf(", %" PRId64 " to %" PRId64, number(o, "min"), number(o, "max"));
        printf("%s default: %s; variable %s\n", get(o, "unit")[0] ? ";" : "",
               get(o, "default")[0] ? get(o, "default") : "unset", get(o, "variable"));
    }
    messages(all);
}
