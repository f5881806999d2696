// SPDX-License-Identifier: Apache-2.0
//
// The error list: numbers and scopes are a promise, so they are written out here a second time;
// names and texts exist and are distinct; what is not in the list is answered sensibly.

#include <criterion/criterion.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>

#include <lien/errors.h>

struct entry {
    int code;
    const char *name;
    lien_scope scope;
};

// What programs compiled against 0.1 rely on. Lines are added, never changed.
static const struct entry promised[] = {
    {-1, "LIEN_EINVAL", LIEN_SCOPE_BUG},          {-2, "LIEN_ENOMEM", LIEN_SCOPE_CALL},
    {-3, "LIEN_EAGAIN", LIEN_SCOPE_CALL},         {-4, "LIEN_EBUSY", LIEN_SCOPE_CALL},
    {-5, "LIEN_ETIMEDOUT", LIEN_SCOPE_CALL},      {-6, "LIEN_ECANCELED", LIEN_SCOPE_CALL},
    {-7, "LIEN_ESTALE", LIEN_SCOPE_CALL},         {-8, "LIEN_EPEERLOST", LIEN_SCOPE_CONN},
    {-9, "LIEN_ECLOSED", LIEN_SCOPE_CONN},        {-10, "LIEN_EPROTO", LIEN_SCOPE_CONN},
    {-11, "LIEN_EQUARANTINED", LIEN_SCOPE_CONN},  {-12, "LIEN_EDEADLK", LIEN_SCOPE_BUG},
    {-13, "LIEN_ERANGE", LIEN_SCOPE_BUG},         {-14, "LIEN_EOVERLAP", LIEN_SCOPE_BUG},
    {-15, "LIEN_EMSGSIZE", LIEN_SCOPE_CALL},      {-16, "LIEN_ENOTSUP", LIEN_SCOPE_DEVICE},
    {-17, "LIEN_ENOPROVIDER", LIEN_SCOPE_DEVICE}, {-18, "LIEN_ENOCOMMON", LIEN_SCOPE_CONN},
    {-19, "LIEN_EADDR", LIEN_SCOPE_CONN},         {-20, "LIEN_EREFUSED", LIEN_SCOPE_CONN},
    {-21, "LIEN_ELIMIT", LIEN_SCOPE_CALL},        {-22, "LIEN_EIO", LIEN_SCOPE_CONN},
    {-23, "LIEN_ENODEV", LIEN_SCOPE_DEVICE},      {-24, "LIEN_EFORK", LIEN_SCOPE_BUG},
    {-25, "LIEN_EOVERLOAD", LIEN_SCOPE_CALL},     {-26, "LIEN_EOPTION", LIEN_SCOPE_BUG},
    {-27, "LIEN_ESYS", LIEN_SCOPE_DEVICE},        {-28, "LIEN_ENOTFOUND", LIEN_SCOPE_CALL},
    {-29, "LIEN_ESTATE", LIEN_SCOPE_BUG},         {-30, "LIEN_EREGISTER", LIEN_SCOPE_DEVICE},
    {-31, "LIEN_EUNVERIFIED", LIEN_SCOPE_CALL},   {-32, "LIEN_EAUTH", LIEN_SCOPE_CONN},
    {-33, "LIEN_ECHECKSUM", LIEN_SCOPE_CALL},     {-34, "LIEN_EPARTIAL", LIEN_SCOPE_BUG},
};
static const size_t promised_count = sizeof promised / sizeof promised[0];

static const int listed[] = {
#define CODE(number, name, scope, text) LIEN_##name,
    LIEN_ERRORS(CODE)
#undef CODE
};
static const size_t listed_count = sizeof listed / sizeof listed[0];

Test(error, numbers_names_and_scopes_are_as_promised)
{
    cr_assert_eq(listed_count, promised_count, "list and promise differ in length");
    for (size_t i = 0; i < promised_count; i++) {
        int code = promised[i].code;
        cr_assert_eq(listed[i], code);
        cr_assert(strcmp(lien_errname(code), promised[i].name) == 0, "code %d", code);
        cr_assert_eq((int)lien_errscope(code), (int)promised[i].scope, "code %d", code);
    }
}

Test(error, every_code_has_a_distinct_text)
{
    for (size_t i = 0; i < listed_count; i++) {
        const char *text = lien_strerror(listed[i]);
        cr_assert(strlen(text) > 0, "code %d has no text", listed[i]);
        cr_assert(text[strlen(text) - 1] != '.', "code %d: text ends in a full stop", listed[i]);
        cr_assert(strcmp(text, lien_strerror(1)) != 0, "code %d is unknown", listed[i]);
        for (size_t j = 0; j < i; j++) {
            cr_assert(strcmp(text, lien_strerror(listed[j])) != 0, "codes %d and %d share a text",
                      listed[i], listed[j]);
        }
    }
}

Test(error, zero_is_success)
{
    cr_assert(strcmp(lien_strerror(0), "success") == 0);
    cr_assert(strcmp(lien_errname(LIEN_OK), "LIEN_OK") == 0);
    cr_assert_eq((int)lien_errscope(0), (int)LIEN_SCOPE_NONE);
}

Test(error, codes_outside_the_list_are_unknown)
{
    const int outside[] = {1, 22, 110, -(int)promised_count - 1, -1000, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        cr_assert(strcmp(lien_strerror(outside[i]), "unknown error") == 0, "%d", outside[i]);
        cr_assert(strcmp(lien_errname(outside[i]), "LIEN_EUNKNOWN") == 0, "%d", outside[i]);
        cr_assert_eq((int)lien_errscope(outside[i]), (int)LIEN_SCOPE_BUG, "%d", outside[i]);
    }
}
