// SPDX-License-Identifier: Apache-2.0
//
// Sockets passed by a service manager, and listeners on descriptors: what is taken, and what is refused by name.

#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lien/lien.h>

#include "tests/support/check.h"

static char said[512];

static void say(const lien_log_line *line, void *arg)
{
    (void)arg;
    snprintf(said, sizeof(said), "%s", line->text);
}

// A TCP socket of the loopback, bound, as descriptor `as`.
static void socket_at(int as, bool listening)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
    CHECK(!listening || listen(fd, 8) == 0);
    CHECK(fd == as || (dup2(fd, as) == as && close(fd) == 0));
}

static void passed(const char *pid, const char *count, const char *names)
{
    const char *const vars[] = {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"};
    const char *const values[] = {pid, count, names};
    for (unsigned i = 0; i < 3; i++)
        CHECK((values[i] ? setenv(vars[i], values[i], 1) : unsetenv(vars[i])) == 0);
}

static void activation(void)
{
    char self[32];
    int fds[4] = {-1, -1, -1, -1};
    size_t n = 99;
    snprintf(self, sizeof(self), "%d", (int)getpid());
    for (int fd = 3; fd < 6; fd++)
        socket_at(fd, true);
    passed(NULL, NULL, NULL);
    CHECK(lien_activated_fds(NULL, fds, 4, &n) == LIEN_ENOTFOUND);
    passed("1", "3", NULL); // a parent's
    CHECK(lien_activated_fds(NULL, fds, 4, &n) == LIEN_ENOTFOUND);
    CHECK(fcntl(3, F_GETFD) == 0);
    const char *const wrong[] = {"", "-1", "x", "3x", "99999999999999999999", "9"};
    for (unsigned i = 0; i < 6; i++) { // 9: not all of them are open
        passed(self, wrong[i], NULL);
        int rc = lien_activated_fds(NULL, fds, 4, &n);
        CHECK(rc == LIEN_EOPTION || (i == 5 && rc == LIEN_ERANGE));
        passed(wrong[i], "3", NULL);
        rc = lien_activated_fds(NULL, fds, 4, &n);
        CHECK(rc == (i == 5 ? LIEN_ENOTFOUND : LIEN_EOPTION));
    }
    CHECK(n == 99);
    passed(self, "0", NULL);
    CHECK(lien_activated_fds(NULL, fds, 4, &n) == LIEN_ENOTFOUND);
    passed(self, "3", NULL);
    CHECK(lien_activated_fds(NULL, fds, 2, &n) == LIEN_ERANGE);
    CHECK(lien_activated_fds(NULL, fds, 4, &n) == 0);
    CHECK(n == 3 && fds[0] == 3 && fds[1] == 4 && fds[2] == 5);
    CHECK(fcntl(3, F_GETFD) == FD_CLOEXEC);
    CHECK(lien_activated_fds("rpc", fds, 4, &n) ==
          LIEN_ENOTFOUND); // without names there is none of that name
    passed(self, "3", "rpc:http:rpc");
    CHECK(lien_activated_fds("rpc", fds, 4, &n) == 0 && n == 2 && fds[0] == 3 && fds[1] == 5);
    CHECK(lien_activated_fds("http", fds, 4, &n) == 0 && n == 1 && fds[0] == 4);
    CHECK(lien_activated_fds("rp", fds, 4, &n) == LIEN_ENOTFOUND);
    CHECK(lien_activated_fds(NULL, fds, 4, &n) == 0 && n == 3);
}

static void refused(lien_ctx *ctx, int fd, const char *word)
{
    lien_listener *listener = NULL;
    said[0] = 0;
    CHECK(lien_listen_fd(ctx, fd, NULL, &listener) == LIEN_EINVAL);
    CHECK(!listener);
    if (!strstr(said, word)) {
        fprintf(stderr, "descriptor %d: \"%s\" lacks \"%s\"\n", fd, said, word);
        exit(1);
    }
}

static void listeners(void)
{
    static const char *const settings[] = {"provider=tcp", NULL};
    lien_ctx_opts opts;
    lien_ctx *ctx;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    opts.log = say;
    CHECK(lien_ctx_open(&opts, &ctx) == 0);
    int pipes[2], quiet = socket(AF_INET, SOCK_STREAM, 0),
                  datagrams = socket(AF_INET, SOCK_DGRAM, 0);
    int local = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(pipe(pipes) == 0 && quiet >= 0 && datagrams >= 0 && local >= 0);
    refused(ctx, -1, "negative");
    refused(ctx, pipes[0], "Socket operation on non-socket");
    refused(ctx, 9999, "Bad file descriptor");
    refused(ctx, quiet, "does not listen");
    refused(ctx, datagrams, "not a TCP socket");
    refused(ctx, local, "not a TCP socket");
    CHECK(fcntl(quiet, F_GETFD) == 0); // what is refused stays as it was

    // One socket, two listeners on it, one after the other; the second has it from the first.
    lien_listener *first, *second;
    lien_conn *client, *server;
    char address[96], again[96];
    int handed;
    CHECK(lien_listen_fd(ctx, 3, NULL, &first) == 0);
    CHECK(fcntl(3, F_GETFD) == FD_CLOEXEC && (fcntl(3, F_GETFL) & O_NONBLOCK));
    CHECK(lien_listener_address(first, address, sizeof(address)) == 0);
    CHECK(strncmp(address, "127.0.0.1:", 10) == 0);
    CHECK(lien_listener_fd(first, &handed) == 0);
    CHECK(fcntl(handed, F_GETFD) == FD_CLOEXEC);
    CHECK(lien_conn_open_wait(ctx, address, NULL, &client) == 0);
    CHECK(lien_listener_accept_wait(first, 5000, &server) == 0);
    CHECK(lien_conn_close_wait(&client, 5000) == 0 && lien_conn_close_wait(&server, 5000) == 0);
    CHECK(lien_listener_close(&first) == 0);
    CHECK(fcntl(3, F_GETFD) < 0); // it was the listener's
    CHECK(lien_listen_fd(ctx, handed, NULL, &second) == 0);
    CHECK(lien_listener_address(second, again, sizeof(again)) == 0 && strcmp(address, again) == 0);
    CHECK(lien_conn_open_wait(ctx, address, NULL, &client) == 0);
    CHECK(lien_listener_accept_wait(second, 5000, &server) == 0);
    CHECK(lien_ctx_close(&ctx) == 0);
}

int main(void)
{
    activation();
    listeners();
    return 0;
}
