// SPDX-License-Identifier: Apache-2.0
// runtime/paced.h - loading and compiling on the engine's thread, with preemption points.
// Engine's thread only.
//
// Design notes
// A model decides how long it takes to load and to compile: how many nodes it has, what of it is
// folded. What walks over it counts its work (base/pace.h); every millisecond or so there is a
// preemption point (sched/work.h), as between two kernels that are prepared, and it is looked
// whether who asked still wants it.
//
// A search for a plan knows neither the device nor who waits for it, and has two threads. So it has
// no points of its own: it computes on other threads, and the engine's thread waits in its place.
// Its gate (planner/plan_work.h) is shut while others compute, because threads that search on as
// many processors as there are would delay them.
#ifndef HTH_RUNTIME_PACED_H
#define HTH_RUNTIME_PACED_H

#include "base/pace.h"
#include "planner/plan_train.h"
#include "runtime/request.h"
#include "runtime/site.h"

typedef struct hth_paced {
    hth_pace pace, *before;
    hth_site *site;
    const hth_request *r;
} hth_paced;

// hth_paced_begin counts what the thread does until hth_paced_end; they nest. `request`: who asked,
// it ends with HTH_ECANCELED when that is canceled; NULL: nobody who could be.
void hth_paced_begin(hth_paced *paced, hth_site *site, const hth_request *request);
void hth_paced_end(hth_paced *paced);
// hth_paced_search runs fn(arg), which searches for plans by `options` and uses nothing that is the
// engine's thread's own, on another thread, and waits for its end at preemption points: the search
// waits while others compute (cbc does not), and ends with HTH_ECANCELED when `request` is canceled
// (NULL: that of the thread's account, if any). Returns fn's result otherwise, with its sentence.
// Runs it here where there is no queue or no thread. options->cancel and ->gate are set meanwhile.
hth_err hth_paced_search(hth_site *site, const hth_request *request, hth_plan_options *options,
                         hth_err (*fn)(void *arg), void *arg);

#endif
