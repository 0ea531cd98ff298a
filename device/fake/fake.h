// SPDX-License-Identifier: Apache-2.0
// device/fake/fake.h - the controls of the fake device, for tests: faults, time, order.
#ifndef HTH_DEVICE_FAKE_FAKE_H
#define HTH_DEVICE_FAKE_FAKE_H

#include "device/device.h"

// Each fail_* is the number of the call, from now and 1-based, that fails once; 0: none. Reserve
// fails with HTH_ENODEVMEM, copies and launches with HTH_EDEVLOST: at the call, or (*_run) when the
// queue reaches the operation.
typedef struct hth_fake_control {
    unsigned fail_reserve, fail_copy, fail_launch, fail_copy_run, fail_launch_run;
    uint64_t now_ns; // the device's clock; every executed operation advances it
    uint64_t launch_ns, copy_ns, copy_ns_per_kib; // by this much
    uint64_t launches, copies, reserved_bytes;    // counted
} hth_fake_control;

// hth_fake_control_of returns the controls of a device opened as "fake", NULL for any other. Valid
// until it is closed.
hth_fake_control *hth_fake_control_of(hth_device *device);

// hth_fake_clock has the form that hth_clock_inject wants; ctx is the controls.
uint64_t hth_fake_clock(void *ctx);

#endif
