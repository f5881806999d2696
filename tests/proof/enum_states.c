// SPDX-License-Identifier: Apache-2.0
//
// Run by ci/proof: the transition table of one kind of object (STATES_FILE, its struct STATES_TYPE, STATES_N states). Every pair of states is tried in a process of its
// own: the setter aborts exactly where the table has no entry, itself to itself included. And the table makes sense: each state can be reached from the
// first, and from each state one that is for good.
//
// The file's other functions are never called, nor is what an allowed change tells the log or the trace (a crash there is no abort).

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include STATES_FILE

#ifndef STATES_SETTER
#define STATES_SETTER set_state
#endif

#define ROWS (sizeof(may_enter) / sizeof(may_enter[0]))

static STATES_TYPE object;

static int try_change(unsigned from, unsigned to)
{
    pid_t pid = fork();
    if (pid == 0) {
        STATES_INIT;
        object.state = from;
        STATES_SETTER(&object, to);
        _exit(object.state == to ? 0 : 1);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static unsigned reach(unsigned from)
{
    unsigned set = 1u << from, before = 0;
    while (set != before) {
        before = set;
        for (unsigned i = 0; i < ROWS; i++)
            if (set >> i & 1)
                set |= may_enter[i];
    }
    return set;
}

int main(void)
{
    unsigned allowed = 0, refused = 0, wrong = 0, last = 0;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    if (ROWS != STATES_N) {
        printf("enum_states.c: %zu rows, %d states\n", ROWS, STATES_N);
        return 1;
    }
    for (unsigned i = 0; i < ROWS; i++)
        last |= (may_enter[i] == 0) << i;
    for (unsigned from = 0; from < ROWS; from++) {
        if (!(reach(0) >> from & 1) || !(reach(from) & last) || may_enter[from] >> ROWS) {
            printf("enum_states.c:%d: state %u is cut off\n", __LINE__, from);
            wrong++;
        }
        for (unsigned to = 0; to < ROWS; to++) {
            const int in_table = may_enter[from] >> to & 1;
            const int rc = try_change(from, to);
            if (in_table ? rc == SIGABRT || rc == -1 : rc != SIGABRT) {
                printf("enum_states.c:%d: %u to %u: %d\n", __LINE__, from, to, rc);
                wrong++;
            }
            in_table ? allowed++ : refused++;
        }
    }
    printf("%u pairs allowed, %u refused\n", allowed, refused);
    return wrong != 0;
}
