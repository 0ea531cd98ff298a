// SPDX-License-Identifier: Apache-2.0
// engine/serve/infer.h - the way of an inference request through the engine. Engine's thread only.
#ifndef HTH_ENGINE_SERVE_INFER_H
#define HTH_ENGINE_SERVE_INFER_H

#include "engine/serve/infer_request.h"

// hth_infer computes one request: program, outputs placed, run. Fills r->outputs, and is counted.
hth_err hth_infer(hth_models *ms, hth_infer_request *infer);

// hth_infer_ready is the program for these inputs (by shapes where they have no data), NULL when it
// would have to be compiled.
hth_program *hth_infer_ready(hth_models *ms, hth_source *source, const hth_tensor *inputs);
// hth_infer_timed runs program once, as hth_microbatch_run, and remembers what that took: from
// times->input_ns to times->infer_ns, which it sets.
hth_err hth_infer_timed(hth_models *ms, hth_program *program, const hth_tensor *inputs,
                        const hth_tensor *out, const atomic_int *canceled,
                        hth_infer_request_times *times);

// hth_infer_program finds or compiles the program for bound inputs. tune: with measured algorithms.
hth_err hth_infer_program(hth_models *ms, hth_source *source, const hth_tensor *inputs, bool tune,
                          hth_request *progress, hth_program **out);

#endif
