// SPDX-License-Identifier: Apache-2.0
// device/cpu/machine.h - what the operating system lets this process use: memory, processors,
// instructions.
#ifndef HTH_DEVICE_CPU_MACHINE_H
#define HTH_DEVICE_CPU_MACHINE_H

#include <stddef.h>
#include <stdint.h>

// hth_machine_memory returns MemTotal or the tightest memory limit of the process's control groups,
// if that is less.
uint64_t hth_machine_memory(void);
// hth_machine_threads returns how many processors the process may use: affinity and control-group
// quota. At least 1.
int hth_machine_threads(void);
// hth_machine_name writes the processor's name ("AMD EPYC 9554") to `out`.
void hth_machine_name(char *out, size_t cap);
// hth_machine_isa writes the widest instruction sets ("AVX-512 VNNI AMX") to `out` and returns the
// vector's bytes.
int hth_machine_isa(char *out, size_t cap);

// hth_machine_cache returns the bytes of the data cache of that level (1: the nearest) that a
// processor has or shares; 0: not known.
uint64_t hth_machine_cache(int level);

#endif
