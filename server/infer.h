// SPDX-License-Identifier: Apache-2.0
// server/infer.h - the way of an inference request through the engine. Engine's thread only.
#ifndef HTH_SERVER_INFER_H
#define HTH_SERVER_INFER_H

#include "server/model.h"

// hth_infer answers request `r`: model, program, outputs placed, run. Fills r->outputs.
hth_err hth_infer(hth_models *ms, hth_request *r);

// hth_infer_program finds or compiles the program for bound inputs. tune: with measured algorithms.
hth_err hth_infer_program(hth_models *ms, hth_source *s, const hth_tensor *inputs, bool tune,
                          hth_request *progress, hth_program **out);

// hth_infer_tune_idle takes one step towards measured algorithms for the most used program that has
// none: measures one convolution, or, when all are measured, swaps in a program compiled with them.
// false: nothing left to do.
bool hth_infer_tune_idle(hth_models *ms);

#endif
