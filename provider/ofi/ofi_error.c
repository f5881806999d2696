// SPDX-License-Identifier: Apache-2.0
//
// Errors of libfabric in Lien's words, reports, and close-on-exec marks. Owns nothing; any thread.

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "provider/ofi/ofi.h"

static const struct {
    int error;
    int code;
} codes[] = {
    {FI_EAGAIN, LIEN_EAGAIN},
    {FI_EBUSY, LIEN_EBUSY},
    {FI_ENOMEM, LIEN_ENOMEM},
    {FI_ECANCELED, LIEN_ECANCELED},
    {FI_ECONNREFUSED, LIEN_EREFUSED},
    {FI_ENOTCONN, LIEN_ECLOSED},
    {FI_ECONNRESET, LIEN_ECLOSED},
    {FI_ECONNABORTED, LIEN_ECLOSED},
    {FI_ESHUTDOWN, LIEN_ECLOSED},
    {EPIPE, LIEN_ECLOSED},
    {FI_ETIMEDOUT, LIEN_EPEERLOST},
    {FI_EHOSTUNREACH, LIEN_EPEERLOST},
    {FI_EHOSTDOWN, LIEN_EPEERLOST},
    {FI_ENETUNREACH, LIEN_EPEERLOST},
    {FI_EADDRINUSE, LIEN_EADDR},
    {FI_EADDRNOTAVAIL, LIEN_EADDR},
    {FI_ENODEV, LIEN_ENODEV},
    {FI_ENETDOWN, LIEN_ENODEV},
    {FI_EMSGSIZE, LIEN_EMSGSIZE},
    {FI_ETOOSMALL, LIEN_EMSGSIZE},
    {FI_ETRUNC, LIEN_EMSGSIZE},
    {FI_ENOSYS, LIEN_ENOTSUP},
    {FI_EOPNOTSUPP, LIEN_ENOTSUP},
    {FI_EMFILE, LIEN_ESYS},
    {ENFILE, LIEN_ESYS},
    {FI_EINVAL, LIEN_EINVAL},
};

int lieni_ofi_code(int error)
{
    if (error == 0)
        return 0;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (error == codes[i].error || error == -codes[i].error)
            return codes[i].code;
    return LIEN_EIO;
}

void lieni_ofi_say(struct lieni_prov *prov, lien_level level, int code, const char *format, ...)
{
    char text[512];
    int at = snprintf(text, sizeof text, "provider %s: ", prov->ofi->traits->name);
    va_list args;
    va_start(args, format);
    vsnprintf(text + at, sizeof text - (size_t)at, format, args);
    va_end(args);
    pthread_mutex_lock(&prov->say_lock);
    if (!prov->mute)
        prov->report.say(prov->report.self, level, code, text);
    pthread_mutex_unlock(&prov->say_lock);
}

int lieni_ofi_fail(struct lieni_prov *prov, lien_level level, const char *what, int64_t error)
{
    int positive = (int)(error < 0 ? -error : error);
    int code = lieni_ofi_code(positive);
    char hint[LIENI_LIMITS_NOTE];
    lieni_limits_note(positive == FI_EMFILE ? EMFILE : positive, hint, sizeof hint);
    if (hint[0] == '\0')
        lieni_limits_starved(hint, sizeof hint);
    lieni_ofi_say(prov, level, code, "%s: %s (%d)%s", what, fi_strerror(positive), positive, hint);
    return code;
}

static void mark(int fd)
{
    int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && !(flags & FD_CLOEXEC))
        fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
}

void lieni_ofi_cloexec(int fd)
{
    mark(fd);
    // The kernel lists what an epoll descriptor watches as lines "tfd: N ..."; other descriptors have none.
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        int watched;
        if (sscanf(line, "tfd: %d", &watched) == 1)
            mark(watched);
    }
    fclose(file);
}
