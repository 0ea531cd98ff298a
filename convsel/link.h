// SPDX-License-Identifier: Apache-2.0
// convsel/link.h - what copies between a device and its far side cost, measured once per device.
#ifndef HTH_CONVSEL_LINK_H
#define HTH_CONVSEL_LINK_H

#include "convsel/convsel.h"

typedef struct hth_link {
    double h2d_bytes_per_s, d2h_bytes_per_s; // of large copies
    double latency_us;                       // of a copy of a few bytes, start to end
    double
        interference; // what compute loses next to a copy, in the time that it takes alone: 0 to 2
    double copy_us;   // what the thread that computes loses for a copy however few its bytes
    double memory_bytes_per_s; // of copies within the device's memory, where the link's rate is
                               // set (device.h); else 0: those have the link's
} hth_link;

// hth_link_measure fills *out from `cache` (NULL: nowhere), or by copies of at most 16 MiB and, on
// a device whose compute shares processors with copies, a convolution that runs alone and alongside
// copies: about 0.2 s. What others' work disturbed is measured once more at once. Takes
// device memory for the time of the call. Owner thread.
// Speeds that steps had (hth_link_learn) take the place of the measured ones. A link whose rates
// were set has these, and its device's latency, unless it is faster than memory.
hth_err hth_link_measure(hth_device *device, const hth_timing_cache *cache, hth_link *out);
// hth_link_keep writes to `cache` what is known of a link, which hth_link_measure does not measure
// then. Errors are the cache's.
hth_err hth_link_keep(const hth_device *device, const hth_timing_cache *cache,
                      const hth_link *link);
// hth_link_learn keeps the speeds that a step's copies had (0: there were none) as in_step_times.h
// does nodes' times, and has them in *link, what hth_link_measure gave, from then on.
// Nothing is learned of a link whose rates were set.
hth_err hth_link_learn(hth_device *device, const hth_timing_cache *cache, double h2d_bytes_per_s,
                       double d2h_bytes_per_s, hth_link *link);

#endif
