// SPDX-License-Identifier: Apache-2.0
//
// Runs user callbacks. A strand is a queue whose tasks run one at a time, in order: one per
// connection, listener and pool. Strands with work are taken in turn, one task a turn, by the
// dispatch threads; in an app-driven ctx by lieni_dispatch_run(); inline strands by the progress
// thread through lieni_dispatch_run_inline(). Tasks are embedded in the objects they serve, so
// queuing never fails and the queue is bounded by the objects. Own lock, taken after the state
// lock; tasks run under none.

#ifndef LIENI_DISPATCH_H
#define LIENI_DISPATCH_H

#include <pthread.h>
#include <stdbool.h>

#include "provider/provider.h"

struct lieni_dispatch;
struct lieni_strand;
struct lieni_log;

// Zero it before its first post. Between post and run it belongs to the strand; when `run` begins
// it is the poster's again and may be posted anew, also from inside.
struct lieni_task {
    void (*run)(struct lieni_task *task); // may free the task's object and close its strand
    struct lieni_task *next;
    bool queued;
};

// An inline task that runs for so long (by `env`'s clock) is named in the log. Source: design.md 2.
#define LIENI_INLINE_MAX_MS 100

// `threads` 0: app-driven, no thread is ever started. `log` is where the watchdog names an inline
// task that ran, or runs, too long. With threads it names it while it still runs, and flushes the
// log itself, since whoever does that otherwise is stuck; app-driven, it names it afterwards. The
// watchdog's thread starts with the first inline strand and sleeps without a time limit, but for
// the time an inline task runs and at most LIENI_INLINE_MAX_MS after it.
// `wake` (or NULL) is called without the dispatch's lock, by the poster, when the app-driven or
// inline queue goes from empty to non-empty, so that whoever sleeps in progress wakes. It may run
// under the state lock. The threads block all signals but those of faults. Copies *env; the log must
// outlive the dispatch.
// LIEN_ENOMEM. LIEN_ESYS: a thread could not be started, the log says why.
int lieni_dispatch_open(unsigned threads, const struct lieni_env *env, struct lieni_log *log,
                        void (*wake)(void *self), void *wake_self,
                        struct lieni_dispatch **dispatch);
// Runs all queued tasks and those they post, app-driven and inline ones here, then stops the
// threads. Every strand is closed by then: before, or by those tasks. Blocks. Nobody else may be in
// lieni_dispatch_run() or call it from a task.
void lieni_dispatch_close(struct lieni_dispatch *dispatch);

// inline_ok: tasks may run on the progress thread. LIEN_ENOMEM. LIEN_ESYS as above (inline only).
int lieni_strand_open(struct lieni_dispatch *dispatch, bool inline_ok,
                      struct lieni_strand **strand);
// The connection that the watchdog names. Before the first post.
void lieni_strand_conn(struct lieni_strand *strand, uint64_t conn);
// No more posts will come. Freed once its queued tasks have run; may be called from one of its tasks.
void lieni_strand_close(struct lieni_strand *strand);
// Queues the task; a task that is queued already stays as it is. Any thread, also under the state lock.
void lieni_strand_post(struct lieni_strand *strand, struct lieni_task *task);

// The same, but a dispatch thread that sleeps is not woken: lieni_dispatch_wake() has to follow, when the state lock is
// given up, so that whoever wakes does not wait for it at once.
void lieni_strand_queue(struct lieni_strand *strand, struct lieni_task *task);
void lieni_dispatch_wake(struct lieni_dispatch *dispatch);

// App-driven: runs what is due, at most `max` tasks, returns how many ran. What it leaves does not
// wake anybody again: ask lieni_dispatch_pending() before sleeping. Inside a task of this dispatch
// it runs nothing and returns 0. Takes no state lock; the caller holds none.
unsigned lieni_dispatch_run(struct lieni_dispatch *dispatch, unsigned max);
// Threaded: runs inline strands' tasks on the calling progress thread, the same way.
unsigned lieni_dispatch_run_inline(struct lieni_dispatch *dispatch, unsigned max);
bool lieni_dispatch_pending(struct lieni_dispatch *dispatch); // app-driven or inline work waits

// Starts a thread of ours, named for debuggers, that leaves the host's signals to the host. Faults stay deliverable: guarded
// memory answers them with a report. 0 or an errno value.
int lieni_thread_start(const char *name, void *(*main)(void *), void *arg, pthread_t *thread);

// Where the calling thread is.
enum lieni_where {
    LIENI_ELSEWHERE,   // not in a task of this dispatch
    LIENI_IN_DISPATCH, // in a task on a dispatch thread: *strand is its strand
    LIENI_IN_PROGRESS  // in a task inside progress (inline or app-driven): waiting here never ends
};
// Sees through tasks of other dispatches that the task at hand runs in: a callback of one ctx may
// drive another ctx. `strand` may be NULL; *strand is written unless LIENI_ELSEWHERE.
enum lieni_where lieni_dispatch_where(struct lieni_dispatch *dispatch,
                                      struct lieni_strand **strand);

#endif
