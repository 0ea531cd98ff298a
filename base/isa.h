// SPDX-License-Identifier: Apache-2.0
// base/isa.h - which vector instructions the process may use: those of the processor, or fewer.
// A set is known by its name and by the bytes of its vectors: "avx512" 64, "avx2" 32, "sse2" 16.
#ifndef HTH_BASE_ISA_H
#define HTH_BASE_ISA_H

#include "base/err.h"

#include <stdbool.h>

// hth_isa_bytes returns the bytes of the widest vectors: 64 (AVX-512 F, BW, DQ, VL), 32 (AVX2 with
// FMA), 16 (SSE2, or another architecture). One atomic load; from any thread.
int hth_isa_bytes(void);
// hth_isa_amx says whether the process may use AMX on bf16 (and AVX-512's conversions to it): the
// processor has it, hth_isa_bytes is 64 and hth_isa_used 0, and the kernel has given leave, which
// it is asked for here. From any thread.
bool hth_isa_amx(void);
// hth_isa_limit allows no more than `name`: "avx512", "avx2" or "sse2"; NULL or "": everything. For
// tests and comparisons; to be called before a device is opened. HTH_EINVAL: no such name.
hth_err hth_isa_limit(const char *name);

// hth_isa_use limits the process further, to the set of `bytes` and nothing newer: no AMX with 64.
// 0 ends it. Only while no kernel is prepared or runs.
void hth_isa_use(int bytes);
int hth_isa_used(void); // what hth_isa_use was called with last; from any thread
// hth_isa_find returns the bytes of a set, 0: no such name. hth_isa_name is its inverse.
int hth_isa_find(const char *name);
const char *hth_isa_name(int bytes);

#endif
