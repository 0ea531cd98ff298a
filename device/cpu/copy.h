// SPDX-License-Identifier: Apache-2.0
// device/cpu/copy.h - copies by the calling thread or its team, past the caches where they are
// large.
#ifndef HTH_DEVICE_CPU_COPY_H
#define HTH_DEVICE_CPU_COPY_H

#include <stddef.h>

// hth_team_copy copies like memcpy. What it writes of a large block is in no cache afterwards.
void hth_team_copy(void *dst, const void *src, size_t bytes);
// hth_copy_past copies like memcpy, on the calling thread, and past the caches if dst is aligned to
// 16 bytes.
void hth_copy_past(void *dst, const void *src, size_t bytes);

#endif
