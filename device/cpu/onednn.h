// SPDX-License-Identifier: Apache-2.0
// device/cpu/onednn.h - oneDNN, opened at run time: what the program and libhearth_dnnl.so give
// each other, and the opener.
//
// Design notes
// Programs and libhearth.so are not linked with oneDNN: the plug-in is, which holds all code that
// calls it (kernels/dnnl/). Where the plug-in or a library below it is absent, the CPU computes
// with hearth's own kernels. Debian's oneDNN computes by OpenMP: it calls six functions of
// libgomp's stable ABI (GOMP_parallel, GOMP_barrier, four omp_get_*). The plug-in defines these
// six, which the loader finds before libgomp's because the plug-in is what was opened, and hands
// them to the program's team: no second pool of threads spins for the same cores.
#ifndef HTH_DEVICE_CPU_ONEDNN_H
#define HTH_DEVICE_CPU_ONEDNN_H

#include "base/err.h"
#include "device/cpu/team.h"

#include <stddef.h>
#include <stdint.h>

#define HTH_ONEDNN_ABI   2u // changes whenever anything here or in kernels/cpu/dnnl.h does
#define HTH_ONEDNN_ENTRY "hth_dnnl_plugin"
#define HTH_ONEDNN_FILE  "libhearth_dnnl.so"

struct hth_dn_calls; // kernels/cpu/dnnl.h

typedef struct hth_onednn_host {
    hth_err (*fail)(hth_err err, const char *sentence);
    void *(*calloc)(size_t n, size_t size);
    void (*free)(void *p);
    // What oneDNN may use: 64: AVX-512, 32: AVX2, 16: SSE4.1, its least; 0: all of the processor
    int (*vector_bytes)(void);
    const hth_team_omp *team;
} hth_onednn_host;

typedef struct hth_onednn {
    uint32_t abi;
    const char *version; // "2.6.3"
    bool our_threads;    // false: the process has another OpenMP in front, and oneDNN uses that
    const struct hth_dn_calls *calls;
} hth_onednn;

// What HTH_ONEDNN_ENTRY is: returns a table that stays valid, or NULL for another `abi`.
typedef const hth_onednn *hth_onednn_entry(uint32_t abi, const hth_onednn_host *host);

// hth_onednn_get returns the plug-in's table, NULL where there is none or the setting
// "kernels.onednn" says false. The first call opens it and says in the log what is missing; it is
// never closed. Any thread.
const hth_onednn *hth_onednn_get(void);

#endif
