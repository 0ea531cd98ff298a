// SPDX-License-Identifier: Apache-2.0
// server/model.h - the models an engine has loaded: found by name, loaded from the store, dropped
// when removed from it. Engine's thread only.
#ifndef HTH_SERVER_MODEL_H
#define HTH_SERVER_MODEL_H

#include "server/program.h"

// Key of a version's meta: hearth trained it, so what was exported for training is served as for
// inference.
#define HTH_META_TRAINED "trained"

typedef struct hth_model {
    struct hth_model *next; // most recently used first
    char name[208];
    int version;
    int64_t max_batch; // 0: the symbolic first dimension is not a batch; -1: any
    uint64_t weight_bytes;
    hth_source source;
    hth_manifest manifest;
    uint64_t requests, failures, busy_ns;
    // of requests: in the queue, until the outputs had a place, until they were there
    uint64_t success_ns, failure_ns, queue_ns, input_ns, infer_ns;
    uint64_t samples;      // that were inferred: elements of the batch
    uint64_t last_wall_ns; // when the last request was done, since 1970; 0: never
} hth_model;

typedef struct hth_models {
    hth_store *store;
    hth_site *site;
    hth_model *list;
    uint64_t seen_change; // the store's change count when names were last resolved
    struct {
        char spec[208];
        hth_model *model;
    } recent; // the last name asked for
} hth_models;

// hth_model_find resolves "name" (latest version) or "name:version" and loads it if needed. The
// model stays until the store loses it or hth_models_fini.
hth_err hth_model_find(hth_models *ms, const char *spec, hth_model **out);
// hth_models_unload drops the loaded versions of `name`, their programs and the device's copies of
// their weights that nothing else uses; the next request loads them again.
void hth_models_unload(hth_models *ms, const char *name);
void hth_models_fini(hth_models *ms);

// hth_model_bind matches named tensors to the model's inputs and checks them against its signature:
// out gets one per input, in order. HTH_EINVAL: the sentence says which input and what was
// expected.
hth_err hth_model_bind(const hth_model *m, const hth_request_tensor *in, int n, hth_tensor *out);

// hth_model_synthetic fills `inputs` (one per model input; data hth_alloc'd, freed by the caller
// also on error) for the given batch: normal floats, integers that stay inside the tables that they
// index.
hth_err hth_model_synthetic(const hth_model *m, int64_t batch, hth_tensor *inputs);

// hth_model_graph loads a version's model graph: skeleton from the manifest, contents mapped from
// the store. Any thread.
hth_err hth_model_graph(hth_store *store, const hth_manifest *manifest, hth_graph **out);

#endif
