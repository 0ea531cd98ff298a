// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/winograd/winograd_filter.h - filters of 3x3 convolutions, transformed: U = G g G^T in
// panels (winograd_tile.h).
#ifndef HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_FILTER_H
#define HTH_KERNELS_CPU_WINOGRAD_WINOGRAD_FILTER_H

#include "kernels/cpu/winograd/winograd_tile.h"

// Floats of a group's transformed filter, and of one panel of it.
size_t hth_wino_filter_floats(const hth_wino_isa *isa, int pairs, const hth_wino_filter *filter);
size_t hth_wino_panel_floats(const hth_wino_isa *isa, int pairs, const hth_wino_filter *filter);
// hth_wino_filter_pack transforms all groups in double, on the calling thread's team; u: of
// f->groups * hth_wino_filter_floats, all of which are written.
void hth_wino_filter_pack(const hth_wino_isa *isa, int pairs, const hth_wino_filter *filter,
                          const float *w, float *u);

#endif
