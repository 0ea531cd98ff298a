// SPDX-License-Identifier: Apache-2.0
// device/plugin.h - devices that are opened at run time: what the program and libhearth_cuda.so
// give each other, and the opener.
//
// Design notes
// One program serves machines with and without a GPU, so nothing of CUDA is linked to it. The
// plug-in in turn needs nothing that the program exports (a program exports nothing, a library
// only hearth_*): its one entry gets a table of the functions of base/ that it may call. So errors,
// allocation counts and the clock are the program's own, on both sides.
#ifndef HTH_DEVICE_PLUGIN_H
#define HTH_DEVICE_PLUGIN_H

#include "device/device.h"
#include "device/spec.h"

#define HTH_PLUGIN_ABI                                                                             \
    7u // changes whenever anything here, in device.h, spec.h or kernels/kernel.h does
#define HTH_PLUGIN_ENTRY "hth_cuda_plugin"
#define HTH_PLUGIN_FILE  "libhearth_cuda.so"

typedef struct hth_plugin_host {
    hth_err (*fail)(hth_err err, const char *sentence);
    const char *(*detail)(void);
    void *(*calloc)(size_t n, size_t size);
    void (*free)(void *p);
    uint64_t (*now_ns)(void);
    hth_err (*budget)(const hth_device_spec *spec, uint64_t total, const char *dflt, uint64_t *out);
} hth_plugin_host;

typedef struct hth_plugin {
    uint32_t abi;
    // probe looks for the vendor's libraries in `dirs` ("/a:/b") and where the loader looks, and
    // asks for devices. HTH_OK: `about` names versions and how many devices there are; HTH_ENOTSUP:
    // the sentence says what is missing.
    hth_err (*probe)(const char *dirs, char *about, size_t cap);
    // only after probe succeeded; on error *out stays as it was and nothing is held
    hth_err (*open)(const hth_device_spec *spec, hth_device **out);
} hth_plugin;

// What HTH_PLUGIN_ENTRY is: returns a table that stays valid, or NULL for another `abi`.
typedef const hth_plugin *hth_plugin_entry(uint32_t abi, const hth_plugin_host *host);

// hth_plugin_open opens plug-in `file` and stores its function `entry`. It looks next to the
// program or library that holds this code, in ../lib of there, and where the loader looks. Never
// closed. HTH_ENOTSUP: the sentence says why not.
hth_err hth_plugin_open(const char *file, const char *entry, void **out);

// hth_plugin_cuda_probe says whether a CUDA device can be opened and, in `about`, with what:
// "1 device, driver 13.0, cuDNN 9.19.0, cublasLt 13.1". HTH_ENOTSUP: why not. The first call looks,
// says it once in the log, and may take a second; later ones repeat its answer. Any thread.
hth_err hth_plugin_cuda_probe(char *about, size_t cap);

// hth_plugin_keep_out has that answer be HTH_ENOTSUP with this sentence, without a look: for a
// process that may not use GPUs.
void hth_plugin_keep_out(const char *why);

// hth_plugin_use makes `plugin` the plug-in, in place of the file; NULL: the file again. For tests,
// while no device of a plug-in is open.
void hth_plugin_use(const hth_plugin *plugin);

#endif
