// SPDX-License-Identifier: Apache-2.0
//
// See config.h.

#include "core/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int refuse(struct lieni_log *log, const char *path, const char *why)
{
    lieni_log_say(log, LIEN_LOG_ERROR, NULL, LIEN_EOPTION, "the file of options %s %s", path, why);
    return LIEN_EOPTION;
}

// All of the file, ended by NUL, into *text, to be freed. Opened without blocking: what is no file (a pipe, a device) is refused, not waited for.
static int read_file(const char *path, struct lieni_log *log, char **text, size_t *len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return refuse(log, path, strerror(errno));
    struct stat st;
    char *all = NULL;
    size_t n = 0;
    int rc = 0;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        rc = refuse(log, path, "is no regular file");
    else if (!(all = malloc(LIENI_CONFIG_MAX + 1)))
        rc = LIEN_ENOMEM;
    while (rc == 0 && n <= LIENI_CONFIG_MAX) {
        ssize_t got = read(fd, all + n, LIENI_CONFIG_MAX + 1 - n);
        if (got == 0)
            break;
        if (got > 0)
            n += (size_t)got;
        else if (errno != EINTR)
            rc = refuse(log, path, strerror(errno));
    }
    close(fd);
    if (rc == 0 && n > LIENI_CONFIG_MAX)
        rc = refuse(log, path, "has more than 1048576 bytes, which is the limit");
    if (rc != 0) {
        free(all);
        return rc;
    }
    all[n] = '\0';
    *text = all;
    *len = n;
    return 0;
}

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static char *trim(char *text)
{
    while (blank(*text))
        text++;
    size_t len = strlen(text);
    while (len > 0 && blank(text[len - 1]))
        text[--len] = '\0';
    return text;
}

static void cut_comment(char *text)
{
    for (char *at = text; *at; at++) {
        if (*at == '#' && (at == text || blank(at[-1]))) {
            *at = '\0';
            return;
        }
    }
}

// `text`, of `len` bytes, is changed.
static bool take_line(char *text, size_t len, const char *path, unsigned line,
                      struct lieni_log *log, lieni_config_line *take, void *arg)
{
    const char *why = NULL;
    if (strlen(text) != len)
        why = "has a NUL byte";
    cut_comment(text);
    char *key = trim(text);
    if (!why && !*key)
        return true;
    char *equals = strchr(key, '=');
    if (!why && !equals)
        why = "has no '=': write key = value";
    if (equals)
        *equals = '\0';
    key = trim(key);
    if (!why && !*key)
        why = "has no key: write key = value";
    if (why) {
        lieni_log_say(log, LIEN_LOG_ERROR, NULL, LIEN_EOPTION, "%s:%u: '%.200s' %s", path, line,
                      key, why);
        return false;
    }
    return take(arg, key, trim(equals + 1), line);
}

int lieni_config_read(const char *path, struct lieni_log *log, lieni_config_line *take, void *arg)
{
    char *text = NULL;
    size_t len = 0;
    int rc = read_file(path, log, &text, &len);
    if (rc != 0)
        return rc;
    char *const end = text + len;
    unsigned line = 1;
    for (char *at = text; at < end; line++) {
        char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop)
            stop = end;
        *stop = '\0';
        if (!take_line(at, (size_t)(stop - at), path, line, log, take, arg))
            rc = LIEN_EOPTION;
        at = stop + 1;
    }
    free(text);
    return rc;
}
