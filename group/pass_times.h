// SPDX-License-Identifier: Apache-2.0
// group/pass_times.h - what a member's passes take, by their number of samples, from the last ones.
// Pure.
//
// Design notes
// The median of the last HTH_PASS_TIMES passes over as many samples: a pass that something else on
// the machine held up counts little. When the device's speed changes (its quota, another job) the
// median would follow three passes later, and half way first, with shards for a speed that nobody
// has; so two passes in turn that are both far off it, to the same side, begin anew.
//
// A pass takes a part of its time whatever its samples are. Passes over two numbers of samples tell
// how much, if these are far enough apart; until then all of it is taken to be the samples'.
#ifndef HTH_GROUP_PASS_TIMES_H
#define HTH_GROUP_PASS_TIMES_H

#include <stdbool.h>
#include <stdint.h>

#define HTH_PASS_TIMES       5
#define HTH_PASS_TIMES_LEAST 3    // passes until their time is known
#define HTH_PASS_TIMES_FAR   1.25 // times the median, or the other way around; and of samples

typedef struct hth_pass_times { // all zero at first
    int64_t samples;            // of each of the last passes
    int passes;                 // of which the times are known
    double us[HTH_PASS_TIMES];  // the last one first
    int64_t other;              // samples of passes before, 0: of none
    double other_us;            // their median
} hth_pass_times;

// hth_pass_times_add takes a pass over `samples` samples, > 0, that took `us`.
void hth_pass_times_add(hth_pass_times *times, int64_t samples, double us);
// hth_pass_times_fit: a pass over n samples takes *fixed_us + n * *sample_us, and the latter more
// than nothing. false: not known yet.
bool hth_pass_times_fit(const hth_pass_times *times, double *sample_us, double *fixed_us);

#endif
