// SPDX-License-Identifier: Apache-2.0
// convsel/insitu.h - what nodes take in the step that they belong to, kept beside what they take
// alone.
#ifndef HTH_CONVSEL_INSITU_H
#define HTH_CONVSEL_INSITU_H

#include "convsel/convsel.h"

// What node i took in a step: the algorithm that it ran with, NULL: not known.
typedef struct hth_insitu {
    const char *name;
    double time_us;
} hth_insitu;

// hth_insitu_learn puts what the nodes of `g` took (seen[i] of node i) into `cache`. Nodes with the
// same key count as one, with their mean time. A time that was never seen before is taken as it is,
// within a factor of 4 of the one that was measured alone; one that was moves part of the way, by
// at most half of itself. Nodes that were never measured alone are left out. Owner thread.
hth_err hth_insitu_learn(hth_device *d, const hth_graph *g, const hth_heat *heat,
                         const hth_timing_cache *cache, const hth_insitu *seen);
// hth_insitu_apply corrects the times of `list`, measured alone under `key`: a choice that was seen
// in a step takes what it took there, the others what they take alone, times the mean ratio of the
// ones that were. Nothing changes where none was. The order of the list stays.
void hth_insitu_apply(const hth_timing_cache *cache, const char *key, hth_choice *list, int n);

// hth_insitu_forget drops what steps took of the node with that key.
hth_err hth_insitu_forget(const hth_timing_cache *cache, const char *key);

// hth_insitu_blend is what is believed when `old` was, on the word of `n` steps, and `now` is seen.
double hth_insitu_blend(double old, int n, double now);

#endif
