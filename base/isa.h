// SPDX-License-Identifier: Apache-2.0
// base/isa.h - which vector instructions the process may use: those of the processor, or fewer.
#ifndef HTH_BASE_ISA_H
#define HTH_BASE_ISA_H

#include "base/err.h"

#include <stdbool.h>

// hth_isa_bytes returns the bytes of the widest vectors: 64 (AVX-512 F, BW, DQ, VL), 32 (AVX2 with
// FMA), 16 (SSE2, or another architecture). One atomic load; from any thread.
int hth_isa_bytes(void);
// hth_isa_amx says whether the process may use AMX on bf16 (and AVX-512's conversions to it): the
// processor has it, hth_isa_bytes is 64, and the kernel has given leave, which it is asked for
// here. From any thread.
bool hth_isa_amx(void);
// hth_isa_limit allows no more than `name`: "avx512", "avx2" or "sse2"; NULL or "": everything. For
// tests and comparisons; to be called before a device is opened. HTH_EINVAL: no such name.
hth_err hth_isa_limit(const char *name);

#endif
