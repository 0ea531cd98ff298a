// SPDX-License-Identifier: Apache-2.0
// runtime/model.h - the models an engine has loaded: found by name, loaded from the store, dropped
// when removed from it. Engine's thread only.
//
// The folder runtime/ makes models runnable on one device and accounts for what they take there:
// models, programs (program.h, compile/) and the site they share (site.h), memory by owner
// (ledger.h, job_memory.h), tenants (tenants/), and the commands (command.h). What runs when is
// decided in engine/.
//
// Design notes
// A name without a version is served by one version, and by another one only when that is ready
// (version_swap.h): who asks never waits for an import. A name with a version is that version.
#ifndef HTH_RUNTIME_MODEL_H
#define HTH_RUNTIME_MODEL_H

#include "graph/independence.h"
#include "runtime/batching.h"
#include "runtime/latency.h"
#include "runtime/program.h"

// Key of a version's meta: hearth trained it, so what was exported for training is served as for
// inference.
#define HTH_META_TRAINED "trained"

// Runs of one batch size.
typedef struct hth_batch_count {
    int64_t samples;
    uint64_t runs, input_ns, infer_ns, output_ns;
} hth_batch_count;

#define HTH_BATCH_SIZES 64 // that are counted

// A program that requests were waiting for, to be joined in.
typedef struct hth_batch_demand {
    hth_tensor *key; // one per input, without data; NULL: none
    int64_t samples;
    int times; // it was demanded
} hth_batch_demand;

// Why requests fail, as /metrics tells it.
typedef enum hth_failure {
    HTH_FAILURE_REJECTED, // the queue is full, or the timeout was over or would be
    HTH_FAILURE_CANCELED,
    HTH_FAILURE_BACKEND, // it could not be run: memory, the device, the store
    HTH_FAILURE_OTHER,   // the request is wrong
    HTH_N_FAILURES
} hth_failure;

// Bounds of the histogram of answers, in milliseconds.
#define HTH_ANSWER_BOUNDS   100, 500, 2000, 5000
#define HTH_N_ANSWER_BOUNDS 4

typedef struct hth_model {
    struct hth_model *next; // most recently used first
    char name[208];
    int version;
    int64_t max_batch;             // 0: requests share no run; -1: any
    hth_independence independence; // of its samples from each other
    uint64_t weight_bytes;
    hth_source source;
    hth_manifest manifest;
    hth_account account;
    bool by_version; // was asked for by its version, too: a newer one does not end it
    uint64_t requests, failures, busy_ns;
    uint64_t failed[HTH_N_FAILURES];        // failures by reason
    uint64_t answered[HTH_N_ANSWER_BOUNDS]; // successes within HTH_ANSWER_BOUNDS milliseconds
    uint64_t load_ns;                       // what it took to load it
    // of requests: in the queue, until the outputs had a place, until they were there
    uint64_t success_ns, failure_ns, queue_ns, input_ns, infer_ns, output_ns;
    uint64_t samples;    // that were inferred: elements of the batch
    uint64_t executions; // runs, each for one or several requests
    int n_sizes;         // by their number of samples
    hth_batch_count sizes[HTH_BATCH_SIZES];
    hth_latency *latency;  // of the last minute; NULL: no request yet
    uint64_t last_wall_ns; // when the last request was done, since 1970; 0: never
    // requests that wait for it
    int refs;              // that were accepted
    bool gone;             // not in the list any more: ends with the last of them
    hth_batching batching; // as configured
    hth_batch_queue queue;
    bool alone; // they cannot be joined
    // concurrent runs (instances.h): when its last run ended; requests in a row that had
    // arrived before that; such runs
    uint64_t ended_ns;
    int overlapped;
    uint64_t concurrent_runs;
    int64_t too_many; // samples whose program could not be had; 0: not known
    uint64_t too_many_until_ns;
    hth_batch_demand demand;
} hth_model;

// A name that was asked for without a version.
typedef struct hth_name {
    struct hth_name *next;
    char name[208];
    hth_model *serving;
    int wanted;        // a newer version, that is to take its place; 0: none
    hth_model *coming; // that one, as soon as it is loaded
    int refused;       // the last one that could not, 0: none, ..
    char why[320];     // .. and why not, ..
    hth_err why_err;
    uint64_t refused_bytes; // it may fit when the device has more than this for models; 0: it is no
                            // matter of memory
    uint64_t moved_from;    // bytes that the device had been filled with when it was loaded
} hth_name;

typedef struct hth_models {
    hth_store *store;
    hth_site *site;
    hth_model *list;
    uint64_t loaded;      // counts models that were put into the list
    hth_latency *latency; // of all models' requests; NULL: none yet
    hth_name *names;
    const char *tenant;      // who asks now; NULL: the engine itself
    const hth_request *asks; // .. and by which request; NULL: none that could be canceled
    uint64_t seen_change;    // the store's change count at the last hth_models_refresh, ..
    uint64_t seen_health;    // .. and its count of what was found damaged or repaired
    uint64_t looked_bytes;   // of the device for models, when newer versions were last looked for
    struct {
        char spec[208];
        hth_model *model;
    } recent; // the last name asked for
    // called where the store has changed, after what it lost was dropped (hth_models_refresh);
    // NULL: nobody listens
    void (*changed)(struct hth_models *ms);
} hth_models;

// hth_model_find resolves "name" (the version that serves it, at first the latest), "name:version"
// or an alias, and loads it if needed. The model stays until a newer one has taken its place, the
// store loses it, it is unloaded, or hth_models_fini.
hth_err hth_model_find(hth_models *ms, const char *spec, hth_model **out);
// hth_model_version is the same for a version, without asking whether the store still has it.
hth_err hth_model_version(hth_models *ms, const char *name, int version, hth_model **out);
// hth_model_loaded is what hth_model_find would return, NULL when it had to be loaded.
hth_model *hth_model_loaded(const hth_models *ms, const char *name, int version);
// hth_model_current is the same for "name" or "name:version", without a look into the store; NULL
// also when something has changed there: ask hth_model_find.
hth_model *hth_model_current(hth_models *ms, const char *spec);
// hth_model_hold keeps a model that is dropped until hth_model_rele.
void hth_model_hold(hth_model *model);
void hth_model_rele(hth_models *ms, hth_model *model);
// hth_model_batch_policy is how its requests wait and are joined now.
hth_batch_policy hth_model_batch_policy(const hth_model *model);
// hth_model_name finds the name's record, NULL: it was not asked for.
hth_name *hth_model_name(const hth_models *ms, const char *name);
// hth_model_drop drops a loaded model: its programs, the device's copies of their weights that
// nothing else uses, and what of the arena only it needed; one that is held, when it is not any
// more, but its pins end now. The next request loads it again.
void hth_model_drop(hth_models *ms, hth_model *model);
// hth_models_unload does so with the loaded versions of `name` (version 0: all); returns how many
// there were. Programs of one that is held leave the device now, but those that are at work.
int hth_models_unload(hth_models *ms, const char *name, int version);
// hth_models_refresh drops, where the store has changed since the last look, loaded versions that
// it has no more, or that were found damaged there, and asks for newer ones. Requests that were
// accepted for a dropped version still run; nothing else is served by it from then on. Not while a
// model is loaded or a program compiled: whoever does that has pointers to names.
void hth_models_refresh(hth_models *ms);
// hth_models_renew drops those that compute in another precision than is set for them now.
void hth_models_renew(hth_models *ms, const char *name);
void hth_models_fini(hth_models *ms);

// hth_model_bind matches named tensors to the model's inputs and checks them against its signature:
// out gets one per input, in order. HTH_EINVAL: the sentence says which input and what was
// expected.
hth_err hth_model_bind(const hth_model *model, const hth_request_tensor *in, int n,
                       hth_tensor *out);

// hth_model_synthetic makes up `inputs` (one per model input; data hth_alloc'd, freed by the caller
// also on error) for the given batch: normal floats, integers that stay inside the tables that they
// index. whole: all of them, to compute with; HTH_ETOOBIG above limits.message_bytes, which no
// request can bring. Otherwise inputs of more than HTH_MODEL_GUESS bytes are shapes without data:
// contents that decide shapes are smaller, and a signature may claim any size.
#define HTH_MODEL_GUESS ((size_t)1 << 20)
hth_err hth_model_synthetic(const hth_model *model, int64_t batch, bool whole, hth_tensor *inputs);

// hth_model_trained tells whether hearth trained a version.
bool hth_model_trained(const hth_manifest *manifest);
// hth_model_serves loads a version's graph as it is served: without training mode where hearth
// trained it. *samples: whether its samples are proven independent. This alone decides whether
// requests share runs, are padded, or run in slices, and what a configuration may say of a batch;
// a configuration can forbid those, never allow them. Computed at each load, so that it is never
// older than the proof. Any thread.
hth_err hth_model_serves(hth_store *store, const hth_manifest *manifest, hth_graph **out,
                         hth_independence *samples);
// hth_model_graph loads a version's model graph: skeleton from the manifest, contents mapped from
// the store. Any thread.
hth_err hth_model_graph(hth_store *store, const hth_manifest *manifest, hth_graph **out);

#endif
