// SPDX-License-Identifier: Apache-2.0
// device/cpu/copy.h - a copy by the calling thread's team, past the caches where it is large.
#ifndef HTH_DEVICE_CPU_COPY_H
#define HTH_DEVICE_CPU_COPY_H

#include <stddef.h>

// hth_team_copy copies like memcpy. What it writes of a large block is in no cache afterwards.
void hth_team_copy(void *dst, const void *src, size_t bytes);

#endif
