// SPDX-License-Identifier: Apache-2.0
// runtime/job_memory.h - who has how much of a device: training jobs, and besides them the models
// that are served. Engine's thread only.
//
// Design notes
// A job's share is one reservation, taken before its first step and given back at its end: nothing
// that comes later can take it away. What is left is that of the models, whose programs are
// compiled for it, and of further jobs: each gets the point of its memory/time curve that the rest
// of the device can give (hth_curve_admit), or waits. Of the link each has its turns, like of the
// processors: jobs do not copy at the same time.
#ifndef HTH_RUNTIME_JOB_MEMORY_H
#define HTH_RUNTIME_JOB_MEMORY_H

#include "planner/plan_curve.h"
#include "runtime/site.h"

struct hth_job_memory {
    hth_job_memory *next;       // in the site's list
    const hth_account *account; // whose; outlives it
    hth_curve_point point;      // what its update takes: device_bytes, time and link
    const hth_program *frozen;  // whose weights it needs besides, which residency has; NULL: none
};

// hth_job_memory_set has a share hold point->device_bytes, and the weights of memory->frozen, which
// the caller has set; 0 of the former: it leaves the list. A program that is freed is forgotten.
void hth_job_memory_set(hth_site *site, hth_job_memory *memory, const hth_curve_point *point);
// hth_job_memory_weights is what a program's weights take in residency.
uint64_t hth_job_memory_weights(const hth_program *program);
// hth_job_memory_bytes is all that a share takes, as if nobody had its weights too.
uint64_t hth_job_memory_bytes(const hth_job_memory *memory);
void hth_job_memory_forget(hth_site *site, const hth_program *program);
// hth_job_memory_models is what the device has for the program of a model: besides all shares, and
// besides the weights of pinned programs.
uint64_t hth_job_memory_models(const hth_site *site);
// hth_job_memory_alone says that there are no shares but `mine`, and no pinned programs.
bool hth_job_memory_alone(const hth_site *site, const hth_job_memory *mine);
// hth_job_memory_rest is what the device has besides all shares but `mine` (may be NULL), besides
// what pinned programs need to run, and, where other jobs have shares, besides what the oldest
// request that waits for memory needs; and no more than the tenant of `mine` may have.
uint64_t hth_job_memory_rest(const hth_site *site, const hth_job_memory *mine);
// hth_job_memory_spare is what is left of that besides the models that are resident now, and a
// share of the device for those that are not yet.
uint64_t hth_job_memory_spare(const hth_site *site, const hth_job_memory *mine);
// hth_job_memory_admit chooses the point of `curve` for a new job alongside the others, which stay
// as they are. HTH_ENODEVMEM: none fits now.
hth_err hth_job_memory_admit(const hth_site *site, const hth_curve *curve, hth_curve_point *out);

#endif
