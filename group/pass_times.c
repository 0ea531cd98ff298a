// SPDX-License-Identifier: Apache-2.0
#include "group/pass_times.h"

#include <string.h>

// The median of `n` times, n > 0; of an even number the longer one of the two in the middle.
static double median(const double *us, int n)
{
    double sorted[HTH_PASS_TIMES] = {us[0]};
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
static bool changed(const hth_pass_times *times)
{
    if (times->passes < HTH_PASS_TIMES_LEAST) {
        return false;
    }
    const double *us = times->us;
    double before = median(us + 2, times->passes - 2);
    bool slower = us[0] > HTH_PASS_TIMES_FAR * before && us[1] > HTH_PASS_TIMES_FAR * before;
    bool faster = HTH_PASS_TIMES_FAR * us[0] < before && HTH_PASS_TIMES_FAR * us[1] < before;
    return slower || faster;
}

static bool far_apart(int64_t a, int64_t b)
{
    return (double)a > HTH_PASS_TIMES_FAR * (double)b || (double)b > HTH_PASS_TIMES_FAR * (double)a;
}

// Passes of another number of samples begin. Those before them are the other ones from now on, if
// they tell more than the ones that are.
static void begin(hth_pass_times *times, int64_t samples)
{
    bool known = times->passes >= HTH_PASS_TIMES_LEAST && far_apart(samples, times->samples);
    if (known) {
        times->other = times->samples;
        times->other_us = median(times->us, times->passes);
    }
    times->samples = samples;
    times->passes = 0;
}

void hth_pass_times_add(hth_pass_times *times, int64_t samples, double us)
{
    if (samples != times->samples) {
        begin(times, samples);
    }
    memmove(times->us + 1, times->us, (HTH_PASS_TIMES - 1) * sizeof us);
    times->us[0] = us;
    times->passes += times->passes < HTH_PASS_TIMES;
    if (changed(times)) {
        bool cold = times->passes == HTH_PASS_TIMES_LEAST; // one slow pass, the first one
        times->other = cold ? times->other : 0;            // .. which are of the speed that was
        times->passes = 2;
    }
}

bool hth_pass_times_fit(const hth_pass_times *times, double *sample_us, double *fixed_us)
{
    if (times->passes < HTH_PASS_TIMES_LEAST) {
        return false;
    }
    double n = (double)times->samples, us = median(times->us, times->passes);
    *sample_us = us / n;
    *fixed_us = 0;
    if (times->other > 0 && far_apart(times->samples, times->other)) {
        double slope = (us - times->other_us) / (n - (double)times->other);
        // from less than nothing, or shorter for more samples: the speed has changed meanwhile
        bool sound = slope > 0 && slope < *sample_us;
        *sample_us = sound ? slope : *sample_us;
        *fixed_us = sound ? us - n * slope : 0;
    }
    return true;
}
