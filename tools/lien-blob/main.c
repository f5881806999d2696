// SPDX-License-Identifier: Apache-2.0
//
// lien-blob: a small object store over Lien, and the example to read first. Begin with proto.h (what is said). The server: server.h (who does what), session.c (a handler, and the thread behind it),
// transfer.c (read spaces, write spaces, done and released), methods.c. The client: call.c (calls), pieces.c (a window of them), then put.c, get.c and sum.c.

#include <stdio.h>

#include <lien/lien.h>

#include "args.h"
#include "client.h"
#include "server.h"
#include "signals.h"

int main(int argc, char **argv)
{
    struct args args;
    if (!args_parse(argc, argv, &args))
        return error_exit_code(BLOB_USAGE);
    switch (args.command) {
    case COMMAND_HELP:
        args_help();
        return 0;
    case COMMAND_VERSION:
        printf("lien-blob %s\n", lien_version());
        return 0;
    case COMMAND_SERVE:
        signals_block();
        return serve(&args);
    case COMMAND_PUT:
    case COMMAND_GET:
    case COMMAND_LS:
    case COMMAND_STAT:
    case COMMAND_RM:
    case COMMAND_SUM:
        signals_block();
        return client_run(&args);
    }
    return error_exit_code(BLOB_USAGE);
}
