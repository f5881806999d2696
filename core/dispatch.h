// SPDX-License-Identifier: Apache-2.0
//
// Runs user callbacks. A strand is a queue whose tasks run one at a time, in order: one per connection, listener and pool. Strands with work are taken in turn
// by the dispatch threads; in an app-driven ctx by lieni_dispatch_run(); inline strands by the progress thread through lieni_dispatch_run_inline().
// Tasks are embedded in the objects they serve, so queuing never fails and the queue is bounded by the objects. Own lock, taken after the state lock; tasks run under none.

#ifndef LIENI_DISPATCH_H
#define LIENI_DISPATCH_H

#include <stdbool.h>

#include "provider/provider.h"

struct lieni_dispatch;
struct lieni_strand;
struct lieni_log;

struct lieni_task {
    void (*run)(struct lieni_task *task); // may free the task's object
    struct lieni_task *next;
    bool queued;
};

// `threads` 0: app-driven. `log` is where the watchdog names an inline task that ran, or runs, longer than 100 ms.
// `wake` is called (no locks) when an app-driven or inline queue goes from empty to non-empty, so that whoever sleeps in progress wakes.
int lieni_dispatch_open(unsigned threads, const struct lieni_env *env, struct lieni_log *log,
                        void (*wake)(void *self), void *wake_self,
                        struct lieni_dispatch **dispatch);
// Stops the threads after all queued tasks ran; in an app-driven ctx runs them here. Blocks.
void lieni_dispatch_close(struct lieni_dispatch *dispatch);

// inline_ok: tasks may run on the progress thread.
int lieni_strand_open(struct lieni_dispatch *dispatch, bool inline_ok,
                      struct lieni_strand **strand);
// No more posts will come. Freed once its queued tasks have run; may be called from one of its tasks.
void lieni_strand_close(struct lieni_strand *strand);
// Queues the task; a task that is queued already stays as it is. Any thread, also under the state lock.
void lieni_strand_post(struct lieni_strand *strand, struct lieni_task *task);

// App-driven: runs what is due, at most `max` tasks, returns how many ran.
unsigned lieni_dispatch_run(struct lieni_dispatch *dispatch, unsigned max);
// Threaded: runs inline strands' tasks on the calling progress thread, the same way.
unsigned lieni_dispatch_run_inline(struct lieni_dispatch *dispatch, unsigned max);
bool lieni_dispatch_pending(struct lieni_dispatch *dispatch); // app-driven or inline work waits

// Where the calling thread is.
enum lieni_where {
    LIENI_ELSEWHERE,   // not in a task of this dispatch
    LIENI_IN_DISPATCH, // in a task on a dispatch thread: *strand is its strand
    LIENI_IN_PROGRESS  // in a task inside progress (inline or app-driven): waiting here never ends
};
enum lieni_where lieni_dispatch_where(struct lieni_dispatch *dispatch,
                                      struct lieni_strand **strand);

#endif
