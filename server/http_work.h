// SPDX-License-Identifier: Apache-2.0
// server/http_work.h - threads for what takes the HTTP front end long and needs nothing of its
// loop: inflating, parsing, writing long documents.
//
// Design notes
// At most two tasks run at a time, so that what clients send costs a bounded part of the machine
// and of its memory. The next task is the one that would end first if all connections had the same
// share of a thread (self-clocked fair queueing, Golestani 1994): a task's tag is its cost behind
// the tag of its connection's last one, and behind that of the task that was taken last. Small
// tasks do not wait for hundreds of large ones that came before, and nobody waits for ever: tags
// only grow.
#ifndef HTH_SERVER_HTTP_WORK_H
#define HTH_SERVER_HTTP_WORK_H

#include "base/err.h"

#include <stdint.h>

typedef struct hth_http_work hth_http_work;
typedef struct hth_http_task hth_http_task;
struct hth_http_task {
    void (*run)(hth_http_task *t); // called once on a thread; t may be freed or reused in it
    uint64_t cost, tag;            // the queue's, as is `next`
    hth_http_task *next;
};

// hth_http_work_open starts the threads. HTH_ENOMEM, HTH_EIO: none runs.
hth_err hth_http_work_open(hth_http_work **out);
// hth_http_work_submit queues `t`, which costs about `cost` (bytes) and is `owner`'s; any thread,
// not after hth_http_work_close began. It does not block for long.
void hth_http_work_submit(hth_http_work *w, hth_http_task *t, const void *owner, uint64_t cost);
void hth_http_work_close(hth_http_work *w); // runs what was submitted, then ends; NULL is allowed

#endif
