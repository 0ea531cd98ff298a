// SPDX-License-Identifier: Apache-2.0
// runtime/jobs.h - one thread for what takes long and needs no device: import, export, remove, gc.
// In order of arrival.
#ifndef HTH_RUNTIME_JOBS_H
#define HTH_RUNTIME_JOBS_H

#include "base/err.h"

typedef struct hth_jobs hth_jobs;
typedef struct hth_job hth_job;
struct hth_job {
    void (*run)(hth_job *j); // called once on the worker; j may be freed or reused in it
    hth_job *next;           // the queue's
};

hth_err hth_jobs_open(hth_jobs **out);
void hth_jobs_submit(hth_jobs *q, hth_job *j); // any thread; not after hth_jobs_close began
void hth_jobs_close(hth_jobs *q); // runs what was submitted, then ends; NULL is allowed

#endif
