// SPDX-License-Identifier: Apache-2.0
//
// What the system says: versions, limits, RDMA devices as /sys shows them, environment. See gather.h.

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <rdma/fabric.h>

#include <lien/lien.h>

#include "gather.h"

static void put(json_t *object, const char *key, const char *value)
{
    json_t *made = json_string(value);
    json_object_set_new(object, key, made ? made : need(json_string("(not UTF-8)")));
}

json_t *system_versions(void)
{
    json_t *versions = need(json_object());
    struct utsname name;
    char text[400];
    put(versions, "lien", lien_version());
    snprintf(text, sizeof text, "%u.%u (API)", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
    put(versions, "libfabric", text);
    if (uname(&name) == 0) {
        snprintf(text, sizeof text, "%s %s %s", name.sysname, name.release, name.machine);
        put(versions, "kernel", text);
    }
    return versions;
}

// A number, or "unlimited".
static json_t *limit(rlim_t value)
{
    return need(value == RLIM_INFINITY ? json_string("unlimited")
                                       : json_integer((json_int_t)value));
}

json_t *system_limits(void)
{
    json_t *limits = need(json_object());
    struct rlimit r;
    if (getrlimit(RLIMIT_MEMLOCK, &r) == 0)
        json_object_set_new(limits, "memlock", limit(r.rlim_cur));
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        json_object_set_new(limits, "nofile", limit(r.rlim_cur));
        json_object_set_new(limits, "nofile_hard", limit(r.rlim_max));
    }
    json_object_set_new(limits, "processors",
                        need(json_integer((json_int_t)sysconf(_SC_NPROCESSORS_ONLN))));
    return limits;
}

// -- RDMA devices ------------------------------------------------------------------------------------------------------------------

#define CLASS "/sys/class/infiniband"

// First line of a file, "" if there is none.
static void read_line(const char *path, char *line, int size)
{
    FILE *file = fopen(path, "re");
    line[0] = '\0';
    if (!file)
        return;
    if (!fgets(line, size, file))
        line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    fclose(file);
}

static void add_port(json_t *ports, const char *device, const char *port)
{
    static const char *const files[] = {"state", "phys_state", "link_layer", "rate"};
    json_t *entry = need(json_object());
    char path[700], line[128];
    put(entry, "port", port);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, CLASS "/%s/ports/%s/%s", device, port, files[i]);
        read_line(path, line, sizeof line);
        put(entry, files[i], line);
    }
    snprintf(path, sizeof path, CLASS "/%s/ports/%s/gid_attrs/ndevs/0", device, port);
    read_line(path, line, sizeof line);
    put(entry, "interface", line);
    json_array_append_new(ports, entry);
}

static void add_device(json_t *devices, const char *name)
{
    json_t *device = need(json_object()), *ports = need(json_array());
    char path[600], line[128];
    put(device, "name", name);
    snprintf(path, sizeof path, CLASS "/%s/node_guid", name);
    read_line(path, line, sizeof line);
    put(device, "guid", line);
    snprintf(path, sizeof path, CLASS "/%s/device", name);
    // A device that is software hangs on nothing.
    json_object_set_new(device, "soft", need(json_boolean(access(path, F_OK) != 0)));
    snprintf(path, sizeof path, CLASS "/%s/ports", name);
    DIR *dir = opendir(path);
    for (const struct dirent *d; dir && (d = readdir(dir));) {
        if (d->d_name[0] != '.')
            add_port(ports, name, d->d_name);
    }
    if (dir)
        closedir(dir);
    json_object_set_new(device, "ports", ports);
    json_array_append_new(devices, device);
}

json_t *system_devices(void)
{
    json_t *devices = need(json_array());
    DIR *dir = opendir(CLASS);
    for (const struct dirent *d; dir && (d = readdir(dir));) {
        if (d->d_name[0] != '.')
            add_device(devices, d->d_name);
    }
    if (dir)
        closedir(dir);
    return devices;
}

// -- Environment -------------------------------------------------------------------------------------------------------------------

// A report is pasted where others read it.
static bool secret(const char *name, size_t len)
{
    static const char *const words[] = {"KEY", "PSK", "SECRET", "PASSWORD"};
    char copy[128];
    snprintf(copy, sizeof copy, "%.*s", (int)(len < 127 ? len : 127), name);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strstr(copy, words[i]))
            return true;
    }
    return false;
}

json_t *system_environment(void)
{
    json_t *all = need(json_object());
    for (char **v = environ; v && *v; v++) {
        const char *equals = strchr(*v, '=');
        if (!equals || (strncmp(*v, "FI_", 3) != 0 && strncmp(*v, "LIEN_", 5) != 0))
            continue;
        size_t len = (size_t)(equals - *v);
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)(len < 127 ? len : 127), *v);
        put(all, name, secret(*v, len) ? "(set, not shown)" : equals + 1);
    }
    return all;
}
