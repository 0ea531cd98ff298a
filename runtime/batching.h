// SPDX-License-Identifier: Apache-2.0
// runtime/batching.h - how a model's requests wait and are joined: what the settings say, and what
// was set for the model by name, which the store keeps.
#ifndef HTH_RUNTIME_BATCHING_H
#define HTH_RUNTIME_BATCHING_H

#include "modelstore/store.h"
#include "engine/serve/batcher.h"

#include <jansson.h>

typedef struct hth_batching { // -1: as the settings say
    int64_t max, delay_us, timeout_us, queue, priority;
    int n_preferred;
    int64_t preferred[HTH_BATCH_PREFERRED];
} hth_batching;

// hth_batching_load reads what was set for model `name`; nothing, where that is nothing.
void hth_batching_load(hth_store *s, const char *name, hth_batching *out);
// hth_batching_change sets what `doc` names ({"max", "delay_us", "timeout_us", "queue", "priority",
// "preferred": [..]}; null: as the settings say) and keeps it in the store. Other keys are not
// looked at. HTH_EINVAL; then nothing changed.
hth_err hth_batching_change(hth_store *s, const char *name, const json_t *doc, hth_batching *b);

// hth_batching_of_config makes such a document of a ModelConfig's {"dynamic_batching"}, where there
// is one (else *out is NULL), and checks it. A number that is 0 is the server's setting again; one
// that is not said stays. Priorities and timeouts are for all levels alike. HTH_EINVAL;
// HTH_ENOTSUP: it asks for an order of requests, or a treatment of late ones, that is not done
// here.
hth_err hth_batching_of_config(const json_t *config, json_t **out);

// hth_batching_policy is what holds now for a model whose batches have at most model_max samples
// (<= 0: no limit), or whose requests are not joined.
hth_batch_policy hth_batching_policy(const hth_batching *b, int64_t model_max, bool joins);
json_t *hth_batching_json(const hth_batch_policy *p);

#endif
