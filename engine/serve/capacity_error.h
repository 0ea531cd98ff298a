// SPDX-License-Identifier: Apache-2.0
// engine/serve/capacity_error.h - what a model that does not fit is told. Engine's thread only.
//
// Design notes
// A program is admitted by its plan, which is its worst case: every byte that a run will ever need.
// A plan is made for what jobs and pinned models leave of the device, and everything else can be
// moved away for it; so nothing that was admitted runs out of memory later.
#ifndef HTH_ENGINE_SERVE_CAPACITY_ERROR_H
#define HTH_ENGINE_SERVE_CAPACITY_ERROR_H

#include "runtime/program.h"

// hth_capacity_error_refuse is asked when no plan for these inputs fits what is left (the sentence
// that
// hth_fail keeps says by how much). HTH_ENODEVMEM: it would fit without jobs and pins, so not now,
// and site->refused_over and refused_bytes are set;
// HTH_ETOOBIG: never, on this device. The sentence says who has the memory and what would help.
hth_err hth_capacity_error_refuse(hth_site *site, hth_source *source, const hth_tensor *inputs);

#endif
