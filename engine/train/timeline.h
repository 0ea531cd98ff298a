// SPDX-License-Identifier: Apache-2.0
// engine/train/timeline.h - when the instructions of a job's last measured step ran, and on which
// stream.
//
// Design notes
// Measuring costs two readings of the clock per instruction, so that one step in a second can be
// measured while nobody knows whether somebody looks. A step has any number of instructions, but a
// picture has some hundred pixels: where there are more than HTH_TIMELINE_BARS, neighbours on a
// stream that are short, and shortly after each other, become one bar, and shorter means more until
// all fit. Hence memory is bounded. Engine's thread only.
#ifndef HTH_ENGINE_TRAIN_TIMELINE_H
#define HTH_ENGINE_TRAIN_TIMELINE_H

#include "planner/plan.h"

#include <jansson.h>

#define HTH_TIMELINE_BARS      1024
#define HTH_TIMELINE_FIRST     3 // steps are measured: of a short job, too, one that is warm
#define HTH_TIMELINE_PERIOD_NS 1000000000u // from one to the next then, at least

typedef struct hth_timeline hth_timeline;

hth_err hth_timeline_open(hth_timeline **out);
void hth_timeline_close(hth_timeline *timeline); // NULL is allowed

// hth_timeline_begin says whether the step that begins now is to be measured; what was added since
// the last hth_timeline_end is forgotten. timeline NULL: no.
bool hth_timeline_begin(hth_timeline *timeline, uint64_t now_ns);
// hth_timeline_add adds a run of `plan`, which began at `from_ns`: times_us is what hth_run_times
// returns. A step may consist of several.
void hth_timeline_add(hth_timeline *timeline, const hth_problem *problem, const hth_plan *plan,
                      const double (*times_us)[2], uint64_t from_ns);
// hth_timeline_end makes what was added the last step: number `step`, which ended at `now_ns`.
void hth_timeline_end(hth_timeline *timeline, uint64_t step, uint64_t now_ns);

// hth_timeline_ns is when the last step that was measured ended; 0: there is none.
uint64_t hth_timeline_ns(const hth_timeline *timeline);
// hth_timeline_json tells of it: {"step", "age_ms", "wall_ns", "streams": [name], "bars": [[stream,
// start_ns, duration_ns, name, instructions, bytes copied, whether it computes again]]}; no bars
// where there is no step.
json_t *hth_timeline_json(const hth_timeline *timeline, uint64_t now_ns);

#endif
