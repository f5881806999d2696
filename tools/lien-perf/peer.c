// SPDX-License-Identifier: Apache-2.0
//
// See peer.h. The command line of the new process is `lien-perf --peer NAME`.

#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void become(const struct side *side, int in, int out)
{
    char self[] = "lien-perf", flag[] = "--peer", name[32];
    snprintf(name, sizeof name, "%s", side->name);
    char *argv[] = {self, flag, name, NULL};
    if (dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0)
        execv("/proc/self/exe", argv);
    perror("lien-perf: starting the peer");
    _exit(1);
}

// The line it says first.
static int read_address(int fd, char *text, size_t size)
{
    size_t len = 0;
    while (len + 1 < size) {
        ssize_t got = read(fd, text + len, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        if (text[len] == '\n') {
            text[len] = '\0';
            return 0;
        }
        len++;
    }
    return -1;
}

int peer_start(const struct side *side, struct peer *peer)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0)
        goto no_pipe;
    if (pipe2(out, O_CLOEXEC) != 0) {
        close(in[0]);
        close(in[1]);
        goto no_pipe;
    }
    peer->pid = fork();
    if (peer->pid == 0)
        become(side, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    peer->in = in[1];
    int status = peer->pid > 0 ? read_address(out[0], peer->address, sizeof peer->address) : -1;
    close(out[0]);
    if (status == 0)
        return 0;
    fprintf(stderr, "lien-perf: the peer of %s did not start\n", side->name);
    if (peer->pid > 0)
        peer_stop(peer);
    else
        close(peer->in);
    return -1;
no_pipe:
    perror("lien-perf: pipe");
    return -1;
}

int peer_stop(struct peer *peer)
{
    int status = 0;
    close(peer->in);
    while (waitpid(peer->pid, &status, 0) < 0) {
        if (errno != EINTR)
            return -1;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

int peer_main(const char *name)
{
    signal(SIGINT, SIG_IGN); // the parent's end is ours
    for (const struct side *const *side = sides; *side; side++) {
        if (strcmp((*side)->name, name) == 0)
            return (*side)->serve(*side, STDIN_FILENO, STDOUT_FILENO) == 0 ? 0 : 1;
    }
    fprintf(stderr, "lien-perf: no side %s\n", name);
    return 2;
}

double peer_cpu(const struct peer *peer)
{
    clockid_t clock;
    struct timespec used = {0};
    if (clock_getcpuclockid(peer->pid, &clock) == 0)
        clock_gettime(clock, &used);
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}
