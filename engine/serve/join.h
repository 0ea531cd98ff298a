// SPDX-License-Identifier: Apache-2.0
// engine/serve/join.h - several requests in one run: their inputs behind each other, their outputs
// scattered. Engine's thread only.
#ifndef HTH_ENGINE_SERVE_JOIN_H
#define HTH_ENGINE_SERVE_JOIN_H

#include "engine/serve/work.h"

typedef struct hth_join {
    void *memory; // of the joined tensors, kept from run to run
    size_t bytes;
    hth_site *site; // that counts them
    // while something runs: its requests. One that is not done and taken out (NULL) gets no
    // outputs.
    hth_work **work;
    int n;
    atomic_int stop; // set: the joined run ends at the next operator
} hth_join;

// hth_join_fits says that p's outputs are per sample: those of several requests can be computed by
// one run of it.
bool hth_join_fits(const hth_program *p);

// hth_join_run computes n (>= 2) alike requests in one run of `bucket` samples. The result of each,
// unless it was taken out meanwhile (work[k] is NULL then), is in its request, and counted. Where
// the run fails, each is run alone. Another error than HTH_OK: nothing was done.
hth_err hth_join_run(hth_join *j, hth_models *ms, hth_work **work, int n, int64_t bucket);

void hth_join_fini(hth_join *j); // gives the memory back; the join can be used again

#endif
