// SPDX-License-Identifier: Apache-2.0
// runtime/machine.h - what the machine's processors and memory are doing, as the kernel tells it.
#ifndef HTH_RUNTIME_MACHINE_H
#define HTH_RUNTIME_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct hth_machine {
    uint64_t total_bytes, used_bytes; // of memory; used: not available without swapping
    double utilization;               // of all processors since the last time, 0 .. 1
    double stolen;                    // .. and of these what a virtual machine's host took
    uint64_t busy, all, taken;        // ticks, for the next time
    const char *proc;                 // the folder of `stat` and `meminfo`; NULL: /proc
} hth_machine;

// hth_machine_read brings `machine` up to date; all but `proc` is zero before the first time, whose
// shares are those since the machine was started. What cannot be read stays as it was. false: the
// shares did, for there is no `stat`, or its counters have not moved on.
bool hth_machine_read(hth_machine *machine);

#endif
