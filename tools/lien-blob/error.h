// SPDX-License-Identifier: Apache-2.0
//
// One kind of error for the whole program: a status, which travels between client and server and decides the exit code, and a line of text for a person. Plain values,
// no lock.

#ifndef BLOB_ERROR_H
#define BLOB_ERROR_H

#include <stdbool.h>
#include <stdint.h>

// Bytes of the longest text, without the final NUL.
#define BLOB_TEXT_MAX 400

// Numbers are part of the protocol: never renumber.
enum blob_status {
    BLOB_OK = 0,
    BLOB_FAILED = 1,       // a system call failed, or memory ran out
    BLOB_BAD_NAME = 2,     // the name is not one that the store takes
    BLOB_NOT_FOUND = 3,    // no such object, or no such file
    BLOB_BUSY = 4,         // somebody else is putting this name, or too many clients
    BLOB_NO_SPACE = 5,     // the disk is full, there or here
    BLOB_BAD_SUM = 6,      // what arrived is not what was sent
    BLOB_BAD_MESSAGE = 7,  // the other side broke the protocol
    BLOB_GONE = 8,         // no connection, or it was lost
    BLOB_USAGE = 9,        // never sent: the command line is wrong
    BLOB_INTERRUPTED = 10, // never sent: SIGINT or SIGTERM
};

struct blob_error {
    enum blob_status status;
    char text[BLOB_TEXT_MAX + 1];
};

// Sets status and text. An error that is already there stays: the first one explains the rest. Returns false, so that "return error_set(...)" reads well.
bool error_set(struct blob_error *error, enum blob_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The same for a failed system call: appends strerror(code) and chooses the status from `code` (ENOSPC, EDQUOT, EFBIG: BLOB_NO_SPACE; ENOENT: BLOB_NOT_FOUND; else BLOB_FAILED).
bool error_set_errno(struct blob_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The same for a code of Lien: appends lien_strerror(code); BLOB_GONE when its scope is the connection or the device.
bool error_set_lien(struct blob_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Exit code of the program for a status (docs/man/lien-blob.1.scd, EXIT STATUS).
int error_exit_code(enum blob_status status);

// Replaces control characters by '?', in place: text of a peer must not steer a terminal.
void error_tame(char *text);

#endif
