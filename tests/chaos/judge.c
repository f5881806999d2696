// SPDX-License-Identifier: Apache-2.0
//
// What the library may answer, operation by operation: the closed set that its header documents, less what cannot come here (nobody asks for checksums, peers keep the protocol, no bodies of calls). Owns
// nothing; any thread.

#include <stdio.h>
#include <unistd.h>

#include "tests/chaos/worker.h"

#define BIT(name) (UINT64_C(1) << -LIEN_##name)
#define GOOD      UINT64_C(1)

// A connection's status once it ended, which each operation on it may end with.
#define ENDED (BIT(ECLOSED) | BIT(EPEERLOST))
// A connection that never opens. LIEN_EIO: libfabric 1.17 may call a failed connect "operation now in progress", which tells us nothing.
#define UNOPENED                                                                                   \
    (BIT(EREFUSED) | BIT(ETIMEDOUT) | BIT(ECLOSED) | BIT(EPEERLOST) | BIT(EIO) | BIT(ESYS))
// Memory that is lent comes back, or is said to be lost.
#define RELEASED (GOOD | BIT(EQUARANTINED))

static const struct {
    const char *name;
    uint64_t may;
} judged[CHAOS_N_JUDGED] = {
    [CHAOS_OPEN] = {"lien_conn_open", GOOD | BIT(ESYS)},
    [CHAOS_OPEN_WAIT] = {"lien_conn_open_wait", GOOD | UNOPENED},
    [CHAOS_ON_OPEN] = {"on_open", GOOD | UNOPENED},
    [CHAOS_ON_LOST] = {"on_lost", ENDED},
    [CHAOS_ON_CLOSED] = {"on_closed", RELEASED},
    [CHAOS_CLOSE] = {"a close or a cancel", GOOD},
    [CHAOS_ALLOC] = {"lien_pool_alloc", GOOD | BIT(ELIMIT)},
    [CHAOS_CALL] = {"lien_call_start", GOOD | BIT(EAGAIN) | BIT(ELIMIT) | ENDED},
    [CHAOS_CALL_DONE] = {"on_done of a call", GOOD | BIT(ETIMEDOUT) | BIT(ECANCELED) |
                                                  BIT(EOVERLOAD) | BIT(ELIMIT) |
                                                  ENDED}, // ELIMIT: our handler's own
    [CHAOS_CALL_RELEASED] = {"on_released of a call", RELEASED},
    [CHAOS_CALL_WAIT] = {"lien_call_wait",
                         GOOD | BIT(ETIMEDOUT) | BIT(ECANCELED) | BIT(EOVERLOAD) | ENDED},
    [CHAOS_SEND] = {"lien_send", GOOD | BIT(EAGAIN) | BIT(ELIMIT) | ENDED},
    [CHAOS_SEND_DONE] = {"on_done of a message", GOOD | ENDED},
    [CHAOS_SEND_RELEASED] = {"on_released of a message", RELEASED},
    [CHAOS_GRANT_OPEN] = {"lien_grant_open", GOOD | BIT(ELIMIT) | ENDED},
    [CHAOS_GRANT_WAIT] = {"lien_grant_wait", RELEASED | BIT(ETIMEDOUT)},
    [CHAOS_GRANT_RELEASED] = {"on_released of a grant", RELEASED},
    [CHAOS_READ_START] = {"lien_read_start", GOOD | BIT(ESTALE) | BIT(ELIMIT) | ENDED},
    [CHAOS_READ_DONE] = {"on_done of a read",
                         GOOD | BIT(ETIMEDOUT) | BIT(ECANCELED) | BIT(ESTALE) | ENDED},
    [CHAOS_READ_RELEASED] = {"on_released of a read", RELEASED},
    [CHAOS_RELEASE] = {"lien_release", GOOD | BIT(ESTALE) | ENDED},
    [CHAOS_REQUEST_READ] = {"lien_request_read_wait",
                            RELEASED | BIT(ESTALE) | BIT(ECANCELED) | BIT(ETIMEDOUT) | ENDED},
    [CHAOS_REQUEST_VERIFY] = {"lien_request_verify_wait", GOOD | BIT(ESTALE) | BIT(ECANCELED)},
    [CHAOS_REQUEST_WRITE] = {"lien_request_write",
                             GOOD | BIT(ECANCELED) | BIT(ELIMIT) | BIT(ESTATE) | ENDED},
    [CHAOS_WRITE_DONE] = {"on_done of a write", GOOD | BIT(ETIMEDOUT) | BIT(ECANCELED)},
    [CHAOS_WRITE_RELEASED] = {"on_released of a write", RELEASED},
    [CHAOS_REPLY] = {"lien_request_reply", GOOD | BIT(ESTATE)},
};

const char *chaos_judged_name(unsigned what)
{
    return judged[what].name;
}

int worker_judge(enum chaos_judged what, int status)
{
    const unsigned i = status <= 0 && status > -CHAOS_STATUSES ? (unsigned)-status
                                                               : CHAOS_STATUSES - 1u;
    worker.slot->statuses[what][i]++;
    if (!(judged[what].may >> i & 1) && worker.slot->wrong++ < WRONG_REPORTED) {
        fprintf(stderr,
                "wrong: worker %u (pid %d): %s says %s (%d, %s), which its header excludes here\n",
                worker.self, (int)getpid(), judged[what].name, lien_errname(status), status,
                lien_strerror(status));
        worker_tell_log(status);
    }
    return status;
}
