// SPDX-License-Identifier: Apache-2.0
#include "group/pace.h"

#include <stdbool.h>
#include <string.h>

// The median of `n` times, n > 0; of an even number the longer one of the two in the middle.
static double median(const double *us, int n)
{
    double sorted[HTH_PACE_PASSES] = {us[0]};
    for (int i = 1; i < n; i++) {
        int k = i;
        for (; k > 0 && sorted[k - 1] > us[i]; k--) {
            sorted[k] = sorted[k - 1];
        }
        sorted[k] = us[i];
    }
    return sorted[n / 2];
}

// changed: the last two passes tell of another speed than all those before them.
static bool changed(const hth_pace *pace)
{
    if (pace->passes < HTH_PACE_LEAST) {
        return false;
    }
    const double *us = pace->pass_us;
    double before = median(us + 2, pace->passes - 2);
    bool slower = us[0] > HTH_PACE_FAR * before && us[1] > HTH_PACE_FAR * before;
    bool faster = HTH_PACE_FAR * us[0] < before && HTH_PACE_FAR * us[1] < before;
    return slower || faster;
}

double hth_pace_add(hth_pace *pace, int64_t samples, double us)
{
    if (samples != pace->samples) {
        pace->samples = samples;
        pace->passes = 0;
    }
    memmove(pace->pass_us + 1, pace->pass_us, (HTH_PACE_PASSES - 1) * sizeof us);
    pace->pass_us[0] = us;
    pace->passes += pace->passes < HTH_PACE_PASSES;
    if (changed(pace)) {
        pace->passes = 2;
    }
    return pace->passes >= HTH_PACE_LEAST ? median(pace->pass_us, pace->passes) / (double)samples
                                          : 0;
}
