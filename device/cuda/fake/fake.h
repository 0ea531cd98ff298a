// SPDX-License-Identifier: Apache-2.0
// device/cuda/fake/fake.h - a CUDA driver for tests, behind the dispatch table.
//
// Design notes
// What can go wrong without a GPU is real: physical memory is pages of a memfd each, so one handle
// mapped twice is the same memory, what is not mapped or has no access cannot be touched, and there
// is only so much. Streams are those of the fake device (device/fake): everything is deferred, and
// a synchronization runs it in a random order that events allow. As in the driver, a copy from
// pageable memory has read it when the call returns, and one to pageable memory is done then.
// Capturing a stream makes a graph of what is issued, whose launch runs its nodes in a random order
// that edges allow; what may not be called meanwhile spoils the capture, as in the driver, and more
// strictly. One driver per process; one thread.
#ifndef HTH_DEVICE_CUDA_FAKE_FAKE_H
#define HTH_DEVICE_CUDA_FAKE_FAKE_H

#include "device/cuda/driver.h"
#include "device/cuda/grid.h"
#include "device/plugin.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct hth_cuda_fake {
    int n_devices;
    uint64_t total_bytes;
    bool no_vmm; // the device has no virtual memory management
    // The n-th call from now, 1-based, fails once with `fail_with`; 0: none. Calls that give
    // something back do it all the same: the driver's report errors of earlier work. `sticky`:
    // later calls fail with it, too. While other threads call, it is set last.
    _Atomic uint64_t fail_nth;
    CUresult fail_with;
    bool sticky;
    // counted
    uint64_t calls;
    uint64_t used_bytes, peak_bytes; // of device memory
    int64_t live;                    // whatever a call made and another has to give back
    uint64_t creates;                // cuMemCreate that succeeded
    uint64_t launches;               // of bodies
    uint64_t graph_launches, graph_updates;
} hth_cuda_fake;

// hth_cuda_fake_open starts a driver with one device of 256 MiB, whose order `seed` decides; its
// controls stay valid until hth_cuda_fake_close. NULL: no memory.
hth_cuda_fake *hth_cuda_fake_open(uint64_t seed);
void hth_cuda_fake_close(void);
const hth_cuda_api *hth_cuda_fake_api(void);
// hth_cuda_fake_table is the same, for the libraries that this driver does not fake.
hth_cuda_api *hth_cuda_fake_table(void);
// hth_cuda_fake_symbol is what is not in the table, for hearth does without it: export and import
// of handles as file descriptors. NULL: there is no such function.
void *hth_cuda_fake_symbol(const char *name);
// hth_cuda_fake_bodies says what cuLibraryGetKernel finds, whatever the library's image.
void hth_cuda_fake_bodies(const hth_cuda_body *const *list, int n);
// hth_cuda_fake_issue runs fn on a copy of `job` in the stream's order; its failure is a bad
// access.
CUresult hth_cuda_fake_issue(CUstream stream, hth_err (*fn)(void *job), const void *job,
                             size_t bytes);
// hth_cuda_fake_count counts the floats in all device memory that `is` says yes to.
uint64_t hth_cuda_fake_count(bool (*is)(float value));
// hth_cuda_fake_plugin is the plug-in over this driver, for hth_plugin_use.
const hth_plugin *hth_cuda_fake_plugin(void);

// A CUfunction of this driver points to one of the bodies, or to such a function. That has one
// parameter, a pointer; its failure is a bad access: sticky.
typedef hth_err hth_cuda_fake_kernel(void *arg);

#endif
