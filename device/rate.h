// SPDX-License-Identifier: Apache-2.0
// device/rate.h - bytes per second as people write them.
#ifndef HTH_DEVICE_RATE_H
#define HTH_DEVICE_RATE_H

#include "base/err.h"

#include <stddef.h>

// hth_rate_read reads the value of a device option: "1.5GB/s", with B, kB, MB, GB (powers of 1000)
// or KiB, MiB, GiB (of 1024). HTH_EINVAL: none of these, or less than 1 kB/s.
hth_err hth_rate_read(const char *option, const char *text, double *bytes_per_s);
// hth_rate_write writes "1.5 GB/s" and returns `out`.
const char *hth_rate_write(double bytes_per_s, char *out, size_t cap);

#endif
