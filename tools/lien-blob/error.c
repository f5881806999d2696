// SPDX-License-Identifier: Apache-2.0
//
// Errors as status and text. Owns nothing; any thread.

#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <lien/errors.h>

static void set(struct blob_error *error, enum blob_status status, const char *format, va_list args,
                const char *reason)
{
    if (error->status != BLOB_OK)
        return;
    error->status = status;
    int n = vsnprintf(error->text, sizeof(error->text), format, args);
    size_t used = n < 0 ? 0 : (size_t)n;
    if (reason && used < sizeof(error->text))
        snprintf(error->text + used, sizeof(error->text) - used, ": %s", reason);
}

bool error_set(struct blob_error *error, enum blob_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set(error, status, format, args, NULL);
    va_end(args);
    return false;
}

bool error_set_errno(struct blob_error *error, int code, const char *format, ...)
{
    enum blob_status status = BLOB_FAILED;
    if (code == ENOSPC || code == EDQUOT || code == EFBIG)
        status = BLOB_NO_SPACE;
    else if (code == ENOENT)
        status = BLOB_NOT_FOUND;
    char reason[128];
    va_list args;
    va_start(args, format);
    set(error, status, format, args, strerror_r(code, reason, sizeof(reason)));
    va_end(args);
    return false;
}

bool error_set_lien(struct blob_error *error, int code, const char *format, ...)
{
    lien_scope scope = lien_errscope(code);
    bool gone = scope == LIEN_SCOPE_CONN || scope == LIEN_SCOPE_DEVICE;
    va_list args;
    va_start(args, format);
    set(error, gone ? BLOB_GONE : BLOB_FAILED, format, args, lien_strerror(code));
    va_end(args);
    return false;
}

int error_exit_code(enum blob_status status)
{
    switch (status) {
    case BLOB_OK:
        return 0;
    case BLOB_FAILED:
        return 1;
    case BLOB_USAGE:
        return 2;
    case BLOB_GONE:
        return 3;
    case BLOB_NOT_FOUND:
        return 4;
    case BLOB_NO_SPACE:
        return 5;
    case BLOB_BAD_SUM:
        return 6;
    case BLOB_BAD_NAME:
    case BLOB_BUSY:
        return 7;
    case BLOB_BAD_MESSAGE:
        return 8;
    case BLOB_INTERRUPTED:
        return 130;
    }
    return 1;
}

void error_tame(char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f)
            *text = '?';
    }
}
