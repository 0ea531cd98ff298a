// SPDX-License-Identifier: Apache-2.0
// kernels/dnnl/entry.h - what the files of libhearth_dnnl.so share.
//
// The folder kernels/dnnl/ is the plug-in libhearth_dnnl.so, the only code that calls oneDNN, of
// version 2 or 3. The kernels that use it are in kernels/cpu/ (dnnl.h there is the table that it
// fills); device/cpu/onednn.c opens it.
#ifndef HTH_KERNELS_DNNL_ENTRY_H
#define HTH_KERNELS_DNNL_ENTRY_H

#include "device/cpu/onednn.h"
#include "kernels/cpu/dnnl.h"

extern const hth_onednn_host *hth_dnnl_host;     // set by the entry
extern const struct hth_dn_calls hth_dnnl_calls; // primitive.c

// hth_dnnl_openmp makes `team` what OpenMP's functions mean. Whether oneDNN's calls come here.
bool hth_dnnl_openmp(const hth_team_omp *team);

#endif
