// SPDX-License-Identifier: Apache-2.0
//
// Socket activation: the descriptors that a service manager passes, by systemd's protocol, which is three environment variables and is declared stable for others to read. Owns no state.
//
// Own code and not libsystemd, since that would bring its libraries (compression, cryptography, capabilities) into every process that uses Lien, for this one function.

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/lien.h>

#define FIRST 3 // SD_LISTEN_FDS_START

// A decimal number of 1 .. `most`, or 0.
static unsigned long number(const char *text, unsigned long most)
{
    if (!text || strspn(text, "0123456789") != strlen(text))
        return 0;
    errno = 0;
    unsigned long value = strtoul(text, NULL, 10);
    return errno == 0 && value <= most ? value : 0;
}

// Whether the first name of the list is `name`; *list goes on to the next, or becomes NULL.
static bool next_is(const char **list, const char *name)
{
    const char *at = *list;
    size_t len = at ? strcspn(at, ":") : 0;
    *list = at && at[len] == ':' ? at + len + 1 : NULL;
    return !name || (at && strlen(name) == len && memcmp(at, name, len) == 0);
}

int lien_activated_fds(const char *name, int *fds, size_t max, size_t *n)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    const char *names = getenv("LISTEN_FDNAMES");
    size_t found = 0;
    if (!fds || !n)
        return LIEN_EINVAL;
    if (!pid || !count)
        return LIEN_ENOTFOUND;
    unsigned long whose = number(pid, INT_MAX), all = number(count, INT_MAX - FIRST);
    if (whose == 0 || (all == 0 && strcmp(count, "0") != 0))
        return LIEN_EOPTION;
    if (whose != (unsigned long)getpid())
        return LIEN_ENOTFOUND; // a parent's, left in the environment
    for (int fd = FIRST; fd < FIRST + (int)all; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (flags < 0 || fcntl(fd, F_SETFD, flags | FD_CLOEXEC) != 0)
            return LIEN_EOPTION;
        if (!next_is(&names, name))
            continue;
        if (found == max)
            return LIEN_ERANGE;
        fds[found++] = fd;
    }
    if (found == 0)
        return LIEN_ENOTFOUND;
    *n = found;
    return 0;
}
