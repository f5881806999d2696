// SPDX-License-Identifier: Apache-2.0
//
// What UCX does to the process it is loaded into: no signal disposition changes, neither malloc nor mmap is patched, nothing is printed, a connection takes no more descriptors than are reckoned with and gives them back, and a child of fork can exit.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/ucx/pair.h"

#define CODE 16u

static struct side owner, reader;

static void mine(int signal)
{
    (void)signal;
}

// The first bytes of what UCX's memory hooks would patch.
static void codes(unsigned char to[4][CODE])
{
    void *(*const map)(void *, size_t, int, int, int, off_t) = mmap;
    int (*const unmap)(void *, size_t) = munmap;
    void *(*const allocate)(size_t) = malloc;
    void (*const release)(void *) = free;
    const void *at;
    memcpy(&at, &map, sizeof at);
    memcpy(to[0], at, CODE);
    memcpy(&at, &unmap, sizeof at);
    memcpy(to[1], at, CODE);
    memcpy(&at, &allocate, sizeof at);
    memcpy(to[2], at, CODE);
    memcpy(&at, &release, sizeof at);
    memcpy(to[3], at, CODE);
}

static unsigned descriptors(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static rlim_t first_free(void)
{
    int fd = open("/", O_PATH | O_CLOEXEC);
    CHECK(fd >= 0);
    close(fd);
    return (rlim_t)fd;
}

static void connection(void)
{
    side_open(&owner);
    side_open(&reader);
    unsigned before = descriptors();
    pair_up(&owner, &reader);
    CHECK(descriptors() - before <= 2 * LIENI_CONN_DESCRIPTORS);
    side_close(&owner, LIENI_PROVEN);
    UNTIL(&reader, NULL, reader.down == 1);
    side_close(&reader, LIENI_PROVEN);
}

// With each number of descriptors left there is a connection, or an error that says what is missing.
static void starved(void)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    const rlim_t all = limit.rlim_cur;
    bool short_once = false, up_once = false;
    for (unsigned left = 0; !up_once && left < 60; left++) {
        side_open(&owner);
        side_open(&reader);
        side_listen(&owner, NULL, 0);
        limit.rlim_cur = first_free() + left;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        int rc = side_try_connect(&reader, owner.port);
        CHECK(rc == 0 || rc == LIEN_ESYS);
        for (unsigned i = 0; rc == 0 && i < 200 && !owner.failed && !reader.failed && !up_once;
             i++) {
            turn(&owner, &reader);
            up_once = owner.up && reader.up;
        }
        short_once = short_once || !up_once;
        owner.peer = &reader;
        limit.rlim_cur = all;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        side_close(&owner, LIENI_PROVEN);
        side_close(&reader, LIENI_PROVEN);
    }
    CHECK(short_once && up_once);
}

int main(void)
{
    struct sigaction before[65], now;
    unsigned char was[4][CODE], is[4][CODE];
    bool known[65] = {false};
    struct stat out;
    const struct sigaction action = {.sa_handler = mine};
    CHECK(sigaction(SIGHUP, &action, NULL) == 0 && sigaction(SIGFPE, &action, NULL) == 0);
    for (int i = 1; i <= 64; i++)
        known[i] = sigaction(i, NULL, &before[i]) == 0;
    codes(was);
    // Standard output is a file from now on, which stays empty.
    int file = memfd_create("out", MFD_CLOEXEC),
        terminal = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    CHECK(file >= 0 && dup2(file, STDOUT_FILENO) == STDOUT_FILENO);
    connection();
    unsigned open = descriptors();
    for (unsigned i = 0; i < 5; i++)
        connection();
    CHECK(descriptors() == open);
    fflush(stdout);
    CHECK(fstat(file, &out) == 0 && out.st_size == 0);
    CHECK(dup2(terminal, STDOUT_FILENO) == STDOUT_FILENO);
    for (int i = 1; i <= 64; i++)
        if (known[i])
            CHECK(sigaction(i, NULL, &now) == 0 && now.sa_handler == before[i].sa_handler &&
                  now.sa_flags == before[i].sa_flags);
    codes(is);
    CHECK(memcmp(was, is, sizeof was) == 0);
    starved();
    int status;
    pid_t pid = fork();
    if (pid == 0)
        exit(5); // with UCX's destructors, whose thread is not there
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    return 0;
}
