// SPDX-License-Identifier: Apache-2.0
// server/http/http_work.h - threads for what takes the HTTP front end long and needs nothing of its
// loop: inflating, parsing, writing long documents.
//
// Design notes
// At most two tasks run at a time, so that what clients send costs a bounded part of the machine
// and of its memory, and of long tasks of one group at most one: no group holds both threads for
// long. Groups share the threads, and the connections of a group share what it has. The next task
// is of the group that would have been served least if all had had the same share (start-time fair
// queueing; Goyal, Vin, Cheng 1996), and in the group the one that would end first (self-clocked
// fair queueing; Golestani 1994). Small tasks do not wait for hundreds of large ones that came
// before, and nobody waits for ever: what was served only grows, and who was idle begins at what
// the last one who was taken had.
#ifndef HTH_SERVER_HTTP_HTTP_WORK_H
#define HTH_SERVER_HTTP_HTTP_WORK_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct hth_http_work hth_http_work;
typedef struct hth_http_task hth_http_task;

struct hth_http_task {
    void (*run)(
        hth_http_task *task); // called once on a thread; `task` may be freed or reused in it
    // Whose turn it takes: any number for the group (a tenant, an address), and for one of it (a
    // connection).
    uint64_t group, one;
    uint64_t cost, most; // about how many bytes' time it takes, and at most; most 0: not longer
    bool goes_on;        // with what has had a turn and holds memory: it comes first of its group
    uint64_t tag;        // the queue's, as is `next`
    hth_http_task *next;
};

// hth_http_work_open starts the threads. HTH_ENOMEM, HTH_EIO: none runs.
hth_err hth_http_work_open(hth_http_work **out);
// hth_http_work_submit queues `task`; any thread, not after hth_http_work_close began. It does not
// block for long.
void hth_http_work_submit(hth_http_work *work, hth_http_task *task);
void hth_http_work_close(
    hth_http_work *work); // runs what was submitted, then ends; NULL is allowed

#endif
