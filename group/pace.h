// SPDX-License-Identifier: Apache-2.0
// group/pace.h - how long a sample takes a member, from its last passes. Pure.
//
// Design notes
// The median of the last HTH_PACE_PASSES passes over as many samples: a pass that something else
// on the machine held up counts little. When the device's speed changes (its quota, another job)
// the median would follow three passes later, and half way first, with shards for a speed that
// nobody has; so two passes in turn that are both far off it, to the same side, begin anew.
#ifndef HTH_GROUP_PACE_H
#define HTH_GROUP_PACE_H

#include <stdint.h>

#define HTH_PACE_PASSES 5
#define HTH_PACE_LEAST  3    // passes until it is known
#define HTH_PACE_FAR    1.25 // times the median, or the other way around

typedef struct hth_pace {            // all zero at first
    int64_t samples;                 // of each pass
    int passes;                      // of which the times are known
    double pass_us[HTH_PACE_PASSES]; // the last one first
} hth_pace;

// hth_pace_add takes a pass over `samples` samples that took `us`, and returns how long one takes,
// in us; 0: not known yet.
double hth_pace_add(hth_pace *pace, int64_t samples, double us);

#endif
