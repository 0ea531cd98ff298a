// SPDX-License-Identifier: Apache-2.0
// device/spec.h - a device's specification taken apart, and the implementations that device.c can
// open.
#ifndef HTH_DEVICE_SPEC_H
#define HTH_DEVICE_SPEC_H

#include "device/device.h"

typedef struct hth_device_spec {
    char kind[16];
    int index;
    char mem[32]; // as written ("2GiB", "60%"); "": the implementation's default
    int threads;  // 0: default
    int quota;    // percent of its processors; 100: all
    int isa;      // cpu: bytes of the vectors of its only instruction set; 0: all of them
    // cpu: rates of the link, which link= sets, too; 0: as fast as memory
    double link_bytes_per_s, h2d_bytes_per_s, d2h_bytes_per_s;
    uint64_t seed; // fake: order of execution
    bool plain;    // cuda: graphs=off
} hth_device_spec;

// hth_device_spec_parse reads a specification. HTH_EINVAL: unknown kind or option, or a value that
// is none; the detail says what is known.
hth_err hth_device_spec_parse(const char *text, hth_device_spec *out);
// hth_device_spec_open opens the device that a parsed specification names.
hth_err hth_device_spec_open(const hth_device_spec *spec, hth_device **out);
// The budget that spec->mem names on a machine with `total` bytes.
hth_err hth_device_spec_budget(const hth_device_spec *spec, uint64_t total, const char *dflt,
                               uint64_t *out);

// Openers. On error *out stays as it was and nothing is held.
hth_err hth_cpu_open(const hth_device_spec *spec, hth_device **out);
hth_err hth_fake_open(const hth_device_spec *spec, hth_device **out);
hth_err hth_cuda_open(const hth_device_spec *spec,
                      hth_device **out); // by the plug-in, device/plugin.h

#endif
