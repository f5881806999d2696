// SPDX-License-Identifier: Apache-2.0
//
// Evidence over UCX: a peer that is killed, or stands still, with READs on their way. What UCX calls back with an error, or after the close began, is no entry; the end of the worker is proof over
// tcp, and after it nothing lands, whatever the peer does; with a transport that is not known it is none, and READs that did not succeed have no entry at all.

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/ucx/pair.h"

#define READS 16u
#define PIECE (256u << 10)
#define OLD   0x5a

static const struct lieni_provider *const ucx = &lieni_provider_ucx;
static uint8_t copy[READS * PIECE];
static struct side owner, reader;

// What a process that owns the region tells its reader.
struct shared {
    _Atomic uint64_t key;
    _Atomic unsigned port;
    _Atomic unsigned still; // it makes no progress any more
    _Atomic unsigned stop;  // it shall not
};

static void serve(struct shared *shared)
{
    static uint8_t memory[READS * PIECE];
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    memset(memory, 0xa5, sizeof memory);
    side_open(&owner);
    CHECK_RC(ucx->mr_reg(owner.domain, memory, sizeof memory, LIENI_ACCESS_REMOTE, &mr, &info), 0);
    side_listen(&owner, NULL, 0);
    shared->key = info.key;
    shared->port = owner.port;
    while (!shared->stop)
        turn(&owner, NULL);
    shared->still = 1;
    for (;;)
        pause();
}

static struct shared *share(void)
{
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    return shared;
}

static pid_t start(struct shared *shared)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        serve(shared);
    return pid;
}

static void post_reads(uint64_t key)
{
    memset(copy, OLD, sizeof copy);
    for (unsigned i = 0; i < READS; i++)
        CHECK_RC(ucx->post_read(reader.ep, copy + i * PIECE, PIECE, NULL, i * PIECE, key, i), 0);
}

static bool untouched(void)
{
    for (size_t i = 0; i < sizeof copy; i++)
        if (copy[i] != OLD)
            return false;
    return true;
}

static void killed(void)
{
    struct shared *shared = share();
    int status;
    pid_t pid = start(shared);
    while (!shared->port) {
        CHECK(waitpid(pid, &status, WNOHANG) == 0);
        usleep(1000);
    }
    side_open(&reader);
    side_connect(&reader, (uint16_t)shared->port, NULL, 0);
    UNTIL(&reader, NULL, reader.up == 1);
    CHECK_RC(ucx->post_read(reader.ep, copy, 1, NULL, 0, shared->key, 63), 0);
    UNTIL(&reader, NULL, reader.good == 1);
    shared->stop = 1;
    while (!shared->still)
        usleep(1000);
    post_reads(shared->key);
    for (unsigned i = 0; i < 100; i++)
        turn(&reader, NULL);
    CHECK(reader.entries == 1 && untouched());
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    UNTIL(&reader, NULL, reader.down == 1);
    CHECK(reader.status == LIEN_ECLOSED || reader.status == LIEN_EPEERLOST);
    for (unsigned i = 0; i < 100; i++)
        turn(&reader, NULL);
    CHECK(reader.entries == 1); // UCX cancelled them and said so: no evidence
    ucx->ep_shutdown(reader.ep);
    UNTIL(&reader, NULL, reader.entries == 1 + READS);
    for (unsigned i = 0; i < READS; i++)
        CHECK(reader.of[i] == 1 && reader.status_of[i] == LIEN_ECANCELED);
    CHECK(untouched());
    side_close(&reader, LIENI_PROVEN);
    munmap(shared, sizeof *shared);
}

// The other way round: the reader is killed with READs that its owner has not seen. UCX would abort the owner when it answers the second.
static void reader_killed(void)
{
    static uint8_t memory[READS * PIECE];
    struct shared *shared = share();
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        while (!shared->port)
            usleep(1000);
        side_open(&reader);
        side_connect(&reader, (uint16_t)shared->port, NULL, 0);
        UNTIL(&reader, NULL, reader.up == 1);
        CHECK_RC(ucx->post_read(reader.ep, copy, 1, NULL, 0, shared->key, 63), 0);
        UNTIL(&reader, NULL, reader.good == 1);
        shared->still = 1;
        while (!shared->stop)
            usleep(1000);
        for (unsigned i = 0; i < READS; i++)
            CHECK_RC(ucx->post_read(reader.ep, copy, 10, NULL, i, shared->key, i), 0);
        for (unsigned i = 0; i < 50; i++)
            turn(&reader, NULL);
        shared->still = 2;
        for (;;)
            pause();
    }
    side_open(&owner);
    CHECK_RC(ucx->mr_reg(owner.domain, memory, sizeof memory, LIENI_ACCESS_REMOTE, &mr, &info), 0);
    side_listen(&owner, NULL, 0);
    shared->key = info.key;
    shared->port = owner.port;
    UNTIL(&owner, NULL, shared->still == 1);
    shared->stop = 1;
    while (shared->still != 2)
        usleep(1000);
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    UNTIL(&owner, NULL, owner.down == 1);
    CHECK_RC(ucx->mr_close(mr), 0);
    side_close(&owner, LIENI_PROVEN);
    munmap(shared, sizeof *shared);
}

// The owner stands still; the reader closes; then the owner goes on and answers what was asked.
static void late_answers(void)
{
    static uint8_t memory[READS * PIECE];
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    memset(memory, 0xa5, sizeof memory);
    side_open(&owner);
    side_open(&reader);
    CHECK_RC(ucx->mr_reg(owner.domain, memory, sizeof memory, LIENI_ACCESS_REMOTE, &mr, &info), 0);
    pair_up(&owner, &reader);
    CHECK_RC(ucx->post_read(reader.ep, copy, 1, NULL, 0, info.key, 63), 0);
    UNTIL(&owner, &reader, reader.good == 1);
    post_reads(info.key);
    for (unsigned i = 0; i < 50; i++)
        turn(&reader, NULL);
    reader.peer = NULL;
    side_end(&reader, LIENI_PROVEN); // which waits a little for the owner
    CHECK(reader.entries == 1 || reader.entries == 1 + READS);
    UNTIL(&owner, NULL, owner.down == 1);
    for (unsigned i = 0; i < 100; i++)
        turn(&owner, &reader);
    CHECK(untouched());
    CHECK_RC(ucx->mr_close(mr), 0);
    side_close(&owner, LIENI_PROVEN);
    side_close(&reader, LIENI_PROVEN);
}

// The reader closes in the middle of answers that come: what its entries and the end say holds.
static void closed_in_the_middle(unsigned turns)
{
    static uint8_t memory[READS * PIECE];
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    memset(memory, 0xa5, sizeof memory);
    side_open(&owner);
    side_open(&reader);
    CHECK_RC(ucx->mr_reg(owner.domain, memory, sizeof memory, LIENI_ACCESS_REMOTE, &mr, &info), 0);
    pair_up(&owner, &reader);
    post_reads(info.key);
    for (unsigned i = 0; i < turns; i++)
        turn(i % 2 ? &owner : &reader, NULL);
    ucx->ep_shutdown(reader.ep);
    UNTIL(&reader, &owner, reader.entries == READS);
    static uint8_t then[sizeof copy];
    memcpy(then, copy, sizeof copy);
    for (unsigned i = 0; i < READS; i++) {
        CHECK(reader.of[i] == 1);
        for (size_t k = 0; reader.status_of[i] == 0 && k < PIECE; k++)
            CHECK(copy[i * PIECE + k] == 0xa5);
    }
    UNTIL(&owner, &reader, owner.down == 1);
    for (unsigned i = 0; i < 50; i++)
        turn(&owner, &reader);
    CHECK(memcmp(then, copy, sizeof copy) == 0);
    // The owner's end, too, with answers that nobody took.
    side_close(&reader, LIENI_PROVEN);
    CHECK_RC(ucx->mr_close(mr), 0);
    side_close(&owner, LIENI_PROVEN);
}

// Shared memory beside tcp: nothing is declared.
static void unknown_transport(void)
{
    static uint8_t memory[READS * PIECE];
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    CHECK(setenv("UCX_TLS", "tcp,posix", 1) == 0);
    side_open(&owner);
    side_open(&reader);
    CHECK(strstr(report_text, "nothing is known"));
    CHECK_RC(ucx->mr_reg(owner.domain, memory, sizeof memory, LIENI_ACCESS_REMOTE, &mr, &info), 0);
    pair_up(&owner, &reader);
    CHECK_RC(ucx->post_read(reader.ep, copy, 1, NULL, 0, info.key, 63), 0);
    UNTIL(&owner, &reader, reader.good == 1);
    post_reads(info.key);
    for (unsigned i = 0; i < 50; i++)
        turn(&reader, NULL);
    CHECK(reader.entries == 1);
    ucx->ep_shutdown(reader.ep);
    for (unsigned i = 0; i < 200; i++)
        turn(&reader, &owner);
    CHECK(reader.entries == 1);
    CHECK_RC(ucx->mr_close(mr), 0);
    side_close(&reader, LIENI_UNKNOWN);
    side_close(&owner, LIENI_UNKNOWN);
    CHECK(unsetenv("UCX_TLS") == 0);
}

int main(void)
{
    // In a process of its own: UCX has a thread, which a later fork would leave behind.
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        killed();
        exit(0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    reader_killed();
    late_answers();
    for (unsigned turns = 2; turns < 40; turns += 3)
        closed_in_the_middle(turns);
    unknown_transport();
    return 0;
}
