// SPDX-License-Identifier: Apache-2.0
//
// Checks of tests that are plain programs, perhaps of several processes: what does not hold is said with file, line and process, and ends the process with 1.

#ifndef LIEN_TESTS_CHECK_H
#define LIEN_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <lien/lien.h>

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d (pid %d): %s\n", __FILE__, __LINE__, (int)getpid(), #x);        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define CHECK_RC(call, expected)                                                                   \
    do {                                                                                           \
        int rc_ = (call);                                                                          \
        if (rc_ != (expected)) {                                                                   \
            fprintf(stderr, "%s:%d (pid %d): %s is %s\n", __FILE__, __LINE__, (int)getpid(),       \
                    #call, lien_errname(rc_));                                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
