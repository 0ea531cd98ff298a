// SPDX-License-Identifier: Apache-2.0
// engine/serve/batch_run.h - several requests in one run: their inputs one after the other, their
// outputs scattered. Engine's thread only.
#ifndef HTH_ENGINE_SERVE_BATCH_RUN_H
#define HTH_ENGINE_SERVE_BATCH_RUN_H

#include "engine/serve/infer_request.h"

typedef struct hth_batch_run {
    void *memory; // of the joined tensors, kept from run to run
    size_t bytes;
    hth_site *site; // that counts them
    // while something runs: its requests. One that is not done and taken out (NULL) gets no
    // outputs.
    hth_infer_request **work;
    int n;
    atomic_int stop; // set: the joined run ends at the next operator
} hth_batch_run;

// hth_batch_run_fits says that program's outputs are per sample: those of several requests can be
// computed by one run of it.
bool hth_batch_run_fits(const hth_program *program);

// hth_batch_run_run computes count (>= 2) alike requests in one run of `bucket` samples. The result
// of each, unless it was taken out meanwhile (work[k] is NULL then), is in its request, and
// counted. Where the run fails, each is run alone. Another error than HTH_OK: nothing was done.
hth_err hth_batch_run_run(hth_batch_run *run, hth_models *ms, hth_infer_request **work, int count,
                          int64_t bucket);

void hth_batch_run_fini(hth_batch_run *run); // gives the memory back; the join can be used again

#endif
