// SPDX-License-Identifier: Apache-2.0
// device/cpu/isa_claim.h - the one instruction set of all CPU devices that are open in a process.
//
// Design notes
// Kernels are chosen, and choose, by hth_isa_bytes, and oneDNN has one limit for the process that
// it no longer hears once it has computed. So the devices of a process share a set, and two that
// ask for different ones are refused. hearthd gives each device a process of its own.
#ifndef HTH_DEVICE_CPU_ISA_CLAIM_H
#define HTH_DEVICE_CPU_ISA_CLAIM_H

#include "base/err.h"

// hth_isa_claim limits the process to the set of `bytes` (base/isa.h; 0: to what the processor and
// $HEARTH_ISA allow) for a device named `device`, until hth_isa_unclaim. HTH_ENOTSUP: the processor
// has no such set, or $HEARTH_ISA forbids it; HTH_EBUSY: another device has another set, or oneDNN
// has computed with another one. Then nothing is claimed. Any thread.
hth_err hth_isa_claim(const char *device, int bytes);
void hth_isa_unclaim(void);
// hth_isa_claim_onednn returns the set that oneDNN is to be limited to, 0: to none. Called once,
// before oneDNN computes.
int hth_isa_claim_onednn(void);

#endif
