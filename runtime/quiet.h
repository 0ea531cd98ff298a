// SPDX-License-Identifier: Apache-2.0
// runtime/quiet.h - whether the machine has little else to do: timings that others' work disturbed
// are taken again then.
#ifndef HTH_RUNTIME_QUIET_H
#define HTH_RUNTIME_QUIET_H

#include "runtime/machine.h"

typedef enum hth_quiet_is {
    HTH_QUIET_UNKNOWN, // there are no two looks of late
    HTH_QUIET_YES,
    HTH_QUIET_NO,
} hth_quiet_is;

// The machine is looked at twice, HTH_QUIET_LOOK_NS apart at least and HTH_QUIET_OLD_NS at most:
// what it did long ago says nothing.
#define HTH_QUIET_LOOK_NS 1000000000u
#define HTH_QUIET_OLD_NS  5000000000u

typedef struct hth_quiet {
    hth_machine machine; // at the last look; its `proc` may be set before the first
    uint64_t looked_ns;  // 0: never
} hth_quiet;

// hth_quiet_look looks at the machine, at `now_ns` of hth_now_ns's clock, unless it has just been
// looked at. Quiet: of its processors' time since the look before, at most `share` (0 .. 1) was
// used; 1 is always quiet. What cannot be read is not known.
hth_quiet_is hth_quiet_look(hth_quiet *quiet, double share, uint64_t now_ns);

#endif
