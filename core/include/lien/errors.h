// SPDX-License-Identifier: Apache-2.0
//
// The one list of errors. It generates the enum, the names, the texts, the scopes and (checked
// by ci/check-man) the manual page lien_errors(3). Functions of Lien return 0 or one of these
// negative codes. Numbers are stable: a code is never renumbered or reused.
//
// The scope tells the caller what an error is confined to, and so what to do next:
//   CALL    this operation only; the connection lives on, the operation may be tried again
//   CONN    the connection; connect again
//   DEVICE  the provider or network interface; choose another
//   BUG     a mistake in the calling program; repeating the call cannot help

#ifndef LIEN_ERRORS_H
#define LIEN_ERRORS_H

#include <lien/export.h>

#ifdef __cplusplus
extern "C" {
#endif

// X(number, NAME, SCOPE, "text")
// clang-format off
#define LIEN_ERRORS(X)                                                                          \
    X(-1, EINVAL, BUG, "invalid argument")                                                      \
    X(-2, ENOMEM, CALL, "out of memory")                                                        \
    X(-3, EAGAIN, CALL, "not possible now, make progress and try again")                        \
    X(-4, EBUSY, CALL, "the memory is in use by a transfer")                                    \
    X(-5, ETIMEDOUT, CALL, "the deadline passed")                                               \
    X(-6, ECANCELED, CALL, "the operation was canceled")                                        \
    X(-7, ESTALE, CALL, "the grant no longer holds")                                            \
    X(-8, EPEERLOST, CONN, "the peer stopped answering")                                        \
    X(-9, ECLOSED, CONN, "the connection was closed")                                           \
    X(-10, EPROTO, CONN, "the peer broke the protocol")                                         \
    X(-11, EQUARANTINED, CONN, "the memory is not yours: its transfer could not be proved over") \
    X(-12, EDEADLK, BUG, "waiting here could never end")                                        \
    X(-13, ERANGE, BUG, "offset or length outside the buffers")                                 \
    X(-14, EOVERLAP, BUG, "destinations overlap")                                               \
    X(-15, EMSGSIZE, CALL, "the message is larger than allowed")                                \
    X(-16, ENOTSUP, DEVICE, "the provider does not support this")                               \
    X(-17, ENOPROVIDER, DEVICE, "no usable provider")                                           \
    X(-18, ENOCOMMON, CONN, "no provider in common")                                            \
    X(-19, EADDR, CONN, "address cannot be used")                                               \
    X(-20, EREFUSED, CONN, "the peer refused the connection")                                   \
    X(-21, ELIMIT, CALL, "a configured limit was reached")                                      \
    X(-22, EIO, CONN, "the provider failed a transfer")                                         \
    X(-23, ENODEV, DEVICE, "the device is gone or not usable")                                  \
    X(-24, EFORK, BUG, "the handle belongs to the parent process")                              \
    X(-25, EOVERLOAD, CALL, "the peer sheds load")                                              \
    X(-26, EOPTION, BUG, "unknown or malformed option")                                         \
    X(-27, ESYS, DEVICE, "a system call failed")                                                \
    X(-28, ENOTFOUND, CALL, "no such object")                                                   \
    X(-29, ESTATE, BUG, "not in this state")                                                    \
    X(-30, EREGISTER, DEVICE, "the provider refused to register memory")                        \
    X(-31, EUNVERIFIED, CALL, "the bytes were read and not verified: they may not leave")       \
    X(-32, EAUTH, CONN, "the peers do not share a pre-shared key")                              \
    X(-33, ECHECKSUM, CALL, "the bytes are not those granted, or lack a checksum")              \
    X(-34, EPARTIAL, BUG, "a checksum is over a whole buffer: its parts cannot be moved")
// clang-format on

typedef enum lien_error {
    LIEN_OK = 0,
#define LIEN_ERROR_ENUM(number, name, scope, text) LIEN_##name = (number),
    LIEN_ERRORS(LIEN_ERROR_ENUM)
#undef LIEN_ERROR_ENUM
} lien_error;

typedef enum lien_scope {
    LIEN_SCOPE_NONE = 0, // success: nothing to do
    LIEN_SCOPE_CALL,
    LIEN_SCOPE_CONN,
    LIEN_SCOPE_DEVICE,
    LIEN_SCOPE_BUG,
} lien_scope;

// The three functions below accept any int, never fail, never block, take no lock and may be
// called from any thread and in a signal handler. Their strings are constants: never free them.

// One line of English for `code`, without a full stop; "success" for 0, "unknown error" for a
// code that is not in the list. Since 0.1.
LIEN_API const char *lien_strerror(int code);

// The constant's name, such as "LIEN_ETIMEDOUT"; "LIEN_OK" for 0, "LIEN_EUNKNOWN" (which is no
// constant) for a code that is not in the list. Since 0.1.
LIEN_API const char *lien_errname(int code);

// What `code` is confined to; LIEN_SCOPE_NONE for 0, LIEN_SCOPE_BUG for a code that is not in
// the list, since Lien never returns one. Since 0.1.
LIEN_API lien_scope lien_errscope(int code);

#ifdef __cplusplus
}
#endif

#endif
