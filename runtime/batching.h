// SPDX-License-Identifier: Apache-2.0
// runtime/batching.h - how a model's requests wait and are joined: what the settings say, and what
// was set for the model by name, which the store keeps.
#ifndef HTH_RUNTIME_BATCHING_H
#define HTH_RUNTIME_BATCHING_H

#include "modelstore/store.h"

#include <jansson.h>
#include <stdint.h>

#define HTH_BATCH_PREFERRED 8

typedef struct hth_batch_flow { // all zero but for the weight at first
    double weight;              // > 0; may change at any time
    int away;                   // the caller's: items that wait elsewhere
    // the batcher's
    struct hth_batch_flow *next;   // of those with items
    int n;                         // its items
    double at;                     // virtual time, in nanoseconds
    double owed;                   // of that, since its last run (hth_batch_flow_charge)
    uint64_t run_ns;               // what its runs took, in all
    double waiting_ns, longest_ns; // of its items, while waits are predicted
} hth_batch_flow;

typedef struct hth_batch_policy {
    int64_t max_samples; // of a joined run; 1: nothing is joined
    uint64_t delay_ns;   // that the head may wait for others
    int n_preferred;
    int64_t preferred[HTH_BATCH_PREFERRED]; // buckets next to the powers of two; a full one goes
                                            // without delay
    uint64_t timeout_ns;                    // in the queue, of requests that name none; 0: none
    uint32_t max_queue;                     // requests; 0: no limit
    uint32_t priority;                      // of requests that name none
} hth_batch_policy;

typedef struct hth_batch_item hth_batch_item;

typedef struct hth_batch_queue { // all zero but for the policy at first
    hth_batch_policy policy;
    // the batcher's
    struct hth_batch_queue *next; // of those with something in them
    hth_batch_item *first, *last;
    int n;
    int away;         // the caller's: items that are no longer here and count for max_queue
    double sample_ns; // what a sample takes, lately; 0: not known
    uint32_t decisions, waits, vain; // decisions: since the slower way was taken
    uint64_t other_ns;               // .. which was then; 0: never yet
    int waited_n;                    // that were there when the head began to wait; 0: it does not
    uint64_t round;
} hth_batch_queue;

typedef struct hth_batching { // -1: as the settings say
    int64_t max, delay_us, timeout_us, queue, priority;
    int n_preferred;
    int64_t preferred[HTH_BATCH_PREFERRED];
} hth_batching;

// hth_batch_flow_charge charges a flow that has items for what its tenant computed otherwise: from
// one of its runs to the next for a second at most.
void hth_batch_flow_charge(hth_batch_flow *flow, uint64_t took_ns);

// hth_batching_load reads what was set for model `name`; nothing, where that is nothing.
void hth_batching_load(hth_store *store, const char *name, hth_batching *out);
// hth_batching_change sets what `doc` names ({"max", "delay_us", "timeout_us", "queue", "priority",
// "preferred": [..]}; null: as the settings say) and keeps it in the store. Other keys are not
// looked at. HTH_EINVAL; then nothing changed.
hth_err hth_batching_change(hth_store *store, const char *name, const json_t *doc,
                            hth_batching *batching);

// hth_batching_of_config makes such a document of a ModelConfig's {"dynamic_batching"}, where there
// is one (else *out is NULL), and checks it. A number that is 0 is the server's setting again; one
// that is not said stays. Priorities and timeouts are for all levels alike. HTH_EINVAL;
// HTH_ENOTSUP: it asks for an order of requests, or a treatment of late ones, that is not done
// here.
hth_err hth_batching_of_config(const json_t *config, json_t **out);

// hth_batching_policy is what holds now for a model whose batches have at most model_max samples
// (<= 0: no limit), or whose requests are not joined.
hth_batch_policy hth_batching_policy(const hth_batching *batching, int64_t model_max, bool joins);
json_t *hth_batching_json(const hth_batch_policy *policy);

#endif
