// SPDX-License-Identifier: Apache-2.0
//
// Name, text and scope of each error, generated from the one list in lien/errors.h. Owns no
// state and takes no lock. A number listed twice does not compile (duplicate case).

#include <lien/errors.h>

const char *lien_strerror(int code)
{
    switch ((lien_error)code) {
    case LIEN_OK:
        return "success";
#define ERROR_TEXT(number, name, scope, text)                                                      \
    case LIEN_##name:                                                                              \
        return text;
        LIEN_ERRORS(ERROR_TEXT)
#undef ERROR_TEXT
    }
    return "unknown error";
}

const char *lien_errname(int code)
{
    switch ((lien_error)code) {
    case LIEN_OK:
        return "LIEN_OK";
#define ERROR_NAME(number, name, scope, text)                                                      \
    case LIEN_##name:                                                                              \
        return "LIEN_" #name;
        LIEN_ERRORS(ERROR_NAME)
#undef ERROR_NAME
    }
    return "LIEN_EUNKNOWN";
}

lien_scope lien_errscope(int code)
{
    switch ((lien_error)code) {
    case LIEN_OK:
        return LIEN_SCOPE_NONE;
#define ERROR_SCOPE(number, name, scope, text)                                                     \
    case LIEN_##name:                                                                              \
        return LIEN_SCOPE_##scope;
        LIEN_ERRORS(ERROR_SCOPE)
#undef ERROR_SCOPE
    }
    return LIEN_SCOPE_BUG;
}
