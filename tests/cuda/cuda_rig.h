// SPDX-License-Identifier: Apache-2.0
// tests/cuda/cuda_rig.h - what programs that look at a CUDA device share: the machine's own with
// HEARTH_GPU=1 in the environment, else the fake driver's, of which no figure is kept; and results,
// a line of JSON each, in the file that GPU_RESULTS names.
#ifndef HTH_TESTS_CUDA_CUDA_RIG_H
#define HTH_TESTS_CUDA_CUDA_RIG_H

#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"
#include "kernels/cuda/fake/fake.h"
#include "kernels/cuda/seq.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static inline bool rig_real(void)
{
    return getenv("HEARTH_GPU") != NULL;
}

// A group's setup and teardown: rig_device opens devices on the driver.
static inline int rig_setup(void **state)
{
    const char *libs = getenv("CUDA_HOME");
    if (!rig_real()) {
        assert_non_null(hth_cuda_fake_engine_open(7, (uint64_t)512 << 20));
    } else if (libs != NULL) {
        assert_int_equal(hth_setting_set("cuda.libs", libs), HTH_OK);
    }
    return 0;
}

static inline int rig_teardown(void **state)
{
    if (!rig_real()) {
        hth_plugin_use(NULL);
        hth_cuda_fake_close();
    }
    return 0;
}

static inline hth_device *rig_device(const char *spec)
{
    hth_device *d;
    if (hth_device_open(spec, &d) != HTH_OK) {
        fail_msg("%s: %s", spec, hth_err_detail());
    }
    return d;
}

// A result. A figure of the fake driver is printed as none.
static inline void rig_result(const char *what, double value, const char *unit)
{
    const char *path = getenv("GPU_RESULTS");
    FILE *f = rig_real() && path != NULL ? fopen(path, "a") : NULL;
    if (!rig_real()) {
        print_message("# %s: not measured\n", what);
        return;
    }
    print_message("# %s: %.6g %s\n", what, value, unit);
    if (f != NULL) {
        fprintf(f, "{\"what\": \"%s\", \"value\": %.9g, \"unit\": \"%s\"}\n", what, value, unit);
        fclose(f);
    }
}

static inline int rig_less(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double rig_median(double *list, int n)
{
    qsort(list, (size_t)n, sizeof *list, rig_less);
    return list[n / 2];
}

// Microseconds that issue(arg) takes on stream `stream` of the device, by events: the median of
// `n`.
static inline double rig_time_us(hth_stream *stream,
                                 hth_err (*issue)(hth_stream *stream, void *arg), void *arg, int n)
{
    hth_event *from, *to;
    double us[64];
    assert_int_equal(hth_event_open(stream->device, &from), HTH_OK);
    assert_int_equal(hth_event_open(stream->device, &to), HTH_OK);
    for (int i = -2; i < n && i < 64; i++) { // two to warm up
        assert_int_equal(hth_stream_record(stream, from), HTH_OK);
        assert_int_equal(issue(stream, arg), HTH_OK);
        assert_int_equal(hth_stream_record(stream, to), HTH_OK);
        if (hth_stream_sync(stream) != HTH_OK) {
            fail_msg("%s", hth_err_detail());
        }
        us[i < 0 ? 0 : i] =
            (double)(int64_t)(hth_event_time_ns(to) - hth_event_time_ns(from)) / 1e3;
    }
    hth_event_close(from);
    hth_event_close(to);
    return rig_median(us, n);
}

#endif
