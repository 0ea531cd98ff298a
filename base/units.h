// SPDX-License-Identifier: Apache-2.0
// base/units.h - amounts of memory as people write them: "2GiB", "512 MB", "60%".
#ifndef HTH_BASE_UNITS_H
#define HTH_BASE_UNITS_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

// hth_parse_bytes reads a number with an optional unit (B, KiB, MiB, GiB, TiB; KB, MB, GB, TB are
// powers of 1000; K, M, G, T powers of 1024) or a percentage of `total` (> 0 to 100). HTH_EINVAL:
// says what was wrong.
hth_err hth_parse_bytes(const char *text, uint64_t total, uint64_t *out);

#endif
