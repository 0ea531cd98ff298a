// SPDX-License-Identifier: Apache-2.0
// convsel/in_step_times.h - how long nodes take within their step, kept in addition to their time
// alone.
#ifndef HTH_CONVSEL_IN_STEP_TIMES_H
#define HTH_CONVSEL_IN_STEP_TIMES_H

#include "convsel/convsel.h"

// What node i took in a step: the algorithm that it ran with, NULL: not known.
typedef struct hth_in_step_times {
    const char *name;
    double time_us;
} hth_in_step_times;

// hth_in_step_times_learn puts what the nodes of `graph` took (seen[i] of node i) into `cache`.
// Nodes with the same key count as one, with their mean time. A time that was never seen before is
// taken as it is, within a factor of 4 of the one that was measured alone; one that was moves part
// of the way, by at most half of itself. Nodes that were never measured alone are left out. Owner
// thread.
hth_err hth_in_step_times_learn(hth_device *device, const hth_graph *graph,
                                const hth_cache_model *cache_state, const hth_timing_cache *cache,
                                const hth_in_step_times *seen);
// hth_in_step_times_apply corrects the times of `list`, measured alone under `key`: a choice that
// was seen in a step takes what it took there, the others what they take alone, times the mean
// ratio of the ones that were. Nothing changes where none was. The order of the list stays.
void hth_in_step_times_apply(const hth_timing_cache *cache, const char *key, hth_choice *list,
                             int n);

// hth_in_step_times_forget drops what steps took of the node with that key.
hth_err hth_in_step_times_forget(const hth_timing_cache *cache, const char *key);

// hth_in_step_times_blend is what is believed when `old` was, on the word of `n` steps, and `now`
// is seen.
double hth_in_step_times_blend(double old, int n, double now);

#endif
