// SPDX-License-Identifier: Apache-2.0
// engine/serve/tune.h - in idle time: convolution algorithms measured for programs that are used,
// and the programs made again with the best of them. Engine's thread only.
#ifndef HTH_ENGINE_SERVE_TUNE_H
#define HTH_ENGINE_SERVE_TUNE_H

#include "engine/serve/infer_request.h"

// hth_tune_step takes one step towards measured algorithms: for a stale program, which is
// made again, else for the most used one that has none: measures one convolution, or, when all are
// measured, swaps in a program compiled with them. false: nothing left to do.
bool hth_tune_step(hth_models *ms);
// hth_tune_pending says whether something is left.
bool hth_tune_pending(const hth_models *ms);

#endif
