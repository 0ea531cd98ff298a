// SPDX-License-Identifier: Apache-2.0
// runtime/store_worker.h - one thread for what takes long and needs no device: import, export,
// remove, gc. In order of arrival.
#ifndef HTH_RUNTIME_STORE_WORKER_H
#define HTH_RUNTIME_STORE_WORKER_H

#include "base/err.h"

typedef struct hth_store_worker hth_store_worker;
typedef struct hth_store_task hth_store_task;
struct hth_store_task {
    void (*run)(hth_store_task *task); // called once on the worker; j may be freed or reused in it
    hth_store_task *next;              // the queue's
};

hth_err hth_store_worker_open(hth_store_worker **out);
void hth_store_worker_submit(
    hth_store_worker *worker,
    hth_store_task *task); // any thread; not after hth_store_worker_close began
void hth_store_worker_close(
    hth_store_worker *worker); // runs what was submitted, then ends; NULL is allowed

#endif
