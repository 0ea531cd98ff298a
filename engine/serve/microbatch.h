// SPDX-License-Identifier: Apache-2.0
// engine/serve/microbatch.h - a batch run in slices that stay in cache. Engine's thread only.
//
// Design notes
// Where the samples of a batch are proven not to depend on each other (hth_source.batched), 16 of
// them can be run as 4 times 4. What
// is gained is locality: the activations of a slice stay in the last-level cache, those of the
// whole batch go through memory (MobileNetV2 at batch 16: 2.2 times as fast in slices). What is
// lost is that each slice reads all weights (VGG's linear layers). Which counts more is measured,
// when a program's algorithms are. The arena shrinks with the slice.
#ifndef HTH_ENGINE_SERVE_MICROBATCH_H
#define HTH_ENGINE_SERVE_MICROBATCH_H

#include "runtime/model.h"

// hth_microbatch_run runs `program` once, in slices if that was chosen. Arguments as
// hth_program_run's.
hth_err hth_microbatch_run(hth_models *ms, hth_program *program, const hth_tensor *inputs,
                           const hth_tensor *out, const atomic_int *canceled);

// hth_microbatch_choose measures program whole and in slices and sets program->slice. A slice that
// cannot be (memory, a model whose results are not per sample) is left out. progress may be NULL.
// HTH_ECANCELED, HTH_ENOMEM; other failures leave program whole.
hth_err hth_microbatch_choose(hth_models *ms, hth_program *program, hth_request *progress);

// hth_microbatch_program returns the program that does program's work: program, or its slices'.
hth_program *hth_microbatch_program(hth_models *ms, hth_program *program);

#endif
