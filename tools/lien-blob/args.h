// SPDX-License-Identifier: Apache-2.0
//
// The command line and the environment of lien-blob, as one struct. Pure but for printing; strings point into argv and the environment.

#ifndef BLOB_ARGS_H
#define BLOB_ARGS_H

#include <stdbool.h>
#include <stddef.h>

enum command {
    COMMAND_HELP,
    COMMAND_VERSION,
    COMMAND_SERVE,
    COMMAND_PUT,
    COMMAND_GET,
    COMMAND_LS,
    COMMAND_STAT,
    COMMAND_RM,
    COMMAND_SUM,
};

struct args {
    enum command command;
    const char *dir;     // serve
    const char *listen;  // serve
    size_t memory;       // serve: bytes of buffers
    unsigned clients;    // serve: at once
    const char *address; // of the server: operand, --address, or LIEN_BLOB_ADDRESS
    const char *output;  // get
    const char *as;      // put
    bool tabs;           // put, get, sum: results separated by tabs
    char **operands;     // put, sum: files; get, stat, rm: one name
    int n_operands;
};

// Parses argv. False after a message on stderr: the exit code is 2.
bool args_parse(int argc, char **argv, struct args *args);
void args_help(void);

#endif
